"""Tokens by position in any shape, windows, decoded values, and steps: exactly what was appended, or an error."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from poolish import Field, StreamStore
from poolish.errors import ConfigError, SchemaError, UnknownColumn
from poolish.tokens import Step
from tests.effort import times
from tests.tokens.facts import in_words

pytestmark = pytest.mark.kernels

torch.set_num_threads(1)

N = 10


@pytest.fixture(scope="module")
def ten():
    """Ten tokens of two types: 0, 10, 20, ... in five steps numbered 0, 3, 6, 9, 12."""
    store = StreamStore(fields={"a": "int64", "b": "int32"})
    store.append_many(range(0, 15, 3), {"a": np.arange(5) * 20, "b": np.arange(5) * 20 + 10})
    return store


def tokens_at(positions: Any) -> dict[str, list[Any]]:
    """What positions of the ten tokens hold."""
    places = np.arange(N)[np.asarray(positions, np.int64)] if np.size(positions) else np.asarray(positions, np.int64)
    return {"types": (places % 2).tolist(), "values": (places * 10).tolist()}


def plain(batch: dict[str, np.ndarray]) -> dict[str, list[Any]]:
    """A batch as lists; both parts are arrays of int64 of their own, and types come first."""
    assert list(batch) == ["types", "values"]
    assert all(part.dtype == np.int64 and part.flags.writeable and part.base is None for part in batch.values())
    assert batch["types"].shape == batch["values"].shape
    return {name: part.tolist() for name, part in batch.items()}


# By position --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "index",
    [
        0,
        -1,
        -10,
        np.int8(-3),
        np.uint64(9),
        np.array(4),
        torch.tensor(4),
        [],
        [[], []],
        [3],
        [0, 9, 0, -1],
        (1, 2),
        [[0, 1], [2, 3]],
        [[[1]], [[2]]],
        range(3),
        np.arange(10),
        np.arange(10)[::-1],
        np.arange(10, dtype=np.uint8),
        np.arange(10, dtype=np.uint64),
        np.arange(10, dtype=">i4"),
        np.arange(8).reshape(2, 2, 2),
        np.asfortranarray(np.arange(8).reshape(2, 4)),
        np.array([[-2, -1, 0, 1], [-4, -3, -2, -1], [-10, -9, -8, -7]]),
        np.arange(8).reshape(2, 4)[:, ::2],
        np.empty((2, 0, 3), np.int64),
        np.empty((0, 3), np.float64),
        torch.arange(6).reshape(2, 3),
        pa.array([1, 2, 3]),
    ],
    ids=in_words,
)
def test_positions_of_any_shape(ten, index):
    """Both parts have the shape of the index; negative ones count from the end."""
    assert plain(ten[index]) == tokens_at(index)
    assert ten[index]["values"].shape == np.shape(index)


slices = st.slices(N) | st.builds(slice, *[st.none() | st.integers(-15, 15)] * 2, st.integers(-4, 4).filter(bool))


@given(slices)
def test_slices(ten, part):
    """As of a list."""
    assert plain(ten[part]) == tokens_at(list(range(N)[part]))


@given(st.lists(st.booleans(), min_size=N, max_size=N), st.booleans())
def test_masks(ten, mask, as_array):
    """One of the length of the stream."""
    assert plain(ten[np.array(mask) if as_array else mask]) == tokens_at([i for i in range(N) if mask[i]])


@given(st.lists(st.lists(st.integers(-N, N - 1), min_size=4, max_size=4), max_size=6))
def test_rows_of_positions(ten, rows):
    """Whether they lie side by side or not."""
    assert plain(ten[rows if rows else np.empty((0, 4), np.int64)]) == tokens_at(rows if rows else np.empty((0, 4)))


@pytest.mark.parametrize(
    ("index", "named"),
    [
        (10, 10),
        (-11, -11),
        ([0, 10], 10),
        ([-11, 0], -11),
        ([[0, 1], [2, 55]], 55),
        ([-20, -19], -20),
        ([-12, -11, -10], -12),
        ([8, 9, 10, 11], 10),
        ([9, 10, -11], 10),
        ([2**63 - 1], 2**63 - 1),
        ([[2**63 - 1, -(2**63)]], 2**63 - 1),
        ([-(2**63), -(2**63) + 1], -(2**63)),
        (2**63, 2**63),
        (2**64 - 1, 2**64 - 1),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.array([1, 2**64 - 1], np.uint64), 2**64 - 1),
        (10**30, 10**30),
    ],
    ids=str,
)
def test_positions_outside_are_refused_by_name(ten, index, named):
    """The first of them, as it was given, and the length of the stream."""
    with pytest.raises(IndexError) as caught:
        ten[index]
    assert f"index {named} " in str(caught.value)
    assert "10 tokens" in str(caught.value)


@pytest.mark.parametrize(
    "index",
    [
        1.0,
        [0.5],
        np.array([1.0]),
        "1",
        ["1"],
        None,
        [None],
        1j,
        [[1], [2, 3]],
        {"a": 1},
        object(),
        ...,
        (slice(1), 0),
        np.array([1, 2], object),
    ],
    ids=in_words,
)
def test_what_is_no_position_is_refused(ten, index):
    """Only whole numbers, slices and masks are positions."""
    with pytest.raises(IndexError, match="whole numbers"):
        ten[index]


@pytest.mark.parametrize(
    "mask", [True, [True] * 9, [False] * 11, [[True] * 10], np.ones((10, 1), bool), np.True_], ids=in_words
)
def test_a_mask_of_another_length_is_refused(ten, mask):
    """It says which one is needed."""
    with pytest.raises(IndexError, match=r"mask.*\(10,\)"):
        ten[mask]


def test_masked_positions_are_refused(ten):
    """What is under the mask was not meant."""
    masked = np.ma.array([1, 2], mask=[0, 1])
    for read in (lambda: ten[masked], lambda: ten.windows(masked, 2)):
        with pytest.raises(IndexError, match="mask"):
            read()
    with pytest.raises(SchemaError, match="mask"):
        ten.decode(masked, "a")


def test_batches_belong_to_the_caller(ten):
    """Writing into one changes nothing in the stream."""
    batch = ten[:]
    batch["values"][:] = batch["types"][:] = -5
    window = ten.windows([0], 10)
    window["values"][:] = window["types"][:] = -5

    assert plain(ten[:]) == tokens_at(range(N))


# Windows ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("starts", "width"),
    [
        ([0, 3, 7], 3),
        ([[0, 1], [2, 3], [4, 5]], 2),
        (4, 3),
        (np.array(0), 10),
        (torch.tensor([1, 2]), 5),
        (np.array([9, 8], np.uint64), 1),
        (range(3), np.int32(4)),
        ([0, 0, 0], 10),
        ([], 4),
        (np.empty((2, 0), np.int64), 4),
        ([-3, -10, 2, -1], 1),
        ([-3, -10, 2], 3),
        (np.arange(8)[::2], 4),
    ],
    ids=str,
)
def test_windows_are_consecutive_tokens(ten, starts, width):
    """A new last axis of that width; starts may count from the end."""
    begins = np.asarray(starts, np.int64)
    places = np.where(begins < 0, begins + N, begins)[..., None] + np.arange(width)

    assert plain(ten.windows(starts, width)) == tokens_at(places)
    assert ten.windows(starts, width)["values"].shape == (*begins.shape, width)
    alone = ten.windows(starts, width, types=False)
    assert list(alone) == ["values"]
    assert np.array_equal(alone["values"], ten.windows(starts, width)["values"])


@given(st.lists(st.integers(-12, 12), max_size=5), st.integers(1, 12))
def test_windows_fit_or_are_refused(ten, starts, width):
    """Each start alone decides; the first bad one is named as it was given."""
    bad = [start for start in starts if not 0 <= (start + N if start < 0 else start) <= N - width]
    if bad:
        what = f"index {bad[0]} " if width == 1 else f"window of {width} tokens from {bad[0]} "
        with pytest.raises(IndexError, match=rf"{what}.*10 tokens"):
            ten.windows(starts, width)
    else:
        assert ten.windows(starts, width)["values"].shape == (len(starts), width)


@pytest.mark.parametrize(
    ("starts", "width", "named"),
    [
        ([0], 11, "0"),
        ([0], 2**45, "0"),
        ([3], 2**62, "3"),
        ([0], 10**30, "0"),
        ([2**63 - 1], 2, str(2**63 - 1)),
        ([-(2**63)], 2, str(-(2**63))),
        (np.array([2**64 - 3], np.uint64), 3, str(2**64 - 3)),
        ([-17], 3, "-17"),
        ([0, 8, -17], 3, "8"),
        (10**30, 3, str(10**30)),
    ],
    ids=str,
)
def test_windows_outside_are_refused_before_memory_is_taken(ten, starts, width, named):
    """However wide they are."""
    with pytest.raises(IndexError, match=rf"(from|index) {named} .*10 tokens"):
        ten.windows(starts, width)


@pytest.mark.parametrize("width", [0, -1, 1.0, True, "2", None, np.float64(2)], ids=in_words)
def test_a_width_is_a_whole_number_above_zero(ten, width):
    """It is named in the error."""
    with pytest.raises(ConfigError, match="width="):
        ten.windows([0], width)


@pytest.mark.parametrize("starts", [[0.0], "0", None, [True], [[0], [0, 1]]], ids=in_words)
def test_starts_are_whole_numbers(ten, starts):
    """Nothing is rounded and no mask is taken for numbers."""
    with pytest.raises(IndexError, match="whole numbers"):
        ten.windows(starts, 2)


def test_windows_are_the_same_tokens_as_positions():
    """Larger ones too, over more than a page."""
    store = StreamStore(fields={"a": "int64", "b": pa.list_(pa.int64())})
    store.append_many(np.arange(2_000), {"a": np.arange(2_000), "b": np.arange(10_000).reshape(2_000, 5) * 7})
    rng = np.random.default_rng(0)
    for width in (1, 2, 7, 128, 300, 5_000):
        starts = rng.integers(0, len(store) - width + 1, 40)
        by_position, by_window = store[starts[:, None] + np.arange(width)], store.windows(starts, width)
        assert all(np.array_equal(by_position[name], by_window[name]) for name in ("types", "values"))


# Bounded ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bounded():
    """Tokens 6 to 11 of twelve, two a step."""
    store = StreamStore(fields={"a": pa.list_(pa.int64())}, max_tokens=7)
    for step in range(6):
        store.append(step, ["a"], [[2 * step, 2 * step + 1]])
    return store


def test_positions_of_a_bounded_stream_keep_counting(bounded):
    """What is kept is found where it always was; masks and slices are of what is kept."""
    assert (len(bounded), bounded.first, bounded.end, bounded.n_steps) == (6, 6, 12, 3)
    assert bounded[[6, 11, -1, -6]]["values"].tolist() == [6, 11, 11, 6]
    assert bounded[:]["values"].tolist() == list(range(6, 12))
    assert bounded[::-2]["values"].tolist() == [11, 9, 7]
    assert bounded[[True] + [False] * 5]["values"].tolist() == [6]
    assert bounded.windows([6, -2], 2)["values"].tolist() == [[6, 7], [10, 11]]
    assert [step.number for step in bounded] == [3, 4, 5]
    assert [step.number for step in bounded.steps(0, 5)] == [3, 4]


@pytest.mark.parametrize("index", [5, -7, [6, 5], [5, 6], [-7, -6], [0], [4, 5, 6]], ids=str)
def test_what_has_left_a_bounded_stream_is_refused(bounded, index):
    """The error says from where on it is kept."""
    wrong = next(i for i in np.atleast_1d(index).tolist() if not 6 <= (i + 12 if i < 0 else i) < 12)
    with pytest.raises(IndexError, match=rf"index {wrong} .*12 tokens.*kept from 6"):
        bounded[index]
    with pytest.raises(IndexError, match=rf"from {wrong} .*12 tokens.*kept from 6"):
        bounded.windows(index, 2)


# Decoded ------------------------------------------------------------------------------------------------------


def test_values_are_decoded_by_their_field():
    """Into the dtype that was declared, in the shape that they come in."""
    store = StreamStore(fields={"f": "float16", "i": "uint8", "b": "bool", "named": None})
    store.append_many([0, 1], {"f": [0.5, -2.0], "i": [0, 255], "b": [True, False], "named": [1e300, -0.0]})
    values = store[:]["values"].reshape(2, 4)

    decoded = {name: store.decode(values[:, [type_]], name) for name, type_ in store.field_to_type.items()}

    assert {name: part.dtype.name for name, part in decoded.items()} == {
        "f": "float16",
        "i": "uint8",
        "b": "bool",
        "named": "float64",
    }
    assert {name: part.tolist() for name, part in decoded.items()} == {
        "f": [[0.5], [-2.0]],
        "i": [[0], [255]],
        "b": [[True], [False]],
        "named": [[1e300], [-0.0]],
    }


@pytest.mark.parametrize(
    "values",
    [
        0,
        [],
        [1, 2],
        np.int64(3),
        np.array(3),
        np.arange(6).reshape(2, 3),
        np.arange(6)[::2],
        torch.arange(3),
        np.arange(6).reshape(2, 3).T,
    ],
    ids=in_words,
)
def test_values_are_decoded_in_their_shape(ten, values):
    """A number, nothing, lists, arrays with gaps."""
    decoded = ten.decode(values, "b")

    assert (decoded.dtype, decoded.shape) == (np.int32, np.shape(values))
    assert decoded.tolist() == np.asarray(values).tolist()


def test_tokens_of_other_fields_are_decoded_without_a_warning():
    """They come out as they may; the types tell which are which."""
    store = StreamStore(fields={"f": "float16", "i": "int8"})
    store.append_many([0, 1], {"f": [1.0, 2.0], "i": [3, 4]})
    batch = store[:]

    assert store.decode(batch["values"], "f")[batch["types"] == 0].tolist() == [1.0, 2.0]
    assert store.decode(batch["values"], "i")[batch["types"] == 1].tolist() == [3, 4]


@pytest.mark.parametrize(
    "values", [[0.5], np.zeros(2, np.int32), np.zeros(2, np.uint64), "1", None, [True]], ids=in_words
)
def test_only_the_values_of_a_batch_are_decoded(ten, values):
    """Numbers that were decoded already are not."""
    with pytest.raises(SchemaError, match="int64 values of a batch"):
        ten.decode(values, "a")


@pytest.mark.parametrize("name", ["c", "", 0, None], ids=in_words)
def test_a_field_that_is_not_there_is_refused(ten, name):
    """The error tells which are."""
    with pytest.raises(UnknownColumn, match=r"'a', 'b'"):
        ten.decode([1], name)


# Steps --------------------------------------------------------------------------------------------------------


def test_steps_are_dicts_with_a_number(ten):
    """Of the fields they have, in order."""
    steps = list(ten)

    assert [(step.number, dict(step)) for step in steps] == [(3 * n, {"a": 20 * n, "b": 20 * n + 10}) for n in range(5)]
    assert all(isinstance(step, Step) and isinstance(step["a"], int) for step in steps)
    assert inspect.isgenerator(ten.steps()) or hasattr(ten.steps(), "__next__")


bounds = st.none() | st.integers(-5, 20) | st.sampled_from([2**63 - 1, 2**63, 10**30, -(2**63), -(10**30)])


@given(bounds, bounds)
def test_a_range_of_steps(ten, first, end):
    """From a number up to another, whether there are steps of those numbers or not."""
    low, high = -math.inf if first is None else first, math.inf if end is None else end

    numbers = [step.number for step in ten.steps(first, end)]

    assert numbers == [number for number in range(0, 15, 3) if low <= number < high]


@pytest.mark.parametrize("bound", [1.5, 1.0, "1", [1], True, np.float64(2)], ids=in_words)
def test_bounds_of_steps_are_whole_numbers(ten, bound):
    """Neither rounded nor parsed."""
    for bounds in ((bound, None), (0, bound)):
        with pytest.raises((SchemaError, ConfigError), match="whole number"):
            list(ten.steps(*bounds))


def test_values_of_a_step_have_their_shape():
    """Python's numbers, arrays of the field's dtype in the field's shape."""
    store = StreamStore(
        fields={
            "number": "int16",
            "list": pa.list_(pa.float32()),
            "three": Field("three", "uint8", shape=(3,)),
            "matrix": Field("matrix", "float64", shape=(2, 2)),
            "rows": Field("rows", "float32", shape=(None, 2)),
        }
    )
    values = [7, [0.5], [1, 2, 3], [[1, 2], [3, 4]], [[5, 6]]]
    store.append(0, list(store.field_to_type), values)

    (step,) = store

    assert (type(step["number"]), step["number"]) == (int, 7)
    assert [(step[name].dtype.name, step[name].shape) for name in ("list", "three", "matrix", "rows")] == [
        ("float32", (1,)),
        ("uint8", (3,)),
        ("float64", (2, 2)),
        ("float32", (1, 2)),
    ]
    assert step["matrix"].tolist() == [[1, 2], [3, 4]]


