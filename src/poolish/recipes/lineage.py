"""Where rows came from: for each row of a bake its ingredient, the part of the source, its number there, its steps.

It is five numbers a row, so it is always there. A row of a nested recipe is followed down to where that one took it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from poolish.concurrency import cached_property
from poolish.printable import printable
from poolish.recipes.fragment_rows import FragmentRows, Int64, Mask, Origin, one_table, row_hashes
from poolish.recipes.sources import Source
from poolish.recipes.sources.source import RecipeSource
from poolish.rows import DatasetBuffer


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

    def __init__(self, rows: BakedRows, step_names: Sequence[str], sources: Sequence[Source]) -> None:
        self.rows, self.step_names = rows, list(step_names)
        self._sources = list(sources)

    def __len__(self) -> int:
        return len(self.rows)

    def why(self, row: int) -> Why:
        """The ingredient, the file or buffer, the row there, and the steps that were applied."""
        i = operator.index(row)
        if not 0 <= i < len(self):
            raise IndexError(f"row {i} of a bake of {len(self):,} rows; they are counted from 0")
        baked, bits, kind = self.rows, int(self.rows.steps[i]), int(self.rows.ingredients[i])
        steps = tuple(name for bit, name in enumerate(self.step_names) if bits >> bit & 1)
        number, inner = int(baked.rows[i]), None
        if kind in self._nested:
            number = int(self._nested[kind].places_of(np.array([number]))[0])
            inner = self._nested[kind].lineage.why(number)
        file = baked.part_names[int(baked.names[i])]
        return Why(
            baked.ingredient_names[kind], self._sources[kind].describe(), file, number, int(baked.subs[i]), steps, inner
        )

    @cached_property
    def _nested(self) -> dict[int, Nested]:
        sources = enumerate(self._sources)
        return {i: Nested(source.lineage) for i, source in sources if isinstance(source, RecipeSource)}

    def identities(self) -> Int64:
        """A number for each row that depends on what it is alone, not on what else was baked."""
        return self.rows.identities()

    def to_arrow(self) -> pa.Table:
        """One line a row: ingredient, file, row, part, and the steps that were applied.

        The row of a nested recipe is that of its result, as ``why`` tells it.
        """
        baked, numbers = self.rows, self.rows.rows
        for kind, nested in self._nested.items():
            mine = np.flatnonzero(baked.ingredients == kind)
            numbers = numbers.copy()
            numbers[mine] = nested.places_of(numbers[mine])
        return pa.table(
            {
                "ingredient": _named(baked.ingredient_names, baked.ingredients),
                "file": _named(baked.part_names, baked.names),
                "row": numbers,
                "part": baked.subs,
                "steps": _steps(baked.steps, self.step_names),
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


# The rows of a bake -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BakedRows:
    """A table, and for each of its rows the ingredient, the part of the source, the number there, and the steps.

    ``order`` are the places of the rows among those of all ``origins``, where they are not these in their order. Where
    there is a ``mask``, the table still has rows that it leaves out.
    """

    table: pa.Table
    origins: Sequence[Origin]
    ingredient_names: list[str]
    order: Int64 | None = None
    mask: Mask | None = None

    @classmethod
    def of(cls, pieces: list[FragmentRows], ingredient_names: list[str], order: Int64 | None) -> BakedRows:
        """The rows of all pieces behind each other, or in an order; only without one they may have masks."""
        table, mask = one_table(pieces), None
        if order is not None:
            table = table.combine_chunks().take(pa.array(order))  # from many chunks it costs 150 times as much
        elif any(piece.mask is not None for piece in pieces):
            mask = np.concatenate([np.ones(len(each), bool) if each.mask is None else each.mask for each in pieces])
            order = np.flatnonzero(mask)
        return cls(table, [piece.origin for piece in pieces], ingredient_names, order, mask)

    def append_into(self, buffer: DatasetBuffer) -> BakedRows:
        """Append the rows to a buffer that has none; the same rows, as they are now there."""
        if self.table.num_columns and self.mask is not None:
            buffer.append_where(self.table, self.mask)
        elif self.table.num_columns:
            buffer.append(self.table)
        return replace(self, table=buffer.snapshot().to_arrow(), mask=None)

    def __len__(self) -> int:
        return sum(self._lengths) if self.order is None else len(self.order)

    def keep(self, mask: Mask) -> BakedRows:
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

    def identities(self) -> Int64:
        """A number for each row that depends on its origin alone, not on what else was baked."""
        found = np.zeros(len(self), np.uint64)
        for kind, ingredient in enumerate(self.ingredient_names):
            for name in np.unique(self.names[self.ingredients == kind]).tolist():
                mine = (self.ingredients == kind) & (self.names == name)
                own = row_hashes(0, "identity", ingredient, self.part_names[name], self.rows[mine])
                found[mine] = own ^ row_hashes(0, "identity of a part", "", "", self.subs[mine])
        return (found >> np.uint64(1)).astype(np.int64)

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
