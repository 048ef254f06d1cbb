/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention in tiles of query rows and key rows; meaning in core/ops/attention.c, over a cache in
 * attention_cached.c.
 * Probabilities and gradients of scores meet the other operands in the storage dtype (in the forward with
 * what it leaves of them as a second product), sums are f32. A task owns what it writes: a block of query
 * rows and a head (o, lse, dq), or a block of key rows and a key/value head (dk, dv). The backward computes
 * each tile's probabilities twice, once for either owner, and so needs neither atomics nor a buffer of
 * partial sums. */
#include "backends/cpu/kernels/gemm.h"
#include "backends/cpu/kernels/panel.h"
#include "backends/cpu/kernels/vexp.h"

enum { ROWS = 64 }; /* rows of a tile, of queries and of keys */

/* A thread's tiles. */
typedef struct tiles {
  float *scores, *dscores, *sum_q, *sum_k, *sum_v, *max, *total;
  kedge_x *p, *ds;  /* scores and dscores in the storage dtype */
  uint32_t *panels; /* of the products */
} tiles;

static size_t tiles_floats(size_t dim_qk, size_t dim_v) {
  return 2 * kedge__pad(ROWS * dim_qk) + kedge__pad(ROWS * dim_v) + 4 * kedge__pad(ROWS * ROWS) +
         2 * kedge__pad(ROWS) + KEDGE_A_WORDS + KEDGE_B_WORDS;
}

static tiles tiles_of_thread(const kedge_call *call, size_t dim_qk, size_t dim_v) {
  float *s = (float *)call->scratch + (size_t)omp_get_thread_num() * tiles_floats(dim_qk, dim_v);
  tiles t;
  t.sum_q = kedge__take(&s, ROWS * dim_qk);
  t.sum_k = kedge__take(&s, ROWS * dim_qk);
  t.sum_v = kedge__take(&s, ROWS * dim_v);
  t.scores = kedge__take(&s, ROWS * ROWS);
  t.dscores = kedge__take(&s, ROWS * ROWS);
  t.p = (kedge_x *)(void *)kedge__take(&s, ROWS * ROWS);
  t.ds = (kedge_x *)(void *)kedge__take(&s, ROWS * ROWS);
  t.max = kedge__take(&s, ROWS);
  t.total = kedge__take(&s, ROWS);
  t.panels = (uint32_t *)(void *)s;
  return t;
}

/* Rows of a tensor, `pitch` apart. */
typedef struct rows {
  const kedge_x *data;
  size_t pitch;
} rows;

static rows rows_at(const kedge_call *call, int slot, size_t row, size_t col) {
  const size_t pitch = call->in[slot].pitch;
  return (rows){KEDGE_IN_X(slot) + row * pitch + col, pitch};
}

/* C [m,n] = op(A) op(B), or with `add` added to C; m <= ROWS. */
static void multiply(const tiles *t, bool trans_a, bool trans_b, size_t m, size_t n, size_t k, rows a, rows b,
                     bool add, float *c, size_t pitch) {
  const kedge_product p = {{a.data, a.pitch, NULL, 1}, {b.data, b.pitch, NULL, 1}, trans_a, trans_b, k};
  for (size_t j = 0; j < n; j += KEDGE_NC) {
    const kedge_target target = {c + j, NULL, pitch, 0};
    kedge__gemm_block(&p, 0, m, j, kedge__min(KEDGE_NC, n - j), &target, add, t->panels);
  }
}

/* A tile of scores [m,n] in the storage dtype. */
static rows stored(const float *tile, size_t m, size_t n, kedge_x *room) {
#if defined(KEDGE_STORAGE_BF16)
  for (size_t r = 0; r < m; r++) kedge__narrow(room + r * ROWS, tile + r * ROWS, n);
  return (rows){room, ROWS};
#else
  (void)m, (void)n, (void)room;
  return (rows){tile, ROWS};
#endif
}

