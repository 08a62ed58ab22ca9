"""Python values to Arrow arrays, exactly or not at all: one kind of cell per type of column.

A value goes two steps. ``freeze`` checks it against the column and gives something that can no longer change: the
value itself where it is immutable, the bytes of an array. ``build`` turns frozen values into an Arrow array and
cannot fail. So a row that ``append`` has accepted can wait in memory, and every refusal happens before anything is
changed.

The first real value decides the type; a later one must be held exactly: 2 fits a float column, 2.5 does not fit an
integer column, 2**53 + 1 fits no float column, True and 1 are not the same kind of thing, nor are text and bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, TypeGuard, cast

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from poolish.errors import BadText, NumberTooLarge
from poolish.kernels.reference import Step
from poolish.rows.validate import Limits, Refusal, size_refusal
from poolish.rows.values import as_dict, as_list, encode_png, is_array, is_bytes_view, is_image, scalar, stored
from poolish.schema import describe, dtype_and_shape, is_tensor, numpy_dtype
from poolish.schema.types import exactly

Frozen = Any


def cell_of(type_: pa.DataType, limits: Limits) -> Cell:
    """The cell for a type poolish keeps."""
    if is_tensor(type_):
        return RaggedCell(type_, limits) if None in dtype_and_shape(type_)[1] else TensorCell(type_, limits)
    for is_kind, cell in _CELLS:
        if is_kind(type_):
            return cell(type_, limits)
    return OtherCell(type_, limits)


class Cell:
    """Checks and converts the values of one column; ``None`` is null in all of them."""

    def __init__(self, type_: pa.DataType, limits: Limits) -> None:
        self.type = type_
        self.limits = limits

    def freeze(self, value: object) -> Frozen:
        """The value, checked and no longer able to change."""
        return None if value is None else self._freeze(value)

    def freeze_many(self, values: Sequence[object]) -> Sequence[Frozen]:
        """All values; a refusal carries the index of the one that was refused."""
        frozen, i = [], 0
        try:
            for i, value in enumerate(values):  # noqa: B007  # the refusal needs the index
                frozen.append(self.freeze(value))
        except Refusal as refusal:
            refusal.index = i
            raise
        return frozen

    def build(self, frozen: Sequence[Frozen]) -> pa.Array:
        """Frozen values as an Arrow array."""
        return pa.array(frozen, self.type)

    def step(self, name: str) -> Step:
        """This cell's step in the plan of ``kernels.freeze_row``; the shortcut must agree with ``freeze``."""
        return name, self.freeze, 0, 0, object, b"", ()

    def _freeze(self, value: object) -> Frozen:
        raise self.refuse(value)

    def refuse(self, value: object, advice: str = "convert it before append") -> Refusal:
        return Refusal(f"this column holds {describe(self.type)}", value, advice)

    def _check_size(self, n_bytes: int, limit: int, name: str, value: object) -> None:
        if n_bytes > limit:
            raise size_refusal(n_bytes, limit, name, value)


class NullCell(Cell):
    """Nothing but None has been seen yet."""


class IntCell(Cell):
    """Integers of one width, and whole floats."""

    def __init__(self, type_: pa.DataType, limits: Limits) -> None:
        super().__init__(type_, limits)
        bounds = np.iinfo(type_.to_pandas_dtype())
        self._low, self._high = int(bounds.min), int(bounds.max)

    def freeze(self, value: object) -> Frozen:
        if type(value) is int and self._low <= value <= self._high:
            return value
        return super().freeze(value)

    def step(self, name: str) -> Step:
        return name, self.freeze, 2 if kinds.is_int64(self.type) else 0, 0, int, b"", ()

    def freeze_many(self, values: Sequence[object]) -> Sequence[Frozen]:
        if set(map(type, values)) == {int}:
            numbers = cast("Sequence[int]", values)
            if self._low <= min(numbers) and max(numbers) <= self._high:
                return numbers
        return super().freeze_many(values)

    def _freeze(self, value: object) -> int:
        value = scalar(value)
        if isinstance(value, (float, np.floating)) and float(value).is_integer():
            value = int(value)
        if not isinstance(value, (int, np.integer)) or isinstance(value, (bool, np.timedelta64)):
            raise self.refuse(
                value,
                "round it yourself, or start the column with a float"
                if _is_float(value)
                else "convert it before append",
            )
        number = int(value)
        if not self._low <= number <= self._high:
            rule = f"{describe(self.type)} holds {self._low} to {self._high}"
            raise Refusal(rule, value, "keep it as text, or declare a wider dtype with schema=", NumberTooLarge)
        return number


