"""How far two samples are apart: psi, kl, js, ks, wasserstein, chi2, each called ``(reference, current)``.

A side is anything that holds values (arrays, lists, Arrow, tensors) or the profile of a column. Each statistic names
its ``convention``, because the same name means different numbers elsewhere:

    poolish         bins of the reference, Jeffreys' smoothing, a threshold that knows the sizes of the samples
    scipy           the same bins without smoothing; what scipy.stats computes of them
    evidently-0.7   Evidently's bins, zeros and fixed thresholds, to the last digit

Here are the values; ``significance`` says from where on they are drift.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolish.errors import ConfigError, SchemaError
from poolish.guards.stats.column_profile import ColumnProfile, check_comparable
from poolish.guards.stats.profile import check_bins
from poolish.guards.stats.samples import MAX_DISCRETE, Bins, ColumnSample, aligned
from poolish.guards.stats.significance import (
    EVIDENTLY,
    Chi2Comparison,
    Comparison,
    JsComparison,
    KlComparison,
    KsComparison,
    Rule,
    WassersteinComparison,
    chi2_tail,
    chi2_threshold,
    ks_exact,
    ks_tail,
    ks_threshold,
)
from poolish.kernels import walk
from poolish.seeds import generator

Floats = NDArray[np.float64]
Int64 = NDArray[np.int64]
Side = ColumnSample | ColumnProfile

MIN_ROWS = 50
_JEFFREYS = 0.5
_LN2 = math.log(2)
#: SciPy counts paths exactly up to here, and uses the limit beyond.
_N_EXACT_KS = 10_000


def psi(
    reference: Any,
    current: Any,
    *,
    convention: str = "poolish",
    alpha: float = 0.05,
    effect_min: float | None = None,
    min_rows: int = MIN_ROWS,
    bins: Any = None,
) -> Comparison:
    """Population stability index: the sum of ``(p - q) ln(p / q)`` over the bins.

    >>> result = psi(np.arange(1000) / 10, 0.22 * np.arange(500) + 3)
    >>> round(result.value, 6), round(result.threshold, 6), result.verdict
    (0.100214, 0.050757, 'drift')
    """
    rule = Rule("psi", convention, alpha, effect_min, min_rows)
    p, q, n, m = _shares(reference, current, rule, bins)
    with np.errstate(all="ignore"):
        terms = np.where(p == q, 0.0, (q - p) * np.log(np.divide(q, p)))
    return rule.of_bins(Comparison, float(terms.sum()), 1.0, n, m, len(p))


def kl(
    reference: Any,
    current: Any,
    *,
    convention: str = "poolish",
    alpha: float = 0.05,
    effect_min: float | None = None,
    min_rows: int = MIN_ROWS,
    bins: Any = None,
) -> KlComparison:
    """Kullback and Leibler's divergence of the current sample from the reference; Evidently's is the other direction.

    >>> result = kl(np.arange(1000) / 10, 0.22 * np.arange(500) + 3)
    >>> round(result.value, 6), round(result.reference_from_current, 6)
    (0.05415, 0.046065)
    """
    rule = Rule("kl", convention, alpha, effect_min, min_rows)
    p, q, n, m = _shares(reference, current, rule, bins)
    forward, backward = _entropy(q, p), _entropy(p, q)
    value = backward if convention == EVIDENTLY else forward
    return rule.of_bins(
        KlComparison, value, 0.5, n, m, len(p), current_from_reference=forward, reference_from_current=backward
    )


def js(
    reference: Any,
    current: Any,
    *,
    convention: str = "poolish",
    alpha: float = 0.05,
    effect_min: float | None = None,
    min_rows: int = MIN_ROWS,
    bins: Any = None,
) -> JsComparison:
    """Jensen and Shannon: the divergence in bits as TFDV has it; by SciPy's and Evidently's convention the distance.

    >>> result = js(np.arange(1000) / 10, 0.22 * np.arange(500) + 3)
    >>> round(result.bits, 6), round(result.distance, 6)
    (0.017748, 0.110915)
    """
    rule = Rule("js", convention, alpha, effect_min, min_rows)
    p, q, n, m = _shares(reference, current, rule, bins)
    middle = (p + q) / 2
    nats = max((_entropy(p, middle) + _entropy(q, middle)) / 2, 0.0) if len(p) else math.nan
    extra: Any = {"bits": nats / _LN2, "distance": math.sqrt(nats)}
    if convention == "poolish":
        return rule.of_bins(JsComparison, nats / _LN2, 1 / (8 * _LN2), n, m, len(p), **extra)
    return rule.of_bins(JsComparison, math.sqrt(nats), 1 / 8, n, m, len(p), power=2, **extra)


def chi2(
    reference: Any,
    current: Any,
    *,
    convention: str = "poolish",
    alpha: float = 0.05,
    effect_min: float | None = None,
    min_rows: int = MIN_ROWS,
    bins: Any = None,
) -> Chi2Comparison:
    """Pearson's test that both samples fall into the bins alike; ``effect_min`` is measured by Cramer's V.

    Evidently tests the current counts against those of the reference as if these were certain.

    >>> result = chi2(["a"] * 70 + ["b"] * 30, ["a"] * 50 + ["b"] * 40 + ["c"] * 10)
    >>> round(result.value, 3), result.df, result.verdict
    (14.762, 2, 'drift')
    """
    rule = Rule("chi2", convention, alpha, effect_min, min_rows)
    counts, others = _counts(reference, current, rule, bins)
    kept = (counts + others) > 0
    counts, others = counts[kept].astype(np.float64), others[kept].astype(np.float64)
    n, m, n_bins = int(counts.sum()), int(others.sum()), len(counts)
    df = max(n_bins - 1, 0)
    if not n or not m or not df:
        return rule.decide(
            Chi2Comparison, 0.0 if n and m else math.nan, math.nan, None, n, m, n_bins, df=df, effect=0.0
        )
    with np.errstate(all="ignore"):
        if convention == EVIDENTLY:
            expected = counts * (m / n)
            value = float(((others - expected) ** 2 / expected).sum())
        else:
            pooled = (counts + others) / (n + m)
            value = float(((counts - n * pooled) ** 2 / (n * pooled)).sum())
            value += float(((others - m * pooled) ** 2 / (m * pooled)).sum())
    effect = math.sqrt(value / (n + m))
    threshold, p = chi2_threshold(df, alpha), chi2_tail(value, df)
    return rule.decide(Chi2Comparison, value, threshold, p, n, m, n_bins, size=effect, df=df, effect=effect)


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
    exact up to 10,000 values a side, else "asymp". From summaries the distance is known to ``error``; a p-value is
    given only where that is less than a tenth of the threshold.

    >>> result = ks(np.arange(1000) / 10, 0.22 * np.arange(500) + 3)
    >>> round(result.value, 6), round(result.p, 9), result.verdict
    (0.118, 0.000178423, 'drift')
    """
    rule = Rule("ks", convention, alpha, effect_min, min_rows)
    if method not in ("auto", "exact", "asymp"):
        raise ConfigError(f"method: auto, exact or asymp, got {method!r}")
    a, b = _ordered_sides(reference, current)
    missing = (_missing(a), _missing(b))
    (points, reached), (others, others_reached) = a.ranked, b.ranked
    n, m = int(reached[-1]) if len(reached) else 0, int(others_reached[-1]) if len(others_reached) else 0
    if not n or not m:
        return rule.decide(KsComparison, math.nan, math.nan, None, n, m, None, error=0.0, missing=missing)
    error = a.ordinal_error + b.ordinal_error
    is_raw = len(points) == n and len(others) == m
    if is_raw:
        above, below, _ = walk(points, others)
        value = max(above, below) / (n * m)
    else:
        value = _apart(points, reached / n, others, others_reached / m)
    is_constant = points[0] == points[-1] == others[0] == others[-1]
    if is_constant or min(n, m) < min_rows:
        return rule.decide(
            KsComparison, value, math.nan, None, n, m, None, is_constant=is_constant, error=error, missing=missing
        )
    size = round(n * m / (n + m))
    threshold = ks_threshold(alpha, size)
    p: float | None = None
    if is_raw and (method == "exact" or (method == "auto" and max(n, m) <= _N_EXACT_KS)):
        p = ks_exact(points, others)
    elif error < 0.1 * threshold:
        p = ks_tail(value, size)
    is_significant = value - error > threshold if p is None else None
    return rule.decide(
        KsComparison, value, threshold, p, n, m, None, significant=is_significant, error=error, missing=missing
    )


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
    are those of Brownian bridges between the quantiles of the reference, 4,000 of them, always the same.

    >>> result = wasserstein(np.arange(1000) / 10, 0.22 * np.arange(500) + 3)
    >>> round(result.value, 6), round(result.distance, 4), result.verdict
    (0.27505, 7.94, 'drift')
    """
    rule = Rule("wasserstein", convention, alpha, effect_min, min_rows)
    a, b = _ordered_sides(reference, current)
    (points, reached), (others, others_reached) = _finite(a), _finite(b)
    n, m = int(reached[-1]) if len(reached) else 0, int(others_reached[-1]) if len(others_reached) else 0
    if not n or not m:
        return rule.decide(
            WassersteinComparison, math.nan, math.nan, None, n, m, None, distance=math.nan, scale=math.nan
        )
    if len(points) == n and len(others) == m:
        distance = walk(points, others)[2]
    else:
        distance = _area(points, reached / n, others, others_reached / m)
    scale = _scale(points, reached, convention)
    value = distance / scale
    is_constant = points[0] == points[-1] == others[0] == others[-1]
    threshold, p = math.nan, None
    if not is_constant and min(n, m) >= min_rows:
        areas = _bridge_areas(points / scale, reached) * math.sqrt(1 / n + 1 / m)
        if np.isfinite(areas).all():
            threshold = float(np.quantile(areas, 1 - alpha))
            p = float(((areas >= value).sum() + 1) / (len(areas) + 1))
    return rule.decide(
        WassersteinComparison,
        value,
        threshold,
        p,
        n,
        m,
        None,
        is_constant=is_constant,
        distance=distance,
        scale=scale,
    )


@dataclass(frozen=True)
class Distance:
    """A statistic that compares two samples."""

    compare: Callable[..., Comparison]
    needs_order: bool = False  #: compares distribution functions, so text is left out, and bins are not used


#: The distances by name. ``drift``, suites and their files, the exports of ``poolish.guards`` and the tests use it.
DISTANCES = {
    "psi": Distance(psi),
    "kl": Distance(kl),
    "js": Distance(js),
    "ks": Distance(ks, needs_order=True),
    "wasserstein": Distance(wasserstein, needs_order=True),
    "chi2": Distance(chi2),
}


# Counting -------------------------------------------------------------------------------------------------------


def side_of(values: Any) -> Side:
    """A side of a comparison: a column, or the profile of one."""
    return values if isinstance(values, ColumnProfile) else ColumnSample.of(values)


def _counts(reference: Any, current: Any, rule: Rule, bins: Any) -> tuple[Int64, Int64]:
    """The counts of both sides in the same bins."""
    a, b = side_of(reference), side_of(current)
    check_comparable(a, b)
    if rule.convention == EVIDENTLY:
        return _evidently_counts(a, b)
    for side in (a, b):
        if side.kind == "other":
            raise SchemaError(f"{rule.statistic}: numbers, booleans or text, got a column of another kind")
    chosen = None if bins is None else check_bins(bins)
    if isinstance(chosen, Bins):
        edges = chosen
    elif chosen is None:
        edges = a.own_bins()  # those of the profile, if it is one
    else:
        edges = a.own_bins(chosen)
    return aligned(a.histogram_on(edges), b.histogram_on(edges))


def _shares(reference: Any, current: Any, rule: Rule, bins: Any) -> tuple[Floats, Floats, int, int]:
    """The share of each bin on both sides, smoothed as the convention says, and the sizes of the sides."""
    counts, others = _counts(reference, current, rule, bins)
    n, m = int(counts.sum()), int(others.sum())
    if not n or not m:
        return np.empty(0), np.empty(0), n, m
    if rule.convention == "poolish":
        total = _JEFFREYS * len(counts)
        smooth = [(each.astype(np.float64) + _JEFFREYS) / (size + total) for each, size in ((counts, n), (others, m))]
        return smooth[0], smooth[1], n, m
    p, q = counts.astype(np.float64) / n, others.astype(np.float64) / m
    if rule.convention == EVIDENTLY and rule.statistic != "js":  # which is finite with them, so they are left
        p, q = _without_zeros(p), _without_zeros(q)
    return p, q, n, m


def _without_zeros(shares: Floats) -> Floats:
    """As Evidently fills them: a ten-thousandth, or a millionth of the least share where that is smaller."""
    least = float(shares[shares > 0].min())
    return np.where(shares == 0, least / 1e6 if least <= 1e-4 else 1e-4, shares)


def _entropy(p: Floats, q: Floats) -> float:
    """The relative entropy of shares, normalised, as ``scipy.stats.entropy``: infinite where q is 0 and p is not."""
    if not len(p):
        return math.nan
    with np.errstate(all="ignore"):
        p, q = p / p.sum(), q / q.sum()
        terms = np.where(p > 0, p * np.log(np.divide(p, q)), 0.0)
    return float(terms.sum())


def _evidently_counts(a: Side, b: Side) -> tuple[Int64, Int64]:
    """Evidently's bins: equal widths over both samples by Sturges, or each value where the reference has few."""
    few, others = _all_values(a), _all_values(b)
    if a.kind == "text" or (few is not None and len(few) <= MAX_DISCRETE):
        if few is None or others is None:
            raise SchemaError("the values of a side are not known any more; pass the values, not a profile")
        values = [*few, *(value for value in others if value not in few)]
        return tuple(np.array([side.get(v, 0) for v in values], np.int64) for side in (few, others))  # type: ignore[return-value]
    x, y = (_exact_finite(side) for side in (a, b))
    if not len(x) or not len(y):
        return np.array([len(x)]), np.array([len(y)])
    edges = np.histogram_bin_edges(np.concatenate([x, y]), bins="sturges")
    return np.histogram(x, edges)[0], np.histogram(y, edges)[0]


