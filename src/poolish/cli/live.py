"""The progress of workers, and a line that shows it: redrawn in place on a terminal, printed periodically elsewhere."""

from __future__ import annotations

import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from poolish.cli.terminal import Interrupt, message, one_line

_WINDOW_S = 5.0
_LINE_EVERY_S = 10.0
_CHANGE_EVERY_S = 1.0


@dataclass(frozen=True)
class Report:
    """By split, the number of batches made since the start and of those to be read; and what the work waits for."""

    made: Mapping[str, int] = field(default_factory=dict)
    backlog: Mapping[str, int] = field(default_factory=dict)
    waiting: str = ""

    @property
    def total(self) -> int:
        """Batches of all splits."""
        return sum(self.made.values())


def join(reports: Iterable[Report]) -> Report:
    """The reports of several workers of one queue as one; they wait if all of them wait.

    >>> join([Report({"train": 3}, {"train": 5}, "no room"), Report({"train": 4}, {"train": 6})])
    Report(made={'train': 7}, backlog={'train': 6}, waiting='')
    """
    reports = list(reports)
    made: dict[str, int] = {}
    backlog: dict[str, int] = {}
    for report in reports:
        for split, n in report.made.items():
            made[split] = made.get(split, 0) + n
        # They look at the same queue at slightly different moments.
        backlog |= {split: max(n, backlog.get(split, 0)) for split, n in report.backlog.items()}
    waiting = [report.waiting for report in reports]
    return Report(made, backlog, waiting[0] if waiting and all(waiting) else "")


class Display(Protocol):
    """Where the work is shown; ``last`` is what was shown last."""

    last: Report

    def show(self, report: Report) -> None:
        """Show the progress."""

    def say(self, text: str) -> None:
        """Print a line that stays."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...


def display(title: str, interrupt: Interrupt) -> Display:
    """The display that fits where this runs."""
    console = Console(stderr=True, highlight=False)
    # rich calls a pipe a terminal when FORCE_COLOR is set: colours are welcome there, a line that moves is not.
    if console.is_terminal and not console.is_dumb_terminal and sys.stderr.isatty():
        return LiveLine(title, interrupt, console)
    return PlainLines(title, console)


class Pace:
    """Batches a second over the last few seconds.

    >>> pace = Pace()
    >>> for second in range(60):
    ...     pace.add(second, 3 * second)
    >>> pace.rate
    3.0
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, now: float, total: int) -> None:
        """Record the number of batches made until now."""
        self._seen.append((now, total))
        while len(self._seen) > 2 and now - self._seen[1][0] >= _WINDOW_S:
            self._seen.popleft()

    @property
    def rate(self) -> float:
        """Batches a second; 0 at first."""
        if len(self._seen) < 2:
            return 0.0
        (start, before), (now, total) = self._seen[0], self._seen[-1]
        return (total - before) / max(now - start, 1e-9)


class LiveLine:
    """The line on a terminal, with what the work waits for under it.

    It is drawn when there is news and not by a thread: a provider may fork, and a lock that a thread holds at that
    moment would be held in the child forever.
    """

    def __init__(self, title: str, interrupt: Interrupt, console: Console) -> None:
        self._title, self._interrupt, self._console = title, interrupt, console
        self.last, self._pace = Report(), Pace()
        self._spinner = Spinner("dots")
        # Only output to the screen moves above the line; redirected output stays as it is.
        self._live = Live(
            console=console,
            get_renderable=self._draw,
            auto_refresh=False,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
        )

    def show(self, report: Report) -> None:
        """Draw this."""
        self._pace.add(time.monotonic(), report.total)
        self.last = report
        self._live.refresh()

    def say(self, text: str) -> None:
        """Print above the line."""
        self._console.print(message(text), soft_wrap=True)

    def _draw(self) -> Group:
        report = self.last
        line = Table.grid(padding=(0, 2))
        line.add_row(
            self._spinner,
            one_line(self._title, "bold"),
            one_line(counts(report.made) or "starting", "green"),
            Text(speed(self._pace.rate)),
            one_line(f"backlog {counts(report.backlog)}" if report.backlog else "", "cyan"),
        )
        for column in line.columns:
            column.no_wrap = True
        below = "the batch in the making is finished first; Ctrl-C again ends at once" if self._interrupt.count else ""
        below = below or (f"waiting: {report.waiting}" if report.waiting else "")
        return Group(line, one_line(f"   {below}", "yellow")) if below else Group(line)

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        self._interrupt.on_request = self._live.refresh  # the batch in the making may take long
        return self

    def __exit__(self, *error: object) -> None:
        self._interrupt.on_request = lambda: None
        self._live.stop()


class PlainLines:
    """A line every ten seconds, and when it begins to wait for something else: for files and pipes."""

    def __init__(self, title: str, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._title, self._console, self._clock = title, console, clock
        self.last, self._pace = Report(), Pace()
        self._kind = ""
        self._written = clock()

    def show(self, report: Report) -> None:
        """Write a line if it is time for one."""
        now = self._clock()
        self.last = report
        self._pace.add(now, report.total)
        kind = kind_of(report.waiting)
        is_new = kind not in ("", self._kind) and now - self._written >= _CHANGE_EVERY_S
        if is_new or now - self._written >= _LINE_EVERY_S:
            self._written, self._kind = now, kind or self._kind
            self.say(sentence(self._title, report, self._pace.rate))

    def say(self, text: str) -> None:
        """Write a line."""
        self._console.print(message(text), soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def sentence(title: str, report: Report, rate: float) -> str:
    """The same as one line of text.

    >>> sentence("char", Report({"train": 1200, "val": 64}, {"train": 9, "val": 64}), 81.25)
    'char: made train 1,200, val 64; 81 batches/s; backlog train 9, val 64'
    """
    parts = [f"{title}: made {counts(report.made) or 'nothing yet'}", speed(rate)]
    parts += [f"backlog {counts(report.backlog)}"] if report.backlog else []
    parts += [f"waiting: {report.waiting}"] if report.waiting else []
    return "; ".join(parts)


def counts(by_split: Mapping[str, int]) -> str:
    """Numbers by split, as text."""
    return ", ".join(f"{split} {n:,}" for split, n in by_split.items())


def speed(rate: float) -> str:
    """A rate as text, with digits where there are few."""
    return f"{rate:,.0f} batches/s" if rate >= 10 or rate == 0 else f"{rate:.1f} batches/s"


def kind_of(waiting: str) -> str:
    """A reason without its numbers: 63 or 64 batches that wait are the same reason."""
    return re.sub(r"\d[\d,.]*", "#", waiting)
