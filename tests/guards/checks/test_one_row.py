"""A row that passes by its values passes by its checks: one set of rules, for every kind of check and of value."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolish import DatasetBuffer, Suite
from poolish.errors import ConfigError, DataRefused
from poolish.guards.checks.entries import RULES
from poolish.rows.codec import RowCodec
from poolish.rows.validate import Limits
from poolish.schema import Field, Schema
from tests.effort import times

SCHEMA = Schema(
    [
        *(Field(name, name, nullable=True) for name in ("int64", "int8", "uint64", "float64", "float32", "float16")),
        *(Field(name, name, nullable=True) for name in ("bool", "string", "binary")),
        Field("moment", pa.timestamp("us"), nullable=True),
        Field("list", pa.list_(pa.int64()), nullable=True),
        Field("struct", pa.struct({"x": pa.int64()}), nullable=True),
        Field("vector", "float32", shape=(3,), nullable=True),
        Field("matrix", "int16", shape=(2, 2), nullable=True),
        Field("brain", "bfloat16", shape=(2,), nullable=True),
        Field("ragged", "float32", shape=(None,), nullable=True),
        Field("nothing", "null", nullable=True),
        Field("tensors", pa.large_list(pa.fixed_shape_tensor(pa.float32(), (2,))), nullable=True),
    ]
)
INTS = [0, 1, -1, 5, 100, 2**53 + 1, 2**63 - 1, -(2**63)]
FLOATS = [0.0, -0.0, 0.1, 1.0, 5.0, -1.5, 1e300, math.inf, -math.inf, math.nan]
TEXTS = ["", "rye", "Rye", "a b", "süß", "🥖🥨", "rye\n", "z" * 30]


NARROW = [x for x in FLOATS if not math.isfinite(x) or abs(x) < 6e4]


def narrow(dtype: str) -> st.SearchStrategy[float]:
    return st.sampled_from([float(np.array(x).astype(dtype)) for x in NARROW])


def arrays(dtype: str, *shape: int) -> st.SearchStrategy[np.ndarray]:
    numbers = st.sampled_from([0, 1, 5, -1, 100] if dtype == "int16" else NARROW)
    n = math.prod(shape)
    return st.lists(numbers, min_size=n, max_size=n).map(lambda v: np.array(v, dtype).reshape(shape))


VALUES: dict[str, st.SearchStrategy] = {
    "int64": st.sampled_from(INTS),
    "int8": st.integers(-128, 127),
    "uint64": st.sampled_from([0, 1, 5, 2**53 + 1, 2**64 - 1]),
    "float64": st.sampled_from(FLOATS),
    "float32": narrow("float32"),
    "float16": narrow("float16"),
    "bool": st.booleans(),
    "string": st.sampled_from(TEXTS),
    "binary": st.sampled_from([b"", b"rye", b"\0" * 9]),
    "moment": st.datetimes(),
    "list": st.lists(st.sampled_from(INTS), max_size=3),
    "struct": st.sampled_from(INTS).map(lambda x: {"x": x}),
    "vector": arrays("float32", 3),
    "matrix": arrays("int16", 2, 2),
    "brain": st.just(np.array([1.0, 2.0], np.float32)),
    "ragged": st.lists(st.sampled_from(FLOATS[:4]), max_size=3).map(lambda v: np.array(v, np.float32)),
    "nothing": st.none(),
    "tensors": st.just([np.zeros(2, np.float32)]),
}
rows = st.fixed_dictionaries({name: st.one_of(*[value] * 6, st.none()) for name, value in VALUES.items()})

bounds = st.sampled_from([*INTS, *FLOATS[:-1], 0.5, 2.5, 2**60, 1e40, -1e40, "2026-01-31"])
GIVEN: dict[str, st.SearchStrategy] = {
    "type": st.sampled_from(
        ["number", "integer", "float", "string", "text", "tensor", "list", "time", "int64", "bool"]
    ),
    "dtype": st.sampled_from(["int64", "float32", "float64", "int16", "bfloat16"]),
    "shape": st.lists(st.sampled_from([2, 3, None]), max_size=2).map(tuple),
    "nullable": st.booleans(),
    "finite": st.just(True),
    "between": st.tuples(bounds, bounds),
    **dict.fromkeys(("at_least", "at_most", "above", "below"), bounds),
    "one_of": st.lists(st.sampled_from([*INTS, *FLOATS[:7], *TEXTS, True, False]), min_size=1, max_size=5),
    "matches": st.sampled_from(["rye", "[a-z ]+", ".*", "(?i)RYE", r"\w+", "", "süß|🥖.*"]),
    "min_length": st.integers(0, 4),
    "max_length": st.integers(0, 9),
    "unique": st.just(True),
}
rules = st.sampled_from(sorted(GIVEN)).flatmap(lambda name: st.tuples(st.just(name), GIVEN[name]))
checks = st.tuples(st.sampled_from([*SCHEMA.names, "missing"]), rules)
expressions = st.sampled_from(
    ["int64 * 2 > int8", "float64 < float32", "string == 'rye' or bool", "length(string) < 3"]
)


def cells_of(row: dict) -> list:
    return RowCodec(SCHEMA, Limits()).validate_and_copy(row)


def table_of(row: dict) -> pa.Table:
    buffer = DatasetBuffer(schema=SCHEMA)
    buffer.append(row)
    return buffer.to_arrow()


@settings(max_examples=times(600))
@given(row=rows, asked=st.lists(checks, min_size=1, max_size=3), rule=st.one_of(st.none(), expressions))
def test_a_row_that_passes_by_its_values_passes_every_check(row, asked, rule):
    """Whatever the checks, their bounds and the types of the columns: a yes is never wrong."""
    suite = Suite()
    for column, (name, value) in asked:
        try:
            suite.expect(column, **{name: value})
        except ConfigError:  # such as bounds in the wrong order
            return
    if rule is not None:
        suite.expect_rows(rule)
    test = suite.row_test(SCHEMA.to_arrow())

    passes = test is not None and test(cells_of(row))

    if passes:
        assert all(verdict.ok for verdict in suite.check(table_of(row)).verdicts)


def test_all_rules_are_among_those_that_are_tried():
    """A new rule joins the comparison above."""
    assert {*GIVEN, "check"} == set(RULES)


GOOD = {
    "int64": 3,
    "float64": 0.5,
    "float32": 0.25,
    "bool": True,
    "string": "rye",
    "binary": b"rye",
    "vector": np.array([0, 0.5, 1], np.float32),
    "matrix": np.ones((2, 2), np.int16),
    **dict.fromkeys(("int8", "uint64", "float16", "moment", "list", "struct", "brain", "ragged", "nothing", "tensors")),
}


@pytest.mark.parametrize(
    ("column", "rule", "bad"),
    [
        ("int64", {"between": (0, 3)}, 4),
        ("int64", {"one_of": [1, 3]}, 2),
        ("int64", {"nullable": False}, None),
        ("float64", {"finite": True}, math.nan),
        ("float64", {"above": 0.1, "below": 1}, 0.1),
        ("float32", {"at_most": 0.3}, 0.5),
        ("bool", {"one_of": [True]}, False),
        ("string", {"one_of": ["rye", "wheat"]}, "spelt"),
        ("string", {"matches": "[a-z]+"}, "Rye"),
        ("string", {"min_length": 2, "max_length": 5}, "r"),
        ("binary", {"max_length": 3}, b"bread"),
        ("vector", {"finite": True}, np.array([0, np.inf, 1], np.float32)),
        ("vector", {"between": (0, 1), "shape": (3,), "dtype": "float32"}, np.array([0, np.nan, 1], np.float32)),
        ("matrix", {"at_least": 0, "finite": True, "type": "tensor"}, -np.ones((2, 2), np.int16)),
    ],
)
def test_usual_checks_are_tested_by_value(column, rule, bad):
    """The good row passes without its columns being made, the bad one is left to the check."""
    test = Suite().expect(column, **rule).row_test(SCHEMA.to_arrow())

    assert test is not None
    assert test(cells_of(GOOD)) is True
    assert test(cells_of({**GOOD, column: bad})) is False


@pytest.mark.parametrize(
    "suite",
    [
        Suite().expect("list", max_length=3),
        Suite().expect("ragged", finite=True),
        Suite().expect("moment", at_least="2026-01-31"),
        Suite().expect("struct.x", at_least=0),
        Suite().expect("missing", finite=True),
        Suite().expect("string", type="number"),
        Suite().expect_rows("float64 % 2 == 0"),
        Suite().stat("float64", mean=(0, 1)),
        Suite().schema({"int64": "int64"}),
    ],
    ids=str,
)
def test_what_needs_columns_has_no_test_of_rows(suite):
    """Lists, times, statistics, columns that are missing, of the wrong type, or too many."""
    assert suite.row_test(SCHEMA.to_arrow()) is None


def test_a_guarded_buffer_holds_what_a_buffer_guarded_by_columns_holds():
    """Row by row, with rows that pass, fail and warn: the same rows, errors, rejected rows and reasons."""

    class ByColumns(Suite):
        """A suite of another class may judge in another way, so it judges columns."""

    rng, outcomes = np.random.default_rng(5), []
    for kind in (Suite, ByColumns):
        suite = (
            kind("rewards")
            .expect("reward", finite=True, between=(0, 1))
            .expect("text", max_length=4)
            .expect_rows("reward * 2 < limit", severity="warn")
            .on(error="drop")
        )
        buffer, rng = DatasetBuffer(guard=suite, max_size=50), np.random.default_rng(5)
        for i in range(200):
            reward = float(rng.choice([0.1, 0.5, 0.9, 1.5, math.nan, 0.0]))
            buffer.append({"reward": reward, "text": "x" * int(rng.integers(6)), "limit": i % 3})
        outcomes.append((buffer.to_pydict(), buffer.ids.tolist(), buffer.rejected.n_rows, buffer.rejected.reasons))
        rejected = buffer.rejected.rows.to_pydict()
        outcomes[-1] += (str(rejected),)

    assert outcomes[0] == outcomes[1]
    assert outcomes[0][2] > 50


def test_a_row_refused_by_value_is_refused_with_the_check_s_own_words():
    """The error and its result are those of the suite; the buffer is unchanged."""
    buffer = DatasetBuffer(guard=Suite().expect("reward", between=(0, 1)))
    buffer.append({"reward": 0.5})
    buffer.append({"reward": 0.75})

    with pytest.raises(DataRefused, match=r"reward is between 0 and 1: 1 of 1 row is bad; row 0: 2\.0"):
        buffer.append({"reward": 2.0})

    assert buffer.to_pydict() == {"reward": [0.5, 0.75]}


def test_a_guard_that_is_exchanged_or_removed_is_asked_from_then_on():
    """The compiled test belongs to the guard and the schema of the moment."""
    buffer = DatasetBuffer(guard=Suite().expect("x", at_least=0))
    buffer.append({"x": 1.0})
    buffer.append({"x": 1.0})
    buffer.guard = Suite().expect("x", at_most=0)
    with pytest.raises(DataRefused):
        buffer.append({"x": 1.0})
    buffer.append({"x": -1.0})
    buffer.guard = None
    buffer.append({"x": 1.0})

    assert buffer.to_pydict() == {"x": [1.0, 1.0, -1.0, 1.0]}
