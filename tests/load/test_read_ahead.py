"""A cache that is read in order reads the next rows of the file; one that is read at random does not."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish.load import CachedDataset, Loader, TextDataset, TransformedDataset
from poolish.load.memory_cache import FIRST, MOST, Runs
from tests.load.files import cifar_files
from tests.load.sources import Rows, grown, row


class OneFile(Rows):
    """Rows of files of 50 rows each; ``calls`` has the rows of each call."""

    def __init__(self, n_rows: int, broken: int = -1) -> None:
        super().__init__(n_rows)
        self.calls: list[list[int]] = []
        self.broken = broken

    def __getitems__(self, indices):
        self.calls.append(list(indices))
        if self.broken in indices:
            raise OSError(f"row {self.broken} cannot be read")
        return super().__getitems__(indices)

    def following(self, number, n_rows):
        return range(number + 1, min(number + 1 + n_rows, (number // 50 + 1) * 50, len(self)))


def texts(folder: Path) -> TextDataset:
    for name in "ab":
        (folder / name).write_text("".join(f"{name} {n}\n" for n in range(100)))
    return TextDataset([folder / "a", folder / "b"])


def test_rows_in_order_are_read_in_blocks():
    """After a few, each call reads twice as many, within the file; every row once, and all of them right."""
    rows = OneFile(200)
    cached = CachedDataset(rows)

    found = [cached[n]["n"] for n in range(200)]

    assert found == list(range(200))
    assert sorted(rows.reads) == list(range(200))
    assert rows.calls[:5] == [[0], [1], [2], list(range(3, 8)), list(range(8, 18))]
    assert all(call[0] // 50 == call[-1] // 50 and len(call) <= 1 + MOST for call in rows.calls)
    assert len(rows.calls) < 20
    assert cached.stats.read_ahead + cached.stats.misses == 200
    assert cached.stats.misses == len(rows.calls)


def test_batches_in_order_are_a_run_too():
    """As a loader asks, whatever the size of its batches."""
    rows = OneFile(200)
    cached = CachedDataset(rows)

    batches = [batch["n"].tolist() for batch in Loader(cached, 10, output="numpy")]

    assert batches == [list(range(k, k + 10)) for k in range(0, 200, 10)]
    assert sorted(rows.reads) == list(range(200))
    assert cached.stats.read_ahead > 100


def test_rows_at_random_are_read_alone():
    """No call reads a row that was not asked for."""
    rows = OneFile(200)
    cached = CachedDataset(rows)
    for n in np.random.default_rng(0).permutation(200).tolist():
        cached[n]
    backwards = CachedDataset(OneFile(50))
    for n in reversed(range(50)):
        backwards[n]

    assert all(len(call) == 1 for call in rows.calls)
    assert cached.stats.read_ahead == backwards.stats.read_ahead == 0
    assert cached.stats.misses == 200


def test_reading_ahead_keeps_within_the_cache():
    """At most a quarter of it, so that no row is driven out before it is used; too small a cache reads none ahead."""
    for max_items, most in ((20, 5), (3, 0)):
        rows = OneFile(200)
        cached = CachedDataset(rows, max_items=max_items)
        assert [cached[n]["n"] for n in range(200)] == list(range(200))

        assert max(map(len, rows.calls)) == 1 + most
        assert sorted(rows.reads) == list(range(200))
    assert CachedDataset(OneFile(9), policy="lfu")._runs is None


def test_a_broken_row_ahead_is_the_fault_of_those_who_ask_for_it():
    """Rows before it are read; asking for it raises."""
    rows = OneFile(50, broken=10)
    cached = CachedDataset(rows)

    assert [cached[n]["n"] for n in range(10)] == list(range(10))
    with pytest.raises(OSError, match="row 10 cannot be read"):
        cached[10]
    assert cached[11]["n"] == 11


def test_threads_that_read_in_order_read_each_row_once():
    """Those who miss a row that is being read ahead wait for it."""
    rows = OneFile(2_000)
    cached = CachedDataset(rows)

    def read(first: int) -> None:
        for n in range(first, first + 1_500):
            assert cached[n % 2_000]["n"] == n % 2_000

    threads = [threading.Thread(target=read, args=(first,)) for first in (0, 0, 500, 1_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(rows.reads) == list(range(2_000))
    assert cached.stats.read_ahead > 0


def test_text_is_read_ahead_within_a_file(tmp_path: Path):
    """In memory and on disk; rows are what the files hold."""
    for k, path in enumerate((None, tmp_path / "cache")):
        (tmp_path / str(k)).mkdir()
        cached = CachedDataset(texts(tmp_path / str(k)), path=path)
        assert [sample["text"] for sample in cached] == [f"{name} {n}" for name in "ab" for n in range(100)]
        assert cached.stats.read_ahead > 100
        assert cached.stats.misses + cached.stats.read_ahead == 200


def test_transformed_text_is_read_ahead(tmp_path: Path):
    """Transforms leave rows where they are."""
    cached = CachedDataset(TransformedDataset(texts(tmp_path), grown))
    assert [sample["was"]["text"] for sample in cached][:101][-1] == "b 0"
    assert cached.stats.read_ahead > 100


def test_following_rows_are_of_the_same_file(tmp_path: Path):
    """Also where the file has not been looked at to its end; one file for each row has none."""
    lines = texts(tmp_path)
    assert lines.following(3, 5) == range(4, 9)
    assert lines.following(97, 5) == range(98, 100)
    assert lines.following(199, 5) == range(200, 200)
    assert len(TextDataset(tmp_path / "a", unit="document", documents="file").following(0, 5)) == 0
    images = cifar_files(tmp_path)
    assert images.following(9_998, 5) == range(9_999, 10_000)


@given(st.lists(st.integers(0, 300), max_size=200))
def test_any_order_gives_the_same_rows(numbers: list[int]):
    """Runs, jumps and repetitions: each row is right and read once."""
    rows = OneFile(301)
    cached = CachedDataset(rows)
    for first in numbers:
        for n in range(first, min(first + first % 9, 301)):
            assert cached[n]["n"] == row(n)["n"]

    assert len(rows.reads) == len(set(rows.reads))


def test_runs_are_bounded():
    """Runs that are not continued are forgotten."""
    runs = Runs()
    for n in range(0, 1_000, 2):
        assert runs.ahead([n]) == 0
    assert len(runs._lengths) == 16
    assert [runs.ahead([2_000 + n]) for n in range(FIRST)] == [0, 0, 0, FIRST]
