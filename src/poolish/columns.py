"""Anything tabular as columns: Arrow or NumPy values without a copy, and each column's single values with their rows.

    pa.Table, buffer, data frame, {name: array or list}, [row, ...]  --TableView.of-->  TableView  --[name]-->  Column
    array, tensor, list, Arrow array, Series                         --Column(name, values)-->                  Column

A row of a column may be one number, a text, a list or a whole array. Its *flat values* are all single values in one
sequence, with the row of each; so the same range check serves a reward, an image and a list of tokens. Numbers are read
where they lie. A null row has no flat values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
from numpy.typing import NDArray

from poolish import tabular
from poolish.concurrency import cached_property
from poolish.errors import ConfigError, SchemaError, UnknownColumn
from poolish.schema import canonical, describe, dtype_and_shape, is_tensor, readable, tensor_type
from poolish.schema.types import (
    NATIVE,
    TENSOR_DTYPES,
    build_ragged,
    carriers_per_value,
    empty_array,
    is_list,
    numpy_dtype,
    tensor_array,
)
from poolish.torch_bridge import is_torch_tensor

Array = NDArray[Any]
Mask = NDArray[np.bool_]
Int64 = NDArray[np.int64]


class NotApplicable(Exception):
    """A column is missing, or a check does not apply to the kind of its values; the text says which."""


class NotTabular(SchemaError, ConfigError):
    """Neither rows nor a column. Callers of statistics expect a SchemaError, those of checks a ConfigError."""


def columns_of(rows: Any, names: Iterable[str] | None = None) -> dict[str, Any]:
    """The columns of rows by name, unread: a table, a buffer, a data frame, a dict of columns or a list of dicts.

    >>> columns_of([{"x": 1}, {"x": 2, "y": "a"}])
    {'x': [1, 2], 'y': [None, 'a']}
    """
    found = dict(_columns(rows))
    if names is None:
        return found
    wanted = [names] if isinstance(names, str) else list(names)
    for name in wanted:
        if name not in found:
            raise UnknownColumn(f"column {name!r}: these rows have {sorted(found)}")
    return {name: found[name] for name in wanted}


class TableView:
    """Rows of any origin by column; ``ids`` are row ids, where the origin has them.

    >>> rows = TableView.of({"reward": np.array([0.5, np.nan]), "text": ["rye", None]})
    >>> len(rows), rows.names, rows["text"].nulls
    (2, ['reward', 'text'], array([False, True]))
    """

    def __init__(self, columns: Mapping[str, Any], n_rows: int, ids: Int64 | None = None) -> None:
        self._values = dict(columns)
        self._columns: dict[str, Column] = {}
        self._n_rows, self.ids = n_rows, ids

    @classmethod
    def of(cls, rows: Any, ids: Any = None) -> TableView:
        """A view of rows; ``NotTabular`` if they are none, columns of unequal length are a SchemaError."""
        if isinstance(rows, TableView):
            return rows
        if ids is None and hasattr(rows, "to_arrow"):
            ids = getattr(rows, "ids", None)
        values = {name: read_values(name, each) for name, each in _columns(rows)}
        lengths = {name: len(each) for name, each in values.items()}
        if len(set(lengths.values())) > 1:
            raise SchemaError(f"columns differ in length: {lengths}; every column needs one value per row")
        n_rows = next(iter(lengths.values()), getattr(rows, "num_rows", 0))
        return cls(values, n_rows, None if ids is None else np.asarray(ids, np.int64))

    @property
    def names(self) -> list[str]:
        """Column names in order."""
        return list(self._values)

    def __len__(self) -> int:
        return self._n_rows

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __getitem__(self, name: str) -> Column:
        """A column, or a field of a struct by ``column.field``; ``NotApplicable`` if there is none."""
        if name not in self._columns:
            self._columns[name] = Column(name, self._found(name))
        return self._columns[name]

    def _found(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        whole, _, part = name.partition(".")
        values = self._values.get(whole)
        if part and isinstance(values, (pa.Array, pa.ChunkedArray)):
            try:
                return pc.struct_field(one_chunk(values), part.split("."))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
                pass
        raise NotApplicable(f"there is no column {name!r}, only {self.names}")

    def to_arrow(self, names: Sequence[str] | None = None) -> pa.Table:
        """Columns as a table: all, or some."""
        return pa.table({name: self[name].to_arrow() for name in (self.names if names is None else names)})


@dataclass(frozen=True)
class FlatValues:
    """The single values of a column: NumPy for numbers, bools and times, Arrow for text and bytes.

    ``values_per_row`` is the number of values of every row, 1 where a row is a single value; None where rows differ:
    then ``offsets`` has the first value of each row. ``nulls`` flags null values inside of rows.
    """

    values: Any
    nulls: Mask | None = None
    values_per_row: int | None = 1
    offsets: Int64 | None = None

    def rows_with(self, flags: Mask) -> Mask:
        """The rows that have a flagged value.

        >>> flat = FlatValues(np.arange(4), None, None, np.array([0, 3, 3, 4]))
        >>> flat.rows_with(np.array([False, True, False, False]))
        array([ True, False, False])
        """
        if self.offsets is not None:
            total = np.concatenate([[0], np.cumsum(flags)])
            found: Mask = total[self.offsets[1:]] > total[self.offsets[:-1]]
            return found
        if self.values_per_row == 1:
            return flags
        return np.asarray(flags.reshape(-1, self.values_per_row or 1).any(axis=1))

    @property
    def present(self) -> Any:
        """The values that are not null."""
        if self.nulls is None:
            return self.values
        return self.values[~self.nulls] if isinstance(self.values, np.ndarray) else self.values.drop_null()


class Column:
    """One column as it came: an Arrow array of one chunk, a NumPy array of rows, or arrays of different ranks.

    >>> column = Column("x", [[1.0, 2.0], None, [3.0]])
    >>> column.type_name, column.flat.values, column.lengths
    ('list of float64', array([1., 2., 3.]), array([2, 0, 1]))
    """

    def __init__(self, name: str, values: Any, *, may_round: bool = False) -> None:
        self.name = name
        values = read_values(name, values, may_round=may_round)
        is_arrow = isinstance(values, (pa.Array, pa.ChunkedArray))
        self._values = _decoded(one_chunk(values)) if is_arrow else values

    def __len__(self) -> int:
        return len(self._values)

    @property
    def arrow_type(self) -> pa.DataType | None:
        """The type of its Arrow array, without encodings; None for NumPy arrays."""
        return self._values.type if isinstance(self._values, pa.Array) else None

    @cached_property
    def type(self) -> pa.DataType:
        """The type in which poolish would keep this column; ``NotApplicable`` if it has none."""
        try:
            if isinstance(self._values, list):
                raise NotApplicable(f"column {self.name!r} holds arrays of different ranks, which have no common type")
            if not isinstance(self._values, np.ndarray):
                return canonical(self._values.type)
            dtype, shape = self._values.dtype.name, self._values.shape[1:]
            if shape:
                return tensor_type(dtype, shape)
            return pa.bool_() if dtype == "bool" else NATIVE.get(dtype) or tensor_type(dtype, ())
        except (SchemaError, KeyError) as error:
            raise NotApplicable(str(error)) from None

    @property
    def type_name(self) -> str:
        """The type as messages show it."""
        return describe(self.type)

    @cached_property
    def nulls(self) -> Mask | None:
        """Which rows are null; None if none is."""
        if isinstance(self._values, list):
            flags = np.array([each is None for each in self._values], np.bool_)
            return flags if flags.any() else None
        return None if isinstance(self._values, np.ndarray) else _nulls(self._values)

    @property
    def n_nulls(self) -> int:
        """The number of null rows."""
        if isinstance(self._values, pa.Array):
            return int(self._values.null_count)
        return 0 if self.nulls is None else int(self.nulls.sum())

    @cached_property
    def flat(self) -> FlatValues:
        """The single values, exactly; ``NotApplicable`` for structs, and for numbers that NumPy cannot hold exactly."""
        return self._flat(_exact)

    @cached_property
    def measures(self) -> FlatValues:
        """The single values as statistics see them: times as counts of their unit, decimals as float64."""
        return self._flat(_measured)

    def _flat(self, read: Callable[[pa.Array, str], Array]) -> FlatValues:
        if isinstance(self._values, pa.Array):
            return _flattened(self._values, self.name, read)
        if isinstance(self._values, list):
            arrays = [np.empty(0) if each is None else each.reshape(-1) for each in self._values]
            values = np.concatenate([each for each in arrays if len(each)] or [np.empty(0)])
            return FlatValues(values, None, None, _offsets(np.array([len(each) for each in arrays], np.int64)))
        values, nulls = self._values.reshape(-1), None
        if read is _measured and values.dtype.kind in "mM":
            values, nulls = values.view(np.int64), np.isnat(values)
        n_each = int(np.prod(self._values.shape[1:], dtype=np.int64))
        if n_each == 0:
            return FlatValues(values, nulls, None, np.zeros(len(self) + 1, np.int64))
        return FlatValues(values, nulls, n_each)

    @cached_property
    def lengths(self) -> Int64:
        """The length of each row: characters, bytes, elements, first dimension; 0 for a null."""
        values: Any = self._values
        is_array = not isinstance(values, pa.Array) or is_tensor(values.type)
        if is_array and self.shapes.shape[1]:
            return self.shapes[:, 0]
        if is_array or not (_is_text(values.type) or _is_bytes(values.type) or is_list(values.type)):
            raise NotApplicable(f"column {self.name!r} is {self.type_name}, which has no length")
        return _lengths(values)

    @cached_property
    def shapes(self) -> Int64:
        """The shape of each row's array, one row each; a single value has no dimensions, a list one."""
        values: Any = self._values
        if isinstance(values, list):
            raise NotApplicable(f"column {self.name!r} holds arrays of different ranks")
        if isinstance(values, np.ndarray):
            return np.tile(np.asarray(values.shape[1:], np.int64), (len(self), 1))
        if is_list(values.type):
            return _lengths(values)[:, None]
        if not is_tensor(values.type):
            return np.empty((len(self), 0), np.int64)
        shape = dtype_and_shape(values.type)[1]
        if None not in shape:
            return np.tile(np.asarray(shape, np.int64), (len(self), 1))
        sizes = pc.struct_field(values.storage, "shape")
        found = np.zeros((len(self), len(shape)), np.int64)
        is_there = np.ones(len(self), np.bool_) if sizes.null_count == 0 else ~_flags(sizes.is_null())
        found[is_there] = np.asarray(sizes.flatten(), np.int64).reshape(-1, len(shape))
        return found

    def shape_counts(self) -> Counter[tuple[int, ...]]:
        """How many rows have each shape, nulls left out."""
        if isinstance(self._values, list):
            return Counter(each.shape for each in self._values if each is not None)
        shapes = self.shapes if self.nulls is None else self.shapes[~self.nulls]
        if not len(shapes) or (shapes == shapes[0]).all():
            return Counter({tuple(map(int, shapes[0])): len(shapes)} if len(shapes) else {})
        return Counter(map(tuple, shapes.tolist()))

    def drop_null(self) -> Column:
        """The column without its null rows."""
        if not self.n_nulls:
            return self
        is_arrow = isinstance(self._values, pa.Array)
        return Column(self.name, self._values.drop_null() if is_arrow else [v for v in self._values if v is not None])

    def to_arrow(self) -> pa.Array:
        """As an Arrow array; numbers are not copied."""
        if isinstance(self._values, list):
            return pa.array([None if each is None else each.reshape(-1).tolist() for each in self._values])
        return to_arrow(self._values)

    def objects(self) -> Any:
        """As a check function gets it: an array of numbers where that is possible, else Python values."""
        if isinstance(self._values, np.ndarray):
            return _read_only(self._values)
        type_ = self.arrow_type
        flat = None if type_ is None or self.nulls is not None or is_list(type_) else self._flat_or_none()
        if flat is not None and flat.offsets is None and isinstance(flat.values, np.ndarray):
            shape = dtype_and_shape(type_)[1] if is_tensor(type_) else ()
            return _read_only(flat.values.reshape(len(self), *(size or 0 for size in shape)))
        values = np.empty(len(self), object)
        values[:] = [self.value(i) for i in range(len(self))]
        return values

    def value(self, i: int) -> Any:
        """The value of one row, for a message or a check function: Python's own, or an array."""
        value = self._values[i]
        if isinstance(self._values, list):
            return value
        if isinstance(self._values, np.ndarray):
            return value.item() if value.ndim == 0 else value
        if is_tensor(self._values.type) and value.is_valid:
            flat = Column(self.name, self._values.slice(i, 1)).flat
            return np.asarray(flat.values).reshape(self.shapes[i])
        return value.as_py()

    def _flat_or_none(self) -> FlatValues | None:
        try:
            return self.flat
        except NotApplicable:
            return None


