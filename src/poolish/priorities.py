"""PriorityTree: items drawn in proportion to a power of their priority, changed and drawn in O(log n).

    P(i) = p_i ** alpha / sum of p ** alpha          weight(i) = (N * P(i)) ** -beta / the largest of all weights

A tree knows items by number and nothing about rows or steps: a buffer or a stream says which item is which. An item
with priority 0 is never drawn, so that is also what items that have left have. The numbers lie in one array, of which
``poolish.kernels`` knows the layout. Drawing is stratified, as in the paper on prioritised replay (Schaul et al., 2016)
and in its common implementations: the sum is cut into n equal parts and each part gives one item, so an item is drawn
n * P(i) times on average, and a draw varies less than independent ones.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from poolish import kernels
from poolish.errors import ConfigError

Int64 = NDArray[np.int64]
Floats = NDArray[np.float64]

#: Powers stay below this, so that no sum of them is infinite.
MAX_POWER = 1e280
MIN_POWER = float(np.finfo(np.float64).tiny)


class Draw(NamedTuple):
    """Items that were drawn, with replacement, in ascending order."""

    items: Int64
    probabilities: Floats
    weights: Floats


class PriorityTree:
    """Priorities of items numbered 0, 1, 2, ...; not safe between threads, its owner has a lock.

    >>> tree = PriorityTree(alpha=1.0, priorities=[1.0, 0.0, 3.0])
    >>> tree.update([0], [1.5]); tree.extend(1)
    >>> tree.priorities, tree.largest
    (array([1.5, 0. , 3. , 3. ]), 3.0)
    >>> draw = tree.sample(5, np.random.default_rng(0), beta=1.0)
    >>> draw.items, draw.probabilities[0], draw.weights
    (array([0, 2, 2, 3, 3]), np.float64(0.2), array([1. , 0.5, 0.5, 0.5, 0.5]))
    """

    def __init__(self, alpha: float = 0.6, priorities: ArrayLike = ()) -> None:
        check_exponents(alpha, 0.0)
        self._alpha = float(alpha)
        values = check_priorities(priorities, None, self._alpha)
        self._n = len(values)
        self._reserve(self._n)
        self._priorities[: self._n] = values
        self._rebuild()

    def _reserve(self, n_items: int) -> None:
        """An empty tree with room for ``n_items``."""
        self._layout, n_numbers = kernels.layout_of(n_items)
        self._tree: Floats = np.zeros(n_numbers)
        self._room = int(self._layout[0, 0])
        self._priorities, self._powers = self._tree[: self._room], self._tree[self._room : 2 * self._room]

    def _rebuild(self) -> None:
        self._powers[: self._n] = self._powered(self._priorities[: self._n])
        kernels.refresh(self._tree, self._layout, 0, self._room)

    def _powered(self, priorities: Floats) -> Floats:
        """The priorities to the power of alpha; 0 stays 0, and no other priority becomes 0."""
        powers: Floats = priorities if self._alpha == 1 else priorities**self._alpha
        if self._alpha == 0 or self._alpha > 1:
            powers = np.where(priorities > 0, np.maximum(powers, MIN_POWER), 0.0)
        return powers

    def __len__(self) -> int:
        """The number of items, those with priority 0 included."""
        return self._n

    @property
    def alpha(self) -> float:
        """The power; 0 draws all items alike."""
        return self._alpha

    def set_alpha(self, alpha: float) -> None:
        """Change the power: O(1) if it is the same, else O(n)."""
        if alpha != self._alpha:
            check_exponents(alpha, 0.0)
            check_priorities(self.priorities, None, float(alpha))
            self._alpha = float(alpha)
            self._rebuild()

    @property
    def priorities(self) -> Floats:
        """The priorities of all items, a read-only view."""
        view = self._priorities[: self._n].view()
        view.flags.writeable = False
        return view

    @property
    def total(self) -> float:
        """The sum of all powers."""
        return float(kernels.root(self._tree, self._layout)[0])

    @property
    def largest(self) -> float:
        """The largest priority, 0.0 where there is none."""
        return float(kernels.root(self._tree, self._layout)[1])

    @property
    def smallest(self) -> float:
        """The smallest power above 0, 0.0 where there is none."""
        return float(kernels.root(self._tree, self._layout)[2])

    def extend(self, n: int, priority: float | None = None) -> None:
        """Add ``n`` items with one priority: by default the largest that there is, or 1.0 where none is above 0."""
        first, last = self._n, self._n + n
        value = check_priorities([(self.largest or 1.0) if priority is None else priority], None, self._alpha)
        if last > self._room:
            known = self._tree[:first].copy(), self._powers[:first].copy()
            self._reserve(2 * last)
            self._priorities[:first], self._powers[:first] = known
            kernels.refresh(self._tree, self._layout, 0, first)
        self._priorities[first:last], self._powers[first:last] = value, self._powered(value)
        self._n = last
        kernels.refresh(self._tree, self._layout, first, last)

    def update(self, items: ArrayLike, priorities: ArrayLike, names: Sequence[Any] | Int64 | None = None) -> None:
        """Give items new priorities, one each or one for all; the last counts where an item stands twice.

        All or nothing: a priority that is negative, infinite or NaN is a ValueError that names the item (by ``names``).
        """
        places = np.ascontiguousarray(items, np.int64)
        values = check_priorities(priorities, places if names is None else names, self._alpha, len(places))
        if len(places) and places.max() >= self._n:
            raise IndexError(f"item {int(places.max())} of {self._n}")
        work = np.empty_like(places)
        bad = kernels.set_items(self._tree, self._layout, places, self._powered(values), values, work)
        if bad >= 0:
            raise IndexError(f"item {places[bad]} of {self._n}")

    def clear(self, first: int, last: int) -> None:
        """Give the items ``[first, last)`` priority 0: they have left."""
        if not 0 <= first <= last <= self._n:
            raise IndexError(f"items {first} to {last} of {self._n}")
        self._priorities[first:last] = self._powers[first:last] = 0.0
        kernels.refresh(self._tree, self._layout, first, last)

    def sample(self, n: int, rng: np.random.Generator, beta: float = 0.4) -> Draw:
        """``n`` items with their probabilities and importance weights; ValueError if no priority is above 0."""
        n = operator.index(n)
        check_exponents(self._alpha, beta)
        total, _, smallest = kernels.root(self._tree, self._layout)
        if n < 0 or (n and not total > 0):
            raise ValueError(
                f"sample takes a number of rows from 0, got {n}"
                if n < 0
                else "no priority is above 0, so nothing can be drawn; add a small number to the priorities"
            )
        items, powers, masses = np.empty(n, np.int64), np.empty(n), rng.random(n)
        masses += np.arange(n)
        masses *= total / max(n, 1)
        kernels.descend(self._tree, self._layout, masses, items, powers)
        return Draw(items, powers / total, (smallest / powers) ** beta)

    def taking(self, items: ArrayLike) -> PriorityTree:
        """A tree of these items, in this order."""
        chosen = np.asarray(items, np.int64)
        return PriorityTree(self._alpha, self.priorities[chosen])

    def __reduce__(self) -> tuple[type[PriorityTree], tuple[float, Floats]]:
        return PriorityTree, (self._alpha, self.priorities.copy())


def check_exponents(alpha: float, beta: float) -> None:
    """ConfigError unless both are finite numbers from 0."""
    for name, value in (("alpha", alpha), ("beta", beta)):
        is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
        if not is_number or not 0 <= value < math.inf:
            raise ConfigError(f"{name} is a finite number from 0, got {value!r}; usual are alpha=0.6 and beta=0.4 to 1")


def check_priorities(
    priorities: ArrayLike, names: Sequence[Any] | Int64 | None, alpha: float = 1.0, n: int | None = None
) -> Floats:
    """Priorities as an array of ``n``; ValueError for the first that is negative, infinite, NaN or too large."""
    given = np.asarray(priorities)
    if given.dtype.kind not in "iuf" and given.size:
        raise TypeError(f"priorities are numbers, got {given.dtype}")
    if given.shape != (n,) and (given.ndim != 1 or n is not None):
        if given.shape != () or n is None:
            raise ValueError(f"priorities of shape {given.shape} for {n} ids; pass one each, or one for all")
        given = np.broadcast_to(given, n)
    values: Floats = np.ascontiguousarray(given, np.float64)
    bad = kernels.first_bad(values, MAX_POWER if alpha <= 1 else MAX_POWER ** (1 / alpha))
    if bad >= 0:
        name = bad if names is None else names[bad]
        raise ValueError(
            f"the priority of {name} is {values[bad]!r}; a priority is a finite number from 0 (the size of an error: "
            "np.abs), far below the largest float"
        )
    return values
