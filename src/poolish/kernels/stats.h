/* The loops of _stats.pyx that a compiler should turn into vector instructions.

   Sums run in eight lanes, written out, so that every machine adds in the same order: the compiler may use wide
   registers for the lanes, and must not reorder anything. Wide registers are chosen when the library is loaded. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__GLIBC__)
  /* Not with fused multiply-add: it would round differently from one machine to the next. */
  #define POOLISH_WIDE __attribute__((target_clones("avx2", "default")))
#else
  #define POOLISH_WIDE
#endif

#define POOLISH_BLOCK 1024
#define POOLISH_LANES 8

typedef struct {
  double n, mean, m2, m3, m4, low, high;
  int64_t n_nan, n_above, n_below;
} poolish_moments;

enum { POOLISH_F64, POOLISH_F32, POOLISH_I64, POOLISH_I32, POOLISH_U8 };

/* One block as float64, at `room` unless it is float64 already. */
static const double *poolish_doubles(int kind, const void *values, int64_t first, int n, double *room) {
  int i;
  switch (kind) {
    case POOLISH_F64: return (const double *)values + first;
    case POOLISH_F32: for (i = 0; i < n; i++) room[i] = ((const float *)values)[first + i]; break;
    case POOLISH_I64: for (i = 0; i < n; i++) room[i] = (double)((const int64_t *)values)[first + i]; break;
    case POOLISH_I32: for (i = 0; i < n; i++) room[i] = ((const int32_t *)values)[first + i]; break;
    default: for (i = 0; i < n; i++) room[i] = ((const uint8_t *)values)[first + i]; break;
  }
  return room;
}

POOLISH_WIDE
static double poolish_sum(const double *x, int n, double scale) {
  double lane[POOLISH_LANES] = {0};
  double sum = 0;
  int i = 0, l;
  for (; i + POOLISH_LANES <= n; i += POOLISH_LANES)
    for (l = 0; l < POOLISH_LANES; l++) lane[l] += x[i + l] * scale;
  for (l = 0; l < POOLISH_LANES; l++) sum += lane[l];
  for (; i < n; i++) sum += x[i] * scale;
  return sum;
}

POOLISH_WIDE
static void poolish_range(const double *x, int n, double *low, double *high) {
  double least[POOLISH_LANES], most[POOLISH_LANES];
  int i = 0, l;
  for (l = 0; l < POOLISH_LANES; l++) least[l] = most[l] = x[0];
  for (; i + POOLISH_LANES <= n; i += POOLISH_LANES)
    for (l = 0; l < POOLISH_LANES; l++) {
      least[l] = x[i + l] < least[l] ? x[i + l] : least[l];
      most[l] = x[i + l] > most[l] ? x[i + l] : most[l];
    }
  for (; i < n; i++) {
    least[0] = x[i] < least[0] ? x[i] : least[0];
    most[0] = x[i] > most[0] ? x[i] : most[0];
  }
  *low = least[0], *high = most[0];
  for (l = 1; l < POOLISH_LANES; l++) {
    if (least[l] < *low) *low = least[l];
    if (most[l] > *high) *high = most[l];
  }
}

POOLISH_WIDE
static void poolish_powers(const double *x, int n, double mean, double *m2, double *m3, double *m4) {
  double second[POOLISH_LANES] = {0}, third[POOLISH_LANES] = {0}, fourth[POOLISH_LANES] = {0};
  int i = 0, l;
  for (; i + POOLISH_LANES <= n; i += POOLISH_LANES)
    for (l = 0; l < POOLISH_LANES; l++) {
      double apart = x[i + l] - mean, square = apart * apart;
      second[l] += square;
      third[l] += square * apart;
      fourth[l] += square * square;
    }
  for (; i < n; i++) {
    double apart = x[i] - mean, square = apart * apart;
    second[0] += square;
    third[0] += square * apart;
    fourth[0] += square * square;
  }
  *m2 = *m3 = *m4 = 0;
  for (l = 0; l < POOLISH_LANES; l++) *m2 += second[l], *m3 += third[l], *m4 += fourth[l];
}

/* How many of n values are not below the edge. */
POOLISH_WIDE
static int64_t poolish_reach(const double *x, int n, double edge) {
  int64_t reached = 0;
  int i;
  for (i = 0; i < n; i++) reached += x[i] >= edge;
  return reached;
}

static void poolish_count(const double *x, int n, const double *edges, int64_t n_edges, int64_t *counts) {
  int64_t j;
  int i;
  if (n_edges <= 16) {
    int64_t before = n, reached;
    for (j = 0; j < n_edges; j++, before = reached) {
      reached = poolish_reach(x, n, edges[j]);
      counts[j] += before - reached;
    }
    counts[n_edges] += before;
    return;
  }
  for (i = 0; i < n; i++) { /* the number of edges at or below x, found without branches */
    const double *low = edges;
    int64_t left = n_edges;
    while (left > 1) {
      int64_t half = left >> 1;
      low += half * (low[half - 1] <= x[i]);
      left -= half;
    }
    counts[(low - edges) + (*low <= x[i])]++;
  }
}

