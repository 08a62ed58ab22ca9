"""Columns of rows that differ in length: from what a provider returns to the arrays of a file, and from there to users.

    list of arrays, (values, offsets), Arrow lists  --ragged_column-->  Ragged of numbers   shape [None, ...]
    list of str or bytes, Arrow strings             --text_column---->  Ragged of bytes     dtype string, binary

In a file a ragged column is two tensors: ``NAME`` with its values, ``NAME.offsets`` with int64 offsets. Every other
column is one array with a row in each entry of its first dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
from numpy.typing import NDArray

from poolish.columns import one_chunk
from poolish.errors import BadText
from poolish.ragged import Ragged
from poolish.rows.validate import ValueRejected, check_text, first_invalid
from poolish.rows.values import stored
from poolish.schema import Field, TensorType, bytes_of, is_tensor, numpy_dtype, offsets_of, readable, tensor_type
from poolish.schema.types import build_ragged, is_list

Array = NDArray[Any]
#: Name -> dtype, and the array that carries the bits (bfloat16 and float8 have none of their own in NumPy); a
#: ``Ragged`` of such arrays where rows differ in length.
Columns = Mapping[str, tuple[str, Array | Ragged]]

#: What the name of the tensor with a ragged column's offsets has behind that of the column.
OFFSETS = ".offsets"
#: Those that NumPy lacks: an array of unsigned integers carries their bits.
CARRIED = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2"})
#: Those whose rows are bytes, and the Arrow type of their columns.
TEXT = {"string": pa.large_string(), "binary": pa.large_binary()}


def is_variable(field: Field) -> bool:
    """Whether rows of a field may differ in length: text, bytes, and arrays whose first size alone is open.

    >>> is_variable(Field("tokens", "int32", (None, 4))), is_variable(Field("image", "uint8", (None, None)))
    (True, False)
    """
    shape = field.shape or ()
    return field.dtype in TEXT or (shape[:1] == (None,) and None not in shape[1:])


class RowRejected(ValueRejected):
    """The rejection of one row of a column, whose number is ``index``."""

    @classmethod
    def of(cls, rejection: ValueRejected, row: int) -> RowRejected:
        """The rejection of what is in a row."""
        rejected = cls(rejection.rule, rejection.value, rejection.advice, rejection.error)
        rejected.index = row
        return rejected


# From a provider ----------------------------------------------------------------------------------------------------


def ragged_column(value: Any, dtype: str, sizes: tuple[int, ...]) -> Ragged | None:
    """Rows of ``[any, *sizes]`` that a provider returned as a ragged column; None where they are one array.

    ``RowRejected`` names the row that does not fit, ``ValueRejected`` says what is wrong with the whole.
    """
    if isinstance(value, Ragged):
        return _pair(value.values, value.offsets, dtype, sizes)
    if isinstance(value, tuple):
        if len(value) != 2:
            rule = "a tuple is (values, offsets)"
            raise ValueRejected(rule, f"a tuple of {len(value)}", "return a list of rows, or (values, offsets)")
        return _pair(*value, dtype, sizes)
    if isinstance(value, (pa.Array, pa.ChunkedArray)):
        return _of_arrow(one_chunk(value), dtype, sizes)
    if isinstance(value, np.ndarray) and value.dtype == object:
        value = value.tolist()
    return _of_rows(value, dtype, sizes) if isinstance(value, list) else None


def _pair(values: Any, offsets: Any, dtype: str, sizes: tuple[int, ...]) -> Ragged:
    found, array = stored(values)
    _, numbers = stored(offsets)
    if found != dtype or array.ndim != 1 + len(sizes) or array.shape[1:] != sizes:
        raise _other(f"values {type_text(found, array.shape)}", dtype, sizes)
    if numbers.dtype.kind not in "iu":
        raise ValueRejected("offsets are whole numbers", offsets, "return (values, offsets)")
    column = Ragged(array, numbers.astype(np.int64, copy=False))
    problem = column.problem()
    if problem is not None:
        raise ValueRejected(f"of (values, offsets), {problem}", numbers, "make it so that row i ends at offsets[i + 1]")
    return column


def _of_rows(rows: list[Any], dtype: str, sizes: tuple[int, ...]) -> Ragged:
    are_plain = [isinstance(row, (list, tuple)) for row in rows]
    if all(are_plain):
        try:
            return Ragged(_of_numbers(list(chain.from_iterable(rows)), dtype, sizes), _offsets(map(len, rows)))
        except ValueRejected:
            pass  # the row is named below
    expected, parts = numpy_dtype(dtype), []
    for i, row in enumerate(rows):
        if type(row) is np.ndarray and row.dtype is expected and dtype not in CARRIED:
            found, part = dtype, row
        else:
            try:
                found, part = (dtype, _of_numbers(row, dtype, sizes)) if are_plain[i] else stored(row)
            except ValueRejected as rejection:
                raise RowRejected.of(rejection, i) from None
        if found != dtype or part.ndim != 1 + len(sizes) or part.shape[1:] != sizes:
            raise RowRejected.of(_other(type_text(found, part.shape), dtype, sizes), i)
        parts.append(part)
    values = np.concatenate(parts) if parts else np.empty((0, *sizes), expected)
    return Ragged(values, _offsets(map(len, parts)))


def _of_numbers(values: Sequence[Any], dtype: str, sizes: tuple[int, ...]) -> Array:
    """Python's numbers as an array of this dtype: whole numbers exactly, fractions only where it has fractions."""
    expected = numpy_dtype(dtype)
    if not values:
        return np.empty((0, *sizes), expected)
    try:
        found = np.array(values)
    except (ValueError, OverflowError) as error:
        raise _other(f"values that are no array ({error})", dtype, sizes) from None
    if found.shape[1:] != sizes or found.dtype.kind not in _HELD_BY.get(expected.kind, "") or dtype in CARRIED:
        raise _other(type_text(found.dtype.name, found.shape), dtype, sizes)
    array = found.astype(expected)
    if expected.kind in "iu" and not np.array_equal(array, found):
        wrong = found[array != found].flat[0]
        raise _other(f"the number {wrong}", dtype, sizes)
    return array


