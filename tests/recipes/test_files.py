"""Recipes as files: the same recipe in YAML, TOML and JSON, read strictly, never executed, known by a fingerprint."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolish import DatasetBuffer, DatasetRecipe, col, register_step
from poolish.errors import LimitExceeded, PoolishError, RecipeError
from poolish.guards import Suite
from poolish.recipes import stratified, top
from poolish.recipes.description import INGREDIENT, RECIPE, STEP, STEP_KEYS
from poolish.recipes.models import Ingredient, RecipeFile, Step, json_schema
from poolish.recipes.serialization import parse
from poolish.recipes.steps import registry as steps
from poolish.recipes.steps.registry import BUILT_IN
from poolish.recipes.steps.registry import STEPS as OPTIONS
from tests.effort import times

ENDINGS = (".yaml", ".toml", ".json")
INGREDIENT_KEYS = Ingredient.keys()
from_dict = DatasetRecipe.from_dict


def shout(row: dict[str, Any], mark: Any = "!", **more: Any) -> dict[str, Any]:
    return {**row, "text": f"{row['text'].upper()}{mark}"}


def cut(row: dict[str, Any], *, most: int, least: int = 0) -> dict[str, Any]:
    return row


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of these tests, forgotten afterwards."""
    monkeypatch.setattr(steps, "_REGISTRY", {"shout": shout, "cut": cut})


def breads() -> DatasetRecipe:
    """A recipe with something of everything."""
    flour = DatasetRecipe("flour", seed=3).add_ingredient("mill", "mill/*.csv", where=col.kind == "rye")
    recipe = DatasetRecipe("breads", seed=7, total=1000, unit="tokens", tokens="n")
    recipe.add_ingredient("web", "web/*.parquet", where=(col.lang == "en") & (col.quality > 0.7), take=0.3)
    recipe.add_ingredient("gold", ["gold/a.jsonl", "s3://bucket/b.jsonl"], weight=2, on_short="repeat")
    recipe.add_ingredient("best", Path("best.parquet"), take=5, pick=top("score"))
    recipe.add_ingredient("flour", flour, take=1.0, pick=stratified("kind"))
    recipe.prepare_step("loud", shout, where=col.ingredient == "web", version=2, mark="?")
    recipe.prepare_step("longer", "map", columns={"length": col.text.length(), "half": "length(text) / 2"})
    recipe.prepare_step("good", Suite("good").expect("quality", between=(0, 1)))
    return recipe.prepare_step("mix", "shuffle")


