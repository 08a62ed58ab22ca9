"""Descriptors that carry a lock, which forked children must not keep alive.

An flock belongs to the open file, not to the process. A forked DataLoader worker inherits the open file, so the lock
would stay held for as long as the worker lives, even when the process that took it is long dead. Therefore every
descriptor that is locked is opened and closed here, and in a forked child each of them becomes one to /dev/null: the
lock is the parent's alone, a buffered writer that came along flushes into nothing, and the number stays taken.
"""

from __future__ import annotations

import fcntl
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_held: set[int] = set()
_no_fork = threading.RLock()  # held while a descriptor is open but not noted, or the other way round


def open_held(path: Path, flags: int) -> int:
    """Open a file, ``0600`` where it is made; forked children will not have it."""
    with _no_fork:
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        _held.add(fd)
    return fd


def is_held(fd: int) -> bool:
    """Whether ``fd`` was opened here by this very process and not let go."""
    return fd in _held


def let_go(fd: int) -> None:
    """Close what ``open_held`` opened, and with it give up its lock."""
    with _no_fork:
        _held.discard(fd)
        os.close(fd)


def try_lock(fd: int) -> bool:
    """Take the lock on an open file if nobody has it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _drop_in_child() -> None:
    try:
        nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for fd in _held:
            os.dup2(nowhere, fd, inheritable=False)
        os.close(nowhere)
        _held.clear()
    finally:
        _no_fork.release()


os.register_at_fork(before=_no_fork.acquire, after_in_parent=_no_fork.release, after_in_child=_drop_in_child)