#: Kind of a dtype -> kinds of Python numbers that it holds.
_HELD_BY = {"b": "b", "i": "iu", "u": "iu", "f": "iuf", "c": "iufc"}


def _of_arrow(array: pa.Array, dtype: str, sizes: tuple[int, ...]) -> Ragged:
    _refuse_nulls(array)
    if isinstance(array.type, pa.FixedShapeTensorType):
        dense = array.to_numpy_ndarray()
        return _pair(dense.reshape(-1, *dense.shape[2:]), _offsets([dense.shape[1]] * len(dense)), dtype, sizes)
    if is_tensor(array.type):
        return _of_tensors(array, dtype, sizes)
    if not is_list(array.type):
        raise _other(f"an Arrow array of {array.type}", dtype, sizes)
    lengths, values = np.asarray(pc.list_value_length(array)), array.flatten()
    for _ in sizes:
        if not (kinds.is_fixed_size_list(values.type) or isinstance(values.type, pa.FixedShapeTensorType)):
            break
        _refuse_nulls(values)
        values = (values.storage if is_tensor(values.type) else values).flatten()
    _refuse_nulls(values)
    found, numbers = stored(values.to_numpy(zero_copy_only=False))
    shape = (int(lengths.sum()), *sizes)
    if found != dtype or numbers.size != int(np.prod(shape)):
        raise _other(f"an Arrow array of {array.type}", dtype, sizes)
    return Ragged(numbers.reshape(shape), _offsets(lengths))


