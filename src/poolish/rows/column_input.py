"""Rows given as columns: arrays with one row per entry of the first dimension, Arrow arrays, or lists of values."""

from __future__ import annotations

import array as array_module
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from poolish.errors import SchemaError, UnknownColumn
from poolish.rows import arrays
from poolish.rows.cells import cell_of, is_bytes_view
from poolish.rows.codec import image_hint, null_refused
from poolish.rows.fit import fit, one_chunk
from poolish.rows.infer import widen_all
from poolish.rows.limits import Limits
from poolish.rows.refusal import Refusal
from poolish.rows.sizes import check_text
from poolish.schema import Field, Schema, canonical, column_name, is_resolved, tensor_type
from poolish.schema.arrow import check_names
from poolish.schema.tensor import carrier, carriers_per_value


def check_columns(columns: Any) -> None:
    """Refuse what is no dict of columns."""
    if not isinstance(columns, Mapping) or not columns:
        kind = type(columns).__name__
        raise SchemaError(f"columns is a dict of names and arrays, got {kind}; pass {{'name': array}}")


def batch_from(columns: Mapping[str, Any], schema: Schema | None, limits: Limits) -> pa.RecordBatch:
    """One Arrow batch of all columns, which must have the same number of rows; lists take the types of the schema."""
    check_columns(columns)
    names = [column_name(name) for name in columns]
    check_names(names, "columns")
    known = {} if schema is None else {field.name: field.type for field in schema if is_resolved(field.type)}
    made = [_column(name, values, known, limits) for name, values in zip(names, columns.values(), strict=True)]
    if len({len(array) for array in made}) > 1:
        lengths = {name: len(array) for name, array in zip(names, made, strict=True)}
        raise SchemaError(f"columns differ in length: {lengths}; every column needs one value per row")
    hints = [image_hint(values) for values in columns.values()]
    fields = [
        Field(name, array.type, nullable=True, feature=hint)
        for name, array, hint in zip(names, made, hints, strict=True)
    ]
    return pa.RecordBatch.from_arrays(made, schema=Schema(fields).to_arrow())


def _column(name: str, values: Any, known: Mapping[str, pa.DataType], limits: Limits) -> pa.Array:
    if name not in known or not isinstance(values, (list, tuple)):
        return array_from(name, values, limits)
    try:
        return _frozen(values, known[name], limits)
    except Refusal as refusal:
        raise refusal.explained(refusal.index, name) from None


def fitted_columns(columns: Mapping[str, Any], n_rows: int, schema: Schema, limits: Limits) -> dict[str, pa.Array]:
    """New values for some columns of a schema, one per row."""
    fitted = {}
    for name, values in columns.items():
        if name not in schema:
            raise UnknownColumn(f"no column {name!r}; there are {schema.names}")
        field = schema[name]
        try:
            array = fit(_column(name, values, {name: field.type}, limits), field.type)
            check_text(array)
        except Refusal as refusal:
            raise refusal.explained(refusal.index, name) from None
        if len(array) != n_rows:
            raise SchemaError(f"column {name!r}: {len(array)} values for {n_rows} ids; pass one value per id")
        if array.null_count and not field.nullable:
            raise null_refused(field, int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0]))
        fitted[name] = array
    return fitted


def array_from(name: str, values: Any, limits: Limits) -> pa.Array:
    """A column of any origin as an Arrow array in a type poolish keeps; numbers in arrays are not copied."""
    try:
        if isinstance(values, (memoryview, array_module.array)) and not is_bytes_view(values):
            values = np.asarray(values)
        if hasattr(values, "__arrow_c_stream__") and not isinstance(values, pa.ChunkedArray):  # a Series
            values = pa.chunked_array(values)
        if isinstance(values, pa.ChunkedArray):
            values = one_chunk(values)
        if isinstance(values, pa.Array):
            return fit(values, canonical(values.type))
        listed = arrays.as_list(values) if arrays.is_array(values) else _listed(values)
        return _from_array(values) if listed is None else _frozen(listed, widen_all(pa.null(), listed), limits)
    except Refusal as refusal:
        raise refusal.explained(refusal.index, name) from None


def _listed(values: Any) -> list[Any]:
    if isinstance(values, (str, bytes, bytearray, memoryview, Mapping)) or not hasattr(values, "__iter__"):
        raise Refusal("a column has one value per row", values, "pass a list or an array")
    return list(values)


def _frozen(values: Any, type_: pa.DataType, limits: Limits) -> pa.Array:
    cell = cell_of(type_, limits)
    return cell.build(cell.freeze_many(_listed(values)))


def _from_array(values: Any) -> pa.Array:
    dtype, array = arrays.stored(values)
    if array.ndim == 0:
        raise Refusal("a column has one value per row", values, "pass an array with at least one dimension")
    array = np.ascontiguousarray(array)
    n_rows, shape = array.shape[0], array.shape[1:]
    if not shape and dtype == array.dtype.name and array.dtype.kind != "c":
        return pa.array(array)
    type_ = tensor_type(dtype, shape)
    n_values = array.size * carriers_per_value(dtype)
    items = pa.Array.from_buffers(carrier(dtype), n_values, [None, pa.py_buffer(array.reshape(-1).view(np.uint8))])
    storage = pa.Array.from_buffers(type_.storage_type, n_rows, [None], children=[items])
    return pa.ExtensionArray.from_storage(type_, storage)
