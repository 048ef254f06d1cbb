/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotary positions; meaning in core/ops/attention.c. */
#include "backends/cpu/kernels/panel.h"
#include "backends/cpu/kernels/vexp.h"

enum { ROPE_TOKENS = 16 }; /* tokens a task */

KEDGE_SCRATCH(rope) {
  KEDGE_CALL_ARGS(rope);
  return (uint64_t)call->threads * 2 * kedge__pad(ROPE_TOKENS * a->dim / 2) * sizeof(float);
}

static void rotate_half(const kedge_x *x, kedge_x *y, size_t half, const float *c, const float *s) {
  KEDGE_SIMD
  for (size_t i = 0; i < half; i++) {
    float first = kedge_load(x[i]), second = kedge_load(x[i + half]);
    y[i] = kedge_store(first * c[i] - second * s[i]);
    y[i + half] = kedge_store(second * c[i] + first * s[i]);
  }
}

static void rotate_pairs(const kedge_x *x, kedge_x *y, size_t half, const float *c, const float *s) {
  KEDGE_SIMD
  for (size_t i = 0; i < half; i++) {
    float first = kedge_load(x[2 * i]), second = kedge_load(x[2 * i + 1]);
    y[2 * i] = kedge_store(first * c[i] - second * s[i]);
    y[2 * i + 1] = kedge_store(second * c[i] + first * s[i]);
  }
}

/* Cosines and sines [tokens, half], times the factor. */
static void turns(const kedge_call *call, size_t first, size_t end, float *c, float *s) {
  KEDGE_CALL_ARGS(rope);
  const size_t half = a->dim / 2, n = (end - first) * half;
  const float factor = a->factor, sign = a->inverse ? -factor : factor;
  for (size_t t = first; t < end; t++) {
    const float position = (float)KEDGE_IN_I(2)[t], *frequency = KEDGE_IN_F(1);
    float *angle = c + (t - first) * half;
    KEDGE_SIMD
    for (size_t i = 0; i < half; i++) angle[i] = position * frequency[i];
  }
  KEDGE_SIMD
  for (size_t i = 0; i < n; i++) {
    float sine, cosine;
    kedge__vsincos(c[i], &sine, &cosine);
    c[i] = cosine * factor;
    s[i] = sine * sign;
  }
}

KEDGE_KERNEL(rope) {
  KEDGE_CALL_ARGS(rope);
  const size_t blocks = kedge__blocks(a->tokens, ROPE_TOKENS), half = a->dim / 2,
               floats = kedge__pad(ROPE_TOKENS * half);
  KEDGE_PARALLEL_BLOCKS(blocks)
  for (size_t b = 0; b < blocks; b++) {
    const size_t first = b * ROPE_TOKENS, end = kedge__min(first + ROPE_TOKENS, a->tokens);
    float *c = (float *)call->scratch + (size_t)omp_get_thread_num() * 2 * floats, *s = c + floats;
    turns(call, first, end, c, s);
    for (size_t t = first; t < end; t++, c += half, s += half)
      for (size_t h = 0; h < a->heads; h++) {
        const kedge_x *x = KEDGE_IN_X(0) + t * call->in[0].pitch + h * a->dim;
        kedge_x *y = KEDGE_OUT_X(0) + (t * a->heads + h) * a->dim;
        if (a->interleaved)
          rotate_pairs(x, y, half, c, s);
        else
          rotate_half(x, y, half, c, s);
      }
  }
}
