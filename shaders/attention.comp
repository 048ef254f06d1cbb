#version 450
/* SPDX-License-Identifier: Apache-2.0
 * Attention; core/ops/attention.c has the meaning. One subgroup has S0 rows of one head: queries, or (gradients of keys
 * and values) keys. A row's columns lie across the lanes, S1 of a query or key and S2 of a value in each. Scores exist
 * for a subgroup's width of keys at a time. */
#extension GL_GOOGLE_include_directive : require
#include "shaders/kedge.glsl"
#include "shaders/reduce.glsl"

const uint ROWS = S0;
const uint NK = S1;
const uint NV = S2;

float dot_k(float a[NK], float b[NK]) {
  float sum = 0.0;
  [[unroll]] for (uint i = 0; i < NK; i++) sum = fma(a[i], b[i], sum);
  return subgroupAdd(sum);
}
float dot_v(float a[NV], float b[NV]) {
  float sum = 0.0;
  [[unroll]] for (uint i = 0; i < NV; i++) sum = fma(a[i], b[i], sum);
  return subgroupAdd(sum);
}
void load_k(uint64_t at, uint first, out float x[NK]) {
  [[unroll]] for (uint i = 0; i < NK; i++) {
    uint d = i * LOCAL + LANE;
    x[i] = 0.0;
    if (d < ARGS.dim_qk) x[i] = load_x(at, first + d);
  }
}
void load_v(uint64_t at, uint first, out float x[NV]) {
  [[unroll]] for (uint i = 0; i < NV; i++) {
    uint d = i * LOCAL + LANE;
    x[i] = 0.0;
    if (d < ARGS.dim_v) x[i] = load_x(at, first + d);
  }
}
void store_k(uint64_t at, uint first, float x[NK]) {
  [[unroll]] for (uint i = 0; i < NK; i++) {
    uint d = i * LOCAL + LANE;
    if (d < ARGS.dim_qk) store_x(at, first + d, x[i]);
  }
}
void store_v(uint64_t at, uint first, float x[NV]) {
  [[unroll]] for (uint i = 0; i < NV; i++) {
    uint d = i * LOCAL + LANE;
    if (d < ARGS.dim_v) store_x(at, first + d, x[i]);
  }
}

