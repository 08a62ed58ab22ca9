"""Comparison: what a statistic says of two samples, and whether that means anything.

Two questions are kept apart. *Significant*: would samples of this size differ as much if nothing had changed, less
often than ``alpha``? *Material*: is the difference as large as the user cares about (``effect_min``)? The verdict is
"drift" when the first is answered yes, and the second too where it was asked.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from poolish.guards.json_numbers import encode_float

Verdict = Literal["ok", "drift", "insufficient", "constant"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The result of ``psi``, ``kl``, ``js``, ``ks``, ``wasserstein`` or ``chi2``; true if there is drift.

    ``verdict`` is "insufficient" where either side has fewer than ``min_rows`` values, and "constant" where both hold
    one and the same value only: then there is nothing to judge.
    """

    statistic: str
    value: float
    threshold: float  #: the value beyond which the difference is significant; NaN where there is none
    p: float | None  #: how often no drift at all would look like this; None where that is not known
    n: int  #: values of the reference
    m: int  #: values of the current sample
    bins: int | None  #: how many there were, None for statistics without
    convention: str
    verdict: Verdict
    significant: bool
    material: bool | None  #: None where no ``effect_min`` was given
    effect_min: float | None
    alpha: float

    def __bool__(self) -> bool:
        return self.verdict == "drift"

    def to_json(self) -> dict[str, Any]:
        """As JSON; numbers that it has no word for are text."""
        return {name: encode_float(v) if isinstance(v, float) else v for name, v in asdict(self).items()}

    def __str__(self) -> str:
        chance = "" if self.p is None or math.isnan(self.p) else f", p {self.p:.3g}"
        return f"{self.statistic} {self.value:.4g} (threshold {self.threshold:.4g}{chance}): {self.verdict}"


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