class FloatCell(Cell):
    """Floating point numbers, and integers they hold exactly. NaN is a value, not a null."""

    def __init__(self, type_: pa.DataType, limits: Limits) -> None:
        super().__init__(type_, limits)
        self._numpy = np.dtype(type_.to_pandas_dtype()).type
        self._is_double = kinds.is_float64(type_)

    def freeze(self, value: object) -> Frozen:
        if type(value) is float and self._is_double:
            return value
        return super().freeze(value)

    def step(self, name: str) -> Step:
        return name, self.freeze, 3 if self._is_double else 0, 0, float, b"", ()

    def freeze_many(self, values: Sequence[object]) -> Sequence[Frozen]:
        if self._is_double and set(map(type, values)) == {float}:
            return values
        return super().freeze_many(values)

    def _freeze(self, value: object) -> float:
        value = scalar(value)
        if isinstance(value, bool) or not _is_number(value):
            raise self.refuse(value)
        number = self._rounded(value)
        if number != value and not (isinstance(value, (float, np.floating)) and math.isnan(value)):
            name = describe(self.type)
            advice = f"round it yourself (np.{self._numpy.__name__}(value)) or declare a wider dtype with schema="
            raise Refusal(f"{name} cannot hold this number exactly", value, advice, NumberTooLarge)
        return number

    def _rounded(self, value: Any) -> float:
        try:
            with np.errstate(over="ignore"):
                return float(self._numpy(value))
        except OverflowError:
            return math.inf

    def build(self, frozen: Sequence[Frozen]) -> pa.Array:
        if kinds.is_float16(self.type):
            mask = np.array([value is None for value in frozen], bool)
            return pa.array(np.array([0.0 if value is None else value for value in frozen], np.float16), mask=mask)
        return pa.array(frozen, self.type, from_pandas=False)


class BoolCell(Cell):
    """True and False."""

    def _freeze(self, value: object) -> bool:
        value = scalar(value)
        if isinstance(value, (bool, np.bool_)):
            return bool(value)
        raise self.refuse(value)


class TextCell(Cell):
    """Text that has a UTF-8 form; anything else (NUL, emoji, right-to-left) is kept byte for byte."""

    def freeze(self, value: object) -> Frozen:
        if type(value) is str and value.isascii() and len(value) <= self.limits.cell_bytes:
            return value
        return super().freeze(value)

    def step(self, name: str) -> Step:
        return name, self.freeze, 1, self.limits.cell_bytes, str, b"", ()

    def freeze_many(self, values: Sequence[object]) -> Sequence[Frozen]:
        if (
            set(map(type, values)) == {str}
            and all(map(str.isascii, cast("Sequence[str]", values)))
            and max(map(len, cast("Sequence[str]", values))) <= self.limits.cell_bytes
        ):
            return values
        return super().freeze_many(values)

    def _freeze(self, value: object) -> str:
        if not isinstance(value, str):
            raise self.refuse(
                value, "decode it before append" if isinstance(value, bytes) else "convert it before append"
            )
        try:
            n_bytes = len(value.encode())
        except UnicodeEncodeError as error:
            rule = f"text must have a UTF-8 form, character {error.start} is half of a surrogate pair"
            raise Refusal(rule, value, "repair it (errors='replace') or keep it as bytes", BadText) from None
        self._check_size(n_bytes, self.limits.cell_bytes, "cell_bytes", value)
        return str.__str__(value)


class BytesCell(Cell):
    """Bytes; an image is kept as its PNG."""

    def _freeze(self, value: object) -> bytes:
        if is_image(value):
            value = encode_png(value, self.limits)
        if not (isinstance(value, (bytes, bytearray)) or is_bytes_view(value)):
            raise self.refuse(
                value, "encode it before append" if isinstance(value, str) else "convert it before append"
            )
        data = bytes(cast(bytes, value))
        self._check_size(len(data), self.limits.cell_bytes, "cell_bytes", value)
        return data