#if defined(KEDGE_OP_attention) || defined(KEDGE_OP_attention_cached)
#if defined(KEDGE_OP_attention)
#define QUERIES ARGS.tokens
#define PITCH_K PITCH(1)
#define PITCH_V PITCH(2)
void span(uint t, out uint first, out uint end) {
  int s = load_i(IN(3), t);
  first = s < 0 ? t + 1u : uint(s);
  end = t + 1u;
}
#else
#define QUERIES ARGS.queries
#define PITCH_K (ARGS.kv_heads * ARGS.dim_qk)
#define PITCH_V (ARGS.kv_heads * ARGS.dim_v)
void span(uint t, out uint first, out uint end) {
  first = uint(load_i(IN(3), t));
  end = first + uint(load_i(IN(4), t));
}
#endif
void row(uint group) {
  uint h = group % ARGS.heads, t0 = group / ARGS.heads * ROWS, kv = h / (ARGS.heads / ARGS.kv_heads);
  float q[ROWS][NK], o[ROWS][NV], most[ROWS], sum[ROWS];
  uint first[ROWS], end[ROWS], from = 0xffffffffu, to = 0;
  [[unroll]] for (uint r = 0; r < ROWS; r++) {
    first[r] = end[r] = 0;
    most[r] = -INFINITY;
    sum[r] = 0.0;
    [[unroll]] for (uint i = 0; i < NV; i++) o[r][i] = 0.0;
    [[unroll]] for (uint i = 0; i < NK; i++) q[r][i] = 0.0;
    if (t0 + r < QUERIES) {
      span(t0 + r, first[r], end[r]);
      load_k(IN(0), (t0 + r) * PITCH(0) + h * ARGS.dim_qk, q[r]);
    }
    if (first[r] < end[r]) {
      from = min(from, first[r]);
      to = max(to, end[r]);
    }
  }
  for (uint base = from; base < to; base += LOCAL) {
    float score[ROWS], k[NK], v[NV];
    [[unroll]] for (uint r = 0; r < ROWS; r++) score[r] = -INFINITY;
    for (uint l = 0; l < LOCAL; l++) {
      uint j = base + l;
      if (j >= to) break;
      load_k(IN(1), j * PITCH_K + kv * ARGS.dim_qk, k);
      [[unroll]] for (uint r = 0; r < ROWS; r++) {
        float s = dot_k(q[r], k) * ARGS.scale;
        if (LANE == l && j >= first[r] && j < end[r]) score[r] = s;
      }
    }
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
      float larger = max(most[r], subgroupMax(score[r]));
      float shrink = most[r] == larger ? 1.0 : kedge_exp(most[r] - larger);
      score[r] = score[r] == -INFINITY ? 0.0 : kedge_exp(score[r] - larger);
      most[r] = larger;
      sum[r] = sum[r] * shrink + subgroupAdd(score[r]);
      [[unroll]] for (uint i = 0; i < NV; i++) o[r][i] *= shrink;
    }
    for (uint l = 0; l < LOCAL; l++) {
      uint j = base + l;
      if (j >= to) break;
      load_v(IN(2), j * PITCH_V + kv * ARGS.dim_v, v);
      [[unroll]] for (uint r = 0; r < ROWS; r++) {
        float p = subgroupBroadcast(score[r], l);
        [[unroll]] for (uint i = 0; i < NV; i++) o[r][i] = fma(p, v[i], o[r][i]);
      }
    }
  }
  [[unroll]] for (uint r = 0; r < ROWS; r++) {
    if (t0 + r >= QUERIES) break;
    bool some = first[r] < end[r];
    uint at = (t0 + r) * ARGS.heads + h;
    [[unroll]] for (uint i = 0; i < NV; i++) o[r][i] = some ? o[r][i] / sum[r] : 0.0;
    store_v(OUT(0), at * ARGS.dim_v, o[r]);
#if defined(KEDGE_OP_attention)
    if (LANE == 0) store_f(OUT(1), at, some ? most[r] + kedge_log(sum[r]) : 0.0);
#endif
  }
}

#elif defined(KEDGE_OP_attention_delta)
/* Scratch [T,H]: <dy, o> of each row. */
void row(uint at) {
  uint t = at / ARGS.heads, h = at - t * ARGS.heads;
  float o[NV], dy[NV];
  load_v(IN(3), at * ARGS.dim_v, o);
  load_v(IN(5), t * PITCH(5) + h * ARGS.dim_v, dy);
  float delta = dot_v(dy, o);
  if (LANE == 0) store_f(SCRATCH, at, delta);
}

#elif defined(KEDGE_OP_attention_grad_q)
void row(uint group) {
  uint h = group % ARGS.heads, t0 = group / ARGS.heads * ROWS, kv = h / (ARGS.heads / ARGS.kv_heads);
  float q[ROWS][NK], dq[ROWS][NK], dy[ROWS][NV], lse[ROWS], delta[ROWS], k[NK], v[NV];
  uint first[ROWS], from = 0xffffffffu, to = 0;
  [[unroll]] for (uint r = 0; r < ROWS; r++) {
    uint t = min(t0 + r, ARGS.tokens - 1u);
    int s = load_i(IN(6), t);
    first[r] = s < 0 || t0 + r >= ARGS.tokens ? 0xffffffffu : uint(s);
    from = min(from, first[r]);
    if (first[r] != 0xffffffffu) to = t + 1u;
    load_k(IN(0), t * PITCH(0) + h * ARGS.dim_qk, q[r]);
    load_v(IN(5), t * PITCH(5) + h * ARGS.dim_v, dy[r]);
    lse[r] = load_f(IN(4), t * ARGS.heads + h);
    delta[r] = load_f(SCRATCH, t * ARGS.heads + h);
    [[unroll]] for (uint i = 0; i < NK; i++) dq[r][i] = 0.0;
  }
  for (uint j = from; j < to; j++) {
    load_k(IN(1), j * PITCH(1) + kv * ARGS.dim_qk, k);
    load_v(IN(2), j * PITCH(2) + kv * ARGS.dim_v, v);
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
      float s = dot_k(q[r], k), dp = dot_v(dy[r], v), ds = 0.0;
      if (first[r] <= j && j <= t0 + r) ds = kedge_exp(ARGS.scale * s - lse[r]) * (dp - delta[r]) * ARGS.scale;
      [[unroll]] for (uint i = 0; i < NK; i++) dq[r][i] = fma(ds, k[i], dq[r][i]);
    }
  }
  [[unroll]] for (uint r = 0; r < ROWS; r++) {
    if (t0 + r < ARGS.tokens) store_k(OUT(0), ((t0 + r) * ARGS.heads + h) * ARGS.dim_qk, dq[r]);
  }
}

