"""Choosing windows at random: evenly over all starts there are, or by weights on ranges of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from poolish import kernels
from poolish.errors import ConfigError
from poolish.tokens.lanes import STEP
from poolish.tokens.starts import Starts, View

Int64 = NDArray[np.int64]

#: No step is behind it.
LAST_STEP = 2**63 - 1

#: (first step, step behind the last, weight)
Weight = tuple[int, int, float]


@dataclass(frozen=True)
class Coverage:
    """What can be sampled: how many windows, and how many episodes are too short for one."""

    windows: int
    episodes: int
    too_short: int


def coverage(view: View, starts: Starts) -> Coverage:
    """Count the windows there are."""
    low, high = starts.bounds(view)
    return Coverage(max(0, high - low), *starts.short(view))


def choose(
    view: View, starts: Starts, n: int, width: int, rng: np.random.Generator, weights: Sequence[Weight] | None
) -> Int64:
    """The positions of ``n`` windows, drawn with replacement."""
    low, high = starts.bounds(view)
    if high <= low:
        raise _nothing(view, starts, width)
    if weights is None:
        return starts.select(view, kernels.draw(rng, low, high, n))
    return starts.select(view, _by_weights(view, starts, n, rng, weights, low, high))


def _by_weights(
    view: View, starts: Starts, n: int, rng: np.random.Generator, weights: Sequence[Weight], low: int, high: int
) -> Int64:
    ranges = check_weights(weights)
    steps = np.array([[first, end] for first, end, _ in ranges], np.int64)
    positions = view.starts_of(view.rows_not_below(STEP, steps.reshape(-1))).tolist()
    ranks = np.array([starts.rank(view, position) for position in positions]).clip(low, high)
    lows, highs = ranks[::2], ranks[1::2]
    each = np.where(highs > lows, [weight for _, _, weight in ranges], 0.0)
    # Divided by the largest, so that no sum is infinite and no share is lost below the smallest number.
    mass = np.cumsum((highs - lows) * (each / (each.max() or 1.0)))
    if not mass[-1] > 0:
        raise ConfigError("weights: no window begins in a range with a weight above 0; check the ranges and the width")
    chosen = np.searchsorted(mass, rng.random(n) * mass[-1], side="right")
    numbers: Int64 = rng.integers(lows[chosen], highs[chosen])
    return numbers


def check_weights(weights: Sequence[Weight]) -> list[Weight]:
    """The ranges in order, if each makes sense and none overlap."""
    if not isinstance(weights, Sequence) or isinstance(weights, str) or not weights:
        raise ConfigError(f"weights={weights!r}: give a list of (first step, step behind the last, weight)")
    ranges = sorted(_checked(i, part) for i, part in enumerate(weights))
    for (_, end, _), (first, _, _) in pairwise(part for part in ranges if part[0] < part[1]):
        if first < end:
            raise ConfigError(f"weights: two ranges hold step {first}; cut one of them")
    return ranges


def _checked(i: int, part: object) -> Weight:
    if not (isinstance(part, (tuple, list)) and len(part) == 3):
        raise ConfigError(f"weights[{i}]: give (first step, step behind the last, weight), got {part!r}")
    first, end, weight = part
    is_range = all(isinstance(step, (int, np.integer)) and not isinstance(step, bool) for step in (first, end))
    is_weight = isinstance(weight, (int, float, np.integer, np.floating)) and not isinstance(weight, bool)
    if not (is_range and is_weight and 0 <= first <= end and 0 <= weight < float("inf")):
        raise ConfigError(f"weights[{i}]: whole steps 0 <= first <= end, and a weight of 0 or more, got {part!r}")
    return min(int(first), LAST_STEP), min(int(end), LAST_STEP), float(weight)


def _nothing(view: View, starts: Starts, width: int) -> ConfigError:
    n_tokens = view.tokens - view.first_token
    n_episodes, n_short = starts.short(view)
    where = (
        f"its {n_episodes:,} episodes are all shorter" if n_short and n_short == n_episodes else f"it has {n_tokens:,}"
    )
    return ConfigError(f"no window of {width:,} tokens fits into this stream: {where}; append more, or ask for less")
