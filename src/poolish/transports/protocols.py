"""The queue protocol: what a transport provides so that providers and consumers share a queue.

    Place        an address with one queue per split: creates, opens and purges them
    Log          the queue of one split, made of
      Batches      batches under gapless numbers
      Watermark    how far they are done, and deleting what is
      Storage      how much space they take
      Repairs      what killed processes, power cuts and people leave
      Marks        how far the ranks of the newest attempt have read, and which of them are alive
      Providers    who fills the queue: a claimed name and a record each
    Waker        sleeps until something may have changed

A transport derives from these classes and provides what is abstract; the rest has a default, or follows from that.
``register_transport`` gives it addresses, and ``poolish.testing.TransportBehaviour`` tests what every transport
guarantees, whichever process is killed at whatever moment:

- numbers are gapless and never reused; a published batch stays readable until the watermark passes it;
- the watermark never falls, and no number below it is published again;
- a name is claimed by one holder, until that releases it or its process dies: no leases, no clocks;
- a mark is read whole or not at all, and has one writer;
- a waker that watches a queue before a change wakes up after it, or within its timeout.

Arguments and results are numbers, text, bytes and the frozen values below, so an object in another process can answer
for a queue: no paths, open files or descriptors. Its stub in this process joins the buffers of a batch and fills what
``allocate`` returns. The lock is granted like a claim: it ends with its holder.
Everything above (positions, runs, resuming, recovery of counters) is built on these protocols and knows no files.
"""

from __future__ import annotations

import logging
import mmap
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from poolish.errors import CorruptDataError, StaleSchema
from poolish.transports.batch_columns import Array
from poolish.transports.batch_file import Allocate, BatchMetadata, decode, tombstone
from poolish.transports.meta import QueueMeta

if TYPE_CHECKING:
    from typing_extensions import Buffer

logger = logging.getLogger("poolish.serve")


@dataclass(frozen=True)
class Consumed:
    """Every number below ``watermark`` is done; ``counters`` are the highest that were deleted, by provider.

    ``has_moved``: those of some providers that have ended are in their records instead. ``turn`` counts how often this
    was written, where a transport needs it.
    """

    watermark: int = 0
    counters: Mapping[str, int] = field(default_factory=dict)
    has_moved: bool = False
    turn: int = field(default=0, compare=False)

    def counters_with(self, batches: Iterable[BatchMetadata | None]) -> dict[str, int]:
        """The highest counter of each provider, with those of more batches."""
        counters = dict(self.counters)
        for batch in batches:
            if batch is not None and batch.provider:
                counters[batch.provider] = max(batch.counter, counters.get(batch.provider, 0))
        return counters


@dataclass(frozen=True)
class ProviderRecord:
    """``counter`` batches were made, all of them with numbers below ``number``; ``finished``: there will be no more.

    A hint that saves reading old batches: a provider may be killed between publishing a batch and writing its record.
    """

    counter: int = 0
    number: int = 0
    finished: bool = False


class Claim(Protocol):
    """A name that one holder has at a time, until ``release`` or the end of its process."""

    @abstractmethod
    def acquire(self) -> None:
        """Take the name, or raise ``StoreLocked``."""

    @abstractmethod
    def release(self) -> None:
        """Give the name up; nothing happens if it is not held."""


class Counters(Protocol):
    """A few integers with one writer."""

    @abstractmethod
    def read(self) -> tuple[int, ...] | None:
        """The integers; None if they are missing or damaged."""

    @abstractmethod
    def write(self, *counters: int) -> None:
        """Replace them."""

    def close(self) -> None:
        """Release what is open; the next use opens it again."""
        return


class Marks(Protocol):
    """How far the ranks of the newest attempt have read."""

    @abstractmethod
    def version(self) -> object:
        """Changes whenever another attempt begins; None before the first. Cheap."""

    @abstractmethod
    def read(self) -> dict[str, Any] | None:
        """The record of the newest attempt; None before the first."""

    @abstractmethod
    def begin(self, name: str, record: dict[str, Any]) -> None:
        """Make this the newest attempt, with marks ``name``, and remove those of older ones. The lock is held."""

    @abstractmethod
    def counters(self, name: str, rank: int, n: int) -> Counters:
        """The mark of a rank in an attempt, of ``n`` integers."""

    @abstractmethod
    def claim(self, rank: int) -> Claim:
        """The claim on being a rank."""

    @abstractmethod
    def alive(self) -> list[int]:
        """The ranks that are claimed."""


