"""Every row of a bake can say where it came from, and two bakes can say what changed between them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolish import DatasetBuffer, DatasetRecipe, col
from poolish.recipes.differences import differing
from tests.recipes.kitchen import made, numbers, xs


def shout(row):
    return {**row, "word": row["word"].upper()}


def whisper(row):
    return {**row, "word": row["word"].lower()}


def words(n_rows, first=0):
    return pa.table({"word": [f"w{i}" for i in range(first, first + n_rows)], "n": range(first, first + n_rows)})


def recipe_of(source, name="breads", **options):
    return DatasetRecipe(name).add_ingredient("rye", source, **options)


# Where a row came from ----------------------------------------------------------------------------------------------


def test_a_row_knows_its_file_its_row_and_its_steps(tmp_path):
    """The named row of the named file holds what the row was made of; steps that did not touch it are not named."""
    for name in "ab":
        pq.write_table(words(10, 100 * (name == "b")), tmp_path / f"{name}.parquet")
    recipe = recipe_of(str(tmp_path / "*.parquet"), where=col.n % 2 == 1)
    recipe.prepare_step("shout", shout, where=col.n > 100)

    result = recipe.bake()

    for i, row in enumerate(result.table.to_pylist()):
        why = result.lineage.why(i)
        read = pq.read_table(tmp_path / why.file).slice(why.row, 1).to_pylist()[0]
        assert read["n"] == row["n"]
        assert why.ingredient == "rye"
        assert why.steps == (("shout",) if row["n"] > 100 else ())


def test_a_row_of_a_buffer_is_named_by_its_id():
    """A buffer may lose its oldest rows; ids stay."""
    buffer = DatasetBuffer(max_size=5)
    buffer.append(words(8).to_pylist())

    why = recipe_of(buffer).bake().lineage.why(0)

    assert (why.row, why.file, why.source) == (3, "", "buffer of 5 rows")
    assert str(why) == "rye: buffer of 5 rows, row 3; as it was"


def test_rows_that_one_row_became_are_told_apart():
    """A step that makes three rows of one leaves three parts of the same row."""
    recipe = recipe_of(words(2)).prepare_step("split", lambda row: [row] * 3)

    lineage = recipe.bake().lineage

    found = [lineage.why(i) for i in range(6)]
    assert [why.row for why in found] == [0, 0, 0, 1, 1, 1]
    assert len({(why.row, why.part) for why in found}) == 6


def test_a_nested_row_is_followed_down_to_its_first_source(tmp_path):
    """Through two recipes, shuffled and filtered, to the row of the file, with the steps of each."""
    pq.write_table(words(50), tmp_path / "a.parquet")
    inner = recipe_of(str(tmp_path / "a.parquet"), "inner", take=20).prepare_step("mix", "shuffle")
    middle = DatasetRecipe("middle", seed=3).add_ingredient("half", inner, take=0.5).prepare_step("shout", shout)
    outer = DatasetRecipe("outer").add_ingredient("all", middle, where=col.n > 5).prepare_step("quiet", whisper)

    result = outer.bake()

    assert len(result.lineage) > 0
    for i, row in enumerate(result.table.to_pylist()):
        why = result.lineage.why(i)
        first = why.inner.inner
        assert (first.ingredient, first.file, first.row) == ("rye", "a.parquet", row["n"])
        assert why.steps == ("quiet",)
        assert why.inner.steps == ("shout",)
        assert first.inner is None


@pytest.mark.parametrize("row", [-1, 3, 10**20])
def test_rows_that_are_not_there_are_index_errors(row):
    """Rows are counted from 0, and the error says how many there are."""
    lineage = recipe_of(words(3)).bake().lineage

    with pytest.raises(IndexError, match="of a bake of 3 rows"):
        lineage.why(row)


def test_lineage_as_a_table_says_what_why_says(tmp_path):
    """One line for each row, in the order of the rows."""
    pq.write_table(words(10), tmp_path / "a.parquet")
    recipe = recipe_of(str(tmp_path / "a.parquet"), take=6).add_ingredient("more", words(3, 50))
    recipe.prepare_step("shout", shout, where=col.n < 5).prepare_step("mix", "shuffle")

    lineage = recipe.bake().lineage

    table = lineage.to_arrow()
    assert table.num_rows == len(lineage) == 9
    for i, line in enumerate(table.to_pylist()):
        why = lineage.why(i)
        assert line == {
            "ingredient": why.ingredient,
            "file": why.file,
            "row": why.row,
            "part": why.part,
            "steps": list(why.steps),
        }


# What changed between two bakes -------------------------------------------------------------------------------------


def test_the_same_bake_again_has_no_difference():
    """Nothing changed, and nothing is the cause."""
    found = recipe_of(words(5)).bake().diff(recipe_of(words(5)).bake())

    assert (found.added, found.removed, found.changed, found.because) == (0, 0, 0, "nothing")


def test_new_rows_are_the_data_s_doing():
    """An append adds rows, a changed value changes one, and the recipe is not blamed."""
    before = recipe_of(words(5)).bake()
    grown = pa.concat_tables([words(3), words(1, 77), words(4, 4)])

    found = recipe_of(grown).bake().diff(before)

    assert (found.added, found.removed, found.changed, found.because) == (3, 0, 1, "data")
    assert found.sources == ("rye",)


@pytest.mark.parametrize(
    ("change", "words_"),
    [
        (lambda: recipe_of(words(9), where=col.n > 3), "filter none -> n > 3"),
        (lambda: recipe_of(words(9), take=4), "quantity all -> 4"),
        (lambda: recipe_of(words(9)).prepare_step("shout", shout), "added    step shout"),
    ],
)
def test_a_changed_recipe_is_blamed_and_told(change, words_):
    """The difference says which instruction, and what of it."""
    found = change().bake().diff(recipe_of(words(9)).bake())

    assert found.because == "recipe"
    assert words_ in str(found)


def test_other_code_under_the_same_name_is_a_changed_recipe():
    """A step that was rewritten is told from data that changed."""
    before = recipe_of(words(4)).prepare_step("fix", lambda row: {**row, "n": row["n"] + 1}).bake()
    after = recipe_of(words(4)).prepare_step("fix", lambda row: {**row, "n": row["n"] + 2}).bake()

    found = after.diff(before)

    assert (found.changed, found.because) == (4, "recipe")
    assert "step fix: other code" in str(found)


def test_both_may_be_the_cause():
    """Other rows and another filter are both named."""
    found = recipe_of(words(8), where=col.n > 3).bake().diff(recipe_of(words(9)).bake())

    assert found.because == "recipe and data"


def test_parts_of_a_row_are_matched_by_what_they_are():
    """Where the first of two parts is filtered out, the second is the same row as before, not the first changed."""

    def split(row):
        return [{"n": row["n"]}, {"n": -1}]

    before = recipe_of(words(4, 1)).prepare_step("split", split).bake()
    after = recipe_of(words(4, 1)).prepare_step("split", split).prepare_step("keep", "filter", keep="n < 0").bake()

    found = after.diff(before)

    assert (found.added, found.removed, found.changed) == (0, 4, 0)


def test_another_column_changes_all_rows():
    """Rows with other columns are other rows."""
    before = recipe_of(words(4)).bake()

    found = recipe_of(words(4)).prepare_step("more", "map", columns={"m": col.n + 1}).bake().diff(before)

    assert found.changed == 4


def test_a_million_rows_are_compared():
    """Whole columns are compared, no row is looked at by itself."""
    n_rows = 1_000_000
    table = pa.table({"n": np.arange(n_rows), "word": pa.array(np.arange(n_rows)).cast(pa.string())})
    other = table.set_column(0, "n", pa.array(np.where(np.arange(n_rows) % 1000 == 0, -1, np.arange(n_rows))))
    before, after = recipe_of(table).bake(), recipe_of(other, where=col.n != 5).bake()

    found = after.diff(before)

    assert (found.added, found.removed, found.changed) == (0, 1, 1000)


TYPES = [
    (pa.int64(), st.one_of(st.none(), st.integers(0, 2))),
    (pa.float64(), st.one_of(st.none(), st.sampled_from([1.5, float("nan"), float("inf")]))),
    (pa.string(), st.one_of(st.none(), st.sampled_from(["", "a", "b"]))),
    (pa.bool_(), st.one_of(st.none(), st.booleans())),
    (pa.list_(pa.int64()), st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(0, 1)), max_size=2))),
    (
        pa.large_list(pa.list_(pa.string())),
        st.one_of(st.none(), st.lists(st.one_of(st.none(), st.lists(st.sampled_from("ab"), max_size=2)), max_size=2)),
    ),
    (
        pa.struct({"a": pa.int64(), "b": pa.list_(pa.float32())}),
        st.one_of(
            st.none(),
            st.fixed_dictionaries(
                {"a": st.one_of(st.none(), st.integers(0, 1)), "b": st.lists(st.sampled_from([0.0, 1.0]), max_size=2)}
            ),
        ),
    ),
    (pa.list_(pa.int64(), 2), st.one_of(st.none(), st.lists(st.integers(0, 1), min_size=2, max_size=2))),
]


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_values_differ_where_python_says_so(data):
    """Whatever the type: null is like null and NaN like NaN, in slices too."""
    type_, each = data.draw(st.sampled_from(TYPES))
    n_rows = data.draw(st.integers(0, 6))
    drawn = [data.draw(st.lists(each, min_size=n_rows + 1, max_size=n_rows + 1)) for _ in range(2)]
    left, right = (pa.array(values, type_)[1:] for values in drawn)

    found = differing(left, right)

    pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
    assert found.tolist() == [repr(one) != repr(other) for one, other in pairs]


# What changed between two recipes -----------------------------------------------------------------------------------


def test_recipes_are_compared_by_instruction():
    """Added, removed, changed, and what of it: filter, quantity, version, seed."""
    before = DatasetRecipe("breads", seed=1).add_ingredient("rye", "rye.parquet", where="n > 1", take=5)
    before.add_ingredient("oat", "oat.parquet").prepare_step("shout", shout, version=1)
    after = DatasetRecipe("breads", seed=2).add_ingredient("rye", "rye.parquet", where="n > 2", take=0.5)
    after.prepare_step("shout", shout, version=2).prepare_step("mix", "shuffle")

    found = after.diff(before)

    assert found.added == ("step mix",)
    assert found.removed == ("ingredient oat",)
    assert found.changed == {
        "recipe": {"seed": ("1", "2")},
        "ingredient rye": {"filter": ("n > 1", "n > 2"), "quantity": ("5", "0.5")},
        "step shout": {"version": ("1", "2")},
    }
    assert str(found).splitlines()[0] == "added    step mix"


def test_equal_recipes_have_no_difference_and_order_is_one():
    """A filter said the other way round is the same; steps in another order are not."""
    one = DatasetRecipe("a").add_ingredient("rye", "r.parquet", where="n > 1 and m > 2")
    same = DatasetRecipe("a").add_ingredient("rye", "r.parquet", where="m > 2 and 1 < n")

    assert not one.diff(same)
    assert str(one.diff(same)) == "the same"
    one.prepare_step("x", "shuffle").prepare_step("y", "dedup")
    same.prepare_step("y", "dedup").prepare_step("x", "shuffle")
    assert one.diff(same).is_reordered


def test_a_nested_row_is_the_one_of_the_inner_result():
    """``row`` is its place there, not the number by which it is chosen."""
    inner = DatasetRecipe("in").add_ingredient("a", numbers(9)).prepare_step("mix", "shuffle")
    result = DatasetRecipe("out").add_ingredient("b", inner, take=4).bake()

    assert [xs(inner.bake())[result.lineage.why(i).row] for i in range(4)] == xs(result)


def test_nested_rows_have_their_places_in_tables_too():
    """In the lineage as a table, and among the rejects."""
    inner = DatasetRecipe("in").add_ingredient("a", numbers(9), where="x > 2")
    odd = made("def step(row):\n    if row['x'] % 2: raise ValueError('odd')\n    return row")
    result = DatasetRecipe("out").add_ingredient("b", inner).prepare_step("even", odd).bake(on_error="skip")

    assert result.lineage.to_arrow()["row"].to_pylist() == [1, 3, 5]
    assert result.rejects["row"].to_pylist() == [0, 2, 4]
    empty = DatasetRecipe("none").add_ingredient("b", inner, where="x > 99").bake()
    assert empty.lineage.to_arrow().num_rows == 0


def test_a_source_that_grew_is_described_as_it_was_baked():
    """A line about a row does not change with what is appended later."""
    buffer = DatasetBuffer()
    buffer.append([{"n": 1}, {"n": 2}])
    lineage = DatasetRecipe("r").add_ingredient("a", buffer).bake().lineage
    buffer.append([{"n": 3}])

    assert lineage.why(0).source == "buffer of 2 rows"
