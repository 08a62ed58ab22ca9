"""Which row is this? The same answer today and tomorrow, whatever else is in the dataset.

A row is named by its ingredient, the part of the source it came from (a path, relative to the source's root; nothing
for a buffer or a table) and its number there (row of the file, id in the buffer, step of the stream). Everything random
about a row is a hash of the seed and that name, so it does not depend on workers, on order or on what comes later.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from poolish import seeds

Int64 = NDArray[np.int64]
Words = NDArray[np.uint64]


def row_hashes(seed: int, use: str, ingredient: str, name: str, rows: Int64) -> Words:
    """A 64-bit number for each row of one part, spread evenly.

    >>> row_hashes(7, "pick", "web", "a.parquet", np.array([0, 1]))
    array([18446207444110842907,  2109248830805930466], dtype=uint64)
    """
    return mixed(rows.astype(np.uint64) + np.uint64(seeds.key(seed, "recipes", use, ingredient, name)))


def mixed(words: Words) -> Words:
    """Each word as another one that depends on all of its bits."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    hashed: Words = words ^ (words >> np.uint64(31))
    return hashed


def part_numbers(subs: Int64, use: str, numbers: Int64) -> Int64:
    """What tells apart rows that came of one row: the first keeps its name, the others get one of their own.

    ``numbers`` count the rows that one row became. The names depend on the row alone, not on what is baked with it.

    >>> part_numbers(np.array([0, 0, 0]), "split", np.array([0, 1, 2])).tolist()
    [0, 5071542493215320990, 4991020674228712865]
    """
    if not numbers.any():
        return subs
    words = mixed(subs.astype(np.uint64) ^ np.uint64(seeds.key(0, "recipes", "part", use)))
    named = (mixed(words + numbers.astype(np.uint64)) >> np.uint64(1)).astype(np.int64)
    found: Int64 = np.where(numbers == 0, subs, named)
    return found


def threshold_of(fraction: float) -> int:
    """Rows whose hash is below this are the fraction; of a larger one they are a part.

    >>> threshold_of(1.0) == 2**64, threshold_of(0.1) < threshold_of(0.2)
    (True, True)
    """
    return int(fraction * 2**64)


def below(hashes: Words, threshold: int) -> NDArray[np.bool_]:
    """Which hashes lie below a threshold of up to 2**64."""
    if threshold >= 2**64:
        return np.ones(len(hashes), bool)
    chosen: NDArray[np.bool_] = hashes < np.uint64(threshold)
    return chosen
