"""Columns of tensors made of NumPy's memory: of one shape, or ragged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from poolish.schema.types import carrier, carriers_per_value, numpy_dtype, tensor_type


def tensor_array(dtype: str, rows: NDArray[Any]) -> pa.Array:
    """An Arrow array of tensors of this dtype, one per entry of the first dimension; contiguous rows are not copied."""
    type_ = tensor_type(dtype, rows.shape[1:])
    data = pa.py_buffer(np.ascontiguousarray(rows).reshape(-1).view(np.uint8))
    items = pa.Array.from_buffers(carrier(dtype), rows.size * carriers_per_value(dtype), [None, data])
    storage = pa.Array.from_buffers(type_.storage_type, len(rows), [None], children=[items])
    return pa.ExtensionArray.from_storage(type_, storage)


def build_ragged(
    type_: pa.DataType, shapes: Sequence[Sequence[int]] | NDArray[np.int64], data: Any, valid: pa.Buffer | None = None
) -> pa.Array:
    """A ragged tensor array from the shapes of its rows and all their values, one behind the other."""
    storage = type_.storage_type
    carried, n = storage.field("data").type.value_type, len(shapes)
    sizes = np.array(shapes, np.int64).reshape(n, len(type_.shape))
    per_value = numpy_dtype(type_.dtype).itemsize * 8 // carried.bit_width
    offsets = np.concatenate(([0], np.cumsum(sizes.prod(axis=1, dtype=np.int64) * per_value)))
    items = pa.Array.from_buffers(carried, int(offsets[-1]), [None, pa.py_buffer(data)])
    values = pa.Array.from_buffers(storage.field("data").type, n, [None, pa.py_buffer(offsets)], children=[items])
    shape = pa.Array.from_buffers(storage.field("shape").type, n, [None], children=[pa.array(sizes.ravel())])
    struct = pa.Array.from_buffers(storage, n, [valid], children=[values, shape])
    return pa.ExtensionArray.from_storage(type_, struct)
