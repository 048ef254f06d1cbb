/* SPDX-License-Identifier: Apache-2.0
 *
 * For kernel parts of family files: the storage type of this build and how to load and store it. Arithmetic
 * is in kedge_real (float, or double in the all-double build); a store rounds once.
 *
 *   kedge_x   storage type of x tensors: float, uint16_t (bf16 bits) or double
 *   kedge_real   type of f tensors and of all arithmetic
 */
#ifndef KEDGE_OPS_KERNEL_H
#define KEDGE_OPS_KERNEL_H

#include "core/device.h"
#include "core/scalar.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define KEDGE_CAT_(a, b, c)          kedge_##a##_##b
#define KEDGE_CAT(a, b)              KEDGE_CAT_(a, b, )
#define KEDGE_KERNEL_NAME(build, op) KEDGE_CAT(build, op)
/* Defines kedge_<build>_<op>, for instance kedge_ref_bf16_rms_norm. */
#define KEDGE_KERNEL(op)                                                                                     \
  void KEDGE_KERNEL_NAME(KEDGE_BUILD, op)(const kedge_call *call);                                           \
  void KEDGE_KERNEL_NAME(KEDGE_BUILD, op)(const kedge_call *call)

#if defined(KEDGE_STORAGE_BF16)
typedef uint16_t kedge_x;
static inline kedge_real kedge_load(kedge_x v) {
  union {
    uint32_t u;
    float f;
  } bits = {(uint32_t)v << 16};
  return (kedge_real)bits.f;
}
static inline kedge_x kedge_store(kedge_real v) {
  return kedge__bf16_round((float)v);
}
#elif defined(KEDGE_STORAGE_F64)
typedef double kedge_x;
static inline kedge_real kedge_load(kedge_x v) {
  return v;
}
static inline kedge_x kedge_store(kedge_real v) {
  return v;
}
#else
typedef float kedge_x;
static inline kedge_real kedge_load(kedge_x v) {
  return v;
}
static inline kedge_x kedge_store(kedge_real v) {
  return (kedge_x)v;
}
#endif

/* Element i of a w tensor, whose dtype is known only at run time. */
static inline kedge_real kedge_load_w(const kedge_tensor *t, size_t i) {
  if (t->dtype == KEDGE_BF16) {
    union {
      uint32_t u;
      float f;
    } bits = {(uint32_t)((const uint16_t *)t->data)[i] << 16};
    return (kedge_real)bits.f;
  }
  return ((const kedge_real *)t->data)[i];
}

static inline void kedge_store_w(const kedge_tensor *t, size_t i, kedge_real v) {
  if (t->dtype == KEDGE_BF16)
    ((uint16_t *)t->data)[i] = kedge__bf16_round((float)v);
  else
    ((kedge_real *)t->data)[i] = v;
}

/* Typed pointers to a call's tensors. */
#define KEDGE_IN_X(i)  ((const kedge_x *)call->in[i].data)
#define KEDGE_IN_F(i)  ((const kedge_real *)call->in[i].data)
#define KEDGE_IN_I(i)  ((const int32_t *)call->in[i].data)
#define KEDGE_OUT_X(i) ((kedge_x *)call->out[i].data)
#define KEDGE_OUT_F(i) ((kedge_real *)call->out[i].data)
#define KEDGE_OUT_I(i) ((int32_t *)call->out[i].data)
/* `const kedge_args_<op> *a`, the call's arguments. */
#define KEDGE_CALL_ARGS(op) const kedge_args_##op *a = call->args

/* exp, log, ... of this build's kedge_real. */
#if defined(KEDGE_STORAGE_F64)
#define KEDGE_MATH(function) function
#else
#define KEDGE_MATH(function) function##f
#endif

#endif
