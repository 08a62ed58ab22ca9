"""Hugging Face datasets in and out: every number, every hole and every feature, at a cost that does not grow."""

from __future__ import annotations

import gc
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
from datasets import Array2D, Array3D, Array4D, Array5D, ClassLabel, Dataset, Features, LargeList, List, Value

from poolish import StreamStore
from poolish.errors import ConfigError, SchemaError, UnknownColumn
from poolish.tokens import hf
from tests.hub import local_hub
from tests.rows.children import in_child, start_child
from tests.tokens.plain_stream import facts

torch.set_num_threads(1)

NAN, INF = float("nan"), float("inf")


def ends(dtype: str) -> list[int]:
    return [0, int(np.iinfo(dtype).min), min(int(np.iinfo(dtype).max), 2**63 - 1)]


#: A feature and values for it, each as Hugging Face shows it.
COLUMNS: dict[str, tuple[Any, list[Any]]] = {
    **{
        name: (Value(name), ends(name))
        for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    },
    "float16": (Value("float16"), [0.5, -0.0, 65504.0, 2.0**-24, INF, NAN]),
    "float32": (Value("float32"), [0.5, -0.0, 2.0**-149, -INF, NAN]),
    "float64": (Value("float64"), [0.1, -0.0, 5e-324, 1.7976931348623157e308, NAN]),
    "bool": (Value("bool"), [True, False]),
    "class label": (ClassLabel(names=["rye", "oat"]), [1, 0, -1]),
    "list": (List(Value("int8")), [[1, -128], [], [3]]),
    "list of bool": (List(Value("bool")), [[True], [], [False, True]]),
    "list of float16": (List(Value("float16")), [[0.5, NAN], [], [-0.0]]),
    "list of labels": (List(ClassLabel(names=["rye", "oat"])), [[1, 0], []]),
    "list of length 3": (List(Value("float32"), length=3), [[1.0, 2.0, 3.0], [4.0, 5.0, NAN]]),
    "bools of length 2": (List(Value("bool"), length=2), [[True, False], [False, True]]),
    "large list": (LargeList(Value("uint16")), [[1, 65535], [], [3]]),
    "old list": ([Value("int32")], [[1], [], [2, 3]]),
    "Array2D": (Array2D((2, 3), "float32"), [[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], [[0.5] * 3] * 2]),
    "Array2D of bool": (Array2D((1, 2), "bool"), [[[True, False]], [[False, True]]]),
    "Array2D of uint8": (Array2D((2, 1), "uint8"), [[[0], [255]], [[1], [2]]]),
    "Array3D": (Array3D((2, 1, 2), "int64"), [[[[1, 2]], [[3, 4]]], [[[5, 6]], [[7, -8]]]]),
    "Array4D": (Array4D((1, 1, 2, 1), "int16"), [[[[[1], [2]]]], [[[[3], [4]]]]]),
    "Array5D": (Array5D((1, 1, 1, 2, 1), "int16"), [[[[[[1], [2]]]]], [[[[[3], [4]]]]]]),
    "ragged Array2D": (Array2D((None, 2), "int32"), [[[1, 2], [3, 4]], [], [[5, 6]]]),
    "ragged Array3D": (Array3D((None, 1, 2), "float64"), [[[[1.0, 2.0]], [[3.0, 4.0]]], [[[0.5, NAN]]]]),
    "fixed lists in fixed lists": (
        List(List(Value("int16"), length=2), length=3),
        [[[1, 2], [3, 4], [5, 6]], [[7, 8], [9, 10], [11, 12]]],
    ),
    "fixed lists in lists": (List(List(Value("int16"), length=2)), [[[1, 2], [3, 4]], [], [[5, 6]]]),
    "arrays in lists": (List(Array2D((2, 1), "int16")), [[[[1], [2]], [[3], [4]]], []]),
}


def same(left: Any, right: Any) -> bool:
    """Whether two nested values are equal, NaN and the sign of zero included."""
    return repr(left) == repr(right)


