"""Inspect a queue from outside, and discard it: what `poolish queue` does.

Status and health write nothing and keep no lock, so any process may ask.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

from poolish.errors import CorruptDataError, PoolishError, QueueError, SchemaError
from poolish.health import Health, Problem
from poolish.schema import Field
from poolish.serve.ranks import AttemptProgress
from poolish.transports import Place, queues_at
from poolish.transports.batch_columns import numpy_columns, type_text
from poolish.transports.batch_file import BatchVerifier, TombstoneError
from poolish.transports.protocols import Log


@dataclass(frozen=True)
class SplitStatus:
    """One split: ``published`` batches of which ``read`` were handed out and ``acknowledged`` are done for ever.

    ``fields`` says what each row of a field is.
    """

    split: str
    queue: str
    fingerprint: str
    published: int
    read: int
    acknowledged: int
    on_disk: int
    n_bytes: int
    dead: int
    made: dict[str, int]
    alive: list[str]
    quarantined: int = 0
    fields: dict[str, str] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        """Published and not yet handed out."""
        return self.published - self.read


def queue_status(path: str | os.PathLike[str]) -> dict[str, SplitStatus]:
    """The status of each split of a queue; nothing is written, so a read-only directory works too.

    >>> from poolish import DatasetProvider
    >>> with DatasetProvider([{"x": i} for i in range(8)], path=folder, batch_size=4) as provider:
    ...     number = provider.publish("train")
    >>> status = queue_status(folder)["train"]
    >>> status.published, status.read, status.waiting, status.made
    (1, 0, 1, {'w0': 1})
    """
    return {log.split: status_of(log) for log in opened(path)}


def opened(path: str | os.PathLike[str]) -> Iterator[Log]:
    """The queues at a path, each open while it is inspected."""
    for place, split in queues_at(path):
        with closing(place.open(split, read_only=True)) as log:
            yield log


def status_of(log: Log) -> SplitStatus:
    """The status of one open split."""
    progress = AttemptProgress(log)
    numbers, consumed = log.numbers(), log.consumed()
    read, done = progress.positions()
    progress.close()
    watermark = max(consumed.watermark, done)
    published = max(log.next_number(), log.end(), watermark)
    known = log.providers.known()
    return SplitStatus(
        split=log.split,
        queue=log.meta.queue,
        fingerprint=log.meta.fingerprint,
        published=published,
        read=min(max(read, watermark), published),
        acknowledged=watermark,
        on_disk=len(numbers),
        n_bytes=log.n_bytes(),
        dead=len(log.dead()),
        made={name: record.counter for name, (record, _) in known.items()},
        alive=[name for name, (_, is_alive) in known.items() if is_alive],
        quarantined=len(log.quarantined()),
        fields={each.name: _type_of(each) for each in log.meta.schema},
    )


def _type_of(field: Field) -> str:
    """What each row of a field is, in words: ``int32[any, 4]`` or ``string``."""
    return str(field.dtype) if field.shape is None else type_text(str(field.dtype), field.shape)


def verify_queue(path: str | os.PathLike[str], *, on_file: Callable[[], object] = lambda: None) -> dict[str, list[str]]:
    """Read every batch that is there and check it; by split, what is wrong with it. Changes nothing.

    ``on_file`` is called after each file, for showing progress.
    """
    return {log.split: _problems(log, on_file) for log in opened(path)}


def read_batches(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The arrays of every batch that is there and whole, in order, without taking any of them out of the queue."""
    for log in opened(path):
        verifier, watermark = BatchVerifier(log), log.consumed().watermark
        for number in log.numbers():
            if number < watermark:
                continue
            with suppress(CorruptDataError, SchemaError, FileNotFoundError):
                yield numpy_columns(verifier.verified(log.read(number), log.name_of(number))[1])


