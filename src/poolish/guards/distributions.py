"""Checks of columns as a whole: their statistics, whether they drifted from a reference, how many outliers they have.

Each judges all rows it is given at once, so it needs enough of them: with too few, or with a column that never changes,
its verdict is that nothing can be said, which is no failure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from poolish.errors import ConfigError
from poolish.guards.checks import Number, number
from poolish.guards.leaves import Column, Rows, Unfit
from poolish.guards.verdicts import Action, Severity, Verdict, examples_of

DRIFT_METHODS = ("psi", "kl", "js", "ks", "wasserstein", "chi2")
OUTLIER_METHODS = ("zscore", "iqr", "modified_zscore")

Floats = NDArray[np.float64]


# Statistics -------------------------------------------------------------------------------------------------------


def _null_share(column: Column) -> float:
    return float(np.mean(column.nulls)) if column.nulls is not None else 0.0


def _nan_share(column: Column) -> float:
    values = column.leaves.values
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f" or not len(values):
        return 0.0
    return float(np.mean(~np.isfinite(values)))


def _distinct(column: Column) -> float:
    values = column.leaves.values
    found = pa.array(values) if isinstance(values, np.ndarray) else values
    return float(pc.count_distinct(found, mode="only_valid").as_py())


def _of_numbers(compute: Callable[[Floats], Any]) -> Callable[[Column], float]:
    def statistic(column: Column) -> float:
        values = finite_values(column)
        return float(compute(values)) if len(values) else math.nan

    return statistic


def _standardized(power: int) -> Callable[[Floats], float]:
    def moment(values: Floats) -> float:
        centred = values - values.mean()
        spread = centred.std()
        return float(np.mean((centred / spread) ** power)) if spread > 0 else math.nan

    return moment


def _quantile(share: float) -> Callable[[Column], float]:
    return _of_numbers(lambda values: np.quantile(values, share))


#: What ``Suite.stat`` can ask of a column. Numbers are the finite ones, those in arrays and lists included; std and
#: variance are the sample's (n - 1), skewness and kurtosis the population's, and a normal distribution has kurtosis 0.
STATISTICS: dict[str, Callable[[Column], float]] = {
    "mean": _of_numbers(np.mean),
    "std": _of_numbers(lambda values: np.std(values, ddof=1) if len(values) > 1 else math.nan),
    "variance": _of_numbers(lambda values: np.var(values, ddof=1) if len(values) > 1 else math.nan),
    "skewness": _of_numbers(_standardized(3)),
    "kurtosis": _of_numbers(lambda values: _standardized(4)(values) - 3),
    "min": _of_numbers(np.min),
    "max": _of_numbers(np.max),
    "median": _quantile(0.5),
    **{f"q{share:02d}": _quantile(share / 100) for share in (1, 5, 10, 25, 75, 90, 95, 99)},
    "null_share": _null_share,
    "nan_share": _nan_share,
    "distinct": _distinct,
}


def finite_values(column: Column) -> Floats:
    """The finite numbers of a column, nulls left out; ``Unfit`` if it holds no numbers."""
    leaves = column.leaves
    if not isinstance(leaves.values, np.ndarray) or leaves.values.dtype.kind not in "biuf":
        raise Unfit(f"column {column.name!r} is {column.told}; a statistic is asked of numbers")
    values = leaves.values if leaves.nulls is None else leaves.values[~leaves.nulls]
    values = np.asarray(values, np.float64)
    is_finite = np.isfinite(values)
    return values if is_finite.all() else values[is_finite]


@dataclass(frozen=True)
class StatCheck:
    """Statistics of a column lie in ranges."""

    column: str
    ranges: Mapping[str, tuple[Number | None, Number | None]]
    severity: Severity = "warn"

    @property
    def columns(self) -> tuple[str, ...] | None:
        return (self.column,)

    def judge(self, rows: Rows, reference: Any, action: Action) -> Iterator[Verdict]:
        """One verdict for each statistic."""
        for name, (low, high) in self.ranges.items():
            rule = f"has a {name} {_told(low, high)}"
            verdict = _Draft(rule, (self.column,), self.severity, len(rows), action)
            try:
                value = STATISTICS[name](rows[self.column]) if len(rows) else math.nan
            except Unfit as why:
                yield verdict.failed(str(why))
                continue
            if math.isnan(value):
                yield verdict.unknown("insufficient", f"{name} of these rows has no value")
            elif (low is not None and value < low) or (high is not None and value > high):
                yield verdict.failed(f"it is {value:.6g}", value=value, low=low, high=high)
            else:
                yield verdict.passed(value=value, low=low, high=high)


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

    def judge(self, rows: Rows, reference: Any, action: Action) -> Iterator[Verdict]:
        """One verdict for each column, judged together: the more columns, the less one of them proves."""
        rule = f"is as in the reference ({self.method})"
        draft = _Draft(rule, self.chosen or ("all columns",), self.severity, len(rows), action)
        if reference is None:
            yield draft.unknown("no reference", "pass reference= to compare with")
            return
        if len(rows) < self.min_rows:
            yield draft.unknown("insufficient", f"{len(rows)} rows, it takes {self.min_rows}")
            return
        try:
            found = self._found(rows, reference)
        except Unfit as why:
            yield draft.failed(str(why))
            return
        for name, result in found.items():
            yield self._verdict(name, rule, result, len(rows), action)

    def _found(self, rows: Rows, reference: Any) -> Mapping[str, Any]:
        from poolish.guards.drift import drift

        names = self.chosen
        if names is not None:
            for name in names:
                rows[name]  # Unfit, if there is none
        options = {"method": self.method, "alpha": self.alpha, "effect_min": self.effect_min, "min_rows": self.min_rows}
        result: Mapping[str, Any] = drift(reference, rows.to_arrow(), columns=names, **options)
        return result

    def _verdict(self, name: str, rule: str, result: Any, n_rows: int, action: Action) -> Verdict:
        draft = _Draft(rule, (name,), self.severity, n_rows, action)
        measured = {
            part: getattr(result, part, None) for part in ("value", "threshold", "p", "n", "m", "bins", "convention")
        }
        measured = {part: value for part, value in measured.items() if isinstance(value, (int, float, str))}
        if result.verdict == "drift":
            bound = measured.get("threshold")
            limit = f", the threshold is {bound:.4g}" if isinstance(bound, float) else ""
            return draft.failed(f"{self.method} is {result.value:.4g}{limit}", **measured)
        return draft.passed(**measured) if result.verdict == "ok" else draft.unknown(result.verdict, "", **measured)


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

    def judge(self, rows: Rows, reference: Any, action: Action) -> Iterator[Verdict]:
        """One verdict; its bad rows are the outliers, if there are too many of them."""
        from poolish.guards import outliers

        rule = f"has at most {100 * self.most:g} % outliers ({self.method})"
        draft = _Draft(rule, (self.column,), self.severity, len(rows), action)
        options = {} if self.threshold is None else {"threshold": self.threshold}
        try:
            column = rows[self.column]
            values = finite_values(column)
            leaves = column.leaves
        except Unfit as why:
            yield draft.failed(str(why))
            return
        if len(values) < 10:
            yield draft.unknown("insufficient", f"{len(values)} numbers, it takes 10")
            return
        flags = np.zeros(len(leaves.values), np.bool_)
        flags[_is_used(leaves.values, leaves.nulls)] = getattr(outliers, self.method)(values, **options).mask
        share = float(flags.sum() / len(values))
        if share <= self.most:
            yield draft.passed(share=share, most=self.most)
        else:
            bad = leaves.rows_of(flags)
            yield draft.failed(
                f"{100 * share:.2g} % are",
                examples=examples_of(rows, (self.column,), bad),
                bad=bad,
                share=share,
                most=self.most,
            )


DistributionCheck = StatCheck | DriftCheck | OutlierCheck


def range_of(value: Any, where: str) -> dict[str, Number] | list[Number]:
    """A range as it stands in a file: two numbers, or one of ``at_least`` and ``at_most``."""
    if isinstance(value, Mapping):
        if not value or not set(value) <= {"at_least", "at_most"}:
            raise ConfigError(f"{where}: (low, high), or at_least and at_most, got {dict(value)!r}")
        return {str(side): number(bound, where) for side, bound in value.items()}
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise ConfigError(f"{where}: a range (low, high), where None is no bound, got {value!r}")
    low, high = (None if bound is None else number(bound, where) for bound in value)
    if low is None or high is None:
        sides = {"at_least": low, "at_most": high}
        bounds = {side: bound for side, bound in sides.items() if bound is not None}
        if not bounds:
            raise ConfigError(f"{where}: a range without bounds; leave it out")
        return bounds
    if low > high:
        raise ConfigError(f"{where}: the lower bound comes first, got {value!r}")
    return [low, high]


def bounds_of(told: dict[str, Number] | list[Number]) -> tuple[Number | None, Number | None]:
    """The two bounds of a range."""
    return (told.get("at_least"), told.get("at_most")) if isinstance(told, dict) else (told[0], told[1])


@dataclass(frozen=True)
class _Draft:
    """A verdict but for its outcome."""

    rule: str
    columns: tuple[str, ...]
    severity: Severity
    n_rows: int
    action: Action

    def passed(self, **measured: Any) -> Verdict:
        return self._made("ok", "", measured)

    def unknown(self, status: str, detail: str, **measured: Any) -> Verdict:
        return self._made(status, detail, measured)

    def failed(self, detail: str, *, examples: Any = (), bad: Any = None, **measured: Any) -> Verdict:
        return self._made("failed", detail, measured, examples, bad)

    def _made(self, status: str, detail: str, measured: Any, examples: Any = (), bad: Any = None) -> Verdict:
        return Verdict(
            self.rule,
            self.columns,
            self.severity,
            "statistics",
            status,
            self.n_rows,
            0 if bad is None else int(bad.sum()),
            detail,
            examples,
            measured,
            self.action,
            bad=bad,
        )


def _is_used(values: NDArray[Any], nulls: Any) -> Any:
    used = np.isfinite(values) if values.dtype.kind == "f" else np.ones(len(values), np.bool_)
    return used if nulls is None else used & ~nulls


def _told(low: Number | None, high: Number | None) -> str:
    if low is not None and high is not None:
        return f"between {low} and {high}"
    return f"of at least {low}" if low is not None else f"of at most {high}"
