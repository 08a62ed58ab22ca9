"""What was decided, and when a run began: enough to tell, much later, which rows any step saw.

Blocks follow from what was seen when they were decided, so that is all a ledger keeps of them, and only where it
differs from the block before. A *run* is a stretch of steps with one world size, from where it began or went on.

``Ledger`` lives in memory and serves one loader, or several ranks in one process that share it. ``journal`` keeps the
same on disk, for ranks in several processes and for audits after the run.
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_right
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from poolish.files import checksum_hex
from poolish.load.frozen import Frozen
from poolish.load.order import Block, Order, Parts, Seen

#: Decisions that a ledger in memory keeps before it forgets the oldest: those of 67 million rows.
MAX_DECISIONS = 65_536


#: What a block without rows means: look again later; the step goes out short; the epoch is over.
OnEmpty = Literal["wait", "short", "end"]


@dataclass(frozen=True)
class Run:
    """From ``step`` on: where in which epoch, read by how many ranks, so many rows each."""

    epoch: int
    step: int
    position: int
    block: int
    offset: int
    parts: str
    ends: tuple[int, ...]
    world_size: int
    batch_size: int
    drop_last: bool

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "ends": list(self.ends)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Run:
        """What ``to_json`` gave."""
        return cls(**{**value, "ends": tuple(value["ends"])})


class Keeps(Protocol):
    """A ledger."""

    def settle(self, order: Order, number: int, before: Parts, frozen: Frozen, on_empty: OnEmpty) -> Block | None:
        """The block, as whoever came first decided it; None for an empty one that is not to be decided yet."""

    def seen(self, epoch: int, number: int) -> Seen | None:
        """What decided a block; None where nobody knows any more."""

    def note_run(self, run: Run) -> None:
        """Steps begin or go on here."""

    def note_skipped(self, step: int, ids: list[int]) -> None:
        """These rows were due at a step and could not be read."""

    def runs(self) -> list[Run]:
        """All runs, in the order they were noted."""

    def skipped(self) -> list[tuple[int, list[int]]]:
        """All that ``note_skipped`` was told."""


def digest(parts: Parts) -> str:
    """Tells apart what is left in one history from what is left in another."""
    ends = ",".join(map(str, parts.ends)).encode()
    return checksum_hex(ends, parts.starts.data, parts.sizes.data, parts.cursors.data)


class Ledger:
    """Decisions in memory. With several ranks the first one decides, and the others take what it saw."""

    def __init__(self, world_size: int = 1) -> None:
        self._world_size = world_size
        self._lock = threading.Lock()
        self._seen: dict[int, tuple[list[int], list[Seen]]] = {}
        self._decided: dict[tuple[int, int, str], Seen] = {}
        self._runs: list[Run] = []
        self._skipped: list[tuple[int, list[int]]] = []

    def settle(self, order: Order, number: int, before: Parts, frozen: Frozen, on_empty: OnEmpty) -> Block | None:
        """Decide, unless another rank has."""
        if self._world_size == 1:
            block = order.decide(number, before, frozen, is_end=on_empty == "end")
            if block.is_empty and on_empty == "wait":
                return None
            self._note(order.epoch, number, block.seen)
            return block
        with self._lock:
            # Kept although all ranks have it: one that reads ahead, or was interrupted, asks again.
            place = order.epoch, number, digest(before)
            seen = self._decided.get(place)
            block = order.decide(number, before, frozen, seen, is_end=on_empty == "end")
            if block.is_empty and block.is_fresh and on_empty == "wait":
                return None
            if seen is None:
                self._decided[place] = block.seen
                self._note(order.epoch, number, block.seen)
            if len(self._decided) > MAX_DECISIONS:
                del self._decided[next(iter(self._decided))]
            return block

    def _note(self, epoch: int, number: int, seen: Seen) -> None:
        numbers, kept = self._seen.setdefault(epoch, ([], []))
        while numbers and numbers[-1] >= number:  # the epoch began again, or went on from an earlier place
            numbers.pop(), kept.pop()
        if not kept or kept[-1] != seen:
            numbers.append(number)
            kept.append(seen)
        if len(numbers) > MAX_DECISIONS or len(self._seen) > 1024:
            del self._seen[next(iter(self._seen))]

    def seen(self, epoch: int, number: int) -> Seen | None:
        """What the last decision up to that block saw."""
        numbers, kept = self._seen.get(epoch, ([], []))
        i = bisect_right(numbers, number) - 1
        if i < 0:
            return None
        return kept[i] if numbers[i] == number else Seen(kept[i].spans)

    def note_run(self, run: Run) -> None:
        """Steps begin or go on here."""
        self._runs.append(run)

    def note_skipped(self, step: int, ids: list[int]) -> None:
        """These rows were due at a step and could not be read."""
        self._skipped.append((step, ids))

    def runs(self) -> list[Run]:
        """All runs."""
        return list(self._runs)

    def skipped(self) -> list[tuple[int, list[int]]]:
        """All rows that could not be read."""
        return list(self._skipped)


_shared: weakref.WeakValueDictionary[tuple[Any, ...], Ledger] = weakref.WeakValueDictionary()
_shared_lock = threading.Lock()


def shared_ledger(name: tuple[Any, ...], world_size: int) -> Ledger:
    """The ledger that loaders of this process share who read the same order of the same rows."""
    with _shared_lock:
        ledger = _shared.get((*name, world_size))
        if ledger is None:
            ledger = _shared[(*name, world_size)] = Ledger(world_size)
        return ledger
