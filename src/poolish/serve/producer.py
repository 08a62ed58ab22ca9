"""Filling the queue of one split: which counter comes next, whether there is room, and publishing.

A provider's record is a hint that saves reading old batches; what counts is the log itself and its watermark, because a
provider may be killed between publishing a batch and writing its record. So the next counter is one more than the
highest in the record, beside the watermark and in the provider's own batches that are newer than the record.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

from poolish.errors import ConfigError, QueueError, SchemaError, StoreFull, StoreLocked
from poolish.files import check_name
from poolish.ragged import Ragged
from poolish.serve.ranks import AttemptProgress
from poolish.transports.batch_columns import Array, Columns, is_variable
from poolish.transports.batch_file import BatchMetadata, encode
from poolish.transports.protocols import Log, ProviderRecord, Waker

_EVERY_S = 1.0


@dataclass(frozen=True)
class Limits:
    """When a provider waits: unread batches, bytes on disk, and bytes that must stay free there."""

    max_backlog: int
    max_backlog_bytes: int
    min_free_bytes: int


class ProviderRegistry:
    """One provider's name in a queue, claimed until ``release``, and its record."""

    def __init__(self, log: Log, name: str) -> None:
        self.log, self.name = log, check_name(name, "provider")
        self._claim = log.providers.claim(name)
        self._written_at = -_EVERY_S

    def claim(self) -> None:
        """Claim the name."""
        try:
            self._claim.acquire()
        except StoreLocked as error:
            raise ConfigError(
                f"{self.log.place}: a provider named {self.name!r} is running ({error}); give this one another name"
            ) from None

    def next_counter(self) -> int:
        """How many batches this provider has published."""
        record = self.log.providers.read(self.name)
        counters = [record.counter]
        for number in self.log.numbers():
            if number >= record.number:
                metadata = self.log.metadata(number, strict=True)
                if metadata is not None and metadata.provider == self.name:
                    counters.append(metadata.counter + 1)
        # Last, because what was deleted while we read the batches is counted here.
        consumed = self.log.consumed()
        counters.append(consumed.counters.get(self.name, -1) + 1)
        if not max(counters) and consumed.has_moved:
            # Raise if it is damaged where it alone may know the counter: all would be published again.
            self.log.providers.read(self.name, strict=True)
        return max(counters)

    def write(self, counter: int, number: int, *, finished: bool = False, now: bool = True) -> bool:
        """Write the record (unless ``now``, at most once a second); whether it was written."""
        clock = time.monotonic()
        if not now and clock - self._written_at < _EVERY_S:
            return False
        self.log.providers.write(self.name, ProviderRecord(counter, number, finished))
        self._written_at = clock
        return True

    def release(self) -> None:
        """Give the name up."""
        self._claim.release()


