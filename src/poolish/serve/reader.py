"""One rank's side of one split's queue: which number comes next, waiting for it, verifying it, acknowledging it.

    position    the group's: all ranks together have taken everything below it, if all are where this one is
    number      position + rank, the batch that this rank waits for

Acknowledging has two steps. What a rank is done with goes into its mark, at once. Rank 0 raises the watermark to what
all are done with and deletes the batches, a few at a time, because that takes the queue's lock. A restart reads the
marks, so nothing is handed out again if the second step did not happen.
"""

from __future__ import annotations

import itertools
import logging
import mmap
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from poolish.errors import CorruptDataError, QueueError, ResumeError, SchemaError, Starved, StoreFull
from poolish.ragged import Ragged
from poolish.serve.ranks import Assignment, RankProgress, rest
from poolish.transports.batch_columns import Array
from poolish.transports.batch_file import (
    LOST,
    Allocate,
    BatchMetadata,
    BatchVerifier,
    TombstoneError,
    as_bytes,
)
from poolish.transports.protocols import Log, Waker

#: Numbers that are deleted together, or fewer if they are large: taking the lock and raising the watermark takes 240 us
#: between batches of 1 MiB, where none of it is in the processor's caches. More of them would be slower again, because
#: files that are overwritten later have left the caches too.
_TOGETHER = 8
_TOGETHER_BYTES = 32 * 2**20
_LOOK_AROUND_S = 0.5  # how often a wait looks at more than its own file
_SAY_S = 10.0
IDLE_S = 0.01  # a longer wait is used to delete what is done
_FOR_RANK_0_S = 30.0  # rank 0 may be writing the very checkpoint that it will commit
_LOST_S = 2.0  # a network file system may show a number before its file

logger = logging.getLogger("poolish.serve")


class EndOfQueue(Exception):
    """Every provider has finished, and there is no full round of batches left."""


class Batch(NamedTuple):
    """A batch as it was read: its arrays share the memory of ``data``.

    ``kept`` is a copy of that, where a later batch may have to be replaced by this one: ``data`` is the trainer's to
    change, and on CUDA it is used again as soon as it was copied to the device.
    """

    number: int
    metadata: BatchMetadata
    columns: dict[str, tuple[str, Array | Ragged]]
    data: mmap.mmap | Array
    n_bytes: int
    kept: Array | None = None


#: A batch, and what its stage made of it.
Staged = tuple[Batch, Any]


