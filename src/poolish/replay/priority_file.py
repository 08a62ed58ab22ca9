"""The side file of priorities: everything that changed them, in order, each record with a checksum.

    record     frame | head | body
    frame      magic u32 | bytes of the head u32 | bytes of the body u64 | xxh3 of head and body u64 | xxh3 of these u64
    head       JSON: what it is, and how many numbers its body has
    body       arrays of 8-byte numbers, little-endian

    {"kind": "state", "stream", "branch", "end", "alpha", "first", "n", "largest"}
                                                  n priorities of the steps from first on; ids that are no transitions
    {"kind": "steps", "branch", "end", "priority"}     what new steps up to end got; ids that are no transitions
    {"kind": "update", "n"}                            n ids, then their n priorities

A file begins with a state. Records are appended by one write each, so what an update has returned for survives
``kill -9``; ``commit`` makes it survive a power cut. When a file has grown to several times its state, a new one with
one state replaces it, whole or not at all. A last record that ends behind the file, fails its checksum or is all zeros
was being written when the power failed: it is cut off, with a warning. Damage anywhere else is an error.
"""

from __future__ import annotations

import json
import os
import struct
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolish.concurrency import close_locked_fd, open_locked_fd
from poolish.errors import CorruptDataError
from poolish.files import checksum, publish, sync, sync_directory
from poolish.files.documents import parse_json
from poolish.files.space import write_all

MAGIC = 0x50525031
_FRAME, _CHECK = struct.Struct("<IIQQ"), struct.Struct("<Q")
_FRAME_BYTES = _FRAME.size + _CHECK.size

#: A file is rewritten when it has this many bytes more than its first record, or three times as many.
SLACK = 1 << 22

Body = NDArray[Any]


class PriorityFile:
    """Records on disk; its owner holds a lock.

    >>> file = PriorityFile(folder / "td")
    >>> file.replace({"kind": "state", "n": 2}, np.array([1.0, 2.0]))
    >>> file.append({"kind": "update", "n": 1}, np.array([1]), np.array([3.0]))
    >>> [(head["kind"], body.view(np.float64)[-1].item()) for head, body in PriorityFile(folder / "td").records()]
    [('state', 2.0), ('update', 3.0)]
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        self._n_bytes = self._state_bytes = 0

    @property
    def is_large(self) -> bool:
        """Whether the file should be replaced by one that holds the state alone."""
        return self._n_bytes - self._state_bytes > max(SLACK, 2 * self._state_bytes)

    def records(self) -> Iterator[tuple[dict[str, Any], Body]]:
        """The heads and bodies; a torn last record is cut off. No file has none."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return
        place = 0
        while place < len(data):
            head, body, end = self._record(data, place)
            if head is None:
                warnings.warn(
                    f"{self.path}: the last {len(data) - place:,} bytes were not written completely and are left out; "
                    "the priorities in them are those of the update before",
                    stacklevel=4,
                )
                os.truncate(self.path, place)
                break
            self._n_bytes, self._state_bytes = end, self._state_bytes or end
            yield head, body
            place = end

    def _record(self, data: bytes, place: int) -> tuple[dict[str, Any] | None, Body, int]:
        """The record at a place and where it ends; no head where the file ends in the middle of it."""
        torn = None, np.empty(0, np.int64), place
        frame = data[place : place + _FRAME_BYTES]
        if place and (len(frame) < _FRAME_BYTES or not any(memoryview(data)[place:])):
            return torn
        if len(frame) < _FRAME_BYTES or _CHECK.unpack_from(frame, _FRAME.size) != (checksum(frame[: _FRAME.size]),):
            raise self._damaged(place)
        magic, n_head, n_body, expected = _FRAME.unpack_from(frame)
        begin, end = place + _FRAME_BYTES, place + _FRAME_BYTES + n_head + n_body
        content = memoryview(data)[begin:end]
        if magic != MAGIC or n_body % 8:
            raise self._damaged(place)
        if end > len(data) or checksum(content) != expected:
            if place and end >= len(data):
                return torn
            raise self._damaged(place)
        head = parse_json(bytes(content[:n_head]).decode("utf-8", "replace"), self.path)
        return head, np.frombuffer(content[n_head:], np.dtype("<i8")), end

    def _damaged(self, place: int) -> CorruptDataError:
        return CorruptDataError(
            f"{self.path}, byte {place}: a damaged record; restore the file, or start with equal priorities: "
            "rebuild=True"
        )

    def append(self, head: Mapping[str, Any], *arrays: Body) -> None:
        """Add a record behind the others."""
        if self._fd < 0:
            self._fd = open_locked_fd(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            self._n_bytes += write_all(self._fd, _encoded(head, arrays))
        except BaseException:  # what was written of it would stand before the next record
            os.ftruncate(self._fd, self._n_bytes)
            raise

    def replace(self, head: Mapping[str, Any], *arrays: Body, durable: bool = False) -> None:
        """Put a file with this record alone in the place of the one that is there."""
        with publish(self.path, durable=durable) as file:
            self._n_bytes = self._state_bytes = sum(file.write(part) for part in _encoded(head, arrays))
        self.close()

    def commit(self) -> None:
        """Make what was appended survive a power cut."""
        if self._fd >= 0:
            sync(self._fd, self.path)
            sync_directory(self.path.parent)

    def close(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            close_locked_fd(fd)


def _encoded(head: Mapping[str, Any], arrays: tuple[Body, ...]) -> list[bytes | memoryview]:
    text = json.dumps(head, separators=(",", ":")).encode()
    bodies = [memoryview(np.ascontiguousarray(each, each.dtype.newbyteorder("<")).data).cast("B") for each in arrays]
    frame = _FRAME.pack(MAGIC, len(text), sum(body.nbytes for body in bodies), checksum(text, *bodies))
    return [frame, _CHECK.pack(checksum(frame)), text, *bodies]
