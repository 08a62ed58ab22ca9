"""What of a stream counts when it is opened: everything that was published, or only what was committed.

    head whole, this boot, this very data file, not behind the commits  -->  what is published counts
    anything else (power cut, a copy, a damaged page)                   -->  the newest commit counts

The kernel keeps every byte that a process has stored, however the process ends; a machine that goes down keeps what
was synced. A reader only looks. A writer recovers, so that the head page is true before anything builds on it:

    lanes: space behind the end -> the start behind the last row -> types, where they cannot be right -> synced
    head:  branches -> kinds, first, published, committed -> signed, from when on it is believed -> synced

Killed anywhere in between, the next writer does the same again.
"""

from __future__ import annotations

import os
import warnings

from poolish.errors import CorruptDataError
from poolish.kernels.reference_tokens import FIRST, PUBLISHED
from poolish.tokens.commits import Commit, CommitLog, check_added
from poolish.tokens.directory import Description
from poolish.tokens.head import BRANCHES, COMMITTED, Head, Owner, boot_id, owner_of
from poolish.tokens.logs import Branches
from poolish.tokens.stream_files import START, StreamFiles, StreamState

#: How much of the index is looked at when a stream is opened, from its end; ``verify`` looks at all of it.
CHECKED_ROWS = 1 << 20


def newest(head: Head, lanes: StreamFiles, log: CommitLog, description: Description) -> tuple[Commit, bool]:
    """The newest commit, and whether the head page can be trusted about the lanes as they are now."""
    # In this order: a writer that is at work appends to the log first and to the page then.
    n_committed = head.committed
    last = log.last()
    return last, _is_trusted(head, lanes, last, n_committed, description)


