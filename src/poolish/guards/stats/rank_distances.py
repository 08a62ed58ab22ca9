"""Distances between distribution functions: ks and wasserstein, for columns that have an order.

The values are computed from all points. Where a p-value takes permutations, it is that of the same statistic on cells
of neighbouring values (``rank_cells``): of the values themselves while they are few.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolish.errors import ConfigError, SchemaError
from poolish.guards.stats.cells import (
    NO_ROWS,
    RankCells,
    Ranked,
    Side,
    is_nested,
    nested_rank_cells,
    rank_cells,
    side_of,
)
from poolish.guards.stats.column_profile import ColumnProfile
from poolish.guards.stats.permutation import Statistic, calibrate
from poolish.guards.stats.samples import ColumnSample
from poolish.guards.stats.significance import (
    EVIDENTLY,
    MIN_ROWS,
    KsComparison,
    Rule,
    WassersteinComparison,
    ks_exact,
    ks_tail,
    ks_threshold,
)
from poolish.kernels import walk

Floats = NDArray[np.float64]
Int64 = NDArray[np.int64]

#: SciPy counts paths exactly up to here, and uses the limit beyond.
_N_EXACT_KS = 10_000
#: The area is exact up to here; of more rows that of cells is as good for an effect, and takes no second walk.
_N_EXACT_AREA = 2_000_000
#: A p-value that ignores ties is too large. Where it is this small, the difference is clear without permutations.
_CLEAR = 1e-4
#: A value with at least this share of a sample makes the distribution function jump.
_JUMP = 1 / 256
#: By how much the deviation of a summary may differ from that of its values.
_TAILS = 0.05


def ks(
    reference: Any,
    current: Any,
    *,
    convention: str = "poolish",
    alpha: float = 0.05,
    effect_min: float | None = None,
    min_rows: int = MIN_ROWS,
    method: str = "auto",
) -> KsComparison:
    """Kolmogorov and Smirnov's test: the largest distance between the two distribution functions.

    None and NaN are left out and counted, infinities have their place at the ends. ``method`` is SciPy's: "auto" is
    exact up to 10,000 values a side, else "asymp". Both are for values that all differ, and alarm too rarely where many
    are equal, as zeros are; there "auto" permutes. From summaries the distance is known to ``error``; a p-value is
    given only where that is less than a tenth of the threshold.

    >>> result = ks(np.arange(1000) / 10, 0.22 * np.arange(500) + 3)
    >>> round(result.value, 6), round(result.p, 9), result.verdict
    (0.118, 0.000178423, 'drift')
    """
    rule = Rule("ks", convention, alpha, effect_min, min_rows)
    if method not in ("auto", "exact", "asymp"):
        raise ConfigError(f"method: auto, exact or asymp, got {method!r}")
    a, b = _ordered_sides(reference, current)
    extra: dict[str, Any] = {"missing": (_missing(a), _missing(b)), "error": 0.0}
    one, two = a.ranked, b.ranked
    n, m = _size(one), _size(two)
    if not n or not m:
        return rule.decide(KsComparison, math.nan, math.nan, None, n, m, None, **extra)
    extra |= {"error": a.ordinal_error + b.ordinal_error, "is_constant": _is_constant(one, two)}
    value = _gap(one, two)
    if is_nested(a, b) and convention == "poolish" and method == "auto":
        return _ks_of_rows(rule, a, b, value, extra)
    if extra["is_constant"] or min(n, m) < min_rows:
        return rule.decide(KsComparison, value, math.nan, None, n, m, None, **extra)
    p, threshold, basis = _ks_limit(one, two, value, alpha, method, extra["error"])
    if p is None:
        is_clear = value - extra["error"] > threshold
        if not is_clear:
            extra["problem"] = _too_coarse(extra["error"], threshold)
        return rule.decide(KsComparison, value, threshold, None, n, m, None, significant=is_clear, **extra)
    if method == "auto" and convention == "poolish" and p > _CLEAR and (_jumps(one) or _jumps(two)):
        cells = rank_cells(one, two)
        found = calibrate(_largest_gap, cells.counts, cells.others, alpha)
        p, threshold, basis = min(p, found.p), found.threshold, "permutation"
    return rule.decide(KsComparison, value, threshold, p, n, m, None, basis=basis, **extra)


def _ks_of_rows(rule: Rule, a: Side, b: Side, value: float, extra: dict[str, Any]) -> KsComparison:
    cells = nested_rank_cells(a, b, a.ranked, b.ranked)
    p, threshold = None, math.nan
    if (problem := _no_rows(cells)) or min(a.count, b.count) < rule.min_rows:
        extra |= {"problem": problem}
    else:
        found = calibrate(_largest_gap, cells.counts, cells.others, rule.alpha, cells.rows)
        p, threshold = found.p, found.threshold
    return rule.decide(KsComparison, value, threshold, p, a.count, b.count, None, basis="permutation", **extra)


def _no_rows(cells: RankCells) -> str:
    rows = cells.rows
    return NO_ROWS if rows is not None and rows.reference is None and rows.current is None else ""


def _ks_limit(
    one: Ranked, two: Ranked, value: float, alpha: float, method: str, error: float
) -> tuple[float | None, float, str]:
    """The p-value for values that all differ, the threshold, and what they rest on; no p where summaries are coarse."""
    n, m = _size(one), _size(two)
    size = max(round(n * m / (n + m)), 1)
    threshold = ks_threshold(alpha, size)
    if _is_raw(one) and _is_raw(two) and (method == "exact" or (method == "auto" and max(n, m) <= _N_EXACT_KS)):
        return ks_exact(one[0], two[0]), threshold, "exact"
    return (ks_tail(value, size) if error < 0.1 * threshold else None), threshold, "limit"


def wasserstein(
    reference: Any,
    current: Any,
    *,
    convention: str = "poolish",
    alpha: float = 0.05,
    effect_min: float | None = None,
    min_rows: int = MIN_ROWS,
) -> WassersteinComparison:
    """Wasserstein's distance (the area between the distribution functions) in standard deviations of the reference.

    By SciPy's convention it is in the unit of the values; Evidently's divisor is at least 0.001. The threshold and p
    are those of permutations, because no limit holds for heavy tails.

    >>> result = wasserstein(np.arange(1000) / 10, 0.22 * np.arange(500) + 3)
    >>> round(result.value, 6), round(result.distance, 4), result.verdict
    (0.27505, 7.94, 'drift')
    """
    rule = Rule("wasserstein", convention, alpha, effect_min, min_rows)
    a, b = _ordered_sides(reference, current)
    one, two = finite_ranked(a), finite_ranked(b)
    n, m = (a.count, b.count) if is_nested(a, b) else (_size(one), _size(two))
    if not _size(one) or not _size(two):
        nothing: Any = {"distance": math.nan, "scale": math.nan}
        return rule.decide(WassersteinComparison, math.nan, math.nan, None, n, m, None, **nothing)
    distance, scale = area_between(one, two), _scale(one, convention)
    extra: dict[str, Any] = {"distance": distance, "scale": scale, "is_constant": _is_constant(one, two)}
    threshold, p = math.nan, None
    if not extra["is_constant"] and min(n, m) >= min_rows and convention != EVIDENTLY:
        extra["problem"] = _lost_tails(a) or _lost_tails(b) or _lost_ranks(a, b, n, m)
        if not extra["problem"]:
            cells = nested_rank_cells(a, b, one, two) if is_nested(a, b) else rank_cells(one, two)
            unit, extra["problem"] = _unit(cells), _no_rows(cells)
        if not extra["problem"]:
            found = calibrate(_area(cells, unit, convention), cells.counts, cells.others, alpha, cells.rows)
            threshold, p = found.threshold * (unit if convention == "scipy" else 1), found.p
    basis = "permutation"
    return rule.decide(WassersteinComparison, distance / scale, threshold, p, n, m, None, basis=basis, **extra)


# Statistics of counts: (reference, current), cells in the last axis -----------------------------------------------


def _largest_gap(counts: Int64, others: Int64) -> Floats:
    gaps: Floats = np.abs(_shares(counts) - _shares(others)).max(axis=-1)
    return gaps


def _shares(counts: Int64) -> Floats:
    """The distribution function at the end of each cell."""
    reached: Floats = np.cumsum(counts, axis=-1) / counts.sum(axis=-1, keepdims=True)
    return reached


def _area(cells: RankCells, unit: float, convention: str) -> Statistic:
    """Wasserstein's distance in standard deviations of the reference, or in ``unit``, below which nothing overflows."""
    low, high = cells.low / unit, cells.high / unit
    between, within = low[1:] - high[:-1], high - low
    totals = cells.counts + cells.others
    middle = (low + high) / 2
    middle = middle - np.dot(middle, totals) / totals.sum()

    def measure(counts: Int64, others: Int64) -> Floats:
        apart = np.abs(_shares(counts) - _shares(others))
        area = apart[..., :-1] @ between + apart @ (within / 2) + apart[..., :-1] @ (within[1:] / 2)
        if convention == "scipy":
            return area
        shares = counts / counts.sum(axis=-1, keepdims=True)
        variance = shares @ middle**2 - (shares @ middle) ** 2
        # A reference without spread has the scale 1, in the unit of the values.
        with np.errstate(over="ignore"):
            return area / np.where(variance > 1e-14, np.sqrt(np.maximum(variance, 0)), 1 / unit)

    return measure


