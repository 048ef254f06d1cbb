/* SPDX-License-Identifier: Apache-2.0
 * Probes: which models may be compared, domains, means over them (probe.h). */
#include "models/retention/probe.h"

#include <math.h>
#include <string.h>

/* ---- What may be compared
 * ----------------------------------------------------------------------------------------- */

typedef struct pair {
  const char *base, *post; /* directories */
  const kedge_hf_config *a, *b;
} pair;

static kedge_status same_number(const pair *p, const char *what, uint32_t a, uint32_t b) {
  if (a == b) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_MISMATCH,
                    "%s: %u in %s, %u in %s: routing can only be compared between models "
                    "of one geometry",
                    what, a, p->base, b, p->post);
}

static kedge_status same_geometry(const pair *p) {
  const kedge_hf_config *a = p->a, *b = p->b;
  if (strcmp(a->model_type, b->model_type))
    return kedge_fail(KEDGE_ERR_MISMATCH, "model_type: \"%s\" in %s, \"%s\" in %s", a->model_type, p->base,
                      b->model_type, p->post);
  KEDGE_TRY(same_number(p, "num_hidden_layers", a->num_hidden_layers, b->num_hidden_layers));
  KEDGE_TRY(same_number(p, "hidden_size", a->hidden_size, b->hidden_size));
  KEDGE_TRY(same_number(p, "num_experts", a->num_experts, b->num_experts));
  KEDGE_TRY(same_number(p, "num_experts_per_tok", a->num_experts_per_tok, b->num_experts_per_tok));
  for (uint32_t l = 0; l < a->num_hidden_layers; l++) {
    bool in_a = kedge_hf_layer_is_sparse(a, l), in_b = kedge_hf_layer_is_sparse(b, l);
    if (in_a != in_b)
      return kedge_fail(KEDGE_ERR_MISMATCH, "layer %u: %s in %s, %s in %s", l, in_a ? "experts" : "dense",
                        p->base, in_b ? "experts" : "dense", p->post);
  }
  return KEDGE_OK;
}

kedge_status kedge_probe_check(const char *base, const char *post) {
  kedge_hf_config a = {0}, b = {0};
  const pair p = {base, post, &a, &b};
  KEDGE_TRY(kedge_hf_config_load(base, &a));
  kedge_status status = kedge_hf_config_load(post, &b);
  if (status == KEDGE_OK) {
    status = same_geometry(&p);
    kedge_hf_config_destroy(&b);
  }
  kedge_hf_config_destroy(&a);
  return status;
}

/* ---- Domains
 * ------------------------------------------------------------------------------------------------------ */

enum { MAX_PAIRED = 4096 }; /* experts of a layer whose pairs are counted */

static const int spans[KEDGE_PROBE_SPANS] = {KEDGE_RETENTION_ALL, KEDGE_RETENTION_Q, KEDGE_RETENTION_A};

static void destroy_pairs(kedge_coactivation *pairs, uint32_t layers) {
  for (uint32_t l = 0; pairs && l < layers; l++) kedge_coactivation_destroy(&pairs[l]);
  kedge_free(pairs);
}

static void destroy_domain(kedge_probe_domain *d) {
  destroy_pairs(d->base_pairs, d->base[0].layers);
  destroy_pairs(d->post_pairs, d->base[0].layers);
  kedge_community_report_destroy(&d->communities);
  kedge_selection_destroy(&d->selection);
  for (int s = 0; s < KEDGE_PROBE_SPANS; s++) {
    kedge_use_destroy(&d->base[s]);
    kedge_use_destroy(&d->post[s]);
    kedge_retention_destroy(&d->kept[s]);
  }
  kedge_free(d->name);
  *d = (kedge_probe_domain){0};
}

void kedge_probe_destroy(kedge_probe *p) {
  for (uint32_t i = 0; i < p->count; i++) destroy_domain(&p->domains[i]);
  for (int s = 0; s < KEDGE_PROBE_SPANS; s++) kedge_retention_destroy(&p->kept[s]);
  kedge_free(p->domains);
  kedge_free(p->layer_numbers);
  *p = (kedge_probe){0};
}

