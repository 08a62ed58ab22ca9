"""Rows as an Arrow IPC stream: written with aligned buffers, read over writable memory, mapped from a file.

Arrow puts buffers at multiples of 8 bytes, and pyarrow has no option for more. ``AlignedIpc`` starts them at cache
lines. A message states where its buffers are before they come, so the stream is rewritten while it passes through,
without a copy of the rows::

    prefix | metadata, zeros to 64 | buffer, zeros to 64 | buffer, zeros to 64 | ...

The result is an ordinary IPC stream: every Arrow library reads it.
"""

from __future__ import annotations

import mmap
import os
import struct
import weakref
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds
from numpy.typing import NDArray

from poolish.columns import one_chunk
from poolish.errors import CorruptDataError

LINE = 64
_RECORD_BATCH = 3
_PREFIX = struct.Struct("<II")
_BUFFER = struct.Struct("<qq")

Span = tuple[int, int]


class Counted(Protocol):
    """A file that knows how many bytes were written to it."""

    n_bytes: int

    def write(self, data: Any) -> int:
        """Write all of it."""


class AlignedIpc:
    """A file for ``pyarrow.ipc.new_stream``, which passes everything on to another with the buffers moved apart."""

    closed = False

    def __init__(self, file: Counted) -> None:
        self._file = file
        self._head = bytearray()
        # Of the body that comes: its bytes left, the place of the next one, and the buffers that are not through yet.
        self._left = self._at = 0
        self._spans: list[Span] | None = None

    def write(self, data: Any) -> int:
        """Any part of the stream."""
        view = memoryview(data).cast("B")
        n_bytes = view.nbytes
        while view.nbytes:
            n_taken = self._take_body(view[: self._left]) if self._left else self._take_head(view)
            view = view[n_taken:]
        return n_bytes

    def flush(self) -> None:
        """The file below is flushed by its owner."""

    def _take_head(self, view: memoryview) -> int:
        n_wanted = _PREFIX.size
        if len(self._head) >= n_wanted:
            n_wanted += _PREFIX.unpack_from(self._head)[1]
        n_taken = min(n_wanted - len(self._head), view.nbytes)
        self._head += view[:n_taken]
        if len(self._head) >= _PREFIX.size and len(self._head) == _PREFIX.size + _PREFIX.unpack_from(self._head)[1]:
            self._begin_body()
        return n_taken

    def _begin_body(self) -> None:
        mark, metadata, self._head = self._head[:4], self._head[_PREFIX.size :], bytearray()
        self._at, self._left, self._spans = 0, 0, None
        if metadata:
            self._left, self._spans = moved_apart(metadata)
            metadata += bytes(-(self._file.n_bytes + _PREFIX.size + len(metadata)) % LINE if self._spans else 0)
        self._file.write(mark + struct.pack("<I", len(metadata)) + metadata)

    def _take_body(self, view: memoryview) -> int:
        """As much as belongs together: a part of a buffer, or of what is between them."""
        n_taken = view.nbytes
        if self._spans is None:
            self._file.write(view)
        elif self._spans:
            begin, end = self._spans[0]
            n_taken = min(n_taken, (begin if self._at < begin else end) - self._at)
            if self._at >= begin:
                self._file.write(view[:n_taken])
            if self._at + n_taken == end:
                self._file.write(bytes(-(end - begin) % LINE))
                del self._spans[0]
        self._at, self._left = self._at + n_taken, self._left - n_taken
        return n_taken


