/* SPDX-License-Identifier: Apache-2.0
 * The optimizer's ops on graphics cards; the meaning is core/ops/optim.c. */
#include "backends/gpu/kernel.h"

GPU_OP_PLAIN(clip_scale) {
  const float *squares = gpu_in<float>(s, 0);
  float *scale_out = gpu_out<float>(s, 0), *norm_out = gpu_out<float>(s, 1);
  const float max_norm = a->max_norm;
  gpu_each(
      s, 1, GPU_LAMBDA(uint64_t) {
        const float norm = sqrtf(squares[0]), scale = max_norm / (norm + 1e-6f);
        scale_out[0] = max_norm <= 0 || scale >= 1 ? 1 : scale;
        norm_out[0] = norm;
      });
}

GPU_OP(adamw) {
  float *w = gpu_updated<float>(s, 0), *m = gpu_updated<float>(s, 1), *v = gpu_updated<float>(s, 2);
  X *copy = gpu_updated<X>(s, 3);
  const float *grad = gpu_in<float>(s, 4), *scale = gpu_in<float>(s, 5), *hyper = gpu_in<float>(s, 6);
  const kedge_args_adamw p = *a;
  gpu_each(
      s, a->n, GPU_LAMBDA(uint64_t i) {
        const float g = grad[i] * scale[0];
        m[i] = p.beta1 * m[i] + p.rest1 * g;
        v[i] = p.beta2 * v[i] + p.rest2 * g * g;
        w[i] = kedge_adamw_step(w[i], m[i], v[i], hyper[0], hyper[1], hyper[2], p.eps, p.decay);
        if (copy) copy[i] = gpu_store<X>(w[i]);
      });
}

GPU_OP_PLAIN(accumulate) {
  float *sum = gpu_updated<float>(s, 0);
  const gpu_w x = gpu_as_w(&s->call->in[1]);
  gpu_each(
      s, a->n, GPU_LAMBDA(uint64_t i) { sum[i] += gpu_load_w(x, i); });
}
