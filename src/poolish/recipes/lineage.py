"""Where rows came from: for each row of a bake its ingredient, the part of the source, its number there, its steps.

It is five numbers a row, so it is always there. A row of a nested recipe is followed down to where that one took it.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from poolish.concurrency import cached_property
from poolish.printable import printable
from poolish.recipes.baked_rows import Rows
from poolish.recipes.identity import Int64
from poolish.recipes.sources import Source
from poolish.recipes.sources.nested import RecipeSource, identity_numbers


@dataclass(frozen=True)
class Why:
    """Where one row came from.

    ``row`` is its number in the file, the id in the buffer, the step of the stream, or the row of a nested recipe's
    result, which ``inner`` explains. ``part`` tells apart rows that one row became.
    """

    ingredient: str
    source: str
    file: str
    row: int
    part: int
    steps: tuple[str, ...]
    inner: Why | None = None

    def __str__(self) -> str:
        steps = f"prepared by {', '.join(self.steps)}" if self.steps else "as it was"
        here = printable(f"{self.ingredient}: {self.file or self.source}, row {self.row}; {steps}")
        return here if self.inner is None else f"{here}\n  from {self.inner}"


class Lineage:
    """Where the rows of a bake came from.

    >>> from poolish import DatasetRecipe
    >>> recipe = DatasetRecipe("breads").add_ingredient("rye", [{"stars": 3}, {"stars": 5}], where="stars > 4")
    >>> print(recipe.prepare_step("double", "map", columns={"stars": "stars * 2"}).bake().lineage.why(0))
    rye: buffer of 2 rows, row 1; prepared by double
    """

    def __init__(self, rows: Rows, step_names: Sequence[str], sources: Sequence[Source]) -> None:
        self.rows, self.step_names = rows, list(step_names)
        self._sources = list(sources)
        # Told now: a buffer may have grown by the time that somebody asks.
        self._told = [source.describe() for source in sources]

    def __len__(self) -> int:
        return len(self.rows)

    def why(self, row: int) -> Why:
        """The ingredient, the file or buffer, the row there, and the steps that were applied."""
        i = operator.index(row)
        if not 0 <= i < len(self):
            raise IndexError(f"row {i} of a bake of {len(self):,} rows; they are counted from 0")
        told, bits, kind = self.rows, int(self.rows.steps[i]), int(self.rows.ingredients[i])
        steps = tuple(name for bit, name in enumerate(self.step_names) if bits >> bit & 1)
        number, inner = int(told.rows[i]), None
        if kind in self._nested:
            number = int(self._nested[kind].places_of(np.array([number]))[0])
            inner = self._nested[kind].lineage.why(number)
        file = told.part_names[int(told.names[i])]
        return Why(told.ingredient_names[kind], self._told[kind], file, number, int(told.subs[i]), steps, inner)

    @cached_property
    def _nested(self) -> dict[int, Nested]:
        sources = enumerate(self._sources)
        return {i: Nested(source.lineage) for i, source in sources if isinstance(source, RecipeSource)}

    def identities(self) -> Int64:
        """A number for each row that depends on what it is alone, not on what else was baked."""
        told = self.rows
        parts = (told.ingredient_names, told.part_names, told.ingredients, told.names, told.rows, told.subs)
        return identity_numbers(*parts)

    def to_arrow(self) -> pa.Table:
        """One line a row: ingredient, file, row, part, and the steps that were applied.

        The row of a nested recipe is that of its result, as ``why`` tells it.
        """
        told, rows = self.rows, self.rows.rows
        for kind, nested in self._nested.items():
            mine = np.flatnonzero(told.ingredients == kind)
            rows = rows.copy()
            rows[mine] = nested.places_of(rows[mine])
        return pa.table(
            {
                "ingredient": _named(told.ingredient_names, told.ingredients),
                "file": _named(told.part_names, told.names),
                "row": rows,
                "part": told.subs,
                "steps": _steps(told.steps, self.step_names),
            }
        )


class Nested:
    """The lineage of a nested recipe, found by the numbers that its rows have outside."""

    def __init__(self, lineage: Lineage) -> None:
        self.lineage = lineage
        numbers = lineage.identities()
        self._order = np.argsort(numbers, kind="stable")
        self._numbers = numbers[self._order]

    def places_of(self, numbers: Int64) -> Int64:
        """The rows of the inner result."""
        found: Int64 = self._order[np.searchsorted(self._numbers, numbers)]
        return found


def _named(names: list[str], numbers: Int64) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int64()), pa.array(names, pa.string())).cast(pa.string())


def _steps(bits: Int64, names: list[str]) -> pa.Array:
    """The names of steps for each row; few combinations, however many rows there are."""
    kinds, codes = np.unique(bits, return_inverse=True)
    lists = [[name for i, name in enumerate(names) if int(kind) >> i & 1] for kind in kinds]
    return pa.array(lists, pa.list_(pa.string())).take(pa.array(codes.ravel(), pa.int64()))
