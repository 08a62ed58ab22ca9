"""Growable columns: every Arrow type as a few regions of memory, so that a buffer is always one Arrow chunk.

A column mirrors the layout of its type: numbers are one region, text is offsets and bytes, a list is offsets and a
column of elements, a struct is columns side by side. ``extend`` copies an Arrow array to the end, ``view`` shows a
range of rows as an Arrow array without a copy, ``truncate`` sets the end at which the next ``extend`` begins.

Rows below the length never change and never move while a view is alive, so a view stays what it was. They are only
rewritten (``DatasetBuffer.update``) while no view is alive: ``Region.export`` hands out views through one token array,
whose weak reference shows whether any is left.

A region of memory starts on the heap and doubles. From 1 MiB on it moves, once, into a reservation of address space as
large as the machine's memory: pages become real when they are first written, so growing costs no copy, a full region
needs hardly more memory than its payload, and views handed out earlier stay valid.

    heap, doubling  --1 MiB-->  reserved address space  --outgrown (swap, strict overcommit)-->  twice as large

Huge pages (2 MiB) are used from 8 MiB on, and from the start by a region whose first write is that large. Appending
52 MB to a fresh buffer takes 6 ms with them and 44 ms without, because of page faults.
"""

from __future__ import annotations

import mmap
import os
import resource
import weakref
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from poolish import kernels
from poolish.rows.access import Bytes, Positions, gather_fn
from poolish.schema import bytes_of, offsets_of

RESERVE_FROM = 1 << 20
HUGE_PAGES_FROM = 8 << 20  # a last page that is part empty adds at most a quarter to the column
_HUGE = 2 << 20

# Not counted against the commit limit: only pages that are written cost memory. (The name is missing before 3.13.)
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if os.uname().sysname == "Linux" else 0)

#: Rows that are chosen at a time where they are copied twice: the first copy stays in the processor's cache.
CHOSEN_ROWS = 2048


def column_of(type_: pa.DataType) -> GrowableColumn:
    """An empty column for one of the types poolish keeps."""
    if isinstance(type_, pa.BaseExtensionType):
        return ExtensionColumn(type_)
    if kinds.is_null(type_):
        return NullColumn(type_)
    if kinds.is_boolean(type_):
        return BoolColumn(type_)
    if kinds.is_large_string(type_) or kinds.is_large_binary(type_):
        return BinaryColumn(type_)
    if kinds.is_large_list(type_):
        return ListColumn(type_)
    if kinds.is_fixed_size_list(type_):
        return FixedSizeListColumn(type_)
    if kinds.is_struct(type_):
        return StructColumn(type_)
    return FixedWidthColumn(type_)


class Patch(NamedTuple):
    """New values for rows in place. Writing them twice is the same as writing them once."""

    items: Bytes
    positions: Positions
    values: Bytes

    def write(self) -> None:
        """Change the rows; no view of them may be alive."""
        self.items[self.positions] = self.values


