"""Bake: the answers of plain Python, however the work is cut and whoever does it; and into buffers that live on."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolish import DatasetBuffer, DatasetRecipe, bake, col
from poolish.errors import ConfigError, DataRefused, RecipeError, SchemaError
from poolish.guards.checks.suite import Suite
from poolish.recipes.engine import LocalEngine
from tests.effort import times
from tests.recipes.kitchen import Model, content, cut, line, numbers, origins, shelf, write, xs

# A model: random recipes, and the same in plain Python ----------------------------------------------------------------

STEPS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "bump": lambda row: {**row, "x": row["x"] + 1},
    "several": lambda row: [{**row, "y": row["y"] + 10 * i} for i in range(row["x"] % 3)],
    "halve": lambda row: [row] if row["x"] % 2 else [],
    "twins": lambda row: [row, {**row, "t": None}],
}
FILTERS: list[tuple[Any, Any]] = [
    (None, None),
    (col.x < 5, lambda row: row["x"] < 5),
    ("y == 1 or t == 'b'", lambda row: row["y"] == 1 or row["t"] == "b"),
    (col.t.is_null(), lambda row: row["t"] is None),
    (lambda row: row["x"] % 2 == 0, lambda row: row["x"] % 2 == 0),
]
SCHEMA = pa.schema({"x": pa.int64(), "y": pa.int64(), "t": pa.string()})

values = st.fixed_dictionaries({"x": st.integers(0, 9), "y": st.integers(0, 2), "t": st.sampled_from(["a", "b", None])})
takes = st.one_of(st.none(), st.sampled_from([0, 1, 3, 7, 0.0, 0.3, 0.8, 1.0]))


@st.composite
def ingredients(draw: st.DrawFn, name: str) -> dict[str, Any]:
    kind = draw(st.sampled_from(["files", "table", "buffer", "list"]))
    names = ["a.parquet", "b/c.parquet", "z.parquet"][: draw(st.integers(1, 3))] if kind == "files" else [""]
    least = 0 if kind != "list" else 1
    return {
        "do": "add",
        "name": name,
        "kind": kind,
        "parts": {file: draw(st.lists(values, min_size=least, max_size=8)) for file in names},
        "evicted": draw(st.integers(0, 3)) if kind == "buffer" else 0,
        "where": draw(st.integers(0, len(FILTERS) - 1)),
        "take": draw(takes),
        "pick": draw(st.sampled_from(["hash", "latest", "oldest", "top(x)", "stratified(y)"])),
        "on_short": draw(st.sampled_from(["accept", "repeat"])),
    }


@st.composite
def preparations(draw: st.DrawFn, name: str) -> dict[str, Any]:
    return {
        "do": "step",
        "name": name,
        "what": draw(st.sampled_from([*STEPS, "map", "filter", "dedup", "limit", "arrow"])),
        "where": draw(st.integers(0, len(FILTERS) - 1)),
        "ingredient": draw(st.sampled_from([None, None, "i0", "i1"])),
        "n": draw(st.integers(0, 9)),
    }


@st.composite
def dishes(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Instructions: at least one ingredient, then ingredients and steps in any order."""
    others = [st.one_of(ingredients(f"i{i}"), preparations(f"s{i}")) for i in range(1, draw(st.integers(1, 6)))]
    return [draw(each) for each in (ingredients("i0"), *others)]


def source_of(dish: dict[str, Any], folder: Path) -> Any:
    rows = [row for part in dish["parts"].values() for row in part]
    if dish["kind"] == "files":
        for i, (name, part) in enumerate(dish["parts"].items()):
            write(folder / dish["name"] / name, pa.Table.from_pylist(part, SCHEMA), 1 + i * 2)
        return folder / dish["name"]
    if dish["kind"] == "buffer":
        buffer = DatasetBuffer(max_size=max(1, len(rows)))
        gone = [{"x": 77, "y": 7, "t": "gone"}] * dish["evicted"]
        if rows or gone:
            buffer.append(pa.Table.from_pylist(gone + rows, SCHEMA))
        return buffer
    return rows if dish["kind"] == "list" and any(row["t"] for row in rows) else pa.Table.from_pylist(rows, SCHEMA)


