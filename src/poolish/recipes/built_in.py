"""Steps that every recipe can use, by name: ``recipe.prepare_step("english", "filter", where=...)``.

Most look at one row at a time (``RowStep``). Some need to see all rows first (``Barrier``): to drop duplicates, to
shuffle, to cut, to fit a scale. A barrier gathers what it needs from each piece, decides, and says for each piece what
is left or which row-local step follows from the decision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from poolish.errors import RecipeError, UnknownColumn
from poolish.recipes.expressions import as_expression
from poolish.recipes.identity import Int64, mixed, row_hashes
from poolish.recipes.piece import Mask, Piece, canonical_table, selected_rows
from poolish.recipes.steps import Prepared

# Row by row ---------------------------------------------------------------------------------------------------------


class RowStep:
    """A built-in step that looks at one row at a time: a function from a table to a table, and which rows are left."""

    def __init__(
        self, name: str, options: Mapping[str, Any], change: Callable[[pa.Table], tuple[pa.Table, Any]]
    ) -> None:
        self.fingerprint = f"{name} {sorted((key, str(value)) for key, value in options.items())}"
        self._change = change
        #: Columns that are needed, if not all.
        self.needs: list[str] | None = None

    def prepare(self, piece: Piece, on_error: str) -> Prepared:
        """Do it to all rows at once."""
        table, parents = self._change(piece.table)
        return Prepared(table, np.arange(len(piece)) if parents is None else parents, [])


def _map(columns: Mapping[str, Any]) -> Callable[[pa.Table], tuple[pa.Table, Any]]:
    expressions = {name: as_expression(value) for name, value in columns.items()}

    def change(table: pa.Table) -> tuple[pa.Table, Any]:
        made = {name: expression.values(table) for name, expression in expressions.items()}
        for name, values in made.items():
            place = table.schema.get_field_index(name)
            if isinstance(values, pa.Scalar):
                values = pa.repeat(values, table.num_rows)
            table = table.append_column(name, values) if place < 0 else table.set_column(place, name, values)
        return table, None

    return change


def _filter(where: Any) -> Callable[[pa.Table], tuple[pa.Table, Any]]:
    expression = as_expression(where)

    def change(table: pa.Table) -> tuple[pa.Table, Any]:
        kept = np.flatnonzero(expression.mask(table)[0])
        return table.take(pa.array(kept)), kept

    return change


def _select(columns: Sequence[str]) -> Callable[[pa.Table], tuple[pa.Table, Any]]:
    return lambda table: (table.select(_known(table, columns)), None)


def _drop(columns: Sequence[str]) -> Callable[[pa.Table], tuple[pa.Table, Any]]:
    return lambda table: (table.drop_columns(_known(table, columns)), None)


def _rename(columns: Mapping[str, str]) -> Callable[[pa.Table], tuple[pa.Table, Any]]:
    def change(table: pa.Table) -> tuple[pa.Table, Any]:
        _known(table, list(columns))
        return table.rename_columns([columns.get(name, name) for name in table.column_names]), None

    return change


def _cast(columns: Mapping[str, str]) -> Callable[[pa.Table], tuple[pa.Table, Any]]:
    def change(table: pa.Table) -> tuple[pa.Table, Any]:
        for name, type_ in columns.items():
            place = table.schema.get_field_index(_known(table, [name])[0])
            try:
                values = table.column(name).cast(pa.type_for_alias(type_))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
                raise RecipeError(f"column {name!r} cannot be {type_}: {error}; filter or map it first") from error
            table = table.set_column(place, name, values)
        return table, None

    return change


def _fill_nulls(columns: Mapping[str, Any]) -> Callable[[pa.Table], tuple[pa.Table, Any]]:
    def change(table: pa.Table) -> tuple[pa.Table, Any]:
        for name, value in columns.items():
            place = table.schema.get_field_index(_known(table, [name])[0])
            column = table.column(name)
            table = table.set_column(place, name, pc.fill_null(column, pa.scalar(value, column.type)))
        return table, None

    return change


def _tokenize(tokenizer: Any, column: str, into: str, count: str | None) -> Callable[[pa.Table], tuple[pa.Table, Any]]:
    encode = _encoder(tokenizer)

    def change(table: pa.Table) -> tuple[pa.Table, Any]:
        _known(table, [column])
        ids = [None if text is None else list(encode(text)) for text in table.column(column).to_pylist()]
        table = _with(table, into, pa.array(ids, pa.large_list(pa.int64())))
        if count is not None:
            table = _with(table, count, pa.array([None if each is None else len(each) for each in ids], pa.int64()))
        return table, None

    return change


def _encoder(tokenizer: Any) -> Callable[[str], Sequence[int]]:
    """Any callable; a tokenizer of tiktoken or Hugging Face, or the name of one of tiktoken's encodings."""
    if isinstance(tokenizer, str):
        import tiktoken

        tokenizer = tiktoken.get_encoding(tokenizer)
    encode = getattr(tokenizer, "encode", tokenizer)
    if not callable(encode):
        raise RecipeError(f"tokenizer={tokenizer!r}: a function from text to numbers, or an object with encode()")

    def ids(text: str) -> Sequence[int]:
        encoded = encode(text)
        found: Sequence[int] = getattr(encoded, "ids", encoded)
        return found

    return ids


