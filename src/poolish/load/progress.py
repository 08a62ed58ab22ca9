"""How far a loader is, as one value, and the batches in flight before which its state stays.

next()   progress --read the next step--> batch, new progress           assigned last, before the batch is returned
         any exception on the way, Ctrl-C included, restores the former progress: the same batch comes next
"""

from __future__ import annotations

import itertools
import secrets
from collections import deque
from typing import Any, NamedTuple

from poolish.errors import ConfigError
from poolish.load.batch import Batch, BatchTuple, Flight, Origin
from poolish.load.planner import LoaderPosition


class Progress(NamedTuple):
    """Everything that one batch changes."""

    place: LoaderPosition = LoaderPosition()
    #: In a worker process: the steps of other workers to pass over before the next batch; None where an epoch begins.
    n_skip: int | None = None
    has_yielded: bool = False
    #: Rows that were due and not read.
    n_skipped: int = 0
    #: The dataset's own state behind the last batch, as JSON; None where it has none, or nothing was read yet.
    dataset: str | None = None
    #: The rows of the last batch.
    origin: Origin | None = None
    #: What the guard remembers behind the last batch, and the batches and rows that it has left out.
    guard: Any = None
    n_left_out: int = 0
    n_dropped: int = 0


class InFlight:
    """Batches in the order in which they were handed out.

    A batch is tracked just before it is handed out. An interrupt in between leaves it here, and its step tells: it is
    not before ``step``, the next one that the loader hands out, which every method is given.
    """

    def __init__(self) -> None:
        self._flights: deque[_Flight] = deque()
        self._name, self._numbers = secrets.token_hex(8), itertools.count()

    def track(self, batch: Any, step: int, before: Progress) -> None:
        """A batch is about to be handed out; ``before`` is how far the loader is without it.

        It gets a name that no other batch has, of this loader or of another: two may have the same rows at one step.
        """
        name = (self._name, next(self._numbers))
        if isinstance(batch, (Batch, BatchTuple)):
            batch.flight = name
        while self._flights and self._flights[-1].step >= step:  # it was not handed out
            self._flights.pop()
        self._flights.append(_Flight(batch, name, step, before))

    def oldest(self, step: int) -> Progress | None:
        """How far the loader was before the oldest batch in flight; None if there is none."""
        return self._flights[0].before if self._flights and self._flights[0].step < step else None

    def acknowledge(self, batch: Any, step: int) -> None:
        """A batch is trained; the oldest that is not yet, where ``batch`` is None."""
        self._found(batch, step).is_trained = True
        while self._flights and self._flights[0].is_trained:
            self._flights.popleft()

    def _found(self, batch: Any, step: int) -> _Flight:
        for flight in self._flights:
            if flight.step < step and not flight.is_trained and (batch is None or flight.is_of(batch)):
                return flight
        if batch is None:
            raise ConfigError("mark_trained: no batch is in flight; every batch handed out is marked already")
        if isinstance(batch, (Batch, BatchTuple)) and batch.step is None:
            raise ConfigError(
                "mark_trained: this batch was rebuilt from its columns and does not know its rows any more; pass the "
                "batch that the loader yielded, or call mark_trained() to acknowledge the oldest batch in flight"
            )
        raise ConfigError("mark_trained: this batch was not yielded by this loader, or is marked already")

    def n_waiting(self, step: int) -> int:
        """How many batches were handed out and are not trained."""
        return sum(1 for flight in list(self._flights) if flight.step < step and not flight.is_trained)

    def clear(self) -> None:
        """None of them counts any more."""
        self._flights.clear()


class _Flight:
    __slots__ = ("batch", "before", "is_trained", "name", "step")

    def __init__(self, batch: Any, name: Flight, step: int, before: Progress) -> None:
        self.batch, self.name, self.step, self.before = batch, name, step, before
        self.is_trained = False

    def is_of(self, batch: Any) -> bool:
        """Whether this is the batch, or a copy of it that still knows which one it is."""
        return self.batch is batch or getattr(batch, "flight", None) == self.name
