"""The Arrow types that poolish stores, and how any other type becomes one of them without loss.

Text, binaries and lists have 64-bit offsets; dictionary, run-end and view encodings are decoded; fixed-size lists of
numbers are tensors. A type that cannot be converted is rejected by name.

A tensor column of one shape is Arrow's own ``fixed_shape_tensor``: torch and NumPy read it without a copy. Arrow has no
type for some dtypes (bool as bytes, bfloat16, float8, complex) and none for ragged tensors; those are the extension
type ``poolish.tensor``, which carries the same bytes in plain types::

    fixed shape     fixed_size_list<carrier>[n]
    ragged          struct<data: large_list<carrier>, shape: fixed_size_list<int64>[rank]>

Its metadata is JSON (dtype and shape), so any tool can read the storage and nothing is ever unpickled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds
from numpy.typing import NDArray

from poolish.errors import LimitExceeded, SchemaError

Shape = tuple[int | None, ...]

#: dtypes Arrow has itself, by the name NumPy and torch give them.
NATIVE: dict[str, pa.DataType] = {
    **{f"{sign}int{bits}": getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": getattr(pa, f"float{bits}")() for bits in (16, 32, 64)},
    **{f"datetime64[{unit}]": pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")},
    **{f"timedelta64[{unit}]": pa.duration(unit) for unit in ("s", "ms", "us", "ns")},
}

#: dtypes Arrow does not have: what carries their bits, and how many carriers make one value.
CARRIED: dict[str, tuple[pa.DataType, int]] = {
    "bool": (pa.uint8(), 1),
    "bfloat16": (pa.uint16(), 1),
    "float8_e4m3fn": (pa.uint8(), 1),
    "float8_e5m2": (pa.uint8(), 1),
    "complex64": (pa.float32(), 2),
    "complex128": (pa.float64(), 2),
}

TENSOR_DTYPES = frozenset(NATIVE) | frozenset(CARRIED)


def carrier(dtype: str) -> pa.DataType:
    """The Arrow type whose values carry ``dtype``.

    >>> carrier("bfloat16"), carrier("float32")
    (DataType(uint16), DataType(float))
    """
    return NATIVE[dtype] if dtype in NATIVE else CARRIED[dtype][0]


def carriers_per_value(dtype: str) -> int:
    """How many carriers make one value: two for complex numbers, one otherwise."""
    return 1 if dtype in NATIVE else CARRIED[dtype][1]


MAX_RANK = 32
MAX_METADATA_BYTES = 4096


def is_shape(shape: object) -> bool:
    """Whether this is a shape: sizes of 0 and more, None where rows differ, and not more values than can be counted."""
    if not isinstance(shape, tuple) or len(shape) > MAX_RANK:
        return False
    if not all(size is None or (type(size) is int and size >= 0) for size in shape):
        return False
    return bool(math.prod(size for size in shape if size) < 1 << 48)


class TensorType(pa.ExtensionType):  # type: ignore[misc]  # pyarrow has no types
    """A tensor that Arrow's ``fixed_shape_tensor`` cannot describe: another dtype, or a shape that varies.

    >>> TensorType("bfloat16", (64,)).storage_type
    FixedSizeListType(fixed_size_list<item: uint16>[64])
    """

    def __init__(self, dtype: str, shape: Shape) -> None:
        self.dtype = dtype
        self.shape = shape
        super().__init__(_storage(dtype, shape), "poolish.tensor")

    @property
    def is_ragged(self) -> bool:
        return None in self.shape

    def __arrow_ext_serialize__(self) -> bytes:
        return json.dumps({"dtype": self.dtype, "shape": self.shape}).encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> TensorType:
        try:
            metadata = json.loads(serialized[:MAX_METADATA_BYTES])
            dtype, shape = metadata["dtype"], tuple(metadata["shape"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise SchemaError(
                "poolish.tensor: its metadata is no JSON of a dtype and a shape; is it damaged?"
            ) from None
        if not isinstance(dtype, str) or dtype not in TENSOR_DTYPES or not is_shape(shape):
            raise SchemaError(
                f"poolish.tensor: unknown dtype or shape {dtype!r} {shape!r}; written by a newer poolish?"
            )
        if _storage(dtype, shape) != storage_type:
            raise SchemaError(
                f"poolish.tensor: {dtype}{list(shape)} cannot be stored as {storage_type}; the file is damaged"
            )
        return cls(dtype, shape)

    def __eq__(self, other: object) -> bool:
        # Arrow's own comparison looks only at the storage, which float8 and bool, [2, 3] and [3, 2] share.
        return isinstance(other, TensorType) and (self.dtype, self.shape) == (other.dtype, other.shape)

    def __hash__(self) -> int:
        return hash((self.dtype, self.shape))

    def __reduce__(self) -> tuple[type[TensorType], tuple[str, Shape]]:
        return TensorType, (self.dtype, self.shape)


def _storage(dtype: str, shape: Shape) -> pa.DataType:
    item = carrier(dtype)
    if None in shape:
        sizes = pa.list_(pa.int64(), len(shape))
        return pa.struct([pa.field("data", pa.large_list(item)), pa.field("shape", sizes)])
    return pa.list_(item, math.prod(d for d in shape if d is not None) * carriers_per_value(dtype))


def _register() -> None:
    try:
        pa.register_extension_type(TensorType("bool", (1,)))
    except pa.ArrowKeyError:
        pass  # the module was imported a second time in this process (a test that reloads it)


_register()


@lru_cache(maxsize=1024)
def tensor_type(dtype: str, shape: Shape) -> pa.DataType:
    """The Arrow type of a tensor column; ``None`` in ``shape`` is a dimension that differs from row to row.

    >>> tensor_type("float32", (2, 3))
    FixedShapeTensorType(extension<arrow.fixed_shape_tensor[value_type=float, shape=[2,3]]>)
    >>> tensor_type("float32", (None, 3)).shape
    (None, 3)
    """
    if dtype in NATIVE and shape and None not in shape:
        return pa.fixed_shape_tensor(NATIVE[dtype], shape)
    return TensorType(dtype, shape)


def is_tensor(type_: pa.DataType) -> bool:
    """Whether values of this type are arrays."""
    return isinstance(type_, (TensorType, pa.FixedShapeTensorType))


def dtype_and_shape(type_: pa.DataType) -> tuple[str, Shape]:
    """What ``tensor_type`` was made from.

    >>> dtype_and_shape(tensor_type("complex64", (2,)))
    ('complex64', (2,))
    """
    if isinstance(type_, TensorType):
        return type_.dtype, type_.shape
    return dtype_name(type_.value_type), tuple(type_.shape)


def dtype_name(type_: pa.DataType) -> str:
    """NumPy's name of a plain Arrow number, or KeyError.

    >>> dtype_name(pa.float64()), dtype_name(pa.timestamp("us"))
    ('float64', 'datetime64[us]')
    """
    return _NAMES[type_]


_NAMES = {type_: name for name, type_ in NATIVE.items()}


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The NumPy dtype of the carrier: what the bytes of a tensor are stored as.

    >>> numpy_dtype("bfloat16"), numpy_dtype("complex64"), numpy_dtype("float32")
    (dtype('uint16'), dtype('complex64'), dtype('float32'))
    """
    if dtype in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        dtype = str(carrier(dtype))
    return np.dtype(dtype)


