"""A suite as a step: rows that it does not let through are rejected, each with its reason.

What a suite says about a row may depend on that row alone: then each piece is checked by itself (``prepare``). If it
depends on others (a key that is unique, a mean, a drift), all rows have to be there first (``masks``): ``needs_all``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from poolish.errors import RecipeError, SchemaError
from poolish.recipes.fragment_rows import FragmentRows, Int64, Mask, canonical_table, selected_rows
from poolish.recipes.steps.step import Prepared, Rejected, place_of

#: Parts of a suite, and rules of a column, that look at many rows, or at whatever a function of the user's looks at.
_OF_MANY_ROWS = ("unique", "stat", "drift", "outliers", "checks")
_RULES_OF_MANY_ROWS = ("unique", "check")


def is_suite(step: Any) -> bool:
    """Whether this checks rows: it has ``check`` and a fingerprint, as a ``Suite`` has."""
    return hasattr(step, "check") and hasattr(step, "fingerprint")


def needs_all_rows(suite: Any) -> bool:
    """Whether a verdict about one row depends on others; yes, where the suite does not tell.

    >>> from poolish.guards import Suite
    >>> needs_all_rows(Suite().expect("x", at_least=0)), needs_all_rows(Suite().expect_unique("x"))
    (False, True)
    """
    if not hasattr(suite, "to_dict"):
        return True
    told = suite.to_dict()
    if any(told.get(part) for part in _OF_MANY_ROWS):
        return True
    return any(rule in entry for entry in told.get("expect", ()) for rule in _RULES_OF_MANY_ROWS)


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
        """Check all rows of the piece; by default a bad one stops the bake."""
        rejects: list[tuple[FragmentRows, int, str]] = []
        (mask,) = self._checked([piece], np.arange(len(piece)), on_error, rejects)
        if mask.all():
            return Prepared(piece.table, np.arange(len(piece)), [])
        rejected = [Rejected(int(piece.rows[i]), int(piece.subs[i]), reason) for _, i, reason in rejects]
        return Prepared(piece.table.filter(pa.array(mask)), np.flatnonzero(mask), rejected)

    def masks(
        self, pieces: list[FragmentRows], order: Int64 | None, where: Any, on_error: str, rejects: list[dict[str, Any]]
    ) -> list[Mask]:
        """Which rows of each piece are left, where those that ``where`` asks about are checked together, in order."""
        asked = np.concatenate([selected_rows(piece, where) for piece in pieces] or [np.empty(0, bool)])
        places = np.arange(len(asked)) if order is None else order
        found: list[tuple[FragmentRows, int, str]] = []
        masks = self._checked(pieces, places[asked[places]], on_error, found)
        for piece, i, reason in found:
            place = {"ingredient": piece.ingredient, "file": piece.name, "row": int(piece.rows[i])}
            rejects.append({**place, "step": self._name, "reason": reason})
        return masks

    def _checked(
        self, pieces: list[FragmentRows], places: Int64, on_error: str, rejects: list[tuple[FragmentRows, int, str]]
    ) -> list[Mask]:
        """Which rows are left, where those at ``places`` (of all rows of all pieces) are checked, in that order."""
        masks = [np.ones(len(piece), bool) for piece in pieces]
        if not len(places):  # what is expected of rows holds for none
            return masks
        ends = np.cumsum([len(piece) for piece in pieces])
        result = self._suite.check(self._together(pieces, places))
        bad = np.flatnonzero(~np.asarray(result.mask, bool))
        self._refuse(result, pieces, ends, places[bad], on_error)
        reasons = _reasons(result) if len(bad) else {}
        for number in bad.tolist():
            k, i = _piece_at(ends, int(places[number]))
            masks[k][i] = False
            rejects.append((pieces[k], i, reasons.get(number, "refused")))
        return masks

    def _together(self, pieces: list[FragmentRows], places: Int64) -> pa.Table:
        tables = [canonical_table(piece.table) for piece in pieces if len(piece)]
        try:
            table = pa.concat_tables(tables, promote_options="default")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            names = ", ".join(dict.fromkeys(repr(piece.ingredient) for piece in pieces if len(piece)))
            raise SchemaError(
                f"step {self._name!r} checks rows of {names} together, and they have other types in the same column: "
                f"{error}; cast one of them first"
            ) from error
        if np.array_equal(places, np.arange(table.num_rows)):
            return table
        return table.combine_chunks().take(pa.array(places))  # from many chunks it costs 150 times as much

    def _refuse(self, result: Any, pieces: list[FragmentRows], ends: Int64, bad: Int64, on_error: str) -> None:
        """An error, unless there are rows to blame and they may be skipped."""
        is_ok = bool(result.ok) and not len(bad)
        if is_ok or (on_error != "raise" and not _blames_nobody(result, len(bad))):
            return
        if not len(bad):
            names = ", ".join(dict.fromkeys(repr(piece.ingredient) for piece in pieces))
            raise RecipeError(
                f"step {self._name!r}, ingredient {names}: {result}; no row is to blame, so none can be skipped; "
                "mend the data, or expect it with severity='warn'"
            )
        k, i = _piece_at(ends, int(bad[0]))
        more = f" and {len(bad) - 1} more do" if len(bad) > 1 else " does"
        raise RecipeError(
            f"{place_of(pieces[k], self._name, i)}{more} not pass: {result}; mend them, or bake with on_error='skip'"
        )


def _blames_nobody(result: Any, n_bad: int) -> bool:
    """Whether something is wrong that no row is to blame for, as a mean is."""
    failures: Iterable[Any] = getattr(result, "failures", ())
    if any(each.severity != "warn" and each.bad is None for each in failures):
        return True
    return not n_bad and not result.ok


def _piece_at(ends: Int64, place: int) -> tuple[int, int]:
    """In which piece a row lies, and where in there."""
    k = int(np.searchsorted(ends, place, side="right"))
    return k, place - (int(ends[k - 1]) if k else 0)


def _reasons(result: Any) -> dict[int, str]:
    """Why each bad row was refused, as far as the result tells."""
    bad = result.bad_rows
    if not isinstance(bad, pa.Table) or not {"row", "reason"} <= set(bad.column_names):
        return {}
    pairs = zip(bad.column("row").to_pylist(), bad.column("reason").to_pylist(), strict=True)
    return {int(row): str(reason) for row, reason in pairs}