static kedge_status same_hash(const char *what, const char *name, const char *have, const char *got) {
  if (!*have || !*got || !strcmp(have, got)) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_MISMATCH, "domain %s: %s has hash %s, that of the other domains %s", name, what,
                    got, have);
}

/* Whether a trace is of the models of the domains before it. */
static kedge_status check_domain(const kedge_probe *p, const char *name, const kedge_trace *base,
                                 const kedge_trace *post) {
  for (uint32_t i = 0; i < p->count; i++)
    if (!strcmp(p->domains[i].name, name))
      return kedge_fail(KEDGE_ERR_ARGUMENT, "domain %s: given twice", name);
  if (!p->count) return KEDGE_OK;
  if (p->compares != (post != NULL))
    return kedge_fail(KEDGE_ERR_MISMATCH, "domain %s: a post-trained model in some domains and not in others",
                      name);
  if (base->layers != p->layers || base->experts != p->experts || base->topk != p->topk)
    return kedge_fail(
        KEDGE_ERR_MISMATCH,
        "domain %s: %u layers, top %u of %u experts; the other domains have %u layers, top %u of "
        "%u",
        name, base->layers, base->topk, base->experts, p->layers, p->topk, p->experts);
  if (memcmp(base->layer_numbers, p->layer_numbers, p->layers * sizeof *p->layer_numbers))
    return kedge_fail(KEDGE_ERR_MISMATCH, "domain %s: its layers have other numbers than the other domains'",
                      name);
  KEDGE_TRY(same_hash("the base model", name, p->base, base->model));
  if (post) KEDGE_TRY(same_hash("the post-trained model", name, p->post, post->model));
  return same_hash("the tokenizer", name, p->tokenizer, base->tokenizer);
}

static kedge_status count_pairs(const kedge_trace *t, kedge_coactivation **pairs) {
  if (t->experts > MAX_PAIRED) return KEDGE_OK;
  *pairs = kedge_alloc(t->layers, sizeof **pairs);
  if (!*pairs) return KEDGE_ERR_MEMORY;
  for (uint32_t l = 0; l < t->layers; l++)
    KEDGE_TRY(kedge_coactivation_count(t, l, KEDGE_RETENTION_ALL, NULL, 0, &(*pairs)[l]));
  return KEDGE_OK;
}

static kedge_status measure(kedge_probe_domain *d, const char *name, const kedge_trace *base,
                            const kedge_trace *post) {
  d->name = kedge_strdup(name);
  if (!d->name) return KEDGE_ERR_MEMORY;
  for (int s = 0; s < KEDGE_PROBE_SPANS; s++) {
    KEDGE_TRY(kedge_use_measure(base, spans[s], &d->base[s]));
    if (!post) continue;
    KEDGE_TRY(kedge_use_measure(post, spans[s], &d->post[s]));
    KEDGE_TRY(kedge_retention_compare(base, post, spans[s], &d->kept[s]));
  }
  KEDGE_TRY(count_pairs(base, &d->base_pairs));
  if (post) KEDGE_TRY(count_pairs(post, &d->post_pairs));
  memcpy(d->data, *base->data || !post ? base->data : post->data, sizeof d->data);
  return KEDGE_OK;
}

/* ---- Means over domains
 * ------------------------------------------------------------------------------------------- */

/* Adds numbers of a layer, or of a mean, weighted; counts are summed whatever the weight. */
static void add_numbers(kedge_retention_layer *to, const kedge_retention_layer *at, double weight) {
  to->tokens += at->tokens, to->ties += at->ties;
  to->overlap += weight * at->overlap, to->top1 += weight * at->top1;
  to->tolerant += weight * at->tolerant, to->gates += weight * at->gates;
  to->tvd += weight * at->tvd, to->jsd_nats += weight * at->jsd_nats, to->jsd_bits += weight * at->jsd_bits;
  to->load_base += weight * at->load_base, to->load_post += weight * at->load_post;
  to->dead_base += at->dead_base, to->dead_post += at->dead_post;
}

static void set_undefined(kedge_retention_layer *at) {
  at->overlap = at->top1 = at->tolerant = at->gates = at->tvd = at->jsd_nats = at->jsd_bits = NAN;
  at->load_base = at->load_post = at->dead_base = at->dead_post = NAN;
}

