"""How far the largest of the next rows may reach, judged by the largest of those that were seen.

Of two samples of the same size, the second has the larger maximum half of the time, so the maximum itself is no bound.
What lies beyond a high threshold follows a generalised Pareto distribution, whatever the column holds (Pickands,
Balkema and de Haan): bounded (shape below 0), like a normal's tail (about 0) or heavy (a Cauchy's is 1). Shape and
scale are weighed on a grid by their likelihood, and the bound is the value that the next rows exceed with a given
probability over all of them together; so little data, or tails that may be heavy, give room.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Shapes that are weighed, from a uniform distribution to tails without a mean, and by how little each is expected.
_SHAPES = np.linspace(-1.0, 2.0, 46)
_PRIOR = -0.5 * ((_SHAPES - 0.1) / 0.5) ** 2
#: Scales above the least possible one, in means of what lies beyond the threshold.
_SCALES = np.exp(np.linspace(-8.0, 2.5, 56))
_MOST_SEEN, _LEAST_SEEN = 100, 10
#: A bound beyond this many times the largest distance from the threshold says nothing.
_FAR = 1e9


@dataclass(frozen=True)
class Bound:
    """A bound for the largest value: None if the tail is too heavy, or too little is known, to name one.

    ``is_end``: the largest value came so often that it is taken for the end of what is possible.
    """

    value: float | None
    shape: float = math.nan
    is_end: bool = False


def upper_bound(values: Floats, n_next: int, alpha: float, *, is_whole: bool = False) -> Bound:
    """A bound that the largest of the next ``n_next`` values exceeds with probability ``alpha``, about.

    ``values`` stand in the order of their rows: where large ones come together, there is less to learn from them.

    >>> seen = np.random.default_rng(0).uniform(0, 1, 1_000)
    >>> 1 < upper_bound(seen, 1_000, 0.01).value < 1.02
    True
    """
    n, largest = len(values), float(values.max())
    ordered = np.sort(values)
    n_seen = min(max(min(n // 5, int(3 * math.sqrt(n)), _MOST_SEEN), _LEAST_SEEN), n - 1)
    if n_seen < 2 or ordered[n - n_seen] == largest:
        is_end = n_seen >= 2
        return Bound(largest if is_end else None, is_end=is_end)
    # The next smaller value, so that all equal ones lie on one side; the smallest, if there is none.
    threshold = ordered[max(int(np.searchsorted(ordered, ordered[n - n_seen])) - 1, 0)]
    is_beyond = values > threshold
    beyond = values[is_beyond] - threshold - (0.5 if is_whole else 0.0)
    scale = float(beyond.mean())
    if not math.isfinite(scale) or scale <= 0:
        return Bound(None)
    weights, scales = _posterior(beyond / scale, _cluster_size(is_beyond))
    shape = float((weights.sum(axis=1) * _SHAPES).sum())
    distance = _exceeded_with(alpha, n_next * len(beyond) / n, weights, scales, float(beyond.max()) / scale)
    if distance is None:
        return Bound(None, shape)
    found = float(threshold + distance * scale)
    if not math.isfinite(found):
        return Bound(None, shape)
    return Bound(max(math.ceil(found) if is_whole else found, largest), shape)


def _posterior(beyond: Floats, cluster_size: float) -> tuple[Floats, Floats]:
    """The weight of each shape and scale, and the scales of each shape; ``beyond`` has a mean of 1."""
    least = np.maximum(-_SHAPES * beyond.max(), 0.0)[:, None]
    scales = least + _SCALES[None, :]
    spread = np.zeros(scales.shape)
    for i, shape in enumerate(_SHAPES):
        # (1 + 1/shape) * log(1 + shape * y / scale), whose limit for a shape of 0 is y / scale
        ratio = beyond[:, None] / scales[i][None, :]
        spread[i] = (ratio if abs(shape) < 1e-9 else (1 + 1 / shape) * np.log1p(shape * ratio)).sum(axis=0)
    likelihood = (-len(beyond) * np.log(scales) - spread) / cluster_size
    # The steps between scales are those of their logarithm; a scale has the prior 1 / scale.
    log_weights = likelihood + _PRIOR[:, None] + np.log(_SCALES)[None, :] - np.log(scales)
    weights = np.exp(log_weights - log_weights.max())
    return weights / weights.sum(), scales


def _exceeded_with(alpha: float, expected: float, weights: Floats, scales: Floats, largest: float) -> float | None:
    """The distance that the largest of the ``expected`` number of exceedances passes with probability ``alpha``."""

    def chance(distance: float) -> float:
        return float((weights * -np.expm1(-expected * _survival(distance, scales))).sum())

    low, high = math.log(largest), math.log(largest * _FAR)
    if chance(math.exp(low)) <= alpha:
        return largest
    if chance(math.exp(high)) > alpha:
        return None
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if chance(math.exp(middle)) > alpha else (low, middle)
    return math.exp(high)


def _survival(distance: float, scales: Floats) -> Any:
    shapes = np.broadcast_to(_SHAPES[:, None], scales.shape)
    ratio = distance / scales
    with np.errstate(divide="ignore", invalid="ignore"):
        heavy = np.exp(-np.log(np.maximum(1 + shapes * ratio, 0.0)) / shapes)
    return np.where(np.abs(shapes) < 1e-9, np.exp(-ratio), heavy)


def _cluster_size(is_beyond: NDArray[np.bool_]) -> float:
    """How many values beyond the threshold come together on average, as within an episode; 1 in a sorted column."""
    steps = np.count_nonzero(is_beyond[1:] != is_beyond[:-1])
    if steps == 1:
        return 1.0
    places = np.flatnonzero(is_beyond)
    n_clusters = 1 + int(np.count_nonzero(np.diff(places) > 2))
    by_chance = 1 + 2 * len(places) / len(is_beyond)
    return max(1.0, len(places) / n_clusters / by_chance)
