/* SPDX-License-Identifier: Apache-2.0
 * The report of an audit as JSON (audit.h). */
#include "models/retention/audit.h"
#include "models/retention/report_json.h"

#include <math.h>
#include <stdlib.h>

typedef struct named {
  const char *key;
  double value;
} named;

static void put_reals(json_t *object, const named *numbers, size_t length, bool *failed) {
  for (size_t i = 0; i < length; i++)
    kedge__json_put(object, numbers[i].key, kedge__json_real(numbers[i].value), failed);
}

#define PUT_REALS(object, numbers) put_reals((object), (numbers), sizeof(numbers) / sizeof *(numbers), failed)

/* ---- Domains
 * ------------------------------------------------------------------------------------------------------ */

/* A layer, or the mean over layers, whose dead experts and ties are sums. */
static void put_layer(json_t *object, const kedge_use_layer *use, const kedge_audit_layer *at,
                      bool ties_known, bool *failed) {
  const named numbers[] = {{"l1_sharpness", use->l1},
                           {"l1_chance", at->l1_noise},
                           {"uniform_p", at->uniform_p},
                           {"l1_sharpness_span", at->l1_span},
                           {"l1_chance_span", at->l1_span_noise},
                           {"effective_fraction", use->effective},
                           {"effective_fraction_sample", use->effective_sample},
                           {"entropy_nats", use->entropy_nats},
                           {"load_max_mean", use->load},
                           {"most_chosen_share", at->most_chosen},
                           {"boundary_tie_share", at->tie_share},
                           {"softmax_top1_mass", at->top1_mass},
                           {"logit_gap", at->gap},
                           {"prior_clipped_low", at->clipped_low},
                           {"prior_clipped_high", at->clipped_high},
                           {"bias_sd", at->bias_sd}};
  kedge__json_put(object, "tokens", kedge__json_whole((double)use->tokens), failed);
  kedge__json_put(object, "dead_experts", kedge__json_whole(use->dead), failed);
  kedge__json_put(object, "boundary_ties", ties_known ? kedge__json_whole((double)use->ties) : json_null(),
                  failed);
  PUT_REALS(object, numbers);
}

static json_t *layer_list(const kedge_use *u, const kedge_audit_domain *d, bool *failed) {
  json_t *list = json_array();
  for (uint32_t l = 0; l < u->layers; l++) {
    json_t *object = json_object();
    kedge__json_put(object, "layer", json_integer(u->at[l].layer), failed);
    put_layer(object, &u->at[l], &d->at[l], u->ties_known, failed);
    kedge__json_append(list, object, failed);
  }
  return list;
}

static json_t *span_object(const kedge_use *u, bool *failed) {
  const named numbers[] = {{"l1_sharpness", u->mean.l1},
                           {"l1_sharpness_layer_averaged", u->l1_layer_mean},
                           {"effective_fraction", u->mean.effective},
                           {"entropy_nats", u->mean.entropy_nats},
                           {"load_max_mean", u->mean.load}};
  json_t *object = json_object();
  kedge__json_put(object, "tokens", kedge__json_whole((double)u->tokens), failed);
  kedge__json_put(object, "dead_experts", kedge__json_whole(u->mean.dead), failed);
  PUT_REALS(object, numbers);
  return object;
}

static void put_pair(json_t *object, const kedge_use *a, const kedge_use *b, bool *failed) {
  kedge_use_pair pair;
  if (kedge_use_compare(a, b, &pair) != KEDGE_OK) {
    *failed = true;
    return;
  }
  const named numbers[] = {{"tvd", pair.tvd},
                           {"jsd_nats", pair.jsd_nats},
                           {"l1_divergence", pair.l1},
                           {"l1_divergence_layer_averaged", pair.l1_layer_mean},
                           {"cosine", pair.cosine},
                           {"cosine_layer_averaged", pair.cosine_layer_mean},
                           {"cosine_all_layers", pair.cosine_all}};
  PUT_REALS(object, numbers);
}

static json_t *spans_object(const kedge_use *use, bool *failed) {
  json_t *object = json_object(), *pair = json_object();
  kedge__json_put(object, "question", span_object(&use[KEDGE_PROBE_QUESTION], failed), failed);
  kedge__json_put(object, "answer", span_object(&use[KEDGE_PROBE_ANSWER], failed), failed);
  put_pair(pair, &use[KEDGE_PROBE_QUESTION], &use[KEDGE_PROBE_ANSWER], failed);
  kedge__json_put(object, "question_answer", pair, failed);
  return object;
}

