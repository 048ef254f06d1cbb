#version 450
/* SPDX-License-Identifier: Apache-2.0
 * swiglu of routed rows with their gate weights; core/ops/swiglu.c has the meaning. One subgroup a slot; the group of
 * slot s also clears row s where the plan has none. */
#extension GL_GOOGLE_include_directive : require
#include "shaders/kedge.glsl"
#include "shaders/reduce.glsl"

#if defined(KEDGE_OP_swiglu_gated)
void row(uint s) {
  int to = load_i(IN(3), s);
  if (to >= 0) {
    float weight = load_f(IN(2), s);
    LANES(j, ARGS.cols) {
      uint i = uint(to) * ARGS.cols + j;
      store_x(OUT(0), i, kedge_silu(load_x(IN(0), i)) * load_x(IN(1), i) * weight);
    }
  }
  if (int(s) >= load_i(IN(4), ARGS.experts)) LANES(j, ARGS.cols) store_x(OUT(0), s * ARGS.cols + j, 0.0);
}
#else
void row(uint s) {
  int to = load_i(IN(3), s);
  float sum = 0.0;
  if (to >= 0) {
    float weight = load_f(IN(2), s);
    LANES(j, ARGS.cols) {
      uint i = uint(to) * ARGS.cols + j;
      float g = load_x(IN(0), i), u = load_x(IN(1), i), d = load_x(IN(5), i);
      sum += d * u * kedge_silu(g);
      store_x(OUT(0), i, d * weight * u * kedge_silu_slope(g));
      store_x(OUT(1), i, d * weight * kedge_silu(g));
    }
  }
  sum = subgroupAdd(sum);
  if (LANE == 0) store_f(OUT(2), s, sum);
  if (int(s) >= load_i(IN(4), ARGS.experts)) LANES(j, ARGS.cols) {
    store_x(OUT(0), s * ARGS.cols + j, 0.0);
    store_x(OUT(1), s * ARGS.cols + j, 0.0);
  }
}
#endif

ROWS_MAIN