class Providers(Protocol):
    """Who fills a queue."""

    @abstractmethod
    def claim(self, name: str) -> Claim:
        """The claim on being a provider."""

    @abstractmethod
    def read(self, name: str, *, strict: bool = False) -> ProviderRecord:
        """A provider's record; an empty one if it is missing or damaged. ``strict`` raises if it is damaged."""

    @abstractmethod
    def write(self, name: str, record: ProviderRecord) -> None:
        """Replace a provider's record."""

    @abstractmethod
    def known(self) -> dict[str, tuple[ProviderRecord, bool]]:
        """Every provider that ever filled the queue: its record, and whether it is alive."""

    @abstractmethod
    def changed_at(self) -> float | None:
        """When a record was last written, as a time stamp."""


class Waker(Protocol):
    """Waits for changes of the queues it watches."""

    @abstractmethod
    def watch(self, split: str, marks: str | None = None) -> None:
        """Wake up when batches of a split come or go, and with ``marks`` when those of an attempt change.

        Watching again is allowed, and needed where the queue was created meanwhile.
        """

    @abstractmethod
    def wait(self, timeout_s: float) -> None:
        """Return when something may have changed since the last wait, or when the time is over."""

    def close(self) -> None:
        """Stop waiting for changes."""
        return


class Batches(Protocol):
    """Batches under gapless numbers."""

    @abstractmethod
    def publish(self, buffers: Iterable[Buffer], provider: str) -> int:
        """Append a batch and return its number. Once this returns, a kill loses nothing."""

    @abstractmethod
    def has(self, number: int) -> bool:
        """Whether a number was published and its batch is still there. Cheap."""

    @abstractmethod
    def read(self, number: int, allocate: Allocate | None = None) -> mmap.mmap | Array:
        """The bytes of a batch, writable without changing the queue; in memory of ``allocate`` if given.

        A missing batch is a ``FileNotFoundError``.
        """

    @abstractmethod
    def name_of(self, number: int) -> str:
        """The batch of a number, for messages."""

    @abstractmethod
    def published_at(self, number: int) -> float | None:
        """When a batch was published, as a time stamp; None if it is gone."""

    @abstractmethod
    def numbers(self) -> list[int]:
        """The numbers whose batches are there, in order. Costs a listing."""

    @abstractmethod
    def next_number(self) -> int:
        """The next number, seldom too low, never too high."""


class Watermark(Protocol):
    """How far batches are done."""

    @abstractmethod
    def consumed(self) -> Consumed:
        """The watermark and the counters below it."""

    @abstractmethod
    def write_consumed(self, consumed: Consumed) -> None:
        """Replace what was read, after raising ``next_number`` to the watermark. The lock is held since it was read."""

    @abstractmethod
    def delete(self, numbers: Iterable[int]) -> None:
        """Delete batches below the watermark; what cannot be deleted is left to ``delete_done``."""


class Storage(Protocol):
    """Space."""

    @abstractmethod
    def n_bytes(self) -> int:
        """How many bytes the batches take that are not done. Costs a listing."""

    def free_bytes(self) -> int:
        """How many bytes of storage are left."""
        return 2**62

    def release_space(self) -> None:
        """Free storage that is only kept for speed."""
        return


class Repairs(Protocol):
    """What goes wrong with batches."""

    @abstractmethod
    def replace(self, number: int, stone: Iterable[Buffer], reason: str) -> None:
        """Put a tombstone in the place of a batch, at no moment leaving its number free. The lock is held."""

    @abstractmethod
    def dead(self) -> list[float]:
        """When each batch that is corrupt or lost was replaced, as time stamps."""

    def quarantined(self) -> list[float]:
        """When the guard of a provider rejected rows of a batch, as time stamps."""
        return []

    def removed(self) -> range:
        """The numbers from the watermark on that were removed from outside, all of them. The lock is held."""
        return range(0)


