"""Sizes as people write them."""

from __future__ import annotations

import pytest

from poolish.errors import ConfigError
from poolish.files import parse_bytes


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
