"""One writer at a time, held by the kernel.

The lock is an flock on a small file. The kernel gives it up when its holder ends, however it ends, so a lock file that
a killed process left behind locks nothing. The file is never removed (two processes could then lock two files of one
name); its content only names the holder, for people.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from poolish.concurrency import close_locked_fd, open_locked_fd, owns_fd, try_lock
from poolish.errors import StoreLocked
from poolish.files.space import check_one_name, is_at, raising_store_full

if TYPE_CHECKING:
    from collections.abc import Callable

_HOLDER = re.compile(rb"([0-9]{1,10}) ([A-Za-z0-9._-]{1,255}) *\n")
_NOTE_BYTES = 280


class Lock:
    """A lock that at most one process (and in it, one ``Lock``) holds, until it is released or its process ends.

    By default a lock that is taken is a ``StoreLocked`` at once, naming the holder; with ``timeout_s`` only when that
    time has passed. Forked children do not hold it, and cannot release it. ``keep_open`` is for a lock that is taken
    again and again: between times the file stays open, until ``close``, and is not signed anew.

    >>> writer, second = Lock(folder / "lock"), Lock(folder / "lock")
    >>> with writer:
    ...     second.acquire()
    Traceback (most recent call last):
    poolish.errors.StoreLocked: ...lock: held by this process (...); close the other handle first
    >>> with second:
    ...     second.is_held, writer.is_held
    (True, False)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timeout_s: float = 0.0,
        keep_open: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.path = Path(path)
        self.timeout_s = timeout_s
        self._clock, self._sleep = clock, sleep
        self._fd = self._kept = -1
        self._keep_open = keep_open

    @property
    def is_held(self) -> bool:
        """Whether this object, in this process, holds the lock."""
        return owns_fd(self._fd)

    def acquire(self) -> None:
        """Take the lock, or raise ``StoreLocked``."""
        # Short pauses for long: most locks are held for microseconds, and the system adds 50 us to each pause.
        deadline, pause_s = self._clock() + self.timeout_s, 5e-6
        fd = None
        try:
            while (fd := self._take()) is None:
                if self._clock() >= deadline:
                    raise StoreLocked(_who_holds(self.path), filename=self.path)
                self._sleep(pause_s)
                pause_s = min(1.5 * pause_s, 1e-3)
            self._fd = fd
        except BaseException:
            if fd is not None:  # an interrupt came between taking it and noting it
                self._fd = -1
                close_locked_fd(fd)
            raise

    def release(self) -> None:
        """Give the lock up; nothing happens if it is not held."""
        # Forget the descriptor first: once it is unlocked, another thread may take the lock and note its own here.
        fd = self._fd
        try:
            self._fd = -1
            if owns_fd(fd):
                # Unlock before closing: a copy of the descriptor that we do not know of then loses the lock too.
                fcntl.flock(fd, fcntl.LOCK_UN)
                if self._keep_open and self._kept < 0:
                    self._kept = fd
                else:
                    close_locked_fd(fd)
        except BaseException:
            if owns_fd(fd) and self._fd < 0 and self._kept != fd:  # interrupted: release() can be called again
                self._fd = fd
            raise

    def close(self) -> None:
        """Give the lock up, and the file that was kept open."""
        self.release()
        fd, self._kept = self._kept, -1
        if owns_fd(fd):
            close_locked_fd(fd)

    def _take(self) -> int | None:
        """A descriptor that holds the lock, or None if another one does."""
        fd, self._kept = self._kept, -1
        if not owns_fd(fd):  # none was kept, or by the process that this one was forked from
            return _take(self.path)
        try:
            if not try_lock(fd):
                self._kept = fd
                return None
            if is_at(self.path, fd):
                return fd
        except BaseException:
            close_locked_fd(fd)
            raise
        close_locked_fd(fd)
        return _take(self.path)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def __reduce__(self) -> str:
        raise TypeError(f"{self.path}: a lock cannot be copied or sent to a process; make a Lock of its path there")


def _take(path: Path) -> int | None:
    """A descriptor that holds the lock, or None if another one does."""
    for _ in range(100):
        with raising_store_full(path):
            fd = open_locked_fd(path, os.O_RDWR | os.O_CREAT)
        try:
            is_ours = try_lock(fd)
            if is_ours and is_at(path, fd):
                check_one_name(os.fstat(fd), path)
                _sign(fd)
                return fd
        except BaseException:
            close_locked_fd(fd)
            raise
        close_locked_fd(fd)
        if not is_ours:
            break
        # The file was removed between our two calls; what we locked protects nothing any more.
    return None


def _sign(fd: int) -> None:
    note = f"{os.getpid()} {os.uname().nodename}".ljust(_NOTE_BYTES) + "\n"
    with suppress(OSError):  # on a full disk the lock is as good without a name on it
        os.pwrite(fd, note.encode("ascii", "replace"), 0)


def _who_holds(path: Path) -> str:
    signed = _HOLDER.fullmatch(_read_note(path))
    if signed is None:
        return f"{path}: held by another process; wait until it has ended"
    pid, host = int(signed[1]), signed[2].decode("ascii")
    if (pid, host) == (os.getpid(), os.uname().nodename):
        return f"{path}: held by this process ({pid}); close the other handle first"
    return f"{path}: held by process {pid} on {host}; wait until it has ended, or end it"


def _read_note(path: Path) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.read(fd, _NOTE_BYTES + 1)
    finally:
        os.close(fd)