class GrowableColumn:
    """What all columns share: a length, and a validity bitmap from the first null on."""

    def __init__(self, type_: pa.DataType) -> None:
        self.type = type_
        self.length = 0
        self._valid: Bits | None = None

    def extend(self, array: pa.Array) -> None:
        """Copy ``array``, which must have this column's type, to the end."""
        self._extend_values(array)
        self._extend_validity(array)
        self.length += len(array)

    def extend_rows(self, array: pa.Array, positions: Positions) -> None:
        """Copy the rows of ``array`` at ``positions`` to the end."""
        take = gather_fn(array)
        for first in range(0, len(positions), CHOSEN_ROWS):
            self.extend(take(positions[first : first + CHOSEN_ROWS]))

    def view(self, start: int, stop: int) -> pa.Array:
        """Rows ``start:stop`` as an Arrow array over this column's memory."""
        valid = None if self._valid is None else pa.py_buffer(self._valid.export())
        n_null = 0 if valid is None else -1
        return self._view_values(valid, start, stop - start, n_null)

    def truncate(self, length: int) -> None:
        """Forget the rows from ``length`` on, whatever a failed ``extend`` left; no view may show them."""
        if self._valid is not None:
            self._valid.n_bits = length
        self._truncate_values(length)
        self.length = length

    def _extend_validity(self, array: pa.Array) -> None:
        n = len(array)
        if array.null_count == 0:
            self._extend_valid(n)
            return
        if self._valid is None:
            valid = Bits()
            valid.fill(self.length)
            self._valid = valid  # only now: a bitmap that could not be filled must not stay behind
        self._valid.extend(bytes_of(array.buffers()[0]), array.offset, n)

    def _extend_valid(self, n: int) -> None:
        if self._valid is not None:
            self._valid.fill(n)

    def _extend_values(self, array: pa.Array) -> None:
        raise AssertionError(f"{type(self).__name__} does not say how it extends")

    def _view_values(self, valid: pa.Buffer | None, start: int, n: int, n_null: int) -> pa.Array:
        raise AssertionError(f"{type(self).__name__} does not say how it is viewed")

    def _truncate_values(self, length: int) -> None:
        """Nothing to do where the length of the parts follows from the column's."""

    def n_bytes(self, start: int, stop: int) -> int:
        """How much memory the rows ``start:stop`` take; bits are not counted."""
        return 0

    def can_put(self, values: pa.Array) -> bool:
        """Whether these values can be written over others: rows have one width and none is null."""
        return False

    def own(self) -> None:
        """Before a patch: take a copy of the memory while a view of it is alive."""

    def patch(self, positions: Positions, values: pa.Array) -> Patch:
        """What writes ``values`` over the rows at ``positions``; needs ``can_put`` and ``own``."""
        raise AssertionError(f"{type(self).__name__} cannot be written in place")


class NullColumn(GrowableColumn):
    """A column that has held only nulls so far."""

    def extend(self, array: pa.Array) -> None:
        self.length += len(array)

    def _view_values(self, valid: pa.Buffer | None, start: int, n: int, n_null: int) -> pa.Array:
        return pa.nulls(n)


class FixedWidthColumn(GrowableColumn):
    """Values of one width: numbers, times, decimals."""

    def __init__(self, type_: pa.DataType) -> None:
        super().__init__(type_)
        self.width: int = type_.bit_width // 8
        self.region = Region()

    def _extend_values(self, array: pa.Array) -> None:
        values = bytes_of(array.buffers()[1])
        start = array.offset * self.width
        self.region.append(values[start : start + len(array) * self.width])

    def extend_rows(self, array: pa.Array, positions: Positions) -> None:
        if array.null_count:
            super().extend_rows(array, positions)
            return
        n_bytes = len(positions) * self.width
        values = bytes_of(array.buffers()[1])[array.offset * self.width :]
        kernels.gather(values, self.width, positions, self.region.tail(n_bytes))
        self._extend_valid(len(positions))
        self.region.used += n_bytes
        self.length += len(positions)

    def extend_numbers(self, values: np.ndarray[Any, Any]) -> None:
        """Numbers from NumPy, without the detour through Arrow."""
        self.region.append(values.view(np.uint8))
        self.length += len(values)

    def _view_values(self, valid: pa.Buffer | None, start: int, n: int, n_null: int) -> pa.Array:
        values = pa.py_buffer(self.region.export())
        return pa.Array.from_buffers(self.type, n, [valid, values], n_null, start)

    def _truncate_values(self, length: int) -> None:
        self.region.used = length * self.width

    def can_put(self, values: pa.Array) -> bool:
        return self._valid is None and values.null_count == 0 and self.width > 0

    def own(self) -> None:
        if self.region.is_shared:
            fresh = Region()
            fresh.append(self.region.writable)
            self.region = fresh

    def patch(self, positions: Positions, values: pa.Array) -> Patch:
        start = values.offset * self.width
        new = bytes_of(values.buffers()[1])[start : start + len(values) * self.width]
        return Patch(self.region.writable.reshape(-1, self.width), positions, new.reshape(-1, self.width))

    def n_bytes(self, start: int, stop: int) -> int:
        return (stop - start) * self.width


