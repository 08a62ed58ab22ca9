"""Cells: what two samples are compared by, chosen so that neither sample has an advantage.

A bin that is chosen by one sample fits that sample better than the other: a word that the reference happens to have
missed counts as new, a decile of 30 values is not a tenth of the next ones. Such bins alarm without drift. So cells are
chosen by both samples together wherever that matters:

    words, few numbers   each value that either side has; rare ones share cells, by the counts of both sides together
    other numbers        between quantiles: of the reference where it has 50 rows for each bin or more, then they are
                         as good as fixed; else of both samples together. A value that is a tenth of the rows has a
                         cell of its own
    bins that were given, or frozen in a profile too large to keep its values: those

``rank_cells`` divides an ordered column more finely, for distribution functions: single values while they are few and
at the ends, where distances are largest; runs of neighbours elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolish.columns import Array
from poolish.guards.stats.column_profile import ColumnProfile
from poolish.guards.stats.permutation import RowCounts
from poolish.guards.stats.quantiles import N_EXACT
from poolish.guards.stats.samples import MAX_DISCRETE, N_BINS, Bins, ColumnSample, aligned

Floats = NDArray[np.float64]
Int64 = NDArray[np.int64]
Side = ColumnSample | ColumnProfile

#: Rows of the reference in each of its own bins, from which on the bins are as good as fixed.
ROWS_PER_BIN = 50
#: A cell expects at least this many rows of the smaller sample; rarer values share one.
LEAST_EXPECTED = 2.0
MAX_CELLS, MAX_NESTED_CELLS = 1_024, 64
#: Rows that every cell expects in the smaller sample, from which on chi2 is as good as permutations.
MANY_EXPECTED = 20
#: Of values that are seen once, the most that text may have and still be judged by its values.
MAX_SINGLE = 0.9
#: By how much a count may be wrong, times the root of the rows: a tenth of what chance moves a bin of a tenth by.
MAX_ERROR = 0.03
#: Values that keep a cell of their own at either end.
N_ENDS = 64


def side_of(values: Any) -> Side:
    """A side of a comparison: a column, or the profile of one."""
    return values if isinstance(values, ColumnProfile) else ColumnSample.of(values)


@dataclass(frozen=True)
class Cells:
    """The counts of both samples in the same cells."""

    counts: Int64
    others: Int64
    problem: str = ""  #: why these counts cannot be judged, and what can be done instead
    rows: RowCounts | None = None  #: of lists and tensors, whose rows have several elements

    @property
    def sizes(self) -> tuple[int, int]:
        """The rows of both sides, those of lists and tensors with all their elements."""
        return (int(self.counts.sum()), int(self.others.sum())) if self.rows is None else (self.rows.n, self.rows.m)

    @property
    def has_limit(self) -> bool:
        """Whether the limits for large samples hold."""
        return self.rows is None and self.expected >= MANY_EXPECTED

    @property
    def expected(self) -> float:
        """The rows that the rarest cell expects in the smaller sample, if there is no drift."""
        n, m = int(self.counts.sum()), int(self.others.sum())
        return float((self.counts + self.others).min(initial=n + m)) * min(n, m) / max(n + m, 1)


def shared_cells(a: Side, b: Side, bins: int | Bins | None = None) -> Cells:
    """The counts of both sides; empty cells are left out."""
    values = None if isinstance(bins, Bins) or is_nested(a, b) else _value_bins(a, b)
    if values is not None:
        return _by_value(values, a, b)
    chosen = bins if isinstance(bins, Bins) else _given_bins(a, b, bins) or _quantile_bins(a, b, bins)
    return _between(chosen, a, b)


def _between(bins: Bins, a: Side, b: Side) -> Cells:
    first, second = a.histogram_on(bins), b.histogram_on(bins)
    counts, others = aligned(first, second)
    if is_nested(a, b):
        return _of_rows(bins, a, b, counts, others)
    counts, others = without_empty(counts, others)
    n, m = int(counts.sum()), int(others.sum())
    error = sum(side.ordinal_error for side, found in ((a, first), (b, second)) if not found.is_exact)
    problem = ""
    if error * np.sqrt(n * m / max(n + m, 1)) > MAX_ERROR:
        problem = (
            f"the counts are estimates, off by up to {error:.2g} of the rows, which is more than chance; profile the "
            "current rows on the bins of the reference: Profile.of(rows, reference=...)"
        )
    elif bins.convention.startswith("ref_quantile") and not _has_values(b) and n < ROWS_PER_BIN * len(bins):
        problem = (
            f"{len(bins)} bins of a reference of {n:,} rows are too uneven, and the current profile counts on them "
            "only; make it with quantiles (sketch='auto'), or the reference of more rows"
        )
    return Cells(counts, others, problem)


def is_nested(a: Side, b: Side) -> bool:
    """Whether rows have several elements, which resemble each other more than those of other rows."""
    return bool({a.kind, b.kind} & {"list", "tensor"})


#: Why two profiles of lists or tensors cannot be judged.
NO_ROWS = (
    "profiles do not keep which elements belong to one row, so it is not known how far chance moves them; compare the "
    "rows themselves, or a column of one number for each row by ks"
)


def _of_rows(bins: Bins, a: Side, b: Side, counts: Int64, others: Int64) -> Cells:
    """The cells of lists or tensors, with those of each row; ``bins`` are between edges."""
    edges = np.empty(0) if bins.edges is None else bins.edges
    beside = np.arange(len(counts) - len(edges) - 1) + len(edges) + 1  # missing and infinite, where there are some
    missing, infinite = beside[0] if len(beside) else 0, beside[-1] if len(beside) else 0

    def places(numbers: Array) -> Int64:
        found = np.searchsorted(edges, numbers, side="right")
        found[np.isinf(numbers)] = infinite
        found[np.isnan(numbers)] = missing
        return found

    kept = (counts + others) > 0
    tables = [row_table(side, places, len(counts), missing) for side in (a, b)]
    known = [None if table is None else table[:, kept] for table in tables]
    problem = NO_ROWS if known[0] is None and known[1] is None else ""
    return Cells(counts[kept], others[kept], problem, RowCounts(known[0], known[1], a.count, b.count))


def row_table(side: Side, places: Callable[[Array], Int64], n_cells: int, missing: int | None = None) -> Int64 | None:
    """How many elements of each row are in each cell; a null row has one that is missing. None of a profile."""
    if isinstance(side, ColumnProfile):
        return None
    numbers = np.empty(0) if side.numbers is None else side.numbers.astype(np.float64, copy=False)
    cells = places(numbers)
    rows = side.row_numbers if side.numbers is not None else cells
    table = np.bincount(rows[cells >= 0] * n_cells + cells[cells >= 0], minlength=side.count * n_cells)
    table = table.reshape(side.count, n_cells)
    if missing is not None:
        table[np.flatnonzero(table.sum(axis=1) == 0)[: side.nulls], missing] = 1
    return table


def without_empty(counts: Int64, others: Int64) -> tuple[Int64, Int64]:
    """The counts of the cells in which either side has rows."""
    kept = (counts + others) > 0
    return counts[kept], others[kept]


# By value -------------------------------------------------------------------------------------------------------


def _value_bins(a: Side, b: Side) -> Bins | None:
    """A bin for each value of either side, where that is wanted and they are known."""
    is_text = "text" in (a.kind, b.kind)
    if is_text and (a.categories is None or b.categories is None):  # what is left of a part that was subtracted
        return next((_frozen(side) for side in (a, b) if side.categories is None), None)
    if a.categories is None or b.categories is None:
        return None
    if not is_text and max(len(a.categories), len(b.categories)) > MAX_DISCRETE:
        return None
    values = sorted(a.categories.keys() | b.categories.keys())
    return Bins(None, tuple(values), "values") if is_text or len(values) <= MAX_DISCRETE else None


def _by_value(bins: Bins, a: Side, b: Side) -> Cells:
    counts, others = aligned(a.histogram_on(bins), b.histogram_on(bins))
    n, m, n_values = int(counts.sum()), int(others.sum()), len(bins)
    if not n or not m:
        return Cells(*without_empty(counts, others))
    totals, is_text = counts[:n_values] + others[:n_values], "text" in (a.kind, b.kind)
    counted = _is_counted(totals, a, b)
    # What a truncated side may have left out joins "other", the first beside the values.
    cells = np.full(len(counts), n_values, np.int64)
    cells[n_values:] += np.arange(len(counts) - n_values)
    cells[:n_values][counted] = _joined(totals[counted], n, m, by_count=is_text)
    n_single = int((totals == 1).sum())
    problem = ""
    if n_values > 1 and not counted.any():
        problem = (
            f"a profile keeps the {n_values:,} most frequent of its texts, and none is clearly more frequent than "
            "those it left out; compare the texts themselves, or their lengths by ks"
        )
    elif is_text and n_values > MAX_DISCRETE and n_single > MAX_SINGLE * (n + m):
        problem = (
            f"{n_single:,} of {n + m:,} texts appear only once, so their shares say nothing; compare their lengths "
            "by ks, or more rows"
        )
    sums = (np.bincount(cells, side).astype(np.int64) for side in (counts, others))
    return Cells(*without_empty(*sums), problem)


def _is_counted(totals: Int64, a: Side, b: Side) -> NDArray[np.bool_]:
    """Which values are surely among those that a truncated profile lists: well above its rarest, by all rows."""
    counted = np.ones(len(totals), np.bool_)
    n_rows = max(a.count + b.count, 1)
    for side in (a, b):
        if isinstance(side, ColumnProfile) and side.n_uncategorized and side.categories:
            rarest = min(side.categories.values())
            counted &= totals * (side.count / n_rows) > rarest + 4 * np.sqrt(rarest) + 4
    return counted


def _joined(totals: Int64, n: int, m: int, *, by_count: bool) -> Int64:
    """The cell of each value: its own, or one that neighbours share until it expects enough rows."""
    least = max(LEAST_EXPECTED * (n + m) / min(n, m), (n + m) / MAX_CELLS)
    order = np.argsort(totals, kind="stable") if by_count else np.arange(len(totals))
    rare = order[(totals < least)[order]]
    cells = np.full(len(totals), -1, np.int64)
    if len(rare):
        before = np.cumsum(totals[rare]) - totals[rare]
        found = np.unique((before / least).astype(np.int64), return_inverse=True)[1]
        if totals[rare][found == found[-1]].sum() < least:  # what is left over joins the cell before it
            found[found == found[-1]] = max(found[-1] - 1, 0)
        cells[rare] = found
    own = cells < 0
    cells[own] = cells.max(initial=-1) + 1 + np.arange(int(own.sum()))
    return cells


# Between quantiles ----------------------------------------------------------------------------------------------


def _frozen(side: Side) -> Bins | None:
    return side.frozen.bins if isinstance(side, ColumnProfile) and side.frozen is not None else None


def _has_values(side: Side) -> bool:
    """Whether its values are known, at least by a summary."""
    return not isinstance(side, ColumnProfile) or side.quantiles is not None or side.categories is not None


def _has_all_values(side: Side) -> bool:
    return not isinstance(side, ColumnProfile) or side.is_exact or side.categories is not None


def _given_bins(a: Side, b: Side, n_bins: int | None) -> Bins | None:
    """Bins that there is no choice about: given by the user, or the only ones that a profile still counts on."""
    for side in (a, b):
        own = _frozen(side)
        is_given = own is not None and own.convention == "given" and n_bins is None and side is a
        if own is not None and (is_given or not _has_values(side)):
            return own
    return None


def _quantile_bins(a: Side, b: Side, n_bins: int | None) -> Bins:
    wanted = n_bins or (a.n_bins if isinstance(a, ColumnProfile) else N_BINS)
    if not _has_all_values(a):
        return a.own_bins(wanted)
    ordered = _ordered(a)
    if len(ordered) < ROWS_PER_BIN * wanted:
        if not _has_all_values(b):  # then it has far more rows, so its bins are nearly those of both
            return b.own_bins(wanted)
        ordered = np.sort(np.concatenate([ordered, _ordered(b)]))
    return Bins.of_quantiles(ordered, wanted) if len(ordered) else Bins(None, (), "values")


def _ordered(side: Side) -> Floats:
    """The finite numbers in order; a few thousand that stand for them where only their counts are kept."""
    if isinstance(side, ColumnSample):
        return side.finite
    if side.is_exact and side.quantiles is not None:
        return side.quantiles.ranked[0]
    if not side.categories or not side.is_numeric:
        return np.empty(0)
    values = np.array(sorted(side.categories), np.float64)
    ends = np.cumsum([side.categories[value] for value in sorted(side.categories)])
    places = np.linspace(0, ends[-1] - 1, min(int(ends[-1]), N_EXACT)).astype(np.int64)
    return values[np.searchsorted(ends, places, side="right")]


# By rank --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankCells:
    """Neighbouring values in order, with the counts of both sides; ``low`` and ``high`` are the ends of each cell."""

    low: Floats
    high: Floats
    counts: Int64
    others: Int64
    rows: RowCounts | None = None  #: of lists and tensors


Ranked = tuple[Floats, Floats]  # values in order, and how many rows lie at or before each


def rank_cells(a: Ranked, b: Ranked, limit: int = MAX_CELLS) -> RankCells:
    """Cells of two ordered samples: every value while there are at most ``limit``, else about that many cells."""
    points = np.unique(np.concatenate([_thinned(a[0]), _thinned(b[0])]))
    reached = _reached(a, points), _reached(b, points)
    chosen = np.arange(len(points))
    if len(points) > limit:
        chosen = _chosen(reached[0] + reached[1], limit)
    low = points[np.concatenate([[0], chosen[:-1] + 1])]
    counts, others = (np.diff(side[chosen], prepend=0) for side in reached)
    return RankCells(low, points[chosen], counts, others)


def _thinned(points: Floats) -> Floats:
    """At most a few thousand of many points, and all at either end."""
    if len(points) <= 8 * MAX_CELLS:
        return points
    return np.concatenate([points[:N_ENDS], points[:: len(points) // (4 * MAX_CELLS)], points[-N_ENDS:]])


def _reached(side: Ranked, points: Floats) -> Int64:
    """How many rows of a side lie at or before each point."""
    return np.concatenate([[0], side[1]])[np.searchsorted(side[0], points, side="right")].astype(np.int64)


def nested_rank_cells(a: Side, b: Side, one: Ranked, two: Ranked) -> RankCells:
    """Cells of lists or tensors, with those of each row."""
    cells = rank_cells(one, two, MAX_NESTED_CELLS)
    n_cells = len(cells.high)

    def places(numbers: Array) -> Int64:
        found = np.searchsorted(cells.high, numbers, side="left")
        found[np.isnan(numbers) | (found >= n_cells)] = -1  # not compared, as infinities are not by an area
        found[numbers < cells.low[0]] = -1
        return found

    tables = [row_table(side, places, n_cells) for side in (a, b)]
    return replace(cells, rows=RowCounts(tables[0], tables[1], a.count, b.count))


def _chosen(reached: Int64, limit: int) -> Int64:
    """The points that end a cell: the last of each run of ranks, those at the ends, and around frequent values."""
    block = int(reached[-1]) / (limit // 2)
    is_last = np.ones(len(reached), np.bool_)
    is_last[:-1] = np.diff((reached / block).astype(np.int64)) > 0
    frequent = np.flatnonzero(np.diff(reached, prepend=0) > block)
    is_last[frequent] = is_last[np.maximum(frequent - 1, 0)] = True
    n_ends = min(N_ENDS, limit // 16)
    is_last[:n_ends] = is_last[-n_ends - 1 :] = True
    return np.flatnonzero(is_last)
