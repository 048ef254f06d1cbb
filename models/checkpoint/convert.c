/* SPDX-License-Identifier: Apache-2.0
 * Float conversions of stored tensors (convert.h). Between two narrow types the way is through f32, which
 * holds both exactly, so that there is one rounding. */
#include "models/checkpoint/convert.h"

#include <string.h>

static float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static uint32_t to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

float kedge_f16_to_f32(uint16_t bits) {
  uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, exponent = bits >> 10 & 0x1Fu, fraction = bits & 0x3FFu;
  if (exponent == 31) return from_bits(sign | 0x7F800000u | fraction << 13);
  if (exponent) return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
  /* A denormal is fraction x 2^-24, exact in f32. */
  float value = (float)fraction * 0x1p-24f;
  return from_bits(sign | to_bits(value));
}

uint16_t kedge_f32_to_f16(float value) {
  uint32_t bits = to_bits(value), sign = bits >> 16 & 0x8000u, rest = bits & 0x7FFFFFFFu;
  if (rest > 0x7F800000u) return (uint16_t)(sign | 0x7E00u | (rest >> 13 & 0x1FFu));
  if (rest >= 0x477FF000u) return (uint16_t)(sign | 0x7C00u); /* 65520 and more rounds to infinity */
  if (rest < 0x38800000u) {
    /* Below 2^-14 the result counts steps of 2^-24: adding 2^-1 leaves them in the low bits, rounded by the
     * adder. */
    float shifted = from_bits(rest) + 0.5f;
    return (uint16_t)(sign | (to_bits(shifted) - 0x3F000000u));
  }
  uint32_t odd = rest >> 13 & 1;
  return (uint16_t)(sign | ((rest - 0x38000000u + 0xFFFu + odd) >> 13));
}

static float load(const uint8_t *from, kedge_st_dtype dtype, uint64_t i) {
  if (dtype == KEDGE_ST_F32) {
    float value;
    memcpy(&value, from + 4 * i, 4);
    return value;
  }
  uint16_t bits;
  memcpy(&bits, from + 2 * i, 2);
  return dtype == KEDGE_ST_F16 ? kedge_f16_to_f32(bits) : kedge_bf16_to_f32(bits);
}

static void store(uint8_t *to, kedge_st_dtype dtype, uint64_t i, float value) {
  if (dtype == KEDGE_ST_F32) {
    memcpy(to + 4 * i, &value, 4);
    return;
  }
  uint16_t bits = dtype == KEDGE_ST_F16 ? kedge_f32_to_f16(value) : kedge_f32_to_bf16(value);
  memcpy(to + 2 * i, &bits, 2);
}

/* Elements with all bits of the exponent set are infinite or not a number. */
static bool block_finite(const uint8_t *at, kedge_st_dtype dtype, uint64_t count) {
  uint32_t bad = 0;
  if (dtype == KEDGE_ST_F32) {
    for (uint64_t i = 0; i < count; i++) {
      uint32_t bits;
      memcpy(&bits, at + 4 * i, 4);
      bad |= (bits & 0x7F800000u) == 0x7F800000u;
    }
    return !bad;
  }
  const uint16_t mask = dtype == KEDGE_ST_F16 ? 0x7C00u : 0x7F80u;
  for (uint64_t i = 0; i < count; i++) {
    uint16_t bits;
    memcpy(&bits, at + 2 * i, 2);
    bad |= (bits & mask) == mask;
  }
  return !bad;
}

uint64_t kedge_floats_not_finite(const void *data, kedge_st_dtype dtype, uint64_t count) {
  enum { BLOCK = 4096 };
  const uint8_t *bytes = data;
  const uint32_t size = kedge_st_dtype_size(dtype);
  for (uint64_t i = 0; i < count; i += BLOCK) {
    uint64_t n = count - i < BLOCK ? count - i : BLOCK, k = i;
    if (block_finite(bytes + i * size, dtype, n)) continue;
    while (block_finite(bytes + k * size, dtype, 1)) k++;
    return k;
  }
  return count;
}

static bool is_float(kedge_st_dtype dtype) {
  return dtype == KEDGE_ST_F32 || dtype == KEDGE_ST_BF16 || dtype == KEDGE_ST_F16;
}

kedge_status kedge_convert_floats(void *to, kedge_st_dtype to_dtype, const void *from,
                                  kedge_st_dtype from_dtype, uint64_t count) {
  if (!is_float(to_dtype) || !is_float(from_dtype))
    return kedge_fail(KEDGE_ERR_UNSUPPORTED, "no conversion from %s to %s", kedge_st_dtype_name(from_dtype),
                      kedge_st_dtype_name(to_dtype));
  if (to_dtype == from_dtype) {
    if (count) memmove(to, from, (size_t)(count * kedge_st_dtype_size(to_dtype)));
    return KEDGE_OK;
  }
  for (uint64_t i = 0; i < count; i++) store(to, to_dtype, i, load(from, from_dtype, i));
  return KEDGE_OK;
}
