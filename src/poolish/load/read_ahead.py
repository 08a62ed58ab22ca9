"""Which rows a cache reads before they are asked for: those that follow in the same file, while it is read in order.

    asked for     0  1  2  3   4  5  6  7  8    ...    18
    read          0  1  2  3-7             8-17        18-36       one call each, twice as many rows each time

A *run* is a number of rows asked for one after the other. A row that continues a run of some length is read together
with as many rows as the run has had, up to a bound; where no run is continued, as in a shuffled epoch, nothing is read
ahead. Several runs may go on at once, as those of several threads.
"""

from __future__ import annotations

from collections import OrderedDict

#: Rows in order before any is read ahead, and the most that are read ahead at a time.
FIRST, MOST = 4, 64
_MAX_RUNS = 16


class Runs:
    """The runs that are going on, by the number that would continue each. Not safe for threads by itself.

    >>> runs = Runs()
    >>> [runs.ahead([n]) for n in range(5)], runs.ahead([9])
    ([0, 0, 0, 4, 5], 0)
    """

    def __init__(self) -> None:
        self._lengths: OrderedDict[int, int] = OrderedDict()

    def ahead(self, numbers: list[int]) -> int:
        """How many rows to read after these, which are asked for now."""
        first, n_rows = numbers[0], len(numbers)
        if numbers[-1] - first != n_rows - 1 or numbers != list(range(first, first + n_rows)):
            return 0
        length = self._lengths.pop(first, 0) + n_rows
        self._note(first + n_rows, length)
        # One call for many rows is no run yet: it may be all that is ever asked for.
        return min(length, MOST) if length >= FIRST and length > n_rows else 0

    def went_ahead(self, end: int, next_end: int) -> None:
        """The run that would go on at ``end`` goes on at ``next_end``: rows between are held and will not be missed."""
        length = self._lengths.pop(end, 0)
        self._note(next_end, length + next_end - end)

    def _note(self, end: int, length: int) -> None:
        self._lengths[end] = length
        while len(self._lengths) > _MAX_RUNS:
            self._lengths.popitem(last=False)
