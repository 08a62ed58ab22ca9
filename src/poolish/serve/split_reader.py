"""One rank's side of one split's queue: which number comes next, waiting for it, trusting it, and letting it go.

    position    the group's: all ranks together have taken everything below it, if all stand where this one does
    number      position + rank, the very file that this rank waits for

Letting go is in two steps. What a rank is done with goes into its mark, at once. Rank 0 raises the watermark to what
all are done with and deletes the files, a few at a time, because that takes the queue's lock. A restart believes the
marks, so nothing is handed out again because the second step had not come.
"""

from __future__ import annotations

import itertools
import logging
import math
import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from poolish.errors import CorruptDataError, QueueError, ResumeError, SchemaError, StaleSchema, Starved, StoreFull
from poolish.schema import numpy_dtype
from poolish.serve.batch_file import Allocate, Array, Label, as_bytes, decode, encode, read_file
from poolish.serve.dealing import Dealing
from poolish.serve.fitting import Promise
from poolish.serve.marks import RunMarks, rest
from poolish.serve.provider_notes import providers
from poolish.serve.queue_log import QueueLog, make_folders, missing_told
from poolish.serve.queue_meta import QueueMeta
from poolish.serve.repair import LOST, bury, pass_removed
from poolish.serve.watching import Watch

#: Numbers that are deleted together, or fewer if they are large: taking the lock and raising the watermark takes 240 us
#: between batches of 1 MiB, where none of it is in the processor's caches.
_TOGETHER = 32
_TOGETHER_BYTES = 32 * 2**20
_LOOK_AROUND_S = 0.5  # how often a wait looks at more than its own file
_SAY_S = 10.0
#: A wait that takes longer is used to let go of what is done, and may be slept through: the 100 us that it takes to be
#: woken up are a hundredth of it.
IDLE_S = 0.01
_FOR_RANK_0_S = 30.0  # rank 0 may be writing the very checkpoint that it will commit
_SMALL_BYTES = 65_536  # what takes some microseconds
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
    label: Label
    columns: dict[str, tuple[str, Array]]
    data: mmap.mmap | Array
    n_bytes: int
    kept: Array | None = None