def store_of(fields: Any, rows: list[dict[str, Any]], gap: int = 1, **options: Any) -> StreamStore:
    """A store with a step for each row; what is None there is left out."""
    store = StreamStore(fields=fields, **options)
    for i, row in enumerate(rows):
        there = {name: value for name, value in row.items() if value is not None}
        store.append(i * gap, list(there), list(there.values()))
    return store


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    """A few rows at a time, so that few rows cross the edges of batches."""
    monkeypatch.setattr(hf, "ROWS", 3)


# There and back -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COLUMNS)
def test_every_feature_goes_there_and_back(name):
    """The dataset has the declared features and the values; the stream that is read from it has the same tokens."""
    feature, column = COLUMNS[name]
    fields = {"x": feature}
    store = store_of(fields, [{"x": value} for value in column])

    dataset = store.to_dataset()
    again = StreamStore(fields=fields)
    again.from_dataset(dataset)

    assert dataset.features == store.features == Features(fields)
    assert same(dataset[:]["x"], column)
    assert facts(again) == facts(store)


@pytest.mark.parametrize("name", COLUMNS)
def test_a_field_left_out_is_null_and_is_left_out_again(name):
    """At the beginning, in the middle, at the end; empty lists are no holes."""
    feature, column = COLUMNS[name]
    fields = {"before": Value("int64"), "x": feature, "after": Value("bool")}
    values = [None, *column, None, None, *column, None]
    rows = [
        {"before": None if i % 3 == 2 and value is not None else i, "x": value, "after": True if i % 2 else None}
        for i, value in enumerate(values)
    ]
    store = store_of(fields, rows, gap=2)

    dataset = store.to_dataset(step="step")
    again = StreamStore(fields=fields)
    again.from_dataset(dataset, step="step")

    assert dataset.column_names == ["before", "x", "after", "step"]
    assert same(dataset[:]["x"], values)
    assert same([dataset[i]["x"] for i in range(len(dataset))], values)
    assert dataset["before"][:] == [row["before"] for row in rows]
    assert dataset["step"][:] == [2 * i for i in range(len(rows))]
    assert facts(again) == facts(store)


def test_named_fields_come_back_as_they_were():
    """Scalar or list as first written; what was never written is a column of nulls and is still undecided after it."""
    names = ["action", "observation", "reward", "never"]
    rows = [{"action": 1.0, "observation": [0.1, NAN][: i % 3], "reward": None if i % 2 else 0.5} for i in range(8)]
    store = store_of(names, rows)

    dataset = store.to_dataset()
    again = StreamStore(fields=names)
    again.from_dataset(dataset)

    assert dataset.features["action"] == dataset.features["reward"] == Value("float64")
    assert dataset.features["observation"] == List(Value("float64"))
    assert same(dataset["observation"][:], [row["observation"] for row in rows])
    assert dataset["never"][:] == [None] * 8
    assert facts(again) == facts(store)
    again.append(8, ["never"], [2.0])
    assert list(again)[-1] == {"never": 2.0}


@pytest.mark.parametrize("fields", [["a", "b"], {"a": Value("int8"), "b": List(Value("bool"))}], ids=["names", "typed"])
def test_an_empty_stream_is_an_empty_dataset(fields):
    """With its columns and features, and nothing to read back."""
    store = StreamStore(fields=fields)

    dataset = store.to_dataset(extra={"note": pa.array([], pa.string())}, step="step")
    again = StreamStore(fields=fields)
    again.from_dataset(dataset)

    assert dataset.num_rows == 0
    assert dataset.column_names == ["a", "b", "step", "note"]
    assert {name: dataset.features[name] for name in "ab"} == dict(store.features)
    assert (len(again), again.n_steps) == (0, 0)


def test_columns_stand_in_the_order_of_the_fields():
    """Whatever the order of the alphabet or of a dataset that is read."""
    fields = {name: Value("int64") for name in ("z", "a", "m")}
    store = store_of(fields, [{"z": 1, "a": 2, "m": 3}])
    other = Dataset.from_dict({"m": [6], "unknown": ["text"], "a": [5], "z": [4]})

    store.from_dataset(other)

    assert store.to_dataset().column_names == ["z", "a", "m"]
    assert [list(step.items()) for step in store] == [
        [("z", 1), ("a", 2), ("m", 3)],
        [("z", 4), ("a", 5), ("m", 6)],
    ]


