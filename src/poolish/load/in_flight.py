"""Batches that were handed out and are not known to be trained: the state stays before the oldest of them."""

from __future__ import annotations

from collections import deque
from typing import Any

from poolish.errors import ConfigError
from poolish.load.walk import Place


class InFlight:
    """Batches in the order in which they were handed out; true while there are any."""

    def __init__(self) -> None:
        self._flights: deque[_Flight] = deque()

    def __len__(self) -> int:
        return len(self._flights)

    def take_off(self, batch: Any, step: int, after: Place) -> None:
        """A batch is about to be handed out; ``after`` is the place behind it."""
        while self._flights and self._flights[-1].step >= step:  # it was not handed out then
            self._flights.pop()
        self._flights.append(_Flight(batch, step, after))

    def land(self, batch: Any) -> Place | None:
        """A batch is trained. The place up to which all are now, if that has moved."""
        for flight in self._flights:
            if flight.batch is batch or flight.step == getattr(batch, "step", None):
                flight.is_trained = True
                break
        else:
            raise ConfigError("mark_trained: this batch was not yielded by this loader, or is marked already")
        reached = None
        while self._flights and self._flights[0].is_trained:
            reached = self._flights.popleft().after
        return reached

    def clear(self) -> None:
        """None of them counts any more."""
        self._flights.clear()


class _Flight:
    __slots__ = ("after", "batch", "is_trained", "step")

    def __init__(self, batch: Any, step: int, after: Place) -> None:
        self.batch, self.step, self.after = batch, step, after
        self.is_trained = False
