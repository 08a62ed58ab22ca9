"""Fields declared as people have them, and steps recorded as one mapping: the same stream as with names and values."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from poolish import StreamStore
from poolish.errors import ConfigError, SchemaError, UnknownColumn

PROGRAM = """
import sys
from poolish import StreamStore
store = StreamStore(fields={"obs": ("float32", (4,)), "action": 1})
store.append(0, {"obs": [1, 2, 3, 4], "action": 0})
assert "gymnasium" not in sys.modules
"""

NESTED = spaces.Dict(position=spaces.Box(-1, 1, (2,)), grid=spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)]))


def shown(fields: Any) -> str:
    """The fields of a new stream, as text."""
    return ", ".join(map(str, StreamStore(fields=fields)._fields))


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        (("float32", (4,)), "x: float32[4]"),
        ((np.uint8, (2, 3)), "x: uint8[2, 3]"),
        (("int64", ()), "x: int64"),
        (("float32", [None, 3]), "x: float32[any, 3]"),
        (np.dtype(("int16", (5,))), "x: int16[5]"),
        (np.dtype([("a", "f4", (2,)), ("b", "?")]), "x.a: float32[2], x.b: bool"),
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), "x: uint8[8, 8, 3]"),
        (spaces.Box(-1, 1, ()), "x: float32"),
        (spaces.Discrete(4, start=-1), "x: int64"),
        (spaces.MultiDiscrete([2, 3]), "x: int64[2]"),
        (spaces.MultiBinary((2, 2)), "x: int8[2, 2]"),
        (spaces.Text(12), "x: uint8[any]"),
        (NESTED, "x.position: float32[2], x.grid.0: int64, x.grid.1: int8[2]"),
        ({"a": {"b": "int32"}, "c": ("bool", (2,))}, "x.a.b: int32, x.c: bool[2]"),
        (np.zeros((3, 2), np.float32), "x: float32[3, 2]"),
        (np.int8(3), "x: int8"),
        (torch.zeros(5), "x: float32[5]"),
        (True, "x: bool"),
        (5, "x: int64"),
        (0.5, "x: float64"),
        ([1.5, 2.0], "x: float64[any]"),
    ],
)
def test_a_field_is_declared_by_what_it_holds(declared, text):
    """A dtype with a shape, a space, a nested mapping, or a sample value."""
    assert shown({"x": declared}) == text


def test_all_fields_come_from_a_space_or_a_structured_dtype():
    """The observation space of an environment is enough; so is a row of a structured array."""
    assert shown(NESTED) == "position: float32[2], grid.0: int64, grid.1: int8[2]"
    assert shown(np.dtype([("obs", "f4", (4,)), ("action", "i8")])) == "obs: float32[4], action: int64"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"x": spaces.Sequence(spaces.Discrete(2))}, "'x'.*Sequence spaces.*flatten"),
        ({"x": spaces.Dict()}, "'x'.*without members"),
        ({"x": ("complex64", (2,))}, "'x'.*complex64"),
        ({"x": ("float33", (2,))}, "'x'.*no dtype and shape"),
        ({"x": ("float32", (2, None))}, "'x'.*first dimension"),
        ({"x": ("float32", (0,))}, "'x'.*no numbers"),
        ({"x": np.zeros(2, "M8[s]")}, "'x'.*datetime64"),
        ({"x": {1: "int64"}}, "x.1.*strings"),
        (spaces.Box(0, 1, (2,)), "name it"),
    ],
)
def test_what_no_stream_can_hold_is_refused_by_name(fields, says):
    """With what to do instead."""
    with pytest.raises(SchemaError, match=f"(?s){says}"):
        StreamStore(fields=fields)


def test_spaces_are_recognised_without_importing_gymnasium():
    """A program without environments does not pay for them."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_samples_of_a_space_are_recorded_and_come_back():
    """Dict, Tuple and Text are taken apart and put together again."""
    space = spaces.Dict(nested=NESTED, mission=spaces.Text(12, charset="héllo "), speed=spaces.Box(-1, 1, (3,)))
    space.seed(3)
    store = StreamStore(fields={"obs": space, "action": spaces.Discrete(4)})
    samples = [space.sample() for _ in range(20)]

    for step, sample in enumerate(samples):
        store.append(step, {"obs": sample, "action": step % 4})

    batch = store.fields_at(np.arange(20))
    for i, sample in enumerate(samples):
        obs = batch["obs"]
        assert (obs["speed"][i] == sample["speed"]).all()
        assert (obs["nested"]["position"][i] == sample["nested"]["position"]).all()
        assert obs["nested"]["grid"]["0"][i] == sample["nested"]["grid"][0]
        assert (obs["nested"]["grid"]["1"][i] == sample["nested"]["grid"][1]).all()
        text = obs["mission"][i, : batch["lengths"]["obs"]["mission"][i]].tobytes().decode()
        assert text == sample["mission"]
    assert obs["speed"].dtype == np.float32
    assert batch["action"].tolist() == [i % 4 for i in range(20)]


