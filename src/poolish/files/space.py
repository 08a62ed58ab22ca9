"""Writing all of it, and having the space before it is used.

A write through a memory map into space that the disk does not have is SIGBUS: the process dies without an exception.
So a file that will be mapped is grown here first, over space that is really allocated, and a full disk is a
``StoreFull`` at that call.
"""

from __future__ import annotations

import ctypes
import errno as codes
import os
import stat
import sys
from typing import TYPE_CHECKING

from poolish.errors import CorruptDataError, StoreFull

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from typing_extensions import Buffer

_FULL = {codes.ENOSPC, codes.EDQUOT, codes.EFBIG}
_UNSUPPORTED = {codes.EOPNOTSUPP, codes.EINVAL, codes.ENOSYS}
_IOV_MAX = os.sysconf("SC_IOV_MAX")

#: Bytes allocated by one system call. A call over a very long range can be interrupted for ever by a timer signal.
_ALLOCATE = 64 * 2**20


class raising_store_full:
    """Turn the system's "no space", "quota" and "file too large" into a ``StoreFull`` that says what to do.

    A class, because it is in the hot paths and a generator costs 2 us to enter and leave. A descriptor in place of
    the path is named by the system, when there is something to explain.
    """

    __slots__ = ("_n_bytes", "_place")

    def __init__(self, place: Path | str | int, n_bytes: int = 0) -> None:
        self._place, self._n_bytes = place, n_bytes

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, OSError) or error.errno not in _FULL or isinstance(error, StoreFull):
            return
        path = _name_of(self._place) if isinstance(self._place, int) else self._place
        reason = f"{os.strerror(error.errno).lower()}{f' for {self._n_bytes:,} bytes' if self._n_bytes else ''}"
        message = f"{path}: {reason}; make room there, or raise the limit on it, then try again"
        raise StoreFull(message, errno=error.errno, filename=path) from error


def open_regular(path: Path | str, flags: int, *, one_name: bool = False) -> int:
    """Open a file, ``0600`` where it is made, not through links and nothing but a regular one.

    ``one_name`` is for files that are rewritten in place: another name of it, perhaps a backup's, would change too.
    """
    try:
        with raising_store_full(path):
            fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if error.errno in (codes.EISDIR, codes.ELOOP, codes.ENXIO):
            raise _strange(path) from None
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise _strange(path)
        if one_name:
            check_one_name(status, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def is_at(path: Path | str, fd: int) -> bool:
    """Whether an open file, or directory, is the one that a path names now."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(fd))
    except FileNotFoundError:
        return False


def check_one_name(status: os.stat_result, path: Path | str) -> None:
    """Raise if a file that is about to be written in place has other names, whose content would change with it."""
    if status.st_nlink > 1:
        raise CorruptDataError(
            f"{path}: has {status.st_nlink} names (hard links), and writing to it would change them all; replace it by "
            "a copy of its own, or remove the other names"
        )


def _strange(path: Path | str) -> CorruptDataError:
    return CorruptDataError(f"{path}: not a regular file; restore it from a copy")


def write_all(fd: int, buffers: Iterable[Buffer]) -> int:
    """Write buffers one behind the other without joining them; how many bytes that was.

    The system may write less than it was asked to, or take only some buffers at once: this continues until all is
    written.
    """
    views = [memoryview(buffer) for buffer in buffers]
    waiting = [view.cast("B") for view in views if view.nbytes]
    n_bytes = sum(view.nbytes for view in waiting)
    with raising_store_full(fd, n_bytes):
        first = 0
        while first < len(waiting):
            written = os.writev(fd, waiting[first : first + _IOV_MAX])
            first = _drop(waiting, first, _progress(written))
    return n_bytes


def write_at(fd: int, data: Buffer, start: int) -> None:
    """Write all of ``data`` at byte ``start``, or raise.

    ``os.pwrite`` returns how much it wrote. On a disk that fills up that is less than it was given, without an error,
    so a durable file is never written with it directly.
    """
    waiting = memoryview(data).cast("B")
    with raising_store_full(fd, waiting.nbytes):
        _write_at(fd, waiting, start)


def _write_at(fd: int, waiting: memoryview, start: int) -> None:
    while waiting.nbytes:
        written = _progress(os.pwrite(fd, waiting, start))
        waiting, start = waiting[written:], start + written


def _progress(n_bytes: int) -> int:
    """``n_bytes``; an error where the system wrote nothing and reported nothing, which would repeat for ever."""
    if n_bytes <= 0:
        raise OSError(codes.EIO, "the system wrote nothing")
    return n_bytes


def _drop(waiting: list[memoryview], first: int, n_bytes: int) -> int:
    """Take ``n_bytes`` off the front of the buffers from ``first`` on; the number of the first that has some left."""
    while n_bytes and n_bytes >= waiting[first].nbytes:
        n_bytes -= waiting[first].nbytes
        first += 1
    if n_bytes:
        waiting[first] = waiting[first][n_bytes:]
    return first


def grow(fd: int, size: int) -> None:
    """Make a file at least ``size`` bytes long, zeros at its end, over space that is really there; never shorter.

    On a full disk the file keeps the length it had, and what was allocated on the way is given back.
    """
    before = os.fstat(fd).st_size
    if size <= before:
        return
    with raising_store_full(fd, size - before):
        try:
            for start in range(before, size, _ALLOCATE):
                _allocate(fd, start, min(_ALLOCATE, size - start))
        except BaseException:
            os.ftruncate(fd, before)
            raise


def allocate(fd: int, start: int, end: int) -> None:
    """Make sure that the disk has the space of a part of a file: one that was copied may have holes in it."""
    with raising_store_full(fd, end - start):
        for begin in range(start, end, _ALLOCATE):
            _allocate(fd, begin, min(_ALLOCATE, end - begin))


def punch(fd: int, start: int, end: int) -> bool:
    """Give the space of a part of a file back, which reads as zeros then; False where the system cannot."""
    if end <= start or sys.platform != "linux":
        return False
    keep_size, punch_hole = 1, 2
    libc = ctypes.CDLL(None, use_errno=True)
    call = libc.fallocate64 if hasattr(libc, "fallocate64") else libc.fallocate
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if call(fd, keep_size | punch_hole, start, end - start) == 0:
        return True
    error = ctypes.get_errno()
    if error in _UNSUPPORTED:
        return False
    raise OSError(error, os.strerror(error), _name_of(fd))


def _allocate(fd: int, start: int, n_bytes: int) -> None:
    if hasattr(os, "posix_fallocate"):
        try:
            return os.posix_fallocate(fd, start, n_bytes)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
    # macOS, and file systems that cannot allocate ahead: space that zeros were written to is there as well.
    return _write_zeros(fd, start, n_bytes)


def _write_zeros(fd: int, start: int, n_bytes: int) -> None:
    zeros, end = bytes(min(n_bytes, 2**20)), start + n_bytes
    while start < end:
        n_bytes = min(len(zeros), end - start)
        _write_at(fd, memoryview(zeros)[:n_bytes], start)
        start += n_bytes


def _name_of(fd: int) -> str:
    """The path of an open file where the system knows it, for messages."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return f"descriptor {fd}"
