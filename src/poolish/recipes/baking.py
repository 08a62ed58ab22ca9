"""From a recipe to rows: one instruction after the other, each fragment by itself as far as that goes.

    ingredient   fragments --where, choice--> chain of row-local steps       pending: nothing is read yet
    barrier      all pending chains are baked, the barrier looks at all pieces, and goes on from what it leaves
    end          what is pending is baked; pieces become one table, in order

Row-local steps commute with everything but a barrier, so a fragment runs through all of them in one go, in any thread,
and its result can be kept. ``lots`` are the ingredients so far, in their order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from poolish.errors import BudgetSpent, RecipeError, UnknownColumn
from poolish.guards.checks.guard import ask, passed
from poolish.recipes.cache import BakedFragment, Cache, total
from poolish.recipes.choosing import look
from poolish.recipes.engine import Engine, taken
from poolish.recipes.filters import as_filter
from poolish.recipes.fragment_rows import FragmentRows, Int64, part_numbers, selected_rows, threshold_of
from poolish.recipes.instructions import AddIngredient, PrepareStep
from poolish.recipes.lineage import BakedRows, Nested
from poolish.recipes.pipeline import BoundStep, FragmentPipeline, bake_together, fragments_of, prepared
from poolish.recipes.selection import ByTokens, Choice, Chooser, chooser, largest_remainder
from poolish.recipes.sources import Fragment, Source, as_source
from poolish.recipes.sources.files import FileSource
from poolish.recipes.sources.source import RecipeSource
from poolish.recipes.steps.barriers import Barrier, Fitted, Shuffle
from poolish.recipes.steps.registry import step_of
from poolish.recipes.steps.suites import SuiteStep

MAX_STEPS = 62

Progress = Callable[[str, int, int], None]


@dataclass
class InstructionStats:
    """What one instruction did."""

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


@dataclass
class IngredientState:
    """One ingredient on its way."""

    name: str
    pipeline: FragmentPipeline
    fragments: Sequence[Fragment]
    line: InstructionStats
    lines: list[InstructionStats]
    repeat: int = 1
    extra: Choice | None = None
    pieces: list[FragmentRows] | None = None


@dataclass
class Bake:
    """One bake."""

    instructions: Sequence[Any]
    seed: int
    total: int | None
    unit: str
    tokens: str | None
    engine: Engine
    on_error: str = "raise"
    budget: float | None = None
    cache: Cache | None = None
    progress: Progress | None = None
    guard: Any = None
    #: Whether whoever takes the result can leave out rows by a mask.
    may_mask: bool = False
    lines: list[InstructionStats] = field(default_factory=list)
    rejects: list[dict[str, Any]] = field(default_factory=list)
    step_names: list[str] = field(default_factory=list)
    _states: list[IngredientState] = field(default_factory=list)
    _shuffled: tuple[int, Shuffle, str] | None = None
    _n_seen: int = 0
    _given_names: list[str] = field(default_factory=list)
    _inside: dict[str, RecipeSource] = field(default_factory=dict)
    _nested: dict[str, Nested] = field(default_factory=dict)
    _looked_at: dict[Any, tuple[FileSource, Sequence[Fragment]]] = field(default_factory=dict)

    def run(self) -> BakedRows:
        """Everything, in the order of the instructions."""
        quotas = quotas_of(self.instructions, self.total)
        for instruction in self.instructions:
            if isinstance(instruction, AddIngredient):
                self._add(instruction, quotas.get(instruction.name))
            else:
                self._prepare(instruction)
        self._materialize(may_mask=self.may_mask and self.guard is None and self._shuffled is None)
        rows = self._assembled()
        return rows if self.guard is None else self._guarded(rows)

    def _guarded(self, rows: BakedRows) -> BakedRows:
        """The rows that a guard lets through the last door; what it keeps out is told with its reason."""
        result = ask(self.guard, rows.table)
        mask = passed(result, "bake")
        if mask is None or mask.all():
            return rows
        n_rejected = int((~mask).sum())
        self.lines.append(
            InstructionStats("guard", "step", rows_in=len(mask), rows_out=len(mask) - n_rejected, rejected=n_rejected)
        )
        for bad in result.rejected(~mask).to_pylist():
            i = bad["row"]
            ingredient, file = rows.ingredient_names[int(rows.ingredients[i])], rows.part_names[int(rows.names[i])]
            place = {"ingredient": ingredient, "file": file, "row": int(rows.rows[i])}
            self.rejects.append({**place, "step": "guard", "reason": bad["reason"]})
        self._keep_budget(self._n_seen)
        return rows.keep(mask)

    # -- ingredients

    def _add(self, ingredient: AddIngredient, quota: int | None) -> None:
        what = f"ingredient {ingredient.name!r}"
        source = as_source(ingredient.source, what)
        line = InstructionStats(ingredient.name, "ingredient", asked=quota if quota is not None else ingredient.take)
        self.lines.append(line)
        if isinstance(source, RecipeSource):
            self._bake_inside(source, ingredient.name, line)
        where = as_filter(ingredient.where, what)
        started = time.perf_counter()
        fragments = self._fragments_of(source, what)
        pipeline = FragmentPipeline(ingredient.name, source, where, self.seed, 2**64, None, (), self.on_error)
        state = IngredientState(ingredient.name, pipeline, fragments, line, [line])
        self._choose(state, ingredient, quota)
        line.seconds += time.perf_counter() - started
        self._states.append(state)

    def _fragments_of(self, source: Source, what: str) -> Sequence[Fragment]:
        """The fragments of a source; files that several ingredients are made of are looked at once."""
        if not isinstance(source, FileSource):
            return fragments_of(source, what)
        if source.paths not in self._looked_at:
            self._looked_at[source.paths] = source, fragments_of(source, what)
        first, fragments = self._looked_at[source.paths]
        source.look_like(first)
        return fragments

    def _bake_inside(self, source: RecipeSource, ingredient: str, line: InstructionStats) -> None:
        """Another recipe is baked first, by the same rules; what it rejects is rejected here."""
        try:
            source.prepare(self.engine, self.cache, self.on_error)
        except Exception as error:
            error.add_note(f"while baking ingredient {ingredient!r}, which is a recipe")
            raise
        self._inside[ingredient] = source
        rejects = [] if source.rejects is None else source.rejects.to_pylist()
        self._reject(rejects, sum(each.rows_in for each in source.report.lines if each.kind == "ingredient"), line)
        self._keep_budget(None)

    def _choose(self, state: IngredientState, ingredient: AddIngredient, quota: int | None) -> None:
        take, how = ingredient.take, ingredient.pick.how
        if quota is None and (take is None or (isinstance(take, float) and how == "hash")):
            state.pipeline = replace(state.pipeline, threshold=2**64 if take is None else threshold_of(float(take)))
            return
        if quota is not None and self.unit == "tokens":
            self._choose_tokens(state, ingredient, quota)
            return
        asked = quota if quota is not None else take if isinstance(take, int) else None
        what = f"ingredient {state.name!r}, column {ingredient.pick.column!r}"
        picking = self._look(state, chooser(how, asked, what), ingredient.pick.column, None)
        choice = picking.choose(asked or 0)
        if asked is None:
            assert isinstance(take, float)
            asked = round(choice.available * take)
            choice = picking.choose(asked)
        if asked > choice.available:
            choice = self._short(state, ingredient, asked, choice.available, picking)
        self._set(state, choice)

    def _look(self, state: IngredientState, picking: Chooser, column: str | None, tokens: str | None) -> Chooser:
        """Show all candidates of an ingredient to whoever picks among them."""
        look(picking, state.pipeline, state.fragments, column, tokens, self.engine, self.cache)
        return picking

    def _set(self, state: IngredientState, choice: Choice) -> None:
        threshold = 2**64 if choice.threshold is None else choice.threshold
        state.pipeline = replace(state.pipeline, threshold=threshold, chosen=choice.rows)

    def _choose_tokens(self, state: IngredientState, ingredient: AddIngredient, asked: int) -> None:
        if ingredient.pick.how != "hash" or ingredient.on_short == "repeat":
            raise RecipeError(
                f"ingredient {state.name!r}: shares in tokens are picked by hash and not repeated; leave out pick= and "
                "on_short='repeat', or count the total in rows"
            )
        choice = self._look(state, ByTokens(asked), None, self.tokens).choose(asked)
        state.line.tokens = choice.tokens
        if asked > choice.available and ingredient.on_short != "accept":
            raise RecipeError(
                f"ingredient {state.name!r}: {asked:,} tokens asked for, there are {choice.available:,}; ask for "
                "fewer, or pass on_short='accept'"
            )
        self._set(state, choice)

    def _short(
        self, state: IngredientState, ingredient: AddIngredient, asked: int, available: int, picking: Chooser
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

    def _prepare(self, instruction: PrepareStep) -> None:
        if len(self.step_names) == MAX_STEPS:
            raise RecipeError(f"more than {MAX_STEPS} steps in one recipe; bake it in two")
        where, step = as_filter(instruction.where, f"step {instruction.name!r}"), step_of(instruction)
        # Names tell steps apart in the report, among the rejects and in what rows are called.
        n_same = sum(each == instruction.name for each in self._given_names)
        name = instruction.name if not n_same else f"{instruction.name} ({n_same + 1})"
        line = InstructionStats(name, "step")
        self.lines.append(line)
        bit = len(self.step_names)
        self._given_names.append(instruction.name)
        self.step_names.append(name)
        is_barrier = isinstance(step, Barrier) or getattr(step, "needs_all", False)
        if is_barrier:
            self._materialize()
        started = time.perf_counter()
        if is_barrier:
            try:
                self._pass(step, where, name, bit, line)
            except UnknownColumn as error:
                raise UnknownColumn(f"step {name!r}: {error}") from None
        else:
            self._row_local(BoundStep(name, step, where, bit), line)
        line.seconds += time.perf_counter() - started

    def _row_local(self, bound: BoundStep, line: InstructionStats) -> None:
        for state in self._states:
            if state.pieces is None:
                state.pipeline = replace(state.pipeline, steps=(*state.pipeline.steps, bound))
                state.lines.append(line)
            else:
                found = list(self.engine.run(partial(_prepared, bound, self.on_error), state.pieces))
                line.rows_in += sum(len(piece) for piece in state.pieces)
                state.pieces = [piece for piece, _ in found]
                line.rows_out += sum(len(piece) for piece in state.pieces)
                self._reject([each for _, rejects in found for each in rejects], 0)

    def _pass(self, step: Any, where: Any, name: str, bit: int, line: InstructionStats) -> None:
        """All rows through a barrier."""
        pieces = [piece for state in self._states for piece in state.pieces or ()]
        line.rows_in = sum(len(piece) for piece in pieces)
        if isinstance(step, Shuffle):
            if where is not None:
                raise RecipeError(f"step {name!r}: rows are shuffled among all others, so where= has no meaning here")
            self._shuffled = (len(self._states), step, name)
        elif isinstance(step, Fitted):
            self._fit(step, where, name, bit)
        elif isinstance(step, SuiteStep):
            rejects: list[dict[str, Any]] = []
            self._keep(step.masks(pieces, self._order(pieces), where, self.on_error, rejects))
            self._reject([{**each, "step": name} for each in rejects], 0)
        else:
            self._keep(step.masks(pieces, self._order(pieces), where))
        if not isinstance(step, Fitted):
            self._mark(where, bit)
        line.rows_out = sum(len(piece) for state in self._states for piece in state.pieces or ())

    def _mark(self, where: Any, bit: int) -> None:
        """Rows that a barrier looked at and left remember it."""
        for state in self._states:
            state.pieces = [
                replace(piece, steps=np.where(selected_rows(piece, where), piece.steps | (1 << bit), piece.steps))
                if len(piece)
                else piece
                for piece in state.pieces or ()
            ]

    def _keep(self, masks: list[Any]) -> None:
        masks = list(masks)
        for state in self._states:
            state.pieces = [piece.keep(masks.pop(0)) for piece in state.pieces or ()]

    def _fit(self, step: Fitted, where: Any, name: str, bit: int) -> None:
        pieces = [piece for state in self._states for piece in state.pieces or ()]
        fitted = step.fitted(pieces, where)
        bound = BoundStep(name, step.with_parameters(fitted), where, bit)
        for state in self._states:
            state.pieces = [prepared(piece, bound, self.on_error, []) for piece in state.pieces or ()]

    # -- baking what is pending

    def _materialize(self, *, may_mask: bool = False) -> None:
        pending = [state for state in self._states if state.pieces is None]
        groups = _grouped(pending)
        started = time.perf_counter()
        found: dict[tuple[int, int], BakedFragment] = {}
        left = [self._not_kept(group) for group in groups]
        to_bake = [each for each in left if each.pipelines]
        # While others bake what is missing, this thread can read what is kept.
        has_both = self.cache is not None and to_bake and len(to_bake) < len(groups)
        begin = getattr(self.engine, "start", self.engine.run) if has_both else self.engine.run
        run = begin(partial(_baked, self.cache), to_bake)
        n_rows = [each.n_rows for state in pending if not _is_nested(state.pipeline) for each in state.fragments]
        n_expected = None if None in n_rows else self._n_seen + sum(n or 0 for n in n_rows)
        with taken(run) as results:  # a budget that is spent ends what is still being baked
            for i, (group, missing) in enumerate(zip(groups, left, strict=True)):
                found |= zip(missing.places, next(results) if missing.pipelines else (), strict=True)
                for pipeline, place in zip(group.pipelines, group.places, strict=True):
                    if place not in found:
                        found[place] = self._kept_or_baked(pipeline, group.fragment, may_mask=may_mask)
                    # What a recipe inside of this one read has been seen already.
                    self._reject(found[place].rejects, 0 if _is_nested(pipeline) else found[place].counts[0]["in"])
                self._keep_budget(n_expected)
                if self.progress is not None:
                    self.progress(pending[group.places[0][0]].name, i + 1, len(groups))
        seconds = time.perf_counter() - started
        n_fragments = max(1, sum(len(state.fragments) for state in pending))
        for k, state in enumerate(pending):
            own = [found[k, i] for i in range(len(state.fragments))]
            self._settle(state, own, seconds * len(state.fragments) / n_fragments)
        self._keep_budget(self._n_seen)

    def _not_kept(self, group: Group) -> Group:
        """What of a fragment has to be baked."""
        left = Group(group.fragment, [], [])
        for pipeline, place in zip(group.pipelines, group.places, strict=True):
            if self.cache is None or not pipeline.is_kept(group.fragment, self.cache):
                left.pipelines.append(pipeline)
                left.places.append(place)
        return left

    def _kept_or_baked(
        self, pipeline: FragmentPipeline, fragment: Fragment, *, may_mask: bool = False
    ) -> BakedFragment:
        kept = pipeline.kept(fragment, self.cache)
        if kept is None:
            return bake_together([pipeline], fragment, self.cache)[0]
        return kept if may_mask else replace(kept, piece=kept.piece.apply_mask())

    def _settle(self, state: IngredientState, baked: list[BakedFragment], seconds: float) -> None:
        state.pieces = [state.pipeline.in_recipe(each.piece) for each in baked] or [state.pipeline.nothing("")]
        state.line.fragments, state.line.cached = len(baked), sum(each.is_cached for each in baked)
        self._share_out(state, baked, seconds)
        self._count(state, baked, state.repeat)
        for _ in range(1, state.repeat):  # a row that fails is lost as often as it would have come
            self._reject([reject for each in baked for reject in each.rejects if reject["step"] != "where"], 0)
        if state.repeat > 1 or state.extra is not None:
            state.pieces = [_copy(piece.apply_mask(), k) for k in range(state.repeat) for piece in state.pieces]
            state.pieces += [_copy(each.piece, state.repeat) for each in self._extra(state)]

    def _extra(self, state: IngredientState) -> list[BakedFragment]:
        """The rows that come once more than the others, where a share asks for more rows than there are."""
        if state.extra is None:
            return []
        threshold = 2**64 if state.extra.threshold is None else state.extra.threshold
        pipeline = replace(state.pipeline, threshold=threshold, chosen=state.extra.rows)
        baked = [self._kept_or_baked(pipeline, fragment) for fragment in state.fragments]
        self._reject([reject for each in baked for reject in each.rejects if reject["step"] != "where"], 0)
        n_rows = state.line.rows_in
        self._count(state, baked, 1)
        state.line.rows_in = n_rows
        return [replace(each, piece=pipeline.in_recipe(each.piece)) for each in baked]

    def _share_out(self, state: IngredientState, baked: list[BakedFragment], seconds: float) -> None:
        """The time that a lot took, to the ingredient and its steps as they needed it."""
        needed = [sum(each.seconds[i] for each in baked if each.seconds) for i in range(len(state.lines))]
        for line, own in zip(state.lines, needed, strict=True):
            line.seconds += seconds * own / sum(needed) if any(needed) else 0.0
        if not any(needed):
            state.line.seconds += seconds

    def _count(self, state: IngredientState, baked: list[BakedFragment], times: int) -> None:
        """Add what was counted on the way to the lines of the report."""
        firsts = [each.counts[0] for each in baked]
        state.line.rows_in += total(firsts, "in")
        state.line.nulls, state.line.filtered = total(firsts, "null"), total(firsts, "filtered")
        state.line.rows_out += times * total(firsts, "out")
        for i, line in enumerate(state.lines[1:], 1):
            line.rows_in += times * sum(each.counts[i]["in"] for each in baked)
            line.rows_out += times * sum(each.counts[i]["out"] for each in baked)

    def _reject(self, rejects: list[dict[str, Any]], n_seen: int, line: InstructionStats | None = None) -> None:
        """Count rejected rows at the line of the step that rejected them, or at that of the recipe they were in."""
        self.rejects += [self._told(each) for each in rejects] if line is None else rejects
        self._n_seen += n_seen
        by_name = {(each.kind, each.name): each for each in self.lines}
        for each in rejects:
            own = line or by_name.get(("step", each["step"])) or by_name.get(("ingredient", each["ingredient"]))
            if own is not None:
                own.rejected += 1

    def _told(self, reject: dict[str, Any]) -> dict[str, Any]:
        """With the row of its result, where it is a row of a recipe inside of this one."""
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
        is_share = isinstance(self.budget, float)
        if self.budget is None or not self.rejects or (is_share and n_rows is None):
            return
        limit = self.budget * (n_rows or 0) if is_share else self.budget
        if len(self.rejects) > limit:
            raise BudgetSpent(
                f"{len(self.rejects):,} of {n_rows or self._n_seen:,} rows were rejected, the budget is {self.budget}; "
                f"the last: {self.rejects[-1]}; see what is wrong with them, or raise the budget"
            )

    # -- putting it together

    def _order(self, pieces: list[FragmentRows]) -> Int64 | None:
        """The order of all rows, where it is not that of the pieces."""
        if self._shuffled is None:
            return None
        n_lots, step, name = self._shuffled
        shuffled = [piece for state in self._states[:n_lots] for piece in state.pieces or ()]
        if not shuffled:
            return None
        keys = np.concatenate([step.keys(piece, self.seed, name) for piece in shuffled])
        n_rest = sum(len(piece) for piece in pieces) - len(keys)
        return np.concatenate([np.argsort(keys, kind="stable"), len(keys) + np.arange(n_rest)])

    def _assembled(self) -> BakedRows:
        pieces = [piece for state in self._states for piece in state.pieces or ()]
        return BakedRows.of(pieces, [state.name for state in self._states], self._order(pieces))


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


def _prepared(bound: BoundStep, on_error: str, piece: FragmentRows) -> tuple[FragmentRows, list[dict[str, Any]]]:
    rejects: list[dict[str, Any]] = []
    return prepared(piece, bound, on_error, rejects), rejects


def _grouped(states: list[IngredientState]) -> list[Group]:
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


def quotas_of(instructions: Sequence[Any], total: int | None) -> dict[str, int]:
    """How much of the total each ingredient with a weight is to give, by its name."""
    weighted = [each for each in instructions if isinstance(each, AddIngredient) and each.weight is not None]
    if not weighted:
        if total is not None:
            raise RecipeError(
                f"total={total} is what weights are shares of, and no ingredient has a weight=; give them weights, or "
                "leave out total= and say take= or a step 'limit'"
            )
        return {}
    if total is None:
        raise RecipeError("weights are shares of a total; give the recipe total=, or ingredients take=")
    shares = largest_remainder([float(each.weight or 0) for each in weighted], total)
    return {each.name: share for each, share in zip(weighted, shares, strict=True)}
