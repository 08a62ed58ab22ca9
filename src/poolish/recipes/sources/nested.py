"""A recipe as an ingredient of another: it is baked first, and its rows keep the names that they had there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from poolish.content import content_of
from poolish.recipes.cache import Cache
from poolish.recipes.engine import Engine
from poolish.recipes.identity import Int64, row_hashes
from poolish.recipes.sources.source import FRAGMENT_ROWS, Fragment, selected


class RecipeSource:
    """The result of another recipe. A row's number is made of what it is in there, so it stays when others come.

    ``lineage``, ``rejects`` and ``report`` are those of the inner bake, once it is done.
    """

    lineage: Any = None
    rejects: pa.Table | None = None
    report: Any = None

    def __init__(self, recipe: Any) -> None:
        self._recipe = recipe
        self._baked: tuple[pa.Table, Int64] | None = None

    def describe(self) -> str:
        """Its name."""
        return f"recipe {self._recipe.name!r}"

    def prepare(self, engine: Engine | str = "local", cache: Cache | None = None, on_error: str = "raise") -> None:
        """Bake the recipe as the outer one is baked: by the same engine, with the same cache and treatment of errors.

        Who reads without preparing gets the defaults.
        """
        if self._baked is not None:
            return
        result = self._recipe.bake(engine=engine, cache=None if cache is None else cache.path, on_error=on_error)
        self.lineage, self.rejects, self.report = result.lineage, result.rejects, result.report
        self._baked = result.buffer.snapshot().to_arrow(), result.lineage.identities()

    def _rows(self) -> tuple[pa.Table, Int64]:
        self.prepare()
        assert self._baked is not None
        return self._baked

    def schema(self) -> pa.Schema:
        """The columns that come out of it."""
        return self._rows()[0].schema

    def fragments(self) -> list[Fragment]:
        """Its rows by ranges."""
        table, numbers = self._rows()
        found = []
        for first in range(0, max(table.num_rows, bool(table.num_columns)), FRAGMENT_ROWS):
            part = table.slice(first, FRAGMENT_ROWS)
            place = {"first": first, "end": first + part.num_rows}
            print_ = content_of(part, numbers[first : first + part.num_rows])
            found.append(Fragment("", first // FRAGMENT_ROWS, part.num_rows, f"{print_}:{first}", place))
        return found

    def read(self, fragment: Fragment, columns: Sequence[str] | None, where: Any) -> Iterator[tuple[pa.Table, Int64]]:
        """One slice."""
        table, numbers = self._rows()
        first, end = fragment.place["first"], fragment.place["end"]
        part = table.slice(first, end - first)
        yield selected(part, columns), numbers[first:end]


def identity_numbers(
    ingredients: list[str], parts: list[str], kinds: Int64, names: Int64, rows: Int64, subs: Int64
) -> Int64:
    """One number for each row that depends on what it is alone."""
    found = np.zeros(len(rows), np.uint64)
    for kind in np.unique(kinds).tolist():
        for name in np.unique(names[kinds == kind]).tolist():
            mine = (kinds == kind) & (names == name)
            own = row_hashes(0, "identity", ingredients[kind], parts[name], rows[mine])
            found[mine] = own ^ row_hashes(0, "identity of a part", "", "", subs[mine])
    numbers: Int64 = (found >> np.uint64(1)).astype(np.int64)
    return numbers
