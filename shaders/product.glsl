/* SPDX-License-Identifier: Apache-2.0
 * The product of a tile (tile.glsl), after the shader's own functions. */
void fill_a(Tile t, uint k0) {
  for (uint i = LANE; i < S3 * TILE_M; i += LOCAL) {
    uint m, k;
    if (A_ALONG_K) {
      m = i / S3;
      k = i - m * S3;
    } else {
      k = i / TILE_M;
      m = i - k * TILE_M;
    }
    float x = 0.0;
    if (t.m0 + m < t.m_end && k0 + k < t.k_end) x = load_a(t.m0 + m, m, k0 + k);
    tile_a[k * (TILE_M + 1u) + m] = x;
  }
}

void fill_b(Tile t, uint k0) {
  for (uint i = LANE; i < S3 * TILE_N; i += LOCAL) {
    uint n, k;
    if (B_ALONG_K) {
      n = i / S3;
      k = i - n * S3;
    } else {
      k = i / TILE_N;
      n = i - k * TILE_N;
    }
    float x = 0.0;
    if (t.n0 + n < t.n_end && k0 + k < t.k_end) x = load_b(k0 + k, t.n0 + n);
    tile_b[k * (TILE_N + 1u) + n] = x;
  }
}

void product(Tile t) {
  const uint sub = gl_SubgroupID, lane = gl_SubgroupInvocationID;
  float acc[S0 * S1];
  for (uint chunk = 0; chunk < max(t.k_end, 1u); chunk += C_BF16 ? max(t.k_end, 1u) : CHUNK) {
    [[unroll]] for (uint i = 0; i < S0 * S1; i++) acc[i] = 0.0;
    uint chunk_end = C_BF16 ? t.k_end : min(t.k_end, chunk + CHUNK);
    for (uint k0 = chunk; k0 < chunk_end; k0 += S3) {
      barrier();
      fill_a(t, k0);
      fill_b(t, k0);
      barrier();
      for (uint k = 0; k < S3; k++) {
        float b[S1];
        [[unroll]] for (uint j = 0; j < S1; j++) b[j] = tile_b[k * (TILE_N + 1u) + j * SUB + lane];
        uint at = k * (TILE_M + 1u) + sub * S0;
        if (BROADCAST) {
          [[unroll]] for (uint r = 0; r < S0; r += SUB) {
            float mine = tile_a[at + r + lane];
            [[unroll]] for (uint l = 0; l < SUB; l++) {
              float a = subgroupBroadcast(mine, l);
              [[unroll]] for (uint j = 0; j < S1; j++) acc[(r + l) * S1 + j] = fma(a, b[j], acc[(r + l) * S1 + j]);
            }
          }
        } else {
          [[unroll]] for (uint m = 0; m < S0; m++) {
            float a = tile_a[at + m];
            [[unroll]] for (uint j = 0; j < S1; j++) acc[m * S1 + j] = fma(a, b[j], acc[m * S1 + j]);
          }
        }
      }
    }
    [[unroll]] for (uint m = 0; m < S0; m++) {
      [[unroll]] for (uint j = 0; j < S1; j++) {
        uint row = t.m0 + sub * S0 + m, col = t.n0 + j * SUB + lane;
        if (row < t.m_end && col < t.n_end) store_c(row, col, acc[m * S1 + j], ADD || chunk > 0u);
      }
    }
  }
}

void main() {
  uint group = GROUP;
  Tile t;
  if (group >= push.end || !locate(group, t)) return;
  product(t);
}
