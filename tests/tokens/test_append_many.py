"""Whole columns become the same bytes as their rows appended one by one, or nothing at all."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from poolish import Field, StreamStore, kernels
from poolish.errors import LimitExceeded, NumberTooLarge, SchemaError, UnknownColumn
from tests.effort import times
from tests.tokens.facts import facts, lanes, warm

pytestmark = pytest.mark.kernels

torch.set_num_threads(1)

FIELDS = {
    "one": "float64",
    "byte": "int8",
    "many": pa.list_(pa.float32()),
    "three": Field("three", "int64", shape=(3,)),
    "matrix": Field("matrix", "float32", shape=(None, 2)),
    "named": None,
}


def column(store: StreamStore, name: str, first: int = 1) -> list[Any]:
    """The values of a field from a step on, None where it is left out."""
    values = [step.get(name) for step in store.steps(first)]
    return [value.tolist() if isinstance(value, np.ndarray) else value for value in values]


# What a column may be -----------------------------------------------------------------------------------------

NUMBERS = [1.0, -2.0, 0.0]
ROWS = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
RAGGED = [[1.0, 2.0], [], [3.0]]


@pytest.mark.parametrize(
    "given",
    [
        NUMBERS,
        tuple(NUMBERS),
        np.array(NUMBERS),
        np.array(NUMBERS, np.float16),
        np.array(NUMBERS, ">f4"),
        np.array(NUMBERS, np.longdouble),
        np.array(NUMBERS, np.int8),
        np.repeat(NUMBERS, 2)[::2],
        torch.tensor(NUMBERS),
        torch.tensor(NUMBERS, dtype=torch.bfloat16),
        torch.tensor(NUMBERS, requires_grad=True),
        [np.float32(n) for n in NUMBERS],
        [torch.tensor(n) for n in NUMBERS],
        [1, -2.0, False],
        pd.Series(NUMBERS),
        pl.Series(NUMBERS),
        pa.array(NUMBERS),
        pa.array([9.0, *NUMBERS])[1:],
        pa.chunked_array([NUMBERS[:1], NUMBERS[1:]]),
        pa.array([1, -2, 0], pa.int8()),
        memoryview(np.array(NUMBERS)),
    ],
    ids=lambda value: f"{type(value).__module__}.{type(value).__name__}",
)
def test_a_column_of_numbers(given):
    """From whatever holds them in a row."""
    for name in ("one", "named"):
        store = warm(FIELDS)

        store.append_many([1, 2, 3], {name: given})

        assert column(store, name) == NUMBERS
        assert store[1:]["types"].tolist() == [store.field_to_type[name]] * 3


@pytest.mark.parametrize(
    "given",
    [
        ROWS,
        np.array(ROWS),
        np.array(ROWS, ">f8"),
        np.asfortranarray(ROWS),
        np.array(ROWS)[:, ::-1].copy()[:, ::-1],
        torch.tensor(ROWS),
        torch.tensor(ROWS).T.contiguous().T,
        list(np.array(ROWS)),
        list(torch.tensor(ROWS)),
        pd.DataFrame(ROWS),
        (np.array(ROWS).reshape(-1), [0, 2, 4, 6]),
        (torch.arange(1, 7), torch.tensor([0, 2, 4, 6])),
        ([1, 2, 3, 4, 5, 6], np.array([0, 2, 4, 6], np.uint32)),
        pa.array(ROWS),
        pa.array(ROWS, pa.large_list(pa.float64())),
        pa.array(ROWS, pa.list_(pa.float32(), 2)),
        pa.array([[9.0, 9.0], *ROWS], pa.list_(pa.float32(), 2))[1:],
        pa.array([[9.0], *ROWS])[1:],
        pa.chunked_array([ROWS[:1], ROWS[1:]]),
        pa.FixedShapeTensorArray.from_numpy_ndarray(np.array(ROWS)),
    ],
    ids=lambda value: f"{type(value).__module__}.{type(value).__name__}",
)
def test_a_column_of_lists(given):
    """Arrays of two dimensions, flat values with offsets, Arrow's lists."""
    for name in ("many", "named"):
        store = warm(FIELDS)

        store.append_many([1, 2, 3], {name: given})

        assert column(store, name) == ROWS


