# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: extra_compile_args = -O3
"""The kernels of ``reference.py``, compiled. Same names, same meaning, same errors; the GIL is released in every loop.

Arguments come by the buffer protocol: ``PyObject_GetBuffer`` costs 50 ns an argument, a typed memoryview ten times that.
"""

from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_FORMAT
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, strcmp
cimport cython

cdef extern from *:
    """
    /* How many bits are set in each byte and all bytes below it. The processor's own instruction would do, but a wheel
       cannot count on it, and the compiler's replacement is a call. */
    static uint64_t poolish_byte_counts(uint64_t word) {
      word = word - ((word >> 1) & 0x5555555555555555ULL);
      word = (word & 0x3333333333333333ULL) + ((word >> 2) & 0x3333333333333333ULL);
      word = (word + (word >> 4)) & 0x0F0F0F0F0F0F0F0FULL;
      return word * 0x0101010101010101ULL;
    }
    static int poolish_popcount(uint64_t word) { return (int)(poolish_byte_counts(word) >> 56); }
    /* Place of the set bit that has `rank` set bits below it. */
    static int poolish_select(uint64_t word, int rank) {
      uint64_t counts = poolish_byte_counts(word);
      int shift = 0;
      while ((int)((counts >> shift) & 0xFF) <= rank) shift += 8;
      if (shift) rank -= (int)((counts >> (shift - 8)) & 0xFF);
      word >>= shift;
      while (rank--) word &= word - 1;
      while (!(word & 1)) { word >>= 1; shift++; }
      return shift;
    }
    static uint64_t poolish_high_product(uint64_t a, uint64_t b) {
    #if defined(__SIZEOF_INT128__)
      return (uint64_t)(((unsigned __int128)a * b) >> 64);
    #else
      uint64_t al = (uint32_t)a, ah = a >> 32, bl = (uint32_t)b, bh = b >> 32;
      uint64_t mid = ah * bl + ((al * bl) >> 32), low = al * bh + (uint32_t)mid;
      return ah * bh + (mid >> 32) + (low >> 32);
    #endif
    }
    """
    int poolish_popcount(uint64_t word) nogil
    int poolish_select(uint64_t word, int rank) nogil
    uint64_t poolish_high_product(uint64_t a, uint64_t b) nogil


include "shared.pxi"


BLOCK_BITS = 512
cdef int64_t AHEAD = 8  # rows fetched before they are copied: a random row costs a cache miss, eight overlap


# --- rows: gathering -------------------------------------------------------------------------------------------------


def resolve(indices, int64_t n_rows, int64_t first, out):
    cdef Views views = Views()
    cdef const int64_t *index = <const int64_t *>views.read(indices)
    cdef int64_t *place = <int64_t *>views.write(out)
    cdef int64_t i, value, n = views.size(0) // 8, bad = -1
    if views.size(1) < n * 8:
        raise IndexError("out is too small")
    with nogil:
        for i in range(n):
            value = index[i]
            if value < -n_rows or value >= n_rows:
                bad = i
                break
            place[i] = first + value + (n_rows if value < 0 else 0)
    return bad


def gather(source, int64_t width, positions, out):
    cdef Views views = Views()
    cdef const char *items = <const char *>views.read(source)
    cdef const int64_t *place = <const int64_t *>views.read(positions)
    cdef char *target = <char *>views.write(out)
    cdef int64_t n = views.size(1) // 8
    if width == 0 or n == 0:
        return
    cdef int64_t n_items = views.size(0) // width, i, j
    check(place, n, n_items)
    if views.size(2) < n * width:
        raise IndexError("out is too small")
    with nogil:
        if width == 8:
            for i in range(n):
                if i + AHEAD < n:
                    poolish_prefetch(items + place[i + AHEAD] * 8)
                (<int64_t *>target)[i] = (<const int64_t *>items)[place[i]]
        elif width == 4:
            for i in range(n):
                if i + AHEAD < n:
                    poolish_prefetch(items + place[i + AHEAD] * 4)
                (<int *>target)[i] = (<const int *>items)[place[i]]
        else:
            for i in range(n):
                if i + AHEAD < n:
                    touch(items + place[i + AHEAD] * width, width)
                memcpy(target + i * width, items + place[i] * width, width)


cdef inline void touch(const char *start, int64_t n_bytes) noexcept nogil:
    """Ask for the first kilobyte; beyond it the processor's own prefetcher has caught on."""
    cdef int64_t line = 0
    while line < n_bytes and line < 1024:
        poolish_prefetch(start + line)
        line += 64