class SplitReader:
    """Hands out this rank's batches of one split, each once, in order."""

    def __init__(
        self,
        log: QueueLog,
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
        self._promise = Promise(log.meta.schema)
        self._smallest = _smallest_batch(log.meta)
        self._marks = RunMarks(log, rank, world_size, acknowledge)
        with missing_told(log):
            make_folders(log.path)
        self._position: int | None = None
        self._restored: Dealing | None = None
        self._dealing = self._marks.dealing
        self._done = 0
        self._labels: dict[int, Label] = {}
        self._pending_bytes = 0
        self._last: Array | None = None
        self.last_number: int | None = None
        self.n_replaced = self.n_skipped = self.n_dropped = 0
        self.waited_s = 0.0
        self.waits: dict[int, float] = {}  # since when each batch is waited for that did not come at once

    # -- where we are

    @property
    def has_begun(self) -> bool:
        """Whether this rank reads, which is when its number is taken for others to see."""
        return self._position is not None

    @property
    def position(self) -> int:
        """The group's position."""
        return self.dealing.start if self._position is None else self._position

    @property
    def dealing(self) -> Dealing:
        """Which numbers are handed out; before this rank has begun, what they would be."""
        return self._marks.dealing if self._position is not None else self._restored or rest(self.log)

    def restore(self, restored: Dealing) -> None:
        """Begin where a state says, when the next batch is asked for; until then this is no rank of the old run."""
        self._marks.leave()
        self._position, self._restored = None, restored

    def begin(self, run: str) -> None:
        """Read as a rank of a run: where a state says, else what no rank is done with."""
        if self._restored is not None:
            self.check_start(self._restored.start)
        pass_removed(self.log)
        try:
            start = self._marks.enter(run, self._restored)
        except StoreFull:  # make room with what only waits to be written over
            self.log.drop_free()
            start = self._marks.enter(run, self._restored)
        self._position, self._done, self._labels, self._pending_bytes = start, start, {}, 0
        self._dealing, self.last_number = self._marks.dealing, None
        if self.rank == 0:
            if self._restored is None:
                self.log.raise_watermark(self._dealing.start)
            self.log.delete_done()

    def check_start(self, start: int) -> None:
        """Raise if some of what follows ``start`` is gone, or never was here."""
        watermark = self.log.consumed().watermark
        if start < watermark:
            raise ResumeError(
                f"{self.log.path}: the state is at batch {start}, but {start} to {watermark - 1} are acknowledged and "
                "deleted, or were removed by hand; resume from a newer checkpoint, and use "
                'acknowledge="on_checkpoint" to keep what is not saved'
            )
        if not self.log.has_published(start):
            raise ResumeError(
                f"{self.log.path}: the state is at batch {start}, but this queue ends at {self.log.next_number()}: it "
                "is an older copy of the one that the state was taken from; restore that, or start without the state"
            )
        self._check_removed(start, f"the state is at batch {start}")

    def _check_removed(self, number: int, who: str) -> None:
        """Raise if a batch was purged by hand, and all others with it."""
        if os.path.lexists(self.log.file_of(number)):
            return
        with self.log.locked():
            removed = self.log.removed()
        if number in removed:
            raise ResumeError(
                f"{self.log.path}: {who}, but {removed.start} to {removed.stop - 1} were removed by hand; start "
                f"without a state to go on with batch {removed.stop}"
            )

    # -- taking

    def number(self, ahead: int = 0) -> int:
        """The number of this rank's next batch, or of the one so many after it."""
        return self._dealing.number(self.position, self.rank + ahead * self.world_size)

    def numbers(self) -> Iterator[int]:
        """The numbers of this rank's batches, from the next one on."""
        dealing, position = self._dealing, self.position
        return (dealing.number(position, self.rank + i * self.world_size) for i in itertools.count())

    def asked(self) -> None:
        """The next batch is asked for: the step on the last one is over."""
        if self._acknowledge == "on_step" and self._done < self.position:
            self._set_done(self.position, self.position)

    def handed_out(self, batch: Batch) -> None:
        """The arrays of a batch go to the trainer."""
        position = self._dealing.number(self.position, self.world_size)
        if batch.kept is not None:
            self._last = batch.kept
        if self.rank == 0:
            self._labels[batch.number] = batch.label
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
                f"{self.log.path}: commit of batch {position}, but only those below {self.position} were handed out; "
                "commit a state that this consumer's state_dict() gave"
            )
        has_begun = self._position is not None
        if self._acknowledge == "on_checkpoint" and self.rank == 0 and has_begun and position > self._done:
            self._set_done(self.position, position)
            self.let_go()

    def _set_done(self, read: int, done: int) -> None:
        self._marks.write(read, done)
        self._done = done
        if self.rank == 0 and self._acknowledge != "on_checkpoint":
            n_pending = done - next(iter(self._labels), done)
            if n_pending >= _TOGETHER * self.world_size or self._pending_bytes >= _TOGETHER_BYTES:
                self.let_go()

    def let_go(self) -> None:
        """Delete what all ranks are done with."""
        if self.rank == 0 and self._position is not None:
            lowest = self._marks.lowest_done()
            done = self.log.raise_watermark(lowest, self._labels)
            if self._later is None:
                self.log.delete(done)
            else:  # to delete a large file takes milliseconds, which the trainer should not wait for
                self._later(lambda: self.log.delete(done))
            self._labels = {number: label for number, label in self._labels.items() if number >= lowest}
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
        path = self.log.file_of(number)
        with missing_told(self.log):
            data = read_file(path, allocate)
        batch = self._decoded(number, data, path)
        check_rows(self.log, batch.label.rows, path)
        return batch

    def _decoded(self, number: int, data: mmap.mmap | Array, path: Path | str) -> Batch:
        label, columns = decoded(self.log.meta, self._promise, data, path)
        kept = np.frombuffer(as_bytes(data), np.uint8).copy() if self._on_corrupt == "cached" else None
        return Batch(number, label, columns, data, as_bytes(data).nbytes, kept)

    def _replace(self, number: int, error: CorruptDataError | SchemaError, allocate: Allocate | None) -> Batch:
        if number < self.log.consumed().watermark:
            raise QueueError(
                f"{self.log.path}: batch {number} was acknowledged and deleted while it was read here; is there "
                "another trainer on this queue? Start this one again"
            ) from error
        if not isinstance(error, Buried):
            bury(self.log, number, str(error))
        if self._on_corrupt == "cached":
            replacement = self._last_good(number, allocate)
            if replacement is not None:
                self.n_replaced += 1
                logger.warning("%s; batch %d is trained again in its place", error, replacement.number)
                return replacement._replace(number=number, n_bytes=0)
        dead = self.log.path / "dead" / f"{number:012d}.json"
        raise CorruptDataError(
            f"batch {number} of {self.log.meta.split!r} cannot be trained: {error} (see {dead}); "
            'to go on with the last good batch in its place use on_corrupt="cached"'
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
            return self._decoded(number, data, self.log.path)
        for other in sorted(self.log.numbers(), key=lambda other: (other > number, abs(other - number))):
            with suppress(CorruptDataError, SchemaError, QueueError):
                return self._load(other, allocate)
        return None

    # -- waiting

    def is_there(self, number: int) -> bool:
        """Whether the round of ``number`` is published, the batches of all ranks.

        All or none: at the end of a queue a rank that got one batch more than the others would wait for them for ever.
        The log has no gaps, so the last of a round stands for all.
        """
        return os.path.lexists(self.log.file_of(self._end_of_round(number)))

    def _end_of_round(self, number: int) -> int:
        """The last number of a round, which is the last rank's."""
        return self._dealing.number(number, self.world_size - 1 - self.rank)

    def wait(
        self,
        number: int,
        timeout_s: float | None,
        watch: Watch,
        *,
        is_over: Callable[[], bool] = lambda: False,
        step_s: float = _LOOK_AROUND_S,
        awake: bool = False,
        on_idle: Callable[[], object] = lambda: None,
    ) -> None:
        """Until the batch of ``number`` is there. ``Starved`` says what was waited for and why it did not come.

        ``is_over``, asked every ``step_s`` at least, ends it early. ``awake`` keeps the processor for the first
        ``IDLE_S``, and ``on_idle`` is called if it takes longer.
        """
        if self.is_there(number):
            return
        watch.add(self.log.path)  # before the next look, so that what comes in between is told
        begun = looked = time.monotonic()
        say_at = begun + _SAY_S
        short_s = IDLE_S if timeout_s is None else min(IDLE_S, timeout_s)
        if not self._came_within(short_s, number, watch, awake):
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
                        logger.warning("%s", self.told(number, now - begun))
                        say_at = now + 3 * _SAY_S
                    watch.wait(step_s if timeout_s is None else min(step_s, begun + timeout_s - now))
            finally:
                self.waits.pop(number, None)
        self.waited_s += time.monotonic() - begun

    def _came_within(self, seconds: float, number: int, watch: Watch, awake: bool) -> bool:
        """Most waits are short, and what could be done meanwhile would be in the provider's way: it takes the lock."""
        end = time.monotonic() + seconds
        while not self.is_there(number):
            left_s = end - time.monotonic()
            if left_s <= 0:
                return False
            if awake:
                self._rehearse()
                watch.spin(left_s)
            else:
                watch.wait(left_s)
        return True

    def _rehearse(self) -> None:
        """Read a small file and decode a small batch, as it will be done with the one that is waited for.

        Code that did not run for some milliseconds is in none of the processor's caches, and a batch that takes 40 us
        to read takes 140 then.
        """
        if self._smallest is not None:
            with missing_told(self.log):
                read_file(self.log.meta_file)
            self._decoded(0, self._smallest, "rehearsal")

    def _look_around(self, number: int, waited_s: float) -> None:
        """Raise if the file will never come."""
        self.log.check_same()
        self._marks.check_newest()
        self._check_commit(waited_s)
        watermark = self.log.consumed().watermark
        if number < watermark:
            raise ResumeError(
                f"{self.log.path}: this rank waits for batch {number}, but all below {watermark} were acknowledged by "
                "another run and deleted, or removed by hand; end the other trainer, or start this one again"
            )
        if waited_s > _LOST_S and number < self.log.next_number() and not os.path.lexists(self.log.path_of(number)):
            self._check_removed(number, f"this rank waits for batch {number}")
            bury(self.log, number, LOST)
        known = providers(self.log)
        is_finished = known and all(note.finished and not is_alive for note, is_alive in known.values())
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
                f"{self.log.path}: {kept / 2**20:,.0f} MiB wait for a checkpoint and {why}, so nothing new can come; "
                "save a checkpoint more often and call consumer.commit(state) after it"
            )

    def starved(self, number: int, timeout_s: float) -> Starved:
        """The error for a batch that did not come in time."""
        return Starved(f"{self.told(number, timeout_s)}; timeout_s={timeout_s:g} is over", filename=self.log.path)

    def told(self, number: int, waited_s: float) -> str:
        """What is waited for, how long, and who could bring it."""
        known = providers(self.log)
        alive = [name for name, (_, is_alive) in known.items() if is_alive]
        if alive:
            who = f"running: {', '.join(alive)}"
        else:
            who = "no provider is running, start one with `poolish prepare CONFIG`"
        return (
            f"{self.log.path}: waited {waited_s:.1f} s for batch {number} (rank {self.rank} of {self.world_size}); "
            f"the next one to come is {self.log.next_number()}; {who}"
        )

    def finish(self) -> None:
        """After a clean end the step on the last batch is over."""
        if self._position is not None:
            self.asked()
            self.let_go()
            self._marks.write(self._position, self._done, has_ended=True)

    def close(self) -> None:
        """Stop being this rank."""
        try:
            self._marks.leave()
        finally:
            self.log.close()


