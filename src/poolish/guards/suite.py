"""Suite: what you expect of your data, said once, and asked at every door.

A suite is plain values: names, numbers and text. So it is written to a file and read back without a change, compared,
edited by hand, and nothing in it is ever executed. What the values mean is in ``checks`` (rows, one by one) and
``distributions`` (columns as a whole).

    Suite --check(rows)--> Result            all at once: a file, a buffer, a batch
          --guard(window=)--> StreamGuard    batch after batch, statistics over windows, with state
          itself, called                     a guard without memory, for any door that takes one
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import xxhash

from poolish import html
from poolish.errors import ConfigError
from poolish.guards.checks import RULES, Custom, Holds, RowCheck, Unique, checks_of, normal_rules, number, rows_check
from poolish.guards.custom import check_named
from poolish.guards.distributions import (
    DRIFT_METHODS,
    OUTLIER_METHODS,
    STATISTICS,
    DistributionCheck,
    DriftCheck,
    OutlierCheck,
    StatCheck,
    bounds_of,
    range_of,
)
from poolish.guards.leaves import Mask, Rows, Unfit
from poolish.guards.verdicts import ACTIONS, LEVELS, SEVERITIES, Action, Level, Result, Severity, Verdict, examples_of
from poolish.schema import Schema, describe, dtype_and_shape, is_resolved, is_tensor

if TYPE_CHECKING:
    from poolish.guards.stream_guard import StreamGuard

Entry = dict[str, Any]

DEFAULT_ACTIONS: dict[Severity, Action] = {"warn": "log", "error": "refuse", "fatal": "raise"}

#: Each kind of entry: which keys it may have, and the severity it has if none is given.
_KEYS: dict[str, tuple[str, ...]] = {
    "schema": ("column", "type", "dtype", "shape", "nullable"),
    "expect": ("column", *RULES, "severity"),
    "rows": ("rule", "severity"),
    "unique": ("columns", "severity"),
    "checks": ("check", "columns", "severity"),
    "stat": ("column", *STATISTICS, "severity"),
    "drift": ("columns", "method", "alpha", "effect_min", "min_rows", "severity"),
    "outliers": ("column", "method", "threshold", "most", "severity"),
}
_MILD = ("stat", "drift", "outliers")
_TOP = ("suite", "version", *_KEYS, "closed", "actions")
VERSION = 1


class Suite:
    """Expectations of rows, columns and their distributions; each method adds some and returns the suite itself.

    >>> suite = (
    ...     Suite("rollouts")
    ...     .expect("reward", finite=True, between=(-10, 10))
    ...     .expect("text", matches=r"[a-z ]+", max_length=20)
    ...     .expect_rows("end >= start")
    ... )
    >>> result = suite.check({"reward": [0.5, 99.0], "text": ["go left", "wait"], "start": [0, 7], "end": [3, 9]})
    >>> print(result)
    rollouts: not ok, 1 of 5 checks failed, 1 of 2 rows bad
      error: reward is between -10 and 10: 1 of 2 rows are bad; row 1: 99.0

    A null passes all checks but ``nullable=False``. Rows may be a ``pa.Table``, a buffer, a data frame, a dict of
    columns (arrays, tensors, lists) or a list of dicts.
    """

    def __init__(self, name: str = "suite") -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"name: a suite is called by text that is not empty, got {name!r}")
        self.name = name
        self._entries: dict[str, list[Entry]] = {kind: [] for kind in _KEYS}
        self._is_closed = False
        self._actions: dict[Severity, Action] = dict(DEFAULT_ACTIONS)
        self.persist = 1
        self._made: tuple[list[tuple[RowCheck, Severity]], list[DistributionCheck]] | None = None

    # -- saying what is expected

    def schema(self, schema: Any, *, closed: bool = True) -> Self:
        """Columns, types, shapes and nullability as a schema says; anything that describes one is taken.

        A nullable column may be missing. ``closed``: there are no other columns.
        """
        entries = [_schema_entry(field) for field in Schema.of(schema)]
        self._entries["schema"], self._is_closed = entries, closed
        return self._changed()

    def expect(self, column: str, *, severity: Severity = "error", **rules: Any) -> Self:
        """Rules for the values of a column.

        ``type``, ``dtype``, ``shape``, ``nullable``, ``finite``, ``between`` (both ends included), ``at_least``,
        ``at_most``, ``above``, ``below``, ``one_of``, ``matches`` (a whole text, in RE2's language), ``min_length``,
        ``max_length``, ``unique``, ``check`` (a function by its registered name).
        """
        return self._add("expect", {"column": column, **rules, "severity": severity})

    def expect_rows(self, rule: str, *, severity: Severity = "error") -> Self:
        """An expression that every row makes true: ``"end >= start and price > 0"``; see guards/expressions.py."""
        return self._add("rows", {"rule": rule, "severity": severity})

    def expect_unique(self, *columns: str, severity: Severity = "error") -> Self:
        """No two rows, of those that are checked together, agree in all these columns; the first of them is good."""
        return self._add("unique", {"columns": list(columns), "severity": severity})

    def expect_check(self, check: str, columns: Sequence[str] = (), *, severity: Severity = "error") -> Self:
        """A function of your own, by its registered name: it gets these columns, or the whole table."""
        return self._add("checks", {"check": check, "columns": list(columns), "severity": severity})

    def stat(self, column: str, *, severity: Severity = "warn", **ranges: Any) -> Self:
        """Ranges ``(low, high)`` for statistics of a column: mean, std, min, max, median, q01 to q99, null_share ..."""
        return self._add("stat", {"column": column, **ranges, "severity": severity})

    def drift(
        self,
        columns: Sequence[str] | None = None,
        *,
        method: str = "psi",
        alpha: float = 0.05,
        effect_min: float | None = None,
        min_rows: int = 50,
        severity: Severity = "warn",
    ) -> Self:
        """Columns (all, if none are named) have not drifted from the reference that ``check`` or ``guard`` is given.

        ``method`` is psi, kl, js, ks, wasserstein or chi2, or several joined by "+"; the columns are judged together.
        """
        entry = {"columns": None if columns is None else list(columns), "method": method, "alpha": alpha}
        return self._add("drift", {**entry, "effect_min": effect_min, "min_rows": min_rows, "severity": severity})

    def outliers(
        self,
        column: str,
        *,
        method: str = "modified_zscore",
        threshold: float | None = None,
        most: float = 0.01,
        severity: Severity = "warn",
    ) -> Self:
        """At most a share ``most`` of a column's numbers are outliers among the others; else they are the bad rows."""
        entry = {"column": column, "method": method, "threshold": threshold, "most": most}
        return self._add("outliers", {**entry, "severity": severity})

    def on(
        self,
        *,
        error: Action | None = None,
        warn: Action | None = None,
        fatal: Action | None = None,
        persist: int | None = None,
    ) -> Self:
        """What doors do when a check of a severity fails: log, drop, skip, refuse or raise (guards/verdicts.py).

        Until told otherwise: ``error="refuse"``, ``warn="log"``, ``fatal="raise"``. ``persist=k``: a statistic, a drift
        or a share of outliers acts only when it has failed in k windows in a row, which is what tells a change from a
        bad hour; until then it is logged. Checks of rows always act at once: a bad row is bad.
        """
        given: dict[Severity, Action | None] = {"error": error, "warn": warn, "fatal": fatal}
        for severity, action in given.items():
            if action is not None:
                self._actions[severity] = _one_of(action, ACTIONS, f"on({severity}=)")
        if persist is not None:
            if type(persist) is not int or persist < 1:
                raise ConfigError(f"persist: a number of windows from 1, got {persist!r}")
            self.persist = persist
        return self

    # -- asking

    def check(self, rows: Any, reference: Any = None, *, level: Level = "meaning") -> Result:
        """What is wrong with rows, by all checks up to a level; ``reference`` is what a drift is measured from."""
        _one_of(level, LEVELS, "level")
        seen = Rows.of(rows)
        return Result(
            [*self.check_rows(seen, level), *self.check_columns(seen, reference, level)], seen, name=self.name
        )

    def __call__(self, rows: Any, /) -> Result:
        """As a guard without memory: ``check`` of the rows."""
        return self.check(rows)

    def guard(self, reference: Any = None, *, window: int = 1_000) -> StreamGuard:
        """A guard for a stream of batches, which judges statistics and drift over windows of rows, and has a state."""
        from poolish.guards.stream_guard import StreamGuard

        return StreamGuard(self, reference, window=window)

    def profile(self, rows: Any) -> Any:
        """A ``Profile`` of the columns that this suite is about, or of all, to be kept as a reference."""
        from poolish.guards.profile import Profile

        seen = Rows.of(rows)
        names = [name for name in self.columns if name in seen] or seen.names
        return Profile.of(seen.to_arrow(names))

    @property
    def columns(self) -> list[str]:
        """The columns that the suite speaks of."""
        row_checks, others = self._checks()
        named = [name for check, _ in row_checks for name in check.columns]
        named += [name for other in others for name in other.columns or ()]
        return list(dict.fromkeys(named))

    def check_rows(self, rows: Rows, level: Level = "meaning", *, only: bool = False) -> list[Verdict]:
        """The verdicts of the checks of rows up to a level, or of that level only."""
        asked = [
            (check, severity)
            for check, severity in self._checks()[0]
            if check.level == level or (not only and _is_within(check.level, level))
        ]
        extra = self._extra_columns(rows) if level == "format" or not only else []
        return [*extra, *(self._judged(check, severity, rows) for check, severity in asked)]

    def check_columns(self, rows: Rows, reference: Any = None, level: Level = "meaning") -> list[Verdict]:
        """The verdicts of the checks of whole columns."""
        if not _is_within("statistics", level):
            return []
        checks = self._checks()[1]
        return [v for check in checks for v in check.judge(rows, reference, self._actions[check.severity])]

    def has_distributions(self) -> bool:
        """Whether anything is asked of columns as a whole."""
        return bool(self._checks()[1])

    def distribution_columns(self) -> list[str] | None:
        """The columns of which something is asked as a whole; None for all of them."""
        named = [check.columns for check in self._checks()[1]]
        if any(columns is None for columns in named):
            return None
        return list(dict.fromkeys(name for columns in named for name in columns or ()))

    # -- as plain values, and in files

    def to_dict(self) -> dict[str, Any]:
        """The suite as plain values, without what is as it would be anyway."""
        told: dict[str, Any] = {"suite": self.name, "version": VERSION}
        for kind, entries in self._entries.items():
            if entries:
                told[kind] = [_shortened(kind, entry) for entry in entries]
        if self._entries["schema"] and not self._is_closed:
            told["closed"] = False
        # Not "on", as the method: YAML of 2009 takes that word for true.
        actions: dict[str, Any] = {s: a for s, a in self._actions.items() if a != DEFAULT_ACTIONS[s]}
        if self.persist != 1:
            actions["persist"] = self.persist
        return told | ({"actions": actions} if actions else {})

    @classmethod
    def from_dict(cls, told: Any, *, source: str = "suite") -> Suite:
        """The suite that ``to_dict`` told of; every key and value is checked, and a wrong one named with its place."""
        if not isinstance(told, Mapping):
            raise ConfigError(f"{source}: a suite is a table of names and values, got {type(told).__name__}")
        _check_keys(told, _TOP, source)
        if told.get("version", VERSION) != VERSION:
            raise ConfigError(f"{source}: version {told['version']!r} of suites is not known here, only {VERSION}")
        try:
            suite = cls(told.get("suite", "suite"))
        except ConfigError as error:
            raise ConfigError(f"{source}: suite: {error}") from None
        for kind in _KEYS:
            entries = told.get(kind, [])
            if not isinstance(entries, Sequence) or isinstance(entries, str):
                raise ConfigError(f"{source}: {kind} is a list of entries, got {entries!r}")
            for i, entry in enumerate(entries):
                if not isinstance(entry, Mapping):
                    raise ConfigError(f"{source}: {kind}[{i}] is a table of names and values, got {entry!r}")
                try:
                    suite._add(kind, dict(entry))
                except ConfigError as error:
                    raise ConfigError(f"{source}: {kind}[{i}]: {error}") from None
        suite._is_closed = bool(suite._entries["schema"]) and told.get("closed", True) is True
        actions = told.get("actions", {})
        if not isinstance(actions, Mapping):
            raise ConfigError(f"{source}: actions is a table of severities and actions, got {actions!r}")
        _check_keys(actions, (*SEVERITIES, "persist"), f"{source}: actions")
        try:
            return suite.on(**actions)
        except ConfigError as error:
            raise ConfigError(f"{source}: actions: {error}") from None

    def to_yaml(self) -> str:
        """The suite as YAML text."""
        from poolish.guards.suite_files import to_yaml

        return to_yaml(self.to_dict())

    def to_toml(self) -> str:
        """The suite as TOML text."""
        from poolish.guards.suite_files import to_toml

        return to_toml(self.to_dict())

    @classmethod
    def from_yaml(cls, text: str, *, source: str = "suite") -> Suite:
        """The suite in YAML text; nothing in it is executed."""
        from poolish.guards.suite_files import from_yaml

        return cls.from_dict(from_yaml(text, source), source=source)

    @classmethod
    def from_toml(cls, text: str, *, source: str = "suite") -> Suite:
        """The suite in TOML text."""
        from poolish.guards.suite_files import from_toml

        return cls.from_dict(from_toml(text, source), source=source)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the suite into a ``.yaml``, ``.yml`` or ``.toml`` file, whole or not at all."""
        from poolish.guards.suite_files import write

        write(path, self.to_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Suite:
        """The suite in a file; nothing in it is executed."""
        from poolish.guards.suite_files import read

        return cls.from_dict(read(path), source=os.fspath(path))

    @property
    def fingerprint(self) -> str:
        """16 hex digits that change with everything the suite says."""
        return xxhash.xxh3_64_hexdigest(json.dumps(self.to_dict(), sort_keys=True).encode())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Suite) and self.fingerprint == other.fingerprint

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        row_checks, others = self._checks()
        lines = [f"  {severity}: {', '.join(check.columns)} {check.rule}" for check, severity in row_checks]
        lines += [f"  {check.severity}: {check}" for check in others]
        return "\n".join([f"Suite({self.name!r}), {len(lines)} checks", *lines])

    def _repr_html_(self) -> str:
        row_checks, others = self._checks()
        lines = [(", ".join(check.columns), check.rule, check.level, severity) for check, severity in row_checks]
        lines += [(", ".join(each.columns or ("all",)), str(each), "statistics", each.severity) for each in others]
        return str(html.table(("columns", "rule", "level", "severity"), lines, caption=self.name))

    # -- inside

    def _add(self, kind: str, entry: Entry) -> Self:
        _check_keys(entry, _KEYS[kind], kind)
        self._entries[kind].append(_NORMALIZED[kind](entry))
        return self._changed()

    def _changed(self) -> Self:
        self._made = None
        return self

    def _checks(self) -> tuple[list[tuple[RowCheck, Severity]], list[DistributionCheck]]:
        if self._made is None:
            self._made = _row_checks(self._entries), _distribution_checks(self._entries)
        return self._made

    def _judged(self, check: RowCheck, severity: Severity, rows: Rows) -> Verdict:
        detail, bad = "", None
        try:
            bad = check.bad(rows)
        except Unfit as why:
            if self._may_be_missing(check, rows):
                return self._verdict(check, severity, rows, None, "it may be missing, and is")
            detail, bad = str(why), np.ones(len(rows), np.bool_)
        return self._verdict(check, severity, rows, bad, detail)

    def _verdict(self, check: RowCheck, severity: Severity, rows: Rows, bad: Mask | None, detail: str) -> Verdict:
        n_bad = 0 if bad is None else int(np.count_nonzero(bad))
        has_failed = n_bad > 0 or (bad is not None and bool(detail))  # a column can be wrong without a row
        return Verdict(
            check.rule,
            check.columns,
            severity,
            check.level,
            "failed" if has_failed else "ok",
            len(rows),
            n_bad,
            detail,
            examples_of(rows, check.columns, bad) if bad is not None and n_bad else (),
            action=self._actions[severity],
            bad=bad if has_failed else None,
            says_columns=isinstance(check, Holds) or (isinstance(check, Unique) and len(check.columns) > 1),
        )

    def _may_be_missing(self, check: RowCheck, rows: Rows) -> bool:
        optional = {entry["column"] for entry in self._entries["schema"] if entry["nullable"]}
        return all(name in rows or name in optional for name in check.columns) and not all(
            name in rows for name in check.columns
        )

    def _extra_columns(self, rows: Rows) -> list[Verdict]:
        if not self._is_closed:
            return []
        known = [entry["column"] for entry in self._entries["schema"]]
        extra = [name for name in rows.names if name not in known]
        detail = f"column {extra[0]!r} is not in the schema, only {known}" if extra else ""
        bad = np.ones(len(rows), np.bool_) if extra else None
        return [
            Verdict(
                "there are no other columns",
                (),
                "error",
                "format",
                "failed" if extra else "ok",
                len(rows),
                len(rows) if extra else 0,
                detail,
                action=self._actions["error"],
                bad=bad,
            )
        ]


# Entries ----------------------------------------------------------------------------------------------------------


def _schema_entry(field: Any) -> Entry:
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
    return {"column": column, **normal_rules(column, rules), "severity": _severity(entry, "expect")}


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
    if type(min_rows) is not int or min_rows < 1:
        raise ConfigError(f"drift: min_rows is a number of rows from 1, got {min_rows!r}")
    return {
        "columns": None if entry.get("columns") is None else _columns(entry),
        "method": "+".join(_one_of(word, DRIFT_METHODS, "drift: method") for word in words),
        "alpha": alpha,
        "effect_min": None if effect_min is None else number(effect_min, "drift: effect_min"),
        "min_rows": min_rows,
        "severity": _severity(entry, "drift"),
    }


def _normal_outliers(entry: Entry) -> Entry:
    most, threshold = number(entry.get("most", 0.01), "outliers: most"), entry.get("threshold")
    if not 0 <= most < 1:
        raise ConfigError(f"outliers: most is the share that is usual, from 0 to below 1, got {most!r}")
    return {
        "column": _column(entry),
        "method": _one_of(entry.get("method", "modified_zscore"), OUTLIER_METHODS, "outliers: method"),
        "threshold": None if threshold is None else number(threshold, "outliers: threshold"),
        "most": most,
        "severity": _severity(entry, "outliers"),
    }


_NORMALIZED = {
    "schema": _normal_schema,
    "expect": _normal_expect,
    "rows": _normal_rows,
    "unique": _normal_unique,
    "checks": _normal_checks,
    "stat": _normal_stat,
    "drift": _normal_drift,
    "outliers": _normal_outliers,
}


def _row_checks(entries: Mapping[str, list[Entry]]) -> list[tuple[RowCheck, Severity]]:
    made: list[tuple[RowCheck, Severity]] = []
    for kind in ("schema", "expect"):
        for entry in entries[kind]:
            rules = {name: value for name, value in entry.items() if name not in ("column", "severity")}
            made += [(check, entry.get("severity", "error")) for check in checks_of(entry["column"], rules)]
    made += [(Unique(tuple(entry["columns"])), entry["severity"]) for entry in entries["unique"]]
    made += [(rows_check(entry["rule"]), entry["severity"]) for entry in entries["rows"]]
    made += [(Custom(entry["check"], tuple(entry["columns"])), entry["severity"]) for entry in entries["checks"]]
    return made


def _distribution_checks(entries: Mapping[str, list[Entry]]) -> list[DistributionCheck]:
    made: list[DistributionCheck] = []
    for entry in entries["stat"]:
        ranges = {name: bounds_of(told) for name, told in entry.items() if name in STATISTICS}
        made.append(StatCheck(entry["column"], ranges, entry["severity"]))
    for entry in entries["drift"]:
        chosen = None if entry["columns"] is None else tuple(entry["columns"])
        options = {name: value for name, value in entry.items() if name != "columns"}
        made.append(DriftCheck(chosen, **options))
    made += [OutlierCheck(**entry) for entry in entries["outliers"]]
    return made


def _shortened(kind: str, entry: Entry) -> Entry:
    """An entry without what it would have anyway, and without None, which TOML has no word for."""
    usual: Entry = {
        "severity": "warn" if kind in _MILD else "error",
        **({"method": "psi", "alpha": 0.05, "min_rows": 50} if kind == "drift" else {}),
        **({"method": "modified_zscore", "most": 0.01} if kind == "outliers" else {}),
        **({"nullable": False} if kind == "schema" else {}),
        **({"columns": []} if kind == "checks" else {}),
    }
    return {name: value for name, value in entry.items() if value is not None and usual.get(name, _NONE) != value}


_NONE = object()


def _check_keys(found: Mapping[Any, Any], known: Sequence[str], where: str) -> None:
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
    severity: Severity = _one_of(entry.get("severity", "warn" if kind in _MILD else "error"), SEVERITIES, "severity")
    return severity


def _one_of(value: Any, known: Sequence[Any], where: str) -> Any:
    if value not in known:
        near = get_close_matches(str(value), known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"{where}: one of {', '.join(map(repr, known))}, got {value!r}{hint}")
    return value


def _is_within(level: Level, limit: Level) -> bool:
    return LEVELS.index(level) <= LEVELS.index(limit)
