"""Calibration: how often a difference as large as this one appears when nothing has changed.

Without drift every row could as well have come from the other sample. So the counts of the current sample in each cell
are a draw without replacement from the counts of both together (multivariate hypergeometric), whatever the column
looks like: ties, zeros, heavy tails, rare words. The p-value is the share of such draws whose statistic is at least as
large. It is valid where the cells were chosen by looking at both samples together, as ``cells`` does.

    two cells          every possible draw is enumerated: exact (Fisher)
    more cells         up to a few thousand draws, in batches; it stops as soon as the p-value can no longer be below
                       ``alpha`` (Besag and Clifford 1991), so a column without drift costs about a hundred draws
    beyond the draws   where fewer than ten draws are as large, the tail of a Pearson III curve fitted to all of them

Elements of one list or tensor resemble each other, so there whole rows are drawn, with all that they hold: permuted
where the rows of both samples are known, else from a normal distribution with the covariance of those that are.

The generator is seeded, so the same samples give the same p-value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from poolish.seeds import generator

Floats = NDArray[np.float64]
Int64 = NDArray[np.int64]
#: Counts of the reference and of the current sample, cells in the last axis -> the statistic.
Statistic = Callable[[Int64, Int64], Floats]

#: Counts of both sides in a number of draws, a line each.
Samples = Callable[[np.random.Generator, int], tuple[Any, Any]]

#: Draws whose statistics are fewer than this are no basis for a share; the fitted tail is used instead.
_FEW = 10
_MIN_DRAWS, _MAX_DRAWS = 999, 4_999
_BATCHES = (100, 200, 400, 800)
#: Numbers in one batch at most (8 MB each), so that memory does not grow with the number of cells.
_MAX_BATCH = 1 << 20
#: Possible draws of two cells that are enumerated.
_MAX_ENUMERATED = 100_000
#: NumPy draws without replacement from fewer rows than this.
_MAX_ROWS = 1_000_000_000
#: Rows of lists and tensors that are permuted; more are as good as normal.
_MAX_PERMUTED = 20_000
#: Sums in another order differ by rounding; draws this close to the observed value are equal to it.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Calibration:
    """How surprising a value is without drift."""

    p: float
    threshold: float  #: the value that a share ``alpha`` of the draws exceeds
    draws: int  #: how many draws it took; 0 where all were enumerated


@dataclass(frozen=True)
class RowCounts:
    """How many elements of each row are in each cell, where rows have several; None for a side that does not know."""

    reference: Int64 | None
    current: Int64 | None
    n: int  #: rows of the reference
    m: int  #: rows of the current sample


def calibrate(
    statistic: Statistic, counts: Int64, others: Int64, alpha: float, rows: RowCounts | None = None
) -> Calibration:
    """The p-value of the statistic of two vectors of counts on the same cells, large values being drift.

    >>> apart = lambda a, b: np.abs(a[..., 0] / a.sum(-1) - b[..., 0] / b.sum(-1))
    >>> round(calibrate(apart, np.array([8, 2]), np.array([1, 9]), 0.05).p, 6)
    0.005477
    """
    totals, m = counts + others, int(others.sum())
    observed = float(statistic(counts, others))
    observed -= _ROUNDING * abs(observed)
    if rows is not None:
        return _drawn(statistic, *_row_samples(rows, totals), observed, alpha)
    if len(totals) == 2 and min(int(totals.min()), m, int(totals.sum()) - m) < _MAX_ENUMERATED:
        return _enumerated(statistic, totals, m, observed, alpha)

    def drawn(rng: np.random.Generator, size: int) -> tuple[Int64, Int64]:
        others = draw(rng, totals, m, size)
        return totals - others, others

    return _drawn(statistic, drawn, len(totals), observed, alpha)


def _enumerated(statistic: Statistic, totals: Int64, m: int, observed: float, alpha: float) -> Calibration:
    first, second = (int(total) for total in totals)
    drawn = np.arange(max(0, m - second), min(first, m) + 1)
    # Neighbouring probabilities have simple ratios; their logarithms are added up, so that nothing overflows.
    ratios = np.log((first - drawn[:-1]) * (m - drawn[:-1]) / (drawn[1:] * (second - m + drawn[1:])))
    logs = np.concatenate([[0.0], np.cumsum(ratios)])
    shares = np.exp(logs - logs.max())
    shares /= shares.sum()
    others = np.stack([drawn, m - drawn], axis=-1)
    values = statistic(totals - others, others)
    order = np.argsort(values)
    tail = np.cumsum(shares[order][::-1])[::-1]
    threshold = float(values[order][max(int(np.searchsorted(-tail, -alpha)) - 1, 0)])
    return Calibration(min(float(shares[values >= observed].sum()), 1.0), threshold, 0)


def _drawn(
    statistic: Statistic,
    samples: Samples,
    width: int,
    observed: float,
    alpha: float,
) -> Calibration:
    rng = generator(0, "drift")
    wanted = min(max(math.ceil(20 / alpha) - 1, _MIN_DRAWS), _MAX_DRAWS)
    enough = max(math.ceil(alpha * (wanted + 1)), 20)
    values, n_large, p, batch = np.empty(0), 0, None, 0
    while p is None and len(values) < wanted:
        size = min(_BATCHES[min(batch, len(_BATCHES) - 1)], wanted - len(values), max(_MAX_BATCH // width, 1))
        found = statistic(*samples(rng, size))
        reached = n_large + np.cumsum(found >= observed)
        if reached[-1] >= enough:
            p = enough / (len(values) + 1 + int(np.searchsorted(reached, enough)))
        values, n_large, batch = np.concatenate([values, found]), int(reached[-1]), batch + 1
    if p is None:
        p = (n_large + 1) / (len(values) + 1)
        p = min(p, _fitted_tail(values, observed)) if n_large < _FEW else p
    place = min(math.ceil((1 - alpha) * (len(values) + 1)), len(values)) - 1
    return Calibration(p, float(np.partition(values, place)[place]), len(values))


def draw(rng: np.random.Generator, totals: Int64, m: int, size: int) -> Int64:
    """Draws of ``m`` rows without replacement: how many come from each cell, one draw a line."""
    n_rows = int(totals.sum())
    if n_rows >= _MAX_ROWS:  # a billion rows: that their number varies by a few ten thousand changes no share
        return rng.binomial(totals, m / n_rows, (size, len(totals)))
    # Measured: a draw takes 7 ns for each row by shuffling them, or 170 ns for each cell by its own distribution.
    method: Literal["count", "marginals"] = "count" if n_rows < 25 * len(totals) else "marginals"
    return rng.multivariate_hypergeometric(totals, m, size, method=method)


def _row_samples(rows: RowCounts, totals: Int64) -> tuple[Samples, int]:
    """What draws the counts of whole rows, and how many numbers a draw takes."""
    if rows.reference is not None and rows.current is not None and rows.n + rows.m <= _MAX_PERMUTED:
        every = np.concatenate([rows.reference, rows.current]).astype(np.float64)
        return partial(_permuted_rows, every, totals, len(rows.current)), len(every)
    known = [side[:: -(-len(side) // _MAX_PERMUTED)] for side in (rows.reference, rows.current) if side is not None]
    apart = [side - side.mean(axis=0) for side in known]
    covariance = sum(side.T @ side for side in apart) / max(sum(map(len, apart)) - len(apart), 1)
    values, vectors = np.linalg.eigh(covariance)
    return partial(_normal_rows, vectors * np.sqrt(np.maximum(values, 0)), totals, rows), len(totals)


def _permuted_rows(every: Floats, totals: Int64, m: int, rng: np.random.Generator, size: int) -> tuple[Any, Any]:
    is_current = np.zeros((size, len(every)))
    is_current[:, :m] = 1
    others = rng.permuted(is_current, axis=1, out=is_current) @ every
    return totals - others, others


def _normal_rows(
    spread: Floats, totals: Int64, rows: RowCounts, rng: np.random.Generator, size: int
) -> tuple[Any, Any]:
    each = totals / (rows.n + rows.m)
    drawn = [n * each + math.sqrt(n) * (rng.standard_normal((size, len(each))) @ spread.T) for n in (rows.n, rows.m)]
    return np.maximum(drawn[0], 0), np.maximum(drawn[1], 0)


def _fitted_tail(values: Floats, observed: float) -> float:
    """The tail of a Pearson III curve with the moments of the draws, by Wilson and Hilferty's cube root."""
    mean, std = float(values.mean()), float(values.std())
    if not (math.isfinite(std) and std > 0):
        return 1.0
    skewness = max(float((((values - mean) / std) ** 3).mean()), 0.01)
    shape = 4 / skewness**2
    ratio = max(1 + (observed - mean) / std / math.sqrt(shape), 0.0)
    z = 3 * math.sqrt(shape) * (ratio ** (1 / 3) - 1 + 1 / (9 * shape))
    return math.erfc(z / math.sqrt(2)) / 2
