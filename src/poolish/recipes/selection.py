"""How many rows, and which: counts and shares by hash, the newest, the best, strata.

Choosing needs of each row only what it is worth: its hash, or the column that it is picked by. So a choice is made in
two passes: the first looks at *candidates*, the second reads what was chosen. A chooser takes the candidates of one
fragment after the other, and forgets those that cannot be chosen any more: for a thousand of 10^9 rows it holds a few
thousand.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from poolish.errors import RecipeError, UnknownColumn
from poolish.recipes.cache import Cache, key_of
from poolish.recipes.engine import Engine, taken
from poolish.recipes.fragment_rows import (
    BakedFragment,
    Fragment,
    FragmentRows,
    Int64,
    Words,
    as_type,
    canonical_table,
    comparable_type,
    joined,
    workable,
)
from poolish.recipes.pipeline import FragmentPipeline, filtered

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
class Choice:
    """What was chosen: all rows whose hash is below ``threshold``, or ``rows`` of each fragment."""

    available: int
    threshold: int | None = None
    rows: dict[Place, Int64] | None = None
    tokens: int | None = None

    def of(self, pipeline: FragmentPipeline) -> FragmentPipeline:
        """The pipeline that takes what was chosen."""
        return replace(pipeline, threshold=2**64 if self.threshold is None else self.threshold, chosen=self.rows)


class Chooser(Protocol):
    """Takes candidates, fragment by fragment in their order, and then chooses."""

    def add(self, candidates: Candidates) -> None:
        """Look at one fragment."""

    def choose(self, n: int) -> Choice:
        """The choice of ``n``."""


def largest_remainder(weights: Sequence[float], total: int) -> list[int]:
    """``total`` shared out by weights in whole numbers, as fairly as whole numbers allow.

    >>> largest_remainder([1, 1, 1], 10)
    [4, 3, 3]
    """
    if any(not weight > 0 or weight == float("inf") for weight in weights):
        raise RecipeError(f"weights must be numbers above 0, got {weights}")
    # As they are written, not as a float rounds them: 0.1 and 0.2 are one and two parts.
    written = [weight if isinstance(weight, int) else Fraction(str(weight)) for weight in weights]
    # In whole numbers, which are a hundred times as fast as fractions: there may be a weight for each of many values.
    unit = math.lcm(*(weight.denominator for weight in written))
    parts = [int(weight * unit) for weight in written]
    whole = sum(parts)
    shares = [total * part // whole for part in parts]
    by_rest = sorted(range(len(parts)), key=lambda i: (-(total * parts[i] % whole), i))
    for i in by_rest[: total - sum(shares)]:
        shares[i] += 1
    return shares


class ByHash:
    """The rows with the smallest hashes; ``most`` is how many can be asked for, where that is known."""

    def __init__(self, most: int | None) -> None:
        self.most = most
        self._available = 0
        self._hashes: list[Words] = []
        self._n_held = 0

    def state(self) -> tuple[int, Words]:
        """How many rows were seen, and the hashes that matter."""
        held = np.concatenate(self._hashes) if self._hashes else np.empty(0, np.uint64)
        return self._available, self._smallest(held)

    def resume(self, available: int, hashes: Words) -> None:
        """Go on from a state, before anything is added."""
        self._available, self._hashes, self._n_held = available, [hashes], len(hashes)

    def add(self, candidates: Candidates) -> None:
        """Keep the hashes that may be among the smallest."""
        self._available += len(candidates.hashes)
        self._hashes.append(self._smallest(candidates.hashes))
        self._n_held += len(self._hashes[-1])
        if self.most is not None and self._n_held > 4 * (self.most + 1):
            self._hashes = [self._smallest(np.concatenate(self._hashes))]
            self._n_held = len(self._hashes[0])

    def _smallest(self, hashes: Words) -> Words:
        if self.most is None or len(hashes) <= self.most + 1:
            return hashes
        return np.partition(_low(hashes, self.most + 1), self.most)[: self.most + 1]

    def choose(self, n: int) -> Choice:
        """Everything below the hash that comes behind the last one that is chosen."""
        if n >= self._available:
            return Choice(self._available, 2**64)
        hashes = np.partition(_low(np.concatenate(self._hashes), n + 1), (max(0, n - 1), n))
        if n and hashes[n - 1] == hashes[n]:
            # Two rows of one hash, one on either side of the border: once in 10^9 bakes of 10^5 rows.
            raise RecipeError(
                "two rows have the same hash at the border of the choice; change the seed, or take one more"
            )
        return Choice(self._available, int(hashes[n]))


def _low(hashes: Words, n: int) -> Words:
    """Among them the ``n`` smallest: those below where these must end, as hashes are spread evenly; to look for that
    border among a few is ten times as fast as among all.
    """
    share = (n + 8 * n**0.5 + 8) / len(hashes)
    if share > 0.5:
        return hashes
    found: Words = hashes[hashes < np.uint64(int(share * 2**64))]
    return found if len(found) >= n else hashes


class ByTokens:
    """Rows by hash until they reach a number of tokens; the last one may go beyond."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._available = 0
        self._hashes, self._tokens = np.empty(0, np.uint64), np.empty(0, np.int64)

    def add(self, candidates: Candidates) -> None:
        """Keep the rows with the smallest hashes that are enough."""
        assert candidates.tokens is not None
        self._available += int(candidates.tokens.sum())
        hashes = np.concatenate([self._hashes, candidates.hashes])
        tokens = np.concatenate([self._tokens, candidates.tokens])
        order = np.argsort(hashes, kind="stable")
        before = np.cumsum(tokens[order]) - tokens[order]
        # One row more than are enough: its hash is the border.
        n_kept = int(np.searchsorted(before, self._most, side="left")) + 1
        self._hashes, self._tokens = hashes[order[:n_kept]], tokens[order[:n_kept]]

    def choose(self, n: int) -> Choice:
        """Everything below the first row that is not needed."""
        before = np.cumsum(self._tokens) - self._tokens
        n_rows = int(np.searchsorted(before, n, side="left"))
        reached = int(self._tokens[:n_rows].sum())
        threshold = 2**64 if n_rows >= len(self._hashes) else int(self._hashes[n_rows])
        return Choice(self._available, threshold, tokens=reached)


