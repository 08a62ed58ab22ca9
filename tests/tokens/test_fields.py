"""Fields of a stream, declared by names, dtypes, Hugging Face features or a Schema, once."""

from __future__ import annotations

from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
from datasets import Array2D, ClassLabel, Features, LargeList, List, Sequence, Value

from poolish import Field, Schema, StreamStore
from poolish.errors import BadText, ConfigError, LimitExceeded, PoolishError, SchemaError
from tests.tokens.facts import in_words

torch.set_num_threads(1)

NUMBERS = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
]


def shown(fields: Any) -> str:
    """How a stream with these fields describes them."""
    text = repr(StreamStore(fields=fields))
    return text[text.index("(") + 1 : text.rindex(")")]


# By name ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields", [["a", "b"], ("a", "b"), iter(["a", "b"]), {"a": None, "b": None}, np.array(["a", "b"])], ids=in_words
)
def test_names_alone_are_float64_of_any_kind(fields):
    """Scalar or sequence is decided by what is first written."""
    store = StreamStore(fields=fields)
    assert repr(store).count("float64, scalar or sequence as first written") == 2

    store.append(0, ["a", "b"], [1, [2, True]])

    assert repr(store) == "<StreamStore of 3 tokens in 1 steps (a: float64, b: float64[any])>"
    assert store[:]["values"].view(np.float64).tolist() == [1.0, 2.0, 1.0]


def test_type_ids_count_in_the_order_of_declaration():
    """Whatever the names are; the store knows none of them."""
    names = ["reward", "done", "0", "step", "naïve name", "a" * 300]

    store = StreamStore(fields=names)

    assert list(store.field_to_type.items()) == [(name, i) for i, name in enumerate(names)]


def test_256_fields_are_the_most():
    """Each has an id of one byte; the last one works like the first."""
    store = StreamStore(fields=[f"f{i}" for i in range(256)])
    for step in range(2):
        store.append(step, ["f0", "f255"], [1.0, 2.0])

    assert store[:]["types"].tolist() == [0, 255, 0, 255]
    with pytest.raises(LimitExceeded, match=r"257 fields.*1 to 256"):
        StreamStore(fields=[f"f{i}" for i in range(257)])


@pytest.mark.parametrize(
    ("fields", "error", "says"),
    [
        ([], LimitExceeded, "0 fields"),
        ({}, LimitExceeded, "0 fields"),
        ("action", SchemaError, "'action'.*list of names"),
        (5, SchemaError, "5.*list of names"),
        ({"a", "b"}, SchemaError, "order"),
        (["a", "b", "a"], SchemaError, "'a'.*twice"),
        (["\u00e9", "e\u0301"], SchemaError, "'\u00e9'.*twice"),
        (["a", ""], SchemaError, "not empty"),
        (["a", None], SchemaError, "None"),
        (["a", 5], SchemaError, "5"),
        ([("a", "int64")], SchemaError, "'a', 'int64'"),
        ({5: "int64"}, SchemaError, "5"),
        (["\ud800"], BadText, "UTF-8"),
        (b"ab", SchemaError, "97|bytes|list of names"),
        ({"a": "int65"}, SchemaError, "'a'.*'int65'"),
        ({"a": object}, SchemaError, "'a'"),
        ({"a": {}}, SchemaError, "'a'.*members"),
        ({"a": []}, SchemaError, "'a'"),
        ({"a": "string"}, SchemaError, "'a'.*numbers and bools.*text"),
        ({"a": str}, SchemaError, "'a'.*numbers and bools.*text"),
        ({"a": "bfloat16"}, SchemaError, "'a'.*numbers and bools.*bfloat16"),
        ({"a": "complex64"}, SchemaError, "'a'.*complex64"),
        ({"a": pa.string()}, SchemaError, "'a'.*numbers and bools"),
        ({"a": pa.timestamp("s")}, SchemaError, "'a'.*numbers and bools"),
        ({"a": pa.list_(pa.string())}, SchemaError, "'a'.*numbers and bools"),
        ({"a": pa.struct([("x", pa.int64())])}, SchemaError, "'a'.*numbers and bools"),
        ({"a": pa.list_(pa.list_(pa.int64()))}, SchemaError, "'a'.*(first dimension|numbers and bools)"),
        ({"a": Field("a", "float32", shape=(2, None))}, SchemaError, "'a'.*first dimension"),
        ({"a": Field("a", "float32", shape=(None, 0))}, SchemaError, "'a'.*no numbers"),
        ({"a": Value("string")}, SchemaError, "'a'.*numbers and bools"),
        ({"a": Value("timestamp[s]")}, SchemaError, "'a'.*numbers and bools"),
        ({"a": datasets.Image()}, SchemaError, "'a'.*numbers and bools"),
        ({"a": List(Value("string"))}, SchemaError, "'a'.*numbers and bools"),
        ({"a": {"x": {"y": "text"}}}, SchemaError, "a.x.y"),
        ({"a": List({"x": Value("int64")})}, SchemaError, "'a'.*numbers and bools"),
        (Features({"a": Value("string")}), SchemaError, "'a'.*numbers and bools"),
        (Schema.of({"a": "string"}), SchemaError, "'a'.*numbers and bools"),
    ],
    ids=in_words,
)
def test_fields_that_make_no_stream_are_refused(fields, error, says, tmp_path):
    """By what is wrong with which of them; nothing is left on disk, and other fields may be given then."""
    with pytest.raises(error, match=f"(?s){says}") as caught:
        StreamStore(tmp_path / "s", fields=fields)

    assert isinstance(caught.value, PoolishError)
    assert list(tmp_path.iterdir()) == []
    store = StreamStore()
    with pytest.raises(error):
        store.define_fields(fields)
    store.define_fields(["a"])
    assert dict(store.field_to_type) == {"a": 0}