class BoolColumn(GrowableColumn):
    """Booleans, a bit each."""

    def __init__(self, type_: pa.DataType) -> None:
        super().__init__(type_)
        self._bits = Bits()

    def _extend_values(self, array: pa.Array) -> None:
        self._bits.extend(bytes_of(array.buffers()[1]), array.offset, len(array))

    def _view_values(self, valid: pa.Buffer | None, start: int, n: int, n_null: int) -> pa.Array:
        return pa.Array.from_buffers(self.type, n, [valid, pa.py_buffer(self._bits.export())], n_null, start)

    def _truncate_values(self, length: int) -> None:
        self._bits.n_bits = length


class Offsets:
    """Where each row's part begins in what lies behind it; one more than rows."""

    def __init__(self) -> None:
        self.region = Region()
        self.region.append(np.zeros(8, np.uint8))
        self.end = 0

    def extend(self, offsets: np.ndarray[Any, Any]) -> tuple[int, int]:
        """Take over the lengths of a foreign array's rows; the range that they cover in that array."""
        first, last = int(offsets[0]), int(offsets[-1])
        n = len(offsets) - 1
        np.add(offsets[1:], self.end - first, out=self.region.tail(n * 8).view(np.int64))
        self.region.used += n * 8
        self.end += last - first
        return first, last

    def truncate(self, length: int) -> int:
        """Keep ``length`` rows; where they end."""
        self.region.used = (length + 1) * 8
        self.end = self[length]
        return self.end

    def __getitem__(self, row: int) -> int:
        return int(self.region.writable[row * 8 : row * 8 + 8].view(np.int64)[0])


class BinaryColumn(GrowableColumn):
    """Text or bytes: 64-bit offsets and the bytes behind them."""

    def __init__(self, type_: pa.DataType) -> None:
        super().__init__(type_)
        self._offsets = Offsets()
        self._data = Region()

    def _extend_values(self, array: pa.Array) -> None:
        first, last = self._offsets.extend(offsets_of(array))
        self._data.append(bytes_of(array.buffers()[2])[first:last])

    def extend_rows(self, array: pa.Array, positions: Positions) -> None:
        if array.null_count:
            super().extend_rows(array, positions)
            return
        offsets, begins = offsets_of(array), np.empty(len(positions) + 1, np.int64)
        n_bytes = kernels.gather_offsets(offsets, positions, begins)
        kernels.gather_ranges(bytes_of(array.buffers()[2]), 1, offsets, positions, self._data.tail(n_bytes))
        self._offsets.extend(begins)
        self._extend_valid(len(positions))
        self._data.used += n_bytes
        self.length += len(positions)

    def _view_values(self, valid: pa.Buffer | None, start: int, n: int, n_null: int) -> pa.Array:
        offsets, data = pa.py_buffer(self._offsets.region.export()), pa.py_buffer(self._data.export())
        return pa.Array.from_buffers(self.type, n, [valid, offsets, data], n_null, start)

    def _truncate_values(self, length: int) -> None:
        self._data.used = self._offsets.truncate(length)

    def n_bytes(self, start: int, stop: int) -> int:
        return 8 * (stop - start) + self._offsets[stop] - self._offsets[start]


class ListColumn(GrowableColumn):
    """Lists of any length: 64-bit offsets and one column of all elements."""

    def __init__(self, type_: pa.DataType) -> None:
        super().__init__(type_)
        self._offsets = Offsets()
        self._elements = column_of(type_.value_type)

    def _extend_values(self, array: pa.Array) -> None:
        first, last = self._offsets.extend(offsets_of(array))
        self._elements.extend(array.values.slice(first, last - first))

    def _view_values(self, valid: pa.Buffer | None, start: int, n: int, n_null: int) -> pa.Array:
        offsets = pa.py_buffer(self._offsets.region.export())
        elements = self._elements.view(0, self._elements.length)
        return pa.Array.from_buffers(self.type, n, [valid, offsets], n_null, start, [elements])

    def _truncate_values(self, length: int) -> None:
        self._elements.truncate(self._offsets.truncate(length))

    def n_bytes(self, start: int, stop: int) -> int:
        return 8 * (stop - start) + self._elements.n_bytes(self._offsets[start], self._offsets[stop])


