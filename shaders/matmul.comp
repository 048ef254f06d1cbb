#version 450
/* SPDX-License-Identifier: Apache-2.0
 * Dense and grouped matrix products, and those of the head's loss; core/ops/matmul.c and softmax.c have the meaning. */
#extension GL_GOOGLE_include_directive : require
#include "shaders/kedge.glsl"
#include "shaders/tile.glsl"

#define DIVIDE_UP(a, b) (((a) + (b) - 1u) / (b))

#if defined(KEDGE_OP_matmul)
const bool A_ALONG_K = !TRANS_A;
const bool B_ALONG_K = TRANS_B;
bool locate(uint group, out Tile t) {
  uint wide = DIVIDE_UP(ARGS.n, TILE_N), down = group / wide;
  t = Tile(down * TILE_M, (group - down * wide) * TILE_N, ARGS.m, ARGS.n, ARGS.k);
  return true;
}
float load_a(uint m, uint in_tile, uint k) {
  return load_as(A_BF16, IN(0), TRANS_A ? k * CALL.pitch[0] + m : m * CALL.pitch[0] + k);
}
float load_b(uint k, uint n) {
  return load_as(B_BF16, IN(1), TRANS_B ? n * CALL.pitch[1] + k : k * CALL.pitch[1] + n);
}
void store_c(uint m, uint n, float value, bool add) {
  uint i = m * ARGS.n + n;
  store_as(C_BF16, OUT(0), i, add ? load_as(C_BF16, OUT(0), i) + value : value);
}

#elif defined(KEDGE_OP_grouped_matmul)
const bool A_ALONG_K = true;
const bool B_ALONG_K = TRANS_B;
shared uint row_at[TILE_M]; /* first element of each row of A */
uint64_t weight;
/* Tiles of the experts' rows, expert after expert: the group's number says how many tiles come before it. */
bool locate(uint group, out Tile t) {
  uint wide = DIVIDE_UP(ARGS.n, TILE_N), down = group / wide, before = 0;
  int first = load_i(IN(3), 0);
  for (uint e = 0; e < ARGS.experts; e++) {
    int end = load_i(IN(3), e + 1u);
    uint tiles = DIVIDE_UP(uint(end - first), TILE_M);
    if (down < before + tiles) {
      t = Tile(uint(first) + (down - before) * TILE_M, (group - down * wide) * TILE_N, uint(end), ARGS.n, ARGS.k);
      weight = Parts(IN(1)).at[e];
      for (uint m = LANE; m < TILE_M; m += LOCAL) {
        uint row = min(t.m0 + m, t.m_end - 1u);
        if (ARGS.gather != 0) row = uint(load_i(IN(2), row)) / ARGS.topk;
        row_at[m] = row * CALL.pitch[0];
      }
      barrier();
      return true;
    }
    before += tiles;
    first = end;
  }
  return false;
}
float load_a(uint m, uint in_tile, uint k) {
  return load_as(A_BF16, IN(0), row_at[in_tile] + k);
}
float load_b(uint k, uint n) {
  return load_as(B_BF16, weight, TRANS_B ? n * ARGS.k + k : k * ARGS.n + n);
}
void store_c(uint m, uint n, float value, bool add) {
  uint i = m * ARGS.n + n;
  store_as(C_BF16, OUT(0), i, add ? load_as(C_BF16, OUT(0), i) + value : value);
}

