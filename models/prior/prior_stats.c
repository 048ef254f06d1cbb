/* SPDX-License-Identifier: Apache-2.0
 * Measures of priors (prior_stats.h). */
#include "models/prior/prior_stats.h"
#include "models/prior/prior_internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { STEP = 64, HALF = 1 << 16 }; /* samples between two looks at progress; values of half a float */

/* Sums of a group. The 90th percentile comes from the bits of floats of 0 or more, which are ordered as the
 * numbers are: the first pass counts their upper halves, the second the lower halves of the two upper ones
 * where the two nearest ranks lie. */
typedef struct group {
  uint64_t rows, undefined, low, high, common;
  double sd, sd_min, sd_max, range, range_max, entropy, effective, db;
  uint64_t elements;
  uint64_t *upper;    /* [HALF] */
  uint64_t *lower[2]; /* [HALF] each */
  uint64_t rank[2];   /* among the elements with the upper half of that rank */
  uint32_t half[2];
  double fraction; /* of the way from the first rank to the second */
} group;

typedef struct work {
  const kedge_prior *prior, *other;
  const kedge_prior_stats_options *options;
  uint32_t L, E, K;
  group *groups; /* all, span 0, span 1, layers */
  float *pi, *pi2, *b, *b2;
  int32_t *top, *top2;
  double *db; /* [E] */
} work;

static uint32_t group_count(const work *w) {
  return 3 + w->L;
}

/* ---- One row
 * ------------------------------------------------------------------------------------------------- */

typedef struct row_numbers {
  double sd, range, entropy, db;
  uint64_t low, high, common;
} row_numbers;

static void measure_row(const work *w, row_numbers *r) {
  const double low = w->options->eps / w->E, high = w->options->clip / w->E;
  double squares = 0, least = INFINITY, most = -INFINITY;
  *r = (row_numbers){0};
  for (uint32_t e = 0; e < w->E; e++) {
    const double pi = (double)w->pi[e], b = (double)w->b[e];
    squares += b * b, least = fmin(least, b), most = fmax(most, b);
    r->low += pi <= low, r->high += pi >= high;
    if (pi > 0) r->entropy -= pi * log(pi);
  }
  r->sd = sqrt(squares / w->E);
  r->range = most - least;
}

static void compare_row(const work *w, row_numbers *r) {
  for (uint32_t e = 0; e < w->E; e++) {
    w->db[e] = w->options->beta * fabs((double)w->b2[e] - (double)w->b[e]);
    r->db += w->db[e];
  }
  kedge_prior_top(w->pi, w->E, w->options->eps, w->options->clip, w->K, w->top);
  kedge_prior_top(w->pi2, w->E, w->options->eps, w->options->clip, w->K, w->top2);
  for (uint32_t i = 0; i < w->K; i++)
    for (uint32_t j = 0; j < w->K; j++) r->common += w->top[i] == w->top2[j];
}

static uint32_t bits_of(double value) {
  const float rounded = (float)value;
  uint32_t bits;
  memcpy(&bits, &rounded, sizeof bits);
  return bits;
}

static void add_row(const work *w, group *g, const row_numbers *r) {
  if (!g->rows || r->sd < g->sd_min) g->sd_min = r->sd;
  g->sd_max = fmax(g->sd_max, r->sd), g->range_max = fmax(g->range_max, r->range);
  g->rows++;
  g->sd += r->sd, g->range += r->range, g->entropy += r->entropy, g->effective += exp(r->entropy) / w->E;
  g->low += r->low, g->high += r->high, g->common += r->common, g->db += r->db;
  for (uint32_t e = 0; g->upper && e < w->E; e++) g->upper[bits_of(w->db[e]) / HALF]++;
}

static void refine_row(const work *w, group *g) {
  for (uint32_t e = 0; e < w->E; e++) {
    const uint32_t bits = bits_of(w->db[e]);
    for (int i = 0; i < 2; i++)
      if (bits / HALF == g->half[i]) g->lower[i][bits % HALF]++;
  }
}

/* ---- Passes
 * -------------------------------------------------------------------------------------------------- */

