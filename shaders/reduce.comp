#version 450
/* SPDX-License-Identifier: Apache-2.0
 * Sums of everything, clipping, and the gradient of embeddings; core/ops/rows.c and optim.c have the meaning. */
#extension GL_GOOGLE_include_directive : require
#include "shaders/kedge.glsl"
#include "shaders/reduce.glsl"

#if defined(KEDGE_OP_sum_part) || defined(KEDGE_OP_sum_squares_part)
/* number[0] elements a group, to two floats a group. */
void row(uint group) {
  uint first = group * push.number[0], end = min(first + push.number[0], ARGS.n);
  vec2 total = vec2(0.0);
  for (uint block = first; block < end; block += 32u * LOCAL) {
    float sum = 0.0;
    for (uint i = block + LANE; i < min(block + 32u * LOCAL, end); i += LOCAL) {
      float x = load_as(S1 != 0, IN(0), i);
#if defined(KEDGE_OP_sum_part)
      sum += x;
#else
      sum += x * x;
#endif
    }
    total = two_sum(total, sum);
  }
  vec2 all = vec2(0.0);
  for (uint lane = 0; lane < LOCAL; lane++) {
    all = two_sum(all, subgroupBroadcast(total.x, lane));
    all.y += subgroupBroadcast(total.y, lane);
  }
  if (LANE == 0) {
    store_f(SCRATCH, 2u * group, all.x);
    store_f(SCRATCH, 2u * group + 1u, all.y);
  }
}
#elif defined(KEDGE_OP_sum) || defined(KEDGE_OP_sum_squares)
/* number[0] groups. */
void row(uint group) {
  vec2 total = vec2(0.0), all = vec2(0.0);
  LANES(i, push.number[0]) {
    total = two_sum(total, load_f(SCRATCH, 2u * i));
    total.y += load_f(SCRATCH, 2u * i + 1u);
  }
  for (uint lane = 0; lane < LOCAL; lane++) {
    all = two_sum(all, subgroupBroadcast(total.x, lane));
    all.y += subgroupBroadcast(total.y, lane);
  }
  if (LANE == 0) store_f(OUT(0), 0, all.x + all.y);
}
#elif defined(KEDGE_OP_grouped_clear)
/* Rows past the plan of a grouped product. */
void row(uint r) {
  if (int(r) < load_i(IN(3), ARGS.experts)) return;
  LANES(j, ARGS.n) store_x(OUT(0), r * ARGS.n + j, 0.0);
}
#elif defined(KEDGE_OP_clip_scale)
void row(uint group) {
  float norm = sqrt(load_f(IN(0), 0)), scale = ARGS.max_norm / (norm + 1e-6);
  if (LANE != 0) return;
  store_f(OUT(0), 0, ARGS.max_norm <= 0.0 || scale >= 1.0 ? 1.0 : scale);
  store_f(OUT(1), 0, norm);
}
#elif defined(KEDGE_OP_embed_clear)
void row(uint v) {
  LANES(j, ARGS.cols) store_f(OUT(0), v * ARGS.cols + j, 0.0);
}
#elif defined(KEDGE_OP_embed_grad)
/* One subgroup a token: the first token with an id adds up all that have it, in order. */
void row(uint t) {
  int id = load_i(IN(0), t);
  for (uint base = 0; base < t; base += LOCAL) {
    bool same = false;
    if (base + LANE < t) same = load_i(IN(0), base + LANE) == id;
    if (subgroupAny(same)) return;
  }
  for (uint base = t; base < ARGS.tokens; base += LOCAL) {
    bool same = false;
    if (base + LANE < ARGS.tokens) same = load_i(IN(0), base + LANE) == id;
    uvec4 all = subgroupBallot(same);
    for (uint lane = 0; lane < LOCAL; lane++) {
      if (!subgroupBallotBitExtract(all, lane)) continue;
      LANES(j, ARGS.cols) {
        uint at = uint(id) * ARGS.cols + j;
        store_f(OUT(0), at, load_f(OUT(0), at) + load_x(IN(1), (base + lane) * ARGS.cols + j));
      }
    }
  }
}
#endif

ROWS_MAIN
