"""Checks of rows: each decides for every row whether it is good, for all rows at once.

A check holds numbers and text only, so a suite of them can be written to a file and read back. A
null passes every check but ``nullable=False``: whether a value may be missing and what it must be if it is there are
two rules. NaN is no null: it lies in no range and is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from poolish.columns import Column, FlatValues, Mask, NotApplicable, TableView
from poolish.guards.checks.verdicts import Level
from poolish.schema import describe, dtype_and_shape, is_tensor

Number = int | float


class RowCheck(Protocol):
    """A rule about rows."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads."""

    @property
    def rule(self) -> str:
        """The rule in words."""

    @property
    def level(self) -> Level:
        """The level at which it runs."""

    def bad(self, rows: TableView) -> Mask | None:
        """Which rows break it; None if no row does. ``NotApplicable`` if the columns are not what it is about."""


@dataclass(frozen=True)
class _OfColumn:
    """A rule about one column."""

    column: str
    level: ClassVar[Level] = "statistics"

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)


# What a column is -------------------------------------------------------------------------------------------------

FAMILIES: dict[str, Callable[[pa.DataType], bool]] = {
    "number": lambda type_: kinds.is_integer(type_) or kinds.is_floating(type_),
    "integer": kinds.is_integer,
    "float": kinds.is_floating,
    "time": kinds.is_temporal,
    "list": kinds.is_large_list,
    "struct": kinds.is_struct,
    "tensor": is_tensor,
}


@dataclass(frozen=True)
class OfType(_OfColumn):
    """The column has a type: a dtype, ``text``, ``bytes``, or a family (number, integer, float, list, tensor, ...)."""

    type: str
    level: ClassVar[Level] = "format"

    @property
    def rule(self) -> str:
        return f"is {self.type}"

    def bad(self, rows: TableView) -> Mask | None:
        column = rows[self.column]
        if self.type in FAMILIES and FAMILIES[self.type](column.type):
            return None
        if column.type_name == self.type:
            return None
        raise NotApplicable(f"column {self.column!r} is {column.type_name}, not {self.type}")


@dataclass(frozen=True)
class OfDtype(_OfColumn):
    """The numbers in the column, single or in arrays and lists, have a dtype."""

    dtype: str
    level: ClassVar[Level] = "format"

    @property
    def rule(self) -> str:
        return f"holds {self.dtype}"

    def bad(self, rows: TableView) -> Mask | None:
        type_ = rows[self.column].type
        while kinds.is_large_list(type_):
            type_ = type_.value_type
        found = dtype_and_shape(type_)[0] if is_tensor(type_) else describe(type_)
        if found != self.dtype:
            raise NotApplicable(f"column {self.column!r} holds {found}, not {self.dtype}")
        return None


@dataclass(frozen=True)
class OfShape(_OfColumn):
    """Each row's array has a shape; None is any size."""

    shape: tuple[int | None, ...]
    level: ClassVar[Level] = "format"

    @property
    def rule(self) -> str:
        return f"has shape [{', '.join('any' if size is None else str(size) for size in self.shape)}]"

    def bad(self, rows: TableView) -> Mask | None:
        column = rows[self.column]
        shapes = column.shapes
        if shapes.shape[1] != len(self.shape):
            raise NotApplicable(
                f"column {self.column!r} is {column.type_name}: its rows have {shapes.shape[1]} dimensions"
            )
        bad = np.zeros(len(column), np.bool_)
        for sizes, size in zip(shapes.T, self.shape, strict=True):
            if size is not None:
                bad |= sizes != size
        return _but_nulls(bad, column.nulls)


@dataclass(frozen=True)
class NotNull(_OfColumn):
    """No value is missing."""

    level: ClassVar[Level] = "format"
    rule: ClassVar[str] = "is not null"

    def bad(self, rows: TableView) -> Mask | None:
        return rows[self.column].nulls


# What the values are ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finite(_OfColumn):
    """Every number is finite: neither NaN nor infinity."""

    rule: ClassVar[str] = "is finite"

    def bad(self, rows: TableView) -> Mask | None:
        flat = _flat_numbers(rows[self.column], "finite", kinds_="biufc")
        if flat.values.dtype.kind in "biu":
            return None
        return _bad_rows(flat, ~np.isfinite(flat.values))


