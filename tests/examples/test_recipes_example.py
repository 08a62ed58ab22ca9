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


def test_asked_is_selected_and_achieved_is_what_the_steps_left(folder: Path):
    """A count of rows is selected exactly, a fraction about; steps add and remove rows until it is achieved."""
    printed = " ".join((folder / "printed.txt").read_text().split())

    assert "ingredient comedies: 1,609 -> 250, asked 250, achieved " in printed
    added, removed, rows = re.search(r"; then sentences \+([\d,]+), short -([\d,]+): ([\d,]+) rows", printed).groups()
    assert 250 + number(added) - number(removed) == number(rows)
    n_in, n_out = re.search(r"ingredient tragedies: ([\d,]+) -> ([\d,]+), asked 0\.75", printed).groups()
    assert 0 < number(n_out) < number(n_in)


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_recipe_comes_back_from_its_file(folder: Path):
    """The file that the example writes is read as the same recipe, and there is a report to look at."""
    assert "read again it is the same recipe" in (folder / "printed.txt").read_text()
    assert (folder / "recipe.yaml").exists()
    assert "<table" in (folder / "report.html").read_text()
