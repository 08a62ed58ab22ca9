"""Arrow arrays to Python values, NumPy arrays and torch tensors.

``reader(array)`` inspects an array's buffers once and returns a function from position to value. A memoryview returns a
Python number in 30 ns, an Arrow scalar takes a microsecond; this is what makes ``buffer[i]`` cheap.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds
from numpy.typing import NDArray

from poolish import torch_bridge
from poolish.errors import SchemaError
from poolish.schema import dtype_and_shape, is_tensor, numpy_dtype, readable

Reader = Callable[[int], Any]

_FORMATS = {
    **{getattr(pa, f"int{bits}")(): code for bits, code in ((8, "b"), (16, "h"), (32, "i"), (64, "q"))},
    **{getattr(pa, f"uint{bits}")(): code for bits, code in ((8, "B"), (16, "H"), (32, "I"), (64, "Q"))},
    pa.float32(): "f",
    pa.float64(): "d",
}


#: Numbers that Python's own would widen: a collate function makes int64, float64 and bool of those.
_NARROW = (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32(), pa.float16(), pa.float32())


def reader(array: pa.Array, typed: bool = False) -> Reader:
    """A function that gives the value of ``array`` at a position: lists, dicts, arrays for tensors, None for null.

    ``typed`` gives numbers that Python would widen as NumPy's, which keep their dtype in a batch.

    >>> read = reader(pa.array(["rye", None], pa.large_string()))
    >>> read(0), read(1)
    ('rye', None)
    >>> reader(pa.array([0.5], pa.float32()))(0), reader(pa.array([0.5], pa.float32()), typed=True)(0)
    (0.5, np.float32(0.5))
    """
    if kinds.is_null(array.type):
        return lambda i: None
    read = _present(array, typed)
    if array.null_count == 0:
        return read
    valid, first = (
        memoryview(array.buffers()[0] if not _is_extension(array) else array.storage.buffers()[0]),
        _offset(array),
    )

    def read_or_none(i: int) -> Any:
        bit = i + first
        return read(i) if (valid[bit >> 3] >> (bit & 7)) & 1 else None

    return read_or_none


def _present(array: pa.Array, typed: bool) -> Reader:
    """A reader that may be asked only for positions that are not null."""
    type_ = array.type
    if typed and type_ in _NARROW:
        return number_rows(array).__getitem__
    if typed and kinds.is_uint64(type_):  # torch collates no NumPy scalars of this dtype, but arrays
        numbers = number_rows(array)
        return lambda i: numbers[i : i + 1].reshape(()).copy()
    if is_tensor(type_):
        return _ragged(array) if None in dtype_and_shape(type_)[1] else _tensor(array)
    if type_ in _FORMATS and array.buffers()[1] is not None:
        values = _numbers(array)
        return lambda i: values[i]
    if kinds.is_large_string(type_):
        return _text(array)
    if kinds.is_large_binary(type_):
        return _bytes(array)
    if kinds.is_large_list(type_):
        return _list(array, typed)
    if kinds.is_struct(type_):
        return _struct(array, typed)
    if kinds.is_timestamp(type_) or kinds.is_duration(type_) or getattr(type_, "unit", None) == "ns":
        return _time(array)
    return lambda i: array[i].as_py()


def _time(array: pa.Array) -> Reader:
    """Python's own times where they reach; NumPy's for nanoseconds and for years beyond 1 to 9999."""
    unit = array.type.unit
    as_numpy = np.datetime64 if kinds.is_timestamp(array.type) else np.timedelta64

    def read(i: int) -> Any:
        if unit == "ns":
            return as_numpy(array[i].value, unit)
        try:
            return array[i].as_py()
        except (OverflowError, ValueError):
            return as_numpy(array[i].value, unit)

    return read


def _numbers(array: pa.Array) -> Any:
    return _cast(array.buffers()[1], _FORMATS[array.type])[array.offset :]


def _cast(buffer: pa.Buffer, format_: str) -> Any:
    """The numbers in a buffer; Arrow allows a few bytes more than they need."""
    size = struct.calcsize(format_)
    view: Any = memoryview(buffer).cast("B")
    return view[: len(view) // size * size].cast(format_)


def _text(array: pa.Array) -> Reader:
    begins, content = _blob(array)
    return lambda i: str(content[begins[i] : begins[i + 1]], "utf-8")


def _bytes(array: pa.Array) -> Reader:
    begins, content = _blob(array)
    return lambda i: bytes(content[begins[i] : begins[i + 1]])


def _blob(array: pa.Array) -> tuple[Any, memoryview]:
    """Where each row's bytes begin, and all bytes."""
    _, offsets, data = array.buffers()
    begins = _cast(offsets if offsets is not None and offsets.size else pa.py_buffer(bytes(8)), "q")
    return begins[array.offset :], memoryview(data if data is not None else b"")


