"""Batches read by threads before they are asked for, in order, so that the trainer does not wait for files.

A *stage* turns a batch that was read into what the trainer gets; on CUDA that begins the copy to the device. Reading
ahead does not hand out: the position moves only when the trainer gets the batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import numpy as np

from poolish.prefetch import Prefetcher, Workers
from poolish.serve.reader import IDLE_S, Batch, SplitReader
from poolish.torch_bridge import DeviceStage, PinnedMemory, from_array, view_of
from poolish.transports.batch_file import Allocate
from poolish.transports.protocols import Waker

_MAX_THREADS = 16  # to copy and check 64 MiB takes a thread 28 ms, beside a GPU that wants one every 5
_STEP_S = 0.05  # how long ``forget`` and ``close`` may wait for a thread that waits for a batch

#: A batch, and what its stage made of it.
Staged = tuple[Batch, Any]


class ReadingAhead:
    """Up to ``depth`` batches of one split, read, verified and staged by threads."""

    def __init__(
        self, reader: SplitReader, depth: int, stage: Callable[[Batch], Any], allocate: Allocate | None = None
    ) -> None:
        self._reader, self._depth, self._stage, self._allocate = reader, depth, stage, allocate
        self._workers = Workers(min(depth, _MAX_THREADS), name="poolish-read")
        self._ahead: Prefetcher[int, int, Staged, Staged] | None = None
        self._is_over = threading.Event()
        self._mine, self._wakers = threading.local(), list[Waker]()

    def take(self, timeout_s: float | None) -> Staged:
        """Return the next batch and what its stage made of it. After an error the next call reads it again."""
        ahead = self._begun()
        if ahead.next_task != self._reader.number():  # an interrupt came between reading a batch and handing it out
            self.forget()
            ahead = self._begun()
        if not ahead.wait(IDLE_S if timeout_s is None else min(IDLE_S, timeout_s)):
            self._reader.delete_acknowledged()
            if not ahead.wait(timeout_s):
                assert timeout_s is not None
                raise self._reader.starved(self._reader.number(), timeout_s)
        try:
            return next(ahead)
        except Exception:
            self.forget()
            raise

    def fill(self) -> None:
        """Begin to read the next batches, up to ``depth``."""
        self._begun()

    def forget(self) -> None:
        """Drop what was read ahead, because the position will change."""
        self._is_over.set()
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None
        self._workers.close()
        self._mine = threading.local()
        while self._wakers:
            self._wakers.pop().close()
        self._is_over = threading.Event()

    def close(self) -> None:
        """End the threads."""
        self.forget()

    def _begun(self) -> Prefetcher[int, int, Staged, Staged]:
        if self._ahead is None:
            self._ahead = Prefetcher(
                self._reader.numbers(),
                lambda number: [number],
                self._read,
                lambda number, read: read[0],
                workers=self._workers,
                n_ahead=self._depth,
                describe=None,
            )
        self._ahead.begin()
        return self._ahead

    def _read(self, number: int) -> Staged:
        is_over = self._is_over
        # Without a timeout: only the waiting trainer knows how long it has waited.
        self._reader.wait(number, None, self._waker(), is_over=is_over.is_set, step_s=_STEP_S)
        if is_over.is_set():
            raise CancelledError  # its task was dropped
        batch = self._reader.read(number, self._allocate)
        return batch, self._stage(batch)

    def _waker(self) -> Waker:
        """Return this thread's own waker."""
        if not hasattr(self._mine, "waker"):
            self._mine.waker = self._reader.log.waker()
            self._wakers.append(self._mine.waker)
        waker: Waker = self._mine.waker
        return waker


class CudaStage:
    """Copies batches to a CUDA device: one copy carries the whole batch, and its tensors are views of it."""

    def __init__(self, device: Any) -> None:
        self._stage, self._pinned = DeviceStage(device, pin=False), PinnedMemory()
        self.allocate = self._pinned.take

    def begin(self, batch: Batch) -> tuple[Batch, Any]:
        """Start copying a batch that was read into memory of ``allocate``."""
        assert isinstance(batch.data, np.ndarray)
        staged = self._stage.begin(from_array(batch.data))
        self._pinned.give_back(batch.data, staged[1])
        return batch, staged

    def finish(self, begun: tuple[Batch, Any]) -> dict[str, Any]:
        """Return the tensors on the device, for use on the current stream."""
        batch, staged = begun
        assert isinstance(batch.data, np.ndarray)
        copied, first = self._stage.finish(staged), batch.data.ctypes.data
        return {
            name: view_of(copied, array.ctypes.data - first, array, dtype)
            for name, (dtype, array) in batch.columns.items()
        }
