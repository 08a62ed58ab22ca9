"""Is this still what was written? Checksums answer it from the bytes, stamps without reading them.

    checksum                 of buffers
    local_stamp              of a file on this machine, from its size and times
    checksummed_json         a JSON object with a ``checksum`` member, published by rename
    DoubleBufferedJson       two slots of 64 KiB in one file: u64 length, u64 xxh3_64 of the text, the text
    ChecksummedLines         JSON lines, each behind a space followed by its checksum
    ChecksummedCounters      u64 ... u64, then the u64 xxh3_64 of them; little-endian, overwritten in place

Arrow's own validation does not see a flipped bit, and neither does a file system without checksums. XXH3 does, at the
speed of memory. It finds accidents, not forgeries: against a hostile writer a keyed hash is needed on top.

A stamp holds size, modification time, change time and inode of a local file: equal stamps, equal content. The last two
cannot be set by a copy that keeps an old date (``cp -p``, ``rsync -t``, ``tar``).
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from poolish.errors import CorruptDataError, LimitExceeded
from poolish.files.documents import parse_json, read_json, write_json
from poolish.files.publishing import sync
from poolish.files.space import grow, open_regular, raising_store_full, write_at

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


# Stamps ----------------------------------------------------------------------------------------------------------


#: The clock of file times advances in steps of up to 10 ms.
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


# Small state files -----------------------------------------------------------------------------------------------
#
# Rewritten often and each with a checksum: a torn or damaged value is detected, never used. Replacing a file by
# rename makes ext4 flush the new one at once, which takes milliseconds on a busy disk; overwriting in place takes 2 us.
# A value torn by a power cut fails its checksum: counters then count as missing, which their users can handle, and of
# two slots the older value holds.

SLOT_BYTES = 65_536
#: Larger counters are damage or malice: at a million batches a second this takes 36,000 years.
MAX_COUNTER = 2**60
_HEAD = struct.Struct("<QQ")
_RETRIES = 100  # a writer may be in the middle of what is read


def write_checksummed_json(path: Path, value: dict[str, Any], *, durable: bool) -> None:
    """Publish a JSON object with a ``checksum`` member.

    >>> write_checksummed_json(folder / "run.json", {"start": 8}, durable=False)
    >>> read_checksummed_json(folder / "run.json")
    {'start': 8}
    """
    write_json(path, {**value, "checksum": json_checksum(value)}, durable=durable)


def read_checksummed_json(path: Path) -> dict[str, Any]:
    """The object without its checksum; a ``CorruptDataError`` if it is not what was written."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise CorruptDataError(f"{path}: a JSON object was written there; restore it or remove it")
    written = value.pop("checksum", None)
    found = json_checksum(value)
    if written != found:
        raise CorruptDataError(f"{path}: its checksum is {found}, written was {written!r}; restore it or remove it")
    return value


