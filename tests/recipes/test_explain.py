"""A recipe is explained before it runs: exact where that is known, estimated and marked where not."""

from __future__ import annotations

import json
import os
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poolish import DatasetRecipe, col
from poolish.errors import PoolishError, RecipeError, SchemaError
from poolish.guards import Suite
from poolish.recipes import explain as explaining
from poolish.recipes import sampling, stratified, top
from poolish.recipes.explanation import Estimate
from poolish.recipes.sources import FileSource


def table_of(n_rows, first=0):
    n = np.arange(first, first + n_rows)
    return pa.table({"n": n, "word": [f"w{i % 7}" for i in n], "tokens": n % 5})


def shout(row):
    return {**row, "word": row["word"].upper()}


def whisper(row):
    return {**row, "word": row["word"].lower()}


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """A busy machine changes no figure."""
    monkeypatch.setattr(explaining, "STEP_SECONDS", 60)


@pytest.fixture
def files(tmp_path):
    """Eight files of a thousand rows."""
    for i in range(8):
        pq.write_table(table_of(1000, 1000 * i), tmp_path / f"{i}.parquet", row_group_size=500)
    return str(tmp_path / "*.parquet")


@pytest.fixture
def little_reading(monkeypatch):
    """A quarter of the files is all that is looked at."""
    monkeypatch.setattr(sampling, "READ_ROWS", 2000)
    monkeypatch.setattr(explaining, "SAMPLED_ROWS", 400)


def counts(explanation):
    return [(line.rows_in.value, line.rows_out.value) for line in explanation.lines]


RECIPES = {
    "all": lambda r, s: r.add_ingredient("a", s),
    "filter": lambda r, s: r.add_ingredient("a", s, where="n % 3 == 0"),
    "pruned": lambda r, s: r.add_ingredient("a", s, where=col.n < 700),
    "fraction": lambda r, s: r.add_ingredient("a", s, take=0.3),
    "count": lambda r, s: r.add_ingredient("a", s, where=col.n > 100, take=50),
    "latest": lambda r, s: r.add_ingredient("a", s, take=50, pick="latest"),
    "top": lambda r, s: r.add_ingredient("a", s, take=0.1, pick=top("n")),
    "stratified": lambda r, s: r.add_ingredient("a", s, take=70, pick=stratified("word")),
    "accept": lambda r, s: r.add_ingredient("a", s, take=10**6, on_short="accept"),
    "step": lambda r, s: r.add_ingredient("a", s, take=40).prepare_step("s", shout),
    "expand": lambda r, s: r.add_ingredient("a", s, take=40).prepare_step("s", lambda row: [row] * (row["n"] % 3)),
    "built in": lambda r, s: r.add_ingredient("a", s, take=900).prepare_step("m", "map", columns={"m": col.n + 1}),
    "keep": lambda r, s: r.add_ingredient("a", s, take=900).prepare_step("f", "filter", keep="n % 2 == 0"),
    "dedup": lambda r, s: r.add_ingredient("a", s, take=900).prepare_step("d", "dedup", columns=["word"]),
    "limit": lambda r, s: (
        r.add_ingredient("a", s, take=9).add_ingredient("b", s, take=9).prepare_step("l", "limit", n=12)
    ),
    "limit of the last": lambda r, s: (
        r.add_ingredient("a", s, take=9)
        .add_ingredient("b", s, take=9)
        .prepare_step("l", "limit", n=12)
        .prepare_step("s", lambda row: [], where=col.ingredient == "b")
    ),
    "untouched": lambda r, s: (
        r.add_ingredient("a", s, take=9).add_ingredient("b", s).prepare_step("s", shout, where=col.ingredient == "a")
    ),
    "shuffled": lambda r, s: (
        r.add_ingredient("a", s, take=9).prepare_step("x", "shuffle").prepare_step("l", "limit", n=4)
    ),
    "fitted": lambda r, s: r.add_ingredient("a", s, take=900).prepare_step("z", "standardise", column="n"),
    "one ingredient": lambda r, s: (
        r.add_ingredient("a", s, take=90)
        .add_ingredient("b", s, take=0.01)
        .prepare_step("s", lambda row: [], where=col.ingredient == "a")
    ),
    "later ingredient": lambda r, s: (
        r.add_ingredient("a", s, take=90).prepare_step("s", lambda row: []).add_ingredient("b", s, take=10)
    ),
    "first of its kind": lambda r, s: (
        r.add_ingredient("a", s)
        .prepare_step("mix", "shuffle")
        .prepare_step("first", "dedup", columns=["word"])
        .prepare_step("low", "filter", keep="n < 4000")
    ),
    "whose is the first": lambda r, s: (
        r.add_ingredient("a", s)
        .add_ingredient("b", s)
        .prepare_step("mix", "shuffle")
        .prepare_step("first", "dedup", columns=["n"])
        .prepare_step("none", "filter", keep="n < 0", where=col.ingredient == "b")
    ),
    "share of a recipe": lambda r, s: r.add_ingredient("b", half_of(s), take=0.3),
}


