"""DatasetBuffer: rows that are appended, kept and dropped while you train.

    append(sample)  --checked and copied-->  pending  --1,024 rows, or a read-->  stored  <--views--  snapshot
    append(many)    --checked as a whole (Draft)------------------------------->  stored

Deciding happens in ``retention``, checking in ``draft`` and ``codec``, keeping in ``stored``, reading in
``snapshot``; this module joins them under one lock. A change makes the next ``BufferState`` from the present one and
publishes it by one assignment, so an error or a Ctrl-C anywhere leaves the whole change or none of it. User code
(normalizers, generators) runs before the lock is taken.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from poolish import seeds
from poolish.concurrency import ForkGuard
from poolish.errors import ConfigError
from poolish.health import Health
from poolish.rows import normalizers
from poolish.rows.codec import Draft, RowCodec, joined, kept_types, runs_of
from poolish.rows.retention import RETENTION, Ranking, Retention, check_bound, drop_policy, n_kept
from poolish.rows.row_state import (
    RowPriorities,
    RowValues,
    SavedPriorities,
    SavedRowState,
    restored_states,
    saved_states,
)
from poolish.rows.sampling import SampledRows
from poolish.rows.snapshot import Snapshot, check_mask, checked_ids
from poolish.rows.storage import BufferState, StoredRows, check_counts
from poolish.rows.validate import Limits
from poolish.rows.values import copy_mutable
from poolish.schema import Schema
from poolish.schema.types import unsliced

if TYPE_CHECKING:
    from poolish.guards.checks.guard import Guard, Rejected

#: Rows appended one by one wait until there are this many, or until they are read.
PENDING_ROWS = 1024


class DatasetBuffer(SampledRows):
    """A mutable, schema-safe dataset in memory, bounded by fractions and sizes you choose, readable at any time.

    ``append`` is all or nothing: a bad sample anywhere leaves the buffer as it was. Rows keep their order, oldest
    first. Threads may append and read at the same time; a reader sees whole appends.

    >>> buffer = DatasetBuffer(max_size=100, drop_strategy="oldest")
    >>> buffer.append([{"label": 0, "meta": "first"}, {"label": 1, "meta": "second"}])
    >>> buffer.append({"label": 1, "meta": "third"}, retain_prior=0.5, retain_prior_by="latest")
    >>> buffer.to_pydict()
    {'label': [1, 1], 'meta': ['second', 'third']}
    """

    def __init__(
        self,
        max_size: int | None = None,
        drop_strategy: str = "oldest",
        *,
        seed: int = 0,
        schema: Any = None,
        limits: Limits | None = None,
        guard: Guard | None = None,
        max_times_sampled: int | None = None,
    ) -> None:
        """``schema`` declares columns before the first append; anything that describes one is taken (``Schema.of``).

        A row leaves when ``sample`` has returned it ``max_times_sampled`` times; snapshots and loaders do not count.

        ``guard`` is asked about every append: a ``Suite``, or anything that answers as one. It is a setting of this
        object, not of its rows: ``save``, ``map`` and ``filter`` do not take it along.
        """
        if limits is not None and not isinstance(limits, Limits):
            raise ConfigError(f"limits is a poolish.rows.Limits, got {limits!r}; pass Limits(cell_bytes=...)")
        self._drop_policy = drop_policy(drop_strategy)
        self._ranking = Ranking(self._drop_policy)
        self._max_size = check_bound("max_size", max_size)
        self._max_times_sampled = check_bound("max_times_sampled", max_times_sampled)
        self._seed = seeds.check_seed(seed)
        self.limits = limits or Limits()
        self.uuid = uuid.uuid4().hex
        self._sample_rng = seeds.generator(seed, "rows", "sample")
        self._evict_key = seeds.key(seed, "rows", "evict")
        self._lock = threading.RLock()
        self._may_be_missing: frozenset[str] = frozenset()
        self._rejected: Rejected | None = None
        self._state = BufferState(seeds.generator(seed, "rows", "retain"), self.uuid, ((self.uuid, 0),))
        self._shown: tuple[BufferState, Snapshot] | None = None
        self._row_states: dict[str, RowValues] = {}
        self._priorities: dict[str, RowPriorities] = {}
        if guard is not None:
            self.guard = guard
        if schema is not None:
            declared = Schema.of(schema)
            self._declare(declared, may_be_missing=frozenset(field.name for field in declared if field.nullable))
        self._fork_guard = ForkGuard(self, self._lock, DatasetBuffer._become_copy)

    def _declare(self, schema: Schema, may_be_missing: frozenset[str]) -> None:
        self._may_be_missing = may_be_missing
        self._state = self._state.replace(codec=self._codec(schema), rows=StoredRows.empty(schema))

    def _codec(self, schema: Schema) -> RowCodec:
        if self._drop_policy.column is None:
            return RowCodec(schema, self.limits, self._may_be_missing)
        self._drop_policy.check_schema(schema)
        return RowCodec(schema, self.limits, self._may_be_missing, ranked_by=self._drop_policy)

    # -- adding

    def append(
        self,
        samples: Any,
        retain_prior: float = 1.0,
        retain_prior_by: str = "latest",
        guard: Guard | None = None,  # not keyword-only: looking up such a default costs 50 ns a row
    ) -> None:
        """Add one sample or many: first the prior rows are thinned, then the new ones come, then ``max_size`` holds.

        ``retain_prior`` is the fraction of the rows already there that stays, picked by ``retain_prior_by``:
        ``latest``, ``oldest``, ``random`` or ``top:COLUMN``; a negative number clears them all.

        ``guard``, or else the buffer's own, is asked first. What it refuses is a ``DataRefused`` and changes nothing;
        rows that it drops are counted and kept in ``rejected``, and if it drops them all, nothing changes either.
        """
        keeps_all = (
            type(retain_prior) is float
            and retain_prior == 1.0
            and type(retain_prior_by) is str
            and retain_prior_by in RETENTION
        )
        # A list of one row is that row: read as a list it takes 49 us instead of 0.6 (hot_paths.py append).
        row = samples[0] if type(samples) is list and len(samples) == 1 else samples
        is_plain = keeps_all and type(row) is dict and guard is None and not normalizers.sees_dicts
        if is_plain and self._state.takes_rows and self._append_row(row):
            return
        retention = None if keeps_all else Retention.of(retain_prior, retain_prior_by)
        self._append_draft(self._draft().read(samples), retention, guard)

    def _draft(self) -> Draft:
        state = self._state
        return Draft(state.schema, state.kind, self.limits, self._may_be_missing, state.codec)

    def _append_draft(self, draft: Draft, retention: Retention | None, guard: Guard | None) -> None:
        if guard is not None or self._state.guard is not None:
            self._append_guarded(draft, retention, guard)
            return
        with self._lock:
            self._publish(self._committed(draft, retention))

    def _append_guarded(self, draft: Draft, retention: Retention | None, guard: Guard | None) -> None:
        from poolish.guards.checks.guard import check_guard

        asked = check_guard(guard, "append") or self._state.guard
        assert asked is not None
        rejected_rows = draft.apply_guard(asked, self)
        if rejected_rows is None:
            with self._lock:
                self._publish(self._committed(draft, retention))
            return
        rejected = self.rejected
        with self._lock, rejected.lock:
            tally = rejected.tally.plus(*rejected_rows)
            state = self._committed(draft, retention) if draft.n_rows else self._state
            # In one statement, between whose two assignments Python handles no signal.
            self._state, rejected.tally, self._shown = state, tally, None

    def append_columns(
        self,
        columns: Mapping[str, Any],
        retain_prior: float = 1.0,
        retain_prior_by: str = "latest",
        *,
        guard: Guard | None = None,
    ) -> None:
        """Add many rows given as columns: arrays with one row per entry of the first dimension, or lists of values.

        >>> buffer = DatasetBuffer()
        >>> buffer.append_columns({"observation": np.zeros((3, 4), np.float32), "reward": [0.0, 1.0, 0.0]})
        >>> len(buffer), buffer[1]["observation"].shape
        (3, (4,))
        """
        from poolish.rows.cast import batch_from

        self.append(batch_from(columns, self.schema, self.limits), retain_prior, retain_prior_by, guard=guard)

    def append_where(
        self,
        table: Any,
        mask: ArrayLike,
        retain_prior: float = 1.0,
        retain_prior_by: str = "latest",
        *,
        guard: Guard | None = None,
    ) -> None:
        """Add the rows of a table for which ``mask`` is true: ``append(table.filter(mask))`` without a copy in between.

        >>> buffer = DatasetBuffer()
        >>> guesses = pa.table({"label": [3, 1, 2], "confidence": [0.9, 0.4, 0.8]})
        >>> buffer.append_where(guesses, guesses["confidence"].to_numpy() > 0.5)
        >>> buffer.to_pydict()["label"]
        [3, 2]
        """
        retention = Retention.of(retain_prior, retain_prior_by)
        batches = normalizers.batches_of(table)
        if batches is None:
            raise TypeError(f"append_where takes a table, got {type(table).__name__}; append takes samples of any kind")
        self._append_draft(self._draft_where(list(batches), check_mask(mask)), retention, guard)

    def _draft_where(self, batches: list[pa.RecordBatch], mask: NDArray[np.bool_]) -> Draft:
        n_rows = sum(batch.num_rows for batch in batches)
        if mask.shape != (n_rows,):
            raise IndexError(f"a mask has one value per row ({n_rows}), got shape {mask.shape}")
        draft = self._draft()
        try:
            draft.read(batches)
        except Exception:  # maybe for a row that the mask leaves out: without those it shows
            return self._draft().read(runs_of(batches, mask))
        draft.keep(mask)
        return draft

    def _append_row(self, row: dict[str, Any]) -> bool:
        """The short way of one row into a buffer whose schema is settled: checked now, stored with others later.

        False, and nothing has changed, if the buffer's guard does not surely let it pass.

        Cells of waiting rows lie one behind the other in a flat list: a list per row would cost the garbage collector.
        """
        with self._lock:
            state = self._state
            codec = state.codec
            assert codec is not None
            frozen = codec.validate_and_copy(row)
            if state.guard is not None and not (state.row_test is not None and state.row_test(frozen)):
                return False
            if len(state.pending) >= PENDING_ROWS * codec.n_columns:
                state = self._flushed()
                self._publish(state)  # first: if it fails, this row has not come yet
            state.pending.extend(frozen)
            return True

    def _publish(self, state: BufferState) -> None:
        """The moment of a change. What was shown is forgotten only to free its memory: it belongs to its state."""
        self._state, self._shown = state, None

    def _committed(self, draft: Draft, retention: Retention | None) -> BufferState:
        """The state with the new rows, then the thinning of the prior ones (None: all stay), then the size."""
        state = self._flushed()
        if draft.schema is not None:
            state = self._extended(state, draft, draft.schema)
        if retention is not None:
            state = _thinned(state, draft.n_rows, retention)
        return self._sized(state)

    def _extended(self, state: BufferState, draft: Draft, drafted: Schema) -> BufferState:
        draft.check_kind(state.kind)
        schema = joined(state.schema, drafted)
        chunks = draft.arrays(schema, self.limits)
        codec = state.codec if state.codec is not None and schema == state.codec.schema else self._codec(schema)
        if self._drop_policy.column is not None:
            self._drop_policy.check_ranks(schema, chunks, draft.chosen)
        rows = state.own_rows(schema).retyped(schema).extended(chunks, draft.chosen)
        return state.replace(rows=rows, loaded=None, kind=draft.kind, codec=codec).on_own_branch(draft.n_rows)

    def _flushed(self) -> BufferState:
        """The state with nothing left to do: values written, pending rows stored as if each had been when it came."""
        state = self._state
        if state.patches:
            for patch in state.patches:
                patch.write()
            state = self._state = state.replace(patches=())
        if not state.pending:
            return state
        assert state.codec is not None
        n = state.n_pending
        rows = state.own_rows(state.codec.schema).extended([state.codec.build(state.pending)], one_by_one=True)
        n_before = len(rows)
        if self._max_size is not None and self._drop_policy.is_random:
            rows = rows.evicted_one_by_one(n, self._max_size, self._evict_key)
        evicted = state.counting("max_size", n_before - len(rows))
        return self._sized(state.replace(rows=rows, loaded=None, pending=[], evicted=evicted).on_own_branch(n))

    @property
    def guard(self) -> Guard | None:
        """What is asked about every append; None for nothing."""
        return self._state.guard

    @guard.setter
    def guard(self, guard: Guard | None) -> None:
        from poolish.guards.checks.guard import check_guard

        with self._lock:
            self._state = self._state.replace(guard=check_guard(guard, "DatasetBuffer"))

    @property
    def rejected(self) -> Rejected:
        """The rows that guards kept out of this buffer, counted, the newest of them with their reasons."""
        with self._lock:
            if self._rejected is None:
                from poolish.guards.checks.guard import Rejected

                self._rejected = Rejected()
            return self._rejected

    def health(self) -> Health:
        """What guards kept out, since when, and how full the buffer is."""
        known = self._rejected
        figures = {"rows": len(self), "max_size": self._max_size}
        return Health((), figures) if known is None else known.health().plus(**figures)

    # -- thinning

    def retain(self, fraction: float, *, by: str = "latest") -> None:
        """Keep ``fraction`` of the rows, those that the policy ``by`` picks."""
        retention = Retention.of(fraction, by, "by")
        with self._lock:
            self._publish(_thinned(self._flushed(), 0, retention))

    def clear(self) -> None:
        """Drop all rows; schema, ids and settings stay."""
        self.retain(-1)

    def _sized(self, state: BufferState) -> BufferState:
        """The state with no more rows than ``max_size``."""
        n_rows = state.n_stored
        if state.rows is None or self._max_size is None or n_rows <= self._max_size:
            return state
        n_dropped = n_rows - self._max_size
        evicted = state.counting("max_size", n_dropped)
        if self._drop_policy.column is not None and n_dropped <= n_rows // 8:
            places = self._ranking.lowest(state.rows, n_dropped, state.ranking_serial)
            rows, serial = state.rows.dropping_places(places), self._ranking.serial
            return state.replace(rows=rows, ranking_serial=serial, evicted=evicted)
        rng = self._drop_policy.drawing(state.rng)
        dropped = self._drop_policy.pick(n_rows, n_dropped, rng, state.rows.column)
        return state.replace(rows=state.rows.dropping(dropped), rng=rng, evicted=evicted)

    def delete(self, ids: ArrayLike) -> NDArray[np.int64]:
        """Drop the rows with these ids; which of the ids were gone already.

        A loader that follows the buffer leaves them out from its next block on; one that does not delivers the rows of
        the moment at which its epoch began. Snapshots keep what they show.

        >>> buffer = DatasetBuffer(max_size=3)
        >>> buffer.append([{"x": i} for i in range(5)])
        >>> buffer.delete([0, 3]), buffer.to_pydict(), buffer.evicted
        (array([0]), {'x': [2, 4]}, {'max_size': 2, 'deleted': 1})
        """
        with self._lock:
            rows = self.snapshot()
            return self._drop_ids(rows, checked_ids(ids, rows.next_id), "deleted")

    def _drop_ids(self, rows: Snapshot, ids: NDArray[np.int64], reason: str) -> NDArray[np.int64]:
        places, found = rows.places_of(ids)
        dropped = np.unique(places)
        if len(dropped):
            state = self._state
            stored = state.own_rows(rows.schema).dropping_places(dropped)  # a loaded row has its number for a place
            evicted = state.counting(reason, len(dropped))
            self._publish(state.replace(rows=stored, loaded=None, evicted=evicted))
        return ids[~found]

    @property
    def evicted(self) -> dict[str, int]:
        """How many rows have left, by reason: ``max_size``, ``retention``, ``max_times_sampled``, ``deleted``.

        The counts are saved and pickled with the rows.
        """
        with self._lock:
            self._state = self._flushed()
            return dict(self._state.evicted)

    # -- changing

    def update(self, ids: ArrayLike, columns: Mapping[str, Any]) -> NDArray[np.int64]:
        """Change values of the rows with these ids, for snapshots taken from now on; which of the ids are gone.

        Numbers and tensors of one shape are written in place (or into a copy, while a snapshot still shows the old
        ones); for text, lists and nulls the column is written anew. Where an id stands twice, its last value counts.

        >>> buffer = DatasetBuffer()
        >>> buffer.append([{"text": "rye", "priority": 1.0}, {"text": "wheat", "priority": 1.0}])
        >>> buffer.update([1], {"priority": [0.25]})
        array([], dtype=int64)
        >>> buffer[1]
        {'text': 'wheat', 'priority': 0.25}
        """
        from poolish.rows.cast import cast_columns, check_columns

        check_columns(columns)
        with self._lock:
            snapshot = self.snapshot()
            asked = checked_ids(ids, snapshot.next_id)
            values = cast_columns(columns, len(asked), snapshot.schema, self.limits)
            if self._drop_policy.column in values:
                self._drop_policy.ranks(values[self._drop_policy.column])
            numbers, found = snapshot.numbers_of(asked)
            schema = snapshot.schema
            if len(numbers):
                del snapshot  # it would count as a view that shows the old values
                self._replace(numbers, np.flatnonzero(found), values, schema)
            return asked[~found]

    def _replace(
        self, numbers: NDArray[np.int64], which: NDArray[np.int64], values: Mapping[str, pa.Array], schema: Schema
    ) -> None:
        state, self._shown = self._state, None  # which shows the old values too
        rows, patches = state.own_rows(schema).replacing(numbers, which, values)
        is_ranked, serial = self._drop_policy.column in values, state.ranking_serial
        changed = state.replace(rows=rows, loaded=None, patches=patches, version=uuid.uuid4().hex)
        # Until the heap of the policy knows the new values, no heap fits the state.
        self._publish(changed.replace(ranking_serial=-1) if is_ranked else changed)
        state = self._flushed()  # or by the next reader, if this is interrupted
        if is_ranked and state.rows is not None:
            self._ranking.push(state.rows, state.rows.places(numbers))
            self._state = state.replace(ranking_serial=serial)

    @property
    def version(self) -> str:
        """Another text after each ``update`` that changed a row, so that caches know; ids tell all other rows apart."""
        return self._state.version

    def map(self, function: Callable[[dict[str, Any]], Any]) -> DatasetBuffer:
        """A new buffer with ``function(row)`` for every row; a name that stays keeps its type where the values fit.

        The settings stay too: with ``drop_strategy="lowest:COLUMN"``, the new rows need that column.
        """
        rows = self.snapshot()
        mapped = [copy_mutable(result) for result in self._calls(function, rows)]
        return self._derived(mapped, kept_types(rows.schema, mapped, self.limits))

    def filter(self, keep: Any) -> DatasetBuffer:
        """A new buffer with the rows for which ``keep(row)`` is true; a mask or an Arrow expression works too."""
        rows = self.snapshot()
        if len(rows.schema) == 0:
            return self._derived([])
        if isinstance(keep, pc.Expression):
            chosen = unsliced(rows.to_arrow()).filter(keep)
        else:
            mask = np.fromiter(map(bool, self._calls(keep, rows)), bool, len(rows)) if callable(keep) else keep
            chosen = rows[check_mask(mask)]
        kept = self._derived(chosen)
        kept._state = kept._state.replace(kind=self._state.kind)
        return kept

    def _calls(self, function: Callable[[dict[str, Any]], Any], rows: Snapshot) -> Iterator[Any]:
        for i in range(len(rows)):
            row = rows[i]
            try:
                yield function(row)
            except Exception as error:
                error.add_note(
                    f"while calling {getattr(function, '__name__', function)!s} on row {i}; no buffer was changed"
                )
                raise

    def _derived(self, samples: Any, schema: Schema | None = None) -> DatasetBuffer:
        limit = self._max_times_sampled
        buffer = DatasetBuffer(
            self._max_size, self.drop_strategy, seed=self._seed, limits=self.limits, max_times_sampled=limit
        )
        if schema is not None:
            buffer._declare(schema, may_be_missing=frozenset())
        buffer.append(samples)
        return buffer

    # -- reading: see ``reading``

    def snapshot(self) -> Snapshot:
        """The rows as they are now: immutable, made in O(1), unaffected by whatever happens to the buffer."""
        state, shown = self._state, self._shown
        if shown is not None and shown[0] is state and not state.pending:
            shown[1].check_file()
            return shown[1]
        with self._lock:
            return self._stored(self._flushed())

    def __getitem__(self, index: Any) -> Any:
        """Rows or columns, by the kind of ``index``.

        a number                            one row as a dict
        a slice, array of numbers, mask     rows as a ``pa.Table``
        a name                              a column as a ``pa.ChunkedArray``: that of ``to_arrow()``
        a list of names                     columns as a ``pa.Table``

        >>> buffer = DatasetBuffer()
        >>> buffer.append([{"flour": "rye", "stars": 4}, {"flour": "wheat", "stars": 5}])
        >>> buffer[0], buffer["stars"].to_pylist(), buffer[["flour"]].num_rows
        ({'flour': 'rye', 'stars': 4}, [4, 5], 2)
        """
        state, shown = self._state, self._shown  # the call of ``snapshot`` would cost a tenth of the row
        if shown is not None and shown[0] is state and not state.pending:
            return shown[1][index]
        row = self._row_beside_pending(index) if type(index) is int and state.pending else None
        return self.snapshot()[index] if row is None else row

    def _row_beside_pending(self, index: int) -> dict[str, Any] | None:
        """One row while others wait to be stored; None where storing them decides which row it is.

        Storing a row and showing the next snapshot costs 50 us, reading a row that waits 1 us.
        """
        with self._lock:
            state = self._state
            if state.patches or state.codec is None:
                return None
            n_stored, n_rows = state.n_stored, state.n_stored + state.n_pending
            n_gone = 0 if self._max_size is None else max(0, n_rows - self._max_size)
            row = index + (n_gone if index >= 0 else n_rows)
            if not n_gone <= row < n_rows or (n_gone and not self._drop_policy.is_by_age):
                return None
            if row < n_stored:
                return self._stored(state)[row]  # type: ignore[no-any-return]
            return state.codec.decode(state.pending, row - n_stored)

    def _stored(self, state: BufferState) -> Snapshot:
        """The rows of the present state that do not wait; a snapshot of all rows if nothing does."""
        shown = self._shown
        if shown is not None and shown[0] is state:
            shown[1].check_file()
            return shown[1]
        snapshot = self._view(state)
        snapshot.check_file()
        snapshot.version, snapshot.rng = state.version, self._sample_rng
        self._state, self._shown = state, (state, snapshot)
        return snapshot

    def _view(self, state: BufferState) -> Snapshot:
        if state.rows is not None:
            return state.rows.view(self.uuid, state.lineage)
        if state.loaded is not None:
            return state.loaded
        empty = np.empty(0, np.int64)
        return Snapshot(Schema([]), {}, empty, empty, next_id=0, uuid=self.uuid, lineage=state.lineage)

    def __len__(self) -> int:
        state = self._state
        n_rows = state.n_pending + state.n_stored
        return n_rows if self._max_size is None else min(n_rows, self._max_size)

    @property
    def schema(self) -> Schema | None:
        """The columns and their types; None until the first append."""
        return self._state.schema

    @property
    def next_id(self) -> int:
        """The id that the next row will get."""
        return self.snapshot().next_id

    @property
    def is_full(self) -> bool:
        """Whether the next append will drive rows out."""
        return self._max_size is not None and len(self) >= self._max_size

    @property
    def max_size(self) -> int | None:
        """How many rows there may be; None for no bound."""
        return self._max_size

    @property
    def max_times_sampled(self) -> int | None:
        """How often ``sample`` may return a row before it leaves; None for any number of times."""
        return self._max_times_sampled

    @property
    def drop_strategy(self) -> str:
        """Which rows go when there are more than ``max_size``: ``oldest``, ``random`` or ``lowest:COLUMN``."""
        return self._drop_policy.name

    @property
    def nbytes(self) -> int:
        """Memory in use by the rows, those that have left but not yet made room included."""
        with self._lock:
            state = self._state = self._flushed()
            loaded = 0 if state.loaded is None else state.loaded.to_arrow().nbytes
            return loaded if state.rows is None else state.rows.n_bytes

    # -- keeping

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything into one file: whole or not at all, checksummed, and there after a power cut.

        The file at ``path`` is replaced, not written over: a buffer that was loaded from it keeps its rows, so a buffer
        may be saved to where it came from.
        """
        from poolish.rows import saved

        with self._lock:
            snapshot, settings = self.snapshot(), self._settings()
            row_states = saved_states(self._row_states, snapshot)
            priorities = self._saved_priorities(snapshot)
        saved.write(path, snapshot, settings, row_states, priorities)

    def _saved_priorities(self, snapshot: Snapshot) -> list[SavedPriorities]:
        return [priorities.saved(name, snapshot) for name, priorities in self._priorities.items()]

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, limits: Limits | None = None, mmap: bool = True) -> DatasetBuffer:
        """The buffer that ``save`` wrote: rows, ids, generations, settings and random state. Any damage is an error.

        The file is mapped: never write to it in place or truncate it (``cp``, ``rsync --inplace``) while the buffer or
        a snapshot of it is in use. That changes rows, or ends the process (SIGBUS); where poolish notices first, it is
        a ``CorruptDataError``. Replace it instead (``save``, ``mv``), or pass ``mmap=False`` to read it into memory.
        """
        from poolish.rows import saved

        def restore(
            snapshot: Snapshot,
            settings: dict[str, Any],
            states: Sequence[SavedRowState],
            priorities: Sequence[SavedPriorities],
        ) -> DatasetBuffer:
            return cls._restored(snapshot, settings, states, limits, priorities)

        return saved.read(path, restore, mmap=mmap)

    def _settings(self) -> dict[str, Any]:
        return {
            "max_size": self._max_size,
            "drop_strategy": self.drop_strategy,
            "seed": self._seed,
            "kind": self._state.kind,
            "may_be_missing": sorted(self._may_be_missing),
            "rng": self._state.rng.bit_generator.state,
            "sample_rng": self._sample_rng.bit_generator.state,
            "max_times_sampled": self._max_times_sampled,
            "evicted": self._state.evicted,
        }

    @classmethod
    def _restored(
        cls,
        snapshot: Snapshot,
        settings: dict[str, Any],
        row_states: Sequence[SavedRowState],
        limits: Limits | None,
        priorities: Sequence[SavedPriorities] = (),
    ) -> DatasetBuffer:
        buffer = cls(settings["max_size"], settings["drop_strategy"], seed=settings["seed"], limits=limits)
        # Version 0.1.0 knew neither of these two.
        buffer._max_times_sampled = check_bound("max_times_sampled", settings.get("max_times_sampled"))
        buffer._state = buffer._state.replace(evicted=check_counts(settings.get("evicted", {})))
        buffer.uuid = snapshot.uuid
        buffer._may_be_missing = frozenset(settings["may_be_missing"])
        buffer._state.rng.bit_generator.state = settings["rng"]
        buffer._sample_rng.bit_generator.state = settings["sample_rng"]
        buffer._state = buffer._state.replace(lineage=snapshot.lineage, is_copy=True)
        if len(snapshot.schema):
            codec = buffer._codec(snapshot.schema)
            buffer._state = buffer._state.replace(loaded=snapshot, kind=settings["kind"], codec=codec)
        buffer._row_states = restored_states(row_states, snapshot)
        buffer._priorities = {each.name: RowPriorities(each.alpha, snapshot, each) for each in priorities}
        return buffer

    def _become_copy(self) -> None:
        self._state = self._state.replace(is_copy=True)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        with self._lock:
            snapshot = self.snapshot()
            row_states = saved_states(self._row_states, snapshot)
            priorities = self._saved_priorities(snapshot)
            return DatasetBuffer._restored, (snapshot, self._settings(), row_states, self.limits, priorities)

    def _settings_text(self) -> str:
        return "" if self._max_size is None else f"max_size={self._max_size}, drop_strategy={self.drop_strategy!r}"


def _thinned(state: BufferState, n_new: int, retention: Retention) -> BufferState:
    """The state with a fraction of the rows before the ``n_new`` newest."""
    retention.policy.check_schema(state.schema)
    n_prior = state.n_stored - n_new
    n_left = n_kept(n_prior, retention.fraction)
    if n_left >= n_prior:
        return state
    assert state.schema is not None
    rows, rng = state.own_rows(state.schema), retention.policy.drawing(state.rng)
    kept = retention.policy.pick(n_prior, n_left, rng, rows.column)
    evicted = state.counting("retention", n_prior - n_left)
    return state.replace(rows=rows.keeping(kept, n_prior), loaded=None, rng=rng, evicted=evicted)
