"""What a bake gives: the rows, what happened to them, and where each came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from poolish.printable import printable
from poolish.recipes.differences import Difference, cause, is_other_order, matched, n_changed, recipe_difference
from poolish.recipes.lineage import Lineage
from poolish.recipes.report import Report
from poolish.rows import DatasetBuffer


@dataclass(frozen=True)
class BakeResult:
    """The baked rows, the report, what was rejected and where rows came from."""

    buffer: DatasetBuffer
    report: Report
    rejects: pa.Table
    lineage: Lineage
    table: pa.Table

    def diff(self, previous: BakeResult) -> Difference:
        """Rows that came, went or changed since another bake, and whether the recipe or the data is the cause.

        >>> from poolish import DatasetRecipe
        >>> rows = pa.table({"stars": [1, 2, 3]})
        >>> before = DatasetRecipe("breads").add_ingredient("rye", rows).bake()
        >>> print(DatasetRecipe("breads").add_ingredient("rye", rows, where="stars > 1").bake().diff(before))
        0 rows added, 1 removed, 0 changed; cause: recipe
          changed  ingredient rye: filter none -> stars > 1
        """
        mine, theirs = matched(self.lineage.rows, previous.lineage.rows)
        added, removed = len(self.lineage) - len(mine), len(previous.lineage) - len(theirs)
        changed = n_changed(self.table, previous.table, mine, theirs)
        is_reordered = is_other_order(mine, theirs)
        recipe = recipe_difference(self.report.told, previous.report.told)
        now, before = self.report.contents, previous.report.contents
        # A source that is another one holds something else, of course: that is the recipe's doing.
        moved = {name for name, changes in recipe.changed.items() if "source" in changes}
        same = [name for name in now if name in before and f"ingredient {name}" not in moved]
        sources = tuple(name for name in same if now[name] != before[name])
        because = cause(added + removed + changed + is_reordered, bool(recipe), bool(sources))
        return Difference(added, removed, changed, because, recipe, sources, is_reordered)

    def __repr__(self) -> str:
        report = self.report
        return f"<BakeResult {printable(report.recipe)}: {report.n_rows:,} rows, {report.n_rejected:,} rejected>"


def rejects_table(rejects: list[dict[str, Any]]) -> pa.Table:
    """Rejected rows with where they were, the step and the reason."""
    names = ("ingredient", "file", "row", "step", "reason")
    types = (pa.string(), pa.string(), pa.int64(), pa.string(), pa.string())
    return pa.table(
        {name: pa.array([r[name] for r in rejects], type_) for name, type_ in zip(names, types, strict=True)}
    )
