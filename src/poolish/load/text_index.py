r"""Where the lines or documents of a text file begin and end, found as far as somebody has asked.

A line ends with ``\n``; a ``\r`` before it belongs to the ending, one elsewhere to the text. What comes after the last
``\n`` is a line too, unless it is empty. Empty lines count. A document is a run of lines that are not empty.

    scanned, never looked at again             |  not looked at yet
    line line line ... the begin of a line     |  found when the next row is asked for, also if it is written only then

The bytes after the last line end are a row that may still change; a reader of a file in the making leaves it out.

Positions hold for one content. So each read checks that the file still is what it was when the index was made: another
inode, fewer bytes, or a rewrite is an error. Only the last file of a dataset may grow, and then the bytes at both ends
of what is known must still be the same.
"""

from __future__ import annotations

import os
from array import array

from poolish.errors import CorruptDataError
from poolish.files import local_stamp

CHUNK = 1 << 20
#: Bytes at each end of what is known that are compared when a file has grown.
_ENDS = 256


class TextIndex:
    r"""The rows of one file, as ranges of bytes; documents instead of lines with ``by_document``.

    >>> _ = (folder / "a.txt").write_bytes(b"rye\r\n\nwheat")
    >>> index = TextIndex(str(folder / "a.txt"), by_document=False)
    >>> index.scan(None)
    >>> [index.span(i) for i in range(index.n_rows(unfinished=True))], index.n_rows(unfinished=False)
    ([(0, 3), (5, 5), (6, 11)], 2)
    """

    def __init__(self, path: str, *, by_document: bool, may_grow: bool = True) -> None:
        self.path, self._by_document, self._may_grow = path, by_document, may_grow
        #: The stamp of the file before its first byte was read.
        self.stamp = local_stamp(path)
        size, modified, _, inode = map(int, self.stamp.split(":"))
        self._file = size, modified, inode
        #: The first and the last bytes that are known, and where the last ones end.
        self._known = self._ends_up_to(size) if may_grow else (b"", b"", 0)
        self._begins, self._ends = array("q"), array("q")
        # Bytes scanned, where the line begins that they end in, the open document, and how many rows are certain.
        # One tuple, replaced at once: an interrupted scan then begins again where this says.
        self._state: tuple[int, int, tuple[int, int] | None, int] = (0, 0, None, 0)
        self._tail: tuple[int, int] | None = None

    def scan(self, n_wanted: int | None) -> None:
        """Look until ``n_wanted`` rows are certain or the file ends; None looks at all of it."""
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._check(fd)
            while n_wanted is None or self._state[3] < n_wanted:
                chunk = os.pread(fd, CHUNK, self._state[0])
                if not chunk:
                    break
                self._take(chunk)
            self._tail = self._last(fd)
            self._check(fd)
        finally:
            os.close(fd)

    def read(self, begin: int, end: int) -> bytes:
        """The bytes of a span, from the content that was scanned."""
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(fd, end - begin, begin)
            self._check(fd)
        finally:
            os.close(fd)
        return data

    @property
    def unfinished_end(self) -> int | None:
        """Where the row ends that may still change; None if there is none."""
        return None if self._tail is None else self._tail[1]

    def _ends_up_to(self, size: int) -> tuple[bytes, bytes, int]:
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            n_bytes = min(size, _ENDS)
            return os.pread(fd, n_bytes, 0), os.pread(fd, n_bytes, size - n_bytes), size
        finally:
            os.close(fd)

    def _check(self, fd: int) -> None:
        """Raise if the open file is not the one that is known, or that one with more at its end."""
        found = os.fstat(fd)
        now = found.st_size, found.st_mtime_ns, found.st_ino
        if now == self._file:
            return
        has_grown = self._may_grow and now[2] == self._file[2] and now[0] > self._file[0]
        first, last, end = self._known
        ends = os.pread(fd, len(first), 0), os.pread(fd, len(last), end - len(last))
        if not has_grown or ends != (first, last):
            raise CorruptDataError(f"{self.path}: changed while the dataset was open; open the dataset anew")
        self._file = now

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
        end = offset + len(chunk)
        if end > self._known[2]:
            self._known = (self._known[0] or chunk[:_ENDS], chunk[-_ENDS:], end)
        self._state = (end, line, document, len(self._ends))

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
