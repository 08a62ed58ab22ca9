"""Which numbers the ranks of a run hand out, which ranks may join it, and how far each has read.

A run hands out all numbers from its start on, except those that were done before it. Ranks are killed at different
positions; what one of them was done with is not handed out again, so the numbers between the slowest rank and the
fastest have holes when the next run begins.

    start 4, ranks 0 and 1 done with 4, 6, 8 and 5      the next run: 7, 9, 10, 11, ... whatever its world size

A *position* is a number too: everything below it is taken or was done before. An *attempt* is a run between two
restarts. Each of its ranks has a mark, so that no rank waits for another; it holds two positions, both counted as if
all ranks were at this one's, and whether its rank has ended cleanly:

    read    everything below it that is this rank's was handed out        the backlog counts from the lowest
    done    ... and may be deleted                                         rank 0 raises the watermark to the lowest

The transport knows the newest attempt and its marks:

    (no run) --first rank that enters--> attempt --a rank enters, or returns--> the same attempt
                                           |  ^
             no rank of it is alive, and   v  |  its marks are new, the record is replaced, older marks are removed
             a rank starts again        next attempt

A rank that enters decides under the queue's lock which of these it is (``decide``). It is alive while it holds its
claim, which it takes under the lock too, so no rank of a replaced attempt is alive. While one of the newest attempt is
alive, only ranks of the same run and world size may enter. A rank that enters for the first time starts where the
attempt started. One that returns alone continues from its mark, provided that this leaves no batch out and hands none
out twice:

    on_step         from done: the batch in flight comes again
    on_read         from done: the batch in flight is lost
    on_checkpoint   only if all it was handed is committed; else the others hold batches that no checkpoint covers

When all ranks restart, some of the killed ones may still hold their claims. So an answer that would differ without them
is *reluctant*: it counts only if they stay.
"""

from __future__ import annotations

import re
import secrets
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from poolish.errors import CorruptDataError, PoolishError, QueueError, ResumeError, StoreLocked
from poolish.transports.protocols import Counters, Log

_MARKS = re.compile(r"[0-9]{1,18}-[0-9]{1,7}-[0-9a-f]{16}")
_TAKE_OVER_S = 10.0  # a killed trainer may take a while to end
_LOOK_AGAIN_S = 0.01


# Deciding: numbers in, numbers out -----------------------------------------------------------------------------


class Assignment:
    """The numbers from ``start`` on without those in ``done``, in order; it starts at the first that is not done.

    >>> assignment = Assignment(4, done=[4, 6, 8])
    >>> assignment.start, [assignment.number(assignment.start, i) for i in range(5)]
    (5, [5, 7, 9, 10, 11])
    >>> Assignment.of(5, assignment.skip(5)).number(5, 1)
    7
    """

    def __init__(self, start: int, done: Iterable[int] = ()) -> None:
        left_out = {number for number in done if number >= start}
        while start in left_out:
            left_out.remove(start)
            start += 1
        self.start = start
        self.end = max(left_out, default=start - 1) + 1  # no holes from here on
        self._open = [number for number in range(start, self.end) if number not in left_out]

    @classmethod
    def of(cls, start: int, skip: str) -> Assignment:
        """From what ``skip`` gave for the same start."""
        bits = np.unpackbits(np.frombuffer(bytes.fromhex(skip), np.uint8), bitorder="little")
        return cls(start, (start + np.flatnonzero(bits)).tolist())

    def skip(self, position: int) -> str:
        """The numbers from ``position`` on that are left out: a bitmap in hexadecimal, bit i for position + i."""
        bits = np.ones(max(0, self.end - position), np.uint8)
        bits[[number - position for number in self._open if number >= position]] = 0
        return np.packbits(bits, bitorder="little").tobytes().hex()

    def number(self, position: int, ahead: int = 0) -> int:
        """The number that comes ``ahead`` after the first one that is not below ``position``."""
        if position >= self.end:
            return position + ahead
        i = bisect_left(self._open, position) + ahead
        return self._open[i] if i < len(self._open) else self.end + i - len(self._open)

    def rest(self, done: Sequence[int], watermark: int = 0) -> Assignment:
        """What is left where rank r has done its share of all below ``done[r]``."""
        low = min(done)
        taken = (number for rank, end in enumerate(done) for number in self._taken(rank, len(done), low, end))
        skipped = set(range(low, self.end)).difference(self._open)
        return Assignment(max(low, watermark), skipped.union(taken))

    def _taken(self, rank: int, world_size: int, low: int, end: int) -> Iterable[int]:
        first, last = self._index(low), self._index(end)
        return (self.number(self.start, i) for i in range(first + (rank - first) % world_size, last, world_size))

    def _index(self, position: int) -> int:
        """How many numbers come before a position."""
        if position >= self.end:
            return len(self._open) + position - self.end
        return bisect_left(self._open, position)