def _all_values(side: Side) -> dict[Any, int] | None:
    if isinstance(side, ColumnProfile) and side.n_uncategorized:
        return None
    if side.categories is None and side.kind != "text":
        values, counts = np.unique(_exact_finite(side), return_counts=True)
        return dict(zip(values.tolist(), counts.tolist(), strict=True))
    return side.categories


def _exact_finite(side: Side) -> Floats:
    points, reached = _finite(side)
    if len(points) and len(points) != int(reached[-1]):
        raise SchemaError("evidently-0.7 needs every value; pass the values, or a profile made with sketch='exact'")
    return points


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


def _finite(side: Side) -> tuple[Floats, Floats]:
    if isinstance(side, ColumnProfile):
        return (np.empty(0), np.empty(0)) if side.quantiles is None else side.quantiles.ranked
    return side.finite, np.arange(1, len(side.finite) + 1, dtype=np.float64)


def _share_at(points: Floats, shares: Floats, x: Floats) -> Floats:
    reached: Floats = np.concatenate([[0.0], shares])[np.searchsorted(points, x, side="right")]
    return reached


def _apart(points: Floats, shares: Floats, others: Floats, other_shares: Floats) -> float:
    x = np.union1d(points, others)
    return float(np.abs(_share_at(points, shares, x) - _share_at(others, other_shares, x)).max())


