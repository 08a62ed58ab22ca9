"""Datasets of every kind, and loaders that are walked together, for the tests of the loader."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from poolish import DatasetBuffer, StreamStore
from poolish.load import (
    CompositeDataset,
    FilteredDataset,
    Loader,
    ShuffledDataset,
    SubsettedDataset,
    TransformedDataset,
)
from poolish.load.cached import CachedDataset


def rows(first: int, end: int | None = None) -> list[dict[str, int]]:
    """Samples whose ``n`` says which they are."""
    return [{"n": i} for i in (range(first) if end is None else range(first, end))]


def buffer(n: int, **options: Any) -> DatasetBuffer:
    made = DatasetBuffer(**options)
    if n:
        made.append(rows(n))
    return made


def extend(dataset: Any, n: int) -> None:
    """``n`` more rows, which go on counting."""
    if isinstance(dataset, StreamStore):
        first = dataset.step_span()[1]
        if n:
            dataset.append_many(np.arange(first, first + n), {"n": np.arange(first, first + n)})
        return
    if isinstance(dataset, list):
        dataset += rows(len(dataset), len(dataset) + n)
        return
    if n:
        first = dataset.snapshot().next_id
        dataset.append(rows(first, first + n))


def stream(n: int, path: Path | None = None, **options: Any) -> StreamStore:
    made = StreamStore(path, {"n": "int64"}, **options)
    extend(made, n)
    return made


def _noisy(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "noise": int(rng.integers(2**40))}


def _is_liked(sample: dict[str, Any]) -> bool:
    return value_of(sample) % 3 != 1


def value_of(sample: dict[str, Any]) -> int:
    """What a row says of itself, whatever it is a row of."""
    return int(sample["n"] if "n" in sample else sample["values"][0])


def _more(base: Any, n: int) -> list[dict[str, Any]]:
    """Other samples of the same form."""
    is_windows = hasattr(base, "width")
    return [
        {"types": np.zeros(2, int), "values": np.full(2, 1000 + i)} if is_windows else {"n": 1000 + i} for i in range(n)
    ]


#: What holds rows; each makes ``n`` of them.
BASES: dict[str, Callable[[int], Any]] = {
    "list": rows,
    "buffer": buffer,
    "windows": lambda n: stream(2 * n).as_dataset(2),
}

#: What looks at them: made anew by each loader, as in each process.
VIEWS: dict[str, Callable[[Any], Any]] = {
    "transformed": lambda base: TransformedDataset(base, _noisy, seed=3),
    "filtered": lambda base: FilteredDataset(base, _is_liked),
    "subsetted": lambda base: SubsettedDataset(base, range(len(base) - 1, -1, -2)),
    "composite": lambda base: CompositeDataset([base, _more(base, 5), base]),
    "mixture": lambda base: CompositeDataset([base, _more(base, 9)], weights=[2, 1], seed=5),
    "shuffled": lambda base: ShuffledDataset(base, seed=4),
    "cached": lambda base: CachedDataset(base, max_items=7),
    "transformed shuffled": lambda base: TransformedDataset(ShuffledDataset(base, seed=4), _noisy),
    "shuffled filtered": lambda base: ShuffledDataset(FilteredDataset(base, _is_liked), seed=1),
    "cached transformed composite": lambda base: CachedDataset(
        TransformedDataset(CompositeDataset([base, FilteredDataset(base, _is_liked)]), _noisy), max_items=5
    ),
    "composite of composites": lambda base: CompositeDataset(
        [CompositeDataset([base, _more(base, 2)]), FilteredDataset(base, _is_liked)]
    ),
}


def load(dataset: Any, batch_size: int = 2, **options: Any) -> Loader:
    """A loader of arrays; all that are given a journal are of one run, unless a test names another."""
    run = {"run": "test"} if options.get("journal") is not None else {}
    return Loader(dataset, batch_size, **{"output": "numpy", **run, **options})


def ranks(world_size: int, dataset: Any, batch_size: int = 2, *, state: Any = None, **options: Any) -> list[Loader]:
    """All ranks of a run, going on from a state if one is given."""
    made = [load(dataset, batch_size, rank=rank, world_size=world_size, **options) for rank in range(world_size)]
    for loader in made:
        if state is not None:
            loader.load_state_dict(state)
    return made


def saved(loader: Loader) -> Any:
    """The state of a loader, as it comes back from a file."""
    return json.loads(json.dumps(loader.state_dict()))


def ids(batches: Any) -> list[int]:
    """The rows of some batches, or of what is left of a loader."""
    return [id_ for batch in batches for id_ in np.asarray(batch.ids).tolist()]


def plain(batch: Any) -> Any:
    """A batch as lists, with the rows it has: two batches are the same if these are."""
    return np.asarray(batch.ids).tolist(), batch.position, batch.step, _plain(batch)


def _plain(values: Any) -> Any:
    if isinstance(values, dict):
        return {name: _plain(column) for name, column in values.items()}
    if isinstance(values, (tuple, list)):
        return [_plain(column) for column in values]
    return values.tolist() if hasattr(values, "tolist") else values


_RUNNING: WeakKeyDictionary[Loader, Iterator[Any]] = WeakKeyDictionary()


def going_on(loader: Loader) -> Iterator[Any]:
    """The iterator with which ``step`` walks a loader: the same one until the end of the epoch."""
    if loader not in _RUNNING:
        _RUNNING[loader] = iter(loader)
    return _RUNNING[loader]


def step(loaders: Sequence[Loader]) -> list[Any] | None:
    """One step of all ranks; None at the end of the epoch, which they reach together. The next call begins another."""
    got = [next(going_on(loader), None) for loader in loaders]
    assert len({batch is None for batch in got}) == 1, "some ranks have a batch more than others"
    if got[0] is not None:
        return got
    for loader in loaders:
        del _RUNNING[loader]
    return None


def dealt(batches: Sequence[Any]) -> list[int]:
    """The rows of one step in the order in which they were dealt to the ranks."""
    shares = [np.asarray(batch.ids).tolist() for batch in batches]
    return [share[i] for i in range(max(map(len, shares))) for share in shares if i < len(share)]


def walked(loaders: Sequence[Loader]) -> Iterator[list[int]]:
    """Step after step of all ranks, to the end of the epoch."""
    while (batches := step(loaders)) is not None:
        yield dealt(batches)


def whole(loaders: Sequence[Loader]) -> list[int]:
    """The rest of the epoch, over all ranks, in its order."""
    return [id_ for step_ids in walked(loaders) for id_ in step_ids]
