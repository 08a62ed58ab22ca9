"""Copies of a stream that went their own ways: a state of one is never continued on the other."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poolish import StreamStore
from poolish.errors import ResumeError
from poolish.load import CachedDataset, CompositeDataset, Loader, ShuffledDataset, TransformedDataset


def recorded(path: Path, first: int, values: list[int]) -> None:
    with StreamStore(path, fields={"a": "int64", "done": "bool"}) as store:
        columns = {"a": np.asarray(values), "done": np.zeros(len(values), bool)}
        store.append_many(np.arange(first, first + len(values)), columns)


VIEWS: dict[str, Any] = {
    "steps": lambda store: store,
    "windows": lambda store: store.as_dataset(2),
    "windows within episodes": lambda store: store.as_dataset(2, within="done"),
    "transformed": lambda store: TransformedDataset(store.as_dataset(2), lambda sample: sample),
    "shuffled": lambda store: ShuffledDataset(store.as_dataset(2), seed=1),
    "composite": lambda store: CompositeDataset([[{"types": 0, "values": 0}], store.as_dataset(2)]),
}


@pytest.fixture
def copies(tmp_path) -> tuple[Path, Path]:
    """One stream, copied, and then appended to twice."""
    recorded(tmp_path / "one", 0, list(range(1, 11)))
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    recorded(tmp_path / "one", 10, [100] * 10)
    recorded(tmp_path / "two", 10, [200] * 10)
    return tmp_path / "one", tmp_path / "two"


def load(dataset: Any) -> Loader:
    return Loader(dataset, 2, shuffle=True, seed=3, output="numpy", collate_fn=list)


@pytest.mark.parametrize("view", VIEWS)
def test_a_state_of_one_copy_is_refused_by_the_other(copies, view):
    """The same ids are other rows there. On its own copy it goes on, also when others have appended to it since."""
    one, two = copies
    loader = load(VIEWS[view](StreamStore.open(one)))
    next(iter(loader))
    state = loader.state_dict()

    with pytest.raises(ResumeError, match="another copy of this stream"):
        load(VIEWS[view](StreamStore.open(two))).load_state_dict(state)
    if view != "shuffled":  # whose numbers are those of the rows it was made of
        recorded(one, 20, [300] * 4)
    load(VIEWS[view](StreamStore.open(one))).load_state_dict(state)


def test_a_state_from_before_the_copy_goes_on_in_both(tmp_path):
    """What it has seen is the same in both."""
    recorded(tmp_path / "one", 0, list(range(10)))
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    loader = load(StreamStore.open(tmp_path / "one"))
    next(iter(loader))
    state = loader.state_dict()
    recorded(tmp_path / "one", 10, [100] * 10)
    recorded(tmp_path / "two", 10, [200] * 10)

    for name in ("one", "two"):
        load(StreamStore.open(tmp_path / name)).load_state_dict(state)


def test_a_bounded_stream_that_has_moved_on_takes_its_state(tmp_path):
    """Also when all that the state had seen has left, and other writers came."""
    path = tmp_path / "stream"
    with StreamStore(path, fields={"a": "int64"}, max_tokens=10) as store:
        store.append_many(np.arange(10), {"a": np.arange(10)})
    loader = Loader(StreamStore.open(path), 2, follow=True, output="numpy", collate_fn=list)
    next(iter(loader))
    state = loader.state_dict()
    for first in (10, 20, 30):
        with StreamStore(path, max_tokens=10) as store:
            store.append_many(np.arange(first, first + 10), {"a": np.arange(first, first + 10)})

    again = Loader(StreamStore.open(path), 2, follow=True, output="numpy", collate_fn=list)
    again.load_state_dict(state)

    assert again.step == 1


def test_a_cache_on_disk_never_gives_one_copy_the_windows_of_the_other(copies, tmp_path):
    """The cache outlives the process and is found again under the uuid, which both have."""
    for path, value in zip(copies, (100, 200), strict=True):
        windows = CachedDataset(StreamStore.open(path).as_dataset(2), path=tmp_path / "cache")

        assert windows[-1]["values"].tolist() == [value, 0]


def test_a_handle_that_was_sent_refuses_the_other_copy(copies, monkeypatch):
    """A pickled stream is a path and what was seen there."""
    import pickle

    one, two = copies
    sent = pickle.dumps(StreamStore.open(one))
    shutil.rmtree(one)
    two.rename(one)

    with pytest.raises(ResumeError, match="another branch"):
        pickle.loads(sent)
