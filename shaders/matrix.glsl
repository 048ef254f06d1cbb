/* SPDX-License-Identifier: Apache-2.0
 * The product of a tile (tile.glsl) of bf16 operands by the device's matrices, in f16 with sums in f32. Each line
 * along k is multiplied by the power of two that scales.glsl found, which is undone in C: elements down to 2^-28 of
 * their line's largest are exact, smaller ones lose less than a sum in f32 with that largest does. Both ways of
 * saying it in GLSL are here: KEDGE_MATRICES is 1 for NV's extension, 2 for KHR's.
 */
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#if KEDGE_MATRICES == 2
#extension GL_KHR_cooperative_matrix : require
#define MATRIX_A coopmat<float16_t, gl_ScopeSubgroup, MM, KK, gl_MatrixUseA>
#define MATRIX_B coopmat<float16_t, gl_ScopeSubgroup, KK, NN, gl_MatrixUseB>
#define MATRIX_C coopmat<float, gl_ScopeSubgroup, MM, NN, gl_MatrixUseAccumulator>
#define BY_ROWS    gl_CooperativeMatrixLayoutRowMajor
#define BY_COLUMNS gl_CooperativeMatrixLayoutColumnMajor
#define LOAD       coopMatLoad
#define STORE      coopMatStore
#define MULTIPLY   coopMatMulAdd
#else
#extension GL_NV_cooperative_matrix : require
#define MATRIX_A fcoopmatNV<16, gl_ScopeSubgroup, MM, KK>
#define MATRIX_B fcoopmatNV<16, gl_ScopeSubgroup, KK, NN>
#define MATRIX_C fcoopmatNV<32, gl_ScopeSubgroup, MM, NN>
#define BY_ROWS    false
#define BY_COLUMNS true
#define LOAD       coopMatLoadNV
#define STORE      coopMatStoreNV
#define MULTIPLY   coopMatMulAddNV
#endif

/* Operands lie in shared memory as in their tensors, lines padded by 16 bytes. */
const uint PITCH_A = (A_ALONG_K ? S3 : TILE_M) + 8u;
const uint PITCH_B = (B_ALONG_K ? S3 : TILE_N) + 8u;
const uint COUNT_A = A_ALONG_K ? TILE_M : S3;
const uint COUNT_B = B_ALONG_K ? TILE_N : S3;
shared float16_t tile_a[COUNT_A * PITCH_A], tile_b[COUNT_B * PITCH_B];
shared uint line_a[COUNT_A], line_b[COUNT_B];
shared int scale_a[TILE_M], scale_b[TILE_N];
shared float sums[S2 * MM * NN];

/* 2^e; e from -126 to 127. */
float power(int e) {
  return uintBitsToFloat(uint(e + 127) << 23);
}

/* x 2^e, where e may be further out than one factor goes. */
float scaled(float x, int e) {
  return x * power(e / 2) * power(e - e / 2);
}

void fill_lines(Tile t, bool along_k, uint k0) {
  for (uint i = LANE; i < COUNT_A; i += LOCAL)
    if (A_ALONG_K == along_k) line_a[i] = a_line(min((A_ALONG_K ? t.m0 : k0) + i, (A_ALONG_K ? t.m_end : t.k_end) - 1u));
  for (uint i = LANE; i < COUNT_B; i += LOCAL)
    if (B_ALONG_K == along_k) line_b[i] = b_line(min((B_ALONG_K ? t.n0 : k0) + i, (B_ALONG_K ? t.n_end : t.k_end) - 1u));
}

void fill_scales(Tile t) {
  for (uint i = LANE; i < TILE_M; i += LOCAL) scale_a[i] = load_i(SCRATCH, a_scale(min(t.m0 + i, t.m_end - 1u)));
  for (uint i = LANE; i < TILE_N; i += LOCAL) scale_b[i] = load_i(SCRATCH, b_scale(min(t.n0 + i, t.n_end - 1u)));
}

/* Four elements of a line from `first` on; those at `end` and behind it are 0. */
vec4 four(uint64_t at, uint line, uint first, uint end) {
  if (first + 4u <= end) return load4_as(true, at, line + first);
  vec4 x = vec4(0.0);
  [[unroll]] for (uint j = 0; j < 3u; j++)
    if (first + j < end) x[j] = load_as(true, at, line + first + j);
  return x;
}

