"""The pipeline of a fragment: source, filter, selection and row-local steps, with cached results."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from poolish.concurrency import cached_property
from poolish.errors import PoolishError, RecipeError
from poolish.expressions import Expression, as_expression, halving
from poolish.fingerprints import check_attributes, function_fingerprint
from poolish.recipes.cache import Cache, key_of
from poolish.recipes.fragment_rows import (
    BakedFragment,
    Failures,
    Filter,
    Fragment,
    FragmentRows,
    Int64,
    Mask,
    Rejected,
    Words,
    below,
    bound_to,
    canonical,
    canonical_table,
    is_one_to_one,
    joined,
    no_rows,
    occurrences,
    part_numbers,
    place_of,
    raise_at,
    row_hashes,
    rows_of,
    selected,
    workable,
)
from poolish.recipes.sources import Source

#: A rejected row: ingredient, file, row, step and reason.
Reject = dict[str, Any]


@dataclass(frozen=True)
class BoundStep:
    """A step that looks at one row at a time, on the rows that ``where`` selects; ``bit`` marks those it touched."""

    name: str
    step: Any
    where: Filter | None
    bit: int

    @property
    def fingerprint(self) -> list[str]:
        """What decides its result."""
        return [self.name, self.step.fingerprint, str(self.where)]


@dataclass(frozen=True)
class FragmentPipeline:
    """What is done to each fragment of an ingredient.

    Rows are chosen by hash below ``threshold``, or by their numbers where ``chosen`` has them for each fragment.
    """

    ingredient: str
    source: Source
    where: Filter | None
    seed: int
    threshold: int
    chosen: dict[tuple[str, int], Int64] | None
    steps: tuple[BoundStep, ...]
    on_error: str

    def key(self, fragment: Fragment) -> str:
        """The name of the result, as far as it does not depend on the threshold."""
        chosen = None
        if self.chosen is not None:
            chosen = self.chosen[fragment.name, fragment.number].tobytes().hex()
        return key_of(self._fingerprint, fragment.name, fragment.number, fragment.fingerprint, chosen)

    @cached_property
    def _fingerprint(self) -> str:
        """What decides the result of every fragment."""
        steps = [bound.fingerprint for bound in self.steps]
        return key_of(self.ingredient, str(self.where), self.seed, steps)

    def is_kept(self, fragment: Fragment, cache: Cache) -> bool:
        """Whether the cache says that it holds them; it may turn out to be damaged."""
        found = cache.look(self.key(fragment), with_rejects=self.on_error != "raise")
        return found is not None and (found[0] == self.threshold or (found[0] > self.threshold and found[1]))

    def kept(self, fragment: Fragment, cache: Cache | None) -> BakedFragment | None:
        """The rows of a fragment, prepared, as far as the cache holds them."""
        found = None if cache is None else cache.get(self.key(fragment))
        if found is None or found.threshold < self.threshold or (found.rejects and self.on_error == "raise"):
            return None
        return self._fewer(found)

    def _fewer(self, found: BakedFragment) -> BakedFragment | None:
        """A kept result for a lower threshold: the same rows, of which those that are not chosen any more are masked.

        Where steps dropped or added rows, it is unknown how many of those would have been chosen, and where a
        step made a column of which the rows that are left do not tell the type, they would have made another: both are
        baked again.
        """
        if found.threshold == self.threshold:
            return found
        if found.rejects or not is_one_to_one(found.counts):
            return None
        mask = below(self.hashes(found.piece), self.threshold)
        n_left = int(np.count_nonzero(mask))
        if self.steps and not (n_left and _tells_types(found, mask)):
            return None
        after = {"in": n_left, "out": n_left, "alike": 1}
        counts = [{**found.counts[0], "out": n_left}, *(dict(after) for _ in self.steps)]
        piece = replace(found.piece, mask=mask) if n_left else found.piece.keep(mask)
        return replace(found, piece=piece, counts=counts, threshold=self.threshold)

    def describe(self, fragments: Sequence[Fragment]) -> dict[str, Any]:
        """What decides the results of these fragments, for the index of the last bake."""
        return {
            "filter": str(self.where),
            "seed": str(self.seed),
            "steps": [step.fingerprint for step in self.steps],
            "on_error": self.on_error,
            "fragments": {fragment_key(fragment): fragment.fingerprint for fragment in fragments},
        }

    def in_recipe(self, piece: FragmentRows) -> FragmentRows:
        """The piece with its steps numbered as they stand in the recipe."""
        if all(bound.bit == i for i, bound in enumerate(self.steps)):
            return piece
        steps = np.zeros_like(piece.steps)
        for i, bound in enumerate(self.steps):
            steps |= (piece.steps >> i & 1) << bound.bit
        return replace(piece, steps=steps)

    def hashes(self, piece: FragmentRows, rows: Int64 | None = None) -> Words:
        """What rows of a piece are chosen by, where that is nothing else."""
        return row_hashes(self.seed, "pick", piece.ingredient, piece.name, piece.rows if rows is None else rows)

    def nothing(self, name: str) -> FragmentRows:
        """No rows, with the columns that the source has."""
        table = canonical_table(selected(no_rows(self.source.schema()), self.columns()))
        return FragmentRows.read(self.ingredient, name, table, np.empty(0, np.int64))

    def columns(self) -> list[str] | None:
        """The columns that are needed, where the first step leaves the others out."""
        if not self.steps or getattr(self.steps[0].step, "needs", None) is None or self.steps[0].where is not None:
            return None
        needs = list(self.steps[0].step.needs)
        if not set(needs) <= set(self.source.schema().names):
            return None  # the step itself says what is wrong with a name that is not there, and which are
        return self.with_filter(needs)

    def choose(
        self, piece: FragmentRows, fragment: Fragment, count: dict[str, int], rejects: list[Reject]
    ) -> FragmentRows:
        """The rows of a piece that pass the filter and are chosen."""
        # One mask for filter and choice: filtering a table costs more than hashing its row numbers.
        mask = np.ones(len(piece), bool)
        if self.where is not None:
            n_before = len(rejects)
            mask, n_null = filtered(piece, self.where, self.on_error, rejects)
            count["null"] += n_null
            count["filtered"] += int(len(mask) - np.count_nonzero(mask)) - (len(rejects) - n_before)
        if self.chosen is not None:
            wanted = self.chosen[fragment.name, fragment.number]
            mask = mask & np.isin(piece.rows, wanted, assume_unique=True)
        elif self.threshold < 2**64:
            # Only rows that passed are worth a hash.
            numbers = np.flatnonzero(mask)
            mask[numbers] = below(self.hashes(piece, piece.rows[numbers]), self.threshold)
        return piece.keep(mask)

    def with_filter(self, names: list[str]) -> list[str] | None:
        """These columns and those that the filter looks at; None for all, where those are unknown."""
        if self.where is None:
            return names
        if not isinstance(self.where, Expression):
            return None
        return list(dict.fromkeys([*names, *self.where.top_columns(self.source.schema())]))


def fragment_key(fragment: Fragment) -> str:
    """The name of a fragment within its source."""
    return f"{fragment.number} {fragment.name}"


def _tells_types(found: BakedFragment, mask: Mask) -> bool:
    """Whether the remaining rows alone would give the columns the types they have."""
    table = found.piece.table
    return all(
        found.given.get(field.name) == str(field.type) or _tells_its_type(table.column(i), mask)
        for i, field in enumerate(table.schema)
    )


def _tells_its_type(column: Any, mask: Mask) -> bool:
    """Whether any row of a column would give it this type: not where all are null, nor in lists, structs and arrays."""
    if kinds.is_nested(column.type) or isinstance(column.type, pa.BaseExtensionType):
        return False
    return column.null_count == 0 or bool((column.is_valid().to_numpy() & mask).any())


def prepared(piece: FragmentRows, bound: BoundStep, on_error: str, rejects: list[Reject]) -> FragmentRows:
    """A piece after one step, on the rows that its filter selects; the others stay, and all keep their places."""
    if not len(piece):  # whatever the step would make of rows, there are none
        return piece
    piece, chosen = asked_for(piece, bound.where, on_error, bound.name, rejects)
    if not chosen.any():
        return piece
    part = piece.keep(chosen)
    made = bound.step.prepare(part, on_error)
    rejects += [reject_of(piece, bound.name, rejected) for rejected in made.rejected]
    is_one_to_one = len(made.parents) == len(part) and np.array_equal(made.parents, np.arange(len(part)))
    done = part.with_table(made.table) if is_one_to_one else part.rows_of(made.parents, made.table)
    subs = done.subs if is_one_to_one else part_numbers(done.subs, bound.name, occurrences(made.parents))
    done = replace(done, subs=subs, steps=done.steps | (1 << bound.bit))
    if not chosen.all():
        return _back_in_place(piece, chosen, done, made.parents, bound.name)
    names = piece.table.column_names
    if bound.where is not None and set(names) == set(done.table.column_names):
        return done.with_table(done.table.select(names))  # as it would be if some rows had not been asked about
    return done


def _back_in_place(piece: FragmentRows, selected: Mask, done: FragmentRows, parents: Int64, name: str) -> FragmentRows:
    rest = piece.keep(~selected)
    if len(done) and set(done.table.column_names) != set(rest.table.column_names):
        raise RecipeError(
            f"step {name!r}, ingredient {piece.ingredient!r}: it makes columns {done.table.column_names} for the rows "
            f"it is asked about, the others have {rest.table.column_names}; give those the same columns first"
        )
    try:
        tables = [rest.table, done.table.select(rest.table.column_names)] if len(done) else [rest.table]
        table = pa.concat_tables(tables, promote_options="default")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise RecipeError(
            f"step {name!r}, ingredient {piece.ingredient!r}: it changes the type of a column for some rows: {error}"
        ) from None
    places = np.concatenate([np.flatnonzero(~selected), np.flatnonzero(selected)[parents]])
    arrays = {key: np.concatenate([getattr(rest, key), getattr(done, key)]) for key in ("rows", "subs", "steps")}
    both = FragmentRows(piece.ingredient, piece.name, table.combine_chunks(), **arrays)
    return both.take(np.argsort(places, kind="stable"))


class FragmentRun:
    """One fragment on its way through a chain, a table at a time."""

    def __init__(self, pipeline: FragmentPipeline, fragment: Fragment) -> None:
        self._pipeline, self._fragment, self._columns = pipeline, fragment, pipeline.columns()
        self._count = {"in": 0, "null": 0, "filtered": 0, "out": 0}
        self._pieces: list[FragmentRows] = []
        self._rejects: list[Reject] = []

    def add(self, table: pa.Table, rows: Int64) -> None:
        """Choose among rows that were read."""
        self._count["in"] += len(rows)
        # Others may have asked for more columns.
        piece = FragmentRows.read(self._pipeline.ingredient, self._fragment.name, selected(table, self._columns), rows)
        chosen = self._pipeline.choose(piece, self._fragment, self._count, self._rejects)
        self._pieces.append(canonical(chosen))

    def baked(self, cache: Cache | None, read_s: float) -> BakedFragment:
        """What the steps make of the rows that were chosen, which took so long to read."""
        pipeline, fragment, count = self._pipeline, self._fragment, self._count
        piece = joined(self._pieces) if self._pieces else pipeline.nothing(fragment.name)
        if fragment.n_rows is not None:  # rows that were not read, because the filter cannot hold for them
            count["filtered"] += fragment.n_rows - count["in"]
            count["in"] = fragment.n_rows
        count["out"] = len(piece)
        counts, given = [count], {field.name: str(field.type) for field in piece.table.schema}
        seconds = [read_s]
        for i, bound in enumerate(pipeline.steps):
            before, started = piece, time.perf_counter()
            # Numbered as they stand here: where they stand in the recipe is not part of what is kept.
            piece = prepared(piece, replace(bound, bit=i), pipeline.on_error, self._rejects)
            alike = np.array_equal(piece.rows, before.rows) and np.array_equal(piece.subs, before.subs)
            counts.append({"in": len(before), "out": len(piece), "alike": int(alike)})
            seconds.append(time.perf_counter() - started)
        baked = BakedFragment(piece, counts, self._rejects, pipeline.threshold, given=given, seconds=seconds)
        if cache is not None:
            cache.put(pipeline.key(fragment), baked)
        return baked


def bake_together(
    pipelines: Sequence[FragmentPipeline], fragment: Fragment, cache: Cache | None
) -> list[BakedFragment]:
    """One fragment for several ingredients: it is read once for all of them, and no more of it is held than a table."""
    if len(pipelines) == 1:
        tables = pipelines[0].source.read(fragment, pipelines[0].columns(), pipelines[0].where)
    else:
        tables = pipelines[0].source.read(fragment, _all_columns(pipelines), None)
    started = time.perf_counter()
    runs = [FragmentRun(pipeline, fragment) for pipeline in pipelines]
    for table, rows in tables:
        table = workable(table)
        for run in runs:
            run.add(table, rows)
    read_s = (time.perf_counter() - started) / len(runs)
    return [run.baked(cache, read_s) for run in runs]


def _all_columns(pipelines: Sequence[FragmentPipeline]) -> list[str] | None:
    asked = [pipeline.columns() for pipeline in pipelines]
    if any(columns is None for columns in asked):
        return None
    return list(dict.fromkeys(name for columns in asked for name in columns or ()))


def fragments_of(source: Source, what: str) -> Sequence[Fragment]:
    """The fragments of a source; an error names the ingredient."""
    try:
        return source.fragments()
    except Exception as error:
        error.add_note(f"while looking at {what}")
        raise


# Filters ------------------------------------------------------------------------------------------------------------
#
# An expression is evaluated on all rows at once. Only if that fails, halving finds the rows that it fails for: each is
# an error that names its place, or a rejected row. What fails without any rows (an unknown column) is always an error.


def filtered(piece: FragmentRows, where: Filter, on_error: str, rejects: list[dict[str, Any]]) -> tuple[Mask, int]:
    """Which rows of a piece an ingredient's filter keeps, and how many it knows nothing of."""
    judged = _judged(piece, where, on_error, None)
    rejects += [reject_of(piece, "where", rejected) for rejected in judged.rejected]
    return judged.mask, judged.n_null