def test_each_dataset_is_what_the_stream_was_then():
    """Called again after appends it has the new rows, and the one from before keeps its own, also in its cache."""
    store = store_of({"a": Value("int64")}, [{"a": 1}])
    first = store.to_dataset()
    assert first.map(lambda row: {"b": row["a"] + 1})["b"][:] == [2]

    store.append(5, ["a"], [7])
    second = store.to_dataset()

    assert (first["a"][:], second["a"][:]) == ([1], [1, 7])
    assert second.map(lambda row: {"b": row["a"] + 1})["b"][:] == [2, 8]


def test_what_has_left_a_bounded_stream_is_not_in_its_dataset():
    """Only the steps that are kept, with their numbers."""
    store = store_of(
        {"a": Value("int64"), "b": List(Value("int8"))}, [{"a": i, "b": [i]} for i in range(9)], max_tokens=7
    )

    dataset = store.to_dataset(step="step")

    assert dataset[:] == {"a": [6, 7, 8], "b": [[6], [7], [8]], "step": [6, 7, 8]}


def test_a_reader_gives_datasets_and_takes_none(tmp_path):
    """As long as it sees the stream; reading from a dataset is writing."""
    store = StreamStore(tmp_path / "s", fields={"a": Value("int64")})
    store.append(0, ["a"], [1])
    reader = StreamStore.open(tmp_path / "s")
    store.append(1, ["a"], [2])

    assert reader.to_dataset()["a"][:] == [1]
    with pytest.raises(ConfigError, match="opened to read"):
        reader.from_dataset(store.to_dataset())


def test_a_dataset_travels():
    """Pickled, selected, written to disk: it is a dataset like any other."""
    dataset = store_of({"a": Value("int64")}, [{"a": i} for i in range(7)]).to_dataset()

    assert pickle.loads(pickle.dumps(dataset))["a"][:] == list(range(7))
    assert dataset.select([5, 1])["a"][:] == [5, 1]
    assert dataset.with_format("numpy")[2:4]["a"].tolist() == [2, 3]
    assert dataset.with_format("torch")[0]["a"] == torch.tensor(0)


def test_a_dataset_outlives_its_stream():
    """And a stream can be appended to itself."""
    store = store_of({"a": Value("int64")}, [{"a": 1}, {"a": 2}])
    store.from_dataset(store.to_dataset())
    dataset = store.to_dataset()

    store.close()
    del store
    gc.collect()

    assert dataset["a"][:] == [1, 2, 1, 2]


def test_two_processes_make_datasets_of_their_own():
    """A forked child and its parent write to different files, however equal they were when they parted."""
    store = store_of({"a": Value("int64")}, [{"a": i} for i in range(5)])
    store.to_dataset()
    (ready, says), (waits, go) = os.pipe(), os.pipe()

    def child() -> Any:
        dataset = store.to_dataset()
        os.write(says, b"x")
        os.read(waits, 1)
        return dataset["a"][:]

    pid, answers = start_child(child)
    os.read(ready, 1)
    store.append_many(range(5, 9), {"a": range(5, 9)})
    mine = store.to_dataset(extra={"note": ["other bytes at the same place" * 500] * 9})
    os.write(go, b"x")

    with answers:
        told = answers.read()
    os.waitpid(pid, 0)
    assert pickle.loads(told) == (True, [0, 1, 2, 3, 4])
    assert mine["a"][:] == list(range(9))


# step= and extra= ---------------------------------------------------------------------------------------------