def written(folder: Path, text: str, name: str = "recipe.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def problems(told: Any) -> list[str]:
    """What is said to be wrong."""
    with pytest.raises(RecipeError) as error:
        from_dict(told)
    lines = str(error.value).splitlines()
    return [line.strip() for line in lines[1:]] or [lines[0].removeprefix("recipe: ")]


def step(**keys: Any) -> dict[str, Any]:
    return {"name": "r", "instructions": [{"step": "s", **keys}]}


def ingredient(**keys: Any) -> dict[str, Any]:
    return {"name": "r", "instructions": [{"ingredient": "i", "source": "a.parquet", **keys}]}


# Round trips ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_saved_recipe_is_the_same_recipe(tmp_path: Path, ending: str):
    """Everything that can be said comes back, and saving that again gives the same file."""
    first, second = tmp_path / f"first{ending}", tmp_path / f"second{ending}"

    breads().save(first)
    again = DatasetRecipe.load(first)
    again.save(second)

    assert again.fingerprint == breads().fingerprint
    assert [each.name for each in again.instructions] == [each.name for each in breads().instructions]
    assert DatasetRecipe.load(second).fingerprint == breads().fingerprint


def test_a_file_is_what_a_person_would_write():
    """The format is pinned: these texts are in people's repositories."""
    recipe = DatasetRecipe("breads", seed=7)
    recipe.add_ingredient("rye", ["a.csv", "b.csv"], where=col.flour == "rye", take=3, pick=top("stars"))
    recipe.prepare_step("loud", "shout", where="stars > 2", version=2, mark="?")

    assert recipe.to_yaml() == (
        "name: breads\n"
        "seed: 7\n"
        "instructions:\n"
        "- ingredient: rye\n"
        "  source: [a.csv, b.csv]\n"
        "  where: flour == 'rye'\n"
        "  take: 3\n"
        "  pick: top(stars)\n"
        "- step: loud\n"
        "  use: shout\n"
        "  where: stars > 2\n"
        "  version: 2\n"
        "  mark: '?'\n"
    )
    assert json.loads(recipe.to_json()) == recipe.to_dict() == parse(recipe.to_toml(), ".toml")


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
# Few letters, but those that formats trip over; the same ones again and again, because drawing text is slow.
names = st.sampled_from(
    [
        "x",
        "no",
        "1",
        "1e3",
        "~",
        "é\u2028",
        "a b",
        "a.b",
        "'\"`",
        "\n\t ",
        "\x00\x7f\x85",
        "#: {",
        "\U0001f923",
    ]
)
numbers = st.integers(-5, 5) | st.floats(-5, 5)
constants = numbers | st.booleans() | st.none()
expressions = st.builds(lambda name, value: col[name] > value, names, numbers) | st.builds(
    lambda name, values: col[name].is_in(values) & ~col[name].is_null(), names, st.lists(names, min_size=1, max_size=3)
)
wheres = st.none() | expressions | expressions.map(str)
paths = names | names.map(Path) | st.just("s3://bucket/*.parquet") | st.lists(names, min_size=1, max_size=3)
amounts = st.fixed_dictionaries(
    {},
    optional={
        "pick": st.sampled_from(["hash", "latest", "oldest"]) | names.map(top) | names.map(stratified),
        "on_short": st.sampled_from(["error", "repeat", "accept"]),
    },
)
takes = st.integers(0, 9).map(lambda n: {"take": n}) | st.floats(0, 1).map(lambda x: {"take": x})
takes |= st.floats(0.01, 9).map(lambda x: {"weight": x}) | st.just({})
built_ins = (
    st.tuples(
        st.just("map"), st.fixed_dictionaries({"columns": st.dictionaries(names, expressions | constants, max_size=3)})
    )
    | st.tuples(st.just("filter"), st.fixed_dictionaries({"keep": expressions | expressions.map(str)}))
    | st.tuples(st.just("select"), st.fixed_dictionaries({"columns": st.lists(names).map(tuple)}))
    | st.tuples(st.just("rename"), st.fixed_dictionaries({"columns": st.dictionaries(names, names)}))
    | st.tuples(st.just("fill_nulls"), st.fixed_dictionaries({"columns": st.dictionaries(names, numbers | names)}))
    | st.tuples(st.just("dedup"), st.fixed_dictionaries({}, optional={"columns": st.none() | st.lists(names)}))
    | st.tuples(st.just("limit"), st.fixed_dictionaries({"n": st.integers(0, 10**30)}))
    | st.tuples(st.just("standardise"), st.fixed_dictionaries({"column": names}, optional={"mean": numbers}))
)
functions = st.tuples(
    st.sampled_from([shout, "shout"]), st.dictionaries(st.sampled_from(["mark", "extra", "on"]), plain)
)


@st.composite
def recipes(draw: st.DrawFn, depth: int = 1) -> DatasetRecipe:
    total = draw(st.none() | st.integers(1, 10**12))
    unit = draw(st.sampled_from([{}, {"tokens": "n"}, {"unit": "tokens", "tokens": "n"}]))
    recipe = DatasetRecipe(draw(names), seed=draw(st.integers(0, 2**64 - 1)), total=total, **unit)
    sources = paths | recipes(depth - 1) if depth else paths
    for name in draw(st.lists(names, unique=True, max_size=3)):
        how_much = draw(takes)
        keys = {key: each for key, each in draw(amounts).items() if key != "pick" or how_much} | how_much
        recipe.add_ingredient(name, draw(sources), draw(wheres), **keys)
    for made, options in draw(st.lists(built_ins | functions, max_size=3)):
        version = draw(st.none() | st.integers(0, 9) | names)
        recipe.prepare_step(draw(names), made, draw(wheres), version, **options)
    return recipe


@settings(max_examples=times(50))
@given(recipe=recipes(), ending=st.sampled_from(ENDINGS))
def test_every_recipe_comes_back_with_its_fingerprint(recipe: DatasetRecipe, ending: str):
    """Whatever a recipe says, a file says the same, wherever it lies; or it cannot be said there, and that is told."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"recipe{ending}")
        try:
            recipe.save(path)
        except RecipeError as error:
            if re.search("TOML has no null|JSON has no NaN", str(error)):
                return
            raise

        again = DatasetRecipe.load(path)

    assert again.fingerprint == recipe.fingerprint
    assert from_dict(again.to_dict()).fingerprint == recipe.fingerprint


def test_relative_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder with a recipe and its data can be moved, and the recipe be baked from anywhere."""
    home = tmp_path / "home"
    (home / "data").mkdir(parents=True)
    pa.parquet.write_table(pa.table({"n": [1, 2]}), home / "data" / "x.parquet")
    monkeypatch.chdir(home)
    DatasetRecipe("r").add_ingredient("i", "data/*.parquet").save(home / "recipe.toml")
    monkeypatch.chdir("/")

    moved = home.rename(tmp_path / "moved")

    assert DatasetRecipe.load(moved / "recipe.toml").bake().buffer.to_pydict() == {"n": [1, 2]}


def test_paths_are_written_as_they_were_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Relative stays relative, absolute stays absolute unless it lies in the recipe's folder, addresses stay."""
    (tmp_path / "recipes").mkdir()
    monkeypatch.chdir(tmp_path)
    given_paths = ["data/a.csv", "recipes/b.csv", str(tmp_path / "recipes" / "c.csv"), "/data/d.csv", "s3://e/f.csv"]
    recipe = DatasetRecipe("r").add_ingredient("i", given_paths)

    recipe.save("recipes/r.json")

    told = json.loads(Path("recipes/r.json").read_text())
    assert told["instructions"][0]["source"] == ["../data/a.csv", "b.csv", "c.csv", "/data/d.csv", "s3://e/f.csv"]
    assert DatasetRecipe.load("recipes/r.json").fingerprint == recipe.fingerprint


def test_a_failed_save_leaves_the_file_as_it_was(tmp_path: Path):
    """The file is replaced when everything else has gone well."""
    path = tmp_path / "r.yaml"
    DatasetRecipe("old").save(path)

    with pytest.raises(RecipeError, match="rows in memory"):
        DatasetRecipe("new").add_ingredient("i", [{"n": 1}]).save(path)

    assert DatasetRecipe.load(path).name == "old"
    assert os.listdir(tmp_path) == ["r.yaml"]


# Recipes in recipes -----------------------------------------------------------------------------------------------


def test_a_recipe_may_be_another_file(tmp_path: Path):
    """Named by its path, relative to the file that names it; its own paths are relative to itself."""
    (tmp_path / "inner").mkdir()
    pa.parquet.write_table(pa.table({"n": [1, 2]}), tmp_path / "inner" / "x.parquet")
    written(tmp_path / "inner", "name: a\ninstructions: [{ingredient: x, source: x.parquet}]", "a.yaml")
    outer = "name: b\ninstructions: [{ingredient: a, source: {recipe: inner/a.yaml}}]"

    recipe = DatasetRecipe.load(written(tmp_path, outer))

    assert recipe.bake().buffer.to_pydict() == {"n": [1, 2]}
    recipe.save(tmp_path / "again.json")
    assert DatasetRecipe.load(tmp_path / "again.json").fingerprint == recipe.fingerprint


def test_a_recipe_made_of_itself_is_refused(tmp_path: Path):
    """Also over a detour."""
    written(tmp_path, "name: a\ninstructions: [{ingredient: b, source: {recipe: b.yaml}}]", "a.yaml")
    written(tmp_path, "name: b\ninstructions: [{ingredient: a, source: {recipe: a.yaml}}]", "b.yaml")

    with pytest.raises(RecipeError, match="a recipe cannot be made of itself"):
        DatasetRecipe.load(tmp_path / "a.yaml")


def test_files_that_double_with_each_level_are_refused(tmp_path: Path):
    """Fourteen small files would be sixteen thousand recipes."""
    for i in range(14):
        two = [{"ingredient": str(k), "source": {"recipe": f"{i + 1}.json"}} for k in range(2)]
        told = {"name": str(i), "instructions": two}
        written(tmp_path, json.dumps(told), f"{i}.json")
    written(tmp_path, json.dumps({"name": "last", "instructions": []}), "14.json")

    with pytest.raises(RecipeError, match="bake some first"):
        DatasetRecipe.load(tmp_path / "0.json")


def test_problems_in_another_file_name_it(tmp_path: Path):
    """And those of both files are told together."""
    written(tmp_path, "name: a\nsede: 1\ninstructions: []", "a.yaml")
    sources = "[{ingredient: a, source: {recipe: a.yaml}}, {ingredient: b, source: {recipe: none.yaml}}]"

    with pytest.raises(RecipeError) as error:
        DatasetRecipe.load(written(tmp_path, f"name: b\ninstructions: {sources}"))

    assert str(error.value).splitlines()[1:] == [
        "  instructions[0].source: a.yaml: no key 'sede' here; did you mean 'seed'?",
        "  instructions[1].source: none.yaml cannot be read: No such file or directory",
    ]


# The fingerprint --------------------------------------------------------------------------------------------------


def variants() -> Iterator[tuple[str, DatasetRecipe]]:
    """The same recipe with one thing changed, each that decides the result."""

    def made(*, setting: Any = None, first: Any = None, last: Any = None) -> DatasetRecipe:
        recipe = DatasetRecipe(**{"name": "r", "seed": 1, "total": 9, "tokens": "n", **(setting or {})})
        recipe.add_ingredient(**{"name": "i", "source": "a.csv", "where": "x > 1", "weight": 1.0, **(first or {})})
        keys = {"name": "s", "step": "map", "where": None, "version": None, "columns": {"a": "x", "b": "y"}}
        return recipe.prepare_step(**{**keys, **(last or {})})

    yield "nothing", made()
    for setting in ({"seed": 2}, {"total": 8}, {"tokens": "m"}, {"unit": "tokens"}):
        yield f"{setting}", made(setting=setting)
    for first in (
        {"name": "j"},
        {"source": "b.csv"},
        {"source": ["a.csv", "b.csv"]},
        {"source": [{"x": 1}]},
        {"source": DatasetRecipe("n")},
        {"source": DatasetRecipe("n", seed=1)},
        {"where": None},
        {"where": "x > 2"},
        {"where": lambda row: row["x"] > 1},
        {"weight": 2.0},
        {"weight": None},
        {"weight": None, "take": 1},
        {"weight": None, "take": 1.0},
        {"pick": "latest"},
        {"pick": "top(x)"},
        {"on_short": "accept"},
    ):
        yield f"ingredient {first}", made(first=first)
    for last in (
        {"name": "t"},
        {"where": "x > 1"},
        {"version": 1},
        {"columns": {"a": "x"}},
        {"columns": {"a": "x", "c": "y"}},
        {"columns": {"a": "x", "b": "z"}},
        {"columns": {"b": "y", "a": "x"}},  # another order of columns
        {"step": shout, "columns": None},
        {"step": shout, "columns": None, "mark": 1},
        {"step": shout, "columns": None, "mark": True},
        {"step": cut, "columns": None},
        {"step": lambda row: row, "columns": None},
        {"step": lambda row: {}, "columns": None},
        {"step": Suite("s"), "columns": None},
        {"step": Suite("s").expect("x", finite=True), "columns": None},
        {"step": shout, "columns": np.arange(5000)},
        {"step": shout, "columns": np.where(np.arange(5000) == 2500, 0, np.arange(5000))},
    ):
        yield f"step {last}", made(last=last)


def test_whatever_decides_the_result_is_in_the_fingerprint():
    """Each single change gives another one."""
    prints: dict[str, str] = {}
    for what, recipe in variants():
        assert recipe.fingerprint not in prints, f"{what} is as {prints[recipe.fingerprint]}"
        prints[recipe.fingerprint] = what


def test_the_way_of_writing_is_not_in_the_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A function and its name, an expression and its text, a path and the same path from elsewhere are the same."""
    monkeypatch.chdir(tmp_path)

    def made(source: Any, where: Any, use: Any, columns: Any) -> str:
        recipe = DatasetRecipe("r").add_ingredient("i", source, where)
        return recipe.prepare_step("s", use).prepare_step("t", "select", columns=columns).fingerprint

    first = made("a/b.csv", (col.x > 1) & (col.y == "z"), shout, ("p", "q"))

    assert first == made(["a/b.csv"], "x > 1 and y == 'z'", "shout", ["p", "q"])
    assert first == made(tmp_path / "a" / "b.csv", "y == 'z' and 1 < x", "shout", ["p", "q"])


def test_what_sources_hold_is_not_in_the_fingerprint():
    """Rows in memory and rows in files may grow; the recipe is the same."""
    sources = [{"n": 1}], iter([{"n": 1}, {"n": 2}]), DatasetBuffer()

    prints = {DatasetRecipe("r").add_ingredient("i", source).fingerprint for source in sources}

    assert len(prints) == 1


def test_fingerprints_are_pinned():
    """They are in reports; changing them is a decision."""
    recipe = DatasetRecipe("breads", seed=7).add_ingredient("rye", "s3://mill/*.parquet", where="n > 1", take=0.5)

    assert recipe.prepare_step("few", "limit", n=10).fingerprint == "30fe75f8178d7198"


# What cannot be a file --------------------------------------------------------------------------------------------


def test_all_that_cannot_be_saved_is_told_at_once():
    """Rows in memory, functions without a name, filters that are functions, objects as options."""
    recipe = DatasetRecipe("r").add_ingredient("a", [{"n": 1}], where=lambda row: True)
    recipe.add_ingredient("b", pa.table({"n": [1]})).prepare_step("c", lambda row: row)
    recipe.prepare_step("d", "shout", mark={1, 2}).prepare_step("e", "shout", use=3)

    with pytest.raises(RecipeError) as error:
        recipe.to_dict()

    lines = str(error.value).splitlines()
    assert [re.match(r"  (ingredient|step) '.'", line) is not None for line in lines] == [False, *[True] * 6]
    assert "write them to a file" in lines[1]
    assert "@register_step('c')" in lines[4]
    assert "mark is a set" in lines[5]


def test_a_step_cannot_hide_behind_a_built_in_name():
    """In a file the name would mean the built-in one."""
    with pytest.raises(RecipeError, match="'limit' is a step that every recipe has"):
        register_step("limit")(lambda row: row)


def test_options_that_no_file_could_bring_back_are_refused_when_saving(tmp_path: Path):
    """A built-in step ignores what it does not know; a file that says it could never be read."""
    with pytest.raises(RecipeError, match="no key 'm' here"):
        DatasetRecipe("r").prepare_step("s", "limit", n=1, m=2).save(tmp_path / "r.yaml")


def test_pydantic_is_loaded_for_files_alone():
    """It takes a fifth of a second; recipes that are written in Python do without."""
    program = (
        "import sys; from poolish import DatasetRecipe; "
        "recipe = DatasetRecipe('r').add_ingredient('i', [{'n': 1}]); recipe.bake(); recipe.explain(); "
        "loaded = 'pydantic' in sys.modules; recipe.from_dict({'name': 'r', 'instructions': []}); "
        "print(loaded, 'pydantic' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["False", "True"]


# Strict reading ---------------------------------------------------------------------------------------------------


def test_all_problems_are_told_at_once_each_with_its_place():
    """Nobody mends a file one error at a time."""
    told = {
        "name": "",
        "sede": 1,
        "total": 0,
        "unit": "bytes",
        "instructions": [
            {"ingredient": "a", "source": "x.csv", "were": "n > 1", "take": 1.5, "pick": "best", "weight": -1},
            {"ingredient": "b", "source": 3, "where": "n >"},
            {"step": "c", "use": "limt", "version": 1.5},
            {"stepp": "d"},
            "e",
        ],
    }

    found = problems(told)

    assert [line.split(":")[0] for line in found] == [
        *("no key 'sede' here; did you mean 'seed'?", "name=''", "total=0", "unit='bytes'"),
        *["instructions[0]"] * 4,
        *("instructions[1].source", "instructions[1].where"),
        *["instructions[2]"] * 2,
        *("instructions[3]", "instructions[4]"),
    ]
    assert "did you mean 'where'?" in found[4]
    assert "did you mean 'limit'?" in found[10]


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ([], "a table of names and values"),
        ({"name": "r"}, "instructions is a list"),
        ({"name": "r", "instructions": [], 3: 1}, "names are text"),
        ({"name": "r", "instructions": [], "version": 2}, "version 2 of recipe files"),
        ({"name": "r", "instructions": [], "seed": True}, "seed"),
        ({"name": "r", "instructions": [], "tokens": 3}, "tokens=3"),
        ({"name": "r", "instructions": [], "unit": "tokens"}, "needs tokens="),
        (ingredient(source=[]), "a source is a path"),
        (ingredient(source={"recipe": {"name": "x"}}), "source.recipe: instructions"),
        (ingredient(take=True), "take=True"),
        (ingredient(weight="much"), "weight='much'"),
        (ingredient(weight=float("inf")), "weight=inf"),
        (ingredient(take=1, weight=1), "give one"),
        (ingredient(on_short="cry"), "on_short='cry'"),
        (ingredient(where=3), "an expression is"),
        (step(), "'use' is missing"),
        (step(use="map"), "'columns' is missing"),
        (step(use="map", columns={"a": "1 +"}), "columns.a:"),
        (step(use="map", columns=["a"]), "a table of names"),
        (step(use="select", columns="a"), "a list of names"),
        (step(use="limit", n=-1), "a whole number"),
        (step(use="limit", n=True), "a whole number"),
        (step(use="standardise", column="x", mean="y"), "a number, got 'y'"),
        (step(use="cut"), "'most' is missing"),
        (step(use="cut", most=1, last=2), "did you mean 'least'?"),
        (step(use="cut", most={1}), "got a set"),
        (step(use="cut", most=1, batched="rows"), "batched='rows'"),
        (step(use="shout", name="x"), "cannot be called 'name'"),
        (step(use="os.system"), "import nothing"),
        (step(use="validate", suite={"expects": []}), "suite"),
        (step(use="validate", suite="none.yaml"), "none.yaml"),
    ],
)
def test_what_does_not_belong_is_refused(told: Any, words: str):
    """One problem each, in words that say what to do."""
    found = problems(told)

    assert len(found) == 1
    assert words in found[0]


def test_names_of_two_ingredients_differ():
    """The file is refused as the second call of add_ingredient would be."""
    told = {"name": "r", "instructions": 2 * ingredient()["instructions"]}

    assert problems(told) == [
        "instructions[1]: ingredient 'i': there is one of that name already; names tell rows apart"
    ]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("r.yaml", "name: a\nname: b\ninstructions: []", "twice"),
        ("r.json", '{"name": "a", "name": "b", "instructions": []}', "twice"),
        ("r.yaml", "name: &a x\ninstructions: [*a]", "references"),
        ("r.yaml", "name: [", "no YAML that a recipe can be in"),
        ("r.toml", "name = ", "no TOML"),
        ("r.json", "{", "not valid JSON"),
        ("r.json", '{"name": NaN}', "NaN"),
        ("r.yaml", "name: a\ninstructions: [{step: s, use: shout, mark: !!set {x}}]", "tags"),
        ("r.toml", "name='a'\n[[instructions]]\nstep='s'\nuse='shout'\nmark=2020-01-01", "got a date"),
        ("r.txt", "name: a", "ends in .yaml"),
        ("r.yaml", "name: \udcff", "UTF-8"),
        ("r.yaml", "[" * 5000, "deep"),
        ("r.json", "[" * 5000, "deep"),
        ("r.toml", f"a={'[' * 200}{']' * 200}", "deep"),
        ("r.toml", f"a{'.a' * 200}=1", "deep"),
        ("r.yaml", "name: \x01", "line 1, column 7"),
        ("r.yaml", "#" * 1_000_001, "no recipe is so large"),
    ],
)
def test_files_that_cannot_be_trusted_are_refused(tmp_path: Path, name: str, text: str, words: str):
    """Ambiguous, endless, damaged, of a kind that no recipe is in."""
    path = tmp_path / name
    path.write_bytes(text.encode(errors="surrogateescape"))

    with pytest.raises((RecipeError, LimitExceeded), match=re.escape(words)) as error:
        DatasetRecipe.load(path)

    assert str(path) in str(error.value)


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.mkdir", "!!python/name:os.mkdir", "!new"])
def test_a_file_is_never_code(tmp_path: Path, marker: Path, tag: str):
    """Tags that make other readers of YAML call functions are errors here."""
    path = written(tmp_path, f"name: a\ninstructions: [{{step: s, use: shout, mark: {tag} ['{marker}']}}]")

    with pytest.raises(RecipeError, match="no YAML that a recipe can be in"):
        DatasetRecipe.load(path)

    assert not marker.exists()


def test_a_pipe_is_not_waited_for(tmp_path: Path):
    """Nor is a directory read."""
    os.mkfifo(tmp_path / "r.yaml")

    with pytest.raises(RecipeError, match="not a regular file"):
        DatasetRecipe.load(tmp_path / "r.yaml")


@given(told=st.recursive(plain, lambda inner: st.fixed_dictionaries({"name": inner, "instructions": inner})))
def test_no_document_raises_anything_else(told: Any):
    """Whatever a document says, it is a recipe or a PoolishError."""
    try:
        from_dict(told)
    except PoolishError:
        pass


@pytest.mark.parametrize("entry", [{"step": "s", "use": "shuffle"}, {"ingredient": "a", "source": "a.csv"}])
def test_an_unknown_key_is_refused_also_where_it_is_null(entry):
    """Editors mark it as wrong; a misspelt key must not say nothing."""
    document = {"name": "r", "instructions": [{**entry, "sed": None}]}

    with pytest.raises(RecipeError, match="no key 'sed' here"):
        from_dict(document)

    assert not is_valid(document)


@given(
    entry=st.dictionaries(st.sampled_from([*INGREDIENT_KEYS, *STEP_KEYS, "columns", "n", "mark"]), plain)
    | st.fixed_dictionaries({"step": names, "use": st.sampled_from([*OPTIONS, "cut"]), "columns": plain})
)
def test_no_instruction_raises_anything_else(entry: Any):
    """The same, for what looks more like a recipe; and what is accepted can be told again."""
    try:
        recipe = from_dict({"name": "r", "instructions": [entry]})
    except PoolishError:
        return

    assert from_dict(recipe.to_dict()).fingerprint == recipe.fingerprint


# The schema for editors -------------------------------------------------------------------------------------------


def test_types_of_arrow_are_told_by_their_names(tmp_path: Path):
    """With their size, which Arrow's own names of floats leave out; so the file is the same recipe."""
    types = {"a": pa.float32(), "b": pa.float64(), "c": pa.int8(), "d": pa.timestamp("us")}
    recipe = DatasetRecipe("r").prepare_step("s", "cast", columns=types)

    recipe.save(tmp_path / "r.yaml")

    told = recipe.to_dict()["instructions"][0]["columns"]
    assert told == {"a": "float32", "b": "float64", "c": "int8", "d": "timestamp[us]"}
    assert DatasetRecipe.load(tmp_path / "r.yaml").fingerprint == recipe.fingerprint


def test_a_type_that_is_none_is_told_when_the_file_is_read():
    """With its place, and not when it is baked."""
    (found,) = problems(step(use="cast", columns={"x": "int"}))

    assert found.startswith("instructions[0]")
    assert "write 'int64'" in found


def test_files_have_the_keys_that_recipes_are_described_by():
    """A key that is validated is also part of the fingerprint, and the other way round."""
    described = [[key.name for key in keys] for keys in (RECIPE, INGREDIENT, STEP)]
    of_the_file = ["instructions", "version", "$schema"]

    assert [model.keys() for model in (RecipeFile, Ingredient, Step)] == [
        described[0] + of_the_file,
        *described[1:],
    ]


def test_every_built_in_step_has_its_options_told():
    """A new step is put into the table, else no file could use it."""
    assert set(OPTIONS) == {*BUILT_IN, "validate"}


def fits(value: Any, schema: Any, root: Any) -> bool:
    """A reader of the part of JSON schema that ours is written in; any other word of it is a KeyError."""
    types = {"string": str, "object": dict, "array": list, "null": type(None), "integer": int, "number": (int, float),
             "boolean": bool}  # fmt: skip

    def is_of(kind: str) -> bool:
        return isinstance(value, types[kind]) and not (isinstance(value, bool) and kind in ("integer", "number"))

    def is_table(rule: Any) -> bool:
        known = schema.get("properties", {})
        return all(fits(each, rule, root) for key, each in value.items() if key not in known)

    def same(other: Any) -> bool:
        return type(other) is type(value) and other == value

    is_number = isinstance(value, (int, float))
    rules = {
        "type": lambda rule: any(is_of(kind) for kind in ([rule] if isinstance(rule, str) else rule)),
        "const": same,
        "enum": lambda rule: any(map(same, rule)),
        "anyOf": lambda rule: any(fits(value, each, root) for each in rule),
        "not": lambda rule: not fits(value, rule, root),
        "required": lambda rule: not isinstance(value, dict) or set(rule) <= set(value),
        "properties": lambda rule: (
            not isinstance(value, dict)
            or all(fits(value[key], each, root) for key, each in rule.items() if key in value)
        ),
        "additionalProperties": lambda rule: not isinstance(value, dict) or is_table(rule),
        "items": lambda rule: not isinstance(value, list) or all(fits(each, rule, root) for each in value),
        "minItems": lambda rule: not isinstance(value, list) or len(value) >= rule,
        "minLength": lambda rule: not isinstance(value, str) or len(value) >= rule,
        "pattern": lambda rule: not isinstance(value, str) or re.search(rule, value, re.DOTALL) is not None,
        "minimum": lambda rule: not is_number or value >= rule,
        "exclusiveMinimum": lambda rule: not is_number or value > rule,
        "maximum": lambda rule: not is_number or value <= rule,
        "$ref": lambda rule: fits(value, root["$defs"][rule.removeprefix("#/$defs/")], root),
    }
    silent = {"$schema", "$id", "$defs", "title", "description", "default", "examples"}
    if isinstance(schema, bool):
        return schema
    return all(rules[word](rule) for word, rule in schema.items() if word not in silent)


def is_valid(told: Any) -> bool:
    """What the schema says of a document; by the library as well, where it is installed."""
    schema = json_schema()
    answer = fits(told, schema, schema)
    try:
        import jsonschema
    except ModuleNotFoundError:
        return answer
    jsonschema.Draft202012Validator.check_schema(schema)
    assert jsonschema.Draft202012Validator(schema).is_valid(told) == answer
    return answer


@settings(max_examples=times(50))
@given(recipe=recipes())
def test_editors_accept_every_recipe(recipe: DatasetRecipe):
    """What can be saved fits the schema."""
    assert is_valid(json.loads(json.dumps(recipe.to_dict())))


@given(
    entry=st.dictionaries(st.sampled_from([*INGREDIENT_KEYS, *STEP_KEYS, "columns", "n"]), plain)
    | st.fixed_dictionaries({"step": names, "use": st.sampled_from([*OPTIONS, "cut"]), "columns": plain})
)
def test_what_editors_refuse_is_refused(entry: Any):
    """No document that can be read is marked as wrong."""
    told = {"name": "r", "instructions": [entry]}
    try:
        from_dict(told)
    except PoolishError:
        return

    assert is_valid(told)


@pytest.mark.parametrize(
    "told",
    [
        {"name": "r"},
        {"name": "r", "instructions": [], "sede": 1},
        {"name": "r", "instructions": [], "unit": "bytes"},
        ingredient(were="n > 1"),
        ingredient(pick="best"),
        ingredient(take=1.5),
        ingredient(source={"recipe": {"name": "x"}}),
        step(use="limit"),
        step(use="limit", n=1, m=2),
        step(use="map", columns=["a"]),
    ],
)
def test_editors_mark_what_is_wrong(told: Any):
    """The mistakes that people make most."""
    assert not is_valid(told)


def test_a_json_recipe_may_name_its_schema(tmp_path: Path):
    """That is how editors find it; to us it says nothing."""
    told = {"$schema": "recipe.schema.json", "name": "r", "instructions": []}

    recipe = DatasetRecipe.load(written(tmp_path, json.dumps(told), "r.json"))

    assert recipe.fingerprint == DatasetRecipe("r").fingerprint
    assert is_valid(told)
