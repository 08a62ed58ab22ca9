"""Columns of every kind, with values that follow from a number: what the tests of rows put into buffers.

``rows_of(names, first_key, n)`` makes rows whose every cell is decided by the row's key and a salt, so a test needs to
remember keys only, and a failing example shrinks to few and small numbers.
"""

from __future__ import annotations

import datetime
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from poolish.rows.encode import encoder_of as cell_for
from poolish.rows.validate import Limits
from poolish.schema import Field

Row = dict[str, Any]

TEXTS = ["", "rye", "Sauerteig süß", "\0", "🥖🥨", "\u202eright to left", "a" * 40, "é", "e\u0301", "שאור"]
FLOATS = [0.0, -0.0, 1.5, -1e300, 5e-324, math.inf, -math.inf, math.nan]
INTS = [0, 1, -1, 2**63 - 1, -(2**63), 255, 2**53 + 1]


@dataclass(frozen=True)
class Kind:
    """A kind of column: how its values are made, how it is declared, and how an Arrow table would bring it."""

    make: Callable[[random.Random], Any]
    field: Callable[[str], Field]
    arrow: pa.DataType | None = None
    is_ragged: bool = False


def _plain(type_: pa.DataType) -> Callable[[str], Field]:
    return lambda name: Field(name, type_, nullable=True)


def _text(rng: random.Random) -> str:
    return rng.choice(TEXTS) + str(rng.randrange(10))


def _list(make: Callable[[random.Random], Any]) -> Callable[[random.Random], Any]:
    def make_list(rng: random.Random) -> list[Any]:
        return [_or_none(make, rng, 0.1) for _ in range(rng.choice([0, 0, 1, 2, 5]))]

    return make_list


def _struct(**parts: Callable[[random.Random], Any]) -> Callable[[random.Random], Any]:
    return lambda rng: {name: _or_none(make, rng, 0.2) for name, make in parts.items()}


def _or_none(make: Callable[[random.Random], Any], rng: random.Random, share: float) -> Any:
    return None if rng.random() < share else make(rng)


def _int(rng: random.Random) -> int:
    return rng.choice(INTS) if rng.random() < 0.3 else rng.randrange(-100, 100)


def _float(rng: random.Random) -> float:
    return rng.choice(FLOATS) if rng.random() < 0.3 else rng.uniform(-1, 1)


def _array(rng: random.Random, dtype: str, shape: Sequence[int]) -> np.ndarray:
    """Any bits whatever where the dtype allows it, NaNs with a payload among them."""
    n = math.prod(shape)
    if dtype == "bool":
        return np.array([rng.random() < 0.5 for _ in range(n)], bool).reshape(shape)
    return np.frombuffer(rng.randbytes(n * np.dtype(dtype).itemsize), dtype).reshape(shape)


def _fixed(dtype: str, *shape: int, arrow: pa.DataType | None = None) -> Kind:
    return Kind(
        lambda rng: _array(rng, dtype, shape), lambda name: Field(name, dtype, shape=shape, nullable=True), arrow
    )


def _ragged(dtype: str, *shape: int | None, arrow: pa.DataType | None = None) -> Kind:
    def make(rng: random.Random) -> np.ndarray:
        array = _array(rng, dtype, [rng.randrange(4) if size is None else size for size in shape])
        # Lists of Python floats, which a ragged column may be made from, carry no payload in a NaN.
        return np.where(np.isnan(array), np.array(np.nan, dtype), array) if dtype == "float32" else array

    return Kind(make, lambda name: Field(name, dtype, shape=shape, nullable=True), arrow, is_ragged=True)


def _moment(rng: random.Random) -> datetime.datetime:
    return datetime.datetime(2025, 1, 1) + datetime.timedelta(microseconds=rng.randrange(10**15))


_POINT = {"x": pa.int64(), "label": pa.string()}
_LOAF = {"name": pa.string(), "weight": pa.float64(), "cuts": pa.list_(pa.int64())}

