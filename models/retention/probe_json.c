/* SPDX-License-Identifier: Apache-2.0
 * The report of a probe as JSON (probe.h). */
#include "models/retention/probe.h"
#include "models/retention/report_json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct named {
  const char *key;
  double value;
} named;

static void put_reals(json_t *object, const named *numbers, size_t length, const char *suffix, bool *failed) {
  for (size_t i = 0; i < length; i++) {
    char key[64];
    strcpy(key, numbers[i].key);
    strcat(key, suffix);
    kedge__json_put(object, key, kedge__json_real(numbers[i].value), failed);
  }
}

#define PUT_REALS(object, numbers, suffix)                                                                   \
  put_reals((object), (numbers), sizeof(numbers) / sizeof *(numbers), (suffix), failed)

/* ---- What was kept
 * ------------------------------------------------------------------------------------------------ */

/* The numbers of a layer, or of a mean: then keys end in _mean where they are means. */
static void put_numbers(json_t *object, const kedge_retention_layer *at, const char *suffix, bool ties_known,
                        bool *failed) {
  const named means[] = {{"topk_overlap", at->overlap},
                         {"topk_overlap_tie_tolerant", at->tolerant},
                         {"gate_weighted_overlap", at->gates},
                         {"top1_agreement", at->top1},
                         {"tvd", at->tvd},
                         {"jsd_nats", at->jsd_nats},
                         {"jsd_bits", at->jsd_bits}};
  PUT_REALS(object, means, suffix);
  kedge__json_put(object, "load_max_mean_base", kedge__json_real(at->load_base), failed);
  kedge__json_put(object, "load_max_mean_post", kedge__json_real(at->load_post), failed);
  kedge__json_put(object, "dead_experts_base", kedge__json_whole(at->dead_base), failed);
  kedge__json_put(object, "dead_experts_post", kedge__json_whole(at->dead_post), failed);
  kedge__json_put(object, "boundary_ties", ties_known ? kedge__json_count(at->ties) : json_null(), failed);
}

static void put_retention(json_t *object, const kedge_retention *r, bool *failed) {
  kedge__json_put(object, "tokens", kedge__json_count(r->tokens), failed);
  put_numbers(object, &r->mean, "_mean", r->ties_known, failed);
  kedge__json_put(object, "layers_skipped", kedge__json_count(r->skipped), failed);
  kedge__json_put(object, "padding_rows", kedge__json_count(r->padding), failed);
}

static json_t *retention_layers(const kedge_retention *r, bool *failed) {
  json_t *list = json_array();
  for (uint32_t l = 0; l < r->count; l++) {
    json_t *object = json_object();
    kedge__json_put(object, "layer", json_integer(r->layers[l].layer), failed);
    kedge__json_put(object, "tokens", kedge__json_count(r->layers[l].tokens), failed);
    put_numbers(object, &r->layers[l], "", r->ties_known, failed);
    kedge__json_append(list, object, failed);
  }
  return list;
}

static const char *const span_names[KEDGE_PROBE_SPANS] = {"all", "question", "answer"};

/* Means over all tokens in `object` itself, questions and answers in "spans", layers in "layers". */
static void put_kept(json_t *object, const kedge_retention *kept, bool layers, bool *failed) {
  json_t *spans = json_object();
  put_retention(object, &kept[KEDGE_PROBE_ALL], failed);
  for (int s = KEDGE_PROBE_QUESTION; s < KEDGE_PROBE_SPANS; s++) {
    json_t *span = json_object();
    put_retention(span, &kept[s], failed);
    if (layers) kedge__json_put(span, "layers", retention_layers(&kept[s], failed), failed);
    kedge__json_put(spans, span_names[s], span, failed);
  }
  kedge__json_put(object, "spans", spans, failed);
  if (layers) kedge__json_put(object, "layers", retention_layers(&kept[KEDGE_PROBE_ALL], failed), failed);
}

/* ---- Use of experts
 * ----------------------------------------------------------------------------------------------- */

