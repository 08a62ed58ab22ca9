"""The head page: the only bytes of a stream that are ever rewritten.

    byte 0    magic, 8 bytes                 \\
         8    uuid of the store, 16 bytes     |  written when a writer opens the store,
        24    boot id, 16 bytes               |  unless the page says all of it already
        40    inode of the data lane          |
        48    checksum of bytes 0 to 48      /
        56    pid of the writer, for people
        64    published   index rows that readers may see          \\
       128    first       index row where a bounded store begins    |  sealed words, a cache line each
       192    committed   number of the newest synced commit       /
       256    kinds of the fields, a byte each: 0xF0 undecided, 0xE1 scalar, 0xD2 sequence
       512    branches    how many records of branches were synced, a sealed word; zeros on a page of 0.1.0

A sealed word is a number below 2**48 with 16 bits above it that prove it, stored in one piece; a kind has its
opposite in its upper half. The page is good for the machine and the boot that wrote it, and for the very file of data
beside it: after a power cut, or in a copy of the directory, the lanes may be older than the page, and then only commits
count.
"""

from __future__ import annotations

import os
import secrets
import struct
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from poolish import kernels
from poolish.files import checksum
from poolish.kernels.reference_tokens import FIRST, PUBLISHED
from poolish.tokens.memmap_buffer import MappedFile

MAGIC = b"poolish\x01"
PAGE = 4096
COMMITTED = 24
BRANCHES = 64
KINDS = slice(256, 512)
_STATIC = struct.Struct("<8s16s16sqQ")
_PID = slice(56, 64)
_END = 520
_SEALED_KINDS = {0xF0, 0xE1, 0xD2}


@dataclass(frozen=True)
class Owner:
    """Who wrote the page, and about which file."""

    uuid: UUID
    boot: bytes
    inode: int


class Head:
    """The page, mapped; words are read and stored whole, in order with everything around them."""

    def __init__(self, path: Path, *, mode: str) -> None:
        self._file = MappedFile(path, mode=mode, reserved=PAGE)
        if mode == "a":
            try:
                self._file.grow(PAGE)
                self._file.secure(0)
            except BaseException:
                self._file.close()
                raise
        self._words = self._file.bytes[:PAGE].view(np.int64) if self.is_whole else np.zeros(PAGE // 8, np.int64)

    @property
    def is_whole(self) -> bool:
        """Whether the file is long enough to be looked at."""
        return len(self._file.bytes) >= PAGE

    @property
    def words(self) -> NDArray[np.int64]:
        """The page as the kernels see it."""
        return self._words

    @property
    def published_page(self) -> bytes:
        """All of the page that readers go by, to compare with what it was."""
        return self._file.bytes[:_END].tobytes()

    @property
    def owner(self) -> Owner | None:
        """Who wrote the page; None if it is damaged."""
        if not self.is_whole:
            return None
        packed = bytes(self._file.bytes[: _STATIC.size])
        magic, uuid, boot, inode, proof = _STATIC.unpack(packed)
        if magic != MAGIC or checksum(packed[:-8]) != proof:
            return None
        return Owner(UUID(bytes=uuid), boot, inode)

    def sign(self, owner: Owner) -> None:
        """Say whose page this is; everything else on it must be right before.

        A page that says so already is left alone: half a signature, after a kill, would be none.
        """
        if self.owner != owner:
            packed = _STATIC.pack(MAGIC, owner.uuid.bytes, owner.boot, owner.inode, 0)
            proof = checksum(packed[:-8]).to_bytes(8, "little")
            self._file.bytes[: _STATIC.size] = np.frombuffer(packed[:-8] + proof, np.uint8)
        self._file.bytes[_PID] = np.frombuffer(os.getpid().to_bytes(8, "little"), np.uint8)

    @property
    def published(self) -> int:
        """How many index rows readers may see; -1 if the word is damaged."""
        return int(kernels.load_word(self.words, PUBLISHED))

    @property
    def first(self) -> int:
        """The index row where the store begins; -1 if the word is damaged."""
        return int(kernels.load_word(self.words, FIRST))

    @property
    def committed(self) -> int:
        """The newest commit that was synced; -1 if the word is damaged."""
        return int(kernels.load_word(self.words, COMMITTED)) if self.is_whole else -1

    @property
    def branches(self) -> int:
        """How many records of branches were synced, 0 on a page of 0.1.0; -1 if the word is damaged."""
        return int(kernels.load_word(self.words, BRANCHES)) if self.words[BRANCHES] else 0

    def store(self, word: int, number: int) -> None:
        """Publish a number."""
        kernels.store_word(self.words, word, number)

    def kinds(self, n_fields: int) -> bytes | None:
        """The kinds of the fields; None if any of them is damaged."""
        sealed = bytes(self._file.bytes[KINDS][:n_fields])
        return bytes(byte & 3 for byte in sealed) if set(sealed) <= _SEALED_KINDS else None

    def store_kind(self, type_: int, kind: int) -> None:
        """Say what a field is."""
        self._file.bytes[KINDS][type_] = kind | (~kind & 15) << 4

    def sync(self) -> None:
        """Wait until the disk has the page."""
        self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@cache
def boot_id() -> bytes:
    """16 bytes that stay the same until the machine goes down; random, so never trusted, where the system has none."""
    try:
        if sys.platform == "darwin":
            found = subprocess.run(["sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, check=True)
            return UUID(found.stdout.strip()).bytes
        return UUID(Path("/proc/sys/kernel/random/boot_id").read_text().strip()).bytes
    except (OSError, ValueError, subprocess.SubprocessError):
        return secrets.token_bytes(16)


def owner_of(uuid: UUID, data: MappedFile) -> Owner:
    """This boot, with this file of data."""
    return Owner(uuid, boot_id(), os.fstat(data.fd).st_ino)
