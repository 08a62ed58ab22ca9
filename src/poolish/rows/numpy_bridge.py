"""Columns as NumPy arrays: views where Arrow's memory allows it, objects where it does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds
from numpy.typing import NDArray

from poolish.rows.readers import reader, tensor_rows
from poolish.schema import dtype_and_shape, is_tensor, readable


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
