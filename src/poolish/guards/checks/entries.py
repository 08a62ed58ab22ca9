"""The entries of a suite: for each kind, as ``expect`` or ``drift``, its keys and the checks that an entry stands for.

``KINDS`` is the one description of what a suite can say, and ``RULES`` the part of it for ``Suite.expect``. Reading and
its errors, writing without defaults, the models and the JSON schema of files, and the tests are derived from them; a
fingerprint and a diff are of what is written. A new rule is a check in ``checks`` and a line here.

An entry holds plain values as they stand in files. Reading one needs no pydantic, which takes long to load.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np

from poolish.errors import ConfigError, LimitExceeded, PoolishError
from poolish.expressions import parse
from poolish.guards.checks import values
from poolish.guards.checks.checks import (
    Custom,
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
)
from poolish.guards.checks.distributions import (
    STATISTICS,
    ColumnCheck,
    DriftCheck,
    FittedOutliers,
    OutlierCheck,
    Per,
    StatCheck,
    UnfittedCheck,
    detector_of,
)
from poolish.guards.checks.verdicts import ACTIONS, SEVERITIES, Action, Severity
from poolish.guards.stats.detectors import DETECTOR_OPTIONS, DETECTORS, Detector
from poolish.guards.stats.outliers import OUTLIER_METHODS
from poolish.printable import nearest
from poolish.schema import describe, dtype_and_shape, is_resolved, is_tensor

Entry = dict[str, Any]
Detectors = Mapping[str, Detector]
Check = RowCheck | ColumnCheck

#: Of suite files.
VERSION = 1

#: As the default of a key: it has to be given; and an entry has it only if it was given.
REQUIRED, ABSENT = object(), object()


@dataclass(frozen=True)
class Key:
    """One key of an entry."""

    type: Any  #: of its value in a file, for the JSON schema
    normalize: Callable[[Any], Any]  #: a value as it stands in a file; a ConfigError for a wrong one
    help: str = ""
    default: Any = ABSENT

    def value_in(self, given: Mapping[str, Any], name: str) -> Any:
        """The value that is given under a name, checked, else the default."""
        if name in given:
            return self.normalize(given[name])
        if self.default is REQUIRED:
            raise ConfigError(f"{self.help}, got None")
        return deepcopy(self.default)


@dataclass(frozen=True)
class Rule(Key):
    """A keyword of ``Suite.expect``."""

    checks: Callable[[str, Any], list[RowCheck]] = lambda column, value: []  #: of a column and a normal value


@dataclass(frozen=True)
class Kind:
    """A kind of entries."""

    help: str
    keys: Mapping[str, Key]
    checks: Callable[[Entry, Detectors], Sequence[Check]] = lambda entry, detectors: []
    #: What its keys mean together: an entry and what was given, to the entry that is kept.
    complete: Callable[[Entry, Entry], Entry] = lambda entry, given: entry


# The rules of expect ------------------------------------------------------------------------------------------------

_Size = int | Literal["any"]
_Limit = int | float | str


def _rule(
    type_: Any, normalize: Callable[[Any], Any], help_: str, checks: Callable[[str, Any], list[RowCheck]]
) -> Rule:
    return Rule(type_, normalize, help_, checks=checks)


def _shape_checks(column: str, sizes: list[Any]) -> list[RowCheck]:
    return [OfShape(column, tuple(None if size == "any" else size for size in sizes))]


RULES: dict[str, Rule] = {
    "type": _rule(str, values.type_name, "a type, or a family of types", lambda column, v: [OfType(column, v)]),
    "dtype": _rule(str, values.dtype_name, "the dtype of its numbers", lambda column, v: [OfDtype(column, v)]),
    "shape": _rule(
        list[_Size], values.shape, 'the shape of each row\'s array, "any" where rows may differ', _shape_checks
    ),
    "nullable": _rule(
        bool, values.flag, "whether a value may be missing", lambda column, v: [] if v else [NotNull(column)]
    ),
    "finite": _rule(bool, values.flag, "neither NaN nor infinity", lambda column, v: [Finite(column)] if v else []),
    "between": _rule(
        list[_Limit], values.limits, "both bounds, which are included", lambda column, v: [InRange(column, v[0], v[1])]
    ),
    "at_least": _rule(_Limit, values.limit, "the least number, or time", lambda column, v: [InRange(column, low=v)]),
    "at_most": _rule(_Limit, values.limit, "the largest number, or time", lambda column, v: [InRange(column, high=v)]),
    "above": _rule(
        _Limit, values.limit, "a bound that is excluded", lambda column, v: [InRange(column, low=v, open_low=True)]
    ),
    "below": _rule(
        _Limit, values.limit, "a bound that is excluded", lambda column, v: [InRange(column, high=v, open_high=True)]
    ),
    "one_of": _rule(
        list[str | bool | int | float],
        values.choices,
        "the allowed values",
        lambda column, v: [OneOf(column, tuple(v))],
    ),
    "matches": _rule(str, values.pattern, "a whole text, in RE2's language", lambda column, v: [Matches(column, v)]),
    "min_length": _rule(int, values.whole_number, "the least length", lambda column, v: [OfLength(column, least=v)]),
    "max_length": _rule(int, values.whole_number, "the largest length", lambda column, v: [OfLength(column, most=v)]),
    "unique": _rule(bool, values.flag, "no two rows are the same", lambda column, v: [Unique((column,))] if v else []),
    "check": _rule(
        str, values.check_name, "a function by its registered name", lambda column, v: [Custom(v, (column,))]
    ),
}

#: Rules that leave nothing between them where the first is the larger one.
OPPOSITES = [(low, high) for low in ("at_least", "above") for high in ("at_most", "below")]
OPPOSITES.append(("min_length", "max_length"))


def _check_opposites(entry: Entry, given: Entry) -> Entry:
    if not entry.keys() & RULES.keys():
        raise ConfigError("nothing is expected of it; pass rules such as finite=True")
    for low, high in OPPOSITES:
        if low in entry and high in entry and _is_empty(entry[low], entry[high]):
            raise ConfigError(f"no value is {low}={entry[low]!r} and {high}={entry[high]!r}")
    return entry


def _is_empty(low: Any, high: Any) -> bool:
    are_alike = isinstance(low, str) == isinstance(high, str)
    return are_alike and bool(np.datetime64(low) > np.datetime64(high) if isinstance(low, str) else low > high)


def _rule_checks(entry: Entry, detectors: Detectors) -> list[RowCheck]:
    given = [(RULES[name], value) for name, value in entry.items() if name in RULES]
    return [check for rule, value in given for check in rule.checks(entry["column"], value)]


# The other kinds ----------------------------------------------------------------------------------------------------


def _has_columns(entry: Entry, given: Entry) -> Entry:
    if not entry["columns"]:
        raise ConfigError("name at least one column")
    return entry


def _has_ranges(entry: Entry, given: Entry) -> Entry:
    if not entry.keys() & STATISTICS.keys():
        raise ConfigError("no statistic is named; pass a range such as mean=(0, 1)")
    return entry


def _stat_checks(entry: Entry, detectors: Detectors) -> list[ColumnCheck]:
    ranges = {
        name: (value.get("at_least"), value.get("at_most")) if isinstance(value, dict) else (value[0], value[1])
        for name, value in entry.items()
        if name in STATISTICS
    }
    return [StatCheck(entry["column"], ranges, entry["severity"], entry["min_rows"])]


def _drift_checks(entry: Entry, detectors: Detectors) -> list[ColumnCheck]:
    options = {name: value for name, value in entry.items() if name != "columns"}
    return [DriftCheck(None if entry["columns"] is None else tuple(entry["columns"]), **options)]


#: What a method that judges a column by itself takes, and a fitted one does not.
_OF_COLUMN = ("column", "threshold", "most")


def _outliers_of_its_method(entry: Entry, given: Entry) -> Entry:
    """The entry with the keys of its method only."""
    named = [name for name, value in given.items() if value is not None and name not in ("method", "severity")]
    method, severity = entry["method"], entry["severity"]
    if method not in DETECTORS:
        for name in named:
            if name not in _OF_COLUMN:
                others, own = ", ".join(DETECTORS), ", ".join(_OF_COLUMN)
                raise ConfigError(f"{name} is for {others}; {method} takes {own}")
        values.column_name(entry["column"])
        return {name: entry[name] for name in ("column", "method", "threshold", "most", "severity")}
    for name in _OF_COLUMN:
        if name in named:
            instead = "columns=[...]" if name == "column" else "contamination, the share of the reference beyond it"
            raise ConfigError(f"{method} has no {name}; it takes {instead}")
    columns = entry["columns"]
    if columns is not None and (not columns or len(set(columns)) < len(columns)):
        raise ConfigError(f"columns are different names, or left out for all numbers, got {columns!r}")
    options = detector_of(method, {name: entry[name] for name in named if name != "columns"}).arguments()
    return {"columns": columns, "method": method, **options, "severity": severity}


def _outlier_checks(entry: Entry, detectors: Detectors) -> list[Check]:
    if entry["method"] in OUTLIER_METHODS:
        return [OutlierCheck(**entry)]
    detector = detectors.get(detector_key(entry))
    if detector is not None:
        return [FittedOutliers(detector)]
    return [UnfittedCheck(tuple(entry["columns"] or ()), entry["method"], entry["severity"])]


def detector_key(entry: Entry) -> str:
    """Method, columns and options of an entry, as text."""
    return json.dumps({name: value for name, value in entry.items() if name != "severity"}, sort_keys=True)


def fitted_entries(entries: Mapping[str, list[Entry]]) -> Iterator[tuple[str, Entry]]:
    """The entries that need a fitted detector, each with its key."""
    return ((detector_key(entry), entry) for entry in entries["outliers"] if entry["method"] in DETECTORS)


# The table ----------------------------------------------------------------------------------------------------------


def _optional(type_: Any, normalize: Callable[[Any], Any]) -> Key:
    return Key(type_ | None, lambda value: None if value is None else normalize(value), default=None)


def _severity(check: type[ColumnCheck] | None = None) -> Key:
    usual = "error" if check is None else _default(check, "severity")
    return Key(Severity, partial(values.one_of, known=SEVERITIES), default=usual)


def _default(check: type[ColumnCheck], name: str) -> Any:
    return next(field.default for field in fields(check) if field.name == name)


_COLUMN = Key(str, values.column_name, "the name of a column", REQUIRED)
_WHY = Key(str, values.text, "why this is expected, for people")
_COLUMNS = Key(list[str], values.column_names, "a list of names", REQUIRED)
_Range = list[int | float | None] | dict[Literal["at_least", "at_most"], int | float]
_alpha = values.bounded("the rate of false alarms, between 0 and 1", lambda value: 0 < value < 1)
_share = values.bounded("the share that is usual, from 0 to below 1", lambda value: 0 <= value < 1)
_effect = values.bounded("a distance from 0", lambda value: value >= 0)
_threshold = values.bounded("a distance above 0", lambda value: value > 0)
_n_rows = partial(values.whole_number, least=1, what="a number of rows")
_n_windows = partial(values.whole_number, least=1, what="a number of windows")

#: The kinds of entries by the name that they have in files, in the order of files.
KINDS: dict[str, Kind] = {
    "schema": Kind(
        "The type of a column.",
        {
            "column": _COLUMN,
            "nullable": replace(RULES["nullable"], default=False),
            **{name: RULES[name] for name in ("type", "dtype", "shape")},
            "why": _WHY,
        },
        _rule_checks,
    ),
    "expect": Kind(
        "Rules for the values of a column.",
        {"column": _COLUMN, **RULES, "why": _WHY, "severity": _severity()},
        _rule_checks,
        _check_opposites,
    ),
    "rows": Kind(
        "An expression that every row makes true.",
        {"rule": Key(str, values.row_rule, "an expression", REQUIRED), "why": _WHY, "severity": _severity()},
        lambda entry, detectors: [Holds(entry["rule"], parse(entry["rule"]))],
    ),
    "unique": Kind(
        "Columns in which no two rows agree.",
        {"columns": _COLUMNS, "why": _WHY, "severity": _severity()},
        lambda entry, detectors: [Unique(tuple(entry["columns"]))],
        _has_columns,
    ),
    "checks": Kind(
        "A registered function.",
        {
            "check": Key(str, values.check_name, "the name of a check that was registered", REQUIRED),
            "columns": replace(_COLUMNS, default=[]),
            "why": _WHY,
            "severity": _severity(),
        },
        lambda entry, detectors: [Custom(entry["check"], tuple(entry["columns"]))],
    ),
    "stat": Kind(
        "Ranges of statistics of a column.",
        {
            "column": _COLUMN,
            **{name: Key(_Range, values.range_of) for name in STATISTICS},
            "min_rows": Key(int, _n_rows, "how many rows it takes to judge", default=_default(StatCheck, "min_rows")),
            "why": _WHY,
            "severity": _severity(StatCheck),
        },
        _stat_checks,
        _has_ranges,
    ),
    "drift": Kind(
        "Columns that have not drifted from the reference.",
        {
            "columns": Key(list[str] | None, values.drift_columns, default=None),
            "method": Key(str, values.drift_method, default=_default(DriftCheck, "method")),
            "alpha": Key(float, _alpha, default=_default(DriftCheck, "alpha")),
            "effect_min": _optional(float, _effect),
            "worth": Key(
                Literal["auto", "any"] | dict[str, float], values.drift_worth, default=_default(DriftCheck, "worth")
            ),
            "min_rows": Key(int, _n_rows, default=_default(DriftCheck, "min_rows")),
            "per": Key(Per, partial(values.one_of, known=get_args(Per)), default=_default(DriftCheck, "per")),
            "severity": _severity(DriftCheck),
        },
        _drift_checks,
    ),
    "outliers": Kind(
        "Values far from the others of their column, or rows unlike those that a detector was fitted on.",
        {
            "column": _optional(str, values.column_name),
            "columns": _optional(list[str], values.column_names),
            "method": Key(
                str,
                partial(values.one_of, known=(*OUTLIER_METHODS, *DETECTORS)),
                default=_default(OutlierCheck, "method"),
            ),
            "threshold": _optional(float, _threshold),
            "most": Key(float, _share, default=_default(OutlierCheck, "most")),
            **{name: Key(Any, lambda value: value) for options in DETECTOR_OPTIONS.values() for name in options},
            "severity": _severity(OutlierCheck),
        },
        _outlier_checks,
        _outliers_of_its_method,
    ),
}

DEFAULT_ACTIONS: dict[Severity, Action] = {"warn": "log", "error": "refuse", "fatal": "raise"}

ON = Kind(
    "What a boundary does when a check of a severity fails.",
    {
        **{severity: _optional(Action, partial(values.one_of, known=ACTIONS)) for severity in SEVERITIES},
        "persist": _optional(int, _n_windows),
    },
)


# Reading and writing ------------------------------------------------------------------------------------------------


class WrongValues(ValueError):
    """All that is wrong with some values: for each its place in words, and why."""

    def __init__(self, problems: Sequence[tuple[str, object]]) -> None:
        super().__init__(problems)
        self.problems = list(problems)

    def within(self, place: str) -> list[tuple[str, object]]:
        """The same problems, with a place before their own."""
        return [(f"{place}: {text}", why) for text, why in self.problems]

    def at(self, place: str) -> PoolishError:
        """The error for a user, a line for each problem; what is beyond a limit stays a ``LimitExceeded``."""
        is_beyond = any(isinstance(why, LimitExceeded) for _, why in self.problems)
        return (LimitExceeded if is_beyond else ConfigError)("\n".join(text for text, _ in self.within(place)))


def read_entry(kind: Kind, given: Mapping[str, Any]) -> Entry:
    """An entry as plain, checked values; ``WrongValues`` names all that is wrong with it.

    >>> read_entry(KINDS["expect"], {"column": "x", "between": (0, 1), "severity": "warn"})
    {'column': 'x', 'between': [0, 1], 'severity': 'warn'}
    """
    given = dict(values.plain(given))
    usual = [name for name, key in kind.keys.items() if key.default is not ABSENT]
    names = sorted(dict.fromkeys([*usual, *given]), key=lambda name: name == "severity")  # which comes last
    entry, problems = Entry(), list[tuple[str, object]]()
    column = given.get("column") if "column" in kind.keys else None
    where = "" if column is None else f"column {column!r}: "
    for name in names:
        if name not in kind.keys:
            problems.append((unknown_key(name, kind.keys), None))
            continue
        try:
            entry[name] = kind.keys[name].value_in(given, name)
        except ValueError as error:
            problems.append((f"{where}{name}: {error}", error))
    if problems:
        raise WrongValues(problems)
    try:
        return kind.complete(entry, given)
    except ValueError as error:
        raise WrongValues([(f"{where}{error}", error)]) from None


def unknown_key(name: object, known: Iterable[str]) -> str:
    """What is wrong with a key that nothing has, with the nearest one."""
    hint = nearest(name, known) or f"; known are {', '.join(known)}"
    return f"unknown key {str(name)!r}{hint}"


def schema_entry(field: Any) -> Entry:
    """The entry for a field of a schema."""
    entry: Entry = {"column": field.name, "nullable": field.nullable}
    if is_tensor(field.type):
        dtype, shape = dtype_and_shape(field.type)
        return entry | {"dtype": dtype, "shape": ["any" if size is None else size for size in shape]}
    return entry | ({"type": describe(field.type)} if is_resolved(field.type) else {})


def shortened(kind: str, entry: Entry) -> Entry:
    """An entry without default values, and without None, which TOML has no word for."""
    usual = {name: key.default for name, key in KINDS[kind].keys.items()}
    usual |= DETECTOR_OPTIONS.get(entry.get("method", ""), {})
    return {name: deepcopy(v) for name, v in entry.items() if v is not None and (name not in usual or usual[name] != v)}


def checks_of(
    entries: Mapping[str, list[Entry]], detectors: Detectors
) -> tuple[list[tuple[RowCheck, Severity]], list[ColumnCheck]]:
    """The checks that entries stand for: those of rows with their severities, and those of whole columns."""
    of_rows: list[tuple[RowCheck, Severity]] = []
    of_columns: list[ColumnCheck] = []
    for kind, entry in ((kind, entry) for kind, some in entries.items() for entry in some):
        for check in KINDS[kind].checks(entry, detectors):
            if isinstance(check, ColumnCheck):
                of_columns.append(check)
            else:
                of_rows.append((check, entry.get("severity", "error")))
    return of_rows, of_columns
