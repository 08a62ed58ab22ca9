"""What every command needs of a terminal: text that cannot drive it, errors and exit codes, Ctrl-C.

An error of poolish is printed as one message, any other with the traceback that leads to it. Ctrl-C and SIGTERM are
requests to stop: the batch in the making is finished first, and a second request stops at once.
"""

from __future__ import annotations

import signal
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import typer
from rich.console import Console
from rich.text import Text

from poolish.errors import ConfigError, PoolishError
from poolish.printable import printable

#: Where frames between the command and the user's code come from: poolish, Python, installed libraries.
_BETWEEN = (
    str(Path(__file__).parent.parent),
    "<frozen ",
    *(sysconfig.get_path(kind) for kind in ("stdlib", "platlib", "purelib")),
)

FAILED, MISUSED = 1, 2
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


# Text ---------------------------------------------------------------------------------------------------------------


def one_line(text: object, style: str = "") -> Text:
    r"""A line for rich, with everything escaped that is not seen, line ends included.

    >>> print(one_line("[red]\x1b[2J\n"))
    [red]\x1b[2J\n
    """
    return Text(printable(text), style=style)


def message(text: object) -> Text:
    """A message of poolish, which may have several lines."""
    return Text(printable(text, keep="\n\t"))


# Errors -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Failure:
    """Why a command ends: the message, and the exit code."""

    text: str
    code: int = FAILED

    @classmethod
    def of(cls, error: BaseException, code: int | None = None) -> Failure:
        """The failure for an error."""
        return cls(describe(error), exit_code(error) if code is None else code)


def exit_code(error: BaseException) -> int:
    """1, or 2 if the command or the config is wrong."""
    return MISUSED if isinstance(error, ConfigError) else FAILED


def describe(error: BaseException) -> str:
    """An error as text: the message alone if it is ours, which says where, why and what next.

    >>> print(describe(ConfigError("batch_size: missing")))
    error: batch_size: missing
    """
    if isinstance(error, PoolishError):
        # Every line but the first is indented, so that a name from data cannot begin one that looks like ours.
        return "\n".join([f"error: {error}", *_notes(error), *_user_line(error)]).replace("\n", "\n  ")
    return "".join(traceback.format_exception(type(error), error, _user_traceback(error))).rstrip()


def print_stderr(text: str) -> None:
    """Print to stderr, the word "error:" in red; never wrapped, so that paths can be copied."""
    shown = message(text)
    if text.startswith("error:"):
        shown.stylize("bold red", 0, len("error:"))
    Console(stderr=True, highlight=False).print(shown, soft_wrap=True)


@contextmanager
def explained(*others: type[Exception]) -> Iterator[None]:
    """Exit with a message instead of a traceback for poolish's errors, and for ``others`` that say enough."""
    try:
        yield
    except PoolishError as error:
        print_stderr(describe(error))
        raise typer.Exit(exit_code(error)) from None
    except others as error:
        print_stderr(f"error: {error}".replace("\n", "\n  "))
        raise typer.Exit(FAILED) from None


def _notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", []))


def _user_line(error: BaseException) -> list[str]:
    """The last of the user's own lines that the error came through, if any."""
    lines = [
        f"at {frame.f_code.co_filename}, line {line}, in {frame.f_code.co_name}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(_BETWEEN)
    ]
    return lines[-1:]


def _user_traceback(error: BaseException) -> TracebackType | None:
    """The traceback from the user's first line on; all of it if there is none."""
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename.startswith(_BETWEEN):
        found = found.tb_next
    # A file that cannot be compiled has no line of its own in the traceback; the error names it.
    return found if found is not None or isinstance(error, SyntaxError) else error.__traceback__


# Signals ------------------------------------------------------------------------------------------------------------


class Interrupt:
    """Counts requests to stop, calling ``on_request`` for each; those beyond ``patience`` raise ``KeyboardInterrupt``.

    >>> with Interrupt(patience=1) as interrupt:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     interrupt.count, interrupt.name, interrupt.exit_code
    (1, 'SIGTERM', 143)
    """

    def __init__(self, patience: int = 0) -> None:
        self.patience = patience
        self.count = 0
        self.on_request: Callable[[], object] = lambda: None
        self._first: int = signal.SIGINT
        self._before: dict[int, Any] = {}

    @property
    def name(self) -> str:
        """Which signal came first."""
        return "Ctrl-C" if self._first == signal.SIGINT else signal.Signals(self._first).name

    @property
    def exit_code(self) -> int:
        """What a shell expects of a program that this signal ended."""
        return 128 + self._first

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count == 1:
            self._first = number
        if self.count > self.patience:
            raise KeyboardInterrupt
        self.on_request()

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
