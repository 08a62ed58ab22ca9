"""What the dataset patterns cost and bring: the figures behind docs/patterns.md.

    python -m benchmarks.bench_patterns              # all of them
    python -m benchmarks.bench_patterns hit_rates    # one

Peers are the other choice in each pattern (lazy for eager, static for stealing), what a formula says, or another
library that does the same.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Figure, Measure, compare, needs, per_call
from poolish.load.batching import RandomBatches, SequentialBatches, StratifiedBatches
from poolish.load.cached import CachedDataset
from poolish.load.dataset import Dataset, check_index
from poolish.load.loader import Loader
from poolish.load.media import ImageFolder
from poolish.load.views.composite import CompositeDataset
from poolish.load.views.single import TransformedDataset
from poolish.prefetch import Prefetcher
from poolish.workers import Workers

rng = np.random.default_rng(7)

# Lazy, eager, cached --------------------------------------------------------------------------------------------

N_IMAGES = 400


def epochs() -> None:
    """One image of an epoch: decoded each time, or kept in memory or in files."""
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "images" / "loaf").mkdir(parents=True)
        for k in range(N_IMAGES):
            pixels = rng.integers(0, 64, (64, 64, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(Path(folder) / "images" / "loaf" / f"{k:04}.png")
        lazy = ImageFolder(Path(folder) / "images")
        memory = CachedDataset(lazy).eager()
        disk = CachedDataset(lazy, path=Path(folder) / "cache").eager()
        half = CachedDataset(lazy, max_items=N_IMAGES // 2)
        shuffled = {
            "lazy": epoch_of(lazy),
            "on disk": epoch_of(disk),
            "in memory, room for half": epoch_of(half),
        }
        compare("patterns.epoch of 64x64 PNGs, kept in memory", "us/image", epoch_of(memory), shuffled)
        print(
            Figure(
                "patterns.bytes of an image in memory",
                "bytes",
                memory.stats.bytes / N_IMAGES,
                disk.stats.bytes / N_IMAGES,
                "on disk",
                None,
                1,
            ).to_json(),
            flush=True,
        )
        compare(
            "patterns.loading all images beforehand",
            "us/image",
            lambda: 1e6 * seconds(lambda: CachedDataset(lazy).eager()) / N_IMAGES,
            rounds=3,
        )


def epoch_of(dataset: Any) -> Measure:
    """Microseconds for each row of a shuffled epoch."""

    def measure() -> float:
        order = rng.permutation(len(dataset)).tolist()
        return 1e6 * seconds(lambda: [dataset[i] for i in order]) / len(order)

    return measure


def seconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


# What a hit costs -----------------------------------------------------------------------------------------------


class Labelled(Dataset):
    """An array of 64 numbers and a label."""

    def __len__(self) -> int:
        return 1_000

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": np.zeros(64, np.float32), "y": check_index(index, 1_000)}


def hits() -> None:
    """A hit in memory, by policy, beside what making the sample costs; the target is one microsecond."""
    source = Labelled()
    for policy in ("lru", "lfu", "fifo"):
        cached = CachedDataset(source, policy).eager()
        kept = dict(enumerate(cached))
        compare(
            f"patterns.hit of a cache, {policy}",
            "ns",
            per_call(lambda cached=cached: cached[5], calls=20_000),
            {"a dict, no copy": per_call(lambda kept=kept: kept[5], calls=20_000)},
        )
    with tempfile.TemporaryDirectory() as folder:
        disk = CachedDataset(source, path=folder).eager()
        compare("patterns.hit of a cache, on disk", "us", per_call(lambda: disk[5], unit="us", calls=1_000))


# Hit rates ------------------------------------------------------------------------------------------------------

N_ROWS, N_ASKED = 10_000, 100_000


def hit_rates() -> None:
    """Hits of the policies with room for a tenth of the rows, under four ways to ask, beside what formulas say."""
    room = N_ROWS // 10
    ranks = np.arange(1, N_ROWS + 1)
    zipf = (1 / ranks) / (1 / ranks).sum()
    patterns: dict[str, tuple[NDArray[np.int64], dict[str, tuple[str, float]]]] = {
        "uniform": (
            rng.integers(0, N_ROWS, N_ASKED),
            dict.fromkeys(("lru", "lfu", "fifo"), ("C / W", room / N_ROWS)),
        ),
        "zipf": (
            rng.choice(N_ROWS, N_ASKED, p=zipf),
            {
                "lru": ("Che's approximation", che(zipf, room, lambda x: 1 - np.exp(-x))),
                "fifo": ("Che's approximation", che(zipf, room, lambda x: x / (1 + x))),
                "lfu": ("the most frequent rows, H_C / H_W", float(zipf[:room].sum())),
            },
        ),
        "shuffled epochs": (
            np.concatenate([rng.permutation(N_ROWS) for _ in range(N_ASKED // N_ROWS)]),
            {"lru": ("c + (1 - c) ln(1 - c)", 0.1 + 0.9 * float(np.log(0.9)))},
        ),
        "epochs in order": (np.tile(np.arange(N_ROWS), N_ASKED // N_ROWS), {}),
    }
    for pattern, (asked, said) in patterns.items():
        for policy in ("lru", "lfu", "fifo"):
            cached = CachedDataset(range(N_ROWS), policy, max_items=room)
            half = len(asked) // 2
            for i in asked[:half].tolist():
                cached[i]
            before = cached.stats
            for i in asked[half:].tolist():
                cached[i]
            n_hits = cached.stats.hits - before.hits
            name, value = said.get(policy, (None, None))
            figure = Figure(
                f"patterns.hits under {pattern}, {policy}, room for 10 %",
                "%",
                100 * n_hits / (len(asked) - half),
                None if value is None else 100 * value,
                name,
                None,
                1,
            )
            print(figure.to_json(), flush=True)


def che(shares: NDArray[np.float64], room: int, held: Callable[[Any], Any]) -> float:
    """Hit rate of a cache, after Che: a row is held if it was asked for in the time that empties the cache."""
    low, high = 0.0, 1e9
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if held(shares * middle).sum() < room else (low, middle)
    return float((shares * held(shares * low)).sum())


# Reading a file -------------------------------------------------------------------------------------------------

RECORD, N_RECORDS = 3_073, 20_000


def reading() -> None:
    """One record of a file that the system holds in memory: mapped or read, in order or at random."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(rng.integers(0, 256, RECORD * N_RECORDS, dtype=np.uint8).tobytes())
        file.flush()
        mapped = np.memmap(file.name, np.uint8, "r", shape=(N_RECORDS, RECORD))
        fd = os.open(file.name, os.O_RDONLY)
        in_order, at_random = list(range(N_RECORDS)), rng.permutation(N_RECORDS).tolist()

        def by_map(order: list[int]) -> Measure:
            return lambda: 1e6 * seconds(lambda: [mapped[i].sum() for i in order]) / len(order)

        def by_read(order: list[int]) -> Measure:
            def read(i: int) -> Any:
                return np.frombuffer(os.pread(fd, RECORD, i * RECORD), np.uint8).sum()

            return lambda: 1e6 * seconds(lambda: [read(i) for i in order]) / len(order)

        compare(
            "patterns.record of 3 kB, mapped, in order",
            "us",
            by_map(in_order),
            {
                "mapped, at random": by_map(at_random),
                "read, in order": by_read(in_order),
                "read, at random": by_read(at_random),
            },
        )
        os.close(fd)