# By dtype -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NUMBERS)
def test_a_dtype_decides_how_numbers_are_kept(name):
    """Each of NumPy's numbers, by whatever names it."""
    for declared in [
        str,
        np.dtype,
        lambda name: np.dtype(name).type,
        lambda name: pa.from_numpy_dtype(np.dtype(name)),
        lambda name: Value(name),
        lambda name: Field("other", name),
        lambda name: getattr(torch, name),
    ]:
        assert shown({"x": declared(name)}) == f"x: {name}"


@pytest.mark.parametrize(("declared", "name"), [(int, "int64"), (float, "float64"), (bool, "bool"), ("int", "int64")])
def test_python_types_are_dtypes(declared, name):
    """As everywhere in poolish."""
    assert shown({"x": declared}) == f"x: {name}"


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        (List(Value("float32")), "x: float32[any]"),
        (LargeList(Value("float32")), "x: float32[any]"),
        (Sequence(Value("float32")), "x: float32[any]"),
        ([Value("float32")], "x: float32[any]"),
        (List(Value("int8"), length=4), "x: int8[4]"),
        (Array2D((2, 3), "float32"), "x: float32[2, 3]"),
        (Array2D((None, 3), "float32"), "x: float32[any, 3]"),
        (List(List(Value("float32"), length=3)), "x: float32[any, 3]"),
        (List(List(Value("float32"), length=3), length=2), "x: float32[2, 3]"),
        (ClassLabel(names=["no", "yes"]), "x: int64"),
        (pa.list_(pa.int16()), "x: int16[any]"),
        (pa.large_list(pa.int16()), "x: int16[any]"),
        (pa.list_(pa.int16(), 4), "x: int16[4]"),
        (pa.list_(pa.list_(pa.int16(), 4)), "x: int16[any, 4]"),
        (pa.fixed_shape_tensor(pa.float32(), (2, 2)), "x: float32[2, 2]"),
        (Field("other", "uint8", shape=(3, 2)), "x: uint8[3, 2]"),
        (Field("other", "uint8", shape=(None, 2)), "x: uint8[any, 2]"),
    ],
    ids=in_words,
)
def test_features_and_arrow_types_say_the_shape(declared, text):
    """Lists of any length, of one length, and arrays."""
    assert shown({"x": declared}) == text


