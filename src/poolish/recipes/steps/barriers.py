"""Steps that every recipe can use, by name: ``recipe.prepare_step("english", "filter", keep="lang == 'en'")``.

Most look at one row at a time (``row_steps``). Some need to see all rows first (``Barrier``): to drop duplicates, to
shuffle, to cut, to fit a scale. A barrier gathers what it needs from each piece, decides, and says for each piece what
is left or which row-local step follows from the decision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from poolish.concurrency import cached_property
from poolish.errors import RecipeError, UnknownColumn
from poolish.fingerprints import options_fingerprint
from poolish.recipes.fragment_rows import FragmentRows, Int64, Mask, canonical_table, mixed, row_hashes, selected_rows
from poolish.recipes.selection import as_type, comparable_type
from poolish.recipes.steps.row_local import RowStep, known, with_column
from poolish.recipes.steps.step import place_of, raise_at

# All rows at once ----------------------------------------------------------------------------------------------------


class Barrier:
    """A step that needs all rows before it can say anything about one."""

    def __init__(self, kind: str, options: Mapping[str, Any]) -> None:
        self._kind, self._given = kind, dict(options)

    @cached_property
    def fingerprint(self) -> str:
        """What it does, and with which options."""
        return f"{self._kind} {options_fingerprint(self._given, f'step {self._kind!r}')}"


class Dedup(Barrier):
    """Of rows that are equal in ``columns`` (all, by default) only the first is left."""

    def __init__(self, columns: Sequence[str] | None = None, *, name: str = "dedup") -> None:
        super().__init__("dedup", {"columns": columns})
        self._name = name
        self._columns = None if columns is None else list(columns)

    def masks(self, pieces: list[FragmentRows], order: Any, where: Any) -> list[Mask]:
        """Which rows are the first of their kind, in the order that rows have by now."""
        asked = np.concatenate([selected_rows(piece, where) for piece in pieces] or [np.empty(0, bool)])
        if not asked.any():
            return _split(np.ones(len(asked), bool), pieces)
        places = np.empty(len(asked), np.int64)
        places[np.arange(len(asked)) if order is None else order] = np.arange(len(asked))
        kept = ~asked
        kept[np.flatnonzero(asked)[self._firsts(pieces, asked, places[asked])]] = True
        return _split(kept, pieces)

    def _firsts(self, pieces: list[FragmentRows], asked: Mask, places: Int64) -> Int64:
        """Which of the rows that are asked about are the first of their kind, where the first has the lowest place."""
        filled = [piece for piece in pieces if len(piece)]
        names = filled[0].table.column_names if self._columns is None else self._columns
        keys = self._alike([self._keys(piece, names) for piece in filled], filled).filter(pa.array(asked))
        if any(pa.types.is_nested(field.type) or isinstance(field.type, pa.BaseExtensionType) for field in keys.schema):
            keys = pa.table({"digest": pa.array(_digests(keys), pa.binary())})
        groups = keys.append_column("__place", pa.array(places)).group_by(keys.column_names, use_threads=False)
        lowest = groups.aggregate([("__place", "min")]).column("__place_min").to_numpy()
        firsts: Int64 = np.flatnonzero(np.isin(places, lowest, assume_unique=True))
        return firsts

    def _keys(self, piece: FragmentRows, names: Sequence[str]) -> pa.Table:
        try:
            return canonical_table(piece.table.select(known(piece.table, names)))
        except Exception as error:
            raise_at(place_of(piece, self._name), error)

    def _alike(self, keys: list[pa.Table], pieces: list[FragmentRows]) -> pa.Table:
        """The keys of all pieces in types in which they can be compared."""
        for i, name in enumerate(keys[0].column_names):
            columns = [table.column(i) for table in keys]
            if len({column.type for column in columns}) == 1:
                continue
            what = f"step {self._name!r}, column {name!r}"
            found_in: dict[pa.DataType, str] = {}
            for column, piece in zip(columns, pieces, strict=True):
                place = [f"ingredient {piece.ingredient!r}", *([piece.name] if piece.name else [])]
                found_in.setdefault(column.type, ", ".join(place))
            wanted = comparable_type(found_in, what, "cast it first")
            columns = [as_type(column, wanted, what, "cast it first") for column in columns]
            keys = [table.set_column(i, name, column) for table, column in zip(keys, columns, strict=True)]
        return pa.concat_tables(keys, promote_options="default")


def _digests(table: pa.Table) -> list[bytes]:
    """Something that is equal where rows are: 128 bits, because 64 meet by chance among 10^9 rows."""
    import xxhash

    columns = [column.to_pylist() for column in table.columns]
    return [xxhash.xxh3_128_digest(repr(row).encode()) for row in zip(*columns, strict=True)]


def _split(mask: Mask, pieces: list[FragmentRows]) -> list[Mask]:
    return np.split(mask, np.cumsum([len(piece) for piece in pieces])[:-1]) if pieces else []


class Limit(Barrier):
    """The first ``n`` rows."""

    def __init__(self, n: int) -> None:
        super().__init__("limit", {"n": n})
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise RecipeError(f"limit: n={n!r}; a whole number of rows")
        self.n = n

    def masks(self, pieces: list[FragmentRows], order: Any, where: Any) -> list[Mask]:
        """Of the rows that are asked about, the first ones; the others stay."""
        asked = np.concatenate([selected_rows(piece, where) for piece in pieces] or [np.empty(0, bool)])
        places = np.arange(len(asked)) if order is None else order
        mine = places[asked[places]]
        kept = np.ones(len(asked), bool)
        kept[mine[self.n :]] = False
        return _split(kept, pieces)


class Shuffle(Barrier):
    """All rows in the order of a hash of what they are, so that rows that come later change no other row's place."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__("shuffle", {"seed": seed})
        self._seed = seed

    def keys(self, piece: FragmentRows, seed: int, name: str) -> NDArray[np.uint64]:
        """What rows are sorted by."""
        use = f"shuffle {name}"
        own = row_hashes(seed if self._seed is None else self._seed, use, piece.ingredient, piece.name, piece.rows)
        # Mixed, so that rows that one row became are spread like any others.
        return mixed(own ^ mixed(piece.subs.astype(np.uint64)))


