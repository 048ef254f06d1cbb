/* SPDX-License-Identifier: Apache-2.0
 * Scores, gates and the dispatch plan on graphics cards; the meaning is core/ops/route.c. topk.cu chooses. */
#include "backends/gpu/router.h"

GPU_OP_PLAIN(scores) {
  const float *z = gpu_in<float>(s, 0);
  float *y = gpu_out<float>(s, 0);
  const uint32_t n = a->experts;
  const bool sigmoid = a->kind == KEDGE_SCORE_SIGMOID;
  gpu_wave_rows(
      s, a->tokens, GPU_LAMBDA(uint32_t t) {
        const float *row = z + (size_t)t * n;
        const gpu_softmax soft = gpu_softmax_of(row, n);
        for (uint32_t e = gpu_lane(); e < n; e += gpu_wave_width())
          y[(size_t)t * n + e] = sigmoid ? kedge_sigmoid(row[e]) : expf(row[e] - soft.max) / soft.sum;
      });
}

GPU_OP_PLAIN(scores_grad) {
  const float *score = gpu_in<float>(s, 0), *ds = gpu_in<float>(s, 1);
  float *dz = gpu_out<float>(s, 0);
  const uint32_t n = a->experts;
  const bool sigmoid = a->kind == KEDGE_SCORE_SIGMOID;
  gpu_wave_rows(
      s, a->tokens, GPU_LAMBDA(uint32_t t) {
        const size_t first = (size_t)t * n;
        const float mean = gpu_row_sum(n, [=](uint32_t e) { return score[first + e] * ds[first + e]; });
        for (size_t i = first + gpu_lane(); i < first + n; i += gpu_wave_width())
          dz[i] = sigmoid ? ds[i] * score[i] * (1 - score[i]) : score[i] * (ds[i] - mean);
      });
}

/* ---- Gates: core/ops/gate_math.h has the formulas */

struct gate_row {
  gpu_softmax soft;
  float divisor;
};

GPU_DEVICE bool over_chosen(const kedge_args_gates &a) {
  return a.kind == KEDGE_SCORE_SOFTMAX && a.normalise && a.epsilon == 0;
}

GPU_DEVICE float gate_score(const kedge_args_gates &a, const gate_row &row, float z) {
  return a.kind == KEDGE_SCORE_SIGMOID ? kedge_sigmoid(z) : expf(z - row.soft.max) / row.soft.sum;
}

/* Every lane computes what concerns the few chosen; the softmax over all is the wave's work. */
GPU_DEVICE gate_row gate_row_of(const kedge_args_gates &a, const float *z, const int32_t *ids) {
  gate_row row;
  row.soft.max = 0;
  row.soft.sum = row.divisor = 1;
  if (over_chosen(a)) {
    bool first = true;
    for (uint32_t k = 0; k < a.k; k++) {
      if (ids[k] < 0) continue;
      if (first || z[ids[k]] > row.soft.max) row.soft.max = z[ids[k]];
      first = false;
    }
    row.soft.sum = 0;
    for (uint32_t k = 0; k < a.k; k++)
      if (ids[k] >= 0) row.soft.sum += expf(z[ids[k]] - row.soft.max);
    return row;
  }
  if (a.kind == KEDGE_SCORE_SOFTMAX) row.soft = gpu_softmax_of(z, a.experts);
  if (!a.normalise) return row;
  row.divisor = 0;
  for (uint32_t k = 0; k < a.k; k++)
    if (ids[k] >= 0) row.divisor += gate_score(a, row, z[ids[k]]);
  row.divisor += a.epsilon;
  if (row.divisor == 0) row.divisor = 1;
  return row;
}

GPU_DEVICE float gate_of(const kedge_args_gates &a, const gate_row &row, const float *z, int32_t id) {
  return id < 0 ? 0 : a.alpha * gate_score(a, row, z[id]) / row.divisor;
}

GPU_OP_PLAIN(gates) {
  const float *z = gpu_in<float>(s, 0);
  const int32_t *ids = gpu_in<int32_t>(s, 1);
  float *y = gpu_out<float>(s, 0);
  const kedge_args_gates p = *a;
  gpu_wave_rows(
      s, a->tokens, GPU_LAMBDA(uint32_t t) {
        const float *z_t = z + (size_t)t * p.experts;
        const int32_t *ids_t = ids + (size_t)t * p.k;
        const gate_row row = gate_row_of(p, z_t, ids_t);
        for (uint32_t k = gpu_lane(); k < p.k; k += gpu_wave_width())
          y[(size_t)t * p.k + k] = gate_of(p, row, z_t, ids_t[k]);
      });
}

GPU_DEVICE void gates_gradient(const kedge_args_gates &a, const float *z, const int32_t *ids, const float *dg,
                               float *dz) {
  const gate_row row = gate_row_of(a, z, ids);
  const bool shared = a.normalise && !over_chosen(a), soft = a.kind == KEDGE_SCORE_SOFTMAX,
             everyone = soft && !over_chosen(a);
  float total = 0, mean = 0; /* sums over the chosen of dg g, and of s u */
  for (uint32_t k = 0; k < a.k; k++) total += dg[k] * gate_of(a, row, z, ids[k]);
  for (uint32_t k = 0; k < a.k; k++)
    if (ids[k] >= 0)
      mean += gate_score(a, row, z[ids[k]]) * ((a.alpha * dg[k] - (shared ? total : 0)) / row.divisor);
  for (uint32_t e = gpu_lane(); e < a.experts; e += gpu_wave_width()) {
    float d = everyone ? -gate_score(a, row, z[e]) * mean : 0;
    for (uint32_t k = 0; k < a.k; k++) {
      if (ids[k] != (int32_t)e) continue;
      const float score = gate_score(a, row, z[e]),
                  u = (a.alpha * dg[k] - (shared ? total : 0)) / row.divisor;
      d += soft ? score * (everyone ? u : u - mean) : score * (1 - score) * u;
    }
    dz[e] = d;
  }
}

