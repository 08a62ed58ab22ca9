"""A stream as an ingredient: each step is a row, complete or not, as it was when the bake began."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from uuid import UUID

import datasets
import numpy as np
import pyarrow as pa
import pytest

from poolish import DatasetRecipe, StreamStore, col
from poolish.recipes.sources import StreamSource
from poolish.recipes.sources import source as sources
from poolish.tokens.commits import Commit, CommitLog
from poolish.tokens.logs import chained, members_of
from tests.recipes.kitchen import cached, fingerprints


def test_steps_of_a_stream_are_rows(tmp_path):
    """Each step a row of its fields; a row's number is that of the step."""
    store = StreamStore(tmp_path / "s", fields=["action", "reward"])
    for step in range(3, 9):
        store.append(steps=[step, step], names=["action", "reward"], values=[step * 2, 0.5])

    recipe = DatasetRecipe("r").add_ingredient("oats", store, where=col.reward > 0, take=4, pick="latest")
    result = recipe.bake()

    assert result.table.column_names == ["action", "reward"]
    assert [row["action"] for row in result.table.to_pylist()] == [10, 12, 14, 16]
    assert [result.lineage.why(i).row for i in range(4)] == [5, 6, 7, 8]


def test_a_step_that_gets_more_fields_is_another_fragment(tmp_path):
    """The last step of a stream may go on; what was cached of it before is not found again."""
    store = StreamStore(tmp_path / "s", fields={"a": "int64", "b": "int64"})
    store.append(steps=[0], names=["a"], values=[1])
    recipe = DatasetRecipe("r").add_ingredient("s", store)
    before = recipe.bake(cache=tmp_path / "cache").table.to_pylist()

    store.append(steps=[0], names=["b"], values=[2])

    assert before == [{"a": 1, "b": None}]
    assert recipe.bake(cache=tmp_path / "cache").table.to_pylist() == [{"a": 1, "b": 2}]


def test_ranges_before_the_last_keep_their_fingerprint(tmp_path, monkeypatch):
    """What comes later changes only the last range; a full range stays what it was when it was the last."""
    monkeypatch.setattr(sources, "FRAGMENT_ROWS", 2)
    store = StreamStore(tmp_path / "s", fields={"a": "int64"})
    store.append_many(np.arange(4), {"a": np.arange(4)})
    before = fingerprints(StreamSource(store))

    store.append_many([4], {"a": [4]})

    assert fingerprints(StreamSource(store))[:2] == before


def test_a_stream_is_read_as_it_was_when_the_bake_began(tmp_path):
    """What is appended between plan and reading is not part of it, or it would be kept under a wrong name."""
    store = StreamStore(tmp_path / "s", fields={"a": "int64", "b": "int64"})
    store.append(steps=[0], names=["a"], values=[1])
    source = StreamSource(store)
    (fragment,) = source.fragments()

    store.append(steps=[0, 1], names=["b", "a"], values=[2, 3])
    ((table, rows),) = source.read(fragment, None, None)

    assert (table.to_pylist(), rows.tolist()) == ([{"a": 1, "b": None}], [0])