EXTRA: dict[str, tuple[Any, Any, list[Any]]] = {
    "array": (np.arange(4, dtype=np.int16), Value("int16"), [0, 1, 2, 3]),
    "bools": (np.array([True, False, True, True]), Value("bool"), [True, False, True, True]),
    "list": ([1.5, None, 2.5, 0.0], Value("float64"), [1.5, None, 2.5, 0.0]),
    "text": (["a", "b", None, "🍞"], Value("string"), ["a", "b", None, "🍞"]),
    "lists": ([[1], [], [2, 3], None], List(Value("int64")), [[1], [], [2, 3], None]),
    "rows of an array": (np.arange(8).reshape(4, 2), List(Value("int64")), [[0, 1], [2, 3], [4, 5], [6, 7]]),
    "range": (range(4), Value("int64"), [0, 1, 2, 3]),
    "structs": ([{"x": 1}] * 4, {"x": Value("int64")}, [{"x": 1}] * 4),
    "Arrow": (pa.array([1, 2, None, 4], pa.uint8()), Value("uint8"), [1, 2, None, 4]),
    "chunks": (pa.chunked_array([[1, 2], [3, 4]], pa.int32()), Value("int32"), [1, 2, 3, 4]),
    "tensor": (torch.arange(4, dtype=torch.int32), Value("int32"), [0, 1, 2, 3]),
    "column": (Dataset.from_dict({"c": [1, 2, 3, 4]})["c"], Value("int64"), [1, 2, 3, 4]),
}


@pytest.mark.parametrize("kind", EXTRA)
def test_extra_columns_stand_beside_the_fields(kind):
    """A value for each step, of any type that Arrow knows, behind the fields and the numbers of the steps."""
    values, feature, expected = EXTRA[kind]
    store = store_of({"a": Value("int64")}, [{"a": i} for i in range(4)], gap=3)

    dataset = store.to_dataset(extra={"note": values}, step="t")

    assert dataset.column_names == ["a", "t", "note"]
    assert dataset.features["note"] == feature
    assert dataset[:] == {"a": [0, 1, 2, 3], "t": [0, 3, 6, 9], "note": expected}


@pytest.mark.parametrize(
    ("extra", "step", "message"),
    [
        ({"note": [1, 2, 3]}, None, "'note'.*3 values for 4 steps"),
        ({"note": np.arange(5)}, None, "'note'.*5 values for 4 steps"),
        ({"note": []}, None, "'note'.*0 values for 4 steps"),
        ({"a": [1, 2, 3, 4]}, None, "'a' is there twice"),
        ({"step": [1, 2, 3, 4]}, "step", "'step' is there twice"),
        ({}, "a", "'a' is there twice"),
        ({"note": [1, "a", 2, 3]}, None, "'note'"),
        ({"note": [StreamStore] * 4}, None, "'note'"),
        ({"note": 5}, None, "'note'"),
        ({"note": "text"}, None, "'note'"),
        ({"note": None}, None, "'note'"),
        ({5: [1, 2, 3, 4]}, None, "5"),
    ],
    ids=str,
)
def test_columns_that_do_not_fit_are_refused(extra, step, message):
    """The message names the column."""
    store = store_of({"a": Value("int64")}, [{"a": i} for i in range(4)])

    with pytest.raises(SchemaError, match=message):
        store.to_dataset(extra=extra, step=step)


def test_numbers_of_steps_go_on_without_a_column():
    """Behind the last step there is; with a column they are what it says."""
    store = store_of({"a": Value("int64")}, [{"a": 0}, {"a": 1}], gap=10)
    dataset = Dataset.from_dict({"a": [5, 6], "t": [20, 25]})

    store.from_dataset(dataset)
    store.from_dataset(dataset, step="t")

    assert [(step.number, step["a"]) for step in store] == [(0, 0), (10, 1), (11, 5), (12, 6), (20, 5), (25, 6)]


# From other datasets ------------------------------------------------------------------------------------------


def test_selections_and_shuffles_are_respected():
    """What the dataset shows is what is read, in its order."""
    dataset = Dataset.from_dict({"a": list(range(20)), "b": [[i] * (i % 3) for i in range(20)]})
    store = StreamStore(fields={"a": Value("int64"), "b": List(Value("int64"))})

    for part in (dataset.shuffle(seed=3), dataset.select([7, 3, 3]), dataset.filter(lambda row: row["a"] > 17)):
        before = store.n_steps
        store.from_dataset(part)
        rows = list(store)[before:]
        assert [row["a"] for row in rows] == part["a"][:]
        assert [row["b"].tolist() for row in rows] == part["b"][:]


