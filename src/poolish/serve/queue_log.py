"""The queue of one split: a log in a directory, one file per number, gapless, in one order for everybody.

    <split>/
      meta.json                        what the batches are; its random id is the queue's
      000000000042.safetensors ...     the log
      tmp/                             batches in the making, locked by their writers
      free/                            files that are done, to be written over
      lock                             held for microseconds while a number is taken or the watermark raised
      next                             a number that is not taken yet, seldom too low (words)
      consumed                         watermark: all below is done; per provider the highest counter deleted (slots)
      run.json, marks/<start>-<world_size>/<rank>     how far the newest run has read        (marks)
      providers/<name>.json, .lock     who fills the queue                                   (provider_notes)
      dead/                            batches that were corrupt, with the reason

A batch's life:

    tmp/.w0.<random>.partial --link under the lock--> <number> --read--> done --watermark raised, then--> free/ or gone
                                                          `-- corrupt --> dead/<number>, a tombstone keeps the number

What is never true, whoever is killed when: a number used twice, a number below the watermark given out, a gap between
the watermark and the newest number. ``next`` is raised above the watermark before the watermark is, and is raised
after a link: so it is never above a number that was not used, and any file at or above it is found by the link
that fails. Only a power cut can make it older than the log; therefore ``recover`` looks at the log itself.
"""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poolish.errors import CorruptDataError, QueueError, StaleSchema
from poolish.files import Lock, Partial, explain_full, sync_directory, write_all
from poolish.files.state_files import MAX_COUNTER, SLOT_BYTES, ChecksummedCounters, DoubleBufferedJson
from poolish.serve.batch_file import COPIED_BYTES, Label, read_label
from poolish.serve.provider_notes import move_to_notes
from poolish.serve.queue_meta import FILE, QueueMeta

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BATCH = re.compile(r"([0-9]{12,18})\.safetensors")
LOCK_TIMEOUT_S = 60.0
_COUNTER_BYTES = 24  # of a provider beside the watermark, and its name
FOLDERS = ("tmp", "free", "marks", "providers", "dead")

#: How many files wait in free/ at most. ext4 looks at every inode that was deleted in the last minutes before it makes
#: a new one, so where files come and go a thousand times a second, making one takes 450 us; renaming an old one 20, and
#: removing one of 1 MiB 70. Twice the default backlog, because rank 0 lets go of the batches of all ranks at once.
_MAX_FREE = 128


@dataclass(frozen=True)
class Consumed:
    """Every number below ``watermark`` is done; ``counters`` are the highest that were deleted, by provider.

    ``has_moved``: those of some providers that have ended are in their own notes instead.
    """

    watermark: int = 0
    counters: Mapping[str, int] = field(default_factory=dict)
    has_moved: bool = False


