"""What can be drawn from a stream, and from which of several streams a draw takes it.

each stream    n things, numbered from 0 in the order of their steps: windows, sequences or transitions
uniform        each of all things has the same chance
by weight      the share of each stream is its weight; inside a stream each thing has the same chance
recency        a thing that ``half_life`` newer ones of its stream lie behind has half the chance of the newest
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from poolish import kernels
from poolish.errors import SchemaError
from poolish.tokens.steps import padded

Int64 = NDArray[np.int64]
Floats = NDArray[np.float64]
Batch = dict[str, Any]


class Drawable(NamedTuple):
    """The things of one stream: how many there are, how some of them are read, and why there are none."""

    n: int
    read: Callable[[Int64], Batch]
    nothing: Callable[[], Exception]

    def draw(self, n: int, rng: np.random.Generator) -> Batch:
        """``n`` of them, drawn with replacement, each with the same chance."""
        if n and not self.n:
            raise self.nothing()
        return self.read(kernels.draw(rng, 0, self.n, n) if n else np.empty(0, np.int64))


class Choice(NamedTuple):
    """For each place of a batch the stream that it comes from, and the number there."""

    owners: Int64
    numbers: Int64


def draw_uniformly(rng: np.random.Generator, counts: Int64, n: int) -> Choice:
    """Each thing with the same chance.

    >>> draw_uniformly(np.random.default_rng(0), np.array([3, 0, 5]), 4)
    Choice(owners=array([2, 2, 2, 0]), numbers=array([3, 2, 1, 2]))
    """
    ends = np.cumsum(counts)
    drawn = kernels.draw(rng, 0, int(ends[-1]), n)
    owners = np.searchsorted(ends, drawn, side="right")
    return Choice(owners, drawn - (ends - counts)[owners])


def draw_by_weight(rng: np.random.Generator, counts: Int64, n: int, weights: Floats) -> Choice:
    """Streams in proportion to their weights, as far as they have anything; things inside one with the same chance."""
    owners = _draw_owners(rng, np.where(counts > 0, weights, 0.0), n)
    return Choice(owners, rng.integers(counts[owners]))


def draw_by_recency(rng: np.random.Generator, counts: Int64, n: int, half_life: float) -> Choice:
    """The newest things most: the chance is halved with each ``half_life`` things of the same stream behind it."""
    rate = np.log(2.0) / half_life
    mass = -np.expm1(-rate * counts)  # of a stream's things together, but for a factor that all streams share
    owners = _draw_owners(rng, mass, n)
    ages = np.floor(-np.log1p(-rng.random(n) * mass[owners]) / rate).astype(np.int64)
    return Choice(owners, np.maximum(counts[owners] - 1 - ages, 0))


def _draw_owners(rng: np.random.Generator, mass: Floats, n: int) -> Int64:
    """Streams in proportion to ``mass``."""
    # Divided by the largest, so that no sum is infinite and no share is lost below the smallest number.
    ends = np.cumsum(mass / mass.max())
    owners: Int64 = np.searchsorted(ends, rng.random(n) * ends[-1], side="right")
    return owners


def by_owner(owners: Int64) -> list[tuple[int, Int64]]:
    """Each owner with its places.

    >>> by_owner(np.array([2, 0, 2]))
    [(0, array([1])), (2, array([0, 2]))]
    """
    if len(owners) and (owners == owners[0]).all():  # many draws from one: sorting would take a tenth of their time
        return [(int(owners[0]), np.arange(len(owners)))]
    order = np.argsort(owners, kind="stable")
    found, firsts = np.unique(owners[order], return_index=True)
    return list(zip(found.tolist(), np.split(order, firsts[1:]), strict=True)) if len(owners) else []


# Several batches as one ---------------------------------------------------------------------------------------------


def assembled(parts: list[tuple[Int64, Any]]) -> Any:
    """One batch; each part is the places of its rows in it, and a batch of them, of arrays in mappings.

    What is padded is padded to the longest of all parts.

    >>> ragged = [(np.array([0, 2]), {"x": np.array([[1], [3]])}), (np.array([1]), {"x": np.array([[7, 8]])})]
    >>> assembled(ragged)["x"].tolist()
    [[1, 0], [7, 8], [3, 0]]
    """
    order = np.argsort(np.concatenate([places for places, _ in parts]))
    return _joined([batch for _, batch in parts], order)


def _joined(parts: list[Any], order: Int64) -> Any:
    first = parts[0]
    if isinstance(first, dict):
        return {name: _joined([part[name] for part in parts], order) for name in first}
    if len({part.ndim for part in parts}) > 1:
        raise SchemaError(
            "the streams recorded a field once as numbers and once as sequences; declare its shape with fields="
        )
    if len({part.shape[1:] for part in parts}) > 1:
        shape = tuple(np.max([part.shape[1:] for part in parts], axis=0).tolist())
        parts = [padded(part, shape) for part in parts]
    return np.concatenate(parts)[order]