class FixedSizeListColumn(GrowableColumn):
    """Lists of one length: a column of all elements, and nothing else."""

    def __init__(self, type_: pa.DataType) -> None:
        super().__init__(type_)
        self.size = type_.list_size
        self.elements = column_of(type_.value_type)

    def _extend_values(self, array: pa.Array) -> None:
        # ``values`` looks past the slice and ``flatten`` leaves out null rows, so the slice is made here.
        self.elements.extend(array.values.slice(array.offset * self.size, len(array) * self.size))

    def _view_values(self, valid: pa.Buffer | None, start: int, n: int, n_null: int) -> pa.Array:
        elements = self.elements.view(0, self.elements.length)
        return pa.Array.from_buffers(self.type, n, [valid], n_null, start, [elements])

    def _truncate_values(self, length: int) -> None:
        self.elements.truncate(length * self.size)

    def can_put(self, values: pa.Array) -> bool:
        is_flat = self._valid is None and values.null_count == 0 and self.size > 0
        return is_flat and self.elements.can_put(values.flatten())

    def own(self) -> None:
        self.elements.own()

    def patch(self, positions: Positions, values: pa.Array) -> Patch:
        elements = (positions[:, None] * self.size + np.arange(self.size)).ravel()
        return self.elements.patch(elements, values.flatten())

    def n_bytes(self, start: int, stop: int) -> int:
        return self.elements.n_bytes(start * self.size, stop * self.size)


class StructColumn(GrowableColumn):
    """Named columns side by side."""

    def __init__(self, type_: pa.DataType) -> None:
        super().__init__(type_)
        self._fields = [column_of(field.type) for field in type_]

    def _extend_values(self, array: pa.Array) -> None:
        for i, field in enumerate(self._fields):
            field.extend(array.field(i))

    def _view_values(self, valid: pa.Buffer | None, start: int, n: int, n_null: int) -> pa.Array:
        fields = [field.view(0, field.length) for field in self._fields]
        return pa.Array.from_buffers(self.type, n, [valid], n_null, start, fields)

    def _truncate_values(self, length: int) -> None:
        for field in self._fields:
            field.truncate(length)

    def n_bytes(self, start: int, stop: int) -> int:
        return sum(field.n_bytes(start, stop) for field in self._fields)


class ExtensionColumn(GrowableColumn):
    """A type that gives another meaning to a plain one: tensors, UUIDs."""

    def __init__(self, type_: pa.DataType) -> None:
        super().__init__(type_)
        self.storage = column_of(type_.storage_type)

    def extend(self, array: pa.Array) -> None:
        self.storage.extend(array.storage)
        self.length = self.storage.length

    def view(self, start: int, stop: int) -> pa.Array:
        return pa.ExtensionArray.from_storage(self.type, self.storage.view(start, stop))

    def truncate(self, length: int) -> None:
        self.storage.truncate(length)
        self.length = length

    def can_put(self, values: pa.Array) -> bool:
        return self.storage.can_put(values.storage)

    def own(self) -> None:
        self.storage.own()

    def patch(self, positions: Positions, values: pa.Array) -> Patch:
        return self.storage.patch(positions, values.storage)

    def n_bytes(self, start: int, stop: int) -> int:
        return self.storage.n_bytes(start, stop)


