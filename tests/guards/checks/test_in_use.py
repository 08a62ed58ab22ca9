"""A suite that guards something stays what it is: it refuses changes, and its copies are free."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from poolish import DataProviderBase, DatasetBuffer, DatasetConsumer, DatasetRecipe
from poolish.errors import ConfigError, DataRefused
from poolish.guards import StreamGuard, Suite, register_check

CONFIG = {"dataset": "rewards", "batch_size": 4, "block_size": 1, "splits": ["train", "val"], "max_batches": 2}

#: Every method that changes a suite, with arguments that would be right.
CHANGES: dict[str, Callable[[Suite], Suite]] = {
    "schema": lambda suite: suite.schema({"reward": "float32"}),
    "expect": lambda suite: suite.expect("reward", below=1),
    "expect_rows": lambda suite: suite.expect_rows("reward > 0"),
    "expect_unique": lambda suite: suite.expect_unique("reward"),
    "expect_check": lambda suite: suite.expect_check("always"),
    "stat": lambda suite: suite.stat("reward", mean=(0, 1)),
    "drift": lambda suite: suite.drift(),
    "outliers": lambda suite: suite.outliers("reward"),
    "on": lambda suite: suite.on(error="log"),
}


@register_check("always")
def always(rows: Any) -> bool:
    return True


class Rewards(DataProviderBase):
    """Batches of rewards, one of which is NaN."""

    def build_meta(self) -> dict[str, Any]:
        return {"batch_schema": [{"name": "reward", "dtype": "float32", "shape": []}]}

    def sample_batch(self, split: str, rng: Any) -> dict[str, Any]:
        return {"reward": rng.normal(size=4).astype("float32")}


def made_by_class(suite: Suite, folder: Path) -> object:
    class Guarded(Rewards):
        guard = suite

    return Guarded(CONFIG, path=folder / "data")


def consumed(suite: Suite, folder: Path) -> object:
    with Rewards(CONFIG, path=folder / "data") as provider:
        provider.run()
    return DatasetConsumer(folder / "data", output="numpy", guard=suite)


def appended(suite: Suite, folder: Path) -> object:
    buffer = DatasetBuffer()
    buffer.append([{"reward": 1.0}], guard=suite)
    return buffer


def assigned(suite: Suite, folder: Path) -> object:
    buffer = DatasetBuffer()
    buffer.guard = suite
    return buffer


def recipe(suite: Suite, folder: Path) -> DatasetRecipe:
    return DatasetRecipe("r").add_ingredient("a", [{"reward": 1.0}]).prepare_step("check", suite)


BOUNDARIES: dict[str, Callable[[Suite, Path], object]] = {
    "buffer": lambda suite, folder: DatasetBuffer(guard=suite),
    "buffer.guard": assigned,
    "append": appended,
    "provider": lambda suite, folder: Rewards(CONFIG, path=folder / "data", guard=suite),
    "provider's class": made_by_class,
    "consumer": consumed,
    "StreamGuard": lambda suite, folder: StreamGuard(suite),
    "suite.guard": lambda suite, folder: suite.guard(window=5),
    "step": recipe,
    "validate": lambda suite, folder: DatasetRecipe("r").prepare_step("check", "validate", suite=suite),
    "bake": lambda suite, folder: DatasetRecipe("r").add_ingredient("a", [{"reward": 1.0}]).bake(guard=suite),
}


def rewards() -> Suite:
    return Suite("rewards").expect("reward", finite=True)


def test_every_method_that_changes_a_suite_is_known_here():
    """So that the next one is tested too."""
    found = {
        name
        for name, method in inspect.getmembers(Suite, inspect.isfunction)
        if not name.startswith("_") and method.__annotations__.get("return") == "Self"
    }

    assert found - {"copy", "in_use", "fit", "fitted_on"} == set(CHANGES)


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_suite_in_use_refuses_every_change(tmp_path: Path, boundary: str):
    """Whatever took it; the error says what uses it and points to copy()."""
    suite = rewards()
    user = BOUNDARIES[boundary](suite, tmp_path)
    before = suite.to_dict()

    for change in CHANGES.values():
        with pytest.raises(ConfigError, match=r"suite 'rewards' is in use \(.+\).*suite\.copy\(\)"):
            change(suite)
    for name in ("name", "persist"):
        with pytest.raises(AttributeError):
            setattr(suite, name, 2)

    assert suite.to_dict() == before
    assert user is not None


@pytest.mark.parametrize("name", CHANGES)
def test_a_copy_is_free(name: str):
    """Each change of a copy takes effect there and nowhere else."""
    suite = rewards()
    buffer = DatasetBuffer(guard=suite)

    for copied in (suite.copy(), copy.copy(suite)):
        assert copied == suite
        assert CHANGES[name](copied) != suite

    assert suite == rewards()
    with pytest.raises(DataRefused):
        buffer.append([{"reward": float("nan")}])


def test_a_change_for_one_append_does_not_disarm_the_buffer():
    """What the documentation shows: another action for one append, the buffer's own guard stays."""
    suite = rewards()
    buffer = DatasetBuffer(guard=suite)

    buffer.append([{"reward": 1.0}, {"reward": float("nan")}], guard=suite.copy().on(error="drop"))

    with pytest.raises(DataRefused):
        buffer.append([{"reward": 1.0}, {"reward": float("nan")}])
    assert len(buffer) == 1


