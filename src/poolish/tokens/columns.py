"""Whole columns for ``append_many``: arrays of n rows, ragged ones with offsets, or Arrow arrays with nulls.

what a user has                       what the kernels take
array (n,) or (n, *shape)             flat numbers, a fixed count per row
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
from poolish.columns import one_chunk
from poolish.errors import PoolishError, SchemaError
from poolish.kernels.reference_tokens import ColumnTuple
from poolish.schema import is_tensor
from poolish.tokens.encoding import as_array, cannot_hold, check_order, encode_flat, flatten, refusal, shown
from poolish.tokens.fields import TokenField, type_of
from poolish.tokens.specs import Shape
from poolish.torch_bridge import is_torch_tensor

Int64 = NDArray[np.int64]
Array = NDArray[Any]


@dataclass(frozen=True)
class TokenColumn:
    """A field's numbers for n rows: ``width`` of them each, or as the offsets say."""

    type: int
    n_rows: int
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

    @property
    def is_empty(self) -> bool:
        """Whether no row has this field."""
        return self.present is not None and not self.present.any()

    def is_present(self, row: int) -> bool:
        """Whether a row has this field."""
        return self.present is None or bool(self.present[row])

    def lengths(self) -> Int64:
        """How many tokens each row gets."""
        each: Int64 = np.full(self.n_rows, self.width, np.int64) if self.offsets is None else np.diff(self.offsets)
        return each if self.present is None else each * self.present.astype(np.int64)

    def check_values(self, field: TokenField) -> None:
        """Raise the error for the first value that the field cannot hold, with the row it is in."""
        values = self.values
        if self.present is not None:
            each = self.width if self.offsets is None else np.diff(self.offsets)
            values = values[np.repeat(self.present.astype(np.bool_), each)]
        _, bad = kernels.encode(values, *field.slot[1:5])
        if bad >= 0:
            row = int(np.searchsorted(np.cumsum(self.lengths()), bad, side="right"))
            error = cannot_hold(field, values[bad])
            raise type(error)(f"row {row}, {error}")


def columns_of(
    fields: Sequence[TokenField], ids: Mapping[str, int], given: Mapping[str, Any], n: int
) -> list[TokenColumn]:
    """The columns a user gave, in declaration order."""
    if not isinstance(given, Mapping):
        raise SchemaError(f"append_many takes {{field: column}}, got {shown(given)}")
    typed = {type_of(ids, name): column for name, column in given.items()}
    if len(typed) < len(given):
        raise SchemaError(f"append_many: a field is there twice in {list(given)}; leave one out")
    return [_column(fields[type_], type_, typed[type_], n) for type_ in sorted(typed)]


def _column(field: TokenField, type_: int, given: Any, n: int) -> TokenColumn:
    if isinstance(given, (pa.Array, pa.ChunkedArray)):
        column = _from_arrow(field, type_, given)
    elif _is_ragged(field, given):
        column = _with_offsets(field, type_, *given)
    else:
        column = _from_rows(field, type_, given)
    if column.n_rows != n:
        raise SchemaError(f"field {field.name!r}: {n} steps need {n} rows, got {column.n_rows}")
    _check_lengths(field, column)
    return column


def _is_ragged(field: TokenField, given: Any) -> bool:
    """Whether this is (values, offsets): two arrays, for a field that holds many numbers a step."""
    return (
        isinstance(given, tuple)
        and len(given) == 2
        and field.shape != ()
        and all(isinstance(part, (list, np.ndarray, pa.Array)) or is_torch_tensor(part) for part in given)
    )


def _rest(field: TokenField) -> tuple[int, ...]:
    """The dimensions behind the first, which are the same in every row."""
    return tuple(n or 0 for n in (field.shape or (None,))[1:])


def _with_offsets(field: TokenField, type_: int, values: Any, offsets: Any) -> TokenColumn:
    flat, shape = flatten(field, values)
    if len(shape) > 1 and shape[1:] != _rest(field):
        raise refusal(field, f"holds rows of shape {_rest(field)}", values)
    ends = np.asarray(offsets)
    if ends.dtype.kind not in "iu" or ends.ndim != 1 or len(ends) == 0:
        raise SchemaError(f"field {field.name!r}: offsets are n + 1 whole numbers, got {shown(offsets)}")
    size = int(np.prod(shape[1:], dtype=np.int64))
    ends = ends.astype(np.int64)
    if ends[0] != 0 or ends[-1] != len(flat) // max(size, 1) or np.any(np.diff(ends) < 0):
        raise SchemaError(
            f"field {field.name!r}: offsets go up from 0 to the number of values, {len(flat) // max(size, 1)}, "
            f"got {ends[0]} to {ends[-1]}; offsets[i]:offsets[i + 1] is row i"
        )
    return TokenColumn(type_, len(ends) - 1, _numbers(field, flat), -1, np.ascontiguousarray(ends * size))


