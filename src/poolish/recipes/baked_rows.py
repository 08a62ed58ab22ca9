"""All rows of a bake, in their order, and where each came from.

Most who bake never ask where a row came from, so that is kept as it comes out of the pieces that were baked; numbers
for each row of the result are made of it when somebody does ask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from poolish.concurrency import cached_property
from poolish.errors import SchemaError
from poolish.recipes.identity import Int64
from poolish.recipes.joining import TypesDiffer, joined_tables
from poolish.recipes.piece import Mask, Origin, Piece, canonical_table
from poolish.rows import DatasetBuffer


@dataclass(frozen=True)
class Rows:
    """A table, and for each of its rows the ingredient, the part of the source, the number there, and the steps.

    ``order`` are the places of the rows among those of all ``origins``, where they are not these in their order. Where
    there is a ``mask``, the table still has rows that are not meant.
    """

    table: pa.Table
    origins: Sequence[Origin]
    ingredient_names: list[str]
    order: Int64 | None = None
    mask: Mask | None = None

    @classmethod
    def of(cls, pieces: list[Piece], ingredient_names: list[str], order: Int64 | None) -> Rows:
        """The rows of all pieces behind each other, or in an order; only without one they may have masks."""
        table, mask = one_table(pieces), None
        if order is not None:
            table = table.combine_chunks().take(pa.array(order))  # from many chunks it costs 150 times as much
        elif any(piece.mask is not None for piece in pieces):
            mask = np.concatenate([np.ones(len(each), bool) if each.mask is None else each.mask for each in pieces])
            order = np.flatnonzero(mask)
        return cls(table, [piece.origin for piece in pieces], ingredient_names, order, mask)

    def poured(self, buffer: DatasetBuffer) -> Rows:
        """Append the rows to a buffer that has none; the same rows, as they are now there."""
        if self.table.num_columns and self.mask is not None:
            buffer.append_where(self.table, self.mask)
        elif self.table.num_columns:
            buffer.append(self.table)
        return replace(self, table=buffer.snapshot().to_arrow(), mask=None)

    def __len__(self) -> int:
        return sum(self._lengths) if self.order is None else len(self.order)

    def keep(self, mask: Mask) -> Rows:
        """The rows where ``mask`` is true."""
        order = np.flatnonzero(mask) if self.order is None else self.order[mask]
        return replace(self, table=self.table.filter(pa.array(mask)), order=order)

    @cached_property
    def part_names(self) -> list[str]:
        """The parts of sources that rows came from."""
        return sorted({origin.name for origin in self.origins})

    @cached_property
    def ingredients(self) -> Int64:
        """Which of the ingredients each row is of."""
        number = {name: i for i, name in enumerate(self.ingredient_names)}
        return self._for_each(lambda origin: number[origin.ingredient])

    @cached_property
    def names(self) -> Int64:
        """Which of the parts each row came from."""
        number = {name: i for i, name in enumerate(self.part_names)}
        return self._for_each(lambda origin: number[origin.name])

    @cached_property
    def rows(self) -> Int64:
        """The number of each row in its part."""
        return self._joined([origin.rows for origin in self.origins])

    @cached_property
    def subs(self) -> Int64:
        """What tells apart rows that one row became."""
        return self._joined([origin.subs for origin in self.origins])

    @cached_property
    def steps(self) -> Int64:
        """A bit for each step that was applied."""
        return self._joined([origin.steps for origin in self.origins])

    def shares(self) -> dict[str, int]:
        """How many rows of each ingredient there are."""
        if self.order is None:
            counts = dict.fromkeys(self.ingredient_names, 0)
            for origin, n_rows in zip(self.origins, self._lengths, strict=True):
                counts[origin.ingredient] += n_rows
            return counts
        numbers = np.bincount(self.ingredients, minlength=len(self.ingredient_names)).tolist()
        return dict(zip(self.ingredient_names, numbers, strict=True))

    @property
    def _lengths(self) -> list[int]:
        return [len(origin.rows) for origin in self.origins]

    def _for_each(self, number: Callable[[Origin], int]) -> Int64:
        """A number of each origin, for all of its rows."""
        numbers = np.array([number(origin) for origin in self.origins], np.int64)
        return self._in_order(np.repeat(numbers, self._lengths))

    def _joined(self, arrays: list[Int64]) -> Int64:
        return self._in_order(np.concatenate(arrays) if arrays else np.empty(0, np.int64))

    def _in_order(self, numbers: Int64) -> Int64:
        return numbers if self.order is None else numbers[self.order]


def one_table(pieces: list[Piece]) -> pa.Table:
    """The rows of all pieces behind each other; a SchemaError says which ingredient does not fit to the first."""
    if not pieces:
        return pa.table({})
    tables = []
    first: tuple[str, pa.Schema] | None = None
    filled = [piece for piece in pieces if len(piece)] or pieces[:1]
    for piece in filled:
        table = canonical_table(piece.table)
        if first is None:
            first = piece.ingredient, table.schema
        elif set(table.column_names) != set(first[1].names):
            where = f", {piece.name}," if piece.name else ""
            raise SchemaError(
                f"ingredient {piece.ingredient!r}{where} has columns {table.column_names}, {first[0]!r} has "
                f"{first[1].names}; select, rename or drop until they are the same, or return the same columns for "
                "all rows from a function: row.get(...) where one may be missing"
            )
        tables.append(table.select(first[1].names))
    try:
        return joined_tables(tables)
    except TypesDiffer as both:
        where = f", {filled[both.place].name}" if filled[both.place].name else ""
        raise SchemaError(
            f"ingredient {filled[both.place].ingredient!r}{where}, column {both.name!r}: {both.other}, where "
            f"{filled[0].ingredient!r} has {both.known}; cast one of them"
        ) from None
