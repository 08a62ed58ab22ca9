"""Feeding a GPU: how long a training step takes with batches of a loader, and how long without any.

    python -m benchmarks.bench_cuda                    # on a machine with a CUDA device
    python -m benchmarks.bench_cuda images windows     # some of: images, windows, text, ranks

The step is matrix products of about 1.9 ms on the device, and one kernel that reads the batch; the host is at most two
steps ahead. All loaders have their default arguments unless the name says otherwise, and take turns.

``ranks`` needs no device: eight processes, each a rank of one loader over one stream on disk, against one process.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import Measure, Missing, compare, needs
from poolish import DatasetBuffer, Loader, StreamStore
from poolish.load import PaddedCollate

BATCH, STEP_S = 256, 0.0019
N_WARM, N_STEPS = 20, 200

Epoch = Callable[[], Iterator[Any]]


def images() -> None:
    """Batches of 256 images of 3 x 64 x 64 uint8, 3 MiB."""

    def measures(torch: Any) -> Any:
        step = _step_of(torch)
        n_rows = 40 * BATCH
        buffer = DatasetBuffer()
        pixels = np.random.default_rng(0).integers(0, 256, (n_rows, 3, 64, 64), np.uint8)
        buffer.append_columns({"image": pixels, "label": np.arange(n_rows)})
        held = torch.from_numpy(pixels[:BATCH]).cuda()

        def loaded(**options: Any) -> Measure:
            loader = Loader(buffer, BATCH, shuffle=True, device="cuda", **options)
            return lambda: step(_images(lambda: iter(loader)))

        others: dict[str, Measure | Missing] = {
            "a bare step": lambda: step(_forever(lambda: iter([held] * 100))),
            "num_workers=2": loaded(num_workers=2),
            "num_workers=8": loaded(num_workers=8),
            "torch DataLoader, 4 workers": _of_torch(torch, step, pixels),
        }
        return loaded(), others

    _compare("images, 256 x 3 x 64 x 64", measures)


def windows() -> None:
    """Batches of 256 windows of 1,024 tokens, values and types, 4 MiB."""

    def measures(torch: Any) -> Any:
        step = _step_of(torch)
        store = StreamStore(fields=["token"])
        n_tokens = 10_000_000
        store.append_many(np.arange(n_tokens), {"token": np.arange(n_tokens, dtype=np.float64)})
        held = torch.zeros((BATCH, 1024), dtype=torch.int64, device="cuda")
        loader = Loader(store.as_dataset(1024), BATCH, shuffle=True, device="cuda")
        others = {"a bare step": lambda: step(_forever(lambda: iter([held] * 100)))}
        return lambda: step(batch["values"] for batch in _forever(lambda: iter(loader))), others

    _compare("windows, 256 x 1,024 tokens", measures)


def text() -> None:
    """Batches of 256 texts of 16 to 1,024 int32 tokens, padded: up to 1 MiB, their lengths and a mask."""

    def measures(torch: Any) -> Any:
        step = _step_of(torch)
        rows = texts(40 * BATCH)
        buffer = DatasetBuffer()
        buffer.append(rows)
        held = torch.zeros((BATCH, 1024), dtype=torch.int32, device="cuda")
        loader = Loader(buffer, BATCH, shuffle=True, device="cuda", collate_fn=PaddedCollate())
        tokens = [torch.from_numpy(row.values.to_numpy().copy()) for row in rows["tokens"]]
        others: dict[str, Measure | Missing] = {
            "a bare step": lambda: step(_forever(lambda: iter([held] * 100))),
            "torch DataLoader, 4 workers, pad_sequence": _padded_by_torch(torch, step, tokens),
        }
        return lambda: step(batch["tokens"] for batch in _forever(lambda: iter(loader))), others

    _compare("texts, 256 x 16-1,024 tokens, padded", measures)


def texts(n_rows: int) -> pa.Table:
    """Rows of 16 to 1,024 int32 tokens."""
    rng = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(16, 1025, n_rows))])
    tokens = rng.integers(0, 50_000, offsets[-1], np.int32)
    return pa.table({"tokens": pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(tokens))})


def padded_by_row(rows: list[Any]) -> dict[str, Any]:
    """What most programs do: one tensor a row, padded in Python."""
    import torch

    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return {"tokens": tokens, "length": lengths, "mask": torch.arange(tokens.shape[1]) < lengths[:, None]}


def _padded_by_torch(torch: Any, step: Callable[[Iterator[Any]], float], tokens: list[Any]) -> Measure:
    loader = torch.utils.data.DataLoader(
        tokens,
        BATCH,
        shuffle=True,
        num_workers=4,
        pin_memory=True,
        persistent_workers=True,
        collate_fn=padded_by_row,
    )
    return lambda: step(batch["tokens"].to("cuda", non_blocking=True) for batch in _forever(lambda: iter(loader)))


def _compare(what: str, measures: Callable[[Any], Any]) -> None:
    name = f"load, a step of 1.9 ms on a GPU with a batch of {what}"
    made = needs("torch", lambda torch: measures(torch) if torch.cuda.is_available() else Missing("no CUDA device"))
    if isinstance(made, Missing):
        compare(name, "ms", lambda: 0.0, {"a bare step": made}, rounds=1)
        return
    ours, others = made
    compare(name, "ms", ours, others, rounds=5)


def _step_of(torch: Any) -> Callable[[Iterator[Any]], float]:
    """Milliseconds of a step that works for 1.9 ms and reads one batch."""
    weights = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    total = torch.zeros((), device="cuda")

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

    seconds(200)
    n_products = max(1, round(STEP_S / (seconds(1000) / 1000)))

    def train(batches: Iterator[Any]) -> float:
        events: list[Any] = []
        begin = 0.0
        for i in range(N_WARM + N_STEPS):
            if i == N_WARM:
                torch.cuda.synchronize()
                begin = time.perf_counter()
            total.add_(next(batches).view(-1)[:1024].float().sum())
            busy(n_products)
            events.append(torch.cuda.Event())
            events[-1].record()
            if len(events) > 1:
                events.pop(0).synchronize()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / N_STEPS * 1e3

    return train


def _forever(epoch: Epoch) -> Iterator[Any]:
    while True:
        yield from epoch()


def _images(epoch: Epoch) -> Iterator[Any]:
    return (batch["image"] for batch in _forever(epoch))


class _Images:
    """What most programs have: a dataset that returns one sample."""

    def __init__(self, pixels: Any) -> None:
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"image": self.pixels[i], "label": i}


def _of_torch(torch: Any, step: Callable[[Iterator[Any]], float], pixels: Any) -> Measure:
    loader = torch.utils.data.DataLoader(
        _Images(pixels), BATCH, shuffle=True, num_workers=4, pin_memory=True, persistent_workers=True
    )
    return lambda: step(batch["image"].to("cuda", non_blocking=True) for batch in _forever(lambda: iter(loader)))


# Ranks on one machine ---------------------------------------------------------------------------------------------

N_RANKS, RANK_S, STRIDE = 8, 4.0, 64


def ranks() -> None:
    """Windows a second of eight ranks together, each a process of its own, and of one process that is all ranks."""
    with tempfile.TemporaryDirectory() as folder:
        n_tokens = 10_000_000
        with StreamStore(Path(folder) / "stream", fields=["token"]) as store:
            store.append_many(np.arange(n_tokens), {"token": np.arange(n_tokens, dtype=np.float64)})
        rounds = iter(range(1 << 30))

        def rate(n_ranks: int) -> Measure:
            return lambda: _together(Path(folder), n_ranks, f"run-{n_ranks}-{next(rounds)}")

        name = f"load, batches of {BATCH} x 1,024 tokens from one stream, {N_RANKS} ranks on one machine"
        compare(name, "windows/s", rate(N_RANKS), {"one process": rate(1)}, rounds=3)


def _together(folder: Path, n_ranks: int, run: str) -> float:
    """Windows a second of all ranks, which begin together when each has its first batch."""
    command = [sys.executable, "-m", "benchmarks.bench_cuda", "rank", str(folder), run, str(n_ranks)]
    processes = [
        subprocess.Popen([*command, str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for rank in range(n_ranks)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(f"a rank ended with {process.wait()} before its first batch")
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return sum(float(process.communicate(timeout=120)[0]) for process in processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def rank_of(folder: str, run: str, n_ranks: str, rank: str) -> None:
    """One rank: how many windows a second it gets, while the others are at work."""
    store = StreamStore.open(Path(folder) / "stream")
    loader = Loader(
        store.as_dataset(1024, stride=STRIDE),
        BATCH,
        shuffle=True,
        rank=int(rank),
        world_size=int(n_ranks),
        journal=Path(folder) / run,
        run=run,
    )
    batches = _forever(lambda: iter(loader))
    next(batches)
    print("ready", flush=True)
    sys.stdin.readline()
    begin, n_windows = time.perf_counter(), 0
    while time.perf_counter() - begin < RANK_S:
        n_windows += len(next(batches)["values"])
    print(n_windows / (time.perf_counter() - begin))


PARTS = {"images": images, "windows": windows, "text": text, "ranks": ranks}

if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank_of(*sys.argv[2:])
    else:
        for part in sys.argv[1:] or PARTS:
            PARTS[part]()
