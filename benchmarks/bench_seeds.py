"""A shuffled order that is computed against one that is stored; the target is 10 M ids/s whatever the length.

Two lengths just above and at a power of two, where the cipher walks most and least. The peers shuffle everything
before the first id is known, so a part of a long order is where they cannot follow.
"""

from __future__ import annotations

import numpy as np

from benchmarks.harness import Measure, compare, per_call, per_second
from poolish.kernels import reference
from poolish.seeds import KeyedPermutation, generator, key

MILLIONS = 2**22


def whole(n: int) -> Measure:
    """All ids of an order, as an array."""
    return per_second(lambda: KeyedPermutation(n, 1)[:], n)


def whole_by_reference(n: int) -> Measure:
    """The same on the NumPy kernel."""
    positions = np.arange(n)
    return per_second(lambda: reference.permute(positions, n, 1, np.empty_like(positions)), n)


def whole_by_numpy(n: int) -> Measure:
    """NumPy's own shuffle of the same length."""
    rng = np.random.default_rng(1)
    return per_second(lambda: rng.permutation(n), n)


def main() -> None:
    """Whole orders, a block out of a long one, and the price of a named generator."""
    for what, n in (("2^22", MILLIONS), ("2^22 + 1", MILLIONS + 1)):
        peers = {"numpy permutation": whole_by_numpy(n), "numpy reference": whole_by_reference(n)}
        compare(f"seeds.order of {what} rows", "ids/s", whole(n), peers)
    long, rng = KeyedPermutation(10 * MILLIONS, 1), np.random.default_rng(1)
    compare(
        "seeds.block of 512 from 42 M rows",
        "us",
        per_call(lambda: long[1_000:1_512], unit="us", calls=100),
        {"numpy permutation": per_call(lambda: rng.permutation(len(long))[1_000:1_512], unit="us")},
        rounds=3,
    )
    compare(
        "seeds.generator",
        "us",
        per_call(lambda: generator(7, "drop", 17), unit="us", calls=1_000),
        {"numpy default_rng": per_call(lambda: np.random.default_rng([7, 17]), unit="us", calls=1_000)},
    )
    compare("seeds.key", "us", per_call(lambda: key(7, "drop", 17), unit="us", calls=1_000))


if __name__ == "__main__":
    main()
