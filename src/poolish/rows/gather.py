"""Rows by position, from one-chunk Arrow arrays: the fast half of every read.

``gather_fn(array)`` looks at an array's buffers once and gives a function from positions to a new array. Arrow's own
``take`` spends most of its time on text (1.9 M rows/s against more than 5 M here), because it does not fetch ahead.
Positions count from the array's first row and must be contiguous int64. New arrays begin at borders of cache lines, as
everything that Arrow allocates.

Rows are read in the order asked for, not in that of their addresses, because the kernels fetch ahead and sorting costs
more than it saves: of 200,000 rows of 464 bytes, 256 shuffled ones take 30 us as asked for and 66 us sorted and put
back, 8,192 take 0.6 and 1.2 ms (``address_order`` in ``benchmarks.bench_rows``).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds
from numpy.typing import NDArray

from poolish import kernels
from poolish.schema import offsets_of

Positions = NDArray[np.int64]
GatherFn = Callable[[Positions], pa.Array]


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
        return _flags(array)
    if kinds.is_large_string(type_) or kinds.is_large_binary(type_):
        return _blobs(array)
    if kinds.is_large_list(type_):
        return _lists(array)
    if kinds.is_fixed_size_list(type_):
        return _tuples(array)
    if kinds.is_struct(type_):
        return _structs(array)
    return _fixed(array)


def _fixed(array: pa.Array) -> GatherFn:
    type_, valid = array.type, _validity(array)
    width = type_.bit_width // 8
    values = _bytes(array, 1)[array.offset * width :]

    def take(positions: Positions) -> pa.Array:
        return pa.Array.from_buffers(type_, len(positions), [valid(positions), _items(values, width, positions)])

    return take


def _flags(array: pa.Array) -> GatherFn:
    type_, valid, bits, first = array.type, _validity(array), _bytes(array, 1), array.offset

    def take(positions: Positions) -> pa.Array:
        return pa.Array.from_buffers(type_, len(positions), [valid(positions), _bits(bits, first, positions)])

    return take


def _blobs(array: pa.Array) -> GatherFn:
    type_, valid, offsets, data = array.type, _validity(array), offsets_of(array), _bytes(array, 2)

    def take(positions: Positions) -> pa.Array:
        begins = pa.allocate_buffer(8 * len(positions) + 8)
        out = pa.allocate_buffer(kernels.gather_offsets(offsets, positions, np.frombuffer(begins, np.int64)))
        kernels.gather_ranges(data, 1, offsets, positions, np.frombuffer(out, np.uint8))
        return pa.Array.from_buffers(type_, len(positions), [valid(positions), begins, out])

    return take


def _lists(array: pa.Array) -> GatherFn:
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


def _tuples(array: pa.Array) -> GatherFn:
    type_, valid, size = array.type, _validity(array), array.type.list_size
    elements = array.values
    if elements.null_count or not _is_fixed(elements.type):
        return _general_tuples(array)
    width = elements.type.bit_width // 8
    values = _bytes(elements, 1)[(elements.offset + array.offset * size) * width :]
    item_type = elements.type

    def take(positions: Positions) -> pa.Array:
        n = len(positions)
        items = pa.Array.from_buffers(item_type, n * size, [None, _items(values, width * size, positions)])
        return pa.Array.from_buffers(type_, n, [valid(positions)], children=[items])

    return take


def _general_tuples(array: pa.Array) -> GatherFn:
    type_, valid, size = array.type, _validity(array), array.type.list_size
    take_elements = gather_fn(array.values.slice(array.offset * size))

    def take(positions: Positions) -> pa.Array:
        elements = (positions[:, None] * size + np.arange(size)).ravel()
        return pa.Array.from_buffers(type_, len(positions), [valid(positions)], children=[take_elements(elements)])

    return take


def _structs(array: pa.Array) -> GatherFn:
    type_, valid = array.type, _validity(array)
    take_fields = [gather_fn(array.field(i)) for i in range(type_.num_fields)]

    def take(positions: Positions) -> pa.Array:
        fields = [take_field(positions) for take_field in take_fields]
        return pa.Array.from_buffers(type_, len(positions), [valid(positions)], children=fields)

    return take


def _is_fixed(type_: pa.DataType) -> bool:
    return bool(kinds.is_primitive(type_) and not kinds.is_boolean(type_))


def _validity(array: pa.Array) -> Callable[[Positions], pa.Buffer | None]:
    if array.null_count == 0:
        return lambda positions: None
    bits, first = _bytes(array, 0), array.offset
    return lambda positions: _bits(bits, first, positions)


def _bits(bits: NDArray[np.uint8], first: int, positions: Positions) -> pa.Buffer:
    out = pa.allocate_buffer((len(positions) + 7) // 8)
    kernels.gather_bits(bits, first, positions, np.frombuffer(out, np.uint8))
    return out


def _items(values: NDArray[np.uint8], width: int, positions: Positions) -> pa.Buffer:
    out = pa.allocate_buffer(len(positions) * width)
    kernels.gather(values, width, positions, np.frombuffer(out, np.uint8))
    return out


def _bytes(array: pa.Array, which: int) -> NDArray[np.uint8]:
    buffer = array.buffers()[which]
    return np.empty(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)
