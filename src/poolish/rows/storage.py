"""The rows of a buffer in memory, and everything that changes about a buffer, as frozen objects.

    place     0 ........ start ............................ end ........ reserved
              dead       live, except tombstones            not written

    state  --a change builds the next state aside-->  next state  --one assignment-->  published

``StoredRows`` holds columns side by side, a window onto them, and tombstones. Every change returns another one.
``extended`` writes behind ``end``; dropping the oldest moves ``start``; dropping others adds tombstones. All share the
memory of the columns, and nothing below ``end`` is overwritten, except by patches while no snapshot shows it. A change
that fails or is interrupted leaves bytes behind ``end``, which were never visible; the next ``extended`` overwrites
them. When the dead outnumber three fifths of the living, the living move into new memory: each row that leaves pays for
moving at most 5/3 rows, and memory stays below three times the payload.

``BufferState`` adds what else changes: pending rows, schema, random state, lineage. A reader or a Ctrl-C comes before
the assignment that publishes it or after it, so nothing is ever rolled back. Two things finish after the assignment,
and by the next reader if interrupted: ``patches``, which are idempotent, and ``pending`` rows, in a list that only
grows.

Policies, locks and conversions live elsewhere.
"""

from __future__ import annotations

import dataclasses
import operator
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from poolish import kernels
from poolish.columns import one_chunk
from poolish.kernels.reference import BLOCK_BITS
from poolish.rows.access import gather_fn
from poolish.rows.cast import cast_exact
from poolish.rows.codec import RowCodec
from poolish.rows.columns import FixedWidthColumn, GrowableColumn, Patch, column_of
from poolish.rows.normalizers import ROWS
from poolish.rows.retention import RowNumbers
from poolish.rows.snapshot import Lineage, Snapshot
from poolish.schema import Schema

if TYPE_CHECKING:
    from poolish.guards.checks.guard import Guard
    from poolish.guards.checks.one_row import RowTest


Int64 = NDArray[np.int64]

#: Fewer dead rows, or dead bytes, than these are not worth moving the others for.
MIN_DEAD = 1024
MIN_DEAD_BYTES = 1 << 20