class Log(Batches, Watermark, Storage, Repairs, Protocol):
    """The queue of one split. Any number may be open, in any thread or process that the transport reaches."""

    place: str
    """Where the queue is, for messages."""
    split: str
    meta: QueueMeta
    """The description of the queue as it was when this was opened."""
    marks: Marks
    providers: Providers

    @abstractmethod
    def read_meta(self) -> QueueMeta:
        """The description as it is now: a provider that started later may have widened the limits."""

    @abstractmethod
    def locked(self) -> AbstractContextManager[None]:
        """Hold the queue's lock; raises if this is no longer the queue that was opened."""

    @abstractmethod
    def check_same(self) -> None:
        """Raise if the queue was removed, or purged and created again, since it was opened."""

    @abstractmethod
    def waker(self) -> Waker:
        """A new waker for queues of this place; it watches none yet."""

    def close(self) -> None:
        """Release what is open."""
        return

    # -- what follows from the rest

    def metadata(self, number: int, *, strict: bool = False) -> BatchMetadata | None:
        """What the batch of a number says about itself; None if it is missing or corrupt.

        Where storage fails, ``strict`` raises and otherwise the answer is None too.
        """
        try:
            return self.read_metadata(number)
        except (FileNotFoundError, CorruptDataError):
            return None
        except OSError:
            if strict:
                raise
            return None

    def read_metadata(self, number: int) -> BatchMetadata:
        """The same, or the error."""
        return decode(self.read(number), self.name_of(number))[0]

    def tombstone_place(self, number: int) -> str:
        """Where a corrupt batch is kept with the reason, for messages."""
        return self.name_of(number)

    def end(self) -> int:
        """The number after the newest, from the batches themselves. Costs a listing."""
        return max([self.consumed().watermark, *(number + 1 for number in self.numbers()[-1:])])

    def has_published(self, position: int) -> bool:
        """Whether everything below a position was published."""
        return position <= self.next_number() or position <= self.end()

    def check_published(self, position: int) -> None:
        """Raise if not everything below a position was published, where a mark says that it is done."""
        if not self.has_published(position):
            raise CorruptDataError(
                f"{self.place}: a mark says that everything below {position:,} is done, but the log ends at "
                f"{self.end():,}; purge the queue, or in a directory remove its marks and resume from a checkpoint"
            )

    def meta_with(self, newest: QueueMeta) -> QueueMeta:
        """What the description becomes for another provider; ``StaleSchema`` if this still holds other batches."""
        if self.meta.fingerprint == newest.fingerprint:
            return self.meta.updated(newest, self.place)
        watermark = self.consumed().watermark
        n_waiting = sum(1 for number in self.numbers() if number >= watermark)
        if n_waiting:
            raise StaleSchema(
                f"{self.place}: holds {n_waiting:,} batches of fingerprint {self.meta.fingerprint}, this provider "
                f"makes {newest.fingerprint}; let the trainer read them, or discard them: "
                f"poolish queue purge {self.place}"
            )
        self.meta.check_content(newest.content, self.place)
        return newest

    def raise_watermark(self, watermark: int, known: Mapping[int, BatchMetadata] | None = None) -> range:
        """Everything below ``watermark`` is done. The numbers that became done, to be deleted now.

        ``known`` is the metadata that the caller has read already; the rest is read from the batches.
        """
        with self.locked():
            before = self.consumed()
            if watermark <= before.watermark:
                return range(0)
            self.check_published(watermark)
            done, known = range(before.watermark, watermark), known or {}
            counters = before.counters_with(known.get(n) or self.metadata(n) for n in done)
            self.write_consumed(replace(before, watermark=watermark, counters=counters))
        return done

    def delete_done(self) -> None:
        """Delete everything below the watermark that a killed process left."""
        watermark = self.consumed().watermark
        self.delete(number for number in self.numbers() if number < watermark)

    def write_tombstone(self, number: int, reason: str) -> None:
        """Replace a corrupt or lost batch by a tombstone, which keeps its number."""
        with self.locked():
            if number >= self.consumed().watermark:  # else it was acknowledged meanwhile
                self.bury(number, reason)

    def bury(self, number: int, reason: str) -> None:
        """The same while the lock is held, at any number."""
        lost = self.metadata(number)
        if lost is None or not lost.tombstone:
            stone = tombstone(self.meta.queue, self.meta.schema.fingerprint, reason[:500], lost)
            self.replace(number, stone, reason[:500])

    def skip_removed(self) -> None:
        """Raise the watermark over what was removed from outside, with a warning."""
        with self.locked():
            removed = self.removed()
            if removed:
                before = self.consumed()
                self.write_consumed(replace(before, watermark=removed.stop))
                logger.warning(
                    "%s: all %s waiting batches, %d to %d, were removed by hand; continuing with batch %d",
                    *(self.place, f"{len(removed):,}", removed.start, removed.stop - 1, removed.stop),
                )

    def recover(self) -> None:
        """Clean up after killed processes and power cuts; called by each provider that starts."""
        self.delete_done()
        self.skip_removed()


class Place(Protocol):
    """An address at which every split has a queue; ``str(place)`` is the address."""

    @abstractmethod
    def splits(self) -> list[str]:
        """The splits that have a queue, sorted."""

    @abstractmethod
    def name_of(self, split: str) -> str:
        """Where the queue of a split is, for messages."""

    @abstractmethod
    def meta(self, split: str) -> QueueMeta:
        """The description of a split's queue; ``QueueNotFound`` if there is none."""

    @abstractmethod
    def open(self, split: str, *, read_only: bool = False) -> Log:
        """Open a split's queue; ``QueueNotFound`` if there is none."""

    @abstractmethod
    def create(self, split: str, meta: QueueMeta) -> Log:
        """Open the queue for batches as ``meta`` describes them, or create it; ``StaleSchema`` if it holds others."""

    @abstractmethod
    def purge(self, split: str) -> int:
        """Discard a split's queue in one step; how many batches went. Running processes notice."""
