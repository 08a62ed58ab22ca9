"""``poolish prepare``: run the provider of a config here, or several of them in processes of their own.

prepare_in --+-- one worker -----> work: provider.run(), a line on the screen
             +-- several --------> workers.run_crew: the same command for each, with --worker i --report fd
             `-- --worker i -----> _work_for_parent: work, with reports through the pipe
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from poolish.cli.live import Display, Report, counts, display, speed
from poolish.cli.terminal import MISUSED, Failure, Interrupt, print_stderr
from poolish.cli.workers import Sender, run_crew
from poolish.errors import PoolishError

if TYPE_CHECKING:
    from poolish.serve import DataProviderBase, SharedConfig

_REPORT_EVERY_S = 0.2


@dataclass(frozen=True)
class Task:
    """What is to be prepared."""

    config: Path
    overrides: tuple[str, ...]
    workspace: Path | None
    name: str

    def load(self) -> SharedConfig:
        """The shared config, checked."""
        from poolish.serve import load_config

        return load_config(self.config, self.overrides, workspace=self.workspace)

    def provider(self, config: SharedConfig, worker: int) -> DataProviderBase:
        """The provider that one worker runs."""
        from poolish.serve import DataProviderBase
        from poolish.serve.workspace import find_provider

        found: DataProviderBase = find_provider(config, DataProviderBase)(config, name=f"{self.name}{worker}")
        return found

    def command(self, worker: int, fd: int) -> list[str]:
        """How another process does the part of one worker."""
        options = [f"--set={override}" for override in self.overrides]
        options += [f"--workspace={self.workspace}"] if self.workspace is not None else []
        own = [f"--name={self.name}", f"--worker={worker}", f"--report={fd}"]
        # -P: PYTHONPATH (see workers) decides what it imports, not the directory it is started in.
        return [sys.executable, "-P", "-m", "poolish", "prepare", *options, *own, "--", str(self.config)]


def prepare_in(task: Task, workers: int, worker: int | None, report_fd: int | None) -> int:
    """Do it; the exit code."""
    if worker is not None and report_fd is not None:
        return _work_for_parent(task, worker, Sender(report_fd))
    with Interrupt() as interrupt:
        started = time.monotonic()
        last, failure = _prepare(task, workers, interrupt)
        if failure is not None:
            print_stderr(failure.text)
        if last is not None and (last.total or failure is None):
            how = "failed" if failure else f"ended by {interrupt.name}" if interrupt.count else "finished"
            print_stderr(summary(how, last, time.monotonic() - started))
        return failure.code if failure else interrupt.exit_code if interrupt.count else 0


def _prepare(task: Task, workers: int, interrupt: Interrupt) -> tuple[Report | None, Failure | None]:
    """What was done, if it came to that, and what went wrong, if anything did."""
    shown: Display | None = None
    failure: Failure | None = None
    try:
        config = task.load()
        queue = config.dataset_path / "queue"
        with display(config.dataset, interrupt) as shown:
            shown.say(f"{config.dataset}: filling {_short(queue)} ({', '.join(config.splits)}); Ctrl-C ends it")
            if workers == 1:
                work(task.provider(config, 0), interrupt, shown.show)
            else:
                failure = run_crew([partial(task.command, i) for i in range(workers)], task.name, interrupt, shown)
    except KeyboardInterrupt:
        interrupt.count = max(1, interrupt.count)
    except Exception as error:
        # Before there is a display, there is no config: whatever its file raises, it is the config that is wrong.
        failure = Failure.of(error, None if shown else MISUSED)
    return shown.last if shown else None, failure


def _work_for_parent(task: Task, worker: int, sender: Sender) -> int:
    with Interrupt() as interrupt:
        try:
            work(task.provider(task.load(), worker), interrupt, sender.send, lambda: sender.is_cut)
        except KeyboardInterrupt:
            return interrupt.exit_code
        except Exception as error:
            failure = Failure.of(error)
            sender.fail(failure.text, failure.code)
            return failure.code
        return interrupt.exit_code if interrupt.count else 0


def work(
    provider: DataProviderBase,
    interrupt: Interrupt,
    show: Callable[[Report], object],
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Run a provider until it finishes, is interrupted or ``is_over``, and show its progress meanwhile.

    The provider is queried only between its batches and from this thread: it is not thread-safe.
    """
    made = dict.fromkeys(provider.config.splits, 0)
    due = 0.0

    def count(split: str, number: int) -> None:
        made[split] += 1

    def report() -> None:
        nonlocal due
        due = time.monotonic() + _REPORT_EVERY_S
        backlog = {split: found["backlog"] for split, found in provider.status().items()}
        show(Report(dict(made), backlog, provider.waiting))

    def should_stop() -> bool:
        if time.monotonic() >= due:
            report()
        return interrupt.count > 0 or is_over()

    with provider:
        interrupt.patience = 1  # from here on there is something to finish
        try:
            provider.run(stop=should_stop, on_batch=count)
        finally:
            with suppress(PoolishError, OSError):  # the queue may be what has failed
                report()


def summary(how: str, report: Report, seconds: float) -> str:
    """What was done, in a sentence.

    >>> summary("finished", Report({"train": 1200, "val": 64}, {"train": 9, "val": 64}), 12.0)
    'finished: made train 1,200, val 64 in 12.0 s (105 batches/s); still to be read: train 9, val 64'
    """
    done = f"made {counts(report.made)} in {seconds:,.1f} s ({speed(report.total / seconds)})"
    left = f"; still to be read: {counts(report.backlog)}" if report.backlog else ""
    return f"{how}: {done if report.total else f'made nothing in {seconds:,.1f} s'}{left}"


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
