# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The kernels of ``reference_replay.py``, compiled. Same names, same meaning; all loops release the GIL."""

from libc.math cimport INFINITY
from libc.stdint cimport int64_t
cimport cython

include "shared.pxi"

cdef extern from *:
    """
    #define POOLISH_FAN 16
    #if defined(__GNUC__) || defined(__clang__)
      #define poolish_fetch(address) __builtin_prefetch(address, 1, 1)
    #else
      #define poolish_fetch(address) ((void)(address))
    #endif

    /* Sum, largest and smallest positive of 16 children: four lanes, added in the order of the reference. */
    static inline void poolish_block(const double *sums, const double *largest, const double *smallest,
                                     double *sum, double *high, double *low)
    {
        double lane[4], top[4], least[4];
        for (int k = 0; k < 4; k++) {
            lane[k] = ((sums[k] + sums[4 + k]) + sums[8 + k]) + sums[12 + k];
            top[k] = largest[k];
            least[k] = smallest[k] > 0 ? smallest[k] : 1.0 / 0.0;
        }
        for (int j = 4; j < 16; j += 4)
            for (int k = 0; k < 4; k++) {
                top[k] = largest[j + k] > top[k] ? largest[j + k] : top[k];
                double small = smallest[j + k] > 0 ? smallest[j + k] : 1.0 / 0.0;
                least[k] = small < least[k] ? small : least[k];
            }
        double high1 = top[0] > top[1] ? top[0] : top[1], high2 = top[2] > top[3] ? top[2] : top[3];
        double low1 = least[0] < least[1] ? least[0] : least[1], low2 = least[2] < least[3] ? least[2] : least[3];
        *sum = (lane[0] + lane[1]) + (lane[2] + lane[3]);
        *high = high1 > high2 ? high1 : high2;
        double lowest = low1 < low2 ? low1 : low2;
        *low = lowest == 1.0 / 0.0 ? 0.0 : lowest;
    }

    /* One node of ``level`` (a row of the layout) from its children one level below. */
    static inline void poolish_node(double *tree, const int64_t *level, int64_t node)
    {
        const int64_t *below = level - 4;
        int64_t first = node * POOLISH_FAN;
        poolish_block(tree + below[1] + first, tree + below[2] + first, tree + below[3] + first,
                      tree + level[1] + node, tree + level[2] + node, tree + level[3] + node);
    }
    """
    int POOLISH_FAN
    void poolish_fetch(const void *address) nogil
    void poolish_block(const double *sums, const double *largest, const double *smallest, double *sum, double *high,
                       double *low) nogil
    void poolish_node(double *tree, const int64_t *level, int64_t node) nogil


cdef int64_t numbers(Views views, int which) noexcept:
    return views.size(which) // 8


def first_bad(values, double limit):
    cdef Views views = Views()
    cdef const double *value = <const double *>views.read(values)
    cdef int64_t n = numbers(views, 0), i
    with nogil:
        for i in range(n):
            if not (value[i] >= 0 and value[i] <= limit):
                break
        else:
            i = -1
    return i if n else -1


def set_items(tree, layout, items, powers, priorities, work):
    cdef Views views = Views()
    cdef double *node = <double *>views.write(tree)
    cdef const int64_t *level = <const int64_t *>views.read(layout)
    cdef const int64_t *item = <const int64_t *>views.read(items)
    cdef const double *power = <const double *>views.read(powers)
    cdef const double *priority = <const double *>views.read(priorities)
    cdef int64_t *parent = <int64_t *>views.write(work)
    cdef int64_t n = numbers(views, 2), n_levels = numbers(views, 1) // 4, i, j, n_parents, each, number
    if numbers(views, 3) != n or numbers(views, 4) != n or numbers(views, 5) != n:
        raise IndexError("as many powers, priorities and places as items")
    check_layout(views, level, n_levels)
    with nogil:
        for i in range(n):
            if item[i] < 0 or item[i] >= level[0]:
                break
        else:
            i = -1
    if n and i >= 0:
        return i
    with nogil:
        for i in range(n):
            if i + 8 < n:
                poolish_fetch(node + level[1] + item[i + 8])
                poolish_fetch(node + level[2] + item[i + 8])
            node[level[1] + item[i]] = power[i]
            node[level[2] + item[i]] = priority[i]
            parent[i] = item[i]
        n_parents = n
        for i in range(1, n_levels):
            number = level[4 * (i - 1)] // POOLISH_FAN
            if number <= n_parents:  # no node twice: all of them
                for j in range(number):
                    parent[j] = j
                    poolish_node(node, level + 4 * i, j)
                n_parents = number
                continue
            number = 0
            for j in range(n_parents):  # a node that stands twice in a row once, one that stands twice apart twice
                each = parent[j] // POOLISH_FAN
                if number and parent[number - 1] == each:
                    continue
                parent[number] = each
                number += 1
                poolish_node(node, level + 4 * i, each)
            n_parents = number
    return -1


