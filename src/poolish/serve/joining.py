"""Whether a rank that starts may read: does it begin, does it join those that read already, or is it refused?

While a rank of the newest attempt is alive, only ranks of the same run and the same world size may enter. One that has
not been there yet starts where the attempt started. One that was there before returns alone, and goes on where its mark
stands, provided that this leaves no batch out and hands none out twice:

    on_step         where its done is: the batch in flight comes again
    on_read         where its done is: the batch in flight is lost
    on_checkpoint   only if all that it was handed is committed; else the others hold batches that no checkpoint covers

When no rank is alive, the first that starts begins the next attempt. When all ranks restart, some of the killed ones
may still hold their locks. So an answer that would differ without them is *reluctant*: it counts only if they stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from poolish.errors import PoolishError, QueueError, ResumeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolish.serve.marks import Attempt


class Mark(NamedTuple):
    """How far a rank is, and whether it was closed (False: it is alive or was killed)."""

    read: int
    done: int
    has_ended: bool = False


@dataclass(frozen=True)
class Rank:
    """Who wants to read; ``restored`` is the position of the state that it loaded."""

    place: str
    run: str
    rank: int
    world_size: int
    acknowledge: str
    restored: int | None = None


@dataclass(frozen=True)
class Join:
    """Enter the attempt that is there, at a position."""

    position: int
    is_reluctant: bool = False


@dataclass(frozen=True)
class Refuse:
    """Neither, and why."""

    error: PoolishError


def decide(me: Rank, newest: Attempt | None, marks: Mapping[int, Mark], alive: Sequence[int]) -> Join | Refuse | None:
    """What a rank may do, given the newest attempt, its marks and the other ranks that are alive; None: begin anew."""
    is_same = newest is not None and (newest.run, newest.world_size) == (me.run, me.world_size)
    if alive and (newest is None or not is_same):
        return Refuse(_another_run(me, newest, alive))
    if newest is None or not is_same:
        return None
    was_killed = any(not mark.has_ended and rank not in (me.rank, *alive) for rank, mark in marks.items())
    is_at_start = me.restored in (None, newest.start)
    if not alive and (me.rank in marks or was_killed or not is_at_start):
        return None
    if newest.acknowledge != me.acknowledge:
        return Refuse(_another_rule(me, newest, alive))
    has_waited_for = me.restored is not None or me.acknowledge == "on_checkpoint"
    if me.rank not in marks:
        if not is_at_start:
            return Refuse(_another_state(me, newest.start, alive))
        return Join(newest.start, is_reluctant=was_killed and has_waited_for)
    position = _returning(me, marks)
    if position is None:
        return Refuse(_out_of_step(me, marks[me.rank], alive))
    return Join(position, is_reluctant=has_waited_for)


def _returning(me: Rank, marks: Mapping[int, Mark]) -> int | None:
    """Where a rank goes on that returns alone; None where that would lose batches or repeat them."""
    mine = marks[me.rank]
    if me.acknowledge != "on_checkpoint":
        position = mine.done if me.restored is None else me.restored
        return position if position in (mine.done, mine.read) else None
    committed = min(mine.done, marks[0].done if 0 in marks else mine.done)
    return mine.read if (committed if me.restored is None else me.restored) == mine.read else None


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _another_run(me: Rank, newest: Attempt | None, alive: Sequence[int]) -> QueueError:
    there = "of another version"
    if newest is not None and newest.run is not None:
        there = f"of run {newest.run!r} (world_size {newest.world_size})"
    rejoin = "" if newest is None or newest.run is None else f", or pass run={newest.run!r} to rejoin that run"
    return QueueError(
        f"{me.place}: rank {me.rank} of run {me.run!r} (world_size {me.world_size}) cannot start, {_ranks(alive)} "
        f"{there} still read this queue; end them and restart all ranks together{rejoin}"
    )


def _another_rule(me: Rank, newest: Attempt, alive: Sequence[int]) -> QueueError:
    return QueueError(
        f"{me.place}: rank {me.rank} has acknowledge={me.acknowledge!r}, run {me.run!r} began with "
        f"{newest.acknowledge!r} ({_ranks(alive) if alive else 'its ranks have ended'}); use one rule on all ranks"
    )


def _another_state(me: Rank, start: int, alive: Sequence[int]) -> ResumeError:
    return ResumeError(
        f"{me.place}: the state of rank {me.rank} is at batch {me.restored}, but {_ranks(alive)} of run {me.run!r} "
        f"began at batch {start}; load the same state on all ranks, and restart them together"
    )


def _out_of_step(me: Rank, mine: Mark, alive: Sequence[int]) -> ResumeError:
    where = "without a state" if me.restored is None else f"with a state at batch {me.restored}"
    return ResumeError(
        f"{me.place}: rank {me.rank} of run {me.run!r} returns {where}, but it was handed batches up to position "
        f"{mine.read} and {_ranks(alive)} went on: some would be trained twice or never; restart all ranks together "
        "from one checkpoint"
    )