class QueueLog:
    """The files of one split's queue, and the rules by which they change. Any number of these may be open."""

    def __init__(self, path: Path, meta: QueueMeta) -> None:
        self.path, self.meta = path, meta
        self._prefix = f"{path}/"  # joining paths costs as much as a system call
        self.meta_file = f"{path}/{FILE}"
        self._seen = _identity(self.meta_file)
        self._tmp = path / "tmp"
        self._free_folder, self._free = f"{path}/free", list[str]()
        self._next = ChecksummedCounters(path / "next", 1)
        self._consumed = DoubleBufferedJson(path / "consumed")
        self._lock = _QueueLock(self)
        for folder in FOLDERS:
            _check_folder(path / folder)
        # For deleting: through this, what is deleted is ours even if another queue stands at the path by now.
        self._folder_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @classmethod
    def open(cls, path: Path) -> QueueLog:
        """A queue that is there."""
        return cls(path, QueueMeta.read(path))

    @classmethod
    def create(cls, path: Path, meta: QueueMeta) -> QueueLog:
        """The queue for batches as ``meta`` says: the one that is there, if it is for such batches, else a new one."""
        for _ in range(100):
            make_folders(path, parents=True)
            try:
                with Lock(path / "lock", timeout_s=LOCK_TIMEOUT_S):
                    return cls._create(path, meta)
            except FileNotFoundError:
                continue  # it was purged while we waited for its lock
        raise QueueError(f"{path}: it is removed again and again while a provider wants to fill it; who does that?")

    @classmethod
    def _create(cls, path: Path, meta: QueueMeta) -> QueueLog:
        if not (path / FILE).exists():
            DoubleBufferedJson(path / "consumed").reserve()
            meta.write(path)
            return cls(path, meta)
        found = QueueMeta.read(path)
        if found.fingerprint != meta.fingerprint:
            with closing(cls(path, found)) as old:
                old._refuse_stale(meta)
            found.check_content(meta.content, path)
            meta.write(path)
            return cls(path, meta)
        found.check_content(meta.content, path)
        newest = replace(found, limits=found.limits_with(meta.limits), content={**found.content, **meta.content})
        if newest != found:  # the newest provider's limits count
            found = newest
            found.write(path)
        return cls(path, found)

    def _refuse_stale(self, meta: QueueMeta) -> None:
        watermark = self.consumed().watermark
        n_batches = sum(1 for number in self.numbers() if number >= watermark)
        if n_batches:
            raise StaleSchema(
                f"{self.path}: holds {n_batches:,} batches of fingerprint {self.meta.fingerprint}, this provider makes "
                f"{meta.fingerprint}; let the trainer read them, or discard them: poolish queue purge {self.path}"
            )

    def path_of(self, number: int) -> Path:
        """Where the batch of a number is, was or will be."""
        return Path(self.file_of(number))

    def file_of(self, number: int) -> str:
        """The same as text, for where every microsecond counts: a Path takes 4."""
        return f"{self._prefix}{number:012d}.safetensors"

    def numbers(self) -> list[int]:
        """The numbers whose files are there, in order. Costs a listing: 10 ms for 10,000 files."""
        with missing_told(self):
            found = (_BATCH.fullmatch(name) for name in os.listdir(self.path))
        return sorted(int(match[1]) for match in found if match)

    def n_bytes(self) -> int:
        """How many bytes the log takes that are not done. Costs a listing and a look at each file."""
        watermark, n_bytes = self.consumed().watermark, 0
        with missing_told(self), os.scandir(self.path) as entries:
            for entry in entries:
                match = _BATCH.fullmatch(entry.name)
                if match and int(match[1]) >= watermark:
                    with suppress(FileNotFoundError):  # deleted meanwhile
                        n_bytes += entry.stat(follow_symlinks=False).st_size
        return n_bytes

    def free_bytes(self) -> int:
        """How many bytes the disk has left."""
        with missing_told(self):
            status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize

    def locked(self) -> _QueueLock:
        """Hold the queue's lock, sure that this is still the queue that was opened."""
        return self._lock

    def check_same(self) -> None:
        """Raise if the queue was removed, or purged and made anew, since it was opened."""
        with missing_told(self):
            now = _identity(self.meta_file)
        if now != self._seen:
            if QueueMeta.read(self.path).queue != self.meta.queue:
                raise QueueError(f"{self.path}: the queue was purged and made anew meanwhile; start this side again")
            self._seen = now

    # -- publishing

    def publish(self, buffers: Iterable[Buffer], provider: str) -> int:
        """Put a batch at the end of the log; its number.

        After this returns a kill loses nothing of it, and if the queue is durable, neither does a power cut.
        """
        with missing_told(self), Partial(self._tmp, provider, over=self._a_free_file()) as partial:
            n_bytes = write_all(partial.fd, buffers)
            if os.fstat(partial.fd).st_size != n_bytes:  # it was a larger batch before
                os.ftruncate(partial.fd, n_bytes)
            partial.finish(durable=self.meta.is_durable)
            with self.locked():
                number = self._link(partial)
                self._next.write(number + 1)
        if self.meta.is_durable:
            sync_directory(self.path)
        return number

    def _a_free_file(self) -> str | None:
        """One that may be written over; another provider may be quicker."""
        if not self._free:
            self._free = [name for name in os.listdir(self._free_folder) if name.isdecimal()]
        while self._free:
            path = f"{self._free_folder}/{self._free.pop()}"
            with suppress(FileNotFoundError):
                if stat.S_ISREG(os.lstat(path).st_mode):
                    return path
        return None

    def drop_free(self) -> None:
        """Give back the space of files that wait to be written over."""
        with missing_told(self):
            names = os.listdir(self._free_folder)
        for name in names:
            with suppress(OSError):
                os.unlink(f"{self._free_folder}/{name}")

    def _link(self, partial: Partial) -> int:
        number = self.next_number()
        while True:
            try:
                # Readers open only numbered files: the link is the moment the batch exists.
                partial.link(self.file_of(number))
                return number
            except FileExistsError:
                number += 1  # its publisher was killed before it could write down the next number

    def next_number(self) -> int:
        """The next number as far as it was written down: exact, unless a publisher was killed just now."""
        found = self._next.read()
        return found[0] if found else self._count_next()

    def _count_next(self) -> int:
        numbers = self.numbers()
        return max([self.consumed().watermark, *(number + 1 for number in numbers[-1:])])

    # -- done

    def consumed(self) -> Consumed:
        """What was written down about numbers that are done."""
        return self._as_consumed(self._consumed.read())

    def _as_consumed(self, told: Mapping[str, Any] | None) -> Consumed:
        if told is None:
            return Consumed()
        try:
            counters = {name: _number(k) for name, k in told["counters"].items()}
            return Consumed(_number(told["watermark"]), counters, bool(told.get("moved", False)))
        except (KeyError, TypeError, AttributeError) as error:
            raise CorruptDataError(
                f"{self._consumed.path}: no watermark in it ({error!r}); restore it, or purge the queue"
            ) from None

    def has_published(self, position: int) -> bool:
        """Whether all below a position was published, as far as the log and what was written down know."""
        return position <= self.next_number() or position <= self._count_next()

    def check_done(self, position: int) -> None:
        """Raise if a mark says of batches that they are done which never were."""
        if not self.has_published(position):
            raise CorruptDataError(
                f"{self.path}: a mark says that all below {position:,} is done, but the log ends at "
                f"{self._count_next():,}; remove {self.path / 'marks'} and resume from a checkpoint"
            )

    def raise_watermark(self, watermark: int, labels: Mapping[int, Label] | None = None) -> range:
        """Everything below ``watermark`` is done; never lowered. The numbers that became done, to be deleted now.

        ``labels`` are those that the caller has read already; the others are read from their files.
        """
        with self.locked():
            newest = self._consumed.read()
            before = self._as_consumed(newest)
            if watermark <= before.watermark:
                return range(0)
            self.check_done(watermark)
            counters = dict(before.counters)
            for number in range(before.watermark, watermark):
                label = (labels or {}).get(number) or self.label(number)
                if label is not None and label.provider:
                    counters[label.provider] = max(label.counter, counters.get(label.provider, 0))
            self._next.write(max(self.next_number(), watermark))
            told: dict[str, Any] = {"watermark": watermark, "counters": counters}
            if sum(map(len, counters)) + _COUNTER_BYTES * len(counters) > SLOT_BYTES // 2:
                told["counters"] = move_to_notes(self.path / "providers", counters, durable=self.meta.is_durable)
            if before.has_moved or len(told["counters"]) < len(counters):
                told["moved"] = True
            self._consumed.write(told, after=newest, durable=self.meta.is_durable)
        return range(before.watermark, watermark)

    def removed(self) -> range:
        """The numbers from the watermark to ``next``, if not one of their files is left: a purge by hand.

        The lock is held: then only a hand, or a power cut, leaves a published number without its file.
        """
        watermark = self.consumed().watermark
        is_any_left = any(number >= watermark for number in self.numbers())
        return range(0) if is_any_left else range(watermark, max(watermark, self.next_number()))

    def pass_removed(self) -> range:
        """Raise the watermark over what was purged by hand; those numbers. The lock is held."""
        removed = self.removed()
        if removed:
            newest = self._consumed.read()
            value = {"counters": {}, **(newest or {}), "watermark": removed.stop}
            self._consumed.write(value, after=newest, durable=self.meta.is_durable)
        return removed

    def delete(self, numbers: Iterable[int]) -> None:
        """Remove the files of numbers that are done, or set them aside to be written over.

        Without the lock: a number below the watermark is never used again. What cannot be removed is left to
        ``delete_done``.
        """
        with missing_told(self):
            room = _MAX_FREE - len(os.listdir(self._free_folder))
        for number in numbers:
            name = f"{number:012d}.safetensors"
            with suppress(OSError):
                if room > 0 and self._set_aside(name, number):
                    room -= 1
                else:
                    os.unlink(name, dir_fd=self._folder_fd)

    def _set_aside(self, name: str, number: int) -> bool:
        fd = self._folder_fd
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if not (stat.S_ISREG(status.st_mode) and 0 < status.st_size <= COPIED_BYTES):
            return False
        try:
            os.rename(name, f"free/{number}", src_dir_fd=fd, dst_dir_fd=fd)
        except OSError:  # on a full disk the other folder may have no room for a name
            return False
        return True

    def delete_done(self) -> None:
        """Remove what somebody was done with who was killed before he could delete it."""
        watermark = self.consumed().watermark
        self.delete(number for number in self.numbers() if number < watermark)

    def note_next(self, number: int) -> None:
        """Write down a next number that was counted; the lock is held."""
        self._next.write(number)

    def label(self, number: int) -> Label | None:
        """What the batch of a number says about itself, if it can be read."""
        try:
            return read_label(self.path_of(number))
        except (OSError, CorruptDataError):
            return None

    def close(self) -> None:
        """Let go of open files."""
        self._next.close()
        self._lock.close()
        fd, self._folder_fd = self._folder_fd, -1
        if fd >= 0:
            os.close(fd)


