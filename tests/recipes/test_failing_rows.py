"""A step that fails names the rows it fails for, or leaves out those alone; what is no row's fault is an error."""

from __future__ import annotations

import pyarrow as pa
import pytest

from poolish import DatasetRecipe, col
from poolish.errors import RecipeError, UnknownColumn
from poolish.recipes.pipeline import RowPredicate
from poolish.recipes.steps.registry import built_in
from tests.recipes.kitchen import called, cut, line, message_of, piece, rejects, xs


@pytest.mark.parametrize(
    ("step", "options", "good", "error"),
    [
        ("cast", {"columns": {"v": "int64"}}, [1, 3, 4], RecipeError),
        ("map", {"columns": {"v": col.v.cast("int64")}}, [1, 3, 4], RecipeError),
        ("tokenize", {"column": "v", "into": "v", "tokenizer": lambda text: [int(text)]}, [[1], [3], [4]], ValueError),
    ],
)
def test_built_in_steps_find_the_rows_they_fail_for(step, options, good, error):
    """Skipped one by one, or named in the error."""
    rows = piece(pa.table({"v": ["1", "z", "3", "4", "y"]}))
    made = built_in(step, "knead", options)

    skipped = made.prepare(rows, "skip")
    with pytest.raises(error) as caught:
        made.prepare(rows, "raise")

    assert skipped.table["v"].to_pylist() == good
    assert skipped.parents.tolist() == [0, 2, 3]
    assert [each.row for each in skipped.rejected] == [11, 14]
    assert all(word in message_of(caught.value) for word in ("'oats'", "f.parquet", "row 11", "'knead'"))


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_what_is_no_rows_fault_is_an_error(on_error):
    """An unknown column, and a value that no null of the column can become."""
    rows = piece(pa.table({"v": [1, None]}))

    with pytest.raises(UnknownColumn) as unknown:
        built_in("cast", "knead", {"columns": {"nope": "int8"}}).prepare(rows, on_error)
    with pytest.raises(RecipeError, match="'v'") as unfit:
        built_in("fill_nulls", "knead", {"columns": {"v": "text"}}).prepare(rows, on_error)

    for caught in (unknown, unfit):
        assert all(word in message_of(caught.value) for word in ("'knead'", "'oats'"))


def test_a_filter_that_is_a_function_fails_row_by_row():
    """Skipped, or named; None is no, and counted."""
    where = RowPredicate(lambda row: None if row["x"] == 0 else 1 / (row["x"] - 2) < 0)
    rows = piece(pa.table({"x": [0, 1, 2, 3]}))

    judged = where.judged(rows, "skip")
    with pytest.raises(ZeroDivisionError) as caught:
        where.judged(rows, "raise", "knead")

    assert (judged.mask.tolist(), judged.n_null) == ([False, True, False, False], 1)
    assert [each.row for each in judged.rejected] == [12]
    assert all(word in message_of(caught.value) for word in ("'oats'", "f.parquet", "row 12", "'knead'"))


def test_a_batch_that_fails_is_told_with_all_its_rows():
    """Nobody knows which of them it was."""
    with pytest.raises(ZeroDivisionError) as caught:
        called(lambda table: 1 / 0, pa.table({"x": [1, 2, 3]}), batched=True)

    assert "rows 10 to 12" in message_of(caught.value)


def test_the_rows_that_a_batch_fails_for_are_found_in_few_calls():
    """By halving: a thousand rows with a bad one cost a few calls, not a thousand."""
    calls = []

    def step(table: pa.Table) -> pa.Table:
        calls.append(table.num_rows)
        if 700 in table["x"].to_pylist():
            raise KeyError("bad")
        return table

    made = called(step, pa.table({"x": range(1_000)}), "skip", batched=True)

    assert made.table["x"].to_pylist() == [x for x in range(1_000) if x != 700]
    assert [each.row for each in made.rejected] == [710]
    assert len(calls) < 30


# Filters --------------------------------------------------------------------------------------------------------------

WORDS = pa.table({"x": range(6), "n": ["1", "20", None, "many", "5", "few"]})


def test_a_row_that_a_filter_fails_for_is_rejected_alone():
    """An expression as a function would: a text that is no number says nothing about the others."""
    recipe = DatasetRecipe("r").add_ingredient("a", WORDS, where="cast(n, 'int64') > 3")

    for n_rows in (None, 2):
        with cut(n_rows or 100):
            result = recipe.bake(on_error="skip")
        told = line(result, "a")
        assert xs(result) == [1, 4]
        assert [reject[:4] for reject in rejects(result)] == [("a", "", 3, "where"), ("a", "", 5, "where")]
        assert (told.rows_in, told.nulls, told.filtered, told.rejected, told.rows_out) == (6, 1, 2, 2, 2)
    counted = DatasetRecipe("r").add_ingredient("a", WORDS, where="cast(n, 'int64') > 0", take=3)
    assert xs(counted.bake(on_error="skip")) == [0, 1, 4]


def test_a_row_that_the_filter_of_a_step_fails_for_is_rejected_alone():
    """And the others stay where they are."""
    recipe = DatasetRecipe("r").add_ingredient("a", WORDS)
    recipe.prepare_step("ten", "map", columns={"x": "x * 10"}, where="cast(n, 'int64') > 3")

    result = recipe.bake(on_error="skip")

    assert xs(result) == [0, 10, 2, 40]
    assert [reject[:4] for reject in rejects(result)] == [("a", "", 3, "ten"), ("a", "", 5, "ten")]


def test_the_first_row_that_a_filter_fails_for_is_named():
    """Where an error is asked for; what is wrong with the filter itself has no row."""
    recipe = DatasetRecipe("r").add_ingredient("a", WORDS, where="cast(n, 'int64') > 3")
    with pytest.raises(RecipeError, match="many") as caught:
        recipe.bake()
    assert caught.value.__notes__ == ["while baking ingredient 'a', row 3, step 'where'"]
    with pytest.raises(UnknownColumn) as unknown:
        DatasetRecipe("r").add_ingredient("a", WORDS, where="m > 3").bake(on_error="skip")
    assert unknown.value.__notes__ == ["while baking ingredient 'a', step 'where'"]
