"""Which Arrow types poolish keeps, and how any other type becomes one of them without losing a value.

Text, binaries and lists are kept with 64-bit offsets, encodings (dictionary, run-end, view) are undone, lists of one
length of numbers are tensors. A type for which that is not possible is refused by name.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as kinds

from poolish.errors import LimitExceeded, SchemaError
from poolish.schema.tensor import TensorType, dtype_and_shape, dtype_name, is_tensor, tensor_type

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
        check_names([type_.field(i).name for i in range(type_.num_fields)], f"struct {type_}")
        fields = [type_.field(i) for i in range(type_.num_fields)]
        return pa.struct([pa.field(field.name, canonical(field.type, depth + 1)) for field in fields])
    if _is_any_list(type_):
        return pa.large_list(canonical(type_.value_type, depth + 1))
    raise SchemaError(f"Arrow type {type_} has no place in a buffer; cast the column to a plain type before append")


def _is_any_list(type_: pa.DataType) -> bool:
    return bool(
        kinds.is_list(type_)
        or kinds.is_large_list(type_)
        or kinds.is_list_view(type_)
        or kinds.is_large_list_view(type_)
    )


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
        return all(is_resolved(type_.field(i).type) for i in range(type_.num_fields))
    return True


def spelled_out(values: pa.Array | pa.ChunkedArray, type_: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Numbers that stand for words as the words themselves, in this type.

    The words are cast first: Arrow cannot take one by one those that polars keeps its categories as.

    >>> spelled_out(pa.array(["rye", "oats", "rye"]).dictionary_encode(), pa.large_string()).to_pylist()
    ['rye', 'oats', 'rye']
    """
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([spelled_out(chunk, type_) for chunk in values.chunks], type_)
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
        fields = (type_.field(i) for i in range(type_.num_fields))
        return "{" + ", ".join(f"{field.name}: {describe(field.type)}" for field in fields) + "}"
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
    return pa.RecordBatch.from_arrays([_empty(field.type) for field in schema], schema=schema)


def _empty(type_: pa.DataType) -> pa.Array:
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, _empty(type_.storage_type))
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
