"""How many rows, and which: fractions and counts by hash, shares of a total, the newest, the best, strata.

Deciding needs of each fragment only what its rows are worth: their hashes, or the column that they are picked by. So a
choice is made in two passes: the first looks at those, here it is decided, the second reads what was chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolish.errors import RecipeError
from poolish.recipes.identity import Int64, Words

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Candidates:
    """Rows of one fragment that passed the filter: their numbers, hashes, and whatever they are picked by."""

    rows: Int64
    hashes: Words
    values: Any = None
    tokens: Int64 | None = None

    def __len__(self) -> int:
        return len(self.rows)


def largest_remainder(weights: list[float], total: int) -> list[int]:
    """``total`` shared out by weights in whole numbers, as fairly as whole numbers allow.

    >>> largest_remainder([1, 1, 1], 10)
    [4, 3, 3]
    """
    if any(not weight > 0 or weight == float("inf") for weight in weights):
        raise RecipeError(f"weights must be numbers above 0, got {weights}")
    exact = [total * weight / sum(weights) for weight in weights]
    shares = [int(share) for share in exact]
    by_rest = sorted(range(len(weights)), key=lambda i: (shares[i] - exact[i], i))
    for i in by_rest[: total - sum(shares)]:
        shares[i] += 1
    return shares


def smallest(parts: list[Candidates], n_rows: int) -> list[Mask]:
    """The rows with the smallest hashes."""
    return _first(parts, n_rows, [part.hashes for part in parts])


def _first(parts: list[Candidates], n_rows: int, *keys: list[Any]) -> list[Mask]:
    """The first rows by keys, the last of which counts most; ties in the order of the source."""
    lengths = [len(part) for part in parts]
    joined = [np.concatenate(key) if len(key) else np.empty(0) for key in keys]
    if n_rows >= sum(lengths):
        return [np.ones(length, bool) for length in lengths]
    if len(joined) == 1:
        # Partitioning is linear; only rows at the border are looked at in their order.
        border = np.partition(joined[0], n_rows)[n_rows] if n_rows else None
        chosen = np.zeros(len(joined[0]), bool) if border is None else joined[0] < border
        ties = np.flatnonzero(joined[0] == border) if border is not None else np.empty(0, np.int64)
        chosen[ties[: n_rows - int(chosen.sum())]] = True
    else:
        chosen = np.zeros(len(joined[0]), bool)
        chosen[np.lexsort(joined)[:n_rows]] = True
    return np.split(chosen, np.cumsum(lengths)[:-1])


def until_tokens(parts: list[Candidates], n_tokens: int) -> list[Mask]:
    """Rows by hash until they have so many tokens; the last one may go beyond."""
    hashes = np.concatenate([part.hashes for part in parts])
    tokens = np.concatenate([part.tokens for part in parts if part.tokens is not None])
    order = np.argsort(hashes, kind="stable")
    before = np.concatenate([[0], np.cumsum(tokens[order])[:-1]])
    chosen = np.zeros(len(hashes), bool)
    chosen[order[before < n_tokens]] = True
    return np.split(chosen, np.cumsum([len(part) for part in parts])[:-1])


def latest(parts: list[Candidates], n_rows: int) -> list[Mask]:
    """The last rows of the source."""
    place = np.arange(sum(len(part) for part in parts))
    return _first(parts, n_rows, [-place])


def oldest(parts: list[Candidates], n_rows: int) -> list[Mask]:
    """The first rows of the source."""
    place = np.arange(sum(len(part) for part in parts))
    return _first(parts, n_rows, [place])


def top(parts: list[Candidates], n_rows: int) -> list[Mask]:
    """The rows with the largest values; equal ones by hash, and what is no number last."""
    values = [np.where(np.isnan(part.values), -np.inf, part.values) for part in parts]
    return _first(parts, n_rows, [part.hashes for part in parts], [-value for value in values])


def stratified(parts: list[Candidates], n_rows: int) -> list[Mask]:
    """Rows of each value in its proportion, within it by hash."""
    values = np.concatenate([part.values for part in parts])
    hashes = np.concatenate([part.hashes for part in parts])
    _, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    shares = largest_remainder([float(count) for count in counts], min(n_rows, len(values)))
    chosen = np.zeros(len(values), bool)
    for code, share in enumerate(shares):
        rows = np.flatnonzero(codes == code)
        chosen[rows[np.argsort(hashes[rows], kind="stable")[:share]]] = True
    return np.split(chosen, np.cumsum([len(part) for part in parts])[:-1])


PICKS = {"hash": smallest, "latest": latest, "oldest": oldest, "top": top, "stratified": stratified}
