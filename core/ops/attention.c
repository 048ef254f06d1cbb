/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotary positions and attention: causal inside the sequences of a flat stream of tokens, and over a
 * key/value cache. Scores [T,T] never exist. Tuned twin: backends/cpu/kernels/attention.c. Positions come as
 * ids, so that packed and cached streams look alike here. */

#if defined(KEDGE_PART_RULES)
#include "core/op.h"

kedge_value kedge_rope(kedge_graph *g, kedge_value x, kedge_value inv_freq, kedge_value positions,
                       const kedge_rope_options *options) {
  kedge_args_rope args = {.heads = options->heads,
                          .interleaved = options->interleaved,
                          .inverse = options->inverse,
                          .factor = options->factor};
  return kedge__node(g, KEDGE_OP_rope, (kedge_value[]){x, inv_freq, positions}, &args, KEDGE_F32, NULL);
}

KEDGE_SHAPE(rope) {
  kedge_args_rope *a = rule->args;
  const kedge_shape *in = rule->in;
  KEDGE_TRY(kedge__want_rank(&in[0], 2, "rows to rotate"));
  a->tokens = in[0].dims[0];
  if (a->heads == 0 || in[0].dims[1] % a->heads || in[0].dims[1] / a->heads % 2)
    return kedge_fail(KEDGE_ERR_SHAPE,
                      "expected rows of heads with an even width, got %u columns and %u heads", in[0].dims[1],
                      a->heads);
  a->dim = in[0].dims[1] / a->heads;
  KEDGE_TRY(kedge__want_rank(&in[1], 1, "inverse frequencies"));
  KEDGE_TRY(kedge__want_dim(&in[1], 0, a->dim / 2, "inverse frequencies"));
  KEDGE_TRY(kedge__want_rank(&in[2], 1, "positions"));
  KEDGE_TRY(kedge__want_dim(&in[2], 0, a->tokens, "positions"));
  kedge__set_shape(&rule->out[0], 2, a->tokens, in[0].dims[1], 1);
  return KEDGE_OK;
}

/* A rotation's transpose is its inverse; the factor stays. */
KEDGE_GRADIENT(rope) {
  const kedge_args_rope *a = rule->args;
  if (rule->need[1]) {
    kedge__graph_fail(rule->graph, KEDGE_ERR_UNSUPPORTED, "rope: the inverse frequencies have no gradient");
    return;
  }
  kedge_rope_options options = {
      .heads = a->heads, .interleaved = a->interleaved != 0, .inverse = !a->inverse, .factor = a->factor};
  rule->din[0] = kedge_rope(rule->graph, rule->dout[0], rule->in[1], rule->in[2], &options);
}

/* Widths of q [.,H*dqk], k [.,Hkv*dqk], v [.,Hkv*dv]; k and v have as many rows. */
static kedge_status want_heads(const kedge_shape *in, uint32_t heads, uint32_t kv_heads, uint32_t *dim_qk,
                               uint32_t *dim_v) {
  KEDGE_TRY(kedge__want_rank(&in[0], 2, "queries"));
  KEDGE_TRY(kedge__want_rank(&in[1], 2, "keys"));
  KEDGE_TRY(kedge__want_rank(&in[2], 2, "values"));
  if (kv_heads == 0 || heads == 0 || heads % kv_heads)
    return kedge_fail(KEDGE_ERR_SHAPE, "expected heads to be a multiple of key/value heads, got %u and %u",
                      heads, kv_heads);
  if (in[0].dims[1] % heads)
    return kedge_fail(KEDGE_ERR_SHAPE, "expected queries of %u equal heads, got %u columns", heads,
                      in[0].dims[1]);
  if (in[2].dims[1] % kv_heads)
    return kedge_fail(KEDGE_ERR_SHAPE, "expected values of %u equal heads, got %u columns", kv_heads,
                      in[2].dims[1]);
  *dim_qk = in[0].dims[1] / heads;
  *dim_v = in[2].dims[1] / kv_heads;
  KEDGE_TRY(kedge__want_dim(&in[1], 1, kv_heads * *dim_qk, "width of the keys"));
  return kedge__want_dim(&in[2], 0, in[1].dims[0], "rows of the values");
}

