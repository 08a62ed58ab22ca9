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
from poolish.recipes.baked_rows import Rows
from poolish.recipes.built_in import Barrier, Fitted, Shuffle
from poolish.recipes.cache import Baked, Cache, total
from poolish.recipes.chain import Chain, Work, bake_together, fragments_of, prepared
from poolish.recipes.choosing import look
from poolish.recipes.engine import Engine, taken
from poolish.recipes.identity import Int64, part_numbers, threshold_of
from poolish.recipes.instructions import AddIngredient, PrepareStep
from poolish.recipes.interpretation import as_filter, quotas_of, step_of
from poolish.recipes.lineage import Nested
from poolish.recipes.piece import Piece, selected_rows
from poolish.recipes.selection import ByTokens, Choice, Chooser, chooser
from poolish.recipes.sources import Fragment, Source, as_source
from poolish.recipes.sources.files import FileSource
from poolish.recipes.sources.nested import RecipeSource
from poolish.recipes.suites import SuiteStep

MAX_STEPS = 62

Progress = Callable[[str, int, int], None]


@dataclass
class Line:
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
class Lot:
    """One ingredient on its way."""

    name: str
    chain: Chain
    fragments: Sequence[Fragment]
    line: Line
    lines: list[Line]
    repeat: int = 1
    extra: Choice | None = None
    pieces: list[Piece] | None = None


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
    lines: list[Line] = field(default_factory=list)
    rejects: list[dict[str, Any]] = field(default_factory=list)
    step_names: list[str] = field(default_factory=list)
    _lots: list[Lot] = field(default_factory=list)
    _shuffled: tuple[int, Shuffle, str] | None = None
    _n_seen: int = 0
    _given_names: list[str] = field(default_factory=list)
    _inside: dict[str, RecipeSource] = field(default_factory=dict)
    _nested: dict[str, Nested] = field(default_factory=dict)
    _looked_at: dict[Any, tuple[FileSource, Sequence[Fragment]]] = field(default_factory=dict)

    def run(self) -> Rows:
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

    def _guarded(self, rows: Rows) -> Rows:
        """The rows that a guard lets through the last door; what it keeps out is told with its reason."""
        result = ask(self.guard, rows.table)
        mask = passed(result, "bake")
        if mask is None or mask.all():
            return rows
        n_rejected = int((~mask).sum())
        self.lines.append(
            Line("guard", "step", rows_in=len(mask), rows_out=len(mask) - n_rejected, rejected=n_rejected)
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
        line = Line(ingredient.name, "ingredient", asked=quota if quota is not None else ingredient.take)
        self.lines.append(line)
        if isinstance(source, RecipeSource):
            self._bake_inside(source, ingredient.name, line)
        where = as_filter(ingredient.where, what)
        started = time.perf_counter()
        fragments = self._fragments_of(source, what)
        chain = Chain(ingredient.name, source, where, self.seed, 2**64, None, (), self.on_error)
        lot = Lot(ingredient.name, chain, fragments, line, [line])
        self._choose(lot, ingredient, quota)
        line.seconds += time.perf_counter() - started
        self._lots.append(lot)

    def _fragments_of(self, source: Source, what: str) -> Sequence[Fragment]:
        """The fragments of a source; files that several ingredients are made of are looked at once."""
        if not isinstance(source, FileSource):
            return fragments_of(source, what)
        if source.paths not in self._looked_at:
            self._looked_at[source.paths] = source, fragments_of(source, what)
        first, fragments = self._looked_at[source.paths]
        source.look_like(first)
        return fragments

    def _bake_inside(self, source: RecipeSource, ingredient: str, line: Line) -> None:
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

    def _choose(self, lot: Lot, ingredient: AddIngredient, quota: int | None) -> None:
        take, how = ingredient.take, ingredient.pick.how
        if quota is None and (take is None or (isinstance(take, float) and how == "hash")):
            lot.chain = replace(lot.chain, threshold=2**64 if take is None else threshold_of(float(take)))
            return
        if quota is not None and self.unit == "tokens":
            self._choose_tokens(lot, ingredient, quota)
            return
        asked = quota if quota is not None else take if isinstance(take, int) else None
        what = f"ingredient {lot.name!r}, column {ingredient.pick.column!r}"
        picking = self._look(lot, chooser(how, asked, what), ingredient.pick.column, None)
        choice = picking.choose(asked or 0)
        if asked is None:
            assert isinstance(take, float)
            asked = round(choice.available * take)
            choice = picking.choose(asked)
        if asked > choice.available:
            choice = self._short(lot, ingredient, asked, choice.available, picking)
        self._set(lot, choice)

    def _look(self, lot: Lot, picking: Chooser, column: str | None, tokens: str | None) -> Chooser:
        """Show all candidates of an ingredient to whoever picks among them."""
        look(picking, lot.chain, lot.fragments, column, tokens, self.engine, self.cache)
        return picking

    def _set(self, lot: Lot, choice: Choice) -> None:
        threshold = 2**64 if choice.threshold is None else choice.threshold
        lot.chain = replace(lot.chain, threshold=threshold, chosen=choice.rows)

    def _choose_tokens(self, lot: Lot, ingredient: AddIngredient, asked: int) -> None:
        if ingredient.pick.how != "hash" or ingredient.on_short == "repeat":
            raise RecipeError(
                f"ingredient {lot.name!r}: shares in tokens are picked by hash and not repeated; leave out pick= and "
                "on_short='repeat', or count the total in rows"
            )
        choice = self._look(lot, ByTokens(asked), None, self.tokens).choose(asked)
        lot.line.tokens = choice.tokens
        if asked > choice.available and ingredient.on_short != "accept":
            raise RecipeError(
                f"ingredient {lot.name!r}: {asked:,} tokens asked for, there are {choice.available:,}; ask for fewer, "
                "or pass on_short='accept'"
            )
        self._set(lot, choice)

    def _short(self, lot: Lot, ingredient: AddIngredient, asked: int, available: int, picking: Chooser) -> Choice:
        if ingredient.on_short == "repeat" and not available:
            raise RecipeError(
                f"ingredient {lot.name!r}: {asked:,} rows asked for, and none passes its filter, so nothing can be "
                "repeated; check where= and the source, or pass on_short='accept'"
            )
        if ingredient.on_short == "error":
            raise RecipeError(
                f"ingredient {lot.name!r}: {asked:,} rows asked for, there are {available:,} after its filter; ask for "
                "fewer, or pass on_short='accept' or 'repeat'"
            )
        if ingredient.on_short == "repeat":
            lot.repeat, rest = divmod(asked, available)
            lot.extra = picking.choose(rest) if rest else None
        return picking.choose(available)

    # -- steps

    def _prepare(self, instruction: PrepareStep) -> None:
        if len(self.step_names) == MAX_STEPS:
            raise RecipeError(f"more than {MAX_STEPS} steps in one recipe; bake it in two")
        where, step = as_filter(instruction.where, f"step {instruction.name!r}"), step_of(instruction)
        # Names tell steps apart in the report, among the rejects and in what rows are called.
        n_same = sum(each == instruction.name for each in self._given_names)
        name = instruction.name if not n_same else f"{instruction.name} ({n_same + 1})"
        line = Line(name, "step")
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
            self._row_local(Work(name, step, where, bit), line)
        line.seconds += time.perf_counter() - started

    def _row_local(self, work: Work, line: Line) -> None:
        for lot in self._lots:
            if lot.pieces is None:
                lot.chain = replace(lot.chain, works=(*lot.chain.works, work))
                lot.lines.append(line)
            else:
                found = list(self.engine.run(partial(_prepared, work, self.on_error), lot.pieces))
                line.rows_in += sum(len(piece) for piece in lot.pieces)
                lot.pieces = [piece for piece, _ in found]
                line.rows_out += sum(len(piece) for piece in lot.pieces)
                self._reject([each for _, rejects in found for each in rejects], 0)

    def _pass(self, step: Any, where: Any, name: str, bit: int, line: Line) -> None:
        """All rows through a barrier."""
        pieces = [piece for lot in self._lots for piece in lot.pieces or ()]
        line.rows_in = sum(len(piece) for piece in pieces)
        if isinstance(step, Shuffle):
            if where is not None:
                raise RecipeError(f"step {name!r}: rows are shuffled among all others, so where= has no meaning here")
            self._shuffled = (len(self._lots), step, name)
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
        line.rows_out = sum(len(piece) for lot in self._lots for piece in lot.pieces or ())

    def _mark(self, where: Any, bit: int) -> None:
        """Rows that a barrier looked at and left remember it."""
        for lot in self._lots:
            lot.pieces = [
                replace(piece, steps=np.where(selected_rows(piece, where), piece.steps | (1 << bit), piece.steps))
                if len(piece)
                else piece
                for piece in lot.pieces or ()
            ]

    def _keep(self, masks: list[Any]) -> None:
        masks = list(masks)
        for lot in self._lots:
            lot.pieces = [piece.keep(masks.pop(0)) for piece in lot.pieces or ()]

    def _fit(self, step: Fitted, where: Any, name: str, bit: int) -> None:
        pieces = [piece for lot in self._lots for piece in lot.pieces or ()]
        fitted = step.fitted(pieces, where)
        work = Work(name, step.with_parameters(fitted), where, bit)
        for lot in self._lots:
            lot.pieces = [prepared(piece, work, self.on_error, []) for piece in lot.pieces or ()]

    # -- baking what is pending

    def _materialize(self, *, may_mask: bool = False) -> None:
        pending = [lot for lot in self._lots if lot.pieces is None]
        groups = _grouped(pending)
        started = time.perf_counter()
        found: dict[tuple[int, int], Baked] = {}
        left = [self._not_kept(group) for group in groups]
        to_bake = [each for each in left if each.chains]
        # While others bake what is missing, this thread can read what is kept.
        has_both = self.cache is not None and to_bake and len(to_bake) < len(groups)
        begin = getattr(self.engine, "start", self.engine.run) if has_both else self.engine.run
        run = begin(partial(_baked, self.cache), to_bake)
        n_rows = [each.n_rows for lot in pending if not _is_nested(lot.chain) for each in lot.fragments]
        n_expected = None if None in n_rows else self._n_seen + sum(n or 0 for n in n_rows)
        with taken(run) as results:  # a budget that is spent ends what is still being baked
            for i, (group, missing) in enumerate(zip(groups, left, strict=True)):
                found |= zip(missing.places, next(results) if missing.chains else (), strict=True)
                for chain, place in zip(group.chains, group.places, strict=True):
                    if place not in found:
                        found[place] = self._kept_or_baked(chain, group.fragment, may_mask=may_mask)
                    # What a recipe inside of this one read has been seen already.
                    self._reject(found[place].rejects, 0 if _is_nested(chain) else found[place].counts[0]["in"])
                self._keep_budget(n_expected)
                if self.progress is not None:
                    self.progress(pending[group.places[0][0]].name, i + 1, len(groups))
        seconds = time.perf_counter() - started
        n_fragments = max(1, sum(len(lot.fragments) for lot in pending))
        for k, lot in enumerate(pending):
            own = [found[k, i] for i in range(len(lot.fragments))]
            self._settle(lot, own, seconds * len(lot.fragments) / n_fragments)
        self._keep_budget(self._n_seen)

    def _not_kept(self, group: Group) -> Group:
        """What of a fragment has to be baked."""
        left = Group(group.fragment, [], [])
        for chain, place in zip(group.chains, group.places, strict=True):
            if self.cache is None or not chain.is_kept(group.fragment, self.cache):
                left.chains.append(chain)
                left.places.append(place)
        return left

    def _kept_or_baked(self, chain: Chain, fragment: Fragment, *, may_mask: bool = False) -> Baked:
        kept = chain.kept(fragment, self.cache)
        if kept is None:
            return bake_together([chain], fragment, self.cache)[0]
        return kept if may_mask else replace(kept, piece=kept.piece.settled())

    def _settle(self, lot: Lot, baked: list[Baked], seconds: float) -> None:
        lot.pieces = [lot.chain.in_recipe(each.piece) for each in baked] or [lot.chain.nothing("")]
        lot.line.fragments, lot.line.cached = len(baked), sum(each.is_cached for each in baked)
        self._share_out(lot, baked, seconds)
        self._count(lot, baked, lot.repeat)
        for _ in range(1, lot.repeat):  # a row that fails is lost as often as it would have come
            self._reject([reject for each in baked for reject in each.rejects if reject["step"] != "where"], 0)
        if lot.repeat > 1 or lot.extra is not None:
            lot.pieces = [_copy(piece.settled(), k) for k in range(lot.repeat) for piece in lot.pieces]
            lot.pieces += [_copy(each.piece, lot.repeat) for each in self._extra(lot)]

    def _extra(self, lot: Lot) -> list[Baked]:
        """The rows that come once more than the others, where a share asks for more rows than there are."""
        if lot.extra is None:
            return []
        threshold = 2**64 if lot.extra.threshold is None else lot.extra.threshold
        chain = replace(lot.chain, threshold=threshold, chosen=lot.extra.rows)
        baked = [self._kept_or_baked(chain, fragment) for fragment in lot.fragments]
        self._reject([reject for each in baked for reject in each.rejects if reject["step"] != "where"], 0)
        n_rows = lot.line.rows_in
        self._count(lot, baked, 1)
        lot.line.rows_in = n_rows
        return [replace(each, piece=chain.in_recipe(each.piece)) for each in baked]

    def _share_out(self, lot: Lot, baked: list[Baked], seconds: float) -> None:
        """The time that a lot took, to the ingredient and its steps as they needed it."""
        needed = [sum(each.seconds[i] for each in baked if each.seconds) for i in range(len(lot.lines))]
        for line, own in zip(lot.lines, needed, strict=True):
            line.seconds += seconds * own / sum(needed) if any(needed) else 0.0
        if not any(needed):
            lot.line.seconds += seconds

    def _count(self, lot: Lot, baked: list[Baked], times: int) -> None:
        """Add what was counted on the way to the lines of the report."""
        firsts = [each.counts[0] for each in baked]
        lot.line.rows_in += total(firsts, "in")
        lot.line.nulls, lot.line.filtered = total(firsts, "null"), total(firsts, "filtered")
        lot.line.rows_out += times * total(firsts, "out")
        for i, line in enumerate(lot.lines[1:], 1):
            line.rows_in += times * sum(each.counts[i]["in"] for each in baked)
            line.rows_out += times * sum(each.counts[i]["out"] for each in baked)

    def _reject(self, rejects: list[dict[str, Any]], n_seen: int, line: Line | None = None) -> None:
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

    def _order(self, pieces: list[Piece]) -> Int64 | None:
        """The order of all rows, where it is not that of the pieces."""
        if self._shuffled is None:
            return None
        n_lots, step, name = self._shuffled
        shuffled = [piece for lot in self._lots[:n_lots] for piece in lot.pieces or ()]
        if not shuffled:
            return None
        keys = np.concatenate([step.keys(piece, self.seed, name) for piece in shuffled])
        n_rest = sum(len(piece) for piece in pieces) - len(keys)
        return np.concatenate([np.argsort(keys, kind="stable"), len(keys) + np.arange(n_rest)])

    def _assembled(self) -> Rows:
        pieces = [piece for lot in self._lots for piece in lot.pieces or ()]
        return Rows.of(pieces, [lot.name for lot in self._lots], self._order(pieces))


@dataclass(frozen=True)
class Group:
    """A fragment and all ingredients that are made of it; ``places`` says which fragment of which ingredient it is."""

    fragment: Fragment
    chains: list[Chain]
    places: list[tuple[int, int]]


def _is_nested(chain: Chain) -> bool:
    return isinstance(chain.source, RecipeSource)


def _baked(cache: Cache | None, group: Group) -> list[Baked]:
    return bake_together(group.chains, group.fragment, cache)


def _prepared(work: Work, on_error: str, piece: Piece) -> tuple[Piece, list[dict[str, Any]]]:
    rejects: list[dict[str, Any]] = []
    return prepared(piece, work, on_error, rejects), rejects


def _grouped(lots: list[Lot]) -> list[Group]:
    """Fragments in their order; those of several ingredients that are the same part of the same file only once."""
    groups: dict[Any, Group] = {}
    for k, lot in enumerate(lots):
        for i, fragment in enumerate(lot.fragments):
            key = (k, i) if "path" not in fragment.place else (fragment.name, str(sorted(fragment.place.items())))
            group = groups.setdefault(key, Group(fragment, [], []))
            group.chains.append(lot.chain)
            group.places.append((k, i))
    return list(groups.values())


def _copy(piece: Piece, number: int) -> Piece:
    return replace(piece, subs=part_numbers(piece.subs, "repeat", np.full(len(piece), number)))
