"""What changed between two bakes: rows, their order, and whether what changed made any difference."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa
import pytest

from poolish import DatasetRecipe
from poolish.recipes.differences import differing, is_other_order
from tests.recipes.kitchen import numbers, write, xs


def recipe_of(table: pa.Table, **options: object) -> DatasetRecipe:
    """One ingredient."""
    return DatasetRecipe("r").add_ingredient("oats", table, **options)


def test_rows_in_another_order_are_a_difference():
    """A step that only shuffles is the recipe's doing, and the text says what it did."""
    before = recipe_of(numbers(20)).bake()

    found = recipe_of(numbers(20)).prepare_step("mix", "shuffle").bake().diff(before)

    assert (found.added, found.removed, found.changed, found.is_reordered) == (0, 0, 0, True)
    assert found.because == "recipe"
    assert str(found).splitlines() == [
        "0 rows added, 0 removed, 0 changed, in another order; cause: recipe",
        "  added    step mix",
    ]


def test_rows_that_come_and_go_do_not_change_the_order_of_others():
    """Also where they came in between."""
    before = recipe_of(numbers(20), where="x % 2 == 0").bake()

    found = recipe_of(numbers(20), where="x % 3 == 0").bake().diff(before)

    assert (found.added, found.removed, found.is_reordered) == (3, 6, False)
    assert "order" not in str(found)


def test_data_that_was_written_anew_with_the_same_rows_makes_no_difference(tmp_path):
    """What changed is told, and that the rows are the same: no cause of nothing."""
    recipe = DatasetRecipe("r").add_ingredient("oats", write(tmp_path / "oats.parquet", numbers(20)))
    before = recipe.bake()
    write(tmp_path / "oats.parquet", numbers(20), row_group_size=3)

    found = recipe.bake().diff(before)

    assert found.because == "nothing"
    assert str(found).splitlines() == [
        "0 rows added, 0 removed, 0 changed; the same rows, although",
        "  changed  data of ingredient oats",
    ]


def test_where_nothing_changed_nothing_is_the_cause():
    """One line."""
    assert str(recipe_of(numbers(3)).bake().diff(recipe_of(numbers(3)).bake())) == (
        "0 rows added, 0 removed, 0 changed; cause: nothing"
    )


@pytest.mark.parametrize(
    ("mine", "theirs", "is_other"),
    [([], [], False), ([4], [9], False), ([0, 1, 2], [1, 5, 7], False), ([2, 0, 1], [9, 0, 4], False),
     ([0, 1], [1, 0], True), ([2, 0, 1], [4, 0, 9], True)],
)  # fmt: skip
def test_order_is_that_of_rows_in_both(mine, theirs, is_other):
    """Places may differ, and pairs may come in any order."""
    assert is_other_order(np.array(mine, np.int64), np.array(theirs, np.int64)) is is_other


@pytest.mark.parametrize(
    ("word", "one", "other"),
    [
        ("unit", {}, {"unit": "tokens", "tokens": "n"}),
        ("tokens", {"tokens": "n"}, {"tokens": "m"}),
        ("total", {"total": 5}, {"total": 6}),
    ],
)
def test_all_that_a_recipe_says_is_compared(word, one, other):
    """What is counted, by which column, and how many."""
    found = DatasetRecipe("r", **other).diff(DatasetRecipe("r", **one))

    assert word in found.changed["recipe"]


@pytest.mark.parametrize(("word", "options"), [("pick", {"pick": "latest"}), ("on_short", {"on_short": "accept"})])
def test_all_that_is_asked_of_an_ingredient_is_compared(word, options):
    """How it is picked, and what to do if there is too little."""
    before, after = (DatasetRecipe("r").add_ingredient("rye", "r.parquet", take=3, **each) for each in ({}, options))

    assert list(after.diff(before).changed["ingredient rye"]) == [word]


def test_steps_of_one_name_are_compared_one_by_one():
    """The second is another step."""
    before, after = (DatasetRecipe("r").prepare_step("s", "limit", n=n).prepare_step("s", "limit", n=9) for n in (5, 6))

    assert after.diff(before).changed == {"step s": {"options": ("n=5", "n=6")}}


def test_another_order_alone_is_a_difference():
    """Steps do not commute."""
    one = DatasetRecipe("a").prepare_step("x", "shuffle").prepare_step("y", "dedup")
    other = DatasetRecipe("a").prepare_step("y", "dedup").prepare_step("x", "shuffle")

    assert one.diff(other)
    assert str(one.diff(other)) == "changed  the order of instructions"


def test_a_version_that_is_new_is_told():
    """From none to the first."""
    before = DatasetRecipe("r").prepare_step("s", str.upper)
    after = DatasetRecipe("r").prepare_step("s", str.upper, version=1)

    assert after.diff(before).changed["step s"]["version"] == ("none", "1")


def test_as_many_rows_are_not_the_same_rows():
    """Another seed chooses other rows: some came and as many went."""
    before, after = (DatasetRecipe("r", seed=seed).add_ingredient("a", numbers(30), take=10).bake() for seed in (1, 2))

    found = after.diff(before)

    n_new = len(set(xs(after)) - set(xs(before)))
    assert n_new > 0
    assert (found.added, found.removed, found.changed) == (n_new, n_new, 0)


def test_columns_in_another_order_hold_the_same():
    """No row changed."""
    before, after = (
        DatasetRecipe("r").add_ingredient("a", numbers(5)).prepare_step("s", "select", columns=names).bake()
        for names in (["x", "group"], ["group", "x"])
    )

    assert after.diff(before).changed == 0


def test_one_nan_is_like_another():
    """Whatever bits it is made of; a zero has its sign."""
    one = pa.array(np.array([0x7FF8000000000000, 0xFFF8000000000001, 0], np.uint64).view(np.float64))
    other = pa.array(np.array([0xFFF8000000000001, 0x7FF8000000000000, 1 << 63], np.uint64).view(np.float64))

    assert differing(one, other).tolist() == [False, False, True]


def test_another_source_is_the_recipe_s_doing(tmp_path):
    """It holds something else, of course."""
    before, after = (
        DatasetRecipe("r").add_ingredient("a", write(tmp_path / f"{i}.parquet", numbers(3, 10 * i))).bake()
        for i in (1, 2)
    )

    found = after.diff(before)

    assert (found.because, found.sources) == ("recipe", ())


def test_the_same_path_written_otherwise_is_no_difference(monkeypatch, tmp_path):
    """A difference is one of fingerprints: what does not decide the result is not compared."""
    monkeypatch.chdir(tmp_path)
    one, same = (DatasetRecipe("r").add_ingredient("a", source) for source in ("rye/*.csv", ["./rye/*.csv"]))

    assert one.fingerprint == same.fingerprint
    assert not one.diff(same)


def test_a_nested_recipe_that_changed_is_told():
    """In no more words than its name, as it may be longer than a line; also where one of its steps is unknown."""
    lock = threading.Lock()

    def nested(take: int) -> DatasetRecipe:
        inner = recipe_of(numbers(9), take=take).prepare_step("s", lambda row: {**row, "is_locked": lock.locked()})
        return DatasetRecipe("out").add_ingredient("a", inner)

    assert str(nested(3).diff(nested(2))) == "changed  ingredient a: other source"
    assert not nested(3).diff(nested(3))


def test_another_step_under_the_same_name_is_told_by_its_name():
    """Of functions the name, of built-in steps what files call them."""
    before, after = (DatasetRecipe("r").prepare_step("s", use) for use in ("shuffle", "dedup"))

    assert str(after.diff(before)) == "changed  step s: code shuffle -> dedup"