@pytest.mark.parametrize("name", RECIPES)
def test_small_data_is_explained_exactly(files, name):
    """Where everything can be looked at, each figure is what the bake gives, and says so."""
    recipe = RECIPES[name](DatasetRecipe("breads", seed=5), files)

    explanation = recipe.explain()

    result = recipe.bake()
    assert counts(explanation) == [(line.rows_in, line.rows_out) for line in result.report.lines]
    assert explanation.rows.value == result.table.num_rows
    assert explanation.rows.is_exact or name in ("limit of the last", "top", "stratified", "latest", "expand")
    assert explanation.schema == result.table.schema


def test_large_data_is_estimated_and_marked(files, little_reading):
    """What a sample says is near the truth and marked; what footers say is exact."""
    recipe = DatasetRecipe("breads").add_ingredient("a", files, where=col.word.is_in(["w1", "w2"]), take=0.5)

    explanation = recipe.explain()

    (line,) = explanation.lines
    assert str(line.rows_in) == "8,000"
    assert str(line.rows_out).startswith("~")
    assert line.rows_out.value == pytest.approx(recipe.bake().table.num_rows, rel=0.2)
    assert str(explanation).startswith("breads: ~")


def test_counts_that_were_seen_to_be_there_are_exact(files, little_reading):
    """Ten rows of thousands are ten rows, although not all were looked at."""
    recipe = DatasetRecipe("breads").add_ingredient("a", files, where=col.n >= 0, take=10)

    assert str(recipe.explain().rows) == "10"


def test_the_same_recipe_is_explained_in_the_same_way(files, little_reading):
    """The sample is chosen by hash: only seconds differ."""
    recipe = DatasetRecipe("breads").add_ingredient("a", files, where="n % 3 == 0", take=0.5)
    recipe.prepare_step("half", "filter", keep="n % 2 == 0")

    first, second = recipe.explain(), recipe.explain()

    assert counts(first) == counts(second)
    assert first.n_bytes == second.n_bytes


def test_tokens_are_counted_where_a_column_has_them(files):
    """In and out of each instruction."""
    recipe = DatasetRecipe("breads", tokens="tokens").add_ingredient("a", files, take=700)
    recipe.prepare_step("half", "filter", keep="tokens > 2")

    explanation = recipe.explain()

    tokens = recipe.bake().table.column("tokens").to_numpy().sum()
    assert explanation.tokens.value == tokens
    assert explanation.lines[1].tokens_in.value > tokens
    assert "tokens" in str(explanation)


