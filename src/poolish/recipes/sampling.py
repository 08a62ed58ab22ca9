"""Samples of sources: what a dry run reads of an ingredient, and what it estimates from that for all rows.

Whole fragments are read in the order of a hash until there are enough rows, by the pipeline of the bake, so the same
recipe is always explained in the same way. Rows of several files stay apart until they become one table, as in a bake.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.types as kinds

from poolish.recipes.cache import key_of
from poolish.recipes.explanation import Estimate, ExplainedLine
from poolish.recipes.fragment_rows import (
    Filter,
    Fragment,
    FragmentRows,
    canonical,
    canonical_table,
    joined,
    no_rows,
    selected_rows,
    workable,
)
from poolish.recipes.pipeline import FragmentPipeline
from poolish.recipes.plan import IngredientState

#: What is read of an ingredient: whole fragments up to this many rows or bytes.
READ_ROWS, READ_BYTES, READ_FRAGMENTS = 262_144, 64 << 20, 256


@dataclass
class SampleScan:
    """What was read of a source: rows that passed the filter, a piece for each fragment, of how many."""

    pieces: list[FragmentRows]
    n_read: int
    seconds: float
    total: Estimate
    is_all: bool
    is_certain: bool = True  #: whether a bake reads these very rows: those of a nested recipe may be others

    @property
    def n_passed(self) -> int:
        """How many rows passed."""
        return sum(map(len, self.pieces))

    def available(self, where: Filter | None) -> Estimate:
        """Rows that pass the filter."""
        if where is None:
            return self.total
        if self.is_all:
            return Estimate(self.n_passed, True)
        return Estimate(self.n_passed / max(1, self.n_read) * self.total.value, False)


def scanned(pipeline: FragmentPipeline, fragments: Sequence[Fragment], seed: int) -> SampleScan:
    """Read fragments in the order of a hash until there is enough to tell."""
    names = [key_of("explain", seed, each.name, each.number) for each in fragments]
    pieces: dict[int, FragmentRows] = {}
    n_read = n_bytes = n_fragments = 0
    started = time.perf_counter()
    is_all = True
    for place in sorted(range(len(fragments)), key=names.__getitem__):
        if n_read >= READ_ROWS or n_bytes >= READ_BYTES or n_fragments >= READ_FRAGMENTS:
            is_all = False
            break
        fragment, n_here = fragments[place], 0
        here: list[FragmentRows] = []
        n_fragments += 1
        for table, rows in pipeline.source.read(fragment, None, pipeline.where):
            if n_bytes >= READ_BYTES:
                # Rows before these were read, or left out because the filter cannot hold for them.
                n_here = int(rows[0]) - fragment.place.get("first", 0)
                is_all = False
                break
            n_here, n_bytes = n_here + len(rows), n_bytes + table.nbytes
            piece = FragmentRows.read(pipeline.ingredient, fragment.name, workable(table), rows)
            here.append(canonical(pipeline.choose(piece, fragment, Counter(), [])))
        else:
            n_here = n_here if fragment.n_rows is None else fragment.n_rows
        n_read += n_here
        if here:
            pieces[place] = joined(here)
    seconds = time.perf_counter() - started
    # As the bake has them: what the first file says about columns is what the others are compared with.
    in_order = [pieces[place] for place in sorted(pieces)]
    return SampleScan(in_order, n_read, seconds, _total(fragments, n_read, n_fragments, is_all), is_all)


def _total(fragments: Sequence[Fragment], n_read: int, n_fragments: int, is_all: bool) -> Estimate:
    known = [fragment.n_rows for fragment in fragments if fragment.n_rows is not None]
    if len(known) == len(fragments):
        return Estimate(sum(known), True)
    return Estimate(n_read * len(fragments) / max(1, n_fragments), is_all)


def smallest(
    pieces: list[FragmentRows], hashes: list[Any], n_rows: int, pipeline: FragmentPipeline
) -> list[FragmentRows]:
    """The rows with the smallest hashes, in their order; files stay apart, because their types may differ."""
    if not pieces:
        table = canonical_table(no_rows(pipeline.source.schema()))
        return [FragmentRows.read(pipeline.ingredient, "", table, np.empty(0, np.int64))]
    together = np.concatenate(hashes)
    if n_rows < len(together):
        cut = np.partition(together, n_rows)[n_rows]
        pieces = [piece.keep(own < cut) for piece, own in zip(pieces, hashes, strict=True)]
    return [piece for piece in pieces if len(piece)] or pieces[:1]


def border_of(asked: int, scan: SampleScan, available: Estimate, hashes: list[Any]) -> int:
    """The hash below which a count of rows is: the lowest that is not chosen, or else what it is not likely below."""
    if asked >= available.value:
        return 2**64
    if scan.is_all:
        return int(np.partition(np.concatenate(hashes), asked)[asked])
    return int(asked / available.value * max(0.0, 1 - 3 / max(1, asked) ** 0.5) * 2**64)


def spread(pieces: list[FragmentRows], n_rows: int) -> list[FragmentRows]:
    """``n_rows`` of the rows, evenly spaced."""
    n_all = sum(map(len, pieces))
    if n_rows >= n_all:
        return pieces
    chosen = np.zeros(n_all, bool)
    chosen[np.linspace(0, n_all - 1, n_rows).astype(np.int64)] = True
    masks = np.split(chosen, np.cumsum([len(piece) for piece in pieces])[:-1])
    return [piece.keep(mask) for piece, mask in zip(pieces, masks, strict=True) if mask.any()]


@dataclass
class SampledState(IngredientState):
    """An ingredient of a dry run: how many rows it has, and a sample of them.

    ``is_whole`` if the sample has all rows of the bake. ``threshold`` is the hash below which rows are selected; None
    if only the bake can tell; ``is_known`` if it is that of the bake and not an estimate.
    """

    rows: Estimate
    is_whole: bool
    line: ExplainedLine
    threshold: int | None = 2**64
    is_known: bool = True
    is_open: bool = True  #: nothing but row-local steps so far, so their results are cached
    work: list[tuple[ExplainedLine, float]] = field(default_factory=list)  #: seconds of each instruction

    @property
    def sample(self) -> list[FragmentRows]:
        """Rows to try steps on."""
        return self.pieces or []

    @property
    def n_sampled(self) -> int:
        """How many rows there are to try steps on."""
        return sum(map(len, self.sample))

    def sized(self) -> Estimate:
        """Bytes of all rows; never exact, because Arrow keeps the same rows in more or fewer bytes."""
        return self._scaled(sum(piece.table.nbytes for piece in self.sample))

    def tokens(self, column: str | None) -> Estimate | None:
        """The sum of a column of counts, where there is one."""
        counted = None if column is None else counted_tokens(self.sample, column)
        return None if counted is None else self._counted(counted)

    def selected(self, where: Filter | None) -> Estimate:
        """How many rows a step's filter selects."""
        if where is None:
            return self.rows
        return self._counted(sum(int(np.count_nonzero(selected_rows(piece, where))) for piece in self.sample))

    def _counted(self, n_of_sample: int) -> Estimate:
        return Estimate(n_of_sample, True) if self.is_whole else self._scaled(n_of_sample)

    def _scaled(self, n_of_sample: int) -> Estimate:
        return Estimate(n_of_sample / max(1, self.n_sampled) * self.rows.value, False)

    def became(self, made: list[FragmentRows], n_before: int, *, is_all: bool, keeps_rows: bool = False) -> None:
        """Go on with the result of a step on ``n_before`` rows; these were all rows if ``is_all``."""
        n_after = sum(map(len, made))
        if is_all:
            self.rows = Estimate(n_after, True)
        elif not (keeps_rows and n_after == n_before):
            share = n_after / n_before if n_before else 1.0
            self.rows = replace(self.rows, value=self.rows.value * share, is_exact=False)
        self.is_whole = is_all
        self.pieces = [canonical(piece) for piece in made]


def counted_tokens(pieces: Sequence[FragmentRows], column: str) -> int | None:
    """What a column of counts adds up to; None where not all rows have one."""
    columns = [piece.table.column(column) for piece in pieces if column in piece.table.column_names]
    if len(columns) < len(pieces) or not all(kinds.is_integer(each.type) or not len(each) for each in columns):
        return None
    return sum(pc.sum(each).as_py() or 0 for each in columns if len(each))
