"""The queue of one split: a log in a directory, one file per number, gapless, in one order for everybody.

    <split>/
      meta.json                        what the batches are; its random id is the queue's
      000000000042.safetensors ...     the log
      tmp/                             batches in the making, locked by their writers
      lock                             held for microseconds while a number is taken or the watermark raised
      next                             a number that is not taken yet, seldom too low (words)
      consumed                         watermark: all below is done; per provider the highest counter deleted (slots)
      run.json, marks/<start>-<world_size>/<rank>     how far the newest run has read        (marks)
      providers/<name>.json, .lock     who fills the queue                                   (provider_notes)
      dead/                            batches that were corrupt, with the reason

A batch's life:

    tmp/.w0.<random>.partial --link under the lock--> <number> --read--> done --watermark raised, then--> unlinked
                                                          `-- corrupt --> dead/<number>, a tombstone keeps the number

What is never true, whoever is killed when: a number used twice, a number below the watermark given out, a gap between
the watermark and the newest number. ``next`` is raised above the watermark before the watermark is, and is raised
after a link: so it is never above a number that was not used, and any file at or above it is found by the link
that fails. Only a power cut can make it older than the log; therefore ``recover`` looks at the log itself.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poolish.errors import CorruptDataError, QueueError, StaleSchema
from poolish.files import Lock, Partial, publish, sweep, sync_directory, write_all, write_json
from poolish.serve.batch_file import Label, encode, read_label
from poolish.serve.queue_meta import FILE, QueueMeta
from poolish.serve.slots import Slots
from poolish.serve.words import Words

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BATCH = re.compile(r"([0-9]{12,18})\.safetensors")
_LOCK_TIMEOUT_S = 60.0
_MAX_MISSING = 10_000
_FOLDERS = ("tmp", "marks", "providers", "dead")


@dataclass(frozen=True)
class Consumed:
    """Every number below ``watermark`` is done; ``counters`` are the highest that were deleted, by provider."""

    watermark: int = 0
    counters: Mapping[str, int] = field(default_factory=dict)


class QueueLog:
    """The files of one split's queue, and the rules by which they change. Any number of these may be open."""

    def __init__(self, path: Path, meta: QueueMeta) -> None:
        self.path, self.meta = path, meta
        self._prefix = f"{path}/"  # joining paths costs as much as a system call
        self._meta_path = f"{path}/{FILE}"
        self._tmp, self._lock = path / "tmp", path / "lock"
        self._seen = _identity(self._meta_path)
        self._next = Words(path / "next", 1)
        self._consumed = Slots(path / "consumed")

    @classmethod
    def open(cls, path: Path) -> QueueLog:
        """A queue that is there."""
        return cls(path, QueueMeta.read(path))

    @classmethod
    def create(cls, path: Path, meta: QueueMeta) -> QueueLog:
        """The queue for batches as ``meta`` says: the one that is there, if it is for such batches, else a new one."""
        for folder in _FOLDERS:
            (path / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        with Lock(path / "lock", timeout_s=_LOCK_TIMEOUT_S):
            if (path / FILE).exists():
                found = QueueMeta.read(path)
                if found.fingerprint == meta.fingerprint:
                    return cls(path, found)
                _refuse_stale(path, found, meta)
            meta.write(path)
            return cls(path, meta)

    def path_of(self, number: int) -> Path:
        """Where the batch of a number is, was or will be."""
        return Path(f"{self._prefix}{number:012d}.safetensors")

    def numbers(self) -> list[int]:
        """The numbers whose files are there, in order. Costs a listing: 10 ms for 10,000 files."""
        with _told(self):
            found = (_BATCH.fullmatch(name) for name in os.listdir(self.path))
        return sorted(int(match[1]) for match in found if match)

    def n_bytes(self) -> int:
        """How many bytes the log takes. Costs a listing and a look at each file."""
        with _told(self), os.scandir(self.path) as entries:
            return sum(entry.stat().st_size for entry in entries if _BATCH.fullmatch(entry.name))

    def free_bytes(self) -> int:
        """How many bytes the disk has left."""
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the queue's lock, sure that this is still the queue that was opened."""
        with _told(self), Lock(self._lock, timeout_s=_LOCK_TIMEOUT_S):
            self.check_same()
            yield

    def check_same(self) -> None:
        """Raise if the queue was removed, or purged and made anew, since it was opened."""
        with _told(self):
            now = _identity(self._meta_path)
        if now != self._seen:
            if QueueMeta.read(self.path).queue != self.meta.queue:
                raise QueueError(f"{self.path}: the queue was purged and made anew meanwhile; start this side again")
            self._seen = now

    # -- publishing

    def publish(self, buffers: Iterable[Buffer], provider: str) -> int:
        """Put a batch at the end of the log; its number.

        After this returns a kill loses nothing of it, and if the queue is durable, neither does a power cut.
        """
        with _told(self), Partial(self._tmp, provider) as partial:
            write_all(partial.file.fileno(), buffers)
            partial.finish(durable=self.meta.is_durable)
            with self.locked():
                number = self._link(partial)
                self._next.write(number + 1)
        if self.meta.is_durable:
            sync_directory(self.path)
        return number

    def _link(self, partial: Partial) -> int:
        number = self.next_number()
        while True:
            try:
                # Readers open only numbered files: the link is the moment the batch exists.
                partial.link(self.path_of(number))
                return number
            except FileExistsError:
                number += 1  # its publisher was killed before it could write down the next number

    def next_number(self) -> int:
        """The next number as far as it was written down: exact, unless a publisher was killed just now."""
        found = self._next.read()
        return found[0] if found else self._count_next()

    def _count_next(self) -> int:
        return max([self.consumed().watermark, *(number + 1 for number in self.numbers()[-1:])])

    # -- done

    def consumed(self) -> Consumed:
        """What was written down about numbers that are done."""
        told = self._consumed.read()
        if told is None:
            return Consumed()
        try:
            return Consumed(_number(told["watermark"]), {name: _number(k) for name, k in told["counters"].items()})
        except (KeyError, TypeError, AttributeError) as error:
            raise CorruptDataError(
                f"{self._consumed.path}: no watermark in it ({error!r}); restore it, or purge the queue"
            ) from None

    def raise_watermark(self, watermark: int, labels: Mapping[int, Label] | None = None) -> int:
        """Everything below ``watermark`` is done and its files go; never lowered. How many numbers became done.

        ``labels`` are those that the caller has read already; the others are read from their files.
        """
        with self.locked():
            before = self.consumed()
            if watermark <= before.watermark:
                return 0
            counters = dict(before.counters)
            for number in range(before.watermark, watermark):
                label = (labels or {}).get(number) or self._label(number)
                if label is not None and label.provider:
                    counters[label.provider] = max(label.counter, counters.get(label.provider, 0))
            self._next.write(max(self.next_number(), watermark))
            told = {"watermark": watermark, "counters": counters}
            self._consumed.write(told, durable=self.meta.is_durable)
        # No lock for the rest: a number below the watermark is never used again.
        for number in range(before.watermark, watermark):
            with suppress(FileNotFoundError):
                os.unlink(self.path_of(number))
        return watermark - before.watermark

    def _label(self, number: int) -> Label | None:
        try:
            return read_label(self.path_of(number))
        except (FileNotFoundError, CorruptDataError):
            return None

    # -- faults

    def recover(self) -> None:
        """Clean up after those who were killed, and after a power cut."""
        with _told(self):
            sweep(self.path / "tmp")
            sweep(self.path)
        with self.locked():
            watermark, numbers = self.consumed().watermark, self.numbers()
            for number in numbers:
                if number < watermark:
                    with suppress(FileNotFoundError):
                        os.unlink(self.path_of(number))
            kept = [number for number in numbers if number >= watermark]
            for number in self._missing(watermark, kept):
                # Only a power cut can do this, to files that were not synced.
                self._bury(number, "its file is missing: lost in a power cut, or removed by hand")
            found = self._next.read() or (0,)
            self._next.write(max(found[0], watermark, *(number + 1 for number in kept[-1:])))

    def _missing(self, watermark: int, kept: list[int]) -> list[int]:
        n_missing = kept[-1] + 1 - watermark - len(kept) if kept else 0
        if n_missing > _MAX_MISSING:
            raise CorruptDataError(
                f"{self.path}: {n_missing:,} numbers are missing between {watermark:,} and {kept[-1]:,}; "
                "remove the file that does not belong here, or purge the queue"
            )
        return sorted(set(range(watermark, watermark + len(kept) + n_missing)) - set(kept))

    def bury(self, number: int, reason: str) -> None:
        """Move a corrupt batch to dead/ and leave a tombstone, which keeps its number."""
        with self.locked():
            self._bury(number, reason)

    def _bury(self, number: int, reason: str) -> None:
        dead = self.path / "dead"
        label = self._label(number)
        if label is not None and label.tombstone:
            return
        told = {"number": number, "reason": reason, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        write_json(dead / f"{number:012d}.json", told, durable=False)
        with suppress(FileNotFoundError, FileExistsError):
            os.link(self.path_of(number), dead / f"{number:012d}.safetensors")
        provider, counter = (label.provider, label.counter) if label else ("", 0)
        stone = Label(self.meta.queue, self.meta.schema.fingerprint, 0, provider, counter, reason)
        with publish(self.path_of(number), durable=False) as file:
            write_all(file.fileno(), encode({}, stone))

    def purge(self) -> int:
        """Remove the queue in one step; running providers and consumers notice. How many batches went with it."""
        with self.locked():
            n_batches = len(self.numbers())
            away = self.path.with_name(f".purged-{self.path.name}-{os.urandom(8).hex()}")
            os.rename(self.path, away)
        shutil.rmtree(away)
        return n_batches

    def close(self) -> None:
        """Let go of open files."""
        self._next.close()


def sweep_purged(queue: Path) -> None:
    """Remove what is left of queues whose purge was killed."""
    for name in os.listdir(queue):
        if name.startswith(".purged-"):
            shutil.rmtree(queue / name, ignore_errors=True)


def _refuse_stale(path: Path, found: QueueMeta, meta: QueueMeta) -> None:
    n_batches = sum(1 for name in os.listdir(path) if _BATCH.fullmatch(name))
    if n_batches:
        raise StaleSchema(
            f"{path}: holds {n_batches:,} batches of fingerprint {found.fingerprint}, this provider makes "
            f"{meta.fingerprint}; let the trainer read them, or discard them: poolish queue purge {path}"
        )


def _identity(path: str) -> tuple[int, int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is no number")
    return value


class _told:
    """Say that the queue is gone where a file of it is. A class for the sake of speed, as ``explain_full`` is."""

    __slots__ = ("_log",)

    def __init__(self, log: QueueLog) -> None:
        self._log = log

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, FileNotFoundError) and not (self._log.path / FILE).exists():
            raise QueueError(
                f"{self._log.path}: the queue was removed meanwhile; start `poolish prepare CONFIG` again, "
                "then the trainer"
            ) from error
