# What both modules of kernels begin with: the buffers a call looks at, and fetching ahead.

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer

cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
      #define poolish_prefetch(address) __builtin_prefetch(address, 0, 1)
    #else
      #define poolish_prefetch(address) ((void)(address))
    #endif
    """
    void poolish_prefetch(const void *address) nogil


@cython.final
@cython.freelist(8)
cdef class Views:
    """The buffers one call looks at; all are released when the call is over, however it ends."""
    cdef Py_buffer held[6]
    cdef int n_held

    cdef void *take(self, object owner, int flags) except? NULL:
        PyObject_GetBuffer(owner, &self.held[self.n_held], flags)
        self.n_held += 1
        return self.held[self.n_held - 1].buf

    cdef const void *read(self, object owner) except? NULL:
        return self.take(owner, PyBUF_SIMPLE)

    cdef void *write(self, object owner) except? NULL:
        return self.take(owner, PyBUF_SIMPLE | PyBUF_WRITABLE)

    cdef int64_t size(self, int which) noexcept:
        return self.held[which].len

    def __dealloc__(self):
        cdef int i
        for i in range(self.n_held):
            PyBuffer_Release(&self.held[i])