def test_shares_of_a_total_are_explained(files):
    """In rows exactly, in tokens by the mean of the sample."""
    rows = DatasetRecipe("breads", total=90)
    rows.add_ingredient("a", files, weight=2).add_ingredient("b", files, weight=1)
    tokens = DatasetRecipe("breads", total=900, unit="tokens", tokens="tokens").add_ingredient("a", files, weight=1)

    assert [line.rows_out.value for line in rows.explain().lines] == [60, 30]
    assert tokens.explain().rows.value == pytest.approx(tokens.bake().table.num_rows, rel=0.2)


def test_a_nested_recipe_is_explained_without_being_baked(files):
    """Its own explanation tells how many rows there are."""
    inner = DatasetRecipe("inner").add_ingredient("a", files, take=100)
    inner.bake = None
    outer = DatasetRecipe("outer").add_ingredient("b", inner, where=col.n >= 0, take=30)

    explanation = outer.explain()

    assert counts(explanation) == [(100, 30)]
    assert "recipe 'inner'" in str(explanation)


def test_nothing_is_written_or_changed(files, tmp_path):
    """Explaining makes no cache, and leaves the recipe what it was."""
    recipe = DatasetRecipe("breads").add_ingredient("a", files, take=10).prepare_step("shout", shout)
    print_, listed = recipe.fingerprint, sorted(os.listdir(tmp_path))

    recipe.explain(tmp_path / "cache")

    assert recipe.fingerprint == print_
    assert sorted(os.listdir(tmp_path)) == listed


def test_a_slow_step_is_tried_on_one_row_only(files, monkeypatch):
    """Explaining stays quick, and the seconds of the bake are told from that one."""
    monkeypatch.setattr(explaining, "STEP_SECONDS", 0.5)
    calls = []

    def slow(row):
        calls.append(1)
        time.sleep(0.02)
        return row

    recipe = DatasetRecipe("breads").add_ingredient("a", files).prepare_step("slow", slow, version=1)

    explanation = recipe.explain()

    assert len(calls) <= 3
    assert explanation.lines[1].seconds > 100
    assert not explanation.lines[1].rows_out.is_exact


def test_a_step_that_fails_is_told_before_it_runs(files):
    """Rows that a step rejects, and columns that are not there, are problems in the explanation and not errors."""

    def picky(row):
        if row["n"] % 2:
            raise ValueError("odd")
        return row

    rejecting = DatasetRecipe("breads").add_ingredient("a", files, take=100).prepare_step("picky", picky)
    wrong = DatasetRecipe("breads").add_ingredient("a", files).prepare_step("x", "select", columns=["nothing"])

    assert "ValueError: odd" in rejecting.explain().problems[0]
    assert rejecting.explain(on_error="skip").problems == ()
    assert rejecting.explain().rows.value == rejecting.bake(on_error="skip").table.num_rows
    assert "nothing" in wrong.explain().problems[0]


def test_too_few_rows_are_a_problem_that_is_told(files):
    """A count that is not there, before half of the work is done."""
    recipe = DatasetRecipe("breads").add_ingredient("a", files, take=9000)

    assert "9,000 rows asked for, there are 8,000" in recipe.explain().problems[0]


def test_columns_that_do_not_fit_are_told(files):
    """Ingredients with other columns cannot be one table."""
    recipe = DatasetRecipe("breads").add_ingredient("a", files).add_ingredient("b", pa.table({"other": [1]}))

    explanation = recipe.explain()

    assert explanation.schema is None
    assert "columns" in explanation.problems[0]


@pytest.fixture
def lines_of(tmp_path):
    """JSON lines in files of their own, each with the types that its rows tell."""

    def write(*rows):
        for i, row in enumerate(rows):
            (tmp_path / f"{i}.jsonl").write_text(json.dumps(row) + "\n")
        return str(tmp_path / "*.jsonl")

    return write


