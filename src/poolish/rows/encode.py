"""Python values to Arrow arrays, exactly or not at all: one encoder per type of column.

A value takes two steps. ``validate_and_copy`` checks it against the column and returns something immutable: the value
itself, or the bytes of an array. ``build`` turns validated values into an Arrow array and cannot fail. So a row that
``append`` has accepted can wait in memory, and every rejection happens before anything changes. ``decode`` reads a
waiting value as it will be read once it is stored.

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
from poolish.rows.access import reader
from poolish.rows.validate import Limits, ValueRejected, too_large
from poolish.rows.values import as_dict, as_list, encode_png, is_array, is_bytes_view, is_image, scalar, stored
from poolish.schema import describe, dtype_and_shape, is_tensor, numpy_dtype
from poolish.schema.types import build_ragged, exactly

#: A validated value that can no longer change, ready for ``build``.
Encodable = Any


def encoder_of(type_: pa.DataType, limits: Limits) -> ColumnEncoder:
    """The encoder for a type poolish keeps."""
    if is_tensor(type_):
        return RaggedTensorEncoder(type_, limits) if None in dtype_and_shape(type_)[1] else TensorEncoder(type_, limits)
    for is_kind, encoder in _ENCODERS:
        if is_kind(type_):
            return encoder(type_, limits)
    return OtherEncoder(type_, limits)


class ColumnEncoder:
    """Checks and converts the values of one column; ``None`` is null in all of them."""

    def __init__(self, type_: pa.DataType, limits: Limits) -> None:
        self.type = type_
        self.limits = limits

    def validate_and_copy(self, value: object) -> Encodable:
        """The value, checked and no longer able to change."""
        return None if value is None else self._validate_and_copy(value)

    def validate_and_copy_all(self, values: Sequence[object]) -> Sequence[Encodable]:
        """All values; a rejection carries the index of the one that was refused."""
        validated, i = [], 0
        try:
            for i, value in enumerate(values):  # noqa: B007  # the rejection needs the index
                validated.append(self.validate_and_copy(value))
        except ValueRejected as rejection:
            rejection.index = i
            raise
        return validated

    def build(self, validated: Sequence[Encodable]) -> pa.Array:
        """Frozen values as an Arrow array."""
        return pa.array(validated, self.type)

    def decode(self, validated: Encodable) -> Any:
        """The value as ``access.reader`` returns it once it is stored; encoders override this only to be faster."""
        return reader(self.build([validated]))(0)

    def step(self, name: str) -> Step:
        """This column's step in the plan of ``kernels.freeze_row``; its shortcut agrees with ``validate_and_copy``."""
        return name, self.validate_and_copy, 0, 0, object, b"", ()

    def _validate_and_copy(self, value: object) -> Encodable:
        raise self.reject(value)

    def reject(self, value: object, advice: str = "convert it before append") -> ValueRejected:
        return ValueRejected(f"this column holds {describe(self.type)}", value, advice)

    def _check_size(self, n_bytes: int, limit: int, name: str, value: object) -> None:
        if n_bytes > limit:
            raise too_large(n_bytes, limit, name, value)


class NullEncoder(ColumnEncoder):
    """Nothing but None has been seen yet."""


