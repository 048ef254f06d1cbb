/* SPDX-License-Identifier: Apache-2.0
 * Dtypes: sizes, names, bf16. */
#include "core/kedge.h"
#include "core/scalar.h"

size_t kedge_dtype_size(kedge_dtype dtype) {
  static const size_t sizes[] = {[KEDGE_F32] = 4, [KEDGE_BF16] = 2, [KEDGE_I32] = 4, [KEDGE_F64] = 8};
  return (unsigned)dtype < KEDGE_DTYPE_COUNT ? sizes[dtype] : 0;
}

const char *kedge_dtype_name(kedge_dtype dtype) {
  static const char *const names[] = {
      [KEDGE_F32] = "f32", [KEDGE_BF16] = "bf16", [KEDGE_I32] = "i32", [KEDGE_F64] = "f64"};
  return (unsigned)dtype < KEDGE_DTYPE_COUNT ? names[dtype] : "?";
}

float kedge_bf16_to_f32(uint16_t bits) {
  union {
    uint32_t u;
    float f;
  } value = {(uint32_t)bits << 16};
  return value.f;
}

uint16_t kedge_f32_to_bf16(float value) {
  return kedge__bf16_round(value);
}
