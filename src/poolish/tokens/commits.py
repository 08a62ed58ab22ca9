"""The log of commits: what of a stream survives a power cut, and the checksums that prove it.

    {"seq": 3, "uuid": ..., "first": 0, "rows": 400, "tokens": 700, "kinds": "1211",
     "data": [<xxh3 of a block>, ...], "index": [...], "chain": <xxh3>}

``data`` and ``index`` cover what was added since the commit before, cut at whole MiB of the file, so that a bounded
store can give whole blocks back and still check the others. See log_file.py for how a record lies in the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from poolish.errors import CorruptDataError
from poolish.tokens.log_file import LogFile, chain_of, line_of, proven

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
        return line_of(asdict(self))


def chained(before: Commit | None, uuid: str, **parts: Any) -> Commit:
    """The record that follows another, or the first one of a store."""
    seq = 0 if before is None else before.seq + 1
    told = {"seq": seq, "uuid": uuid, **parts}
    return Commit(**told, chain=chain_of(told, before.chain if before else ""))


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


class CommitLog(LogFile[Commit]):
    """The file of commits."""

    noun = "commit"

    def __init__(self, path: Path, uuid: UUID, *, mode: str) -> None:
        try:
            super().__init__(path, uuid, mode=mode)
        except FileNotFoundError as error:
            raise CorruptDataError(f"{path}: missing; restore it from a copy") from error

    def append(self, record: Commit) -> None:
        """Write a record and wait until the disk has it."""
        self.write([record.line()])

    def last(self) -> Commit:
        """The newest record that proves itself, found from the end: opening does not read the whole log."""
        size = self.size
        n_bytes = min(_TAIL_BYTES, size)
        while True:
            found = self.parsed(size - n_bytes)
            if found:
                return max(found, key=lambda record: record.seq)
            if n_bytes == size:
                raise CorruptDataError(f"{self.path}: not one whole commit; restore the file from a copy")
            n_bytes = min(4 * n_bytes, size)

    def parse(self, line: bytes) -> Commit | None:
        """The record in a line, if the line proves it."""
        return _parse(line)

    def follows(self, before: Commit | None, record: Commit) -> bool:
        """Whether a record is the one behind another."""
        return follows(before, record)

    def remedy(self, seq: int) -> str:
        """Restore it, or read the commits before it."""
        return f"{super().remedy(seq)}, or read what is whole with StreamStore.open(..., at={max(seq - 1, 0)})"


def _parse(line: bytes) -> Commit | None:
    """The record in a line, if the line proves it."""
    try:
        record = Commit(**proven(line))
    except TypeError:  # not a record, or nothing
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
