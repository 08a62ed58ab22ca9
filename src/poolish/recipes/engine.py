"""Where the fragments of a plan are baked. The plan is plain data and fragments know nothing of each other.

An engine gets a function and tasks, and gives results in the order of the tasks. ``local`` uses the threads of this
process: Arrow and NumPy work outside of Python's lock.

    task --> waiting --> running --> done --> taken, in order
                |           |
                |           `------> failed: raised at once, while others are still running
                `-> never begun, once a task has failed or the results are closed
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from poolish.errors import ConfigError
from poolish.prefetch import OrderedMap

Task = TypeVar("Task")
Result = TypeVar("Result")

#: How long a process that exits waits for running tasks.
GRACE_S = 1.0


class Engine(Protocol):
    """Runs the tasks of a bake.

    One that also has ``start``, with the same arguments, can begin before the first result is asked for.
    """

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterable[Result]:
        """Results in the order of tasks; where the answer can be closed, closing it ends the run."""


class LocalEngine:
    """Threads of this process.

    >>> list(LocalEngine(n_workers=2).run(str.upper, ["rye", "wheat"]))
    ['RYE', 'WHEAT']
    """

    def __init__(self, n_workers: int | None = None) -> None:
        self.n_workers = n_workers or os.cpu_count() or 1

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Generator[Result, None, None]:
        """Run a few tasks ahead of the consumer of the results, so that memory does not grow with the number of tasks.

        An error is raised as soon as it happens; a task that is running then ends by itself, and its result is dropped.
        """
        if self.n_workers == 1 or len(tasks) < 2:
            for task in tasks:  # not map: it would take a StopIteration from the function for the end
                yield function(task)
            return
        with taken(self.start(function, tasks)) as results:
            yield from results

    def start(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
        """The same in threads, begun at once, for a caller that has something else to do meanwhile.

        With one worker that is the caller, who does one thing at a time.
        """
        if self.n_workers == 1:
            return self.run(function, tasks)
        return OrderedMap(function, tasks, self.n_workers, name="poolish-bake", grace_s=GRACE_S)


@contextlib.contextmanager
def taken(results: Iterable[Result]) -> Iterator[Iterator[Result]]:
    """Iterate over the results of an engine; leaving early closes the run, if it can be closed."""
    try:
        yield iter(results)
    finally:
        close = getattr(results, "close", None)
        if close is not None:
            close()


#: Engines by name: what ``engine=`` of a bake and ``poolish bake --engine`` accept.
ENGINES: dict[str, Callable[[], Engine]] = {"local": LocalEngine}


def as_engine(engine: str | Engine) -> Engine:
    """Return an engine, given as itself or by its name.

    >>> as_engine("local").n_workers == LocalEngine().n_workers
    True
    """
    if isinstance(engine, str) and engine in ENGINES:
        return ENGINES[engine]()
    if isinstance(engine, (str, type)) or not callable(getattr(engine, "run", None)):
        names = ", ".join(map(repr, ENGINES))
        raise ConfigError(
            f"engine={engine!r}: {names}, or an object with run(function, tasks); for a number of threads write "
            "LocalEngine(n_workers=4), of poolish.recipes.engine"
        )
    return engine
