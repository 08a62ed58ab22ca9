"""Quantiles that merge: all values while they are few, and beyond that a summary whose error is known.

The summary is a stack of levels, a value on level ``h`` standing for ``2**h`` values::

    level 2   4 each   -3.1  0.2  1.7          a full level is sorted, and every other value goes up (KLL)
    level 1   2 each   0.3
    level 0   1 each   1.4  2.2  -0.5          what comes one by one

What comes as one large batch is sorted once, and the middle of every ``2**h`` neighbours enters at level ``h``. Each of
these steps moves a rank by a known number of rows at most; their sum is kept, so ``error`` is a bound and no estimate.

Written by hand: the well-kept KLL (datasketches) tosses coins that cannot be seeded, so a profile could not be made
twice, and takes three times as long as the one sort, which also gives the exact edges of a histogram.

``Ranks`` finds the values at given places of an order without sorting millions to find a few thousand::

    sample --> range of nearly all values, in 65,536 buckets of equal width
    pass 1     count each bucket, keep one value of it
    pass 2     take out the buckets that hold a place that must be exact, or too many values; only these are sorted

The value at a place is exact in a bucket that was taken out; in another it is the one that was kept, which is off by
less than the bucket holds, and that is known. Two passes over 5 M values take a third of the time of sorting them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolish.errors import CorruptDataError
from poolish.guards.stats.serialization import MAX_COUNT, decode_array, encode_array
from poolish.kernels import fill_buckets, pick_buckets, scatter, sort

Floats = NDArray[np.float64]

#: Up to this many values are kept as they are.
N_EXACT = 10_000
#: The most values on the top level of a summary.
N_TOP = 2_048
_SHRINK = 2 / 3
_LEAST = 8


class Quantiles:
    """Of the finite values of a column; immutable.

    >>> few = Quantiles.of(np.arange(11.0))
    >>> few.at(0.25), few.error
    (2.5, 0.0)
    >>> many = Quantiles.of(np.arange(1_000_000.0))
    >>> round(many.at(0.5), -3), many.error < 0.001
    (500000.0, True)
    """

    __slots__ = ("_levels", "_ranked", "_slack", "_turns", "n", "n_exact")

    def __init__(self, levels: list[Floats], *, n: int, slack: float = 0, turns: int = 0, n_exact: int = N_EXACT):
        self._levels, self.n, self.n_exact = levels, n, n_exact
        self._slack = slack  # by how many rows a rank may be wrong
        self._turns = turns  # how many levels went up so far; it decides which half goes
        self._ranked: tuple[Floats, Floats] | None = None

    @classmethod
    def of(cls, values: NDArray[Any], *, n_exact: int = N_EXACT) -> Quantiles:
        """Of an array without NaN."""
        return cls.of_sorted(sort(values), n_exact=n_exact)

    @classmethod
    def of_sorted(cls, ordered: Floats, *, n_exact: int = N_EXACT) -> Quantiles:
        """Of a sorted array."""
        n = len(ordered)
        if n <= n_exact:
            return cls([ordered], n=n, n_exact=n_exact)
        levels, slack = _batch(n, ordered.__getitem__)
        return cls(levels, n=n, slack=slack, n_exact=n_exact)

    @classmethod
    def of_places(cls, n: int, at: Callable[[NDArray[np.int64]], Floats], slack: float) -> Quantiles:
        """Of ``n`` values, too many to keep, where ``at`` gives those at or near places in their order."""
        levels, own = _batch(n, at)
        return cls(levels, n=n, slack=own + slack)

    @property
    def is_exact(self) -> bool:
        """Whether every value is still there."""
        return len(self._levels) <= 1

    @property
    def error(self) -> float:
        """By how much a rank, between 0 and 1, may be wrong at most."""
        return self._slack / self.n if self.n else 0.0

    @property
    def ranked(self) -> tuple[Floats, Floats]:
        """The values in order, and how many rows lie at or before each."""
        if self._ranked is None:
            values = np.concatenate(self._levels) if self._levels else np.empty(0)
            weights = np.repeat(2.0 ** np.arange(len(self._levels)), [len(level) for level in self._levels])
            order = np.argsort(values, kind="stable")
            self._ranked = values[order], np.cumsum(weights[order])
        return self._ranked

    def at(self, q: float) -> float:
        """The value at a rank from 0 to 1, linear between neighbours (type 7, as in NumPy); NaN of nothing."""
        values, reached = self.ranked
        if not len(values):
            return math.nan
        if self.is_exact:
            return linear(values, q * (self.n - 1))
        return float(values[min(int(np.searchsorted(reached, q * self.n)), len(values) - 1)])

    def at_many(self, ranks: Iterable[float]) -> Floats:
        """The values at several ranks."""
        return np.array([self.at(rank) for rank in ranks], np.float64)

    def merge(self, other: Quantiles) -> Quantiles:
        """Of both."""
        n, n_exact = self.n + other.n, min(self.n_exact, other.n_exact)
        if self.is_exact and other.is_exact:
            return Quantiles.of(np.concatenate([*self._levels, *other._levels]), n_exact=n_exact)
        (mine, slack), (theirs, slack_other) = self._summary(), other._summary()
        height = max(len(mine), len(theirs))
        levels = [np.concatenate([part[h] for part in (mine, theirs) if h < len(part)]) for h in range(height)]
        merged = Quantiles(
            levels, n=n, slack=slack + slack_other, turns=self._turns + other._turns + 1, n_exact=n_exact
        )
        merged._compress()
        return merged

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        levels = [encode_array(level) for level in self._levels]
        return {"n": self.n, "slack": self._slack, "turns": self._turns, "n_exact": self.n_exact, "levels": levels}

    @classmethod
    def from_json(cls, state: Any) -> Quantiles:
        """From JSON; what cannot have come from ``to_json`` is refused."""
        levels = [decode_array(level, np.float64) for level in state["levels"]]
        n, slack, turns, n_exact = (state[key] for key in ("n", "slack", "turns", "n_exact"))
        are_counts = all(type(number) is int and 0 <= number < MAX_COUNT for number in (n, turns, n_exact))
        if not are_counts or not 0 <= slack <= n or len(levels) > 62 or any(not np.isfinite(x).all() for x in levels):
            raise CorruptDataError("quantiles: no counts from 0, or values that are not finite")
        if sum(len(level) << h for h, level in enumerate(levels)) != n:
            raise CorruptDataError(f"quantiles: the levels do not hold the {n:,} values that they claim")
        return cls(levels, n=n, slack=slack, turns=turns, n_exact=n_exact)

    def _summary(self) -> tuple[list[Floats], float]:
        if self.is_exact and self.n > N_TOP:
            return _batch(self.n, self.ranked[0].__getitem__)
        return list(self._levels), self._slack

    def _compress(self) -> None:
        """Send up the lowest level that is too full, until all levels together are not."""
        levels = self._levels
        while sum(map(len, levels)) > sum(room := [_room(h, len(levels)) for h in range(len(levels))]):
            h = next(h for h, level in enumerate(levels) if len(level) > room[h])
            items = np.sort(levels[h])
            self._turns += 1
            offset = int(scatter(np.array([self._turns], np.uint64))[0] & np.uint64(1))
            n_even = len(items) // 2 * 2
            if h + 1 == len(levels):
                levels.append(np.empty(0))
            levels[h], levels[h + 1] = items[n_even:], np.concatenate([levels[h + 1], items[offset:n_even:2]])
            self._slack += 2**h


def _batch(n: int, at: Callable[[NDArray[np.int64]], Floats]) -> tuple[list[Floats], float]:
    """``n`` values in order as levels, and by how many rows a rank in them may be wrong."""
    top = max(math.ceil(math.log2(n / N_TOP)), 1)
    levels: list[Floats] = []
    first = 0
    for h in range(top, -1, -1):  # what is left over, less than one group, goes to the levels below
        stop = first + ((n - first) >> h << h)
        levels.append(at(np.arange(first + (1 << h) // 2, stop, 1 << h)))
        first = stop
    # The value in the middle stands for its group: inside the group a rank is off by half of it, elsewhere by nothing.
    return levels[::-1], float((1 << top) // 2)


def _room(h: int, height: int) -> int:
    return max(math.ceil(N_TOP * _SHRINK ** (height - 1 - h)), _LEAST)


def linear(ordered: Floats, place: float) -> float:
    """The value at a place between two neighbours, without overflow where they are far apart."""
    below = min(max(int(place), 0), len(ordered) - 1)
    share, low = place - below, float(ordered[below])
    if share <= 0 or below + 1 >= len(ordered):
        return low
    high = float(ordered[below + 1])
    # As NumPy computes it, from the nearer neighbour.
    apart = high - low
    if not math.isfinite(apart):
        return low * (1 - share) + high * share
    return low + apart * share if share < 0.5 else high - apart * (1 - share)


Int64 = NDArray[np.int64]

_N_BUCKETS = 1 << 16
_N_SAMPLE = 1 << 14
#: A bucket with more than this share of the values is sorted.
_MOST = 1 / 4_096
#: If more than this share would have to be sorted, sorting all is as quick.
_WORTH = 0.25


class Ranks:
    """The finite values among numbers, by their place in the order.

    >>> ranks = Ranks.of(np.random.default_rng(0).permutation(100_001), exact=[0.5])
    >>> ranks.quantile(0.5), bool(abs(ranks.at(np.array([777]))[0] - 777) <= ranks.slack)
    (50000.0, True)
    """

    def __init__(self, ends: Int64, members: Floats, sorted_at: Int64, ordered: Floats, slack: int) -> None:
        self._ends, self._members = ends, members
        self._sorted_at, self._ordered = sorted_at, ordered  # where in ``ordered`` a bucket begins, or -1
        self.n = int(ends[-1])
        self.slack = slack  #: by how many places a value may be off

    @classmethod
    def of(cls, numbers: NDArray[Any], exact: Any) -> Ranks | None:
        """Of many numbers, which are slow to sort; None where this would not be quicker.

        ``exact`` are shares from 0 to 1 whose quantiles will be asked for.
        """
        low, scale = _grid(numbers)
        if not scale > 0:
            return None
        counts, members = np.zeros(_N_BUCKETS, np.int64), np.zeros(_N_BUCKETS)
        fill_buckets(numbers, low, scale, counts, members)
        ends = np.cumsum(counts)
        n = int(ends[-1])
        if not n:
            return None
        marks = counts > max(n * _MOST, 1)
        places = ((n - 1) * np.asarray(exact, np.float64)).astype(np.int64)
        for wanted in (places, np.minimum(places + 1, n - 1)):
            marks[np.searchsorted(ends, wanted, side="right")] = True
        n_sorted = int(counts[marks].sum())
        if n_sorted > n * _WORTH:
            return None
        picked = np.empty(n_sorted)
        pick_buckets(numbers, low, scale, marks.astype(np.uint8), picked)
        # Buckets lie in the order of their values, so sorting them together leaves each in one piece.
        sorted_at = np.where(marks, np.cumsum(counts * marks) - counts, -1)
        return cls(ends, members, sorted_at, np.sort(picked), int(counts[~marks].max(initial=0)))

    def quantile(self, share: float) -> float:
        """The quantile (type 7), exact for the shares that were named at first."""
        place = (self.n - 1) * share
        first = int(place)
        return linear(self.at(np.array([first, min(first + 1, self.n - 1)])), place - first)

    def at(self, places: Int64) -> Floats:
        """The values at places, from 0."""
        buckets = np.searchsorted(self._ends, places, side="right")
        values = self._members[buckets]
        begins = self._sorted_at[buckets]
        known = begins >= 0
        inside = places[known] - (self._ends[buckets[known] - 1] * (buckets[known] > 0))
        values[known] = self._ordered[begins[known] + inside]
        return values


def _grid(numbers: NDArray[Any]) -> tuple[float, float]:
    """Where buckets begin, and how many a unit holds, so that nearly all values lie inside; 0 if there is no range."""
    sample = numbers[:: max(len(numbers) // _N_SAMPLE, 1)].astype(np.float64)
    sample = np.sort(sample[np.isfinite(sample)])
    if len(sample) < 100:
        return 0.0, 0.0
    low, high = float(sample[len(sample) // 1_000]), float(sample[-1 - len(sample) // 1_000])
    width = high - low
    # A tenth of buckets on either side, because a sample never has the whole range.
    scale = 0.8 * _N_BUCKETS / width if 0 < width < 1e300 else 0.0
    return low - 0.125 * width, scale if scale < 1e300 else 0.0