def test_files_of_other_types_are_explained_as_they_are_baked(lines_of):
    """Each file goes through the steps by itself, and one that casts makes them fit."""
    recipe = DatasetRecipe("breads").add_ingredient("a", lines_of({"score": 1}, {"score": 0.5}, {"score": 2}))
    recipe.prepare_step("cast", "cast", columns={"score": "float64"})

    explanation = recipe.explain()

    assert explanation.problems == ()
    assert (str(explanation.rows), explanation.schema) == ("3", recipe.bake().table.schema)


@pytest.mark.parametrize(
    "rows",
    [({"a": 1}, {"b": 2}), ({"a": 1}, {"a": 0.5}), ({"a": 1, "b": 1}, {"b": 1, "a": 1}, {"a": 1})],
    ids=["columns", "types", "one column less"],
)
def test_files_that_do_not_fit_are_told_as_the_bake_tells_them(lines_of, rows):
    """A problem with the words of the bake, and no figure that would be true."""
    recipe = DatasetRecipe("breads").add_ingredient("a", lines_of(*rows))

    explanation = recipe.explain()

    with pytest.raises(SchemaError) as raised:
        recipe.bake()
    assert explanation.problems == (f"{raised.value}; the bake would stop there",)
    assert explanation.schema is None
    assert not explanation.rows.is_exact


def test_columns_stand_in_the_order_of_the_first_file(lines_of):
    """Although files are looked at in another order."""
    rows = [{"a": 1, "b": 2}, *({"b": i, "a": 0} for i in range(9))]
    recipe = DatasetRecipe("breads").add_ingredient("a", lines_of(*rows))

    assert recipe.explain().schema == recipe.bake().table.schema


def test_a_filter_is_asked_before_types_are_judged():
    """Rows that it leaves out cannot be wrong, neither here nor in the bake."""
    schema = pa.schema([pa.field("n", pa.int32(), nullable=False)])
    table = pa.Table.from_arrays([pa.array([1, None, 3], pa.int32())], schema=schema)
    recipe = DatasetRecipe("breads").add_ingredient("a", table, where=col.n > 1)

    assert str(recipe.explain().rows) == "1"
    assert recipe.bake().table.num_rows == 1


def test_an_error_of_arrow_is_told_as_ours(monkeypatch):
    """With the ingredient, whatever Arrow does not like about rows that were read."""

    def refuse(pieces):
        raise pa.ArrowTypeError("no type for both")

    monkeypatch.setattr(sampling, "joined", refuse)

    with pytest.raises(RecipeError, match="ingredient 'a': ArrowTypeError: no type for both; fix"):
        DatasetRecipe("breads").add_ingredient("a", table_of(3)).explain()


# What is called exact is exact --------------------------------------------------------------------------------------


def unique(column):
    return Suite("s").expect_unique(column)


def half_of(files, **options):
    return DatasetRecipe("inner").add_ingredient("a", files, take=4000, **options)


MARKED = {
    "filter above latest": lambda r, s: r.add_ingredient("b", half_of(s, pick="latest"), where=col.n < 5000),
    "filter above top": lambda r, s: r.add_ingredient("b", half_of(s, pick=top("n")), where=col.n < 5000),
    "filter above strata": lambda r, s: r.add_ingredient("b", half_of(s, pick=stratified("word")), where=col.n < 5000),
    "count above latest": lambda r, s: r.add_ingredient(
        "b", half_of(s, pick="latest"), where=col.n < 5000, take=1500, on_short="accept"
    ),
    "filter above repeat": lambda r, s: r.add_ingredient(
        "b", DatasetRecipe("inner").add_ingredient("a", s, take=12_000, on_short="repeat"), where=col.n < 5000
    ),
    "share above latest": lambda r, s: r.add_ingredient("b", half_of(s, pick="latest"), where=col.n < 5000, take=1.0),
}


@pytest.mark.parametrize("name", MARKED)
def test_what_may_be_otherwise_in_the_bake_is_marked(files, name):
    """Rows that are chosen while baking, or stand in another order, are not known before: each figure has its ~."""
    recipe = MARKED[name](DatasetRecipe("breads", seed=5), files)

    explanation = recipe.explain(on_error="skip")

    assert not explanation.rows.is_exact
    assert explanation.rows.value != recipe.bake(on_error="skip").table.num_rows


