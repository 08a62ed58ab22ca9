"""Snapshot: the rows a buffer had at one moment. Immutable, made in O(1), safe to keep while the buffer changes.

All reading happens here; the buffer only hands out its current snapshot. A snapshot is a map-style dataset for
torch's DataLoader (``__getitem__``, ``__getitems__``), works in forked workers as it is, and travels to spawned ones
as Arrow IPC.
"""

from __future__ import annotations

import operator
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from poolish import kernels, seeds, torch_bridge
from poolish.columns import one_chunk
from poolish.concurrency import cached_property
from poolish.errors import ConfigError
from poolish.rows.access import GatherFn, ReadFn, gather_fn, reader
from poolish.rows.bridges import Conversions
from poolish.rows.ipc import MappedFile, table_over, write_stream
from poolish.rows.validate import shown
from poolish.schema import Schema

if TYPE_CHECKING:
    from poolish.rows.storage import LiveSet

Int64 = NDArray[np.int64]

#: Who gave out row ids: each branch, and its first id. A copy that is loaded and appended to begins a branch.
Lineage = tuple[tuple[str, int], ...]

#: Rows gathered at a time while iterating.
ITERATION_ROWS = 1024


class Found(NamedTuple):
    """What ``by_id`` gives: the rows that are still there, in the order asked for, and the ids that are gone."""

    rows: pa.Table
    gone: Int64