class Fitted(Barrier):
    """A scale that is fitted on the data: ``standardise`` or ``winsorize``, unless its parameters are given."""

    def __init__(self, kind: str, name: str, column: str, options: Mapping[str, Any]) -> None:
        super().__init__(kind, {"column": column, **options})
        self._name, self.column, self._options = name, column, dict(options)

    def fit(self, values: NDArray[np.float64]) -> dict[str, float]:
        """The parameters; exact sums, so that they do not depend on how the data is cut."""
        present = values[~np.isnan(values)]
        if self._kind == "winsorize":
            low, high = self._options.get("lower", 0.01), self._options.get("upper", 0.99)
            edges = np.quantile(present, [low, high]) if len(present) else np.array([math.nan, math.nan])
            return {"low": float(edges[0]), "high": float(edges[1])}
        mean = math.fsum(present) / len(present) if len(present) else math.nan
        spread = math.sqrt(math.fsum((present - mean) ** 2) / len(present)) if len(present) else math.nan
        return {"mean": mean, "std": spread}

    def fitted(self, pieces: list[FragmentRows], where: Any) -> dict[str, float]:
        """The parameters: those that were given, or fitted on all rows that are asked about."""
        names = ("low", "high") if self._kind == "winsorize" else ("mean", "std")
        if all(name in self._options for name in names):
            return {name: float(self._options[name]) for name in names}
        found = [np.empty(0)]
        found += [self._numbers(piece.keep(selected_rows(piece, where))) for piece in pieces if len(piece)]
        return self.fit(np.concatenate(found))

    def _numbers(self, piece: FragmentRows) -> NDArray[np.float64]:
        if self.column not in piece.table.column_names:
            raise UnknownColumn(
                f"{place_of(piece, self._name)}: no column {self.column!r}; there are {piece.table.column_names}"
            )
        column = piece.table.column(self.column)
        if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_null(column.type)):
            raise RecipeError(
                f"{place_of(piece, self._name)}: column {self.column!r} holds {column.type}; a scale is for numbers, "
                "cast it first"
            )
        values: NDArray[np.float64] = column.cast(pa.float64(), safe=False).to_numpy()
        return values

    def with_parameters(self, parameters: Mapping[str, float]) -> RowStep:
        """The step that these parameters make."""
        options = {"column": self.column, **parameters}
        return RowStep(self._kind, self._name, options, lambda table: (self.apply(table, parameters), None))

    def apply(self, table: pa.Table, fitted: Mapping[str, float]) -> pa.Table:
        """The column on its new scale."""
        values = table.column(self.column).to_numpy().astype(np.float64)
        if self._kind == "winsorize":
            values = np.clip(values, fitted["low"], fitted["high"])
        else:
            values = (values - fitted["mean"]) / (fitted["std"] or 1.0)
        nulls = table.column(self.column).is_null().to_numpy()
        return with_column(table, self.column, pa.array(values, pa.float64(), mask=nulls))