def _with(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    place = table.schema.get_field_index(name)
    return table.append_column(name, values) if place < 0 else table.set_column(place, name, values)


def _known(table: pa.Table, columns: Sequence[str]) -> list[str]:
    unknown = [name for name in columns if name not in table.column_names]
    if unknown:
        raise UnknownColumn(f"no column {unknown[0]!r}; there are {table.column_names}")
    return list(columns)


# All rows at once ----------------------------------------------------------------------------------------------------


class Barrier:
    """A step that needs all rows before it can say anything about one."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self.fingerprint = f"{name} {sorted((key, str(value)) for key, value in options.items())}"


class Dedup(Barrier):
    """Of rows that are equal in ``columns`` (all, by default) only the first is left."""

    def __init__(self, columns: Sequence[str] | None) -> None:
        super().__init__("dedup", {"columns": columns})
        self._columns = None if columns is None else list(columns)

    def masks(self, pieces: list[Piece], order: Any, where: Any) -> list[Mask]:
        """Which rows are the first of their kind, in the order that rows have by now."""
        asked = np.concatenate([selected_rows(piece, where) for piece in pieces] or [np.empty(0, bool)])
        if not asked.any():
            return _split(np.ones(len(asked), bool), pieces)
        places = np.empty(len(asked), np.int64)
        places[np.arange(len(asked)) if order is None else order] = np.arange(len(asked))
        kept = ~asked
        kept[np.flatnonzero(asked)[self._firsts(pieces, asked, places[asked])]] = True
        return _split(kept, pieces)

    def _firsts(self, pieces: list[Piece], asked: Mask, places: Int64) -> Int64:
        """Which of the rows that are asked about are the first of their kind, where the first has the lowest place."""
        tables = [canonical_table(piece.table) for piece in pieces if len(piece)]
        names = tables[0].column_names if self._columns is None else _known(tables[0], self._columns)
        keys = pa.concat_tables([table.select(names) for table in tables], promote_options="default")
        keys = keys.filter(pa.array(asked))
        if any(pa.types.is_nested(field.type) or isinstance(field.type, pa.BaseExtensionType) for field in keys.schema):
            keys = pa.table({"digest": pa.array(_digests(keys), pa.binary())})
        groups = keys.append_column("__place", pa.array(places)).group_by(keys.column_names, use_threads=False)
        lowest = groups.aggregate([("__place", "min")]).column("__place_min").to_numpy()
        firsts: Int64 = np.flatnonzero(np.isin(places, lowest, assume_unique=True))
        return firsts


def _digests(table: pa.Table) -> list[bytes]:
    """Something that is equal where rows are: 128 bits, because 64 meet by chance among 10^9 rows."""
    import xxhash

    columns = [column.to_pylist() for column in table.columns]
    return [xxhash.xxh3_128_digest(repr(row).encode()) for row in zip(*columns, strict=True)]


def _split(mask: Mask, pieces: list[Piece]) -> list[Mask]:
    return np.split(mask, np.cumsum([len(piece) for piece in pieces])[:-1]) if pieces else []


class Limit(Barrier):
    """The first ``n`` rows."""

    def __init__(self, n: int) -> None:
        super().__init__("limit", {"n": n})
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise RecipeError(f"limit: n={n!r}; a whole number of rows")
        self._n = n

    def masks(self, pieces: list[Piece], order: Any, where: Any) -> list[Mask]:
        """Of the rows that are asked about, the first ones; the others stay."""
        asked = np.concatenate([selected_rows(piece, where) for piece in pieces] or [np.empty(0, bool)])
        places = np.arange(len(asked)) if order is None else order
        mine = places[asked[places]]
        kept = np.ones(len(asked), bool)
        kept[mine[self._n :]] = False
        return _split(kept, pieces)


class Shuffle(Barrier):
    """All rows in the order of a hash of what they are, so that rows that come later change no other row's place."""

    def __init__(self, seed: int | None) -> None:
        super().__init__("shuffle", {"seed": seed})
        self._seed = seed

    def keys(self, piece: Piece, seed: int, name: str) -> NDArray[np.uint64]:
        """What rows are sorted by."""
        use = f"shuffle {name}"
        own = row_hashes(seed if self._seed is None else self._seed, use, piece.ingredient, piece.name, piece.rows)
        # Mixed, so that rows that one row became are spread like any others.
        return mixed(own ^ mixed(piece.subs.astype(np.uint64)))


class Fitted(Barrier):
    """A scale that is fitted on the data: ``standardise`` or ``winsorize``, unless its parameters are given."""

    def __init__(self, name: str, column: str, options: Mapping[str, Any]) -> None:
        super().__init__(name, {"column": column, **options})
        self._name, self.column, self._options = name, column, dict(options)

    def fit(self, values: NDArray[np.float64]) -> dict[str, float]:
        """The parameters; exact sums, so that they do not depend on how the data is cut."""
        known = values[~np.isnan(values)]
        if self._name == "winsorize":
            low, high = self._options.get("lower", 0.01), self._options.get("upper", 0.99)
            edges = np.quantile(known, [low, high]) if len(known) else np.array([math.nan, math.nan])
            return {"low": float(edges[0]), "high": float(edges[1])}
        mean = math.fsum(known) / len(known) if len(known) else math.nan
        spread = math.sqrt(math.fsum((known - mean) ** 2) / len(known)) if len(known) else math.nan
        return {"mean": mean, "std": spread}

    def fitted(self, pieces: list[Piece], where: Any) -> dict[str, float]:
        """The parameters: those that were given, or fitted on all rows that are asked about."""
        names = ("low", "high") if self._name == "winsorize" else ("mean", "std")
        if all(name in self._options for name in names):
            return {name: float(self._options[name]) for name in names}
        found = [np.empty(0)]
        for piece in pieces:
            _known(piece.table, [self.column])
            column = piece.keep(selected_rows(piece, where)).table.column(self.column)
            found.append(column.cast(pa.float64()).to_numpy())
        return self.fit(np.concatenate(found))

    def with_parameters(self, parameters: Mapping[str, float]) -> RowStep:
        """The step that these parameters make."""
        return RowStep(
            self._name, {"column": self.column, **parameters}, lambda table: (self.apply(table, parameters), None)
        )

    def apply(self, table: pa.Table, fitted: Mapping[str, float]) -> pa.Table:
        """The column on its new scale."""
        values = table.column(self.column).to_numpy().astype(np.float64)
        if self._name == "winsorize":
            values = np.clip(values, fitted["low"], fitted["high"])
        else:
            values = (values - fitted["mean"]) / (fitted["std"] or 1.0)
        nulls = table.column(self.column).is_null().to_numpy()
        return _with(table, self.column, pa.array(values, pa.float64(), mask=nulls))


def built_in(step: str, name: str, options: Mapping[str, Any]) -> RowStep | Barrier | None:
    """A built-in step by its name; None if there is none of that name."""
    given = dict(options)
    makers: dict[str, Callable[[], RowStep | Barrier]] = {
        "map": lambda: RowStep("map", given, _map(_option(given, name, "columns"))),
        "filter": lambda: RowStep("filter", given, _filter(_option(given, name, "keep"))),
        "select": lambda: _needing(
            RowStep("select", given, _select(_option(given, name, "columns"))), given["columns"]
        ),
        "drop": lambda: RowStep("drop", given, _drop(_option(given, name, "columns"))),
        "rename": lambda: RowStep("rename", given, _rename(_option(given, name, "columns"))),
        "cast": lambda: RowStep("cast", given, _cast(_option(given, name, "columns"))),
        "fill_nulls": lambda: RowStep("fill_nulls", given, _fill_nulls(_option(given, name, "columns"))),
        "tokenize": lambda: RowStep(
            "tokenize",
            given,
            _tokenize(
                _option(given, name, "tokenizer"),
                given.get("column", "text"),
                given.get("into", "tokens"),
                given.get("count"),
            ),
        ),
        "dedup": lambda: Dedup(given.get("columns")),
        "limit": lambda: Limit(_option(given, name, "n")),
        "shuffle": lambda: Shuffle(given.get("seed")),
        "winsorize": lambda: Fitted("winsorize", _option(given, name, "column"), _rest(given)),
        "standardise": lambda: Fitted("standardise", _option(given, name, "column"), _rest(given)),
    }
    return makers[step]() if step in makers else None


BUILT_IN = (
    *("map", "filter", "select", "drop", "rename", "cast", "fill_nulls", "tokenize"),
    *("dedup", "limit", "shuffle", "winsorize", "standardise"),
)


def _needing(step: RowStep, columns: Sequence[str]) -> RowStep:
    step.needs = list(columns)
    return step


def _rest(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name != "column"}


def _option(given: Mapping[str, Any], name: str, option: str) -> Any:
    if option not in given:
        raise RecipeError(f"step {name!r} needs {option}=")
    return given[option]
