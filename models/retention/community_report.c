/* SPDX-License-Identifier: Apache-2.0
 * The report on communities: options, layers in child processes, means (community_report.h). A layer's own
 * work is in community_layer.c. */
#include "models/retention/community_report.h"

#include "models/retention/workers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEEDS_MAX = 1024, DRAWS_MAX = 1000000 };

kedge_community_options kedge_community_defaults(void) {
  return (kedge_community_options){.rho_count = 4,
                                   .rho = {0.05, 0.10, 0.15, 0.20},
                                   .detector = KEDGE_LOUVAIN,
                                   .resolution = 1,
                                   .seeds = 8,
                                   .nulls = 100,
                                   .permutations = 100,
                                   .shuffles = 10,
                                   .split = KEDGE_SPLIT_TOKENS};
}

static kedge_status check_options(const kedge_community_options *o) {
  if (o->rho_count < 1 || o->rho_count > KEDGE_RHO_MAX)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "rho: expected 1 to %d values, got %u", KEDGE_RHO_MAX,
                      o->rho_count);
  for (uint32_t r = 0; r < o->rho_count; r++)
    if (!(o->rho[r] > 0 && o->rho[r] <= 1))
      return kedge_fail(KEDGE_ERR_ARGUMENT, "rho: expected above 0 and at most 1, got %g", o->rho[r]);
  if (o->detector != KEDGE_LOUVAIN && o->detector != KEDGE_LEIDEN)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "detector: expected louvain or leiden, got number %d",
                      (int)o->detector);
  if (!(o->resolution > 0 && isfinite(o->resolution)))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "resolution: expected a finite number above 0, got %g",
                      o->resolution);
  if (o->seeds < 1 || o->seeds > SEEDS_MAX)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "seeds: expected 1 to %d detector seeds, got %u", SEEDS_MAX,
                      o->seeds);
  if (o->nulls > DRAWS_MAX || o->permutations > DRAWS_MAX || o->shuffles > DRAWS_MAX)
    return kedge_fail(KEDGE_ERR_ARGUMENT,
                      "nulls, permutations, shuffles: expected at most %d, got %u, %u and %u", DRAWS_MAX,
                      o->nulls, o->permutations, o->shuffles);
  return KEDGE_OK;
}

static kedge_status differ(const char *what, long long base, long long post) {
  return kedge_fail(KEDGE_ERR_MISMATCH, "routing traces do not match: %s: base has %lld, post has %lld", what,
                    base, post);
}

static kedge_status check_traces(const kedge_trace *base, const kedge_trace *post) {
  if (!post) return KEDGE_OK;
  if (base->layers != post->layers) return differ("MoE layers", base->layers, post->layers);
  if (base->experts != post->experts) return differ("experts", base->experts, post->experts);
  if (base->topk != post->topk) return differ("experts a token", base->topk, post->topk);
  for (uint32_t l = 0; l < base->layers; l++)
    if (base->layer_numbers[l] != post->layer_numbers[l])
      return differ("number of a MoE layer", base->layer_numbers[l], post->layer_numbers[l]);
  return KEDGE_OK;
}

/* ---- Spreads and means
 * -------------------------------------------------------------------------------------------- */