class _QueueLock:
    """The lock of a queue, for ``with``; threads of one process wait for each other too."""

    def __init__(self, log: QueueLog) -> None:
        self._log = log
        self._threads = threading.Lock()
        self._lock = Lock(log.path / "lock", timeout_s=LOCK_TIMEOUT_S, keep_open=True)

    def __enter__(self) -> None:
        with missing_told(self._log):
            self._threads.acquire()
            try:
                self._lock.acquire()
                self._log.check_same()
            except BaseException:
                self.__exit__()
                raise

    def __exit__(
        self, kind: type[BaseException] | None = None, error: BaseException | None = None, traceback: object = None
    ) -> None:
        self._lock.release()
        self._threads.release()
        missing_told(self._log).__exit__(kind, error, traceback)

    def close(self) -> None:
        self._lock.close()


def make_folders(path: Path, *, parents: bool = False) -> None:
    """The folders of a queue; copies of a queue may lack those that were empty."""
    for folder in FOLDERS:
        with explain_full(path):
            (path / folder).mkdir(mode=0o700, parents=parents, exist_ok=True)


def _check_folder(path: Path) -> None:
    """A link could lead anywhere, and what lies there is not ours to delete."""
    with suppress(FileNotFoundError):
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise CorruptDataError(f"{path}: not a directory of a queue; remove it, or purge the queue")


def _identity(path: str) -> tuple[int, int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < MAX_COUNTER:
        raise TypeError(f"{value!r} is no number")
    return value


class missing_told:
    """Say that the queue is gone where a file of it is. A class for the sake of speed, as ``explain_full`` is."""

    __slots__ = ("_log",)

    def __init__(self, log: QueueLog) -> None:
        self._log = log

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, FileNotFoundError):
            raise QueueError(
                f"{self._log.path}: the queue was removed meanwhile ({error.filename} is missing); "
                "start `poolish prepare CONFIG` again, then the trainer"
            ) from error