def _list(array: pa.Array, typed: bool) -> Reader:
    offsets, elements = array.buffers()[1], array.values
    if offsets is None:
        return lambda i: array[i].as_py()
    begins = _cast(offsets, "q")[array.offset :]
    is_flat = elements.type in _FORMATS and elements.null_count == 0 and elements.buffers()[1] is not None
    if is_flat and not (typed and (elements.type in _NARROW or kinds.is_uint64(elements.type))):
        values = _numbers(elements)
        return lambda i: values[begins[i] : begins[i + 1]].tolist()
    read = reader(elements, typed)
    return lambda i: [read(k) for k in range(begins[i], begins[i + 1])]


def _struct(array: pa.Array, typed: bool) -> Reader:
    parts = [(array.type.field(i).name, reader(array.field(i), typed)) for i in range(array.type.num_fields)]
    return lambda i: {name: read(i) for name, read in parts}


def _tensor(array: pa.Array) -> Reader:
    dtype, shape = dtype_and_shape(array.type)
    rows = tensor_rows(array)
    if shape == () and not dtype.startswith("complex"):  # which Python has numbers for as well
        return lambda i: readable(rows[i : i + 1], dtype).reshape(()).copy()
    if dtype == numpy_dtype(dtype).name:
        return lambda i: rows[i].copy()
    return lambda i: readable(rows[i], dtype)


def number_rows(array: pa.Array) -> np.ndarray[Any, Any]:
    """All numbers of an array without nulls as a NumPy array over the same memory, writable if the memory is."""
    dtype = np.dtype(array.type.to_pandas_dtype())
    buffer = array.buffers()[1]
    if buffer is None:
        return np.empty(len(array), dtype)
    values = np.frombuffer(buffer, np.uint8)[
        array.offset * dtype.itemsize : (array.offset + len(array)) * dtype.itemsize
    ]
    return values.view(dtype)


