/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over a cache; meaning in core/ops/attention.c, attention within a batch in attention.c. A row's
 * bits depend on its own query and on the rows of its cache alone: they are the same whether it stands in a
 * prompt, with other queries of its sequence, or is decoded alone, and so are verdicts of either. A task is a
 * few query rows and a head; queries that follow each other on the same range of the cache share its tiles.
 */
#include "backends/cpu/kernels/lanes.h"
#include "backends/cpu/kernels/panel.h"
#include "backends/cpu/kernels/soften.h"

/* Vectors of eight: heads are often no multiple of more, and their sums are cheaper. */
enum { LANES = 8, QUERIES = 16, KEYS = 64 }; /* queries of a task, keys of a tile */

typedef kedge_eight vector;
typedef float stored __attribute__((vector_size(LANES * 4), aligned(4), may_alias)); /* in memory */

/* Rows of floats that can be read in whole vectors. */
typedef struct tile {
  const float *data;
  size_t pitch, count;
} tile;

/* The rows as they lie where that will do, else copied, with zeros up to a whole vector. */
static tile load_rows(const kedge_x *from, size_t pitch, size_t count, size_t width, float *room) {
#if defined(KEDGE_STORAGE_F32)
  if (width % LANES == 0) return (tile){from, pitch, count};
#endif
  const size_t padded = kedge__pad(width);
  for (size_t j = 0; j < count; j++) {
    float *to = room + j * padded;
    kedge__widen(to, from + j * pitch, width);
    for (size_t d = width; d < padded; d++) to[d] = 0;
  }
  return (tile){room, padded, count};
}

/* ---- Sums of vectors
 * -------------------------------------------------------------------------------------------------- */

#define UNROLL_LANES KEDGE_PRAGMA_(GCC unroll 8)

/* Products of a query with LANES keys, `pitch` apart. */
static inline void score_some(const float *q, size_t width, const float *k, size_t pitch, float *scores) {
  vector sums[LANES];
  UNROLL_LANES
  for (size_t i = 0; i < LANES; i++) sums[i] = *(const stored *)q * *(const stored *)(k + i * pitch);
  for (size_t d = LANES; d < width; d += LANES) {
    const vector x = *(const stored *)(q + d);
    UNROLL_LANES
    for (size_t i = 0; i < LANES; i++) sums[i] += x * *(const stored *)(k + i * pitch + d);
  }
  kedge__sum_eight(sums, scores);
}

/* The same for the last rows of a tile, fewer than LANES: the last one stands for those behind it, whose
 * results nobody uses. */
static void score_rest(const float *q, size_t width, const tile *k, size_t j, float *scores) {
  vector sums[LANES];
  for (size_t i = 0; i < LANES; i++) {
    const float *row = k->data + kedge__min(j + i, k->count - 1) * k->pitch;
    vector sum = *(const stored *)q * *(const stored *)row;
    for (size_t d = LANES; d < width; d += LANES)
      sum += *(const stored *)(q + d) * *(const stored *)(row + d);
    sums[i] = sum;
  }
  kedge__sum_eight(sums, scores);
}

/* Products of a query with the keys of a tile, into scores [a whole number of LANES]. */
static void score(const float *q, size_t width, const tile *k, float *scores) {
  size_t j = 0;
  for (; j + LANES <= k->count; j += LANES)
    score_some(q, width, k->data + j * k->pitch, k->pitch, scores + j);
  if (j < k->count) score_rest(q, width, k, j, scores + j);
}

/* sum += sum_j p[j] v[j] for `vectors` vectors of a row, at most 4; even and odd rows make sums of their own.
 */
static inline __attribute__((always_inline)) void add_some(const float *p, const float *row, size_t pitch,
                                                           size_t count, const size_t vectors, float *sum) {
  vector even[4], odd[4] = {0};
  size_t j = 0;
  for (size_t i = 0; i < vectors; i++) even[i] = *(const stored *)(sum + i * LANES);
  for (; j + 2 <= count; j += 2, row += 2 * pitch)
    for (size_t i = 0; i < vectors; i++) {
      even[i] += p[j] * *(const stored *)(row + i * LANES);
      odd[i] += p[j + 1] * *(const stored *)(row + pitch + i * LANES);
    }
  for (size_t i = 0; j < count && i < vectors; i++) even[i] += p[j] * *(const stored *)(row + i * LANES);
  for (size_t i = 0; i < vectors; i++) *(stored *)(sum + i * LANES) = even[i] + odd[i];
}

static void add_values(const float *p, const tile *v, size_t width, float *sum) {
  size_t d = 0;
  for (; d + 4 * LANES <= width; d += 4 * LANES) add_some(p, v->data + d, v->pitch, v->count, 4, sum + d);
  const size_t left = kedge__blocks(width - d, LANES);
  if (left == 1) add_some(p, v->data + d, v->pitch, v->count, 1, sum + d);
  if (left == 2) add_some(p, v->data + d, v->pitch, v->count, 2, sum + d);
  if (left == 3) add_some(p, v->data + d, v->pitch, v->count, 3, sum + d);
  if (left == 4) add_some(p, v->data + d, v->pitch, v->count, 4, sum + d);
}

