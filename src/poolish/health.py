"""Health: what is wrong, since when, what to do; the same shape for every object that has ``health()``.

``health()`` looks and changes nothing. It may be called from any thread at any time, also while the object waits, and
costs nothing until it is called: objects only note the time at which something went wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: what it is, since when (seconds since 1970; None if unknown), and what to do."""

    what: str
    since: float | None
    action: str

    def __str__(self) -> str:
        when = "" if self.since is None else f" (since {datetime.fromtimestamp(self.since, UTC):%Y-%m-%d %H:%M:%S} UTC)"
        return f"{self.what}{when}; {self.action}"


@dataclass(frozen=True)
class Health:
    """The problems of an object, none if it is ``ok``, and the figures that it is judged by: plain JSON values.

    >>> health = Health((Problem("the disk is full", 0.0, "make room"),), {"rows": 3})
    >>> health.ok, health.to_json()["problems"][0]["action"]
    (False, 'make room')
    >>> print(health)
    not ok, rows 3
      the disk is full (since 1970-01-01 00:00:00 UTC); make room
    """

    problems: tuple[Problem, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    @classmethod
    def joined(cls, parts: Mapping[str, Health]) -> Health:
        """The health of something that has parts: each problem and figure with the name of its part.

        >>> parts = {"train": Health((Problem("no provider is alive", None, "start one"),)), "val": Health()}
        >>> Health.joined(parts).problems[0].what
        'train: no provider is alive'
        """
        problems = [
            Problem(f"{name}: {each.what}", each.since, each.action)
            for name, part in parts.items()
            for each in part.problems
        ]
        return cls(tuple(problems), {name: dict(part.figures) for name, part in parts.items()})

    def plus(self, *problems: Problem | None, **figures: Any) -> Health:
        """With more problems (those that are None are left out) and figures."""
        found = (problem for problem in problems if problem is not None)
        return Health((*self.problems, *found), {**self.figures, **figures})

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        problems = [{"what": each.what, "since": each.since, "action": each.action} for each in self.problems]
        return {"ok": self.ok, "problems": problems, "figures": dict(self.figures)}

    def __str__(self) -> str:
        figures = "".join(f", {name} {value}" for name, value in self.figures.items())
        return "\n".join([f"{'ok' if self.ok else 'not ok'}{figures}", *(f"  {each}" for each in self.problems)])


def wall_time(at: float, clock: Callable[[], float]) -> float:
    """The time of day at which a clock, which may count from anything, showed ``at``."""
    return time.time() - (clock() - at)