GPU_OP_PLAIN(gates_grad) {
  const float *z = gpu_in<float>(s, 0), *dg = gpu_in<float>(s, 2);
  const int32_t *ids = gpu_in<int32_t>(s, 1);
  float *dz = gpu_out<float>(s, 0);
  kedge_args_gates p;
  p.tokens = a->tokens;
  p.experts = a->experts;
  p.k = a->k;
  p.kind = a->kind;
  p.normalise = a->normalise;
  p.pad = 0;
  p.alpha = a->alpha;
  p.epsilon = a->epsilon;
  gpu_wave_rows(
      s, a->tokens, GPU_LAMBDA(uint32_t t) {
        gates_gradient(p, z + (size_t)t * p.experts, ids + (size_t)t * p.k, dg + (size_t)t * p.k,
                       dz + (size_t)t * p.experts);
      });
}

/* ---- Dispatch: a counting sort over chunks of slots. A thread follows an expert, so that nothing is counted
 * by two. */

enum { SLOTS = 1024 };

/* counts [chunks, E]: how often each expert stands in each chunk. */
GPU_KERNEL dispatch_count(const int32_t *ids, uint32_t slots, uint32_t experts, int32_t *counts) {
  const uint32_t first = gpu_block() * SLOTS, end = first + SLOTS < slots ? first + SLOTS : slots;
  for (uint32_t e = gpu_thread(); e < experts; e += gpu_threads()) {
    int32_t n = 0;
    for (uint32_t i = first; i < end; i++) n += ids[i] == (int32_t)e;
    counts[(size_t)gpu_block() * experts + e] = n;
  }
}

/* offsets [E+1], and counts become the first row of each expert in each chunk. One block. */
GPU_KERNEL dispatch_scan(int32_t *counts, uint32_t chunks, uint32_t experts, int32_t *offsets) {
  for (uint32_t e = gpu_thread(); e < experts; e += gpu_threads()) {
    int32_t n = 0;
    for (uint32_t c = 0; c < chunks; c++) n += counts[(size_t)c * experts + e];
    offsets[e + 1] = n;
  }
  GPU_BARRIER();
  if (gpu_thread() == 0) {
    offsets[0] = 0;
    for (uint32_t e = 0; e < experts; e++) offsets[e + 1] += offsets[e];
  }
  GPU_BARRIER();
  for (uint32_t e = gpu_thread(); e < experts; e += gpu_threads()) {
    int32_t at = offsets[e];
    for (uint32_t c = 0; c < chunks; c++) {
      const int32_t n = counts[(size_t)c * experts + e];
      counts[(size_t)c * experts + e] = at;
      at += n;
    }
  }
}

GPU_KERNEL dispatch_place(const int32_t *ids, uint32_t slots, uint32_t experts, const int32_t *counts,
                          const int32_t *offsets, int32_t *slot_of, int32_t *rows) {
  const uint32_t first = gpu_block() * SLOTS, end = first + SLOTS < slots ? first + SLOTS : slots;
  for (uint32_t e = gpu_thread(); e < experts; e += gpu_threads()) {
    int32_t at = counts[(size_t)gpu_block() * experts + e];
    for (uint32_t i = first; i < end; i++) {
      if (ids[i] != (int32_t)e) continue;
      rows[i] = at;
      slot_of[at++] = (int32_t)i;
    }
  }
  for (uint32_t i = first + gpu_thread(); i < end; i += gpu_threads()) {
    if (ids[i] < 0) rows[i] = -1;
    if ((int32_t)i >= offsets[experts]) slot_of[i] = -1;
  }
}

GPU_SCRATCH(dispatch) {
  const kedge_args_dispatch *a = (const kedge_args_dispatch *)s->call->args;
  return (uint64_t)gpu_groups((uint64_t)a->tokens * a->k, SLOTS) * a->experts * sizeof(int32_t);
}

GPU_OP_PLAIN(dispatch) {
  const int32_t *ids = gpu_in<int32_t>(s, 0);
  int32_t *slot_of = gpu_out<int32_t>(s, 0), *offsets = gpu_out<int32_t>(s, 1),
          *rows = gpu_out<int32_t>(s, 2), *counts = (int32_t *)s->call->scratch;
  const uint32_t slots = a->tokens * a->k, chunks = gpu_groups(slots, SLOTS);
  if (chunks) GPU_LAUNCH(dispatch_count, chunks, GPU_THREADS, s, ids, slots, a->experts, counts);
  GPU_LAUNCH(dispatch_scan, 1, GPU_THREADS, s, counts, chunks, a->experts, offsets);
  if (chunks)
    GPU_LAUNCH(dispatch_place, chunks, GPU_THREADS, s, ids, slots, a->experts, counts, offsets, slot_of,
               rows);
}
