"""Samples and Arrow batches to the arrays of one schema, a whole append checked before the buffer changes.

``RowCodec`` belongs to a schema and never changes; a schema that resolves an open column gets a new codec. Every error
names the row, counted from the first sample of the append, and the column.

``Draft`` reads the samples of one append once, a few thousand at a time, and encodes them immediately, so that a long
generator needs no more memory than its rows. Types resolve while it reads: within the first append, arrays that differ
in shape make the column ragged; afterwards only columns that held nothing but nulls may still find their type.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from poolish import kernels
from poolish.errors import LimitExceeded, SchemaError
from poolish.rows.access import gather_fn
from poolish.rows.cast import cast_exact
from poolish.rows.encode import ColumnEncoder, Encodable, encoder_of
from poolish.rows.normalizers import ARRAYS, ROWS, TABLE, Part, parts_of
from poolish.rows.retention import Policy
from poolish.rows.validate import Limits, ValueRejected, check_shapes, check_sizes, check_text, null_rejected, shown
from poolish.rows.values import image_hint, is_array, ragged, resolve_null_type, stored, widen_all
from poolish.schema import Field, Schema, column_name, is_resolved, tensor_type

if TYPE_CHECKING:
    from poolish.guards.checks.guard import Guard
    from poolish.guards.checks.verdicts import Result

Row = Mapping[str, Any]

#: The rows of an append, the guard's result, and a mask of the rows that it rejected.
RejectedRows: TypeAlias = "tuple[pa.Table, Result, NDArray[np.bool_]]"


class RowCodec:
    """What one schema makes of rows.

    >>> codec = RowCodec(Schema.of({"flour": "string", "grams": "int64"}), Limits())
    >>> codec.encode([{"flour": "rye", "grams": 500}])[1].to_pylist()
    [500]
    """

    def __init__(
        self,
        schema: Schema,
        limits: Limits,
        may_be_missing: frozenset[str] = frozenset(),
        ranked_by: Policy | None = None,
    ) -> None:
        self.schema = schema
        self.limits = limits
        self.may_be_missing = may_be_missing
        self.names = schema.names
        self.is_resolved = all(is_resolved(field.type) for field in schema)
        self._encoders: list[ColumnEncoder] = [encoder_of(field.type, limits) for field in schema]
        self._plan = tuple(encoder.step(name) for name, encoder in zip(self.names, self._encoders, strict=True))
        self._decoders = [encoder.decode for encoder in self._encoders]
        self.n_columns = len(self.names)
        self._ranked_by = ranked_by
        self._ranked_at = None if ranked_by is None else self.names.index(ranked_by.column or "")
        self._takes_any_null = all(field.nullable for field in schema)

    # -- one row, checked now and built later

    def validate_and_copy(self, row: dict[str, Any]) -> list[Encodable]:
        """One row, checked and copied."""
        if len(row) == self.n_columns:
            try:
                validated: list[Encodable] = kernels.freeze_row(row, self._plan)
                rank = 0 if self._ranked_at is None else validated[self._ranked_at]
                if self._takes_any_null and rank is not None and rank == rank:  # not NaN
                    return validated
            except (KeyError, ValueRejected):
                pass  # reported below, with its place
        return [self._validated(column, values, 0)[0] for column, values in enumerate(self.columns([row]))]

    def build(self, cells: Sequence[Encodable]) -> list[pa.Array]:
        """Frozen rows, laid one behind the other, as arrays."""
        return [encoder.build(cells[i :: self.n_columns]) for i, encoder in enumerate(self._encoders)]

    def decode(self, cells: Sequence[Encodable], row: int) -> dict[str, Any]:
        """One of the frozen rows, laid one behind the other, as it is read once it is stored."""
        first = row * self.n_columns
        return {
            name: decode(cell)
            for name, decode, cell in zip(
                self.names, self._decoders, cells[first : first + self.n_columns], strict=True
            )
        }

    # -- many rows

    def encode(self, rows: Sequence[Row], first_row: int = 0) -> list[pa.Array]:
        """Rows as arrays."""
        columns = self.columns(rows, first_row)
        validated = [self._validated(i, values, first_row) for i, values in enumerate(columns)]
        return [encoder.build(values) for encoder, values in zip(self._encoders, validated, strict=True)]

    def _validated(self, column: int, values: Sequence[Any], first_row: int) -> Sequence[Encodable]:
        field = self.schema.fields[column]
        try:
            validated = self._encoders[column].validate_and_copy_all(values)
        except ValueRejected as rejection:
            raise rejection.explained(first_row + rejection.index, field.name) from None
        if not field.nullable and None in validated:
            raise null_rejected(field, first_row + list(validated).index(None))
        if self._ranked_by is not None and self._ranked_by.column == field.name:
            for i, value in enumerate(validated):
                if value is None or value != value:  # NaN
                    raise self._ranked_by.unranked(value, first_row + i)
        return validated

    def columns(self, rows: Sequence[Row], first_row: int = 0) -> list[list[Any]]:
        """Rows turned on their side: the values of each column, in the order of the schema."""
        return columns_of(rows, self.names, self.may_be_missing, first_row)

    def cast_columns(self, arrays: Mapping[str, pa.Array], n_rows: int, first_row: int = 0) -> list[pa.Array]:
        """The columns of a table as arrays of this schema."""
        missing = [name for name in self.names if name not in arrays and name not in self.may_be_missing]
        unknown = [name for name in arrays if name not in self.schema]
        if missing or unknown:
            raise _keys_rejected(f"rows {first_row} to {first_row + n_rows - 1}", missing, unknown, self.names)
        return [self._cast(field, arrays.get(field.name), n_rows, first_row) for field in self.schema]

    def _cast(self, field: Field, array: pa.Array | None, n_rows: int, first_row: int) -> pa.Array:
        try:
            cast = cast_exact(pa.nulls(n_rows) if array is None else array, field.type)
            check_sizes(cast, self.limits)
            check_text(cast)
            check_shapes(cast)
        except ValueRejected as rejection:
            raise rejection.explained(first_row + rejection.index, field.name) from None
        if not field.nullable and cast.null_count:
            nulls = cast.is_null().to_numpy(zero_copy_only=False)
            raise null_rejected(field, first_row + int(np.flatnonzero(nulls)[0]))
        return cast


def columns_of(
    rows: Sequence[Row], names: Sequence[str], may_be_missing: Iterable[str], first_row: int = 0
) -> list[list[Any]]:
    """The values of each column; a missing or unknown key is refused unless it may be missing."""
    n_columns = len(names)
    try:
        if all(len(row) == n_columns for row in rows):
            return [[row[name] for row in rows] for name in names]
    except KeyError:
        pass  # reported below, with its place
    aligned = [_aligned(row, names, may_be_missing, first_row + i) for i, row in enumerate(rows)]
    return [[row[name] for row in aligned] for name in names]


def _aligned(row: Row, names: Sequence[str], may_be_missing: Iterable[str], i: int) -> Row:
    row = _with_names(row, i)
    missing = [name for name in names if name not in row and name not in may_be_missing]
    unknown = [name for name in row if name not in names]
    if missing or unknown:
        raise _keys_rejected(f"row {i}", missing, unknown, list(names))
    return row if len(row) == len(names) else {name: row.get(name) for name in names}


def _with_names(row: Row, i: int) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for key, value in row.items():
        try:
            name = column_name(key)
        except SchemaError as error:
            raise type(error)(f"row {i}: {error}") from None
        if name in named:
            raise SchemaError(f"row {i}: two keys are called {name!r} once normalised; rename one of them")
        named[name] = value
    return named


def _keys_rejected(place: str, missing: list[str], unknown: list[str], names: list[str]) -> SchemaError:
    found = [f"column {name!r} is missing" for name in missing] + [f"column {name!r} is unknown" for name in unknown]
    return SchemaError(f"{place}: {', '.join(found)}; this buffer holds {names}, bring these keys and no others")


def schema_of(known: Schema | None, rows: Sequence[Row], first_row: int = 0) -> Schema:
    """The schema after these rows: names from the first row, open types from the first real value."""
    if known is None:
        if not rows[0]:
            raise SchemaError(f"row {first_row}: no columns, got {shown(rows[0])}; bring at least one key")
        known = Schema(Field(name, "null", nullable=True) for name in _with_names(rows[0], first_row))
    columns = columns_of(rows, known.names, known.names, first_row)
    return Schema(_widened(field, values, first_row) for field, values in zip(known, columns, strict=True))


def _widened(field: Field, values: Sequence[Any], first_row: int) -> Field:
    try:
        type_ = widen_all(field.type, values)
    except ValueRejected as rejection:
        raise rejection.explained(first_row + rejection.index, field.name) from None
    if type_ == field.type:
        return field
    return Field(field.name, type_, nullable=field.nullable, role=field.role, feature=image_hint(values))


def kept_types(known: Schema, rows: Sequence[Any], limits: Limits) -> Schema | None:
    """A schema for rows made from others: the type a name had before, where every new value fits it, else open."""
    if not rows or not all(isinstance(row, dict) and row.keys() == rows[0].keys() for row in rows):
        return None
    names = list(_with_names(rows[0], 0))
    columns = columns_of(rows, names, ())
    return Schema(_kept(known, name, values, limits) for name, values in zip(names, columns, strict=True))


def _kept(known: Schema, name: str, values: Sequence[Any], limits: Limits) -> Field:
    if name in known:
        try:
            encoder_of(known[name].type, limits).validate_and_copy_all(values)
        except ValueRejected:
            pass  # another type now: the values decide
        else:
            return dataclasses.replace(known[name], nullable=True)
    return Field(name, "null", nullable=True)


class Draft:
    """Samples on their way into a buffer of a schema, or into one that has none yet.

    ``codec`` is the buffer's own for that schema, where it has one: making another costs more than a row.
    """

    def __init__(
        self,
        schema: Schema | None,
        kind: str | None,
        limits: Limits,
        may_be_missing: frozenset[str],
        codec: RowCodec | None = None,
    ) -> None:
        self.schema = schema
        self.kind = kind
        self.n_rows = 0
        self._is_first = schema is None
        self._limits = limits
        self._may_be_missing = may_be_missing
        self._chunks: list[list[pa.Array]] = []
        self._chosen: list[NDArray[np.int64] | None] | None = None
        self._codec = codec or (None if schema is None else RowCodec(schema, limits, may_be_missing))

    def read(self, samples: Any) -> Draft:
        """Take in everything that was passed to ``append``."""
        for part in parts_of(samples):
            if part.kind != TABLE:
                self._check_same(part.kind, self.kind or part.kind)
            self.kind = self.kind or (ROWS if part.kind == TABLE else part.kind)
            try:
                arrays = self._from_rows(part) if part.batch is None else self._from_batch(part.batch)
            except (SchemaError, LimitExceeded) as error:
                part.note_sample(error, self.n_rows)
                raise
            self._chunks.append(arrays)
            self.n_rows += len(arrays[0]) if arrays else 0
        return self

    def arrays(self, schema: Schema, limits: Limits) -> list[list[pa.Array]]:
        """The chunks in the types of ``schema``, which may have settled further since they were read."""
        types, first_row, chunks = [field.type for field in schema], 0, []
        names = [] if self.schema is None else self.schema.names
        for chunk in self._chunks:
            if names != schema.names or [array.type for array in chunk] != types:
                codec = RowCodec(schema, limits)
                chunk = codec.cast_columns(dict(zip(names, chunk, strict=True)), len(chunk[0]), first_row)
            chunks.append(chunk)
            first_row += len(chunk[0])
        return chunks

    def table(self) -> pa.Table | None:
        """The rows as they would enter the buffer, for a guard to look at; None if there are none."""
        if self.schema is None or self.n_rows == 0:
            return None
        self._apply_mask()
        self._chunks = self.arrays(self.schema, self._limits)
        columns = [
            pa.chunked_array([chunk[i] for chunk in self._chunks], type=field.type)
            for i, field in enumerate(self.schema)
        ]
        return pa.Table.from_arrays(columns, schema=self.schema.to_arrow())

    def apply_guard(self, guard: Guard, buffer: object) -> RejectedRows | None:
        """Keep the rows that pass; return the others, if any. ``DataRefused`` if the guard rejects all."""
        from poolish.guards.checks.guard import ask, passed

        table = self.table()
        if table is None:
            return None
        result = ask(guard, table, buffer)
        kept = passed(result, f"append of {self.n_rows:,} rows")
        if kept is None:
            return None
        self.keep(kept)
        return table, result, ~kept

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Leave only the rows where ``mask`` is true; the others are left out when the rows are copied."""
        self._apply_mask()
        ends = np.cumsum([len(chunk[0]) for chunk in self._chunks])
        parts = np.split(mask, ends[:-1]) if len(ends) else []
        self._chosen = [None if part.all() else np.flatnonzero(part) for part in parts]
        self.n_rows = int(np.count_nonzero(mask))

    def _apply_mask(self) -> None:
        """Apply the pending row mask to the chunks."""
        for i, positions in enumerate(self._chosen or ()):
            if positions is not None:
                self._chunks[i] = [gather_fn(array)(positions) for array in self._chunks[i]]
        self._chosen = None

    @property
    def chosen(self) -> Sequence[NDArray[np.int64] | None] | None:
        """The row mask of each chunk, None where it keeps all rows; None if no chunk has a mask."""
        return self._chosen

    def check_kind(self, kind: str | None) -> None:
        """Another thread may have begun the buffer with samples of another kind."""
        if kind is not None and self.kind is not None:
            self._check_same(self.kind, kind)

    def _check_same(self, kind: str, expected: str) -> None:
        if kind != expected:
            raise SchemaError(
                f"row {self.n_rows}: this buffer holds samples of kind {expected}, got {kind}; "
                "use one buffer per kind, or a normalizer that makes dicts of both"
            )

    def _from_rows(self, part: Part) -> list[pa.Array]:
        if self._is_first or self._codec is None or not self._codec.is_resolved:
            self._adopt(self._widened_by(part))
        assert self._codec is not None
        return self._codec.encode(part.rows, self.n_rows)

    def _widened_by(self, part: Part) -> Schema:
        """Shapes may turn ragged only while the schema is being made; later rows must fit it."""
        if self.schema is not None:
            columns_of(part.rows, self.schema.names, self._may_be_missing, self.n_rows)
        known = _of_numbers(part) if self.schema is None else self.schema
        widened = schema_of(known, part.rows, self.n_rows)
        if self._is_first or self.schema is None:
            return widened
        return Schema(_resolved(old, new) for old, new in zip(self.schema, widened, strict=True))

    def _from_batch(self, batch: pa.RecordBatch) -> list[pa.Array]:
        brought = Schema.from_arrow(batch.schema)
        if len(brought) == 0:
            raise SchemaError(f"row {self.n_rows}: a table without columns; bring at least one")
        for field in brought if self.schema is not None else ():
            check_labels(field, self.schema)
        if self.schema is None:
            self._adopt(brought)
        elif brought is not self.schema and (self._is_first or not (self._codec and self._codec.is_resolved)):
            self._adopt(Schema(self._joined(field, brought) for field in self.schema))
        assert self._codec is not None
        columns = {field.name: batch.column(i) for i, field in enumerate(brought)}
        return self._codec.cast_columns(columns, batch.num_rows, self.n_rows)

    def _joined(self, field: Field, brought: Schema) -> Field:
        if field.name not in brought:
            return field
        other = brought[field.name]
        joined = _resolved(field, other)
        return _retyped(joined, ragged(joined.type, other.type), joined.feature) if self._is_first else joined

    def _adopt(self, schema: Schema) -> None:
        if schema != self.schema:
            self.schema = schema
            self._codec = RowCodec(schema, self._limits, self._may_be_missing)


