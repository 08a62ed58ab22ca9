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
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from poolish.errors import ResumeError
from poolish.files import checksum_hex
from poolish.load.batching import SampledBatches
from poolish.load.frozen import (
    FrozenRows,
    Int64,
    Mask,
    SnapshotRows,
    Span,
    ids_of,
    members_of,
    ordinal_of,
    snapshot_rows,
)
from poolish.load.ledger import LedgerProtocol, OnEmpty, Run
from poolish.load.order import NOTHING, Block, BlocksAhead, GenerationCursors, ObservedBounds, Order
from poolish.rows import DatasetBuffer

#: Ready-made batches of which ranks compare a digest.
_SKETCHED = 16

#: How long a reader in another process is given to see rows that the one who decided has seen.
_CATCH_UP_S = 30.0


class OpenBlock(NamedTuple):
    """A block and the rows it is read from; ``gone`` are those of its ids that are no rows any more.

    ``ahead`` are the blocks that were decided with it, which are read as if they were part of it.
    """

    block: Block
    rows: FrozenRows
    gone: Mask | None
    ahead: BlocksAhead | None = None

    @property
    def n_ids(self) -> int:
        """How many ids there are, in the block and in those ahead."""
        return len(self.block.ids) + (0 if self.ahead is None else self.ahead.n_ids)

    def ids(self, first: int, stop: int, step: int) -> Int64:
        """Every ``step``-th of them, from ``first`` up to ``stop``."""
        n_own = len(self.block.ids)
        if self.ahead is None or stop <= n_own:
            return self.block.ids[first:stop:step]
        if first >= n_own:
            return self.ahead.ids(first - n_own, stop - n_own, step)
        own = self.block.ids[first::step]
        return np.concatenate([own, self.ahead.ids(first + len(own) * step - n_own, stop - n_own, step)])


class LoaderPosition(NamedTuple):
    """Between two steps of an epoch. ``open_block`` is the block it lies in; none before the first.

    ``first_step`` is the step that the epoch began with; ``total`` is the position of its end, None while it is
    unknown: before the first step, and where growth is followed.
    """

    epoch: int = 0
    step: int = 0
    position: int = 0
    open_block: OpenBlock | None = None
    offset: int = 0
    first_step: int = 0
    total: int | None = None

    def begin(self, epoch: int) -> LoaderPosition:
        """Where an epoch begins that comes after this place."""
        return LoaderPosition(epoch, self.step, first_step=self.step)

    @property
    def inside(self) -> tuple[Block, int] | None:
        """The block it lies in, and how many of its ids come before; None before the first."""
        if self.open_block is None:
            return None
        block, ahead = self.open_block.block, self.open_block.ahead
        is_ahead = ahead is not None and self.offset > len(block.ids)
        return ahead.at(self.offset - len(block.ids)) if ahead is not None and is_ahead else (block, self.offset)

    @property
    def next_block(self) -> tuple[int, GenerationCursors]:
        """The number of the block that comes next, and what is left for it."""
        if self.open_block is None:
            return 0, NOTHING
        block, ahead = self.open_block.block, self.open_block.ahead
        if ahead is not None and self.offset > len(block.ids):
            return ahead.next_block(self.offset - len(block.ids))
        return block.number + 1, block.after

    @property
    def begin_of_rest(self) -> tuple[int, GenerationCursors, int, ObservedBounds | None]:
        """Where what is left begins: a block, what was left before it, how much of it is over, and what it saw.

        A block that is over counts no more; then nothing has been seen of the next one.
        """
        found = self.inside
        if found is None or found[1] == len(found[0].ids):
            return *self.next_block, 0, None
        block, offset = found
        return block.number, block.before, offset, block.seen


class ReadRequest(NamedTuple):
    """Rows of one step that are read from one frozen dataset, and those among them that are gone."""

    rows: FrozenRows
    ids: Int64
    gone: Int64


#: Finds a row of a step, on whatever rank, and what it is read from.
Example = Callable[[], tuple[FrozenRows, Int64]]


class Plan(NamedTuple):
    """What a rank reads at a step; ``example`` shows what its rows are like, where this rank has none."""

    place: LoaderPosition
    pieces: list[ReadRequest]
    after: LoaderPosition
    example: Example


