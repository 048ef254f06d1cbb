/* SPDX-License-Identifier: Apache-2.0
 * Choices that rounding decides (near_ties.h). */
#include "models/trace/near_ties.h"

#include "models/checkpoint/atomic.h"
#include "models/text/unicode.h"

#include <stdio.h>
#include <string.h>

static bool is_near(const kedge_trace *t, size_t row, double tolerance) {
  return t->gaps && t->ids[row * t->topk] >= 0 && (double)t->gaps[row] < tolerance;
}

uint64_t kedge_near_ties_count(const kedge_trace *t, double tolerance, uint64_t *counts) {
  uint64_t all = 0;
  if (counts) memset(counts, 0, t->layers * sizeof *counts);
  for (size_t row = 0; row < (size_t)t->tokens * t->layers; row++) {
    if (!is_near(t, row, tolerance)) continue;
    if (counts) counts[row % t->layers]++;
    all++;
  }
  return all;
}

static kedge_status add_line(const kedge_trace *t, size_t row, kedge__bytes *text) {
  char line[160];
  const size_t token = row / t->layers;
  const int32_t last = t->ids[row * t->topk + t->topk - 1];
  const int length = snprintf(line, sizeof line, "%zu,%d,%d,%d,%d,%.9g\n", token, t->samples[token],
                              t->layer_numbers[row % t->layers], last, t->nexts[row], (double)t->gaps[row]);
  return kedge__bytes_append(text, line, (size_t)length);
}

kedge_status kedge_near_ties_save(const kedge_trace *t, double tolerance, const char *path) {
  kedge__bytes text = {0};
  kedge_status status = kedge__bytes_text(&text, "token,sample,layer,chosen,left_out,gap\n");
  for (size_t row = 0; status == KEDGE_OK && row < (size_t)t->tokens * t->layers; row++)
    if (is_near(t, row, tolerance)) status = add_line(t, row, &text);
  if (status == KEDGE_OK) status = kedge_file_write(path, text.data, text.length);
  kedge__bytes_free(&text);
  return status;
}

static bool same_experts(const int32_t *a, const int32_t *b, uint32_t k) {
  for (uint32_t i = 0; i < k; i++) {
    bool found = false;
    for (uint32_t j = 0; j < k && !found; j++) found = a[i] == b[j];
    if (!found) return false;
  }
  return true;
}

kedge_status kedge_flips_find(const kedge_trace *a, const kedge_trace *b, double tolerance,
                              kedge_flips *flips) {
  const uint32_t L = a->layers, K = a->topk;
  bool flipped = false; /* in this sample, before this layer of this token or at an earlier token */
  *flips = (kedge_flips){0};
  if (a->tokens != b->tokens || L != b->layers || K != b->topk || a->experts != b->experts ||
      memcmp(a->samples, b->samples, a->tokens * sizeof *a->samples) != 0)
    return kedge_fail(KEDGE_ERR_MISMATCH, "two traces are of other samples, layers or experts");
  if (!a->gaps) return kedge_fail(KEDGE_ERR_ARGUMENT, "the trace has no gaps");
  for (size_t row = 0; row < (size_t)a->tokens * L; row++) {
    const size_t token = row / L;
    if (row % L == 0 && (token == 0 || a->samples[token] != a->samples[token - 1])) flipped = false;
    flips->rows++;
    if (same_experts(a->ids + row * K, b->ids + row * K, K)) continue;
    flips->flipped++;
    if (!is_near(a, row, tolerance) && !flipped && !flips->unexplained++) {
      flips->token = (uint32_t)token;
      flips->layer = (uint32_t)(row % L);
    }
    flipped = true;
  }
  return KEDGE_OK;
}
