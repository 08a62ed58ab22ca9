"""Rows given as columns: whatever holds one value per row, in the dtype that it has."""

from __future__ import annotations

import array
import collections

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from datasets import Dataset, Features, List
from PIL import Image

from poolish import DatasetBuffer, Field
from poolish.schema import describe
from tests.rows.facts import column, facts, plain

NAN = float("nan")

COLUMNS = {
    "list": ([1, 2], "int64", [1, 2]),
    "tuple": ((1.5, 2), "float64", [1.5, 2.0]),
    "range": (range(2), "int64", [0, 1]),
    "generator": ((i for i in (1, 2)), "int64", [1, 2]),
    "deque": (collections.deque(["a", "b"]), "text", ["a", "b"]),
    "values of a dict": ({"a": 1, "b": 2}.values(), "int64", [1, 2]),
    "array of numbers": (np.array([1, 2], np.int8), "int8", [1, 2]),
    "array with NaN": (np.array([NAN, 1], np.float32), "float32", [NAN, 1.0]),
    "array of flags": (np.array([True, False]), "bool", [True, False]),
    "array of text": (np.array(["a", "bc"]), "text", ["a", "bc"]),
    "array of bytes": (np.array([b"a", b"bc"]), "bytes", [b"a", b"bc"]),
    "array of objects": (np.array(["a", None], object), "text", ["a", None]),
    "array of arrays": (np.arange(4).reshape(2, 2), "int64[2]", [np.array([0, 1]), np.array([2, 3])]),
    "array of complex": (np.array([1j, 2]), "complex128[]", None),
    "strided array": (np.arange(4)[::2], "int64", [0, 2]),
    "big-endian array": (np.array([1, 2], ">i2"), "int16", [1, 2]),
    "tensor": (torch.tensor([1, 2], dtype=torch.int16), "int16", [1, 2]),
    "tensor with a gradient": (torch.tensor([0.5], requires_grad=True), "float32", [0.5]),
    "tensor of tensors": (torch.ones(2, 3, 4), "float32[3, 4]", [np.ones((3, 4), np.float32)] * 2),
    "tensor of bfloat16": (torch.ones(2, 3, dtype=torch.bfloat16), "bfloat16[3]", [np.ones(3, np.float32)] * 2),
    "number of bfloat16": (torch.ones(2, dtype=torch.bfloat16), "bfloat16[]", None),
    "arrow": (pa.array([1, None], pa.int8()), "int8", [1, None]),
    "arrow with chunks": (pa.chunked_array([["a"], [], ["b", None]]), "text", ["a", "b", None]),
    "arrow with a dictionary": (pa.array(["a", None, "a"]).dictionary_encode(), "text", ["a", None, "a"]),
    "slice of arrow": (pa.array([[1], [2, 3], []]).slice(1), "list of int64", [[2, 3], []]),
    "pandas": (pd.Series([1, 2], dtype="int32", index=[7, 8]), "int32", [1, 2]),
    "pandas with NA": (pd.Series([1, None], dtype="Int16"), "int16", [1, None]),
    "pandas category": (pd.Series(pd.Categorical(["a", "b", "a"])), "text", ["a", "b", "a"]),
    "polars": (pl.Series([1, None], dtype=pl.Int8), "int8", [1, None]),
    "polars list": (pl.Series([[1.5], []]), "list of float64", [[1.5], []]),
    "polars category": (pl.Series(["a", "b"], dtype=pl.Categorical), "text", ["a", "b"]),
    "column of a dataset": (Dataset.from_dict({"c": [1, 2]})["c"], "int64", [1, 2]),
    "array of the array module": (array.array("h", [1, -2]), "int16", [1, -2]),
    "memoryview": (memoryview(np.array([1.5, 2.5], np.float32)), "float32", [1.5, 2.5]),
    "list of arrays": ([np.arange(2), np.arange(2)], "int64[2]", [np.arange(2)] * 2),
    "list of ragged arrays": ([np.arange(2), np.arange(1)], "int64[?]", [np.arange(2), np.arange(1)]),
    "list of tensors": ([torch.ones(2), torch.ones(2)], "float32[2]", [np.ones(2, np.float32)] * 2),
    "list of structs": ([{"a": 1}, {"a": None}], "{a: int64}", [{"a": 1}, {"a": None}]),
    "list of lists": ([[1], []], "list of int64", [[1], []]),
    "nothing but None": ([None, None], "nothing yet", [None, None]),
    "no rows": (np.empty((0, 3), np.float32), "float32[3]", []),
    "no rows in a list": ([], "nothing yet", []),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_a_column_keeps_its_values_and_its_dtype(kind):
    """Of every library: the column has the type that the values had, no wider one."""
    values, type_name, expected = COLUMNS[kind]
    buffer = DatasetBuffer()

    buffer.append_columns({"x": values})

    assert describe(buffer.schema["x"].type) == type_name
    if expected is not None:
        assert plain(column(buffer)) == plain(expected)


def test_all_columns_of_one_call_are_one_generation():
    """Whatever they are made of."""
    buffer = DatasetBuffer()

    buffer.append_columns({"a": [1, 2], "b": np.ones((2, 3)), "c": torch.tensor([1, 2]), "d": pa.array(["x", None])})

    assert buffer.generations == [(0, 2)]
    assert plain(buffer[1]) == plain({"a": 2, "b": np.ones(3), "c": 2, "d": None})


def test_columns_are_thinned_and_bounded_like_rows():
    """Retention, then the new rows, then the size."""
    buffer = DatasetBuffer(max_size=4)
    buffer.append_columns({"n": np.arange(4)})

    buffer.append_columns({"n": np.arange(10, 13)}, retain_prior=0.5, retain_prior_by="oldest")

    assert column(buffer, "n") == [1, 10, 11, 12]


def test_lists_take_the_type_of_a_column_that_is_there():
    """Python numbers go into narrow columns where they fit, as they do in rows."""
    buffer = DatasetBuffer(
        schema=[Field("n", "int8"), Field("x", "float32", shape=(None,)), Field("t", "string", nullable=True)]
    )

    buffer.append_columns({"n": [1, 2.0], "x": [np.ones(1, np.float32), np.ones(2, np.float32)]})

    assert plain(buffer.to_pydict()) == plain(
        {"n": [1, 2], "x": [np.ones(1, np.float32), np.ones(2, np.float32)], "t": [None, None]}
    )


def test_bare_samples_and_columns_share_a_buffer():
    """Columns have no class of their own: they join tensors and objects whose rows have these columns."""
    buffer = DatasetBuffer()
    buffer.append(np.zeros(2))

    buffer.append_columns({"tensor": np.ones((2, 2))})
    buffer.append(np.full(2, 7.0))

    assert [row.tolist() for row in column(buffer, "tensor")] == [[0, 0], [1, 1], [1, 1], [7, 7]]


@pytest.mark.parametrize(
    ("value", "feature"),
    [
        (Image.new("L", (2, 2)), datasets.Image()),
        ([Image.new("L", (2, 2))], List(datasets.Image())),
        ({"a": Image.new("L", (2, 2))}, {"a": datasets.Image()}),
    ],
    ids=["picture", "list", "struct"],
)
@pytest.mark.parametrize("way", ["row", "rows", "columns"])
def test_pictures_are_pictures_however_they_come(value, feature, way):
    """Hugging Face gets an Image feature, wherever in a row the picture stands."""
    buffer = DatasetBuffer()
    append = {
        "row": lambda: buffer.append({"x": value}),
        "rows": lambda: buffer.append([{"x": None}, {"x": value}]),
        "columns": lambda: buffer.append_columns({"x": [value]}),
    }[way]

    append()

    assert buffer.to_hf_dataset().features == Features({"x": feature})


def test_a_failed_call_reads_no_more_than_it_must():
    """The buffer is unchanged, whichever column was bad."""
    buffer = DatasetBuffer()
    buffer.append_columns({"a": [1], "b": ["x"]})
    before = facts(buffer)

    for columns in ({"a": [1, "x"], "b": ["y", "z"]}, {"a": [1, 2], "b": ["y", 5]}, {"a": [1], "b": []}):
        with pytest.raises(ValueError, match="column"):
            buffer.append_columns(columns)

    assert facts(buffer) == before
