"""A suite as a step: rows that it does not let through are rejected, each with its reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from poolish.errors import RecipeError
from poolish.recipes.piece import Piece
from poolish.recipes.steps import Prepared, Rejected


def is_suite(step: Any) -> bool:
    """Whether this checks rows: it has ``check`` and a fingerprint, as a ``Suite`` has."""
    return hasattr(step, "check") and hasattr(step, "fingerprint")


class SuiteStep:
    """Checks rows and leaves the good ones."""

    def __init__(self, name: str, suite: Any) -> None:
        self._name, self._suite = name, suite
        self.fingerprint = f"validate {suite.fingerprint}"

    def prepare(self, piece: Piece, on_error: str) -> Prepared:
        """Check all rows of the piece; by default a bad one stops the bake."""
        result = self._suite.check(piece.table)
        mask = np.asarray(result.mask, bool)
        bad = np.flatnonzero(~mask)
        if not len(bad):
            if not result.ok and on_error == "raise":
                raise RecipeError(f"step {self._name!r}, ingredient {piece.ingredient!r}: {result}")
            return Prepared(piece.table, np.arange(len(piece)), [])
        if on_error == "raise":
            where = f", {piece.name}" if piece.name else ""
            raise RecipeError(
                f"step {self._name!r}: ingredient {piece.ingredient!r}{where}, row {piece.rows[bad[0]]} and "
                f"{len(bad) - 1} more do not pass: {result}; mend them, or bake with on_error='skip'"
            )
        reasons = _reasons(result, len(piece))
        rejected = [Rejected(int(piece.rows[i]), int(piece.subs[i]), reasons.get(int(i), "refused")) for i in bad]
        kept = np.flatnonzero(mask)
        return Prepared(piece.table.take(pa.array(kept)), kept, rejected)


def _reasons(result: Any, n_rows: int) -> dict[int, str]:
    """Why each bad row was refused, as far as the result tells."""
    bad = result.bad_rows
    if not isinstance(bad, pa.Table) or not {"row", "reason"} <= set(bad.column_names):
        return {}
    pairs = zip(bad.column("row").to_pylist(), bad.column("reason").to_pylist(), strict=True)
    return {int(row): str(reason) for row, reason in pairs}
