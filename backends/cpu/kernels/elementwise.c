/* SPDX-License-Identifier: Apache-2.0
 *
 * Tuned elementwise kernels; their meaning is core/ops/elementwise.c.
 */
#include "backends/cpu/kernels/blocks.h"
#include "backends/cpu/kernels/kernel.h"
#include "backends/cpu/kernels/vexp.h"

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
  KEDGE_PARALLEL_BLOCKS(kedge__blocks(rows * blocks, chunk))
  for (size_t first = 0; first < rows * blocks; first += chunk)
    for (size_t b = first; b < kedge__min(first + chunk, rows * blocks); b++) {
      size_t row = b / blocks, at = b % blocks * KEDGE_BLOCK;
      convert((char *)y->data + (row * cols + at) * to_size, y->dtype,
              (const char *)x->data + (row * x->pitch + at) * from_size, x->dtype,
              kedge__min(KEDGE_BLOCK, cols - at));
    }
}

KEDGE_KERNEL(fill) {
  KEDGE_CALL_ARGS(fill);
  KEDGE_PARALLEL_BLOCKS(kedge__blocks(a->n, KEDGE_BLOCK))
  for (size_t first = 0; first < a->n; first += KEDGE_BLOCK)
    for (size_t i = first; i < kedge__min(first + KEDGE_BLOCK, a->n); i++)
      kedge_store_w(&call->out[0], i, a->value);
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

KEDGE_KERNEL(swiglu) {
  KEDGE_CALL_ARGS(swiglu);
  const kedge_x *gate = KEDGE_IN_X(0), *up = KEDGE_IN_X(1);
  kedge_x *y = KEDGE_OUT_X(0);
  KEDGE_PARALLEL_BLOCKS(kedge__blocks(a->n, KEDGE_BLOCK))
  for (size_t first = 0; first < a->n; first += KEDGE_BLOCK) {
    size_t last = kedge__min(first + KEDGE_BLOCK, a->n);
    KEDGE_SIMD
    for (size_t i = first; i < last; i++) {
      float g = kedge_load(gate[i]);
      y[i] = kedge_store(g * kedge__vsigmoid(g) * kedge_load(up[i]));
    }
  }
}

KEDGE_KERNEL(swiglu_grad) {
  KEDGE_CALL_ARGS(swiglu_grad);
  const kedge_x *gate = KEDGE_IN_X(0), *up = KEDGE_IN_X(1), *dy = KEDGE_IN_X(2);
  kedge_x *dgate = KEDGE_OUT_X(0), *dup = KEDGE_OUT_X(1);
  KEDGE_PARALLEL_BLOCKS(kedge__blocks(a->n, KEDGE_BLOCK))
  for (size_t first = 0; first < a->n; first += KEDGE_BLOCK) {
    size_t last = kedge__min(first + KEDGE_BLOCK, a->n);
    KEDGE_SIMD
    for (size_t i = first; i < last; i++) {
      float g = kedge_load(gate[i]), d = kedge_load(dy[i]), s = kedge__vsigmoid(g);
      dgate[i] = kedge_store(d * kedge_load(up[i]) * (s * (1 + g * (1 - s))));
      dup[i] = kedge_store(d * (g * s));
    }
  }
}

/* Rows [valid, rows) of a tensor become 0. */
static void clear_rows(kedge_x *y, size_t valid, size_t rows, size_t cols) {
  memset(y + valid * cols, 0, (rows - valid) * cols * sizeof *y);
}

KEDGE_KERNEL(swiglu_gated) {
  KEDGE_CALL_ARGS(swiglu_gated);
  const kedge_x *gate = KEDGE_IN_X(0), *up = KEDGE_IN_X(1);
  const kedge_real *weights = KEDGE_IN_F(2);
  const int32_t *rows = KEDGE_IN_I(3);
  kedge_x *y = KEDGE_OUT_X(0);
  size_t chunk = kedge__block_rows(a->cols);
  KEDGE_PARALLEL_BLOCKS(kedge__blocks(a->rows, chunk))
  for (size_t block = 0; block < a->rows; block += chunk)
    for (size_t s = block; s < kedge__min(block + chunk, a->rows); s++) {
      if (rows[s] < 0) continue;
      size_t first = (size_t)rows[s] * a->cols, last = first + a->cols;
      float w = weights[s];
      KEDGE_SIMD
      for (size_t i = first; i < last; i++) {
        float g = kedge_load(gate[i]);
        y[i] = kedge_store(g * kedge__vsigmoid(g) * kedge_load(up[i]) * w);
      }
    }
  clear_rows(y, (size_t)KEDGE_IN_I(4)[a->experts], a->rows, a->cols);
}

KEDGE_KERNEL(swiglu_gated_grad) {
  KEDGE_CALL_ARGS(swiglu_gated_grad);
  const kedge_x *gate = KEDGE_IN_X(0), *up = KEDGE_IN_X(1), *dy = KEDGE_IN_X(5);
  const kedge_real *weights = KEDGE_IN_F(2);
  const int32_t *rows = KEDGE_IN_I(3);
  kedge_x *dgate = KEDGE_OUT_X(0), *dup = KEDGE_OUT_X(1);
  size_t chunk = kedge__block_rows(a->cols), valid = (size_t)KEDGE_IN_I(4)[a->experts];
  KEDGE_PARALLEL_BLOCKS(kedge__blocks(a->rows, chunk))
  for (size_t block = 0; block < a->rows; block += chunk)
    for (size_t s = block; s < kedge__min(block + chunk, a->rows); s++) {
      size_t first = rows[s] < 0 ? 0 : (size_t)rows[s] * a->cols, last = rows[s] < 0 ? 0 : first + a->cols;
      float w = weights[s], sum = 0;
      KEDGE_SIMD_SUM(sum)
      for (size_t i = first; i < last; i++) {
        float g = kedge_load(gate[i]), u = kedge_load(up[i]), d = kedge_load(dy[i]),
              sigmoid = kedge__vsigmoid(g);
        sum += d * u * (g * sigmoid);
        dgate[i] = kedge_store(d * w * u * (sigmoid * (1 + g * (1 - sigmoid))));
        dup[i] = kedge_store(d * w * (g * sigmoid));
      }
      KEDGE_OUT_F(2)[s] = sum;
    }
  clear_rows(dgate, valid, a->rows, a->cols);
  clear_rows(dup, valid, a->rows, a->cols);
}
