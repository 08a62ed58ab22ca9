"""Tombstones: which places still hold a row, whatever was killed, driven out or added."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish.rows.storage import LiveSet

pytestmark = pytest.mark.kernels

places = st.lists(st.integers(0, 1_999), max_size=30)
steps = st.lists(
    st.tuples(st.just("kill"), places)
    | st.tuples(st.just("evict"), st.integers(1, 60))
    | st.tuples(st.just("reserve"), st.integers(0, 9_000)),
    max_size=12,
)


def all_ranks(live: LiveSet, n: int) -> list[int]:
    return live.select(np.arange(n)).tolist()


@given(steps)
def test_a_live_set_is_a_set(steps):
    """After any sequence of changes the n-th living place is that of a plain list."""
    live, alive, n_places = LiveSet(2_000), list(range(2_000)), 2_000
    for step, argument in steps:
        if step == "kill":
            gone = sorted(set(argument) & set(alive))
            live = live.without(np.array(gone, np.int64))
            alive = [place for place in alive if place not in gone]
        elif step == "evict":
            before = set(alive)
            live, n_left = live.evicted(0, len(alive) - argument, len(alive) - argument, 7, 0, argument)
            alive = live.places(0, n_places).tolist()
            assert n_left == len(alive) == len(before) - argument
            assert set(alive) < before
        elif argument > n_places:
            live, alive, n_places = live.reserve(argument), [*alive, *range(n_places, argument)], argument
    assert all_ranks(live, len(alive)) == alive
    assert [live.place(rank) for rank in (0, len(alive) // 2, len(alive) - 1)] == [
        alive[0],
        alive[len(alive) // 2],
        alive[-1],
    ]


@given(places, st.integers(0, 2_000), st.integers(0, 2_000))
def test_a_part_of_the_living(dead, start, stop):
    """From any place to any other, also in the middle of a word."""
    start, stop = sorted((start, stop))
    live = LiveSet(2_000).without(np.array(sorted(set(dead)), np.int64))

    assert live.places(start, stop).tolist() == [place for place in range(start, stop) if place not in dead]


def test_a_set_never_changes():
    """Rows that leave give another set: what a snapshot or an unfinished change holds stays as it is."""
    live = LiveSet(100)

    killed = live.without(np.array([0]))
    evicted, n_left = live.evicted(0, 95, 95, 7, 0, 5)

    assert all_ranks(live, 100) == list(range(100))
    assert (killed.place(0), n_left, len(evicted.places(0, 100))) == (1, 95, 95)


def test_growing_a_set_leaves_it_alone():
    """The larger set is another one, and the places behind the old end are live in it."""
    live = LiveSet(100).without(np.array([5]))

    grown = live.reserve(10_000).without(np.array([6]))

    assert all_ranks(live, 8) == [0, 1, 2, 3, 4, 6, 7, 8]
    assert all_ranks(grown, 8) == [0, 1, 2, 3, 4, 7, 8, 9]
    assert grown.place(9_997) == 9_999
    assert live.reserve(100) is live


@pytest.mark.parametrize("n_places", [0, 1, 511, 512, 513])
def test_sets_of_any_size(n_places):
    """None, one, and around a block."""
    live = LiveSet(n_places)

    assert live.places(0, n_places).tolist() == list(range(n_places))
    assert all_ranks(live, n_places) == list(range(n_places))
