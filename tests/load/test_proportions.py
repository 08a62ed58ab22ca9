"""Where each class comes: within one row of its proportion, in every batch and from the start."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish.load.batching import proportional


def farthest(counts: list[int], batch_size: int) -> float:
    """How far a class is from its proportion, in rows, in the worst batch or run of batches from the start."""
    plan, shares = proportional(np.array(counts), batch_size), np.array(counts) / sum(counts)
    batches = [plan[start : start + batch_size] for start in range(0, len(plan), batch_size)]
    batches += [plan[:stop] for stop in range(0, len(plan), batch_size)]
    return max(np.abs(np.bincount(rows, minlength=len(counts)) - len(rows) * shares).max() for rows in batches)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 40))
def test_every_batch_is_in_proportion_and_so_is_every_run_from_the_start(counts, batch_size):
    """Rounded up or down, never further off; and every class has all of its rows."""
    plan = proportional(np.array(counts), batch_size)

    assert np.bincount(plan, minlength=len(counts)).tolist() == counts
    assert farthest(counts, batch_size) < 1


@pytest.mark.parametrize(
    ("counts", "batch_size"),
    [
        ([1] * 7, 3),  # more classes than places in a batch
        ([1, 1, 1, 1, 96], 10),  # many rare classes
        ([49] * 9 + [9], 10),  # shares just under one: their windows overlap in long chains
        ([2, 3, 5, 7, 11, 13, 17], 8),
        ([1000], 7),  # one class
        ([3, 3, 2, 3, 2, 3, 2], 4),  # goes wrong where the overlap of windows is not looked at
        ([4, 6, 5, 7, 3, 4, 7, 7], 6),  # goes wrong where it is not known how long they go on
    ],
)
def test_awkward_proportions_are_kept(counts, batch_size):
    """Where dealing out the largest remainders goes wrong."""
    assert farthest(counts, batch_size) < 1


def test_whole_shares_are_exact():
    """6, 3 and 1 of ten: nothing to round."""
    plan = proportional(np.array([60, 30, 10]), 10).reshape(10, 10)

    assert all(np.bincount(batch).tolist() == [6, 3, 1] for batch in plan)


def test_plans_are_pinned():
    """The same plan in every release: changing it is a decision."""
    assert proportional(np.array([5, 4, 3, 1]), 3).tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 3, 0]
    assert proportional(np.array([2, 1, 1]), 9).tolist() == [0, 0, 1, 2]


def test_nothing_is_a_plan_too():
    """No classes, no positions."""
    assert proportional(np.array([], dtype=np.int64), 3).tolist() == []
