"""The logs of a stream: text files that only grow, in which each record proves itself, and the log of branches.

A record is two equal lines with an empty one between them, so that one may be damaged::

    <xxh3 of the rest, 16 digits> {"seq": 3, "uuid": ..., ..., "chain": <xxh3>}

``seq`` counts records without gaps. ``chain`` covers the record and the chain of the one before it, so records cannot
be lost, swapped or taken from another stream unseen. Lines that prove nothing (a torn write at the end, one damaged
half) are skipped; a missing number is an error.

The log of commits is in commits.py. The log of branches says which opening wrote which rows, and where episodes end.
Each opening for append adds a record before its first append, so that two copies of a directory that both go on are
two branches, and so that the steps of a recorder that was killed do not count as the beginning of the next episode::

    {"seq": 2, "uuid": ..., "rows": 400, "branch": <32 random digits>, "ends_episode": true, "chain": <xxh3>}

    rows         how many index rows there were: what this branch wrote comes behind them
    ends_episode whether an episode ends there, at the latest with the step that was being written (a *break*)

A record counts until a later one has as many rows or fewer: then its own rows were lost, by a power cut or in a copy,
and others took their place. So no record that was voided comes back when the stream grows past it. Record 0 has no
rows and is made with the stream; streams of 0.1.0 have none, so what lies below their first record is known by its
content alone.
"""

from __future__ import annotations

import json
import os
import re
import weakref
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID, uuid4

import numpy as np
from numpy.typing import NDArray

from poolish.errors import CorruptDataError
from poolish.files import checksum_hex, open_regular, sync, write_all

#: The file of branches.
BRANCHES_FILE = "branches"

_ID = re.compile(r"[0-9a-f]{32}")


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


# Branches -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Branch:
    """One record."""

    seq: int
    uuid: str
    rows: int
    branch: str
    ends_episode: bool
    chain: str


class Branches:
    """The records that count, as they were at one moment.

    >>> log = Branches().after("uuid", {0: False, 5: True}, branch="a" * 32)
    >>> found = Branches([*log, *Branches(log).after("uuid", {3: True}, branch="b" * 32)])
    >>> found.breaks, found.name_below(3) == Branches(log).name_below(5), found.n_records
    (array([3]), True, 3)
    """

    def __init__(self, records: Sequence[Branch] = ()) -> None:
        self.n_records = len(records)
        self._last = records[-1] if records else None
        counting: list[Branch] = []
        for record in records:
            while counting and counting[-1].rows >= record.rows:
                counting.pop()
            counting.append(record)
        self._rows = [record.rows for record in counting]
        self._names = _names(counting)
        #: The index rows at which an episode ends, ascending.
        self.breaks: NDArray[np.int64] = np.array([each.rows for each in counting if each.ends_episode], np.int64)

    @property
    def first_known(self) -> int:
        """The first row whose branch is known; 0 unless the stream began with 0.1.0."""
        return self._rows[0] if self._rows else 2**62

    def name_below(self, rows: int) -> str:
        """A name that two copies of a stream share as long as their first ``rows`` rows are the same rows."""
        return self._names[bisect_left(self._rows, rows)]

    def after(self, uuid: str, ends: Mapping[int, bool], branch: str | None = None) -> list[Branch]:
        """The records for a new branch behind these: for each number of rows whether an episode ends there."""
        branch, before, records = branch or uuid4().hex, self._last, []
        for rows, ends_episode in sorted(ends.items()):
            before = chained(Branch, before, uuid, rows=rows, branch=branch, ends_episode=ends_episode)
            records.append(before)
        return records


def _names(counting: Sequence[Branch]) -> list[str]:
    names = [""]
    for record in counting:
        names.append(checksum_hex(f"{names[-1]}/{record.rows}:{record.branch}".encode()))
    return names


class BranchLog(LogFile[Branch]):
    """The file of branches."""

    noun, record_type = "branch", Branch

    def append(self, records: Sequence[Branch], *, durable: bool) -> None:
        """Write records, and wait until the disk has them if ``durable``."""
        self.write([line_of(record) for record in records], durable=durable)

    def is_sound(self, record: Branch) -> bool:
        """Whether the members have the right types and ranges."""
        return (
            all(isinstance(number, int) and 0 <= number < 2**48 for number in (record.seq, record.rows))
            and isinstance(record.branch, str)
            and _ID.fullmatch(record.branch) is not None
            and isinstance(record.ends_episode, bool)
            and isinstance(record.uuid, str)
            and isinstance(record.chain, str)
        )


def open_branches(path: Path, uuid: UUID, *, mode: str) -> BranchLog | None:
    """The log of the stream at ``path``; None if it has none, as streams of 0.1.0."""
    try:
        return BranchLog(path / BRANCHES_FILE, uuid, mode=mode)
    except FileNotFoundError:
        return None


def read_branches(log: BranchLog | None, path: Path, n_synced: int) -> Branches:
    """The records that count; ``n_synced`` is how many there must be."""
    branches = Branches(log.records() if log is not None else ())
    if branches.n_records < n_synced:
        raise CorruptDataError(
            f"{path / BRANCHES_FILE}: {n_synced} branches were recorded and {branches.n_records} are there; "
            "restore the file from a copy"
        )
    return branches