@pytest.mark.parametrize(
    "given",
    [
        RAGGED,
        [np.array(row) for row in RAGGED],
        [torch.tensor(row) for row in RAGGED],
        (np.array([1.0, 2.0, 3.0]), np.array([0, 2, 2, 3])),
        ([1, 2, 3], [0, 2, 2, 3]),
        pa.array(RAGGED),
        pa.array([[8.0], *RAGGED, [9.0]])[1:4],
    ],
    ids=lambda value: f"{type(value).__module__}.{type(value).__name__}",
)
def test_a_column_of_lists_of_different_lengths(given):
    """An empty one is there, and empty."""
    for name in ("many", "named"):
        store = warm(FIELDS)

        store.append_many([1, 2, 3], {name: given})

        assert column(store, name) == RAGGED
        assert (len(store), store.n_steps) == (4, 4)


MATRICES = [[[1.0, 2.0]], [], [[3.0, 4.0], [5.0, 6.0]]]


@pytest.mark.parametrize(
    "given",
    [
        [np.array(rows, np.float32).reshape(-1, 2) for rows in MATRICES],
        MATRICES,
        (np.arange(1.0, 7).reshape(3, 2), [0, 1, 1, 3]),
        (np.arange(1.0, 7), [0, 2, 2, 6]),
        pa.array(MATRICES, pa.list_(pa.list_(pa.float32(), 2))),
        pa.array(MATRICES),
    ],
    ids=["arrays", "lists", "offsets of rows", "offsets of numbers", "fixed inside", "lists inside"],
)
def test_a_column_of_arrays_whose_first_dimension_varies(given):
    """They come back in their shape."""
    store = warm(FIELDS)

    store.append_many([1, 2, 3], {"matrix": given})

    assert [step["matrix"].shape for step in store.steps(1)] == [(1, 2), (0, 2), (2, 2)]
    assert column(store, "matrix") == MATRICES


@pytest.mark.parametrize(
    "given", [np.arange(6).reshape(2, 3), pa.array([[0, 1, 2], [3, 4, 5]], pa.list_(pa.int32(), 3))]
)
def test_a_column_of_arrays_of_one_shape(given):
    """As the field has it."""
    store = warm(FIELDS)

    store.append_many([1, 2], {"three": given})

    assert column(store, "three") == [[0, 1, 2], [3, 4, 5]]


def test_a_null_of_arrow_leaves_the_field_out():
    """A step then has the others."""
    store = warm(FIELDS)

    store.append_many(
        [1, 2, 3],
        {
            "many": pa.array([[1.0], None, []]),
            "one": pa.array([None, 2**53, 3]),
            "three": pa.array([None, [1, 2, 3], None], pa.list_(pa.int64(), 3)),
            "byte": pa.array([None, None, None]),
        },
    )

    assert [dict(step) | {"many": None, "three": None} for step in store.steps(1)] == [
        {"many": None, "three": None},
        {"one": 2.0**53, "many": None, "three": None},
        {"one": 3.0, "many": None, "three": None},
    ]
    assert (column(store, "many"), column(store, "three")) == ([[1.0], None, []], [None, [1, 2, 3], None])


def test_large_numbers_beside_a_null_stay_exact():
    """They never pass through a float."""
    store = warm({"x": "int64"})

    store.append_many([1, 2], {"x": pa.array([2**53 + 1, None]), "warm": pa.array([None, 1])})

    assert column(store, "x") == [2**53 + 1, None]


@pytest.mark.parametrize(
    "nulls", [pa.nulls(2), pa.nulls(2, pa.float64()), pa.nulls(2, pa.list_(pa.float64()))], ids=str
)
def test_a_field_that_is_left_out_everywhere_is_not_decided(nulls):
    """It was only named, and nothing of it was written."""
    store = warm(["a", "b"])
    store.append_many([1, 2], {"a": [1.0, 2.0], "b": nulls})
    assert "b: float64, scalar or sequence as first written" in repr(store)

    store.append(3, ["b"], [[0.5, 0.5]])
    store.append_many([4], {"b": [[1.5]]})

    assert column(store, "b", 3) == [[0.5, 0.5], [1.5]]


