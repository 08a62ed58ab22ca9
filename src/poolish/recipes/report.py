"""What a bake did: what each instruction was asked and did, what was rejected, and what the rows look like.

    asked --select--> selected --steps, guard: rows added or removed, by each--> rows in the result = achieved

Distributions are computed on first access, from a sample if there are many rows, so that baking does not pay for them.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from poolish import html
from poolish.concurrency import cached_property
from poolish.files import checksum_hex
from poolish.guards import ColumnProfile, Profile
from poolish.guards.stats.drawing import bars_of, draw, figure
from poolish.printable import counted, printable
from poolish.recipes.baking import BakeOutcome, InstructionStats
from poolish.recipes.description import RecipeDescription
from poolish.recipes.differences import Difference, cause, is_other_order, matched, n_changed, recipe_difference
from poolish.recipes.fragment_rows import row_hashes
from poolish.recipes.lineage import BakedRows, Lineage
from poolish.rows import DatasetBuffer

#: Rows of an ingredient that its distributions are made of.
PROFILED_ROWS = 100_000
#: Values of a column and reasons of rejects that are shown.
N_VALUES, N_REASONS = 8, 50
#: Reasons shown where the whole report is a few lines.
_SHOWN_REASONS = 5


@dataclass(frozen=True)
class Report:
    """What each instruction was asked for and did.

    ``ingredients`` say what the result contains of each, beside what was asked and what every step removed.
    ``shares`` are the rows of each ingredient in the result, ``reasons`` the rejected rows by step and reason,
    ``contents`` a fingerprint of what each source held.
    """

    recipe: str
    fingerprint: str
    lines: tuple[InstructionStats, ...]
    n_rows: int
    n_rejected: int
    seconds: float
    ingredients: tuple[IngredientResult, ...]
    shares: dict[str, int]
    reasons: tuple[Reason, ...]
    contents: dict[str, str] = field(repr=False)
    description: RecipeDescription = field(repr=False)
    rows: BakedRows = field(repr=False, compare=False)

    @cached_property
    def distributions(self) -> dict[str, Profile]:
        """What the rows of each ingredient look like at the end; of a sample by hash where there are many."""
        return {name: Profile.of(table) for name, table in _samples(self.rows).items() if table.num_columns}

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values; what is no finite number is None."""
        distributions = {
            name: {"of_rows": min(self.shares[name], PROFILED_ROWS), "columns": _shapes(profile)}
            for name, profile in self.distributions.items()
        }
        return {
            "recipe": self.recipe,
            "fingerprint": self.fingerprint,
            "n_rows": self.n_rows,
            "n_rejected": self.n_rejected,
            "seconds": self.seconds,
            "shares": dict(self.shares),
            "ingredients": [asdict(each) for each in self.ingredients],
            "lines": [self._line(line) for line in self.lines],
            "reasons": [asdict(reason) for reason in self.reasons],
            "distributions": distributions,
        }

    def to_json(self) -> str:
        """As text that other programs read."""
        return json.dumps(_finite(self.to_dict()), indent=2, allow_nan=False, ensure_ascii=False)

    def __str__(self) -> str:
        head = f"{self.recipe}: {counted(self.n_rows, 'row')} in {self.seconds:.2f} s, {self.n_rejected:,} rejected"
        reasons = [f"  rejected {each.rows:,} by {each.step}: {each.reason}" for each in self.reasons[:_SHOWN_REASONS]]
        if len(self.reasons) > _SHOWN_REASONS:
            n_rest = sum(each.rows for each in self.reasons[_SHOWN_REASONS:])
            reasons.append(f"  rejected {n_rest:,} for other reasons: see report.reasons")
        results = {each.name: each for each in self.ingredients}
        lines = [f"  {_line_text(line, results.get(line.name))}" for line in self.lines]
        return "\n".join(map(printable, [head, *lines, *reasons]))

    def _line(self, line: InstructionStats) -> dict[str, Any]:
        found = next((each for each in self.ingredients if (line.kind, line.name) == ("ingredient", each.name)), None)
        return {**asdict(line), "achieved": None if found is None else found.achieved}

    def to_html(self) -> str:
        """As a page that needs nothing from elsewhere and runs nothing."""
        return html.page(self.recipe, self._body())

    def _repr_html_(self) -> str:
        return str(html.element("div", self._body()))

    def _body(self) -> html.Html:
        text = f"{counted(self.n_rows, 'row')} in {self.seconds:.2f} s, {self.n_rejected:,} rejected"
        parts = [html.element("h1", self.recipe), html.element("p", text)]
        parts += [html.element("h2", "Asked and achieved"), _ingredients_table(self.ingredients, self.lines)]
        if len(self.shares) > 1:
            title = html.element("h2", "Rows of each ingredient in the result")
            parts += [title, html.bar_chart(list(self.shares), list(self.shares.values()))]
        parts += [html.element("h2", "Instructions"), _lines_table(self.lines)]
        if self.reasons:
            rows = [[each.step, each.reason, each.rows] for each in self.reasons]
            parts += [html.element("h2", "Rejected rows"), html.table(["step", "reason", "rows"], rows)]
        for name, profile in self.distributions.items():
            parts += [html.element("h2", f"Ingredient {name}"), _profile_table(profile, self.shares[name])]
        parts.append(html.element("p", html.element("small", f"recipe {self.fingerprint}")))
        return html.join(*parts)


