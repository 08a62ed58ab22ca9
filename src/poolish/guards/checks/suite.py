"""Suite: what you expect of your data, stated once and checked at every boundary.

A suite is plain values: names, numbers and text. So it is written to a file and read back without a change, compared,
edited by hand, and nothing in it is ever executed. ``entries`` has the table of what it can say, ``checks`` the checks
of rows, and ``distributions`` those of columns as a whole.

    Suite --check(rows)--> Result            all at once: a file, a buffer, a batch
          --guard(window=)--> StreamGuard    batch after batch, statistics over windows, with state
          itself, called                     a guard without memory, for any boundary that takes one

What can only be judged against good data (drift, outliers by a fitted detector) needs a reference. ``fit`` gives a copy
of the suite that carries one, for boundaries and recipes; its values stay plain, and the reference is a file of its
own.

A suite is built in place until a boundary, a ``StreamGuard`` or a recipe uses it. From then on it refuses changes, so
no boundary is disarmed by a change made for another one; ``copy`` gives one that can be changed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import xxhash

from poolish import html
from poolish.columns import NotApplicable, TableView
from poolish.errors import ConfigError
from poolish.files import local_path, publish
from poolish.guards.checks.checks import RowCheck, Unique
from poolish.guards.checks.custom import Holds
from poolish.guards.checks.distributions import ColumnCheck, Reference, reference_of
from poolish.guards.checks.entries import (
    DEFAULT_ACTIONS,
    KINDS,
    ON,
    VERSION,
    Entry,
    Kind,
    WrongValues,
    checks_of,
    fitted_entries,
    read_entry,
    schema_entry,
    shortened,
)
from poolish.guards.checks.one_row import RowTest, row_test_of
from poolish.guards.checks.stream import StreamGuard
from poolish.guards.checks.values import differences
from poolish.guards.checks.verdicts import (
    LEVELS,
    SEVERITIES,
    Action,
    Level,
    Result,
    Severity,
    Verdict,
    examples_of,
    level_named,
)
from poolish.guards.stats.outliers import OUTLIER_METHODS
from poolish.guards.stats.profile import Profile
from poolish.printable import counted, printable
from poolish.schema import Schema

_INSTEAD = "fsspec.open(url), with the text of to_yaml() and from_yaml()"


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

    A suite that guards something cannot be changed any more, only copied: ``suite.copy().on(error="drop")``.

    A null passes all checks but ``nullable=False``. Rows may be a ``pa.Table``, a buffer, a data frame, a dict of
    columns (arrays, tensors, lists) or a list of dicts.
    """

    def __init__(self, name: str = "suite") -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"name: a suite is called by text that is not empty, got {name!r}")
        self._name = name
        self._entries: dict[str, list[Entry]] = {kind: [] for kind in KINDS}
        self._is_closed = False
        self._actions: dict[Severity, Action] = dict(DEFAULT_ACTIONS)
        self._persist = 1
        self._made: tuple[list[tuple[RowCheck, Severity]], list[ColumnCheck]] | None = None

    #: What uses it, once something does.
    _user: str | None = None
    #: What it was fitted on, once it is.
    _reference: Reference | None = None

    @property
    def name(self) -> str:
        """Its name in verdicts and logs."""
        return self._name

    @property
    def persist(self) -> int:
        """In how many windows in a row a statistic has to fail before it acts."""
        return self._persist

    def copy(self) -> Self:
        """An equal suite that can be changed, whatever uses this one.

        >>> from poolish import DatasetBuffer
        >>> strict = Suite("rewards").expect("reward", finite=True)
        >>> buffer = DatasetBuffer(guard=strict)
        >>> lenient = strict.copy().on(error="drop")
        >>> buffer.append([{"reward": 1.0}, {"reward": float("nan")}], guard=lenient)
        >>> len(buffer), strict == lenient
        (1, False)
        """
        copied = type(self).__new__(type(self))
        vars(copied).update(deepcopy(vars(self) | {"_made": None}), _user=None)
        return copied

    __copy__ = copy

    def in_use(self, user: str, reference: Any = None) -> Self:
        """Itself, as ``user`` (a boundary, a guard, a recipe) keeps it: from now on every change is an error.

        A suite that asks for drift, or for outliers by a fitted method, needs a reference; without one those checks
        would always pass.
        """
        lacking = [f"outliers by {entry['method']}" for entry in self._unfitted()]
        lacking += ["drift"] if self._entries["drift"] and self._reference is None else []
        if lacking and reference is None:
            raise ConfigError(
                f"{user}: suite {self.name!r} asks for {' and '.join(lacking)}, and there is no reference to judge by; "
                "pass suite.fit(reference), or suite.guard(reference, window=...), which watches windows"
            )
        self._user = self._user or user
        self._checks()  # so that the first rows do not wait for it
        return self

    # -- building

    def schema(self, schema: Any, *, closed: bool = True) -> Self:
        """Columns, types, shapes and nullability as a schema says; anything that describes one is taken.

        A nullable column may be missing. ``closed``: there are no other columns.
        """
        self._check_changeable()
        entries = [schema_entry(field) for field in Schema.of(schema)]
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
        """An expression that every row makes true: ``"end >= start and price > 0"``; see docs/recipes.md."""
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
        column: str | None = None,
        *,
        columns: Sequence[str] | None = None,
        method: str = "modified_zscore",
        threshold: float | None = None,
        most: float | None = None,
        severity: Severity = "warn",
        **options: Any,
    ) -> Self:
        """Values, or rows, are not far from the others.

        ``zscore``, ``iqr`` and ``modified_zscore`` judge each column by itself: at most a share ``most`` (0.01) of its
        numbers are outliers among the others, else they are the bad rows.

        ``isolation_forest``, ``one_class_svm`` and ``autoencoder`` judge a row by all ``columns`` together (all that
        hold numbers, if none are named), against the reference they are fitted on: ``suite.fit(reference)``. Each
        outlier is a bad row. ``contamination`` (0.01) is the share of the reference beyond the threshold; ``seed`` and
        the other options are those of ``guards.IsolationForestOutliers``, ``OneClassSVMOutliers`` and
        ``AutoencoderOutliers``. A null passes; NaN and infinities are outliers.

        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=1_000)
        >>> suite = Suite("pairs").outliers(columns=["x", "y"], method="one_class_svm", severity="error")
        >>> fitted = suite.fit({"x": x, "y": x + rng.normal(0, 0.1, 1_000)})
        >>> fitted.check({"x": [0.0, 2.0], "y": [0.0, -2.0]}).mask
        array([ True, False])
        """
        all_given = {"method": method, "threshold": threshold, "most": most, **options, "severity": severity}
        given = {name: value for name, value in all_given.items() if value is not None}
        names = [column] if column is not None else None if columns is None else list(columns)
        if method not in OUTLIER_METHODS:
            return self._add("outliers", {**given, "columns": names})
        if not names:
            raise ConfigError(f"outliers: {method} judges columns by themselves; name one, or columns=[...]")
        for name in names:
            self._add("outliers", {"column": name, **given})
        return self

    def on(
        self,
        *,
        error: Action | None = None,
        warn: Action | None = None,
        fatal: Action | None = None,
        persist: int | None = None,
    ) -> Self:
        """Choose the action for each severity: log, drop, skip, refuse or raise (guards/checks/verdicts.py).

        The defaults are ``error="refuse"``, ``warn="log"``, ``fatal="raise"``. ``persist=k``: a statistic, a drift
        or a share of outliers acts only when it has failed in k windows in a row, which is what tells a change from a
        bad hour; until then it is logged. Checks of rows always act at once: a bad row is bad.
        """
        self._check_changeable()
        chosen = _read("on", ON, {"error": error, "warn": warn, "fatal": fatal, "persist": persist})
        self._actions |= {severity: action for severity in SEVERITIES if (action := chosen[severity])}
        self._persist = chosen["persist"] or self._persist
        return self

    # -- checking

    def check(self, rows: Any, reference: Any = None, *, level: str | int = "meaning") -> Result:
        """What is wrong with rows, by all checks up to a level.

        ``reference`` is what drift is measured from and detectors are fitted on; fit once (``fit``) to check often.
        """
        wanted, asked = level_named(level), self.fitted_on(reference)
        seen = TableView.of(rows)
        verdicts = [*asked.check_rows(seen, wanted), *asked.check_columns(seen, reference, wanted)]
        return Result(verdicts, seen, name=self.name)

    def __call__(self, rows: Any, /) -> Result:
        """As a guard without memory: ``check`` of the rows."""
        return self.check(rows)

    def guard(self, reference: Any = None, *, window: int = 1_000) -> StreamGuard:
        """A guard for a stream of batches, which judges statistics and drift over windows of rows, and has a state."""
        return StreamGuard(self, reference, window=window)

    def fit(self, reference: Any) -> Self:
        """A copy of the suite that carries its reference, so that boundaries, recipes and ``check`` need no other.

        ``reference`` is good rows, which are profiled and learnt from, or the ``Reference`` that an earlier fit saved.
        isolation_forest and one_class_svm need ``poolish[guards]`` to fit, autoencoder ``poolish[torch]``; a fitted
        suite needs neither.

        >>> suite = Suite("watch").drift(["x"], severity="error")
        >>> fitted = suite.fit({"x": np.arange(1_000.0)})
        >>> fitted.reference
        <Reference of 1 column>
        >>> fitted.check({"x": np.arange(500.0, 1_500.0)}).ok
        False
        """
        fitted = self.copy()
        fitted._reference = reference_of(reference, dict(fitted_entries(self._entries)), self.profile)
        return fitted

    @property
    def reference(self) -> Reference | None:
        """What the suite was fitted on; None before ``fit``. ``reference.save(path)`` keeps it."""
        return self._reference

    def fitted_on(self, reference: Any) -> Self:
        """Itself, or a copy fitted on the reference where a check of this suite still needs that."""
        return self if reference is None or not self._unfitted() else self.fit(reference)

    def _unfitted(self) -> list[Entry]:
        known = {} if self._reference is None else self._reference.detectors
        return [entry for key, entry in fitted_entries(self._entries) if key not in known]

    def profile(self, rows: Any) -> Any:
        """A ``Profile`` of the columns that this suite is about, or of all, to be kept as a reference."""
        seen = TableView.of(rows)
        names = [name for name in self.columns if name in seen] or seen.names
        return Profile.of(seen.to_arrow(names))

    @property
    def columns(self) -> list[str]:
        """The columns that the suite names."""
        row_checks, others = self._checks()
        named = [name for check, _ in row_checks for name in check.columns]
        named += [name for other in others for name in other.columns or ()]
        return list(dict.fromkeys(named))

    def check_rows(self, rows: TableView, level: Level = "meaning", *, only: bool = False) -> list[Verdict]:
        """The verdicts of the checks of rows up to a level, or of that level only."""
        asked = [
            (check, severity)
            for check, severity in self._checks()[0]
            if check.level == level or (not only and _is_within(check.level, level))
        ]
        extra = self._extra_columns(rows) if level == "format" or not only else []
        return [*extra, *(self._judged(check, severity, rows) for check, severity in asked)]

    def row_test(self, schema: pa.Schema) -> RowTest | None:
        """A function of one row's values that is true only if ``check`` finds nothing in it; None if it needs columns.

        A row for which it is false may still pass: only ``check`` says so.
        """
        if type(self) is not Suite or self.has_distributions():
            return None

        def is_fine(rows: TableView) -> bool:
            return all(verdict.ok for verdict in self.check_rows(rows))

        return row_test_of([check for check, _ in self._checks()[0]], schema, is_fine)

    def check_columns(self, rows: TableView, reference: Any = None, level: Level = "meaning") -> list[Verdict]:
        """The verdicts of the checks of whole columns."""
        if not _is_within("statistics", level):
            return []
        checks, known = self._checks()[1], self._measured_from(reference)
        return [v for check in checks for v in check.judge(rows, known, self._actions[check.severity])]

    def _measured_from(self, reference: Any) -> Any:
        """Rows or a profile: the reference that is passed, else its own."""
        known = self._reference if reference is None else reference
        return known.profile if isinstance(known, Reference) else known

    def has_distributions(self) -> bool:
        """Whether it has checks of whole columns."""
        return bool(self._checks()[1])

    def distribution_columns(self) -> list[str] | None:
        """The columns with checks of the whole column; None for all of them."""
        named = [check.columns for check in self._checks()[1]]
        if any(columns is None for columns in named):
            return None
        return list(dict.fromkeys(name for columns in named for name in columns or ()))

    # -- as plain values, and in files

    def to_dict(self) -> dict[str, Any]:
        """The suite as plain values, without what is as it would be anyway."""
        values: dict[str, Any] = {"suite": self.name, "version": VERSION}
        for kind, entries in self._entries.items():
            if entries:
                values[kind] = [shortened(kind, entry) for entry in entries]
        if self._entries["schema"] and not self._is_closed:
            values["closed"] = False
        # Not "on", as the method: YAML of 2009 takes that word for true.
        actions: dict[str, Any] = {s: a for s, a in self._actions.items() if a != DEFAULT_ACTIONS[s]}
        if self.persist != 1:
            actions["persist"] = self.persist
        return values | ({"actions": actions} if actions else {})

    @classmethod
    def from_dict(cls, values: Any, *, source: str = "suite") -> Suite:
        """The suite that ``to_dict`` gave; every key and value is checked, and a wrong one named with its place."""
        from poolish.guards.checks.models import read_suite  # pydantic takes long to load

        file = read_suite(values, source)
        suite = cls(file["suite"])
        suite._entries = {kind: file[kind] for kind in KINDS}
        suite._is_closed = bool(file["schema"]) if file["closed"] is None else file["closed"]
        return suite.on(**file["actions"])

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """The JSON schema of suite files, for editors and validators."""
        from poolish.guards.checks.models import json_schema

        return json_schema()

    def diff(self, other: Suite) -> list[str]:
        """What differs in ``other``, a line for each value.

        >>> Suite("s").expect("x", at_most=1).diff(Suite("s").expect("x", at_most=2, finite=True))
        ['expect[0].at_most: 1 -> 2', 'expect[0].finite: added True']
        """
        return list(differences(self.to_dict(), other.to_dict()))

    def to_yaml(self) -> str:
        """The suite as YAML text."""
        from poolish.files.yaml_toml import dump_yaml  # PyYAML takes long to load

        return dump_yaml(self.to_dict())

    def to_toml(self) -> str:
        """The suite as TOML text."""
        from poolish.files.yaml_toml import dump_toml

        return dump_toml(self.to_dict())

    @classmethod
    def from_yaml(cls, text: str, *, source: str = "suite") -> Suite:
        """The suite in YAML text; nothing in it is executed."""
        from poolish.files.yaml_toml import parse_yaml

        return cls.from_dict(parse_yaml(text, source, what="suite"), source=source)

    @classmethod
    def from_toml(cls, text: str, *, source: str = "suite") -> Suite:
        """The suite in TOML text."""
        from poolish.files.yaml_toml import parse_toml

        return cls.from_dict(parse_toml(text, source, what="suite"), source=source)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the suite into a ``.yaml``, ``.yml`` or ``.toml`` file, whole or not at all; without its reference."""
        place = local_path(path, "Suite.save", instead=_INSTEAD)
        text = self.to_toml() if _is_toml(place) else self.to_yaml()
        with publish(place) as file:
            file.write(text.encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Suite:
        """The suite in a file; nothing in it is executed."""
        from poolish.files.yaml_toml import read_text

        place = local_path(path, "Suite.load", instead=_INSTEAD)
        parse = cls.from_toml if _is_toml(place) else cls.from_yaml
        return parse(read_text(place, what="suite"), source=os.fspath(path))

    @property
    def fingerprint(self) -> str:
        """16 hex digits that change with every entry of the suite, and with the reference that it carries."""
        known = "" if self._reference is None else self._reference.fingerprint
        return xxhash.xxh3_64_hexdigest(json.dumps(self.to_dict(), sort_keys=True).encode() + known.encode())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Suite) and self.fingerprint == other.fingerprint

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        row_checks, others = self._checks()
        lines = [f"  {severity}: {', '.join(check.columns)} {check.rule}" for check, severity in row_checks]
        lines += [f"  {check.severity}: {check}" for check in others]
        return "\n".join(map(printable, [f"Suite({self.name!r}), {counted(len(lines), 'check')}", *lines]))

    def _repr_html_(self) -> str:
        row_checks, others = self._checks()
        lines = [(", ".join(check.columns), check.rule, check.level, severity) for check, severity in row_checks]
        lines += [(", ".join(each.columns or ("all",)), str(each), "statistics", each.severity) for each in others]
        return str(html.table(("columns", "rule", "level", "severity"), lines, caption=self.name))

    # -- inside

    def _add(self, kind: str, entry: Entry) -> Self:
        self._check_changeable()
        self._entries[kind].append(_read(kind, KINDS[kind], entry))
        return self._changed()

    def _check_changeable(self) -> None:
        if self._user is not None:
            raise ConfigError(
                f"suite {self.name!r} is in use ({self._user}), and what guards data does not change; change a copy "
                "and pass that on: suite.copy()"
            )

    def _changed(self) -> Self:
        self._made = None
        return self

    def _checks(self) -> tuple[list[tuple[RowCheck, Severity]], list[ColumnCheck]]:
        if self._made is None:
            detectors = {} if self._reference is None else self._reference.detectors
            self._made = checks_of(self._entries, detectors)
        return self._made

    def _judged(self, check: RowCheck, severity: Severity, rows: TableView) -> Verdict:
        title = Verdict(
            check.rule,
            check.columns,
            severity,
            check.level,
            "ok",
            len(rows),
            action=self._actions[severity],
            says_columns=isinstance(check, Holds) or (isinstance(check, Unique) and len(check.columns) > 1),
        )
        try:
            bad = check.bad(rows)
        except NotApplicable as why:
            if self._may_be_missing(check, rows):
                return replace(title, detail="it may be missing, and is")
            bad = np.ones(len(rows), np.bool_)  # a column can be wrong without a row
            return title.failed(str(why), bad=bad, examples=examples_of(rows, check.columns, bad))
        if bad is None or not bad.any():
            return title
        return title.failed(bad=bad, examples=examples_of(rows, check.columns, bad))

    def _may_be_missing(self, check: RowCheck, rows: TableView) -> bool:
        """Whether all columns that are missing are nullable in the schema."""
        missing = {name for name in check.columns if name not in rows}
        return bool(missing) and missing <= {entry["column"] for entry in self._entries["schema"] if entry["nullable"]}

    def _extra_columns(self, rows: TableView) -> list[Verdict]:
        if not self._is_closed:
            return []
        known = [entry["column"] for entry in self._entries["schema"]]
        extra = [name for name in rows.names if name not in known]
        found = Verdict(
            "there are no other columns", (), "error", "format", "ok", len(rows), action=self._actions["error"]
        )
        if not extra:
            return [found]
        return [
            found.failed(f"column {extra[0]!r} is not in the schema, only {known}", bad=np.ones(len(rows), np.bool_))
        ]


def _read(name: str, kind: Kind, given: Mapping[str, Any]) -> Entry:
    try:
        return read_entry(kind, given)
    except WrongValues as wrong:
        raise wrong.at(name) from None


def _is_within(level: Level, limit: Level) -> bool:
    """Whether checking up to ``limit`` includes a level."""
    return LEVELS.index(level) <= LEVELS.index(limit)


def _is_toml(path: str | os.PathLike[str]) -> bool:
    ending = Path(path).suffix.lower()
    if ending not in (".toml", ".yaml", ".yml"):
        raise ConfigError(f"{os.fspath(path)}: a suite is kept in a .yaml, .yml or .toml file")
    return ending == ".toml"
