"""ColumnSample: the values of one column as statistics see them, with derived values cached.

number     int, float, time, decimal     numbers, without the nulls
bool                                     numbers, 0 and 1
text                                     texts, and their lengths
list       of numbers or of anything     lengths; numbers of all elements
tensor     arrays, one for each row      shapes; numbers of all elements
null       only nulls
other      bytes, structs, maps          only counted
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow.compute as pc
import pyarrow.types as kinds
from numpy.typing import NDArray

from poolish.columns import Array, Column, NotApplicable
from poolish.concurrency import cached_property
from poolish.guards.stats.bins import MAX_DISCRETE, N_BINS, Bins, Histogram, histogram_of_values
from poolish.kernels import scan, sort, tally
from poolish.schema import is_tensor

Kind = Literal["number", "bool", "text", "list", "tensor", "null", "other"]
Floats = NDArray[np.float64]

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
            return _with(histogram_of_values(bins, self.categories or {}), missing=self.nulls)
        if self.numbers is None:
            return Histogram(bins, np.zeros(len(bins), np.int64), missing=self.nulls)
        if bins.edges is not None:
            counts = np.zeros(len(bins), np.int64)
            odd = scan(self.numbers, bins.edges, counts)[3]
            return Histogram(bins, counts, missing=self.nulls + odd[0], infinite=odd[1] + odd[2])
        odd = scan(self.numbers)[3]
        few = self.categories
        if few is None:  # too many different ones to list: the bins' own values are looked up in the sorted numbers
            few = dict(_looked_up(self.finite, bins.values or ()))
            others = len(self.finite) - sum(few.values())
        else:
            others = 0
        return _with(
            histogram_of_values(bins, few, others=others), missing=self.nulls + odd[0], infinite=odd[1] + odd[2]
        )

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
        return ColumnSample("list", count, nulls, numbers, lengths=present.lengths)
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
        return ColumnSample("tensor", count, nulls, numbers, shapes=shapes)
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


def _with(histogram: Histogram, *, missing: int, infinite: int = 0) -> Histogram:
    return Histogram(histogram.bins, histogram.counts, histogram.other, missing, infinite, is_exact=histogram.is_exact)
