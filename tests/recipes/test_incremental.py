"""Baked again: never wrong, whatever changed in between; and no more work than what changed asks for."""

from __future__ import annotations

import functools
import json
import os
import pickle
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from poolish import DatasetBuffer, DatasetRecipe, StreamStore, col, register_step
from poolish.errors import RecipeError
from poolish.guards.checks.suite import Suite
from poolish.recipes.cache import Cache
from poolish.recipes.selection import CandidateReader
from poolish.testing import Canary
from tests.effort import times
from tests.recipes.kitchen import cached, content, cut, line, made, numbers, shelf, write, xs


def counts(result: Any) -> list[tuple[Any, ...]]:
    """What the report says about rows, which must not depend on what was kept."""
    lines = result.report.lines
    return [(e.name, e.asked, e.rows_in, e.rows_out, e.nulls, e.filtered, e.rejected, e.tokens) for e in lines]


# A machine: change anything, bake with one cache, compare with a bake from nothing ------------------------------------

WHERES = [None, col.x > 3, col.x > 4, "group == 'g1'", "x % 2 == 0 or text == 'row 1'", col.text.is_null()]
TAKES = [None, 0.0, 0.1, 0.5, 0.9, 1.0, 0, 3, 8]
PICKS = ["hash", "latest", "oldest", "top(score)", "stratified(group)"]
CODES = [
    "def step(row): return {**row, 'x': row['x'] + 1}",
    "def step(row): return {**row, 'x': row['x'] + 2}",
    "def step(row): return [row] * (row['x'] % 3)",
    "def step(row): return [row] if K[row['x'] % 2] else []",
    "def step(row):\n    if row['x'] % 3 == 1: raise ValueError(str(row['x']))\n    return row",
    "def step(row, *, k=1): return {**row, 'x': row['x'] * k}",
    "def step(row, *, k=2): return {**row, 'x': row['x'] * k}",
]
BUILT_IN = [
    ("map", {"columns": {"x": "x + 5"}}),
    ("map", {"columns": {"x": "x + 6"}}),
    ("filter", {"keep": "x > 2"}),
    ("fill_nulls", {"columns": {"text": "none"}}),
    ("fill_nulls", {"columns": {"text": "nothing"}}),
    ("dedup", {"columns": ["group", "text"]}),
    ("limit", {"n": 9}),
    ("standardise", {"column": "score"}),
    ("winsorize", {"column": "score", "lower": 0.2, "upper": 0.8}),
    ("shuffle", {}),
]