def test_what_is_appended_while_steps_are_read_is_not_among_them():
    """Not even the rest of the last step."""
    store = StreamStore(fields={"a": "int64", "b": "int64"})
    store.append_many([0, 1], {"a": [1, 2]})

    seen = []
    for step in store:
        seen.append((step.number, dict(step)))
        store.append(1, ["b"], [9]) if step.number == 0 else store.append(2, ["a"], [3])

    assert seen == [(0, {"a": 1}), (1, {"a": 2})]
    assert [(step.number, dict(step)) for step in store.steps(1)] == [(1, {"a": 2, "b": 9}), (2, {"a": 3})]


def test_steps_of_a_stream_that_is_closed_meanwhile_are_an_error():
    """That says so."""
    store = StreamStore(fields={"a": "int64"})
    store.append_many(np.arange(5_000), {"a": np.arange(5_000)})
    steps = iter(store)
    next(steps)
    store.close()

    with pytest.raises(ConfigError, match="closed"):
        list(steps)


def test_steps_are_whole_across_the_parts_they_are_read_in():
    """Four thousand rows of the index are read at a time, and three do not divide that."""
    store = StreamStore(fields=["a", "b", "c"])
    store.append_many(np.arange(3_000), {name: np.arange(3_000.0) for name in "abc"})

    assert [(step.number, *step.values()) for step in store] == [(n, n, n, n) for n in range(3_000)]
    assert [step.number for step in store.steps(2_990)] == list(range(2_990, 3_000))