kedge_value kedge_attention(kedge_graph *g, kedge_value q, kedge_value k, kedge_value v, kedge_value segments,
                            const kedge_attention_options *options, kedge_value *lse) {
  kedge_args_attention args = {
      .heads = options->heads, .kv_heads = options->kv_heads, .scale = options->scale};
  kedge_value outs[KEDGE_MAX_OUT] = {0};
  kedge_value o =
      kedge__node(g, KEDGE_OP_attention, (kedge_value[]){q, k, v, segments}, &args, KEDGE_F32, outs);
  if (lse) *lse = outs[1];
  return o;
}

KEDGE_SHAPE(attention) {
  kedge_args_attention *a = rule->args;
  const kedge_shape *in = rule->in;
  KEDGE_TRY(want_heads(in, a->heads, a->kv_heads, &a->dim_qk, &a->dim_v));
  a->tokens = in[0].dims[0];
  KEDGE_TRY(kedge__want_dim(&in[1], 0, a->tokens, "rows of the keys"));
  KEDGE_TRY(kedge__want_rank(&in[3], 1, "segments"));
  KEDGE_TRY(kedge__want_dim(&in[3], 0, a->tokens, "segments"));
  kedge__set_shape(&rule->out[0], 2, a->tokens, a->heads * a->dim_v, 1);
  kedge__set_shape(&rule->out[1], 2, a->tokens, a->heads, 1);
  return KEDGE_OK;
}

KEDGE_GRADIENT(attention) {
  const kedge_args_attention *a = rule->args;
  if (rule->dout[1] != KEDGE_NONE) {
    kedge__graph_fail(rule->graph, KEDGE_ERR_UNSUPPORTED,
                      "attention: the logsumexp has no gradient, only the output has");
    return;
  }
  kedge_args_attention_grad args = {.heads = a->heads, .kv_heads = a->kv_heads, .scale = a->scale};
  kedge_value outs[KEDGE_MAX_OUT] = {0};
  kedge__node(rule->graph, KEDGE_OP_attention_grad,
              (kedge_value[]){rule->in[0], rule->in[1], rule->in[2], rule->out[0], rule->out[1],
                              rule->dout[0], rule->in[3]},
              &args, KEDGE_F32, outs);
  for (uint32_t i = 0; i < 3; i++)
    if (rule->need[i]) rule->din[i] = outs[i];
}

KEDGE_SHAPE(attention_grad) {
  kedge_args_attention_grad *a = rule->args;
  const kedge_shape *in = rule->in;
  KEDGE_TRY(want_heads(in, a->heads, a->kv_heads, &a->dim_qk, &a->dim_v));
  a->tokens = in[0].dims[0];
  KEDGE_TRY(kedge__want_dim(&in[1], 0, a->tokens, "rows of the keys"));
  KEDGE_TRY(kedge__want_rank(&in[3], 2, "attention output"));
  KEDGE_TRY(kedge__want_dim(&in[3], 0, a->tokens, "rows of the attention output"));
  KEDGE_TRY(kedge__want_dim(&in[3], 1, a->heads * a->dim_v, "width of the attention output"));
  KEDGE_TRY(kedge__want_rank(&in[4], 2, "logsumexp"));
  KEDGE_TRY(kedge__want_dim(&in[4], 0, a->tokens, "rows of the logsumexp"));
  KEDGE_TRY(kedge__want_dim(&in[4], 1, a->heads, "heads of the logsumexp"));
  KEDGE_TRY(kedge__same_shape(&in[3], &in[5], "gradient of the attention output"));
  KEDGE_TRY(kedge__want_rank(&in[6], 1, "segments"));
  KEDGE_TRY(kedge__want_dim(&in[6], 0, a->tokens, "segments"));
  for (uint32_t i = 0; i < 3; i++) kedge__set_shape(&rule->out[i], 2, in[i].dims[0], in[i].dims[1], 1);
  return KEDGE_OK;
}
KEDGE_NO_GRADIENT(attention_grad)