class Kitchen(RuleBasedStateMachine):
    """Data and recipe change at random; after each change a bake with the cache is the bake from nothing."""

    @initialize(files=st.integers(1, 3))
    def open(self, files: int) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.n_files = self.clock = 0
        for _ in range(files):
            self.new_file(5)
        self.buffer = DatasetBuffer(max_size=14)
        self.buffer.append(numbers(6, 500))
        self.ingredients: dict[str, dict[str, Any]] = {"files": {}, "buffer": {}}
        self.steps: list[tuple[Any, dict[str, Any]]] = []
        self.seed, self.weights = 0, False

    @property
    def files(self) -> list[Path]:
        return sorted((self.folder / "data").glob("*.parquet"))

    def put(self, path: Path, first: int, n_rows: int) -> None:
        write(path, numbers(n_rows, first), 3)
        self.clock += 1  # a clock of our own: file systems may be too coarse to tell two writes apart
        os.utime(path, ns=(self.clock * 10**9, self.clock * 10**9))

    @rule(n_rows=st.integers(0, 7))
    def new_file(self, n_rows: int) -> None:
        self.n_files += 1
        self.put(self.folder / "data" / f"{(self.n_files * 7) % 10}{self.n_files}.parquet", self.n_files * 10, n_rows)

    @rule(which=st.integers(0, 9), first=st.integers(0, 30), n_rows=st.integers(1, 6))
    def rewrite_file(self, which: int, first: int, n_rows: int) -> None:
        self.put(self.files[which % len(self.files)], first, n_rows)

    @precondition(lambda self: len(self.files) > 1)
    @rule(which=st.integers(0, 9))
    def delete_file(self, which: int) -> None:
        self.files[which % len(self.files)].unlink()

    @rule(n_rows=st.integers(1, 5))
    def append(self, n_rows: int) -> None:
        self.buffer.append(numbers(n_rows, 600))

    @rule(fraction=st.sampled_from([0.3, 0.7]), by=st.sampled_from(["latest", "oldest", "random"]))
    def evict(self, fraction: float, by: str) -> None:
        self.buffer.retain(fraction, by=by)

    @precondition(lambda self: len(self.buffer))
    @rule(which=st.integers(0, 13), value=st.integers(0, 20))
    def update(self, which: int, value: int) -> None:
        ids = self.buffer.snapshot().ids
        self.buffer.update([int(ids[which % len(ids)])], {"x": [value]})

    @rule(name=st.sampled_from(["files", "buffer"]), where=st.sampled_from(WHERES))
    def refilter(self, name: str, where: Any) -> None:
        self.ingredients[name]["where"] = where

    @rule(name=st.sampled_from(["files", "buffer"]), take=st.sampled_from(TAKES), pick=st.sampled_from(PICKS))
    def requantify(self, name: str, take: Any, pick: str) -> None:
        self.ingredients[name].update(take=take, pick=pick)

    @rule(code=st.sampled_from(CODES), where=st.sampled_from(WHERES), k=st.integers(0, 1))
    def add_function(self, code: str, where: Any, k: int) -> None:
        self.steps.append((made(code, K=[k, 1]), {"where": where}))

    @rule(step=st.sampled_from(BUILT_IN), where=st.sampled_from(WHERES))
    def add_step(self, step: tuple[str, dict[str, Any]], where: Any) -> None:
        if step[0] != "shuffle":
            self.steps.append((step[0], {"where": where, **step[1]}))
        else:
            self.steps.append((step[0], dict(step[1])))

    @precondition(lambda self: self.steps)
    @rule(which=st.integers(0, 9))
    def drop_step(self, which: int) -> None:
        self.steps.pop(which % len(self.steps))

    @rule(seed=st.integers(0, 2))
    def reseed(self, seed: int) -> None:
        self.seed = seed

    @rule()
    def reweigh(self) -> None:
        self.weights = not self.weights

    @rule(which=st.integers(0, 20), place=st.integers(0, 400), bit=st.integers(0, 7))
    def damage(self, which: int, place: int, bit: int) -> None:
        """A bit flips in a kept fragment."""
        kept = sorted((self.folder / "cache").rglob("*.piece"))
        if kept:
            data = bytearray(kept[which % len(kept)].read_bytes())
            data[place % len(data)] ^= 1 << bit
            kept[which % len(kept)].write_bytes(data)

    def recipe(self) -> DatasetRecipe:
        recipe = DatasetRecipe("any", seed=self.seed, total=7 if self.weights else None)
        for name, source in (("files", self.folder / "data"), ("buffer", self.buffer)):
            options = {"on_short": "accept", **self.ingredients[name]}
            if self.weights:
                options.update(take=None, weight=1 + (name == "files"))
            elif options.get("take") is None:
                options.pop("pick", None)
            recipe.add_ingredient(name, source, **options)
        for i, (step, options) in enumerate(self.steps[:4]):
            recipe.prepare_step(f"s{i}", step, **options)
        return recipe.add_ingredient("late", self.buffer, take=0.5)

    @invariant()
    def bakes_what_a_bake_from_nothing_does(self) -> None:
        if not hasattr(self, "seed"):
            return
        recipe = self.recipe()
        with cut(4, 4, 3):
            try:
                want = recipe.bake(on_error="skip")
            except Exception as error:
                with pytest.raises(type(error)):
                    recipe.bake(on_error="skip", cache=self.folder / "cache")
                return
            got = recipe.bake(on_error="skip", cache=self.folder / "cache")
        assert content(got) == content(want)
        assert counts(got) == counts(want)

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


TestIncrementalIsNeverWrong = Kitchen.TestCase
TestIncrementalIsNeverWrong.settings = settings(max_examples=times(8), stateful_step_count=10, deadline=None)


# Functions: whatever decides what they do is seen ---------------------------------------------------------------------


