"""What a bake gives: the rows, what happened to them, and where each came from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from poolish import html
from poolish.recipes.baking import Line, Rows
from poolish.recipes.identity import Int64
from poolish.recipes.nested import identity_numbers
from poolish.rows import DatasetBuffer


@dataclass(frozen=True)
class Why:
    """Where one row came from."""

    ingredient: str
    file: str
    row: int
    part: int
    steps: tuple[str, ...]

    def __str__(self) -> str:
        where = f"{self.file}, " if self.file else ""
        steps = ", ".join(self.steps) or "nothing"
        return f"{self.ingredient}: {where}row {self.row}; prepared by {steps}"


class Lineage:
    """Where the rows of a bake came from."""

    def __init__(self, rows: Rows, step_names: Sequence[str]) -> None:
        self._rows, self._steps = rows, list(step_names)

    def __len__(self) -> int:
        return len(self._rows.rows)

    def why(self, row: int) -> Why:
        """The ingredient, the file or buffer, the row there, and the steps that were applied."""
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self):,} rows")
        told, bits = self._rows, int(self._rows.steps[row])
        steps = tuple(name for i, name in enumerate(self._steps) if bits >> i & 1)
        ingredient = told.ingredient_names[int(told.ingredients[row])]
        return Why(ingredient, told.part_names[int(told.names[row])], int(told.rows[row]), int(told.subs[row]), steps)

    def identities(self) -> Int64:
        """A number for each row that depends on what it is alone, not on what else was baked."""
        told = self._rows
        parts = (told.ingredient_names, told.part_names, told.ingredients, told.names, told.rows, told.subs)
        return identity_numbers(*parts)

    def to_arrow(self) -> pa.Table:
        """One line a row."""
        told = self._rows
        return pa.table(
            {
                "ingredient": pa.array(np.array(told.ingredient_names, object)[told.ingredients], pa.string()),
                "file": pa.array(np.array(told.part_names, object)[told.names], pa.string()),
                "row": told.rows,
                "part": told.subs,
            }
        )


@dataclass(frozen=True)
class Report:
    """What each instruction was asked for and did."""

    recipe: str
    fingerprint: str
    lines: tuple[Line, ...]
    n_rows: int
    n_rejected: int
    seconds: float
    shares: dict[str, int]

    def to_json(self) -> str:
        """As text that other programs read."""
        return json.dumps({**asdict(self), "lines": [asdict(line) for line in self.lines]}, indent=2)

    def __str__(self) -> str:
        head = f"{self.recipe}: {self.n_rows:,} rows in {self.seconds:.2f} s, {self.n_rejected:,} rejected"
        return "\n".join([head, *(f"  {_told(line)}" for line in self.lines)])

    def to_html(self) -> str:
        """As a table."""
        names = ("name", "kind", "asked", "rows_in", "rows_out", "nulls", "rejected", "fragments", "cached", "seconds")
        rows = [[_shown(getattr(line, name)) for name in names] for line in self.lines]
        return html.table(list(names), rows)

    _repr_html_ = to_html


def _told(line: Line) -> str:
    asked = "" if line.asked is None else f", asked {line.asked:,}"
    cached = f", {line.cached} of {line.fragments} fragments from the cache" if line.cached else ""
    return f"{line.kind} {line.name}: {line.rows_in:,} -> {line.rows_out:,}{asked}{cached}"


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


@dataclass(frozen=True)
class Difference:
    """What changed between two bakes."""

    added: int
    removed: int
    changed: int
    because: str


@dataclass(frozen=True)
class BakeResult:
    """The baked rows, the report, what was rejected and where rows came from."""

    buffer: DatasetBuffer
    report: Report
    rejects: pa.Table
    lineage: Lineage
    table: pa.Table

    def diff(self, previous: BakeResult) -> Difference:
        """Rows that came, went or changed since another bake, and whether the recipe or the data is the cause."""
        mine, theirs = self._contents(), previous._contents()
        added, removed = mine.keys() - theirs.keys(), theirs.keys() - mine.keys()
        changed = sum(mine[key] != theirs[key] for key in mine.keys() & theirs.keys())
        is_same = self.report.fingerprint == previous.report.fingerprint
        nothing = not (added or removed or changed)
        return Difference(len(added), len(removed), changed, "nothing" if nothing else "data" if is_same else "recipe")

    def _contents(self) -> dict[int, str]:
        rows = self.table.to_pylist()
        return {int(key): repr(row) for key, row in zip(self.lineage.identities(), rows, strict=True)}


def rejects_table(rejects: list[dict[str, Any]]) -> pa.Table:
    """Rejected rows with where they were, the step and the reason."""
    names = ("ingredient", "file", "row", "step", "reason")
    types = (pa.string(), pa.string(), pa.int64(), pa.string(), pa.string())
    return pa.table(
        {name: pa.array([r[name] for r in rejects], type_) for name, type_ in zip(names, types, strict=True)}
    )
