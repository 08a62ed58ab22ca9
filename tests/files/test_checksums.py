"""Every byte that is read back can be checked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish.files import CHECKSUM, checksum, checksum_hex


def test_checksums_are_pinned():
    """Files of earlier releases stay readable: the hash and its name never change."""
    assert CHECKSUM == "xxh3_64"
    assert checksum() == 0x2D06800538D394C2
    assert checksum_hex(b"poolish") == "c7fd31f0689af499"
    assert checksum_hex(bytes(range(256)) * 4096) == "d36c0e13a3df139e"


@given(st.binary(), st.data())
def test_pieces_do_not_matter(data, draw):
    """The checksum of the pieces is that of the whole, however it was cut."""
    cut = draw.draw(st.integers(0, len(data)))

    assert checksum(data[:cut], memoryview(data)[cut:]) == checksum(data)
    assert int(checksum_hex(data), 16) == checksum(data)
    assert len(checksum_hex(data)) == 16


@given(st.binary(min_size=1, max_size=5_000), st.data())
def test_one_flipped_bit_is_seen(data, draw):
    """Anywhere."""
    flipped = bytearray(data)
    flipped[draw.draw(st.integers(0, len(data) - 1))] ^= 1 << draw.draw(st.integers(0, 7))

    assert checksum(flipped) != checksum(data)


def test_arrays_are_their_bytes():
    """Any contiguous buffer, of any shape and type."""
    array = np.arange(12, dtype="<f4").reshape(3, 4)

    assert checksum(array) == checksum(array.tobytes()) == checksum(array[:1], array[1:])


@pytest.mark.parametrize("bad", ["text", 7, None, np.arange(10)[::2], np.ones((3, 4)).T])
def test_what_has_no_bytes_of_its_own_is_refused(bad):
    """Text has no bytes before it is encoded, and a strided array none in one piece."""
    for arguments in ((bad,), (b"", bad)):
        with pytest.raises((TypeError, BufferError, ValueError)):
            checksum(*arguments)
