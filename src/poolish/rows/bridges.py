"""What reads a buffer from outside: NumPy, torch, Hugging Face, everything that speaks Arrow, and notebooks.

Numbers and tensors of one shape are not copied on the way; ``Conversions`` has the methods that buffers and snapshots
share.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds
from numpy.typing import NDArray

from poolish import html, torch_bridge
from poolish.columns import one_chunk
from poolish.errors import SchemaError, UnknownColumn
from poolish.printable import counted, printable
from poolish.rows.access import number_rows, reader, tensor_rows
from poolish.rows.cast import validity
from poolish.schema import Schema, describe, dtype_and_shape, is_tensor, numpy_dtype, offsets_of, readable
from poolish.schema.features import PAIRS, WIDENED, without_arrays

if TYPE_CHECKING:
    import datasets
    import pandas
    import polars
    import torch

    from poolish.rows.snapshot import Snapshot

#: Rows at each end that a notebook shows.
N_SHOWN = 5

#: Hugging Face's lists and text count with 32 bits. A chunk stays far below, and is halved where that is not enough.
CHUNK_BYTES = 1 << 30
MAX_OFFSET = 2**31 - 1


class Conversions(ABC):
    """Conversions and display of the rows in a snapshot, shared by buffers and snapshots."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """The rows as they are now."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """For polars, pandas, DuckDB and everything else that speaks Arrow's C interface."""
        return self.snapshot().to_arrow().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self.snapshot().schema.to_arrow().__arrow_c_schema__()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        # Without this, NumPy and pandas.DataFrame(...) make an array of one-row tables.
        raise TypeError(
            f"{type(self).__name__} is a table, not one array; write buffer.to_pandas() for a data frame, "
            "buffer.to_numpy() for an array of each column, or buffer['name'] for one column"
        )

    def __contains__(self, name: object) -> bool:
        """Whether there is a column of this name, as in a data frame."""
        if not isinstance(name, str):
            raise TypeError(
                f"'name in buffer' asks for a column, got {name!r:.100}; to look for a value write "
                "value in buffer.to_pydict()['name'], for a row id write id in buffer.ids"
            )
        return name in self.snapshot().schema

    @property
    def column_names(self) -> list[str]:
        """The names of the columns, in order; none before the first append."""
        return self.snapshot().schema.names

    @property
    def num_rows(self) -> int:
        """The number of rows: ``len(buffer)``, under the name that tables and datasets have for it."""
        return self.shape[0]

    @property
    def num_columns(self) -> int:
        """The number of columns."""
        return self.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns."""
        rows = self.snapshot()
        return len(rows), len(rows.schema)

    @property
    def features(self) -> datasets.Features:
        """The columns as Hugging Face describes them."""
        return self.snapshot().schema.to_features()

    def to_pandas(self, columns: Sequence[str] | None = None) -> pandas.DataFrame:
        """A pandas data frame that shares no memory with the buffer and holds every value exactly.

        Numbers, booleans and times without nulls have NumPy's dtypes; text has pandas' own; arrays and tensors of a
        row are NumPy arrays in an object column (None for null). Everything else, and every column of numbers with
        nulls, has the Arrow dtype (``int64[pyarrow]``), which keeps a null apart from NaN and integers exact.

        >>> from poolish import DatasetBuffer
        >>> buffer = DatasetBuffer()
        >>> buffer.append([{"label": 1, "votes": 2**53 + 1}, {"label": 0, "votes": None}])
        >>> frame = buffer.to_pandas()
        >>> [str(dtype) for dtype in frame.dtypes], frame["votes"][0] == 2**53 + 1
        (['int64', 'int64[pyarrow]'], True)
        """
        from poolish.rows.frames import pandas_frame

        rows = self.snapshot()
        return pandas_frame(dict(rows._chosen(columns)), len(rows), to_array)

    def to_polars(self, columns: Sequence[str] | None = None) -> polars.DataFrame:
        """A polars data frame; arrays and tensors become ``Array`` columns of their shape, ragged ones nested lists.

        ``polars.DataFrame(buffer)`` shows tensors as they are stored: flat, and bfloat16 by its bits.

        >>> from poolish import DatasetBuffer
        >>> buffer = DatasetBuffer()
        >>> buffer.append({"image": np.zeros((2, 3), np.uint8), "label": 7})
        >>> dict(buffer.to_polars().schema)
        {'image': Array(UInt8, shape=(2, 3)), 'label': Int64}
        """
        from poolish.rows.frames import polars_frame

        return polars_frame({name: without_tensors(array) for name, array in self._chosen(columns)})

    def to_pydict(self) -> dict[str, list[Any]]:
        """Columns as lists of the values that ``snapshot[i]`` would give."""
        rows = self.snapshot()
        places = rows.places(np.arange(len(rows))).tolist()
        return {name: [read(place) for place in places] for name, read in rows.readers}

    def to_numpy(self, columns: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
        """Columns as arrays: read-only views of numbers and tensors, object arrays of anything else."""
        return {name: to_array(name, array) for name, array in self._chosen(columns)}

    def to_torch(
        self, columns: Sequence[str] | None = None, *, device: Any = None, copy: bool = False
    ) -> dict[str, torch.Tensor | Any]:
        """Columns as tensors; text and bytes stay lists, lists of different lengths become lists of tensors.

        Numbers and tensors of one shape share the buffer's memory unless ``copy`` is true or the device is another one:
        do not write to them.
        """
        return {name: to_tensor(name, array, device, copy) for name, array in self._chosen(columns)}

    def to_hf_dataset(self) -> datasets.Dataset:
        """A Hugging Face dataset with the features the rows came with, or those their types ask for."""
        rows = self.snapshot()
        return _to_dataset(rows.to_arrow(), rows.schema)

    def _chosen(self, columns: Sequence[str] | None) -> Iterable[tuple[str, pa.Array]]:
        if isinstance(columns, str):
            raise TypeError(f"columns is a list of names, got {columns!r}; pass columns=[{columns!r}]")
        rows = self.snapshot()
        names = rows.schema.names if columns is None else list(columns)
        unknown = [name for name in names if name not in rows.schema]
        if unknown:
            raise UnknownColumn.of(unknown[0], rows.schema.names)
        table = rows.to_arrow()
        return [(name, one_chunk(table.column(name))) for name in names]

    def __repr__(self) -> str:
        rows, extra = self.snapshot(), self._settings_text()
        columns = ", ".join(f"{field.name}: {describe(field.type)}" for field in rows.schema)
        held = f" of {{{columns}}}" if columns else ", no schema yet"
        return printable(f"{type(self).__name__}({counted(len(rows), 'row')}{held}{extra and ', '}{extra})")

    def _repr_html_(self) -> str:
        """A table of the first and last rows, with their ids and the types of their columns."""
        rows = self.snapshot()
        numbers = list(range(len(rows)))
        shown = numbers if len(numbers) <= 2 * N_SHOWN else [*numbers[:N_SHOWN], *numbers[-N_SHOWN:]]
        headers = ["id", *(f"{field.name} ({describe(field.type)})" for field in rows.schema)]
        body: list[list[Any]] = [[int(rows.ids[i]), *map(_short, rows[i].values())] for i in shown]
        if len(shown) < len(numbers):
            body.insert(N_SHOWN, ["..."] * len(headers))
        return str(html.element("div", html.element("p", repr(self)), html.table(headers, body)))

    def _settings_text(self) -> str:
        """What the repr adds behind the columns."""
        return ""


def _short(value: object) -> str:
    if hasattr(value, "shape"):
        return f"{value.dtype}{list(value.shape)}"  # type: ignore[attr-defined]
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    words = str(value)
    return words if len(words) <= 80 else words[:77] + "..."


# NumPy and torch -----------------------------------------------------------------------------------------------------


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


def to_tensor(name: str, array: pa.Array, device: Any, copy: bool) -> Any:
    """A tensor for numbers; lists of tensors for lists that differ in length; lists for text; dicts for structs.

    Without ``copy`` tensors share memory where it allows that; writing to them would change the buffer's rows.
    """
    type_ = array.type
    if kinds.is_struct(type_) and not is_tensor(type_):
        _refuse_nulls(name, array)
        fields = (field.name for field in type_)
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


# Hugging Face --------------------------------------------------------------------------------------------------------


def _to_dataset(table: pa.Table, schema: Schema) -> Any:
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
    offsets = offsets_of(array)
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
        parts = [_column(array.field(part.name), _part(feature, part.name), part.type) for part in type_]
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


def without_tensors(array: pa.Array) -> pa.Array:
    """A column for libraries that do not know our tensors: lists of their shape, in dtypes that Arrow has."""
    return _column(array, None, _without_tensors(array.type))


def _without_tensors(type_: pa.DataType) -> pa.DataType:
    if is_tensor(type_):
        dtype, shape = dtype_and_shape(type_)
        values = WIDENED.get(dtype, dtype)
        if dtype in PAIRS:
            values, shape = PAIRS[dtype], (*shape, 2)
        nested = pa.array(np.empty(0, values)).type
        for size in reversed(shape):
            nested = pa.large_list(nested) if None in shape else pa.list_(nested, size)
        return nested
    if kinds.is_struct(type_):
        return pa.struct([part.with_type(_without_tensors(part.type)) for part in type_])
    if kinds.is_large_list(type_):
        return pa.large_list(_without_tensors(type_.value_type))
    return type_


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
