"""The rules of a suite: for each keyword the values it takes, their form in files, and the checks that it stands for.

``RULES`` is the table for ``Suite.expect``. The models of suite files, the JSON schema, ``Suite`` itself and the tests
are derived from it, so a new rule is a check in ``checks`` and a line here. A suite holds *entries*, plain values as
they stand in files; this module turns them into checks.
"""

from __future__ import annotations

import datetime
import json
import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Literal

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
from poolish.guards.checks.column_checks import (
    STATISTICS,
    DistributionCheck,
    DriftCheck,
    OutlierCheck,
    StatCheck,
    UnfittedCheck,
)
from poolish.guards.checks.reference import FittedOutliers
from poolish.guards.checks.verdicts import Action, Severity
from poolish.guards.stats.detectors import DETECTOR_OPTIONS, DETECTORS, Detector
from poolish.guards.stats.outliers import OUTLIER_METHODS
from poolish.schema import Field, describe, dtype_and_shape, is_resolved, is_tensor

Entry = dict[str, Any]

DEFAULT_ACTIONS: dict[Severity, Action] = {"warn": "log", "error": "refuse", "fatal": "raise"}

#: The kinds of entries, each with the severity of its checks unless one is given.
SEVERITY_OF: dict[str, Severity] = {
    "schema": "error",
    "expect": "error",
    "rows": "error",
    "unique": "error",
    "checks": "error",
    "stat": "warn",
    "drift": "warn",
    "outliers": "warn",
}


# Values -------------------------------------------------------------------------------------------------------------


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


