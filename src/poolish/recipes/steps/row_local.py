"""Built-in steps that look at one row at a time: map, filter, select, drop, rename, cast, fill_nulls, tokenize.

Each is a function from a table to a table. It is done to all rows at once; only when that fails, the rows that it fails
for are found by halving, so rows that are good cost nothing. What fails for no rows at all (an unknown column, a text
compared with a number) is no row's fault, and an error whatever ``on_error`` says.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from poolish.concurrency import cached_property
from poolish.errors import RecipeError, UnknownColumn
from poolish.expressions import Expression, as_expression, as_value, halving
from poolish.fingerprints import options_fingerprint
from poolish.recipes.fragment_rows import (
    INGREDIENT,
    Failures,
    FragmentRows,
    Int64,
    Prepared,
    WrongResult,
    canonical_table,
    place_of,
    raise_at,
)

#: A table out of a table, and the numbers of the rows that are left; None for all.
Change = Callable[[pa.Table], tuple[pa.Table, Int64 | None]]


class RowStep:
    """A built-in step that looks at one row at a time; ``kind`` is what it does, ``name`` what the recipe calls it."""

    def __init__(
        self, kind: str, name: str, options: Mapping[str, Any], change: Change, *, version: Any = None
    ) -> None:
        self.kind, self._name, self._options, self._version = kind, name, dict(options), version
        self._change = change
        #: Columns that are needed, if not all.
        self.needs: list[str] | None = list(options["columns"]) if kind == "select" else None
        self._asks_ingredient = any(INGREDIENT in each.columns for each in _expressions(kind, options))

    @cached_property
    def fingerprint(self) -> str:
        """What it does, and with which options."""
        options = options_fingerprint(self._options, f"step {self._name!r}", self._version)
        return f"{self.kind} {options}"

    def prepare(self, piece: FragmentRows, on_error: str) -> Prepared:
        """Do it to all rows, where expressions may ask for the name of the ingredient as if it were a column."""
        if not self._asks_ingredient or INGREDIENT in piece.table.column_names:
            return self._prepared(piece, on_error)
        names = pa.repeat(pa.scalar(piece.ingredient, pa.large_string()), len(piece))
        made = self._prepared(piece.with_table(piece.table.append_column(INGREDIENT, names)), on_error)
        if INGREDIENT in self._options.get("columns", ()):
            return made
        return made._replace(table=made.table.drop_columns([INGREDIENT]))

    def _prepared(self, piece: FragmentRows, on_error: str) -> Prepared:
        """To all rows at once, or as far as it can be done."""
        try:
            table, parents = self._change(piece.table)
        except Exception as error:
            if not len(piece):  # rows that never came have no columns that could be wrong
                return Prepared(piece.table, np.empty(0, np.int64), [])
            return self._without_failing(piece, on_error, error)
        return Prepared(canonical_table(table), np.arange(len(piece)) if parents is None else parents, [])

    def _without_failing(self, piece: FragmentRows, on_error: str, error: Exception) -> Prepared:
        """The rows that the change does not fail for, found by halving."""
        try:
            nothing, _ = self._change(piece.table.slice(0, 0))
        except Exception:
            raise_at(place_of(piece, self._name), error)
        tables: list[pa.Table] = []
        parents: list[Int64] = []
        failed = Failures(piece, self._name, on_error)
        for first, n_rows, (table, kept) in halving(self._range(piece), [(0, len(piece))], failed):
            tables.append(canonical_table(table))
            parents.append(first + (np.arange(n_rows) if kept is None else kept))
        if on_error == "raise":  # rows that fail only together
            raise_at(place_of(piece, self._name), error)
        if not tables:
            return Prepared(canonical_table(nothing), np.empty(0, np.int64), failed.rejected)
        return Prepared(pa.concat_tables(tables, promote_options="default"), np.concatenate(parents), failed.rejected)

    def _range(self, piece: FragmentRows) -> Callable[[int, int], tuple[pa.Table, Int64 | None]]:
        return lambda first, n_rows: self._change(piece.table.slice(first, n_rows))


def _expressions(kind: str, options: Mapping[str, Any]) -> list[Expression]:
    """All that a step evaluates."""
    if kind == "filter":
        return [as_expression(options["keep"])]
    made = [as_value(value) for value in options["columns"].values()] if kind == "map" else []
    return [each for each in made if each is not None]


# What they do --------------------------------------------------------------------------------------------------------


def _map(columns: Mapping[str, Any]) -> Change:
    for name, value in columns.items():
        _refuse_function(value, f"column {name!r}", "pass it as the step itself, which gets a row and returns one")
    expressions = {name: as_value(value) for name, value in columns.items()}

    def change(table: pa.Table) -> tuple[pa.Table, None]:
        made = {
            name: _nulls(table, name) if expression is None else expression.values(table)
            for name, expression in expressions.items()
        }
        for name, values in made.items():
            table = with_column(table, name, values)
        return table, None

    return change


def _nulls(table: pa.Table, name: str) -> pa.Array:
    """No value in any row, in the type that the column has, if it is there."""
    place = table.schema.get_field_index(name)
    return pa.nulls(len(table), pa.null() if place < 0 else table.schema.field(place).type)


def _refuse_function(value: Any, what: str, instead: str) -> None:
    if callable(value):
        called = getattr(value, "__name__", type(value).__name__)
        raise RecipeError(f"{what}: an expression such as 'score > 0', got the function {called!r}; {instead}")


def _filter(keep: Any) -> Change:
    _refuse_function(keep, "keep", "pass it as the step itself, which gets a row and returns it, or [] for no row")
    expression = as_expression(keep)

    def change(table: pa.Table) -> tuple[pa.Table, Int64]:
        mask = expression.mask(table)[0]
        return table.filter(pa.array(mask)), np.flatnonzero(mask)

    return change


def _select(columns: Sequence[str]) -> Change:
    return lambda table: (table.select(known(table, columns)), None)


def _drop(columns: Sequence[str]) -> Change:
    return lambda table: (table.drop_columns(known(table, columns)), None)


def _rename(columns: Mapping[str, str]) -> Change:
    def change(table: pa.Table) -> tuple[pa.Table, None]:
        known(table, list(columns))
        names = [columns.get(name, name) for name in table.column_names]
        for old, new in columns.items():
            if names.count(new) > 1:
                raise WrongResult(
                    f"column {old!r} cannot become {new!r}, there would be two of them in {names}; drop or rename the "
                    "other one"
                )
        return table.rename_columns(names), None

    return change


def _cast(columns: Mapping[str, Any]) -> Change:
    types = {name: _type_named(type_, name) for name, type_ in columns.items()}

    def cast(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        try:
            values = column.cast(types[name])
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
            raise RecipeError(f"column {name!r} cannot be {types[name]}: {error}; filter or map it first") from error
        _refuse_overflow(name, column, values)
        return values

    return _of_columns(columns, cast)


def _of_columns(names: Iterable[str], make: Callable[[str, pa.ChunkedArray], pa.ChunkedArray]) -> Change:
    """New values for columns that are there."""

    def change(table: pa.Table) -> tuple[pa.Table, None]:
        for name in names:
            table = with_column(table, name, make(name, table.column(known(table, [name])[0])))
        return table, None

    return change


def _refuse_overflow(name: str, column: pa.ChunkedArray, values: pa.ChunkedArray) -> None:
    """Raise where a finite number would become infinite: Arrow's cast allows that."""
    if not pa.types.is_floating(values.type):
        return
    for i in pc.indices_nonzero(pc.is_inf(values.cast(pa.float64()))).to_pylist():
        value = column[i].as_py()
        if "inf" not in str(value).lower():
            raise RecipeError(
                f"column {name!r} cannot be {values.type}: {value!r} is too large; filter or map it first"
            )


