"""ColumnSample: the values of one column as statistics see them; Bins and Histogram: what two samples are compared by.

number     int, float, time, decimal     numbers, without the nulls
bool                                     numbers, 0 and 1
text                                     texts, and their lengths
list       of numbers or of anything     lengths; numbers of all elements
tensor     arrays, one for each row      shapes; numbers of all elements
null       only nulls
other      bytes, structs, maps          only counted

Bins come from a reference and never change after that, so counts are whole numbers that add and subtract exactly:

    numbers              between the deciles of the reference, the outer bins open     ref_quantile:10
    few different        one bin for each value of the reference (at most 20),         values
                         and one for all others
    text, booleans       the same, for the 100 most frequent values                    values

Beside them two more are always counted: what is missing (None, NaN), and what is infinite.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow.compute as pc
import pyarrow.types as kinds
from numpy.typing import NDArray

from poolish.columns import Array, Column, FlatValues, NotApplicable
from poolish.concurrency import cached_property
from poolish.errors import ConfigError, CorruptDataError
from poolish.guards.stats.quantiles import linear
from poolish.guards.stats.serialization import MAX_COUNT, decode_array, decode_float, encode_array, encode_float
from poolish.kernels import scan, sort, tally
from poolish.schema import is_tensor

Kind = Literal["number", "bool", "text", "list", "tensor", "null", "other"]
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
        """Between the quantiles (type 7) of a sorted sample; a value that fills a bin has one of its own."""
        places = (len(ordered) - 1) * (np.arange(1, n_bins) / n_bins)
        return cls.between(np.array([linear(ordered, place) for place in places.tolist()]), n_bins)

    @classmethod
    def between(cls, quantiles: Floats, n_bins: int) -> Bins:
        """Between quantiles that are known; those that are equal enclose one value, as the zeros of many columns.

        >>> [str(edge) for edge in Bins.between(np.array([0.0, 0.0, 2.5]), 4).edges]
        ['0.0', '5e-324', '2.5']
        """
        repeated = quantiles[1:][quantiles[1:] == quantiles[:-1]]
        behind = np.nextafter(repeated, np.inf)
        edges = np.unique(np.concatenate([quantiles, behind[np.isfinite(behind)]]))
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
        return [ends[i] if one else f"{ends[i]} .. {ends[i + 1]}" for i, one in enumerate(self._is_value())]

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

    def _is_value(self) -> list[bool]:
        """Which bins hold one number only, the one that they begin with."""
        edges = np.array(self._edges())
        return [False, *(np.nextafter(edges[:-1], np.inf) == edges[1:]).tolist(), False][: len(edges) + 1]

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


# The values of a column --------------------------------------------------------------------------------------------

#: Up to this many distinct values are counted one by one.
MAX_CATEGORIES = 1_000


@dataclass
class ColumnSample:
    """The values of one column, or of one side of a comparison."""

    kind: Kind
    count: int
    nulls: int = 0
    numbers: Array | None = None
    texts: Any = None
    lengths: Array | None = None
    shapes: Counter[tuple[int, ...]] | None = None
    layout: FlatValues | None = None  #: where the rows of lists and tensors begin

    @classmethod
    def of(cls, values: Any) -> ColumnSample:
        """Of anything that holds one value per row.

        >>> ColumnSample.of([1.0, None, 2.5]).numbers, ColumnSample.of(["a", None]).nulls
        (array([1. , 2.5]), 1)
        """
        if isinstance(values, ColumnSample):
            return values
        return _sample(values if isinstance(values, Column) else Column("", values, may_round=True))

    @cached_property
    def ordered(self) -> Floats:
        """The numbers in order, infinities too, without NaN."""
        if self.numbers is None:
            return np.empty(0)
        ordered: Floats = sort(self.numbers)
        n_nan = len(ordered) - int(np.searchsorted(ordered, np.nan)) if len(ordered) else 0
        return ordered[: len(ordered) - n_nan]

    @cached_property
    def row_numbers(self) -> Int64:
        """The row that each number belongs to, of lists and tensors, which have several."""
        assert self.numbers is not None
        if self.layout is None:
            return np.arange(len(self.numbers))
        flat = self.layout
        n_values = len(flat.values)
        if flat.offsets is not None:
            rows = np.repeat(np.arange(len(flat.offsets) - 1), np.diff(flat.offsets))
        else:
            rows = np.arange(n_values) // (flat.values_per_row or 1)
        return rows if flat.nulls is None else rows[~flat.nulls]

    @cached_property
    def finite(self) -> Floats:
        """The finite numbers in order."""
        if self.categories is not None and self.numbers is not None:  # few different ones need no sorting
            values = np.array(sorted(self.categories), np.float64)
            return np.repeat(values, [self.categories[value] for value in sorted(self.categories)])
        first, last = np.searchsorted(self.ordered, [-np.inf], side="right"), np.searchsorted(self.ordered, [np.inf])
        return self.ordered[int(first[0]) : int(last[0])]

    @cached_property
    def words(self) -> Array:
        """The numbers as what the kernels count."""
        return as_words(self.numbers) if self.numbers is not None else np.empty(0, np.uint64)

    @cached_property
    def categories(self) -> dict[Any, int] | None:
        """Each value and how often it comes, of text all of them; None for numbers with too many different values."""
        if self.texts is not None:
            return counted_texts(self.texts)
        if self.numbers is None:
            return {}
        found = self._tallied
        return None if found is None else dict(zip(self._values(found[0]), found[1].tolist(), strict=True))

    @property
    def unique_words(self) -> NDArray[np.uint64] | None:
        """The different ones among the words, if they are few."""
        return None if self._tallied is None else self._tallied[0]

    @cached_property
    def _tallied(self) -> Any:
        return tally(self.words, MAX_CATEGORIES)

    @property
    def ordinal_error(self) -> float:
        """By how much a rank may be wrong: not at all."""
        return 0.0

    @property
    def ranked(self) -> tuple[Floats, Floats]:
        """The numbers in order, and how many lie at or before each."""
        return self.ordered, np.arange(1, len(self.ordered) + 1, dtype=np.float64)

    def own_bins(self, n_bins: int = N_BINS) -> Bins:
        """The bins that this column, as a reference, gives to others."""
        if self.kind in ("text", "bool"):
            return Bins.of_values(self.categories or {})
        few = self.categories
        if few is not None and len(few) <= MAX_DISCRETE:
            return Bins.of_values(dict(sorted(few.items())))
        return Bins.of_quantiles(self.finite, n_bins)

    def histogram_on(self, bins: Bins) -> Histogram:
        """How many values are in each bin."""
        if self.texts is not None:
            return replace(histogram_of_values(bins, self.categories or {}), missing=self.nulls)
        if self.numbers is None:
            return Histogram(bins, np.zeros(len(bins), np.int64), missing=self.nulls)
        if bins.edges is not None:
            counts = np.zeros(len(bins), np.int64)
            odd = scan(self.numbers, bins.edges, counts)[3]
            return Histogram(bins, counts, missing=self.nulls + odd[0], infinite=odd[1] + odd[2])
        odd = scan(self.numbers)[3]
        few, others = self.categories, 0
        if few is None:  # too many different ones to list: the bins' own values are looked up in the sorted numbers
            few = dict(_looked_up(self.finite, bins.values or ()))
            others = len(self.finite) - sum(few.values())
        found = histogram_of_values(bins, few, others=others)
        return replace(found, missing=self.nulls + odd[0], infinite=odd[1] + odd[2])

    def _values(self, words: NDArray[np.uint64]) -> list[Any]:
        assert self.numbers is not None
        kind = self.numbers.dtype.kind
        if self.kind == "bool":
            return [bool(word) for word in words]
        return words.view({"f": np.float64, "u": np.uint64}.get(kind, np.int64)).tolist()  # type: ignore[no-any-return]


def _sample(column: Column) -> ColumnSample:
    count, type_ = len(column), column.arrow_type
    if type_ is not None and kinds.is_null(type_):
        return ColumnSample("null", count, count)
    nulls = column.n_nulls
    if type_ is None or is_tensor(type_) or kinds.is_fixed_size_list(type_):
        return _array_sample(column, count, nulls)
    present = column.drop_null()
    try:
        flat = present.measures
    except NotApplicable:
        return ColumnSample("other", count, nulls)
    has_numbers = isinstance(flat.values, np.ndarray)
    numbers = _kernel_numbers(flat.present) if has_numbers else None
    if flat.offsets is not None:
        return ColumnSample("list", count, nulls, numbers, lengths=present.lengths, layout=flat)
    if has_numbers:
        return ColumnSample("bool" if flat.values.dtype.kind == "b" else "number", count, nulls, numbers)
    if kinds.is_string(flat.values.type) or kinds.is_large_string(flat.values.type):
        return ColumnSample("text", count, nulls, texts=flat.values, lengths=present.lengths)
    return ColumnSample("other", count, nulls, lengths=present.lengths)


def _array_sample(column: Column, count: int, nulls: int) -> ColumnSample:
    """Of a NumPy array, or of arrays."""
    shapes = column.shape_counts()
    is_scalar = list(shapes) in ([()], []) and column.arrow_type is None
    try:
        flat = column.measures
    except NotApplicable:
        return ColumnSample("other", count, nulls, shapes=shapes)
    if not isinstance(flat.values, np.ndarray) or flat.values.dtype.kind not in "biuf":
        return ColumnSample("other", count, nulls, shapes=None if is_scalar else shapes)
    numbers = _kernel_numbers(flat.present)
    if not is_scalar:
        return ColumnSample("tensor", count, nulls, numbers, shapes=shapes, layout=flat)
    return ColumnSample("bool" if flat.values.dtype.kind == "b" else "number", count, count - len(numbers), numbers)


def _kernel_numbers(values: Array) -> Array:
    """A flat array of a type that the kernels know."""
    if values.dtype.kind == "b":
        return values.view(np.uint8) if values.flags.c_contiguous else values.astype(np.uint8)
    if values.dtype.kind == "f" and values.dtype.itemsize not in (4, 8):
        return values.astype(np.float64)
    return np.ascontiguousarray(values)


def as_words(numbers: Array) -> Array:
    """Numbers as what the kernels count: float64 as they are, whole numbers as 64-bit words."""
    if numbers.dtype.kind == "u":
        return numbers.astype(np.uint64, copy=False)
    if numbers.dtype.kind == "i":
        return numbers.astype(np.int64, copy=False).view(np.uint64)
    return numbers.astype(np.float64, copy=False)


def counted_texts(texts: Any) -> dict[Any, int]:
    """Each text and how often it comes."""
    counts = pc.value_counts(texts)
    return dict(zip(counts.field(0).to_pylist(), counts.field(1).to_pylist(), strict=True))


def _looked_up(ordered: Floats, values: Sequence[Any]) -> Iterator[tuple[Any, int]]:
    for value in values:
        first, last = (int(np.searchsorted(ordered, value, side=side)) for side in ("left", "right"))
        yield value, last - first