def test_what_cannot_be_estimated_is_said_to_be(files, little_reading):
    """Duplicates in a sample say nothing about those among all rows; a limit is known without looking at any."""
    few = DatasetRecipe("breads").add_ingredient("a", files).prepare_step("few", "limit", n=300)
    single = DatasetRecipe("breads").add_ingredient("a", files).prepare_step("one", "dedup", columns=["word"])

    explanation = single.explain()

    assert str(explanation.rows) == "at most ~8,000"
    assert "cannot be estimated" in str(explanation)
    assert explanation.schema == single.bake().table.schema
    assert str(few.explain().rows) == "300"


def test_rows_that_are_compared_with_others_are_counted_across_ingredients(files):
    """A key that stands in two ingredients is rejected in the second."""
    recipe = DatasetRecipe("breads").add_ingredient("a", files, take=0.5).add_ingredient("b", files)
    recipe.prepare_step("check", unique("n"))

    explanation = recipe.explain(on_error="skip")

    assert explanation.rows.is_exact
    assert explanation.rows.value == recipe.bake(on_error="skip").table.num_rows == 8000
    (problem,) = recipe.explain().problems
    assert "sampled rows of b rejected" in problem
    assert problem.endswith("the bake would stop there")


def test_a_sample_does_not_tell_how_many_rows_a_step_will_reject(files, little_reading):
    """A built-in step keeps rows, but not those that it fails for: here the last one, which is not in the sample."""
    recipe = DatasetRecipe("breads").add_ingredient("a", files)
    recipe.prepare_step("more", "map", columns={"n": col.n + (2**63 - 7999)})

    assert str(recipe.explain().rows) == "8,000"
    assert str(recipe.explain(on_error="skip").rows) == "~8,000"
    assert recipe.bake(on_error="skip").table.num_rows == 7999


def test_exact_figures_are_whole_numbers(files):
    """They were counted: no share of a sample times the number of rows, which may be 178.99999999999997."""
    recipe = DatasetRecipe("breads", tokens="tokens").add_ingredient("a", files, where="n % 7 == 0", take=0.3)
    for i in (3, 11, 13):
        recipe.prepare_step(f"not {i}", "filter", keep=f"n % {i} != 0")

    explanation = recipe.explain()

    assert explanation.rows == Estimate(recipe.bake().table.num_rows, True)
    figures = [(line.rows_in, line.rows_out, line.tokens_out) for line in explanation.lines]
    assert all(isinstance(figure.value, int) and figure.is_exact for line in figures for figure in line)


def test_bytes_are_always_estimated(files):
    """Arrow keeps the same rows in more or fewer bytes, and the result is put together anew."""
    assert str(DatasetRecipe("breads").add_ingredient("a", files).explain()).startswith("breads: 8,000 rows, ~")


def test_a_bake_stops_for_certain_only_at_rows_that_it_bakes(files):
    """A sample that is not whole has rows that the choice may leave out."""

    def picky(row):
        if row["n"] < 4000:
            raise ValueError("low")
        return row

    some = half_of(files, pick="latest").prepare_step("picky", picky)
    all_ = DatasetRecipe("breads").add_ingredient("a", files).prepare_step("picky", picky)
    wrong = half_of(files, pick="latest").prepare_step("x", "select", columns=["nothing"])

    assert some.explain().problems[0].endswith("ValueError: low; the bake may stop there")
    assert some.bake().table.num_rows == 4000
    assert all_.explain().problems[0].endswith("ValueError: low; the bake would stop there")
    assert "ingredient 'a', 0.parquet, step 'x'" in wrong.explain().problems[0]


# Shares in tokens ---------------------------------------------------------------------------------------------------


