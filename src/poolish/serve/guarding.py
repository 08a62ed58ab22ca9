"""Guards at both ends of a queue: what a provider does with a bad batch, and what a consumer does.

A provider quarantines the rows and makes the next batch, until its budget is spent. A consumer has a waiting trainer:
it raises, or by the suite's choice leaves the batch or the rows out.

    <dataset>/quarantine/<split>/<queue>-<provider>-<counter>.safetensors   the rows, as a batch file
                                 <queue>-<provider>-<counter>.json          which rows of which batch, and why

The JSON is written last, so where it exists, the rows do. The same batch, made again after a kill, has the same name.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from poolish.columns import Mask
from poolish.errors import BudgetSpent, ConfigError, CorruptDataError, DataRefused, LimitExceeded
from poolish.files import parse_json, publish, raising_store_full, sweep, write_all
from poolish.guards.checks.guard import Guard, ask, passed, refusal
from poolish.guards.checks.verdicts import Result
from poolish.guards.faults.budget import check_budget, n_allowed
from poolish.printable import counted
from poolish.ragged import Ragged
from poolish.transports.batch_columns import Columns, arrow_column, numpy_columns
from poolish.transports.batch_file import BatchMetadata, encode


class Quarantined(DataRefused):
    """A whole batch was quarantined; the provider may continue."""


class ProviderGuard:
    """Guards the batches of one split: quarantines what does not pass, and counts it.

    ``max_rejected`` is a number of batches, or a share of those made; of a batch that lost some of its rows only that
    part counts. guards/faults/budget.py says how a share is judged while there are few.
    """

    def __init__(self, guard: Guard, folder: Path, max_rejected: float) -> None:
        self._guard, self._quarantine, self._budget = guard, Quarantine(folder), max_rejected
        self.n_seen = self.n_rejected = self.n_rejected_rows = 0
        self._rejected = 0.0

    def admit(self, columns: Columns, metadata: BatchMetadata, place: str) -> tuple[Columns, int]:
        """The columns that may be published, and how many rows; ``Quarantined`` if there are none."""
        result = ask(self._guard, seen(columns), self, self._quarantine.folder.name)
        self.n_seen += 1
        kept = None if result.action == "log" else result.kept
        if kept is None:
            return columns, metadata.rows
        file = self._quarantine.put(columns, metadata, result, ~kept)
        n_kept = int(kept.sum())
        self.n_rejected += n_kept == 0
        self.n_rejected_rows += metadata.rows - n_kept
        self._rejected += (metadata.rows - n_kept) / metadata.rows
        if result.action == "raise":
            raise refusal(result, f"{place} (kept in {file})")
        if n_kept == 0:
            error = Quarantined(str(result.error(place, f"it is kept in {file}")))
            error.result = result
            raise error
        return {name: (dtype, array[kept]) for name, (dtype, array) in columns.items()}, n_kept

    def check_budget(self, place: str) -> None:
        """Raise if more was rejected than the user allows."""
        allowed = n_allowed(self._budget, self.n_seen)
        if self._rejected > allowed:
            raise BudgetSpent(
                f"{place}: {self._rejected:,.4g} of {counted(self.n_seen, 'batch')} rejected, "
                f"max_rejected={self._budget} allows {allowed:,}; "
                f"look at {self._quarantine.folder}, then fix the source or raise max_rejected="
            )


class ConsumerGuard:
    """Guards the batches that a consumer is about to hand out."""

    def __init__(self, guard: Guard, rank: int, world_size: int) -> None:
        self._guard, self._rank, self._world_size = guard, rank, world_size

    def kept(self, columns: Columns, place: str, split: str) -> Mask | None:
        """Which rows the trainer gets, None for all. If none: skip the batch."""
        result: Result = ask(self._guard, seen(columns), self, split)
        kept = passed(result, place)
        if kept is not None and not kept.any() and self._world_size > 1:
            raise result.error(
                f"{place}, rank {self._rank} of {self._world_size}",
                "a rank that leaves a batch out would be out of step with the others: guard the provider instead",
            )
        return None if kept is None or kept.all() else kept


def seen(columns: Columns) -> dict[str, Any]:
    """The columns of a batch as a guard sees them: numbers that NumPy can calculate with, Arrow where rows differ."""
    variable = {name: arrow_column(each, dtype) for name, (dtype, each) in columns.items() if isinstance(each, Ragged)}
    fixed = {name: column for name, column in columns.items() if name not in variable}
    found = {name: array.view() for name, array in numpy_columns(fixed).items()}
    for array in found.values():
        array.flags.writeable = False  # what a guard wrote here would be published
    return {name: variable[name] if name in variable else found[name] for name in columns}


def check_max_rejected(max_rejected: float) -> float:
    """The budget, if it is one."""
    try:
        return check_budget(max_rejected)
    except ConfigError as error:
        raise ConfigError(f"max_rejected: {str(error).partition(': ')[2]}") from None


# Quarantine ---------------------------------------------------------------------------------------------------

#: How many rows have their reason written out; the checks name all rows, as ranges.
MAX_REASONS = 10_000
MAX_BYTES = 64 * 2**20
VERSION = 1
#: What readers of a file may rely on.
_KINDS = {
    "provider": str,
    "counter": int,
    "time": str,
    "n_rows": int,
    "n_rejected": int,
    "checks": list,
    "rejected": list,
}


class Quarantine:
    """The folder for one split's rejected rows; created with the first of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if folder.is_dir():
            sweep(folder)

    def put(self, columns: Columns, metadata: BatchMetadata, result: Result, which: Mask) -> Path:
        """Write the rejected rows of a batch; returns the file with the reasons."""
        with raising_store_full(self.folder):
            self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        place = self.folder / f"{metadata.queue[:8]}-{metadata.provider}-{metadata.counter:09d}.json"
        rows = {name: (dtype, array[which]) for name, (dtype, array) in columns.items()}
        report = _report(metadata, result, which, split=self.folder.name)
        with publish(place.with_suffix(".safetensors"), durable=False) as file:
            write_all(file.fileno(), encode(rows, replace(metadata, rows=int(which.sum()))))
        with publish(place, durable=False) as file:
            file.write(json.dumps(report, ensure_ascii=False, indent=1).encode())
        return place


