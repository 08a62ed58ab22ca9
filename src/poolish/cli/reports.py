"""What a worker tells of itself while it works, and the pipe through which it tells it to the command that started it.

    worker (child)   Sender  --one line of JSON each: {"made": ..., "backlog": ..., "waiting": ...} or {"error": ...}-->
    command (parent)

The pipe also tells the worker that the command is gone, killed or not: nobody reads any more, so a write fails.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Report:
    """By split, how many batches were made since the start and how many wait to be read; and what is waited for."""

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


class Sender:
    """The worker's end of the pipe."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.is_cut = False
        os.set_inheritable(fd, False)  # what the provider starts must not keep the pipe open
        os.set_blocking(fd, False)

    def send(self, report: Report) -> None:
        """Tell how far this is; left out if the command is busy or stopped (Ctrl-Z) and reads nothing."""
        with suppress(BlockingIOError):
            self._write(asdict(report))

    def fail(self, error: str, code: int) -> None:
        """Tell why this ends."""
        os.set_blocking(self._fd, True)
        self._write({"error": error, "code": code})

    def _write(self, message: Mapping[str, Any]) -> None:
        left = json.dumps(message).encode() + b"\n"
        try:
            # A report is shorter than what a pipe takes whole or not at all; only the text of an error may be longer.
            while left:
                left = left[os.write(self._fd, left) :]
        except BrokenPipeError:
            self.is_cut = True
