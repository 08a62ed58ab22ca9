"""Stable-Baselines3 draws from our buffer what it draws from its own, and learns from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_envs": 3},
        {"kind": "parts", "n_envs": 2},
        {"n_steps": 3},
        {"n_steps": 3, "n_envs": 2},
        {"normalised": True, "n_envs": 2},
    ],
    ids=str,
)
def test_same_steps_give_the_same_transitions(in_sb3: Any, options: dict[str, Any]):
    """Observations, actions, rewards, next observations, dones (not by time limits), discounts of n steps."""
    theirs, ours = in_sb3.run("both", **options)

    assert len(ours) >= 40 * options.get("n_envs", 1)
    assert ours == theirs


def test_dqn_learns_from_a_buffer_on_disk_and_continues_with_it(in_sb3: Any, tmp_path: Path):
    """A second run finds the transitions of the first."""
    first = in_sb3.run("learn", path=str(tmp_path / "replay"), n=200)
    second = in_sb3.run("learn", path=str(tmp_path / "replay"), n=148)

    assert first == [200, True]
    assert second == [348, True]


def test_saved_buffer_is_loaded_with_its_transitions(in_sb3: Any, tmp_path: Path):
    """SB3's own way to save a buffer, where it is on disk; in memory it says what to do."""
    before, after = in_sb3.run("saved", folder=str(tmp_path))

    assert before == after
    assert len(before) > 50
    assert "give it a path" in in_sb3.error("saved", folder=str(tmp_path), in_memory=True)


def test_capacity_bounds_the_buffer(in_sb3: Any):
    """The oldest transitions leave."""
    size, is_full, pos, n_different = in_sb3.run("bounded")

    assert 10 <= size <= 20
    assert (is_full, pos) == (True, 0)
    assert n_different == size * 2


def test_what_has_no_meaning_here_is_refused(in_sb3: Any):
    """The messages say what to do instead."""
    assert "leave it out" in in_sb3.error("refused", optimize_memory_usage=True)
    assert "cannot be emptied" in in_sb3.error("emptied")