def numbered(dish: dict[str, Any]) -> dict[str, list[tuple[int, Any]]]:
    """Rows of the model as the source numbers them."""
    if dish["kind"] != "buffer":
        return {name: list(enumerate(part)) for name, part in dish["parts"].items()}
    rows = dish["parts"][""]
    gone = [{"x": 77, "y": 7, "t": "gone"}] * dish["evicted"]
    return {"": list(enumerate(gone + rows))[-max(1, len(rows)) :]}


def asked(dish: dict[str, Any]) -> tuple[Any, Callable[[Any], bool] | None]:
    """The filter of a step as it is given and as the model asks it: of values, and of the ingredient."""
    given, plain = FILTERS[dish["where"] % 4]  # a function cannot ask for the ingredient
    if isinstance(given, str):
        given = (col.y == 1) | (col.t == "b")
    if dish["ingredient"] is not None:
        mine = col.ingredient == dish["ingredient"]
        given = mine if given is None else mine & given
    if given is None:
        return None, None
    return (
        given,
        lambda row: dish["ingredient"] in (None, row.ingredient) and (plain is None or bool(plain(row.values))),
    )


def prepare(recipe: DatasetRecipe, model: Model, dish: dict[str, Any]) -> None:
    where, plain = asked(dish)
    name, what, n = dish["name"], dish["what"], dish["n"]
    if what in STEPS:
        recipe.prepare_step(name, STEPS[what], where=where)
        model.step(name, STEPS[what], plain)
    elif what == "map":
        recipe.prepare_step(name, "map", where=where, columns={"y": col.x + n})
        model.step(name, lambda row: {**row, "y": row["x"] + n}, plain)
    elif what == "filter":
        recipe.prepare_step(name, "filter", where=where, keep=col.x > n)
        model.step(name, lambda row: [row] if row["x"] > n else [], plain)
    elif what == "arrow":
        recipe.prepare_step(name, reversed_pairs, where=where, batched=True)
        model.step(name, lambda row: [row, row] if row["y"] == 1 else row, plain)
    elif what == "dedup":
        recipe.prepare_step(name, "dedup", where=where, columns=["y", "t"])
        model.dedup(["y", "t"], plain)
    else:
        recipe.prepare_step(name, "limit", where=where, n=n)
        model.limit(n, plain)


def reversed_pairs(table: pa.Table) -> tuple[pa.Table, list[int]]:
    """A batched step with parents: rows with y == 1 come twice."""
    parents = [i for i, y in enumerate(table.column("y").to_pylist()) for _ in range(1 + (y == 1))]
    return table.take(pa.array(parents, pa.int64())), parents


def cooked(menu: list[dict[str, Any]], seed: int, folder: Path) -> tuple[DatasetRecipe, Model]:
    recipe, model = DatasetRecipe("any", seed=seed), Model(seed)
    for dish in menu:
        if dish["do"] == "step":
            prepare(recipe, model, dish)
            continue
        where, plain = FILTERS[dish["where"]]
        chosen = {key: dish[key] for key in ("take", "pick", "on_short")}
        n_left = sum(plain is None or bool(plain(row)) for part in numbered(dish).values() for _, row in part)
        if not n_left:
            chosen["on_short"] = "accept"
        if dish["take"] is None:  # of all rows there is nothing to pick
            chosen["pick"] = "hash"
        recipe.add_ingredient(dish["name"], source_of(dish, folder), where=where, **chosen)
        model.add(dish["name"], numbered(dish), plain, **chosen)
    return recipe, model