def nearest(name: object, known: Iterable[object]) -> str:
    """``; did you mean 'x'?`` with the known name that is most alike; empty if none is."""
    near = get_close_matches(str(name), [str(each) for each in known], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


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


def _type_name(value: Any) -> str:
    if isinstance(value, str) and (value in FAMILIES or value.startswith(("list of ", "{")) or "[" in value):
        return value
    _refuse_nested(value)
    try:
        return describe(Field("column", value).type)
    except SchemaError as error:
        raise ConfigError(f"{str(error).partition(': ')[2]}; or one of {', '.join(FAMILIES)}") from None


def _dtype_name(value: Any) -> str:
    _refuse_nested(value)
    try:
        return str(Field("column", value).dtype)
    except SchemaError as error:
        raise ConfigError(str(error).partition(": ")[2]) from None


def _refuse_nested(value: Any) -> None:
    """NumPy would make a record of several fields of these, or an error of its own."""
    if isinstance(value, (Mapping, list, tuple)):
        raise ConfigError(f"the name of one type, got {reprlib.repr(value)}")


def _shape(value: Any) -> list[Any]:
    sizes = list(value) if isinstance(value, (list, tuple)) else None
    if sizes is None or not all(size in (None, "any") or (type(size) is int and size >= 0) for size in sizes):
        raise ConfigError(f'a list of sizes, "any" where rows may differ, got {value!r}')
    return ["any" if size is None else size for size in sizes]


def _limit(value: Any) -> Number | str:
    if isinstance(value, (datetime.datetime, datetime.date)):
        return value.isoformat()
    if isinstance(value, str) and not _is_float(value):
        try:
            np.datetime64(value)
        except ValueError:
            raise ConfigError(f"a number, or a time like 2026-01-31T12:00, got {value!r}") from None
        return value
    return number(value)


def _limits(value: Any) -> list[Number | str]:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise ConfigError(f"two bounds, (low, high), got {value!r}; for one use at_least or at_most")
    low, high = (_limit(bound) for bound in value)
    if isinstance(low, str) != isinstance(high, str) or low > high:  # type: ignore[operator]
        raise ConfigError(f"the lower bound comes first and both are of a kind, got {value!r}")
    return [low, high]


def _choices(value: Any) -> list[Any]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise ConfigError(f"a list of values, got {value!r}")
    chosen = [each.item() if isinstance(each, np.generic) else each for each in value]
    for each in chosen:
        if not isinstance(each, (str, bool)):
            number(each)
    return sorted(chosen, key=str) if isinstance(value, (set, frozenset)) else chosen


def _pattern(value: Any) -> str:
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


# The rules of expect ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """A keyword of ``Suite.expect``."""

    type: Any  #: of its value in a file
    normalize: Callable[[Any], Any]  #: a value as it stands in a file; a ConfigError for a wrong one
    checks: Callable[[str, Any], list[RowCheck]]  #: of a column and a normal value
    help: str


_Size = int | Literal["any"]
_Limit = int | float | str

RULES: dict[str, Rule] = {
    "type": Rule(str, _type_name, lambda column, v: [OfType(column, v)], "a type, or a family of types"),
    "dtype": Rule(str, _dtype_name, lambda column, v: [OfDtype(column, v)], "the dtype of its numbers"),
    "shape": Rule(
        list[_Size],
        _shape,
        lambda column, v: [OfShape(column, tuple(None if size == "any" else size for size in v))],
        'the shape of each row\'s array, "any" where rows may differ',
    ),
    "nullable": Rule(bool, flag, lambda column, v: [] if v else [NotNull(column)], "whether a value may be missing"),
    "finite": Rule(bool, flag, lambda column, v: [Finite(column)] if v else [], "neither NaN nor infinity"),
    "between": Rule(
        list[_Limit], _limits, lambda column, v: [InRange(column, v[0], v[1])], "both bounds, which are included"
    ),
    "at_least": Rule(_Limit, _limit, lambda column, v: [InRange(column, low=v)], "the least number, or time"),
    "at_most": Rule(_Limit, _limit, lambda column, v: [InRange(column, high=v)], "the largest number, or time"),
    "above": Rule(
        _Limit, _limit, lambda column, v: [InRange(column, low=v, open_low=True)], "a bound that is excluded"
    ),
    "below": Rule(
        _Limit, _limit, lambda column, v: [InRange(column, high=v, open_high=True)], "a bound that is excluded"
    ),
    "one_of": Rule(
        list[str | bool | int | float], _choices, lambda column, v: [OneOf(column, tuple(v))], "the allowed values"
    ),
    "matches": Rule(str, _pattern, lambda column, v: [Matches(column, v)], "a whole text, in RE2's language"),
    "min_length": Rule(int, whole_number, lambda column, v: [OfLength(column, least=v)], "the least length"),
    "max_length": Rule(int, whole_number, lambda column, v: [OfLength(column, most=v)], "the largest length"),
    "unique": Rule(bool, flag, lambda column, v: [Unique((column,))] if v else [], "no two rows are the same"),
    "check": Rule(str, check_name, lambda column, v: [Custom(v, (column,))], "a function by its registered name"),
}

#: Rules that leave nothing between them where the first is the larger one.
OPPOSITES = [(low, high) for low in ("at_least", "above") for high in ("at_most", "below")]
OPPOSITES.append(("min_length", "max_length"))


def check_opposites(entry: Mapping[str, Any]) -> None:
    """Refuse rules that no value can satisfy together."""
    for low, high in OPPOSITES:
        if low in entry and high in entry and _is_empty(entry[low], entry[high]):
            raise ConfigError(f"no value is {low}={entry[low]!r} and {high}={entry[high]!r}")


def _is_empty(low: Any, high: Any) -> bool:
    are_alike = isinstance(low, str) == isinstance(high, str)
    return are_alike and bool(np.datetime64(low) > np.datetime64(high) if isinstance(low, str) else low > high)


# From entries to checks ---------------------------------------------------------------------------------------------


def schema_entry(field: Any) -> Entry:
    """The entry for a field of a schema."""
    entry: Entry = {"column": field.name, "nullable": field.nullable}
    if is_tensor(field.type):
        dtype, shape = dtype_and_shape(field.type)
        return entry | {"dtype": dtype, "shape": ["any" if size is None else size for size in shape]}
    return entry | ({"type": describe(field.type)} if is_resolved(field.type) else {})


def fitted_entries(entries: Mapping[str, list[Entry]]) -> Iterator[tuple[str, Entry]]:
    """The entries that need a fitted detector, each with its key: method, columns and options as text."""
    for entry in entries["outliers"]:
        if entry["method"] in DETECTORS:
            yield json.dumps({k: v for k, v in entry.items() if k != "severity"}, sort_keys=True), entry


def row_checks(
    entries: Mapping[str, list[Entry]], detectors: Mapping[str, Detector]
) -> list[tuple[RowCheck, Severity]]:
    """The checks of rows that entries stand for; those of outliers as far as their detectors are fitted."""
    made: list[tuple[RowCheck, Severity]] = []
    for entry in (*entries["schema"], *entries["expect"]):
        for name, value in entry.items():
            if name in RULES:
                made += [
                    (check, entry.get("severity", "error")) for check in RULES[name].checks(entry["column"], value)
                ]
    made += [(Unique(tuple(entry["columns"])), entry["severity"]) for entry in entries["unique"]]
    made += [(Holds(entry["rule"], parse(entry["rule"])), entry["severity"]) for entry in entries["rows"]]
    made += [(Custom(entry["check"], tuple(entry["columns"])), entry["severity"]) for entry in entries["checks"]]
    fitted = ((key, entry) for key, entry in fitted_entries(entries) if key in detectors)
    made += [(FittedOutliers(detectors[key]), entry["severity"]) for key, entry in fitted]
    return made


def distribution_checks(
    entries: Mapping[str, list[Entry]], detectors: Mapping[str, Detector]
) -> list[DistributionCheck]:
    """The checks of whole columns that entries stand for."""
    made: list[DistributionCheck] = []
    for entry in entries["stat"]:
        ranges = {name: _bounds(value) for name, value in entry.items() if name in STATISTICS}
        made.append(StatCheck(entry["column"], ranges, entry["severity"]))
    for entry in entries["drift"]:
        chosen = None if entry["columns"] is None else tuple(entry["columns"])
        made.append(DriftCheck(chosen, **{name: value for name, value in entry.items() if name != "columns"}))
    made += [OutlierCheck(**entry) for entry in entries["outliers"] if entry["method"] in OUTLIER_METHODS]
    for key, entry in fitted_entries(entries):
        if key not in detectors:
            made.append(UnfittedCheck(tuple(entry["columns"] or ()), entry["method"], entry["severity"]))
    return made


def _bounds(value: dict[str, Number] | list[Number]) -> tuple[Number | None, Number | None]:
    return (value.get("at_least"), value.get("at_most")) if isinstance(value, dict) else (value[0], value[1])


#: The values that an entry has unless others are given, by its kind: those of the check that it stands for.
DEFAULTS: dict[str, Entry] = {
    "schema": {"nullable": False},
    "checks": {"columns": []},
    "drift": {field.name: field.default for field in fields(DriftCheck) if field.name != "chosen"},
    "outliers": {field.name: field.default for field in fields(OutlierCheck) if field.name != "column"},
}


def shortened(kind: str, entry: Entry) -> Entry:
    """An entry without default values, and without None, which TOML has no word for."""
    usual = {"severity": SEVERITY_OF[kind], **DEFAULTS.get(kind, {})}
    if kind == "outliers":
        usual |= DETECTOR_OPTIONS.get(entry["method"], {})
    return {name: value for name, value in entry.items() if value is not None and usual.get(name, _NONE) != value}


_NONE = object()
