"""Rows as checks see them: columns of any origin, and in each column its single values with the rows they belong to.

    pa.Table, buffer, data frame, {name: array or list}, [row, ...]   --Rows.of-->   Rows   --[name]-->   Column

A row of a column may be one number, a text, a list or a whole array. A check of values looks at the *leaves*, all
single values one behind the other, and then asks which rows hold a bad one; so the same range check serves a reward, an
image and a list of tokens. Numbers are looked at where they lie, without a copy. A null has no leaves to be bad.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
from numpy.typing import NDArray

from poolish.concurrency import cached_property
from poolish.errors import ConfigError, SchemaError
from poolish.schema import canonical, describe, dtype_and_shape, is_tensor, readable, tensor_type
from poolish.schema.types import NATIVE, TENSOR_DTYPES, carriers_per_value, numpy_dtype

Mask = NDArray[np.bool_]
Int64 = NDArray[np.int64]


class Unfit(Exception):
    """A column is missing, or its values are not of the kind that a check is about; the text says which."""


class Rows:
    """Rows to be checked; ``ids`` are row ids, where what they come from knows them.

    >>> rows = Rows.of({"reward": np.array([0.5, np.nan]), "text": ["rye", None]})
    >>> len(rows), rows.names, rows["text"].nulls
    (2, ['reward', 'text'], array([False, True]))
    """

    def __init__(self, columns: Mapping[str, Any], n_rows: int, ids: Int64 | None = None) -> None:
        self._columns = dict(columns)
        self._made: dict[str, Column] = {}
        self._n_rows, self.ids = n_rows, ids

    @classmethod
    def of(cls, rows: Any, ids: Any = None) -> Rows:
        """Rows of any origin; a mistake of the caller is a ConfigError, columns of unequal length a SchemaError."""
        if isinstance(rows, Rows):
            return rows
        if ids is None and hasattr(rows, "to_arrow"):
            ids = getattr(rows, "ids", None)
        given = None if ids is None else np.asarray(ids, np.int64)
        if isinstance(rows, Mapping):
            return cls._of_columns(rows, given)
        table = _table(rows)
        return cls(dict(zip(table.column_names, table.columns, strict=True)), table.num_rows, given)

    @classmethod
    def _of_columns(cls, columns: Mapping[str, Any], ids: Int64 | None) -> Rows:
        held = {str(name): _held(str(name), values) for name, values in columns.items()}
        lengths = {name: len(values) for name, values in held.items()}
        if len(set(lengths.values())) > 1:
            raise SchemaError(f"columns differ in length: {lengths}; every column needs one value per row")
        return cls(held, next(iter(lengths.values()), 0), ids)

    @property
    def names(self) -> list[str]:
        """Column names in order."""
        return list(self._columns)

    def __len__(self) -> int:
        return self._n_rows

    def __getitem__(self, name: str) -> Column:
        """A column, or a part of a struct by ``column.part``; ``Unfit`` if there is none."""
        if name not in self._made:
            self._made[name] = Column(name, self._found(name))
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def _found(self, name: str) -> Any:
        if name in self._columns:
            return self._columns[name]
        whole, _, part = name.partition(".")
        values = self._columns.get(whole)
        if part and values is not None and not isinstance(values, np.ndarray):
            try:
                return pc.struct_field(_one_chunk(values), part.split("."))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
                pass
        raise Unfit(f"there is no column {name!r}, only {self.names}")

    def to_arrow(self, names: Sequence[str] | None = None) -> pa.Table:
        """Columns as a table: all, or some."""
        return pa.table({name: self[name].to_arrow() for name in (self.names if names is None else names)})


@dataclass(frozen=True)
class Leaves:
    """The single values of a column: NumPy for numbers, bools and times, Arrow for text and bytes.

    ``n_each``: every row has so many of them, and that is 1 where a row is a single value; None: ``offsets`` tell.
    """

    values: Any
    nulls: Mask | None = None
    n_each: int | None = 1
    offsets: Int64 | None = None

    def rows_of(self, flags: Mask) -> Mask:
        """Which rows have a leaf with a flag.

        >>> Leaves(np.arange(4), None, None, np.array([0, 3, 3, 4])).rows_of(np.array([False, True, False, False]))
        array([ True, False, False])
        """
        if self.offsets is not None:
            total = np.concatenate([[0], np.cumsum(flags)])
            found: Mask = total[self.offsets[1:]] > total[self.offsets[:-1]]
            return found
        return flags if self.n_each == 1 else np.asarray(flags.reshape(-1, self.n_each or 1).any(axis=1))


def _read_only(values: NDArray[Any]) -> NDArray[Any]:
    """The same memory, which a check function looks at and does not write to: it holds the rows themselves."""
    view = values.view()
    view.flags.writeable = False
    return view


class Column:
    """One column, held as it came: an Arrow array of one chunk, or a NumPy array with a row in each entry."""

    def __init__(self, name: str, values: Any) -> None:
        self.name = name
        self._values = values if isinstance(values, np.ndarray) else _plain(_one_chunk(values))

    def __len__(self) -> int:
        return len(self._values)

    @cached_property
    def type(self) -> pa.DataType:
        """The type in which poolish would keep this column; ``Unfit`` if it has none."""
        try:
            if not isinstance(self._values, np.ndarray):
                return canonical(self._values.type)
            dtype, shape = self._values.dtype.name, self._values.shape[1:]
            if shape:
                return tensor_type(dtype, shape)
            return pa.bool_() if dtype == "bool" else NATIVE.get(dtype) or tensor_type(dtype, ())
        except (SchemaError, KeyError) as error:
            raise Unfit(str(error)) from None

    @property
    def told(self) -> str:
        """The type in a user's words."""
        return describe(self.type)

    @cached_property
    def nulls(self) -> Mask | None:
        """Which rows are null; None if none is."""
        return None if isinstance(self._values, np.ndarray) else _nulls(self._values)

    @cached_property
    def leaves(self) -> Leaves:
        """The single values; ``Unfit`` where a column has none (structs)."""
        if not isinstance(self._values, np.ndarray):
            return _leaves(self._values, self.name)
        n_each = int(np.prod(self._values.shape[1:], dtype=np.int64))
        if n_each == 0:
            return Leaves(self._values.reshape(-1), None, None, np.zeros(len(self) + 1, np.int64))
        return Leaves(self._values.reshape(-1), None, n_each)

    @cached_property
    def lengths(self) -> tuple[Int64, Mask | None]:
        """For each row how long it is (characters, bytes, elements, first dimension), and which rows are null."""
        values: Any = self._values
        is_array = isinstance(values, np.ndarray) or is_tensor(values.type)
        if is_array and self.shapes.shape[1]:
            return self.shapes[:, 0], self.nulls
        if is_array or not (_is_text(values.type) or _is_bytes(values.type) or _is_list(values.type)):
            raise Unfit(f"column {self.name!r} is {self.told}, which has no length")
        return _lengths(values), self.nulls

    @cached_property
    def shapes(self) -> Int64:
        """The shape of each row's array, one row each; a single value has no dimensions, a list one."""
        if isinstance(self._values, np.ndarray):
            return np.tile(np.asarray(self._values.shape[1:], np.int64), (len(self), 1))
        if _is_list(self._values.type):
            return _lengths(self._values)[:, None]
        if not is_tensor(self._values.type):
            return np.empty((len(self), 0), np.int64)
        shape = dtype_and_shape(self._values.type)[1]
        if None not in shape:
            return np.tile(np.asarray(shape, np.int64), (len(self), 1))
        sizes = pc.struct_field(self._values.storage, "shape")
        found = np.zeros((len(self), len(shape)), np.int64)
        is_there = np.ones(len(self), np.bool_) if sizes.null_count == 0 else ~_flags(sizes.is_null())
        found[is_there] = np.asarray(sizes.flatten(), np.int64).reshape(-1, len(shape))
        return found

    def to_arrow(self) -> pa.Array:
        """As an Arrow array."""
        return to_arrow(self._values)

    def objects(self) -> Any:
        """As a check function gets it: an array of numbers where that is possible, else Python values."""
        if isinstance(self._values, np.ndarray):
            return _read_only(self._values)
        shape = dtype_and_shape(self._values.type)[1] if is_tensor(self._values.type) else ()
        leaves = None if self.nulls is not None or _is_list(self._values.type) else self._leaves_or_none()
        if leaves is not None and leaves.offsets is None and isinstance(leaves.values, np.ndarray):
            return _read_only(leaves.values.reshape(len(self), *(size or 0 for size in shape)))
        values = np.empty(len(self), object)
        values[:] = [self.value(i) for i in range(len(self))]
        return values

    def value(self, i: int) -> Any:
        """The value of one row, for a message or a check function: Python's own, or an array."""
        value = self._values[i]
        if isinstance(self._values, np.ndarray):
            return value.item() if value.ndim == 0 else value
        if is_tensor(self._values.type) and value.is_valid:
            leaves = Column(self.name, self._values.slice(i, 1)).leaves
            return np.asarray(leaves.values).reshape(self.shapes[i])
        return value.as_py()

    def _leaves_or_none(self) -> Leaves | None:
        try:
            return self.leaves
        except Unfit:
            return None