def test_a_format_makes_no_difference():
    """Nor do the columns it shows."""
    dataset = Dataset.from_dict({"a": [1, 2], "b": [3, 4]}).with_format("torch", columns=["a"])
    store = StreamStore(fields={"a": Value("int64"), "b": Value("int64")})

    store.from_dataset(dataset)

    assert list(store) == [{"a": 1, "b": 3}, {"a": 2, "b": 4}]


def test_columns_of_other_types_come_in_where_every_value_fits():
    """int8 into int64, whole floats into integers, lists into arrays; nulls of no type are holes."""
    dataset = Dataset.from_dict(
        {"i": [1, 2], "f": [1.0, 2.0], "m": [[[1, 2]], [[3, 4]]], "n": [None, None]},
        features=Features(i=Value("int8"), f=Value("float64"), m=List(List(Value("int32"))), n=Value("null")),
    )
    fields = {"i": Value("int64"), "f": Value("int16"), "m": Array2D((1, 2), "float32"), "n": List(Value("bool"))}
    store = StreamStore(fields=fields)

    store.from_dataset(dataset)

    assert [(row["i"], row["f"], row["m"].tolist()) for row in store] == [(1, 1, [[1, 2]]), (2, 2, [[3, 4]])]


def dataset_in_batches(table: pa.Table, n: int) -> Dataset:
    """A dataset whose Arrow table has batches of n rows."""
    return Dataset(datasets.table.InMemoryTable(pa.Table.from_batches(table.to_batches(max_chunksize=n))))


BAD_LAST_ROWS = {
    "too large": {"a": pa.array([1, 2, 3, 4, 300]), "b": pa.array([[1], [2], [3], [4], [5]])},
    "not whole": {"a": pa.array([1, 2, 3, 4, 0.5]), "b": pa.array([[1], [2], [3], [4], [5]])},
    "hole in a list": {"a": pa.array([1, 2, 3, 4, 5]), "b": pa.array([[1], [2], [3], [4], [5, None]])},
    "all missing": {"a": pa.array([1, 2, 3, 4, None]), "b": pa.array([[1], [2], [3], None, None])},
    "step": {"a": pa.array([1, 2, 3, 4, 5]), "b": pa.array([[1]] * 5), "t": pa.array([0, 1, 2, 3, 3])},
    "step without number": {
        "a": pa.array([1, 2, 3, 4, 5]),
        "b": pa.array([[1]] * 5),
        "t": pa.array([0, 1, 2, 3, None]),
    },
    "negative step": {"a": pa.array([1]), "b": pa.array([[1]]), "t": pa.array([-1])},
    "step of text": {"a": pa.array([1]), "b": pa.array([[1]]), "t": pa.array(["1"])},
}


@pytest.mark.parametrize("is_selected", [False, True], ids=["whole", "selected"])
@pytest.mark.parametrize("fault", BAD_LAST_ROWS)
def test_a_bad_row_in_a_later_batch_leaves_nothing_behind(fault, is_selected):
    """All of a dataset or none of it, though it is read in parts."""
    table = pa.table(BAD_LAST_ROWS[fault])
    dataset = dataset_in_batches(table, 2)
    if is_selected:
        dataset = dataset.select(range(len(dataset)))
    store = StreamStore(fields={"a": Value("int8"), "b": List(Value("int64"))})
    store.append(0, ["a"], [1])
    before = facts(store)

    with pytest.raises(SchemaError):
        store.from_dataset(dataset, step="t" if "t" in table.column_names else None)

    assert facts(store) == before
    store.append(0, ["b"], [[2]])
    assert next(iter(store))["b"].tolist() == [2]


def test_a_bad_row_decides_no_kind():
    """Fields that were only named are as open as before."""
    store = StreamStore(fields=["a", "b"])
    dataset = dataset_in_batches(pa.table({"a": pa.array([1, 2, 2**53 + 1]), "b": pa.array([[1], [2], [3]])}), 1)

    with pytest.raises(SchemaError, match=r"'a'"):
        store.from_dataset(dataset)
    store.append(0, ["a", "b"], [[1.0], 2.0])

    assert [alike.tolist() if hasattr(alike, "tolist") else alike for alike in next(iter(store)).values()] == [
        [1.0],
        2.0,
    ]


