"""Preparation steps: per row, per batch, built in; on all rows or on some; and what happens to rows that fail."""

from __future__ import annotations

import datetime
import itertools
import math
import statistics
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolish import DatasetRecipe, col, register_step
from poolish.errors import BudgetSpent, PoolishError, RecipeError, SchemaError, UnknownColumn
from poolish.guards.checks.suite import Suite
from poolish.recipes.engine import LocalEngine
from poolish.recipes.pipeline import as_filter
from poolish.recipes.steps.registry import built_in
from tests.effort import times
from tests.recipes.kitchen import content, cut, line, message_of, numbers, rejects, write, xs

SIZES = [(1, 1, 1), (3, 3, 2), (65_536, 131_072, 16_384)]


def baked(step: Any, table: Any = None, **options: Any) -> Any:
    """One ingredient and one step, however it is cut."""
    bake_options = {key: options.pop(key) for key in ("on_error", "budget") if key in options}
    source = numbers(8) if table is None else table
    recipe = DatasetRecipe("r").add_ingredient("oats", source).prepare_step("knead", step, **options)
    found = []
    for sizes, n_workers in zip(SIZES, (1, 3, 2), strict=True):
        with cut(*sizes):
            found.append(recipe.bake(engine=LocalEngine(n_workers), **bake_options))
    assert all(content(each) == content(found[0]) for each in found)
    return found[0]


def refused(step: Any, table: Any = None, error: Any = PoolishError, **options: Any) -> str:
    """What an error and its notes say."""
    source = numbers(8) if table is None else table
    with pytest.raises(error) as caught:
        DatasetRecipe("r").add_ingredient("oats", source).prepare_step("knead", step, **options).bake()
    return message_of(caught.value)


# Per row --------------------------------------------------------------------------------------------------------------


def test_a_function_gets_a_row_and_gives_a_row():
    """As a dict, with other columns if it likes."""
    result = baked(lambda row: {"x": row["x"] * 2, "is_even": row["x"] % 2 == 0})

    assert result.table.to_pylist() == [{"x": 2 * x, "is_even": x % 2 == 0} for x in range(8)]


def test_a_row_becomes_several_or_none():
    """A list, a tuple or a generator of rows; each stays where its parent was, and is told apart."""
    for many in (
        lambda row: [{"x": row["x"]}] * (row["x"] % 3),
        lambda row: tuple({"x": row["x"]} for _ in range(row["x"] % 3)),
        lambda row: ({"x": row["x"]} for _ in range(row["x"] % 3)),
    ):
        result = baked(many)
        assert xs(result) == [1, 2, 2, 4, 5, 5, 7]
        assert len(set(result.lineage.identities().tolist())) == 7


def test_children_of_children_are_told_apart():
    """Also 1,500 of one row, and children of theirs."""
    recipe = (
        DatasetRecipe("r").add_ingredient("a", numbers(2)).prepare_step("many", lambda row: [{"x": row["x"]}] * 1_500)
    )
    result = recipe.prepare_step("two", lambda row: [row, row]).bake()

    assert len(set(result.lineage.identities().tolist())) == 6_000


def test_a_function_that_leaves_nothing_leaves_no_rows():
    """And the bake goes on."""
    recipe = DatasetRecipe("r").add_ingredient("a", numbers(5)).prepare_step("none", lambda row: [])

    assert recipe.add_ingredient("b", numbers(2)).bake().table.num_rows == 2


@pytest.mark.parametrize("result", [None, 5, "text", [1], [None]])
def test_what_is_no_row_is_told(result):
    """With the step; never taken for something else."""
    told = refused(lambda row: result, error=Exception)

    assert "knead" in told


def test_types_stay_as_they_are_where_a_function_does_not_touch_them():
    """No silent casts: int32 stays int32, float32 float32, and nulls keep the type of their column."""
    table = pa.table(
        {
            "x": pa.array([1, 2, 3], pa.int32()),
            "f": pa.array([0.1, None, 0.3], pa.float32()),
            "t": pa.array([None, None, None], pa.string()),
            "l": pa.array([[], [1], None], pa.list_(pa.int16())),
        }
    )

    plain = DatasetRecipe("r").add_ingredient("oats", table).bake().table

    assert baked(lambda row: row, table).table.equals(plain)
    assert baked(lambda row: row, table, where=col.x == 2).table.equals(plain)
    assert baked(lambda columns: columns, table, batched="columns").table.equals(plain)
    assert baked(lambda each: each, table, batched=True).table.equals(plain)


def test_options_are_passed_to_the_function():
    """``prepare_step(name, f, k=3)`` calls ``f(row, k=3)``."""
    assert xs(baked(lambda row, k: {"x": row["x"] * k}, k=3)) == [3 * x for x in range(8)]


