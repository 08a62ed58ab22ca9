"""Several workers for one queue, each a process of its own, and the command that starts, follows and ends them.

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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from poolish.cli.live import Display, Report, join
from poolish.cli.terminal import FAILED, Failure, Interrupt

_LOOK_EVERY_S = 0.1
_RETURN = "\r"
_ENDED_AS_ASKED = {0, 128 + signal.SIGTERM, -signal.SIGTERM}

#: Given the file descriptor to report to, the command line of a worker.
Command = Callable[[int], list[str]]


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