static json_t *domain_object(const kedge_audit *a, uint32_t i, bool *failed) {
  const kedge_probe_domain *p = &a->probe.domains[i];
  const kedge_audit_domain *d = &a->domains[i];
  const kedge_use *u = &p->base[KEDGE_PROBE_ALL];
  json_t *object = json_object(), *mean = json_object();
  kedge__json_put(object, "name", json_string(p->name), failed);
  kedge__json_put(object, "data_hash", kedge__json_name(p->data), failed);
  kedge__json_put(object, "tokens", kedge__json_whole((double)u->tokens), failed);
  kedge__json_put(object, "samples", kedge__json_whole(u->samples), failed);
  kedge__json_put(object, "layers_skipped", kedge__json_whole(u->skipped), failed);
  kedge__json_put(object, "padding_rows", kedge__json_whole((double)u->padding), failed);
  kedge__json_put(object, "l1_sharpness_layer_averaged", kedge__json_real(u->l1_layer_mean), failed);
  kedge__json_put(object, "l1_chance_layer_averaged", kedge__json_real(d->l1_averaged_noise), failed);
  kedge__json_put(object, "effective_fraction_layer_averaged", kedge__json_real(u->effective_layer_mean),
                  failed);
  put_layer(mean, &u->mean, &d->mean, u->ties_known, failed);
  kedge__json_put(object, "layer_mean", mean, failed);
  kedge__json_put(object, "layers", layer_list(u, d, failed), failed);
  kedge__json_put(object, "spans", spans_object(p->base, failed), failed);
  if (p->has_communities)
    kedge__json_put(object, "communities", kedge__probe_communities_json(&a->probe, p, true, failed), failed);
  return object;
}

/* ---- Figures and verdicts
 * ----------------------------------------------------------------------------------------- */

static json_t *figures_object(const kedge_audit_figures *f, bool *failed) {
  const named wholes[] = {{"cells", f->cells},
                          {"least_tokens", f->cells ? (double)f->tokens : NAN},
                          {"cells_tested_uniform", f->uniform_tested},
                          {"cells_uniform", f->uniform},
                          {"cells_tested_null", f->tested},
                          {"cells_beating_null", f->beating},
                          {"dead_experts", (double)f->dead},
                          {"cells_with_dead_experts", (double)f->dead_cells},
                          {"boundary_ties", f->ties_known && f->cells ? (double)f->ties : NAN}};
  const named numbers[] = {{"l1_sharpness_layer_averaged", f->l1_averaged},
                           {"l1_chance_layer_averaged", f->l1_averaged_noise},
                           {"l1_sharpness", f->l1},
                           {"l1_chance", f->l1_noise},
                           {"l1_sharpness_span", f->l1_span},
                           {"l1_chance_span", f->l1_span_noise},
                           {"l1_excess", f->excess},
                           {"rho", f->rho},
                           {"expected_pair_count_of_half", f->pairs},
                           {"modularity", f->q},
                           {"null_margin", f->q_margin},
                           {"seed_nmi", f->seed_nmi},
                           {"split_half_nmi", f->split_nmi},
                           {"label_permuted_nmi", f->floor},
                           {"within_shuffle_nmi", f->within_nmi},
                           {"communities", f->communities},
                           {"isolated_share", f->isolated},
                           {"load_max_mean", f->load},
                           {"load_max_mean_most", f->load_most},
                           {"most_chosen_share", f->most_chosen},
                           {"boundary_tie_share", f->tie_share},
                           {"softmax_top1_mass", f->top1_mass},
                           {"logit_gap", f->gap},
                           {"prior_clipped_low", f->clipped_low},
                           {"prior_clipped_high", f->clipped_high},
                           {"bias_sd", f->bias_sd}};
  json_t *object = json_object();
  for (size_t i = 0; i < sizeof wholes / sizeof *wholes; i++)
    kedge__json_put(object, wholes[i].key, kedge__json_whole(wholes[i].value), failed);
  PUT_REALS(object, numbers);
  return object;
}

