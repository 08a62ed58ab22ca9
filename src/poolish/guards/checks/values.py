"""The values of a suite, each checked and turned into the form that it has in files; a ConfigError for a wrong one."""

from __future__ import annotations

import datetime
import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from poolish.errors import ConfigError, SchemaError
from poolish.expressions import parse
from poolish.guards.checks.checks import FAMILIES, Number, check_named, whole_text
from poolish.guards.stats.distances import DISTANCES
from poolish.guards.stats.effects import Worth, check_worth
from poolish.printable import nearest
from poolish.schema import Field, describe


def plain(value: Any) -> Any:
    """Values of NumPy as Python's own, which files hold, also within lists and tables.

    >>> plain({"between": (np.int64(0), np.float64(0.5)), "shape": np.array([3])})
    {'between': [0, 0.5], 'shape': [3]}
    """
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def one_of(value: Any, known: Sequence[Any]) -> Any:
    """The value, if it is a known one."""
    if value not in known:
        raise ConfigError(f"one of {', '.join(map(repr, known))}, got {value!r}{nearest(value, known)}")
    return value


def number(value: Any) -> Number:
    """A finite or infinite number, no NaN."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise ConfigError(f"a number, got {value!r}")
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        raise ConfigError(f"a number of {value.bit_length():,} bits is beyond float64; take a smaller one")
    return value


def whole_number(value: Any, *, least: int = 0, what: str = "a whole number") -> int:
    """A whole number, no bool."""
    if type(value) is not int or value < least:
        raise ConfigError(f"{what} from {least}, got {value!r}")
    return value


def flag(value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise ConfigError(f"true or false, got {value!r}")
    return value


def text(value: Any) -> str:
    """Text for people."""
    if not isinstance(value, str):
        raise ConfigError(f"text, got {value!r}")
    return value


def column_name(value: Any) -> str:
    """The name of a column."""
    if not isinstance(value, str) or not value:
        raise ConfigError(f"the name of a column, got {value!r}")
    return value


def column_names(value: Any) -> list[str]:
    """Names of columns."""
    is_list = isinstance(value, Iterable) and not isinstance(value, str)
    if not is_list or not all(isinstance(name, str) and name for name in value):
        raise ConfigError(f"a list of names, got {value!r}")
    return list(value)


def check_name(value: Any) -> str:
    """The name of a registered check."""
    if not isinstance(value, str):
        raise ConfigError(f"the name of a check that was registered, got {value!r}")
    check_named(value)
    return value


def row_rule(text: Any) -> str:
    """The text of an expression."""
    parse(text)
    return str(text)


def range_of(value: Any) -> dict[str, Number] | list[Number]:
    """A range as it stands in a file: two numbers, or one of ``at_least`` and ``at_most``."""
    if isinstance(value, Mapping):
        if not value or not set(value) <= {"at_least", "at_most"}:
            raise ConfigError(f"(low, high), or at_least and at_most, got {dict(value)!r}")
        bounds = {str(side): number(bound) for side, bound in value.items()}
        if len(bounds) == 2 and bounds["at_least"] > bounds["at_most"]:
            raise ConfigError(f"no number is between these bounds, got {dict(value)!r}")
        return bounds
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise ConfigError(f"a range (low, high), where None is no bound, got {value!r}")
    low, high = (None if bound is None else number(bound) for bound in value)
    if low is None or high is None:
        known = {side: bound for side, bound in (("at_least", low), ("at_most", high)) if bound is not None}
        if not known:
            raise ConfigError("a range without bounds; leave it out")
        return known
    if low > high:
        raise ConfigError(f"the lower bound comes first, got {value!r}")
    return [low, high]


def type_name(value: Any) -> str:
    """The name of a type, or of a family of types."""
    if isinstance(value, str) and (value in FAMILIES or value.startswith(("list of ", "{")) or "[" in value):
        return value
    _refuse_nested(value)
    try:
        return describe(Field("column", value).type)
    except SchemaError as error:
        raise ConfigError(f"{str(error).partition(': ')[2]}; or one of {', '.join(FAMILIES)}") from None


def dtype_name(value: Any) -> str:
    """The name of a dtype."""
    _refuse_nested(value)
    try:
        return str(Field("column", value).dtype)
    except SchemaError as error:
        raise ConfigError(str(error).partition(": ")[2]) from None


def _refuse_nested(value: Any) -> None:
    """NumPy would make a record of several fields of these, or an error of its own."""
    if isinstance(value, (Mapping, list, tuple)):
        raise ConfigError(f"the name of one type, got {reprlib.repr(value)}")


def shape(value: Any) -> list[Any]:
    """Sizes; None is "any"."""
    sizes = list(value) if isinstance(value, (list, tuple)) else None
    if sizes is None or not all(size in (None, "any") or (type(size) is int and size >= 0) for size in sizes):
        raise ConfigError(f'a list of sizes, "any" where rows may differ, got {value!r}')
    return ["any" if size is None else size for size in sizes]


def limit(value: Any) -> Number | str:
    """A bound: a number, or a time as text."""
    if isinstance(value, datetime.date):  # a datetime is one
        return value.isoformat()
    if isinstance(value, str) and not _is_float(value):
        try:
            np.datetime64(value)
        except ValueError:
            raise ConfigError(f"a number, or a time like 2026-01-31T12:00, got {value!r}") from None
        return value
    return number(value)


def limits(value: Any) -> list[Number | str]:
    """Two bounds."""
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise ConfigError(f"two bounds, (low, high), got {value!r}; for one use at_least or at_most")
    low, high = (limit(bound) for bound in value)
    if isinstance(low, str) != isinstance(high, str) or low > high:  # type: ignore[operator]
        raise ConfigError(f"the lower bound comes first and both are of a kind, got {value!r}")
    return [low, high]


def choices(value: Any) -> list[Any]:
    """A list of values; those of a set in order."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise ConfigError(f"a list of values, got {value!r}")
    chosen = [each.item() if isinstance(each, np.generic) else each for each in value]
    for each in chosen:
        if not isinstance(each, (str, bool)):
            number(each)
    return sorted(chosen, key=str) if isinstance(value, (set, frozenset)) else chosen