def test_values_that_were_given_or_got_are_not_shared():
    """Neither the list that a rule was made of nor the plain values of a suite lead back into it."""
    allowed, names = [1, 2], ["a"]
    suite = Suite().expect("a", one_of=allowed).drift(names)
    before = suite.fingerprint

    allowed.append(3)
    names.append("b")
    suite.to_dict()["expect"][0]["one_of"].append(3)
    suite.copy().to_dict()["drift"][0]["columns"].append("b")

    assert suite.fingerprint == before


def test_a_suite_in_use_is_pickled_with_what_it_says():
    """And stays in use where it arrives."""
    suite = rewards().in_use("a test")

    arrived = pickle.loads(pickle.dumps(suite))

    assert arrived == suite
    with pytest.raises(ConfigError, match="a test"):
        arrived.on(error="log")


# Guards with a memory -----------------------------------------------------------------------------------------------


def watching(window: int = 4, reference: Any = None) -> StreamGuard:
    return Suite("watch").stat("reward", mean=(-1, 1), severity="error").guard(reference, window=window)


def test_a_window_has_rows_of_one_buffer():
    """A second buffer is refused before its rows are seen; after the first is gone the guard may go on in another."""
    guard = watching()
    first, second = DatasetBuffer(guard=guard), DatasetBuffer()
    first.append([{"reward": 0.0}])
    first.append([{"reward": 0.0}], guard=guard)

    with pytest.raises(ConfigError, match=r"watches DatasetBuffer.*suite\.guard\(\)"):
        second.append([{"reward": 0.0}], guard=guard)

    assert (guard.n_seen, len(second)) == (2, 0)
    del first
    gc.collect()
    second.append([{"reward": 0.0}], guard=guard)
    assert guard.n_seen == 3


def test_a_window_has_rows_of_one_split(tmp_path: Path):
    """Of a provider, and of a consumer."""
    with Rewards(CONFIG, path=tmp_path / "data") as provider:
        provider.run()
    provider = Rewards(CONFIG, path=tmp_path / "more", guard=watching())
    consumer = DatasetConsumer(tmp_path / "data", output="numpy", guard=watching())

    with provider, consumer:
        provider.publish("train")
        consumer.get_batch("train")
        with pytest.raises(ConfigError, match=r"watches Provider of 'train'.*Provider of 'val'"):
            provider.publish("val")
        with pytest.raises(ConfigError, match=r"watches Consumer of 'train'.*Consumer of 'val'"):
            consumer.get_batch("val")


@pytest.mark.parametrize("kind", ["array", "buffer", "list"])
def test_a_reference_is_kept_as_it_was(kind: str):
    """A buffer that grows, or an array that is written to, does not move what drift is measured from."""
    values = np.random.default_rng(0).normal(size=500)
    reference: Any = {"array": {"reward": values}, "list": [{"reward": value} for value in values.tolist()]}.get(kind)
    if kind == "buffer":
        reference = DatasetBuffer()
        reference.append(pa.table({"reward": values}))
    guard = Suite().drift(["reward"], method="ks", severity="error").guard(reference, window=500)
    window = {"reward": np.random.default_rng(1).normal(size=500) + 3}

    if kind == "array":
        values += 3
    elif kind == "buffer":
        reference.append(pa.table({"reward": np.random.default_rng(2).normal(size=50_000) + 3}))
    else:
        reference[:] = [{"reward": 3.0}]

    assert not guard(window).ok
