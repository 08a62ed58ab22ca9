"""Columns as torch tensors, without a copy where the memory allows it. The only place in rows that imports torch.

Writing to a tensor that shares memory would change the buffer's rows; ``copy=True`` gives tensors of one's own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds
import torch

from poolish.errors import SchemaError
from poolish.rows.decode import number_rows, reader, tensor_rows
from poolish.schema import dtype_and_shape, is_tensor, numpy_dtype


def to_tensor(name: str, array: pa.Array, device: Any, copy: bool) -> Any:
    """A tensor for numbers; lists of tensors for lists that differ in length; lists for text; dicts for structs."""
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
        return _placed(torch.from_numpy(array.to_numpy(zero_copy_only=False).copy()), device, copy=False)
    return _placed(_shared(number_rows(array)), device, copy)


def _is_numeric(type_: pa.DataType) -> bool:
    if is_tensor(type_):
        return dtype_and_shape(type_)[0][:8] not in ("datetime", "timedelt")
    if kinds.is_large_list(type_):
        return _is_numeric(type_.value_type)
    return bool(kinds.is_integer(type_) or kinds.is_floating(type_) or kinds.is_boolean(type_))


def _from_tensors(array: pa.Array, device: Any, copy: bool) -> Any:
    dtype, shape = dtype_and_shape(array.type)
    if None not in shape:
        return _placed(_typed(_shared(tensor_rows(array)), dtype), device, copy)
    data, sizes = array.storage.field("data"), array.storage.field("shape")
    item = numpy_dtype(dtype)
    parts = [np.frombuffer(row.values.to_numpy().tobytes(), item).copy() for row in data]
    shapes = sizes.to_pylist()
    return [
        _placed(_typed(torch.from_numpy(part), dtype).reshape(size), device, copy=False)
        for part, size in zip(parts, shapes, strict=True)
    ]


def _typed(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    """The dtype that the stored bits mean."""
    return tensor if numpy_dtype(dtype).name == dtype else tensor.view(getattr(torch, dtype))


def _from_lists(name: str, array: pa.Array, device: Any, copy: bool) -> Any:
    lengths = np.diff(array.offsets.to_numpy())
    elements = to_tensor(name, array.flatten(), device, copy)
    if isinstance(elements, list) or len(set(lengths.tolist())) > 1:
        ends = np.cumsum(lengths).tolist()
        return [elements[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]
    size = int(lengths[0]) if len(lengths) else 0
    return elements.reshape(len(array), size, *elements.shape[1:])


def _shared(values: np.ndarray[Any, Any]) -> torch.Tensor:
    """A tensor over the same memory; memory that must not be written is copied, because torch cannot protect it."""
    return torch.from_numpy(values if values.flags.writeable else values.copy())


def _placed(tensor: torch.Tensor, device: Any, copy: bool) -> torch.Tensor:
    if device is not None:
        return tensor.to(device, copy=copy)
    return tensor.clone() if copy else tensor


def _refuse_nulls(name: str, array: pa.Array) -> None:
    if array.null_count:
        raise SchemaError(
            f"column {name!r}: {array.null_count} of {len(array)} rows are null and a tensor has no null; "
            "filter them out, fill them, or leave the column out with columns="
        )
