/* SPDX-License-Identifier: Apache-2.0
 * One tile of a matrix product C = A B. A workgroup has S2 subgroups; each has S0 rows of the tile, and each of its
 * lanes S1 columns. Sums run over k in order, in chunks that are added up in C, so that long sums lose no digits.
 *
 * A shader defines locate(), which finds the tile and sets a_at, b_at, c_at, and three functions that say where lines
 * lie: a line of A is its row where A_ALONG_K (elements side by side have consecutive k), else what it has of one k;
 * a line of B is its column where B_ALONG_K, else what it has of one k; a line of C is a row. LINES_LOOK_UP: finding a line
 * of one k reads memory. The product itself
 * is in product.glsl.
 */
const uint SUB = S5; /* width of a subgroup */
#if defined(MATRIX) && KEDGE_MATRICES
/* Matrices of MM x KK and KK x NN; each subgroup has S0 x S1 of them, and S7 subgroups lie side by side. */
const uint MM = S6 & 255u;
const uint NN = S6 >> 8 & 255u;
const uint KK = S6 >> 16;
const uint TILE_M = S0 * MM * (S2 / S7);
const uint TILE_N = S1 * NN * S7;
#else
const uint TILE_M = S0 * S2;
const uint TILE_N = S1 * SUB;
#endif
const uint CHUNK = 1024;
#define FLAG(bit) ((S4 & (1u << bit)) != 0u)
const bool A_BF16 = FLAG(0);
const bool B_BF16 = FLAG(1);
const bool C_BF16 = FLAG(2);
const bool TRANS_A = FLAG(3);
const bool TRANS_B = FLAG(4);
const bool ADD = FLAG(5);    /* to what C has */
const bool NARROW = FLAG(6); /* without shared memory, for devices whose lanes are those of a CPU's vectors */
const bool FOUR_A = FLAG(7); /* narrow: lines of A (of B) have at least four elements */
const bool FOUR_B = FLAG(8);
const bool FOUR_K = FLAG(9); /* and k has */

const bool EXACT = FLAG(10); /* k is a multiple of four */

#define DIVIDE_UP(a, b) (((a) + (b) - 1u) / (b))

/* The tile: its first row and column, the ends of rows, columns and k. */
struct Tile {
  uint m0, n0, m_end, n_end, k_end;
};
uint64_t a_at, b_at, c_at;

/* Lines whose scales a workgroup finds (scales.glsl): of A or of B, the first and the end of all, how long they are. */
struct Span {
  bool a;
  uint first, end, k_end;
};
#define SPAN_A (A_ALONG_K ? S2 : SUB)
#define SPAN_B (B_ALONG_K ? S2 : SUB)
