"""Checksummed lines: whole or not there, read on from where they were read."""

from __future__ import annotations

import pytest

from poolish.errors import CorruptDataError
from poolish.files.checksums import ChecksummedLines


def test_lines_are_read_once_and_again_after_a_rewind(tmp_path):
    writer, reader = ChecksummedLines(tmp_path / "lines"), ChecksummedLines(tmp_path / "lines")
    assert list(reader.unread()) == []
    writer.write({"n": 1})
    assert list(reader.unread()) == [{"n": 1}]
    writer.write({"n": 2}, {"n": 3})

    assert list(reader.unread()) == [{"n": 2}, {"n": 3}]
    reader.rewind()
    assert [line["n"] for line in reader.unread()] == [1, 2, 3]


def test_a_torn_line_is_none_and_the_next_writer_cuts_it_off(tmp_path):
    lines = ChecksummedLines(tmp_path / "lines")
    lines.write({"n": 1})
    with open(lines.path, "ab") as file:
        file.write(b'{"n":2} 01')
    assert list(lines.unread()) == [{"n": 1}]

    lines.write({"n": 3})

    assert list(lines.unread()) == [{"n": 3}]


@pytest.mark.parametrize("damage", [b"{} 0000000000000000\n", b"\n", b"\xff\n"])
def test_a_damaged_line_names_its_place(tmp_path, damage):
    lines = ChecksummedLines(tmp_path / "lines")
    lines.write({"n": 1})
    n_bytes = lines.path.stat().st_size
    with open(lines.path, "ab") as file:
        file.write(damage)

    with pytest.raises(CorruptDataError, match=f"byte {n_bytes}: a damaged line"):
        list(lines.unread())