def asked_for(
    piece: FragmentRows, where: Filter | None, on_error: str, step: str, rejects: list[dict[str, Any]]
) -> tuple[FragmentRows, Mask]:
    """The rows of a piece that a step's filter does not fail for, and which of them it asks for."""
    if where is None:
        return piece, np.ones(len(piece), bool)
    bound = bound_to(piece, where)
    if isinstance(bound, bool):
        return piece, np.full(len(piece), bound)
    judged = _judged(piece, bound, on_error, step)
    if not judged.rejected:
        return piece, judged.mask
    rejects += [reject_of(piece, step, rejected) for rejected in judged.rejected]
    failed = {(rejected.row, rejected.sub) for rejected in judged.rejected}
    named = zip(piece.rows.tolist(), piece.subs.tolist(), strict=True)
    is_left = np.array([pair not in failed for pair in named], bool)
    return piece.keep(is_left), judged.mask[is_left]


def reject_of(piece: FragmentRows, step: str, rejected: Rejected) -> dict[str, Any]:
    """A rejected row with all that says which it is."""
    place = {"ingredient": piece.ingredient, "file": piece.name, "row": rejected.row}
    return {**place, "step": step, "reason": rejected.reason}


def _judged(piece: FragmentRows, where: Filter, on_error: str, step: str | None) -> FilterResult:
    if isinstance(where, RowPredicate):
        return where.judged(piece, on_error, step)
    step = step or "where"
    try:
        mask, n_null = where.mask(piece.table)
        return FilterResult(mask, n_null, [])
    except Exception as error:
        try:
            where.mask(piece.table.slice(0, 0))
        except Exception:
            raise_at(place_of(piece, step), error)
    mask, n_null, failed = np.zeros(len(piece), bool), 0, Failures(piece, step, on_error)

    def attempt(first: int, n_rows: int) -> tuple[Mask, int]:
        found: tuple[Mask, int] = where.mask(piece.slice(first, n_rows).table)
        return found

    for first, n_rows, (kept, n_unknown) in halving(attempt, [(0, len(piece))], failed):
        mask[first : first + n_rows] = kept
        n_null += n_unknown
    return FilterResult(mask, n_null, failed.rejected)


