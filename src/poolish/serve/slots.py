"""A small JSON document that is rewritten often, without publishing a file for it each time.

Replacing a file by rename makes ext4 write the new one out at once, which takes milliseconds on a busy disk, while the
queue is locked. So there are two places in one file and each value goes over the older of the two, in one system call:

    slot 0, slot 1     64 KiB each:   u64 length, u64 xxh3_64 of the text, the text

A value that was torn by a power cut fails its checksum, and the one before it, in the other slot, holds.
"""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

from poolish.errors import CorruptDataError, LimitExceeded
from poolish.files import checksum, grow, open_regular, parse_json, sync, write_at

SLOT_BYTES = 65_536
_HEAD = struct.Struct("<QQ")
_TRIES = 100


class Slots:
    """The newest of the values written to a path; each carries a ``"turn"`` that counts them. One writer at a time.

    >>> slots = Slots(folder / "consumed")
    >>> slots.read()
    >>> slots.write({"watermark": 7}), slots.write({"watermark": 9})
    (None, None)
    >>> Slots(folder / "consumed").read()
    {'watermark': 9, 'turn': 2}
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Any] | None:
        """The newest value; None if there never was one. Both slots damaged is a ``CorruptDataError``."""
        try:
            fd = open_regular(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            for _ in range(_TRIES):  # a writer may be in the middle of one slot, and quicker than we are
                slots = [_read_slot(fd, i * SLOT_BYTES) for i in (0, 1)]
                found = [value for value in map(self._value, slots) if value is not None]
                if found:
                    return max(found, key=lambda value: int(value["turn"]))
                if not any(any(slot[: _HEAD.size]) for slot in slots):
                    return None  # reserved, and never written
        finally:
            os.close(fd)
        raise CorruptDataError(f"{self.path}: nothing in it can be read; restore it, or purge the queue")

    def write(self, value: dict[str, Any], *, after: dict[str, Any] | None = None, durable: bool = False) -> None:
        """Make this the newest value; ``after`` is the one before it, if the caller has just read it."""
        turn = ((after or self.read() or {}).get("turn", 0)) + 1
        text = json.dumps({**value, "turn": turn}, separators=(",", ":")).encode("ascii")
        if _HEAD.size + len(text) > SLOT_BYTES:
            raise LimitExceeded(
                f"{self.path}: {len(text):,} bytes of notes, the limit is {SLOT_BYTES:,}; purge the queue"
            )
        fd = open_regular(self.path, os.O_RDWR | os.O_CREAT, one_name=True)
        try:
            write_at(fd, _HEAD.pack(len(text), checksum(text)) + text, (turn % 2) * SLOT_BYTES)
            if durable:
                sync(fd, self.path)
        finally:
            os.close(fd)

    def reserve(self) -> None:
        """Take the space now, so that a full disk does not keep a consumer from deleting."""
        fd = open_regular(self.path, os.O_RDWR | os.O_CREAT, one_name=True)
        try:
            grow(fd, 2 * SLOT_BYTES)
        finally:
            os.close(fd)

    def _value(self, data: bytes) -> dict[str, Any] | None:
        if len(data) < _HEAD.size:
            return None
        length, noted = _HEAD.unpack(data[: _HEAD.size])
        text = data[_HEAD.size : _HEAD.size + length]
        if len(text) != length or not text or checksum(text) != noted:
            return None
        try:
            value = parse_json(text.decode("ascii"), self.path)
        except ValueError:  # a right checksum over something that we never wrote
            return None
        return value if isinstance(value, dict) and type(value.get("turn")) is int else None


def _read_slot(fd: int, start: int) -> bytes:
    """As much of a slot as is used."""
    data = os.pread(fd, 4096, start)
    length = int.from_bytes(data[:8], "little")
    return data if length <= 4096 - _HEAD.size else os.pread(fd, SLOT_BYTES, start)
