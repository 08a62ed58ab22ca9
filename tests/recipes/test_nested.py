"""A recipe as an ingredient of another: rows keep their names, choices stay, and changes inside are seen outside."""

from __future__ import annotations

import pyarrow as pa
import pytest

from poolish import DatasetBuffer, DatasetRecipe, col
from poolish.errors import PoolishError, RecipeError
from poolish.recipes.cache import Cache
from poolish.recipes.engine import LocalEngine
from poolish.recipes.sources.source import RecipeSource
from tests.recipes.kitchen import content, cut, numbers, rejects, rows_of, shelf, xs


def inner(source, **options):
    """A recipe with a filter and a step that makes two of some rows."""
    recipe = DatasetRecipe("inner", seed=3).add_ingredient("web", source, where=col.score > 2, **options)
    return recipe.prepare_step("twins", lambda row: [row] * (1 + row["x"] % 2))


def test_a_nested_recipe_gives_the_rows_that_it_bakes():
    """Filtered and prepared inside, then filtered and prepared outside."""
    outer = DatasetRecipe("outer").add_ingredient("in", inner(numbers(40)), where=col.x > 10)
    outer.prepare_step("ten", "map", columns={"x": col.x * 10})

    assert xs(outer.bake()) == [10 * x for x in xs(inner(numbers(40)).bake()) if x > 10]


def test_recipes_nest_as_deep_as_you_like():
    """A recipe of a recipe of a recipe."""
    recipe = DatasetRecipe("r0").add_ingredient("a", numbers(20))
    for i in range(1, 6):
        recipe = DatasetRecipe(f"r{i}").add_ingredient("a", recipe, where=col.x != i)

    assert xs(recipe.bake()) == [0, *range(6, 20)]


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 7, 5), (65_536, 131_072, 16_384)])
def test_the_choice_from_a_nested_recipe_does_not_depend_on_the_cut(sizes, tmp_path):
    """Rows are chosen by what they are in there."""
    folder = shelf(tmp_path, 3, 30, 7)
    want = content(DatasetRecipe("o").add_ingredient("in", inner(folder), take=0.5).bake())
    with cut(*sizes):
        for n_workers in (1, 3):
            outer = DatasetRecipe("o").add_ingredient("in", inner(folder), take=0.5)
            assert content(outer.bake(engine=LocalEngine(n_workers))) == want


def test_rows_that_come_inside_change_no_choice_outside():
    """A row's name is made of what it is in there, not of its place."""
    buffer = DatasetBuffer()
    buffer.append(numbers(60, 1_000))

    def chosen():
        recipe = DatasetRecipe("in").add_ingredient("first", buffer).add_ingredient("second", numbers(60))
        return xs(DatasetRecipe("out").add_ingredient("in", recipe, take=0.4).bake())

    before = chosen()
    buffer.append(numbers(25, 2_000))

    assert [x for x in chosen() if x < 2_000] == before


def test_children_of_one_row_are_chosen_each_for_itself():
    """Two rows that one row became are two rows."""
    twins = DatasetRecipe("in").add_ingredient("a", numbers(200)).prepare_step("two", lambda row: [row, row])
    result = DatasetRecipe("out").add_ingredient("in", twins, take=0.5).bake()
    n_of = [xs(result).count(x) for x in range(200)]

    assert 150 < len(xs(result)) < 250
    assert set(n_of) == {0, 1, 2}


@pytest.mark.parametrize("pick", ["latest", "oldest", "top(x)", "stratified(group)", "hash"])
def test_a_nested_recipe_is_picked_from_like_any_source(pick):
    """The newest are the last that it gives."""
    recipe = DatasetRecipe("in").add_ingredient("a", numbers(30))
    found = xs(DatasetRecipe("out").add_ingredient("in", recipe, take=6, pick=pick).bake())

    assert len(found) == 6
    if pick in ("latest", "top(x)"):
        assert found == list(range(24, 30))
    if pick == "oldest":
        assert found == list(range(6))


def test_a_change_inside_is_seen_through_the_cache(tmp_path):
    """Data, filter, seed or step of the inner recipe: the outer bake is never stale."""
    buffer = DatasetBuffer()
    buffer.append(numbers(20))
    recipes = []
    for where, k, seed in ((col.x > 3, 1, 0), (col.x > 4, 1, 0), (col.x > 4, 2, 0), (col.x > 4, 2, 9)):
        recipe = DatasetRecipe("in", seed=seed).add_ingredient("a", buffer, where=where, take=0.6)
        recipes.append(recipe.prepare_step("k", "map", columns={"x": col.x * k}))

    for recipe in (*recipes, *recipes):
        outer = DatasetRecipe("out").add_ingredient("in", recipe, take=0.7)
        assert content(outer.bake(cache=tmp_path)) == content(outer.bake())
        buffer.append(numbers(1, 100))


