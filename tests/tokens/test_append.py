"""Appending steps: in order, all of it or nothing, and the same bytes by the fast way and the slow one."""

from __future__ import annotations

import gc
import math
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from poolish import Field, StreamStore
from poolish.errors import ConfigError, LimitExceeded, SchemaError, UnknownColumn
from tests.effort import times
from tests.tokens.facts import facts, lanes, warm

pytestmark = pytest.mark.kernels

torch.set_num_threads(1)

FIELDS = {"action": "int64", "observation": pa.list_(pa.float32()), "reward": "float64", "done": "bool"}
NAMES = list(FIELDS)


def contents(store: StreamStore) -> list[tuple[int, dict[str, Any]]]:
    """Steps with their numbers, arrays as lists."""
    return [
        (
            step.number,
            {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in step.items()},
        )
        for step in store
    ]


# What is written ----------------------------------------------------------------------------------------------


def test_a_step_is_written_field_by_field():
    """Tokens lie in the order of the fields, floats as the bits of float64, integers and bools as they are."""
    store = StreamStore(fields=FIELDS)

    store.append(steps=[7] * 4, names=NAMES, values=[3, np.array([0.5, -2.0], np.float32), 1.5, True])

    batch = store[:]
    assert batch["types"].tolist() == [0, 1, 1, 2, 3]
    assert batch["values"][[0, 4]].tolist() == [3, 1]
    assert batch["values"][1:4].view(np.float64).tolist() == [0.5, -2.0, 1.5]
    assert contents(store) == [(7, {"action": 3, "observation": [0.5, -2.0], "reward": 1.5, "done": True})]
    assert (len(store), store.n_steps) == (5, 1)


def test_the_lanes_of_an_append_are_pinned():
    """Data, types, starts, and rows of (start, type + 256 * ordinal, step): the format of the files is a decision."""
    store = warm({"a": "int64", "b": pa.list_(pa.float64())})

    store.append([5, 5, 9], ["a", "b", "b"], [-2, [1.0, -0.0], []])

    assert lanes(store) == [
        [1, -2, 0x3FF0000000000000, -(2**63)],
        [0, 1, 2, 2],
        [0, 1, 2, 4, 4],
        [0, 0, 0, 1, 1 + 256, 5, 2, 2 + 256, 5, 4, 2 + 512, 9],
    ]


@pytest.mark.parametrize(
    ("steps", "names", "values"),
    [
        ([1, 2], ["a", "a"], [1, 2]),
        ((1, 2), ("a", "a"), (1, 2)),
        (np.array([1, 2]), np.array(["a", "a"]), np.array([1, 2])),
        (np.array([1, 2], np.uint8), iter(["a", "a"]), iter([1, 2])),
        (range(1, 3), ["a", "a"], range(1, 3)),
        (torch.tensor([1, 2]), ["a", "a"], torch.tensor([1, 2])),
        ([np.int32(1), np.uint64(2)], ["a", "a"], [1, 2]),
        ([torch.tensor(1), np.array(2)], ["a", "a"], [1, 2]),
        (iter([1, 2]), ["a", "a"], {1: None, 2: None}),
    ],
)
def test_sequences_of_any_kind_will_do(steps, names, values):
    """Lists, tuples, arrays, iterators."""
    store = warm({"a": "int64"})

    store.append(steps, names, values)

    assert contents(store) == [(0, {"warm": 1}), (1, {"a": 1}), (2, {"a": 2})]


@pytest.mark.parametrize("step", [3, np.int64(3), np.int32(3), np.uint8(3), np.array(3), torch.tensor(3)], ids=repr)
def test_one_step_for_all_may_be_a_number(step):
    """Whoever holds it, as long as it is whole."""
    store = warm({"a": "int64", "b": "int64"})

    store.append(step, ["a", "b"], [1, 2])

    assert contents(store)[1:] == [(3, {"a": 1, "b": 2})]


def test_fields_may_be_left_out():
    """A step has the fields that it was given."""
    store = warm(FIELDS)

    store.append([1, 1, 2, 3], ["action", "done", "reward", "observation"], [1, False, 0.5, []])

    assert contents(store)[1:] == [(1, {"action": 1, "done": False}), (2, {"reward": 0.5}), (3, {"observation": []})]


def test_nothing_appended_is_nothing():
    """Empty lists are no step."""
    store = warm(FIELDS)
    before = facts(store)

    store.append([], [], [])
    store.append(5, [], [])

    assert facts(store) == before


