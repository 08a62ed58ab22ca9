"""The log of one split in a directory: one file per number, gapless, in one order for all readers.

    <split>/
      meta.json                        what the batches are; its random id is the queue's
      000000000042.safetensors ...     the log
      tmp/                             unfinished batches, locked by their writers
      free/                            files of deleted batches, to be overwritten
      lock                             held for microseconds while a number is taken or the watermark raised
      next                             a number that is not taken yet, seldom too low (counters)
      consumed                         watermark: all below is done; per provider the highest counter deleted
      run.json, marks/                 how far the newest run has read                       (directory_parts)
      providers/<name>.json, .lock     who fills the queue                                   (directory_parts)
      dead/                            batches that were corrupt, with the reason

A batch's life:

    tmp/.w0.<random>.partial --link under the lock--> <number> --read--> done --watermark raised, then--> free/ or gone
                                                          `-- corrupt --> dead/<number>, a tombstone keeps the number

What is never true, whichever process is killed: a number used twice, a number below the watermark given out, a gap
between the watermark and the newest number. ``next`` is raised above the watermark before the watermark is, and is
raised after a link: so it is never above a number that was not used, and any file at or above it is found by the link
that fails. Only a power cut can make it older than the log; therefore ``recover`` looks at the log itself.
"""

from __future__ import annotations

import logging
import mmap
import os
import re
import stat
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poolish.errors import CorruptDataError, QueueError
from poolish.files import Lock, Partial, publish, raising_store_full, sweep, sync_directory, write_all, write_json
from poolish.files.checksums import MAX_COUNTER, SLOT_BYTES, ChecksummedCounters, DoubleBufferedJson
from poolish.transports.batch_columns import Array
from poolish.transports.batch_file import (
    COPIED_BYTES,
    LOST,
    Allocate,
    BatchMetadata,
    read_file,
    read_metadata,
)
from poolish.transports.directory_parts import (
    META_FILE,
    DirectoryMarks,
    DirectoryProviders,
    DirectoryWaker,
    modified_at,
    read_meta,
)
from poolish.transports.meta import QueueMeta
from poolish.transports.protocols import Consumed, Log

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BATCH = re.compile(r"([0-9]{12,18})\.safetensors")
LOCK_TIMEOUT_S = 60.0
_MAX_MISSING = 10_000
_COUNTER_BYTES = 24  # of a provider beside the watermark, and its name
FOLDERS = ("tmp", "free", "marks", "providers", "dead")

#: How many files wait in free/ at most. ext4 looks at every inode that was deleted in the last minutes before it makes
#: a new one, so where files come and go a thousand times a second, making one takes 450 us; renaming an old one 20, and
#: removing one of 1 MiB 70. Twice the default backlog, because rank 0 deletes the batches of all ranks at once.
_MAX_FREE = 128
#: How many of them are listed at a time, the newest: where the trainer keeps up with the provider, they are still in
#: the processor's caches, and writing over one takes 170 us instead of 215 (1 MiB; CPU time of ``publish``).
_NEWEST_FREE = 8

logger = logging.getLogger("poolish.serve")


