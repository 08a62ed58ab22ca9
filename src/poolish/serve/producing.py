"""Filling the queue of one split: what counter comes next, whether there is room, and the publishing itself."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from poolish.errors import QueueError, SchemaError, StoreFull
from poolish.serve.batch_file import Columns, Label, encode
from poolish.serve.marks import Progress
from poolish.serve.provider_notes import ProviderNotes
from poolish.serve.queue_log import QueueLog
from poolish.serve.repair import recover
from poolish.serve.watching import Watch


@dataclass(frozen=True)
class Limits:
    """When a provider waits: unread batches, bytes on disk, and bytes that must stay free there."""

    max_backlog: int
    max_backlog_bytes: int
    min_free_bytes: int


class SplitProducer:
    """One provider's side of one split's queue. Being this provider is a lock, held until ``close``."""

    def __init__(self, log: QueueLog, name: str, limits: Limits) -> None:
        self.log, self.limits = log, limits
        self._name = name
        self._notes = ProviderNotes(log, name)
        self._notes.claim()
        self._progress = Progress(log)
        self._counter: int | None = None
        self._noted = True
        try:
            recover(log)
            self._number = log.next_number()
            self._first = log.consumed().watermark  # marks may be older, after a purge by hand
            self._notes.write(self.counter, self._number)
            self._last = 0  # bytes of the last batch
            self._counted_at, self._counted = self._number, log.n_bytes()
        except BaseException:
            self._notes.release()
            raise

    @property
    def counter(self) -> int:
        """How many batches this provider has published here."""
        if self._counter is None:
            self._counter = self._notes.next_counter()
        return self._counter

    def backlog(self) -> int:
        """How many batches wait to be read."""
        self._number = max(self._number, self.log.next_number())
        return max(0, self._number - max(self._first, self._progress.positions()[0]))

    def look(self) -> tuple[int, str | None]:
        """How many batches wait to be read, and why there is no room for another, in words; None if there is."""
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
            self.log.drop_free()
            free = self.log.free_bytes()
        if free - self._last < self.limits.min_free_bytes:
            return f"the disk has {free / 2**20:,.0f} MiB left: make room there"
        return None

    def publish(self, columns: Columns, rows: int) -> int:
        """Put a batch into the queue; its number. On a full disk nothing happened."""
        if not self.log.meta.allows(rows):
            raise SchemaError(
                f"{self.log.path}: a batch of {rows} rows, consumers expect others; set variable_rows or guard before "
                "the queue is opened"
            )
        counter = self.counter
        buffers = encode(columns, self.label(rows))
        # If this is interrupted nobody knows whether the batch is out; then the log itself is asked.
        self._counter = None
        number = self.log.publish(buffers, self._name)
        self._counter, self._number = counter + 1, number + 1
        self._last = sum(memoryview(buffer).nbytes for buffer in buffers)
        self._noted = False
        with suppress(StoreFull, FileNotFoundError):  # the note only saves time; a queue that is gone is told later
            self._noted = self._notes.write(self._counter, self._number, now=False)
        return number

    def label(self, rows: int) -> Label:
        """What the next batch of this provider says about itself."""
        meta = self.log.meta
        return Label(meta.queue, meta.schema.fingerprint, rows, self._name, self.counter)

    def pass_over(self) -> None:
        """Count the next batch as made although it is not published, so that a restart does not make it again."""
        counter = self.counter + 1
        self._noted = self._notes.write(counter, self._number)
        self._counter = counter

    def note(self) -> None:
        """Note how far this came, if that is not noted: for those who look at the queue while this waits."""
        if not self._noted:
            with suppress(StoreFull, FileNotFoundError):
                self._noted = self._notes.write(self.counter, self._number)

    def watch(self, watch: Watch) -> None:
        """Wake ``watch`` when room may have come."""
        watch.add(self.log.path)
        if self._progress.folder is not None:
            watch.add(self._progress.folder)

    def close(self, n_batches: int | None = None) -> None:
        """Note how far this came, and whether that is all there will be, and stop being this provider."""
        try:
            with suppress(StoreFull, QueueError, FileNotFoundError):  # the queue may be gone
                finished = n_batches is not None and self.counter >= n_batches
                self._notes.write(self.counter, self._number, finished=finished)
        finally:
            self._notes.release()
            self._progress.close()
            self.log.close()
