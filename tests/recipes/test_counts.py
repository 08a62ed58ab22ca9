"""What a report counts: every row that was read is somewhere, once."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pyarrow as pa
import pytest

from poolish import DatasetRecipe
from poolish.errors import BudgetSpent
from poolish.guards.checks.suite import Suite
from poolish.recipes import baking, pipeline
from poolish.recipes.engine import LocalEngine
from poolish.recipes.report import N_REASONS, reasons_of
from tests.recipes.kitchen import line, made, numbers, rejects, write, xs


def test_rows_that_a_filter_fails_for_are_rejected():
    """With their place, in the result and in the report, also where they are counted first."""
    for take in (None, 2):
        recipe = DatasetRecipe("r").add_ingredient("a", numbers(4), where=lambda row: 6 // row["x"] > 0, take=take)
        result = recipe.bake(on_error="skip")

        assert [reject[:4] for reject in rejects(result)] == [("a", "", 0, "where")]
        assert (result.report.n_rejected, line(result, "a").rejected) == (1, 1)


def test_what_a_guard_drops_is_told():
    """As a line of the report and among the rejects, also behind a shuffle."""
    guard = Suite("small").expect("x", between=(0, 9)).on(error="drop")
    recipe = DatasetRecipe("r").add_ingredient("a", numbers(20)).prepare_step("mix", "shuffle")

    result = recipe.bake(guard=guard)

    told = line(result, "guard")
    assert (told.rows_in, told.rows_out, told.rejected, result.report.n_rejected) == (20, 10, 10, 10)
    assert sorted(reject[2] for reject in rejects(result)) == list(range(10, 20))
    assert [result.lineage.why(i).row for i in range(10)] == xs(result)


def test_rows_that_are_repeated_were_read_once():
    """The report counts rows in as the source has them, and rows of steps as often as they come."""
    recipe = DatasetRecipe("r").add_ingredient("a", numbers(4), where="x > 0", take=8, on_short="repeat")

    result = recipe.prepare_step("same", "map", columns={"x": "x + 1"}).bake()

    first, second = line(result, "a"), line(result, "same")
    assert (first.rows_in, first.filtered, first.rows_out) == (4, 1, 8)
    assert (second.rows_in, second.rows_out) == (8, 8)


def test_an_ingredient_without_rows_has_a_share_behind_a_shuffle():
    """Of nothing."""
    recipe = DatasetRecipe("r").add_ingredient("a", numbers(3)).add_ingredient("none", numbers(3), where="x > 9")

    assert recipe.prepare_step("mix", "shuffle").bake().report.shares == {"a": 3, "none": 0}


def test_a_fraction_of_a_budget_is_one_of_the_rows_that_are_read():
    """Not of those that are left by a filter."""
    odd = made("def step(row):\n    if row['x'] % 2: raise ValueError('odd')\n    return row")
    recipe = DatasetRecipe("r").add_ingredient("a", numbers(10), where="x < 2").prepare_step("s", odd)

    assert recipe.bake(on_error="skip", budget=0.1).report.n_rejected == 1
    with pytest.raises(BudgetSpent, match="1 of 10 rows"):
        recipe.bake(on_error="skip", budget=0.09)


def test_rare_reasons_are_counted_in_rows():
    """A reason that many rows have may be among the rare ones."""
    found = reasons_of([{"step": "s", "reason": f"bad {i}"} for i in range(N_REASONS + 2)] * 3)

    assert (found[-1].reason, found[-1].rows) == ("2 other reasons", 6)


def test_a_share_in_tokens_is_achieved_in_tokens():
    """In the unit that was asked for."""
    table = pa.table({"x": range(20), "n": [7] * 20})
    recipe = DatasetRecipe("r", total=50, unit="tokens", tokens="n").add_ingredient("a", table, weight=1)

    told = json.loads(recipe.bake().report.to_json())["lines"][0]

    assert (told["asked"], told["achieved"], told["rows_out"]) == (50, 56, 8)


def small(n):
    """A function that fails for rows below a number."""
    return made("def step(row):\n    if row['x'] < n: raise ValueError('small')\n    return row", n=n)


@pytest.mark.parametrize("sizes", [[1000], [10, 990], [990, 10]])
def test_a_budget_does_not_depend_on_the_cut(sizes, tmp_path):
    """A share is one of all rows, wherever the bad ones lie."""
    first = 0
    for i, size in enumerate(sizes):
        write(tmp_path / f"{i}.parquet", numbers(size, first))
        first += size
    recipe = DatasetRecipe("r").add_ingredient("a", tmp_path).prepare_step("s", small(9))

    assert recipe.bake(on_error="skip", budget=0.009).report.n_rejected == 9
    with pytest.raises(BudgetSpent, match="9 of 1,000 rows"):
        recipe.bake(on_error="skip", budget=0.0089)


def test_a_budget_ends_a_bake_as_soon_as_it_is_spent(tmp_path):
    """Where it is known how many rows there are, no more are prepared than that takes."""
    for i in range(10):
        write(tmp_path / f"{i}.parquet", numbers(10, 10 * i))
    calls = []

    def step(row):
        calls.append(row["x"])
        raise ValueError("always")

    recipe = DatasetRecipe("r").add_ingredient("a", tmp_path).prepare_step("s", step, version=1)
    with pytest.raises(BudgetSpent):
        recipe.bake(on_error="skip", budget=0.15, engine=LocalEngine(1))

    assert len(calls) == 20


def test_a_budget_counts_what_recipes_inside_have_read():
    """And what they rejected, at the line of the recipe; what a guard drops counts too."""
    inner = DatasetRecipe("in").add_ingredient("a", numbers(100)).prepare_step("s", small(10))
    recipe = DatasetRecipe("out").add_ingredient("n", inner).add_ingredient("a", numbers(100, 200))

    result = recipe.bake(on_error="skip", budget=0.05)

    assert (line(result, "n").rejected, line(result, "a").rejected) == (10, 0)
    with pytest.raises(BudgetSpent, match="10 of 200 rows"):
        recipe.bake(on_error="skip", budget=0.04)
    guard = Suite("large").expect("x", at_least=11).on(error="drop")
    with pytest.raises(BudgetSpent, match="11 of 200 rows"):
        recipe.bake(on_error="skip", guard=guard, budget=0.05)


def test_rows_that_fail_are_lost_as_often_as_they_are_repeated():
    """And counted as often."""
    recipe = DatasetRecipe("r", total=25).add_ingredient("a", numbers(10), weight=1, on_short="repeat")

    result = recipe.prepare_step("s", small(3)).bake(on_error="skip")

    told = line(result, "s")
    assert told.rows_in == 25
    assert told.rows_in - told.rejected == told.rows_out == result.report.n_rows
    assert result.report.n_rejected == told.rejected == len(result.rejects)


def test_suites_of_one_name_count_each_for_itself():
    """The second has a number behind its name."""
    suites = (
        Suite("s").expect_unique("x").expect("x", at_most=8),
        Suite("s").expect_unique("x").expect("x", at_least=2),
    )
    recipe = DatasetRecipe("r").add_ingredient("a", numbers(10))
    for suite in suites:
        recipe.prepare_step("check", suite)

    result = recipe.bake(on_error="skip")

    assert [(line(result, name).rows_out, line(result, name).rejected) for name in ("check", "check (2)")] == [
        (9, 1),
        (7, 2),
    ]


def test_a_row_is_filtered_or_rejected():
    """Never both, and a function that fails for a row in ``where`` of a step rejects it as any other."""
    where = made("def step(row): return 6 // row['x'] > 1")
    first = DatasetRecipe("r").add_ingredient("a", numbers(5), where=where).bake(on_error="skip")
    second = (
        DatasetRecipe("r")
        .add_ingredient("a", numbers(5))
        .prepare_step("m", "map", columns={"x": "x * 10"}, where=where)
    )

    told = line(first, "a")
    assert (told.rows_in, told.filtered, told.rejected, told.rows_out) == (5, 1, 1, 3)
    result = second.bake(on_error="skip")
    assert xs(result) == [10, 20, 30, 4]
    assert [reject[:4] for reject in rejects(result)] == [("a", "", 0, "m")]
    with pytest.raises(ZeroDivisionError) as caught:
        second.bake()
    assert "ingredient 'a', row 0, step 'm'" in caught.value.__notes__[0]


def test_time_is_counted_where_it_is_spent(monkeypatch):
    """A slow step is told as such, once, and not at the barrier behind it."""
    clock = [0.0]
    for module in (baking, pipeline):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def slow(row):
        clock[0] += 1
        return row

    recipe = DatasetRecipe("r").add_ingredient("a", numbers(20)).prepare_step("slow", slow, version=1)
    result = recipe.prepare_step("mix", "shuffle").bake(engine=LocalEngine(1))

    assert [(each.name, each.seconds) for each in result.report.lines] == [("a", 0), ("slow", 20), ("mix", 0)]


def test_few_reasons_are_told():
    """The most frequent; the others are in the report itself."""
    step = made("def step(row): raise ValueError(row['x'] % 7)")
    report = DatasetRecipe("r").add_ingredient("a", numbers(20)).prepare_step("s", step).bake(on_error="skip").report

    assert str(report).count("rejected") == 1 + 6
    assert str(report).endswith("  rejected 5 for other reasons: see report.reasons")