/* What the storage dtype left of a tile of probabilities: without this part the choice of an expert further
 * up would hang on how finely attention rounds. Nothing in f32. */
static bool stored_rest(float *tile, size_t m, size_t n, const tiles *t) {
#if defined(KEDGE_STORAGE_BF16)
  for (size_t r = 0; r < m; r++) {
    const kedge_x *p = t->p + r * ROWS;
#pragma omp simd
    for (size_t j = 0; j < n; j++) tile[r * ROWS + j] -= kedge_load(p[j]);
    kedge__narrow(t->ds + r * ROWS, tile + r * ROWS, n);
  }
  return true;
#else
  (void)tile, (void)m, (void)n, (void)t;
  return false;
#endif
}

/* A tile's key rows, and for each query row t the part [low, high) of them that it sees. */
typedef struct range {
  size_t low, high;
} range;

static range seen(const int32_t *segments, size_t t, size_t first, size_t count) {
  if (segments[t] < 0) return (range){0, 0};
  size_t start = (size_t)segments[t] > first ? (size_t)segments[t] - first : 0;
  size_t end = t < first ? 0 : kedge__min(t + 1 - first, count);
  return start < end ? (range){start, end} : (range){0, 0};
}

/* Key rows that any of the query rows [first, first + count) sees; empty if all are outside sequences. */
static range keys_of(const int32_t *segments, size_t first, size_t count) {
  range all = {SIZE_MAX, 0};
  for (size_t t = first; t < first + count; t++) {
    if (segments[t] < 0) continue;
    all.low = kedge__min(all.low, (size_t)segments[t]);
    all.high = t + 1;
  }
  return all.high ? all : (range){0, 0};
}

/* Turns a row of raw scores into probabilities relative to the largest so far; zero outside the range.
 * Returns by how much what was summed before shrinks. */
static float soften(float *row, size_t count, range r, float scale, float *max, float *total) {
  if (r.low == r.high) {
    memset(row, 0, count * sizeof *row);
    return 1;
  }
  float top = *max, sum = 0;
#pragma omp simd reduction(max : top)
  for (size_t j = r.low; j < r.high; j++) {
    row[j] *= scale;
    top = row[j] > top ? row[j] : top;
  }
#pragma omp simd reduction(+ : sum)
  for (size_t j = r.low; j < r.high; j++) {
    row[j] = kedge__vexp(row[j] - top);
    sum += row[j];
  }
  for (size_t j = 0; j < r.low; j++) row[j] = 0;
  for (size_t j = r.high; j < count; j++) row[j] = 0;
  float shrink = kedge__vexp(*max - top);
  *total = *total * shrink + sum;
  *max = top;
  return shrink;
}

static void forward_block(const kedge_call *call, size_t first, size_t head) {
  KEDGE_CALL_ARGS(attention);
  const int32_t *segments = KEDGE_IN_I(3);
  size_t count = kedge__min(ROWS, a->tokens - first), kv = head / (a->heads / a->kv_heads), dv = a->dim_v;
  tiles s = tiles_of_thread(call, a->dim_qk, dv);
  const rows q = rows_at(call, 0, first, head * a->dim_qk);
  memset(s.sum_v, 0, count * dv * sizeof(float));
  for (size_t r = 0; r < count; r++) {
    s.max[r] = -INFINITY;
    s.total[r] = 0;
  }
  range all = keys_of(segments, first, count);
  for (size_t j = all.low; j < all.high; j += ROWS) {
    size_t n = kedge__min(ROWS, all.high - j);
    multiply(&s, false, true, count, n, a->dim_qk, q, rows_at(call, 1, j, kv * a->dim_qk), false, s.scores,
             ROWS);
    for (size_t r = 0; r < count; r++) {
      float shrink =
          soften(s.scores + r * ROWS, n, seen(segments, first + r, j, n), a->scale, &s.max[r], &s.total[r]);
      if (shrink == 1) continue;
      for (size_t d = 0; d < dv; d++) s.sum_v[r * dv + d] *= shrink;
    }
    const rows v = rows_at(call, 2, j, kv * dv);
    multiply(&s, false, false, count, dv, n, stored(s.scores, count, n, s.p), v, true, s.sum_v, dv);
    if (stored_rest(s.scores, count, n, &s))
      multiply(&s, false, false, count, dv, n, (rows){s.ds, ROWS}, v, true, s.sum_v, dv);
  }
  for (size_t r = 0; r < count; r++) {
    size_t row = (first + r) * a->heads + head;
    bool inside = segments[first + r] >= 0;
    float factor = inside ? 1 / s.total[r] : 0, *sum = s.sum_v + r * dv;
    for (size_t d = 0; d < dv; d++) sum[d] *= factor;
    kedge__narrow(KEDGE_OUT_X(0) + row * dv, sum, dv);
    KEDGE_OUT_F(1)[row] = inside ? s.max[r] + logf(s.total[r]) : 0;
  }
}

