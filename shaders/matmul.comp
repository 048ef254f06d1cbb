#version 450
/* SPDX-License-Identifier: Apache-2.0
 * Dense and grouped matrix products, and those of the head's loss; core/ops/matmul.c and softmax.c have the meaning.
 * <op>_matrix is the product of bf16 by the device's matrices (matrix.glsl), <op>_scales the pass before it. */
#extension GL_GOOGLE_include_directive : require
#if defined(KEDGE_OP_matmul_matrix) || defined(KEDGE_OP_grouped_matmul_matrix) || defined(KEDGE_OP_grouped_wgrad_matrix)
#define MATRIX
#elif defined(KEDGE_OP_matmul_scales) || defined(KEDGE_OP_grouped_matmul_scales) || defined(KEDGE_OP_grouped_wgrad_scales)
#define SCALES
#endif
#if defined(KEDGE_OP_matmul_matrix) || defined(KEDGE_OP_matmul_scales)
#define KEDGE_OP_matmul
#elif defined(KEDGE_OP_grouped_matmul_matrix) || defined(KEDGE_OP_grouped_matmul_scales)
#define KEDGE_OP_grouped_matmul
#elif defined(KEDGE_OP_grouped_wgrad_matrix) || defined(KEDGE_OP_grouped_wgrad_scales)
#define KEDGE_OP_grouped_wgrad
#endif
#include "shaders/kedge.glsl"
#include "shaders/tile.glsl"

/* Tiles follow each other down a column of C, so that its part of B stays in caches. */
#if defined(KEDGE_OP_grouped_wgrad)
const bool LINES_LOOK_UP = true;
#else
const bool LINES_LOOK_UP = false;
#endif

#if defined(KEDGE_OP_matmul)
const bool A_ALONG_K = !TRANS_A;
const bool B_ALONG_K = TRANS_B;
bool locate(uint group, out Tile t) {
  uint high = DIVIDE_UP(ARGS.m, TILE_M), across = group / high;
  t = Tile((group - across * high) * TILE_M, across * TILE_N, ARGS.m, ARGS.n, ARGS.k);
  a_at = IN(0);
  b_at = IN(1);
  c_at = OUT(0);
  return true;
}
uint a_line(uint i) {
  return i * PITCH(0);
}
uint b_line(uint i) {
  return i * PITCH(1);
}
uint c_line(uint row) {
  return row * ARGS.n;
}
uint a_scale(uint i) {
  return i;
}
uint b_scale(uint i) {
  return ARGS.m + i;
}
Span span(uint group) {
  uint before = DIVIDE_UP(ARGS.m, SPAN_A), first = group < before ? group * SPAN_A : (group - before) * SPAN_B;
  a_at = IN(0);
  b_at = IN(1);
  return Span(group < before, first, group < before ? ARGS.m : ARGS.n, ARGS.k);
}

#elif defined(KEDGE_OP_grouped_matmul)
const bool A_ALONG_K = true;
const bool B_ALONG_K = TRANS_B;
uint expert;
/* Tiles of the experts' rows, expert after expert: the group's number says how many tiles come before it. */
bool locate(uint group, out Tile t) {
  uint high = DIVIDE_UP(ARGS.rows, TILE_M) + ARGS.experts, across = group / high, down = group - across * high;
  uint before = 0, first = uint(load_i(IN(3), 0));
  bool found = false;
  expert = 0;
  for (uint e = 0; e < ARGS.experts && !found; e++) {
    uint end = uint(load_i(IN(3), e + 1u)), tiles = DIVIDE_UP(end - first, TILE_M);
    if (down < before + tiles) {
      t = Tile(first + (down - before) * TILE_M, across * TILE_N, end, ARGS.n, ARGS.k);
      expert = e;
      found = true;
    }
    before += tiles;
    first = end;
  }
  if (!found) return false;
  a_at = IN(0);
  b_at = Parts(IN(1)).at[expert];
  c_at = OUT(0);
  return true;
}
uint a_line(uint row) {
  if (ARGS.gather != 0) row = uint(load_i(IN(2), row)) / ARGS.topk;
  return row * PITCH(0);
}
uint b_line(uint i) {
  return i * (TRANS_B ? ARGS.k : ARGS.n);
}
uint c_line(uint row) {
  return row * ARGS.n;
}
uint a_scale(uint row) {
  return row;
}
uint b_scale(uint i) {
  return ARGS.rows + expert * ARGS.n + i;
}
/* Rows of A up to the last expert's end, then columns of each expert's weight. */
Span span(uint group) {
  uint before = DIVIDE_UP(ARGS.rows, SPAN_A), wide = DIVIDE_UP(ARGS.n, SPAN_B);
  a_at = IN(0);
  if (group < before) return Span(true, group * SPAN_A, uint(load_i(IN(3), ARGS.experts)), ARGS.k);
  expert = (group - before) / wide;
  b_at = Parts(IN(1)).at[expert];
  return Span(false, (group - before - expert * wide) * SPAN_B, ARGS.n, ARGS.k);
}

