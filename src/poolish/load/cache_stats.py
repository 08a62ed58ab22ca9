"""What a cache has done, and what one of another size would have done with the same accesses: the hit curve.

An LRU cache of n items holds the n ids that were used last. So an access hits in every cache that has room for its
*stack distance*: how many different ids were used since this id was, itself included::

    ids          a  b  c  a  a  b
    distance     -  -  -  3  1  3      a cache of 3 items hits three times, one of 1 item once

Distances of all accesses would take memory without bound. Where there are many, only ids whose hash is below a
threshold are followed, and distances among them are scaled up (SHARDS: Waldspurger et al., FAST 2015). The threshold is
halved whenever the trace is full, so the trace covers everything since the cache was made, in bounded memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolish.errors import ConfigError

#: Accesses that are kept; beyond, every second id is no longer followed.
MAX_TRACE = 1 << 16
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIXES = ((30, np.uint64(0xBF58476D1CE4E5B9)), (27, np.uint64(0x94D049BB133111EB)))


@dataclass(frozen=True)
class CacheStats:
    """What a cache has done in this process."""

    hits: int
    misses: int
    evictions: int
    #: Entries on disk that were not what had been written; each was removed and counts as a miss.
    damaged: int
    #: Samples that were read but too large to be kept.
    refused: int
    #: Rows that were read before they were asked for, because rows of their file were asked for in order.
    read_ahead: int
    items: int
    bytes: int
    hit_seconds: float
    miss_seconds: float

    @property
    def hit_rate(self) -> float:
        """Hits among all accesses; 0 before the first."""
        return self.hits / max(1, self.hits + self.misses)

    @property
    def average_seconds(self) -> float:
        """What an access takes: hit rate x time of a hit + (1 - hit rate) x time of a miss."""
        return self.hit_rate * self.hit_seconds + (1 - self.hit_rate) * self.miss_seconds

    def __str__(self) -> str:
        return (
            f"{self.hit_rate:.1%} of {self.hits + self.misses:,} accesses hit ({self.hit_seconds * 1e6:.1f} us, a miss "
            f"{self.miss_seconds * 1e6:.1f} us), {self.items:,} items, {self.bytes:,} bytes, {self.evictions:,} evicted"
        )


@dataclass(frozen=True, eq=False)
class CacheAdvice:
    """What caches of other sizes would have done with the accesses of this one, and which size to choose.

    ``max_items`` is the smallest size that gets ``share`` of all hits that any size could get; ``max_bytes`` the same
    in bytes, by the average size of the rows now held. Both are 0 where no row came twice: then a cache is of no use.
    """

    accesses: int
    #: Which fraction of the ids was followed; 1 means that the curve is exact.
    followed: float
    share: float
    max_items: int
    max_bytes: int
    #: What a cache with room for everything would have had.
    best_hit_rate: float
    #: Stack distances of the accesses that came again, sorted.
    distances: NDArray[np.float64]
    #: What each of them, and the accesses beyond, count for.
    n_expected: float

    def hit_rate(self, n_items: int) -> float:
        """What an LRU cache of this many rows would have had of the same accesses."""
        n_hits = float(np.searchsorted(self.distances, n_items, side="right"))
        return _bounded(n_hits + self._shift if n_items else 0.0, self.n_expected)

    @property
    def _shift(self) -> float:
        """Ids that come often may be followed or not: the difference is made up for at the shortest distance."""
        return self.best_hit_rate * self.n_expected - len(self.distances)

    def curve(self, n_sizes: int = 8) -> dict[int, float]:
        """The hit rate by size, for sizes up to the largest that brings more."""
        most = self.distances[-1] if len(self.distances) else 0
        sizes = {max(1, round(most * k / n_sizes)) for k in range(1, n_sizes + 1)} if most else set()
        return {size: self.hit_rate(size) for size in sorted(sizes)}

    def __str__(self) -> str:
        if not self.max_items:
            return f"no row came twice in {self.accesses:,} accesses: a cache of any size is of no use"
        how = "exact" if self.followed == 1 else f"from {self.followed:.1%} of the ids"
        return (
            f"max_items={self.max_items:,} (about {self.max_bytes:,} bytes) would hit "
            f"{self.hit_rate(self.max_items):.1%} of {self.accesses:,} accesses, room for everything "
            f"{self.best_hit_rate:.1%} ({how})"
        )


class AccessTrace:
    """The ids that a cache was asked for, as many as are needed for the hit curve.

    >>> trace = AccessTrace()
    >>> trace.extend([0, 1, 2, 0, 0, 1])
    >>> advice = trace.advice(share=1, item_bytes=100)
    >>> advice.distances.tolist(), advice.hit_rate(1), advice.hit_rate(3), advice.max_items
    ([1.0, 3.0, 3.0], 0.16666666666666666, 0.5, 3)
    """

    def __init__(self) -> None:
        self._hashes: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._halvings = self._n_accesses = 0
        self._generation = 0

    def renew(self) -> None:
        """From now on ids are other rows: the cache begins with nothing."""
        self._generation += 1

    def extend(self, ids: Iterable[int]) -> None:
        """These ids were asked for, in this order."""
        wanted = np.fromiter(ids, np.int64)
        self._n_accesses += len(wanted)
        self._hashes = np.concatenate([self._hashes, self._followed(_hashes(wanted, self._generation))])
        while len(self._hashes) > MAX_TRACE:
            self._halvings += 1
            self._hashes = self._followed(self._hashes)

    def _followed(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return hashes[hashes >> np.uint64(64 - self._halvings) == 0] if self._halvings else hashes

    def advice(self, share: float, item_bytes: float) -> CacheAdvice:
        """The hit curve, and the smallest size that gets ``share`` of all hits."""
        if isinstance(share, bool) or not 0 < share <= 1:
            raise ConfigError(f"share={share!r}: a fraction of the hits that are possible, above 0 and up to 1")
        scale = 2**self._halvings
        distances = np.sort(np.asarray(stack_distances(self._hashes.tolist()), np.float64)) * scale
        n_expected = self._n_accesses / scale
        best = _bounded(len(distances) + n_expected - len(self._hashes), n_expected)
        found = CacheAdvice(self._n_accesses, 1 / scale, share, 0, 0, best, distances, n_expected)
        if not len(distances):
            return found
        n_wanted = share * best * n_expected - found._shift
        n_items = int(distances[min(len(distances), max(1, int(np.ceil(n_wanted - 1e-9)))) - 1])
        return CacheAdvice(
            self._n_accesses, 1 / scale, share, n_items, int(n_items * item_bytes), best, distances, n_expected
        )


def stack_distances(ids: Iterable[Any]) -> list[int]:
    """For each id that came before: how many different ids came since, itself included.

    >>> stack_distances("abcaab")
    [3, 1, 3]
    """
    last: dict[Any, int] = {}
    latest: list[int] = []  # where each id came last, sorted
    found = []
    for now, id_ in enumerate(ids):
        before = last.get(id_)
        if before is not None:
            place = bisect_right(latest, before) - 1
            found.append(len(latest) - place)
            del latest[place]
        latest.append(now)
        last[id_] = now
    return found


def _hashes(ids: NDArray[np.int64], generation: int) -> NDArray[np.uint64]:
    """Well-mixed numbers, others in each generation (splitmix64)."""
    mixed = (ids.astype(np.uint64) + np.uint64(1)) * _ODD + np.uint64(generation * int(_ODD) ** 2 % 2**64)
    for shift, factor in _MIXES:
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * factor
    return mixed ^ (mixed >> np.uint64(31))


def _bounded(n_hits: float, n_accesses: float) -> float:
    return min(1.0, max(0.0, n_hits / n_accesses)) if n_accesses else 0.0
