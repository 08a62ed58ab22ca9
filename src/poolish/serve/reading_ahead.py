"""Batches read by threads before they are asked for, in order, so that the trainer does not wait for files.

A *stage* turns a batch that was read into what the trainer gets; on CUDA that begins the copy to the device. Reading
ahead does not hand out: the position moves only when the trainer gets the batch.
"""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError
from typing import Any

import numpy as np

from poolish.prefetch import Prefetcher
from poolish.ragged import Ragged
from poolish.serve.reader import IDLE_S, Batch, SplitReader, Staged
from poolish.torch_bridge import DeviceStage, PinnedMemory, from_array, view_of
from poolish.transports.batch_columns import TEXT, Array, converted
from poolish.transports.protocols import Waker
from poolish.workers import Workers

_MAX_THREADS = 16  # to copy and check 64 MiB takes a thread 28 ms, beside a GPU that wants one every 5
_STEP_S = 0.05  # how long ``forget`` and ``close`` may wait for a thread that waits for a batch


class ReadingAhead:
    """Up to ``depth`` batches of one split, read, verified and staged by threads."""

    def __init__(self, reader: SplitReader, depth: int, stage: CudaStage | None) -> None:
        self._reader, self._depth, self._stage = reader, depth, stage
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

    def handed_out(self, batch: Batch) -> None:
        """The arrays of a batch go to the trainer: begin to read the next ones, up to ``depth``."""
        self._reader.handed_out(batch)
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
        if self._stage is None:
            return self._reader.read(number), None
        return self._stage.begin(self._reader.read(number, self._stage.allocate))

    def _waker(self) -> Waker:
        """Return this thread's own waker."""
        if not hasattr(self._mine, "waker"):
            self._mine.waker = self._reader.log.waker()
            self._wakers.append(self._mine.waker)
        waker: Waker = self._mine.waker
        return waker


class CudaStage:
    """Copies batches to a CUDA device: one copy carries the whole batch, and its tensors are views of it.

    ``keeps_columns``: its arrays stay readable on the CPU too, for a guard.
    """

    def __init__(self, device: Any, *, keeps_columns: bool) -> None:
        self._stage, self._pinned = DeviceStage(device, pin=False), PinnedMemory()
        self._keeps_columns = keeps_columns
        self.allocate = self._pinned.take

    def begin(self, batch: Batch) -> Staged:
        """Start copying a batch that was read into memory of ``allocate``."""
        assert isinstance(batch.data, np.ndarray)
        kept, columns = batch, batch.columns
        if self._keeps_columns:  # before its memory is another batch's
            kept = batch._replace(columns={name: (dtype, _copied(each)) for name, (dtype, each) in columns.items()})
        # Text stays here, so it is decoded before its memory is another batch's.
        texts = converted({name: column for name, column in columns.items() if column[0] in TEXT}, from_array)
        staged = self._stage.begin(from_array(batch.data))
        self._pinned.give_back(batch.data, staged[1])
        return kept, (batch, texts, staged)

    def finish(self, begun: Any) -> dict[str, Any]:
        """Return the tensors on the device, for use on the current stream; text is a list as on the CPU."""
        batch, texts, staged = begun
        assert isinstance(batch.data, np.ndarray)
        copied, first = self._stage.finish(staged), batch.data.ctypes.data

        def view(array: Array, dtype: str) -> Any:
            return view_of(copied, array.ctypes.data - first, array, dtype)

        moved = converted({name: column for name, column in batch.columns.items() if name not in texts}, view)
        return {name: texts[name] if name in texts else moved[name] for name in batch.columns}


def _copied(column: Array | Ragged) -> Array | Ragged:
    return Ragged(column.values.copy(), column.offsets.copy()) if isinstance(column, Ragged) else column.copy()
