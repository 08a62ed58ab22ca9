"""Datasets to look at, and every view of one, for the tests of this room."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from poolish import DatasetBuffer
from poolish.load.cached import CachedDataset
from poolish.load.dataset import Dataset, check_index
from poolish.load.views.composite import CompositeDataset
from poolish.load.views.filtered import FilteredDataset
from poolish.load.views.single import AdaptedDataset, ShuffledDataset, SubsettedDataset, TransformedDataset


def row(n: int) -> dict[str, Any]:
    """What row ``n`` holds, everywhere in these tests."""
    return {"n": n, "x": np.full(3, n, np.float32), "text": f"row {n}"}


class Rows(Dataset):
    """Rows that are made when they are read; ``reads`` tells which."""

    def __init__(self, n_rows: int) -> None:
        self.n_rows = n_rows
        self.reads: list[int] = []

    def __len__(self) -> int:
        return self.n_rows

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = check_index(index, self.n_rows)
        self.reads.append(number)
        return row(number)


def buffer(n_rows: int, *, holes: bool = True) -> DatasetBuffer:
    """A buffer with rows missing from its beginning and from its middle, of which ``n_rows`` are left."""
    rows = DatasetBuffer(max_size=n_rows, drop_strategy="random", seed=3) if holes else DatasetBuffer()
    rows.append([row(n) for n in range(n_rows)])
    if holes:
        rows.append([row(n_rows + n) for n in range(n_rows // 2)])
    return rows


# Functions, not lambdas: these can be sent to another process.


def grown(sample: Any) -> Any:
    """A transform of any sample."""
    return {"was": sample}


def jittered(sample: Any, rng: np.random.Generator, progress: float) -> Any:
    """A transform that is another one in every epoch."""
    return {"was": sample, "noise": rng.random(2), "progress": progress}


def is_liked(sample: Any) -> bool:
    """A predicate that likes most rows of whatever shape."""
    return number_of(sample) % 4 != 1


def number_of(sample: Any) -> int:
    """The number that a row was made with, through whatever it was transformed into."""
    return number_of(sample["was"]) if "was" in sample else int(sample["n"])


def length(dataset: Any) -> int:
    return len(dataset)


def get(dataset: Any, number: int) -> Any:
    return dataset[number]


#: Each makes a view of any dataset, in a folder of its own.
VIEWS: dict[str, Callable[[Any, Path], Any]] = {
    "Transformed": lambda dataset, folder: TransformedDataset(dataset, grown),
    "Jittered": lambda dataset, folder: TransformedDataset(dataset, jittered, seed=3, epochs=4),
    "Filtered": lambda dataset, folder: FilteredDataset(dataset, is_liked),
    "Subsetted": lambda dataset, folder: SubsettedDataset(dataset, [*range(1, len(dataset)), 0]),
    "Shuffled": lambda dataset, folder: ShuffledDataset(dataset, seed=5),
    "Joined": lambda dataset, folder: CompositeDataset([dataset, Rows(4)]),
    "Mixed": lambda dataset, folder: CompositeDataset([dataset, Rows(30)], weights=[3, 1]),
    "Repeated": lambda dataset, folder: CompositeDataset([dataset, Rows(2)], weights=[3, 1], stop="all"),
    "Adapted": lambda dataset, folder: AdaptedDataset(dataset, length=length, get=get),
    "Cached": lambda dataset, folder: CachedDataset(dataset, max_items=4),
    "OnDisk": lambda dataset, folder: CachedDataset(dataset, max_items=7, path=folder / "cache" / str(len(dataset))),
}
