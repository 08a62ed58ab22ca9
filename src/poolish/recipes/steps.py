"""Preparation steps: what they are called with, and how what they return becomes rows again.

A step is a function of the user's, called with a row or with a batch, or one of ``built_in``. Each has a fingerprint,
by which a cache knows whether it is still the same: code, closure and version of a function, options of a built-in one.

    per row      fn({"text": ...}) -> {"text": ...}, or a list of rows: several, or none
    per batch    fn(table) -> table, or with batched="columns" fn({name: values}) -> {name: values}; one row for a row,
                 or (table, parents), where parents says from which row each came
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from poolish.errors import RecipeError
from poolish.recipes.identity import Int64
from poolish.recipes.piece import Piece
from poolish.rows import DatasetBuffer

#: Rows that a batched step is called with at a time.
BATCH_ROWS = 16_384


class Rejected(NamedTuple):
    """A row that a step could not prepare."""

    row: int
    sub: int
    reason: str


class Prepared(NamedTuple):
    """What a step made of a piece: its rows, from which row of the piece each came, and what was rejected."""

    table: pa.Table
    parents: Int64
    rejected: list[Rejected]


class Step(Protocol):
    """Something that is done to rows, each by itself."""

    fingerprint: str

    def prepare(self, piece: Piece, on_error: str) -> Prepared:
        """Do it."""


_REGISTRY: dict[str, Callable[..., Any]] = {}


def register_step(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A function by name, so that recipe files can use it; files never name anything to import.

    >>> @register_step("shout")
    ... def shout(row):
    ...     return {**row, "text": row["text"].upper()}
    >>> registered("shout")({"text": "rye"})
    {'text': 'RYE'}
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _REGISTRY[name] = function
        return function

    return register


def registered(name: str) -> Callable[..., Any]:
    """The function that was registered under a name."""
    if name not in _REGISTRY:
        raise RecipeError(
            f"no step is registered as {name!r}; import the module that has @register_step({name!r}) first"
        )
    return _REGISTRY[name]


def is_registered(name: str) -> bool:
    """Whether a step has this name."""
    return name in _REGISTRY


class CalledStep:
    """A function of the user's."""

    def __init__(
        self, name: str, function: Callable[..., Any], version: Any, batched: bool | str, options: Any
    ) -> None:
        if batched not in (False, True, "arrow", "columns"):
            raise RecipeError(f"step {name!r}: batched={batched!r}; one of False, True (a table), 'columns'")
        self._name, self._function, self._options = name, function, dict(options)
        self._batched = batched
        self.fingerprint = f"{name} {fingerprint_of(function, name, version)} {batched} {sorted(self._options.items())}"

    def prepare(self, piece: Piece, on_error: str) -> Prepared:
        """Call the function for all rows."""
        if self._batched:
            return self._by_batches(piece, on_error)
        return self._by_rows(piece, on_error)

    def _by_rows(self, piece: Piece, on_error: str) -> Prepared:
        made: list[Any] = []
        parents: list[int] = []
        rejected: list[Rejected] = []
        buffer = DatasetBuffer()
        buffer.append(piece.table)
        rows = buffer.snapshot()
        for i in range(len(piece)):
            try:
                result = self._function(rows[i], **self._options)
                each = [result] if isinstance(result, Mapping) else self._several(result)
            except Exception as error:
                self._failed(error, piece, i, on_error, rejected)
                continue
            made += each
            parents += [i] * len(each)
        return Prepared(self._table(made, piece), np.array(parents, np.int64), rejected)

    def _several(self, result: Any) -> list[Any]:
        if result is None:
            raise RecipeError(f"step {self._name!r} returned None; return a row, or [] for no row")
        rows = list(result)
        if not all(isinstance(row, Mapping) for row in rows):
            raise RecipeError(f"step {self._name!r} returned {type(result).__name__}; return a dict or a list of dicts")
        return rows

    def _table(self, rows: list[Any], piece: Piece) -> pa.Table:
        if not rows:
            return piece.table.schema.empty_table()
        buffer = DatasetBuffer()
        buffer.append(rows)
        return buffer.snapshot().to_arrow()

    def _by_batches(self, piece: Piece, on_error: str) -> Prepared:
        tables: list[pa.Table] = []
        parents: list[Int64] = []
        rejected: list[Rejected] = []
        for first in range(0, len(piece), BATCH_ROWS):
            part = piece.slice(first, BATCH_ROWS)
            try:
                table, own = self._call(part.table)
            except Exception as error:
                if on_error == "raise" or len(part) == 1:
                    self._failed(error, part, 0, on_error, rejected)
                    continue
                for i in range(len(part)):  # to find the rows that it fails for
                    single = self._by_batches(part.slice(i, 1), on_error)
                    tables.append(single.table)
                    parents.append(single.parents + first + i)
                    rejected += single.rejected
                continue
            tables.append(table)
            parents.append(own + first)
        if not tables:
            return Prepared(piece.table.schema.empty_table(), np.empty(0, np.int64), rejected)
        filled = [table for table in tables if table.num_rows] or tables[:1]
        return Prepared(pa.concat_tables(filled), np.concatenate(parents), rejected)

    def _call(self, table: pa.Table) -> tuple[pa.Table, Int64]:
        n_rows = table.num_rows
        given: Any = table
        if self._batched == "columns":
            given = {name: column.to_pylist() for name, column in zip(table.column_names, table.columns, strict=True)}
        result = self._function(given, **self._options)
        parents: Any = None
        if isinstance(result, tuple):
            result, parents = result
        made = _as_table(result, self._name)
        if parents is None:
            if made.num_rows != n_rows:
                raise RecipeError(
                    f"step {self._name!r} made {made.num_rows} rows of {n_rows}; return (rows, parents) to say which "
                    "row each came from"
                )
            return made, np.arange(n_rows)
        own = np.asarray(parents, np.int64)
        if len(own) != made.num_rows or (len(own) and (own.min() < 0 or own.max() >= n_rows)):
            raise RecipeError(f"step {self._name!r}: parents has one row number below {n_rows} for each row it made")
        return made, own

    def _failed(self, error: Exception, piece: Piece, i: int, on_error: str, rejected: list[Rejected]) -> None:
        if on_error == "raise":
            where = f", {piece.name}" if piece.name else ""
            error.add_note(
                f"while baking ingredient {piece.ingredient!r}{where}, row {piece.rows[i]}, step {self._name!r}"
            )
            raise error
        rejected.append(Rejected(int(piece.rows[i]), int(piece.subs[i]), f"{type(error).__name__}: {error}"))


