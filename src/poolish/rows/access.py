"""Rows by position from one-chunk Arrow arrays: one row as Python values, or many rows as a new array.

``reader(array)`` and ``gather_fn(array)`` look at an array's buffers once and return a function: from a position to a
value, or from positions to a new array. A memoryview returns a Python number in 30 ns, an Arrow scalar takes a
microsecond; this is what makes ``buffer[i]`` cheap. Arrow's own ``take`` spends most of its time on text (1.9 M rows/s
against more than 5 M here), because it does not fetch ahead.

Positions count from the array's first row and must be contiguous int64. New arrays begin at borders of cache lines, as
everything that Arrow allocates. Rows are gathered in the order asked for, not in that of their addresses, because the
kernels fetch ahead and sorting costs more than it saves: of 200,000 rows of 464 bytes, 256 shuffled ones take 30 us as
asked for and 66 us sorted and put back, 8,192 take 0.6 and 1.2 ms (``address_order`` in ``benchmarks.bench_rows``).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds
from numpy.typing import NDArray

from poolish import kernels
from poolish.schema import bytes_of, dtype_and_shape, is_tensor, numpy_dtype, offsets_of, readable

ReadFn = Callable[[int], Any]
Positions = NDArray[np.int64]
Bytes = NDArray[np.uint8]
GatherFn = Callable[[Positions], pa.Array]

_FORMATS = {
    **{getattr(pa, f"int{bits}")(): code for bits, code in ((8, "b"), (16, "h"), (32, "i"), (64, "q"))},
    **{getattr(pa, f"uint{bits}")(): code for bits, code in ((8, "B"), (16, "H"), (32, "I"), (64, "Q"))},
    pa.float32(): "f",
    pa.float64(): "d",
}


#: Numbers that Python's own would widen: a collate function makes int64, float64 and bool of those.
_NARROW = (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32(), pa.float16(), pa.float32())


def reader(array: pa.Array, typed: bool = False) -> ReadFn:
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
    read = _read_present(array, typed)
    if array.null_count == 0:
        return read
    storage = array.storage if isinstance(array.type, pa.BaseExtensionType) else array
    valid, first = memoryview(storage.buffers()[0]), storage.offset

    def read_or_none(i: int) -> Any:
        bit = i + first
        return read(i) if (valid[bit >> 3] >> (bit & 7)) & 1 else None

    return read_or_none


def _read_present(array: pa.Array, typed: bool) -> ReadFn:
    """A reader that may be asked only for positions that are not null."""
    type_ = array.type
    if typed and type_ in _NARROW:
        return number_rows(array).__getitem__
    if typed and kinds.is_uint64(type_):  # torch collates no NumPy scalars of this dtype, but arrays
        numbers = number_rows(array)
        return lambda i: numbers[i : i + 1].reshape(()).copy()
    if type_ in _FORMATS and array.buffers()[1] is not None:
        values = _numbers(array)
        return lambda i: values[i]
    if kinds.is_large_string(type_):
        return _read_text(array)
    if is_tensor(type_):
        return _read_ragged(array) if None in dtype_and_shape(type_)[1] else _read_tensors(array)
    if kinds.is_large_binary(type_):
        return _read_bytes(array)
    if kinds.is_large_list(type_):
        return _read_lists(array, typed)
    if kinds.is_struct(type_):
        return _read_structs(array, typed)
    if kinds.is_timestamp(type_) or kinds.is_duration(type_) or getattr(type_, "unit", None) == "ns":
        return _read_times(array)
    return lambda i: array[i].as_py()


def _read_times(array: pa.Array) -> ReadFn:
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
    return _cast_view(array.buffers()[1], _FORMATS[array.type])[array.offset :]


def _cast_view(buffer: pa.Buffer, format_: str) -> Any:
    """The numbers in a buffer; Arrow allows a few bytes more than they need."""
    size = struct.calcsize(format_)
    view: Any = memoryview(buffer).cast("B")
    return view[: len(view) // size * size].cast(format_)


def _read_text(array: pa.Array) -> ReadFn:
    begins, content = _binary_parts(array)
    return lambda i: str(content[begins[i] : begins[i + 1]], "utf-8")


def _read_bytes(array: pa.Array) -> ReadFn:
    begins, content = _binary_parts(array)
    return lambda i: bytes(content[begins[i] : begins[i + 1]])


def _binary_parts(array: pa.Array) -> tuple[Any, memoryview]:
    """Where each row's bytes begin, and all bytes."""
    _, offsets, data = array.buffers()
    begins = _cast_view(offsets if offsets is not None and offsets.size else pa.py_buffer(bytes(8)), "q")
    return begins[array.offset :], memoryview(data if data is not None else b"")