@dataclass(frozen=True)
class Reason:
    """Why rows were rejected, and how many."""

    step: str
    reason: str
    rows: int


def reasons_of(rejects: Sequence[Mapping[str, Any]]) -> tuple[Reason, ...]:
    """Rejected rows by step and reason, the most frequent first; rare ones together, for there may be one a row.

    >>> reasons_of([{"step": "parse", "reason": "no number"}] * 2)
    (Reason(step='parse', reason='no number', rows=2),)
    """
    counts = Counter((each["step"], each["reason"]) for each in rejects)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    found = [Reason(*key, rows) for key, rows in ordered[:N_REASONS]]
    rest = ordered[N_REASONS:]
    if rest:
        found.append(Reason("", f"{len(rest):,} other reasons", sum(rows for _, rows in rest)))
    return tuple(found)


@dataclass(frozen=True)
class IngredientResult:
    """What the result contains of an ingredient, after all steps, beside what was asked.

    ``unit`` is that of ``asked`` and ``achieved``: "rows", "tokens", or "share" of the rows that passed the filter.
    ``changes`` are the rows that each step, or the guard, added, or below 0 removed: ``selected`` and all of them
    together are ``rows``. ``achieved`` is None where nothing was asked, and where no column counts tokens any more.
    """

    name: str
    asked: int | float | None
    unit: str
    selected: int
    changes: dict[str, int]
    rows: int
    achieved: int | float | None

    @classmethod
    def of(cls, line: InstructionStats, n_rows: int, n_tokens: int | None) -> IngredientResult:
        """The account of one ingredient, with its rows and tokens in the result."""
        unit = "tokens" if line.tokens is not None else "share" if isinstance(line.asked, float) else "rows"
        share = n_rows / max(1, line.rows_in - line.filtered)
        achieved = {"rows": n_rows, "tokens": n_tokens, "share": share}[unit]
        found = None if line.asked is None else achieved
        return cls(line.name, line.asked, unit, line.rows_out, dict(line.changes), n_rows, found)


def ingredient_results(
    rows: BakedRows, lines: Sequence[InstructionStats], tokens: str | None
) -> tuple[IngredientResult, ...]:
    """What the rows of a result contain of each ingredient; ``tokens`` is the column that counts them."""
    shares, n_tokens = rows.shares(), _tokens_of(rows, tokens)
    return tuple(IngredientResult.of(line, shares[line.name], n_tokens.get(line.name)) for line in lines)


def _tokens_of(rows: BakedRows, name: str | None) -> dict[str, int]:
    """The tokens of each ingredient; empty where no column of whole numbers counts them at the end."""
    if name not in rows.table.column_names or not pa.types.is_integer(rows.table.schema.field(name).type):
        return {}
    counts = np.asarray(rows.table.column(name).fill_null(0).to_numpy(), np.int64)
    sums = np.zeros(len(rows.ingredient_names), np.int64)
    np.add.at(sums, rows.ingredients, counts)
    return dict(zip(rows.ingredient_names, sums.tolist(), strict=True))


def _line_text(line: InstructionStats, result: IngredientResult | None) -> str:
    asked = later = ""
    if line.kind == "ingredient" and result is not None:
        asked = "" if result.asked is None else f", {_asked_text(result)}"
        later = f"; then {_changes_text(result.changes)}: {counted(result.rows, 'row')}" if result.changes else ""
    nulls = f", {line.nulls:,} unknown to the filter" if line.nulls else ""
    cached = f", {line.cached} of {counted(line.fragments, 'fragment')} from the cache" if line.cached else ""
    figures = f"{line.rows_in:,} -> {line.rows_out:,}{asked}{nulls}{cached}, {line.seconds:.2f} s"
    return f"{line.kind} {line.name}: {figures}{later}"


