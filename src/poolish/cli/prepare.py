"""``poolish prepare``: run the provider of a config here, or several of them in processes of their own.

prepare_in --+-- one worker -----> work: provider.run(), a line on the screen
             +-- several --------> run_crew: the same command for each, with --worker i --report fd
             `-- --worker i -----> _work_for_parent: work, with reports through the pipe

    command --starts--> worker 0 ... worker N-1
       ^                   |  report pipe: its progress, or why it failed       (Sender)
       `-------------------+  stdout and stderr: what the provider prints, shown as "w0 | ..."

Ctrl-C reaches the command alone: the workers are in process groups of their own, and get a SIGTERM for every request to
stop. A worker that fails stops them all. A command that is killed leaves pipes without a reader, which its workers
notice.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poolish.cli.live import Display, Report, counts, display, join, speed
from poolish.cli.terminal import FAILED, MISUSED, Failure, Interrupt, print_stderr
from poolish.errors import PoolishError

if TYPE_CHECKING:
    from poolish.serve import DataProviderBase, SharedConfig

_REPORT_EVERY_S = 0.2
_LOOK_EVERY_S = 0.1
_RETURN = "\r"
_ENDED_AS_ASKED = {0, 128 + signal.SIGTERM, -signal.SIGTERM}

#: Given the file descriptor to report to, the command line of a worker.
Command = Callable[[int], list[str]]


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
        # -P: PYTHONPATH (see _environment) decides what it imports, not the directory it is started in.
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


# Several workers -----------------------------------------------------------------------------------------------------


def run_crew(commands: Sequence[Command], prefix: str, interrupt: Interrupt, shown: Display) -> Failure | None:
    """Run all workers until they finish, one fails or the user stops them; the failure, if one failed."""
    interrupt.patience = 2  # finish the batch; drop it; then kill
    crew: list[Worker] = []
    try:
        for i, command in enumerate(commands):
            crew.append(Worker(f"{prefix}{i}", command))
        return _follow(crew, interrupt, shown)
    finally:
        for worker in crew:
            worker.close()


def _follow(crew: list[Worker], interrupt: Interrupt, shown: Display) -> Failure | None:
    n_asked = 0
    failures: dict[str, Failure] = {}
    while True:
        # Checked before reading, so that the last report of a worker is not missed.
        running = [worker for worker in crew if worker.is_running()]
        for worker in crew:
            worker.read(shown)
        shown.show(replace(join(worker.last for worker in running or crew), made=join(w.last for w in crew).made))
        for worker in crew:
            if worker not in running and (failure := worker.failure(was_asked=n_asked > 0)):
                failures.setdefault(worker.name, failure)
        if not running:
            return _first(failures)
        if n_asked < interrupt.count + bool(failures):
            n_asked = interrupt.count + bool(failures)
            for worker in running:
                worker.process.terminate()
        select.select([fd for worker in running for fd in worker.open_fds()], [], [], _LOOK_EVERY_S)


def _first(failures: dict[str, Failure]) -> Failure | None:
    """The failure to report, once for all that have it in common."""
    if not failures:
        return None
    names, first = list(failures), next(iter(failures.values()))
    others = f", and so did {', '.join(names[1:])}" if names[1:] else "; the others were ended"
    return replace(first, text=f"{first.text}\nworker {names[0]} failed{others}")


class Worker:
    """One worker, seen from the command."""

    def __init__(self, name: str, command: Command) -> None:
        self.name = name
        self.last = Report()
        self._failure: Failure | None = None
        reading, writing = os.pipe()
        try:
            self.process = subprocess.Popen(
                command(writing),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[writing],
                process_group=0,
                env=_environment(),
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        assert self.process.stdout is not None
        self._reports, self._output = Lines(reading), Lines(os.dup(self.process.stdout.fileno()))
        self.process.stdout.close()

    def is_running(self) -> bool:
        """Whether the process is there."""
        return self.process.poll() is None

    def open_fds(self) -> list[int]:
        """What there is to listen to."""
        return [lines.fd for lines in (self._reports, self._output) if lines.fd >= 0]

    def read(self, shown: Display) -> None:
        """Read the worker's reports and output."""
        for line in self._output.read():
            # A progress bar returns to the start of its line again and again: only its last state is shown.
            shown.say(f"{self.name} | {line.rstrip(_RETURN).rpartition(_RETURN)[2]}")
        for line in self._reports.read():
            found = json.loads(line)
            if "error" in found:
                self._failure = Failure(found["error"], found["code"])
            else:
                self.last = Report(**found)

    def failure(self, *, was_asked: bool) -> Failure | None:
        """Why it ended, if it should not have."""
        code = self.process.returncode
        if self._failure is not None:
            return self._failure
        if code == 0 or (was_asked and code in _ENDED_AS_ASKED):
            return None
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return Failure(f"error: worker {self.name} {how}", FAILED)

    def close(self) -> None:
        """Kill it if it is still there, and wait for it."""
        self.process.kill()
        self.process.wait()
        self._reports.close()
        self._output.close()


class Lines:
    """The lines that come through a pipe, as far as they have come; ``fd`` is -1 when there will be no more."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._rest = b""
        os.set_blocking(fd, False)

    def read(self) -> list[str]:
        """The lines that are there now."""
        while self.fd >= 0:
            try:
                data = os.read(self.fd, 65_536)
            except BlockingIOError:
                break
            if not data:
                self.close()
                self._rest += b"\n" if self._rest else b""
            self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def close(self) -> None:
        """Stop listening."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class Sender:
    """The worker's end of the report pipe: one line of JSON for each report, or ``{"error": ..., "code": ...}``.

    A write fails once the command is gone, killed or not: then ``is_cut``.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.is_cut = False
        os.set_inheritable(fd, False)  # what the provider starts must not keep the pipe open
        os.set_blocking(fd, False)

    def send(self, report: Report) -> None:
        """Report progress; dropped if the command is busy or stopped (Ctrl-Z) and reads nothing."""
        with suppress(BlockingIOError):
            self._write(asdict(report))

    def fail(self, error: str, code: int) -> None:
        """Report why the worker ends."""
        os.set_blocking(self._fd, True)
        self._write({"error": error, "code": code})

    def _write(self, message: Mapping[str, Any]) -> None:
        left = json.dumps(message).encode() + b"\n"
        try:
            # A report is shorter than what a pipe takes whole or not at all; only the text of an error may be longer.
            while left:
                left = left[os.write(self._fd, left) :]
        except BrokenPipeError:
            self.is_cut = True


def _environment() -> dict[str, str]:
    """That of this process, so that a worker imports what this would import, and prints when it prints."""
    first = [] if sys.flags.safe_path else [sys.path[0] or os.getcwd()]
    path = os.pathsep.join([*first, *filter(None, [os.environ.get("PYTHONPATH", "")])])
    return {**os.environ, "PYTHONUNBUFFERED": "1", **({"PYTHONPATH": path} if path else {})}
