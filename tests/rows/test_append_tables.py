"""Appending tables: every Arrow type, and every library that hands out Arrow's C stream."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal

import datasets
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from poolish import DatasetBuffer, Field, Schema, Suite
from poolish.errors import LimitExceeded, SchemaError
from poolish.schema import describe
from tests.rows.facts import column, facts, plain

TIME = dt.datetime(2026, 1, 2, 3, 4, 5)


def table_of(array):
    return pa.table({"x": array})


def sliced(array, n=3):
    """The same values, but beginning in the middle of the memory they lie in."""
    padding = array.slice(0, min(n, len(array)))
    return pa.concat_arrays([padding, array]).slice(len(padding))


def nulls_between(values, type_=None):
    return pa.array([value for pair in zip(values, [None] * len(values), strict=True) for value in pair], type_)


#: Arrow arrays whose values come back as ``to_pylist`` tells them, and the type that keeps them.
ARRAYS = {
    **{
        f"int{bits}": (nulls_between([-(2 ** (bits - 1)), 2 ** (bits - 1) - 1], f"int{bits}"), f"int{bits}")
        for bits in (8, 16, 32, 64)
    },
    **{f"uint{bits}": (nulls_between([0, 2**bits - 1], f"uint{bits}"), f"uint{bits}") for bits in (8, 16, 32, 64)},
    "float16": (pa.array(np.array([0.1, np.nan, -0.0], np.float16)), "float16"),
    "float32": (nulls_between([0.5, float("nan"), float("inf")], pa.float32()), "float32"),
    "float64": (nulls_between([0.1, float("nan"), -0.0]), "float64"),
    "bool": (nulls_between([True, False] * 9), "bool"),
    "string": (nulls_between(["", "a\0", "🍞"]), "text"),
    "large_string": (nulls_between(["", "a"], pa.large_string()), "text"),
    "string_view": (nulls_between(["short", "b" * 50], pa.string_view()), "text"),
    "binary": (nulls_between([b"", b"\xff"]), "bytes"),
    "binary_view": (nulls_between([b"", b"\xff" * 50], pa.binary_view()), "bytes"),
    "fixed_size_binary": (nulls_between([b"abc", b"\0\0\0"], pa.binary(3)), "fixed_size_binary[3]"),
    "dictionary": (nulls_between(["a", "b", "a"]).dictionary_encode(), "text"),
    "dictionary of views": (
        pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.uint32()), pa.array(["a", "b"], pa.string_view())),
        "text",
    ),
    "dictionary with null": (pa.DictionaryArray.from_arrays(pa.array([1, 0, 1]), pa.array(["a", None])), "text"),
    "run ends": (
        pa.RunEndEncodedArray.from_arrays(pa.array([2, 5, 7], pa.int32()), pa.array(["x", None, "y"])),
        "text",
    ),
    "null": (pa.nulls(4), "nothing yet"),
    "decimal32": (nulls_between([Decimal("1.25")], pa.decimal32(5, 2)), "decimal32(5, 2)"),
    "decimal128": (nulls_between([Decimal("-1.25")], pa.decimal128(38, 2)), "decimal128(38, 2)"),
    "decimal256": (nulls_between([Decimal(10) ** 60], pa.decimal256(70, 0)), "decimal256(70, 0)"),
    "timestamp": (nulls_between([TIME], pa.timestamp("ms")), "timestamp[ms]"),
    "timestamp with zone": (
        nulls_between([TIME], pa.timestamp("us", "Europe/Zurich")),
        "timestamp[us, tz=Europe/Zurich]",
    ),
    "date32": (nulls_between([TIME.date()]), "date32[day]"),
    "date64": (nulls_between([TIME.date()], pa.date64()), "date64[ms]"),
    "time32": (nulls_between([TIME.time()], pa.time32("s")), "time32[s]"),
    "time64": (nulls_between([TIME.time()], pa.time64("us")), "time64[us]"),
    "duration": (nulls_between([dt.timedelta(1)], pa.duration("s")), "duration[s]"),
    "interval": (nulls_between([pa.MonthDayNano([1, 2, 3])]), "month_day_nano_interval"),
    "list": (nulls_between([[1, None], [], [2]]), "list of int64"),
    "large_list": (nulls_between([[1], []], pa.large_list(pa.int8())), "list of int8"),
    "list_view": (nulls_between([[1], [], [2, 3]], pa.list_view(pa.int8())), "list of int8"),
    "large_list_view": (nulls_between([["a"], [], ["b", "c"]], pa.large_list_view(pa.string())), "list of text"),
    "list_view out of order": (
        pa.ListViewArray.from_arrays(
            pa.array([3, 0, 0], pa.int32()), pa.array([2, 3, 1], pa.int32()), pa.array(range(5))
        ),
        "list of int64",
    ),
    "list of dictionaries": (
        pa.ListArray.from_arrays(pa.array([0, 1, 3], pa.int32()), pa.array(["a", "b", "a"]).dictionary_encode()),
        "list of text",
    ),
    "list of nothing": (pa.array([[], [None]]), "list of nothing yet"),
    "fixed list of text": (nulls_between([["a", "b"]], pa.list_(pa.string(), 2)), "list of text"),
    "struct": (nulls_between([{"a": 1, "b": "x"}, {"a": None, "b": "y"}]), "{a: int64, b: text}"),
    "struct of lists": (nulls_between([{"a": [1, 2]}, {"a": []}]), "{a: list of int64}"),
    "struct without fields": (pa.array([{}, {}], pa.struct([])), "{}"),
    "list of structs": (nulls_between([[{"a": 1}], [], [{"a": 2}, {"a": 3}]]), "list of {a: int64}"),
    "uuid": (nulls_between([b"0123456789abcdef"], pa.uuid()), "extension<arrow.uuid>"),
    "json": (nulls_between(['{"a": 1}'], pa.json_()), "text"),
    "bool8": (pa.array([1, None, 0], pa.int8()).cast(pa.bool8()), "bool"),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_every_arrow_type_keeps_its_values(kind):
    """Encodings and widths of offsets may change, values, nulls and order do not; twice, so that offsets add up."""
    for form in [lambda a: a, sliced]:
        array, type_name = ARRAYS[kind]
        table = table_of(form(array))
        buffer = DatasetBuffer()

        buffer.append(table)
        buffer.append(table)

        assert describe(buffer.schema["x"].type) == type_name
        assert plain(column(buffer)) == plain(table["x"].to_pylist() * 2)
        buffer.to_arrow().validate(full=True)


@pytest.mark.parametrize("kind", ARRAYS)
def test_rows_chosen_from_every_arrow_type_are_whole(kind):
    """``get_batch`` and ``buffer[i]`` agree with the table they came from."""
    for form in [lambda a: a, sliced]:
        array = form(ARRAYS[kind][0])
        buffer = DatasetBuffer()
        buffer.append(table_of(array))
        order = np.random.default_rng(0).integers(0, len(array), 20)

        batch = buffer.get_batch(order)

        batch.validate(full=True)
        values = array.to_pylist()
        assert plain([buffer[i]["x"] for i in order]) == plain([values[i] for i in order])
        assert plain(batch["x"].to_pylist()) == plain([values[i] for i in order])


@pytest.mark.parametrize("kind", ARRAYS)
def test_a_row_that_was_read_can_be_appended_again(kind):
    """``buffer.append(buffer[i])`` and ``map`` lose nothing, whatever the type: a row is a row."""
    buffer = DatasetBuffer()
    buffer.append(table_of(ARRAYS[kind][0]))
    n_rows = len(buffer)

    for i in range(n_rows):
        buffer.append(buffer[i])
    mapped = buffer.map(lambda row: row)

    assert plain(column(buffer)[n_rows:]) == plain(column(buffer)[:n_rows])
    assert plain(column(mapped)) == plain(column(buffer))
    assert mapped.schema == buffer.schema


@pytest.mark.parametrize(
    "type_", [pa.timestamp("ns"), pa.timestamp("ns", "Europe/Zurich"), pa.duration("ns"), pa.time64("ns")], ids=str
)
def test_nanoseconds_are_kept_and_read(type_):
    """Python's times count microseconds, so these are read as NumPy's, with or without pandas at hand."""
    given = pa.array([1, None, 1_000_000_007], type_)
    buffer = DatasetBuffer()

    buffer.append(table_of(given))
    buffer.append(buffer[0])

    assert buffer.to_arrow()["x"].cast(pa.int64()).to_pylist() == [1, None, 1_000_000_007, 1]
    assert len({str(value) for value in column(buffer)}) == 3
    assert not any(isinstance(value, (pd.Timestamp, pd.Timedelta)) for value in column(buffer))


TENSORS = {
    "fixed_size_list": (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)), "int32[2]"),
    "fixed_size_list of nothing": (pa.array([[], []], pa.list_(pa.int8(), 0)), "int8[0]"),
    "fixed_shape_tensor": (
        pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12, dtype=np.float32).reshape(2, 2, 3)),
        "float32[2, 3]",
    ),
}


@pytest.mark.parametrize("form", [lambda a: a, sliced], ids=["whole", "slice"])
@pytest.mark.parametrize("kind", TENSORS)
def test_lists_of_one_length_of_numbers_are_tensors(kind, form):
    """They come back as arrays of that shape, and go to torch without a copy."""
    array, type_name = TENSORS[kind]
    array = form(array)
    buffer = DatasetBuffer()

    buffer.append(table_of(array))
    buffer.append(table_of(array))

    type_ = buffer.schema["x"].type
    shape = tuple(type_.shape)
    values = [
        None if row is None else np.array(row, type_.value_type.to_pandas_dtype()).reshape(shape)
        for row in array.to_pylist()
    ]
    assert describe(type_) == type_name
    assert plain(column(buffer)) == plain(values * 2)


def test_maps_are_lists_of_pairs():
    """Keys may repeat in a map, so it is no struct."""
    given = pa.array([[("a", 1), ("a", 2)], None, [], [("b", None)]], pa.map_(pa.string(), pa.int32()))
    buffer = DatasetBuffer()

    buffer.append(table_of(given))
    buffer.append(table_of(given.slice(1)))

    pairs = [[{"key": "a", "value": 1}, {"key": "a", "value": 2}], None, [], [{"key": "b", "value": None}]]
    assert column(buffer) == [*pairs, *pairs[1:]]


# -- tables as containers

TABLE = pa.table({"n": [1, 2, 3], "text": ["a", None, "c"]})


def duckdb_of(table):
    return duckdb.from_arrow(table)


def buffer_of(table):
    buffer = DatasetBuffer()
    buffer.append(table)
    return buffer


CARRIERS = {
    "table": lambda t: t,
    "table of many chunks": lambda t: pa.concat_tables([t.slice(0, 0), *(t.slice(i, 1) for i in range(len(t)))]),
    "table with an empty chunk": lambda t: pa.concat_tables([t.slice(0, 1), t.slice(0, 0), t.slice(1)]),
    "slice": lambda t: pa.concat_tables([t, t]).combine_chunks().slice(len(t)),
    "record batch": lambda t: t.combine_chunks().to_batches()[0],
    "reader": lambda t: t.to_reader(),
    "list of tables": lambda t: [t.slice(0, 1), t.slice(1)],
    "generator of batches": lambda t: (t.slice(i, 1).to_batches()[0] for i in range(len(t))),
    "polars": pl.from_arrow,
    "pandas": lambda t: t.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get),
    "duckdb": duckdb_of,
    "struct series of polars": lambda t: pl.from_arrow(t).to_struct("rows"),
    "struct array": lambda t: t.to_struct_array().combine_chunks(),
    "struct array of many chunks": lambda t: pa.concat_tables([t.slice(0, 1), t.slice(1)]).to_struct_array(),
    "buffer": buffer_of,
    "snapshot": lambda t: buffer_of(t).snapshot(),
    "rows of a buffer": lambda t: list(buffer_of(t)),
    "python rows": lambda t: t.to_pylist(),
}


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_table_of_any_library_brings_its_rows(carrier):
    """One schema, one generation, the same rows, whoever holds them."""
    buffer = DatasetBuffer()

    buffer.append(CARRIERS[carrier](TABLE))
    buffer.append({"n": 4, "text": "d"})

    assert str(buffer.schema) == "Schema(n: int64, text: text)"
    assert buffer.to_pydict() == {"n": [1, 2, 3, 4], "text": ["a", None, "c", "d"]}
    assert buffer.generations == [(0, 3), (3, 4)]


@pytest.mark.parametrize(
    "carrier", sorted(set(CARRIERS) - {"python rows", "list of tables", "generator of batches", "rows of a buffer"})
)
def test_a_table_without_rows_still_decides_the_schema(carrier):
    """Its columns have types, so the next append must fit them."""
    empty = pa.table({"n": pa.array([], pa.int32())})
    buffer = DatasetBuffer()

    buffer.append(
        CARRIERS[carrier](empty) if carrier != "record batch" else pa.RecordBatch.from_pylist([], empty.schema)
    )

    assert (len(buffer), buffer.schema) == (0, Schema.from_arrow(buffer.to_arrow().schema))
    assert buffer.schema.names == ["n"]
    with pytest.raises(SchemaError, match="column 'n'"):
        buffer.append({"n": "text"})


def test_a_buffer_may_be_appended_to_itself():
    """It brings the rows it had when it was asked."""
    buffer = buffer_of(TABLE)

    buffer.append(buffer)

    assert column(buffer, "n") == [1, 2, 3, 1, 2, 3]


def test_columns_of_a_table_may_come_in_any_order():
    """They are matched by name."""
    buffer = buffer_of(TABLE)

    buffer.append(TABLE.select(["text", "n"]))

    assert column(buffer, "n") == [1, 2, 3, 1, 2, 3]


def test_polars_types_arrive():
    """Categoricals, enums, arrays, structs and times of polars have a place."""
    frame = pl.DataFrame(
        {
            "category": pl.Series(["a", "b"], dtype=pl.Categorical),
            "enum": pl.Series(["a", "b"], dtype=pl.Enum(["b", "a"])),
            "array": pl.Series([[1, 2], [3, 4]], dtype=pl.Array(pl.Int32, 2)),
            "list": [["x"], []],
            "struct": [{"a": 1}, {"a": 2}],
            "date": [TIME.date()] * 2,
            "time": [TIME] * 2,
            "decimal": [Decimal("1.5"), None],
            "nothing": [None, None],
        }
    )
    buffer = DatasetBuffer()

    buffer.append(frame)
    buffer.append(frame)

    kept = buffer.to_pydict()
    assert [row.tolist() for row in kept.pop("array")] == [[1, 2], [3, 4]] * 2
    assert kept == {name: values * 2 for name, values in frame.drop("array").to_dict(as_series=False).items()}


def test_duckdb_types_arrive():
    """So do maps, structs, lists, arrays, decimals and unsigned numbers of DuckDB."""
    buffer = DatasetBuffer()

    buffer.append(
        duckdb.sql(
            "select 1 as a, [1, 2] as list, {'x': 1} as struct, map {'k': 1} as map, 1.5::decimal(4, 1) as decimal, "
            "[1, 2]::int[2] as array, 5::utinyint as small, null as nothing, 'x' as text"
        )
    )

    row = buffer[0]
    assert row.pop("array").tolist() == [1, 2]
    assert row == {
        "a": 1,
        "list": [1, 2],
        "struct": {"x": 1},
        "map": [{"key": "k", "value": 1}],
        "decimal": Decimal("1.5"),
        "small": 5,
        "nothing": None,
        "text": "x",
    }


def test_pandas_types_arrive():
    """Categoricals, nullable numbers and times; the index is left behind."""
    frame = pd.DataFrame(
        {
            "category": pd.Categorical(["a", "b"]),
            "number": pd.array([2**53 + 1, None], dtype="Int64"),
            "time": pd.to_datetime([TIME, None]),
            "text": ["x", None],
        },
        index=[7, 8],
    )
    buffer = DatasetBuffer()

    buffer.append(frame)

    assert buffer.to_pydict() == {
        "category": ["a", "b"],
        "number": [2**53 + 1, None],
        "time": [TIME, None],
        "text": ["x", None],
    }


@pytest.mark.parametrize("ids", [[0, 1, 2], [1, 3, 5], [5, 3, 9], ["u", "v", "w"]], ids=str)
def test_a_named_index_of_pandas_is_a_column_whatever_its_values(ids):
    """Arrow's export drops an index that looks like a range; a column must not come and go with its values."""
    frame = pd.DataFrame({"id": ids, "x": [0.5, 1.5, 2.5]})
    buffer = DatasetBuffer()

    buffer.append(frame.set_index("id"))
    buffer.append(frame)

    assert buffer.to_pydict() == {"id": ids * 2, "x": [0.5, 1.5, 2.5] * 2}


