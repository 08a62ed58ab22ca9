"""Threads that work ahead: results in the order of the tasks.

    caller's thread                          worker threads
    ---------------                          --------------
    draw tasks, up to n_ahead
    split each, queue its parts          --> take a part, read it, store the piece with its task
    wait for the head                    <-- the last piece of a task wakes the caller
    join its pieces, yield

Only the caller draws tasks and joins pieces, so their decisions happen in one order. With ``"steal"`` there is
one queue: an idle worker takes the next part of the nearest task, and a slow part delays no other. With
``"static"`` part i goes to worker ``i % n``, for readers that keep something open for their share.

A task leaves the line as the last thing before its result is returned. An interrupt before that (Ctrl-C, a time-out,
an error of a part) leaves it at the head, and asking again continues there. An interrupt after that loses
the result, never its order: a caller that must not lose it compares the next task with the one that is due.
"""

from __future__ import annotations

import functools
import operator
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Generic, NamedTuple, Self, TypeVar

from poolish.errors import ConfigError
from poolish.workers import ThreadGroup, Workers

Task = TypeVar("Task")
Part = TypeVar("Part")
Piece = TypeVar("Piece")
Result = TypeVar("Result")
#: How long a wait for a result lasts at most: a signal that arrives just before a wait does not end it.
_POLL_S = 0.2


class _Reader(Generic[Part, Piece]):
    """What a ``Prefetcher`` and its queued parts share; the queues do not know the ``Prefetcher`` itself."""

    def __init__(self, read: Callable[[Part], Piece], size_of: Callable[[Piece], int] | None, fails_fast: bool) -> None:
        self.read, self.size_of, self.fails_fast = read, size_of, fails_fast
        self.is_closed = self.has_failed = False
        # No thread owns this lock: releasing it wakes the caller, and waking twice is waking once.
        self.wakes = threading.Lock()
        self.wakes.acquire()

    def wake(self) -> None:
        try:
            self.wakes.release()
        except RuntimeError:  # the caller has not slept since the last time
            pass

    def close(self) -> None:
        self.is_closed = True

    def fail(self) -> None:
        """Begin no further part, and wake the caller at once."""
        self.is_closed = self.has_failed = True
        self.wake()


class _Job(Generic[Part, Piece]):
    """One task in progress: its parts, and their pieces or errors so far."""

    def __init__(self, reader: _Reader[Part, Piece], drawn: tuple[Any], parts: Sequence[Part]) -> None:
        self.reader, self.drawn, self.parts = reader, drawn, parts
        self.pieces: list[Any] = [None] * len(parts)
        self.sizes = [0] * len(parts)
        self.errors: dict[int, BaseException] = {}
        self.unsent = deque(range(len(parts)))
        # A set, not a count: a part that was sent twice (see _send) is still one part.
        self.left = set(self.unsent)

    def read(self, index: int) -> None:
        """Read one part, in a worker; each statement is one atomic change, so there is no lock."""
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
            if reader.fails_fast:
                reader.fail()
        self.left.discard(index)
        if not self.left:
            reader.wake()

    def failure(self) -> tuple[int, BaseException]:
        """Return the first part that failed and its error, and queue all failed parts again."""
        index = min(self.errors)
        error = self.errors[index]
        self.left, self.unsent = set(self.errors), deque(sorted(self.errors))
        self.errors = {}
        return index, error