def _unit(cells: RankCells) -> float:
    return max(abs(float(cells.low[0])), abs(float(cells.high[-1]))) or 1.0


def moved_between(one: Ranked, two: Ranked) -> float:
    """How far a row has moved on average: the area between the distribution functions, of many rows that of cells."""
    if _size(one) + _size(two) <= _N_EXACT_AREA:
        return area_between(one, two)
    cells = rank_cells(one, two)
    return _unit(cells) * float(_area(cells, _unit(cells), "scipy")(cells.counts, cells.others))


# What cannot be judged ------------------------------------------------------------------------------------------


def _too_coarse(error: float, threshold: float) -> str:
    return (
        f"the summaries know ranks to {error:.2g}, too coarse for samples so large, where {threshold:.2g} is drift; "
        "use psi on the bins of the reference, or values"
    )


def _lost_ranks(a: Side, b: Side, n: int, m: int) -> str:
    error = a.ordinal_error + b.ordinal_error
    threshold = 1.36 * math.sqrt(1 / n + 1 / m)  # of Kolmogorov and Smirnov's distance, at 0.05
    # An area adds up errors of both signs, so it stands more of them than the one largest distance does.
    return "" if error < 0.5 * threshold else _too_coarse(error, threshold)


def _lost_tails(side: Side) -> str:
    """Whether a summary of ranks has lost so much of the tails that areas are wrong."""
    if not isinstance(side, ColumnProfile) or side.is_exact or side.quantiles is None:
        return ""
    found, known = deviation(side.quantiles.ranked), side.std
    if not math.isfinite(known) or abs(found - known) <= _TAILS * known:
        return ""
    return (
        f"the deviation is {known:.4g}, {found:.4g} in the summary of a profile: heavy tails, of which it keeps too "
        "little; use ks, psi or values"
    )


