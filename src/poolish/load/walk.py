"""Walking an order: one step after the other, each the rows that all ranks train on together.

    order      | block 6 ........ | block 7 ...... | block 8 ..
    step 20            |--W x batch--|
    rank r of W         r   r+W  r+2W

A *place* lies between two steps: everything before it has been handed out, nothing behind it. All ranks walk the same
places, and the rows of a step are dealt to them one by one, so the world size is not in the order and not in a place.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from poolish.errors import ResumeError
from poolish.load.frozen import Frozen, Int64, Mask, SnapshotRows, Span, freeze, ids_of
from poolish.load.ledger import Keeps, OnEmpty, Run
from poolish.load.order import NOTHING, Block, Order, Parts, Seen
from poolish.load.sampling import SampledBatches
from poolish.rows import DatasetBuffer

#: How long a reader in another process is given to see rows that the one who decided has seen.
_CATCH_UP_S = 30.0


class Held(NamedTuple):
    """A block and the rows it is read from; ``gone`` are those of its ids that are no rows any more."""

    block: Block
    rows: Frozen
    gone: Mask | None


@dataclass(frozen=True)
class Place:
    """Between two steps of an epoch. ``held`` is the block it lies in; none before the first."""

    epoch: int = 0
    step: int = 0
    position: int = 0
    held: Held | None = None
    offset: int = 0

    def next_epoch(self) -> Place:
        """Where the next epoch begins."""
        return Place(self.epoch + 1, self.step)

    @property
    def open_block(self) -> tuple[int, Parts]:
        """The number of the block that comes next, and what is left for it."""
        return (0, NOTHING) if self.held is None else (self.held.block.number + 1, self.held.block.after)


class Piece(NamedTuple):
    """Rows of one step that are read from one frozen dataset, and those among them that are gone."""

    rows: Frozen
    ids: Int64
    gone: Int64


class Plan(NamedTuple):
    """What a rank reads at a step; ``example`` is a row of the step, whoever reads it."""

    place: Place
    pieces: list[Piece]
    after: Place
    example: tuple[Frozen, Int64]


class Walks(Protocol):
    """Steps one after the other."""

    def next(self, place: Place, *, is_ahead: bool = False) -> Plan | None:
        """The step behind a place; None at the end of the epoch, or if nobody waits for it and it is not sure yet."""

    def n_left(self, place: Place) -> int:
        """How many steps are left in the epoch."""


class Walk:
    """Steps of an order of rows."""

    def __init__(
        self,
        dataset: Any,
        ledger: Keeps,
        order_of: Callable[[int], Order],
        *,
        batch_size: int,
        rank: int,
        world_size: int,
        drop_last: bool,
    ) -> None:
        self._dataset, self._ledger, self._order_of = dataset, ledger, order_of
        self._batch_size, self._rank, self._world_size = batch_size, rank, world_size
        self._drop_last = drop_last
        self._order = order_of(0)
        self.session = 0

    def order(self, epoch: int) -> Order:
        """The order of an epoch."""
        if self._order.epoch != epoch:
            self._order = self._order_of(epoch)
        return self._order

    def next(self, place: Place, *, is_ahead: bool = False) -> Plan | None:
        """The step behind a place; None at the end of the epoch.

        ``is_ahead``: nobody waits for it yet. Then neither the end nor a short step is decided, and None means not now:
        rows that are appended before somebody asks still belong to it.
        """
        n_wanted = self._world_size * self._batch_size
        held, offset, n_found = place.held, place.offset, 0
        pieces: list[Piece] = []
        example: tuple[Frozen, Int64] | None = None
        while n_found < n_wanted:
            if held is None or offset == len(held.block.ids):
                on_empty: OnEmpty = "wait" if is_ahead else "short" if n_found else "end"
                held, offset = self._next_block(replace(place, held=held), on_empty), 0
                if held is None:
                    return None
                if not held.block.is_empty:
                    continue  # it may have no living row
                if held.block.seen.is_end and not n_found:
                    return None
                if n_found:
                    break
                continue
            n = min(n_wanted - n_found, len(held.block.ids) - offset)
            _add(pieces, self._piece(held, offset, n, n_found))
            example = example or (held.rows, held.block.ids[offset : offset + 1])
            n_found += n
            offset += n
        if self._drop_last and n_found < n_wanted:
            return None
        assert example is not None  # there is a row, or this place was the end
        return Plan(place, pieces, Place(place.epoch, place.step + 1, place.position + n_found, held, offset), example)

    def _piece(self, held: Held, offset: int, n: int, n_before: int) -> Piece:
        """This rank's share: of all rows of the step, numbered on, every ``world_size``-th."""
        first = offset + (self._rank - n_before) % self._world_size
        mine = slice(first, offset + n, self._world_size)
        ids = held.block.ids[mine]
        if held.gone is None:
            return Piece(held.rows, ids, NOTHING.starts)
        gone = held.gone[mine]
        return Piece(held.rows, ids[~gone], ids[gone])

    def _next_block(self, place: Place, on_empty: OnEmpty) -> Held | None:
        order, (number, before) = self.order(place.epoch), place.open_block
        rows = self._current_rows(place.held) if order.follow or place.held is None else place.held.rows
        block = self._ledger.settle(order, number, before, rows, on_empty, self.session)
        return None if block is None else self._hold(block, rows)

    def _current_rows(self, held: Held | None) -> Frozen:
        """The rows that there are now; as the same object while nothing changes, so that they are read in one go."""
        rows = freeze(self._dataset)
        last = None if held is None else held.rows
        if isinstance(rows, SnapshotRows) and isinstance(last, SnapshotRows) and rows.snapshot is last.snapshot:
            return last
        return rows

    def revived(self, order: Order, number: int, before: Parts, seen: Seen) -> Held:
        """A block that was decided by an earlier run, on the rows that are there now."""
        rows = freeze(self._dataset)
        return self._hold(order.decide(number, before, rows, seen), rows)

    def used_up(self, number: int, after: Parts) -> Held:
        """A block of which nothing is left but what comes behind it."""
        block = Block(number, NOTHING, Seen(()), NOTHING.starts, after, is_empty=False, is_fresh=True)
        return Held(block, freeze(self._dataset), None)

    def _hold(self, block: Block, rows: Frozen) -> Held:
        """The block with the rows it is read from."""
        if block.is_fresh or not len(block.ids):
            return Held(block, rows, None)
        rows = self._caught_up(block, rows)
        alive = rows.alive(block.ids)
        return Held(block, rows, None if alive is None or alive.all() else ~alive)

    def _caught_up(self, block: Block, rows: Frozen) -> Frozen:
        """Rows that reach as far as those the block was decided on: another process may have looked a moment later."""
        deadline = time.monotonic() + _CATCH_UP_S
        while any(mine[1] < seen for mine, seen in zip(rows.spans(), block.after.ends, strict=True)):
            if time.monotonic() > deadline:
                journal = getattr(self._ledger, "path", None)
                place = "" if journal is None else f"journal {journal}: "
                raise ResumeError(
                    f"{place}block {block.number} was decided on rows up to id {max(block.after.ends)}, here they "
                    f"reach {max(end for _, end in rows.spans())}; all ranks must read the same growing dataset, "
                    "and a run that goes on must find it as it was, or later"
                )
            time.sleep(0.001)
            rows = freeze(self._dataset)
        return rows

    def n_left(self, place: Place) -> int:
        """Steps left in the epoch, if nothing is appended."""
        n_rows = self._rows_left(place)
        size = self._world_size * self._batch_size
        return n_rows // size if self._drop_last else -(-n_rows // size)

    def _rows_left(self, place: Place) -> int:
        if place.held is None:
            return len(freeze(self._dataset))
        block, rows = place.held.block, place.held.rows
        parts, in_block = block.after, len(block.ids) - place.offset
        spans = rows.spans()
        nobody_is_missing = len(rows) == sum(end - first for first, end in spans)
        if nobody_is_missing and all(_is_inside(part, spans) for part in zip(parts.starts, parts.sizes, strict=True)):
            return in_block + parts.n_left
        return in_block + sum(_n_alive(rows, ids) for ids in self.order(place.epoch).undealt(parts))

    def run_from(self, place: Place, who: str) -> Run:
        """What a ledger notes when somebody's steps begin here."""
        number, parts = place.open_block
        offset, seen = 0, None
        if place.held is not None and place.offset < len(place.held.block.ids):
            block = place.held.block
            number, parts, offset, seen = block.number, block.before, place.offset, block.seen.to_json()
        return Run(
            who,
            place.epoch,
            place.step,
            place.position,
            number,
            offset,
            parts.to_text(),
            parts.ends,
            seen,
            self._world_size,
            self._batch_size,
            self._drop_last,
        )


