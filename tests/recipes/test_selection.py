"""Which rows are taken: by hash, so that a choice stays when others come; the newest, the best, strata; and too few."""

from __future__ import annotations

import itertools
import math
from datetime import datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolish import DatasetBuffer, DatasetRecipe, col
from poolish.errors import RecipeError, UnknownColumn
from poolish.recipes import stratified, top
from poolish.recipes.selection import largest_remainder
from tests.effort import times
from tests.recipes.kitchen import Model, cut, line, numbers, shared_out, shelf, write, xs


def taken(source, take, *, seed=0, name="a", **options):
    """The numbers that are taken of a source."""
    return xs(DatasetRecipe("r", seed=seed).add_ingredient(name, source, take=take, **options).bake())


# By hash --------------------------------------------------------------------------------------------------------------


@settings(max_examples=times(25))
@given(seed=st.integers(0, 2**62), fractions=st.lists(st.floats(0, 1), min_size=2, max_size=2).map(sorted))
def test_a_smaller_fraction_is_a_part_of_a_larger_one(seed, fractions):
    """10 % is a subset of 20 %, for any seed."""
    few, more = (taken(numbers(200), fraction, seed=seed) for fraction in fractions)

    assert set(few) <= set(more)


def test_a_smaller_count_is_a_part_of_a_larger_one():
    """The rows with the smallest hashes: k of them are among the next k + 1."""
    found = [set(taken(numbers(60), n)) for n in range(61)]

    assert [len(each) for each in found] == list(range(61))
    assert all(few <= more for few, more in itertools.pairwise(found))


def test_a_count_and_a_fraction_choose_by_the_same_hash():
    """As many rows as a fraction happens to give are the same rows."""
    some = taken(numbers(500), 0.3)

    assert taken(numbers(500), len(some)) == some


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5, 0.9])
def test_the_chosen_fraction_is_within_binomial_bounds(fraction):
    """Over 10 seeds of 20,000 rows none is five deviations away, and files are chosen from evenly."""
    n_rows = 20_000
    spread = math.sqrt(n_rows * fraction * (1 - fraction))

    found = [len(taken(numbers(n_rows).select(["x"]), fraction, seed=seed)) for seed in range(10)]

    assert all(abs(n - n_rows * fraction) < 5 * spread for n in found)
    assert len(set(found)) > 3


def test_neighbours_are_chosen_independently():
    """Which row is chosen says nothing about the next: runs are as long as chance makes them."""
    chosen = set(taken(numbers(20_000).select(["x"]), 0.5))

    n_pairs = sum(x in chosen and x + 1 in chosen for x in range(19_999))

    assert abs(n_pairs - 5_000) < 5 * math.sqrt(20_000 * 0.25 * 0.75)


def test_all_and_nothing_are_exact():
    """0.0 and 0 take nothing, 1.0 everything, and the whole count everything."""
    assert [len(taken(numbers(100), take)) for take in (0.0, 0, 1.0, 100)] == [0, 0, 100, 100]


def test_the_ingredient_name_and_the_seed_decide_the_choice():
    """Two ingredients of one source do not take the same rows by accident."""
    found = [tuple(taken(numbers(100), 20, seed=seed, name=name)) for seed in (1, 2) for name in ("a", "b")]

    assert len(set(found)) == 4


def test_rows_taken_keep_the_order_of_the_source():
    """A choice is no shuffle."""
    found = taken(numbers(200), 50)

    assert found == sorted(found)


# What comes later changes no choice -----------------------------------------------------------------------------------


def test_a_new_file_changes_no_old_choice(tmp_path):
    """Of old files the same rows are taken, whatever name the new one has."""
    shelf(tmp_path, 3, 40)
    before = taken(tmp_path, 0.4)
    write(tmp_path / "000a.parquet", numbers(40, 900))
    write(tmp_path / "0.parquet", numbers(40, 1_000))

    after = taken(tmp_path, 0.4)

    assert [x for x in after if x < 900] == before
    assert len(after) > len(before)


def test_a_file_that_left_changes_no_other_choice(tmp_path):
    """What was taken of the others is still taken."""
    shelf(tmp_path, 3, 40)
    before = taken(tmp_path, 0.4)
    (tmp_path / "001.parquet").unlink()

    assert taken(tmp_path, 0.4) == [x for x in before if not 40 <= x < 80]


