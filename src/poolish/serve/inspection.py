"""Looking at a queue from outside, and discarding it: what `poolish queue` does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poolish.errors import CorruptDataError, QueueError, SchemaError
from poolish.files import local_path
from poolish.schema import readable
from poolish.serve.batch_file import read_file
from poolish.serve.fitting import Promise
from poolish.serve.marks import Progress
from poolish.serve.provider_notes import providers
from poolish.serve.queue_log import QueueLog
from poolish.serve.queue_meta import FILE, not_found
from poolish.serve.repair import purge
from poolish.serve.split_reader import Buried, check_rows, decoded


@dataclass(frozen=True)
class SplitStatus:
    """One split: ``published`` batches of which ``read`` were handed out and ``acknowledged`` are done for ever."""

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

    @property
    def waiting(self) -> int:
        """Published and not yet handed out."""
        return self.published - self.read


def queue_status(path: str | os.PathLike[str]) -> dict[str, SplitStatus]:
    """How each split of a queue stands; nothing is written, so this works in a directory that is read-only.

    >>> from poolish import DatasetProvider
    >>> with DatasetProvider([{"x": i} for i in range(8)], path=folder, batch_size=4) as provider:
    ...     number = provider.publish("train")
    >>> status = queue_status(folder)["train"]
    >>> status.published, status.read, status.waiting, status.made
    (1, 0, 1, {'w0': 1})
    """
    return {log.path.name: status_of(log) for log in opened(path)}


def opened(path: str | os.PathLike[str]) -> Iterator[QueueLog]:
    """The queues at a path, each open while it is looked at."""
    for folder in queue_folders(path):
        log = QueueLog.open(folder)
        try:
            yield log
        finally:
            log.close()


def status_of(log: QueueLog) -> SplitStatus:
    """How one split that is open stands."""
    progress = Progress(log)
    numbers, consumed = log.numbers(), log.consumed()
    read, done = progress.positions()
    progress.close()
    watermark = max(consumed.watermark, done)
    published = max([log.next_number(), watermark, *(number + 1 for number in numbers[-1:])])
    known = providers(log)
    return SplitStatus(
        split=log.path.name,
        queue=log.meta.queue,
        fingerprint=log.meta.fingerprint,
        published=published,
        read=min(max(read, watermark), published),
        acknowledged=watermark,
        on_disk=len(numbers),
        n_bytes=log.n_bytes(),
        dead=sum(1 for _ in (log.path / "dead").glob("*.json")),
        made={name: note.counter for name, (note, _) in known.items()},
        alive=[name for name, (_, is_alive) in known.items() if is_alive],
        quarantined=sum(1 for _ in (log.path.parent.parent / "quarantine" / log.path.name).glob("*.json")),
    )


def verify_queue(path: str | os.PathLike[str], *, on_file: Callable[[], object] = lambda: None) -> dict[str, list[str]]:
    """Read every batch that is there and check it; by split, what is wrong with it in words. Changes nothing.

    ``on_file`` is called after each file, for showing progress.
    """
    return {log.path.name: _problems(log, on_file) for log in opened(path)}


def read_batches(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The arrays of every batch that is there and whole, in order, without taking any of them out of the queue."""
    for log in opened(path):
        promise, watermark = Promise(log.meta.schema), log.consumed().watermark
        for number in log.numbers():
            if number < watermark:
                continue
            file = log.path_of(number)
            with suppress(CorruptDataError, SchemaError, FileNotFoundError):
                label, columns = decoded(log.meta, promise, read_file(file), file)
                check_rows(log, label.rows, file)
                yield {name: readable(array, dtype) for name, (dtype, array) in columns.items()}


def _problems(log: QueueLog, on_file: Callable[[], object]) -> list[str]:
    problems, promise = [], Promise(log.meta.schema)
    numbers, watermark = log.numbers(), log.consumed().watermark
    kept = [number for number in numbers if number >= watermark]
    missing = sorted(set(range(watermark, watermark + len(kept))) - set(kept))
    if missing:
        problems.append(f"batch {missing[0]} is missing: the log has a gap")
    for number in kept:
        file = log.path_of(number)
        try:
            label, _ = decoded(log.meta, promise, read_file(file), file)
            check_rows(log, label.rows, file)
        except Buried as error:
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
    return {folder.name: purge(folder) for folder in queue_folders(path)}


def queue_folders(path: str | os.PathLike[str]) -> list[Path]:
    """Where the queues at a path are, whole or not: a dataset's directory, its queue, or one split of it."""
    at = local_path(path, "queue", instead="the sources of a recipe")
    if os.path.lexists(at / FILE):
        return [at]
    for place in (at / "queue", at):
        found = sorted(place.glob(f"[!.]*/{FILE}")) if place.is_dir() else []
        if found:
            return [file.parent for file in found]
    if not at.exists():
        raise not_found(at)
    raise QueueError(f"{at}: no queue in it; give data/<dataset>, its queue, or a split of that")