class StepPlanner(Protocol):
    """Steps one after the other."""

    def next(self, place: LoaderPosition, *, is_ahead: bool = False) -> Plan | None:
        """The step behind a place; None at the end of the epoch, or if it is read ahead and not certain yet."""

    def n_left(self, place: LoaderPosition) -> int:
        """How many steps are left in the epoch."""

    @property
    def n_lost(self) -> int:
        """How many rows of this rank's share left the dataset before their step was planned."""


class OrderPlanner:
    """Steps of an order of rows."""

    def __init__(
        self,
        dataset: Any,
        ledger: LedgerProtocol,
        order_of: Callable[[int], Order],
        *,
        batch_size: int,
        rank: int,
        world_size: int,
        drop_last: bool,
    ) -> None:
        self._dataset, self._ledger, self._order_of = dataset, ledger, order_of
        self._batch_size, self.rank, self._world_size = batch_size, rank, world_size
        self._drop_last = drop_last
        self._order = order_of(0)
        self._lost: dict[tuple[int, int], int] = {}
        self.session = 0

    def order(self, epoch: int) -> Order:
        """The order of an epoch."""
        if self._order.epoch != epoch:
            self._order = self._order_of(epoch)
        return self._order

    def next(self, place: LoaderPosition, *, is_ahead: bool = False) -> Plan | None:
        """The step behind a place; None at the end of the epoch.

        ``is_ahead``: no caller waits for it yet. Then neither the end nor a short step is decided, and None means not
        now: rows that are appended before a caller asks still belong to it.
        """
        n_wanted = self._world_size * self._batch_size
        open_block, offset, n_found = place.open_block, place.offset, 0
        pieces: list[ReadRequest] = []
        example: Example | None = None
        first: OpenBlock | None = None
        while n_found < n_wanted:
            n_open = 0 if open_block is None else open_block.n_ids - offset
            if open_block is None or not n_open:
                on_empty: OnEmpty = "wait" if is_ahead else "short" if n_found else "end"
                open_block, offset = self._next_block(place._replace(open_block=open_block, offset=offset), on_empty), 0
                if open_block is None:
                    return None
                first = open_block if place.open_block is None and first is None else first
                if not open_block.block.is_empty:
                    continue  # it may have no living row
                if open_block.block.seen.is_end and not n_found:
                    self._note_end(place, 0)
                    return None
                if n_found:
                    break
                continue
            n = min(n_wanted - n_found, n_open)
            _add(pieces, self._request(open_block, offset, n, n_found))
            example = example or partial(_row_of, open_block, offset)
            n_found += n
            offset += n
        if self._drop_last and n_found < n_wanted:
            self._note_end(place, n_found)
            return None
        assert example is not None  # there is a row, or this place was the end
        total = place.total if first is None else self._total(first)
        position = place.position + n_found
        after = LoaderPosition(place.epoch, place.step + 1, position, open_block, offset, place.first_step, total)
        return Plan(place, pieces, after, example)

    def _total(self, first: OpenBlock) -> int | None:
        """How many rows an epoch has that begins with this block; None where it may grow."""
        if self._order.follow:
            return None
        n_rows = first.block.seen.n_rows
        return len(first.rows) if n_rows is None else n_rows  # 0.1.0 did not write it down

    def _note_end(self, place: LoaderPosition, n_dropped: int) -> None:
        """Note what the epoch was to have and did not have; what ``drop_last`` leaves out is not lost."""
        if place.total is not None:
            self._lost[place.epoch, -1] = max(0, place.total - place.position - n_dropped)

    @property
    def n_lost(self) -> int:
        """How many rows of this rank's share left the dataset before their step was planned."""
        shares = (divmod(n, self._world_size) for n in list(self._lost.values()))
        return sum(each + (self.rank < rest) for each, rest in shares)

    def _request(self, open_block: OpenBlock, offset: int, n: int, n_before: int) -> ReadRequest:
        """This rank's share: of all rows of the step, numbered on, every ``world_size``-th."""
        first = offset + (self.rank - n_before) % self._world_size
        ids = open_block.ids(first, offset + n, self._world_size)
        if open_block.gone is None:
            return ReadRequest(open_block.rows, ids, NOTHING.starts)
        gone = open_block.gone[first : offset + n : self._world_size]
        return ReadRequest(open_block.rows, ids[~gone], ids[gone])

    def _next_block(self, place: LoaderPosition, on_empty: OnEmpty) -> OpenBlock | None:
        order, (number, before) = self.order(place.epoch), place.next_block
        rows = (
            self._current_rows(place.open_block) if order.follow or place.open_block is None else place.open_block.rows
        )
        block = self._ledger.decide_block(order, number, before, rows, on_empty, self.session)
        if block is not None and block.n_gone and order.follow:  # otherwise the end of the epoch shows it
            self._lost[order.epoch, number] = block.n_gone
        if block is None:
            return None
        held = self._hold(block, rows)
        if block.n_ahead and held.gone is None and order.n_ahead(block, held.rows):
            return held._replace(ahead=BlocksAhead(order, block))
        return held

    def _current_rows(self, open_block: OpenBlock | None) -> FrozenRows:
        """The rows that there are now; as the same object while nothing changes, so that they are read in one go."""
        rows = snapshot_rows(self._dataset)
        last = None if open_block is None else open_block.rows
        if isinstance(rows, SnapshotRows) and isinstance(last, SnapshotRows) and rows.snapshot is last.snapshot:
            return last
        return rows

    def revived(self, order: Order, number: int, before: GenerationCursors, seen: ObservedBounds) -> OpenBlock:
        """A block that was decided by an earlier run, on the rows that are there now."""
        rows = snapshot_rows(self._dataset)
        return self._hold(order.decide(number, before, rows, seen), rows)

    def used_up(self, number: int, after: GenerationCursors) -> OpenBlock:
        """A block of which nothing is left but what comes behind it."""
        block = Block(number, NOTHING, ObservedBounds(()), NOTHING.starts, after, is_empty=False, is_fresh=True)
        return OpenBlock(block, snapshot_rows(self._dataset), None)

    def _hold(self, block: Block, rows: FrozenRows) -> OpenBlock:
        """The block with the rows it is read from."""
        if block.is_fresh or not len(block.ids):
            return OpenBlock(block, rows, None)
        rows = self._caught_up(block, rows)
        alive = rows.alive(block.ids)
        return OpenBlock(block, rows, None if alive is None or alive.all() else ~alive)

    def _caught_up(self, block: Block, rows: FrozenRows) -> FrozenRows:
        """Rows that reach as far as those the block was decided on: another process may have looked a moment later."""
        deadline, ends = time.monotonic() + _CATCH_UP_S, [*block.after.ends, *(end for _, end in block.seen.spans)]
        while _is_behind(rows, ends):
            if time.monotonic() > deadline:
                journal = getattr(self._ledger, "path", None)
                place = "" if journal is None else f"journal {journal}: "
                raise ResumeError(
                    f"{place}block {block.number} was decided on rows up to id {max(ends)}, here they "
                    f"reach {max((end for _, end in rows.spans()), default=0)}; all ranks must read the same growing "
                    "dataset, and a run that goes on must find it as it was, or later"
                )
            time.sleep(0.001)
            rows = snapshot_rows(self._dataset)
        return rows

    def n_left(self, place: LoaderPosition) -> int:
        """Steps left in the epoch, if nothing is appended."""
        n_rows = self.rows_left(place)
        size = self._world_size * self._batch_size
        return n_rows // size if self._drop_last else -(-n_rows // size)

    def rows_left(self, place: LoaderPosition) -> int:
        """Rows left in the epoch, counted."""
        if place.open_block is None:
            return len(snapshot_rows(self._dataset))
        parts, in_block, rows = place.next_block[1], 0, place.open_block.rows
        if (found := place.inside) is not None:
            in_block = len(found[0].ids) - found[1]
        spans = rows.spans()
        is_complete = len(rows) == sum(end - first for first, end in spans)
        if is_complete and all(_is_inside(part, spans) for part in zip(parts.starts, parts.sizes, strict=True)):
            return in_block + parts.n_left
        return in_block + sum(_n_alive(rows, ids) for ids in self.order(place.epoch).undealt(parts))

    def run_from(self, place: LoaderPosition, who: str) -> Run:
        """Return what a ledger notes when a rank's steps begin here."""
        number, parts, offset, seen = place.begin_of_rest
        return Run(
            who,
            place.epoch,
            place.step,
            place.position,
            number,
            offset,
            parts.to_text(),
            parts.ends,
            None if seen is None else seen.to_json(),
            self._world_size,
            self._batch_size,
            self._drop_last,
        )