@dataclass(frozen=True)
class StoredRows:
    """Columns, row ids and generations that grow at one end and thin out anywhere.

    Only the newest of a series of changes may be changed further: they share their columns.
    """

    schema: Schema
    columns: Mapping[str, GrowableColumn]
    ids: FixedWidthColumn
    generations: FixedWidthColumn
    n_generations: int = 0
    next_id: int = 0
    start: int = 0
    end: int = 0
    n_dead: int = 0
    n_before: int = 0
    live: LiveSet | None = None

    @classmethod
    def empty(cls, schema: Schema, next_id: int = 0) -> StoredRows:
        """No rows yet; the first will have the id ``next_id``."""
        columns = {field.name: column_of(field.type) for field in schema}
        return cls(schema, columns, FixedWidthColumn(pa.int64()), FixedWidthColumn(pa.int64()), next_id=next_id)

    @classmethod
    def of(cls, snapshot: Snapshot) -> StoredRows:
        """The rows of a snapshot, with the ids they have, in memory of their own."""
        rows = cls.empty(snapshot.schema, snapshot.next_id)
        table = snapshot.to_arrow()
        for name, column in rows.columns.items():
            column.extend(one_chunk(table[name]))
        rows.ids.extend(pa.array(snapshot.ids))
        rows.generations.extend(pa.array([first for first, _ in snapshot.generations], pa.int64()))
        return rows.changed(end=len(snapshot), n_generations=rows.generations.length)

    def __len__(self) -> int:
        return self.end - self.start - self.n_dead

    def changed(self, **changes: Any) -> StoredRows:
        """The same with other values; ``dataclasses.replace`` takes ten times as long."""
        changed = object.__new__(StoredRows)
        changed.__dict__.update(self.__dict__)
        changed.__dict__.update(changes)
        return changed

    # -- growing

    def extended(
        self,
        chunks: Sequence[Sequence[pa.Array]],
        chosen: Sequence[Int64 | None] | None = None,
        *,
        one_by_one: bool = False,
    ) -> StoredRows:
        """With more rows: one generation, or one per row where they were appended one by one.

        ``chosen`` are the places of the rows to take from each chunk, None for all.
        """
        chosen = chosen or [None] * len(chunks)
        n = sum(len(arrays[0] if places is None else places) for arrays, places in zip(chunks, chosen, strict=True))
        if n == 0:
            return self
        self._forget_unpublished()
        for column, arrays in zip(self.columns.values(), zip(*chunks, strict=True), strict=True):
            for array, positions in zip(arrays, chosen, strict=True):
                if positions is None:
                    column.extend(array)
                else:
                    column.extend_rows(array, positions)
        new_ids = np.arange(self.next_id, self.next_id + n)
        self.ids.extend_numbers(new_ids)
        self.generations.extend_numbers(new_ids if one_by_one else new_ids[:1])
        return self.changed(
            end=self.end + n,
            next_id=self.next_id + n,
            n_generations=self.generations.length,
            live=None if self.live is None else self.live.reserve(self.end + n),
        )

    def _forget_unpublished(self) -> None:
        """Begin to write at the end, wherever a change that failed or was interrupted has left the columns."""
        for column in (*self.columns.values(), self.ids):
            column.truncate(self.end)
        self.generations.truncate(self.n_generations)

    def retyped(self, schema: Schema) -> StoredRows:
        """With the types of ``schema`` for columns that were open so far (nulls, empty lists)."""
        columns = dict(self.columns)
        for field in schema:
            open_column = columns[field.name]
            if open_column.type != field.type:
                columns[field.name] = column_of(field.type)
                columns[field.name].extend(cast_exact(open_column.view(0, self.end), field.type))
        return self.changed(columns=columns, schema=schema)

    # -- thinning

    def keeping(self, kept: RowNumbers, n_prior: int) -> StoredRows:
        """Of the ``n_prior`` oldest rows only those with these numbers; younger rows stay anyway."""
        if isinstance(kept, range):
            first, last = (kept.start, kept.stop) if len(kept) else (n_prior, n_prior)
            return self._without(self.places(np.arange(last, n_prior)))._without_front(first)._compacted_if_sparse()
        gone = np.ones(n_prior, bool)
        gone[kept] = False
        return self._without(self.places(np.flatnonzero(gone)))._compacted_if_sparse()

    def dropping(self, dropped: RowNumbers) -> StoredRows:
        """Without the rows with these numbers."""
        if isinstance(dropped, range) and dropped.start == 0:
            return self._without_front(dropped.stop)._compacted_if_sparse()
        return self._without(self.places(np.asarray(dropped, np.int64)))._compacted_if_sparse()

    def dropping_places(self, places: Int64) -> StoredRows:
        """Without the rows at these places."""
        return self._without(places)._compacted_if_sparse()

    def are_alive(self, places: Int64) -> NDArray[np.bool_]:
        """Whether each of these places holds a row."""
        is_inside = places >= self.start
        return is_inside if self.live is None else is_inside & self.live.alive(places)

    def evicted_one_by_one(self, n: int, max_size: int, key: int) -> StoredRows:
        """The last ``n`` rows came in singly: each drove out a random row once the buffer was full."""
        marked = self._with_tombstones()
        n_live = len(self) - n
        assert marked.live is not None
        live, n_left = marked.live.evicted(marked.n_before, n_live, max_size, key, self.next_id - n, n)
        return marked.changed(live=live, n_dead=self.n_dead + n_live + n - n_left)._compacted_if_sparse()

    def places(self, numbers: Int64) -> Int64:
        """Where the rows with these numbers lie."""
        if self.live is None:
            return numbers + self.start
        return self.live.select(numbers + self.n_before)

    def _all_places(self) -> Int64:
        return np.arange(self.start, self.end) if self.live is None else self.live.places(self.start, self.end)

    def column(self, name: str) -> pa.Array:
        """A column of all rows, oldest first; a view where no row has left from the middle."""
        column = self.columns[name]
        if self.n_dead == 0:
            return column.view(self.start, self.end)
        return gather_fn(column.view(0, self.end))(self._all_places())

    def _without_front(self, n: int) -> StoredRows:
        if n == 0:
            return self
        start = self.end if n == len(self) else int(self.places(np.array([n]))[0])
        return self.changed(start=start, n_dead=self.n_dead - (start - self.start - n), n_before=self.n_before + n)

    def _without(self, places: Int64) -> StoredRows:
        if len(places) == 0:
            return self
        marked = self._with_tombstones()
        assert marked.live is not None
        return marked.changed(live=marked.live.without(places), n_dead=self.n_dead + len(places))

    def _with_tombstones(self) -> StoredRows:
        if self.live is not None:
            return self
        return self.changed(live=LiveSet(2 * self.end), n_before=self.start)

    # -- changing values

    def replacing(
        self, numbers: Int64, which: Int64, values: Mapping[str, pa.Array]
    ) -> tuple[StoredRows, tuple[Patch, ...]]:
        """With the values at ``which`` for the rows ``numbers``, column by column.

        Text, lists and nulls are in the rows returned. Values of one width are in the patches: once the rows are
        published, write them before anything else happens to the rows, or again if that was interrupted.
        """
        places = self.places(numbers)
        rewritten, patches = {}, []
        for name, column in self.columns.items():
            if name not in values:
                continue
            new = gather_fn(values[name])(which)
            if column.can_put(new):
                column.own()
                patches.append(column.patch(places, new))
            else:
                rewritten[name] = self._rewritten(column, places, new)
        return self if not rewritten else self.changed(columns={**self.columns, **rewritten}), tuple(patches)

    def _rewritten(self, old: GrowableColumn, places: Int64, new: pa.Array) -> GrowableColumn:
        order = np.arange(self.end)
        order[places] = self.end + np.arange(len(places))
        column = column_of(old.type)
        column.extend(gather_fn(pa.concat_arrays([old.view(0, self.end), new]))(order))
        return column

    def view(self, uuid: str, lineage: Lineage = ()) -> Snapshot:
        """What is there now, for as long as it is looked at."""
        columns = {name: column.view(0, self.end) for name, column in self.columns.items()}
        ids = self.ids.region.export().view(np.int64)
        starts = self.generations.region.export().view(np.int64)
        return Snapshot(
            self.schema,
            columns,
            ids[: self.end],
            starts[: self.n_generations],
            next_id=self.next_id,
            uuid=uuid,
            lineage=lineage,
            span=(self.start, self.end),
            live=self.live,
            n_before=self.n_before,
            n_rows=len(self),
            layout=self.ids,
        )

    # -- moving into new memory

    def _compacted_if_sparse(self) -> StoredRows:
        if not self._is_mostly_dead():
            return self
        try:
            return self._compacted()
        except MemoryError:
            return self  # no room to move: the rows are right where they are, and the next change tries again

    def _is_mostly_dead(self) -> bool:
        """By rows, or by bytes: a few rows that left may have been the large ones."""
        n_dead = self.start + self.n_dead
        if n_dead > MIN_DEAD and 5 * n_dead > 3 * len(self):
            return True
        dead, live = self._dead_and_live_bytes()
        return dead > MIN_DEAD_BYTES and 5 * dead > 3 * live

    def _dead_and_live_bytes(self) -> tuple[float, float]:
        """What lies before the window is dead; in the window, tombstones count as rows of average size."""
        before, window = self._n_bytes(0, self.start), self._n_bytes(self.start, self.end)
        dead = window * self.n_dead / max(1, self.end - self.start)
        return before + dead, window - dead

    def _n_bytes(self, start: int, stop: int) -> int:
        return sum(column.n_bytes(start, stop) for column in (*self.columns.values(), self.ids))

    def _compacted(self) -> StoredRows:
        moved = StoredRows.empty(self.schema, self.next_id)
        for name, column in self.columns.items():
            self._copy_living(column, moved.columns[name])
        self._copy_living(self.ids, moved.ids)
        moved.generations.extend(self._living_generations())
        return moved.changed(end=len(self), n_generations=moved.generations.length)

    def _copy_living(self, old: GrowableColumn, new: GrowableColumn) -> None:
        if self.n_dead == 0:
            new.extend(old.view(self.start, self.end))
            return
        new.extend_rows(old.view(0, self.end), self._all_places())

    def _living_generations(self) -> pa.Array:
        starts = self.generations.view(0, self.n_generations)
        if len(self) == 0:
            return starts[:0]
        first_id = self.ids.view(self.start, self.end)[0].as_py() if self.n_dead == 0 else self._first_id()
        return starts[max(0, int(np.searchsorted(starts.to_numpy(), first_id, side="right")) - 1) :]

    def _first_id(self) -> int:
        place = int(self.places(np.array([0]))[0])
        return int(self.ids.view(place, place + 1)[0].as_py())

    @property
    def n_bytes(self) -> int:
        """Memory in use by the rows, the dead among them included."""
        return self._n_bytes(0, self.end)


