"""Runs the benchmarks, prints their figures as they come, and writes RESULTS.md.

Each ``bench_*.py`` is a program of its own that prints one JSON line per figure (see ``harness``). So it starts in
a clean process, can be run alone (``python -m benchmarks.bench_import``), and can fail alone: what failed is named
in the results and in the exit status.

    python -m benchmarks.run                # all of them, and RESULTS.md is written
    python -m benchmarks.run import rows    # only these; the other rows of RESULTS.md stay as they are
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from importlib import metadata
from pathlib import Path

from poolish.versions import installed_versions

FOLDER = Path(__file__).resolve().parent
RESULTS = FOLDER / "RESULTS.md"
PEERS = FOLDER / "peers.txt"

InstructionStats = dict[str, object]

HEADER = """\
# What was measured

Written by `make bench` on {day}: {machine}.

Poolish and each peer took turns in one process; the figures are medians over the rounds. A ratio above 1 means that
poolish is better. A dash means that the peer did not take part; the note says why.

| benchmark | unit | poolish | peer | its figure | ratio | rounds | note |
|---|---|---:|---|---:|---:|---:|---|
"""


def main(chosen: Sequence[str]) -> int:
    """Run the chosen benchmarks, or all; the number of those that failed."""
    names = [path.stem.removeprefix("bench_") for path in sorted(FOLDER.glob("bench_*.py"))]
    lines: list[InstructionStats] = []
    failed: list[str] = []
    for name in chosen or names:
        lines += figures_of(name, failed)
    rows = [row_of(line) for line in lines]
    if chosen:
        new = {subject(row) for row in rows}
        rows = sorted([row for row in kept_rows() if subject(row) not in new] + rows, key=subject)
    RESULTS.write_text(results(rows, failed, datetime.now(UTC).date(), machine()))
    return len(failed)


def row_of(line: InstructionStats) -> str:
    """A figure as a row of the page."""
    return f"| {' | '.join(cells(line))} |\n"


def kept_rows() -> list[str]:
    """The rows of RESULTS.md as it is."""
    text = RESULTS.read_text() if RESULTS.exists() else ""
    return [
        line for line in text.splitlines(keepends=True) if line.startswith("| ") and not line.startswith("| benchmark")
    ]


def subject(row: str) -> str:
    """Which benchmark a row is of.

    >>> subject("| rows.append one row | us | 1.6 |"), subject("| import poolish | ms | 2 |")
    ('rows', 'import')
    """
    return re.split(r"[. ]", row.removeprefix("| "))[0]


def figures_of(name: str, failed: list[str]) -> Iterator[InstructionStats]:
    """The lines that one benchmark prints, shown as they come; its name joins ``failed`` if it does not end well."""
    command = [sys.executable, "-m", f"benchmarks.bench_{name}"]
    with subprocess.Popen(command, cwd=FOLDER.parent, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            if line.startswith("{"):
                yield json.loads(line)
    if process.returncode:
        print(f"bench_{name} failed with exit status {process.returncode}", file=sys.stderr)
        failed.append(name)


def results(rows: Sequence[str], failed: Sequence[str], day: date, machine: str) -> str:
    """The page of results."""
    broken = "".join(f"\n`bench_{name}.py` failed and its figures are missing or incomplete.\n" for name in failed)
    versions = "".join(f"{name} {version}\n" for name, version in {**installed_versions(), **peers()}.items())
    return f"{HEADER.format(day=day, machine=machine)}{''.join(rows)}{broken}\n```text\n{versions}```\n"


def peers() -> dict[str, str]:
    """The peers that ``make bench`` asks for, with their versions."""
    names = [line.split("#")[0].strip() for line in PEERS.read_text().splitlines()]
    installed = {distribution.name.lower(): distribution.version for distribution in metadata.distributions()}
    return {name: installed.get(name, "not installed") for name in names if name}


def cells(line: InstructionStats) -> list[str]:
    """One row of the table."""
    names = ("bench", "unit", "poolish", "peer_name", "peer", "ratio", "rounds", "note")
    return [cell(line.get(name)) for name in names]


def cell(value: object) -> str:
    """A figure as it is read: four digits, thousands apart, a dash for nothing.

    >>> cell(6123456.0), cell(0.01234), cell(30.0), cell(None)
    ('6,123,000', '0.01234', '30', '-')
    """
    if isinstance(value, float):
        short = float(f"{value:.4g}")
        return f"{short:,.0f}" if abs(short) >= 1000 else f"{short:g}"
    return "-" if value is None else str(value).replace("|", "\\|").replace("\n", " ")


def machine() -> str:
    """The machine in words that identify its kind and not whose it is."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{processor()}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()}"


def processor() -> str:
    """The processor's own name where the system tells it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