class SnapshotReads(Conversions):
    """The methods that read rows, shared by buffers and snapshots: each reads one snapshot, never half of a change."""

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Rows as dicts, the way torch's DataLoader asks for a whole batch: numbers have the dtype of their column.

        ``snapshot[i]`` gives Python's own numbers, of which a batch would become float64 or int64.
        """
        rows = self.snapshot()
        places = rows.places(indices).tolist()
        readers = rows.typed_readers
        return [{name: read(place) for name, read in readers} for place in places]

    def __iter__(self) -> Iterator[pa.Table]:
        """The rows one by one, as one-row tables; rows that come or go meanwhile make no difference."""
        return _one_by_one(self.snapshot())

    def get_batch(self, indices: ArrayLike) -> pa.Table:
        """The rows with these numbers, in this order, copied into a table of their own."""
        return self.snapshot().get_batch(indices)

    def by_id(self, ids: ArrayLike) -> Found:
        """The rows with these ids that are still there, and which of the ids are gone."""
        rows = self.snapshot()
        asked = checked_ids(ids, rows.next_id)
        numbers, found = rows.numbers_of(asked)
        return Found(rows.get_batch(numbers), asked[~found])

    @property
    def ids(self) -> Int64:
        """The row id of every row, oldest first; ids count up for ever and are never used again."""
        return self.snapshot().ids

    @property
    def generations(self) -> list[tuple[int, int]]:
        """The ids ``[first, last)`` that each append brought, for appends of which rows may be left."""
        return self.snapshot().generations

    def to_arrow(self) -> pa.Table:
        """All rows as a table of one chunk, without a copy unless rows have left from the middle."""
        return self.snapshot().to_arrow()


def _one_by_one(rows: Snapshot) -> Iterator[pa.Table]:
    for first in range(0, len(rows), ITERATION_ROWS):
        table = rows[first : first + ITERATION_ROWS]
        for i in range(table.num_rows):
            yield table.slice(i, 1)


class Snapshot(SnapshotReads):
    """Rows as they were at one moment.

    >>> from poolish import DatasetBuffer
    >>> buffer = DatasetBuffer()
    >>> buffer.append([{"flour": "rye"}, {"flour": "wheat"}])
    >>> before = buffer.snapshot()
    >>> buffer.clear()
    >>> len(before), before[-1], before.get_batch([1, 0])["flour"].to_pylist()
    (2, {'flour': 'wheat'}, ['wheat', 'rye'])
    """

    def __init__(
        self,
        schema: Schema,
        columns: Mapping[str, pa.Array],
        ids: Int64,
        generations: Int64,
        *,
        next_id: int,
        uuid: str,
        lineage: Lineage = (),
        span: tuple[int, int] | None = None,
        live: LiveSet | None = None,
        n_before: int = 0,
        n_rows: int | None = None,
        layout: object = None,
    ) -> None:
        self.schema = schema
        self.next_id = next_id
        self.uuid = uuid
        self.lineage = lineage or ((uuid, 0),)
        self._columns = columns
        self._all_ids = ids
        self._starts = generations
        self._first, self._last = span or (0, len(ids))
        self._live = live
        self._n_before = n_before
        #: The same object as long as rows keep their places.
        self.layout = ids if layout is None else layout
        self._n_rows = self._last - self._first if n_rows is None else n_rows

    @classmethod
    def of_table(
        cls, table: pa.Table, ids: Int64, starts: Int64, next_id: int, uuid: str, lineage: Lineage
    ) -> Snapshot:
        """The rows of a table, with ids and generations from elsewhere."""
        columns = {name: one_chunk(table[name]) for name in table.column_names}
        schema = Schema.from_arrow(table.schema)
        return cls(schema, columns, ids, starts, next_id=next_id, uuid=uuid, lineage=lineage)

    def snapshot(self) -> Snapshot:
        """Itself, which never changes."""
        return self

    #: The file that the rows are mapped from, if they are.
    mapped_file: MappedFile | None = None

    @cached_property
    def rng(self) -> np.random.Generator:
        """What ``sample`` draws from: the buffer's own generator, or a child of it in another process."""
        return seeds.generator(0, "rows", "sample")

    @cached_property
    def version(self) -> str:
        """The buffer's at that moment; a name of its own for one that came out of a file or another process."""
        return secrets.token_hex(16)

    # -- rows

    def __len__(self) -> int:
        return self._n_rows

    def __getitem__(self, index: Any) -> Any:
        """Rows or columns, by the kind of ``index``.

        a number                            one row as a dict
        a slice, array of numbers, mask     rows as a ``pa.Table``
        a name                              a column as a ``pa.ChunkedArray``: that of ``to_arrow()``
        a list of names                     columns as a ``pa.Table``
        """
        if type(index) is int:
            i = index
        else:
            try:
                i = operator.index(index)
            except TypeError:
                return self._rows(index)
        if not -self._n_rows <= i < self._n_rows:
            raise _beyond(i, self._n_rows)
        if self.mapped_file is not None:
            self.mapped_file.check()
        i = i + self._n_rows if i < 0 else i
        place = i + self._first if self._live is None else self._live.place(i + self._n_before)
        return {name: read(place) for name, read in self.readers}

    def get_batch(self, indices: ArrayLike) -> pa.Table:
        return self.rows_at(self.places(indices))

    def _rows(self, index: Any) -> pa.Table:
        if isinstance(index, slice):
            first, last, step = index.indices(self._n_rows)
            if step == 1 and self._live is None:
                return self.to_arrow().slice(first, max(0, last - first))
            return self.get_batch(np.arange(first, last, step))
        if isinstance(index, tuple):
            raise TypeError(f"rows are chosen by whole numbers, got {index!r}; for several rows write [[...]]")
        if isinstance(index, str):
            return self._columns_named([index]).column(0)
        if isinstance(index, list) and index and all(isinstance(name, str) for name in index):
            return self._columns_named(index)
        return self.get_batch(index)

    def _columns_named(self, names: Sequence[str]) -> pa.Table:
        """All rows of these columns; where rows have left, the other columns are not gathered."""
        chosen = Schema([self.schema[name] for name in names]).to_arrow()
        self.check_file()
        if self._live is None or "_table" in self.__dict__:
            table = self.to_arrow()
            return pa.Table.from_arrays([table.column(name) for name in names], schema=chosen)
        places = self.places(np.arange(self._n_rows))
        return pa.Table.from_arrays([gather_fn(self._columns[name])(places) for name in names], schema=chosen)

    def places(self, indices: ArrayLike) -> Int64:
        """Where in the stored columns the rows with these numbers are; every gather begins with this question."""
        self.check_file()
        numbers = _row_numbers(indices, self._n_rows)
        places = np.empty(len(numbers), np.int64)
        bad = kernels.resolve(numbers, self._n_rows, self._first if self._live is None else self._n_before, places)
        if bad >= 0:
            raise _beyond(int(numbers[bad]), self._n_rows, f", at place {bad} of the batch")
        return places if self._live is None else self._live.select(places)

    def rows_at(self, places: Int64) -> pa.Table:
        """The rows at these places of the stored columns, copied into a table of their own."""
        return pa.Table.from_arrays([gather(places) for gather in self._gather_fns], schema=self.schema.to_arrow())

    @property
    def window(self) -> tuple[Int64, int, int, LiveSet | None]:
        """The ids at all places, the places from and up to which rows may live, and which do (None: all)."""
        return self._all_ids, self._first, self._last, self._live

    def live_places(self) -> Int64:
        """The places of all rows, oldest first."""
        return np.arange(self._first, self._last) if self._live is None else self._live.places(self._first, self._last)

    def places_of(self, ids: Int64) -> tuple[Int64, NDArray[np.bool_]]:
        """The places of the ids that are still there, and for each id whether it is."""
        known, first, last = self._all_ids, self._first, self._last
        if last > first and int(known[last - 1]) - int(known[first]) == last - 1 - first:  # no id is missing
            places = ids - (int(known[first]) - first)
            found = (places >= first) & (places < last)
        else:
            places = first + np.searchsorted(known[first:last], ids)
            found = places < last
            found[found] = known[places[found]] == ids[found]
        if self._live is not None:
            found[found] = self._live.alive(places[found])
        return (places if found.all() else places[found]), found

    def stored_columns(self) -> Mapping[str, pa.Array]:
        """The columns as they are stored, rows that have left included; ``places`` says where the others are."""
        self.check_file()
        return self._columns

    @cached_property
    def _gather_fns(self) -> list[GatherFn]:
        return [gather_fn(array) for array in self._columns.values()]

    @cached_property
    def readers(self) -> list[tuple[str, ReadFn]]:
        """For each column its name and a function from place to Python value."""
        return [(name, reader(array)) for name, array in self._columns.items()]

    @cached_property
    def typed_readers(self) -> list[tuple[str, ReadFn]]:
        return [(name, reader(array, typed=True)) for name, array in self._columns.items()]

    # -- identity

    @cached_property
    def ids(self) -> Int64:
        ids = self._all_ids[self._first : self._last] if self._live is None else self._all_ids[self.live_places()]
        ids = ids.view()
        ids.flags.writeable = False
        return ids

    @property
    def generation_starts(self) -> Int64:
        """The first id of each generation of which rows may be left."""
        return np.array([first for first, _ in self.generations], np.int64)

    @property
    def generations(self) -> list[tuple[int, int]]:
        ends = [*self._starts[1:].tolist(), self.next_id]
        first_id = int(self.ids[0]) if self._n_rows else self.next_id
        pairs = zip(self._starts.tolist(), ends, strict=True) if len(self._starts) else iter(())
        return [(first, last) for first, last in pairs if last > first_id]

    def branch_of(self, next_id: int) -> str:
        """The branch that gave out the last id below ``next_id``.

        A buffer that is loaded or unpickled is a copy: it gives out the same ids as the original for other rows, and
        so begins a branch with its first append. Ids up to ``next_id`` mean the same rows where this is the same.
        """
        return next((branch for branch, first_id in reversed(self.lineage) if first_id < max(1, next_id)), "")

    def numbers_of(self, ids: Int64) -> tuple[Int64, NDArray[np.bool_]]:
        """Row numbers of the ids that are still there, and for each id whether it is."""
        numbers = np.searchsorted(self.ids, ids)
        found = numbers < self._n_rows
        found[found] = self.ids[numbers[found]] == ids[found]
        return numbers[found], found

    # -- random rows

    @overload
    def sample(
        self,
        n: int,
        weights: ArrayLike | str | None = None,
        replace: bool = False,
        rng: np.random.Generator | None = None,
        *,
        with_ids: Literal[False] = False,
    ) -> pa.Table: ...

    @overload
    def sample(
        self,
        n: int,
        weights: ArrayLike | str | None = None,
        replace: bool = False,
        rng: np.random.Generator | None = None,
        *,
        with_ids: Literal[True],
    ) -> tuple[pa.Table, Int64]: ...

    def sample(
        self,
        n: int,
        weights: ArrayLike | str | None = None,
        replace: bool = False,
        rng: np.random.Generator | None = None,
        *,
        with_ids: bool = False,
        priority: str | None = None,
    ) -> pa.Table | tuple[pa.Table, Int64]:
        """``n`` random rows; ``weights`` are numbers, one per row, or the name of a column that holds them.

        ``with_ids`` adds the row ids of the drawn rows, for ``by_id`` and ``update``.

        Every call draws anew, from the generator of the buffer that follows its seed. A pickled snapshot has a child
        of that generator, each copy another one. Forked processes all inherit the same one: pass ``rng`` there.

        >>> from poolish import DatasetBuffer
        >>> buffer = DatasetBuffer(seed=7)
        >>> buffer.append([{"x": i} for i in range(10)])
        >>> rows = buffer.snapshot()
        >>> rows.sample(3)["x"].to_pylist() == rows.sample(3)["x"].to_pylist()
        False
        """
        if priority is not None:
            raise ConfigError(
                "a snapshot carries no priorities, which change with every training step; sample the buffer itself: "
                f"buffer.sample({n!r}, priority={priority!r})"
            )
        numbers = self.draw(n, weights, replace, self.rng if rng is None else rng)
        table = self.get_batch(numbers)
        return (table, self.ids[numbers]) if with_ids else table

    def draw(self, n: int, weights: ArrayLike | str | None, replace: bool, rng: np.random.Generator) -> Int64:
        """Numbers of ``n`` random rows."""
        n_rows = self._n_rows
        if isinstance(n, (bool, np.bool_)) or not hasattr(n, "__index__"):
            raise TypeError(f"sample takes a whole number of rows, got {n!r}")
        n = operator.index(n)
        if n < 0 or (n > 0 and n_rows == 0) or (n > n_rows and not replace):
            raise ValueError(f"{n} rows from {n_rows} without repeating any; ask for fewer, or pass replace=True")
        if n == 0:
            return np.empty(0, np.int64)
        if weights is None:
            numbers = rng.integers(n_rows, size=n) if replace else rng.choice(n_rows, n, replace=False)
        else:
            numbers = rng.choice(n_rows, n, replace=replace, p=self._shares(weights, n, replace))
        return np.asarray(numbers, np.int64)

    def _shares(self, weights: ArrayLike | str, n: int, replace: bool) -> NDArray[np.float64]:
        given = np.asarray(self.to_numpy([weights])[weights] if isinstance(weights, str) else weights)
        if given.dtype.kind not in "iuf":
            raise ValueError(f"weights are numbers, got {given.dtype}; name a column of numbers or pass an array")
        values = given.astype(np.float64)
        if values.shape != (self._n_rows,):
            raise ValueError(f"weights: one number per row ({self._n_rows}), got shape {values.shape}")
        if not np.isfinite(values).all() or (values < 0).any() or values.sum() == 0:
            raise ValueError("weights: finite numbers >= 0, not all 0; check the column or array they come from")
        if not replace and np.count_nonzero(values) < n:
            raise ValueError(f"{n} rows, but only {np.count_nonzero(values)} have a weight above 0; pass replace=True")
        shares: NDArray[np.float64] = values / values.sum()
        return shares

    # -- conversions

    def to_arrow(self) -> pa.Table:
        self.check_file()
        return self._table

    def check_file(self) -> None:
        """CorruptDataError if the file below a loaded buffer is no longer the one that was checked.

        Asked before each row, batch and conversion: what was right for the last one may be gone for the next.
        """
        if self.mapped_file is not None:
            self.mapped_file.check()

    @cached_property
    def _table(self) -> pa.Table:
        if self._live is not None:
            return self.get_batch(np.arange(self._n_rows))
        columns = [array.slice(self._first, self._n_rows) for array in self._columns.values()]
        return pa.Table.from_arrays(columns, schema=self.schema.to_arrow())

    # -- travelling and showing

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        sink = pa.BufferOutputStream()
        write_stream(self.to_arrow(), sink)
        ids, starts = np.asarray(self.ids).tobytes(), self.generation_starts.tobytes()
        (child,) = self.rng.spawn(1)  # every copy draws its own random numbers
        return _unpickled, (sink.getvalue().to_pybytes(), ids, starts, self.next_id, self.uuid, self.lineage, child)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Snapshot) and self.uuid == other.uuid and self.to_arrow().equals(other.to_arrow())

    __hash__ = object.__hash__


