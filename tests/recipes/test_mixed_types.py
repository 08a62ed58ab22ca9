"""Values that order or group rows are compared as numbers where files differ in their types, or refused in words."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from poolish import DatasetRecipe
from poolish.errors import RecipeError
from poolish.recipes import stratified, top
from poolish.recipes.selection import Candidates, chooser
from tests.recipes.kitchen import cut, write

WHAT = "ingredient 'oats', column 'score'"


def lines(folder, *files):
    """A directory of jsonl files with these scores."""
    folder.mkdir(exist_ok=True)
    for i, scores in enumerate(files):
        rows = [json.dumps({"x": 10 * i + j, "score": score}) for j, score in enumerate(scores)]
        (folder / f"{i}.jsonl").write_text("\n".join(rows))
    return folder


def cooked(source, **options):
    """A recipe over a source whose scores may be of several types."""
    return DatasetRecipe("r").add_ingredient("oats", source, **options)


def scores(recipe):
    """The scores of a bake, all in one type."""
    return recipe.prepare_step("cast", "cast", columns={"score": "float64"}).bake().table["score"].to_pylist()


def candidates(name, values):
    """Rows of one file with these values."""
    column = pa.chunked_array([values])
    return Candidates((name, 0), np.arange(len(column)), np.arange(len(column), dtype=np.uint64), column)


@pytest.mark.parametrize("take", [1, 2, 3, 5])
def test_the_top_of_whole_numbers_and_floats_is_that_of_numbers(tmp_path, take):
    """1 in one file and 0.5 in the next are numbers; a file of nulls says nothing of types."""
    files = lines(tmp_path / "j", [1, 0], [None], [0.5, 1.5])

    found = scores(cooked(files, take=take, pick=top("score")))

    wanted = [1.5, 1.0, 0.5, 0.0, None][:take]
    assert sorted(found, key=str) == sorted(wanted, key=str)


def test_the_top_of_mixed_types_does_not_depend_on_how_many_are_held(tmp_path):
    """Many small files, of which most rows are forgotten on the way."""
    files = lines(tmp_path / "j", *[[i * 7 % 20, i % 3] if i % 2 else [i * 7 % 20 + 0.5] for i in range(20)])
    everything = scores(cooked(files))

    assert [sorted(scores(cooked(files, take=n, pick=top("score")))) for n in range(1, 8)] == [
        sorted(everything)[-n:] for n in range(1, 8)
    ]


def test_strata_of_whole_numbers_and_floats_are_those_of_numbers(tmp_path):
    """1 and 1.0 are one value, of which as many rows are taken as it has its share."""
    files = lines(tmp_path / "j", [1, 2, 1, 2], [1.0, 2.0, 0.5, 0.5])

    found = scores(cooked(files, take=4, pick=stratified("score")))

    assert sorted(found) == [0.5, 1.0, 1.0, 2.0] or sorted(found) == [0.5, 1.0, 2.0, 2.0]


def test_dedup_of_whole_numbers_and_floats_is_that_of_numbers(tmp_path):
    """The first of equal numbers is left, in whichever type it is."""
    files = lines(tmp_path / "j", [1, 0], [None, None], [0.5, 1.0])

    assert scores(cooked(files).prepare_step("once", "dedup", columns=["score"])) == [1.0, 0.0, None, 0.5]


def test_dedup_knows_that_an_empty_list_has_no_type(tmp_path):
    """A file of empty lists and one of nulls are compared with lists of numbers."""
    files = lines(tmp_path / "j", [[1]], [[]], [None], [[1]])

    found = cooked(files).prepare_step("once", "dedup", columns=["score"]).prepare_step("x", "select", columns=["x"])

    assert found.bake().table["x"].to_pylist() == [0, 10, 20]


@pytest.mark.parametrize("size", ["int8", "uint16", "int32", "uint64"])
def test_whole_numbers_of_any_size_are_compared(tmp_path, size):
    """Parquet files may have been written by several programs."""
    write(tmp_path / "p" / "0.parquet", pa.table({"score": pa.array([1, 3], pa.int64())}))
    write(tmp_path / "p" / "1.parquet", pa.table({"score": pa.array([2, 3], size)}))

    assert scores(cooked(tmp_path / "p", take=3, pick=top("score"))) == [3.0, 2.0, 3.0]
    assert scores(cooked(tmp_path / "p").prepare_step("once", "dedup")) == [1.0, 3.0, 2.0]


@pytest.mark.parametrize("large", [2**53 + 1, -(2**53) - 1])
def test_whole_numbers_that_a_float_would_round_are_refused(tmp_path, large):
    """They would be equal to others, or stand in the wrong place: ingredient or step, column and types are told."""
    files = lines(tmp_path / "j", [large], [0.5])

    for pick in (top("score"), stratified("score")):
        with pytest.raises(RecipeError, match=rf"'oats'.*'score'.*int64.*double.*{large}.*source"):
            cooked(files, take=2, pick=pick).bake()
    with pytest.raises(RecipeError, match=rf"'once'.*'score'.*int64.*double.*{large}.*cast"):
        cooked(files).prepare_step("once", "dedup").bake()


def test_large_whole_numbers_may_be_beside_floats_if_they_are_not_chosen(tmp_path):
    """Far below the top nothing has to be compared; how the rows are cut into fragments does not matter."""
    files = lines(tmp_path / "j", [-(2**60), 7, 8], [0.5])
    rows = pa.table({"score": pa.array([-(2**60), 7, 8], pa.int64())})

    assert scores(cooked(files, take=2, pick=top("score"))) == [7.0, 8.0]
    with cut(1):
        assert scores(cooked(rows, take=2, pick=top("score"))) == [7.0, 8.0]


def test_text_and_numbers_are_no_values_of_one_kind(tmp_path):
    """The error names both types and the files they are in."""
    files = lines(tmp_path / "j", [1], ["high"])

    for pick in (top("score"), stratified("score")):
        with pytest.raises(RecipeError, match=r"'oats'.*'score'.*int64 in 0\.jsonl.*string in 1\.jsonl.*source"):
            cooked(files, take=1, pick=pick).bake()
    with pytest.raises(RecipeError, match=r"'once'.*'score'.*int64 in.*'oats', 0\.jsonl.*string in.*1\.jsonl.*cast"):
        cooked(files).prepare_step("once", "dedup", columns=["score"]).bake()


@pytest.mark.parametrize("how", ["top", "stratified"])
@pytest.mark.parametrize("type_", [pa.list_(pa.int64()), pa.list_(pa.int64(), 2), pa.list_(pa.string())])
def test_lists_have_no_order_and_make_no_groups(how, type_):
    """An error of recipes that tells the type, not one of Arrow."""
    rows = pa.table({"score": pa.nulls(2, type_)})

    with pytest.raises(RecipeError, match=r"list<item|tensor"):
        cooked(rows, take=1, pick=f"{how}(score)").bake()


def test_structs_make_no_groups():
    """As lists do not."""
    with pytest.raises(RecipeError, match="struct"):
        cooked([{"score": {"a": 1}}], take=1, pick=stratified("score")).bake()


@pytest.mark.parametrize("how", ["top", "stratified"])
def test_the_error_says_what_it_is_about(how):
    """Whoever asks for a chooser says which ingredient and column its values are of."""
    found = [pa.array([1, 2]), pa.array(["a"])]
    for values in (found, [pa.array([[1], [2]])], [pa.array([2**60]), pa.array([0.5])]):
        picking = chooser(how, 2, WHAT)
        with pytest.raises(RecipeError, match=WHAT):  # noqa: PT012
            for i, each in enumerate(values):
                picking.add(candidates(f"{i}.jsonl", each))
            picking.choose(2)


def test_float16_has_an_order():
    """Arrow sorts none, so they are sorted as float32."""
    table = pa.table({"score": pa.array([1, 3, 2], pa.float16())})

    assert scores(cooked(table, take=2, pick=top("score"))) == [3.0, 2.0]