#else
/* attention_grad_kv: over the later queries of the segment, and the heads of the group. */
void row(uint group) {
  uint kv = group % ARGS.kv_heads, j0 = group / ARGS.kv_heads * ROWS, heads = ARGS.heads / ARGS.kv_heads;
  float k[ROWS][NK], v[ROWS][NV], dk[ROWS][NK], dv[ROWS][NV], q[NK], dy[NV];
  int segment[ROWS];
  [[unroll]] for (uint r = 0; r < ROWS; r++) {
    uint j = min(j0 + r, ARGS.tokens - 1u);
    segment[r] = j0 + r < ARGS.tokens ? load_i(IN(6), j) : -1;
    load_k(IN(1), j * PITCH(1) + kv * ARGS.dim_qk, k[r]);
    load_v(IN(2), j * PITCH(2) + kv * ARGS.dim_v, v[r]);
    [[unroll]] for (uint i = 0; i < NK; i++) dk[r][i] = 0.0;
    [[unroll]] for (uint i = 0; i < NV; i++) dv[r][i] = 0.0;
  }
  for (uint t = j0; t < ARGS.tokens; t++) {
    int own = load_i(IN(6), t);
    bool any_ = false;
    [[unroll]] for (uint r = 0; r < ROWS; r++) any_ = any_ || (own >= 0 && segment[r] == own && t >= j0 + r);
    if (!any_ && t >= j0 + ROWS) break;
    if (any_) for (uint h = kv * heads; h < (kv + 1u) * heads; h++) {
      load_k(IN(0), t * PITCH(0) + h * ARGS.dim_qk, q);
      load_v(IN(5), t * PITCH(5) + h * ARGS.dim_v, dy);
      float lse = load_f(IN(4), t * ARGS.heads + h), delta = load_f(SCRATCH, t * ARGS.heads + h);
      [[unroll]] for (uint r = 0; r < ROWS; r++) {
        float s = dot_k(q, k[r]), dp = dot_v(dy, v[r]), p = 0.0;
        if (segment[r] == own && t >= j0 + r) p = kedge_exp(ARGS.scale * s - lse);
        float ds = p * (dp - delta) * ARGS.scale;
        [[unroll]] for (uint i = 0; i < NV; i++) dv[r][i] = fma(p, dy[i], dv[r][i]);
        [[unroll]] for (uint i = 0; i < NK; i++) dk[r][i] = fma(ds, q[i], dk[r][i]);
      }
    }
  }
  [[unroll]] for (uint r = 0; r < ROWS; r++) {
    if (j0 + r >= ARGS.tokens) break;
    store_k(OUT(1), ((j0 + r) * ARGS.kv_heads + kv) * ARGS.dim_qk, dk[r]);
    store_v(OUT(2), ((j0 + r) * ARGS.kv_heads + kv) * ARGS.dim_v, dv[r]);
  }
}
#endif

ROWS_MAIN
