/* SPDX-License-Identifier: Apache-2.0
 * Communities in a probe (probe.h). */
#include "models/retention/probe.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

kedge_status kedge_probe_add_communities(kedge_probe *p, uint32_t domain, const kedge_trace *base,
                                         const kedge_trace *post, const kedge_community_options *options) {
  kedge_probe_domain *d = &p->domains[domain];
  kedge_community_report report;
  KEDGE_TRY(kedge_community_report_make(base, post, KEDGE_RETENTION_ALL, options, &report));
  kedge_community_report_destroy(&d->communities);
  d->communities = report;
  d->has_communities = true;
  p->how = *options;
  return KEDGE_OK;
}

static const uint32_t *labels_of(const kedge_probe_domain *d, bool post, uint32_t layer, uint32_t r) {
  const kedge_community_report *c = &d->communities;
  return (post ? c->post_labels : c->base_labels) + ((size_t)layer * c->rho_count + r) * c->experts;
}

kedge_status kedge_probe_pair_communities(const kedge_probe_domain *a, const kedge_probe_domain *b, bool post,
                                          uint32_t r, kedge_partition_scores *scores) {
  const uint32_t layers = a->communities.layers, experts = a->communities.experts;
  *scores = (kedge_partition_scores){.nodes = experts};
  for (uint32_t l = 0; l < layers; l++) {
    kedge_partition_scores one;
    KEDGE_TRY(kedge_partition_compare(labels_of(a, post, l, r), experts, labels_of(b, post, l, r), experts,
                                      NULL, &one));
    scores->nmi += one.nmi / layers, scores->ami += one.ami / layers, scores->ari += one.ari / layers;
  }
  return KEDGE_OK;
}

kedge_status kedge_probe_main_rho(const kedge_probe *p, uint32_t *r) {
  *r = 0;
  if (p->how.rho_count == 1) return KEDGE_OK;
  for (uint32_t i = 0; i < p->how.rho_count; i++)
    if (fabs(p->how.rho[i] - 0.10) < 1e-12) {
      *r = i;
      return KEDGE_OK;
    }
  return kedge_fail(KEDGE_ERR_ARGUMENT, "rho: of several, 0.1 must be one: its communities are the model's");
}

/* What a reader of the file may want to know of its origin. */
static json_t *origin(const kedge_probe *p, const kedge_probe_domain *d, uint32_t r) {
  return json_pack("{s:s, s:s, s:f, s:f, s:I, s:I, s:s, s:s, s:s?, s:s?}", "detector",
                   kedge_detector_name(p->how.detector), "library", kedge_detector_library(), "rho",
                   p->how.rho[r], "resolution", p->how.resolution, "seed", (json_int_t)p->how.seed, "seeds",
                   (json_int_t)p->how.seeds, "choice", "highest modularity", "domain", d->name, "model_hash",
                   *p->base ? p->base : NULL, "data_hash", *d->data ? d->data : NULL);
}

kedge_status kedge_probe_save_communities(const kedge_probe *p, uint32_t domain, const char *path) {
  const kedge_probe_domain *d = &p->domains[domain];
  const uint32_t layers = p->layers, experts = p->experts;
  uint32_t r;
  if (!d->has_communities)
    return kedge_fail(KEDGE_ERR_UNSUPPORTED, "domain %s: there are no communities of it to write", d->name);
  KEDGE_TRY(kedge_probe_main_rho(p, &r));
  uint32_t *labels = kedge_alloc((size_t)layers * experts, sizeof *labels);
  json_t *about = labels ? origin(p, d, r) : NULL;
  kedge_status status = KEDGE_ERR_MEMORY;
  if (about) {
    for (uint32_t l = 0; l < layers; l++)
      memcpy(labels + (size_t)l * experts, labels_of(d, false, l, r), experts * sizeof *labels);
    const kedge_communities communities = {
        .layers = layers, .experts = experts, .labels = labels, .layer_numbers = p->layer_numbers};
    status = kedge_communities_save(&communities, about, path);
  }
  json_decref(about);
  kedge_free(labels);
  return status;
}
