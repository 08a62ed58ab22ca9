"""What threads and forks must not break: finding all objects that are still alive, and locks."""

from __future__ import annotations

import sys
import threading

import pytest

from poolish import DatasetBuffer, Suite
from poolish.concurrency import WeakRegistry
from poolish.guards import CircuitBreaker, Retry
from poolish.guards.faults.budget import FaultCounts
from tests.rows.children import in_child


class Loaf:
    """Something that can be referred to weakly."""


def test_dead_objects_are_not_found():
    """Whatever came before and after."""
    alive, loaves = WeakRegistry(), [Loaf() for _ in range(1000)]
    for loaf in loaves:
        alive.add(loaf)
    del loaf
    kept = loaves[::7]
    loaves.clear()

    assert list(alive) == kept
    alive.clear()
    assert list(alive) == []


def test_the_dead_take_no_room():
    """However many there were."""
    alive, kept = WeakRegistry(), Loaf()
    alive.add(kept)
    for _ in range(10_000):
        alive.add(Loaf())

    assert list(alive) == [kept]
    assert len(alive._references) < 200


def test_no_code_runs_when_one_goes():
    """A Ctrl-C that comes while Python code runs there would be lost."""
    alive, loaf, calls = WeakRegistry(), Loaf(), []
    alive.add(loaf)
    buffer = DatasetBuffer()
    buffer.append([{"x": 1}, {"x": 2}])

    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_qualname) if event == "call" else None)
    del loaf
    del buffer
    sys.setprofile(None)

    assert calls == []


def test_one_may_be_added_while_somebody_looks():
    """From another thread, as often as it likes."""
    alive, is_over = WeakRegistry(), threading.Event()

    def add() -> None:
        kept = []
        while not is_over.is_set():
            kept.append(Loaf())
            alive.add(kept[-1])
            if len(kept) > 500:
                kept.clear()

    adding = threading.Thread(target=add)
    adding.start()
    try:
        for _ in range(300):
            assert all(isinstance(loaf, Loaf) for loaf in alive)
    finally:
        is_over.set()
        adding.join()


@pytest.mark.parametrize(
    "make",
    [
        Retry,
        CircuitBreaker,
        lambda: Suite().expect("x", finite=True).guard(),
        lambda: DatasetBuffer().rejected,
        lambda: FaultCounts(0.5),
    ],
    ids=["retry", "breaker", "stream guard", "rejected rows", "fault counts"],
)
def test_a_lock_that_another_thread_holds_is_free_in_a_forked_child(make):
    """A worker of a loader is forked while another thread counts a fault, and counts its own."""
    guarded, is_held, is_over = make(), threading.Event(), threading.Event()

    def hold() -> None:
        with guarded._lock:
            is_held.set()
            is_over.wait(30)

    holding = threading.Thread(target=hold)
    holding.start()
    try:
        assert is_held.wait(30)

        assert in_child(lambda: guarded._lock.acquire(timeout=1)) is True
    finally:
        is_over.set()
        holding.join()