def test_an_index_without_a_name_is_left_behind():
    """A frame that was merely filtered brings no new column."""
    frame = pd.DataFrame({"x": [0.5, 1.5, 2.5]})
    buffer = DatasetBuffer()

    buffer.append(frame.iloc[[0, 2]])
    buffer.append(frame.set_index(pd.Index(["u", "v", "w"])))

    assert buffer.to_pydict() == {"x": [0.5, 2.5, 0.5, 1.5, 2.5]}


# -- numbers may change their width, if every one survives

FITTING = [
    (pa.int64(), [1, -2, None], pa.int8()),
    (pa.int8(), [1, None, 127], pa.int64()),
    (pa.float64(), [0.5, float("nan"), None, float("-inf")], pa.float32()),
    (pa.float32(), [0.5, float("nan"), None], pa.float64()),
    (pa.int64(), [1, None], pa.float64()),
    (pa.float64(), [1.0, -(2.0**53), None], pa.int64()),
    (pa.timestamp("us"), [TIME, None], pa.timestamp("s")),
    (pa.timestamp("s"), [TIME], pa.timestamp("us")),
    (pa.decimal128(5, 2), [Decimal("1.20")], pa.decimal128(5, 1)),
    (pa.string_view(), ["a"], pa.large_string()),
    (pa.binary(1), [b"a"], pa.large_binary()),
    (pa.list_(pa.int8()), [[1], None], pa.list_(pa.int64())),
    (pa.struct([("a", pa.int8())]), [{"a": 1}, None], pa.struct([("a", pa.int64())])),
    (pa.null(), [None, None], pa.int64()),
    (pa.null(), [None], pa.list_(pa.float32(), 3)),
    (pa.list_(pa.float32()), [[1.0, 2.0], None], pa.list_(pa.float32(), 2)),
]


