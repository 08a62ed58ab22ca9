"""Preparation steps: what they are called with, and how what they return becomes rows again.

A step is a function of the user's, called with a row or with a batch, or one of ``built_in``. Each has a fingerprint,
which is part of its results' cache keys (see ``poolish.fingerprints``); it is computed only if there is a cache.

    per row      fn({"text": ...}) -> {"text": ...}, or a list of rows: several, or none
    per batch    fn(table) -> table, or with batched="columns" fn({name: values}) -> {name: values}; one row for a row,
                 or (table, parents), where parents says from which row each came
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from poolish.concurrency import cached_property
from poolish.errors import RecipeError, SchemaError
from poolish.expressions import halving
from poolish.fingerprints import function_fingerprint, options_fingerprint
from poolish.recipes.fragment_rows import FragmentRows, Int64, TypesDiffer, canonical_table, joined_tables
from poolish.recipes.rows_to_table import RowsDisagree, RowsRefused, table_of, table_of_columns
from poolish.recipes.steps.step import (
    Prepared,
    Rejected,
    WrongResult,
    place_of,
    raise_at,
    rejected_row,
)
from poolish.rows import DatasetBuffer
from poolish.schema import Schema, describe, is_tensor
from poolish.workers import CallTimeout, TimedCalls

#: Rows that a batched step is called with at a time: about a fragment, since four calls cost Arrow 8 % more than one.
BATCH_ROWS = 65_536


class CalledStep:
    """A function of the user's; ``timeout_s`` among its options is how long one call may take.

    With on_error="skip" rows that it fails for are rejected: of a batch those are found by halving it.
    """

    def __init__(
        self, name: str, function: Callable[..., Any], version: Any, batched: bool | str, options: Mapping[str, Any]
    ) -> None:
        if batched not in (False, True, "arrow", "columns"):
            raise RecipeError(f"step {name!r}: batched={batched!r}; one of False, True (a table), 'columns'")
        self._name, self._function, self._version, self._batched = name, function, version, batched
        self._options = dict(options)
        self._timeout_s = _checked_timeout(self._options.pop("timeout_s", None), name)
        #: What it made so far, by what it was given: so that it is known what it would make of no rows.
        self._schemas: dict[pa.Schema, pa.Schema] = {}

    @cached_property
    def fingerprint(self) -> str:
        """Of the function, how it is called, and with what."""
        what = f"step {self._name!r}"
        function = function_fingerprint(self._function, what, self._version)
        options = options_fingerprint(self._options, what, self._version)
        return f"{self._name} {function} {self._batched} {options}"

    def prepare(self, piece: FragmentRows, on_error: str) -> Prepared:
        """Call the function for all rows."""
        if not len(piece):
            return Prepared(self._nothing(piece), np.empty(0, np.int64), [])
        call = self._function if self._timeout_s is None else TimedCalls(self._function, self._timeout_s)
        try:
            made = (self._by_batches if self._batched else self._by_rows)(call, piece, on_error)
        finally:
            if isinstance(call, TimedCalls):
                call.close()
        if made.table.num_rows:
            self._schemas[piece.table.schema] = made.table.schema
        return made

    def _nothing(self, piece: FragmentRows) -> pa.Table:
        return self._schemas.get(piece.table.schema, piece.table.schema).empty_table()

    def _called(self, call: Callable[..., Any], given: Any) -> Any:
        try:
            return call(given, **self._options)
        except CallTimeout:
            raise WrongResult(f"a call took longer than timeout_s={self._timeout_s}; the function may hang") from None

    # -- row by row

    def _by_rows(self, call: Callable[..., Any], piece: FragmentRows, on_error: str) -> Prepared:
        made: list[Any] = []
        parents: list[int] = []
        rejected: list[Rejected] = []
        buffer = DatasetBuffer()
        buffer.append(piece.table)
        rows = buffer.snapshot()
        for i in range(len(piece)):
            try:
                result = self._called(call, rows[i])
                each = [result] if isinstance(result, Mapping) else self._several(result)
            except Exception as error:
                self._failed(error, piece, i, on_error, rejected)
                continue
            made += each
            parents += [i] * len(each)
        return self._fitted(made, parents, piece, on_error, rejected)

    def _several(self, result: Any) -> list[Any]:
        if result is None:
            raise WrongResult(f"step {self._name!r} returned None; return a row, or [] for no row")
        try:
            rows = list(result)
        except TypeError:
            rows = [result]
        if not all(isinstance(row, Mapping) for row in rows):
            raise WrongResult(f"step {self._name!r} returned {type(result).__name__}; return a dict or a list of dicts")
        return rows

    def _fitted(
        self, made: list[Any], parents: list[int], piece: FragmentRows, on_error: str, rejected: list[Rejected]
    ) -> Prepared:
        """The rows as a table; rows that do not fit are rejected, with all that their row became."""
        known = Schema.of(piece.table.schema)
        while made:
            try:
                return Prepared(table_of(made, known), np.array(parents, np.int64), rejected)
            except RowsDisagree as both:
                message = both.error(*(piece.rows[parents[i]] for i in (both.first, both.other)))
                raise SchemaError(f"{place_of(piece, self._name)}, {message}") from None
            except RowsRefused as refused:
                first = {parents[i]: i for i in sorted(refused.why, reverse=True)}
                for parent in sorted(first):
                    error = refused.error(first[parent], piece.rows[parent])
                    if on_error == "raise":
                        raise type(error)(f"{place_of(piece, self._name)}, {error}") from None
                    rejected.append(rejected_row(piece, parent, error))
                kept = [i for i, parent in enumerate(parents) if parent not in first]
                made, parents = [made[i] for i in kept], [parents[i] for i in kept]
        return Prepared(self._nothing(piece), np.empty(0, np.int64), rejected)

    def _failed(self, error: Exception, piece: FragmentRows, i: int, on_error: str, rejected: list[Rejected]) -> None:
        if on_error == "raise":
            raise_at(place_of(piece, self._name, i), error)
        rejected.append(rejected_row(piece, i, error))

    # -- batch by batch

    def _by_batches(self, call: Callable[..., Any], piece: FragmentRows, on_error: str) -> Prepared:
        tables: list[pa.Table] = []
        parents: list[Int64] = []
        rejected: list[Rejected] = []

        def attempt(first: int, n_rows: int) -> tuple[pa.Table, Int64]:
            return self._batch(call, piece if n_rows == len(piece) else piece.slice(first, n_rows))

        def failed(first: int, n_rows: int, error: Exception) -> None:
            if on_error == "raise":
                raise_at(place_of(piece, self._name, first, first + n_rows - 1), error)
            rejected.append(rejected_row(piece, first, error))

        batches = [(first, min(BATCH_ROWS, len(piece) - first)) for first in range(0, len(piece), BATCH_ROWS)]
        for first, _, (table, own) in halving(attempt, batches, failed, halve=on_error != "raise"):
            tables.append(table)
            parents.append(own + first if first else own)
        if not tables:
            return Prepared(self._nothing(piece), np.empty(0, np.int64), rejected)
        try:
            table = _one_table(tables)
        except WrongResult as error:
            raise_at(place_of(piece, self._name), error)
        return Prepared(table, parents[0] if len(parents) == 1 else np.concatenate(parents), rejected)

    def _batch(self, call: Callable[..., Any], part: FragmentRows) -> tuple[pa.Table, Int64]:
        n_rows, table = len(part), part.table
        given: Any = table
        if self._batched == "columns":
            given = _columns_of(table)
        result = self._called(call, given)
        parents: Any = None
        if isinstance(result, tuple) and len(result) == 2:
            result, parents = result
        made = self._as_table(result, part, parents)
        if parents is None:
            if made.num_rows != n_rows:
                raise WrongResult(
                    f"step {self._name!r} made {made.num_rows} rows of {n_rows}; return (rows, parents) to say which "
                    "row each came from"
                )
            return made, np.arange(n_rows)
        own = np.asarray(parents)
        is_whole = own.ndim == 1 and (own.dtype.kind in "iu" or not len(own))
        if not is_whole or len(own) != made.num_rows or (len(own) and (own.min() < 0 or own.max() >= n_rows)):
            raise WrongResult(f"step {self._name!r}: parents has one row number below {n_rows} for each row it made")
        return made, own.astype(np.int64)

    def _as_table(self, result: Any, part: FragmentRows, parents: Any) -> pa.Table:
        if isinstance(result, pa.RecordBatch):
            result = pa.Table.from_batches([result])
        if isinstance(result, pa.Table):
            return canonical_table(result)
        if not isinstance(result, Mapping):
            raise WrongResult(
                f"step {self._name!r} returned {type(result).__name__}; return a table or a dict of columns"
            )
        try:
            return table_of_columns(result, Schema.of(part.table.schema))
        except RowsDisagree as both:
            raise WrongResult(str(both.error(both.first, both.other))) from None
        except RowsRefused as refused:
            first = min(refused.why)
            is_known = parents is None and first < len(part)
            raise refused.error(first, part.rows[first] if is_known else f"{first} of those it made") from None


def _checked_timeout(timeout_s: Any, name: str) -> float | None:
    if timeout_s is None:
        return None
    is_number = isinstance(timeout_s, (int, float)) and not isinstance(timeout_s, bool)
    if not is_number or not 0 < timeout_s < math.inf:
        raise RecipeError(f"step {name!r}: timeout_s={timeout_s!r}; a number of seconds above 0")
    return float(timeout_s)


def _columns_of(table: pa.Table) -> dict[str, list[Any]]:
    """Columns as lists; arrays are arrays, as they are in rows, so that they can come back as what they were."""
    with_arrays = [field.name for field in table.schema if _holds_arrays(field.type)]
    arrays: dict[str, list[Any]] = {}
    if with_arrays:
        buffer = DatasetBuffer()
        buffer.append(table.select(with_arrays))
        arrays = buffer.snapshot().to_pydict()
    return {name: arrays[name] if name in arrays else table.column(name).to_pylist() for name in table.column_names}


def _holds_arrays(type_: pa.DataType) -> bool:
    return is_tensor(type_) or any(_holds_arrays(type_.field(i).type) for i in range(type_.num_fields))


def _one_table(tables: list[pa.Table]) -> pa.Table:
    """Batches behind each other; a column that is None throughout a batch has the type that it has in the others."""
    filled = [table for table in tables if table.num_rows] or tables[:1]
    names = filled[0].column_names
    for table in filled[1:]:
        if set(table.column_names) != set(names):
            raise WrongResult(f"it makes columns {names} of one batch and {table.column_names} of another")
    try:
        return joined_tables(filled)
    except TypesDiffer as both:
        raise WrongResult(
            f"it makes column {both.name!r} {describe(both.known)} in one batch and {describe(both.other)} in another; "
            "make it the same in all"
        ) from None