def _from_rows(field: TokenField, type_: int, given: Any) -> TokenColumn:
    rows = as_array(field, given)
    if isinstance(rows, (list, tuple)):
        return _from_list(field, type_, rows)
    if not isinstance(rows, np.ndarray) or rows.ndim == 0:
        raise refusal(field, "needs a column with a row for each step", given)
    flat = np.ascontiguousarray(rows).reshape(-1)
    return _checked(field, type_, len(rows), flat, rows.shape[1:], given)


def _from_list(field: TokenField, type_: int, rows: Sequence[Any]) -> TokenColumn:
    parts = [flatten(field, row) for row in rows]
    shapes = {shape for _, shape in parts}
    n_dims = len(field.shape or (None,))
    if len(shapes) > 1 and all(len(shape) == n_dims or shape == (0,) for shape in shapes):
        return _joined(field, type_, parts)
    if len(shapes) > 1:
        raise refusal(field, f"needs rows that are alike, these have the shapes {sorted(shapes)}", rows)
    shape = shapes.pop() if shapes else tuple(n or 0 for n in field.shape or ())
    if shape == (0,) and n_dims > 1:
        shape = (0, *_rest(field))
    numbers = _as_numbers(field, np.concatenate(_encoded(field, parts)) if parts else np.empty(0, np.int64))
    return _checked(field, type_, len(rows), numbers, shape, rows)


def _encoded(field: TokenField, parts: list[tuple[Any, tuple[int, ...]]]) -> list[Int64]:
    """The tokens of each row; what does not fit is refused with the row it is in."""
    tokens = []
    for row, (flat, _) in enumerate(parts):
        try:
            tokens.append(encode_flat(field, flat))
        except PoolishError as error:
            raise type(error)(f"row {row}, {error}") from None
    return tokens


def _joined(field: TokenField, type_: int, parts: list[tuple[Any, tuple[int, ...]]]) -> TokenColumn:
    """Rows of different lengths, one behind the other."""
    for _, shape in parts:
        if shape[1:] != _rest(field) and shape != (0,):
            raise refusal(field, f"holds rows of shape {('any', *_rest(field))}", shape)
    tokens = _encoded(field, parts)
    offsets = np.cumsum([0, *map(len, tokens)], dtype=np.int64)
    return TokenColumn(type_, len(parts), _as_numbers(field, np.concatenate(tokens)), -1, offsets)


def _checked(field: TokenField, type_: int, n: int, flat: Array, shape: tuple[int, ...], given: Any) -> TokenColumn:
    expected = field.shape if field.shape is not None else (None,) * min(len(shape), 1)
    if len(shape) != len(expected) or any(n not in (None, m) for n, m in zip(expected, shape, strict=True)):
        raise refusal(field, f"needs rows of shape {tuple('any' if n is None else n for n in expected)}", given)
    width = int(np.prod(shape, dtype=np.int64))
    return TokenColumn(type_, n, flat, width, kind=kernels.SEQUENCE if shape else kernels.SCALAR)


def _numbers(field: TokenField, flat: Array | list[Any]) -> Array:
    return flat if isinstance(flat, np.ndarray) else _as_numbers(field, encode_flat(field, flat))


def _as_numbers(field: TokenField, tokens: Int64) -> Array:
    """Tokens as numbers that become the same tokens again."""
    return tokens.view(np.float64) if field.is_float else tokens


def _check_lengths(field: TokenField, column: TokenColumn) -> None:
    """Whether each row of a ragged column has a length that its shape allows."""
    if column.offsets is None or not field.shape or field.shape == (None,):
        return
    lengths = np.diff(column.offsets)
    size = int(np.prod([n for n in field.shape if n is not None], dtype=np.int64))
    bad = (lengths % size != 0) if field.shape[0] is None else (lengths != size)
    if column.present is not None:
        bad &= column.present.astype(np.bool_)
    if bad.any():
        row = int(np.argmax(bad))
        raise SchemaError(
            f"field {field.name!r}, row {row}: {lengths[row]} numbers do not fit the shape {field.shape}; reshape them"
        )