def to_arrow(values: Any) -> pa.Array:
    """A column as an Arrow array; numbers are not copied."""
    if not isinstance(values, np.ndarray):
        return _one_chunk(values)
    if values.ndim == 1 and values.dtype.kind != "c":
        return pa.array(values)
    type_ = tensor_type(values.dtype.name, values.shape[1:])
    flat = np.ascontiguousarray(values).reshape(-1)
    carrier = type_.storage_type.value_type
    carried = flat.view(carrier.to_pandas_dtype()) if flat.dtype.kind in "bc" else flat
    storage = pa.FixedSizeListArray.from_arrays(pa.array(carried, carrier), type=type_.storage_type)
    return pa.ExtensionArray.from_storage(type_, storage)


# Taking in --------------------------------------------------------------------------------------------------------


def _table(rows: Any) -> pa.Table:
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if hasattr(rows, "to_arrow"):  # a buffer, a snapshot, a polars frame
        made = rows.to_arrow()
        return made if isinstance(made, pa.Table) else pa.table(made)
    if hasattr(rows, "__arrow_c_stream__"):
        return pa.table(rows)
    if isinstance(rows, Sequence) and not isinstance(rows, (str, bytes)) and all(isinstance(r, Mapping) for r in rows):
        names = list(dict.fromkeys(str(name) for row in rows for name in row))
        return pa.table({name: _listed(name, [row.get(name) for row in rows]) for name in names})
    raise ConfigError(
        "rows to check are a pa.Table, a buffer, a data frame, a dict of columns or a list of dicts, "
        f"got {type(rows).__name__}"
    )