cdef int check(const int64_t *place, int64_t n, int64_t n_items) except -1:
    cdef int64_t i
    cdef bint good = True
    with nogil:
        for i in range(n):
            if place[i] < 0 or place[i] >= n_items:
                good = False
                break
    if not good:
        raise IndexError(f"position outside 0..{n_items - 1}")
    return 0


def gather_offsets(offsets, positions, out):
    cdef Views views = Views()
    cdef const int64_t *start = <const int64_t *>views.read(offsets)
    cdef const int64_t *place = <const int64_t *>views.read(positions)
    cdef int64_t *target = <int64_t *>views.write(out)
    cdef int64_t n = views.size(1) // 8, n_items = views.size(0) // 8 - 1, i, total = 0
    check(place, n, n_items)
    if views.size(2) < (n + 1) * 8:
        raise IndexError("out is too small")
    with nogil:
        for i in range(n):
            if i + AHEAD < n:
                poolish_prefetch(start + place[i + AHEAD])
            target[i] = total
            total += start[place[i] + 1] - start[place[i]]
        target[n] = total
    return total


def gather_ranges(source, int64_t width, offsets, positions, out):
    cdef Views views = Views()
    cdef const char *items = <const char *>views.read(source)
    cdef const int64_t *start = <const int64_t *>views.read(offsets)
    cdef const int64_t *place = <const int64_t *>views.read(positions)
    cdef char *target = <char *>views.write(out)
    cdef int64_t n = views.size(2) // 8, n_items = views.size(1) // 8 - 1, i, first, length
    cdef int64_t room = views.size(3), n_source = views.size(0)
    cdef bint good = True
    check(place, n, n_items)
    with nogil:
        for i in range(n):
            if i + AHEAD < n:
                first = start[place[i + AHEAD]] * width
                touch(items + first, start[place[i + AHEAD] + 1] * width - first)
            first = start[place[i]] * width
            length = start[place[i] + 1] * width - first
            if first < 0 or length < 0 or first + length > n_source or length > room:
                good = False
                break
            memcpy(target, items + first, length)
            target += length
            room -= length
    if not good:
        raise IndexError("a range reaches past the end")


def pad_ranges(source, begins, sizes, int64_t row_size, bint is_left, item, out):
    cdef Views views = Views()
    cdef const char *items = <const char *>views.read(source)
    cdef const int64_t *begin = <const int64_t *>views.read(begins)
    cdef const int64_t *size = <const int64_t *>views.read(sizes)
    cdef const char *padding = <const char *>views.read(item)
    cdef char *target = <char *>views.write(out)
    cdef int64_t n_source = views.size(0), n = views.size(1) // 8, width = views.size(3), i, rest
    cdef bint is_inside = True, is_whole = width > 0 and row_size % width == 0
    if views.size(2) // 8 != n or views.size(4) < n * row_size:
        raise IndexError("out is too small, or begins and sizes differ in number")
    if n == 0:
        return
    with nogil:
        for i in range(n):
            if begin[i] < 0 or size[i] < 0 or size[i] > row_size or begin[i] > n_source - size[i]:
                is_inside = False
                break
            if is_whole and size[i] % width:
                is_whole = False
    if not is_inside:
        raise IndexError("a range reaches past the end")
    if not is_whole:
        raise ValueError(f"rows and ranges are made of items of {width} bytes")
    with nogil:
        for i in range(n):
            if i + AHEAD < n:
                touch(items + begin[i + AHEAD], size[i + AHEAD])
            rest = row_size - size[i]
            memcpy(target + (rest if is_left else 0), items + begin[i], size[i])
            repeat(target + (0 if is_left else size[i]), rest, padding, width)
            target += row_size


cdef inline void repeat(char *target, int64_t n_bytes, const char *item, int64_t width) noexcept nogil:
    """Fill bytes with an item, by copying what is there twice as long each time."""
    cdef int64_t done = width
    if n_bytes == 0:
        return
    memcpy(target, item, width)
    while done < n_bytes:
        memcpy(target + done, target, min(done, n_bytes - done))
        done *= 2


