r"""Text files as rows, by byte offsets: a file is looked at once, as far as needed, and never held in memory.

Where the lines or documents of a text file begin and end, found as far as a row was asked for.

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

import codecs
import glob
import os
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from poolish.concurrency import Locked
from poolish.errors import BadText, ConfigError, CorruptDataError
from poolish.files import local_stamp
from poolish.load.base import BaseDataset, Transform, local_file
from poolish.load.dataset import check_index

_UNITS = ("line", "document")
_DOCUMENTS = ("blank", "file")


class TextDataset(Locked, BaseDataset):
    r"""The lines or documents of text files: ``{"text": str}``.

    ``paths`` is a path, a pattern such as ``"corpus/*.txt"``, or a list of paths; files come in the order given,
    those of a pattern sorted. Lines end with ``\n`` or ``\r\n``, which are left off; empty lines count, and so does a
    last line without an end. With ``unit="document"``, documents are separated by empty lines, or with
    ``documents="file"`` each file is one; inside them ``\r\n`` becomes ``\n``.

    Reading row i looks no further than row i; asking for the length looks at everything. The last file may grow. A file
    that is replaced or rewritten while the dataset is open is an error: its rows would be cut at the old line ends.
    While it is being written, ``unfinished=False`` leaves out what has no line end yet (of documents: no empty line).

    >>> _ = (folder / "flour.txt").write_text("rye\n\nwheat\nspelt")
    >>> list(TextDataset(folder / "flour.txt"))
    [{'text': 'rye'}, {'text': ''}, {'text': 'wheat'}, {'text': 'spelt'}]
    >>> list(TextDataset(folder / "*.txt", unit="document"))
    [{'text': 'rye'}, {'text': 'wheat\nspelt'}]
    """

    input_name = "text"
    unidentified = ("_paths", "_indexes", "_starts")

    def __init__(
        self,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        unit: str = "line",
        encoding: str = "utf-8",
        *,
        documents: str = "blank",
        unfinished: bool = True,
        transform: Transform | None = None,
    ) -> None:
        if unit not in _UNITS or documents not in _DOCUMENTS:
            raise ConfigError(f"unit={unit!r}, documents={documents!r}: choose of {_UNITS} and of {_DOCUMENTS}")
        self._paths = _found(paths)
        Locked.__init__(self)
        BaseDataset.__init__(self, Path(os.path.commonpath([os.path.dirname(path) for path in self._paths])), transform)
        self._encoding, self._unit, self._unfinished = _checked_encoding(encoding), unit, unfinished
        self._one_per_file = unit == "document" and documents == "file"
        self._indexes: list[TextIndex] = []
        if not self._one_per_file:
            last = len(self._paths) - 1
            self._indexes = [
                TextIndex(path, by_document=unit == "document", may_grow=k == last)
                for k, path in enumerate(self._paths)
            ]
            # Of the moment before the first byte was read, so that rows and version are of the same files.
            self._stamps = {index.path: index.stamp for index in self._indexes}
        # Rows before each file, as far as files have been scanned to their ends.
        self._starts = [0]

    def __len__(self) -> int:
        if self._one_per_file:
            return len(self._paths)
        with self._lock:
            return self._scan(None)

    def __getitem__(self, index: int) -> Any:
        return self._many([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Looks as far as the last of them."""
        return self._many(indices)

    def _many(self, indices: Sequence[int]) -> list[Any]:
        if self._one_per_file:
            return super().__getitems__(indices)
        with self._lock:
            is_plain = all(type(index) is int and index >= 0 for index in indices)
            n_rows = self._scan(max(indices, default=-1) + 1 if is_plain else None)
        return [self._finished(check_index(index, n_rows)) for index in indices]

    def _scan(self, n_wanted: int | None) -> int:
        """Find rows until there are ``n_wanted`` or no more; how many there are."""
        while True:
            number = len(self._starts) - 1
            index, before = self._indexes[number], self._starts[-1]
            is_last = number == len(self._indexes) - 1
            if n_wanted is not None and before + index.n_rows(unfinished=False) >= n_wanted:
                return before + index.n_rows(unfinished=False)
            index.scan(None if n_wanted is None else n_wanted - before)
            # Only the last file can be one that is still being written.
            n_rows = before + index.n_rows(unfinished=self._unfinished or not is_last)
            if is_last or (n_wanted is not None and n_rows >= n_wanted):
                return n_rows
            self._starts.append(n_rows)

    def read(self, number: int) -> dict[str, Any]:
        """The text of one row."""
        if self._one_per_file:
            data = Path(self._paths[number]).read_bytes()
            return {"text": self._text(data, number, 0).replace("\r\n", "\n")}
        file = bisect_right(self._starts, number) - 1
        begin, end = self._indexes[file].span(number - self._starts[file])
        data = self._indexes[file].read(begin, end)
        text = self._text(data, file, begin)
        return {"text": text if self._unit == "line" else text.replace("\r\n", "\n")}

    def _text(self, data: bytes, file: int, offset: int) -> str:
        try:
            return data.decode(self._encoding)
        except UnicodeDecodeError as error:
            raise BadText(
                f"{self._paths[file]}, byte {offset + error.start}: not {self._encoding} ({error.reason}); "
                "give the right encoding=, or repair the file"
            ) from None

    @property
    def length_costs(self) -> bool:
        """The files have to be looked at from end to end."""
        return True

    def files(self) -> list[str]:
        """The text files."""
        return list(self._paths)

    def files_of(self, number: int) -> list[str]:
        """The file that is the document; elsewhere the index checks its file itself, which may grow."""
        return [self._paths[number]] if self._one_per_file else []

    def following(self, number: int, n_rows: int) -> range:
        """Those of the same file, which is looked at as far as they reach."""
        if self._one_per_file:
            return range(number + 1, number + 1)
        with self._lock:
            n_found = self._scan(number + 1 + n_rows)
            file = bisect_right(self._starts, number)
            end = self._starts[file] if file < len(self._starts) else n_found
        return range(number + 1, min(number + 1 + n_rows, end))

    @property
    def version(self) -> str:
        """Of the files, and how far the last row reaches if it has no end yet."""
        end = self._indexes[-1].unfinished_end if self._indexes and self._unfinished else None
        return super().version if end is None else f"{super().version}|{end}"


