/* SPDX-License-Identifier: Apache-2.0
 * The report of a probe as JSON (probe.h). */
#include "models/retention/probe.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Sets a key; a value or object that there was no memory for is remembered in *failed. */
static void put(json_t *object, const char *key, json_t *value, bool *failed) {
  if (json_object_set_new(object, key, value)) *failed = true;
}

static void append(json_t *list, json_t *value, bool *failed) {
  if (json_array_append_new(list, value)) *failed = true;
}

static json_t *real(double value) {
  return isfinite(value) ? json_real(value) : json_null();
}

/* Counts that are NaN where undefined. */
static json_t *whole(double value) {
  return isfinite(value) ? json_integer((json_int_t)value) : json_null();
}

static json_t *count(uint64_t value) {
  return json_integer((json_int_t)value);
}

static json_t *hash(const char *text) {
  return *text ? json_string(text) : json_null();
}

typedef struct named {
  const char *key;
  double value;
} named;

static void put_reals(json_t *object, const named *numbers, size_t length, const char *suffix, bool *failed) {
  for (size_t i = 0; i < length; i++) {
    char key[64];
    strcpy(key, numbers[i].key);
    strcat(key, suffix);
    put(object, key, real(numbers[i].value), failed);
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
  put(object, "load_max_mean_base", real(at->load_base), failed);
  put(object, "load_max_mean_post", real(at->load_post), failed);
  put(object, "dead_experts_base", whole(at->dead_base), failed);
  put(object, "dead_experts_post", whole(at->dead_post), failed);
  put(object, "boundary_ties", ties_known ? count(at->ties) : json_null(), failed);
}

static void put_retention(json_t *object, const kedge_retention *r, bool *failed) {
  put(object, "tokens", count(r->tokens), failed);
  put_numbers(object, &r->mean, "_mean", r->ties_known, failed);
  put(object, "layers_skipped", count(r->skipped), failed);
  put(object, "padding_rows", count(r->padding), failed);
}

static json_t *retention_layers(const kedge_retention *r, bool *failed) {
  json_t *list = json_array();
  for (uint32_t l = 0; l < r->count; l++) {
    json_t *object = json_object();
    put(object, "layer", json_integer(r->layers[l].layer), failed);
    put(object, "tokens", count(r->layers[l].tokens), failed);
    put_numbers(object, &r->layers[l], "", r->ties_known, failed);
    append(list, object, failed);
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
    if (layers) put(span, "layers", retention_layers(&kept[s], failed), failed);
    put(spans, span_names[s], span, failed);
  }
  put(object, "spans", spans, failed);
  if (layers) put(object, "layers", retention_layers(&kept[KEDGE_PROBE_ALL], failed), failed);
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
  put(object, "dead_experts", whole(at->dead), failed);
  put(object, "boundary_ties", ties_known ? count(at->ties) : json_null(), failed);
}

static json_t *use_of(const kedge_use *u, bool layers, bool *failed) {
  json_t *object = json_object();
  put(object, "tokens", count(u->tokens), failed);
  put(object, "samples", count(u->samples), failed);
  put_use_numbers(object, &u->mean, "_layer_mean", u->ties_known, failed);
  put(object, "l1_sharpness_layer_averaged", real(u->l1_layer_mean), failed);
  put(object, "effective_fraction_layer_averaged", real(u->effective_layer_mean), failed);
  put(object, "layers_skipped", count(u->skipped), failed);
  put(object, "padding_rows", count(u->padding), failed);
  if (!layers) return object;
  json_t *list = json_array();
  for (uint32_t l = 0; l < u->layers; l++) {
    json_t *layer = json_object();
    put(layer, "layer", json_integer(u->at[l].layer), failed);
    put(layer, "tokens", count(u->at[l].tokens), failed);
    put_use_numbers(layer, &u->at[l], "", u->ties_known, failed);
    append(list, layer, failed);
  }
  put(object, "layers", list, failed);
  return object;
}

/* All tokens in the object itself, questions and answers below. */
static json_t *use_spans(const kedge_use *use, bool layers, bool *failed) {
  json_t *object = use_of(&use[KEDGE_PROBE_ALL], layers, failed), *spans = json_object();
  for (int s = KEDGE_PROBE_QUESTION; s < KEDGE_PROBE_SPANS; s++)
    put(spans, span_names[s], use_of(&use[s], layers, failed), failed);
  put(object, "spans", spans, failed);
  return object;
}

static json_t *domain_object(const kedge_probe *p, const kedge_probe_domain *d, bool layers, bool *failed) {
  json_t *object = json_object();
  put(object, "name", json_string(d->name), failed);
  put(object, "data_hash", hash(d->data), failed);
  if (p->compares) {
    json_t *kept = json_object();
    put_kept(kept, d->kept, layers, failed);
    put(object, "retention", kept, failed);
  }
  put(object, "base", use_spans(d->base, layers, failed), failed);
  if (p->compares) put(object, "post", use_spans(d->post, layers, failed), failed);
  if (d->has_communities)
    put(object, "communities", kedge__probe_communities_json(p, d, layers, failed), failed);
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
  put(object, "layers_skipped", count(pair.skipped), failed);
  if (a->has_communities && b->has_communities)
    put(object, "communities", kedge__probe_pair_json(p, a, b, post, failed), failed);
  return object;
}

static json_t *pair_list(const kedge_probe *p, bool *failed) {
  json_t *list = json_array();
  for (uint32_t i = 0; i < p->count; i++)
    for (uint32_t j = i + 1; j < p->count; j++) {
      json_t *object = json_object();
      put(object, "a", json_string(p->domains[i].name), failed);
      put(object, "b", json_string(p->domains[j].name), failed);
      put(object, "base", pair_numbers(p, i, j, false, failed), failed);
      if (p->compares) put(object, "post", pair_numbers(p, i, j, true, failed), failed);
      append(list, object, failed);
    }
  return list;
}

/* ---- The report
 * --------------------------------------------------------------------------------------------------- */

kedge_status kedge_probe_json(const kedge_probe *p, bool layers, char **text) {
  bool lost = false, *failed = &lost;
  json_t *root = json_object(), *domains = json_array();
  put(root, "samples", count(p->samples), failed);
  put(root, "moe_layers", count(p->layers), failed);
  put(root, "num_experts", count(p->experts), failed);
  put(root, "top_k", count(p->topk), failed);
  put(root, "base_hash", hash(p->base), failed);
  put(root, "post_hash", hash(p->post), failed);
  put(root, "tokenizer_hash", hash(p->tokenizer), failed);
  put(root, "data_hash", hash(p->count == 1 ? p->domains[0].data : ""), failed);
  if (p->compares) put_kept(root, p->kept, layers, failed);
  for (uint32_t i = 0; i < p->count; i++)
    append(domains, domain_object(p, &p->domains[i], layers, failed), failed);
  put(root, "domains", domains, failed);
  put(root, "domain_pairs", pair_list(p, failed), failed);
  char *dump = root && !lost ? json_dumps(root, JSON_INDENT(2)) : NULL;
  *text = dump ? kedge_strdup(dump) : NULL;
  free(dump);
  json_decref(root);
  return *text ? KEDGE_OK : KEDGE_ERR_MEMORY;
}