def test_arrays_of_a_stream_are_lists(tmp_path):
    """Fields that were only named take arrays of any length; a step without one has a null."""
    store = StreamStore(tmp_path / "s", fields=["action", "observation", "done"])
    store.append(steps=0, names=["action", "observation", "done"], values=[1, np.arange(3.0), False])
    store.append(steps=1, names=["action", "observation"], values=[0, np.arange(1.0)])
    store.append(steps=2, names=["action"], values=[2])
    recipe = (
        DatasetRecipe("r").add_ingredient("s", store).prepare_step("twice", "map", columns={"action": "action * 2"})
    )

    table = recipe.bake().table

    assert table["observation"].to_pylist() == [[0.0, 1.0, 2.0], [0.0], None]
    assert table["action"].to_pylist() == [2.0, 0.0, 4.0]
    assert table["done"].to_pylist() == [0.0, None, None]
    assert recipe.explain().schema == table.schema


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "uint64", "float16", "float32"])
def test_lists_of_a_stream_have_its_numbers(tmp_path, dtype):
    """Each in the type that was declared, of one length or of any."""
    some = pa.from_numpy_dtype(np.dtype(dtype))
    store = StreamStore(tmp_path / "s", fields={"any": pa.list_(some), "two": pa.list_(some, 2)})
    store.append(steps=[0, 0], names=["any", "two"], values=[[1, 0, 1], [1, 0]])
    store.append(steps=[1, 1], names=["any", "two"], values=[[1], [0, 1]])

    result = DatasetRecipe("r").add_ingredient("s", store).bake()

    assert result.table["any"].type == pa.large_list(some)
    assert result.table["any"].to_pylist() == [[1, 0, 1], [1]]
    assert [row["two"] for row in result.table.to_pylist()] == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("feature", "shapes"),
    [
        (datasets.List(datasets.Value("float32")), [(2,), (5,)]),
        (datasets.List(datasets.Value("float32"), length=3), [(3,), (3,)]),
        (datasets.List(datasets.List(datasets.Value("float32"), length=2)), [(3, 2), (1, 2)]),
        (datasets.List(datasets.List(datasets.Value("float32"), length=2), length=3), [(3, 2), (3, 2)]),
        (datasets.Array2D((2, 3), "float32"), [(2, 3), (2, 3)]),
        (datasets.Array2D((None, 3), "float32"), [(2, 3), (1, 3)]),
        (datasets.Array3D((2, 1, 2), "float32"), [(2, 1, 2), (2, 1, 2)]),
    ],
)
def test_rows_of_a_stream_are_those_of_its_dataset(tmp_path, feature, shapes):
    """Lists and arrays of any feature, with the feature they were declared by, also where a step has none."""
    features = datasets.Features({"o": feature, "n": datasets.ClassLabel(names=["a", "b"])})
    store = StreamStore(tmp_path / "s", fields=features)
    for step, shape in enumerate(shapes):
        store.append(steps=[step], names=["o"], values=[np.arange(np.prod(shape)).reshape(shape) + step])
    store.append(steps=[2], names=["n"], values=[1])

    recipe = DatasetRecipe("r").add_ingredient("s", store)
    buffer = recipe.bake().buffer
    values = [buffer[i]["o"] for i in range(3)]
    found = [None if value is None else np.asarray(value).tolist() for value in values]

    assert found == store.to_dataset()["o"][:]
    assert buffer.schema.to_features() == features
    assert recipe.explain().rows.value == 3


def test_a_field_that_is_decided_later_is_another_column(tmp_path, monkeypatch):
    """Cached ranges from before do not know whether it holds numbers or lists, so they are read again."""
    monkeypatch.setattr(sources, "FRAGMENT_ROWS", 2)
    store = StreamStore(tmp_path / "s", fields=["a", "b"])
    store.append_many(np.arange(2), {"a": np.arange(2)})
    recipe = DatasetRecipe("r").add_ingredient("s", store)
    recipe.bake(cache=tmp_path / "cache")

    store.append(steps=[2], names=["b"], values=[0.5])

    assert recipe.bake(cache=tmp_path / "cache").table["b"].to_pylist() == [None, None, 0.5]


def test_a_stream_needs_no_other_library(tmp_path):
    """Fields that were declared by dtypes are described by poolish itself."""
    script = f"""
        import sys
        sys.modules["datasets"] = None
        from poolish import DatasetRecipe, StreamStore
        store = StreamStore({str(tmp_path / "s")!r}, fields={{"a": "int64"}})
        store.append_many([0, 1], {{"a": [1, 2]}})
        print(DatasetRecipe("r").add_ingredient("s", store).bake().table.to_pylist())
    """

    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[{'a': 1}, {'a': 2}]"


# Branches -----------------------------------------------------------------------------------------------------


