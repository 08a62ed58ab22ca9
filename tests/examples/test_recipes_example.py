"""The example of recipes: what it prints is what it promises."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "recipes.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the example has worked, with what it printed beside it."""
    folder = tmp_path_factory.mktemp("recipes") / "kitchen"
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(folder)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    (folder / "printed.txt").write_text(done.stdout)
    return folder


def test_only_the_new_file_is_baked_again(folder: Path):
    """After a file came, all fragments but that one are from the cache, and its rows are all that is new."""
    printed = (folder / "printed.txt").read_text()

    assert "5 of 6 fragments from the cache" in printed
    assert "3 of 3 fragments from the cache" in printed
    assert "3 rows added, 0 removed, 0 changed; cause: data" in printed


def test_asked_is_achieved(folder: Path):
    """A count of rows is met exactly, a fraction about."""
    printed = (folder / "printed.txt").read_text()

    assert "asked 250, achieved 250" in printed
    fraction = re.search(r"asked 0\.75, achieved ([\d.]+)", printed)
    assert fraction is not None
    assert abs(float(fraction[1]) - 0.75) < 0.05


def test_recipe_comes_back_from_its_file(folder: Path):
    """The file that the example writes is read as the same recipe, and there is a report to look at."""
    assert "read again it is the same recipe" in (folder / "printed.txt").read_text()
    assert (folder / "recipe.yaml").exists()
    assert "<table" in (folder / "report.html").read_text()
