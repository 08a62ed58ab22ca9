"""A value comes back as the number that it was, from whatever holds it, or it is refused and nothing has changed."""

from __future__ import annotations

import array
import datetime
import decimal
import fractions
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from poolish import Field, StreamStore
from poolish.errors import NumberTooLarge, SchemaError
from tests.effort import times
from tests.tokens.facts import WAYS, facts, warm

pytestmark = pytest.mark.kernels

torch.set_num_threads(1)

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64"]
DTYPES = ["bool", *INTEGERS, *FLOATS]

each_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


# One number ---------------------------------------------------------------------------------------------------


def token(number: bool | int | float, dtype: str) -> int | None:
    """The token of a number in a field, None where the field cannot hold it."""
    if dtype in FLOATS:
        limit = math.inf if dtype == "float64" else float(np.finfo(dtype).max)
        try:
            wide = float(number)
        except OverflowError:
            return None
        is_exact = isinstance(number, float) or int(wide) == number
        return int(np.array(wide).view(np.int64)) if is_exact and not limit < abs(wide) < math.inf else None
    low, high = (0, 1) if dtype == "bool" else (int(np.iinfo(dtype).min), min(int(np.iinfo(dtype).max), 2**63 - 1))
    is_whole = not isinstance(number, float) or number.is_integer()
    return int(number) if is_whole and low <= number <= high else None


def is_same(one: Any, number: Any) -> bool:
    """Whether a dtype has held a number as it was; NaN is NaN, and -0.0 is not 0.0 for one that tells them apart."""
    if isinstance(number, float) and math.isnan(number):
        return isinstance(one, float) and math.isnan(one)
    return bool(one == number) and (
        number != 0 or not isinstance(number, float) or math.copysign(1, one) == math.copysign(1, number)
    )


def holders(number: bool | int | float) -> Iterator[tuple[str, Any]]:
    """Everything that holds this very number."""
    yield "python", number
    for dtype in DTYPES:
        try:
            with np.errstate(all="ignore"):
                one = np.dtype(dtype).type(number)
        except (OverflowError, ValueError):
            continue
        if (type(number) is bool and dtype != "bool") or not is_same(one.item(), number):
            continue
        yield f"{dtype} scalar", one
        yield f"{dtype} array", np.array(one)
        yield f"{dtype} swapped", np.array(one, np.dtype(dtype).newbyteorder())
        yield f"{dtype} tensor", torch.from_numpy(np.array(one))
        yield f"{dtype} read-only", np.broadcast_to(one, (3,))[1:2].reshape(())
    if isinstance(number, float):
        yield "long double", np.longdouble(number)
        yield "long double array", np.array(number, np.longdouble)
        yield "tensor with a gradient", torch.tensor(number, dtype=torch.float64, requires_grad=True)
        if math.isnan(number) or number == torch.tensor(number, dtype=torch.bfloat16).item():
            yield "bfloat16", torch.tensor(number, dtype=torch.bfloat16)


ENDS = [0, 1, 2, 127, 128, 255, 256, 65504, 65505, 65520, 2**24 + 1, 2**31, 2**32, 2**53, 2**53 + 1, 2**63 - 1, 2**63]
ENDS += [2**64 - 1, 2**64, 10**22, 10**23, 10**400, -1, -128, -129, -(2**53) - 1, -(2**63), -(2**63) - 1]
FLOAT_ENDS = [
    0.0,
    -0.0,
    0.5,
    math.nan,
    math.inf,
    -math.inf,
    5e-324,
    2.0**-24,
    65504.0,
    65505.0,
    65520.0,
    3.4028234663852886e38,
]
FLOAT_ENDS += [3.5e38, 1.7976931348623157e308, 2.0**53, 2.0**63, -(2.0**63), 1e300]
any_number = st.booleans() | st.sampled_from(ENDS) | st.integers() | st.sampled_from(FLOAT_ENDS) | st.floats()

_STORES: dict[str, tuple[StreamStore, list[int]]] = {}


def one_store(dtype: str) -> tuple[StreamStore, int]:
    """A stream of one such field, for many appends, and its next step."""
    if dtype not in _STORES:
        _STORES[dtype] = warm({"x": dtype}), [0]
    store, step = _STORES[dtype]
    step[0] += 1
    return store, step[0]


def refusal_of(way: Any, store: StreamStore, step: int, value: Any) -> SchemaError | None:
    """The error that a value was refused with, None if it was taken."""
    try:
        way(store, step, "x", value)
    except SchemaError as error:
        return error
    return None


