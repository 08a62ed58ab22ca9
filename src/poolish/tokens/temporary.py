"""Directories for streams without a path: gone with their process, however it ends.

Each holds a lock for as long as its process lives. A process that ends well removes its own; what a killed one left is
removed by the next that makes one, because the kernel has given the lock up. They keep their name meanwhile, so that
spawned workers can open them.
"""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from poolish.errors import StoreLocked
from poolish.files import Lock

PREFIX = "poolish-stream-"


def make(lock_name: str) -> tuple[Path, Lock]:
    """A new directory of ours and the lock that keeps it."""
    folder = Path(tempfile.gettempdir())
    sweep(folder, lock_name)
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=folder))
        lock = Lock(path / lock_name)
        try:
            lock.acquire()
            return path, lock
        except (StoreLocked, FileNotFoundError):
            continue  # a sweeper took it for a dead one before it was locked


def keep(lock_name: str) -> Path:
    """A new directory of ours that stays until the process ends."""
    path, lock = make(lock_name)
    owner = os.getpid()

    def clear() -> None:
        if os.getpid() == owner:  # not a forked child that ends before us
            remove(path)
            lock.release()

    atexit.register(clear)
    return path


def sweep(folder: Path, lock_name: str) -> list[Path]:
    """Remove the directories of processes that are dead, and tell which."""
    removed = []
    for name in os.listdir(folder):
        path = folder / name
        if name.startswith(PREFIX) and _is_ours(path) and _remove_if_dead(path, lock_name):
            removed.append(path)
    return removed


def remove(path: Path) -> None:
    """Remove a directory of ours; nothing happens if it is gone."""
    shutil.rmtree(path, ignore_errors=True)


def _is_ours(path: Path) -> bool:
    try:
        told = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(told.st_mode) and told.st_uid == os.getuid()


def _remove_if_dead(path: Path, lock_name: str) -> bool:
    with suppress(OSError):  # StoreLocked is one: somebody lives there
        with Lock(path / lock_name):
            remove(path)
        return True
    return False