def tensor_rows(array: pa.Array) -> np.ndarray[Any, Any]:
    """All rows of a fixed-shape tensor array as one NumPy array over the same memory, in the dtype that is stored."""
    dtype, shape = dtype_and_shape(array.type)
    storage = array.storage
    sizes = [size for size in shape if size is not None]
    item = numpy_dtype(dtype)
    n_bytes = math.prod(sizes) * item.itemsize
    values = storage.values
    buffer = values.buffers()[1]
    if buffer is None or n_bytes == 0:
        return np.empty((len(array), *sizes), item)
    per_row = values.type.bit_width // 8 * storage.type.list_size
    start = values.offset * (values.type.bit_width // 8) + storage.offset * per_row
    data = np.frombuffer(buffer, np.uint8)[start : start + len(array) * n_bytes]
    return data.view(item).reshape(len(array), *sizes)


def _ragged(array: pa.Array) -> Reader:
    dtype, shape = dtype_and_shape(array.type)
    data, sizes = array.storage.field("data"), array.storage.field("shape")
    item, rank = numpy_dtype(dtype), len(shape)
    begins = np.frombuffer(data.buffers()[1], np.int64)[data.offset :] * (data.values.type.bit_width // 8)
    content = np.frombuffer(data.values.buffers()[1] or b"", np.uint8)[
        data.values.offset * (data.values.type.bit_width // 8) :
    ]
    # The buffer itself: a null row may leave its sizes null too, and NumPy would make floats of them.
    numbers = np.frombuffer(sizes.values.buffers()[1] or b"", np.int64)
    shapes = numbers[sizes.values.offset + sizes.offset * rank :][: len(array) * rank].reshape(-1, rank)

    def read(i: int) -> np.ndarray[Any, Any]:
        part = content[begins[i] : begins[i + 1]].copy().view(item).reshape(shapes[i])
        return readable(part, dtype)

    return read


def _is_extension(array: pa.Array) -> bool:
    return isinstance(array.type, pa.BaseExtensionType)


def _offset(array: pa.Array) -> int:
    return int(array.storage.offset if _is_extension(array) else array.offset)


def to_array(name: str, array: pa.Array) -> NDArray[Any]:
    """A read-only array of numbers, booleans, times or tensors; Python values in an object array for anything else.

    >>> to_array("label", pa.array([3, 1]))
    array([3, 1])
    """
    values = _plain(array) if array.null_count == 0 else None
    if values is None:
        read = reader(array)
        values = np.empty(len(array), object)
        values[:] = [read(i) for i in range(len(array))]
    values.flags.writeable = False
    return values


def _plain(array: pa.Array) -> NDArray[Any] | None:
    type_ = array.type
    if is_tensor(type_):
        dtype, shape = dtype_and_shape(type_)
        return None if None in shape else readable(tensor_rows(array).view(), dtype)
    if kinds.is_integer(type_) or kinds.is_floating(type_) or kinds.is_timestamp(type_) or kinds.is_duration(type_):
        values: NDArray[Any] = array.to_numpy(zero_copy_only=True).view()
        return values
    if kinds.is_boolean(type_):
        flags: NDArray[Any] = array.to_numpy(zero_copy_only=False)
        return flags
    return None


# Tensors ----------------------------------------------------------------------------------------------------------


def to_tensor(name: str, array: pa.Array, device: Any, copy: bool) -> Any:
    """A tensor for numbers; lists of tensors for lists that differ in length; lists for text; dicts for structs.

    Without ``copy`` tensors share memory where it allows that; writing to them would change the buffer's rows.
    """
    type_ = array.type
    if kinds.is_struct(type_) and not is_tensor(type_):
        _refuse_nulls(name, array)
        fields = [type_.field(i).name for i in range(type_.num_fields)]
        return {field: to_tensor(f"{name}.{field}", array.field(field), device, copy) for field in fields}
    if not _is_numeric(type_):
        read = reader(array)
        return [read(i) for i in range(len(array))]
    _refuse_nulls(name, array)
    if is_tensor(type_):
        return _from_tensors(array, device, copy)
    if kinds.is_large_list(type_):
        return _from_lists(name, array, device, copy)
    if kinds.is_boolean(type_):  # bits in Arrow, bytes in torch
        return _placed(torch_bridge.from_array(array.to_numpy(zero_copy_only=False).copy()), device, copy=False)
    return _placed(torch_bridge.from_array(number_rows(array)), device, copy)


def _is_numeric(type_: pa.DataType) -> bool:
    if is_tensor(type_):
        return dtype_and_shape(type_)[0][:8] not in ("datetime", "timedelt")
    if kinds.is_large_list(type_):
        return _is_numeric(type_.value_type)
    return bool(kinds.is_integer(type_) or kinds.is_floating(type_) or kinds.is_boolean(type_))


def _from_tensors(array: pa.Array, device: Any, copy: bool) -> Any:
    dtype, shape = dtype_and_shape(array.type)
    if None not in shape:
        return _placed(torch_bridge.from_array(tensor_rows(array), dtype), device, copy)
    data, sizes = array.storage.field("data"), array.storage.field("shape")
    item = numpy_dtype(dtype)
    parts = [np.frombuffer(row.values.to_numpy().tobytes(), item).copy() for row in data]
    return [
        _placed(torch_bridge.from_array(part, dtype).reshape(size), device, copy=False)
        for part, size in zip(parts, sizes.to_pylist(), strict=True)
    ]


def _from_lists(name: str, array: pa.Array, device: Any, copy: bool) -> Any:
    lengths = np.diff(array.offsets.to_numpy())
    elements = to_tensor(name, array.flatten(), device, copy)
    if isinstance(elements, list) or len(set(lengths.tolist())) > 1:
        ends = np.cumsum(lengths).tolist()
        return [elements[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]
    size = int(lengths[0]) if len(lengths) else 0
    return elements.reshape(len(array), size, *elements.shape[1:])


def _placed(tensor: Any, device: Any, copy: bool) -> Any:
    if device is not None:
        return tensor.to(device, copy=copy)
    return tensor.clone() if copy else tensor


def _refuse_nulls(name: str, array: pa.Array) -> None:
    if array.null_count:
        raise SchemaError(
            f"column {name!r}: {array.null_count} of {len(array)} rows are null and a tensor has no null; "
            "filter them out, fill them, or leave the column out with columns="
        )
