"""Waiting for a queue that a provider has yet to make."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from poolish.errors import ConfigError, QueueNotFound

_LOOK_S = 0.02
_SAY_S = 10.0

logger = logging.getLogger("poolish.serve")
Found = TypeVar("Found")


class NoSuchSplit(ConfigError):
    """The queue has other splits than the one that was asked for."""


class QueueDeadline:
    """How long queues are waited for, from when this is made."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s, self._begun = wait_s, time.monotonic()

    def find(self, look: Callable[[], Found]) -> Found:
        """What ``look`` returns once there is a queue; its error where there is none in time, with how long it took."""
        say_at = time.monotonic() + _SAY_S
        while True:
            try:
                return look()
            except (QueueNotFound, NoSuchSplit) as error:
                missing = error
            waited_s = time.monotonic() - self._begun
            if not self._wait_s:
                raise missing
            if waited_s >= self._wait_s:
                text = f"{missing}; waited {waited_s:.1f} s for it, wait_for_queue_s={self._wait_s:g} is over"
                if isinstance(missing, QueueNotFound):
                    raise QueueNotFound(text, filename=missing.filename)
                raise NoSuchSplit(text)
            if time.monotonic() >= say_at:
                logger.warning("%s; waited %.1f s for it", missing, waited_s)
                say_at += 3 * _SAY_S
            time.sleep(min(_LOOK_S, self._wait_s - waited_s))