def gather_bits(source, int64_t first_bit, positions, out):
    cdef Views views = Views()
    cdef const uint8_t *bits = <const uint8_t *>views.read(source)
    cdef const int64_t *place = <const int64_t *>views.read(positions)
    cdef uint8_t *target = <uint8_t *>views.write(out)
    cdef int64_t n = views.size(1) // 8, i, bit
    cdef uint8_t byte = 0
    check(place, n, views.size(0) * 8 - first_bit)
    if views.size(2) * 8 < n:
        raise IndexError("out is too small")
    with nogil:
        for i in range(n):
            bit = place[i] + first_bit
            byte |= <uint8_t>(((bits[bit >> 3] >> (bit & 7)) & 1) << (i & 7))
            if (i & 7) == 7:
                target[i >> 3] = byte
                byte = 0
        if n & 7:
            target[n >> 3] = byte


def copy_bits(source, int64_t source_bit, out, int64_t out_bit, int64_t n_bits):
    cdef Views views = Views()
    cdef const uint8_t *bits = <const uint8_t *>views.read(source)
    cdef uint8_t *target = <uint8_t *>views.write(out)
    cdef int64_t i = 0, n_bytes
    if n_bits == 0:
        return
    if source_bit + n_bits > views.size(0) * 8 or out_bit + n_bits > views.size(1) * 8:
        raise IndexError(f"{n_bits} bits reach past the end")
    with nogil:
        while i < n_bits and ((out_bit + i) & 7 or (source_bit + i) & 7):
            copy_bit(bits, source_bit + i, target, out_bit + i)
            i += 1
        n_bytes = (n_bits - i) >> 3
        memcpy(target + ((out_bit + i) >> 3), bits + ((source_bit + i) >> 3), n_bytes)
        i += n_bytes << 3
        while i < n_bits:
            copy_bit(bits, source_bit + i, target, out_bit + i)
            i += 1


cdef inline void copy_bit(const uint8_t *bits, int64_t source_bit, uint8_t *target, int64_t out_bit) noexcept nogil:
    cdef uint8_t mask = <uint8_t>(1 << (out_bit & 7))
    if (bits[source_bit >> 3] >> (source_bit & 7)) & 1:
        target[out_bit >> 3] |= mask
    else:
        target[out_bit >> 3] &= <uint8_t>~mask


# --- rows: one row of Python values ----------------------------------------------------------------------------------

cdef extern from "Python.h":
    bint PyUnicode_CheckExact(object)
    bint PyUnicode_IS_ASCII(object)
    Py_ssize_t PyUnicode_GET_LENGTH(object)
    bint PyLong_CheckExact(object)
    bint PyFloat_CheckExact(object)
    long long PyLong_AsLongLongAndOverflow(object, int *) except? -1
    PyObject *PyDict_GetItemWithError(object, object) except? NULL
    ctypedef struct PyObject
    ctypedef struct PyTypeObject
    PyTypeObject *Py_TYPE(object)
    bytes PyBytes_FromStringAndSize(const char *, Py_ssize_t)


def freeze_row(dict row, tuple plan):
    """Each step of the plan is (name, freeze, shortcut, limit, array class, format, shape)."""
    cdef list frozen = []
    cdef tuple step
    cdef PyObject *found
    for step in plan:
        found = PyDict_GetItemWithError(row, step[0])
        if found is NULL:
            raise KeyError(step[0])
        frozen.append(freeze_value(<object>found, step))
    return frozen


cdef object freeze_value(object value, tuple step):
    cdef int shortcut = step[2], overflow = 0
    cdef long long number
    if shortcut == 1:
        if PyUnicode_CheckExact(value) and PyUnicode_IS_ASCII(value) and PyUnicode_GET_LENGTH(value) <= <Py_ssize_t>step[3]:
            return value
    elif shortcut == 2:
        if PyLong_CheckExact(value):
            PyLong_AsLongLongAndOverflow(value, &overflow)
            if overflow == 0:
                return value
    elif shortcut == 3:
        if PyFloat_CheckExact(value):
            return value
    elif shortcut == 4 and <void *>Py_TYPE(value) == <void *>step[4]:
        copied = array_bytes(value, step[5], step[6])
        if copied is not None:
            return copied
    return step[1](value)


