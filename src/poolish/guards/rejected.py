"""Rejected: what a door did not let in, counted in full and kept in part, with the reasons."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from poolish.guards.leaves import Mask
from poolish.guards.verdicts import Result
from poolish.health import Health, Problem
from poolish.printable import printable
from poolish.schema.arrow import unsliced

MAX_ROWS = 1_000
MAX_BYTES = 64 * 2**20


class Tally(NamedTuple):
    """Rows that were kept out, up to some append; never changed, so that a buffer publishes it with its rows."""

    n_rows: int
    n_appends: int
    reasons: Counter[str]
    kept: Sequence[pa.Table]
    since: float | None = None

    def plus(self, table: pa.Table, result: Result, which: Mask) -> Tally:
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
        return Tally(self.n_rows + len(bad), self.n_appends + 1, reasons, _newest([*self.kept, bad]), since)


class Rejected:
    """Rows that a guard kept out of a buffer.

    ``n_rows`` and ``reasons`` count all of them. ``rows`` are the newest, at most 1,000 and 64 MiB, with three columns
    before their own: ``rejected_row`` (the number in its append), ``rejected_reason`` and ``rejected_append``.
    """

    def __init__(self) -> None:
        self.tally = Tally(0, 0, Counter(), ())
        self.lock = threading.Lock()

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
        return Health((Problem(f"the guard kept {tally.n_rows:,} rows out ({reasons})", tally.since, action),), figures)

    def add(self, table: pa.Table, result: Result, which: Mask) -> None:
        """Count and keep some rows of an append."""
        with self.lock:
            self.tally = self.tally.plus(table, result, which)

    def clear(self) -> None:
        """Forget the rows and the counts."""
        with self.lock:
            self.tally = Tally(0, 0, Counter(), ())

    def __len__(self) -> int:
        return self.n_rows

    def __bool__(self) -> bool:
        return self.n_rows > 0

    def __repr__(self) -> str:
        told = printable(", ".join(f"{title}: {n:,}" for title, n in self.reasons.most_common()))
        return f"<Rejected {self.n_rows:,} rows of {self.n_appends:,} appends{': ' if told else ''}{told}>"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, lock=threading.Lock())


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
