"""What a bake will do, before it does it: rows, tokens, bytes and seconds of each instruction, and what is cached.

    footers, buffers ------> how many rows there are                        exact
    fragments, by hash ----> what filter and selection leave of them        exact if all fragments were read
    rows, by hash ---------> what steps leave of them                       exact if no row was left out
                             how large they are, how fast that goes         never exact

``DryRun`` follows the instructions as a bake does, with the same steps and barriers, on samples. What is not exact is
marked ``~``; what a barrier leaves cannot be estimated from some of the rows, unless it has ``estimate``. A user's
function is called with one row, and with more only if that is quick. Nothing is written.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from poolish.errors import PoolishError, RecipeError, UnknownColumn
from poolish.recipes.cache import Cache, LastBake, local_cache
from poolish.recipes.engine import as_engine
from poolish.recipes.explanation import NOTHING, Estimate, ExplainedLine, Explanation, duration_text
from poolish.recipes.fragment_rows import (
    INGREDIENT,
    Fragment,
    FragmentRows,
    below,
    canonical,
    one_table,
    threshold_of,
)
from poolish.recipes.lineage import BakedRows
from poolish.recipes.pipeline import BoundStep, FragmentPipeline, Reject, fragment_key, fragments_of, prepared
from poolish.recipes.plan import AddIngredient, Recipe, RecipeRun, check_not_empty
from poolish.recipes.sampling import SampledState, SampleScan, border_of, counted_tokens, scanned, smallest, spread
from poolish.recipes.selection import check_columns, check_token_share, token_counts
from poolish.recipes.sources import as_source
from poolish.recipes.steps.barriers import Decision
from poolish.recipes.steps.registry import is_barrier
from poolish.recipes.steps.row_local import RowStep

#: Rows that steps are tried on.
SAMPLED_ROWS = 20_000
#: Rows that a function is tried on after its first one, if they can be expected to take no longer than this.
TRIED_ROWS, STEP_SECONDS = (64, 1_000), 0.5

#: Steps that leave as many rows as they get, of which some may reject rows that they fail for.
_REJECTS_NONE = ("select", "drop", "rename")
_KEEPS_ROWS = (*_REJECTS_NONE, "map", "cast", "fill_nulls", "tokenize")


def explain(recipe: Recipe, cache: str | os.PathLike[str] | None = None, *, on_error: str = "raise") -> Explanation:
    """What baking this recipe will do; ``cache`` and ``on_error`` as the bake will have them."""
    return DryRun(recipe, cache, on_error).run()


class DryRun(RecipeRun[SampledState]):
    """A bake on samples, which writes nothing."""

    def __init__(self, recipe: Recipe, cache: str | os.PathLike[str] | None, on_error: str) -> None:
        super().__init__(recipe, on_error)
        self._n_workers = getattr(as_engine("local"), "n_workers", 1)
        # A cache is made by the first bake; looking for it does not make it.
        self._cache = Cache(cache) if cache is not None and local_cache(cache).is_dir() else None
        self._has_cache = cache is not None
        self._last = LastBake(self._cache, recipe.name)
        self._lines: list[ExplainedLine] = []
        self._problems: list[str] = []

    def run(self) -> Explanation:
        """Follow all instructions and sum up."""
        check_not_empty(self.recipe.name, self.recipe.instructions)
        self.follow()
        for state in self.states:
            self._look_up(state)
        rows, n_bytes = self._total(), self._n_bytes()
        schema = None
        try:
            schema = one_table(self.pieces()).schema if self.states else None
        except PoolishError as error:
            self._problems.append(f"{error}; {_end_of_bake(is_certain=self.is_whole)}")
            rows = replace(rows, is_exact=False)
        seconds = sum(line.seconds for line in self._lines)
        lines, problems = tuple(self._lines), tuple(self._problems)
        return Explanation(self.recipe.name, lines, rows, self._tokens(), n_bytes, seconds, schema, problems)

    @property
    def is_whole(self) -> bool:
        """Whether the samples have all rows that the bake will have."""
        return all(state.is_whole for state in self.states)

    def _total(self) -> Estimate:
        return sum((state.rows for state in self.states), NOTHING)

    def _n_bytes(self) -> Estimate:
        return sum((state.sized() for state in self.states), NOTHING)

    def _tokens(self) -> Estimate | None:
        known = [tokens for state in self.states if (tokens := state.tokens(self.recipe.tokens)) is not None]
        return sum(known, NOTHING) if known and len(known) == len(self.states) else None

    # -- ingredients

    def add(self, ingredient: AddIngredient, quota: int | None) -> None:
        """Read a sample of the source and estimate what filter and selection leave."""
        what = f"ingredient {ingredient.name!r}"
        line = ExplainedLine("ingredient", ingredient.name)
        self._lines.append(line)
        inner: Recipe | None = ingredient.source if hasattr(ingredient.source, "instructions") else None
        pipeline = self.pipeline_of(ingredient, as_source(ingredient.source, what, ingredient.storage))
        started = time.perf_counter()
        fragments: Sequence[Fragment] = [] if inner is not None else fragments_of(pipeline.source, what)
        line.seconds += time.perf_counter() - started  # whatever is cached, the bake lists the files
        try:
            if inner is None:
                scan = scanned(pipeline, fragments, self.recipe.seed)
            else:
                scan = self._scanned_recipe(inner, pipeline, line)
        except pa.ArrowException as error:
            raise RecipeError(f"{what}: {_message(error)}; fix the data, or its filter") from error
        state = self._selected(ingredient, quota, scan, pipeline, fragments, line)
        line.rows_in, line.rows_out, line.n_bytes = scan.total, state.rows, state.sized()
        line.tokens_out = state.tokens(self.recipe.tokens)
        n_parallel = max(1, min(self._n_workers, len(fragments)))
        state.work.append((line, scan.seconds / max(1, scan.n_read) * scan.total.value / n_parallel))
        self.states.append(state)

    def _scanned_recipe(self, recipe: Recipe, pipeline: FragmentPipeline, line: ExplainedLine) -> SampleScan:
        """A nested recipe is explained, not baked: its sample is the source."""
        inner = DryRun(recipe, None, self.on_error)
        found = inner.run()
        line.notes.append(f"of recipe {found.recipe!r}, which is baked first in about {duration_text(found.seconds)}")
        self._problems += [f"recipe {found.recipe!r}: {problem}" for problem in found.problems]
        if found.schema is None:
            table, numbers = pa.table({}), np.empty(0, np.int64)
        else:
            pieces = inner.pieces()
            rows = BakedRows.of(pieces, [state.name for state in inner.states], inner.order(pieces))
            table, numbers = rows.table, rows.identities()
        started = time.perf_counter()
        piece = FragmentRows.read(pipeline.ingredient, "", table, numbers)
        if table.num_columns:
            piece = pipeline.choose(piece, Fragment("", 0, None, "", {}), Counter(), [])
        # As many rows as there will be are not yet those rows: the bake may select others.
        is_all = found.rows.is_exact and inner.is_whole
        spent = time.perf_counter() - started + found.seconds * table.num_rows / max(1, found.rows.value)
        return SampleScan([piece], table.num_rows, spent, found.rows, is_all, is_certain=is_all)

    def _selected(
        self,
        ingredient: AddIngredient,
        quota: int | None,
        scan: SampleScan,
        pipeline: FragmentPipeline,
        fragments: Sequence[Fragment],
        line: ExplainedLine,
    ) -> SampledState:
        available, take, how = scan.available(pipeline.where), ingredient.take, ingredient.pick.how
        hashes = [pipeline.hashes(each) for each in scan.pieces]
        threshold: int | None = 2**64
        rows = available
        if isinstance(take, float) and how == "hash":
            threshold = threshold_of(take)
            n_below = sum(int(np.count_nonzero(below(each, threshold))) for each in hashes)
            is_exact = take == 0.0 or (take == 1.0 and available.is_exact)
            rows = Estimate(n_below, True) if scan.is_all else Estimate(available.value * take, is_exact)
        elif isinstance(take, float):
            threshold, rows = None, Estimate(round(available.value * take), available.is_exact)
        elif quota is not None and self.recipe.unit == "tokens":
            threshold, rows = None, self._rows_of_tokens(quota, scan, available, ingredient, line)
        elif take is not None or quota is not None:
            asked = quota if quota is not None else int(take or 0)
            rows = self._counted(asked, scan, available, ingredient, line)
            threshold = border_of(asked, scan, available, hashes) if how == "hash" else None
        n_sampled = min(SAMPLED_ROWS, round(rows.value))
        sample = smallest(scan.pieces, hashes, n_sampled, pipeline)
        are_those = rows.value == scan.n_passed or how == "hash"
        is_whole = scan.is_all and rows.is_exact and sum(map(len, sample)) == rows.value and are_those
        is_known = scan.is_all or take is None or isinstance(take, float)
        return SampledState(
            *(ingredient.name, pipeline, fragments, rows, is_whole, line, threshold, is_known), pieces=sample
        )

    def _counted(
        self, asked: int, scan: SampleScan, available: Estimate, ingredient: AddIngredient, line: ExplainedLine
    ) -> Estimate:
        # Having read this many rows is as good as having read all.
        if asked <= available.value:
            return Estimate(asked, available.is_exact or (scan.is_certain and scan.n_passed >= asked))
        if ingredient.on_short == "accept":
            return available
        if ingredient.on_short == "repeat" and available.value:
            line.notes.append(f"{available} rows are repeated until they are {asked:,}")
            return Estimate(asked, available.is_exact)
        text = f"ingredient {ingredient.name!r}: {asked:,} rows asked for, there are {available}"
        self._problems.append(f"{text}; ask for fewer, or pass on_short='accept' or 'repeat'")
        return available

    def _rows_of_tokens(
        self, quota: int, scan: SampleScan, available: Estimate, ingredient: AddIngredient, line: ExplainedLine
    ) -> Estimate:
        line.notes.append(f"{quota:,} tokens asked for")
        column = self.recipe.tokens or ""
        try:
            check_token_share(ingredient.name, ingredient.pick.how, ingredient.on_short)
            for piece in scan.pieces:
                check_columns(piece.table.column_names, None, column, ingredient.name)
                token_counts(piece.table.column(column), column, ingredient.name)
        except (RecipeError, UnknownColumn) as error:
            self._problems.append(str(error))
            return Estimate(0, False)
        counted = counted_tokens(scan.pieces, column) or 0
        if scan.is_all:
            there = Estimate(counted, True)
        else:
            there = Estimate(counted / max(1, scan.n_passed) * available.value, False)
        if quota <= there.value:
            return Estimate(available.value * quota / max(1, there.value), False)
        if ingredient.on_short != "accept":
            text = f"ingredient {ingredient.name!r}: {quota:,} tokens asked for, there are {there}"
            self._problems.append(f"{text}; ask for fewer, or pass on_short='accept'")
        return replace(available, is_exact=available.is_exact and there.is_exact)

    # -- steps

    def prepare(self, bound: BoundStep) -> None:
        """Try a step on the samples, as the bake would do it to all rows."""
        line = ExplainedLine("step", bound.name)
        self._lines.append(line)
        line.rows_in = self._total()
        line.tokens_in = self._tokens()
        try:
            if is_barrier(bound.step):
                self._barrier(bound, line)
            else:
                for state in self.states:
                    self._row_local(state, bound, line)
        except Exception as error:
            # Whatever would stop a bake is a problem here; explaining continues without this step.
            line.notes.append("fails on the sample")
            self._problems.append(f"step {bound.name!r}: {_message(error)}; {_end_of_bake(is_certain=self.is_whole)}")
            for state in self.states:
                state.rows, state.is_whole = replace(state.rows, is_exact=False), False
        line.rows_out = self._total()
        line.tokens_out = self._tokens()
        line.n_bytes = self._n_bytes()

    def _barrier(self, bound: BoundStep, line: ExplainedLine) -> None:
        is_whole, n_before = self.is_whole, [state.n_sampled for state in self.states]
        selected = [state.selected(bound.where) for state in self.states]
        started = time.perf_counter()
        decision = self.decide(bound, "skip")
        rejects = self.act(decision, bound, "skip")
        seconds = (time.perf_counter() - started) / max(1, sum(n_before))
        estimated = None if is_whole else self._estimated(decision, bound, selected, line)
        for i, state in enumerate(self.states):
            own = [each for each in rejects if each["ingredient"] == state.name]
            self._report(own, state, n_before[i], line, is_whole)
            state.work.append((line, seconds * state.rows.value))
            state.rows = Estimate(state.n_sampled, True) if estimated is None else estimated[i]
            state.is_open, state.is_whole = False, is_whole
            state.pieces = [canonical(piece) for piece in state.sample]

    def _estimated(
        self, decision: Decision, bound: BoundStep, selected: list[Estimate], line: ExplainedLine
    ) -> list[Estimate]:
        """The rows of each ingredient after a barrier that has seen only some of them."""
        before = [state.rows for state in self.states]
        if decision.keep is None:
            is_sure = self.on_error == "raise" or decision.step is not None or decision.sort_key is not None
            return [replace(rows, is_exact=rows.is_exact and is_sure) for rows in before]
        estimate = getattr(bound.step, "estimate", None)
        if estimate is None:
            line.notes.append("what it leaves cannot be estimated from some of the rows")
            return [Estimate(rows.value, False, is_bound=True) for rows in before]
        is_mixed = self.is_sorted and len(before) > 1
        kept = estimate([each.value for each in selected], is_shuffled=is_mixed)
        is_exact = all(each.is_exact for each in selected)
        return [
            rows
            if n >= mine.value
            else replace(rows, value=rows.value - mine.value + n, is_exact=rows.is_exact and is_exact and not is_mixed)
            for rows, mine, n in zip(before, selected, kept, strict=True)
        ]

    def _row_local(self, state: SampledState, bound: BoundStep, line: ExplainedLine) -> None:
        """Apply a step to the sample, or to as much of it as is quick."""
        if state.is_open:
            state.pipeline = replace(state.pipeline, steps=(*state.pipeline.steps, bound))
        is_own = any(INGREDIENT in piece.table.column_names for piece in state.sample)
        if bound.where is not None and not is_own and bound.where.bind(ingredient=state.name) is False:
            return
        kind = bound.step.kind if isinstance(bound.step, RowStep) else None
        is_quick = kind is not None and kind != "tokenize"
        tried = state.sample if is_quick else self._affordable(state.sample, bound)
        n_tried = sum(map(len, tried))
        rejects: list[Reject] = []
        started = time.perf_counter()
        made = [prepared(piece, bound, "skip", rejects) for piece in tried]
        seconds = time.perf_counter() - started
        self._report(rejects, state, n_tried, line, state.is_whole)
        rate = seconds / max(1, n_tried) * state.rows.value
        state.work.append((line, rate / self._n_workers if is_quick else rate))
        if n_tried < state.n_sampled:
            line.notes.append(f"tried on {n_tried:,} rows of {state.name}: {duration_text(seconds / n_tried)} a row")
        is_all = state.is_whole and n_tried == state.n_sampled
        keeps_rows = kind in (_KEEPS_ROWS if self.on_error == "raise" else _REJECTS_NONE)
        state.became(made, n_tried, is_all=is_all, keeps_rows=keeps_rows)

    def _report(
        self, rejects: Sequence[Reject], state: SampledState, n_tried: int, line: ExplainedLine, is_certain: bool
    ) -> None:
        """What a step rejects; it ends the bake for certain only if these rows are those of the bake."""
        if not rejects:
            return
        reason = rejects[0]["reason"]
        text = f"{len(rejects):,} of {n_tried:,} sampled rows of {state.name} rejected: {reason}"
        line.notes.append(text)
        if self.on_error == "raise":
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

    def _look_up(self, state: SampledState) -> None:
        line = state.line
        line.fragments = len(state.fragments)
        missing: Counter[str] = Counter()
        started = time.perf_counter()
        for fragment in state.fragments:
            reason = self._missing(state, fragment)
            if reason is None:
                line.cached += 1
            else:
                missing[reason] += 1
        line.seconds += time.perf_counter() - started  # the bake asks the cache about each of them, too
        line.missing = dict(missing)
        left = 1 - line.cached / line.fragments if line.fragments else 1.0
        done = {id(line) for line, _ in state.work[: 1 + len(state.pipeline.steps)]}
        for each, seconds in state.work:
            each.seconds += seconds * (left if id(each) in done else 1)

    def _missing(self, state: SampledState, fragment: Fragment) -> str | None:
        """Why a fragment is not cached; None if it is."""
        if not self._has_cache:
            return "no cache"
        if self._cache is None:
            return "new content"
        kept = self._cache.look(state.pipeline.key(fragment), with_rejects=self.on_error != "raise")
        if state.threshold is not None and kept is not None:
            return _chosen_otherwise(state.threshold, *kept, is_known=state.is_known)
        otherwise = "chosen while baking" if state.threshold is None else "not kept"
        return self._last.changed(state.name, state.pipeline.describe([fragment]), fragment_key(fragment)) or otherwise


def _seconds(pieces: list[FragmentRows], bound: BoundStep) -> float:
    started = time.perf_counter()
    for piece in pieces:
        prepared(piece, bound, "skip", [])
    return time.perf_counter() - started


def _end_of_bake(*, is_certain: bool) -> str:
    return f"the bake {'would' if is_certain else 'may'} stop there"


def _message(error: Exception) -> str:
    """An error in one line, with the place in its notes."""
    notes = f" ({'; '.join(error.__notes__)})" if hasattr(error, "__notes__") else ""
    return f"{type(error).__name__}: {error}{notes}"


def _chosen_otherwise(threshold: int, kept: int, holds_for_fewer: bool, *, is_known: bool) -> str | None:
    """Why a kept result does not hold for this choice: it has too few rows, or more that cannot be separated."""
    if kept < threshold:
        return "more rows asked for"
    return "fewer rows asked for" if kept > threshold and is_known and not holds_for_fewer else None