class OtherCell(Cell):
    """Times, decimals, UUIDs: what Arrow converts by itself, exactly."""

    def __init__(self, type_: pa.DataType, limits: Limits) -> None:
        super().__init__(type_, limits)
        self._unit: str | None = getattr(type_, "unit", None)
        # Points and spans of time are kept as the number they are: Python's own end at microseconds and the year 9999.
        self._is_number = kinds.is_timestamp(type_) or kinds.is_duration(type_) or self._unit == "ns"

    def _freeze(self, value: object) -> Frozen:
        value = scalar(value)
        if isinstance(value, (np.datetime64, np.timedelta64)) and self._is_number:
            return self._number(value)
        if kinds.is_temporal(self.type) and isinstance(value, (int, float, complex, np.generic)):
            raise self.refuse(value, "pass a date or a time (datetime)")  # Arrow would count it from 1970
        if isinstance(value, (bool, np.bool_, np.complexfloating)):
            raise self.refuse(value)
        try:
            converted = pa.scalar(value, self.type)
            is_same = _same(converted, value)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            raise self.refuse(value) from None
        if kinds.is_timestamp(self.type) and (getattr(value, "tzinfo", None) is None) != (self.type.tz is None):
            raise self.refuse(value, "give all times a time zone, or none")
        if not is_same:
            raise self.refuse(value, "round it yourself, or declare a finer type with schema=")
        return converted.value if self._is_number else converted.as_py()

    def _number(self, value: np.datetime64 | np.timedelta64) -> int:
        """NumPy's times, exactly; in a column with a time zone they are UTC, as they are when rows are read."""
        if np.isnat(value):
            raise self.refuse(value, "use None for a time that is missing")
        kind = "M" if kinds.is_timestamp(self.type) else "m"
        if value.dtype.kind != kind or np.datetime_data(value.dtype)[0] == "generic":
            raise self.refuse(value)
        exact = value.astype(f"{kind}8[{self._unit}]")
        if exact.astype(value.dtype) != value or np.isnat(exact):
            raise self.refuse(value, "round it yourself, or declare a finer type with schema=")
        return int(exact.astype(np.int64))

    def build(self, frozen: Sequence[Frozen]) -> pa.Array:
        if self._is_number:
            return pa.array(frozen, pa.int64()).cast(self.type)
        return super().build(frozen)


class ListCell(Cell):
    """Lists of any length."""

    def __init__(self, type_: pa.DataType, limits: Limits) -> None:
        super().__init__(type_, limits)
        self._element = cell_of(type_.value_type, limits)

    def _freeze(self, value: object) -> Sequence[Frozen]:
        values = as_list(value)
        if values is None:
            raise self.refuse(value, "pass a list (value.tolist())" if is_array(value) else "pass a list")
        self._check_size(8 * len(values), self.limits.row_bytes, "row_bytes", value)
        try:
            return tuple(self._element.freeze_many(values))
        except Refusal as refusal:
            raise refusal.at(f"[{refusal.index}]") from None

    def build(self, frozen: Sequence[Frozen]) -> pa.Array:
        lengths = [0 if value is None else len(value) for value in frozen]
        offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        elements = self._element.build(list(chain.from_iterable(value for value in frozen if value is not None)))
        buffers = [_validity(frozen), pa.py_buffer(offsets)]
        return pa.Array.from_buffers(self.type, len(frozen), buffers, children=[elements])


