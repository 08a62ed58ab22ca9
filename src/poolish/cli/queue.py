"""``poolish queue``: what a queue holds, whether it is whole, and getting rid of it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from poolish.cli.live import counts
from poolish.cli.terminal import FAILED, MISUSED, one_line, print_stderr
from poolish.health import Health
from poolish.printable import counted
from poolish.serve import purge_queue, queue_health, queue_status, verify_queue
from poolish.serve.inspection import SplitStatus

_WIDE = 160  # without a terminal there is no width to keep to
_COLUMNS = ("published", "read", "acknowledged", "waiting", "on disk", "size", "dead", "quarantined")


def show_status(path: Path, *, as_json: bool = False) -> None:
    """Print how each split stands."""
    status, health = queue_status(path), queue_health(path)
    if as_json:
        plain = {split: {**asdict(found), "waiting": found.waiting} for split, found in status.items()}
        print(
            json.dumps({split: {**each, "health": health[split].to_json()} for split, each in plain.items()}, indent=2)
        )
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("split")
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    for found in status.values():
        table.add_row(*_row(found))
    console = _console()
    console.print(one_line(f"queue of {path}", "bold"), soft_wrap=True)  # a long path is not cut into lines
    console.print(table)
    for line in (*_fields(status), *_providers(status)):
        console.print(line, soft_wrap=True)
    for problem in Health.joined(health).problems:
        console.print(one_line(str(problem), "red"), soft_wrap=True)


def _row(found: SplitStatus) -> list[Text]:
    numbers = (found.published, found.read, found.acknowledged, found.waiting, found.on_disk)
    return [
        one_line(found.split, "bold"),
        *(Text(f"{n:,}") for n in numbers),
        Text(size(found.n_bytes)),
        Text(f"{found.dead:,}", style="bold red" if found.dead else ""),
        Text(f"{found.quarantined:,}", style="yellow" if found.quarantined else ""),
    ]


def _fields(status: dict[str, SplitStatus]) -> list[Text]:
    """What the batches hold, a line for all splits that hold the same."""
    splits: dict[str, list[str]] = {}
    for split, found in status.items():
        splits.setdefault(", ".join(f"{name} {type_}" for name, type_ in found.fields.items()), []).append(split)
    return [one_line(f"fields of {', '.join(names)}: {fields}", "dim") for fields, names in splits.items()]


def _providers(status: dict[str, SplitStatus]) -> list[Text]:
    """The providers of the queue and what each has made, a line each, the running ones in green."""
    made: dict[str, dict[str, int]] = {}
    for split, found in status.items():
        for name, n in found.made.items():
            made.setdefault(name, {})[split] = n
    alive = {name for found in status.values() for name in found.alive}
    lines = [
        one_line(f"provider {name}, {'alive' if name in alive else 'ended'}: made {counts(n)}", style)
        for name, n in sorted(made.items())
        for style in ["green" if name in alive else "dim"]
    ]
    return lines or [Text("no provider has filled it yet", style="dim")]


def verify(path: Path, *, as_json: bool = False) -> int:
    """Print what is wrong, split by split; the exit code."""
    n_files = {split: found.on_disk for split, found in queue_status(path).items()}
    problems = _verified(path, sum(n_files.values()), is_shown=not as_json and sys.stderr.isatty())
    if as_json:
        print(json.dumps(problems, indent=2))
    else:
        console = _console()
        for split, found in problems.items():
            verdict = f"{len(found):,} wrong" if found else "whole"
            console.print(one_line(f"{split}: {counted(n_files.get(split, 0), 'batch')}, "), end="")
            console.print(Text(verdict, style="bold red" if found else "green"))
            for problem in found:
                console.print(one_line(f"  {problem}"), soft_wrap=True)
    return FAILED if any(problems.values()) else 0


def _verified(path: Path, n_files: int, *, is_shown: bool) -> dict[str, list[str]]:
    with Progress(console=Console(stderr=True), transient=True, disable=not is_shown) as progress:
        bar = progress.add_task(f"reading {counted(n_files, 'batch')}", total=n_files)
        return verify_queue(path, on_file=lambda: progress.advance(bar))


def purge(path: Path, *, is_sure: bool = False) -> int:
    """Discard the queue, after a confirmation; the exit code."""
    if not is_sure:
        if not is_at_terminal():
            print_stderr(
                f"error: {path} was not purged: there is no terminal to ask at; add --yes to discard its batches"
            )
            return MISUSED
        if not typer.confirm(str(one_line(_question(path)))):
            print("nothing was discarded")
            return FAILED
    for split, n_batches in purge_queue(path).items():
        print(one_line(f"{split}: {counted(n_batches, 'batch')} discarded"))
    return 0


def is_at_terminal() -> bool:
    """Whether stdin is a terminal, where a question can be answered."""
    return sys.stdin.isatty()


def _question(path: Path) -> str:
    status = queue_status(path)
    what = ", ".join(f"{counted(found.on_disk, 'batch')} of {split}" for split, found in status.items())
    n_bytes = sum(found.n_bytes for found in status.values())
    alive = sorted({name for found in status.values() for name in found.alive})
    still = f" They are still being made, by {', '.join(alive)}, which will end." if alive else ""
    return f"Discard {what} ({size(n_bytes)}) in {path}?{still}"


def size(n_bytes: float) -> str:
    """Bytes as people read them.

    >>> size(900), size(1_572_864)
    ('900 B', '1.5 MiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n_bytes < 1024:
            return f"{n_bytes:,.0f} B" if unit == "B" else f"{n_bytes:,.1f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:,.1f} TiB"


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDE)
