"""Which numbers a run hands out, and in which order: all from its start on, except those that were done before it.

Ranks are killed at different places. What one of them was done with is not handed out again, so the numbers between the
slowest rank and the fastest have holes when the next run begins; from there on there are none.

    start 4, ranks 0 and 1 done with 4, 6, 8 and 5      the next run: 7, 9, 10, 11, ... whatever its world size

A *position* is a number too: everything below it is taken or was done before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

import numpy as np


class Dealing:
    """The numbers from ``start`` on without those in ``done``, in order; it starts at the first that is not done.

    >>> dealing = Dealing(4, done=[4, 6, 8])
    >>> dealing.start, [dealing.number(dealing.start, i) for i in range(5)]
    (5, [5, 7, 9, 10, 11])
    >>> Dealing.of(5, dealing.skip(5)).number(5, 1)
    7
    """

    def __init__(self, start: int, done: Iterable[int] = ()) -> None:
        left_out = {number for number in done if number >= start}
        while start in left_out:
            left_out.remove(start)
            start += 1
        self.start = start
        self.end = max(left_out, default=start - 1) + 1  # no holes from here on
        self._open = [number for number in range(start, self.end) if number not in left_out]

    @classmethod
    def of(cls, start: int, skip: str) -> Dealing:
        """From what ``skip`` gave for the same start."""
        bits = np.unpackbits(np.frombuffer(bytes.fromhex(skip), np.uint8), bitorder="little")
        return cls(start, (start + np.flatnonzero(bits)).tolist())

    def skip(self, position: int) -> str:
        """The numbers from ``position`` on that are left out: a bitmap in hexadecimal, bit i for position + i."""
        bits = np.ones(max(0, self.end - position), np.uint8)
        bits[[number - position for number in self._open if number >= position]] = 0
        return np.packbits(bits, bitorder="little").tobytes().hex()

    def number(self, position: int, ahead: int = 0) -> int:
        """The number that comes ``ahead`` after the first one that is not below ``position``."""
        if position >= self.end:
            return position + ahead
        i = bisect_left(self._open, position) + ahead
        return self._open[i] if i < len(self._open) else self.end + i - len(self._open)

    def rest(self, done: Sequence[int], watermark: int = 0) -> Dealing:
        """What is left where rank r has done its share of all below ``done[r]``."""
        low = min(done)
        taken = (number for rank, end in enumerate(done) for number in self._taken(rank, len(done), low, end))
        skipped = set(range(low, self.end)).difference(self._open)
        return Dealing(max(low, watermark), skipped.union(taken))

    def _taken(self, rank: int, world_size: int, low: int, end: int) -> Iterable[int]:
        first, last = self._index(low), self._index(end)
        return (self.number(self.start, i) for i in range(first + (rank - first) % world_size, last, world_size))

    def _index(self, position: int) -> int:
        """How many numbers this deals out before a position."""
        if position >= self.end:
            return len(self._open) + position - self.end
        return bisect_left(self._open, position)
