"""What the kernels of priorities and ranks mean, in NumPy: the specification of ``_replay.pyx`` and its stand-in.

A tree has 16 children per node. Each of its levels knows, of every child, a sum, a largest and a smallest positive
value, 0 for none; the lowest level has one entry per item. All levels lie in one array, and ``layout`` has a row for
each: (entries, where the sums begin, where the largest begin, where the smallest begin). On the lowest level the sums
are powers of priorities, the largest are the priorities themselves, and the smallest are the sums again.

Numbers are added in one fixed order, so that both halves have the same sums, bit for bit.

A heap is two arrays of keys and places, of which the first ``size`` entries count; it gives the lowest key first, and
of equal ones the lowest place. Its order in memory is its own business: compiled a binary heap, here none at all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Int64 = NDArray[np.int64]
Words = NDArray[np.uint64]

#: Children of a node: two cache lines of numbers.
FAN = 16


def layout_of(n_items: int) -> tuple[Int64, int]:
    """The layout of a tree with room for ``n_items``, and how many numbers it has in all.

    >>> layout_of(20)[0].tolist()
    [[32, 32, 0, 32], [16, 64, 80, 96]]
    """
    sizes = [-(-max(1, n_items) // FAN) * FAN]
    while sizes[-1] > FAN:
        sizes.append(-(-sizes[-1] // (FAN * FAN)) * FAN)
    end, rows = 2 * sizes[0], [(sizes[0], sizes[0], 0, sizes[0])]
    for size in sizes[1:]:
        rows.append((size, end, end + size, end + 2 * size))
        end += 3 * size
    return np.array(rows, np.int64), end


def first_bad(values: Floats, limit: float) -> int:
    """The place of the first value that is not between 0 and ``limit``; -1 if there is none."""
    bad = np.flatnonzero(~((values >= 0) & (values <= limit)))
    return int(bad[0]) if len(bad) else -1


def set_items(tree: Floats, layout: Int64, items: Int64, powers: Floats, priorities: Floats, work: Int64) -> int:
    """Give items their powers and priorities, the last where an item stands twice; the place of one beyond the tree.

    Nothing changes if there is one; -1 if there is none. ``work`` is room for as many numbers as there are items.
    """
    size, sums, largest, _ = layout[0].tolist()
    beyond = np.flatnonzero((items < 0) | (items >= size))
    if len(beyond):
        return int(beyond[0])
    last = np.unique(items[::-1], return_index=True)  # NumPy leaves open which of several writes is the last
    chosen = len(items) - 1 - last[1]
    tree[sums + last[0]] = powers[chosen]
    tree[largest + last[0]] = priorities[chosen]
    parents = last[0]
    for level in range(1, len(layout)):
        parents = np.unique(parents // FAN)
        _refresh(tree, layout, level, parents)
    return -1


def refresh(tree: Floats, layout: Int64, first: int, last: int) -> None:
    """Sum up again what lies above the items ``[first, last)``."""
    if not 0 <= first <= last <= layout[0, 0]:
        raise IndexError(f"items {first} to {last} of {layout[0, 0]}")
    if first == last:
        return
    for level in range(1, len(layout)):
        first, last = first // FAN, (last - 1) // FAN + 1
        _refresh(tree, layout, level, np.arange(first, last))


def root(tree: Floats, layout: Int64) -> tuple[float, float, float]:
    """Sum, largest and smallest of all items."""
    summed, largest, smallest = _blocks(tree, layout, len(layout) - 1, np.zeros(1, np.int64))
    return float(summed[0]), float(largest[0]), float(smallest[0])


def descend(tree: Floats, layout: Int64, masses: Floats, items: Int64, powers: Floats) -> None:
    """For each mass the item in whose share of the sum it lies, and its power; never an item of power 0.

    There must be an item with another power. A mass that rounding leaves beyond the end falls to the last such item.
    """
    at, left = np.zeros(len(masses), np.int64), masses.copy()
    for level in range(len(layout) - 1, -1, -1):
        sums = int(layout[level, 1])
        children = tree[sums + at[:, None] * FAN + np.arange(FAN)]
        parts, rows = children.reshape(-1, 4, 4), np.arange(len(at))
        sums_of_parts = ((parts[:, :, 0] + parts[:, :, 1]) + parts[:, :, 2]) + parts[:, :, 3]
        part, left = _chosen(sums_of_parts, left)
        child, left = _chosen(parts[rows, part], left)
        chosen = 4 * part + child
        beyond = ~(children[rows, chosen] > 0)  # the last above 0, and the last of them below
        chosen[beyond] = FAN - 1 - np.argmax(children[beyond, ::-1] > 0, axis=1)
        left[beyond] = np.inf
        at = at * FAN + chosen
    items[:] = at
    powers[:] = tree[int(layout[0, 1]) + at]


def _chosen(shares: Floats, masses: Floats) -> tuple[Int64, Floats]:
    """In which of four shares each mass lies, and what is left of it there; all beyond the third are in the fourth."""
    ends = np.cumsum(shares[:, :3], axis=1)
    chosen = (ends <= masses[:, None]).sum(axis=1)
    starts = np.take_along_axis(np.pad(ends, ((0, 0), (1, 0))), chosen[:, None], axis=1)[:, 0]
    return chosen, masses - starts


def heap_push(keys: Words, places: Int64, size: int, new_keys: Words, new_places: Int64) -> int:
    """Enter keys with their places; the size afterwards."""
    end = size + len(new_keys)
    if not 0 <= size <= end <= min(len(keys), len(places)) or len(new_keys) != len(new_places):
        raise IndexError("no room in the heap")
    keys[size:end], places[size:end] = new_keys, new_places
    return end


def heap_pop(keys: Words, places: Int64, size: int, out_keys: Words, out_places: Int64) -> int:
    """Take out the lowest entries, in order, as many as there is room for; the size afterwards."""
    n = len(out_keys)
    if not 0 <= n <= size <= min(len(keys), len(places)) or n != len(out_places):
        raise IndexError("not as many entries in the heap")
    if n == 0:
        return size
    bound = np.partition(keys[:size], n - 1)[n - 1]  # not all in order: there may be a million others
    candidates = np.flatnonzero(keys[:size] <= bound)
    lowest = candidates[np.lexsort((places[candidates], keys[candidates]))[:n]]
    out_keys[:], out_places[:] = keys[lowest], places[lowest]
    rest = np.ones(size, np.bool_)
    rest[lowest] = False
    keys[: size - n], places[: size - n] = keys[:size][rest], places[:size][rest]
    return size - n


def _refresh(tree: Floats, layout: Int64, level: int, nodes: Int64) -> None:
    for start, values in zip(layout[level, 1:].tolist(), _blocks(tree, layout, level - 1, nodes), strict=True):
        tree[start + nodes] = values


def _blocks(tree: Floats, layout: Int64, level: int, nodes: Int64) -> tuple[Floats, Floats, Floats]:
    """Sum, largest and smallest of the children of each node, which are on ``level``."""
    places = nodes[:, None] * FAN + np.arange(FAN)
    sums, largest, smallest = (tree[start + places] for start in layout[level, 1:].tolist())
    lanes = sums.reshape(-1, 4, 4)
    lanes = ((lanes[:, 0] + lanes[:, 1]) + lanes[:, 2]) + lanes[:, 3]
    least = np.where(smallest > 0, smallest, np.inf).min(axis=1)
    return (
        (lanes[:, 0] + lanes[:, 1]) + (lanes[:, 2] + lanes[:, 3]),
        largest.max(axis=1),
        np.where(np.isinf(least), 0.0, least),
    )