@pytest.mark.parametrize(
    "fields",
    [
        Features({"a": Value("int64"), "b": List(Value("float32"))}),
        Schema.of({"a": "int64", "b": pa.list_(pa.float32())}),
        [Field("a", "int64"), Field("b", pa.list_(pa.float32()))],
        {"a": "int64", "b": pa.list_(pa.float32())},
        pa.schema([("a", pa.int64()), ("b", pa.list_(pa.float32()))]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whole_descriptions_will_do(fields):
    """Features, a Schema, Fields, a dict, Arrow's schema."""
    assert shown(fields) == "a: int64, b: float32[any]"


def test_names_and_dtypes_may_be_mixed():
    """A field without a dtype is one that was only named."""
    text = shown({"a": None, "b": "int8"})

    assert text == "a: float64, scalar or sequence as first written, b: int8"


def test_features_come_back():
    """As Hugging Face describes them, the labels of a ClassLabel too; what was only named is a list until decided."""
    declared = {
        "label": ClassLabel(names=["no", "yes"]),
        "score": Value("float16"),
        "tokens": List(Value("int32")),
        "grid": Array2D((2, 3), "float32"),
    }
    store = StreamStore(fields=declared)

    features = store.features

    assert features == Features(declared)
    assert features["label"].names == ["no", "yes"]


# Once ---------------------------------------------------------------------------------------------------------


def test_fields_may_be_defined_later():
    """Once; until then the stream is empty and says so."""
    store = StreamStore()
    assert dict(store.field_to_type) == {}
    assert "without fields" in repr(store)

    store.define_fields({"a": "int8"})

    assert dict(store.field_to_type) == {"a": 0}
    with pytest.raises(SchemaError, match="fields already"):
        store.define_fields({"a": "int8"})
    store.append(0, ["a"], [1])
    assert len(store) == 1


def test_fields_may_be_defined_later_for_a_path(tmp_path):
    """Nothing is made before."""
    store = StreamStore(tmp_path / "s")
    assert list(tmp_path.iterdir()) == []

    store.define_fields(["a"])
    store.append(0, ["a"], [0.5])
    store.close()

    again = StreamStore(tmp_path / "s")
    assert [dict(step) for step in again] == [{"a": 0.5}]
    assert repr(again).startswith("<StreamStore of 1 tokens in 1 steps (a: float64) at ")


def test_a_stream_that_is_there_keeps_its_fields(tmp_path):
    """The same may be given again, others are refused with what is there."""
    with StreamStore(tmp_path / "s", fields={"a": "int8", "b": None}) as store:
        store.append(0, ["a", "b"], [1, [0.5]])

    with pytest.raises(SchemaError, match=r"other fields \(a: int8, b: float64"):
        StreamStore(tmp_path / "s", fields={"a": "int16", "b": None})
    with pytest.raises(SchemaError, match="other fields"):
        StreamStore(tmp_path / "s", fields=["b", "a"])
    with StreamStore(tmp_path / "s", fields={"a": "int8", "b": None}) as store:
        with pytest.raises(SchemaError, match="'b' holds a list"):
            store.append(1, ["b"], [0.5])
        store.append(1, ["a", "b"], [2, []])
        assert [step["b"].tolist() for step in store] == [[0.5], []]


def test_a_closed_stream_has_no_fields_to_define():
    """Closed is closed: a stream without a path is gone."""
    store = StreamStore(fields=["a"])
    store.close()

    with pytest.raises(ConfigError, match="closed"):
        store.define_fields(["b"])


@pytest.mark.parametrize("max_tokens", [0, -1, 1.5, "9", True, np.float64(3)], ids=in_words)
def test_a_bound_is_a_whole_number_above_zero(max_tokens):
    """It is named in the error."""
    with pytest.raises(ConfigError, match="max_tokens="):
        StreamStore(fields=["a"], max_tokens=max_tokens)


@pytest.mark.parametrize("max_tokens", [2**62, 2**63, 10**30])
def test_a_bound_that_is_never_reached_is_none(max_tokens):
    """However large the number is."""
    store = StreamStore(fields=["a"], max_tokens=max_tokens)
    for step in range(3):
        store.append(step, ["a"], [0.5])

    assert (len(store), store.first) == (3, 0)


def ends_of(dtype: str) -> tuple[list[Any], list[Any]]:
    """The first and the last number of a dtype, and those that are just too much."""
    if dtype == "bool":
        return [False, True], [2, -1]
    if dtype.startswith("float"):
        info = np.finfo(dtype)
        beyond = [] if dtype == "float64" else [float(info.max) * 1.0001, -float(info.max) * 1.0001]
        return [float(info.max), float(info.min), float(info.smallest_subnormal), float("-inf")], beyond
    low, high = int(np.iinfo(dtype).min), min(int(np.iinfo(dtype).max), 2**63 - 1)
    return [low, high], [low - 1, high + 1]


@pytest.mark.parametrize("dtype", NUMBERS)
def test_the_ends_of_a_dtype_come_back_and_nothing_beyond(dtype):
    """A token is an int64, so of uint64 it is the lower half."""
    inside, beyond = ends_of(dtype)
    store = StreamStore(fields={"x": dtype})
    for step, value in enumerate(inside):
        store.append(step, ["x"], [value])
    for value in beyond:
        with pytest.raises(SchemaError, match=f"{dtype} cannot hold"):
            store.append(9, ["x"], [value])

    assert [step["x"] for step in store] == inside
    decoded = store.decode(store[:]["values"], "x")
    assert (decoded.dtype, decoded.tolist()) == (dtype, inside)


@pytest.mark.parametrize("path", [["a", "b"], {"a": "int64"}, 5], ids=in_words)
def test_fields_in_the_place_of_the_path_are_told(path):
    """The first argument is where the stream is; whoever gives fields there learns how they are given."""
    with pytest.raises(ConfigError, match=r"fields= by name"):
        StreamStore(path)
