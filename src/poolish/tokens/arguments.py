"""Whole numbers that a user passed, checked where they enter. ``True`` is none."""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np

from poolish.errors import ConfigError


def is_whole(value: object) -> TypeGuard[int | np.integer[Any]]:
    """Whether this is a whole number of Python or NumPy.

    >>> is_whole(3), is_whole(np.int8(3)), is_whole(True), is_whole(3.0)
    (True, True, False, False)
    """
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def whole_number(value: object, name: str, unit: str, least: int = 1) -> int:
    """The argument ``name`` as an int; ConfigError if it is no whole number, or below ``least``."""
    if not is_whole(value) or value < least:
        raise ConfigError(f"{name}={value!r}: give a whole number of {unit}, {least} or more")
    return int(value)
