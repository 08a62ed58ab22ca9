/* Reading numbers out of Python, NumPy and raw memory as tokens, exactly or not at all.

   A token is one int64. A float field holds the bits of a float64, an integer or bool field the integer itself, and a
   value that would come back as another one is refused. Going through NumPy's Python API costs 700 ns a scalar; read
   here, by type, it costs 5. */

#ifndef POOLISH_VALUES_H
#define POOLISH_VALUES_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <Python.h>
#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>
#include <numpy/arrayscalars.h>

typedef struct {
  int is_float;      /* float fields: */
  double limit;      /*   the largest finite magnitude that the field's own dtype has */
  int64_t low, high; /* integer fields: the range of their dtype */
} poolish_encoding;

/* Sources, as kernels name them. */
enum { P_BOOL, P_I8, P_I16, P_I32, P_I64, P_U8, P_U16, P_U32, P_U64, P_F16, P_F32, P_F64, P_NONE };

static inline int64_t poolish_bits(double value) {
  int64_t bits;
  memcpy(&bits, &value, 8);
  return bits;
}

/* Each of these stores a token and returns 0, or returns 1 where the field cannot hold the value. */

static inline int poolish_from_double(double value, const poolish_encoding *field, int64_t *token) {
  if (field->is_float) {
    *token = poolish_bits(value);
    return fabs(value) > field->limit && !isinf(value);
  }
  /* 2**63 is exact as a double, 2**63 - 1 is not: hence the two kinds of comparison. NaN fails both. */
  if (!(value >= -9223372036854775808.0 && value < 9223372036854775808.0)) return 1;
  *token = (int64_t)value;
  return (double)*token != value || *token < field->low || *token > field->high;
}

static inline int poolish_from_int(int64_t value, const poolish_encoding *field, int64_t *token) {
  if (!field->is_float) {
    *token = value;
    return value < field->low || value > field->high;
  }
  double rounded = (double)value;
  *token = poolish_bits(rounded);
  return rounded >= 9223372036854775808.0 || (int64_t)rounded != value || fabs(rounded) > field->limit;
}

static inline int poolish_from_unsigned(uint64_t value, const poolish_encoding *field, int64_t *token) {
  if (value <= INT64_MAX) return poolish_from_int((int64_t)value, field, token);
  if (!field->is_float) return 1;
  double rounded = (double)value;
  *token = poolish_bits(rounded);
  return rounded >= 18446744073709551616.0 || (uint64_t)rounded != value || fabs(rounded) > field->limit;
}

static inline double poolish_half(uint16_t half) {
  int exponent = (half >> 10) & 31, fraction = half & 1023;
  if (exponent == 31) { /* infinity, or a NaN that keeps its bits */
    uint64_t bits = (uint64_t)(half >> 15) << 63 | 0x7FFULL << 52 | (uint64_t)fraction << 42;
    double special;
    memcpy(&special, &bits, 8);
    return special;
  }
  double value = exponent == 0 ? ldexp(fraction, -24) : ldexp(fraction + 1024, exponent - 25);
  return half >> 15 ? -value : value;
}

/* n numbers, `stride` bytes apart, to tokens that lie `step` tokens apart in runs of `run`; 1 if any is refused.
   (A column of k numbers a row is written into rows of the stream: runs of k, one in every step.) */
#define POOLISH_COPY(TYPE, CONVERT)                                              \
  for (int64_t i = 0; i < n_runs; i++, target += step)                          \
    for (int64_t j = 0; j < run; j++, source += stride) {                       \
      TYPE value;                                                               \
      memcpy(&value, source, sizeof value);                                     \
      bad |= CONVERT;                                                           \
    }                                                                           \
  return bad;

/* Floats into float64 fields, the usual case, are never refused; without the check the loop is twice as fast. */
#define POOLISH_COPY_FREE(TYPE)                                                  \
  for (int64_t i = 0; i < n_runs; i++, target += step)                          \
    for (int64_t j = 0; j < run; j++, source += stride) {                       \
      TYPE value;                                                               \
      memcpy(&value, source, sizeof value);                                     \
      target[j] = poolish_bits((double)value);                                  \
    }                                                                           \
  return 0;