@pytest.mark.parametrize(("given", "values", "declared"), FITTING, ids=lambda value: str(value)[:40])
def test_another_width_is_taken_where_every_value_survives(given, values, declared):
    """The column's type wins; the values are the same."""
    buffer = DatasetBuffer(schema=pa.schema([("x", declared)]))

    buffer.append(table_of(pa.array(values, given)))

    kept = [value.tolist() if isinstance(value, np.ndarray) else value for value in column(buffer)]
    assert str(kept) == str(pa.array(values, given).cast(declared).to_pylist())
    assert buffer.schema == Schema.from_arrow(pa.schema([("x", declared)]))


LOSING = [
    (pa.int64(), [1, 300], pa.int8(), 1),
    (pa.int64(), [None, -1], pa.uint64(), 1),
    (pa.uint64(), [0, 1, 2**63], pa.int64(), 2),
    (pa.float64(), [0.5, None, 0.1], pa.float32(), 2),
    (pa.float64(), [1e300], pa.float32(), 0),
    (pa.float64(), [1.0, 1.5], pa.int64(), 1),
    (pa.float64(), [1.0, float("nan")], pa.int64(), 1),
    (pa.float64(), [1.0, float("inf")], pa.int64(), 1),
    (pa.float64(), [2.0**63], pa.int64(), 0),
    (pa.int64(), [1, 2**53 + 1], pa.float64(), 1),
    (pa.int64(), [1, 2**24 + 1], pa.float32(), 1),
    (pa.int64(), [2**62, 2**62 + 1], pa.float64(), 1),
    (pa.float32(), [65504.0, 65536.0], pa.float16(), 1),
    (pa.timestamp("us"), [TIME, TIME.replace(microsecond=1)], pa.timestamp("s"), 1),
    (pa.decimal128(5, 2), [Decimal("1.20"), Decimal("1.25")], pa.decimal128(5, 1), 1),
    (pa.string(), ["1"], pa.int64(), 0),
    (pa.int64(), [1], pa.string(), 0),
    (pa.binary(), [b"a"], pa.string(), 0),
    (pa.string(), ["a"], pa.binary(), 0),
    (pa.bool_(), [True], pa.int64(), 0),
    (pa.int64(), [1], pa.bool_(), 0),
    (pa.int64(), [1], pa.timestamp("s"), 0),
    (pa.timestamp("s"), [TIME], pa.int64(), 0),
    (pa.timestamp("s"), [TIME], pa.timestamp("s", "UTC"), 0),
    (pa.timestamp("s"), [TIME], pa.date32(), 0),
    (pa.date32(), [TIME.date()], pa.timestamp("s"), 0),
    (pa.list_(pa.int64()), [[1], [2, 300]], pa.list_(pa.int8()), 1),
    (pa.list_(pa.int64()), [[1]], pa.int64(), 0),
    (pa.int64(), [1], pa.list_(pa.int64()), 0),
    (pa.struct([("a", pa.int64())]), [{"a": 1}, None, {"a": 300}], pa.struct([("a", pa.int8())]), 2),
    (pa.struct([("a", pa.int64())]), [{"a": 1}], pa.struct([("b", pa.int64())]), 0),
    (pa.list_(pa.float32()), [[1.0, 2.0], [3.0]], pa.list_(pa.float32(), 2), 1),
    (pa.list_(pa.float32()), [[1.0, 2.0], [3.0, None]], pa.list_(pa.float32(), 2), 1),
    (pa.list_(pa.float64()), [[1.0, 2.0]], pa.list_(pa.float32(), 2), 0),
    (pa.list_(pa.int8(), 3), [[1, 2, 3]], pa.list_(pa.int8(), 2), 0),
]


