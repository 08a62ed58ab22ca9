"""The log of commits: what of a stream survives a power cut, and the checksums that prove it.

One commit is two equal lines of text with an empty one between them, so that one may be damaged::

    <xxh3 of the rest, 16 digits> {"seq": 3, "uuid": ..., "first": 0, "rows": 400, "tokens": 700, "kinds": "1211",
                                   "data": [<xxh3 of a block>, ...], "index": [...], "chain": <xxh3>}

``data`` and ``index`` cover what was added since the commit before, cut at whole MiB of the file, so that a bounded
store can give whole blocks back and still check the others. ``chain`` covers this record and the chain of the one
before: records cannot be lost, swapped or taken from another store unseen. Lines that prove nothing (a torn write at
the end, one damaged half) are passed over; a number that is missing is not.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from poolish.errors import CorruptDataError
from poolish.files import checksum_hex, open_regular, sync, write_all

BLOCK = 1 << 20

_HASH = re.compile(r"[0-9a-f]{16}")
_TAIL_BYTES = 64 << 10


@dataclass(frozen=True)
class Commit:
    """One record: the lengths it stands for and the checksums of what it added."""

    seq: int
    uuid: str
    first: int
    rows: int
    tokens: int
    kinds: str
    data: list[str]
    index: list[str]
    chain: str

    def line(self) -> bytes:
        """The record as a line that proves itself."""
        told = json.dumps(asdict(self), separators=(",", ":")).encode()
        return checksum_hex(told).encode() + b" " + told + b"\n"


def chained(before: Commit | None, uuid: str, **parts: Any) -> Commit:
    """The record that follows another, or the first one of a store."""
    seq = 0 if before is None else before.seq + 1
    told = {"seq": seq, "uuid": uuid, **parts}
    chain = checksum_hex(json.dumps([told, before.chain if before else ""], separators=(",", ":")).encode())
    return Commit(**told, chain=chain)


def follows(before: Commit | None, record: Commit) -> bool:
    """Whether a record is the one behind another."""
    parts = {k: v for k, v in asdict(record).items() if k not in ("seq", "uuid", "chain")}
    return chained(before, record.uuid, **parts) == record


def blocks(start: int, end: int) -> Iterator[tuple[int, int]]:
    """A range of bytes, cut at whole MiB.

    >>> list(blocks(1_000_000, 2_500_000))
    [(1000000, 1048576), (1048576, 2097152), (2097152, 2500000)]
    """
    while start < end:
        stop = min(end, (start // BLOCK + 1) * BLOCK)
        yield start, stop
        start = stop


class CommitLog:
    """The file of records. Readers only read it (``"r"``); the one writer appends (``"a"``), or makes it (``"w"``)."""

    def __init__(self, path: Path, uuid: UUID, *, mode: str) -> None:
        self.path, self.uuid = path, uuid
        flags = {"r": os.O_RDONLY, "a": os.O_RDWR | os.O_APPEND, "w": os.O_RDWR | os.O_APPEND | os.O_CREAT}[mode]
        try:
            self._fd = open_regular(path, flags)
        except FileNotFoundError as error:
            raise CorruptDataError(f"{path}: missing; restore it from a copy") from error

    def append(self, record: Commit) -> None:
        """Write a record and wait until the disk has it."""
        line = record.line()
        # A write that was cut short, by a kill or a full disk, left a line without an end.
        start = b"" if self._ends_with_line() else b"\n"
        # An empty line between the two: a damaged end of one must not make the other part of it.
        write_all(self._fd, [start, line, b"\n", line])
        sync(self._fd, self.path)

    def sync(self) -> None:
        """Wait until the disk has what is there."""
        sync(self._fd, self.path)

    def last(self) -> Commit:
        """The newest record that proves itself, found from the end: opening does not read the whole log."""
        size = os.fstat(self._fd).st_size
        n_bytes = min(_TAIL_BYTES, size)
        while True:
            found = [record for record in map(_parse, self._read(size - n_bytes, size).split(b"\n")) if record]
            ours = [record for record in found if record.uuid == str(self.uuid)]
            if found and not ours:
                raise CorruptDataError(f"{self.path}: commits of another store ({found[-1].uuid}); restore the file")
            if ours:
                return max(ours, key=lambda record: record.seq)
            if n_bytes == size:
                raise CorruptDataError(f"{self.path}: not one whole commit; restore the file from a copy")
            n_bytes = min(4 * n_bytes, size)

    def records(self) -> list[Commit]:
        """Every record in order, each proven by itself and by its chain."""
        found: dict[int, Commit] = {}
        size = os.fstat(self._fd).st_size
        for record in map(_parse, self._read(0, size).split(b"\n")):
            if record is None:
                continue
            if found.setdefault(record.seq, record) != record:
                raise CorruptDataError(f"{self.path}: two commits {record.seq} that differ; restore the file")
        ordered = [found[seq] for seq in sorted(found)]
        for i, record in enumerate(ordered):
            if record.seq != i or not follows(ordered[i - 1] if i else None, record):
                raise CorruptDataError(
                    f"{self.path}: commit {i} is damaged or missing and others follow; restore the file from a copy, "
                    f"or read what is whole with StreamStore.open(..., at={max(i - 1, 0)})"
                )
        return ordered

    def n_damaged(self) -> int:
        """How many lines prove nothing; each commit has two, so one may be damaged."""
        lines = self._read(0, os.fstat(self._fd).st_size).split(b"\n")
        return sum(bool(line) and _parse(line) is None for line in lines)

    def close(self) -> None:
        """Let the file go."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _ends_with_line(self) -> bool:
        size = os.fstat(self._fd).st_size
        return size == 0 or self._read(size - 1, size) == b"\n"

    def _read(self, start: int, end: int) -> bytes:
        parts = []
        while start < end and (part := os.pread(self._fd, end - start, start)):
            parts.append(part)
            start += len(part)
        return b"".join(parts)


def _parse(line: bytes) -> Commit | None:
    """The record in a line, if the line proves it."""
    if len(line) < 20 or line[16:17] != b" " or checksum_hex(line[17:]).encode() != line[:16]:
        return None
    try:
        told = json.loads(line[17:])
        record = Commit(**told)
    except (ValueError, TypeError, RecursionError):
        return None
    return record if _is_sound(record) else None


def _is_sound(record: Commit) -> bool:
    numbers = (record.seq, record.first, record.rows, record.tokens)
    hashes = [*_listed(record.data), *_listed(record.index), record.chain]
    return (
        all(isinstance(number, int) and 0 <= number < 2**48 for number in numbers)
        and record.first <= record.rows
        and all(isinstance(part, str) and _HASH.fullmatch(part) for part in hashes)
        and isinstance(record.kinds, str)
        and set(record.kinds) <= set("012")
        and isinstance(record.uuid, str)
    )


def _listed(parts: object) -> list[Any]:
    return parts if isinstance(parts, list) else [None]
