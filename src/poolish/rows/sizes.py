"""Whether any cell of an Arrow array is larger than a buffer allows, no text, or contradicts its own shape.

Rows of Python values are checked one by one as they are frozen; a whole array is looked at only if it is larger than
the smallest limit, and then in one pass over its offsets.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from poolish.errors import BadText, LimitExceeded
from poolish.rows.limits import Limits
from poolish.rows.refusal import Refusal
from poolish.schema import TensorType
from poolish.schema.tensor import carriers_per_value


def check_sizes(array: pa.Array, limits: Limits) -> None:
    """Refuse the first row over a limit: text and bytes by ``cell_bytes``, arrays and lists by ``row_bytes``."""
    if array.nbytes <= min(limits.cell_bytes, limits.row_bytes):
        return
    if isinstance(array.type, pa.BaseExtensionType):
        check_sizes(array.storage, limits)
    elif kinds.is_large_string(array.type) or kinds.is_large_binary(array.type):
        _check(_lengths(array), limits.cell_bytes, "cell_bytes")
    elif kinds.is_fixed_size_list(array.type):
        width = array.type.list_size * _width(array.type.value_type)
        _check(np.full(min(1, len(array)), width), limits.row_bytes, "row_bytes")
    elif kinds.is_large_list(array.type):
        _check(_lengths(array) * _width(array.type.value_type), limits.row_bytes, "row_bytes")
        check_sizes(array.flatten(), limits)
    elif kinds.is_struct(array.type):
        for i in range(array.type.num_fields):
            check_sizes(array.field(i), limits)


def check_text(array: pa.Array) -> None:
    """Refuse the first row with text that is no UTF-8, which Arrow takes from files and other libraries unseen."""
    type_ = array.type
    if kinds.is_large_string(type_):
        _check_utf8(array)
    elif kinds.is_large_list(type_) and len(array):
        offsets = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]
        first = int(offsets[0])
        try:
            check_text(array.values.slice(first, int(offsets[-1]) - first))
        except Refusal as refusal:
            inside = refusal.index + first
            row = int(np.searchsorted(offsets, inside, side="right")) - 1
            raise refusal.with_index(row).at(f"[{inside - int(offsets[row])}]") from None
    elif kinds.is_struct(type_):
        for i in range(type_.num_fields):
            try:
                check_text(array.field(i))
            except Refusal as refusal:
                raise refusal.at(f".{type_.field(i).name}") from None


def _check_utf8(array: pa.Array) -> None:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        row = _first_invalid(array)
        value = array.slice(row, 1).cast(pa.large_binary())[0].as_py()
        advice = "decode it with its own encoding first, or bring the column as binary"
        raise Refusal("text is UTF-8", value, advice, BadText).with_index(row) from None


def _first_invalid(array: pa.Array) -> int:
    """The first row that Arrow finds fault with, by halving."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            array.slice(low, middle - low).validate(full=True)
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low


def check_shapes(array: pa.Array) -> None:
    """Refuse ragged tensors whose shape does not say how many values they have: made by hand, or damaged."""
    type_ = array.type
    if isinstance(type_, TensorType) and type_.is_ragged:
        _check_ragged(array.storage, type_)
    elif kinds.is_large_list(type_) and may_be_ragged(type_):
        check_shapes(array.flatten())
    elif kinds.is_struct(type_):
        for i in range(type_.num_fields):
            check_shapes(array.field(i))


def may_be_ragged(type_: pa.DataType) -> bool:
    """Whether ragged tensors are somewhere inside."""
    if kinds.is_large_list(type_):
        return may_be_ragged(type_.value_type)
    if kinds.is_struct(type_):
        return any(may_be_ragged(type_.field(i).type) for i in range(type_.num_fields))
    return isinstance(type_, TensorType) and type_.is_ragged


def _check_ragged(storage: pa.Array, type_: TensorType) -> None:
    present = storage.is_valid().to_numpy(zero_copy_only=False)
    data, shape = storage.field("data"), storage.field("shape")
    if len(storage) == 0:
        return
    sizes = np.frombuffer(shape.values.buffers()[1], np.int64)[shape.values.offset :]
    sizes = sizes[shape.offset * len(type_.shape) :][: len(storage) * len(type_.shape)].reshape(len(storage), -1)
    with np.errstate(over="ignore"):
        n_values = sizes.prod(axis=1) * carriers_per_value(type_.dtype)
    fixed = [size in (None, -1) or sizes[:, i] == size for i, size in enumerate(type_.shape)]
    right = (n_values == _lengths(data)) & (sizes >= 0).all(axis=1) & (sizes < 1 << 48).all(axis=1)
    for is_right in fixed:
        right &= is_right
    wrong = np.flatnonzero(present & ~right)
    if len(wrong):
        row = int(wrong[0])
        rule = f"a tensor has as many values as its shape {sizes[row].tolist()} says"
        raise Refusal(rule, int(_lengths(data)[row]), "leave the row out, or make it again").with_index(row)


def size_refusal(n_bytes: int, limit: int, name: str, value: object) -> Refusal:
    """What is said of a cell that is too large."""
    advice = f"split it, or raise the limit: DatasetBuffer(limits=Limits({name}={n_bytes}))"
    return Refusal(f"{n_bytes:,} bytes in one cell, the limit is {limit:,}", value, advice, LimitExceeded)


def _check(n_bytes: np.ndarray[tuple[int], np.dtype[np.int64]], limit: int, name: str) -> None:
    over = np.flatnonzero(n_bytes > limit)
    if len(over):
        row = int(over[0])
        raise size_refusal(int(n_bytes[row]), limit, name, int(n_bytes[row])).with_index(row)


def _lengths(array: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    offsets = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]
    return np.diff(offsets)


def _width(type_: pa.DataType) -> int:
    """Bytes of one value in its parent; eight for those that lie elsewhere, for their offset."""
    return max(1, type_.bit_width // 8) if kinds.is_primitive(type_) else 8
