"""Checks of your own, by name: a suite in a file names them, and only what this program registered can be named."""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from poolish.errors import ConfigError

#: Columns in, as arrays of numbers or of Python values; True for every good row out, or one True or False for them all.
CheckFunction = Callable[..., Any]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
_registered: dict[str, CheckFunction] = {}


def register_check(name: str) -> Callable[[CheckFunction], CheckFunction]:
    """Give a check function a name under which suites, also those in files, may ask for it.

    >>> @register_check("even")
    ... def is_even(values):
    ...     return values % 2 == 0
    >>> check_named("even") is is_even
    True
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"check {name!r}: a name is up to 128 letters, digits and _ . -, a letter first")

    def register(function: CheckFunction) -> CheckFunction:
        if not callable(function):
            raise ConfigError(f"check {name!r}: a function of columns, got {function!r}")
        _registered[name] = function
        return function

    return register


def check_named(name: str) -> CheckFunction:
    """The function of a name; never looked for anywhere but among those that were registered."""
    if name in _registered:
        return _registered[name]
    near = get_close_matches(name, _registered, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ConfigError(
        f"check {name!r} is not registered here{hint}; import the module that has @register_check({name!r}) first"
    )