@pytest.mark.parametrize(("given", "values", "declared", "row"), LOSING, ids=lambda value: str(value)[:40])
def test_a_table_that_would_lose_a_value_is_refused_whole(given, values, declared, row):
    """Nothing is rounded, wrapped, parsed or turned into text; the message names the first row that does not fit."""
    buffer = DatasetBuffer(schema=pa.schema([("x", declared)]))
    before = facts(buffer)

    with pytest.raises(SchemaError, match=f"row {row}, column 'x'") as caught:
        buffer.append(table_of(pa.array(values, given)))

    assert facts(buffer) == before
    assert re.search(r": (this column holds|a tensor has) .*, got .*; ", str(caught.value))


def test_the_row_in_a_later_chunk_is_counted_from_the_first_sample():
    """Chunks are our affair; the user counts samples."""
    buffer = DatasetBuffer(schema={"x": "int8"})

    with pytest.raises(SchemaError, match=r"row 5, column 'x'.*got int 300"):
        buffer.append(pa.table({"x": pa.chunked_array([[1, 2], [3], [], [4, 5, 300]])}))


# -- tables that have no place in a buffer

REFUSED = {
    "sparse union": (
        pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]),
        "sparse_union",
    ),
    "dense union": (
        pa.UnionArray.from_dense(
            pa.array([0, 1], pa.int8()), pa.array([0, 0], pa.int32()), [pa.array([1]), pa.array(["a"])]
        ),
        "dense_union",
    ),
    "union in a list": (
        pa.ListArray.from_arrays(
            pa.array([0, 2], pa.int32()),
            pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]),
        ),
        "sparse_union",
    ),
    "unknown extension": (
        pa.ExtensionArray.from_storage(pa.opaque(pa.int32(), "t", "v"), pa.array([1], pa.int32())),
        "arrow.opaque",
    ),
    "permuted tensor": (
        pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12.0).reshape(2, 2, 3).transpose(0, 2, 1)),
        "permuted",
    ),
}


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("kind", REFUSED)
def test_a_type_without_a_place_is_refused_by_name(kind, is_first):
    """The message names the column and the type, and says what to do."""
    array, words = REFUSED[kind]
    buffer = DatasetBuffer()
    if not is_first:
        buffer.append({"x": 1})
    before = facts(buffer)

    with pytest.raises(SchemaError, match=words) as caught:
        buffer.append(table_of(array))

    assert facts(buffer) == before
    assert "column 'x'" in str(caught.value)
    assert "; " in str(caught.value)


