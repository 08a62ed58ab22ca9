"""What version 0.1.0 wrote opens in this version with the same content, and its states go on where they were."""

from __future__ import annotations

import json
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poolish import DatasetBuffer, DatasetConsumer, DatasetRecipe, Loader, Profile, StreamStore, Suite
from poolish.load import CachedDataset, TransformedDataset
from tests.compatibility.write_0_1_0 import N_ROWS, add_one, plus

ARCHIVE = Path(__file__).with_name("version_0_1_0.tar.gz")
N_STATES = 5


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The files of version 0.1.0, to be changed at will."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.fixture
def expected(old: Path) -> dict[str, Any]:
    return json.loads((old / "expected.json").read_text())


def rest_of(loader: Loader) -> list[list[int]]:
    """The ids of the batches left in the epoch."""
    return [batch.ids.tolist() for batch in loader]


def test_a_saved_buffer_loads_with_its_rows_and_ids(old, expected):
    buffer = DatasetBuffer.load(old / "buffer.rows")

    assert buffer.to_pydict()["n"] == expected["buffer"]["n"]
    assert buffer.ids.tolist() == expected["buffer"]["ids"]


def test_a_stream_opens_for_reading_and_for_appending(old, expected):
    with StreamStore.open(old / "stream", mode="r") as reader:
        assert reader[np.arange(len(reader))]["values"].tolist() == expected["stream"]["values"]

    with StreamStore(old / "stream") as store:
        store.append([20, 20], ["action", "done"], [7, True])

        assert store[np.arange(len(store) - 2)]["values"].tolist() == expected["stream"]["values"]


@pytest.mark.parametrize("number", range(N_STATES))
def test_a_loader_goes_on_from_its_state(expected, number):
    case = expected["loader"][number]
    loader = Loader(list(range(N_ROWS)), output="numpy", **case["settings"])

    loader.load_state_dict(case["state"])

    assert len(expected["loader"]) == N_STATES
    assert rest_of(loader) == case["rest"]


def test_a_loader_that_follows_a_saved_buffer_goes_on_from_its_state(old, expected):
    case = expected["following"]
    loader = Loader(DatasetBuffer.load(old / "followed.rows"), output="numpy", **case["settings"])

    loader.load_state_dict(case["state"])

    assert [batch["n"].tolist() for batch in loader] == case["rest"]


def test_a_journal_goes_on_with_its_state(old, expected):
    loader = Loader(list(range(N_ROWS)), 8, shuffle=True, journal=old / "journal", output="numpy")

    loader.load_state_dict(expected["journal"]["state"])

    assert rest_of(loader) == expected["journal"]["rest"]


def test_a_queue_goes_on_from_the_state_of_its_consumer(old, expected):
    settings = {"output": "numpy", "acknowledge": "on_checkpoint", "timeout_s": 10}
    with DatasetConsumer(old / "queue", **settings) as consumer:
        consumer.load_state_dict(expected["queue"]["state"])
        x, _ = consumer.get_batch("train")

        assert x.tolist() == [8, 9, 10, 11]
        assert expected["queue"]["first_row_of_the_next"] == 8


def test_a_suite_and_a_profile_load(old):
    suite, profile = Suite.load(old / "suite.yaml"), Profile.from_json((old / "profile.json").read_text())

    assert not suite.check({"reward": [0.5, 2.0]}).ok
    assert profile["reward"].moments.n == 200


def test_a_cache_whose_key_saw_too_little_is_never_served(old):
    """The keys of 0.1.0 covered only the bytecode of a transform: another argument of a partial had the same key."""
    dataset = TransformedDataset(list(range(5)), partial(plus, 2))

    cached = CachedDataset(dataset, path=old / "cached")

    assert [cached[i] for i in range(5)] == [2, 3, 4, 5, 6]


def test_a_bake_works_with_an_old_cache(old):
    recipe = DatasetRecipe("old").add_ingredient("numbers", [{"n": i} for i in range(5)])

    result = recipe.prepare_step("plus_one", add_one).bake(cache=old / "baked")

    assert result.buffer.to_pydict() == {"n": [1, 2, 3, 4, 5]}
