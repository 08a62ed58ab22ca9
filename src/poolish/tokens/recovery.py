"""Opening a stream to write: how far it reaches, and a head page that says so before anybody builds on it.

    lanes: space behind the end -> the start behind the last row -> types, where they cannot be right -> synced
    head:  branches -> kinds, first, published, committed -> signed, from when on it is believed -> synced

Killed anywhere in between, the next one does the same again.
"""

from __future__ import annotations

from poolish.kernels.reference_tokens import FIRST, PUBLISHED
from poolish.tokens import opening
from poolish.tokens.branches import Branches
from poolish.tokens.commits import Commit, CommitLog
from poolish.tokens.directory import Description
from poolish.tokens.head import BRANCHES, COMMITTED, Head, owner_of
from poolish.tokens.lanes import START, Lanes, State


def recover(
    lanes: Lanes, head: Head, log: CommitLog, branches: Branches, description: Description, *, durable: bool
) -> tuple[State, Commit]:
    """How far a stream reaches and its newest commit, after making that true on disk."""
    n_fields = len(description.fields)
    last, is_trusted = opening.newest(head, lanes, log, description)
    state = opening.published(head, lanes, n_fields) if is_trusted else opening.committed(last)
    opening.check(lanes, state, n_fields, with_types=False)
    if durable:
        lanes.secure(state.rows, state.tokens)
    if not is_trusted:
        opening.warn_of_copy(head, lanes, last)
        opening.check_commit(lanes, log, last)
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


def _heal_types(lanes: Lanes, state: State) -> None:
    """Write the types anew where they are wrong: all of them if the lane was cut, else the newest are looked at."""
    is_short = lanes.types.capacity < state.tokens
    lanes.types.reserve(state.tokens)
    # A copy may have holes where it should have space, and a full disk no more of it: ask before the map is written to.
    lanes.types.file.secure(lanes.tokens_at(state.first))
    first = state.first if is_short else max(state.first, state.rows - opening.CHECKED_ROWS)
    for start, types in lanes.wrong_types(first, state.rows):
        lanes.types.room[start : start + len(types)] = types


def _rewrite(head: Head, state: State, last: Commit) -> None:
    """Put the newest commit on the head page, which nobody believes as it is."""
    for type_, kind in enumerate(state.kinds):
        head.store_kind(type_, kind)
    head.store(FIRST, state.first)
    head.store(PUBLISHED, state.rows)
    head.store(COMMITTED, last.seq)
