"""Where ingredients come from, cut into fragments: parts that can be read, baked and cached each by itself.

    paths, globs, directories      a fragment for each file, or for the row groups of a large parquet file
    DatasetBuffer, pa.Table, ...   a fragment for each 65,536 ids, so that an append changes only the last ones
    StreamStore                    a fragment for each 65,536 steps

A fragment says what it is by a fingerprint of its content, so a change is always seen. Rows keep their numbers: of the
file, the buffer or the stream, not of the fragment.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from poolish import tabular
from poolish.errors import RecipeError
from poolish.files import StorageOptions, raising_store_full
from poolish.fingerprints.tables import content_of
from poolish.recipes.cache import Cache
from poolish.recipes.engine import Engine
from poolish.recipes.fragment_rows import Filter, Fragment, Int64, NumberedTables, selected, workable
from poolish.recipes.sources.arrow_dataset import ArrowDatasetSource
from poolish.recipes.sources.files import FileSource, check_options
from poolish.rows import DatasetBuffer
from poolish.rows.snapshot import Snapshot
from poolish.rows.values import is_array
from poolish.schema import Schema
from poolish.tokens.fields import schema_of
from poolish.tokens.reading import read_ordinals
from poolish.tokens.store import StreamStore
from poolish.tokens.stream_files import TYPE, View

#: Rows of a fragment of what is in memory.
FRAGMENT_ROWS = 65_536


class Source(Protocol):
    """Rows to bake from."""

    def describe(self) -> str:
        """What it is, in a few words."""

    def schema(self) -> pa.Schema:
        """The columns."""

    def fragments(self) -> list[Fragment]:
        """All parts, in a stable order."""

    def read(self, fragment: Fragment, columns: Sequence[str] | None, where: Filter | None) -> NumberedTables:
        """The rows of a part with their numbers, a table at a time.

        Only ``columns`` are given; a field of a struct (``meta.lang``) stands for the whole column. Rows that ``where``
        cannot hold for may be left out.
        """


def buffered(samples: Any) -> DatasetBuffer:
    """Samples as rows."""
    buffer = DatasetBuffer()
    buffer.append(samples)
    return buffer


class BufferSource:
    """The rows of a buffer as they are when the bake begins; a row's number is its id."""

    def __init__(self, buffer: DatasetBuffer | Snapshot) -> None:
        self._buffer = buffer
        self._frozen: Snapshot | None = None

    def describe(self) -> str:
        """How many rows it has, or had when the bake began."""
        return f"buffer of {len(self._buffer if self._frozen is None else self._frozen):,} rows"

    def schema(self) -> pa.Schema:
        """The columns."""
        return self._rows().schema.to_arrow()

    def _rows(self) -> Snapshot:
        return self._buffer.snapshot() if isinstance(self._buffer, DatasetBuffer) else self._buffer

    def fragments(self) -> list[Fragment]:
        """Rows by ranges of ids, so that what is appended or leaves changes only its own ranges."""
        rows = self._rows()
        found = []
        # A range without rows still has columns.
        numbers = np.unique(rows.ids // FRAGMENT_ROWS).tolist() or [0] * bool(len(rows.schema.to_arrow()))
        for number in numbers:
            first, end = np.searchsorted(rows.ids, [number * FRAGMENT_ROWS, (number + 1) * FRAGMENT_ROWS]).tolist()
            table = rows[first:end]
            print_ = content_of(table, rows.ids[first:end])
            found.append(Fragment("", number, end - first, print_, {"first": first, "end": end}))
        self._frozen = rows
        return found

    def read(self, fragment: Fragment, columns: Sequence[str] | None, where: Filter | None) -> NumberedTables:
        """One slice."""
        first, end = fragment.place["first"], fragment.place["end"]
        rows = self._rows() if self._frozen is None else self._frozen
        yield selected(rows[first:end], columns), rows.ids[first:end]


class TableSource:
    """The rows of a table; a row's number is its place, or what ``numbers`` says."""

    def __init__(self, table: pa.Table, numbers: Int64 | None = None, *, of: str = "table") -> None:
        self._table, self._numbers, self._of = workable(table), numbers, of

    def describe(self) -> str:
        """How many rows it has."""
        return f"{self._of} of {self._table.num_rows:,} rows"

    def schema(self) -> pa.Schema:
        """The columns."""
        return self._table.schema

    def fragments(self) -> list[Fragment]:
        """Rows by ranges."""
        found = []
        for first in range(0, max(1, self._table.num_rows), FRAGMENT_ROWS):
            part = self._table.slice(first, FRAGMENT_ROWS)
            place = {"first": first, "end": first + part.num_rows}
            numbers = None if self._numbers is None else self._numbers[first : first + part.num_rows]
            print_ = f"{content_of(part, numbers)}:{first}"
            found.append(Fragment("", first // FRAGMENT_ROWS, part.num_rows, print_, place))
        return found

    def read(self, fragment: Fragment, columns: Sequence[str] | None, where: Filter | None) -> NumberedTables:
        """One slice."""
        first, end = fragment.place["first"], fragment.place["end"]
        numbers = np.arange(first, end) if self._numbers is None else self._numbers[first:end]
        yield selected(self._table.slice(first, end - first), columns), numbers


class StreamSource:
    """The steps of a stream as they are when the bake begins, each a row of its fields; its number is the step's."""

    def __init__(self, store: StreamStore) -> None:
        self._store = store
        self._frozen: View | None = None

    def describe(self) -> str:
        """How many steps it has, or had when the bake began."""
        return f"stream of {(self._store if self._frozen is None else self._frozen).n_steps:,} steps"

    def schema(self) -> pa.Schema:
        """A column for each field."""
        return self._rows([]).schema

    def fragments(self) -> list[Fragment]:
        """Steps by ranges, counted since the stream began.

        A range is known by the stream and the branch that wrote it: a copy that went its own way has another one. And
        by its last token: until the next step begins, the last one may get more fields. And by the fields that are
        neither scalar nor sequence yet, which may become either for all steps.
        """
        if not self._store.field_to_type:
            return []
        self._store.refresh()
        self._frozen = view = self._store._view()
        first, end = view.first_ordinal, view.first_ordinal + view.n_steps
        undecided = [field.name for field in self._store._fields if field.shape is None]
        found = []
        for number in range(first // FRAGMENT_ROWS, max(-(-end // FRAGMENT_ROWS), first // FRAGMENT_ROWS + 1)):
            low, high = max(first, number * FRAGMENT_ROWS), min(end, (number + 1) * FRAGMENT_ROWS)
            rows = view.rows_not_below(TYPE, np.array([low, high]) << 8).tolist()
            last = view.lanes.tokens_at(rows[1])
            place = {"first": low, "end": high}
            branch = view.identity(*rows)
            print_ = ":".join([self._store.uuid, branch, *map(str, (low, high, last)), *undecided])
            found.append(Fragment("", number, high - low, print_, place))
        return found

    def read(self, fragment: Fragment, columns: Sequence[str] | None, where: Filter | None) -> NumberedTables:
        """All steps of the range, with the fields that they had when the bake began."""
        view = self._store._view() if self._frozen is None else self._frozen
        steps = read_ordinals(self._store, view, np.arange(fragment.place["first"], fragment.place["end"]))
        numbers = np.array([step.number for step in steps], np.int64)
        yield selected(self._rows(steps), columns), numbers

    def _rows(self, steps: Sequence[Mapping[str, Any]]) -> pa.Table:
        fields = self._store._fields
        # Features need the library that made them; without one, fields describe themselves.
        declared = any(field.feature is not None for field in fields)
        schema = Schema.of(self._store.features) if declared else schema_of(fields)
        types = {field.name: schema[field.name].type for field in fields}
        buffer = DatasetBuffer(schema=schema)
        buffer.append([{name: _listed(step.get(name), type_) for name, type_ in types.items()} for step in steps])
        return buffer.snapshot().to_arrow()


def _listed(value: Any, type_: pa.DataType) -> Any:
    """What a step has in a field, as a buffer takes it: an array for a tensor, and lists where the column has lists."""
    if value is None or not kinds.is_large_list(type_):
        return value
    if kinds.is_primitive(type_.value_type):
        return value.tolist()
    return [_listed(part, type_.value_type) for part in value]


# Recipes as sources -------------------------------------------------------------------------------------------------


class RecipeSource:
    """The result of another recipe. A row's number is made of what it is in there, so it stays when others come.

    ``lineage``, ``rejects`` and ``report`` are those of the inner bake, once it is done.
    """

    lineage: Any = None
    rejects: pa.Table | None = None
    report: Any = None

    def __init__(self, recipe: Any) -> None:
        self._recipe = recipe
        self._baked: TableSource | None = None

    def describe(self) -> str:
        """Its name."""
        return f"recipe {self._recipe.name!r}"

    def prepare(self, engine: Engine | str = "local", cache: Cache | None = None, on_error: str = "raise") -> None:
        """Bake the recipe as the outer one is baked: by the same engine, with the same cache and treatment of errors.

        Who reads without preparing gets the defaults.
        """
        if self._baked is not None:
            return
        result = self._recipe.bake(engine=engine, cache=None if cache is None else cache.path, on_error=on_error)
        self.lineage, self.rejects, self.report = result.lineage, result.rejects, result.report
        self._baked = TableSource(result.buffer.snapshot().to_arrow(), result.lineage.identities())

    def _rows(self) -> TableSource:
        self.prepare()
        assert self._baked is not None
        return self._baked

    def schema(self) -> pa.Schema:
        """The columns that come out of it."""
        return self._rows().schema()

    def fragments(self) -> list[Fragment]:
        """Its rows by ranges; none if not even columns come out of it."""
        return self._rows().fragments() if len(self.schema()) else []

    def read(self, fragment: Fragment, columns: Sequence[str] | None, where: Filter | None) -> NumberedTables:
        """One slice."""
        return self._rows().read(fragment, columns, where)


# What a value stands for ---------------------------------------------------------------------------------------------


def as_source(value: Any, what: str, options: StorageOptions | None = None) -> Source:
    """The source that a value stands for; ``what`` names the ingredient in errors, ``options`` are for URLs."""
    check_storage(value, what, options)
    if hasattr(value, "fragments") and hasattr(value, "read"):
        source: Source = value
        return source
    if is_path(value) or are_paths(value):
        return FileSource(value, what, options)
    if isinstance(value, (DatasetBuffer, Snapshot)):
        return BufferSource(value)
    if isinstance(value, StreamStore):
        return StreamSource(value)
    if is_recipe(value):
        return RecipeSource(value)
    try:
        found = _rows_of(value, what)
    except Exception as error:
        error.add_note(f"while reading {what}")
        raise
    if found is not None:
        return found
    raise RecipeError(
        f"{what}: a source is a path, a buffer, a stream, a table, a dataset or an iterable, got {value!r}"
    )


def _rows_of(value: Any, what: str) -> Source | None:
    """Arrays, tables and samples; what is lazy is computed now, but for files that are read when they are needed."""
    columns = _array_columns(value)
    if columns is not None:
        buffer = DatasetBuffer()
        buffer.append_columns(columns)
        return BufferSource(buffer)
    if tabular.is_lazy(value):
        return ArrowDatasetSource(value, what) if ArrowDatasetSource.can_read(value) else _computed(value)
    is_hf = type(value).__module__.split(".")[0] == "datasets"
    table = None if is_hf else tabular.table_of(value)
    if table is not None:
        return TableSource(table)
    return BufferSource(buffered(value)) if is_hf or isinstance(value, Iterable) or _is_map_style(value) else None


def _computed(value: Any) -> Source:
    batches = tabular.batches_of(value)
    assert batches is not None
    return TableSource(spooled(batches), of=f"{type(value).__module__.split('.')[0]} {type(value).__name__}")


def _array_columns(value: Any) -> dict[str, Any] | None:
    """The columns in an array or tensor, or in a dict of nothing else: a row for each entry of the first dimension."""
    columns = dict(value) if isinstance(value, Mapping) else {"tensor": value}
    are_arrays = columns and all(is_array(each) and each.ndim for each in columns.values())
    return columns if are_arrays else None


def check_storage(value: Any, what: str, options: StorageOptions | None) -> None:
    """Raise if options would be ignored, or reach a store that they are not for."""
    if options is None:
        return
    if not is_path(value) and not are_paths(value):
        raise RecipeError(
            f"{what}: storage_options are for URLs, and {type(value).__name__} has none; give them where it is made"
        )
    check_options([os.fsdecode(path) for path in ([value] if is_path(value) else value)], what, options)


def is_path(value: Any) -> bool:
    """Whether a source is a path, glob or URL."""
    return isinstance(value, (str, bytes)) or hasattr(value, "__fspath__")


def are_paths(value: Any) -> bool:
    """Whether a source is a list of paths."""
    return isinstance(value, (list, tuple)) and len(value) > 0 and all(map(is_path, value))


def is_recipe(value: Any) -> bool:
    """Whether a source is another recipe."""
    return hasattr(value, "instructions") and hasattr(value, "bake")


def _is_map_style(value: Any) -> bool:
    """Whether this has a length and an index, as the datasets of torch, which need not be iterable."""
    return hasattr(value, "__len__") and hasattr(value, "__getitem__")


def materialize(value: Any) -> Any:
    """A source that can be read again and again: an iterator or a scanner is read once, now, and kept."""
    if tabular.is_scanner(value):
        return spooled(tabular.batches_of(value) or ())
    if not isinstance(value, Iterator):
        return value
    return pa.table(value) if hasattr(value, "__arrow_c_stream__") else buffered(value)


# What can be read only once -------------------------------------------------------------------------------------------
#
# A bake looks at its rows more than once: to know what they are, to choose among them, and to prepare them. A query
# or a scan that ran again could give other rows, so it runs once; its file goes when the rows go, even after a kill.
#
#     batches --up to SPOOL_BYTES--> memory         batches --more--> file, mapped, and without a name from then on

#: How much is kept in memory; what is larger goes to a temporary file as a whole.
SPOOL_BYTES = 1 << 28


def spooled(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """All rows as a table, in memory or mapped from a temporary file that has no name any more.

    >>> spooled(iter([pa.record_batch({"x": [1]}), pa.record_batch({"x": [2]})])).to_pydict()
    {'x': [1, 2]}
    """
    kept: list[pa.RecordBatch] = []
    n_bytes = 0
    coming = _workable(batches)
    for batch in coming:
        kept.append(batch)
        n_bytes += batch.nbytes
        if n_bytes > SPOOL_BYTES:
            return _in_file(chain(kept, coming), kept[0].schema)
    return pa.Table.from_batches(kept)


def _workable(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from workable(pa.Table.from_batches([batch])).to_batches() or [batch]


def _in_file(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    folder = tempfile.gettempdir()
    number, path = tempfile.mkstemp(prefix="poolish-spool-", dir=folder)
    try:
        with raising_store_full(folder), os.fdopen(number, "wb") as file, pa.ipc.new_stream(file, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        with pa.memory_map(path) as mapped:
            return pa.ipc.open_stream(mapped.read_buffer()).read_all()
    finally:
        os.unlink(path)  # what is mapped stays
