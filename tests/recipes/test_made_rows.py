"""Rows that a function makes keep the types of their columns, and what does not fit names its place."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish import DatasetBuffer, DatasetRecipe
from poolish.errors import PoolishError, RecipeError, SchemaError
from poolish.recipes.engine import LocalEngine
from poolish.recipes.steps import called as steps
from poolish.recipes.steps.called import CalledStep
from poolish.schema import dtype_and_shape
from tests.recipes.kitchen import called, content, cut, message_of, numbers, piece


def small_types() -> pa.Table:
    """Types that Python has no words for."""
    numbers = {"i": pa.array([1, 2], pa.int32()), "f": pa.array([0.5, 0.1], pa.float32())}
    return pa.table({**numbers, "n": pa.array([None, None], pa.string())})


@pytest.mark.parametrize(
    ("function", "batched"), [(lambda row: row, False), (lambda columns: columns, "columns"), (lambda t: t, True)]
)
def test_columns_keep_their_types(function, batched):
    """int32, float32, and text where there is nothing but null."""
    made = called(function, small_types(), batched=batched).table

    assert made.schema.equals(piece(small_types()).table.schema)
    assert made.to_pylist() == small_types().to_pylist()


@pytest.mark.parametrize("batched", [False, "columns"])
@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2)),
        pa.array([[[1, 2]], [], None], pa.list_(pa.list_(pa.int16(), 2))),
        pa.array([{"v": [1, 2]}, {"v": [3, 4]}, {"v": None}], pa.struct({"v": pa.list_(pa.int64(), 2)})),
    ],
)
def test_arrays_come_back_as_what_they_were(column, batched):
    """They are handed out as arrays, by rows and by columns alike, also inside of lists and structs."""
    table = pa.table({"emb": column, "n": [1, 2, 3]})

    made = called(lambda given: given, table, batched=batched).table

    assert made.equals(piece(table).table)


def test_columns_have_the_arrays_that_rows_have():
    """Of several shapes too."""
    buffer = DatasetBuffer()
    buffer.append([{"a": np.zeros((2, 3), np.float32)}, {"a": np.ones((1, 3), np.float32)}])
    table, seen = buffer.snapshot().to_arrow(), {}

    made = called(lambda columns: seen.update(columns) or columns, table, batched="columns").table

    assert [(each.dtype, each.shape) for each in seen["a"]] == [(np.float32, (2, 3)), (np.float32, (1, 3))]
    assert made.equals(piece(table).table)


@pytest.mark.parametrize("value", [2**40, 0.5, 2.0, "three"])
@pytest.mark.parametrize("batched", [False, "columns"])
def test_a_value_that_does_not_fit_names_its_place(value, batched):
    """Ingredient, file, row, step and column; nothing is rounded or cast to make it fit."""
    table = pa.table({"i": pa.array([1, 2], pa.int32())})
    per_row = lambda row: {"i": value if row["i"] == 2 else 1}  # noqa: E731
    function = (lambda columns: {"i": [1, value]}) if batched else per_row

    with pytest.raises(SchemaError) as caught:
        called(function, table, batched=batched)

    assert all(word in message_of(caught.value) for word in ("'oats'", "f.parquet", "row 11", "'knead'", "'i'"))


def test_a_value_that_does_not_fit_may_be_skipped():
    """With all rows that its row became, and once."""
    made = called(
        lambda row: [{"x": 1}, {"x": "no"}, {"x": "no"}] if row["x"] else [{"x": 5}], pa.table({"x": [0, 1, 0]}), "skip"
    )

    assert made.table["x"].to_pylist() == [5, 5]
    assert made.parents.tolist() == [0, 2]
    assert [(each.row, "SchemaError" in each.reason) for each in made.rejected] == [(11, True)]


def test_new_columns_do_not_mix_whole_numbers_and_floats():
    """In any order: else it would depend on the first row, and on how the data is cut."""
    for values in ([1, 0.5], [0.5, 1]):
        with pytest.raises(SchemaError, match="'new'"):
            called(lambda row, values=values: {"new": values[row["x"]]}, pa.table({"x": [0, 1]}))
    assert called(lambda row: {"f": 1}, pa.table({"f": [0.5]})).table["f"].to_pylist() == [1.0]


def test_arrays_may_change_their_shape():
    """As images do that are made smaller."""
    made = called(
        lambda row: {"a": row["a"][:2]}, pa.table({"a": pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((2, 3)))})
    )

    assert called(lambda row: {"n": row["a"].shape[0]}, made.table).table["n"].to_pylist() == [2, 2]


def test_a_batch_of_nulls_has_the_type_of_the_others(monkeypatch):
    """Of a new column, also inside of lists."""
    monkeypatch.setattr(steps, "BATCH_ROWS", 1)
    for values in ([None, 1, 2], [[], [1], []], [None, "a", None]):
        made = called(
            lambda c, v=values: {"new": [v[x] for x in c["x"]]}, pa.table({"x": [0, 1, 2]}), batched="columns"
        )
        assert made.table["new"].to_pylist() == values


def test_batches_of_other_types_are_told(monkeypatch):
    """With the step and the column."""
    monkeypatch.setattr(steps, "BATCH_ROWS", 1)

    with pytest.raises(RecipeError, match=r"'oats', f.parquet, step 'knead': .*'new'"):
        called(lambda c: {"new": [x or "zero" for x in c["x"]]}, pa.table({"x": [0, 1]}), batched="columns")


def test_of_no_rows_a_step_makes_the_columns_that_it_made_before():
    """What it makes of nothing is known from what it made of something."""
    step = CalledStep("knead", lambda row: {**row, "z": 0.5}, None, False, {})
    table = pa.table({"x": [1]})

    first = step.prepare(piece(table.slice(0, 0)), "raise").table
    step.prepare(piece(table), "raise")
    later = step.prepare(piece(table.slice(0, 0)), "raise").table

    assert first.column_names == ["x"]
    assert later.column_names == ["x", "z"]


#: What a function may make of a row: each is right by itself but the last three, and few of them go together.
MADE = [
    *(
        {"y": None},
        {"y": 1},
        {"y": 2**62},
        {"y": 0.5},
        {"y": "a"},
        {"y": True},
        {"y": np.int32(1)},
        {"y": np.float32(1)},
    ),
    *({"y": []}, {"y": [1]}, {"y": [0.5]}, {"y": {"a": 1}}, {"y": {"a": None}}, {"y": {"b": 1}}),
    *({"y": np.zeros(2)}, {"y": np.zeros(3)}, {"y": np.zeros((2, 2))}, {"y": np.zeros(2, np.float32)}),
    *({}, {"z": 1}, {"y": 1, "z": 1}, {"y": 2**70}, {"y": object()}, {"y": [1, 0.5]}),
]


@given(
    st.lists(st.sampled_from(range(len(MADE))), min_size=1, max_size=3, unique=True),
    st.lists(st.integers(0, 2), min_size=1, max_size=6),
    st.sampled_from(["raise", "skip"]),
    st.booleans(),
)
def test_what_comes_of_a_function_does_not_depend_on_how_the_data_is_cut(kinds, chosen, on_error, keeps_x):
    """The same rows, types and rejects, or in every cut an error of ours: also where rows do not go together."""
    outputs = [MADE[kinds[i % len(kinds)]] for i in chosen]

    def function(row):
        made = outputs[row["x"]]
        return {"x": row["x"], **made} if keeps_x else made

    def outcome(n_rows, n_workers):
        recipe = DatasetRecipe("r").add_ingredient("a", numbers(len(outputs)))
        recipe.prepare_step("s", function, version=1)
        try:
            with cut(n_rows):
                return content(recipe.bake(on_error=on_error, engine=LocalEngine(n_workers)))
        except PoolishError:
            return "an error"

    assert {repr(outcome(n_rows, n_workers)) for n_rows, n_workers in [(1, 1), (2, 1), (3, 2), (100, 1)]} == {
        repr(outcome(len(outputs), 1))
    }


def test_arrays_keep_the_type_that_their_column_had():
    """Ragged stays ragged where a part happens to have one shape; another dtype is another type."""
    buffer = DatasetBuffer()
    buffer.append([{"a": np.zeros(n, np.float32)} for n in (2, 3)])
    ragged = buffer.snapshot().to_arrow()

    same = called(lambda row: {"a": np.zeros(2, np.float32)}, ragged).table
    other = called(lambda row: {"a": np.zeros(2, np.float64)}, ragged).table

    assert same.schema.field("a").type == ragged.schema.field("a").type
    assert dtype_and_shape(other.schema.field("a").type) == ("float64", (2,))


@pytest.mark.parametrize("other", [np.zeros(2, np.float64), np.zeros((2, 2), np.float32)])
def test_arrays_of_other_dtypes_or_dimensions_do_not_go_together(other):
    """Only sizes may differ."""
    with pytest.raises(SchemaError, match="rows 10 and 11"):
        called(lambda row: {"a": other if row["x"] else np.zeros(2, np.float32)}, pa.table({"x": [0, 1]}))