@settings(max_examples=times(50))
@given(
    menu=dishes(), seed=st.integers(0, 2**40), sizes=st.tuples(*[st.integers(1, 9)] * 3), n_workers=st.integers(1, 3)
)
def test_a_bake_is_what_plain_python_makes_of_it(menu, seed, sizes, n_workers):
    """Rows, their order, and for each row its ingredient, file, number and steps are those of a slow model."""
    folder = Path(tempfile.mkdtemp())
    try:
        recipe, model = cooked(menu, seed, folder)
        with cut(*sizes):
            result = recipe.bake(engine=LocalEngine(n_workers))
        with cut():
            again = recipe.bake()
    finally:
        shutil.rmtree(folder)

    barriers = {dish["name"] for dish in menu if dish["do"] == "step" and dish["what"] in ("dedup", "limit")}
    got = [(*origin[:3], [s for s in origin[4] if s not in barriers]) for origin in origins(result)]
    assert result.table.to_pylist() == [row.values for row in model.rows]
    assert got == [(row.ingredient, row.file, row.row, list(row.steps)) for row in model.rows]
    assert origins(result) == origins(again)
    assert len({origin[:4] for origin in origins(result)}) == len(model.rows)


# The same bytes, whoever bakes ----------------------------------------------------------------------------------------


def everything(folder: Path) -> DatasetRecipe:
    """One of each: files, a buffer, rows; filters, quantities, row and batch steps, barriers."""
    buffer = DatasetBuffer(max_size=60)
    buffer.append(numbers(90, 2_000))
    recipe = DatasetRecipe("everything", seed=5, total=40)
    recipe.add_ingredient("files", folder, where=col.score > 2, take=0.6)
    recipe.add_ingredient("count", f"{folder}/*.parquet", take=31)
    recipe.prepare_step("twice", lambda row: [row, {**row, "x": -row["x"]}] if row["x"] % 4 == 1 else row)
    recipe.add_ingredient("buffer", buffer, take=50, pick="latest")
    recipe.prepare_step("thrice", lambda row: [row] * (row["x"] % 3), where=col.x < 50)
    recipe.prepare_step("upper", upper, batched="columns")
    recipe.add_ingredient("heavy", numbers(100, 5_000), weight=3, pick="top(score)")
    recipe.add_ingredient("light", numbers(100, 6_000), weight=1, pick="stratified(group)")
    recipe.prepare_step("scale", "standardise", column="score")
    recipe.prepare_step("once", "dedup", columns=["text", "x"])
    recipe.prepare_step("mix", "shuffle")
    recipe.prepare_step("clip", "winsorize", column="score", lower=0.1, upper=0.9)
    return recipe


def upper(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {**columns, "text": [None if text is None else text.upper() for text in columns["text"]]}


@pytest.mark.parametrize("row_group_size", [1, 7])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (7, 13, 5), (65_536, 131_072, 16_384)])
def test_the_same_bytes_however_the_work_is_cut(tmp_path, sizes, row_group_size):
    """Fragments, groups of row groups and batches of any size, 1 worker or 4: rows, origins and schema are the same."""
    want = content(everything(shelf(tmp_path / "one", 3, 20)).bake(engine=LocalEngine(1)))
    folder = shelf(tmp_path / "two", 3, 20, row_group_size)

    with cut(*sizes):
        found = [content(everything(folder).bake(engine=LocalEngine(n))) for n in (1, 4)]

    assert found[0] == want
    assert found[1] == want


def test_the_choice_is_pinned():
    """Which rows a seed chooses is a promise: whoever changes the hash changes everybody's datasets."""
    recipe = DatasetRecipe("pinned", seed=7).add_ingredient("web", numbers(20), take=5)

    assert xs(recipe.bake()) == xs(
        DatasetRecipe("other name", seed=7).add_ingredient("web", numbers(20), take=5).bake()
    )
    assert xs(recipe.bake()) == [row.row for row in _pinned(20, 5)]


def _pinned(n_rows: int, n_taken: int) -> Any:
    model = Model(7)
    model.add("web", {"": [(i, {}) for i in range(n_rows)]}, take=n_taken)
    return model.rows