def test_a_registered_step_is_found_by_name():
    """For files; and an unknown name is refused with the nearest one."""

    @register_step("test_steps.double")
    def double(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": row["x"] * 2}

    assert xs(baked("test_steps.double")) == [2 * x for x in range(8)]
    assert "shuffle" in refused("shufle", error=RecipeError)


# On some rows ---------------------------------------------------------------------------------------------------------


def test_a_step_on_a_subset_keeps_places():
    """Rows that are not asked for stay as and where they are, also between children."""
    result = baked(lambda row: [{**row, "x": -row["x"]}] * (row["x"] % 4), where="x % 2 == 1")

    assert xs(result) == [0, -1, 2, -3, -3, -3, 4, -5, 6, -7, -7, -7]
    assert [bool(result.lineage.why(i).steps) for i in range(3)] == [False, True, False]


def test_the_ingredient_is_known_and_is_no_column():
    """``col.ingredient`` in ``where`` alone."""
    recipe = DatasetRecipe("r").add_ingredient("a", [{"x": 1}, {"x": 2}]).add_ingredient("b", [{"x": 1}])
    recipe.prepare_step("s", lambda row: {"x": -row["x"]}, where=(col.ingredient == "b") | (col.x == 2))
    result = recipe.bake()

    assert xs(result) == [1, -2, -1]
    assert result.table.column_names == ["x"]


def test_a_function_may_select_the_subset():
    """Any predicate."""
    assert xs(baked("map", where=lambda row: row["group"] == "g0", columns={"x": col.x + 100})) == [
        *(100, 1, 2, 103, 4, 5, 106, 7),
    ]


@pytest.mark.parametrize("where", [col.x == 1, col.x < 100, col.x > 100, "x % 2 == 0"])
def test_a_step_on_a_subset_loses_no_column(where):
    """A column that it adds is there, with nulls for the others, or it is an error; in any cut the same."""
    outcomes = []
    for sizes in SIZES:
        recipe = (
            DatasetRecipe("r")
            .add_ingredient("oats", numbers(6))
            .prepare_step("knead", lambda row: {**row, "new": 1}, where=where)
        )
        with cut(*sizes):
            try:
                table = recipe.bake().table
                outcomes.append([row.get("new", "missing") for row in table.to_pylist()])
            except (RecipeError, SchemaError) as error:
                outcomes.append([type(error).__name__])
                assert "knead" in str(error) or "new" in str(error)  # noqa: PT017

    selected = [
        x for x in range(6) if {"x == 1": x == 1, "x < 100": True, "x > 100": False}.get(str(where), x % 2 == 0)
    ]
    honest = [1 if x in selected else None for x in range(6)]
    if not selected:
        assert outcomes in ([["missing"] * 6] * 3, [[None] * 6] * 3)
    elif len(selected) == 6:
        assert outcomes == [honest] * 3
    else:
        assert outcomes == [honest] * 3 or all(each in (["RecipeError"], ["SchemaError"]) for each in outcomes)


def test_rows_that_are_null_in_a_subset_keep_their_column():
    """Whichever rows a fragment has, a null is a value of its column's type."""
    table = pa.table({"x": [1, 2, 3, 4], "t": [None, "b", None, "d"]})

    assert baked(lambda row: {**row, "x": -row["x"]}, table, where="x % 2 == 1").table.to_pylist() == [
        {"x": -1, "t": None},
        {"x": 2, "t": "b"},
        {"x": -3, "t": None},
        {"x": 4, "t": "d"},
    ]


# Per batch ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batched", [True, "arrow"])
def test_a_batched_step_gets_a_table(batched):
    """And gives one of as many rows: a table or a record batch."""
    add = lambda table: table.append_column("n", pa.array([table.num_columns] * table.num_rows))  # noqa: E731
    one = lambda table: table.append_column("n", pa.array([4] * table.num_rows)).combine_chunks().to_batches()[0]  # noqa: E731

    assert baked(add, batched=batched).table["n"].to_pylist() == [4] * 8
    assert baked(one, batched=batched).table["n"].to_pylist() == [4] * 8


def test_a_batched_step_may_get_columns():
    """A dict of lists; arrays are as good as lists."""
    result = baked(lambda columns: {"x": np.array(columns["x"]) * 2, "t": columns["text"]}, batched="columns")

    assert xs(result) == [2 * x for x in range(8)]


def test_a_batch_of_nulls_is_no_other_schema():
    """What a batch holds by chance decides no type."""
    result = baked(lambda columns: {"x": [None if x % 4 else x for x in columns["x"]]}, batched="columns")

    assert xs(result) == [0, None, None, None, 4, None, None, None]


def test_lists_that_are_empty_by_chance_are_no_other_schema():
    """The same for lists, per row and per batch."""
    want = [[1] * (x % 2) for x in range(8)]

    assert baked(lambda row: {"n": [1] * (row["x"] % 2)}).table["n"].to_pylist() == want
    assert (
        baked(lambda columns: {"n": [[1] * (x % 2) for x in columns["x"]]}, batched="columns").table["n"].to_pylist()
        == want
    )


def test_a_batched_step_says_where_its_rows_came_from():
    """(rows, parents) for another number of rows."""

    def twice_if_odd(table: pa.Table) -> tuple[pa.Table, list[int]]:
        parents = [i for i, x in enumerate(table["x"].to_pylist()) for _ in range(2 * (x % 2))]
        return table.take(pa.array(parents, pa.int64())), parents

    result = baked(twice_if_odd, batched=True)

    assert xs(result) == [1, 1, 3, 3, 5, 5, 7, 7]
    assert [result.lineage.why(i).row for i in range(8)] == xs(result)
    assert len(set(result.lineage.identities().tolist())) == 8


def test_parents_in_any_order_are_kept_apart():
    """Rows of one parent that do not stand together are still different rows."""
    recipe = DatasetRecipe("r").add_ingredient("a", numbers(2))
    result = recipe.prepare_step("s", lambda t: (t.take([0, 1, 0]), [0, 1, 0]), batched=True).bake()

    assert sorted(xs(result)) == [0, 0, 1]
    assert len(set(result.lineage.identities().tolist())) == 3


@pytest.mark.parametrize(
    "function",
    [
        lambda table: table.slice(1),
        lambda table: (table, [0]),
        lambda table: (table, [99] * table.num_rows),
        lambda table: (table, [-1] * table.num_rows),
        lambda table: table.to_pylist(),
        lambda table: None,
    ],
)
def test_a_batch_that_does_not_add_up_is_told(function):
    """The step is named."""
    assert "knead" in refused(function, error=Exception, batched=True)


# Columns that change --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [col.x > 3, col.x > 100])
def test_fragments_without_rows_follow_the_columns(where, tmp_path):
    """A part whose rows are all filtered away or expanded to none goes through later steps like the others."""
    write(tmp_path / "a.parquet", numbers(8), 2)
    for source, batched in itertools.product((numbers(8), tmp_path), (False, True)):
        step = (lambda t: t.append_column("y", t["x"])) if batched else (lambda row: {**row, "y": row["x"]})
        recipe = DatasetRecipe("r").add_ingredient("a", source, where=where)
        recipe.prepare_step("none", lambda row: [row] if row["x"] != 5 else [])
        recipe.prepare_step("adds", step, batched=batched).prepare_step("picks", "select", columns=["y"])
        recipe.prepare_step("keeps", "filter", keep=col.y >= 0).prepare_step("turns", "rename", columns={"y": "x"})
        for sizes in SIZES:
            with cut(*sizes):
                result = recipe.bake()
            assert result.table.column("x").to_pylist() == ([4, 6, 7] if where.same_as(col.x > 3) else [])


def test_a_step_that_returns_another_schema_for_a_row_is_told():
    """Ingredient, step and column are named."""
    told = refused(lambda row: {"x": "three"} if row["x"] == 3 else {"x": row["x"]}, error=SchemaError)

    assert all(word in told for word in ("oats", "knead", "'x'"))


# Built in -------------------------------------------------------------------------------------------------------------


def test_map_calculates_columns():
    """From what was there before, all at once."""
    result = baked("map", columns={"x": col.x + 1, "was": "x", "one": "1"})

    assert result.table.select(["x", "was", "one"]).to_pylist()[:2] == [
        {"x": 1, "was": 0, "one": 1},
        {"x": 2, "was": 1, "one": 1},
    ]


def test_map_takes_constants():
    """Numbers, of NumPy too, truth values and None are what they are; a text stays an expression."""
    result = baked("map", columns={"n": 1, "f": np.float32(0.5), "b": True, "t": "'x'", "x": None, "new": None})

    assert result.table.select(["n", "f", "b", "t", "x", "new"]).to_pylist() == [
        {"n": 1, "f": 0.5, "b": True, "t": "x", "x": None, "new": None}
    ] * len(result.table)
    assert result.table.schema.field("x").type == pa.int64()


@pytest.mark.parametrize(
    ("step", "options", "words"),
    [
        ("map", {"columns": {"z": len}}, ("map", "'z'", "'len'", "as the step itself")),
        ("map", {"columns": {"z": math.nan}}, ("map", "NaN", "None")),
        ("map", {"columns": {"z": [1]}}, ("map", "an expression is", "list")),
        ("map", {"columns": {"z": "x ="}}, ("map", "'=' has no meaning here; write '=='")),
        ("filter", {"keep": lambda row: True}, ("filter", "keep", "as the step itself", "[] for no row")),
        ("rename", {"columns": {"x": "text"}}, ("'x'", "'text'", "drop or rename", "oats")),
        ("rename", {"columns": {"x": "y", "text": "y"}}, ("'x'", "'y'")),
        ("cast", {"columns": {"x": "int"}}, ("cast", "'x'", "write 'int64'")),
        ("cast", {"columns": {"x": "float"}}, ("cast", "'x'", "write 'float64'")),
        ("cast", {"columns": {"x": "itn64"}}, ("cast", "'x'", "'itn64'", "'int64', 'float64'")),
        ("cast", {"columns": {"x": 8}}, ("cast", "'x'", "'int64', 'float64'")),
        ("tokenize", {"tokenizer": 5}, ("tokenize", "tokenizer=5")),
        ("sample", {}, ("no step 'sample'. Steps by name are",)),
        ("limt", {}, ("no step 'limt'; did you mean 'limit'? Steps",)),
    ],
)
def test_what_a_built_in_step_cannot_do_is_told_with_its_name(step, options, words):
    """Which step, what is wrong, and what to write instead."""
    told = refused(step, **options)

    assert all(word in told for word in ("'knead'", *words))


def test_columns_may_exchange_their_names():
    """A name that is given away is free."""
    assert baked("rename", columns={"x": "text", "text": "x"}).table.column_names == ["text", "x", "group", "score"]


def test_filter_select_drop_rename():
    """Rows and columns go, and names change."""
    assert xs(baked("filter", keep="x > 4 and text != 'row 6'")) == [7]
    assert baked("select", columns=["score", "x"]).table.column_names == ["score", "x"]
    assert baked("drop", columns=["score", "x"]).table.column_names == ["text", "group"]
    assert baked("rename", columns={"x": "y"}).table.column_names == ["y", "text", "group", "score"]


def test_cast_and_fill_nulls():
    """Types and nulls; what would lose something is refused."""
    assert str(baked("cast", columns={"x": "int16"}).table.schema.field("x").type) == "int16"
    assert str(baked("cast", columns={"x": pa.int16()}).table.schema.field("x").type) == "int16"
    assert [str(baked("cast", columns={"x": name}).table.schema.field("x").type) for name in ("bool", "str")] == [
        "bool",
        "large_string",
    ]
    assert baked("fill_nulls", columns={"text": "none"}).table["text"].to_pylist()[5] == "none"
    assert "x" in refused("cast", pa.table({"x": [1.5]}), columns={"x": "int64"})
    assert "x" in refused("cast", pa.table({"x": [300]}), columns={"x": "int8"})


NAIVE = datetime.datetime(2020, 1, 1, 5, 6, 7, 8)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        *((type_, value) for type_ in (pa.int64(), pa.uint8()) for value in (0.5, -1.9, 2**64, True, "7", math.nan)),
        *((pa.int64(), value) for value in (np.float64(0.5), np.float32(2.5), Decimal("0.5"), np.True_, 1e300)),
        *((pa.large_list(pa.int64()), value) for value in ([0.5], (1, 2.5), np.array([0.5]), [True])),
        *((pa.struct([("a", pa.int64())]), value) for value in ({"a": 0.5}, {"a": 1, "b": 2})),
        *((pa.float32(), value) for value in (1e300, 1e-300, True, 2**24 + 1)),
        *((pa.float16(), value) for value in (70_000, 1e6)),
        *((type_, NAIVE) for type_ in (pa.date32(), pa.timestamp("s"), pa.timestamp("us", "Europe/Berlin"))),
        *((pa.timestamp("us"), value) for value in (1.5, NAIVE.astimezone(datetime.UTC))),
        (pa.time32("s"), datetime.time(1, 2, 3, 4)),
        (pa.duration("ms"), datetime.timedelta(microseconds=1_500)),
        (pa.decimal128(5, 1), Decimal("1.23")),
        (pa.bool_(), 1),
    ],
)
def test_nulls_become_exactly_what_was_asked_for(type_, value):
    """A value that the column's type would cut is refused, in lists and structs too."""
    told = refused("fill_nulls", pa.table({"x": pa.nulls(2, type_)}), columns={"x": value})
    assert f"column 'x' holds {type_}, its nulls cannot become" in told