class BatchPlanner:
    """Steps of ready-made batches: rank r takes batch ``position + r``, and an empty one where there is none left."""

    def __init__(self, dataset: Any, batches: Any, *, rank: int, world_size: int) -> None:
        self._dataset, self._batches = dataset, copy.copy(batches)  # its epoch is this loader's own
        self.rank, self._world_size = rank, world_size
        self._epoch: int | None = None

    def next(self, place: LoaderPosition, *, is_ahead: bool = False) -> Plan | None:
        """The step behind a place; None at the end of the epoch."""
        self._begin(place.epoch)
        n_batches = len(self._batches)
        if place.position >= n_batches:
            return None
        ids = self._ids(place.position + self.rank)
        position = min(place.position + self._world_size, n_batches)
        after = place._replace(step=place.step + 1, position=position, total=n_batches)
        rows = self._rows
        return Plan(
            place,
            [ReadRequest(rows, ids, NOTHING.starts)],
            after,
            lambda: (rows, ids[:1] if len(ids) else self._ids(place.position)[:1]),
        )

    def _ids(self, batch: int) -> Int64:
        numbers = np.asarray(self._batches[batch] if batch < len(self._batches) else [], np.int64)
        n_rows = len(self._view)
        wrong = numbers[(numbers < 0) | (numbers >= n_rows)]
        if len(wrong):
            raise IndexError(f"batch {batch} of batches= has row {wrong[0]}, the dataset has {n_rows:,} rows")
        return ids_of(self._view, numbers)

    @property
    def n_lost(self) -> int:
        """None: batches are made of the rows that there are when the epoch begins."""
        return 0

    @property
    def n_batches(self) -> int:
        """Batches of an epoch, over all ranks."""
        return len(self._batches)

    def n_batches_of(self, epoch: int) -> int:
        """Batches of an epoch that begins now, if it has not."""
        self._begin(epoch)
        return len(self._batches)

    def n_left(self, place: LoaderPosition) -> int:
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
        self._rows, self._epoch = snapshot_rows(self._view), epoch

    def forget(self) -> None:
        """Look at the dataset again, and draw again, when the next batch is asked for."""
        self._epoch = None

    def checksum(self, epoch: int) -> str | None:
        """What identifies the draw of an epoch; None for ready-made batches, and where it has not begun."""
        return self._batches.checksums.get(epoch) if isinstance(self._batches, SampledBatches) else None

    def sketch(self) -> str:
        """A digest of some batches of the epoch, evenly spaced, with which ranks compare theirs."""
        n = len(self._batches)
        chosen = sorted({i * (n - 1) // (_SKETCHED - 1) for i in range(_SKETCHED)}) if n else []
        return checksum_hex(*(np.asarray(self._batches[i], np.int64).tobytes() + b"|" for i in chosen))

    def drawn_as(self, epoch: int, expected: str | None) -> BatchPlanner:
        """A walk that has drawn an epoch anew, as a state says it was drawn; this one keeps what it has."""
        walk = copy.copy(self)
        walk._batches = copy.copy(self._batches)
        walk.forget()
        if expected is not None and isinstance(walk._batches, SampledBatches):
            walk._begin(epoch)
            walk._batches.check_same(epoch, expected)
        return walk

    def become(self, other: BatchPlanner) -> None:
        """Go on as the other one."""
        vars(self).update(vars(other))


def _row_of(open_block: OpenBlock, offset: int) -> tuple[FrozenRows, Int64]:
    return open_block.rows, open_block.ids(offset, offset + 1, 1)


def _add(pieces: list[ReadRequest], piece: ReadRequest) -> None:
    """One more piece, or more of the last one where it is read from the same rows."""
    if pieces and pieces[-1].rows is piece.rows:
        last = pieces.pop()
        ids, gone = np.concatenate([last.ids, piece.ids]), np.concatenate([last.gone, piece.gone])
        piece = ReadRequest(piece.rows, ids, gone)
    pieces.append(piece)


def _is_behind(rows: FrozenRows, ends: list[int]) -> bool:
    """Whether these rows are of an earlier moment than one at which ids reached ``ends``."""
    mine, members = {ordinal_of(end): end for _, end in rows.spans()}, members_of(rows)
    n_given = 0 if members is None else members.n_given  # a member that was there before has left since
    return any(mine.get(ordinal_of(end), end if ordinal_of(end) < n_given else -1) < end for end in ends)


def _is_inside(part: tuple[int, int], spans: list[Span]) -> bool:
    start, size = part
    return any(first <= start and start + size <= end for first, end in spans)


def _n_alive(rows: FrozenRows, ids: Int64) -> int:
    alive = rows.alive(ids)
    return len(ids) if alive is None else int(np.count_nonzero(alive))
