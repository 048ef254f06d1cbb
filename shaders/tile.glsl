/* SPDX-License-Identifier: Apache-2.0
 * One tile of a matrix product C = A B. A workgroup has S2 subgroups; each has S0 rows of the tile, and each of its
 * lanes S1 columns, a subgroup's width apart. Operands pass through shared memory in steps of S3, as f32. Sums
 * run over k in order, in chunks that are added up in C, so that long sums lose no digits.
 *
 * A shader defines locate(), load_a(), load_b(), store_c(), and A_ALONG_K, B_ALONG_K: along which index its
 * elements lie side by side. */
const uint SUB = S5; /* width of a subgroup */
const uint TILE_M = S0 * S2;
const uint TILE_N = S1 * SUB;
const uint CHUNK = 1024;
#define FLAG(bit) ((S4 & (1u << bit)) != 0u)
const bool A_BF16 = FLAG(0);
const bool B_BF16 = FLAG(1);
const bool C_BF16 = FLAG(2);
const bool TRANS_A = FLAG(3);
const bool TRANS_B = FLAG(4);
const bool ADD = FLAG(5);       /* to what C has */
const bool BROADCAST = FLAG(6); /* between lanes, where that is cheaper than reading one address */

shared float tile_a[S3 * (TILE_M + 1u)], tile_b[S3 * (TILE_N + 1u)];

/* The tile: its first row and column, the ends of rows, columns and k. */
struct Tile {
  uint m0, n0, m_end, n_end, k_end;
};
