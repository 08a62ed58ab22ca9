"""A file, or a directory, appears whole or not at all.

It is written under a name that no reader looks for, and gets its real name in one step::

    (nothing) --create--> .<name>.<random>.partial --sync, then rename, link or exchange--> <name>
                           locked by its writer |
                                                |-- any exception --> removed
                                                `-- kill -9 --> stays, unlocked, until the next sweep removes it

The lock distinguishes an unfinished file from one whose writer is dead; its age does not.
Durable means: file synced, then renamed, then the directory synced. In another order a power cut may leave the name
without the content.

A file system can rename a directory over an empty one only; one with files in it changes places with the new one in a
single step. So at each moment there is the old one or the new one under the name. A kill after that step leaves the old
one under the temporary name, which the next writer removes like anything unfinished.
"""

from __future__ import annotations

import ctypes
import errno as codes
import fcntl
import io
import os
import re
import secrets
import shutil
import stat
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self

from poolish.concurrency import cached_property, close_locked_fd, open_locked_fd, owns_fd, try_lock
from poolish.errors import ConfigError, DurabilityLost
from poolish.files.space import is_at, raising_store_full

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Buffer


_LEFTOVER = re.compile(r"\..*\.[0-9a-f]{16}\.partial", re.DOTALL)


@contextmanager
def publish(path: str | os.PathLike[str], *, durable: bool = True, replace: bool = True) -> Iterator[BinaryIO]:
    """A binary file to write to, which becomes ``path`` when the block ends well; after an exception nothing happened.

    A reader sees the old file or the whole new one. ``durable`` makes it survive a power cut as well, once the block is
    left; if only the directory cannot be synced, the error comes when the new file is already there. With
    ``replace=False`` an existing file is a FileExistsError, also when it appeared in the meantime.

    >>> with publish(folder / "meta.txt") as file:
    ...     file.write(b"whole")
    5
    >>> (folder / "meta.txt").read_bytes()
    b'whole'
    """
    target = Path(path)
    if not replace and os.path.lexists(target):
        raise _exists(target)
    with Partial(target.parent, target.name) as partial:
        yield partial.file
        partial.finish(durable=durable)
        if replace:
            partial.rename(target)
        else:
            partial.link(target)
    if durable:
        sync_directory(target.parent)


class Partial:
    """A file in the making, in steps, for callers that learn its final name only when it is written.

    Write to ``file``, then ``finish``, then ``link`` or ``rename``. Leaving the block removes the temporary name.
    ``over`` is a file in the same file system that is no longer needed: it is overwritten, if no other process holds
    it, because a file that is there already costs less than a new one.

    >>> with Partial(folder, "batch") as partial:
    ...     n_bytes = partial.file.write(b"rows")
    ...     partial.finish(durable=False)
    ...     partial.link(folder / "000042")
    >>> (folder / "000042").read_bytes()
    b'rows'
    """

    def __init__(self, directory: str | os.PathLike[str], name: str, *, over: str | None = None) -> None:
        taken = _take_over(over, os.fspath(directory), name) if over else None
        self.path, self._fd = taken or _create(os.fspath(directory), name)
        self._raw: _Raw | None = None

    @property
    def fd(self) -> int:
        """The descriptor, for writing whole buffers."""
        return self._fd

    @cached_property
    def file(self) -> BinaryIO:
        """The file to write to."""
        self._raw = _Raw(self._fd, self.path)
        return io.BufferedWriter(self._raw)

    def finish(self, *, durable: bool) -> None:
        """Hand everything to the system, and if ``durable`` to the disk."""
        self._check_ours()
        if self._raw is not None and not self.file.closed:
            self.file.flush()
        if durable:
            sync(self._fd, self.path)

    def rename(self, target: Path) -> None:
        """Put the file at ``target``, in place of what is there."""
        self._check_ours()
        with raising_store_full(target):
            os.rename(self.path, target)

    def link(self, target: Path | str) -> None:
        """Put the file at ``target``, or raise FileExistsError if there is one."""
        self._check_ours()
        try:
            with raising_store_full(target):
                os.link(self.path, target)
        except FileExistsError:
            # A network file system may repeat a request that had already succeeded; then the file there is ours.
            if not os.path.samestat(os.lstat(target), os.fstat(self._fd)):
                raise _exists(target) from None

    def close(self) -> None:
        """Remove the temporary name, if it is still there, and close the file."""
        if owns_fd(self._fd):
            with suppress(OSError):  # renamed already, or a broken disk: then sweep() comes after us
                os.unlink(self.path)
            # Not file.close(): it would write what is still in its buffer.
            if self._raw is not None:
                self._raw.close()
            close_locked_fd(self._fd)
        self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_ours(self) -> None:
        if not owns_fd(self._fd):
            raise ValueError(f"{self.path}: closed, or written by the process that this one was forked from")