KEDGE_SCRATCH(attention) {
  KEDGE_CALL_ARGS(attention);
  return (uint64_t)call->threads * tiles_floats(a->dim_qk, a->dim_v) * sizeof(float);
}

KEDGE_KERNEL(attention) {
  KEDGE_CALL_ARGS(attention);
  size_t count = kedge__blocks(a->tokens, ROWS) * a->heads;
  KEDGE_PARALLEL_FOR
  for (size_t i = 0; i < count; i++) forward_block(call, i / a->heads * ROWS, i % a->heads);
}

/* The query side of a backward tile: rows [first, first + count) of one head. */
typedef struct query_tile {
  size_t first, count, head;
  rows q, dy;
  const float *delta; /* sum of dy o, a row */
} query_tile;

static query_tile load_queries(const kedge_call *call, const tiles *s, size_t first, size_t count,
                               size_t head) {
  KEDGE_CALL_ARGS(attention_grad);
  const size_t dv = a->dim_v;
  query_tile t = {
      first,   count, head, rows_at(call, 0, first, head * a->dim_qk), rows_at(call, 5, first, head * dv),
      s->total};
  for (size_t r = 0; r < count; r++) {
    const kedge_x *o = KEDGE_IN_X(3) + ((first + r) * a->heads + head) * dv, *dy = t.dy.data + r * t.dy.pitch;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t d = 0; d < dv; d++) sum += kedge_load(dy[d]) * kedge_load(o[d]);
    s->total[r] = sum;
  }
  return t;
}

/* Probabilities and gradients of the scores of a query tile against `n` keys from `j`: into scores, dscores.
 */
static void backward_tile(const kedge_call *call, const tiles *s, const query_tile *t, rows k, rows v,
                          size_t j, size_t n) {
  KEDGE_CALL_ARGS(attention_grad);
  const int32_t *segments = KEDGE_IN_I(6);
  multiply(s, false, true, t->count, n, a->dim_qk, t->q, k, false, s->scores, ROWS);
  multiply(s, false, true, t->count, n, a->dim_v, t->dy, v, false, s->dscores, ROWS);
  for (size_t r = 0; r < t->count; r++) {
    float *p = s->scores + r * ROWS, *ds = s->dscores + r * ROWS;
    float lse = KEDGE_IN_F(4)[(t->first + r) * a->heads + t->head], delta = t->delta[r], scale = a->scale;
    range in = seen(segments, t->first + r, j, n);
#pragma omp simd
    for (size_t i = in.low; i < in.high; i++) {
      p[i] = kedge__vexp(scale * p[i] - lse);
      ds[i] = p[i] * (ds[i] - delta) * scale;
    }
    for (size_t i = 0; i < in.low; i++) p[i] = ds[i] = 0;
    for (size_t i = in.high; i < n; i++) p[i] = ds[i] = 0;
  }
}

