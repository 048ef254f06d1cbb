/* SPDX-License-Identifier: Apache-2.0
 *
 * exp, sigmoid, log, sine and cosine for loops that the compiler vectorises: no branches, no calls. f32,
 * error below 2 units in the last place (log: below 3; sine and cosine: of 1).
 */
#ifndef KEDGE_CPU_VEXP_H
#define KEDGE_CPU_VEXP_H

#include <stdint.h>

/* 2^n for n in [-126, 127], from the bits of the exponent. */
static inline float kedge__power_of_2(int32_t n) {
  union {
    uint32_t u;
    float f;
  } bits = {((uint32_t)n + 127u) << 23};
  return bits.f;
}

/* exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln(2) / 2. Overflow gives infinity, underflow goes through
 * the subnormals to 0, NaN stays NaN. */
static inline float kedge__vexp(float x) {
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  const float shift =
      12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits */
  union {
    float f;
    uint32_t u;
  } shifted = {x * 1.44269504f + shift};
  float n = shifted.f - shift;
  int32_t power = (int32_t)(shifted.u - 0x4b400000u);
  /* ln 2 in two parts, the first of so few bits that its product with n is exact. */
  float r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  /* exp(r) - 1 - r by its series: the next term is below 6e-9. */
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * (r * r) + r;
  /* In two steps, because 2^n itself may overflow or be subnormal where the result is not. NaN has any power.
   */
  int32_t half = power >> 1;
  return (1.0f + p) * kedge__power_of_2(half) * kedge__power_of_2(power - half);
}

/* 1 / (1 + exp(-x)), without overflow for large |x|. */
static inline float kedge__vsigmoid(float x) {
  float e = kedge__vexp(x < 0 ? x : -x);
  return (x < 0 ? e : 1.0f) / (1.0f + e);
}

/* log(x) of a positive normal number: log 2^n + log(1 + f), 1 + f in [sqrt(1/2), sqrt(2)), the latter by
 * log((1 + s) / (1 - s)) = 2 (s + s^3 / 3 + s^5 / 5 ...) with s = f / (2 + f), whose next term is below 1e-9.
 */
static inline float kedge__vlog(float x) {
  union {
    float f;
    uint32_t u;
  } bits = {x};
  int32_t power = (int32_t)(bits.u - 0x3f3504f3u) >> 23;
  bits.u -= (uint32_t)power << 23;
  float n = (float)power, f = bits.f - 1, s = f / (2 + f), q = s * s;
  float p = 1.0f / 9;
  p = p * q + 1.0f / 7;
  p = p * q + 1.0f / 5;
  p = p * q + 1.0f / 3;
  return n * 0.693359375f + (n * -2.12194440e-4f + 2 * (s + s * (q * p)));
}

/* Sine and cosine of |x| < 2^30 by their series around the nearest multiple n of pi / 2, in which x stands in
 * double, so that the angle of a far position keeps all of its digits. */
static inline void kedge__vsincos(float x, float *sine, float *cosine) {
  const double shift = 6755399441055744.0; /* 1.5 * 2^52: as in kedge__vexp */
  double n = ((double)x * 0.63661977236758134 + shift) - shift;
  float r = (float)((double)x - n * 1.5707963267948966), q = r * r;
  uint32_t turn = (uint32_t)(int32_t)n;
  float s = 1.0f / 362880;
  s = s * q - 1.0f / 5040;
  s = s * q + 1.0f / 120;
  s = s * q - 1.0f / 6;
  s = r + r * (s * q);
  float c = -1.0f / 3628800;
  c = c * q + 1.0f / 40320;
  c = c * q - 1.0f / 720;
  c = c * q + 1.0f / 24;
  c = 1.0f - q * (0.5f - c * q);
  union {
    float f;
    uint32_t u;
  } a = {turn & 1 ? c : s}, b = {turn & 1 ? s : c};
  a.u ^= (turn & 2) << 30;
  b.u ^= ((turn + 1) & 2) << 30;
  *sine = a.f;
  *cosine = b.f;
}

#endif
