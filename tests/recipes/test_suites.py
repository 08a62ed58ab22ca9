"""A suite as a step: rows that it refuses are named one by one, also where a verdict needs all rows of all pieces."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poolish import DatasetRecipe, col
from poolish.errors import RecipeError
from poolish.guards import Suite
from poolish.recipes.fragment_rows import piece_at
from poolish.recipes.steps.barriers import BarrierContext, SuiteStep
from tests.recipes.kitchen import piece


@pytest.mark.parametrize(
    ("suite", "needs_all"),
    [
        (Suite().expect("x", at_least=0).expect_rows("x > 0"), False),
        (Suite().expect_unique("x"), True),
        (Suite().expect("x", unique=True), True),
        (Suite().stat("x", mean=(0, 1)), True),
        (Suite().outliers("x"), True),
        (Suite().drift(["x"]), True),
    ],
)
def test_a_suite_says_whether_it_needs_all_rows(suite, needs_all):
    """Where a verdict about one row depends on others."""
    assert SuiteStep("check", suite).needs_all is needs_all


def test_rows_of_all_pieces_are_checked_together():
    """In the order they have by now, and only those that are selected; each bad row has its reason."""
    step = SuiteStep("check", Suite().expect_unique("x"))
    pieces = [
        piece(pa.table({"x": [1, 1]})),
        piece(pa.table({"x": pa.array([], pa.int64())})),
        piece(pa.table({"x": [2, 1, 2]}), 50),
    ]

    everything = step.decide(pieces, BarrierContext("check", on_error="skip"))
    backwards = step.decide(pieces, BarrierContext("check", order=np.arange(5)[::-1], on_error="skip"))
    some = step.decide(pieces, BarrierContext("check", where=col.x == 2, on_error="skip"))

    assert everything.keep.tolist() == [True, False, True, False, False]
    assert backwards.keep.tolist() == [False, False, False, True, True]
    assert some.keep.tolist() == [True, True, True, True, False]
    assert list(everything.rejected) == [1, 3, 4]
    assert [pieces[k].rows[i] for k, i in (piece_at(pieces, each) for each in everything.rejected)] == [11, 51, 52]
    assert all("x" in reason for reason in everything.rejected.values())
    with pytest.raises(RecipeError, match=r"f.parquet, row 11, step 'check' and 2 more"):
        step.decide(pieces, BarrierContext("check"))


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_statistic_that_fails_has_no_row_to_skip(on_error):
    """So it is an error in any case."""
    step = SuiteStep("check", Suite().stat("x", mean=(0, 1), severity="error"))

    with pytest.raises(RecipeError, match=r"(?s)'check'.*no row is to blame"):
        step.decide([piece(pa.table({"x": [5.0, 6.0]}))], BarrierContext("check", on_error=on_error))


def test_a_row_that_a_suite_over_all_rows_rejects_is_named(tmp_path):
    """By ingredient, file, row and step, as one that a row-local step rejects."""
    for name, values in {"a": [1, 1], "b": [2, 1, 2]}.items():
        pq.write_table(pa.table({"x": values}), tmp_path / f"{name}.parquet")
    recipe = DatasetRecipe("unique").add_ingredient("oats", str(tmp_path / "*.parquet"))
    recipe.prepare_step("check", Suite().expect_unique("x"))

    rejects = recipe.bake(on_error="skip", cache=None).rejects.to_pylist()

    places = [(each["ingredient"], each["file"], each["row"], each["step"]) for each in rejects]
    assert places == [
        ("oats", file, row, "check") for file, row in (("a.parquet", 1), ("b.parquet", 1), ("b.parquet", 2))
    ]
    assert all("x" in each["reason"] for each in rejects)
