"""How an error is told: poolish's own as one message, anybody else's with the traceback that leads to it."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import typer
from rich.console import Console

from poolish.cli.screen import message
from poolish.errors import ConfigError, PoolishError

#: Where lines come from that stand between the command and the user's code: poolish, Python, installed libraries.
_BETWEEN = (
    str(Path(__file__).parent.parent),
    "<frozen ",
    *(sysconfig.get_path(kind) for kind in ("stdlib", "platlib", "purelib")),
)

FAILED, MISUSED = 1, 2


@dataclass(frozen=True)
class Failure:
    """Why a command ends: what to tell, and the exit code."""

    text: str
    code: int = FAILED

    @classmethod
    def of(cls, error: BaseException, code: int | None = None) -> Failure:
        """The failure that an error makes."""
        return cls(describe(error), exit_code(error) if code is None else code)


def exit_code(error: BaseException) -> int:
    """1, or 2 where the command or the config was not as it should be."""
    return MISUSED if isinstance(error, ConfigError) else FAILED


def describe(error: BaseException) -> str:
    """What to tell of an error: it says itself where, why and what next if it is ours.

    >>> print(describe(ConfigError("batch_size: missing")))
    error: batch_size: missing
    """
    if isinstance(error, PoolishError):
        # Every line but the first is indented: one that a name from data begins is not taken for ours.
        return "\n".join([f"error: {error}", *_notes(error), *_place(error)]).replace("\n", "\n  ")
    return "".join(traceback.format_exception(type(error), error, _from_theirs(error))).rstrip()


def tell(text: str) -> None:
    """Put an error on the screen, its first word in red; never wrapped, so that paths can be copied."""
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
        tell(describe(error))
        raise typer.Exit(exit_code(error)) from None
    except others as error:
        tell(f"error: {error}".replace("\n", "\n  "))
        raise typer.Exit(FAILED) from None


def _notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", []))


def _place(error: BaseException) -> list[str]:
    """The user's own line that the error came through last, if it came through one."""
    theirs = [
        f"at {frame.f_code.co_filename}, line {line}, in {frame.f_code.co_name}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(_BETWEEN)
    ]
    return theirs[-1:]


def _from_theirs(error: BaseException) -> TracebackType | None:
    """The traceback from the first line that is the user's; all of it, if none is."""
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename.startswith(_BETWEEN):
        found = found.tb_next
    # A file that cannot be compiled has no line of its own in the traceback; the error names it.
    return found if found is not None or isinstance(error, SyntaxError) else error.__traceback__