kedge_value kedge_attention_cached(kedge_graph *g, kedge_value q, kedge_value k_cache, kedge_value v_cache,
                                   kedge_value base, kedge_value length,
                                   const kedge_attention_options *options) {
  kedge_args_attention_cached args = {
      .heads = options->heads, .kv_heads = options->kv_heads, .scale = options->scale};
  return kedge__node(g, KEDGE_OP_attention_cached, (kedge_value[]){q, k_cache, v_cache, base, length}, &args,
                     KEDGE_F32, NULL);
}

KEDGE_SHAPE(attention_cached) {
  kedge_args_attention_cached *a = rule->args;
  const kedge_shape *in = rule->in;
  KEDGE_TRY(want_heads(in, a->heads, a->kv_heads, &a->dim_qk, &a->dim_v));
  a->queries = in[0].dims[0];
  a->capacity = in[1].dims[0];
  KEDGE_TRY(kedge__want_rank(&in[3], 1, "first cache rows"));
  KEDGE_TRY(kedge__want_dim(&in[3], 0, a->queries, "first cache rows"));
  KEDGE_TRY(kedge__want_rank(&in[4], 1, "cache lengths"));
  KEDGE_TRY(kedge__want_dim(&in[4], 0, a->queries, "cache lengths"));
  kedge__set_shape(&rule->out[0], 2, a->queries, a->heads * a->dim_v, 1);
  return KEDGE_OK;
}
KEDGE_NO_GRADIENT(attention_cached)

#elif defined(KEDGE_PART_KERNELS)
#include "core/ops/kernel.h"

KEDGE_KERNEL(rope) {
  KEDGE_CALL_ARGS(rope);
  const kedge_real *inv_freq = KEDGE_IN_F(1);
  const int32_t *positions = KEDGE_IN_I(2);
  size_t half = a->dim / 2, step = a->interleaved ? 1 : half;
  for (size_t t = 0; t < a->tokens; t++)
    for (size_t i = 0; i < half; i++) {
      kedge_real angle = (kedge_real)positions[t] * inv_freq[i];
      kedge_real c = KEDGE_MATH(cos)(angle) * a->factor, s = KEDGE_MATH(sin)(angle) * a->factor;
      if (a->inverse) s = -s;
      for (size_t h = 0; h < a->heads; h++) {
        size_t at = h * a->dim + (a->interleaved ? 2 * i : i);
        const kedge_x *x = KEDGE_IN_X(0) + t * call->in[0].pitch + at;
        kedge_x *y = KEDGE_OUT_X(0) + t * a->heads * a->dim + at;
        kedge_real first = kedge_load(x[0]), second = kedge_load(x[step]);
        y[0] = kedge_store(first * c - second * s);
        y[step] = kedge_store(second * c + first * s);
      }
    }
}

enum { SPAN = 512 }; /* columns of an output row that are summed at a time */

static kedge_real dot(const kedge_x *a, const kedge_x *b, size_t n) {
  kedge_real sum = 0;
  for (size_t i = 0; i < n; i++) sum += kedge_load(a[i]) * kedge_load(b[i]);
  return sum;
}

/* o [dv] = softmax of scale q.k over rows [first, end) of keys and values; the result is the logsumexp. */
static kedge_real attend(const kedge_x *q, const kedge_x *keys, size_t key_pitch, const kedge_x *values,
                         size_t value_pitch, size_t first, size_t end, size_t dim_qk, size_t dim_v,
                         kedge_real scale, kedge_x *o) {
  kedge_real max = -INFINITY, sum = 0, part[SPAN];
  for (size_t j = first; j < end; j++) {
    kedge_real s = scale * dot(q, keys + j * key_pitch, dim_qk);
    if (s > max) {
      sum *= KEDGE_EXP(max - s);
      max = s;
    }
    sum += KEDGE_EXP(s - max);
  }
  for (size_t d0 = 0; d0 < dim_v; d0 += SPAN) {
    size_t n = dim_v - d0 < SPAN ? dim_v - d0 : SPAN;
    for (size_t d = 0; d < n; d++) part[d] = 0;
    for (size_t j = first; j < end; j++) {
      kedge_real p = KEDGE_EXP(scale * dot(q, keys + j * key_pitch, dim_qk) - max) / sum;
      for (size_t d = 0; d < n; d++) part[d] += p * kedge_load(values[j * value_pitch + d0 + d]);
    }
    for (size_t d = 0; d < n; d++) o[d0 + d] = kedge_store(part[d]);
  }
  return first < end ? max + KEDGE_LOG(sum) : 0;
}