/* Pebay's formulas for the moments of two sets together. */
static void poolish_merge(poolish_moments *a, double n_b, double mean, double m2, double m3, double m4) {
  double n_a = a->n, n = n_a + n_b, apart = mean - a->mean, share = n_b / n;
  double square = apart * apart, both = n_a * share;
  if (n_a == 0) {
    a->n = n_b, a->mean = mean, a->m2 = m2, a->m3 = m3, a->m4 = m4;
    return;
  }
  if (apart != 0) { /* also where it is infinite: then the powers are, and the mean is still in range */
    double cross = n_a / n;
    a->m4 += m4 + square * square * both * (cross * cross - cross * share + share * share)
           + 6 * square * (cross * cross * m2 + share * share * a->m2) + 4 * apart * (cross * m3 - share * a->m3);
    a->m3 += m3 + square * apart * both * (cross - share) + 3 * apart * (cross * m2 - share * a->m2);
    a->m2 += m2 + square * both;
    a->mean = isfinite(apart) ? a->mean + apart * share : a->mean * cross + mean * share;
  } else {
    a->m4 += m4, a->m3 += m3, a->m2 += m2;
  }
  a->n = n;
}

static void poolish_take(poolish_moments *all, const double *x, int n, const double *edges, int64_t n_edges,
                         int64_t *counts) {
  double kept[POOLISH_BLOCK], sum = poolish_sum(x, n, 1.0), mean, low, high, m2 = 0, m3 = 0, m4 = 0;
  int i, n_kept = 0;
  if (!isfinite(sum)) { /* a finite sum proves that all of its parts are */
    for (i = 0; i < n; i++) {
      kept[n_kept] = x[i];
      n_kept += isfinite(x[i]) != 0;
      all->n_nan += x[i] != x[i];
      all->n_above += x[i] == INFINITY;
      all->n_below += x[i] == -INFINITY;
    }
    x = kept, n = n_kept;
    if (n == 0) return;
    sum = poolish_sum(x, n, 1.0);
  }
  poolish_range(x, n, &low, &high);
  if (low == high) {
    mean = low; /* exactly, so that what is constant has no variance at all */
  } else {
    mean = isfinite(sum) ? sum / n : poolish_sum(x, n, 1.0 / n);
    poolish_powers(x, n, mean, &m2, &m3, &m4);
  }
  if (n_edges >= 0) poolish_count(x, n, edges, n_edges, counts);
  if (all->n == 0 || low < all->low) all->low = low;
  if (all->n == 0 || high > all->high) all->high = high;
  poolish_merge(all, n, mean, m2, m3, m4);
}

static void poolish_scan(int kind, const void *values, int64_t n, const double *edges, int64_t n_edges,
                         int64_t *counts, poolish_moments *all) {
  double room[POOLISH_BLOCK];
  int64_t first;
  for (first = 0; first < n; first += POOLISH_BLOCK) {
    int size = (int)(n - first < POOLISH_BLOCK ? n - first : POOLISH_BLOCK);
    poolish_take(all, poolish_doubles(kind, values, first, size, room), size, edges, n_edges, counts);
  }
}

/* Sorting: floats as integers of the same order, eight bits at a time, passes that would change nothing left out. */
static void poolish_sort(uint64_t *keys, uint64_t *other, int64_t n, int64_t *counts, uint64_t **sorted) {
  int64_t i, sum;
  int pass, digit;
  memset(counts, 0, 8 * 256 * sizeof(int64_t));
  for (i = 0; i < n; i++) {
    uint64_t key = keys[i];
    key ^= (uint64_t)((int64_t)key >> 63) | 0x8000000000000000u;
    keys[i] = key;
    for (pass = 0; pass < 8; pass++) counts[pass * 256 + ((key >> (8 * pass)) & 255)]++;
  }
  for (pass = 0; pass < 8; pass++) {
    int64_t *starts = counts + pass * 256;
    if (n == 0 || starts[(keys[0] >> (8 * pass)) & 255] == n) continue;
    for (digit = 0, sum = 0; digit < 256; digit++) {
      int64_t size = starts[digit];
      starts[digit] = sum;
      sum += size;
    }
    for (i = 0; i < n; i++) other[starts[(keys[i] >> (8 * pass)) & 255]++] = keys[i];
    { uint64_t *swap = keys; keys = other; other = swap; }
  }
  for (i = 0; i < n; i++) keys[i] ^= ((keys[i] >> 63) - 1) | 0x8000000000000000u;
  *sorted = keys;
}

/* Two sorted samples side by side: the largest distances between their distribution functions, times n_a n_b, and the
   area between them. */
