/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention in tiles of query rows and key rows; meaning in core/ops/attention.c, over a cache in
 * attention_cached.c. Probabilities and gradients of scores meet the other operands in the storage dtype (in
 * the forward with what it leaves of them as a second product), sums are f32. Tiles never cross the start of
 * a sequence, so that a sequence's results do not depend on what stands beside it, and short ones cost what
 * they must.
 *
 * A task owns what it writes. Forward: a tile of query rows and a head. Backward: a sequence of up to WHOLE
 * rows and a key/value head. A longer sequence is cut, for the sake of threads and memory: a block of its key
 * rows and a key/value head (dk, dv), and once more a block of query rows and a head (dq), which computes the
 * probabilities of each tile twice but needs neither atomics nor a buffer of partial sums. */
#include "backends/cpu/kernels/gemm.h"
#include "backends/cpu/kernels/panel.h"
#include "backends/cpu/kernels/soften.h"

enum { ROWS = 64, WHOLE = 512 }; /* rows of a tile, of queries and of keys; rows of a sequence in one task */

/* ---- Tasks
 * ------------------------------------------------------------------------------------------------------- */

/* Rows of one sequence: queries [q, q_end) against keys [k, k_end), as far as they see them. Without keys:
 * rows outside all sequences. */
typedef struct part {
  uint32_t q, q_end, k, k_end;
  bool whole; /* the whole sequence */
} part;

enum { CUT_QUERIES, CUT_KEYS };

/* Where block i of n blocks of about equal sizes begins. */
static size_t cut_at(size_t rows, size_t i, size_t n) {
  return rows * i / n;
}

/* Cuts sequences of more than `whole` rows into blocks of up to ROWS query rows (with the keys that they
 * see) or key rows (with the queries that see them). Returns the number of parts, at most `tokens`. */
static size_t cut(const int32_t *segments, size_t tokens, size_t whole, int kind, part *parts) {
  size_t count = 0;
  for (size_t first = 0, end; first < tokens; first = end) {
    for (end = first + 1; end < tokens && segments[end] == segments[first];) end++;
    const bool inside = segments[first] >= 0;
    const size_t rows = end - first, n = rows <= whole || !inside ? 1 : kedge__blocks(rows, ROWS);
    for (size_t i = 0; i < n; i++) {
      const uint32_t from = (uint32_t)(first + cut_at(rows, i, n)),
                     to = (uint32_t)(first + cut_at(rows, i + 1, n));
      part p = {from, to, (uint32_t)first, to, n == 1};
      if (kind == CUT_KEYS) p = (part){from, (uint32_t)end, from, to, n == 1};
      if (!inside) p.k = p.k_end = 0;
      parts[count++] = p;
    }
  }
  return count;
}

/* ---- Tiles
 * ------------------------------------------------------------------------------------------------------- */

/* A thread's tiles. */
typedef struct tiles {
  float *scores, *dscores, *sum_q, *sum_k, *sum_v, *max, *total;
  kedge_x *p, *ds;  /* scores and dscores in the storage dtype */
  uint32_t *panels; /* of the products */
} tiles;

/* Rows of sum_k and sum_v, which gradients have for a whole task. */
static size_t key_rows(size_t tokens) {
  return kedge__min(tokens, WHOLE);
}

static size_t tiles_floats(size_t keys, size_t dim_qk, size_t dim_v) {
  return kedge__pad(ROWS * dim_qk) + kedge__pad(keys * dim_qk) + kedge__pad(keys * dim_v) +
         4 * kedge__pad(ROWS * ROWS) + 2 * kedge__pad(ROWS) + KEDGE_A_WORDS + KEDGE_B_WORDS;
}

static size_t parts_floats(size_t tokens) {
  return kedge__pad(tokens * sizeof(part) / sizeof(float));
}

