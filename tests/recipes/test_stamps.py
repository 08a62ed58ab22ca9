"""A file that changed is seen to have changed, whatever its size and its date say and wherever it is kept."""

from __future__ import annotations

import os

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poolish import DatasetRecipe
from poolish.files import local_stamp
from poolish.recipes.sources import files
from tests.recipes.kitchen import file_source, fingerprints, rows_of, write


def test_a_file_rewritten_with_an_old_date_is_seen(tmp_path):
    """Equal size, equal statistics and a restored date, as ``rsync -t`` leaves them: still another file."""
    path = tmp_path / "a.parquet"
    recipe = DatasetRecipe("r").add_ingredient("a", str(path))
    baked = []

    for numbers in ([1, 2, 3, 9], [1, 3, 2, 9]):
        write(path, pa.table({"x": numbers}))
        os.utime(path, ns=(10**18, 10**18))
        baked.append(recipe.bake(cache=tmp_path / "cache").table["x"].to_pylist())

    assert baked == [[1, 2, 3, 9], [1, 3, 2, 9]]


def test_two_writes_within_a_tick_of_the_clock_have_two_stamps(tmp_path):
    """The clock of files stands still for milliseconds; a stamp that could be met again is not given out."""
    path = tmp_path / "a"
    for i in range(5):
        path.write_bytes(b"a")
        os.utime(path, ns=(10**18, 10**18))
        before = local_stamp(str(path))
        with path.open("r+b") as file:
            file.write(b"b")
        os.utime(path, ns=(10**18, 10**18))

        assert local_stamp(str(path)) != before, i


def test_files_in_memory_are_seen_to_change(memory):
    """A rewrite of equal size is another file."""
    source = file_source("memory://d/a.parquet")
    found = []
    for numbers in ([1, 2, 3, 9], [1, 3, 2, 9]):
        with memory.open("/d/a.parquet", "wb") as file:
            pq.write_table(pa.table({"x": numbers}), file)
        found += fingerprints(source)

    assert found[0] != found[1]
    assert rows_of(source) == [{"x": 1}, {"x": 3}, {"x": 2}, {"x": 9}]


class Store(fsspec.AbstractFileSystem):
    """A store that notes about its objects what a test says."""

    def __init__(self, noted, content=b"12345"):
        super().__init__()
        self.noted, self.content = noted, content

    def info(self, path, **_):
        return {"name": path, "size": len(self.content), "type": "file", **self.noted}

    def cat_file(self, path, start=None, end=None, **_):
        return self.content[start:end]


@pytest.mark.parametrize("name", ["ETag", "etag", "generation", "blob_id", "Last-Modified", "LastModified", "mtime"])
def test_what_a_store_notes_is_the_stamp(name):
    """Tags, versions and dates of any store, and nobody asks this machine about a path that is not its own."""
    first, second = (files.remote_stamp(Store({name: value}), "bucket/no/such/file") for value in ("one", "two"))

    assert first != second
    assert first == files.remote_stamp(Store({name: "one"}, b"54321"), "bucket/no/such/file")


@pytest.mark.parametrize("place", [0, 100, -100, -1])
def test_content_is_looked_at_where_a_store_notes_nothing(place):
    """Small files as a whole, large ones at both ends."""
    content = bytearray(3 * files.SAMPLED_BYTES)
    before = files.remote_stamp(Store({}, bytes(content)), "a")
    content[place] = 1

    assert files.remote_stamp(Store({}, bytes(content)), "a") != before
    assert files.remote_stamp(Store({}, b"12345"), "a") != files.remote_stamp(Store({}, b"12543"), "a")
