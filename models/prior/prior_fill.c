/* SPDX-License-Identifier: Apache-2.0
 * The tables that interventions make of a prior for one micro-batch: bias, probabilities, best experts.
 * prior.c reads the file. */
#include "models/prior/prior_internal.h"

#include <math.h>
#include <string.h>

/* log of one entry after the clip to [low, high]. */
static double log_clipped(float pi, double low, double high) {
  return log(fmin(fmax((double)pi, low), high));
}

void kedge_prior_bias(const float *pi, uint32_t experts, double eps, double clip, float *bias) {
  const double low = eps / experts, high = clip / experts;
  double mean = 0;
  for (uint32_t e = 0; e < experts; e++) mean += log_clipped(pi[e], low, high);
  mean /= experts;
  for (uint32_t e = 0; e < experts; e++) bias[e] = (float)(log_clipped(pi[e], low, high) - mean);
}

void kedge_prior_top(const float *pi, uint32_t experts, double eps, double clip, uint32_t topk,
                     int32_t *ids) {
  const float low = (float)(eps / experts), high = (float)(clip / experts);
  for (uint32_t k = 0; k < topk; k++) ids[k] = -1;
  /* Insertion into the best so far. The clip is monotonic, so that by (clipped, raw) and by raw alone the
   * order is the same; both keys stand here because they are the rule. */
  for (uint32_t e = 0; e < experts; e++) {
    const float c = fminf(fmaxf(pi[e], low), high);
    uint32_t at = topk;
    while (at > 0) {
      const int32_t other = ids[at - 1];
      if (other >= 0) {
        const float d = fminf(fmaxf(pi[other], low), high);
        if (!(c > d || (c >= d && pi[e] > pi[other]))) break;
      }
      at--;
    }
    if (at == topk) continue;
    memmove(ids + at + 1, ids + at, (topk - at - 1) * sizeof *ids);
    ids[at] = (int32_t)e;
  }
}

/* Both spans of a sample as one: their mean weighted by tokens. pi is room for three rows. */
static kedge_status read_whole(const kedge_prior *p, uint32_t row, const int32_t tokens[2], uint32_t layer,
                               float *pi) {
  float *q = pi + p->experts, *a = q + p->experts;
  memset(q, 0, 2 * p->experts * sizeof *q);
  if (tokens[0] > 0) KEDGE_TRY(kedge__prior_read_row(p, row, 0, layer, q));
  if (tokens[1] > 0) KEDGE_TRY(kedge__prior_read_row(p, row, 1, layer, a));
  const double total = (double)tokens[0] + tokens[1];
  for (uint32_t e = 0; e < p->experts; e++)
    pi[e] = (float)((tokens[0] * (double)q[e] + tokens[1] * (double)a[e]) / total);
  return KEDGE_OK;
}

/* One table: what is made of each row of the prior, and where it goes. */
typedef struct filler {
  const kedge_prior *prior;
  bool whole_sample;
  uint32_t rows;
  void (*make)(const struct filler *f, const float *pi, uint64_t row); /* row of the table, of L * rows */
  double eps, clip;
  uint32_t topk;
  float *reals;
  int32_t *ids;
  kedge_prior_clipped *clipped;
} filler;

static kedge_status fill_sample(const filler *f, uint32_t row, uint32_t i, float *pi) {
  const kedge_prior *p = f->prior;
  int32_t tokens[2];
  kedge__prior_counts(p, row, tokens);
  for (uint32_t span = 0; span < 2; span++)
    for (uint32_t l = 0; tokens[span] > 0 && l < p->moe_layers; l++) {
      KEDGE_TRY(f->whole_sample ? read_whole(p, row, tokens, l, pi)
                                : kedge__prior_read_row(p, row, span, l, pi));
      f->make(f, pi, (uint64_t)l * f->rows + 2 * i + span);
    }
  return KEDGE_OK;
}

/* Asks for the pages of a sample's rows, so that a batch waits once and not for each of them. */
static void prefetch(const kedge_prior *p, uint32_t row) {
  kedge_st_tensor rows = *p->prior;
  rows.bytes /= p->samples;
  rows.data += row * rows.bytes;
  kedge_st_prefetch(&rows);
}

