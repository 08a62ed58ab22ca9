"""The example that grows and is killed: poolish repeats and loses nothing, whatever the others do."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "growing_epoch.py"

#: Hides torchdata from the program that is run behind it.
WITHOUT_TORCHDATA = """
import importlib.util, runpy, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "torchdata" else found(name, *more)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def tables() -> Iterator[dict[str, dict[str, list[str]]]]:
    """What the example prints with torchdata and without it. Both mostly wait for children, so they run together."""
    commands = {"with": [str(EXAMPLE)], "without": ["-c", WITHOUT_TORCHDATA, str(EXAMPLE)]}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = {name: subprocess.Popen([sys.executable, *command], **pipes) for name, command in commands.items()}
    try:
        yield {name: table_of(process) for name, process in running.items()}
    finally:
        for process in running.values():
            process.kill()


def table_of(process: subprocess.Popen[str]) -> dict[str, list[str]]:
    """The cells of the table that the example prints, by loader; and everything that it prints under ''."""
    printed, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    rows = [re.split(r"\s*[│|]\s*", line.strip().strip("│|").strip()) for line in printed.splitlines()]
    return {"": [printed], **{row[0]: row[1:] for row in rows if len(row) == 6}}


def test_growth_kill_and_new_world_size_repeat_and_lose_nothing(tables):
    """10,100 rows come once each through poolish, while torch's loader repeats some on the same history."""
    table = tables["with"]

    killed, resumed, *counts = table["poolish Loader, follow=True"]
    assert resumed == "2 processes"
    assert 110 <= int(killed.split()[0]) <= 180
    assert counts == ["10,100", "0", "0"]
    repeated = int(table["torch DataLoader, seeded, skipping"][-2].replace(",", ""))
    assert repeated > 1_000


def test_example_runs_without_torchdata(tables):
    """Where torchdata is not installed the example says so, and compares with what torch itself has."""
    table = tables["without"]

    assert "torchdata is not installed" in table[""][0]
    assert table["poolish Loader, follow=True"][-2:] == ["0", "0"]
    assert "torch DataLoader, seeded, skipping" in table
