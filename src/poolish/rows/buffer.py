"""DatasetBuffer: rows that are appended, kept and dropped while you train.

    append(sample)  --checked and copied-->  pending  --1,024 rows, or a read-->  stored  <--views--  snapshot
    append(many)    --checked as a whole (Draft)------------------------------->  stored

Deciding happens in ``retention``, checking in ``draft`` and ``codec``, keeping in ``stored``, reading in
``snapshot``; this module joins them under one lock. User code (normalizers, generators) runs before the lock is
taken.
"""

from __future__ import annotations

import copy
import operator
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from poolish import seeds
from poolish.errors import ConfigError
from poolish.rows import arrays, forks, normalizers, retention, show
from poolish.rows.codec import RowCodec, kept_types
from poolish.rows.draft import Draft, joined, runs_of
from poolish.rows.limits import Limits
from poolish.rows.normalizers import ROWS
from poolish.rows.reading import ReadsSnapshots
from poolish.rows.snapshot import Snapshot, check_mask, checked_ids
from poolish.rows.stored import StoredRows
from poolish.schema import Schema
from poolish.schema.arrow import unsliced

if TYPE_CHECKING:
    from poolish.guards.guard import Guard
    from poolish.guards.rejected import Rejected

#: What an append may change besides the rows themselves.
_CHANGING = ("_stored", "_loaded", "_kind", "_codec", "_takes_rows", "_pending", "_rng", "_version")

#: Rows appended one by one wait until there are this many, or until somebody reads.
PENDING_ROWS = 1024


