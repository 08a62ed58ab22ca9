"""Whose fault an error is: the data's, the program's, or the machine's.

- Errors about *values and files* (ValueError, OSError, ...) are the data's: the next row may be better.
- Errors about *names, types, indices and settings* (TypeError, IndexError, ConfigError, ...) are the program's: every
  row would fail the same way, or worse, only some of them. They always stop.
- A machine that is *out of something* (disk, quota, memory, open files) stops as well: no row is to blame.

A ValueError may be a bug too, such as two shapes that do not fit; then most rows fail, and the budget ends the run
after a few of them. Damaged files decide what else is on the list: thousands of bit flips in PNG, JPEG, GIF, TIFF,
WebP, NPY, NPZ, JSON, WAV and safetensors were decoded, and what was raised is here, except the KeyError of a zip and
the RuntimeError of a WAV, which are far more often bugs; ``recoverable=`` can name them.
"""

from __future__ import annotations

import errno as codes
import inspect
import struct
import zlib
from collections.abc import Callable, Iterable
from typing import Any

from poolish.errors import (
    BudgetSpent,
    CircuitOpen,
    ConfigError,
    CorruptDataError,
    DurabilityLost,
    QueueNotFound,
    RecipeError,
    ResumeError,
    StaleSchema,
    StoreLocked,
    UnknownColumn,
)

#: An error by its class, or by its dotted name where the library may not be loaded, and then nothing raises it.
ErrorKind = type[Exception] | str

#: What ``Faults`` takes for a fault of the data by default. CorruptDataError, SchemaError, LimitExceeded,
#: UnicodeError, JSONDecodeError and Arrow's ArrowInvalid are ValueErrors; timeouts and broken connections are OSErrors.
DATA_ERRORS: tuple[ErrorKind, ...] = (
    ValueError,
    ArithmeticError,
    OSError,
    EOFError,
    SyntaxError,  # Pillow's for a broken PNG, NumPy's for a broken header, XML's ParseError
    struct.error,
    zlib.error,
    "_lzma.LZMAError",
    "zipfile.BadZipFile",
    "tarfile.TarError",
    "tokenize.TokenError",  # NumPy's for a broken header
    "_csv.Error",
    "wave.Error",
    "PIL.Image.DecompressionBombError",
    "safetensors._safetensors_rust.SafetensorError",
    "safetensors_rust.SafetensorError",
    "soundfile.SoundFileError",
)

#: What always stops, whatever was called recoverable.
PROGRAM_ERRORS: tuple[type[Exception], ...] = (
    TypeError,
    AttributeError,
    NameError,
    IndexError,
    AssertionError,
    ImportError,
    NotImplementedError,
    ConfigError,
    RecipeError,
    ResumeError,
    StaleSchema,
    QueueNotFound,
    UnknownColumn,
    StoreLocked,
    BudgetSpent,
)

_OUT_OF = {codes.ENOSPC, codes.EDQUOT, codes.EFBIG, codes.EROFS, codes.ENOMEM, codes.EMFILE, codes.ENFILE}

#: Answers, not failures to answer: asking again gives them again.
ANSWERS: tuple[type[Exception], ...] = (
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)

_NEVER_AGAIN = (CorruptDataError, DurabilityLost, BudgetSpent, CircuitOpen)
_DAMAGED = ("PIL.UnidentifiedImageError",)


def is_resource_error(error: BaseException) -> bool:
    """Whether the machine is out of space, memory or files, or lost a sync: neither the data nor waiting helps.

    >>> is_resource_error(OSError(codes.ENOSPC, "no space left")), is_resource_error(OSError(codes.EIO, "bad sector"))
    (True, False)
    """
    if isinstance(error, (MemoryError, DurabilityLost)):
        return True
    return isinstance(error, OSError) and error.errno in _OUT_OF


def is_data_error(error: BaseException, recoverable: Iterable[ErrorKind] = DATA_ERRORS) -> bool:
    """Whether a policy for bad data applies to this error.

    >>> is_data_error(ValueError("no number: 12x")), is_data_error(IndexError("row 12"))
    (True, False)
    """
    if isinstance(error, PROGRAM_ERRORS) or is_resource_error(error):
        return False
    return any(is_of(error, kind) for kind in recoverable)


def is_transient(error: BaseException, retry_on: tuple[ErrorKind, ...]) -> bool:
    """Whether asking again may help.

    What is an answer or a bug is asked for again only if ``retry_on`` names exactly that class.

    >>> is_transient(TimeoutError(), (OSError,)), is_transient(FileNotFoundError(), (OSError,))
    (True, False)
    >>> is_transient(FileNotFoundError(), (OSError, FileNotFoundError))
    True
    """
    if isinstance(error, _NEVER_AGAIN) or is_resource_error(error) or any(is_of(error, name) for name in _DAMAGED):
        return False
    unlikely = tuple(kind for kind in (*ANSWERS, *PROGRAM_ERRORS) if kind not in retry_on)
    return not isinstance(error, unlikely) and any(is_of(error, kind) for kind in retry_on)


def is_of(error: BaseException, kind: ErrorKind) -> bool:
    """``isinstance``, for classes and for dotted names of classes; what ends a program, such as Ctrl-C, is of no kind.

    >>> is_of(KeyboardInterrupt(), "builtins.BaseException")
    False
    """
    if isinstance(kind, str):
        names = (f"{parent.__module__}.{parent.__qualname__}" for parent in type(error).__mro__)
        return isinstance(error, Exception) and kind in names
    return isinstance(error, kind)


def error_kinds(kinds: Any, argument: str) -> tuple[ErrorKind, ...]:
    """Error kinds as the user gave them, checked: one or several classes or dotted names.

    >>> error_kinds(ValueError, "retry_on")
    (<class 'ValueError'>,)
    """
    several = tuple(kinds) if isinstance(kinds, (tuple, list, set, frozenset)) else (kinds,)
    for kind in several:
        if not (isinstance(kind, str) and "." in kind) and not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise ConfigError(
                f"{argument}: an error is named by its class, or by text like 'wave.Error', got {kind!r}; "
                "what is no Exception, such as KeyboardInterrupt, is never handled"
            )
    return several


def name_of(error: BaseException) -> str:
    """The kind of an error, as it is counted.

    >>> name_of(OSError()), name_of(CorruptDataError()), name_of(zlib.error())
    ('OSError', 'CorruptDataError', 'zlib.error')
    """
    kind = type(error)
    own = kind.__module__ == "builtins" or kind.__module__.startswith("poolish.")
    return kind.__qualname__ if own else f"{kind.__module__}.{kind.__qualname__}"


def check_returns_answer(fn: Callable[..., Any], protected: str, protect: str) -> None:
    """Refuse a coroutine or generator function: its call returns before it can fail."""
    if inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise ConfigError(
            f"{fn.__qualname__}: calling it only makes a generator or coroutine, which fails later, outside of the "
            f"{protected} call; {protect} the function that reads inside it"
        )