#: Branches that a lineage keeps, the newest; a state that names an older one is refused.
MAX_BRANCHES = 1_000


@dataclass(frozen=True, slots=True)  # slots: read 4 ns an attribute, without them 15, and every appended row reads six
class BufferState:
    """A buffer at one moment; ``loaded`` are the rows of a file or another process until the first change."""

    rng: np.random.Generator
    version: str
    lineage: Lineage
    is_copy: bool = False
    rows: StoredRows | None = None
    loaded: Snapshot | None = None
    kind: str | None = None
    codec: RowCodec | None = None
    guard: Guard | None = None
    row_test: RowTest | None = None
    pending: list[Any] = dataclasses.field(default_factory=list)
    patches: tuple[Patch, ...] = ()
    takes_rows: bool = False
    evicted: Mapping[str, int] = dataclasses.field(default_factory=dict)
    ranking_serial: int = 0

    def replace(self, **changes: Any) -> BufferState:
        """The same state with other values."""
        known = dict(zip(_FIELDS, _values_of(self), strict=True))
        known.update(changes)
        is_settled = known["kind"] == ROWS and known["codec"] is not None and known["codec"].is_resolved
        if any(known[name] is not getattr(self, name) for name in ("guard", "codec", "kind")):
            known["row_test"] = _row_test(known["guard"], known["codec"].schema) if is_settled else None
        known["takes_rows"] = is_settled and (known["guard"] is None or known["row_test"] is not None)
        return BufferState(**known)

    def counting(self, reason: str, n_rows: int) -> Mapping[str, int]:
        """``evicted`` with ``n_rows`` more that leave for a reason."""
        return {**self.evicted, reason: self.evicted.get(reason, 0) + n_rows} if n_rows else self.evicted

    def on_own_branch(self, n_new: int) -> BufferState:
        """The state after ``n_new`` rows: the first rows that a copy adds are not those that the original adds."""
        if not self.is_copy or n_new == 0 or self.rows is None:
            return self
        first_id = self.rows.next_id - n_new
        kept, own = tuple(branch for branch in self.lineage if branch[1] < first_id), secrets.token_hex(16)
        return self.replace(is_copy=False, version=own, lineage=(*kept[-MAX_BRANCHES:], (own, first_id)))

    @property
    def schema(self) -> Schema | None:
        """The columns and their types; None until the first append."""
        return None if self.codec is None else self.codec.schema

    @property
    def n_pending(self) -> int:
        """Rows that wait; their cells lie one behind the other."""
        return len(self.pending) // self.codec.n_columns if self.codec is not None else 0

    @property
    def n_stored(self) -> int:
        """Rows that do not wait."""
        if self.rows is not None:
            return len(self.rows)
        return 0 if self.loaded is None else len(self.loaded)

    def own_rows(self, schema: Schema) -> StoredRows:
        """The rows, to be changed; a loaded buffer moves from the mapped file into memory of its own."""
        if self.rows is not None:
            return self.rows
        return StoredRows.empty(schema) if self.loaded is None else StoredRows.of(self.loaded)


