"""Rows by position, from arrays of every kind: what Arrow's own take gives, and what its Python values say."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish.rows.access import gather_fn, reader
from tests.rows.facts import plain
from tests.rows.kinds import KINDS, array_of, arrow_of, cell_of, listed_array

pytestmark = pytest.mark.kernels

kinds = st.sampled_from(sorted(KINDS))
each_kind = pytest.mark.parametrize("kind", sorted(KINDS))


@given(kinds, st.sampled_from([0.0, 0.2, 1.0]), st.integers(0, 20), st.integers(1, 40), st.data())
def test_rows_are_taken(kind, nulls, first, n, data):
    """In any order, repeated or not, from slices whose memory begins elsewhere."""
    array = array_of(kind, first + n + 3, nulls).slice(first, n)
    positions = data.draw(st.lists(st.integers(0, n - 1), max_size=40))

    taken = gather_fn(array)(np.array(positions, np.int64))

    taken.validate(full=True)
    assert taken.type == array.type
    assert plain(listed_array(taken)) == plain([listed_array(array)[position] for position in positions])


@given(kinds, st.sampled_from([0.0, 0.2, 1.0]), st.integers(0, 20), st.integers(1, 20))
def test_rows_are_read(kind, nulls, first, n):
    """One by one, as the values they were made from."""
    array = array_of(kind, first + n + 3, nulls).slice(first, n)

    read = reader(array)

    assert plain([read(i) for i in range(n)]) == plain([cell_of(kind, first + i, 0, nulls) for i in range(n)])


@each_kind
def test_a_taker_can_be_used_again(kind):
    """It looks at the array once; what it gave before does not change."""
    take = gather_fn(array_of(kind, 20))

    first = take(np.array([3, 1]))
    before = plain(listed_array(first))
    take(np.array([5, 6, 7]))

    assert plain(listed_array(first)) == before


@each_kind
def test_what_was_taken_is_a_copy(kind):
    """No buffer of the result lies in the memory of the array, so nobody waits for anybody."""
    array = array_of(kind, 20)
    theirs = range_of(array)

    taken = gather_fn(array)(np.arange(20))

    assert not any(buffer.address in their for buffer in buffers(taken) for their in theirs)


def buffers(array: pa.Array) -> list[pa.Buffer]:
    storage = array.storage if isinstance(array.type, pa.BaseExtensionType) else array
    return [buffer for buffer in storage.buffers() if buffer is not None and buffer.size]


def range_of(array: pa.Array) -> list[range]:
    return [range(buffer.address, buffer.address + buffer.size) for buffer in buffers(array)]


@each_kind
def test_positions_outside_are_refused(kind):
    """Before anything is read there."""
    for position in [-1, 1_000, 2**62]:
        with pytest.raises(IndexError):
            gather_fn(array_of(kind, 20))(np.array([0, position]))


@each_kind
def test_nothing_is_taken_from_nothing(kind):
    """Empty arrays may leave buffers out."""
    for array in (arrow_of(kind, []), array_of(kind, 5).slice(5), pa.concat_arrays([array_of(kind, 5)[:0]])):
        taken = gather_fn(array)(np.empty(0, np.int64))
        assert (len(taken), taken.type) == (0, array.type)


def test_values_under_a_null_do_not_show():
    """Other libraries leave anything under a null: elements in a null list, values in a null struct."""
    mask = pa.py_buffer(np.array([0b101], np.uint8))
    items = pa.array([1, 2, 3, 4, 5, 6])
    offsets = pa.py_buffer(np.array([0, 2, 4, 6]))
    lists = pa.Array.from_buffers(pa.large_list(pa.int64()), 3, [mask, offsets], children=[items])
    structs = pa.Array.from_buffers(pa.struct([("x", pa.int64())]), 3, [mask], children=[items[:3]])

    for array, expected in ((lists, [[5, 6], None, [1, 2]]), (structs, [{"x": 3}, None, {"x": 1}])):
        assert gather_fn(array)(np.array([2, 1, 0])).to_pylist() == expected
        assert [reader(array)(i) for i in (2, 1, 0)] == expected


def test_nulls_without_a_type_are_taken():
    """A column of nothing."""
    assert gather_fn(pa.nulls(3))(np.array([2, 0])).to_pylist() == [None, None]
    assert reader(pa.nulls(3))(1) is None


@pytest.mark.parametrize("first", [0, 1, 2])
def test_nulls_inside_lists_of_one_length_are_taken(first):
    """A tensor has none, but Arrow's own nulls of such a type have nulls all the way down."""
    pairs = pa.list_(pa.int64(), 2)
    for array in (pa.array([[1, None], [3, 4], None, [None, 6]], pairs), pa.nulls(4, pairs)):
        expected = array.to_pylist()[first:]

        taken = gather_fn(array.slice(first))(np.arange(len(expected))[::-1].copy())

        assert taken.to_pylist() == expected[::-1]


def test_texts_in_lists_of_one_length_are_taken():
    """Elements of any width, from a slice."""
    array = pa.array([["a", "b"], ["c", "dd"], None, ["", "f"]], pa.list_(pa.large_string(), 2))

    assert gather_fn(array.slice(1))(np.array([2, 0, 1])).to_pylist() == [["", "f"], ["c", "dd"], None]


def test_a_buffer_of_offsets_may_be_longer_than_its_offsets():
    """Arrow accepts any size that is large enough, as a file that another program wrote may have."""
    offsets = np.array([0, 3, 5], np.int64).tobytes() + b"tail"
    texts = pa.Array.from_buffers(pa.large_string(), 2, [None, pa.py_buffer(offsets), pa.py_buffer(b"ryebr")])
    texts.validate(full=True)

    assert gather_fn(texts)(np.array([1, 0])).to_pylist() == ["br", "rye"]
