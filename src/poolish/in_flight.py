"""Batches that were handed out and are not trained yet, before which a state stays.

handed out   0   1   2   3       a framework that prefetches has asked for 3 while it trains 1
trained      x
state            ^               of the oldest that is not trained
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Generic, TypeVar


class Flight:
    """A batch and the step at which it was handed out; subclasses add what the state before it was."""

    __slots__ = ("batch", "is_trained", "step")

    def __init__(self, batch: Any, step: int) -> None:
        self.batch, self.step, self.is_trained = batch, step, False

    def is_of(self, batch: Any) -> bool:
        """Whether this is the batch."""
        return self.batch is batch


AnyFlight = TypeVar("AnyFlight", bound=Flight)


class InFlight(Generic[AnyFlight]):
    """Flights in the order in which their batches were handed out; for several threads.

    A batch is tracked just before it is handed out. An interrupt in between leaves it here, but not before ``step``,
    the next one to be handed out, which every method is given.

    >>> flights = InFlight()
    >>> flights.track(Flight("a", 0)), flights.track(Flight("b", 1)), flights.track(Flight("c", 2))
    (None, None, None)
    >>> flights.acknowledge(flights.waiting(step=2)[0])
    >>> flights.oldest(step=2).batch, len(flights.waiting(step=2))
    ('b', 1)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: deque[AnyFlight] = deque()

    def track(self, flight: AnyFlight) -> None:
        """A batch is about to be handed out."""
        with self._lock:
            while self._flights and self._flights[-1].step >= flight.step:  # it was not handed out
                self._flights.pop()
            self._flights.append(flight)

    def oldest(self, step: int) -> AnyFlight | None:
        """The oldest flight; None if there is none."""
        with self._lock:
            return self._flights[0] if self._flights and self._flights[0].step < step else None

    def waiting(self, step: int) -> list[AnyFlight]:
        """Those that are not trained, the oldest first."""
        with self._lock:
            return [flight for flight in self._flights if flight.step < step and not flight.is_trained]

    def acknowledge(self, flight: AnyFlight) -> None:
        """A batch is trained."""
        with self._lock:
            flight.is_trained = True
            while self._flights and self._flights[0].is_trained:
                self._flights.popleft()

    def clear(self) -> list[AnyFlight]:
        """None of them counts any more; returns those that were here."""
        with self._lock:
            left = list(self._flights)
            self._flights.clear()
        return left
