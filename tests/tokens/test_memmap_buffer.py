"""MemmapBuffer: an array in a file that grows at its end, keeps what it was given exactly, and never moves."""

from __future__ import annotations

import copy
import gc
import os
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from poolish import MemmapBuffer
from poolish.errors import ConfigError, CorruptDataError, NumberTooLarge, PoolishError, SchemaError
from tests.effort import times

torch.set_num_threads(1)


def facts(buffer: MemmapBuffer) -> Any:
    return len(buffer), buffer.array.tobytes(), buffer.dtype, buffer.shape


# Growing ------------------------------------------------------------------------------------------------------


def test_rows_are_appended_one_or_many_at_a_time():
    """The number of the first new row is the answer."""
    buffer = MemmapBuffer()

    numbers = [
        buffer.append(5),
        buffer.append([6, 7]),
        buffer.append([]),
        buffer.append(np.arange(3)),
        buffer.append(-1),
    ]

    assert numbers == [0, 1, 3, 3, 6]
    assert buffer.array.tolist() == [5, 6, 7, 0, 1, 2, -1]
    assert (len(buffer), buffer.dtype, buffer.shape, buffer.path) == (7, np.int64, (), None)


def test_rows_may_have_a_shape():
    """One row, or an array of them."""
    buffer = MemmapBuffer(dtype="float32", shape=(2, 3))
    rows = np.arange(18, dtype=np.float32).reshape(3, 2, 3)

    assert [buffer.append(rows[0]), buffer.append(rows[1:]), buffer.append(np.empty((0, 2, 3)))] == [0, 1, 3]

    assert np.array_equal(buffer.array, rows)
    assert buffer[1, 0].tolist() == [6, 7, 8]


@pytest.mark.parametrize(
    "key", [0, -1, slice(1, 3), slice(None, None, -1), [0, 2], np.array([True, False, True, True])]
)
def test_indexing_is_that_of_an_array(key):
    """Of all rows there are."""
    buffer = MemmapBuffer()
    buffer.append([1, 2, 3, 4])

    assert np.array_equal(buffer[key], np.array([1, 2, 3, 4])[key])
    assert list(buffer) == [1, 2, 3, 4]
    assert np.array_equal(np.asarray(buffer), [1, 2, 3, 4])
    assert np.asarray(buffer, np.float32).dtype == np.float32


@pytest.mark.parametrize("key", [4, -5, [0, 4]])
def test_rows_that_are_not_there_are_an_index_error(key):
    """Also where the file has room for them."""
    buffer = MemmapBuffer()
    buffer.append([1, 2, 3, 4])
    with pytest.raises(IndexError):
        buffer[key]


@settings(max_examples=times(30))
@given(st.lists(nps.arrays(np.int32, st.integers(0, 300)), max_size=8), st.integers(1, 100))
def test_any_appends_are_one_array(parts, chunk_rows):
    """Views from each moment stay what they were, however often the file has grown since."""
    buffer = MemmapBuffer(dtype=np.int32, chunk_rows=chunk_rows)
    views = []
    for part in parts:
        start = buffer.append(part)
        assert start == len(buffer) - len(part)
        views.append((buffer[:], buffer.array.tolist()))
        assert buffer.capacity >= len(buffer)
        assert buffer.capacity % chunk_rows == 0

    assert np.array_equal(buffer.array, np.concatenate([np.empty(0, np.int32), *parts]))
    assert all(view.tolist() == told for view, told in views)


def test_views_show_the_same_memory():
    """What is written through one is seen through another, from before a growth and after it."""
    buffer = MemmapBuffer(chunk_rows=4)
    buffer.append([1, 2])
    early = buffer[:]
    buffer.append(np.zeros(10_000, np.int64))

    buffer[:][0] = 77

    assert early[0] == 77


def test_views_outlive_their_buffer(tmp_path):
    """Closed and forgotten, and the file gone too."""
    for path in (None, tmp_path / "rows"):
        buffer = MemmapBuffer(path)
        buffer.append(np.arange(5_000))
        view = buffer[10:20]
        buffer.close()
        if path:
            path.unlink()
        del buffer
        gc.collect()

        assert view.tolist() == list(range(10, 20))


