"""The verdicts of checks, with counts and examples, and together a result that says which rows may pass.

    check --> Verdict   ok or not, how many rows are bad and which, or what was measured against which threshold
    suite --> Result    all verdicts; ``mask`` True for good rows; ``kept`` True for rows that may pass the boundary

The *outcome* of a check, a result or a report is one word: "ok" if nothing was found, "warning" if checks of severity
warn failed and no others, else "failed". A check that could not judge says why in its status, and is counted.

A failing check has a *severity* (warn, error, fatal), and for each severity ``Suite.on`` chooses an *action*, which is
what a boundary does. From the mildest to the strictest:

    log      everything passes; it is logged and counted
    drop     the bad rows stay out, the others pass; where no row is to blame (a mean, a drift), the whole batch does
    skip     the whole batch stays out, and the run goes on
    refuse   the whole batch stays out; an error where a caller can act on it (append, a consumer), quarantine where
             no caller can (a provider)
    raise    an error, everywhere

If several checks fail, the strictest of their actions counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa

from poolish import html
from poolish.columns import Mask, NotApplicable, TableView
from poolish.concurrency import cached_property
from poolish.errors import ConfigError, DataRefused
from poolish.printable import counted, printable

Severity = Literal["warn", "error", "fatal"]
Action = Literal["log", "drop", "skip", "refuse", "raise"]
Level = Literal["file", "format", "statistics", "meaning"]
Outcome = Literal["ok", "warning", "failed"]

SEVERITIES: tuple[Severity, ...] = get_args(Severity)
ACTIONS: tuple[Action, ...] = get_args(Action)
LEVELS: tuple[Level, ...] = get_args(Level)
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The gravest outcome; "ok" of none.

    >>> worst(["ok", "failed", "warning"])
    'failed'
    """
    return max(outcomes, key=OUTCOMES.index, default="ok")


def level_named(level: object) -> Level:
    """A level by its name or its number; "semantics" is another name of the last one.

    >>> level_named(3), level_named("file"), level_named("semantics")
    ('statistics', 'file', 'meaning')
    """
    text = str(level) if type(level) is int else level
    found = next((each for number, each in enumerate(LEVELS, 1) if text in (each, str(number))), None)
    if found is None and text == "semantics":
        return "meaning"
    if found is None:
        raise ConfigError(f"level {level!r}: one of {', '.join(f'{n} {each}' for n, each in enumerate(LEVELS, 1))}")
    return found


MAX_EXAMPLES = 3
MAX_VALUE = 60


@dataclass(frozen=True)
class Example:
    """A bad row: its number in what was checked, its id where that is known, and the value."""

    row: int
    id: int | None
    value: str


