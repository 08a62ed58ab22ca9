"""Whole numbers that a user passed, checked where they enter; ``True`` is none."""

from __future__ import annotations

import operator
from typing import Any

from poolish.errors import ConfigError


def check_whole(value: Any, name: str, *, least: int = 1, unit: str = "") -> int:
    """The argument ``name`` as an int; ConfigError if it is no whole number, or below ``least``.

    >>> check_whole(2.5, "width", unit="tokens")
    Traceback (most recent call last):
    poolish.errors.ConfigError: width=2.5: give a whole number of tokens, 1 or more
    """
    if not is_whole(value) or value < least:
        raise ConfigError(f"{name}={value!r}: give a whole number{unit and f' of {unit}'}, {least} or more")
    return operator.index(value)


def is_whole(value: object) -> bool:
    """Whether this can be an index: a whole number of Python, NumPy or torch, and no bool.

    >>> is_whole(3), is_whole(True), is_whole(3.0)
    (True, False, False)
    """
    try:
        operator.index(value)  # type: ignore[arg-type]  # asked here
    except TypeError:
        return False
    return not isinstance(value, bool)