def test_the_order_of_the_file_system_does_not_matter(tmp_path, monkeypatch):
    """Files are read in the order of their names, whatever order a listing has."""
    folder = shelf(tmp_path, 6, 5)
    want = content(DatasetRecipe("r").add_ingredient("a", folder, take=0.5).bake())
    real_walk, real_scandir = os.walk, os.scandir
    rng = random.Random(3)

    def shuffled_walk(*args: Any, **options: Any) -> Any:
        for path, folders, files in real_walk(*args, **options):
            rng.shuffle(files)
            yield path, folders, files

    class Shuffled:
        def __init__(self, path: Any) -> None:
            with real_scandir(path) as found:
                self.entries = list(found)
            rng.shuffle(self.entries)

        def __enter__(self) -> Any:
            return iter(self.entries)

        def __exit__(self, *error: object) -> None: ...

        def __iter__(self) -> Any:
            return iter(self.entries)

    monkeypatch.setattr(os, "walk", shuffled_walk)
    monkeypatch.setattr(os, "scandir", Shuffled)
    found = [
        content(DatasetRecipe("r").add_ingredient("a", source, take=0.5).bake())
        for source in (folder, f"{folder}/*.parquet", sorted(folder.iterdir(), reverse=True))
    ]

    assert found == [want] * 3


def test_a_tree_that_was_moved_bakes_the_same(tmp_path):
    """Rows are named by their path below the root, so a dataset may move."""
    first = DatasetRecipe("r").add_ingredient("a", shelf(tmp_path / "here", 3, 20), take=0.4).bake()
    shutil.move(tmp_path / "here", tmp_path / "there")

    assert content(DatasetRecipe("r").add_ingredient("a", tmp_path / "there", take=0.4).bake()) == content(first)


def test_two_bakes_at_once_do_not_meet(tmp_path):
    """A recipe may be baked by several threads with one cache."""
    recipe = everything(shelf(tmp_path / "data", 3, 20))
    want = content(recipe.bake())
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(content(recipe.bake(cache=tmp_path / "cache")))) for _ in range(4)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [want] * 4


# The order of instructions --------------------------------------------------------------------------------------------


def test_an_ingredient_added_after_a_step_is_not_touched_by_it():
    """Order of instructions is order of work."""
    recipe = DatasetRecipe("r").add_ingredient("a", [{"x": 1}])
    recipe.prepare_step("ten", lambda row: {"x": row["x"] * 10})
    recipe.add_ingredient("b", [{"x": 2}])
    recipe.prepare_step("more", lambda row: {"x": row["x"] + 1})

    result = recipe.bake()

    assert xs(result) == [11, 3]
    assert [result.lineage.why(i).steps for i in (0, 1)] == [("ten", "more"), ("more",)]


@pytest.mark.parametrize(
    "barrier",
    [("dedup", {}), ("limit", {"n": 2}), ("shuffle", {}), ("winsorize", {"column": "x", "low": 0, "high": 1})],
)
def test_an_ingredient_added_after_a_barrier_is_not_touched_by_it(barrier):
    """Neither deduplicated, cut, shuffled nor scaled."""
    later = [7.0, 9.0, 7.0, 8.0]
    recipe = DatasetRecipe("r").add_ingredient("a", [{"x": x} for x in (1.0, 1.0, 7.0)])
    recipe.prepare_step("barrier", barrier[0], **barrier[1]).add_ingredient("b", [{"x": x} for x in later])

    assert xs(recipe.bake())[-4:] == later


@pytest.mark.parametrize("barrier", [("dedup", {}), ("limit", {"n": 2})])
def test_a_barrier_does_not_ask_rows_that_are_not_there(barrier):
    """A buffer that never had a row has no columns either, and a filter cannot find its column in it."""
    recipe = DatasetRecipe("r").add_ingredient("never", DatasetBuffer()).add_ingredient("a", numbers(3))
    recipe.prepare_step("barrier", barrier[0], where="x < 2", **barrier[1])

    assert xs(recipe.bake()) == [0, 1, 2]


def test_a_shuffle_orders_what_was_there_and_later_steps_keep_that_order():
    """Rows that come later stand behind; a step after it changes no place."""
    recipe = DatasetRecipe("r", seed=3).add_ingredient("a", numbers(50)).prepare_step("mix", "shuffle")
    mixed = xs(recipe.bake())
    recipe.prepare_step("ten", "map", columns={"x": col.x * 10}).add_ingredient("b", numbers(3, 700))

    assert sorted(mixed) == list(range(50))
    assert mixed != list(range(50))
    assert xs(recipe.bake()) == [10 * x for x in mixed] + [700, 701, 702]


