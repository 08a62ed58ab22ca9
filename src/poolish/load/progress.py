"""How far a loader is, as one value, and the batches in flight before which its state stays.

next()   progress --read the next step--> batch, new progress           assigned last, before the batch is returned
         any exception on the way, Ctrl-C included, restores the former progress: the same batch comes next
"""

from __future__ import annotations

import itertools
import secrets
from typing import Any, NamedTuple

import numpy as np

from poolish.errors import ConfigError
from poolish.in_flight import Flight, InFlight
from poolish.load.batch import Batch, BatchTuple, Origin
from poolish.load.batch import Flight as Name
from poolish.load.frozen import Int64
from poolish.load.planner import LoaderPosition
from poolish.load.shaping import rows_named


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


class BatchesInFlight:
    """Batches in the order in which they were handed out, each with what the state before it was."""

    def __init__(self) -> None:
        self._flights: InFlight[_Flight] = InFlight()
        #: Those of the epoch that was left last.
        self._left: list[_Flight] = []
        self._name, self._numbers = secrets.token_hex(8), itertools.count()

    def track(self, batch: Any, step: int, before: Progress, ids: Int64) -> None:
        """A batch of the rows ``ids`` is about to be handed out; ``before`` is how far the loader is without it.

        It gets a name that no other batch has, of this loader or of another: two may have the same rows at one step.
        """
        name = (self._name, next(self._numbers))
        if isinstance(batch, (Batch, BatchTuple)):
            batch.flight = name
        self._flights.track(_Flight(batch, name, step, before, ids))

    def oldest(self, step: int) -> Progress | None:
        """How far the loader was before the oldest batch in flight; None if there is none."""
        flight = self._flights.oldest(step)
        return None if flight is None else flight.before

    def acknowledge(self, batch: Any, step: int, ids: Int64 | None = None) -> None:
        """A batch is trained; the oldest that is not yet, where ``batch`` is None.

        ``ids`` are its row ids, where it carries them as a column, or is that column.
        """
        self._flights.acknowledge(self._found(batch, step, ids))

    def _found(self, batch: Any, step: int, ids: Int64 | None) -> _Flight:
        waiting = self._flights.waiting(step)
        for flight in waiting:
            if batch is None or flight.is_of(batch):
                return flight
        for flight in self._left:
            if not flight.is_trained and batch is not None and flight.is_of(batch):
                return flight
        if ids is not None and not _is_named(batch):
            return _with_rows(waiting, ids)
        if batch is None:
            raise ConfigError("mark_trained: no batch is in flight; every batch handed out is marked already")
        if isinstance(batch, (Batch, BatchTuple)) and batch.step is None:
            raise ConfigError(
                "mark_trained: this batch was rebuilt from its columns and does not know its rows any more; pass the "
                "batch that the loader yielded, or call mark_trained() to acknowledge the oldest batch in flight; with "
                "Loader(ids=True) rebuilt batches know their rows"
            )
        raise ConfigError("mark_trained: this batch was not yielded by this loader, or is marked already")

    def n_waiting(self, step: int) -> int:
        """How many batches were handed out and are not trained."""
        return len(self._flights.waiting(step))

    def abandon(self) -> None:
        """The epoch was left: no state waits for these batches any more, but they may still be marked."""
        self._left = self._flights.clear()

    def clear(self) -> None:
        """None of them counts any more."""
        self._flights.clear()
        self._left = []


def _is_named(batch: Any) -> bool:
    """Whether a batch knows by name which one it is: ids cannot make another one of it."""
    return getattr(batch, "flight", None) is not None


def _with_rows(waiting: list[_Flight], ids: Int64) -> _Flight:
    """The oldest of some flights that has exactly these rows, in this order."""
    for flight in waiting:
        if np.array_equal(flight.ids, ids):
            return flight
    shown = rows_named(ids)
    for flight in waiting:
        n_own = int(np.isin(ids, flight.ids).sum())
        if n_own == len(ids) and len(ids):
            how = "in another order" if np.array_equal(np.sort(ids), np.sort(flight.ids)) else "and not all of them"
            raise ConfigError(
                f"mark_trained: {shown} are rows of the batch of step {flight.step}, {how}; pass the ids as the loader "
                "gave them, or call mark_trained() to acknowledge the oldest batch in flight"
            )
        if n_own:
            raise ConfigError(
                f"mark_trained: {n_own} of {len(ids)} rows are of the batch of step {flight.step}, the others are not; "
                "pass the ids of one batch at a time, as the loader gave them"
            )
    raise ConfigError(
        f"mark_trained: no batch in flight has {shown}; it was not yielded by this loader, or is marked already"
    )


class _Flight(Flight):
    __slots__ = ("before", "ids", "name")

    def __init__(self, batch: Any, name: Name, step: int, before: Progress, ids: Int64) -> None:
        super().__init__(batch, step)
        self.name, self.before, self.ids = name, before, ids

    def is_of(self, batch: Any) -> bool:
        """Whether this is the batch, or a copy of it that still knows which one it is."""
        return super().is_of(batch) or getattr(batch, "flight", None) == self.name
