"""Checks in levels, each including the former: there is no point in judging the mean of a file that cannot be read.

    file         it is there, can be read, is not empty, and its checksum is right
    format       it parses, and has the columns and types that are asked for
    statistics   its values, and their distributions, are as expected
    meaning      its columns make sense together, and by checks of your own

A *step* checks one level. The first that finds a problem is the last that runs, and the report says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from poolish import html
from poolish.guards.checks.verdicts import LEVELS, Level, Verdict, verdict_table
from poolish.printable import counted, printable


@dataclass
class Findings:
    """What one level found: problems in words, verdicts of checks, and notes."""

    problems: list[str] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the next level may run."""
        return not self.problems and all(verdict.ok or verdict.severity == "warn" for verdict in self.verdicts)

    def lines(self) -> list[str]:
        """All of it, a line each; of the verdicts only those that failed or were inconclusive."""
        failed = [f"{each.severity}: {each}" for each in self.verdicts if not each.ok]
        unsure = [f"note: {each}" for each in self.verdicts if each.ok and each.status != "ok"]
        return [*(f"error: {problem}" for problem in self.problems), *failed, *unsure, *self.notes]


Step = Callable[[], Findings]


class LevelReport:
    """What the levels of one thing (a file, a stream, a split of a queue) found, as far as they ran."""

    def __init__(self, name: str, kind: str, found: Mapping[Level, Findings], asked: Sequence[Level]) -> None:
        self.name, self.kind, self.found, self.asked = name, kind, dict(found), list(asked)

    @property
    def ok(self) -> bool:
        """Whether every requested level found nothing wrong."""
        return len(self.found) == len(self.asked) and all(each.ok for each in self.found.values())

    @property
    def stopped_at(self) -> Level | None:
        """The level that failed; those after it were skipped."""
        return next((level for level, each in self.found.items() if not each.ok), None)

    def __str__(self) -> str:
        lines = [f"{self.name} ({self.kind}): {'ok' if self.ok else 'not ok'}"]
        for level, each in self.found.items():
            n_checks = f", {counted(len(each.verdicts), 'check')}" if each.verdicts else ""
            lines.append(f"  {level}: {'ok' if each.ok else 'failed'}{n_checks}")
            lines += [f"    {line}" for line in each.lines()]
        left = [level for level in self.asked if level not in self.found]
        if left:
            lines.append(f"  stopped at {self.stopped_at}; {', '.join(left)}: skipped")
        return "\n".join(map(printable, lines))

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        levels = {
            level: {
                "ok": each.ok,
                "problems": each.problems,
                "notes": each.notes,
                "verdicts": [verdict.to_json() for verdict in each.verdicts],
            }
            for level, each in self.found.items()
        }
        return {"name": self.name, "kind": self.kind, "ok": self.ok, "stopped_at": self.stopped_at, "levels": levels}

    def to_html(self) -> html.Html:
        """For a page."""
        parts: list[object] = [html.element("h2", f"{self.name} ({self.kind}): {'ok' if self.ok else 'not ok'}")]
        for level, each in self.found.items():
            parts.append(html.element("h3", f"{level}: {'ok' if each.ok else 'failed'}"))
            lines = [*each.problems, *each.notes]
            parts.append(html.element("ul", *(html.element("li", line) for line in lines)) if lines else None)
            parts.append(verdict_table(each.verdicts) if each.verdicts else None)
        left = [level for level in self.asked if level not in self.found]
        parts.append(html.element("p", f"stopped at {self.stopped_at}; {', '.join(left)}: skipped") if left else None)
        return html.element("section", *parts)


def levels_through(level: Level) -> list[Level]:
    """The levels that a level includes.

    >>> levels_through("statistics")
    ['file', 'format', 'statistics']
    """
    return list(LEVELS[: LEVELS.index(level) + 1])


def run_levels(name: str, kind: str, steps: Mapping[Level, Step], level: Level) -> LevelReport:
    """Run level after level, up to one, until one of them fails.

    >>> report = run_levels("rows.csv", "csv", {"file": lambda: Findings(["it is empty"])}, "format")
    >>> print(report)
    rows.csv (csv): not ok
      file: failed
        error: it is empty
      stopped at file; format: skipped
    """
    asked, found = levels_through(level), dict[Level, Findings]()
    for each in asked:
        found[each] = steps[each]() if each in steps else Findings()
        if not found[each].ok:
            break
    return LevelReport(name, kind, found, asked)


class Validation:
    """What ``validate`` found: one report for each file, stream, split of a queue or set of rows in memory."""

    def __init__(self, reports: Sequence[LevelReport]) -> None:
        self.reports = list(reports)

    @property
    def ok(self) -> bool:
        """Whether every report is ok."""
        return all(report.ok for report in self.reports)

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdicts of all checks that ran, in the order of reports and levels."""
        return [verdict for report in self.reports for each in report.found.values() for verdict in each.verdicts]

    @property
    def problems(self) -> list[str]:
        """What failed, a line each with the name of its report: unreadable files, and checks beyond ``warn``."""
        return [
            printable(f"{report.name}: {line}")
            for report in self.reports
            for each in report.found.values()
            for line in each.lines()
            if line.startswith(("error: ", "fatal: "))
        ]

    def summary(self) -> str:
        """How many were checked, and how many are not ok.

        >>> Validation([]).summary()
        '0 checked, 0 not ok'
        """
        return f"{len(self.reports)} checked, {sum(1 for report in self.reports if not report.ok)} not ok"

    def to_json(self) -> str:
        """All reports as JSON text."""
        plain = {"ok": self.ok, "reports": [report.to_json() for report in self.reports]}
        return json.dumps(plain, indent=2, allow_nan=False)

    def to_html(self, title: str = "validation") -> str:
        """A whole page of reports, which loads nothing and runs nothing."""
        return html.page(title, html.element("h1", title), *(report.to_html() for report in self.reports))

    def _repr_html_(self) -> str:
        return str(html.join(*(report.to_html() for report in self.reports)))

    def __repr__(self) -> str:
        return "\n".join([*map(str, self.reports), *([self.summary()] if len(self.reports) > 1 else [])])
