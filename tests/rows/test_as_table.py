"""A buffer used as people use data frames, tables and datasets: by column, by name, and given to other libraries."""

from __future__ import annotations

import datetime
import decimal

import datasets
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from poolish import DatasetBuffer
from poolish.errors import UnknownColumn

ROWS = [
    {"x": 1, "text": "rye", "image": np.ones((2, 3), np.uint8), "list": [1, None], "votes": 2**53 + 1, "ratio": 0.5},
    {"x": 2, "text": None, "image": np.zeros((2, 3), np.uint8), "list": [], "votes": None, "ratio": float("nan")},
    {"x": 3, "text": "", "image": np.full((2, 3), 7, np.uint8), "list": None, "votes": -1, "ratio": None},
]


def filled():
    """A buffer of all rows."""
    buffer = DatasetBuffer()
    buffer.append(ROWS)
    return buffer


@pytest.fixture(params=["buffer", "snapshot", "with tombstones"])
def rows(request):
    """The same rows, as a buffer, as a snapshot, and where others have left from the middle."""
    if request.param != "with tombstones":
        return filled() if request.param == "buffer" else filled().snapshot()
    buffer = DatasetBuffer(max_size=3, drop_strategy="lowest:x")
    buffer.append([each for row in ROWS for each in (row, {**row, "x": 0})])
    return buffer


# Columns --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(ROWS[0]))
def test_a_name_gives_the_column_that_to_arrow_has(rows, name):
    """One ChunkedArray of all rows in order, of the same type."""
    column = rows[name]

    assert isinstance(column, pa.ChunkedArray)
    assert column.type == rows.to_arrow()[name].type
    assert column.equals(rows.to_arrow()[name]) or name == "ratio"  # NaN equals nothing
    assert len(column) == len(rows)


def test_a_column_of_a_thinned_buffer_has_the_rows_that_are_left():
    """Rows that were evicted from the middle are in no column."""
    buffer = DatasetBuffer(max_size=50, drop_strategy="random", seed=7)
    buffer.append([{"x": i, "text": str(i)} for i in range(200)])

    assert buffer["x"].to_pylist() == [int(text) for text in buffer["text"].to_pylist()] == buffer.to_pydict()["x"]


def test_a_list_of_names_gives_a_table(rows):
    """Those columns in that order."""
    table = rows[["text", "x"]]

    assert table.to_pydict() == {"text": ["rye", None, ""], "x": [1, 2, 3]}


@pytest.mark.parametrize("ask", [lambda rows: rows["tex"], lambda rows: rows[["x", "tex"]]])
def test_an_unknown_name_is_an_error_with_the_nearest(rows, ask):
    """A KeyError, as everywhere in Python."""
    with pytest.raises(UnknownColumn, match=r"no column 'tex'.*did you mean 'text'"):
        ask(rows)


def test_a_column_is_what_it_was_when_it_was_asked_for():
    """Later appends and updates do not reach it."""
    buffer = filled()
    column = buffer["x"]

    buffer.append(ROWS)
    buffer.update([0], {"x": [99]})

    assert column.to_pylist() == [1, 2, 3]
    assert buffer["x"].to_pylist() == [99, 2, 3, 1, 2, 3]


def test_size_and_names_are_those_of_tables_and_datasets(rows):
    """The attributes that pa.Table, datasets.Dataset and data frames share."""
    dataset = rows.to_hf_dataset()

    assert (rows.num_rows, rows.num_columns, rows.shape) == (dataset.num_rows, dataset.num_columns, dataset.shape)
    assert rows.column_names == dataset.column_names == rows.to_arrow().column_names
    assert rows.features == dataset.features


def test_an_empty_buffer_has_no_columns():
    """Before the first append nothing is known."""
    buffer = DatasetBuffer()

    assert (buffer.column_names, buffer.shape, "x" in buffer) == ([], (0, 0), False)
    assert buffer.to_pandas().shape == buffer.to_polars().shape == (0, 0)
    with pytest.raises(UnknownColumn):
        buffer["x"]


def test_in_asks_for_columns(rows):
    """As in a data frame; without this it compared each row as a table, and was always false."""
    assert "x" in rows
    assert "y" not in rows
    for value in (1, {"x": 1}, None):
        with pytest.raises(TypeError, match="asks for a column"):
            assert value in rows


# pandas ---------------------------------------------------------------------------------------------------------------


def test_to_pandas_keeps_every_value(rows):
    """Integers beyond 2**53 beside nulls, NaN beside nulls, shapes, nulls in lists."""
    frame = rows.to_pandas()

    assert list(frame.columns) == rows.column_names
    assert len(frame) == 3
    assert frame["x"].dtype == np.int64
    assert frame["votes"][0] == 2**53 + 1
    assert frame["votes"][1] is pd.NA
    assert frame["list"].tolist()[:2] == [[1, None], []]
    assert frame["list"][2] is pd.NA
    assert frame["text"].isna().tolist() == [False, True, False]
    assert frame["text"][0] == "rye"
    assert [image.shape for image in frame["image"]] == [(2, 3)] * 3
    assert frame["image"][2][0, 0] == 7
    ratios = pa.array(frame["ratio"])
    assert ratios.null_count == 1
    assert np.isnan(ratios[1].as_py())
    assert ratios[2].as_py() is None


def test_what_to_pandas_gives_can_be_changed_and_changes_nothing(rows):
    """A frame has memory of its own."""
    frame = rows.to_pandas()
    frame.loc[0, "x"] = 99
    frame.loc[0, "text"] = "oats"
    frame["image"][0][:] = 99

    assert rows["x"].to_pylist() == [1, 2, 3]
    assert rows[0]["image"].tolist() == [[1] * 3] * 2
    assert rows["text"][0].as_py() == "rye"