static kedge_status read_sample(work *w, uint32_t sample, uint32_t span, bool refine) {
  group *all = &w->groups[0], *of_span = &w->groups[1 + span], *of_layers = &w->groups[3];
  for (uint32_t l = 0; l < w->L; l++) {
    row_numbers numbers = {0};
    KEDGE_TRY(kedge__prior_read_row(w->prior, sample, span, l, w->pi));
    kedge_prior_bias(w->pi, w->E, w->options->eps, w->options->clip, w->b);
    if (!refine) measure_row(w, &numbers);
    if (w->other) {
      KEDGE_TRY(kedge__prior_read_row(w->other, sample, span, l, w->pi2));
      kedge_prior_bias(w->pi2, w->E, w->options->eps, w->options->clip, w->b2);
      compare_row(w, &numbers);
    }
    group *groups[] = {all, of_span, &of_layers[l]};
    for (int i = 0; i < 3; i++)
      if (refine)
        refine_row(w, groups[i]);
      else
        add_row(w, groups[i], &numbers);
  }
  return KEDGE_OK;
}

static void count_undefined(work *w, uint32_t span) {
  w->groups[0].undefined += w->L;
  w->groups[1 + span].undefined += w->L;
  for (uint32_t l = 0; l < w->L; l++) w->groups[3 + l].undefined++;
}

static kedge_status pass(work *w, bool refine) {
  const kedge_prior *p = w->prior;
  const kedge_prior_stats_options *o = w->options;
  for (uint32_t sample = 0; sample < p->samples; sample++) {
    int32_t counts[2];
    kedge__prior_counts(p, sample, counts);
    for (uint32_t span = 0; span < 2; span++) {
      if (counts[span] > 0) KEDGE_TRY(read_sample(w, sample, span, refine));
      if (counts[span] <= 0 && !refine) count_undefined(w, span);
    }
    if ((sample + 1) % STEP && sample + 1 < p->samples) continue;
    kedge_st_drop(p->prior);
    if (w->other) kedge_st_drop(w->other->prior);
    if (o->progress && !o->progress(o->context, sample + 1, p->samples))
      return kedge_fail(KEDGE_ERR_INTERRUPTED, "stopped after %u of %u samples", sample + 1, p->samples);
  }
  return KEDGE_OK;
}

/* ---- Percentiles
 * --------------------------------------------------------------------------------------------- */

/* The value whose share of the counts holds `rank`; *rank becomes its place inside. */
static uint32_t find_rank(const uint64_t *counts, uint64_t *rank) {
  uint32_t at = 0;
  while (at + 1 < HALF && *rank >= counts[at]) *rank -= counts[at++];
  return at;
}

static kedge_status plan_refinement(work *w, group *g) {
  if (!g->rows) return KEDGE_OK;
  g->elements = g->rows * w->E;
  const double place = 0.9 * (double)(g->elements - 1);
  g->rank[0] = (uint64_t)floor(place);
  g->rank[1] = g->rank[0] + 1 < g->elements ? g->rank[0] + 1 : g->rank[0];
  g->fraction = place - floor(place);
  for (int i = 0; i < 2; i++) g->half[i] = find_rank(g->upper, &g->rank[i]);
  kedge_free(g->upper);
  g->upper = NULL;
  for (int i = 0; i < 2; i++)
    if (!(g->lower[i] = kedge_alloc(HALF, sizeof *g->lower[i]))) return KEDGE_ERR_MEMORY;
  return KEDGE_OK;
}

static double percentile(group *g) {
  double value[2];
  for (int i = 0; i < 2; i++) {
    const uint32_t bits = g->half[i] * HALF + find_rank(g->lower[i], &g->rank[i]);
    float number;
    memcpy(&number, &bits, sizeof number);
    value[i] = (double)number;
  }
  return value[0] + g->fraction * (value[1] - value[0]);
}

/* ---- The whole
 * ----------------------------------------------------------------------------------------------- */

static void finish_group(const work *w, group *g, kedge_prior_stats *s) {
  const double rows = (double)g->rows, cells = rows * w->E;
  *s = (kedge_prior_stats){.rows = g->rows,
                           .undefined = g->undefined,
                           .sd = g->sd / rows,
                           .sd_min = g->rows ? g->sd_min : NAN,
                           .sd_max = g->rows ? g->sd_max : NAN,
                           .range = g->range / rows,
                           .range_max = g->rows ? g->range_max : NAN,
                           .low = (double)g->low / cells,
                           .high = (double)g->high / cells,
                           .entropy = g->entropy / rows,
                           .effective = g->effective / rows,
                           .overlap = NAN,
                           .change = NAN,
                           .db_mean = NAN,
                           .db_p90 = NAN};
  if (!w->other || !g->rows) return;
  s->overlap = (double)g->common / (rows * w->K);
  s->change = 1 - s->overlap;
  s->db_mean = g->db / cells;
  s->db_p90 = percentile(g);
}

