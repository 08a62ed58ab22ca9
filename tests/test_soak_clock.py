"""A bounded soak ends in time, reaches other tests each time, and says what it left out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

#: Tests that write down that they ran, in a folder of their own with the clock as their only plugin.
SUITE = """
import os, pytest

@pytest.mark.parametrize("k", range(8))
def test_that_notes_it_ran(k):
    with open(os.environ["RAN"], "a") as file:
        file.write(f"{k}\\n")
"""
CONFTEST = """
from tests.soak_clock import SoakClock

def pytest_configure(config):
    config.pluginmanager.register(SoakClock({minutes}))
"""


def soak(folder: Path, minutes: float, *options: str, seed: int = 1) -> tuple[list[str], str]:
    """Which tests a soak of a small suite ran, in order, and what it printed."""
    (folder / "test_suite.py").write_text(SUITE)
    (folder / "conftest.py").write_text(CONFTEST.format(minutes=minutes))
    (folder / "ran").write_text("")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("POOLISH_SOAK", "PYTEST"))}
    environment |= {"RAN": str(folder / "ran"), "PYTHONPATH": str(ROOT), "POOLISH_SOAK_SEED": str(seed)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), *options, "."]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return (folder / "ran").read_text().split(), done.stdout


@pytest.mark.parametrize("options", [(), ("-n", "2")])
def test_a_soak_whose_time_is_over_begins_no_test_and_says_how_many_it_left_out(tmp_path, options):
    ran, printed = soak(tmp_path, 1e-9, *options)

    assert ran == []
    assert "8 tests left out" in printed


@pytest.mark.parametrize("options", [(), ("-n", "2")])
def test_a_soak_with_time_runs_every_test_once(tmp_path, options):
    ran, printed = soak(tmp_path, 10, *options)

    assert sorted(ran) == [str(k) for k in range(8)]
    assert "0 tests left out" in printed


def test_each_soak_has_an_order_of_its_own_that_can_be_repeated(tmp_path):
    first, printed = soak(tmp_path, 10, seed=1)
    again, _ = soak(tmp_path, 10, seed=1)
    other, _ = soak(tmp_path, 10, seed=2)

    assert first == again
    assert first != other
    assert re.search(r"POOLISH_SOAK_SEED=1\b", printed)