def test_a_limit_after_a_shuffle_is_a_sample():
    """What is cut off is decided by the order that rows have by then."""
    recipe = DatasetRecipe("r", seed=3).add_ingredient("a", numbers(50)).prepare_step("mix", "shuffle")
    mixed = xs(recipe.bake())

    assert xs(recipe.prepare_step("few", "limit", n=7).bake()) == mixed[:7]


def test_a_shuffle_spreads_copies_and_children_of_a_row():
    """Rows that came from one row do not stay together."""
    repeated = DatasetRecipe("r").add_ingredient("a", numbers(40), take=120, on_short="repeat")
    expanded = DatasetRecipe("r").add_ingredient("a", numbers(40)).prepare_step("three", lambda row: [row] * 3)

    for recipe in (repeated, expanded):
        found = xs(recipe.prepare_step("mix", "shuffle").bake())
        n_together = sum(one == other for one, other in itertools.pairwise(found))
        assert n_together < 15  # 2 are expected by chance, 80 if they stay together


def test_a_shuffle_of_a_subset_leaves_other_rows_in_their_places():
    """``where`` means the same for a shuffle as for other steps, or is refused."""
    recipe = DatasetRecipe("r").add_ingredient("a", numbers(20)).add_ingredient("b", numbers(20, 100))
    try:
        found = xs(recipe.prepare_step("mix", "shuffle", where=col.ingredient == "b").bake())
    except RecipeError as error:
        assert "where" in str(error)  # noqa: PT017
        return

    assert found[:20] == list(range(20))
    assert sorted(found[20:]) == list(range(100, 120)) != found[20:]


def test_more_steps_than_lineage_can_tell_are_refused():
    """62 steps work, and each is told; one more is an error and not a wrong answer."""
    recipe = DatasetRecipe("r").add_ingredient("a", [{"x": 0}])
    for i in range(62):
        recipe.prepare_step(f"s{i}", "map", columns={"x": col.x + 1})
    result = recipe.bake()

    assert xs(result) == [62]
    assert len(result.lineage.why(0).steps) == 62
    with pytest.raises(RecipeError, match="62"):
        recipe.prepare_step("one more", "map", columns={"x": col.x}).bake()


# Columns that do not fit ----------------------------------------------------------------------------------------------


def test_ingredients_with_other_columns_are_named():
    """The error says which ingredient and which columns."""
    recipe = DatasetRecipe("r").add_ingredient("left", [{"x": 1, "y": 2}]).add_ingredient("right", [{"x": 1, "z": 2}])

    with pytest.raises(SchemaError, match=r"'right'.*z"):
        recipe.bake()


def test_ingredients_with_other_types_are_named():
    """The error says which ingredients, which column and which types."""
    recipe = DatasetRecipe("r").add_ingredient("left", [{"n": 1}]).add_ingredient("right", [{"n": "one"}])

    with pytest.raises(SchemaError) as caught:
        recipe.bake()

    assert all(word in str(caught.value) for word in ("'left'", "'right'", "n", "int64", "string"))


def test_columns_in_another_order_are_the_same_columns():
    """The first ingredient decides the order."""
    recipe = DatasetRecipe("r").add_ingredient("a", pa.table({"x": [1], "y": [2]}))

    result = recipe.add_ingredient("b", pa.table({"y": [4], "x": [3]})).bake()

    assert result.table.to_pylist() == [{"x": 1, "y": 2}, {"x": 3, "y": 4}]
    assert result.table.column_names == ["x", "y"]


def test_a_column_of_nulls_takes_the_type_of_the_others():
    """Null is no type of its own."""
    recipe = DatasetRecipe("r").add_ingredient("a", [{"x": None}]).add_ingredient("b", [{"x": "one"}])

    assert xs(recipe.bake()) == [None, "one"]


# Nothing to bake ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("empty", [[], pa.table({"x": pa.array([], pa.int64())}), DatasetBuffer()])
@pytest.mark.parametrize(
    "options", [{}, {"take": 0}, {"take": 0.5}, {"take": 5, "on_short": "accept"}, {"take": 0.5, "pick": "latest"}]
)
def test_an_empty_source_gives_no_rows(empty, options):
    """Not an error: nothing was there."""
    recipe = DatasetRecipe("r").add_ingredient("none", empty, **options).add_ingredient("some", [{"x": 1}])
    recipe.prepare_step("same", lambda row: row).prepare_step("mix", "shuffle").prepare_step("once", "dedup")

    assert xs(recipe.bake()) == [1]


