/* SPDX-License-Identifier: Apache-2.0
 * Routing traces in memory: made, checked, their ties found. trace_collect.c runs a model, files are in
 * trace_file.c. */
#include "models/trace/trace.h"

#include <math.h>
#include <string.h>

enum { LIMIT = 65536 };

kedge_status kedge_trace_init(kedge_trace *t, uint32_t tokens, uint32_t layers, uint32_t experts,
                              uint32_t topk) {
  *t = (kedge_trace){.tokens = tokens, .layers = layers, .experts = experts, .topk = topk};
  if (!tokens || tokens > INT32_MAX || !layers || layers > LIMIT || !experts || experts > LIMIT || !topk ||
      topk > experts)
    return kedge_fail(KEDGE_ERR_ARGUMENT,
                      "a routing trace has tokens, layers, experts and 1 to all experts a token; got %u "
                      "tokens, %u layers, top %u of %u experts",
                      tokens, layers, topk, experts);
  const size_t rows = (size_t)tokens * layers;
  t->ids = kedge_alloc(rows, topk * sizeof *t->ids);
  t->samples = kedge_alloc(tokens, sizeof *t->samples);
  t->spans = kedge_alloc(tokens, sizeof *t->spans);
  t->layer_numbers = kedge_alloc(layers, sizeof *t->layer_numbers);
  if (!t->ids || !t->samples || !t->spans || !t->layer_numbers) {
    kedge_trace_destroy(t);
    return KEDGE_ERR_MEMORY;
  }
  for (size_t i = 0; i < rows * topk; i++) t->ids[i] = -1;
  for (uint32_t i = 0; i < tokens; i++) t->spans[i] = KEDGE_SPAN_NONE;
  for (uint32_t l = 0; l < layers; l++) t->layer_numbers[l] = (int32_t)l;
  return KEDGE_OK;
}

void kedge_trace_destroy(kedge_trace *t) {
  kedge_free(t->ids);
  kedge_free(t->weights);
  kedge_free(t->logits);
  kedge_free(t->ties);
  kedge_free(t->tied);
  kedge_free(t->gaps);
  kedge_free(t->nexts);
  kedge_free(t->samples);
  kedge_free(t->spans);
  kedge_free(t->layer_numbers);
  *t = (kedge_trace){0};
}

bool kedge_trace_is_routed(const kedge_trace *t, uint32_t token, uint32_t layer) {
  return t->ids[((size_t)token * t->layers + layer) * t->topk] >= 0;
}

/* ---- Checking
 * ----------------------------------------------------------------------------------------------------- */

/* A row of k ids: all -1, or distinct and in range. `seen` [experts] holds the mark of the last row that
 * chose the expert. */
static bool check_row(const int32_t *ids, uint32_t k, uint32_t experts, size_t *seen, size_t mark) {
  bool padding = ids[0] == -1;
  for (uint32_t i = 0; i < k; i++) {
    if (padding) {
      if (ids[i] != -1) return false;
      continue;
    }
    if (ids[i] < 0 || (uint32_t)ids[i] >= experts || seen[ids[i]] == mark) return false;
    seen[ids[i]] = mark;
  }
  return true;
}

static kedge_status check_ids(const kedge_trace *t, const char *name) {
  size_t *seen = kedge_alloc(t->experts, sizeof *seen);
  if (!seen) return KEDGE_ERR_MEMORY;
  kedge_status status = KEDGE_OK;
  for (size_t row = 0; row < (size_t)t->tokens * t->layers && status == KEDGE_OK; row++)
    if (!check_row(t->ids + row * t->topk, t->topk, t->experts, seen, row + 1))
      status = kedge_fail(KEDGE_ERR_FORMAT,
                          "%s: ids of token %zu, layer %zu: expected %u distinct experts below %u, or -1 in "
                          "every place",
                          name, row / t->layers, row % t->layers, t->topk, t->experts);
  kedge_free(seen);
  return status;
}

static kedge_status check_finite(const kedge_trace *t, const char *name, const char *what,
                                 const float *values, uint32_t width, float least) {
  for (size_t i = 0; values && i < (size_t)t->tokens * t->layers * width; i++)
    if (!isfinite(values[i]) || values[i] < least)
      return kedge_fail(KEDGE_ERR_FORMAT, "%s: %s of token %zu, layer %zu: expected finite numbers%s, got %g",
                        name, what, i / width / t->layers, i / width % t->layers,
                        least < 0 ? "" : ", 0 or more", (double)values[i]);
  return KEDGE_OK;
}

static kedge_status check_ties(const kedge_trace *t, const char *name) {
  const size_t rows = (size_t)t->tokens * t->layers, bytes = (t->experts + 7u) / 8;
  if (t->tied && !t->ties) return kedge_fail(KEDGE_ERR_FORMAT, "%s: tied experts without ties", name);
  for (size_t row = 0; t->tied && row < rows; row++) {
    if (!t->ties[row]) continue;
    const int32_t *ids = t->ids + row * t->topk;
    const uint8_t *tied = t->tied + row * bytes;
    uint32_t all = 0, chosen = 0;
    for (uint32_t e = 0; e < bytes * 8; e++) all += tied[e / 8] >> e % 8 & 1 && e < t->experts;
    for (uint32_t k = 0; k < t->topk && ids[k] >= 0; k++) chosen += tied[ids[k] / 8] >> ids[k] % 8 & 1;
    if (!chosen || chosen == all)
      return kedge_fail(KEDGE_ERR_FORMAT,
                        "%s: tied of token %zu, layer %zu: expected some chosen experts and some that were "
                        "left out, got %u of %u chosen",
                        name, row / t->layers, row % t->layers, chosen, all);
  }
  return KEDGE_OK;
}

