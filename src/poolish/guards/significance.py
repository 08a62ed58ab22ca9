"""From the value of a statistic to a verdict: its threshold, its p-value, and what the convention makes of them.

Under no drift PSI is about ``(1/n + 1/m) chi2`` with one degree of freedom less than bins (Yurdakul 2018); KL is half
of that and JS an eighth, so one table gives all three thresholds. A fixed mark like 0.1 instead alarms on 76 % of
samples of 50 rows, and never on large ones.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from poolish.errors import ConfigError
from poolish.guards.comparison import Comparison, Verdict

Floats = NDArray[np.float64]
Result = TypeVar("Result", bound=Comparison)

CONVENTIONS = ("poolish", "scipy", "evidently-0.7")
EVIDENTLY = "evidently-0.7"
#: Evidently's fixed mark for distances.
_MARK = 0.1


class Rule:
    """How the value of a statistic becomes a verdict."""

    def __init__(self, statistic: str, convention: str, alpha: float, effect_min: float | None, min_rows: int) -> None:
        if convention not in CONVENTIONS:
            raise ConfigError(f"convention: one of {', '.join(CONVENTIONS)}, got {convention!r}")
        if not 0 < alpha < 1:
            raise ConfigError(f"alpha: a share between 0 and 1, got {alpha!r}")
        if effect_min is not None and not effect_min >= 0:
            raise ConfigError(f"effect_min: from 0, in the unit of {statistic}, got {effect_min!r}")
        self.statistic, self.convention, self.alpha = statistic, convention, alpha
        self.effect_min, self.min_rows = effect_min, min_rows

    def of_bins(
        self,
        kind: type[Result],
        value: float,
        factor: float,
        n: int,
        m: int,
        n_bins: int,
        *,
        power: int = 1,
        **extra: Any,
    ) -> Result:
        """The verdict where ``value ** power`` is, under no drift, about ``factor (1/n + 1/m) chi2``."""
        df = n_bins - 1
        if not n or not m or df < 1 or self.convention == EVIDENTLY:
            return self.decide(kind, value if n and m else math.nan, math.nan, None, n, m, n_bins, **extra)
        unit = factor * (1 / n + 1 / m)
        threshold = (unit * chi2_threshold(df, self.alpha)) ** (1 / power)
        p = chi2_tail(value**power / unit, df)
        return self.decide(kind, value, threshold, p, n, m, n_bins, **extra)

    def decide(
        self,
        kind: type[Result],
        value: float,
        threshold: float,
        p: float | None,
        n: int,
        m: int,
        n_bins: int | None,
        *,
        size: float | None = None,
        significant: bool | None = None,
        is_constant: bool | None = None,
        **extra: Any,
    ) -> Result:
        """The result; ``size`` is what ``effect_min`` is measured against, the value unless told."""
        if significant is None:
            significant = p is not None and p < self.alpha
        if self.convention == EVIDENTLY:
            if self.statistic in ("ks", "chi2"):
                significant = p is not None and p <= self.alpha
            else:
                threshold, p = _MARK, None
                significant = value >= _MARK
        size = value if size is None else size
        material = None if self.effect_min is None else bool(size >= self.effect_min)
        verdict: Verdict = "drift" if significant and material is not False else "ok"
        if min(n, m) < max(self.min_rows, 1):
            verdict, significant = "insufficient", False
        elif is_constant or (is_constant is None and n_bins is not None and n_bins < 2):
            verdict, significant = "constant", False
        return kind(
            statistic=self.statistic,
            value=value,
            threshold=threshold,
            p=p,
            n=n,
            m=m,
            bins=n_bins,
            convention=self.convention,
            verdict=verdict,
            significant=bool(significant),
            material=material,
            effect_min=self.effect_min,
            alpha=self.alpha,
            **extra,
        )


# Tables ---------------------------------------------------------------------------------------------------------


def _need_scipy(find: Callable[[], Any]) -> Any:
    try:
        return find()
    except ImportError as error:
        raise ImportError(f"thresholds and p-values need SciPy: pip install poolish[guards] ({error})") from error


def _special() -> Any:
    import scipy.special

    return scipy.special


def _stats() -> Any:
    import scipy.stats

    return scipy.stats


@lru_cache(maxsize=1_000)
def chi2_threshold(df: int, alpha: float) -> float:
    """What chi2 exceeds with probability ``alpha``."""
    return float(_need_scipy(_special).chdtri(df, alpha))


def chi2_tail(value: float, df: int) -> float:
    """The probability that chi2 exceeds ``value``."""
    return float(_need_scipy(_special).chdtrc(df, value)) if math.isfinite(value) else 0.0 if value > 0 else math.nan


@lru_cache(maxsize=1_000)
def ks_threshold(alpha: float, size: int) -> float:
    """What the largest distance exceeds with probability ``alpha``, for two samples that weigh as one of ``size``."""
    return float(_need_scipy(_stats).kstwo.isf(alpha, size))


def ks_tail(value: float, size: int) -> float:
    """The probability that the largest distance exceeds ``value``."""
    return float(np.clip(_need_scipy(_stats).kstwo.sf(value, size), 0, 1))


def ks_exact(points: Floats, others: Floats) -> float:
    """The p-value of two samples, by counting paths."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it had to use the limit after all
        return float(_need_scipy(_stats).ks_2samp(points, others, method="exact").pvalue)
