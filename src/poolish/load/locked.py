"""A lock that travels well: a copy sent to another process gets its own, and so does a forked child.

A fork copies a lock as it is at that moment. If another thread held it, nobody in the child ever lets it go; so every
child begins with locks that are free, and those who use one write their state in steps that leave it right at any time.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from poolish.alive import Alive


class Locked:
    """Something with a lock, ``self._lock``, that can be pickled and forked."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _all.add(self)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Locked.__init__(self)
        self.__dict__.update(state)

    def _after_fork(self) -> None:
        """What a forked child does first."""
        self._lock = threading.RLock()


_all: Alive[Locked] = Alive()


def _renew() -> None:
    for locked in _all:
        locked._after_fork()


os.register_at_fork(after_in_child=_renew)