class _Raw(io.FileIO):
    """The descriptor under a ``Partial``, whose writes say which file did not fit."""

    def __init__(self, fd: int, path: Path) -> None:
        super().__init__(fd, "wb", closefd=False)
        self._path = path

    def write(self, data: Buffer) -> int:
        with raising_store_full(self._path, memoryview(data).nbytes):
            return os.write(self.fileno(), data)


def _partial_name(directory: str, name: str) -> Path:
    return Path(f"{directory}/.{name[:50]}.{secrets.token_hex(8)}.partial")


def _take_over(over: str, directory: str, name: str) -> tuple[Path, int] | None:
    """A discarded file under a new name, locked; None if another process took it or still holds it."""
    path = _partial_name(directory, name)
    try:
        os.rename(over, path)  # this decides which process has it
        fd = open_locked_fd(path, os.O_RDWR)
    except OSError:
        return None
    try:
        # The lock first: until we have it, a sweeper may take the file for a dead one.
        if try_lock(fd) and os.fstat(fd).st_nlink == 1 and stat.S_ISREG(os.fstat(fd).st_mode):
            return path, fd
    except BaseException:
        close_locked_fd(fd)
        raise
    with suppress(FileNotFoundError):
        os.unlink(path)
    close_locked_fd(fd)
    return None


def _create(directory: str, name: str) -> tuple[Path, int]:
    while True:
        path = _partial_name(directory, name)
        with raising_store_full(path):
            fd = open_locked_fd(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            if try_lock(fd) and os.fstat(fd).st_nlink:
                return path, fd
        except BaseException:
            os.unlink(path)
            close_locked_fd(fd)
            raise
        # A sweeper came between our two calls and took the file for a dead one. It removes it; we take another name.
        close_locked_fd(fd)


def sweep(directory: str | os.PathLike[str]) -> list[Path]:
    """Remove the unfinished files of dead writers, and return their paths; those still being written stay."""
    names = sorted(name for name in os.listdir(directory) if _LEFTOVER.fullmatch(name))
    return [path for path in (Path(directory, name) for name in names) if _remove_if_dead(path)]


def _remove_if_dead(path: Path) -> bool:
    try:
        fd = open_locked_fd(path, os.O_RDWR | os.O_NONBLOCK)
    except OSError:
        return False  # finished meanwhile, or another user's
    try:
        if not try_lock(fd):
            return False
        os.unlink(path)
        return True
    except FileNotFoundError:
        return False  # another sweeper was quicker
    finally:
        close_locked_fd(fd)


def sync(fd: int, path: str | os.PathLike[str]) -> None:
    """Wait until the disk has what was written to ``fd``. A failure is final: never sync again and rely on it.

    After a failed sync the system may forget what it could not write, and the next sync then succeeds.
    """
    try:
        if sys.platform == "darwin":
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync stops at the disk's own cache there
        else:
            os.fsync(fd)
    except OSError as error:
        message = f"{path}: sync failed ({error.strerror}), a power cut may lose it; check the disk, then write it anew"
        raise DurabilityLost(message, errno=error.errno, filename=path) from error


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Wait until the disk has the names in a directory: a new file's content may be durable before its name is."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(fd, path)
    finally:
        os.close(fd)


def _exists(target: Path | str) -> FileExistsError:
    return FileExistsError(f"{target}: there is a file already; choose another name, or remove it first")


# Directories -----------------------------------------------------------------------------------------------------


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
    _sweep_folders(target)
    folder, fd = _create_folder(target)
    try:
        yield folder
        with raising_store_full(target):
            _sync_inside(folder)
        sync(fd, folder)
        if check is not None:
            check(target)
        with raising_store_full(target):
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


def _create_folder(target: Path) -> tuple[Path, int]:
    while True:
        folder = _partial_name(os.fspath(target.parent), target.name)
        with raising_store_full(folder):
            os.mkdir(folder)
        # Gone or locked: a sweeper came between our calls and took the directory for a dead one.
        with suppress(FileNotFoundError):
            fd = open_locked_fd(folder, os.O_RDONLY | os.O_DIRECTORY)
            if try_lock(fd) and is_at(folder, fd):
                return folder, fd
            close_locked_fd(fd)


def _sweep_folders(target: Path) -> None:
    """Remove what writers for this target have left that were killed; what is still being written is locked."""
    leftover = re.compile(rf"\.{re.escape(target.name[:50])}\.[0-9a-f]{{16}}\.partial")
    for path in [target.parent / name for name in os.listdir(target.parent) if leftover.fullmatch(name)]:
        with suppress(OSError):  # finished meanwhile, or another user's
            fd = open_locked_fd(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                if try_lock(fd):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                close_locked_fd(fd)