def moved_apart(metadata: bytearray) -> tuple[int, list[Span] | None]:
    """Change where a message says its buffers are; how long its body was, and where they were.

    Only messages with rows have buffers that move; for others, None. The metadata is a flatbuffer: its tables keep
    their places, and numbers in it are changed where they stand.
    """
    message = _u32(metadata, 0)
    body = _field(metadata, message, 3)
    n_bytes = struct.unpack_from("<q", metadata, body)[0] if body else 0
    kind, header = _field(metadata, message, 1), _field(metadata, message, 2)
    if not n_bytes or not kind or metadata[kind] != _RECORD_BATCH:
        return n_bytes, None
    batch = header + _u32(metadata, header)
    buffers = _field(metadata, batch, 2)
    first = buffers + _u32(metadata, buffers)
    spans, end = [], 0
    for place in range(first + 4, first + 4 + _u32(metadata, first) * _BUFFER.size, _BUFFER.size):
        begin, length = _BUFFER.unpack_from(metadata, place)
        _BUFFER.pack_into(metadata, place, end, length)
        end += -(-length // LINE) * LINE
        if length:
            spans.append((begin, begin + length))
    struct.pack_into("<q", metadata, body, end)
    return n_bytes, spans


def _u32(data: bytearray, place: int) -> int:
    return int(struct.unpack_from("<I", data, place)[0])


def _field(data: bytearray, table: int, number: int) -> int:
    """Where a field of a flatbuffer's table is; 0 where it has its default."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    n_bytes = struct.unpack_from("<H", data, vtable)[0]
    place = 4 + 2 * number
    offset = struct.unpack_from("<H", data, vtable + place)[0] if place < n_bytes else 0
    return table + offset if offset else 0


class MappedFile:
    """A file mapped copy-on-write, and its size and modification time at that moment.

    A file that is replaced (``save``, ``mv``) keeps its old bytes while it is mapped. One that is written in place or
    truncated does not: rows change, or the system ends the process with SIGBUS. Size and modification time reveal that
    before rows are read; they cannot prevent it in between.
    """

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path, self._fd = path, os.dup(file.fileno())
        weakref.finalize(self, os.close, self._fd)
        self._before = self._stamp()
        self.memory = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))

    def _stamp(self) -> tuple[int, int]:
        """Of the file that is mapped, whatever the path names now."""
        status = os.fstat(self._fd)
        return status.st_size, status.st_mtime_ns

    def check(self) -> None:
        """CorruptDataError if the file was written or truncated since it was mapped."""
        size, time = self._stamp()
        if (size, time) != self._before:
            what = "written to" if size == self._before[0] else f"resized from {self._before[0]:,} to {size:,} bytes"
            raise CorruptDataError(
                f"{self._path}: this file was {what} while a buffer that was loaded from it is in use; load the buffer "
                "again from a whole copy, replace saved buffers with save() or mv, or load them with mmap=False"
            )


def table_over(memory: memoryview) -> pa.Table:
    """The table of an IPC stream over writable memory; Arrow's own reader would mark the buffers read-only."""
    table = pa.ipc.open_stream(pa.py_buffer(memory)).read_all()
    table.validate(full=True)  # before anything is sliced: Arrow ends the process over a negative length
    writable = np.frombuffer(memory, np.uint8)
    columns = [_over(one_chunk(column), writable) for column in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _over(array: pa.Array, memory: NDArray[np.uint8]) -> pa.Array:
    """The same array, its buffers taken from ``memory``, in which they lie."""
    type_ = array.type
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, _over(array.storage, memory))
    if kinds.is_null(type_):
        return array
    children = [array.field(field.name) for field in type_] if kinds.is_struct(type_) else []
    if kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_):
        children = [array.values]
    n_own = {pa.large_string(): 3, pa.large_binary(): 3}.get(type_, 2)
    n_own = 1 if kinds.is_struct(type_) or kinds.is_fixed_size_list(type_) else n_own
    buffers = [_part(buffer, memory) for buffer in array.buffers()[:n_own]]
    children = [_over(child, memory) for child in children]
    return pa.Array.from_buffers(type_, len(array), buffers, -1, array.offset, children or None)


def _part(buffer: pa.Buffer | None, memory: NDArray[np.uint8]) -> pa.Buffer | None:
    if buffer is None:
        return None
    start = buffer.address - memory.ctypes.data
    is_inside = start >= 0 and start + buffer.size <= len(memory)
    return pa.py_buffer(memory[start : start + buffer.size]) if is_inside else buffer


def write_stream(table: pa.Table, sink: Any) -> None:
    """Write a table as one IPC stream."""
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
