# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The kernels of ``reference_tokens.py``, compiled. Same names, same meaning; loops over arrays release the GIL."""

from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset, strerror
from posix.unistd cimport pwrite
cimport cython
cimport numpy as cnp

import sys

import numpy as np

cnp.import_array()

cdef extern from "Python.h":
    PyObject *PyDict_GetItem(PyObject *, PyObject *)
    int PyDict_Next(PyObject *, Py_ssize_t *, PyObject **, PyObject **)
    Py_ssize_t PyDict_Size(PyObject *)

cdef extern from "numpy/random/bitgen.h":
    ctypedef struct bitgen_t:
        void *state
        uint32_t (*next_uint32)(void *state) noexcept nogil

cdef extern from "values.h":
    ctypedef struct poolish_encoding:
        int is_float
        double limit
        int64_t low
        int64_t high
    int P_NONE
    int P_BOOL
    int P_I64
    int poolish_copy(int kind, const char *source, int64_t stride, int64_t n_runs, int64_t run,
                     const poolish_encoding *field, int64_t *target, int64_t step) nogil
    int poolish_array_kind(cnp.ndarray array)
    int poolish_number(PyObject *value, const poolish_encoding *field, int64_t *token)
    int poolish_step(PyObject *value, int64_t *step)
    uint64_t poolish_sealed(uint64_t number, uint64_t word) nogil
    void poolish_release(int64_t *word, uint64_t value) nogil
    void poolish_decode(int kind, int is_float, const int64_t *source, int64_t n_runs, int64_t run, int64_t step,
                        char *target) nogil
    void poolish_write_zeros(int file, int64_t begin, int64_t end) nogil
    uint64_t poolish_acquire(const int64_t *word) nogil

cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
      #define poolish_unlikely(claim) __builtin_expect(!!(claim), 0)
    #else
      #define poolish_unlikely(claim) (claim)
    #endif
    static inline PyObject **poolish_items(PyObject *list_or_tuple) {
      return PyList_CheckExact(list_or_tuple) ? ((PyListObject *)list_or_tuple)->ob_item
                                              : ((PyTupleObject *)list_or_tuple)->ob_item;
    }
    static inline int poolish_is_sequence(PyObject *value) { return PyList_CheckExact(value) || PyTuple_CheckExact(value); }
    static inline int poolish_is_text(PyObject *value) { return PyUnicode_CheckExact(value); }
    static inline int poolish_is_array(PyObject *value) { return Py_TYPE(value) == &PyArray_Type; }
    static inline int poolish_is_type(PyObject *value, PyObject *type) { return (PyObject *)Py_TYPE(value) == type; }
    """
    bint poolish_unlikely(bint claim) nogil
    PyObject **poolish_items(PyObject *list_or_tuple)
    bint poolish_is_sequence(PyObject *value)
    bint poolish_is_text(PyObject *value)
    bint poolish_is_array(PyObject *value)
    bint poolish_is_type(PyObject *value, PyObject *type)
    int64_t Py_SIZE(PyObject *value)

cdef enum:
    MAX_FIELDS = 256
    MAX_DIMS = 8
    UNDECIDED = 0
    SCALAR = 1
    SEQUENCE = 2
    # Words of the head page, in int64s, and how much of it is used.
    PUBLISHED = 8
    FIRST = 16
    HEAD_BYTES = 512
    # What became of one attempt to append.
    REFUSED = 0
    DONE = 1
    HAS_TENSORS = 2
    # What became of columns, where it is not the number of one that was refused.
    NO_MEMORY = -2
    FAILED = -3
    # Columns of this many bytes go to the files by way of a stage.
    STAGED_BYTES = 8 << 20
    STAGE = 1 << 20
    # Zeros are written this far ahead of what is appended to a file, less where the file is short.
    AHEAD = 1 << 18
    PAGE = 1 << 12
    # What one append may have before it stores behind the zeros.
    TOKENS_SPARE = 512
    ROWS_SPARE = 256

cdef struct Slot:
    poolish_encoding encoding
    int kind
    int n_dims
    int64_t shape[MAX_DIMS]


include "shared.pxi"


# --- writing ---------------------------------------------------------------------------------------------------------


cdef class Recorder:
    cdef Slot slots[MAX_FIELDS]
    cdef PyObject *names[MAX_FIELDS]   # borrowed from `ids`, for comparing without hashing
    cdef int n_fields
    cdef dict ids
    cdef object slow, trim
    cdef object tensor_type
    cdef Views lanes
    cdef int64_t *data
    cdef uint8_t *types
    cdef int64_t *index
    cdef int64_t *head
    cdef int files[3]   # of data, types and index
    cdef int64_t bytes_ready[3]   # how far each of them has its pages
    cdef int64_t token_room, row_room, token_ready, row_ready
    cdef public int64_t n_rows, n_tokens, n_steps, last_step, last_type, step_start
    cdef public int64_t first_row, first_token, max_tokens, trim_at
    cdef public bint is_busy, is_held

    def __init__(self, fields, slow, trim):
        cdef int i, j
        if len(fields) > MAX_FIELDS:
            raise IndexError("too many fields")
        self.ids = {}
        self.slow, self.trim = slow, trim
        self.tensor_type = None
        self.n_fields = len(fields)
        for i, (name, is_float, limit, low, high, kind, shape) in enumerate(fields):
            name = sys.intern(name)
            self.ids[name] = i
            self.names[i] = <PyObject *>name
            slot = &self.slots[i]
            slot.encoding.is_float, slot.encoding.limit = is_float, limit
            slot.encoding.low, slot.encoding.high = low, high
            slot.kind = kind
            slot.n_dims = len(shape)
            for j in range(min(slot.n_dims, <int>MAX_DIMS)):
                slot.shape[j] = -1 if shape[j] is None else shape[j]
        self.last_step = self.last_type = -1
        self.max_tokens = self.trim_at = 2**62
        self.is_busy = True

    def attach(self, data, types, index, head, files=(-1, -1, -1)):
        cdef Views lanes = Views()
        if memoryview(head).nbytes < HEAD_BYTES:
            raise IndexError("no head page")
        self.data = <int64_t *>lanes.write(data)
        self.types = <uint8_t *>lanes.write(types)
        self.index = <int64_t *>lanes.write(index)
        self.head = <int64_t *>lanes.write(head)
        self.token_room = min(lanes.size(0) // 8, lanes.size(1))
        self.row_room = lanes.size(2) // 24
        self.files[0], self.files[1], self.files[2] = files
        self.lanes = lanes
        self.token_ready = self.row_ready = 0

    def detach(self):
        self.is_busy = True
        self.token_room = self.row_room = 0
        self.lanes = None

    def set_kind(self, int type_, int kind):
        if not 0 <= type_ < self.n_fields:
            raise IndexError("no such field")
        self.slots[type_].kind = kind
        self.slots[type_].n_dims = 1 if kind == SEQUENCE else 0
        self.slots[type_].shape[0] = -1

    def append(self, steps, names, values=None):
        """Append field-writes; see Appender.append."""
        return self.take_mapping(steps, names) if values is None else self.take(steps, names, values)

    cdef object take(self, object steps, object names, object values):
        cdef int outcome
        if not self.is_busy:
            outcome = self.attempt_lists(<PyObject *>steps, <PyObject *>names, <PyObject *>values)
            if outcome == HAS_TENSORS:
                values = arrays_of(values, self.tensor_type)
                # Looking at tensors may have let another thread in.
                outcome = REFUSED if self.is_busy else self.attempt_lists(<PyObject *>steps, <PyObject *>names, <PyObject *>values)
            if outcome == DONE:
                return None
        return self.slow(steps, names, values)

    cdef object take_mapping(self, object step, object values):
        """The same for one step whose fields are a dict, in whichever order."""
        cdef int outcome = REFUSED
        if not self.is_busy and type(values) is dict:
            outcome = self.attempt_dict(<PyObject *>step, <PyObject *>values)
        if outcome != DONE:
            self.slow(step, values, None)

    cdef int attempt_dict(self, PyObject *step, PyObject *values) except -1:
        cdef PyObject *names[MAX_FIELDS]
        cdef PyObject *sorted_values[MAX_FIELDS]
        cdef PyObject *name
        cdef PyObject *value
        cdef Py_ssize_t place = 0
        cdef int64_t n = 0, i, last = -1, type_
        if poolish_is_sequence(step) or PyDict_Size(values) > self.n_fields:
            return REFUSED
        while PyDict_Next(values, &place, &name, &value):
            type_ = self.type_of(name, last + 1)
            if type_ < 0:
                return REFUSED
            last = type_
            i = n
            while i > 0 and names[i - 1] != self.names[type_] and self.is_after(names[i - 1], type_):
                names[i], sorted_values[i] = names[i - 1], sorted_values[i - 1]
                i -= 1
            names[i], sorted_values[i] = self.names[type_], value
            n += 1
        return self.attempt(step, names, sorted_values, n)

    cdef inline bint is_after(self, PyObject *name, int64_t type_) noexcept:
        """Whether a field is declared behind another."""
        return self.type_of(name, 0) > type_

    cdef int attempt_lists(self, PyObject *steps, PyObject *names, PyObject *values) except -1:
        if not (poolish_is_sequence(names) and poolish_is_sequence(values)):
            return REFUSED
        cdef int64_t n = Py_SIZE(names)
        if Py_SIZE(values) != n or (poolish_is_sequence(steps) and Py_SIZE(steps) != n):
            return REFUSED
        return self.attempt(steps, poolish_items(names), poolish_items(values), n)

    cdef int attempt(self, PyObject *steps, PyObject **name, PyObject **value, int64_t n) except -1:
        """Append if everything is as usual, and say no otherwise: the slow way then finds out what is wrong.

        Nothing in here runs Python code, so no other thread comes in between.
        """
        cdef int64_t i, position = self.n_tokens, row = self.n_rows, length
        cdef bint is_one_step = not poolish_is_sequence(steps)
        if n == 0:
            return REFUSED
        if row + n >= self.row_room:
            return REFUSED
        if poolish_unlikely(position >= self.token_ready or row + n >= self.row_ready):
            self.get_ready(position, row + n)
        cdef PyObject **step_items = &steps if is_one_step else poolish_items(steps)
        cdef PyObject *seen = NULL
        cdef PyObject *item
        cdef int64_t step = -1, last_step = self.last_step, type_ = self.last_type, ordinal = self.n_steps - 1
        cdef int64_t step_start = self.step_start, last_type
        cdef int64_t *entry
        cdef int outcome, kind
        cdef bint is_decided = True
        for i in range(n):
            item = step_items[0 if is_one_step else i]
            if item != seen:
                if poolish_step(item, &step) != 0:
                    return REFUSED
                seen = item
            last_type = type_ if step == last_step else -1
            if step < last_step:
                return REFUSED
            type_ = self.type_of(name[i], last_type + 1)
            if type_ <= last_type:
                return REFUSED
            if step != last_step:
                if poolish_unlikely(position - step_start > self.max_tokens):
                    return REFUSED
                ordinal += 1
                last_step = step
                step_start = position
            kind = SCALAR
            length = 1
            if position >= self.token_room:
                return REFUSED
            outcome = poolish_number(value[i], &self.slots[type_].encoding, self.data + position)
            if outcome == 2:
                kind = SEQUENCE
                outcome = self.read(value[i], type_, position, &length, &kind)
                if outcome != DONE:
                    return outcome
            elif outcome == 1:
                return REFUSED
            if kind != self.slots[type_].kind:
                if self.slots[type_].kind != UNDECIDED:
                    return REFUSED
                is_decided = False
            fill_type(self.types + position, length, <uint8_t>type_)
            entry = self.index + 3 * (row + i)
            entry[0] = position
            entry[1] = type_ | ordinal << 8
            entry[2] = step
            position += length
        if poolish_unlikely(position - step_start > self.max_tokens):
            return REFUSED
        if poolish_unlikely(not is_decided):
            return REFUSED  # the slow way decides the kinds; it happens once for each field
        self.step_start = step_start
        self.publish(row + n, position, ordinal + 1, last_step, type_)
        if poolish_unlikely(self.first_token >= self.trim_at):
            self.trim()
        return DONE

    cdef inline int64_t type_of(self, PyObject *name, int64_t expected) noexcept:
        """The type of a name, or -1. Names are usually the field's own string, and in order."""
        cdef PyObject *found
        while expected < self.n_fields:
            if name == self.names[expected]:
                return expected
            expected += 1
        if not poolish_is_text(name):
            return -1
        found = PyDict_GetItem(<PyObject *>self.ids, name)
        return -1 if found == NULL else <int64_t><object>found

    cdef int read(self, PyObject *value, int64_t type_, int64_t position, int64_t *length, int *kind) except -1:
        """Numbers of an array or a list into the data lane; how many, and whether it was one number after all."""
        cdef Slot *slot = &self.slots[type_]
        cdef cnp.ndarray array
        cdef PyObject **items
        cdef int64_t n, i
        cdef int source
        if poolish_is_array(value):
            array = <cnp.ndarray><object>value
            source = poolish_array_kind(array)
            n = cnp.PyArray_SIZE(array)
            if source == P_NONE or n > self.token_room - position or not has_shape(slot, array):
                return REFUSED
            if cnp.PyArray_NDIM(array) == 0:
                kind[0] = SCALAR
            if cnp.PyArray_IS_C_CONTIGUOUS(array):
                outcome = poolish_copy(source, <const char *>cnp.PyArray_DATA(array), cnp.PyArray_ITEMSIZE(array), 1, n,
                                       &slot.encoding, self.data + position, 0)
            elif cnp.PyArray_NDIM(array) == 1:
                outcome = poolish_copy(source, <const char *>cnp.PyArray_DATA(array), cnp.PyArray_STRIDES(array)[0], 1,
                                       n, &slot.encoding, self.data + position, 0)
            else:
                return REFUSED
            length[0] = n
            return REFUSED if outcome else DONE
        if poolish_is_sequence(value):
            n = Py_SIZE(value)
            if n > self.token_room - position or slot.n_dims > 1 or (slot.n_dims == 1 and 0 <= slot.shape[0] != n):
                return REFUSED
            items = poolish_items(value)
            for i in range(n):
                if poolish_number(items[i], &slot.encoding, self.data + position + i) != 0:
                    return REFUSED
            length[0] = n
            return DONE
        return HAS_TENSORS if self.is_tensor(value) else REFUSED

    cdef bint is_tensor(self, PyObject *value):
        if self.tensor_type is None:
            torch = sys.modules.get("torch")
            if torch is None or not hasattr(torch, "Tensor"):
                return False
            self.tensor_type = torch.Tensor
        return poolish_is_type(value, <PyObject *>self.tensor_type)

    cdef void get_ready(self, int64_t n_tokens, int64_t n_rows) noexcept nogil:
        """Bring pages into memory for these many tokens and rows, and some more, before they are stored through the maps.

        The first store into a page through a map is a fault that costs 2.8 us (ext4), and has the system read around it
        in small pages. Written zeros bring large ones along for 0.4 us each 4 KiB. Only free space is written that the
        disk is known to have, so nothing can be lost; where the system refuses, stores fault as they would without this.
        """
        self.bring(0, self.n_tokens * 8, (n_tokens + TOKENS_SPARE) * 8, self.token_room * 8)
        self.bring(1, self.n_tokens, n_tokens + TOKENS_SPARE, self.token_room)
        self.bring(2, self.n_rows * 24 + 8, (n_rows + ROWS_SPARE) * 24, self.row_room * 24)
        self.token_ready = min(self.bytes_ready[0] // 8, self.bytes_ready[1]) - TOKENS_SPARE
        self.row_ready = self.bytes_ready[2] // 24 - ROWS_SPARE

    cdef void bring(self, int lane, int64_t used, int64_t needed, int64_t room) noexcept nogil:
        cdef int64_t begin = max(self.bytes_ready[lane], (used + PAGE - 1) // PAGE * PAGE)
        cdef int64_t piece = AHEAD if needed > 2 * AHEAD else AHEAD // 4  # a short stream stays cheap to commit
        cdef int64_t end = min(needed // piece * piece + piece, room)  # whole pieces: the system makes large pages of them
        if needed >= self.bytes_ready[lane] and begin < end:
            if self.files[lane] >= 0:
                poolish_write_zeros(self.files[lane], begin, end)
            self.bytes_ready[lane] = end

    cdef void publish(self, int64_t n_rows, int64_t n_tokens, int64_t n_steps, int64_t step, int64_t type_) noexcept nogil:
        """Make everything before visible in one store. The row behind the last one holds the length in tokens."""
        self.index[3 * n_rows] = n_tokens
        self.n_rows, self.n_tokens, self.n_steps = n_rows, n_tokens, n_steps
        self.last_step, self.last_type = step, type_
        if not self.is_held:
            self.release()

    cdef inline void release(self) noexcept nogil:
        poolish_release(self.head + PUBLISHED, poolish_sealed(self.n_rows, PUBLISHED))
        if poolish_unlikely(self.n_tokens - self.first_token > self.max_tokens):
            self.drop_steps()

    def let_out(self):
        """Publish everything that was written, in one store."""
        if self.lanes is None:
            raise IndexError("no lanes")
        self.release()

    cdef void drop_steps(self) noexcept nogil:
        """Let whole steps go at the front until the rest fits."""
        cdef int64_t row = self.first_row, ordinal
        while self.n_tokens - self.index[3 * row] > self.max_tokens:
            ordinal = self.index[3 * row + 1] >> 8
            while row < self.n_rows and self.index[3 * row + 1] >> 8 == ordinal:
                row += 1
        self.first_row, self.first_token = row, self.index[3 * row]
        poolish_release(self.head + FIRST, poolish_sealed(row, FIRST))

    def record(self, steps, types, lengths, tokens):
        """Write field-writes that were checked and encoded, and publish them."""
        cdef Views views = Views()
        cdef const int64_t *step = <const int64_t *>views.read(steps)
        cdef const int64_t *type_ = <const int64_t *>views.read(types)
        cdef const int64_t *length = <const int64_t *>views.read(lengths)
        cdef const int64_t *token = <const int64_t *>views.read(tokens)
        cdef int64_t n = views.size(0) // 8, n_new = views.size(3) // 8, i
        cdef int64_t position = self.n_tokens, ordinal = self.n_steps - 1, last_step = self.last_step
        check_room(self, n, n_new)
        if views.size(1) != n * 8 or views.size(2) != n * 8 or total(length, n) != n_new or outside(type_, n, self.n_fields):
            raise IndexError("field-writes that do not add up")
        with nogil:
            self.get_ready(position + n_new, self.n_rows + n)
            memcpy(self.data + position, token, n_new * 8)
            for i in range(n):
                if step[i] != last_step:
                    ordinal += 1
                    last_step = step[i]
                    self.step_start = position
                fill_type(self.types + position, length[i], <uint8_t>type_[i])
                self.index[3 * (self.n_rows + i)] = position
                self.index[3 * (self.n_rows + i) + 1] = type_[i] | ordinal << 8
                self.index[3 * (self.n_rows + i) + 2] = step[i]
                position += length[i]
            if n:
                self.publish(self.n_rows + n, position, ordinal + 1, last_step, type_[n - 1])

    def record_columns(self, steps, columns):
        """Write whole columns, a step a row; the number of a column with a value that does not fit, or -1.

        A column is (type, flat array of numbers, numbers a row or -1, offsets or None, present or None).
        """
        cdef Columns plan = Columns(columns)
        cdef Views views = Views()
        cdef const int64_t *step = <const int64_t *>views.read(steps)
        cdef int64_t n = views.size(0) // 8, bad
        plan.check(n, self.n_fields)
        check_room(self, n * plan.n_columns, plan.n_tokens)
        if n == 0 or plan.n_columns == 0:
            return -1
        with nogil:
            bad = self.write_even(plan, step, n) if plan.is_even else self.write_uneven(plan, step, n)
        if bad == NO_MEMORY:
            raise MemoryError("no memory for a megabyte of columns")
        if bad == FAILED:
            raise OSError(errno, strerror(errno).decode())
        return bad

    cdef int64_t write_even(self, Columns plan, const int64_t *step, int64_t n) noexcept nogil:
        """Rows that are all alike, straight into the lanes, or by way of a stage where the pages are new."""
        cdef int64_t ordinal = self.n_steps - (1 if step[0] == self.last_step else 0), base = self.n_tokens, bad
        cdef int64_t row_bytes = 9 * plan.row_tokens + 24 * plan.n_columns
        if self.files[0] >= 0 and n * row_bytes >= STAGED_BYTES and row_bytes <= STAGE:
            bad = self.write_staged(plan, step, n, ordinal, STAGE // row_bytes)
        else:
            self.get_ready(base + n * plan.row_tokens, self.n_rows + n * plan.n_columns)
            bad = self.write_rows(plan, step, 0, n, ordinal, self.data + base, self.types + base, self.index + 3 * self.n_rows)
        if bad != -1:
            return bad
        self.step_start = base + (n - 1) * plan.row_tokens if n > 1 or step[0] != self.last_step else self.step_start
        self.publish(self.n_rows + n * plan.n_columns, base + n * plan.row_tokens, ordinal + n, step[n - 1],
                     plan.types[plan.n_columns - 1])
        return -1

    cdef int64_t write_rows(self, Columns plan, const int64_t *step, int64_t begin, int64_t n, int64_t ordinal, int64_t *data,
                            uint8_t *types, int64_t *index) noexcept nogil:
        """Rows from ``begin`` on: a column at a time, in blocks that stay in the first cache."""
        cdef int64_t block = max(1, 3000 // (plan.row_tokens + 3 * plan.n_columns)), first, many, c, i, start, row
        for first from 0 <= first < n by block:
            many = min(block, n - first)
            row = begin + first
            for c in range(plan.n_columns):
                if poolish_copy(plan.sources[c], plan.values[c] + row * plan.widths[c] * plan.sizes[c], plan.sizes[c], many,
                                plan.widths[c], &self.slots[plan.types[c]].encoding,
                                data + first * plan.row_tokens + plan.offsets[c], plan.row_tokens):
                    return c
            for i in range(many):
                start = self.n_tokens + (row + i) * plan.row_tokens
                for c in range(plan.n_columns):
                    index[0] = start + plan.offsets[c]
                    index[1] = plan.types[c] | (ordinal + row + i) << 8
                    index[2] = step[row + i]
                    index += 3
            repeat_types(plan, types + first * plan.row_tokens, many)
        return -1

    cdef int64_t write_staged(self, Columns plan, const int64_t *step, int64_t n, int64_t ordinal, int64_t part) noexcept nogil:
        """Rows through a buffer that stays in the second cache, and from there by system calls into the files.

        The first touch of a page through a map is a fault; a write that brings the page along costs half of that
        (measured 2.3 GB/s against 3.5). The map shows what was written, because both are the same pages.
        """
        cdef int64_t tokens = part * plan.row_tokens, rows = part * plan.n_columns, first, many, bad = -1
        cdef int64_t *stage = <int64_t *>malloc(tokens * 8 + rows * 24 + tokens)
        cdef int64_t *index = stage + tokens
        cdef uint8_t *types = <uint8_t *>(index + 3 * rows)
        if stage == NULL:
            return NO_MEMORY
        for first from 0 <= first < n by part:
            many = min(part, n - first)
            bad = self.write_rows(plan, step, first, many, ordinal, stage, types, index)
            if bad == -1:
                tokens, rows = self.n_tokens + first * plan.row_tokens, self.n_rows + first * plan.n_columns
                bad = write_file(self.files[0], stage, many * plan.row_tokens * 8, tokens * 8)
            if bad == -1:
                bad = write_file(self.files[1], types, many * plan.row_tokens, tokens)
            if bad == -1:
                bad = write_file(self.files[2], index, many * plan.n_columns * 24, rows * 24)
            if bad != -1:
                break
        free(stage)
        return bad

    cdef int64_t write_uneven(self, Columns plan, const int64_t *step, int64_t n) noexcept nogil:
        """Rows of varying length, or with fields missing: a row at a time."""
        cdef int64_t i, c, from_, length, row = self.n_rows, position = self.n_tokens
        cdef int64_t ordinal = self.n_steps - 1, last_step = self.last_step, last_type = self.last_type, begin = self.step_start
        self.get_ready(position + plan.n_tokens, row + n * plan.n_columns)
        for i in range(n):
            for c in range(plan.n_columns):
                if plan.present[c] != NULL and not plan.present[c][i]:
                    continue
                if plan.ends[c] != NULL:
                    from_ = plan.ends[c][i]
                    length = plan.ends[c][i + 1] - from_
                else:
                    length = plan.widths[c]
                    from_ = i * length
                if step[i] != last_step:
                    ordinal += 1
                    last_step = step[i]
                    begin = position
                if poolish_copy(plan.sources[c], plan.values[c] + from_ * plan.sizes[c], plan.sizes[c], 1, length,
                                &self.slots[plan.types[c]].encoding, self.data + position, 0):
                    return c
                fill_type(self.types + position, length, <uint8_t>plan.types[c])
                self.index[3 * row] = position
                self.index[3 * row + 1] = plan.types[c] | ordinal << 8
                self.index[3 * row + 2] = step[i]
                position += length
                row += 1
                last_type = plan.types[c]
        if row != self.n_rows:
            self.step_start = begin
            self.publish(row, position, ordinal + 1, last_step, last_type)
        return -1


cdef class Appender:
    """What a stream that is written inherits: an append without a Python frame around it.

    The call holds on to the stream itself, so ``StreamStore(...).append(...)`` in one expression has an open one.
    """
    cdef public Recorder _recorder

    def append(self, steps, names, values=None):
        """Append field-writes: for each a step, a field's name and its value; all of them or, on an error, none.

        One step for all of them may be given as a number, and its fields as one mapping. Fields may be left out, and a
        later append may go on with the last step, behind its last field. A value that its field cannot hold exactly is
        refused.
        """
        cdef Recorder recorder = self._recorder
        if recorder is None:
            return self._append_unopened(steps, names, values)
        if values is None:
            return recorder.take_mapping(steps, names)
        return recorder.take(steps, names, values)


cdef class Columns:
    """What ``record_columns`` writes, as C sees it."""
    cdef list views
    cdef int64_t n_columns, n_tokens, row_tokens
    cdef bint is_even
    cdef int sources[MAX_FIELDS]
    cdef const char *values[MAX_FIELDS]
    cdef const int64_t *ends[MAX_FIELDS]
    cdef const uint8_t *present[MAX_FIELDS]
    cdef int64_t types[MAX_FIELDS]
    cdef int64_t widths[MAX_FIELDS]
    cdef int64_t sizes[MAX_FIELDS]
    cdef int64_t offsets[MAX_FIELDS]
    cdef int64_t counts[MAX_FIELDS]
    cdef int64_t n_ends[MAX_FIELDS]
    cdef int64_t n_present[MAX_FIELDS]

    def __init__(self, columns):
        cdef Views views
        cdef int c
        self.views = []
        self.n_columns = len(columns)
        self.is_even = True
        if self.n_columns > MAX_FIELDS:
            raise IndexError("too many columns")
        for c, (type_, values, width, ends, present) in enumerate(columns):
            views = Views()
            self.views.append(views)
            self.types[c], self.widths[c] = type_, width
            self.sources[c] = poolish_array_kind(values)
            if self.sources[c] == P_NONE:
                raise TypeError("a column of numbers in this machine's byte order is needed")
            self.sizes[c] = values.itemsize
            self.values[c] = <const char *>views.read(values)
            self.counts[c] = views.size(0) // self.sizes[c]
            self.offsets[c] = self.row_tokens
            self.row_tokens += max(0, <int64_t>width)
            self.n_tokens += self.counts[c]
            self.ends[c] = NULL
            self.present[c] = NULL
            if ends is not None:
                self.ends[c] = <const int64_t *>views.read(ends)
                self.n_ends[c] = views.size(views.n_held - 1) // 8
                self.is_even = False
            if present is not None:
                self.present[c] = <const uint8_t *>views.read(present)
                self.n_present[c] = views.size(views.n_held - 1)
                self.is_even = False

    cdef int check(self, int64_t n, int64_t n_fields) except -1:
        """Everything that the loops would otherwise read or write outside of its array."""
        cdef int64_t c, i
        cdef bint is_whole = True
        for c in range(self.n_columns):
            if not 0 <= self.types[c] < n_fields:
                raise IndexError("unknown type")
            if self.present[c] != NULL and self.n_present[c] != n:
                is_whole = False
            if self.ends[c] == NULL:
                is_whole = is_whole and is_product(self.counts[c], n, self.widths[c])
                continue
            is_whole = is_whole and self.n_ends[c] == n + 1
            if is_whole:
                is_whole = self.ends[c][0] == 0 and self.ends[c][n] == self.counts[c]
                for i in range(n):
                    is_whole = is_whole and self.ends[c][i] <= self.ends[c][i + 1]
        if not is_whole:
            raise IndexError("columns that do not add up")
        return 0


cdef void repeat_types(Columns plan, uint8_t *target, int64_t many) noexcept nogil:
    """The types of one row, then copies of what is there: each time twice as many."""
    cdef int64_t c, done = plan.row_tokens, n = many * plan.row_tokens
    for c in range(plan.n_columns):
        memset(target + plan.offsets[c], <int>plan.types[c], plan.widths[c])
    while 0 < done < n:
        memcpy(target + done, target, min(done, n - done))
        done *= 2


cdef int64_t write_file(int file, const void *source, int64_t n_bytes, int64_t offset) noexcept nogil:
    """All of it, however often the system stops; -1, or that it failed."""
    cdef int64_t done = 0, written
    while done < n_bytes:
        written = pwrite(file, <const char *>source + done, n_bytes - done, offset + done)
        if written < 0 and errno != EINTR:
            return FAILED
        done += max(<int64_t>0, written)
    return -1


cdef inline bint is_product(int64_t product, int64_t n, int64_t width) noexcept:
    """Whether product == n * width, for numbers that may be too large to be multiplied."""
    if n == 0 or width <= 0:
        return product == 0 and width >= 0
    return product % width == 0 and product // width == n


cdef inline void fill_type(uint8_t *target, int64_t n, uint8_t type_) noexcept nogil:
    cdef int64_t i
    if n < 16:  # a call costs more than that
        for i in range(n):
            target[i] = type_
    else:
        memset(target, type_, n)


cdef int check_room(Recorder recorder, int64_t n_rows, int64_t n_tokens) except -1:
    if recorder.n_rows + n_rows >= recorder.row_room or recorder.n_tokens + n_tokens > recorder.token_room:
        raise IndexError("no room in the lanes")
    return 0


cdef int64_t total(const int64_t *lengths, int64_t n) noexcept:
    """The sum of lengths, or -1 if one of them is none."""
    cdef int64_t i, sum_ = 0
    for i in range(n):
        if lengths[i] < 0 or lengths[i] > 2**48:
            return -1
        sum_ += lengths[i]
    return sum_


cdef bint outside(const int64_t *numbers, int64_t n, int64_t limit) noexcept:
    cdef int64_t i
    for i in range(n):
        if numbers[i] < 0 or numbers[i] >= limit:
            return True
    return False


cdef bint has_shape(Slot *slot, cnp.ndarray array) noexcept:
    """Whether an array may be written into a field as it is."""
    cdef int n_dims = cnp.PyArray_NDIM(array), i
    if slot.kind == UNDECIDED:
        return n_dims <= 1
    if n_dims != slot.n_dims or n_dims > MAX_DIMS:
        return False
    for i in range(n_dims):
        if slot.shape[i] >= 0 and slot.shape[i] != cnp.PyArray_DIMS(array)[i]:
            return False
    return True


cdef dict _NUMPY_OF_TORCH = {}


cdef object arrays_of(values, tensor_type):
    """The values with torch tensors as lists, or as arrays over the same memory, where that is plain.

    ``tensor.numpy()`` takes 740 ns; asking for the address and the shape two thirds of it.
    """
    if not _NUMPY_OF_TORCH:
        torch = sys.modules["torch"]
        names = {"float32": cnp.NPY_FLOAT32, "float64": cnp.NPY_FLOAT64, "int64": cnp.NPY_INT64, "int32": cnp.NPY_INT32,
                 "int16": cnp.NPY_INT16, "int8": cnp.NPY_INT8, "uint8": cnp.NPY_UINT8, "bool": cnp.NPY_BOOL}
        _NUMPY_OF_TORCH.update({getattr(torch, name): number for name, number in names.items()})
    return [as_array(value) if type(value) is tensor_type else value for value in values]


cdef object as_array(tensor):
    cdef cnp.npy_intp shape[MAX_DIMS]
    cdef int i, n_dims = 0
    cdef uint64_t address
    try:
        if not tensor.is_cpu:
            return tensor
        n_dims = tensor.dim()
        if n_dims <= 1 and tensor.numel() <= 16:
            return tensor.tolist()  # of few numbers, each as it is: 330 ns, and no more questions
        number = _NUMPY_OF_TORCH.get(tensor.dtype)
        if number is None or not tensor.is_contiguous() or tensor.is_neg():
            return tensor
        if n_dims > MAX_DIMS:
            return tensor
        if n_dims == 1:
            shape[0] = tensor.numel()  # a third of the price of the shape
        else:
            for i in range(n_dims):
                shape[i] = tensor.size(i)
        address = tensor.data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse, nested or without memory: the slow way says so
        return tensor
    if address == 0:
        return tensor
    array = cnp.PyArray_SimpleNewFromData(n_dims, shape, number, <void *>address)
    cnp.set_array_base(array, tensor)
    return array


# --- the head page ---------------------------------------------------------------------------------------------------


def load_word(head, int64_t word):
    cdef Views views = Views()
    cdef const int64_t *words = <const int64_t *>views.read(head)
    if not 0 <= word < views.size(0) // 8:
        raise IndexError("no such word")
    cdef uint64_t sealed = poolish_acquire(words + word)
    cdef uint64_t number = sealed & 0xFFFFFFFFFFFFULL
    return <int64_t>number if poolish_sealed(number, <uint64_t>word) == sealed else -1


def store_word(head, int64_t word, int64_t number):
    cdef Views views = Views()
    cdef int64_t *words = <int64_t *>views.write(head)
    if not 0 <= word < views.size(0) // 8:
        raise IndexError("no such word")
    poolish_release(words + word, poolish_sealed(<uint64_t>number, <uint64_t>word))


# --- reading ---------------------------------------------------------------------------------------------------------

cdef int64_t ROWS_AHEAD = 4  # windows asked for before they are copied; measured 7.5 GB/s against 5 without
cdef int64_t TOKENS_AHEAD = 20  # single tokens out of 800 MB: 1.4 x np.take; without, 1.0; with 80, of two lanes, slower


cdef inline void ask_for(const int64_t *data, const uint8_t *types, int64_t start, int64_t width) noexcept nogil:
    cdef int64_t i, n = min(width, <int64_t>128)
    for i in range(0, n, 8):
        poolish_prefetch(data + start + i)
    if types != NULL:
        for i in range(0, n, 64):
            poolish_prefetch(types + start + i)


cdef inline void copy_window(const int64_t *data, const uint8_t *types, int64_t start, int64_t width, int64_t *values,
                             int64_t *out_types) noexcept nogil:
    cdef int64_t i
    memcpy(values, data + start, width * 8)
    if types != NULL:
        for i in range(width):
            out_types[i] = types[start + i]


def windows(data, types, int64_t first, int64_t end, starts, int64_t width, values, out_types):
    cdef Views views = Views()
    cdef const int64_t *source = <const int64_t *>views.read(data)
    cdef const int64_t *start = <const int64_t *>views.read(starts)
    cdef int64_t *target = <int64_t *>views.write(values)
    cdef const uint8_t *type_source = NULL
    cdef int64_t *type_target = NULL
    cdef int64_t n = views.size(1) // 8, i, bad = -1
    if width < 0 or first < 0 or end > views.size(0) // 8 or views.size(2) < n * width * 8:
        raise IndexError("out is too small")
    if types is not None:
        type_source = <const uint8_t *>views.read(types)
        type_target = <int64_t *>views.write(out_types)
        if end > views.size(3) or views.size(4) < n * width * 8:
            raise IndexError("out is too small")
    with nogil:
        for i in range(n):
            if start[i] < first or start[i] > end - width:
                bad = i
                break
        if bad < 0 and width == 1:
            copy_tokens(source, type_source, start, n, target, type_target)
        elif bad < 0:
            for i in range(min(ROWS_AHEAD, n)):
                ask_for(source, type_source, start[i], width)
            for i in range(n):
                if i + ROWS_AHEAD < n:
                    ask_for(source, type_source, start[i + ROWS_AHEAD], width)
                copy_window(source, type_source, start[i], width, target + i * width, type_target + i * width)
    return bad


def take(data, types, int64_t first, int64_t end, positions, int64_t width, values, out_types):
    cdef Views views = Views()
    cdef const int64_t *source = <const int64_t *>views.read(data)
    cdef const int64_t *place = <const int64_t *>views.read(positions)
    cdef int64_t *target = <int64_t *>views.write(values)
    cdef const uint8_t *type_source = NULL
    cdef int64_t *type_target = NULL
    cdef int64_t n = views.size(1) // 8, bad = -1
    if width < 1 or first < 0 or n % width or end > views.size(0) // 8 or views.size(2) < n * 8:
        raise IndexError("out is too small")
    if types is not None:
        type_source = <const uint8_t *>views.read(types)
        type_target = <int64_t *>views.write(out_types)
        if end > views.size(3) or views.size(4) < n * 8:
            raise IndexError("out is too small")
    with nogil:
        bad = take_rows(source, type_source, first, end, place, n, width, target, type_target)
    return bad


cdef int64_t take_rows(const int64_t *source, const uint8_t *types, int64_t first, int64_t end, const int64_t *place,
                       int64_t n, int64_t width, int64_t *values, int64_t *out_types) noexcept nogil:
    cdef int64_t row, start, bad, next_
    for row from 0 <= row < n by width:
        start = place[row]
        if start < first - end or start >= end or (start >= 0 and start < first):
            return row
        if width > 1 and is_run(place + row, width) and (start >= 0 or start + width <= 0):
            start += end if start < 0 else 0
            if width > end - start:
                return row + end - start
            next_ = row + ROWS_AHEAD * width
            if next_ < n and first <= place[next_] <= end - width:
                ask_for(source, types, place[next_], width)
            copy_window(source, types, start, width, values + row, out_types + row)
        else:
            bad = take_each(source, types, first, end, place + row, width, values + row, out_types + row)
            if bad >= 0:
                return row + bad
    return -1


cdef inline bint is_run(const int64_t *place, int64_t n) noexcept nogil:
    cdef int64_t i, start = place[0], difference = 0
    if place[n - 1] != start + n - 1:
        return False
    for i in range(n):
        difference |= place[i] ^ (start + i)
    return difference == 0


cdef int64_t take_each(const int64_t *source, const uint8_t *types, int64_t first, int64_t end, const int64_t *place,
                       int64_t n, int64_t *values, int64_t *out_types) noexcept nogil:
    """Token by token. Places that all count from the start are checked as a whole, which costs next to nothing; others
    a block at a time, just before they are used.

    Fetching ahead goes on over the edges of blocks: to ask for a place that turns out to be none does nothing.
    """
    cdef int64_t begin, stop, i, p, wrong
    if are_inside(place, n, first, end):
        copy_tokens(source, types, place, n, values, out_types)
        return -1
    for i in range(min(TOKENS_AHEAD, n)):
        ask_for_one(source, types, resolved(place[i], end))
    for begin in range(0, n, 256):
        stop = min(begin + 256, n)
        wrong = 0
        for i in range(begin, stop):
            p = resolved(place[i], end)
            wrong |= (p < first) | (p >= end)
        if wrong:
            for i in range(begin, stop):
                p = resolved(place[i], end)
                if p < first or p >= end:
                    return i
        for i in range(begin, stop):
            if i + TOKENS_AHEAD < n:
                ask_for_one(source, types, resolved(place[i + TOKENS_AHEAD], end))
            p = resolved(place[i], end)
            values[i] = source[p]
            if types != NULL:
                out_types[i] = types[p]
    return -1


cdef bint are_inside(const int64_t *place, int64_t n, int64_t first, int64_t end) noexcept nogil:
    """Whether every place is one of [first, end): no sign in any difference, which compilers make vectors of."""
    cdef uint64_t signs = 0
    cdef int64_t i
    for i in range(n):
        signs |= (<uint64_t>place[i] - <uint64_t>first) | (<uint64_t>(end - 1) - <uint64_t>place[i])
    return first < end and signs >> 63 == 0


cdef void copy_tokens(const int64_t *source, const uint8_t *types, const int64_t *place, int64_t n,
                      int64_t *values, int64_t *out_types) noexcept nogil:
    """Windows of one token, at places already checked: the bare fetches, because each costs a miss of the cache."""
    cdef int64_t i, ahead = max(n - TOKENS_AHEAD, 0)
    for i in range(min(TOKENS_AHEAD, n)):
        ask_for_one(source, types, place[i])
    if types == NULL:
        for i in range(ahead):
            poolish_prefetch(source + place[i + TOKENS_AHEAD])
            values[i] = source[place[i]]
        for i in range(ahead, n):
            values[i] = source[place[i]]
    else:
        for i in range(ahead):
            ask_for_one(source, types, place[i + TOKENS_AHEAD])
            values[i] = source[place[i]]
            out_types[i] = types[place[i]]
        for i in range(ahead, n):
            values[i] = source[place[i]]
            out_types[i] = types[place[i]]


cdef inline int64_t resolved(int64_t place, int64_t end) noexcept nogil:
    """A position counted from the end where it is negative."""
    return place + (end if place < 0 else 0)


cdef inline void ask_for_one(const int64_t *data, const uint8_t *types, int64_t place) noexcept nogil:
    poolish_prefetch(<const void *>(<size_t>data + <size_t>place * 8))
    if types != NULL:
        poolish_prefetch(<const void *>(<size_t>types + <size_t>place))


# --- searching -------------------------------------------------------------------------------------------------------


cdef inline int64_t guess(const int64_t *column, int64_t n_columns, int64_t low, int64_t high, int64_t key) noexcept nogil:
    """Where a key would be if the column grew evenly, which most do."""
    cdef double first = <double>column[low * n_columns], last = <double>column[(high - 1) * n_columns], place
    if not last > first:
        return low
    return within(low, high - 1, <double>low + (<double>key - first) * (high - 1 - low) / (last - first))


cdef inline int64_t within(int64_t low, int64_t high, double place) noexcept nogil:
    return low if not place > low else high if place > high else <int64_t>place


cdef int64_t first_not_below(const int64_t *column, int64_t n_columns, int64_t low, int64_t high, int64_t key,
                             int64_t at) noexcept nogil:
    """The first row of [low, high) whose value is not below the key, or high; searched outwards from a guess.

    Whatever the column holds, it ends, and inside the range.
    """
    cdef int64_t step = 1, middle
    if column[at * n_columns] < key:
        low = at + 1
        while low + step <= high and column[(low + step - 1) * n_columns] < key:
            low += step
            step *= 2
        high = min(high, low + step - 1)
    else:
        high = at
        while high - step >= low and column[(high - step) * n_columns] >= key:
            high -= step
            step *= 2
        low = max(low, high - step + 1)
    while low < high:
        middle = (low + high) >> 1
        if column[middle * n_columns] < key:
            low = middle + 1
        else:
            high = middle
    return low


cdef int check_table(int64_t size, int64_t n_columns, int64_t column, int64_t low, int64_t high) except -1:
    if not 0 <= column < n_columns or low < 0 or high < low or high > size // n_columns:
        raise IndexError("outside of the table")
    return 0


def search_one(table, int64_t n_columns, int64_t column, int64_t low, int64_t high, int64_t key):
    cdef Views views = Views()
    cdef const int64_t *values = <const int64_t *>views.read(table) + column
    check_table(views.size(0) // 8, n_columns, column, low, high)
    if low == high:
        return low
    return first_not_below(values, n_columns, low, high, key, guess(values, n_columns, low, high, key))


def select_starts(totals, ends, int64_t base_token, int64_t base_ordinal, int64_t stride, index, sizes, int64_t first_row,
                  int64_t n_rows, numbers, out):
    cdef Views views = Views()
    cdef const int64_t *total = <const int64_t *>views.read(totals)
    cdef const int64_t *end = <const int64_t *>views.read(ends)
    cdef const int64_t *number = <const int64_t *>views.read(numbers)
    cdef int64_t *found = <int64_t *>views.write(out)
    cdef const int64_t *rows = NULL
    cdef const int64_t *size = NULL
    cdef int64_t n_episodes = views.size(0) // 8, n = views.size(2) // 8, i, episode, inside
    cdef bint at_steps = index is not None
    if views.size(1) < n_episodes * 16 or views.size(3) < n * 8:
        raise IndexError("out is too small")
    if at_steps:
        rows = <const int64_t *>views.read(index)
        check_table(views.size(4) // 8, 3, 1, first_row, n_rows + 1)
        if first_row >= n_rows:
            raise IndexError("no rows")
        size = <const int64_t *>views.read(sizes)
        if views.size(5) < n_episodes * 8:
            raise IndexError("out is too small")
    cdef double scale = 0
    with nogil:
        if n_episodes and total[n_episodes - 1] > 0:
            scale = <double>n_episodes / <double>total[n_episodes - 1]
        for i in range(n):
            episode = 0
            if n_episodes:  # as if all were equally long, which is exact where they are
                episode = within(0, n_episodes - 1, <double>number[i] * scale)
                episode = first_not_below(total, 1, 0, n_episodes, number[i] + 1, episode)
            inside = number[i] - (total[episode - 1] if episode else 0)
            if at_steps and episode < n_episodes and size[episode] > 0:
                found[i] = ((end[2 * episode - 2] if episode else base_token) + inside * size[episode]) << 1 | 1
            elif at_steps:
                found[i] = ((end[2 * episode - 1] if episode else base_ordinal) + inside) << 8
            else:
                found[i] = (end[2 * episode - 2] if episode else base_token) + inside * stride
        if at_steps:
            find_starts(rows, first_row, n_rows, n, found)


cdef void find_starts(const int64_t *rows, int64_t first_row, int64_t n_rows, int64_t n, int64_t *found) noexcept nogil:
    """Where steps begin, in place of their keys; eight guesses are fetched ahead. An odd key is a place that is known.

    The guess takes all steps to have equally many rows, and is exact where they have.
    """
    cdef int64_t guesses[8]
    cdef int64_t i, key, row
    cdef int64_t first = rows[3 * first_row + 1] >> 8 << 8, last = ((rows[3 * n_rows - 2] >> 8) + 1) << 8
    cdef double scale = <double>(n_rows - first_row) / <double>(last - first) if last > first else 0
    for i in range(n + 8):
        if i >= 8 and found[i - 8] & 1:
            found[i - 8] >>= 1
        elif i >= 8:
            key, row = found[i - 8], guesses[i & 7]
            if rows[3 * row + 1] < key or (row > first_row and rows[3 * row - 2] >= key):
                row = first_not_below(rows + 1, 3, first_row, n_rows, key, row)
            found[i - 8] = rows[3 * row]
        if i < n and not found[i] & 1:
            guesses[i & 7] = within(first_row, n_rows - 1, first_row + <double>(found[i] - first) * scale)
            poolish_prefetch(rows + 3 * guesses[i & 7])


cdef class Wanted:
    """The fields that ``gather_steps`` reads, as C sees them."""
    cdef list views
    cdef int n_columns
    cdef int column_of[MAX_FIELDS]
    cdef int kinds[MAX_FIELDS]
    cdef int is_float[MAX_FIELDS]
    cdef int64_t types[MAX_FIELDS]
    cdef int64_t widths[MAX_FIELDS]
    cdef int64_t sizes[MAX_FIELDS]
    cdef char *values[MAX_FIELDS]
    cdef uint8_t *present[MAX_FIELDS]
    cdef int64_t *lengths[MAX_FIELDS]

    def __init__(self, columns, int64_t n):
        cdef Views views
        cdef int c
        self.views = []
        self.n_columns = len(columns)
        if self.n_columns > MAX_FIELDS:
            raise IndexError("too many columns")
        for c in range(MAX_FIELDS):
            self.column_of[c] = -1
        for c, (type_, is_float, width, values, present, lengths) in enumerate(columns):
            if not 0 <= type_ < MAX_FIELDS or width < 0 or width > 2**40 or self.column_of[<int>type_] >= 0:
                raise IndexError("columns that do not add up")
            views = Views()
            self.views.append(views)
            self.types[c], self.widths[c], self.is_float[c] = type_, width, bool(is_float)
            self.column_of[<int>type_] = c
            self.values[c] = NULL
            self.present[c] = NULL
            self.lengths[c] = NULL
            self.sizes[c] = 0
            if values is not None:
                self.kinds[c] = poolish_array_kind(values)
                self.sizes[c] = values.itemsize
                if self.kinds[c] == P_NONE or (self.is_float[c] and self.sizes[c] < 4):
                    raise TypeError("numbers in this machine's byte order are needed, floats of 4 or 8 bytes")
                self.values[c] = <char *>views.write(values)
                if views.size(views.n_held - 1) != n * self.widths[c] * self.sizes[c]:
                    raise IndexError("columns that do not add up")
            if present is not None:
                self.present[c] = <uint8_t *>views.write(present)
                if views.size(views.n_held - 1) != n:
                    raise IndexError("columns that do not add up")
            if lengths is not None:
                self.lengths[c] = <int64_t *>views.write(lengths)
                if views.size(views.n_held - 1) != n * 8:
                    raise IndexError("columns that do not add up")


def gather_steps(data, types, index, int64_t first_row, int64_t n_rows, ids, counts, skips, int64_t n_steps, columns,
                 places=None, sizes=None):
    cdef Views views = Views(), known = Views()
    cdef const int64_t *source = <const int64_t *>views.read(data)
    cdef const uint8_t *type_source = <const uint8_t *>views.read(types)
    cdef const int64_t *rows = <const int64_t *>views.read(index)
    cdef const int64_t *id_ = <const int64_t *>views.read(ids)
    cdef const int64_t *count = <const int64_t *>views.read(counts)
    cdef const int64_t *skip = <const int64_t *>views.read(skips)
    cdef int64_t n = views.size(3) // 8, n_tokens = min(views.size(0) // 8, views.size(1)), i, row, bad = -1
    cdef int64_t at[16]
    check_table(views.size(2) // 8, 3, 1, first_row, n_rows + 1)
    if n_steps < 0 or n_steps > 2**40 or views.size(4) != n * 8 or views.size(5) != n * 8:
        raise IndexError("sequences that do not add up")
    for i in range(n):
        if not (0 <= skip[i] and 0 <= count[i] <= n_steps - skip[i] and 0 <= id_[i] < 2**54):
            raise IndexError("sequences that do not add up")
    cdef const int64_t *place = NULL
    cdef const int64_t *size = NULL
    if places is not None:
        place = <const int64_t *>known.read(places)
        size = <const int64_t *>known.read(sizes)
        if known.size(0) != n * 8 or known.size(1) != n * 8:
            raise IndexError("sequences that do not add up")
    cdef Wanted wanted = Wanted(columns, n * n_steps)
    if first_row >= n_rows:
        return 0 if wanted.n_columns and n * n_steps else -1
    cdef int64_t first = rows[3 * first_row + 1] >> 8, last = (rows[3 * n_rows - 2] >> 8) + 1, width = 0, n_each = 0, key
    cdef double scale = 0
    if last > first:
        scale = <double>(n_rows - first_row) / <double>(last - first)
        width = min(<int64_t>128, n_steps * ((rows[3 * n_rows] - rows[3 * first_row]) // (last - first)))
        n_each = n_steps * ((n_rows - first_row) // (last - first))
    with nogil:
        # Three stages, so that no miss is waited for: a guess of the row and of the row behind the sequence are asked for;
        # eight sequences later the row is found and its tokens are asked for; four later they are read.
        for i in range(n + 12):
            if i < n and (place == NULL or place[i] < 0):
                row = within(first_row, n_rows - 1, first_row + <double>(id_[i] - first) * scale)
                at[i & 15] = row
                ask_for_row(rows, row)
                poolish_prefetch(rows + 3 * row + 12)
                ask_for_row(rows, min(row + n_each, n_rows))
            if 8 <= i < n + 8 and place != NULL and place[i - 8] >= 0:
                if place[i - 8] <= n_tokens - width:
                    ask_for(source, type_source, place[i - 8], width)
            elif 8 <= i < n + 8:
                row, key = at[(i - 8) & 15], id_[i - 8] << 8
                if rows[3 * row + 1] < key or (row > first_row and rows[3 * row - 2] >= key):
                    row = first_not_below(rows + 1, 3, first_row, n_rows, key, row)
                at[(i - 8) & 15] = row
                if 0 <= rows[3 * row] <= n_tokens - width:
                    ask_for(source, type_source, rows[3 * row], width)
            if i >= 12 and count[i - 12] > 0 and place != NULL and place[i - 12] >= 0:
                bad = read_alike(wanted, source, type_source, n_tokens, place[i - 12], size[i - 12], count[i - 12],
                                 (i - 12) * n_steps + skip[i - 12])
                if bad >= 0:
                    break
            elif i >= 12 and count[i - 12] > 0:
                bad = read_sequence(wanted, source, type_source, n_tokens, rows, at[(i - 12) & 15], n_rows, id_[i - 12],
                                    count[i - 12], (i - 12) * n_steps + skip[i - 12])
                if bad >= 0:
                    break
    return bad


cdef inline void ask_for_row(const int64_t *rows, int64_t row) noexcept nogil:
    """A row and the one before it, which may lie in another line of the cache."""
    poolish_prefetch(rows + 3 * row - 2)
    poolish_prefetch(rows + 3 * row + 2)


cdef int64_t read_sequence(Wanted wanted, const int64_t *data, const uint8_t *types, int64_t n_tokens, const int64_t *rows,
                           int64_t row, int64_t n_rows, int64_t id_, int64_t count, int64_t at) noexcept nogil:
    """The wanted fields of ``count`` steps from a row on, to place ``at`` of the columns.

    Where all steps are like the first, only that one is looked up in the index: ``are_alike`` says when.
    """
    cdef int64_t start = rows[3 * row], r = row, period, c, step, bad
    bad = read_step(wanted, data, n_tokens, rows, &r, n_rows, id_, at)
    if bad >= 0 or count == 1:
        return bad
    period = rows[3 * r] - start
    if (0 <= start <= n_tokens and 0 < period <= (n_tokens - start) // count and r - row <= (n_rows - row) // count
            and are_alike(types + start, rows, row, r - row, n_rows, count)):
        while row < r:
            c = wanted.column_of[rows[3 * row + 1] & 0xFF]
            if c >= 0:
                copy_fields(wanted, c, data + rows[3 * row] + period, rows[3 * (row + 1)] - rows[3 * row], count - 1, period,
                            at + 1)
            row += 1
        return -1
    for step in range(1, count):
        bad = read_step(wanted, data, n_tokens, rows, &r, n_rows, id_ + step, at + step)
        if bad >= 0:
            return bad
    return -1


cdef int64_t read_alike(Wanted wanted, const int64_t *data, const uint8_t *types, int64_t n_tokens, int64_t start,
                        int64_t size, int64_t count, int64_t at) noexcept nogil:
    """The same of steps that are known to be alike, by the types of the first."""
    cdef int64_t p = start, q, c, n_found = 0
    if size <= 0 or start > n_tokens or size > (n_tokens - start) // count:
        return at * wanted.n_columns
    while p < start + size:
        q = p + 1
        while q < start + size and types[q] == types[p]:
            q += 1
        c = wanted.column_of[types[p]]
        if c >= 0:
            if q - p != wanted.widths[c] and (wanted.lengths[c] == NULL or (wanted.values[c] != NULL and q - p > wanted.widths[c])):
                return at * wanted.n_columns + c
            copy_fields(wanted, c, data + p, q - p, count, size, at)
            n_found += 1
        p = q
    if n_found < wanted.n_columns:
        for c in range(wanted.n_columns):
            if wanted.present[c] == NULL and not is_among(types + start, size, wanted.types[c]):
                return at * wanted.n_columns + c
    return -1


cdef bint is_among(const uint8_t *types, int64_t n, int64_t type_) noexcept nogil:
    cdef int64_t i
    for i in range(n):
        if types[i] == type_:
            return True
    return False


cdef bint are_alike(const uint8_t *types, const int64_t *rows, int64_t row, int64_t n_each, int64_t n_rows,
                    int64_t count) noexcept nogil:
    """Whether ``count`` steps from a row on all have the ``n_each`` fields of the first, each as long as there.

    Their tokens have the same types over and over, which fall where a step ends and rise elsewhere; there are ``count``
    steps, so they end nowhere else; and no row is left for a field without tokens.
    """
    cdef int64_t start = rows[3 * row], period = rows[3 * (row + n_each)] - start, end = row + n_each * count, r
    cdef int64_t last = (rows[3 * row + 1] >> 8) + count - 1
    if n_each < 2 or rows[3 * end] != start + period * count or rows[3 * end - 2] >> 8 != last:
        return False
    if end < n_rows and rows[3 * end + 1] >> 8 != last + 1:
        return False
    for r in range(row, row + n_each):
        if rows[3 * (r + 1)] <= rows[3 * r]:
            return False
    return memcmp(types, types + period, period * (count - 1)) == 0


cdef int64_t read_step(Wanted wanted, const int64_t *data, int64_t n_tokens, const int64_t *rows, int64_t *row, int64_t n_rows,
                       int64_t id_, int64_t at) noexcept nogil:
    """One step from a row on, which is moved behind it; -1, or the place of a field that is missing or does not fit."""
    cdef int64_t n_found = 0, c, length, r = row[0]
    while r < n_rows and rows[3 * r + 1] >> 8 == id_:
        c = wanted.column_of[rows[3 * r + 1] & 0xFF]
        if c >= 0:
            length = rows[3 * (r + 1)] - rows[3 * r]
            if length < 0 or rows[3 * r] < 0 or length > n_tokens - rows[3 * r]:
                return at * wanted.n_columns + c
            if wanted.lengths[c] == NULL and length != wanted.widths[c]:
                return at * wanted.n_columns + c
            if wanted.values[c] != NULL and length > wanted.widths[c]:
                return at * wanted.n_columns + c
            copy_fields(wanted, c, data + rows[3 * r], length, 1, 0, at)
            n_found += 1
        r += 1
    row[0] = r
    if n_found < wanted.n_columns:
        return first_missing(wanted, rows, row[0], id_, at)
    return -1


cdef int64_t first_missing(Wanted wanted, const int64_t *rows, int64_t end, int64_t id_, int64_t at) noexcept nogil:
    """The place of the first field that a step has not got and must have, or -1."""
    cdef int64_t r, c
    cdef bint is_there
    for c in range(wanted.n_columns):
        if wanted.present[c] != NULL:
            continue
        is_there = False
        r = end - 1
        while r >= 0 and rows[3 * r + 1] >> 8 == id_:
            is_there = is_there or (rows[3 * r + 1] & 0xFF) == wanted.types[c]
            r -= 1
        if not is_there:
            return at * wanted.n_columns + c
    return -1


cdef inline void copy_fields(Wanted wanted, int64_t c, const int64_t *source, int64_t length, int64_t n, int64_t period,
                             int64_t at) noexcept nogil:
    """A field of ``n`` steps, ``period`` tokens apart."""
    cdef int64_t i, width = wanted.widths[c], size = wanted.sizes[c]
    if wanted.values[c] != NULL:
        if length == width:
            poolish_decode(wanted.kinds[c], wanted.is_float[c], source, n, length, period, wanted.values[c] + at * width * size)
        else:
            for i in range(n):
                poolish_decode(wanted.kinds[c], wanted.is_float[c], source + i * period, 1, length, 0,
                               wanted.values[c] + (at + i) * width * size)
    if wanted.lengths[c] != NULL:
        for i in range(n):
            wanted.lengths[c][at + i] = length
    if wanted.present[c] != NULL:
        memset(wanted.present[c] + at, 1, n)


cdef class PairColumns:
    """The columns that ``gather_pairs`` fills, as C sees them."""
    cdef list views
    cdef int n_columns
    cdef int kinds[2 * MAX_FIELDS]
    cdef int is_float[2 * MAX_FIELDS]
    cdef int64_t places[2 * MAX_FIELDS]
    cdef int64_t finals[2 * MAX_FIELDS]
    cdef int64_t widths[2 * MAX_FIELDS]
    cdef int64_t sizes[2 * MAX_FIELDS]
    cdef char *values[2 * MAX_FIELDS]

    def __init__(self, columns, int64_t n, int64_t width, int64_t next_width, int64_t final_width):
        cdef Views views
        cdef int c = 0
        self.views = []
        self.n_columns = len(columns)
        if self.n_columns > 2 * MAX_FIELDS:
            raise IndexError("too many columns")
        for place, final, size, is_float, values in columns:
            self.places[c], self.finals[c], self.widths[c], self.is_float[c] = place, final, size, bool(is_float)
            if place < 0 or size < 0 or final < -1 or place + size > (width if final < 0 else next_width):
                raise IndexError("columns that do not add up")
            if final >= 0 and final + size > final_width:
                raise IndexError("columns that do not add up")
            self.kinds[c], self.sizes[c] = poolish_array_kind(values), values.itemsize
            if self.kinds[c] == P_NONE or (self.is_float[c] and self.sizes[c] < 4):
                raise TypeError("numbers in this machine's byte order are needed, floats of 4 or 8 bytes")
            views = Views()
            self.views.append(views)
            self.values[c] = <char *>views.write(values)
            if views.size(0) != n * self.widths[c] * self.sizes[c]:
                raise IndexError("columns that do not add up")
            c += 1


cdef struct Fields:  # consecutive fields of a step: type and place of each; behind them, how many tokens they have
    const int64_t *each
    int64_t n
    int64_t width


cdef inline bint are_fields(const int64_t *rows, int64_t row, int64_t n_rows, int64_t key, int64_t start,
                            Fields fields) noexcept nogil:
    """Whether the rows from one on are these fields of a step, each as long as there."""
    cdef int64_t j
    if fields.n > n_rows - row:
        return False
    for j in range(fields.n):
        if rows[3 * (row + j)] != start + fields.each[2 * j + 1] or rows[3 * (row + j) + 1] != key + fields.each[2 * j]:
            return False
    return rows[3 * (row + fields.n)] == start + fields.width


cdef inline bint is_one_of(int64_t id_, const int64_t *ids, int64_t n) noexcept nogil:
    """Whether an id is among some, which ascend."""
    cdef int64_t low = 0, high = n, middle
    while low < high:
        middle = (low + high) >> 1
        if ids[middle] < id_:
            low = middle + 1
        else:
            high = middle
    return low < n and ids[low] == id_


cdef inline bint is_set(int64_t token, int64_t kind) noexcept nogil:
    """Whether a flag is not zero, as its field's numbers are compared: 0 whole, 1 float64, 2 float32."""
    cdef double value
    if kind == 0:
        return token != 0
    memcpy(&value, &token, 8)
    return value != 0 if kind == 1 else <float>value != 0


cdef int64_t read_pair(PairColumns columns, const int64_t *data, int64_t n_tokens, const int64_t *rows, int64_t row,
                       int64_t n_rows, int64_t id_, Fields plain, Fields next_, Fields final, const int64_t *flags,
                       bint is_cut, uint8_t *terminated, uint8_t *truncated, int64_t i) noexcept nogil:
    """One step and what was seen behind it, from a row on, to place ``i``; -1, or ``i`` if it is laid out otherwise."""
    cdef int64_t start = rows[3 * row], width = plain.width, behind, c
    cdef const int64_t *source
    cdef bint stops
    if start < 0 or width > n_tokens - start or not are_fields(rows, row, n_rows, id_ << 8, start, plain):
        return i
    terminated[i] = is_set(data[start + flags[0]], flags[1])
    truncated[i] = is_cut or (flags[2] >= 0 and is_set(data[start + flags[2]], flags[3]))
    stops, row, start = terminated[i] or truncated[i], row + plain.n, start + width
    behind = final.width if stops else next_.width
    if behind > n_tokens - start:
        return i
    if not are_fields(rows, row, n_rows, (id_ if stops else id_ + 1) << 8, start, final if stops else next_):
        return i
    for c in range(columns.n_columns):
        width = columns.widths[c]
        source = data + start
        if columns.finals[c] < 0:
            source += columns.places[c] - plain.width
        else:
            source += columns.finals[c] if stops else columns.places[c]
        poolish_decode(columns.kinds[c], columns.is_float[c], source, 1, width, 0,
                       columns.values[c] + i * width * columns.sizes[c])
    return -1


def gather_pairs(data, index, int64_t first_row, int64_t n_rows, ids, int64_t low, int64_t high, lost, cuts, plain, final,
                 int64_t n_next, flags, columns, terminated, truncated):
    cdef Views views = Views(), more = Views()
    cdef const int64_t *source = <const int64_t *>views.read(data)
    cdef const int64_t *rows = <const int64_t *>views.read(index)
    cdef const int64_t *id_ = <const int64_t *>views.read(ids)
    cdef const int64_t *lost_id = <const int64_t *>views.read(lost)
    cdef const int64_t *cut_id = <const int64_t *>views.read(cuts)
    cdef const int64_t *flag = <const int64_t *>views.read(flags)
    cdef Fields first, second, last
    cdef uint8_t *is_terminated = NULL
    cdef uint8_t *is_truncated = NULL
    cdef int64_t n_tokens = views.size(0) // 8, n = views.size(2) // 8, n_lost = views.size(3) // 8, i, j, row, bad = -1
    cdef int64_t n_cuts = views.size(4) // 8, begin, span, wide
    cdef int64_t at[16]
    check_table(views.size(1) // 8, 3, 1, first_row, n_rows + 1)
    first.each = <const int64_t *>more.read(plain)
    last.each = <const int64_t *>more.read(final)
    is_terminated, is_truncated = <uint8_t *>more.write(terminated), <uint8_t *>more.write(truncated)
    # Behind the fields, each table has one more line: no type, and the number of all tokens.
    first.n, last.n = more.size(0) // 16 - 1, more.size(1) // 16 - 1
    if first.n < 1 or last.n < 1 or not 0 <= n_next <= first.n or views.size(5) != 32:
        raise IndexError("steps that do not add up")
    if more.size(2) != n or more.size(3) != n or not 0 <= low <= high < 2**54:
        raise IndexError("steps that do not add up")
    first.width, last.width = first.each[2 * first.n + 1], last.each[2 * last.n + 1]
    second.each, second.n, second.width = first.each, n_next, first.each[2 * n_next + 1]
    if not (0 <= second.width <= first.width < 2**40 and 0 <= last.width < 2**40):
        raise IndexError("steps that do not add up")
    if not (0 <= flag[0] < first.width and -1 <= flag[2] < first.width):
        raise IndexError("steps that do not add up")
    cdef PairColumns wanted = PairColumns(columns, n, first.width, second.width, last.width)
    if first_row >= n_rows:
        return 0 if n else -1
    begin, span = rows[3 * first_row + 1] >> 8, (rows[3 * n_rows - 2] >> 8) + 1
    cdef double scale = <double>(n_rows - first_row) / <double>(span - begin) if span > begin else 0
    span, wide = min(<int64_t>64, first.n + n_next), min(<int64_t>128, first.width + second.width)
    with nogil:
        # The three stages of ``gather_steps``; the rows say which fields a step has, so the types are not looked at.
        for i in range(n + 12):
            if i < n:
                row = within(first_row, n_rows - 1, first_row + <double>(id_[i] - begin) * scale)
                at[i & 15] = row
                poolish_prefetch(rows + 3 * row - 2)
                for j in range(0, 3 * span + 3, 8):
                    poolish_prefetch(rows + 3 * row + j)
            if 8 <= i < n + 8:
                row = at[(i - 8) & 15]
                if rows[3 * row + 1] < id_[i - 8] << 8 or (row > first_row and rows[3 * row - 2] >= id_[i - 8] << 8):
                    row = first_not_below(rows + 1, 3, first_row, n_rows, id_[i - 8] << 8, row)
                    for j in range(8, 3 * span, 8):
                        poolish_prefetch(rows + 3 * row + j)
                at[(i - 8) & 15] = row
                if 0 <= rows[3 * row] <= n_tokens - wide:
                    ask_for(source, NULL, rows[3 * row], wide)
                    poolish_prefetch(source + rows[3 * row] + wide - 1)  # where it ends, in a line of its own maybe
            if i >= 12:
                j = i - 12
                if not low <= id_[j] < high or is_one_of(id_[j], lost_id, n_lost):
                    bad = j
                else:
                    bad = read_pair(wanted, source, n_tokens, rows, at[j & 15], n_rows, id_[j], first, second, last, flag,
                                    is_one_of(id_[j], cut_id, n_cuts), is_terminated, is_truncated, j)
                if bad >= 0:
                    break
    return bad


def step_sizes(types, index, int64_t first_row, int64_t n_rows, edges, out):
    cdef Views views = Views()
    cdef const uint8_t *type_source = <const uint8_t *>views.read(types)
    cdef const int64_t *rows = <const int64_t *>views.read(index)
    cdef const int64_t *edge = <const int64_t *>views.read(edges)
    cdef int64_t *size = <int64_t *>views.write(out)
    cdef int64_t n = views.size(3) // 8, n_tokens = views.size(0), i, row, r, count, n_each, period
    check_table(views.size(1) // 8, 3, 1, first_row, n_rows + 1)
    if views.size(2) < n * 16:
        raise IndexError("out is too small")
    for i in range(n):
        if not first_row <= edge[2 * i] <= edge[2 * i + 1] <= n_rows:
            raise IndexError("outside of the table")
    with nogil:
        for i in range(n):
            size[i] = 0
            row, r = edge[2 * i], edge[2 * i]
            while r < edge[2 * i + 1] and rows[3 * r + 1] >> 8 == rows[3 * row + 1] >> 8:
                r += 1
            if r == row or (edge[2 * i + 1] - row) % (r - row):
                continue
            n_each, count, period = r - row, (edge[2 * i + 1] - row) // (r - row), rows[3 * r] - rows[3 * row]
            if (0 <= rows[3 * row] <= n_tokens and 0 < period <= (n_tokens - rows[3 * row]) // count
                    and are_alike(type_source + rows[3 * row], rows, row, n_each, n_rows, count)):
                size[i] = period


def draw(generator, int64_t low, int64_t high, n):
    cdef uint64_t span = <uint64_t>high - <uint64_t>low
    if type(generator) is not np.random.Generator or not 2 <= span < 0xFFFFFFFFULL:
        return generator.integers(low, high, n)
    # What NumPy does for such a span, without the 6 us in which it looks at its arguments.
    source = generator.bit_generator
    cdef bitgen_t *bits = <bitgen_t *>PyCapsule_GetPointer(source.capsule, "BitGenerator")
    cdef cnp.ndarray numbers = np.empty(n, np.int64)
    cdef int64_t *number = <int64_t *>cnp.PyArray_DATA(numbers)
    cdef uint32_t too_low = <uint32_t>((<uint64_t>1 << 32) % span)
    cdef uint64_t product
    cdef int64_t i, size = cnp.PyArray_SIZE(numbers)
    with source.lock, nogil:
        for i in range(size):
            product = bits.next_uint32(bits.state) * span
            while <uint32_t>product < too_low:  # these would make some numbers likelier than others
                product = bits.next_uint32(bits.state) * span
            number[i] = low + <int64_t>(product >> 32)
    return numbers


def search(table, int64_t n_columns, int64_t column, int64_t low, int64_t high, keys, out):
    cdef Views views = Views()
    cdef const int64_t *values = <const int64_t *>views.read(table) + column
    cdef const int64_t *key = <const int64_t *>views.read(keys)
    cdef int64_t *found = <int64_t *>views.write(out)
    cdef int64_t n = views.size(1) // 8, i, ahead
    check_table(views.size(0) // 8, n_columns, column, low, high)
    if views.size(2) < n * 8:
        raise IndexError("out is too small")
    with nogil:
        if low == high:
            for i in range(n):
                found[i] = low
        else:
            # Each key costs a miss at its guess: ask for eight of them at a time.
            for i in range(n + 8):
                if i < n:
                    found[i] = guess(values, n_columns, low, high, key[i])
                    poolish_prefetch(values + found[i] * n_columns)
                ahead = i - 8
                if ahead >= 0:
                    found[ahead] = first_not_below(values, n_columns, low, high, key[ahead], found[ahead])


def find_nonzero(data, types, int64_t begin, int64_t end, int type_, bint is_float, out):
    cdef Views views = Views()
    cdef const int64_t *source = <const int64_t *>views.read(data)
    cdef const uint8_t *type_source = <const uint8_t *>views.read(types)
    cdef int64_t *found = <int64_t *>views.write(out)
    cdef int64_t room = views.size(2) // 8, n = 0, i
    # -0.0 is zero too: of a float, the sign does not count.
    cdef uint64_t mask = 0x7FFFFFFFFFFFFFFFULL if is_float else 0xFFFFFFFFFFFFFFFFULL
    if begin < 0 or end > views.size(0) // 8 or end > views.size(1):
        raise IndexError("outside of the lanes")
    with nogil:
        i = begin
        while i < end and n < room:
            if type_source[i] == type_ and (<uint64_t>source[i] & mask) != 0:
                found[n] = i
                n += 1
            i += 1
    return n, i
