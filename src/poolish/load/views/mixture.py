"""Which part comes next in a mixture, so that every beginning of it has the proportions that were asked for.

Row j of a part with weight w is due at the moment (2j + 1) / w, and rows come in the order of their moments (of equal
moments, the earlier part first). Then the first n places always hold as many rows of each part as the apportionment of
Webster and Sainte-Lague gives n seats: no other choice of whole numbers moves any two parts closer to their exact
shares, and for two or three parts none is ever off by a whole row.

The order is computed, not stored. Up to a moment t a part has had floor(w t / 2 + 1/2) rows, so we know all the counts
a little before place n, within as many places as there are parts, and walk from there::

    counts at a moment just before place n  --  at most n_parts steps, each to the part that is due next  -->  place n

All numbers are whole: weights are taken as the decimals that were written, so nothing is rounded at any length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np

from poolish import seeds
from poolish.errors import ConfigError
from poolish.seeds import KeyedPermutation

#: A part and a row of it.
Place = tuple[int, int]
Value = TypeVar("Value")


class Mixture:
    """An endless sequence of (part, row), rows of each part counted from 0.

    >>> mixture = Mixture([0.5, 0.25, 0.25])
    >>> [mixture.place(n) for n in range(6)]
    [(0, 0), (1, 0), (2, 0), (0, 1), (0, 2), (1, 1)]
    >>> mixture.position(2, 0)
    2
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self._weights = whole_weights(weights)
        self._total = sum(self._weights)
        # Moments are (2j + 1) / w; times this they are whole, and stay in the same order.
        scale = math.lcm(*self._weights)
        self._steps = [scale // weight for weight in self._weights]

    def place(self, n: int) -> tuple[int, int]:
        """The part and the row of it at place ``n``."""
        # Twice the moment, less half a row of each part: not one row more than n was due before it.
        moment = max(0, 2 * n - len(self._weights))
        counts = [(weight * moment + self._total) // (2 * self._total) for weight in self._weights]
        due = [(2 * count + 1) * step for count, step in zip(counts, self._steps, strict=True)]
        for _ in range(n - sum(counts)):
            part = due.index(min(due))
            counts[part] += 1
            due[part] += 2 * self._steps[part]
        part = due.index(min(due))
        return part, counts[part]

    def position(self, part: int, row: int) -> int:
        """The place at which a row of a part comes: how many rows are due before it."""
        moment = (2 * row + 1) * self._steps[part]
        # Of an earlier part, what is due at the same moment comes first.
        return sum(
            (moment + step - (other > part)) // (2 * step) if other != part else row
            for other, step in enumerate(self._steps)
        )


def whole_weights(weights: Sequence[float]) -> list[int]:
    """Weights as the smallest whole numbers in the same proportions.

    >>> whole_weights([0.7, 0.2, 0.1])
    [7, 2, 1]
    """
    exact = [_fraction(weight, k) for k, weight in enumerate(weights)]
    scale = math.lcm(*(weight.denominator for weight in exact))
    whole = [int(weight * scale) for weight in exact]
    shared = math.gcd(*whole)
    return [weight // shared for weight in whole]


def _fraction(weight: Any, k: int) -> Fraction:
    try:
        # 0.1 stands for a tenth, which its repr says, not as the nearest number in base two.
        exact = Fraction(repr(weight.item() if isinstance(weight, np.generic) else weight))
    except (ValueError, TypeError):
        exact = Fraction(weight) if isinstance(weight, Fraction) else Fraction(0)
    if exact <= 0 or isinstance(weight, (bool, str)):
        raise ConfigError(f"weights[{k}]={weight!r}: a weight is a number above 0; leave out a part that has none")
    return exact


def n_mixed(mixture: Mixture, lengths: Sequence[int], stop: str) -> int:
    """How long a pass over a mixture is.

    >>> n_mixed(Mixture([1, 1]), [2, 9], "first"), n_mixed(Mixture([1, 1]), [2, 9], "all")
    (4, 18)
    """
    if stop == "first":
        return min(mixture.position(part, n_rows) for part, n_rows in enumerate(lengths))
    if 0 in lengths:
        raise ConfigError(f"datasets[{list(lengths).index(0)}] has no rows to repeat; leave it out of the mixture")
    return max(mixture.position(part, n_rows - 1) + 1 for part, n_rows in enumerate(lengths))


class MixedRows:
    """Where the rows of one pass over a mixture are: which part, and which row of it."""

    def __init__(self, mixture: Mixture, lengths: list[int], stop: str, seed: int, epoch: int) -> None:
        self._mixture, self._lengths = mixture, lengths
        self._n_rows = n_mixed(mixture, lengths, stop)
        self._path = seed, "mix", epoch

    def __len__(self) -> int:
        return self._n_rows

    def places(self, numbers: Sequence[int]) -> list[Place]:
        """The part and the row at each place."""
        mixed = [self._mixture.place(number) for number in numbers]
        rows = grouped(mixed, self._drawn)
        return [(part, row) for (part, _), row in zip(mixed, rows, strict=True)]

    def positions(self, places: Sequence[Place]) -> list[int]:
        """The first place at which each row of a part comes; an IndexError where this pass leaves it out."""

        def read(part: int, rows: list[int]) -> list[int]:
            order = KeyedPermutation(self._lengths[part], seeds.key(*self._path, part, 0))
            return [self._mixture.position(part, nth) for nth in order.positions(rows).tolist()]

        found = grouped(places, read)
        for (part, row), number in zip(places, found, strict=True):
            if number >= self._n_rows:
                raise IndexError(
                    f"row {row} of datasets[{part}] does not come in epoch {self._path[-1]} of this mixture, which "
                    'ends when the first part is used up; set_epoch(...) takes other rows, stop="all" takes every row'
                )
        return found

    def _drawn(self, part: int, nths: list[int]) -> list[int]:
        """Which rows of a part come as its nth ones; each time it begins again the order is another."""
        n_rows = self._lengths[part]

        def read(turn: int, within: list[int]) -> list[int]:
            rows: list[int] = KeyedPermutation(n_rows, seeds.key(*self._path, part, turn))[within].tolist()
            return rows

        return grouped([divmod(nth, n_rows) for nth in nths], read)


def grouped(places: Sequence[Place], read: Callable[[int, list[int]], list[Value]]) -> list[Value]:
    """What ``read(part, rows)`` gives for the rows of each part, put back into the order of ``places``.

    >>> grouped([(1, 7), (0, 2), (1, 5)], lambda part, rows: [f"{part}:{row}" for row in rows])
    ['1:7', '0:2', '1:5']
    """
    asked: dict[int, list[int]] = {}
    for where, (part, _) in enumerate(places):
        asked.setdefault(part, []).append(where)
    found: dict[int, Value] = {}
    for part, wheres in asked.items():
        found.update(zip(wheres, read(part, [places[where][1] for where in wheres]), strict=True))
    return [found[where] for where in range(len(places))]
