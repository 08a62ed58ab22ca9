"""Rows of Python values and Arrow batches to the arrays of one schema.

A codec belongs to a schema and never changes; a schema that settles an open column gets a new codec. Every refusal
names the row, counted from the first sample of the append, and the column.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from poolish import kernels
from poolish.errors import SchemaError
from poolish.rows import images
from poolish.rows.cells import Cell, Frozen, cell_of
from poolish.rows.fit import fit
from poolish.rows.infer import widen_all
from poolish.rows.limits import Limits
from poolish.rows.refusal import Refusal, shown
from poolish.rows.sizes import check_shapes, check_sizes, check_text
from poolish.schema import Field, Schema, column_name, describe, is_resolved
from poolish.schema.arrow import MAX_NESTING

Row = Mapping[str, Any]


class RowCodec:
    """What one schema makes of rows.

    >>> codec = RowCodec(Schema.of({"flour": "string", "grams": "int64"}), Limits())
    >>> codec.encode([{"flour": "rye", "grams": 500}])[1].to_pylist()
    [500]
    """

    def __init__(self, schema: Schema, limits: Limits, may_be_missing: frozenset[str] = frozenset()) -> None:
        self.schema = schema
        self.limits = limits
        self.may_be_missing = may_be_missing
        self.names = schema.names
        self.is_resolved = all(is_resolved(field.type) for field in schema)
        self._cells: list[Cell] = [cell_of(field.type, limits) for field in schema]
        self._plan = tuple(cell.step(name) for name, cell in zip(self.names, self._cells, strict=True))
        self.n_columns = len(self.names)
        self._all_nullable = all(field.nullable for field in schema)

    # -- one row, checked now and built later

    def freeze(self, row: dict[str, Any]) -> list[Frozen]:
        """One row, checked and copied."""
        if len(row) == self.n_columns:
            try:
                frozen: list[Frozen] = kernels.freeze_row(row, self._plan)
                if self._all_nullable:
                    return frozen
            except (KeyError, Refusal):
                pass  # told below, with its place
        return [self._frozen(column, values, 0)[0] for column, values in enumerate(self.columns([row]))]

    def build(self, cells: Sequence[Frozen]) -> list[pa.Array]:
        """Frozen rows, laid one behind the other, as arrays."""
        return [cell.build(cells[i :: self.n_columns]) for i, cell in enumerate(self._cells)]

    # -- many rows

    def encode(self, rows: Sequence[Row], first_row: int = 0) -> list[pa.Array]:
        """Rows as arrays."""
        columns = self.columns(rows, first_row)
        frozen = [self._frozen(i, values, first_row) for i, values in enumerate(columns)]
        return [cell.build(values) for cell, values in zip(self._cells, frozen, strict=True)]

    def _frozen(self, column: int, values: Sequence[Any], first_row: int) -> Sequence[Frozen]:
        field = self.schema.fields[column]
        try:
            frozen = self._cells[column].freeze_many(values)
        except Refusal as refusal:
            raise refusal.explained(first_row + refusal.index, field.name) from None
        if not field.nullable and None in frozen:
            raise null_refused(field, first_row + list(frozen).index(None))
        return frozen

    def columns(self, rows: Sequence[Row], first_row: int = 0) -> list[list[Any]]:
        """Rows turned on their side: the values of each column, in the order of the schema."""
        return columns_of(rows, self.names, self.may_be_missing, first_row)

    def fit(self, arrays: Mapping[str, pa.Array], n_rows: int, first_row: int = 0) -> list[pa.Array]:
        """The columns of a table as arrays of this schema."""
        missing = [name for name in self.names if name not in arrays and name not in self.may_be_missing]
        unknown = [name for name in arrays if name not in self.schema]
        if missing or unknown:
            raise _keys_refused(f"rows {first_row} to {first_row + n_rows - 1}", missing, unknown, self.names)
        return [self._fitted(field, arrays.get(field.name), n_rows, first_row) for field in self.schema]

    def _fitted(self, field: Field, array: pa.Array | None, n_rows: int, first_row: int) -> pa.Array:
        try:
            fitted = fit(pa.nulls(n_rows) if array is None else array, field.type)
            check_sizes(fitted, self.limits)
            check_text(fitted)
            check_shapes(fitted)
        except Refusal as refusal:
            raise refusal.explained(first_row + refusal.index, field.name) from None
        if not field.nullable and fitted.null_count:
            nulls = fitted.is_null().to_numpy(zero_copy_only=False)
            raise null_refused(field, first_row + int(np.flatnonzero(nulls)[0]))
        return fitted


def columns_of(
    rows: Sequence[Row], names: Sequence[str], may_be_missing: Iterable[str], first_row: int = 0
) -> list[list[Any]]:
    """The values of each column; a missing or unknown key is refused unless it may be missing."""
    n_columns = len(names)
    try:
        if all(len(row) == n_columns for row in rows):
            return [[row[name] for row in rows] for name in names]
    except KeyError:
        pass  # told below, with its place
    aligned = [_aligned(row, names, may_be_missing, first_row + i) for i, row in enumerate(rows)]
    return [[row[name] for row in aligned] for name in names]


def _aligned(row: Row, names: Sequence[str], may_be_missing: Iterable[str], i: int) -> Row:
    row = _with_names(row, i)
    missing = [name for name in names if name not in row and name not in may_be_missing]
    unknown = [name for name in row if name not in names]
    if missing or unknown:
        raise _keys_refused(f"row {i}", missing, unknown, list(names))
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


def _keys_refused(place: str, missing: list[str], unknown: list[str], names: list[str]) -> SchemaError:
    found = [f"column {name!r} is missing" for name in missing] + [f"column {name!r} is unknown" for name in unknown]
    return SchemaError(f"{place}: {', '.join(found)}; this buffer holds {names}, bring these keys and no others")


def null_refused(field: Field, row: int) -> SchemaError:
    """The error for a None in a field that was declared not to have any."""
    return SchemaError(
        f"row {row}, column {field.name!r}: declared {describe(field.type)} and not nullable, got None; "
        "give it a value or declare Field(..., nullable=True)"
    )


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
    except Refusal as refusal:
        raise refusal.explained(first_row + refusal.index, field.name) from None
    if type_ == field.type:
        return field
    return Field(field.name, type_, nullable=field.nullable, role=field.role, feature=image_hint(values))


def image_hint(values: Any) -> str | None:
    """Hugging Face's feature for a column of images, or of lists of images; None for any other."""
    if not isinstance(values, (list, tuple)):
        return None
    feature = next((hint for hint in map(_image_hint, values) if hint is not None), None)
    return None if feature is None else json.dumps(feature)


def _image_hint(value: Any, depth: int = 0) -> Any:
    """Hugging Face's feature for an image, or for a list of images; None for anything else."""
    if images.is_image(value):
        return {"_type": "Image"}
    if isinstance(value, (list, tuple)) and value and depth < MAX_NESTING:
        inner = _image_hint(value[0], depth + 1)
        return None if inner is None else {"_type": "List", "feature": inner}
    if isinstance(value, dict) and depth < MAX_NESTING:
        parts = {name: _image_hint(part, depth + 1) for name, part in value.items()}
        return parts if any(part is not None for part in parts.values()) else None
    return None


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
            cell_of(known[name].type, limits).freeze_many(values)
        except Refusal:
            pass  # another type now: the values decide
        else:
            return dataclasses.replace(known[name], nullable=True)
    return Field(name, "null", nullable=True)
