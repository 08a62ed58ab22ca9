"""FaultCounts: how many samples failed, of which kinds, what was done about it, and whether the budget still holds.

The budget is a count of failures, or a fraction of the samples seen. A fraction has to be judged while few samples have
been seen and chance plays a large part, so with an expected ``m = fraction * seen`` failures, ``ceil(m + sqrt(m))`` are
allowed: what was asked for, plus one standard deviation of what chance adds. With 1 %:

    seen        1    38    39    100    1,000    10,000    1,000,000
    allowed     1     1     2      2       14       110       10,100
"""

from __future__ import annotations

import logging
import math
import reprlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from poolish.concurrency import Locked
from poolish.errors import BudgetSpent, ConfigError, ResumeError
from poolish.guards.faults.blame import name_of
from poolish.health import Health, Problem
from poolish.printable import counted, printable

logger = logging.getLogger("poolish.guards")

MAX_KINDS = 32
MAX_EXAMPLES = 3
MAX_TEXT = 200
OTHERS = "other kinds"


def n_allowed(budget: float, n_seen: int) -> int:
    """How many of ``n_seen`` samples may fail: an int is a count, a float a fraction.

    >>> n_allowed(5, 1_000_000), n_allowed(0.01, 1), n_allowed(0.01, 1_000), n_allowed(0.0, 1_000)
    (5, 1, 14, 0)
    """
    if isinstance(budget, int):
        return budget
    expected = budget * n_seen
    # Rounded first: 0.07 * 700 is 49.00000000000001, and that must not allow one more.
    return min(n_seen, math.ceil(round(expected + math.sqrt(expected), 9)))


def check_budget(budget: float) -> float:
    """The budget, if it is one: a fraction from 0.0 to 1.0, or a count from 0."""
    fits = isinstance(budget, (int, float)) and not isinstance(budget, bool) and budget >= 0
    if not fits or (isinstance(budget, float) and budget > 1):
        raise ConfigError(f"budget: a fraction from 0.0 to 1.0 or a count from 0, got {budget!r}; 1.0 is no limit")
    return budget