def refresh(tree, layout, int64_t first, int64_t last):
    cdef Views views = Views()
    cdef double *node = <double *>views.write(tree)
    cdef const int64_t *level = <const int64_t *>views.read(layout)
    cdef int64_t n_levels = numbers(views, 1) // 4, i, j
    check_layout(views, level, n_levels)
    if not 0 <= first <= last <= level[0]:
        raise IndexError(f"items {first} to {last} of {level[0]}")
    if first == last:
        return
    with nogil:
        for i in range(1, n_levels):
            first, last = first // POOLISH_FAN, (last - 1) // POOLISH_FAN + 1
            for j in range(first, last):
                poolish_node(node, level + 4 * i, j)


def root(tree, layout):
    cdef Views views = Views()
    cdef double *node = <double *>views.write(tree)
    cdef const int64_t *level = <const int64_t *>views.read(layout)
    cdef int64_t n_levels = numbers(views, 1) // 4
    cdef double total, high, low
    check_layout(views, level, n_levels)
    level += 4 * (n_levels - 1)
    poolish_block(node + level[1], node + level[2], node + level[3], &total, &high, &low)
    return total, high, low


def descend(tree, layout, masses, items, powers):
    cdef Views views = Views()
    cdef double *node = <double *>views.write(tree)
    cdef const int64_t *level = <const int64_t *>views.read(layout)
    cdef const double *wanted = <const double *>views.read(masses)
    cdef int64_t *item = <int64_t *>views.write(items)
    cdef double *power = <double *>views.write(powers)
    cdef int64_t n = numbers(views, 2), n_levels = numbers(views, 1) // 4, i, j, k, at, chosen
    cdef const double *child
    cdef double left
    if numbers(views, 3) != n or numbers(views, 4) != n:
        raise IndexError("as many items and powers as masses")
    check_layout(views, level, n_levels)
    with nogil:
        for i in range(n):
            at, left = 0, wanted[i]
            for j in range(n_levels - 1, -1, -1):
                child = node + level[4 * j + 1] + at * POOLISH_FAN
                chosen = 0
                for k in range(POOLISH_FAN):
                    if child[k] > 0:
                        chosen = k
                    if left < child[k]:
                        break
                    left -= child[k]
                else:
                    left = INFINITY  # beyond the end: the last of them below, too
                at = at * POOLISH_FAN + chosen
            item[i] = at
            power[i] = node[level[1] + at]


cdef check_layout(Views views, const int64_t *level, int64_t n_levels):
    """The first two buffers are a tree and its layout."""
    cdef int64_t end, i, size = numbers(views, 0)
    if n_levels < 1 or level[2] != 0 or level[1] != level[0] or level[3] != level[1]:
        raise IndexError("no layout of a tree")
    end = 2 * level[0]
    for i in range(1, n_levels):
        if level[4 * i] * 16 < level[4 * i - 4] or level[4 * i + 1] != end:
            raise IndexError("no layout of a tree")
        end += 3 * level[4 * i]
    if level[4 * n_levels - 4] != 16 or end > size:
        raise IndexError("no layout of a tree, or a tree that is too short for it")
