"""Entries of a suite: plain values, each kind with its keys, made normal when they come and made checks when asked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

from poolish.errors import ConfigError
from poolish.guards.checks.checks import Custom, RowCheck, Unique, check_named
from poolish.guards.checks.column_checks import (
    DRIFT_METHODS,
    OUTLIER_METHODS,
    STATISTICS,
    DistributionCheck,
    DriftCheck,
    OutlierCheck,
    StatCheck,
    UnfittedCheck,
    bounds_of,
    range_of,
)
from poolish.guards.checks.reference import DETECTOR_OPTIONS, DETECTORS, FittedOutliers, detector_of
from poolish.guards.checks.rules import RULES, checks_of, normal_rules, number, rows_check
from poolish.guards.checks.verdicts import LEVELS, SEVERITIES, Action, Level, Severity
from poolish.guards.stats.detectors import Detector
from poolish.schema import describe, dtype_and_shape, is_resolved, is_tensor

Entry = dict[str, Any]

DEFAULT_ACTIONS: dict[Severity, Action] = {"warn": "log", "error": "refuse", "fatal": "raise"}

#: Each kind of entry: which keys it may have, and the severity it has if none is given.
KEYS: dict[str, tuple[str, ...]] = {
    "schema": ("column", "type", "dtype", "shape", "nullable"),
    "expect": ("column", *RULES, "severity"),
    "rows": ("rule", "severity"),
    "unique": ("columns", "severity"),
    "checks": ("check", "columns", "severity"),
    "stat": ("column", *STATISTICS, "severity"),
    "drift": ("columns", "method", "alpha", "effect_min", "min_rows", "severity"),
    "outliers": (
        *("column", "columns", "method", "threshold", "most"),
        *dict.fromkeys(name for options in DETECTOR_OPTIONS.values() for name in options),
        "severity",
    ),
}
#: What a method of outliers that judges a column by itself takes, and what one that is fitted does not.
_OF_COLUMN = ("column", "threshold", "most")
_MILD = ("stat", "drift", "outliers")
TOP = ("suite", "version", *KEYS, "closed", "actions")
VERSION = 1


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


def schema_entry(field: Any) -> Entry:
    """What a suite expects of a field of a schema."""
    entry: Entry = {"column": field.name, "nullable": field.nullable}
    if is_tensor(field.type):
        dtype, shape = dtype_and_shape(field.type)
        return entry | {"dtype": dtype, "shape": ["any" if size is None else size for size in shape]}
    return entry | ({"type": describe(field.type)} if is_resolved(field.type) else {})


def _normal_schema(entry: Entry) -> Entry:
    rules = {"nullable": False} | {name: value for name, value in entry.items() if name != "column"}
    return {"column": _column(entry), **normal_rules(_column(entry), rules)}


def _normal_expect(entry: Entry) -> Entry:
    column = _column(entry)
    rules = {name: value for name, value in entry.items() if name not in ("column", "severity")}
    if not rules:
        raise ConfigError(f"column {column!r}: nothing is expected of it; pass rules such as finite=True")
    normal = normal_rules(column, rules)
    for low, high in OPPOSITES:
        if low in normal and high in normal and _is_empty(normal[low], normal[high]):
            raise ConfigError(f"column {column!r}: no value is {low}={normal[low]!r} and {high}={normal[high]!r}")
    return {"column": column, **normal, "severity": _severity(entry, "expect")}


#: Rules that leave nothing between them where the first is the larger one.
OPPOSITES = [(low, high) for low in ("at_least", "above") for high in ("at_most", "below")]
OPPOSITES.append(("min_length", "max_length"))


def _is_empty(low: Any, high: Any) -> bool:
    are_alike = isinstance(low, str) == isinstance(high, str)
    return are_alike and bool(np.datetime64(low) > np.datetime64(high) if isinstance(low, str) else low > high)


def _normal_rows(entry: Entry) -> Entry:
    rows_check(entry.get("rule", ""))
    return {"rule": entry["rule"], "severity": _severity(entry, "rows")}


def _normal_unique(entry: Entry) -> Entry:
    columns = _columns(entry)
    if not columns:
        raise ConfigError("unique: name at least one column")
    return {"columns": columns, "severity": _severity(entry, "unique")}


def _normal_checks(entry: Entry) -> Entry:
    check_named(entry.get("check", ""))
    return {"check": entry["check"], "columns": _columns(entry), "severity": _severity(entry, "checks")}


def _normal_stat(entry: Entry) -> Entry:
    column = _column(entry)
    ranges = {name: value for name, value in entry.items() if name in STATISTICS}
    if not ranges:
        raise ConfigError(f"column {column!r}: no statistic is named; pass a range such as mean=(0, 1)")
    told = {name: range_of(value, f"column {column!r}: {name}") for name, value in ranges.items()}
    return {"column": column, **told, "severity": _severity(entry, "stat")}


def _normal_drift(entry: Entry) -> Entry:
    alpha = number(entry.get("alpha", 0.05), "drift: alpha")
    effect_min, min_rows = entry.get("effect_min"), entry.get("min_rows", 50)
    words = str(entry.get("method", "psi")).split("+")
    if not 0 < alpha < 1:
        raise ConfigError(f"drift: alpha is the rate of false alarms, between 0 and 1, got {alpha!r}")
    if entry.get("columns") is not None and not _columns(entry):
        raise ConfigError("drift: no column is named, so nothing would be compared; leave out columns= for all of them")
    if effect_min is not None and number(effect_min, "drift: effect_min") < 0:
        raise ConfigError(f"drift: effect_min is a distance from 0, got {effect_min!r}")
    if type(min_rows) is not int or min_rows < 1:
        raise ConfigError(f"drift: min_rows is a number of rows from 1, got {min_rows!r}")
    return {
        "columns": None if entry.get("columns") is None else _columns(entry),
        "method": "+".join(one_of(word, DRIFT_METHODS, "drift: method") for word in words),
        "alpha": alpha,
        "effect_min": None if effect_min is None else number(effect_min, "drift: effect_min"),
        "min_rows": min_rows,
        "severity": _severity(entry, "drift"),
    }


def _normal_outliers(entry: Entry) -> Entry:
    method = one_of(entry.get("method", "modified_zscore"), (*OUTLIER_METHODS, *DETECTORS), "outliers: method")
    return _normal_fitted(entry, method) if method in DETECTORS else _normal_column_outliers(entry, method)


def _normal_fitted(entry: Entry, method: str) -> Entry:
    for name in _OF_COLUMN:
        if entry.get(name) is not None:
            instead = "columns=[...]" if name == "column" else "contamination, the share of the reference beyond it"
            raise ConfigError(f"outliers: {method} has no {name}; it takes {instead}")
    columns = None if entry.get("columns") is None else _columns(entry)
    if columns is not None and (not columns or len(set(columns)) < len(columns)):
        raise ConfigError(f"outliers: columns are different names, or left out for all numbers, got {columns!r}")
    options = {name: value for name, value in entry.items() if name not in (*_OF_COLUMN, *_EVERY)}
    arguments = detector_of(method, options).arguments()
    return {"columns": columns, "method": method, **arguments, "severity": _severity(entry, "outliers")}


_EVERY = ("columns", "method", "severity")


def _normal_column_outliers(entry: Entry, method: str) -> Entry:
    for name in entry:
        if name not in (*_OF_COLUMN, "method", "severity"):
            raise ConfigError(f"outliers: {name} is for {', '.join(DETECTORS)}; {method} takes {', '.join(_OF_COLUMN)}")
    most, threshold = number(entry.get("most", 0.01), "outliers: most"), entry.get("threshold")
    if threshold is not None and number(threshold, "outliers: threshold") <= 0:
        raise ConfigError(f"outliers: threshold is a distance above 0, got {threshold!r}")
    if not 0 <= most < 1:
        raise ConfigError(f"outliers: most is the share that is usual, from 0 to below 1, got {most!r}")
    return {
        "column": _column(entry),
        "method": method,
        "threshold": None if threshold is None else number(threshold, "outliers: threshold"),
        "most": most,
        "severity": _severity(entry, "outliers"),
    }


NORMALIZED = {
    "schema": _normal_schema,
    "expect": _normal_expect,
    "rows": _normal_rows,
    "unique": _normal_unique,
    "checks": _normal_checks,
    "stat": _normal_stat,
    "drift": _normal_drift,
    "outliers": _normal_outliers,
}


def fitted_key(entry: Entry) -> str:
    """Which detector an entry asks for, as text: its method, columns and options."""
    return json.dumps({name: value for name, value in entry.items() if name != "severity"}, sort_keys=True)


def fitted_entries(entries: Mapping[str, list[Entry]]) -> Iterator[tuple[str, Entry]]:
    """The entries that ask for a fitted detector, with the key of each."""
    return ((fitted_key(entry), entry) for entry in entries["outliers"] if entry["method"] in DETECTORS)


def row_checks(
    entries: Mapping[str, list[Entry]], detectors: Mapping[str, Detector]
) -> list[tuple[RowCheck, Severity]]:
    """The checks of rows that entries ask for; those of outliers as far as their detectors are fitted."""
    made: list[tuple[RowCheck, Severity]] = []
    for kind in ("schema", "expect"):
        for entry in entries[kind]:
            rules = {name: value for name, value in entry.items() if name not in ("column", "severity")}
            made += [(check, entry.get("severity", "error")) for check in checks_of(entry["column"], rules)]
    made += [(Unique(tuple(entry["columns"])), entry["severity"]) for entry in entries["unique"]]
    made += [(rows_check(entry["rule"]), entry["severity"]) for entry in entries["rows"]]
    made += [(Custom(entry["check"], tuple(entry["columns"])), entry["severity"]) for entry in entries["checks"]]
    fitted = ((key, entry) for key, entry in fitted_entries(entries) if key in detectors)
    made += [(FittedOutliers(detectors[key]), entry["severity"]) for key, entry in fitted]
    return made


def distribution_checks(
    entries: Mapping[str, list[Entry]], detectors: Mapping[str, Detector]
) -> list[DistributionCheck]:
    """The checks of whole columns that entries ask for."""
    made: list[DistributionCheck] = []
    for entry in entries["stat"]:
        ranges = {name: bounds_of(told) for name, told in entry.items() if name in STATISTICS}
        made.append(StatCheck(entry["column"], ranges, entry["severity"]))
    for entry in entries["drift"]:
        chosen = None if entry["columns"] is None else tuple(entry["columns"])
        options = {name: value for name, value in entry.items() if name != "columns"}
        made.append(DriftCheck(chosen, **options))
    made += [OutlierCheck(**entry) for entry in entries["outliers"] if entry["method"] in OUTLIER_METHODS]
    for key, entry in fitted_entries(entries):
        if key not in detectors:
            made.append(UnfittedCheck(tuple(entry["columns"] or ()), entry["method"], entry["severity"]))
    return made


def shortened(kind: str, entry: Entry) -> Entry:
    """An entry without what it would have anyway, and without None, which TOML has no word for."""
    usual: Entry = {
        "severity": "warn" if kind in _MILD else "error",
        **({"method": "psi", "alpha": 0.05, "min_rows": 50} if kind == "drift" else {}),
        **({"method": "modified_zscore", "most": 0.01} if kind == "outliers" else {}),
        **(DETECTOR_OPTIONS.get(entry.get("method", ""), {}) if kind == "outliers" else {}),
        **({"nullable": False} if kind == "schema" else {}),
        **({"columns": []} if kind == "checks" else {}),
    }
    return {name: value for name, value in entry.items() if value is not None and usual.get(name, _NONE) != value}


_NONE = object()


def check_keys(found: Mapping[Any, Any], known: Sequence[str], where: str) -> None:
    """Refuse a key that is not known, with the nearest that is."""
    for key in found:
        if key not in known:
            near = get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise ConfigError(f"{where}: unknown key {key!r}; {hint}")


def _column(entry: Entry) -> str:
    column = entry.get("column")
    if not isinstance(column, str) or not column:
        raise ConfigError(f"column: the name of a column, got {column!r}")
    return column


def _columns(entry: Entry) -> list[str]:
    columns = entry.get("columns", [])
    if isinstance(columns, str) or not all(isinstance(name, str) and name for name in columns):
        raise ConfigError(f"columns: a list of names, got {columns!r}")
    return list(columns)


def _severity(entry: Entry, kind: str) -> Severity:
    severity: Severity = one_of(entry.get("severity", "warn" if kind in _MILD else "error"), SEVERITIES, "severity")
    return severity


def one_of(value: Any, known: Sequence[Any], where: str) -> Any:
    """The value, if it is a known one; else a refusal with the nearest."""
    if value not in known:
        near = get_close_matches(str(value), known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"{where}: one of {', '.join(map(repr, known))}, got {value!r}{hint}")
    return value


def is_within(level: Level, limit: Level) -> bool:
    """Whether a level is asked when one goes up to another."""
    return LEVELS.index(level) <= LEVELS.index(limit)