#: Types of Python that are several in a column, and what to write for the one that holds all of their values.
_OF_PYTHON = {"int": "int64", "float": "float64"}


def _type_named(type_: Any, column: str) -> pa.DataType:
    """The type of a column, given as itself or by its name."""
    if isinstance(type_, pa.DataType):
        return type_
    # Arrow would take 'float' for 32 bits, where Python has 64.
    hint = _OF_PYTHON.get(type_) if isinstance(type_, str) else None
    try:
        if hint is None:
            return pa.type_for_alias(type_)
    except (ValueError, AttributeError):
        hint = "int64', 'float64', 'string', 'bool' or 'timestamp[us]"
    raise RecipeError(f"column {column!r} cannot be {type_!r}, which is no type of a column; write '{hint}'")


def _fill_nulls(columns: Mapping[str, Any]) -> Change:
    def filled(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        try:
            return pc.fill_null(column, exact_scalar(columns[name], column.type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise RecipeError(
                f"column {name!r} holds {column.type}, its nulls cannot become {columns[name]!r}: {error}; cast it "
                "first"
            ) from error

    return _of_columns(columns, filled)


def _tokenize(tokenizer: Any, column: str = "text", into: str = "tokens", count: str | None = None) -> Change:
    encode = _encoder(tokenizer)

    def change(table: pa.Table) -> tuple[pa.Table, None]:
        known(table, [column])
        ids = [None if text is None else list(encode(text)) for text in table.column(column).to_pylist()]
        table = with_column(table, into, pa.array(ids, pa.large_list(pa.int64())))
        if count is not None:
            lengths = [None if each is None else len(each) for each in ids]
            table = with_column(table, count, pa.array(lengths, pa.int64()))
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


#: Each kind, and what makes it out of its options.
ROW_STEPS: dict[str, Callable[..., Change]] = {
    "map": _map,
    "filter": _filter,
    "select": _select,
    "drop": _drop,
    "rename": _rename,
    "cast": _cast,
    "fill_nulls": _fill_nulls,
    "tokenize": _tokenize,
}


def with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    """The table with a column in its old place, or behind the others."""
    place = table.schema.get_field_index(name)
    return table.append_column(name, values) if place < 0 else table.set_column(place, name, values)


def known(table: pa.Table, columns: Sequence[str]) -> list[str]:
    """The names, if the table has them all."""
    unknown = [name for name in columns if name not in table.column_names]
    if unknown:
        raise UnknownColumn.of(unknown[0], table.column_names)
    return list(columns)


# Values that a column holds exactly ---------------------------------------------------------------------------------


_TIMES = (datetime.date, datetime.time, datetime.timedelta)


def exact_scalar(value: Any, type_: pa.DataType) -> pa.Scalar:
    """``value`` in a type of Arrow; a ValueError if it would be another one there.

    Floats may be rounded to the precision of the type, but neither overflow nor become 0.

    >>> exact_scalar(2.0, pa.int8()).as_py(), exact_scalar(0.1, pa.float64()).as_py()
    (2, 0.1)
    >>> exact_scalar(0.5, pa.int8())
    Traceback (most recent call last):
    ValueError: it would become 0
    """
    scalar = pa.scalar(value, type_)
    held = scalar.as_py()
    if not _is_kept(value, held):
        raise ValueError(f"it would become {held!r}")
    return scalar


def _is_kept(value: Any, held: Any) -> bool:
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    elif isinstance(value, pa.Scalar):
        value = value.as_py()
    if isinstance(value, bool) or isinstance(held, bool):
        return value is held
    if isinstance(held, (float, np.floating)):
        return _is_rounded(float(value), float(held))
    if isinstance(value, (Mapping, list, tuple)):
        return _are_kept(value, held)
    if isinstance(value, str) and isinstance(held, bytes):
        return value.encode() == held
    if isinstance(value, bytes) and isinstance(held, str):
        return value == held.encode()
    # A whole number stands for a time in the unit of the column.
    return bool(value == held) or (isinstance(value, int) and isinstance(held, _TIMES))


def _is_rounded(value: float, held: float) -> bool:
    if math.isnan(value) or math.isinf(value):
        return math.isnan(held) if math.isnan(value) else held == value
    return math.isfinite(held) and (held != 0 or value == 0)


def _are_kept(value: Any, held: Any) -> bool:
    """A list, or the fields of a struct: Arrow leaves out those that it does not have."""
    if isinstance(value, Mapping) and isinstance(held, Mapping):
        return value.keys() <= held.keys() and all(_is_kept(value[name], held[name]) for name in value)
    parts = list(value.items()) if isinstance(value, Mapping) else value
    return len(parts) == len(held) and all(map(_is_kept, parts, held))