#elif defined(KEDGE_OP_grouped_wgrad)
const bool A_ALONG_K = false;
const bool B_ALONG_K = false;
uint first_row, expert;
/* k runs over the rows of the expert. */
bool locate(uint group, out Tile t) {
  uint wide = DIVIDE_UP(ARGS.k, TILE_N), high = DIVIDE_UP(ARGS.n, TILE_M);
  uint down = group / wide;
  expert = down / high;
  first_row = uint(load_i(IN(3), expert));
  t = Tile((down - expert * high) * TILE_M, (group - down * wide) * TILE_N, ARGS.n, ARGS.k,
           uint(load_i(IN(3), expert + 1u)) - first_row);
  return true;
}
uint token(uint row, uint gathered) {
  if (gathered != 0) return uint(load_i(IN(2), row)) / ARGS.topk;
  return row;
}
float load_a(uint m, uint in_tile, uint k) {
  return load_as(A_BF16, IN(0), token(first_row + k, ARGS.gather_dy) * CALL.pitch[0] + m);
}
float load_b(uint k, uint n) {
  return load_as(B_BF16, IN(1), token(first_row + k, ARGS.gather_x) * CALL.pitch[1] + n);
}
void store_c(uint m, uint n, float value, bool add) {
  uint i = (expert * ARGS.n + m) * ARGS.k + n;
  store_f(OUT(0), i, add ? load_f(OUT(0), i) + value : value);
}

#else
/* The head in chunks of tokens: number[0] is the first, number[1] how many; scratch has [tokens of a chunk, vocab]. */
#if defined(KEDGE_OP_head_logits) || defined(KEDGE_OP_head_grad_logits)
const bool A_ALONG_K = true;
const bool B_ALONG_K = true;
bool locate(uint group, out Tile t) {
  uint wide = DIVIDE_UP(ARGS.vocab, TILE_N), down = group / wide;
  t = Tile(down * TILE_M, (group - down * wide) * TILE_N, push.number[1], ARGS.vocab, ARGS.dim);
  return true;
}
float load_a(uint m, uint in_tile, uint k) {
  return load_as(A_BF16, IN(0), (push.number[0] + m) * ARGS.dim + k);
}
float load_b(uint k, uint n) {
  return load_as(B_BF16, IN(1), n * ARGS.dim + k);
}
void store_c(uint m, uint n, float value, bool add) {
  uint i = m * ARGS.vocab + n;
  store_f(CALL.scratch, i, add ? load_f(CALL.scratch, i) + value : value);
}
#elif defined(KEDGE_OP_head_grad_h)
/* dH = G W. */
const bool A_ALONG_K = true;
const bool B_ALONG_K = false;
bool locate(uint group, out Tile t) {
  uint wide = DIVIDE_UP(ARGS.dim, TILE_N), down = group / wide;
  t = Tile(down * TILE_M, (group - down * wide) * TILE_N, push.number[1], ARGS.dim, ARGS.vocab);
  return true;
}
float load_a(uint m, uint in_tile, uint k) {
  return load_f(CALL.scratch, m * ARGS.vocab + k);
}
float load_b(uint k, uint n) {
  return load_as(B_BF16, IN(1), k * ARGS.dim + n);
}
void store_c(uint m, uint n, float value, bool add) {
  uint i = (push.number[0] + m) * ARGS.dim + n;
  store_as(C_BF16, OUT(0), i, add ? load_as(C_BF16, OUT(0), i) + value : value);
}
#else
/* dW += G^T H. */
const bool A_ALONG_K = false;
const bool B_ALONG_K = false;
bool locate(uint group, out Tile t) {
  uint wide = DIVIDE_UP(ARGS.dim, TILE_N), down = group / wide;
  t = Tile(down * TILE_M, (group - down * wide) * TILE_N, ARGS.vocab, ARGS.dim, push.number[1]);
  return true;
}
float load_a(uint m, uint in_tile, uint k) {
  return load_f(CALL.scratch, k * ARGS.vocab + m);
}
float load_b(uint k, uint n) {
  return load_as(B_BF16, IN(0), (push.number[0] + k) * ARGS.dim + n);
}
void store_c(uint m, uint n, float value, bool add) {
  uint i = m * ARGS.dim + n;
  store_f(OUT(1), i, add ? load_f(OUT(1), i) + value : value);
}
#endif
#endif

#include "shaders/product.glsl"
