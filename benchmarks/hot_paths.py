"""The time of one call of each hot path, whatever version of poolish is imported: one JSON object on one line.

Only names that every version has are used, so that two versions can be compared (``benchmarks.versions``).

    python -m benchmarks.hot_paths            # all
    python -m benchmarks.hot_paths append     # those with "append" in their name
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from poolish import DataProviderBase, DatasetBuffer, DatasetConsumer, DatasetRecipe, Loader, Profile, StreamStore, Suite
from poolish import col as column

#: A path prepares what it needs and yields (how many calls, the function that makes them).
Path_ = Callable[[Path], Iterator[tuple[int, Callable[[], object]]]]
PATHS: dict[str, Path_] = {}
ROW = {"text": "x" * 200, "label": 3, "embedding": np.arange(64, dtype=np.float32)}


def path(name: str) -> Callable[[Path_], Path_]:
    """Register a path under the name that the table shows."""

    def register(function: Path_) -> Path_:
        PATHS[name] = function
        return function

    return register


def table(n_rows: int) -> pa.Table:
    """Texts, labels and scores."""
    rng = np.random.default_rng(0)
    texts = pa.array([f"row {i} " * 8 for i in range(1_000)]).take(pa.array(rng.integers(0, 1_000, n_rows)))
    return pa.table({"text": texts, "label": rng.integers(0, 10, n_rows), "score": rng.random(n_rows)})


@path("buffer.append(dict)")
def append(folder: Path) -> Iterator[tuple[int, Callable[[], object]]]:
    """One row at a time, evicting."""
    buffer = DatasetBuffer(max_size=10_000)

    def run() -> None:
        for _ in range(10_000):
            buffer.append(ROW)

    yield 10_000, run


@path("buffer.append([dict])")
def append_list(folder: Path) -> Iterator[tuple[int, Callable[[], object]]]:
    """A list of one row."""
    buffer = DatasetBuffer(max_size=10_000)

    def run() -> None:
        for _ in range(1_000):
            buffer.append([ROW])

    yield 1_000, run


@path("buffer.append(dict) and buffer[-1]")
def append_and_read(folder: Path) -> Iterator[tuple[int, Callable[[], object]]]:
    """A look back at each step, evicting."""
    buffer = DatasetBuffer(max_size=10_000)
    buffer.append([ROW] * 10_000)

    def run() -> None:
        for _ in range(2_000):
            buffer.append(ROW)
            buffer[-1]

    yield 2_000, run


@path("buffer.append(dict), guarded")
def guarded_append(folder: Path) -> Iterator[tuple[int, Callable[[], object]]]:
    """A range and an expression are checked before each row enters."""
    suite = Suite().expect("label", between=(0, 9)).expect_rows("label * 2 < 20")
    buffer = DatasetBuffer(max_size=10_000, guard=suite)

    def run() -> None:
        for _ in range(300):
            buffer.append(ROW)

    yield 300, run


@path("buffer.get_batch of 256 rows")
def get_batch(folder: Path) -> Iterator[tuple[int, Callable[[], object]]]:
    """Random rows as a table."""
    buffer = DatasetBuffer()
    buffer.append(table(200_000))
    indices = np.random.default_rng(1).integers(0, 200_000, (500, 256))

    def run() -> None:
        for rows in indices:
            buffer.get_batch(rows)

    yield 500, run


@path("buffer[i]")
def get_one(folder: Path) -> Iterator[tuple[int, Callable[[], object]]]:
    """Plain Python values."""
    buffer = DatasetBuffer()
    buffer.append(table(200_000))
    indices = np.random.default_rng(1).integers(0, 200_000, 10_000).tolist()

    def run() -> None:
        for i in indices:
            buffer[i]

    yield 10_000, run


@path("loader, shuffled epoch of 200,000 rows")
def loader(folder: Path) -> Iterator[tuple[int, Callable[[], object]]]:
    """Batches of 256 as NumPy arrays."""
    buffer = DatasetBuffer()
    buffer.append(table(200_000).drop_columns(["text"]))
    batches = Loader(buffer, 256, shuffle=True, output="numpy")

    def run() -> None:
        for _ in batches:
            pass

    yield 1, run


def stream(folder: Path, n_steps: int) -> StreamStore:
    """Steps of four fields, in episodes of 200."""
    store = StreamStore(folder / "stream", fields=["action", "observation", "reward", "done"])
    done = (np.arange(n_steps) % 200 == 199).astype(float)
    observation = (np.zeros(4 * n_steps), 4 * np.arange(n_steps + 1))
    values = {"action": np.zeros(n_steps), "observation": observation, "reward": np.zeros(n_steps), "done": done}
    store.append_many(np.arange(n_steps), values)
    return store


@path("stream.append of 4 fields")
def stream_append(folder: Path) -> Iterator[tuple[int, Callable[[], object]]]:
    """One step at a time."""
    store = StreamStore(folder / "stream", fields=["action", "observation", "reward", "done"])
    names, observation = ["action", "observation", "reward", "done"], np.array([0.1, -0.2, 0.05, 0.3])
    steps = iter(range(10**9))

    def run() -> None:
        for _ in range(50_000):
            step = next(steps)
            store.append([step] * 4, names, [1, observation, 1.0, False])

    yield 50_000, run


@path("stream.windows 256 x 128")
def windows(folder: Path) -> Iterator[tuple[int, Callable[[], object]]]:
    """Values and types at random places."""
    store = stream(folder, 200_000)
    starts = np.random.default_rng(1).integers(0, len(store) - 128, (200, 256))

    def run() -> None:
        for some in starts:
            store.windows(some, 128)

    yield 200, run


@path("stream.sample within episodes")
def sample(folder: Path) -> Iterator[tuple[int, Callable[[], object]]]:
    """256 windows of 128 tokens."""
    store, rng = stream(folder, 200_000), np.random.default_rng(1)

    def run() -> None:
        for _ in range(200):
            store.sample(256, width=128, rng=rng, start="step", within="done")

    yield 200, run


@path("Profile of 2,000,000 floats")
def profile(folder: Path) -> Iterator[tuple[int, Callable[[], object]]]:
    """Moments, quantiles and histogram."""
    values = np.random.default_rng(0).normal(size=2_000_000)
    yield 1, lambda: Profile.of({"x": values})


@path("bake of 1,000,000 parquet rows")
def bake(folder: Path) -> Iterator[tuple[int, Callable[[], object]]]:
    """A filter and a fraction, without a cache."""
    for i in range(4):
        pq.write_table(table(250_000), folder / f"{i}.parquet")
    recipe = DatasetRecipe("r").add_ingredient("a", str(folder / "*.parquet"), where=column.score > 0.5, take=0.5)
    yield 1, lambda: recipe.bake(cache=None)


class Constant(DataProviderBase):
    """The same arrays again and again."""

    def setup(self) -> None:
        """Make the arrays."""
        self.arrays = {name: np.arange(64 * 1024, dtype=np.int64).reshape(64, 1024) for name in ("x", "y")}

    def build_meta(self) -> dict[str, Any]:
        """Two fields, x and y."""
        return {"batch_schema": [{"name": name, "dtype": "int64", "shape": [1024]} for name in ("x", "y")]}

    def sample_batch(self, split: str, rng: np.random.Generator) -> dict[str, Any]:
        """What was made before."""
        return self.arrays


@path("publish and get_batch of 1 MiB")
def queue(folder: Path) -> Iterator[tuple[int, Callable[[], object]]]:
    """In one process, with checksums."""
    names = {"dataset": "bench", "batch_size": 64, "block_size": 1024, "splits": ("train",)}
    provider = Constant(names, path=folder, name="w0").open()
    consumer = DatasetConsumer(folder, output="numpy")

    def run() -> None:
        for _ in range(100):
            provider.publish("train")
            consumer.get_batch("train")

    yield 100, run


def main(chosen: list[str]) -> None:
    """Time every chosen path: the fastest of five runs, in microseconds a call."""
    times = {}
    for name, prepare in PATHS.items():
        if chosen and not any(part in name for part in chosen):
            continue
        with tempfile.TemporaryDirectory() as folder:
            for n_calls, run in prepare(Path(folder)):
                run()
                times[name] = 1e6 / n_calls * min(seconds(run) for _ in range(5))
    print(json.dumps(times))


def seconds(run: Callable[[], object]) -> float:
    """How long one run takes."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main(sys.argv[1:])
