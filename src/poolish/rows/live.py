"""Which places still hold a row, when rows may leave from anywhere.

A bit per place, set while it is live, and a Fenwick tree that counts live bits by blocks of 512: the n-th live row is
found, and a row killed, in O(log n), whatever is stored. Places that have not been written yet are live too, so that
appending needs nothing here but room.

A set never changes: rows that leave give another set, so a snapshot or an interrupted change keeps the one it has.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from poolish import kernels
from poolish.kernels.reference import BLOCK_BITS

Int64 = NDArray[np.int64]


class LiveSet:
    """Live and dead places from 0 on.

    >>> live = LiveSet(10).without(np.array([0, 3]))
    >>> live.select(np.array([0, 1, 2]))
    array([1, 2, 4])
    """

    def __init__(self, n_places: int) -> None:
        n_blocks = max(1, -(-n_places // BLOCK_BITS))
        self._words = np.full(n_blocks * (BLOCK_BITS // 64), ~np.uint64(0))
        self._tree = np.empty(n_blocks + 1, np.int64)
        kernels.count_blocks(self._words, self._tree)

    def reserve(self, n_places: int) -> LiveSet:
        """The set with room for ``n_places``: itself, or a larger one."""
        if n_places <= len(self._words) * 64:
            return self
        grown = LiveSet(2 * n_places)
        grown._words[: len(self._words)] = self._words
        kernels.count_blocks(grown._words, grown._tree)
        return grown

    def without(self, places: Int64) -> LiveSet:
        """The set in which the rows at ``places`` are dead."""
        changed = self._copy()
        kernels.kill(changed._words, changed._tree, places)
        return changed

    def evicted(
        self, n_before: int, n_live: int, max_live: int, key: int, first_id: int, n: int
    ) -> tuple[LiveSet, int]:
        """The set after ``n`` rows came in singly, each driving out a random row where more than ``max_live`` would
        live; and how many live in it.
        """
        changed = self._copy()
        n_left = kernels.evict(changed._words, changed._tree, n_before, n_live, max_live, key, first_id, n)
        return changed, int(n_left)

    def _copy(self) -> LiveSet:
        copy = LiveSet.__new__(LiveSet)
        copy._words, copy._tree = self._words.copy(), self._tree.copy()
        return copy

    def select(self, ranks: Int64) -> Int64:
        """Places of the live rows number ``ranks``, counted from 0."""
        places = np.empty(len(ranks), np.int64)
        kernels.select(self._words, self._tree, np.ascontiguousarray(ranks, np.int64), places)
        return places

    def place(self, rank: int) -> int:
        """Place of one live row."""
        return int(kernels.select_one(self._words, self._tree, rank))

    def places(self, start: int, stop: int) -> Int64:
        """All live places from ``start`` up to ``stop``."""
        first = start // 64
        bits = np.unpackbits(self._words[first : -(-stop // 64)].view(np.uint8), bitorder="little")
        live = np.flatnonzero(bits[: stop - first * 64]) + first * 64
        return live[np.searchsorted(live, start) :]
