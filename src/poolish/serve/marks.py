"""How far the ranks of a run have read: one small file each, so that no rank waits for another.

An *attempt* is a run between two restarts. It begins at a position of the log with a number of ranks; rank r of W takes
the numbers r, r + W, ... of those that it deals out (dealing). A mark holds two positions, both counted as if all ranks
stood where this one does, and whether its rank has ended well:

    read    everything below it that is this rank's was handed out        the backlog counts from the lowest
    done    ... and may be deleted                                         rank 0 raises the watermark to the lowest

``run.json`` names the newest attempt and the folder of its marks:

    (no run) --first rank that enters--> attempt --a rank enters, or returns--> the same attempt
                                           |  ^
             no rank of it is alive, and   v  |  its folder is new, run.json is replaced, older folders are removed
             a rank starts again        next attempt

A rank that enters decides under the queue's lock which of these it is (joining). It is alive while it holds
``marks/<rank>.lock``, which it takes under the queue's lock too. So no rank of an attempt that is replaced is alive.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from poolish.errors import CorruptDataError, PoolishError, QueueError, StoreLocked
from poolish.files import Lock, explain_full
from poolish.files.state_files import ChecksummedCounters, read_checksummed_json, write_checksummed_json
from poolish.serve.dealing import Dealing
from poolish.serve.joining import Join, Mark, Rank, Refuse, decide
from poolish.serve.provider_notes import is_alive
from poolish.serve.queue_log import QueueLog

_RUN = "run.json"
_FOLDER = re.compile(r"[0-9]{1,18}-[0-9]{1,7}-[0-9a-f]{16}")
_TAKE_OVER_S = 10.0  # a trainer that was killed may take a while to be gone
_LOOK_AGAIN_S = 0.01


@dataclass(frozen=True)
class Attempt:
    """What run.json says. Those of 0.1.0 have neither ``run`` nor ``acknowledge``, and marks of two words."""

    run: str | None
    world_size: int
    acknowledge: str | None
    dealing: Dealing
    folder: str

    @property
    def start(self) -> int:
        """Where it began."""
        return self.dealing.start

    def words(self, marks: Path) -> list[ChecksummedCounters]:
        """The files of its marks, by rank."""
        n = 2 if self.run is None else 3
        return [ChecksummedCounters(marks / self.folder / str(rank), n) for rank in range(self.world_size)]

    def rest(self, done: list[int], watermark: int) -> Dealing:
        """What is left for the next attempt, where each rank has done its share of all below ``done``."""
        if self.acknowledge not in ("on_read", "on_step"):  # rank 0 alone decides, and what it did not commit is lost
            done = [min(done)] * self.world_size
        return self.dealing.rest(done, watermark)

    def write(self, path: Path) -> None:
        """Make this the newest attempt."""
        start = self.start
        told = {"run": self.run, "start": start, "world_size": self.world_size, "acknowledge": self.acknowledge}
        told |= {"skip": self.dealing.skip(start), "marks": self.folder}
        write_checksummed_json(path / _RUN, told, durable=False)


class RunMarks:
    """The marks of the newest attempt, seen from one rank, which alone writes its own."""

    def __init__(self, log: QueueLog, rank: int, world_size: int, acknowledge: str) -> None:
        self.log, self.rank, self.world_size, self.acknowledge = log, rank, world_size, acknowledge
        self._folder = log.path / "marks"
        self._lock = Lock(self._folder / f"{rank}.lock")
        self._marks: list[ChecksummedCounters] = []
        self._seen: tuple[int, int] | None = None
        self.dealing = Dealing(0)

    def enter(self, run: str, restored: Dealing | None) -> int:
        """Be this rank, alone, in a run; where to go on. ``restored`` is what a state said."""
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

    def _try_to_enter(self, run: str, restored: Dealing | None, is_last: bool) -> int | PoolishError | None:
        """The position; else the reason why not, or None where it is too early to say."""
        try:
            self._lock.acquire()
        except StoreLocked as error:  # two readers of one rank would train everything twice
            return error
        try:
            entered = self._enter(run, restored, is_last)
        except BaseException:
            self._lock.release()
            raise
        if not isinstance(entered, int):
            self._lock.release()
        return entered

    def _enter(self, run: str, restored: Dealing | None, is_last: bool) -> int | PoolishError | None:
        newest = newest_attempt(self.log)
        start = None if restored is None else restored.start
        me = Rank(str(self.log.path), run, self.rank, self.world_size, self.acknowledge, start)
        answer = decide(me, newest, _read_all(newest, self._folder), self._alive())
        if isinstance(answer, Refuse):
            return answer.error
        if answer is None or newest is None:
            newest = self._begin(run, restored or rest(self.log))
            answer = Join(newest.start)
        elif answer.is_reluctant and not is_last:
            return None
        self._open(newest)
        self.write(answer.position, answer.position)
        return answer.position

    def _begin(self, run: str, dealing: Dealing) -> Attempt:
        name = f"{dealing.start}-{self.world_size}-{secrets.token_hex(8)}"
        attempt = Attempt(run, self.world_size, self.acknowledge, dealing, name)
        with explain_full(self._folder):
            (self._folder / name).mkdir(mode=0o700, parents=True)
        attempt.write(self.log.path)
        for other in self._folder.iterdir():
            if other.is_dir() and other.name != name:
                shutil.rmtree(other, ignore_errors=True)
        return attempt

    def _open(self, attempt: Attempt) -> None:
        self._close_marks()
        self._marks, self.dealing, self._seen = attempt.words(self._folder), attempt.dealing, _identity(self.log)

    def _alive(self) -> list[int]:
        """The other ranks that hold their locks, of whichever run."""
        found = (lock for lock in self._folder.glob("*.lock") if lock.stem.isdecimal())
        return sorted(int(lock.stem) for lock in found if int(lock.stem) != self.rank and is_alive(lock))

    def write(self, read: int, done: int, *, has_ended: bool = False) -> None:
        """Set this rank's mark."""
        self._marks[self.rank].write(read, done, int(has_ended))

    def lowest_done(self) -> int:
        """What all ranks are done with."""
        return lowest(self._marks, self.dealing.start)[1]

    def check_newest(self) -> None:
        """Raise if another run has begun; it should not while this rank holds its lock."""
        if self._seen is not None and _identity(self.log) != self._seen:
            raise QueueError(
                f"{self.log.path}: another run has begun on this queue, rank {self.rank} is left over from an older "
                "one; end this process"
            )

    def leave(self) -> None:
        """Stop being this rank; the marks stay."""
        try:
            self._close_marks()
        finally:
            self._seen = None
            self._lock.close()

    def _close_marks(self) -> None:
        for mark in self._marks:
            mark.close()