def _held(name: str, values: Any) -> Any:
    """A column as a NumPy array of numbers or as an Arrow array."""
    if _is_torch_tensor(values):
        values = values.detach().cpu()
        is_narrow = str(values.dtype).startswith(("torch.bfloat16", "torch.float8"))  # NumPy has no such dtype
        values = (values.float() if is_narrow else values).numpy()
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values
    if isinstance(values, np.ndarray) and values.dtype.name in TENSOR_DTYPES and values.ndim > 0:
        return values
    if hasattr(values, "__arrow_c_stream__"):  # a Series
        return pa.chunked_array(values)
    if (
        not hasattr(values, "__len__")
        or isinstance(values, (str, bytes, Mapping))
        or getattr(values, "shape", None) == ()
    ):
        raise ConfigError(f"column {name!r}: an array or a list with one value per row, got {type(values).__name__}")
    return _listed(name, list(values))


def _is_torch_tensor(value: object) -> bool:
    """Nobody can hold a tensor before torch is loaded, so it need not be loaded to ask."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _listed(name: str, values: list[Any]) -> pa.Array:
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    if arrays and len(arrays) == len(values) and len({(each.shape, each.dtype.name) for each in arrays}) == 1:
        return to_arrow(np.stack(arrays))
    try:
        return pa.array([value.tolist() if isinstance(value, np.ndarray) else value for value in values])
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise SchemaError(f"column {name!r}: its values have no common type ({error}); make them alike") from None


def _one_chunk(values: Any) -> pa.Array:
    if not isinstance(values, pa.ChunkedArray):
        return values
    if values.num_chunks == 1:
        return values.chunk(0)
    if kinds.is_string(values.type) or kinds.is_binary(values.type):  # together they may be more than 2 GiB
        values = values.cast(pa.large_string() if kinds.is_string(values.type) else pa.large_binary())
    if values.num_chunks == 0:
        return pa.chunked_array([pa.nulls(0, values.type)]).chunk(0)
    return values.combine_chunks()


def _plain(array: pa.Array) -> pa.Array:
    """Without encodings that only save space."""
    if kinds.is_dictionary(array.type):
        return array.dictionary_decode()
    if kinds.is_run_end_encoded(array.type):
        return pc.run_end_decode(array)
    if kinds.is_string_view(array.type) or kinds.is_binary_view(array.type):
        return array.cast(canonical(array.type))
    if isinstance(array.type, pa.Bool8Type):
        return array.cast(pa.bool_())
    if isinstance(array.type, pa.BaseExtensionType) and not is_tensor(array.type):
        return array.storage
    return array


# Leaves -----------------------------------------------------------------------------------------------------------


def _leaves(array: pa.Array, name: str) -> Leaves:
    type_ = array.type
    if is_tensor(type_):
        return _tensor_leaves(array)
    if _is_list(type_):
        inner = _leaves(_plain(array.flatten()), name)
        outer = _offsets(_lengths(array))
        each = 1 if inner.n_each is None else inner.n_each
        return Leaves(inner.values, inner.nulls, None, outer * each if inner.offsets is None else inner.offsets[outer])
    if _is_text(type_) or _is_bytes(type_):
        return Leaves(array, _nulls(array))
    if kinds.is_null(type_):
        return Leaves(np.zeros(len(array)), np.ones(len(array), np.bool_))
    return Leaves(_numbers(array, name), _nulls(array))


def _tensor_leaves(array: pa.Array) -> Leaves:
    dtype, shape = dtype_and_shape(array.type)
    storage = array.storage
    if None in shape:
        storage = pc.struct_field(storage, "data")  # null where the row is
    carried = np.ascontiguousarray(storage.flatten().to_numpy(zero_copy_only=False))
    values = readable(carried.view(numpy_dtype(dtype)), dtype)
    n_each = int(np.prod([size or 0 for size in shape], dtype=np.int64))
    if None in shape or array.null_count or n_each == 0:
        return Leaves(values, None, None, _offsets(_lengths(storage) // carriers_per_value(dtype)))
    return Leaves(values, None, n_each)


def _offsets(lengths: Int64) -> Int64:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _lengths(array: pa.Array) -> Int64:
    """How long each row is; a null is 0."""
    if _is_text(array.type):
        found = pc.utf8_length(array)
    elif _is_bytes(array.type):
        found = pc.binary_length(array)
    else:
        found = pc.list_value_length(array)
    return np.asarray(found.fill_null(0) if found.null_count else found, np.int64)


def _numbers(array: pa.Array, name: str) -> NDArray[Any]:
    type_ = array.type
    if kinds.is_boolean(type_):
        return _flags(array)
    if kinds.is_integer(type_) or kinds.is_floating(type_):
        return np.asarray(array.fill_null(0) if array.null_count else array)
    if kinds.is_date(type_):
        return _numbers(array.cast(pa.timestamp("ms")), name)
    if kinds.is_timestamp(type_) or kinds.is_duration(type_):
        kind = "datetime64" if kinds.is_timestamp(type_) else "timedelta64"
        return np.asarray(array.cast(pa.int64()).fill_null(0)).view(f"{kind}[{type_.unit}]")
    raise Unfit(f"column {name!r} is {type_}, whose values this check does not know; cast it first")


def _nulls(array: pa.Array) -> Mask | None:
    return _flags(array.is_null()) if array.null_count else None


def _flags(array: pa.Array) -> Mask:
    filled = array.fill_null(False) if array.null_count else array
    return np.asarray(filled.to_numpy(zero_copy_only=False), np.bool_)


def _is_text(type_: pa.DataType) -> bool:
    return bool(kinds.is_string(type_) or kinds.is_large_string(type_))


def _is_bytes(type_: pa.DataType) -> bool:
    return bool(kinds.is_binary(type_) or kinds.is_large_binary(type_) or kinds.is_fixed_size_binary(type_))


def _is_list(type_: pa.DataType) -> bool:
    return bool(kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_))