class ByPlace:
    """The last rows of the source (``latest``), or the first (``oldest``)."""

    def __init__(self, most: int | None, *, is_latest: bool) -> None:
        self._most, self._is_latest = most, is_latest
        self._available = self._n_held = 0
        self._rows: dict[Place, Int64] = {}

    def add(self, candidates: Candidates) -> None:
        """Keep the rows that may be among the last."""
        self._available += len(candidates.rows)
        rows = candidates.rows if self._most is None else self._cut(candidates.rows, self._most)
        self._rows[candidates.place] = rows
        self._n_held += len(rows)
        if self._most is not None and self._is_latest:
            for place, held in self._rows.items():
                if len(held) and self._n_held - len(held) < self._most:
                    break
                self._n_held -= len(held)
                self._rows[place] = held[:0]

    def _cut(self, rows: Int64, n: int) -> Int64:
        return rows[max(0, len(rows) - n) :] if self._is_latest else rows[:n]

    def choose(self, n: int) -> Choice:
        """As many as are asked for, from the end or from the beginning."""
        left, chosen = n, {place: rows[:0] for place, rows in self._rows.items()}
        for place in reversed(self._rows) if self._is_latest else self._rows:
            chosen[place] = self._cut(self._rows[place], left)
            left -= len(chosen[place])
        return Choice(self._available, rows=chosen)


class ByValue:
    """The rows with the largest values (``top``): equal ones by hash, NaN and then nulls last."""

    def __init__(self, most: int | None, what: str) -> None:
        self._most, self._what = most, what
        self._available = 0
        self._places: list[Place] = []
        # By type, so that values meet in another type only if they are among the largest of their own.
        self._held: dict[pa.DataType, pa.Table] = {}
        self._found_in: dict[pa.DataType, str] = {}

    def add(self, candidates: Candidates) -> None:
        """Keep the rows that may be among the largest."""
        self._available += len(candidates.rows)
        self._places.append(candidates.place)
        values = _sortable(candidates.values)
        columns = {"value": values, "hash": pa.array(candidates.hashes), "row": pa.array(candidates.rows)}
        columns["place"] = pa.array(np.full(len(candidates.rows), len(self._places) - 1))
        both = pa.table(columns)
        if values.type in self._held:
            both = pa.concat_tables([self._held[values.type], both])
        is_much = self._most is not None and both.num_rows > 2 * self._most
        self._held[values.type] = self._largest(both, self._most or 0) if is_much else both
        if len(candidates.rows):
            self._found_in.setdefault(values.type, candidates.place[0])

    def choose(self, n: int) -> Choice:
        """The first by value."""
        chosen = {place: np.empty(0, np.int64) for place in self._places}
        tables = [self._largest(table, n) for table in self._held.values() if table.num_rows]
        if tables:
            wanted = comparable_type(self._found_in, self._what)
            values = [as_type(table.column("value"), wanted, self._what) for table in tables]
            tables = [table.set_column(0, "value", each) for table, each in zip(tables, values, strict=True)]
            table = self._largest(pa.concat_tables(tables, promote_options="default"), n)
            places, rows = table.column("place").to_numpy(), table.column("row").to_numpy()
            for number in np.unique(places).tolist():
                chosen[self._places[number]] = np.sort(rows[places == number])
        return Choice(self._available, rows=chosen)

    def _largest(self, table: pa.Table, n: int) -> pa.Table:
        try:
            order = pc.sort_indices(table, sort_keys=[("value", "descending"), ("hash", "ascending")])
        except (pa.ArrowTypeError, pa.ArrowNotImplementedError):
            raise RecipeError(
                f"{self._what}: {table.column('value').type} has no order to pick the top of; pick by a number, a text "
                "or a time"
            ) from None
        return table.take(order[:n])


