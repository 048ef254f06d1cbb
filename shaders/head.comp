#version 450
/* SPDX-License-Identifier: Apache-2.0
 * The head's loss between its products (matmul.comp), one subgroup a token of the chunk; core/ops/softmax.c has the
 * meaning. number[0] is the chunk's first token. */
#extension GL_GOOGLE_include_directive : require
#include "shaders/kedge.glsl"
#include "shaders/reduce.glsl"

#if defined(KEDGE_OP_head_loss)
void row(uint i) {
  uint t = push.number[0] + i, first = i * ARGS.vocab;
  int label = load_i(IN(2), t);
  float nll = 0.0, lse = 0.0;
  if (label >= 0) {
    vec2 stats = softmax_stats(SCRATCH, first, ARGS.vocab);
    lse = stats.x + kedge_log(stats.y);
    nll = lse - load_f(SCRATCH, first + uint(label));
  }
  if (LANE == 0) {
    store_f(OUT(0), t, nll);
    store_f(OUT(1), t, lse);
  }
}
#else
/* Logits become their gradients. */
void row(uint i) {
  uint t = push.number[0] + i, first = i * ARGS.vocab;
  int label = load_i(IN(2), t);
  float lse = load_f(IN(3), t), dnll = load_f(IN(4), t);
  LANES(v, ARGS.vocab) {
    float g = 0.0;
    if (label >= 0) g = dnll * (kedge_exp(load_f(SCRATCH, first + v) - lse) - (int(v) == label ? 1.0 : 0.0));
    store_f(SCRATCH, first + v, g);
  }
}
#endif

ROWS_MAIN
