"""Other ways to a shuffled epoch over the same rows: each a function that gives an iterator over one epoch of batches.

Rows are a float32 tensor ``x`` and an int64 tensor ``y``. *Per sample* means what most programs do: a dataset with
``__getitem__``, whose samples are collated. *Batched* means a dataset that gathers a whole batch by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

Epoch = Callable[[], Iterator[Any]]


class Samples:
    """One row at a time."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[i], self.y[i]


class Batched(Samples):
    """A batch at a time: the fetching of torch's DataLoader asks for ``__getitems__`` where there is one."""

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.tensor(indices)
        return self.x.index_select(0, chosen), self.y.index_select(0, chosen)


class Arrays(Samples):
    """One row at a time, as NumPy has it."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x.numpy(), y.numpy()


def index_select(x: torch.Tensor, y: torch.Tensor, batch_size: int) -> Epoch:
    """The floor: no loader at all."""

    def epoch() -> Iterator[Any]:
        order = torch.randperm(len(x))
        for first in range(0, len(x), batch_size):
            chosen = order[first : first + batch_size]
            yield x.index_select(0, chosen), y.index_select(0, chosen)

    return epoch


def torch_loader(samples: Samples, batch_size: int, n_workers: int = 0) -> Epoch:
    """The DataLoader of torch; its worker processes are started for the epoch, as they are for users."""
    loader: Any = DataLoader(samples, batch_size, shuffle=True, num_workers=n_workers, collate_fn=_collate_of(samples))
    return lambda: iter(loader)


def stateful_loader(samples: Samples, batch_size: int) -> Epoch:
    """The StatefulDataLoader of torchdata."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader: Any = StatefulDataLoader(samples, batch_size, shuffle=True, collate_fn=_collate_of(samples))
    return lambda: iter(loader)


def _collate_of(samples: Samples) -> Any:
    return tuple if isinstance(samples, Batched) else None


def grain_dataset(samples: Samples, batch_size: int, n_threads: int) -> Epoch:
    """A MapDataset of grain, shuffled, read ahead by threads where there are any."""
    import grain

    seeds = itertools.count()

    def epoch() -> Iterator[Any]:
        rows = grain.MapDataset.source(samples).shuffle(seed=next(seeds)).batch(batch_size)
        if not n_threads:
            batches: Any = (rows[i] for i in range(len(rows)))
        else:
            batches = rows.to_iter_dataset(grain.ReadOptions(num_threads=n_threads))
        return (tuple(torch.from_numpy(column) for column in batch) for batch in batches)

    return epoch


def spdl_pipeline(samples: Batched, batch_size: int, n_threads: int) -> Epoch:
    """SPDL's pipeline: indices in, each batch gathered by one of its threads."""
    from spdl.pipeline import PipelineBuilder

    def indices() -> Iterator[list[int]]:
        for chosen in torch.randperm(len(samples)).split(batch_size):
            yield chosen.tolist()

    def epoch() -> Iterator[Any]:
        pipeline = (
            PipelineBuilder()
            .add_source(indices())
            .pipe(samples.__getitems__, concurrency=n_threads)
            .add_sink(2 * n_threads)
            .build(num_threads=n_threads)
        )
        with pipeline.auto_stop():
            yield from pipeline.get_iterator(timeout=30)

    return epoch


def hugging_face(x: torch.Tensor, y: torch.Tensor, batch_size: int) -> Epoch:
    """Hugging Face datasets in memory, shuffled, batches as tensors."""
    import datasets

    table = datasets.Dataset.from_dict(
        {"x": x.numpy(), "y": y.numpy()},
        features=datasets.Features({"x": datasets.Sequence(datasets.Value("float32")), "y": datasets.Value("int64")}),
    )
    seeds = itertools.count()
    return lambda: table.shuffle(seed=next(seeds), keep_in_memory=True).with_format("torch").iter(batch_size)


def rows_of(n: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows that all of them hold."""
    rng = np.random.default_rng(7)
    return torch.from_numpy(rng.random((n, width), np.float32)), torch.arange(n)