class StructCell(Cell):
    """Dicts with the same keys in every row."""

    def __init__(self, type_: pa.DataType, limits: Limits) -> None:
        super().__init__(type_, limits)
        fields = [type_.field(i) for i in range(type_.num_fields)]
        self._parts = [(field.name, cell_of(field.type, limits)) for field in fields]

    def _freeze(self, value: object) -> tuple[Frozen, ...]:
        if is_image(value) and [name for name, _ in self._parts] == ["bytes", "path"]:  # Hugging Face's images
            value = {"bytes": value, "path": None}
        row = as_dict(value)
        if row is None:
            raise self.refuse(value, "pass a dict")
        if row.keys() != {name for name, _ in self._parts}:
            raise self.refuse(row, _difference(list(row), [name for name, _ in self._parts]))
        return tuple(self._freeze_part(name, cell, row[name]) for name, cell in self._parts)

    def _freeze_part(self, name: str, cell: Cell, value: object) -> Frozen:
        try:
            return cell.freeze(value)
        except Refusal as refusal:
            raise refusal.at(f".{name}") from None

    def build(self, frozen: Sequence[Frozen]) -> pa.Array:
        empty = (None,) * len(self._parts)
        columns = zip(*(value or empty for value in frozen), strict=True) if frozen else [()] * len(self._parts)
        children = [cell.build(column) for (_, cell), column in zip(self._parts, columns, strict=False)]
        return pa.Array.from_buffers(self.type, len(frozen), [_validity(frozen)], children=children)


class TensorCell(Cell):
    """Arrays of one dtype and one shape, kept as their bytes."""

    def __init__(self, type_: pa.DataType, limits: Limits) -> None:
        super().__init__(type_, limits)
        self._dtype, self._shape = dtype_and_shape(type_)
        self._numpy = numpy_dtype(self._dtype)
        self._n_bytes = math.prod(size or 0 for size in self._shape) * self._numpy.itemsize
        # A dtype NumPy lacks is carried by another one, which must not slip in as itself; huge tensors are checked
        # below.
        is_plain = self._numpy.name == self._dtype and self._n_bytes <= limits.row_bytes
        self._plain = self._numpy if is_plain else None

    def freeze(self, value: object) -> Frozen:
        # NumPy takes None for float64 in comparisons, so it is asked for first.
        if (
            type(value) is np.ndarray
            and self._plain is not None
            and value.dtype == self._plain
            and value.shape == self._shape
        ):
            return value.tobytes()
        return super().freeze(value)

    def step(self, name: str) -> Step:
        if self._plain is None or self._plain.kind in "mM":  # times have no format in the buffer protocol
            return super().step(name)
        sizes = tuple(size for size in self._shape if size is not None)
        format_ = np.empty(0, self._plain).data.format.encode()
        return name, self.freeze, 4, 0, np.ndarray, format_, sizes

    def _freeze(self, value: object) -> bytes:
        array = _exact_array(self, value, self._dtype)
        if array.shape != self._shape:
            raise self.refuse(value, shape_advice(self._dtype, self._shape, array.shape))
        self._check_size(array.nbytes, self.limits.row_bytes, "row_bytes", value)
        return array.tobytes()

    def build(self, frozen: Sequence[Frozen]) -> pa.Array:
        valid = _validity(frozen)
        blank = bytes(self._n_bytes)
        data = b"".join(frozen if valid is None else [blank if value is None else value for value in frozen])
        storage = self.type.storage_type
        items = pa.Array.from_buffers(storage.value_type, len(frozen) * storage.list_size, [None, pa.py_buffer(data)])
        return pa.ExtensionArray.from_storage(
            self.type, pa.Array.from_buffers(storage, len(frozen), [valid], children=[items])
        )


def shape_advice(dtype: str, wanted: Sequence[int | None], got: Sequence[int | None]) -> str:
    """What to do about an array of another shape: declare the sizes that differ."""
    if len(wanted) != len(got):
        return "give every row the same rank"
    ragged = tuple(size if size == other else None for size, other in zip(wanted, got, strict=True))
    return f"declare the shape ragged: schema=[Field({{column}}, {dtype!r}, shape={ragged})]"


class RaggedCell(Cell):
    """Arrays of one dtype and rank, whose shape may differ from row to row."""

    def __init__(self, type_: pa.DataType, limits: Limits) -> None:
        super().__init__(type_, limits)
        self._dtype, self._shape = dtype_and_shape(type_)
        self._numpy = numpy_dtype(self._dtype)

    def _freeze(self, value: object) -> tuple[tuple[int, ...], bytes]:
        array = _exact_array(self, value, self._dtype)
        fits = len(array.shape) == len(self._shape)
        if not fits or any(want not in (None, got) for want, got in zip(self._shape, array.shape, strict=True)):
            raise self.refuse(value, "give it the rank and the fixed sizes of the column")
        self._check_size(array.nbytes, self.limits.row_bytes, "row_bytes", value)
        return array.shape, array.tobytes()

    def build(self, frozen: Sequence[Frozen]) -> pa.Array:
        blank = ((0,) * len(self._shape), b"")
        parts = [blank if value is None else value for value in frozen]
        return build_ragged(
            self.type, [shape for shape, _ in parts], b"".join(data for _, data in parts), _validity(frozen)
        )