KEDGE_KERNEL(attention) {
  KEDGE_CALL_ARGS(attention);
  const int32_t *segments = KEDGE_IN_I(3);
  size_t group = a->heads / a->kv_heads;
  for (size_t t = 0; t < a->tokens; t++) {
    assert(segments[t] <= (int32_t)t);
    size_t first = segments[t] < 0 ? t + 1 : (size_t)segments[t];
    for (size_t h = 0; h < a->heads; h++) KEDGE_OUT_F(1)
    [t * a->heads + h] =
        attend(KEDGE_IN_X(0) + t * call->in[0].pitch + h * a->dim_qk, KEDGE_IN_X(1) + h / group * a->dim_qk,
               call->in[1].pitch, KEDGE_IN_X(2) + h / group * a->dim_v, call->in[2].pitch, first, t + 1,
               a->dim_qk, a->dim_v, a->scale, KEDGE_OUT_X(0) + (t * a->heads + h) * a->dim_v);
  }
}

KEDGE_KERNEL(attention_cached) {
  KEDGE_CALL_ARGS(attention_cached);
  const int32_t *base = KEDGE_IN_I(3), *length = KEDGE_IN_I(4);
  size_t group = a->heads / a->kv_heads;
  for (size_t i = 0; i < a->queries; i++) {
    assert(base[i] >= 0 && length[i] >= 0 && (uint64_t)base[i] + (uint64_t)length[i] <= a->capacity);
    size_t first = (size_t)base[i], end = first + (size_t)length[i];
    for (size_t h = 0; h < a->heads; h++)
      attend(KEDGE_IN_X(0) + i * call->in[0].pitch + h * a->dim_qk, KEDGE_IN_X(1) + h / group * a->dim_qk,
             (size_t)a->kv_heads * a->dim_qk, KEDGE_IN_X(2) + h / group * a->dim_v,
             (size_t)a->kv_heads * a->dim_v, first, end, a->dim_qk, a->dim_v, a->scale,
             KEDGE_OUT_X(0) + (i * a->heads + h) * a->dim_v);
  }
}

/* One query head h of token t and one key row j of its sequence: the probability p, and the gradient of the
 * scaled score. */
typedef struct pair_gradient {
  kedge_real p, ds;
} pair_gradient;

static pair_gradient pair(const kedge_call *call, size_t t, size_t h, size_t j) {
  KEDGE_CALL_ARGS(attention_grad);
  size_t kv = h / (a->heads / a->kv_heads), row = t * a->heads + h;
  const kedge_x *q = KEDGE_IN_X(0) + t * call->in[0].pitch + h * a->dim_qk;
  const kedge_x *k = KEDGE_IN_X(1) + j * call->in[1].pitch + kv * a->dim_qk;
  const kedge_x *v = KEDGE_IN_X(2) + j * call->in[2].pitch + kv * a->dim_v;
  const kedge_x *o = KEDGE_IN_X(3) + row * a->dim_v;
  const kedge_x *dy = KEDGE_IN_X(5) + t * call->in[5].pitch + h * a->dim_v;
  pair_gradient g;
  g.p = KEDGE_EXP(a->scale * dot(q, k, a->dim_qk) - KEDGE_IN_F(4)[row]);
  g.ds = g.p * (dot(dy, v, a->dim_v) - dot(dy, o, a->dim_v)) * a->scale;
  return g;
}

static void add_scaled(kedge_real *sum, kedge_real factor, const kedge_x *x, size_t n) {
  for (size_t i = 0; i < n; i++) sum[i] += factor * kedge_load(x[i]);
}