# Batches, workers, prefetching ----------------------------------------------------------------------------------


def batches() -> None:
    """Making one batch of 256 row numbers out of a million."""
    n = 1_000_000
    labels = rng.integers(0, 10, n)
    kinds = {
        "sequential": SequentialBatches(n, 256),
        "random": RandomBatches(n, 256),
        "stratified, 10 classes": StratifiedBatches(labels, 256),
    }
    for name, kind in kinds.items():
        compare(f"patterns.batch of 256, {name}", "us", per_call(lambda kind=kind: kind[1_000], unit="us", calls=200))


def stealing() -> None:
    """32 batches of 16 samples by 4 threads, where one sample in 8 takes 8 ms and the others 1: static or stealing."""

    def run(assignment: Any) -> float:
        def read(i: int) -> int:
            time.sleep(0.008 if i % 8 == 0 else 0.001)
            return i

        def tasks() -> Iterator[range]:
            yield from (range(16 * k, 16 * k + 16) for k in range(32))

        with Workers(4, assignment=assignment) as workers:
            ahead = Prefetcher(tasks(), list, read, lambda task, pieces: pieces, workers=workers, n_ahead=4)
            return 1e3 * seconds(lambda: list(ahead))

    compare(
        "patterns.uneven samples, stealing", "ms", lambda: run("steal"), {"static": lambda: run("static")}, rounds=3
    )


class Slow(Dataset):
    """A millisecond for each sample, as a disk or a network takes it."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(0.001)
        return {"n": check_index(index, 512)}


def prefetching() -> None:
    """An epoch of 512 slow samples while the consumer computes 8 ms on each batch of 32."""

    def run(num_workers: int) -> float:
        loader = Loader(Slow(), 32, num_workers=num_workers, output="numpy")

        def train() -> None:
            for _ in loader:
                time.sleep(0.008)

        return 1e3 * seconds(train)

    compare("patterns.slow epoch, 8 workers", "ms", lambda: run(8), {"no workers": lambda: run(0)}, rounds=3)


def composing() -> None:
    """A row of a thousand datasets joined, and of three mixed."""
    parts = [list(range(100))] * 1_000
    joined = CompositeDataset(parts)
    len(joined)
    numbers = rng.integers(0, 100_000, 256).tolist()
    compare(
        "patterns.row of 1,000 datasets joined",
        "us",
        rows_of(joined, numbers),
        {
            "torch ConcatDataset": needs(
                "torch.utils.data",
                lambda data: rows_of(data.ConcatDataset(parts), numbers),
            )
        },
    )
    mixed = CompositeDataset([range(10**6), range(10**6), range(10**6)], weights=[0.7, 0.2, 0.1])
    compare(
        "patterns.256 rows of 3 datasets mixed, in one call",
        "us",
        per_call(lambda: mixed.__getitems__(numbers), unit="us"),
        {"joined, in one call": per_call(lambda: joined.__getitems__(numbers), unit="us")},
    )


def rows_of(dataset: Any, numbers: list[int]) -> Measure:
    """Microseconds for each of these rows."""
    return lambda: 1e6 * seconds(lambda: [dataset[i] for i in numbers]) / len(numbers)


def transforming() -> None:
    """One row through a transform: one that asks for nothing, and one that asks for random numbers of its own."""
    source = Labelled()
    plain, random = TransformedDataset(source, dict), TransformedDataset(source, _with_noise)
    compare(
        "patterns.row transformed, with rng",
        "us",
        per_call(lambda: random[5], unit="us", calls=1_000),
        {
            "without": per_call(lambda: plain[5], unit="us", calls=1_000),
            "not transformed": per_call(lambda: source[5], unit="us", calls=1_000),
        },
    )


def _with_noise(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "y": rng.random()}


ALL = {
    f.__name__: f for f in (epochs, hits, hit_rates, reading, batches, stealing, prefetching, composing, transforming)
}


def main(names: list[str]) -> None:
    """Those that are named, or all."""
    for name in names or ALL:
        ALL[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