class DatasetBuffer(ReadsSnapshots):
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
    ) -> None:
        """``schema`` declares columns before the first append; anything that describes one is taken (``Schema.of``).

        ``guard`` is asked about every append: a ``Suite``, or anything that answers as one. It is a setting of this
        object, not of its rows: ``save``, ``map`` and ``filter`` do not take it along.
        """
        if limits is not None and not isinstance(limits, Limits):
            raise ConfigError(f"limits is a poolish.rows.Limits, got {limits!r}; pass Limits(cell_bytes=...)")
        retention.named(retention.DROP, drop_strategy, "drop_strategy")
        self._max_size = None if max_size is None else _n_rows(max_size)
        self._drop_strategy = drop_strategy
        self._seed = seeds.check_seed(seed)
        self.limits = limits or Limits()
        self.uuid = self._version = uuid.uuid4().hex
        self._kind: str | None = None
        self._rng = seeds.generator(seed, "rows", "retain")
        self._sample_rng = seeds.generator(seed, "rows", "sample")
        self._evict_key = seeds.key(seed, "rows", "evict")
        self._lock = threading.RLock()
        self._pending: list[Any] = []
        self._takes_rows = False
        self._stored: StoredRows | None = None
        self._loaded: Snapshot | None = None
        self._codec: RowCodec | None = None
        self._may_be_missing: frozenset[str] = frozenset()
        self._current: Snapshot | None = None
        self._guard: Guard | None = None
        self._rejected: Rejected | None = None
        if guard is not None:
            self.guard = guard
        if schema is not None:
            declared = Schema.of(schema)
            self._declare(declared, may_be_missing=frozenset(field.name for field in declared if field.nullable))
        forks.protect(self)

    def _declare(self, schema: Schema, may_be_missing: frozenset[str]) -> None:
        self._may_be_missing = may_be_missing
        self._codec = RowCodec(schema, self.limits, self._may_be_missing)
        self._stored = StoredRows(schema)

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
        ``latest``, ``oldest`` or ``random``; a negative number clears them all.

        ``guard``, or else the buffer's own, is asked first. What it refuses is a ``DataRefused`` and changes nothing;
        rows that it drops are counted and kept in ``rejected``, and if it drops them all, nothing changes either.
        """
        if (
            type(samples) is dict
            and self._takes_rows
            and type(retain_prior) is float
            and retain_prior == 1.0
            and type(retain_prior_by) is str
            and retain_prior_by in retention.RETENTION
            and not normalizers.sees_dicts
            and guard is None
        ):
            self._append_row(samples)
            return
        retention.n_kept(0, retain_prior)
        retention.named(retention.RETENTION, retain_prior_by, "retain_prior_by")
        draft = Draft(self.schema, self._kind, self.limits, self._may_be_missing).read(samples)
        if guard is not None or self._guard is not None:
            self._append_guarded(draft, retain_prior, retain_prior_by, guard)
            return
        with self._lock:
            self._commit(draft, retain_prior, retain_prior_by)

    def _append_guarded(self, draft: Draft, retain_prior: float, retain_prior_by: str, guard: Guard | None) -> None:
        from poolish.guards.guard import check_guard
        from poolish.rows.guarding import admit

        asked = check_guard(guard, "append") or self._guard
        assert asked is not None
        turned = admit(draft, asked, self)
        if turned is None or draft.n_rows:
            with self._lock:
                self._commit(draft, retain_prior, retain_prior_by)
        if turned is not None:
            self.rejected.add(*turned)

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
        from poolish.rows.column_input import batch_from

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
        retention.n_kept(0, retain_prior)
        retention.named(retention.RETENTION, retain_prior_by, "retain_prior_by")
        batches = normalizers.batches_of(table)
        if batches is None:
            raise TypeError(f"append_where takes a table, got {type(table).__name__}; append takes samples of any kind")
        draft = self._draft_where(list(batches), check_mask(mask))
        if guard is not None or self._guard is not None:
            self._append_guarded(draft, retain_prior, retain_prior_by, guard)
            return
        with self._lock:
            self._commit(draft, retain_prior, retain_prior_by)

    def _draft_where(self, batches: list[pa.RecordBatch], mask: NDArray[np.bool_]) -> Draft:
        n_rows = sum(batch.num_rows for batch in batches)
        if mask.shape != (n_rows,):
            raise IndexError(f"a mask has one value per row ({n_rows}), got shape {mask.shape}")
        draft = Draft(self.schema, self._kind, self.limits, self._may_be_missing)
        try:
            draft.read(batches)
        except Exception:  # maybe for a row that is not meant: without those it shows
            return Draft(self.schema, self._kind, self.limits, self._may_be_missing).read(runs_of(batches, mask))
        draft.keep(mask)
        return draft

    def _append_row(self, row: dict[str, Any]) -> None:
        """The short way of one row into a buffer whose schema is settled: checked now, stored with others later.

        Cells of waiting rows lie one behind the other in a flat list: a list per row would cost the garbage collector.
        """
        with self._lock:
            codec = self._codec
            assert codec is not None
            frozen = codec.freeze(row)
            if len(self._pending) >= PENDING_ROWS * codec.n_columns:
                self._flush()  # first: if it fails, this row has not come yet
            self._current = None
            self._pending.extend(frozen)

    def _commit(self, draft: Draft, retain_prior: float, retain_prior_by: str) -> None:
        """The new rows, then the thinning of the prior ones, then the size; if any of it fails, none of it happened."""
        self._flush()
        with self._all_or_nothing():
            if draft.schema is not None:
                self._extend(draft, draft.schema)
            self._thin(draft.n_rows, retain_prior, retain_prior_by)
            self._enforce_size()

    def _extend(self, draft: Draft, drafted: Schema) -> None:
        draft.check_kind(self._kind)
        schema = joined(self.schema, drafted)
        chunks = draft.arrays(schema, self.limits)
        rows = self._rows(schema)
        rows.retype(schema)
        rows.extend(chunks, draft.chosen)
        self._settle(draft.kind, schema)

    def _settle(self, kind: str | None, schema: Schema) -> None:
        """From now on the buffer holds samples of this kind and schema."""
        self._kind = kind
        if self._codec is None or schema != self._codec.schema:
            self._codec = RowCodec(schema, self.limits, self._may_be_missing)
        self._takes_rows = kind == ROWS and self._codec.is_resolved and self._guard is None

    def _flush(self) -> None:
        """Move pending rows into the store, as if each had been stored when it came."""
        if not self._pending:
            return
        with self._all_or_nothing():
            assert self._codec is not None
            rows = self._rows(self._codec.schema)
            rows.extend([self._codec.build(self._pending)], one_by_one=True)
            if self._max_size is not None and self._drop_strategy == "random":
                rows.evict_one_by_one(self._n_pending(), self._max_size, self._evict_key)
            self._enforce_size()
            self._pending = []

    def _rows(self, schema: Schema) -> StoredRows:
        """The store, to be changed; a loaded buffer moves from the mapped file into memory of its own."""
        self._current = None
        if self._stored is None:
            self._stored = StoredRows(schema) if self._loaded is None else StoredRows.of(self._loaded)
            self._loaded = None
        return self._stored

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """A change that ends in any error, Ctrl-C included, leaves the buffer as it was before."""
        self._current = None
        before = {name: getattr(self, name) for name in _CHANGING}
        mark = None if self._stored is None else self._stored.mark()
        try:
            yield
        except BaseException:
            self.__dict__.update(before)
            if self._stored is not None and mark is not None:
                self._stored.restore(mark)
            self._current = None
            raise

    @property
    def guard(self) -> Guard | None:
        """What is asked about every append; None for nothing."""
        return self._guard

    @guard.setter
    def guard(self, guard: Guard | None) -> None:
        from poolish.guards.guard import check_guard

        with self._lock:
            self._guard = check_guard(guard, "DatasetBuffer")
            is_settled = self._codec is not None and self._codec.is_resolved
            self._takes_rows = self._kind == ROWS and is_settled and guard is None

    @property
    def rejected(self) -> Rejected:
        """The rows that guards kept out of this buffer, counted, the newest of them with their reasons."""
        with self._lock:
            if self._rejected is None:
                from poolish.guards.rejected import Rejected

                self._rejected = Rejected()
            return self._rejected

    # -- thinning

    def retain(self, fraction: float, *, by: str = "latest") -> None:
        """Keep ``fraction`` of the rows, those that the policy ``by`` picks."""
        retention.n_kept(0, fraction)
        retention.named(retention.RETENTION, by, "by")
        with self._lock:
            self._flush()
            with self._all_or_nothing():
                self._thin(0, fraction, by)

    def clear(self) -> None:
        """Drop all rows; schema, ids and settings stay."""
        self.retain(-1)

    def _thin(self, n_new: int, fraction: float, by: str) -> None:
        """Keep a fraction of the rows before the ``n_new`` newest."""
        n_prior = self._n_stored() - n_new
        n_kept = retention.n_kept(n_prior, fraction)
        if n_kept < n_prior:
            kept = retention.RETENTION[by](n_prior, n_kept, self._drawing(by))
            assert self.schema is not None
            self._rows(self.schema).keep(kept, n_prior)

    def _enforce_size(self) -> None:
        n_rows = self._n_stored()
        if self._stored is not None and self._max_size is not None and n_rows > self._max_size:
            drop = retention.DROP[self._drop_strategy]
            self._stored.drop(drop(n_rows, n_rows - self._max_size, self._drawing(self._drop_strategy)))

    def _drawing(self, policy: str) -> np.random.Generator:
        """The generator, to draw from; a copy, so that a change that fails has not used up random numbers."""
        if policy not in ("latest", "oldest"):
            self._rng = copy.deepcopy(self._rng)
        return self._rng

    def _n_pending(self) -> int:
        return len(self._pending) // self._codec.n_columns if self._codec is not None else 0

    def _n_stored(self) -> int:
        if self._stored is not None:
            return len(self._stored)
        return 0 if self._loaded is None else len(self._loaded)

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
        from poolish.rows.column_input import check_columns, fitted_columns

        check_columns(columns)
        with self._lock:
            snapshot = self.snapshot()
            asked = checked_ids(ids, snapshot.next_id)
            values = fitted_columns(columns, len(asked), snapshot.schema, self.limits)
            numbers, found = snapshot.numbers_of(asked)
            schema = snapshot.schema
            del snapshot  # it would count as somebody who still looks at the old values
            if len(numbers):
                with self._all_or_nothing():
                    self._rows(schema).replace(numbers, np.flatnonzero(found), values)
                    self._version = uuid.uuid4().hex
            return asked[~found]

    @property
    def version(self) -> str:
        """Another text after each ``update`` that changed a row, so that caches know; ids tell all other rows apart."""
        return self._version

    def map(self, function: Callable[[dict[str, Any]], Any]) -> DatasetBuffer:
        """A new buffer with ``function(row)`` for every row; a name that stays keeps its type where the values fit."""
        rows = self.snapshot()
        mapped = [arrays.held(result) for result in self._calls(function, rows)]
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
        kept._kind = self._kind
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
        buffer = DatasetBuffer(self._max_size, self._drop_strategy, seed=self._seed, limits=self.limits)
        if schema is not None:
            buffer._declare(schema, may_be_missing=frozenset())
        buffer.append(samples)
        return buffer

    # -- reading: see ``reading``

    def snapshot(self) -> Snapshot:
        """The rows as they are now: immutable, made in O(1), unaffected by whatever happens to the buffer."""
        current = self._current
        if current is not None:
            return current
        with self._lock:
            self._flush()
            self._current = self._view()
            self._current.version = self._version
            return self._current

    def __getitem__(self, index: Any) -> Any:
        """One row as a dict for a number; a ``pa.Table`` for a slice, an array of numbers or a boolean mask."""
        current = self._current  # the call of ``snapshot`` would cost a tenth of the row
        return (self.snapshot() if current is None else current)[index]

    def _view(self) -> Snapshot:
        if self._stored is not None:
            return self._stored.view(self.uuid)
        if self._loaded is not None:
            return self._loaded
        empty = np.empty(0, np.int64)
        return Snapshot(Schema([]), [], empty, empty, next_id=0, uuid=self.uuid)

    def __len__(self) -> int:
        with self._lock:
            n_rows = self._n_pending() + self._n_stored()
        return n_rows if self._max_size is None else min(n_rows, self._max_size)

    @property
    def schema(self) -> Schema | None:
        """The columns and their types; None until the first append."""
        codec = self._codec
        return None if codec is None else codec.schema

    @property
    def is_full(self) -> bool:
        """Whether the next append will drive rows out."""
        return self._max_size is not None and len(self) >= self._max_size

    @property
    def max_size(self) -> int | None:
        """How many rows there may be; None for no bound."""
        return self._max_size

    @property
    def drop_strategy(self) -> str:
        """Which rows go when there are more than ``max_size``: ``oldest`` or ``random``."""
        return self._drop_strategy

    @property
    def nbytes(self) -> int:
        """Memory in use by the rows, those that have left but not yet made room included."""
        with self._lock:
            self._flush()
            return (
                self._loaded.to_arrow().nbytes if self._loaded else 0 if self._stored is None else self._stored.n_bytes
            )

    # -- keeping

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything into one file: whole or not at all, checksummed, and there after a power cut."""
        from poolish.rows import saved

        with self._lock:
            snapshot, settings = self.snapshot(), self._settings()
        saved.write(path, snapshot, settings)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, limits: Limits | None = None) -> DatasetBuffer:
        """The buffer that ``save`` wrote: rows, ids, generations, settings and random state. Any damage is an error."""
        from poolish.rows import saved

        return saved.read(path, lambda snapshot, settings: cls._restored(snapshot, settings, limits))

    def _settings(self) -> dict[str, Any]:
        return {
            "max_size": self._max_size,
            "drop_strategy": self._drop_strategy,
            "seed": self._seed,
            "kind": self._kind,
            "may_be_missing": sorted(self._may_be_missing),
            "rng": self._rng.bit_generator.state,
            "sample_rng": self._sample_rng.bit_generator.state,
        }

    @classmethod
    def _restored(cls, snapshot: Snapshot, settings: dict[str, Any], limits: Limits | None) -> DatasetBuffer:
        buffer = cls(settings["max_size"], settings["drop_strategy"], seed=settings["seed"], limits=limits)
        buffer.uuid = snapshot.uuid
        buffer._may_be_missing = frozenset(settings["may_be_missing"])
        buffer._rng.bit_generator.state = settings["rng"]
        buffer._sample_rng.bit_generator.state = settings["sample_rng"]
        if len(snapshot.schema):
            buffer._loaded = snapshot
            buffer._settle(settings["kind"], snapshot.schema)
        return buffer

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        with self._lock:
            return DatasetBuffer._restored, (self.snapshot(), self._settings(), self.limits)

    def __repr__(self) -> str:
        return show.text("DatasetBuffer", self.snapshot(), self._bound())

    def _repr_html_(self) -> str:
        return show.page("DatasetBuffer", self.snapshot(), self._bound())

    def _bound(self) -> str:
        return "" if self._max_size is None else f"max_size={self._max_size}, drop_strategy={self._drop_strategy!r}"


def _n_rows(max_size: Any) -> int:
    try:
        n_rows = operator.index(max_size)
    except TypeError:
        n_rows = 0
    if n_rows < 1 or isinstance(max_size, (bool, np.bool_)):
        raise ConfigError(f"max_size is a whole number of rows above 0, or None for no bound, got {max_size!r}")
    return n_rows
