"""What can go wrong with data, files and settings, in one tree; a wrong index stays an IndexError.

Each leaf has two parents: ``PoolishError``, so that one ``except`` catches all of poolish, and the builtin
that a caller who does not know poolish would expect, so that code written for files and values keeps working::

    PoolishError
    |-- SchemaError            ValueError          a row, column or batch does not fit its schema
    |   |-- NumberTooLarge     OverflowError       an integer beyond what its column can hold
    |   |-- BadText            UnicodeError        text that has no UTF-8 form
    |   `-- UnknownColumn      KeyError            a column that the schema does not have
    |-- DataRefused            ValueError          a guard found rows that break the rules of its suite
    |-- CorruptDataError       ValueError          what was read back is not what was written
    |-- StoreLocked            BlockingIOError     another process holds the lock
    |-- StoreFull              OSError             no space, quota or size left (ENOSPC, EDQUOT, EFBIG)
    |-- DurabilityLost         OSError             a sync failed: a power cut may leave anything
    |-- QueueError             RuntimeError        something about a queue directory
    |   |-- QueueNotFound      FileNotFoundError
    |   |-- StaleSchema        ValueError          the queue holds batches of another schema
    |   `-- Starved            TimeoutError        no batch came in time
    |-- PacingTimeout          TimeoutError        a rate limiter admitted nothing in time
    |-- ConfigError            ValueError
    |-- RecipeError            ValueError
    |-- Unfingerprintable      ValueError          a ConfigError and a RecipeError: a cache needs a version
    |-- ResumeError            ValueError          a saved state does not belong to this object
    |-- LimitExceeded          ValueError          larger than a limit that protects the process
    |-- BudgetSpent            RuntimeError        more failures than the user allowed
    `-- CircuitOpen            ConnectionError     a source failed too often and is left alone for a while

``str(error)`` is always the plain message, with control characters escaped. Sent to another process an error keeps its
type, message and notes.
"""

from __future__ import annotations

import errno as codes
import os
from collections.abc import Sequence
from typing import Self

from poolish.printable import nearest, printable

__all__ = [
    "BadText",
    "BudgetSpent",
    "CircuitOpen",
    "ConfigError",
    "CorruptDataError",
    "DataRefused",
    "DurabilityLost",
    "LimitExceeded",
    "NumberTooLarge",
    "PacingTimeout",
    "PoolishError",
    "QueueError",
    "QueueNotFound",
    "RecipeError",
    "ResumeError",
    "SchemaError",
    "StaleSchema",
    "Starved",
    "StoreFull",
    "StoreLocked",
    "Unfingerprintable",
    "UnknownColumn",
]


class PoolishError(Exception):
    """The root: ``except PoolishError`` catches all of the tree.

    >>> raise LimitExceeded("column 'page': 70 MB in one cell, the limit is 64 MB; split it or raise the limit")
    Traceback (most recent call last):
    poolish.errors.LimitExceeded: column 'page': 70 MB in one cell, the limit is 64 MB; split it or raise the limit
    """

    def __str__(self) -> str:
        # KeyError would show the repr of the message, OSError would put "[Errno 28]" before it.
        # Names, paths and values in it come from data: escaped here, they cannot drive a terminal.
        return printable(Exception.__str__(self), keep="\n\t")


class _FromSystem(PoolishError):
    """The part shared by errors that are also an ``OSError``: one message, and ``errno`` and ``filename`` beside it.

    Class attributes hide OSError's own slots, so what is set here lies in ``__dict__`` and survives pickling.
    """

    errno: int
    filename: str | None = None

    def __init__(
        self, message: str = "", *, errno: int | None = None, filename: str | os.PathLike[str] | None = None
    ) -> None:
        super().__init__(message)
        if errno is not None:
            self.errno = errno
        if filename is not None:
            self.filename = os.fspath(filename)


class SchemaError(PoolishError, ValueError):
    """A row, column or batch does not fit the schema it meets."""


class NumberTooLarge(SchemaError, OverflowError):
    """An integer lies beyond what its column can hold; it is never rounded or wrapped."""


class BadText(SchemaError, UnicodeError):
    """Text has no UTF-8 form, such as a lone surrogate."""


class UnknownColumn(SchemaError, KeyError):
    """A column was asked for that the schema does not have."""

    @classmethod
    def of(cls, name: object, known: Sequence[str]) -> Self:
        """The error that names the columns there are, and the nearest of them."""
        return cls(f"no column {name!r}; there are {list(known)}{nearest(name, known)}")


class DataRefused(PoolishError, ValueError):
    """A guard did not let data pass: it fits its schema and breaks a rule. ``result`` is what the guard found."""

    result: object = None


class CorruptDataError(PoolishError, ValueError):
    """What was read back is not what was written.

    A ValueError, not an OSError: the reading went well, so reading again (what retry loops do with an OSError)
    gives the same wrong bytes.
    """


class StoreLocked(_FromSystem, BlockingIOError):
    """Another process holds the lock; the message names its pid and host."""

    errno = codes.EAGAIN


class StoreFull(_FromSystem, OSError):
    """There is no space left: ``errno`` tells whether on the disk, in the quota or under the file size limit.

    >>> StoreFull("runs/rollouts: no space for 4 more MB").errno == codes.ENOSPC
    True
    """

    errno = codes.ENOSPC


class DurabilityLost(_FromSystem, OSError):
    """A sync failed, so the kernel may have dropped what it was given. Syncing again would prove nothing."""

    errno = codes.EIO


class QueueError(PoolishError, RuntimeError):
    """Something is wrong with a queue directory."""


class QueueNotFound(_FromSystem, QueueError, FileNotFoundError):
    """There is no queue where one was expected."""

    errno = codes.ENOENT


class StaleSchema(QueueError, ValueError):
    """The queue holds batches of another schema than the one expected."""


class Starved(_FromSystem, QueueError, TimeoutError):
    """No batch came before the timeout."""

    errno = codes.ETIMEDOUT


class PacingTimeout(_FromSystem, TimeoutError):
    """A rate limiter admitted no insert, or no sample, before the timeout."""

    errno = codes.ETIMEDOUT


class ConfigError(PoolishError, ValueError):
    """The configuration does not make sense; the message lists everything that is wrong with it."""


class RecipeError(PoolishError, ValueError):
    """A recipe cannot be baked as it is written."""


class Unfingerprintable(ConfigError, RecipeError):
    """A cache cannot tell whether something is still the same, because of what it ``uses``; pass a version."""

    uses = ""


class ResumeError(PoolishError, ValueError):
    """A saved state does not belong to the object it was given to, or to an older or newer self of it."""


class LimitExceeded(PoolishError, ValueError):
    """Something is larger than a limit that protects the process; limits are changed in code, never by data."""


class BudgetSpent(PoolishError, RuntimeError):
    """More failed than the user's error budget allows."""


class CircuitOpen(PoolishError, ConnectionError):
    """A source failed too often and is left alone for a while; ``probe_in_s`` says for how long.

    A ConnectionError: to the caller, the source cannot be reached. ``Retry`` does not retry it, ``Faults`` does handle
    it, so with ``on_batch="cached"`` a run continues while a source is down.
    """

    probe_in_s: float = 0.0
