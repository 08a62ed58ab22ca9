"""Waking up when something happens in a directory: inotify where there is such a thing, polling elsewhere.

A wait ends early for reasons of its own now and then, and on a network file system it may not end early at all, so it
only ever says "look again": whoever waits looks at the files, waits for a bounded time, and looks again.
Noticing a file takes some 30 us by inotify; a poll of 1 ms would take 500. inotify is called through ctypes: the
libraries for it add a thread, or a millisecond. Where the processor went to sleep meanwhile, waking it up takes another
100 us, in a virtual machine; so who expects something within milliseconds stays awake (``spin``).
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

from poolish.kernels import spin_until_readable

_POLL_S = 0.002
_SPIN_S = 0.0002  # then the caller looks again: Ctrl-C is seen, and its code stays in the caches (115 us become 65)
#: Who sleeps is let in at once when he is woken up; who spins where others work waits for the end of their turn, some
#: 3 ms. So after losing turns we sleep for a long time (with both processors busy: 190 us to the batch, not 980); after
#: one alone for a short time, because a process that was just started takes one from its parent.
_TURN_S = 0.001
_SLEEP_LEAST, _SLEEP_MOST = 10, 300  # times what was lost; doubled with each loss, forgotten a little with each gain
_FORGET = 0.99

_MODIFY, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE, _DELETE_SELF, _MOVE_SELF = 2, 0x40, 0x80, 0x100, 0x200, 0x400, 0x800
_EVENTS = _MODIFY | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF


class Watch:
    """What changes in some directories; ``add`` first, then look at the files, then ``wait``, then look again.

    >>> with Watch() as watch:
    ...     watch.add(folder)
    ...     watch.wait(0.001)
    ...     watch.wait(60) if (folder / "batch").write_bytes(b"rows") else None
    """

    def __init__(self) -> None:
        self._fd = _start()
        self._is_watching = False
        self._spin_again_at = 0.0
        self._sleep_after = float(_SLEEP_LEAST)

    def add(self, directory: Path) -> None:
        """Watch a directory too; one that is not there is left out, and may be added again later."""
        if self._fd >= 0:
            # Asked each time: the directory may have been removed and made anew under the same name.
            added = _libc().inotify_add_watch(self._fd, os.fsencode(directory), _EVENTS)
            self._is_watching |= added >= 0

    def wait(self, timeout_s: float) -> None:
        """Return when something has happened since the last wait, or when the time is over."""
        if self._fd < 0 or not self._is_watching:
            time.sleep(min(timeout_s, _POLL_S))
            return
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        if poller.poll(max(0.0, timeout_s) * 1000):
            self.drain()

    def spin(self, timeout_s: float) -> None:
        """Like ``wait``, for milliseconds, and awake: it does not sleep unless others want the processor too."""
        if self._fd < 0 or not self._is_watching or time.monotonic() < self._spin_again_at:
            self.wait(timeout_s)
            return
        is_readable, away_s = spin_until_readable(self._fd, min(timeout_s, _SPIN_S))
        if away_s > _TURN_S:
            self._spin_again_at = time.monotonic() + self._sleep_after * away_s
            self._sleep_after = min(_SLEEP_MOST, 2 * self._sleep_after)
        else:
            self._sleep_after = max(_SLEEP_LEAST, _FORGET * self._sleep_after)
        if is_readable:
            self.drain()

    def drain(self) -> None:
        """Forget what has happened until now."""
        if self._fd >= 0:
            try:
                while len(os.read(self._fd, 4096)) >= 3_800:  # an event takes up to 272 bytes
                    pass
            except BlockingIOError:
                pass

    def close(self) -> None:
        """Stop watching."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _start() -> int:
    if sys.platform != "linux":
        return -1
    # Above the limit on instances (many processes of one user) the answer is -1, and this polls.
    return int(_libc().inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))


@cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)
