"""How far the ranks of a run have read: one small file each, so that nobody waits for anybody.

A run begins at a position of the log with a number of ranks; rank r of W takes start + r, start + r + W, ... A mark
holds two positions, both counted as if all ranks stood where this one does:

    read    everything below it that is this rank's was handed out        the backlog counts from the lowest
    done    ... and may be deleted                                         rank 0 raises the watermark to the lowest

``run.json`` names the newest run; rank 0 writes it when it begins. Whoever begins sets the marks that a dead run with
the same start left behind back to the start: a rank that has not begun yet has read nothing. Marks of older runs are
removed once the watermark has passed their start: until then they may be those of ranks that began before rank 0.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from poolish.errors import CorruptDataError
from poolish.files import Lock, explain_full
from poolish.serve.provider_notes import is_alive
from poolish.serve.queue_log import QueueLog
from poolish.serve.sealed import read_sealed, write_sealed
from poolish.serve.words import Words

_RUN = "run.json"
_TAKE_OVER_S = 10.0  # a trainer that was killed may take a while to be gone


class RunMarks:
    """The marks of one run, seen from one rank, which alone writes its own."""

    def __init__(self, log: QueueLog, rank: int, world_size: int) -> None:
        self.log, self.rank, self.world_size = log, rank, world_size
        self._lock = Lock(self._lock_of(rank), timeout_s=_TAKE_OVER_S)
        self._marks: list[Words] = []
        self.start = 0

    def _lock_of(self, rank: int) -> Path:
        return self.log.path / "marks" / f"{rank}.lock"

    def claim(self) -> None:
        """Be this rank, alone: two readers of one rank would train everything twice."""
        if not self._lock.is_held:
            self._lock.acquire()

    def begin(self, start: int) -> None:
        """A new run: nothing is read."""
        self.claim()
        self._close_marks()
        folder = _folder(self.log.path, start, self.world_size)
        with explain_full(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.start = start
        self._marks = [Words(folder / str(rank), 2) for rank in range(self.world_size)]
        with self.log.locked():
            for rank, mark in enumerate(self._marks):
                if rank == self.rank or (mark.path.exists() and not is_alive(self._lock_of(rank))):
                    mark.write(start, start)
            if self.rank == 0:
                run = {"start": start, "world_size": self.world_size}
                write_sealed(self.log.path / _RUN, run, durable=False)
                _remove_older(folder, self.log.consumed().watermark)

    def write(self, read: int, done: int) -> None:
        """Set this rank's mark."""
        self._marks[self.rank].write(read, done)

    def lowest_done(self) -> int:
        """What all ranks are done with."""
        return lowest(self._marks, self.start)[1]

    def close(self) -> None:
        """Stop being this rank; the marks stay."""
        try:
            self._close_marks()
        finally:
            self._lock.release()

    def _close_marks(self) -> None:
        for mark in self._marks:
            mark.close()


class Progress:
    """How far the newest run has come, for those who look on."""

    def __init__(self, log: QueueLog) -> None:
        self.log = log
        self._seen: tuple[int, int] | None = None
        self._marks: list[Words] = []
        self._start = 0
        self.folder: Path | None = None

    def positions(self) -> tuple[int, int]:
        """What all ranks have read and are done with; where nobody ever read, the watermark twice."""
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
        start, world_size = newest_run(self.log)
        self._start, self.folder = start, _folder(self.log.path, start, world_size)
        self._marks = [Words(self.folder / str(rank), 2) for rank in range(world_size)]
        self._seen = seen

    def close(self) -> None:
        """Let the files go."""
        for mark in self._marks:
            mark.close()


def newest_run(log: QueueLog) -> tuple[int, int]:
    """Where the newest run began, and how many ranks it has."""
    path = log.path / _RUN
    told = read_sealed(path)
    try:
        start, world_size = told["start"], told["world_size"]
        if type(start) is not int or type(world_size) is not int or start < 0 or not 0 < world_size <= 1_000_000:
            raise TypeError("no numbers")
    except (KeyError, TypeError) as error:
        raise CorruptDataError(f"{path}: not the note of a run ({error!r}); remove it") from None
    return start, world_size


def acknowledged(log: QueueLog) -> int:
    """What is done for certain: the watermark, or what all ranks of the newest run noted before they were killed."""
    while True:
        before, progress = _identity(log), Progress(log)
        try:
            done = max(progress.positions()[1], log.consumed().watermark)
        finally:
            progress.close()
        # A run that began meanwhile may have removed the marks that we were looking at.
        if _identity(log) == before:
            return done


def _identity(log: QueueLog) -> tuple[int, int] | None:
    try:
        status = os.stat(log.path / _RUN)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_ctime_ns


def lowest(marks: list[Words], start: int) -> tuple[int, int]:
    """The lowest of all marks; one that is missing is at the start."""
    found = [mark.read() or (start, start) for mark in marks]
    return min(read for read, _ in found), min(done for _, done in found)


def _folder(path: Path, start: int, world_size: int) -> Path:
    return path / "marks" / f"{start}-{world_size}"


def _remove_older(folder: Path, watermark: int) -> None:
    for other in folder.parent.iterdir():
        start = other.name.partition("-")[0]
        if other.is_dir() and other != folder and start.isdecimal() and int(start) < watermark:
            with suppress(OSError):
                shutil.rmtree(other)
