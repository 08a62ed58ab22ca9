"""Text files that only grow, in which each record proves itself: the logs of commits and of branches.

A record is two equal lines with an empty one between them, so that one may be damaged::

    <xxh3 of the rest, 16 digits> {"seq": 3, "uuid": ..., ..., "chain": <xxh3>}

``seq`` counts records without gaps. ``chain`` covers the record and the chain of the one before it, so records cannot
be lost, swapped or taken from another stream unseen. Lines that prove nothing (a torn write at the end, one damaged
half) are skipped; a missing number is an error.
"""

from __future__ import annotations

import json
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

from poolish.errors import CorruptDataError
from poolish.files import checksum_hex, open_regular, sync, write_all


class Record(Protocol):
    """What every record has."""

    @property
    def seq(self) -> int:
        """How many records were written before it."""

    @property
    def uuid(self) -> str:
        """The stream it belongs to."""

    @property
    def chain(self) -> str:
        """A checksum of its other members and the chain of the record before it."""


AnyRecord = TypeVar("AnyRecord", bound=Record)


def chain_of(members: Mapping[str, Any], before: str) -> str:
    """The chain of a record, given all its other members and the chain of the record before it."""
    return checksum_hex(json.dumps([members, before], separators=(",", ":")).encode())


def members_of(record: Record) -> dict[str, Any]:
    """The members of a record as they are stored; those that are None, as in records of 0.1.0, are left out."""
    return {name: value for name, value in vars(record).items() if value is not None}


def chained(kind: Callable[..., AnyRecord], before: AnyRecord | None, uuid: str, **parts: Any) -> AnyRecord:
    """The record that follows another, or the first one of a log."""
    members = {"seq": before.seq + 1 if before else 0, "uuid": uuid, **parts}
    return kind(**members, chain=chain_of(members, before.chain if before else ""))


def follows(before: Record | None, record: Record) -> bool:
    """Whether a record is the one behind another, or the first one of a log."""
    members = {name: value for name, value in members_of(record).items() if name != "chain"}
    chain = chain_of(members, before.chain if before else "")
    return record.seq == (before.seq + 1 if before else 0) and record.chain == chain


def line_of(record: Record) -> bytes:
    """A record as a line with its checksum."""
    text = json.dumps(members_of(record), separators=(",", ":")).encode()
    return checksum_hex(text).encode() + b" " + text + b"\n"


def proven(line: bytes) -> Any:
    """The JSON in a line whose checksum matches; else None."""
    if len(line) < 20 or line[16:17] != b" " or checksum_hex(line[17:]).encode() != line[:16]:
        return None
    try:
        return json.loads(line[17:])
    except (ValueError, RecursionError):
        return None


class LogFile(ABC, Generic[AnyRecord]):
    """An open log. Readers only read it (``"r"``); the one writer appends (``"a"``), or creates it (``"w"``)."""

    def __init__(self, path: Path, uuid: UUID, *, mode: str) -> None:
        self.path, self.uuid = path, uuid
        flags = {"r": os.O_RDONLY, "a": os.O_RDWR | os.O_APPEND, "w": os.O_RDWR | os.O_APPEND | os.O_CREAT}[mode]
        self._fd = open_regular(path, flags, one_name=mode != "r")
        self._close = weakref.finalize(self, os.close, self._fd)  # also for those that are never closed

    def write(self, lines: list[bytes], *, durable: bool = True) -> None:
        """Append records, each of which is one line here, and wait until the disk has them."""
        # A write that was cut short, by a kill or a full disk, left a line without an end.
        start = b"" if self._ends_with_line() else b"\n"
        # An empty line between the two: a damaged end of one must not make the other part of it.
        write_all(self._fd, [start, *(part for line in lines for part in (line, b"\n", line))])
        if durable:
            sync(self._fd, self.path)

    def sync(self) -> None:
        """Wait until the disk has what is there."""
        sync(self._fd, self.path)

    @property
    def size(self) -> int:
        """How many bytes there are now."""
        return os.fstat(self._fd).st_size

    def lines(self, start: int = 0) -> list[bytes]:
        """The lines from a byte on; the first and the last may be cut."""
        return self._read(start, self.size).split(b"\n")

    # What a kind of log says itself ------------------------------------------------------------------------------

    #: What a record is called in messages.
    noun = "record"

    #: Makes a record from its members.
    record_type: Callable[..., AnyRecord]

    @abstractmethod
    def is_sound(self, record: AnyRecord) -> bool:
        """Whether the members of a record have the right types and ranges."""

    def remedy(self, seq: int) -> str:
        """What to do when a record is damaged."""
        return "restore the file from a copy"

    # Reading -----------------------------------------------------------------------------------------------------

    def records(self) -> list[AnyRecord]:
        """Every record in order, each proven by itself and by its chain."""
        found: dict[int, AnyRecord] = {}
        for record in self.parsed():
            if found.setdefault(record.seq, record) != record:
                raise CorruptDataError(f"{self.path}: two {self.noun}s {record.seq} that differ; restore the file")
        ordered = [found[seq] for seq in sorted(found)]
        for i, record in enumerate(ordered):
            if not follows(ordered[i - 1] if i else None, record):
                raise CorruptDataError(
                    f"{self.path}: {self.noun} {i} is damaged or missing and others follow; {self.remedy(i)}"
                )
        return ordered

    def parse(self, line: bytes) -> AnyRecord | None:
        """The record in a line whose checksum matches; else None."""
        try:
            record = self.record_type(**proven(line))
        except TypeError:  # not a record, or nothing
            return None
        return record if self.is_sound(record) else None

    def parsed(self, start: int = 0) -> list[AnyRecord]:
        """The records in the lines from a byte on, in the order of the file; those of another stream are an error."""
        found = [record for record in map(self.parse, self.lines(start)) if record is not None]
        if found and all(record.uuid != str(self.uuid) for record in found):
            raise CorruptDataError(
                f"{self.path}: {self.noun}s of another store ({found[-1].uuid}); restore the file from a copy"
            )
        return [record for record in found if record.uuid == str(self.uuid)]

    def n_damaged(self) -> int:
        """How many lines prove nothing; each record has two, so one may be damaged."""
        return sum(bool(line) and self.parse(line) is None for line in self.lines())

    def close(self) -> None:
        """Close the file."""
        self._close()
        self._fd = -1

    def _ends_with_line(self) -> bool:
        size = self.size
        return size == 0 or self._read(size - 1, size) == b"\n"

    def _read(self, start: int, end: int) -> bytes:
        parts = []
        while start < end and (part := os.pread(self._fd, end - start, start)):
            parts.append(part)
            start += len(part)
        return b"".join(parts)