/* dq of one head and token: over the keys up to it. */
static void query_gradient(const kedge_call *call, size_t t, size_t h) {
  KEDGE_CALL_ARGS(attention_grad);
  const int32_t *segments = KEDGE_IN_I(6);
  kedge_real sum[SPAN];
  for (size_t d0 = 0; d0 < a->dim_qk; d0 += SPAN) {
    size_t n = a->dim_qk - d0 < SPAN ? a->dim_qk - d0 : SPAN;
    memset(sum, 0, sizeof sum);
    for (size_t j = (size_t)(segments[t] < 0 ? 0 : segments[t]); segments[t] >= 0 && j <= t; j++)
      add_scaled(sum, pair(call, t, h, j).ds,
                 KEDGE_IN_X(1) + j * call->in[1].pitch + h / (a->heads / a->kv_heads) * a->dim_qk + d0, n);
    for (size_t d = 0; d < n; d++)
      KEDGE_OUT_X(0)[(t * a->heads + h) * a->dim_qk + d0 + d] = kedge_store(sum[d]);
  }
}

/* dk (or dv, if `values`) of one key head and token: over the later tokens of the sequence and the query
 * heads of the group. */
static void key_gradient(const kedge_call *call, size_t j, size_t kv, bool values) {
  KEDGE_CALL_ARGS(attention_grad);
  const int32_t *segments = KEDGE_IN_I(6);
  size_t dim = values ? a->dim_v : a->dim_qk, from = values ? 5 : 0, group = a->heads / a->kv_heads;
  kedge_x *out = KEDGE_OUT_X(values ? 2 : 1) + (j * a->kv_heads + kv) * dim;
  kedge_real sum[SPAN];
  for (size_t d0 = 0; d0 < dim; d0 += SPAN) {
    size_t n = dim - d0 < SPAN ? dim - d0 : SPAN;
    memset(sum, 0, sizeof sum);
    for (size_t t = j; t < a->tokens && segments[j] >= 0 && segments[t] == segments[j]; t++)
      for (size_t h = kv * group; h < (kv + 1) * group; h++) {
        pair_gradient g = pair(call, t, h, j);
        add_scaled(sum, values ? g.p : g.ds, KEDGE_IN_X(from) + t * call->in[from].pitch + h * dim + d0, n);
      }
    for (size_t d = 0; d < n; d++) out[d0 + d] = kedge_store(sum[d]);
  }
}

KEDGE_KERNEL(attention_grad) {
  KEDGE_CALL_ARGS(attention_grad);
  for (size_t t = 0; t < a->tokens; t++) {
    for (size_t h = 0; h < a->heads; h++) query_gradient(call, t, h);
    for (size_t kv = 0; kv < a->kv_heads; kv++) {
      key_gradient(call, t, kv, false);
      key_gradient(call, t, kv, true);
    }
  }
}

#elif defined(KEDGE_PART_CASES)
#include "core/op.h"
#include "tests/support/cases.h"

#include <math.h>

enum { MAX_TOKENS = 640 };

/* rope: [T,H*d] at `offset` columns into wider rows (0 and no more columns: dense). */
static void rope_of(kedge_case *c, uint32_t tokens, kedge_rope_options options, uint32_t dim, uint32_t offset,
                    int32_t first) {
  int32_t positions[MAX_TOKENS];
  double inv_freq[64];
  uint32_t cols = options.heads * dim, half = dim / 2;
  for (uint32_t t = 0; t < tokens; t++) positions[t] = first + (int32_t)(t % 7) * 3;
  for (uint32_t i = 0; i < half; i++) inv_freq[i] = ldexp(1, -(int)i); /* angles of all sizes */
  kedge_value x = kedge_case_x(c, "x", 2, (uint32_t[]){tokens, cols + 2 * offset});
  if (offset) x = kedge_window(c->graph, x, offset, cols);
  kedge_value f = kedge_case_constant(c, "inv_freq", 1, &half, inv_freq);
  kedge_case_output(
      c, kedge_rope(c->graph, x, f, kedge_case_i(c, "positions", 1, &tokens, positions), &options));
}
static void rope_half(kedge_case *c) {
  rope_of(c, 5, (kedge_rope_options){3, false, false, 1}, 6, 0, 0);
}
static void rope_pairs(kedge_case *c) {
  rope_of(c, 5, (kedge_rope_options){3, true, false, 1}, 6, 0, 2);
}
static void rope_back(kedge_case *c) {
  rope_of(c, 4, (kedge_rope_options){2, false, true, 1.25}, 4, 0, 5);
}
static void rope_window(kedge_case *c) {
  rope_of(c, 7, (kedge_rope_options){1, true, false, 0.5}, 10, 3, 1);
}
static void rope_one(kedge_case *c) {
  rope_of(c, 1, (kedge_rope_options){1, false, false, 1}, 2, 0, 3);
}
static void rope_wide(kedge_case *c) {
  rope_of(c, 90, (kedge_rope_options){4, false, false, 1}, 64, 0, 1000);
}
static void rope_odd(kedge_case *c) {
  rope_of(c, 2, (kedge_rope_options){2, false, false, 1}, 3, 0, 0);
}
static void rope_frequencies(kedge_case *c) {
  kedge_value x = kedge_case_x(c, "x", 2, (uint32_t[]){2, 8}), f = kedge_case_f(c, "f", 1, (uint32_t[]){3});
  kedge_value p = kedge_case_i(c, "positions", 1, (uint32_t[]){2}, (int32_t[]){0, 1});
  kedge_case_output(c, kedge_rope(c->graph, x, f, p, &(kedge_rope_options){1, false, false, 1}));
}
KEDGE_CASES(rope) = {{"half pairs", rope_half, .differentiable = true},
                     {"interleaved pairs", rope_pairs, .differentiable = true},
                     {"inverse with a factor", rope_back, .differentiable = true},
                     {"a window", rope_window, .differentiable = true},
                     {"one pair", rope_one, .differentiable = true},
                     {"many positions", rope_wide, .f32 = 2e-5},
                     {"odd width", rope_odd, .rejects = "even width"},
                     {"too few frequencies", rope_frequencies, .rejects = "inverse frequencies"},
                     {0}};