def versions() -> dict[str, tuple[Any, Any]]:
    """Pairs of steps that differ in something: both are a function of a row ``{"x": 5}`` with other results."""

    class Kneader:
        def __init__(self, k: int) -> None:
            self.k = k

        def step(self, row: dict[str, Any]) -> dict[str, Any]:
            return {"x": row["x"] * self.k}

        __call__ = step

    def closure(k: Any) -> Any:
        return lambda row: {"x": row["x"] * k}

    def inner(k: int) -> Any:
        def helper(x: int) -> int:
            return x * k

        return lambda row: {"x": helper(row["x"])}

    plain = "def step(row): return {'x': row['x'] * K}"
    return {
        "code": (made("def step(row): return {'x': 1}"), made("def step(row): return {'x': 2}")),
        "names": (
            made("def step(row): return {'x': min(row['x'], 3)}"),
            made("def step(row): return {'x': max(row['x'], 3)}"),
        ),
        "attribute": (
            made("def step(row): return {'x': str(row['x']).count('5')}"),
            made("def step(row): return {'x': str(row['x']).find('5')}"),
        ),
        "default": (made("def step(row, k=1): return {'x': k}"), made("def step(row, k=2): return {'x': k}")),
        "keyword default": (
            made("def step(row, *, k=1): return {'x': k}"),
            made("def step(row, *, k=2): return {'x': k}"),
        ),
        "global": (made(plain, K=1), made(plain, K=2)),
        "global type": (
            made("def step(row): return {'x': len(str(K))}", K=1),
            made("def step(row): return {'x': len(str(K))}", K=True),
        ),
        "global list": (
            made("def step(row): return {'x': K[0]}", K=[1]),
            made("def step(row): return {'x': K[0]}", K=[2]),
        ),
        "global array": (
            made("def step(row): return {'x': int(K[2500])}", K=np.zeros(5_000)),
            made("def step(row): return {'x': int(K[2500])}", K=np.ones(5_000)),
        ),
        "global in a comprehension": (
            made("def step(row): return {'x': sum([K * i for i in [row['x']]])}", K=1),
            made("def step(row): return {'x': sum([K * i for i in [row['x']]])}", K=2),
        ),
        "global in a lambda": (
            made("def step(row): return (lambda r: {'x': r['x'] * K})(row)", K=1),
            made("def step(row): return (lambda r: {'x': r['x'] * K})(row)", K=2),
        ),
        "helper": (
            made("def helper(x): return x * 1\ndef step(row): return {'x': helper(row['x'])}"),
            made("def helper(x): return x * 2\ndef step(row): return {'x': helper(row['x'])}"),
        ),
        "helper of a helper": (
            made("def a(x): return x * 1\ndef b(x): return a(x)\ndef step(row): return {'x': b(row['x'])}"),
            made("def a(x): return x * 2\ndef b(x): return a(x)\ndef step(row): return {'x': b(row['x'])}"),
        ),
        "global of a helper": (
            made("def a(x): return x * K\ndef step(row): return {'x': a(row['x'])}", K=1),
            made("def a(x): return x * K\ndef step(row): return {'x': a(row['x'])}", K=2),
        ),
        "class": (
            made("class C:\n  def f(self, x): return x * 1\ndef step(row): return {'x': C().f(row['x'])}"),
            made("class C:\n  def f(self, x): return x * 2\ndef step(row): return {'x': C().f(row['x'])}"),
        ),
        "closure": (closure(1), closure(2)),
        "enum member": (closure_over(made(ENUM, "E", k=1).A), closure_over(made(ENUM, "E", k=2).A)),
        "named tuple": (closure_over(made(TUPLE, "E", k=1)(1)), closure_over(made(TUPLE, "E", k=2)(1))),
        "closure of a list": (closure_of([1]), closure_of([2])),
        "closure of a function": (inner(1), inner(2)),
        "method": (Kneader(1).step, Kneader(2).step),
        "object": (Kneader(1), Kneader(2)),
        "partial": (functools.partial(scaled, k=1), functools.partial(scaled, k=2)),
    }


ENUM = "import enum\nclass E(enum.Enum):\n    A = 1\n    def f(self): return k"
TUPLE = "import typing\nclass E(typing.NamedTuple):\n    a: int\n    def f(self): return k"


def closure_over(value: Any) -> Any:
    return lambda row: {"x": value.f()}


def closure_of(k: list[int]) -> Any:
    return lambda row: {"x": row["x"] * k[0]}


def scaled(row: dict[str, Any], k: int) -> dict[str, Any]:
    return {"x": row["x"] * k}


@pytest.mark.parametrize("name", list(versions()))
def test_a_function_that_changed_is_never_mistaken_for_the_old_one(name, tmp_path):
    """Rows of the new one, or an error that asks for ``version=``; and the same function is known again."""
    one, two = versions()[name]
    found = []
    for function in (one, two, one):
        recipe = DatasetRecipe("r").add_ingredient("a", [{"x": 5}]).prepare_step("s", function)
        try:
            found.append(xs(recipe.bake(cache=tmp_path)))
        except RecipeError as error:
            assert "version" in str(error)  # noqa: PT017
            return

    assert found == [[function({"x": 5})["x"]] for function in (one, two, one)]
    assert found[0] != found[1]


