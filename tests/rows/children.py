"""Things that may kill a process happen in a child of their own: crashes, kills, limits, forks.

``in_child(function)`` forks, so nothing has to be imported again, and gives what the function returned. A child that
dies by a signal is a failure that names it, and one that hangs is ended by an alarm.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any, BinaryIO

from tests.effort import times

#: A child that works needs seconds; one that is still there after this hangs.
HANGS_AFTER_S = times(120)


class ChildDied(AssertionError):
    """The child was ended by a signal."""


def fork() -> int:
    """``os.fork`` without the warning that a process with threads is forked: that is what is tested."""
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def start_child(function: Callable[..., Any], *arguments: Any) -> tuple[int, BinaryIO]:
    """A child that runs ``function(*arguments)``; its pid, and where its answer can be read."""
    from_child, to_parent = os.pipe()
    pid = fork()
    if pid:
        os.close(to_parent)
        return pid, os.fdopen(from_child, "rb")
    os.close(from_child)
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(HANGS_AFTER_S)
        answer = _answer(function, arguments)
        with os.fdopen(to_parent, "wb") as file:
            file.write(answer)
    finally:
        os._exit(0)


def _answer(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    try:
        return pickle.dumps((True, function(*arguments)))
    except BaseException:
        return pickle.dumps((False, traceback.format_exc()))


def in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """What ``function(*arguments)`` gives in a forked child."""
    pid, answers = start_child(function, *arguments)
    with answers:
        answer = answers.read()
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        raise ChildDied(f"the child was ended by {signal.Signals(os.WTERMSIG(status)).name}")
    is_good, value = pickle.loads(answer)
    if not is_good:
        raise AssertionError(f"in the child:\n{value}")
    return value
