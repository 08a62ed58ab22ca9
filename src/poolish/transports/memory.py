"""Queues in the memory of one process, ``memory://NAME``, for providers and consumers in its threads; without files.

The same protocol as a directory, without its durability: a queue lives until it is purged or its process ends, and a
forked child starts without any.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np

from poolish.errors import QueueError, StoreLocked
from poolish.files import check_name
from poolish.transports.batch_columns import Array
from poolish.transports.batch_file import Allocate, as_bytes
from poolish.transports.meta import QueueMeta, not_found
from poolish.transports.protocols import (
    Claim,
    Consumed,
    Counters,
    Log,
    Marks,
    Place,
    ProviderRecord,
    Providers,
    Waker,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

SCHEME = "memory"


class _Queue:
    """What all handles of one split share, guarded by its lock."""

    def __init__(self, place: str, split: str, meta: QueueMeta) -> None:
        self.place, self.split, self.meta = place, split, meta
        self.lock = threading.RLock()
        self.batches: dict[int, Array] = {}
        self.published_at: dict[int, float] = {}
        self.next_number = 0
        self.consumed = Consumed()
        self.dead: list[float] = []
        self.attempt: tuple[int, dict[str, Any]] | None = None
        self.marks: dict[tuple[str, int], tuple[int, ...]] = {}
        self.claims: dict[tuple[str, str], bool] = {}  # kind and name -> whether it is held now
        self.records: dict[str, ProviderRecord] = {}
        self.recorded_at: float | None = None
        self.wakers: WeakSet[threading.Event] = WeakSet()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock, and wake everyone who watches."""
        with self.lock:
            yield
            for waker in self.wakers:
                waker.set()


_REGISTRY_LOCK = threading.Lock()
_QUEUES: dict[tuple[str, str], _Queue] = {}


def _start_empty() -> None:
    """Forget all queues in a forked child, which would read copies that its parent no longer fills."""
    global _REGISTRY_LOCK
    _REGISTRY_LOCK = threading.Lock()
    _QUEUES.clear()


os.register_at_fork(after_in_child=_start_empty)


def _find(place: str, split: str) -> _Queue | None:
    with _REGISTRY_LOCK:
        return _QUEUES.get((place, split))


class MemoryWaker(Waker):
    """``Waker`` of queues in memory."""

    def __init__(self, place: str) -> None:
        self._place, self._changed = place, threading.Event()

    def watch(self, split: str, marks: str | None = None) -> None:
        queue = _find(self._place, split)
        if queue is not None:
            with queue.lock:
                queue.wakers.add(self._changed)

    def wait(self, timeout_s: float) -> None:
        self._changed.wait(timeout_s)
        self._changed.clear()


class _Claim(Claim):
    """``Claim`` on a name of a kind."""

    def __init__(self, queue: _Queue, kind: str, name: str) -> None:
        self._queue, self._key, self._is_held = queue, (kind, name), False

    def acquire(self) -> None:
        with self._queue.changing():
            if self._queue.claims.get(self._key):
                kind, name = self._key
                place = f"{self._queue.place}: {kind} {name}"
                raise StoreLocked(f"{place} is held in this process; close the other handle first", filename=place)
            self._queue.claims[self._key] = self._is_held = True

    def release(self) -> None:
        with self._queue.changing():
            if self._is_held:
                self._queue.claims[self._key] = self._is_held = False


class _Counters(Counters):
    """``Counters`` of a rank."""

    def __init__(self, queue: _Queue, name: str, rank: int) -> None:
        self._queue, self._key = queue, (name, rank)

    def read(self) -> tuple[int, ...] | None:
        with self._queue.lock:
            return self._queue.marks.get(self._key)

    def write(self, *counters: int) -> None:
        with self._queue.changing():
            self._queue.marks[self._key] = counters


class _Marks(Marks):
    """``Marks`` in memory."""

    def __init__(self, queue: _Queue) -> None:
        self._queue = queue

    def version(self) -> int | None:
        with self._queue.lock:
            return self._queue.attempt[0] if self._queue.attempt else None

    def read(self) -> dict[str, Any] | None:
        with self._queue.lock:
            return dict(self._queue.attempt[1]) if self._queue.attempt else None

    def begin(self, name: str, record: dict[str, Any]) -> None:
        with self._queue.changing():
            self._queue.attempt = (self.version() or 0) + 1, dict(record)
            self._queue.marks = {key: mark for key, mark in self._queue.marks.items() if key[0] == name}

    def counters(self, name: str, rank: int, n: int) -> _Counters:
        return _Counters(self._queue, name, rank)

    def claim(self, rank: int) -> _Claim:
        return _Claim(self._queue, "rank", str(rank))

    def alive(self) -> list[int]:
        with self._queue.lock:
            held = [name for (kind, name), is_held in self._queue.claims.items() if kind == "rank" and is_held]
        return sorted(map(int, held))


class _Providers(Providers):
    """``Providers`` in memory."""

    def __init__(self, queue: _Queue) -> None:
        self._queue = queue

    def claim(self, name: str) -> _Claim:
        return _Claim(self._queue, "provider", check_name(name, "provider"))

    def read(self, name: str, *, strict: bool = False) -> ProviderRecord:
        with self._queue.lock:
            return self._queue.records.get(name, ProviderRecord())

    def write(self, name: str, record: ProviderRecord) -> None:
        with self._queue.changing():
            self._queue.records[name] = record
            self._queue.recorded_at = time.time()

    def known(self) -> dict[str, tuple[ProviderRecord, bool]]:
        with self._queue.lock:
            claims = sorted((name, held) for (kind, name), held in self._queue.claims.items() if kind == "provider")
            return {name: (self.read(name), is_held) for name, is_held in claims}

    def changed_at(self) -> float | None:
        with self._queue.lock:
            return self._queue.recorded_at