class FaultCounts(Locked):
    """Counts that all threads share, small and JSON however much fails.

    >>> counts = FaultCounts(budget=1)
    >>> counts.count(64, [(17, OSError("no such picture"))])
    >>> counts.did("skip", 1)
    >>> print(counts.summary())
    1 of 64 samples failed (1.6 %, budget 1): 1 OSError; skip 1
      OSError: row 17: no such picture
    """

    def __init__(self, budget: float) -> None:
        super().__init__()
        self.budget = check_budget(budget)
        self.n_seen = self.n_failed = 0
        self._kinds: dict[str, int] = {}
        self._examples: dict[str, list[str]] = {}
        self._done: dict[str, int] = {}
        self._logged: set[str] = set()

    #: When the first sample failed; None if none has, or if that was in an earlier run.
    failed_since: float | None = None

    def health(self) -> Health:
        """Whether every sample could be read; how much of the budget is used."""
        counts = self.counts()
        n_failed, n_may = counts["failed"], n_allowed(self.budget, counts["seen"])
        figures = {"seen": counts["seen"], "failed": n_failed, "allowed": n_may, "done": counts["done"]}
        if not n_failed:
            return Health((), figures)
        return Health(
            (Problem(self.summary().partition("\n")[0], self.failed_since, self._advice(n_failed, n_may)),), figures
        )

    @staticmethod
    def _advice(n_failed: int, n_may: int) -> str:
        left = max(0, n_may - n_failed)
        return f"look at the rows in faults.summary() and repair them; the budget allows {left:,} more failures"

    def saw(self, n_samples: int) -> None:
        """Count samples that were read without a failure."""
        with self._lock:
            self.n_seen += n_samples

    def did(self, policy: str, n: int) -> None:
        """Count what a policy did: samples for a policy of samples, batches for one of batches."""
        with self._lock:
            self._done[policy] = self._done.get(policy, 0) + n

    def reread(self, n_samples: int, error: Exception) -> None:
        """Count a batch that failed as a whole and was then read one by one without a failure."""
        self.saw(n_samples)
        self.did("read one by one", 1)
        with self._lock:
            is_new = self._is_new(f"batch, {name_of(error)}")
        if is_new:
            logger.warning(
                "a batch failed, its rows did not, read one by one: %s: %s", name_of(error), printable(error)
            )

    def count(self, n_samples: int, failures: Sequence[tuple[int, Exception]]) -> None:
        """Count a batch of samples of which these failed; log the kinds that are new.

        One step under one lock: a batch is judged as a whole, whatever other threads count meanwhile.
        """
        with self._lock:
            self.n_seen += n_samples
            self.n_failed += len(failures)
            if failures and self.failed_since is None:
                self.failed_since = time.time()
            news = [kind for kind in dict.fromkeys(self._add(*failure) for failure in failures) if self._is_new(kind)]
            examples = {kind: list(self._examples.get(kind, ())) for kind in news}
        for kind in news:
            lines = "; ".join(examples[kind]) or "see the summary"
            logger.warning("%s: %s (more of this kind are counted and not logged)", kind, printable(lines))

    def check(self, error: Exception) -> None:
        """Raise ``BudgetSpent`` if more failed than was allowed; ``error`` is the one that was too much."""
        with self._lock:
            n_seen, n_failed = self.n_seen, self.n_failed
        if n_failed > n_allowed(self.budget, n_seen):
            raise BudgetSpent(
                f"{self.summary()}\n{counted(n_failed, 'failure')}, but budget={self.budget} allows "
                f"{n_allowed(self.budget, n_seen):,} among {counted(n_seen, 'sample')}; "
                "fix the rows above, or raise budget="
            ) from error

    def counts(self) -> dict[str, Any]:
        """All counts, as JSON."""
        with self._lock:
            return {
                "seen": self.n_seen,
                "failed": self.n_failed,
                "kinds": dict(self._kinds),
                "examples": {kind: list(lines) for kind, lines in self._examples.items()},
                "done": dict(self._done),
            }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from counts; what does not look like counts is refused and changes nothing."""
        seen, failed, kinds, examples, done = (
            state.get(key) if isinstance(state, Mapping) else None
            for key in ("seen", "failed", "kinds", "examples", "done")
        )
        numbers = [seen, failed, *(_values(kinds)), *(_values(done))]
        texts = [line for lines in _values(examples) for line in (lines if isinstance(lines, list) else [None])]
        # No count is larger; a share of what is beyond float64 could not be computed.
        are_counts = all(type(n) is int and 0 <= n < 2**63 for n in numbers)
        if not are_counts or not all(isinstance(line, str) for line in texts):
            raise ResumeError(f"Faults: no state of faults in {reprlib.repr(state)}; pass what state_dict() gave")
        with self._lock:
            self.n_seen, self.n_failed = int(seen or 0), int(failed or 0)
            self._kinds, self._done = dict(kinds or {}), dict(done or {})
            self._examples = {kind: list(lines) for kind, lines in (examples or {}).items()}

    def summary(self) -> str:
        """What happened, for people."""
        counts = self.counts()
        seen, failed = counts["seen"], counts["failed"]
        budget = f"budget {self.budget:,}" if isinstance(self.budget, int) else f"budget {100 * self.budget:g} %"
        summary = f"{failed:,} of {counted(seen, 'sample')} failed ({100 * failed / max(seen, 1):.2g} %, {budget})"
        kinds = ", ".join(f"{n:,} {kind}" for kind, n in sorted(counts["kinds"].items(), key=lambda kind: -kind[1]))
        done = ", ".join(f"{policy} {n:,}" for policy, n in counts["done"].items())
        lines = [f"  {kind}: {line}" for kind, examples in counts["examples"].items() for line in examples]
        head = summary + (f": {kinds}" if kinds else "") + (f"; {done}" if done else "")
        return "\n".join(map(printable, [head, *lines]))

    def _add(self, row: int, error: Exception) -> str:
        kind = name_of(error)
        if kind not in self._kinds and len(self._kinds) >= MAX_KINDS:
            kind = OTHERS
        self._kinds[kind] = self._kinds.get(kind, 0) + 1
        examples = self._examples.setdefault(kind, [])
        if len(examples) < MAX_EXAMPLES:
            examples.append(f"row {row}: {' '.join(str(error).split())[:MAX_TEXT]}")
        return kind

    def _is_new(self, kind: str) -> bool:
        is_new = kind not in self._logged
        self._logged.add(kind)
        return is_new


def _values(found: Any) -> list[Any]:
    """The values of a dict whose keys are text; a value that nothing accepts for anything else."""
    if isinstance(found, dict) and all(isinstance(key, str) for key in found):
        return list(found.values())
    return [None]
