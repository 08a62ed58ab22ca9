"""Rows that a function made, as a table: columns keep the types they had, and nothing is cast unless somebody asks.

    column was there before    its old type; a value that it cannot hold is refused, with its row
    new column                 the type of its values; whole numbers and floats do not mix
    nothing but None           its old type; open for a new column, until other rows settle it

A column that would take its type from whatever values it has now would have another one in another part of the data, so
that rows that are made together would decide it. Only arrays may become arrays of another shape or dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from poolish.errors import LimitExceeded, SchemaError
from poolish.rows.cells import Cell, cell_of
from poolish.rows.codec import image_hint
from poolish.rows.infer import widen_all
from poolish.rows.limits import Limits
from poolish.rows.refusal import Refusal
from poolish.schema import Field, Schema, dtype_and_shape, is_resolved, is_tensor

_LIMITS = Limits()


class RowsRefused(Exception):
    """Some rows do not fit into one table with the others; ``why`` has their numbers, each with column and reason."""

    def __init__(self, why: dict[int, tuple[str, Refusal]]) -> None:
        super().__init__(f"{len(why)} rows")
        self.why = why

    def error(self, i: int, row: object) -> SchemaError | LimitExceeded:
        """What is wrong with row ``i``, which the user knows as ``row``."""
        column, refusal = self.why[i]
        told = refusal.explained(0, column)
        return type(told)(f"row {row}{str(told).removeprefix('row 0')}")


def table_of(rows: Sequence[Mapping[str, Any]], known: Schema) -> pa.Table:
    """Rows as a table; the first one says which columns there are.

    >>> known = Schema.of(pa.schema({"x": pa.int32(), "text": pa.large_string()}))
    >>> table_of([{"x": 1, "text": None, "n": 0.5}], known).schema.types
    [DataType(int32), DataType(large_string), DataType(double)]
    """
    names = list(rows[0])
    if not names:
        raise RowsRefused({i: ("", _other_columns(row, names)) for i, row in enumerate(rows)})
    wrong = {i: _other_columns(row, names) for i, row in enumerate(rows) if row.keys() != rows[0].keys()}
    if wrong:
        raise RowsRefused({i: (_strange(rows[i], names), refusal) for i, refusal in wrong.items()})
    return table_of_columns({name: [row[name] for row in rows] for name in names}, known)


def table_of_columns(columns: Mapping[str, Any], known: Schema) -> pa.Table:
    """Columns as a table: lists take the type they had before, arrays have one of their own."""
    made: list[Any] = []
    fields: list[Field | None] = []
    refused: dict[int, tuple[str, Refusal]] = {}
    for name, values in columns.items():
        if not isinstance(values, (list, tuple)):
            made.append(values)
            fields.append(None)
            continue
        field = known[name] if isinstance(name, str) and name in known else None
        try:
            type_ = _type_for(values, field)
            made.append(_built(values, type_))
        except _Unfit as unfit:
            refused |= {i: (str(name), refusal) for i, refusal in unfit.why.items() if i not in refused}
            continue
        fields.append(_field(name, type_, values, field, has_nulls=made[-1].null_count > 0))
    if refused:
        raise RowsRefused(refused)
    return _joined(dict(zip(columns, made, strict=True)), fields)


def _joined(columns: Mapping[str, Any], fields: Sequence[Field | None]) -> pa.Table:
    if all(field is not None for field in fields):
        schema = Schema([field for field in fields if field is not None]).to_arrow()
        if len({len(column) for column in columns.values()}) == 1:
            return pa.Table.from_arrays(list(columns.values()), schema=schema)
    from poolish.rows.column_input import batch_from

    return pa.Table.from_batches([batch_from(columns, None, _LIMITS)])


def _field(name: str, type_: pa.DataType, values: Any, known: Field | None, *, has_nulls: bool) -> Field:
    if known is not None and known.type == type_:
        return replace(known, nullable=True) if has_nulls and not known.nullable else known
    return Field(name, type_, nullable=True, feature=image_hint(values))


def _strange(row: Mapping[str, Any], names: list[str]) -> str:
    return str(next((name for name in [*row, *names] if name not in names or name not in row), ""))


def _other_columns(row: Mapping[str, Any], names: list[str]) -> Refusal:
    rule = f"a step gives all rows the same columns, the first one has {names}"
    return Refusal(rule, list(row), "return the same columns for all rows, with None where there is no value")


# The type of a column ------------------------------------------------------------------------------------------------


class _Unfit(Exception):
    def __init__(self, why: dict[int, Refusal]) -> None:
        super().__init__()
        self.why = why


def _type_for(values: Sequence[Any], field: Field | None) -> pa.DataType:
    before = None if field is None or not is_resolved(field.type) else field.type
    if before is not None and not is_tensor(before):
        if kinds.is_integer(before):
            _refuse_numbers(values, float, "this column holds whole numbers")
        return before
    try:
        asked = widen_all(pa.null(), values)
    except Refusal as refusal:
        raise _Unfit({refusal.index: refusal}) from None
    if before is not None:
        return asked if is_tensor(asked) and not _is_within(asked, before) else before
    if kinds.is_integer(asked):
        _refuse_numbers(values, float, "another row has a whole number here")
    if kinds.is_floating(asked):
        _refuse_numbers(values, int, "another row has a float here")
    return asked


def _is_number(value: Any, kind: type) -> bool:
    if kind is float:
        return isinstance(value, (float, np.floating))
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _refuse_numbers(values: Sequence[Any], kind: type, rule: str) -> None:
    advice = "return int(...) or float(...) for all rows, or give it another name"
    found = {i: Refusal(rule, value, advice) for i, value in enumerate(values) if _is_number(value, kind)}
    if found:
        raise _Unfit(found)


def _is_within(asked: pa.DataType, before: pa.DataType) -> bool:
    """Whether a column of arrays can hold these too: the same dtype, and the same sizes where it fixes them."""
    (dtype, shape), (asked_dtype, asked_shape) = dtype_and_shape(before), dtype_and_shape(asked)
    if dtype != asked_dtype or len(shape) != len(asked_shape):
        return False
    return all(size in (None, own) for size, own in zip(shape, asked_shape, strict=True))


def _built(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    cell = cell_of(type_, _LIMITS)
    try:
        return cell.build(cell.freeze_many(values))
    except Refusal:
        why = {i: refusal for i, value in enumerate(values) if (refusal := _refusal(cell, value)) is not None}
        raise _Unfit(why) from None


def _refusal(cell: Cell, value: Any) -> Refusal | None:
    try:
        cell.freeze_many([value])
    except Refusal as refusal:
        return refusal
    return None
