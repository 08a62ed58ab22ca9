"""What lies beside the log in a queue directory, its description and what ranks and providers write, and waking up.

meta.json                            the description of the queue
run.json, marks/<attempt>/<rank>     the newest attempt, and how far each of its ranks has read
marks/<rank>.lock                    held while the rank is alive
providers/<name>.json, .lock         a provider's record; the lock is held while it is alive

A wait for changes uses inotify on Linux and polls elsewhere. It may end early for no reason, and on a network file
system it may not end early at all, so it only ever means "check again": callers check the files, wait for a bounded
time, and check again. Waking up takes about 100 us; polling every millisecond would take 500. inotify is called through
ctypes: the libraries for it add a thread, or a millisecond.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from poolish.errors import CorruptDataError, StoreLocked
from poolish.files import Lock, check_name, open_regular, raising_store_full
from poolish.files.checksums import ChecksummedCounters, read_checksummed_json, write_checksummed_json
from poolish.transports.meta import QueueMeta, not_found
from poolish.transports.protocols import Marks, ProviderRecord, Providers, Waker

META_FILE = "meta.json"


def write_meta(queue: Path, meta: QueueMeta) -> None:
    """Publish the description of a queue."""
    write_checksummed_json(queue / META_FILE, meta.to_record(), durable=meta.is_durable)


def read_meta(queue: Path) -> QueueMeta:
    """The description in a queue's directory; ``QueueNotFound`` if there is none."""
    path = queue / META_FILE
    try:
        return QueueMeta.from_record(read_checksummed_json(path), str(path))
    except (FileNotFoundError, NotADirectoryError):
        raise not_found(str(queue)) from None


class DirectoryMarks(Marks):
    """``Marks`` of a queue directory."""

    def __init__(self, queue: Path) -> None:
        self._run, self._folder = queue / "run.json", queue / "marks"

    def version(self) -> tuple[int, int] | None:
        """The inode and change time of ``run.json``, which is replaced by rename."""
        with suppress(FileNotFoundError):
            status = os.stat(self._run)
            return status.st_ino, status.st_ctime_ns
        return None

    def read(self) -> dict[str, Any] | None:
        """What ``run.json`` says."""
        with suppress(FileNotFoundError):
            return read_checksummed_json(self._run)
        return None

    def begin(self, name: str, record: dict[str, Any]) -> None:
        """Create the folder of the marks, then replace ``run.json``, then remove older folders."""
        with raising_store_full(self._folder):
            (self._folder / name).mkdir(mode=0o700, parents=True)
        write_checksummed_json(self._run, record, durable=False)
        for other in self._folder.iterdir():
            if other.is_dir() and other.name != name:
                shutil.rmtree(other, ignore_errors=True)

    def counters(self, name: str, rank: int, n: int) -> ChecksummedCounters:
        """The file of a mark."""
        return ChecksummedCounters(self._folder / name / str(rank), n)

    def claim(self, rank: int) -> Lock:
        """The lock of a rank."""
        return Lock(self._folder / f"{rank}.lock")

    def alive(self) -> list[int]:
        """The ranks whose locks are held."""
        locks = (lock for lock in self._folder.glob("*.lock") if lock.stem.isdecimal())
        return sorted(int(lock.stem) for lock in locks if is_held(lock))


class DirectoryProviders(Providers):
    """``Providers`` of a queue directory."""

    def __init__(self, queue: Path) -> None:
        self._folder = queue / "providers"

    def claim(self, name: str) -> Lock:
        """The lock of a provider."""
        return Lock(self._record(name).with_suffix(".lock"), timeout_s=2.0)

    def read(self, name: str, *, strict: bool = False) -> ProviderRecord:
        """What a provider wrote last; an empty record if nothing can be read, unless that is damage and ``strict``."""
        return _read(self._record(name), strict=strict)

    def write(self, name: str, record: ProviderRecord, *, durable: bool = False) -> None:
        """Publish a record."""
        write_checksummed_json(self._record(name), asdict(record), durable=durable)

    def known(self) -> dict[str, tuple[ProviderRecord, bool]]:
        """Every provider that ever had a lock: its record, and whether the lock is held."""
        found = {}
        with suppress(FileNotFoundError):
            for lock in sorted(self._folder.glob("*.lock")):
                found[lock.stem] = _read(lock.with_suffix(".json")), is_held(lock)
        return found

    def changed_at(self) -> float | None:
        """When the newest record was written."""
        return max(modified_at(self._folder.glob("*.json")), default=None)

    def store_counters(self, counters: Mapping[str, int], *, durable: bool) -> dict[str, int]:
        """Move the counters of providers that have ended into their records; those of the others."""
        return {name: counter for name, counter in counters.items() if not self._stored(name, counter, durable)}

    def _stored(self, name: str, counter: int, durable: bool) -> bool:
        try:
            with Lock(self._record(name).with_suffix(".lock")):  # it cannot start while its counter is in neither place
                record = self.read(name)
                if record.counter <= counter:
                    self.write(name, replace(record, counter=counter + 1), durable=durable)
                return True
        except StoreLocked:
            return False

    def _record(self, name: str) -> Path:
        return self._folder / f"{check_name(name, 'provider')}.json"