def test_the_file_grows_in_chunks(tmp_path):
    """By whole ones, and only when they are full."""
    buffer = MemmapBuffer(tmp_path / "rows", chunk_rows=512)
    sizes = set()
    for _ in range(1_100):
        buffer.append(1)
        sizes.add((tmp_path / "rows").stat().st_size)

    assert sizes == {512 * 8, 1024 * 8, 1536 * 8}
    buffer.reserve(1_537)
    assert (buffer.capacity, len(buffer)) == (2_048, 1_100)


def test_a_buffer_appends_to_itself():
    """From its own memory, while it grows."""
    buffer = MemmapBuffer(chunk_rows=4)
    buffer.append([1, 2, 3])
    for _ in range(5):
        buffer.append(buffer)
        buffer.append(buffer[1:2])

    assert len(buffer) == 127
    assert set(buffer.array.tolist()) == {1, 2, 3}


# Exactly or not at all ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "rows", "expected"),
    [
        ("int8", [1.0, -2.0], [1, -2]),
        ("int8", np.array([True, False]), [1, 0]),
        ("int8", torch.tensor([1, 2]), [1, 2]),
        ("float32", [1, 2**24], [1.0, 2.0**24]),
        ("float32", [0.5, float("inf")], [0.5, float("inf")]),
        ("float64", [2**53], [2.0**53]),
        ("uint64", [2**64 - 1], [2**64 - 1]),
        ("int64", [-(2**63), 2**63 - 1], [-(2**63), 2**63 - 1]),
        ("bool", [1, 0.0], [True, False]),
        (">i4", [1, -2], [1, -2]),
        ("complex64", [1, 2j], [1, 2j]),
        ("datetime64[s]", np.array(["2026-01-01"], "datetime64[s]"), None),
        ([("a", "i4"), ("b", "f8")], np.array([(1, 0.5)], [("a", "i4"), ("b", "f8")]), [(1, 0.5)]),
    ],
)  # fmt: skip
def test_numbers_of_another_dtype_are_taken_where_they_are_the_same(dtype, rows, expected):
    """Whatever holds them."""
    buffer = MemmapBuffer(dtype=dtype)

    buffer.append(rows)

    assert buffer.array.dtype == np.dtype(dtype)
    assert buffer.array.tolist() == (rows.tolist() if expected is None else expected)


def test_nan_and_minus_zero_are_kept():
    """Bit for bit, from float32 into float64 too."""
    buffer = MemmapBuffer(dtype="float64")
    buffer.append(np.array([np.nan, -0.0, 5e-324]))
    buffer.append(np.array([np.nan, -0.0], np.float32))

    assert repr(buffer.array.tolist()) == "[nan, -0.0, 5e-324, nan, -0.0]"


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "fraction": ("int64", [1.5], "1.5"),
    "NaN": ("int64", [float("nan")], "nan"),
    "infinity": ("int64", [1.0, float("inf")], "inf"),
    "too large": ("int8", [1, 300], "300"),
    "negative": ("uint64", [-1], "-1"),
    "negative as float": ("uint8", [-1.0], "-1"),
    "half of uint64": ("int64", np.array([1, 2**63], np.uint64), "9223372036854775808"),
    "beyond 64 bits": ("int64", [2**64], "int64|18446744073709551616"),
    "far beyond": ("float64", [10**400], "float64"),
    "2**53 + 1": ("float64", [2**53 + 1], "9007199254740993"),
    "2**63 - 1": ("float64", [2**63 - 1], "9223372036854775807"),
    "2**64 - 1": ("float64", np.array([2**64 - 1] * 9, np.uint64), "18446744073709551615"),
    "2**24 + 1": ("float32", [2**24 + 1], "16777217"),
    "0.1 as float32": ("float32", [0.1], "0.1"),
    "large as float32": ("float32", [1e300], "1e\\+300"),
    "two as bool": ("bool", [True, 2], "2"),
    "text": ("int64", ["1"], "<U1|str"),
    "text that is no number": ("int64", ["x"], "<U1|str"),
    "None": ("int64", [None], "object|None"),
    "objects": ("int64", [object()], "object"),
    "complex": ("float64", [1j], "complex"),
    "complex without an imaginary part": ("float64", [1 + 0j], "complex"),
    "times": ("int64", np.array(["2026-01-01"], "datetime64[s]"), "datetime64"),
    "masked": ("int64", np.ma.array([1, 2], mask=[0, 1]), "mask"),
    "ragged": ("int64", [[1], [2, 3]], "shape|alike"),
    "a matrix": ("int64", [[1, 2]], r"\(1, 2\)"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_dtype_cannot_hold_is_refused(what):
    """By a SchemaError that names it; nothing was appended, and the next row is."""
    dtype, rows, says = REFUSED[what]
    buffer = MemmapBuffer(dtype=dtype)
    buffer.append(np.zeros(2, dtype))
    before = facts(buffer)

    with pytest.raises(SchemaError, match=says):
        buffer.append(rows)

    assert facts(buffer) == before
    assert buffer.append(np.zeros(1, dtype)) == 2


def test_an_integer_beyond_64_bits_is_an_overflow():
    """For those who do not know poolish."""
    with pytest.raises(NumberTooLarge, match="18446744073709551616"):
        MemmapBuffer().append(2**64)


@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (2, 4), (2, 3, 1), (1, 1, 2, 3)])
def test_another_shape_is_refused(shape):
    """The error names both."""
    buffer = MemmapBuffer(shape=(2, 3))

    with pytest.raises(SchemaError, match=r"the shape \(2, 3\), got an array of .*reshape"):
        buffer.append(np.zeros(shape, np.int64))

    assert len(buffer) == 0


