"""Fault injection for code that writes files: kills, failing and short writes, damaged bytes, hostile pickles.

Each helper drives a *scenario*, a function that writes as your program does, and a *check*, a function that reads the
result and raises if it is wrong:

    every_kill_point     the process is killed before each of its system calls on files, in turn
    every_faulty_write   each write in turn is cut short, fails (EIO, ENOSPC), or meets a disk that fills up
    damages              the bytes of a file as disks, copies and editors may leave them
    Canary               an object whose pickle leaves a trace if anything unpickles it

Kills happen in forked children, without starting an interpreter, so a hundred of them take about a second.
"""

from __future__ import annotations

import errno
import faulthandler
import fcntl
import itertools
import os
import random
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NoReturn

WriteFault = Literal["short", "EIO", "ENOSPC", "fills up"]
WRITE_FAULTS: tuple[WriteFault, ...] = ("short", "EIO", "ENOSPC", "fills up")

#: The functions of ``os`` through which a file or a directory changes.
SYSTEM_CALLS = (
    *("open", "close", "write", "writev", "pwrite", "fsync", "fdatasync", "ftruncate", "posix_fallocate"),
    *("rename", "replace", "link", "unlink", "mkdir", "rmdir"),
)


# Children -----------------------------------------------------------------------------------------------------


def fork(function: Callable[[], object]) -> int:
    """Run a function in a forked child; the child's pid. Its exit status is 0 if the function returns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of a fork beside threads
        pid = os.fork()
    if pid:
        return pid
    faulthandler.disable()  # a child that is killed on purpose needs no traceback
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process may have inherited SIG_IGN
    status = 1
    try:
        function()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)  # nothing of the parent's may run twice: no exit handlers, no buffers


def ended(pid: int) -> int:
    """Wait for a child: its exit status, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def in_child(function: Callable[[], object]) -> int:
    """Run a function in a forked child and wait for it: its exit status, or minus the signal that ended it.

    >>> in_child(lambda: None), in_child(die)
    (0, -9)
    """
    return ended(fork(function))


def die() -> NoReturn:
    """End this process at once, as ``kill -9`` does."""
    while True:
        os.kill(os.getpid(), signal.SIGKILL)


# Kills --------------------------------------------------------------------------------------------------------


def die_at_call(number: int, *, half: bool = False, also: Sequence[tuple[Any, str]] = ()) -> None:
    """From now on, count this process's system calls on files and die before the given one.

    With ``half``, a write is carried out up to its middle first. ``also`` names further functions that change files,
    such as stores into mapped memory: (module or class, function name).
    """
    n_calls = 0

    def counting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal n_calls
            n_calls += 1
            if n_calls == number:
                if half and name in ("write", "writev"):
                    _write_half(write, *arguments)
                die()
            return call(*arguments, **options)

        return counted

    write = os.write
    calls = [(os, name) for name in SYSTEM_CALLS if hasattr(os, name)]
    for place, name in [*calls, (fcntl, "flock"), *also]:
        setattr(place, name, counting(name, getattr(place, name)))


