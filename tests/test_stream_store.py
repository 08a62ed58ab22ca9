"""The stream as its first text describes it, through ``from stream_store import StreamStore``.

A compact suite: append semantics, the shapes of ``__getitem__``, round trips to datasets, fields of any length, and
encoding by feature. ``tests/tokens`` has the depth, ``benchmarks/bench_tokens.py`` the speed.
"""

from __future__ import annotations

import numpy as np
import pytest
from datasets import Dataset, List, Value

from memmap_buffer import MemmapBuffer
from poolish.errors import SchemaError
from stream_store import StreamStore

pytestmark = pytest.mark.kernels

NAMES = ["action", "observation", "reward", "done"]
TYPED = {
    "action": Value("int64"),
    "observation": List(Value("float32")),
    "reward": Value("float64"),
    "done": Value("bool"),
}


def recorded(fields=NAMES, n_steps: int = 3) -> StreamStore:
    """Steps of seven tokens each: action, four observations, reward, done."""
    store = StreamStore(fields=fields)
    for i in range(n_steps):
        store.append([i] * 4, NAMES, [i, np.arange(4) / 4 + i, i / 2, i == n_steps - 1])
    return store


# Append semantics ---------------------------------------------------------------------------------------------


def test_fields_get_consecutive_type_ids():
    """In the order of their declaration, in the constructor or by ``define_fields``."""
    later = StreamStore()
    later.define_fields(TYPED)

    for store in (StreamStore(fields=NAMES), later):
        assert dict(store.field_to_type) == {"action": 0, "observation": 1, "reward": 2, "done": 3}
        assert store._type_to_field == {0: "action", 1: "observation", 2: "reward", 3: "done"}


def test_a_step_becomes_tokens_in_the_order_of_the_fields():
    """action (1 token) | obs_0 ... obs_3 (4 tokens) | reward (1 token) | done (1 token)."""
    store = recorded(n_steps=1)

    batch = store[np.arange(7)]

    assert len(store) == 7
    assert batch["types"].tolist() == [0, 1, 1, 1, 1, 2, 3]
    assert batch["values"].view(np.float64).tolist() == [0.0, 0.0, 0.25, 0.5, 0.75, 0.0, 1.0]


@pytest.mark.parametrize(
    ("steps", "names", "values"),
    [
        ([3, 3], ["reward", "action"], [0.5, 1]),
        ([3, 3], ["action", "action"], [1, 1]),
        ([2, 1], ["action", "action"], [1, 1]),
        ([0], ["action"], [1]),
        ([3], ["velocity"], [1]),
        ([3, 3], ["action"], [1]),
    ],
    ids=["order", "twice", "steps go down", "step is over", "unknown field", "lengths"],
)
def test_what_breaks_a_rule_is_refused_and_nothing_is_written(steps, names, values):
    """Fields are strictly ordered within a call, and steps never decrease."""
    store = recorded()
    before = store[:]["values"].tolist()

    with pytest.raises((SchemaError, KeyError)):
        store.append(steps, names, values)

    assert store[:]["values"].tolist() == before


def test_fields_may_be_left_out():
    """Of any step; a later call may continue the last one."""
    store = StreamStore(fields=NAMES)
    store.append([0, 1], ["action", "done"], [1, True])
    store.append([2], ["action"], [2])
    store.append([2, 3], ["reward", "observation"], [0.5, np.ones(2)])

    assert [(step.number, list(step)) for step in store] == [
        (0, ["action"]),
        (1, ["done"]),
        (2, ["action", "reward"]),
        (3, ["observation"]),
    ]


# __getitem__ --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3), (2, 1, 3), (0,), (4, 0)])
def test_a_batch_has_the_shape_of_its_index(shape):
    """Types and values, both int64, for an index of any shape."""
    store = recorded()
    index = np.random.default_rng(0).integers(len(store), size=shape)

    batch = store[index]

    everything = store[np.arange(len(store))]
    for part in ("types", "values"):
        assert (batch[part].shape, batch[part].dtype) == (shape, np.int64)
        assert np.array_equal(batch[part], everything[part][index])


