"""Is this still what was written? Checksums answer it from the bytes, stamps without reading them.

Arrow's own validation does not see a flipped bit, and neither does a file system without checksums. XXH3 does, at the
speed of memory. It finds accidents, not forgeries: against a hostile writer a keyed hash is needed on top.

A stamp holds size, modification time, change time and inode of a local file: equal stamps, equal content. The last two
cannot be set by a copy that keeps an old date (``cp -p``, ``rsync -t``, ``tar``).
"""

from __future__ import annotations

import io
import os
import time
from typing import TYPE_CHECKING, BinaryIO

import xxhash

if TYPE_CHECKING:
    from typing_extensions import Buffer


#: The name of the hash, for file formats to record beside its value.
CHECKSUM = "xxh3_64"


def checksum(*buffers: Buffer) -> int:
    """The checksum of buffers as if they were joined, as a number below 2**64; text is refused, encode it first.

    >>> checksum(b"yesterday's ", b"starter") == checksum(b"yesterday's starter")
    True
    """
    if len(buffers) == 1:
        return xxhash.xxh3_64_intdigest(memoryview(buffers[0]))
    hasher = xxhash.xxh3_64()
    for buffer in buffers:
        hasher.update(memoryview(buffer))
    return hasher.intdigest()


def checksum_hex(*buffers: Buffer) -> str:
    """The same as 16 digits, for JSON, where numbers above 2**53 are not safe with every reader.

    >>> checksum_hex(b"poolish")
    'c7fd31f0689af499'
    """
    return f"{checksum(*buffers):016x}"


class Checksummed(io.RawIOBase):
    """A file to write to that passes everything on to another and keeps the checksum of it.

    >>> file = Checksummed(io.BytesIO())
    >>> file.write(b"yesterday's "), file.write(b"starter")
    (12, 7)
    >>> file.checksum == checksum(b"yesterday's starter"), file.tell()
    (True, 19)
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hasher = xxhash.xxh3_64()
        self._n_bytes = 0

    @property
    def checksum(self) -> int:
        """The checksum of what was written until now."""
        return self._hasher.intdigest()

    def writable(self) -> bool:
        """Yes; reading and seeking would make the checksum one of something else."""
        return True

    def tell(self) -> int:
        """How many bytes were written."""
        return self._n_bytes

    def write(self, data: Buffer) -> int:
        """Write all of ``data``."""
        view = memoryview(data)
        # The file goes first: what it refuses does not count.
        self._file.write(view)
        self._hasher.update(view)
        self._n_bytes += view.nbytes
        return view.nbytes


# Stamps ----------------------------------------------------------------------------------------------------------


#: The clock that files are dated by stands still for up to 10 ms at a time.
TICK_NS = 20_000_000


def local_stamp(path: str | os.PathLike[str]) -> str:
    """The stamp of a file on this machine.

    >>> _ = (folder / "a").write_bytes(b"rye")
    >>> before = local_stamp(folder / "a")
    >>> _ = (folder / "a").write_bytes(b"oat")
    >>> before == local_stamp(folder / "a")
    False
    """
    found = os.stat(path)
    age_ns = time.time_ns() - found.st_ctime_ns
    if 0 <= age_ns < TICK_NS:
        # Just written: another write within the same tick would have the same times, so wait for the next tick.
        time.sleep((TICK_NS - age_ns) / 1e9)
        found = os.stat(path)
    return f"{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}:{found.st_ino}"


def is_rewritten(before: str, now: str) -> bool:
    """Whether the content of a file may have changed between two stamps; a new link or mode only moves the change time.

    >>> is_rewritten("3:100:200:7", "3:100:999:7"), is_rewritten("3:100:200:7", "3:101:999:7")
    (False, True)
    """
    return _content(before) != _content(now)


def _content(stamp: str) -> tuple[str, str, str]:
    size, modified, _, inode = stamp.split(":")
    return size, modified, inode
