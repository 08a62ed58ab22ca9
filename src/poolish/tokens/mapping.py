"""A file seen through one range of addresses that stays put while the file grows.

Python's own ``mmap`` maps what a file has now, so every growth would be a new map at a new address. The system itself
maps further than the end, and what is behind it becomes usable as the file grows:

    addresses   |==== rows ====|---- allocated, free ----|..... reserved: no memory, no disk, not to be touched .....|
    file        |==== rows ====|---- allocated, free ----|

Touching what is reserved is SIGBUS, so arrays over it are never handed out. Should a file outgrow its reservation, it
is mapped a second time, twice as large; arrays over the first map stay valid, because both show the same file.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolish.files import allocate, grow, open_regular, sync

Bytes = NDArray[np.uint8]

#: Addresses reserved for a file. 128 TiB are there for a process; only what is touched costs memory.
RESERVED = 64 << 30

_libc = ctypes.CDLL(None, use_errno=True)
_mmap = getattr(_libc, "mmap64", None) or _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.msync.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_FAILED = ctypes.c_void_p(-1).value


class MappedFile:
    """A file and its bytes in memory; ``bytes`` reaches as far as the file is long.

    >>> file = MappedFile(folder / "lane", mode="a")
    >>> file.grow(8192)
    >>> file.bytes[:5] = list(b"flour")
    >>> (folder / "lane").read_bytes()[:6]
    b'flour\\x00'
    """

    def __init__(self, path: Path, *, mode: str, reserved: int | None = None, fd: int | None = None) -> None:
        self.path = path
        self.is_writable = mode == "a"
        self._reserved = RESERVED if reserved is None else reserved
        self.fd = _open(path, self.is_writable) if fd is None else fd
        self._close = weakref.finalize(self, os.close, self.fd)  # also for those that nobody closes
        self._range: Bytes = np.empty(0, np.uint8)
        self.bytes: Bytes = self._range
        try:
            self.refresh()
        except BaseException:
            self.close()
            raise

    @property
    def size(self) -> int:
        """How long the file is now."""
        return os.fstat(self.fd).st_size

    def refresh(self) -> None:
        """Reach as far as the file does now."""
        size = self.size
        if size > len(self._range):
            self._range = _map(self.fd, size, max(self._reserved, 2 * size), self.is_writable, self.path)
        self.bytes = self._range[:size]

    def grow(self, size: int) -> None:
        """Make the file at least ``size`` long, over space that the disk really has, or raise ``StoreFull``."""
        if size > len(self.bytes):
            grow(self.fd, size)
            self.refresh()

    def secure(self, start: int) -> None:
        """Make sure that the space behind ``start`` is really there, also in a file that was copied with holes."""
        allocate(self.fd, start, len(self.bytes))

    def sync(self) -> None:
        """Wait until the disk has every byte, or raise ``DurabilityLost``, which is final."""
        if sys.platform != "linux" and len(self.bytes):  # there fsync need not know what was written through a map
            _libc.msync(self._range.ctypes.data, len(self.bytes), getattr(mmap, "MS_SYNC", 0x10))
        sync(self.fd, self.path)

    def close(self) -> None:
        """Let the file go; arrays over it stay valid."""
        self._close()
        self.fd = -1
        self.bytes = self._range = np.empty(0, np.uint8)


def _open(path: Path, is_writable: bool) -> int:
    flags = os.O_RDWR | os.O_CREAT if is_writable else os.O_RDONLY
    return open_regular(path, flags, one_name=is_writable)


def _map(fd: int, needed: int, reserved: int, is_writable: bool, path: Path) -> Bytes:
    protection = mmap.PROT_READ | mmap.PROT_WRITE if is_writable else mmap.PROT_READ
    while True:
        address = _mmap(None, reserved, protection, mmap.MAP_SHARED, fd, 0)
        if address != _FAILED:
            return _array(address, reserved, is_writable)
        # A limit on addresses: take less, down to what is needed now.
        if reserved <= needed:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), str(path))
        reserved = max(needed, reserved // 2)


def _array(address: int, n_bytes: int, is_writable: bool) -> Bytes:
    owner: Any = (ctypes.c_uint8 * n_bytes).from_address(address)
    unmap = weakref.finalize(owner, _libc.munmap, address, n_bytes)
    unmap.atexit = False  # arrays may be read until the very end
    view = memoryview(owner)
    return np.frombuffer(view if is_writable else view.toreadonly(), np.uint8)