def test_a_later_append_may_go_on_with_the_last_step():
    """Behind its last field, also in the same call as the next step."""
    store = warm(FIELDS)
    store.append(1, ["action"], [1])
    store.append([1, 2], ["reward", "action"], [0.5, 2])
    store.append([2, 2], ["observation", "done"], [[1.0], True])

    assert contents(store)[1:] == [
        (1, {"action": 1, "reward": 0.5}),
        (2, {"action": 2, "observation": [1.0], "done": True}),
    ]
    assert store.n_steps == 3


def test_steps_may_leave_gaps_up_to_the_last_number():
    """2**63 - 1 is a step like any other."""
    store = warm({"a": "int64"})

    store.append([5, 2**40, 2**63 - 1], ["a"] * 3, [1, 2, 3])

    assert [step.number for step in store] == [0, 5, 2**40, 2**63 - 1]
    assert [step["a"] for step in store.steps(2**40)] == [2, 3]


def test_many_appends_outgrow_the_first_chunks():
    """Lanes grow as needed, a large array in one append too, and what was read before stays."""
    store = warm({"a": "int64", "b": pa.list_(pa.float64())})
    early = store[:]
    for step in range(1, 20):
        store.append([step, step], ["a", "b"], [step, np.full(20_000, step, float)])

    assert len(store) == 1 + 19 * 20_001
    assert store.n_steps == 20
    assert [(step["a"], set(step["b"].tolist())) for step in store.steps(1)] == [(n, {n}) for n in range(1, 20)]
    assert early["values"].tolist() == [1]


class Name(StrEnum):
    """Text of another class."""

    A = "a"


@pytest.mark.parametrize("name", [Name.A, np.str_("a"), "".join(["", "a"])], ids=["enum", "numpy", "made"])
def test_names_may_be_any_text_that_is_equal(name):
    """Not only the very string that the field was declared with."""
    store = warm({"a": "int64"})
    store.append(1, [name], [5])
    store.append_many([2], {name: [6]})

    assert [step["a"] for step in store.steps(1)] == [5, 6]


def test_a_field_is_found_by_the_name_it_was_declared_with():
    """Also one that Unicode writes in two ways: they look the same, and are."""
    two = "e\u0301"
    store = warm([two])
    store.append(1, [two], [0.5])
    store.append(2, ["\u00e9"], [1.5])
    store.append_many([3], {two: [2.5]})

    assert store.decode(store[1:]["values"], two).tolist() == [0.5, 1.5, 2.5]
    assert list(store.field_to_type) == ["warm", "\u00e9"]


# Order --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "names", "words"),
    [
        ([5, 5], ["done", "reward"], ["step 5", "'reward'", "'done'", "order"]),
        ([5, 5], ["reward", "reward"], ["step 5", "'reward'", "once"]),
        ([5, 4], ["reward", "reward"], ["step 4", "step 5", "never decrease"]),
        ([1], ["reward"], ["step 1", "step 2", "never decrease"]),
        ([2], ["reward"], ["step 2", "'reward'", "order"]),
        ([2], ["action"], ["step 2", "'action'", "'reward'"]),
        ([2, 2], ["done", "reward"], ["step 2", "'reward'", "'done'"]),
    ],
)
def test_what_is_out_of_order_is_refused(steps, names, words):
    """With the names of both; nothing is written, and the stream goes on."""
    store = warm(FIELDS)
    store.append(2, ["reward"], [0.0])
    before = facts(store)
    values = [[1.0] if name == "observation" else 1 for name in names]

    with pytest.raises(SchemaError) as caught:
        store.append(steps, names, values)

    assert all(word in str(caught.value) for word in words)
    assert facts(store) == before
    store.append(2, ["done"], [True])
    assert contents(store)[-1] == (2, {"reward": 0.0, "done": True})