static void put_use_numbers(json_t *object, const kedge_use_layer *at, const char *suffix, bool ties_known,
                            bool *failed) {
  const named means[] = {{"entropy_nats", at->entropy_nats},
                         {"effective_fraction", at->effective},
                         {"effective_fraction_sample", at->effective_sample},
                         {"l1_sharpness", at->l1},
                         {"load_max_mean", at->load}};
  PUT_REALS(object, means, suffix);
  kedge__json_put(object, "dead_experts", kedge__json_whole(at->dead), failed);
  kedge__json_put(object, "boundary_ties", ties_known ? kedge__json_count(at->ties) : json_null(), failed);
}

static json_t *use_of(const kedge_use *u, bool layers, bool *failed) {
  json_t *object = json_object();
  kedge__json_put(object, "tokens", kedge__json_count(u->tokens), failed);
  kedge__json_put(object, "samples", kedge__json_count(u->samples), failed);
  put_use_numbers(object, &u->mean, "_layer_mean", u->ties_known, failed);
  kedge__json_put(object, "l1_sharpness_layer_averaged", kedge__json_real(u->l1_layer_mean), failed);
  kedge__json_put(object, "effective_fraction_layer_averaged", kedge__json_real(u->effective_layer_mean),
                  failed);
  kedge__json_put(object, "layers_skipped", kedge__json_count(u->skipped), failed);
  kedge__json_put(object, "padding_rows", kedge__json_count(u->padding), failed);
  if (!layers) return object;
  json_t *list = json_array();
  for (uint32_t l = 0; l < u->layers; l++) {
    json_t *layer = json_object();
    kedge__json_put(layer, "layer", json_integer(u->at[l].layer), failed);
    kedge__json_put(layer, "tokens", kedge__json_count(u->at[l].tokens), failed);
    put_use_numbers(layer, &u->at[l], "", u->ties_known, failed);
    kedge__json_append(list, layer, failed);
  }
  kedge__json_put(object, "layers", list, failed);
  return object;
}

/* All tokens in the object itself, questions and answers below. */
static json_t *use_spans(const kedge_use *use, bool layers, bool *failed) {
  json_t *object = use_of(&use[KEDGE_PROBE_ALL], layers, failed), *spans = json_object();
  for (int s = KEDGE_PROBE_QUESTION; s < KEDGE_PROBE_SPANS; s++)
    kedge__json_put(spans, span_names[s], use_of(&use[s], layers, failed), failed);
  kedge__json_put(object, "spans", spans, failed);
  return object;
}

/* ---- Selection
 * --------------------------------------------------------------------------------------------------- */

static json_t *selection_side(const kedge_selection *s, const kedge_selection_numbers *n, bool *failed) {
  json_t *object = json_object();
  kedge__json_put(object, "nll_per_token",
                  kedge__json_real(s->tokens ? n->nll / (double)s->tokens : (double)NAN), failed);
  kedge__json_put(object, "accuracy",
                  kedge__json_real(s->samples ? (double)n->right / (double)s->samples : (double)NAN), failed);
  kedge__json_put(object, "right", kedge__json_count(n->right), failed);
  return object;
}

static json_t *selection_object(const kedge_selection *s, bool *failed) {
  json_t *object = json_object(), *ranks = json_array();
  kedge__json_put(object, "tokens", kedge__json_count(s->tokens), failed);
  kedge__json_put(object, "samples", kedge__json_count(s->samples), failed);
  kedge__json_put(object, "base", selection_side(s, &s->base, failed), failed);
  kedge__json_put(object, "post", selection_side(s, &s->post, failed), failed);
  kedge__json_put(object, "forced", selection_side(s, &s->forced, failed), failed);
  kedge__json_put(object, "converse", selection_side(s, &s->converse, failed), failed);
  for (uint32_t r = 0; r < s->topk; r++)
    kedge__json_append(ranks, selection_side(s, &s->ranks[r], failed), failed);
  kedge__json_put(object, "ranks", ranks, failed);
  return object;
}

