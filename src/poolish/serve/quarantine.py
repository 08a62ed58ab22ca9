"""What a provider's guard did not let into the queue: the rows themselves, and the reason of each.

    <dataset>/quarantine/<split>/<queue>-<provider>-<counter>.safetensors   the rows, as a batch file
                                 <queue>-<provider>-<counter>.json          which rows of which batch, and why

The JSON is written last, so where it is, all is. The same batch, made again after a kill, has the same name.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from poolish.columns import Mask
from poolish.errors import CorruptDataError, LimitExceeded
from poolish.files import explain_full, parse_json, publish, sweep, write_all
from poolish.guards.checks.verdicts import Result
from poolish.serve.batch_file import Columns, Label, encode

#: So many rows have their reason spelt out; the checks name all rows, as ranges.
MAX_REASONS = 10_000
MAX_BYTES = 64 * 2**20
VERSION = 1
#: What whoever reads a file may rely on.
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
    """The folder for one split's rejected rows; made when the first of them comes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if folder.is_dir():
            sweep(folder)

    def put(self, columns: Columns, label: Label, result: Result, which: Mask) -> Path:
        """Keep the rows of a batch that were turned away; the file that tells why."""
        with explain_full(self.folder):
            self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        place = self.folder / f"{label.queue[:8]}-{label.provider}-{label.counter:09d}.json"
        rows = {name: (dtype, array[which]) for name, (dtype, array) in columns.items()}
        told = _told(label, result, which, split=self.folder.name)
        with publish(place.with_suffix(".safetensors"), durable=False) as file:
            write_all(file.fileno(), encode(rows, _relabelled(label, int(which.sum()))))
        with publish(place, durable=False) as file:
            file.write(json.dumps(told, ensure_ascii=False, indent=1).encode())
        return place


def rejections(dataset: str | Path, split: str = "train") -> Iterator[dict[str, Any]]:
    """What is in quarantine for a split of a dataset, batch by batch in the order they were made.

    Each has ``provider``, ``counter``, ``suite``, ``n_rows``, ``checks`` and ``rejected``: ``row`` and ``reason`` of
    the rows that are to blame. ``file`` is where they are.
    """
    folder = Path(dataset) / "quarantine" / split
    found = [_read(path) for path in folder.glob("*.json")] if folder.is_dir() else []
    yield from sorted(found, key=lambda told: (told["time"], told["provider"], told["counter"]))


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():  # a pipe would be waited for
        raise CorruptDataError(f"{path}: not a regular file, which all of a quarantine are; remove it")
    if path.stat().st_size > MAX_BYTES:
        raise LimitExceeded(f"{path}: more than {MAX_BYTES:,} bytes; no file of a quarantine is so large")
    try:
        told = parse_json(path.read_text("utf-8"), path)
    except ValueError as error:
        raise CorruptDataError(f"{path}: not what a quarantine holds ({error}); remove it") from None
    if not isinstance(told, dict):
        raise CorruptDataError(f"{path}: not what a quarantine holds; remove it")
    for name, kind in _KINDS.items():
        if type(told.get(name)) is not kind:
            raise CorruptDataError(
                f"{path}: not what a quarantine holds, {name} is {told.get(name)!r:.60}, not {kind.__name__}; remove it"
            )
    return {**told, "file": str(path.with_suffix(".safetensors"))}


def _told(label: Label, result: Result, which: Mask, *, split: str) -> dict[str, Any]:
    blamed = np.zeros(len(which), np.bool_)
    checks = []
    for verdict in result.failures:
        if verdict.action != "log":
            bad = verdict.bad if verdict.bad is not None else np.zeros(len(which), np.bool_)
            blamed |= bad
            told = {"check": verdict.title, "severity": verdict.severity, "found": str(verdict), "rows": ranges(bad)}
            checks.append(told)
    few = blamed & which
    few[np.flatnonzero(few)[MAX_REASONS:]] = False
    reasons = result.rejected(few).to_pylist()
    return {
        "version": VERSION,
        "split": split,
        "queue": label.queue,
        "provider": label.provider,
        "counter": label.counter,
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
    """The numbers of the rows that are marked, in words.

    >>> ranges(np.array([True, True, True, False, True, False]))
    '0-2, 4'
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    pairs = edges.reshape(-1, 2)
    return ", ".join(f"{first}-{last - 1}" if last - first > 1 else str(first) for first, last in pairs.tolist())


def _relabelled(label: Label, rows: int) -> Label:
    return Label(label.queue, label.schema, rows, label.provider, label.counter)
