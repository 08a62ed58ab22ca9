"""What a recipe and a bake are told: what is taken, and what is refused with the next thing to write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from poolish import DatasetBuffer, DatasetRecipe, bake
from poolish.errors import BudgetSpent, ConfigError, DataRefused, PoolishError, RecipeError
from poolish.guards.checks.suite import Suite
from tests.recipes.kitchen import line, numbers, xs


def recipe_of(**options: Any) -> DatasetRecipe:
    """One ingredient of eight rows."""
    return DatasetRecipe("r").add_ingredient("oats", numbers(8), **options)


# Recipes --------------------------------------------------------------------------------------------------------------


def test_numbers_of_numpy_are_numbers():
    """take=, weight= and total= as they come out of a calculation; the recipe has them as Python's."""
    by_count, by_share = recipe_of(take=np.int64(3)), recipe_of(take=np.float32(0.5))
    mixed = DatasetRecipe("r", total=np.int32(4)).add_ingredient("oats", numbers(8), weight=np.float64(2))

    assert by_count.fingerprint == recipe_of(take=3).fingerprint
    assert by_share.fingerprint == recipe_of(take=0.5).fingerprint
    assert (len(by_count.bake().buffer), len(mixed.bake().buffer)) == (3, 4)
    assert type(mixed.total) is int
    assert mixed.bake(on_error="skip", budget=np.int64(1)).report.n_rejected == 0


@pytest.mark.parametrize(
    "options", [{"take": np.bool_(True)}, {"weight": np.bool_(True)}, {"weight": "1"}, {"weight": 10**400}]
)
def test_what_is_no_number_is_refused_by_name(options):
    """Also a truth value and a text."""
    with pytest.raises(RecipeError, match=r"^ingredient 'oats': (take|weight)="):
        recipe_of(**options)


@pytest.mark.parametrize("where", ["x = 1", "x > 0 AND x < 3", 5])
def test_a_filter_that_is_none_is_told_where_it_is_written(where):
    """With the ingredient or the step that it is for."""
    with pytest.raises(PoolishError, match=r"^ingredient 'oats', where: .*expression"):
        recipe_of(where=where)
    with pytest.raises(PoolishError, match=r"^step 'knead', where: .*expression"):
        recipe_of().prepare_step("knead", "shuffle", where=where)


@pytest.mark.parametrize("pick", ["latest", "top(x)"])
def test_a_pick_of_all_rows_is_refused(pick):
    """It would do nothing, so something was forgotten."""
    with pytest.raises(RecipeError, match=r"'oats'.*take= or weight="):
        recipe_of(pick=pick)

    assert len(recipe_of(pick="hash").bake().buffer) == 8


def test_a_pick_that_is_none_names_its_ingredient():
    """And those that there are."""
    with pytest.raises(RecipeError, match=r"^ingredient 'oats': pick='best'.*stratified"):
        recipe_of(pick="best", take=1)


def test_a_total_without_weights_is_refused():
    """Nothing would be a share of it."""
    recipe = DatasetRecipe("r", total=3).add_ingredient("oats", numbers(8), take=2)

    with pytest.raises(RecipeError, match=r"total=3.*weight="):
        recipe.bake()


# Bakes ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [4, None, "rays", dict])
def test_what_is_no_engine_is_refused(engine):
    """A number of threads has a place of its own."""
    with pytest.raises(ConfigError, match=r"engine=.*LocalEngine\(n_workers=4\)"):
        recipe_of().bake(engine=engine)


def test_a_budget_is_for_rows_that_may_fail():
    """As on the command line: where the first bad row ends the bake there is nothing to spend."""
    with pytest.raises(ConfigError, match=r"budget=0\.1 is for on_error='skip' or 'quarantine'"):
        recipe_of().bake(budget=0.1)


def test_bake_has_all_that_a_recipe_bakes_with():
    """A budget, and progress."""
    told: list[Any] = []
    failing = recipe_of().prepare_step("fail", lambda row: row if row["x"] < 5 else 1 / 0)

    buffer = bake(failing, on_error="skip", budget=3, progress=lambda *each: told.append(each))

    assert (len(buffer), len(told)) == (5, 1)
    with pytest.raises(BudgetSpent):
        bake(failing, on_error="skip", budget=2)


def test_a_result_shows_itself_in_one_line():
    """No tables: this is what a notebook shows after a bake."""
    assert repr(recipe_of().bake()) == "<BakeResult r: 8 rows, 0 rejected>"


# Into a buffer --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("into", [[], {}, 3, DatasetRecipe("other")])
def test_into_is_a_buffer(into):
    """What is none would get rows that nobody sees."""
    with pytest.raises(ConfigError, match=r"into=.*DatasetBuffer"):
        recipe_of().bake(into=into)


def guarded(**rules: Any) -> DatasetBuffer:
    """A buffer that lets in small numbers only."""
    return DatasetBuffer(guard=Suite("small").expect("x", at_most=4).on(**rules))


def test_what_the_buffer_s_own_guard_drops_did_not_enter():
    """Report, rejects, lineage and rows are about those that did; the guard is asked once."""
    buffer = guarded(error="drop")

    result = recipe_of().bake(into=buffer)

    assert buffer.to_pydict()["x"] == xs(result) == [0, 1, 2, 3, 4]
    assert (result.report.n_rows, result.report.shares, result.report.n_rejected) == (5, {"oats": 5}, 3)
    assert len(result.lineage) == 5
    assert (line(result, "guard").rows_in, line(result, "guard").rejected) == (8, 3)
    assert result.rejects.column("row").to_pylist() == [5, 6, 7]
    assert (buffer.rejected.n_rows, buffer.rejected.n_appends) == (3, 1)


def test_a_buffer_whose_guard_refuses_stays_as_it_was():
    """Also where it drops more than the budget allows."""
    refusing, dropping = guarded(error="refuse"), guarded(error="drop")

    with pytest.raises(DataRefused):
        recipe_of().bake(into=refusing)
    with pytest.raises(BudgetSpent):
        recipe_of().bake(into=dropping, on_error="skip", budget=2)

    assert len(refusing) == len(dropping) == 0


def test_a_guard_that_finds_nothing_changes_nothing():
    """All rows enter, and no line is added."""
    buffer = guarded(error="drop")

    result = recipe_of(where="x < 3").bake(into=buffer)

    assert (len(buffer), result.report.n_rows, len(result.report.lines)) == (3, 3, 1)