def check_columns(
    fields: Sequence[TokenField], last: tuple[int, int], steps: Int64, columns: Sequence[TokenColumn]
) -> None:
    """Refuse rows that are not one step each, behind ``last`` (a step and a type), with at least one field."""
    if not columns:
        raise SchemaError("append_many needs at least one column, or no steps")
    bad = np.flatnonzero(np.diff(steps) <= 0)
    if len(bad):
        row = int(bad[0]) + 1
        raise SchemaError(f"row {row}: step {steps[row]} after {steps[row - 1]}; each row is a step of its own")
    masks = [column.present for column in columns if column.present is not None]
    here = np.any(masks, axis=0) if len(masks) == len(columns) else np.ones(1, np.bool_)
    if not here.all():
        row = int(np.argmin(here))
        raise SchemaError(f"row {row}: every field is missing, and a step without fields cannot be kept; drop it")
    first_type = next(column.type for column in columns if column.is_present(0))
    check_order(fields, last, (int(steps[0]), first_type))


# Arrow ---------------------------------------------------------------------------------------------------------


def _from_arrow(field: TokenField, type_: int, given: pa.Array | pa.ChunkedArray) -> TokenColumn:
    array = one_chunk(given)
    if kinds.is_null(array.type):  # nothing is known of a column in which nothing is
        absent = np.zeros(len(array), np.uint8)
        return TokenColumn(type_, len(array), np.empty(0, np.int64), 0, None, absent, kernels.UNDECIDED)
    present = None
    if array.null_count:
        present = np.ascontiguousarray(array.is_valid().to_numpy(zero_copy_only=False)).view(np.uint8)
    shape = field.shape
    if shape is None:
        shape = (None,) if _is_list(array.type) else ()
    values, offsets, width = _unnested(field, array, shape)
    kind = kernels.SEQUENCE if shape else kernels.SCALAR
    return TokenColumn(type_, len(array), values, width, offsets, present, kind)


def _is_list(type_: pa.DataType) -> bool:
    inner = type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_
    return bool(kinds.is_list(inner) or kinds.is_large_list(inner) or kinds.is_fixed_size_list(inner))


def _unnested(field: TokenField, array: pa.Array, shape: Shape) -> tuple[Array, Int64 | None, int]:
    """Flat numbers, offsets where rows differ in length, and else the numbers a row."""
    if isinstance(array.type, pa.BaseExtensionType):
        if is_tensor(array.type) and not _is_list(array.type):
            raise refusal(field, "takes lists of Arrow, not ragged tensors", array.type)
        return _unnested(field, array.storage, shape)
    if not shape:
        return _plain(field, array), None, 1
    if not _is_list(array.type):
        raise refusal(field, "holds lists", array.type)
    inner, ends = _opened(array)
    _check_rows(field, array, inner, ends, shape[0])
    flat, offsets, width = _unnested(field, inner, shape[1:])
    if offsets is not None:
        return flat, np.ascontiguousarray(offsets[ends]), -1
    if kinds.is_fixed_size_list(array.type):
        return flat, None, width * array.type.list_size
    return flat, ends * width, -1


def _opened(array: pa.Array) -> tuple[pa.Array, Int64]:
    """The items of an array of lists, and where each list ends among them."""
    if kinds.is_fixed_size_list(array.type):
        size = array.type.list_size
        return array.values.slice(array.offset * size, len(array) * size), np.arange(len(array) + 1) * size
    ends = array.offsets.to_numpy().astype(np.int64)
    return array.values.slice(ends[0], ends[-1] - ends[0]), ends - ends[0]


def _check_rows(field: TokenField, array: pa.Array, inner: pa.Array, ends: Int64, size: int | None) -> None:
    """A row may be missing; a number within a row may not, and rows have the length that the shape asks for."""
    there = array.is_valid().to_numpy(zero_copy_only=False)
    lengths = np.diff(ends)
    if size is not None and np.any(there & (lengths != size)):
        row = int(np.argmax(there & (lengths != size)))
        raise SchemaError(f"field {field.name!r}: lists of {size} are needed, row {row} has {lengths[row]}; reshape it")
    if inner.null_count and np.any(np.repeat(there, lengths) & inner.is_null().to_numpy(zero_copy_only=False)):
        raise SchemaError(f"field {field.name!r}: a null inside a list has no number; fill it, or leave the row out")


def _plain(field: TokenField, array: pa.Array) -> Array:
    if not (kinds.is_integer(array.type) or kinds.is_floating(array.type) or kinds.is_boolean(array.type)):
        raise refusal(field, "holds one number a step" if not field.shape else "holds numbers", array.type)
    if array.null_count:  # rows that are not there, as the caller knows
        array = array.fill_null(False if kinds.is_boolean(array.type) else 0)
    return np.ascontiguousarray(array.to_numpy(zero_copy_only=False))
