"""Threads that read ahead, while results come out in the order of the tasks, as if nobody had read ahead.

    caller's thread                          worker threads
    ---------------                          --------------
    draw tasks, up to n_ahead
    split each, put its parts in a queue --> take a part, read it, keep the piece with its task
    wait for the head                    <-- the last piece of a task wakes the caller
    join its pieces, yield

Only the caller draws tasks and joins pieces, so whatever they decide is decided in one order. With ``"steal"`` there is
one queue: whoever is idle takes the next part of the nearest task, and a slow part delays nobody else. With
``"static"`` part i goes to worker ``i % n``, for readers that keep something open for their share.

A task leaves the line as the last thing before its result is returned. What interrupts the caller before that (Ctrl-C,
a timeout, an error of a part) leaves it at the head, and asking again goes on from there. An interrupt after that loses
the result, never its order: a caller who must not lose it compares the next one's task with the one that is due.
"""

from __future__ import annotations

import _thread
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any, Generic, Literal, Self, TypeVar, get_args

from poolish.errors import ConfigError

__all__ = ["ReadAhead", "Workers"]

Task = TypeVar("Task")
Part = TypeVar("Part")
Piece = TypeVar("Piece")
Result = TypeVar("Result")
Assignment = Literal["steal", "static"]
_Queue = SimpleQueue[Any]

#: How long ``close`` waits for a part that is being read. The threads are daemons, so whoever is later does no harm.
CLOSE_TIMEOUT_S = 5.0


