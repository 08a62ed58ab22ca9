"""Asking a filter about rows whose place is known: a row that it fails for is an error that names it, or is rejected.

An expression is asked about all rows at once. Only where that fails, the rows that it fails for are found by halving;
what fails for no rows at all (an unknown column) is no row's fault, and an error whatever ``on_error`` says.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from poolish.recipes.callables import Judged, RowPredicate
from poolish.recipes.piece import Mask, Piece, bound_to
from poolish.recipes.steps import Rejected, place_of, raise_at, reason_of


def filtered(piece: Piece, where: Any, on_error: str, rejects: list[dict[str, Any]]) -> tuple[Mask, int]:
    """Which rows of a piece an ingredient's filter keeps, and how many it knows nothing of."""
    judged = _judged(piece, where, on_error, None)
    rejects += [reject_of(piece, "where", rejected) for rejected in judged.rejected]
    return judged.mask, judged.n_null


def asked_for(piece: Piece, where: Any, on_error: str, step: str, rejects: list[dict[str, Any]]) -> tuple[Piece, Mask]:
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


def reject_of(piece: Piece, step: str, rejected: Rejected) -> dict[str, Any]:
    """A rejected row with all that says which it is."""
    place = {"ingredient": piece.ingredient, "file": piece.name, "row": rejected.row}
    return {**place, "step": step, "reason": rejected.reason}


def _judged(piece: Piece, where: Any, on_error: str, step: str | None) -> Judged:
    if isinstance(where, RowPredicate):
        return where.judged(piece, on_error, step)
    step = step or "where"
    try:
        mask, n_null = where.mask(piece.table)
        return Judged(mask, n_null, [])
    except Exception as error:
        try:
            where.mask(piece.table.slice(0, 0))
        except Exception:
            raise_at(place_of(piece, step), error)
    mask, n_null, rejected = np.zeros(len(piece), bool), 0, list[Rejected]()
    waiting = [(0, len(piece))]
    while waiting:
        first, n_rows = waiting.pop()
        part = piece.slice(first, n_rows)
        try:
            mask[first : first + n_rows], n_unknown = where.mask(part.table)
            n_null += n_unknown
        except Exception as error:
            if n_rows > 1:
                half = n_rows // 2
                waiting += [(first + half, n_rows - half), (first, half)]
            elif on_error == "raise":
                raise_at(place_of(part, step, 0), error)
            else:
                rejected.append(Rejected(int(part.rows[0]), int(part.subs[0]), reason_of(error)))
    return Judged(mask, n_null, rejected)
