"""What the kernels of the statistics mean, in NumPy: the specification of ``_stats.pyx`` and its stand-in.

Counts, sorted values and registers are the same in both halves. Sums are added in another order, so moments agree to
rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Int64 = NDArray[np.int64]
Words = NDArray[np.uint64]
Registers = NDArray[np.uint8]

#: How many, their mean, and the sums of the 2nd, 3rd and 4th powers of the distances from it.
MomentTuple = tuple[int, float, float, float, float]

_BLOCK = 1 << 16


def scan(
    values: NDArray[Any], edges: Floats | None = None, counts: Int64 | None = None
) -> tuple[MomentTuple, float, float, tuple[int, int, int]]:
    """One pass: moments, least and largest of the finite values, and how many are NaN, infinite, minus infinite.

    With ``edges``, the finite values are also added to ``counts``: ``counts[i]`` are those with ``i`` edges at or below
    them. What overflows is infinite or NaN; nothing warns.
    """
    if edges is not None and (counts is None or len(counts) != len(edges) + 1):
        raise IndexError("one more count than edges")
    moments: MomentTuple = (0, 0.0, 0.0, 0.0, 0.0)
    low, high, odd = np.nan, np.nan, [0, 0, 0]
    flat = np.ascontiguousarray(values).reshape(-1)
    with np.errstate(all="ignore"):
        for first in range(0, flat.size, _BLOCK):
            block = flat[first : first + _BLOCK].astype(np.float64)
            odd[0] += int(np.isnan(block).sum())
            odd[1] += int((block == np.inf).sum())
            odd[2] += int((block == -np.inf).sum())
            block = block[np.isfinite(block)]
            if not block.size:
                continue
            moments = merge(moments, _moments(block))
            low, high = np.fmin(low, block.min()), np.fmax(high, block.max())
            if edges is not None and counts is not None:
                counts += np.bincount(np.searchsorted(edges, block, side="right"), minlength=len(counts))
    return moments, float(low), float(high), (odd[0], odd[1], odd[2])


def merge(a: MomentTuple, b: MomentTuple) -> MomentTuple:
    """The moments of two sets together, by Pebay's formulas.

    >>> merge((1, 1.0, 0.0, 0.0, 0.0), (1, 3.0, 0.0, 0.0, 0.0))
    (2, 2.0, 2.0, 0.0, 2.0)
    """
    if not a[0] or not b[0]:
        return b if not a[0] else a
    n = a[0] + b[0]
    with np.errstate(all="ignore"):
        (mean, m2, m3, m4), (mean_b, m2_b, m3_b, m4_b) = np.array([a[1:], b[1:]], np.float64)
        apart = mean_b - mean
        own, share = a[0] / n, b[0] / n
        if apart != 0:  # a distance of nothing adds nothing, also to powers that are infinite
            square, both = apart * apart, a[0] * share
            m4 = m4 + square * square * both * (own * own - own * share + share * share)
            m4 = m4 + 6 * square * (own * own * m2_b + share * share * m2) + 4 * apart * (own * m3_b - share * m3)
            m3 = m3 + square * apart * both * (own - share) + 3 * apart * (own * m2_b - share * m2)
            m2 = m2 + square * both
            mean = mean + apart * share if np.isfinite(apart) else mean * own + mean_b * share
        return n, float(mean), float(m2 + m2_b), float(m3 + m3_b), float(m4 + m4_b)


def sort(values: NDArray[Any]) -> Floats:
    """The values as float64 in order, NaN last; a copy."""
    ordered: Floats = np.sort(np.array(values, np.float64, copy=True, ndmin=1) + 0.0)
    return ordered


def walk(a: Floats, b: Floats) -> tuple[int, int, float]:
    """Two sorted samples: how far the distribution function of ``a`` is above and below that of ``b``, and the area.

    The two distances are times ``len(a) * len(b)``, which makes them whole numbers; the area is Wasserstein's distance.
    """
    if not len(a) or not len(b):
        raise IndexError("an empty sample has no distribution")
    points = np.union1d(a, b)
    apart = np.searchsorted(a, points, side="right") * len(b) - np.searchsorted(b, points, side="right") * len(a)
    with np.errstate(all="ignore"):
        shares, widths = np.abs(apart[:-1]) / (len(a) * len(b)), np.diff(points)
        area = float(np.dot(shares[shares > 0], widths[shares > 0]))
    return max(int(apart.max()), 0), max(int(-apart.min()), 0), area


def to_words(values: Words | Floats) -> Words:
    """The finite values as words, equal for what is equal: zeros have one sign."""
    if values.dtype == np.uint64:
        return values.view(np.uint64)
    floats = values + 0.0
    return floats[np.isfinite(floats)].view(np.uint64)


def fill_registers(words: Words | Floats, registers: Registers) -> None:
    """Show words to the registers of a HyperLogLog: each keeps the longest run of zero bits that it has seen."""
    bits = len(registers).bit_length() - 1
    if not 4 <= bits <= 18 or len(registers) != 1 << bits:
        raise IndexError("registers: a power of two from 16 to 2**18")
    for first in range(0, len(words), _BLOCK):
        hashes = scatter(to_words(words[first : first + _BLOCK]))
        # The highest bit of what is left, found by the exponent of halves that a float64 holds exactly.
        rest = hashes << np.uint64(bits)
        upper, lower = rest >> np.uint64(32), rest & np.uint64(0xFFFFFFFF)
        length = np.where(upper > 0, np.frexp(upper.astype(np.float64))[1] + 32, np.frexp(lower.astype(np.float64))[1])
        ranks = np.where(rest == 0, 64 - bits + 1, 65 - length).astype(np.uint8)
        np.maximum.at(registers, (hashes >> np.uint64(64 - bits)).astype(np.intp), ranks)


def tally(words: Words | Floats, limit: int) -> tuple[Words, Int64] | None:
    """Each word and how often it comes, in the order of first sight; None if there are more than ``limit``."""
    if not 0 < limit <= 1 << 20:
        raise IndexError("limit: 1 to 2**20")
    found: dict[int, int] = {}
    for first in range(0, len(words), _BLOCK):
        unique, where, counts = np.unique(
            to_words(words[first : first + _BLOCK]), return_index=True, return_counts=True
        )
        for i in np.argsort(where).tolist():
            word = int(unique[i])
            found[word] = found.get(word, 0) + int(counts[i])
        if len(found) > limit:
            return None
    return np.array(list(found), np.uint64), np.array(list(found.values()), np.int64)


def fill_buckets(values: NDArray[Any], low: float, scale: float, counts: Int64, members: Floats) -> None:
    """Add finite values to buckets of equal width, the outer ones open; ``members`` are the last seen of each.

    A value's bucket is ``(value - low) * scale``, cut to what there is: larger values never have a lower one.
    """
    if len(counts) != len(members) or not len(counts):
        raise IndexError("one member for each bucket")
    for first in range(0, values.size, _BLOCK):
        block, buckets = _bucketed(values.reshape(-1)[first : first + _BLOCK], low, scale, len(counts))
        counts += np.bincount(buckets, minlength=len(counts))
        members[buckets] = block


def pick_buckets(values: NDArray[Any], low: float, scale: float, marks: NDArray[np.uint8], out: Floats) -> int:
    """The values in marked buckets, in their order, as many as ``out`` has room for; how many there are."""
    if not len(marks):
        raise IndexError("no buckets")
    found = 0
    for first in range(0, values.size, _BLOCK):
        block, buckets = _bucketed(values.reshape(-1)[first : first + _BLOCK], low, scale, len(marks))
        picked = block[marks[buckets] != 0]
        room = out[found : found + len(picked)]
        room[:] = picked[: len(room)]
        found += len(picked)
    return found


def _bucketed(values: NDArray[Any], low: float, scale: float, n_buckets: int) -> tuple[Floats, NDArray[np.intp]]:
    block = values.astype(np.float64)
    block = block[np.isfinite(block)]
    with np.errstate(all="ignore"):
        places = np.nan_to_num((block - low) * scale, nan=0.0)
    return block, np.clip(places, 0, n_buckets - 1).astype(np.intp)


def scatter(words: Words) -> Words:
    """Words spread over all 64 bits: the finaliser of SplitMix64."""
    with np.errstate(over="ignore"):
        words = words + np.uint64(0x9E3779B97F4A7C15)
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _moments(block: Floats) -> MomentTuple:
    if block.min() == block.max():
        return block.size, float(block[0]), 0.0, 0.0, 0.0  # exactly, so that what is constant has no variance at all
    mean = block.mean()
    if not np.isfinite(mean):
        mean = (block / block.size).sum()
    apart = block - mean
    square = apart * apart
    return block.size, float(mean), float(square.sum()), float((square * apart).sum()), float((square * square).sum())