static json_t *domain_object(const kedge_probe *p, const kedge_probe_domain *d, bool layers, bool *failed) {
  json_t *object = json_object();
  kedge__json_put(object, "name", json_string(d->name), failed);
  kedge__json_put(object, "data_hash", kedge__json_name(d->data), failed);
  if (p->compares) {
    json_t *kept = json_object();
    put_kept(kept, d->kept, layers, failed);
    kedge__json_put(object, "retention", kept, failed);
  }
  kedge__json_put(object, "base", use_spans(d->base, layers, failed), failed);
  if (p->compares) kedge__json_put(object, "post", use_spans(d->post, layers, failed), failed);
  if (d->has_selection) kedge__json_put(object, "selection", selection_object(&d->selection, failed), failed);
  if (d->has_communities)
    kedge__json_put(object, "communities", kedge__probe_communities_json(p, d, layers, failed), failed);
  return object;
}

static json_t *pair_numbers(const kedge_probe *p, uint32_t i, uint32_t j, bool post, bool *failed) {
  const kedge_probe_domain *a = &p->domains[i], *b = &p->domains[j];
  kedge_use_pair pair = {0};
  json_t *object = json_object();
  const int s = KEDGE_PROBE_ALL;
  if (kedge_use_compare(post ? &a->post[s] : &a->base[s], post ? &b->post[s] : &b->base[s], &pair) !=
      KEDGE_OK)
    *failed = true;
  const named numbers[] = {{"tvd_mean", pair.tvd},
                           {"jsd_nats_mean", pair.jsd_nats},
                           {"jsd_bits_mean", pair.jsd_bits},
                           {"l1_divergence_layer_mean", pair.l1},
                           {"l1_divergence_layer_averaged", pair.l1_layer_mean},
                           {"cosine_layer_mean", pair.cosine},
                           {"cosine_layer_averaged", pair.cosine_layer_mean},
                           {"cosine_all_layers", pair.cosine_all}};
  PUT_REALS(object, numbers, "");
  kedge__json_put(object, "layers_skipped", kedge__json_count(pair.skipped), failed);
  if (a->has_communities && b->has_communities)
    kedge__json_put(object, "communities", kedge__probe_pair_json(p, a, b, post, failed), failed);
  return object;
}

static json_t *pair_list(const kedge_probe *p, bool *failed) {
  json_t *list = json_array();
  for (uint32_t i = 0; i < p->count; i++)
    for (uint32_t j = i + 1; j < p->count; j++) {
      json_t *object = json_object();
      kedge__json_put(object, "a", json_string(p->domains[i].name), failed);
      kedge__json_put(object, "b", json_string(p->domains[j].name), failed);
      kedge__json_put(object, "base", pair_numbers(p, i, j, false, failed), failed);
      if (p->compares) kedge__json_put(object, "post", pair_numbers(p, i, j, true, failed), failed);
      kedge__json_append(list, object, failed);
    }
  return list;
}

/* ---- The report
 * --------------------------------------------------------------------------------------------------- */

kedge_status kedge_probe_json(const kedge_probe *p, bool layers, char **text) {
  bool lost = false, *failed = &lost;
  json_t *root = json_object(), *domains = json_array();
  kedge__json_put(root, "samples", kedge__json_count(p->samples), failed);
  kedge__json_put(root, "moe_layers", kedge__json_count(p->layers), failed);
  kedge__json_put(root, "num_experts", kedge__json_count(p->experts), failed);
  kedge__json_put(root, "top_k", kedge__json_count(p->topk), failed);
  kedge__json_put(root, "base_hash", kedge__json_name(p->base), failed);
  kedge__json_put(root, "post_hash", kedge__json_name(p->post), failed);
  kedge__json_put(root, "tokenizer_hash", kedge__json_name(p->tokenizer), failed);
  kedge__json_put(root, "data_hash", kedge__json_name(p->count == 1 ? p->domains[0].data : ""), failed);
  if (p->compares) put_kept(root, p->kept, layers, failed);
  for (uint32_t i = 0; i < p->count; i++)
    kedge__json_append(domains, domain_object(p, &p->domains[i], layers, failed), failed);
  kedge__json_put(root, "domains", domains, failed);
  kedge__json_put(root, "domain_pairs", pair_list(p, failed), failed);
  char *dump = root && !lost ? json_dumps(root, JSON_INDENT(2)) : NULL;
  *text = dump ? kedge_strdup(dump) : NULL;
  free(dump);
  json_decref(root);
  return *text ? KEDGE_OK : KEDGE_ERR_MEMORY;
}