cdef object array_bytes(object array, bytes format, tuple shape):
    """The bytes of an array that has this format and shape and lies in one piece; None for any other."""
    cdef Py_buffer view
    cdef Py_ssize_t i
    try:
        PyObject_GetBuffer(array, &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
    except (BufferError, ValueError):  # not in one piece, or a dtype the buffer protocol does not know
        return None
    try:
        if view.ndim != len(shape) or strcmp(view.format, format) != 0:
            return None
        for i in range(view.ndim):
            if view.shape[i] != <Py_ssize_t>shape[i]:
                return None
        return PyBytes_FromStringAndSize(<const char *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


# --- rows: tombstones ------------------------------------------------------------------------------------------------


def count_blocks(words, tree):
    cdef Views views = Views()
    cdef const uint64_t *word = <const uint64_t *>views.read(words)
    cdef int64_t *node = <int64_t *>views.write(tree)
    cdef int64_t n_blocks = views.size(1) // 8 - 1, i, parent
    cdef int j
    if views.size(0) < n_blocks * 64:
        raise IndexError("fewer bits than the tree has blocks for")
    with nogil:
        for i in range(n_blocks + 1):
            node[i] = 0
        for i in range(1, n_blocks + 1):
            for j in range(8):
                node[i] += poolish_popcount(word[(i - 1) * 8 + j])
            parent = i + (i & -i)
            if parent <= n_blocks:
                node[parent] += node[i]


def select(words, tree, ranks, out):
    cdef Views views = Views()
    cdef const uint64_t *word = <const uint64_t *>views.read(words)
    cdef const int64_t *node = <const int64_t *>views.read(tree)
    cdef const int64_t *rank = <const int64_t *>views.read(ranks)
    cdef int64_t *place = <int64_t *>views.write(out)
    cdef int64_t n_nodes = views.size(1) // 8, n = views.size(2) // 8, i
    if views.size(0) < (n_nodes - 1) * 64 or views.size(3) < n * 8:
        raise IndexError("out is too small")
    check(rank, n, n_live_(node, n_nodes))
    cdef int64_t left[64]
    cdef int64_t first, m
    with nogil:
        for first in range(0, n, 64):  # all blocks are asked for before the first is looked into
            m = min(64, n - first)
            for i in range(m):
                left[i] = rank[first + i]
                place[first + i] = block_of(node, n_nodes, &left[i])
                poolish_prefetch(word + place[first + i] * 8)
            for i in range(m):
                place[first + i] = in_block(word, place[first + i], left[i])


cdef int64_t select_one_(const uint64_t *word, const int64_t *node, int64_t n_nodes, int64_t rank) noexcept nogil:
    cdef int64_t at = block_of(node, n_nodes, &rank)
    return in_block(word, at, rank)


cdef inline int64_t block_of(const int64_t *node, int64_t n_nodes, int64_t *rank) noexcept nogil:
    """The block that holds the rank; what is left of the rank inside it. Without branches: they would all be guesses."""
    cdef int64_t at = 0, step = 1, left = rank[0], count, mask
    while step * 2 < n_nodes:
        step *= 2
    while step:
        if at + step < n_nodes:
            count = node[at + step]
            mask = -<int64_t>(count <= left)
            at += step & mask
            left -= count & mask
        step >>= 1
    rank[0] = left
    return at


cdef inline int64_t in_block(const uint64_t *word, int64_t block, int64_t rank) noexcept nogil:
    cdef int64_t at = block * 8
    cdef int count = poolish_popcount(word[at])
    while rank >= count:
        rank -= count
        at += 1
        count = poolish_popcount(word[at])
    return at * 64 + poolish_select(word[at], <int>rank)


def select_one(words, tree, int64_t rank):
    cdef Views views = Views()
    cdef const uint64_t *word = <const uint64_t *>views.read(words)
    cdef const int64_t *node = <const int64_t *>views.read(tree)
    cdef int64_t n_nodes = views.size(1) // 8
    if views.size(0) < (n_nodes - 1) * 64 or rank < 0 or rank >= n_live_(node, n_nodes):
        raise IndexError(f"position outside 0..{n_live_(node, n_nodes) - 1}")
    return select_one_(word, node, n_nodes, rank)


cdef int64_t n_live_(const int64_t *node, int64_t n_nodes) noexcept nogil:
    cdef int64_t i = n_nodes - 1, n_live = 0
    while i > 0:
        n_live += node[i]
        i -= i & -i
    return n_live


def kill(words, tree, places):
    cdef Views views = Views()
    cdef uint64_t *word = <uint64_t *>views.write(words)
    cdef int64_t *node = <int64_t *>views.write(tree)
    cdef const int64_t *place = <const int64_t *>views.read(places)
    cdef int64_t n_nodes = views.size(1) // 8, n = views.size(2) // 8, i
    check(place, n, min(views.size(0) * 8, (n_nodes - 1) * BLOCK_BITS))
    with nogil:
        for i in range(n):
            kill_one(word, node, n_nodes, place[i])


cdef inline void kill_one(uint64_t *word, int64_t *node, int64_t n_nodes, int64_t place) noexcept nogil:
    cdef uint64_t bit = (<uint64_t>1) << (place & 63)
    cdef int64_t at = (place >> 9) + 1
    if not word[place >> 6] & bit:
        return
    word[place >> 6] &= ~bit
    while at < n_nodes:
        node[at] -= 1
        at += at & -at


def evict(words, tree, int64_t n_before, int64_t n_live, int64_t max_live, uint64_t key, int64_t first_id, int64_t n):
    cdef Views views = Views()
    cdef uint64_t *word = <uint64_t *>views.write(words)
    cdef int64_t *node = <int64_t *>views.write(tree)
    cdef int64_t n_nodes = views.size(1) // 8, i, rank
    if views.size(0) < (n_nodes - 1) * 64 or n_before + n_live + n > (n_nodes - 1) * BLOCK_BITS:
        raise IndexError("fewer bits than rows")
    with nogil:
        for i in range(first_id, first_id + n):
            n_live += 1
            if n_live > max_live:
                rank = <int64_t>poolish_high_product(mix_(key ^ mix_(<uint64_t>i)), <uint64_t>n_live)
                kill_one(word, node, n_nodes, select_one_(word, node, n_nodes, n_before + rank))
                n_live -= 1
    return n_live


cdef inline uint64_t mix_(uint64_t value) noexcept nogil:
    value += <uint64_t>0x9E3779B97F4A7C15
    value = (value ^ (value >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * <uint64_t>0x94D049BB133111EB
    return value ^ (value >> 31)


def mix(uint64_t value):
    return mix_(value)


# --- seeds: a keyed permutation of 0..n-1 ----------------------------------------------------------------------------

cdef enum:
    ROUNDS = 8


cdef struct Cipher:
    uint64_t keys[ROUNDS]
    int n_high, n_low


def permute(positions, int64_t n, uint64_t key, out):
    walk(positions, n, key, out, False)


def unpermute(ids, int64_t n, uint64_t key, out):
    walk(ids, n, key, out, True)


cdef int walk(object start, int64_t n, uint64_t key, object out, bint backwards) except -1:
    cdef Views views = Views()
    cdef const int64_t *source = <const int64_t *>views.read(start)
    cdef int64_t *target = <int64_t *>views.write(out)
    cdef int64_t n_ids = views.size(0) // 8, first = 0
    cdef Cipher cipher = cipher_of(<uint64_t>n, key)
    check(source, n_ids, n)
    if views.size(1) < n_ids * 8:
        raise IndexError("out is too small")
    with nogil:
        while first < n_ids:
            walk_block(source + first, min(n_ids - first, <int64_t>256), <uint64_t>n, &cipher, target + first, backwards)
            first += 256
    return 0


cdef Cipher cipher_of(uint64_t n, uint64_t key) noexcept nogil:
    cdef Cipher cipher
    cdef int i, bits = 6
    while bits < 63 and (<uint64_t>1 << bits) < n:
        bits += 1
    for i in range(ROUNDS):
        cipher.keys[i] = mix_(mix_(key) ^ <uint64_t>i)
    cipher.n_low = bits // 2
    cipher.n_high = bits - cipher.n_low
    return cipher


cdef void walk_block(
    const int64_t *source, int64_t n_ids, uint64_t n, const Cipher *cipher, int64_t *target, bint backwards
) noexcept nogil:
    """All ids of the block one step, then those that fell outside another, and so on.

    A loop per id would guess wrong at the end of nearly every walk, which halves the speed.
    """
    cdef int outside[256]
    cdef int i, j, n_outside = 0, n_left
    cdef uint64_t value
    for i in range(<int>n_ids):
        value = encipher(<uint64_t>source[i], cipher, backwards)
        target[i] = <int64_t>value
        outside[n_outside] = i
        n_outside += value >= n
    while n_outside:
        n_left = 0
        for j in range(n_outside):
            i = outside[j]
            value = encipher(<uint64_t>target[i], cipher, backwards)
            target[i] = <int64_t>value
            outside[n_left] = i
            n_left += value >= n
        n_outside = n_left


cdef inline uint64_t encipher(uint64_t value, const Cipher *cipher, bint backwards) noexcept nogil:
    cdef uint64_t high = value >> cipher.n_low, low = value & ((<uint64_t>1 << cipher.n_low) - 1)
    cdef int i
    if backwards:
        for i in range(ROUNDS - 2, -1, -2):
            low ^= scramble(high, cipher.keys[i + 1]) >> (64 - cipher.n_low)
            high ^= scramble(low, cipher.keys[i]) >> (64 - cipher.n_high)
    else:
        for i in range(0, ROUNDS, 2):
            high ^= scramble(low, cipher.keys[i]) >> (64 - cipher.n_high)
            low ^= scramble(high, cipher.keys[i + 1]) >> (64 - cipher.n_low)
    return high << cipher.n_low | low


cdef inline uint64_t scramble(uint64_t half, uint64_t key) noexcept nogil:
    cdef uint64_t product = (half ^ key) * <uint64_t>0x9E3779B97F4A7C15
    product ^= product >> 32
    return product * <uint64_t>0xD6E8FEB86659FD93


# --- load: one block of an order that grows ---------------------------------------------------------------------------

def deal(starts, sizes, cursors, keys, uint64_t key, out, scratch):
    cdef Views views = Views()
    cdef const int64_t *start = <const int64_t *>views.read(starts)
    cdef const int64_t *size = <const int64_t *>views.read(sizes)
    cdef int64_t *cursor = <int64_t *>views.write(cursors)
    cdef const uint64_t *own = <const uint64_t *>views.read(keys)
    cdef int64_t *ids = <int64_t *>views.write(out)
    cdef int64_t *place = <int64_t *>views.write(scratch)
    cdef int64_t n_parts = views.size(0) // 8, n = views.size(4) // 8, total = 0, i
    cdef int64_t *end
    cdef int64_t *next_
    if views.size(1) // 8 < n_parts or views.size(2) // 8 < n_parts or views.size(3) // 8 < n_parts:
        raise IndexError("sizes, cursors and keys are as many as starts")
    if views.size(5) // 8 < 2 * n + 2 * n_parts:
        raise IndexError("scratch is too small")
    for i in range(n_parts):
        if cursor[i] < 0 or cursor[i] > size[i]:
            raise IndexError("a cursor lies outside its part")
        total += size[i] - cursor[i]
    if n > total:
        raise IndexError(f"{n} ids from parts that have {total} left")
    end, next_ = place + 2 * n, place + 2 * n + n_parts
    cdef Cipher cipher = cipher_of(<uint64_t>total, key)
    with nogil:
        deal_block(start, size, cursor, own, n_parts, n, total, &cipher, ids, place, end, next_)


cdef void deal_block(
    const int64_t *start, const int64_t *size, int64_t *cursor, const uint64_t *own, int64_t n_parts, int64_t n,
    int64_t total, const Cipher *cipher, int64_t *ids, int64_t *place, int64_t *end, int64_t *next_
) noexcept nogil:
    """``place``: n numbers for the parts of the elements, then n for their ids, part by part."""
    cdef int64_t *grouped = place + n
    cdef int64_t i, j, part, first, low, high, sum_ = 0
    cdef Cipher mine
    for part in range(n_parts):
        sum_ += size[part] - cursor[part]
        end[part] = sum_
        next_[part] = 0
    if n_parts == 1:  # nothing to share out
        next_[0] = n
        for i in range(n):
            place[i] = 0
    else:
        for i in range(n):
            ids[i] = i
        first = 0
        while first < n:
            walk_block(ids + first, min(n - first, <int64_t>256), <uint64_t>total, cipher, ids + first, False)
            first += 256
        for i in range(n):  # of which part each element is: the first whose end lies beyond it, found without branches
            low, high = 0, n_parts
            while high > 1:
                j = high >> 1
                low += j * (end[low + j - 1] <= ids[i])
                high -= j
            place[i] = low
            next_[low] += 1
    sum_ = 0
    for part in range(n_parts):  # each part goes on where its own order stopped
        j = next_[part]
        if j:
            for i in range(j):
                grouped[sum_ + i] = cursor[part] + i
            mine = cipher_of(<uint64_t>size[part], own[part])
            first = 0
            while first < j:
                walk_block(
                    grouped + sum_ + first, min(j - first, <int64_t>256), <uint64_t>size[part], &mine,
                    grouped + sum_ + first, False,
                )
                first += 256
            cursor[part] += j
        next_[part] = sum_
        sum_ += j
    for i in range(n):
        part = place[i]
        ids[i] = start[part] + grouped[next_[part]]
        next_[part] += 1