def _problems(log: Log, on_file: Callable[[], object]) -> list[str]:
    problems, verifier = [], BatchVerifier(log)
    numbers, watermark = log.numbers(), log.consumed().watermark
    kept = [number for number in numbers if number >= watermark]
    missing = sorted(set(range(watermark, watermark + len(kept))) - set(kept))
    if missing:
        problems.append(f"batch {missing[0]} is missing: the log has a gap")
    for number in kept:
        try:
            verifier.verified(log.read(number), log.name_of(number))
        except TombstoneError as error:
            problems.append(str(error))
        except FileNotFoundError:
            continue  # read and deleted meanwhile
        except (CorruptDataError, SchemaError, QueueError) as error:
            if number >= log.consumed().watermark:  # else it was written over meanwhile
                problems.append(str(error))
        finally:
            on_file()
    return problems


def purge_queue(path: str | os.PathLike[str]) -> dict[str, int]:
    """Discard a queue, or one split of it, in one step each; how many batches went, by split."""
    return {split: place.purge(split) for place, split in queues_at(path)}


# Health -------------------------------------------------------------------------------------------------------


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
    return {log.split: split_health(log) for log in opened(path)}


def health_at(place: Place, split: str) -> Health:
    """The health of a split; a queue that is gone or cannot be read is its problem, and no error."""
    try:
        with closing(place.open(split, read_only=True)) as log:
            return split_health(log)
    except (PoolishError, OSError) as error:
        return Health((Problem(str(error), None, "start the provider again, then the trainer"),))


def split_health(log: Log) -> Health:
    """The same of one split that is open."""
    status = status_of(log)
    ranks = log.marks.alive()
    figures = {
        **{name: getattr(status, name) for name in ("published", "waiting", "acknowledged", "dead", "quarantined")},
        "on_disk_bytes": status.n_bytes,
        "free_bytes": log.free_bytes(),
        "providers_alive": status.alive,
        "ranks_alive": ranks,
    }
    return Health((), figures).plus(
        _without_provider(log), _full(log, status, bool(ranks)), _short_of_disk(log), _dead(log, status), _kept_out(log)
    )


def _without_provider(log: Log) -> Problem | None:
    known = log.providers.known()
    unfinished = [name for name, (record, _) in known.items() if not record.finished]
    if any(alive for _, alive in known.values()) or (known and not unfinished):
        return None
    what = f"no provider is alive, and {', '.join(unfinished)} has not finished" if known else "it never had a provider"
    since = log.providers.changed_at()
    return Problem(what, since, "start one with `poolish prepare CONFIG`")


def _full(log: Log, status: SplitStatus, is_read: bool) -> Problem | None:
    """A full backlog is as it should be while a trainer reads it: the provider is the faster one."""
    if is_read or status.waiting < log.meta.limits.get("max_backlog", status.waiting + 1):
        return None
    numbers = log.numbers()
    since = log.published_at(numbers[-1]) if numbers else None
    what = f"{status.waiting:,} batches wait (max_backlog) and no trainer reads"
    return Problem(what, since, "start the trainer, or stop the providers")


def _short_of_disk(log: Log) -> Problem | None:
    limits = log.meta.limits
    if log.free_bytes() < limits.get("min_free_bytes", 0):
        what = f"the disk has {log.free_bytes() / 2**20:,.0f} MiB left (min_free_bytes), so the providers wait"
        return Problem(what, None, f"make room on the disk of {log.place}")
    if log.n_bytes() > limits.get("max_backlog_bytes", log.n_bytes()):
        what = f"{log.n_bytes() / 2**20:,.0f} MiB wait for acknowledgement (max_backlog_bytes)"
        return Problem(what, None, "save checkpoints more often and call consumer.commit(state), or raise the limit")
    return None


def _dead(log: Log, status: SplitStatus) -> Problem | None:
    if not status.dead:
        return None
    action = f"read the reasons in {log.place}/dead; check the disk, and use on_corrupt='cached' to train on"
    return Problem(f"{status.dead:,} batches are damaged or lost", min(log.dead(), default=None), action)


def _kept_out(log: Log) -> Problem | None:
    rejected = log.quarantined()
    if not rejected:
        return None
    what = f"the guard kept rows of {len(rejected):,} batches out"
    return Problem(what, min(rejected), "read the reasons with poolish.serve.rejections()")
