/* SPDX-License-Identifier: Apache-2.0
 *
 * Scalar formulas shared by every backend (C, CUDA, HIP, GLSL): one definition of what a sigmoid is. Written
 * on kedge_real.
 */
#ifndef KEDGE_SCALAR_H
#define KEDGE_SCALAR_H

#include "core/args.h"

#ifndef KEDGE_GLSL
#include <math.h>
#ifndef KEDGE_SCALAR /* kernels of graphics cards add that it also runs there */
#define KEDGE_SCALAR static inline
#endif
#define KEDGE_EXP(x)  ((kedge_real)(sizeof(kedge_real) == 8 ? exp((double)(x)) : (double)expf((float)(x))))
#define KEDGE_LOG(x)  ((kedge_real)(sizeof(kedge_real) == 8 ? log((double)(x)) : (double)logf((float)(x))))
#define KEDGE_SQRT(x) ((kedge_real)(sizeof(kedge_real) == 8 ? sqrt((double)(x)) : (double)sqrtf((float)(x))))

/* f32 -> bf16 bits, to nearest even; NaN stays NaN. */
KEDGE_SCALAR uint16_t kedge__bf16_round(float value) {
  union {
    float f;
    uint32_t u;
  } bits = {value};
  if ((bits.u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits.u >> 16) | 0x40u);
  return (uint16_t)((bits.u + 0x7fffu + ((bits.u >> 16) & 1u)) >> 16);
}
#else
#define KEDGE_SCALAR
#define KEDGE_EXP(x)  kedge_exp(x) /* shaders/kedge.glsl */
#define KEDGE_LOG(x)  kedge_log(x)
#define KEDGE_SQRT(x) sqrt(x)
#endif

/* 1 / (1 + exp(-x)), without overflow for large |x|. */
KEDGE_SCALAR kedge_real kedge_sigmoid(kedge_real x) {
  kedge_real e = KEDGE_EXP(x < 0 ? x : -x);
  return x < 0 ? e / (1 + e) : 1 / (1 + e);
}

/* silu(x) = x sigmoid(x), and its derivative. */
KEDGE_SCALAR kedge_real kedge_silu(kedge_real x) {
  return x * kedge_sigmoid(x);
}
KEDGE_SCALAR kedge_real kedge_silu_slope(kedge_real x) {
  kedge_real s = kedge_sigmoid(x);
  return s * (1 + x * (1 - s));
}

/* One AdamW update of a weight (torch.optim.AdamW): m, v are updated moments; the result is the new weight.
 */
KEDGE_SCALAR kedge_real kedge_adamw_step(kedge_real w, kedge_real m, kedge_real v, kedge_real rate,
                                         kedge_real bias1, kedge_real bias2, kedge_real eps,
                                         kedge_real decay) {
  w -= rate * decay * w;
  return w - rate / bias1 * m / (KEDGE_SQRT(v) / KEDGE_SQRT(bias2) + eps);
}

#endif
