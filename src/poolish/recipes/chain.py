"""One fragment from its source through its filter, its choice and the steps that look at one row at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from poolish.errors import RecipeError
from poolish.recipes.cache import Baked, Cache, key_of
from poolish.recipes.identity import Int64, below, row_hashes
from poolish.recipes.piece import Mask, Piece, canonical_table, joined, selected_rows
from poolish.recipes.selection import Candidates
from poolish.recipes.sources import Fragment, Source


@dataclass(frozen=True)
class Work:
    """A step that looks at one row at a time, on the rows that ``where`` selects; ``bit`` marks those it touched."""

    name: str
    step: Any
    where: Any
    bit: int

    @property
    def fingerprint(self) -> list[str]:
        """What decides its result."""
        return [self.name, self.step.fingerprint, str(self.where)]


@dataclass(frozen=True)
class Chain:
    """What is done to each fragment of an ingredient.

    Rows are chosen by hash below ``threshold``, or by their numbers where ``chosen`` has them for each fragment.
    """

    ingredient: str
    source: Source
    where: Any
    seed: int
    threshold: int
    chosen: dict[tuple[str, int], Int64] | None
    works: tuple[Work, ...]
    on_error: str

    def key(self, fragment: Fragment) -> str:
        """The name of the result, as far as it does not depend on the threshold."""
        chosen = None
        if self.chosen is not None:
            chosen = self.chosen[fragment.name, fragment.number].tobytes().hex()
        parts = [self.ingredient, fragment.name, fragment.number, fragment.fingerprint, str(self.where), self.seed]
        return key_of(*parts, chosen, [work.fingerprint for work in self.works], self.on_error)

    def kept(self, fragment: Fragment, cache: Cache | None) -> Baked | None:
        """The rows of a fragment, prepared, as far as the cache holds them."""
        found = None if cache is None else cache.get(self.key(fragment))
        return self._fewer(found) if found is not None and found.threshold >= self.threshold else None

    def _fewer(self, found: Baked) -> Baked:
        """A kept result for a lower threshold: the same rows less those that are not chosen any more."""
        if found.threshold == self.threshold:
            return found
        return replace(found, piece=found.piece.keep(below(self._hashes(found.piece), self.threshold)))

    def _hashes(self, piece: Piece) -> Any:
        return row_hashes(self.seed, "pick", piece.ingredient, piece.name, piece.rows)

    def bake(self, fragment: Fragment, tables: Iterable[tuple[pa.Table, Int64]], cache: Cache | None) -> Baked:
        """The rows of a fragment, prepared from what was read of it."""
        counts: list[dict[str, int]] = [{"in": 0, "null": 0, "filtered": 0, "out": 0}]
        pieces = []
        for table, rows in tables:
            counts[0]["in"] += len(rows)
            piece = Piece.read(self.ingredient, fragment.name, table, rows)
            chosen = self._chosen(piece, fragment, counts[0])
            pieces.append(chosen.with_table(canonical_table(chosen.table)))
        piece = joined(pieces) if pieces else self._nothing(fragment)
        if fragment.n_rows is not None:  # rows that were not read, because the filter cannot hold for them
            counts[0]["filtered"] += fragment.n_rows - counts[0]["in"]
            counts[0]["in"] = fragment.n_rows
        counts[0]["out"] = len(piece)
        rejects: list[dict[str, Any]] = []
        for work in self.works:
            before = len(piece)
            piece = prepared(piece, work, self.on_error, rejects)
            counts.append({"in": before, "out": len(piece)})
        baked = Baked(piece, counts, rejects, self.threshold)
        if cache is not None:
            cache.put(self.key(fragment), baked)
        return baked

    def _nothing(self, fragment: Fragment) -> Piece:
        table = canonical_table(self.source.schema().empty_table())
        return Piece.read(self.ingredient, fragment.name, table, np.empty(0, np.int64))

    def columns(self) -> list[str] | None:
        """The columns that are needed, where the first step leaves the others out."""
        if not self.works or getattr(self.works[0].step, "needs", None) is None or self.works[0].where is not None:
            return None
        asked = list(self.works[0].step.needs)
        return asked + [name for name in (self.where.columns if self.where is not None else ()) if name not in asked]

    def _chosen(self, piece: Piece, fragment: Fragment, count: dict[str, int]) -> Piece:
        # One mask for filter and choice: filtering a table costs more than hashing its row numbers.
        mask = np.ones(len(piece), bool)
        if self.where is not None:
            mask, n_null = self.where.mask(piece.table)
            count["null"] += n_null
            count["filtered"] += int(len(mask) - np.count_nonzero(mask))
        if self.chosen is not None:
            wanted = self.chosen[fragment.name, fragment.number]
            mask = mask & np.isin(piece.rows, wanted, assume_unique=True)
        elif self.threshold < 2**64:
            mask = mask & below(self._hashes(piece), self.threshold)
        return piece.keep(mask)

    def candidates(self, fragment: Fragment, column: str | None, tokens: str | None, cache: Cache | None) -> Candidates:
        """What the rows of a fragment are chosen by, after the filter."""
        needed = [name for name in (column, tokens) if name is not None]
        columns = needed + [
            name for name in (self.where.columns if self.where is not None else ()) if name not in needed
        ]
        found = []
        for table, rows in self.source.read(fragment, columns or None, self.where):
            piece = Piece.read(self.ingredient, fragment.name, table, rows)
            if self.where is not None:
                piece = piece.keep(self.where.mask(table)[0])
            values = None if column is None else piece.table.column(column).to_numpy()
            counts = None if tokens is None else piece.table.column(tokens).to_numpy().astype(np.int64)
            found.append(Candidates(piece.rows, self._hashes(piece), values, counts))
        return _joined(found, column is not None, tokens is not None)


def _joined(found: list[Candidates], has_values: bool, has_tokens: bool) -> Candidates:
    empty = np.empty(0, np.int64)
    rows = np.concatenate([each.rows for each in found] or [empty])
    hashes = np.concatenate([each.hashes for each in found] or [empty.astype(np.uint64)])
    values = np.concatenate([each.values for each in found] or [empty]) if has_values else None
    tokens = (
        np.concatenate([each.tokens for each in found if each.tokens is not None] or [empty]) if has_tokens else None
    )
    return Candidates(rows, hashes, values, tokens)


def prepared(piece: Piece, work: Work, on_error: str, rejects: list[dict[str, Any]]) -> Piece:
    """A piece after one step, on the rows that its filter selects; the others stay, and all keep their places."""
    selected = selected_rows(piece, work.where)
    if not selected.any() and len(piece):
        return piece
    part = piece.keep(selected)
    made = work.step.prepare(part, on_error)
    for rejected in made.rejected:
        place = {"ingredient": piece.ingredient, "file": piece.name, "row": rejected.row, "step": work.name}
        rejects.append({**place, "reason": rejected.reason})
    done = part.take(made.parents).with_table(made.table) if _changed(made, part) else part.with_table(made.table)
    done = replace(done, subs=_numbered(done), steps=done.steps | (1 << work.bit))
    if selected.all():
        return done
    return _back_in_place(piece, selected, done, made.parents, work.name)


def _changed(made: Any, part: Piece) -> bool:
    return len(made.parents) != len(part) or not np.array_equal(made.parents, np.arange(len(part)))


def _numbered(piece: Piece) -> Int64:
    """Rows that one row became are told apart by their number."""
    if len(piece) < 2:
        return piece.subs
    same = (piece.rows[1:] == piece.rows[:-1]) & (piece.subs[1:] == piece.subs[:-1])
    if not same.any():
        return piece.subs
    runs = np.concatenate([[0], np.cumsum(~same)])
    firsts = np.concatenate([[0], np.flatnonzero(~same) + 1])
    numbered: Int64 = piece.subs * 1_000 + (np.arange(len(piece)) - firsts[runs])
    return numbered


def _back_in_place(piece: Piece, selected: Mask, done: Piece, parents: Int64, name: str) -> Piece:
    rest = piece.keep(~selected)
    try:
        table = pa.concat_tables([rest.table, done.table.select(rest.table.column_names)])
    except (pa.ArrowInvalid, KeyError):
        raise RecipeError(
            f"step {name!r} changes the columns of some rows only: {rest.table.schema.names} and "
            f"{done.table.schema.names}; give the others the same columns and types first"
        ) from None
    places = np.concatenate([np.flatnonzero(~selected), np.flatnonzero(selected)[parents]])
    arrays = {key: np.concatenate([getattr(rest, key), getattr(done, key)]) for key in ("rows", "subs", "steps")}
    both = Piece(piece.ingredient, piece.name, table, **arrays)
    return both.take(np.argsort(places, kind="stable"))


def bake_together(chains: Sequence[Chain], fragment: Fragment, cache: Cache | None) -> list[Baked]:
    """One fragment for several ingredients: what the cache does not hold is read once for all of them."""
    found = [chain.kept(fragment, cache) for chain in chains]
    missing = [chain for chain, baked in zip(chains, found, strict=True) if baked is None]
    if not missing:
        return [baked for baked in found if baked is not None]
    tables: Iterable[tuple[pa.Table, Int64]]
    if len(missing) == 1:
        tables = missing[0].source.read(fragment, missing[0].columns(), missing[0].where)
    else:
        tables = list(missing[0].source.read(fragment, _all_columns(missing), None))
    return [
        chain.bake(fragment, tables, cache) if baked is None else baked
        for chain, baked in zip(chains, found, strict=True)
    ]


def _all_columns(chains: Sequence[Chain]) -> list[str] | None:
    asked = [chain.columns() for chain in chains]
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
