"""Tables that were made apart and belong together: the types in which their columns can be one.

A part that holds nothing but nulls, or only empty lists, does not know the type of a column; the others do. Arrays of
several shapes are together ragged, as they would be if they had been made together. Nothing else is changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from poolish.rows.fit import fit, one_chunk
from poolish.rows.infer import ragged, settle
from poolish.schema import dtype_and_shape, is_tensor


class TypesDiffer(Exception):
    """Table number ``place`` has a column of another type than those before it, and no type holds both."""

    def __init__(self, place: int, name: str, known: pa.DataType, other: pa.DataType) -> None:
        super().__init__(f"{name!r}: {known} and {other}")
        self.place, self.name, self.known, self.other = place, name, known, other


def joined_type(known: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that holds values of both, where only open parts or shapes differ; None if there is none.

    >>> joined_type(pa.large_list(pa.null()), pa.large_list(pa.int64()))
    LargeListType(large_list<item: int64>)
    >>> joined_type(pa.int64(), pa.float64())
    """
    if is_tensor(known) and is_tensor(other):
        (dtype, shape), (other_dtype, other_shape) = dtype_and_shape(known), dtype_and_shape(other)
        return ragged(known, other) if dtype == other_dtype and len(shape) == len(other_shape) else None
    settled = settle(known, other)
    return settled if settled == settle(other, known) else None


def joined_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables with the same columns behind each other; ``TypesDiffer`` where that cannot be."""
    schema = tables[0].schema
    if all(table.schema.equals(schema) for table in tables[1:]):
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables)
    types = dict(zip(schema.names, schema.types, strict=True))
    for place, table in enumerate(tables):
        for name, known in types.items():
            other = table.schema.field(name).type
            joined = known if known == other else joined_type(known, other)
            if joined is None:
                raise TypesDiffer(place, name, known, other)
            types[name] = joined
    return pa.concat_tables([_with_types(table, types) for table in tables], promote_options="default")


def _with_types(table: pa.Table, types: Mapping[str, pa.DataType]) -> pa.Table:
    """The columns in this order and these types."""
    fields, columns = [], []
    for name, type_ in types.items():
        column, field = table.column(name), table.schema.field(name)
        fields.append(field.with_type(type_))
        columns.append(column if column.type == type_ else fit(one_chunk(column), type_))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))