@pytest.mark.parametrize("make", [DatasetRecipe.bake, DatasetRecipe.explain, bake])
def test_a_recipe_without_ingredients_is_refused(make):
    """No rows can come of it, also not with steps."""
    for recipe in (DatasetRecipe("breads"), DatasetRecipe("breads").prepare_step("once", "dedup")):
        with pytest.raises(RecipeError, match=r"recipe 'breads' has no ingredient; add one with add_ingredient"):
            make(recipe)


def test_rows_that_are_all_filtered_away_leave_their_columns():
    """An empty result has the schema that a full one would have."""
    result = DatasetRecipe("r").add_ingredient("a", numbers(3), where=col.x > 5).bake()

    assert result.table.num_rows == 0
    assert result.table.column_names == ["x", "text", "group", "score"]


def test_an_empty_table_leaves_its_columns():
    """The same for a source that has columns and no rows."""
    assert DatasetRecipe("r").add_ingredient("a", numbers(0)).bake().table.column_names[:1] == ["x"]


# Into a buffer that lives on ------------------------------------------------------------------------------------------


def test_into_appends_to_a_living_buffer_with_its_size():
    """Old rows leave as the buffer's own rules say."""
    buffer = DatasetBuffer(max_size=5, drop_strategy="oldest")
    buffer.append(numbers(4))

    result = DatasetRecipe("r").add_ingredient("a", numbers(3, 100)).bake(into=buffer)

    assert result.buffer is buffer
    assert buffer.to_pydict()["x"] == [2, 3, 100, 101, 102]
    assert result.report.n_rows == 3