class IntEncoder(ColumnEncoder):
    """Integers of one width, and whole floats."""

    def __init__(self, type_: pa.DataType, limits: Limits) -> None:
        super().__init__(type_, limits)
        bounds = np.iinfo(type_.to_pandas_dtype())
        self._low, self._high = int(bounds.min), int(bounds.max)

    def validate_and_copy(self, value: object) -> Encodable:
        if type(value) is int and self._low <= value <= self._high:
            return value
        return super().validate_and_copy(value)

    def decode(self, validated: Encodable) -> Any:
        return validated

    def step(self, name: str) -> Step:
        return name, self.validate_and_copy, 2 if kinds.is_int64(self.type) else 0, 0, int, b"", ()

    def validate_and_copy_all(self, values: Sequence[object]) -> Sequence[Encodable]:
        if set(map(type, values)) == {int}:
            numbers = cast("Sequence[int]", values)
            if self._low <= min(numbers) and max(numbers) <= self._high:
                return numbers
        return super().validate_and_copy_all(values)

    def _validate_and_copy(self, value: object) -> int:
        value = scalar(value)
        if isinstance(value, (float, np.floating)) and float(value).is_integer():
            value = int(value)
        if not isinstance(value, (int, np.integer)) or isinstance(value, (bool, np.timedelta64)):
            raise self.reject(
                value,
                "round it yourself, or start the column with a float"
                if _is_float(value)
                else "convert it before append",
            )
        number = int(value)
        if not self._low <= number <= self._high:
            rule = f"{describe(self.type)} holds {self._low} to {self._high}"
            raise ValueRejected(rule, value, "keep it as text, or declare a wider dtype with schema=", NumberTooLarge)
        return number


class FloatEncoder(ColumnEncoder):
    """Floating point numbers, and integers they hold exactly. NaN is a value, not a null."""

    def __init__(self, type_: pa.DataType, limits: Limits) -> None:
        super().__init__(type_, limits)
        self._numpy = np.dtype(type_.to_pandas_dtype()).type
        self._is_double = kinds.is_float64(type_)

    def validate_and_copy(self, value: object) -> Encodable:
        if type(value) is float and self._is_double:
            return value
        return super().validate_and_copy(value)

    def decode(self, validated: Encodable) -> Any:
        return super().decode(validated) if kinds.is_float16(self.type) else validated

    def step(self, name: str) -> Step:
        return name, self.validate_and_copy, 3 if self._is_double else 0, 0, float, b"", ()

    def validate_and_copy_all(self, values: Sequence[object]) -> Sequence[Encodable]:
        if self._is_double and set(map(type, values)) == {float}:
            return values
        return super().validate_and_copy_all(values)

    def _validate_and_copy(self, value: object) -> float:
        value = scalar(value)
        if isinstance(value, bool) or not _is_number(value):
            raise self.reject(value)
        number = self._rounded(value)
        if number != value and not (isinstance(value, (float, np.floating)) and math.isnan(value)):
            name = describe(self.type)
            advice = f"round it yourself (np.{self._numpy.__name__}(value)) or declare a wider dtype with schema="
            raise ValueRejected(f"{name} cannot hold this number exactly", value, advice, NumberTooLarge)
        return number

    def _rounded(self, value: Any) -> float:
        try:
            with np.errstate(over="ignore"):
                return float(self._numpy(value))
        except OverflowError:
            return math.inf

    def build(self, validated: Sequence[Encodable]) -> pa.Array:
        if kinds.is_float16(self.type):
            mask = np.array([value is None for value in validated], bool)
            return pa.array(np.array([0.0 if value is None else value for value in validated], np.float16), mask=mask)
        return pa.array(validated, self.type, from_pandas=False)


class BoolEncoder(ColumnEncoder):
    """True and False."""

    def decode(self, validated: Encodable) -> Any:
        return validated

    def _validate_and_copy(self, value: object) -> bool:
        value = scalar(value)
        if isinstance(value, (bool, np.bool_)):
            return bool(value)
        raise self.reject(value)


