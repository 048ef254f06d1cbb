/* SPDX-License-Identifier: Apache-2.0
 *
 * AdamW and accumulation over blocks of elements; meaning in core/ops/optim.c. */
#include "backends/cpu/kernels/panel.h"

static void update(const kedge_call *call, size_t first, size_t end) {
  KEDGE_CALL_ARGS(adamw);
  float *restrict w = call->in[0].data, *restrict m = call->in[1].data, *restrict v = call->in[2].data;
  const float *restrict grad = KEDGE_IN_F(4);
  const float scale = KEDGE_IN_F(5)[0], *hyper = KEDGE_IN_F(6), rate = hyper[0], bias1 = hyper[1],
              bias2 = hyper[2];
  const float beta1 = a->beta1, beta2 = a->beta2, rest1 = a->rest1, rest2 = a->rest2, eps = a->eps,
              decay = a->decay;
  for (size_t i = first; i < end; i++) {
    float g = grad[i] * scale;
    m[i] = beta1 * m[i] + rest1 * g;
    v[i] = beta2 * v[i] + rest2 * g * g;
    w[i] = kedge_adamw_step(w[i], m[i], v[i], rate, bias1, bias2, eps, decay);
  }
  kedge_x *copy = call->in[3].data;
  if (copy) kedge__narrow(copy + first, w + first, end - first);
}

KEDGE_KERNEL(adamw) {
  KEDGE_CALL_ARGS(adamw);
  size_t blocks = kedge__blocks(a->n, KEDGE_BLOCK);
  KEDGE_PARALLEL_BLOCKS(blocks)
  for (size_t b = 0; b < blocks; b++) update(call, b * KEDGE_BLOCK, kedge__min((b + 1) * KEDGE_BLOCK, a->n));
}

KEDGE_KERNEL(accumulate) {
  KEDGE_CALL_ARGS(accumulate);
  float *restrict sum = call->in[0].data;
  const kedge_tensor x = call->in[1]; /* a copy, so that its dtype is known not to change inside the loop */
  size_t blocks = kedge__blocks(a->n, KEDGE_BLOCK);
  KEDGE_PARALLEL_BLOCKS(blocks)
  for (size_t b = 0; b < blocks; b++) {
    size_t end = kedge__min((b + 1) * KEDGE_BLOCK, a->n);
    for (size_t i = b * KEDGE_BLOCK; i < end; i++) sum[i] += kedge_load_w(&x, i);
  }
}