def test_polars_objects_are_refused():
    """They travel as addresses in memory, which mean nothing later."""
    buffer = DatasetBuffer()

    with pytest.raises(SchemaError, match="column 'x'"):
        buffer.append(pl.DataFrame({"x": [object()]}, schema={"x": pl.Object}))

    assert facts(buffer) == facts(DatasetBuffer())


def test_an_extension_type_nobody_registered_is_refused():
    """It arrives as its storage with a note in the metadata; taking the storage would lose its meaning silently."""
    field = pa.field(
        "x", pa.int32(), metadata={"ARROW:extension:name": "acme.geometry", "ARROW:extension:metadata": ""}
    )
    buffer = DatasetBuffer()

    with pytest.raises(SchemaError, match=r"column 'x'.*acme\.geometry"):
        buffer.append(pa.Table.from_arrays([pa.array([1], pa.int32())], schema=pa.schema([field])))

    assert facts(buffer) == facts(DatasetBuffer())


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (pa.table({}), "without columns"),
        (pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]), "'a' stands there twice"),
        (pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["caf\u00e9", "cafe\u0301"]), "caf"),
        (pa.Table.from_arrays([pa.array([1])], [""]), "not empty"),
        (
            pa.table({"x": pa.array([{"a": 1}])}).rename_columns(["x"]).append_column("x", pa.array([1])),
            "'x' stands there twice",
        ),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "a"),
        (pd.DataFrame({"x": [1, "a"]}), "x"),
        (pl.Series("x", [1, 2]), "Series"),
        (pd.Series([1, 2], name="x"), "Series"),
    ],
)
def test_a_table_that_is_none_is_refused(table, words):
    """Names stand once and are not empty; a series is a column, not rows. Other libraries' errors are told as ours."""
    buffer = DatasetBuffer()

    with pytest.raises(SchemaError, match=words):
        buffer.append(table)

    assert facts(buffer) == facts(DatasetBuffer())