class TextEncoder(ColumnEncoder):
    """Text that has a UTF-8 form; anything else (NUL, emoji, right-to-left) is kept byte for byte."""

    def validate_and_copy(self, value: object) -> Encodable:
        if type(value) is str and value.isascii() and len(value) <= self.limits.cell_bytes:
            return value
        return super().validate_and_copy(value)

    def decode(self, validated: Encodable) -> Any:
        return validated

    def step(self, name: str) -> Step:
        return name, self.validate_and_copy, 1, self.limits.cell_bytes, str, b"", ()

    def validate_and_copy_all(self, values: Sequence[object]) -> Sequence[Encodable]:
        if (
            set(map(type, values)) == {str}
            and all(map(str.isascii, cast("Sequence[str]", values)))
            and max(map(len, cast("Sequence[str]", values))) <= self.limits.cell_bytes
        ):
            return values
        return super().validate_and_copy_all(values)

    def _validate_and_copy(self, value: object) -> str:
        if not isinstance(value, str):
            raise self.reject(
                value, "decode it before append" if isinstance(value, bytes) else "convert it before append"
            )
        try:
            n_bytes = len(value.encode())
        except UnicodeEncodeError as error:
            rule = f"text must have a UTF-8 form, character {error.start} is half of a surrogate pair"
            raise ValueRejected(rule, value, "repair it (errors='replace') or keep it as bytes", BadText) from None
        self._check_size(n_bytes, self.limits.cell_bytes, "cell_bytes", value)
        return str.__str__(value)


class BytesEncoder(ColumnEncoder):
    """Bytes; an image is kept as its PNG."""

    def decode(self, validated: Encodable) -> Any:
        return validated

    def _validate_and_copy(self, value: object) -> bytes:
        if is_image(value):
            value = encode_png(value, self.limits)
        if not (isinstance(value, (bytes, bytearray)) or is_bytes_view(value)):
            raise self.reject(
                value, "encode it before append" if isinstance(value, str) else "convert it before append"
            )
        data = bytes(cast(bytes, value))
        self._check_size(len(data), self.limits.cell_bytes, "cell_bytes", value)
        return data


class OtherEncoder(ColumnEncoder):
    """Times, decimals, UUIDs: what Arrow converts by itself, exactly."""

    def __init__(self, type_: pa.DataType, limits: Limits) -> None:
        super().__init__(type_, limits)
        self._unit: str | None = getattr(type_, "unit", None)
        # Points and spans of time are kept as the number they are: Python's own end at microseconds and the year 9999.
        self._is_number = kinds.is_timestamp(type_) or kinds.is_duration(type_) or self._unit == "ns"

    def _validate_and_copy(self, value: object) -> Encodable:
        value = scalar(value)
        if isinstance(value, (np.datetime64, np.timedelta64)) and self._is_number:
            return self._number(value)
        if kinds.is_temporal(self.type) and isinstance(value, (int, float, complex, np.generic)):
            raise self.reject(value, "pass a date or a time (datetime)")  # Arrow would count it from 1970
        if isinstance(value, (bool, np.bool_, np.complexfloating)):
            raise self.reject(value)
        try:
            converted = pa.scalar(value, self.type)
            is_same = _same(converted, value)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            raise self.reject(value) from None
        if kinds.is_timestamp(self.type) and (getattr(value, "tzinfo", None) is None) != (self.type.tz is None):
            raise self.reject(value, "give all times a time zone, or none")
        if not is_same:
            raise self.reject(value, "round it yourself, or declare a finer type with schema=")
        return converted.value if self._is_number else converted.as_py()

    def _number(self, value: np.datetime64 | np.timedelta64) -> int:
        """NumPy's times, exactly; in a column with a time zone they are UTC, as they are when rows are read."""
        if np.isnat(value):
            raise self.reject(value, "use None for a time that is missing")
        kind = "M" if kinds.is_timestamp(self.type) else "m"
        if value.dtype.kind != kind or np.datetime_data(value.dtype)[0] == "generic":
            raise self.reject(value)
        exact = value.astype(f"{kind}8[{self._unit}]")
        if exact.astype(value.dtype) != value or np.isnat(exact):
            raise self.reject(value, "round it yourself, or declare a finer type with schema=")
        return int(exact.astype(np.int64))

    def build(self, validated: Sequence[Encodable]) -> pa.Array:
        if self._is_number:
            return pa.array(validated, pa.int64()).cast(self.type)
        return super().build(validated)


