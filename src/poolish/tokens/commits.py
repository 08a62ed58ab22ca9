"""Commits: what of a stream survives a power cut, the checksums that prove it, and what a bounded stream gives back.

    commit   sync the lanes -> a record in the log -> sync the log -> its number on the head page
    trim     commit, so that no power cut brings back what is about to go -> give whole blocks back
    verify   every committed byte against the checksums in the log

    {"seq": 3, "uuid": ..., "first": 0, "rows": 400, "tokens": 700, "kinds": "1211",
     "data": [<xxh3 of a block>, ...], "index": [...], "branches": 2, "chain": <xxh3>}

``branches`` is how many records that log had, so that a log which lost its end is seen without the head page; records
of 0.1.0 do not have it.

``data`` and ``index`` cover what was added since the commit before, cut at whole MiB of the file, so that a bounded
store can give whole blocks back and still check the others. See logs.py for how a record lies in the file.

Appends go on during a commit: what is published never changes. A failed sync is final: the disk may hold anything, so
the stream refuses everything from then on and must be opened again.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from poolish.errors import CorruptDataError, DurabilityLost
from poolish.files import checksum_hex
from poolish.tokens import logs
from poolish.tokens.head import COMMITTED, Head
from poolish.tokens.logs import BranchLog, LogFile, chained, line_of
from poolish.tokens.memmap_buffer import MemmapBuffer
from poolish.tokens.stream_files import BLOCK, StreamFiles, StreamState

_HASH = re.compile(r"[0-9a-f]{16}")
_TAIL_BYTES = 64 << 10


@dataclass(frozen=True, kw_only=True)
class Commit:
    """One record: the lengths it stands for, the checksums of what it added, and how many branches there were."""

    seq: int
    uuid: str
    first: int
    rows: int
    tokens: int
    kinds: str
    data: list[str]
    index: list[str]
    branches: int | None = None
    chain: str


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

    noun, record_type = "commit", Commit

    def __init__(self, path: Path, uuid: UUID, *, mode: str) -> None:
        #: The end of the file when it was last parsed, and the newest record then.
        self._known: tuple[bytes, Commit] | None = None
        try:
            super().__init__(path, uuid, mode=mode)
        except FileNotFoundError as error:
            raise CorruptDataError(f"{path}: missing; restore it from a copy") from error

    def append(self, record: Commit) -> None:
        """Write a record and wait until the disk has it."""
        self.write([line_of(record)])

    def last(self) -> Commit:
        """The newest record that proves itself, found from the end: opening does not read the whole log."""
        size = self.size
        n_bytes = min(_TAIL_BYTES, size)
        tail = self._read(size - n_bytes, size)
        known = self._known
        if known is not None and known[0] == tail:  # a reader asks at every refresh, and parsing takes 1 ms
            return known[1]
        while True:
            found = self.parsed(size - n_bytes)
            if found:
                newest = max(found, key=lambda record: record.seq)
                self._known = (tail, newest)
                return newest
            if n_bytes == size:
                raise CorruptDataError(f"{self.path}: not one whole commit; restore the file from a copy")
            n_bytes = min(4 * n_bytes, size)

    def is_sound(self, record: Commit) -> bool:
        """Whether the members have the right types and ranges."""
        numbers = [record.seq, record.first, record.rows, record.tokens]
        numbers += [] if record.branches is None else [record.branches]
        hashes = [*_listed(record.data), *_listed(record.index), record.chain]
        return (
            all(isinstance(number, int) and 0 <= number < 2**48 for number in numbers)
            and record.first <= record.rows
            and all(isinstance(part, str) and _HASH.fullmatch(part) for part in hashes)
            and isinstance(record.kinds, str)
            and set(record.kinds) <= set("012")
            and isinstance(record.uuid, str)
        )

    def remedy(self, seq: int) -> str:
        """Restore it, or read the commits before it."""
        return f"{super().remedy(seq)}, or read what is whole with StreamStore.open(..., at={max(seq - 1, 0)})"


def _listed(parts: object) -> list[Any]:
    return parts if isinstance(parts, list) else [None]


# Committing and trimming -----------------------------------------------------------------------------------------


logger = logging.getLogger("poolish")


class CommitManager:
    """Commits and trims one stream; a temporary one is never synced."""

    def __init__(
        self, path: Path, lanes: StreamFiles, head: Head, log: CommitLog, last: Commit, *, durable: bool
    ) -> None:
        self._path, self._lanes, self._head, self._log, self._last = path, lanes, head, log, last
        self._is_durable = durable
        self._is_log_torn = False
        self.failure: DurabilityLost | None = None
        self.failed_since: float | None = None
        self.lock = threading.RLock()

    @property
    def committed(self) -> Commit:
        """The newest record."""
        return self._last

    def commit(self, state: StreamState, n_branches: int) -> Commit:
        """Make a state of the stream survive a power cut; the record that says so, or a newer one."""
        with self.lock:
            if self._is_log_torn:
                # Half of a record may count as a whole one; written again and synced, it is one.
                self._last = self._log.last()
                self._write(self._last)
            before = self._last
            if state.rows > before.rows or (state.rows == before.rows and state.first > before.first):
                self._write(self._next(before, state, n_branches))
            return self._last

    def _next(self, before: Commit, state: StreamState, n_branches: int) -> Commit:
        return chained(
            Commit,
            before,
            before.uuid,
            first=state.first,
            rows=state.rows,
            tokens=state.tokens,
            kinds="".join(map(str, state.kinds)),
            data=_hashes(self._lanes.data, before.tokens, state.tokens),
            index=_hashes(self._lanes.index, before.rows, state.rows),
            branches=n_branches,
        )

    def _write(self, record: Commit) -> None:
        with self.final_failures():
            if self._is_durable:
                self._lanes.sync()
            self._is_log_torn = True  # a full disk may stop us half-way; the next commit looks what came of it
            self._log.append(record)
        self._last = record  # before the log counts as whole: a second record of this number would be damage
        self._is_log_torn = False
        self._head.store(COMMITTED, record.seq)

    @contextmanager
    def final_failures(self) -> Iterator[None]:
        """Remember a sync that failed: everything is refused from then on."""
        try:
            yield
        except DurabilityLost as error:
            self.failed_since = time.time()
            self.failure = DurabilityLost(f"{self._path}: a sync failed before ({error}); open the stream again")
            raise

    def trim(self, state: StreamState, n_branches: int) -> None:
        """Give back the whole blocks below the first row that is kept."""
        with self.lock:
            try:
                if self._is_durable:
                    self.commit(state, n_branches)
                self._lanes.punch(state.first, self._lanes.tokens_at(state.first))
            except DurabilityLost:
                raise
            except OSError as error:
                # The append that brought us here is done and must not look as if it were not.
                logger.warning("%s: space could not be given back (%s); tried again later", self._path, error)


def _hashes(lane: MemmapBuffer, begin: int, end: int) -> list[str]:
    width = lane.row_bytes
    return [checksum_hex(lane.file.bytes[start:stop].data) for start, stop in blocks(begin * width, end * width)]


# Verifying -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verified:
    """What ``verify`` has looked at. Tokens that were appended since the last commit have no checksum yet."""

    commits: int
    tokens: int
    uncommitted_tokens: int
    bytes_checked: int
    healed: int

    def __str__(self) -> str:
        healed = f", {self.healed} damaged parts healed" if self.healed else ""
        waiting = f", {self.uncommitted_tokens:,} more not yet committed" if self.uncommitted_tokens else ""
        return f"{self.tokens:,} tokens in {self.commits} commits are whole{waiting}{healed}"


def verify(
    lanes: StreamFiles, log: CommitLog, branch_log: BranchLog | None, state: StreamState, n_fields: int, *, heal: bool
) -> Verified:
    """Check everything that a stream holds; the first thing that is wrong is a ``CorruptDataError``."""
    records = [record for record in log.records() if record.rows <= state.rows]
    if not records:
        raise CorruptDataError(f"{log.path}: not one whole commit; restore the file from a copy")
    last = records[-1]
    lanes.check_sizes(state.rows, state.tokens, with_types=not heal)
    n_bytes = sum(check_added(lanes, before, record, state.first) for before, record in pairs(records))
    lanes.check_rows(state.first, state.rows, state.tokens, n_fields)
    if lanes.tokens_at(last.rows) != last.tokens or lanes.tokens_at(state.rows) != state.tokens:
        raise CorruptDataError(f"{lanes.index.path}: ends at another token than the stream; restore it from a copy")
    healed = log.n_damaged() + _check_types(lanes, state, heal=heal)
    logs.read_branches(branch_log, lanes.path, last.branches or 0)  # each proves itself, and none is missing
    if branch_log is not None:
        healed += branch_log.n_damaged()
    kept = last.tokens - lanes.tokens_at(state.first)
    return Verified(len(records), kept, state.tokens - last.tokens, n_bytes, healed)


def pairs(records: Sequence[Commit]) -> list[tuple[Commit | None, Commit]]:
    """Each record with the one before it."""
    return list(zip([None, *records], records, strict=False))


def check_added(lanes: StreamFiles, before: Commit | None, record: Commit, first: int) -> int:
    """Check what one commit added, as far as it is still kept; how many bytes that was."""
    rows, tokens = (0, 0) if before is None else (before.rows, before.tokens)
    lanes.check_sizes(record.rows, record.tokens, with_types=False)
    first_token = lanes.tokens_at(first)
    return _check_lane(lanes.data, tokens, record.tokens, first_token, record.data, record.seq) + _check_lane(
        lanes.index, rows, record.rows, first, record.index, record.seq
    )


def _check_lane(lane: MemmapBuffer, begin: int, end: int, first: int, hashes: Sequence[str], seq: int) -> int:
    width, n_bytes = lane.row_bytes, 0
    parts = list(blocks(begin * width, end * width))
    if len(parts) != len(hashes):
        raise CorruptDataError(f"{lane.path}: commit {seq} does not fit it; restore the directory from a copy")
    for (start, stop), expected in zip(parts, hashes, strict=True):
        if stop <= first * width // BLOCK * BLOCK:
            continue  # given back
        if checksum_hex(lane.file.bytes[start:stop].data) != expected:
            raise CorruptDataError(
                f"{lane.path}: bytes {start:,} to {stop:,} are not what commit {seq} wrote; restore it from a copy, "
                f"or read what is whole with StreamStore.open(..., at={max(seq - 1, 0)})"
            )
        n_bytes += stop - start
    return n_bytes


def _check_types(lanes: StreamFiles, state: StreamState, *, heal: bool) -> int:
    n_healed = 0
    for start, types in lanes.wrong_types(state.first, state.rows):
        if not heal:
            raise CorruptDataError(
                f"{lanes.types.path}: differs from the index at token {start:,}; "
                "StreamStore.open(..., mode='a').verify() writes it anew"
            )
        lanes.types.reserve(start + len(types))
        lanes.types.room[start : start + len(types)] = types
        n_healed += 1
    if n_healed:
        lanes.types.flush()
    return n_healed