def _smallest_batch(meta: QueueMeta) -> Array | None:
    """One row of zeros as it would lie in a file; None where even that is large."""
    columns = {}
    for field in meta.schema:
        shape, dtype = (1, *(1 if size is None else size for size in field.shape or ())), str(field.dtype)
        if math.prod(shape) * numpy_dtype(dtype).itemsize > _SMALL_BYTES:
            return None
        columns[field.name] = (dtype, np.zeros(shape, numpy_dtype(dtype)))
    label = Label(meta.queue, meta.schema.fingerprint, rows=1, provider="rehearsal", counter=0)
    return np.frombuffer(b"".join(encode(columns, label)), np.uint8)


class Buried(CorruptDataError):
    """A tombstone stands in the place of the batch."""


def check_rows(log: QueueLog, rows: int, path: Path | str) -> None:
    """Raise if a batch has a number of rows that no provider of its queue makes."""
    # Read anew before it is refused: a provider that makes others may have come since this side was started.
    if not log.meta.allows(rows) and not (meta := QueueMeta.read(log.path)).allows(rows):
        low, high = meta.limits["min_rows"], meta.limits["max_rows"]
        expected = high if low == high else f"{low} to {high}"
        raise SchemaError(f"{path}: {rows} rows, the providers of this queue make {expected} (batch_size)")


def decoded(
    meta: QueueMeta, promise: Promise, data: mmap.mmap | Array, path: Path | str
) -> tuple[Label, dict[str, tuple[str, Array]]]:
    """The label and the arrays of a batch file, if it is whole, of this queue, and as its schema says."""
    label, columns = decode(data, path)
    if label.tombstone:
        raise Buried(f"{path}: this batch is dead: {label.tombstone}")
    if label.queue != meta.queue:
        raise QueueError(f"{path}: a batch of another queue; the queue was purged meanwhile? Start this side again")
    if label.schema != meta.schema.fingerprint:
        raise StaleSchema(
            f"{path}: its schema is {label.schema}, this queue's {meta.schema.fingerprint}; discard the queue with "
            f"`poolish queue purge {os.path.dirname(path)}` and fill it anew"
        )
    if columns.keys() != promise.names:
        raise SchemaError(f"{path}: has {sorted(columns)}, batch_schema {meta.schema.names}")
    if promise.check(columns, str(path), "the provider wrote something else") != label.rows:
        raise SchemaError(f"{path}: its label says {label.rows} rows, its arrays do not")
    return label, {name: columns[name] for name in promise.names}