def _read_lists(array: pa.Array, typed: bool) -> ReadFn:
    offsets, elements = array.buffers()[1], array.values
    if offsets is None:
        return lambda i: array[i].as_py()
    begins = _cast_view(offsets, "q")[array.offset :]
    is_flat = elements.type in _FORMATS and elements.null_count == 0 and elements.buffers()[1] is not None
    if is_flat and not (typed and (elements.type in _NARROW or kinds.is_uint64(elements.type))):
        values = _numbers(elements)
        return lambda i: values[begins[i] : begins[i + 1]].tolist()
    read = reader(elements, typed)
    return lambda i: [read(k) for k in range(begins[i], begins[i + 1])]


def _read_structs(array: pa.Array, typed: bool) -> ReadFn:
    parts = [(field.name, reader(array.field(field.name), typed)) for field in array.type]
    return lambda i: {name: read(i) for name, read in parts}


def _read_tensors(array: pa.Array) -> ReadFn:
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


class RaggedParts(NamedTuple):
    """The memory of a ragged tensor column: row i is ``content[begins[i]:begins[i + 1]]`` of shape ``shapes[i]``."""

    content: Bytes
    begins: Positions
    shapes: Positions


def ragged_parts(array: pa.Array) -> RaggedParts:
    """Where the rows of a ragged tensor array lie in its memory, in bytes; what a null row has is unknown."""
    data, sizes = array.storage.field("data"), array.storage.field("shape")
    rank, width = len(dtype_and_shape(array.type)[1]), data.values.type.bit_width // 8
    begins = offsets_of(data) * width
    content = bytes_of(data.values.buffers()[1])[data.values.offset * width :]
    # The buffer itself: a null row may leave its sizes null too, and NumPy would make floats of them.
    numbers = np.frombuffer(sizes.values.buffers()[1] or b"", np.int64)
    shapes = numbers[sizes.values.offset + sizes.offset * rank :][: len(array) * rank].reshape(-1, rank)
    return RaggedParts(content, begins, shapes)


def _read_ragged(array: pa.Array) -> ReadFn:
    dtype = dtype_and_shape(array.type)[0]
    content, begins, shapes = ragged_parts(array)
    item = numpy_dtype(dtype)

    def read(i: int) -> np.ndarray[Any, Any]:
        part = content[begins[i] : begins[i + 1]].copy().view(item).reshape(shapes[i])
        return readable(part, dtype)

    return read


# Many rows ----------------------------------------------------------------------------------------------------------


def gather_fn(array: pa.Array) -> GatherFn:
    """A function that gives the rows of ``array`` at the positions it is called with.

    >>> gather_fn(pa.array(["rye", "wheat", "spelt"], pa.large_string()))(np.array([2, 0])).to_pylist()
    ['spelt', 'rye']
    """
    type_ = array.type
    if isinstance(type_, pa.BaseExtensionType):
        take_storage = gather_fn(array.storage)
        return lambda positions: pa.ExtensionArray.from_storage(type_, take_storage(positions))
    if kinds.is_null(type_):
        return lambda positions: pa.nulls(len(positions))
    if kinds.is_boolean(type_):
        return _gather_bools(array)
    if kinds.is_large_string(type_) or kinds.is_large_binary(type_):
        return _gather_binary(array)
    if kinds.is_large_list(type_):
        return _gather_lists(array)
    if kinds.is_fixed_size_list(type_):
        return _gather_numeric_vectors(array)
    if kinds.is_struct(type_):
        return _gather_structs(array)
    return _gather_fixed_width(array)


def _gather_fixed_width(array: pa.Array) -> GatherFn:
    type_, valid = array.type, _validity(array)
    width = type_.bit_width // 8
    values = bytes_of(array.buffers()[1])[array.offset * width :]

    def take(positions: Positions) -> pa.Array:
        return pa.Array.from_buffers(type_, len(positions), [valid(positions), _items_at(values, width, positions)])

    return take