def _read(path: Path, *, strict: bool = False) -> ProviderRecord:
    try:
        return _parsed(read_checksummed_json(path))
    except FileNotFoundError:
        return ProviderRecord()
    except (CorruptDataError, KeyError, TypeError) as error:
        if not strict:
            return ProviderRecord()
        raise CorruptDataError(
            f"{path}: damaged, and nothing else knows how many batches {path.stem!r} has made; restore it, "
            "or start the provider under another name"
        ) from error


def _parsed(record: Mapping[str, Any]) -> ProviderRecord:
    found = ProviderRecord(record["counter"], record["number"], record["finished"])
    if not all(type(value) is int and value >= 0 for value in (found.counter, found.number)):
        raise TypeError("no counters")
    if not isinstance(found.finished, bool):
        raise TypeError("finished is true or false")
    return found


def is_held(path: Path) -> bool:
    """Whether a process holds a lock."""
    try:
        fd = open_regular(path, os.O_RDONLY)
    except (OSError, CorruptDataError):
        return False
    try:
        # Shared, so that observers do not exclude each other, and for a moment only.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(fd)


def modified_at(files: Iterable[Path]) -> list[float]:
    """When files were written; those that are gone by now are left out."""
    found = []
    for file in files:
        with suppress(FileNotFoundError):
            found.append(file.stat().st_mtime)
    return found


# Waking up --------------------------------------------------------------------------------------------------------

_POLL_S = 0.002

_MODIFY, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE, _DELETE_SELF, _MOVE_SELF = 2, 0x40, 0x80, 0x100, 0x200, 0x400, 0x800
_EVENTS = _MODIFY | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF


class DirectoryWaker(Waker):
    """``Waker`` of the queues in a directory: ``watch`` first, then check the files, then ``wait``, then check again.

    >>> split = folder / "train"
    >>> split.mkdir()
    >>> waker = DirectoryWaker(folder)
    >>> waker.watch("train")
    >>> waker.wait(0.001)
    >>> waker.wait(60) if (split / "batch").write_bytes(b"rows") else None
    >>> waker.close()
    """

    def __init__(self, place: Path) -> None:
        self._place, self._fd = place, _start()
        self._is_watching = False

    def watch(self, split: str, marks: str | None = None) -> None:
        self.add(self._place / split)
        if marks is not None:
            self.add(self._place / split / "marks" / marks)

    def add(self, directory: Path) -> None:
        """Watch a directory too; a missing one is left out, and may be added again later."""
        if self._fd >= 0:
            # Each time: the directory may have been removed and created again under the same name.
            added = _libc().inotify_add_watch(self._fd, os.fsencode(directory), _EVENTS)
            self._is_watching |= added >= 0

    def wait(self, timeout_s: float) -> None:
        if self._fd < 0 or not self._is_watching:
            time.sleep(min(timeout_s, _POLL_S))
            return
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        if poller.poll(max(0.0, timeout_s) * 1000):
            try:
                while len(os.read(self._fd, 4096)) >= 3_800:  # an event takes up to 272 bytes
                    pass
            except BlockingIOError:
                pass

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _start() -> int:
    if sys.platform != "linux":
        return -1
    # Above the limit on instances (many processes of one user) the answer is -1, and this polls.
    return int(_libc().inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))


@cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)