def _asked_text(result: IngredientResult) -> str:
    unit = {"rows": "", "tokens": " tokens", "share": " of the filtered rows"}[result.unit]
    got = "unknown, as no column counts tokens any more" if result.achieved is None else _figure(result.achieved) + unit
    return f"asked {_figure(result.asked)}, achieved {got}"


def _changes_text(changes: Mapping[str, int]) -> str:
    """What each step added or removed.

    >>> _changes_text({"dedup": -1200, "split": 30})
    'dedup -1,200, split +30'
    """
    return ", ".join(f"{step} {n:+,}" for step, n in changes.items())


def _figure(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _lines_table(lines: Sequence[InstructionStats]) -> html.Html:
    headers = ("instruction", "", "rows in", "rows out", "filtered", "unknown", "rejected", "fragments", "cached")
    names = "rows_in", "rows_out", "filtered", "nulls", "rejected", "fragments", "cached"
    rows = []
    for line in lines:
        counts = [_cell(getattr(line, name)) for name in names]
        rows.append([line.kind, html.element("b", line.name), *counts, f"{line.seconds:.2f}"])
    return html.table([*headers, "seconds"], rows)


def _ingredients_table(results: Sequence[IngredientResult], lines: Sequence[InstructionStats]) -> html.Html:
    """From what was asked to what the result contains, with a column for each step that changed a number of rows."""
    names = (line.name for line in lines if line.kind == "step")
    steps = [name for name in names if any(name in each.changes for each in results)]
    n_rows = max(1, sum(each.rows for each in results))
    rows = []
    for each in results:
        changes = [f"{each.changes[step]:+,}" if step in each.changes else None for step in steps]
        figures = [each.selected, *changes, each.rows, f"{100 * each.rows / n_rows:.1f} %"]
        unit = each.unit if each.asked is not None else ""
        name = html.element("b", each.name)
        rows.append([name, _cell(each.asked), unit, _cell(each.achieved), *(_right(value) for value in figures)])
    headers = ["ingredient", "asked", "in", "achieved", "selected", *steps, "rows in the result", "of all"]
    return html.table(headers, rows)


def _right(value: object) -> object:
    return "" if value is None else html.element("div", _figure(value), style="text-align:right;white-space:nowrap")


def _cell(value: Any) -> object:
    """A figure set to the right, with thousands separated."""
    if isinstance(value, (int, float)):
        return html.element("div", _figure(value), style="text-align:right")
    return "" if value is None else value


# What rows look like ------------------------------------------------------------------------------------------------


def _samples(rows: BakedRows) -> dict[str, pa.Table]:
    """At most ``PROFILED_ROWS`` rows of each ingredient: those with the smallest hashes of their places."""
    found = {}
    for i, name in enumerate(rows.ingredient_names):
        mine = np.flatnonzero(rows.ingredients == i)
        if len(mine) > PROFILED_ROWS:
            hashes = row_hashes(0, "profile", name, "", mine)
            mine = np.sort(mine[np.argpartition(hashes, PROFILED_ROWS)[:PROFILED_ROWS]])
        found[name] = rows.table if len(mine) == rows.table.num_rows else rows.table.take(pa.array(mine))
    return found


def _shapes(profile: Profile) -> dict[str, Any]:
    return {name: _shape(column) for name, column in profile.items()}


def _shape(column: ColumnProfile) -> dict[str, Any]:
    """A column in a few figures: of numbers their range, of text its lengths, and of both what comes most."""
    found: dict[str, Any] = {"kind": column.kind, "rows": column.count, "nulls": column.nulls, "nan": column.nan}
    if column.is_numeric and column.moments.n:
        found |= _numbers(column)
    if column.lengths is not None and column.lengths.moments.n:
        found["lengths"] = _numbers(column.lengths)
    if column.kind in ("text", "bool") and column.categories:
        found["most_frequent"] = _most(column)
    return found


def _numbers(column: ColumnProfile) -> dict[str, Any]:
    figures = {"min": column.min, "mean": column.mean, "max": column.max, "std": column.std}
    bars = bars_of(column)
    return figures if bars is None else {**figures, "histogram": bars.to_json()}


def _most(column: ColumnProfile) -> list[list[Any]]:
    ordered = sorted((column.categories or {}).items(), key=lambda item: (-item[1], str(item[0])))
    return [[value, n] for value, n in ordered[:N_VALUES]]


def _profile_table(profile: Profile, n_rows: int) -> html.Html:
    is_sample = n_rows > PROFILED_ROWS
    sampled = f"; figures with a ~ are estimates from {PROFILED_ROWS:,} of them" if is_sample else ""
    headers = ["column", "kind", "nulls", "min", "mean", "max", "", "most frequent"]
    times = n_rows / PROFILED_ROWS if is_sample else None
    rows = [[html.element("b", name), *_cells(column, times)] for name, column in profile.items()]
    return html.table(headers, rows, caption=f"{counted(n_rows, 'row')}{sampled}")


def _cells(column: ColumnProfile, times: float | None) -> list[object]:
    """The figures of a column; those of a sample stand for ``times`` as many rows, about."""
    is_length = not (column.is_numeric and column.moments.n) and column.lengths is not None
    measured = column.lengths if is_length else column
    figures: list[object] = ["", "", ""]
    drawing: object = ""
    if measured is not None and measured.moments.n:
        values = (measured.min, measured.mean, measured.max)
        figures = [figure(each, is_exact=times is None, digits=4) for each in values]
        drawing = draw(measured, width=160, height=44, is_sample=times is not None)
    words = [] if column.kind not in ("text", "bool") else _most(column)
    shown = [f"{_clipped(value)}: {_scaled(n, times)}" for value, n in words[:4] if n > 1]
    most = html.join(*(html.element("div", each, style="white-space:nowrap") for each in shown))
    kind = f"{column.kind}, lengths" if is_length else column.kind
    return [kind, _right(_scaled(column.nulls, times)), *map(_right, figures), drawing, most]


def _scaled(n: int, times: float | None) -> str:
    """A number of rows; one of a sample as an estimate for all."""
    return figure(n) if times is None else figure(round(n * times), is_exact=False)


def _clipped(value: object) -> str:
    text = str(value)
    return text if len(text) <= 28 else f"{text[:27]}…"


def _plain(number: Any) -> Any:
    return number.item() if isinstance(number, np.generic) else number


def _finite(value: Any) -> Any:
    """The same values without any that JSON has no word for."""
    value = _plain(value)
    if isinstance(value, dict):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (int, str, bool, type(None))) else str(value)


