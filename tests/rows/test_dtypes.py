"""The dtype of the schema reaches the trainer, whichever interface feeds it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Subset

from poolish import DatasetBuffer, Loader

NUMBERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]
DTYPES = [*NUMBERS, "bool"]


def every_dtype(n: int = 12) -> DatasetBuffer:
    """A column of each dtype, alone, in a list and in a struct; rows have left from the middle."""
    values = {dtype: np.arange(n).astype(dtype) for dtype in DTYPES}
    columns: dict[str, Any] = {name: pa.array(column) for name, column in values.items()}
    lists = {
        f"{d} list": pa.array([[v, v] for v in column], pa.list_(pa.array(column).type)) for d, column in values.items()
    }
    columns["struct"] = pa.StructArray.from_arrays(list(map(pa.array, values.values())), list(values))
    buffer = DatasetBuffer(seed=1)
    buffer.append(pa.table({**columns, **lists, "text": [f"row {i}" for i in range(n)]}))
    buffer.retain(0.7, by="random")
    return buffer


def check_dtypes(batch: dict[str, Any], expected: dict[str, Any], rows: list[int]) -> None:
    for dtype in DTYPES:
        wanted = expected[dtype][rows]
        for found in (batch[dtype], batch["struct"][dtype], *batch[f"{dtype} list"]):
            assert found.dtype == getattr(torch, dtype), dtype
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("start", [None, "fork", "spawn"])
@pytest.mark.parametrize("what", ["snapshot", "buffer"])
def test_a_torch_loader_gives_the_dtypes_of_the_schema(start, what):
    """With torch's own collate function, in this process and in workers, from a snapshot and from the buffer."""
    buffer = every_dtype()
    expected = buffer.to_torch(DTYPES)
    workers = {} if start is None else {"num_workers": 2, "multiprocessing_context": start, "timeout": 60}

    batches = list(DataLoader(buffer if what == "buffer" else buffer.snapshot(), batch_size=4, **workers))

    for k, batch in enumerate(batches):
        rows = list(range(len(buffer)))[4 * k : 4 * k + 4]
        check_dtypes(batch, expected, rows)
        assert batch["text"] == [buffer[i]["text"] for i in rows]


def test_samplers_and_subsets_keep_the_dtypes():
    """Whatever chooses the rows, torch asks for them by the batch."""
    buffer = every_dtype()
    expected, snapshot = buffer.to_torch(DTYPES), buffer.snapshot()
    sampler = BatchSampler(RandomSampler(snapshot, generator=torch.Generator().manual_seed(0)), 3, drop_last=False)

    for numbers, batch in zip(
        list(BatchSampler(range(6), 3, False)), DataLoader(Subset(snapshot, range(6)), 3), strict=True
    ):
        check_dtypes(batch, expected, numbers)
    for batch in DataLoader(snapshot, batch_sampler=sampler):
        check_dtypes(batch, expected, [snapshot.to_pydict()["text"].index(text) for text in batch["text"]])


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_interfaces_agree_about_a_dtype(dtype):
    """``DataLoader``, ``Loader``, ``to_torch``, ``to_numpy``: one column, one dtype."""
    buffer = every_dtype()

    torches = [
        next(iter(DataLoader(buffer.snapshot(), batch_size=4)))[dtype],
        next(iter(Loader(buffer, batch_size=4, shuffle=False)))[dtype],
        buffer.to_torch([dtype])[dtype],
    ]

    assert {tensor.dtype for tensor in torches} == {getattr(torch, dtype)}
    assert buffer.to_numpy([dtype])[dtype].dtype == dtype


def test_single_rows_stay_plain_python():
    """``buffer[i]`` and ``to_pydict`` give Python's own numbers, as does a loader without batches."""
    buffer = every_dtype()
    row = next(iter(DataLoader(buffer.snapshot(), batch_size=None)))

    for found in (buffer[0], row, {name: values[0] for name, values in buffer.to_pydict().items()}):
        assert {type(found[dtype]) for dtype in NUMBERS} == {int, float}
        assert type(found["bool"]) is bool
        assert type(found["float32 list"][0]) is float


def test_what_is_no_number_comes_as_it_is():
    """Nulls, text, bytes, times and nested values are the same by the batch and one by one."""
    rows = [
        {
            "maybe": None if i % 2 else 1.5,
            "text": "x",
            "raw": b"y",
            "when": dt.datetime(2026, 1, 1),
            "deep": [{"a": [i]}],
        }
        for i in range(4)
    ]
    types = {"maybe": pa.float32(), "text": pa.string(), "raw": pa.binary(), "when": pa.timestamp("us")}
    deep = pa.list_(pa.struct({"a": pa.list_(pa.int64())}))
    buffer = DatasetBuffer()
    buffer.append(pa.Table.from_pylist(rows, pa.schema({**types, "deep": deep})))

    found = buffer.__getitems__([0, 1, 3])

    assert found == [buffer[i] for i in (0, 1, 3)] == [rows[i] for i in (0, 1, 3)]
    assert type(found[0]["maybe"]) is np.float32


def test_a_batch_of_rows_owns_its_numbers():
    """A later ``update`` changes no row that was handed out."""
    buffer = every_dtype()
    rows = buffer.__getitems__([0, 1])
    before = [row["uint64"].item() for row in rows]

    buffer.update(buffer.ids[:2], {"uint64": np.array([77, 78], np.uint64)})

    assert [row["uint64"].item() for row in rows] == before