def mixture(rows, total=1000, tokens="n", **options):
    recipe = DatasetRecipe("breads", total=total, unit="tokens", tokens=tokens)
    return recipe.add_ingredient("a", rows, weight=1, **options)


WORDS = [{"text": "x", "n": 5, "half": 0.5, "gap": None if i else 1} for i in range(10)]


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        (mixture(WORDS), "1,000 tokens asked for, there are 50; ask for fewer"),
        (mixture(WORDS, tokens="n_tokens"), "has no column 'n_tokens'; there are"),
        (
            mixture(WORDS, 10, "half"),
            "column 'half': token counts are whole numbers, one for every row, got double with 0 nulls",
        ),
        (
            mixture(WORDS, 10, "gap"),
            "column 'gap': token counts are whole numbers, one for every row, got int64 with 9 nulls",
        ),
        (
            mixture(WORDS, 10, "text"),
            "column 'text': token counts are whole numbers, one for every row, got large_string",
        ),
        (mixture(WORDS, 10, pick="latest"), "shares in tokens are picked by hash"),
        (mixture(WORDS, 10, on_short="repeat"), "shares in tokens are picked by hash"),
    ],
    ids=["short", "no column", "halves", "nulls", "text", "pick", "repeat"],
)
def test_a_share_in_tokens_that_cannot_be_is_told(recipe, told):
    """Before any work is done, as for rows."""
    (problem,) = recipe.explain().problems

    assert problem.startswith("ingredient 'a'")
    assert told in problem
    with pytest.raises(PoolishError):
        recipe.bake()


def test_a_share_in_tokens_that_takes_what_there_is_is_exact():
    """Where too few are accepted, all rows are taken."""
    explanation = mixture(WORDS, on_short="accept").explain()

    assert explanation.problems == ()
    assert (str(explanation.rows), str(explanation.tokens)) == ("10", "50")


def test_a_column_of_text_is_no_count_of_tokens(files):
    """Nothing is added up, and nothing fails."""
    assert DatasetRecipe("breads", tokens="word").add_ingredient("a", files).explain().tokens is None


# Cached, or why not -------------------------------------------------------------------------------------------------


def make(files, *, seed=0, where=None, take=None, step=shout):
    recipe = DatasetRecipe("breads", seed=seed).add_ingredient("a", files, where=where, take=take)
    return recipe.prepare_step("change", step)


def cache_line(recipe, cache):
    line = recipe.explain(cache).lines[0]
    assert line.cached + sum(line.missing.values()) == line.fragments == 8
    return line.cached, line.missing


def test_a_cached_recipe_says_so(files, tmp_path):
    """After a bake no step is left to do, and the seconds tell that too."""
    cache, recipe = tmp_path / "cache", make(files, take=300)

    assert cache_line(recipe, None) == (0, {"no cache": 8})
    assert cache_line(recipe, cache) == (0, {"new content": 8})
    recipe.bake(cache=cache)
    assert cache_line(recipe, cache) == (8, {})
    assert recipe.explain(cache).lines[1].seconds == 0 < recipe.explain().lines[1].seconds


def test_looking_at_files_takes_time_whatever_is_cached(files, tmp_path, monkeypatch):
    """A bake of which everything is kept still has to see which files there are."""
    cache, recipe = tmp_path / "cache", make(files)
    recipe.bake(cache=cache)
    fragments = FileSource.fragments

    def slow(source):
        time.sleep(0.02)
        return fragments(source)

    monkeypatch.setattr(FileSource, "fragments", slow)

    line = recipe.explain(cache).lines[0]

    assert line.cached == line.fragments
    assert line.seconds >= 0.02


def test_steps_of_one_name_are_found_in_the_cache(files, tmp_path):
    """They are called as the bake calls them."""
    recipe = make(files).prepare_step("change", whisper)
    recipe.bake(cache=tmp_path / "cache")

    assert cache_line(recipe, tmp_path / "cache") == (8, {})
    assert [line.name for line in recipe.explain().lines] == ["a", "change", "change (2)"]