def test_positions_outside_the_stream_are_refused():
    """Negative ones count from the end."""
    store = recorded()

    assert store[np.array([-1])]["types"].tolist() == [3]
    for outside in (len(store), -len(store) - 1):
        with pytest.raises(IndexError):
            store[np.array([0, outside])]


# Fields of any length -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [NAMES, TYPED], ids=["names", "features"])
def test_a_field_may_have_another_length_in_every_step(fields):
    """Also none at all; its length is the distance to the next start."""
    store, lengths = StreamStore(fields=fields), [3, 1, 0, 5, 2]
    for i, n in enumerate(lengths):
        store.append([i, i, i], ["action", "observation", "done"], [i, np.arange(n) / 2, False])

    assert len(store) == sum(lengths) + 2 * len(lengths)
    assert [step["observation"].tolist() for step in store] == [(np.arange(n) / 2).tolist() for n in lengths]


def test_the_stream_grows_beyond_any_chunk():
    """No size is needed in advance, and what was recorded first is still there."""
    store = StreamStore(fields=["n"])
    for i in range(3):
        store.append([i], ["n"], [np.arange(200_000.0) + i])

    assert store[np.array([0, 200_000, 599_999])]["values"].view(np.float64).tolist() == [0.0, 1.0, 200_001.0]
    plain = MemmapBuffer(dtype="int64")
    plain.append(np.arange(10))
    assert (len(plain), plain[3:5].tolist()) == (10, [3, 4])


# Encoding -----------------------------------------------------------------------------------------------------


def test_features_decide_the_encoding():
    """Floats are float64 bits, integers and bools the number itself; ``_decode`` goes by the dtype of the field."""
    store = recorded(TYPED, n_steps=1)
    store.append([1], ["action"], [2**53 + 1])
    batch = store[:]
    values = {name: batch["values"][batch["types"] == type_] for name, type_ in store.field_to_type.items()}

    assert values["action"].tolist() == [0, 2**53 + 1]
    assert values["observation"].view(np.float64).tolist() == [0.0, 0.25, 0.5, 0.75]
    assert values["done"].tolist() == [1]
    for name, dtype in (("action", "int64"), ("observation", "float32"), ("reward", "float64"), ("done", "bool")):
        decoded = store._decode(values[name], dtype)
        assert decoded.dtype == dtype
        assert np.array_equal(decoded, store.decode(values[name], name))
    with pytest.raises(SchemaError):
        StreamStore(fields=NAMES).append([0], ["action"], [2**53 + 1])


# Datasets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [NAMES, TYPED], ids=["names", "features"])
def test_a_stream_comes_back_from_a_dataset(fields):
    """One row for each step, columns in the order of the fields; tokens, types and steps are the same again."""
    store = recorded(fields)
    store.append([3, 4], ["reward", "observation"], [0.1, np.ones(2)])

    dataset = store.to_dataset()
    again = StreamStore(fields=fields)
    again.from_dataset(dataset)

    assert dataset.column_names == NAMES
    assert len(dataset) == 5
    assert dataset[3]["action"] is None
    for part in ("types", "values"):
        assert np.array_equal(again[:][part], store[:][part])
    assert [step.number for step in again] == [step.number for step in store]


def test_extra_columns_are_beside_the_stream():
    """They are in the dataset, and ignored when it is read."""
    store = recorded()

    dataset = store.to_dataset(extra={"episode": [7, 7, 8]})
    again = StreamStore(fields=NAMES)
    again.from_dataset(dataset)

    assert dataset.column_names == [*NAMES, "episode"]
    assert np.array_equal(again[:]["values"], store[:]["values"])


def test_columns_must_match_the_fields():
    """In any order of the columns; one that is missing is named."""
    rows = {"reward": [0.5], "action": [1.0], "done": [0.0], "observation": [[1.0, 2.0]]}
    store = StreamStore(fields=NAMES)
    store.from_dataset(Dataset.from_dict(rows))
    assert store[:]["types"].tolist() == [0, 1, 1, 2, 3]

    del rows["reward"]
    with pytest.raises(SchemaError, match="reward"):
        store.from_dataset(Dataset.from_dict(rows))
