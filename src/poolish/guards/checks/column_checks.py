"""Checks of columns as a whole: their statistics, whether they drifted from a reference, how many outliers they have.

Each judges all rows it is given at once, so it needs enough of them: with too few, or with a column that never changes,
its verdict is that nothing can be said, which is no failure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolish.columns import Column, NotApplicable, TableView
from poolish.guards.checks.checks import Number
from poolish.guards.checks.verdicts import Action, Severity, Verdict, examples_of
from poolish.guards.stats.column_profile import ColumnProfile
from poolish.guards.stats.drift import ColumnDrift, drift
from poolish.guards.stats.outliers import OUTLIER_METHODS, Outliers
from poolish.guards.stats.profile import Profile

Floats = NDArray[np.float64]


# Statistics -------------------------------------------------------------------------------------------------------


def _quantile(share: float) -> Callable[[ColumnProfile], float]:
    return lambda profile: profile.quantile(share)


#: What ``Suite.stat`` can ask of a column, which is what a ``Profile`` says of it: of the finite numbers, those in
#: arrays and lists included, or of the lengths of text. The shares are of all rows.
STATISTICS: dict[str, Callable[[ColumnProfile], float | None]] = {
    "mean": lambda profile: profile.mean,
    "std": lambda profile: profile.std,
    "variance": lambda profile: profile.variance,
    "skewness": lambda profile: profile.skewness,
    "kurtosis": lambda profile: profile.kurtosis,
    "min": lambda profile: profile.min,
    "max": lambda profile: profile.max,
    "median": lambda profile: profile.median,
    **{f"q{share:02d}": _quantile(share / 100) for share in (1, 5, 10, 25, 75, 90, 95, 99)},
    "null_share": lambda profile: profile.nulls / max(profile.count, 1),
    "nan_share": lambda profile: (profile.nan + profile.infinite) / max(profile.count, 1),
    "distinct": lambda profile: profile.distinct,
}


def finite_values(column: Column) -> Floats:
    """The finite numbers of a column, nulls left out; ``NotApplicable`` if it holds no numbers."""
    flat = column.flat
    if not isinstance(flat.values, np.ndarray) or flat.values.dtype.kind not in "biuf":
        raise NotApplicable(f"column {column.name!r} is {column.type_name}; a statistic is asked of numbers")
    return np.asarray(flat.values[_is_used(flat.values, flat.nulls)], np.float64)


@dataclass(frozen=True)
class StatCheck:
    """Statistics of a column lie in ranges."""

    column: str
    ranges: Mapping[str, tuple[Number | None, Number | None]]
    severity: Severity = "warn"

    @property
    def columns(self) -> tuple[str, ...] | None:
        return (self.column,)

    def judge(self, rows: TableView, reference: Any, action: Action) -> Iterator[Verdict]:
        """One verdict for each statistic."""
        try:
            profile = profile_of(rows[self.column])
        except NotApplicable as why:
            profile, reason = None, str(why)
        for name, (low, high) in self.ranges.items():
            rule = f"has a {name} {_range_text(low, high)}"
            draft = _unjudged(rule, (self.column,), self.severity, rows, action)
            value = None if profile is None else STATISTICS[name](profile)
            if profile is None:
                yield draft.failed(reason)
            elif not isinstance(value, (int, float)) or math.isnan(value) or len(rows) == 0:
                yield replace(draft, status="insufficient", detail=f"these rows have no {name}")
            elif (low is not None and value < low) or (high is not None and value > high):
                yield draft.failed(f"it is {value:.6g}", value=value, low=low, high=high)
            else:
                yield replace(draft, measured={"value": value, "low": low, "high": high})


def profile_of(column: Column) -> ColumnProfile:
    """The profile of one column."""
    return Profile.of({column.name: column.to_arrow()})[column.name]


# Drift ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DriftCheck:
    """Columns look as they do in the reference."""

    chosen: tuple[str, ...] | None = None
    method: str = "psi"
    alpha: float = 0.05
    effect_min: float | None = None
    min_rows: int = 50
    severity: Severity = "warn"

    @property
    def columns(self) -> tuple[str, ...] | None:
        return self.chosen

    def judge(self, rows: TableView, reference: Any, action: Action) -> Iterator[Verdict]:
        """One verdict for each column, judged together: the more columns, the less one of them proves."""
        rule = f"is as in the reference ({self.method})"
        draft = _unjudged(rule, self.chosen or ("every column",), self.severity, rows, action)
        if reference is None:
            yield replace(draft, status="no reference", detail="pass reference= to compare with")
            return
        names = self.chosen if self.chosen is not None else names_of(reference)
        missing = [name for name in names if name not in rows]
        yield from (replace(draft, columns=(name,)).failed("there is no such column any more") for name in missing)
        known = [name for name in names if name in rows]
        for found in self._found(known, rows, reference) if known else ():
            yield self._verdict(found, replace(draft, columns=(found.name,)))

    def _found(self, names: list[str], rows: TableView, reference: Any) -> Iterable[ColumnDrift]:
        report = drift(
            reference,
            rows.to_arrow(names),
            columns=names,
            method=self.method,
            alpha=self.alpha,
            effect_min=self.effect_min,
            min_rows=self.min_rows,
        )
        return report.values()

    def _verdict(self, found: ColumnDrift, draft: Verdict) -> Verdict:
        measured: dict[str, Any] = {"p": found.p}
        for name, test in found.tests.items():
            measured |= {name: test.value, f"{name}_threshold": test.threshold, "n": test.n, "m": test.m}
        if found.verdict == "ok":
            return replace(draft, measured=measured)
        details = "; ".join(str(test) for test in found.tests.values())
        if found.missing_p is not None and found.missing_p < self.alpha:
            details += f"; {100 * found.missing[0]:.2g} % were missing, now {100 * found.missing[1]:.2g} %"
        if found.verdict == "drift":
            return draft.failed(details, **measured)
        return replace(draft, status=found.verdict, detail=details or found.note, measured=measured)


def names_of(reference: Any) -> list[str]:
    """The columns of a reference, rows or a ``Profile``."""
    return list(reference) if isinstance(reference, Mapping) else TableView.of(reference).names


# Outliers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OutlierCheck:
    """Not more than a share ``most`` of a column's numbers are outliers among the others."""

    column: str
    method: str = "modified_zscore"
    threshold: float | None = None
    most: float = 0.01
    severity: Severity = "warn"

    @property
    def columns(self) -> tuple[str, ...] | None:
        return (self.column,)

    def judge(self, rows: TableView, reference: Any, action: Action) -> Iterator[Verdict]:
        """One verdict; its bad rows are the outliers, if there are too many of them."""
        rule = f"has at most {100 * self.most:g} % outliers ({self.method})"
        draft = _unjudged(rule, (self.column,), self.severity, rows, action)
        try:
            column = rows[self.column]
            values, flat = finite_values(column), column.flat
        except NotApplicable as why:
            yield draft.failed(str(why))
            return
        found = self._found(values) if len(values) else None
        if found is None or not found.is_reachable:
            yield replace(draft, status="insufficient", detail=f"among {len(values)} numbers none can be an outlier")
            return
        share = found.count / len(values)
        if share <= self.most:
            yield replace(draft, measured={"share": share, "most": self.most})
            return
        flags = np.zeros(len(flat.values), np.bool_)
        flags[_is_used(flat.values, flat.nulls)] = found.mask
        bad = flat.rows_with(flags)
        examples = examples_of(rows, (self.column,), bad)
        yield draft.failed(f"{100 * share:.2g} % are", examples=examples, bad=bad, share=share, most=self.most)

    def _found(self, values: Floats) -> Outliers:
        method = OUTLIER_METHODS[self.method]
        return method(values) if self.threshold is None else method(values, threshold=self.threshold)


