"""Comparison: the value of a statistic for two samples, its threshold, its p-value and its verdict.

Two questions are kept apart. *Significant*: would samples of this size differ as much if nothing had changed, less
often than ``alpha``? *Material*: is the difference as large as the user cares about (``effect_min``)? The verdict is
"drift" when the first is answered yes, and the second too where it was asked.

Under no drift PSI is about ``(1/n + 1/m) chi2`` with one degree of freedom less than bins (Yurdakul 2018); KL is half
of that and JS an eighth, so one table gives all three thresholds; that holds while every cell expects 20 rows or more,
else permutations take its place. A fixed mark like 0.1 instead alarms on 76 % of samples of 50 rows, and never on large
ones.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from poolish.errors import ConfigError
from poolish.guards.stats.cells import Cells
from poolish.guards.stats.permutation import Calibration, Statistic, calibrate
from poolish.guards.stats.serialization import encode_float

Verdict = Literal["ok", "drift", "insufficient", "constant", "not applicable"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The result of ``psi``, ``kl``, ``js``, ``ks``, ``wasserstein`` or ``chi2``; true if there is drift.

    ``verdict`` is "insufficient" where either side has fewer than ``min_rows`` values, and "constant" where both hold
    one and the same value only: then there is nothing to judge. It is "not applicable" where this statistic cannot
    judge this column; ``problem`` names what can.
    """

    statistic: str
    value: float
    threshold: float  #: the value beyond which the difference is significant; NaN where there is none
    p: float | None  #: how often no drift at all would look like this; None where that is not known
    n: int  #: values of the reference; rows, where they are lists or tensors
    m: int  #: those of the current sample
    bins: int | None  #: how many there were, None for statistics without
    convention: str
    verdict: Verdict
    significant: bool
    material: bool | None  #: None where no ``effect_min`` was given
    effect_min: float | None
    alpha: float
    basis: str | None = None  #: what p rests on: "limit" (large samples), "exact" or "permutation"; None without p
    problem: str = ""  #: why a column is "not applicable" to the statistic, and which method can judge it

    def __bool__(self) -> bool:
        return self.verdict == "drift"

    def to_json(self) -> dict[str, Any]:
        """As JSON; numbers that it has no word for are text."""
        return {name: encode_float(v) if isinstance(v, float) else v for name, v in asdict(self).items()}

    def __str__(self) -> str:
        chance = "" if self.p is None or math.isnan(self.p) else f", p {self.p:.3g}"
        why = f", {self.problem}" if self.problem else ""
        return f"{self.statistic} {self.value:.4g} (threshold {self.threshold:.4g}{chance}): {self.verdict}{why}"


@dataclass(frozen=True, kw_only=True)
class KlComparison(Comparison):
    """Kullback and Leibler's divergence in nats, in both directions."""

    current_from_reference: float  #: KL(current || reference): how surprising new data are to who knows the reference
    reference_from_current: float  #: KL(reference || current)


@dataclass(frozen=True, kw_only=True)
class JsComparison(Comparison):
    """Jensen and Shannon's divergence in bits (0 to 1), and their distance, its square root in nats (0 to 0.83)."""

    bits: float
    distance: float


@dataclass(frozen=True, kw_only=True)
class KsComparison(Comparison):
    """Kolmogorov and Smirnov's distance, which may be off by ``error`` where a side is a summary."""

    error: float
    missing: tuple[int, int]  #: how many None and NaN were left out of each side


@dataclass(frozen=True, kw_only=True)
class WassersteinComparison(Comparison):
    """Wasserstein's distance in units of ``scale``, and as it is."""

    distance: float
    scale: float


@dataclass(frozen=True, kw_only=True)
class Chi2Comparison(Comparison):
    """Pearson's statistic, and Cramer's V, which does not grow with the samples (0 to 1)."""

    df: int
    effect: float


Floats = NDArray[np.float64]
Int64 = NDArray[np.int64]
Result = TypeVar("Result", bound=Comparison)

