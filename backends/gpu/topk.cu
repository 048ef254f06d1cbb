/* SPDX-License-Identifier: Apache-2.0
 * The choice of experts on graphics cards, a wave a token; the meaning is topk in core/ops/route.c. */
#include "backends/gpu/router.h"

struct choice {
  kedge_args_topk a;
  const float *score, *bias;
  uint64_t kept; /* bits of the groups that are open, where there are at most 64 */
};

GPU_DEVICE float value_of(const choice &c, uint32_t e) {
  return c.score[e] + (c.bias ? c.bias[e] : 0);
}

GPU_DEVICE float group_value(const choice &c, uint32_t group) {
  const uint32_t each = c.a.experts / c.a.groups;
  float first = -gpu_infinity(), second = -gpu_infinity();
  for (uint32_t e = group * each; e < (group + 1) * each; e++) {
    const float v = value_of(c, e);
    if (v > first) {
      second = first;
      first = v;
    } else if (v > second) {
      second = v;
    }
  }
  return c.a.group_kind == KEDGE_GROUP_TWO ? first + second : first;
}

/* Fewer than topk_groups groups come before it, equal ones by their index. */
GPU_DEVICE bool group_is_kept(const choice &c, uint32_t group) {
  const float own = group_value(c, group);
  uint32_t before = 0;
  for (uint32_t other = 0; other < c.a.groups; other++) {
    const float v = group_value(c, other);
    before += v > own || (v == own && other < group);
  }
  return before < c.a.topk_groups;
}

GPU_DEVICE bool is_open(const choice &c, uint32_t e) {
  if (c.a.topk_groups == c.a.groups) return true;
  const uint32_t group = e / (c.a.experts / c.a.groups);
  return c.a.groups <= 64 ? (c.kept >> group & 1) != 0 : group_is_kept(c, group);
}

/* The lanes share the groups out and put their bits together. */
GPU_DEVICE uint64_t kept_groups(const choice &c) {
  uint64_t kept = 0;
  if (c.a.topk_groups == c.a.groups || c.a.groups > 64) return 0;
  for (uint32_t g = gpu_lane(); g < c.a.groups; g += gpu_wave_width())
    if (group_is_kept(c, g)) kept |= (uint64_t)1 << g;
  for (uint32_t mask = gpu_wave_width() / 2; mask; mask /= 2) {
    const uint32_t low = gpu_shuffle_xor((uint32_t)kept, mask),
                   high = gpu_shuffle_xor((uint32_t)(kept >> 32), mask);
    kept |= (uint64_t)high << 32 | low;
  }
  return kept;
}

/* Whether a row has K candidates and none that is NaN or +inf; -inf says "never". */
GPU_DEVICE bool row_is_good(const choice &c) {
  uint32_t bad = 0, candidates = 0;
  for (uint32_t e = gpu_lane(); e < c.a.experts; e += gpu_wave_width()) {
    const float v = value_of(c, e);
    if (gpu_is_nan(v) || v == gpu_infinity()) bad = 1;
    if (v != -gpu_infinity() && is_open(c, e)) candidates += 1;
  }
  bad = gpu_wave_fold<gpu_max>(bad);
  candidates = gpu_wave_fold<gpu_sum>(candidates);
  return bad == 0 && candidates >= c.a.k;
}

struct best_one {
  float value;
  int32_t id; /* -1: none */
};

GPU_DEVICE bool comes_before(const best_one &x, const best_one &y) {
  return x.id >= 0 && (y.id < 0 || x.value > y.value || (x.value == y.value && x.id < y.id));
}

/* The best expert that comes after the last choice in the order (value, lower index). */
GPU_DEVICE best_one next_best(const choice &c, const best_one &last) {
  best_one best;
  best.value = -gpu_infinity();
  best.id = -1;
  for (uint32_t e = gpu_lane(); e < c.a.experts; e += gpu_wave_width()) {
    const float v = value_of(c, e);
    const bool after = last.id < 0 || v < last.value || (v == last.value && (int32_t)e > last.id);
    if (v > best.value && after && is_open(c, e)) {
      best.value = v;
      best.id = (int32_t)e;
    }
  }
  for (uint32_t mask = gpu_wave_width() / 2; mask; mask /= 2) {
    best_one other;
    other.value = gpu_shuffle_xor(best.value, mask);
    other.id = gpu_shuffle_xor(best.id, mask);
    if (comes_before(other, best)) best = other;
  }
  return best;
}

GPU_DEVICE void choose(choice &c, bool in_segment, int32_t *ids) {
  c.kept = kept_groups(c);
  const bool good = row_is_good(c) && in_segment;
  best_one last;
  last.value = gpu_infinity();
  last.id = -1;
  for (uint32_t k = 0; k < c.a.k; k++) {
    if (good) last = next_best(c, last);
    if (gpu_lane() == 0) ids[k] = good ? last.id : -1;
  }
}

/* Rows with a segment and no choice were not good. One block. */
GPU_KERNEL count_bad(const int32_t *segments, const int32_t *ids, uint32_t tokens, uint32_t k, int32_t *bad) {
  GPU_SHARED(int32_t, own, GPU_THREADS);
  int32_t n = 0;
  for (uint32_t t = gpu_thread(); t < tokens; t += gpu_threads())
    n += segments[t] >= 0 && ids[(size_t)t * k] < 0;
  own[gpu_thread()] = n;
  GPU_BARRIER();
  if (gpu_thread()) return;
  n = 0;
  for (uint32_t i = 0; i < gpu_threads(); i++) n += own[i];
  bad[0] = n;
}

GPU_OP_PLAIN(topk) {
  const float *score = gpu_in<float>(s, 0), *bias = gpu_in<float>(s, 1);
  const int32_t *segments = gpu_in<int32_t>(s, 2);
  int32_t *ids = gpu_out<int32_t>(s, 0);
  const kedge_args_topk p = *a;
  gpu_wave_rows(
      s, a->tokens, GPU_LAMBDA(uint32_t t) {
        choice c;
        c.a = p;
        c.score = score + (size_t)t * p.experts;
        c.bias = bias;
        choose(c, segments[t] >= 0, ids + (size_t)t * p.k);
      });
  GPU_LAUNCH(count_bad, 1, GPU_THREADS, s, segments, (const int32_t *)ids, p.tokens, p.k,
             gpu_out<int32_t>(s, 1));
}
