"""What a fork must not find: a buffer half-changed, or locked by a thread that the child does not have.

A fork copies the memory of all threads, but only one of them runs on. So a fork takes every buffer's lock first. The
child has copies of the buffers: what it appends is not what the parent appends under the same ids.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol

from poolish.alive import Alive


class Lockable(Protocol):
    """Something that is changed under a lock of its own."""

    _lock: threading.RLock

    def _become_copy(self) -> None: ...


_all: Alive[Lockable] = Alive()
_one_fork = threading.RLock()
_held: list[Lockable] = []


def protect(new: Lockable) -> None:
    """From now on every fork takes its lock too."""
    with _one_fork:
        _all.add(new)


def _hold_all() -> None:
    _one_fork.acquire()
    _held.extend(_all)
    for each in _held:
        each._lock.acquire()


def _release_copies() -> None:
    for each in _held:
        each._become_copy()
    _release_all()


def _release_all() -> None:
    while _held:
        _held.pop()._lock.release()
    _one_fork.release()


os.register_at_fork(before=_hold_all, after_in_parent=_release_all, after_in_child=_release_copies)