/* Sequences of the given lengths (0 ends), then tokens outside any. */
typedef struct attention_case {
  uint32_t tokens, heads, kv_heads, dim_qk, dim_v;
  uint32_t lengths[4];
  bool windows;
  double sd;
} attention_case;

static kedge_value segments_of(kedge_case *c, const attention_case *s) {
  int32_t segments[MAX_TOKENS];
  uint32_t t = 0;
  for (uint32_t i = 0; i < 4; i++)
    for (uint32_t end = t + s->lengths[i], first = t; t < end; t++) segments[t] = (int32_t)first;
  for (; t < s->tokens; t++) segments[t] = -1;
  return kedge_case_i(c, "segments", 1, &s->tokens, segments);
}

static void qkv_of(kedge_case *c, const attention_case *s, kedge_value *qkv) {
  const char *names[] = {"q", "k", "v"};
  uint32_t cols[] = {s->heads * s->dim_qk, s->kv_heads * s->dim_qk, s->kv_heads * s->dim_v};
  for (uint32_t i = 0; i < 3; i++) {
    uint32_t dims[] = {s->tokens, cols[i] + (s->windows ? 3 : 0)};
    qkv[i] = kedge_case_scaled(c, names[i], c->dtype, 2, dims, 0, i < 2 && s->sd > 0 ? s->sd : 1);
    if (s->windows) qkv[i] = kedge_window(c->graph, qkv[i], i + 1, cols[i]);
  }
}

static void attention_of(kedge_case *c, attention_case s, bool lse) {
  kedge_value qkv[3], logsumexp;
  qkv_of(c, &s, qkv);
  kedge_attention_options options = {s.heads, s.kv_heads, 1 / (double)s.dim_qk};
  kedge_case_output(
      c, kedge_attention(c->graph, qkv[0], qkv[1], qkv[2], segments_of(c, &s), &options, &logsumexp));
  if (lse) kedge_case_output(c, logsumexp);
}
static const attention_case grouped = {
    .tokens = 7, .heads = 6, .kv_heads = 2, .dim_qk = 4, .dim_v = 3, .lengths = {3, 2}};
static const attention_case alike = {
    .tokens = 5, .heads = 2, .kv_heads = 2, .dim_qk = 3, .dim_v = 5, .lengths = {5}, .windows = true};
static const attention_case single = {
    .tokens = 1, .heads = 1, .kv_heads = 1, .dim_qk = 1, .dim_v = 1, .lengths = {1}};