#: With fewer rows on either side there is no verdict. P-values hold for fewer; there is little that they could show.
MIN_ROWS = 30
CONVENTIONS = ("poolish", "scipy", "evidently-0.7")
EVIDENTLY = "evidently-0.7"
#: Evidently's fixed mark for distances.
_MARK = 0.1
_JEFFREYS = 0.5


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

    def shares(self, counts: Int64, others: Int64) -> tuple[Floats, Floats]:
        """The shares of the cells on both sides, smoothed as the convention says."""
        if self.convention == "poolish":
            return _smoothed(counts), _smoothed(others)
        with np.errstate(all="ignore"):
            p, q = counts / counts.sum(axis=-1, keepdims=True), others / others.sum(axis=-1, keepdims=True)
        if self.convention == EVIDENTLY and self.statistic != "js":  # which is finite with zeros, so they are left
            p, q = _without_zeros(p), _without_zeros(q)
        return p, q

    def of_cells(
        self,
        kind: type[Result],
        cells: Cells,
        measure: Callable[[Floats, Floats], Floats],
        factor: float,
        *,
        power: int = 1,
        **extra: Any,
    ) -> Result:
        """The verdict on a measure of shares; without drift ``value ** power`` is ``factor (1/n + 1/m) chi2``."""
        counts, others = cells.counts, cells.others
        (n, m), n_cells = cells.sizes, len(counts)
        if not counts.any() or not others.any():
            return self.decide(kind, math.nan, math.nan, None, n, m, n_cells, **extra)
        value = float(measure(*self.shares(counts, others)))
        if self.convention == EVIDENTLY or n_cells < 2:
            return self.decide(kind, value, math.nan, None, n, m, n_cells, problem=cells.problem, **extra)
        unit = factor * (1 / n + 1 / m)
        if self.convention == "scipy" or cells.has_limit:
            threshold = (unit * chi2_threshold(n_cells - 1, self.alpha)) ** (1 / power)
            p, basis = chi2_tail(value**power / unit, n_cells - 1), "limit"
        else:
            found = self._calibrated(cells, lambda c, o: measure(_smoothed(c), _smoothed(o)))
            threshold, p, basis = found.threshold, found.p, "permutation"
        return self.decide(kind, value, threshold, p, n, m, n_cells, problem=cells.problem, basis=basis, **extra)

    def of_chi2(
        self, kind: type[Result], cells: Cells, statistic: Statistic, value: float, *, df: int, effect: float
    ) -> Result:
        """The verdict on Pearson's statistic."""
        n, m = cells.sizes
        extra: dict[str, Any] = {"df": df, "effect": effect, "problem": cells.problem}
        if not n or not m or not df:
            return self.decide(kind, 0.0 if n and m else math.nan, math.nan, None, n, m, df + 1, **extra)
        if self.convention != "poolish" or cells.has_limit:
            threshold, p, basis = chi2_threshold(df, self.alpha), chi2_tail(value, df), "limit"
        else:
            found = self._calibrated(cells, statistic)
            threshold, p, basis = found.threshold, found.p, "permutation"
        return self.decide(kind, value, threshold, p, n, m, df + 1, size=effect, basis=basis, **extra)

    def _calibrated(self, cells: Cells, statistic: Statistic) -> Calibration:
        if cells.problem or min(cells.sizes) < self.min_rows:
            return Calibration(math.nan, math.nan, 0)
        return calibrate(statistic, cells.counts, cells.others, self.alpha, cells.rows)

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
        problem: str = "",
        basis: str = "limit",
        **extra: Any,
    ) -> Result:
        """The result; ``size`` is what ``effect_min`` is measured against, by default the value."""
        p = None if p is None or math.isnan(p) else p
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
        elif problem:
            verdict, significant, p = "not applicable", False, None
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
            basis=None if p is None else basis,
            problem=problem if verdict == "not applicable" else "",
            **extra,
        )


def _smoothed(counts: Int64) -> Floats:
    """Jeffreys' shares: half a row more in every cell."""
    shares: Floats = (counts + _JEFFREYS) / (counts.sum(axis=-1, keepdims=True) + _JEFFREYS * counts.shape[-1])
    return shares


def _without_zeros(shares: Floats) -> Floats:
    """As Evidently fills them: a ten-thousandth, or a millionth of the least share where that is smaller."""
    least = float(shares[shares > 0].min(initial=1.0))
    return np.where(shares == 0, least / 1e6 if least <= 1e-4 else 1e-4, shares)


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