class BatchWalk:
    """Steps of ready-made batches: rank r takes batch ``position + r``, and an empty one where there is none left."""

    def __init__(self, dataset: Any, batches: Any, *, rank: int, world_size: int) -> None:
        self._dataset, self._batches = dataset, copy.copy(batches)  # its epoch is this loader's own
        self._rank, self._world_size = rank, world_size
        self._epoch: int | None = None

    def next(self, place: Place, *, is_ahead: bool = False) -> Plan | None:
        """The step behind a place; None at the end of the epoch."""
        self._begin(place.epoch)
        n_batches = len(self._batches)
        if place.position >= n_batches:
            return None
        ids = self._ids(place.position + self._rank)
        after = Place(place.epoch, place.step + 1, min(place.position + self._world_size, n_batches))
        example = self._rows, self._ids(place.position)[:1]
        return Plan(place, [Piece(self._rows, ids, NOTHING.starts)], after, example)

    def _ids(self, batch: int) -> Int64:
        numbers = np.asarray(self._batches[batch] if batch < len(self._batches) else [], np.int64)
        n_rows = len(self._view)
        wrong = numbers[(numbers < 0) | (numbers >= n_rows)]
        if len(wrong):
            raise IndexError(f"batch {batch} of batches= has row {wrong[0]}, the dataset has {n_rows:,} rows")
        return ids_of(self._view, numbers)

    @property
    def n_batches(self) -> int:
        """Batches of an epoch, over all ranks."""
        return len(self._batches)

    def n_left(self, place: Place) -> int:
        """Steps left in the epoch."""
        self._begin(place.epoch)
        return -(-(len(self._batches) - place.position) // self._world_size)

    def _begin(self, epoch: int) -> None:
        if self._epoch == epoch:
            return
        # Batches are made of row numbers: they mean the rows that there are when the epoch begins.
        self._view = self._dataset.snapshot() if isinstance(self._dataset, DatasetBuffer) else self._dataset
        if isinstance(self._batches, SampledBatches):
            self._batches.draw(self._view, epoch)
        elif hasattr(self._batches, "set_epoch"):
            self._batches.set_epoch(epoch)
        self._rows, self._epoch = freeze(self._view), epoch

    def forget(self) -> None:
        """Look at the dataset again, and draw again, when the next batch is asked for."""
        self._epoch = None

    def checksum(self, epoch: int) -> str | None:
        """What identifies the draw of an epoch; None for ready-made batches, and where it has not begun."""
        return self._batches.checksums.get(epoch) if isinstance(self._batches, SampledBatches) else None

    def drawn_as(self, epoch: int, expected: str | None) -> BatchWalk:
        """A walk that has drawn an epoch anew, as a state says it was drawn; this one keeps what it has."""
        walk = copy.copy(self)
        walk._batches = copy.copy(self._batches)
        walk.forget()
        if expected is not None and isinstance(walk._batches, SampledBatches):
            walk._begin(epoch)
            walk._batches.check_same(epoch, expected)
        return walk

    def become(self, other: BatchWalk) -> None:
        """Go on as the other one."""
        vars(self).update(vars(other))


def _add(pieces: list[Piece], piece: Piece) -> None:
    """One more piece, or more of the last one where it is read from the same rows."""
    if pieces and pieces[-1].rows is piece.rows:
        last = pieces.pop()
        ids, gone = np.concatenate([last.ids, piece.ids]), np.concatenate([last.gone, piece.gone])
        piece = Piece(piece.rows, ids, gone)
    pieces.append(piece)


def _is_inside(part: tuple[int, int], spans: list[Span]) -> bool:
    start, size = part
    return any(first <= start and start + size <= end for first, end in spans)


def _n_alive(rows: Frozen, ids: Int64) -> int:
    alive = rows.alive(ids)
    return len(ids) if alive is None else int(np.count_nonzero(alive))