def _of_tensors(array: pa.Array, dtype: str, sizes: tuple[int, ...]) -> Ragged:
    """Of a ragged tensor column of a buffer."""
    if array.type != tensor_type(dtype, (None, *sizes)):
        raise _other(f"a tensor column of {array.type}", dtype, sizes)
    data = array.storage.field("data")
    n_carriers, values = np.asarray(pc.list_value_length(data)), data.flatten()
    _refuse_nulls(values)
    numbers = np.ascontiguousarray(values.to_numpy(zero_copy_only=False)).view(numpy_dtype(dtype)).reshape(-1, *sizes)
    total = int(n_carriers.sum())
    per_row = total // len(numbers) if len(numbers) else 1
    return Ragged(numbers, _offsets(n_carriers // max(per_row, 1)))


def text_column(value: Any, dtype: str) -> Ragged:
    """Rows of text or bytes that a provider returned; ``ValueRejected`` names the row that is neither."""
    if isinstance(value, (pa.Array, pa.ChunkedArray)):
        array = one_chunk(value)
        if kinds.is_dictionary(array.type):
            array = array.dictionary_decode()
        if not any(is_kind(array.type) for is_kind in _ARROW_TEXT[dtype]):
            raise ValueRejected(f"rows are {_CALLED[dtype]}", array.type, "cast the column")
        array = array.cast(TEXT[dtype])
        try:
            check_text(array)
        except ValueRejected as rejection:
            raise RowRejected.of(rejection, rejection.index) from None
    else:
        array = _of_texts(value, dtype)
    _refuse_nulls(array)
    offsets = offsets_of(array).astype(np.int64, copy=False)
    first, last = int(offsets[0]), int(offsets[-1])
    return Ragged(bytes_of(array.buffers()[2])[first:last], offsets - first)


_CALLED = {"string": "text (str)", "binary": "bytes"}
_CLASSES: dict[str, type | tuple[type, ...]] = {"string": str, "binary": (bytes, bytearray)}
_ARROW_TEXT = {
    "string": (kinds.is_string, kinds.is_large_string, kinds.is_string_view),
    "binary": (kinds.is_binary, kinds.is_large_binary, kinds.is_binary_view),
}


def _of_texts(value: Any, dtype: str) -> pa.Array:
    if isinstance(value, np.ndarray) and value.dtype.kind in "USO" and value.ndim == 1:
        value = value.tolist()
    if not isinstance(value, (list, tuple)):
        raise ValueRejected(f"a list of {_CALLED[dtype]}, one for each row", value, "return a list")
    for i, text in enumerate(value):
        if not isinstance(text, _CLASSES[dtype]):
            raise RowRejected.of(ValueRejected(f"rows are {_CALLED[dtype]}", text, "convert it"), i)
    try:
        return pa.array(value, TEXT[dtype])
    except UnicodeEncodeError:
        i = next(i for i, text in enumerate(value) if not _is_encodable(text))
        raise RowRejected.of(ValueRejected("text has a UTF-8 form", value[i], "repair it", BadText), i) from None


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_nulls(array: pa.Array) -> None:
    if array.null_count:
        i = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise RowRejected.of(ValueRejected("a batch has no nulls", None, "leave the row out"), i)


def _offsets(lengths: Iterable[int]) -> NDArray[np.int64]:
    numbers = lengths if isinstance(lengths, np.ndarray) else np.fromiter(lengths, np.int64)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(numbers, dtype=np.int64)])


def _other(got: object, dtype: str, sizes: tuple[int, ...]) -> ValueRejected:
    return ValueRejected(f"batch_schema says {type_text(dtype, ('any', *sizes))} for each row", got, "make it so")


def type_text(dtype: str, shape: tuple[Any, ...]) -> str:
    """A dtype and a shape for a message.

    >>> type_text("int32", ("rows", None, 4))
    'int32[rows, any, 4]'
    """
    return f"{dtype}[{', '.join('any' if size is None else str(size) for size in shape)}]"


# To users -----------------------------------------------------------------------------------------------------------


def converted(columns: Columns, change: Callable[[Array, str], Any]) -> dict[str, Any]:
    """The columns with ``change(array, dtype)`` applied to each array; text is a list of str, bytes one of bytes."""
    return {
        name: _converted(dtype, array, change) if isinstance(array, Ragged) else change(array, dtype)
        for name, (dtype, array) in columns.items()
    }


def _converted(dtype: str, column: Ragged, change: Callable[[Array, str], Any]) -> Any:
    if dtype in TEXT:
        return text_array(column, dtype).to_pylist()
    return Ragged(change(column.values, dtype), change(column.offsets, "int64"))


def numpy_columns(columns: Columns) -> dict[str, Any]:
    """The columns of a batch as numbers that NumPy can calculate with."""
    return converted(columns, _calculable)


def _calculable(array: Array, dtype: str) -> Array:
    return readable(array, dtype) if dtype in CARRIED else array


def text_array(column: Ragged, dtype: str) -> pa.Array:
    """A column of text or bytes as Arrow has it, over the same memory."""
    buffers = [None, pa.py_buffer(column.offsets), pa.py_buffer(column.values)]
    return pa.Array.from_buffers(TEXT[dtype], len(column), buffers)


def first_bad_text(column: Ragged) -> int | None:
    """The first row that is not UTF-8; None if all are."""
    array = text_array(column, "string")
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return first_invalid(array, lambda part: part.validate(full=True))
    return None


def arrow_column(column: Ragged, dtype: str) -> pa.Array:
    """A ragged column as Arrow has it, for guards: text, bytes or ragged tensors; numbers are not copied."""
    if dtype in TEXT:
        return text_array(column, dtype)
    sizes = column.values.shape[1:]
    lengths = column.lengths
    shapes = np.column_stack([lengths, *(np.full_like(lengths, size) for size in sizes)])
    type_ = tensor_type(dtype, (None, *sizes))
    assert isinstance(type_, TensorType)
    return build_ragged(type_, shapes, np.ascontiguousarray(column.values).reshape(-1).view(np.uint8))