def _unpickled(
    ipc: bytes, ids: bytes, starts: bytes, next_id: int, uuid: str, lineage: Lineage, rng: np.random.Generator
) -> Snapshot:
    """The snapshot in another process, over writable memory: torch shares no other."""
    table = table_over(memoryview(bytearray(ipc)))
    all_ids, all_starts = np.frombuffer(ids, np.int64), np.frombuffer(starts, np.int64)
    snapshot = Snapshot.of_table(table, all_ids, all_starts, next_id, uuid, lineage)
    snapshot.rng = rng
    return snapshot


def checked_ids(ids: ArrayLike, next_id: int) -> Int64:
    """Row ids as an array, also of a tensor; an id that was never given out is a mistake, not a row that is gone."""
    asked = np.atleast_1d(np.asarray(torch_bridge.on_host(ids)))
    if asked.size and (asked.dtype.kind not in "iu" or asked.ndim != 1):
        raise TypeError(f"row ids are whole numbers in one dimension, got {asked.dtype} of shape {asked.shape}")
    asked = asked.astype(np.int64)
    never = asked[(asked < 0) | (asked >= next_id)]
    if len(never):
        raise IndexError(f"row id {never[0]} was never given out; ids count from 0 and the next one is {next_id}")
    return asked


def check_mask(mask: Any) -> NDArray[np.bool_]:
    """A boolean mask as an array; numbers are no mask."""
    values = np.asarray(mask)
    if values.dtype != bool and values.size:
        raise TypeError(f"a mask has True or False for every row, got {values.dtype}; make one by comparing")
    return values.astype(bool)


