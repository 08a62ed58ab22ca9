"""Rules of your own: expressions over several columns, and functions that were registered under a name.

A suite in a file can name only functions that this program registered; nothing is imported or searched elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, ClassVar

import numpy as np

from poolish.columns import Mask, NotApplicable, TableView
from poolish.errors import ConfigError, RecipeError, UnknownColumn
from poolish.expressions import Expression
from poolish.guards.checks.verdicts import Level

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
    """The registered function of a name."""
    if name in _registered:
        return _registered[name]
    near = get_close_matches(name, _registered, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ConfigError(
        f"check {name!r} is not registered here{hint}; import the module that has @register_check({name!r}) first"
    )


@dataclass(frozen=True)
class Holds:
    """An expression over columns is true or unknown; see poolish/expressions."""

    text: str
    expression: Expression = field(compare=False, repr=False)
    level: ClassVar[Level] = "meaning"

    @property
    def columns(self) -> tuple[str, ...]:
        return self.expression.columns

    @property
    def rule(self) -> str:
        return self.text

    def bad(self, rows: TableView) -> Mask | None:
        # Without columns to read, one is needed for the number of rows.
        table = rows.to_arrow(self.columns or rows.names[:1])
        try:
            return ~self.expression.passes(table)
        except (RecipeError, UnknownColumn) as error:
            raise NotApplicable(str(error)) from None


@dataclass(frozen=True)
class Custom:
    """A function that was registered under a name accepts the row."""

    name: str
    columns: tuple[str, ...]
    level: ClassVar[Level] = "meaning"

    @property
    def rule(self) -> str:
        return self.name

    def bad(self, rows: TableView) -> Mask | None:
        given = [rows[name].objects() for name in self.columns] if self.columns else [rows.to_arrow()]
        try:
            answer = np.asarray(check_named(self.name)(*given))
        except Exception as error:
            error.add_note(f"while check {self.name!r} looked at {', '.join(self.columns) or 'the rows'}")
            raise
        if answer.dtype != bool or answer.shape not in ((), (len(rows),)):
            raise ConfigError(
                f"check {self.name!r}: it returned {answer.dtype} of shape {answer.shape}; return True or False for "
                f"each of the {len(rows)} rows, or one for all"
            )
        return np.broadcast_to(~answer, len(rows))