class SplitReader:
    """Hands out this rank's batches of one split, each once, in order."""

    def __init__(
        self,
        log: Log,
        rank: int,
        world_size: int,
        *,
        acknowledge: str,
        on_corrupt: str,
        later: Callable[[Callable[[], object]], object] | None = None,
    ) -> None:
        self.log, self.rank, self.world_size = log, rank, world_size
        self._acknowledge, self._on_corrupt = acknowledge, on_corrupt
        self._later = later  # does something in the background
        self._verifier = BatchVerifier(log)
        self._progress = RankProgress(log, rank, world_size, acknowledge)
        self._waker: Waker | None = None
        self._position: int | None = None
        self._restored: Assignment | None = None
        self._assignment = self._progress.assignment
        self._done = 0
        self._metadata: dict[int, BatchMetadata] = {}
        self._pending_bytes = 0
        self._last: Array | None = None
        self.last_number: int | None = None
        self.n_replaced = self.n_skipped = self.n_dropped = 0
        self.waited_s = 0.0
        self.waits: dict[int, float] = {}  # since when each batch is waited for that did not come at once

    @property
    def waker(self) -> Waker:
        """The waker of the thread that hands batches out."""
        if self._waker is None:
            self._waker = self.log.waker()
        return self._waker

    def become(self, rank: int, world_size: int) -> None:
        """Read as another rank than was known when this was made; before it has begun."""
        assert not self.has_begun
        self.rank, self.world_size = rank, world_size
        self._progress = RankProgress(self.log, rank, world_size, self._acknowledge)
        self._assignment = self._progress.assignment

    # -- where we are

    @property
    def has_begun(self) -> bool:
        """Whether this rank reads, which is when its number is taken for others to see."""
        return self._position is not None

    @property
    def position(self) -> int:
        """The group's position."""
        return self.assignment.start if self._position is None else self._position

    @property
    def assignment(self) -> Assignment:
        """Which numbers are handed out; before this rank has begun, what they would be."""
        return self._progress.assignment if self._position is not None else self._restored or rest(self.log)

    def restore(self, restored: Assignment) -> None:
        """Begin where a state says, when the next batch is requested; until then this is no rank of the old run."""
        self._progress.leave()
        self._position, self._restored = None, restored

    def begin(self, run: str) -> None:
        """Read as a rank of a run: where a state says, else what no rank is done with."""
        if self._restored is not None:
            self.check_start(self._restored.start)
        self.log.skip_removed()
        try:
            start = self._progress.enter(run, self._restored)
        except StoreFull:  # make room with files that only wait to be overwritten
            self.log.release_space()
            start = self._progress.enter(run, self._restored)
        self._position, self._done, self._metadata, self._pending_bytes = start, start, {}, 0
        self._assignment, self.last_number = self._progress.assignment, None
        if self.rank == 0:
            if self._restored is None:
                self.log.raise_watermark(self._assignment.start)
            self.log.delete_done()

    def check_start(self, start: int) -> None:
        """Raise if some of what follows ``start`` is gone, or never was here."""
        watermark = self.log.consumed().watermark
        if start < watermark:
            raise ResumeError(
                f"{self.log.place}: the state is at batch {start}, but {start} to {watermark - 1} are acknowledged and "
                "deleted, or were removed by hand; resume from a newer checkpoint, and use "
                'acknowledge="on_checkpoint" to keep what is not saved'
            )
        if not self.log.has_published(start):
            raise ResumeError(
                f"{self.log.place}: the state is at batch {start}, but this queue ends at {self.log.next_number()}: it "
                "is an older copy of the one that the state was taken from; restore that, or start without the state"
            )
        self._check_removed(start, f"the state is at batch {start}")

    def _check_removed(self, number: int, who: str) -> None:
        """Raise if a batch was purged by hand, and all others with it."""
        if self.log.has(number):
            return
        with self.log.locked():
            removed = self.log.removed()
        if number in removed:
            raise ResumeError(
                f"{self.log.place}: {who}, but {removed.start} to {removed.stop - 1} were removed by hand; start "
                f"without a state to continue with batch {removed.stop}"
            )

    # -- taking

    def number(self, ahead: int = 0) -> int:
        """The number of this rank's next batch, or of the one ``ahead`` after it."""
        return self._assignment.number(self.position, self.rank + ahead * self.world_size)

    def numbers(self) -> Iterator[int]:
        """The numbers of this rank's batches, from the next one on."""
        assignment, position = self._assignment, self.position
        return (assignment.number(position, self.rank + i * self.world_size) for i in itertools.count())

    def asked(self) -> None:
        """The next batch is requested: the step on the last one is over."""
        if self._acknowledge == "on_step" and self._done < self.position:
            self._set_done(self.position, self.position)

    def take(self, timeout_s: float | None) -> Staged:
        """Wait for the next batch, and read it."""
        number = self.number()
        self.wait(number, timeout_s, self.waker, on_idle=self.delete_acknowledged)
        return self.read(number), None

    def handed_out(self, batch: Batch) -> None:
        """The arrays of a batch go to the trainer."""
        position = self._assignment.number(self.position, self.world_size)
        if batch.kept is not None:
            self._last = batch.kept
        if self.rank == 0:
            self._metadata[batch.number] = batch.metadata
            self._pending_bytes += batch.n_bytes
        self._set_done(position, position if self._acknowledge == "on_read" or self._follows else self._done)
        self._position, self.last_number = position, batch.number

    @property
    def _follows(self) -> bool:
        """Whether another rank decides what is done: with on_checkpoint it is rank 0, which writes the checkpoint."""
        return self._acknowledge == "on_checkpoint" and self.rank != 0

    def commit(self, position: int) -> None:
        """A checkpoint holds everything below ``position``."""
        if position > self.position:
            raise ResumeError(
                f"{self.log.place}: commit of batch {position}, but only those below {self.position} were handed out; "
                "commit a state that this consumer's state_dict() gave"
            )
        has_begun = self._position is not None
        if self._acknowledge == "on_checkpoint" and self.rank == 0 and has_begun and position > self._done:
            self._set_done(self.position, position)
            self.delete_acknowledged()

    def _set_done(self, read: int, done: int) -> None:
        self._progress.write(read, done)
        self._done = done
        if self.rank == 0 and self._acknowledge != "on_checkpoint":
            n_pending = done - next(iter(self._metadata), done)
            if n_pending >= _TOGETHER * self.world_size or self._pending_bytes >= _TOGETHER_BYTES:
                self.delete_acknowledged()

    def delete_acknowledged(self) -> None:
        """Delete what all ranks are done with."""
        if self.rank == 0 and self._position is not None:
            lowest = self._progress.lowest_done()
            done = self.log.raise_watermark(lowest, self._metadata)
            if self._later is None:
                self.log.delete(done)
            else:  # to delete a large file takes milliseconds, which the trainer should not wait for
                self._later(lambda: self.log.delete(done))
            self._metadata = {number: metadata for number, metadata in self._metadata.items() if number >= lowest}
            self._pending_bytes = 0

    # -- reading

    def read(self, number: int, allocate: Allocate | None = None) -> Batch:
        """The batch of a number whose file is there, verified; a corrupt one by the policy that the user chose."""
        try:
            return self._load(number, allocate)
        except (CorruptDataError, SchemaError):
            pass
        try:  # once more: it may have been the reading
            return self._load(number, allocate)
        except (CorruptDataError, SchemaError) as error:
            return self._replace(number, error, allocate)

    def _load(self, number: int, allocate: Allocate | None) -> Batch:
        try:
            data = self.log.read(number, allocate)
        except FileNotFoundError as error:
            time.sleep(_LOST_S)  # it was there: who removes by hand may be in the middle of it
            self._check_removed(number, f"this rank waits for batch {number}")
            raise QueueError(
                f"{self.log.place}: batch {number} is missing, the queue was removed meanwhile; "
                "start `poolish prepare CONFIG` again, then the trainer"
            ) from error
        return self._verified(number, data)

    def _verified(self, number: int, data: mmap.mmap | Array) -> Batch:
        metadata, columns = self._verifier.verified(data, self.log.name_of(number))
        kept = np.frombuffer(as_bytes(data), np.uint8).copy() if self._on_corrupt == "cached" else None
        return Batch(number, metadata, columns, data, as_bytes(data).nbytes, kept)

    def _replace(self, number: int, error: CorruptDataError | SchemaError, allocate: Allocate | None) -> Batch:
        if number < self.log.consumed().watermark:
            raise QueueError(
                f"{self.log.place}: batch {number} was acknowledged and deleted while it was read here; is there "
                "another trainer on this queue? Start this one again"
            ) from error
        if not isinstance(error, TombstoneError):
            self.log.write_tombstone(number, str(error))
        if self._on_corrupt == "cached":
            replacement = self._last_good(number, allocate)
            if replacement is not None:
                self.n_replaced += 1
                logger.warning("%s; batch %d is trained again in its place", error, replacement.number)
                return replacement._replace(number=number, n_bytes=0)
        dead = self.log.tombstone_place(number)
        raise CorruptDataError(
            f"batch {number} of {self.log.meta.split!r} cannot be trained: {error} (see {dead}); "
            'to train the last good batch in its place use on_corrupt="cached"'
        ) from error

    def _last_good(self, number: int, allocate: Allocate | None) -> Batch | None:
        """The nearest batch of this rank before this one, else the nearest that can be read at all.

        Those between the position and ``number`` are read ahead, so their files are there; what was handed out may be
        deleted, but the last of it is kept.
        """
        for earlier in range(number - self.world_size, self.position - 1, -self.world_size):
            with suppress(CorruptDataError, SchemaError, QueueError):
                return self._load(earlier, allocate)
        if self._last is not None:
            data = self._last.copy() if allocate is None else allocate(self._last.nbytes)
            data[:] = self._last
            return self._verified(number, data)
        for other in sorted(self.log.numbers(), key=lambda other: (other > number, abs(other - number))):
            with suppress(CorruptDataError, SchemaError, QueueError):
                return self._load(other, allocate)
        return None

    # -- waiting

    def is_there(self, number: int) -> bool:
        """Whether the round of ``number`` is published, the batches of all ranks.

        All or none: at the end of a queue a rank that got one batch more than the others would wait for them for ever.
        The log has no gaps, so the last of a round is enough.
        """
        return self.log.has(self._end_of_round(number))

    def _end_of_round(self, number: int) -> int:
        """The last number of a round, which is the last rank's."""
        return self._assignment.number(number, self.world_size - 1 - self.rank)

    def wait(
        self,
        number: int,
        timeout_s: float | None,
        waker: Waker,
        *,
        is_over: Callable[[], bool] = lambda: False,
        step_s: float = _LOOK_AROUND_S,
        on_idle: Callable[[], object] = lambda: None,
    ) -> None:
        """Until the batch of ``number`` is there. ``Starved`` says what was waited for and why it did not come.

        ``is_over``, checked every ``step_s`` at least, ends it early. ``on_idle`` is called if it takes longer than
        ``IDLE_S``.
        """
        if self.is_there(number):
            return
        waker.watch(self.log.split)  # before the next check, so that what comes in between wakes it
        begun = looked = time.monotonic()
        say_at = begun + _SAY_S
        short_s = IDLE_S if timeout_s is None else min(IDLE_S, timeout_s)
        if not self._came_within(short_s, number, waker):
            on_idle()
            self._look_around(number, 0.0)
            try:
                self.waits[number] = time.time()
                while not self.is_there(number):
                    if is_over():
                        return
                    now = time.monotonic()
                    if timeout_s is not None and now - begun >= timeout_s:
                        raise self.starved(number, timeout_s)
                    if now - looked >= _LOOK_AROUND_S:
                        self._look_around(number, now - begun)
                        looked = now
                    if now >= say_at:
                        logger.warning("%s", self.wait_message(number, now - begun))
                        say_at = now + 3 * _SAY_S
                    waker.wait(step_s if timeout_s is None else min(step_s, begun + timeout_s - now))
            finally:
                self.waits.pop(number, None)
        self.waited_s += time.monotonic() - begun

    def _came_within(self, seconds: float, number: int, waker: Waker) -> bool:
        """Most waits are short, and deleting meanwhile would take the lock that the provider needs."""
        end = time.monotonic() + seconds
        while not self.is_there(number):
            left_s = end - time.monotonic()
            if left_s <= 0:
                return False
            waker.wait(left_s)
        return True

    def _look_around(self, number: int, waited_s: float) -> None:
        """Raise if the file will never come."""
        self.log.check_same()
        self._progress.check_newest()
        self._check_commit(waited_s)
        watermark = self.log.consumed().watermark
        if number < watermark:
            raise ResumeError(
                f"{self.log.place}: this rank waits for batch {number}, but all below {watermark} were acknowledged by "
                "another run and deleted, or removed by hand; end the other trainer, or start this one again"
            )
        if waited_s > _LOST_S and number < self.log.next_number() and not self.log.has(number):
            self._check_removed(number, f"this rank waits for batch {number}")
            self.log.write_tombstone(number, LOST)
        known = self.log.providers.known()
        is_finished = known and all(record.finished and not is_alive for record, is_alive in known.values())
        if is_finished and self._end_of_round(number) >= self.log.next_number():
            raise EndOfQueue

    def _check_commit(self, waited_s: float) -> None:
        """Raise if the providers wait for this very consumer to acknowledge what it has read."""
        if self._acknowledge != "on_checkpoint" or self._position is None:
            return
        if self._position <= self.log.consumed().watermark or (self.rank and waited_s < _FOR_RANK_0_S):
            return
        limits = self.log.meta.limits
        kept = self.log.n_bytes()
        is_much = kept > limits.get("max_backlog_bytes", kept)
        is_full = self.log.free_bytes() < limits.get("min_free_bytes", 0)
        if is_much or is_full:
            why = "the disk is almost full" if is_full else "that is more than max_backlog_bytes"
            raise QueueError(
                f"{self.log.place}: {kept / 2**20:,.0f} MiB wait for a checkpoint and {why}, so nothing new can come; "
                "save a checkpoint more often and call consumer.commit(state) after it"
            )

    def starved(self, number: int, timeout_s: float) -> Starved:
        """The error for a batch that did not come in time."""
        return Starved(
            f"{self.wait_message(number, timeout_s)}; timeout_s={timeout_s:g} is over", filename=self.log.place
        )

    def wait_message(self, number: int, waited_s: float) -> str:
        """Which batch is missing, for how long, and which providers are running."""
        known = self.log.providers.known()
        alive = [name for name, (_, is_alive) in known.items() if is_alive]
        if alive:
            who = f"running: {', '.join(alive)}"
        else:
            who = "no provider is running, start one with `poolish prepare CONFIG`"
        return (
            f"{self.log.place}: waited {waited_s:.1f} s for batch {number} (rank {self.rank} of {self.world_size}); "
            f"the next one to come is {self.log.next_number()}; {who}"
        )

    def finish(self) -> None:
        """After a clean end the step on the last batch is over."""
        if self._position is not None:
            self.asked()
            self.delete_acknowledged()
            self._progress.write(self._position, self._done, has_ended=True)

    def close(self) -> None:
        """Stop being this rank."""
        try:
            self._progress.leave()
        finally:
            if self._waker is not None:
                self._waker.close()
            self.log.close()
