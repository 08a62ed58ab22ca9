"""A stamp of a local file: equal stamps, equal content, without reading it.

It holds size, modification time, change time and inode. The last two cannot be set by a copy that keeps an old date
(``cp -p``, ``rsync -t``, ``tar``).
"""

from __future__ import annotations

import os
import time

#: The clock that files are dated by stands still for up to 10 ms at a time.
TICK_NS = 20_000_000


def local_stamp(path: str | os.PathLike[str]) -> str:
    """The stamp of a file on this machine.

    >>> _ = (folder / "a").write_bytes(b"rye")
    >>> before = local_stamp(folder / "a")
    >>> _ = (folder / "a").write_bytes(b"oat")
    >>> before == local_stamp(folder / "a")
    False
    """
    found = os.stat(path)
    age_ns = time.time_ns() - found.st_ctime_ns
    if 0 <= age_ns < TICK_NS:
        # Just written: another write within the same tick would have the same times, so wait for the next tick.
        time.sleep((TICK_NS - age_ns) / 1e9)
        found = os.stat(path)
    return f"{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}:{found.st_ino}"


def is_rewritten(before: str, now: str) -> bool:
    """Whether the content of a file may have changed between two stamps; a new link or mode only moves the change time.

    >>> is_rewritten("3:100:200:7", "3:100:999:7"), is_rewritten("3:100:200:7", "3:101:999:7")
    (False, True)
    """
    return _content(before) != _content(now)


def _content(stamp: str) -> tuple[str, str, str]:
    size, modified, _, inode = stamp.split(":")
    return size, modified, inode