static kedge_status check_pair(const kedge_prior *p, const kedge_prior *other) {
  const char *name = kedge_st_path(other->file);
  if (p->samples != other->samples || p->moe_layers != other->moe_layers || p->experts != other->experts)
    return kedge_fail(KEDGE_ERR_MISMATCH, "%s: %u samples, %u MoE layers, %u experts; %s has %u, %u, %u",
                      name, other->samples, other->moe_layers, other->experts, kedge_st_path(p->file),
                      p->samples, p->moe_layers, p->experts);
  if (memcmp(p->layers->data, other->layers->data, p->layers->bytes))
    return kedge_fail(KEDGE_ERR_MISMATCH, "%s: other layers than %s", name, kedge_st_path(p->file));
  for (uint32_t i = 0; i < p->samples; i++)
    if (memcmp(p->ids->data + 8ull * i, other->ids->data + 8ull * i, 8) ||
        memcmp(p->counts->data + 8ull * i, other->counts->data + 8ull * i, 8))
      return kedge_fail(KEDGE_ERR_MISMATCH, "%s: row %u is of another sample or span length than in %s", name,
                        i, kedge_st_path(p->file));
  return KEDGE_OK;
}

static kedge_status work_init(work *w) {
  w->groups = kedge_alloc(group_count(w), sizeof *w->groups);
  w->pi = kedge_alloc(4 * (size_t)w->E, sizeof *w->pi);
  w->top = kedge_alloc(2 * (size_t)(w->K ? w->K : 1), sizeof *w->top);
  w->db = kedge_alloc(w->E, sizeof *w->db);
  if (!w->groups || !w->pi || !w->top || !w->db) return KEDGE_ERR_MEMORY;
  w->pi2 = w->pi + w->E, w->b = w->pi2 + w->E, w->b2 = w->b + w->E;
  w->top2 = w->top + w->K;
  for (uint32_t i = 0; w->other && i < group_count(w); i++)
    if (!(w->groups[i].upper = kedge_alloc(HALF, sizeof *w->groups[i].upper))) return KEDGE_ERR_MEMORY;
  return KEDGE_OK;
}

static void work_destroy(work *w) {
  for (uint32_t i = 0; w->groups && i < group_count(w); i++) {
    kedge_free(w->groups[i].upper);
    kedge_free(w->groups[i].lower[0]);
    kedge_free(w->groups[i].lower[1]);
  }
  kedge_free(w->groups);
  kedge_free(w->pi);
  kedge_free(w->top);
  kedge_free(w->db);
}

static kedge_status measure(work *w, kedge_prior_report *report) {
  report->layer = kedge_alloc(w->L, sizeof *report->layer);
  if (!report->layer) return KEDGE_ERR_MEMORY;
  KEDGE_TRY(work_init(w));
  KEDGE_TRY(pass(w, false));
  for (uint32_t i = 0; w->other && i < group_count(w); i++) KEDGE_TRY(plan_refinement(w, &w->groups[i]));
  if (w->other) KEDGE_TRY(pass(w, true));
  finish_group(w, &w->groups[0], &report->all);
  for (uint32_t s = 0; s < 2; s++) finish_group(w, &w->groups[1 + s], &report->span[s]);
  for (uint32_t l = 0; l < w->L; l++) finish_group(w, &w->groups[3 + l], &report->layer[l]);
  return KEDGE_OK;
}

kedge_status kedge_prior_measure(const kedge_prior *prior, const kedge_prior *other,
                                 const kedge_prior_stats_options *options, kedge_prior_report *report) {
  work w = {.prior = prior,
            .other = other,
            .options = options,
            .L = prior->moe_layers,
            .E = prior->experts,
            .K = options->topk ? options->topk : prior->top_k};
  *report = (kedge_prior_report){.compared = other, .layers = w.L, .topk = w.K};
  if (other) KEDGE_TRY(check_pair(prior, other));
  if (other && (!w.K || w.K > w.E))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "%s: overlap of the top %u of %u experts",
                      kedge_st_path(prior->file), w.K, w.E);
  if (!other) w.K = 0;
  kedge_status status = measure(&w, report);
  work_destroy(&w);
  if (status != KEDGE_OK) kedge_prior_report_destroy(report);
  return status;
}

void kedge_prior_report_destroy(kedge_prior_report *report) {
  kedge_free(report->layer);
  report->layer = NULL;
}
