"""What a bake will do, before it does it: rows, tokens, bytes and seconds of each instruction, and what is cached.

    footers, buffers ------> how many rows there are                        exact
    fragments, by hash ----> what filter and selection leave of them        exact if all fragments were read
    rows, by hash ---------> what steps leave of them                       exact if no row was left out
                             how large they are, how fast that goes         never exact

``DryRun`` follows the instructions as a bake does, with the same steps and barriers, on samples. What is not exact is
marked ``~``; what a barrier leaves cannot be estimated from some of the rows, unless it has ``estimate``. Samples are
chosen by hash, so the same recipe is always explained in the same way, and rows of several files stay apart until they
become one table, as in the bake. A user's function is called with one row, and with more only if that is quick. Nothing
is written.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from poolish.errors import PoolishError, RecipeError
from poolish.recipes.cache import Cache, LastBake, key_of, local_cache
from poolish.recipes.engine import as_engine
from poolish.recipes.explanation import NOTHING, Estimate, ExplainedLine, Explanation, duration_text
from poolish.recipes.filters import filtered
from poolish.recipes.fragment_rows import (
    INGREDIENT,
    Fragment,
    FragmentRows,
    below,
    canonical,
    canonical_table,
    joined,
    no_rows,
    one_table,
    row_hashes,
    selected_rows,
    threshold_of,
    workable,
)
from poolish.recipes.lineage import BakedRows
from poolish.recipes.pipeline import BoundStep, FragmentPipeline, Reject, fragment_key, fragments_of, prepared
from poolish.recipes.plan import AddIngredient, IngredientState, Recipe, RecipeRun, check_not_empty
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
        n_bytes = sum(piece.table.nbytes for piece in self.sample)
        return Estimate(n_bytes / max(1, self.n_sampled) * self.rows.value, False)

    def tokens(self, column: str | None) -> Estimate | None:
        """The sum of a column of counts, where there is one."""
        counted = None if column is None else _counted_tokens(self.sample, column)
        if counted is None:
            return None
        if self.is_whole:
            return Estimate(counted, True)
        return Estimate(counted / max(1, self.n_sampled) * self.rows.value, False)

    def selected(self, where: Any) -> Estimate:
        """How many rows a step's filter selects."""
        if where is None:
            return self.rows
        n_selected = sum(int(np.count_nonzero(selected_rows(piece, where))) for piece in self.sample)
        if self.is_whole:
            return Estimate(n_selected, True)
        return Estimate(n_selected / max(1, self.n_sampled) * self.rows.value, False)

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
        tokens = [state.tokens(self.recipe.tokens) for state in self.states]
        rows, n_bytes = self._total(), reduce(Estimate.__add__, (state.sized() for state in self.states), NOTHING)
        schema = None
        try:
            schema = one_table(self.pieces()).schema if self.states else None
        except PoolishError as error:
            self._problems.append(f"{error}; {_end_of_bake(is_certain=self.is_whole)}")
            rows = replace(rows, is_exact=False)
        seconds = sum(line.seconds for line in self._lines)
        lines, problems = tuple(self._lines), tuple(self._problems)
        return Explanation(self.recipe.name, lines, rows, _together(tokens), n_bytes, seconds, schema, problems)

    @property
    def is_whole(self) -> bool:
        """Whether the samples have all rows that the bake will have."""
        return all(state.is_whole for state in self.states)

    def _total(self) -> Estimate:
        return reduce(Estimate.__add__, (state.rows for state in self.states), NOTHING)

    # -- ingredients

    def add(self, ingredient: AddIngredient, quota: int | None) -> None:
        """Read a sample of the source and estimate what filter and selection leave."""
        what = f"ingredient {ingredient.name!r}"
        line = ExplainedLine("ingredient", ingredient.name)
        self._lines.append(line)
        inner: Recipe | None = ingredient.source if hasattr(ingredient.source, "instructions") else None
        pipeline = self.pipeline_of(ingredient, as_source(ingredient.source, what))
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
        if pipeline.where is not None and table.num_columns:
            piece = piece.keep(filtered(piece, pipeline.where, pipeline.on_error, [])[0])
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
        hashes = [row_hashes(pipeline.seed, "pick", each.ingredient, each.name, each.rows) for each in scan.pieces]
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
        problem = _uncountable(scan.pieces, column, ingredient)
        counted = None if problem else _counted_tokens(scan.pieces, column)
        if counted is None:
            self._problems.append(f"ingredient {ingredient.name!r}: {problem}")
            return Estimate(0, False)
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
        line.tokens_in = _together([state.tokens(self.recipe.tokens) for state in self.states])
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
        line.tokens_out = _together([state.tokens(self.recipe.tokens) for state in self.states])
        line.n_bytes = reduce(Estimate.__add__, (state.sized() for state in self.states), NOTHING)

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


def _message(error: Exception) -> str:
    """An error in one line, with the place in its notes."""
    notes = f" ({'; '.join(error.__notes__)})" if hasattr(error, "__notes__") else ""
    return f"{type(error).__name__}: {error}{notes}"


def _together(parts: Sequence[Estimate | None]) -> Estimate | None:
    known = [part for part in parts if part is not None]
    return reduce(Estimate.__add__, known) if known and len(known) == len(parts) else None


def _chosen_otherwise(threshold: int, kept: int, holds_for_fewer: bool, *, is_known: bool) -> str | None:
    """Why a kept result does not hold for this choice: it has too few rows, or more that cannot be separated."""
    if kept < threshold:
        return "more rows asked for"
    return "fewer rows asked for" if kept > threshold and is_known and not holds_for_fewer else None


# Samples of a source ------------------------------------------------------------------------------------------------


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

    def available(self, where: Any) -> Estimate:
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
