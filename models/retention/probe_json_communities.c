/* SPDX-License-Identifier: Apache-2.0
 * The communities of a probe as JSON (probe.h). */
#include "models/retention/probe.h"
#include "models/retention/report_json.h"

#include <math.h>

static void put_count(json_t *object, const char *key, uint64_t value, bool *failed) {
  kedge__json_put(object, key, kedge__json_count(value), failed);
}

static void put_real(json_t *object, const char *key, double value, bool *failed) {
  kedge__json_put(object, key, kedge__json_real(value), failed);
}

static void put_summary(json_t *parent, const char *key, const kedge_summary *s, bool *failed) {
  json_t *object = json_object();
  put_count(object, "count", s->count, failed);
  put_real(object, "median", s->median, failed);
  put_real(object, "mean", s->mean, failed);
  put_real(object, "sd", s->sd, failed);
  put_real(object, "low", s->low, failed);
  put_real(object, "high", s->high, failed);
  kedge__json_put(parent, key, object, failed);
}

static void put_null(json_t *parent, const char *key, const kedge_null_result *n, bool *failed) {
  json_t *object = json_object();
  put_count(object, "draws", n->draws, failed);
  put_real(object, "mean", n->mean, failed);
  put_real(object, "sd", n->sd, failed);
  put_real(object, "low", n->low, failed);
  put_real(object, "high", n->high, failed);
  put_real(object, "margin", n->margin, failed);
  put_real(object, "rank_p", n->rank_p, failed);
  kedge__json_put(parent, key, object, failed);
}

static json_t *side_of(const kedge_community_side *s, bool *failed) {
  json_t *object = json_object();
  put_count(object, "tokens", s->tokens, failed);
  put_count(object, "pair_total", s->pair_total, failed);
  put_count(object, "nonzero_pairs", s->nonzero_pairs, failed);
  put_count(object, "edges", s->edges, failed);
  put_count(object, "least_count", s->least_count, failed);
  put_count(object, "isolated", s->isolated, failed);
  put_count(object, "communities", s->communities, failed);
  put_count(object, "singletons", s->singletons, failed);
  put_summary(object, "modularity", &s->q, failed);
  put_summary(object, "seed_nmi", &s->seed_nmi, failed);
  put_summary(object, "split_half_nmi", &s->split_nmi, failed);
  put_summary(object, "label_permuted_nmi", &s->floor, failed);
  put_null(object, "null_modularity", &s->null_q, failed);
  return object;
}

static json_t *row_of(const kedge_community_row *r, uint32_t experts, bool has_post, bool *failed) {
  json_t *object = json_object();
  if (r->layer >= 0)
    put_count(object, "layer", (uint64_t)r->layer, failed);
  else
    put_real(object, "rho", r->rho, failed);
  kedge__json_put(object, "base", side_of(&r->base, failed), failed);
  if (!has_post) return object;
  kedge__json_put(object, "post", side_of(&r->post, failed), failed);
  put_real(object, "modularity_change", r->dq, failed);
  put_summary(object, "nmi", &r->nmi, failed);
  put_summary(object, "nmi_active", &r->nmi_active, failed);
  put_summary(object, "ami", &r->ami, failed);
  put_summary(object, "ami_active", &r->ami_active, failed);
  put_summary(object, "ari", &r->ari, failed);
  put_summary(object, "ari_active", &r->ari_active, failed);
  put_count(object, "experts_active", r->active, failed);
  put_count(object, "experts_dropped", experts - r->active, failed);
  put_summary(object, "label_permuted_nmi", &r->floor, failed);
  put_null(object, "null_nmi", &r->null_nmi, failed);
  return object;
}

json_t *kedge__probe_communities_json(const kedge_probe *p, const kedge_probe_domain *d, bool layers,
                                      bool *failed) {
  const kedge_community_report *c = &d->communities;
  json_t *object = json_object(), *list = json_array();
  kedge__json_put(object, "detector", json_string(kedge_detector_name(p->how.detector)), failed);
  kedge__json_put(object, "library", json_string(kedge_detector_library()), failed);
  kedge__json_put(object, "objective", json_string("modularity"), failed);
  put_real(object, "resolution", p->how.resolution, failed);
  put_count(object, "seed", p->how.seed, failed);
  put_count(object, "seeds", p->how.seeds, failed);
  put_count(object, "nulls", p->how.nulls, failed);
  put_count(object, "permutations", p->how.permutations, failed);
  kedge__json_put(object, "split", json_string(p->how.split == KEDGE_SPLIT_SAMPLES ? "samples" : "tokens"),
                  failed);
  for (uint32_t r = 0; r < c->rho_count; r++) {
    json_t *row = row_of(&c->means[r], c->layers * c->experts, c->has_post, failed);
    if (layers) {
      json_t *each = json_array();
      for (uint32_t l = 0; l < c->layers; l++)
        if (json_array_append_new(
                each, row_of(&c->rows[(size_t)l * c->rho_count + r], c->experts, c->has_post, failed)))
          *failed = true;
      kedge__json_put(row, "layers", each, failed);
    }
    if (json_array_append_new(list, row)) *failed = true;
  }
  kedge__json_put(object, "by_rho", list, failed);
  return object;
}

json_t *kedge__probe_pair_json(const kedge_probe *p, const kedge_probe_domain *a, const kedge_probe_domain *b,
                               bool post, bool *failed) {
  json_t *list = json_array();
  for (uint32_t r = 0; r < p->how.rho_count; r++) {
    kedge_partition_scores scores = {0};
    json_t *object = json_object();
    if (kedge_probe_pair_communities(a, b, post, r, &scores) != KEDGE_OK) *failed = true;
    put_real(object, "rho", p->how.rho[r], failed);
    put_real(object, "nmi", scores.nmi, failed);
    put_real(object, "ami", scores.ami, failed);
    put_real(object, "ari", scores.ari, failed);
    if (json_array_append_new(list, object)) *failed = true;
  }
  return list;
}