void fill_tiles(Tile t, uint k0) {
  for (uint i = LANE; i < COUNT_A * (PITCH_A - 8u) / 4u; i += LOCAL) {
    uint line = i / ((PITCH_A - 8u) / 4u), at = (i - line * ((PITCH_A - 8u) / 4u)) * 4u;
    bool inside = A_ALONG_K ? t.m0 + line < t.m_end : k0 + line < t.k_end;
    vec4 x = vec4(0.0);
    if (inside) x = four(a_at, line_a[line], (A_ALONG_K ? k0 : t.m0) + at, A_ALONG_K ? t.k_end : t.m_end);
    [[unroll]] for (uint j = 0; j < 4u; j++)
      tile_a[line * PITCH_A + at + j] = float16_t(x[j] * power(scale_a[A_ALONG_K ? line : at + j]));
  }
  for (uint i = LANE; i < COUNT_B * (PITCH_B - 8u) / 4u; i += LOCAL) {
    uint line = i / ((PITCH_B - 8u) / 4u), at = (i - line * ((PITCH_B - 8u) / 4u)) * 4u;
    bool inside = B_ALONG_K ? t.n0 + line < t.n_end : k0 + line < t.k_end;
    vec4 x = vec4(0.0);
    if (inside) x = four(b_at, line_b[line], (B_ALONG_K ? k0 : t.n0) + at, B_ALONG_K ? t.k_end : t.n_end);
    [[unroll]] for (uint j = 0; j < 4u; j++)
      tile_b[line * PITCH_B + at + j] = float16_t(x[j] * power(scale_b[B_ALONG_K ? line : at + j]));
  }
}

/* The subgroup's first row and column in the tile. */
uint down() {
  return gl_SubgroupID / S7 * S0 * MM;
}
uint right() {
  return gl_SubgroupID % S7 * S1 * NN;
}

MATRIX_C acc[S0 * S1];

void multiply() {
  for (uint k = 0; k < S3; k += KK) {
    MATRIX_A a[S0];
    [[unroll]] for (uint r = 0; r < S0; r++) {
      uint m = down() + r * MM;
      if (A_ALONG_K)
        LOAD(a[r], tile_a, m * PITCH_A + k, PITCH_A, BY_ROWS);
      else
        LOAD(a[r], tile_a, k * PITCH_A + m, PITCH_A, BY_COLUMNS);
    }
    [[unroll]] for (uint c = 0; c < S1; c++) {
      MATRIX_B b;
      uint n = right() + c * NN;
      if (B_ALONG_K)
        LOAD(b, tile_b, n * PITCH_B + k, PITCH_B, BY_COLUMNS);
      else
        LOAD(b, tile_b, k * PITCH_B + n, PITCH_B, BY_ROWS);
      [[unroll]] for (uint r = 0; r < S0; r++) acc[r * S1 + c] = MULTIPLY(a[r], b, acc[r * S1 + c]);
    }
  }
}

/* C's elements, a matrix of each subgroup at a time, through shared memory. */
void store(Tile t, bool add) {
  const uint lane = gl_SubgroupInvocationID, mine = gl_SubgroupID * MM * NN;
  [[unroll]] for (uint i = 0; i < S0 * S1; i++) {
    const uint m = down() + i / S1 * MM, n = right() + i % S1 * NN;
    barrier();
    STORE(acc[i], sums, mine, NN, BY_ROWS);
    barrier();
    for (uint e = lane; e < MM * NN; e += SUB) {
      uint r = m + e / NN, c = n + e % NN, row = t.m0 + r, col = t.n0 + c;
      if (row >= t.m_end || col >= t.n_end) continue;
      uint to = c_line(row) + col;
      float value = scaled(sums[mine + e], -scale_a[r] - scale_b[c]);
      if (add) value += load_as(C_BF16, c_at, to);
      store_as(C_BF16, c_at, to, value);
    }
  }
}

void main() {
  uint group = GROUP;
  Tile t;
  if (group >= push.end) return;
  load_call();
  if (!locate(group, t)) return;
  const uint chunks = C_BF16 ? max(t.k_end, 1u) : CHUNK;
  fill_scales(t);
  fill_lines(t, true, 0);
  for (uint chunk = 0; chunk < max(t.k_end, 1u); chunk += chunks) {
    [[unroll]] for (uint i = 0; i < S0 * S1; i++) acc[i] = MATRIX_C(0.0);
    for (uint k0 = chunk; k0 < min(t.k_end, chunk + chunks); k0 += S3) {
      barrier();
      fill_lines(t, false, k0);
      barrier();
      fill_tiles(t, k0);
      barrier();
      multiply();
    }
    store(t, ADD || chunk > 0u);
  }
}
