"""The health of a queue, seen from outside: nothing is written, no lock is kept, any process may ask."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from poolish.errors import PoolishError
from poolish.health import Health, Problem
from poolish.serve.inspection import SplitStatus, opened, status_of
from poolish.serve.provider_notes import is_alive, providers
from poolish.serve.queue_log import QueueLog


def queue_health(path: str | os.PathLike[str]) -> dict[str, Health]:
    """By split of the queue at ``path``: what is wrong, since when, what to do.

    >>> from poolish import DatasetProvider
    >>> with DatasetProvider([{"x": i} for i in range(8)], path=folder, batch_size=4) as provider:
    ...     number = provider.publish("train")
    ...     queue_health(folder)["train"].ok
    True
    >>> queue_health(folder)["train"].problems[0].what
    'no provider is alive, and w0 has not finished'
    """
    return {log.path.name: split_health(log) for log in opened(path)}


def health_at(path: Path) -> Health:
    """The health of the split at a path; a queue that is gone or cannot be read is its problem, and no error."""
    try:
        return queue_health(path)[path.name]
    except (PoolishError, OSError) as error:
        return Health((Problem(str(error), None, "start the provider again, then the trainer"),))


def split_health(log: QueueLog) -> Health:
    """The same of one split that is open."""
    status = status_of(log)
    ranks = [lock.stem for lock in (log.path / "marks").glob("*.lock") if is_alive(lock)]
    figures = {
        **{name: getattr(status, name) for name in ("published", "waiting", "acknowledged", "dead", "quarantined")},
        "on_disk_bytes": status.n_bytes,
        "free_bytes": log.free_bytes(),
        "providers_alive": status.alive,
        "ranks_alive": sorted(map(int, filter(str.isdecimal, ranks))),
    }
    return Health((), figures).plus(
        _without_provider(log), _full(log, status, bool(ranks)), _short_of_disk(log), _dead(log, status), _kept_out(log)
    )


def _without_provider(log: QueueLog) -> Problem | None:
    known = providers(log)
    unfinished = [name for name, (note, _) in known.items() if not note.finished]
    if any(alive for _, alive in known.values()) or (known and not unfinished):
        return None
    what = f"no provider is alive, and {', '.join(unfinished)} has not finished" if known else "it never had a provider"
    since = _newest((log.path / "providers").glob("*.json"))
    return Problem(what, since, "start one with `poolish prepare CONFIG`")


def _full(log: QueueLog, status: SplitStatus, is_read: bool) -> Problem | None:
    """A full backlog is as it should be while a trainer reads it: the provider is the faster one."""
    if is_read or status.waiting < log.meta.limits.get("max_backlog", status.waiting + 1):
        return None
    since = _newest(log.path_of(number) for number in log.numbers()[-1:])
    what = f"{status.waiting:,} batches wait (max_backlog) and no trainer reads"
    return Problem(what, since, "start the trainer, or stop the providers")


def _short_of_disk(log: QueueLog) -> Problem | None:
    limits = log.meta.limits
    if log.free_bytes() < limits.get("min_free_bytes", 0):
        what = f"the disk has {log.free_bytes() / 2**20:,.0f} MiB left (min_free_bytes), so the providers wait"
        return Problem(what, None, f"make room on the disk of {log.path}")
    if log.n_bytes() > limits.get("max_backlog_bytes", log.n_bytes()):
        what = f"{log.n_bytes() / 2**20:,.0f} MiB wait for acknowledgement (max_backlog_bytes)"
        return Problem(what, None, "save checkpoints more often and call consumer.commit(state), or raise the limit")
    return None


def _dead(log: QueueLog, status: SplitStatus) -> Problem | None:
    if not status.dead:
        return None
    folder = log.path / "dead"
    action = f"read the reasons in {folder}; check the disk, and use on_corrupt='cached' to train on"
    return Problem(f"{status.dead:,} batches are damaged or lost", _oldest(folder.glob("*.json")), action)


def _kept_out(log: QueueLog) -> Problem | None:
    folder = log.path.parent.parent / "quarantine" / log.path.name
    found = list(folder.glob("*.json"))
    if not found:
        return None
    what = f"the guard kept rows of {len(found):,} batches out"
    return Problem(what, _oldest(found), f"read the reasons in {folder}, or with poolish.serve.rejections()")


def _oldest(files: Iterable[Path]) -> float | None:
    return min(_times(files), default=None)


def _newest(files: Iterable[Path]) -> float | None:
    return max(_times(files), default=None)


def _times(files: Iterable[Path]) -> list[float]:
    """When files were written; those that are gone by now are left out."""
    found = []
    for file in files:
        try:
            found.append(file.stat().st_mtime)
        except FileNotFoundError:
            continue
    return found
