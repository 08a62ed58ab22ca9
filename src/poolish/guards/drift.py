"""The function ``drift``. What it does is in ``drift_report``, which is loaded, with Arrow, when it is first called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from poolish.guards.drift_report import DriftReport


def drift(
    reference: Any,
    current: Any,
    *,
    columns: Iterable[str] | None = None,
    method: str = "psi+ks",
    convention: str = "poolish",
    alpha: float = 0.05,
    effect_min: float | Mapping[str, float] | None = None,
    min_rows: int = 50,
    bins: Any = None,
) -> DriftReport:
    """Compare the columns of two tables or profiles, those of the reference unless ``columns`` names some.

    ``method`` are statistics joined by "+"; those that need an order are left out for text. ``effect_min`` is the least
    difference that matters, for all statistics or for each by name. ``alpha`` is the share of false alarms among all
    alarms, however many columns there are.

    >>> import numpy as np
    >>> before = {"x": np.arange(1000) / 10}
    >>> drift(before, {"x": 0.22 * np.arange(500) + 3})
    1 of 1 columns drifted (alpha 0.05)
      x: drift; psi 0.1002 (threshold 0.05076, p 0.000114): drift; ks 0.118 (threshold 0.0739, p 0.000178): drift
    """
    from poolish.guards.drift_report import compare_columns

    rules = {"convention": convention, "alpha": alpha, "min_rows": min_rows, "bins": bins}
    return compare_columns(reference, current, columns, method, effect_min, **rules)