def test_columns_are_written_in_declaration_order():
    """However the mapping is ordered; names that are no text are found by what they equal."""
    store = warm({"a": "int64", "b": "int64"})

    store.append_many((1, 2), {np.str_("b"): [3, 4], "a": [1, 2]})

    assert store[1:]["values"].tolist() == [1, 3, 2, 4]


@pytest.mark.parametrize(
    "steps",
    [
        [1, 2],
        (1, 2),
        range(1, 3),
        np.array([1, 2]),
        np.array([1, 2], np.uint64),
        np.array([1, 2], ">i4"),
        np.array([1, 9, 2])[::2],
        np.array([1, 2], object),
        torch.tensor([1, 2]),
        pd.Series([1, 2]),
        pa.array([1, 2]),
        [np.int8(1), torch.tensor(2)],
    ],
    ids=lambda value: f"{type(value).__module__}.{type(value).__name__}",
)
def test_steps_of_any_kind_will_do(steps):
    """As long as they are whole numbers."""
    store = warm({"x": "int64"})

    store.append_many(steps, {"x": [5, 6]})

    assert [step.number for step in store] == [0, 1, 2]


def test_no_rows_are_nothing():
    """And decide nothing."""
    store = warm(FIELDS)
    before = facts(store)
    for columns in ({}, {"one": []}, {"named": np.empty(0)}, {"many": []}, {"three": np.empty((0, 3))}):
        store.append_many([], columns)
        assert facts(store) == before
    store.append_many(np.empty(0, np.int64), {"many": ([], [0]), "named": pa.array([], pa.float64())})
    assert facts(store) == before


def test_the_first_row_may_go_on_with_the_last_step():
    """Behind its last field; the rest are steps of their own."""
    store = warm(FIELDS)
    store.append(4, ["one"], [0.5])

    store.append_many([4, 5], {"byte": [1, 2]})
    store.append_many([5], {"many": [[1.0]]})
    store.append_many([5, 6], {"three": pa.array([[1, 2, 3], None]), "one": pa.array([None, 7.0])})

    assert [(step.number, list(step)) for step in store.steps(4)] == [
        (4, ["one", "byte"]),
        (5, ["byte", "many", "three"]),
        (6, ["one"]),
    ]
    assert store.n_steps == 4


def test_many_rows_outgrow_the_first_chunks():
    """A million tokens at once."""
    store = StreamStore(fields={"a": "int64", "b": pa.list_(pa.float32())})
    n = 100_000
    observations = np.arange(9 * n, dtype=np.float32).reshape(n, 9) % 1024

    store.append_many(np.arange(n) * 3, {"a": np.arange(n), "b": observations})

    whole = store[:]["values"].reshape(n, 10)
    assert np.array_equal(whole[:, 0], np.arange(n))
    assert np.array_equal(np.ascontiguousarray(whole[:, 1:]).view(np.float64), observations)
    assert (len(store), store.n_steps) == (10 * n, n)


# The same as one by one ---------------------------------------------------------------------------------------


@st.composite
def tables(draw: Any) -> tuple[list[int], dict[str, list[Any]]]:
    """Steps, and columns of rows in which None is a field left out; every step has one."""
    n = draw(st.integers(1, 6))
    numbers = st.integers(-128, 127)
    rows = {
        "one": numbers,
        "byte": numbers,
        "many": st.lists(numbers, max_size=3),
        "three": st.lists(numbers, min_size=3, max_size=3),
    }
    names = draw(st.lists(st.sampled_from(list(rows)), min_size=1, unique=True))
    columns = {name: draw(st.lists(rows[name] | st.none(), min_size=n, max_size=n)) for name in names}
    filled = names[0]
    columns[filled] = [draw(rows[filled]) if row is None else row for row in columns[filled]]
    gaps = draw(st.lists(st.integers(1, 3), min_size=n, max_size=n))
    return np.cumsum(gaps).tolist(), columns