class Prefetcher(Generic[Task, Part, Piece, Result]):
    """The results of ``tasks``, in their order, read by ``workers`` up to ``n_ahead`` tasks at a time.

    ``split(task)`` gives its parts, ``read(part)`` runs in a worker, ``join(task, pieces)`` makes the result. Parts
    should be small: a part is the least that a worker can take over from another, and costs less than 1 us.

    An error of ``read`` is raised when its task is next, with a note that names the part by ``describe``; the task
    stays next, and asking again reads the failed parts again. With ``fail_fast`` it is raised at the next call,
    nothing further begins, and every later call raises it again. ``timeout`` seconds without a result are a
    TimeoutError. ``max_bytes`` bounds the pieces that wait or are being read, measured by ``size_of``, unread ones
    estimated at average size; one task is always begun. For one consumer.

    >>> with Workers(2) as workers:
    ...     tasks = iter([[1, 2, 3], [4]])
    ...     list(Prefetcher(tasks, list, lambda i: 2 * i, lambda task, pieces: pieces, workers=workers, n_ahead=2))
    [[2, 4, 6], [8]]
    """

    def __init__(
        self,
        tasks: Iterable[Task],
        split: Callable[[Task], Sequence[Part]],
        read: Callable[[Part], Piece],
        join: Callable[[Task, list[Piece]], Result],
        *,
        workers: Workers,
        n_ahead: int,
        max_bytes: int | None = None,
        size_of: Callable[[Piece], int] | None = None,
        timeout: float = 0,
        describe: Callable[[Part], str] | None = repr,
        fail_fast: bool = False,
    ) -> None:
        if n_ahead < 1:
            raise ConfigError(f"n_ahead must be at least 1, the task that is next, got {n_ahead}")
        if max_bytes is not None and size_of is None:
            raise ConfigError("max_bytes needs size_of, which returns the bytes of a piece")
        if timeout < 0:
            raise ConfigError(f"timeout must be 0 (wait for ever) or a number of seconds, got {timeout}")
        # Each task in a tuple of its own, so that every drawing is a distinct object.
        self._source, self._split, self._join, self._describe = zip(tasks, strict=False), split, join, describe
        self._workers, self._n_ahead, self._max_bytes, self._timeout = workers, n_ahead, max_bytes, timeout
        self._reader = _Reader(read, size_of, fail_fast)
        weakref.finalize(self, self._reader.close)
        self._threads: ThreadGroup | None = None
        self._drawn: deque[tuple[Task]] = deque()  # a task that has no job yet
        self._jobs: deque[_Job[Part, Piece]] = deque()
        self._postponed: Exception | None = None
        self._is_over = False
        self._n_seen = self._bytes_seen = 0

    def __iter__(self) -> Self:
        return self

    def begin(self) -> None:
        """Start the workers on the next tasks, before their results are asked for."""
        if not self._reader.has_failed:
            self._draw()
            self._send()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Begin, and wait up to ``timeout_s`` for the next result; return whether ``next`` would not wait."""
        self.begin()
        return not self._jobs or self._wait(self._jobs[0], timeout_s)

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
        """Whether the next result is complete, so that ``next`` would not wait."""
        return bool(self._jobs) and not self._jobs[0].left

    @property
    def next_task(self) -> Task | None:
        """The task whose result is next, if it has begun."""
        return self._jobs[0].drawn[0] if self._jobs else None

    def close(self) -> None:
        """Drop all tasks. A worker finishes the part it is reading, and its piece is dropped."""
        self._reader.close()
        self._is_over, self._postponed = True, None
        self._jobs.clear()
        self._drawn.clear()

    def _draw(self) -> None:
        while self._postponed is None and self._has_room():
            try:
                self._draw_one()
            except Exception as error:
                # Raised in its turn: the tasks before it are in order.
                self._postponed = error

    def _draw_one(self) -> None:
        """Add a job, or note the end; an interrupt anywhere leaves the task drawn, or at the end of the line."""
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
        if not self._jobs:
            return
        threads = self._workers.threads()
        if threads is not self._threads:
            # The former threads were closed, or belong to the process that this one was forked from.
            for job in self._jobs:
                job.unsent = deque(sorted(job.left))
            self._threads = threads
        queues = threads.queues
        for job in self._jobs:
            while job.unsent:
                index = job.unsent[0]
                queues[index % len(queues)].put((job.read, index))
                # An interrupt here sends the part twice. The other way round it would never be sent.
                del job.unsent[0]

    def _finished(self, job: _Job[Part, Piece]) -> Result:
        if not self._wait(job, self._timeout or None):
            raise self._too_late(job)
        if self._reader.has_failed:
            raise next(min(each.errors.items())[1] for each in list(self._jobs) if each.errors)
        if not self._n_seen:  # now it is known how large a task is: the next ones are read while the caller works
            self.begin()
        if job.errors:
            index, error = job.failure()
            self._add_note(error, job.parts[index])
            raise error
        result = self._join(*job.drawn, job.pieces)
        self._n_seen += len(job.parts)
        self._bytes_seen += sum(job.sizes)
        return result

    def _add_note(self, error: BaseException, part: Part) -> None:
        if self._describe is not None:
            note = f"while reading {self._describe(part)}"
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)

    def _wait(self, job: _Job[Part, Piece], timeout_s: float | None) -> bool:
        """Wait for a job, or for any failure with ``fail_fast``; return whether it came in time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while job.left and not self._reader.has_failed:
            rest = _POLL_S if deadline is None else min(_POLL_S, deadline - time.monotonic())
            if rest <= 0:
                return False
            # A wait for a lock ends at once when a signal arrives, so Ctrl-C works.
            self._reader.wakes.acquire(timeout=rest)
        return True

    def _too_late(self, job: _Job[Part, Piece]) -> TimeoutError:
        left = sorted(job.left)
        which = "a part" if self._describe is None or not left else self._describe(job.parts[left[0]])
        more = f" and {len(left) - 1} more parts" if len(left) > 1 else ""
        return TimeoutError(
            f"no result in {self._timeout} s; still reading {which}{more}; "
            "raise timeout, use more workers, or see why reading is slow. Asking again continues the wait"
        )

    def _take_postponed(self) -> Exception:
        error, self._postponed = self._postponed, None
        assert error is not None
        return error


