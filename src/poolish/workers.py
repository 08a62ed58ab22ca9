"""Daemon threads that take work from queues, and calls with a time-out.

All threads are daemons: the threads of ``ThreadPoolExecutor`` are joined at exit, however long a task takes.
"""

from __future__ import annotations

import _thread
import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Literal, Self, get_args

from poolish.concurrency import WeakRegistry
from poolish.errors import ConfigError

Assignment = Literal["steal", "static"]
#: Items are (function, argument); None ends the thread that takes it.
_Queue = SimpleQueue[Any]

#: How long ``close`` waits for a part that is being read.
CLOSE_TIMEOUT_S = 5.0


class Workers:
    """Threads for any number of users (``Prefetcher``), started at first use, ended by ``close`` or with this object.

    ``init(worker_id)`` runs first in each thread; its errors are raised where the workers are first used. A forked
    process starts its own threads, and so does a use after ``close``. With ``grace_s`` the interpreter waits that
    long at exit for running parts.

    >>> with Workers(2) as workers:
    ...     print(workers)
    <Workers: 2 threads, steal, not started>
    """

    def __init__(
        self,
        n_workers: int,
        init: Callable[[int], object] | None = None,
        assignment: Assignment = "steal",
        *,
        name: str = "poolish-worker",
        grace_s: float = 0,
    ) -> None:
        if isinstance(n_workers, bool) or not isinstance(n_workers, int) or n_workers < 1:
            raise ConfigError(f"n_workers must be a whole number from 1 up, got {n_workers!r}")
        if assignment not in get_args(Assignment):
            raise ConfigError(f"assignment must be 'steal' or 'static', got {assignment!r}")
        self.n_workers, self.assignment = n_workers, assignment
        self._init, self._name, self._grace_s = init, name, grace_s
        self._threads: ThreadGroup | None = None

    def threads(self) -> ThreadGroup:
        """Return the running threads, started if this process has none."""
        threads = self._threads
        if threads is None or threads.pid != os.getpid():
            n_queues = 1 if self.assignment == "steal" else self.n_workers
            threads = ThreadGroup(self.n_workers, n_queues, self._init, self._name)
            # The threads know the queues and not this object, so it is collected with its last reference.
            threads.leave = weakref.finalize(self, threads.dismiss)
            if self._grace_s:
                _join_at_exit(threads, self._grace_s)
            threads.start()
            self._threads = threads
        return threads

    def close(self, *, wait: bool = True) -> None:
        """End the threads, and wait for running parts up to ``CLOSE_TIMEOUT_S``; queued parts return to their line."""
        threads, self._threads = self._threads, None
        if threads is not None and threads.pid == os.getpid():
            threads.leave()
            if wait:
                threads.join(CLOSE_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        is_started = self._threads is not None and self._threads.pid == os.getpid()
        return f"<Workers: {self.n_workers} threads, {self.assignment}{'' if is_started else ', not started'}>"


class ThreadGroup:
    """The threads of one process, and the queues from which they take their work."""

    leave: Callable[[], object]

    def __init__(self, n_threads: int, n_queues: int, init: Callable[[int], object] | None, name: str) -> None:
        self.pid = os.getpid()
        self.queues: list[_Queue] = [SimpleQueue() for _ in range(n_queues)]
        self._started: _Queue = SimpleQueue()
        self._threads = [
            threading.Thread(
                target=_work, args=(self.queues[i % n_queues], i, init, self._started), name=f"{name}-{i}", daemon=True
            )
            for i in range(n_threads)
        ]

    def start(self) -> None:
        """Start the threads and wait until each is ready to work.

        A helper thread starts them: Python interrupts only the main thread, and inside ``Thread.start`` Ctrl-C
        can surface as "release unlocked lock".
        """
        try:
            _thread.start_new_thread(self._start_all, ())
            for _ in self._threads:
                worker_id, error = self._started.get()
                if error is not None:
                    error.add_note(f"while starting worker {worker_id}")
                    raise error
        except BaseException:
            self.dismiss()
            raise

    def _start_all(self) -> None:
        for i, thread in enumerate(self._threads):
            try:
                thread.start()
            except BaseException as error:  # no more threads: raised where they are waited for
                self._started.put((i, error))

    def all(self) -> list[threading.Thread]:
        """Return the threads."""
        return self._threads

    def dismiss(self) -> None:
        """Drop all queued work and end the threads, without waiting for them."""
        for queue in self.queues:
            try:
                while True:
                    queue.get_nowait()
            except Empty:
                pass
        for i in range(len(self._threads)):
            self.queues[i % len(self.queues)].put(None)

    def join(self, timeout_s: float) -> None:
        """Wait up to ``timeout_s`` for the threads; a thread that closes its own workers does not wait for itself."""
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))


def _work(queue: _Queue, worker_id: int, init: Callable[[int], object] | None, started: _Queue) -> None:
    try:
        if init is not None:
            init(worker_id)
    except BaseException as error:
        started.put((worker_id, error))
        return
    started.put((worker_id, None))
    # No names for queue items: while the thread waits they would keep the last batch in memory.
    while _run_one(queue.get()):
        pass


def _run_one(item: tuple[Callable[[Any], None], Any] | None) -> bool:
    if item is None:
        return False
    function, argument = item
    function(argument)
    return True


_at_exit: WeakRegistry[ThreadGroup] = WeakRegistry()
#: Threads by themselves: their group is gone once it is closed, while a thread that runs is not.
_running: WeakRegistry[threading.Thread] = WeakRegistry()
_longest_grace_s = 0.0


def _join_at_exit(threads: ThreadGroup, grace_s: float) -> None:
    global _longest_grace_s
    _longest_grace_s = max(_longest_grace_s, grace_s)
    _at_exit.add(threads)
    for thread in threads.all():
        _running.add(thread)


@atexit.register
def _join_all() -> None:
    # A thread that returns from Arrow while the interpreter shuts down can abort the process; most are back by then.
    deadline = time.monotonic() + _longest_grace_s
    for threads in _at_exit:
        threads.dismiss()
    for thread in _running:
        if thread.is_alive():  # one of the process that this one was forked from is not
            thread.join(max(0.0, deadline - time.monotonic()))


# Calls with a time-out --------------------------------------------------------------------------------------------


class CallTimeout(Exception):
    """A call took longer than allowed."""


class TimedCalls:
    """A function whose calls may take ``timeout_s`` each; for one thread at a time, which closes it in the end.

    A thread makes the calls. Nothing can stop a running Python function from outside, so a thread that hangs is
    abandoned with its memory, and the next call starts another one.

    >>> calls = TimedCalls(lambda row: {**row, "loaves": 3}, timeout_s=30)
    >>> calls({"flour": "rye"})
    {'flour': 'rye', 'loaves': 3}
    >>> calls.close()
    """

    def __init__(self, function: Callable[..., Any], timeout_s: float) -> None:
        self._function, self._timeout_s = function, timeout_s
        self._workers = Workers(1, name="poolish-step")

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Return the function's result or raise its error; CallTimeout if neither comes in time."""
        answers: _Queue = SimpleQueue()

        def call(_: None) -> None:
            try:
                answers.put((self._function(*arguments, **options), None))
            except BaseException as error:  # the caller's to handle, whatever it is
                answers.put((None, error))

        self._workers.threads().queues[0].put((call, None))
        try:
            result, error = answers.get(timeout=self._timeout_s)
        except Empty:
            self.close()
            raise CallTimeout from None
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """End the thread, or abandon it if it hangs."""
        self._workers.close(wait=False)
