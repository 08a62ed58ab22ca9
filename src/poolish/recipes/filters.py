"""Filters on the rows of a fragment: expressions, and functions of a row with the interface of an expression.

An expression is evaluated on all rows at once. Only if that fails, halving finds the rows that it fails for: each is an
error that names its place, or a rejected row. What fails without any rows (an unknown column) is always an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from poolish.concurrency import cached_property
from poolish.errors import PoolishError
from poolish.expressions import Expression, as_expression, halving
from poolish.fingerprints import check_attributes, function_fingerprint
from poolish.recipes.fragment_rows import (
    Filter,
    FragmentRows,
    Mask,
    Rejected,
    bound_to,
    place_of,
    raise_at,
    rejected_row,
)
from poolish.rows import DatasetBuffer


def filtered(piece: FragmentRows, where: Filter, on_error: str, rejects: list[dict[str, Any]]) -> tuple[Mask, int]:
    """Which rows of a piece an ingredient's filter keeps, and how many it knows nothing of."""
    judged = _judged(piece, where, on_error, None)
    rejects += [reject_of(piece, "where", rejected) for rejected in judged.rejected]
    return judged.mask, judged.n_null


def asked_for(
    piece: FragmentRows, where: Filter | None, on_error: str, step: str, rejects: list[dict[str, Any]]
) -> tuple[FragmentRows, Mask]:
    """The rows of a piece that a step's filter does not fail for, and which of them it asks for."""
    if where is None:
        return piece, np.ones(len(piece), bool)
    bound = bound_to(piece, where)
    if isinstance(bound, bool):
        return piece, np.full(len(piece), bound)
    judged = _judged(piece, bound, on_error, step)
    if not judged.rejected:
        return piece, judged.mask
    rejects += [reject_of(piece, step, rejected) for rejected in judged.rejected]
    failed = {(rejected.row, rejected.sub) for rejected in judged.rejected}
    named = zip(piece.rows.tolist(), piece.subs.tolist(), strict=True)
    is_left = np.array([pair not in failed for pair in named], bool)
    return piece.keep(is_left), judged.mask[is_left]


def reject_of(piece: FragmentRows, step: str, rejected: Rejected) -> dict[str, Any]:
    """A rejected row with all that says which it is."""
    place = {"ingredient": piece.ingredient, "file": piece.name, "row": rejected.row}
    return {**place, "step": step, "reason": rejected.reason}


def _judged(piece: FragmentRows, where: Filter, on_error: str, step: str | None) -> FilterResult:
    if isinstance(where, RowPredicate):
        return where.judged(piece, on_error, step)
    step = step or "where"
    try:
        mask, n_null = where.mask(piece.table)
        return FilterResult(mask, n_null, [])
    except Exception as error:
        try:
            where.mask(piece.table.slice(0, 0))
        except Exception:
            raise_at(place_of(piece, step), error)
    mask, n_null, rejected = np.zeros(len(piece), bool), 0, list[Rejected]()

    def failed(first: int, n_rows: int, error: Exception) -> None:
        if on_error == "raise":
            raise_at(place_of(piece, step, first), error)
        rejected.append(rejected_row(piece, first, error))

    def attempt(first: int, n_rows: int) -> tuple[Mask, int]:
        found: tuple[Mask, int] = where.mask(piece.slice(first, n_rows).table)
        return found

    for first, n_rows, (kept, n_unknown) in halving(attempt, [(0, len(piece))], failed):
        mask[first : first + n_rows] = kept
        n_null += n_unknown
    return FilterResult(mask, n_null, rejected)


# Functions of a row -------------------------------------------------------------------------------------------------


class FilterResult(NamedTuple):
    """Which rows of a piece a filter keeps, for how many it gave no answer, and those that it failed for."""

    mask: Mask
    n_null: int
    rejected: list[Rejected]


class RowPredicate:
    """``where`` as a function: called with each row as a dict. A version may stand in its attribute ``version``."""

    #: The columns that a function reads are unknown, so all are read.
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

    def judged(self, piece: FragmentRows, on_error: str, step: str | None = None) -> FilterResult:
        """The same for rows whose place is known, so that an error can name it, or rejects the row alone."""
        rejected: list[Rejected] = []

        def failed(i: int, error: Exception) -> bool:
            if on_error == "raise":
                raise_at(place_of(piece, step or f"where {self.name}", i), error)
            rejected.append(rejected_row(piece, i, error))
            return False

        answers = list(self._answers(piece.table, failed))
        kept = np.array([bool(answer) for answer in answers], bool)
        return FilterResult(kept, sum(answer is None for answer in answers), rejected)

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


def as_filter(where: Any, what: str = "") -> Filter | None:
    """A filter as an expression or predicate that gives a mask; ``what`` names what it filters in errors."""
    if where is None:
        return None
    if callable(where) and not isinstance(where, Expression):
        check_attributes(where, f"{what}, where" if what else "where")
        return RowPredicate(where, what)
    try:
        return as_expression(where)
    except PoolishError as error:
        raise type(error)(f"{what}, where: {error}" if what else str(error)) from None
