"""What is done to a queue when something went wrong: after kills and power cuts, with corrupt batches, and purging."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path

from poolish.errors import CorruptDataError, QueueError
from poolish.files import Lock, explain_full, publish, sweep, write_all, write_json
from poolish.serve.batch_file import Label, encode
from poolish.serve.queue_log import FOLDERS, LOCK_TIMEOUT_S, QueueLog, missing_told

_MAX_MISSING = 10_000
LOST = "its file is missing: lost in a power cut, or removed by hand"

logger = logging.getLogger("poolish.serve")


def recover(log: QueueLog) -> None:
    """Clean up after those who were killed, and after a power cut."""
    with missing_told(log):
        for folder in (log.path, *(log.path / name for name in FOLDERS)):
            sweep(folder)
    with log.locked():
        log.delete_done()
        _pass_removed(log)
        watermark = log.consumed().watermark
        kept = [number for number in log.numbers() if number >= watermark]
        for number in _missing(log, watermark, kept):
            _bury(log, number, LOST)  # only a power cut can do this, to files that were not synced
        log.note_next(max([log.next_number(), watermark, *(number + 1 for number in kept[-1:])]))


def pass_removed(log: QueueLog) -> None:
    """Go on after the last number where the files of all batches were removed by hand, and say so."""
    with log.locked():
        _pass_removed(log)


def _pass_removed(log: QueueLog) -> None:
    removed = log.pass_removed()
    if removed:
        logger.warning(
            "%s: all %s batches that waited here, %d to %d, were removed by hand; going on with batch %d",
            *(log.path, f"{len(removed):,}", removed.start, removed.stop - 1, removed.stop),
        )


def _missing(log: QueueLog, watermark: int, kept: list[int]) -> list[int]:
    n_missing = kept[-1] + 1 - watermark - len(kept) if kept else 0
    if n_missing > _MAX_MISSING:
        raise CorruptDataError(
            f"{log.path}: {n_missing:,} numbers are missing between {watermark:,} and {kept[-1]:,}; "
            "remove the file that does not belong here, or purge the queue"
        )
    return sorted(set(range(watermark, watermark + len(kept) + n_missing)) - set(kept))


def bury(log: QueueLog, number: int, reason: str) -> None:
    """Move a corrupt batch to dead/ and leave a tombstone, which keeps its number."""
    with log.locked():
        if number >= log.consumed().watermark:  # else it was done with meanwhile, and nothing is made below that
            _bury(log, number, reason[:500])


def _bury(log: QueueLog, number: int, reason: str) -> None:
    label = log.label(number)
    if label is not None and label.tombstone:
        return
    place, dead = log.path_of(number), log.path / "dead" / f"{number:012d}.safetensors"
    told = {"number": number, "reason": reason, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    write_json(dead.with_suffix(".json"), told, durable=False)
    with suppress(FileNotFoundError, FileExistsError), explain_full(dead):
        if stat.S_ISDIR(os.lstat(place).st_mode):
            os.rename(place, dead)
        else:  # a link, so that at no moment the number is free
            os.link(place, dead, follow_symlinks=False)
    provider, counter = (label.provider, label.counter) if label else ("", 0)
    stone = Label(log.meta.queue, log.meta.schema.fingerprint, 0, provider, counter, reason)
    with publish(place, durable=False) as file:
        write_all(file.fileno(), encode({}, stone))


def purge(path: Path) -> int:
    """Remove a split's queue in one step, whatever is in it; how many batches went with it.

    Running providers and consumers notice.
    """
    if path.is_symlink():
        raise QueueError(f"{path}: a symbolic link, whose target would stay; purge {path.resolve()} instead")
    with Lock(path / "lock", timeout_s=LOCK_TIMEOUT_S), explain_full(path):
        n_batches = sum(1 for _ in path.glob("[0-9]*.safetensors"))
        away = path.with_name(f".purged-{path.name}-{os.urandom(8).hex()}")
        os.rename(path, away)
    shutil.rmtree(away, ignore_errors=True)  # a provider that starts now sweeps it too
    return n_batches


def sweep_purged(queue: Path) -> None:
    """Remove what is left of queues whose purge was killed."""
    for name in os.listdir(queue):
        if name.startswith(".purged-"):
            shutil.rmtree(queue / name, ignore_errors=True)
