/* SPDX-License-Identifier: Apache-2.0
 * Probes: which models may be compared, and the report (probe.h). */
#include "models/routing/probe.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
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

/* ---- Comparing
 * ---------------------------------------------------------------------------------------------------- */

kedge_status kedge_probe_compare(const kedge_trace *base, const kedge_trace *post, kedge_probe *p) {
  *p = (kedge_probe){.experts = base->experts, .topk = base->topk};
  kedge_status status = kedge_retention_compare(base, post, KEDGE_RETENTION_ALL, &p->all);
  if (status == KEDGE_OK) status = kedge_retention_compare(base, post, KEDGE_RETENTION_Q, &p->question);
  if (status == KEDGE_OK) status = kedge_retention_compare(base, post, KEDGE_RETENTION_A, &p->answer);
  if (status != KEDGE_OK) {
    kedge_probe_destroy(p);
    return status;
  }
  for (uint32_t t = 0; t < base->tokens; t++)
    p->samples += t == 0 || base->samples[t] != base->samples[t - 1];
  memcpy(p->base, base->model, sizeof p->base);
  memcpy(p->post, post->model, sizeof p->post);
  memcpy(p->tokenizer, *base->tokenizer ? base->tokenizer : post->tokenizer, sizeof p->tokenizer);
  memcpy(p->data, *base->data ? base->data : post->data, sizeof p->data);
  return KEDGE_OK;
}

void kedge_probe_destroy(kedge_probe *p) {
  kedge_retention_destroy(&p->all);
  kedge_retention_destroy(&p->question);
  kedge_retention_destroy(&p->answer);
  *p = (kedge_probe){0};
}

/* ---- JSON
 * ---------------------------------------------------------------------------------------------------------
 */

/* Sets a key; a value or object that there was no memory for is remembered in *failed. */
static void put(json_t *object, const char *key, json_t *value, bool *failed) {
  if (json_object_set_new(object, key, value)) *failed = true;
}

static json_t *real(double value) {
  return isfinite(value) ? json_real(value) : json_null();
}

/* Counts that are NaN where undefined. */
static json_t *whole(double value) {
  return isfinite(value) ? json_integer((json_int_t)value) : json_null();
}

static json_t *hash(const char *text) {
  return *text ? json_string(text) : json_null();
}

/* The numbers of a layer, or of a mean: then keys end in _mean where they are means. */
static void put_numbers(json_t *object, const kedge_retention_layer *at, const char *suffix, bool ties_known,
                        bool *failed) {
  const struct {
    const char *key;
    double value;
  } means[] = {{"topk_overlap", at->overlap},
               {"top1_agreement", at->top1},
               {"tvd", at->tvd},
               {"jsd_nats", at->jsd_nats},
               {"jsd_bits", at->jsd_bits}};
  for (size_t i = 0; i < sizeof means / sizeof *means; i++) {
    char key[40];
    strcpy(key, means[i].key);
    strcat(key, suffix);
    put(object, key, real(means[i].value), failed);
  }
  put(object, "load_max_mean_base", real(at->load_base), failed);
  put(object, "load_max_mean_post", real(at->load_post), failed);
  put(object, "dead_experts_base", whole(at->dead_base), failed);
  put(object, "dead_experts_post", whole(at->dead_post), failed);
  put(object, "boundary_ties", ties_known ? json_integer((json_int_t)at->ties) : json_null(), failed);
}

static void put_retention(json_t *object, const kedge_retention *r, bool *failed) {
  put(object, "tokens", json_integer((json_int_t)r->tokens), failed);
  put_numbers(object, &r->mean, "_mean", r->ties_known, failed);
  put(object, "layers_skipped", json_integer(r->skipped), failed);
  put(object, "padding_rows", json_integer((json_int_t)r->padding), failed);
}

static void put_span(json_t *spans, const char *name, const kedge_retention *r, bool *failed) {
  json_t *object = json_object();
  put_retention(object, r, failed);
  put(spans, name, object, failed);
}

static json_t *layer_list(const kedge_retention *r, bool *failed) {
  json_t *list = json_array();
  for (uint32_t l = 0; l < r->count; l++) {
    json_t *object = json_object();
    put(object, "layer", json_integer(r->layers[l].layer), failed);
    put(object, "tokens", json_integer((json_int_t)r->layers[l].tokens), failed);
    put_numbers(object, &r->layers[l], "", r->ties_known, failed);
    if (json_array_append_new(list, object)) *failed = true;
  }
  return list;
}

kedge_status kedge_probe_json(const kedge_probe *p, bool layers, char **text) {
  bool lost = false, *failed = &lost;
  json_t *root = json_object(), *spans = json_object();
  put_retention(root, &p->all, failed);
  put_span(spans, "question", &p->question, failed);
  put_span(spans, "answer", &p->answer, failed);
  put(root, "spans", spans, failed);
  put(root, "samples", json_integer(p->samples), failed);
  put(root, "moe_layers", json_integer(p->all.count), failed);
  put(root, "num_experts", json_integer(p->experts), failed);
  put(root, "top_k", json_integer(p->topk), failed);
  put(root, "base_hash", hash(p->base), failed);
  put(root, "post_hash", hash(p->post), failed);
  put(root, "tokenizer_hash", hash(p->tokenizer), failed);
  put(root, "data_hash", hash(p->data), failed);
  if (layers) put(root, "layers", layer_list(&p->all, failed), failed);
  char *dump = root && !lost ? json_dumps(root, JSON_INDENT(2)) : NULL;
  *text = dump ? kedge_strdup(dump) : NULL;
  free(dump);
  json_decref(root);
  return *text ? KEDGE_OK : KEDGE_ERR_MEMORY;
}