def _found(paths: Any) -> list[str]:
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    found: list[str] = []
    for path in [os.fspath(item) for item in given]:
        local_file(path, "TextDataset")
        # A file whose name has a bracket in it is that file, not a pattern.
        matches = [path] if os.path.exists(path) else sorted(glob.glob(path, recursive=True))
        if not matches or os.path.isdir(path):
            raise FileNotFoundError(f"{path}: no such file; give a file, a list of files or a pattern")
        found += [os.path.abspath(match) for match in matches if not os.path.isdir(match)]
    if not found:
        raise FileNotFoundError(f"{paths}: no files; give a file, a list of files or a pattern")
    return found


def _checked_encoding(encoding: str) -> str:
    try:
        is_plain = (
            "\r\n".encode(encoding)[-2:] == b"\r\n" and len("\n\n".encode(encoding)) - len("\n".encode(encoding)) == 1
        )
        name = codecs.lookup(encoding).name
    except LookupError:
        raise ConfigError(f"encoding={encoding!r}: Python knows no such encoding") from None
    if not is_plain:
        raise ConfigError(f"encoding={encoding!r}: its line ends are not single bytes; convert the files to utf-8")
    return name


@contextmanager
def _opened(path: str) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


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
        with _opened(self.path) as fd:
            self._check(fd)
            while n_wanted is None or self._state[3] < n_wanted:
                chunk = os.pread(fd, CHUNK, self._state[0])
                if not chunk:
                    break
                self._take(chunk)
            self._tail = self._last(fd)
            self._check(fd)

    def read(self, begin: int, end: int) -> bytes:
        """The bytes of a span, from the content that was scanned."""
        with _opened(self.path) as fd:
            data = os.pread(fd, end - begin, begin)
            self._check(fd)
        return data

    @property
    def unfinished_end(self) -> int | None:
        """Where the row ends that may still change; None if there is none."""
        return None if self._tail is None else self._tail[1]

    def _ends_up_to(self, size: int) -> tuple[bytes, bytes, int]:
        with _opened(self.path) as fd:
            n_bytes = min(size, _ENDS)
            return os.pread(fd, n_bytes, 0), os.pread(fd, n_bytes, size - n_bytes), size

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
        with _opened(self.path) as fd:
            return os.pread(fd, 1, offset - 1)

    def _last(self, fd: int) -> tuple[int, int] | None:
        """What a reader who cannot wait takes for the last row."""
        scanned, line, document, _ = self._state
        if os.pread(fd, 1, scanned):
            return None  # not at the end yet
        if line < scanned:
            begin = line if document is None else document[0]
            return begin, scanned
        return document