def test_appended_rows_change_no_old_choice():
    """Of a buffer, a table and a list: rows are chosen by their numbers."""
    buffer = DatasetBuffer()
    buffer.append(numbers(50))
    before = [taken(source, 0.4) for source in (buffer, numbers(50), numbers(50).to_pylist())]
    buffer.append(numbers(30, 50))
    after = [taken(source, 0.4) for source in (buffer, numbers(80), numbers(80).to_pylist())]

    assert [[x for x in found if x < 50] for found in after] == before


def test_rows_that_left_a_buffer_change_no_other_choice():
    """A row's number is its id, which nobody else gets."""
    buffer = DatasetBuffer(max_size=50)
    buffer.append(numbers(50))
    before = taken(buffer, 0.4)
    buffer.append(numbers(20, 50))

    assert [x for x in taken(buffer, 0.4) if x < 50] == [x for x in before if x >= 20]


def test_a_filter_does_not_change_which_rows_are_chosen():
    """The choice is made by what a row is, so a stricter filter only takes away."""
    assert [x for x in taken(numbers(90), 0.5) if x % 3] == list(taken(numbers(90), 0.5, where="x % 3 != 0"))


def test_an_append_to_one_ingredient_changes_no_other(tmp_path):
    """Neither fractions, nor counts, nor shares of the others."""
    grows = DatasetBuffer()
    grows.append(numbers(100))

    def others():
        recipe = DatasetRecipe("r", seed=4, total=60)
        recipe.add_ingredient("grows", grows, weight=1).add_ingredient("half", numbers(50, 1_000), take=0.5)
        recipe.add_ingredient("ten", numbers(50, 2_000), take=10).add_ingredient("share", numbers(90, 3_000), weight=2)
        return [x for x in xs(recipe.bake()) if x >= 1_000]

    before = others()
    grows.append(numbers(40, 100))

    assert others() == before


def test_a_count_lets_an_appended_row_in_only_for_the_largest_hash():
    """k smallest hashes: of the old rows at most as many leave as new ones come in."""
    before, after = set(taken(numbers(100), 30)), set(taken(numbers(120), 30))

    assert before - after == set() or len(before - after) == len([x for x in after if x >= 100])


# The newest, the oldest, the best, strata -----------------------------------------------------------------------------


@pytest.mark.parametrize("take", [0, 1, 7, 60, 0.0, 0.25, 1.0])
@pytest.mark.parametrize("sizes", [1, 7, 65_536])
def test_latest_and_oldest_are_the_ends(take, sizes):
    """In the order of the source, after the filter, for any size of fragments."""
    kept = [x for x in range(90) if x % 3 != 0]
    n_rows = round(len(kept) * take) if isinstance(take, float) else take

    with cut(sizes):
        last = taken(numbers(90), take, where="x % 3 != 0", pick="latest")
        first = taken(numbers(90), take, where="x % 3 != 0", pick="oldest")

    assert last == kept[len(kept) - n_rows :]
    assert first == kept[:n_rows]


def test_top_takes_the_largest_values():
    """Ties by hash, so they do not depend on the order; nulls and NaN last, behind minus infinity."""
    table = pa.table({"x": range(7), "v": [1.0, None, 5.0, float("nan"), -math.inf, 5.0, math.inf]})

    found = [set(taken(table, n, pick=top("v"))) for n in range(8)[1:]]

    assert found[0] == {6}
    assert found[2] == {6, 2, 5}
    assert found[3] == {6, 2, 5, 0}
    assert found[4] == {6, 2, 5, 0, 4}
    assert len(found[6]) == 7


@pytest.mark.parametrize("first", [2**53, 2**62, -(2**62)])
def test_top_compares_large_integers_exactly(first):
    """No integer is rounded to meet a float."""
    table = pa.table({"x": [first + i for i in range(40)]})

    assert taken(table, 3, pick="top(x)") == [first + 37, first + 38, first + 39]


def test_top_knows_unsigned_integers_and_nulls_among_them():
    """2**63 is more than 5."""
    table = pa.table({"x": pa.array([0, 1, 2**63, 5, None], pa.uint64())})

    assert taken(table, 2, pick="top(x)") == [2**63, 5]


