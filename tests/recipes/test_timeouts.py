"""A call that hangs is given up after ``timeout_s``, with its place, and costs only the rows that it hangs for."""

from __future__ import annotations

import threading
import time
from typing import Any

import pyarrow as pa
import pytest

from poolish import DatasetRecipe
from poolish.errors import RecipeError
from poolish.recipes.steps.called import CalledStep
from tests.recipes.kitchen import called, message_of, numbers, rejects, xs


def test_a_call_that_hangs_is_told():
    """With ``timeout_s`` a step that does not come back is an error with its place, or a rejected row."""

    def hang(row: dict[str, Any]) -> dict[str, Any]:
        if row["x"] == 1:
            time.sleep(2)
        return row

    recipe = DatasetRecipe("r").add_ingredient("oats", numbers(3)).prepare_step("knead", hang, timeout_s=0.1, version=1)

    with pytest.raises(RecipeError) as caught:
        recipe.bake()
    result = recipe.bake(on_error="skip")

    assert all(word in message_of(caught.value) for word in ("oats", "row 1", "knead", "timeout_s"))
    assert xs(result) == [0, 2]
    assert [reject[:4] for reject in rejects(result)] == [("oats", "", 1, "knead")]


@pytest.mark.parametrize("batched", [False, True])
def test_a_call_that_hangs_is_given_up(batched):
    """With its place; where rows may be skipped only those that it hangs for are."""
    leave = threading.Event()

    def step(given: Any) -> Any:
        if 2 in (given["x"].to_pylist() if batched else [given["x"]]):
            leave.wait(60)
        return given

    with pytest.raises(RecipeError, match=r"'oats', f.parquet, row.*'knead'.*timeout_s=0.2"):
        called(step, pa.table({"x": [1, 2]}), batched=batched, timeout_s=0.2)
    made = called(step, pa.table({"x": [1, 2, 3]}), "skip", batched=batched, timeout_s=0.2)
    leave.set()

    assert made.table["x"].to_pylist() == [1, 3]
    assert [each.row for each in made.rejected] == [11]


def test_a_timeout_is_no_option_of_the_function():
    """It is not passed on, does not change what is made, and errors come through as they are."""
    timed, plain = (CalledStep("knead", len, None, False, options) for options in ({"timeout_s": 3}, {}))

    assert timed.fingerprint == plain.fingerprint
    with pytest.raises(KeyError, match="mine") as caught:
        called(lambda row: {}["mine"], pa.table({"x": [1]}), timeout_s=30)
    assert "row 10" in message_of(caught.value)
    with pytest.raises(RecipeError, match="timeout_s"):
        called(len, pa.table({"x": [1]}), timeout_s=0)
