"""Does a batch keep the promise of its ``batch_schema``: checked before it leaves a provider and when it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from poolish.errors import SchemaError
from poolish.rows.arrays import stored
from poolish.rows.refusal import Refusal
from poolish.schema import Field, Schema
from poolish.serve.batch_file import Array, Columns


def columns_of(batch: Any, schema: Schema, place: str) -> tuple[dict[str, tuple[str, Array]], int]:
    """The arrays of what ``sample_batch`` returned, and how many rows; anything that does not fit is an error.

    >>> schema = Schema.of([{"name": "x", "dtype": "int64", "shape": [2]}])
    >>> columns_of({"x": [[1, 2], [3, 4], [5, 6]]}, schema, "batch 7")[1]
    3
    >>> columns_of({"x": [[1.5, 2.0]]}, schema, "batch 7")
    Traceback (most recent call last):
    poolish.errors.SchemaError: batch 7, field 'x': batch_schema says int64[rows, 2], got float64[1, 2]; make it so ...
    """
    if isinstance(batch, tuple) and schema.names == ["x", "y"] and len(batch) == 2:
        batch = {"x": batch[0], "y": batch[1]}
    if not isinstance(batch, Mapping):
        raise SchemaError(f"{place}: sample_batch returns a dict of arrays by name, got {type(batch).__name__}")
    missing = [name for name in schema.names if name not in batch]
    extra = [name for name in batch if name not in schema]
    if missing or extra:
        wrong = f"field {missing[0]!r} is missing" if missing else f"field {extra[0]!r} is not in it"
        raise SchemaError(f"{place}: batch_schema has {schema.names}, {wrong}; return exactly these from sample_batch")
    columns = {name: _stored(batch[name], place, name) for name in schema.names}
    return columns, check_columns(columns, schema, place, "make it so in sample_batch")


def _stored(value: Any, place: str, name: str) -> tuple[str, Array]:
    try:
        return stored(value)
    except (Refusal, ValueError) as error:
        raise SchemaError(f"{place}, field {name!r}: {error}; return an array or a tensor of numbers") from error


def check_columns(columns: Columns, schema: Schema, place: str, advice: str) -> int:
    """How many rows there are, if every field is as the schema says and all have as many."""
    rows = -1
    for field in schema:
        dtype, array = columns[field.name]
        if dtype != field.dtype or not _has_shape(array.shape, field):
            expected, got = _told(field.dtype, ("rows", *(field.shape or ()))), _told(dtype, array.shape)
            raise SchemaError(f"{place}, field {field.name!r}: batch_schema says {expected}, got {got}; {advice}")
        rows = array.shape[0] if rows < 0 else rows
        if array.shape[0] != rows or rows == 0:
            raise SchemaError(
                f"{place}, field {field.name!r}: {array.shape[0]} rows, where {schema.names[0]!r} has {rows}; "
                "all fields of a batch have equally many, at least one"
            )
    return rows


def _has_shape(shape: tuple[int, ...], field: Field) -> bool:
    sizes = field.shape or ()
    return len(shape) == 1 + len(sizes) and all(a in (None, b) for a, b in zip(sizes, shape[1:], strict=True))


def _told(dtype: Any, shape: tuple[Any, ...]) -> str:
    return f"{dtype}[{', '.join('any' if size is None else str(size) for size in shape)}]"