static const attention_case outside = {.tokens = 3, .heads = 2, .kv_heads = 1, .dim_qk = 2, .dim_v = 2};
static const attention_case steep = {
    .tokens = 9, .heads = 2, .kv_heads = 1, .dim_qk = 4, .dim_v = 4, .lengths = {6, 3}, .sd = 18};
static const attention_case blocks = {.tokens = 300,
                                      .heads = 4,
                                      .kv_heads = 2,
                                      .dim_qk = 20,
                                      .dim_v = 12,
                                      .lengths = {70, 1, 150, 40},
                                      .windows = true};
/* Longer than what a tuned kernel keeps in one task, beside a short one. */
static const attention_case lengthy = {
    .tokens = 620, .heads = 2, .kv_heads = 1, .dim_qk = 4, .dim_v = 2, .lengths = {47, 570}};
static void attention_grouped(kedge_case *c) {
  attention_of(c, grouped, false);
}
static void attention_alike(kedge_case *c) {
  attention_of(c, alike, false);
}
static void attention_single(kedge_case *c) {
  attention_of(c, single, true);
}
static void attention_outside(kedge_case *c) {
  attention_of(c, outside, true);
}
static void attention_steep(kedge_case *c) {
  attention_of(c, steep, true);
}
static void attention_blocks(kedge_case *c) {
  attention_of(c, blocks, true);
}
static void attention_lengthy(kedge_case *c) {
  attention_of(c, lengthy, true);
}
static void attention_bad_heads(kedge_case *c) {
  attention_of(
      c, (attention_case){.tokens = 3, .heads = 3, .kv_heads = 2, .dim_qk = 2, .dim_v = 2, .lengths = {3}},
      false);
}
static void attention_bad_keys(kedge_case *c) {
  kedge_value q = kedge_case_x(c, "q", 2, (uint32_t[]){3, 8}),
              k = kedge_case_x(c, "k", 2, (uint32_t[]){3, 6});
  kedge_value s = kedge_case_i(c, "segments", 1, (uint32_t[]){3}, (int32_t[]){0, 0, 0});
  kedge_case_output(c, kedge_attention(c->graph, q, k, k, s, &(kedge_attention_options){2, 2, 1}, NULL));
}
KEDGE_CASES(attention) = {
    {"grouped heads, two sequences, tail tokens", attention_grouped, .differentiable = true},
    {"windows, values of another width", attention_alike, .differentiable = true},
    {"one token", attention_single, .rejects = NULL},
    {"no sequence", attention_outside, .rejects = NULL},
    {"large scores", attention_steep, .f32 = 1e-5},
    {"sequences across blocks", attention_blocks, .f32 = 5e-6},
    {"a long sequence", attention_lengthy, .f32 = 5e-6},
    {"heads that do not divide", attention_bad_heads, .rejects = "multiple of key/value heads"},
    {"keys of another width", attention_bad_keys, .rejects = "width of the keys"},
    {0}};

static void attention_grad_of(kedge_case *c, attention_case s, bool bad) {
  kedge_value qkv[3], lse, outs[KEDGE_MAX_OUT] = {0}, segments = segments_of(c, &s);
  qkv_of(c, &s, qkv);
  kedge_attention_options options = {s.heads, s.kv_heads, 1 / (double)s.dim_qk};
  kedge_value o = kedge_attention(c->graph, qkv[0], qkv[1], qkv[2], segments, &options, &lse);
  uint32_t cols = s.heads * s.dim_v, extra = s.windows ? 2 : bad ? 1 : 0;
  kedge_value dy = kedge_case_x(c, "do", 2, (uint32_t[]){s.tokens, cols + extra});
  if (s.windows) dy = kedge_window(c->graph, dy, 1, cols);
  kedge_args_attention_grad args = {.heads = s.heads, .kv_heads = s.kv_heads, .scale = options.scale};
  kedge__node(c->graph, KEDGE_OP_attention_grad,
              (kedge_value[]){qkv[0], qkv[1], qkv[2], o, lse, dy, segments}, &args, KEDGE_F32, outs);
  for (uint32_t i = 0; i < 3; i++) kedge_case_output(c, outs[i]);
}
static void attention_grad_grouped(kedge_case *c) {
  attention_grad_of(c, grouped, false);
}
static void attention_grad_alike(kedge_case *c) {
  attention_grad_of(c, alike, false);
}
static void attention_grad_outside(kedge_case *c) {
  attention_grad_of(c, outside, false);
}
static void attention_grad_steep(kedge_case *c) {
  attention_grad_of(c, steep, false);
}
static void attention_grad_blocks(kedge_case *c) {
  attention_grad_of(c, blocks, false);
}
static void attention_grad_lengthy(kedge_case *c) {
  attention_grad_of(c, lengthy, false);
}
static void attention_grad_bad(kedge_case *c) {
  attention_grad_of(c, grouped, true);
}
KEDGE_CASES(attention_grad) = {
    {"grouped heads, two sequences, tail tokens", attention_grad_grouped, .f32 = 5e-6, .bf16 = 2e-2},
    {"windows, values of another width", attention_grad_alike, .f32 = 5e-6, .bf16 = 2e-2},
    {"no sequence", attention_grad_outside, .rejects = NULL},
    {"large scores", attention_grad_steep, .f32 = 1e-4, .bf16 = 3e-2},
    {"sequences across blocks", attention_grad_blocks, .f32 = 2e-5, .bf16 = 2e-2},
    {"a long sequence", attention_grad_lengthy, .f32 = 2e-5, .bf16 = 2e-2},
    {"gradient of another width", attention_grad_bad, .rejects = "gradient of the attention output"},
    {0}};

