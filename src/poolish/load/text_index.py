r"""Where the lines or documents of a text file begin and end, found as far as somebody has asked.

A line ends with ``\n``; a ``\r`` before it belongs to the ending, one elsewhere to the text. What comes after the last
``\n`` is a line too, unless it is empty. Empty lines count. A document is a run of lines that are not empty.

    scanned, never looked at again             |  not looked at yet
    line line line ... the begin of a line     |  found when the next row is asked for, also if it is written only then

The bytes after the last line end are a row that may still change; whoever reads a file in the making leaves it out.
"""

from __future__ import annotations

import os
from array import array

from poolish.errors import CorruptDataError

CHUNK = 1 << 20


class TextIndex:
    r"""The rows of one file, as ranges of bytes; documents instead of lines with ``by_document``.

    >>> _ = (folder / "a.txt").write_bytes(b"rye\r\n\nwheat")
    >>> index = TextIndex(str(folder / "a.txt"), by_document=False)
    >>> index.scan(None)
    >>> [index.span(i) for i in range(index.n_rows(unfinished=True))], index.n_rows(unfinished=False)
    ([(0, 3), (5, 5), (6, 11)], 2)
    """

    def __init__(self, path: str, *, by_document: bool) -> None:
        self.path, self._by_document = path, by_document
        self._begins, self._ends = array("q"), array("q")
        # Bytes scanned, where the line begins that they end in, the open document, and how many rows are certain.
        # One tuple, replaced at once: an interrupted scan then begins again where this says.
        self._state: tuple[int, int, tuple[int, int] | None, int] = (0, 0, None, 0)
        self._tail: tuple[int, int] | None = None

    def scan(self, n_wanted: int | None) -> None:
        """Look until ``n_wanted`` rows are certain or the file ends; None looks at all of it."""
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            if size < self._state[0]:
                raise CorruptDataError(f"{self.path}: {size:,} bytes, there were {self._state[0]:,}; open it anew")
            while n_wanted is None or self._state[3] < n_wanted:
                chunk = os.pread(fd, CHUNK, self._state[0])
                if not chunk:
                    break
                self._take(chunk)
            self._tail = self._last(fd)
        finally:
            os.close(fd)

    def n_rows(self, *, unfinished: bool) -> int:
        """How many rows are known; with or without what comes after the last line end."""
        return self._state[3] + (unfinished and self._tail is not None)

    def span(self, row: int) -> tuple[int, int]:
        """The bytes of a row, without its line end."""
        if row < self._state[3]:
            return self._begins[row], self._ends[row]
        assert self._tail is not None
        return self._tail

    def _take(self, chunk: bytes) -> None:
        offset, line, document, n_rows = self._state
        del self._begins[n_rows:], self._ends[n_rows:]
        at = chunk.find(b"\n")
        while at >= 0:
            end = offset + at
            has_return = end > line and (chunk[at - 1] == 13 if at else self._before(offset) == b"\r")
            document = self._line(line, end - has_return, document)
            line = end + 1
            at = chunk.find(b"\n", at + 1)
        self._state = (offset + len(chunk), line, document, len(self._ends))

    def _line(self, begin: int, end: int, document: tuple[int, int] | None) -> tuple[int, int] | None:
        if not self._by_document:
            self._begins.append(begin)
            self._ends.append(end)
            return None
        if begin < end:
            return (begin if document is None else document[0], end)
        if document is not None:
            self._begins.append(document[0])
            self._ends.append(document[1])
        return None

    def _before(self, offset: int) -> bytes:
        """The last byte of the chunk before."""
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, 1, offset - 1)
        finally:
            os.close(fd)

    def _last(self, fd: int) -> tuple[int, int] | None:
        """What a reader who cannot wait takes for the last row."""
        scanned, line, document, _ = self._state
        if os.pread(fd, 1, scanned):
            return None  # not at the end yet
        if line < scanned:
            begin = line if document is None else document[0]
            return begin, scanned
        return document
