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
from collections.abc import Hashable
from dataclasses import asdict, dataclass
from operator import itemgetter
from typing import Any, Literal, NamedTuple, Protocol

from poolish.files import checksum_hex
from poolish.load.frozen import FrozenRows
from poolish.load.order import Block, GenerationCursors, ObservedBounds, Order, delta_encode

#: Decisions that a ledger in memory keeps before it forgets the oldest: those of 67 million rows.
MAX_DECISIONS = 65_536

#: What a block without rows means: look again later; the step goes out short; the epoch is over.
OnEmpty = Literal["wait", "short", "end"]


@dataclass(frozen=True)
class Run:
    """From ``step`` on: where in which epoch, read by how many ranks, how many rows each; rank ``who`` noted it.

    ``seen`` is what decided the block that it begins inside of.
    """

    who: str
    epoch: int
    step: int
    position: int
    block: int
    offset: int
    parts: str
    ends: tuple[int, ...]
    seen: dict[str, Any] | None
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


class Skipped(NamedTuple):
    """Rows that were due to a rank at a step and could not be read."""

    who: str
    epoch: int
    step: int
    ids: list[int]


class LedgerProtocol(Protocol):
    """A ledger."""

    def decide_block(
        self,
        order: Order,
        number: int,
        before: GenerationCursors,
        frozen: FrozenRows,
        on_empty: OnEmpty,
        session: int = 0,
    ) -> Block | None:
        """Return the block as the first rank decided it; None for an empty one that is not to be decided yet.

        A ledger may decide the blocks that follow from it with it (``Order.n_ahead``), and say how many as ``n_ahead``:
        the rank does not ask about these. Then each of them counts as decided for every rank that does ask.
        """

    def seen(self, epoch: int, number: int) -> ObservedBounds | None:
        """What decided a block; None where it is unknown."""

    def enter(self, run: Run) -> int:
        """A rank's steps begin or continue here; return the session, in which all ranks agree until they leave."""

    def leave(self, who: str, epoch: int, session: int) -> None:
        """A rank has reached the end of an epoch, or moved elsewhere."""

    def skip(self, skipped: Skipped) -> None:
        """Rows could not be read."""

    def notes(self) -> list[Run | Skipped]:
        """Return what ``enter`` and ``skip`` recorded, in order."""


def digest(parts: GenerationCursors) -> str:
    """Tells apart what is left in one history from what is left in another."""
    ends = ",".join(map(str, parts.ends)) + (f";{delta_encode(parts.done)}" if parts.done else "")
    return checksum_hex(ends.encode(), parts.starts.data, parts.sizes.data, parts.cursors.data)


class Ledger:
    """Decisions in memory. With several ranks the first one decides, and the others take what it saw.

    All ranks enter an epoch for the nth time together: that is a session, with decisions of its own. A rank that
    begins an epoch again, or resumes in it from a state, looks anew. When all ranks have left, it is forgotten.
    """

    def __init__(self, world_size: int = 1) -> None:
        self._world_size = world_size
        self._lock = threading.Lock()
        self._decided: dict[tuple[int, int, int, Hashable], ObservedBounds] = {}
        self._history: dict[int, _History] = {}
        self._notes: list[Run | Skipped] = []
        self._entered: dict[tuple[str, int], int] = {}
        self._left: dict[tuple[int, int], set[str]] = {}

    def decide_block(
        self,
        order: Order,
        number: int,
        before: GenerationCursors,
        frozen: FrozenRows,
        on_empty: OnEmpty,
        session: int = 0,
    ) -> Block | None:
        """Decide, unless another rank has."""
        with self._lock:
            # Kept although all ranks have it: one that reads ahead, or was interrupted, asks again.
            seen = self._decided.get((order.epoch, session, number, before.key)) if self._world_size > 1 else None
            block = order.decide(number, before, frozen, seen, is_end=on_empty == "end")
            if block.is_empty and block.is_fresh and on_empty == "wait":
                return None
            n_ahead = order.n_ahead(block, frozen)
            if self._world_size > 1:
                n_ahead = self._decide_ahead(order, block, n_ahead, session)
            if seen is None:
                self._note(order.epoch, block, n_ahead)
            if self._world_size > 1:  # last: what is decided is not noted again
                self._decided[order.epoch, session, number, before.key] = block.seen
                while len(self._decided) > MAX_DECISIONS:
                    del self._decided[next(iter(self._decided))]
            return block._replace(n_ahead=n_ahead)

    def _decide_ahead(self, order: Order, block: Block, n_ahead: int, session: int) -> int:
        """Decide the blocks behind a block with it; return how many there are before one that was decided otherwise."""
        lasting, n_agreed = block.seen.lasting, 0
        for number, left in block.keys_ahead(n_ahead):
            if self._decided.setdefault((order.epoch, session, number, left), lasting) != lasting:
                break
            n_agreed += 1
        return n_agreed

    def _note(self, epoch: int, block: Block, n_ahead: int) -> None:
        history = self._history.setdefault(epoch, _History())
        history.add(block.number, block.seen, n_ahead)
        if len(history) > MAX_DECISIONS or len(self._history) > 1024:
            del self._history[next(iter(self._history))]

    def seen(self, epoch: int, number: int) -> ObservedBounds | None:
        """What the decision on a block saw."""
        history = self._history.get(epoch)
        return None if history is None else history.at(number)

    def enter(self, run: Run) -> int:
        """A rank's steps begin or continue here."""
        with self._lock:
            self._notes.append(run)
            session = self._entered.get((run.who, run.epoch), 0) + 1
            self._entered[run.who, run.epoch] = session
            return session

    def leave(self, who: str, epoch: int, session: int) -> None:
        """A rank has left a session; the last one forgets how it was decided, but not what was read."""
        with self._lock:
            gone = self._left.setdefault((epoch, session), set())
            gone.add(who)
            if len(gone) >= self._world_size:
                del self._left[epoch, session]
                kept = {place: seen for place, seen in self._decided.items() if place[:2] != (epoch, session)}
                self._decided = kept

    def skip(self, skipped: Skipped) -> None:
        """Rows could not be read."""
        with self._lock:
            self._notes.append(skipped)

    def notes(self) -> list[Run | Skipped]:
        """Runs and skipped rows, in order."""
        return list(self._notes)


class _History:
    """What was seen block by block, kept where it is not simply the same again.

    Ctrl-C may come between any two lines: then the block is unknown until it is decided again.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[int, ObservedBounds]] = []
        self._last = -1

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, number: int, seen: ObservedBounds, n_ahead: int = 0) -> None:
        self._last = number - 1
        while self._kept and self._kept[-1][0] >= number:  # the epoch went on from an earlier place
            self._kept.pop()
        if not self._kept or seen != self._kept[-1][1].lasting:
            self._kept.append((number, seen))
        self._last = number + n_ahead

    def at(self, number: int) -> ObservedBounds | None:
        i = bisect_right(self._kept, number, key=itemgetter(0)) - 1
        if i < 0 or number > self._last:
            return None
        first, seen = self._kept[i]
        return seen if first == number else seen.lasting


_shared: weakref.WeakValueDictionary[tuple[Any, ...], Ledger] = weakref.WeakValueDictionary()
_shared_lock = threading.Lock()


def shared_ledger(name: tuple[Any, ...], world_size: int) -> Ledger:
    """The ledger that loaders of this process share who read the same order of the same rows."""
    with _shared_lock:
        ledger = _shared.get((*name, world_size))
        if ledger is None:
            ledger = _shared[(*name, world_size)] = Ledger(world_size)
        return ledger
