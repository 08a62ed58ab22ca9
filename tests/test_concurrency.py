"""What threads and forks must not break: finding all objects that are still alive."""

from __future__ import annotations

import sys
import threading

from poolish import DatasetBuffer
from poolish.concurrency import WeakRegistry


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
