"""The drift tests of other libraries with their defaults, by formula: ``(reference, current) -> whether it alarms``.

Written from their code: Evidently 0.7.23 (``calculations/stattests``), NannyML 0.13 (``drift/univariate``), TFDV's
comparators. TFDV has no default thresholds; those here are of its guide and of Vertex AI's examples. Numbers are NumPy
arrays, text is a list; a library that was not made for a column is not asked.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.spatial.distance
import scipy.stats

Alarm = Callable[[Any, Any], bool]
ALPHA, MARK = 0.05, 0.1
TFDV_NORM, TFDV_JS = 0.01, 0.02


def shares(reference: Any, current: Any) -> tuple[np.ndarray, np.ndarray]:
    """The counts of each value on both sides."""
    values, where = np.unique(np.concatenate([np.asarray(reference), np.asarray(current)]), return_inverse=True)
    counts = [np.bincount(part, minlength=len(values)) for part in (where[: len(reference)], where[len(reference) :])]
    return counts[0], counts[1]


def is_text(values: Any) -> bool:
    """Whether a column is text."""
    return isinstance(values, list)


def scipy_ks(reference: Any, current: Any) -> bool:
    """``scipy.stats.ks_2samp``; of text, which has no order, ``chi2_contingency`` of its values."""
    if is_text(reference):
        return bool(scipy.stats.chi2_contingency(np.stack(shares(reference, current)))[1] < ALPHA)
    return _ks(reference, current)


def _ks(reference: Any, current: Any) -> bool:
    with warnings.catch_warnings(action="ignore"):  # that it had to use the limit after all
        return bool(scipy.stats.ks_2samp(reference, current).pvalue < ALPHA)


def evidently(reference: Any, current: Any) -> bool:
    """Up to 1,000 rows of reference a test (KS, chi-square, z) at 0.05, beyond a distance at 0.1."""
    counts, others = shares(reference, current)
    n, m = len(reference), len(current)
    by_value = is_text(reference) or len(counts) <= 5
    if n > 1_000:
        if by_value:
            return bool(scipy.spatial.distance.jensenshannon(counts / n, others / m) >= MARK)
        distance = scipy.stats.wasserstein_distance(reference, current)
        return bool(distance / max(float(np.std(reference)), 0.001) >= MARK)
    if not by_value:
        return _ks(reference, current)
    if len(counts) <= 2:
        p, q = counts[-1] / n, others[-1] / m
        pooled = (counts[-1] + others[-1]) / (n + m)
        spread = np.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))
        return bool(spread > 0 and 2 * scipy.stats.norm.sf(abs(p - q) / spread) < ALPHA)
    with np.errstate(all="ignore"):
        expected = counts * (m / n)
        value = np.nansum((others - expected) ** 2 / expected)
    return bool(scipy.stats.chi2.sf(value, len(counts) - 1) < ALPHA)


def nannyml(reference: Any, current: Any) -> bool:
    """Jensen and Shannon's distance in bits above 0.1, on Doane's bins of the reference, or its values."""
    n, m = len(reference), len(current)
    values = np.unique(np.asarray(reference))
    if not is_text(reference) and (len(values) > 50 or len(values) / n > 0.1):
        edges = np.histogram_bin_edges(reference, bins="doane")
        p, q = np.histogram(reference, edges)[0] / n, np.histogram(current, edges)[0] / m
    else:
        found, places = np.asarray(current), np.searchsorted(values, np.asarray(current))
        known = values[np.minimum(places, len(values) - 1)] == found
        p = np.bincount(np.searchsorted(values, np.asarray(reference)), minlength=len(values)) / n
        q = np.bincount(places[known], minlength=len(values)) / m
    if (left := 1 - q.sum()) > 1e-12:
        p, q = np.append(p, 0), np.append(q, left)
    return bool(scipy.spatial.distance.jensenshannon(p, q, base=2) > MARK)


def tfdv(reference: Any, current: Any) -> bool:
    """Of text the largest difference of shares, of numbers the divergence in bits on ten equal widths of each side."""
    if is_text(reference):
        counts, others = shares(reference, current)
        return bool(np.abs(counts / len(reference) - others / len(current)).max() > TFDV_NORM)
    parts = [np.histogram_bin_edges(side, bins=10) for side in (reference, current)]
    edges = np.unique(np.concatenate(parts))
    p, q = (_spread_evenly(side, own, edges) for side, own in zip((reference, current), parts, strict=True))
    return bool(scipy.spatial.distance.jensenshannon(p, q, base=2) ** 2 > TFDV_JS)


def _spread_evenly(values: np.ndarray, own: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The histogram on its own edges, the mass of each bucket spread evenly over the joint ones."""
    reached = np.concatenate([[0.0], np.cumsum(np.histogram(values, own)[0]) / len(values)])
    return np.diff(np.interp(edges, own, reached))


PEERS: dict[str, Alarm] = {"scipy": scipy_ks, "Evidently": evidently, "NannyML": nannyml, "TFDV": tfdv}
