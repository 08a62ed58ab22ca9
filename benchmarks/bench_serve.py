"""Batches from one process to another: how many, how soon, and what the waiting ones cost.

    python -m benchmarks.bench_serve                    # all that this machine can
    python -m benchmarks.bench_serve throughput wake    # some: throughput, ragged, wake, read, backlog, cuda

Provider and consumer are two processes, as they are for users. Files lie in the system's temporary folder (TMPDIR);
nothing is synced, every batch is checksummed.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import serve_peers as peers
from benchmarks.harness import Measure, Missing, compare, needs, per_call
from poolish import DataProviderBase, DatasetConsumer
from poolish.files import checksum
from poolish.serve import queue_status
from poolish.transports.directory_parts import DirectoryWaker

BATCH, BLOCK = 64, 1024
N_BATCHES = 1_000
ARRAYS = {name: np.arange(BATCH * BLOCK, dtype=np.int64).reshape(BATCH, BLOCK) for name in ("x", "y")}


class Constant(DataProviderBase):
    """The same arrays again and again: what is measured is the way, not the making."""

    def setup(self) -> None:
        """Make the arrays."""
        shape = (self.config.batch_size, self.config.block_size)
        self.arrays = {name: np.arange(shape[0] * shape[1], dtype=np.int64).reshape(shape) for name in ("x", "y")}

    def build_meta(self) -> dict[str, Any]:
        """Two fields, x and y."""
        shape = [self.config.block_size]
        return {"batch_schema": [{"name": name, "dtype": "int64", "shape": shape} for name in ("x", "y")]}

    def sample_batch(self, split: str, rng: np.random.Generator) -> dict[str, Any]:
        """What was made before."""
        return self.arrays


def provider(
    folder: Path, *, name: str = "w0", batch_size: int = BATCH, block_size: int = BLOCK, **more: Any
) -> Constant:
    """A provider of one split."""
    names = {"dataset": "bench", "batch_size": batch_size, "block_size": block_size, "splits": ("train",), **more}
    return Constant(names, path=folder, name=name)


@contextmanager
def child(function: Callable[[], object]) -> Iterator[int]:
    """A forked process that runs a function until it is killed."""
    pid = os.fork()
    if pid == 0:
        try:
            function()
        finally:
            os._exit(0)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def folders() -> Iterator[Path]:
    """Empty folders, one after the other."""
    with tempfile.TemporaryDirectory(prefix="poolish-bench-") as root:
        for i in count():
            yield Path(root) / str(i)


# --- throughput ------------------------------------------------------------------------------------------------------


def throughput() -> None:
    """Batches of 1 MiB a second, one process to another."""
    fresh = folders()

    def ours() -> float:
        folder = next(fresh)
        provider(folder).open().close()
        with child(lambda: provider(folder).run()), DatasetConsumer(folder, timeout_s=30) as consumer:
            return rate(consumer)

    def through(make: Callable[[Path], Any]) -> Measure:
        def measure() -> float:
            lane = make(next(fresh))
            with child(lambda: lane.fill(ARRAYS)):
                return rate(lane.batches())

        return measure

    compare(
        "serve, 1 MiB batches, one provider, one consumer",
        "batches/s",
        ours,
        {
            "bare files: writev, rename, mmap": through(peers.bare_files),
            "torch DataLoader, 1 worker": needs("torch", lambda _: lambda: rate(peers.torch_loader(ARRAYS))),
            "multiprocessing.Queue": through(peers.Queue),
            "npz files, polled": through(peers.npz_files),
            "safetensors files, polled": needs("safetensors", lambda _: through(peers.safetensors_files)),
            "Arrow IPC files, polled": through(peers.arrow_files),
        },
    )


TEXT_ROWS, LONGEST = 64, 2048


@cache
def documents() -> dict[str, Any]:
    """Tokens of 64 documents and their texts; most are short, so that padded they take three times the space."""
    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.geometric(1 / 600, TEXT_ROWS), LONGEST)
    tokens = [rng.integers(50_000, size=n).astype(np.int32) for n in lengths]
    return {"tokens": tokens, "text": ["rye bread " * (n // 2) for n in lengths]}


def padded() -> dict[str, np.ndarray]:
    """The same as plain arrays: tokens and UTF-8 bytes, padded with zeros, and their lengths."""
    found, columns = {}, documents()
    rows = {"tokens": columns["tokens"], "text": [np.frombuffer(text.encode(), np.uint8) for text in columns["text"]]}
    for name, values in rows.items():
        found[name] = np.zeros((TEXT_ROWS, max(map(len, values))), values[0].dtype)
        for i, row in enumerate(values):
            found[name][i, : len(row)] = row
        found[f"{name}_length"] = np.array([len(row) for row in values])
    return found


class Documents(DataProviderBase):
    """The same documents again and again, ragged or padded."""

    def setup(self) -> None:
        """Make the batch."""
        self.batch = documents() if self.is_ragged else padded()

    def build_meta(self) -> dict[str, Any]:
        """Ragged tokens and text, or arrays as they are."""
        ragged = [{"name": "tokens", "dtype": "int32", "shape": [None]}, {"name": "text", "dtype": "string"}]
        if self.is_ragged:
            return {"batch_schema": ragged}
        fixed = [{"name": n, "dtype": a.dtype.name, "shape": list(a.shape[1:])} for n, a in self.batch.items()]
        return {"batch_schema": fixed}

    def sample_batch(self, split: str, rng: np.random.Generator) -> dict[str, Any]:
        """What was made before."""
        return self.batch


def ragged() -> None:
    """Batches of 64 documents a second, tokens and text, one process to another; readers end with tokens and texts."""
    fresh = folders()

    def served(*, is_ragged: bool) -> Measure:
        def make(folder: Path) -> Documents:
            names = {"dataset": "documents", "batch_size": TEXT_ROWS, "block_size": LONGEST, "splits": ("train",)}
            return Documents({**names, "is_ragged": is_ragged}, path=folder)

        def measure() -> float:
            folder = next(fresh)
            make(folder).open().close()
            reading = DatasetConsumer(folder, output="numpy", timeout_s=30)
            with child(lambda: make(folder).run()), reading as consumer:
                return rate(consumer if is_ragged else map(unpadded, consumer), look=look_at)

        return measure

    def pickled() -> float:
        lane = peers.Queue(next(fresh))
        with child(lambda: lane.fill(documents())):
            return rate(lane.batches(), look=look_at)

    def official(_: object) -> Measure:
        def measure() -> float:
            lane = peers.safetensors_files(next(fresh))
            with child(lambda: lane.fill(padded())):
                return rate(map(unpadded, lane.batches()), look=look_at)

        return measure

    compare(
        "serve, 64 documents a batch, ragged tokens and text",
        "batches/s",
        served(is_ragged=True),
        {
            "the same queue, padded": served(is_ragged=False),
            "multiprocessing.Queue of lists": pickled,
            "safetensors files, padded, polled": needs("safetensors", official),
        },
    )


def unpadded(batch: Any) -> dict[str, Any]:
    """Texts of padded bytes; the tokens stay padded."""
    texts = [row[:n].tobytes().decode() for row, n in zip(batch["text"], batch["text_length"], strict=True)]
    return {"tokens": batch["tokens"], "text": texts}


def look_at(batch: Any) -> None:
    """Look at every row of the tokens, and at the texts."""
    for row in batch["tokens"]:
        int(row[::512].sum())
    len(batch["text"][-1])


def rate(batches: Any, look: Callable[[Any], None] = peers.touch) -> float:
    """How many batches a second come, once the first few have."""
    batches = iter(batches)
    for _ in range(50):
        look(next(batches))
    begin = time.perf_counter()
    for _ in range(N_BATCHES):
        look(next(batches))
    return N_BATCHES / (time.perf_counter() - begin)


# --- waking up -------------------------------------------------------------------------------------------------------


def wake() -> None:
    """From the moment a batch is published to the moment that a waiting consumer has it (small batches)."""
    fresh = folders()
    delays: dict[str, list[float]] = {}

    def measure(name: str, make: Callable[[Path], tuple[Callable[[], object], Callable[[], object]]]) -> Measure:
        def once() -> float:
            publish, take = make(next(fresh))
            found = delays_of(publish, take, 200)
            delays.setdefault(name, []).extend(found)
            return statistics.median(found) * 1e6

        return once

    def ours(folder: Path) -> tuple[Callable[[], object], Callable[[], object]]:
        provider(folder, batch_size=1, block_size=8).open().close()
        consumer = DatasetConsumer(folder, output="numpy", timeout_s=30)

        @cache
        def maker() -> Constant:  # made where it is used first, in the child
            return provider(folder, batch_size=1, block_size=8)

        return lambda: maker().publish("train"), lambda: consumer.get_batch("train")

    def queue(folder: Path) -> tuple[Callable[[], object], Callable[[], object]]:
        lane = peers.Queue(folder)
        small = {name: array[:1, :8] for name, array in ARRAYS.items()}
        return lambda: lane._queue.put(small), lane._queue.get

    def bare(folder: Path) -> tuple[Callable[[], object], Callable[[], object]]:
        """The least: a file is renamed, a process that waits on inotify sees it and reads it."""
        folder.mkdir(parents=True)
        numbers, expected, watch = count(), count(), DirectoryWaker(folder)
        watch.add(folder)

        def publish() -> None:
            Path(f"{folder}/writing").write_bytes(bytes(128))
            os.rename(f"{folder}/writing", f"{folder}/{next(numbers)}")

        def take() -> None:
            path = f"{folder}/{next(expected)}"
            while not os.path.exists(path):
                watch.wait(30)
            Path(path).read_bytes()

        return publish, take

    def polled(folder: Path) -> tuple[Callable[[], object], Callable[[], object]]:
        folder.mkdir(parents=True)
        numbers, expected = count(), count()

        def publish() -> None:
            (folder / "writing").write_bytes(bytes(128))
            os.rename(folder / "writing", folder / str(next(numbers)))

        def take() -> None:
            path = folder / str(next(expected))
            while not path.exists():
                time.sleep(0.001)
            path.read_bytes()

        return publish, take

    compare(
        "serve, wake-up, median",
        "us",
        measure("poolish", ours),
        {
            "bare inotify and a file": measure("bare", bare),
            "multiprocessing.Queue": measure("queue", queue),
            "files polled every 1 ms": measure("polled", polled),
        },
    )
    p99 = {name: float(np.percentile(found, 99)) * 1e6 for name, found in delays.items()}
    compare(
        "serve, wake-up, 99th percentile of the same",
        "us",
        lambda: p99["poolish"],
        {
            "bare inotify and a file": lambda: p99["bare"],
            "multiprocessing.Queue": lambda: p99["queue"],
            "files polled every 1 ms": lambda: p99["polled"],
        },
        rounds=1,
    )


def delays_of(publish: Callable[[], object], take: Callable[[], object], n: int) -> list[float]:
    """How long after each publish has returned its batch is there; a little less than nothing counts as nothing."""
    reading, writing = os.pipe()

    def publish_now_and_then() -> None:
        rng = np.random.default_rng(0)
        for _ in range(n):
            time.sleep(rng.uniform(0.002, 0.005))
            publish()
            os.write(writing, time.monotonic_ns().to_bytes(8, "little"))
        time.sleep(60)

    with child(publish_now_and_then):
        found = []
        for _ in range(n):
            take()
            got = time.monotonic_ns()
            found.append(max(0.0, (got - int.from_bytes(os.read(reading, 8), "little")) / 1e9))
    os.close(reading)
    os.close(writing)
    return found


# --- reading ---------------------------------------------------------------------------------------------------------


def read() -> None:
    """A batch of 1 MiB that is there, from its file to tensors: opened, verified, acknowledged, let go.

    Against who maps files a page of every tensor is looked at, by everybody: only then has a mapped file been read.
    """
    fresh = folders()
    folder = next(fresh)
    maker = provider(folder, max_backlog=100_000).open()
    consumer = DatasetConsumer(folder, timeout_s=30)

    def publish() -> None:
        for _ in range(100):
            maker.publish("train")

    def taken(_: object) -> None:
        for _ in range(100):
            consumer.get_batch("train")

    def ours(_: object) -> None:
        for _ in range(100):
            peers.touch(consumer.get_batch("train"))

    def bare() -> Measure:
        """The least that reading with a checksum takes: a file into new memory, and its hash."""
        paths = [next(fresh) for _ in range(100)]
        content = np.arange(2 * BATCH * BLOCK + 64).tobytes()
        for path in paths:
            path.write_bytes(content)

        def load() -> None:
            for path in paths:
                data, fd = np.empty(len(content), np.uint8), os.open(path, os.O_RDONLY)
                os.preadv(fd, [data], 0)
                os.close(fd)
                checksum(data)

        whole = per_call(load, unit="us")
        return lambda: whole() / 100

    def official(library: Any) -> Measure:
        from safetensors.torch import load_file, save_file
        from torch import from_numpy

        paths = [next(fresh) for _ in range(100)]

        def save() -> None:
            for path in paths:
                save_file({name: from_numpy(array) for name, array in ARRAYS.items()}, path)

        def load(_: object) -> None:
            for path in paths:
                peers.touch(load_file(path))
                path.unlink()

        whole = per_call(load, unit="us", prepare=save)
        return lambda: whole() / 100

    alone, whole = per_call(taken, unit="us", prepare=publish), per_call(ours, unit="us", prepare=publish)
    compare(
        "serve, from a 1 MiB file to tensors",
        "us",
        lambda: alone() / 100,
        {"bare open, read, checksum": bare()},
    )
    compare(
        "serve, from a 1 MiB file to tensors that were looked at",
        "us",
        lambda: whole() / 100,
        {"safetensors.torch.load_file, then unlink (no checksum)": needs("safetensors", official)},
    )


def backlog() -> None:
    """Taking a small batch where 10,000 wait, against where 10 do."""
    fresh = folders()

    def waiting(n: int) -> Measure:
        folder = next(fresh)
        maker = provider(folder, batch_size=1, block_size=8, max_backlog=1_000_000).open()
        for _ in range(n):
            maker.publish("train")
        consumer = DatasetConsumer(folder, output="numpy", timeout_s=30)

        def publish() -> None:
            for _ in range(10):
                maker.publish("train")

        def take(_: object) -> None:
            for _ in range(10):
                consumer.get_batch("train")

        whole = per_call(take, unit="us", prepare=publish)
        return lambda: whole() / 10

    compare("serve, get_batch where 10,000 wait", "us", waiting(10_000), {"where 10 wait": waiting(10)}, rounds=50)


# --- CUDA ------------------------------------------------------------------------------------------------------------


def cuda() -> None:
    """How long a step of 5 ms on a GPU takes where each needs a batch of 64 MiB that waits in the queue.

    The queue is filled before: at 13 GB/s providers and consumer together need more than 16 cores.
    """
    name = "serve, a step of 5 ms on a GPU with a batch of 64 MiB from the queue"
    measures = needs("torch", _cuda_measures)
    if isinstance(measures, Missing):
        compare(name, "ms", lambda: 0.0, {"without batches": measures}, rounds=1)
    else:
        ours, others = measures()
        compare(name, "ms", ours, others, rounds=3)


def _cuda_measures(torch: Any) -> Any:
    if not torch.cuda.is_available():
        return Missing("no CUDA device here")
    n_warm, n_steps, n_providers = 40, 200, 10
    weights = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def busy(n: int) -> None:
        value = weights
        for _ in range(n):
            value = weights @ value

    def seconds(n: int) -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        busy(n)
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    seconds(50)
    n_products = max(1, round(0.005 / (seconds(200) / 200)))

    def train(take: Callable[[], Any]) -> float:
        """Milliseconds a step; the host is at most two steps ahead of the device."""
        events: list[Any] = []
        begin = 0.0
        for i in range(n_warm + n_steps):
            if i == n_warm:
                torch.cuda.synchronize()
                begin = time.perf_counter()
            x, y = take()
            x.view(-1)[:1024].add_(y.view(-1)[:1024])  # the step needs the batch
            busy(n_products)
            events.append(torch.cuda.Event())
            events[-1].record()
            if len(events) > 1:
                events.pop(0).synchronize()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / n_steps * 1e3

    def bare() -> float:
        x = torch.zeros(2**22, dtype=torch.int64, device="cuda")
        return train(lambda: (x, x))

    def with_batches(take_from: Callable[[DatasetConsumer], Callable[[], Any]], **options: Any) -> Measure:
        def once() -> float:
            with tempfile.TemporaryDirectory(prefix="poolish-bench-") as root:
                folder = Path(root) / "data"
                fill(folder, n_warm + n_steps + 20, n_providers)
                with DatasetConsumer(folder, timeout_s=60, **options) as consumer:
                    return train(take_from(consumer))

        return once

    def plain(consumer: DatasetConsumer) -> Callable[[], Any]:
        return lambda: tuple(tensor.to("cuda") for tensor in consumer.get_batch("train"))

    staged = with_batches(lambda consumer: lambda: consumer.get_batch("train"), device="cuda", prefetch=16)
    others = {"without batches": bare, "get_batch on the CPU, then .to('cuda')": with_batches(plain)}
    return lambda: (staged, others)


def fill(folder: Path, n_batches: int, n_providers: int) -> None:
    """Put batches of 64 MiB into a queue, by several processes."""
    size = {"batch_size": 512, "block_size": 8192, "max_backlog": n_batches, "max_backlog_bytes": "1tb"}
    provider(folder, **size).open().close()

    def provide(i: int) -> None:
        provider(folder, name=f"w{i}", **size).run()

    with ExitStack() as children:
        for i in range(n_providers):
            children.enter_context(child(lambda i=i: provide(i)))
        while queue_status(folder)["train"].published < n_batches:
            time.sleep(0.05)


PARTS = {"throughput": throughput, "ragged": ragged, "wake": wake, "read": read, "backlog": backlog, "cuda": cuda}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
