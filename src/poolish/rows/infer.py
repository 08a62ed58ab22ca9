"""Which type of column a value asks for.

The first real value decides. Later values settle what was open: a column of nulls, an empty list, and, within the first
append, whether arrays have one shape or are ragged. Whether a value then fits is for its cell to say.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from poolish.errors import LimitExceeded
from poolish.rows import arrays, images
from poolish.rows.cells import is_bytes_view
from poolish.rows.refusal import Refusal
from poolish.schema import dtype_and_shape, is_tensor, tensor_type
from poolish.schema.arrow import MAX_NESTING


def type_of(value: object) -> pa.DataType:
    """The type of column that a value asks for; parts that only hold None stay open (``pa.null()``).

    >>> type_of({"x": 1.5, "tags": []})
    StructType(struct<x: double, tags: large_list<item: null>>)
    """
    return widen(pa.null(), value)


def widen(known: pa.DataType, value: object, depth: int = 0) -> pa.DataType:
    """The type after one more value: open parts are settled, shapes that differ become ragged, nothing else changes."""
    if depth > MAX_NESTING:
        raise Refusal(
            f"values nest at most {MAX_NESTING} deep", "a deeper one", "flatten it before append", LimitExceeded
        )
    if value is None:
        return known
    if arrays.is_array(value) and not isinstance(value, np.generic):
        return _widen_tensor(known, value, depth)
    row = arrays.as_dict(value)
    if row is not None:
        return _widen_struct(known, row, depth)
    values = arrays.as_list(value)
    if values is not None:
        return _widen_list(known, values, depth)
    return _scalar_type(value) if kinds.is_null(known) else known


def _widen_tensor(known: pa.DataType, value: object, depth: int) -> pa.DataType:
    values = arrays.as_list(value)
    if values is not None:
        return _widen_list(known, values, depth)
    dtype, array = arrays.stored(value)
    if array.shape == () and dtype in _SCALAR_DTYPES:
        return pa.from_numpy_dtype(array.dtype) if kinds.is_null(known) else known
    if kinds.is_null(known):
        return tensor_type(dtype, array.shape)
    if not is_tensor(known):
        return known
    known_dtype, shape = dtype_and_shape(known)
    if known_dtype != dtype or len(shape) != len(array.shape):
        return known
    return tensor_type(dtype, tuple(a if a == b else None for a, b in zip(shape, array.shape, strict=True)))


_SCALAR_DTYPES = frozenset(
    ["bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float16", "float32", "float64"]
)


def _widen_list(known: pa.DataType, values: Sequence[object], depth: int) -> pa.DataType:
    if not kinds.is_null(known) and not kinds.is_large_list(known):
        return known
    element = pa.null() if kinds.is_null(known) else known.value_type
    return pa.large_list(widen_all(element, values, depth + 1))


def _widen_struct(known: pa.DataType, row: dict[str, object], depth: int) -> pa.DataType:
    if kinds.is_null(known):
        return pa.struct([pa.field(name, widen(pa.null(), value, depth + 1)) for name, value in row.items()])
    if not kinds.is_struct(known):
        return known
    fields = [known.field(i) for i in range(known.num_fields)]
    return pa.struct([pa.field(field.name, widen(field.type, row.get(field.name), depth + 1)) for field in fields])


def widen_all(known: pa.DataType, values: Sequence[object], depth: int = 0) -> pa.DataType:
    """The type after many values; stops looking as soon as no value could change it."""
    for i, value in enumerate(values):
        if _is_settled(known):
            return known
        try:
            known = widen(known, value, depth)
        except Refusal as refusal:
            refusal.index = i
            raise
    return known


def _is_settled(type_: pa.DataType) -> bool:
    """Plain scalars cannot change any more; nested types may hold open parts, tensors may become ragged."""
    return not (kinds.is_null(type_) or is_tensor(type_) or kinds.is_nested(type_))


def _scalar_type(value: object) -> pa.DataType:
    if isinstance(value, (bool, np.bool_)):
        return pa.bool_()
    if isinstance(value, np.generic) and value.dtype.kind in "iuf":
        return _numpy_type(value)
    if isinstance(value, int):
        return pa.int64()
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, str):
        return pa.large_string()
    if isinstance(value, (bytes, bytearray)) or is_bytes_view(value) or images.is_image(value):
        return pa.large_binary()
    if isinstance(value, (complex, np.complexfloating)):
        return tensor_type("complex128" if isinstance(value, complex) else value.dtype.name, ())
    return _other_type(value)


def _other_type(value: object) -> pa.DataType:
    """Times, decimals, UUIDs: whatever else Arrow takes for one value."""
    try:
        type_ = pa.scalar(value).type
    except (pa.ArrowException, TypeError, ValueError):
        type_ = None
    if type_ is None or isinstance(value, pa.Scalar) or kinds.is_nested(type_) or kinds.is_null(type_):
        raise Refusal(
            "a cell holds numbers, text, bytes, times, arrays, images, lists and dicts of these",
            value,
            "convert it, or register a normalizer for its class",
        )
    if kinds.is_decimal(type_):
        return pa.decimal128(38, type_.scale)  # the first value decides the scale; larger numbers of it may come
    if kinds.is_timestamp(type_) and getattr(value, "unit", None) == "ns":  # a pandas Timestamp
        return pa.timestamp("ns", type_.tz)
    return type_


def _numpy_type(value: np.generic) -> pa.DataType:
    try:
        return pa.from_numpy_dtype(value.dtype)
    except pa.ArrowNotImplementedError:
        raise Refusal(f"Arrow has no {value.dtype.name}", value, "convert it to float64 before append") from None


def settle(known: pa.DataType, other: pa.DataType) -> pa.DataType:
    """``known`` with its open parts taken from ``other``.

    >>> settle(pa.large_list(pa.null()), pa.large_list(pa.int64()))
    LargeListType(large_list<item: int64>)
    """
    if kinds.is_null(known):
        return other
    if kinds.is_large_list(known) and kinds.is_large_list(other):
        return pa.large_list(settle(known.value_type, other.value_type))
    if kinds.is_struct(known) and kinds.is_struct(other):
        fields = [known.field(i) for i in range(known.num_fields)]
        theirs = {other.field(i).name: other.field(i).type for i in range(other.num_fields)}
        return pa.struct([pa.field(f.name, settle(f.type, theirs.get(f.name, pa.null()))) for f in fields])
    return known


def ragged(known: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The tensor type that holds both, where only their shapes differ; otherwise ``known``."""
    if known == other or not (is_tensor(known) and is_tensor(other)):
        return known
    (dtype, shape), (other_dtype, other_shape) = dtype_and_shape(known), dtype_and_shape(other)
    if dtype != other_dtype or len(shape) != len(other_shape):
        return known
    return tensor_type(dtype, tuple(a if a == b else None for a, b in zip(shape, other_shape, strict=True)))
