"""What a bake will do, before it does it: rows, tokens, bytes and seconds of each instruction, and what is cached.

    footers, buffers ------> how many rows there are                        exact
    fragments, by hash ----> what filter and choice leave of them           exact if all fragments were looked at
    rows, by hash ---------> what steps leave of them                       exact if no row was left out
                             how large they are, how fast that goes         never exact

What is not exact is marked ``~``. Samples are chosen by hash, so the same recipe is always explained in the same way,
and rows of several files stay apart until they become one table, as in the bake. A function of the user's is called
with one row, and with more only if that is quick. Nothing is written: the index that tells why a fragment is not cached
comes from ``last_bake``.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from poolish.errors import PoolishError, RecipeError
from poolish.recipes.baking import quotas_of
from poolish.recipes.cache import Cache, key_of, local_cache
from poolish.recipes.engine import as_engine
from poolish.recipes.explanation import NOTHING, Estimate, ExplainedLine, Explanation, duration_text
from poolish.recipes.filters import as_filter, filtered
from poolish.recipes.fragment_rows import (
    INGREDIENT,
    FragmentRows,
    Mask,
    below,
    canonical,
    canonical_table,
    joined,
    row_hashes,
    selected_rows,
    threshold_of,
    workable,
)
from poolish.recipes.instructions import AddIngredient, PrepareStep, check_not_empty
from poolish.recipes.last_bake import LastBake
from poolish.recipes.lineage import one_table
from poolish.recipes.pipeline import BoundStep, FragmentPipeline, fragments_of, prepared
from poolish.recipes.sources import Fragment, Source, as_source, no_rows
from poolish.recipes.steps.barriers import Dedup, Fitted, Limit, Shuffle
from poolish.recipes.steps.registry import step_of
from poolish.recipes.steps.row_local import RowStep

#: Rows that steps are tried on.
SAMPLED_ROWS = 20_000
#: Rows that a function is tried on after its first one, if they can be expected to take no longer than this.
TRIED_ROWS, STEP_SECONDS = (64, 1_000), 0.5

#: Steps that leave as many rows as they get, of which some may reject rows that they fail for.
_REJECTS_NONE = ("select", "drop", "rename")
_KEEPS_ROWS = (*_REJECTS_NONE, "map", "cast", "fill_nulls", "tokenize")


def explain(recipe: Any, cache: str | os.PathLike[str] | None = None, *, on_error: str = "raise") -> Explanation:
    """What baking this recipe will do; ``cache`` and ``on_error`` as the bake will have them."""
    kitchen = _Kitchen(recipe, cache, on_error)
    kitchen.look()
    return kitchen.explanation()


# Flows --------------------------------------------------------------------------------------------------------------


@dataclass
class _Flow:
    """An ingredient on its way: how many rows, and some of them. ``is_whole`` if those are all of them."""

    name: str
    rows: Estimate
    pieces: list[FragmentRows]
    is_whole: bool
    pipeline: FragmentPipeline
    fragments: Sequence[Fragment]
    line: ExplainedLine
    threshold: int | None = 2**64  #: up to which hash rows are chosen; None if that is not known before the bake
    is_known: bool = True  #: whether the threshold is that of the bake, and not an estimate
    is_in_order: bool = True  #: whether the rows stand as they do in the bake
    is_open: bool = True  #: nothing but row-local steps so far, so what comes out of them is cached
    bound: list[tuple[ExplainedLine, float]] = field(default_factory=list)  #: seconds of each instruction

    @property
    def n_sampled(self) -> int:
        """How many rows there are to try steps on."""
        return sum(map(len, self.pieces))

    def sized(self) -> Estimate:
        """Bytes of all rows; never exact, because Arrow keeps the same rows in more or fewer bytes."""
        n_bytes = sum(piece.table.nbytes for piece in self.pieces)
        return Estimate(n_bytes / max(1, self.n_sampled) * self.rows.value, False)

    def tokens(self, column: str | None) -> Estimate | None:
        """What a column of counts adds up to, where there is one."""
        counted = None if column is None else _counted_tokens(self.pieces, column)
        if counted is None:
            return None
        if self.is_whole:
            return Estimate(counted, True)
        return Estimate(counted / max(1, self.n_sampled) * self.rows.value, False)


class _Kitchen:
    """Follows the instructions with samples."""

    def __init__(self, recipe: Any, cache: str | os.PathLike[str] | None, on_error: str) -> None:
        self._recipe, self._on_error = recipe, on_error
        self._n_workers = getattr(as_engine("local"), "n_workers", 1)
        # A cache is made by the first bake; looking for it does not make it.
        self._cache = Cache(cache) if cache is not None and local_cache(cache).is_dir() else None
        self._has_cache = cache is not None
        self._last = LastBake(self._cache, recipe.name)
        self._flows: list[_Flow] = []
        self._lines: list[ExplainedLine] = []
        self._problems: list[str] = []
        self._is_shuffled = False
        self._n_steps = 0
        self._named: Counter[str] = Counter()

    def look(self) -> None:
        """All instructions, in their order."""
        check_not_empty(self._recipe.name, self._recipe.instructions)
        quotas = quotas_of(self._recipe.instructions, self._recipe.total)
        for instruction in self._recipe.instructions:
            if isinstance(instruction, AddIngredient):
                self._add(instruction, quotas.get(instruction.name))
            else:
                self._prepare(instruction)
        for flow in self._flows:
            self._look_up(flow)

    def explanation(self) -> Explanation:
        """What was found."""
        tokens = [flow.tokens(self._recipe.tokens) for flow in self._flows]
        rows, n_bytes = (reduce(Estimate.__add__, each, NOTHING) for each in zip(*self._sums(), strict=True))
        schema = None
        try:
            schema = self.together().schema if self._flows else None
        except PoolishError as error:
            self._problems.append(f"{error}; {self._end()}")
            rows = replace(rows, is_exact=False)
        seconds = sum(line.seconds for line in self._lines)
        lines, problems = tuple(self._lines), tuple(self._problems)
        return Explanation(self._recipe.name, lines, rows, _together(tokens), n_bytes, seconds, schema, problems)

    def together(self) -> pa.Table:
        """All rows that are left of the samples; a SchemaError where those of the bake cannot be one table either."""
        return one_table([piece for flow in self._flows for piece in flow.pieces])

    def _end(self) -> str:
        return _end_of_bake(is_certain=all(flow.is_whole for flow in self._flows))

    def _sums(self) -> list[tuple[Estimate, Estimate]]:
        return [(flow.rows, flow.sized()) for flow in self._flows] or [(NOTHING, NOTHING)]

    # -- ingredients

    def _add(self, ingredient: AddIngredient, quota: int | None) -> None:
        what = f"ingredient {ingredient.name!r}"
        line = ExplainedLine("ingredient", ingredient.name)
        self._lines.append(line)
        where = as_filter(ingredient.where, what)
        inner = ingredient.source if hasattr(ingredient.source, "instructions") else None
        source: Source = as_source(ingredient.source, what)
        started = time.perf_counter()
        fragments: Sequence[Fragment] = [] if inner is not None else fragments_of(source, what)
        line.seconds += time.perf_counter() - started  # whatever is cached, the bake looks which files there are
        pipeline = FragmentPipeline(ingredient.name, source, where, self._recipe.seed, 2**64, None, (), self._on_error)
        try:
            inside = inner is not None
            look = (
                self._looked_inside(inner, pipeline, line) if inside else looked(pipeline, fragments, self._recipe.seed)
            )
        except pa.ArrowException as error:
            raise RecipeError(f"{what}: {_told(error)}; mend the data, or its filter") from error
        flow = self._chosen(ingredient, quota, look, pipeline, fragments, line)
        line.rows_in, line.rows_out, line.n_bytes = look.total, flow.rows, flow.sized()
        line.tokens_out = flow.tokens(self._recipe.tokens)
        n_parallel = max(1, min(self._n_workers, len(fragments)))
        flow.bound.append((line, look.seconds / max(1, look.n_read) * look.total.value / n_parallel))
        self._flows.append(flow)

    def _looked_inside(self, recipe: Any, pipeline: FragmentPipeline, line: ExplainedLine) -> SampleScan:
        """A nested recipe is explained, not baked: its sample is the source."""
        kitchen = _Kitchen(recipe, None, self._on_error)
        kitchen.look()
        found = kitchen.explanation()
        line.notes.append(f"of recipe {found.recipe!r}, which is baked first in about {duration_text(found.seconds)}")
        self._problems += [f"recipe {found.recipe!r}: {problem}" for problem in found.problems]
        table = kitchen.together() if found.schema is not None else pa.table({})
        started = time.perf_counter()
        piece = FragmentRows.read(pipeline.ingredient, "", table, np.arange(table.num_rows))
        if pipeline.where is not None and table.num_columns:
            piece = piece.keep(filtered(piece, pipeline.where, pipeline.on_error, [])[0])
        # As many rows as there will be are not yet those rows: a choice that is made while baking may take others.
        is_all = found.rows.is_exact and all(flow.is_whole for flow in kitchen._flows)
        is_in_order = not kitchen._is_shuffled and all(flow.is_in_order for flow in kitchen._flows)
        spent = time.perf_counter() - started + found.seconds * table.num_rows / max(1, found.rows.value)
        return SampleScan([piece], table.num_rows, spent, found.rows, is_all, is_all, is_in_order)

    def _chosen(
        self,
        ingredient: AddIngredient,
        quota: int | None,
        look: SampleScan,
        pipeline: FragmentPipeline,
        fragments: Sequence[Fragment],
        line: ExplainedLine,
    ) -> _Flow:
        available, take, how = look.available(pipeline.where), ingredient.take, ingredient.pick.how
        hashes = [row_hashes(pipeline.seed, "pick", each.ingredient, each.name, each.rows) for each in look.pieces]
        is_nested = not fragments and hasattr(ingredient.source, "instructions")
        threshold: int | None = 2**64
        rows = available
        if isinstance(take, float) and how == "hash":
            threshold = threshold_of(take)
            n_below = sum(int(np.count_nonzero(below(each, threshold))) for each in hashes)
            # Rows of a nested recipe have other numbers here than in the bake.
            is_known = look.is_all and not is_nested
            is_exact = take == 0.0 or (take == 1.0 and available.is_exact)
            rows = Estimate(n_below, True) if is_known else Estimate(available.value * take, is_exact)
        elif isinstance(take, float):
            threshold, rows = None, Estimate(round(available.value * take), available.is_exact)
        elif quota is not None and self._recipe.unit == "tokens":
            threshold, rows = None, self._rows_of_tokens(quota, look, available, ingredient, line)
        elif take is not None or quota is not None:
            asked = quota if quota is not None else int(take or 0)
            rows = self._counted(asked, look, available, ingredient, line)
            threshold = border_of(asked, look, available, hashes) if how == "hash" else None
        n_sampled = min(SAMPLED_ROWS, round(rows.value))
        sample = smallest(look.pieces, hashes, n_sampled, pipeline)
        are_those = rows.value == look.n_passed or (how == "hash" and not is_nested)
        is_whole = look.is_all and rows.is_exact and sum(map(len, sample)) == rows.value and are_those
        is_known = look.is_all or take is None or isinstance(take, float)
        flow = _Flow(ingredient.name, rows, sample, is_whole, pipeline, fragments, line, threshold, is_known)
        flow.is_in_order = look.is_in_order
        return flow

    def _counted(
        self, asked: int, look: SampleScan, available: Estimate, ingredient: AddIngredient, line: ExplainedLine
    ) -> Estimate:
        # Having seen so many rows is as good as having seen all.
        if asked <= available.value:
            return Estimate(asked, available.is_exact or (look.is_certain and look.n_passed >= asked))
        if ingredient.on_short == "accept":
            return available
        if ingredient.on_short == "repeat" and available.value:
            line.notes.append(f"{available} rows are repeated until they are {asked:,}")
            return Estimate(asked, available.is_exact)
        text = f"ingredient {ingredient.name!r}: {asked:,} rows asked for, there are {available}"
        self._problems.append(f"{text}; ask for fewer, or pass on_short='accept' or 'repeat'")
        return available

    def _rows_of_tokens(
        self, quota: int, look: SampleScan, available: Estimate, ingredient: AddIngredient, line: ExplainedLine
    ) -> Estimate:
        line.notes.append(f"{quota:,} tokens asked for")
        problem = _uncountable(look.pieces, self._recipe.tokens, ingredient)
        counted = None if problem else _counted_tokens(look.pieces, self._recipe.tokens)
        if counted is None:
            self._problems.append(f"ingredient {ingredient.name!r}: {problem}")
            return Estimate(0, False)
        if look.is_all:
            there = Estimate(counted, True)
        else:
            there = Estimate(counted / max(1, look.n_passed) * available.value, False)
        if quota <= there.value:
            return Estimate(available.value * quota / max(1, there.value), False)
        if ingredient.on_short != "accept":
            text = f"ingredient {ingredient.name!r}: {quota:,} tokens asked for, there are {there}"
            self._problems.append(f"{text}; ask for fewer, or pass on_short='accept'")
        return replace(available, is_exact=available.is_exact and there.is_exact)

    # -- steps

    def _prepare(self, instruction: PrepareStep) -> None:
        self._named[instruction.name] += 1
        n_same = self._named[instruction.name]
        # As the bake calls it: a name is part of what is kept.
        name = instruction.name if n_same == 1 else f"{instruction.name} ({n_same})"
        line = ExplainedLine("step", name)
        self._lines.append(line)
        where = as_filter(instruction.where, f"step {instruction.name!r}")
        step, bit = step_of(instruction), self._n_steps
        self._n_steps += 1
        line.rows_in = reduce(Estimate.__add__, (flow.rows for flow in self._flows), NOTHING)
        line.tokens_in = _together([flow.tokens(self._recipe.tokens) for flow in self._flows])
        try:
            self._done(step, where, BoundStep(name, step, where, bit), instruction, line)
        except Exception as error:
            # Whatever a bake would stop at is told here; explaining goes on without this step.
            line.notes.append("fails on the sample")
            self._problems.append(f"step {name!r}: {_told(error)}; {self._end()}")
            for flow in self._flows:
                flow.rows, flow.is_whole = replace(flow.rows, is_exact=False), False
        line.rows_out = reduce(Estimate.__add__, (flow.rows for flow in self._flows), NOTHING)
        line.tokens_out = _together([flow.tokens(self._recipe.tokens) for flow in self._flows])
        line.n_bytes = reduce(Estimate.__add__, (flow.sized() for flow in self._flows), NOTHING)

    def _done(self, step: Any, where: Any, bound: BoundStep, instruction: PrepareStep, line: ExplainedLine) -> None:
        if hasattr(step, "prepare") and not getattr(step, "needs_all", False):
            keeping = _KEEPS_ROWS if self._on_error == "raise" else _REJECTS_NONE
            keeps_rows = isinstance(instruction.step, str) and instruction.step in keeping
            for flow in self._flows:
                if flow.is_open:
                    flow.pipeline = replace(flow.pipeline, steps=(*flow.pipeline.steps, bound))
                self._try(flow, bound, line, keeps_rows)
            return
        for flow in self._flows:
            flow.is_open = False
        samples = [piece for flow in self._flows for piece in flow.pieces]
        if isinstance(step, Shuffle):
            self._is_shuffled = True
        elif isinstance(step, Limit):
            self._limit(step, where)
        elif isinstance(step, Dedup):
            self._kept(lambda: step.masks(samples, None, where), line)
        elif isinstance(step, Fitted):
            fitted = replace(bound, step=step.with_parameters(step.fitted(samples, where)))
            for flow in self._flows:
                self._try(flow, fitted, line, keeps_rows=True)
        else:
            rejects: list[dict[str, Any]] = []
            self._kept(lambda: step.masks(samples, None, where, "skip", rejects), line, rejects)

    def _kept(
        self, masks_of: Callable[[], list[Mask]], line: ExplainedLine, rejects: Sequence[dict[str, Any]] = ()
    ) -> None:
        """What is left where rows are compared with those of all ingredients."""
        started = time.perf_counter()
        masks = masks_of() if self._flows else []
        seconds = (time.perf_counter() - started) / max(1, sum(flow.n_sampled for flow in self._flows))
        is_all = all(flow.is_whole for flow in self._flows)
        # Of rows that are alike the first is left: which one that is, and of whom, depends on the order.
        is_in_order = not self._is_shuffled and all(flow.is_in_order for flow in self._flows)
        for flow in self._flows:
            own, masks = masks[: len(flow.pieces)], masks[len(flow.pieces) :]
            n_before = flow.n_sampled
            self._tell([each for each in rejects if each["ingredient"] == flow.name], flow, n_before, line, is_all)
            flow.bound.append((line, seconds * flow.rows.value))
            made = [piece.keep(mask) for piece, mask in zip(flow.pieces, own, strict=True)]
            _became(flow, made, n_before, is_all=is_all and is_in_order)

    def _limit(self, step: Limit, where: Any) -> None:
        asked = [_selected(flow, where) for flow in self._flows]
        total = reduce(Estimate.__add__, asked, NOTHING)
        left: float = step.n
        for flow, mine in zip(self._flows, asked, strict=True):
            if self._is_shuffled and len(self._flows) > 1:
                kept = mine.value * min(1.0, step.n / max(1.0, total.value))
            else:
                kept = min(mine.value, left)
            left -= kept
            is_exact = total.is_exact and not (self._is_shuffled and kept < mine.value and len(self._flows) > 1)
            if kept < mine.value:
                flow.is_whole = False
                flow.rows = Estimate(flow.rows.value - mine.value + kept, flow.rows.is_exact and is_exact)

    def _try(self, flow: _Flow, bound: BoundStep, line: ExplainedLine, keeps_rows: bool) -> None:
        """Do a step to the sample, or to as much of it as can be done quickly."""
        is_own = any(INGREDIENT in piece.table.column_names for piece in flow.pieces)
        if bound.where is not None and not is_own and bound.where.bind(ingredient=flow.name) is False:
            return
        is_quick = isinstance(bound.step, RowStep) and not bound.step.fingerprint.startswith("tokenize")
        tried = flow.pieces if is_quick else self._affordable(flow.pieces, bound)
        n_tried = sum(map(len, tried))
        rejects: list[dict[str, Any]] = []
        started = time.perf_counter()
        made = [prepared(piece, bound, "skip", rejects) for piece in tried]
        seconds = time.perf_counter() - started
        self._tell(rejects, flow, n_tried, line, flow.is_whole)
        rate = seconds / max(1, n_tried) * flow.rows.value
        flow.bound.append((line, rate / self._n_workers if is_quick else rate))
        if n_tried < flow.n_sampled:
            line.notes.append(f"tried on {n_tried:,} rows of {flow.name}: {duration_text(seconds / n_tried)} a row")
        is_all = flow.is_whole and n_tried == flow.n_sampled
        _became(flow, made, n_tried, is_all=is_all, keeps_rows=keeps_rows)

    def _tell(
        self, rejects: Sequence[dict[str, Any]], flow: _Flow, n_tried: int, line: ExplainedLine, is_certain: bool
    ) -> None:
        """What a step rejects; it ends the bake for certain only if these rows are those of the bake."""
        if not rejects:
            return
        reason = rejects[0]["reason"]
        text = f"{len(rejects):,} of {n_tried:,} sampled rows of {flow.name} rejected: {reason}"
        line.notes.append(text)
        if self._on_error == "raise":
            self._problems.append(f"step {line.name!r}: {text}; {_end_of_bake(is_certain=is_certain)}")

    def _affordable(self, sample: list[FragmentRows], bound: BoundStep) -> list[FragmentRows]:
        """Rows of a sample, evenly spread, that a step can be done to in the time there is.

        One row, then 64, then a thousand, so that the answer seldom depends on how busy the machine is.
        """
        n_sampled = sum(map(len, sample))
        tried = spread(sample, 1)
        # The first call pays for imports and the like.
        seconds = min(_seconds(tried, bound), _seconds(tried, bound))
        for n_rows in TRIED_ROWS:
            if seconds * n_rows > STEP_SECONDS:
                return tried
            tried = spread(sample, n_rows)
            if n_rows >= n_sampled:
                return sample
            seconds = _seconds(tried, bound) / n_rows
        return tried

    # -- the cache

    def _look_up(self, flow: _Flow) -> None:
        line = flow.line
        line.fragments = len(flow.fragments)
        missing: Counter[str] = Counter()
        started = time.perf_counter()
        for fragment in flow.fragments:
            reason = self._missing(flow, fragment)
            if reason is None:
                line.cached += 1
            else:
                missing[reason] += 1
        line.seconds += time.perf_counter() - started  # the bake asks the cache about each of them, too
        line.missing = dict(missing)
        left = 1 - line.cached / line.fragments if line.fragments else 1.0
        done = {id(line) for line, _ in flow.bound[: 1 + len(flow.pipeline.steps)]}
        for each, seconds in flow.bound:
            each.seconds += seconds * (left if id(each) in done else 1)

    def _missing(self, flow: _Flow, fragment: Fragment) -> str | None:
        """Why a fragment is not cached; None if it is."""
        if not self._has_cache:
            return "no cache"
        if self._cache is None:
            return "new content"
        kept = self._cache.look(flow.pipeline.key(fragment), with_rejects=self._on_error != "raise")
        if flow.threshold is not None and kept is not None:
            return _chosen_otherwise(flow.threshold, *kept, is_known=flow.is_known)
        otherwise = "chosen while baking" if flow.threshold is None else "not kept"
        return self._last.changed(flow.pipeline, fragment) or otherwise


def _seconds(pieces: list[FragmentRows], bound: BoundStep) -> float:
    started = time.perf_counter()
    for piece in pieces:
        prepared(piece, bound, "skip", [])
    return time.perf_counter() - started


def _selected(flow: _Flow, where: Any) -> Estimate:
    if where is None:
        return flow.rows
    n_selected = sum(int(np.count_nonzero(selected_rows(piece, where))) for piece in flow.pieces)
    if flow.is_whole:
        return Estimate(n_selected, True)
    return Estimate(n_selected / max(1, flow.n_sampled) * flow.rows.value, False)


def _became(flow: _Flow, made: list[FragmentRows], n_before: int, *, is_all: bool, keeps_rows: bool = False) -> None:
    """A flow after a step; all of its rows if ``is_all``, so that they need only be counted."""
    n_after = sum(map(len, made))
    if is_all:
        flow.rows = Estimate(n_after, True)
    elif not (keeps_rows and n_after == n_before):
        flow.rows = Estimate(flow.rows.value * (n_after / n_before if n_before else 1.0), False)
    flow.is_whole = is_all
    flow.pieces = [canonical(piece) for piece in made]


def _counted_tokens(pieces: Sequence[FragmentRows], column: str) -> int | None:
    """What a column of counts adds up to; None where not all rows have one."""
    columns = [piece.table.column(column) for piece in pieces if column in piece.table.column_names]
    if len(columns) < len(pieces) or not all(kinds.is_integer(each.type) or not len(each) for each in columns):
        return None
    return sum(pc.sum(each).as_py() or 0 for each in columns if len(each))


def _uncountable(pieces: Sequence[FragmentRows], column: str, ingredient: AddIngredient) -> str | None:
    """Why the bake cannot take a share in tokens; None if it can, as far as these rows tell."""
    if ingredient.pick.how != "hash" or ingredient.on_short == "repeat":
        return "shares in tokens are picked by hash and not repeated; leave out pick= and on_short='repeat'"
    for piece in pieces:
        names = piece.table.column_names
        if column not in names:
            return (
                f"no column {column!r} to count tokens by, there are {names}; shares are taken before any step, so "
                "count tokens in a recipe of its own, and make that recipe the ingredient"
            )
        counts = piece.table.column(column)
        if counts.null_count or (len(counts) and not kinds.is_integer(counts.type)):
            text = f"column {column!r} has {counts.type} with {counts.null_count:,} nulls"
            return f"{text}; token counts are whole numbers, one for every row: count them first, or filter those out"
    return None


def _end_of_bake(*, is_certain: bool) -> str:
    return f"the bake {'would' if is_certain else 'may'} stop there"


def _told(error: Exception) -> str:
    """An error in one line, with the place that its notes tell."""
    notes = f" ({'; '.join(error.__notes__)})" if hasattr(error, "__notes__") else ""
    return f"{type(error).__name__}: {error}{notes}"


def _together(parts: Sequence[Estimate | None]) -> Estimate | None:
    known = [part for part in parts if part is not None]
    return reduce(Estimate.__add__, known) if known and len(known) == len(parts) else None


def _chosen_otherwise(threshold: int, kept: int, holds_for_fewer: bool, *, is_known: bool) -> str | None:
    """Why a kept result does not hold for this choice: it has too few rows, or more and nobody knows which to leave."""
    if kept < threshold:
        return "more rows asked for"
    return "fewer rows asked for" if kept > threshold and is_known and not holds_for_fewer else None


# Samples of a source ------------------------------------------------------------------------------------------------


#: What is read of an ingredient: whole fragments until so many rows, or so many bytes, were looked at.
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


def looked(pipeline: FragmentPipeline, fragments: Sequence[Fragment], seed: int) -> SampleScan:
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
            if pipeline.where is not None:
                piece = piece.keep(filtered(piece, pipeline.where, pipeline.on_error, [])[0])
            here.append(canonical(piece))
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


def border_of(asked: int, look: SampleScan, available: Estimate, hashes: list[Any]) -> int:
    """The hash below which a count of rows is: the lowest that is not chosen, or else what it is not likely below."""
    if asked >= available.value:
        return 2**64
    if look.is_all:
        return int(np.partition(np.concatenate(hashes), asked)[asked])
    return int(asked / available.value * max(0.0, 1 - 3 / max(1, asked) ** 0.5) * 2**64)


def spread(pieces: list[FragmentRows], n_rows: int) -> list[FragmentRows]:
    """So many of the rows, as far from each other as can be."""
    n_all = sum(map(len, pieces))
    if n_rows >= n_all:
        return pieces
    chosen = np.zeros(n_all, bool)
    chosen[np.linspace(0, n_all - 1, n_rows).astype(np.int64)] = True
    masks = np.split(chosen, np.cumsum([len(piece) for piece in pieces])[:-1])
    return [piece.keep(mask) for piece, mask in zip(pieces, masks, strict=True) if mask.any()]