def test_types_nested_deeper_than_the_limit_are_refused():
    """Sixteen levels are kept, seventeen are too many."""
    type_ = pa.int64()
    for _ in range(16):
        type_ = pa.list_(type_)
    kept, refused = DatasetBuffer(), DatasetBuffer()

    kept.append(pa.table({"x": pa.nulls(1, type_)}))
    with pytest.raises(LimitExceeded, match=r"column 'x'.*16"):
        refused.append(pa.table({"x": pa.nulls(1, pa.list_(type_))}))

    assert kept[0] == {"x": None}
    assert refused.schema is None


# Some rows of a table -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(ARRAYS))
def test_chosen_rows_are_those_of_a_filtered_table(kind):
    """Of every type, also where the buffer has rows already."""
    table = table_of(sliced(ARRAYS[kind][0]))
    mask = np.arange(table.num_rows) % 3 != 1
    guard = Suite("nothing to say").expect("x", nullable=True)
    chosen, guarded, filtered = DatasetBuffer(), DatasetBuffer(guard=guard), DatasetBuffer()
    for _ in range(2):
        chosen.append_where(table, mask)
        guarded.append_where(table, mask)
        filtered.append(pa.concat_tables([table.slice(i, 1) for i in np.flatnonzero(mask)]))

    assert facts(chosen) == facts(guarded) == facts(filtered)