# One step as a mapping -------------------------------------------------------------------------------------------


VALUES = {"a": 3, "b": np.array([0.5, 1.5], np.float32), "c": True, "d": [1, 2, 3]}
FIELDS = {"a": "int64", "b": ("float32", (2,)), "c": "bool", "d": ("int16", (None,))}


@given(
    st.lists(
        st.permutations(list(VALUES)).flatmap(lambda names: st.integers(1, 4).map(lambda n: names[:n])), max_size=5
    )
)
def test_a_mapping_is_the_same_as_names_and_values(steps):
    """In any order, with any fields left out; they are written in the order of declaration."""
    one, other = StreamStore(fields=FIELDS), StreamStore(fields=FIELDS)

    for step, names in enumerate(steps):
        one.append(step, {name: VALUES[name] for name in names})
        ordered = sorted(names)
        other.append(step, ordered, [VALUES[name] for name in ordered])

    assert len(one) == len(other)
    if len(one):
        assert (one[:]["values"] == other[:]["values"]).all()
        assert (one[:]["types"] == other[:]["types"]).all()
    assert [step.number for step in one] == [step.number for step in other]


def test_a_step_is_continued_by_a_mapping_behind_its_last_field():
    """As with names: what lies before it is refused, and nothing is written."""
    store = StreamStore(fields=FIELDS)
    store.append(4, {"a": 1})
    store.append(4, {"d": [5], "b": [1, 2]})

    with pytest.raises(SchemaError, match="'c' comes after 'd'"):
        store.append(4, {"c": False})

    [step] = store
    assert list(step) == ["a", "b", "d"]


@pytest.mark.parametrize(
    ("args", "error", "says"),
    [
        ((0, {"nothing": 1}), UnknownColumn, "nothing"),
        ((0, {"a": 1.5}), SchemaError, "'a'.*1.5 exactly"),
        ((0, {"b": [1, 2, 3]}), SchemaError, "'b'.*2 numbers"),
        (([0, 0], {"a": 1, "c": True}), SchemaError, "one step"),
        ((-1, {"a": 1}), SchemaError, "whole number"),
        ((0.5, {"a": 1}), SchemaError, "whole number"),
        ((0, ["a"]), SchemaError, "without values"),
        ((0, None), SchemaError, "without values"),
        ((0, {"a": {"x": 1}}), SchemaError, "'a'"),
        ((0, {"e": {"x": 1}}), UnknownColumn, "e.x"),
        ((0, {1: 1}), UnknownColumn, "1"),
    ],
)
def test_a_mapping_that_does_not_fit_is_refused_and_nothing_is_written(args, error, says):
    """By the same rules, and with the same words, as names and values."""
    store = StreamStore(fields=FIELDS)

    with pytest.raises(error, match=f"(?s){says}"):
        store.append(*args)

    assert len(store) == 0


def test_nothing_is_appended_by_an_empty_mapping_or_to_a_stream_without_fields():
    """The one is no step; the other says that there are no fields."""
    store = StreamStore(fields=FIELDS)
    store.append(0, {})
    assert store.n_steps == 0

    with pytest.raises(ConfigError, match="define_fields"):
        StreamStore().append(0, {"a": 1})


def test_tensors_and_undecided_fields_in_a_mapping():
    """What the quick path leaves to the slow one arrives all the same."""
    store = StreamStore(fields=["x", "y"])
    for step in range(3):
        store.append(step, {"y": torch.tensor([1.0, step]), "x": np.float32(step)})

    assert [dict(step)["y"].tolist() for step in store] == [[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]
