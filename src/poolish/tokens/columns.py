"""Whole columns for ``append_many``: arrays of n rows, ragged ones with offsets, or Arrow arrays with nulls.

what a user has                       what the kernels take
array (n,) or (n, *shape)             flat numbers, so many a row
(values, offsets), list of arrays     flat numbers and n + 1 offsets
Arrow array                           the same, and which rows are there: a null is a field left out
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds
from numpy.typing import NDArray

from poolish import kernels
from poolish.errors import SchemaError, UnknownColumn
from poolish.kernels.reference_tokens import ColumnTuple
from poolish.schema import dtype_and_shape, is_tensor
from poolish.tokens.fields import TokenField
from poolish.tokens.values import as_array, encode_flat, flatten, refusal, shown
from poolish.tokens.values import is_tensor as is_torch_tensor

Int64 = NDArray[np.int64]
Array = NDArray[Any]


@dataclass(frozen=True)
class Column:
    """A field's numbers for n steps."""

    type: int
    values: Array
    width: int
    offsets: Int64 | None = None
    present: NDArray[np.uint8] | None = None
    kind: int = kernels.SEQUENCE

    @property
    def parts(self) -> ColumnTuple:
        """What the kernels take."""
        return self.type, self.values, self.width, self.offsets, self.present

    @property
    def n_tokens(self) -> int:
        """How many tokens it may become."""
        return len(self.values)


def columns_of(fields: Sequence[TokenField], ids: Mapping[str, int], given: Mapping[str, Any], n: int) -> list[Column]:
    """The columns a user gave, in declaration order."""
    if not isinstance(given, Mapping):
        raise SchemaError(f"append_many takes {{field: column}}, got {shown(given)}")
    unknown = [name for name in given if name not in ids]
    if unknown:
        raise UnknownColumn(f"no field {unknown[0]!r} in this stream; there are {list(ids)}")
    return [_column(fields[ids[name]], ids[name], given[name], n) for name in ids if name in given]


def _column(field: TokenField, type_: int, given: Any, n: int) -> Column:
    if isinstance(given, (pa.Array, pa.ChunkedArray)):
        column = _from_arrow(field, type_, given)
    elif _is_ragged(field, given):
        column = _with_offsets(field, type_, *given)
    else:
        column = _from_rows(field, type_, given)
    n_rows = len(column.offsets) - 1 if column.offsets is not None else _count(column, n)
    if n_rows != n:
        raise SchemaError(f"field {field.name!r}: {n} steps need {n} rows, got {n_rows}")
    _check_lengths(field, column)
    return column


def _count(column: Column, n: int) -> int:
    if column.present is not None:
        return len(column.present)
    return len(column.values) // column.width if column.width else n


def _is_ragged(field: TokenField, given: Any) -> bool:
    """Whether this is (values, offsets): two arrays, for a field that holds many numbers a step."""
    return (
        isinstance(given, tuple)
        and len(given) == 2
        and field.shape != ()
        and all(isinstance(part, (list, np.ndarray, pa.Array)) or is_torch_tensor(part) for part in given)
    )


def _with_offsets(field: TokenField, type_: int, values: Any, offsets: Any) -> Column:
    flat, shape = flatten(field, np.asarray(values) if isinstance(values, pa.Array) else values)
    rest = tuple(field.shape or (None,))[1:]
    if shape[1:] != rest and len(shape) > 1:
        raise refusal(field, f"holds rows of shape {rest}", values)
    ends = np.asarray(offsets)
    if ends.dtype.kind not in "iu" or ends.ndim != 1 or len(ends) == 0:
        raise SchemaError(f"field {field.name!r}: offsets are n + 1 whole numbers, got {shown(offsets)}")
    size = int(np.prod(shape[1:], dtype=np.int64))
    ends = ends.astype(np.int64) * size
    if ends[0] != 0 or ends[-1] != len(flat) or np.any(np.diff(ends) < 0):
        raise SchemaError(
            f"field {field.name!r}: offsets go up from 0 to the number of values, {len(flat) // max(size, 1)}, "
            f"got {ends[0] // max(size, 1)} to {ends[-1] // max(size, 1)}; offsets[i]:offsets[i + 1] is row i"
        )
    return Column(type_, _numbers(field, flat), -1, np.ascontiguousarray(ends))


def _from_rows(field: TokenField, type_: int, given: Any) -> Column:
    rows = as_array(field, given)
    if isinstance(rows, (list, tuple)):
        parts = [flatten(field, row) for row in rows]
        shapes = {shape for _, shape in parts}
        if len(shapes) > 1 and {len(shape) for shape in shapes} == {len(field.shape or (None,))}:
            return _joined(field, type_, parts)
        if len(shapes) > 1:
            raise refusal(field, f"needs rows that are alike, these have the shapes {sorted(shapes)}", given)
        flat = [number for numbers, _ in parts for number in numbers]
        shape = shapes.pop() if shapes else tuple(n or 0 for n in field.shape or ())
        return _checked(field, type_, _numbers(field, flat), shape, given)
    if not isinstance(rows, np.ndarray) or rows.ndim == 0:
        raise refusal(field, "needs a column with a row for each step", given)
    return _checked(field, type_, np.ascontiguousarray(rows).reshape(-1), rows.shape[1:], given)