@dataclass(frozen=True)
class UnfittedCheck:
    """Rows are like the reference, by a detector that has not seen one: nothing can be said yet."""

    chosen: tuple[str, ...]
    method: str
    severity: Severity = "warn"

    @property
    def columns(self) -> tuple[str, ...] | None:
        return self.chosen

    def judge(self, rows: TableView, reference: Any, action: Action) -> Iterator[Verdict]:
        """One verdict, which says what is missing."""
        rule = f"are like the reference ({self.method})"
        draft = _unjudged(rule, self.chosen, self.severity, rows, action)
        yield replace(draft, status="no reference", detail="pass reference=, or use suite.fit(reference)")


ColumnCheck = StatCheck | DriftCheck | OutlierCheck | UnfittedCheck


def _unjudged(rule: str, columns: tuple[str, ...], severity: Severity, rows: TableView, action: Action) -> Verdict:
    """A verdict but for its outcome."""
    return Verdict(rule, columns, severity, "statistics", "ok", len(rows), action=action)


def _is_used(values: NDArray[Any], nulls: Any) -> Any:
    used = np.isfinite(values) if values.dtype.kind == "f" else np.ones(len(values), np.bool_)
    return used if nulls is None else used & ~nulls


def _range_text(low: Number | None, high: Number | None) -> str:
    if low is not None and high is not None:
        return f"between {low} and {high}"
    return f"of at least {low}" if low is not None else f"of at most {high}"
