"""Samples in, one batch out: stacked where they are alike, a list where they are not, and never a guess."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from poolish.errors import SchemaError
from poolish.load.batch import collate, empty_like


def test_numbers_and_arrays_are_stacked():
    """Whole numbers, fractions, flags, and arrays of one shape and type."""
    batch = collate([{"i": i, "f": i / 2, "b": i > 0, "a": np.full((2, 3), i, np.int16)} for i in range(3)])

    assert [batch[name].dtype for name in "ifba"] == [np.int64, np.float64, np.bool_, np.int16]
    assert batch["a"].shape == (3, 2, 3)
    assert batch["i"].tolist() == [0, 1, 2]


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.booleans(), min_size=1, max_size=8))
def test_numbers_keep_their_values(values):
    """Whatever numbers are mixed, each compares equal to what it was, or stays in a list as it was."""
    column = collate(values)["value"]

    if isinstance(column, list):
        assert column == values
    elif any(isinstance(value, float) for value in values):
        assert column.tolist() == [float(value) for value in values]
    else:
        assert column.tolist() == values


@pytest.mark.parametrize(
    "values",
    [
        ["rye", "wheat"],
        [b"rye", b"wheat"],
        [None, 1],
        [1, None],
        [1, "x"],
        [2**70, 1],
        [np.arange(2), np.arange(3)],
        [np.arange(2), np.arange(2.0)],
        [np.arange(2), None],
        [1, np.arange(2)],
        [np.array(["a"]), np.array(["b"])],
        [[1, 2], [3]],
        [{"a": 1}, {"b": 2}],
        [(1,), (1, 2)],
        [{1}, {2}],
        [object, int],
    ],
    ids=repr,
)
def test_what_cannot_be_stacked_is_a_list_of_what_it_was(values):
    """Text, bytes, missing values, other shapes, other types, numbers beyond 64 bits."""
    column = collate([{"x": value} for value in values])["x"]

    assert isinstance(column, list)
    assert all(one is other for one, other in zip(column, values, strict=True))


def test_dicts_and_tuples_are_collated_inside():
    """As deep as they go."""
    batch = collate([{"inner": {"x": i, "pair": (i, "rye")}} for i in range(2)])

    assert batch["inner"]["x"].tolist() == [0, 1]
    assert batch["inner"]["pair"][0].tolist() == [0, 1]
    assert batch["inner"]["pair"][1] == ["rye", "rye"]


def test_tuples_give_a_tuple_and_bare_values_a_column():
    """Samples that have no names."""
    assert [column.tolist() for column in collate([(1, 2.0), (3, 4.0)])] == [[1, 3], [2.0, 4.0]]
    assert collate([1, 2])["value"].tolist() == [1, 2]
    assert collate(["a", "b"]) == {"value": ["a", "b"]}


def test_mappings_of_any_kind_are_samples():
    """In the order of the first one's names, whatever the order of the others is."""
    batch = collate([OrderedDict(a=1, b=2), {"b": 4, "a": 3}])

    assert list(batch) == ["a", "b"]
    assert batch["b"].tolist() == [2, 4]


@pytest.mark.parametrize(
    ("samples", "told"),
    [
        ([{"a": 1}, {"b": 1}], "sample 1"),
        ([{"a": 1}, {"a": 1}, {"a": 1, "b": 2}], "sample 2"),
        ([{"a": 1}, 5], "sample 1"),
        ([(1, 2), (1,)], "sample 1"),
        ([(1, 2), [1, 2]], "sample 1"),
    ],
)
def test_samples_that_are_not_alike_are_refused_by_number(samples, told):
    """And the message says what to do."""
    with pytest.raises(SchemaError, match=rf"{told}.*collate_fn"):
        collate(samples)


def test_tensors_are_stacked_as_tensors():
    """Of one shape and dtype; else they stay a list."""
    batch = collate([{"t": torch.full((2,), i)} for i in range(3)])
    ragged = collate([{"t": torch.zeros(i)} for i in range(2)])

    assert batch["t"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert isinstance(ragged["t"], list)


def test_a_stacked_batch_is_a_copy():
    """Writing into it changes no sample."""
    sample = {"x": np.zeros(3)}
    batch = collate([sample])
    batch["x"][:] = 1

    assert sample["x"].tolist() == [0, 0, 0]


def test_an_empty_batch_has_the_form_of_one_that_is_not():
    """Columns, types and inner shapes."""
    batch = collate([{"x": np.zeros((2, 3), np.float32), "t": "rye", "inner": (1, "a")}])
    empty = empty_like(batch)

    assert empty["x"].shape == (0, 2, 3)
    assert empty["x"].dtype == np.float32
    assert empty["t"] == []
    assert empty["inner"][0].shape == (0,)
    assert empty["inner"][1] == []
