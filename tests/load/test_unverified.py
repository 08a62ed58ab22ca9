"""Rows of data in memory reach a cache on disk only under the fingerprint of what they were read from."""

from __future__ import annotations

import gc
import pickle

import numpy as np
import pytest
import torch

from poolish.load import CachedDataset, CompositeDataset, SubsettedDataset, TransformedDataset, joined
from poolish.load import disk_cache as module


def plain(sample):
    """Files hold no tensors."""
    return sample.item() if isinstance(sample, torch.Tensor) else sample


def named(sample):
    """Only dicts can be joined."""
    return {"sample": plain(sample)}


def changed(data) -> None:
    """Another value in row 1, in place."""
    if isinstance(data[1], dict):
        data[1]["x"] = 99
    elif isinstance(data[1], list):
        data[1][0] = 99
    else:
        data[1] = 99


DATA = {
    "list": lambda: [1, 2, 3],
    "dicts": lambda: [{"x": i} for i in range(3)],
    "tuple of lists": lambda: ([1], [2], [3]),
    "array": lambda: np.arange(3),
    "tensor": lambda: torch.arange(3),
}
VIEWS = {
    "itself": lambda data: data,
    "transformed": lambda data: TransformedDataset(data, plain),
    "subset": lambda data: SubsettedDataset(data, [0, 1, 2]),
    "part": lambda data: CompositeDataset([[7], data]),
    "joined": lambda data: joined([TransformedDataset(data, named), [{"n": i} for i in range(3)]]),
}


@pytest.fixture(params=["after every read", "for many rows"])
def hashing(request, monkeypatch):
    """How often the data is hashed."""
    monkeypatch.setattr(module, "QUICK_S", 1e9 if request.param == "after every read" else -1e9)


@pytest.mark.usefixtures("hashing")
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", DATA)
def test_data_that_is_changed_in_place_poisons_nothing(tmp_path, kind, view):
    """Whatever was read after the change, an equal dataset of the old content never finds."""
    data = DATA[kind]()
    cached = CachedDataset(TransformedDataset(VIEWS[view](data), plain), path=tmp_path)
    cached[0]
    changed(data)
    cached[-2]
    del cached
    gc.collect()

    found = CachedDataset(TransformedDataset(VIEWS[view](DATA[kind]()), plain), path=tmp_path)[-2]
    assert found == plain(VIEWS[view](DATA[kind]())[-2])


@pytest.mark.usefixtures("hashing")
def test_rows_that_wait_are_read_once_and_written_in_the_end(tmp_path):
    """They are hits in this process, and in others once the data was hashed: by ``eager``, or when the cache goes."""
    for n_round in range(2):
        cached = CachedDataset([n_round, 2, 3], path=tmp_path)
        for i in (0, 1, 2, 0, 1, 2):
            cached[i]
        assert (cached.stats.misses, cached.stats.hits) == (3, 3)
        if n_round:
            cached.eager()
        else:
            del cached
            gc.collect()
        again = CachedDataset([n_round, 2, 3], path=tmp_path)
        assert [again[i] for i in range(3)] == [n_round, 2, 3]
        assert again.stats.hits == 3


def test_rows_wait_no_longer_than_a_bound(tmp_path, monkeypatch):
    """However long hashing takes, so many rows are worth it."""
    monkeypatch.setattr(module, "QUICK_S", -1.0)
    monkeypatch.setattr(module, "MAX_ROWS", 4)
    monkeypatch.setattr(module, "perf_counter", iter(range(0, 10**9, 10**6)).__next__)
    cached = CachedDataset(list(range(10)), path=tmp_path)
    on_disk = []
    for i in range(5):
        cached[i]
        on_disk.append(len(list(tmp_path.glob("*.sample"))))
    assert on_disk == [1, 1, 1, 1, 5]


def test_a_copy_in_another_process_waits_for_itself(tmp_path):
    """It holds none of the rows that wait here, and writes only what it has read."""
    cached = CachedDataset([1, 2, 3], path=tmp_path)
    cached[0]
    copied = pickle.loads(pickle.dumps(cached))
    assert [copied[i] for i in range(3)] == [1, 2, 3]
    copied.dataset[1] = 99
    copied[1]
    assert CachedDataset([1, 2, 3], path=tmp_path)[1] == 2