@dataclass(frozen=True)
class Attempt:
    """A run between two restarts: the newest one is what ``run.json`` describes.

    Those of 0.1.0 have neither ``run`` nor ``acknowledge``, and marks of two counters.
    """

    run: str | None
    world_size: int
    acknowledge: str | None
    assignment: Assignment
    marks: str  # the name of its marks

    @property
    def start(self) -> int:
        """Where it began."""
        return self.assignment.start

    @property
    def n_counters(self) -> int:
        """How many counters a mark has."""
        return 2 if self.run is None else 3

    def rest(self, done: list[int], watermark: int) -> Assignment:
        """What is left for the next attempt, where each rank has done its share of all below ``done``."""
        if self.acknowledge not in ("on_read", "on_step"):  # rank 0 alone decides, and what it did not commit is lost
            done = [min(done)] * self.world_size
        return self.assignment.rest(done, watermark)

    def to_record(self) -> dict[str, Any]:
        """The attempt as ``run.json`` has it."""
        start = self.start
        record = {"run": self.run, "start": start, "world_size": self.world_size, "acknowledge": self.acknowledge}
        return record | {"skip": self.assignment.skip(start), "marks": self.marks}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Attempt:
        """Parse a record; KeyError, TypeError or ValueError if it is none."""
        start, world_size = record["start"], record["world_size"]
        if type(start) is not int or type(world_size) is not int or start < 0 or not 0 < world_size <= 1_000_000:
            raise TypeError("no numbers")
        if "run" not in record:  # of 0.1.0
            return cls(None, world_size, None, Assignment(start), f"{start}-{world_size}")
        if not isinstance(record["run"], str) or not _MARKS.fullmatch(record["marks"]):
            raise TypeError("no run, or no marks")
        assignment = Assignment.of(start, record["skip"])
        return cls(record["run"], world_size, record["acknowledge"], assignment, record["marks"])


class Mark(NamedTuple):
    """How far a rank is, and whether it was closed (False: it is alive or was killed)."""

    read: int
    done: int
    has_ended: bool = False


@dataclass(frozen=True)
class Rank:
    """A rank that starts; ``restored`` is the position of the state that it loaded."""

    place: str
    run: str
    rank: int
    world_size: int
    acknowledge: str
    restored: int | None = None


@dataclass(frozen=True)
class Join:
    """Enter the newest attempt at a position."""

    position: int
    is_reluctant: bool = False


@dataclass(frozen=True)
class Refuse:
    """Do not read, and why."""

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
    """Where a rank that returns alone continues; None where that would lose batches or repeat them."""
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


# Acting -------------------------------------------------------------------------------------------------------