def test_a_frame_comes_back_as_the_same_rows(rows):
    """Through pandas and back, but for tensors, which pandas keeps as objects."""
    columns = ["x", "text", "list", "votes"]
    again = DatasetBuffer()
    again.append(rows.to_pandas(columns))

    assert again.to_pydict() == {name: rows.to_pydict()[name] for name in columns}
    assert again.schema.to_arrow().types == [rows.schema[name].type for name in columns]


def test_to_pandas_of_every_kind_of_value():
    """Each value is the one that the buffer gives, in the dtype that holds it."""
    row = {
        "flag": True,
        "half": np.float16(0.5),
        "unsigned": np.uint64(2**64 - 1),
        "bytes": b"\xff",
        "day": datetime.date(2024, 2, 29),
        "moment": datetime.datetime(1200, 1, 1, tzinfo=datetime.UTC),
        "local": np.datetime64("2024-02-29T12:00:00", "us"),
        "price": decimal.Decimal("0.10"),
        "nested": {"a": [1], "b": None},
        "ragged": np.arange(3.0),
        "narrow": torch.ones(2, dtype=torch.bfloat16),
    }
    buffer = DatasetBuffer()
    buffer.append([row, {**row, "ragged": np.arange(2.0)}])
    frame = buffer.to_pandas()

    dtypes = {name: str(dtype) for name, dtype in frame.dtypes.items()}
    assert dtypes["flag"] == "bool"
    assert dtypes["half"] == "float16"
    assert dtypes["unsigned"] == "uint64"
    assert dtypes["local"] == "datetime64[us]"
    assert dtypes["narrow"] == dtypes["ragged"] == "object"
    assert frame["unsigned"][0] == 2**64 - 1
    assert frame["bytes"][0] == b"\xff"
    assert frame["price"][0] == row["price"]
    assert frame["day"][0] == row["day"]
    assert frame["moment"][0] == row["moment"]
    assert frame["nested"][0] == row["nested"]
    assert [each.tolist() for each in frame["ragged"]] == [[0, 1, 2], [0, 1]]
    assert frame["narrow"][0].tolist() == [1, 1]


@pytest.mark.parametrize("shape", [(1,), (3,), (3, 3)])
@pytest.mark.parametrize("has_null", [False, True])
def test_arrays_of_any_shape_are_one_object_a_row(shape, has_null):
    """Also where as many rows as entries tempt NumPy to make one array of all."""
    arrays = [np.full(shape, i, np.float32) for i in range(3)]
    buffer = DatasetBuffer()
    buffer.append([{"a": array} for array in arrays])
    if has_null:
        buffer.append({"a": None})

    column = buffer.to_pandas()["a"]

    assert [np.asarray(each).tolist() for each in column[:3]] == [array.tolist() for array in arrays]
    assert len(column) == 3 + has_null
    assert not has_null or column[3] is None


def test_to_pandas_without_columns_still_counts_rows(rows):
    """A frame of rows and no columns."""
    assert rows.to_pandas([]).shape == (3, 0)
    with pytest.raises(UnknownColumn, match="did you mean 'x'"):
        rows.to_pandas(["xx"])


@pytest.mark.parametrize("make", [pd.DataFrame, np.asarray, np.array])
def test_what_would_make_an_array_of_tables_is_refused_with_the_line_to_write(rows, make):
    """NumPy and pandas would go through the rows, each of which is a table."""
    with pytest.raises(TypeError, match=r"to_pandas\(\).*to_numpy\(\)"):
        make(rows)


# Others ---------------------------------------------------------------------------------------------------------------


def test_arrow_polars_and_duckdb_take_a_buffer_as_it_is(rows):
    """Through Arrow's C interface, with types and nulls."""
    plain = {name: rows.to_pydict()[name] for name in ("x", "text", "list", "votes")}

    assert pa.table(rows).select(list(plain)).to_pydict() == plain
    assert pl.DataFrame(rows).select(list(plain)).to_dict(as_series=False) == plain
    found = duckdb.sql("select x, text, list, votes from rows").to_arrow_table().to_pydict()
    assert found == plain


def test_to_polars_has_shapes_and_values_of_tensors(rows):
    """``Array`` of the shape; what polars lacks is widened, ragged arrays are lists in lists."""
    frame = rows.to_polars()
    assert frame.schema["image"] == pl.Array(pl.UInt8, (2, 3))
    assert frame["image"][2].to_list() == [[7] * 3] * 2
    assert frame["votes"].to_list() == [2**53 + 1, None, -1]

    buffer = DatasetBuffer()
    buffer.append(
        [
            {"narrow": torch.full((2,), 1.5, dtype=torch.bfloat16), "ragged": np.ones((n, 2)), "wave": np.ones(2) * 1j}
            for n in (1, 3)
        ]
    )
    frame = buffer.to_polars()
    assert frame["narrow"].to_list() == [[1.5, 1.5]] * 2
    assert frame["ragged"].to_list() == [[[1.0, 1.0]] * n for n in (1, 3)]
    assert frame["wave"].to_list() == [[[0.0, 1.0]] * 2] * 2


def test_datasets_refuses_a_buffer_and_takes_its_table(rows):
    """``Dataset(buffer)`` is an error; both lines that work give all rows."""
    with pytest.raises(TypeError):
        datasets.Dataset(rows)

    assert rows.to_hf_dataset()["x"][:] == datasets.Dataset(rows[["x"]])["x"][:] == [1, 2, 3]
