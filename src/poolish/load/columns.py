"""Rows of a buffer straight into arrays of their own: one gather a column, no Arrow in between.

Numbers and tensors of one shape, which is what most batches are made of, are copied from the buffer's memory by the
kernel (256 rows of 64 floats: 9 us, by way of a table 45). The rest goes by way of a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds
from numpy.typing import NDArray

from poolish import kernels
from poolish.load.frozen import Int64
from poolish.rows.decode import number_rows, tensor_rows
from poolish.rows.gather import gather_fn
from poolish.rows.snapshot import Snapshot
from poolish.schema import dtype_and_shape, is_tensor, numpy_dtype

#: From places in the buffer's memory to one column of a batch.
Take = Callable[[Int64], Any]


class Columns:
    """Reads batches from one snapshot."""

    def __init__(self, snapshot: Snapshot, convert: Callable[[str, pa.Array], Any], cast: Callable[..., Any]) -> None:
        """``cast(array, dtype)`` finishes a copied column, ``convert(name, array)`` one that comes from Arrow."""
        self._snapshot = snapshot
        self._takes = [(name, _take(name, array, convert, cast)) for name, array in snapshot.stored_columns()]

    def read(self, numbers: Int64) -> dict[str, Any]:
        """The rows with these numbers, as columns."""
        places = self._snapshot.places(numbers)
        return {name: take(places) for name, take in self._takes}


def _take(name: str, array: pa.Array, convert: Callable[[str, pa.Array], Any], cast: Callable[..., Any]) -> Take:
    plain = None if array.null_count else _plain(array)
    if plain is None:
        gather = gather_fn(array)
        return lambda places: convert(name, gather(places))
    values, dtype = plain
    shape, item = values.shape[1:], values.dtype
    n_bytes = item.itemsize * math.prod(shape)
    source = values.reshape(-1).view(np.uint8)

    def take(places: Int64) -> Any:
        out = np.empty(len(places) * n_bytes, np.uint8)
        kernels.gather(source, n_bytes, places, out)
        return cast(out.view(item).reshape(-1, *shape), dtype)

    return take


def _plain(array: pa.Array) -> tuple[NDArray[Any], str] | None:
    """The memory of a column of numbers or tensors as an array, and the dtype that its bits mean."""
    type_ = array.type
    if is_tensor(type_):
        dtype, shape = dtype_and_shape(type_)
        is_plain = None not in shape and 0 not in shape and numpy_dtype(dtype).kind not in "mM"
        return (tensor_rows(array), dtype) if is_plain else None
    if (kinds.is_integer(type_) or kinds.is_floating(type_)) and not kinds.is_float16(type_):
        values = number_rows(array)
        return values, values.dtype.name
    return None