class SplitProducer:
    """One provider's side of one split's queue, whose name it holds until ``close``."""

    def __init__(self, log: Log, name: str, limits: Limits) -> None:
        self.log, self.limits, self._row_limits = log, limits, log.meta.row_limits
        # An open size in a queue of 0.1.0.
        self._are_alike = not log.meta.has_ragged and any(map(is_variable, log.meta.schema))
        self._registry = ProviderRegistry(log, name)
        self._registry.claim()
        self._progress = AttemptProgress(log)
        self._counter: int | None = None
        self._is_recorded = True
        try:
            log.recover()
            self._number = log.next_number()
            self._first = log.consumed().watermark  # marks may be older, after a purge by hand
            self._registry.write(self.counter, self._number)
            self._last = 0  # bytes of the last batch
            self._counted_at, self._counted = self._number, log.n_bytes()
        except BaseException:
            self._registry.release()
            raise

    @property
    def counter(self) -> int:
        """How many batches this provider has published here."""
        if self._counter is None:
            self._counter = self._registry.next_counter()
        return self._counter

    def backlog(self) -> int:
        """How many batches wait to be read."""
        self._number = max(self._number, self.log.next_number())
        return max(0, self._number - max(self._first, self._progress.positions()[0]))

    def look(self) -> tuple[int, str | None]:
        """How many batches wait to be read, and why there is no room for another; None if there is."""
        backlog = self.backlog()
        return backlog, self._why_wait(backlog)

    def _why_wait(self, backlog: int) -> str | None:
        if backlog >= self.limits.max_backlog:
            return f"{backlog} batches wait for the trainer"
        # Counting costs a listing, so it is done only when what came since the last time may be too much.
        if self._counted + self._last * (self._number - self._counted_at) > self.limits.max_backlog_bytes:
            self._counted_at, self._counted = self._number, self.log.n_bytes()
            if self._counted > self.limits.max_backlog_bytes:
                return f"{self._counted / 2**20:,.0f} MiB are kept until the trainer acknowledges them (commit)"
        free = self.log.free_bytes()
        if free - self._last < self.limits.min_free_bytes:
            self.log.release_space()
            free = self.log.free_bytes()
        if free - self._last < self.limits.min_free_bytes:
            return f"the disk has {free / 2**20:,.0f} MiB left: make room there"
        return None

    def publish(self, columns: Columns, rows: int) -> int:
        """Append a batch to the queue and return its number. On a full disk nothing happened."""
        low, high = self._row_limits
        if not low <= rows <= high:
            raise SchemaError(
                f"{self.log.place}: a batch of {rows} rows, consumers expect others; set variable_rows or guard before "
                "the queue is opened"
            )
        counter = self.counter
        buffers = encode(self._alike(columns) if self._are_alike else columns, self.metadata(rows))
        # If this is interrupted, it is unknown whether the batch is out; then the log decides.
        self._counter = None
        number = self.log.publish(buffers, self._registry.name)
        self._counter, self._number = counter + 1, number + 1
        self._last = sum(memoryview(buffer).nbytes for buffer in buffers)
        self._is_recorded = False
        with suppress(StoreFull, FileNotFoundError):  # the record only saves time; a missing queue is reported later
            self._is_recorded = self._registry.write(self._counter, self._number, now=False)
        return number

    def _alike(self, columns: Columns) -> Columns:
        """For a queue of 0.1.0: the columns as arrays, where all rows of a batch have one length."""
        return {name: (dtype, self._dense(name, column)) for name, (dtype, column) in columns.items()}

    def _dense(self, name: str, column: Array | Ragged) -> Array:
        if not isinstance(column, Ragged):
            return column
        lengths = set(column.lengths.tolist())
        if len(lengths) > 1:
            raise SchemaError(
                f"{self.log.place}, field {name!r}: this queue was made by poolish 0.1.0, in which all rows of a batch "
                f"have one length, got {min(lengths)} to {max(lengths)}; make it anew for rows that differ: "
                f"poolish queue purge {self.log.place}"
            )
        dense: Array = column.values.reshape(len(column), *lengths, *column.values.shape[1:])
        return dense

    def metadata(self, rows: int) -> BatchMetadata:
        """The metadata of this provider's next batch."""
        meta = self.log.meta
        return BatchMetadata(meta.queue, meta.schema.fingerprint, rows, self._registry.name, self.counter)

    def skip(self) -> None:
        """Count the next batch as made although it is not published, so that a restart does not make it again."""
        counter = self.counter + 1
        self._is_recorded = self._registry.write(counter, self._number)
        self._counter = counter

    def record(self) -> None:
        """Write the record if it is out of date, for observers while this waits."""
        if not self._is_recorded:
            with suppress(StoreFull, FileNotFoundError):
                self._is_recorded = self._registry.write(self.counter, self._number)

    def wake(self, waker: Waker) -> None:
        """Wake ``waker`` when there may be room again."""
        waker.watch(self.log.split, self._progress.marks)

    def close(self, n_batches: int | None = None) -> None:
        """Write the record, finished if that is all there will be, and give the name up."""
        try:
            with suppress(StoreFull, QueueError, FileNotFoundError):  # the queue may be gone
                finished = n_batches is not None and self.counter >= n_batches
                self._registry.write(self.counter, self._number, finished=finished)
        finally:
            self._registry.release()
            self._progress.close()
            self.log.close()
