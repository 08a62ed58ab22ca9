"""The three growing files of a stream, called lanes, and the questions they answer: rows, tokens, steps.

    data    int64 per token         the values
    index   int64 x 3 per write     start, type + 256 * ordinal of the step, step
    types   uint8 per token         the same types again, so that a window need not search the index

A field-write ends where the next one starts; row ``n_rows`` is only a start, and closes the last one. The ordinal
counts steps from 0 without gaps, so that the i-th step can be found by searching.

Lanes are mapped, or copied into memory for directories that others may tamper with: truncating a mapped file kills
the process that reads it, and no program can catch that. Reading by system calls is an exception at worst. A copy
holds what is published and kept, and grows when the reader refreshes.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from poolish import kernels
from poolish.errors import CorruptDataError
from poolish.files import checksum_hex, open_regular, punch
from poolish.tokens.head import PAGE, Head
from poolish.tokens.logs import Branches
from poolish.tokens.memmap_buffer import MemmapBuffer

Int64 = NDArray[np.int64]

_NONE: Int64 = np.empty(0, np.int64)

START, TYPE, STEP = 0, 1, 2
CHUNK_ROWS = 1 << 18

#: Checksums cover whole blocks of a file, so that a bounded stream can give blocks back.
BLOCK = 1 << 20


@dataclass(frozen=True)
class StreamState:
    """How far a stream reaches: index rows from ``first`` to ``rows``, tokens up to ``tokens``."""

    first: int
    rows: int
    tokens: int
    kinds: bytes


class StreamFiles:
    """The files of a stream that grow."""

    def __init__(self, path: Path, *, mode: str, mapped: bool = True) -> None:
        """Open the lanes to read (``"r"``), to write (``"a"``: types may be missing), or make them (``"w"``)."""
        self.path = path
        needed = {"w": (), "a": ("data", "index"), "r": ("data", "index", "types")}[mode]
        for name in needed:
            if not os.path.lexists(path / name):
                raise CorruptDataError(f"{path / name}: missing; restore it from a copy")
        with ExitStack() as opened:  # closes what is open if anything below fails
            lanes = []
            for name, dtype, shape in (("data", np.int64, ()), ("index", np.int64, (3,)), ("types", np.uint8, ())):
                lane = _lane(path / name, dtype, shape, mode.replace("w", "a"), mapped)
                opened.callback(lane.close, cut=False)
                lanes.append(lane)
            opened.pop_all()
        self.data, self.index, self.types = lanes

    def fetch(self, first: int, n_rows: int, n_tokens: int) -> None:
        """Have the rows and tokens there that are about to be read; maps have them anyway."""
        if isinstance(self.index, CopiedLane):
            self.index.fetch(first, n_rows + 1, n_rows)  # of the row behind the last only the start is there yet
            first_token = min(self.tokens_at(first), n_tokens)
            for lane in (self.data, self.types):
                if isinstance(lane, CopiedLane):
                    lane.fetch(first_token, n_tokens, n_tokens)

    def reserve(self, n_rows: int, n_tokens: int) -> bool:
        """Reserve room for rows and tokens, and for the row behind the last; whether anything had to grow."""
        before = self.data.capacity, self.index.capacity, self.types.capacity
        self.data.reserve(n_tokens)
        self.types.reserve(n_tokens)
        self.index.reserve(n_rows + 1)
        return before != (self.data.capacity, self.index.capacity, self.types.capacity)

    def secure(self, n_rows: int, n_tokens: int) -> None:
        """Make sure that the disk has the free space behind these rows and tokens."""
        self.data.file.secure(n_tokens * 8)
        self.types.file.secure(n_tokens)
        self.index.file.secure(n_rows * 24)

    def refresh(self) -> None:
        """Reach as far as the files do now."""
        for lane in (self.data, self.index, self.types):
            lane.refresh()

    def tokens_at(self, row: int) -> int:
        """Where a row starts, which is the length in tokens for the row behind the last."""
        return int(self.index.room[row, START])

    def check_sizes(self, n_rows: int, n_tokens: int, *, with_types: bool = True) -> None:
        """Refuse files that are too short: reading behind their end would kill the process."""
        needed = [(self.index, n_rows + 1), (self.data, n_tokens)] + ([(self.types, n_tokens)] if with_types else [])
        for lane, rows in needed:
            if lane.capacity < rows:
                raise CorruptDataError(
                    f"{lane.path}: {lane.file.size:,} bytes, {rows * lane.row_bytes:,} were published; "
                    "it was truncated: restore the directory from a copy"
                )

    def sync(self) -> None:
        """Wait until the disk has all of it."""
        for lane in (self.data, self.index, self.types):
            lane.flush()

    def punch(self, n_rows: int, n_tokens: int) -> None:
        """Give back the whole blocks below these rows and tokens."""
        for lane, rows in ((self.data, n_tokens), (self.types, n_tokens), (self.index, n_rows)):
            punch(lane.file.fd, 0, rows * lane.row_bytes // BLOCK * BLOCK)

    def close(self) -> None:
        """Close the files; they keep their length, because readers may have them mapped."""
        for lane in (self.data, self.index, self.types):
            lane.close(cut=False)

    # Searching -----------------------------------------------------------------------------------------------

    def rows_not_below(self, column: int, keys: Int64, low: int, high: int) -> Int64:
        """For each key the first row of [low, high) whose column is not below it."""
        found = np.empty(len(keys), np.int64)
        kernels.search(self.index.room, 3, column, low, high, np.ascontiguousarray(keys, np.int64), found)
        return found

    def ordinal(self, row: int) -> int:
        """The number of the step that a row belongs to."""
        return int(self.index.room[row, TYPE]) >> 8

    def rows_of_ordinals(self, ordinals: Int64, low: int, high: int) -> Int64:
        """The rows where steps begin, given by their ordinals; ``high`` for the step behind the last."""
        return self.rows_not_below(TYPE, ordinals << 8, low, high)

    # Checking ------------------------------------------------------------------------------------------------

    def check_rows(self, first: int, n_rows: int, n_tokens: int, n_fields: int) -> None:
        """Whether the index makes sense from ``first`` on: in order, inside the data, of known types."""
        for begin in range(first, n_rows, CHUNK_ROWS):
            end = min(begin + CHUNK_ROWS, n_rows)
            # One row more on the left, to compare with; one on the right, where the last one ends.
            rows = np.array(self.index.room[max(begin - 1, first) : end + 1])
            bad = first_bad_row(rows, n_tokens, n_fields)
            if bad >= 0:
                row = max(begin - 1, first) + bad
                raise CorruptDataError(
                    f"{self.index.path}: row {row:,} makes no sense {rows[bad].tolist()}; restore it from a copy"
                )

    def wrong_types(self, first: int, n_rows: int) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Where the types lane differs from what the index says, a block at a time, and what is right."""
        for begin in range(first, n_rows, CHUNK_ROWS):
            rows = np.array(self.index.room[begin : min(begin + CHUNK_ROWS, n_rows) + 1])
            types = np.repeat((rows[:-1, TYPE] & 0xFF).astype(np.uint8), np.diff(rows[:, START]))
            start = int(rows[0, START])
            there = self.types.room[start : start + len(types)]
            if len(there) != len(types) or not np.array_equal(there, types):
                yield start, types