def filters() -> dict[str, tuple[Any, Any]]:
    """Pairs of filters that keep other rows."""
    helper = "def helper(x): return x > {}\ndef step(row): return helper(row['x'])"
    return {
        "code": (made("def step(row): return row['x'] > 1"), made("def step(row): return row['x'] > 2")),
        "global": (made("def step(row): return row['x'] > K", K=1), made("def step(row): return row['x'] > K", K=2)),
        "helper": (made(helper.format(1)), made(helper.format(2))),
        "keyword default": (
            made("def step(row, *, k=1): return row['x'] > k"),
            made("def step(row, *, k=2): return row['x'] > k"),
        ),
        "closure": (above(1), above(2)),
        "partial": (functools.partial(is_above, k=1), functools.partial(is_above, k=2)),
    }


def above(k: int) -> Any:
    return lambda row: row["x"] > k


def is_above(row: dict[str, Any], k: int) -> bool:
    return bool(row["x"] > k)


@pytest.mark.parametrize("name", list(filters()))
@pytest.mark.parametrize("is_step", [False, True])
def test_a_filter_that_changed_is_never_mistaken_for_the_old_one(name, is_step, tmp_path):
    """The same for ``where`` of an ingredient and of a step."""
    found = []
    for function in filters()[name]:
        recipe = DatasetRecipe("r").add_ingredient(
            "a", [{"x": x} for x in range(4)], where=None if is_step else function
        )
        recipe.prepare_step("s", "map", where=function if is_step else None, columns={"x": col.x + 10})
        try:
            found.append(xs(recipe.bake(cache=tmp_path)))
        except RecipeError as error:
            assert "version" in str(error)  # noqa: PT017
            return

    assert found == ([[0, 1, 12, 13], [0, 1, 2, 13]] if is_step else [[12, 13], [13]])


def test_a_new_version_is_a_new_step(tmp_path):
    """``version=`` says it where nobody else can: the same version is believed, another is baked again."""
    calls: list[int] = []

    def step(row: dict[str, Any]) -> dict[str, Any]:
        calls.append(row["x"])
        return {"x": row["x"] + len(calls)}

    def recipe(version: int) -> DatasetRecipe:
        return DatasetRecipe("r").add_ingredient("a", [{"x": 0}]).prepare_step("s", step, version=version)

    assert [xs(recipe(v).bake(cache=tmp_path))[0] for v in (1, 1, 2, 1, 2)] == [1, 1, 2, 1, 2]


def test_a_tokenizer_that_changed_is_never_mistaken_for_the_old_one(tmp_path):
    """Functions made one after the other may have one address."""
    found = []
    for k in range(6):
        recipe = DatasetRecipe("r").add_ingredient("a", [{"text": "rye"}])
        recipe.prepare_step("s", "tokenize", tokenizer=constant(k))
        found.append(recipe.bake(cache=tmp_path).table["tokens"].to_pylist()[0])
        del recipe  # and with it the function, so that the next one may come to lie in its place

    assert found == [[k] for k in range(6)]


def constant(k: int) -> Any:
    return lambda text: [k]


def test_options_that_changed_are_never_mistaken_for_the_old_ones(tmp_path):
    """Arrays are compared as a whole, objects by more than their address; or a version is asked for."""

    def use(row: dict[str, Any], table: Any) -> dict[str, Any]:
        return {"x": int(table[2_500])}

    class Table:
        def __init__(self, k: int) -> None:
            self.k = k

        def __getitem__(self, i: int) -> int:
            return self.k

    for kind in (lambda k: np.where(np.arange(5_000) == 2_500, k, 0), lambda k: [k] * 3_000, Table):
        found = []
        for k in range(4):
            recipe = DatasetRecipe("r").add_ingredient("a", [{"x": 5}]).prepare_step("s", use, table=kind(k))
            try:
                found.append(xs(recipe.bake(cache=tmp_path / "c"))[0])
            except RecipeError as error:
                assert "version" in str(error)  # noqa: PT017
                found.append(k)
            del recipe
        assert found == [0, 1, 2, 3]
        shutil.rmtree(tmp_path / "c", ignore_errors=True)


def test_a_registered_step_and_a_suite_that_changed_are_seen(tmp_path):
    """By what they do, not by their names."""
    found = []
    for k in (1, 2):
        register_step("test_incremental.k")(made(f"def step(row): return {{'x': row['x'] * {k}}}"))
        suite = Suite("s").expect("x", between=(0, 10 * k))
        recipe = DatasetRecipe("r").add_ingredient("a", [{"x": x} for x in (3, 15)])
        recipe.prepare_step("v", suite).prepare_step("s", "test_incremental.k")
        found.append(xs(recipe.bake(cache=tmp_path, on_error="skip")))

    assert found == [[3], [6, 30]]