def _of_numbers(part: Part) -> Schema | None:
    """The schema for samples that are arrays without dimensions, which stay arrays; inside a row they are numbers."""
    if part.kind not in ARRAYS:
        return None
    value = part.rows[0].get("tensor")
    if not is_array(value) or value.shape != ():  # type: ignore[union-attr]
        return None
    try:
        return Schema([Field("tensor", tensor_type(stored(value)[0], ()), nullable=True)])
    except ValueRejected:
        return None  # the codec refuses it, with the row


def check_labels(brought: Field, known: Schema | None) -> None:
    """Numbers that stand for other names must not mix: label 0 would change its meaning."""
    if known is None or brought.name not in known:
        return
    ours, theirs = known[brought.name].label_names, brought.label_names
    if ours and theirs and ours != theirs:
        raise SchemaError(
            f"column {brought.name!r}: this buffer's labels are {ours}, the dataset's are {theirs}; "
            "bring them into one order first (align_labels_with_mapping)"
        )


def _resolved(old: Field, new: Field) -> Field:
    return _retyped(old, resolve_null_type(old.type, new.type), new.feature)


def _retyped(field: Field, type_: pa.DataType, feature: str | None) -> Field:
    if type_ == field.type:
        return field
    return Field(field.name, type_, nullable=field.nullable, role=field.role, feature=feature)


def joined(known: Schema | None, drafted: Schema) -> Schema:
    """The schema of the buffer after the draft; another thread may have given the buffer one in the meantime."""
    if known is None:
        return drafted
    return Schema(_resolved(field, drafted[field.name]) if field.name in drafted else field for field in known)


def runs_of(batches: Sequence[pa.RecordBatch], mask: NDArray[np.bool_]) -> list[pa.RecordBatch]:
    """The rows for which ``mask`` is true, in batches of consecutive ones: of a slice Arrow does not copy anything.

    >>> batch = pa.record_batch({"x": [1, 2, 3, 4]})
    >>> [run["x"].to_pylist() for run in runs_of([batch], np.array([True, True, False, True]))]
    [[1, 2], [4]]
    """
    found, first = [], 0
    for batch in batches:
        part = mask[first : first + batch.num_rows]
        borders = np.flatnonzero(np.diff(part, prepend=False, append=False)).reshape(-1, 2).tolist() or [[0, 0]]
        found += [batch.slice(begin, end - begin) for begin, end in borders]
        first += batch.num_rows
    return found