def _write_half(write: Callable[[int, bytes], int], fd: int, data: Any) -> None:
    whole = b"".join(data) if isinstance(data, list) else bytes(memoryview(data))
    write(fd, whole[: len(whole) // 2])


def every_kill_point(
    scenario: Callable[[], object],
    check: Callable[[], object],
    *,
    half: bool = False,
    also: Sequence[tuple[Any, str]] = (),
    first: int = 1,
    stride: int = 1,
) -> int:
    """Kill a scenario before each of its system calls in turn and check what is left; the number of calls.

    ``half`` and ``also`` are those of ``die_at_call``. With ``first`` and ``stride`` only every ``stride``-th call is a
    kill point, beginning with call ``first``: a random ``first`` covers all of them over many runs.

    >>> file = folder / "state"
    >>> scenario = lambda: file.write_text("new")
    >>> every_kill_point(scenario, lambda: print(file.read_text() if file.exists() else "absent"))
    new
    0

    ``Path.write_text`` calls the C library, not ``os.write``. Use the functions of ``os``, or of ``poolish.files``:

    >>> from poolish.files import write_json
    >>> def check():
    ...     assert not file.exists() or file.read_text() == "[1]\\n"
    >>> file.unlink()
    >>> every_kill_point(lambda: write_json(file, [1]), check) > 3
    True
    """
    for number in itertools.count(first, stride):

        def child(number: int = number) -> None:
            die_at_call(number, half=half, also=also)
            scenario()

        status = in_child(child)
        if status not in (0, -signal.SIGKILL):
            raise AssertionError(f"the scenario failed before its system call {number}: exit status {status}")
        check()
        if status == 0:
            break
    return number - 1


# Writes that go wrong -----------------------------------------------------------------------------------------


class FaultyWrites:
    """Counts this process's writes, and makes the ``k``-th go wrong; 0 makes none."""

    def __init__(self, k: int = 0, fault: WriteFault = "short") -> None:
        self.k, self.fault = k, fault
        self.n = 0
        self._was_cut = False

    def admit(self, n_bytes: int, *, is_new_space: bool) -> int:
        """The number of bytes of the next write that the system accepts; raises where it accepts none."""
        self.n += 1
        if self.n == self.k and self.fault in ("EIO", "ENOSPC"):
            _fail(self.fault)
        # A disk that fills up accepts part of one write and refuses the next; existing bytes can be overwritten.
        if self.n == self.k + 1 and self.fault == "fills up" and self._was_cut:
            _fail("ENOSPC")
        self._was_cut = self.n == self.k and n_bytes > 1 and (is_new_space or self.fault == "short")
        return n_bytes // 2 if self._was_cut else n_bytes


def _fail(name: str) -> NoReturn:
    number = getattr(errno, name)
    raise OSError(number, os.strerror(number))


@contextmanager
def faulty_writes(k: int = 0, fault: WriteFault = "short") -> Iterator[FaultyWrites]:
    """Make the ``k``-th write in the block go wrong: ``short``, ``EIO``, ``ENOSPC``, or on a disk that ``fills up``.

    It counts ``os.write``, ``os.writev`` and ``os.pwrite`` of this process; ``k=0`` only counts.
    """
    write, writev, pwrite = os.write, os.writev, os.pwrite
    writes = FaultyWrites(k, fault)

    def cut(fd: int, data: Any, start: int | None = None) -> int:
        whole = memoryview(data).cast("B")
        place = os.lseek(fd, 0, os.SEEK_CUR) if start is None else start
        n_bytes = writes.admit(whole.nbytes, is_new_space=place + whole.nbytes > os.fstat(fd).st_size)
        return write(fd, whole[:n_bytes]) if start is None else pwrite(fd, whole[:n_bytes], start)

    faulty: dict[str, Callable[..., int]] = {
        "write": cut,
        "writev": lambda fd, buffers: cut(fd, b"".join(buffers)),
        "pwrite": cut,
    }
    try:
        for name, function in faulty.items():
            setattr(os, name, function)
        yield writes
    finally:
        os.write, os.writev, os.pwrite = write, writev, pwrite


def every_faulty_write(scenario: Callable[[], object], check: Callable[[], object], fault: WriteFault = "short") -> int:
    """Run a scenario once for each of its writes, with that write going wrong, and check; the number of writes.

    The scenario may raise ``OSError``, which reports the fault. Anything else it raises is passed on.

    >>> from poolish.files import read_json, write_json
    >>> write_json(folder / "state", 1)
    >>> scenario = lambda: write_json(folder / "state", 2)
    >>> def check():
    ...     assert read_json(folder / "state") in (1, 2)
    >>> every_faulty_write(scenario, check, "ENOSPC")
    1
    """
    k = 0
    while True:
        k += 1
        with faulty_writes(k, fault) as writes:
            try:
                scenario()
            except OSError:
                pass
        check()
        if writes.n < k:
            return k - 1


# Damage -------------------------------------------------------------------------------------------------------


def damages(content: bytes, n: int, seed: int = 0) -> Iterator[bytes]:
    """``n`` damaged versions of ``content``: bits flipped, ranges zeroed, overwritten, cut out, inserted or swapped.

    A damage that changes nothing, such as zeros over zeros, is left out.

    >>> all(damaged != b"sourdough" for damaged in damages(b"sourdough", 100))
    True
    """
    rng = random.Random(seed)
    for _ in range(n):
        damaged = bytearray(content)
        first, second = sorted(rng.sample(range(len(content) + 1), 2))
        _DAMAGES[rng.randrange(6)](rng, damaged, first, second)
        if damaged != content:
            yield bytes(damaged)


def _flip(rng: random.Random, content: bytearray, first: int, second: int) -> None:
    for _ in range(8):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def _zero(rng: random.Random, content: bytearray, first: int, second: int) -> None:
    content[first:second] = bytes(second - first)


def _overwrite(rng: random.Random, content: bytearray, first: int, second: int) -> None:
    content[first:second] = rng.randbytes(second - first)


def _insert(rng: random.Random, content: bytearray, first: int, second: int) -> None:
    content[first:first] = rng.randbytes(rng.randrange(1, 64))


def _cut(rng: random.Random, content: bytearray, first: int, second: int) -> None:
    del content[first:second]


def _swap(rng: random.Random, content: bytearray, first: int, second: int) -> None:
    size = min(rng.choice([1, 8, 64, 512]), second - first, len(content) - second)
    a, b = slice(first, first + size), slice(second, second + size)
    content[a], content[b] = content[b], content[a]


_DAMAGES = (_flip, _zero, _overwrite, _insert, _cut, _swap)


# Data is never code -------------------------------------------------------------------------------------------


class Canary:
    """Unpickling one creates a directory: put its pickle into a file and check that reading leaves none."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)