static kedge_status check_gaps(const kedge_trace *t, const char *name) {
  for (size_t row = 0; row < (size_t)t->tokens * t->layers; row++) {
    if (t->gaps && !(t->gaps[row] >= 0 && isfinite(t->gaps[row])))
      return kedge_fail(KEDGE_ERR_FORMAT,
                        "%s: gap of token %zu, layer %zu: expected a finite number, 0 or more, got %g", name,
                        row / t->layers, row % t->layers, (double)t->gaps[row]);
    if (t->nexts && (t->nexts[row] < -1 || t->nexts[row] >= (int32_t)t->experts))
      return kedge_fail(KEDGE_ERR_FORMAT, "%s: next of token %zu, layer %zu: expected -1 to %u, got %d", name,
                        row / t->layers, row % t->layers, t->experts - 1, t->nexts[row]);
  }
  return KEDGE_OK;
}

kedge_status kedge_trace_check(const kedge_trace *t, const char *name) {
  KEDGE_TRY(check_ids(t, name));
  KEDGE_TRY(check_gaps(t, name));
  KEDGE_TRY(check_finite(t, name, "weights", t->weights, t->topk, 0));
  KEDGE_TRY(check_finite(t, name, "logits", t->logits, t->experts, -INFINITY));
  KEDGE_TRY(check_ties(t, name));
  for (uint32_t i = 0; i < t->tokens; i++) {
    if (t->spans[i] < KEDGE_SPAN_NONE || t->spans[i] > KEDGE_SPAN_A)
      return kedge_fail(KEDGE_ERR_FORMAT, "%s: span of token %u: expected -1, 0 or 1, got %d", name, i,
                        t->spans[i]);
    int32_t before = i ? t->samples[i - 1] : 0;
    if (t->samples[i] < before)
      return kedge_fail(KEDGE_ERR_FORMAT, "%s: sample of token %u: expected %d or more, got %d", name, i,
                        before, t->samples[i]);
  }
  for (uint32_t l = 0; l < t->layers; l++) {
    int32_t least = l ? t->layer_numbers[l - 1] + 1 : 0;
    if (t->layer_numbers[l] < least || t->layer_numbers[l] >= LIMIT)
      return kedge_fail(KEDGE_ERR_FORMAT, "%s: layers[%u]: expected ascending numbers from %d on, got %d",
                        name, l, least, t->layer_numbers[l]);
  }
  return KEDGE_OK;
}

/* ---- Ties
 * ---------------------------------------------------------------------------------------------------------
 */

bool kedge_trace_mark_ties(const float *z, uint32_t experts, const int32_t *ids, uint32_t k, uint8_t *tied) {
  float least = INFINITY;
  uint32_t equal = 0, chosen = 0;
  for (uint32_t i = 0; i < k; i++) least = fminf(least, z[ids[i]]);
  for (uint32_t i = 0; i < k; i++) chosen += z[ids[i]] == least;
  for (uint32_t e = 0; e < experts; e++) {
    if (z[e] != least) continue;
    tied[e / 8] = (uint8_t)(tied[e / 8] | 1u << e % 8);
    equal++;
  }
  return equal > chosen;
}

/* Whether the row has the k best of its logits: as many are above its worst as the row itself has. */
static bool is_best(const float *z, uint32_t experts, const int32_t *ids, uint32_t k) {
  float least = INFINITY;
  uint32_t above = 0, chosen = 0;
  for (uint32_t i = 0; i < k; i++) least = fminf(least, z[ids[i]]);
  for (uint32_t i = 0; i < k; i++) chosen += z[ids[i]] > least;
  for (uint32_t e = 0; e < experts; e++) above += z[e] > least;
  return above == chosen;
}

kedge_status kedge_trace_find_ties(kedge_trace *t) {
  const size_t rows = (size_t)t->tokens * t->layers, bytes = (t->experts + 7u) / 8;
  if (!t->logits || t->ties) return KEDGE_OK;
  for (size_t row = 0; row < rows; row++)
    if (t->ids[row * t->topk] >= 0 &&
        !is_best(t->logits + row * t->experts, t->experts, t->ids + row * t->topk, t->topk))
      return KEDGE_OK;
  uint8_t *ties = kedge_alloc(rows, 1), *tied = kedge_alloc(rows, bytes);
  if (!ties || !tied) {
    kedge_free(ties);
    kedge_free(tied);
    return KEDGE_ERR_MEMORY;
  }
  bool any = false;
  for (size_t row = 0; row < rows; row++) {
    if (t->ids[row * t->topk] < 0) continue;
    ties[row] = kedge_trace_mark_ties(t->logits + row * t->experts, t->experts, t->ids + row * t->topk,
                                      t->topk, tied + row * bytes);
    any = any || ties[row];
  }
  if (!any) {
    kedge_free(tied);
    tied = NULL;
  }
  t->ties = ties, t->tied = tied;
  return KEDGE_OK;
}
