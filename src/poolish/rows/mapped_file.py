"""The file below a loaded buffer: mapped, not read, so its bytes must stay what they were when they were checked.

A file that is replaced (``save``, ``mv``) keeps its old bytes while it is mapped. One that is written in place or
truncated does not: rows change, or the system ends the process with SIGBUS. Size and modification time show that it
happened, before rows are looked at; they cannot stop it from happening in between.
"""

from __future__ import annotations

import mmap
import os
import weakref
from pathlib import Path
from typing import IO

from poolish.errors import CorruptDataError


class MappedFile:
    """A file, its bytes mapped copy-on-write, and what it looked like then."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path, self._fd = path, os.dup(file.fileno())
        weakref.finalize(self, os.close, self._fd)
        self._before = self._stamp()
        self.memory = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))

    def _stamp(self) -> tuple[int, int]:
        """Of the file that is mapped, whatever the path names now."""
        status = os.fstat(self._fd)
        return status.st_size, status.st_mtime_ns

    def check(self) -> None:
        """CorruptDataError if the file was written or truncated since it was mapped."""
        size, time = self._stamp()
        if (size, time) != self._before:
            what = "written to" if size == self._before[0] else f"resized from {self._before[0]:,} to {size:,} bytes"
            raise CorruptDataError(
                f"{self._path}: this file was {what} while a buffer that was loaded from it is in use; load the buffer "
                "again from a whole copy, replace saved buffers with save() or mv, or load them with mmap=False"
            )