def test_no_rows_are_no_rows():
    """An empty list says nothing of their shape."""
    buffer = MemmapBuffer(shape=(2,))

    assert buffer.append([]) == 0
    assert buffer.append(np.empty((0, 2))) == 0

    assert len(buffer) == 0


# Files --------------------------------------------------------------------------------------------------------


def test_a_closed_file_holds_the_rows_and_nothing_else(tmp_path):
    """Any program reads it; opened again it goes on."""
    with MemmapBuffer(tmp_path / "rows", dtype="<i4") as buffer:
        buffer.append([1, 2, 3])
        assert (tmp_path / "rows").stat().st_size >= 12

    assert np.fromfile(tmp_path / "rows", "<i4").tolist() == [1, 2, 3]
    with MemmapBuffer(tmp_path / "rows", dtype="<i4") as buffer:
        assert (buffer.append(4), buffer.path) == (3, tmp_path / "rows")
    assert (tmp_path / "rows").read_bytes() == np.array([1, 2, 3, 4], "<i4").tobytes()


def test_a_file_that_was_not_closed_is_longer(tmp_path):
    """Its zeros are no rows for one who says how many there are."""
    path = tmp_path / "rows"
    buffer = MemmapBuffer(path)
    buffer.append([1, 2, 3])
    assert np.fromfile(path, np.int64)[:4].tolist() == [1, 2, 3, 0]

    with MemmapBuffer(path, mode="r", length=3) as reader:
        assert reader.array.tolist() == [1, 2, 3]
    again = MemmapBuffer(path, length=2)
    assert (again.append(9), again.array.tolist()) == (2, [1, 2, 9])


def test_a_reader_sees_what_is_there_and_writes_nothing(tmp_path):
    """It needs no permission to write; ``refresh`` reaches what has been added."""
    path = tmp_path / "rows"
    writer = MemmapBuffer(path, chunk_rows=512)
    writer.append(np.arange(512))
    os.chmod(path, 0o400)
    reader = MemmapBuffer(path, mode="r")

    with pytest.raises(ConfigError, match=r"rows.*reading.*mode='a'"):
        reader.append(5)
    with pytest.raises(ValueError, match="read-only"):
        reader[:][0] = 5
    writer.append(7)
    reader.refresh()

    assert reader.room[512] == 7
    assert len(reader) == 512
    reader.close()
    writer.close()
    assert path.stat().st_size == 513 * 8


def test_closing_twice_is_closing_once(tmp_path):
    """A closed buffer is empty, takes nothing and says that it is closed."""
    for path in (None, tmp_path / "rows"):
        buffer = MemmapBuffer(path)
        buffer.append([1, 2])
        buffer.close()
        buffer.close()

        assert len(buffer) == 0
        with pytest.raises(ConfigError, match="closed"):
            buffer.append([3])
    assert np.fromfile(tmp_path / "rows", np.int64).tolist() == [1, 2]