@dataclass(frozen=True)
class InRange(_OfColumn):
    """Every number, or time, lies between two bounds, one of which may be missing.

    Fractions are rounded to the column's own dtype: 0.1 is within ``at_most=0.1`` in a float32 column too. Integers are
    exact, also beyond 2**53.
    """

    low: Number | str | None = None
    high: Number | str | None = None
    open_low: bool = False
    open_high: bool = False

    @property
    def rule(self) -> str:
        if self.low is not None and self.high is not None:
            return f"is between {self.low} and {self.high}"
        if self.low is not None:
            return f"is {'above' if self.open_low else 'at least'} {self.low}"
        return f"is {'below' if self.open_high else 'at most'} {self.high}"

    def bad(self, rows: TableView) -> Mask | None:
        flat = _flat_numbers(rows[self.column], "a range", kinds_="iufmM")
        values = flat.values
        good = np.ones(len(values), np.bool_)
        low, high = bound_in(self, values.dtype)
        if low is not None:
            good &= values > low if self.open_low else values >= low
        if high is not None:
            good &= values < high if self.open_high else values <= high
        return _bad_rows(flat, ~good)


@dataclass(frozen=True)
class OneOf(_OfColumn):
    """Every value is one of a list; 1 is not True, and not "1"."""

    allowed: tuple[Any, ...]

    @property
    def rule(self) -> str:
        shown = ", ".join(repr(value) for value in self.allowed[:5])
        return f"is one of {shown}{', ...' if len(self.allowed) > 5 else ''}"

    def bad(self, rows: TableView) -> Mask | None:
        flat = rows[self.column].flat
        if isinstance(flat.values, np.ndarray):
            return _bad_rows(flat, ~np.isin(flat.values, held_in(self.allowed, flat.values.dtype)))
        texts = [value for value in self.allowed if isinstance(value, str)]
        if kinds.is_string(flat.values.type) or kinds.is_large_string(flat.values.type):
            found = pc.is_in(flat.values, value_set=pa.array(texts, flat.values.type))
            return _bad_rows(flat, ~_flags(found))
        raise NotApplicable(
            f"column {self.column!r} is {rows[self.column].type_name}; a list of allowed values is for text or numbers"
        )


@dataclass(frozen=True)
class Matches(_OfColumn):
    """Every text matches a regular expression from its beginning to its end.

    The expressions are RE2's: no look-around and no references, and in return no pattern, also one that came in a file,
    can take longer than the text is long.
    """

    pattern: str

    @property
    def rule(self) -> str:
        return f"matches {self.pattern!r}"

    def bad(self, rows: TableView) -> Mask | None:
        flat = rows[self.column].flat
        if isinstance(flat.values, np.ndarray):
            raise NotApplicable(f"column {self.column!r} is {rows[self.column].type_name}; only text matches a pattern")
        found = pc.match_substring_regex(flat.values, whole_text(self.pattern))
        return _bad_rows(flat, ~_flags(found))


@dataclass(frozen=True)
class OfLength(_OfColumn):
    """Text (in characters), bytes, lists and arrays (in entries) have a length between two bounds."""

    least: int | None = None
    most: int | None = None

    @property
    def rule(self) -> str:
        parts = [f"at least {self.least}"] if self.least is not None else []
        parts += [f"at most {self.most}"] if self.most is not None else []
        return f"has a length of {' and '.join(parts)}"

    def bad(self, rows: TableView) -> Mask | None:
        lengths, nulls = rows[self.column].lengths, rows[self.column].nulls
        bad = np.zeros(len(lengths), np.bool_)
        if self.least is not None:
            bad |= lengths < self.least
        if self.most is not None:
            bad |= lengths > self.most
        return _but_nulls(bad, nulls)


# Several rows, several columns ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unique:
    """No two rows agree in all of these columns. The first of equal rows is good, the others are not.

    A row with a null in one of them is equal to none; NaN equals NaN, and 0.0 equals -0.0.
    """

    columns: tuple[str, ...]
    level: ClassVar[Level] = "statistics"

    @property
    def rule(self) -> str:
        return "is unique" if len(self.columns) == 1 else f"{', '.join(self.columns)} are unique together"

    def bad(self, rows: TableView) -> Mask | None:
        if len(self.columns) == 1 and _are_all_different(rows[self.columns[0]]):
            return None
        codes: Any = None
        nulls = np.zeros(len(rows), np.bool_)
        for name in self.columns:
            column = rows[name]
            more = _codes(column)
            codes = more if codes is None else _encoded(pa.array(codes * (int(more.max(initial=0)) + 1) + more))
            nulls |= column.nulls if column.nulls is not None else False
        if nulls.any():
            codes = codes.copy()
            codes[nulls] = len(rows) + np.arange(int(nulls.sum()))
            codes = _encoded(pa.array(codes))
        # Codes count up as values first appear, so a row is the first of its kind if its code is a new highest.
        before = np.concatenate([[-1], np.maximum.accumulate(codes)[:-1]]) if len(codes) else codes
        return np.asarray(codes <= before)


# Parts ------------------------------------------------------------------------------------------------------------


