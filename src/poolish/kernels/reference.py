"""What every kernel means, in NumPy: the specification of ``_native.pyx`` and its stand-in.

Arguments are contiguous arrays; kernels write into ``out`` and allocate nothing the caller keeps. A position outside
its array is an IndexError before anything is read there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Int64 = NDArray[np.int64]
Words = NDArray[np.uint64]
Step = tuple[str, Callable[[Any], Any], int, int, type, bytes, tuple[int, ...]]

BLOCK_BITS = 512
_MASK_64 = (1 << 64) - 1


# --- rows: gathering -------------------------------------------------------------------------------------------------


def resolve(indices: Int64, n_rows: int, first: int, out: Int64) -> int:
    """Write ``first + index`` for each index, counted from the end where negative; the first bad place, or -1."""
    bad = (indices < -n_rows) | (indices >= n_rows)
    if bad.any():
        return int(np.flatnonzero(bad)[0])
    out[:] = np.where(indices < 0, indices + n_rows, indices) + first
    return -1


def gather(source: Bytes, width: int, positions: Int64, out: Bytes) -> None:
    """Copy the items of ``width`` bytes at ``positions`` one behind the other into ``out``."""
    if width == 0 or len(positions) == 0:
        return
    items = source[: len(source) // width * width].reshape(-1, width)
    _check(positions, len(items))
    np.take(items, positions, axis=0, out=out.reshape(-1, width))


def gather_offsets(offsets: Int64, positions: Int64, out: Int64) -> int:
    """Offsets of the ranges at ``positions`` laid one behind the other (one more than positions); their sum."""
    _check(positions, len(offsets) - 1)
    out[0] = 0
    np.cumsum(offsets[positions + 1] - offsets[positions], out=out[1:])
    return int(out[-1])


def gather_ranges(source: Bytes, width: int, offsets: Int64, positions: Int64, out: Bytes) -> None:
    """Copy the ranges ``offsets[p]:offsets[p + 1]``, in items of ``width`` bytes, one behind the other into ``out``."""
    _check(positions, len(offsets) - 1)
    starts, lengths = offsets[positions], offsets[positions + 1] - offsets[positions]
    gather(source, width, _spread(starts, lengths), out)


def pad_ranges(
    source: Bytes, begins: Int64, sizes: Int64, row_size: int, is_left: bool, item: Bytes, out: Bytes
) -> None:
    """Copy the ``sizes[i]`` bytes at ``begins[i]`` into row ``i`` of ``out``, whose rows have ``row_size`` bytes.

    The rest of a row, its begin where ``is_left``, is filled with ``item``, which divides it.
    """
    n, width = len(begins), len(item)
    if len(sizes) != n or len(out) < n * row_size:
        raise IndexError("out is too small, or begins and sizes differ in number")
    ends = begins + sizes
    if (sizes < 0).any() or (sizes > row_size).any() or (begins < 0).any() or (ends > len(source)).any():
        raise IndexError("a range reaches past the end")
    if n and (width == 0 or row_size % width or (sizes % width).any()):
        raise ValueError(f"rows and ranges are made of items of {width} bytes")
    rows = out[: n * row_size].reshape(n, row_size)
    rows.reshape(-1, max(width, 1))[:] = item
    places, rest = np.arange(row_size), (row_size - sizes)[:, None]
    rows[places >= rest if is_left else places < sizes[:, None]] = source[_spread(begins, sizes)]


def gather_bits(source: Bytes, first_bit: int, positions: Int64, out: Bytes) -> None:
    """Bits ``first_bit + p`` of ``source``, least significant first, packed into ``out``."""
    _check(positions, len(source) * 8 - first_bit)
    bits = positions + first_bit
    out[:] = np.packbits((source[bits >> 3] >> (bits & 7).astype(np.uint8)) & 1, bitorder="little")


def copy_bits(source: Bytes, source_bit: int, out: Bytes, out_bit: int, n_bits: int) -> None:
    """Copy ``n_bits`` from one bit position to another, leaving the bits around them as they are."""
    if n_bits == 0:
        return
    if source_bit + n_bits > len(source) * 8 or out_bit + n_bits > len(out) * 8:
        raise IndexError(f"{n_bits} bits reach past the end")
    first, last = out_bit >> 3, (out_bit + n_bits + 7) >> 3
    bits = np.unpackbits(out[first:last], bitorder="little")
    head = out_bit & 7
    span = source[source_bit >> 3 : (source_bit + n_bits + 7) >> 3]
    bits[head : head + n_bits] = np.unpackbits(span, bitorder="little")[source_bit & 7 :][:n_bits]
    out[first:last] = np.packbits(bits, bitorder="little")


def _spread(starts: Int64, lengths: Int64) -> Int64:
    ends = np.cumsum(lengths)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(ends[-1] if len(ends) else 0)


def _check(positions: Int64, n_items: int) -> None:
    if len(positions) and (positions.min() < 0 or positions.max() >= n_items):
        raise IndexError(f"position outside 0..{n_items - 1}")


# --- rows: one row of Python values ----------------------------------------------------------------------------------


def freeze_row(row: dict[str, Any], plan: tuple[Step, ...]) -> list[Any]:
    """``freeze(row[name])`` for each step of the plan: (name, freeze, shortcut, limit, array class, format, shape).

    The shortcut names values that ``freeze`` would give back as they are, or as their bytes, so that the native kernel
    need not call it: 1 ASCII text up to the limit, 2 int64, 3 float64, 4 arrays of one class, format and shape; 0 none.
    """
    return [step[1](row[step[0]]) for step in plan]


# --- rows: tombstones. A bit per place, set while it is live; a Fenwick tree counts them by blocks of 512 ------------


def count_blocks(words: Words, tree: Int64) -> None:
    """Fill the Fenwick tree (one node per block of 512 bits, node 0 unused) from the bits."""
    counts = np.bitwise_count(words).reshape(-1, BLOCK_BITS // 64).sum(axis=1, dtype=np.int64)
    sums = np.concatenate(([0], np.cumsum(counts)))
    nodes = np.arange(1, len(tree))
    tree[0] = 0
    tree[1:] = sums[nodes] - sums[nodes - (nodes & -nodes)]


def select(words: Words, tree: Int64, ranks: Int64, out: Int64) -> None:
    """Place of the live bit with ``rank`` live bits before it, for each rank."""
    n_live = int(np.bitwise_count(words).sum())
    _check(ranks, n_live)
    out[:] = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))[ranks]


def kill(words: Words, tree: Int64, places: Int64) -> None:
    """Clear the live bits at ``places``."""
    _check(places, len(words) * 64)
    np.bitwise_and.at(words, places >> 6, ~(np.uint64(1) << (places & 63).astype(np.uint64)))
    count_blocks(words, tree)


def evict(words: Words, tree: Int64, n_before: int, n_live: int, max_live: int, key: int, first_id: int, n: int) -> int:
    """Let ``n`` rows come in one by one and kill a random live one whenever there are more than ``max_live``.

    The victim that row ``id`` drives out depends on ``key`` and ``id`` alone, so it is the same whether the rows were
    handled one at a time or together. ``n_before`` live bits lie before the first row. Returns how many rows live.
    """
    for row_id in range(first_id, first_id + n):
        n_live += 1
        if n_live > max_live:
            rank = (mix(key ^ mix(row_id)) * n_live) >> 64
            place = select_one(words, tree, n_before + rank)
            words[place >> 6] &= ~(np.uint64(1) << np.uint64(place & 63))
            node = (place // BLOCK_BITS) + 1
            while node < len(tree):
                tree[node] -= 1
                node += node & -node
            n_live -= 1
    return n_live


def select_one(words: Words, tree: Int64, rank: int) -> int:
    """Place of one live bit."""
    if not 0 <= rank < int(np.bitwise_count(words).sum()):
        raise IndexError(f"position outside 0..{int(np.bitwise_count(words).sum()) - 1}")
    node, step = 0, 1 << (len(tree) - 1).bit_length()
    while step:
        if node + step < len(tree) and tree[node + step] <= rank:
            node += step
            rank -= int(tree[node])
        step >>= 1
    block = words[node * (BLOCK_BITS // 64) : (node + 1) * (BLOCK_BITS // 64)]
    return node * BLOCK_BITS + int(np.flatnonzero(np.unpackbits(block.view(np.uint8), bitorder="little"))[rank])


def mix(value: int) -> int:
    """A 64-bit number whose every bit depends on every bit of ``value`` (the finisher of splitmix64).

    >>> hex(mix(1))
    '0x910a2dec89025cc1'
    """
    value = (value + 0x9E3779B97F4A7C15) & _MASK_64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return value ^ (value >> 31)


# --- seeds: a keyed permutation of 0..n-1 ----------------------------------------------------------------------------
#
# A Feistel network on the next power of two, repeated on whatever falls outside 0..n-1 (cycle walking). Each half is
# changed by a hash of the other, so every round, and the whole, is one to one whatever the hash. The halves may differ
# by a bit: the next *even* power of two would mean up to four steps for one id instead of two.
# Eight rounds and at least six bits are measured. With four rounds the distance between neighbours is not what chance
# gives for orders up to 5,000 long (chi-square over 2 million keys, off by up to 5,000 standard deviations), with six
# up to 100 long; with eight it is indistinguishable from chance at every length tried.

PERMUTE_ROUNDS = 8
_CHUNK = 1 << 14  # temporaries that stay in the cache


def permute(positions: Int64, n: int, key: int, out: Int64) -> None:
    """Write the ids at ``positions`` in the order of 0..n-1 that ``key`` names; ``out`` may be ``positions`` itself."""
    _walk(positions, n, key, out, range(PERMUTE_ROUNDS))


def unpermute(ids: Int64, n: int, key: int, out: Int64) -> None:
    """Write the positions at which ``ids`` stand: ``permute`` backwards."""
    _walk(ids, n, key, out, range(PERMUTE_ROUNDS)[::-1])


def _walk(start: Int64, n: int, key: int, out: Int64, rounds: range) -> None:
    _check(start, n)
    keys = [mix(mix(key) ^ i) for i in range(PERMUTE_ROUNDS)]
    bits = max((n - 1).bit_length(), 6)
    for first in range(0, len(start), _CHUNK):
        values = _cipher(start[first : first + _CHUNK].astype(np.uint64), bits, keys, rounds)
        outside = np.flatnonzero(values >= n)
        while len(outside):
            values[outside] = _cipher(values[outside], bits, keys, rounds)
            outside = outside[values[outside] >= n]
        out[first : first + _CHUNK] = values


def _cipher(values: Words, bits: int, keys: list[int], rounds: range) -> Words:
    """Each value below ``2**bits`` to another one below it, one to one."""
    n_low, n_high = np.uint64(bits // 2), np.uint64(bits - bits // 2)
    high, low = values >> n_low, values & np.uint64((1 << int(n_low)) - 1)
    for i in rounds:
        if i % 2 == 0:
            high ^= _scramble(low, keys[i]) >> (np.uint64(64) - n_high)
        else:
            low ^= _scramble(high, keys[i]) >> (np.uint64(64) - n_low)
    return high << n_low | low


def _scramble(half: Words, key: int) -> Words:
    """A hash whose high bits depend on all bits of ``half`` and ``key``."""
    product = (half ^ np.uint64(key)) * np.uint64(0x9E3779B97F4A7C15)
    product ^= product >> np.uint64(32)
    product *= np.uint64(0xD6E8FEB86659FD93)
    return product


# --- load: one block of an order that grows ---------------------------------------------------------------------------
#
# What is left of several parts is dealt out at random: a keyed permutation of all that is left names the part of each
# element, so each part's share is hypergeometric, and the part gives the next id of an order of its own.


def deal(starts: Int64, sizes: Int64, cursors: Int64, keys: Words, key: int, out: Int64, scratch: Int64) -> None:
    """Fill ``out`` with ids from the parts ``starts[i] + 0..sizes[i]-1``, and move their ``cursors`` on.

    ``scratch`` is room for the native loop: twice as many numbers as ids and as parts.
    """
    ends = np.cumsum(sizes - cursors)
    total, n = int(ends[-1]) if len(ends) else 0, len(out)
    if (cursors < 0).any() or (cursors > sizes).any():
        raise IndexError("a cursor lies outside its part")
    if len(scratch) < 2 * n + 2 * len(starts):
        raise IndexError("scratch is too small")
    if n > total:
        raise IndexError(f"{n} ids from parts that have {total} left")
    chosen = np.arange(n)
    if len(starts) > 1:
        permute(chosen, total, key, chosen)
    part_of = np.searchsorted(ends, chosen, side="right")
    for part in np.unique(part_of).tolist():
        where = np.flatnonzero(part_of == part)
        ids = cursors[part] + np.arange(len(where))
        permute(ids, int(sizes[part]), int(keys[part]), ids)
        out[where] = starts[part] + ids
        cursors[part] += len(where)