# Data: whatever changed is seen ---------------------------------------------------------------------------------------


def test_a_file_that_was_rewritten_with_its_old_time_is_seen(tmp_path):
    """Copied with times, unpacked, built reproducibly: the clock proves nothing."""
    for values in ([1, 2, 3, 9], [1, 3, 2, 9]):
        path = write(tmp_path / "a.parquet", pa.table({"x": values}))
        os.utime(path, ns=(10**18, 10**18))
        result = DatasetRecipe("r").add_ingredient("a", path).bake(cache=tmp_path / "cache")
        assert xs(result) == values


def test_a_step_of_a_stream_that_got_more_fields_is_seen(tmp_path):
    """The last step may not be complete when it is first baked."""
    store = StreamStore(tmp_path / "s", fields=["a", "b"])
    recipe = DatasetRecipe("r").add_ingredient("s", store)
    store.append(steps=[0], names=["a"], values=[1.0])
    recipe.bake(cache=tmp_path / "cache")
    store.append(steps=[0], names=["b"], values=[2.0])

    assert (
        recipe.bake(cache=tmp_path / "cache").table.to_pylist()
        == recipe.bake().table.to_pylist()
        == [{"a": 1.0, "b": 2.0}]
    )


def test_rows_that_are_equal_but_others_are_not_mistaken(tmp_path):
    """Two buffers of the same values, one with other ids: choice and lineage are their own."""
    one, two = DatasetBuffer(), DatasetBuffer(max_size=20)
    one.append([{"x": 1}] * 20)
    two.append([{"x": 1}] * 40)

    for buffer in (one, two):
        recipe = DatasetRecipe("r").add_ingredient("a", buffer, take=0.5)
        assert content(recipe.bake(cache=tmp_path)) == content(recipe.bake())


def test_the_size_of_fragments_may_change(tmp_path):
    """A cache that was filled with other sizes gives no wrong row numbers, also where all rows are equal."""
    for size in (10, 20, 7, 10):
        with cut(size):
            recipe = DatasetRecipe("r").add_ingredient("a", pa.table({"x": [1] * 30}), take=0.5)
            assert content(recipe.bake(cache=tmp_path)) == content(recipe.bake())


def test_lineage_out_of_the_cache_names_the_steps_of_this_recipe(tmp_path):
    """A fragment that another recipe baked was prepared by a step that has another place there."""
    same = made("def step(row): return row")
    other = made("def step(row): return {'x': row['x']}")
    DatasetRecipe("one").add_ingredient("a", [{"x": 1}]).prepare_step("s", same).bake(cache=tmp_path)
    recipe = (
        DatasetRecipe("two").add_ingredient("z", [{"x": 1}]).prepare_step("q", other).add_ingredient("a", [{"x": 1}])
    )

    result = recipe.prepare_step("s", same).bake(cache=tmp_path)

    assert result.lineage.why(1).steps == ("s",)
    assert result.lineage.why(0).steps == ("q", "s")


@pytest.mark.parametrize("name", ["__row", "__sub", "__steps", "row", "ingredient"])
def test_no_name_of_a_column_is_taken(name, tmp_path):
    """Whatever a cache needs for itself is not in the way."""
    recipe = DatasetRecipe("r").add_ingredient("a", pa.table({name: [7, 8]}))

    for _ in range(2):
        assert recipe.bake(cache=tmp_path).table.to_pylist() == [{name: 7}, {name: 8}]


# Work that is saved ---------------------------------------------------------------------------------------------------


def wide(folder: Path, **options: Any) -> DatasetRecipe:
    recipe = DatasetRecipe("r").add_ingredient("files", folder, where=col.score > 1, **options)
    recipe.prepare_step("up", made("def step(row): return {**row, 'x': row['x'] + 1}"))
    return recipe.prepare_step("map", "map", columns={"score": col.score * 2})


def test_nothing_changed_nothing_is_baked(tmp_path):
    """All fragments come from the cache, in another recipe object as well."""
    shelf(tmp_path / "data", 10, 5)
    first = wide(tmp_path / "data").bake(cache=tmp_path / "cache")

    again = wide(tmp_path / "data").bake(cache=tmp_path / "cache")

    assert cached(first) == (0, 10)
    assert cached(again) == (10, 10)
    assert content(again) == content(first)