def test_a_nested_recipe_is_baked_once_for_a_bake():
    """Not once for each fragment, nor for looking and for reading."""
    calls: list[int] = []

    def step(row):
        calls.append(row["x"])
        return row

    recipe = DatasetRecipe("in").add_ingredient("a", numbers(10)).prepare_step("count", step, version=1)
    with cut(2):
        DatasetRecipe("out").add_ingredient("in", recipe, take=4).bake(engine=LocalEngine(1))

    assert sorted(calls) == list(range(10))


class Watched(LocalEngine):
    """An engine that remembers which tasks it was given."""

    def __init__(self):
        super().__init__(1)
        self.n_tasks = 0

    def run(self, function, tasks):
        self.n_tasks += len(tasks)
        return super().run(function, tasks)


def test_a_nested_recipe_is_baked_as_the_outer_one(tmp_path):
    """By the same engine, with the same cache, and with the same treatment of bad rows."""

    def careful(row):
        if row["x"] == 2:
            raise ValueError("two")
        return row

    inner = DatasetRecipe("inner").add_ingredient("a", [{"x": 1}, {"x": 2}]).prepare_step("careful", careful)
    engine, cache = Watched(), Cache(tmp_path)
    source = RecipeSource(inner)

    source.prepare(engine, cache, "skip")

    assert engine.n_tasks > 0
    assert list(tmp_path.rglob("*.piece"))
    assert rows_of(source) == [{"x": 1}]
    assert source.lineage.why(0).row == 0
    assert source.rejects.num_rows == 1


def test_where_a_nested_row_came_from_is_told(tmp_path):
    """``why`` leads to the ingredient, the file and the row inside."""
    folder = shelf(tmp_path, 2, 5)
    recipe = DatasetRecipe("in").add_ingredient("web", folder)
    result = DatasetRecipe("out").add_ingredient("breads", recipe).bake()

    told = str(result.lineage.why(7))

    assert all(word in told for word in ("breads", "web", "001.parquet", "row 2"))


def test_errors_inside_name_both():
    """The ingredient outside, the ingredient and the step inside."""
    recipe = DatasetRecipe("in").add_ingredient("web", numbers(3)).prepare_step("bad", lambda row: 1 // 0)

    with pytest.raises(ZeroDivisionError) as caught:
        DatasetRecipe("out").add_ingredient("breads", recipe).bake()

    told = "".join(caught.value.__notes__)
    assert all(word in told for word in ("breads", "web", "bad", "row 0"))


def test_rows_that_fail_inside_may_be_left_out_and_are_told():
    """``on_error`` holds for the whole bake."""
    recipe = DatasetRecipe("in").add_ingredient("web", numbers(3)).prepare_step("bad", lambda row: {"x": 6 // row["x"]})

    result = DatasetRecipe("out").add_ingredient("breads", recipe).bake(on_error="skip")

    assert xs(result) == [6, 3]
    assert [reject[3] for reject in rejects(result)] == ["bad"]


def test_a_recipe_made_of_itself_is_refused():
    """Through another it holds what it was when that one took it; twice the same recipe is no circle."""
    one, two = DatasetRecipe("one").add_ingredient("a", [{"x": 1}]), DatasetRecipe("two")
    two.add_ingredient("one", one)
    one.add_ingredient("two", two)
    one.add_ingredient("two again", two)

    with pytest.raises(RecipeError, match="recipe 'one' cannot be made of itself"):
        one.add_ingredient("me", one)
    assert xs(one.bake()) == [1, 1, 1]


def test_a_nested_recipe_is_taken_as_it_is():
    """Changing it afterwards, or what it holds, changes neither the rows nor the fingerprint of the outer one."""
    inner = DatasetRecipe("in").add_ingredient("a", numbers(2))
    middle = DatasetRecipe("middle").add_ingredient("in", inner)
    outer = DatasetRecipe("out").add_ingredient("middle", middle)
    before = xs(outer.bake())

    inner.add_ingredient("b", numbers(1, 5)).prepare_step("none", "filter", keep="x < 0")
    middle.add_ingredient("b", numbers(1, 5))
    inner.seed = 7

    assert xs(outer.bake()) == before == [0, 1]


def test_an_empty_nested_recipe_gives_no_rows():
    """Rows that are all filtered away; one without ingredients is refused by its name."""
    filtered = DatasetRecipe("in").add_ingredient("a", numbers(5), where=col.x > 9)
    outer = DatasetRecipe("out").add_ingredient("none", filtered).add_ingredient("some", numbers(2))
    assert xs(outer.bake()) == [0, 1]

    for make in (DatasetRecipe.bake, DatasetRecipe.explain):
        with pytest.raises(RecipeError, match="recipe 'in' has no ingredient"):
            make(DatasetRecipe("out").add_ingredient("none", DatasetRecipe("in")))


def test_a_nested_recipe_that_does_not_fit_is_told():
    """With the name it has outside."""
    recipe = DatasetRecipe("in").add_ingredient("a", [{"y": 1}])
    outer = DatasetRecipe("out").add_ingredient("some", pa.table({"x": [1]})).add_ingredient("breads", recipe)

    with pytest.raises(PoolishError, match="breads"):
        outer.bake()
