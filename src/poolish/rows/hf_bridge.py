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
from poolish.rows.cast import validity
from poolish.rows.decode import reader, tensor_rows
from poolish.schema import Schema, dtype_and_shape, is_tensor, readable
from poolish.schema.features import without_arrays

#: Hugging Face's lists and text count with 32 bits. A chunk stays far below, and is halved where that is not enough.
CHUNK_BYTES = 1 << 30
MAX_OFFSET = 2**31 - 1


def refuse_splits(value: object, i: int) -> None:
    """Reject a DatasetDict, which looks like a row of datasets, and name its splits."""
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
    chunks = [chunk for batch in table.to_batches() for chunk in _chunks(batch, features, target)]
    rows = pa.Table.from_batches(chunks, schema=target)
    # Without a fingerprint datasets would pickle and hash all rows to make one.
    info = datasets.DatasetInfo(features=features)
    return datasets.Dataset(datasets.table.InMemoryTable(rows), info=info, fingerprint=uuid.uuid4().hex[:16])


def _chunks(batch: pa.RecordBatch, features: Any, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows in Hugging Face's types, halved until no chunk is too large for them."""
    n_rows = batch.num_rows
    try:
        if n_rows < 2 or batch.nbytes <= CHUNK_BYTES:
            yield _converted(batch, features, target)
            return
    except _TooLong as error:
        if n_rows < 2:
            raise SchemaError(
                f"one row has {error.n_items:,} bytes or elements in a column, a Hugging Face dataset holds up to "
                f"{MAX_OFFSET:,}; split the row, or use to_arrow()"
            ) from None
    for half in (batch.slice(0, n_rows // 2), batch.slice(n_rows // 2)):
        yield from _chunks(half, features, target)


class _TooLong(Exception):
    """More bytes or elements in one array than 32-bit offsets count."""

    def __init__(self, n_items: int) -> None:
        self.n_items = n_items


def _offsets(array: pa.Array, type_: pa.DataType) -> tuple[int, int, pa.Buffer]:
    """Where the rows of a slice begin and end in what lies behind them, and their offsets in the width of a type."""
    if not len(array):
        return 0, 0, pa.py_buffer(bytes(8))
    offsets = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    is_wide = kinds.is_large_list(type_) or kinds.is_large_string(type_) or kinds.is_large_binary(type_)
    if not is_wide and last - first > MAX_OFFSET:
        raise _TooLong(last - first)
    return first, last, pa.py_buffer((offsets - first).astype(np.int64 if is_wide else np.int32))


def _blobs(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Text or bytes with narrower offsets over the same memory; Arrow's cast refuses slices of long arrays."""
    first, last, offsets = _offsets(array, type_)
    data = array.buffers()[2]
    data = pa.py_buffer(b"") if data is None else data.slice(first, last - first)
    return pa.Array.from_buffers(type_, len(array), [validity(array), offsets, data])


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
        content = _blobs(array, pa.binary())
        return pa.StructArray.from_arrays([content, paths], ["bytes", "path"], mask=array.is_null())
    if kinds.is_struct(array.type):
        names = [type_.field(i).name for i in range(type_.num_fields)]
        parts = [_column(array.field(name), _part(feature, name), type_.field(name).type) for name in names]
        return pa.Array.from_buffers(type_, len(array), [validity(array)], children=parts)
    if kinds.is_large_list(array.type):
        return _list(array, feature, type_)
    if isinstance(array.type, pa.BaseExtensionType):
        return array.storage.cast(type_)
    if (kinds.is_large_string(array.type) and kinds.is_string(type_)) or (
        kinds.is_large_binary(array.type) and kinds.is_binary(type_)
    ):
        return _blobs(array, type_)
    return array.cast(type_)


def _part(feature: Any, name: str) -> Any:
    return feature[name] if isinstance(feature, dict) else None


def _list(array: pa.Array, feature: Any, type_: pa.DataType) -> pa.Array:
    first, last, offsets = _offsets(array, pa.large_list(pa.null()) if kinds.is_fixed_size_list(type_) else type_)
    elements = _column(array.values.slice(first, last - first), getattr(feature, "feature", None), type_.value_type)
    if kinds.is_fixed_size_list(type_):
        return _of_one_size(array, np.frombuffer(offsets, np.int64), elements, type_)
    return pa.Array.from_buffers(type_, len(array), [validity(array), offsets], children=[elements])


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
    if width is np.int32 and n * size > MAX_OFFSET:
        raise _TooLong(n * size)
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