def _joined(field: TokenField, type_: int, parts: list[tuple[Any, tuple[int, ...]]]) -> Column:
    """Rows of different lengths, one behind the other."""
    rest = tuple(field.shape or (None,))[1:]
    for _, shape in parts:
        if shape[1:] != rest and shape != (0,):
            raise refusal(field, f"holds rows of shape (any, {', '.join(map(str, rest))})", shape)
    tokens = [encode_flat(field, flat) for flat, _ in parts]
    offsets = np.cumsum([0, *map(len, tokens)], dtype=np.int64)
    return Column(type_, _as_numbers(field, np.concatenate(tokens)), -1, offsets)


def _checked(field: TokenField, type_: int, flat: Array, shape: tuple[int, ...], given: Any) -> Column:
    expected = field.shape if field.shape is not None else (None,) * min(len(shape), 1)
    if len(shape) != len(expected) or any(n not in (None, m) for n, m in zip(expected, shape, strict=True)):
        raise refusal(field, f"needs rows of shape {tuple('any' if n is None else n for n in expected)}", given)
    width = int(np.prod(shape, dtype=np.int64))
    return Column(type_, flat, width, kind=kernels.SEQUENCE if shape else kernels.SCALAR)


def _numbers(field: TokenField, flat: Array | list[Any]) -> Array:
    return flat if isinstance(flat, np.ndarray) else _as_numbers(field, encode_flat(field, flat))


def _as_numbers(field: TokenField, tokens: Int64) -> Array:
    """Tokens as numbers that become the same tokens again."""
    return tokens.view(np.float64) if field.is_float else tokens


def _check_lengths(field: TokenField, column: Column) -> None:
    """Whether each row of a ragged column has a length that its shape allows."""
    if column.offsets is None or not field.shape:
        return
    lengths = np.diff(column.offsets)
    size = int(np.prod([n for n in field.shape if n is not None], dtype=np.int64))
    here = np.ones(len(lengths), np.bool_) if column.present is None else column.present.astype(np.bool_)
    bad = here & ((lengths % size != 0) if field.shape[0] is None and size else (lengths != size) & (size > 0))
    if field.shape != (None,) and bad.any():
        row = int(np.argmax(bad))
        raise SchemaError(
            f"field {field.name!r}, row {row}: {lengths[row]} numbers do not fit the shape {field.shape}; reshape them"
        )


# Arrow ---------------------------------------------------------------------------------------------------------


def _from_arrow(field: TokenField, type_: int, given: pa.Array | pa.ChunkedArray) -> Column:
    array = given.combine_chunks() if isinstance(given, pa.ChunkedArray) else given
    if isinstance(array, pa.ChunkedArray):  # of no chunks, or of more than one array can hold
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.nulls(0, array.type)
    present = None
    if array.null_count:
        present = np.ascontiguousarray(array.is_valid().to_numpy(zero_copy_only=False)).view(np.uint8)
    values, offsets, width, kind = _unnested(field, array)
    column = Column(type_, values, width, offsets, present, kind)
    expected = kernels.SCALAR if field.shape == () else kernels.SEQUENCE
    if kind != expected and field.shape is not None:
        raise refusal(field, "holds one number a step" if field.shape == () else "holds lists", array.type)
    return column


def _unnested(field: TokenField, array: pa.Array) -> tuple[Array, Int64 | None, int, int]:
    """Flat numbers, offsets where rows differ, numbers a row, and the kind."""
    if isinstance(array.type, pa.BaseExtensionType):
        storage = array.storage
        if is_tensor(array.type) and kinds.is_struct(storage.type):
            raise refusal(field, f"takes no ragged {dtype_and_shape(array.type)[0]} tensors", array.type)
        return _unnested(field, storage)
    if kinds.is_fixed_size_list(array.type):
        size = array.type.list_size
        inner = array.values.slice(array.offset * size, len(array) * size)
        _refuse_holes(field, array, inner, np.full(len(array), size))
        flat, offsets, width, _ = _unnested(field, inner)
        if offsets is not None:
            return (
                flat,
                np.ascontiguousarray(offsets[::size] if size else np.zeros(len(array) + 1, np.int64)),
                -1,
                kernels.SEQUENCE,
            )
        return flat, None, width * size, kernels.SEQUENCE
    if kinds.is_list(array.type) or kinds.is_large_list(array.type):
        ends = array.offsets.to_numpy().astype(np.int64)
        inner = array.values.slice(ends[0], ends[-1] - ends[0])
        _refuse_holes(field, array, inner, np.diff(ends))
        flat, offsets, width, _ = _unnested(field, inner)
        ends -= ends[0]
        return flat, ends * width if offsets is None else offsets[ends], -1, kernels.SEQUENCE
    return _plain(field, array), None, 1, kernels.SCALAR


def _refuse_holes(field: TokenField, array: pa.Array, inner: pa.Array, lengths: NDArray[Any]) -> None:
    """A row may be missing; a number within a row may not."""
    if inner.null_count:
        there = np.repeat(array.is_valid().to_numpy(zero_copy_only=False), lengths)
        if np.any(there & inner.is_null().to_numpy(zero_copy_only=False)):
            raise SchemaError(
                f"field {field.name!r}: a null inside a list has no number; fill it, or leave the row out"
            )


def _plain(field: TokenField, array: pa.Array) -> Array:
    if kinds.is_null(array.type):
        return np.zeros(len(array), np.int64)
    if not (kinds.is_integer(array.type) or kinds.is_floating(array.type) or kinds.is_boolean(array.type)):
        raise refusal(field, "holds numbers", array.type)
    if array.null_count:  # rows that are not there, as the caller knows
        array = array.fill_null(False if kinds.is_boolean(array.type) else 0)
    return np.ascontiguousarray(array.to_numpy(zero_copy_only=False))
