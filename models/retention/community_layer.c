/* SPDX-License-Identifier: Apache-2.0
 * Communities of one layer, at every rho (community_report.h). */
#include "models/retention/community_report.h"

#include "models/prior/shuffle.h"
#include "models/retention/retention.h"

#include <math.h>
#include <string.h>

enum { STREAM_NULL = 1, STREAM_FLOOR = 2, STREAM_SHUFFLE = 3 };

/* One model's part of the work. */
typedef struct side {
  kedge_coactivation whole, halves[2];
  kedge_null_model null;
  uint32_t *labels; /* [rho_count, seeds, experts] */
  uint8_t *active;  /* [rho_count, experts] with a kept edge */
  double *null_q;   /* [rho_count, nulls] */
} side;

typedef struct work {
  const kedge__community_job *job;
  const kedge_community_options *o;
  uint32_t layer, experts;
  int32_t number; /* of the layer in the model */
  side base, post;
  kedge_weighted_graph graph; /* scratch */
  uint32_t *drawn;            /* [pairs] */
  uint32_t *other;            /* [experts] labels */
  double *values;             /* scratch for spreads */
  double *scores[3];          /* [seeds] each */
  double *null_nmi;           /* [rho_count, nulls] */
} work;

/* Streams of random numbers belong to a layer of the model, so that a figure is the same whichever layers are
 * looked at beside it, and whether a model stands alone, as base or as post. */
static kedge_random stream(const work *w, uint64_t purpose, uint32_t draw) {
  return kedge_random_start(w->o->seed, purpose << 56 | (uint64_t)(uint32_t)w->number << 32 | draw);
}

static uint32_t *labels_of(const work *w, const side *s, uint32_t rho, uint32_t seed) {
  return s->labels + ((size_t)rho * w->o->seeds + seed) * w->experts;
}

static kedge_status detect(const work *w, uint32_t seed, uint32_t *labels, double *q) {
  return kedge__detect(&w->graph, w->o->detector, w->o->resolution, w->o->seed + seed, labels, q);
}

/* ---- One model
 * ---------------------------------------------------------------------------------------------------- */

/* Detects with every seed. `best` becomes the first seed with the highest Q. */
static kedge_status detect_all(work *w, side *s, uint32_t rho, kedge_community_side *out, uint32_t *best) {
  double highest = -INFINITY;
  *best = 0;
  for (uint32_t i = 0; i < w->o->seeds; i++) {
    KEDGE_TRY(detect(w, i, labels_of(w, s, rho, i), &w->values[i]));
    /* Equal partitions have the same bits, others of equal Q may differ by rounding: the first stays. */
    if (w->values[i] > highest + 1e-12) {
      highest = w->values[i];
      *best = i;
    }
  }
  out->q = kedge_summary_of(w->values, w->o->seeds);
  uint32_t pairs = 0;
  for (uint32_t i = 0; i < w->o->seeds; i++)
    for (uint32_t j = i + 1; j < w->o->seeds; j++)
      KEDGE_TRY(kedge_partition_nmi(labels_of(w, s, rho, i), w->experts, labels_of(w, s, rho, j), w->experts,
                                    &w->values[pairs++]));
  out->seed_nmi = kedge_summary_of(w->values, pairs);
  return KEDGE_OK;
}

/* NMI between the two halves of the tokens, seed by seed; undefined where a half has no edge. */
static kedge_status split_half(work *w, side *s, double rho, kedge_summary *out) {
  kedge_status status = KEDGE_OK;
  for (uint32_t i = 0; i < w->o->seeds; i++) w->values[i] = NAN;
  uint32_t *first = kedge_alloc((size_t)w->o->seeds * w->experts, sizeof *first);
  if (!first) return KEDGE_ERR_MEMORY;
  for (uint32_t h = 0; h < 2; h++) {
    KEDGE_GOTO(kedge_pairs_threshold(s->halves[h].pairs, w->experts, rho, &w->graph, NULL), status, done);
    if (!w->graph.edges) break;
    for (uint32_t i = 0; i < w->o->seeds; i++) {
      uint32_t *mine = first + (size_t)i * w->experts;
      KEDGE_GOTO(detect(w, i, h ? w->other : mine, NULL), status, done);
      if (h)
        KEDGE_GOTO(kedge_partition_nmi(mine, w->experts, w->other, w->experts, &w->values[i]), status, done);
    }
  }
  *out = kedge_summary_of(w->values, w->o->seeds);
done:
  kedge_free(first);
  return status;
}

