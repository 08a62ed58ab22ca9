"""The Loader: how fast batches come, how fast the order is made, and what starting, waiting, caching and resuming cost.

    python -m benchmarks.bench_load                 # all
    python -m benchmarks.bench_load epoch order     # some: epoch, ranks, padding, order, start, slow, cache, resume

Rows are (float32[64], int64), batches have 256 of them and are torch tensors, unless a line says otherwise.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Measure, Missing, compare, needs, per_call, per_second
from poolish import DatasetBuffer, StreamStore
from poolish.load import Loader
from poolish.load.frozen import NumberedRows
from poolish.load.order import NOTHING, Order
from poolish.prefetch import Prefetcher
from poolish.workers import Workers

N_ROWS, WIDTH, BATCH = 200_000, 64, 256


def buffer_of(n: int = N_ROWS) -> DatasetBuffer:
    """A buffer of rows like everybody else's."""
    rng = np.random.default_rng(7)
    buffer = DatasetBuffer()
    for first in range(0, n, 100_000):
        size = min(100_000, n - first)
        numbers = np.arange(first, first + size)
        buffer.append_columns({"x": rng.random((size, WIDTH), np.float32), "y": numbers})
    return buffer


# --- an epoch --------------------------------------------------------------------------------------------------------


def epoch() -> None:
    """A shuffled epoch over rows in memory."""
    buffer = buffer_of()
    loader = Loader(buffer, BATCH, shuffle=True)
    compare("load, shuffled epoch of 200,000 rows", "rows/s", rate(lambda: iter(loader)), epoch_peers(), rounds=5)
    growing = Loader(buffer, BATCH, shuffle=True, follow=True)
    ahead = Loader(buffer, BATCH, shuffle=True, num_workers=2, persistent_workers=True)
    ranked = Loader(buffer, BATCH, shuffle=True, rank=0, world_size=8)
    compare(
        "load, the same epoch in other ways",
        "rows/s",
        rate(lambda: iter(loader)),
        {
            "poolish, follow=True": rate(lambda: iter(growing)),
            "poolish, num_workers=2": rate(lambda: iter(ahead)),
            "poolish, rank 0 of 8 (its rows)": rate(lambda: iter(ranked), N_ROWS // 8),
        },
    )


def epoch_peers() -> dict[str, Measure | Missing]:
    """Those who have the same rows; the slow ones run on the first part of the epoch only."""
    missing = needs("torch", lambda _: lambda: 0.0)
    if isinstance(missing, Missing):
        return {"torch": missing}
    from benchmarks import load_peers as peers

    logging.getLogger("absl").setLevel(logging.ERROR)  # grain: no jax here
    x, y = peers.rows_of(N_ROWS, WIDTH)
    samples, batched = peers.Samples(x, y), peers.Batched(x, y)

    def part(epoch: Callable[[], Iterator[Any]], n_rows: int = 50_000) -> Measure:
        return rate(epoch, n_rows, is_part=True)

    return {
        "bare torch.index_select": rate(peers.index_select(x, y, BATCH)),
        "torch DataLoader, __getitems__, 0 workers": rate(peers.torch_loader(batched, BATCH)),
        "torch DataLoader, __getitems__, 2 workers": rate(peers.torch_loader(batched, BATCH, 2)),
        "torch DataLoader, 0 workers": rate(peers.torch_loader(samples, BATCH)),
        "torch DataLoader, 1 worker": rate(peers.torch_loader(samples, BATCH, 1)),
        "torch DataLoader, 2 workers": rate(peers.torch_loader(samples, BATCH, 2)),
        "torch DataLoader, 4 workers": rate(peers.torch_loader(samples, BATCH, 4)),
        "torchdata StatefulDataLoader, 0 workers": needs(
            "torchdata", lambda _: rate(peers.stateful_loader(samples, BATCH))
        ),
        "torchdata StatefulDataLoader, __getitems__": needs(
            "torchdata", lambda _: rate(peers.stateful_loader(batched, BATCH))
        ),
        "grain MapDataset": needs("grain", lambda _: part(peers.grain_dataset(peers.Arrays(x, y), BATCH, 0))),
        "grain, 16 threads": needs("grain", lambda _: part(peers.grain_dataset(peers.Arrays(x, y), BATCH, 16))),
        "spdl pipeline, batched, 2 threads": needs(
            "spdl.pipeline", lambda _: rate(peers.spdl_pipeline(batched, BATCH, 2))
        ),
        "Hugging Face with_format('torch')": needs("datasets", lambda _: part(peers.hugging_face(x, y, BATCH))),
    }


def rate(epoch: Callable[[], Iterator[Any]], n_rows: int = N_ROWS, *, is_part: bool = False) -> Measure:
    """Rows a second over an epoch, or its first part; what starting it costs is in it."""
    n_batches = -(-n_rows // BATCH)

    def walk() -> None:
        n_got = sum(1 for _ in islice(epoch(), n_batches if is_part else None))
        assert n_got == n_batches, f"{n_got} batches instead of {n_batches}"

    return per_second(walk, n_rows)


# --- ranks -----------------------------------------------------------------------------------------------------------

N_RANKS, WINDOW, STRIDE = 8, 1024, 64


def ranks() -> None:
    """CPU time of a row of one of eight ranks, against one process: ranks run one at a time, so two cores will do."""
    buffer = buffer_of()

    def of_buffer(rank: int, world_size: int) -> Loader:
        return Loader(buffer, BATCH, shuffle=True, rank=rank, world_size=world_size)

    cpu_per_row("load, a row of 64 floats, CPU of a rank of 8", of_buffer, N_ROWS)
    with tempfile.TemporaryDirectory() as folder, StreamStore(Path(folder) / "stream", fields=["token"]) as store:
        n_tokens = 5_000_000  # two each: the step and the value
        store.append_many(np.arange(n_tokens), {"token": np.arange(n_tokens, dtype=np.float64)})
        windows = store.as_dataset(WINDOW, stride=STRIDE)
        runs = map("run-{}".format, itertools.count())
        names: dict[int, str] = {}

        def of_stream(rank: int, world_size: int) -> Loader:
            if rank == 0:
                names[world_size] = next(runs)  # every rank is a reader of its own, with the journal of its run
            run = names[world_size]
            return Loader(
                windows, BATCH, shuffle=True, rank=rank, world_size=world_size, journal=Path(folder) / run, run=run
            )

        name = f"load, a window of {WINDOW:,} tokens, CPU of a rank of 8 with a journal"
        cpu_per_row(name, of_stream, len(windows))


def cpu_per_row(bench: str, loader_of: Callable[[int, int], Loader], n_rows: int) -> None:
    """The mean over eight ranks and one process of its own, of an epoch each; making the loaders is not in it."""

    def epoch_of(world_size: int) -> Measure:
        def measure() -> float:
            seconds, n_got = 0.0, 0
            for rank in range(world_size):
                loader = loader_of(rank, world_size)
                begin = time.process_time()
                n_got += sum(len(batch.ids) for batch in loader)
                seconds += time.process_time() - begin
            assert n_got == n_rows
            return seconds / n_rows * 1e9

        return measure

    compare(bench, "ns", epoch_of(N_RANKS), {"one process": epoch_of(1)}, rounds=9)


# --- padding ---------------------------------------------------------------------------------------------------------


def padding() -> None:
    """A shuffled epoch of texts of 16 to 1,024 int32 tokens, padded to the longest of each batch."""
    from benchmarks.bench_cuda import padded_by_row, texts
    from poolish.load import PaddedCollate

    n = 20_000
    buffer = DatasetBuffer()
    buffer.append(texts(n))
    table = buffer.to_arrow()["tokens"]

    def by_torch(torch: Any) -> Measure:
        torch.set_num_threads(1)  # as in a worker process of a DataLoader; more are slower
        rows: Any = [torch.from_numpy(row.values.to_numpy().copy()) for row in table]
        loader = torch.utils.data.DataLoader(rows, BATCH, shuffle=True, collate_fn=padded_by_row)
        return rate(lambda: iter(loader), n)

    def of_samples(torch: Any) -> Measure:
        rows = [{"tokens": torch.from_numpy(row.values.to_numpy().copy())} for row in table]
        loader = Loader(rows, BATCH, shuffle=True, collate_fn=PaddedCollate())
        return rate(lambda: iter(loader), n)

    def of_hugging_face(datasets: Any) -> Measure:
        rows = datasets.Dataset(texts(n).cast(_narrow_lists()))
        loader = Loader(rows, BATCH, shuffle=True, collate_fn=PaddedCollate())
        return rate(lambda: iter(loader), n)

    loader = Loader(buffer, BATCH, shuffle=True, collate_fn=PaddedCollate())
    compare(
        "load, shuffled epoch of 20,000 padded texts",
        "rows/s",
        rate(lambda: iter(loader), n),
        {
            "torch DataLoader, pad_sequence": needs("torch", by_torch),
            "poolish, samples that are tensors": needs("torch", of_samples),
            "poolish, a Hugging Face dataset": needs("datasets", of_hugging_face),
        },
        rounds=5,
    )


def _narrow_lists() -> Any:
    import pyarrow as pa

    return pa.schema({"tokens": pa.list_(pa.int32())})


# --- the order -------------------------------------------------------------------------------------------------------


def order() -> None:
    """Ids a second, with nothing read: what it costs to decide which row comes next."""
    n = 1_000_000
    permutation = per_second(lambda: np.random.default_rng(0).permutation(n), n)
    peers: dict[str, Measure | Missing] = {"numpy permutation of all ids": permutation}
    n_parts: list[int] = []
    compare("load, order of 10^6 ids, 1 generation", "ids/s", ordered(lambda i: n), peers)
    compare(
        "load, order of 10^6 ids, 100 generations, appended at the first 100 blocks",
        "ids/s",
        ordered(lambda i: min(n, (i + 1) * n // 100), n_parts),
        peers,
    )
    assert max(n_parts) == 100, max(n_parts)
    compare(
        "load, order of 10^6 ids, half of them appended, 512 at each block (up to 977 generations)",
        "ids/s",
        ordered(lambda i: min(n, n // 2 + i * 512)),
        peers,
    )
    compare("load, state with 100 generations", "bytes", lambda: float(state_size(100)), rounds=1)
    compare("load, state with 1 generation", "bytes", lambda: float(state_size(1)), rounds=1)


def ordered(n_rows_at: Callable[[int], int], n_parts: list[int] | None = None) -> Measure:
    """All blocks of an epoch of a dataset that has ``n_rows_at(i)`` rows when block i is decided."""

    def walk(epoch: int) -> None:
        order, parts, n_dealt = Order(7, epoch), NOTHING, 0
        for i in range(1 << 30):
            block = order.decide(i, parts, NumberedRows(None, n_rows_at(i)))
            if block.is_empty:
                break
            parts = block.after
            n_dealt += len(block.ids)
            if n_parts is not None:
                n_parts.append(len(parts.starts))
        assert n_dealt == 1_000_000

    epochs = iter(range(1 << 30))
    return per_second(walk, 1_000_000, prepare=lambda: next(epochs))


def state_size(n_generations: int) -> int:
    """Bytes of a loader's state, as JSON, in the middle of an epoch with so many parts that are begun and not done."""
    sizes = np.random.default_rng(7).integers(4_000, 6_000, n_generations)  # uneven: they pack less well
    buffer = DatasetBuffer()
    buffer.append_columns({"n": np.arange(20_000)})
    loader = Loader(buffer, BATCH, shuffle=True, follow=True, output="numpy")
    while len(buffer.generations) < n_generations:
        list(islice(loader, 4))  # one block
        buffer.append_columns({"n": np.arange(sizes[len(buffer.generations)])})
    list(islice(loader, 7))
    return len(json.dumps(loader.state_dict()))


# --- starting --------------------------------------------------------------------------------------------------------


class Numbers:
    """So many rows that nobody holds them."""

    def __init__(self, n: int) -> None:
        self._n = n

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, i: int) -> int:
        return i


def start() -> None:
    """From nothing to the first batch of a shuffled epoch over 10^9 rows."""
    n, n_torch = 10**9, 10**7

    def ours() -> None:
        next(iter(Loader(Numbers(n), BATCH, shuffle=True)))

    def torch_first(_: Any) -> Callable[[], None]:
        from torch.utils.data import DataLoader

        rows: Any = Numbers(n_torch)
        return lambda: next(iter(DataLoader(rows, BATCH, shuffle=True)))

    def hundredfold(measure_of: Callable[[Callable[[], object]], Measure]) -> Measure | Missing:
        def scaled(library: Any) -> Measure:
            measure = measure_of(torch_first(library))
            return lambda: measure() * (n / n_torch)

        return needs("torch", scaled)

    name = "torch DataLoader (10^7 rows, times 100)"
    timed: Callable[[Callable[[], object]], Measure] = functools.partial(per_call, unit="ms")
    compare("load, first batch of 10^9 rows", "ms", timed(ours), {name: hundredfold(timed)})
    compare(
        "load, first batch of 10^9 rows, peak of memory (resident or Python's, the larger)",
        "KiB",
        lambda: max(resident_peak(ours)(), python_peak(ours)()),
        {name: hundredfold(resident_peak)},
        rounds=3,
    )


def python_peak(function: Callable[[], object]) -> Measure:
    """KiB that Python's allocator had given out at the worst moment of a call, beyond those before it."""

    def measure() -> float:
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            function()
            return (tracemalloc.get_traced_memory()[1] - before) / 1024
        finally:
            tracemalloc.stop()

    return measure


def resident_peak(function: Callable[[], object]) -> Measure:
    """KiB by which the process was larger at the worst moment of a call than before it (Linux)."""

    def measure() -> float:
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
        before = _status_kib("VmRSS")
        function()
        return max(0.0, _status_kib("VmHWM") - before)

    return measure


def _status_kib(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(name)))


# --- a slow source ---------------------------------------------------------------------------------------------------


class Slow:
    """A row takes as long as it takes; nothing is computed, so 8 threads wait side by side on any machine."""

    def __init__(self, n: int, seconds_of: Callable[[int], float] = lambda i: 0.001) -> None:
        self._n, self._seconds_of = n, seconds_of

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, i: int) -> int:
        time.sleep(self._seconds_of(i))
        return i


def slow() -> None:
    """Samples that take 1 ms each, 8 threads: how much of their time reaches the trainer."""
    n, n_threads, batch = 8_192, 8, 64
    loader = Loader(Slow(n), batch, num_workers=n_threads, persistent_workers=True)

    def walk(work_s: float = 0.0) -> None:
        n_got = 0
        for got in loader:
            n_got += len(got["value"])
            if work_s:
                time.sleep(work_s)
        assert n_got == n

    def bare() -> None:
        """What the machine can do: threads that sleep, and nobody who collects."""
        threads = [threading.Thread(target=sleep_often, args=(n // n_threads,)) for _ in range(n_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def torch_loader(_: Any) -> Measure:
        from torch.utils.data import DataLoader

        rows: Any = Slow(n)
        return per_second(lambda: list(DataLoader(rows, batch, num_workers=n_threads)), n)

    peers: dict[str, Measure | Missing] = {
        "ideal here: 8 bare threads that sleep as often": per_second(bare, n),
        "ideal on paper: 1 ms a row, 8 at a time": lambda: n_threads / 0.001,
        "torch DataLoader, 8 workers": needs("torch", torch_loader),
    }
    compare("load, 1 ms a sample, 8 threads", "rows/s", per_second(walk, n), peers, rounds=5)
    busy = per_second(lambda: walk(0.006), n)
    del peers["torch DataLoader, 8 workers"]
    compare("load, 1 ms a sample, 8 threads, the trainer works 6 ms a batch", "rows/s", busy, peers, rounds=5)
    loader.close()
    stealing()


def sleep_often(n: int) -> None:
    """One thread's share."""
    for _ in range(n):
        time.sleep(0.001)


def stealing() -> None:
    """The same threads where rows take different times: taking the next part when idle, against shares fixed before."""
    n = 4_096
    by_chance = np.where(np.random.default_rng(7).random(n) < 1 / 16, 0.016, 0.001)
    in_turn = np.where(np.arange(n) % 16 == 0, 0.016, 0.001)  # all of them fall to the same thread
    cases = {"by chance": by_chance, "every 16th": in_turn}
    for name, seconds in cases.items():
        compare(
            f"load, 8 threads that steal, 1 row in 16 takes 16 ms, the others 1 ({name})",
            "rows/s",
            reading(seconds, "steal"),
            {
                "static assignment": reading(seconds, "static"),
                "ideal on paper: the sum of all, 8 at a time": functools.partial(_ideal, seconds),
            },
            rounds=3,
        )


def reading(seconds: Any, assignment: Any) -> Measure:
    """Rows a second, read two at a time, in batches of 64, by 8 threads that read ahead."""
    n, batch, workers = len(seconds), 64, Workers(8, assignment=assignment)

    def walk() -> None:
        batches: Any = Prefetcher(
            iter([range(first, first + batch) for first in range(0, n, batch)]),
            lambda task: [task[i : i + 2] for i in range(0, batch, 2)],
            lambda part: [time.sleep(seconds[i]) for i in part],
            lambda task, pieces: pieces,
            workers=workers,
            n_ahead=16,
        )
        assert sum(1 for _ in batches) == n // batch

    return per_second(walk, n)


def _ideal(seconds: Any) -> float:
    return len(seconds) / (float(seconds.sum()) / 8)


# --- a cache ---------------------------------------------------------------------------------------------------------


def cache() -> None:
    """A row that is in the cache. Poolish hands out copies, the others the object that they hold."""
    from poolish.load.cached import CachedDataset

    n = 1_000
    kinds: dict[str, list[Any]] = {
        "{float32[64], int}": [{"x": np.full(WIDTH, i, np.float32), "y": i} for i in range(n)],
        "a text": [f"row {i}" for i in range(n)],
        "(float32[64], int)": [(np.full(WIDTH, i, np.float32), i) for i in range(n)],
    }
    wanted = np.random.default_rng(7).integers(0, n, 50_000).tolist()
    for kind, rows in kinds.items():
        cached = CachedDataset(rows, policy="lru")
        memoized = functools.lru_cache(maxsize=n)(rows.__getitem__)
        compare(
            f"load, cache hit, {kind}",
            "ns",
            each(cached.__getitem__, wanted),
            {
                "functools.lru_cache (no copy)": each(memoized, wanted),
                "cachetools.LRUCache (no copy)": needs("cachetools", functools.partial(_lru_cache, rows, wanted)),
                "the list itself, copy.copy": each(functools.partial(_copied, rows), wanted),
            },
        )


def _copied(rows: list[Any], i: int) -> Any:
    import copy

    return copy.copy(rows[i])


def _lru_cache(rows: list[Any], wanted: list[int], cachetools: Any) -> Measure:
    entries = cachetools.LRUCache(maxsize=len(rows))
    entries.update(enumerate(rows))
    return each(entries.__getitem__, wanted)


def each(function: Callable[[Any], object], items: list[Any]) -> Measure:
    """Nanoseconds of one call, over all items."""

    def loop() -> None:
        for item in items:
            function(item)

    measure = per_call(loop, unit="ns")
    return lambda: measure() / len(items)


# --- resuming --------------------------------------------------------------------------------------------------------


def resume() -> None:
    """State in the middle of an epoch of 10^6 rows: taking it, and going on from it."""
    buffer = buffer_of(1_000_000)
    loader = Loader(buffer, BATCH, shuffle=True)
    n_half = len(loader) // 2
    list(islice(loader, n_half))
    state = json.loads(json.dumps(loader.state_dict()))
    other = loader.like()

    def go_on() -> None:
        other.load_state_dict(state)
        next(iter(other))

    peer = needs("torchdata", functools.partial(_stateful, n_half))
    take, back = (peer, peer) if isinstance(peer, Missing) else peer()
    name = "torchdata StatefulDataLoader, __getitems__"
    compare("load, state_dict in mid-epoch", "us", per_call(loader.state_dict, unit="us", calls=100), {name: take})
    compare(
        "load, load_state_dict in mid-epoch", "us", per_call(lambda: other.load_state_dict(state), unit="us", calls=100)
    )
    first = per_call(go_on, unit="us", calls=20)
    compare("load, load_state_dict and the first batch", "us", first, {name: back}, rounds=5)


def _stateful(n_half: int, _: Any) -> Any:
    """Taking a state, and going on from it, there."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    from benchmarks import load_peers as peers

    batched: Any = peers.Batched(*peers.rows_of(1_000_000, WIDTH))
    loader: Any = StatefulDataLoader(batched, BATCH, shuffle=True, collate_fn=tuple)
    batches = iter(loader)
    for _ in range(n_half):
        next(batches)
    state = loader.state_dict()

    def go_on() -> None:
        again: Any = StatefulDataLoader(batched, BATCH, shuffle=True, collate_fn=tuple)
        again.load_state_dict(state)
        next(iter(again))

    return lambda: (per_call(loader.state_dict, unit="us", calls=10), per_call(go_on, unit="us"))


PARTS = {
    "epoch": epoch,
    "ranks": ranks,
    "padding": padding,
    "order": order,
    "start": start,
    "slow": slow,
    "cache": cache,
    "resume": resume,
}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
