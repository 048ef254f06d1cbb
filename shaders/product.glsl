/* SPDX-License-Identifier: Apache-2.0
 * The product of a tile (tile.glsl), after the shader's own functions: either through shared memory, in steps of S3, or
 * narrow: each subgroup for itself, four elements a load, A's elements passed from lane to lane. Both add in the
 * same order.
 */
void store_tile(uint row, uint col, float value, bool add) {
  uint i = c_line(row) + col;
  if (add) value += load_as(C_BF16, c_at, i);
  store_as(C_BF16, c_at, i, value);
}

const uint SHARED_A = NARROW ? 1u : S3 * (TILE_M + 1u);
const uint SHARED_B = NARROW ? 1u : S3 * (TILE_N + 1u);
const uint LINES_A = NARROW ? 1u : (TILE_M > S3 ? TILE_M : S3);
const uint LINES_B = NARROW ? 1u : (TILE_N > S3 ? TILE_N : S3);
shared float tile_a[SHARED_A], tile_b[SHARED_B];
shared uint line_a[LINES_A], line_b[LINES_B];

void fill_lines(Tile t, bool along_k, uint k0) {
  for (uint i = LANE; i < (A_ALONG_K ? TILE_M : S3); i += LOCAL)
    if (A_ALONG_K == along_k) line_a[i] = a_line(min(A_ALONG_K ? t.m0 + i : k0 + i, (A_ALONG_K ? t.m_end : t.k_end) - 1u));
  for (uint i = LANE; i < (B_ALONG_K ? TILE_N : S3); i += LOCAL)
    if (B_ALONG_K == along_k) line_b[i] = b_line(min(B_ALONG_K ? t.n0 + i : k0 + i, (B_ALONG_K ? t.n_end : t.k_end) - 1u));
}

void fill_tiles(Tile t, uint k0) {
  for (uint i = LANE; i < S3 * TILE_M; i += LOCAL) {
    uint m = A_ALONG_K ? i / S3 : i % TILE_M, k = A_ALONG_K ? i % S3 : i / TILE_M;
    float x = 0.0;
    if (t.m0 + m < t.m_end && k0 + k < t.k_end)
      x = load_as(A_BF16, a_at, A_ALONG_K ? line_a[m] + k0 + k : line_a[k] + t.m0 + m);
    tile_a[k * (TILE_M + 1u) + m] = x;
  }
  for (uint i = LANE; i < S3 * TILE_N; i += LOCAL) {
    uint n = B_ALONG_K ? i / S3 : i % TILE_N, k = B_ALONG_K ? i % S3 : i / TILE_N;
    float x = 0.0;
    if (t.n0 + n < t.n_end && k0 + k < t.k_end)
      x = load_as(B_BF16, b_at, B_ALONG_K ? line_b[n] + k0 + k : line_b[k] + t.n0 + n);
    tile_b[k * (TILE_N + 1u) + n] = x;
  }
}

void product_shared(Tile t) {
  const uint sub = gl_SubgroupID, lane = gl_SubgroupInvocationID;
  const uint chunks = C_BF16 ? max(t.k_end, 1u) : CHUNK;
  float acc[S0 * S1];
  fill_lines(t, true, 0);
  for (uint chunk = 0; chunk < max(t.k_end, 1u); chunk += chunks) {
    [[unroll]] for (uint m = 0; m < S0; m++) {
      [[unroll]] for (uint j = 0; j < S1; j++) acc[m * S1 + j] = 0.0;
    }
    for (uint k0 = chunk; k0 < min(t.k_end, chunk + chunks); k0 += S3) {
      barrier();
      fill_lines(t, false, k0);
      barrier();
      fill_tiles(t, k0);
      barrier();
      for (uint k = 0; k < S3; k++) {
        float b[S1];
        [[unroll]] for (uint j = 0; j < S1; j++) b[j] = tile_b[k * (TILE_N + 1u) + j * SUB + lane];
        uint at = k * (TILE_M + 1u) + sub * S0;
        [[unroll]] for (uint m = 0; m < S0; m++) {
          float a = tile_a[at + m];
          [[unroll]] for (uint j = 0; j < S1; j++) acc[m * S1 + j] = fma(a, b[j], acc[m * S1 + j]);
        }
      }
    }
    [[unroll]] for (uint m = 0; m < S0; m++) {
      [[unroll]] for (uint j = 0; j < S1; j++) {
        uint row = t.m0 + sub * S0 + m, col = t.n0 + j * SUB + lane;
        if (row < t.m_end && col < t.n_end) store_tile(row, col, acc[m * S1 + j], ADD || chunk > 0u);
      }
    }
  }
}

/* ---- Narrow: a lane has four columns side by side. Four elements of a line are read at a time; where a line ends, a
 * lane steps back, so that it stays inside: it then has what another lane has too, and writes the same. */

vec4 four(bool whole, bool bf16, uint64_t at, uint line, uint first, uint end) {
  if (whole) return load4_as(bf16, at, line + first);
  uint last = end - 1u;
  return vec4(load_as(bf16, at, line + min(first, last)), load_as(bf16, at, line + min(first + 1u, last)),
              load_as(bf16, at, line + min(first + 2u, last)), load_as(bf16, at, line + min(first + 3u, last)));
}
/* Where four elements from `first` on begin, inside a line of `end`. */
uint inside(bool whole, uint first, uint end) {
  return whole ? min(first, end - 4u) : first;
}

const uint BLOCKS = S0 / SUB;
const uint SPLIT = 4u * SUB / S0;  /* values of k that the lanes read together from lines along m */
const uint LOADS_A = A_ALONG_K ? BLOCKS : 4u / SPLIT;
const uint FOURS = S1 / 4u; /* of columns that a lane has; they lie a subgroup's width of fours apart */
const uint SUMS = S0 * FOURS;
vec4 sums[SUMS];
uint lines_a[BLOCKS], lines_b[S1], n_first[FOURS];