def test_after_an_append_only_new_files_are_baked(tmp_path):
    """One file more among 50: one is baked."""
    shelf(tmp_path / "data", 50, 3)
    wide(tmp_path / "data").bake(cache=tmp_path / "cache")
    write(tmp_path / "data" / "025a.parquet", numbers(3, 9_000))

    result = wide(tmp_path / "data").bake(cache=tmp_path / "cache")

    assert cached(result) == (50, 51)
    assert content(result) == content(wide(tmp_path / "data").bake())


def test_after_an_append_only_the_last_rows_of_a_buffer_are_baked(tmp_path):
    """Ranges of ids that did not change are kept; rows that leave touch only their own."""
    buffer = DatasetBuffer(max_size=100)
    buffer.append(numbers(100))
    recipe = DatasetRecipe("r").add_ingredient("a", buffer, take=0.5).prepare_step("m", "map", columns={"x": col.x + 1})
    with cut(10):
        recipe.bake(cache=tmp_path)
        buffer.append(numbers(3, 100))
        result = recipe.bake(cache=tmp_path)

    assert cached(result) == (9, 11)
    assert content(result) == content(recipe.bake())


def test_a_lower_fraction_is_taken_from_what_was_kept(tmp_path):
    """A kept fragment is valid up to its threshold: lower ones are a part of it, higher ones are baked."""
    shelf(tmp_path / "data", 4, 40)
    found = []
    for take in (0.5, 0.2, 0.5, 0.7, 0.1, None, 0.9, 0.0):
        result = wide(tmp_path / "data", take=take).bake(cache=tmp_path / "cache")
        found.append(cached(result)[0])
        assert content(result) == content(wide(tmp_path / "data", take=take).bake())
        assert counts(result) == counts(wide(tmp_path / "data", take=take).bake())

    assert found == [0, 4, 4, 0, 4, 0, 4, 0]  # of no rows nobody knows what the steps would have made


def test_a_lower_threshold_tells_only_its_own_rejects(tmp_path):
    """Rows that are not chosen any more have not failed."""
    odd = made("def step(row):\n    if row['x'] % 2: raise ValueError('odd')\n    return row")

    def recipe(take: float) -> DatasetRecipe:
        return DatasetRecipe("r").add_ingredient("a", numbers(100), take=take).prepare_step("s", odd)

    recipe(0.8).bake(cache=tmp_path, on_error="skip")
    got = recipe(0.1).bake(cache=tmp_path, on_error="skip", budget=9)

    assert content(got) == content(recipe(0.1).bake(on_error="skip"))
    assert counts(got) == counts(recipe(0.1).bake(on_error="skip"))


def test_an_ingredient_that_did_not_change_is_kept_when_another_does(tmp_path):
    """A changed filter of one bakes that one."""
    for where in (col.x > 3, col.x > 4):
        recipe = DatasetRecipe("r").add_ingredient("a", numbers(20), where=where).add_ingredient("b", numbers(20, 50))
        result = recipe.bake(cache=tmp_path)

    assert [line(result, name).cached for name in "ab"] == [0, 1]


def test_barriers_start_from_what_was_kept(tmp_path):
    """Dedup, shuffle, limit and scales look at all rows again, but those need not be baked again."""
    shelf(tmp_path / "data", 6, 5)
    for n_kept in (0, 6):
        recipe = wide(tmp_path / "data").prepare_step("once", "dedup").prepare_step("mix", "shuffle")
        result = recipe.prepare_step("scale", "standardise", column="score").bake(cache=tmp_path / "cache")
        assert cached(result) == (n_kept, 6)


@pytest.mark.parametrize("take", [30, 0.3])
def test_counts_reuse_fragments_that_keep_their_rows(take, tmp_path):
    """Nothing changed: also a count bakes nothing again."""
    shelf(tmp_path / "data", 10, 10)
    recipe = DatasetRecipe("r").add_ingredient("a", tmp_path / "data", take=take, pick="hash")
    recipe.bake(cache=tmp_path / "cache")

    assert cached(recipe.bake(cache=tmp_path / "cache")) == (10, 10)


# Entries that are damaged ---------------------------------------------------------------------------------------------


def dropped_and_doubled(row):
    return [] if row["x"] % 2 else [row, row]


def named_after(row):
    return {**row, "name": str(row["x"])}


def seldom_known(row):
    return {**row, "y": 5 if row["x"] == 0 else None}


def seldom_long(row):
    return {**row, "y": [1] if row["x"] == 0 else []}