KINDS: dict[str, Kind] = {
    "int": Kind(_int, _plain(pa.int64()), pa.int64()),
    "float": Kind(_float, _plain(pa.float64()), pa.float64()),
    "bool": Kind(lambda rng: rng.random() < 0.5, _plain(pa.bool_()), pa.bool_()),
    "text": Kind(_text, _plain(pa.string()), pa.string()),
    "bytes": Kind(lambda rng: rng.randbytes(rng.choice([0, 1, 9])), _plain(pa.binary()), pa.binary()),
    "moment": Kind(_moment, _plain(pa.timestamp("us")), pa.timestamp("us")),
    "ints": Kind(_list(_int), _plain(pa.list_(pa.int64())), pa.list_(pa.int64())),
    "texts": Kind(_list(_text), _plain(pa.list_(pa.string())), pa.list_(pa.string())),
    "flags": Kind(_list(lambda rng: rng.random() < 0.5), _plain(pa.list_(pa.bool_())), pa.large_list(pa.bool_())),
    "struct": Kind(_struct(x=_int, label=_text), _plain(pa.struct(_POINT)), pa.struct(_POINT)),
    "loaves": Kind(
        _list(_struct(name=_text, weight=_float, cuts=_list(_int))),
        _plain(pa.list_(pa.struct(_LOAF))),
        pa.list_(pa.struct(_LOAF)),
    ),
    "vector": _fixed("float32", 3, arrow=pa.list_(pa.float32(), 3)),
    "matrix": _fixed("int64", 2, 2, arrow=pa.fixed_shape_tensor(pa.int64(), (2, 2))),
    "bytes4": _fixed("uint8", 4, arrow=pa.list_(pa.uint8(), 4)),
    "halves": _fixed("float16", 2, arrow=pa.list_(pa.float16(), 2)),
    "mask": _fixed("bool", 3),
    "spectrum": _fixed("complex64", 2),
    "waves": _ragged("float32", None, arrow=pa.list_(pa.float32())),
    "boxes": _ragged("int16", None, 2, arrow=pa.large_list(pa.list_(pa.int16(), 2))),
    "masks": _ragged("bool", None, None),
}


def rows_of(names: Sequence[str], first_key: int, n: int, salt: int = 0, nulls: float = 0.0) -> list[Row]:
    """Rows ``first_key`` to ``first_key + n - 1``: the key, and a column for each named kind."""
    return [row_of(names, key, salt, nulls) for key in range(first_key, first_key + n)]


def row_of(names: Sequence[str], key: int, salt: int = 0, nulls: float = 0.0) -> Row:
    return {"key": key, **{name: cell_of(name, key, salt, nulls) for name in names}}


@lru_cache(maxsize=100_000)
def cell_of(name: str, key: int, salt: int = 0, nulls: float = 0.0) -> Any:
    return _or_none(KINDS[name].make, random.Random(f"{name} {key} {salt}"), nulls)


def schema_of(names: Sequence[str]) -> list[Field]:
    """All columns declared, so that ragged ones may begin with a single row."""
    return [Field("key", "int64"), *(KINDS[name].field(name) for name in names)]


def table_of(names: Sequence[str], rows: Sequence[Row]) -> pa.Table:
    """The rows as somebody else's table: 32-bit offsets, lists instead of tensors, several chunks, sliced."""
    columns = {"key": pa.array([None, *(row["key"] for row in rows)], pa.int64())}
    for name in names:
        columns[name] = _foreign([None, *(row[name] for row in rows)], KINDS[name].arrow)
    table = pa.table(columns).slice(1)
    half = len(rows) // 2
    return pa.concat_tables([table.slice(0, half), table.slice(half)])


def _foreign(values: Sequence[Any], type_: pa.DataType | None) -> pa.Array:
    assert type_ is not None
    if isinstance(type_, pa.FixedShapeTensorType):
        return pa.ExtensionArray.from_storage(type_, _foreign_tuples(values, type_.storage_type))
    if pa.types.is_fixed_size_list(type_):
        return _foreign_tuples(values, type_)
    if any(isinstance(value, np.ndarray) for value in values):
        values = [None if value is None else value.tolist() for value in values]
    return pa.array(values, type_)


def _foreign_tuples(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Bit by bit: Python's floats would make one NaN of all."""
    blank = np.zeros(type_.list_size, type_.value_type.to_pandas_dtype())
    flat = np.concatenate([blank if value is None else value.ravel() for value in values])
    mask = pa.array([value is None for value in values])
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), type_.list_size, mask=mask)


def columns_of(names: Sequence[str], rows: Sequence[Row]) -> dict[str, Any]:
    """The rows as columns: one array where all values have one shape, a list otherwise."""
    columns: dict[str, Any] = {"key": np.array([row["key"] for row in rows], np.int64)}
    for name in names:
        values = [row[name] for row in rows]
        is_array = all(isinstance(value, np.ndarray) for value in values) and not KINDS[name].is_ragged
        columns[name] = np.stack(values) if is_array and values else values
    return columns


def listed(columns: dict[str, list[Any]]) -> list[Row]:
    """Columns as rows."""
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def array_of(name: str, n: int, nulls: float = 0.2, first_key: int = 0) -> pa.Array:
    """An Arrow array in the type that a buffer keeps values of this kind in."""
    return arrow_of(name, [cell_of(name, key, 0, nulls) for key in range(first_key, first_key + n)])


def arrow_of(name: str, values: Sequence[Any]) -> pa.Array:
    cell = cell_for(KINDS[name].field(name).type, Limits())
    return cell.build(cell.validate_and_copy_all(list(values)))


def listed_array(array: pa.Array) -> list[Any]:
    """The values as Arrow itself reads them, tensors as the lists that they are stored in."""
    return (array.storage if isinstance(array.type, pa.BaseExtensionType) else array).to_pylist()
