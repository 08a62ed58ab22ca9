"""Filters that are functions of a row, with the manners of an expression."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from poolish.concurrency import cached_property
from poolish.fingerprints import function_fingerprint
from poolish.recipes.piece import Mask, Piece
from poolish.recipes.steps import Rejected, place_of, raise_at, reason_of
from poolish.rows import DatasetBuffer


class Judged(NamedTuple):
    """Which rows of a piece a filter keeps, for how many it gave no answer, and those that it failed for."""

    mask: Mask
    n_null: int
    rejected: list[Rejected]


class RowPredicate:
    """``where`` as a function: called with each row as a dict. A version may stand in its attribute ``version``."""

    #: Nobody knows which columns a function looks at, so all are read.
    columns: tuple[str, ...] = ()

    def __init__(self, function: Callable[[dict[str, Any]], Any], what: str = "") -> None:
        self._function, self._what = function, what
        self.name = str(getattr(function, "__name__", type(function).__name__))

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of the function; an ``Unfingerprintable`` asks for a version."""
        # A filter has no argument of its own for a version.
        place = f"{self._what}, where {self.name!r}" if self._what else f"where {self.name!r}"
        name = self.name if self.name.isidentifier() else "keep"
        advice = f"give it an attribute, {name}.version = 1, and another number whenever it changes"
        version = getattr(self._function, "version", None)
        return f"function {function_fingerprint(self._function, place, version, advice=advice)}"

    def __str__(self) -> str:
        return self.fingerprint

    def mask(self, table: pa.Table) -> tuple[Mask, int]:
        """Which rows it is true for; None is no, and counted."""
        answers = list(self._answers(table, self._tell_number))
        return np.array([bool(answer) for answer in answers], bool), sum(answer is None for answer in answers)

    def judged(self, piece: Piece, on_error: str, step: str | None = None) -> Judged:
        """The same for rows whose place is known, so that an error can name it, or rejects the row alone."""
        rejected: list[Rejected] = []

        def failed(i: int, error: Exception) -> bool:
            if on_error == "raise":
                raise_at(place_of(piece, step or f"where {self.name}", i), error)
            rejected.append(Rejected(int(piece.rows[i]), int(piece.subs[i]), reason_of(error)))
            return False

        answers = list(self._answers(piece.table, failed))
        kept = np.array([bool(answer) for answer in answers], bool)
        return Judged(kept, sum(answer is None for answer in answers), rejected)

    def _answers(self, table: pa.Table, failed: Callable[[int, Exception], Any]) -> Iterator[Any]:
        buffer = DatasetBuffer()
        buffer.append(table)
        rows = buffer.snapshot()
        for i in range(len(rows)):
            try:
                answer = self._function(rows[i])
                yield None if answer is None else bool(answer)
            except Exception as error:
                yield failed(i, error)

    def _tell_number(self, i: int, error: Exception) -> bool:
        error.add_note(f"while asking the filter {self.name!r} about row {i} of those that were read together")
        raise error

    def bind(self, **_: Any) -> RowPredicate:
        """A function has no columns to bind."""
        return self