# Lengths and looks --------------------------------------------------------------------------------------------


def test_an_empty_stream_is_a_stream():
    """True, of no tokens and no steps; asking for one is an error that says so."""
    store = StreamStore(fields=["a"])

    assert store
    assert (len(store), store.n_steps, store.first, store.end, list(store)) == (0, 0, 0, 0, [])
    assert plain(store[:]) == plain(store[[]]) == {"types": [], "values": []}
    assert store.windows([], 3)["values"].shape == (0, 3)
    with pytest.raises(IndexError, match=r"index 0 .*0 tokens"):
        store[0]
    with pytest.raises(IndexError, match=r"index -1 .*0 tokens"):
        store[-1]
    with pytest.raises(IndexError, match="0 tokens"):
        store.windows([0], 1)


@pytest.mark.parametrize("store", [StreamStore(), StreamStore(fields=["a"])], ids=["without fields", "closed"])
def test_without_fields_or_closed_there_is_nothing_to_read(store):
    """Lengths are 0, and reading says what to do."""
    store.close()

    assert (len(store), store.n_steps, store.first, store.end, dict(store.field_to_type)) == (0, 0, 0, 0, {})
    assert "closed or without fields" in repr(store)
    for read in (lambda: store[[0]], lambda: store.windows([0], 1), lambda: list(store), lambda: store.steps()):
        with pytest.raises(ConfigError, match="define_fields"):
            read()


