"""Guard: the check at a boundary, what the boundary does with its result, and the rows that it rejected.

Boundaries are ``DatasetBuffer.append``, a provider, a consumer, a loader, ``bake``. Each takes anything that looks at
rows and answers with ``ok``, ``mask`` and ``verdicts``: a ``Suite``, a guard for streams that a suite made, or a
function of your own. ``Rejected`` counts all rejected rows with their reasons, and keeps the newest.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from poolish.columns import Mask, TableView
from poolish.concurrency import Locked
from poolish.errors import ConfigError, DataRefused
from poolish.guards.checks.stream import StreamGuard
from poolish.guards.checks.suite import Suite
from poolish.guards.checks.verdicts import ACTIONS, Action, Result, Verdict
from poolish.health import Health, Problem
from poolish.printable import counted, nearest, printable
from poolish.schema.types import unsliced

logger = logging.getLogger("poolish.guards")


class Finding(Protocol):
    """What a guard answers: whether the rows are good, which of them, and why not. ``Result`` is one."""

    @property
    def ok(self) -> bool:
        """Whether all is well."""

    @property
    def mask(self) -> Mask:
        """True for every good row."""

    @property
    def verdicts(self) -> Sequence[Any]:
        """What was found; each has a text."""


class Guard(Protocol):
    """Looks at rows (a ``pa.Table``, or columns by name) on their way through a boundary."""

    def __call__(self, rows: Any, /) -> Finding:
        """What it finds."""


def check_guard(guard: Any, boundary: str) -> Guard | None:
    """The guard, if it is one. A suite is in use from here on, and refuses changes."""
    if guard is not None and not callable(guard):
        raise ConfigError(f"{boundary}: a guard is a Suite, or a function of rows, got {guard!r}")
    checked: Guard | None = guard.in_use(boundary) if isinstance(guard, Suite) else guard
    return checked


def ask(guard: Guard, rows: Any, owner: object = None, stream: str = "") -> Result:
    """The result of a guard for rows; a guard that is no suite refuses all rows if its answer is not ok.

    A guard with a memory serves one ``stream`` of one ``owner``: windows of rows of several would mean nothing.
    """
    if owner is not None and isinstance(guard, StreamGuard):
        guard.claim(owner, stream)
    found = guard(rows)
    if isinstance(found, Result):
        _log.say(found)
        return found
    seen = TableView.of(rows)
    try:
        mask, is_ok = np.asarray(found.mask), bool(found.ok)
        texts = [str(verdict) for verdict in found.verdicts]
    except AttributeError as error:
        raise ConfigError(f"a guard answers with ok, mask and verdicts ({error})") from None
    if mask.shape != (len(seen),) or mask.dtype != bool:
        raise ConfigError(
            f"a guard's mask has True or False for each of {counted(len(seen), 'row')}, got {mask.dtype}{mask.shape}"
        )
    if is_ok and not mask.all():
        blamed = counted(int((~mask).sum()), "row")
        raise ConfigError(f"a guard said ok and blamed {blamed}; its ok is False where its mask is")
    action: Action = getattr(found, "action", "refuse")
    if action not in ACTIONS:
        known = ", ".join(map(repr, ACTIONS))
        raise ConfigError(f"the action of a guard's answer: one of {known}, got {action!r}{nearest(action, ACTIONS)}")
    status = "ok" if is_ok else "failed"
    detail = "; ".join(texts)
    name = getattr(guard, "__name__", type(guard).__name__)
    verdict = Verdict(
        name, (), "error", "meaning", status, len(seen), int((~mask).sum()), detail, action=action, bad=~mask
    )
    answer = Result([verdict], seen, name=name)
    _log.say(answer)
    return answer


def passed(result: Result, place: str) -> Mask | None:
    """Which rows may pass, where a caller waits for the answer: None for all, else True for each that may.

    ``refuse`` and ``raise`` are a ``DataRefused``; after ``skip`` no row passes.
    """
    action = result.action
    if action == "log":
        return None
    if action in ("refuse", "raise"):
        raise refusal(result, place)
    return result.kept


def refusal(result: Result, place: str) -> DataRefused:
    """The error for rows that may not pass."""
    return result.error(place, 'fix them, or keep only the valid rows with suite.copy().on(error="drop")')


class _Log:
    """Each failing check is logged once per process with its first examples; all are counted by the boundaries."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], object] = {}

    def say(self, result: Result) -> None:
        for verdict in result.failures:
            if len(self._said) >= 10_000:
                return
            mine = object()
            # The first of several threads wins. Not under a lock: a process forked meanwhile could never take it.
            if self._said.setdefault((result.name, verdict.title), mine) is mine:
                logger.warning(
                    "%s: %s (%s; more of this kind are counted and not logged)",
                    printable(result.name),
                    verdict,
                    verdict.action,
                )