@settings(max_examples=times(60))
@given(any_number, st.sampled_from(DTYPES))
def test_a_number_is_kept_exactly_or_refused(number, dtype):
    """From Python, NumPy and torch, by every way in; a refusal of a whole number is a NumberTooLarge."""
    expected = token(number, dtype)
    for holder, value in holders(number):
        for name, way in WAYS.items():
            store, step = one_store(dtype)
            before = len(store)

            refusal = refusal_of(way, store, step, value)

            assert (refusal is None) == (expected is not None), (holder, name)
            assert len(store) == before + (refusal is None)
            if refusal is not None:
                assert "'x'" in str(refusal)
                assert isinstance(refusal, NumberTooLarge) or isinstance(number, float) or "float" in holder
            elif dtype in FLOATS and number != number:
                assert math.isnan(store[-1]["values"].view(np.float64).item())
            else:
                assert store[-1]["values"].item() == expected, (holder, name)


@each_way
def test_numbers_come_back_as_python_numbers_of_their_kind(way):
    """True as True, 3 as 3, 0.5 as 0.5: by the field, whatever was appended."""
    store = warm({"flag": "bool", "count": "uint8", "score": "float16"})
    way(store, 1, "flag", 1.0)
    way(store, 2, "count", np.float32(3))
    way(store, 3, "score", True)

    values = [value for step in store.steps(1) for value in step.values()]

    assert values == [True, 3, 1.0]
    assert list(map(type, values)) == [bool, int, float]


def test_a_refusal_names_the_place_the_rule_the_value_and_what_to_do():
    """As a user reads it at three in the morning."""
    store = warm({"x": "int8"})

    with pytest.raises(NumberTooLarge) as caught:
        store.append([1, 2], ["x", "x"], [5, 300])

    for word in ("entry 1", "step 2", "'x'", "int8", "300", "convert it before append"):
        assert word in str(caught.value)


# Many numbers -------------------------------------------------------------------------------------------------


class Other(np.ndarray):
    """An array of another class."""


def holders_of_many(numbers: list[Any]) -> Iterator[tuple[str, Any]]:
    """Everything that holds these very numbers in a row."""
    yield "list", list(numbers)
    yield "tuple", tuple(numbers)
    yield "list of NumPy's", [np.float64(n) if isinstance(n, float) else n for n in numbers]
    yield "list of 0-d arrays", [np.array(n) for n in numbers]
    yield (
        "list of tensors",
        [torch.tensor(n, dtype=torch.float64 if isinstance(n, float) else torch.int64) for n in numbers],
    )
    for dtype in DTYPES:
        try:
            with np.errstate(all="ignore"):
                whole = np.array(numbers, dtype)
        except (OverflowError, ValueError):
            continue
        if not all(is_same(one, n) for one, n in zip(whole.tolist(), numbers, strict=True)):
            continue
        gaps = np.repeat(whole, 3)[::3]
        yield f"{dtype} array", whole
        yield f"{dtype} with gaps", gaps
        yield f"{dtype} backwards", whole[::-1].copy()[::-1]
        yield f"{dtype} swapped", whole.astype(whole.dtype.newbyteorder())
        yield f"{dtype} unaligned", np.frombuffer(b"\0" + whole.tobytes(), np.uint8)[1:].view(dtype)
        yield f"{dtype} subclass", whole.view(Other)
        yield f"{dtype} tensor", torch.from_numpy(whole.copy())
        yield f"{dtype} tensor with gaps", torch.from_numpy(np.repeat(whole, 3))[::3]
        yield f"{dtype} series", pd.Series(whole)
        yield f"{dtype} of Arrow", pa.array(whole)
        yield f"{dtype} of polars", pl.Series(whole.tolist(), dtype=pl.Boolean) if dtype == "bool" else pl.Series(whole)
        if dtype != "float16":
            yield f"{dtype} memory", memoryview(whole)
        if dtype in ("int8", "int32", "float64"):
            yield (
                f"{dtype} array.array",
                array.array({"int8": "b", "int32": "i", "float64": "d"}[dtype], whole.tolist()),
            )
    if numbers and all(isinstance(n, float) for n in numbers):
        yield "long doubles", np.array(numbers, np.longdouble)
        yield "gradients", torch.tensor(numbers, dtype=torch.float64, requires_grad=True)
    if repr(numbers) == repr(list(range(len(numbers)))):  # -0.0 equals 0, and is not in a range
        yield "range", range(len(numbers))


rows = st.one_of(
    st.lists(st.integers(-130, 300) | st.integers(-(2**62), 2**62), max_size=4),
    st.lists(st.floats(width=16) | st.floats(), max_size=4),
    st.integers(0, 5).map(lambda n: list(range(n))),
)