def test_rows_that_are_not_meant_need_not_fit():
    """Neither their values nor their sizes matter; those of the others do, and are told as an append would."""
    buffer = DatasetBuffer(schema=Schema.of(pa.schema({"x": pa.int8()})))
    numbers = pa.table({"x": [1, 300, 3]})

    buffer.append_where(numbers, [True, False, True])
    before = facts(buffer)
    with pytest.raises(SchemaError, match="row 1, column 'x'"):
        buffer.append_where(numbers, [True, True, False])

    assert facts(buffer) == before
    assert column(buffer, "x") == [1, 3]


def test_chosen_rows_over_fewer_prior_ones():
    """Retention comes first, as with any append; no row chosen is no row appended."""
    buffer = DatasetBuffer()
    buffer.append([{"x": 1}, {"x": 2}])

    buffer.append_where(pl.DataFrame({"x": [3, 4]}), [False, True], 0.5, "oldest")
    buffer.append_where(pa.table({"x": [5]}), [False])

    assert column(buffer, "x") == [1, 4]


@pytest.mark.parametrize(
    ("mask", "error", "told"),
    [
        ([True], IndexError, "one value per row (2), got shape (1,)"),
        ([[True, False]], IndexError, "got shape (1, 2)"),
        ([1, 0], TypeError, "True or False for every row, got int64"),
    ],
)
def test_a_mask_is_one_answer_for_every_row(mask, error, told):
    """Numbers are no mask: they might be meant as places."""
    buffer = DatasetBuffer()

    with pytest.raises(error, match=re.escape(told)):
        buffer.append_where(pa.table({"x": [1, 2]}), mask)

    assert len(buffer) == 0


