/* SPDX-License-Identifier: Apache-2.0
 * For ops on rows: one subgroup, which is the whole workgroup, has a row. A shader defines row(). */
#define LANES(j, n) for (uint j = LANE; j < (n); j += LOCAL)

#define ROWS_MAIN                  \
  void main() {                    \
    uint group = GROUP;            \
    if (group >= push.end) return; \
    load_call();                   \
    row(group);                    \
  }

/* The largest of n f32 from `first` on, and the sum of exp(z - largest). */
vec2 softmax_stats(uint64_t z, uint first, uint n) {
  float most = -INFINITY, sum = 0.0;
  LANES(e, n) most = max(most, load_f(z, first + e));
  most = subgroupMax(most);
  LANES(e, n) sum += kedge_exp(load_f(z, first + e) - most);
  return vec2(most, subgroupAdd(sum));
}

/* A sum in two floats: what rounding takes from the first is in the second. */
vec2 two_sum(vec2 total, float x) {
  precise float s = total.x + x;
  precise float b = s - total.x;
  precise float lost = (total.x - (s - b)) + (x - b);
  return vec2(s, total.y + lost);
}
