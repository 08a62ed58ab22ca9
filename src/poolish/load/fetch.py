"""From a step's plan to its batch: rows are read and collated on demand, or ahead of time by threads.

    planner --plans--> BatchReader (here, or in worker threads) --columns--> stage (the device) --> the loader

Rows of a buffer are gathered column by column: the kernel copies numbers and tensors of one shape from the buffer's
memory (256 rows of 64 floats: 9 us, through an Arrow table 45), into pinned memory if they go to a CUDA device. Windows
of a stream are gathered likewise. Everything else is read as samples and collated.

A batch of columns for a CUDA device is read, and its copy begun, by a thread even without ``num_workers``: no code of
the user's runs in it, and the trainer's thread only waits for the copy.

The loader knows its position. A fetcher that has read ahead of another step drops that and reads again from there.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds
from numpy.typing import NDArray

from poolish import kernels, torch_bridge
from poolish.columns import one_chunk
from poolish.errors import ConfigError
from poolish.load.batch import collate, empty_like, nbytes, tensors
from poolish.load.frozen import FrozenRows, Int64, SnapshotRows, WindowRows, is_arrow, table_of
from poolish.load.member_rows import MemberWindowRows
from poolish.load.padding import Cast, PaddedCollate, PaddedColumns, Room, array_room
from poolish.load.planner import Example, LoaderPosition, Plan, ReadRequest, StepPlanner
from poolish.load.shaping import BatchShaper, rows_named
from poolish.prefetch import Pace, Prefetcher, Spent
from poolish.rows import DatasetBuffer
from poolish.rows.access import gather_fn, number_rows, tensor_rows
from poolish.rows.bridges import to_array, to_tensor
from poolish.schema import dtype_and_shape, is_tensor, numpy_dtype, readable
from poolish.workers import Workers

OUTPUTS = ("torch", "numpy", "arrow")


class Read(NamedTuple):
    """Samples or columns that were read, the rows they are, and the rows that were due but are not there."""

    content: Any
    ids: Int64
    gone: Int64


class BatchRead(NamedTuple):
    """A batch of all that was read for a step: ``seen`` as a guard sees it, ``content`` as the trainer gets it.

    ``ids`` are the rows that were read, ``known`` those of ``content``; None where a transform made other rows.
    """

    content: Any
    ids: Int64
    gone: Int64
    seen: Any
    known: Int64 | None


class BatchReader:
    """Reads the pieces of plans and makes batches of them."""

    def __init__(
        self,
        output: str,
        collate_fn: Callable[[list[Any]], Any] | None,
        faults: Any,
        *,
        pins: bool = False,
        shaper: BatchShaper | None = None,
    ) -> None:
        """``pins``: gather tensors into pinned memory, from which they are copied to a device."""
        if output not in OUTPUTS:
            raise ConfigError(f"output={output!r}: one of {', '.join(map(repr, OUTPUTS))}")
        self._output, self._collate_fn, self._faults, self._pins = output, collate_fn, faults, pins
        self._shaper, self._padding = shaper, collate_fn if isinstance(collate_fn, PaddedCollate) else None
        if self._padding is not None and output == "arrow":
            raise ConfigError(
                'PaddedCollate makes arrays, and output="arrow" keeps lists as they are: leave collate_fn= out, or '
                'pass output="numpy" or "torch"'
            )
        self._columns: tuple[Any, Columns] | None = None
        self._empty: tuple[Any] | None = None

    # -- reading: in any thread

    def read(self, piece: ReadRequest) -> Read:
        """One piece of a step."""
        if self.takes_columns(piece.rows):
            return self._read_columns(piece)
        if not len(piece.ids):
            return Read([], piece.ids, piece.gone)
        if self._faults is not None:
            return self._read_surviving(piece)
        return _read_remaining(piece, lambda rows, ids: rows.fetch(ids) if len(ids) else [])

    def takes_columns(self, rows: FrozenRows) -> bool:
        """Whether these rows are gathered column by column."""
        if self._faults is not None or (self._collate_fn is not None and self._padding is None):
            return False
        if isinstance(
            rows, (WindowRows, MemberWindowRows)
        ):  # all of one width: nothing to pad, unless a column is named
            return self._output != "arrow" and (self._padding is None or self._padding.columns is None)
        return isinstance(rows, SnapshotRows) or (self._padding is not None and is_arrow(rows))

    def _read_columns(self, piece: ReadRequest) -> Read:
        rows = piece.rows
        if isinstance(rows, (WindowRows, MemberWindowRows)):
            return _read_remaining(piece, self._windows)
        if not isinstance(rows, SnapshotRows):
            return Read(self._table(table_of(rows, piece.ids)), piece.ids, piece.gone)
        if self._output == "arrow":
            return Read(rows.table(piece.ids), piece.ids, piece.gone)
        known = self._columns
        if known is None or known[0] is not rows.snapshot:
            columns = rows.snapshot.stored_columns()
            convert, room, cast = self._converters()
            finish = torch_bridge.from_array if self._output == "torch" else readable
            take_of = partial(_take, convert=convert, finish=finish, pinned=room if self._pins else None)
            known = self._columns = (rows.snapshot, Columns(columns, take_of, self._padding, room, cast))
        return Read(known[1].read(rows.places(piece.ids)), piece.ids, piece.gone)

    def _table(self, table: pa.Table) -> Any:
        """The columns of a table, which may share its memory with the dataset: they are copied."""
        columns = {name: one_chunk(values) for name, values in zip(table.column_names, table.columns, strict=True)}
        _, room, cast = self._converters()
        convert = _copied_tensor if self._output == "torch" else _copied_array
        return Columns(columns, lambda name, array: lambda _: convert(name, array), self._padding, room, cast).read(
            None
        )

    def _windows(self, rows: FrozenRows, ids: Int64) -> Any:
        assert isinstance(rows, (WindowRows, MemberWindowRows))
        columns = rows.columns(ids)
        return tensors(columns) if self._output == "torch" else columns

    def _converters(self) -> tuple[Callable[[str, pa.Array], Any], Room, Cast]:
        if self._output == "torch":
            room = partial(torch_bridge.empty_bytes, pin=self._pins)
            return lambda name, array: to_tensor(name, array, None, copy=False), room, lambda values, _: values
        return to_array, array_room, readable

    def _read_surviving(self, piece: ReadRequest) -> Read:
        samples, kept = self._faults.read(piece.ids, piece.rows.fetch, lambda id_: piece.rows.fetch(_one(id_))[0])
        return Read(list(samples), piece.ids[kept], np.concatenate([piece.gone, piece.ids[~kept]]))

    # -- batches: in the thread that has all parts of a step

    def join(self, parts: Sequence[Read], plan: Plan) -> BatchRead:
        """One batch of all that was read for a step."""
        ids, gone = (np.concatenate([part[i] for part in parts]) if len(parts) != 1 else parts[0][i] for i in (1, 2))
        content = self._joined(parts, plan.example)
        if self._shaper is None:
            return BatchRead(content, ids, gone, content, ids)
        shaped = self._shaper.shape(content, ids, plan.place)
        return BatchRead(shaped.content, ids, gone, None if self._shaper.transforms else content, shaped.ids)

    def _joined(self, parts: Sequence[Read], example: Example) -> Any:
        """``example`` shows what a batch without rows looks like."""
        if len(parts) == 1 and not isinstance(parts[0].content, list):
            return self._finished(parts[0].content)
        if any(isinstance(part.content, list) for part in parts) or not parts:
            samples = [sample for part in parts for sample in part.content]
            return self._collated(samples) if samples else self._without_rows(*example())
        contents = [part.content for part in parts]
        if self._padding is not None and isinstance(contents[0], PaddedColumns):
            return self._padding.joined(contents, _joined)
        return self._finished(_joined(contents))

    def _finished(self, columns: Any) -> Any:
        if self._output != "arrow":
            return columns
        return {name: one_chunk(values) for name, values in zip(columns.column_names, columns.columns, strict=True)}

    def _without_rows(self, rows: FrozenRows, one: Int64) -> Any:
        """A batch of no rows, with the columns that the others have: a row is read to know them."""
        if self._empty is None:
            samples = self.read(ReadRequest(rows, one, one[:0])).content
            if not samples:  # it has left a bounded stream, or a fault left it out
                return {}
            self._collated(samples)
        assert self._empty is not None
        return empty_like(self._empty[0])  # one of its own

    def _collated(self, samples: list[Any]) -> Any:
        columns = self._formed(samples)
        if self._empty is None:
            self._empty = (empty_like(columns),)
        return columns

    def _formed(self, samples: list[Any]) -> Any:
        if self._padding is not None:
            columns = self._padding.collate(samples)
            return columns if self._output == "numpy" else tensors(columns)
        if self._collate_fn is not None:
            return self._collate_fn(samples)
        if self._output == "arrow":
            rows = DatasetBuffer()
            rows.append(samples)
            return self._finished(rows.snapshot().to_arrow())
        columns = collate(samples)
        if self._output == "numpy":
            return columns
        return tensors(columns)


def _copied_tensor(name: str, array: pa.Array) -> Any:
    return to_tensor(name, array, None, copy=True)


def _copied_array(name: str, array: pa.Array) -> NDArray[Any]:
    return to_array(name, array).copy()


def _read_remaining(piece: ReadRequest, read: Callable[[FrozenRows, Int64], Any]) -> Read:
    """Rows of a bounded stream may go between the decision and the reading; the others are read all the same."""
    while True:
        try:
            return Read(read(piece.rows, piece.ids), piece.ids, piece.gone)
        except IndexError:
            alive = piece.rows.alive(piece.ids)
            if alive is None or alive.all():
                raise  # not because a row is gone
            piece = ReadRequest(piece.rows, piece.ids[alive], np.concatenate([piece.gone, piece.ids[~alive]]))


def _one(id_: int) -> Int64:
    return np.array([id_], np.int64)


def _joined(parts: list[Any]) -> Any:
    """Columns behind each other, whatever holds them."""
    first = parts[0]
    if isinstance(first, dict):
        return {name: _joined([part[name] for part in parts]) for name in first}
    if isinstance(first, list):
        return list(chain(*parts))
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    if isinstance(first, pa.Table):
        return pa.concat_tables(parts).combine_chunks()
    import torch

    return torch.cat(parts) if all(isinstance(part, torch.Tensor) for part in parts) else list(chain(*parts))


class Part(NamedTuple):
    """What a thread reads at once; ``step`` is the plan if that is all of it, and makes the batch there."""

    pieces: Sequence[ReadRequest]
    step: Plan | None = None
    is_whole: bool = True


def whole(plan: Plan) -> list[Part]:
    """All of a plan, for one thread to read."""
    return [Part(plan.pieces, plan)]


def small_parts_of(plan: Plan, n_rows: int) -> list[Part]:
    """The pieces of a plan cut into parts of at most ``n_rows``, for several threads to read."""
    return [
        Part(
            [ReadRequest(piece.rows, piece.ids[i : i + n_rows], piece.gone if i == 0 else piece.gone[:0])],
            is_whole=len(piece.ids) <= n_rows,
        )
        for piece in plan.pieces
        for i in range(0, max(1, len(piece.ids)), n_rows)
    ]


#: From places in a column, None for all of it, to the column of a batch.
Take = Callable[[Int64 | None], Any]


class Columns:
    """Reads batches from columns of Arrow."""

    def __init__(
        self,
        columns: Mapping[str, pa.Array],
        take_of: Callable[[str, pa.Array], Take],
        padding: PaddedCollate | None,
        room: Room,
        cast: Cast,
    ) -> None:
        """``take_of`` reads a column; ``room`` and ``cast`` make one that is padded."""
        self._takes: list[tuple[str, Take]] = []
        #: Columns that are padded: the names of all that they become.
        self._padded: dict[str, list[str]] = {}
        self._filled: dict[str, Any] = {}
        for name, array in columns.items():
            pad = None if padding is None else padding.taking(name, array, room, cast)
            self._takes.append((name, pad or take_of(name, array)))
            if padding is not None and pad is not None:
                self._padded[name] = padding.spread_names(name, columns)
                self._filled |= padding.filled(name)
        if padding is not None:
            padding.check_names(columns)

    def read(self, places: Int64 | None) -> dict[str, Any]:
        """The rows at these places, as columns; all rows where it is None."""
        read = {name: take(places) for name, take in self._takes}
        if not self._padded:
            return read
        made: dict[str, Any] = {}
        for name, values in read.items():
            made |= zip(self._padded[name], values, strict=True) if name in self._padded else {name: values}
        return PaddedColumns(made, self._filled)


def _take(
    name: str,
    array: pa.Array,
    *,
    convert: Callable[[str, pa.Array], Any],
    finish: Cast,
    pinned: Room | None,
) -> Take:
    """How to gather a column: into ``pinned`` memory, or an array that ``finish`` converts.

    ``convert(name, array)`` is for columns that are gathered by Arrow.
    """
    plain = None if array.null_count else _plain(array)
    if plain is None:
        gather: Any = gather_fn(array)
        return lambda places: convert(name, gather(places))
    stored, dtype = plain
    shape = stored.shape[1:]
    n_bytes = stored.dtype.itemsize * math.prod(shape)
    source = stored.reshape(-1).view(np.uint8)

    bits = numpy_dtype(dtype)

    def take(places: Any) -> Any:
        # NumPy's memory for tensors as well: torch's own takes 1.5 us more for each column of a batch.
        values = np.empty((len(places), *shape), bits)
        kernels.gather(source, n_bytes, places, values.reshape(-1).view(np.uint8))
        return finish(values, dtype)

    def take_pinned(places: Any) -> Any:
        assert pinned is not None
        memory, values = pinned(len(places) * n_bytes, dtype)
        kernels.gather(source, n_bytes, places, memory)
        return values.reshape(len(places), *shape)

    return take if pinned is None else take_pinned


def _plain(array: pa.Array) -> tuple[NDArray[Any], str] | None:
    """The memory of a column of numbers or tensors as an array, and the dtype that its bits mean."""
    type_ = array.type
    if (kinds.is_integer(type_) or kinds.is_floating(type_)) and not kinds.is_float16(type_):
        values = number_rows(array)
        return values, values.dtype.name
    if not is_tensor(type_):
        return None
    dtype, shape = dtype_and_shape(type_)
    is_plain = None not in shape and 0 not in shape and numpy_dtype(dtype).kind not in "mM"
    return (tensor_rows(array), dtype) if is_plain else None


#: How long a part takes that is worth handing to a thread: handing it over takes about 20 us.
_PART_S = 0.001
#: Frames between a warning and the loop over the loader.
_TO_CALLER = 7

#: What may be read ahead of the trainer, however many batches that is.
MAX_BYTES_AHEAD = 2**30

#: A step, what was read for it, and its columns where they are wanted (or on their way there).
Fetched = tuple[Plan, BatchRead, Any]
#: What was read, a part or a batch, and its columns on their way to the device; None where no copy has begun.
Staged = tuple[Any, Any]


class Fetcher:
    """Steps of ``walk``, read by ``reading`` when they are asked for, and moved by ``stage`` if there is one."""

    #: Whether threads read before a batch is asked for.
    reads_ahead = False

    def __init__(self, walk: StepPlanner, reading: BatchReader, stage: Any) -> None:
        self._planner, self._reading, self._stage = walk, reading, stage

    def next(self, place: LoaderPosition, stride: int) -> Fetched | None:
        """The step behind a place; None at the end. The one after it will be ``stride`` steps on."""
        plan = self._planner.next(place)
        if plan is None:
            return None
        read = self._reading.join([self._read_with_note(piece) for piece in plan.pieces], plan)
        content = read.content if self._stage is None else self._stage.finish(self._stage.begin(read.content))
        return plan, read, content

    def prefetch(self, place: LoaderPosition, stride: int) -> bool:
        """Begin to read the step behind a place, where there are threads; whether this call began it."""
        return False

    def _read_with_note(self, piece: ReadRequest) -> Read:
        try:
            return self._reading.read(piece)
        except Exception as error:
            error.add_note(f"while reading {_where([piece])}")
            raise

    def forget(self, *, keep_workers: bool) -> None:
        """Drop what was read ahead: it is read again from the loader's position."""


