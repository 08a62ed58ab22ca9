"""Objects that are still there, for those who must find them all: after a fork, or when the process ends."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

Thing = TypeVar("Thing")


class Alive(Generic[Thing]):
    """Like a ``WeakSet``, but no Python code runs when a member goes, and any thread may add one at any time.

    An exception in such code goes nowhere. A Ctrl-C that came just then was lost: one of 600 that ended a bake.

    >>> alive, loaf = Alive(), type("Loaf", (), {})()
    >>> alive.add(loaf)
    >>> list(alive) == [loaf]
    True
    >>> del loaf
    >>> list(alive)
    []
    """

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[Thing]] = {}
        self._numbers = itertools.count()
        self._n_at_most = 64

    def add(self, thing: Thing) -> None:
        """Know of one more."""
        if len(self._known) >= self._n_at_most:
            self._forget_the_dead()
        self._known[next(self._numbers)] = weakref.ref(thing)

    def __iter__(self) -> Iterator[Thing]:
        # A copy is made in one go; a loop would fail where another thread adds one.
        for known in self._known.copy().values():
            thing = known()
            if thing is not None:
                yield thing

    def clear(self) -> None:
        """Forget them all."""
        self._known.clear()

    def _forget_the_dead(self) -> None:
        for number, known in self._known.copy().items():
            if known() is None:
                self._known.pop(number, None)
        self._n_at_most = 64 + 2 * len(self._known)
