"""A stream as an ingredient: each step is a row, complete or not, as it was when the bake began."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np

from poolish import DatasetRecipe, StreamStore, col
from poolish.recipes.sources import StreamSource
from poolish.recipes.sources import source as sources
from tests.recipes.kitchen import fingerprints


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
