"""The batches of one split that a trainer has and has not marked as trained, before which the state stays.

handed out   0   1   2   3       a framework that prefetches has asked for 3 while it trains 1
marked       x
position         ^               the oldest that is not marked
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from poolish.errors import ConfigError


class InFlight:
    """Batches in the order in which they were handed out, each with the position before it; for several threads.

    A batch is tracked just before it is handed out. An interrupt in between leaves it here, but not before ``now``,
    the position of the next batch, which every method is given.

    >>> flights = InFlight()
    >>> flights.track({"x": 1}, 0), flights.track({"x": 2}, 1)
    (None, None)
    >>> flights.mark(None, now=2)
    >>> flights.position(now=2), flights.n_waiting(now=2)
    (1, 1)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: deque[_Flight] = deque()

    def track(self, batch: Any, position: int) -> None:
        """A batch at this position is about to be handed out."""
        with self._lock:
            while self._flights and self._flights[-1].position >= position:  # it was not handed out
                self._flights.pop()
            self._flights.append(_Flight(batch, position))

    def position(self, now: int) -> int:
        """The position before the oldest batch in flight; that of the next batch where there is none."""
        with self._lock:
            return min(self._flights[0].position, now) if self._flights else now

    def mark(self, batch: Any, now: int) -> None:
        """A batch is trained; the oldest that is not yet, where ``batch`` is None."""
        with self._lock:
            self._found(batch, now).is_trained = True
            while self._flights and self._flights[0].is_trained:
                self._flights.popleft()

    def _found(self, batch: Any, now: int) -> _Flight:
        for flight in self._flights:
            if flight.position < now and not flight.is_trained and (batch is None or flight.is_of(batch)):
                return flight
        if batch is None:
            raise ConfigError("mark_trained: no batch is in flight; every batch handed out is marked already")
        raise ConfigError(
            "mark_trained: this batch was not handed out by this consumer, is marked already, or was changed by a "
            "framework on its way; call mark_trained() to acknowledge the oldest batch in flight"
        )

    def n_waiting(self, now: int) -> int:
        """How many batches were handed out and are not marked."""
        with self._lock:
            return sum(1 for flight in self._flights if flight.position < now and not flight.is_trained)

    def clear(self) -> None:
        """None of them counts any more."""
        with self._lock:
            self._flights.clear()


class _Flight:
    __slots__ = ("batch", "is_trained", "position")

    def __init__(self, batch: Any, position: int) -> None:
        self.batch, self.position, self.is_trained = batch, position, False

    def is_of(self, batch: Any) -> bool:
        """Whether this is the batch, or a dict or tuple of the same columns."""
        if self.batch is batch:
            return True
        own, other = _columns(self.batch), _columns(batch)
        return bool(own) and len(own) == len(other) and all(a is b for a, b in zip(own, other, strict=True))


def _columns(batch: Any) -> list[Any]:
    if isinstance(batch, Mapping):
        return list(batch.values())
    return list(batch) if isinstance(batch, (tuple, list)) else []
