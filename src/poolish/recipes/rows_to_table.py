"""Rows that a function made, as a table: columns keep the types they had, and nothing is cast silently.

    column was there before    its old type; a value that it cannot hold is refused, with its row
    new column                 the type of its values, which is one: whole numbers and floats do not mix
    nothing but None           its old type; open for a new column, until other rows resolve_null_type it

Rows are made in parts of any size, and what comes of them must not depend on that. So a row is refused only for what
is wrong with it alone. Where rows that are right by themselves do not go together, in their columns or in the type of
a new one, no part could say who is wrong: that is an error, however the data is cut. Arrays of several shapes do go
together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from poolish.errors import LimitExceeded, RecipeError, SchemaError
from poolish.recipes.fragment_rows import joined_type
from poolish.rows.encode import ColumnEncoder, encoder_of
from poolish.rows.validate import Limits, ValueRejected
from poolish.rows.values import image_hint, type_of
from poolish.schema import Field, Schema, describe, dtype_and_shape, is_resolved, is_tensor

_LIMITS = Limits()

#: All values of these ask for the same type.
_PLAIN = frozenset({type(None), bool, int, float, str, bytes})


class RowsRefused(Exception):
    """Some rows are wrong, each by itself; ``why`` has their numbers, each with column and reason."""

    def __init__(self, why: dict[int, tuple[str, ValueRejected]]) -> None:
        super().__init__(f"{len(why)} rows")
        self.why = why

    def error(self, i: int, row: object) -> SchemaError | LimitExceeded:
        """What is wrong with row ``i``, which the user knows as ``row``."""
        column, rejection = self.why[i]
        error = rejection.explained(0, column)
        return type(error)(f"row {row}{str(error).removeprefix('row 0')}")


class RowsDisagree(Exception):
    """Two rows, each right by itself, that cannot be in one table."""

    def __init__(self, first: int, other: int, what: str, advice: str) -> None:
        super().__init__(what)
        self.first, self.other, self._what, self._advice = first, other, what, advice

    def error(self, first_row: object, other_row: object) -> SchemaError:
        """The same, for rows that the user knows by these names."""
        return SchemaError(f"rows {first_row} and {other_row}: {self._what}; {self._advice}")


def table_of(rows: Sequence[Mapping[str, Any]], known: Schema) -> pa.Table:
    """Rows as a table; all have the same columns.

    >>> known = Schema.of(pa.schema({"x": pa.int32(), "text": pa.large_string()}))
    >>> table_of([{"x": 1, "text": None, "n": 0.5}], known).schema.types
    [DataType(int32), DataType(large_string), DataType(double)]
    """
    try:
        return _together(rows, known)
    except RowsDisagree:
        # A row that is wrong by itself may be one of the two, and in another part there might be only the other.
        alone = {i: why for i, row in enumerate(rows) if (why := _wrong_alone(row, known)) is not None}
        if alone:
            raise RowsRefused(alone) from None
        raise


def _together(rows: Sequence[Mapping[str, Any]], known: Schema) -> pa.Table:
    empty = {i: ("", _NO_COLUMNS) for i, row in enumerate(rows) if not row}
    if empty:
        raise RowsRefused(empty)
    # What was there keeps its order: rows may tell the same columns in several.
    names = [*(name for name in known.names if name in rows[0]), *(name for name in rows[0] if name not in known)]
    other = next((i for i, row in enumerate(rows) if row.keys() != rows[0].keys()), None)
    if other is not None:
        what = f"one has columns {names}, the other {list(rows[other])}"
        raise RowsDisagree(0, other, what, "return the same columns for all rows, with None where there is no value")
    return table_of_columns({name: [row[name] for row in rows] for name in names}, known)


def _wrong_alone(row: Mapping[str, Any], known: Schema) -> tuple[str, ValueRejected] | None:
    try:
        _together([row], known)
    except RowsRefused as refused:
        return refused.why[0]
    return None


def table_of_columns(columns: Mapping[str, Any], known: Schema) -> pa.Table:
    """Columns as a table: lists take the type they had before, arrays have one of their own."""
    made: list[Any] = []
    fields: list[Field | None] = []
    refused: dict[int, tuple[str, ValueRejected]] = {}
    for name, values in columns.items():
        if not isinstance(values, (list, tuple)):
            made.append(values)
            fields.append(None)
            continue
        field = known[name] if isinstance(name, str) and name in known else None
        try:
            type_ = _type_for(name, values, field)
            made.append(_built(values, type_))
        except _Unfit as unfit:
            refused |= {i: (str(name), rejection) for i, rejection in unfit.why.items() if i not in refused}
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
    from poolish.rows.cast import batch_from

    return pa.Table.from_batches([batch_from(columns, None, _LIMITS)])


def _field(name: str, type_: pa.DataType, values: Any, known: Field | None, *, has_nulls: bool) -> Field:
    if known is not None and known.type == type_:
        return replace(known, nullable=True) if has_nulls and not known.nullable else known
    return Field(name, type_, nullable=True, feature=image_hint(values))


_NO_COLUMNS = ValueRejected("a row has columns", {}, "return the row, or [] for no row")


# The type of a column ------------------------------------------------------------------------------------------------


class _Unfit(Exception):
    def __init__(self, why: dict[int, ValueRejected]) -> None:
        super().__init__()
        self.why = why


def _type_for(name: object, values: Sequence[Any], field: Field | None) -> pa.DataType:
    before = None if field is None or not is_resolved(field.type) else field.type
    if before is None:
        return _new_type(name, values)
    if is_tensor(before):
        own = _own_types(values)
        is_changed = any(is_tensor(type_) and not _is_within(type_, before) for type_ in own)
        return _new_type(name, values) if is_changed else before
    if kinds.is_integer(before):
        _refuse_floats(values)
    return before


def _new_type(name: object, values: Sequence[Any]) -> pa.DataType:
    """The type that every value asks for by itself, and another shape where only those differ."""
    own = _own_types(values)
    asked: pa.DataType = pa.null()
    for i, type_ in enumerate(own):
        joined = asked if type_ is asked else joined_type(asked, type_)
        if joined is None:
            first = next(k for k in range(i) if joined_type(own[k], type_) is None)
            what = f"column {name!r} is {describe(own[first])} in one and {describe(type_)} in the other"
            raise RowsDisagree(first, i, what, "return one type for all rows, for instance float(...)")
        asked = joined
    return asked


def _own_types(values: Sequence[Any]) -> list[pa.DataType]:
    """The type that each value asks for; those that ask for none are refused."""
    plain: dict[type, pa.DataType] = {}
    own, refused = [], {}
    for i, value in enumerate(values):
        kind = type(value)
        if kind in plain:
            own.append(plain[kind])
            continue
        try:
            own.append(type_of(value))
        except ValueRejected as rejection:
            refused[i] = rejection
            continue
        if kind in _PLAIN:
            plain[kind] = own[-1]
    if refused:
        raise _Unfit(refused)
    return own


def _refuse_floats(values: Sequence[Any]) -> None:
    rule, advice = "this column holds whole numbers", "return int(...), or give it another name"
    found = {
        i: ValueRejected(rule, value, advice)
        for i, value in enumerate(values)
        if isinstance(value, (float, np.floating))
    }
    if found:
        raise _Unfit(found)


def _is_within(asked: pa.DataType, before: pa.DataType) -> bool:
    """Whether a column of arrays can hold these too: the same dtype, and the same sizes where it fixes them."""
    (dtype, shape), (asked_dtype, asked_shape) = dtype_and_shape(before), dtype_and_shape(asked)
    if dtype != asked_dtype or len(shape) != len(asked_shape):
        return False
    return all(size in (None, own) for size, own in zip(shape, asked_shape, strict=True))


def _built(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    cell = encoder_of(type_, _LIMITS)
    try:
        return cell.build(cell.validate_and_copy_all(values))
    except ValueRejected:
        why = {i: rejection for i, value in enumerate(values) if (rejection := _refusal(cell, value)) is not None}
        raise _Unfit(why) from None


def _refusal(cell: ColumnEncoder, value: Any) -> ValueRejected | None:
    try:
        cell.validate_and_copy_all([value])
    except ValueRejected as rejection:
        return rejection
    return None


# Values of several types ----------------------------------------------------------------------------------------------


#: A step comes too late for a choice.
_ADVICE = "give the column one type in its source"


def comparable_type(found_in: Mapping[pa.DataType, str], what: str, advice: str = _ADVICE) -> pa.DataType:
    """The type in which values of these types can be compared, given where each was found; else a ``RecipeError``.

    Files without types (jsonl, csv) may have 1 in one and 0.5 in the next. Where one has nothing but nulls, or empty
    lists, the others know the type.

    >>> comparable_type({pa.int64(): "a.jsonl", pa.null(): "b.jsonl", pa.float64(): "c.jsonl"}, "column 'score'")
    DataType(double)
    """
    found = {type_: place for type_, place in found_in.items() if not kinds.is_null(type_)}
    if len(found) > 1 and all(map(_is_number, found)):
        return pa.int64() if all(map(kinds.is_integer, found)) else pa.float64()
    try:
        return pa.unify_schemas([pa.schema([("value", type_)]) for type_ in found_in]).field("value").type
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        pass
    found_types = ", ".join(f"{type_} in {place}" if place else str(type_) for type_, place in found.items())
    raise RecipeError(f"{what}: {found_types} cannot be compared with each other; {advice}")


def as_type(values: Any, type_: pa.DataType, what: str, advice: str = _ADVICE) -> Any:
    """Numbers in a type in which they can be compared; one that this type would round is a ``RecipeError``.

    Nulls get their type when they are joined with the others.
    """
    if values.type == type_ or not _is_number(values.type):
        return values
    try:
        return values.cast(type_)
    except pa.ArrowInvalid as error:
        raise RecipeError(f"{what}: {values.type} cannot be compared as {type_} exactly: {error}; {advice}") from None


def _is_number(type_: pa.DataType) -> bool:
    return bool(kinds.is_integer(type_) or kinds.is_floating(type_))