class RankProgress:
    """One rank's progress in the newest attempt; only this rank writes its mark."""

    def __init__(self, log: Log, rank: int, world_size: int, acknowledge: str) -> None:
        self.log, self.rank, self.world_size, self.acknowledge = log, rank, world_size, acknowledge
        self._claim = log.marks.claim(rank)
        self._marks: list[Counters] = []
        self._version: object = None
        self.assignment = Assignment(0)

    def enter(self, run: str, restored: Assignment | None) -> int:
        """Claim this rank in a run and return the position to continue from. ``restored`` comes from a state."""
        end = time.monotonic() + _TAKE_OVER_S
        while True:
            is_last = time.monotonic() >= end
            with self.log.locked():
                entered = self._try_to_enter(run, restored, is_last)
            if isinstance(entered, int):
                return entered
            if is_last and entered is not None:
                raise entered
            time.sleep(_LOOK_AGAIN_S)

    def _try_to_enter(self, run: str, restored: Assignment | None, is_last: bool) -> int | PoolishError | None:
        """The position; else the reason why not, or None where it is too early to decide."""
        try:
            self._claim.acquire()
        except StoreLocked as error:  # two readers of one rank would train everything twice
            return error
        try:
            entered = self._enter(run, restored, is_last)
        except BaseException:
            self._claim.release()
            raise
        if not isinstance(entered, int):
            self._claim.release()
        return entered

    def _enter(self, run: str, restored: Assignment | None, is_last: bool) -> int | PoolishError | None:
        newest = newest_attempt(self.log)
        start = None if restored is None else restored.start
        me = Rank(self.log.place, run, self.rank, self.world_size, self.acknowledge, start)
        alive = [rank for rank in self.log.marks.alive() if rank != self.rank]
        answer = decide(me, newest, _read_marks(self.log, newest), alive)
        if isinstance(answer, Refuse):
            return answer.error
        if answer is None or newest is None:
            newest = self._begin(run, restored or rest(self.log))
            answer = Join(newest.start)
        elif answer.is_reluctant and not is_last:
            return None
        self._close_marks()
        self._marks, self.assignment = _counters(self.log, newest), newest.assignment
        self._version = self.log.marks.version()
        self.write(answer.position, answer.position)
        return answer.position

    def _begin(self, run: str, assignment: Assignment) -> Attempt:
        marks = f"{assignment.start}-{self.world_size}-{secrets.token_hex(8)}"
        attempt = Attempt(run, self.world_size, self.acknowledge, assignment, marks)
        self.log.marks.begin(marks, attempt.to_record())
        return attempt

    def write(self, read: int, done: int, *, has_ended: bool = False) -> None:
        """Set this rank's mark."""
        self._marks[self.rank].write(read, done, int(has_ended))

    def lowest_done(self) -> int:
        """The position below which all ranks are done."""
        return _lowest(self._marks, self.assignment.start)[1]

    def check_newest(self) -> None:
        """Raise if another run has begun; it should not while this rank holds its claim."""
        if self._version is not None and self.log.marks.version() != self._version:
            raise QueueError(
                f"{self.log.place}: another run has begun on this queue, rank {self.rank} is left over from an older "
                "one; end this process"
            )

    def leave(self) -> None:
        """Give the rank up; the marks stay."""
        try:
            self._close_marks()
        finally:
            self._version = None
            self._claim.release()

    def _close_marks(self) -> None:
        for mark in self._marks:
            mark.close()


class AttemptProgress:
    """How far the newest attempt has come, for providers and observers."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._version: object = None
        self._marks: list[Counters] = []
        self._start = 0
        self.marks: str | None = None

    def positions(self) -> tuple[int, int]:
        """Below which all ranks have read, and are done; twice the watermark where no rank ever read."""
        version = self.log.marks.version()
        if version is not None and version != self._version:
            self._open(version)
        if not self._marks:
            watermark = self.log.consumed().watermark
            return watermark, watermark
        return _lowest(self._marks, self._start)

    def _open(self, version: object) -> None:
        self.close()
        newest = newest_attempt(self.log)
        if newest is not None:
            self._marks, self._start = _counters(self.log, newest), newest.start
            self.marks, self._version = newest.marks, version

    def close(self) -> None:
        """Close the marks."""
        for mark in self._marks:
            mark.close()


def newest_attempt(log: Log) -> Attempt | None:
    """The newest attempt; None where no rank ever read."""
    record = log.marks.read()
    try:
        return None if record is None else Attempt.from_record(record)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptDataError(f"{log.place}/run.json: not the record of a run ({error!r}); remove it") from None


def rest(log: Log) -> Assignment:
    """What a run without a state hands out: everything that no rank is done with."""
    while True:
        version, newest = log.marks.version(), newest_attempt(log)
        watermark = log.consumed().watermark
        if newest is None:
            return Assignment(watermark)
        marks = _read_marks(log, newest)
        # An attempt that began meanwhile may have removed the marks that we were reading.
        if log.marks.version() == version:
            done = [marks[rank].done if rank in marks else newest.start for rank in range(newest.world_size)]
            log.check_published(max(done))
            return newest.rest(done, watermark)


def _counters(log: Log, attempt: Attempt) -> list[Counters]:
    return [log.marks.counters(attempt.marks, rank, attempt.n_counters) for rank in range(attempt.world_size)]


def _read_marks(log: Log, attempt: Attempt | None) -> dict[int, Mark]:
    """The marks of those ranks that have one."""
    found = {}
    for rank, counters in enumerate(_counters(log, attempt) if attempt else ()):
        numbers = counters.read()
        counters.close()
        if numbers is not None:
            found[rank] = Mark(numbers[0], numbers[1], bool(numbers[2:] and numbers[2]))
    return found


def _lowest(marks: list[Counters], start: int) -> tuple[int, int]:
    """The lowest positions of all marks; a missing one is at the start."""
    found = [mark.read() or (start, start) for mark in marks]
    return min(numbers[0] for numbers in found), min(numbers[1] for numbers in found)