class PrefetchingFetcher(Fetcher):
    """The same, read by ``n_workers`` threads up to ``n_ahead`` steps before they are asked for.

    A thread takes ``n_rows`` rows at once. Where it is None, it takes the whole step, makes the batch and begins to
    move it.
    """

    reads_ahead = True

    def __init__(
        self,
        walk: StepPlanner,
        reading: BatchReader,
        stage: Any,
        *,
        n_workers: int,
        n_ahead: int,
        n_rows: int | None,
        timeout: float,
        init: Callable[[int], None] | None,
        is_asked_for: bool = True,
    ) -> None:
        """``is_asked_for``: the user wants threads, and learns where they make it slower."""
        super().__init__(walk, reading, stage)
        self._n_workers, self._n_ahead, self._n_rows = n_workers, n_ahead, n_rows
        self._timeout, self._init = timeout, init
        self._pace, self._warns = Pace(), is_asked_for
        self._workers: Workers | None = None
        self._ahead: Prefetcher[Plan, Part, Staged, tuple[Plan, Staged]] | None = None
        self._staged: Fetched | None = None

    def next(self, place: LoaderPosition, stride: int) -> Fetched | None:
        """The step behind a place; None at the end. The threads go on with every ``stride``-th."""
        if self._warns and self._pace.slower is not None:
            self._warns = False
            self._warn(*self._pace.slower)
        if self._ahead is None:
            self._ahead = self._begin(place, stride)
        current = self._staged or self._staging()
        self._staged = None
        if current is not None and current[0].place.step != place.step:
            # The batch before was ready when Ctrl-C came, and not handed out.
            self.forget(keep_workers=True)
            return self.next(place, stride)
        if current is None:
            # Nothing was sure ahead of time. Now the caller waits, so a short step or the end may be decided.
            self._ahead = None
            return super().next(place, stride)
        if self._stage is None:
            return current
        plan, read, moving = current
        if self._ahead.is_ready:  # its copy runs while the trainer works on this batch
            self._staged = self._staging()
        return plan, read, self._stage.finish(moving)

    def prefetch(self, place: LoaderPosition, stride: int) -> bool:
        """The threads begin, unless they have."""
        if self._ahead is not None:
            return False
        self._ahead = self._begin(place, stride)
        self._ahead.begin()
        return True

    def _staging(self) -> Fetched | None:
        assert self._ahead is not None
        try:
            plan, (read, moving) = self._pace.wait(partial(next, self._ahead), lambda got: len(got[1][0].ids))
        except StopIteration:
            return None
        if self._stage is None:
            return plan, read, read.content
        return plan, read, self._stage.begin(read.content) if moving is None else moving

    def _begin(self, place: LoaderPosition, stride: int) -> Prefetcher[Plan, Part, Staged, tuple[Plan, Staged]]:
        if self._workers is None:
            self._workers = Workers(self._n_workers, self._init)
        reading = _PartReader(self._reading, self._stage, self._pace, self._n_rows)
        return Prefetcher(
            _Plans(self._planner, place, stride),
            reading.split,
            reading.read,
            reading.join,
            workers=self._workers,
            n_ahead=self._n_ahead,
            max_bytes=MAX_BYTES_AHEAD,
            size_of=_n_bytes,
            timeout=self._timeout,
            describe=lambda part: _where(part.pieces),
        )

    def _warn(self, without: Spent, threads: Spent) -> None:
        """Say once that threads cost more than they bring."""
        n = self._n_workers
        warnings.warn(
            f"Loader(num_workers={n}) is slower than num_workers=0: a row takes {_shown(threads)} with threads, "
            f"{_shown(without)} without. Threads pay where a row releases the GIL for 100 us or waits for a disk. "
            f"Use num_workers=0, or processes: torch's DataLoader(loader, batch_size=None, num_workers={n})",
            stacklevel=_TO_CALLER,
        )

    def forget(self, *, keep_workers: bool) -> None:
        """Nothing is ready any more; the threads wait for the next step, or end."""
        if self._ahead is not None:
            self._ahead.close()
        self._ahead = self._staged = None
        if self._workers is not None and not keep_workers:
            self._workers.close()
            self._workers = None