def _area(points: Floats, shares: Floats, others: Floats, other_shares: Floats) -> float:
    x = np.union1d(points, others)
    apart = np.abs(_share_at(points, shares, x[:-1]) - _share_at(others, other_shares, x[:-1]))
    with np.errstate(all="ignore"):
        return float(np.dot(apart[apart > 0], np.diff(x)[apart > 0]))


def _scale(points: Floats, reached: Floats, convention: str) -> float:
    """What the distance is divided by: the standard deviation of the reference, unless it has none."""
    if convention == "scipy":
        return 1.0
    shares = np.diff(reached, prepend=0.0) / reached[-1]
    # Divided by the largest first: squares of huge values are beyond float64 where the deviation is not.
    largest = max(abs(float(points[0])), abs(float(points[-1]))) or 1.0
    scaled = points / largest
    std = largest * math.sqrt(float(np.dot((scaled - np.dot(scaled, shares)) ** 2, shares)))
    if convention == EVIDENTLY:
        return max(std, 0.001)
    return std if std > 0 and math.isfinite(std) else 1.0


_N_BRIDGES, _N_STEPS = 4_000, 128


@lru_cache(maxsize=1)
def _bridges() -> Floats:
    """Brownian bridges, each a row of absolute heights at the middles of equal steps."""
    steps = generator(0, "wasserstein").standard_normal((_N_BRIDGES, _N_STEPS)) / math.sqrt(_N_STEPS)
    walked = np.cumsum(steps, axis=1)
    ends = walked - np.outer(walked[:, -1], np.arange(1, _N_STEPS + 1) / _N_STEPS)
    heights: Floats = np.abs(ends[:, :-1])
    return heights


def _bridge_areas(points: Floats, reached: Floats) -> Floats:
    """Under no drift, the areas between two distribution functions, before the sizes of the samples enter."""
    ranks = (np.arange(_N_STEPS) + 0.5) / _N_STEPS * reached[-1]
    quantiles = points[np.minimum(np.searchsorted(reached, ranks), len(points) - 1)]
    with np.errstate(all="ignore"):
        areas: Floats = _bridges() @ np.diff(quantiles)
    return areas