def build_ragged(
    type_: pa.DataType, shapes: Sequence[Sequence[int]], data: Any, valid: pa.Buffer | None = None
) -> pa.Array:
    """A ragged tensor array from the shapes of its rows and all their values, one behind the other."""
    storage = type_.storage_type
    carrier, n = storage.field("data").type.value_type, len(shapes)
    sizes = np.array(shapes, np.int64).reshape(n, len(type_.shape))
    per_value = numpy_dtype(type_.dtype).itemsize * 8 // carrier.bit_width
    offsets = np.concatenate(([0], np.cumsum(sizes.prod(axis=1, dtype=np.int64) * per_value)))
    items = pa.Array.from_buffers(carrier, int(offsets[-1]), [None, pa.py_buffer(data)])
    values = pa.Array.from_buffers(storage.field("data").type, n, [None, pa.py_buffer(offsets)], children=[items])
    shape = pa.Array.from_buffers(storage.field("shape").type, n, [None], children=[pa.array(sizes.ravel())])
    struct = pa.Array.from_buffers(storage, n, [valid], children=[values, shape])
    return pa.ExtensionArray.from_storage(type_, struct)


_CELLS: list[tuple[Callable[[pa.DataType], bool], type[Cell]]] = [
    (kinds.is_null, NullCell),
    (kinds.is_integer, IntCell),
    (kinds.is_floating, FloatCell),
    (kinds.is_boolean, BoolCell),
    (kinds.is_large_string, TextCell),
    (kinds.is_large_binary, BytesCell),
    (kinds.is_large_list, ListCell),
    (kinds.is_struct, StructCell),
]


def _exact_array(cell: Cell, value: object, dtype: str) -> np.ndarray[Any, Any]:
    """The array as ``dtype`` stores it; NumPy's float32 may stand for a dtype it lacks, as it does in rows read."""
    given, array = _array(cell, value)
    exact = exactly(array, dtype) if given == "float32" != dtype and isinstance(value, np.ndarray) else None
    if exact is not None:
        return exact
    if given != dtype:
        raise cell.refuse(value, f"convert it (astype) or declare {given} with schema=")
    return array


def _array(cell: Cell | None, value: object) -> tuple[str, np.ndarray[Any, Any]]:
    if cell is not None and not is_array(value) and not isinstance(value, (complex, np.generic)):
        raise cell.refuse(value, "pass an array or a tensor (np.asarray)")
    return stored(value)


def _validity(frozen: Sequence[Frozen]) -> pa.Buffer | None:
    if None not in frozen:
        return None
    return pa.py_buffer(np.packbits([value is not None for value in frozen], bitorder="little"))


def _difference(got: list[str], expected: list[str]) -> str:
    missing = [name for name in expected if name not in got]
    extra = [name for name in got if name not in expected]
    return f"missing {missing}, unknown {extra}"


def _same(scalar: pa.Scalar, given: object) -> bool:
    """Whether Arrow has kept the value; it drops what is finer than the type."""
    if hasattr(given, "asm8"):  # a pandas Timestamp or Timedelta
        given = given.asm8
    if not isinstance(given, np.generic):
        return bool(scalar.as_py() == given) if getattr(scalar.type, "unit", None) != "ns" else True
    unit = getattr(scalar.type, "unit", None)
    return unit is None or bool(np.asarray(scalar.value).astype(f"{given.dtype.kind}8[{unit}]") == given)


def _is_number(value: object) -> TypeGuard[int | float | np.integer[Any] | np.floating[Any]]:
    """Whether this is a number; to NumPy a span of time is one too."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, np.timedelta64)


def _is_float(value: object) -> bool:
    return isinstance(value, (float, np.floating))