@pytest.mark.parametrize(
    "values", [["a", "c", "b"], [datetime(2020, 1, day) for day in (1, 3, 2)], [False, True, True]]
)
def test_top_of_what_has_an_order(values):
    """Text, times and bools have one; or it is an error that says what does not."""
    try:
        found = taken(pa.table({"x": [0, 1, 2], "v": values}), 2, pick="top(v)")
    except RecipeError as error:
        assert "'a'" in str(error)  # noqa: PT017
        assert "v" in str(error)  # noqa: PT017
        return

    assert found == [1, 2]


def test_stratified_keeps_proportions():
    """Each value has its share, to the row, and within it rows are chosen by hash."""
    table = pa.table({"x": range(100), "kind": ["a"] * 60 + ["b"] * 30 + ["c"] * 10})

    found = [taken(table, n, pick=stratified("kind")) for n in (10, 50, 37)]

    assert [
        [sum(x in range(*ends) for x in each) for ends in ((0, 60), (60, 90), (90, 100))] for each in found[:2]
    ] == [
        [6, 3, 1],
        [30, 15, 5],
    ]
    assert len(found[2]) == 37
    assert {x for x in found[0] if x < 60} <= {x for x in found[1] if x < 60}


@pytest.mark.parametrize("sizes", [1, 3, 65_536])
def test_stratified_takes_null_for_a_value(sizes):
    """Rows without a value are a stratum of their own."""
    table = pa.table({"x": range(6), "kind": ["a", None, "b", None, "a", "b"]})

    with cut(sizes):
        found = taken(table, 3, pick="stratified(kind)")

    assert sorted(str(table["kind"][x].as_py()) for x in found) == ["None", "a", "b"]


@pytest.mark.parametrize("pick", ["latest", "oldest", "top(x)", "stratified(x)", "hash"])
@pytest.mark.parametrize("take", [0, 0.5])
def test_every_pick_takes_nothing_of_nothing(pick, take):
    """Of an empty table, and of rows that are all filtered away."""
    for source, where in ((numbers(0), None), (numbers(5), col.x > 9)):
        result = DatasetRecipe("r").add_ingredient("a", source, where=where, take=take, pick=pick).bake()
        assert result.table.num_rows == 0


@pytest.mark.parametrize("pick", ["top(nope)", "stratified(nope)"])
def test_a_pick_by_a_column_that_is_not_there_is_told(pick, tmp_path):
    """UnknownColumn, with the ingredient and the column."""
    for source in (numbers(5), write(tmp_path / "a.parquet", numbers(5))):
        with pytest.raises(UnknownColumn) as caught:
            taken(source, 2, pick=pick, name="oats")
        told = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
        assert "nope" in told
        assert "oats" in told


def test_a_function_filter_sees_all_columns_whatever_is_picked_by():
    """Which columns a function looks at is its own business."""
    found = taken(numbers(30), 3, where=lambda row: row["group"] == "g1", pick="top(score)")

    assert {x % 3 for x in found} == {1}
    assert len(found) == 3


def test_a_filter_on_a_field_of_a_struct_can_be_counted(tmp_path):
    """``meta.lang`` is read from tables, buffers and files, with counts as well."""
    table = pa.table({"x": [0, 1, 2], "meta": [{"lang": "en"}, {"lang": "de"}, {"lang": "en"}]})
    buffer = DatasetBuffer()
    buffer.append(table)

    for source in (table, buffer, write(tmp_path / "a.parquet", table)):
        assert taken(source, 2, where="meta.lang == 'en'") == [0, 2]


# Too few --------------------------------------------------------------------------------------------------------------


def test_too_few_rows_are_an_error_that_tells_both_numbers():
    """Nothing is silently less than was asked for."""
    with pytest.raises(RecipeError, match=r"'a'.*1,500.*1,000.*accept"):
        taken(numbers(1_000), 1_500)


def test_too_few_rows_may_be_accepted():
    """All that there are."""
    assert taken(numbers(10), 15, on_short="accept") == list(range(10))


@pytest.mark.parametrize("sizes", [1, 4, 65_536])
@pytest.mark.parametrize("asked", [10, 11, 20, 25, 39])
def test_too_few_rows_may_be_repeated(asked, sizes):
    """As often as it takes, each as often as the others or once more; the rest by hash."""
    with cut(sizes):
        result = DatasetRecipe("r").add_ingredient("a", numbers(10), take=asked, on_short="repeat").bake()
    counts = [xs(result).count(x) for x in range(10)]

    assert result.table.num_rows == asked
    assert max(counts) - min(counts) <= 1
    assert [x for x in range(10) if counts[x] == max(counts)] == taken(numbers(10), asked % 10 or 10)
    assert len(set(result.lineage.identities().tolist())) == asked


