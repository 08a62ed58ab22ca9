"""What a bake will do, before it does it: rows, tokens, bytes and seconds of each instruction, and what is cached.

    footers, buffers ------> how many rows there are                        exact
    fragments, by hash ----> what filter and choice leave of them           exact if all fragments were looked at
    rows, by hash ---------> what steps leave, how large rows are, how fast  exact if no row was left out

What is not exact is marked ``~``. Samples are chosen by hash, so the same recipe is always explained in the same way.
A function of the user's is called with one row, and with more only if that is quick. Nothing is written: the index that
tells why a fragment is not cached comes from ``last_bake``.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from poolish.errors import PoolishError
from poolish.recipes.baked_rows import one_table
from poolish.recipes.built_in import Dedup, Fitted, Limit, Shuffle
from poolish.recipes.cache import Cache
from poolish.recipes.chain import Chain, Work, filtered, fragments_of, prepared
from poolish.recipes.engine import as_engine
from poolish.recipes.explanation import NOTHING, Estimate, ExplainedLine, Explanation, duration_text
from poolish.recipes.identity import below, row_hashes, threshold_of
from poolish.recipes.instructions import AddIngredient, PrepareStep
from poolish.recipes.interpretation import as_filter, quotas_of, step_of
from poolish.recipes.last_bake import LastBake
from poolish.recipes.piece import Piece, canonical_table, selected_rows
from poolish.recipes.row_steps import RowStep
from poolish.recipes.sampling import Look, border_of, looked, smallest, spread
from poolish.recipes.sources import Fragment, Source, as_source

#: Rows that steps are tried on.
SAMPLED_ROWS = 20_000
#: Rows that a function is tried on after its first one, if they can be expected to take no longer than this.
TRIED_ROWS, STEP_SECONDS = (64, 1_000), 0.5

_KEEPS_ROWS = ("map", "select", "drop", "rename", "cast", "fill_nulls", "tokenize")


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
    sample: Piece
    is_whole: bool
    chain: Chain
    fragments: Sequence[Fragment]
    line: ExplainedLine
    threshold: int | None = 2**64  #: up to which hash rows are chosen; None if that is not known before the bake
    is_known: bool = True  #: whether the threshold is that of the bake, and not an estimate
    is_open: bool = True  #: nothing but row-local steps so far, so what comes out of them is cached
    work: list[tuple[ExplainedLine, float]] = field(default_factory=list)  #: seconds of each instruction

    def sized(self) -> Estimate:
        """Bytes of all rows."""
        n_bytes = self.sample.table.nbytes
        return Estimate(n_bytes / max(1, len(self.sample)) * self.rows.value, self.is_whole)

    def tokens(self, column: str | None) -> Estimate | None:
        """What a column of counts adds up to, where there is one."""
        if column is None or column not in self.sample.table.column_names:
            return None
        counted = pc.sum(self.sample.table.column(column)).as_py() or 0
        return Estimate(counted / max(1, len(self.sample)) * self.rows.value, self.is_whole)


class _Kitchen:
    """Follows the instructions with samples."""

    def __init__(self, recipe: Any, cache: str | os.PathLike[str] | None, on_error: str) -> None:
        self._recipe, self._on_error = recipe, on_error
        self._n_workers = getattr(as_engine("local"), "n_workers", 1)
        # A cache is made by the first bake; looking for it does not make it.
        self._cache = Cache(cache) if cache is not None and Path(cache).is_dir() else None
        self._has_cache = cache is not None
        self._last = LastBake(self._cache, recipe.name)
        self._flows: list[_Flow] = []
        self._lines: list[ExplainedLine] = []
        self._problems: list[str] = []
        self._is_shuffled = False
        self._n_steps = 0

    def look(self) -> None:
        """All instructions, in their order."""
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
        schema = None
        try:
            schema = one_table([flow.sample for flow in self._flows]).schema if self._flows else None
        except PoolishError as error:
            self._problems.append(str(error))
        rows, n_bytes = (reduce(Estimate.__add__, each, NOTHING) for each in zip(*self._sums(), strict=True))
        seconds = sum(line.seconds for line in self._lines)
        lines, problems = tuple(self._lines), tuple(self._problems)
        return Explanation(self._recipe.name, lines, rows, _together(tokens), n_bytes, seconds, schema, problems)

    def _sums(self) -> list[tuple[Estimate, Estimate]]:
        return [(flow.rows, flow.sized()) for flow in self._flows] or [(NOTHING, NOTHING)]

    # -- ingredients

    def _add(self, ingredient: AddIngredient, quota: int | None) -> None:
        what = f"ingredient {ingredient.name!r}"
        line = ExplainedLine("ingredient", ingredient.name)
        self._lines.append(line)
        where = as_filter(ingredient.where)
        inner = ingredient.source if hasattr(ingredient.source, "instructions") else None
        source: Source = as_source(ingredient.source, what)
        fragments: Sequence[Fragment] = [] if inner is not None else fragments_of(source, what)
        chain = Chain(ingredient.name, source, where, self._recipe.seed, 2**64, None, (), self._on_error)
        if inner is not None:
            look = self._looked_inside(inner, chain, line)
        else:
            look = looked(chain, fragments, self._recipe.seed)
        flow = self._chosen(ingredient, quota, look, chain, fragments, line)
        line.rows_in, line.rows_out, line.n_bytes = look.total, flow.rows, flow.sized()
        line.tokens_out = flow.tokens(self._recipe.tokens)
        n_parallel = max(1, min(self._n_workers, len(fragments)))
        flow.work.append((line, look.seconds / max(1, look.n_read) * look.total.value / n_parallel))
        self._flows.append(flow)

    def _looked_inside(self, recipe: Any, chain: Chain, line: ExplainedLine) -> Look:
        """A nested recipe is explained, not baked: its sample is the source."""
        kitchen = _Kitchen(recipe, None, self._on_error)
        kitchen.look()
        found = kitchen.explanation()
        line.notes.append(f"of recipe {found.recipe!r}, which is baked first in about {duration_text(found.seconds)}")
        self._problems += [f"recipe {found.recipe!r}: {problem}" for problem in found.problems]
        table = one_table([flow.sample for flow in kitchen._flows]) if found.schema is not None else pa.table({})
        started = time.perf_counter()
        piece = Piece.read(chain.ingredient, "", table, np.arange(table.num_rows))
        piece = piece if chain.where is None else piece.keep(filtered(piece, chain.where, chain.on_error, [])[0])
        is_all = found.rows.is_exact and found.rows.value == table.num_rows
        spent = time.perf_counter() - started + found.seconds * table.num_rows / max(1, found.rows.value)
        return Look([piece], table.num_rows, spent, found.rows, is_all)

    def _chosen(
        self,
        ingredient: AddIngredient,
        quota: int | None,
        look: Look,
        chain: Chain,
        fragments: Sequence[Fragment],
        line: ExplainedLine,
    ) -> _Flow:
        available, take, how = look.available(chain.where), ingredient.take, ingredient.pick.how
        hashes = [row_hashes(chain.seed, "pick", each.ingredient, each.name, each.rows) for each in look.pieces]
        is_nested = not fragments and hasattr(ingredient.source, "instructions")
        threshold: int | None = 2**64
        rows = available
        if isinstance(take, float) and how == "hash":
            threshold = threshold_of(take)
            n_below = sum(int(np.count_nonzero(below(each, threshold))) for each in hashes)
            # Rows of a nested recipe have other numbers here than in the bake.
            is_known = look.is_all and not is_nested
            rows = Estimate(n_below, True) if is_known else Estimate(available.value * take, take in (0.0, 1.0))
        elif isinstance(take, float):
            threshold, rows = None, Estimate(round(available.value * take), available.is_exact)
        elif quota is not None and self._recipe.unit == "tokens":
            threshold, rows = None, self._rows_of_tokens(quota, look, available, line)
        elif take is not None or quota is not None:
            asked = quota if quota is not None else int(take or 0)
            rows = self._counted(asked, look, available, ingredient, line)
            threshold = border_of(asked, look, available, hashes) if how == "hash" else None
        n_sampled = min(SAMPLED_ROWS, round(rows.value))
        sample = smallest(look.pieces, hashes, n_sampled, chain)
        by_hash = how == "hash" or rows.value == look.n_passed
        is_whole = look.is_all and rows.is_exact and len(sample) == rows.value and by_hash and not is_nested
        is_known = look.is_all or take is None or isinstance(take, float)
        return _Flow(ingredient.name, rows, sample, is_whole, chain, fragments, line, threshold, is_known)

    def _counted(
        self, asked: int, look: Look, available: Estimate, ingredient: AddIngredient, line: ExplainedLine
    ) -> Estimate:
        # Having seen so many rows is as good as having seen all.
        if asked <= available.value:
            return Estimate(asked, available.is_exact or look.n_passed >= asked)
        if ingredient.on_short == "accept":
            return available
        if ingredient.on_short == "repeat" and available.value:
            line.notes.append(f"{available} rows are repeated until they are {asked:,}")
            return Estimate(asked, available.is_exact)
        text = f"ingredient {ingredient.name!r}: {asked:,} rows asked for, there are {available}"
        self._problems.append(f"{text}; ask for fewer, or pass on_short='accept' or 'repeat'")
        return available

    def _rows_of_tokens(self, quota: int, look: Look, available: Estimate, line: ExplainedLine) -> Estimate:
        column = self._recipe.tokens
        known = [piece.table.column(column) for piece in look.pieces if column in piece.table.column_names]
        counted = sum(pc.sum(each).as_py() or 0 for each in known)
        line.notes.append(f"{quota:,} tokens asked for")
        if not counted:
            return Estimate(0, False)
        return Estimate(min(available.value, quota * look.n_passed / counted), False)

    # -- steps

    def _prepare(self, instruction: PrepareStep) -> None:
        line = ExplainedLine("step", instruction.name)
        self._lines.append(line)
        where, step, bit = as_filter(instruction.where), step_of(instruction), self._n_steps
        self._n_steps += 1
        line.rows_in = reduce(Estimate.__add__, (flow.rows for flow in self._flows), NOTHING)
        line.tokens_in = _together([flow.tokens(self._recipe.tokens) for flow in self._flows])
        try:
            self._done(step, where, Work(instruction.name, step, where, bit), instruction, line)
        except Exception as error:
            # Whatever a bake would stop at is told here; explaining goes on without this step.
            line.notes.append("fails on the sample")
            self._problems.append(f"step {instruction.name!r}: {type(error).__name__}: {error}")
        line.rows_out = reduce(Estimate.__add__, (flow.rows for flow in self._flows), NOTHING)
        line.tokens_out = _together([flow.tokens(self._recipe.tokens) for flow in self._flows])
        line.n_bytes = reduce(Estimate.__add__, (flow.sized() for flow in self._flows), NOTHING)

    def _done(self, step: Any, where: Any, work: Work, instruction: PrepareStep, line: ExplainedLine) -> None:
        if hasattr(step, "prepare") and not getattr(step, "needs_all", False):
            keeps_rows = instruction.step in _KEEPS_ROWS if isinstance(instruction.step, str) else False
            for flow in self._flows:
                if flow.is_open:
                    flow.chain = replace(flow.chain, works=(*flow.chain.works, work))
                self._try(flow, work, line, keeps_rows)
            return
        for flow in self._flows:
            flow.is_open = False
        samples = [flow.sample for flow in self._flows]
        if isinstance(step, Shuffle):
            self._is_shuffled = True
        elif isinstance(step, Limit):
            self._limit(step, where)
        elif isinstance(step, Dedup):
            is_whole = all(flow.is_whole for flow in self._flows)
            started = time.perf_counter()
            masks = step.masks(samples, None, where) if samples else []
            seconds = (time.perf_counter() - started) / max(1, sum(map(len, samples)))
            for flow, mask in zip(self._flows, masks, strict=True):
                flow.work.append((line, seconds * flow.rows.value))
                _became(flow, flow.sample.keep(mask), len(mask), is_exact=is_whole)
        elif isinstance(step, Fitted):
            fitted = replace(work, step=step.with_parameters(step.fitted(samples, where)))
            for flow in self._flows:
                self._try(flow, fitted, line, keeps_rows=True)
        else:
            for flow in self._flows:
                self._try(flow, work, line, keeps_rows=False)

    def _limit(self, step: Limit, where: Any) -> None:
        asked = [_selected(flow, where) for flow in self._flows]
        total = reduce(Estimate.__add__, asked, NOTHING)
        left = float(step.n)
        for flow, mine in zip(self._flows, asked, strict=True):
            if self._is_shuffled:
                kept = mine.value * min(1.0, step.n / max(1.0, total.value))
            else:
                kept = min(mine.value, left)
            left -= kept
            is_exact = total.is_exact and not (self._is_shuffled and kept < mine.value and len(self._flows) > 1)
            if kept < mine.value:
                flow.is_whole = False
                flow.rows = Estimate(flow.rows.value - mine.value + kept, flow.rows.is_exact and is_exact)

    def _try(self, flow: _Flow, work: Work, line: ExplainedLine, keeps_rows: bool) -> None:
        """Do a step to the sample, or to as much of it as can be done quickly."""
        if work.where is not None and work.where.bind(ingredient=flow.name) is False:
            return
        is_quick = isinstance(work.step, RowStep) and not work.step.fingerprint.startswith("tokenize")
        piece = flow.sample if is_quick else self._affordable(flow.sample, work)
        rejects: list[dict[str, Any]] = []
        started = time.perf_counter()
        made = prepared(piece, work, "skip", rejects)
        seconds = time.perf_counter() - started
        if rejects:
            reason = rejects[0]["reason"]
            text = f"{len(rejects):,} of {len(piece):,} sampled rows of {flow.name} rejected: {reason}"
            line.notes.append(text)
            if self._on_error == "raise":
                self._problems.append(f"step {line.name!r}: {text}; the bake would stop there")
        rate = seconds / max(1, len(piece)) * flow.rows.value
        flow.work.append((line, rate / self._n_workers if is_quick else rate))
        if len(piece) < len(flow.sample):
            line.notes.append(
                f"tried on {len(piece):,} rows of {flow.name}: {duration_text(seconds / len(piece))} a row"
            )
        is_all = flow.is_whole and len(piece) == len(flow.sample)
        is_exact = (keeps_rows and flow.rows.is_exact) or is_all
        flow.is_whole = is_all
        _became(flow, made, len(piece), is_exact=is_exact)

    def _affordable(self, sample: Piece, work: Work) -> Piece:
        """Rows of a sample, evenly spread, that a step can be done to in the time there is.

        One row, then 64, then a thousand, so that the answer seldom depends on how busy the machine is.
        """
        tried = spread(sample, 1)
        # The first call pays for imports and the like.
        seconds = min(_seconds(tried, work), _seconds(tried, work))
        for n_rows in TRIED_ROWS:
            if seconds * n_rows > STEP_SECONDS:
                return tried
            tried = spread(sample, n_rows)
            if len(tried) == len(sample):
                return sample
            seconds = _seconds(tried, work) / len(tried)
        return tried

    # -- the cache

    def _look_up(self, flow: _Flow) -> None:
        line = flow.line
        line.fragments = len(flow.fragments)
        missing: Counter[str] = Counter()
        for fragment in flow.fragments:
            reason = self._missing(flow, fragment)
            if reason is None:
                line.cached += 1
            else:
                missing[reason] += 1
        line.missing = dict(missing)
        left = 1 - line.cached / line.fragments if line.fragments else 1.0
        done = {id(line) for line, _ in flow.work[: 1 + len(flow.chain.works)]}
        for each, seconds in flow.work:
            each.seconds += seconds * (left if id(each) in done else 1)

    def _missing(self, flow: _Flow, fragment: Fragment) -> str | None:
        """Why a fragment is not cached; None if it is."""
        if not self._has_cache:
            return "no cache"
        if self._cache is None:
            return "new content"
        kept = self._cache.look(flow.chain.key(fragment))
        if flow.threshold is not None and kept is not None:
            return _chosen_otherwise(flow.threshold, *kept, is_known=flow.is_known)
        otherwise = "chosen while baking" if flow.threshold is None else "not kept"
        return self._last.changed(flow.chain, fragment) or otherwise


def _seconds(piece: Piece, work: Work) -> float:
    started = time.perf_counter()
    prepared(piece, work, "skip", [])
    return time.perf_counter() - started


def _selected(flow: _Flow, where: Any) -> Estimate:
    if where is None:
        return flow.rows
    n_selected = int(np.count_nonzero(selected_rows(flow.sample, where)))
    return Estimate(n_selected / max(1, len(flow.sample)) * flow.rows.value, flow.is_whole)


def _became(flow: _Flow, made: Piece, n_before: int, *, is_exact: bool) -> None:
    share = len(made) / n_before if n_before else 1.0
    flow.rows = Estimate(flow.rows.value * share, is_exact)
    flow.is_whole = flow.is_whole and is_exact
    flow.sample = made.with_table(canonical_table(made.table))


def _together(parts: Sequence[Estimate | None]) -> Estimate | None:
    known = [part for part in parts if part is not None]
    return reduce(Estimate.__add__, known) if known and len(known) == len(parts) else None


def _chosen_otherwise(threshold: int, kept: int, holds_for_fewer: bool, *, is_known: bool) -> str | None:
    """Why a kept result does not hold for this choice: it has too few rows, or more and nobody knows which to leave."""
    if kept < threshold:
        return "more rows asked for"
    return "fewer rows asked for" if kept > threshold and is_known and not holds_for_fewer else None