static json_t *thresholds_object(bool *failed) {
  static const named numbers[] = {{"l1_near_uniform", KEDGE_AUDIT_NEAR_UNIFORM},
                                  {"l1_sharp", KEDGE_AUDIT_SHARP},
                                  {"l1_third", KEDGE_AUDIT_THIRD},
                                  {"l1_two_thirds", KEDGE_AUDIT_TWO_THIRDS},
                                  {"p", KEDGE_AUDIT_P},
                                  {"null_margin", KEDGE_AUDIT_MARGIN},
                                  {"resolved", KEDGE_AUDIT_RESOLVED},
                                  {"unresolved", KEDGE_AUDIT_UNRESOLVED},
                                  {"stable", KEDGE_AUDIT_STABLE},
                                  {"unstable", KEDGE_AUDIT_UNSTABLE},
                                  {"expected_count", KEDGE_AUDIT_COUNT},
                                  {"boundary_tie_share", KEDGE_AUDIT_TIES},
                                  {"isolated_share", KEDGE_AUDIT_ISOLATED},
                                  {"prior_clipped_high", KEDGE_AUDIT_CLIPPED_HIGH}};
  json_t *object = json_object();
  PUT_REALS(object, numbers);
  return object;
}

static json_t *verdicts_object(const kedge_audit *a, bool *failed) {
  static const char *const answers[] = {"cannot_tell", "no", "undecided", "yes"};
  json_t *object = json_object();
  for (int q = 0; q < KEDGE_AUDIT_QUESTIONS; q++) {
    json_t *verdict = json_object();
    kedge__json_put(verdict, "answer", json_string(answers[a->verdicts[q].answer]), failed);
    kedge__json_put(verdict, "text", json_string(a->verdicts[q].text), failed);
    kedge__json_put(object, kedge_audit_key((kedge_audit_question)q), verdict, failed);
  }
  return object;
}

/* ---- The report
 * --------------------------------------------------------------------------------------------------- */

static json_t *pair_list(const kedge_probe *p, bool *failed) {
  json_t *list = json_array();
  for (uint32_t i = 0; i < p->count; i++)
    for (uint32_t j = i + 1; j < p->count; j++) {
      const kedge_probe_domain *a = &p->domains[i], *b = &p->domains[j];
      json_t *object = json_object();
      kedge__json_put(object, "a", json_string(a->name), failed);
      kedge__json_put(object, "b", json_string(b->name), failed);
      put_pair(object, &a->base[KEDGE_PROBE_ALL], &b->base[KEDGE_PROBE_ALL], failed);
      if (a->has_communities && b->has_communities)
        kedge__json_put(object, "communities", kedge__probe_pair_json(p, a, b, false, failed), failed);
      kedge__json_append(list, object, failed);
    }
  return list;
}

kedge_status kedge_audit_json(const kedge_audit *a, char **text) {
  bool lost = false, *failed = &lost;
  const kedge_probe *p = &a->probe;
  json_t *root = json_object(), *domains = json_array(), *warnings = json_array();
  kedge__json_put(root, "moe_layers", kedge__json_whole(p->layers), failed);
  kedge__json_put(root, "num_experts", kedge__json_whole(p->experts), failed);
  kedge__json_put(root, "top_k", kedge__json_whole(p->topk), failed);
  kedge__json_put(root, "model_hash", kedge__json_name(p->base), failed);
  kedge__json_put(root, "tokenizer_hash", kedge__json_name(p->tokenizer), failed);
  kedge__json_put(root, "verdicts", verdicts_object(a, failed), failed);
  for (uint32_t i = 0; i < a->warning_count; i++)
    kedge__json_append(warnings, json_string(a->warnings[i]), failed);
  kedge__json_put(root, "warnings", warnings, failed);
  kedge__json_put(root, "figures", figures_object(&a->figures, failed), failed);
  kedge__json_put(root, "thresholds", thresholds_object(failed), failed);
  for (uint32_t i = 0; i < p->count; i++) kedge__json_append(domains, domain_object(a, i, failed), failed);
  kedge__json_put(root, "domains", domains, failed);
  kedge__json_put(root, "domain_pairs", pair_list(p, failed), failed);
  char *dump = root && !lost ? json_dumps(root, JSON_INDENT(2)) : NULL;
  *text = dump ? kedge_strdup(dump) : NULL;
  free(dump);
  json_decref(root);
  return *text ? KEDGE_OK : KEDGE_ERR_MEMORY;
}