def test_a_bake_that_fails_leaves_the_buffer_as_it_was():
    """All or nothing: a step that fails at the last row, a schema that does not fit."""
    buffer = DatasetBuffer(max_size=5)
    buffer.append(numbers(4))
    before = buffer.snapshot().to_arrow()

    with pytest.raises(ZeroDivisionError):
        bake(
            DatasetRecipe("r")
            .add_ingredient("a", numbers(3))
            .prepare_step("bad", lambda row: {"x": 1 // (2 - row["x"])}),
            into=buffer,
        )
    with pytest.raises(SchemaError):
        bake(DatasetRecipe("r").add_ingredient("a", [{"x": "text"}]), into=buffer)

    assert buffer.snapshot().to_arrow().equals(before)


def test_a_buffer_may_be_baked_from_itself():
    """The rows as they were when the bake began are the ingredient."""
    buffer = DatasetBuffer()
    buffer.append(numbers(4))

    bake(DatasetRecipe("r").add_ingredient("own", buffer, take=2, pick="latest"), into=buffer)

    assert buffer.to_pydict()["x"] == [0, 1, 2, 3, 2, 3]


def test_a_guard_refuses_or_drops_at_the_door():
    """``guard=`` is asked before anything is appended."""
    buffer = DatasetBuffer()
    buffer.append([{"x": 1}])
    recipe = DatasetRecipe("r").add_ingredient("a", [{"x": 1}, {"x": 50}])

    with pytest.raises(DataRefused):
        recipe.bake(into=buffer, guard=Suite("small").expect("x", between=(0, 9)))
    recipe.bake(into=buffer, guard=Suite("small").expect("x", between=(0, 9)).on(error="drop"))

    assert buffer.to_pydict()["x"] == [1, 1]


def test_lineage_is_about_the_rows_that_a_guard_let_through():
    """``lineage.why(i)`` and ``buffer[i]`` are the same row."""
    guard = Suite("small").expect("x", between=(0, 9)).on(error="drop")

    result = DatasetRecipe("r").add_ingredient("a", [{"x": 50}, {"x": 1}]).bake(guard=guard)

    assert len(result.buffer) == len(result.lineage) == result.report.n_rows == 1
    assert result.lineage.why(0).row == 1


# The report -----------------------------------------------------------------------------------------------------------


def test_the_report_counts_what_each_instruction_did(tmp_path):
    """Asked and achieved, rows in and out, filtered, nulls; the same for any size of fragments."""
    recipe = DatasetRecipe("r").add_ingredient("a", shelf(tmp_path, 2, 55, 5), where=col.text != "row 7", take=20)
    recipe.prepare_step("odd", "filter", keep="x % 2 == 1")

    for sizes in [(1, 1, 1), (65_536, 131_072, 16_384)]:
        with cut(*sizes):
            result = recipe.bake()
        first, second = line(result, "a"), line(result, "odd")
        assert (first.asked, first.rows_in, first.rows_out, first.nulls, first.filtered) == (20, 110, 20, 10, 11)
        assert (second.rows_in, second.rows_out) == (20, result.table.num_rows)
        assert result.report.n_rows == result.table.num_rows == result.report.shares["a"]


def test_nulls_are_counted_in_row_groups_that_are_not_read(tmp_path):
    """A filter that is unknown for a row drops it and counts it, also where statistics say that none can hold."""
    write(tmp_path / "a.parquet", pa.table({"n": [1, None, 2, 50, None, 60]}), 3)

    result = DatasetRecipe("r").add_ingredient("a", tmp_path, where=col.n > 40).bake()

    assert result.table.to_pylist() == [{"n": 50}, {"n": 60}]
    assert (line(result, "a").nulls, line(result, "a").filtered, line(result, "a").rows_in) == (2, 4, 6)


def test_repeated_rows_are_counted_as_achieved():
    """The report of a short ingredient that is repeated says how many rows it gave."""
    result = DatasetRecipe("r").add_ingredient("a", numbers(6), take=18, on_short="repeat").bake()

    assert (line(result, "a").asked, line(result, "a").rows_out) == (18, 18)


def test_the_report_is_json_text_and_html():
    """For people and for programs."""
    report = DatasetRecipe("<r>").add_ingredient("<a>", numbers(6), take=0.5).bake().report

    assert json.loads(report.to_json())["lines"][0]["name"] == "<a>"
    assert "6 -> " in str(report)
    assert "&lt;a&gt;" in report.to_html()
    assert "<a>" not in report.to_html()


def test_progress_is_told_once_for_each_part():
    """Counts up to the number of parts."""
    told: list[tuple[str, int, int]] = []
    with cut(10):
        DatasetRecipe("r").add_ingredient("a", numbers(35)).bake(progress=lambda *each: told.append(each))

    assert told == [("a", i, 4) for i in (1, 2, 3, 4)]


def test_diff_tells_rows_and_cause():
    """Added, removed, changed, and whether data or recipe is the cause."""
    buffer = DatasetBuffer()
    buffer.append(numbers(10))
    recipe = DatasetRecipe("r").add_ingredient("a", buffer)
    first = recipe.bake()
    buffer.update([3], {"score": [99.0]})
    buffer.append(numbers(2, 10))
    second = recipe.bake()
    third = DatasetRecipe("r").add_ingredient("a", buffer, where=col.x > 0).bake()

    found = [
        (d.added, d.removed, d.changed, d.because)
        for d in (second.diff(first), third.diff(second), second.diff(second))
    ]

    assert found == [(2, 0, 1, "data"), (0, 1, 0, "recipe"), (0, 0, 0, "nothing")]


def test_diff_blames_the_recipe_for_a_changed_function():
    """Also where only the code of a step or a policy is another."""
    rows = numbers(5)
    one = DatasetRecipe("r").add_ingredient("a", rows).prepare_step("s", lambda row: {"x": row["x"]}).bake()
    two = DatasetRecipe("r").add_ingredient("a", rows).prepare_step("s", lambda row: {"x": row["x"] + 1}).bake()

    assert two.diff(one).because == "recipe"


def test_a_fingerprint_changes_with_the_recipe_and_with_nothing_else():
    """Each part of a recipe is in it; addresses of functions are not."""

    def one(**options: Any) -> str:
        given = {"source": "a/*.parquet", **options}
        return DatasetRecipe("r").add_ingredient("a", **given).fingerprint

    def step(function: Any, **options: Any) -> str:
        return DatasetRecipe("r").add_ingredient("a", "x").prepare_step("s", function, **options).fingerprint

    others = [
        one(),
        one(source="b/*.parquet"),
        one(source=Path("c.parquet")),
        one(source=Path("d.parquet")),
        one(where="x > 1"),
        one(take=1),
        one(take=1.0),
        one(take=1, on_short="accept"),
        one(take=1, pick="latest"),
        one(weight=1),
        one(source=DatasetRecipe("inner", seed=1)),
        one(source=DatasetRecipe("inner", seed=2)),
        step(lambda row: row),
        step(lambda row: []),
        step(lambda row: row, version=1),
        step("limit", n=1),
        step("limit", n=2),
        step(Suite("u").expect("x", finite=True)),
        step(Suite("u").expect("y", finite=True)),
    ]

    def positive(row: Any) -> bool:
        return row["x"] > 0

    assert len(set(others)) == len(others)
    assert one(where=lambda row: row["x"]) == one(where=lambda row: row["x"])
    assert step(positive, where=positive) == step(positive, where=positive)


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"take": -1},
        {"take": 1.5},
        {"take": float("nan")},
        {"take": float("inf")},
        {"take": True},
        {"take": "5"},
        {"take": 3, "weight": 1},
        {"pick": "best"},
        {"pick": "top"},
        {"pick": "top()"},
        {"on_short": "cry"},
        {"weight": 0},
        {"weight": -1.0},
        {"weight": float("nan")},
    ],
)
def test_an_impossible_ingredient_is_refused_by_name(options):
    """Where it is written, or at the latest when it is baked."""
    with pytest.raises(RecipeError, match=r"take|weight|pick|on_short"):
        DatasetRecipe("r", total=10).add_ingredient("oats", numbers(20), **options).bake()