def test_a_stream_shows_what_it_is(ten, tmp_path):
    """Its lengths, fields and place; as HTML too, in which a name is only text."""
    assert repr(ten) == "<StreamStore of 10 tokens in 5 steps (a: int64, b: int32)>"
    with StreamStore(tmp_path / "s", fields={"<b>": "int8", "obs": Field("obs", "float32", shape=(None, 3))}) as store:
        assert (
            repr(store) == f"<StreamStore of 0 tokens in 0 steps (<b>: int8, obs: float32[any, 3]) at {tmp_path / 's'}>"
        )
        assert "&lt;b&gt;" in store._repr_html_()
        assert "<b>" not in store._repr_html_()
    many = StreamStore(fields=[f"f{i}" for i in range(9)])
    assert "f7" in repr(many)
    assert "f8" not in repr(many)
    assert "..." in repr(many)


def test_field_to_type_cannot_be_changed(ten):
    """Ids count from 0 in the order of declaration."""
    assert dict(ten.field_to_type) == {"a": 0, "b": 1}
    with pytest.raises(TypeError):
        ten.field_to_type["c"] = 2


# A model ------------------------------------------------------------------------------------------------------


@settings(max_examples=times(30))
@given(
    st.lists(st.lists(st.lists(st.integers(-100, 100), max_size=4), min_size=1, max_size=3), min_size=1, max_size=8),
    st.data(),
)
def test_reading_gives_what_a_list_would(steps, data):
    """Random steps, and after each of them random positions and windows."""
    store = StreamStore(fields={name: pa.list_(pa.int64()) for name in "abc"})
    values: list[int] = []
    types: list[int] = []
    for number, writes in enumerate(steps):
        store.append(number, list("abc")[: len(writes)], writes)
        values += [one for write in writes for one in write]
        types += [type_ for type_, write in enumerate(writes) for _ in write]
        n = len(values)
        assert (len(store), store.n_steps) == (n, number + 1)
        if n:
            index = data.draw(st.lists(st.integers(-n, n - 1), max_size=5))
            assert plain(store[index]) == {"types": [types[i] for i in index], "values": [values[i] for i in index]}
            width = data.draw(st.integers(1, n))
            start = data.draw(st.integers(0, n - width))
            expected = {"types": [types[start : start + width]], "values": [values[start : start + width]]}
            assert plain(store.windows([start], width)) == expected
    assert [[part.tolist() for part in step.values()] for step in store] == steps
