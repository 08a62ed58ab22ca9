"""Sketches that merge: moments in five numbers, and the number of distinct values.

*Moments* give mean, variance, skewness and kurtosis. Kept are the count, the mean, and the sums of the 2nd, 3rd and 4th
powers of the distances from it. Two sets are joined, and one taken out of another, by Pebay's formulas, so nothing
cancels as it would in sums of plain squares. What is beyond float64 is infinite or NaN, and never a warning: fourth
powers are, from distances of about 1e77.

*Distinct values* are counted exactly while they are few, and beyond that by HyperLogLog. Values are seen as 64-bit
words. Up to a thousand different ones are kept; then 4,096 registers take their place, each holding the longest run of
zero bits among the hashes that fell to it. Registers merge by their maximum, so the order of merging never matters. The
estimate is Ertl's (2017), which needs no corrections for small or large counts.

Written by hand: datasketches takes one Python call per value, 300 times what the kernel takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolish.errors import CorruptDataError
from poolish.guards.stats.serialization import MAX_COUNT, decode_array, encode_array
from poolish.kernels import fill_registers, merge_moments, scan, to_words

#: Decimal digits of a float64, and the fewest with which a figure is still one.
DIGITS, LEAST_DIGITS = 15.0, 3.0
#: Sums are off by a few units in the last place.
_ROUNDING = 16 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Moments:
    """Of the finite values of a column. Moments are biased, as in SciPy and ``np.var``; ``unbiased=True`` as in pandas.

    >>> moments = Moments.of(np.array([1.0, 2.0, 6.0])).merge(Moments.of(np.array([7.0])))
    >>> moments.n, moments.mean, moments.variance(), moments.variance(unbiased=True)
    (4, 4.0, 6.5, 8.666666666666666)
    """

    n: int = 0
    mean: float = math.nan
    m2: float = 0.0
    m3: float = 0.0
    m4: float = 0.0
    digits: float = DIGITS  #: how many decimal digits the variance has, fewer where most of a sum was subtracted

    @classmethod
    def of(cls, values: NDArray[Any]) -> Moments:
        """One pass over an array of numbers."""
        return cls.from_tuple(scan(values)[0])

    @classmethod
    def from_tuple(cls, numbers: Sequence[float], *, digits: float = DIGITS) -> Moments:
        """From the five numbers."""
        n, mean, m2, m3, m4 = numbers
        if type(n) is not int or not 0 <= n < MAX_COUNT or (not m2 >= 0 and not math.isnan(m2)):
            raise CorruptDataError(
                f"moments {list(numbers)!r:.200}: a count and a sum of squares are never negative, a count below 2**62"
            )
        if not 0 <= digits <= DIGITS:
            raise CorruptDataError(f"moments with {digits!r:.40} digits; a float64 has 0 to {DIGITS}")
        return cls(n, float(mean) if n else math.nan, float(m2), float(m3), float(m4), digits)

    @property
    def as_tuple(self) -> tuple[int, float, float, float, float]:
        """The five numbers."""
        return self.n, self.mean, self.m2, self.m3, self.m4

    def merge(self, other: Moments) -> Moments:
        """The moments of both."""
        return Moments(*merge_moments(self.as_tuple, other.as_tuple), min(self.digits, other.digits))

    def subtract(self, other: Moments) -> Moments:
        """The moments of what is left when ``other``, which was a part, is taken out.

        Each subtraction of nearly equal sums loses digits; ``digits`` says how many the variance has left. What has
        fewer than ``LEAST_DIGITS`` is NaN: the mean (in standard deviations of the whole), the variance, and with it
        skewness and kurtosis, which may be lost before it.

        >>> both = Moments.of(np.array([1.0, 2.0, 6.0, 7.0]))
        >>> rest = both.subtract(Moments.of(np.array([6.0, 7.0])))
        >>> rest.mean, round(rest.digits)
        (1.5, 12)
        """
        n, part = self.n - other.n, other.n
        if n < 0:
            raise ValueError(f"{other.n:,} values cannot be taken out of {self.n:,}")
        if not n or not part:
            return self if n else Moments()
        # Pebay's formulas, solved for one of the two parts.
        mean = self.mean + (self.mean - other.mean) * (part / n)
        apart, whole = other.mean - mean, self.n
        square = apart * apart  # not **, which raises where * is infinite
        m2 = max(self.m2 - other.m2 - square * (n * part / whole), 0.0) if n > 1 else 0.0
        m3 = self.m3 - other.m3 - square * apart * (n * part * (n - part) / whole**2)
        m3 -= 3 * apart * (n * other.m2 - part * m2) / whole
        m4 = self.m4 - other.m4 - square * square * (n * part * (n * n - n * part + part * part) / whole**3)
        m4 -= 6 * square * (n * n * other.m2 + part * part * m2) / whole**2
        m4 -= 4 * apart * (n * other.m3 - part * m3) / whole
        return Moments(n, mean, m2, m3, max(m4, 0.0))._without_lost(self, other)

    def _without_lost(self, whole: Moments, part: Moments) -> Moments:
        """What is left of a subtraction, with its digits counted and what has too few of them unknown."""
        rounding = max(10.0 ** -min(whole.digits, part.digits), _ROUNDING)
        times = whole.n / self.n
        off_mean = _ROUNDING * (abs(whole.mean) + abs(part.mean)) * times
        apart = abs(part.mean - self.mean)
        # The square too: means that are rounded to the same number are 0 apart, and know nothing of it.
        off_square = (2 * apart + off_mean) * off_mean
        off_2 = rounding * (whole.m2 + part.m2) + off_square * (self.n * part.n / whole.n)
        # Sums of higher powers are off by as much as their largest terms are.
        off_3 = rounding * (abs(whole.m3) + abs(part.m3) + 3 * apart * whole.m2 + apart * apart * off_mean * self.n)
        off_4 = rounding * (whole.m4 + part.m4 + 6 * apart * apart * whole.m2) + 4 * apart * off_3
        digits = 0.0
        if self.n == 1 or not whole.m2:
            digits = DIGITS
        elif self.m2 > 0 and math.isfinite(off_2):
            digits = min(max(-math.log10(max(off_2 / self.m2, _ROUNDING)), 0.0), DIGITS)
        least, spread = 10.0**-LEAST_DIGITS, math.sqrt(max(self.m2, 0.0))
        is_lost = self.n > 1 and digits < LEAST_DIGITS
        lost_3 = is_lost or off_3 * math.sqrt(self.n) > least * spread**3
        lost_4 = is_lost or off_4 * self.n > least * spread**4
        lost_mean = whole.m2 > 0 and off_mean > least * math.sqrt(whole.m2 / whole.n)
        return replace(
            self,
            mean=math.nan if lost_mean else self.mean,
            m2=math.nan if is_lost else self.m2,
            m3=math.nan if lost_3 and self.n > 1 else self.m3,
            m4=math.nan if lost_4 and self.n > 1 else self.m4,
            digits=digits,
        )

    def variance(self, *, unbiased: bool = False) -> float:
        """The mean squared distance from the mean; NaN of nothing."""
        n = self.n - unbiased
        return self.m2 / n if n > 0 else math.nan

    def skewness(self, *, unbiased: bool = False) -> float:
        """How lopsided: 0 for what is symmetric; NaN without variance."""
        skewness = _divide(self.m3 * math.sqrt(self.n), _power(self.m2, 1.5)) if self._has_spread else math.nan
        if unbiased:
            return skewness * math.sqrt(self.n * (self.n - 1)) / (self.n - 2) if self.n > 2 else math.nan
        return skewness

    def kurtosis(self, *, unbiased: bool = False) -> float:
        """How heavy the tails are, Fisher's: 0 for a normal distribution; NaN without variance.

        >>> Moments.of(np.arange(5.0)).kurtosis()
        -1.3
        """
        n = self.n
        kurtosis = _divide(self.m4 * n, _power(self.m2, 2)) - 3 if self._has_spread else math.nan
        if unbiased:
            return (n - 1) / ((n - 2) * (n - 3)) * ((n + 1) * kurtosis + 6) if n > 3 else math.nan
        return kurtosis

    @property
    def _has_spread(self) -> bool:
        """Whether the variance is more than what rounding the mean leaves, as SciPy asks."""
        return self.n > 0 and math.sqrt(self.m2 / self.n) > float(np.finfo(np.float64).eps) * abs(self.mean)


def _power(number: float, exponent: float) -> float:
    return number**exponent if number < 1e150 else math.inf


def _divide(a: float, b: float) -> float:
    return a / b if b and math.isfinite(b) else math.nan


Words = NDArray[np.uint64]
Registers = NDArray[np.uint8]

#: Up to this many distinct values are counted exactly.
N_EXACT = 1_000
_BITS = 12


class Distinct:
    """How many different words were seen.

    >>> few = Distinct.of(np.array([3, 5, 3], np.uint64))
    >>> few.estimate, few.error
    (2, 0.0)
    >>> many = few.merge(Distinct.of(np.arange(1_000_000, dtype=np.uint64)))
    >>> abs(many.estimate - 1_000_000) < 3 * many.error * 1_000_000
    True
    """

    __slots__ = ("_registers", "_words")

    def __init__(self, *, words: Words | None = None, registers: Registers | None = None) -> None:
        self._words = np.empty(0, np.uint64) if words is None and registers is None else words
        self._registers = registers

    @classmethod
    def of(cls, words: NDArray[Any], *, unique: Words | None = None) -> Distinct:
        """Of words, or of float64; ``unique`` are the different words among them, where they are known and few."""
        if unique is None and len(words) <= 2 * N_EXACT:
            unique = np.unique(to_words(words))
        if unique is not None and len(unique) <= N_EXACT:
            return cls(words=np.sort(unique))
        registers = np.zeros(1 << _BITS, np.uint8)
        fill_registers(words, registers)
        return cls(registers=registers)

    @property
    def is_exact(self) -> bool:
        """Whether the estimate is a count."""
        return self._words is not None

    @property
    def error(self) -> float:
        """The relative standard error of the estimate."""
        return 0.0 if self.is_exact else 1.04 / math.sqrt(1 << _BITS)

    @property
    def estimate(self) -> int:
        """How many different values there were."""
        return len(self._words) if self._words is not None else round(_ertl(self._filled()))

    def merge(self, other: Distinct) -> Distinct:
        """Of both."""
        if self._words is not None and other._words is not None:
            words = np.union1d(self._words, other._words)
            return Distinct.of(words, unique=words)
        return Distinct(registers=np.maximum(self._filled(), other._filled()))

    def to_json(self) -> dict[str, str]:
        """As JSON."""
        if self._words is not None:
            return {"words": encode_array(self._words)}
        return {"registers": encode_array(self._filled())}

    @classmethod
    def from_json(cls, state: Any) -> Distinct:
        """From JSON; what cannot have come from ``to_json`` is refused."""
        if "words" in state:
            words = decode_array(state["words"], np.uint64)
            if len(words) > N_EXACT or (words[1:] <= words[:-1]).any():
                raise CorruptDataError(f"distinct: at most {N_EXACT:,} words in order")
            return cls(words=words)
        registers = decode_array(state["registers"], np.uint8)
        if len(registers) != 1 << _BITS or (registers > 65 - _BITS).any():
            raise CorruptDataError(f"distinct: {1 << _BITS:,} registers of at most {65 - _BITS}")
        return cls(registers=registers)

    def _filled(self) -> Registers:
        if self._registers is not None:
            return self._registers
        registers = np.zeros(1 << _BITS, np.uint8)
        fill_registers(self._words, registers)
        return registers


def _ertl(registers: Registers) -> float:
    """The number of different hashes behind registers, by Ertl's improved estimator."""
    m, longest = len(registers), 64 - _BITS
    counts = np.bincount(registers, minlength=longest + 2)
    z = m * _tau(1 - counts[longest + 1] / m)
    for k in range(longest, 0, -1):
        z = 0.5 * (z + counts[k])
    z += m * _sigma(counts[0] / m)
    return float(m * m / (2 * math.log(2) * z)) if math.isfinite(z) else 0.0


def _sigma(x: float) -> float:
    if x == 1:
        return math.inf
    y, z, last = 1.0, x, -1.0
    while z != last:
        x, last = x * x, z
        z += x * y
        y += y
    return z


def _tau(x: float) -> float:
    if x in (0.0, 1.0):
        return 0.0
    y, z, last = 1.0, 1 - x, -1.0
    while z != last:
        x, last = math.sqrt(x), z
        y *= 0.5
        z -= (1 - x) ** 2 * y
    return z / 3
