"""A suite as a step: rows that it refuses are rejected, each with its reason.

A verdict about a row may depend on that row alone: then each fragment is checked by itself (``prepare``). If it depends
on others (a unique key, a mean, a drift), the suite is a barrier (``needs_all``, ``decide``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from poolish.errors import RecipeError, SchemaError
from poolish.recipes.fragment_rows import FragmentRows, Int64, Mask, canonical_table
from poolish.recipes.steps.barriers import BarrierContext, Decision
from poolish.recipes.steps.step import Prepared, Rejected, piece_at, place_of

#: Parts of a suite, and rules of a column, that look at many rows, or at whatever a function of the user's looks at.
_OF_MANY_ROWS = ("unique", "stat", "drift", "outliers", "checks")
_RULES_OF_MANY_ROWS = ("unique", "check")


def needs_all_rows(suite: Any) -> bool:
    """Whether a verdict about one row depends on others; yes, where the suite does not tell.

    >>> from poolish.guards import Suite
    >>> needs_all_rows(Suite().expect("x", at_least=0)), needs_all_rows(Suite().expect_unique("x"))
    (False, True)
    """
    if not hasattr(suite, "to_dict"):
        return True
    entries = suite.to_dict()
    if any(entries.get(part) for part in _OF_MANY_ROWS):
        return True
    return any(rule in entry for entry in entries.get("expect", ()) for rule in _RULES_OF_MANY_ROWS)


class SuiteStep:
    """Checks rows and leaves the good ones."""

    def __init__(self, name: str, suite: Any) -> None:
        self._name, self._suite = name, suite
        self.needs_all = needs_all_rows(suite)

    @property
    def fingerprint(self) -> str:
        """That of the suite."""
        return f"validate {self._suite.fingerprint}"

    def prepare(self, piece: FragmentRows, on_error: str) -> Prepared:
        """Check the rows of one fragment; by default a bad one stops the bake."""
        keep, reasons = self._checked([piece], np.arange(len(piece)), on_error)
        if keep.all():
            return Prepared(piece.table, np.arange(len(piece)), [])
        rejected = [Rejected(int(piece.rows[i]), int(piece.subs[i]), reason) for i, reason in reasons.items()]
        return Prepared(piece.table.filter(pa.array(keep)), np.flatnonzero(keep), rejected)

    def decide(self, pieces: Sequence[FragmentRows], context: BarrierContext) -> Decision:
        """Check the selected rows together, in their order."""
        keep, rejected = self._checked(pieces, context.positions(pieces), context.on_error)
        return Decision(keep if rejected else None, rejected)

    def _checked(self, pieces: Sequence[FragmentRows], positions: Int64, on_error: str) -> tuple[Mask, dict[int, str]]:
        """Which of all rows stay, where those at ``positions`` are checked in that order, and why the others do not."""
        keep = np.ones(sum(map(len, pieces)), bool)
        if not len(positions):  # expectations hold for no rows
            return keep, {}
        result = self._suite.check(self._together(pieces, positions))
        bad = np.flatnonzero(~np.asarray(result.mask, bool))
        self._refuse(result, pieces, positions[bad], on_error)
        keep[positions[bad]] = False
        reasons = _reasons(result) if len(bad) else {}
        return keep, {int(positions[i]): reasons.get(i, "refused") for i in bad.tolist()}

    def _together(self, pieces: Sequence[FragmentRows], positions: Int64) -> pa.Table:
        tables = [canonical_table(piece.table) for piece in pieces if len(piece)]
        try:
            table = pa.concat_tables(tables, promote_options="default")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            names = ", ".join(dict.fromkeys(repr(piece.ingredient) for piece in pieces if len(piece)))
            raise SchemaError(
                f"step {self._name!r} checks rows of {names} together, and they have other types in the same column: "
                f"{error}; cast one of them first"
            ) from error
        if np.array_equal(positions, np.arange(table.num_rows)):
            return table
        return table.combine_chunks().take(pa.array(positions))  # from many chunks it costs 150 times as much

    def _refuse(self, result: Any, pieces: Sequence[FragmentRows], bad: Int64, on_error: str) -> None:
        """An error, unless there are rows to blame and they may be skipped."""
        is_passed = not _is_failed(result) and not len(bad)
        if is_passed or (on_error != "raise" and not _has_no_bad_rows(result, len(bad))):
            return
        if not len(bad):
            names = ", ".join(dict.fromkeys(repr(piece.ingredient) for piece in pieces))
            raise RecipeError(
                f"step {self._name!r}, ingredient {names}: {result}; no row is to blame, so none can be skipped; "
                "fix the data, or expect it with severity='warn'"
            )
        k, i = piece_at(pieces, int(bad[0]))
        more = f" and {len(bad) - 1} more do" if len(bad) > 1 else " does"
        raise RecipeError(
            f"{place_of(pieces[k], self._name, i)}{more} not pass: {result}; fix them, or bake with on_error='skip'"
        )


def _has_no_bad_rows(result: Any, n_bad: int) -> bool:
    """Whether something is wrong that no row is to blame for, as a mean is."""
    failures: Iterable[Any] = getattr(result, "failures", ())
    if any(each.severity != "warn" and each.bad is None for each in failures):
        return True
    return not n_bad and _is_failed(result)


def _is_failed(result: Any) -> bool:
    """Whether more than a warning was found; an object of another kind only says whether all is ok."""
    return bool(getattr(result, "failed", not result.ok))


def _reasons(result: Any) -> dict[int, str]:
    """Why each bad row was refused, as far as the result tells."""
    bad = result.bad_rows
    if not isinstance(bad, pa.Table) or not {"row", "reason"} <= set(bad.column_names):
        return {}
    pairs = zip(bad.column("row").to_pylist(), bad.column("reason").to_pylist(), strict=True)
    return {int(row): str(reason) for row, reason in pairs}
