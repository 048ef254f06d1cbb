#version 450
/* SPDX-License-Identifier: Apache-2.0
 * RMS norm; core/ops/norm.c has the meaning. One subgroup a row; the gradient of w in blocks of S0 rows, then one lane
 * a column adds the blocks. */
#extension GL_GOOGLE_include_directive : require
#include "shaders/kedge.glsl"
#include "shaders/reduce.glsl"

#if defined(KEDGE_OP_rms_norm)
void row(uint i) {
  uint first = i * ARGS.cols;
  float sum = 0.0;
  LANES(j, ARGS.cols) {
    float x = load_x(IN(0), first + j);
    sum += x * x;
  }
  float scale = 1.0 / sqrt(subgroupAdd(sum) / float(ARGS.cols) + ARGS.eps);
  if (LANE == 0) store_f(OUT(1), i, scale);
  LANES(j, ARGS.cols) store_x(OUT(0), first + j, load_x(IN(1), j) * load_x(IN(0), first + j) * scale);
}
#elif defined(KEDGE_OP_rms_norm_grad)
void row(uint i) {
  uint first = i * ARGS.cols;
  float sum = 0.0, s = load_f(IN(2), i);
  LANES(j, ARGS.cols) sum += load_x(IN(1), j) * load_x(IN(3), first + j) * load_x(IN(0), first + j);
  float pull = subgroupAdd(sum) / float(ARGS.cols) * s * s;
  LANES(j, ARGS.cols)
  store_x(OUT(0), first + j, s * (load_x(IN(1), j) * load_x(IN(3), first + j) - load_x(IN(0), first + j) * pull));
}
#elif defined(KEDGE_OP_norm_weight_part)
/* Groups: blocks of rows times blocks of LOCAL columns. */
void row(uint group) {
  uint wide = (ARGS.cols + LOCAL - 1u) / LOCAL, block = group / wide, j = (group - block * wide) * LOCAL + LANE;
  if (j >= ARGS.cols) return;
  float sum = 0.0;
  for (uint i = block * S0; i < min((block + 1u) * S0, ARGS.rows); i++)
    sum += load_x(IN(3), i * ARGS.cols + j) * load_x(IN(0), i * ARGS.cols + j) * load_f(IN(2), i);
  store_f(SCRATCH, block * ARGS.cols + j, sum);
}
#elif defined(KEDGE_OP_norm_weight)
void row(uint group) {
  uint j = group * LOCAL + LANE;
  if (j >= ARGS.cols) return;
  float sum = 0.0;
  for (uint block = 0; block * S0 < ARGS.rows; block++) sum += load_f(SCRATCH, block * ARGS.cols + j);
  store_f(OUT(1), j, sum);
}
#endif

ROWS_MAIN
