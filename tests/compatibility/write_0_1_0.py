"""Writes ``version_0_1_0.tar.gz``. Run it with the code of version 0.1.0, never with a newer one::

    PYTHONPATH=<checkout of 0.1.0>/src python tests/compatibility/write_0_1_0.py <empty folder>

In it, ``expected.json`` holds what the other files contain and what follows each state.
"""

from __future__ import annotations

import json
import shutil
import sys
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from poolish import DatasetBuffer, DatasetConsumer, DatasetProvider, DatasetRecipe, Loader, Profile, StreamStore, Suite
from poolish.load import CachedDataset, TransformedDataset

N_ROWS = 40


def main(folder: Path) -> None:
    """Write every kind of file and state."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    expected = {
        "buffer": write_buffer(folder),
        "stream": write_stream(folder),
        "queue": write_queue(folder),
        "loader": write_loader_states(),
        "following": write_following_state(folder),
        "journal": write_journals(folder),
    }
    write_guards(folder)
    write_caches(folder)
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    with tarfile.open(Path(__file__).with_name("version_0_1_0.tar.gz"), "w:gz") as archive:
        archive.add(folder, arcname=".")


def rows(n: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"n": i, "text": f"row {i}", "x": np.arange(3, dtype=np.float32) + i} for i in range(start, start + n)]


def write_buffer(folder: Path) -> dict[str, Any]:
    buffer = DatasetBuffer(max_size=100, drop_strategy="random", seed=3)
    buffer.append(rows(30))
    buffer.append(rows(10, 30), retain_prior=0.5)
    buffer.save(folder / "buffer.rows")
    return {"n": buffer.to_pydict()["n"], "ids": buffer.ids.tolist()}


def write_stream(folder: Path) -> dict[str, Any]:
    with StreamStore(folder / "stream", fields=["action", "reward", "done"]) as store:
        for step in range(20):
            store.append([step] * 3, ["action", "reward", "done"], [step, step / 2, step % 7 == 6])
        values = store[np.arange(len(store))]["values"].tolist()
    return {"values": values}


def write_queue(folder: Path) -> dict[str, Any]:
    """Rank 0 of 2 is one round ahead; a checkpoint holds the first round."""
    samples = [(i, i * i) for i in range(N_ROWS)]
    with DatasetProvider(samples, path=folder / "queue", batch_size=4, order="sequential") as provider:
        for _ in range(8):
            provider.publish("train")
    settings = {"output": "numpy", "world_size": 2, "acknowledge": "on_checkpoint"}
    consumers = [DatasetConsumer(folder / "queue", rank=rank, **settings) for rank in (0, 1)]
    for consumer in consumers:
        consumer.get_batch("train")
    state = consumers[0].state_dict()
    for consumer in consumers:
        consumer.commit(state)
    consumers[0].get_batch("train")
    for consumer in consumers:
        consumer.close()
    return {"state": state, "first_row_of_the_next": 8}


def write_loader_states() -> list[dict[str, Any]]:
    """States in mid-epoch, after the last batch, and of one rank of two; with the ids that follow in the epoch."""
    cases: list[tuple[dict[str, Any], int]] = [
        ({"batch_size": 7, "shuffle": True, "seed": 5}, 0),
        ({"batch_size": 7, "shuffle": True, "seed": 5}, 3),
        ({"batch_size": 7, "shuffle": False}, 2),
        ({"batch_size": 5, "shuffle": True, "rank": 1, "world_size": 2}, 2),
        ({"batch_size": 8, "shuffle": True, "drop_last": True, "acknowledge": "explicit"}, 2),
    ]
    return [one_state(settings, n_batches) for settings, n_batches in cases]


def one_state(settings: dict[str, Any], n_batches: int) -> dict[str, Any]:
    loader = Loader(list(range(N_ROWS)), output="numpy", **settings)
    batches = iter(loader)
    for _ in range(n_batches):
        batch = next(batches)
        if settings.get("acknowledge"):
            loader.mark_trained(batch)
    state = loader.state_dict()
    rest = [batch.ids.tolist() for batch in batches]
    return {"settings": settings, "state": state, "rest": rest}


def write_following_state(folder: Path) -> dict[str, Any]:
    """A loader that follows a buffer, which is saved with it in the middle of an epoch."""
    buffer = DatasetBuffer(seed=1)
    buffer.append(rows(20))
    settings = {"batch_size": 6, "shuffle": True, "seed": 2, "follow": True}
    loader = Loader(buffer, output="numpy", **settings)
    batches = iter(loader)
    before = [next(batches)["n"].tolist() for _ in range(2)]
    buffer.append(rows(10, 20))
    buffer.save(folder / "followed.rows")
    state = loader.state_dict()
    return {"settings": settings, "state": state, "before": before, "rest": [b["n"].tolist() for b in batches]}


def write_journals(folder: Path) -> dict[str, Any]:
    """A journal whose first epoch has ended, and one in the middle of an epoch, with its state."""
    list(Loader(list(range(30)), 8, shuffle=True, journal=folder / "journal_ended", output="numpy"))
    loader = Loader(list(range(N_ROWS)), 8, shuffle=True, journal=folder / "journal", output="numpy")
    batches = iter(loader)
    before = [next(batches).ids.tolist() for _ in range(2)]
    state = loader.state_dict()
    return {"state": state, "before": before, "rest": [batch.ids.tolist() for batch in batches]}


def write_guards(folder: Path) -> None:
    table = {"reward": np.linspace(0, 1, 200)}
    Suite("rewards").expect("reward", between=(0, 1)).save(folder / "suite.yaml")
    (folder / "profile.json").write_text(Profile.of(table).to_json())


def plus(amount: int, value: int) -> int:
    return value + amount


def write_caches(folder: Path) -> None:
    cached = CachedDataset(TransformedDataset(list(range(5)), partial(plus, 1)), path=folder / "cached")
    [cached[i] for i in range(5)]
    recipe = DatasetRecipe("old").add_ingredient("numbers", [{"n": i} for i in range(5)])
    recipe.prepare_step("plus_one", add_one)
    recipe.bake(cache=folder / "baked")


def add_one(row: dict[str, Any]) -> dict[str, Any]:
    return {"n": row["n"] + 1}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
