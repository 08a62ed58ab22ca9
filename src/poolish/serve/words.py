"""A few numbers in a file of their own, rewritten in place by one process and read by any other.

For what changes with every batch: publishing a whole file for it would cost more than the batch (260 us on ext4; this
takes 2). The numbers are followed by their checksum, so a reader who came in the middle of a write sees that and looks
again, and numbers torn by a power cut count as not there: whoever uses this can do without them.

    u64 ... u64   little-endian
    u64           xxh3_64 of the above
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from poolish.files import checksum, open_regular, write_at

#: Larger numbers are damage or malice: at a million batches a second this takes 36,000 years.
MAX_NUMBER = 2**60
_TRIES = 100


class Words:
    """``n`` numbers from 0 up to ``MAX_NUMBER`` at a path; ``read`` gives None where there are none.

    >>> mark = Words(folder / "mark", 2)
    >>> mark.read()
    >>> mark.write(7, 5)
    >>> mark.read(), Words(folder / "mark", 2).read()
    ((7, 5), (7, 5))
    """

    def __init__(self, path: Path, n: int) -> None:
        self.path = path
        self._layout = struct.Struct(f"<{n}Q")
        self._fd = -1
        self._is_writable = False

    def write(self, *numbers: int) -> None:
        """Replace the numbers: in one system call, unless the disk takes them in parts."""
        if not self._is_writable:
            self.close()
            self._fd = open_regular(self.path, os.O_RDWR | os.O_CREAT, one_name=True)
            self._is_writable = True
        packed = self._layout.pack(*numbers)
        write_at(self._fd, packed + checksum(packed).to_bytes(8, "little"), 0)

    def read(self) -> tuple[int, ...] | None:
        """The numbers, or None if there are none that are whole."""
        if self._fd < 0:
            try:
                self._fd = open_regular(self.path, os.O_RDONLY)
            except FileNotFoundError:
                return None
        for _ in range(_TRIES):
            data = os.pread(self._fd, self._layout.size + 8, 0)
            packed = data[: self._layout.size]
            if len(data) == self._layout.size + 8 and checksum(packed) == int.from_bytes(data[-8:], "little"):
                numbers = self._layout.unpack(packed)
                return numbers if max(numbers) < MAX_NUMBER else None
        return None

    def close(self) -> None:
        """Let the file go; the next use opens it again."""
        fd, self._fd, self._is_writable = self._fd, -1, False
        if fd >= 0:
            os.close(fd)
