"""How a column is shown: densities over equal widths, and a "~" before every figure that is an estimate.

The bins of a profile are quantiles of its reference, which makes drift tests sensitive everywhere. Drawn as they are,
each would hold the same number of rows and every column would look flat.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from poolish import html
from poolish.guards.stats.column_profile import ColumnProfile
from poolish.guards.stats.samples import Bins, Histogram

#: Bars of a drawing.
N_BARS = 20
#: A range this many times as wide as that between the first and the last percentile is cut on both sides.
_FAR = 4


@dataclass(frozen=True)
class Bars:
    """Counts between edges at equal distances, and how many values lie ``beyond`` them, as in heavy tails."""

    counts: list[int]
    edges: list[float]
    ends: tuple[Any, Any]  #: what is written below the first and the last bar
    beyond: int = 0
    is_exact: bool = True

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        found = {"counts": self.counts, "edges": self.edges}
        return found | {"beyond": self.beyond, "is_exact": self.is_exact}


def bars_of(column: ColumnProfile) -> Bars | None:
    """What to draw of a column: of numbers their density, of text and flags how often each value comes.

    >>> from poolish.guards import Profile
    >>> bars_of(Profile.of({"x": [0, 0, 1, 3]})["x"])
    Bars(counts=[2, 1, 0, 1], edges=[-0.5, 0.5, 1.5, 2.5, 3.5], ends=(0, 3), beyond=0, is_exact=True)
    """
    if column.kind in ("text", "bool"):
        return _of_categories(column)
    if not column.moments.n:
        return None
    if column.quantiles is None and column.categories is None:
        return None if column.histogram is None else _as_counted(column, column.histogram)
    if column.min == column.max:
        return Bars([column.moments.n], [float(column.min) - 0.5, float(column.max) + 0.5], (column.min, column.max))
    low, high = _limits(column)
    edges = _edges(column, low, high)
    if not (np.diff(edges / 2) > 0).all():  # neighbouring floats
        return Bars([column.moments.n], [low, high], (column.min, column.max))
    found = column.histogram_on(Bins.of_edges(edges))
    below, *counts, above = found.counts.tolist()
    is_cut = low > column.min, high < column.max
    counts[0] += 0 if is_cut[0] else below
    counts[-1] += 0 if is_cut[1] else above
    beyond = below * is_cut[0] + above * is_cut[1]
    ends = (low if is_cut[0] else column.min, high if is_cut[1] else column.max)
    return Bars(counts, edges.tolist(), ends, beyond, found.is_exact)


def draw(column: ColumnProfile, *, width: int = 120, height: int = 40, is_sample: bool = False) -> html.Html | None:
    """The bars as SVG; a "~" stands before the title of what is estimated."""
    bars = bars_of(column)
    if bars is None:
        return None
    n = sum(bars.counts) + bars.beyond
    title = f"{'' if bars.is_exact and not is_sample else '~'}{n:,} values"
    title += f", {bars.beyond:,} of them outside of this range" if bars.beyond else ""
    return html.histogram(bars.counts, bars.edges, width=width, height=height, title=title, ends=bars.ends)


def figure(value: Any, *, is_exact: bool = True, digits: int = 5) -> str:
    """A figure for people, nothing for None and NaN; an estimate has a "~" before it.

    >>> figure(1234), figure(0.123456), figure(1003, is_exact=False), figure(math.nan)
    ('1,234', '0.12346', '~1,003', '')
    """
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or value != value:
        return ""
    text = f"{value:,}" if isinstance(value, int) else f"{value:.{digits}g}" if isinstance(value, float) else str(value)
    return text if is_exact else f"~{text}"


def _of_categories(column: ColumnProfile) -> Bars | None:
    ordered = sorted((column.categories or {}).items(), key=lambda item: (-item[1], str(item[0])))
    if not ordered:
        return None
    shown = ordered[:N_BARS]
    n_others = sum(n for _, n in ordered[N_BARS:]) + column.n_uncategorized
    edges = [float(i) for i in range(len(shown) + 1)]
    last = shown[-1][0] if len(shown) > 1 else ""
    return Bars([n for _, n in shown], edges, (str(shown[0][0])[:10], str(last)[:10]), n_others)


def _limits(column: ColumnProfile) -> tuple[float, float]:
    """The range to draw: all of it, or without the far ends of heavy tails."""
    low, high = float(column.min), float(column.max)
    if column.quantiles is None:
        return low, high
    first, last = column.quantile(0.01), column.quantile(0.99)
    if not 0 < (last - first) * _FAR < high - low:
        return low, high
    room = (last - first) / 2
    return max(low, first - room), min(high, last + room)


def _edges(column: ColumnProfile, low: float, high: float) -> Any:
    """Equal steps; of whole numbers, bars of as many of them each, or every second bar would be too high."""
    if isinstance(column.min, int) and isinstance(column.max, int):
        first, n_values = math.floor(low), math.ceil(high) - math.floor(low) + 1
        step = math.ceil(n_values / N_BARS)
        return first - 0.5 + step * np.arange(math.ceil(n_values / step) + 1, dtype=np.float64)
    # Halves, because the distance between two finite numbers may be infinite.
    return 2 * np.linspace(low / 2, high / 2, N_BARS + 1)


def _as_counted(column: ColumnProfile, found: Histogram) -> Bars | None:
    """The bins that were counted, where nothing else is kept; without a range the open ones are left out."""
    if found.edges is None or len(found.edges) < 2:
        return None
    edges, counts = found.edges.tolist(), found.counts.tolist()
    if math.isfinite(column.min) and math.isfinite(column.max) and column.min < edges[0] and edges[-1] < column.max:
        return Bars(counts, [float(column.min), *edges, float(column.max)], (column.min, column.max), 0, found.is_exact)
    return Bars(counts[1:-1], edges, (edges[0], edges[-1]), counts[0] + counts[-1], found.is_exact)