def test_a_buffer_without_a_path_leaves_nothing(tmp_path, monkeypatch):
    """Its file has no name from the beginning."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    buffer = MemmapBuffer()
    buffer.append(np.arange(1_000))

    assert list(tmp_path.iterdir()) == []
    assert buffer.array.sum() == 499_500


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"mode": "w"}, ConfigError, "'w'.*'a'.*'r'"),
        ({"mode": "r"}, ConfigError, "'r'"),
        ({"dtype": object}, ConfigError, "object.*plain numbers"),
        ({"dtype": [("a", object)]}, ConfigError, "plain numbers"),
        ({"dtype": "S0"}, ConfigError, "numeric"),
        ({"dtype": "S3"}, ConfigError, "S3.*numeric"),
        ({"dtype": "U3"}, ConfigError, "U3.*numeric"),
        ({"dtype": "V0"}, ConfigError, "numeric"),
        ({"shape": (0,)}, ConfigError, "shape.*0"),
        ({"shape": (2, 0)}, ConfigError, "shape.*0"),
        ({"shape": (-1,)}, ConfigError, "shape.*-1"),
        ({"shape": (-1, -1)}, ConfigError, "shape.*-1"),
        ({"shape": 3}, ConfigError, "shape.*3"),
        ({"shape": (2.5,)}, ConfigError, "shape.*2.5"),
        ({"shape": "22"}, ConfigError, "shape.*22"),
        ({"chunk_rows": "a"}, ConfigError, "chunk_rows.*'a'"),
        ({"chunk_rows": 0}, ConfigError, "chunk_rows.*0"),
        ({"chunk_rows": -5}, ConfigError, "chunk_rows.*-5"),
        ({"chunk_rows": 1.5}, ConfigError, "chunk_rows.*1.5"),
        ({"length": 5}, CorruptDataError, "5 rows.*0 are there"),
        ({"length": -1}, (ConfigError, CorruptDataError), "-1"),
        ({"length": 0.0}, ConfigError, "length.*0.0"),
        ({"length": False}, ConfigError, "length.*False"),
    ],
    ids=repr,
)
def test_senseless_arguments_are_refused(arguments, error, says):
    """The error names the argument and the value."""
    with pytest.raises(error, match=says) as caught:
        MemmapBuffer(**arguments)
    assert isinstance(caught.value, PoolishError)


def test_files_that_do_not_fit_are_refused(tmp_path):
    """Half a row, fewer rows than were promised, a directory, nothing at all."""
    (tmp_path / "half").write_bytes(b"123456789")
    with pytest.raises(CorruptDataError, match=r"half.*9 bytes.*8"):
        MemmapBuffer(tmp_path / "half")
    with MemmapBuffer(tmp_path / "half", mode="r", length=1) as buffer:
        assert len(buffer) == 1
    with pytest.raises(CorruptDataError, match=r"2 rows.*1 are there"):
        MemmapBuffer(tmp_path / "half", length=2)
    with pytest.raises(FileNotFoundError):
        MemmapBuffer(tmp_path / "absent", mode="r")
    with pytest.raises((IsADirectoryError, CorruptDataError)):
        MemmapBuffer(tmp_path)
    assert (tmp_path / "half").read_bytes() == b"123456789"
    assert not (tmp_path / "absent").exists()


def test_a_buffer_shows_what_it_is(tmp_path):
    """Rows, dtype, shape, place."""
    assert repr(MemmapBuffer()) == "<MemmapBuffer of 0 rows of int64>"
    buffer = MemmapBuffer(tmp_path / "rows", dtype="f4", shape=(2,))
    buffer.append(np.zeros((1_234, 2), np.float32))
    assert repr(buffer) == f"<MemmapBuffer of 1,234 rows of float32[2] in {tmp_path / 'rows'}>"


def test_a_buffer_without_a_name_is_not_sent_to_another_process():
    """Pickling never tries to copy the addresses that are reserved for it; the error says what to do instead."""
    buffer = MemmapBuffer()
    buffer.append([1, 2])
    for send in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises((TypeError, ConfigError), match="path"):
            send(buffer)


def n_open_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"))


def test_dropped_buffers_let_their_files_go(tmp_path):
    """Closed or not, with a name or without, and those that could not be made."""
    MemmapBuffer(tmp_path / "rows").close()
    before = n_open_files()
    for _ in range(5):
        MemmapBuffer().append([1])
        MemmapBuffer(tmp_path / "rows", length=0).append([1])
        for path in (None, tmp_path / "short"):
            with pytest.raises(CorruptDataError):
                MemmapBuffer(path, length=5)

    assert n_open_files() == before


def test_many_buffers_may_be_open():
    """Each reserves addresses, not memory."""
    buffers = [MemmapBuffer() for _ in range(200)]
    for number, buffer in enumerate(buffers):
        buffer.append(number)

    assert [buffer[0] for buffer in buffers] == list(range(200))
