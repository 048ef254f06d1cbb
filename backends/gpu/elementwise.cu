/* SPDX-License-Identifier: Apache-2.0
 * Elementwise ops on graphics cards; siblings core/ops/elementwise.c (the meaning), backends/cpu/kernels. */
#include "backends/gpu/kernel.h"

GPU_OP_PLAIN(copy) {
  const gpu_w x = gpu_as_w(&s->call->in[0]), y = gpu_as_w(&s->call->out[0]);
  const size_t cols = a->cols, pitch = gpu_pitch(s, 0);
  gpu_each(
      s, (uint64_t)a->rows * a->cols,
      GPU_LAMBDA(uint64_t i) { gpu_store_w(y, i, gpu_load_w(x, i / cols * pitch + i % cols)); });
}

GPU_OP_PLAIN(fill) {
  const gpu_w y = gpu_as_w(&s->call->out[0]);
  const float value = a->value;
  gpu_each(
      s, a->n, GPU_LAMBDA(uint64_t i) { gpu_store_w(y, i, value); });
}

GPU_OP_PLAIN(spread) {
  const float *x = gpu_in<float>(s, 0);
  float *y = gpu_out<float>(s, 0);
  gpu_each(
      s, a->n, GPU_LAMBDA(uint64_t i) { y[i] = x[0]; });
}

GPU_OP(add) {
  const X *x = gpu_in<X>(s, 0), *z = gpu_in<X>(s, 1);
  X *y = gpu_out<X>(s, 0);
  gpu_each(
      s, a->n, GPU_LAMBDA(uint64_t i) { y[i] = gpu_store<X>(gpu_load(x[i]) + gpu_load(z[i])); });
}

GPU_OP(mul) {
  const X *x = gpu_in<X>(s, 0), *z = gpu_in<X>(s, 1);
  X *y = gpu_out<X>(s, 0);
  gpu_each(
      s, a->n, GPU_LAMBDA(uint64_t i) { y[i] = gpu_store<X>(gpu_load(x[i]) * gpu_load(z[i])); });
}

GPU_OP(scale) {
  const X *x = gpu_in<X>(s, 0);
  X *y = gpu_out<X>(s, 0);
  const float factor = a->factor;
  gpu_each(
      s, a->n, GPU_LAMBDA(uint64_t i) { y[i] = gpu_store<X>(factor * gpu_load(x[i])); });
}

GPU_OP(clamp) {
  const X *x = gpu_in<X>(s, 0);
  X *y = gpu_out<X>(s, 0);
  const float limit = a->limit;
  gpu_each(
      s, a->n, GPU_LAMBDA(uint64_t i) {
        const float v = gpu_load(x[i]);
        y[i] = gpu_store<X>(v < -limit ? -limit : v > limit ? limit : v);
      });
}

GPU_OP(clamp_grad) {
  const X *x = gpu_in<X>(s, 0), *dy = gpu_in<X>(s, 1);
  X *y = gpu_out<X>(s, 0);
  const float limit = a->limit;
  gpu_each(
      s, a->n, GPU_LAMBDA(uint64_t i) {
        const float v = gpu_load(x[i]);
        y[i] = v < -limit || v > limit ? gpu_store<X>(0) : dy[i];
      });
}

GPU_OP(detach) {
  const X *x = gpu_in<X>(s, 0);
  X *y = gpu_out<X>(s, 0);
  gpu_each(
      s, a->n, GPU_LAMBDA(uint64_t i) { y[i] = x[i]; });
}
