"""``poolish check``: is what lies at a path good enough to train on? Level by level, and nothing in it is executed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import typer
from rich.console import Console

from poolish.cli.check_sources import Source, sources
from poolish.cli.failures import FAILED
from poolish.cli.screen import one_line
from poolish.errors import ConfigError
from poolish.files import publish
from poolish.guards.inferring import infer
from poolish.guards.leaves import Rows
from poolish.guards.levels import Findings, LevelReport, climb, page, to_json
from poolish.guards.suite import Suite
from poolish.guards.verdicts import LEVELS, Level


def check(
    path: Path,
    level: str,
    *,
    suite: Path | None = None,
    reference: Path | None = None,
    as_json: bool = False,
    html: Path | None = None,
) -> int:
    """Check everything at a path and print the report; the exit code."""
    wanted = _level(level)
    known = None if reference is None else _reference(reference)
    asked = _suite(suite, known)
    reports = [_climbed(source, wanted, asked, known) for source in sources(path)]
    _show(reports, as_json=as_json)
    if html is not None:
        with publish(html) as file:
            file.write(page(f"poolish check {path}", reports).encode())
    return 0 if all(report.ok for report in reports) else FAILED


def _level(level: str) -> Level:
    found = next((each for each in LEVELS if each == level), None)
    if found is None:
        raise ConfigError(f"--level {level}: one of {', '.join(LEVELS)}")
    return found


def _suite(path: Path | None, reference: Rows | None) -> Suite | None:
    """The suite of the file; without one, what the reference suggests."""
    if path is not None:
        try:
            return Suite.load(path)
        except OSError as error:
            raise ConfigError(f"--suite {path}: {error.strerror or error}") from None
    return None if reference is None else infer(reference, name="as the reference").drift()


def _reference(path: Path) -> Rows:
    found = sources(path)
    if len(found) != 1:
        raise ConfigError(f"--reference {path}: one file, one stream or one split of a queue, there are {len(found)}")
    for findings in (found[0].look(), found[0].read()):
        if not findings.ok:
            raise ConfigError(f"--reference {path}: {'; '.join(findings.problems)}")
    return found[0].rows


def _climbed(source: Source, level: Level, suite: Suite | None, reference: Rows | None) -> LevelReport:
    steps = {
        "file": source.look,
        "format": partial(_format, source, suite),
        "statistics": partial(_statistics, source, suite, reference),
        "meaning": partial(_meaning, source, suite),
    }
    return climb(source.name, source.kind, steps, level)  # type: ignore[arg-type]  # the keys are levels


def _format(source: Source, suite: Suite | None) -> Findings:
    findings = source.read()
    if findings.ok and suite is not None:
        findings.verdicts = suite.check_rows(source.rows, "format", only=True)
    return findings


def _statistics(source: Source, suite: Suite | None, reference: Rows | None) -> Findings:
    if suite is None:
        return Findings(notes=["nothing is asked: pass --suite, or --reference for what is usual"])
    of_rows = suite.check_rows(source.rows, "statistics", only=True)
    return Findings(verdicts=[*of_rows, *suite.check_columns(source.rows, reference, "statistics")])


def _meaning(source: Source, suite: Suite | None) -> Findings:
    return Findings() if suite is None else Findings(verdicts=suite.check_rows(source.rows, "meaning", only=True))


def _show(reports: list[LevelReport], *, as_json: bool) -> None:
    if as_json:
        typer.echo(to_json(reports))
        return
    console = Console(highlight=False)
    for report in reports:
        for i, line in enumerate(str(report).split("\n")):
            style = "bold" if i == 0 else "red" if line.lstrip().startswith(("error:", "fatal:", "stopped")) else ""
            console.print(one_line(line, style), soft_wrap=True)
    if len(reports) > 1:
        n_bad = sum(1 for report in reports if not report.ok)
        console.print(f"{len(reports)} checked, {n_bad} not ok")