class DirectoryLog(Log):
    """``Log`` of a queue directory: its files, and the rules by which they change."""

    def __init__(self, path: Path, meta: QueueMeta) -> None:
        self.path, self.meta, self.place, self.split = path, meta, str(path), path.name
        self.marks, self.providers = DirectoryMarks(path), DirectoryProviders(path)
        self._is_durable = meta.is_durable
        self._prefix = f"{path}/"  # joining paths costs as much as a system call
        self._meta_file = f"{path}/{META_FILE}"
        self._seen = _identity(self._meta_file)
        self._tmp = path / "tmp"
        self._free_folder, self._free = f"{path}/free", list[str]()
        self._next = ChecksummedCounters(path / "next", 1)
        self._consumed = DoubleBufferedJson(path / "consumed")
        self._lock = _QueueLock(self)
        for folder in FOLDERS:
            _check_folder(path / folder)
        # For deleting: through this, what is deleted is ours even if another queue is at the path by now.
        self._folder_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> DirectoryLog:
        """An existing queue. Copies of a queue may lack folders that were empty; they are created unless read-only."""
        log = cls(path, read_meta(path))
        if not read_only:
            with raising_queue_missing(log.place):
                make_folders(path)
        return log

    def read_meta(self) -> QueueMeta:
        return read_meta(self.path)

    def name_of(self, number: int) -> str:
        return f"{self._prefix}{number:012d}.safetensors"  # text: a Path takes 4 us

    def has(self, number: int) -> bool:
        return os.path.lexists(self.name_of(number))

    def read(self, number: int, allocate: Allocate | None = None) -> mmap.mmap | Array:
        return read_file(self.name_of(number), allocate)

    def published_at(self, number: int) -> float | None:
        return max(modified_at([Path(self.name_of(number))]), default=None)

    def numbers(self) -> list[int]:
        """The numbers whose files are there, in order. Costs a listing: 10 ms for 10,000 files."""
        with raising_queue_missing(self.place):
            found = (_BATCH.fullmatch(name) for name in os.listdir(self.path))
        return sorted(int(match[1]) for match in found if match)

    def n_bytes(self) -> int:
        """How many bytes the log takes that are not done. Costs a listing and a look at each file."""
        watermark, n_bytes = self.consumed().watermark, 0
        with raising_queue_missing(self.place), os.scandir(self.path) as entries:
            for entry in entries:
                match = _BATCH.fullmatch(entry.name)
                if match and int(match[1]) >= watermark:
                    with suppress(FileNotFoundError):  # deleted meanwhile
                        n_bytes += entry.stat(follow_symlinks=False).st_size
        return n_bytes

    def free_bytes(self) -> int:
        with raising_queue_missing(self.place):
            status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize

    def locked(self) -> _QueueLock:
        return self._lock

    def check_same(self) -> None:
        with raising_queue_missing(self.place):
            now = _identity(self._meta_file)
        if now != self._seen:
            if read_meta(self.path).queue != self.meta.queue:
                raise QueueError(f"{self.path}: the queue was purged and created again; restart this process")
            self._seen = now

    # -- publishing

    def publish(self, buffers: Iterable[Buffer], provider: str) -> int:
        """Append a batch and return its number.

        Once this returns, the batch survives a kill, and if the queue is durable, a power cut.
        """
        with raising_queue_missing(self.place), Partial(self._tmp, provider, over=self._free_file()) as partial:
            n_bytes = write_all(partial.fd, buffers)
            if os.fstat(partial.fd).st_size != n_bytes:  # the file held a larger batch before
                os.ftruncate(partial.fd, n_bytes)
            partial.finish(durable=self._is_durable)
            with self.locked():
                number = self._link(partial)
                self._next.write(number + 1)
        if self._is_durable:
            sync_directory(self.path)
        return number

    def _free_file(self) -> str | None:
        """A file to overwrite, of those deleted last; another provider may be quicker."""
        if not self._free:
            names = filter(str.isdecimal, os.listdir(self._free_folder))
            self._free = sorted(names, key=int)[-_NEWEST_FREE:]
        while self._free:
            path = f"{self._free_folder}/{self._free.pop()}"
            with suppress(FileNotFoundError):
                if stat.S_ISREG(os.lstat(path).st_mode):
                    return path
        return None

    def release_space(self) -> None:
        with raising_queue_missing(self.place):
            names = os.listdir(self._free_folder)
        for name in names:
            with suppress(OSError):
                os.unlink(f"{self._free_folder}/{name}")

    def _link(self, partial: Partial) -> int:
        number = self.next_number()
        while True:
            try:
                # Readers open only numbered files: the link is the moment the batch exists.
                partial.link(self.name_of(number))
                return number
            except FileExistsError:
                number += 1  # its publisher was killed before it raised the hint

    def next_number(self) -> int:
        """The next number as the hint has it: exact, unless a publisher was killed just now."""
        found = self._next.read()
        return found[0] if found else self.end()

    # -- done

    def consumed(self) -> Consumed:
        return self._as_consumed(self._consumed.read())

    def _as_consumed(self, value: Mapping[str, Any] | None) -> Consumed:
        if value is None:
            return Consumed()
        try:
            counters = {name: _number(k) for name, k in value["counters"].items()}
            has_moved = bool(value.get("moved", False))
            return Consumed(_number(value["watermark"]), counters, has_moved, turn=value["turn"])
        except (KeyError, TypeError, AttributeError) as error:
            raise CorruptDataError(
                f"{self._consumed.path}: no watermark in it ({error!r}); restore it, or purge the queue"
            ) from None

    def write_consumed(self, consumed: Consumed) -> None:
        watermark, counters = consumed.watermark, dict(consumed.counters)
        self._next.write(max(self.next_number(), watermark))
        kept = counters
        if sum(map(len, counters)) + _COUNTER_BYTES * len(counters) > SLOT_BYTES // 2:
            kept = self.providers.store_counters(counters, durable=self._is_durable)
        has_moved = consumed.has_moved or len(kept) < len(counters)
        value = {"watermark": watermark, "counters": kept, **({"moved": True} if has_moved else {})}
        self._consumed.write(value, after={"turn": consumed.turn}, durable=self._is_durable)

    def removed(self) -> range:
        """The numbers from the watermark to ``next``, if not one of their files is left: a purge by hand.

        While the lock is held, only a hand, or a power cut, leaves a published number without its file.
        """
        watermark = self.consumed().watermark
        is_any_left = any(number >= watermark for number in self.numbers())
        return range(0) if is_any_left else range(watermark, max(watermark, self.next_number()))

    def delete(self, numbers: Iterable[int]) -> None:
        """Remove the files of numbers that are done, or move them to free/ to be overwritten.

        Needs no lock: a number below the watermark is never used again. What cannot be removed is left to
        ``delete_done``.
        """
        with raising_queue_missing(self.place):
            room = _MAX_FREE - len(os.listdir(self._free_folder))
        for number in numbers:
            name = f"{number:012d}.safetensors"
            with suppress(OSError):
                if room > 0 and self._recycle(name, number):
                    room -= 1
                else:
                    os.unlink(name, dir_fd=self._folder_fd)

    def _recycle(self, name: str, number: int) -> bool:
        fd = self._folder_fd
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if not (stat.S_ISREG(status.st_mode) and 0 < status.st_size <= COPIED_BYTES):
            return False
        try:
            os.rename(name, f"free/{number}", src_dir_fd=fd, dst_dir_fd=fd)
        except OSError:  # on a full disk the other folder may have no room for a name
            return False
        return True

    def read_metadata(self, number: int) -> BatchMetadata:
        """The metadata in a batch's file, without reading the tensors."""
        return read_metadata(self.name_of(number))

    # -- when something went wrong

    def recover(self) -> None:
        """Clean up after killed processes, and write tombstones for what a power cut lost."""
        with raising_queue_missing(self.place):
            for folder in (self.path, *(self.path / name for name in FOLDERS)):
                sweep(folder)
        super().recover()
        with self.locked():
            watermark = self.consumed().watermark
            kept = [number for number in self.numbers() if number >= watermark]
            for number in self._missing(watermark, kept):
                self.bury(number, LOST)  # only a power cut can do this, to files that were not synced
            self._next.write(max([self.next_number(), watermark, *(number + 1 for number in kept[-1:])]))

    def _missing(self, watermark: int, kept: list[int]) -> list[int]:
        n_missing = kept[-1] + 1 - watermark - len(kept) if kept else 0
        if n_missing > _MAX_MISSING:
            raise CorruptDataError(
                f"{self.path}: {n_missing:,} numbers are missing between {watermark:,} and {kept[-1]:,}; "
                "remove the file that does not belong here, or purge the queue"
            )
        return sorted(set(range(watermark, watermark + len(kept) + n_missing)) - set(kept))

    def replace(self, number: int, stone: Iterable[Buffer], reason: str) -> None:
        """Move a batch to dead/ and put a tombstone in its place."""
        place, dead = self.name_of(number), self.path / "dead" / f"{number:012d}.safetensors"
        note = {"number": number, "reason": reason, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        write_json(dead.with_suffix(".json"), note, durable=False)
        with suppress(FileNotFoundError, FileExistsError), raising_store_full(dead):
            if stat.S_ISDIR(os.lstat(place).st_mode):
                os.rename(place, dead)
            else:  # a link, so that at no moment the number is free
                os.link(place, dead, follow_symlinks=False)
        with publish(place, durable=False) as file:
            write_all(file.fileno(), stone)

    def tombstone_place(self, number: int) -> str:
        return str(self.path / "dead" / f"{number:012d}.json")

    def dead(self) -> list[float]:
        return modified_at((self.path / "dead").glob("*.json"))

    def quarantined(self) -> list[float]:
        return modified_at((self.path.parent.parent / "quarantine" / self.split).glob("*.json"))

    def waker(self) -> DirectoryWaker:
        return DirectoryWaker(self.path.parent)

    def close(self) -> None:
        self._next.close()
        self._lock.close()
        fd, self._folder_fd = self._folder_fd, -1
        if fd >= 0:
            os.close(fd)


class _QueueLock:
    """The lock of a queue, for ``with``; threads of one process wait for each other too."""

    def __init__(self, log: DirectoryLog) -> None:
        self._log = log
        self._threads = threading.Lock()
        self._lock = Lock(log.path / "lock", timeout_s=LOCK_TIMEOUT_S, keep_open=True)

    def __enter__(self) -> None:
        with raising_queue_missing(self._log.place):
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
        raising_queue_missing(self._log.place).__exit__(kind, error, traceback)

    def close(self) -> None:
        self._lock.close()


def make_folders(path: Path, *, parents: bool = False) -> None:
    """The folders of a queue; copies of a queue may lack those that were empty."""
    for folder in FOLDERS:
        with raising_store_full(path):
            (path / folder).mkdir(mode=0o700, parents=parents, exist_ok=True)


def _check_folder(path: Path) -> None:
    """Refuse links: they could lead anywhere, to files that are not ours to delete."""
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


class raising_queue_missing:
    """Raise that the queue at ``place`` is gone where a file of it is missing. A class: a generator costs 2 us."""

    __slots__ = ("_place",)

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, FileNotFoundError) and not isinstance(error, QueueError):
            raise QueueError(
                f"{self._place}: the queue was removed meanwhile ({error.filename} is missing); "
                "start `poolish prepare CONFIG` again, then the trainer"
            ) from error
