"""Where the fragments of a plan are baked. The plan is plain data and fragments know nothing of each other.

An engine gets a function and tasks, and gives results in the order of the tasks. ``local`` uses the threads of this
process: Arrow and NumPy work outside of Python's lock.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from poolish.errors import RecipeError

Task = TypeVar("Task")
Result = TypeVar("Result")


class Engine(Protocol):
    """Whoever bakes fragments."""

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
        """Results in the order of tasks."""


class LocalEngine:
    """Threads of this process."""

    def __init__(self, n_workers: int | None = None) -> None:
        self.n_workers = n_workers or os.cpu_count() or 1

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
        """A few tasks ahead of whoever takes the results, so that memory does not grow with the number of tasks."""
        if self.n_workers == 1 or len(tasks) < 2:
            yield from map(function, tasks)
            return
        with ThreadPoolExecutor(self.n_workers) as pool:
            waiting: deque[Future[Result]] = deque()
            try:
                for task in tasks:
                    waiting.append(pool.submit(function, task))
                    if len(waiting) > 2 * self.n_workers:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()


def as_engine(engine: Any) -> Engine:
    """An engine, or the name of one."""
    if engine == "local":
        return LocalEngine()
    if isinstance(engine, str):
        raise RecipeError(f"engine={engine!r}: 'local', or an object with run(function, tasks)")
    made: Engine = engine
    return made
