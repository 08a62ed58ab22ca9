"""Ctrl-C and SIGTERM as a wish to end: the batch in the making is finished first, and a second wish ends it at once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Counts the wishes to end, calling ``on_wish`` for each; those beyond ``patience`` raise ``KeyboardInterrupt``.

    >>> with Interrupt(patience=1) as interrupt:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     interrupt.count, interrupt.name, interrupt.exit_code
    (1, 'SIGTERM', 143)
    """

    def __init__(self, patience: int = 0) -> None:
        self.patience = patience
        self.count = 0
        self.on_wish: Callable[[], object] = lambda: None
        self._first: int = signal.SIGINT
        self._before: dict[int, Any] = {}

    @property
    def name(self) -> str:
        """Which signal came first."""
        return "Ctrl-C" if self._first == signal.SIGINT else signal.Signals(self._first).name

    @property
    def exit_code(self) -> int:
        """What a shell expects of a program that this signal has ended."""
        return 128 + self._first

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count == 1:
            self._first = number
        if self.count > self.patience:
            raise KeyboardInterrupt
        self.on_wish()

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
