"""The rows, loaders and tiny models that all frameworks train on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from poolish import DatasetBuffer, DatasetProvider, Loader

N_ROWS = 20


def buffer(n: int = N_ROWS, first: int = 0) -> DatasetBuffer:
    """Rows whose ``n`` says which they are; ``x`` and ``labels`` are something to learn."""
    made = DatasetBuffer()
    made.append(samples(first, first + n))
    return made


def samples(first: int, end: int) -> list[dict[str, Any]]:
    return [
        {"n": n, "x": np.array([np.sin(n), np.cos(n)], np.float32), "labels": np.array([n % 3], np.float32)}
        for n in range(first, end)
    ]


#: Made before a run is forked, so that all runs have the same buffer: a state belongs to one.
BUFFER = buffer()
VALIDATION = buffer(10)


def loader(dataset: Any = BUFFER, batch_size: int = 4, *, shuffle: bool = True, **options: Any) -> Loader:
    return Loader(dataset, batch_size, shuffle, seed=3, **{"shared": "copy", **options})


def queue(folder: Path, n_batches: int, *, is_finished: bool = True) -> Path:
    """A queue of batches of 4 rows."""
    rows = samples(0, 4 * n_batches)
    with DatasetProvider({"train": rows, "val": rows}, path=folder, batch_size=4, order="sequential", epochs=1) as made:
        if is_finished:
            made.run()
    return folder


def left_in(path: str) -> list[int]:
    """The numbers of the batches that a queue still holds."""
    names = os.listdir(Path(path) / "queue" / "train")
    return sorted(int(name.split(".")[0]) for name in names if name[0].isdigit())