def test_counts_are_found_in_the_cache_too(files, tmp_path):
    """Which hash a count ends at is known where all rows were looked at."""
    for take in (1, 10, 70, 300, 900):
        make(files, take=take).bake(cache=tmp_path / str(take))

        assert cache_line(make(files, take=take), tmp_path / str(take)) == (8, {})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"where": "n > 6"}, "changed filter"),
        ({"seed": 1}, "changed seed"),
        ({"step": whisper}, "changed step change"),
        ({"take": 0.9}, "more rows asked for"),
    ],
)
def test_what_changed_is_why_it_is_not_cached(files, tmp_path, change, reason):
    """A filter, a seed, a step, a larger share: named, so that a surprise is understood before it is paid for."""
    cache, before = tmp_path / "cache", {"where": "n > 5", "take": 0.5}
    make(files, **before).bake(cache=cache)

    assert cache_line(make(files, **{**before, **change}), cache) == (0, {reason: 8})
    assert cache_line(make(files, **{**before, "take": 0.2}), cache) == (8, {})


def test_fewer_rows_are_cached_unless_a_step_drops_rows(files, tmp_path):
    """A kept result holds for a smaller share, but not where a step dropped rows: then it is baked again, and told."""
    odd = {"fewer rows asked for": 8}
    for name, step, reason in (("same", shout, {}), ("odd", lambda row: [row] * (row["n"] % 2), odd)):
        make(files, take=0.5, step=step).bake(cache=tmp_path / name)

        cached, missing = cache_line(make(files, take=0.2, step=step), tmp_path / name)

        assert missing == reason
        assert make(files, take=0.2, step=step).bake(cache=tmp_path / name).report.lines[0].cached == cached


def test_new_and_changed_files_are_told_apart(files, tmp_path):
    """Only what is new is baked; the rest is cached."""
    cache = tmp_path / "cache"
    pq.write_table(table_of(9), tmp_path / "0.parquet")
    make(files).bake(cache=cache)
    pq.write_table(table_of(10), tmp_path / "0.parquet")
    os.rename(tmp_path / "7.parquet", tmp_path / "9.parquet")

    assert cache_line(make(files), cache) == (6, {"changed content": 1, "new content": 1})


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"a": 1}', '{"a": {"fragments": 1}}'])
def test_a_damaged_index_costs_only_the_reasons(files, tmp_path, content):
    """The index explains; it decides nothing."""
    cache = tmp_path / "cache"
    make(files).bake(cache=cache)
    (index,) = (cache / "index").iterdir()
    index.write_text(content)

    assert cache_line(make(files), cache) == (8, {})
    assert cache_line(make(files, seed=3), cache) == (0, {"new content": 8})


def test_explanations_are_pages_too(files):
    """With all figures, escaped, and without anything from elsewhere."""
    recipe = DatasetRecipe("<b>breads</b>").add_ingredient("<i>", files, take=10).prepare_step("mix", "shuffle")

    page = recipe.explain().to_html()

    assert page.startswith("<!doctype html>")
    assert "&lt;b&gt;breads&lt;/b&gt;" in page
    assert "<script" not in page
    assert page.count("<tr>") == 1 + 2 + 1 + 3
    assert recipe.explain()._repr_html_().startswith("<div")


def test_a_filter_that_fails_for_some_rows_is_explained_as_it_is_baked():
    """What a bake with on_error="skip" rejects does not end the explanation either."""
    recipe = DatasetRecipe("r").add_ingredient("a", [{"n": n} for n in range(5)], where=lambda row: 1 / row["n"] < 0.5)

    assert "2 rows" in str(recipe.explain(on_error="skip"))
    assert len(recipe.bake(on_error="skip").buffer) == 2