# Refusals -----------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Any, Any, Any, type[Exception], str]] = {
    "unknown name": (3, ["action", "regret"], [1, 2], UnknownColumn, "'regret'.*'action'.*'done'"),
    "name of another type": (3, [0], [1], UnknownColumn, "0"),
    "no name": (3, [None], [1], UnknownColumn, "None"),
    "unhashable name": (3, [["action"]], [1], UnknownColumn, "action"),
    "one name as text": (3, "action", [1], SchemaError, "names.*list"),
    "values as text": (3, ["action"], "1", SchemaError, "values.*list"),
    "values as a number": (3, ["action"], 1, SchemaError, "values.*list"),
    "no names": (3, None, [1], SchemaError, "names.*list"),
    "too few values": ([3, 3], ["action", "reward"], [1], SchemaError, "2 names and 1 values"),
    "too many values": (3, ["action"], [1, 2], SchemaError, "1 names and 2 values"),
    "too few steps": ([3], ["action", "reward"], [1, 2], SchemaError, "1 steps"),
    "too many steps": ([3, 3], ["action"], [1], SchemaError, "2 steps"),
    "steps without names": ([3], [], [], SchemaError, "1 steps"),
    "negative step": ([-1], ["action"], [1], SchemaError, "whole number from 0.*-1"),
    "negative step for all": (-1, ["action"], [1], SchemaError, "whole number from 0.*-1"),
    "float step": ([3.0], ["action"], [1], SchemaError, "whole number.*3.0"),
    "float step for all": (3.0, ["action"], [1], SchemaError, "3.0"),
    "NumPy float step": ([np.float64(3)], ["action"], [1], SchemaError, "whole number.*3.0"),
    "NumPy float step for all": (np.float32(3), ["action"], [1], SchemaError, "3.0"),
    "bool step": ([True], ["action"], [1], SchemaError, "whole number.*True"),
    "bool step for all": (True, ["action"], [1], SchemaError, "True"),
    "NumPy bool step": (np.True_, ["action"], [1], SchemaError, "True"),
    "step as text": (["3"], ["action"], [1], SchemaError, "whole number.*'3'"),
    "steps as text": ("3", ["action"], [1], SchemaError, "'3'"),
    "no steps": (None, ["action"], [1], SchemaError, "None"),
    "steps as text for nothing": ("abc", [], [], SchemaError, "'abc'"),
    "nothing for nothing": (None, [], [], SchemaError, "None"),
    "step beyond": ([2**63], ["action"], [1], SchemaError, "9223372036854775808"),
    "step far beyond": (10**30, ["action"], [1], SchemaError, "1000000000000000000000000000000"),
    "step of many": ([np.array([3, 4])], ["action"], [1], SchemaError, "step"),
    "float tensor as step": ([torch.tensor(3.5)], ["action"], [1], SchemaError, "step"),
    "float array as step": (np.array(3.5), ["action"], [1], SchemaError, "step"),
    "missing step": ([None], ["action"], [1], SchemaError, "whole number.*None"),
    "bad last value": ([3, 3, 4], ["action", "reward", "action"], [1, 0.5, 1.5], SchemaError, "entry 2, step 4.*1.5"),
    "bad first value": ([3, 3], ["action", "reward"], [math.nan, 0.5], SchemaError, "entry 0, step 3.*nan"),
    "two numbers for one": ([3], ["reward"], [[0.5, 0.5]], SchemaError, "entry 0, step 3.*one number"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_refused_append_changes_nothing(what):
    """Length, steps, contents and kinds are what they were, and the next good append works."""
    steps, names, values, error, says = REFUSED[what]
    store = warm(FIELDS)
    store.append([1] * 4, NAMES, [1, [0.5], 0.25, False])
    store.append([2], ["action"], [2])
    before = facts(store)
    for append in (store.append, store._writer().append_slowly):
        with pytest.raises(error, match=says):
            append(steps, names, values)
        assert facts(store) == before

    store.append(2, ["reward"], [0.75])

    assert contents(store)[2:] == [(2, {"action": 2, "reward": 0.75})]


@pytest.mark.parametrize("bad", ["x", 2**53 + 1, None, [1.0]], ids=repr)
def test_a_refused_append_decides_no_kind(bad):
    """A field that was only named is scalar or sequence by what was written, not by what was refused."""
    store = warm(["a", "b", "c"])
    store.append(1, ["c"], [0.5])
    before = facts(store)

    with pytest.raises(SchemaError):
        store.append(2, ["a", "b", "c"], [1.0, [1.0], bad])

    assert facts(store) == before
    store.append(2, ["a", "b", "c"], [[1.0, 2.0], 3.0, 4.0])
    assert contents(store)[-1] == (2, {"a": [1.0, 2.0], "b": 3.0, "c": 4.0})


def test_a_named_field_stays_what_it_was_first():
    """Scalar or sequence; within one append too."""
    store = warm(["a", "b", "c"])
    store.append(1, ["a", "b"], [1.0, [1.0]])

    with pytest.raises(SchemaError, match=r"'a' holds one number, got list \[2.0\]"):
        store.append(2, ["a"], [[2.0]])
    with pytest.raises(SchemaError, match=r"'b' holds a list of numbers, got float 2.0"):
        store.append(2, ["b"], [2.0])
    with pytest.raises(SchemaError, match=r"entry 1, step 3.*'c' holds one number"):
        store.append([2, 3], ["c", "c"], [1.0, [1.0]])
    store.append([2, 3], ["c", "c"], [[1.0], [1.0, 2.0]])

    assert contents(store)[1:] == [(1, {"a": 1.0, "b": [1.0]}), (2, {"c": [1.0]}), (3, {"c": [1.0, 2.0]})]


def test_what_was_only_named_holds_numbers_or_lists():
    """Arrays of more dimensions need a feature that says so."""
    store = warm(["a"])
    with pytest.raises(SchemaError, match=r"'a'.*name only.*one number or a list"):
        store.append(1, ["a"], [np.ones((2, 2))])
    store.append(1, ["a"], [np.ones(2)])


def test_a_step_larger_than_the_bound_is_refused():
    """Wherever it is in the append; what fits goes on."""
    store = StreamStore(fields={"a": pa.list_(pa.float64()), "b": "int64"}, max_tokens=4)
    store.append(0, ["a"], [[0.5, 0.5]])
    before = facts(store)
    for steps, names, values in (
        ([1, 2], ["a", "a"], [[1.0] * 5, [2.0]]),
        ([1, 2], ["a", "a"], [[1.0], [2.0] * 5]),
        ([1, 1], ["a", "b"], [[1.0] * 4, 1]),
        ([0, 1], ["b", "a"], [1, [1.0] * 5]),
    ):
        with pytest.raises(LimitExceeded, match=r"5 tokens.*max_tokens=4"):
            store.append(steps, names, values)
        assert facts(store) == before

    store.append([0, 1], ["b", "a"], [1, [1.0] * 4])

    assert contents(store) == [(1, {"a": [1.0] * 4})]
    assert (store.first, store.end, store.n_steps) == (3, 7, 1)


class Appends:
    """A value that appends to the stream that it is appended to."""

    def __init__(self, store: StreamStore) -> None:
        self.store = store

    def __array__(self, dtype=None, copy=None):
        self.store.append(5, ["a"], [1.0])
        return np.array(2.0)


def test_an_append_within_an_append_keeps_the_order():
    """Whichever of the two is refused, steps never decrease."""
    store = warm({"a": "float64"})
    try:
        store.append(1, ["a"], [Appends(store)])
    except (SchemaError, ConfigError):
        pass
    store.append(6, ["a"], [3.0])

    numbers = [step.number for step in store]
    assert numbers == sorted(set(numbers))
    assert len(store) == store.n_steps == len(numbers)


def test_a_stream_without_fields_takes_nothing_yet():
    """It says how to give it some."""
    store = StreamStore()
    with pytest.raises(ConfigError, match="define_fields"):
        store.append(0, ["a"], [1])
    with pytest.raises(ConfigError, match="define_fields"):
        store.append_many([0], {"a": [1]})

    store.define_fields({"a": "int64"})
    store.append(0, ["a"], [1])

    assert contents(store) == [(0, {"a": 1})]


def test_a_closed_stream_takes_nothing_any_more():
    """Neither by its method nor by one that somebody has kept."""
    store = warm({"a": "int64"})
    kept = store.append
    store.close()

    for append in (store.append, kept):
        with pytest.raises(ConfigError, match="closed"):
            append(1, ["a"], [1])
    with pytest.raises(ConfigError, match="closed"):
        store.append_many([1], {"a": [1]})
    assert (len(store), store.n_steps) == (0, 0)


@pytest.mark.kernels
def test_a_stream_can_be_opened_and_appended_to_in_one_expression(tmp_path):
    """A call, and a method that somebody keeps, hold on to the stream; when both are gone, it is closed."""
    StreamStore(tmp_path / "stream", {"a": "int64"}).append(0, ["a"], [0])
    StreamStore(tmp_path / "stream").append(steps=[1], names=["a"], values=[1])
    append = StreamStore.open(tmp_path / "stream", mode="a").append
    append(2, ["a"], [2])
    del append
    gc.collect()

    with StreamStore(tmp_path / "stream") as store:
        assert store[:]["values"].tolist() == [0, 1, 2]


# Fast and slow ------------------------------------------------------------------------------------------------

MIXED = {
    "a": None,
    "b": None,
    "c": "float32",
    "d": "int8",
    "e": pa.list_(pa.int64()),
    "f": Field("f", "float64", shape=(2,)),
    "g": Field("g", "float32", shape=(2, 2)),
    "h": "bool",
}
scalars = st.one_of(
    st.integers(-200, 200),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.sampled_from([np.float32(0.5), np.int64(-3), np.uint64(2**63), np.float16(np.nan), np.bool_(True), np.int8(5)]),
    st.sampled_from([np.array(2.0), np.array(7, ">i4"), torch.tensor(1.5), torch.tensor(3), None, "1"]),
)
small = st.lists(st.integers(-3, 3), max_size=3)
lists = st.one_of(
    small,
    st.lists(st.floats(), max_size=3),
    st.lists(scalars, max_size=2),
    small.map(tuple),
    st.tuples(small, st.sampled_from(["i1", "u2", "i8", "f2", "f4", "f8", ">i4", "?"])).map(
        lambda given: np.array(given[0]).astype(given[1])
    ),
    small.map(lambda n: np.repeat(np.array(n, np.float32), 2)[::2]),
    small.map(lambda n: torch.tensor(n, dtype=torch.float32)),
    st.sampled_from([np.ones(2), torch.ones(2), [0.5, 1], np.ones((2, 2)), [[1, 2], [3, 4]], torch.ones(2, 2)]),
)
fitting = {
    "a": st.floats() | st.integers(-9, 9),
    "b": small | small.map(np.array),
    "c": st.floats(width=32) | st.sampled_from([np.float32(0.5), torch.tensor(1.5), np.array(2.0), np.float16(3)]),
    "d": st.integers(-128, 127) | st.booleans() | st.just(np.uint8(5)),
    "e": small | small.map(tuple) | small.map(lambda n: torch.tensor(n, dtype=torch.int64)),
    "f": st.sampled_from([np.ones(2), torch.ones(2), [0.5, 1], np.arange(4)[::2], np.array([1, 2], ">i2")]),
    "g": st.sampled_from([np.ones((2, 2)), [[1, 2], [3, 4]], torch.ones(2, 2), np.arange(4).reshape(2, 2).T]),
    "h": st.booleans() | st.sampled_from([0, 1.0, np.True_]),
}


@st.composite
def some_appends(draw: Any) -> list[list[tuple[int, str, Any]]]:
    """Appends of a few steps, most of them in order and of values that fit, and now and then one that is not."""
    appends, number = [], 1
    for _ in range(draw(st.integers(1, 10))):
        writes = []
        for _ in range(draw(st.integers(0, 3))):
            number += draw(st.sampled_from([0, 1, 1, 1, 5]))
            for name in sorted(draw(st.sets(st.sampled_from(list(MIXED)), max_size=4))):
                is_odd = draw(st.integers(0, 30)) == 0
                writes.append((number, name, draw(scalars | lists if is_odd else fitting[name])))
        if draw(st.integers(0, 12)) == 0:
            writes = draw(st.permutations(writes)) + draw(st.sampled_from([[], [(number, "z", 1)], [(0, "a", 1.0)]]))
        appends.append(writes)
    return appends


@settings(max_examples=times(40))
@given(some_appends())
def test_the_fast_way_and_the_slow_way_write_the_same_bytes(appends):
    """Whatever is appended: the same lanes, the same kinds, the same refusals."""
    fast, slow = warm(MIXED), warm(MIXED)
    for writes in appends:
        arguments = [list(part) for part in zip(*writes, strict=True)] or [[], [], []]
        outcomes = []
        for append in (fast.append, slow._writer().append_slowly):
            try:
                append(*arguments)
            except SchemaError as error:
                outcomes.append(type(error))
            else:
                outcomes.append(None)

        assert outcomes[0] == outcomes[1]
        assert repr(fast) == repr(slow)
    assert lanes(fast) == lanes(slow)


def test_an_append_writes_no_more_than_it_says():
    """A refused append has scribbled behind the end; what follows is whole all the same."""
    store = warm({"a": pa.list_(pa.float64()), "b": "int8"})
    with pytest.raises(SchemaError):
        store.append(1, ["a", "b"], [np.full(50, 7.0), 1_000])

    store.append(1, ["a", "b"], [[1.0], 2])
    store.append(2, ["b"], [3])

    assert contents(store)[1:] == [(1, {"a": [1.0], "b": 2}), (2, {"b": 3})]
    assert store[:]["types"].tolist() == [0, 1, 2, 2]
