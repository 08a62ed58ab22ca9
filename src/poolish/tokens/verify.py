"""Every byte that was committed, checked again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poolish.errors import CorruptDataError
from poolish.files import checksum_hex
from poolish.tokens.branches import BranchLog
from poolish.tokens.commits import BLOCK, Commit, CommitLog, blocks
from poolish.tokens.lanes import Lanes, State
from poolish.tokens.memmap_buffer import MemmapBuffer


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
    lanes: Lanes, log: CommitLog, branch_log: BranchLog | None, state: State, n_fields: int, *, heal: bool
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
    if branch_log is not None:
        branch_log.records()  # each proves itself, and none is missing between two others
        healed += branch_log.n_damaged()
    kept = last.tokens - lanes.tokens_at(state.first)
    return Verified(len(records), kept, state.tokens - last.tokens, n_bytes, healed)


def pairs(records: Sequence[Commit]) -> list[tuple[Commit | None, Commit]]:
    """Each record with the one before it."""
    return list(zip([None, *records], records, strict=False))


def check_added(lanes: Lanes, before: Commit | None, record: Commit, first: int) -> int:
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
    for (start, stop), told in zip(parts, hashes, strict=True):
        if stop <= first * width // BLOCK * BLOCK:
            continue  # given back
        if checksum_hex(lane.file.bytes[start:stop].data) != told:
            raise CorruptDataError(
                f"{lane.path}: bytes {start:,} to {stop:,} are not what commit {seq} wrote; restore it from a copy, "
                f"or read what is whole with StreamStore.open(..., at={max(seq - 1, 0)})"
            )
        n_bytes += stop - start
    return n_bytes


def _check_types(lanes: Lanes, state: State, *, heal: bool) -> int:
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