def recorded(path, first, values):
    """Go on with a stream, or make it: steps from ``first`` on, with these values."""
    with StreamStore(path, fields={"a": "int64"}) as store:
        store.append_many(np.arange(first, first + len(values)), {"a": np.asarray(values)})


def baked(path, cache):
    result = DatasetRecipe("r").add_ingredient("s", StreamStore.open(path)).bake(cache=cache)
    return result.table.column("a").to_pylist(), cached(result)


def test_copies_that_go_their_own_ways_are_never_mistaken_for_each_other(tmp_path, monkeypatch):
    """Same uuid, same counts, other values: each bake has its own, and shares what was there before the copy."""
    monkeypatch.setattr(sources, "FRAGMENT_ROWS", 4)
    recorded(tmp_path / "one", 0, range(10))
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    recorded(tmp_path / "one", 10, [100] * 5)
    recorded(tmp_path / "two", 10, [200] * 5)

    one, two = (baked(tmp_path / name, tmp_path / "cache") for name in ("one", "two"))

    assert one == ([*range(10), *[100] * 5], (0, 4))
    assert two == ([*range(10), *[200] * 5], (2, 4))


def test_a_copy_of_a_stream_that_is_being_written_is_another_branch(tmp_path):
    """The writer goes on with its own branch, the copy with a new one."""
    store = StreamStore(tmp_path / "one", fields={"a": "int64"})
    store.append_many(np.arange(10), {"a": np.arange(10)})
    store.commit()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    recorded(tmp_path / "two", 10, [200] * 5)
    store.append_many(np.arange(10, 15), {"a": [100] * 5})

    one, two = (baked(tmp_path / name, tmp_path / "cache")[0] for name in ("one", "two"))

    assert (one[10:], two[10:]) == ([100] * 5, [200] * 5)


def test_opening_again_and_appending_bakes_only_what_is_new(tmp_path, monkeypatch):
    """Full fragments keep their name, whoever appends behind them, with and without a break."""
    monkeypatch.setattr(sources, "FRAGMENT_ROWS", 4)
    recorded(tmp_path / "s", 0, range(8))
    baked(tmp_path / "s", tmp_path / "cache")
    found = []
    for first in (8, 12, 16):
        recorded(tmp_path / "s", first, range(first, first + 4))
        values, counts = baked(tmp_path / "s", tmp_path / "cache")
        assert values == list(range(first + 4))
        found.append(counts)

    assert found == [(2, 3), (3, 4), (4, 5)]


def forget_branches(path):
    """Rewrite a stream as 0.1.0 would have left it: without branches, in their file, the head page and the commits."""
    uuid = StreamStore.open(path).uuid
    (path / "branches").unlink()
    page = bytearray((path / "head").read_bytes())
    page[512:520] = bytes(8)
    (path / "head").write_bytes(page)
    log = CommitLog(path / "commits", UUID(uuid), mode="a")
    records = [members_of(record) for record in log.records()]
    os.truncate(log.path, 0)
    before = None
    for members in records:
        parts = {name: value for name, value in members.items() if name not in ("seq", "uuid", "chain", "branches")}
        before = chained(Commit, before, uuid, **parts)
        log.append(before)
    log.close()


def test_streams_of_0_1_0_that_went_their_own_ways_are_told_apart_by_content(tmp_path):
    """They recorded no branches; what they hold says who they are."""
    for name, value in (("one", 1), ("two", 2)):
        recorded(tmp_path / name, 0, [value] * 5)
        forget_branches(tmp_path / name)
    prints = [fingerprints(StreamSource(StreamStore.open(tmp_path / name)))[0] for name in ("one", "two")]
    recorded(tmp_path / "one", 5, [3])
    grown = fingerprints(StreamSource(StreamStore.open(tmp_path / "one")))[0]

    contents = [print_.split(":")[1] for print_ in (*prints, grown)]

    assert len(set(contents)) == 3
    assert all("/" in content for content in contents)