@settings(max_examples=times(25))
@given(rows, st.sampled_from(DTYPES))
@example([-0.0], "float16")
@example([math.nan], "float16")
@example([math.nan, 0.5], "float64")
def test_numbers_in_a_row_are_kept_exactly_or_refused(numbers, dtype):
    """From lists, arrays however they lie in memory, tensors, pandas, polars and Arrow, by every way in."""
    expected = [token(number, dtype) for number in numbers]
    arrow = pa.from_numpy_dtype(np.dtype(dtype))
    for holder, value in holders_of_many(numbers):
        for name, way in WAYS.items():
            if dtype + "s" not in _STORES:
                _STORES[dtype + "s"] = warm({"x": pa.list_(arrow)}), [0]
            store, step = _STORES[dtype + "s"]
            step[0] += 1
            before = len(store)

            refusal = refusal_of(way, store, step[0], value)

            assert (refusal is None) == (None not in expected), (holder, name, refusal)
            found = store[before:]["values"]
            if refusal is not None:
                assert len(found) == 0
            elif dtype in FLOATS:
                assert repr(found.view(np.float64).tolist()) == repr(list(map(float, numbers)))
            else:
                assert found.tolist() == expected, (holder, name)


SHAPED = np.arange(6, dtype=np.float32).reshape(2, 3)


@each_way
@pytest.mark.parametrize(
    "value",
    [
        SHAPED,
        SHAPED.tolist(),
        tuple(map(tuple, SHAPED.tolist())),
        list(SHAPED),
        np.asfortranarray(SHAPED),
        SHAPED.astype(">f8"),
        np.repeat(SHAPED, 2, axis=1)[:, ::2],
        torch.from_numpy(SHAPED),
        torch.from_numpy(SHAPED.T.copy()).T,
        [torch.from_numpy(row) for row in SHAPED],
        pd.DataFrame(SHAPED),
    ],
    ids=["array", "lists", "tuples", "rows", "fortran", "swapped", "gaps", "tensor", "transposed", "tensors", "frame"],
)
def test_arrays_come_back_in_shape(way, value):
    """Whatever order they lie in memory in."""
    for shape in ((2, 3), (None, 3)):
        store = warm({"x": Field("x", "float32", shape=shape)})

        way(store, 1, "x", value)

        (step,) = store.steps(1)
        assert np.array_equal(step["x"], SHAPED)
        assert step["x"].dtype == np.float32


# What is no number --------------------------------------------------------------------------------------------


class Throws:
    """Fails when it is looked at."""

    def __array__(self, dtype=None, copy=None):
        raise ZeroDivisionError("no array today")


class Unspeakable:
    """Fails when it is shown."""

    def __repr__(self):
        raise ZeroDivisionError("no repr today")


def nested(depth: int) -> list[Any]:
    value: list[Any] = [1.0]
    for _ in range(depth):
        value = [value]
    return value


def itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def sparse() -> torch.Tensor:
    return torch.tensor([1.0, 0.0]).to_sparse()


NO_NUMBERS: dict[str, Any] = {
    "None": None,
    "text": "1",
    "bytes": b"1",
    "bytearray": bytearray(b"1"),
    "complex": 1 + 0j,
    "decimal": decimal.Decimal(1),
    "fraction": fractions.Fraction(1),
    "date": datetime.date(2026, 1, 1),
    "numpy time": np.datetime64("2026-01-01"),
    "numpy duration": np.timedelta64(1, "s"),
    "numpy text": np.str_("1"),
    "numpy complex": np.complex64(1),
    "NaT": pd.NaT,
    "NA": pd.NA,
    "dict": {"a": 1},
    "set": {1},
    "generator": (n for n in [1]),
    "object": object(),
    "class": np.float64,
    "unspeakable": Unspeakable(),
    "[None]": [None],
    "[text]": ["1"],
    "[complex]": [1j],
    "[dict]": [{}],
    "[[1], 2]": [[1], 2],
    "[[1], [1, 2]]": [[1], [1, 2]],
    "nested": nested(5),
    "nested deeply": nested(5_000),
    "itself": itself(),
    "array of objects": np.array([1, 2], object),
    "array of None": np.array([None, 1]),
    "array of text": np.array(["1"]),
    "array of complex": np.array([1 + 0j]),
    "array of times": np.array(["2026-01-01"], "datetime64[s]"),
    "records": np.zeros(2, [("a", "i4"), ("b", "f4")]),
    "0-d object": np.array(None),
    "masked": np.ma.array([1.0, 2.0], mask=[0, 1]),
    "masked one": np.ma.masked,
    "series with NA": pd.Series([1, None], dtype="Int64"),
    "series of text": pd.Series(["1"]),
    "Arrow with null": pa.array([1, None]),
    "Arrow large with null": pa.array([2**53 + 1, None]),
    "Arrow text": pa.array(["1"]),
    "Arrow lists": pa.array([[1], [2]]),
    "polars with null": pl.Series([1, None]),
    "long double": np.array([1, 1 + np.finfo(np.longdouble).eps], np.longdouble),
    "one long double": 1 + np.finfo(np.longdouble).eps,
    "complex tensor": torch.tensor([1 + 0j]),
    "meta tensor": torch.ones(2, device="meta"),
    "sparse tensor": sparse(),
}  # fmt: skip


