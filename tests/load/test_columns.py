"""Rows of a buffer as columns: every kind of column, straight from memory or by way of Arrow, has the right values."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolish import DatasetBuffer
from poolish.errors import SchemaError
from poolish.load import Loader, order
from tests.effort import times

pytestmark = pytest.mark.kernels

KINDS: dict[str, Any] = {
    **{kind: lambda i, kind=kind: getattr(np, kind)(i) for kind in ("int8", "uint16", "int32", "int64", "uint64")},
    **{kind: lambda i, kind=kind: getattr(np, kind)(i) for kind in ("float16", "float32", "float64")},
    "bool": lambda i: i % 2 == 0,
    "text": lambda i: f"row {i}",
    "bytes": lambda i: bytes([i % 256]),
    "vector": lambda i: np.full(5, i, np.float32),
    "matrix": lambda i: np.full((2, 3), i, np.int16),
    "flags": lambda i: np.array([i % 2 == 0, True]),
    "ragged": lambda i: np.arange(i % 4),
    "empty": lambda i: np.empty(0, np.float32),
    "maybe": lambda i: None if i % 3 == 0 else i,
    "list": lambda i: list(range(i % 3)),
    "dict": lambda i: {"a": i, "b": "x"},
    "time": lambda i: datetime(2026, 1, 1 + i),
}


def filled(kind: str, n: int) -> DatasetBuffer:
    made = DatasetBuffer()
    made.append([{"n": i, "x": KINDS[kind](i)} for i in range(n - 3)])
    for i in range(n - 3, n):
        made.append([{"n": i, "x": KINDS[kind](i)}])
    return made


def row(column: Any, i: int) -> Any:
    """One value of a column, as plain Python."""
    if isinstance(column, dict):
        return {name: row(inner, i) for name, inner in column.items()}
    value = column[i]
    value = value.as_py() if hasattr(value, "as_py") else value
    if isinstance(value, dict) and value.keys() == {"data", "shape"}:  # a ragged one, in Arrow
        return np.reshape(value["data"], value["shape"])
    return value.tolist() if hasattr(value, "tolist") else value


# A tensor has no missing values: test_missing_numbers_are_no_tensor.
@pytest.mark.parametrize(
    ("kind", "output"),
    [
        (kind, output)
        for kind in KINDS
        for output in ("numpy", "torch", "arrow")
        if (kind, output) != ("maybe", "torch")
    ],
)
def test_every_kind_of_column_has_the_values_of_its_rows(kind, output):
    """What a row says when it is read alone; also after the oldest rows and some in the middle have gone."""
    source = filled(kind, 12)
    for fraction, by in ((1.0, "latest"), (0.8, "random"), (0.7, "latest")):
        source.retain(fraction, by=by)
        rows = {row_["n"]: row_["x"] for row_ in (source[i] for i in range(len(source)))}
        for batch in Loader(source, 5, shuffle=True, output=output):
            ids = [row(batch["n"], i) for i in range(len(batch.ids))]
            assert ids == batch.ids.tolist()
            for i, id_ in enumerate(ids):
                assert _loose(row(batch["x"], i)) == _loose(rows[id_])


def _loose(value: Any) -> Any:
    """Arrays by their numbers, times by their day: outputs have them in forms of their own."""
    if isinstance(value, (list, tuple, np.ndarray)):
        return np.asarray(value).ravel().tolist()
    if hasattr(value, "year"):
        return value.isoformat()[:10]
    return value.tolist() if hasattr(value, "tolist") else value


def test_missing_numbers_are_no_tensor():
    """torch has no missing value: the error names the column, and the loader is still before the batch."""
    source = filled("maybe", 6)
    loader = Loader(source, 2, output="torch")

    with pytest.raises(SchemaError, match="'x'"):
        next(iter(loader))
    assert loader.position == 0


@settings(max_examples=times(30))
@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(1, 40), st.integers(0, 2**32), st.booleans())
def test_batches_are_the_rows(appends, batch_size, seed, is_random):
    """A model of lists: any appends, any batch size, bounded or not."""
    source = DatasetBuffer(max_size=25, drop_strategy="random" if is_random else "oldest", seed=seed % 1000)
    n = 0
    for size in appends:
        if size:
            source.append([{"n": n + i, "x": np.full(3, n + i, np.float32), "t": str(n + i)} for i in range(size)])
        n += size
    seen = []
    for batch in Loader(source, batch_size, shuffle=True, seed=seed, output="numpy"):
        assert batch["n"].tolist() == batch.ids.tolist()
        assert batch["x"].tolist() == [[float(i)] * 3 for i in batch.ids]
        assert list(batch["t"]) == [str(i) for i in batch.ids]
        seen += batch.ids.tolist()

    assert sorted(seen) == (source.ids.tolist() if n else [])


def test_a_column_that_gets_its_first_missing_value_in_mid_epoch(monkeypatch):
    """A batch of rows from before and after it is one batch."""
    monkeypatch.setattr(order, "BLOCK_ROWS", 4)
    source = DatasetBuffer()
    source.append([{"n": i} for i in range(4)])
    loader = Loader(source, 3, output="numpy", follow=True)
    first = next(iter(loader))
    source.append([{"n": None}, {"n": 5}])
    rest = [value for batch in loader for value in list(batch["n"])]

    assert first["n"].tolist() == [0, 1, 2]
    assert [None if value is None or value != value else int(value) for value in rest] == [3, None, 5]
