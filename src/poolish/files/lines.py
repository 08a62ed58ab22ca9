"""Append-only files of JSON lines, each with a checksum, written by one process at a time and read by any number.

    {"block":3,...} 9f2c...\n     a whole line: it ends in its checksum and a line feed, and never changes again
    {"block":4,...                what a killed writer left: no reader takes it, the next writer cuts it off

The caller holds a lock while it writes; readers need none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from poolish.errors import CorruptDataError
from poolish.files.checksums import checksum_hex
from poolish.files.documents import parse_json
from poolish.files.space import raising_store_full, write_at


class ChecksummedLines:
    """One file of lines, read from where it was read last.

    >>> lines = ChecksummedLines(folder / "members.jsonl")
    >>> lines.write({"name": "a"}), lines.write({"name": "b"})
    (None, None)
    >>> list(lines.unread()), list(lines.unread())
    ([{'name': 'a'}, {'name': 'b'}], [])
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def rewind(self) -> None:
        """Read from the first line again."""
        self._offset = 0

    def skip(self) -> None:
        """Take all that is there for read."""
        with open(self.path, "rb") as file:
            self._offset = _end_of_lines(file.fileno())

    def unread(self) -> Iterator[dict[str, Any]]:
        """Whole lines that were not read yet."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        for raw in data.split(b"\n")[:-1]:
            yield self._parsed(raw)
            self._offset += len(raw) + 1

    def _parsed(self, raw: bytes) -> dict[str, Any]:
        text, _, found = raw.rpartition(b" ")
        if found.decode("ascii", "replace") != checksum_hex(text):
            raise CorruptDataError(f"{self.path}, byte {self._offset}: a damaged line; restore the file or remove it")
        line: dict[str, Any] = parse_json(text.decode(), self.path)
        return line

    def write(self, *lines: dict[str, Any]) -> None:
        """Add lines, under the caller's lock."""
        data = b"".join(map(_to_line, lines))
        with raising_store_full(self.path):
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                end = _end_of_lines(fd)
                os.ftruncate(fd, end)
                write_at(fd, data, end)
            finally:
                os.close(fd)


def _to_line(value: dict[str, Any]) -> bytes:
    text = json.dumps(value, separators=(",", ":")).encode()
    return text + b" " + checksum_hex(text).encode() + b"\n"


def _end_of_lines(fd: int) -> int:
    """Where the last whole line ends."""
    end = os.fstat(fd).st_size
    while end and os.pread(fd, 1, end - 1) != b"\n":
        end -= 1
    return end