@dataclass(frozen=True)
class Verdict:
    """What one check found.

    ``status`` is "ok" or "failed", or says why the check was inconclusive ("insufficient", "constant", "no reference"),
    which is no failure. ``bad`` marks the bad rows of a check of rows, None where no row is to blame. ``acts`` is False
    while a failure has not lasted for ``persist`` windows.
    """

    check: str
    columns: tuple[str, ...]
    severity: Severity
    level: Level
    status: str
    n_rows: int
    n_bad: int = 0
    detail: str = ""
    examples: tuple[Example, ...] = ()
    measured: dict[str, Any] = field(default_factory=dict)
    action: Action = "refuse"
    acts: bool = True
    bad: Mask | None = field(default=None, repr=False, compare=False)
    says_columns: bool = field(default=False, repr=False)  # ``check`` names the columns itself

    def failed(
        self, detail: str = "", *, bad: Mask | None = None, examples: tuple[Example, ...] = (), **measured: Any
    ) -> Verdict:
        """The verdict that the rule is broken, by these rows where rows are to blame."""
        n_bad = 0 if bad is None else int(np.count_nonzero(bad))
        return replace(self, status="failed", n_bad=n_bad, detail=detail, examples=examples, measured=measured, bad=bad)

    @property
    def ok(self) -> bool:
        """Whether nothing was found that breaks the rule."""
        return self.status != "failed"

    @property
    def is_inconclusive(self) -> bool:
        """Whether the check could not judge, as with too few rows; ``status`` says why."""
        return self.status not in ("ok", "failed")

    @property
    def outcome(self) -> Outcome:
        """What it means for the whole: a failure of severity warn is a warning."""
        return "ok" if self.ok else "warning" if self.severity == "warn" else "failed"

    @property
    def title(self) -> str:
        """Which check this is."""
        return self.check if self.says_columns or not self.columns else f"{', '.join(self.columns)} {self.check}"

    def __str__(self) -> str:
        return printable(self._sentence())

    def _sentence(self) -> str:
        if self.ok:
            return f"{self.title}: {self.status}{f' ({self.detail})' if self.detail else ''}"
        parts = [self.detail] if self.detail else []
        if self.bad is not None:
            are = "row is" if self.n_rows == 1 else "rows are"
            parts.append(f"{self.n_bad:,} of {self.n_rows:,} {are} bad")
        parts += [", ".join(_shown(example) for example in self.examples)] if self.examples else []
        waiting = "" if self.acts else " (has not lasted long enough to act on)"
        return f"{self.title}: {'; '.join(parts)}{waiting}"

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; the mask is not part of it."""
        values: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("check", "severity", "level", "status", "n_rows", "n_bad", "detail", "action", "acts")
        }
        values["columns"] = list(self.columns)
        values["examples"] = [{"row": each.row, "id": each.id, "value": each.value} for each in self.examples]
        values["measured"] = {name: _plain(value) for name, value in self.measured.items()}
        return values


class WithOutcome:
    """What has an outcome, and two questions about it."""

    @property
    def outcome(self) -> Outcome:
        """The gravest of what was found: "ok", "warning" or "failed"."""
        raise NotImplementedError

    @property
    def ok(self) -> bool:
        """Whether nothing was found, not even a warning."""
        return self.outcome == "ok"

    @property
    def failed(self) -> bool:
        """Whether a check of severity error or fatal failed, or data cannot be read."""
        return self.outcome == "failed"


class Result(WithOutcome):
    """What a suite found in rows.

    ``outcome``: "ok", "warning" (only checks of severity warn failed) or "failed"; ``ok`` and ``failed`` ask for one of
    them. ``mask``: True for every row that no error blames. ``kept``: True for every row that may pass a boundary, by
    the actions the suite chose. ``bad_rows``: a table of the bad rows with their numbers, ids and reasons.

    >>> from poolish.guards import Suite
    >>> result = Suite().expect("reward", finite=True).check({"reward": [1.0, float("nan")]})
    >>> result.outcome, result.mask, result.bad_rows.to_pylist()
    ('failed', array([ True, False]), [{'row': 1, 'id': None, 'reason': 'reward is finite: got nan'}])
    >>> Suite().expect("reward", at_most=0, severity="warn").check({"reward": [1.0]})
    suite: warning, 1 of 1 check warned, 1 of 1 row suspect
      warn: reward is at most 0: 1 of 1 row is bad; row 0: 1.0
    """

    def __init__(self, verdicts: Sequence[Verdict], rows: TableView, *, name: str = "suite") -> None:
        self.verdicts, self.name = list(verdicts), name
        self._rows = rows

    @property
    def n_rows(self) -> int:
        """How many rows were checked."""
        return len(self._rows)

    @property
    def failures(self) -> list[Verdict]:
        """The verdicts that are not ok, the gravest first."""
        failed = [verdict for verdict in self.verdicts if not verdict.ok]
        return sorted(failed, key=lambda verdict: -SEVERITIES.index(verdict.severity))

    @property
    def outcome(self) -> Outcome:
        """The gravest outcome of its verdicts."""
        return worst(verdict.outcome for verdict in self.verdicts)

    @property
    def action(self) -> Action:
        """What a boundary does: the strictest action of the checks that failed."""
        asked = [verdict.action for verdict in self.failures if verdict.acts]
        return max(asked, key=ACTIONS.index, default="log")

    @cached_property
    def mask(self) -> Mask:
        """True for the rows that no check of severity error or fatal blames."""
        return self._good(verdict for verdict in self.failures if verdict.severity != "warn")

    @cached_property
    def kept(self) -> Mask:
        """True for the rows that may pass a boundary."""
        acting = [verdict for verdict in self.failures if verdict.acts and verdict.action != "log"]
        if any(verdict.action != "drop" or verdict.bad is None for verdict in acting):
            return np.zeros(self.n_rows, np.bool_)
        return self._good(iter(acting))

    @property
    def bad_rows(self) -> pa.Table:
        """``row``, ``id`` and ``reason`` of every row that an error or a fatal check blames."""
        return self.rejected(~self.mask)

    def rejected(self, which: Mask) -> pa.Table:
        """``row``, ``id`` and ``reason`` of these rows; a row without a reason of its own has that of the batch."""
        numbers = np.flatnonzero(which)
        of_batch = "; ".join(str(verdict) for verdict in self.failures if verdict.action != "log")
        reasons = [self.reason(int(row)) or f"with its batch: {of_batch}" for row in numbers]
        ids = None if self._rows.ids is None else self._rows.ids[numbers]
        return pa.table(
            {
                "row": pa.array(numbers, pa.int64()),
                "id": pa.nulls(len(numbers), pa.int64()) if ids is None else pa.array(ids, pa.int64()),
                "reason": pa.array(reasons, pa.string()),
            }
        )

    def reason(self, row: int) -> str:
        """Why a row is bad, in words; empty if it is not."""
        blaming = (verdict for verdict in self.failures if verdict.bad is not None and verdict.bad[row])
        return "; ".join(f"{verdict.title}: {self._got(verdict, row)}" for verdict in blaming)

    def to_json(self) -> str:
        """The verdicts and the counts, as JSON text."""
        return json.dumps(self.to_dict(), allow_nan=False, indent=2)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "suite": self.name,
            "outcome": self.outcome,
            "ok": self.ok,
            "action": self.action,
            "n_rows": self.n_rows,
            "n_bad": int((~self.mask).sum()),
            "verdicts": [verdict.to_json() for verdict in self.verdicts],
        }

    def to_html(self) -> str:
        """A report for people: one line for each check, escaped, without scripts."""
        title = html.element("h2", f"{self.name}: ", html.badge(self.outcome))
        return str(html.join(title, html.element("p", self._counts()), verdict_table(self.verdicts)))

    def _repr_html_(self) -> str:
        return self.to_html()

    def __repr__(self) -> str:
        lines = [f"  {verdict.severity}: {verdict}" for verdict in self.failures]
        return "\n".join([printable(self._headline()), *lines])

    def error(self, place: str = "", advice: str = "fix the rows, or change what the suite expects") -> DataRefused:
        """The error with which a boundary refuses these rows."""
        shown = [str(verdict) for verdict in self.failures if verdict.action != "log"][:5]
        more = len(self.failures) - len(shown)
        rest = f"; and {more} more" if more > 0 else ""
        error = DataRefused(f"{place}{': ' if place else ''}{'; '.join(shown)}{rest}; {advice}")
        error.result = self
        return error

    def _headline(self) -> str:
        return f"{self.name}: {self.outcome}, {self._counts()}"

    def _counts(self) -> str:
        is_warning = self.outcome == "warning"  # no row is bad then
        blamed = ~(self._good(iter(self.failures)) if is_warning else self.mask)
        rows = f"{int(blamed.sum()):,} of {counted(self.n_rows, 'row')} {'suspect' if is_warning else 'bad'}"
        return f"{checks_text(self.verdicts)}, {rows}"

    def _good(self, verdicts: Iterator[Verdict]) -> Mask:
        good = np.ones(self.n_rows, np.bool_)
        for verdict in verdicts:
            if verdict.bad is not None:
                good &= ~verdict.bad
        return good

    def _got(self, verdict: Verdict, row: int) -> str:
        try:
            return ", ".join(f"got {shown(self._rows[name].value(row))}" for name in verdict.columns) or "it breaks it"
        except NotApplicable as why:
            return str(why)


def checks_text(verdicts: Sequence[Verdict]) -> str:
    """How many checks there were, and how many failed, warned or were inconclusive.

    >>> from poolish.guards import Suite
    >>> checks_text(Suite().expect("a", at_least=5, finite=True).drift().check({"a": [1, 9]}).verdicts)
    '1 of 3 checks failed, 1 inconclusive'
    """
    found = {
        "failed": sum(verdict.outcome == "failed" for verdict in verdicts),
        "warned": sum(verdict.outcome == "warning" for verdict in verdicts),
        "inconclusive": sum(verdict.is_inconclusive for verdict in verdicts),
    }
    first, *rest = [f"{n:,} {what}" for what, n in found.items() if n] or [""]
    n_first, _, what = first.partition(" ")
    checks = counted(len(verdicts), "check")
    return ", ".join([f"{n_first} of {checks} {what}" if first else checks, *rest])


def verdict_table(verdicts: Sequence[Verdict]) -> html.Html:
    """Verdicts as a table, the failures first."""
    ordered = sorted(verdicts, key=lambda verdict: -OUTCOMES.index(verdict.outcome))
    rows = [
        (verdict.title, verdict.level, verdict.severity, _badge(verdict), verdict.n_bad, _found(verdict))
        for verdict in ordered
    ]
    return html.table(("check", "level", "severity", "verdict", "bad rows", "what was found"), rows)


def shown(value: object) -> str:
    """A value as a line of text.

    >>> shown(0.5), shown("a" * 100)[-8:], shown(np.zeros((2, 3)))
    ('0.5', "aaaa...'", 'float64[2, 3]')
    """
    if isinstance(value, np.ndarray) and value.ndim:
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, (str, bytes)) and len(value) > MAX_VALUE:
        return repr(value[: MAX_VALUE - 3])[:-1] + "...'"
    text = repr(value)
    return text if len(text) <= MAX_VALUE else text[: MAX_VALUE - 3] + "..."


def examples_of(rows: TableView, columns: Sequence[str], bad: Mask) -> tuple[Example, ...]:
    """The first few bad rows."""
    found = np.flatnonzero(bad)[:MAX_EXAMPLES]
    ids = rows.ids
    return tuple(
        Example(int(row), None if ids is None else int(ids[row]), _value(rows, columns, int(row))) for row in found
    )


def _value(rows: TableView, columns: Sequence[str], row: int) -> str:
    try:
        values = [shown(rows[name].value(row)) for name in columns]
    except NotApplicable:
        return ""
    return values[0] if len(values) == 1 else ", ".join(f"{n}={v}" for n, v in zip(columns, values, strict=True))


def _shown(example: Example) -> str:
    id_ = f", id {example.id}" if example.id is not None else ""
    return f"row {example.row}{id_}: {example.value}" if example.value else f"row {example.row}{id_}"


def _badge(verdict: Verdict) -> html.Html:
    """The outcome in its colour; a status that is none, as "insufficient", in that of neither."""
    return html.badge(verdict.status if verdict.is_inconclusive else verdict.outcome)


def _found(verdict: Verdict) -> str:
    return "" if verdict.status == "ok" and not verdict.detail else str(verdict).partition(": ")[2]


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
