#version 450
/* SPDX-License-Identifier: Apache-2.0
 * Elementwise ops; their meaning is in core/ops/elementwise.c, swiglu.c and optim.c. A workgroup has S0 elements a
 * lane, lanes side by side. */
#extension GL_GOOGLE_include_directive : require
#include "shaders/kedge.glsl"
#include "shaders/elements.glsl"

#if defined(KEDGE_OP_copy)
#define COUNT (ARGS.rows * ARGS.cols)
void element(uint i) {
  uint row = i / ARGS.cols;
  store_as(S1 != 0, OUT(0), i, load_as(S2 != 0, IN(0), row * PITCH(0) + (i - row * ARGS.cols)));
}
#elif defined(KEDGE_OP_fill)
#define COUNT ARGS.n
void element(uint i) {
  store_as(S1 != 0, OUT(0), i, ARGS.value);
}
#elif defined(KEDGE_OP_spread)
#define COUNT ARGS.n
void element(uint i) {
  store_f(OUT(0), i, load_f(IN(0), 0));
}
#elif defined(KEDGE_OP_add)
#define COUNT ARGS.n
void element(uint i) {
  store_x(OUT(0), i, load_x(IN(0), i) + load_x(IN(1), i));
}
#elif defined(KEDGE_OP_mul)
#define COUNT ARGS.n
void element(uint i) {
  store_x(OUT(0), i, load_x(IN(0), i) * load_x(IN(1), i));
}
#elif defined(KEDGE_OP_scale)
#define COUNT ARGS.n
void element(uint i) {
  store_x(OUT(0), i, ARGS.factor * load_x(IN(0), i));
}
#elif defined(KEDGE_OP_clamp)
#define COUNT ARGS.n
void element(uint i) {
  float x = load_x(IN(0), i), limit = ARGS.limit;
  store_x(OUT(0), i, x < -limit ? -limit : x > limit ? limit : x);
}
#elif defined(KEDGE_OP_clamp_grad)
#define COUNT ARGS.n
void element(uint i) {
  float x = load_x(IN(0), i);
  store_x(OUT(0), i, x < -ARGS.limit || x > ARGS.limit ? 0.0 : load_x(IN(1), i));
}
#elif defined(KEDGE_OP_detach)
#define COUNT ARGS.n
void element(uint i) {
  store_x(OUT(0), i, load_x(IN(0), i));
}
#elif defined(KEDGE_OP_swiglu)
#define COUNT ARGS.n
void element(uint i) {
  store_x(OUT(0), i, kedge_silu(load_x(IN(0), i)) * load_x(IN(1), i));
}
#elif defined(KEDGE_OP_swiglu_grad)
#define COUNT ARGS.n
void element(uint i) {
  float gate = load_x(IN(0), i), up = load_x(IN(1), i), dy = load_x(IN(2), i);
  store_x(OUT(0), i, dy * up * kedge_silu_slope(gate));
  store_x(OUT(1), i, dy * kedge_silu(gate));
}
#elif defined(KEDGE_OP_adamw)
#define COUNT ARGS.n
void element(uint i) {
  float g = load_f(IN(4), i) * load_f(IN(5), 0);
  float m = ARGS.beta1 * load_f(IN(1), i) + ARGS.rest1 * g;
  float v = ARGS.beta2 * load_f(IN(2), i) + ARGS.rest2 * g * g;
  float w = kedge_adamw_step(load_f(IN(0), i), m, v, load_f(IN(6), 0), load_f(IN(6), 1), load_f(IN(6), 2), ARGS.eps,
                             ARGS.decay);
  store_f(IN(1), i, m);
  store_f(IN(2), i, v);
  store_f(IN(0), i, w);
  if (S1 != 0) store_x(IN(3), i, w);
}
#elif defined(KEDGE_OP_accumulate)
#define COUNT ARGS.n
void element(uint i) {
  store_f(IN(0), i, load_f(IN(0), i) + load_as(S1 != 0, IN(1), i));
}
#endif

ELEMENTS_MAIN
