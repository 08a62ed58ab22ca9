"""Bins and the histogram on them: what two samples are compared by, once the bins are frozen.

Bins come from a reference and never change after that, so counts are whole numbers that add and subtract exactly:

    numbers              between the deciles of the reference, the outer bins open     ref_quantile:10
    few different        one bin for each value of the reference (at most 20),         values
                         and one for all others
    text, booleans       the same, for the 100 most frequent values                    values

Beside them two more are always counted: what is missing (None, NaN), and what is infinite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolish.errors import ConfigError, CorruptDataError
from poolish.guards.stats.quantiles import linear
from poolish.guards.stats.serialization import MAX_COUNT, decode_array, decode_float, encode_array, encode_float

Floats = NDArray[np.float64]
Int64 = NDArray[np.int64]

#: Numbers with at most this many distinct values get a bin for each.
MAX_DISCRETE = 20
#: The most values of text that get a bin of their own.
MAX_VALUES = 100
N_BINS = 10
MOST_BINS = 4_096


@dataclass(frozen=True, eq=False)
class Bins:
    """Inner edges of numbers, or single values; ``edges[i] <= x < edges[i + 1]``, the outer bins open.

    >>> Bins.of_quantiles(np.arange(1_000) / 10, 4).edges
    array([24.975, 49.95 , 74.925])
    """

    edges: Floats | None
    values: tuple[Any, ...] | None
    convention: str

    @classmethod
    def of_quantiles(cls, ordered: Floats, n_bins: int = N_BINS) -> Bins:
        """Between the quantiles (type 7) of a sorted sample, each edge once."""
        places = (len(ordered) - 1) * (np.arange(1, n_bins) / n_bins)
        edges = np.unique([linear(ordered, place) for place in places.tolist()])
        return cls(edges, None, f"ref_quantile:{n_bins}")

    @classmethod
    def of_values(cls, counts: Mapping[Any, int]) -> Bins:
        """One for each value, the most frequent first where there are too many."""
        values = sorted(counts, key=lambda value: -counts[value])[:MAX_VALUES]
        return cls(None, tuple(values), "values")

    @classmethod
    def of_edges(cls, edges: Sequence[float] | NDArray[Any]) -> Bins:
        """Between given inner edges."""
        inner = np.array(edges, np.float64)
        if inner.ndim != 1 or not len(inner) or not np.isfinite(inner).all() or (np.diff(inner) <= 0).any():
            raise ConfigError(f"bins: inner edges are finite and increasing, got {edges!r:.100}")
        if len(inner) >= MOST_BINS:
            raise ConfigError(f"bins: {len(inner):,} edges, at most {MOST_BINS - 1:,}")
        return cls(inner, None, "given")

    def __len__(self) -> int:
        return len(self.edges) + 1 if self.edges is not None else len(self.values or ())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Bins):
            return NotImplemented
        if self.edges is not None and other.edges is not None:
            return np.array_equal(self.edges, other.edges)
        return self.edges is other.edges and self.values == other.values

    __hash__ = None  # type: ignore[assignment]

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        kept = {"edges": encode_array(self.edges)} if self.edges is not None else {"values": encode_values(self.values)}
        return {"convention": self.convention, **kept}

    @classmethod
    def from_json(cls, state: Any) -> Bins:
        """From JSON; what cannot have come from ``to_json`` is refused."""
        convention = state["convention"]
        if not isinstance(convention, str):
            raise CorruptDataError(f"bins: a convention is text, got {convention!r:.60}")
        if "edges" not in state:
            return cls(None, tuple(decode_value(value) for value in state["values"]), convention)
        edges = decode_array(state["edges"], np.float64)
        if not np.isfinite(edges).all() or (np.diff(edges) <= 0).any():
            raise CorruptDataError("bins: edges are finite and increasing")
        return cls(edges, None, convention)


@dataclass(frozen=True, eq=False)
class Histogram:
    """How many values are in each bin, and beside the bins.

    ``other`` are values that have no bin of their own, ``missing`` are None and NaN, ``infinite`` both infinities.
    """

    bins: Bins
    counts: Int64
    other: int = 0
    missing: int = 0
    infinite: int = 0
    is_exact: bool = True  #: False where the counts were estimated from a summary

    @property
    def edges(self) -> Floats | None:
        """The inner edges, None for bins of single values."""
        return self.bins.edges

    @property
    def values(self) -> tuple[Any, ...] | None:
        """The value of each bin, None for bins between edges."""
        return self.bins.values

    @property
    def n(self) -> int:
        """All that was counted."""
        return int(self.counts.sum()) + self.other + self.missing + self.infinite

    @property
    def labels(self) -> list[str]:
        """What the bins are called."""
        if self.values is not None:
            return [str(value) for value in self.values]
        ends = ["-inf", *(f"{edge:.6g}" for edge in self._edges()), "inf"]
        return [f"{low} .. {high}" for low, high in pairwise(ends)]

    def merge(self, other: Histogram) -> Histogram:
        """Of both, on the same bins."""
        return self._combine(other, 1)

    def subtract(self, other: Histogram) -> Histogram:
        """What is left without a part, on the same bins."""
        return self._combine(other, -1)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Histogram):
            return NotImplemented
        beside = [(h.other, h.missing, h.infinite) for h in (self, other)]
        return self.bins == other.bins and np.array_equal(self.counts, other.counts) and beside[0] == beside[1]

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        beside = "".join(
            f", {name} {n:,}" for name in ("other", "missing", "infinite") if (n := int(getattr(self, name)))
        )
        return f"Histogram({self.n:,} in {len(self.counts)} bins, {self.bins.convention}{beside})"

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        beside = [self.other, self.missing, self.infinite]
        return {"counts": self.counts.tolist(), "beside": beside, "is_exact": self.is_exact}

    @classmethod
    def from_json(cls, bins: Bins, state: Any) -> Histogram:
        """From JSON; what cannot have come from ``to_json`` is refused."""
        counts, beside = state["counts"], state["beside"]
        numbers = [*counts, *beside]
        are_counts = all(type(n) is int and 0 <= n < MAX_COUNT for n in numbers)
        if len(beside) != 3 or len(counts) != len(bins) or not are_counts:
            raise CorruptDataError(f"histogram: {len(bins)} counts and 3 beside them, from 0, got {numbers!r:.80}")
        return cls(bins, np.array(counts, np.int64), beside[0], beside[1], beside[2], bool(state["is_exact"]))

    def _edges(self) -> list[float]:
        return [] if self.edges is None else self.edges.tolist()

    def _combine(self, other: Histogram, sign: int) -> Histogram:
        if self.bins != other.bins:
            raise ValueError("histograms on different bins cannot be combined")
        counts = self.counts + sign * other.counts
        beside = [getattr(self, name) + sign * getattr(other, name) for name in ("other", "missing", "infinite")]
        if (counts < 0).any() or min(beside) < 0:
            raise ValueError("more in a bin of the part than in the whole; it was never a part of it")
        return Histogram(self.bins, counts, beside[0], beside[1], beside[2], self.is_exact and other.is_exact)


def aligned(reference: Histogram, current: Histogram) -> tuple[Int64, Int64]:
    """The counts of both, bin by bin; what lies beside the bins is one only where either side has some of it."""
    beside = [
        (getattr(reference, name), getattr(current, name))
        for name in ("other", "missing", "infinite")
        if getattr(reference, name) or getattr(current, name)
    ]
    extra = np.array(beside, np.int64).reshape(-1, 2)
    return np.concatenate([reference.counts, extra[:, 0]]), np.concatenate([current.counts, extra[:, 1]])


def histogram_of_values(bins: Bins, counts: Mapping[Any, int], *, others: int = 0) -> Histogram:
    """The histogram of single values with their counts, on bins of values or between edges."""
    if bins.edges is not None:
        places = np.searchsorted(bins.edges, np.array(list(counts), np.float64), side="right")
        sums = np.zeros(len(bins), np.int64)
        np.add.at(sums, places, np.array(list(counts.values()), np.int64))
        return Histogram(bins, sums)
    kept = np.array([counts.get(value, 0) for value in bins.values or ()], np.int64)
    return Histogram(bins, kept, other=sum(counts.values()) + others - int(kept.sum()))


def histogram_of_sorted(bins: Bins, ordered: Floats) -> Histogram:
    """The histogram of a sorted sample between edges."""
    assert bins.edges is not None
    reached = np.searchsorted(ordered, bins.edges, side="left")
    return Histogram(bins, np.diff(np.concatenate([[0], reached, [len(ordered)]])).astype(np.int64))


def encode_values(values: Sequence[Any] | None) -> list[Any]:
    """Values of bins as JSON: text, whole numbers and booleans as they are, floats in a list of one."""
    return [[encode_float(value)] if isinstance(value, float) else value for value in values or ()]


def decode_value(value: Any) -> Any:
    """The way back."""
    if isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        return decode_float(value)
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], (int, float)):
        return float(value[0])
    raise CorruptDataError(f"a value is text, a number or a boolean, got {value!r:.60}")