@pytest.mark.parametrize(
    ("type_", "value", "expected"),
    [
        (pa.int64(), 2.0, 2),
        (pa.int8(), np.int64(-3), -3),
        (pa.float32(), 0.1, float(np.float32(0.1))),
        (pa.float32(), math.inf, math.inf),
        (pa.float64(), 3, 3.0),
        (pa.list_(pa.float32()), [0.1, 2], [float(np.float32(0.1)), 2.0]),
        (pa.struct([("a", pa.int64()), ("b", pa.int64())]), {"a": 1}, {"a": 1, "b": None}),
        (pa.timestamp("us"), NAIVE, NAIVE),
        (pa.date32(), 5, datetime.date(1970, 1, 6)),
        (pa.decimal128(5, 1), 3, Decimal("3.0")),
        (pa.large_binary(), "rye", b"rye"),
    ],
)
def test_values_that_a_column_can_hold_fill_its_nulls(type_, value, expected):
    """Equal values, in whatever type of Python; floats in the column's precision."""
    assert baked("fill_nulls", pa.table({"x": pa.nulls(2, type_)}), columns={"x": value}).table["x"].to_pylist() == [
        expected,
        expected,
    ]


@pytest.mark.parametrize(
    ("values", "type_"),
    [([1.0, 1e300], "float32"), ([70_000], "float16"), (["1e400"], "float64"), (["1e39"], "float32")],
)
def test_a_cast_does_not_make_numbers_infinite(values, type_):
    """Too large is an error of the row; what is infinite already stays so."""
    assert "is too large" in refused("cast", pa.table({"x": values}), columns={"x": type_})
    fine = baked("cast", pa.table({"x": [math.inf, -math.inf, 1.0]}), columns={"x": type_})
    assert fine.table["x"].to_pylist() == [math.inf, -math.inf, 1.0]