def check_counts(evicted: Any) -> dict[str, int]:
    """How many rows left for each reason, as a file has it; TypeError if it is no such thing."""
    if not isinstance(evicted, dict) or not all(type(n) is int and n > 0 for n in evicted.values()):
        raise TypeError(f"evicted: counts by reason, got {evicted!r:.100}")
    return evicted


def _row_test(guard: Guard | None, schema: Schema) -> RowTest | None:
    """The guard's test of single rows, if it has one."""
    if guard is None:
        return None
    from poolish.guards.checks.suite import Suite  # only here: a buffer without a guard loads no checks

    return guard.row_test(schema.to_arrow()) if isinstance(guard, Suite) else None


# Twice as fast as dataclasses.replace.
_FIELDS = tuple(each.name for each in dataclasses.fields(BufferState))
_values_of = operator.attrgetter(*_FIELDS)


class LiveSet:
    """The places that still hold a row: a bit each, and a Fenwick tree that counts live bits by blocks of 512.

    Finding the n-th live row and killing one take O(log n). Unwritten places are live too, so that appending only needs
    room. A set never changes: rows that leave give another set.

    >>> live = LiveSet(10).without(np.array([0, 3]))
    >>> live.select(np.array([0, 1, 2]))
    array([1, 2, 4])
    """

    def __init__(self, n_places: int) -> None:
        n_blocks = max(1, -(-n_places // BLOCK_BITS))
        self._words = np.full(n_blocks * (BLOCK_BITS // 64), ~np.uint64(0))
        self._tree = np.empty(n_blocks + 1, np.int64)
        kernels.count_blocks(self._words, self._tree)

    def reserve(self, n_places: int) -> LiveSet:
        """The set with room for ``n_places``: itself, or a larger one."""
        if n_places <= len(self._words) * 64:
            return self
        grown = LiveSet(2 * n_places)
        grown._words[: len(self._words)] = self._words
        kernels.count_blocks(grown._words, grown._tree)
        return grown

    def without(self, places: Int64) -> LiveSet:
        """The set in which the rows at ``places`` are dead."""
        changed = self._copy()
        kernels.kill(changed._words, changed._tree, places)
        return changed

    def evicted(
        self, n_before: int, n_live: int, max_live: int, key: int, first_id: int, n: int
    ) -> tuple[LiveSet, int]:
        """The set after ``n`` rows came in singly, each driving out a random row where more than ``max_live`` would
        live; and how many live in it.
        """
        changed = self._copy()
        n_left = kernels.evict(changed._words, changed._tree, n_before, n_live, max_live, key, first_id, n)
        return changed, int(n_left)

    def _copy(self) -> LiveSet:
        copy = LiveSet.__new__(LiveSet)
        copy._words, copy._tree = self._words.copy(), self._tree.copy()
        return copy

    def select(self, ranks: Int64) -> Int64:
        """Places of the live rows number ``ranks``, counted from 0."""
        places = np.empty(len(ranks), np.int64)
        kernels.select(self._words, self._tree, np.ascontiguousarray(ranks, np.int64), places)
        return places

    def place(self, rank: int) -> int:
        """Place of one live row."""
        return int(kernels.select_one(self._words, self._tree, rank))

    def alive(self, places: Int64) -> NDArray[np.bool_]:
        """Whether each of these places holds a row."""
        bits = self._words[places >> 6] >> (places & 63).astype(np.uint64)
        return np.asarray(bits & np.uint64(1), np.bool_)

    def killed_since(self, earlier: LiveSet | None, stop: int) -> Int64:
        """Places below ``stop`` that were live in an earlier set of the same places (None: all were), and are dead."""
        words = self._words[: -(-stop // 64)]
        before = np.full(len(words), ~np.uint64(0)) if earlier is None else earlier._words[: len(words)]
        changed = np.flatnonzero(words != before)
        bits = np.unpackbits((before[changed] & ~words[changed]).view(np.uint8), bitorder="little").reshape(-1, 64)
        word, bit = np.nonzero(bits)
        places = changed[word] * 64 + bit
        return places[places < stop]

    def places(self, start: int, stop: int) -> Int64:
        """All live places from ``start`` up to ``stop``."""
        first = start // 64
        bits = np.unpackbits(self._words[first : -(-stop // 64)].view(np.uint8), bitorder="little")
        live = np.flatnonzero(bits[: stop - first * 64]) + first * 64
        return live[np.searchsorted(live, start) :]