class Progress:
    """How far the newest attempt has come, for those who look on."""

    def __init__(self, log: QueueLog) -> None:
        self.log = log
        self._seen: tuple[int, int] | None = None
        self._marks: list[ChecksummedCounters] = []
        self._start = 0
        self.folder: Path | None = None

    def positions(self) -> tuple[int, int]:
        """What all ranks have read and are done with; the watermark twice where no rank ever read."""
        self._look()
        if not self._marks:
            watermark = self.log.consumed().watermark
            return watermark, watermark
        return lowest(self._marks, self._start)

    def _look(self) -> None:
        seen = _identity(self.log)
        if seen is None or seen == self._seen:
            return
        self.close()
        newest = newest_attempt(self.log)
        if newest is not None:
            self._start, self.folder = newest.start, self.log.path / "marks" / newest.folder
            self._marks = newest.words(self.log.path / "marks")
            self._seen = seen

    def close(self) -> None:
        """Close the files."""
        for mark in self._marks:
            mark.close()


def newest_attempt(log: QueueLog) -> Attempt | None:
    """The newest attempt; None where no rank ever read."""
    path = log.path / _RUN
    try:
        told = read_checksummed_json(path)
    except FileNotFoundError:
        return None
    try:
        start, world_size = told["start"], told["world_size"]
        if type(start) is not int or type(world_size) is not int or start < 0 or not 0 < world_size <= 1_000_000:
            raise TypeError("no numbers")
        if "run" not in told:  # of 0.1.0
            return Attempt(None, world_size, None, Dealing(start), f"{start}-{world_size}")
        if not isinstance(told["run"], str) or not _FOLDER.fullmatch(told["marks"]):
            raise TypeError("no run, or no marks")
        return Attempt(told["run"], world_size, told["acknowledge"], Dealing.of(start, told["skip"]), told["marks"])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptDataError(f"{path}: not the note of a run ({error!r}); remove it") from None


def rest(log: QueueLog) -> Dealing:
    """What a run without a state hands out: all that no rank is done with."""
    while True:
        before, newest = _identity(log), newest_attempt(log)
        watermark = log.consumed().watermark
        if newest is None:
            return Dealing(watermark)
        marks = _read_all(newest, log.path / "marks")
        # An attempt that began meanwhile may have removed the marks that we were looking at.
        if _identity(log) == before:
            done = [marks[rank].done if rank in marks else newest.start for rank in range(newest.world_size)]
            log.check_done(max(done))
            return newest.rest(done, watermark)


def acknowledged(log: QueueLog) -> int:
    """Everything below is done for certain."""
    return rest(log).start


def _read_all(attempt: Attempt | None, folder: Path) -> dict[int, Mark]:
    """The marks of those ranks that have one."""
    found = {}
    for rank, words in enumerate(attempt.words(folder) if attempt else ()):
        numbers = words.read()
        words.close()
        if numbers is not None:
            found[rank] = Mark(numbers[0], numbers[1], bool(numbers[2:] and numbers[2]))
    return found


def _identity(log: QueueLog) -> tuple[int, int] | None:
    with suppress(FileNotFoundError):
        status = os.stat(log.path / _RUN)
        return status.st_ino, status.st_ctime_ns
    return None


def lowest(marks: list[ChecksummedCounters], start: int) -> tuple[int, int]:
    """The lowest of all marks; one that is missing is at the start."""
    found = [mark.read() or (start, start) for mark in marks]
    return min(numbers[0] for numbers in found), min(numbers[1] for numbers in found)
