"""Small JSON files, names and sizes that come from outside: bounded, exact, never trusted."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish.errors import BadText, ConfigError, CorruptDataError, LimitExceeded
from poolish.files import check_name, parse_bytes, read_json, write_json

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=20,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


def types(value: object) -> object:
    """The value with the type of every part, because True == 1 == 1.0."""
    if isinstance(value, dict):
        return {name: types(part) for name, part in value.items()}
    if isinstance(value, list):
        return [types(part) for part in value]
    return type(value).__name__, repr(value)


@given(value=values)
def test_what_is_written_is_read_back_exactly(tmp_path_factory, value):
    """Large integers, floats to the last bit, any text, in the order of writing."""
    path = tmp_path_factory.getbasetemp() / "round.json"
    write_json(path, value, durable=False)

    assert types(read_json(path)) == types(value)
    assert json.dumps(read_json(path)) == json.dumps(value)


def test_the_file_is_plain_json_in_utf8(path):
    """Readable by any tool and by people."""
    write_json(path, {"field": "naïve", "n": 2**64})

    assert path.read_text("utf-8") == '{"field": "naïve", "n": 18446744073709551616}\n'


def test_replace_is_a_choice(path):
    """Without it an existing file stays."""
    write_json(path, 1)
    with pytest.raises(FileExistsError):
        write_json(path, 2, replace=False)
    write_json(path, 3)

    assert read_json(path) == 3


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b'{"a": 1} x', "Extra data"),
        (b'{"a": 1, "a": 2}', "key 'a' twice"),
        (b'{"b": {"a": 1, "a": 1}}', "key 'a' twice"),
        (b"[NaN]", "NaN is not JSON"),
        (b"-Infinity", "-Infinity is not JSON"),
        (b"1e999", "1e999 is beyond float64"),
        (b'"\xff"', "can't decode byte 0xff"),
        (b"\xef\xbb\xbf1", "BOM"),
        (b"\0" * 40, "Expecting value"),
        (b"1" * 5_000, "Exceeds the limit"),
        (b'\\"' * 400_000, "Expecting value"),  # looked at once, not once for each quote
    ],
)
def test_a_damaged_file_is_refused_with_its_name_and_the_reason(path, data, reason):
    """CorruptDataError, which is a ValueError."""
    path.write_bytes(data)

    with pytest.raises(CorruptDataError, match=rf"state\.json: not valid JSON .*{reason}.*; restore it"):
        read_json(path)


@given(st.binary(max_size=60) | text.map(str.encode))
def test_whatever_is_in_a_file_is_read_or_refused(tmp_path_factory, data):
    """No other exception than those promised."""
    path = tmp_path_factory.getbasetemp() / "fuzz.json"
    path.write_bytes(data)
    with suppress(CorruptDataError, LimitExceeded):
        read_json(path)


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    "data", [nested(65), '{"a":' * 65 + "1" + "}" * 65, "[" * 400_000, '["]]]",' + nested(64) + "]"]
)
def test_too_deep_is_refused_before_it_is_parsed(path, data):
    """Also where the text in between pretends to close brackets."""
    path.write_text(data)

    with pytest.raises(LimitExceeded, match=r"state\.json: nested more than 64 deep"):
        read_json(path)


def test_brackets_in_text_are_text(path):
    """They nest nothing, whatever quotes are around them."""
    value = {"[" * 100: '\\"[' * 100, "a": ["{" * 100] * 100}
    write_json(path, value)

    assert read_json(path) == value
    path.write_text(nested(64))
    assert read_json(path)
    assert read_json(path, max_depth=64)
    with pytest.raises(LimitExceeded):
        read_json(path, max_depth=63)


def test_too_large_is_refused_before_it_is_read(path):
    """Also when the file is endless."""
    path.write_text(" " * 99 + "1")

    assert read_json(path, max_bytes=100) == 1
    with pytest.raises(LimitExceeded, match=r"state\.json: more than 99 bytes"):
        read_json(path, max_bytes=99)


def test_only_regular_files_are_read(path, tmp_path):
    """No link is followed, and nobody waits for a pipe."""
    (tmp_path / "other.json").write_text("1")
    path.symlink_to(tmp_path / "other.json")
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(CorruptDataError, match="symbolic link"):
        read_json(path)
    for odd in (tmp_path / "pipe", tmp_path, Path(os.devnull)):
        with pytest.raises(CorruptDataError, match="not a regular file"):
            read_json(odd)
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "missing")


def test_reading_leaves_no_descriptor_open(path, tmp_path):
    """Neither when it goes well nor when it does not."""
    path.write_text("{")
    before = len(os.listdir("/dev/fd"))
    for odd in (path, tmp_path):
        with pytest.raises(CorruptDataError):
            read_json(odd)

    assert len(os.listdir("/dev/fd")) == before


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ({1: 2}, TypeError),
        ({None: 1}, TypeError),
        ((1, 2), TypeError),
        ({"a": (1,)}, TypeError),
        ({"a": {1}}, TypeError),
        (b"bytes", TypeError),
        (float("nan"), ValueError),
        ([float("inf")], ValueError),
        ("\ud800", BadText),
        ("x" * 1_000_001, LimitExceeded),
        (json.loads(nested(65)), LimitExceeded),
    ],
)
def test_what_would_not_come_back_is_not_written(path, value, error):
    """The file that was there stays; the error names it."""
    write_json(path, "before")

    with pytest.raises(error) as raised:
        write_json(path, value)

    assert "state.json" in "".join([str(raised.value), *getattr(raised.value, "__notes__", [])])
    assert read_json(path) == "before"
    assert os.listdir(path.parent) == ["state.json"]


@pytest.mark.parametrize("name", ["a", "w0", "A.b_c-9", "_x", "-x", "0", "x" * 128])
def test_good_names_pass(name):
    """And are given back."""
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "../x", "a\\b", "a b", "a\n", "a\0", "é", "x" * 129, "a:b", None, 7, b"a"]
)
def test_bad_names_are_refused(name):
    """No string from outside becomes a path unchecked; the message says what it was for."""
    with pytest.raises(ConfigError, match=r"^provider .*: use 1 to 128 of A-Z"):
        check_name(name, "provider")


# Sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "n_bytes"),
    [
        (0, 0),
        (4096, 4096),
        (2**70, 2**70),
        ("4096", 4096),
        ("4096b", 4096),
        ("1kb", 1024),
        ("64 MiB", 64 * 2**20),
        ("64mb", 64 * 2**20),
        ("8gb", 8 * 2**30),
        (" 1.5GB ", 3 * 2**29),
        ("2Tib", 2**41),
        ("0.1tb", 2**40 // 10),
        ("0.5b", 0),
    ],
)
def test_a_size_is_a_number_of_bytes(size, n_bytes):
    """Numbers are bytes, units are powers of 1024 however they are spelt, and the result is always an int."""
    assert parse_bytes(size) == n_bytes
    assert type(parse_bytes(size)) is int


@pytest.mark.parametrize(
    "size",
    ["", "gb", "8 g b", "8  gb", "8pb", "8g", "-1", "-1gb", "1e9", "1.gb", ".5gb", "8gb!", "٨gb", "1_000", "9" * 9_999],
)
def test_text_that_is_no_size_is_refused(size):
    """What could be read in two ways is not guessed."""
    with pytest.raises(
        ConfigError, match=r'^size .*: write a number of bytes from 0, or text such as "64mb"'
    ) as caught:
        parse_bytes(size)

    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("size", [-1, True, 1.5, None, b"8gb", [8]])
def test_values_that_are_no_size_are_refused(size):
    """Neither negative numbers nor floats, which may have lost their last digits already."""
    with pytest.raises(ConfigError, match=r"^size "):
        parse_bytes(size)