def of_many_shapes(row):
    return {**row, "y": np.zeros(2 if row["x"] else 3, np.float32)}


@pytest.mark.parametrize("function", [dropped_and_doubled, named_after, seldom_known, seldom_long, of_many_shapes])
def test_fewer_rows_of_what_was_kept_are_what_a_bake_from_nothing_gives(function, tmp_path):
    """Counts, columns and types too: also where the rows that gave a column its type are not chosen any more."""
    shelf(tmp_path / "data", 2, 40)
    for take in (1.0, 70, 0.5, 30, 0.1, 3, 1, 0, 0.0):
        recipe = DatasetRecipe("r", seed=1).add_ingredient("a", str(tmp_path / "data"), take=take)
        recipe.prepare_step("made", function, version=1)
        warm, cold = recipe.bake(cache=tmp_path / "cache"), recipe.bake()

        assert content(warm) == content(cold)
        assert counts(warm) == counts(cold)


def swapped(row):
    return {"y": row["y"], "x": row["x"]}


def swapped_later(row):
    return {"x": row["x"], "y": row["y"]} if row["x"] < 1 else {"y": row["y"], "x": row["x"]}


def set_once(row):
    return {"x": row["x"], "y": 5 if row["x"] == 1 else None}


#: A recipe of which first all is baked and then ``take``; what it is made of may be nothing but nulls in some files.
FEWER = {
    "no columns": lambda web, take: web(take).prepare_step("s", "drop", columns=["x", "y"]),
    "an order of columns": lambda web, take: web(take).prepare_step("s", swapped, where="x > 2"),
    "another order in the first row": lambda web, take: web(take).prepare_step("s", swapped_later),
    "a type that one row tells": lambda web, take: web(take).prepare_step("s", set_once),
}