class MemoryLog(Log):
    """``Log`` in memory: one handle of it."""

    def __init__(self, queue: _Queue) -> None:
        self._queue = queue
        self.place, self.split, self.meta = f"{queue.place}/{queue.split}", queue.split, queue.meta
        self.marks, self.providers = _Marks(queue), _Providers(queue)

    def read_meta(self) -> QueueMeta:
        self.check_same()
        return self._queue.meta

    @contextmanager
    def locked(self) -> Iterator[None]:
        with self._queue.lock:
            self.check_same()
            yield

    def check_same(self) -> None:
        now = _find(self._queue.place, self.split)
        if now is not self._queue or now.meta.queue != self.meta.queue:
            what = "removed" if now is None else "purged and created again"
            raise QueueError(f"{self.place}: the queue was {what} meanwhile; start its provider, then this side again")

    # -- batches

    def publish(self, buffers: Iterable[Buffer], provider: str) -> int:
        batch = np.frombuffer(b"".join(buffers), np.uint8)
        with self.locked(), self._queue.changing():
            number = self._queue.next_number
            self._queue.batches[number], self._queue.published_at[number] = batch, time.time()
            self._queue.next_number += 1
        return number

    def has(self, number: int) -> bool:
        with self._queue.lock:
            return number in self._queue.batches

    def read(self, number: int, allocate: Allocate | None = None) -> Array:
        batch = self._batch(number)
        if batch is None:
            raise FileNotFoundError(2, "no such batch", self.name_of(number))
        target = np.empty(batch.nbytes, np.uint8) if allocate is None else allocate(batch.nbytes)
        np.frombuffer(as_bytes(target), np.uint8)[:] = batch
        return target

    def _batch(self, number: int) -> Array | None:
        with self._queue.lock:
            return self._queue.batches.get(number)

    def name_of(self, number: int) -> str:
        return f"{self.place}/{number}"

    def published_at(self, number: int) -> float | None:
        with self._queue.lock:
            return self._queue.published_at.get(number)

    def numbers(self) -> list[int]:
        with self._queue.lock:
            return sorted(self._queue.batches)

    def n_bytes(self) -> int:
        with self._queue.lock:
            watermark = self._queue.consumed.watermark
            return sum(batch.nbytes for number, batch in self._queue.batches.items() if number >= watermark)

    def free_bytes(self) -> int:
        try:
            return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (ValueError, OSError):
            return 2**62

    def next_number(self) -> int:
        with self._queue.lock:
            return self._queue.next_number

    # -- done

    def consumed(self) -> Consumed:
        with self._queue.lock:
            return self._queue.consumed

    def write_consumed(self, consumed: Consumed) -> None:
        with self._queue.changing():
            self._queue.consumed = consumed

    def delete(self, numbers: Iterable[int]) -> None:
        with self._queue.changing():
            for number in numbers:
                self._queue.batches.pop(number, None)
                self._queue.published_at.pop(number, None)

    def replace(self, number: int, stone: Iterable[Buffer], reason: str) -> None:
        with self._queue.changing():
            self._queue.batches[number] = np.frombuffer(b"".join(stone), np.uint8)
            self._queue.dead.append(time.time())

    def dead(self) -> list[float]:
        with self._queue.lock:
            return list(self._queue.dead)

    def waker(self) -> MemoryWaker:
        return MemoryWaker(self._queue.place)


class MemoryPlace(Place):
    """``Place`` of ``memory://NAME``.

    >>> place = MemoryPlace("memory://doctest")
    >>> place.splits(), place.name_of("train")
    ([], 'memory://doctest/train')
    """

    def __init__(self, address: str) -> None:
        self._name = f"{SCHEME}://{check_name(address.removeprefix(f'{SCHEME}://'), 'memory queue')}"

    def __str__(self) -> str:
        return self._name

    def splits(self) -> list[str]:
        with _REGISTRY_LOCK:
            return sorted(split for name, split in _QUEUES if name == self._name)

    def name_of(self, split: str) -> str:
        return f"{self._name}/{split}"

    def meta(self, split: str) -> QueueMeta:
        return self._queue(split).meta

    def open(self, split: str, *, read_only: bool = False) -> MemoryLog:
        return MemoryLog(self._queue(split))

    def create(self, split: str, meta: QueueMeta) -> MemoryLog:
        with _REGISTRY_LOCK:
            queue = _QUEUES.setdefault((self._name, split), _Queue(self._name, split, meta))
        log = MemoryLog(queue)
        with log.locked():
            queue.meta = log.meta_with(meta)
        return MemoryLog(queue)

    def purge(self, split: str) -> int:
        with _REGISTRY_LOCK:
            queue = _QUEUES.pop((self._name, split), None)
        if queue is None:
            raise not_found(self.name_of(split))
        with queue.changing():
            return len(queue.batches)

    def _queue(self, split: str) -> _Queue:
        queue = _find(self._name, split)
        if queue is None:
            raise not_found(self.name_of(split))
        return queue
