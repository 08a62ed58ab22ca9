"""Rows to and from Hugging Face datasets, through Arrow."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from poolish.errors import SchemaError
from poolish.rows.fit import validity
from poolish.rows.readers import reader, tensor_rows
from poolish.schema import Schema, dtype_and_shape, is_tensor, readable
from poolish.schema.features import without_arrays

#: Hugging Face's lists and text count with 32 bits; a chunk stays far below.
CHUNK_BYTES = 1 << 30


def refuse_splits(value: object, i: int) -> None:
    """A DatasetDict looks like a row whose cells are datasets; say what was meant."""
    module = sys.modules.get("datasets")
    if module is not None and isinstance(value, (module.DatasetDict, module.IterableDatasetDict)):
        raise SchemaError(
            f"row {i}: a DatasetDict holds splits, not rows; append one: dataset[{next(iter(value), 'train')!r}]"
        )


def to_dataset(table: pa.Table, schema: Schema) -> Any:
    """A dataset over the table's rows; columns whose types Hugging Face shares are not copied."""
    import datasets

    features = schema.to_features()
    for field in schema:
        if field.shape and None in field.shape and table.column(field.name).null_count:
            features[field.name] = without_arrays(features[field.name])
    target = features.arrow_schema
    chunks = [_converted(chunk, features, target) for chunk in _chunks(table)]
    rows = pa.Table.from_batches(chunks, schema=target)
    # Without a fingerprint datasets would pickle and hash all rows to make one.
    info = datasets.DatasetInfo(features=features)
    return datasets.Dataset(datasets.table.InMemoryTable(rows), info=info, fingerprint=uuid.uuid4().hex[:16])


def _chunks(table: pa.Table) -> Iterator[pa.RecordBatch]:
    n_rows = table.num_rows
    step = max(1, int(n_rows * CHUNK_BYTES / max(table.nbytes, 1))) if n_rows else 1
    return iter([batch for first in range(0, n_rows, step) for batch in table.slice(first, step).to_batches()])


def _converted(batch: pa.RecordBatch, features: Any, target: pa.Schema) -> pa.RecordBatch:
    columns = [_column(batch.column(i), features[name], target.field(name).type) for i, name in enumerate(target.names)]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _column(array: pa.Array, feature: Any, type_: pa.DataType) -> pa.Array:
    if array.type == type_:
        return array
    if is_tensor(array.type):
        return _tensor(array, type_)
    if kinds.is_large_binary(array.type) and kinds.is_struct(type_):  # PNG bytes of an Image feature
        paths = pa.nulls(len(array), pa.string())
        return pa.StructArray.from_arrays([array.cast(pa.binary()), paths], ["bytes", "path"], mask=array.is_null())
    if kinds.is_struct(array.type):
        names = [type_.field(i).name for i in range(type_.num_fields)]
        parts = [_column(array.field(name), _part(feature, name), type_.field(name).type) for name in names]
        return pa.Array.from_buffers(type_, len(array), [validity(array)], children=parts)
    if kinds.is_large_list(array.type):
        return _list(array, feature, type_)
    if isinstance(array.type, pa.BaseExtensionType):
        return array.storage.cast(type_)
    return array.cast(type_)


def _part(feature: Any, name: str) -> Any:
    return feature[name] if isinstance(feature, dict) else None


def _list(array: pa.Array, feature: Any, type_: pa.DataType) -> pa.Array:
    offsets = array.offsets.to_numpy()
    values = array.values.slice(offsets[0], offsets[-1] - offsets[0])
    elements = _column(values, getattr(feature, "feature", None), type_.value_type)
    if kinds.is_fixed_size_list(type_):
        return _of_one_size(array, offsets - offsets[0], elements, type_)
    width = np.int64 if kinds.is_large_list(type_) else np.int32
    buffers = [validity(array), pa.py_buffer((offsets - offsets[0]).astype(width))]
    return pa.Array.from_buffers(type_, len(array), buffers, children=[elements])


def _of_one_size(array: pa.Array, offsets: Any, elements: pa.Array, type_: pa.DataType) -> pa.Array:
    """Lists that all have as many elements as the type says; one that is null has none, and is given some."""
    size, is_null = type_.list_size, array.is_null().to_numpy(zero_copy_only=False)
    lengths = np.diff(offsets)
    if (lengths[~is_null] != size).any():
        raise SchemaError(
            f"a list of {lengths[~is_null][lengths[~is_null] != size][0]} where the feature of its column says {size}; "
            "append lists of that length, or give the column a feature without one"
        )
    if is_null.any():
        places = offsets[:-1, None] + np.arange(size)
        elements = elements.take(pa.array(places.reshape(-1), mask=np.repeat(is_null, size)))
    return pa.Array.from_buffers(type_, len(array), [validity(array)], children=[elements])


def _tensor(array: pa.Array, type_: pa.DataType) -> pa.Array:
    dtype, shape = dtype_and_shape(array.type)
    storage = type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_
    rows = _ragged(array, storage) if None in shape else _fixed(array, dtype, storage)
    return pa.ExtensionArray.from_storage(type_, rows) if isinstance(type_, pa.BaseExtensionType) else rows


def _fixed(array: pa.Array, dtype: str, storage: pa.DataType) -> pa.Array:
    values = readable(tensor_rows(array), dtype)
    if values.dtype.kind == "c":
        values = values.view(values.real.dtype).reshape(*values.shape, 2)
    rows = _nested(np.ascontiguousarray(values), storage)
    if array.null_count == 0:
        return rows
    buffers = rows.buffers()
    children = [] if not kinds.is_nested(storage) else [rows.values]
    own = 1 if kinds.is_fixed_size_list(storage) else 2
    return pa.Array.from_buffers(storage, len(array), [validity(array), *buffers[1:own]], children=children or None)


def _nested(values: np.ndarray[Any, Any], type_: pa.DataType) -> pa.Array:
    """Lists in lists over the values of an array, with 32-bit offsets where the type asks for them."""
    if not kinds.is_nested(type_):
        return pa.array(values.reshape(-1)).cast(type_)
    n, size = values.shape[:2]
    items = _nested(values.reshape(n * size, *values.shape[2:]), type_.value_type)
    if kinds.is_fixed_size_list(type_):
        return pa.Array.from_buffers(type_, n, [None], children=[items])
    width = np.int64 if kinds.is_large_list(type_) else np.int32
    offsets = np.arange(n + 1, dtype=width) * width(size)
    return pa.Array.from_buffers(type_, n, [None, pa.py_buffer(offsets)], children=[items])


def _ragged(array: pa.Array, storage: pa.DataType) -> pa.Array:
    read = reader(array)
    rows = (read(i) for i in range(len(array)))
    return pa.array([None if row is None else _listed(row) for row in rows], storage)


def _listed(row: np.ndarray[Any, Any]) -> list[Any]:
    if row.dtype.kind == "c":
        row = row.view(row.real.dtype).reshape(*row.shape, 2)
    values: list[Any] = row.tolist()
    return values