class View(NamedTuple):
    """A stream as it is now: rows and tokens from the first that is kept to the last that is published."""

    lanes: StreamFiles
    first_row: int
    first_token: int
    rows: int
    tokens: int
    branches: Branches

    @property
    def reach(self) -> tuple[int, int, int, int]:
        """What is kept and published; equal reaches of one stream are equal views."""
        return self.first_row, self.first_token, self.rows, self.tokens

    def identity(self, low: int, high: int) -> str:
        """A name for the index rows [low, high) among all copies of this stream, also those that diverged.

        It stays the same as the stream grows. Rows of 0.1.0, which recorded no branches, are named by their content.
        """
        branch = self.branches.name_below(high)
        if low >= self.branches.first_known:
            return branch
        index, data = self.lanes.index.room, self.lanes.data.room
        tokens = data[int(index[low, START]) : int(index[high, START])]
        return f"{branch}/{checksum_hex(np.ascontiguousarray(index[low:high]).data, tokens.data)}"

    def branch_below(self, row: int) -> str:
        """Which branch wrote the index rows below one, as text that ``has_branch`` compares."""
        return f"{row}:{self.branches.name_below(row)}"

    def has_branch(self, branch: str) -> bool:
        """Whether the same branches wrote the same rows here."""
        row, _, name = branch.partition(":")
        return row.isdecimal() and self.branches.name_below(int(row)) == name

    def breaks(self) -> Int64:
        """The numbers of the steps that no episode crosses the beginning of, as far as they have begun."""
        rows = self.branches.breaks
        if not len(rows) or self.rows == self.first_row:
            return _NONE
        rows = rows[np.searchsorted(rows, self.first_row, side="right") : np.searchsorted(rows, self.rows)]
        # The step that was being written may have been continued, by one writer after the other.
        ordinals = np.unique(self.ordinals_of(rows - 1)) + 1
        return ordinals[ordinals <= self.lanes.ordinal(self.rows - 1)]

    def row_not_below(self, column: int, key: int) -> int:
        """The first row whose column is not below a key."""
        return int(kernels.search_one(self.lanes.index.room, 3, column, self.first_row, self.rows, key))

    def rows_not_below(self, column: int, keys: Int64) -> Int64:
        """For each key the first row whose column is not below it."""
        return self.lanes.rows_not_below(column, keys, self.first_row, self.rows)

    def starts_of(self, rows: Int64) -> Int64:
        """Where rows begin."""
        starts: Int64 = self.lanes.index.room[rows, START]
        return starts

    def ordinals_of(self, rows: Int64) -> Int64:
        """The numbers of the steps that rows belong to."""
        ordinals: Int64 = self.lanes.index.room[rows, TYPE] >> 8
        return ordinals

    @property
    def first_ordinal(self) -> int:
        """The number of the first step that is kept."""
        return self.lanes.ordinal(self.first_row) if self.rows > self.first_row else 0

    @property
    def n_steps(self) -> int:
        """How many steps there are."""
        return self.lanes.ordinal(self.rows - 1) - self.first_ordinal + 1 if self.rows > self.first_row else 0

    def begin_of(self, ordinal: int) -> int:
        """Where a step begins, given by its number."""
        return self.lanes.tokens_at(self.row_not_below(TYPE, ordinal << 8))

    def begins_of(self, ordinals: Int64) -> Int64:
        """Where steps begin, given by their numbers."""
        return self.starts_of(self.rows_not_below(TYPE, ordinals << 8))

    def steps_before(self, position: int) -> int:
        """How many steps begin before a position, as the number of the next one."""
        row = self.row_not_below(START, position)
        return self.lanes.ordinal(row - 1) + 1 if row > self.first_row else self.first_ordinal

    def steps_before_each(self, positions: Int64) -> Int64:
        """The same for many positions."""
        rows = self.rows_not_below(START, positions)
        begun = self.ordinals_of(np.maximum(rows - 1, self.first_row)) + 1
        return np.where(rows > self.first_row, begun, self.first_ordinal)