def test_nobody_sees_half_of_a_dataset(tmp_path):
    """A reader has none of it while it is read, and all of it afterwards."""
    store = StreamStore(tmp_path / "s", fields={"a": Value("int64")})
    reader = StreamStore.open(tmp_path / "s")
    seen = []
    dataset = dataset_in_batches(pa.table({"a": pa.array(range(6))}), 2)
    wrapped = hf.batches

    def watched(given: Any) -> Any:
        for batch in wrapped(given):
            yield batch
            seen.append((reader.refresh(), len(store)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hf, "batches", watched)
        store.from_dataset(dataset)

    assert seen == [(0, 0)] * 3
    assert reader.refresh() == len(store) == 6


def test_a_stream_that_comes_from_a_dataset_outgrows_its_bound():
    """A bounded stream keeps the newest steps of a dataset that is larger than itself."""
    store = StreamStore(fields={"a": Value("int64")}, max_tokens=3)

    store.from_dataset(dataset_in_batches(pa.table({"a": pa.array(range(10))}), 2))

    assert (store.first, [step["a"] for step in store]) == (7, [7, 8, 9])


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (Dataset.from_dict({"b": [1]}), SchemaError, r"\['a'\].*\['b'\]"),
        (Dataset.from_dict({"a": ["text"]}), SchemaError, "'a'"),
        (datasets.DatasetDict(train=Dataset.from_dict({"a": [1]})), SchemaError, "split"),
        (Dataset.from_dict({"a": [1]}).to_iterable_dataset(), SchemaError, "IterableDataset"),
        ({"a": [1]}, SchemaError, "dict"),
        (None, SchemaError, "NoneType"),
    ],
    ids=["no column", "text", "splits", "iterable", "dict", "None"],
)
def test_what_is_no_dataset_of_this_stream_is_refused(given, error, message):
    """The message says what came."""
    with pytest.raises(error, match=message):
        StreamStore(fields={"a": Value("int64")}).from_dataset(given)


def test_a_missing_column_is_an_error_unless_it_is_allowed():
    """The error names the field and what there is, and the stream is unchanged; allowed, the steps are without it."""
    store = store_of({"a": Value("int64"), "b": Value("int64")}, [{"a": 0, "b": 1}])
    before, lacking = facts(store), Dataset.from_dict({"a": [5, 6], "bee": [7, 8]})

    with pytest.raises(SchemaError, match=r"\['b'\] are no columns .*\['a', 'bee'\]; .*missing=\"null\""):
        store.from_dataset(lacking)
    with pytest.raises(ConfigError, match="missing='nul': one of 'error', 'null'"):
        store.from_dataset(lacking, missing="nul")
    assert facts(store) == before

    store.from_dataset(lacking, missing="null")
    assert list(store) == [{"a": 0, "b": 1}, {"a": 5}, {"a": 6}]
    with pytest.raises(SchemaError, match=r"\['a', 'b'\] are no columns"):
        store.from_dataset(Dataset.from_dict({"c": [1]}), missing="null")


def test_an_unknown_step_column_is_named():
    """With those there are."""
    with pytest.raises(UnknownColumn, match=r"'t'.*\['a'\]"):
        StreamStore(fields={"a": Value("int64")}).from_dataset(Dataset.from_dict({"a": [1]}), step="t")


def test_steps_that_are_used_up_are_an_error():
    """Behind the largest number there is no other."""
    store = StreamStore(fields={"a": Value("int64")})
    store.append(2**63 - 1, ["a"], [1])
    before = facts(store)

    with pytest.raises(SchemaError, match="step"):
        store.from_dataset(Dataset.from_dict({"a": [1, 2]}))

    assert facts(store) == before


# What it costs ------------------------------------------------------------------------------------------------


