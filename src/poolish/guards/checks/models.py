"""Suite files: one pydantic model for each kind of entry, and one for the file.

They give parsing, errors with the place and the nearest name, and the JSON schema. A suite that is built in code passes
the same models, entry by entry. In memory an entry is the plain dict that a model returns, and checks are the frozen
dataclasses of ``checks`` and ``column_checks``; pydantic is loaded when the first entry is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, create_model, model_validator

from poolish.errors import ConfigError, LimitExceeded, PoolishError
from poolish.guards.checks.column_checks import STATISTICS
from poolish.guards.checks.reference import detector_of
from poolish.guards.checks.rules import (
    DEFAULTS,
    RULES,
    SEVERITY_OF,
    Entry,
    Rule,
    check_name,
    check_opposites,
    column_name,
    column_names,
    flag,
    nearest,
    number,
    one_of,
    plain,
    range_of,
    row_rule,
    whole_number,
)
from poolish.guards.checks.verdicts import ACTIONS, SEVERITIES, Action, Severity
from poolish.guards.stats.detectors import DETECTOR_OPTIONS, DETECTORS
from poolish.guards.stats.distances import DISTANCES
from poolish.guards.stats.outliers import OUTLIER_METHODS

VERSION = 1


def _checked(type_: Any, normalize: Callable[[Any], Any]) -> Any:
    """A type whose values are normalized by a function, and described in the JSON schema by ``type_``."""
    return Annotated[type_, PlainValidator(normalize, json_schema_input_type=type_)]


def _optional(normalize: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else normalize(value)


ColumnName: Any = _checked(str, column_name)
ColumnNames: Any = _checked(list[str], column_names)
SeverityName: Any = _checked(Severity, partial(one_of, known=SEVERITIES))
ActionName: Any = _checked(Action | None, _optional(partial(one_of, known=ACTIONS)))


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Entry(_Model):
    severity: SeverityName = "error"

    def entry(self, given: Mapping[str, Any]) -> Entry:
        """The entry as plain values, all fields in the order of the model, severity last."""
        names = [name for name in type(self).model_fields if name != "severity"]
        return {**{name: getattr(self, name) for name in names}, "severity": self.severity}


class _ColumnEntry(_Entry):
    """Keywords about one column; an entry has those that were given, in their order."""

    column: ColumnName = Field(description="the name of a column")

    def entry(self, given: Mapping[str, Any]) -> Entry:
        keywords = [name for name in given if name not in ("column", "severity")]
        return {"column": self.column, **{name: getattr(self, name) for name in keywords}, "severity": self.severity}


def _rule_field(rule: Rule) -> Any:
    return _checked(rule.type, rule.normalize), Field(None, description=rule.help)


class _SchemaEntry(_Model):
    column: ColumnName = Field(description="the name of a column")

    def entry(self, given: Mapping[str, Any]) -> Entry:
        names = dict.fromkeys(("column", "nullable", *given))
        return {name: getattr(self, name) for name in names}


_of_schema: Any = {name: _rule_field(RULES[name]) for name in ("type", "dtype", "shape")}
SchemaEntry: Any = create_model(
    "SchemaEntry",
    __base__=_SchemaEntry,
    **_of_schema,
    nullable=(_checked(bool, flag), Field(False, description=RULES["nullable"].help)),
)


class _ExpectEntry(_ColumnEntry):
    @model_validator(mode="after")
    def _has_rules(self) -> _ExpectEntry:
        given = {name: getattr(self, name) for name in self.model_fields_set if name in RULES}
        if not given:
            raise ConfigError("nothing is expected of it; pass rules such as finite=True")
        check_opposites(given)
        return self


_of_expect: Any = {name: _rule_field(rule) for name, rule in RULES.items()}
ExpectEntry: Any = create_model("ExpectEntry", __base__=_ExpectEntry, **_of_expect)


RowRule: Any = _checked(str, row_rule)


class RowsEntry(_Entry):
    """An expression that every row makes true."""

    rule: RowRule = Field(description="an expression")


class UniqueEntry(_Entry):
    """Columns in which no two rows agree."""

    columns: ColumnNames = Field(description="a list of names")

    @model_validator(mode="after")
    def _has_columns(self) -> UniqueEntry:
        if not self.columns:
            raise ConfigError("name at least one column")
        return self


CheckName: Any = _checked(str, check_name)


class CustomEntry(_Entry):
    """A registered function."""

    check: CheckName = Field(description="the name of a check that was registered")
    columns: ColumnNames = []


class _StatEntry(_ColumnEntry):
    severity: SeverityName = SEVERITY_OF["stat"]

    @model_validator(mode="after")
    def _has_ranges(self) -> _StatEntry:
        if not self.model_fields_set & STATISTICS.keys():
            raise ConfigError("no statistic is named; pass a range such as mean=(0, 1)")
        return self


_Range = list[int | float | None] | dict[Literal["at_least", "at_most"], int | float]
_of_stat: Any = {name: (_checked(_Range, range_of), None) for name in STATISTICS}
StatEntry: Any = create_model("StatEntry", __base__=_StatEntry, **_of_stat)


def _drift_columns(value: Any) -> list[str] | None:
    names = None if value is None else column_names(value)
    if names == []:
        raise ConfigError("no column is named, so nothing would be compared; leave out columns= for all of them")
    return names


def _drift_method(value: Any) -> str:
    return "+".join(one_of(word, tuple(DISTANCES)) for word in str(value).split("+"))


def _alpha(value: Any) -> float:
    if not 0 < number(value) < 1:
        raise ConfigError(f"the rate of false alarms, between 0 and 1, got {value!r}")
    return number(value)


def _effect_min(value: Any) -> float | None:
    if value is not None and number(value) < 0:
        raise ConfigError(f"a distance from 0, got {value!r}")
    return None if value is None else number(value)


DriftColumns: Any = _checked(list[str] | None, _drift_columns)


DriftMethod: Any = _checked(str, _drift_method)


Alpha: Any = _checked(float, _alpha)


EffectMin: Any = _checked(float | None, _effect_min)


RowCount: Any = _checked(int, partial(whole_number, least=1, what="a number of rows"))


class DriftEntry(_Entry):
    """Columns that have not drifted from the reference."""

    columns: DriftColumns = None
    method: DriftMethod = DEFAULTS["drift"]["method"]
    alpha: Alpha = DEFAULTS["drift"]["alpha"]
    effect_min: EffectMin = None
    min_rows: RowCount = DEFAULTS["drift"]["min_rows"]
    severity: SeverityName = SEVERITY_OF["drift"]


def _threshold(value: Any) -> float | None:
    if value is not None and number(value) <= 0:
        raise ConfigError(f"a distance above 0, got {value!r}")
    return None if value is None else number(value)


def _most(value: Any) -> float:
    if not 0 <= number(value) < 1:
        raise ConfigError(f"the share that is usual, from 0 to below 1, got {value!r}")
    return number(value)


OptionalName: Any = _checked(str | None, _optional(column_name))


OptionalNames: Any = _checked(list[str] | None, _optional(column_names))


OutlierMethod: Any = _checked(str, partial(one_of, known=(*OUTLIER_METHODS, *DETECTORS)))


Threshold: Any = _checked(float | None, _threshold)


Share: Any = _checked(float, _most)


class _OutliersEntry(_Entry):
    """Values far from the others of their column, or rows unlike those that a detector was fitted on."""

    column: OptionalName = None
    columns: OptionalNames = None
    method: OutlierMethod = DEFAULTS["outliers"]["method"]
    threshold: Threshold = None
    most: Share = DEFAULTS["outliers"]["most"]
    severity: SeverityName = SEVERITY_OF["outliers"]

    @model_validator(mode="after")
    def _has_the_options_of_its_method(self) -> _OutliersEntry:
        self.entry({name: getattr(self, name) for name in self.model_fields_set})
        return self

    def entry(self, given: Mapping[str, Any]) -> Entry:
        named = {name: value for name, value in given.items() if value is not None}
        return self._of_detector(named) if self.method in DETECTORS else self._of_column(named)

    def _of_detector(self, given: Mapping[str, Any]) -> Entry:
        for name in _OF_COLUMN:
            if name in given:
                instead = "columns=[...]" if name == "column" else "contamination, the share of the reference beyond it"
                raise ConfigError(f"{self.method} has no {name}; it takes {instead}")
        columns = self.columns
        if columns is not None and (not columns or len(set(columns)) < len(columns)):
            raise ConfigError(f"columns are different names, or left out for all numbers, got {columns!r}")
        options = {name: getattr(self, name) for name in given if name not in ("columns", "method", "severity")}
        arguments = detector_of(self.method, options).arguments()
        return {"columns": columns, "method": self.method, **arguments, "severity": self.severity}

    def _of_column(self, given: Mapping[str, Any]) -> Entry:
        for name in given:
            if name not in (*_OF_COLUMN, "method", "severity"):
                others = ", ".join(DETECTORS)
                raise ConfigError(f"{name} is for {others}; {self.method} takes {', '.join(_OF_COLUMN)}")
        names = ("column", "method", "threshold", "most", "severity")
        column_name(self.column)
        return {name: getattr(self, name) for name in names}


#: What a method that judges a column by itself takes, and a fitted one does not.
_OF_COLUMN = ("column", "threshold", "most")
_of_outliers: Any = {name: (Any, None) for options in DETECTOR_OPTIONS.values() for name in options}
OutliersEntry: Any = create_model("OutliersEntry", __base__=_OutliersEntry, **_of_outliers)


WindowCount: Any = _checked(int | None, _optional(partial(whole_number, least=1, what="a number of windows")))


class Actions(_Model):
    """What a boundary does when a check of a severity fails."""

    error: ActionName = None
    warn: ActionName = None
    fatal: ActionName = None
    persist: WindowCount = None


def _suite_name(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"a suite is called by text that is not empty, got {value!r}")
    return value


def _version(value: Any) -> int:
    if value != VERSION:
        raise ConfigError(f"version {value!r} of suites is not known here, only {VERSION}")
    return VERSION


SuiteName: Any = _checked(str, _suite_name)


Version: Any = _checked(Literal[1], _version)


Flag: Any = _checked(bool, flag)


class SuiteFile(_Model):
    """What a suite expects of rows, columns and their distributions."""

    suite: SuiteName = "suite"
    version: Version = VERSION
    schema_: list[SchemaEntry] = Field([], alias="schema")
    expect: list[ExpectEntry] = []
    rows: list[RowsEntry] = []
    unique: list[UniqueEntry] = []
    checks: list[CustomEntry] = []
    stat: list[StatEntry] = []
    drift: list[DriftEntry] = []
    outliers: list[OutliersEntry] = []
    closed: Flag = None
    actions: Actions = Actions()

    @model_validator(mode="after")
    def _is_closed_by_a_schema(self) -> SuiteFile:
        if self.closed and not self.schema_:
            raise ConfigError("closed is for a suite that has a schema")
        return self


_MODELS: dict[str, Any] = {
    "schema": SchemaEntry,
    "expect": ExpectEntry,
    "rows": RowsEntry,
    "unique": UniqueEntry,
    "checks": CustomEntry,
    "stat": StatEntry,
    "drift": DriftEntry,
    "outliers": OutliersEntry,
    "actions": Actions,
}


def read_entry(kind: str, values: Mapping[str, Any]) -> Entry:
    """An entry as plain, checked values.

    >>> read_entry("expect", {"column": "x", "between": (0, 1), "severity": "warn"})
    {'column': 'x', 'between': [0, 1], 'severity': 'warn'}
    """
    given = plain(dict(values))
    try:
        entry: Entry = _MODELS[kind].model_validate(given).entry(given)
    except ValidationError as error:
        raise _refusal(error, lambda each: f"{kind}: {_message(each, _MODELS[kind], given)}") from None
    return entry


def read_actions(values: Mapping[str, Any]) -> Actions:
    """The actions of a suite, checked."""
    try:
        return Actions.model_validate(plain(dict(values)))
    except ValidationError as error:
        raise _refusal(error, lambda each: f"on: {_message(each, Actions, values)}") from None


def read_suite(values: Any, source: str) -> tuple[SuiteFile, dict[str, list[Entry]]]:
    """The values of a suite file, checked, and its entries by kind; a ConfigError names every wrong one."""
    given = plain(values)
    try:
        file = SuiteFile.model_validate(given)
    except ValidationError as error:
        raise _refusal(error, lambda each: f"{source}: {_located(each, given)}") from None
    entries = {
        kind: [
            model.entry(raw)
            for model, raw in zip(getattr(file, _FIELDS.get(kind, kind)), given.get(kind, []), strict=True)
        ]
        for kind in SEVERITY_OF
    }
    return file, entries


_FIELDS = {"schema": "schema_"}


def json_schema() -> dict[str, Any]:
    """The JSON schema of suite files."""
    return SuiteFile.model_json_schema(by_alias=True)


# Messages -----------------------------------------------------------------------------------------------------------


def _refusal(error: ValidationError, message: Callable[[Any], str]) -> PoolishError:
    """The error for wrong values, a line for each; what is beyond a limit stays a ``LimitExceeded``."""
    found = error.errors()
    is_beyond = any(isinstance(each.get("ctx", {}).get("error"), LimitExceeded) for each in found)
    return (LimitExceeded if is_beyond else ConfigError)("\n".join(map(message, found)))


def _located(error: Any, given: Any) -> str:
    """One error of a file, with its place."""
    kind, *rest = error["loc"] or ("",)
    if kind not in _MODELS or not rest:
        return _message(error, SuiteFile, given)
    if kind == "actions":
        return f"actions: {_message({**error, 'loc': rest}, Actions, given[kind])}"
    i, *inner = rest
    if not isinstance(given[kind][i], Mapping):
        return f"{kind}[{i}] is a table of names and values, got {error['input']!r}"
    return f"{kind}[{i}]: {_message({**error, 'loc': inner}, _MODELS[kind], given[kind][i])}"


def _message(error: Any, model: Any, given: Any) -> str:
    """What is wrong with a value: its column, its name, the rule and the value."""
    name = str(error["loc"][0]) if error["loc"] else ""
    if error["type"] == "extra_forbidden":
        known = [field.alias or key for key, field in model.model_fields.items()]
        hint = nearest(name, known) or f"; known are {', '.join(known)}"
        return f"unknown key {name!r}{hint}"
    if error["type"] == "missing":
        return f"{name}: {model.model_fields[name].description}, got None"
    if error["type"] == "list_type":
        return f"{name} is a list of entries, got {error['input']!r}"
    if error["type"] in ("model_type", "model_attributes_type"):
        return f"{name or 'a suite'} is a table of names and values, got {type(error['input']).__name__}"
    why = str(error.get("ctx", {}).get("error", error["msg"]))
    column = given.get("column") if isinstance(given, Mapping) else None
    where = [f"column {column!r}"] if column is not None else []
    return ": ".join([*where, *([name] if name else []), why])
