"""Where rows of different shapes lie in memory, whatever holds them: Arrow lists and tensors, or arrays and lists.

    source    bytes ........[row 2].......[row 0]....[row 1]....
    begins    where each row begins; shapes: how long it is in each dimension

Of Arrow columns nothing is copied but offsets. Numbers and flags have a place here; text, times and lists of lists do
not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds
from numpy.typing import NDArray

from poolish import torch_bridge
from poolish.columns import Column
from poolish.errors import SchemaError
from poolish.rows.access import gather_fn, ragged_parts, tensor_rows
from poolish.schema import bytes_of, dtype_and_shape, is_tensor, numpy_dtype, offsets_of
from poolish.torch_bridge import is_torch_tensor

Int64 = NDArray[np.int64]


class RaggedRows(NamedTuple):
    """Row i has the values of ``dtype`` in the bytes from ``begins[i]``, of ``shapes[i]``.

    ``are_present`` has a flag for each value of the source; None where no value is null.
    """

    source: NDArray[np.uint8]
    begins: Int64
    shapes: Int64
    dtype: str
    are_present: NDArray[np.bool_] | None = None


#: From places in a column, None for all of it, to those rows.
FindRows = Callable[[Int64 | None], RaggedRows]


def is_ragged(type_: pa.DataType) -> bool:
    """Whether values of this Arrow type are numbers or flags of which rows have different numbers."""
    if is_tensor(type_):
        dtype, shape = dtype_and_shape(type_)
        return None in shape and numpy_dtype(dtype).kind not in "mM"
    return _is_list(type_) and _is_number(type_.value_type)


def rows_of(array: pa.Array, empty: str) -> FindRows | None:
    """How to find rows of an Arrow column, ragged or fixed; None if they are not numbers.

    ``empty`` is the dtype of lists of which no element is known yet.
    """
    if is_tensor(array.type):
        dtype, shape = dtype_and_shape(array.type)
        if numpy_dtype(dtype).kind in "mM" or not shape:
            return None
        return _of_ragged(array, dtype) if None in shape else _of_fixed(array, dtype)
    if not is_ragged(array.type):
        return None
    elements = array.values
    is_plain = elements.null_count == 0 and not (kinds.is_boolean(elements.type) or kinds.is_null(elements.type))
    return _of_numbers(array) if is_plain else _of_any(array, empty)


def _is_list(type_: pa.DataType) -> bool:
    return bool(kinds.is_large_list(type_) or kinds.is_list(type_))


def _is_number(type_: pa.DataType) -> bool:
    return any(is_kind(type_) for is_kind in (kinds.is_integer, kinds.is_floating, kinds.is_boolean, kinds.is_null))


def _of_numbers(array: pa.Array) -> FindRows:
    elements, offsets = array.values, offsets_of(array)
    dtype = np.dtype(elements.type.to_pandas_dtype())
    source = bytes_of(elements.buffers()[1])[elements.offset * dtype.itemsize :]

    def find(places: Int64 | None) -> RaggedRows:
        begins, ends = (offsets[:-1], offsets[1:]) if places is None else (offsets[places], offsets[places + 1])
        lengths = _of_present(array, places, np.subtract(ends, begins, dtype=np.int64))
        return RaggedRows(source, begins * np.int64(dtype.itemsize), lengths[:, None], dtype.name)

    return find


def _of_any(array: pa.Array, empty: str) -> FindRows:
    """Lists of flags, which are bits in Arrow, or with nulls in them: gathered first."""
    gather = gather_fn(array) if kinds.is_large_list(array.type) else None

    def find(places: Int64 | None) -> RaggedRows:
        rows = array if places is None else array.take(pa.array(places)) if gather is None else gather(places)
        flat = Column("", rows).flat
        assert flat.offsets is not None
        values = np.zeros(len(flat.values), empty) if kinds.is_null(array.type.value_type) else flat.values
        are_present = None if flat.nulls is None else ~flat.nulls
        return _laid_out(np.ascontiguousarray(values), np.diff(flat.offsets)[:, None], values.dtype.name, are_present)

    return find


def _of_ragged(array: pa.Array, dtype: str) -> FindRows:
    source, begins, shapes = ragged_parts(array)

    def find(places: Int64 | None) -> RaggedRows:
        which: Any = slice(None, len(array)) if places is None else places
        return RaggedRows(source, begins[which], _of_present(array, places, shapes[which]), dtype)

    return find


def _of_fixed(array: pa.Array, dtype: str) -> FindRows:
    rows = tensor_rows(array)
    source, n_bytes = rows.reshape(-1).view(np.uint8), rows[:1].nbytes

    def find(places: Int64 | None) -> RaggedRows:
        which = np.arange(len(array)) if places is None else places
        shapes = np.tile(np.array(rows.shape[1:], np.int64), (len(which), 1))
        return RaggedRows(source, which * n_bytes, _of_present(array, places, shapes), dtype)

    return find


def _of_present(array: pa.Array, places: Int64 | None, sizes: Int64) -> Int64:
    """Sizes that are 0 where a row is null, whatever lies behind it."""
    if array.null_count == 0:
        return sizes
    storage = array.storage if isinstance(array.type, pa.BaseExtensionType) else array
    bits = bytes_of(storage.buffers()[0])
    numbers = (np.arange(len(array)) if places is None else places) + storage.offset
    flags = (bits[numbers >> 3] >> (numbers & 7).astype(np.uint8)) & 1
    present: Int64 = sizes * (flags if sizes.ndim == 1 else flags[:, None])
    return present


def _laid_out(
    values: NDArray[Any], shapes: Int64, dtype: str, are_present: NDArray[np.bool_] | None = None
) -> RaggedRows:
    """Rows whose values lie one behind the other."""
    sizes = shapes.prod(axis=1, dtype=np.int64) * values.dtype.itemsize
    return RaggedRows(values.reshape(-1).view(np.uint8), np.cumsum(sizes) - sizes, shapes, dtype, are_present)


# Python values ----------------------------------------------------------------------------------------------------


def rows_of_values(name: str, values: Sequence[Any], empty: str) -> RaggedRows | None:
    """The rows of a column of arrays, tensors or lists, one value a row, None where it is null.

    None if they are something else; arrays of several dtypes or ranks are a SchemaError.
    """
    present = [value for value in values if value is not None]
    if all(isinstance(value, (list, tuple)) for value in present):
        found = _of_lists(values, empty)
        if found is not None:
            return found
        values = [None if value is None else _as_array(value) for value in values]
        present = [value for value in values if value is not None]
    if not all(isinstance(value, np.ndarray) or is_torch_tensor(value) for value in present):
        return None
    return _of_arrays(name, values)


def _of_lists(values: Sequence[Any], empty: str) -> RaggedRows | None:
    try:
        array = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return None  # text among the numbers, arrays in the lists
    if kinds.is_null(array.type):  # every row is None
        array = array.cast(pa.list_(pa.null()))
    find = rows_of(array, empty) if is_ragged(array.type) else None
    return None if find is None else find(None)


def _as_array(value: Any) -> Any:
    """A list of NumPy's numbers as an array; itself if it is none."""
    are_numbers = all(isinstance(each, np.generic) or getattr(each, "shape", None) == () for each in value)
    return np.array(value) if value and are_numbers else value


def _of_arrays(name: str, values: Sequence[Any]) -> RaggedRows | None:
    present = [value for value in values if value is not None]
    first = present[0]
    for i, value in enumerate(values):
        if value is not None and (value.dtype != first.dtype or value.ndim != first.ndim):
            raise SchemaError(
                f"row {i} of the batch, column {name!r}: {value.dtype} of {value.ndim} dimensions, the first is "
                f"{first.dtype} of {first.ndim}; make the rows one dtype and one number of dimensions"
            )
    if is_torch_tensor(first):
        flat, dtype = torch_bridge.to_bits(torch_bridge.flat(present))
    elif first.dtype.kind in "biufc":
        flat = np.concatenate([array.reshape(-1) for array in present])
        flat = flat.astype(flat.dtype.newbyteorder("="), copy=False)
        dtype = flat.dtype.name
    else:
        return None
    shapes = [(0,) * first.ndim if value is None else value.shape for value in values]
    return _laid_out(flat, np.array(shapes, np.int64), dtype) if first.ndim else None
