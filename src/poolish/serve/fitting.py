"""Does a batch keep the promise of its ``batch_schema``: checked before it leaves a provider and when it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from poolish.errors import SchemaError
from poolish.rows.validate import ValueRejected
from poolish.rows.values import stored
from poolish.schema import Schema, numpy_dtype
from poolish.serve.batch_file import Array, Columns


class Promise:
    """What a ``batch_schema`` promises of every batch.

    >>> promise = Promise(Schema.of([{"name": "x", "dtype": "int64", "shape": [2]}]))
    >>> promise.columns_of({"x": [[1, 2], [3, 4], [5, 6]]}, "batch 7")[1]
    3
    >>> promise.columns_of({"x": [[1.5, 2.0]]}, "batch 7")
    Traceback (most recent call last):
    poolish.errors.SchemaError: batch 7, field 'x': batch_schema says int64[rows, 2], got float64[1, 2]; make it so ...
    """

    def __init__(self, schema: Schema) -> None:
        self._fields = [(field.name, str(field.dtype), field.shape or ()) for field in schema]
        self.names = {name: None for name, _, _ in self._fields}.keys()
        # Arrays of these need no second look; bfloat16 and float8 have no dtype of their own in NumPy.
        self._own = {name: numpy_dtype(dtype) for name, dtype, _ in self._fields if numpy_dtype(dtype) == _named(dtype)}

    def columns_of(self, batch: Any, place: str) -> tuple[dict[str, tuple[str, Array]], int]:
        """The arrays of what ``sample_batch`` returned, and how many rows; anything that does not fit is an error."""
        if isinstance(batch, tuple) and list(self.names) == ["x", "y"] and len(batch) == 2:
            batch = {"x": batch[0], "y": batch[1]}
        if not isinstance(batch, Mapping):
            raise SchemaError(f"{place}: sample_batch returns a dict of arrays by name, got {type(batch).__name__}")
        if batch.keys() != self.names:
            raise self._other_names(batch, place)
        columns = {name: self._stored(batch[name], place, name, dtype) for name, dtype, _ in self._fields}
        return columns, self.check(columns, place, "make it so in sample_batch")

    def _other_names(self, batch: Mapping[str, Any], place: str) -> SchemaError:
        missing = [name for name in self.names if name not in batch]
        extra = [name for name in batch if name not in self.names]
        wrong = f"field {missing[0]!r} is missing" if missing else f"field {extra[0]!r} is not in it"
        return SchemaError(
            f"{place}: batch_schema has {list(self.names)}, {wrong}; return exactly these from sample_batch"
        )

    def _stored(self, value: Any, place: str, name: str, dtype: str) -> tuple[str, Array]:
        if type(value) is np.ndarray and value.dtype is self._own.get(name):
            return dtype, value
        try:
            return stored(value)
        except (ValueRejected, ValueError) as error:
            raise SchemaError(f"{place}, field {name!r}: {error}; return an array or a tensor of numbers") from error

    def check(self, columns: Columns, place: str, advice: str) -> int:
        """How many rows there are, if every field is as promised and all have as many."""
        rows = -1
        for name, promised, sizes in self._fields:
            dtype, array = columns[name]
            if dtype != promised or not _has_shape(array.shape, sizes):
                expected, got = _told(promised, ("rows", *sizes)), _told(dtype, array.shape)
                raise SchemaError(f"{place}, field {name!r}: batch_schema says {expected}, got {got}; {advice}")
            rows = array.shape[0] if rows < 0 else rows
            if array.shape[0] != rows or rows == 0:
                raise SchemaError(
                    f"{place}, field {name!r}: {array.shape[0]} rows, where {self._fields[0][0]!r} has {rows}; "
                    "all fields of a batch have equally many, at least one"
                )
        return rows


def _named(dtype: str) -> object:
    try:
        return np.dtype(dtype)
    except TypeError:
        return None


def _has_shape(shape: tuple[int, ...], sizes: tuple[int | None, ...]) -> bool:
    if len(shape) != 1 + len(sizes):
        return False
    return shape[1:] == sizes or all(a is None or a == b for a, b in zip(sizes, shape[1:], strict=True))


def _told(dtype: str, shape: tuple[Any, ...]) -> str:
    return f"{dtype}[{', '.join('any' if size is None else str(size) for size in shape)}]"