@pytest.mark.parametrize("what", NO_NUMBERS)
def test_what_is_no_number_is_refused(what):
    """By a SchemaError that names the field and says what to do; the stream stays as it was, and usable."""
    store = warm({"one": "float64", "many": pa.list_(pa.float64()), "named": None})
    before = facts(store)
    for way in WAYS.values():
        for name in ("one", "many", "named"):
            with pytest.raises(SchemaError, match=rf"(?s)'{name}'.*convert it before append") as caught:
                way(store, 1, name, NO_NUMBERS[what])
            assert len(str(caught.value)) < 500
            assert facts(store) == before

    store.append(1, ["one", "many", "named"], [0.5, [0.5], 0.5])

    assert len(store) == before["lengths"][0] + 3


@each_way
def test_an_error_of_the_value_itself_keeps_its_type(way):
    """And nothing was written."""
    store = warm({"x": "float64"})
    before = facts(store)

    with pytest.raises(ZeroDivisionError, match="no array today"):
        way(store, 1, "x", Throws())

    assert facts(store) == before


@each_way
def test_a_tensor_that_is_negated_when_it_is_read_is_read_so(way):
    """torch keeps the imaginary part of a conjugate as it was, with a note to turn its sign."""
    store = warm({"x": pa.list_(pa.float32()), "y": "float32"})
    whole = torch.tensor([1 + 2j]).conj().imag
    assert whole.is_neg()

    way(store, 1, "x", whole)
    way(store, 2, "y", whole[0])

    assert [value for step in store.steps(1) for value in step.values()] == [-2.0, -2.0]


@pytest.mark.parametrize(
    ("shape", "value", "rule"),
    [
        ((), [1.0], "one number"),
        ((), np.ones(1), "one number"),
        ((), torch.ones(1), "one number"),
        ((), [], "one number"),
        ((None,), 1.0, "a list of numbers"),
        ((None,), np.float32(1), "a list of numbers"),
        ((None,), np.array(1.0), "a list of numbers"),
        ((None,), torch.tensor(1.0), "a list of numbers"),
        ((None,), np.ones((1, 2)), "a list of numbers"),
        ((None,), [[1.0]], "a list of numbers"),
        ((3,), [1.0, 2.0], "3 numbers"),
        ((3,), np.ones(4), "3 numbers"),
        ((3,), np.ones((3, 1)), "3 numbers"),
        ((3,), torch.ones(2), "3 numbers"),
        ((3,), [], "3 numbers"),
        ((2, 3), np.ones((3, 2)), "(2, 3)"),
        ((2, 3), np.ones(6), "(2, 3)"),
        ((2, 3), [], "(2, 3)"),
        ((None, 3), np.ones((3, 2)), "(any, 3)"),
        ((None, 3), [1.0, 2.0, 3.0], "(any, 3)"),
        ((None, 3), np.ones((1, 3, 1)), "(any, 3)"),
    ],
)  # fmt: skip
def test_another_shape_is_refused(shape, value, rule):
    """The message says which one the field has."""
    store = warm({"x": Field("x", "float32", shape=shape)} if shape else {"x": "float32"})
    before = facts(store)
    for name, way in WAYS.items():
        with pytest.raises(SchemaError, match="'x'") as caught:
            way(store, 1, "x", value)
        assert name == "column" or rule in str(caught.value)
        assert facts(store) == before


@each_way
@pytest.mark.parametrize(
    ("shape", "value"),
    [((None,), []), ((None,), np.empty(0)), ((None,), torch.empty(0)), ((None, 3), np.empty((0, 3))), ((None, 3), [])],
)
def test_a_list_may_be_empty(way, shape, value):
    """It is there all the same, and comes back in its shape."""
    store = warm({"x": Field("x", "float32", shape=shape)})

    way(store, 1, "x", value)

    (step,) = store.steps(1)
    assert step["x"].shape == tuple(n or 0 for n in shape)
    assert (len(store), store.n_steps) == (1, 2)


@each_way
def test_what_was_appended_is_a_copy(way):
    """What the caller does to his array or tensor afterwards is his business."""
    store = warm({"x": pa.list_(pa.float32())})
    values = np.arange(3, dtype=np.float32)
    tensor = torch.arange(3.0)
    way(store, 1, "x", values)
    way(store, 2, "x", tensor)

    values[:] = tensor[:] = 9

    assert [step["x"].tolist() for step in store.steps(1)] == [[0, 1, 2], [0, 1, 2]]