def _is_trusted(head: Head, lanes: StreamFiles, last: Commit, n_committed: int, description: Description) -> bool:
    owner = head.owner
    if owner is not None and owner.uuid != description.uuid:
        raise CorruptDataError(
            f"{lanes.path}: its head belongs to another stream ({owner.uuid}); restore the directory"
        )
    if n_committed > last.seq:
        raise CorruptDataError(
            f"{lanes.path}: commit {n_committed} was made and the log ends with {last.seq}; "
            "restore the file 'commits' from a copy"
        )
    kinds = head.kinds(len(description.fields))
    words = head.published, head.first, n_committed, head.branches
    if owner is None or min(words) < 0 or kinds is None:
        warnings.warn(
            f"{lanes.path}: the head page is damaged; going on from commit {last.seq} with {last.tokens:,} tokens",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    is_current = owner.boot == boot_id() and not _is_copied(owner, lanes)
    return is_current and last.rows <= head.published and last.first <= head.first


def _is_copied(owner: Owner, lanes: StreamFiles) -> bool:
    """Whether the page was written about another file of data than the one beside it."""
    return owner.inode != os.fstat(lanes.data.file.fd).st_ino


def warn_of_copy(head: Head, lanes: StreamFiles, last: Commit) -> None:
    """Warn about what a copied directory leaves out: whatever was appended after its newest commit."""
    owner, n_lost = head.owner, head.published - last.rows
    if owner is not None and n_lost > 0 and _is_copied(owner, lanes):
        warnings.warn(
            f"{lanes.path}: a copy that was made before its newest steps were committed: it ends with commit "
            f"{last.seq} ({last.tokens:,} tokens), and {n_lost:,} field-writes behind it do not count. To keep them, "
            "open the original with mode='a' and close it, which commits, then copy it again",
            RuntimeWarning,
            stacklevel=2,
        )


def n_branches(head: Head, last: Commit) -> int:
    """How many branches there must be. The head page is newer than the commit, and may be damaged."""
    return max(head.branches, last.branches or 0)


def published(head: Head, lanes: StreamFiles, n_fields: int) -> StreamState:
    """What a trusted head page says, after making sure that the files hold it."""
    first, rows, kinds = head.first, head.published, head.kinds(n_fields)
    if rows < 0 or first < 0 or kinds is None:
        raise CorruptDataError(f"{lanes.path}: the head page was damaged while the stream was open; open it again")
    if lanes.index.capacity <= rows:
        lanes.refresh()
    lanes.check_sizes(rows, 0)
    lanes.fetch(min(first, rows), rows, 0)
    tokens = lanes.tokens_at(rows)
    if lanes.data.capacity < tokens or lanes.types.capacity < tokens:
        lanes.refresh()
    return StreamState(first, rows, tokens, kinds)


def committed(record: Commit) -> StreamState:
    """What a commit says."""
    return StreamState(record.first, record.rows, record.tokens, bytes(map(int, record.kinds)))


def check(lanes: StreamFiles, state: StreamState, n_fields: int, *, with_types: bool) -> None:
    """Refuse a stream whose files cannot hold what it says, or whose newest rows make no sense."""
    if not 0 <= state.first <= state.rows or state.tokens < 0 or len(state.kinds) != n_fields or max(state.kinds) > 2:
        raise CorruptDataError(f"{lanes.path}: it says that it has {state}; restore the directory from a copy")
    lanes.check_sizes(state.rows, state.tokens, with_types=with_types)
    lanes.fetch(state.first, state.rows, state.tokens)
    lanes.check_rows(max(state.first, state.rows - CHECKED_ROWS), state.rows, state.tokens, n_fields)


def check_commit(lanes: StreamFiles, log: CommitLog, record: Commit) -> None:
    """Whether the newest commit added what is there; looked at where a machine went down."""
    before = next((other for other in log.records() if other.seq == record.seq - 1), None)
    check_added(lanes, before, record, record.first)


# Recovering, before the first write ------------------------------------------------------------------------------


def recover(
    lanes: StreamFiles, head: Head, log: CommitLog, branches: Branches, description: Description, *, durable: bool
) -> tuple[StreamState, Commit]:
    """How far a stream reaches and its newest commit, after making that true on disk."""
    n_fields = len(description.fields)
    last, is_trusted = newest(head, lanes, log, description)
    state = published(head, lanes, n_fields) if is_trusted else committed(last)
    check(lanes, state, n_fields, with_types=False)
    if durable:
        lanes.secure(state.rows, state.tokens)
    if not is_trusted:
        warn_of_copy(head, lanes, last)
        check_commit(lanes, log, last)
        lanes.index.room[state.rows, START] = state.tokens
    if not is_trusted or lanes.types.capacity < state.tokens:
        _heal_types(lanes, state)
    if not is_trusted:
        lanes.sync()
        _rewrite(head, state, last)
    if head.branches != branches.n_records:
        head.store(BRANCHES, branches.n_records)
    head.sign(owner_of(description.uuid, lanes.data.file))
    if durable:
        log.sync()
        head.sync()
    return state, last


def _heal_types(lanes: StreamFiles, state: StreamState) -> None:
    """Write the types anew where they are wrong: all of them if the lane was cut, else the newest are looked at."""
    is_short = lanes.types.capacity < state.tokens
    lanes.types.reserve(state.tokens)
    # A copy may have holes where it should have space, and a full disk no more of it: ask before the map is written to.
    lanes.types.file.secure(lanes.tokens_at(state.first))
    first = state.first if is_short else max(state.first, state.rows - CHECKED_ROWS)
    for start, types in lanes.wrong_types(first, state.rows):
        lanes.types.room[start : start + len(types)] = types


def _rewrite(head: Head, state: StreamState, last: Commit) -> None:
    """Rebuild the untrusted head page from the newest commit."""
    for type_, kind in enumerate(state.kinds):
        head.store_kind(type_, kind)
    head.store(FIRST, state.first)
    head.store(PUBLISHED, state.rows)
    head.store(COMMITTED, last.seq)
