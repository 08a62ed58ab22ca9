"""Where ingredients come from, cut into fragments: parts that can be read, baked and cached each by itself.

    paths, globs, directories      a fragment for each file, or for the row groups of a large parquet file
    DatasetBuffer, pa.Table, ...   a fragment for each 65,536 ids, so that an append changes only the last ones
    StreamStore                    a fragment for each 65,536 steps

A fragment says what it is by a fingerprint of its content, so a change is always seen. Rows keep their numbers: of the
file, the buffer or the stream, not of the fragment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from poolish.fingerprints.tables import content_of
from poolish.recipes.cache import Cache
from poolish.recipes.engine import Engine
from poolish.recipes.fragment_rows import Filter, Fragment, Int64, NumberedTables, row_hashes, selected, workable
from poolish.rows import DatasetBuffer
from poolish.rows.snapshot import Snapshot
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


def identity_numbers(
    ingredients: list[str], parts: list[str], kinds: Int64, names: Int64, rows: Int64, subs: Int64
) -> Int64:
    """One number for each row that depends on what it is alone."""
    found = np.zeros(len(rows), np.uint64)
    for kind in np.unique(kinds).tolist():
        for name in np.unique(names[kinds == kind]).tolist():
            mine = (kinds == kind) & (names == name)
            own = row_hashes(0, "identity", ingredients[kind], parts[name], rows[mine])
            found[mine] = own ^ row_hashes(0, "identity of a part", "", "", subs[mine])
    numbers: Int64 = (found >> np.uint64(1)).astype(np.int64)
    return numbers
