"""What is looked at of a source to tell what a bake will do: fragments and rows in the order of a hash."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from poolish.recipes.cache import key_of
from poolish.recipes.chain import Chain
from poolish.recipes.explanation import Estimate
from poolish.recipes.filters import filtered
from poolish.recipes.piece import Piece, canonical, canonical_table, joined, workable
from poolish.recipes.sources import Fragment, no_rows

#: What is read of an ingredient: whole fragments until so many rows, or so many bytes, were looked at.
READ_ROWS, READ_BYTES, READ_FRAGMENTS = 262_144, 64 << 20, 256


@dataclass
class Look:
    """What was read of a source: rows that passed the filter, a piece for each fragment, of how many."""

    pieces: list[Piece]
    n_read: int
    seconds: float
    total: Estimate
    is_all: bool
    is_certain: bool = True  #: whether a bake reads these very rows: those of a nested recipe may be others
    is_in_order: bool = True  #: whether a bake reads them in this order

    @property
    def n_passed(self) -> int:
        """How many rows passed."""
        return sum(map(len, self.pieces))

    def available(self, where: Any) -> Estimate:
        """Rows that pass the filter."""
        if where is None:
            return self.total
        if self.is_all:
            return Estimate(self.n_passed, True)
        return Estimate(self.n_passed / max(1, self.n_read) * self.total.value, False)


def looked(chain: Chain, fragments: Sequence[Fragment], seed: int) -> Look:
    """Read fragments in the order of a hash until there is enough to tell."""
    names = [key_of("explain", seed, each.name, each.number) for each in fragments]
    pieces: dict[int, Piece] = {}
    n_read = n_bytes = n_fragments = 0
    started = time.perf_counter()
    is_all = True
    for place in sorted(range(len(fragments)), key=names.__getitem__):
        if n_read >= READ_ROWS or n_bytes >= READ_BYTES or n_fragments >= READ_FRAGMENTS:
            is_all = False
            break
        fragment, n_here = fragments[place], 0
        here: list[Piece] = []
        n_fragments += 1
        for table, rows in chain.source.read(fragment, None, chain.where):
            if n_bytes >= READ_BYTES:
                # Rows before these were read, or left out because the filter cannot hold for them.
                n_here = int(rows[0]) - fragment.place.get("first", 0)
                is_all = False
                break
            n_here, n_bytes = n_here + len(rows), n_bytes + table.nbytes
            piece = Piece.read(chain.ingredient, fragment.name, workable(table), rows)
            if chain.where is not None:
                piece = piece.keep(filtered(piece, chain.where, chain.on_error, [])[0])
            here.append(canonical(piece))
        else:
            n_here = n_here if fragment.n_rows is None else fragment.n_rows
        n_read += n_here
        if here:
            pieces[place] = joined(here)
    seconds = time.perf_counter() - started
    # As the bake has them: what the first file says about columns is what the others are compared with.
    in_order = [pieces[place] for place in sorted(pieces)]
    return Look(in_order, n_read, seconds, _total(fragments, n_read, n_fragments, is_all), is_all)


def _total(fragments: Sequence[Fragment], n_read: int, n_fragments: int, is_all: bool) -> Estimate:
    known = [fragment.n_rows for fragment in fragments if fragment.n_rows is not None]
    if len(known) == len(fragments):
        return Estimate(sum(known), True)
    return Estimate(n_read * len(fragments) / max(1, n_fragments), is_all)


def smallest(pieces: list[Piece], hashes: list[Any], n_rows: int, chain: Chain) -> list[Piece]:
    """The rows with the smallest hashes, in their order; files stay apart, because their types may differ."""
    if not pieces:
        table = canonical_table(no_rows(chain.source.schema()))
        return [Piece.read(chain.ingredient, "", table, np.empty(0, np.int64))]
    together = np.concatenate(hashes)
    if n_rows < len(together):
        cut = np.partition(together, n_rows)[n_rows]
        pieces = [piece.keep(own < cut) for piece, own in zip(pieces, hashes, strict=True)]
    return [piece for piece in pieces if len(piece)] or pieces[:1]


def border_of(asked: int, look: Look, available: Estimate, hashes: list[Any]) -> int:
    """The hash below which a count of rows is: the lowest that is not chosen, or else what it is not likely below."""
    if asked >= available.value:
        return 2**64
    if look.is_all:
        return int(np.partition(np.concatenate(hashes), asked)[asked])
    return int(asked / available.value * max(0.0, 1 - 3 / max(1, asked) ** 0.5) * 2**64)


def spread(pieces: list[Piece], n_rows: int) -> list[Piece]:
    """So many of the rows, as far from each other as can be."""
    n_all = sum(map(len, pieces))
    if n_rows >= n_all:
        return pieces
    chosen = np.zeros(n_all, bool)
    chosen[np.linspace(0, n_all - 1, n_rows).astype(np.int64)] = True
    masks = np.split(chosen, np.cumsum([len(piece) for piece in pieces])[:-1])
    return [piece.keep(mask) for piece, mask in zip(pieces, masks, strict=True) if mask.any()]