static kedge_status fill(const filler *f, const uint64_t *sample_ids, uint32_t count) {
  const kedge_prior *p = f->prior;
  float *pi = kedge_alloc(3 * (size_t)p->experts, sizeof *pi);
  if (!pi) return KEDGE_ERR_MEMORY;
  kedge_status status = KEDGE_OK;
  for (uint32_t i = 0; i < count; i++) {
    const uint32_t row = kedge__prior_row_of(p, sample_ids[i]);
    if (row != UINT32_MAX) prefetch(p, row);
  }
  for (uint32_t i = 0; i < count && status == KEDGE_OK; i++) {
    const uint32_t row = kedge__prior_row_of(p, sample_ids[i]);
    status = row != UINT32_MAX ? fill_sample(f, row, i, pi)
                               : kedge_fail(KEDGE_ERR_MISMATCH, "%s: no prior for sample %llu",
                                            kedge_st_path(p->file), (unsigned long long)sample_ids[i]);
  }
  kedge_free(pi);
  /* Pages that were read stay with the system's cache, not with the process: it never holds the file. */
  kedge_st_drop(p->prior);
  return status;
}

static void make_bias(const filler *f, const float *pi, uint64_t row) {
  const uint32_t E = f->prior->experts;
  kedge_prior_bias(pi, E, f->eps, f->clip, f->reals + row * E);
  if (!f->clipped) return;
  f->clipped->cells += E;
  for (uint32_t e = 0; e < E; e++) {
    f->clipped->low += (double)pi[e] <= f->eps / E;
    f->clipped->high += (double)pi[e] >= f->clip / E;
  }
}

static void make_pi(const filler *f, const float *pi, uint64_t row) {
  memcpy(f->reals + row * f->prior->experts, pi, f->prior->experts * sizeof *pi);
}

static void make_ids(const filler *f, const float *pi, uint64_t row) {
  kedge_prior_top(pi, f->prior->experts, f->eps, f->clip, f->topk, f->ids + row * f->topk);
}

kedge_status kedge_prior_fill_bias(const kedge_prior *p, double eps, double clip, bool whole_sample,
                                   const uint64_t *sample_ids, uint32_t count, uint32_t rows, float *bias_LSE,
                                   kedge_prior_clipped *clipped) {
  const filler f = {.prior = p,
                    .whole_sample = whole_sample,
                    .rows = rows,
                    .make = make_bias,
                    .eps = eps,
                    .clip = clip,
                    .reals = bias_LSE,
                    .clipped = clipped};
  memset(bias_LSE, 0, sizeof(float) * p->moe_layers * rows * p->experts);
  return fill(&f, sample_ids, count);
}

kedge_status kedge_prior_fill_pi(const kedge_prior *p, bool whole_sample, const uint64_t *sample_ids,
                                 uint32_t count, uint32_t rows, float *pi_LSE) {
  const filler f = {.prior = p, .whole_sample = whole_sample, .rows = rows, .make = make_pi, .reals = pi_LSE};
  KEDGE_TRY(kedge_prior_require_exact(p));
  memset(pi_LSE, 0, sizeof(float) * p->moe_layers * rows * p->experts);
  return fill(&f, sample_ids, count);
}

kedge_status kedge_prior_fill_ids(const kedge_prior *p, double eps, double clip, bool whole_sample,
                                  const uint64_t *sample_ids, uint32_t count, uint32_t rows, uint32_t topk,
                                  int32_t *ids_LSK) {
  const filler f = {.prior = p,
                    .whole_sample = whole_sample,
                    .rows = rows,
                    .make = make_ids,
                    .eps = eps,
                    .clip = clip,
                    .topk = topk,
                    .ids = ids_LSK};
  if (!topk || topk > p->experts)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "%s: top %u of a prior with %u experts", kedge_st_path(p->file),
                      topk, p->experts);
  for (uint64_t i = 0; i < (uint64_t)p->moe_layers * rows * topk; i++) ids_LSK[i] = -1;
  return fill(&f, sample_ids, count);
}