def rejections(dataset: str | Path, split: str = "train") -> Iterator[dict[str, Any]]:
    """What is quarantined for a split of a dataset, batch by batch in the order they were made.

    Each has ``provider``, ``counter``, ``suite``, ``n_rows``, ``checks`` and ``rejected``: ``row`` and ``reason`` of
    the rows that failed. ``file`` holds them.
    """
    folder = Path(dataset) / "quarantine" / split
    found = [_read(path) for path in folder.glob("*.json")] if folder.is_dir() else []
    yield from sorted(found, key=lambda report: (report["time"], report["provider"], report["counter"]))


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():  # a pipe would be waited for
        raise CorruptDataError(f"{path}: not a regular file, as all files of a quarantine are; remove it")
    if path.stat().st_size > MAX_BYTES:
        raise LimitExceeded(f"{path}: more than {MAX_BYTES:,} bytes; no file of a quarantine is that large")
    try:
        report = parse_json(path.read_text("utf-8"), path)
    except ValueError as error:
        raise CorruptDataError(f"{path}: not what a quarantine holds ({error}); remove it") from None
    if not isinstance(report, dict):
        raise CorruptDataError(f"{path}: not what a quarantine holds; remove it")
    for name, kind in _KINDS.items():
        if type(report.get(name)) is not kind:
            raise CorruptDataError(
                f"{path}: not what a quarantine holds, {name} is {report.get(name)!r:.60}, not {kind.__name__}; "
                "remove it"
            )
    return {**report, "file": str(path.with_suffix(".safetensors"))}


def _report(metadata: BatchMetadata, result: Result, which: Mask, *, split: str) -> dict[str, Any]:
    blamed = np.zeros(len(which), np.bool_)
    checks = []
    for verdict in result.failures:
        if verdict.action != "log":
            bad = verdict.bad if verdict.bad is not None else np.zeros(len(which), np.bool_)
            blamed |= bad
            found = {"check": verdict.title, "severity": verdict.severity, "found": str(verdict), "rows": ranges(bad)}
            checks.append(found)
    few = blamed & which
    few[np.flatnonzero(few)[MAX_REASONS:]] = False
    reasons = result.rejected(few).to_pylist()
    return {
        "version": VERSION,
        "split": split,
        "queue": metadata.queue,
        "provider": metadata.provider,
        "counter": metadata.counter,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "suite": result.name,
        "action": result.action,
        "n_rows": len(which),
        "n_rejected": int(which.sum()),
        "rows": ranges(which),
        "checks": checks,
        "rejected": [{"row": each["row"], "reason": each["reason"]} for each in reasons],
    }


def ranges(mask: Mask) -> str:
    """The numbers of the marked rows as text.

    >>> ranges(np.array([True, True, True, False, True, False]))
    '0-2, 4'
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    pairs = edges.reshape(-1, 2)
    return ", ".join(f"{first}-{last - 1}" if last - first > 1 else str(first) for first, last in pairs.tolist())
