"""How far two samples are apart: psi, kl, js, ks, wasserstein, chi2, each called ``(reference, current)``.

A side is anything that holds values (arrays, lists, Arrow, tensors) or the profile of a column. Each statistic names
its ``convention``, because the same name means different numbers elsewhere:

    poolish         bins chosen by both samples where that matters (``cells``), Jeffreys' smoothing, p-values that
                    hold on every kind of column (``permutation``)
    scipy           bins of the reference, no smoothing; what scipy.stats computes, with its p-values of ks and chi2
    evidently-0.7   Evidently's bins, zeros and fixed thresholds, to the last digit

Here are the values; ``significance`` says from where on they are drift.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolish.errors import SchemaError
from poolish.guards.stats.cells import Cells, Side, shared_cells, side_of, without_empty
from poolish.guards.stats.column_profile import ColumnProfile, check_comparable
from poolish.guards.stats.profile import check_bins
from poolish.guards.stats.rank_distances import finite_ranked
from poolish.guards.stats.rank_distances import ks as ks
from poolish.guards.stats.rank_distances import wasserstein as wasserstein
from poolish.guards.stats.samples import MAX_DISCRETE, Bins, aligned
from poolish.guards.stats.significance import (
    EVIDENTLY,
    MIN_ROWS,
    Chi2Comparison,
    Comparison,
    JsComparison,
    KlComparison,
    Rule,
)

Floats = NDArray[np.float64]
Int64 = NDArray[np.int64]

_LN2 = math.log(2)


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
    cells = _cells(reference, current, rule, bins)
    return rule.of_cells(Comparison, cells, _index, 1.0)


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
    cells = _cells(reference, current, rule, bins)
    p, q = rule.shares(cells.counts, cells.others)
    forward, backward = float(_entropy(q, p)), float(_entropy(p, q))
    extra: Any = {"current_from_reference": forward, "reference_from_current": backward}
    return rule.of_cells(KlComparison, cells, _from_current if convention == EVIDENTLY else _surprise, 0.5, **extra)


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
    cells = _cells(reference, current, rule, bins)
    nats = float(_nats(*rule.shares(cells.counts, cells.others)))
    extra: Any = {"bits": nats / _LN2, "distance": math.sqrt(nats)}
    if convention == "poolish":
        return rule.of_cells(JsComparison, cells, _bits, 1 / (8 * _LN2), **extra)
    return rule.of_cells(JsComparison, cells, _distance, 1 / 8, power=2, **extra)


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
    cells = _cells(reference, current, rule, bins)
    kept = without_empty(cells.counts, cells.others)
    cells = replace(cells, counts=kept[0], others=kept[1])
    n, m = int(cells.counts.sum()), int(cells.others.sum())
    if convention == EVIDENTLY and n and m:
        with np.errstate(all="ignore"):
            expected = cells.counts * (m / n)
            value = float(((cells.others - expected) ** 2 / expected).sum())
    else:
        value = float(_pearson(cells.counts, cells.others)) if n and m else math.nan
    df = max(len(cells.counts) - 1, 0)
    effect = math.sqrt(value / (n + m)) if n and m else 0.0
    return rule.of_chi2(Chi2Comparison, cells, _pearson, value, df=df, effect=effect)


# Statistics of counts: (reference, current), cells in the last axis -----------------------------------------------


def _index(p: Floats, q: Floats) -> Floats:
    with np.errstate(all="ignore"):
        terms = np.where(p == q, 0.0, (q - p) * np.log(np.divide(q, p)))
    total: Floats = terms.sum(axis=-1)
    return total


def _surprise(p: Floats, q: Floats) -> Floats:
    return _entropy(q, p)


def _from_current(p: Floats, q: Floats) -> Floats:
    return _entropy(p, q)


def _bits(p: Floats, q: Floats) -> Floats:
    return _nats(p, q) / _LN2


def _distance(p: Floats, q: Floats) -> Floats:
    return np.sqrt(_nats(p, q))


def _nats(p: Floats, q: Floats) -> Floats:
    middle = (p + q) / 2
    return np.maximum((_entropy(p, middle) + _entropy(q, middle)) / 2, 0.0)


def _entropy(p: Floats, q: Floats) -> Floats:
    """The relative entropy of shares, normalised, as ``scipy.stats.entropy``: infinite where q is 0 and p is not."""
    with np.errstate(all="ignore"):
        p, q = p / p.sum(axis=-1, keepdims=True), q / q.sum(axis=-1, keepdims=True)
        terms = np.where(p > 0, p * np.log(np.divide(p, q)), 0.0)
    return terms.sum(axis=-1) if p.shape[-1] else np.full(p.shape[:-1], math.nan)


def _pearson(counts: Int64, others: Int64) -> Floats:
    n, m = counts.sum(axis=-1, keepdims=True), others.sum(axis=-1, keepdims=True)
    pooled = (counts + others) / (n + m)
    terms: Floats = (counts - n * pooled) ** 2 / (n * pooled) + (others - m * pooled) ** 2 / (m * pooled)
    total: Floats = terms.sum(axis=-1)
    return total


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


def _cells(reference: Any, current: Any, rule: Rule, bins: Any) -> Cells:
    """The counts of both sides in the same cells, as the convention chooses them."""
    a, b = side_of(reference), side_of(current)
    check_comparable(a, b)
    if rule.convention == EVIDENTLY:
        return Cells(*_evidently_counts(a, b))
    for side in (a, b):
        if side.kind == "other":
            raise SchemaError(f"{rule.statistic}: numbers, booleans or text, got a column of another kind")
    chosen = None if bins is None else check_bins(bins)
    if rule.convention == "poolish":
        return shared_cells(a, b, chosen)
    edges = chosen if isinstance(chosen, Bins) else a.own_bins() if chosen is None else a.own_bins(chosen)
    return Cells(*aligned(a.histogram_on(edges), b.histogram_on(edges)))


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
    points, reached = finite_ranked(side)
    if len(points) and len(points) != int(reached[-1]):
        raise SchemaError("evidently-0.7 needs every value; pass the values, or a profile made with sketch='exact'")
    return points
