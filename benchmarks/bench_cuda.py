"""Feeding a GPU: how long a training step takes with batches of a loader, and how long without any.

    python -m benchmarks.bench_cuda                    # on a machine with a CUDA device
    python -m benchmarks.bench_cuda images windows     # some of: images, windows, ranks

The step is matrix products of about 1.9 ms on the device, and one kernel that reads the batch; the host is at most two
steps ahead. All loaders have their default arguments unless the name says otherwise, and take turns.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.harness import Measure, Missing, compare, needs
from poolish import DatasetBuffer, Loader, StreamStore

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


PARTS = {"images": images, "windows": windows}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
