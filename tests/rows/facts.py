"""What can be said about a buffer from outside, in a form that compares exactly.

``plain`` undoes what ``==`` blurs: NaN equals NaN and NaT NaT, -0.0 differs from 0.0, 1 differs from True and from 1.0,
an array is its dtype, shape and bytes. ``facts`` is everything a failed operation must leave alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from poolish import DatasetBuffer


def plain(value: Any) -> Any:
    """A value as something that is equal only to an identical one."""
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, (np.datetime64, np.timedelta64, np.complexfloating)):
        return (value.dtype.str, value.tobytes())
    if isinstance(value, float):
        return (type(value).__name__, float(value).hex())
    return (type(value).__name__, value)


def facts(buffer: DatasetBuffer) -> dict[str, Any]:
    """Rows, ids, generations, types and names: all that a reader of the buffer could notice."""
    return {
        "rows": plain(buffer.to_pydict()),
        "ids": buffer.ids.tolist(),
        "generations": buffer.generations,
        "next_id": buffer.next_id,
        "schema": buffer.schema and buffer.schema.fingerprint,
        "arrow": buffer.to_arrow().schema,
        "length": len(buffer),
    }


def column(buffer: DatasetBuffer, name: str = "x") -> list[Any]:
    """The values of one column."""
    return buffer.to_pydict()[name]


def append_all(buffer: DatasetBuffer, rows: list[Any]) -> None:
    """All rows in one call."""
    buffer.append(rows)


def append_singly(buffer: DatasetBuffer, rows: list[Any]) -> None:
    """One call per row: those after the first wait in the pending list."""
    for row in rows:
        buffer.append(row)


def append_generated(buffer: DatasetBuffer, rows: list[Any]) -> None:
    """Rows from a generator, which is read only once."""
    buffer.append(row for row in rows)


def append_as_columns(buffer: DatasetBuffer, rows: list[dict[str, Any]]) -> None:
    """The same rows turned on their side."""
    buffer.append_columns({name: [row[name] for row in rows] for name in rows[0]})


#: The ways that rows given as Python values take into a buffer; all must agree.
WAYS = {
    "one call": append_all,
    "row by row": append_singly,
    "generator": append_generated,
    "columns": append_as_columns,
}
