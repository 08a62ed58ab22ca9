"""A reader that copies sees what one that maps does, and lives on when somebody cuts the files under it."""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from poolish import StreamStore
from poolish.errors import ConfigError, CorruptDataError
from tests.faults import in_child

FIELDS = {"action": "int64", "seen": pa.list_(pa.float32()), "done": "bool"}
LANES = ("data", "index", "types")


def record(store: StreamStore, first: int, n: int) -> None:
    """Steps whose values follow from their numbers."""
    steps = np.arange(first, first + n)
    seen = (np.repeat(steps, steps % 4).astype(np.float32), np.concatenate([[0], np.cumsum(steps % 4)]))
    store.append_many(steps, {"action": steps, "seen": seen, "done": steps % 10 == 9})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A stream of 1,000 steps that is closed."""
    with StreamStore(tmp_path / "stream", fields=FIELDS) as store:
        record(store, 0, 1_000)
    return tmp_path / "stream"


def told(store: StreamStore) -> object:
    """Everything that can be read of a stream."""
    rng = np.random.default_rng(0)
    return (
        store[:]["values"].tolist(),
        store[:]["types"].tolist(),
        store.windows(store.first + np.arange(5), 7)["values"].tolist(),
        store.sample(20, 8, rng=rng, start="step", within="done")["values"].tolist(),
        [(step.number, step["action"], step["seen"].tolist()) for step in store],
        (len(store), store.n_steps, store.first, store.end, store.last_step),
        store.coverage(8, within="done"),
    )


def test_a_copy_shows_what_a_map_shows(path: Path):
    """Tokens, windows, samples, steps, lengths; and all of it is verified."""
    with StreamStore.open(path, mmap=False) as copied, StreamStore.open(path) as mapped:
        assert told(copied) == told(mapped)
        assert copied.verify() == mapped.verify()
        assert copied.to_dataset(step="step").to_dict() == mapped.to_dataset(step="step").to_dict()


def test_a_copy_grows_when_it_is_refreshed(path: Path):
    """And only then; it never goes back."""
    copied = StreamStore.open(path, mmap=False)
    n_tokens = len(copied)
    with StreamStore.open(path, mode="a") as writer:
        for first in (1_000, 1_500, 9_000):
            record(writer, first, 500)
            assert len(copied) == n_tokens

            assert copied.refresh() == len(writer) - n_tokens

            n_tokens = len(copied)
            assert told(copied) == told(writer)


def test_a_copy_of_a_bounded_stream_holds_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also where the space before it was given back to the disk."""
    monkeypatch.setattr("poolish.tokens.writer.TRIM_TOKENS", 1_000)
    with StreamStore(tmp_path / "stream", fields=FIELDS, max_tokens=200_000) as store:
        for first in range(0, 200_000, 50_000):
            record(store, first, 50_000)
        with StreamStore.open(tmp_path / "stream", mmap=False) as copied:
            assert copied.first == store.first > 300_000
            assert copied[:]["values"].tolist() == store[:]["values"].tolist()
            assert copied.verify().tokens <= len(store)


@pytest.mark.parametrize("name", [*LANES, "head"])
@pytest.mark.parametrize("length", [0, 100])
def test_a_file_that_is_cut_is_told_and_what_is_held_stays(path: Path, name: str, length: int):
    """The next refresh finds it; until then the copy is what it was."""
    copied = StreamStore.open(path, mmap=False)
    before = told(copied)
    with StreamStore.open(path, mode="a") as writer:
        record(writer, 1_000, 10)
    os.truncate(path / name, length)

    assert told(copied) == before
    if name == "head":  # nobody believes it any more; the commits still count
        with pytest.warns(RuntimeWarning, match="head page is damaged"):
            assert copied.refresh() > 0
    else:
        with pytest.raises(CorruptDataError, match=f"{name}.*were published"):
            copied.refresh()
        assert told(copied) == before


def test_a_map_would_not_survive_it(path: Path):
    """The control: this is why there are copies."""

    def read_what_was_cut() -> None:
        mapped = StreamStore.open(path)
        os.truncate(path / "data", 0)
        mapped[:]

    assert in_child(read_what_was_cut) == -signal.SIGBUS


def test_a_copy_stays_one_in_another_process(path: Path):
    """A pickled handle does not map what it was told not to."""
    copied = pickle.loads(pickle.dumps(StreamStore.open(path, mmap=False)))

    os.truncate(path / "data", 0)

    assert copied[[0, 1, 2]]["values"].tolist() == [0, 0, 1]


def test_an_older_commit_can_be_copied(path: Path):
    """With ``at`` too."""
    with StreamStore.open(path, mode="a") as writer:
        number = writer.commit()
        record(writer, 1_000, 10)

    assert StreamStore.open(path, at=number, mmap=False).n_steps == 1_000


def test_a_writer_needs_its_maps(path: Path):
    """Appending to a copy would be lost."""
    with pytest.raises(ConfigError, match="mmap=False"):
        StreamStore.open(path, mode="a", mmap=False)