/* NMI of a against b with its experts permuted. */
static kedge_status label_floor(work *w, const uint32_t *a, const uint32_t *b, kedge_summary *out) {
  for (uint32_t p = 0; p < w->o->permutations; p++) {
    kedge_random random = stream(w, STREAM_FLOOR, p);
    memcpy(w->other, b, w->experts * sizeof *b);
    kedge_random_shuffle(&random, w->other, w->experts);
    KEDGE_TRY(kedge_partition_nmi(a, w->experts, w->other, w->experts, &w->values[p]));
  }
  *out = kedge_summary_of(w->values, w->o->permutations);
  return KEDGE_OK;
}

/* w->drawn becomes the counts with experts permuted: the new expert e is the old sigma[e]. */
static void permute_pairs(const work *w, const side *s, const uint32_t *sigma) {
  uint32_t *out = w->drawn;
  for (uint32_t i = 0; i < w->experts; i++)
    for (uint32_t j = i + 1; j < w->experts; j++) {
      const uint32_t a = sigma[i] < sigma[j] ? sigma[i] : sigma[j],
                     b = sigma[i] < sigma[j] ? sigma[j] : sigma[i];
      *out++ = s->whole.pairs[kedge_pair_index(w->experts, a, b)];
    }
}

/* NMI of a seed's communities against those found in the graph whose experts are shuffled by them. */
static kedge_status shuffle_check(work *w, side *s, uint32_t rho, kedge_shuffle_mode mode,
                                  kedge_summary *out) {
  for (uint32_t p = 0; p < w->o->shuffles; p++) {
    const uint32_t seed = p % w->o->seeds;
    kedge_random random = stream(w, STREAM_SHUFFLE, p);
    const kedge_communities own = {.layers = 1, .experts = w->experts, .labels = labels_of(w, s, rho, seed)};
    kedge_shuffle shuffle;
    KEDGE_TRY(kedge_shuffle_init(&shuffle, mode, kedge_random_next(&random),
                                 mode == KEDGE_SHUFFLE_WITHIN ? &own : NULL, 1, w->experts));
    permute_pairs(w, s, shuffle.sigma);
    kedge_shuffle_destroy(&shuffle);
    KEDGE_TRY(kedge_pairs_threshold(w->drawn, w->experts, w->o->rho[rho], &w->graph, NULL));
    KEDGE_TRY(detect(w, seed, w->other, NULL));
    KEDGE_TRY(kedge_partition_nmi(own.labels, w->experts, w->other, w->experts, &w->values[p]));
  }
  *out = kedge_summary_of(w->values, w->o->shuffles);
  return KEDGE_OK;
}

static void describe(const work *w, const side *s, uint32_t rho, kedge_community_side *out) {
  uint8_t *active = s->active + (size_t)rho * w->experts;
  out->tokens = s->whole.tokens, out->pair_total = s->whole.total;
  out->nonzero_pairs = kedge_coactivation_nonzero(&s->whole);
  out->edges = w->graph.edges;
  for (uint32_t e = 0; e < 2 * w->graph.edges; e++) active[w->graph.ends[e]] = 1;
  out->isolated = 0;
  for (uint32_t e = 0; e < w->experts; e++) out->isolated += !active[e];
}

/* Everything about one model at one rho but the null. */
static kedge_status one_side(work *w, side *s, uint32_t rho, kedge_community_side *out, uint32_t *labels) {
  const double value = w->o->rho[rho];
  uint32_t best, least;
  KEDGE_TRY(kedge_pairs_threshold(s->whole.pairs, w->experts, value, &w->graph, &least));
  out->least_count = least;
  describe(w, s, rho, out);
  KEDGE_TRY(detect_all(w, s, rho, out, &best));
  memcpy(labels, labels_of(w, s, rho, best), w->experts * sizeof *labels);
  kedge_labels_count(labels, w->experts, &out->communities, &out->singletons);
  KEDGE_TRY(label_floor(w, labels, labels, &out->floor));
  KEDGE_TRY(shuffle_check(w, s, rho, KEDGE_SHUFFLE_WITHIN, &out->within));
  KEDGE_TRY(shuffle_check(w, s, rho, KEDGE_SHUFFLE_GLOBAL, &out->global));
  return split_half(w, s, value, &out->split_nmi);
}

