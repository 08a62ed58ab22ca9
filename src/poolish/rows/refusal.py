"""A value that a column cannot hold, and the error that tells the user so."""

from __future__ import annotations

import reprlib

import pyarrow as pa

from poolish.errors import LimitExceeded, SchemaError
from poolish.schema import describe


class Refusal(Exception):
    """Raised where the rule is known; whoever knows the place turns it into the error a user sees.

    ``{column}`` in the advice stands for the name of the column.
    """

    def __init__(
        self, rule: str, value: object, advice: str, error: type[SchemaError | LimitExceeded] = SchemaError
    ) -> None:
        super().__init__(rule)
        self.rule, self.value, self.advice, self.error = rule, value, advice, error
        self.path: list[str] = []
        self.index = 0

    def at(self, part: str) -> Refusal:
        """The same refusal, seen from one level further out."""
        self.path.insert(0, part)
        return self

    def with_index(self, index: int) -> Refusal:
        """The same refusal, about element ``index`` of what was looked at."""
        self.index = index
        return self

    def explained(self, row: int, column: str) -> SchemaError | LimitExceeded:
        """The error for the user: where, which rule, which value, what next."""
        place = f"row {row}, column {column!r}" + (f" at {''.join(self.path)}" if self.path else "")
        advice = self.advice.replace("{column}", repr(column))
        return self.error(f"{place}: {self.rule}, got {shown(self.value)}; {advice}")


def shown(value: object) -> str:
    """A value for a message: its type, and as much of it as fits a line.

    >>> shown("rye"), shown(list(range(100)))
    ("str 'rye'", 'list [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...]')
    """
    if isinstance(value, pa.DataType):
        return describe(value)
    kind = type(value).__name__
    shape = getattr(value, "shape", None)
    if shape and isinstance(shape, tuple) and hasattr(value, "dtype"):
        return f"{kind} {str(value.dtype).removeprefix('torch.')}{list(shape)}"
    try:
        text = _short.repr(value)
    except Exception:  # the value's own repr fails; its type has to do
        return kind
    return f"{kind} {text if len(text) <= 60 else text[:57] + '...'}"


_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 60
_short.maxlist = _short.maxtuple = _short.maxdict = _short.maxset = 12