@settings(max_examples=times(35))
@given(st.lists(tables(), max_size=4))
def test_columns_write_the_same_bytes_as_their_rows(batches):
    """Even, ragged, with and without nulls, by Arrow or by lists."""
    by_column, by_row = warm(FIELDS), warm(FIELDS)
    base = 0
    for steps, columns in batches:
        numbers = [base + step for step in steps]
        base = numbers[-1]

        given = {}
        for name, rows in columns.items():
            is_whole = None not in rows
            type_ = pa.int8() if name in ("one", "byte") else pa.list_(pa.int16(), *([3] if name == "three" else []))
            given[name] = rows if is_whole and base % 2 else pa.array(rows, type_)
        by_column.append_many(numbers, given)
        for i, step in enumerate(numbers):
            here = [name for name in FIELDS if name in columns and columns[name][i] is not None]
            by_row.append(step, here, [columns[name][i] for name in here])

    assert lanes(by_column) == lanes(by_row)


# Refusals -----------------------------------------------------------------------------------------------------

FOURS = pa.array([[1, 2, 3, 4]], pa.list_(pa.int64(), 4))
HOLED = pa.array([[1, None, 3]], pa.list_(pa.int64(), 3))
DEEP = pa.array([[[1.0]]], pa.list_(pa.list_(pa.float32(), 1)))
TRIPLES = pa.array([[[1.0] * 3] * 2], pa.list_(pa.list_(pa.float32(), 3)))
LARGE = np.array([[1, 2, 3], [4, 5, 2**63]], np.uint64)

