#version 450
/* SPDX-License-Identifier: Apache-2.0
 * Movement of rows, one element at a time; core/ops/rows.c, heads.c and choice.c have the meaning. Sums are in
 * reduce.comp. */
#extension GL_GOOGLE_include_directive : require
#include "shaders/kedge.glsl"
#include "shaders/elements.glsl"

#if defined(KEDGE_OP_gather_rows)
#define COUNT (ARGS.rows * ARGS.cols)
void element(uint i) {
  uint row = i / ARGS.cols, col = i - row * ARGS.cols;
  float x = 0.0;
  if (int(row) < load_i(IN(2), ARGS.experts))
    x = load_x(IN(0), uint(load_i(IN(1), row)) / ARGS.topk * PITCH(0) + col);
  store_x(OUT(0), i, x);
}
#elif defined(KEDGE_OP_combine_rows)
#define COUNT (ARGS.tokens * ARGS.cols)
void element(uint i) {
  uint t = i / ARGS.cols, col = i - t * ARGS.cols;
  float sum = 0.0;
  for (uint s = t * ARGS.topk; s < (t + 1) * ARGS.topk; s++) {
    int row = load_i(IN(1), s);
    if (row >= 0) sum += load_x(IN(0), uint(row) * ARGS.cols + col);
  }
  store_x(OUT(0), i, sum);
}
#elif defined(KEDGE_OP_embed)
#define COUNT (ARGS.tokens * ARGS.cols)
void element(uint i) {
  uint t = i / ARGS.cols;
  store_x(OUT(0), i, load_x(IN(0), uint(load_i(IN(1), t)) * ARGS.cols + (i - t * ARGS.cols)));
}
#elif defined(KEDGE_OP_scatter_rows)
#define COUNT (ARGS.rows * ARGS.cols)
void element(uint i) {
  uint t = i / ARGS.cols, col = i - t * ARGS.cols;
  int to = load_i(IN(2), t);
  if (to >= 0) store_x(IN(0), uint(to) * ARGS.cols + col, load_x(IN(1), t * PITCH(1) + col));
}
#elif defined(KEDGE_OP_slice)
#define COUNT (ARGS.rows * ARGS.cols)
void element(uint i) {
  uint row = i / ARGS.cols;
  store_x(OUT(0), i, load_x(IN(0), row * PITCH(0) + ARGS.offset + (i - row * ARGS.cols)));
}
#elif defined(KEDGE_OP_place)
#define COUNT (ARGS.rows * ARGS.total)
void element(uint i) {
  uint row = i / ARGS.total, col = i - row * ARGS.total;
  float x = 0.0;
  if (col >= ARGS.offset && col - ARGS.offset < ARGS.cols) x = load_x(IN(0), row * PITCH(0) + col - ARGS.offset);
  store_x(OUT(0), i, x);
}
#elif defined(KEDGE_OP_concat)
#define COUNT (ARGS.rows * (ARGS.cols_a + ARGS.cols_b))
void element(uint i) {
  uint cols = ARGS.cols_a + ARGS.cols_b, row = i / cols, col = i - row * cols;
  float x;
  if (col < ARGS.cols_a)
    x = load_x(IN(0), row * PITCH(0) + col);
  else
    x = load_x(IN(1), row * PITCH(1) + col - ARGS.cols_a);
  store_x(OUT(0), i, x);
}
#elif defined(KEDGE_OP_row_bias)
#define COUNT (ARGS.tokens * ARGS.experts)
void element(uint i) {
  uint t = i / ARGS.experts;
  int span = load_i(IN(2), t);
  float x = load_f(IN(0), i);
  if (span >= 0) x += ARGS.factor * load_f(IN(1), uint(span) * ARGS.experts + (i - t * ARGS.experts));
  store_f(OUT(0), i, x);
}
#elif defined(KEDGE_OP_repeat)
#define COUNT (ARGS.rows * ARGS.times * ARGS.cols)
void element(uint i) {
  uint wide = ARGS.times * ARGS.cols, row = i / wide, col = (i - row * wide) % ARGS.cols;
  store_x(OUT(0), i, load_x(IN(0), row * PITCH(0) + col));
}
#elif defined(KEDGE_OP_fold)
#define COUNT (ARGS.rows * ARGS.cols)
void element(uint i) {
  uint row = i / ARGS.cols, at = row * PITCH(0) + (i - row * ARGS.cols);
  float sum = 0.0;
  for (uint n = 0; n < ARGS.times; n++) sum += load_x(IN(0), at + n * ARGS.cols);
  store_x(OUT(0), i, sum);
}
#elif defined(KEDGE_OP_choose_rows)
#define COUNT (ARGS.tokens * ARGS.k)
void element(uint i) {
  uint t = i / ARGS.k;
  int row = load_i(IN(2), t);
  int id;
  if (row < 0)
    id = load_i(IN(0), i);
  else
    id = load_i(IN(1), uint(row) * ARGS.k + (i - t * ARGS.k));
  store_i(OUT(0), i, id);
}
#endif

ELEMENTS_MAIN
