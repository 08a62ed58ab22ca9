"""Lanes that are copied into memory instead of mapped, for directories that others may tamper with.

Whoever cuts a file takes the process with it that reads the file through a map: no program can catch that. What is read
by system calls is an exception at worst. A copy holds what is published and kept, and grows when the reader refreshes.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from poolish.errors import CorruptDataError
from poolish.files import open_regular
from poolish.tokens.commits import BLOCK
from poolish.tokens.head import PAGE, Head
from poolish.tokens.memmap_buffer import MemmapBuffer

Bytes = NDArray[np.uint8]


class CopiedFile:
    """A file of which a part is held in memory; looks like a ``MappedFile`` to those who only read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = open_regular(path, os.O_RDONLY)
        self._close = weakref.finalize(self, os.close, self.fd)  # also for those that are never closed
        self._room: Bytes = np.empty(0, np.uint8)
        self._held = self._settled = 0

    @property
    def size(self) -> int:
        """How long the file is now."""
        return os.fstat(self.fd).st_size

    @property
    def bytes(self) -> Bytes:
        """The part that is held, from the beginning of the file; what was not kept is undefined."""
        return self._room[: self._held]

    def fetch(self, first: int, end: int, settled: int) -> None:
        """Hold the bytes up to ``end``, those below ``first`` excepted, which are gone anyway.

        What is below ``settled`` never changes any more; what is behind it is read again the next time.
        """
        if end > len(self._room):
            # Untouched memory costs nothing, so that what lies below `first` is only addresses.
            room = np.empty(max(end, 2 * len(self._room)), np.uint8)
            room[first : self._held] = self._room[first : self._held]
            self._room = room
        begin = max(first, self._settled)
        while begin < end:
            n_bytes = os.preadv(self.fd, [self._room[begin:end].data], begin)
            if n_bytes == 0:
                raise CorruptDataError(f"{self.path}: {begin:,} bytes, {end:,} were published; restore it from a copy")
            begin += n_bytes
        self._held, self._settled = max(self._held, end), max(self._settled, settled)

    def refresh(self) -> None:
        """Nothing to do: ``fetch`` looks at the file itself."""

    def close(self) -> None:
        """Let the file go; what is held stays."""
        self._close()
        self.fd = -1


class CopiedLane(MemmapBuffer):
    """Rows of one dtype in a file, copied instead of mapped."""

    def __init__(self, path: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> None:
        self.dtype, self.shape = np.dtype(dtype), shape
        self.row_bytes = self.dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        self._is_named, self._length = True, 0
        self._copy = CopiedFile(path)
        self._file = self._copy  # type: ignore[assignment]  # to those who only read it is one

    @property
    def capacity(self) -> int:
        """How many rows the file could hold."""
        return self._copy.size // self.row_bytes

    @property
    def room(self) -> NDArray[Any]:
        """The rows that are held."""
        return self._view()

    def fetch(self, first: int, end: int, settled: int) -> None:
        """Hold the rows from ``first`` up to ``end``, and what lies in one block of checksums with them."""
        begin = first * self.row_bytes // BLOCK * BLOCK
        self._copy.fetch(begin, end * self.row_bytes, settled * self.row_bytes)

    def refresh(self) -> None:
        """Nothing to do: ``fetch`` looks at the file itself."""

    def close(self, *, cut: bool = False) -> None:
        """Let the file go."""
        self._copy.close()


class CopiedHead(Head):
    """The head page, read anew each time somebody looks."""

    def __init__(self, path: Path) -> None:
        self._file = _Page(path)  # type: ignore[assignment]  # to those who only read it is one

    @property
    def words(self) -> NDArray[np.int64]:
        """The page as it is now; zeros, which prove nothing, if somebody has cut it."""
        page = self._file.bytes
        return page.view(np.int64) if len(page) == PAGE else np.zeros(PAGE // 8, np.int64)


class _Page(CopiedFile):
    @property
    def bytes(self) -> Bytes:
        return np.frombuffer(os.pread(self.fd, PAGE, 0), np.uint8)
