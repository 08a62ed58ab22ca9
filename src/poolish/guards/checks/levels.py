"""Checks in levels: is it there, can it be read, are its values as expected, do they make sense together?

    file         it is there, can be read, is not empty, and its checksum is right
    format       it parses, and has the columns and types that are asked for
    statistics   its values, and their distributions, are as expected
    meaning      its columns make sense together, and by checks of your own

A *step* checks one level. All levels that are asked for are checked and shown: a column of a wrong type hides no bad
value of another one. Only data that cannot be read ends it: the levels above are *skipped*, and a level for which there
is nothing to check is *unchecked*; neither is called ok.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from poolish import html
from poolish.guards.checks.verdicts import (
    LEVELS,
    OUTCOMES,
    Level,
    Outcome,
    Verdict,
    WithOutcome,
    checks_text,
    verdict_table,
    worst,
)
from poolish.printable import counted, printable


@dataclass
class Findings:
    """What one level found: problems in words, verdicts of checks, and notes.

    ``is_readable`` is False where there is nothing that a higher level could look at.
    """

    problems: list[str] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_readable: bool = True
    is_checked: bool = True

    @property
    def outcome(self) -> Outcome:
        """The gravest of what was found; a problem is a failure."""
        return "failed" if self.problems else worst(verdict.outcome for verdict in self.verdicts)

    @property
    def word(self) -> Outcome | Literal["unchecked"]:
        """The outcome, or that there was nothing to check."""
        return self.outcome if self.is_checked else "unchecked"

    def lines(self) -> list[str]:
        """All of it, a line each; of the verdicts only those that failed or were inconclusive."""
        failed = [f"{each.severity}: {each}" for each in self.verdicts if not each.ok]
        unsure = [f"note: {each}" for each in self.verdicts if each.is_inconclusive]
        return [*(f"error: {problem}" for problem in self.problems), *failed, *unsure, *self.notes]


Step = Callable[[], Findings]


class LevelReport(WithOutcome):
    """What the levels of one thing (a file, a stream, a split of a queue) found."""

    def __init__(self, name: str, kind: str, found: Mapping[Level, Findings], asked: Sequence[Level]) -> None:
        self.name, self.kind, self.found, self.asked = name, kind, dict(found), list(asked)

    @property
    def outcome(self) -> Outcome:
        """The gravest outcome of its levels."""
        return worst(each.outcome for each in self.found.values())

    @property
    def failed_levels(self) -> list[Level]:
        """The levels that failed."""
        return [level for level, each in self.found.items() if each.outcome == "failed"]

    @property
    def stopped_at(self) -> Level | None:
        """The level that found nothing readable, so that those above it were skipped; None if all of them ran."""
        return next((level for level, each in self.found.items() if not each.is_readable), None)

    @property
    def skipped(self) -> list[Level]:
        """The levels that could not be checked."""
        return [level for level in self.asked if level not in self.found]

    def __str__(self) -> str:
        lines = [self._headline()]
        for level, each in self.found.items():
            lines.append(f"  {level}: {_level_text(each)}")
            lines += [f"    {line}" for line in each.lines()]
        lines += [f"  {level}: skipped, because {self.stopped_at} failed" for level in self.skipped]
        return "\n".join(map(printable, lines))

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; every requested level is there."""
        levels: dict[str, Any] = {
            level: {
                "outcome": each.word,
                "problems": each.problems,
                "notes": each.notes,
                "verdicts": [verdict.to_json() for verdict in each.verdicts],
            }
            for level, each in self.found.items()
        }
        levels |= {level: {"outcome": "skipped"} for level in self.skipped}
        found = {"name": self.name, "kind": self.kind, "outcome": self.outcome, "ok": self.ok}
        return found | {"stopped_at": self.stopped_at, "levels": levels}

    def to_html(self) -> html.Html:
        """For a page."""
        parts: list[object] = [html.element("h2", f"{self.name} ({self.kind}): ", html.badge(self.outcome))]
        for level, each in self.found.items():
            parts.append(html.element("h3", f"{level}: ", html.badge(each.word)))
            lines = [*each.problems, *each.notes]
            parts.append(html.element("ul", *(html.element("li", line) for line in lines)) if lines else None)
            parts.append(verdict_table(each.verdicts) if each.verdicts else None)
        parts += [html.element("h3", f"{level}: skipped, because {self.stopped_at} failed") for level in self.skipped]
        return html.element("section", *parts)

    def _headline(self) -> str:
        n_inconclusive = sum(verdict.is_inconclusive for each in self.found.values() for verdict in each.verdicts)
        unsure = f", {counted(n_inconclusive, 'check')} inconclusive" if n_inconclusive else ""
        return f"{self.name} ({self.kind}): {self.outcome}{unsure}"