static int poolish_copy(int kind, const char *source, int64_t stride, int64_t n_runs, int64_t run,
                        const poolish_encoding *field, int64_t *target, int64_t step) {
  int bad = 0;
  if (field->is_float && kind == P_F64 && isinf(field->limit)) { POOLISH_COPY_FREE(double) }
  if (field->is_float && kind == P_F32 && field->limit >= 3.4028234663852886e38) { POOLISH_COPY_FREE(float) }
  switch (kind) {
    case P_BOOL: POOLISH_COPY(uint8_t, poolish_from_int(value != 0, field, target + j))
    case P_I8: POOLISH_COPY(int8_t, poolish_from_int(value, field, target + j))
    case P_I16: POOLISH_COPY(int16_t, poolish_from_int(value, field, target + j))
    case P_I32: POOLISH_COPY(int32_t, poolish_from_int(value, field, target + j))
    case P_I64: POOLISH_COPY(int64_t, poolish_from_int(value, field, target + j))
    case P_U8: POOLISH_COPY(uint8_t, poolish_from_int(value, field, target + j))
    case P_U16: POOLISH_COPY(uint16_t, poolish_from_int(value, field, target + j))
    case P_U32: POOLISH_COPY(uint32_t, poolish_from_int(value, field, target + j))
    case P_U64: POOLISH_COPY(uint64_t, poolish_from_unsigned(value, field, target + j))
    case P_F16: POOLISH_COPY(uint16_t, poolish_from_double(poolish_half(value), field, target + j))
    case P_F32: POOLISH_COPY(float, poolish_from_double(value, field, target + j))
    case P_F64: POOLISH_COPY(double, poolish_from_double(value, field, target + j))
  }
  return 1;
}

/* How an array's numbers lie in memory, or P_NONE for anything but native numbers of up to 8 bytes. */
static inline int poolish_kind(char kind, int64_t n_bytes) {
  int power = n_bytes == 1 ? 0 : n_bytes == 2 ? 1 : n_bytes == 4 ? 2 : n_bytes == 8 ? 3 : -1;
  if (power < 0) return P_NONE;
  switch (kind) {
    case 'b': return power ? P_NONE : P_BOOL;
    case 'i': return P_I8 + power;
    case 'u': return P_U8 + power;
    case 'f': return power ? P_F16 + power - 1 : P_NONE;
  }
  return P_NONE;
}

static inline int poolish_array_kind(PyArrayObject *array) {
  PyArray_Descr *dtype = PyArray_DESCR(array);
  if (!PyArray_ISNOTSWAPPED(array)) return P_NONE;
  return poolish_kind(dtype->kind, PyDataType_ELSIZE(dtype));
}

/* One number that is no array: 0 stored, 1 refused, 2 not a number that is known here. */
static inline int poolish_number(PyObject *value, const poolish_encoding *field, int64_t *token) {
  PyTypeObject *type = Py_TYPE(value);
  if (type == &PyFloat_Type || type == &PyDoubleArrType_Type) /* NumPy's float64 is a Python float inside */
    return poolish_from_double(PyFloat_AS_DOUBLE(value), field, token);
  if (type == &PyLong_Type) {
    int overflow;
    int64_t integer = PyLong_AsLongLongAndOverflow(value, &overflow);
    return overflow ? 2 : poolish_from_int(integer, field, token);
  }
  if (type == &PyBool_Type) return poolish_from_int(value == Py_True, field, token);
  if (type == &PyFloatArrType_Type) return poolish_from_double(PyArrayScalar_VAL(value, Float), field, token);
  if (type == &PyLongArrType_Type) return poolish_from_int(PyArrayScalar_VAL(value, Long), field, token);
  if (type == &PyBoolArrType_Type) return poolish_from_int(PyArrayScalar_VAL(value, Bool) != 0, field, token);
  if (type == &PyIntArrType_Type) return poolish_from_int(PyArrayScalar_VAL(value, Int), field, token);
  if (type == &PyUByteArrType_Type) return poolish_from_int(PyArrayScalar_VAL(value, UByte), field, token);
  if (type == &PyByteArrType_Type) return poolish_from_int(PyArrayScalar_VAL(value, Byte), field, token);
  if (type == &PyShortArrType_Type) return poolish_from_int(PyArrayScalar_VAL(value, Short), field, token);
  if (type == &PyUShortArrType_Type) return poolish_from_int(PyArrayScalar_VAL(value, UShort), field, token);
  if (type == &PyUIntArrType_Type) return poolish_from_int(PyArrayScalar_VAL(value, UInt), field, token);
  if (type == &PyULongArrType_Type) return poolish_from_unsigned(PyArrayScalar_VAL(value, ULong), field, token);
  if (type == &PyHalfArrType_Type) return poolish_from_double(poolish_half(PyArrayScalar_VAL(value, Half)), field, token);
  return 2;
}