def readable(stored: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Stored values as NumPy can calculate with them: itself, or float32 for bfloat16 and float8, which is exact.

    >>> readable(np.array([0x3FC0], np.uint16), "bfloat16")
    array([1.5], dtype=float32)
    """
    if dtype == "bfloat16":
        widened: NDArray[Any] = (stored.astype(np.uint32) << 16).view(np.float32)
        return widened
    if dtype.startswith("float8"):
        stored = _float8_values(dtype)[stored]
    return stored


def exactly(values: NDArray[Any], dtype: str) -> NDArray[Any] | None:
    """The inverse of ``readable``: how ``dtype`` stores these float32 values, or None if it cannot hold one of them.

    >>> exactly(np.array([1.5], np.float32), "bfloat16"), exactly(np.array([0.1], np.float32), "bfloat16")
    (array([16320], dtype=uint16), None)
    """
    if dtype == "bfloat16":
        stored: NDArray[Any] = (values.view(np.uint32) >> 16).astype(np.uint16)
    elif dtype.startswith("float8"):
        table = _float8_values(dtype)
        order = np.argsort(table)  # NaN last
        found = order[np.minimum(np.searchsorted(table[order], values), 255)].astype(np.uint8)
        stored = np.where(values == 0, np.where(np.signbit(values), 128, 0), found).astype(np.uint8)
    else:
        return None
    return stored if np.array_equal(readable(stored, dtype), values, equal_nan=True) else None


@lru_cache
def _float8_values(dtype: str) -> NDArray[np.float32]:
    n_fraction, bias = (3, 7) if dtype == "float8_e4m3fn" else (2, 15)
    code = np.arange(256)
    exponent, fraction = (code & 127) >> n_fraction, code & ((1 << n_fraction) - 1)
    scale = np.where(exponent == 0, 1, exponent) - bias - n_fraction
    values = np.ldexp(np.where(exponent == 0, fraction, fraction + (1 << n_fraction)).astype(np.float32), scale)
    if dtype == "float8_e4m3fn":
        values[(code & 127) == 127] = np.nan
    else:
        values[exponent == 31] = np.where(fraction == 0, np.inf, np.nan)[exponent == 31]
    return np.asarray(np.where(code >= 128, -values, values), np.float32)


MAX_NESTING = 16

_KEPT = (
    kinds.is_integer,
    kinds.is_floating,
    kinds.is_boolean,
    kinds.is_decimal,
    kinds.is_temporal,
    kinds.is_null,
    kinds.is_fixed_size_binary,
)
_FLAT_NUMBER = (kinds.is_integer, kinds.is_floating)


def canonical(type_: pa.DataType, depth: int = 0) -> pa.DataType:
    """The type poolish keeps values of ``type_`` in.

    >>> canonical(pa.list_(pa.dictionary(pa.int8(), pa.string())))
    LargeListType(large_list<item: large_string>)
    >>> canonical(pa.list_(pa.float32(), 64))
    FixedShapeTensorType(extension<arrow.fixed_shape_tensor[value_type=float, shape=[64]]>)
    """
    if depth > MAX_NESTING:
        raise LimitExceeded(f"type nested deeper than {MAX_NESTING}: {type_}; flatten it before append")
    if any(is_kept(type_) for is_kept in _KEPT):
        return type_
    if kinds.is_string(type_) or kinds.is_large_string(type_) or kinds.is_string_view(type_):
        return pa.large_string()
    if kinds.is_binary(type_) or kinds.is_large_binary(type_) or kinds.is_binary_view(type_):
        return pa.large_binary()
    if kinds.is_dictionary(type_) or kinds.is_run_end_encoded(type_):
        return canonical(type_.value_type, depth + 1)
    if isinstance(type_, pa.BaseExtensionType):
        return _canonical_extension(type_)
    return _canonical_nested(type_, depth)


def _canonical_nested(type_: pa.DataType, depth: int) -> pa.DataType:
    if kinds.is_fixed_size_list(type_):
        if any(is_number(type_.value_type) for is_number in _FLAT_NUMBER):
            return tensor_type(_number_name(type_.value_type), (type_.list_size,))
        return pa.large_list(canonical(type_.value_type, depth + 1))
    if kinds.is_map(type_):
        pair = [("key", canonical(type_.key_type, depth + 1)), ("value", canonical(type_.item_type, depth + 1))]
        return pa.large_list(pa.struct(pair))
    if kinds.is_struct(type_):
        check_names([field.name for field in type_], f"struct {type_}")
        return pa.struct([pa.field(field.name, canonical(field.type, depth + 1)) for field in type_])
    if is_list(type_):
        return pa.large_list(canonical(type_.value_type, depth + 1))
    raise SchemaError(f"a buffer cannot hold Arrow type {type_}; cast the column to a plain type before append")


def is_list(type_: pa.DataType) -> bool:
    """Whether this is a list type: of one length or any, with 32 or 64 bits, contiguous or a view."""
    return any(is_kind(type_) for is_kind in _LISTS)


_LISTS = (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list, kinds.is_list_view, kinds.is_large_list_view)


def _canonical_extension(type_: pa.DataType) -> pa.DataType:
    if isinstance(type_, pa.FixedShapeTensorType):
        if type_.permutation is not None and list(type_.permutation) != list(range(len(type_.shape))):
            raise SchemaError(f"{type_} is stored in permuted order; convert it with to_numpy_ndarray() before append")
        return tensor_type(_number_name(type_.value_type), tuple(type_.shape))
    if isinstance(type_, (TensorType, pa.UuidType)):
        return type_
    if is_hf_array(type_):
        return tensor_type(type_.value_type, tuple(type_.shape))
    if isinstance(type_, pa.Bool8Type):
        return pa.bool_()
    if isinstance(type_, pa.JsonType):
        return pa.large_string()
    raise SchemaError(
        f"extension type {type_} is unknown to poolish; cast the column to its storage type {type_.storage_type} first"
    )


def is_hf_array(type_: pa.DataType) -> bool:
    """Whether this is the Arrow type of Hugging Face's Array2D to Array5D."""
    return isinstance(type_, pa.ExtensionType) and type(type_).__module__.startswith("datasets.features")


def _number_name(type_: pa.DataType) -> str:
    try:
        return dtype_name(type_)
    except KeyError:
        raise SchemaError(f"a tensor of {type_} has no dtype in NumPy; cast the column before append") from None


def check_names(names: list[str], place: str) -> None:
    """Refuse a name that stands twice, as Arrow allows and nothing else does."""
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise SchemaError(f"{place}: column {twice[0]!r} stands there twice; rename one of them before append")


def is_resolved(type_: pa.DataType) -> bool:
    """Whether every part of the type is known; a part that has held only nulls so far is not.

    >>> is_resolved(pa.large_list(pa.null())), is_resolved(pa.large_list(pa.int64()))
    (False, True)
    """
    if kinds.is_null(type_):
        return False
    if is_tensor(type_):
        return True
    if kinds.is_large_list(type_):
        return is_resolved(type_.value_type)
    if kinds.is_struct(type_):
        return all(is_resolved(field.type) for field in type_)
    return True


def is_rare(type_: pa.DataType) -> bool:
    """Whether Arrow lacks kernels for this type, so that its values need the slow Python path."""
    views = (kinds.is_string_view, kinds.is_binary_view, kinds.is_list_view, kinds.is_large_list_view)
    rare = (*views, kinds.is_union, kinds.is_run_end_encoded)
    if kinds.is_dictionary(type_):
        return is_rare(type_.value_type)
    return any(is_kind(type_) for is_kind in rare) or any(is_rare(type_.field(i).type) for i in range(type_.num_fields))


def dictionary_decode(values: pa.Array | pa.ChunkedArray, type_: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """The values of a dictionary-encoded array, in this type.

    The dictionary is cast first: Arrow has no kernel to take from the views in which polars keeps categories.

    >>> dictionary_decode(pa.array(["rye", "oats", "rye"]).dictionary_encode(), pa.large_string()).to_pylist()
    ['rye', 'oats', 'rye']
    """
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([dictionary_decode(chunk, type_) for chunk in values.chunks], type_)
    return values.dictionary.cast(type_).take(values.indices)


def describe(type_: pa.DataType) -> str:
    """A type in a user's words.

    >>> describe(tensor_type("float32", (None, 3))), describe(pa.large_list(pa.large_string())), describe(pa.float32())
    ('float32[?, 3]', 'list of text', 'float32')
    """
    if is_tensor(type_):
        dtype, shape = dtype_and_shape(type_)
        return f"{dtype}[{', '.join('?' if size is None else str(size) for size in shape)}]"
    if kinds.is_large_list(type_):
        return f"list of {describe(type_.value_type)}"
    if kinds.is_struct(type_):
        return "{" + ", ".join(f"{field.name}: {describe(field.type)}" for field in type_) + "}"
    return _WORDS.get(type_) or str(type_)


_WORDS = {
    pa.large_string(): "text",
    pa.large_binary(): "bytes",
    pa.null(): "nothing yet",
    pa.float16(): "float16",
    pa.float32(): "float32",
    pa.float64(): "float64",
    pa.bool_(): "bool",
}


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """The columns of a schema with nothing in them; Arrow itself does not know how to do that for all tensors.

    >>> no_rows(pa.schema({"x": pa.fixed_shape_tensor(pa.int8(), [2, 3], permutation=[1, 0])})).num_rows
    0
    """
    return pa.RecordBatch.from_arrays([empty_array(field.type) for field in schema], schema=schema)


def empty_array(type_: pa.DataType) -> pa.Array:
    """No values of a type, of any extension type too, also inside of lists and structs.

    >>> len(empty_array(pa.large_list(tensor_type("float32", (2,)))))
    0
    """
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, empty_array(type_.storage_type))
    if kinds.is_list(type_) or kinds.is_large_list(type_):
        return pa.Array.from_buffers(type_, 0, [None, pa.py_buffer(bytes(8))], children=[empty_array(type_.value_type)])
    if kinds.is_struct(type_) or kinds.is_fixed_size_list(type_):
        parts = [field.type for field in type_] if kinds.is_struct(type_) else [type_.value_type]
        return pa.Array.from_buffers(type_, 0, [None], children=[empty_array(part) for part in parts])
    return pa.array([], type_)


def unsliced(table: pa.Table) -> pa.Table:
    """The same rows, to be filtered or taken from.

    Of a slice of lists of one length in such lists Arrow takes the wrong ones: it counts the offset twice.

    >>> boxes = pa.table({"box": pa.array([[[i, i]] for i in range(4)], pa.list_(pa.list_(pa.int64(), 2), 1))})
    >>> unsliced(boxes.slice(2)).filter(pa.array([False, True]))["box"].to_pylist()
    [[[3, 3]]]
    """
    for i, field in enumerate(table.schema):
        if _is_taken_wrongly(field.type):
            whole = [pa.concat_arrays([chunk, chunk.slice(0, 0)]) for chunk in table.column(i).chunks]
            table = table.set_column(i, field, pa.chunked_array(whole, field.type))
    return table


def _is_taken_wrongly(type_: pa.DataType) -> bool:
    if isinstance(type_, pa.BaseExtensionType):
        return _is_taken_wrongly(type_.storage_type)
    inner = [type_.field(i).type for i in range(type_.num_fields)]
    if kinds.is_fixed_size_list(type_) and kinds.is_fixed_size_list(inner[0]):
        return True
    return any(map(_is_taken_wrongly, inner))


def offsets_of(array: pa.Array) -> NDArray[Any]:
    """Where the texts or lists of an array begin and end, as int32 or int64 over Arrow's own memory.

    The buffer may be longer than its offsets, also by a fraction of one; an empty array may leave it out.

    >>> offsets_of(pa.array(["rye", "bread"]).slice(1))
    array([3, 8], dtype=int32)
    """
    is_large = kinds.is_large_list(array.type) or kinds.is_large_string(array.type) or kinds.is_large_binary(array.type)
    dtype = np.dtype(np.int64 if is_large else np.int32)
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros(1, dtype)
    return np.frombuffer(buffer, dtype, len(array) + 1, array.offset * dtype.itemsize)


def bytes_of(buffer: pa.Buffer | None) -> NDArray[np.uint8]:
    """The bytes of an Arrow buffer, without a copy; none where Arrow left the buffer out."""
    return np.empty(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)


# Columns of tensors made of NumPy's memory --------------------------------------------------------------------------


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