class Workers:
    """Threads for any number of ``ReadAhead``, started at first use and kept until ``close`` or the end of this object.

    ``init(worker_id)`` runs first in each thread; what it raises comes out where the workers are first used. A process
    that was forked from this one starts threads of its own, and so does a use after ``close``.

    >>> with Workers(2) as workers:
    ...     print(workers)
    <Workers: 2 threads, steal, not started>
    """

    def __init__(
        self, n_workers: int, init: Callable[[int], object] | None = None, assignment: Assignment = "steal"
    ) -> None:
        if isinstance(n_workers, bool) or not isinstance(n_workers, int) or n_workers < 1:
            raise ConfigError(f"n_workers must be a whole number from 1 up, got {n_workers!r}")
        if assignment not in get_args(Assignment):
            raise ConfigError(f"assignment must be 'steal' or 'static', got {assignment!r}")
        self.n_workers, self.assignment, self._init = n_workers, assignment, init
        self._crew: _Crew | None = None

    def crew(self) -> _Crew:
        """The threads that work now, started if there are none in this process."""
        crew = self._crew
        if crew is None or crew.pid != os.getpid():
            crew = _Crew(self.n_workers, 1 if self.assignment == "steal" else self.n_workers, self._init)
            # The threads know the queues and not this object, so it is collected as soon as nobody uses it.
            crew.leave = weakref.finalize(self, crew.dismiss)
            crew.start()
            self._crew = crew
        return crew

    def close(self) -> None:
        """End the threads. Parts that nobody has begun are given back to their readers, who ask again."""
        crew, self._crew = self._crew, None
        if crew is not None and crew.pid == os.getpid():
            crew.leave()
            crew.join(CLOSE_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        is_started = self._crew is not None and self._crew.pid == os.getpid()
        return f"<Workers: {self.n_workers} threads, {self.assignment}{'' if is_started else ', not started'}>"


class _Crew:
    """The threads of one process, and the queues from which they take their work."""

    leave: Callable[[], object]

    def __init__(self, n_threads: int, n_queues: int, init: Callable[[int], object] | None) -> None:
        self.pid = os.getpid()
        self.queues: list[_Queue] = [SimpleQueue() for _ in range(n_queues)]
        self._started: _Queue = SimpleQueue()
        self._threads = [
            threading.Thread(
                target=_work,
                args=(self.queues[i % n_queues], i, init, self._started),
                name=f"poolish-worker-{i}",
                daemon=True,
            )
            for i in range(n_threads)
        ]

    def start(self) -> None:
        """Start the threads and wait until each is ready to work.

        A thread of their own starts them. Python interrupts only the main thread, and inside ``Thread.start`` Ctrl-C
        may come out as "release unlocked lock".
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

    def dismiss(self) -> None:
        """Tell the threads to go, without waiting for them."""
        for queue in self.queues:
            try:
                while True:
                    queue.get_nowait()
            except Empty:
                pass
        for i in range(len(self._threads)):
            self.queues[i % len(self.queues)].put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the threads to end, not longer than this; a thread that closes its own workers does not wait."""
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
    # No names for what is taken: while the thread waits they would keep the last batch in memory.
    while _read_one(queue.get()):
        pass


def _read_one(item: tuple[_Job[Any, Any], int] | None) -> bool:
    if item is None:
        return False
    job, index = item
    job.read(index)
    return True


class _Reader(Generic[Part, Piece]):
    """What a ``ReadAhead`` and its parts in the queues share; the queues do not know the ``ReadAhead`` itself."""

    def __init__(self, read: Callable[[Part], Piece], size_of: Callable[[Piece], int] | None) -> None:
        self.read, self.size_of = read, size_of
        self.is_closed = False
        # Nobody owns this lock: releasing it wakes the caller, and waking twice is waking once.
        self.wakes = threading.Lock()
        self.wakes.acquire()

    def wake(self) -> None:
        try:
            self.wakes.release()
        except RuntimeError:  # the caller has not yet slept since the last time
            pass

    def close(self) -> None:
        self.is_closed = True


class _Job(Generic[Part, Piece]):
    """One task on its way: its parts, and what has come of them so far."""

    def __init__(self, reader: _Reader[Part, Piece], drawn: tuple[Any], parts: Sequence[Part]) -> None:
        self.reader, self.drawn, self.parts = reader, drawn, parts
        self.pieces: list[Any] = [None] * len(parts)
        self.sizes = [0] * len(parts)
        self.errors: dict[int, BaseException] = {}
        self.unsent = deque(range(len(parts)))
        # A set, not a count: a part that was sent twice (see _send) is still one part.
        self.left = set(self.unsent)

    def read(self, index: int) -> None:
        """Read one part, in a worker; every single statement here is atomic, so there is no lock."""
        reader = self.reader
        if reader.is_closed:
            return
        try:
            piece = reader.read(self.parts[index])
            if reader.size_of is not None:
                self.sizes[index] = reader.size_of(piece)
            self.pieces[index] = piece
        except BaseException as error:
            self.errors[index] = error
        self.left.discard(index)
        if not self.left:
            reader.wake()

    def failure(self) -> tuple[int, BaseException]:
        """The first part that could not be read, and why; all of those will be read again."""
        index = min(self.errors)
        error = self.errors[index]
        self.left, self.unsent = set(self.errors), deque(sorted(self.errors))
        self.errors = {}
        return index, error


class ReadAhead(Generic[Task, Part, Piece, Result]):
    """The results of ``tasks``, in their order, read by ``workers`` up to ``n_ahead`` tasks at a time.

    ``split(task)`` gives its parts, ``read(part)`` runs in a worker, ``join(task, pieces)`` makes the result. Parts
    should be small: one is the least that a worker can take over from another, and costs less than 1 us.

    What ``read`` raises comes out when its task is next, with a note that names the part by ``describe``; the task
    stays next, and asking again reads again what failed. With ``timeout``, so many seconds without a result are a
    TimeoutError. With ``max_bytes`` fewer tasks are begun, so that the pieces that wait or are being read have no more
    bytes by ``size_of``, those not read yet taken as of average size; one task is always begun. For one consumer.

    >>> with Workers(2) as workers:
    ...     tasks = iter([[1, 2, 3], [4]])
    ...     list(ReadAhead(tasks, list, lambda i: 2 * i, lambda task, pieces: pieces, workers=workers, n_ahead=2))
    [[2, 4, 6], [8]]
    """

    def __init__(
        self,
        tasks: Iterator[Task],
        split: Callable[[Task], Sequence[Part]],
        read: Callable[[Part], Piece],
        join: Callable[[Task, list[Piece]], Result],
        *,
        workers: Workers,
        n_ahead: int,
        max_bytes: int | None = None,
        size_of: Callable[[Piece], int] | None = None,
        timeout: float = 0,
        describe: Callable[[Part], str] = repr,
    ) -> None:
        if n_ahead < 1:
            raise ConfigError(f"n_ahead must be at least 1, the task that is next, got {n_ahead}")
        if max_bytes is not None and size_of is None:
            raise ConfigError("max_bytes needs size_of, which says how many bytes a piece has")
        if timeout < 0:
            raise ConfigError(f"timeout must be 0 (wait for ever) or a number of seconds, got {timeout}")
        # Tasks one by one in tuples, so that each drawing is an object of its own.
        self._source, self._split, self._join, self._describe = zip(tasks, strict=False), split, join, describe
        self._workers, self._n_ahead, self._max_bytes, self._timeout = workers, n_ahead, max_bytes, timeout
        self._reader = _Reader(read, size_of)
        weakref.finalize(self, self._reader.close)
        self._crew: _Crew | None = None
        self._drawn: deque[tuple[Task]] = deque()  # a task that has no job yet
        self._jobs: deque[_Job[Part, Piece]] = deque()
        self._postponed: Exception | None = None
        self._is_over = False
        self._n_seen = self._bytes_seen = 0

    def __iter__(self) -> Self:
        return self

    def begin(self) -> None:
        """Let the workers begin with the first task, before anybody asks for its result."""
        self._draw()
        self._send()

    def __next__(self) -> Result:
        try:
            self.begin()
            is_over = not self._jobs
            if is_over and self._postponed is not None:
                raise self._take_postponed()
            result = None if is_over else self._finished(self._jobs[0])
        except StopIteration as error:
            raise RuntimeError("StopIteration came from a function that reads; it would end the epoch early") from error
        if is_over:
            raise StopIteration
        del self._jobs[0]
        return result  # type: ignore[return-value]

    @property
    def is_ready(self) -> bool:
        """Whether the next result is there, so that asking for it waits for nothing."""
        return bool(self._jobs) and not self._jobs[0].left

    def close(self) -> None:
        """Forget all tasks. A part that is being read is finished by its worker and thrown away."""
        self._reader.close()
        self._is_over, self._postponed = True, None
        self._jobs.clear()
        self._drawn.clear()

    def _draw(self) -> None:
        while self._postponed is None and self._has_room():
            try:
                self._draw_one()
            except Exception as error:
                # Raised when it is its turn: the tasks before it are in order.
                self._postponed = error

    def _draw_one(self) -> None:
        """One more job, or the end; an interrupt anywhere leaves the task drawn, or at the end of the line."""
        if self._drawn and self._jobs and self._jobs[-1].drawn is self._drawn[0]:
            self._drawn.clear()
        if not self._drawn:
            # In one call, written in C: an interrupt cannot lose a task between drawing and keeping it.
            self._drawn.extend(islice(self._source, 1))
        if not self._drawn:
            self._is_over = True
            return
        drawn = self._drawn[0]
        self._jobs.append(_Job(self._reader, drawn, self._split(*drawn)))
        self._drawn.clear()

    def _has_room(self) -> bool:
        if self._is_over or len(self._jobs) >= self._n_ahead:
            return False
        if self._max_bytes is None or not self._jobs:
            return True
        n_parts = sum(len(job.parts) for job in self._jobs)
        n_read = n_parts - sum(len(job.left) for job in self._jobs)
        n_bytes = sum(sum(job.sizes) for job in self._jobs)
        n_known = self._n_seen + n_read
        if not n_known:
            return False
        average = (self._bytes_seen + n_bytes) / n_known
        n_to_come = n_parts - n_read + len(self._jobs[-1].parts)
        return n_bytes + n_to_come * average <= self._max_bytes

    def _send(self) -> None:
        crew = self._workers.crew()
        if crew is not self._crew:
            # The former workers were closed, or are threads of the process that this one was forked from.
            for job in self._jobs:
                job.unsent = deque(sorted(job.left))
            self._crew = crew
        queues = crew.queues
        for job in self._jobs:
            while job.unsent:
                index = job.unsent[0]
                queues[index % len(queues)].put((job, index))
                # An interrupt here sends the part twice. The other way round it would never be sent.
                del job.unsent[0]

    def _finished(self, job: _Job[Part, Piece]) -> Result:
        self._wait(job)
        if not self._n_seen:  # now it is known how large a task is: the next ones are read while the caller works
            self.begin()
        if job.errors:
            index, error = job.failure()
            note = f"while reading {self._describe(job.parts[index])}"
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)
            raise error
        result = self._join(*job.drawn, job.pieces)
        self._n_seen += len(job.parts)
        self._bytes_seen += sum(job.sizes)
        return result

    def _wait(self, job: _Job[Part, Piece]) -> None:
        deadline = time.monotonic() + self._timeout
        while job.left:
            # Waiting for a lock ends at once when a signal comes: Ctrl-C works, and needs no polling.
            rest = max(0.0, deadline - time.monotonic()) if self._timeout else -1
            if not self._reader.wakes.acquire(timeout=rest) and job.left:
                raise self._too_late(job)

    def _too_late(self, job: _Job[Part, Piece]) -> TimeoutError:
        left = sorted(job.left)
        more = f" and {len(left) - 1} more parts" if len(left) > 1 else ""
        return TimeoutError(
            f"no result in {self._timeout} s; still reading {self._describe(job.parts[left[0]])}{more}; "
            "raise timeout, use more workers, or see why reading is slow. Asking again goes on waiting"
        )

    def _take_postponed(self) -> Exception:
        error, self._postponed = self._postponed, None
        assert error is not None
        return error
