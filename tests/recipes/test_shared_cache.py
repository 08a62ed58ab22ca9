"""One cache for everything: whatever differs between two recipes, neither gets the rows of the other."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from poolish import DatasetRecipe
from poolish.recipes.engine import LocalEngine
from tests.recipes.kitchen import cached, content, made, numbers, write, xs


def key_cases():
    files = {"x": numbers(30), "y": numbers(30)}
    return {
        "seed": [{"seed": 1}, {"seed": 2}],
        "filter": [{"where": "x > 3"}, {"where": "x > 9"}],
        "ingredient": [{"name": "a"}, {"name": "b"}],
        "count": [{"take": 4}, {"take": 9}, {"take": 2}],
        "column": [{"pick": "top(x)"}, {"pick": "top(score)"}],
        "rows": [{"pick": "latest"}, {"pick": "oldest"}],
        "pick and hash": [{"pick": "latest"}, {"pick": "hash"}, {"pick": "stratified(group)"}],
        "files": [{"file": each} for each in files],
    }


@pytest.mark.parametrize("name", list(key_cases()))
@pytest.mark.parametrize("is_file", [False, True])
def test_one_cache_holds_for_all_that_may_be_asked_of_a_source(name, is_file, tmp_path):
    """Whatever differs between two recipes, neither gets the rows of the other."""
    for file in ("x", "y"):
        (tmp_path / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in numbers(30).to_pylist()))
    for options in key_cases()[name] * 2:
        options = {"take": 5, "seed": 0, "name": "a", "file": "x", **options}
        recipe = DatasetRecipe("r", seed=options.pop("seed"))
        source = tmp_path / f"{options.pop('file')}.jsonl"
        recipe.add_ingredient(options.pop("name"), source if is_file else numbers(30), **options)
        recipe.prepare_step("m", "map", columns={"x": "x + 1"})

        assert content(recipe.bake(cache=tmp_path / "cache")) == content(recipe.bake())


def test_one_cache_holds_for_counts_in_tokens(tmp_path):
    """Of one column, and of another."""
    table = pa.table({"x": range(30), "n": [1] * 30, "m": [3] * 30})
    for tokens in ("n", "m", "n"):
        recipe = DatasetRecipe("r", total=9, unit="tokens", tokens=tokens).add_ingredient("a", table, weight=1)

        assert xs(recipe.bake(cache=tmp_path)) == xs(recipe.bake())


def test_rows_that_were_skipped_are_not_kept_for_who_raises(tmp_path):
    """A filter that fails for a row is an error again, also where rows are counted first."""
    for take in (None, 2):
        recipe = DatasetRecipe("r").add_ingredient(
            "a", numbers(4), where=made("def step(row): return 6 // row['x'] > 0"), take=take
        )
        recipe.bake(cache=tmp_path, on_error="skip")
        with pytest.raises(ZeroDivisionError):
            recipe.bake(cache=tmp_path)


def test_equal_fragments_of_one_source_are_kept_each_by_itself(tmp_path):
    """Files with the same bytes are chosen from independently."""
    for name in "ab":
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / f"{name}.jsonl").write_text("".join(f'{{"x": {i}}}\n' for i in range(30)))
    for take in (0.5, 11):
        recipe = DatasetRecipe("r").add_ingredient("web", tmp_path / "data", take=take)
        for _ in range(2):
            assert content(recipe.bake(cache=tmp_path / "cache")) == content(recipe.bake())


def test_fewer_rows_with_lists_are_taken_from_what_was_kept(tmp_path):
    """A column that no step has made has the type it had, whichever rows are left."""
    write(tmp_path / "a.parquet", pa.table({"x": range(40), "tags": [[i] for i in range(40)]}))

    def recipe(take):
        recipe = DatasetRecipe("r").add_ingredient("a", tmp_path / "a.parquet", take=take)
        return recipe.prepare_step("m", "map", columns={"x": "x + 1"})

    recipe(1.0).bake(cache=tmp_path / "cache")
    result = recipe(0.5).bake(cache=tmp_path / "cache")

    assert cached(result) == (1, 1)
    assert content(result) == content(recipe(0.5).bake())


def test_a_recipe_inside_is_kept_in_the_cache_of_the_outer_one(tmp_path):
    """Baked again, no step inside runs again; and the engine is that of the outer bake."""
    calls, tasks = [], []

    def step(row):
        calls.append(row["x"])
        return row

    class Watched(LocalEngine):
        def run(self, function, given):
            tasks.extend(given)
            return super().run(function, given)

    for n_tasks in (2, 0):
        inner = DatasetRecipe("in").add_ingredient("a", numbers(3)).prepare_step("count", step, version=1)
        tasks.clear()
        DatasetRecipe("out").add_ingredient("in", inner).bake(cache=tmp_path, engine=Watched(1))
        assert len(tasks) == n_tasks

    assert calls == [0, 1, 2]


def test_a_file_that_has_two_names_is_named_as_each_ingredient_has_it(tmp_path):
    """A path is named below its root, and a glob has another root than a file."""
    path = write(tmp_path / "data" / "x.parquet", numbers(10))
    recipe = (
        DatasetRecipe("r").add_ingredient("a", path, take=3).add_ingredient("b", tmp_path / "*" / "x.parquet", take=3)
    )

    result = recipe.bake()

    assert {(why.ingredient, why.file) for why in map(result.lineage.why, range(6))} == {
        ("a", "x.parquet"),
        ("b", "data/x.parquet"),
    }
    assert xs(result)[3:] == xs(DatasetRecipe("r").add_ingredient("b", tmp_path / "*" / "x.parquet", take=3).bake())


def test_what_is_done_with_bad_rows_matters_only_where_there_are_some(tmp_path):
    """After an error one goes on with on_error="skip": what had no bad rows is not baked again."""
    for i in range(4):
        write(tmp_path / "data" / f"{i}.parquet", numbers(5, 5 * i))
    step = made("def step(row):\n    if row['x'] == 17: raise ValueError('bad')\n    return row")
    recipe = DatasetRecipe("r").add_ingredient("a", tmp_path / "data").prepare_step("s", step)
    cache, engine = tmp_path / "cache", LocalEngine(1)
    with pytest.raises(ValueError, match="bad"):
        recipe.bake(cache=cache, engine=engine)

    assert cached(recipe.bake(cache=cache, on_error="skip", engine=engine)) == (3, 4)
    again = recipe.bake(cache=cache, on_error="quarantine", engine=engine)
    assert cached(again) == (4, 4)
    assert content(again) == content(recipe.bake(on_error="quarantine"))
    with pytest.raises(ValueError, match="bad"):
        recipe.bake(cache=cache, engine=engine)


def test_entries_that_changed_places_are_baked_again(tmp_path):
    """Each knows its own name, so a file that was moved is no result of another."""
    for i in range(2):
        write(tmp_path / "data" / f"{i}.parquet", numbers(5, 5 * i))
    recipe = DatasetRecipe("r").add_ingredient("a", tmp_path / "data")
    recipe.bake(cache=tmp_path / "cache")
    one, other = (tmp_path / "cache").rglob("*.piece")
    one_bytes, other_bytes = one.read_bytes(), other.read_bytes()
    one.write_bytes(other_bytes)
    other.write_bytes(one_bytes)

    result = recipe.bake(cache=tmp_path / "cache")

    assert cached(result) == (0, 2)
    assert xs(result) == list(range(10))