@pytest.mark.parametrize("take", [0.0, 0.1, 0.3, 0.6])
@pytest.mark.parametrize("name", FEWER)
def test_fewer_rows_are_those_of_a_bake_from_nothing(name, take, tmp_path):
    """Whatever the rows that are not chosen any more have decided: columns, their order, their types."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "1.jsonl").write_text('{"x": 0, "y": 0}\n')
    (folder / "2.jsonl").write_text("".join(f'{{"x": {i}, "y": null}}\n' for i in range(20)))

    def recipe(fraction):
        return FEWER[name](lambda take: DatasetRecipe("r", seed=3).add_ingredient("a", folder, take=take), fraction)

    recipe(1.0).bake(cache=tmp_path / "cache")
    again, fresh = recipe(take).bake(cache=tmp_path / "cache"), recipe(take).bake()

    assert content(again) == content(fresh)
    assert again.table.schema == fresh.table.schema
    assert again.report.shares == fresh.report.shares


def test_a_kept_fragment_of_which_no_row_is_left_says_nothing(tmp_path):
    """Its columns are not those of the other ingredient, which matters only where there are rows."""
    shelf(tmp_path / "data", 1, 9)
    other = pa.table({"n": [1, 2]})
    first = DatasetRecipe("r").add_ingredient("a", tmp_path / "data", take=1.0)
    first.bake(cache=tmp_path / "cache")
    recipe = DatasetRecipe("r").add_ingredient("a", tmp_path / "data", take=0.0).add_ingredient("b", other)

    assert content(recipe.bake(cache=tmp_path / "cache")) == content(recipe.bake())


def test_columns_of_nothing_do_not_depend_on_who_was_read_with_it(tmp_path):
    """Two ingredients of one file, one of which needs a column only."""
    write(tmp_path / "a.parquet", numbers(9))

    def bake(is_alone):
        recipe = DatasetRecipe("r").add_ingredient("a", tmp_path / "a.parquet", where="x > 100")
        recipe.prepare_step("s", "select", columns=["x"])
        if not is_alone:
            recipe.add_ingredient("b", tmp_path / "a.parquet", where="x > 200")
        return recipe.bake(cache=tmp_path / "cache").table.schema

    assert bake(False) == bake(True) == bake(False)
    assert bake(True).names == ["x"]


def test_many_kept_fragments_hold_no_files_open(tmp_path):
    """Nor does a result that is made of them."""
    folder = shelf(tmp_path / "data", 40, 3)
    recipe = DatasetRecipe("r").add_ingredient("a", folder).prepare_step("m", "map", columns={"b": "x + 1"})
    recipe.bake(cache=tmp_path / "cache")
    before = len(os.listdir("/proc/self/fd"))

    result = recipe.bake(cache=tmp_path / "cache")

    assert cached(result) == (40, 40)
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    assert result.lineage.why(5).row == 2


def test_an_entry_that_cannot_be_opened_now_is_not_removed(tmp_path, monkeypatch):
    """Too many open files are no damage."""
    folder = shelf(tmp_path / "data", 4, 3)
    recipe = DatasetRecipe("r").add_ingredient("a", folder)
    recipe.bake(cache=tmp_path / "cache")
    entries = sorted((tmp_path / "cache").rglob("*.piece"))

    def busy(place):
        raise OSError(24, "Too many open files", place)

    cache = Cache(tmp_path / "cache")
    with monkeypatch.context() as patch:
        patch.setattr("poolish.recipes.cache._mapped", busy)
        assert [cache.get(entry.stem) for entry in entries] == [None] * len(entries)

    assert sorted((tmp_path / "cache").rglob("*.piece")) == entries


def test_a_choice_looks_only_at_what_is_new(tmp_path, monkeypatch):
    """As long as all that it has seen is still there; else at everything again."""
    looked_at = []
    read = CandidateReader.read

    def counted(reader, fragment):
        looked_at.append(fragment.name)
        return read(reader, fragment)

    monkeypatch.setattr(CandidateReader, "read", counted)

    def baked() -> list[str]:
        recipe = DatasetRecipe("r").add_ingredient("a", str(tmp_path / "data"), where=col.x % 2 == 0, take=20)
        looked_at.clear()
        result, seen = recipe.bake(cache=tmp_path / "cache"), sorted(looked_at)
        assert content(result) == content(recipe.bake())
        return seen

    shelf(tmp_path / "data", 9, 10)
    everything = sorted(path.name for path in (tmp_path / "data").iterdir())
    assert baked() == everything
    assert baked() == []
    write(tmp_path / "data" / "zz.parquet", numbers(10, 900))
    assert baked() == ["zz.parquet"]
    write(tmp_path / "data" / "zz.parquet", numbers(10, 1900))
    assert baked() == ["zz.parquet"]  # one of ten was not worth remembering
    write(tmp_path / "data" / "zzz.parquet", numbers(10, 2900))
    assert baked() == ["zz.parquet", "zzz.parquet"]  # two are
    write(tmp_path / "data" / "zz.parquet", numbers(10, 3900))
    assert baked() == [*everything, "zz.parquet", "zzz.parquet"]


def test_every_damaged_entry_is_baked_again(tmp_path):
    """A bit flipped anywhere, a file cut, emptied, or filled with something else: no wrong row, no error."""
    recipe = DatasetRecipe("r").add_ingredient("a", numbers(12), take=0.7)
    recipe.prepare_step("s", made("def step(row):\n    if row['x'] == 4: raise ValueError('no')\n    return [row] * 2"))
    want = recipe.bake(cache=tmp_path, on_error="skip")
    (entry,) = tmp_path.rglob("*.piece")
    whole = entry.read_bytes()
    rng = np.random.default_rng(11)
    damages = [whole[:n] for n in (0, 1, 50, len(whole) // 2, len(whole) - 1)]
    damages += [
        b"{}\n",
        b"[]\n" + whole,
        b"null\n",
        b"\xff" * 400,
        b"x" * len(whole),
        json.dumps({"checksum": "0"}).encode() + b"\n",
    ]
    for place in (*range(0, min(700, len(whole)), 15), *rng.integers(0, len(whole), times(15)).tolist()):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << int(rng.integers(0, 8))
        damages.append(bytes(flipped))

    for damaged in damages:
        entry.write_bytes(damaged)
        got = recipe.bake(cache=tmp_path, on_error="skip")
        assert content(got) == content(want)
        assert counts(got) == counts(want)


def test_a_directory_that_is_no_cache_is_told(tmp_path):
    """A file in the way is an error that names it."""
    (tmp_path / "file").write_text("not a directory")

    with pytest.raises(OSError, match="file"):
        DatasetRecipe("r").add_ingredient("a", numbers(3)).bake(cache=tmp_path / "file")


def test_data_in_a_cache_is_never_code(tmp_path, marker):
    """An entry that somebody made of a pickle is damaged, and nothing more."""
    recipe = DatasetRecipe("r").add_ingredient("a", numbers(3))
    recipe.bake(cache=tmp_path / "c")
    for entry in (tmp_path / "c").rglob("*.piece"):
        entry.write_bytes(pickle.dumps(Canary(marker)))

    assert xs(recipe.bake(cache=tmp_path / "c")) == [0, 1, 2]
    assert not marker.exists()
