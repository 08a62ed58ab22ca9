"""infer: the suite it proposes lets its reference pass, and is for people to edit."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish import DatasetBuffer
from poolish.guards import Suite, infer

COLUMNS = st.sampled_from(
    [
        (pa.float64(), st.none() | st.floats()),
        (pa.float32(), st.none() | st.floats(width=32)),
        (pa.int64(), st.none() | st.integers(-(2**63), 2**63 - 1)),
        (pa.uint64(), st.none() | st.integers(0, 2**64 - 1)),
        (pa.int8(), st.integers(-128, 127)),
        (pa.bool_(), st.none() | st.booleans()),
        (pa.string(), st.none() | st.text(max_size=3)),
        (pa.string(), st.sampled_from(["a", "b"])),
        (pa.binary(), st.binary(max_size=3)),
        (pa.list_(pa.float64()), st.none() | st.lists(st.none() | st.floats(), max_size=3)),
        (pa.list_(pa.string()), st.lists(st.sampled_from(["a", "b"]), max_size=3)),
        (pa.list_(pa.float32(), 2), st.lists(st.floats(width=32), min_size=2, max_size=2)),
        (pa.struct([("a", pa.int64())]), st.fixed_dictionaries({"a": st.integers(0, 5)})),
        (pa.timestamp("us"), st.none() | st.datetimes()),
        (pa.null(), st.none()),
    ]
).flatmap(lambda kind: st.lists(kind[1], min_size=1, max_size=30).map(lambda values: pa.array(values, kind[0])))


@given(COLUMNS, st.floats(0, 2))
def test_the_reference_passes_what_is_inferred_from_it(column, slack):
    """Whatever it holds; also after the suite went through a file."""
    table = pa.table({"c": column})

    suite = infer(table, slack=slack)

    assert suite.check(table).ok, suite.check(table)
    assert Suite.from_toml(suite.to_toml()) == suite == Suite.from_yaml(suite.to_yaml())
    assert Suite.from_yaml(suite.to_yaml()).check(table).ok


def test_what_is_inferred():
    """Types and nulls as a schema; ranges with room, categories and lengths as expectations."""
    n = 200
    buffer = DatasetBuffer()
    buffer.append_columns(
        {
            "reward": np.linspace(-1, 3, n),
            "n": np.arange(n),
            "kind": ["left", "right"] * (n // 2),
            "id": [f"row-{'x' * (i % 20)}{i}" for i in range(n)],
            "image": np.tile(np.arange(12, dtype=np.uint8).reshape(2, 2, 3), (n, 1, 1, 1)),
            "noisy": [math.nan, 1.0] * (n // 2),
        }
    )

    shown = infer(buffer, slack=0.1).to_dict()

    assert [(entry["column"], entry.get("type") or entry["dtype"]) for entry in shown["schema"]] == [
        ("reward", "float64"),
        ("n", "int64"),
        ("kind", "text"),
        ("id", "text"),
        ("image", "uint8"),
        ("noisy", "float64"),
    ]
    assert shown["expect"] == [
        {"column": "reward", "finite": True, "between": [-1.4, 3.4]},
        {"column": "n", "between": [0, 219]},
        {"column": "kind", "one_of": ["left", "right"]},
        {"column": "id", "min_length": 2, "max_length": 29},
        {"column": "image", "between": [0, 13]},
    ]


@pytest.mark.parametrize("bad", [{"x": 9.0}, {"kind": "up"}, {"kind": None}, {"n": -5}, {"x": math.nan}])
def test_what_is_unlike_the_reference_does_not_pass(bad):
    """Out of range, another category, a null where there was none."""
    rows = [{"x": i / 100, "kind": "ab"[i % 2], "n": i} for i in range(100)]

    suite = infer(rows)

    assert suite.check([rows[5]]).ok
    assert not suite.check([{**rows[5], **bad}]).ok