# Reading values of any origin ---------------------------------------------------------------------------------------


def _columns(rows: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(rows, Mapping):
        yield from ((str(name), values) for name, values in rows.items())
    elif (table := _table(rows)) is not None:
        yield from zip(table.column_names, table.columns, strict=True)
    elif (
        isinstance(rows, Sequence)
        and not isinstance(rows, (str, bytes))
        and all(isinstance(row, Mapping) for row in rows)
    ):
        names = dict.fromkeys(name for row in rows for name in row)
        yield from ((str(name), [row.get(name) for row in rows]) for name in names)
    else:
        raise NotTabular(
            "rows are a pa.Table, a buffer, a data frame, a dict of columns or a list of dicts, "
            f"got {type(rows).__name__}; for one array pass {{'x': array}}"
        )


def _table(rows: Any) -> pa.Table | None:
    """Rows as an Arrow table; None if they are none. Buffers come by their method, other libraries' tables as Arrow."""
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if not isinstance(rows, pa.Table) and callable(getattr(rows, "to_arrow", None)):
        rows = rows.to_arrow()
    if isinstance(rows, pa.Table):
        return rows
    return None if isinstance(rows, (pa.Array, pa.ChunkedArray)) else tabular.table_of(rows)


#: NumPy's codes of bool, integers, floats and complex numbers that are columns as they are.
_NUMBERS = "?bBhHiIlLqQefdFD"


def read_values(name: str, values: Any, *, may_round: bool = False) -> Any:
    """A column's values as Arrow, as a NumPy array of numbers, or as a list of arrays of different ranks.

    ``may_round`` makes integers beyond 64 bits the nearest floats, for statistics; otherwise they must be exact.
    """
    if isinstance(values, np.ndarray) and values.ndim and values.dtype.char in _NUMBERS and values.dtype.isnative:
        return values  # first, and without the name of its dtype, which takes long to make
    if isinstance(values, (pa.Array, pa.ChunkedArray)) or (isinstance(values, list) and _are_mixed_ranks(values)):
        return values
    if isinstance(values, Column):
        return values._values
    if is_torch_tensor(values):
        values = _torch_values(values)
    if isinstance(values, np.ndarray) and values.ndim > 0 and values.dtype.kind != "O":
        return _numpy_values(values)
    if hasattr(values, "__arrow_c_stream__"):  # a Series
        return pa.chunked_array(values)
    is_single = isinstance(values, (str, bytes, Mapping)) or getattr(values, "shape", None) == ()
    if is_single or not isinstance(values, Iterable):
        place = f"column {name!r}" if name else "a column"
        raise NotTabular(f"{place}: an array or a list with one value per row, got {type(values).__name__}")
    return _listed(name, list(values), may_round)


def _numpy_values(values: Array) -> Any:
    if values.dtype.kind == "V" and values.dtype.names:
        parts = [Column(part, values[part]).to_arrow() for part in values.dtype.names]
        return pa.StructArray.from_arrays(parts, list(values.dtype.names))
    if values.dtype.name not in TENSOR_DTYPES:
        return pa.array(values if values.dtype.kind == "M" and values.ndim == 1 else values.tolist())
    if values.dtype.kind == "V":  # bfloat16 and float8 of ml_dtypes
        return values.astype(np.float32)
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


def _listed(name: str, values: list[Any], may_round: bool) -> Any:
    plain = [_torch_values(value) if is_torch_tensor(value) else value for value in values]
    present = [value for value in plain if value is not None]
    are_arrays = [isinstance(value, np.ndarray) and value.dtype.name in TENSOR_DTYPES for value in present]
    if present and all(are_arrays) and all(value.ndim for value in present):
        return _stacked(plain, present)
    try:
        return pa.array([value.tolist() if isinstance(value, np.ndarray) else value for value in plain])
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
        if _are_floats(present, may_round):  # integers beyond 64 bits
            return pa.array([None if value is None else float(value) for value in plain], pa.float64())
        types = sorted({type(value).__name__ for value in present})
        raise SchemaError(
            f"{f'column {name!r}' if name else 'a column'}: values of one type, got {', '.join(types)} ({error}); "
            "convert them to one type"
        ) from None


def _are_floats(values: list[Any], may_round: bool) -> bool:
    if not all(isinstance(value, (int, float, np.number)) for value in values):
        return False
    try:
        return all(float(value) == value or may_round or value != value for value in values)
    except OverflowError:
        return False


def _stacked(values: list[Array | None], present: list[Array]) -> Any:
    """Arrays, one for each row, as one array, as a ragged tensor, or as they are where their ranks differ."""
    dtype = np.result_type(*{each.dtype for each in present})
    if len({each.shape for each in present}) == 1 and len(present) == len(values):
        return np.stack(present).astype(dtype, copy=False)
    rank = present[0].ndim
    if any(each.ndim != rank for each in present):
        return values
    shapes = np.array([(0,) * rank if each is None else each.shape for each in values], np.int64)
    type_ = tensor_type(dtype.name, (None,) * rank)
    flat = np.concatenate([each.reshape(-1) for each in present]).astype(dtype, copy=False)
    is_there = np.packbits([each is not None for each in values], bitorder="little")
    return build_ragged(type_, shapes, flat.view(np.uint8), pa.py_buffer(is_there))


def _are_mixed_ranks(values: list[Any]) -> bool:
    """Whether this is a list that ``_stacked`` left as it was."""
    ranks = {each.ndim if isinstance(each, np.ndarray) else 0 for each in values if each is not None}
    return len(ranks) > 1 and 0 not in ranks


def to_arrow(values: Any) -> pa.Array:
    """A column as an Arrow array; numbers are not copied."""
    if not isinstance(values, np.ndarray):
        return one_chunk(values)
    if values.ndim == 1 and values.dtype.kind != "c":
        return pa.array(values)
    return tensor_array(values.dtype.name, values)


def _torch_values(tensor: Any) -> Array:
    tensor = tensor.detach().cpu()
    is_narrow = str(tensor.dtype).startswith(("torch.bfloat16", "torch.float8"))  # NumPy has no such dtype
    return (tensor.float() if is_narrow else tensor).numpy()  # type: ignore[no-any-return]


def _read_only(values: Array) -> Array:
    """The same memory, read-only: it holds the rows themselves."""
    view = values.view()
    view.flags.writeable = False
    return view


# Arrow --------------------------------------------------------------------------------------------------------------


def one_chunk(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column as one array; without a copy where it has one chunk."""
    if not isinstance(values, pa.ChunkedArray):
        return values
    if values.num_chunks == 1:
        return values.chunk(0)
    if kinds.is_string(values.type) or kinds.is_binary(values.type):  # together they may be more than 2 GiB
        values = values.cast(pa.large_string() if kinds.is_string(values.type) else pa.large_binary())
    return pa.concat_arrays(values.chunks) if values.num_chunks else empty_array(values.type)


def _decoded(array: pa.Array) -> pa.Array:
    """Without encodings that only save space."""
    if kinds.is_dictionary(array.type):
        return _decoded(array.dictionary_decode())
    if kinds.is_run_end_encoded(array.type):
        return _decoded(pc.run_end_decode(array))
    if kinds.is_string_view(array.type) or kinds.is_binary_view(array.type):
        return array.cast(canonical(array.type))
    if isinstance(array.type, pa.Bool8Type):
        return array.cast(pa.bool_())
    if isinstance(array.type, pa.BaseExtensionType) and not is_tensor(array.type):
        return _decoded(array.storage)
    if kinds.is_fixed_size_list(array.type) and kinds.is_primitive(array.type.value_type):
        type_ = canonical(array.type)
        if is_tensor(type_) and not array.flatten().null_count:  # the tensor that a buffer would keep
            return pa.ExtensionArray.from_storage(type_, array)
    return array


def _flattened(array: pa.Array, name: str, read: Callable[[pa.Array, str], Array]) -> FlatValues:
    type_ = array.type
    if is_tensor(type_):
        return _flat_tensors(array)
    if is_list(type_):
        inner = _flattened(_decoded(array.flatten()), name, read)
        outer = _offsets(_lengths(array))
        each = 1 if inner.values_per_row is None else inner.values_per_row
        offsets = outer * each if inner.offsets is None else inner.offsets[outer]
        return FlatValues(inner.values, inner.nulls, None, offsets)
    if _is_text(type_) or _is_bytes(type_):
        return FlatValues(array, _nulls(array))
    if kinds.is_null(type_):
        return FlatValues(np.zeros(len(array)), np.ones(len(array), np.bool_))
    return FlatValues(read(array, name), _nulls(array))


def _flat_tensors(array: pa.Array) -> FlatValues:
    dtype, shape = dtype_and_shape(array.type)
    storage = array.storage
    if None in shape:
        storage = pc.struct_field(storage, "data")  # null where the row is
    carried = np.ascontiguousarray(storage.flatten().to_numpy(zero_copy_only=False))
    values = readable(carried.view(numpy_dtype(dtype)), dtype)
    n_each = int(np.prod([size or 0 for size in shape], dtype=np.int64))
    if None in shape or array.null_count or n_each == 0:
        return FlatValues(values, None, None, _offsets(_lengths(storage) // carriers_per_value(dtype)))
    return FlatValues(values, None, n_each)


def _exact(array: pa.Array, name: str) -> Array:
    """Numbers as they are, 0 for nulls."""
    type_ = array.type
    if kinds.is_boolean(type_):
        return _flags(array)
    if kinds.is_integer(type_) or kinds.is_floating(type_):
        return np.asarray(array.fill_null(0) if array.null_count else array)
    if kinds.is_date(type_):
        return _exact(array.cast(pa.timestamp("ms")), name)
    if kinds.is_timestamp(type_) or kinds.is_duration(type_):
        kind = "datetime64" if kinds.is_timestamp(type_) else "timedelta64"
        return np.asarray(array.cast(pa.int64()).fill_null(0)).view(f"{kind}[{type_.unit}]")
    raise NotApplicable(f"column {name!r} is {type_}, whose values this check does not know; cast it first")


def _measured(array: pa.Array, name: str) -> Array:
    """Numbers that statistics can be computed of, 0 for nulls."""
    type_ = array.type
    if kinds.is_decimal(type_):
        array = array.cast(pa.float64(), safe=False)
    elif kinds.is_temporal(type_) and not kinds.is_interval(type_):
        array = array.cast(pa.int64() if type_.bit_width == 64 else pa.int32())
    return _exact(array, name)


def _offsets(lengths: Int64) -> Int64:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _lengths(array: pa.Array) -> Int64:
    """The length of each row; 0 for a null."""
    if _is_text(array.type):
        found = pc.utf8_length(array)
    elif _is_bytes(array.type):
        found = pc.binary_length(array)
    else:
        found = pc.list_value_length(array)
    found = (found.fill_null(0) if found.null_count else found).cast(pa.int64())
    return np.asarray(found)


def _nulls(array: pa.Array) -> Mask | None:
    return _flags(array.is_null()) if array.null_count else None


def _flags(array: pa.Array) -> Mask:
    filled = array.fill_null(False) if array.null_count else array
    return np.asarray(filled.to_numpy(zero_copy_only=False), np.bool_)


def _is_text(type_: pa.DataType) -> bool:
    return bool(kinds.is_string(type_) or kinds.is_large_string(type_))


def _is_bytes(type_: pa.DataType) -> bool:
    return bool(kinds.is_binary(type_) or kinds.is_large_binary(type_) or kinds.is_fixed_size_binary(type_))