static void poolish_walk(const double *a, int64_t n_a, const double *b, int64_t n_b, int64_t *above, int64_t *below,
                         double *area) {
  int64_t i = 0, j = 0, apart = 0;
  double last = 0, sum = 0, unit = 1 / ((double)n_a * (double)n_b);
  *above = *below = 0;
  while (i < n_a || j < n_b) {
    double x = j >= n_b || (i < n_a && a[i] <= b[j]) ? a[i] : b[j];
    if (apart) sum += (x - last) * ((double)(apart < 0 ? -apart : apart) * unit);
    last = x;
    while (i < n_a && a[i] == x) i++, apart += n_b;
    while (j < n_b && b[j] == x) j++, apart -= n_a;
    if (apart > *above) *above = apart;
    if (-apart > *below) *below = -apart;
  }
  *area = sum;
}

static uint64_t poolish_scatter(uint64_t word) { /* the finaliser of SplitMix64 */
  word += 0x9E3779B97F4A7C15u;
  word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
  word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
  return word ^ (word >> 31);
}

/* One value as a word, equal for what is equal: zeros have one sign. 0 for what is not finite and has no word. */
static int poolish_word(const void *values, int is_float, int64_t i, uint64_t *word) {
  double x;
  if (!is_float) {
    *word = ((const uint64_t *)values)[i];
    return 1;
  }
  x = ((const double *)values)[i] + 0.0;
  memcpy(word, &x, sizeof x);
  return isfinite(x) != 0;
}

static void poolish_registers(const void *values, int is_float, int64_t n, int bits, uint8_t *registers) {
  int64_t i;
  uint64_t word;
  for (i = 0; i < n; i++) {
    if (!poolish_word(values, is_float, i, &word)) continue;
    {
      uint64_t hash = poolish_scatter(word), rest = hash << bits;
      uint8_t rank = 1;
      if (rest == 0) rank = (uint8_t)(64 - bits + 1);
      else
#if defined(__GNUC__) || defined(__clang__)
        rank = (uint8_t)(__builtin_clzll(rest) + 1);
#else
        while (!(rest >> 63)) rest <<= 1, rank++;
#endif
      if (rank > registers[hash >> (64 - bits)]) registers[hash >> (64 - bits)] = rank;
    }
  }
}

/* Each word and how often it comes, in the order of first sight; -1 as soon as there are more than `limit`. `slots` is
   a table of 2**bits places, all -1 at first, at least twice as many as `limit`. */
static int64_t poolish_tally(const void *values, int is_float, int64_t n, int64_t limit, int bits, int64_t *slots,
                             uint64_t *found, int64_t *counts) {
  int64_t i, n_found = 0, mask = ((int64_t)1 << bits) - 1;
  uint64_t word;
  for (i = 0; i < n; i++) {
    int64_t place, slot;
    if (!poolish_word(values, is_float, i, &word)) continue;
    place = (int64_t)(poolish_scatter(word) >> (64 - bits));
    while ((slot = slots[place]) >= 0 && found[slot] != word) place = (place + 1) & mask;
    if (slot < 0) {
      if (n_found == limit) return -1;
      slot = slots[place] = n_found++;
      found[slot] = word;
      counts[slot] = 0;
    }
    counts[slot]++;
  }
  return n_found;
}

/* Buckets of equal width, the outer ones open; what is not finite has none. Rounding keeps the order of values. */
static int64_t poolish_bucket(double x, double low, double scale, int64_t n_buckets) {
  double place = (x - low) * scale, last = (double)(n_buckets - 1);
  if (!isfinite(x)) return -1;
  place = place > 0 ? place : 0;
  return (int64_t)(place < last ? place : last);
}

static void poolish_fill(int kind, const void *values, int64_t n, double low, double scale, int64_t n_buckets,
                         int64_t *counts, double *members) {
  double room[POOLISH_BLOCK];
  int64_t first, bucket;
  int i;
  for (first = 0; first < n; first += POOLISH_BLOCK) {
    int size = (int)(n - first < POOLISH_BLOCK ? n - first : POOLISH_BLOCK);
    const double *x = poolish_doubles(kind, values, first, size, room);
    for (i = 0; i < size; i++)
      if ((bucket = poolish_bucket(x[i], low, scale, n_buckets)) >= 0) counts[bucket]++, members[bucket] = x[i];
  }
}

/* The values of marked buckets, as many as there is room for; how many there are. */
static int64_t poolish_pick(int kind, const void *values, int64_t n, double low, double scale, int64_t n_buckets,
                            const uint8_t *marks, double *out, int64_t n_out) {
  double room[POOLISH_BLOCK];
  int64_t first, bucket, found = 0;
  int i;
  for (first = 0; first < n; first += POOLISH_BLOCK) {
    int size = (int)(n - first < POOLISH_BLOCK ? n - first : POOLISH_BLOCK);
    const double *x = poolish_doubles(kind, values, first, size, room);
    for (i = 0; i < size; i++)
      if ((bucket = poolish_bucket(x[i], low, scale, n_buckets)) >= 0 && marks[bucket]) {
        if (found < n_out) out[found] = x[i];
        found++;
      }
  }
  return found;
}
