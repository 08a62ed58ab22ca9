"""No write goes wrong unnoticed: the k-th write of everything durable is short, failing or out of space, for every k.

A scenario does what a user does and returns what can be read back afterwards. Whatever happens to a write, the call
succeeds or raises an ``OSError``; when the call that raised is repeated, the result is that of an undisturbed run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from poolish import DatasetBuffer, DatasetConsumer, DatasetProvider, DatasetRecipe, Loader, StreamStore, Suite
from poolish.errors import StoreFull
from poolish.files import read_json, write_json
from poolish.load import CachedDataset
from poolish.testing.faults import WRITE_FAULTS, WriteFault, faulty_writes

T = TypeVar("T")
Attempt = Callable[[Callable[[], T]], T]


class Retry:
    """Calls an operation, and calls it again if it raised because of the fault."""

    def __init__(self, fault: WriteFault = "short") -> None:
        #: What a failing write is reported as.
        self.expected: type[OSError] = OSError if fault == "EIO" else StoreFull
        self.n_raised = 0

    def __call__(self, operation: Callable[[], T]) -> T:
        try:
            return operation()
        except self.expected:
            self.n_raised += 1
            return operation()


# What users do ------------------------------------------------------------------------------------------------


def saved_buffer(folder: Path, attempt: Attempt[Any]) -> Any:
    buffer = DatasetBuffer()
    buffer.append([{"n": i, "text": "x" * 1000, "array": np.arange(4.0)} for i in range(50)])
    attempt(lambda: buffer.save(folder / "rows"))
    return DatasetBuffer.load(folder / "rows").to_pydict()["n"]


def small_document(folder: Path, attempt: Attempt[Any]) -> Any:
    for value in range(3):
        attempt(lambda value=value: write_json(folder / "state.json", {"value": value}))
    return read_json(folder / "state.json")


def journal_of_a_loader(folder: Path, attempt: Attempt[Any]) -> Any:
    """Rows are appended while the epoch runs; a second loader replays what the journal says."""
    buffer = DatasetBuffer()
    buffer.append([{"n": i} for i in range(1500)])
    settings = {"shuffle": True, "follow": True, "journal": folder / "journal", "run": "run", "output": "numpy"}
    loader = attempt(lambda: Loader(buffer, 300, **settings))
    batches, seen = attempt(lambda: iter(loader)), []
    while (batch := attempt(lambda: next(batches, None))) is not None:
        seen.extend(batch["n"].tolist())
        if len(buffer) < 4000:
            buffer.append([{"n": len(buffer) + i} for i in range(500)])
    assert sorted(seen) == list(range(len(buffer)))
    replay = attempt(lambda: [n for batch in Loader(buffer, 300, **settings) for n in batch["n"].tolist()])
    return seen, replay == seen


def queue(folder: Path, attempt: Attempt[Any]) -> Any:
    """A provider and a consumer in turns, each started twice; every batch comes once."""
    seen = []
    for _ in range(2):
        provider = attempt(lambda: DatasetProvider([(i, -i) for i in range(40)], path=folder, batch_size=4))
        attempt(lambda provider=provider: provider.publish("train"))
        consumer = attempt(lambda: DatasetConsumer(folder, output="numpy", timeout_s=5, acknowledge="on_read"))
        for _ in range(4):
            x, _ = attempt(lambda consumer=consumer: consumer.get_batch("train"))
            seen.append(x.tolist())
            attempt(lambda provider=provider: provider.publish("train"))
        attempt(consumer.close)
        attempt(provider.close)
    return seen


def stream(folder: Path, attempt: Attempt[Any]) -> Any:
    """Recorded in three sittings, with a commit in each."""
    for sitting in range(3):
        store = attempt(lambda: StreamStore(folder / "stream", fields=["action", "done"]))
        for step in range(10 * sitting, 10 * sitting + 10):
            names, values = ["action", "done"], [step, step % 4 == 3]
            attempt(partial(store.append, [step, step], names, values))
        attempt(store.commit)
        attempt(store.close)
    with StreamStore.open(folder / "stream", mode="r") as reader:
        reader.verify()
        windows = reader.sample(50, width=4, rng=np.random.default_rng(0), start="step", within="done")
        return reader[np.arange(len(reader))]["values"].tolist(), windows["values"].tolist()


def cached_dataset(folder: Path, attempt: Attempt[Any]) -> Any:
    for _ in range(2):
        cached = attempt(lambda: CachedDataset([{"n": i} for i in range(4)], path=folder / "cache"))
        rows = [attempt(lambda i=i, cached=cached: cached[i]) for i in range(4)]
    return rows


def baked_recipe(folder: Path, attempt: Attempt[Any]) -> Any:
    for _ in range(2):
        recipe = DatasetRecipe("bread").add_ingredient("numbers", [{"n": i} for i in range(20)], take=0.5)
        result = attempt(lambda recipe=recipe: recipe.bake(cache=folder / "cache"))
    return result.buffer.to_pydict()


def saved_suite(folder: Path, attempt: Attempt[Any]) -> Any:
    suite = Suite("rewards").expect("reward", between=(0, 1))
    attempt(lambda: suite.save(folder / "suite.yaml"))
    return Suite.load(folder / "suite.yaml").check({"reward": [0.5, 2.0]}).mask.tolist()


SCENARIOS = {
    function.__name__: function
    for function in (
        saved_buffer,
        small_document,
        journal_of_a_loader,
        queue,
        stream,
        cached_dataset,
        baked_recipe,
        saved_suite,
    )
}


@pytest.mark.parametrize("fault", WRITE_FAULTS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_bad_write_is_an_error_or_has_no_effect(name: str, fault: WriteFault, tmp_path: Path):
    """Whichever write goes wrong, the call raises or all of it is there, and repeating the call loses nothing."""
    scenario = SCENARIOS[name]
    with faulty_writes() as undisturbed:
        (tmp_path / "0").mkdir()
        expected = scenario(tmp_path / "0", Retry())
    assert undisturbed.n

    for k in range(1, undisturbed.n + 1):
        (tmp_path / str(k)).mkdir()
        retry = Retry(fault)
        with faulty_writes(k, fault):
            found = scenario(tmp_path / str(k), retry)

        assert found == expected, f"write {k} of {undisturbed.n}"
        assert fault != "short" or not retry.n_raised, f"write {k} of {undisturbed.n}: a short write is continued"
