/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotary positions; meaning in core/ops/attention.c. */
#include "backends/cpu/kernels/panel.h"

enum { ROPE_TOKENS = 16 }; /* tokens a task */

KEDGE_SCRATCH(rope) {
  KEDGE_CALL_ARGS(rope);
  return (uint64_t)call->threads * 2 * kedge__pad(a->dim / 2) * sizeof(float);
}

static void rotate_half(const kedge_x *x, kedge_x *y, size_t half, const float *c, const float *s) {
  for (size_t i = 0; i < half; i++) {
    float first = kedge_load(x[i]), second = kedge_load(x[i + half]);
    y[i] = kedge_store(first * c[i] - second * s[i]);
    y[i + half] = kedge_store(second * c[i] + first * s[i]);
  }
}

static void rotate_pairs(const kedge_x *x, kedge_x *y, size_t half, const float *c, const float *s) {
  for (size_t i = 0; i < half; i++) {
    float first = kedge_load(x[2 * i]), second = kedge_load(x[2 * i + 1]);
    y[2 * i] = kedge_store(first * c[i] - second * s[i]);
    y[2 * i + 1] = kedge_store(second * c[i] + first * s[i]);
  }
}

static void rope_token(const kedge_call *call, size_t t) {
  KEDGE_CALL_ARGS(rope);
  size_t half = a->dim / 2;
  float *scratch = (float *)call->scratch + (size_t)omp_get_thread_num() * 2 * kedge__pad(half);
  float *c = kedge__take(&scratch, half), *s = kedge__take(&scratch, half);
  for (size_t i = 0; i < half; i++) {
    float angle = (float)KEDGE_IN_I(2)[t] * KEDGE_IN_F(1)[i];
    c[i] = cosf(angle) * a->factor;
    s[i] = sinf(angle) * (a->inverse ? -a->factor : a->factor);
  }
  for (size_t h = 0; h < a->heads; h++) {
    const kedge_x *x = KEDGE_IN_X(0) + t * call->in[0].pitch + h * a->dim;
    kedge_x *y = KEDGE_OUT_X(0) + (t * a->heads + h) * a->dim;
    if (a->interleaved)
      rotate_pairs(x, y, half, c, s);
    else
      rotate_half(x, y, half, c, s);
  }
}

KEDGE_KERNEL(rope) {
  KEDGE_CALL_ARGS(rope);
  size_t blocks = kedge__blocks(a->tokens, ROPE_TOKENS);
  KEDGE_PARALLEL_FOR
  for (size_t b = 0; b < blocks; b++)
    for (size_t t = b * ROPE_TOKENS; t < kedge__min((b + 1) * ROPE_TOKENS, a->tokens); t++)
      rope_token(call, t);
}
