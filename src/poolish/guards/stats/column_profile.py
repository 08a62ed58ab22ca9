"""ColumnProfile: all that is known of one column, in a few kilobytes that merge.

Each part merges by itself: counts add, moments by Pebay, quantiles and distinct values as their modules say. The
histogram needs bins that both sides share. They are frozen where the profile was made on those of a reference; a
profile without one makes its own bins, from all of its values while it keeps them all, so that merging two small
profiles gives exactly the profile of the two together. Where two large ones with bins of their own meet, the counts of
the second are estimated on the bins of the first, and ``histogram.is_exact`` says so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast, get_args

import numpy as np
from numpy.typing import NDArray

from poolish.errors import CorruptDataError, SchemaError
from poolish.guards.stats.quantiles import Quantiles
from poolish.guards.stats.samples import (
    MAX_CATEGORIES,
    MAX_DISCRETE,
    MOST_BINS,
    N_BINS,
    Bins,
    Histogram,
    Kind,
    decode_value,
    encode_values,
    histogram_of_sorted,
    histogram_of_values,
)
from poolish.guards.stats.serialization import MAX_COUNT, decode_float, encode_float
from poolish.guards.stats.sketches import DIGITS, Distinct, Moments

Floats = NDArray[np.float64]

_MAX_SHAPES = 100


@dataclass(frozen=True, repr=False, eq=False)
class ColumnProfile:
    """What one column holds. Of text the statistics are those of its length; of lists and tensors, of all elements.

    ``count`` are the rows, with the ``nulls``. Moments, range and quantiles are of the finite numbers; ``nan`` and
    ``infinite`` are counted beside them. What is not known, or means nothing for this kind, is NaN or None.
    """

    kind: Kind
    count: int
    nulls: int
    nan: int = 0
    above: int = 0  #: how many are +infinity
    below: int = 0  #: how many are -infinity
    moments: Moments = field(default_factory=Moments)
    min: Any = None
    max: Any = None
    quantiles: Quantiles | None = None
    categories: dict[Any, int] | None = None  #: each value and how often it comes; None if there are too many numbers
    n_uncategorized: int = 0  #: texts beyond the most frequent thousand
    counts_distinct: Distinct | None = None
    lengths: ColumnProfile | None = None  #: of text, bytes and lists
    shapes: dict[tuple[int, ...], int] | None = None  #: of tensors
    n_bins: int = N_BINS
    frozen: Histogram | None = None  #: on bins that were given, or that too many values led to
    has_own_bins: bool = True

    # What is asked of it ---------------------------------------------------------------------------------------

    @property
    def infinite(self) -> int:
        """How many are infinite, of either sign."""
        return self.above + self.below

    @property
    def missing(self) -> int:
        """How many are None or NaN."""
        return self.nulls + self.nan

    @property
    def mean(self) -> float:
        """The mean."""
        return self.moments.mean

    @property
    def variance(self) -> float:
        """The variance of what was seen (divided by n, as ``np.var``)."""
        return self.moments.variance()

    @property
    def std(self) -> float:
        """The square root of the variance."""
        return math.sqrt(self.variance)

    @property
    def digits(self) -> float:
        """How many decimal digits of the variance are known: 15, fewer where most of a profile was subtracted.

        Mean, variance, skewness and kurtosis that have fewer than three digits left are NaN.
        """
        return self.moments.digits

    @property
    def skewness(self) -> float:
        """How lopsided; as ``scipy.stats.skew``."""
        return self.moments.skewness()

    @property
    def kurtosis(self) -> float:
        """How heavy the tails are, 0 for a normal distribution; as ``scipy.stats.kurtosis``."""
        return self.moments.kurtosis()

    @property
    def median(self) -> float:
        """The value in the middle."""
        return self.quantile(0.5)

    def quantile(self, q: float) -> float:
        """The value below which a share ``q`` of the numbers lies, to ``quantile_error``."""
        if not 0 <= q <= 1:
            raise ValueError(f"quantile {q}: a share from 0 to 1")
        if self.quantiles is None:
            return math.nan
        if q in (0, 1) and self.quantiles.n:
            return float(self.max if q else self.min)
        return self.quantiles.at(q)

    @property
    def quantile_error(self) -> float:
        """By how much the rank of a quantile may be wrong at most: 0.0 while all values are kept."""
        return math.nan if self.quantiles is None else self.quantiles.error

    @property
    def distinct(self) -> int | None:
        """How many different values, to ``distinct_error``."""
        return None if self.counts_distinct is None else self.counts_distinct.estimate

    @property
    def distinct_error(self) -> float:
        """The relative standard error of ``distinct``: 0.0 up to a thousand."""
        return math.nan if self.counts_distinct is None else self.counts_distinct.error

    @property
    def is_numeric(self) -> bool:
        """Whether its values are numbers that have an order."""
        return self.kind in ("number", "bool", "list", "tensor")

    @property
    def histogram(self) -> Histogram | None:
        """Counts on the bins of the reference, else on its own; None if there is nothing to count."""
        if self.frozen is not None:
            return self.frozen
        has_values = self.categories is not None or self.quantiles is not None
        return self.histogram_on(self.own_bins()) if has_values else None

    # What it is compared by -----------------------------------------------------------------------------------

    @property
    def ordinal_error(self) -> float:
        """By how much a rank may be wrong at most."""
        return self.quantile_error

    @property
    def ranked(self) -> tuple[Floats, Floats]:
        """The numbers in order, infinities too, and how many lie at or before each."""
        if self.quantiles is None:
            return np.empty(0), np.empty(0)
        values, reached = self.quantiles.ranked
        values = np.concatenate([[-np.inf] * bool(self.below), values, [np.inf] * bool(self.above)])
        total = self.below + self.quantiles.n + self.above
        return values, np.concatenate(
            [[self.below] * bool(self.below), reached + self.below, [total] * bool(self.above)]
        )

    @property
    def is_exact(self) -> bool:
        """Whether all numbers are still there."""
        return self.quantiles is not None and self.quantiles.is_exact

    def own_bins(self, n_bins: int | None = None) -> Bins:
        """The bins that this column, as a reference, gives to others."""
        if self.frozen is not None and n_bins in (None, self.n_bins):
            return self.frozen.bins
        few = self.categories
        if self.kind in ("text", "bool"):
            return Bins.of_values(few or {})
        if few is not None and len(few) <= MAX_DISCRETE:
            return Bins.of_values(dict(sorted(few.items())))
        if self.quantiles is None:
            raise SchemaError(
                "this profile keeps no quantiles (sketch='none'), so it has no bins to give; ask for some"
            )
        return Bins.of_quantiles(_values_of(self.quantiles), n_bins or self.n_bins)

    def histogram_on(self, bins: Bins) -> Histogram:
        """Counts on given bins: exact where they are its own, or its values are still known, else an estimate."""
        if self.frozen is not None and self.frozen.bins == bins:
            return self.frozen
        beside: Any = {"missing": self.missing, "infinite": self.infinite}
        if self.categories is not None:
            found = histogram_of_values(bins, self.categories, others=self.n_uncategorized)
            return replace(found, **beside, is_exact=not self.n_uncategorized)
        if self.quantiles is None:
            raise SchemaError("this profile counts on other bins and keeps no values; make it with reference=...")
        if bins.values is not None:
            if not self.is_exact:
                raise SchemaError(
                    "this profile has too many different numbers to be counted by value; make it with "
                    "Profile.of(rows, reference=...), then it counts on the bins of that reference"
                )
            values, counts = np.unique(self.quantiles.ranked[0], return_counts=True)
            found = histogram_of_values(bins, dict(zip(values.tolist(), counts.tolist(), strict=True)))
            return replace(found, **beside)
        if self.quantiles.is_exact:
            return replace(histogram_of_sorted(bins, self.quantiles.ranked[0]), **beside)
        return replace(_estimated(bins, self.quantiles), **beside)

    # Joining and parting --------------------------------------------------------------------------------------

    def merge(self, other: ColumnProfile) -> ColumnProfile:
        """The profile of both."""
        if "null" in (self.kind, other.kind) and self.kind != other.kind:
            some, none = (other, self) if self.kind == "null" else (self, other)
            return some._with_nulls(none.count)
        if self.kind != other.kind:
            raise SchemaError(f"a profile of {self.kind} and one of {other.kind} cannot be merged")
        categories, n_uncategorized = _merge_categories(self, other)
        distinct = _both(self.counts_distinct, other.counts_distinct, Distinct.merge)
        merged = replace(
            self,
            count=self.count + other.count,
            nulls=self.nulls + other.nulls,
            nan=self.nan + other.nan,
            above=self.above + other.above,
            below=self.below + other.below,
            moments=self.moments.merge(other.moments),
            min=_extreme(min, self.min, other.min, self.moments.n, other.moments.n),
            max=_extreme(max, self.max, other.max, self.moments.n, other.moments.n),
            quantiles=_both(self.quantiles, other.quantiles, Quantiles.merge),
            categories=categories,
            n_uncategorized=n_uncategorized,
            counts_distinct=distinct,
            lengths=_both(self.lengths, other.lengths, ColumnProfile.merge),
            shapes=bounded_shapes(Counter(self.shapes) + Counter(other.shapes or {})) if self.shapes else other.shapes,
            n_bins=self.n_bins,
            frozen=None,
            has_own_bins=self.has_own_bins and other.has_own_bins,
        )
        return replace(merged, frozen=_merge_histograms(self, other, merged))

    def subtract(self, other: ColumnProfile) -> ColumnProfile:
        """The profile of what is left without ``other``, which was a part: counts, histogram, moments.

        What cannot be known is not: range and quantiles, distinct values unless their counts determine them. ``digits``
        says how many the moments have left: the smaller the rest, the fewer.
        """
        if self.kind != other.kind:
            raise SchemaError(f"a profile of {other.kind} cannot be taken out of one of {self.kind}")
        numbers = {
            name: getattr(self, name) - getattr(other, name) for name in ("count", "nulls", "nan", "above", "below")
        }
        if min(numbers.values()) < 0:
            raise ValueError(f"a part of {other.count:,} rows cannot be taken out of {self.count:,}: {numbers}")
        histogram = self.histogram
        left = None
        if self.categories is not None and other.categories is not None and not self.n_uncategorized:
            left = _subtract_counts(self.categories, other.categories)
        return replace(
            self,
            **numbers,
            moments=self.moments.subtract(other.moments),
            min=math.nan if self.min is not None else None,
            max=math.nan if self.max is not None else None,
            quantiles=None,
            categories=left,
            n_uncategorized=0,
            counts_distinct=None,
            lengths=_both(self.lengths, other.lengths, ColumnProfile.subtract),
            shapes=_subtract_counts(self.shapes, other.shapes or {}) if self.shapes else None,
            frozen=None if histogram is None else histogram.subtract(other.histogram_on(histogram.bins)),
            has_own_bins=False,
        )

    def _with_nulls(self, n: int) -> ColumnProfile:
        frozen = None if self.frozen is None else replace(self.frozen, missing=self.frozen.missing + n)
        return replace(self, count=self.count + n, nulls=self.nulls + n, frozen=frozen)

    def __eq__(self, other: object) -> bool:
        """Whether both say the same; NaN is equal to NaN."""
        return isinstance(other, ColumnProfile) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    # As text and JSON -------------------------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """The figures that fit on one line."""
        line: dict[str, Any] = {"kind": self.kind, "count": self.count, "nulls": self.nulls}
        if self.nan or self.infinite:
            line |= {"nan": self.nan, "infinite": self.infinite}
        if self.is_numeric and self.moments.n:
            line |= {"mean": self.mean, "std": self.std, "min": self.min, "median": self.median, "max": self.max}
        if self.moments.digits < DIGITS:
            line["digits"] = round(self.moments.digits, 1)
        if self.distinct is not None:
            line["distinct"] = self.distinct
        if self.lengths is not None:
            line |= {"shortest": self.lengths.min, "longest": self.lengths.max}
        if self.shapes:
            line["shapes"] = ", ".join(str(shape) for shape in list(self.shapes)[:3])
        return line

    @property
    def estimates(self) -> frozenset[str]:
        """Which figures of the summary are estimates by now, because not all values are kept."""
        errors = {"median": self.quantile_error, "distinct": self.distinct_error}
        return frozenset(name for name, error in errors.items() if error > 0)

    def __repr__(self) -> str:
        estimates = self.estimates
        figures = ", ".join(
            f"{name} {'~' if name in estimates else ''}{_short(value)}" for name, value in self.summary().items()
        )
        return f"ColumnProfile({figures})"

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        state: dict[str, Any] = {
            name: getattr(self, name) for name in ("kind", "count", "nulls", "nan", "above", "below", "n_bins")
        }
        state |= {"has_own_bins": self.has_own_bins, "n_uncategorized": self.n_uncategorized}
        state["moments"] = [encode_float(number) for number in self.moments.as_tuple]
        if self.moments.digits < DIGITS:
            state["digits"] = self.moments.digits
        state["range"] = None if self.min is None else [encode_float(self.min), encode_float(self.max)]
        state["quantiles"] = self.quantiles and self.quantiles.to_json()
        state["categories"] = None
        if self.categories is not None:
            kept = sorted(self.categories, key=lambda value: (str(type(value)), value))
            state["categories"] = [encode_values(kept), [self.categories[value] for value in kept]]
        state["distinct"] = self.counts_distinct and self.counts_distinct.to_json()
        state["lengths"] = self.lengths and self.lengths.to_json()
        shapes = None if self.shapes is None else [[list(shape), n] for shape, n in sorted(self.shapes.items())]
        state["shapes"] = shapes
        state["histogram"] = None
        if self.frozen is not None:
            state["histogram"] = {"bins": self.frozen.bins.to_json(), **self.frozen.to_json()}
        return state

    @classmethod
    def from_json(cls, state: Any) -> ColumnProfile:
        """From JSON; what cannot have come from ``to_json`` is a ``CorruptDataError``."""
        try:
            return cls._from_json(state)
        except CorruptDataError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            raise CorruptDataError(f"no profile of a column: {type(error).__name__}: {error}") from error

    @classmethod
    def _from_json(cls, state: Any) -> ColumnProfile:
        counts = {
            name: state[name] for name in ("count", "nulls", "nan", "above", "below", "n_bins", "n_uncategorized")
        }
        are_counts = all(type(n) is int and 0 <= n < MAX_COUNT for n in counts.values())
        if state["kind"] not in get_args(Kind) or not are_counts or counts["n_bins"] > MOST_BINS:
            raise CorruptDataError(f"a column has a kind and counts from 0, got {state['kind']!r:.40}, {counts!r:.200}")
        low, high = (None, None) if state["range"] is None else (decode_float(end) for end in state["range"])
        categories = shapes = frozen = None
        if state["categories"] is not None:
            values, numbers = state["categories"]
            categories = dict(zip((decode_value(value) for value in values), _checked(numbers), strict=True))
            if any(isinstance(value, str) != (state["kind"] == "text") for value in categories):
                raise CorruptDataError(f"the categories of a column of {state['kind']} are others, got {values!r:.60}")
        if state["shapes"] is not None:
            shapes = {tuple(_checked(shape)): _checked([n])[0] for shape, n in state["shapes"]}
        if state["histogram"] is not None:
            frozen = Histogram.from_json(Bins.from_json(state["histogram"]["bins"]), state["histogram"])
        return cls(
            kind=cast(Kind, state["kind"]),
            **counts,
            moments=Moments.from_tuple(
                [decode_float(number) for number in state["moments"]], digits=decode_float(state.get("digits", DIGITS))
            ),
            min=low,
            max=high,
            quantiles=None if state["quantiles"] is None else Quantiles.from_json(state["quantiles"]),
            categories=categories,
            counts_distinct=None if state["distinct"] is None else Distinct.from_json(state["distinct"]),
            lengths=None if state["lengths"] is None else cls._from_json(state["lengths"]),
            shapes=shapes,
            frozen=frozen,
            has_own_bins=bool(state["has_own_bins"]),
        )


def check_comparable(reference: Any, current: Any) -> None:
    """Refuse to compare text with numbers; the two are columns or profiles of columns."""
    if "null" in (reference.kind, current.kind):
        return
    if (reference.kind == "text") != (current.kind == "text"):
        raise SchemaError(f"the reference is {reference.kind}, this column is {current.kind}; they cannot be compared")


# Parts ----------------------------------------------------------------------------------------------------------


def bounded(counts: Mapping[Any, int], others: int = 0) -> tuple[dict[Any, int], int]:
    """The most frequent values, and how many rows have another."""
    if len(counts) <= MAX_CATEGORIES:
        return dict(counts), others
    kept = sorted(counts, key=lambda value: (-counts[value], value))[:MAX_CATEGORIES]
    bounded = {value: counts[value] for value in kept}
    return bounded, others + sum(counts.values()) - sum(bounded.values())


def bounded_shapes(shapes: Mapping[tuple[int, ...], int]) -> dict[tuple[int, ...], int]:
    """The most frequent shapes."""
    return dict(Counter(shapes).most_common(_MAX_SHAPES))


def _merge_categories(a: ColumnProfile, b: ColumnProfile) -> tuple[dict[Any, int] | None, int]:
    if a.categories is None or b.categories is None:
        return None, 0
    counts = dict(a.categories)
    for value, n in b.categories.items():
        counts[value] = counts.get(value, 0) + n
    if a.kind == "text":
        return bounded(counts, a.n_uncategorized + b.n_uncategorized)
    return (counts if len(counts) <= MAX_CATEGORIES else None), 0


def _merge_histograms(a: ColumnProfile, b: ColumnProfile, merged: ColumnProfile) -> Histogram | None:
    """On the bins they share; on frozen ones if only one side has them; None where the values themselves are known."""
    if a.frozen is not None and b.frozen is not None and a.frozen.bins == b.frozen.bins:
        return a.frozen.merge(b.frozen)
    if merged.has_own_bins and (merged.is_exact or merged.kind in ("text", "null")):
        return None
    if merged.has_own_bins and merged.categories is not None and len(merged.categories) <= MAX_DISCRETE:
        return merged.histogram_on(merged.own_bins())
    if a.histogram is None or b.histogram is None:
        return None
    first = a if not a.has_own_bins or (b.has_own_bins and a.count >= b.count) else b
    if not first.moments.n and merged.moments.n and first.has_own_bins:
        first = b if first is a else a
    bins = first.own_bins()
    return a.histogram_on(bins).merge(b.histogram_on(bins))


def _subtract_counts(whole: Mapping[Any, int], part: Mapping[Any, int]) -> dict[Any, int]:
    left = {value: n - part.get(value, 0) for value, n in whole.items()}
    if any(n < 0 for n in left.values()) or any(value not in whole for value in part):
        raise ValueError("more of a value in the part than in the whole; it was never a part of it")
    return {value: n for value, n in left.items() if n}


def _both(a: Any, b: Any, join: Any) -> Any:
    return None if a is None or b is None else join(a, b)


def _extreme(pick: Any, a: Any, b: Any, n_a: int, n_b: int) -> Any:
    """The least or largest of two, of which one may be of nothing; unknown if one is unknown."""
    if a is None or b is None:
        return a if b is None else b
    if not n_a or not n_b:
        return b if not n_a else a
    return math.nan if math.isnan(a) or math.isnan(b) else pick(a, b)


def _values_of(quantiles: Quantiles) -> Floats:
    """Values in order that have the quantiles of the summary."""
    if quantiles.is_exact:
        return quantiles.ranked[0]
    return quantiles.at_many(np.linspace(0, 1, 4_001))


def _estimated(bins: Bins, quantiles: Quantiles) -> Histogram:
    assert bins.edges is not None
    values, reached = quantiles.ranked
    places = np.searchsorted(values, bins.edges, side="left")
    below = np.concatenate([[0.0], reached])[places]
    counts = np.diff(np.concatenate([[0.0], below, [quantiles.n]]))
    return Histogram(bins, counts.astype(np.int64), is_exact=False)


def _checked(numbers: Any) -> list[int]:
    if not all(type(n) is int and 0 <= n < MAX_COUNT for n in numbers):
        raise CorruptDataError(f"counts from 0, got {numbers!r:.60}")
    return list(numbers)


def _short(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}" if isinstance(value, float) else str(value)
