"""The examples of experience replay: each runs, and on a soak DQN solves CartPole from what it recorded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name: str, *arguments: str, timeout_s: int = 120) -> str:
    """What an example prints."""
    command = [sys.executable, "-W", "ignore", str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_dqn_learns_from_the_stream_that_it_records():
    """All of it in one process, for a thousand steps."""
    assert "1,000 steps recorded" in run("dqn.py", "--smoke")


@pytest.mark.soak
def test_dqn_solves_cartpole():
    """The average return of 100 episodes reaches 195, because terminal transitions lead where they led."""
    printed = run("dqn.py", timeout_s=900)

    assert float(printed.split("best average of 100 returns")[1]) >= 195


def test_recording_is_exported_read_back_and_cloned():
    """Through Minari, from disk, in windows of two steps."""
    printed = run("offline.py", "--smoke")

    assert "exported and read back 6 episodes" in printed
    assert "the cloned policy balances the pole" in printed


def test_actors_record_while_the_learner_trains_and_one_is_killed():
    """The streams stay whole, and sampling stays within what the limiter admits."""
    printed = run("actors.py", "--smoke")

    assert "60 batches from" in printed
    assert "the killed actor had recorded" in printed
