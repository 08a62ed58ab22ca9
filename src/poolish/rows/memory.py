"""Growable memory: one contiguous region per buffer of a column, and the set of places that still hold a row.

A region starts on the heap, at the border of a cache line, and doubles. From 1 MiB on it moves, once, into a
reservation of address space as large as the machine's memory: pages become real when they are first written, so growing
costs no copy, a full region needs hardly more memory than its payload, and views handed out earlier stay valid.

    heap, doubling  --1 MiB-->  reserved address space  --outgrown (swap, strict overcommit)-->  twice as large

Huge pages (2 MiB) are used from 8 MiB on, and from the start by a region whose first write is that large. Appending
52 MB to a fresh buffer takes 6 ms with them and 44 ms without, because of page faults.

Bytes below the used length are only rewritten (``DatasetBuffer.update``) while no view of the region is alive;
``export`` hands out views through one token array, whose weak reference shows whether any is left.

Rows may leave from anywhere. ``LiveSet`` records which places still hold one: a bit per place, and a Fenwick tree that
counts live bits by blocks of 512. Finding the n-th live row and killing one take O(log n). Unwritten places are live
too, so that appending only needs room. A set never changes: rows that leave give another set.
"""

from __future__ import annotations

import mmap
import os
import resource
import weakref
from contextlib import suppress

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from poolish import kernels
from poolish.kernels.reference import BLOCK_BITS

Bytes = NDArray[np.uint8]
Int64 = NDArray[np.int64]

RESERVE_FROM = 1 << 20
HUGE_PAGES_FROM = 8 << 20  # a last page that is part empty adds at most a quarter to the column
_HUGE = 2 << 20

# Not counted against the commit limit: only pages that are written cost memory. (The name is missing before 3.13.)
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if os.uname().sysname == "Linux" else 0)


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


class LiveSet:
    """Live and dead places from 0 on.

    >>> live = LiveSet(10).without(np.array([0, 3]))
    >>> live.select(np.array([0, 1, 2]))
    array([1, 2, 4])
    """

    def __init__(self, n_places: int) -> None:
        n_blocks = max(1, -(-n_places // BLOCK_BITS))
        self._words = np.full(n_blocks * (BLOCK_BITS // 64), ~np.uint64(0))
        self._tree = np.empty(n_blocks + 1, np.int64)
        kernels.count_blocks(self._words, self._tree)

    def reserve(self, n_places: int) -> LiveSet:
        """The set with room for ``n_places``: itself, or a larger one."""
        if n_places <= len(self._words) * 64:
            return self
        grown = LiveSet(2 * n_places)
        grown._words[: len(self._words)] = self._words
        kernels.count_blocks(grown._words, grown._tree)
        return grown

    def without(self, places: Int64) -> LiveSet:
        """The set in which the rows at ``places`` are dead."""
        changed = self._copy()
        kernels.kill(changed._words, changed._tree, places)
        return changed

    def evicted(
        self, n_before: int, n_live: int, max_live: int, key: int, first_id: int, n: int
    ) -> tuple[LiveSet, int]:
        """The set after ``n`` rows came in singly, each driving out a random row where more than ``max_live`` would
        live; and how many live in it.
        """
        changed = self._copy()
        n_left = kernels.evict(changed._words, changed._tree, n_before, n_live, max_live, key, first_id, n)
        return changed, int(n_left)

    def _copy(self) -> LiveSet:
        copy = LiveSet.__new__(LiveSet)
        copy._words, copy._tree = self._words.copy(), self._tree.copy()
        return copy

    def select(self, ranks: Int64) -> Int64:
        """Places of the live rows number ``ranks``, counted from 0."""
        places = np.empty(len(ranks), np.int64)
        kernels.select(self._words, self._tree, np.ascontiguousarray(ranks, np.int64), places)
        return places

    def place(self, rank: int) -> int:
        """Place of one live row."""
        return int(kernels.select_one(self._words, self._tree, rank))

    def places(self, start: int, stop: int) -> Int64:
        """All live places from ``start`` up to ``stop``."""
        first = start // 64
        bits = np.unpackbits(self._words[first : -(-stop // 64)].view(np.uint8), bitorder="little")
        live = np.flatnonzero(bits[: stop - first * 64]) + first * 64
        return live[np.searchsorted(live, start) :]