class Bits:
    """A growable bitmap, least significant bit first."""

    def __init__(self) -> None:
        self.region = Region()
        self.n_bits = 0

    def extend(self, source: Bytes, first_bit: int, n: int) -> None:
        kernels.copy_bits(source, first_bit, self._room(n), self.n_bits, n)
        self.n_bits += n

    def fill(self, n: int) -> None:
        """Add ``n`` set bits."""
        self.extend(np.full((n + 7) // 8, 0xFF, np.uint8), 0, n)

    def export(self) -> Bytes:
        return self.region.export()

    def _room(self, n: int) -> Bytes:
        n_bytes = (self.n_bits + n + 7) // 8
        if n_bytes > self.region.used:
            self.region.tail(n_bytes - self.region.used)[:] = 0
            self.region.used = n_bytes
        return self.region.writable


# Memory ----------------------------------------------------------------------------------------------------


class Region:
    """Bytes that grow at the end. The address of what is exported never changes.

    >>> region = Region()
    >>> region.append(np.frombuffer(b"rye ", np.uint8)), region.append(np.frombuffer(b"flour", np.uint8))
    (0, 4)
    >>> bytes(region.export())
    b'rye flour'
    """

    __slots__ = ("_bytes", "_token", "used")

    def __init__(self) -> None:
        self._bytes: Bytes = np.empty(0, np.uint8)
        self._token: weakref.ref[Bytes] | None = None
        self.used = 0

    def append(self, data: Bytes) -> int:
        """Copy ``data`` to the end; the offset at which it begins."""
        start = self.used
        self.tail(len(data))[:] = data
        self.used = start + len(data)
        return start

    def tail(self, n_bytes: int) -> Bytes:
        """The next ``n_bytes`` behind what is used, to be written and then counted by raising ``used``."""
        self.reserve(self.used + n_bytes)
        return self._bytes[self.used : self.used + n_bytes]

    def reserve(self, n_bytes: int) -> None:
        """Make room for ``n_bytes`` in all; MemoryError leaves the region as it was."""
        if n_bytes > len(self._bytes):
            grown = _allocate(n_bytes)
            grown[: self.used] = self._bytes[: self.used]
            self._bytes, self._token = grown, None

    @property
    def writable(self) -> Bytes:
        """The used bytes, for writing in place; only while ``is_shared`` is false."""
        return self._bytes[: self.used]

    def export(self) -> Bytes:
        """The used bytes as an array that keeps the memory alive; every view of it counts as sharing."""
        token = self._token() if self._token is not None else None
        if token is None:
            # Through a memoryview, because NumPy lets views of views point at the owner and would lose the token.
            token = np.frombuffer(self._bytes.data, np.uint8)
            self._token = weakref.ref(token)
        return token[: self.used]

    @property
    def is_shared(self) -> bool:
        """Whether anything exported is still alive somewhere."""
        return self._token is not None and self._token() is not None


def _allocate(n_bytes: int) -> Bytes:
    if n_bytes < RESERVE_FROM:
        # Arrow's allocator begins at the border of a cache line, NumPy's does not.
        return np.frombuffer(pa.allocate_buffer(max(64, 1 << (n_bytes - 1).bit_length())), np.uint8)
    n_reserved = _reservation(n_bytes)
    while True:
        try:
            return _map(n_reserved, 0 if n_bytes >= HUGE_PAGES_FROM else HUGE_PAGES_FROM)
        except (OSError, ValueError, OverflowError):
            # Strict overcommit or a limit on address space: take less, down to what is needed now.
            if n_reserved <= n_bytes + n_bytes // 4:
                raise MemoryError(
                    f"no memory for a column of {n_bytes:,} bytes; set max_size= or free memory"
                ) from None
            n_reserved = max(n_bytes + n_bytes // 4, n_reserved // 2)


def _map(n_bytes: int, huge_from: int) -> Bytes:
    """Reserved addresses from the border of a huge page on; huge pages are used from ``huge_from`` on."""
    reserved = mmap.mmap(-1, n_bytes + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    whole = np.frombuffer(reserved, np.uint8)
    n_skipped = -whole.ctypes.data % _HUGE
    if n_bytes > huge_from and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # the system has none: small pages work as well
            reserved.madvise(mmap.MADV_HUGEPAGE, n_skipped + huge_from, n_bytes - huge_from)
    return whole[n_skipped : n_skipped + n_bytes]


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _reservation(n_bytes: int) -> int:
    """How much address space a region reserves: all there is, or a part of it where a limit applies."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return max(n_bytes, _physical_memory()) if limit == resource.RLIM_INFINITY else max(2 * n_bytes, limit // 64)