def pattern(value: Any) -> str:
    """A regular expression of RE2."""
    if not isinstance(value, str):
        raise ConfigError(f"a regular expression, got {value!r}")
    try:
        pc.match_substring_regex(pa.array(["x"]), whole_text(value))
    except pa.ArrowInvalid as error:
        why = str(error).partition(": ")[2]
        raise ConfigError(f"{value!r} is no pattern of RE2 ({why}); it has no look-around") from None
    return value


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def suite_name(value: Any) -> str:
    """The name of a suite."""
    if not isinstance(value, str) or not value:
        raise ConfigError(f"a suite is called by text that is not empty, got {value!r}")
    return value


def drift_columns(value: Any) -> list[str] | None:
    """The columns to compare, None for all."""
    names = None if value is None else column_names(value)
    if names == []:
        raise ConfigError("no column is named, so nothing would be compared; leave out columns= for all of them")
    return names


def drift_method(value: Any) -> str:
    """Distances joined by "+"."""
    return "+".join(one_of(word, tuple(DISTANCES)) for word in str(value).split("+"))


def drift_worth(value: Any) -> Worth:
    """The least change that is worth an alarm: "auto", "any", or a number for each column."""
    found = check_worth(value)
    return found if isinstance(found, str) else {column_name(name): float(least) for name, least in found.items()}


def bounded(what: str, is_within: Callable[[Number], bool]) -> Callable[[Any], Number]:
    """A number that lies where it should; ``what`` says in words where that is."""

    def checked(value: Any) -> Number:
        if not is_within(number(value)):
            raise ConfigError(f"{what}, got {value!r}")
        return number(value)

    return checked


def differences(old: Any, new: Any, place: str = "") -> Iterator[str]:
    """Where two plain values differ, a line for each place."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys([*old, *new]):
            inner = f"{place}.{name}" if place else str(name)
            yield from differences(old.get(name, _MISSING), new.get(name, _MISSING), inner)
    elif isinstance(old, list) and isinstance(new, list) and any(isinstance(each, dict) for each in (*old, *new)):
        for i, (before, now) in enumerate(zip_longest(old, new, fillvalue=_MISSING)):
            yield from differences(before, now, f"{place}[{i}]")
    elif old != new:
        added, removed = old is _MISSING, new is _MISSING
        yield f"{place}: " + (f"added {new!r}" if added else f"removed {old!r}" if removed else f"{old!r} -> {new!r}")


_MISSING = object()