@pytest.mark.parametrize("pick", ["latest", "oldest", "top(x)"])
def test_the_rest_of_a_repetition_is_picked_as_asked(pick):
    """25 of 10 by ``latest`` are all twice, and the 5 latest once more."""
    found = taken(numbers(10), 25, pick=pick, on_short="repeat")

    assert sorted(x for x in range(10) if found.count(x) == 3) == (
        [0, 1, 2, 3, 4] if pick == "oldest" else [5, 6, 7, 8, 9]
    )


def test_nothing_cannot_be_repeated():
    """An error, and no endless loop."""
    with pytest.raises(RecipeError, match="'a'"):
        taken(numbers(5), 3, where=col.x > 9, on_short="repeat")


def test_steps_after_a_repetition_see_each_copy():
    """Copies are rows: deduplicated, limited and expanded as such."""
    recipe = DatasetRecipe("r").add_ingredient("a", numbers(4), take=10, on_short="repeat")
    recipe.prepare_step("two", lambda row: [row, row])

    result = recipe.bake()

    assert result.table.num_rows == 20
    assert line(result, "two").rows_out == 20
    assert sorted(xs(recipe.prepare_step("once", "dedup").bake())) == [0, 1, 2, 3]


# Files of one name in two places --------------------------------------------------------------------------------------


def test_files_of_one_name_in_two_directories_are_two_files(tmp_path):
    """A list of paths may name ``a/x.parquet`` and ``b/x.parquet``: rows are told apart and chosen independently."""
    paths = [write(tmp_path / folder / "x.parquet", numbers(100, first)) for folder, first in (("a", 0), ("b", 500))]

    result = DatasetRecipe("r").add_ingredient("web", paths, take=31).bake()
    first = {x for x in xs(result) if x < 500}

    assert result.table.num_rows == 31
    assert len(set(result.lineage.identities().tolist())) == 31
    assert first != {x - 500 for x in xs(result) if x >= 500}
    assert len({result.lineage.why(i).file for i in range(31)}) == 2


# Sharing out ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=8), st.integers(1, 10**9))
def test_largest_remainder_is_the_one_of_whole_numbers(weights, total):
    """Shares add up to the total, and differ from the exact ones by less than one row."""
    shares = largest_remainder([float(weight) for weight in weights], total)

    assert sum(shares) == total
    assert all(
        abs(share - total * weight / sum(weights)) < 1.001 for share, weight in zip(shares, weights, strict=True)
    )
    if total * max(weights) < 2**40:
        assert sorted(shares) == sorted(shared_out(weights, total))


@given(st.lists(st.decimals("0.001", "1000", places=3), min_size=1, max_size=8), st.integers(0, 10**9))
def test_weights_are_shared_out_as_they_are_written(weights, total):
    """0.1 and 0.2 are one and two parts, whatever their floats are; whole numbers in any type give the same shares."""
    thousandths = [int(weight * 1000) for weight in weights]

    assert largest_remainder([float(weight) for weight in weights], total) == shared_out(thousandths, total)
    assert largest_remainder(thousandths, total) == shared_out(thousandths, total)


def test_strata_may_be_as_many_as_rows():
    """Work grows with the number of values, not with its square: this would not end before anybody's patience."""
    table = pa.table({"x": [x % 60_000 for x in range(100_000)]})

    found = taken(table, 50_000, pick=stratified("x"))

    assert len(found) == 50_000
    assert set(range(40_000)) <= set(found)


def test_the_model_and_the_bake_choose_the_same():
    """The hash is splitmix64 behind a key of seed, ingredient and part; written down here a second time."""
    model = Model(9)
    model.add("web", {"": [(i, {"x": i}) for i in range(300)]}, take=0.2)

    assert taken(numbers(300), 0.2, seed=9, name="web") == [row.row for row in model.rows]


def test_the_choice_of_a_seed_is_pinned():
    """Literal numbers: whoever changes the hash changes everybody's datasets, and has to change this line."""
    assert taken(numbers(40), 6, seed=7, name="web") == PINNED


PINNED = [1, 3, 8, 18, 19, 26]