@pytest.mark.parametrize(
    ("step", "options"),
    [
        ("select", {"columns": ["nope"]}),
        ("drop", {"columns": ["nope"]}),
        ("rename", {"columns": {"nope": "x"}}),
        ("cast", {"columns": {"nope": "int8"}}),
        ("fill_nulls", {"columns": {"nope": 1}}),
        ("tokenize", {"column": "nope", "tokenizer": len}),
        ("dedup", {"columns": ["nope"]}),
        ("winsorize", {"column": "nope"}),
        ("standardise", {"column": "nope"}),
        ("filter", {"keep": "nope > 1"}),
        ("map", {"columns": {"x": "nope + 1"}}),
        ("limit", {"n": 1, "where": "nope > 1"}),
        ("map", {"columns": {"x": "x"}, "where": "nope > 1"}),
    ],
)
def test_a_column_that_is_not_there_is_told_with_the_step(step, options):
    """UnknownColumn; the message or a note names column and step."""
    told = refused(step, error=UnknownColumn, version=1, **options)

    assert "nope" in told
    assert "knead" in told


@pytest.mark.parametrize(
    ("step", "options", "near"),
    [
        ("dedup", {"column": ["a"]}, "columns"),
        ("shuffle", {"sead": 3}, "seed"),
        ("limit", {"n": 1, "batched": True}, "n"),
    ],
)
def test_unknown_options_of_built_in_steps_are_refused(step, options, near):
    """With the nearest name: an option that is ignored does something else than was asked for."""
    with pytest.raises(RecipeError, match=f"'knead'.*{near}"):
        built_in(step, "knead", options)