#: Of how many samples of a part the bytes are counted: 2 us each, as much as reading a small one takes.
_N_WEIGHED = 3


def _n_bytes(staged: Staged) -> int:
    """The bytes of what was read; of many samples an estimate, from some that are evenly spaced."""
    content = staged[0].content
    if not isinstance(content, list) or len(content) <= _N_WEIGHED:
        return nbytes(content)
    weighed = content[:: -(-len(content) // _N_WEIGHED)]
    return nbytes(weighed) * len(content) // len(weighed)


class _PartReader:
    """What threads do. It does not know the fetcher, so that its threads end when nothing else knows it."""

    def __init__(
        self, reading: BatchReader, stage: torch_bridge.DeviceStage | None, pace: Pace, n_rows: int | None
    ) -> None:
        self._reading, self._stage, self._pace, self._n_rows = reading, stage, pace, n_rows

    def split(self, plan: Plan) -> list[Part]:
        """What threads read of a plan at once: all of it, or some rows, more of them where rows cost little."""
        if self._n_rows is None:
            return whole(plan)
        n_worth = 1 if self._pace.rough_s is None else int(_PART_S / max(self._pace.rough_s, 1e-9))
        return small_parts_of(plan, max(self._n_rows, n_worth))

    def read(self, part: Part) -> Staged:
        """In a thread: read a part; if it is the whole step, make its batch and begin to move that."""
        n_rows = sum(len(piece.ids) for piece in part.pieces)
        return self._pace.read(lambda: self._read(part), n_rows, is_whole=part.is_whole)

    def _read(self, part: Part) -> Staged:
        reads = [self._reading.read(piece) for piece in part.pieces]
        if part.step is None:
            return reads[0], None
        read = self._reading.join(reads, part.step)
        return read, None if self._stage is None else self._stage.begin(read.content)

    def join(self, plan: Plan, parts: list[Staged]) -> tuple[Plan, Staged]:
        """In the thread that asks: a batch of all its parts."""
        if isinstance(parts[0][0], BatchRead):
            return plan, parts[0]
        return plan, (self._pace.join(lambda: self._reading.join([read for read, _ in parts], plan)), None)


class _Plans:
    """The steps from a place to the end of the epoch, every ``stride``-th; an error of one leaves it the next."""

    def __init__(self, walk: StepPlanner, place: LoaderPosition, stride: int) -> None:
        self._planner, self._place, self._stride = walk, place, stride
        self._n_skip = 0

    def __iter__(self) -> _Plans:
        return self

    def __next__(self) -> Plan:
        while True:
            plan = self._planner.next(self._place, is_ahead=True)
            if plan is None:
                raise StopIteration
            self._place = plan.after
            if not self._n_skip:
                self._n_skip = self._stride - 1
                return plan
            self._n_skip -= 1


def _shown(spent: Spent) -> str:
    return f"{spent.wall_s * 1e6:.1f} us ({spent.cpu_s * 1e6:.1f} us of CPU time)"


def _where(pieces: Sequence[ReadRequest]) -> str:
    ids = pieces[0].ids if len(pieces) == 1 else np.concatenate([piece.ids for piece in pieces])
    return f"{rows_named(ids)}; the loader is still before this batch"