# Distribution functions -----------------------------------------------------------------------------------------


def _ordered_sides(reference: Any, current: Any) -> tuple[Side, Side]:
    a, b = side_of(reference), side_of(current)
    for side in (a, b):
        if side.kind in ("text", "other"):
            raise SchemaError(f"values that have an order, numbers or booleans, got {side.kind}; use psi, js or chi2")
        if isinstance(side, ColumnProfile) and side.quantiles is None and side.kind != "null":
            raise SchemaError("this profile keeps no quantiles (sketch='none', or subtracted), which ks needs; use psi")
    return a, b


def _missing(side: Side) -> int:
    return side.missing if isinstance(side, ColumnProfile) else side.nulls + len(_numbers(side)) - len(side.ordered)


def _numbers(side: ColumnSample) -> NDArray[Any]:
    return np.empty(0) if side.numbers is None else side.numbers


def finite_ranked(side: Side) -> Ranked:
    """The finite numbers in order, and how many lie at or before each."""
    if isinstance(side, ColumnProfile):
        return (np.empty(0), np.empty(0)) if side.quantiles is None else side.quantiles.ranked
    return side.finite, np.arange(1, len(side.finite) + 1, dtype=np.float64)


def area_between(one: Ranked, two: Ranked) -> float:
    """Wasserstein's distance, in the unit of the values."""
    if _is_raw(one) and _is_raw(two):
        return float(walk(one[0], two[0])[2])
    x = np.union1d(one[0], two[0])
    apart = np.abs(_share_at(one, x[:-1]) - _share_at(two, x[:-1]))
    with np.errstate(all="ignore"):
        return float(np.dot(apart[apart > 0], np.diff(x)[apart > 0]))


def _gap(one: Ranked, two: Ranked) -> float:
    if _is_raw(one) and _is_raw(two):
        above, below, _ = walk(one[0], two[0])
        return float(max(above, below) / (len(one[0]) * len(two[0])))
    x = np.union1d(one[0], two[0])
    return float(np.abs(_share_at(one, x) - _share_at(two, x)).max())


def _share_at(side: Ranked, x: Floats) -> Floats:
    shares: Floats = np.concatenate([[0.0], side[1] / side[1][-1]])[np.searchsorted(side[0], x, side="right")]
    return shares


def _size(side: Ranked) -> int:
    return int(side[1][-1]) if len(side[1]) else 0


def _is_raw(side: Ranked) -> bool:
    """Whether every value is there, and no summary of them."""
    return len(side[0]) == _size(side)


def _is_constant(one: Ranked, two: Ranked) -> bool:
    return bool(one[0][0] == one[0][-1] == two[0][0] == two[0][-1])


def _jumps(side: Ranked) -> bool:
    """Whether some value has more than a share ``_JUMP`` of the rows; of a few rows, whether any two are equal."""
    points, reached = side
    places = np.arange(0, reached[-1], max(1.0, reached[-1] * _JUMP))
    marks = points[np.searchsorted(reached, places, side="right")]
    return bool((marks[1:] == marks[:-1]).any()) and bool((points[1:] == points[:-1]).any())


def deviation(side: Ranked) -> float:
    """The standard deviation, also of values whose squares are beyond float64."""
    points, reached = side
    shares = np.diff(reached, prepend=0.0) / reached[-1]
    largest = max(abs(float(points[0])), abs(float(points[-1]))) or 1.0
    scaled = points / largest
    return largest * math.sqrt(float(np.dot((scaled - np.dot(scaled, shares)) ** 2, shares)))


def _scale(reference: Ranked, convention: str) -> float:
    """What the distance is divided by: the standard deviation of the reference, unless it has none."""
    if convention == "scipy":
        return 1.0
    std = deviation(reference)
    if convention == EVIDENTLY:
        return max(std, 0.001)
    return std if std > 0 and math.isfinite(std) else 1.0
