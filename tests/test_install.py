"""``source install.sh`` sets up if needed and activates; ``bash install.sh`` rebuilds. The work itself is make's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with install.sh, a ``make`` that notes its goals, and an environment to activate."""
    home = tmp_path / "a checkout"
    (home / ".venv/bin").mkdir(parents=True)
    (home / ".venv/bin/activate").write_text("export ACTIVATED=yes\n")
    shutil.copy(ROOT / "install.sh", home)
    (tmp_path / "bin").mkdir()
    make = tmp_path / "bin/make"
    make.write_text(f'#!/bin/sh\necho "$@" >> "{home}/goals"\nexit "${{MAKE_STATUS:-0}}"\n')
    make.chmod(0o755)
    return home


def bash(checkout: Path, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{checkout.parent / 'bin'}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", script, "bash", str(checkout / "install.sh")],
        env={**os.environ, "PATH": path, **environment},
        cwd=checkout.parent,
        capture_output=True,
        text=True,
        check=False,
    )


def goals(checkout: Path) -> list[str]:
    return [line.split()[-1] for line in (checkout / "goals").read_text().splitlines()]


def test_sourcing_sets_up_and_activates_and_leaves_the_shell_as_it_was(checkout: Path):
    done = bash(checkout, '. "$1"; echo "status=$? active=$ACTIVATED folder=$PWD"; type _poolish_install')

    assert f"status=0 active=yes folder={checkout.parent}" in done.stdout
    assert "not found" in done.stderr
    assert goals(checkout) == ["develop"]


def test_running_rebuilds_from_scratch(checkout: Path):
    done = bash(checkout, 'bash "$1"; echo "status=$?"')

    assert "status=0" in done.stdout
    assert "rebuilt" in done.stdout
    assert goals(checkout) == ["rebuild"]


@pytest.mark.parametrize("how", [".", "bash"])
def test_a_failed_set_up_is_a_failed_command_and_activates_nothing(checkout: Path, how: str):
    done = bash(checkout, f'{how} "$1"; echo "status=$? active=$ACTIVATED."', MAKE_STATUS="2")

    assert "status=1 active=." in done.stdout
    assert "not set up" in done.stderr


def test_the_goals_exist():
    makefile = (ROOT / "Makefile").read_text()

    assert "\ndevelop:" in makefile
    assert "\nrebuild:" in makefile


@pytest.mark.parametrize("name", ["settings.json", "extensions.json"])
def test_the_editor_s_settings_are_valid(name: str):
    assert json.loads((ROOT / ".vscode" / name).read_text())