def test_a_cast_that_fails_names_the_place():
    """Ingredient, step and column."""
    told = refused("cast", pa.table({"x": ["1", "z"]}), columns={"x": "int64"})

    assert all(word in told for word in ("oats", "knead", "'x'"))


def test_dedup_keeps_the_first_of_equal_rows():
    """In all columns or in some; nulls are equal, and so are NaNs; other ingredients count."""
    nan = float("nan")
    table = pa.table({"x": [1.0, 1.0, nan, nan, None, None, 2.0], "y": [0, 0, 1, 1, 2, 2, 3]})

    assert baked("dedup", table).table["y"].to_pylist() == [0, 1, 2, 3]
    assert baked("dedup", columns=["group"]).table["x"].to_pylist() == [0, 1, 2]
    assert xs(baked("dedup", columns=["group"], where=col.x > 2)) == [0, 1, 2, 3, 4, 5]


def test_dedup_looks_at_columns_by_name():
    """Whatever order an ingredient has them in."""
    recipe = DatasetRecipe("r").add_ingredient("a", pa.table({"x": [1], "y": [2]}))
    recipe.add_ingredient("b", pa.table({"y": [2, 1], "x": [1, 2]})).prepare_step("once", "dedup")

    assert recipe.bake().table.to_pylist() == [{"x": 1, "y": 2}, {"x": 2, "y": 1}]


def test_dedup_of_lists_and_structs():
    """Nested values are compared as what they are."""
    table = pa.table({"x": [[1], [1], [], None, [1, 2]], "m": [{"a": 1}] * 4 + [{"a": None}]})

    assert baked("dedup", table).table["x"].to_pylist() == [[1], [], None, [1, 2]]


@settings(max_examples=times(40))
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["", "a", "b", None])), max_size=12), st.integers(1, 5))
def test_dedup_is_that_of_a_set(pairs, size):
    """Against plain Python, in any cut."""
    table = pa.table(
        {"x": pa.array([x for x, _ in pairs], pa.int64()), "t": pa.array([t for _, t in pairs], pa.string())}
    )
    with cut(size):
        result = DatasetRecipe("r").add_ingredient("a", table).prepare_step("once", "dedup").bake()

    assert [tuple(row.values()) for row in result.table.to_pylist()] == list(dict.fromkeys(pairs))


def test_limit_keeps_the_first_rows():
    """Of all, or of those that are asked about."""
    assert xs(baked("limit", n=3)) == [0, 1, 2]
    assert xs(baked("limit", n=0)) == []
    assert xs(baked("limit", n=100)) == list(range(8))
    assert xs(baked("limit", n=1, where="x % 2 == 1")) == [0, 1, 2, 4, 6]


def test_a_shuffle_is_a_permutation_that_later_rows_do_not_disturb():
    """The order of old rows among themselves stays when rows are added; another seed is another order."""
    few, more = xs(baked("shuffle")), xs(baked("shuffle", numbers(20)))

    assert sorted(few) == list(range(8))
    assert [x for x in more if x < 8] == few
    assert xs(baked("shuffle", seed=5)) != few