def _sortable(values: Any) -> Any:
    """Arrow sorts no float16."""
    return values.cast(pa.float32()) if kinds.is_float16(values.type) else values


class Stratified:
    """Rows of each value in its proportion, within it by hash; null is a value too."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._parts: list[Candidates] = []

    def add(self, candidates: Candidates) -> None:
        """All rows are needed to know the proportions."""
        self._parts.append(candidates)

    def choose(self, n: int) -> Choice:
        """Shares by largest remainder."""
        chosen = {part.place: np.empty(0, np.int64) for part in self._parts}
        filled = [part for part in self._parts if len(part.rows)]
        available = sum(len(part.rows) for part in filled)
        if not filled or not n:
            return Choice(available, rows=chosen)
        hashes = np.concatenate([part.hashes for part in filled])
        kept = _by_strata(self._codes(filled), hashes, min(n, available))
        for part, mask in zip(filled, np.split(kept, np.cumsum([len(part.rows) for part in filled])[:-1]), strict=True):
            chosen[part.place] = part.rows[mask]
        return Choice(available, rows=chosen)

    def _codes(self, parts: list[Candidates]) -> Any:
        """For each row a number that stands for its value."""
        found_in: dict[pa.DataType, str] = {}
        for part in parts:
            found_in.setdefault(part.values.type, part.place[0])
        wanted = comparable_type(found_in, self._what)
        columns = [pa.table({"value": as_type(part.values, wanted, self._what)}) for part in parts]
        values = pa.concat_tables(columns, promote_options="default").column("value").combine_chunks()
        try:
            return pc.dictionary_encode(values, null_encoding="encode").indices.to_numpy()
        except pa.ArrowNotImplementedError:
            raise RecipeError(
                f"{self._what}: rows cannot be grouped by {wanted}; pick by a number, a text or a time"
            ) from None


def _by_strata(codes: Any, hashes: Words, n: int) -> Any:
    _, numbers, counts = np.unique(codes, return_inverse=True, return_counts=True)
    shares = np.array(largest_remainder(counts.tolist(), n))
    order = np.lexsort([hashes, numbers])
    firsts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    nth = np.arange(len(codes)) - firsts[numbers[order]]
    kept = np.zeros(len(codes), bool)
    kept[order[nth < shares[numbers[order]]]] = True
    return kept


# All of them ----------------------------------------------------------------------------------------------------------


def chooser(how: str, most: int | None, what: str = "the column that rows are picked by") -> Chooser:
    """The selector for a pick; ``what`` names ingredient and column in errors."""
    if how == "hash":
        return ByHash(most)
    if how in ("latest", "oldest"):
        return ByPlace(most, is_latest=how == "latest")
    return ByValue(most, what) if how == "top" else Stratified(what)


# Scanning candidates --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CandidateReader:
    """Reads the candidates of an ingredient: rows that pass its filter, with the columns that they are chosen by."""

    pipeline: FragmentPipeline
    column: str | None
    tokens: str | None
    cache: Cache | None

    def key(self, fragment: Fragment) -> str:
        """The name under which the candidates of a fragment are kept."""
        about = [fragment.name, fragment.number, fragment.fingerprint, self.column, self.tokens]
        return key_of("candidates", self.pipeline.ingredient, str(self.pipeline.where), *about)

    def read(self, fragment: Fragment) -> Candidates:
        """The candidates of a fragment; kept, so that a later choice reads only this."""
        key = self.key(fragment)
        found = None if self.cache is None else self.cache.get(key)
        piece = self._read(fragment) if found is None else found.piece
        if self.cache is not None and found is None:
            self.cache.put(key, BakedFragment(piece))
        values = None if self.column is None else piece.table.column("value")
        counts = None if self.tokens is None else piece.table.column("tokens").to_numpy()
        return Candidates((fragment.name, fragment.number), piece.rows, self.pipeline.hashes(piece), values, counts)

    def _read(self, fragment: Fragment) -> FragmentRows:
        pipeline, name = self.pipeline, fragment.name
        needed = {as_: each for as_, each in (("value", self.column), ("tokens", self.tokens)) if each is not None}
        check_columns(pipeline.source.schema().names, self.column, self.tokens, pipeline.ingredient)
        pieces = []
        for table, rows in pipeline.source.read(fragment, pipeline.with_filter([*needed.values()]), pipeline.where):
            table, kept = workable(table), rows
            if pipeline.where is not None:
                whole = FragmentRows.read(pipeline.ingredient, name, table, rows)
                mask = filtered(whole, pipeline.where, pipeline.on_error, [])[0]
                # Columns that only the filter looks at are not needed any more.
                table, kept = table.select(list(dict.fromkeys(needed.values()))).filter(pa.array(mask)), rows[mask]
            columns = {as_: table.column(each) for as_, each in needed.items()}
            if self.tokens is not None:
                columns["tokens"] = token_counts(columns["tokens"], self.tokens, pipeline.ingredient)
            # A table without columns has no rows either, so there is always one.
            columns = columns or {"value": pa.nulls(len(kept))}
            pieces.append(FragmentRows.read(pipeline.ingredient, name, canonical_table(pa.table(columns)), kept))
        if pieces:
            return joined(pieces)
        empty = pa.table({"value": pa.nulls(0), "tokens": pa.array([], pa.int64())})
        return FragmentRows.read(pipeline.ingredient, name, empty, np.empty(0, np.int64))


def check_token_share(ingredient: str, how: str, on_short: str) -> None:
    """Raise if a share in tokens is asked for together with something that only rows have."""
    if how != "hash" or on_short == "repeat":
        raise RecipeError(
            f"ingredient {ingredient!r}: shares in tokens are picked by hash and not repeated; leave out pick= and "
            "on_short='repeat', or count the total in rows"
        )


def check_columns(names: Sequence[str], column: str | None, tokens: str | None, ingredient: str) -> None:
    """Raise if a column is missing that rows are picked by, or that counts their tokens."""
    way = "; shares are taken before any step, so count tokens in a recipe of its own, and make it the ingredient"
    for name, advice in ((column, ""), (tokens, way)):
        if name is not None and name not in names:
            raise UnknownColumn(f"ingredient {ingredient!r} has no column {name!r}; there are {list(names)}{advice}")


def token_counts(column: pa.ChunkedArray, name: str, ingredient: str) -> pa.ChunkedArray:
    """The numbers of tokens in a column; a RecipeError if these are none."""
    if column.null_count or (len(column) and not kinds.is_integer(column.type)):
        raise RecipeError(
            f"ingredient {ingredient!r}, column {name!r}: token counts are whole numbers, one for every row, got "
            f"{column.type} with {column.null_count} nulls; count them first, or filter those rows out"
        )
    return column.cast(pa.int64())


def scan(picking: Chooser, reader: CandidateReader, fragments: Sequence[Fragment], engine: Engine) -> None:
    """Feed all candidates of an ingredient to its selector, new ones only where the cache holds its state."""
    cache, names = reader.cache, {reader.key(fragment): fragment for fragment in fragments}
    memory = None
    if cache is not None and isinstance(picking, ByHash) and picking.most is not None:
        memory = _Memory(cache, reader.pipeline, picking)
    seen = set() if memory is None else memory.recall(names)
    fresh = {name: fragment for name, fragment in names.items() if name not in seen}
    # What is kept is taken here: to hand it to a worker and back takes longer than to read it.
    is_kept = {name: cache is not None and cache.has(name) for name in fresh}
    with taken(engine.run(reader.read, [each for name, each in fresh.items() if not is_kept[name]])) as found:
        for name, fragment in fresh.items():
            picking.add(reader.read(fragment) if is_kept[name] else next(found))
    if memory is not None and len(fresh) > len(names) // 8:  # a few may be looked at again, for less than this costs
        memory.keep(names)


class _Memory:
    """What a choice by hash has seen of an ingredient, in the cache."""

    def __init__(self, cache: Cache, pipeline: FragmentPipeline, picking: ByHash) -> None:
        self._cache, self._ingredient, self._picking = cache, pipeline.ingredient, picking
        self._key = key_of("seen", pipeline.ingredient, pipeline.seed, str(pipeline.where), picking.most)

    def recall(self, names: Any) -> set[str]:
        """Let the chooser know what was seen before, if all of that is still there; what that was."""
        found = self._cache.get(self._key)
        if found is None:
            return set()
        table = found.piece.table
        seen = set(json.loads(table.schema.metadata[b"seen"]))
        if not seen <= set(names):
            return set()
        self._picking.resume(int(table.schema.metadata[b"available"]), table.column("hash").to_numpy())
        return seen

    def keep(self, names: Any) -> None:
        """Remember it for the next time."""
        available, hashes = self._picking.state()
        about = {"seen": json.dumps(list(names)), "available": str(available)}
        table = pa.table({"hash": hashes}).replace_schema_metadata(about)
        self._cache.put(
            self._key, BakedFragment(FragmentRows.read(self._ingredient, "", table, np.zeros(len(hashes), np.int64)))
        )
