"""Prioritised replay against cpprb: update 256 priorities, then draw 256 rows with their weights; and how it scales.

Rows are transitions: {"obs": float32[4], "next_obs": float32[4], "action": int64, "reward": float32, "done": float32}.
A tree alone (ids and weights, no rows) is measured from 10^4 to 10^8 items, each size against that of 10^4.

    python -m benchmarks.bench_priorities             # all
    python -m benchmarks.bench_priorities 1000000     # up to a size
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import numpy as np

from benchmarks.harness import Measure, Missing, compare, needs, per_call
from poolish import DatasetBuffer
from poolish.priorities import PriorityTree

BATCH = 256
#: Calls of one measure; each updates other rows.
CALLS = 200

rng = np.random.default_rng(7)


def main(largest: int) -> None:
    """The pair with its rows, then the tree alone."""
    pair_with_rows(min(largest, 1_000_000))
    tree_alone([n for n in (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000) if n <= largest])


def stepping(n: int, step: Callable[[np.ndarray, np.ndarray], object]) -> Measure:
    """The time of one step, which gets 256 rows and new priorities for them."""
    ids, values = np.sort(rng.integers(0, n, (CALLS, BATCH))), rng.random((CALLS, BATCH))

    def loop() -> None:
        for some, new in zip(ids, values, strict=True):
            step(some, new)

    measure = per_call(loop, unit="us")
    return lambda: measure() / CALLS


def transitions(n: int) -> dict[str, np.ndarray]:
    """Columns of n transitions."""
    observations = rng.random((n, 4), dtype=np.float32)
    columns = {"obs": observations, "next_obs": observations, "action": np.zeros(n, np.int64)}
    return {**columns, "reward": np.zeros(n, np.float32), "done": np.zeros(n, np.float32)}


def pair_with_rows(n: int) -> None:
    """As a training loop does it."""
    columns = transitions(n)
    buffer = DatasetBuffer()
    buffer.append_columns(columns)
    buffer.update_priorities(np.arange(n), rng.random(n), priority="td")

    def poolish(ids: np.ndarray, values: np.ndarray) -> None:
        buffer.update_priorities(ids, values)
        buffer.sample(BATCH, priority="td", rng=rng)

    def cpprb(module: ModuleType) -> Measure:
        env = {name: {"shape": values.shape[1:] or 1, "dtype": values.dtype} for name, values in columns.items()}
        replay = module.PrioritizedReplayBuffer(n, env, alpha=0.6)
        replay.add(**columns)
        replay.update_priorities(np.arange(n), rng.random(n))

        def step(ids: np.ndarray, values: np.ndarray) -> None:
            replay.update_priorities(ids, values)
            replay.sample(BATCH, beta=0.4)

        return stepping(n, step)

    peers: dict[str, Measure | Missing] = {"cpprb": needs("cpprb", cpprb)}
    compare(f"replay.update and sample 256 with rows, {n:,} rows", "us", stepping(n, poolish), peers, rounds=9)


def tree_alone(sizes: list[int]) -> None:
    """Ids and weights, without rows."""

    def of(n: int) -> Measure:
        tree = PriorityTree(0.6, rng.random(n))

        def step(items: np.ndarray, values: np.ndarray) -> None:
            tree.update(items, values)
            tree.sample(BATCH, rng)

        return stepping(n, step)

    small = of(sizes[0])
    for n in sizes:
        peers: dict[str, Measure | Missing] = {f"{sizes[0]:,} items": small}
        compare(f"replay.update and sample 256 without rows, {n:,} items", "us", of(n), peers, rounds=5)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000_000)