# The result of a bake -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BakeResult:
    """The baked rows, the report, what was rejected and where rows came from."""

    buffer: DatasetBuffer
    report: Report
    rejects: pa.Table
    lineage: Lineage
    table: pa.Table

    @classmethod
    def of(cls, outcome: BakeOutcome, recipe: str, description: RecipeDescription, seconds: float) -> BakeResult:
        """The result of a bake with its report and lineage."""
        rows, states = outcome.rows, outcome.ingredients
        ingredients = ingredient_results(rows, [state.line for state in states], outcome.tokens)
        report = Report(
            recipe,
            # Only a cache needs functions to have fingerprints.
            "" if description.unknown else description.digest,
            outcome.lines,
            len(rows),
            len(outcome.rejects),
            seconds,
            ingredients,
            rows.shares(),
            reasons_of(outcome.rejects),
            {state.name: checksum_hex(*(each.fingerprint.encode() for each in state.fragments)) for state in states},
            description,
            rows,
        )
        lineage = Lineage(rows, outcome.step_names, [state.pipeline.source for state in states])
        return cls(outcome.buffer, report, rejects_table(outcome.rejects), lineage, rows.table)

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
        recipe = recipe_difference(self.report.description, previous.report.description)
        now, before = self.report.contents, previous.report.contents
        # A source that is another one holds something else, of course: that is the recipe's doing.
        moved = {name for name, changes in recipe.changed.items() if "source" in changes}
        same = [name for name in now if name in before and f"ingredient {name}" not in moved]
        sources = tuple(name for name in same if now[name] != before[name])
        because = cause(added + removed + changed + is_reordered, bool(recipe), bool(sources))
        return Difference(added, removed, changed, because, recipe, sources, is_reordered)

    def __repr__(self) -> str:
        report = self.report
        return (
            f"<BakeResult {printable(report.recipe)}: {counted(report.n_rows, 'row')}, {report.n_rejected:,} rejected>"
        )


def rejects_table(rejects: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Rejected rows with where they were, the step and the reason."""
    names = ("ingredient", "file", "row", "step", "reason")
    types = (pa.string(), pa.string(), pa.int64(), pa.string(), pa.string())
    return pa.table(
        {name: pa.array([r[name] for r in rejects], type_) for name, type_ in zip(names, types, strict=True)}
    )