/* Draws of the null of one model, each thresholded at every rho. Against the base where that is another. */
static kedge_status draw_nulls(work *w, side *s, const side *base) {
  for (uint32_t d = 0; d < w->o->nulls; d++) {
    kedge_random random = stream(w, STREAM_NULL, d);
    const uint32_t seed = d % w->o->seeds;
    kedge_null_model_draw(&s->null, &random, w->drawn);
    for (uint32_t r = 0; r < w->o->rho_count; r++) {
      const size_t at = (size_t)r * w->o->nulls + d;
      KEDGE_TRY(kedge_pairs_threshold(w->drawn, w->experts, w->o->rho[r], &w->graph, NULL));
      KEDGE_TRY(detect(w, seed, w->other, &s->null_q[at]));
      if (base)
        KEDGE_TRY(kedge_partition_nmi(labels_of(w, base, r, seed), w->experts, w->other, w->experts,
                                      &w->null_nmi[at]));
    }
  }
  return KEDGE_OK;
}

static void side_destroy(side *s) {
  kedge_coactivation_destroy(&s->whole);
  kedge_coactivation_destroy(&s->halves[0]);
  kedge_coactivation_destroy(&s->halves[1]);
  kedge_null_model_destroy(&s->null);
  kedge_free(s->labels);
  kedge_free(s->active);
  kedge_free(s->null_q);
}

static kedge_status count_halves(const work *w, side *s, const kedge_trace *trace) {
  uint8_t *half = kedge_alloc(trace->tokens, 1);
  if (!half) return KEDGE_ERR_MEMORY;
  kedge_status status = kedge_trace_halve(trace, w->layer, w->job->span, w->o->split, half);
  for (uint8_t h = 0; h < 2 && status == KEDGE_OK; h++)
    status = kedge_coactivation_count(trace, w->layer, w->job->span, half, h, &s->halves[h]);
  kedge_free(half);
  return status;
}

static kedge_status side_init(work *w, side *s, const kedge_trace *trace) {
  KEDGE_TRY(kedge_coactivation_count(trace, w->layer, w->job->span, NULL, 0, &s->whole));
  KEDGE_TRY(count_halves(w, s, trace));
  KEDGE_TRY(kedge_null_model_init(&s->null, &s->whole));
  s->labels = kedge_alloc((size_t)w->o->rho_count * w->o->seeds, w->experts * sizeof *s->labels);
  s->active = kedge_alloc(w->o->rho_count, w->experts);
  s->null_q = kedge_alloc((size_t)w->o->rho_count * w->o->nulls + 1, sizeof *s->null_q);
  return s->labels && s->active && s->null_q ? KEDGE_OK : KEDGE_ERR_MEMORY;
}

/* ---- Post against base
 * -------------------------------------------------------------------------------------------- */

/* Scores of each seed's pair of partitions: scores[0..2] become NMI, AMI, ARI of all experts or of `use`. */
static kedge_status score(work *w, uint32_t rho, const uint8_t *use) {
  for (uint32_t i = 0; i < w->o->seeds; i++) {
    kedge_partition_scores s;
    KEDGE_TRY(kedge_partition_compare(labels_of(w, &w->base, rho, i), w->experts,
                                      labels_of(w, &w->post, rho, i), w->experts, use, &s));
    w->scores[0][i] = s.nmi, w->scores[1][i] = s.ami, w->scores[2][i] = s.ari;
  }
  return KEDGE_OK;
}

static kedge_status compare(work *w, uint32_t rho, kedge_community_row *row, const uint32_t *base_labels,
                            const uint32_t *post_labels) {
  const uint32_t seeds = w->o->seeds;
  uint8_t *use = w->base.active + (size_t)rho * w->experts;
  const uint8_t *other = w->post.active + (size_t)rho * w->experts;
  KEDGE_TRY(score(w, rho, NULL));
  row->nmi = kedge_summary_of(w->scores[0], seeds);
  row->ami = kedge_summary_of(w->scores[1], seeds);
  row->ari = kedge_summary_of(w->scores[2], seeds);
  row->active = 0;
  for (uint32_t e = 0; e < w->experts; e++) row->active += use[e] &= other[e];
  KEDGE_TRY(score(w, rho, use));
  row->nmi_active = kedge_summary_of(w->scores[0], seeds);
  row->ami_active = kedge_summary_of(w->scores[1], seeds);
  row->ari_active = kedge_summary_of(w->scores[2], seeds);
  row->dq = row->post.q.median - row->base.q.median;
  return label_floor(w, base_labels, post_labels, &row->floor);
}