/* The number of a step: a whole number, not negative. Same answers as above. */
static inline int poolish_step(PyObject *value, int64_t *step) {
  PyTypeObject *type = Py_TYPE(value);
  if (type == &PyLong_Type) {
    int overflow;
    *step = PyLong_AsLongLongAndOverflow(value, &overflow);
    return overflow || *step < 0;
  }
  if (type != &PyLongArrType_Type && type != &PyIntArrType_Type) return 2;
  *step = type == &PyLongArrType_Type ? (int64_t)PyArrayScalar_VAL(value, Long) : PyArrayScalar_VAL(value, Int);
  return *step < 0;
}

/* The words of the head page: 48 bits of a number under 16 bits that prove it, and that it stands in this very word. A
   single store publishes both; any flipped bit, two words that are swapped, and a page of zeros are seen. */
#define POOLISH_SEAL 0x9E3779B97F4A7C15ULL

static inline uint64_t poolish_sealed(uint64_t number, uint64_t word) {
  return number | ((((word << 48) + number + 1) * POOLISH_SEAL) >> 48 << 48);
}

static inline void poolish_release(int64_t *word, uint64_t value) {
#if defined(__GNUC__) || defined(__clang__)
  __atomic_store_n((uint64_t *)word, value, __ATOMIC_RELEASE);
#else
  *(volatile uint64_t *)word = value;
#endif
}

static inline uint64_t poolish_acquire(const int64_t *word) {
#if defined(__GNUC__) || defined(__clang__)
  /* The fence keeps what was copied before from being read after: a reader looks at the word again when it is done. */
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  return __atomic_load_n((const uint64_t *)word, __ATOMIC_ACQUIRE);
#else
  return *(const volatile uint64_t *)word;
#endif
}

/* n_runs runs of `run` tokens, `step` tokens apart, as numbers of a dtype one behind the other. Tokens of integer fields
   are cut to the dtype, which holds them because they were checked when they were written. */
#define POOLISH_DECODE(TYPE, CONVERT)                                            \
  do {                                                                           \
    if (run == 1)                                                                \
      for (int64_t i = 0; i < n_runs; i++, source += step) {                     \
        int64_t token = *source;                                                 \
        TYPE number = (TYPE)(CONVERT);                                           \
        memcpy(target + i * sizeof number, &number, sizeof number);              \
      }                                                                          \
    else                                                                         \
      for (int64_t i = 0; i < n_runs; i++, source += step, target += run * sizeof(TYPE)) \
        for (int64_t j = 0; j < run; j++) {                                      \
          int64_t token = source[j];                                             \
          TYPE number = (TYPE)(CONVERT);                                         \
          memcpy(target + j * sizeof number, &number, sizeof number);            \
        }                                                                        \
    return;                                                                      \
  } while (0)

static inline double poolish_double(int64_t bits) {
  double value;
  memcpy(&value, &bits, 8);
  return value;
}

static void poolish_decode(int kind, int is_float, const int64_t *source, int64_t n_runs, int64_t run, int64_t step,
                           char *target) {
  if (is_float && kind == P_F32) POOLISH_DECODE(float, poolish_double(token));
  switch (kind) {
    case P_BOOL: POOLISH_DECODE(uint8_t, token != 0);
    case P_I8: case P_U8: POOLISH_DECODE(uint8_t, token);
    case P_I16: case P_U16: POOLISH_DECODE(uint16_t, token);
    case P_I32: case P_U32: POOLISH_DECODE(uint32_t, token);
    default: POOLISH_DECODE(int64_t, token); /* 64-bit integers, and the bits of a float64 */
  }
}

/* Zeros into a part of a file; whatever the system does not write is left as it was. */
static void poolish_write_zeros(int file, int64_t begin, int64_t end) {
  static char zeros[1 << 18];
  while (begin < end) {
    int64_t n_bytes = end - begin < (int64_t)sizeof zeros ? end - begin : (int64_t)sizeof zeros;
    int64_t written = pwrite(file, zeros, n_bytes, begin);
    if (written <= 0) return;
    begin += written;
  }
}

#endif