class ListEncoder(ColumnEncoder):
    """Lists of any length."""

    def __init__(self, type_: pa.DataType, limits: Limits) -> None:
        super().__init__(type_, limits)
        self._element = encoder_of(type_.value_type, limits)

    def _validate_and_copy(self, value: object) -> Sequence[Encodable]:
        values = as_list(value)
        if values is None:
            raise self.reject(value, "pass a list (value.tolist())" if is_array(value) else "pass a list")
        self._check_size(8 * len(values), self.limits.row_bytes, "row_bytes", value)
        try:
            return tuple(self._element.validate_and_copy_all(values))
        except ValueRejected as rejection:
            raise rejection.at(f"[{rejection.index}]") from None

    def decode(self, validated: Encodable) -> Any:
        if validated is None or kinds.is_null(self._element.type):
            return None if validated is None else list(validated)
        return [None if value is None else self._element.decode(value) for value in validated]

    def build(self, validated: Sequence[Encodable]) -> pa.Array:
        lengths = [0 if value is None else len(value) for value in validated]
        offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        elements = self._element.build(list(chain.from_iterable(value for value in validated if value is not None)))
        buffers = [_validity(validated), pa.py_buffer(offsets)]
        return pa.Array.from_buffers(self.type, len(validated), buffers, children=[elements])


class StructEncoder(ColumnEncoder):
    """Dicts with the same keys in every row."""

    def __init__(self, type_: pa.DataType, limits: Limits) -> None:
        super().__init__(type_, limits)
        self._parts = [(field.name, encoder_of(field.type, limits)) for field in type_]

    def _validate_and_copy(self, value: object) -> tuple[Encodable, ...]:
        if is_image(value) and [name for name, _ in self._parts] == ["bytes", "path"]:  # Hugging Face's images
            value = {"bytes": value, "path": None}
        row = as_dict(value)
        if row is None:
            raise self.reject(value, "pass a dict")
        if row.keys() != {name for name, _ in self._parts}:
            raise self.reject(row, _difference(list(row), [name for name, _ in self._parts]))
        return tuple(self._validate_and_copy_part(name, encoder, row[name]) for name, encoder in self._parts)

    def _validate_and_copy_part(self, name: str, encoder: ColumnEncoder, value: object) -> Encodable:
        try:
            return encoder.validate_and_copy(value)
        except ValueRejected as rejection:
            raise rejection.at(f".{name}") from None

    def decode(self, validated: Encodable) -> Any:
        if validated is None:
            return None
        parts = zip(self._parts, validated, strict=True)
        return {name: None if value is None else encoder.decode(value) for (name, encoder), value in parts}

    def build(self, validated: Sequence[Encodable]) -> pa.Array:
        empty = (None,) * len(self._parts)
        columns = zip(*(value or empty for value in validated), strict=True) if validated else [()] * len(self._parts)
        children = [encoder.build(column) for (_, encoder), column in zip(self._parts, columns, strict=False)]
        return pa.Array.from_buffers(self.type, len(validated), [_validity(validated)], children=children)


class TensorEncoder(ColumnEncoder):
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

    def validate_and_copy(self, value: object) -> Encodable:
        # NumPy takes None for float64 in comparisons, so it is asked for first.
        if (
            type(value) is np.ndarray
            and self._plain is not None
            and value.dtype == self._plain
            and value.shape == self._shape
        ):
            return value.tobytes()
        return super().validate_and_copy(value)

    def step(self, name: str) -> Step:
        if self._plain is None or self._plain.kind in "mM":  # times have no format in the buffer protocol
            return super().step(name)
        sizes = tuple(size for size in self._shape if size is not None)
        format_ = np.empty(0, self._plain).data.format.encode()
        return name, self.validate_and_copy, 4, 0, np.ndarray, format_, sizes

    def _validate_and_copy(self, value: object) -> bytes:
        array = _exact_array(self, value, self._dtype)
        if array.shape != self._shape:
            raise self.reject(value, shape_advice(self._dtype, self._shape, array.shape))
        self._check_size(array.nbytes, self.limits.row_bytes, "row_bytes", value)
        return array.tobytes()

    def decode(self, validated: Encodable) -> Any:
        if validated is None or self._plain is None or self._shape == ():
            return super().decode(validated)
        sizes = [size for size in self._shape if size is not None]
        return np.frombuffer(validated, self._plain).reshape(sizes).copy()

    def build(self, validated: Sequence[Encodable]) -> pa.Array:
        valid = _validity(validated)
        blank = bytes(self._n_bytes)
        data = b"".join(validated if valid is None else [blank if value is None else value for value in validated])
        storage = self.type.storage_type
        items = pa.Array.from_buffers(
            storage.value_type, len(validated) * storage.list_size, [None, pa.py_buffer(data)]
        )
        return pa.ExtensionArray.from_storage(
            self.type, pa.Array.from_buffers(storage, len(validated), [valid], children=[items])
        )


