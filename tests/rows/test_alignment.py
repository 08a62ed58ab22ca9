"""Every column begins at the border of a cache line: in a buffer, in a batch, in a file that is mapped or read."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish import DatasetBuffer
from poolish.rows.ipc import AlignedIpc

LINE = 64


def filled(n_rows: int) -> DatasetBuffer:
    """A buffer with a column of each layout."""
    buffer = DatasetBuffer()
    buffer.append([row(n) for n in range(n_rows)])
    return buffer


def row(n: int) -> dict:
    return {
        "whole": n,
        "flag": n % 3 == 0,
        "text": f"row {n}",
        "x": np.full(3, n, np.float32),
        "list": list(range(n % 4)),
        "missing": None if n % 2 else 1.5,
        "deep": {"a": n, "b": [f"{n}"]},
    }


def askew(table: pa.Table) -> dict:
    """The buffers of a table that begin elsewhere."""
    return {
        (name, k): buffer.address % LINE
        for name in table.column_names
        for chunk in table[name].chunks
        for k, buffer in enumerate(chunk.buffers())
        if buffer is not None and buffer.size and buffer.address % LINE
    }


@pytest.mark.parametrize("n_rows", [1, 5, 1_000, 40_000])
def test_columns_begin_at_cache_lines(n_rows: int, tmp_path: Path):
    """Small and large, stored, in batches of any size, and in files."""
    buffer = filled(n_rows)
    buffer.save(tmp_path / "rows")

    assert askew(buffer.snapshot().to_arrow()) == {}
    for numbers in (np.arange(n_rows), np.arange(n_rows)[::-1], np.array([n_rows - 1])):
        assert askew(buffer.get_batch(numbers)) == {}
    for mmap in (True, False):
        loaded = DatasetBuffer.load(tmp_path / "rows", mmap=mmap)
        assert askew(loaded.snapshot().to_arrow()) == {}
        assert loaded.snapshot().to_arrow().equals(buffer.snapshot().to_arrow())
        loaded.append(row(n_rows))
        assert askew(loaded.get_batch([n_rows, 0])) == {}


class File(io.BytesIO):
    """A file that counts, like the one that hashes."""

    n_bytes = 0

    def write(self, data):
        self.n_bytes += memoryview(data).nbytes
        return super().write(data)


TABLES = {
    "nothing": pa.table({}),
    "no rows": pa.table({"x": pa.array([], pa.int64()), "t": pa.array([], pa.string())}),
    "nulls": pa.table({"n": pa.nulls(7), "x": pa.array([None, 1, None, 3, 4, 5, 6])}),
    "dictionary": pa.table({"d": pa.array(["rye", "wheat", "rye"]).dictionary_encode(), "n": [1, 2, 3]}),
    "slices": pa.table({"t": pa.array([f"t{n}" for n in range(99)]), "b": pa.array([True, False, None] * 33)}).slice(3),
    "chunks": pa.concat_tables([pa.table({"x": np.arange(n, dtype=np.int16)}) for n in (1, 33, 500)]),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("n_before", [0, 8, 64])
def test_any_table_is_the_same_stream(name: str, n_before: int):
    """Arrow reads what was written, whatever the types, the batches, and the place in the file."""
    file = File()
    file.write(bytes(n_before))
    with pa.ipc.new_stream(pa.PythonFile(AlignedIpc(file), "w"), TABLES[name].schema) as writer:
        writer.write_table(TABLES[name])

    stream = pa.py_buffer(file.getvalue()).slice(n_before)
    found = pa.ipc.open_stream(stream).read_all()

    assert found.equals(TABLES[name])
    found.validate(full=True)


@given(st.lists(st.integers(1, 300), min_size=1), st.integers(0, 40))
def test_a_stream_may_come_in_any_parts(sizes: list[int], n_rows: int):
    """How Arrow cuts what it writes does not matter."""
    table = pa.table({"t": [f"text {n}" for n in range(n_rows)], "x": np.arange(n_rows)})
    whole, parts, plain = File(), File(), io.BytesIO()
    with pa.ipc.new_stream(plain, table.schema) as writer:
        writer.write_table(table)
    AlignedIpc(whole).write(plain.getvalue())
    aligned, rest = AlignedIpc(parts), plain.getvalue()
    k = 0
    while rest:
        n = sizes[k % len(sizes)]
        aligned.write(rest[:n])
        rest, k = rest[n:], k + 1

    assert parts.getvalue() == whole.getvalue()
    assert pa.ipc.open_stream(whole.getvalue()).read_all().equals(table)