def test_standardise_has_mean_zero_and_deviation_one():
    """Fitted on all rows, exactly the same however they are cut; nulls stay null; a constant column is zero."""
    values = [None if x % 5 == 0 else x * 1.1 for x in range(40)]
    found = baked("standardise", pa.table({"v": values}), column="v").table["v"].to_pylist()
    known = [v for v in found if v is not None]

    assert [v is None for v in found] == [v is None for v in values]
    assert abs(statistics.fmean(known)) < 1e-12
    assert abs(statistics.pstdev(known) - 1) < 1e-12
    assert baked("standardise", pa.table({"v": [3.0] * 4}), column="v").table["v"].to_pylist() == [0.0] * 4


def test_winsorize_clips_at_quantiles():
    """Of the rows that are asked about, and of no others."""
    table = pa.table({"v": [float(x) for x in range(101)]})
    found = baked("winsorize", table, column="v", lower=0.1, upper=0.9).table["v"].to_pylist()
    some = baked("winsorize", table, column="v", lower=0.0, upper=0.5, where=col.v > 50).table["v"].to_pylist()

    assert found == [min(max(float(x), 10.0), 90.0) for x in range(101)]
    assert some == [min(float(x), 75.5) if x > 50 else float(x) for x in range(101)]


@pytest.mark.parametrize(
    ("step", "parameters", "want"),
    [
        ("winsorize", {"low": 2, "high": 3}, [2.0, 2.0, 2.0, 3.0]),
        ("standardise", {"mean": 1, "std": 2}, [-0.5, 0.0, 0.5, 1.0]),
    ],
)
def test_parameters_in_the_recipe_are_used_as_they_are(step, parameters, want):
    """Nothing is fitted then."""
    assert baked(step, pa.table({"v": [0.0, 1.0, 2.0, 3.0]}), column="v", **parameters).table["v"].to_pylist() == want


@pytest.mark.parametrize("step", ["winsorize", "standardise"])
def test_a_scale_of_nothing_or_of_no_number_is_defined(step):
    """No rows, nulls alone: no warning; text: an error that names the step."""
    for values in ([], [None, None], [math.nan]):
        found = baked(step, pa.table({"v": pa.array(values, pa.float64())}), column="v").table
        assert found.num_rows == len(values)
    assert "knead" in refused(step, pa.table({"v": ["a", "b"]}), column="v")


def test_tokenize_takes_any_callable():
    """Ids, their count; null stays null."""
    result = baked("tokenize", tokenizer=lambda text: [ord(c) for c in text], into="ids", count="n")

    assert result.table["ids"].to_pylist()[1] == [ord(c) for c in "row 1"]
    assert result.table["n"].to_pylist() == [5, 5, 5, 5, 5, None, 5, 5]


def test_tokenize_takes_objects_that_encode():
    """``encode()`` that gives numbers, or an object with ``ids``."""

    class Encoding:
        ids = (1, 2)

    class Tokenizer:
        def encode(self, text: str) -> Encoding:
            return Encoding()

    assert baked("tokenize", tokenizer=Tokenizer(), version=1).table["tokens"].to_pylist()[0] == [1, 2]


# Suites ---------------------------------------------------------------------------------------------------------------


def test_a_suite_rejects_rows_with_reasons():
    """By default the bake stops and says where; skipped rows are in the table of rejects."""
    suite = Suite("small").expect("x", between=(0, 5))

    result = baked(suite, on_error="skip")

    assert xs(result) == [0, 1, 2, 3, 4, 5]
    assert [reject[:4] for reject in rejects(result)] == [("oats", "", 6, "knead"), ("oats", "", 7, "knead")]
    assert "between 0 and 5" in rejects(result)[0][4]
    assert all(word in refused(suite) for word in ("oats", "knead", "row 6"))


def test_a_suite_is_a_step_by_itself_or_by_the_name_that_files_use():
    """``validate`` with its suite is the suite; without one it says what it needs."""
    suite = Suite("small").expect("x", at_most=4)

    by_name, itself = (
        DatasetRecipe("r").add_ingredient("oats", numbers(8)).prepare_step("knead", *step, **options)
        for step, options in ((["validate"], {"suite": suite}), ([suite], {}))
    )

    assert content(by_name.bake(on_error="skip")) == content(itself.bake(on_error="skip"))
    assert by_name.fingerprint == itself.fingerprint
    for options in ({}, {"suite": "suite.yaml"}, {"suite": suite, "more": 1}):
        assert all(word in refused("validate", **options) for word in ("'knead'", "suite=", "Suite.load"))


def test_a_suite_about_all_rows_sees_all_rows():
    """Uniqueness does not depend on fragments; or the suite is refused."""
    table = pa.table({"x": [1, 2, 1, 3, 1]})
    try:
        result = baked(Suite("once").expect_unique("x"), table, on_error="skip")
    except RecipeError as error:
        assert "unique" in str(error)  # noqa: PT017
        return

    assert xs(result) == [1, 2, 3]


# Rows that fail -------------------------------------------------------------------------------------------------------


def odd(row: dict[str, Any]) -> dict[str, Any]:
    """Fails for odd numbers."""
    if row["x"] % 2:
        raise KeyError(f"odd {row['x']}")
    return row


def odd_batch(table: pa.Table) -> pa.Table:
    for x in table["x"].to_pylist():
        odd({"x": x})
    return table