def test_a_guard_looks_at_chosen_rows_only():
    """What is not meant is not rejected either."""
    buffer = DatasetBuffer(guard=Suite("small").expect("x", between=(0, 9)).on(error="drop"))

    buffer.append_where(pa.table({"x": [1, 50, 60]}), [True, False, True])

    assert column(buffer, "x") == [1]
    assert buffer.rejected.rows.column("x").to_pylist() == [60]


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({"x": pa.timestamp("ns")}, pa.array([0, 2**55], pa.timestamp("s"))),
        ({"x": pa.duration("ns")}, pa.array([0, 2**60], pa.duration("s"))),
        ({"x": pa.date32()}, pa.array([0, 2**60], pa.date64())),
        ([Field("x", "int64", shape=(None, None))], pa.array([[[1, 2]], [[1], [1, 2]]])),
        ([Field("x", "int64", shape=(None, None))], pa.array([[[1, 2]], [[1, None]]])),
    ],
    ids=["time", "duration", "date", "lists of several lengths", "null in an array"],
)
def test_a_value_that_python_cannot_say_is_told_with_its_row(schema, values):
    """It is an error of the schema as any other, and none at all if the row is not meant."""
    with pytest.raises(SchemaError, match="row 1, column 'x'"):
        DatasetBuffer(schema=schema).append(table_of(values))

    buffer = DatasetBuffer(schema=schema)
    buffer.append_where(table_of(values), [True, False])
    assert len(buffer) == 1


@pytest.mark.parametrize("way", ["append_where", "guarded", "filter"])
def test_slices_of_lists_of_one_length_in_such_lists(way):
    """Arrow's own filter takes other rows than it should, or what lies behind them."""
    boxes = [[[4 * i, 4 * i + 1], [4 * i + 2, 4 * i + 3]] for i in range(6)]
    table = pa.table({"n": range(6), "x": pa.array(boxes, pa.list_(pa.list_(pa.int64(), 2), 2))})
    buffer = DatasetBuffer(guard=Suite("any").expect("n", at_least=0) if way == "guarded" else None)
    if way == "filter":
        buffer.append(table)
        buffer.retain(0.5)
        buffer = buffer.filter(pc.field("n") != 4)
    else:
        buffer.append_where(table.slice(3), [True, False, True])

    assert buffer.to_arrow().column("x").to_pylist() == [boxes[3], boxes[5]]


@pytest.mark.parametrize("kind", ["pandas", "named index", "polars", "hugging face", "batch"])
def test_chosen_rows_of_other_tables(kind):
    """Whatever ``append`` takes as a table, and with the same columns."""
    frame = pd.DataFrame({"x": [1, 2, 3]}, index=pd.Index([5, 6, 9], name="k" if kind == "named index" else None))
    table = {
        "polars": lambda: pl.DataFrame({"x": [1, 2, 3]}),
        "hugging face": lambda: datasets.Dataset.from_dict({"x": [1, 2, 3]}),
        "batch": lambda: pa.record_batch({"x": [1, 2, 3]}),
    }.get(kind, lambda: frame)()
    chosen, whole = DatasetBuffer(), DatasetBuffer()

    chosen.append_where(table, [True, False, True])
    whole.append(table)

    assert chosen.schema == whole.schema
    assert column(chosen, "x") == [1, 3]


def test_only_tables_have_chosen_rows():
    """Polars' objects are addresses, and a list of samples has no columns."""
    with pytest.raises(TypeError, match="append_where takes a table, got list; append takes samples"):
        DatasetBuffer().append_where([{"x": 1}], [True])
    with pytest.raises(SchemaError, match="Object"):
        DatasetBuffer().append_where(pl.DataFrame({"x": pl.Series([object()], dtype=pl.Object)}), [True])


def test_slices_of_lists_of_structs_with_nothing_in_a_column():
    """Arrow's own cast ends the process, or says that a child is too short."""
    nothing = pa.struct([("a", pa.null()), ("b", pa.string())])
    lists = pa.array([[{"a": None, "b": str(i)}] for i in range(6)], pa.list_(nothing))
    fixed = pa.StructArray.from_arrays([lists.cast(pa.list_(nothing, 1))], ["c"])
    buffer = DatasetBuffer()

    buffer.append(pa.table({"x": lists, "y": fixed}).slice(5, 1))

    assert buffer.to_pydict() == {"x": [[{"a": None, "b": "5"}]], "y": [{"c": [{"a": None, "b": "5"}]}]}
