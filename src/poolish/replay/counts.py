"""How many rows were inserted, evicted and sampled: what a limiter counts with, and counting by threads in memory.

An operation is *pending* between the moment it is admitted and the moment it has happened:

    admitted --> pending --the block ends well--> counted
                    |-- an exception --> not counted
                    `-- its process is killed --> not counted, as soon as a waiting process looks
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol
from weakref import WeakSet

Kind = Literal["insert", "sample"]
#: Kind -> what a process that does it is called.
ROLES: dict[Kind, str] = {"insert": "recorder", "sample": "sampler"}


class Side(NamedTuple):
    """The counts of one kind: what happened, what is pending, and the most at once that had to be paced."""

    done: int = 0
    pending: int = 0
    largest: int = 0

    def joined(self, other: Side) -> Side:
        """Both together."""
        return Side(self.done + other.done, self.pending + other.pending, max(self.largest, other.largest))


class Totals(NamedTuple):
    """The counts of all owners together."""

    insert: Side = Side()
    sample: Side = Side()
    evictions: int = 0

    @property
    def size(self) -> int:
        """How many rows are there."""
        return self.insert.done - self.evictions

    def with_side(self, kind: Kind, side: Side) -> Totals:
        """The same with the counts of one kind replaced."""
        return self._replace(insert=side) if kind == "insert" else self._replace(sample=side)

    def side(self, kind: Kind) -> Side:
        """The counts of one kind."""
        return self.insert if kind == "insert" else self.sample


@dataclass(frozen=True)
class Owner:
    """A recorder or sampler: whether it is attached now, whether it was closed, and how long ago it last wrote."""

    name: str
    is_attached: bool
    has_ended: bool
    silent_s: float


class Waiter(Protocol):
    """Sleeps until counts may have changed since the last sleep."""

    @abstractmethod
    def wait(self, timeout_s: float) -> None:
        """Return after a change, or when the time is over."""

    @abstractmethod
    def close(self) -> None:
        """Stop waiting for changes."""


class Counts(Protocol):
    """What a limiter counts with."""

    place: str
    """Where the counts are, for messages; empty in memory."""
    kinds: tuple[Kind, ...]
    """What this side does: insert, sample, or both."""

    @abstractmethod
    def locked(self) -> Any:
        """``with counts.locked() as totals``: they change only by this side inside the block."""

    @abstractmethod
    def change(self, kind: Kind, *, done: int = 0, pending: int = 0, largest: int = 0, evictions: int = 0) -> None:
        """Add to this side's counts; locked."""

    @abstractmethod
    def read(self) -> Totals:
        """The totals, without the lock."""

    @abstractmethod
    def own(self) -> Totals:
        """What this side has counted."""

    @abstractmethod
    def waiter(self) -> Waiter:
        """Notices all changes from now on."""

    def sweep(self) -> None:
        """Stop counting what killed processes had pending."""
        return

    def owners(self, kind: Kind) -> list[Owner]:
        """Who inserts, or samples, where that is known."""
        return []

    def close(self) -> None:
        """Stop being an owner; what was counted stays."""
        return


class MemoryCounts(Counts):
    """Counts for the threads of this process."""

    place = ""
    kinds: tuple[Kind, ...] = ("insert", "sample")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._totals = Totals()
        self._waiters: WeakSet[_EventWaiter] = WeakSet()

    @contextmanager
    def locked(self) -> Iterator[Totals]:
        with self._lock:
            yield self._totals

    def change(self, kind: Kind, *, done: int = 0, pending: int = 0, largest: int = 0, evictions: int = 0) -> None:
        with self._lock:
            side = self._totals.side(kind).joined(Side(done, pending, largest))
            evictions += self._totals.evictions
            self._totals = self._totals.with_side(kind, side)._replace(evictions=evictions)
            for waiter in self._waiters:
                waiter.changed.set()

    def read(self) -> Totals:
        return self._totals

    def own(self) -> Totals:
        return self._totals

    def waiter(self) -> _EventWaiter:
        waiter = _EventWaiter()
        with self._lock:
            self._waiters.add(waiter)
        return waiter


class _EventWaiter(Waiter):
    def __init__(self) -> None:
        self.changed = threading.Event()

    def wait(self, timeout_s: float) -> None:
        self.changed.wait(timeout_s)
        self.changed.clear()

    def close(self) -> None:
        return