def _gather_bools(array: pa.Array) -> GatherFn:
    type_, valid, bits, first = array.type, _validity(array), bytes_of(array.buffers()[1]), array.offset

    def take(positions: Positions) -> pa.Array:
        return pa.Array.from_buffers(type_, len(positions), [valid(positions), _bits_at(bits, first, positions)])

    return take


def _gather_binary(array: pa.Array) -> GatherFn:
    type_, valid, offsets, data = array.type, _validity(array), offsets_of(array), bytes_of(array.buffers()[2])

    def take(positions: Positions) -> pa.Array:
        begins = pa.allocate_buffer(8 * len(positions) + 8)
        out = pa.allocate_buffer(kernels.gather_offsets(offsets, positions, np.frombuffer(begins, np.int64)))
        kernels.gather_ranges(data, 1, offsets, positions, np.frombuffer(out, np.uint8))
        return pa.Array.from_buffers(type_, len(positions), [valid(positions), begins, out])

    return take


def _gather_lists(array: pa.Array) -> GatherFn:
    type_, valid, offsets, take_elements = array.type, _validity(array), offsets_of(array), gather_fn(array.values)

    def take(positions: Positions) -> pa.Array:
        buffer = pa.allocate_buffer(8 * len(positions) + 8)
        begins = np.frombuffer(buffer, np.int64)
        kernels.gather_offsets(offsets, positions, begins)
        elements = take_elements(_elements(offsets, positions, begins))
        buffers = [valid(positions), buffer]
        return pa.Array.from_buffers(type_, len(positions), buffers, children=[elements])

    return take


def _elements(offsets: Positions, positions: Positions, begins: Positions) -> Positions:
    """Positions of all elements of the lists at ``positions``."""
    lengths = np.diff(begins)
    return np.repeat(offsets[positions] - begins[:-1], lengths) + np.arange(begins[-1], dtype=np.int64)


def _gather_numeric_vectors(array: pa.Array) -> GatherFn:
    type_, valid, size = array.type, _validity(array), array.type.list_size
    elements = array.values
    if elements.null_count or not _is_fixed(elements.type):
        return _gather_fixed_size_lists(array)
    width = elements.type.bit_width // 8
    values = bytes_of(elements.buffers()[1])[(elements.offset + array.offset * size) * width :]
    item_type = elements.type

    def take(positions: Positions) -> pa.Array:
        n = len(positions)
        items = pa.Array.from_buffers(item_type, n * size, [None, _items_at(values, width * size, positions)])
        return pa.Array.from_buffers(type_, n, [valid(positions)], children=[items])

    return take


def _gather_fixed_size_lists(array: pa.Array) -> GatherFn:
    type_, valid, size = array.type, _validity(array), array.type.list_size
    take_elements = gather_fn(array.values.slice(array.offset * size))

    def take(positions: Positions) -> pa.Array:
        elements = (positions[:, None] * size + np.arange(size)).ravel()
        return pa.Array.from_buffers(type_, len(positions), [valid(positions)], children=[take_elements(elements)])

    return take


def _gather_structs(array: pa.Array) -> GatherFn:
    type_, valid = array.type, _validity(array)
    take_fields = [gather_fn(array.field(field.name)) for field in type_]

    def take(positions: Positions) -> pa.Array:
        fields = [take_field(positions) for take_field in take_fields]
        return pa.Array.from_buffers(type_, len(positions), [valid(positions)], children=fields)

    return take


def _is_fixed(type_: pa.DataType) -> bool:
    return bool(kinds.is_primitive(type_) and not kinds.is_boolean(type_))


def _validity(array: pa.Array) -> Callable[[Positions], pa.Buffer | None]:
    if array.null_count == 0:
        return lambda positions: None
    bits, first = bytes_of(array.buffers()[0]), array.offset
    return lambda positions: _bits_at(bits, first, positions)


def _bits_at(bits: Bytes, first: int, positions: Positions) -> pa.Buffer:
    out = pa.allocate_buffer((len(positions) + 7) // 8)
    kernels.gather_bits(bits, first, positions, np.frombuffer(out, np.uint8))
    return out


def _items_at(values: Bytes, width: int, positions: Positions) -> pa.Buffer:
    out = pa.allocate_buffer(len(positions) * width)
    kernels.gather(values, width, positions, np.frombuffer(out, np.uint8))
    return out
