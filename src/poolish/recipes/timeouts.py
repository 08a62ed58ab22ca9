"""Calls that may hang: made in a thread of their own, which is left behind when it does not come back in time.

    caller --arguments--> helper --result, or error--> caller
                             `--nothing in time: Late; the next call gets a new helper, the old one ends when it can

Nothing can stop a running Python function from outside, so a helper that hangs keeps its memory until the process ends.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any


class Late(Exception):
    """A call took longer than it may."""


class TimedCalls:
    """A function whose calls may take ``timeout_s`` each; for one thread at a time, which closes it in the end.

    >>> calls = TimedCalls(lambda row: {**row, "loaves": 3}, timeout_s=30)
    >>> calls({"flour": "rye"})
    {'flour': 'rye', 'loaves': 3}
    >>> calls.close()
    """

    def __init__(self, function: Callable[..., Any], timeout_s: float) -> None:
        self._function, self._timeout_s = function, timeout_s
        self._asked: queue.SimpleQueue[Any] | None = None
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """What the function returns, or raises; Late if it does neither in time."""
        if self._asked is None:
            self._asked, self._answers = queue.SimpleQueue(), queue.SimpleQueue()
            work = (self._function, self._asked, self._answers)
            # A daemon, so that a function that hangs does not keep the process from ending.
            threading.Thread(target=_serve, args=work, name="poolish-step", daemon=True).start()
        self._asked.put((arguments, options))
        try:
            result, error = self._answers.get(timeout=self._timeout_s)
        except queue.Empty:
            self.close()
            raise Late from None
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """Let the helper go."""
        if self._asked is not None:
            self._asked.put(None)
            self._asked = None


def _serve(function: Callable[..., Any], asked: queue.SimpleQueue[Any], answers: queue.SimpleQueue[Any]) -> None:
    while (call := asked.get()) is not None:
        arguments, options = call
        try:
            answers.put((function(*arguments, **options), None))
        except BaseException as error:  # the caller's to handle, whatever it is
            answers.put((None, error))