def test_two_ingredients_of_one_name_are_refused():
    """Names tell rows apart."""
    with pytest.raises(RecipeError, match="'a'"):
        DatasetRecipe("r").add_ingredient("a", []).add_ingredient("a", [])


@pytest.mark.parametrize(
    "options", [{"unit": "bytes"}, {"unit": "tokens"}, {"total": 0}, {"total": 1.5}, {"seed": -1}, {"seed": "x"}]
)
def test_an_impossible_recipe_is_refused(options):
    """Loud, and at once."""
    with pytest.raises((ConfigError, TypeError)):
        DatasetRecipe("r", **options)


@pytest.mark.parametrize(
    "call",
    [
        lambda recipe: recipe.bake(engine="rays"),
        lambda recipe: recipe.bake(on_error="ignore"),
        lambda recipe: recipe.prepare_step("s", "shufle").bake(),
        lambda recipe: recipe.prepare_step("s", 5).bake(),
        lambda recipe: recipe.prepare_step("s", "limit").bake(),
        lambda recipe: recipe.prepare_step("s", "limit", n=-1).bake(),
        lambda recipe: recipe.prepare_step("s", "limit", n=1, m=2).bake(),
        lambda recipe: recipe.prepare_step("s", "dedup", column=["x"]).bake(),
        lambda recipe: recipe.prepare_step("s", "shuffle", seeds=2).bake(),
        lambda recipe: recipe.prepare_step("s", lambda row: row, batched="rows").bake(),
        lambda recipe: recipe.bake(on_error="skip", budget=-1),
        lambda recipe: recipe.bake(on_error="skip", budget=float("nan")),
    ],
)
def test_what_makes_no_sense_is_an_error(call):
    """Misconfiguration is loud: also an option that no step knows."""
    with pytest.raises((RecipeError, ConfigError)):
        call(DatasetRecipe("r").add_ingredient("a", numbers(3)))


def test_lineage_knows_its_ends():
    """A row that is not there is an IndexError, and so is a negative number: rows are counted from 0."""
    lineage = DatasetRecipe("r").add_ingredient("a", numbers(3)).bake().lineage

    assert lineage.why(2) == lineage.why(np.int64(2))
    for row in (3, -1):
        with pytest.raises(IndexError):
            lineage.why(row)
