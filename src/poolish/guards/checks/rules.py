"""What the keywords of ``Suite.expect`` may say, in code and in files, and which checks they stand for.

Each keyword has two functions: one makes its value plain, as it stands in a file, or refuses it with its place; the
other makes checks of the plain value.
"""

from __future__ import annotations

import datetime
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from poolish.errors import ConfigError, SchemaError
from poolish.expressions import parse
from poolish.guards.checks.checks import (
    FAMILIES,
    Custom,
    Finite,
    Holds,
    InRange,
    Matches,
    NotNull,
    Number,
    OfDtype,
    OfLength,
    OfShape,
    OfType,
    OneOf,
    RowCheck,
    Unique,
    check_named,
    whole_text,
)
from poolish.schema import Field, describe


def checks_of(column: str, rules: dict[str, Any]) -> list[RowCheck]:
    """The checks that the keywords of ``Suite.expect`` ask for."""
    made: list[RowCheck] = []
    for name, value in rules.items():
        if value is False and name in ("finite", "unique"):
            continue
        made += _MAKERS[name](column, value)
    return made


def rows_check(text: str) -> Holds:
    """The check of an expression."""
    return Holds(text, parse(text))


def normal_rules(column: str, rules: dict[str, Any]) -> dict[str, Any]:
    """The keywords of ``expect`` with values as they stand in a file: plain, and the same after a round trip."""
    return {name: _NORMAL[name](value, f"column {column!r}: {name}") for name, value in rules.items()}


def _type_word(value: Any, where: str) -> str:
    if isinstance(value, str) and (value in FAMILIES or value.startswith(("list of ", "{")) or "[" in value):
        return value
    _refuse_nested(value, where)
    try:
        return describe(Field("column", value).type)
    except SchemaError as error:
        families = ", ".join(FAMILIES)
        raise ConfigError(f"{where}: {str(error).partition(': ')[2]}; or one of {families}") from None


def _dtype_word(value: Any, where: str) -> str:
    _refuse_nested(value, where)
    try:
        return str(Field("column", value).dtype)
    except SchemaError as error:
        raise ConfigError(f"{where}: {str(error).partition(': ')[2]}") from None


def _refuse_nested(value: Any, where: str) -> None:
    """NumPy would make a record of several fields of these, or an error of its own."""
    if isinstance(value, (Mapping, list, tuple)):
        raise ConfigError(f"{where}: the name of one type, got {reprlib.repr(value)}")


def _shape(value: Any, where: str) -> list[Any]:
    sizes = list(value) if isinstance(value, (list, tuple)) else None
    if sizes is None or not all(size in (None, "any") or (type(size) is int and size >= 0) for size in sizes):
        raise ConfigError(f'{where}: a list of sizes, "any" where rows may differ, got {value!r}')
    return ["any" if size is None else size for size in sizes]


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{where}: true or false, got {value!r}")
    return value


def number(value: Any, where: str) -> Number:
    """A finite or infinite number, no NaN."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise ConfigError(f"{where}: a number, got {value!r}")
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        raise ConfigError(f"{where}: a number of {value.bit_length():,} bits is beyond float64; take a smaller one")
    return value


def _limit(value: Any, where: str) -> Number | str:
    if isinstance(value, (datetime.datetime, datetime.date)):
        return value.isoformat()
    if isinstance(value, str) and not _is_float(value):
        try:
            np.datetime64(value)
        except ValueError:
            raise ConfigError(f"{where}: a number, or a time like 2026-01-31T12:00, got {value!r}") from None
        return value
    return number(value, where)


def _limits(value: Any, where: str) -> list[Number | str]:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise ConfigError(f"{where}: two bounds, (low, high), got {value!r}; for one use at_least or at_most")
    low, high = (_limit(bound, where) for bound in value)
    if isinstance(low, str) != isinstance(high, str) or low > high:  # type: ignore[operator]
        raise ConfigError(f"{where}: the lower bound comes first and both are of a kind, got {value!r}")
    return [low, high]


def _choices(value: Any, where: str) -> list[Any]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise ConfigError(f"{where}: a list of values, got {value!r}")
    chosen = [each.item() if isinstance(each, np.generic) else each for each in value]
    for each in chosen:
        if not isinstance(each, (str, bool)):
            number(each, where)
    return sorted(chosen, key=str) if isinstance(value, (set, frozenset)) else chosen


def _pattern(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{where}: a regular expression, got {value!r}")
    try:
        pc.match_substring_regex(pa.array(["x"]), whole_text(value))
    except pa.ArrowInvalid as error:
        why = str(error).partition(": ")[2]
        raise ConfigError(f"{where}: {value!r} is no pattern of RE2 ({why}); it has no look-around") from None
    return value


def _count(value: Any, where: str) -> int:
    if type(value) is not int or value < 0:
        raise ConfigError(f"{where}: a whole number from 0, got {value!r}")
    return value


def _name(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{where}: the name of a check that was registered, got {value!r}")
    check_named(value)
    return value


_NORMAL: dict[str, Callable[[Any, str], Any]] = {
    "type": _type_word,
    "dtype": _dtype_word,
    "shape": _shape,
    "nullable": _flag,
    "finite": _flag,
    "between": _limits,
    "at_least": _limit,
    "at_most": _limit,
    "above": _limit,
    "below": _limit,
    "one_of": _choices,
    "matches": _pattern,
    "min_length": _count,
    "max_length": _count,
    "unique": _flag,
    "check": _name,
}

#: The keywords of ``Suite.expect``.
RULES = tuple(_NORMAL)

_MAKERS: dict[str, Callable[[str, Any], list[RowCheck]]] = {
    "type": lambda column, value: [OfType(column, value)],
    "dtype": lambda column, value: [OfDtype(column, value)],
    "shape": lambda column, value: [OfShape(column, tuple(None if size == "any" else size for size in value))],
    "nullable": lambda column, value: [] if value else [NotNull(column)],
    "finite": lambda column, value: [Finite(column)],
    "between": lambda column, value: [InRange(column, value[0], value[1])],
    "at_least": lambda column, value: [InRange(column, low=value)],
    "at_most": lambda column, value: [InRange(column, high=value)],
    "above": lambda column, value: [InRange(column, low=value, open_low=True)],
    "below": lambda column, value: [InRange(column, high=value, open_high=True)],
    "one_of": lambda column, value: [OneOf(column, tuple(value))],
    "matches": lambda column, value: [Matches(column, value)],
    "min_length": lambda column, value: [OfLength(column, least=value)],
    "max_length": lambda column, value: [OfLength(column, most=value)],
    "unique": lambda column, value: [Unique((column,))],
    "check": lambda column, value: [Custom(value, (column,))],
}


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
