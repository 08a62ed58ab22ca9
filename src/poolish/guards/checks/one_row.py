"""Whether a single row surely passes a suite: tests of plain values, for rows that are appended one by one.

Checks judge whole columns; for one row that costs 300 us and more, of which judging is little. Here each kind of check
says what must hold of one value, in terms of the bounds and lists of the check itself. A test says yes only if the
check would: then the row may pass without a verdict. Everything else (another kind of check or of column, a value that
fails, a value that Python's rules may treat otherwise) is left to the check, which alone makes verdicts, counts and
errors. ``tests/guards/checks/test_one_row.py`` compares both on every kind of check and of value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from poolish.columns import TableView
from poolish.expressions.one_row import Undecided, for_one_row
from poolish.guards.checks.checks import (
    Finite,
    Holds,
    InRange,
    Matches,
    NotNull,
    OfDtype,
    OfLength,
    OfShape,
    OfType,
    OneOf,
    RowCheck,
    Unique,
    bound_in,
    held_in,
    whole_text,
)
from poolish.schema.types import NATIVE, dtype_and_shape, is_tensor, no_rows, numpy_dtype

#: Of the values of one row, in the order of the schema: numbers, texts and bytes of Python, None for null, and the
#: bytes of a tensor of one shape.
RowTest = Callable[[Sequence[Any]], bool]
ValueTest = Callable[[Any], bool]


def row_test_of(checks: Sequence[RowCheck], schema: pa.Schema, is_fine: Callable[[TableView], bool]) -> RowTest | None:
    """A function that is true only for rows that pass all checks; None if some check needs columns.

    ``is_fine`` says whether the checks apply to columns of this schema at all; it is asked about no rows.
    """
    of_values: list[tuple[int, ValueTest]] = []
    of_rows: list[Callable[[Sequence[Any]], Any]] = []
    for check in checks:
        if isinstance(check, Holds):
            of_row = for_one_row(check.expression, schema)
            if of_row is None:
                return None
            of_rows.append(of_row)
            continue
        places = [schema.get_field_index(name) for name in check.columns]
        if not places or min(places) < 0:
            return None
        tests = [_value_test(check, schema.field(place).type) for place in places]
        for place, test in zip(places, tests, strict=True):
            if test is None:
                return None
            if test is not _always:
                of_values.append((place, test))
    if not is_fine(TableView.of(no_rows(schema))):  # schema.empty_table() fails for tensors inside of lists
        return None

    def passes(row: Sequence[Any]) -> bool:
        try:
            for place, test in of_values:
                if not test(row[place]):
                    return False
            return all(answer(row) is True for answer in of_rows)
        except Undecided:
            return False

    return passes


def _always(value: Any) -> bool:
    """For what the schema decides."""
    return True


def _value_test(check: RowCheck, type_: pa.DataType) -> ValueTest | None:
    if isinstance(check, (OfType, OfDtype)):
        return _always
    if isinstance(check, NotNull):
        return lambda value: value is not None
    test = _tensor_test(check, type_) if is_tensor(type_) else _scalar_test(check, type_)
    if test is None or test is _always:
        return test
    return lambda value: value is None or test(value)


def _scalar_test(check: RowCheck, type_: pa.DataType) -> ValueTest | None:
    is_text, is_bytes = kinds.is_large_string(type_), kinds.is_large_binary(type_)
    is_number = kinds.is_integer(type_) or kinds.is_float32(type_) or kinds.is_float64(type_)
    if isinstance(check, Unique):  # a row alone is
        return _always if is_number or is_text or is_bytes else None
    if isinstance(check, OfLength) and (is_text or is_bytes):
        least, most = check.least or 0, math.inf if check.most is None else check.most
        return lambda value: least <= len(value) <= most
    if isinstance(check, Matches) and is_text:
        pattern = whole_text(check.pattern)
        return lambda value: pc.match_substring_regex(pa.scalar(value), pattern).as_py() is True
    if isinstance(check, OneOf) and (is_text or is_number or kinds.is_boolean(type_)):
        allowed = [value for value in check.allowed if isinstance(value, str)]
        chosen = frozenset(allowed if is_text else held_in(check.allowed, _dtype(type_)).tolist())
        return chosen.__contains__
    if isinstance(check, Finite) and is_number:
        return _always if kinds.is_integer(type_) else math.isfinite
    return _range_test(check, _dtype(type_)) if isinstance(check, InRange) and is_number else None


def _dtype(type_: pa.DataType) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(type_.to_pandas_dtype())
    return dtype


def _range_test(check: InRange, dtype: np.dtype[Any]) -> ValueTest | None:
    """The bounds as the column compares them, which Python compares exactly too."""
    if isinstance(check.low, str) or isinstance(check.high, str):
        return None
    low, high = (None if bound is None else np.asarray(bound).item() for bound in bound_in(check, dtype))
    open_low, open_high = check.open_low, check.open_high

    def is_within(value: Any) -> bool:
        if low is not None and not (value > low if open_low else value >= low):
            return False
        return high is None or bool(value < high if open_high else value <= high)

    return is_within


def _tensor_test(check: RowCheck, type_: pa.DataType) -> ValueTest | None:
    """For tensors of one shape, in dtypes that NumPy has."""
    dtype, shape = dtype_and_shape(type_)
    if None in shape or dtype not in NATIVE or numpy_dtype(dtype).kind not in "iuf" or 0 in shape or not shape:
        return None
    if isinstance(check, OfShape):
        sizes = zip(check.shape, shape, strict=False)
        return _always if len(check.shape) == len(shape) and all(want in (None, got) for want, got in sizes) else None
    if isinstance(check, OfLength):
        most = math.inf if check.most is None else check.most
        return _always if (check.least or 0) <= (shape[0] or 0) <= most else None
    own = numpy_dtype(dtype)
    if isinstance(check, Finite):
        return _always if own.kind in "iu" else lambda value: bool(np.isfinite(np.frombuffer(value, own)).all())
    is_within = _range_test(check, own) if isinstance(check, InRange) else None
    if is_within is None:
        return None

    def are_within(value: Any) -> bool:
        values = np.frombuffer(value, own)
        lowest, highest = values.min().item(), values.max().item()
        return lowest == lowest and is_within(lowest) and is_within(highest)  # NaN is in no range

    return are_within