#: Parts that are read one at a time before threads are compared with that: fewer where that many take longer.
_N_ALONE, _FEWEST_ALONE, _ALONE_S = 40, 8, 0.02
#: A part of this length is so long that what it costs to begin it makes no difference.
_LONG_S = 0.0005
#: How long a thread waits for its turn to read alone.
_PATIENCE_S = 0.05
#: What a comparison looks at, at least: a number of results, and seconds of waiting for them.
_N_WAITS, _WAITED_S = 64, 0.5
#: How much more threads cost than reading alone, before they are called slower.
_SLOWER = 1.2


class Spent(NamedTuple):
    """Seconds on the clock, and seconds of CPU time."""

    wall_s: float
    cpu_s: float

    def __add__(self, other: Any) -> Spent:
        return Spent(self.wall_s + other.wall_s, self.cpu_s + other.cpu_s)

    def per(self, n_items: int) -> Spent:
        """What one of ``n_items`` took."""
        return Spent(self.wall_s / n_items, self.cpu_s / n_items)


def thread_clock() -> Spent:
    """Now, for what one thread does."""
    return Spent(time.perf_counter(), time.thread_time())


def process_clock() -> Spent:
    """Now, for what all threads do."""
    return Spent(time.perf_counter(), time.process_time())


class Pace:
    """Whether threads that read ahead are slower than reading in the caller's thread, found while they work.

        alone     the first parts are read one at a time: what an item takes without other threads
        waited    what it takes with threads: the clock while the caller waits, the CPU time of all threads meanwhile
        slower    where threads take longer, and more CPU time: a machine that is busy with something else takes longer
                  alone. Two stretches of results have to say so, with ``alone`` measured again between them

    Parts that take longer than 50 ms are not kept apart, and not judged: beside them the cost of threads is nothing.
    One caller; ``read`` in any thread.

    >>> pace = Pace()
    >>> pace.read(lambda: "rye", 1), pace.alone, pace.slower
    ('rye', None, None)
    """

    def __init__(
        self, own_clock: Callable[[], Spent] = thread_clock, shared_clock: Callable[[], Spent] = process_clock
    ) -> None:
        self._own_clock, self._clock = own_clock, shared_clock
        #: Seconds that an item of the part took that was read alone last.
        self.rough_s: float | None = None
        #: What an item takes without threads and with them, once these are slower.
        self.slower: tuple[Spent, Spent] | None = None
        self._turn, self._is_crowded = threading.Lock(), False
        self._samples: list[tuple[Spent, int]] = []
        self._was_slower = False
        self._n_waits, self._n_items, self._waited, self._joined = 0, 0, _NOTHING, _NOTHING

    @property
    def alone(self) -> Spent | None:
        """What an item takes alone; None while that is measured, and where it cannot be."""
        samples = self._samples
        if not self._is_measured(samples):
            return None
        warm = samples[len(samples) // 4 :]
        return functools.reduce(operator.add, (spent for spent, _ in warm)).per(sum(n_items for _, n_items in warm))

    @staticmethod
    def _is_measured(samples: list[tuple[Spent, int]]) -> bool:
        if len(samples) < _FEWEST_ALONE:
            return False
        return len(samples) >= _N_ALONE or sum(spent.wall_s for spent, _ in samples) >= _ALONE_S

    def read(self, read: Callable[[], Piece], n_items: int, *, is_whole: bool = True) -> Piece:
        """Return what ``read`` returns for ``n_items``: all of a task, or a part of it that counts if it is long."""
        samples = self._samples
        if self._is_crowded or not n_items or self._is_measured(samples):
            return read()
        if not self._turn.acquire(timeout=_PATIENCE_S):
            self._is_crowded = True
            return read()
        try:
            begin = self._own_clock()
            piece = read()
            took = _since(begin, self._own_clock())
            self.rough_s = took.wall_s / n_items
            if is_whole or took.wall_s >= _LONG_S:  # the caller would read all at once, which costs less
                samples.append((took, n_items))
            return piece
        finally:
            self._turn.release()

    def join(self, join: Callable[[], Result]) -> Result:
        """Return what ``join`` returns; without threads the caller would do the same."""
        begin = self._clock()
        result = join()
        self._joined += _since(begin, self._clock())
        return result

    def wait(self, wait: Callable[[], Result], n_items_of: Callable[[Result], int]) -> Result:
        """Return the result that ``wait`` waits for."""
        begin = self._clock()
        result = wait()
        alone = self.alone
        if alone is None or self.slower is not None:
            self._joined = _NOTHING
        else:
            self._waited += _since(begin, self._clock())
            self._n_waits, self._n_items = self._n_waits + 1, self._n_items + n_items_of(result)
            if self._n_waits >= _N_WAITS and self._waited.wall_s >= _WAITED_S and self._n_items:
                self._compare(alone + self._joined.per(self._n_items), self._waited.per(self._n_items))
        return result

    def _compare(self, without: Spent, threads: Spent) -> None:
        is_slower = all(mine > _SLOWER * other for mine, other in zip(threads, without, strict=True))
        if is_slower and self._was_slower:
            self.slower = without, threads
        elif is_slower:
            self._samples = []
        self._was_slower = is_slower
        self._n_waits, self._n_items, self._waited, self._joined = 0, 0, _NOTHING, _NOTHING


_NOTHING = Spent(0.0, 0.0)


def _since(begin: Spent, end: Spent) -> Spent:
    return Spent(end.wall_s - begin.wall_s, end.cpu_s - begin.cpu_s)


class OrderedMap(Prefetcher[Task, Task, Result, Result]):
    """``function`` applied to all tasks by threads of its own, begun at once; the first failure ends it.

    It is ``2 * n_workers`` tasks ahead of the results taken, so memory does not grow with the number of tasks.
    ``close`` begins nothing more and waits for nothing.

    >>> list(OrderedMap(str.upper, ["rye", "wheat"], 2))
    ['RYE', 'WHEAT']
    """

    def __init__(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        n_workers: int,
        *,
        name: str = "poolish-map",
        grace_s: float = 0,
    ) -> None:
        self._own = Workers(max(1, min(n_workers, len(tasks))), name=name, grace_s=grace_s)
        super().__init__(
            tasks,
            lambda task: [task],
            function,
            lambda _, pieces: pieces[0],
            workers=self._own,
            n_ahead=2 * n_workers,
            describe=None,
            fail_fast=True,
        )
        self.begin()

    def __next__(self) -> Result:
        try:
            return super().__next__()
        except BaseException:  # the end, a failure or an interrupt
            if not self._jobs or self._reader.has_failed:
                self._own.close(wait=False)
            raise

    def close(self) -> None:
        """Begin nothing more, and do not wait for what is running."""
        super().close()
        self._own.close(wait=False)
