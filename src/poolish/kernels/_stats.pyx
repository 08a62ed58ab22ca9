# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The kernels of ``reference_stats.py``, compiled. Same names, same meaning; all loops release the GIL."""

from libc.stdint cimport int64_t, uint8_t, uint64_t
cimport cython

import numpy as np

cdef extern from "stats.h":
    ctypedef struct poolish_moments:
        double n, mean, m2, m3, m4, low, high
        int64_t n_nan, n_above, n_below
    int POOLISH_F64, POOLISH_F32, POOLISH_I64, POOLISH_I32, POOLISH_U8
    void poolish_scan(int kind, const void *values, int64_t n, const double *edges, int64_t n_edges, int64_t *counts,
                      poolish_moments *all) nogil
    void poolish_sort(uint64_t *keys, uint64_t *other, int64_t n, int64_t *counts, uint64_t **sorted) nogil
    void poolish_walk(const double *a, int64_t n_a, const double *b, int64_t n_b, int64_t *above, int64_t *below,
                      double *area) nogil
    void poolish_registers(const void *values, int is_float, int64_t n, int bits, uint8_t *registers) nogil
    int64_t poolish_tally(const void *values, int is_float, int64_t n, int64_t limit, int bits, int64_t *slots,
                          uint64_t *found, int64_t *counts) nogil
    void poolish_fill(int kind, const void *values, int64_t n, double low, double scale, int64_t n_buckets,
                      int64_t *counts, double *members) nogil
    int64_t poolish_pick(int kind, const void *values, int64_t n, double low, double scale, int64_t n_buckets,
                         const uint8_t *marks, double *out, int64_t n_out) nogil

include "shared.pxi"

cdef dict KINDS = {
    "<f8": POOLISH_F64, "<f4": POOLISH_F32, "<i8": POOLISH_I64, "<i4": POOLISH_I32, "|u1": POOLISH_U8,
}


def scan(values, edges=None, counts=None):
    cdef Views views = Views()
    cdef poolish_moments found
    values, kind = known(values)
    cdef int code = kind
    cdef const void *data = views.read(values)
    cdef int64_t n = values.size, n_edges = -1
    cdef const double *bounds = NULL
    cdef int64_t *bins = NULL
    found.n = found.mean = found.m2 = found.m3 = found.m4 = found.low = found.high = 0
    found.n_nan = found.n_above = found.n_below = 0
    if edges is not None:
        check(edges, "<f8")
        check(counts, "<i8")
        n_edges = len(edges)
        if len(counts) != n_edges + 1:
            raise IndexError("one more count than edges")
        bounds = <const double *>views.read(edges)
        bins = <int64_t *>views.write(counts)
    with nogil:
        poolish_scan(code, data, n, bounds, n_edges, bins, &found)
    if found.n == 0:
        found.low, found.high = float("nan"), float("nan")
    moments = (int(found.n), found.mean, found.m2, found.m3, found.m4)
    return moments, found.low, found.high, (found.n_nan, found.n_above, found.n_below)


def sort(values):
    cdef Views views = Views()
    cdef uint64_t *result
    keys = np.array(values, np.float64, copy=True, ndmin=1)
    # Zeros of both signs are equal, and so must be their keys; NaN goes behind infinity, whatever its sign.
    keys += 0.0
    np.copyto(keys, np.nan, where=np.isnan(keys))
    other, counts = np.empty(len(keys), np.float64), np.empty(8 * 256, np.int64)
    cdef uint64_t *one = <uint64_t *>views.write(keys)
    cdef uint64_t *two = <uint64_t *>views.write(other)
    cdef int64_t *room = <int64_t *>views.write(counts)
    cdef int64_t n = len(keys)
    with nogil:
        poolish_sort(one, two, n, room, &result)
    return keys if result == one else other


def walk(a, b):
    cdef Views views = Views()
    check(a, "<f8")
    check(b, "<f8")
    cdef const double *one = <const double *>views.read(a)
    cdef const double *two = <const double *>views.read(b)
    cdef int64_t n_a = len(a), n_b = len(b), above, below
    cdef double area
    if n_a == 0 or n_b == 0:
        raise IndexError("an empty sample has no distribution")
    with nogil:
        poolish_walk(one, n_a, two, n_b, &above, &below, &area)
    return above, below, area


def fill_registers(words, registers):
    cdef Views views = Views()
    cdef int is_float = check_words(words)
    check(registers, "|u1")
    cdef const void *data = views.read(words)
    cdef uint8_t *room = <uint8_t *>views.write(registers)
    cdef int64_t n = len(words)
    cdef int bits = int(len(registers)).bit_length() - 1
    if bits < 4 or bits > 18 or len(registers) != 1 << bits:
        raise IndexError("registers: a power of two from 16 to 2**18")
    with nogil:
        poolish_registers(data, is_float, n, bits, room)


def tally(words, limit):
    cdef Views views = Views()
    cdef int is_float = check_words(words)
    cdef int64_t n = len(words), most = limit, n_found
    if not 0 < most <= 1 << 20:
        raise IndexError("limit: 1 to 2**20")
    cdef int bits = int(2 * limit).bit_length()
    slots = np.full(1 << bits, -1, np.int64)
    found, counts = np.empty(limit, np.uint64), np.empty(limit, np.int64)
    cdef const void *data = views.read(words)
    cdef int64_t *table = <int64_t *>views.write(slots)
    cdef uint64_t *seen = <uint64_t *>views.write(found)
    cdef int64_t *times = <int64_t *>views.write(counts)
    with nogil:
        n_found = poolish_tally(data, is_float, n, most, bits, table, seen, times)
    return None if n_found < 0 else (found[:n_found].copy(), counts[:n_found].copy())


def fill_buckets(values, double low, double scale, counts, members):
    cdef Views views = Views()
    values, kind = known(values)
    cdef int code = kind
    check(counts, "<i8")
    check(members, "<f8")
    if len(counts) != len(members) or not len(counts):
        raise IndexError("one member for each bucket")
    cdef const void *data = views.read(values)
    cdef int64_t *sizes = <int64_t *>views.write(counts)
    cdef double *room = <double *>views.write(members)
    cdef int64_t n = len(values), n_buckets = len(counts)
    with nogil:
        poolish_fill(code, data, n, low, scale, n_buckets, sizes, room)


def pick_buckets(values, double low, double scale, marks, out):
    cdef Views views = Views()
    values, kind = known(values)
    cdef int code = kind
    check(marks, "|u1")
    check(out, "<f8")
    if not len(marks):
        raise IndexError("no buckets")
    cdef const void *data = views.read(values)
    cdef const uint8_t *chosen = <const uint8_t *>views.read(marks)
    cdef double *room = <double *>views.write(out)
    cdef int64_t n = len(values), n_buckets = len(marks), n_out = len(out), found
    with nogil:
        found = poolish_pick(code, data, n, low, scale, n_buckets, chosen, room, n_out)
    return found


cdef tuple known(values):
    kind = KINDS.get(values.dtype.str)
    if kind is None:
        values, kind = values.astype(np.float64), POOLISH_F64
    return np.ascontiguousarray(values).reshape(-1), kind


cdef int check_words(array) except -1:
    if array.dtype.str == "<f8":
        check(array, "<f8")
        return 1
    check(array, "<u8")
    return 0


cdef int check(array, str dtype) except -1:
    if array.dtype.str != dtype or array.ndim != 1 or not array.flags.c_contiguous:
        raise TypeError(f"a flat array of {dtype}, got {array.dtype.str} with shape {array.shape}")
    return 0
