"""What a step is, and what happens to rows that it fails for.

    row-local   prepare(piece, on_error) -> Prepared          each fragment by itself, cached
    barrier     see ``barriers``                               all rows at once

With ``on_error="raise"`` a failing row is an error that names its place; otherwise it becomes a ``Rejected`` row.
Steps work on many rows at once, so ``poolish.expressions.halving`` finds the ones that fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, NoReturn, Protocol

import numpy as np
import pyarrow as pa

from poolish.errors import RecipeError
from poolish.recipes.fragment_rows import FragmentRows, Int64


class Rejected(NamedTuple):
    """A row that a step failed for."""

    row: int
    sub: int
    reason: str


class Prepared(NamedTuple):
    """The rows a step returns, the position of each one's parent in the input, and the rejected rows."""

    table: pa.Table
    parents: Int64
    rejected: list[Rejected]


class Step(Protocol):
    """A row-local step: what it does to a row depends on that row alone."""

    @property
    def fingerprint(self) -> str:
        """Changes whenever its results do; raises ``Unfingerprintable`` if that cannot be known without a version."""

    def prepare(self, piece: FragmentRows, on_error: str) -> Prepared:
        """Apply the step to all rows of a fragment."""


class WrongResult(RecipeError):
    """A user's function returned the wrong thing, or nothing in time; reported as a RecipeError with its place."""


def place_of(piece: FragmentRows, step: str, first: int | None = None, last: int | None = None) -> str:
    """The ingredient, file, rows and step for an error message; without rows where all are concerned."""
    parts = [f"ingredient {piece.ingredient!r}", *([piece.name] if piece.name else [])]
    if first is not None and last is not None and last > first:
        parts.append(f"rows {piece.rows[first]} to {piece.rows[last]}")
    elif first is not None:
        parts.append(f"row {piece.rows[first]}")
    return ", ".join([*parts, f"step {step!r}"])


def piece_at(pieces: Sequence[FragmentRows], position: int) -> tuple[int, int]:
    """The number of the piece that holds a row, and the row's position in it."""
    ends = np.cumsum([len(piece) for piece in pieces])
    k = int(np.searchsorted(ends, position, side="right"))
    return k, position - int(ends[k]) + len(pieces[k])


def rejected_row(piece: FragmentRows, i: int, error: Exception) -> Rejected:
    """Row ``i`` of a fragment, rejected because of an error."""
    kind = RecipeError if isinstance(error, WrongResult) else type(error)
    return Rejected(int(piece.rows[i]), int(piece.subs[i]), f"{kind.__name__}: {error}")


def raise_at(place: str, error: Exception) -> NoReturn:
    """Raise an error with its place: in the message of our errors, in a note on the user's."""
    if isinstance(error, WrongResult):
        raise RecipeError(f"{place}: {error}") from error.__cause__
    if isinstance(error, StopIteration):  # it would end the loop that asks for the next result
        raise RuntimeError(f"while baking {place}: StopIteration, from next() without a default") from error
    error.add_note(f"while baking {place}")
    raise error