def _level_text(found: Findings) -> str:
    return f"{found.word}, {checks_text(found.verdicts)}" if found.verdicts else found.word


def levels_through(level: Level) -> list[Level]:
    """The levels that a level includes.

    >>> levels_through("statistics")
    ['file', 'format', 'statistics']
    """
    return list(LEVELS[: LEVELS.index(level) + 1])


def run_levels(name: str, kind: str, steps: Mapping[Level, Step], level: Level) -> LevelReport:
    """Run all levels up to one, as long as there is something to read.

    >>> empty = Findings(["it is empty"], is_readable=False)
    >>> print(run_levels("rows.csv", "csv", {"file": lambda: empty}, "format"))
    rows.csv (csv): failed
      file: failed
        error: it is empty
      format: skipped, because file failed
    """
    asked, found = levels_through(level), dict[Level, Findings]()
    for each in asked:
        found[each] = steps[each]() if each in steps else Findings(is_checked=False)
        if not found[each].is_readable:
            break
    return LevelReport(name, kind, found, asked)


class Validation(WithOutcome):
    """What ``validate`` found: one report for each file, stream, split of a queue or set of rows in memory."""

    def __init__(self, reports: Sequence[LevelReport]) -> None:
        self.reports = list(reports)

    @property
    def outcome(self) -> Outcome:
        """The gravest outcome of its reports: "ok", "warning" or "failed"."""
        return worst(report.outcome for report in self.reports)

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdicts of all checks that ran, in the order of reports and levels."""
        return [verdict for report in self.reports for each in report.found.values() for verdict in each.verdicts]

    @property
    def problems(self) -> list[str]:
        """What failed, a line each with the name of its report: unreadable files, and checks beyond ``warn``."""
        return self._lines("error: ", "fatal: ")

    @property
    def warnings(self) -> list[str]:
        """Which checks of severity warn failed, a line each with the name of its report."""
        return self._lines("warn: ")

    def _lines(self, *starts: str) -> list[str]:
        return [
            printable(f"{report.name}: {line}")
            for report in self.reports
            for each in report.found.values()
            for line in each.lines()
            if line.startswith(starts)
        ]

    def summary(self) -> str:
        """How many were checked, by outcome.

        >>> Validation([]).summary()
        '0 checked'
        """
        counts = Counter(report.outcome for report in self.reports)
        found = [f"{counts[outcome]:,} {outcome}" for outcome in OUTCOMES if counts[outcome]]
        return f"{len(self.reports):,} checked{': ' if found else ''}{', '.join(found)}"

    def to_json(self) -> str:
        """All reports as JSON text."""
        plain = {"outcome": self.outcome, "ok": self.ok, "reports": [report.to_json() for report in self.reports]}
        return json.dumps(plain, indent=2, allow_nan=False)

    def to_html(self, title: str = "validation") -> str:
        """A whole page of reports, which loads nothing and runs nothing."""
        return html.page(title, html.element("h1", title), *(report.to_html() for report in self.reports))

    def _repr_html_(self) -> str:
        return str(html.join(*(report.to_html() for report in self.reports)))

    def __repr__(self) -> str:
        return "\n".join([*map(str, self.reports), *([self.summary()] if len(self.reports) > 1 else [])])