/* The mean over domains of layer `l`, or of their means for l = UINT32_MAX. */
static kedge_retention_layer mean_of(const kedge_probe *p, int span, uint32_t l) {
  kedge_retention_layer out = {.layer = l == UINT32_MAX ? -1 : p->layer_numbers[l]};
  uint32_t domains = 0;
  for (int pass = 0; pass < 2; pass++)
    for (uint32_t i = 0; i < p->count; i++) {
      const kedge_retention *r = &p->domains[i].kept[span];
      const kedge_retention_layer *at = l == UINT32_MAX ? &r->mean : &r->layers[l];
      if (!at->tokens) continue;
      if (pass)
        add_numbers(&out, at, 1.0 / domains);
      else
        domains++;
    }
  if (!domains) set_undefined(&out);
  return out;
}

static kedge_status take_means(kedge_probe *p, int span) {
  kedge_retention *k = &p->kept[span];
  kedge_retention_destroy(k);
  k->layers = kedge_alloc(p->layers, sizeof *k->layers);
  if (!k->layers) return KEDGE_ERR_MEMORY;
  k->count = p->layers;
  for (uint32_t l = 0; l < p->layers; l++) {
    k->layers[l] = mean_of(p, span, l);
    k->skipped += !k->layers[l].tokens;
  }
  k->mean = mean_of(p, span, UINT32_MAX);
  k->ties_known = true;
  for (uint32_t i = 0; i < p->count; i++) {
    const kedge_retention *r = &p->domains[i].kept[span];
    k->tokens += r->tokens, k->padding += r->padding;
    k->ties_known = k->ties_known && r->ties_known;
  }
  return KEDGE_OK;
}

/* ---- Adding
 * ------------------------------------------------------------------------------------------------------- */

static void take_hash(char to[33], const char *from) {
  if (!*to) memcpy(to, from, 33);
}

static kedge_status start(kedge_probe *p, const kedge_trace *base) {
  if (p->layer_numbers) return KEDGE_OK;
  p->layer_numbers = kedge_alloc(base->layers, sizeof *p->layer_numbers);
  if (!p->layer_numbers) return KEDGE_ERR_MEMORY;
  memcpy(p->layer_numbers, base->layer_numbers, base->layers * sizeof *p->layer_numbers);
  p->layers = base->layers, p->experts = base->experts, p->topk = base->topk;
  return KEDGE_OK;
}

kedge_status kedge_probe_add(kedge_probe *p, const char *name, const kedge_trace *base,
                             const kedge_trace *post) {
  kedge_probe_domain d = {0};
  KEDGE_TRY(check_domain(p, name, base, post));
  kedge_probe_domain *grown = kedge_realloc(p->domains, p->count + 1, sizeof *grown);
  if (!grown) return KEDGE_ERR_MEMORY;
  p->domains = grown;
  kedge_status status = measure(&d, name, base, post);
  if (status == KEDGE_OK && !p->count) {
    kedge_free(p->layer_numbers);
    p->layer_numbers = NULL;
    status = start(p, base);
  }
  if (status != KEDGE_OK) {
    destroy_domain(&d);
    return status;
  }
  p->domains[p->count++] = d;
  p->compares = post != NULL;
  for (int s = 0; s < KEDGE_PROBE_SPANS && post && status == KEDGE_OK; s++) status = take_means(p, s);
  if (status != KEDGE_OK) {
    destroy_domain(&p->domains[--p->count]);
    return status;
  }
  p->samples += d.base[KEDGE_PROBE_ALL].samples;
  take_hash(p->base, base->model);
  if (post) take_hash(p->post, post->model);
  take_hash(p->tokenizer, base->tokenizer);
  if (post) take_hash(p->tokenizer, post->tokenizer);
  return KEDGE_OK;
}

void kedge_probe_set_selection(kedge_probe *p, uint32_t domain, kedge_selection *selection) {
  kedge_probe_domain *d = &p->domains[domain];
  kedge_selection_destroy(&d->selection);
  d->selection = *selection;
  d->has_selection = true;
  *selection = (kedge_selection){0};
}