#elif defined(KEDGE_OP_grouped_wgrad)
const bool A_ALONG_K = false;
const bool B_ALONG_K = false;
uint first_row, expert;
/* k runs over the rows of the expert. */
bool locate(uint group, out Tile t) {
  uint wide = DIVIDE_UP(ARGS.k, TILE_N), high = DIVIDE_UP(ARGS.n, TILE_M), down = group / wide;
  expert = down / high;
  first_row = uint(load_i(IN(3), expert));
  t = Tile((down - expert * high) * TILE_M, (group - down * wide) * TILE_N, ARGS.n, ARGS.k,
           uint(load_i(IN(3), expert + 1u)) - first_row);
  a_at = IN(0);
  b_at = IN(1);
  c_at = OUT(0);
  return true;
}
uint line(uint row, uint gathered, uint pitch) {
  if (gathered != 0) row = uint(load_i(IN(2), row)) / ARGS.topk;
  return row * pitch;
}
uint a_line(uint k) {
  return line(first_row + k, ARGS.gather_dy, PITCH(0));
}
uint b_line(uint k) {
  return line(first_row + k, ARGS.gather_x, PITCH(1));
}
uint c_line(uint row) {
  return (expert * ARGS.n + row) * ARGS.k;
}
uint a_scale(uint i) {
  return expert * ARGS.n + i;
}
uint b_scale(uint i) {
  return ARGS.experts * ARGS.n + expert * ARGS.k + i;
}
Span span(uint group) {
  uint high = DIVIDE_UP(ARGS.n, SPAN_A), wide = DIVIDE_UP(ARGS.k, SPAN_B), before = ARGS.experts * high;
  bool a = group < before;
  if (!a) group -= before;
  expert = group / (a ? high : wide);
  first_row = uint(load_i(IN(3), expert));
  a_at = IN(0);
  b_at = IN(1);
  return Span(a, (group - expert * (a ? high : wide)) * (a ? SPAN_A : SPAN_B), a ? ARGS.n : ARGS.k,
              uint(load_i(IN(3), expert + 1u)) - first_row);
}

#else
/* The head in chunks of tokens: number[0] is the first, number[1] how many; scratch has [tokens of a chunk, vocab]. */
#if defined(KEDGE_OP_head_logits) || defined(KEDGE_OP_head_grad_logits)
const bool A_ALONG_K = true;
const bool B_ALONG_K = true;
#define M push.number[1]
#define N ARGS.vocab
#define K ARGS.dim
#define A_AT IN(0)
#define B_AT IN(1)
#define C_AT SCRATCH
#define A_FIRST push.number[0]
#define B_FIRST 0u
#define C_FIRST 0u
#define A_LINE ARGS.dim
#define B_LINE ARGS.dim
#elif defined(KEDGE_OP_head_grad_h)
/* dH = G W. */
const bool A_ALONG_K = true;
const bool B_ALONG_K = false;
#define M push.number[1]
#define N ARGS.dim
#define K ARGS.vocab
#define A_AT SCRATCH
#define B_AT IN(1)
#define C_AT OUT(0)
#define A_FIRST 0u
#define B_FIRST 0u
#define C_FIRST push.number[0]
#define A_LINE ARGS.vocab
#define B_LINE ARGS.dim
#else
/* dW += G^T H. */
const bool A_ALONG_K = false;
const bool B_ALONG_K = false;
#define M ARGS.vocab
#define N ARGS.dim
#define K push.number[1]
#define A_AT SCRATCH
#define B_AT IN(0)
#define C_AT OUT(1)
#define A_FIRST 0u
#define B_FIRST push.number[0]
#define C_FIRST 0u
#define A_LINE ARGS.vocab
#define B_LINE ARGS.dim
#endif
bool locate(uint group, out Tile t) {
  uint high = DIVIDE_UP(M, TILE_M), across = group / high;
  t = Tile((group - across * high) * TILE_M, across * TILE_N, M, N, K);
  a_at = A_AT;
  b_at = B_AT;
  c_at = C_AT;
  return true;
}
uint a_line(uint i) {
  return (A_FIRST + i) * A_LINE;
}
uint b_line(uint i) {
  return (B_FIRST + i) * B_LINE;
}
uint c_line(uint row) {
  return (C_FIRST + row) * N;
}
#endif

#if defined(SCALES)
#include "shaders/scales.glsl"
#elif defined(MATRIX) && KEDGE_MATRICES
#include "shaders/matrix.glsl"
#else
#include "shaders/product.glsl"
#endif