class MemoryWatch(threading.Thread):
    """How much memory of its own a process has had at most, looked at all the time; mapped files are not counted."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self._over = 0, threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.002):
            self.most = max(self.most, self.now())

    @staticmethod
    def now() -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.split("RssAnon:")[1].split()[0]) * 1024

    def stop(self) -> int:
        self._over.set()
        self.join()
        return self.most


def peak_of_to_dataset(n_steps: int, n_numbers: int) -> int:
    """Bytes that to_dataset needs at its peak, for a stream of steps with a list each."""
    store = StreamStore(fields={"x": List(Value("float64")), "y": Value("int64")})
    portion = n_steps // 8
    for begin in range(0, n_steps, portion):
        lists = np.full((portion, n_numbers), 0.5)
        store.append_many(range(begin, begin + portion), {"x": lists, "y": np.arange(portion)})
    del lists
    gc.collect()
    pa.default_memory_pool().release_unused()
    watch = MemoryWatch()
    before = watch.now()
    watch.start()
    dataset = store.to_dataset()
    most = watch.stop()
    assert len(dataset) == n_steps
    return most - before


@pytest.mark.parametrize(("n_steps", "n_numbers"), [(4_000, 1_000), (200_000, 4)], ids=["long steps", "short steps"])
def test_memory_does_not_depend_on_the_stream(n_steps, n_numbers, monkeypatch):
    """Four times the stream, the same peak: many short steps, and fewer long ones."""
    monkeypatch.undo()

    small, large = (in_child(peak_of_to_dataset, n, n_numbers) for n in (n_steps, 4 * n_steps))

    n_bytes = 3 * n_steps * n_numbers * 8
    assert large < small + max(n_bytes / 4, 8 << 20)


# The Hub ------------------------------------------------------------------------------------------------------

CLIENT = """
import json, sys
import numpy as np
from datasets import Array2D, Dataset, List, Value
from poolish import StreamStore
from poolish.tokens import hf

FIELDS = {"action": Value("int64"), "seen": List(Value("float32"))}
FIELDS |= {"map": Array2D((2, 2), "uint8"), "done": Value("bool")}

def recorded(first, n):
    store = StreamStore(fields=FIELDS)
    for i in range(n):
        step = first + i * i
        store.append(step, ["action", "seen"], [i, np.arange(i % 3) / 4])
        if i % 2:
            store.append(step, ["map", "done"], [np.full((2, 2), i), i == n - 1])
    return store

def told(store):
    batch = store[:]
    return [[step.number for step in store], batch["types"].tolist(), batch["values"].tolist()]

def loaded(name="user/stream", **options):
    store = StreamStore(fields=FIELDS)
    store.load_dataset(name, **options)
    return told(store)

