"""Which class comes where, so that every batch has each class in proportion, and every run of batches from the start.

A class with a share of 2.3 rows a batch has 2 or 3 rows in each of them, and after ten batches exactly 23. The whole
part (2) is dealt to every batch. What is left (0.3) makes a *turn* now and then: the j-th turn of a class with
share w has a window of batches ``[(j - 1) / w, j / w)``, rounded outwards, and keeping inside its windows is exactly
what keeps a class within one row of its proportion. Dealing out the largest remainders, by batches or from the start,
does not keep all windows (a class may even have to give a row back); serving the turns in this order does, always::

    the window that closes first
    then a window that overlaps the next of its class (using its last batch would narrow the next window)
    then, of classes with a share of a half or more, the one whose overlapping windows go on for longest

This is proportionate fairness, known from sharing processors among periodic tasks (the rule is called PD2, and
Srinivasan and Anderson proved that it never misses a window). Whole numbers throughout: no share is ever rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["proportional"]

#: When the window closes, its two tie-breaks, the class, the number of the turn: the least is served first.
_Turn = tuple[int, bool, int, int, int]


def proportional(counts: NDArray[np.int64], batch_size: int) -> NDArray[np.int32]:
    """The class at each position of an epoch with ``counts[c]`` rows of class ``c``; the last batch may be short.

    >>> proportional(np.array([6, 3, 1]), 4).tolist()
    [0, 0, 1, 0, 0, 0, 1, 2, 0, 1]
    """
    n_rows, classes = int(counts.sum()), np.arange(len(counts), dtype=np.int32)
    n_full = n_rows // batch_size
    plan = np.empty(n_rows, np.int32)
    full = plan[: n_full * batch_size].reshape(n_full, batch_size)
    if n_full:
        whole, rest = np.divmod(counts * batch_size, n_rows)
        dealt = np.repeat(classes, whole)
        n_turns = batch_size - len(dealt)
        turns = chain.from_iterable(_turns(rest.tolist(), n_rows, n_turns, n_full))
        full[:, : len(dealt)] = dealt
        full[:, len(dealt) :] = np.fromiter(turns, np.int32, n_full * n_turns).reshape(n_full, n_turns)
    # Before it every class was within one row of its proportion, and at the end it is exact: so the rest is as well.
    plan[full.size :] = np.repeat(classes, counts - np.bincount(full.ravel(), minlength=len(counts)))
    return plan


def _turns(rests: list[int], n_rows: int, n_turns: int, n_batches: int) -> Iterator[list[int]]:
    """For each batch the ``n_turns`` classes whose turn it is; class c has a share of ``rests[c] / n_rows`` turns."""
    ready = [_turn(c, 1, rest, n_rows) for c, rest in enumerate(rests) if rest]
    heapify(ready)
    later: dict[int, list[_Turn]] = {}
    for batch in range(n_batches):
        for turn in later.pop(batch, ()):
            heappush(ready, turn)
        served = [heappop(ready) for _ in range(n_turns)]
        for *_, c, number in served:
            opens = max(number * n_rows // rests[c], batch + 1)
            later.setdefault(opens, []).append(_turn(c, number + 1, rests[c], n_rows))
        yield [turn[3] for turn in served]


def _turn(c: int, number: int, rest: int, n_rows: int) -> _Turn:
    closes = _ceil(number * n_rows, rest)
    is_apart = number * n_rows % rest == 0
    overlap_ends = 0
    if 2 * rest >= n_rows:
        idle = n_rows - rest
        overlap_ends = _ceil(_ceil(closes * idle, n_rows) * n_rows, idle)
    return closes, is_apart, -overlap_ends, c, number


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