def shape_advice(dtype: str, wanted: Sequence[int | None], got: Sequence[int | None]) -> str:
    """What to do about an array of another shape: declare the sizes that differ."""
    if len(wanted) != len(got):
        return "give every row the same rank"
    ragged = tuple(size if size == other else None for size, other in zip(wanted, got, strict=True))
    return f"declare the shape ragged: schema=[Field({{column}}, {dtype!r}, shape={ragged})]"


class RaggedTensorEncoder(ColumnEncoder):
    """Arrays of one dtype and rank, whose shape may differ from row to row."""

    def __init__(self, type_: pa.DataType, limits: Limits) -> None:
        super().__init__(type_, limits)
        self._dtype, self._shape = dtype_and_shape(type_)
        self._numpy = numpy_dtype(self._dtype)

    def _validate_and_copy(self, value: object) -> tuple[tuple[int, ...], bytes]:
        array = _exact_array(self, value, self._dtype)
        fits = len(array.shape) == len(self._shape)
        if not fits or any(want not in (None, got) for want, got in zip(self._shape, array.shape, strict=True)):
            raise self.reject(value, "give it the rank and the fixed sizes of the column")
        self._check_size(array.nbytes, self.limits.row_bytes, "row_bytes", value)
        return array.shape, array.tobytes()

    def build(self, validated: Sequence[Encodable]) -> pa.Array:
        blank = ((0,) * len(self._shape), b"")
        parts = [blank if value is None else value for value in validated]
        return build_ragged(
            self.type, [shape for shape, _ in parts], b"".join(data for _, data in parts), _validity(validated)
        )


_ENCODERS: list[tuple[Callable[[pa.DataType], bool], type[ColumnEncoder]]] = [
    (kinds.is_null, NullEncoder),
    (kinds.is_integer, IntEncoder),
    (kinds.is_floating, FloatEncoder),
    (kinds.is_boolean, BoolEncoder),
    (kinds.is_large_string, TextEncoder),
    (kinds.is_large_binary, BytesEncoder),
    (kinds.is_large_list, ListEncoder),
    (kinds.is_struct, StructEncoder),
]


def _exact_array(encoder: ColumnEncoder, value: object, dtype: str) -> np.ndarray[Any, Any]:
    """The array as ``dtype`` stores it; NumPy's float32 may stand for a dtype it lacks, as it does in rows read."""
    given, array = _array(encoder, value)
    exact = exactly(array, dtype) if given == "float32" != dtype and isinstance(value, np.ndarray) else None
    if exact is not None:
        return exact
    if given != dtype:
        raise encoder.reject(value, f"convert it (astype) or declare {given} with schema=")
    return array


def _array(encoder: ColumnEncoder | None, value: object) -> tuple[str, np.ndarray[Any, Any]]:
    if encoder is not None and not is_array(value) and not isinstance(value, (complex, np.generic)):
        raise encoder.reject(value, "pass an array or a tensor (np.asarray)")
    return stored(value)


def _validity(validated: Sequence[Encodable]) -> pa.Buffer | None:
    if None not in validated:
        return None
    return pa.py_buffer(np.packbits([value is not None for value in validated], bitorder="little"))


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
