/* SPDX-License-Identifier: Apache-2.0
 * The power of two that each line of a product's bf16 operands is multiplied by for matrix.glsl: it brings the
 * largest finite element to between 2^14 and 2^15, near the top of what f16 holds. Scratch has the exponents, A's
 * lines and then B's (a_scale, b_scale).
 */
shared uint largest[LOCAL];

/* The exponent field; infinities and NaNs do not count: they stay what they are under any scale. */
uint exponent(uint bits) {
  uint e = bits >> 7 & 255u;
  return e == 255u ? 0u : e;
}

void main() {
  const uint lane = gl_SubgroupInvocationID, sub = gl_SubgroupID;
  uint group = GROUP, e = 0;
  if (group >= push.end) return;
  load_call();
  Span s = span(group);
  const bool along = s.a ? A_ALONG_K : B_ALONG_K;
  const uint64_t at = s.a ? a_at : b_at;
  const uint i = s.first + (along ? sub : lane);
  if (along) {
    uint line = i >= s.end ? 0u : s.a ? a_line(i) : b_line(i);
    for (uint k = 4u * lane; i < s.end && k < s.k_end; k += 4u * SUB) {
      if (k + 4u <= s.k_end) {
        uvec4 x = uvec4(U16x4(at + 2ul * uint64_t(line + k)).v);
        e = max(max(e, max(exponent(x.x), exponent(x.y))), max(exponent(x.z), exponent(x.w)));
      } else {
        for (uint j = k; j < s.k_end; j++) e = max(e, exponent(uint(U16(at).v[line + j])));
      }
    }
    e = subgroupMax(e);
  } else {
    for (uint k = sub; i < s.end && k < s.k_end; k += S2)
      e = max(e, exponent(uint(U16(at).v[(s.a ? a_line(k) : b_line(k)) + i])));
    largest[sub * SUB + lane] = e;
    barrier();
    if (sub > 0u) return;
    for (uint j = 1; j < S2; j++) e = max(e, largest[j * SUB + lane]);
  }
  if (i < s.end && (!along || lane == 0u)) store_i(SCRATCH, s.a ? a_scale(i) : b_scale(i), min(141 - int(e), 126));
}