static void cached_of(kedge_case *c, uint32_t queries, uint32_t capacity, uint32_t heads, uint32_t kv_heads,
                      uint32_t dim_qk, uint32_t dim_v, const int32_t *base, const int32_t *length,
                      bool window) {
  uint32_t cols = heads * dim_qk;
  kedge_value q = kedge_case_x(c, "q", 2, (uint32_t[]){queries, cols + (window ? 4 : 0)});
  if (window) q = kedge_window(c->graph, q, 3, cols);
  kedge_value k = kedge_case_x(c, "k", 2, (uint32_t[]){capacity, kv_heads * dim_qk});
  kedge_value v = kedge_case_x(c, "v", 2, (uint32_t[]){capacity, kv_heads * dim_v});
  kedge_value first = kedge_case_i(c, "base", 1, &queries, base),
              n = kedge_case_i(c, "length", 1, &queries, length);
  kedge_case_output(c, kedge_attention_cached(c->graph, q, k, v, first, n,
                                              &(kedge_attention_options){heads, kv_heads, 0.5}));
}
static void cached_some(kedge_case *c) {
  cached_of(c, 3, 20, 6, 2, 4, 3, (int32_t[]){0, 10, 19}, (int32_t[]){7, 10, 1}, false);
}
static void cached_window(kedge_case *c) {
  cached_of(c, 2, 9, 2, 2, 5, 7, (int32_t[]){3, 0}, (int32_t[]){6, 0}, true);
}
static void cached_one(kedge_case *c) {
  cached_of(c, 1, 1, 1, 1, 1, 1, (int32_t[]){0}, (int32_t[]){1}, false);
}
static void cached_long(kedge_case *c) {
  cached_of(c, 2, 700, 4, 1, 24, 40, (int32_t[]){5, 1}, (int32_t[]){690, 300}, false);
}
static void cached_bad(kedge_case *c) {
  kedge_value q = kedge_case_x(c, "q", 2, (uint32_t[]){2, 4}),
              k = kedge_case_x(c, "k", 2, (uint32_t[]){5, 4});
  kedge_value v = kedge_case_x(c, "v", 2, (uint32_t[]){6, 4});
  kedge_value i = kedge_case_i(c, "base", 1, (uint32_t[]){2}, (int32_t[]){0, 0});
  kedge_case_output(c, kedge_attention_cached(c->graph, q, k, v, i, i, &(kedge_attention_options){1, 1, 1}));
}
KEDGE_CASES(attention_cached) = {{"grouped heads, ranges of a cache", cached_some, .rejects = NULL},
                                 {"a window, an empty range", cached_window, .rejects = NULL},
                                 {"one row", cached_one, .rejects = NULL},
                                 {"more rows than a block", cached_long, .f32 = 5e-6},
                                 {"caches of other lengths", cached_bad, .rejects = "rows of the values"},
                                 {0}};
#endif