def _lane(path: Path, dtype: DTypeLike, shape: tuple[int, ...], mode: str, mapped: bool) -> MemmapBuffer:
    if mapped:
        return MemmapBuffer(path, dtype=dtype, shape=shape, mode=mode, length=0)
    return CopiedLane(path, dtype, shape)


def first_bad_row(rows: Int64, n_tokens: int, n_fields: int) -> int:
    """The first row that does not follow from the one before it, or -1. Of the last row only the start counts."""
    starts, types, ordinals, steps = rows[:, START], rows[:-1, TYPE] & 0xFF, rows[:-1, TYPE] >> 8, rows[:-1, STEP]
    bad = (types >= n_fields) | (steps < 0) | (starts[:-1] < 0) | (starts[1:] < starts[:-1]) | (starts[1:] > n_tokens)
    is_same = np.diff(ordinals) == 0
    in_step = (np.diff(steps) == 0) & (np.diff(types) > 0)
    next_step = (np.diff(steps) > 0) & (np.diff(ordinals) == 1)
    bad[1:] |= ~np.where(is_same, in_step, next_step)
    return int(np.argmax(bad)) if bad.any() else -1


# Copies in memory ------------------------------------------------------------------------------------------------


Bytes = NDArray[np.uint8]


class CopiedFile:
    """A file of which a part is held in memory; looks like a ``MappedFile`` to a reader."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = open_regular(path, os.O_RDONLY)
        self._close = weakref.finalize(self, os.close, self.fd)  # also for those that are never closed
        self._room: Bytes = np.empty(0, np.uint8)
        self._held = self._settled = 0

    @property
    def size(self) -> int:
        """How long the file is now."""
        return os.fstat(self.fd).st_size

    @property
    def bytes(self) -> Bytes:
        """The part that is held, from the beginning of the file; what was not kept is undefined."""
        return self._room[: self._held]

    def fetch(self, first: int, end: int, settled: int) -> None:
        """Hold the bytes up to ``end``, those below ``first`` excepted, which are gone anyway.

        What is below ``settled`` never changes any more; what is behind it is read again the next time.
        """
        if end > len(self._room):
            # Untouched memory costs nothing, so that what lies below `first` is only addresses.
            room = np.empty(max(end, 2 * len(self._room)), np.uint8)
            room[first : self._held] = self._room[first : self._held]
            self._room = room
        begin = max(first, self._settled)
        while begin < end:
            n_bytes = os.preadv(self.fd, [self._room[begin:end].data], begin)
            if n_bytes == 0:
                raise CorruptDataError(f"{self.path}: {begin:,} bytes, {end:,} were published; restore it from a copy")
            begin += n_bytes
        self._held, self._settled = max(self._held, end), max(self._settled, settled)

    def refresh(self) -> None:
        """Nothing to do: ``fetch`` looks at the file itself."""

    def close(self) -> None:
        """Close the file; what is held stays."""
        self._close()
        self.fd = -1


class CopiedLane(MemmapBuffer):
    """Rows of one dtype in a file, copied instead of mapped."""

    def __init__(self, path: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> None:
        self.dtype, self.shape = np.dtype(dtype), shape
        self.row_bytes = self.dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        self._is_named, self._length = True, 0
        self._copy = CopiedFile(path)
        self._file = self._copy  # type: ignore[assignment]  # to a reader it is one

    @property
    def capacity(self) -> int:
        """How many rows the file could hold."""
        return self._copy.size // self.row_bytes

    @property
    def room(self) -> NDArray[Any]:
        """The rows that are held."""
        return self._view()

    def fetch(self, first: int, end: int, settled: int) -> None:
        """Hold the rows from ``first`` up to ``end``, and what lies in one block of checksums with them."""
        begin = first * self.row_bytes // BLOCK * BLOCK
        self._copy.fetch(begin, end * self.row_bytes, settled * self.row_bytes)

    def refresh(self) -> None:
        """Nothing to do: ``fetch`` looks at the file itself."""

    def close(self, *, cut: bool = False) -> None:
        """Close the file."""
        self._copy.close()


class CopiedHead(Head):
    """The head page, read anew on each access."""

    def __init__(self, path: Path) -> None:
        self._file = _Page(path)  # type: ignore[assignment]  # to a reader it is one

    @property
    def words(self) -> NDArray[np.int64]:
        """The page as it is now; zeros, which prove nothing, if it was truncated."""
        page = self._file.bytes
        return page.view(np.int64) if len(page) == PAGE else np.zeros(PAGE // 8, np.int64)


class _Page(CopiedFile):
    @property
    def bytes(self) -> Bytes:
        return np.frombuffer(os.pread(self.fd, PAGE, 0), np.uint8)
