"""Functions of the user's as steps: what they are called with, and how what they return becomes rows again.

A function has a fingerprint, which is part of its results' cache keys (see ``poolish.fingerprints``); it is computed
only if there is a cache.

    per row      fn({"text": ...}) -> {"text": ...}, or a list of rows: several, or none
    per batch    fn(table) -> table, or with batched="columns" fn({name: values}) -> {name: values}; one row for a row,
                 or (table, parents), where parents says from which row each came

Columns keep the types they had, and nothing is cast silently.

    column was there before    its old type; a value that it cannot hold is refused, with its row
    new column                 the type of its values, which is one: whole numbers and floats do not mix
    nothing but None           its old type; open for a new column, until other rows resolve_null_type it

Rows are made in parts of any size, and what comes of them must not depend on that. So a row is refused only for what
is wrong with it alone. Where rows that are right by themselves do not go together, in their columns or in the type of
a new one, no part could say who is wrong: that is an error, however the data is cut. Arrays of several shapes do go
together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from poolish.concurrency import cached_property
from poolish.errors import LimitExceeded, RecipeError, SchemaError
from poolish.expressions import halving
from poolish.fingerprints import function_fingerprint, options_fingerprint
from poolish.recipes.fragment_rows import (
    Failures,
    FragmentRows,
    Int64,
    Prepared,
    Rejected,
    TypesDiffer,
    WrongResult,
    canonical_table,
    joined_tables,
    joined_type,
    place_of,
    raise_at,
    rejected_row,
    rows_of,
)
from poolish.rows.cast import batch_from
from poolish.rows.encode import ColumnEncoder, encoder_of
from poolish.rows.validate import Limits, ValueRejected
from poolish.rows.values import image_hint, type_of
from poolish.schema import Field, Schema, describe, dtype_and_shape, is_resolved, is_tensor
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
        rows, failed = rows_of(piece.table), Failures(piece, self._name, on_error)
        for i in range(len(piece)):
            try:
                result = self._called(call, rows[i])
                each = [result] if isinstance(result, Mapping) else self._several(result)
            except Exception as error:
                failed(i, 1, error)
                continue
            made += each
            parents += [i] * len(each)
        return self._fitted(made, parents, piece, on_error, failed.rejected)

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

    # -- batch by batch

    def _by_batches(self, call: Callable[..., Any], piece: FragmentRows, on_error: str) -> Prepared:
        tables: list[pa.Table] = []
        parents: list[Int64] = []
        failed = Failures(piece, self._name, on_error)

        def attempt(first: int, n_rows: int) -> tuple[pa.Table, Int64]:
            return self._batch(call, piece if n_rows == len(piece) else piece.slice(first, n_rows))

        batches = [(first, min(BATCH_ROWS, len(piece) - first)) for first in range(0, len(piece), BATCH_ROWS)]
        for first, _, (table, own) in halving(attempt, batches, failed, halve=on_error != "raise"):
            tables.append(table)
            parents.append(own + first if first else own)
        if not tables:
            return Prepared(self._nothing(piece), np.empty(0, np.int64), failed.rejected)
        try:
            table = _one_table(tables)
        except WrongResult as error:
            raise_at(place_of(piece, self._name), error)
        return Prepared(table, parents[0] if len(parents) == 1 else np.concatenate(parents), failed.rejected)

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
    arrays = rows_of(table.select(with_arrays)).to_pydict() if with_arrays else {}
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


# Rows as a table ------------------------------------------------------------------------------------------------------


_LIMITS = Limits()

#: All values of these ask for the same type.
_PLAIN = frozenset({type(None), bool, int, float, str, bytes})


class RowsRefused(Exception):
    """Some rows are wrong, each by itself; ``why`` has their numbers, each with column and reason."""

    def __init__(self, why: dict[int, tuple[str, ValueRejected]]) -> None:
        super().__init__(f"{len(why)} rows")
        self.why = why

    def error(self, i: int, row: object) -> SchemaError | LimitExceeded:
        """What is wrong with row ``i``, which the user knows as ``row``."""
        column, rejection = self.why[i]
        error = rejection.explained(0, column)
        return type(error)(f"row {row}{str(error).removeprefix('row 0')}")


class RowsDisagree(Exception):
    """Two rows, each right by itself, that cannot be in one table."""

    def __init__(self, first: int, other: int, what: str, advice: str) -> None:
        super().__init__(what)
        self.first, self.other, self._what, self._advice = first, other, what, advice

    def error(self, first_row: object, other_row: object) -> SchemaError:
        """The same, for rows that the user knows by these names."""
        return SchemaError(f"rows {first_row} and {other_row}: {self._what}; {self._advice}")


def table_of(rows: Sequence[Mapping[str, Any]], known: Schema) -> pa.Table:
    """Rows as a table; all have the same columns.

    >>> known = Schema.of(pa.schema({"x": pa.int32(), "text": pa.large_string()}))
    >>> table_of([{"x": 1, "text": None, "n": 0.5}], known).schema.types
    [DataType(int32), DataType(large_string), DataType(double)]
    """
    try:
        return _together(rows, known)
    except RowsDisagree:
        # A row that is wrong by itself may be one of the two, and in another part there might be only the other.
        alone = {i: why for i, row in enumerate(rows) if (why := _wrong_alone(row, known)) is not None}
        if alone:
            raise RowsRefused(alone) from None
        raise


def _together(rows: Sequence[Mapping[str, Any]], known: Schema) -> pa.Table:
    empty = {i: ("", _NO_COLUMNS) for i, row in enumerate(rows) if not row}
    if empty:
        raise RowsRefused(empty)
    # What was there keeps its order: rows may tell the same columns in several.
    names = [*(name for name in known.names if name in rows[0]), *(name for name in rows[0] if name not in known)]
    other = next((i for i, row in enumerate(rows) if row.keys() != rows[0].keys()), None)
    if other is not None:
        what = f"one has columns {names}, the other {list(rows[other])}"
        raise RowsDisagree(0, other, what, "return the same columns for all rows, with None where there is no value")
    return table_of_columns({name: [row[name] for row in rows] for name in names}, known)


def _wrong_alone(row: Mapping[str, Any], known: Schema) -> tuple[str, ValueRejected] | None:
    try:
        _together([row], known)
    except RowsRefused as refused:
        return refused.why[0]
    return None


def table_of_columns(columns: Mapping[str, Any], known: Schema) -> pa.Table:
    """Columns as a table: lists take the type they had before, arrays have one of their own."""
    made: list[Any] = []
    fields: list[Field | None] = []
    refused: dict[int, tuple[str, ValueRejected]] = {}
    for name, values in columns.items():
        if not isinstance(values, (list, tuple)):
            made.append(values)
            fields.append(None)
            continue
        field = known[name] if isinstance(name, str) and name in known else None
        try:
            type_ = _type_for(name, values, field)
            made.append(_built(name, values, type_))
        except RowsRefused as unfit:
            refused = unfit.why | refused
            continue
        fields.append(_field(name, type_, values, field, has_nulls=made[-1].null_count > 0))
    if refused:
        raise RowsRefused(refused)
    return _joined(dict(zip(columns, made, strict=True)), fields)


def _joined(columns: Mapping[str, Any], fields: Sequence[Field | None]) -> pa.Table:
    if all(field is not None for field in fields):
        schema = Schema([field for field in fields if field is not None]).to_arrow()
        if len({len(column) for column in columns.values()}) == 1:
            return pa.Table.from_arrays(list(columns.values()), schema=schema)
    return pa.Table.from_batches([batch_from(columns, None, _LIMITS)])


def _field(name: str, type_: pa.DataType, values: Any, known: Field | None, *, has_nulls: bool) -> Field:
    if known is not None and known.type == type_:
        return replace(known, nullable=True) if has_nulls and not known.nullable else known
    return Field(name, type_, nullable=True, feature=image_hint(values))


_NO_COLUMNS = ValueRejected("a row has columns", {}, "return the row, or [] for no row")


# The type of a column ------------------------------------------------------------------------------------------------


def _type_for(name: object, values: Sequence[Any], field: Field | None) -> pa.DataType:
    before = None if field is None or not is_resolved(field.type) else field.type
    if before is None:
        return _new_type(name, values)
    if is_tensor(before):
        own = _own_types(name, values)
        is_changed = any(is_tensor(type_) and not _is_within(type_, before) for type_ in own)
        return _new_type(name, values) if is_changed else before
    if kinds.is_integer(before):
        _refuse_floats(name, values)
    return before


def _new_type(name: object, values: Sequence[Any]) -> pa.DataType:
    """The type that every value asks for by itself, and another shape where only those differ."""
    own = _own_types(name, values)
    asked: pa.DataType = pa.null()
    for i, type_ in enumerate(own):
        joined = asked if type_ is asked else joined_type(asked, type_)
        if joined is None:
            first = next(k for k in range(i) if joined_type(own[k], type_) is None)
            what = f"column {name!r} is {describe(own[first])} in one and {describe(type_)} in the other"
            raise RowsDisagree(first, i, what, "return one type for all rows, for instance float(...)")
        asked = joined
    return asked


def _own_types(name: object, values: Sequence[Any]) -> list[pa.DataType]:
    """The type that each value asks for; those that ask for none are refused."""
    plain: dict[type, pa.DataType] = {}
    own, refused = [], {}
    for i, value in enumerate(values):
        kind = type(value)
        if kind in plain:
            own.append(plain[kind])
            continue
        try:
            own.append(type_of(value))
        except ValueRejected as rejection:
            refused[i] = str(name), rejection
            continue
        if kind in _PLAIN:
            plain[kind] = own[-1]
    if refused:
        raise RowsRefused(refused)
    return own


def _refuse_floats(name: object, values: Sequence[Any]) -> None:
    rule, advice = "this column holds whole numbers", "return int(...), or give it another name"
    floats = [i for i, value in enumerate(values) if isinstance(value, (float, np.floating))]
    if floats:
        raise RowsRefused({i: (str(name), ValueRejected(rule, values[i], advice)) for i in floats})


def _is_within(asked: pa.DataType, before: pa.DataType) -> bool:
    """Whether a column of arrays can hold these too: the same dtype, and the same sizes where it fixes them."""
    (dtype, shape), (asked_dtype, asked_shape) = dtype_and_shape(before), dtype_and_shape(asked)
    if dtype != asked_dtype or len(shape) != len(asked_shape):
        return False
    return all(size in (None, own) for size, own in zip(shape, asked_shape, strict=True))


def _built(name: object, values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    cell = encoder_of(type_, _LIMITS)
    try:
        return cell.build(cell.validate_and_copy_all(values))
    except ValueRejected:
        refusals = ((i, _refusal(cell, value)) for i, value in enumerate(values))
        raise RowsRefused({i: (str(name), rejection) for i, rejection in refusals if rejection is not None}) from None


def _refusal(cell: ColumnEncoder, value: Any) -> ValueRejected | None:
    try:
        cell.validate_and_copy_all([value])
    except ValueRejected as rejection:
        return rejection
    return None
