"""How far the ranks of a run have read: one mark each, so that no rank waits for another.

An *attempt* is a run between two restarts. It begins at a position of the log with a number of ranks; rank r of W takes
the numbers r, r + W, ... of its assignment. A mark holds two positions, both counted as if all ranks were at
this one's, and whether its rank has ended cleanly:

    read    everything below it that is this rank's was handed out        the backlog counts from the lowest
    done    ... and may be deleted                                         rank 0 raises the watermark to the lowest

The transport knows the newest attempt and its marks:

    (no run) --first rank that enters--> attempt --a rank enters, or returns--> the same attempt
                                           |  ^
             no rank of it is alive, and   v  |  its marks are new, the record is replaced, older marks are removed
             a rank starts again        next attempt

A rank that enters decides under the queue's lock which of these it is (``assignment.decide``). It is alive while it
holds its claim, which it takes under the queue's lock too. So no rank of a replaced attempt is alive.
"""

from __future__ import annotations

import secrets
import time

from poolish.errors import CorruptDataError, PoolishError, QueueError, StoreLocked
from poolish.serve.assignment import Assignment, Attempt, Join, Mark, Rank, Refuse, decide
from poolish.transports.protocols import Counters, Log

_TAKE_OVER_S = 10.0  # a killed trainer may take a while to end
_LOOK_AGAIN_S = 0.01


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
