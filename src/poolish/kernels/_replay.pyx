# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The kernels of ``reference_replay.py``, compiled. Same names, same meaning; all loops release the GIL."""

from libc.stdint cimport int64_t, uint64_t
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

    /* The child in whose share of the sum a mass lies, and what is left of the mass in it; the last above 0 if none. */
    static inline void poolish_choose(const double *children, int64_t *node, double *mass)
    {
        const double *child = children + *node * POOLISH_FAN, *part;
        double left = *mass, ends[4], start;
        int64_t chosen;
        for (int k = 0; k < 4; k++)
            ends[k] = ((child[4 * k] + child[4 * k + 1]) + child[4 * k + 2]) + child[4 * k + 3];
        ends[1] += ends[0];
        ends[2] += ends[1];
        chosen = (ends[0] <= left) + (ends[1] <= left) + (ends[2] <= left);
        left -= chosen ? ends[chosen - 1] : 0.0;
        part = child + 4 * chosen;
        ends[0] = part[0];
        ends[1] = ends[0] + part[1];
        ends[2] = ends[1] + part[2];
        start = ends[0] <= left ? ends[0] : 0.0;
        start = ends[1] <= left ? ends[1] : start;
        start = ends[2] <= left ? ends[2] : start;
        chosen = 4 * chosen + (ends[0] <= left) + (ends[1] <= left) + (ends[2] <= left);
        left -= start;
        if (!(child[chosen] > 0)) {  /* beyond the end: the last of them below, too */
            for (chosen = POOLISH_FAN - 1; chosen > 0 && !(child[chosen] > 0); chosen--) {}
            left = 1.0 / 0.0;
        }
        *node = *node * POOLISH_FAN + chosen;
        *mass = left;
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
    void poolish_choose(const double *children, int64_t *node, double *mass) nogil


cdef inline bint is_below(uint64_t key, int64_t place, uint64_t other_key, int64_t other_place) noexcept nogil:
    return key < other_key or (key == other_key and place < other_place)


def heap_push(keys, places, int64_t size, new_keys, new_places):
    cdef Views views = Views()
    cdef uint64_t *key = <uint64_t *>views.write(keys)
    cdef int64_t *place = <int64_t *>views.write(places)
    cdef const uint64_t *new_key = <const uint64_t *>views.read(new_keys)
    cdef const int64_t *new_place = <const int64_t *>views.read(new_places)
    cdef int64_t n = numbers(views, 2), i, at, parent
    if size < 0 or size + n > min(numbers(views, 0), numbers(views, 1)) or numbers(views, 3) != n:
        raise IndexError("no room in the heap")
    with nogil:
        for i in range(n):
            at = size + i
            while at > 0:
                parent = (at - 1) >> 1
                if not is_below(new_key[i], new_place[i], key[parent], place[parent]):
                    break
                key[at], place[at] = key[parent], place[parent]
                at = parent
            key[at], place[at] = new_key[i], new_place[i]
    return size + n


def heap_pop(keys, places, int64_t size, out_keys, out_places):
    cdef Views views = Views()
    cdef uint64_t *key = <uint64_t *>views.write(keys)
    cdef int64_t *place = <int64_t *>views.write(places)
    cdef uint64_t *out_key = <uint64_t *>views.write(out_keys)
    cdef int64_t *out_place = <int64_t *>views.write(out_places)
    cdef int64_t n = numbers(views, 2), i, at, child, moved_place
    cdef uint64_t moved
    if n > size or size > min(numbers(views, 0), numbers(views, 1)) or numbers(views, 3) != n:
        raise IndexError("not as many entries in the heap")
    with nogil:
        for i in range(n):
            out_key[i], out_place[i] = key[0], place[0]
            size -= 1
            moved, moved_place, at = key[size], place[size], 0
            while True:
                child = 2 * at + 1
                if child >= size:
                    break
                if child + 1 < size and is_below(key[child + 1], place[child + 1], key[child], place[child]):
                    child += 1
                if not is_below(key[child], place[child], moved, moved_place):
                    break
                key[at], place[at] = key[child], place[child]
                at = child
            key[at], place[at] = moved, moved_place
    return size


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
    cdef int64_t n = numbers(views, 2), n_levels = numbers(views, 1) // 4, i, j, n_parents, each, number, at
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
            if i + 8 < n:  # all of the node, which is summed up below
                at = item[i + 8] & -POOLISH_FAN
                poolish_fetch(node + level[1] + at)
                poolish_fetch(node + level[1] + at + 8)
                poolish_fetch(node + level[2] + at)
                poolish_fetch(node + level[2] + at + 8)
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
    cdef int64_t n = numbers(views, 2), n_levels = numbers(views, 1) // 4, i, j
    cdef const double *child
    if numbers(views, 3) != n or numbers(views, 4) != n:
        raise IndexError("as many items and powers as masses")
    check_layout(views, level, n_levels)
    # Level by level, so that fetching the children of one mass overlaps with choosing for others; without a branch per
    # child, which would be predicted wrong once in each node.
    with nogil:
        for i in range(n):
            item[i], power[i] = 0, wanted[i]
        for j in range(n_levels - 1, -1, -1):
            child = node + level[4 * j + 1]
            for i in range(n):
                poolish_choose(child, &item[i], &power[i])
                if j:
                    poolish_fetch(node + level[4 * j - 3] + item[i] * POOLISH_FAN)
                    poolish_fetch(node + level[4 * j - 3] + item[i] * POOLISH_FAN + 8)
        for i in range(n):
            power[i] = node[level[1] + item[i]]


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