# Functions of a row -------------------------------------------------------------------------------------------------


class FilterResult(NamedTuple):
    """Which rows of a piece a filter keeps, for how many it gave no answer, and those that it failed for."""

    mask: Mask
    n_null: int
    rejected: list[Rejected]


class RowPredicate:
    """``where`` as a function: called with each row as a dict. A version may stand in its attribute ``version``."""

    #: The columns that a function reads are unknown, so all are read.
    columns: tuple[str, ...] = ()

    def __init__(self, function: Callable[[dict[str, Any]], Any], what: str = "") -> None:
        self._function, self._what = function, what
        self.name = str(getattr(function, "__name__", type(function).__name__))

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of the function; an ``Unfingerprintable`` asks for a version."""
        # A filter has no argument of its own for a version.
        place = f"{self._what}, where {self.name!r}" if self._what else f"where {self.name!r}"
        name = self.name if self.name.isidentifier() else "keep"
        advice = f"give it an attribute, {name}.version = 1, and another number whenever it changes"
        version = getattr(self._function, "version", None)
        return f"function {function_fingerprint(self._function, place, version, advice=advice)}"

    def __str__(self) -> str:
        return self.fingerprint

    def mask(self, table: pa.Table) -> tuple[Mask, int]:
        """Which rows it is true for; None is no, and counted."""
        return self._answered(table, self._tell_number)

    def judged(self, piece: FragmentRows, on_error: str, step: str | None = None) -> FilterResult:
        """The same for rows whose place is known, so that an error can name it, or rejects the row alone."""
        failed = Failures(piece, step or f"where {self.name}", on_error)
        return FilterResult(*self._answered(piece.table, failed), failed.rejected)

    def _answered(self, table: pa.Table, failed: Callable[[int, int, Exception], None]) -> tuple[Mask, int]:
        rows, answers = rows_of(table), list[bool | None]()
        for i in range(len(rows)):
            try:
                answer = self._function(rows[i])
                answers.append(None if answer is None else bool(answer))
            except Exception as error:
                failed(i, 1, error)
                answers.append(False)
        return np.array([bool(answer) for answer in answers], bool), answers.count(None)

    def _tell_number(self, i: int, n_rows: int, error: Exception) -> NoReturn:
        error.add_note(f"while asking the filter {self.name!r} about row {i} of those that were read together")
        raise error

    def bind(self, **_: Any) -> RowPredicate:
        """A function has no columns to bind."""
        return self


def as_filter(where: Any, what: str = "") -> Filter | None:
    """A filter as an expression or predicate that gives a mask; ``what`` names what it filters in errors."""
    if where is None:
        return None
    if callable(where) and not isinstance(where, Expression):
        check_attributes(where, f"{what}, where" if what else "where")
        return RowPredicate(where, what)
    try:
        return as_expression(where)
    except PoolishError as error:
        raise type(error)(f"{what}, where: {error}" if what else str(error)) from None
