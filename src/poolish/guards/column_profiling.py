"""Making the profile of a column: one pass over its numbers, and what must be kept while the values are known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolish.guards.bins import N_BINS, Bins, Histogram
from poolish.guards.column_profile import ColumnProfile, bounded, bounded_shapes, check_comparable
from poolish.guards.columns import Column
from poolish.guards.distinct import Distinct
from poolish.guards.moments import Moments
from poolish.guards.quantiles import N_EXACT, Quantiles
from poolish.guards.ranks import Ranks
from poolish.kernels import scan

#: What a column of rows is told to keep of its quantiles.
SKETCHES = ("auto", "exact", "none")


def profile_of(
    column: Column, *, bins: int | Bins = N_BINS, sketch: str = "auto", reference: ColumnProfile | None = None
) -> ColumnProfile:
    """The profile of a column, counted on the bins of a reference if there is one."""
    given = bins if isinstance(bins, Bins) else None
    n_bins = len(bins) if isinstance(bins, Bins) else bins
    if reference is not None and column.kind not in ("null", "other") and reference.kind not in ("null", "other"):
        check_comparable(reference, column)
        given, n_bins = reference.own_bins(), reference.n_bins
    if column.numbers is not None:
        made = _of_numbers(column, given, n_bins, sketch)
    else:
        made = _of_others(column, n_bins)
        if given is not None:
            made = replace(made, frozen=column.histogram_on(given), has_own_bins=False)
    lengths = None
    if column.lengths is not None:
        lengths = profile_of(Column("number", len(column.lengths), numbers=column.lengths), sketch=sketch)
    shapes = None if column.shapes is None else bounded_shapes(column.shapes)
    return replace(made, lengths=lengths, shapes=shapes)


def _of_numbers(column: Column, given: Bins | None, n_bins: int, sketch: str) -> ColumnProfile:
    numbers, few = column.numbers, column.categories
    assert numbers is not None
    quantiles, own = _ordered(column, n_bins, sketch, has_bins=given is not None)
    bins = given or own
    edges = None if bins is None else bins.edges
    counts = None if edges is None else np.zeros(len(edges) + 1, np.int64)
    moments, low, high, (nan, above, below) = scan(numbers, edges, counts)
    if numbers.dtype.kind in "iu" and len(numbers):  # whole numbers beyond 2**53 are exact
        low, high = int(numbers.min()), int(numbers.max())
    frozen = None
    if bins is not None and counts is not None:
        frozen = Histogram(bins, counts, missing=column.nulls + nan, infinite=above + below)
    elif bins is not None:
        frozen = column.histogram_on(bins)
    return ColumnProfile(
        kind=column.kind,
        count=column.count,
        nulls=column.nulls,
        nan=nan,
        above=above,
        below=below,
        moments=Moments.from_tuple(moments),
        min=low,
        max=high,
        quantiles=quantiles,
        categories=few,
        n_uncategorized=0,
        counts_distinct=Distinct.of(column.words, unique=column.unique_words),
        lengths=None,
        shapes=None,
        n_bins=n_bins,
        frozen=frozen,
        has_own_bins=given is None,
    )


def _ordered(column: Column, n_bins: int, sketch: str, *, has_bins: bool) -> tuple[Quantiles | None, Bins | None]:
    """What is kept of the order, and the bins that must be made now, because later nobody knows the values any more."""
    if sketch == "none":
        return None, None if has_bins else _order_of(column, n_bins, sketch)[1]
    quantiles, own = _order_of(column, n_bins, sketch)
    return quantiles, None if has_bins or quantiles.is_exact else own


def _order_of(column: Column, n_bins: int, sketch: str) -> tuple[Quantiles, Bins]:
    numbers = column.numbers
    assert numbers is not None
    if len(numbers) > N_EXACT and sketch != "exact" and column.categories is None:
        shares = np.arange(1, n_bins) / n_bins
        ranks = Ranks.of(numbers, shares)
        if ranks is not None and ranks.n > N_EXACT:
            bins = Bins(np.unique([ranks.quantile(share) for share in shares]), None, f"ref_quantile:{n_bins}")
            return Quantiles.of_places(ranks.n, ranks.at, ranks.slack), bins
    n_exact = max(len(numbers), N_EXACT) if sketch == "exact" else N_EXACT
    return Quantiles.of_sorted(column.finite, n_exact=n_exact), column.own_bins(n_bins)


def _of_others(column: Column, n_bins: int) -> ColumnProfile:
    categories: dict[Any, int] | None = {} if column.kind == "null" else None
    distinct, n_uncategorized = None, 0
    if column.texts is not None:
        distinct = Distinct.of(_words_of(column.categories or {}))
        categories, n_uncategorized = bounded(column.categories or {})
    return ColumnProfile(
        kind=column.kind,
        count=column.count,
        nulls=column.nulls,
        nan=0,
        above=0,
        below=0,
        moments=Moments(),
        min=None,
        max=None,
        quantiles=None,
        categories=categories,
        n_uncategorized=n_uncategorized,
        counts_distinct=distinct,
        lengths=None,
        shapes=None,
        n_bins=n_bins,
    )


def _words_of(texts: Iterable[str]) -> NDArray[np.uint64]:
    """Texts as 64-bit words, by their hash."""
    import xxhash

    return np.array([xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass")) for text in texts], np.uint64)