def _row_numbers(indices: ArrayLike, n_rows: int) -> Int64:
    numbers = np.asarray(indices)
    if numbers.dtype == bool and numbers.ndim > 0:
        if numbers.shape != (n_rows,):
            raise IndexError(f"a mask has one value per row ({n_rows}), got shape {numbers.shape}")
        return np.flatnonzero(numbers)
    if numbers.ndim != 1:
        raise TypeError(f"rows are chosen by whole numbers in one dimension, got {shown(indices)}")
    if len(numbers) == 0:
        return np.empty(0, np.int64)
    if numbers.dtype.kind == "O" and all(type(number) is int for number in numbers):
        raise _beyond(max(numbers, key=abs), n_rows)  # larger than any integer NumPy has
    if numbers.dtype.kind not in "iu":
        raise TypeError(f"rows are chosen by whole numbers, got {numbers.dtype}")
    if numbers.dtype == np.uint64 and numbers.max() >= n_rows:
        raise _beyond(int(numbers.max()), n_rows)
    return np.ascontiguousarray(numbers, np.int64)


def _beyond(row: int, n_rows: int, place: str = "") -> IndexError:
    if n_rows == 0:
        return IndexError(f"row {row}{place}: there are no rows")
    return IndexError(f"row {row} of {n_rows} rows{place}; the last is {n_rows - 1}")
