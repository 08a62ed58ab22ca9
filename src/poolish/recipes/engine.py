"""Where the fragments of a plan are baked. The plan is plain data and fragments know nothing of each other.

An engine gets a function and tasks, and gives results in the order of the tasks. ``local`` uses the threads of this
process: Arrow and NumPy work outside of Python's lock.

    task --> waiting --> running --> done --> taken, in order
                |           |
                |           `------> failed: raised at once, whoever else is still running
                `-> never begun, once a task has failed or nobody takes results any more
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from poolish.concurrency import WeakRegistry
from poolish.errors import ConfigError

Task = TypeVar("Task")
Result = TypeVar("Result")

#: How long a process that ends waits for tasks that nobody needs any more.
GRACE_S = 1.0

#: How often who waits for a result looks up.
LOOK_S = 0.2

#: Crews at work, for the moment when the process ends.
_crews: WeakRegistry[_Crew[Any, Any]] = WeakRegistry()


class Engine(Protocol):
    """Whoever bakes fragments.

    One that also has ``start``, with the same arguments, can begin before the first result is asked for.
    """

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterable[Result]:
        """Results in the order of tasks; where the answer can be closed, that means that nobody takes any more."""


class LocalEngine:
    """Threads of this process.

    >>> list(LocalEngine(n_workers=2).run(str.upper, ["rye", "wheat"]))
    ['RYE', 'WHEAT']
    """

    def __init__(self, n_workers: int | None = None) -> None:
        self.n_workers = n_workers or os.cpu_count() or 1

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Generator[Result, None, None]:
        """A few tasks ahead of whoever takes the results, so that memory does not grow with the number of tasks.

        An error is raised as soon as it happens; a task that is running then ends by itself, and its result is dropped.
        """
        if self.n_workers == 1 or len(tasks) < 2:
            for task in tasks:  # not map: it would take a StopIteration from the function for the end
                yield function(task)
            return
        with taken(_Crew(function, tasks, self.n_workers)) as results:
            yield from results

    def start(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
        """The same in threads, begun at once, for a caller that has something else to do meanwhile.

        With one worker that is the caller, who does one thing at a time.
        """
        return self.run(function, tasks) if self.n_workers == 1 else _Crew(function, tasks, self.n_workers)


class _Crew(Generic[Task, Result]):
    """Threads that work through tasks until they are told to leave.

    They are daemons: an executor's threads would be waited for when the process ends, however long a task takes.
    """

    def __init__(self, function: Callable[[Task], Result], tasks: Sequence[Task], n_workers: int) -> None:
        self._function, self._tasks = function, tasks
        self._n_ahead, self._n_given, self._n_taken = 2 * n_workers, 0, 0
        self._todo: SimpleQueue[tuple[int, Task] | None] = SimpleQueue()
        self._done: dict[int, Result] = {}
        self._failed: dict[int, BaseException] = {}
        self._changed = threading.Condition()
        self._is_leaving = False
        names = [f"poolish-bake-{i}" for i in range(min(n_workers, len(tasks)))]
        self.threads = [threading.Thread(target=self._work, name=name, daemon=True) for name in names]
        _crews.add(self)
        for thread in self.threads:
            thread.start()
        self._give()

    def __iter__(self) -> Iterator[Result]:
        return self

    def __next__(self) -> Result:
        if self._n_taken == len(self._tasks):
            self.close()
            raise StopIteration
        self._give()
        try:
            result = self._take(self._n_taken)
        except StopIteration as error:  # a function that ran out of something; it must not look like the end
            raise RuntimeError("a task raised StopIteration") from error
        self._n_taken += 1
        return result

    def _give(self) -> None:
        """A few tasks ahead of what was taken."""
        for number in range(self._n_given, min(len(self._tasks), self._n_taken + self._n_ahead)):
            self._todo.put((number, self._tasks[number]))
            self._n_given = number + 1

    def _take(self, number: int) -> Result:
        """The result of a task, once it is there; or the error of the first one that failed, of those known by then."""
        with self._changed:
            # A Ctrl-C that comes just before a wait does not end it, so no wait is long.
            while not (number in self._done or self._failed):
                self._changed.wait(LOOK_S)
            if self._failed:
                raise self._failed[min(self._failed)]
            return self._done.pop(number)

    def close(self) -> None:
        """Begin nothing more. Nobody waits for what is running."""
        with self._changed:
            self._is_leaving = True
            self._done.clear()
        for _ in self.threads:
            self._todo.put(None)

    def _work(self) -> None:
        while (given := self._todo.get()) is not None and not self._is_leaving:
            number, task = given
            try:
                result = self._function(task)
            except BaseException as error:
                with self._changed:
                    self._failed[number] = error
                    self._is_leaving = True
                    self._changed.notify_all()
            else:
                with self._changed:
                    if not self._is_leaving:
                        self._done[number] = result
                    self._changed.notify_all()
                del result
            del given, task  # or they would be held until the next one comes


@atexit.register
def _wait_a_little() -> None:
    # A thread that comes back from Arrow while Python is being taken down can abort the process; most are back by then.
    end = time.monotonic() + GRACE_S
    crews = list(_crews)
    for crew in crews:
        crew.close()
    for thread in [thread for crew in crews for thread in crew.threads]:
        thread.join(max(0.0, end - time.monotonic()))


@contextlib.contextmanager
def taken(results: Iterable[Result]) -> Iterator[Iterator[Result]]:
    """Take the results of an engine one by one; who stops before the end lets it know, if it can be told."""
    try:
        yield iter(results)
    finally:
        close = getattr(results, "close", None)
        if close is not None:
            close()


def as_engine(engine: Any) -> Engine:
    """An engine, or the name of one."""
    if engine == "local":
        return LocalEngine()
    if isinstance(engine, type) or not callable(getattr(engine, "run", None)):
        raise ConfigError(
            f"engine={engine!r}: 'local', or an object with run(function, tasks); for a number of threads write "
            "LocalEngine(n_workers=4), of poolish.recipes.engine"
        )
    made: Engine = engine
    return made
