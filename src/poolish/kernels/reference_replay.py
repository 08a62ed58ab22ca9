"""What the kernels of priorities mean, in NumPy: the specification of ``_replay.pyx`` and its stand-in.

A tree has 16 children per node. Each of its levels knows, of every child, a sum, a largest and a smallest positive
value, 0 for none; the lowest level has one entry per item. All levels lie in one array, and ``layout`` has a row for
each: (entries, where the sums begin, where the largest begin, where the smallest begin). On the lowest level the sums
are powers of priorities, the largest are the priorities themselves, and the smallest are the sums again.

Numbers are added in one fixed order, so that both halves have the same sums, bit for bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Int64 = NDArray[np.int64]

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
        chosen, is_open = np.zeros(len(at), np.int64), np.ones(len(at), np.bool_)
        for child in range(FAN):
            mass = children[:, child]
            chosen[is_open & (mass > 0)] = child
            rest = np.where(is_open & (left >= mass), left - mass, left)
            is_open &= left >= mass
            left = rest
        left = np.where(is_open, np.inf, left)  # beyond the end: the last of them below, too
        at = at * FAN + chosen
    items[:] = at
    powers[:] = tree[int(layout[0, 1]) + at]


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