/* ---- The layer
 * ---------------------------------------------------------------------------------------------------- */

static void unset(kedge_community_side *s) {
  s->q = s->seed_nmi = s->split_nmi = s->floor = s->within = s->global = kedge_summary_of(NULL, 0);
  s->null_q = kedge_null_compare(NAN, NULL, 0);
}

static void row_init(const work *w, uint32_t rho, kedge_community_row *row) {
  *row = (kedge_community_row){.layer = w->number, .rho = w->o->rho[rho], .dq = NAN};
  unset(&row->base), unset(&row->post);
  row->nmi = row->nmi_active = row->ami = row->ami_active = row->ari = row->ari_active = row->floor =
      kedge_summary_of(NULL, 0);
  row->null_nmi = kedge_null_compare(NAN, NULL, 0);
}

static kedge_status work_init(work *w) {
  const kedge__community_job *job = w->job;
  const size_t seeds = w->o->seeds, pairs = seeds * (seeds - 1) / 2;
  size_t values = pairs > w->o->permutations ? pairs : w->o->permutations;
  if (values < seeds) values = seeds;
  if (values < w->o->shuffles) values = w->o->shuffles;
  w->values = kedge_alloc(values + 3 * seeds, sizeof *w->values);
  w->null_nmi = kedge_alloc((size_t)w->o->rho_count * w->o->nulls + 1, sizeof *w->null_nmi);
  w->drawn = kedge_alloc((size_t)kedge_pair_count(w->experts) + 1, sizeof *w->drawn);
  w->other = kedge_alloc(w->experts, sizeof *w->other);
  if (!w->values || !w->null_nmi || !w->drawn || !w->other) return KEDGE_ERR_MEMORY;
  for (size_t i = 0; i < 3; i++) w->scores[i] = w->values + values + i * seeds;
  KEDGE_TRY(side_init(w, &w->base, job->base));
  return job->post ? side_init(w, &w->post, job->post) : KEDGE_OK;
}

static void work_destroy(work *w) {
  side_destroy(&w->base), side_destroy(&w->post);
  kedge_weighted_graph_destroy(&w->graph);
  kedge_free(w->drawn);
  kedge_free(w->other);
  kedge_free(w->values);
  kedge_free(w->null_nmi);
}

static kedge_status fill_rows(work *w, kedge_community_row *rows, uint32_t *base_labels,
                              uint32_t *post_labels) {
  const bool both = w->job->post;
  const uint32_t nulls = w->o->nulls;
  for (uint32_t r = 0; r < w->o->rho_count; r++) {
    const size_t at = (size_t)r * w->experts;
    row_init(w, r, &rows[r]);
    KEDGE_TRY(one_side(w, &w->base, r, &rows[r].base, base_labels + at));
    if (!both) continue;
    KEDGE_TRY(one_side(w, &w->post, r, &rows[r].post, post_labels + at));
    /* Where one of them has no tokens there is nothing to compare. */
    if (w->base.whole.tokens && w->post.whole.tokens)
      KEDGE_TRY(compare(w, r, &rows[r], base_labels + at, post_labels + at));
  }
  KEDGE_TRY(draw_nulls(w, &w->base, NULL));
  if (both) KEDGE_TRY(draw_nulls(w, &w->post, &w->base));
  for (uint32_t r = 0; r < w->o->rho_count; r++) {
    const size_t at = (size_t)r * nulls;
    rows[r].base.null_q = kedge_null_compare(rows[r].base.q.median, w->base.null_q + at, nulls);
    if (!both) continue;
    rows[r].post.null_q = kedge_null_compare(rows[r].post.q.median, w->post.null_q + at, nulls);
    rows[r].null_nmi = kedge_null_compare(rows[r].nmi.median, w->null_nmi + at, nulls);
  }
  return KEDGE_OK;
}

kedge_status kedge__community_layer(const kedge__community_job *job, uint32_t layer,
                                    kedge_community_row *rows, uint32_t *base_labels, uint32_t *post_labels) {
  work w = {.job = job,
            .o = job->options,
            .layer = layer,
            .experts = job->base->experts,
            .number = job->base->layer_numbers[layer]};
  kedge_status status = work_init(&w);
  if (status == KEDGE_OK) status = fill_rows(&w, rows, base_labels, post_labels);
  work_destroy(&w);
  return status;
}
