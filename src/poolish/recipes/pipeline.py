"""The pipeline of a fragment: source, filter, selection and row-local steps, with cached results."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from poolish.concurrency import cached_property
from poolish.errors import RecipeError, UnknownColumn
from poolish.expressions import Expression
from poolish.recipes.cache import Cache, key_of
from poolish.recipes.filters import asked_for, filtered, reject_of
from poolish.recipes.fragment_rows import (
    BakedFragment,
    Filter,
    Fragment,
    FragmentRows,
    Int64,
    Mask,
    Words,
    below,
    canonical,
    canonical_table,
    is_one_to_one,
    joined,
    no_rows,
    part_numbers,
    row_hashes,
    selected,
    workable,
)
from poolish.recipes.sources import Source

#: A rejected row: ingredient, file, row, step and reason.
Reject = dict[str, Any]
#: The name of a fragment: its part and its number there.
Place = tuple[str, int]


@dataclass(frozen=True)
class Candidates:
    """Rows of one fragment that passed the filter: their numbers, hashes, and what they are picked by."""

    place: Place
    rows: Int64
    hashes: Words
    values: Any = None
    tokens: Int64 | None = None


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
        mask = below(self._hashes(found.piece), self.threshold)
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

    def _hashes(self, piece: FragmentRows) -> Any:
        return self._hashes_of(piece, piece.rows)

    def _hashes_of(self, piece: FragmentRows, rows: Int64) -> Any:
        return row_hashes(self.seed, "pick", piece.ingredient, piece.name, rows)

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
        return self._with_filter(needs)

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
            mask[numbers] = below(self._hashes_of(piece, piece.rows[numbers]), self.threshold)
        return piece.keep(mask)

    def candidates(self, fragment: Fragment, column: str | None, tokens: str | None, cache: Cache | None) -> Candidates:
        """What the rows of a fragment are chosen by, after the filter; kept, so that a later choice reads only this."""
        key = self.candidates_key(fragment, column, tokens)
        found = None if cache is None else cache.get(key)
        piece = self._candidates(fragment, column, tokens) if found is None else found.piece
        if cache is not None and found is None:
            cache.put(key, BakedFragment(piece))
        values = None if column is None else piece.table.column("value")
        counts = None if tokens is None else piece.table.column("tokens").to_numpy()
        return Candidates((fragment.name, fragment.number), piece.rows, self._hashes(piece), values, counts)

    def candidates_key(self, fragment: Fragment, column: str | None, tokens: str | None) -> str:
        """The name under which they are kept."""
        about = [fragment.name, fragment.number, fragment.fingerprint, column, tokens]
        return key_of("candidates", self.ingredient, str(self.where), *about)

    def _candidates(self, fragment: Fragment, column: str | None, tokens: str | None) -> FragmentRows:
        needed = {"value": column, "tokens": tokens}
        asked = [name for name in needed.values() if name is not None]
        for name in asked:
            _check_column(self.source.schema().names, name, self.ingredient, is_count=name == tokens)
        pieces = []
        for table, rows in self.source.read(fragment, self._with_filter(asked), self.where):
            table, kept = workable(table), rows
            if self.where is not None:
                whole = FragmentRows.read(self.ingredient, fragment.name, table, rows)
                mask = filtered(whole, self.where, self.on_error, [])[0]
                # Columns that only the filter looks at are not needed any more.
                table, kept = table.select(list(dict.fromkeys(asked))).filter(pa.array(mask)), rows[mask]
            columns = {as_: table.column(name) for as_, name in needed.items() if name is not None}
            if tokens is not None:
                columns["tokens"] = _counts(columns["tokens"], tokens, self.ingredient)
            # A table without columns has no rows either, so there is always one.
            columns = columns or {"value": pa.nulls(len(kept))}
            pieces.append(FragmentRows.read(self.ingredient, fragment.name, canonical_table(pa.table(columns)), kept))
        if pieces:
            return joined(pieces)
        empty = pa.table({"value": pa.nulls(0), "tokens": pa.array([], pa.int64())})
        return FragmentRows.read(self.ingredient, fragment.name, empty, np.empty(0, np.int64))

    def _with_filter(self, names: list[str]) -> list[str] | None:
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


def _check_column(names: list[str], name: str, ingredient: str, *, is_count: bool) -> None:
    if name not in names:
        way = (
            "; shares are taken before any step, so count tokens in a recipe of its own, and make it the ingredient"
            if is_count
            else ""
        )
        raise UnknownColumn(f"ingredient {ingredient!r} has no column {name!r}; there are {names}{way}")


def _counts(column: Any, name: str, ingredient: str) -> Any:
    if column.null_count or (len(column) and not kinds.is_integer(column.type)):
        raise RecipeError(
            f"ingredient {ingredient!r}, column {name!r}: token counts are whole numbers, one for every row, got "
            f"{column.type} with {column.null_count} nulls; count them first, or filter those rows out"
        )
    return column.cast(pa.int64())


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
    done = part if is_one_to_one else part.rows_of(made.parents)
    subs = done.subs if is_one_to_one else part_numbers(done.subs, bound.name, _nth_of_parent(made.parents))
    done = replace(done, table=made.table, subs=subs, steps=done.steps | (1 << bound.bit))
    if not chosen.all():
        return _back_in_place(piece, chosen, done, made.parents, bound.name)
    names = piece.table.column_names
    if bound.where is not None and set(names) == set(done.table.column_names):
        return done.with_table(done.table.select(names))  # as it would be if some rows had not been asked about
    return done


def _nth_of_parent(parents: Int64) -> Int64:
    """For each row how many rows of the same parent come before it."""
    order = np.argsort(parents, kind="stable")
    grouped = parents[order]
    firsts = np.flatnonzero(np.concatenate([[True], grouped[1:] != grouped[:-1]])) if len(parents) else parents
    nth = np.empty(len(parents), np.int64)
    nth[order] = np.arange(len(parents)) - np.repeat(firsts, np.diff(np.concatenate([firsts, [len(parents)]])))
    return nth


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