/* ---- Queries
 * ----------------------------------------------------------------------------------------------------------
 */

/* A thread's rows: queries, sums of values, copied keys and values. */
typedef struct room {
  float *q, *sum, *k, *v;
} room;

static size_t room_floats(size_t dim_qk, size_t dim_v) {
  return (QUERIES + KEYS) * (kedge__pad(dim_qk) + kedge__pad(dim_v));
}

static room room_of_thread(const kedge_call *call, size_t dim_qk, size_t dim_v) {
  float *s = (float *)call->scratch + (size_t)omp_get_thread_num() * room_floats(dim_qk, dim_v);
  room r;
  r.q = kedge__take(&s, QUERIES * kedge__pad(dim_qk));
  r.sum = kedge__take(&s, QUERIES * kedge__pad(dim_v));
  r.k = kedge__take(&s, KEYS * kedge__pad(dim_qk));
  r.v = kedge__take(&s, KEYS * kedge__pad(dim_v));
  return r;
}

/* Queries [first, end) of a head, all on the cache from the row `base` on. */
static void attend(const kedge_call *call, size_t first, size_t end, size_t head) {
  KEDGE_CALL_ARGS(attention_cached);
  const size_t kv = head / (a->heads / a->kv_heads), dqk = a->dim_qk, dv = a->dim_v, queries = end - first;
  const size_t q_pitch = kedge__pad(dqk), v_pitch = kedge__pad(dv), base = (size_t)KEDGE_IN_I(3)[first];
  const int32_t *length = KEDGE_IN_I(4) + first;
  const room r = room_of_thread(call, dqk, dv);
  float max[QUERIES], total[QUERIES] = {0}, row[KEYS];
  size_t most = 0;
  memset(r.sum, 0, queries * v_pitch * sizeof *r.sum);
  for (size_t i = 0; i < queries; i++) {
    kedge__widen(r.q + i * q_pitch, KEDGE_IN_X(0) + (first + i) * call->in[0].pitch + head * dqk, dqk);
    for (size_t d = dqk; d < q_pitch; d++) r.q[i * q_pitch + d] = 0;
    max[i] = -INFINITY;
    if ((size_t)length[i] > most) most = (size_t)length[i];
  }
  assert(base + most <= a->capacity);
  for (size_t j = 0; j < most; j += KEYS) {
    const size_t count = kedge__min(KEYS, most - j);
    const tile k =
        load_rows(KEDGE_IN_X(1) + ((base + j) * a->kv_heads + kv) * dqk, a->kv_heads * dqk, count, dqk, r.k);
    const tile v =
        load_rows(KEDGE_IN_X(2) + ((base + j) * a->kv_heads + kv) * dv, a->kv_heads * dv, count, dv, r.v);
    for (size_t i = 0; i < queries; i++) {
      if ((size_t)length[i] <= j) continue;
      const size_t seen = kedge__min(count, (size_t)length[i] - j);
      const tile keys = {k.data, k.pitch, seen}, values = {v.data, v.pitch, seen};
      float *sum = r.sum + i * v_pitch;
      score(r.q + i * q_pitch, dqk, &keys, row);
      const float shrink = kedge__soften(row, seen, a->scale, &max[i], &total[i]);
      for (size_t d = 0; d < v_pitch; d++) sum[d] *= shrink;
      add_values(row, &values, dv, sum);
    }
  }
  for (size_t i = 0; i < queries; i++) {
    const float factor = length[i] > 0 ? 1 / total[i] : 0;
    kedge_x *to = KEDGE_OUT_X(0) + ((first + i) * a->heads + head) * dv;
    for (size_t d = 0; d < dv; d++) to[d] = kedge_store(r.sum[i * v_pitch + d] * factor);
  }
}

KEDGE_SCRATCH(attention_cached) {
  KEDGE_CALL_ARGS(attention_cached);
  return (uint64_t)call->threads * room_floats(a->dim_qk, a->dim_v) * sizeof(float);
}

KEDGE_KERNEL(attention_cached) {
  KEDGE_CALL_ARGS(attention_cached);
  const int32_t *base = KEDGE_IN_I(3);
  const size_t count = kedge__blocks(a->queries, QUERIES) * a->heads;
  size_t pairs = 0;
  for (size_t i = 0; i < a->queries; i++) pairs += (size_t)KEDGE_IN_I(4)[i];
  KEDGE_PARALLEL_WORK(count, pairs * a->heads * (a->dim_qk + a->dim_v))
  for (size_t task = 0; task < count; task++) {
    const size_t first = task / a->heads * QUERIES, end = kedge__min(first + QUERIES, a->queries);
    for (size_t i = first, next; i < end; i = next) {
      for (next = i + 1; next < end && base[next] == base[i];) next++;
      attend(call, i, next, task % a->heads);
    }
  }
}