def error_of(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except Exception as error:
        return [[kind.__name__ for kind in type(error).__mro__], str(error)]

def doubled(row):
    return {"twice": row["action"] * 2}

report = {}
train, test = recorded(3, 7), recorded(100, 4)
train.save_dataset("user/stream")
test.save_dataset("user/stream", split="test")
report["train"], report["test"] = told(train), told(test)
report["train again"], report["test again"] = loaded(), loaded(split="test")
both = StreamStore(fields=FIELDS)
both.load_dataset("user/stream")
both.load_dataset("user/stream", "test")
report["both"] = told(both)
report["old steps"] = error_of(both.load_dataset, "user/stream")
report["unchanged"] = told(both)

train.save_dataset("user/other", step="moment")
report["other"] = loaded("user/other", step="moment")
report["numbered anew"] = loaded("user/other")[0]

train.to_dataset(step="step").shuffle(seed=1).push_to_hub("user/shuffled")
report["unsorted"] = error_of(loaded, "user/shuffled")
report["sorted"] = loaded("user/shuffled", sort_by="step")

report["missing"] = error_of(loaded, "user/absent")
report["missing split"] = error_of(loaded, split="absent")
more = StreamStore(fields={"action": Value("int64"), "reward": Value("float32")})
report["missing column"] = error_of(more.load_dataset, "user/stream")
report["missing word"] = error_of(more.load_dataset, "user/stream", missing="none")
more.load_dataset("user/stream", missing="null")
report["left out"] = told(more)[1]
clash = StreamStore(fields={"step": Value("int64")})
clash.append(0, ["step"], [1])
report["clash"] = error_of(clash.save_dataset, "user/clash")
report["saved clash"] = error_of(clash.save_dataset, "user/clash", step="number")
again = StreamStore(fields={"step": Value("int64")})
again.load_dataset("user/clash", step="number")
report["clash again"] = told(again)

broken, again = StreamStore(fields=FIELDS), StreamStore(fields=FIELDS)
flags = train.to_dataset(step="step", extra={"break": [i in (2, 5) for i in range(7)]})
broken.from_dataset(flags, step="step", breaks="break")
broken.save_dataset("user/broken")
again.load_dataset("user/broken")
report["breaks"] = again._view().breaks().tolist()
report["no breaks"] = error_of(clash.save_dataset, "user/clash", step="number", breaks="step")

dataset = train.to_dataset()
report["in processes"] = dataset.map(doubled, num_proc=2)["twice"][:]
report["file"] = dataset.cache_files[0]["filename"]
json.dump(report, sys.stdout)
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> dict[str, Any]:
    """What one client met with that saved and loaded streams, and what the hub was asked."""
    with local_hub() as hub:
        return {**hub.told_by(CLIENT, tmp_path_factory.mktemp("home")), "repos": sorted(hub.repos)}


def test_breaks_come_back_from_the_hub(report):
    """``save_dataset`` writes them, ``load_dataset`` reads them, and a name that is a field's is refused."""
    assert report["breaks"] == [2, 5]
    assert "breaks='step' is a field" in report["no breaks"][1]


def test_a_stream_comes_back_from_the_hub(report):
    """The same tokens under the same numbers of steps, with gaps and holes; each split its own."""
    assert report["train"][0] == [3, 4, 7, 12, 19, 28, 39]
    assert report["train again"] == report["train"]
    assert report["test again"] == report["test"]
    assert report["both"] == [left + right for left, right in zip(report["train"], report["test"], strict=True)]


def test_steps_that_are_over_do_not_come_again(report):
    """Loading a split whose steps lie before the last one is an error that leaves the stream as it was."""
    assert "SchemaError" in report["old steps"][0]
    assert report["unchanged"] == report["both"]


def test_the_numbers_of_the_steps_have_the_name_one_chooses(report):
    """Loaded by the same name; by another one they are numbered anew."""
    assert report["other"] == report["train"]
    assert report["numbered anew"] == list(range(7))


def test_rows_in_another_order_can_be_sorted(report):
    """Unsorted they are refused, and the message says what to do."""
    assert "SchemaError" in report["unsorted"][0]
    assert "sort_by='step'" in report["unsorted"][1]
    assert report["sorted"] == report["train"]


def test_a_field_that_a_loaded_dataset_lacks_is_told(report):
    """As with a dataset in memory: an error, unless it may be left out."""
    assert "SchemaError" in report["missing column"][0]
    assert "['reward']" in report["missing column"][1]
    assert "ConfigError" in report["missing word"][0]
    assert report["left out"] == [0] * 7


def test_what_is_not_there_is_called_missing(report):
    """With the client's own errors, which name it."""
    assert "FileNotFoundError" in report["missing"][0]
    assert "absent" in report["missing"][1]
    assert "absent" in report["missing split"][1]


def test_a_field_called_step_needs_another_name_for_the_steps(report):
    """Nothing is pushed before that is known."""
    assert "SchemaError" in report["clash"][0]
    assert "'step'" in report["clash"][1]
    assert report["saved clash"] is None
    assert report["clash again"] == [[0], [0], [1]]


def test_a_dataset_can_be_mapped_by_several_processes(report):
    """Its file has a name, and workers find it."""
    assert report["in processes"] == [2 * i for i in range(7)]


def test_files_of_datasets_go_with_the_process(report):
    """Neither they nor their folder are left."""
    assert report["file"].endswith(".arrow")
    assert not Path(report["file"]).parent.exists()
