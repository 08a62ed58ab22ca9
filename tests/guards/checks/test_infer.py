"""infer: the suite it proposes lets its reference and the next good rows pass, explains itself, and is for people."""

from __future__ import annotations

import math
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.infer_rates import SOURCES, measure
from poolish import DatasetBuffer
from poolish.errors import ConfigError
from poolish.guards import Suite, infer
from tests.effort import times

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


@given(COLUMNS, st.floats(0, 2), st.sampled_from([0.5, 0.99, 0.9999]))
def test_the_reference_passes_what_is_inferred_from_it(column, slack, accept):
    """Whatever it holds; also after the suite went through a file."""
    table = pa.table({"c": column})

    suite = infer(table, slack=slack, accept=accept)

    assert suite.check(table).ok, suite.check(table)
    assert Suite.from_toml(suite.to_toml()) == suite == Suite.from_yaml(suite.to_yaml())
    assert Suite.from_yaml(suite.to_yaml()).check(table).ok


@pytest.mark.parametrize("source", ["iris", "normal", "Cauchy", "lognormal", "rare nulls", "text lengths", "AR(1)"])
def test_the_next_good_sample_passes_at_the_stated_rate(source):
    """A tenth of what benchmarks/infer_rates.py measures, which has more tables; each pair of samples is drawn anew."""
    repeats = times(20, push=50)

    found = measure(SOURCES[source], repeats, accept=0.99)

    # At a rate of 0.99 fewer pass about once in a thousand.
    assert found["rate"] >= 0.99 - 4 * math.sqrt(0.99 * 0.01 / repeats), found


def test_what_is_inferred():
    """Types and nulls as a schema; ranges with room, categories, lengths and shares as expectations."""
    n, rng = 500, np.random.default_rng(0)
    buffer = DatasetBuffer()
    buffer.append_columns(
        {
            "reward": rng.uniform(-1, 3, n),
            "n": np.arange(n),
            "label": rng.integers(0, 3, n),
            "kind": ["left", "right"] * (n // 2),
            "id": [f"row-{'x' * int(rng.integers(20))}{i:03}" for i in range(n)],
            "image": rng.integers(0, 256, (n, 2, 2, 3)).astype(np.uint8),
            "noisy": np.where(rng.random(n) < 0.1, np.nan, 1.0),
        }
    )

    shown = infer(buffer).to_dict()

    assert [(entry["column"], entry.get("type") or entry["dtype"]) for entry in shown["schema"]] == [
        ("reward", "float64"),
        ("n", "int64"),
        ("label", "int64"),
        ("kind", "text"),
        ("id", "text"),
        ("image", "uint8"),
        ("noisy", "float64"),
    ]
    rules = {entry["column"]: entry for entry in shown["expect"]}
    low, high = rules["reward"]["between"]
    assert -1.3 < low < -0.99
    assert 2.99 < high < 3.3
    assert rules["n"]["at_least"] == 0  # it counts up
    assert "at_most" not in rules["n"]
    assert rules["label"]["between"] == [0, 2]
    assert rules["kind"]["one_of"] == ["left", "right"]
    assert rules["id"].keys() >= {"max_length"}
    assert rules["image"]["between"] == [0, 255]
    assert shown["stat"][0]["column"] == "noisy"
    assert 0.1 < shown["stat"][0]["nan_share"][1] < 0.25


def test_each_bound_and_each_missing_bound_is_explained():
    """In the entry itself, so in the file; with what was seen and how often the next rows would cross it."""
    rng = np.random.default_rng(0)
    table = {
        "x": rng.normal(size=400),
        "word": [f"w{i}" for i in range(400)],
        "rare": ["often"] * 397 + ["rare"] * 3,
        "gone": [None if i % 40 == 0 else 1.5 for i in range(400)],
        "time": np.arange(400).astype("datetime64[s]"),
    }

    suite = infer(table)

    entries = suite.to_dict()
    assert all(entry["why"] for kind in ("schema", "expect", "stat") for entry in entries[kind])
    whys = {entry["column"]: entry["why"] for entry in entries["schema"]}
    assert "no list: 400 of 400 values came once" in whys["word"]
    assert "the rarest value came only 3 times" in whys["rare"]
    assert "10 of 400 rows null" in whys["gone"]
    assert "no range: time goes on" in whys["time"]
    (why,) = (entry["why"] for entry in entries["expect"] if entry["column"] == "x")
    assert re.search(
        r"in 400 rows; the next 400 go below -[\d.]+ with probability [\de.-]+; the next 400 go above", why
    )
    assert Suite.from_toml(suite.to_toml()) == suite


def test_more_is_accepted_where_more_has_to_be():
    """A higher rate, larger samples and fewer rows give wider ranges."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=2_000)

    def width(values, **options):
        low, high = infer({"x": values}, **options).to_dict()["expect"][0]["between"]
        return high - low

    assert width(x, accept=0.5) < width(x) < width(x, accept=0.9999)
    assert width(x, rows=10) < width(x) < width(x, rows=10**6)
    assert width(x) < width(x[:50])
    assert width(x, slack=100) > 200
    for wrong in ({"accept": 1.0}, {"accept": 0}, {"rows": 0}, {"rows": 1.5}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            infer({"x": x}, **wrong)


@pytest.mark.parametrize("bad", [{"x": 9.0}, {"kind": "up"}, {"kind": None}, {"n": -5}, {"x": math.nan}])
def test_what_is_unlike_the_reference_does_not_pass(bad):
    """Out of range, another category, a null where there was none."""
    rows = [{"x": i / 100, "kind": "ab"[i % 2], "n": i} for i in range(100)]

    suite = infer(rows)

    assert suite.check([rows[5]]).ok
    assert not suite.check([{**rows[5], **bad}]).ok
