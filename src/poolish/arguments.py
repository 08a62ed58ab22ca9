"""Whole numbers that a user passed, checked where they enter; ``True`` is none."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from poolish.errors import ConfigError


def check_whole(value: Any, name: str, *, least: int = 1, unit: str = "") -> int:
    """The argument ``name`` as an int; ConfigError if it is no whole number, or below ``least``.

    >>> check_whole(2.5, "width", unit="tokens")
    Traceback (most recent call last):
    poolish.errors.ConfigError: width=2.5: give a whole number of tokens, 1 or more
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise ConfigError(f"{name}={value!r}: give a whole number{unit and f' of {unit}'}, {least} or more")
    return number


def is_whole(value: object) -> bool:
    """Whether this is a whole number of Python or NumPy.

    >>> is_whole(3), is_whole(np.int8(3)), is_whole(True), is_whole(3.0)
    (True, True, False, False)
    """
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
