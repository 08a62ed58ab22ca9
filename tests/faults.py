"""Real faults for tests: children that are killed where it hurts, and disks that are too small.

Children are forked, without starting an interpreter, so a hundred kills cost a second.
"""

from __future__ import annotations

import faulthandler
import fcntl
import functools
import os
import select
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

#: How long anything may take before a test gives up on it.
PATIENCE_S = 60.0

#: Everything through which a file or a directory can change, or a lock be taken.
SYSTEM_CALLS = (
    *("open", "close", "write", "writev", "pwrite", "fsync", "fdatasync", "ftruncate", "posix_fallocate"),
    *("rename", "replace", "link", "unlink", "mkdir", "rmdir"),
)


def fork(function: Callable[[], object]) -> int:
    """Run a function in a forked child, whose exit status is 0 if it returned; the child's pid."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of a fork beside threads, which is what is tested here
        pid = os.fork()
    if pid:
        return pid
    faulthandler.disable()  # a child that dies as it should has nothing to tell
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # what runs in the background may have been told to ignore it
    status = 1
    try:
        function()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def ended(pid: int) -> int:
    """Wait for a child: its exit status, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def in_child(function: Callable[[], object]) -> int:
    """How a function ends in a child of its own."""
    return ended(fork(function))


@contextmanager
def children(*functions: Callable[[], object]) -> Iterator[list[int]]:
    """Run functions in children of their own, which are gone when the block is left, however it is left."""
    pids = [fork(lambda function=function: (signal.alarm(120), function())) for function in functions]
    try:
        yield pids
    finally:
        for pid in pids:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                ended(pid)


def kill(pid: int) -> None:
    """Kill a child and wait until it is gone."""
    os.kill(pid, signal.SIGKILL)
    assert ended(pid) in (-signal.SIGKILL, 0)


def die() -> None:
    """End this process at once, as ``kill -9`` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_call(number: int, *, half: bool = False, also: Sequence[tuple[object, str]] = ()) -> None:
    """From now on count this process's system calls on files, and die before the given one (or half way through it).

    ``also`` are further functions that change files, such as stores into mapped memory: (where it is, its name).
    """
    n_calls = 0

    def dying(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object, **options: object) -> object:
            nonlocal n_calls
            n_calls += 1
            if n_calls == number:
                if half and name in ("write", "writev"):
                    write_half(*arguments)  # type: ignore[arg-type]
                die()
            return call(*arguments, **options)

        return counted

    write = os.write

    def write_half(fd: int, data: bytes | list[bytes]) -> None:
        whole = b"".join(data) if isinstance(data, list) else bytes(memoryview(data))
        write(fd, whole[: len(whole) // 2])

    places = [(os, name) for name in SYSTEM_CALLS if hasattr(os, name)]
    for place, name in [*places, (fcntl, "flock"), *also]:
        setattr(place, name, dying(name, getattr(place, name)))


def every_kill_point(
    scenario: Callable[[], object],
    check: Callable[[], object],
    *,
    half: bool = False,
    also: Sequence[tuple[object, str]] = (),
) -> int:
    """Kill a scenario before each of its system calls in turn and check what is left; how many points there were."""
    number = 0
    while True:
        number += 1

        def child(number: int = number) -> None:
            die_at_call(number, half=half, also=also)
            scenario()

        outcome = in_child(child)
        assert outcome in (0, -signal.SIGKILL)
        check()
        if outcome == 0:
            return number - 1


def in_own_process(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test in a forked child, where a tracer interrupts it.

    A tracer raises where no signal does: on an ``except`` line, after which CPython 3.11 keeps the exception as being
    handled, and between the last line of a ``with`` and its exit, after which a lock stays
    held. Neither may outlive the test.
    """

    @functools.wraps(test)
    def forked(*arguments: Any, **options: Any) -> None:
        assert in_child(lambda: test(*arguments, **options)) == 0

    return forked


@contextmanager
def interrupted_at_line(k: int, is_traced: Callable[[str], bool]) -> Iterator[list[str]]:
    """Ctrl-C before the k-th line that runs in the traced files; gives the lines that ran, as ``file:line``."""
    lines: list[str] = []

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        return at_line if is_traced(frame.f_code.co_filename) else None

    def at_line(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
            if len(lines) == k:
                raise KeyboardInterrupt
        return at_line

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield lines
    finally:
        sys.settrace(before)


@contextmanager
def small_disk(folder: Path, n_bytes: int) -> Iterator[Path]:
    """A file system of its own with little space; the test is skipped where mounting is not allowed.

    It is taken off the tree at once and lives by an open descriptor alone, so that a test that is killed leaves no
    mount behind.
    """
    folder.mkdir()
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={n_bytes}", "tmpfs", str(folder)], check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a small disk cannot be mounted here")
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        yield Path(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def fill(disk: Path) -> None:
    """Take what space is left on a disk."""
    with open(disk / "filler", "wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(bytes(4096))


@contextmanager
def signals() -> Iterator[tuple[Callable[[], None], Callable[[], None]]]:
    """Two functions for two processes: the first says "now", the second waits for it, but not for ever."""
    reading, writing = os.pipe()

    def wait() -> None:
        assert select.select([reading], [], [], PATIENCE_S)[0], "nobody has said it"
        os.read(reading, 1)

    try:
        yield lambda: os.write(writing, b"!") and None, wait
    finally:
        os.close(reading)
        os.close(writing)


def wait_until(is_so: Callable[[], object], what: str = "it") -> None:
    """Until another thread or process has done something, but not for ever."""
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.001)