/* Four k from k0 on. At the end they step back, too, and what was multiplied before counts as 0. */
void step4(Tile t, uint k0, uint m_first) {
  const uint lane = gl_SubgroupInvocationID, k_last = t.k_end - 1u, k_first = EXACT ? k0 : inside(FOUR_K, k0, t.k_end);
  vec4 a[LOADS_A], b[S1];
  uint line_b = 0;
  if (!B_ALONG_K && LINES_LOOK_UP) line_b = b_line(min(k_first + (lane & 3u), k_last));
  [[unroll]] for (uint i = 0; i < LOADS_A; i++) {
    if (A_ALONG_K)
      a[i] = four(FOUR_K, A_BF16, a_at, lines_a[i], k_first, t.k_end);
    else
      a[i] = four(FOUR_A, A_BF16, a_at, a_line(min(k_first + i * SPLIT + lane / (S0 / 4u), k_last)), m_first, t.m_end);
  }
  [[unroll]] for (uint i = 0; i < S1; i++) {
    if (B_ALONG_K)
      b[i] = four(FOUR_K, B_BF16, b_at, lines_b[i], k_first, t.k_end);
    else if (LINES_LOOK_UP)
      b[i] = four(FOUR_B, B_BF16, b_at, subgroupBroadcast(line_b, i / FOURS), n_first[i % FOURS], t.n_end);
    else
      b[i] = four(FOUR_B, B_BF16, b_at, b_line(min(k_first + i / FOURS, k_last)), n_first[i % FOURS], t.n_end);
  }
  [[unroll]] for (uint k = 0; k < 4u; k++) {
    bool counts = EXACT || (k_first + k >= k0 && k_first + k <= k_last);
    vec4 bk[FOURS];
    [[unroll]] for (uint f = 0; f < FOURS; f++) {
      if (B_ALONG_K)
        bk[f] = vec4(b[4u * f][k], b[4u * f + 1u][k], b[4u * f + 2u][k], b[4u * f + 3u][k]);
      else
        bk[f] = b[k * FOURS + f];
      bk[f] = counts ? bk[f] : vec4(0.0);
    }
    if (A_ALONG_K) {
      [[unroll]] for (uint r = 0; r < BLOCKS; r++) {
        float mine = counts ? a[r][k] : 0.0;
        [[unroll]] for (uint l = 0; l < SUB; l++) {
          float each = subgroupBroadcast(mine, l);
          [[unroll]] for (uint f = 0; f < FOURS; f++) sums[(r * SUB + l) * FOURS + f] += each * bk[f];
        }
      }
    } else {
      vec4 mine = counts ? a[k / SPLIT] : vec4(0.0);
      [[unroll]] for (uint l = 0; l < S0 / 4u; l++) {
        [[unroll]] for (uint c = 0; c < 4u; c++) {
          float each = subgroupBroadcast(mine[c], k % SPLIT * (S0 / 4u) + l);
          [[unroll]] for (uint f = 0; f < FOURS; f++) sums[(4u * l + c) * FOURS + f] += each * bk[f];
        }
      }
    }
  }
}

void store4(uint row, uint col, uint n_end, vec4 x) {
  uint i = c_line(row) + col;
  if (FOUR_B) {
    if (ADD) x += load4_as(C_BF16, c_at, i);
    store4_as(C_BF16, c_at, i, x);
    return;
  }
  [[unroll]] for (uint j = 0; j < 4u; j++)
    if (col + j < n_end) store_tile(row, col + j, x[j], ADD);
}

void product_narrow(Tile t) {
  const uint lane = gl_SubgroupInvocationID, m_first = inside(FOUR_A, t.m0 + 4u * (lane % (S0 / 4u)), t.m_end);
  vec4 total[SUMS];
  [[unroll]] for (uint r = 0; r < BLOCKS; r++) {
    lines_a[r] = 0;
    if (A_ALONG_K) lines_a[r] = a_line(min(t.m0 + r * SUB + lane, t.m_end - 1u));
  }
  [[unroll]] for (uint f = 0; f < FOURS; f++) n_first[f] = inside(FOUR_B, t.n0 + 4u * (f * SUB + lane), t.n_end);
  [[unroll]] for (uint j = 0; j < S1; j++) {
    lines_b[j] = 0;
    if (B_ALONG_K) lines_b[j] = b_line(min(n_first[j / 4u] + j % 4u, t.n_end - 1u));
  }
  [[unroll]] for (uint i = 0; i < SUMS; i++) total[i] = vec4(0.0);
  for (uint chunk = 0; chunk < t.k_end; chunk += CHUNK) {
    [[unroll]] for (uint i = 0; i < SUMS; i++) sums[i] = vec4(0.0);
    for (uint k0 = chunk; k0 < min(t.k_end, chunk + CHUNK); k0 += 4u) step4(t, k0, m_first);
    [[unroll]] for (uint i = 0; i < SUMS; i++) total[i] += sums[i];
  }
  [[unroll]] for (uint m = 0; m < S0; m++) {
    uint row = A_ALONG_K ? t.m0 + m : inside(FOUR_A, t.m0 + m / 4u * 4u, t.m_end) + m % 4u;
    [[unroll]] for (uint f = 0; f < FOURS; f++)
      if (row < t.m_end) store4(row, n_first[f], t.n_end, total[m * FOURS + f]);
  }
}

void main() {
  uint group = GROUP;
  Tile t;
  if (group >= push.end) return;
  load_call();
  if (!locate(group, t)) return;
  if (NARROW)
    product_narrow(t);
  else
    product_shared(t);
}
