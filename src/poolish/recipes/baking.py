"""From a recipe to rows: one instruction after the other, each fragment by itself as far as that goes.

    ingredient   fragments --where, selection--> pipeline of row-local steps       pending: nothing is read yet
    barrier      all pending pipelines run, the barrier decides about all rows, and the bake acts on its decision
    end          what is pending runs; fragments become one table, in order

Row-local steps commute with everything but a barrier, so a fragment passes all of them in one go, in any thread, and
its result can be cached.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from poolish.errors import BudgetSpent, RecipeError
from poolish.guards.checks.guard import ask, passed
from poolish.guards.checks.verdicts import Result
from poolish.printable import counted
from poolish.recipes.cache import Cache
from poolish.recipes.engine import Engine, taken
from poolish.recipes.fragment_rows import BakedFragment, Fragment, FragmentRows, part_numbers, threshold_of
from poolish.recipes.lineage import BakedRows, Nested
from poolish.recipes.pipeline import BoundStep, FragmentPipeline, Reject, bake_together, fragments_of, prepared
from poolish.recipes.plan import AddIngredient, IngredientState, Recipe, RecipeRun
from poolish.recipes.selection import ByTokens, CandidateReader, Choice, Chooser, check_token_share, chooser, scan
from poolish.recipes.sources import FileSource, RecipeSource, Source, as_source
from poolish.recipes.steps.registry import is_barrier
from poolish.rows import DatasetBuffer

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class BakeOptions:
    """How a recipe is baked; the recipe says what. ``into`` is a buffer that the rows are appended to."""

    engine: Engine
    on_error: str = "raise"
    budget: float | None = None
    cache: Cache | None = None
    progress: Progress | None = None
    guard: Any = None
    into: DatasetBuffer | None = None


@dataclass
class InstructionStats:
    """What one instruction did. ``changes`` of an ingredient: how many of its rows each later step added or removed."""

    name: str
    kind: str
    rows_in: int = 0
    rows_out: int = 0
    asked: int | float | None = None
    nulls: int = 0
    filtered: int = 0
    rejected: int = 0
    fragments: int = 0
    cached: int = 0
    seconds: float = 0.0
    tokens: int | None = None
    changes: dict[str, int] = field(default_factory=dict)

    def changed_by(self, step: str, n_rows: int) -> None:
        """Count rows that a step added to this ingredient, or, below 0, removed from it."""
        if n_rows:
            self.changes[step] = self.changes.get(step, 0) + n_rows


@dataclass
class BakingState(IngredientState):
    """One ingredient during a bake, with the statistics of its instruction and of each step in its pipeline."""

    line: InstructionStats
    lines: list[InstructionStats]
    repeat: int = 1
    extra: Choice | None = None

    @property
    def n_rows(self) -> int:
        """Its rows, as far as they were read."""
        return sum(map(len, self.pieces or ()))


@dataclass(frozen=True)
class BakeOutcome:
    """The buffer with the rows, where each came from, what each instruction did, and what was rejected."""

    buffer: DatasetBuffer
    rows: BakedRows
    lines: tuple[InstructionStats, ...]
    rejects: tuple[Reject, ...]
    step_names: tuple[str, ...]
    ingredients: tuple[BakingState, ...]
    tokens: str | None


class Bake(RecipeRun[BakingState]):
    """One bake of a recipe."""

    def __init__(self, recipe: Recipe, options: BakeOptions) -> None:
        super().__init__(recipe, options.on_error)
        self._options = options
        self._lines: list[InstructionStats] = []
        self._rejects: list[Reject] = []
        self._n_seen = 0
        self._inside: dict[str, RecipeSource] = {}
        self._nested: dict[str, Nested] = {}
        self._looked_at: dict[Any, tuple[FileSource, Sequence[Fragment]]] = {}

    def run(self) -> BakeOutcome:
        """Bake everything and put it into a buffer."""
        self.follow()
        guard, into = self._options.guard, self._options.into
        # A new buffer can leave out rows by a mask, which saves a copy.
        self._materialize(may_mask=guard is None and into is None and not self.is_sorted)
        pieces = self.pieces()
        rows = BakedRows.of(pieces, [state.name for state in self.states], self.order(pieces))
        if guard is not None:
            rows = self._guarded(rows, ask(guard, rows.table))
        buffer = DatasetBuffer() if into is None else into
        rows = rows.append_into(buffer) if into is None else self._appended(rows, into)
        lines, rejects, names = tuple(self._lines), tuple(self._rejects), tuple(self.step_names)
        return BakeOutcome(buffer, rows, lines, rejects, names, tuple(self.states), self.recipe.tokens)

    def _appended(self, rows: BakedRows, buffer: DatasetBuffer) -> BakedRows:
        """Append the rows to an existing buffer; returns those that its guard accepts."""
        own = buffer.guard
        if own is None or not rows.table.num_columns:
            if rows.table.num_columns:
                buffer.append(rows.table)
            return rows
        entered = [rows]

        def listening(asked: Any) -> Result:
            # The bake counts rejected rows before anything is appended, because they may exceed the budget. The guard
            # is asked once: it may have a memory.
            answer = ask(own, asked, buffer)
            entered.append(self._guarded(rows, answer))
            return answer

        buffer.append(rows.table, guard=listening)
        return entered[-1]

    def _guarded(self, rows: BakedRows, result: Result) -> BakedRows:
        """The rows that a guard accepts; the others are rejected with its reasons."""
        mask = passed(result, "bake")
        if mask is None or mask.all():
            return rows
        n_rejected = int((~mask).sum())
        self._lines.append(
            InstructionStats("guard", "step", rows_in=len(mask), rows_out=len(mask) - n_rejected, rejected=n_rejected)
        )
        lost = np.bincount(rows.ingredients[~mask], minlength=len(self.states))
        for state, n_lost in zip(self.states, lost.tolist(), strict=True):
            state.line.changed_by("guard", -n_lost)
        for bad in result.rejected(~mask).to_pylist():
            i = bad["row"]
            ingredient, file = rows.ingredient_names[int(rows.ingredients[i])], rows.part_names[int(rows.names[i])]
            place = {"ingredient": ingredient, "file": file, "row": int(rows.rows[i])}
            self._rejects.append({**place, "step": "guard", "reason": bad["reason"]})
        self._keep_budget(self._n_seen)
        return rows.keep(mask)

    # -- ingredients

    def add(self, ingredient: AddIngredient, quota: int | None) -> None:
        """Open its source and select rows; they are read when a barrier or the end needs them."""
        what = f"ingredient {ingredient.name!r}"
        source = as_source(ingredient.source, what, ingredient.storage)
        line = InstructionStats(ingredient.name, "ingredient", asked=quota if quota is not None else ingredient.take)
        self._lines.append(line)
        if isinstance(source, RecipeSource):
            self._bake_inside(source, ingredient.name, line)
        started = time.perf_counter()
        fragments = self._fragments_of(source, what)
        pipeline = self.pipeline_of(ingredient, source)
        state = BakingState(ingredient.name, pipeline, fragments, line, [line])
        self._choose(state, ingredient, quota)
        line.seconds += time.perf_counter() - started
        self.states.append(state)

    def _fragments_of(self, source: Source, what: str) -> Sequence[Fragment]:
        """The fragments of a source; files that several ingredients are made of are looked at once."""
        if not isinstance(source, FileSource):
            return fragments_of(source, what)
        looked_at = source.paths, source.options
        if looked_at not in self._looked_at:
            self._looked_at[looked_at] = source, fragments_of(source, what)
        first, fragments = self._looked_at[looked_at]
        source.look_like(first)
        return fragments

    def _bake_inside(self, source: RecipeSource, ingredient: str, line: InstructionStats) -> None:
        """Another recipe is baked first, by the same rules; what it rejects is rejected here."""
        try:
            source.prepare(self._options.engine, self._options.cache, self.on_error)
        except Exception as error:
            error.add_note(f"while baking ingredient {ingredient!r}, which is a recipe")
            raise
        self._inside[ingredient] = source
        rejects = [] if source.rejects is None else source.rejects.to_pylist()
        self._reject(rejects, sum(each.rows_in for each in source.report.lines if each.kind == "ingredient"), line)
        self._keep_budget(None)

    def _choose(self, state: BakingState, ingredient: AddIngredient, quota: int | None) -> None:
        take, how = ingredient.take, ingredient.pick.how
        if quota is None and (take is None or (isinstance(take, float) and how == "hash")):
            state.pipeline = replace(state.pipeline, threshold=2**64 if take is None else threshold_of(float(take)))
            return
        if quota is not None and self.recipe.unit == "tokens":
            self._choose_tokens(state, ingredient, quota)
            return
        asked = quota if quota is not None else take if isinstance(take, int) else None
        what = f"ingredient {state.name!r}, column {ingredient.pick.column!r}"
        picking = self._scan(state, chooser(how, asked, what), ingredient.pick.column, None)
        choice = picking.choose(asked or 0)
        if asked is None:
            assert isinstance(take, float)
            asked = round(choice.available * take)
            choice = picking.choose(asked)
        if asked > choice.available:
            choice = self._short(state, ingredient, asked, choice.available, picking)
        state.pipeline = choice.of(state.pipeline)

    def _scan(self, state: BakingState, picking: Chooser, column: str | None, tokens: str | None) -> Chooser:
        """Feed all candidates of an ingredient to its selector."""
        reader = CandidateReader(state.pipeline, column, tokens, self._options.cache)
        scan(picking, reader, state.fragments, self._options.engine)
        return picking

    def _choose_tokens(self, state: BakingState, ingredient: AddIngredient, asked: int) -> None:
        check_token_share(state.name, ingredient.pick.how, ingredient.on_short)
        choice = self._scan(state, ByTokens(asked), None, self.recipe.tokens).choose(asked)
        state.line.tokens = choice.tokens
        if asked > choice.available and ingredient.on_short != "accept":
            raise RecipeError(
                f"ingredient {state.name!r}: {asked:,} tokens asked for, there are {choice.available:,}; ask for "
                "fewer, or pass on_short='accept'"
            )
        state.pipeline = choice.of(state.pipeline)

    def _short(
        self, state: BakingState, ingredient: AddIngredient, asked: int, available: int, picking: Chooser
    ) -> Choice:
        if ingredient.on_short == "repeat" and not available:
            raise RecipeError(
                f"ingredient {state.name!r}: {asked:,} rows asked for, and none passes its filter, so nothing can be "
                "repeated; check where= and the source, or pass on_short='accept'"
            )
        if ingredient.on_short == "error":
            raise RecipeError(
                f"ingredient {state.name!r}: {asked:,} rows asked for, there are {available:,} after its filter; ask "
                "for fewer, or pass on_short='accept' or 'repeat'"
            )
        if ingredient.on_short == "repeat":
            state.repeat, rest = divmod(asked, available)
            state.extra = picking.choose(rest) if rest else None
        return picking.choose(available)

    # -- steps

    def prepare(self, bound: BoundStep) -> None:
        """Add a row-local step to the pipelines that are pending, or carry out a barrier."""
        line = InstructionStats(bound.name, "step")
        self._lines.append(line)
        has_barrier = is_barrier(bound.step)
        if has_barrier:
            self._materialize()
        started = time.perf_counter()
        if has_barrier:
            before = [state.n_rows for state in self.states]
            self._reject(self.act(self.decide(bound, self.on_error), bound, self.on_error), 0)
            line.rows_in, line.rows_out = sum(before), sum(state.n_rows for state in self.states)
            for state, n_before in zip(self.states, before, strict=True):
                state.line.changed_by(bound.name, state.n_rows - n_before)
        else:
            self._row_local(bound, line)
        line.seconds += time.perf_counter() - started

    def _row_local(self, bound: BoundStep, line: InstructionStats) -> None:
        for state in self.states:
            if state.pieces is None:
                state.pipeline = replace(state.pipeline, steps=(*state.pipeline.steps, bound))
                state.lines.append(line)
            else:
                found = list(self._options.engine.run(partial(_prepared, bound, self.on_error), state.pieces))
                n_before = state.n_rows
                state.pieces = [piece for piece, _ in found]
                line.rows_in, line.rows_out = line.rows_in + n_before, line.rows_out + state.n_rows
                state.line.changed_by(bound.name, state.n_rows - n_before)
                self._reject([each for _, rejects in found for each in rejects], 0)

    # -- baking what is pending

    def _materialize(self, *, may_mask: bool = False) -> None:
        pending = [state for state in self.states if state.pieces is None]
        groups = _grouped(pending)
        started = time.perf_counter()
        found: dict[tuple[int, int], BakedFragment] = {}
        left = [self._not_kept(group) for group in groups]
        to_bake = [each for each in left if each.pipelines]
        # While others bake what is missing, this thread can read what is kept.
        has_both = self._options.cache is not None and to_bake and len(to_bake) < len(groups)
        engine = self._options.engine
        begin = getattr(engine, "start", engine.run) if has_both else engine.run
        run = begin(partial(_baked, self._options.cache), to_bake)
        n_rows = [each.n_rows for state in pending if not _is_nested(state.pipeline) for each in state.fragments]
        n_expected = None if None in n_rows else self._n_seen + sum(n or 0 for n in n_rows)
        with taken(run) as results:  # a budget that is spent ends what is still being baked
            for i, (group, missing) in enumerate(zip(groups, left, strict=True)):
                found |= zip(missing.places, next(results) if missing.pipelines else (), strict=True)
                for pipeline, place in zip(group.pipelines, group.places, strict=True):
                    if place not in found:
                        found[place] = self._kept_or_baked(pipeline, group.fragment, may_mask)
                    # What a recipe inside of this one read has been seen already.
                    self._reject(found[place].rejects, 0 if _is_nested(pipeline) else found[place].counts[0]["in"])
                self._keep_budget(n_expected)
                if self._options.progress is not None:
                    self._options.progress(pending[group.places[0][0]].name, i + 1, len(groups))
        seconds = time.perf_counter() - started
        n_fragments = max(1, sum(len(state.fragments) for state in pending))
        for k, state in enumerate(pending):
            own = [found[k, i] for i in range(len(state.fragments))]
            self._finish(state, own, seconds * len(state.fragments) / n_fragments)
        self._keep_budget(self._n_seen)

    def _not_kept(self, group: Group) -> Group:
        """What of a fragment has to be baked."""
        left = Group(group.fragment, [], [])
        for pipeline, place in zip(group.pipelines, group.places, strict=True):
            if self._options.cache is None or not pipeline.is_kept(group.fragment, self._options.cache):
                left.pipelines.append(pipeline)
                left.places.append(place)
        return left

    def _kept_or_baked(self, pipeline: FragmentPipeline, fragment: Fragment, may_mask: bool = False) -> BakedFragment:
        kept = pipeline.kept(fragment, self._options.cache)
        if kept is None:
            return bake_together([pipeline], fragment, self._options.cache)[0]
        return kept if may_mask else replace(kept, piece=kept.piece.apply_mask())

    def _finish(self, state: BakingState, baked: list[BakedFragment], seconds: float) -> None:
        state.pieces = [state.pipeline.in_recipe(each.piece) for each in baked] or [state.pipeline.nothing("")]
        state.line.fragments, state.line.cached = len(baked), sum(each.is_cached for each in baked)
        self._share_out(state, baked, seconds)
        self._count(state, baked, state.repeat)
        for _ in range(1, state.repeat):  # a row that fails is lost as often as it would have come
            self._reject([reject for each in baked for reject in each.rejects if reject["step"] != "where"], 0)
        if state.repeat > 1 or state.extra is not None:
            state.pieces = [_copy(piece.apply_mask(), k) for k in range(state.repeat) for piece in state.pieces]
            state.pieces += [_copy(each.piece, state.repeat) for each in self._extra(state)]

    def _extra(self, state: BakingState) -> list[BakedFragment]:
        """The rows that come once more than the others, where a share asks for more rows than there are."""
        if state.extra is None:
            return []
        pipeline = state.extra.of(state.pipeline)
        baked = [self._kept_or_baked(pipeline, fragment) for fragment in state.fragments]
        self._reject([reject for each in baked for reject in each.rejects if reject["step"] != "where"], 0)
        n_rows = state.line.rows_in
        self._count(state, baked, 1)
        state.line.rows_in = n_rows
        return [replace(each, piece=pipeline.in_recipe(each.piece)) for each in baked]

    def _share_out(self, state: BakingState, baked: list[BakedFragment], seconds: float) -> None:
        """The time that a lot took, to the ingredient and its steps as they needed it."""
        needed = [sum(each.seconds[i] for each in baked if each.seconds) for i in range(len(state.lines))]
        if not any(needed):  # all of it was kept
            needed[0] = 1.0
        for line, own in zip(state.lines, needed, strict=True):
            line.seconds += seconds * own / sum(needed)

    def _count(self, state: BakingState, baked: list[BakedFragment], times: int) -> None:
        """Add what was counted on the way to the lines of the report."""
        state.line.nulls, state.line.filtered = (sum(b.counts[0][name] for b in baked) for name in ("null", "filtered"))
        for i, line in enumerate(state.lines):  # the source is read once, however often its rows come
            n_in = (times if i else 1) * sum(each.counts[i]["in"] for each in baked)
            n_out = times * sum(each.counts[i]["out"] for each in baked)
            line.rows_in, line.rows_out = line.rows_in + n_in, line.rows_out + n_out
            if i:
                state.line.changed_by(line.name, n_out - n_in)

    def _reject(self, rejects: list[Reject], n_seen: int, line: InstructionStats | None = None) -> None:
        """Count rejected rows at the line of the step that rejected them, or at that of the recipe they were in."""
        self._rejects += [self._in_result(each) for each in rejects] if line is None else rejects
        self._n_seen += n_seen
        by_name = {(each.kind, each.name): each for each in self._lines}
        for each in rejects:
            own = line or by_name.get(("step", each["step"])) or by_name.get(("ingredient", each["ingredient"]))
            if own is not None:
                own.rejected += 1

    def _in_result(self, reject: Reject) -> Reject:
        """The reject with the row of the inner result, where it is a row of a recipe inside of this one."""
        name = reject["ingredient"]
        if name not in self._inside:
            return reject
        if name not in self._nested:
            self._nested[name] = Nested(self._inside[name].lineage)
        return {**reject, "row": int(self._nested[name].places_of(np.array([reject["row"]]))[0])}

    def _keep_budget(self, n_rows: int | None) -> None:
        """Raise if too many rows were rejected of ``n_rows``: all that will have been read, if that is known.

        A share is one of all rows, not of those that happen to have been read: these depend on how the data is cut.
        """
        budget = self._options.budget
        is_share = isinstance(budget, float)
        if budget is None or not self._rejects or (is_share and n_rows is None):
            return
        limit = budget * (n_rows or 0) if is_share else budget
        if len(self._rejects) > limit:
            raise BudgetSpent(
                f"{len(self._rejects):,} of {counted(n_rows or self._n_seen, 'row')} rejected, the budget is {budget}; "
                f"the last: {self._rejects[-1]}; see what is wrong with them, or raise the budget"
            )


@dataclass(frozen=True)
class Group:
    """A fragment and all ingredients that are made of it; ``places`` says which fragment of which ingredient it is."""

    fragment: Fragment
    pipelines: list[FragmentPipeline]
    places: list[tuple[int, int]]


def _is_nested(pipeline: FragmentPipeline) -> bool:
    return isinstance(pipeline.source, RecipeSource)


def _baked(cache: Cache | None, group: Group) -> list[BakedFragment]:
    return bake_together(group.pipelines, group.fragment, cache)


def _prepared(bound: BoundStep, on_error: str, piece: FragmentRows) -> tuple[FragmentRows, list[Reject]]:
    rejects: list[Reject] = []
    return prepared(piece, bound, on_error, rejects), rejects


def _grouped(states: list[BakingState]) -> list[Group]:
    """Fragments in their order; those of several ingredients that are the same part of the same file only once."""
    groups: dict[Any, Group] = {}
    for k, state in enumerate(states):
        for i, fragment in enumerate(state.fragments):
            key = (k, i) if "path" not in fragment.place else (fragment.name, str(sorted(fragment.place.items())))
            group = groups.setdefault(key, Group(fragment, [], []))
            group.pipelines.append(state.pipeline)
            group.places.append((k, i))
    return list(groups.values())


def _copy(piece: FragmentRows, number: int) -> FragmentRows:
    return replace(piece, subs=part_numbers(piece.subs, "repeat", np.full(len(piece), number)))