def json_checksum(value: Any) -> str:
    """The checksum of a JSON value: of its text with sorted keys and without spaces."""
    return checksum_hex(json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii"))


class ChecksummedCounters:
    """``n`` integers from 0 up to ``MAX_COUNTER`` at a path, with one writer; ``read`` returns None where none are.

    >>> mark = ChecksummedCounters(folder / "mark", 2)
    >>> mark.read()
    >>> mark.write(7, 5)
    >>> mark.read(), ChecksummedCounters(folder / "mark", 2).read()
    ((7, 5), (7, 5))
    """

    def __init__(self, path: Path, n: int) -> None:
        self.path = path
        self._layout = struct.Struct(f"<{n}Q")
        self._fd = -1
        self._is_writable = False

    def write(self, *counters: int) -> None:
        """Replace the counters: in one system call, unless the disk takes them in parts."""
        if not self._is_writable:
            self.close()
            self._fd = open_regular(self.path, os.O_RDWR | os.O_CREAT, one_name=True)
            self._is_writable = True
        packed = self._layout.pack(*counters)
        write_at(self._fd, packed + checksum(packed).to_bytes(8, "little"), 0)

    def read(self) -> tuple[int, ...] | None:
        """The counters, or None if they are missing or damaged."""
        if self._fd < 0:
            try:
                self._fd = open_regular(self.path, os.O_RDONLY)
            except FileNotFoundError:
                return None
        for _ in range(_RETRIES):
            data = os.pread(self._fd, self._layout.size + 8, 0)
            packed = data[: self._layout.size]
            if len(data) == self._layout.size + 8 and checksum(packed) == int.from_bytes(data[-8:], "little"):
                counters = self._layout.unpack(packed)
                return counters if max(counters) < MAX_COUNTER else None
        return None

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        fd, self._fd, self._is_writable = self._fd, -1, False
        if fd >= 0:
            os.close(fd)


class DoubleBufferedJson:
    """The newest JSON object written to a path; its ``"turn"`` counts the writes. One writer at a time.

    >>> consumed = DoubleBufferedJson(folder / "consumed")
    >>> consumed.read()
    >>> consumed.write({"watermark": 7}), consumed.write({"watermark": 9})
    (None, None)
    >>> DoubleBufferedJson(folder / "consumed").read()
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
            for _ in range(_RETRIES):
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
                f"{self.path}: {len(text):,} bytes of state, the limit is {SLOT_BYTES:,}; purge the queue"
            )
        fd = open_regular(self.path, os.O_RDWR | os.O_CREAT, one_name=True)
        try:
            write_at(fd, _HEAD.pack(len(text), checksum(text)) + text, (turn % 2) * SLOT_BYTES)
            if durable:
                sync(fd, self.path)
        finally:
            os.close(fd)

    def reserve(self) -> None:
        """Allocate the space now, so that later writes succeed on a full disk."""
        fd = open_regular(self.path, os.O_RDWR | os.O_CREAT, one_name=True)
        try:
            grow(fd, 2 * SLOT_BYTES)
        finally:
            os.close(fd)

    def _value(self, data: bytes) -> dict[str, Any] | None:
        if len(data) < _HEAD.size:
            return None
        length, written = _HEAD.unpack(data[: _HEAD.size])
        text = data[_HEAD.size : _HEAD.size + length]
        if len(text) != length or not text or checksum(text) != written:
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


# Lines -----------------------------------------------------------------------------------------------------------
#
#     {"block":3,...} 9f2c...\n     a whole line: it ends in its checksum and a line feed, and never changes again
#     {"block":4,...                what a killed writer left: no reader takes it, the next writer cuts it off
#
# Written by one process at a time, whose caller holds a lock, and read by any number without one.


class ChecksummedLines:
    """An append-only file of JSON lines, each with a checksum; read from where it was read last.

    >>> lines = ChecksummedLines(folder / "members.jsonl")
    >>> lines.write({"name": "a"}), lines.write({"name": "b"})
    (None, None)
    >>> list(lines.unread()), list(lines.unread())
    ([{'name': 'a'}, {'name': 'b'}], [])
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def rewind(self) -> None:
        """Read from the first line again."""
        self._offset = 0

    def skip(self) -> None:
        """Take all that is there for read."""
        with open(self.path, "rb") as file:
            self._offset = _end_of_lines(file.fileno())

    def unread(self) -> Iterator[dict[str, Any]]:
        """Whole lines that were not read yet."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        for raw in data.split(b"\n")[:-1]:
            yield self._parsed(raw)
            self._offset += len(raw) + 1

    def _parsed(self, raw: bytes) -> dict[str, Any]:
        text, _, found = raw.rpartition(b" ")
        if found.decode("ascii", "replace") != checksum_hex(text):
            raise CorruptDataError(f"{self.path}, byte {self._offset}: a damaged line; restore the file or remove it")
        line: dict[str, Any] = parse_json(text.decode(), self.path)
        return line

    def write(self, *lines: dict[str, Any]) -> None:
        """Add lines, under the caller's lock."""
        data = b"".join(map(_to_line, lines))
        with raising_store_full(self.path):
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                end = _end_of_lines(fd)
                os.ftruncate(fd, end)
                write_at(fd, data, end)
            finally:
                os.close(fd)


def _to_line(value: dict[str, Any]) -> bytes:
    text = json.dumps(value, separators=(",", ":")).encode()
    return text + b" " + checksum_hex(text).encode() + b"\n"


def _end_of_lines(fd: int) -> int:
    """Where the last whole line ends."""
    end = os.fstat(fd).st_size
    while end and os.pread(fd, 1, end - 1) != b"\n":
        end -= 1
    return end
