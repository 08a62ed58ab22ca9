"""A directory appears whole or not at all, also where it takes the place of another.

    (nothing) --mkdir--> .<name>.<random>.partial --all synced--> rename, or exchange with the old one --> <name>
                         locked by its writer |                                    `--> the old one is removed
                                              |-- any exception --> removed
                                              `-- kill -9 --> stays, unlocked, until the next one for <name> removes it

A file system can rename a directory over an empty one only; one with files in it changes places with the new one in a
single step. So at each moment there is the old one or the new one under the name. A kill after that step leaves the old
one under the temporary name, which the next writer removes like anything unfinished.
"""

from __future__ import annotations

import ctypes
import errno as codes
import os
import re
import secrets
import shutil
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from poolish.concurrency import close_locked_fd, open_locked_fd, try_lock
from poolish.errors import ConfigError
from poolish.files.publishing import sync, sync_directory
from poolish.files.space import explain_full

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def publish_directory(path: str | os.PathLike[str], *, check: Callable[[Path], object] | None = None) -> Iterator[Path]:
    """A directory to write into, which becomes ``path`` when the block ends well; after an exception nothing happened.

    Whatever directory is at ``path`` is replaced. ``check`` is called with ``path`` just before, when all is on disk,
    and may refuse that by an exception. Two writers for one path do not disturb each other; the later one stays.

    >>> with publish_directory(folder / "out") as new:
    ...     (new / "data.txt").write_text("whole")
    5
    >>> os.listdir(folder / "out")
    ['data.txt']
    """
    target = Path(path)
    _sweep(target)
    folder, fd = _create(target)
    try:
        yield folder
        with explain_full(target):
            _sync_inside(folder)
        sync(fd, folder)
        if check is not None:
            check(target)
        with explain_full(target):
            _put(folder, target)
        sync_directory(target.parent)
    finally:
        # What still has the temporary name is what was not finished, or the directory that was replaced.
        shutil.rmtree(folder, ignore_errors=True)
        close_locked_fd(fd)


def exchange(one: Path, other: Path) -> None:
    """Let two directories change their names in one step, which Linux and macOS can do, if the file system can."""
    libc = ctypes.CDLL(None, use_errno=True)
    first, second = os.fsencode(one), os.fsencode(other)
    if hasattr(libc, "renameat2"):
        here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
        failed = libc.renameat2(here, first, here, second, ctypes.c_uint(swap))
    elif hasattr(libc, "renamex_np"):
        failed = libc.renamex_np(first, second, ctypes.c_uint(2))  # RENAME_SWAP
    else:
        failed = -1
        ctypes.set_errno(codes.ENOSYS)
    if failed:
        number = ctypes.get_errno()
        if number in (codes.ENOSYS, codes.EINVAL, codes.ENOTSUP):
            # Two renames would do, with a moment between them when there is neither; that is not what was promised.
            raise ConfigError(f"{other}: directories cannot be exchanged here; remove it, or give another directory")
        raise OSError(number, os.strerror(number), str(other))


def _put(folder: Path, target: Path) -> None:
    try:
        os.rename(folder, target)  # in place of nothing, or of an empty directory
    except OSError as error:
        if error.errno not in (codes.ENOTEMPTY, codes.EEXIST):
            raise
        exchange(folder, target)


def _sync_inside(folder: Path) -> None:
    """Hand all files and directories in a directory to the disk; links are names, which are in their directory."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False):
            _sync_inside(Path(entry.path))
            sync_directory(entry.path)
        elif entry.is_file(follow_symlinks=False):
            fd = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                sync(fd, entry.path)
            finally:
                os.close(fd)


def _create(target: Path) -> tuple[Path, int]:
    while True:
        folder = target.parent / f".{target.name[:50]}.{secrets.token_hex(8)}.partial"
        with explain_full(folder):
            os.mkdir(folder)
        # Gone or locked: a sweeper came between our calls and took the directory for a dead one.
        with suppress(FileNotFoundError):
            fd = open_locked_fd(folder, os.O_RDONLY | os.O_DIRECTORY)
            if try_lock(fd) and _is_at(fd, folder):
                return folder, fd
            close_locked_fd(fd)


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def _sweep(target: Path) -> None:
    """Remove what writers for this target have left that were killed; what is still being written is locked."""
    leftover = re.compile(rf"\.{re.escape(target.name[:50])}\.[0-9a-f]{{16}}\.partial")
    for path in [target.parent / name for name in os.listdir(target.parent) if leftover.fullmatch(name)]:
        with suppress(OSError):  # finished meanwhile, or somebody else's
            fd = open_locked_fd(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                if try_lock(fd):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                close_locked_fd(fd)
