"""Arrow arrays and columns of any origin, cast to the types of a buffer exactly or not at all.

Wider offsets, decoded dictionaries and tensors made of lists change no value. Numbers change their width only if each
of them survives; text is never parsed, nothing is rounded, and nothing turns into text. Columns may be arrays with one
row per entry of the first dimension, Arrow arrays, Series, or lists of values.
"""

from __future__ import annotations

import array as array_module
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
from numpy.typing import NDArray

from poolish.columns import one_chunk
from poolish.errors import SchemaError, UnknownColumn
from poolish.rows.access import tensor_rows
from poolish.rows.encode import encoder_of, shape_advice
from poolish.rows.validate import Limits, ValueRejected, check_text, first_invalid, null_rejected
from poolish.rows.values import as_list, image_hint, is_array, is_bytes_view, stored, widen_all
from poolish.schema import (
    Field,
    Schema,
    TensorType,
    canonical,
    column_name,
    describe,
    dtype_and_shape,
    is_resolved,
    is_tensor,
    numpy_dtype,
    offsets_of,
)
from poolish.schema.types import build_ragged, carrier, check_names, is_hf_array, tensor_array


def cast_exact(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """``array`` with the type of a column; ValueRejected with the index of the first row that the column cannot hold.

    >>> cast_exact(pa.array([1, 2], pa.int32()), pa.int64()).type
    DataType(int64)
    """
    if array.type == type_:
        return array
    if kinds.is_null(array.type) or len(array) == array.null_count:
        return _nulls(len(array), type_)
    if kinds.is_dictionary(array.type):
        return cast_exact(array.dictionary, type_).take(array.indices)
    if kinds.is_run_end_encoded(array.type):
        return cast_exact(pc.run_end_decode(array), type_)
    if is_tensor(type_):
        return _cast_tensor(array, type_)
    if isinstance(array.type, pa.Bool8Type):
        return cast_exact(array.cast(pa.bool_()), type_)
    if isinstance(array.type, pa.BaseExtensionType) and not isinstance(type_, pa.BaseExtensionType):
        return cast_exact(array.storage, type_)
    if kinds.is_large_binary(type_) and _is_bare_image(array):
        return cast_exact(array.field("bytes"), type_)
    if kinds.is_large_list(type_):
        return _cast_list(array, type_)
    if kinds.is_struct(type_):
        return _cast_struct(array, type_)
    return _cast_scalar(array, type_)


def _is_bare_image(array: pa.Array) -> bool:
    """Whether these are Hugging Face's images, {bytes, path}, of which only the bytes are there."""
    if not kinds.is_struct(array.type) or [field.name for field in array.type] != ["bytes", "path"]:
        return False
    return bool(array.field("path").null_count == len(array) and array.field("bytes").null_count == array.null_count)


def _nulls(n: int, type_: pa.DataType) -> pa.Array:
    if isinstance(type_, TensorType) and type_.is_ragged:
        return build_ragged(type_, [[0] * len(type_.shape)] * n, b"", pa.py_buffer(bytes((n + 7) // 8)))
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, pa.nulls(n, type_.storage_type))
    return pa.nulls(n, type_)


def _cast_list(array: pa.Array, type_: pa.DataType) -> pa.Array:
    lists = _as_large_list(array, type_)
    offsets = offsets_of(lists)
    elements = lists.values.slice(offsets[0], offsets[-1] - offsets[0])
    try:
        fitted = cast_exact(elements, type_.value_type)
    except ValueRejected as rejection:
        inside = rejection.index + int(offsets[0])
        rejection.index = int(np.searchsorted(offsets, inside, side="right")) - 1
        raise rejection.at(f"[{inside - int(offsets[rejection.index])}]") from None
    buffers = [validity(lists), pa.py_buffer(offsets - offsets[0])]
    return pa.Array.from_buffers(type_, len(lists), buffers, children=[fitted])


def _as_large_list(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if is_tensor(array.type) and len(array.type.shape) == 1:
        array = array.storage if not isinstance(array.type, TensorType) else array.storage.field("data")
    given = array.type
    if kinds.is_large_list(given):
        return array
    if kinds.is_map(given):
        pairs = pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
        offsets = offsets_of(array).astype(np.int64)
        return _large_list(array, offsets, pairs)
    if kinds.is_list_view(given) or kinds.is_large_list_view(given):  # Arrow's own cast loses their values
        lengths = np.where(array.is_valid().to_numpy(zero_copy_only=False), array.sizes.to_numpy(), 0)
        return _large_list(array, np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))), array.flatten())
    if kinds.is_list(given):  # nor does it slice the null columns of structs
        offsets = offsets_of(array).astype(np.int64)
        return _large_list(array, offsets, array.values)
    if kinds.is_fixed_size_list(given):
        numbers = np.arange(array.offset, array.offset + len(array) + 1, dtype=np.int64)
        return _large_list(array, numbers * given.list_size, array.values)
    raise _rejected(array, type_)


def _large_list(array: pa.Array, offsets: NDArray[np.int64], elements: pa.Array) -> pa.Array:
    buffers = [validity(array), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(pa.large_list(elements.type), len(array), buffers, children=[elements])


def _cast_struct(array: pa.Array, type_: pa.DataType) -> pa.Array:
    given = [field.name for field in array.type] if kinds.is_struct(array.type) else []
    if sorted(given) != sorted(field.name for field in type_):
        raise _rejected(array, type_)
    children = []
    for field in type_:
        try:
            children.append(cast_exact(array.field(field.name), field.type))
        except ValueRejected as rejection:
            raise rejection.at(f".{field.name}") from None
    return pa.Array.from_buffers(type_, len(array), [validity(array)], children=children)


def _cast_tensor(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if is_tensor(array.type):
        return _as_ragged(array, type_)
    lists = array.storage if is_hf_array(array.type) else array
    if None in dtype_and_shape(type_)[1]:
        return _ragged_from_lists(lists, array, type_)
    return _fixed_from_lists(lists, array, type_)


def _as_ragged(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Tensors of one shape into a column that allows several; no other change of a tensor type is exact."""
    (dtype, shape), (wanted_dtype, wanted) = dtype_and_shape(array.type), dtype_and_shape(type_)
    if dtype != wanted_dtype or None in shape or not _has_sizes(shape, wanted):
        raise _rejected(array, type_)
    sizes = [size for size in shape if size is not None]
    rows = np.ascontiguousarray(tensor_rows(array)).reshape(-1).view(np.uint8)
    return build_ragged(type_, [sizes] * len(array), rows, validity(array))


def _has_sizes(shape: Sequence[int | None], wanted: Sequence[int | None]) -> bool:
    return len(shape) == len(wanted) and all(w in (None, s) for w, s in zip(wanted, shape, strict=True))


def _fixed_from_lists(lists: pa.Array, array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Nested lists whose lengths are the sizes of a tensor."""
    sizes = [size for size in dtype_and_shape(type_)[1] if size is not None]
    values, n_lists_per_row = lists.drop_null() if lists.null_count else lists, 1
    for size in sizes:
        if not hasattr(values.type, "value_type") or values.null_count:
            raise _rejected(array, type_)
        wrong = np.flatnonzero(_lengths(values) != size)
        if len(wrong):
            raise _rejected(array, type_, int(wrong[0]) // n_lists_per_row)
        values, n_lists_per_row = values.flatten(), n_lists_per_row * size
    storage = _with_null_rows(cast_values(values, array, type_), array, type_.storage_type)
    return pa.ExtensionArray.from_storage(type_, storage)


def _lengths(lists: pa.Array) -> NDArray[np.int64]:
    if kinds.is_fixed_size_list(lists.type):
        return np.full(len(lists), lists.type.list_size)
    lengths: NDArray[np.int64] = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    return lengths


def _with_null_rows(items: pa.Array, array: pa.Array, storage: pa.DataType) -> pa.Array:
    """Null rows have no values in a list, but take their place in a tensor."""
    if array.null_count == 0:
        return pa.Array.from_buffers(storage, len(array), [None], children=[items])
    size, is_valid = storage.list_size, array.is_valid().to_numpy(zero_copy_only=False)
    place = np.maximum(np.cumsum(is_valid) - 1, 0)  # null rows repeat the one before; they are never read
    spread = items.take(pa.array((place[:, None] * size + np.arange(size)).ravel()))
    return pa.Array.from_buffers(storage, len(array), [validity(array)], children=[spread])


def _ragged_from_lists(lists: pa.Array, array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Ragged tensors out of nested lists, row by row: rare, and each row has a shape of its own."""
    dtype, wanted = dtype_and_shape(type_)
    parts = []
    number = pa.bool_() if dtype == "bool" else carrier(dtype)
    for i, row in enumerate(cast_exact(lists, _nested_list(number, len(wanted))).to_pylist()):
        try:
            part = np.array(row or np.empty([size or 0 for size in wanted]), numpy_dtype(dtype))
        except (TypeError, ValueError):  # a null, or lists of several lengths
            raise _rejected(array, type_, i) from None
        if not _has_sizes(part.shape, wanted):
            raise _rejected(array, type_, i)
        parts.append(part)
    return build_ragged(type_, [part.shape for part in parts], b"".join(map(bytes, parts)), validity(array))


def _nested_list(type_: pa.DataType, rank: int) -> pa.DataType:
    for _ in range(rank):
        type_ = pa.large_list(type_)
    return type_


def cast_values(values: pa.Array, array: pa.Array, type_: pa.DataType) -> pa.Array:
    """The numbers of a tensor column: the same dtype, and none of them null."""
    dtype = dtype_and_shape(type_)[0]
    expected = pa.bool_() if dtype == "bool" else carrier(dtype)
    if values.null_count:
        null = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
        row = int(np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))[null // type_.storage_type.list_size])
        advice = "fill the nulls, or cast the column to a list"
        raise ValueRejected("a tensor has no null inside", array[row].as_py(), advice).with_index(row)
    if kinds.is_boolean(values.type) and dtype == "bool":
        return values.cast(pa.uint8())
    if values.type != expected:
        raise _rejected(array, type_)
    return values


_FAMILIES = [
    (kinds.is_integer, kinds.is_floating),
    (kinds.is_string, kinds.is_large_string, kinds.is_string_view),
    (kinds.is_binary, kinds.is_large_binary, kinds.is_binary_view, kinds.is_fixed_size_binary),
    (kinds.is_timestamp,),
    (kinds.is_duration,),
    (kinds.is_date,),
    (kinds.is_time,),
    (kinds.is_decimal,),
]


def _cast_scalar(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if not any(_is_one_of(array.type, family) and _is_one_of(type_, family) for family in _FAMILIES):
        raise _rejected(array, type_)
    if kinds.is_timestamp(type_) and (array.type.tz is None) != (type_.tz is None):
        raise _rejected(array, type_)
    inexact = _first_inexact(array, type_)
    if inexact is not None:
        rule = f"this column holds {describe(type_)}, and this value would not survive"
        advice = "declare a wider dtype with schema=, or round it yourself"
        raise ValueRejected(rule, _value(array, inexact), advice).with_index(inexact)
    return array.cast(type_, safe=False)


def _is_one_of(type_: pa.DataType, family: tuple[Callable[[pa.DataType], bool], ...]) -> bool:
    return any(is_member(type_) for is_member in family)


def _first_inexact(array: pa.Array, type_: pa.DataType) -> int | None:
    """The first value that does not come back from a cast there and back; Arrow's own check misses rounded floats."""
    if _is_one_of(type_, _FAMILIES[0]):
        with np.errstate(invalid="ignore", over="ignore"):
            return _first_changed(array, array.cast(type_, safe=False))
    try:
        array.cast(type_)
    except pa.ArrowInvalid:
        return first_invalid(array, lambda part: part.cast(type_))
    return None


def _first_changed(array: pa.Array, cast: pa.Array) -> int | None:
    present = array.is_valid().to_numpy(zero_copy_only=False)
    before, after = (part.drop_null().to_numpy(zero_copy_only=False) for part in (array, cast))
    changed = np.flatnonzero(~_equal_numbers(before, after))
    return int(np.flatnonzero(present)[changed[0]]) if len(changed) else None


def _equal_numbers(before: NDArray[Any], after: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether the numbers are the same, which NumPy itself would decide by rounding integers to floats."""
    if before.dtype.kind == "f" and after.dtype.kind == "f":
        return np.asarray((before == after) | (np.isnan(before) & np.isnan(after)))
    whole, other = (after, before) if before.dtype.kind == "f" else (before, after)
    if other.dtype.kind != "f":
        same_sign = (before < 0) == (after < 0)
        return np.asarray((before.astype(np.uint64) == after.astype(np.uint64)) & same_sign)
    fits = (other >= np.iinfo(whole.dtype).min) & (other < float(np.iinfo(whole.dtype).max) + 1)
    back = np.where(fits, other, 0).astype(whole.dtype)
    return np.asarray(fits & (back == whole) & (back.astype(other.dtype) == other))


def _rejected(array: pa.Array, type_: pa.DataType, index: int = 0) -> ValueRejected:
    given = canonical(array.type)
    rule = f"this column holds {describe(type_)}, the table brings {describe(given)}"
    if is_tensor(type_) and is_tensor(given) and dtype_and_shape(type_)[0] == dtype_and_shape(given)[0]:
        (dtype, wanted), (_, got) = dtype_and_shape(type_), dtype_and_shape(given)
        return ValueRejected(rule, given, shape_advice(dtype, wanted, got)).with_index(index)
    value = _value(array, index) if len(array) else None
    return ValueRejected(rule, value, "cast the column first").with_index(index)


def _value(array: pa.Array, index: int) -> Any:
    """A value for a message; of a time that Python has no number for, what is stored."""
    try:
        return array[index].as_py()
    except (OverflowError, ValueError):
        return array[index].cast(pa.int64()).as_py()


def validity(array: pa.Array) -> pa.Buffer | None:
    """The validity bitmap of a slice, starting at bit 0."""
    if array.null_count == 0:
        return None
    return pa.py_buffer(np.packbits(array.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))


def check_columns(columns: Any) -> None:
    """Refuse what is no dict of columns."""
    if not isinstance(columns, Mapping) or not columns:
        kind = type(columns).__name__
        raise SchemaError(f"columns is a dict of names and arrays, got {kind}; pass {{'name': array}}")


def batch_from(columns: Mapping[str, Any], schema: Schema | None, limits: Limits) -> pa.RecordBatch:
    """One Arrow batch of all columns, which must have the same number of rows; lists take the types of the schema."""
    check_columns(columns)
    names = [column_name(name) for name in columns]
    check_names(names, "columns")
    known = {} if schema is None else {field.name: field.type for field in schema if is_resolved(field.type)}
    made = [_column(name, values, known, limits) for name, values in zip(names, columns.values(), strict=True)]
    if len({len(array) for array in made}) > 1:
        lengths = {name: len(array) for name, array in zip(names, made, strict=True)}
        raise SchemaError(f"columns differ in length: {lengths}; every column needs one value per row")
    hints = [image_hint(values) for values in columns.values()]
    fields = [
        Field(name, array.type, nullable=True, feature=hint)
        for name, array, hint in zip(names, made, hints, strict=True)
    ]
    return pa.RecordBatch.from_arrays(made, schema=Schema(fields).to_arrow())


def _column(name: str, values: Any, known: Mapping[str, pa.DataType], limits: Limits) -> pa.Array:
    if name not in known or not isinstance(values, (list, tuple)):
        return array_from(name, values, limits)
    try:
        return _encoded(values, known[name], limits)
    except ValueRejected as rejection:
        raise rejection.explained(rejection.index, name) from None


def cast_columns(columns: Mapping[str, Any], n_rows: int, schema: Schema, limits: Limits) -> dict[str, pa.Array]:
    """New values for some columns of a schema, one per row."""
    fitted = {}
    for name, values in columns.items():
        if name not in schema:
            raise UnknownColumn.of(name, schema.names)
        field = schema[name]
        try:
            array = cast_exact(_column(name, values, {name: field.type}, limits), field.type)
            check_text(array)
        except ValueRejected as rejection:
            raise rejection.explained(rejection.index, name) from None
        if len(array) != n_rows:
            raise SchemaError(f"column {name!r}: {len(array)} values for {n_rows} ids; pass one value per id")
        if array.null_count and not field.nullable:
            raise null_rejected(field, int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0]))
        fitted[name] = array
    return fitted


def array_from(name: str, values: Any, limits: Limits) -> pa.Array:
    """A column of any origin as an Arrow array in a type poolish keeps; numbers in arrays are not copied."""
    try:
        if isinstance(values, (memoryview, array_module.array)) and not is_bytes_view(values):
            values = np.asarray(values)
        if hasattr(values, "__arrow_c_stream__") and not isinstance(values, pa.ChunkedArray):  # a Series
            values = pa.chunked_array(values)
        if isinstance(values, pa.ChunkedArray):
            values = one_chunk(values)
        if isinstance(values, pa.Array):
            return cast_exact(values, canonical(values.type))
        listed = as_list(values) if is_array(values) else _listed(values)
        return _from_array(values) if listed is None else _encoded(listed, widen_all(pa.null(), listed), limits)
    except ValueRejected as rejection:
        raise rejection.explained(rejection.index, name) from None


def _listed(values: Any) -> list[Any]:
    if isinstance(values, (str, bytes, bytearray, memoryview, Mapping)) or not hasattr(values, "__iter__"):
        raise ValueRejected("a column has one value per row", values, "pass a list or an array")
    return list(values)


def _encoded(values: Any, type_: pa.DataType, limits: Limits) -> pa.Array:
    encoder = encoder_of(type_, limits)
    return encoder.build(encoder.validate_and_copy_all(_listed(values)))


def _from_array(values: Any) -> pa.Array:
    dtype, array = stored(values)
    if array.ndim == 0:
        raise ValueRejected("a column has one value per row", values, "pass an array with at least one dimension")
    is_plain = array.ndim == 1 and dtype == array.dtype.name and array.dtype.kind != "c"
    return pa.array(np.ascontiguousarray(array)) if is_plain else tensor_array(dtype, array)
