"""Growable memory: one contiguous region per buffer of a column, whose address stays put while it grows.

A region starts on the heap, at the border of a cache line, and doubles. From 1 MiB on it moves, once, into a
reservation of address space as large as the machine's memory: pages become real when they are first written, so growing
costs no copy, a full region needs hardly more memory than its payload, and views handed out earlier stay valid.

    heap, doubling  --1 MiB-->  reserved address space  --outgrown (swap, strict overcommit)-->  twice as large

Pages of 2 MiB are used wherever four fifths of one are going to be filled: a page fault takes 3 us here, so
8 MiB in pages of 4 KiB take 6 ms, and 0.5 ms in large ones.

What large appends have written last, up to a 64th of the machine's memory, is kept when nobody looks at it any more,
and the next region of its size begins there: a virtual machine that has to ask its host for memory takes up to 2 ms a
MiB, ten times as long as everything else about an append.

Bytes below the used length are only rewritten (``DatasetBuffer.update``) while no view of the region is alive;
``export`` hands out views through one token array, and the token's weak reference tells whether any is left.

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
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from poolish import kernels
from poolish.kernels.reference import BLOCK_BITS

Bytes = NDArray[np.uint8]

RESERVE_FROM = 1 << 20
HUGE_PAGES_FROM = 8 << 20
_HUGE = 2 << 20
_LEAST_FILLED = _HUGE * 4 // 5  # the rest of a page adds at most a quarter to what is in it

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

    __slots__ = ("_bytes", "_pages", "_room", "_token", "used")

    def __init__(self) -> None:
        self._bytes: Bytes = np.empty(0, np.uint8)
        self._pages: _Pages | None = None
        self._room = 0
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
        if n_bytes < _LEAST_FILLED:
            self.reserve(self.used + n_bytes)
        else:
            self.expect(n_bytes)
        return self._bytes[self.used : self.used + n_bytes]

    def expect(self, n_bytes: int) -> None:
        """Make room for ``n_bytes`` that are written next, maybe in many parts."""
        self.reserve(self.used + n_bytes)
        if self._pages is not None and n_bytes >= _LEAST_FILLED:
            self._pages.fill(self.used, self.used + n_bytes)
            self._room = self.used + n_bytes  # what is written behind it must not be kept without being counted
            _spares.expect(self._pages, self._room)

    def reserve(self, n_bytes: int) -> None:
        """Make room for ``n_bytes`` in all; MemoryError leaves the region as it was."""
        if n_bytes <= self._room:
            return
        if n_bytes <= len(self._bytes):
            if self._pages is not None:
                _spares.forget(self._pages)
        else:
            grown, pages = _allocate(n_bytes)
            grown[: self.used] = self._bytes[: self.used]
            self._bytes, self._pages, self._token = grown, pages, None
        self._room = len(self._bytes)

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


def _allocate(n_bytes: int) -> tuple[Bytes, _Pages | None]:
    if n_bytes < RESERVE_FROM:
        # Arrow's allocator begins at the border of a cache line, NumPy's does not.
        return np.frombuffer(pa.allocate_buffer(max(64, 1 << (n_bytes - 1).bit_length())), np.uint8), None
    n_reserved = _reservation(n_bytes)
    while True:
        try:
            pages = _spares.take(n_bytes, n_reserved) or _map(n_reserved)
            pages.fill(0, n_bytes)  # before anything is written: it is too late for a page then
            return pages.memory, pages
        except (OSError, ValueError, OverflowError):
            if give_back():
                continue
            # Strict overcommit or a limit on address space: take less, down to what is needed now.
            if n_reserved <= n_bytes + n_bytes // 4:
                raise MemoryError(
                    f"no memory for a column of {n_bytes:,} bytes; set max_size= or free memory"
                ) from None
            n_reserved = max(n_bytes + n_bytes // 4, n_reserved // 2)


class _Pages(NamedTuple):
    """Reserved addresses; ``memory`` begins at a border of large pages, so many bytes behind their begin."""

    memory: Bytes
    reserved: mmap.mmap
    n_skipped: int
    n_written: int = 0

    @classmethod
    def of(cls, reserved: mmap.mmap, n_bytes: int, n_written: int = 0) -> _Pages:
        """So many of the reserved bytes, of which some were written before."""
        whole = np.frombuffer(reserved, np.uint8)
        n_skipped = -whole.ctypes.data % _HUGE
        return cls(whole[n_skipped : n_skipped + n_bytes], reserved, n_skipped, n_written)

    def fill(self, start: int, end: int) -> None:
        """Use large pages where the bytes from ``start`` to ``end``, which are written next, will fill them."""
        first = -(-start // _HUGE) * _HUGE
        stop = min((end + _HUGE - _LEAST_FILLED) // _HUGE * _HUGE, len(self.memory) // _HUGE * _HUGE)
        if first < stop and hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a system without them says so, and small ones do as well
                self.reserved.madvise(mmap.MADV_HUGEPAGE, self.n_skipped + first, stop - first)


def _map(n_bytes: int) -> _Pages:
    reserved = mmap.mmap(-1, n_bytes + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    pages = _Pages.of(reserved, n_bytes)
    if n_bytes > HUGE_PAGES_FROM:
        pages.fill(HUGE_PAGES_FROM, n_bytes)  # there the last page, part empty, adds at most a quarter to the column
    return pages


class _Spares:
    """The reservations that were written last, until they are so large together: those in use, and those to be had.

    Nothing happens when a region goes (a finalizer would swallow a Ctrl-C): whether anybody still looks at a
    reservation is asked when the next one is needed. There is no lock either, which a forked child might find taken.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[int, _Spare] = {}

    def expect(self, pages: _Pages, n_written: int) -> None:
        """A reservation is being written up to here."""
        self.forget(pages)
        n_written = max(n_written, pages.n_written)
        self._known[id(pages.reserved)] = _Spare(weakref.ref(pages.memory.base), pages.reserved, n_written)
        known = list(self._known.values())
        n_bytes = sum(each.n_written for each in known)
        for oldest in known:
            if n_bytes <= self._most:
                break
            self._known.pop(id(oldest.reserved), None)
            n_bytes -= oldest.n_written

    def forget(self, pages: _Pages) -> None:
        """A reservation is not to be kept."""
        self._known.pop(id(pages.reserved), None)

    def take(self, n_bytes: int, n_reserved: int) -> _Pages | None:
        """One that nobody looks at any more, and of which not more than twice what is needed now was written."""
        fitting = [each for each in list(self._known.values()) if each.fits(n_bytes, n_reserved)]
        best = max(fitting, key=lambda each: (min(each.n_written, n_bytes), -each.n_written), default=None)
        if best is None or self._known.pop(id(best.reserved), None) is not best:
            return None  # or another thread was quicker; what it has registered since is not put back: it may be gone
        return _Pages.of(best.reserved, n_reserved, best.n_written)

    def clear(self) -> bool:
        """Keep none of them; whether there were any."""
        known, self._known = self._known, {}
        return bool(known)


class _Spare(NamedTuple):
    """A reservation; who looks at it holds ``whole``."""

    whole: weakref.ref[Any]
    reserved: mmap.mmap
    n_written: int

    def fits(self, n_bytes: int, n_reserved: int) -> bool:
        is_large_enough = len(self.reserved) >= n_reserved + _HUGE
        return is_large_enough and self.n_written <= 2 * n_bytes and self.whole() is None


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


_spares = _Spares(_physical_memory() // 64)


def give_back() -> bool:
    """Let the system have what is kept for later; whether anything was."""
    return _spares.clear()


def _reservation(n_bytes: int) -> int:
    """How much is reserved for a region: as much as there is, and a part of that where addresses are limited."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return max(n_bytes, _physical_memory()) if limit == resource.RLIM_INFINITY else max(2 * n_bytes, limit // 64)


Int64 = NDArray[np.int64]


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
