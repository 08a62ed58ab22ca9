"""``poolish check``: prints what ``poolish.guards.validate`` finds at a path, and exits with 0 if that is ok."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console

from poolish.cli.failures import FAILED
from poolish.cli.screen import one_line
from poolish.files import publish
from poolish.guards.checks.levels import Validation
from poolish.validation import validate


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
    found = validate(path, level, suite=suite, reference=reference)
    _show(found, as_json=as_json)
    if html is not None:
        with publish(html) as file:
            file.write(found.to_html(f"poolish check {path}").encode())
    return 0 if found.ok else FAILED


def _show(found: Validation, *, as_json: bool) -> None:
    if as_json:
        typer.echo(found.to_json())
        return
    console = Console(highlight=False)
    for report in found.reports:
        for i, line in enumerate(str(report).split("\n")):
            style = "bold" if i == 0 else "red" if line.lstrip().startswith(("error:", "fatal:", "stopped")) else ""
            console.print(one_line(line, style), soft_wrap=True)
    if len(found.reports) > 1:
        console.print(found.summary())
