"""Values that a buffer rejects: the exception, the size limits, and the checks of whole arrays.

``ValueRejected`` is raised where the rule is known; the caller that knows row and column turns it into the user's
error. Python values are checked one by one while they are encoded. Arrow arrays are checked here: an array larger than
the smallest limit in one pass over its offsets, text for UTF-8, ragged tensors against their shapes.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from poolish.errors import BadText, LimitExceeded, SchemaError
from poolish.schema import Field, TensorType, describe, offsets_of
from poolish.schema.types import carriers_per_value


class ValueRejected(Exception):
    """Raised where the rule is known; the caller that knows the place turns it into the user's error.

    ``{column}`` in the advice stands for the name of the column.
    """

    def __init__(
        self, rule: str, value: object, advice: str, error: type[SchemaError | LimitExceeded] = SchemaError
    ) -> None:
        super().__init__(rule)
        self.rule, self.value, self.advice, self.error = rule, value, advice, error
        self.path: list[str] = []
        self.index = 0

    def at(self, part: str) -> ValueRejected:
        """The same rejection, seen from one level further out."""
        self.path.insert(0, part)
        return self

    def with_index(self, index: int) -> ValueRejected:
        """The same rejection, about element ``index`` of what was looked at."""
        self.index = index
        return self

    def explained(self, row: int, column: str) -> SchemaError | LimitExceeded:
        """The error for the user: where, which rule, which value, what next."""
        place = f"row {row}, column {column!r}" + (f" at {''.join(self.path)}" if self.path else "")
        advice = self.advice.replace("{column}", repr(column))
        return self.error(f"{place}: {self.rule}, got {shown(self.value)}; {advice}")


def shown(value: object) -> str:
    """A value for a message: its type, and as much of it as fits a line.

    >>> shown("rye"), shown(list(range(100)))
    ("str 'rye'", 'list [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...]')
    """
    if isinstance(value, pa.DataType):
        return describe(value)
    kind = type(value).__name__
    shape = getattr(value, "shape", None)
    if shape and isinstance(shape, tuple) and hasattr(value, "dtype"):
        return f"{kind} {str(value.dtype).removeprefix('torch.')}{list(shape)}"
    try:
        text = _short.repr(value)
    except Exception:  # the value's own repr fails; its type has to do
        return kind
    return f"{kind} {text if len(text) <= 60 else text[:57] + '...'}"


_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 60
_short.maxlist = _short.maxtuple = _short.maxdict = _short.maxset = 12


@dataclass(frozen=True)
class Limits:
    """Limits of one buffer; changed in code (``DatasetBuffer(limits=Limits(cell_bytes=1 << 30))``), never by data.

    >>> Limits().cell_bytes == 64 << 20
    True
    """

    cell_bytes: int = 64 << 20
    row_bytes: int = 256 << 20
    image_pixels: int = 64_000_000
    image_bytes: int = 256 << 20


def check_sizes(array: pa.Array, limits: Limits) -> None:
    """Refuse the first row over a limit: text and bytes by ``cell_bytes``, arrays and lists by ``row_bytes``."""
    if array.nbytes <= min(limits.cell_bytes, limits.row_bytes):
        return
    if isinstance(array.type, pa.BaseExtensionType):
        check_sizes(array.storage, limits)
    elif kinds.is_large_string(array.type) or kinds.is_large_binary(array.type):
        _check(np.diff(offsets_of(array)), limits.cell_bytes, "cell_bytes")
    elif kinds.is_fixed_size_list(array.type):
        width = array.type.list_size * _width(array.type.value_type)
        _check(np.full(min(1, len(array)), width), limits.row_bytes, "row_bytes")
    elif kinds.is_large_list(array.type):
        _check(np.diff(offsets_of(array)) * _width(array.type.value_type), limits.row_bytes, "row_bytes")
        check_sizes(array.flatten(), limits)
    elif kinds.is_struct(array.type):
        for field in array.type:
            check_sizes(array.field(field.name), limits)


def check_text(array: pa.Array) -> None:
    """Refuse the first row with text that is no UTF-8, which Arrow takes from files and other libraries unseen."""
    type_ = array.type
    if kinds.is_large_string(type_):
        _check_utf8(array)
    elif kinds.is_large_list(type_) and len(array):
        offsets = offsets_of(array)
        first = int(offsets[0])
        try:
            check_text(array.values.slice(first, int(offsets[-1]) - first))
        except ValueRejected as rejection:
            inside = rejection.index + first
            row = int(np.searchsorted(offsets, inside, side="right")) - 1
            raise rejection.with_index(row).at(f"[{inside - int(offsets[row])}]") from None
    elif kinds.is_struct(type_):
        for field in type_:
            try:
                check_text(array.field(field.name))
            except ValueRejected as rejection:
                raise rejection.at(f".{field.name}") from None


def _check_utf8(array: pa.Array) -> None:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        row = first_invalid(array, lambda part: part.validate(full=True))
        value = array.slice(row, 1).cast(pa.large_binary())[0].as_py()
        advice = "decode it with its own encoding first, or bring the column as binary"
        raise ValueRejected("text is UTF-8", value, advice, BadText).with_index(row) from None


def first_invalid(array: pa.Array, check: Callable[[pa.Array], object]) -> int:
    """The first row for which ``check`` raises ``ArrowInvalid``, by halving; there must be one."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            check(array.slice(low, middle - low))
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
        for field in type_:
            check_shapes(array.field(field.name))


def may_be_ragged(type_: pa.DataType) -> bool:
    """Whether ragged tensors are somewhere inside."""
    if kinds.is_large_list(type_):
        return may_be_ragged(type_.value_type)
    if kinds.is_struct(type_):
        return any(may_be_ragged(field.type) for field in type_)
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
    lengths = np.diff(offsets_of(data))
    fixed = [size in (None, -1) or sizes[:, i] == size for i, size in enumerate(type_.shape)]
    right = (n_values == lengths) & (sizes >= 0).all(axis=1) & (sizes < 1 << 48).all(axis=1)
    for is_right in fixed:
        right &= is_right
    wrong = np.flatnonzero(present & ~right)
    if len(wrong):
        row = int(wrong[0])
        rule = f"a tensor has as many values as its shape {sizes[row].tolist()} says"
        raise ValueRejected(rule, int(lengths[row]), "leave the row out, or make it again").with_index(row)


def too_large(n_bytes: int, limit: int, name: str, value: object) -> ValueRejected:
    """What is said of a cell that is too large."""
    advice = f"split it, or raise the limit: DatasetBuffer(limits=Limits({name}={n_bytes}))"
    return ValueRejected(f"{n_bytes:,} bytes in one cell, the limit is {limit:,}", value, advice, LimitExceeded)


def _check(n_bytes: np.ndarray[tuple[int], np.dtype[np.int64]], limit: int, name: str) -> None:
    over = np.flatnonzero(n_bytes > limit)
    if len(over):
        row = int(over[0])
        raise too_large(int(n_bytes[row]), limit, name, int(n_bytes[row])).with_index(row)


def _width(type_: pa.DataType) -> int:
    """Bytes of one value in its parent; eight for those that lie elsewhere, for their offset."""
    return max(1, type_.bit_width // 8) if kinds.is_primitive(type_) else 8


def null_rejected(field: Field, row: int) -> SchemaError:
    """The error for a None in a field that was declared not to have any."""
    return SchemaError(
        f"row {row}, column {field.name!r}: declared {describe(field.type)} and not nullable, got None; "
        "give it a value or declare Field(..., nullable=True)"
    )
