"""Batches read by threads before they are asked for, in order, so that the trainer does not wait for files.

A *stage* turns a batch that was read into what the trainer gets; on CUDA that begins the copy to the device. What is
read ahead is not handed out: the position moves only with ``take``.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, wait
from queue import SimpleQueue
from typing import Any

from poolish.serve.batch_file import Allocate
from poolish.serve.split_reader import IDLE_S, Batch, SplitReader
from poolish.serve.watching import Watch

_MAX_THREADS = 16  # to copy and check 64 MiB takes a thread 28 ms, beside a GPU that wants one every 5
_STEP_S = 0.05  # how long ``forget`` and ``close`` may have to wait for a thread that waits


class ReadingAhead:
    """Up to ``depth`` batches of one split, each read, verified and staged by a thread of its own."""

    def __init__(
        self, reader: SplitReader, depth: int, stage: Callable[[Batch], Any], allocate: Allocate | None = None
    ) -> None:
        self._reader, self._depth, self._stage, self._allocate = reader, depth, stage, allocate
        self._pool = _DaemonPool(min(depth, _MAX_THREADS))
        self._ahead: deque[tuple[int, Future[tuple[Batch, Any]]]] = deque()
        self._is_over = threading.Event()
        self._mine, self._watches = threading.local(), list[Watch]()

    def take(self, timeout_s: float | None) -> tuple[Batch, Any]:
        """The next batch and what its stage made of it. After an error the next call reads it again."""
        while self._ahead and self._ahead[0][0] < self._reader.number():
            self._ahead.popleft()  # handed out: only now, so that an interrupted call finds it again
        self.fill()
        number, future = self._ahead[0]
        if not wait([future], IDLE_S if timeout_s is None else min(IDLE_S, timeout_s)).done:
            self._reader.let_go()
        try:
            return future.result(timeout_s)
        except TimeoutError as error:
            if future.done():  # it is the batch's own error, not the end of our patience
                self.forget()
                raise
            assert timeout_s is not None
            raise self._reader.starved(number, timeout_s) from error
        except Exception:
            self.forget()
            raise

    def fill(self) -> None:
        """Begin to read what comes next, up to ``depth`` batches."""
        first = self._reader.number()
        n_old = sum(1 for number, _ in self._ahead if number < first)
        for i in range(len(self._ahead) - n_old, self._depth):
            number = self._reader.number(i)
            self._ahead.append((number, self._pool.submit(self._read, number)))

    def forget(self) -> None:
        """Drop what was read ahead, because the position will be another."""
        self._is_over.set()
        while self._ahead:
            future = self._ahead.popleft()[1]
            if not future.cancel():
                future.exception()  # it ends soon: a wait looks at _is_over
        self._is_over.clear()

    def close(self) -> None:
        """End the threads."""
        self.forget()
        self._is_over.set()
        self._pool.close()
        for watch in self._watches:
            watch.close()

    def _read(self, number: int) -> tuple[Batch, Any]:
        # Without a timeout: how long the trainer has waited is known only where it waits.
        self._reader.wait(number, None, self._watch(), is_over=self._is_over.is_set, step_s=_STEP_S)
        if self._is_over.is_set():
            raise CancelledError
        batch = self._reader.read(number, self._allocate)
        return batch, self._stage(batch)

    def _watch(self) -> Watch:
        """This thread's own."""
        if not hasattr(self._mine, "watch"):
            self._mine.watch = Watch()
            self._watches.append(self._mine.watch)
        watch: Watch = self._mine.watch
        return watch


class _DaemonPool:
    """Threads that do work in the order it comes and do not keep a program alive.

    A trainer that ends without closing its consumer would otherwise wait for ever for a thread that waits for a batch:
    those of ``ThreadPoolExecutor`` are joined at exit, before anything could tell them to stop.
    """

    def __init__(self, n_threads: int) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name="poolish-read", daemon=True) for _ in range(n_threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, function: Callable[[int], Any], number: int) -> Future[Any]:
        future: Future[Any] = Future()

        def work() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(number))
                except BaseException as error:
                    future.set_exception(error)

        self._work.put(work)
        return future

    def close(self) -> None:
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
