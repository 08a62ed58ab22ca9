"""Wake up when something changes in a directory: inotify on Linux, polling elsewhere.

A wait may end early for no reason, and on a network file system it may not end early at all, so it only ever means
"check again": callers check the files, wait for a bounded time, and check again. Waking up takes about 100 us; polling
every millisecond would take 500. inotify is called through ctypes: the libraries for it add a thread, or a millisecond.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

from poolish.transports.protocols import Waker

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
