"""How many different values: exactly while they are few, and beyond that by HyperLogLog.

Values are seen as 64-bit words. Up to a thousand different ones are kept; then 4,096 registers take their place, each
holding the longest run of zero bits among the hashes that fell to it. Registers merge by their maximum, so the order of
merging never matters. The estimate is Ertl's (2017), which needs no corrections for small or large counts.

Written by hand: datasketches takes one Python call per value, 300 times what the kernel takes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolish.errors import CorruptDataError
from poolish.guards.json_numbers import decode_array, encode_array
from poolish.kernels import fill_registers, to_words

Words = NDArray[np.uint64]
Registers = NDArray[np.uint8]

#: So many different values are counted exactly.
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