def _as_table(result: Any, name: str) -> pa.Table:
    if isinstance(result, pa.Table):
        return result
    if isinstance(result, pa.RecordBatch):
        return pa.Table.from_batches([result])
    if isinstance(result, Mapping):
        buffer = DatasetBuffer()
        buffer.append_columns(result)
        return buffer.snapshot().to_arrow()
    raise RecipeError(f"step {name!r} returned {type(result).__name__}; return a table or a dict of columns")


def fingerprint_of(function: Callable[..., Any], name: str, version: Any) -> str:
    """What changes when a function does: its version if it has one, else its code and what it closes over."""
    if version is not None:
        return f"version {version}"
    code = getattr(function, "__code__", None)
    closure = inspect.getclosurevars(function) if code is not None else None
    if code is None or closure is None or not all(_is_plain(value) for value in closure.nonlocals.values()):
        raise RecipeError(
            f"step {name!r}: nobody can tell whether this function is still the same, because it holds "
            "objects; pass version=1, and another number whenever it changes"
        )
    digest = hashlib.blake2b(digest_size=12)
    _digest_code(code, digest)
    for captured, value in sorted(closure.nonlocals.items()):
        digest.update(f"{captured}={value!r}".encode())
    for captured, value in sorted(closure.globals.items()):
        if _is_plain(value):
            digest.update(f"{captured}={value!r}".encode())
    digest.update(repr(getattr(function, "__defaults__", None)).encode())
    return digest.hexdigest()


def _digest_code(code: Any, digest: Any) -> None:
    digest.update(code.co_code + repr((code.co_names, code.co_varnames)).encode())
    for constant in code.co_consts:
        if hasattr(constant, "co_code"):
            _digest_code(constant, digest)
        else:
            digest.update(repr(constant).encode())


def _is_plain(value: Any) -> bool:
    if isinstance(value, (str, bytes, int, float, bool, type(None))):
        return True
    return isinstance(value, (tuple, list, frozenset, set, dict)) and all(
        _is_plain(each) for each in (value.items() if isinstance(value, dict) else value)
    )
