"""Effects: how large a change is, in the column's own unit, apart from how certain it is.

With enough rows every change is significant. Whether it is worth an alarm is another question, which needs a unit that
a user knows: kilograms, characters, shares of the rows.

    numbers          how far a row has moved on average (Wasserstein's distance)     worth 0.1 spreads of the reference
    text, booleans   the share of rows that would need another value                 worth 0.05
    missing          the change of the share of None and NaN                         worth 0.01

The spread is the standard deviation of a normal distribution with the same quartiles, so a few extremes do not hide a
shift of all the others; where the quartiles are equal, it is the standard deviation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from poolish.errors import ConfigError
from poolish.guards.stats.cells import Ranked, Side, shared_cells
from poolish.guards.stats.column_profile import ColumnProfile
from poolish.guards.stats.rank_distances import deviation, finite_ranked, moved_between

#: What a change is worth an alarm from, unless the user says otherwise.
SPREADS, SHARE, MISSING_SHARE = 0.1, 0.05, 0.01
_QUARTILES_OF_NORMAL = 1.3489795

#: "auto" is the defaults; "any" counts every change; or, by the names of columns, the least change that matters.
Worth = Literal["auto", "any"] | Mapping[str, float]


@dataclass(frozen=True)
class Effect:
    """A change of a column, and the least one that is worth an alarm."""

    value: float  #: in the unit of the column, or a share of the rows
    unit: str  #: "value" or "share"
    spreads: float | None  #: of numbers, the same in spreads of the reference
    least: float  #: 0.0 where any change is worth an alarm

    @property
    def is_material(self) -> bool:
        """Whether the change is worth an alarm; one that is not known is."""
        return not self.value < self.least

    def __str__(self) -> str:
        if self.unit == "share":
            text = f"{100 * self.value:.3g} % of the rows have other values"
            return f"{text} (worth an alarm: {100 * self.least:.3g} %)" if self.least else text
        beside = [] if self.spreads is None else [f"{self.spreads:.3g} spreads"]
        beside += [f"worth an alarm: {self.least:.4g}"] if self.least else []
        return f"moved by {self.value:.4g}" + (f" ({'; '.join(beside)})" if beside else "")


def check_worth(worth: Any) -> Worth:
    """``worth`` as ``drift`` takes it; anything else is a ``ConfigError``."""
    if isinstance(worth, str) and worth in ("auto", "any"):
        return cast(Worth, worth)
    are_sizes = isinstance(worth, Mapping) and all(
        isinstance(least, (int, float)) and not isinstance(least, bool) and 0 <= least < math.inf
        for least in worth.values()
    )
    if not are_sizes:
        raise ConfigError(
            f"worth: 'auto', 'any', or by column the least change that is worth an alarm, from 0, got {worth!r:.80}"
        )
    return cast(Worth, worth)


def effect_of(name: str, before: Side, now: Side, worth: Worth) -> Effect | None:
    """The change of a column; None where there is nothing to compare."""
    given = worth.get(name) if isinstance(worth, Mapping) else None
    if {before.kind, now.kind} & {"other", "null"}:
        return None
    if "text" in (before.kind, now.kind) or "bool" in (before.kind, now.kind) or not (_has_order(before, now)):
        share = _moved_share(before, now)
        return None if math.isnan(share) else Effect(share, "share", None, _least(worth, given, SHARE))
    one, two = finite_ranked(before), finite_ranked(now)
    if not len(one[0]) or not len(two[0]):
        return None
    moved, spread = moved_between(one, two), _spread(one)
    spreads = moved / spread if spread > 0 else None
    return Effect(moved, "value", spreads, _least(worth, given, SPREADS * spread))


def _least(worth: Worth, given: float | None, default: float) -> float:
    return 0.0 if worth == "any" else default if given is None else float(given)


def _has_order(before: Side, now: Side) -> bool:
    return all(not isinstance(side, ColumnProfile) or side.quantiles is not None for side in (before, now))


def _moved_share(before: Side, now: Side) -> float:
    """Half the sum of differences of shares (total variation)."""
    cells = shared_cells(before, now)
    n, m = cells.counts.sum(), cells.others.sum()
    return float(np.abs(cells.counts / n - cells.others / m).sum() / 2) if n and m else math.nan


def _spread(side: Ranked) -> float:
    points, reached = side
    low, high = points[np.searchsorted(reached, np.array([0.25, 0.75]) * reached[-1])]
    within = float(high / _QUARTILES_OF_NORMAL - low / _QUARTILES_OF_NORMAL)
    found = within if within > 0 else deviation(side)
    return found if math.isfinite(found) else 0.0