static int compare_reals(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

kedge_summary kedge_summary_of(double *values, uint32_t count) {
  kedge_summary s = {.median = NAN, .mean = NAN, .sd = NAN, .low = NAN, .high = NAN};
  double sum = 0, squares = 0;
  for (uint32_t i = 0; i < count; i++)
    if (!isnan(values[i])) values[s.count++] = values[i];
  if (!s.count) return s;
  count = (uint32_t)s.count;
  qsort(values, s.count, sizeof *values, compare_reals);
  /* In sorted order, so that the order of the values does not change the last bits. */
  for (uint32_t i = 0; i < count; i++) sum += values[i];
  s.mean = sum / (double)s.count;
  for (uint32_t i = 0; i < count; i++) squares += (values[i] - s.mean) * (values[i] - s.mean);
  s.sd = s.count > 1 ? sqrt(squares / (double)(s.count - 1)) : 0;
  s.median = (values[(s.count - 1) / 2] + values[s.count / 2]) / 2;
  s.low = values[0], s.high = values[s.count - 1];
  return s;
}

/* Mean of one real of the layers' rows, `at` bytes into each, over those where it is a number. */
static uint32_t mean_real(const kedge_community_row *rows, uint32_t layers, uint32_t stride, size_t at,
                          double *mean) {
  uint32_t count = 0;
  double sum = 0;
  for (uint32_t l = 0; l < layers; l++) {
    const double value = *(const double *)(const void *)((const char *)(rows + (size_t)l * stride) + at);
    if (isnan(value)) continue;
    sum += value;
    count++;
  }
  *mean = count ? sum / count : NAN;
  return count;
}

static void mean_spread(const kedge_community_row *rows, uint32_t layers, uint32_t stride, size_t at,
                        kedge_community_row *out) {
  kedge_summary *s = (void *)((char *)out + at);
  s->count = mean_real(rows, layers, stride, at + offsetof(kedge_summary, median), &s->median);
  mean_real(rows, layers, stride, at + offsetof(kedge_summary, mean), &s->mean);
  mean_real(rows, layers, stride, at + offsetof(kedge_summary, sd), &s->sd);
  mean_real(rows, layers, stride, at + offsetof(kedge_summary, low), &s->low);
  mean_real(rows, layers, stride, at + offsetof(kedge_summary, high), &s->high);
}

static void mean_null(const kedge_community_row *rows, uint32_t layers, uint32_t stride, size_t at,
                      kedge_community_row *out) {
  kedge_null_result *n = (void *)((char *)out + at);
  n->draws = mean_real(rows, layers, stride, at + offsetof(kedge_null_result, mean), &n->mean);
  mean_real(rows, layers, stride, at + offsetof(kedge_null_result, sd), &n->sd);
  mean_real(rows, layers, stride, at + offsetof(kedge_null_result, low), &n->low);
  mean_real(rows, layers, stride, at + offsetof(kedge_null_result, high), &n->high);
  mean_real(rows, layers, stride, at + offsetof(kedge_null_result, margin), &n->margin);
  mean_real(rows, layers, stride, at + offsetof(kedge_null_result, rank_p), &n->rank_p);
}

static void add_counts(kedge_community_side *sum, const kedge_community_side *s) {
  sum->tokens += s->tokens, sum->pair_total += s->pair_total, sum->nonzero_pairs += s->nonzero_pairs;
  sum->edges += s->edges, sum->isolated += s->isolated, sum->least_count += s->least_count;
  sum->communities += s->communities, sum->singletons += s->singletons;
}

#define AT(member) offsetof(kedge_community_row, member)
static const size_t spreads[] = {AT(base.q),
                                 AT(base.seed_nmi),
                                 AT(base.split_nmi),
                                 AT(base.floor),
                                 AT(base.within),
                                 AT(base.global),
                                 AT(post.within),
                                 AT(post.global),
                                 AT(post.q),
                                 AT(post.seed_nmi),
                                 AT(post.split_nmi),
                                 AT(post.floor),
                                 AT(nmi),
                                 AT(nmi_active),
                                 AT(ami),
                                 AT(ami_active),
                                 AT(ari),
                                 AT(ari_active),
                                 AT(floor)};
static const size_t nulls[] = {AT(base.null_q), AT(post.null_q), AT(null_nmi)};

/* rows [layers, stride]: the rows of one rho, one in `stride`. */
static void mean_row(const kedge_community_row *rows, uint32_t layers, uint32_t stride,
                     kedge_community_row *mean) {
  *mean = (kedge_community_row){.layer = -1, .rho = rows->rho};
  for (size_t i = 0; i < sizeof spreads / sizeof *spreads; i++)
    mean_spread(rows, layers, stride, spreads[i], mean);
  for (size_t i = 0; i < sizeof nulls / sizeof *nulls; i++) mean_null(rows, layers, stride, nulls[i], mean);
  mean_real(rows, layers, stride, AT(dq), &mean->dq);
  for (uint32_t l = 0; l < layers; l++) {
    const kedge_community_row *row = rows + (size_t)l * stride;
    add_counts(&mean->base, &row->base), add_counts(&mean->post, &row->post);
    mean->active += row->active;
  }
}

/* ---- All layers
 * --------------------------------------------------------------------------------------------------- */

/* A layer's result: its rows, then the labels of base and post. */
typedef struct plan {
  kedge__community_job job;
  size_t rows_bytes, labels_bytes;
} plan;

static kedge_status do_layer(void *context, uint32_t layer, void *result) {
  const plan *p = context;
  uint32_t *base = (void *)((char *)result + p->rows_bytes);
  uint32_t *post = (void *)((char *)result + p->rows_bytes + p->labels_bytes);
  return kedge__community_layer(&p->job, layer, result, base, p->job.post ? post : NULL);
}

static kedge_status report_init(kedge_community_report *r, const kedge_trace *base, bool has_post,
                                const kedge_community_options *o) {
  *r = (kedge_community_report){
      .layers = base->layers, .rho_count = o->rho_count, .experts = base->experts, .has_post = has_post};
  const size_t places = (size_t)r->layers * r->rho_count;
  r->rows = kedge_alloc(places, sizeof *r->rows);
  r->means = kedge_alloc(r->rho_count, sizeof *r->means);
  r->base_labels = kedge_alloc(places, r->experts * sizeof *r->base_labels);
  if (has_post) r->post_labels = kedge_alloc(places, r->experts * sizeof *r->post_labels);
  return r->rows && r->means && r->base_labels && (!has_post || r->post_labels) ? KEDGE_OK : KEDGE_ERR_MEMORY;
}

/* Results [layers, bytes] to their places. */
static void take(kedge_community_report *r, const plan *p, const char *results, size_t bytes) {
  for (uint32_t l = 0; l < r->layers; l++) {
    const char *at = results + l * bytes;
    const size_t labels = (size_t)l * r->rho_count * r->experts;
    memcpy(r->rows + (size_t)l * r->rho_count, at, r->rho_count * sizeof *r->rows);
    memcpy(r->base_labels + labels, at + p->rows_bytes, p->labels_bytes);
    if (r->has_post) memcpy(r->post_labels + labels, at + p->rows_bytes + p->labels_bytes, p->labels_bytes);
  }
  for (uint32_t rho = 0; rho < r->rho_count; rho++)
    mean_row(r->rows + rho, r->layers, r->rho_count, &r->means[rho]);
}

static kedge_status run(kedge_community_report *r, plan *p) {
  const kedge_community_options *o = p->job.options;
  p->rows_bytes = o->rho_count * sizeof(kedge_community_row);
  p->labels_bytes = (size_t)o->rho_count * r->experts * sizeof(uint32_t);
  const size_t bytes = (p->rows_bytes + 2 * p->labels_bytes + 63) / 64 * 64;
  char *results = kedge_alloc(r->layers, bytes);
  if (!results) return KEDGE_ERR_MEMORY;
  kedge__igraph_begin();
  const kedge_status status = kedge__jobs_run(&(kedge__jobs){.name = "MoE layer",
                                                             .count = r->layers,
                                                             .result_bytes = bytes,
                                                             .job = do_layer,
                                                             .context = p,
                                                             .workers = o->workers,
                                                             .progress = o->progress,
                                                             .progress_context = o->context},
                                              results);
  kedge__igraph_end();
  if (status == KEDGE_OK) take(r, p, results, bytes);
  kedge_free(results);
  return status;
}

kedge_status kedge_community_report_make(const kedge_trace *base, const kedge_trace *post, int span,
                                         const kedge_community_options *options, kedge_community_report *r) {
  const kedge_community_options defaults = kedge_community_defaults();
  if (!options) options = &defaults;
  *r = (kedge_community_report){0};
  KEDGE_TRY(check_options(options));
  KEDGE_TRY(check_traces(base, post));
  plan p = {.job = {base, post, span, options}};
  kedge_status status = report_init(r, base, post, options);
  if (status == KEDGE_OK) status = run(r, &p);
  if (status != KEDGE_OK) kedge_community_report_destroy(r);
  return status;
}

void kedge_community_report_destroy(kedge_community_report *r) {
  kedge_free(r->rows);
  kedge_free(r->means);
  kedge_free(r->base_labels);
  kedge_free(r->post_labels);
  *r = (kedge_community_report){0};
}