def odd_columns(columns: dict[str, Any]) -> dict[str, Any]:
    for x in columns["x"]:
        odd({"x": x})
    return columns


FAILING = [(odd, {}), (odd_batch, {"batched": True}), (odd_columns, {"batched": "columns"})]


@pytest.mark.parametrize(("step", "options"), FAILING)
def test_an_error_of_a_function_keeps_its_type_and_gains_a_place(step, options, tmp_path):
    """Ingredient, file, row and step; nothing is hidden behind an error of ours."""
    write(tmp_path / "f.parquet", numbers(8).slice(1))

    told = refused(step, tmp_path, error=KeyError, **options)

    assert "odd 1" in told
    assert all(word in told for word in ("oats", "f.parquet", "row", "knead"))


@pytest.mark.parametrize("on_error", ["skip", "quarantine"])
@pytest.mark.parametrize(("step", "options"), FAILING)
def test_rows_that_fail_may_be_left_out(step, options, on_error, tmp_path):
    """The others stay; each that failed is in the table of rejects with where it was and why."""
    write(tmp_path / "f.parquet", numbers(8), 3)

    result = baked(step, tmp_path, on_error=on_error, **options)

    assert xs(result) == [0, 2, 4, 6]
    assert result.rejects.column_names == ["ingredient", "file", "row", "step", "reason"]
    assert [reject[:4] for reject in rejects(result)] == [("oats", "f.parquet", x, "knead") for x in (1, 3, 5, 7)]
    assert all("KeyError" in reject[4] and "odd" in reject[4] for reject in rejects(result))
    assert result.report.n_rejected == 4


@pytest.mark.parametrize("before", [False, True])
def test_rejects_are_counted_at_their_step(before):
    """In the line of the step, whether or not a barrier came before."""
    recipe = DatasetRecipe("r").add_ingredient("oats", numbers(8))
    if before:
        recipe.prepare_step("mix", "dedup")
    result = recipe.prepare_step("knead", odd).bake(on_error="skip")

    assert (line(result, "knead").rows_in, line(result, "knead").rows_out, line(result, "knead").rejected) == (8, 4, 4)


def test_a_subset_that_fails_leaves_the_rest_in_place():
    """Skipped rows leave a gap, and nothing else moves."""
    assert xs(baked(odd, where=col.x > 3, on_error="skip")) == [0, 1, 2, 3, 4, 6]


def test_rows_in_another_schema_may_be_left_out():
    """Returning another schema is a way to fail."""
    result = baked(lambda row: {"x": "three"} if row["x"] == 3 else {"x": row["x"]}, on_error="skip")

    assert xs(result) == [0, 1, 2, 4, 5, 6, 7]
    assert [reject[2] for reject in rejects(result)] == [3]


def test_built_in_steps_may_leave_rows_out():
    """A cast or a tokenizer that fails for a row is like any other step."""
    cast = baked("cast", pa.table({"x": ["1", "z", "3"]}), columns={"x": "int64"}, on_error="skip")

    def tokenizer(text: str) -> list[int]:
        if text == "z":
            raise KeyError(text)
        return [1]

    tokens = baked("tokenize", pa.table({"text": ["a", "z", "b"]}), tokenizer=tokenizer, on_error="skip")

    assert xs(cast) == [1, 3]
    assert [reject[2:4] for reject in rejects(cast)] == [(1, "knead")]
    assert tokens.table["text"].to_pylist() == ["a", "b"]
    assert [reject[2:4] for reject in rejects(tokens)] == [(1, "knead")]


def test_an_error_of_a_tokenizer_or_a_filter_keeps_its_type_and_gains_a_place():
    """They are functions of the user's as well."""

    def fail(value: Any) -> Any:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError) as caught:
        DatasetRecipe("r").add_ingredient("oats", numbers(3), where=fail).bake()

    assert "oats" in "".join(caught.value.__notes__)
    assert "knead" in refused("tokenize", error=ZeroDivisionError, tokenizer=fail)
    assert "knead" in refused(lambda row: row, error=ZeroDivisionError, where=fail)


@pytest.mark.parametrize("kind", ["table", "jsonl", "parquet"])
@pytest.mark.parametrize(("budget", "is_enough"), [(3, False), (4, True), (0.3, False), (0.6, True), (0, False)])
def test_a_budget_bounds_what_may_fail(kind, budget, is_enough, tmp_path):
    """A number of rows, or a fraction of all; more is a BudgetSpent, for every kind of source."""
    if kind == "jsonl":
        (tmp_path / "a.jsonl").write_text("".join(f'{{"x": {x}}}\n' for x in range(8)))
    elif kind == "parquet":
        write(tmp_path / "a.parquet", numbers(8), 2)
    recipe = DatasetRecipe("r").add_ingredient("oats", numbers(8) if kind == "table" else tmp_path)
    recipe.prepare_step("knead", odd)

    if is_enough:
        assert recipe.bake(on_error="skip", budget=budget).report.n_rejected == 4
    else:
        with pytest.raises(BudgetSpent, match=str(budget)):
            recipe.bake(on_error="skip", budget=budget)


