/* SPDX-License-Identifier: Apache-2.0
 *
 * Tuned elementwise kernels; their meaning is core/ops/elementwise.c.
 */
#include "backends/cpu/kernels/blocks.h"
#include "backends/cpu/kernels/kernel.h"

static inline float widen(uint16_t bits) {
  union {
    uint32_t u;
    float f;
  } wide = {(uint32_t)bits << 16};
  return wide.f;
}

/* n elements from x to y, each f32 or bf16. */
static void convert(void *to, kedge_dtype to_dtype, const void *from, kedge_dtype from_dtype, size_t n) {
  if (to_dtype == from_dtype) {
    memcpy(to, from, n * (to_dtype == KEDGE_BF16 ? 2 : 4));
  } else if (to_dtype == KEDGE_BF16) {
    uint16_t *y = to;
    const float *x = from;
    KEDGE_SIMD
    for (size_t i = 0; i < n; i++) y[i] = kedge__bf16_round(x[i]);
  } else {
    float *y = to;
    const uint16_t *x = from;
    KEDGE_SIMD
    for (size_t i = 0; i < n; i++) y[i] = widen(x[i]);
  }
}

KEDGE_KERNEL(copy) {
  KEDGE_CALL_ARGS(copy);
  const kedge_tensor *x = &call->in[0], *y = &call->out[0];
  size_t from_size = x->dtype == KEDGE_BF16 ? 2 : 4, to_size = y->dtype == KEDGE_BF16 ? 2 : 4;
  bool dense = x->pitch == a->cols || a->rows == 1;
  size_t rows = dense ? 1 : a->rows, cols = dense ? (size_t)a->rows * a->cols : a->cols;
  size_t blocks = kedge__blocks(cols, KEDGE_BLOCK); /* of a row */
  size_t chunk = blocks > 1 ? 1 : kedge__block_rows(cols);
  KEDGE_EACH (b, rows * blocks, chunk) {
    size_t row = b / blocks, at = b % blocks * KEDGE_BLOCK;
    convert((char *)y->data + (row * cols + at) * to_size, y->dtype,
            (const char *)x->data + (row * x->pitch + at) * from_size, x->dtype,
            kedge__min(KEDGE_BLOCK, cols - at));
  }
}

KEDGE_KERNEL(fill) {
  KEDGE_CALL_ARGS(fill);
  KEDGE_EACH (i, a->n, KEDGE_BLOCK) kedge_store_w(&call->out[0], i, a->value);
}

KEDGE_KERNEL(spread) {
  KEDGE_CALL_ARGS(spread);
  const float value = KEDGE_IN_F(0)[0];
  float *y = KEDGE_OUT_F(0);
  KEDGE_PARALLEL_BLOCKS(kedge__blocks(a->n, KEDGE_BLOCK))
  for (size_t first = 0; first < a->n; first += KEDGE_BLOCK) {
    size_t last = kedge__min(first + KEDGE_BLOCK, a->n);
    KEDGE_SIMD
    for (size_t i = first; i < last; i++) y[i] = value;
  }
}

KEDGE_KERNEL(add) {
  KEDGE_CALL_ARGS(add);
  const kedge_x *x = KEDGE_IN_X(0), *z = KEDGE_IN_X(1);
  kedge_x *y = KEDGE_OUT_X(0);
  KEDGE_PARALLEL_BLOCKS(kedge__blocks(a->n, KEDGE_BLOCK))
  for (size_t first = 0; first < a->n; first += KEDGE_BLOCK) {
    size_t last = kedge__min(first + KEDGE_BLOCK, a->n);
    KEDGE_SIMD
    for (size_t i = first; i < last; i++) y[i] = kedge_store(kedge_load(x[i]) + kedge_load(z[i]));
  }
}

KEDGE_KERNEL(mul) {
  KEDGE_CALL_ARGS(mul);
  const kedge_x *x = KEDGE_IN_X(0), *z = KEDGE_IN_X(1);
  kedge_x *y = KEDGE_OUT_X(0);
  KEDGE_PARALLEL_BLOCKS(kedge__blocks(a->n, KEDGE_BLOCK))
  for (size_t first = 0; first < a->n; first += KEDGE_BLOCK) {
    size_t last = kedge__min(first + KEDGE_BLOCK, a->n);
    KEDGE_SIMD
    for (size_t i = first; i < last; i++) y[i] = kedge_store(kedge_load(x[i]) * kedge_load(z[i]));
  }
}

KEDGE_KERNEL(scale) {
  KEDGE_CALL_ARGS(scale);
  const kedge_x *x = KEDGE_IN_X(0);
  kedge_x *y = KEDGE_OUT_X(0);
  kedge_real factor = a->factor;
  KEDGE_PARALLEL_BLOCKS(kedge__blocks(a->n, KEDGE_BLOCK))
  for (size_t first = 0; first < a->n; first += KEDGE_BLOCK) {
    size_t last = kedge__min(first + KEDGE_BLOCK, a->n);
    KEDGE_SIMD
    for (size_t i = first; i < last; i++) y[i] = kedge_store(factor * kedge_load(x[i]));
  }
}

KEDGE_KERNEL(clamp) {
  KEDGE_CALL_ARGS(clamp);
  const kedge_x *x = KEDGE_IN_X(0);
  kedge_x *y = KEDGE_OUT_X(0);
  const float limit = a->limit;
  KEDGE_PARALLEL_BLOCKS(kedge__blocks(a->n, KEDGE_BLOCK))
  for (size_t first = 0; first < a->n; first += KEDGE_BLOCK) {
    size_t last = kedge__min(first + KEDGE_BLOCK, a->n);
    KEDGE_SIMD
    for (size_t i = first; i < last; i++) {
      float v = kedge_load(x[i]);
      y[i] = kedge_store(v < -limit ? -limit : v > limit ? limit : v);
    }
  }
}

KEDGE_KERNEL(clamp_grad) {
  KEDGE_CALL_ARGS(clamp_grad);
  const kedge_x *x = KEDGE_IN_X(0), *dy = KEDGE_IN_X(1), zero = kedge_store(0);
  kedge_x *dx = KEDGE_OUT_X(0);
  const float limit = a->limit;
  KEDGE_PARALLEL_BLOCKS(kedge__blocks(a->n, KEDGE_BLOCK))
  for (size_t first = 0; first < a->n; first += KEDGE_BLOCK) {
    size_t last = kedge__min(first + KEDGE_BLOCK, a->n);
    KEDGE_SIMD
    for (size_t i = first; i < last; i++) {
      float v = kedge_load(x[i]);
      dx[i] = v < -limit || v > limit ? zero : dy[i];
    }
  }
}

/* Where the output has the input's memory there is nothing to move. */
KEDGE_KERNEL(detach) {
  KEDGE_CALL_ARGS(detach);
  const kedge_x *x = KEDGE_IN_X(0);
  kedge_x *y = KEDGE_OUT_X(0);
  if (x == y) return;
  KEDGE_PARALLEL_BLOCKS(kedge__blocks(a->n, KEDGE_BLOCK))
  for (size_t first = 0; first < a->n; first += KEDGE_BLOCK)
    memcpy(y + first, x + first, kedge__min(KEDGE_BLOCK, a->n - first) * sizeof *y);
}