def _flat_numbers(column: Column, what: str, *, kinds_: str) -> FlatValues:
    flat = column.flat
    if not isinstance(flat.values, np.ndarray) or flat.values.dtype.kind not in kinds_:
        raise NotApplicable(f"column {column.name!r} is {column.type_name}; {what} is asked of numbers")
    return flat


def _bad_rows(flat: FlatValues, bad: Mask) -> Mask:
    return flat.rows_with(_but_nulls(bad, flat.nulls))


def _but_nulls(bad: Mask, nulls: Mask | None) -> Mask:
    return bad if nulls is None else bad & ~nulls


def bound_in(check: InRange, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """The bounds of a range as a column of this dtype compares them exactly; None where there is none."""
    low, high = (math.floor if check.open_low else math.ceil), (math.ceil if check.open_high else math.floor)
    return (
        None if check.low is None else _bound(check.low, dtype, check.column, low),
        None if check.high is None else _bound(check.high, dtype, check.column, high),
    )


def _bound(value: Number | str, dtype: np.dtype[Any], column: str, whole: Callable[[float], int]) -> Any:
    """A bound as the column compares it exactly: a whole number for integers, a time for times."""
    if dtype.kind in "mM" or isinstance(value, str):
        if dtype.kind != "M" or not isinstance(value, str):
            raise NotApplicable(f"column {column!r} holds {dtype}, which has no order with {value!r}")
        return np.datetime64(value)
    if dtype.kind in "iu":
        return value if isinstance(value, int) or math.isinf(value) else whole(value)
    with np.errstate(over="ignore"):
        bound = np.asarray(value, np.float64).astype(dtype)
    if not isinstance(value, int) or float(bound) == value:
        return bound
    # Python compares integers and floats exactly: the bound is the next float on its own side of the integer.
    is_inside = float(bound) > value if whole is math.ceil else float(bound) < value
    return bound if is_inside else np.nextafter(bound, dtype.type(math.inf if whole is math.ceil else -math.inf))


def held_in(allowed: tuple[Any, ...], dtype: np.dtype[Any]) -> Any:
    """Those of the allowed values that a column of this dtype can hold at all."""
    if dtype.kind == "b":
        return np.array([value for value in allowed if isinstance(value, bool)], bool)
    numbers = [value for value in allowed if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.array(
            [int(n) for n in numbers if math.isfinite(n) and n == int(n) and info.min <= n <= info.max], dtype
        )
    own = dtype if dtype.kind == "f" else np.dtype(np.float64)
    with np.errstate(over="ignore"):
        rounded = np.array(numbers, np.float64).astype(own)
    # 0.1 is rounded as the column has rounded it; an integer that the column cannot hold is none of its values.
    held = [isinstance(n, float) or float(value) == n for n, value in zip(numbers, rounded, strict=True)]
    return rounded[np.array(held, bool)]


def _are_all_different(column: Column) -> bool:
    """Whether numbers are surely unique: to sort a million of them takes 10 ms, to number them 200."""
    flat = column.flat
    if not isinstance(flat.values, np.ndarray) or flat.nulls is not None or flat.values_per_row != 1:
        return False
    ordered = np.sort(flat.values)
    is_nan = ordered.dtype.kind == "f" and len(ordered) > 0 and np.isnan(ordered[-1])
    return not is_nan and not (ordered[1:] == ordered[:-1]).any()


def _codes(column: Column) -> Any:
    """A whole number for each row, equal for equal values."""
    flat = column.flat
    if flat.offsets is not None or flat.values_per_row is None:
        raise NotApplicable(f"column {column.name!r} is {column.type_name}; only values of one size can be unique")
    values = flat.values
    if isinstance(values, np.ndarray):
        if values.dtype.kind in "fc":
            values = values + values.dtype.type(0)  # -0.0 becomes 0.0
        if flat.values_per_row != 1:
            whole_rows = np.ascontiguousarray(values).reshape(len(column), -1).view(np.uint8)
            width = whole_rows.shape[1]
            values = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(width), len(column), [None, pa.py_buffer(whole_rows)]
            )
        else:
            values = pa.array(values.view(np.int64) if values.dtype.kind in "mM" else values)
    return _encoded(values)


def _encoded(values: pa.Array) -> Any:
    codes = values.dictionary_encode(null_encoding="encode").indices
    return np.asarray(codes, np.int64)


def _flags(found: pa.Array) -> Mask:
    filled = found.fill_null(False) if found.null_count else found
    return np.asarray(filled.to_numpy(zero_copy_only=False), np.bool_)


def whole_text(pattern: str) -> str:
    """A pattern that matches only from the beginning of a text to its end."""
    return rf"\A(?:{pattern})\z"
