"""Faults that only our own tests need: interrupts at any line, small disks, several processes that take turns.

Those that are of use to others are in ``poolish.testing.faults``, and can be imported from here as well.
"""

from __future__ import annotations

import ctypes
import functools
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from poolish.testing.faults import SYSTEM_CALLS, die, die_at_call, ended, every_kill_point, fork, in_child
from tests.effort import IS_SOAK, POINTS

__all__ = [
    "PATIENCE_S",
    "SYSTEM_CALLS",
    "children",
    "die",
    "die_at_call",
    "ended",
    "every_kill_point",
    "fill",
    "fork",
    "in_child",
    "in_own_process",
    "interrupted_at_line",
    "kill",
    "read_only_story",
    "signals",
    "small_disk",
    "some_kill_points",
    "wait_until",
]

#: How long anything may take before a test gives up on it.
PATIENCE_S = 60.0


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


def some_kill_points(scenario: Callable[[], object], check: Callable[[], object], **options: Any) -> int:
    """``every_kill_point``, where every point takes long: each fourth one on a push, from a random start."""
    stride = 1 if IS_SOAK else 4
    return every_kill_point(scenario, check, first=POINTS.randint(1, stride), stride=stride, **options)


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
    """Two functions for two processes: the first sends a signal, the second waits for it, at most PATIENCE_S."""
    reading, writing = os.pipe()

    def wait() -> None:
        assert select.select([reading], [], [], PATIENCE_S)[0], "the other process sent no signal"
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


def read_only_story(folder: Path, story: Callable[[], object]) -> Callable[[], None]:
    """A function for a child, in which a folder is mounted read-only for that child alone."""

    def child() -> None:
        new_namespace, private = 0x20000, 1 << 18 | 1 << 14
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(new_namespace) or libc.mount(b"none", b"/", None, private, None):
            os._exit(77)
        for options in (["--bind", str(folder), str(folder)], ["-o", "remount,ro,bind", str(folder)]):
            if subprocess.run(["mount", *options], capture_output=True, check=False).returncode:
                os._exit(77)
        with pytest.raises(OSError, match="Read-only"):
            (folder / "probe").touch()
        story()

    return child