REFUSED: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "unknown field": ([3], {"regret": [1]}, UnknownColumn, "'regret'.*'one'"),
    "field that is no text": ([3], {0: [1]}, UnknownColumn, "0"),
    "no mapping": ([3], [("one", [1])], SchemaError, "{field: column}"),
    "no columns": ([3], {}, SchemaError, "at least one column"),
    "too few rows": ([3, 4], {"one": [1.0]}, SchemaError, "'one'.*2 steps need 2 rows, got 1"),
    "too many rows": ([3], {"one": np.ones(2)}, SchemaError, "'one'.*got 2"),
    "rows for no steps": ([], {"one": [1.0]}, SchemaError, "'one'.*got 1"),
    "too few empty rows": ([3, 4, 5], {"many": [[], []]}, SchemaError, "'many'.*3 rows, got 2"),
    "too many empty rows": ([3, 4, 5], {"many": np.empty((5, 0))}, SchemaError, "'many'.*3 rows, got 5"),
    "too few rows of Arrow": ([3, 4], {"one": pa.array([1.0])}, SchemaError, "'one'.*got 1"),
    "too few with offsets": ([3, 4], {"many": ([1.0], [0, 1])}, SchemaError, "'many'.*got 1"),
    "one column short": ([3, 4], {"one": [1.0, 2.0], "byte": [1]}, SchemaError, "'byte'.*got 1"),
    "a number": ([3], {"one": 1.0}, SchemaError, "'one'.*row for each step"),
    "a 0-d array": ([3], {"one": np.array(1.0)}, SchemaError, "'one'.*row for each step"),
    "text": ([3], {"one": "1"}, SchemaError, "'one'"),
    "None": ([3], {"one": None}, SchemaError, "'one'"),
    "a dict": ([3], {"one": {0: 1.0}}, SchemaError, "'one'"),
    "text in rows": ([3, 4], {"one": [1.0, "x"]}, SchemaError, "'one'.*'x'"),
    "None in rows": ([3, 4], {"one": [1.0, None]}, SchemaError, "'one'.*None"),
    "objects": ([3, 4], {"one": np.array([1.0, None])}, SchemaError, "'one'.*object"),
    "masked": ([3, 4], {"one": np.ma.array([1.0, 2.0], mask=[0, 1])}, SchemaError, "'one'.*mask"),
    "pandas with NA": ([3, 4], {"one": pd.Series([1, None], dtype="Int64")}, SchemaError, "'one'"),
    "polars with null": ([3, 4], {"one": pl.Series([1, None])}, SchemaError, "'one'"),
    "complex": ([3], {"one": np.array([1j])}, SchemaError, "'one'.*complex"),
    "meta": ([3], {"one": torch.ones(1, device="meta")}, SchemaError, "'one'.*meta"),
    "lists for numbers": ([3], {"one": [[1.0]]}, SchemaError, "'one'"),
    "arrays for numbers": ([3], {"one": np.ones((1, 1))}, SchemaError, "'one'"),
    "Arrow lists for numbers": ([3], {"one": pa.array([[1.0]])}, SchemaError, "'one'.*one number"),
    "offsets for numbers": ([3], {"one": ([1.0], [0, 1])}, SchemaError, "'one'"),
    "numbers for lists": ([3], {"many": [1.0]}, SchemaError, "'many'"),
    "Arrow numbers for lists": ([3], {"many": pa.array([1.0])}, SchemaError, "'many'.*lists"),
    "matrices for lists": ([3], {"many": np.ones((1, 2, 2))}, SchemaError, "'many'"),
    "Arrow matrices for lists": ([3], {"many": pa.array([[[1.0]]])}, SchemaError, "'many'"),
    "Arrow fixed matrices for lists": ([3], {"many": DEEP}, SchemaError, "'many'"),
    "numbers and lists": ([3, 4], {"named": [1.0, [1.0]]}, SchemaError, "'named'.*alike"),
    "matrices for names": ([3], {"named": np.ones((1, 2, 2))}, SchemaError, "'named'"),
    "Arrow matrices for names": ([3], {"named": pa.array([[[1.0]]])}, SchemaError, "'named'"),
    "four for three": ([3], {"three": np.ones((1, 4))}, SchemaError, "'three'.*3"),
    "Arrow four for three": ([3], {"three": FOURS}, SchemaError, "'three'.*3"),
    "Arrow lists of four": ([3, 4], {"three": pa.array([[1, 2, 3], [1, 2, 3, 4]])}, SchemaError, "'three'.*3.*row 1"),
    "two for three": ([3, 4], {"three": [[1, 2, 3], [1, 2]]}, SchemaError, "'three'.*3"),
    "offsets of two for three": ([3, 4], {"three": ([1, 2, 3, 4, 5], [0, 3, 5])}, SchemaError, "'three', row 1"),
    "triples for pairs": ([3], {"matrix": np.ones((1, 2, 3))}, SchemaError, "'matrix'"),
    "Arrow triples for pairs": ([3], {"matrix": TRIPLES}, SchemaError, "'matrix'"),
    "flat Arrow for pairs": ([3], {"matrix": pa.array([[1.0, 2.0]])}, SchemaError, "'matrix'"),
    "odd numbers for pairs": ([3], {"matrix": (np.ones(3), [0, 3])}, SchemaError, "'matrix', row 0"),
    "offsets that end early": ([3], {"many": ([1.0, 2.0], [0, 1])}, SchemaError, "'many'.*offsets.*2.*0 to 1"),
    "offsets that end late": ([3], {"many": ([1.0], [0, 2])}, SchemaError, "'many'.*offsets.*0 to 2"),
    "offsets that start late": ([3], {"many": ([1.0, 2.0], [1, 2])}, SchemaError, "'many'.*offsets.*1 to 2"),
    "offsets that go back": ([3, 4], {"many": ([1.0], [0, 2, 1])}, SchemaError, "'many'.*offsets go up"),
    "offsets of floats": ([3], {"many": ([1.0], [0.0, 1.0])}, SchemaError, "'many'.*offsets.*whole"),
    "no offsets": ([3], {"many": ([1.0], [])}, SchemaError, "'many'.*offsets"),
    "a null inside": ([3], {"many": pa.array([[1.0, None]])}, SchemaError, "'many'.*null inside"),
    "a null inside a fixed list": ([3], {"three": HOLED}, SchemaError, "'three'.*null inside"),
    "a null inside a matrix": ([3], {"matrix": pa.array([[[1.0, None]]])}, SchemaError, "'matrix'.*null inside"),
    "a row missing inside": ([3], {"matrix": pa.array([[None, [1.0, 2.0]]])}, SchemaError, "'matrix'.*null inside"),
    "Arrow text": ([3], {"one": pa.array(["1"])}, SchemaError, "'one'.*number.*string"),
    "Arrow decimals": ([3], {"one": pa.array([1], pa.decimal128(5))}, SchemaError, "'one'.*number.*(?i:decimal)"),
    "Arrow times": ([3], {"one": pa.array([1], pa.timestamp("s"))}, SchemaError, "'one'.*number.*timestamp"),
    "Arrow structs": ([3], {"one": pa.array([{"a": 1}])}, SchemaError, "'one'.*number.*struct"),
    "a number too large": ([3, 4, 5], {"byte": [1, 2, 300]}, NumberTooLarge, "('byte'.*row 2|row 2.*'byte').*300"),
    "an array too large": ([3, 4], {"byte": np.array([1, 300])}, NumberTooLarge, "('byte'.*row 1|row 1.*'byte').*300"),
    "a fraction for an integer": ([3], {"byte": np.array([1.5])}, SchemaError, "'byte'.*1.5"),
    "NaN for an integer": ([3], {"byte": [math.nan]}, SchemaError, "'byte'.*nan"),
    "Arrow too large": ([3, 4], {"byte": pa.array([None, 300]), "one": [1.0, 2.0]}, NumberTooLarge, "'byte'.*300"),
    "a list too large": ([3, 4], {"three": LARGE}, NumberTooLarge, "'three'.*9223372036854775808"),
    "ragged too large": ([3, 4], {"many": [[1.0], [2**53 + 1, 0.5]]}, NumberTooLarge, "'many'.*9007199254740993"),
    "undecided beside a bad one": ([3], {"byte": np.array([300]), "named": [1.0]}, NumberTooLarge, "'byte'.*300"),
    "undecided that is bad": ([3], {"named": np.array([2**53 + 1])}, NumberTooLarge, "'named'.*9007199254740993"),
    "steps that stand still": ([3, 3], {"one": [1.0, 2.0]}, SchemaError, "row 1.*step 3"),
    "steps that go back": ([4, 3], {"one": [1.0, 2.0]}, SchemaError, "row 1.*step 3.*4"),
    "steps behind the last": ([1], {"one": [1.0]}, SchemaError, "step 1.*step 2.*never decrease"),
    "a field before the last": ([2], {"one": [1.0]}, SchemaError, "step 2.*'one'.*'byte'"),
    "the last field again": ([2], {"byte": [1]}, SchemaError, "step 2.*'byte'"),
    "a field before the last one": ([2], {"one": [1.0], "many": pa.array([None])}, SchemaError, "step 2.*'one'"),
    "a step with nothing": ([3, 4], {"one": pa.array([1.0, None])}, SchemaError, "row 1.*every field is missing"),
    "negative steps": ([-1], {"one": [1.0]}, SchemaError, "whole numbers? from 0.*-1"),
    "float steps": ([3.0], {"one": [1.0]}, SchemaError, "whole number.*3.0"),
    "float array of steps": (np.array([3.0]), {"one": [1.0]}, SchemaError, "whole number.*3.0"),
    "bool steps": ([True], {"one": [1.0]}, SchemaError, "whole number.*True"),
    "text for steps": ("3", {"one": [1.0]}, SchemaError, "steps.*'3'"),
    "a number for steps": (3, {"one": [1.0]}, SchemaError, "steps.*list.*3"),
    "a 0-d array of steps": (np.array(3), {"one": [1.0]}, SchemaError, "steps"),
    "a 0-d float of steps": (np.array(3.0), {"one": [1.0]}, SchemaError, "steps?"),
    "a matrix of steps": (np.array([[3]]), {"one": [1.0]}, SchemaError, "steps"),
    "a float matrix of steps": (np.array([[3.0]]), {"one": [1.0]}, SchemaError, "step"),
    "steps beyond": (np.array([2**63], np.uint64), {"one": [1.0]}, SchemaError, "9223372036854775808|whole number"),
    "steps far beyond": ([10**30], {"one": [1.0]}, SchemaError, "1000000000000000000000000000000"),
    "steps with a null": (pa.array([3, None]), {"one": [1.0, 2.0]}, SchemaError, "step"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refused_columns_change_nothing(what):
    """Length, steps, contents and kinds are what they were, and the next good append works."""
    steps, columns, error, says = REFUSED[what]
    store = warm(FIELDS)
    store.append_many([1, 2], {"one": [0.5, 1.5], "byte": [1, 2]})
    before = facts(store)

    with pytest.raises(error, match=f"(?s){says}"):
        store.append_many(steps, columns)

    assert facts(store) == before
    store.append_many([2, 3], {"named": [[0.5], [0.5, 0.5]]})
    assert column(store, "named", 2) == [[0.5], [0.5, 0.5]]


def test_a_step_larger_than_the_bound_is_refused():
    """In the middle of a column, or together with what the last step has."""
    store = StreamStore(fields={"a": "int64", "b": pa.list_(pa.int64())}, max_tokens=4)
    store.append(0, ["a"], [1])
    before = facts(store)
    for steps, columns in (
        ([1, 2, 3], {"b": [[1], [1] * 5, [1]]}),
        ([1, 2], {"a": [1, 2], "b": [[1] * 4, [1]]}),
        ([0, 1], {"b": pa.array([[1] * 4, [1]])}),
        ([0], {"b": np.ones((1, 4), np.int8)}),
    ):
        with pytest.raises(LimitExceeded, match=r"5 tokens.*max_tokens=4"):
            store.append_many(steps, columns)
        assert facts(store) == before

    store.append_many([0, 1, 2], {"b": [[1] * 3, [2] * 3, [3]]})

    assert [step["b"].tolist() for step in store] == [[2] * 3, [3]]


# Columns so large that they go to the files by way of a stage ----------------------------------------------------

MANY = 80_000


@pytest.fixture
def large() -> dict[str, Any]:
    """Columns of 13 MB in the lanes."""
    rng = np.random.default_rng(0)
    return {"warm": np.arange(MANY) % 100, "seen": rng.random((MANY, 4), np.float32), "reward": rng.random(MANY)}


def recorder_of(columns: dict[str, Any]) -> StreamStore:
    store = warm({"seen": pa.list_(pa.float32()), "reward": "float64"})
    assert set(columns) <= set(store.field_to_type)
    return store


def test_large_columns_become_the_same_bytes_as_small_ones(large: dict[str, Any]):
    """Whichever way they take, also where the first row goes on with the last step."""
    columns = {name: column for name, column in large.items() if name != "warm"}
    at_once, in_parts = recorder_of(columns), recorder_of(columns)
    steps = np.arange(MANY)

    at_once.append_many(steps, columns)
    for first in range(0, MANY, 10_000):
        part = slice(first, first + 10_000)
        in_parts.append_many(steps[part], {name: column[part] for name, column in columns.items()})

    assert lanes(at_once) == lanes(in_parts)
    assert at_once.n_steps == MANY
    at_once.append(MANY, ["reward"], [0.5])
    assert at_once[-1]["values"].view(np.float64) == 0.5


def test_a_bad_value_at_the_end_of_large_columns_leaves_nothing(large: dict[str, Any]):
    """What was written on the way was never seen."""
    store = recorder_of(large)
    before = lanes(store)
    large["warm"][-1] = 300

    with pytest.raises(NumberTooLarge, match=f"row {MANY - 1}, field 'warm': int8 cannot hold 300"):
        store.append_many(np.arange(1, MANY + 1), large)

    assert lanes(store) == before
    large["warm"][-1] = 1
    store.append_many(np.arange(1, MANY + 1), large)
    assert store.n_steps == MANY + 1


def test_a_file_that_cannot_be_written_is_an_error_and_nothing_is_seen(large: dict[str, Any], tmp_path):
    """Only the compiled half writes to files; the other has nothing to fail at."""
    store = recorder_of(large)
    before = lanes(store)
    writer = store._writer()
    writer._make_room(4 * MANY, 7 * MANY)
    rooms = writer.lanes.data.room, writer.lanes.types.room, writer.lanes.index.room
    with open(tmp_path / "read-only", "wb+"), open(tmp_path / "read-only", "rb") as file:
        writer.recorder.attach(*rooms, writer.head.words, (file.fileno(),) * 3)

        if kernels.is_native:
            with pytest.raises(OSError, match="Bad file descriptor"):
                store.append_many(np.arange(1, MANY + 1), large)
            assert lanes(store) == before
        writer._attach(writer.recorder)

    store.append_many(np.arange(1, MANY + 1), large)
    assert store.n_steps == MANY + 1
