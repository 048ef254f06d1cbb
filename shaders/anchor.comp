#version 450
/* SPDX-License-Identifier: Apache-2.0
 * Losses of router logits, one subgroup a row; core/ops/anchor.c and balance.c have the meaning. */
#extension GL_GOOGLE_include_directive : require
#include "shaders/kedge.glsl"
#include "shaders/reduce.glsl"

#if defined(KEDGE_OP_anchor_kl)
void row(uint t) {
  int r = load_i(IN(2), t);
  float loss = 0.0;
  if (r >= 0) {
    uint z = t * ARGS.experts, pi = uint(r) * ARGS.experts;
    vec2 stats = softmax_stats(IN(0), z, ARGS.experts);
    float log_sum = kedge_log(stats.y);
    LANES(e, ARGS.experts) {
      float p = load_f(IN(1), pi + e);
      if (p > 0.0) loss += p * (kedge_log(p) - (load_f(IN(0), z + e) - stats.x - log_sum));
    }
    loss = subgroupAdd(loss);
  }
  if (LANE == 0) store_f(OUT(0), t, loss);
}
#elif defined(KEDGE_OP_anchor_kl_grad)
void row(uint t) {
  int r = load_i(IN(2), t);
  uint z = t * ARGS.experts, pi = uint(max(r, 0)) * ARGS.experts;
  if (r < 0) {
    LANES(e, ARGS.experts) store_f(OUT(0), z + e, 0.0);
    return;
  }
  vec2 stats = softmax_stats(IN(0), z, ARGS.experts);
  float total = 0.0;
  LANES(e, ARGS.experts) total += load_f(IN(1), pi + e);
  total = subgroupAdd(total);
  float dy = load_f(IN(3), t);
  LANES(e, ARGS.experts)
  store_f(OUT(0), z + e, dy * (kedge_exp(load_f(IN(0), z + e) - stats.x) / stats.y * total - load_f(IN(1), pi + e)));
}
#elif defined(KEDGE_OP_anchor_l2) || defined(KEDGE_OP_anchor_l2_grad)
float distance_(uint z, uint pi) {
  return load_f(IN(0), z) - kedge_log(max(load_f(IN(1), pi), ARGS.floor));
}
void row(uint t) {
  int r = load_i(IN(2), t);
  uint z = t * ARGS.experts, pi = uint(max(r, 0)) * ARGS.experts;
  float shift = 0.0, loss = 0.0;
  if (r >= 0) {
    LANES(e, ARGS.experts) shift += distance_(z + e, pi + e);
    shift = subgroupAdd(shift) / float(ARGS.experts);
  }
#if defined(KEDGE_OP_anchor_l2)
  if (r >= 0) {
    LANES(e, ARGS.experts) {
      float delta = distance_(z + e, pi + e) - shift;
      loss += delta * delta;
    }
    loss = subgroupAdd(loss);
  }
  if (LANE == 0) store_f(OUT(0), t, loss);
#else
  float twice = 2.0 * load_f(IN(3), t);
  LANES(e, ARGS.experts) {
    float dz = 0.0;
    if (r >= 0) dz = twice * (distance_(z + e, pi + e) - shift);
    store_f(OUT(0), z + e, dz);
  }
#endif
}
#elif defined(KEDGE_OP_logsumexp)
void row(uint r) {
  vec2 stats = softmax_stats(IN(0), r * ARGS.cols, ARGS.cols);
  if (LANE == 0) store_f(OUT(0), r, stats.x == -INFINITY ? stats.x : stats.x + kedge_log(stats.y));
}
#elif defined(KEDGE_OP_logsumexp_grad)
void row(uint r) {
  uint first = r * ARGS.cols;
  vec2 stats = softmax_stats(IN(0), first, ARGS.cols);
  float dy = load_f(IN(1), r);
  LANES(e, ARGS.cols) {
    float dx = 0.0;
    if (stats.x != -INFINITY) dx = dy * (kedge_exp(load_f(IN(0), first + e) - stats.x) / stats.y);
    store_f(OUT(0), first + e, dx);
  }
}
#elif defined(KEDGE_OP_balance) || defined(KEDGE_OP_balance_grad)
float weight(bool sigmoid, float z, float most) {
  if (!sigmoid) return kedge_exp(z - most);
  return kedge_exp(min(z, 0.0) - most) / (1.0 + kedge_exp(-abs(z)));
}
void row(uint t) {
  bool sigmoid = ARGS.kind == KEDGE_SCORE_SIGMOID;
  int r = load_i(IN(2), t);
  uint n = ARGS.experts, z = t * n, counts = uint(max(r, 0)) * n;
  float total = 0.0, most = -INFINITY, sum = 0.0, mean = 0.0;
  if (r >= 0) LANES(e, n) total += load_f(IN(1), counts + e);
  total = subgroupAdd(total);
  bool counted = r >= 0 && total > 0.0;
  if (counted) {
    LANES(e, n) most = max(most, load_f(IN(0), z + e));
    most = subgroupMax(most);
    if (sigmoid) most = min(most, 0.0);
    LANES(e, n) sum += weight(sigmoid, load_f(IN(0), z + e), most);
    sum = subgroupAdd(sum);
    LANES(e, n) mean += load_f(IN(1), counts + e) / total * (weight(sigmoid, load_f(IN(0), z + e), most) / sum);
    mean = subgroupAdd(mean);
  }
#if defined(KEDGE_OP_balance)
  if (LANE == 0) store_f(OUT(0), t, counted ? float(n) * mean : 0.0);
#else
  float dy = load_f(IN(3), t);
  LANES(e, n) {
    float dz = 0.0;
    if (counted) {
      float x = load_f(IN(0), z + e), q = weight(sigmoid, x, most) / sum;
      dz = float(n) * dy * q * (load_f(IN(1), counts + e) / total - mean) * (sigmoid ? kedge_sigmoid(-x) : 1.0);
    }
    store_f(OUT(0), z + e, dz);
  }
#endif
}
#endif

ROWS_MAIN