_log = _Log()

MAX_ROWS = 1_000
MAX_BYTES = 64 * 2**20


class RejectedCounts(NamedTuple):
    """Rows that were kept out, up to some append; never changed, so that a buffer publishes it with its rows."""

    n_rows: int
    n_appends: int
    reasons: Counter[str]
    kept: Sequence[pa.Table]
    since: float | None = None

    def plus(self, table: pa.Table, result: Result, which: Mask) -> RejectedCounts:
        """With some rows of another append."""
        reasoned = result.rejected(which)
        bad = unsliced(table).filter(pa.array(which)).combine_chunks()
        front = {
            "rejected_append": pa.array([self.n_appends] * len(bad), pa.int64()),
            "rejected_row": reasoned["row"],
            "rejected_reason": reasoned["reason"],
        }
        for i, (name, values) in enumerate(front.items()):
            bad = bad.add_column(i, name, values)
        reasons = self.reasons.copy()
        for verdict in result.failures:
            if verdict.action != "log":
                reasons[verdict.title] += int((verdict.bad & which).sum()) if verdict.bad is not None else len(bad)
        since = time.time() if self.since is None else self.since
        return RejectedCounts(self.n_rows + len(bad), self.n_appends + 1, reasons, _newest([*self.kept, bad]), since)


class Rejected(Locked):
    """Rows that a guard kept out of a buffer.

    ``n_rows`` and ``reasons`` count all of them. ``rows`` are the newest, at most 1,000 and 64 MiB, with three columns
    before their own: ``rejected_row`` (the number in its append), ``rejected_reason`` and ``rejected_append``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tally = RejectedCounts(0, 0, Counter(), ())

    @property
    def n_rows(self) -> int:
        """How many there were."""
        return self.tally.n_rows

    @property
    def n_appends(self) -> int:
        """How many appends brought them."""
        return self.tally.n_appends

    @property
    def reasons(self) -> Counter[str]:
        """How many rows broke each rule."""
        return self.tally.reasons

    @property
    def rows(self) -> pa.Table:
        """The newest of them, oldest first."""
        kept = self.tally.kept
        return pa.concat_tables(kept, promote_options="permissive") if kept else pa.table({})

    def health(self) -> Health:
        """Whether nothing was kept out since the start, or since ``clear``."""
        tally = self.tally
        figures = {"rejected_rows": tally.n_rows, "rejected_appends": tally.n_appends}
        if not tally.n_rows:
            return Health((), figures)
        reasons = ", ".join(f"{title}: {n:,}" for title, n in tally.reasons.most_common(3))
        action = "look at buffer.rejected.rows and repair what produces them; buffer.rejected.clear() begins anew"
        what = f"the guard kept {counted(tally.n_rows, 'row')} out ({reasons})"
        return Health((Problem(what, tally.since, action),), figures)

    def add(self, table: pa.Table, result: Result, which: Mask) -> None:
        """Count and keep some rows of an append."""
        with self.lock:
            self.tally = self.tally.plus(table, result, which)

    def clear(self) -> None:
        """Forget the rows and the counts."""
        with self.lock:
            self.tally = RejectedCounts(0, 0, Counter(), ())

    def __len__(self) -> int:
        return self.n_rows

    def __bool__(self) -> bool:
        return self.n_rows > 0

    def __repr__(self) -> str:
        reasons = printable(", ".join(f"{title}: {n:,}" for title, n in self.reasons.most_common()))
        counts = f"{counted(self.n_rows, 'row')} of {counted(self.n_appends, 'append')}"
        return f"<Rejected {counts}{': ' if reasons else ''}{reasons}>"

    @property
    def lock(self) -> threading.RLock:
        """Held while a change is published together with the rows that it belongs to."""
        return self._lock


def _newest(tables: list[pa.Table]) -> list[pa.Table]:
    """The last tables that fit the limits, the first of them cut."""
    kept: list[pa.Table] = []
    n_left, bytes_left = MAX_ROWS, MAX_BYTES
    for table in reversed(tables):
        if n_left <= 0 or bytes_left <= 0:
            break
        n_fitting = min(n_left, len(table), max(1, bytes_left * len(table) // max(table.nbytes, 1)))
        part = table.slice(len(table) - n_fitting)
        kept.insert(0, part if n_fitting == len(table) else part.combine_chunks())
        n_left, bytes_left = n_left - n_fitting, bytes_left - part.nbytes
    return kept
