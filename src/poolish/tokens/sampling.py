"""Choosing windows at random: evenly over all starts there are, or by weights on ranges of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from poolish.errors import ConfigError
from poolish.tokens.lanes import STEP
from poolish.tokens.starts import Starts, View, check_starts

Int64 = NDArray[np.int64]

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
    low, high = starts.rank(view, view.first_token), starts.rank(view, view.tokens + 1)
    return Coverage(max(0, high - low), *starts.short(view))


def choose(
    view: View, starts: Starts, n: int, width: int, rng: np.random.Generator, weights: Sequence[Weight] | None
) -> Int64:
    """The positions of ``n`` windows, drawn with replacement."""
    # All ranges are counted before the end: what is appended meanwhile does not belong to this draw.
    total = starts.rank(view, view.tokens + 1)
    low = starts.rank(view, view.first_token)
    if weights is not None:
        numbers = _by_weights(view, starts, n, rng, weights, total)
    elif total <= low:
        raise _nothing(view, starts, width)
    else:
        numbers = rng.integers(low, total, n)
    chosen = starts.select(view, numbers)
    check_starts(view, chosen, width)
    return chosen


def _by_weights(
    view: View, starts: Starts, n: int, rng: np.random.Generator, weights: Sequence[Weight], total: int
) -> Int64:
    ranges = check_weights(weights)
    edges = view.rows_not_below(STEP, np.array([[first, end] for first, end, _ in ranges], np.int64).reshape(-1))
    positions = view.starts_of(edges).tolist()
    # Only the start of the row behind the last one is sure, and it is the end.
    ranks = [min(starts.rank(view, position), total) for position in positions]
    lows, highs = np.array(ranks[::2]), np.array(ranks[1::2])
    mass = np.cumsum((highs - lows) * np.array([weight for _, _, weight in ranges]))
    if not mass[-1] > 0:
        raise ConfigError("weights: no window begins in a range with a weight above 0; check the ranges and the width")
    chosen = np.searchsorted(mass, rng.random(n) * mass[-1], side="right")
    numbers: Int64 = rng.integers(lows[chosen], highs[chosen])
    return numbers


def check_weights(weights: Sequence[Weight]) -> list[Weight]:
    """The ranges in order, if each makes sense and none overlap."""
    ranges = []
    for i, part in enumerate(weights):
        if not (isinstance(part, (tuple, list)) and len(part) == 3):
            raise ConfigError(f"weights[{i}]: give (first step, step behind the last, weight), got {part!r}")
        first, end, weight = int(part[0]), int(part[1]), float(part[2])
        if not (0 <= first <= end and 0 <= weight < float("inf")):
            raise ConfigError(f"weights[{i}]: 0 <= first <= end, and a weight of 0 or more, got {part!r}")
        ranges.append((first, end, weight))
    ranges.sort()
    for (_, end, _), (first, _, _) in pairwise(ranges):
        if first < end:
            raise ConfigError(f"weights: two ranges hold step {first}; cut one of them")
    if not ranges:
        raise ConfigError("weights: an empty list leaves nothing to sample; leave weights= out for all steps")
    return ranges


def _nothing(view: View, starts: Starts, width: int) -> ConfigError:
    n_tokens = view.tokens - view.first_token
    n_episodes, n_short = starts.short(view)
    where = (
        f"its {n_episodes:,} episodes are all shorter" if n_short and n_short == n_episodes else f"it has {n_tokens:,}"
    )
    return ConfigError(f"no window of {width:,} tokens fits into this stream: {where}; append more, or ask for less")