# Functions that are the same ------------------------------------------------------------------------------------------


class Kneader:
    """An object with state that cannot be read."""

    def __init__(self) -> None:
        self._rows = iter([])

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return row

    def knead(self, row: dict[str, Any]) -> dict[str, Any]:
        return row


@pytest.mark.parametrize("step", [Kneader(), Kneader().knead])
def test_a_function_that_cannot_be_fingerprinted_asks_for_a_version(step, tmp_path):
    """Where a cache would have to know whether it is still the same; without a cache nobody asks."""
    recipe = DatasetRecipe("r").add_ingredient("a", numbers(3)).prepare_step("s", step)

    with pytest.raises(RecipeError, match=r"'s'.*version"):
        recipe.bake(cache=tmp_path)
    assert DatasetRecipe("r").add_ingredient("a", numbers(3)).prepare_step("s", step, version=1).bake(cache=tmp_path)
    assert xs(recipe.bake()) == [0, 1, 2]


class Taster:
    """An object of which nobody knows what it knows."""

    __slots__ = ("_best",)

    def __init__(self, best: int) -> None:
        self._best = iter([best])


def test_a_filter_that_nobody_can_compare_asks_for_an_attribute(tmp_path):
    """A filter has no argument for a version; the function says it, and then it is kept."""
    taster = Taster(3)

    def tasty(row: Any) -> bool:
        return taster is not None and row["x"] > 3

    recipe = DatasetRecipe("r").add_ingredient("oats", numbers(8), where=tasty)
    with pytest.raises(RecipeError, match=r"where 'tasty': .*tasty\.version = 1") as caught:
        recipe.bake(cache=tmp_path)
    tasty.version = 1

    assert "step 'tasty'" not in str(caught.value)
    assert "pass version" not in str(caught.value)
    assert "Taster" in str(caught.value)
    assert xs(recipe.bake(cache=tmp_path)) == [4, 5, 6, 7]


def test_a_filter_tells_what_it_filters():
    """Where whoever asks knows it."""
    taster = Taster(3)

    with pytest.raises(RecipeError, match=r"^step 'knead', where '<lambda>': .* keep\.version = 1"):
        str(as_filter(lambda row: taster, "step 'knead'"))


def test_a_column_keeps_its_type_or_gets_another_name():
    """A type does not depend on which rows are made together: another one is refused, a new name is not."""
    assert "'x'" in refused(lambda row: {"x": str(row["x"])}, error=SchemaError)
    assert baked(lambda row: {"name": str(row["x"])}).table["name"].to_pylist() == [str(x) for x in range(8)]
    assert baked("map", columns={"x": "cast(x, 'string')"}).table["x"].to_pylist() == [str(x) for x in range(8)]


@pytest.mark.parametrize("n_workers", [1, 3])
def test_an_error_that_looks_like_an_end_is_told(n_workers):
    """``next()`` without a default raises StopIteration: it ends no loop of ours, and its place is told."""
    recipe = DatasetRecipe("r").add_ingredient("oats", numbers(6)).prepare_step("knead", lambda row: next(iter(())))

    with cut(2), pytest.raises(RuntimeError, match="StopIteration") as caught:
        recipe.bake(engine=LocalEngine(n_workers))

    assert all(word in message_of(caught.value) for word in ("oats", "knead", "row"))


# The name of the ingredient -------------------------------------------------------------------------------------------


def test_rows_can_be_told_apart_by_their_ingredient():
    """In map and filter as in ``where``, though it is no column; it becomes one only if somebody asks for that."""
    recipe = DatasetRecipe("r").add_ingredient("rye", numbers(2)).add_ingredient("oats", numbers(3))
    recipe.prepare_step("tell", "map", columns={"source": col.ingredient, "is_rye": "ingredient == 'rye'"})

    rows = recipe.bake().buffer.to_pydict()

    assert rows["source"] == ["rye"] * 2 + ["oats"] * 3
    assert rows["is_rye"] == [True] * 2 + [False] * 3
    assert "ingredient" not in rows
    recipe.prepare_step("some", "filter", keep="ingredient == 'oats' and x > 0")
    recipe.prepare_step("keep", "map", columns={"ingredient": "upper(ingredient)"})
    assert recipe.bake().buffer.to_pydict()["ingredient"] == ["OATS"] * 2
    assert str(recipe.explain().rows) == "2"


def test_a_column_called_ingredient_is_the_data_s_own():
    """In ``where`` and in expressions alike."""
    table = pa.table({"x": [1, 2], "ingredient": ["salt", "rye"]})
    recipe = DatasetRecipe("r").add_ingredient("rye", table)
    recipe.prepare_step("ten", "map", columns={"x": "x * 10"}, where=col.ingredient == "salt")
    recipe.prepare_step("tell", "map", columns={"of": col.ingredient})

    rows = recipe.bake().buffer.to_pydict()

    assert rows == {"x": [10, 2], "ingredient": ["salt", "rye"], "of": ["salt", "rye"]}
    assert recipe.explain().problems == ()