static void query_gradient(const kedge_call *call, size_t first, size_t head) {
  KEDGE_CALL_ARGS(attention_grad);
  size_t count = kedge__min(ROWS, a->tokens - first), kv = head / (a->heads / a->kv_heads), dqk = a->dim_qk;
  tiles s = tiles_of_thread(call, dqk, a->dim_v);
  query_tile t = load_queries(call, &s, first, count, head);
  memset(s.sum_q, 0, count * dqk * sizeof(float));
  range all = keys_of(KEDGE_IN_I(6), first, count);
  for (size_t j = all.low; j < all.high; j += ROWS) {
    size_t n = kedge__min(ROWS, all.high - j);
    const rows k = rows_at(call, 1, j, kv * dqk);
    backward_tile(call, &s, &t, k, rows_at(call, 2, j, kv * a->dim_v), j, n);
    multiply(&s, false, false, count, dqk, n, stored(s.dscores, count, n, s.ds), k, true, s.sum_q, dqk);
  }
  for (size_t r = 0; r < count; r++)
    kedge__narrow(KEDGE_OUT_X(0) + ((first + r) * a->heads + head) * dqk, s.sum_q + r * dqk, dqk);
}

static void key_gradient(const kedge_call *call, size_t first, size_t kv) {
  KEDGE_CALL_ARGS(attention_grad);
  const int32_t *segments = KEDGE_IN_I(6);
  size_t count = kedge__min(ROWS, a->tokens - first), group = a->heads / a->kv_heads, dqk = a->dim_qk,
         dv = a->dim_v;
  tiles s = tiles_of_thread(call, dqk, dv);
  const rows k = rows_at(call, 1, first, kv * dqk), v = rows_at(call, 2, first, kv * dv);
  memset(s.sum_k, 0, count * dqk * sizeof(float));
  memset(s.sum_v, 0, count * dv * sizeof(float));
  /* Queries that see these keys: up to the end of the sequence that the last of them is in. */
  size_t end = first + count;
  while (end < a->tokens && segments[end] >= 0 && (size_t)segments[end] < first + count) end++;
  for (size_t head = kv * group; head < (kv + 1) * group; head++)
    for (size_t i = first; i < end; i += ROWS) {
      query_tile t = load_queries(call, &s, i, kedge__min(ROWS, end - i), head);
      backward_tile(call, &s, &t, k, v, first, count);
      multiply(&s, true, false, count, dv, t.count, stored(s.scores, t.count, count, s.p), t.dy, true,
               s.sum_v, dv);
      multiply(&s, true, false, count, dqk, t.count, stored(s.dscores, t.count, count, s.ds), t.q, true,
               s.sum_k, dqk);
    }
  for (size_t r = 0; r < count; r++) {
    kedge__narrow(KEDGE_OUT_X(1) + ((first + r) * a->kv_heads + kv) * dqk, s.sum_k + r * dqk, dqk);
    kedge__narrow(KEDGE_OUT_X(2) + ((first + r) * a->kv_heads + kv) * dv, s.sum_v + r * dv, dv);
  }
}

KEDGE_SCRATCH(attention_grad) {
  KEDGE_CALL_ARGS(attention_grad);
  return (uint64_t)call->threads * tiles_floats(a->dim_qk, a->dim_v) * sizeof(float);
}

KEDGE_KERNEL(attention_grad) {
  KEDGE_CALL_ARGS(attention_grad);
  size_t blocks = kedge__blocks(a->tokens, ROWS);
  KEDGE_PARALLEL_FOR
  for (size_t i = 0; i < blocks * a->kv_heads; i++)
    key_gradient(call, i / a->kv_heads * ROWS, i % a->kv_heads);
  KEDGE_PARALLEL_FOR
  for (size_t i = 0; i < blocks * a->heads; i++) query_gradient(call, i / a->heads * ROWS, i % a->heads);
}
