#version 450
/* SPDX-License-Identifier: Apache-2.0
 * Rotary positions; core/ops/attention.c has the meaning. An element is one pair of a token, for all heads. */
#extension GL_GOOGLE_include_directive : require
#include "shaders/kedge.glsl"
#include "shaders/elements.glsl"

/* cos and sin of |angle| < 2^24: the angle in quarter turns as a fixed-point number, exact, then polynomials. */
vec2 turn(float angle) {
  uint bits = floatBitsToUint(angle) & 0x7fffffffu;
  int e = int(bits >> 23) - 127;
  float square = angle * angle;
  if (e < -7) return vec2(fma(-0.5, square, 1.0), fma(-angle * square, 1.0 / 6.0, angle));
  uint64_t m = uint64_t((bits & 0x007fffffu) | 0x00800000u);
  /* 2/pi = 0xa2f9836e4e44152a / 2^64 */
  uint64_t p = m * 0xa2f9836eul + ((m * 0x4e44152aul) >> 32); /* quarter turns times 2^(55 - e) */
  int shift = 55 - e;
  uint64_t rest = p & ((1ul << shift) - 1ul);
  uint quarter = uint(p >> shift);
  float f;
  if (rest >= (1ul << (shift - 1))) {
    quarter += 1u;
    f = -float(uint((((1ul << shift) - rest) >> (shift - 31)))) * (1.0 / 2147483648.0);
  } else {
    f = float(uint(rest >> (shift - 31))) * (1.0 / 2147483648.0);
  }
  float r = f * 1.57079632679, z = r * r;
  float s = fma(fma(fma(-1.9515295891e-4, z, 8.3321608736e-3), z, -1.6666654611e-1) * z, r, r);
  float c = fma(fma(fma(2.443315711809948e-5, z, -1.388731625493765e-3), z, 4.166664568298827e-2) * z, z,
                fma(-0.5, z, 1.0));
  if ((quarter & 1u) != 0u) {
    float swap = s;
    s = c;
    c = -swap;
  }
  if ((quarter & 2u) != 0u) {
    s = -s;
    c = -c;
  }
  return vec2(c, angle < 0.0 ? -s : s);
}

#define COUNT (ARGS.tokens * (ARGS.dim / 2u))
void element(uint index) {
  uint pairs = ARGS.dim / 2u, t = index / pairs, i = index - t * pairs;
  uint step_ = ARGS.interleaved != 0 ? 1u : pairs;
  vec2 cs = turn(float(load_i(IN(2), t)) * load_f(IN(1), i)) * ARGS.factor;
  if (ARGS.inverse != 0) cs.y = -cs.y;
  uint at = ARGS.interleaved != 0 ? 2u * i : i;
  for (uint h = 0; h < ARGS.heads; h++) {
    uint from = t * PITCH(0) + h * ARGS.dim + at, to = (t * ARGS.heads + h) * ARGS.dim + at;
    float first = load_x(IN(0), from), second = load_x(IN(0), from + step_);
    store_x(OUT(0), to, first * cs.x - second * cs.y);
    store_x(OUT(0), to + step_, second * cs.x + first * cs.y);
  }
}

ELEMENTS_MAIN