/* Behind the parts. */
static tiles tiles_of_thread(const kedge_call *call, size_t tokens, size_t keys, size_t dim_qk,
                             size_t dim_v) {
  float *s = (float *)call->scratch + parts_floats(tokens) +
             (size_t)omp_get_thread_num() * tiles_floats(keys, dim_qk, dim_v);
  tiles t;
  t.sum_q = kedge__take(&s, ROWS * dim_qk);
  t.sum_k = kedge__take(&s, keys * dim_qk);
  t.sum_v = kedge__take(&s, keys * dim_v);
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

/* How many of the n keys from row j on the query of row t sees. */
static uint32_t seen(size_t t, size_t j, size_t n) {
  return t < j ? 0 : (uint32_t)kedge__min(t + 1 - j, n);
}

/* Loops over a tile's row go over whole vectors, whatever part of the row counts. */
static uint32_t whole_vectors(size_t n) {
  return (uint32_t)((n + KEDGE_LANES - 1) / KEDGE_LANES * KEDGE_LANES);
}

/* As kedge__soften, of the first `seen` of a row's n scores; the others become 0. */
static float soften(float *row, size_t n, uint32_t seen, float scale, float *max, float *total) {
  const float shrink = kedge__soften(row, seen, scale, max, total);
  for (size_t j = seen; j < n; j++) row[j] = 0;
  return shrink;
}

/* ---- Forward
 * ----------------------------------------------------------------------------------------------------- */

static void outside(const kedge_call *call, size_t first, size_t end, size_t head) {
  KEDGE_CALL_ARGS(attention);
  for (size_t row = first * a->heads + head; row < end * a->heads; row += a->heads) {
    memset(KEDGE_OUT_X(0) + row * a->dim_v, 0, a->dim_v * sizeof(kedge_x));
    KEDGE_OUT_F(1)[row] = 0;
  }
}

static void forward_part(const kedge_call *call, const part *p, size_t head) {
  KEDGE_CALL_ARGS(attention);
  const size_t count = p->q_end - p->q, kv = head / (a->heads / a->kv_heads), dv = a->dim_v;
  if (p->k == p->k_end) {
    outside(call, p->q, p->q_end, head);
    return;
  }
  const tiles s = tiles_of_thread(call, a->tokens, ROWS, a->dim_qk, dv);
  const rows q = rows_at(call, 0, p->q, head * a->dim_qk);
  for (size_t r = 0; r < count; r++) {
    s.max[r] = -INFINITY;
    s.total[r] = 0;
  }
  for (size_t j = p->k; j < p->k_end; j += ROWS) {
    const size_t n = kedge__min(ROWS, p->k_end - j);
    const bool more = j > p->k;
    multiply(&s, false, true, count, n, a->dim_qk, q, rows_at(call, 1, j, kv * a->dim_qk), false, s.scores,
             ROWS);
    for (size_t r = 0; r < count; r++) {
      const float shrink =
          soften(s.scores + r * ROWS, n, seen(p->q + r, j, n), a->scale, &s.max[r], &s.total[r]);
      if (!more || shrink == 1) continue;
      for (size_t d = 0; d < dv; d++) s.sum_v[r * dv + d] *= shrink;
    }
    const rows v = rows_at(call, 2, j, kv * dv);
    multiply(&s, false, false, count, dv, n, stored(s.scores, count, n, s.p), v, more, s.sum_v, dv);
    if (stored_rest(s.scores, count, n, &s))
      multiply(&s, false, false, count, dv, n, (rows){s.ds, ROWS}, v, true, s.sum_v, dv);
  }
  for (size_t r = 0; r < count; r++) {
    const size_t row = (p->q + r) * a->heads + head;
    float factor = 1 / s.total[r], *sum = s.sum_v + r * dv;
    for (size_t d = 0; d < dv; d++) sum[d] *= factor;
    kedge__narrow(KEDGE_OUT_X(0) + row * dv, sum, dv);
    KEDGE_OUT_F(1)[row] = s.max[r] + logf(s.total[r]);
  }
}

KEDGE_SCRATCH(attention) {
  KEDGE_CALL_ARGS(attention);
  return (parts_floats(a->tokens) + call->threads * tiles_floats(ROWS, a->dim_qk, a->dim_v)) * sizeof(float);
}

KEDGE_KERNEL(attention) {
  KEDGE_CALL_ARGS(attention);
  part *parts = call->scratch;
  const size_t count = cut(KEDGE_IN_I(3), a->tokens, ROWS, CUT_QUERIES, parts) * a->heads;
  KEDGE_PARALLEL_FOR
  for (size_t i = 0; i < count; i++) forward_part(call, &parts[i / a->heads], i % a->heads);
}

/* ---- Backward
 * ---------------------------------------------------------------------------------------------------- */

/* The query side of a backward tile: rows [first, first + count) of one head. */
typedef struct query_tile {
  size_t first, count, head;
  rows q, dy;
  const float *delta; /* sum of dy o, a row */
} query_tile;

static query_tile load_queries(const kedge_call *call, const tiles *s, size_t first, size_t end,
                               size_t head) {
  KEDGE_CALL_ARGS(attention_grad);
  const size_t dv = a->dim_v;
  query_tile t = {first,
                  end - first,
                  head,
                  rows_at(call, 0, first, head * a->dim_qk),
                  rows_at(call, 5, first, head * dv),
                  s->total};
  for (size_t r = 0; r < t.count; r++) {
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
  const uint32_t width = whole_vectors(n);
  const float scale = a->scale;
  multiply(s, false, true, t->count, n, a->dim_qk, t->q, k, false, s->scores, ROWS);
  multiply(s, false, true, t->count, n, a->dim_v, t->dy, v, false, s->dscores, ROWS);
  for (size_t r = 0; r < t->count; r++) {
    float *p = s->scores + r * ROWS, *ds = s->dscores + r * ROWS;
    const float lse = KEDGE_IN_F(4)[(t->first + r) * a->heads + t->head], delta = t->delta[r];
    const uint32_t in = seen(t->first + r, j, n);
#pragma omp simd
    for (uint32_t i = 0; i < width; i++) {
      const float e = kedge__vexp(i < in ? scale * p[i] - lse : 0);
      p[i] = i < in ? e : 0;
      ds[i] = i < in ? e * (ds[i] - delta) * scale : 0;
    }
  }
}

/* What a backward task writes. */
enum { WRITE_QUERIES = 1, WRITE_KEYS = 2 };

/* A part's tiles of one head: adds to sum_k and sum_v, writes dq. */
static void gradient_head(const kedge_call *call, const part *p, const tiles *s, size_t head, int writes) {
  KEDGE_CALL_ARGS(attention_grad);
  const size_t dqk = a->dim_qk, dv = a->dim_v, kv = head / (a->heads / a->kv_heads), rows_q = p->q_end - p->q,
               blocks = kedge__blocks(rows_q, ROWS);
  for (size_t i = 0; i < blocks; i++) {
    const query_tile t =
        load_queries(call, s, p->q + cut_at(rows_q, i, blocks), p->q + cut_at(rows_q, i + 1, blocks), head);
    const size_t end = kedge__min(p->k_end, t.first + t.count);
    for (size_t j = p->k; j < end; j += ROWS) {
      const size_t n = kedge__min(ROWS, end - j), m = t.count;
      const rows k = rows_at(call, 1, j, kv * dqk);
      backward_tile(call, s, &t, k, rows_at(call, 2, j, kv * dv), j, n);
      const rows ds = stored(s->dscores, m, n, s->ds);
      if (writes & WRITE_KEYS) {
        multiply(s, true, false, n, dv, m, stored(s->scores, m, n, s->p), t.dy, true,
                 s->sum_v + (j - p->k) * dv, dv);
        multiply(s, true, false, n, dqk, m, ds, t.q, true, s->sum_k + (j - p->k) * dqk, dqk);
      }
      if (writes & WRITE_QUERIES) multiply(s, false, false, m, dqk, n, ds, k, j > p->k, s->sum_q, dqk);
    }
    for (size_t r = 0; writes & WRITE_QUERIES && r < t.count; r++)
      kedge__narrow(KEDGE_OUT_X(0) + ((t.first + r) * a->heads + head) * dqk, s->sum_q + r * dqk, dqk);
  }
}

/* Columns of a head [first, first + cols) of rows become zeros. */
static void clear(kedge_x *y, size_t row, size_t end, size_t pitch, size_t first, size_t cols) {
  for (; row < end; row++) memset(y + row * pitch + first, 0, cols * sizeof *y);
}

/* A part's gradients for one key/value head and its query heads. */
static void gradient_keys(const kedge_call *call, const part *p, size_t kv) {
  KEDGE_CALL_ARGS(attention_grad);
  const size_t group = a->heads / a->kv_heads, dqk = a->dim_qk, dv = a->dim_v;
  if (p->k == p->k_end) {
    clear(KEDGE_OUT_X(0), p->q, p->q_end, a->heads * dqk, kv * group * dqk, group * dqk);
    clear(KEDGE_OUT_X(1), p->q, p->q_end, a->kv_heads * dqk, kv * dqk, dqk);
    clear(KEDGE_OUT_X(2), p->q, p->q_end, a->kv_heads * dv, kv * dv, dv);
    return;
  }
  const tiles s = tiles_of_thread(call, a->tokens, key_rows(a->tokens), dqk, dv);
  const size_t keys = p->k_end - p->k;
  memset(s.sum_k, 0, keys * dqk * sizeof(float));
  memset(s.sum_v, 0, keys * dv * sizeof(float));
  for (size_t head = kv * group; head < (kv + 1) * group; head++)
    gradient_head(call, p, &s, head, WRITE_KEYS | (p->whole ? WRITE_QUERIES : 0));
  for (size_t r = 0; r < keys; r++) {
    kedge__narrow(KEDGE_OUT_X(1) + ((p->k + r) * a->kv_heads + kv) * dqk, s.sum_k + r * dqk, dqk);
    kedge__narrow(KEDGE_OUT_X(2) + ((p->k + r) * a->kv_heads + kv) * dv, s.sum_v + r * dv, dv);
  }
}

static void gradient_queries(const kedge_call *call, const part *p, size_t head) {
  KEDGE_CALL_ARGS(attention_grad);
  if (p->whole) return; /* has been written with the keys */
  const tiles s = tiles_of_thread(call, a->tokens, key_rows(a->tokens), a->dim_qk, a->dim_v);
  gradient_head(call, p, &s, head, WRITE_QUERIES);
}

KEDGE_SCRATCH(attention_grad) {
  KEDGE_CALL_ARGS(attention_grad);
  const size_t thread = tiles_floats(key_rows(a->tokens), a->dim_qk, a->dim_v);
  return (parts_floats(a->tokens) + call->threads * thread) * sizeof(float);
}

KEDGE_KERNEL(attention_grad) {
  KEDGE_CALL_ARGS(attention_grad);
  const int32_t *segments = KEDGE_IN_I(6);
  part *parts = call->scratch;
  size_t count = cut(segments, a->tokens, WHOLE, CUT_KEYS, parts) * a->kv_heads;
  KEDGE_PARALLEL_FOR
  for (size_t i = 0; i < count; i++) gradient_keys(call, &parts[i / a->kv_heads], i % a->kv_heads);
  count = cut(segments, a->tokens, WHOLE, CUT_QUERIES, parts) * a->heads;
  KEDGE_PARALLEL_FOR
  for (size_t i = 0; i < count; i++) gradient_queries(call, &parts[i / a->heads], i % a->heads);
}
