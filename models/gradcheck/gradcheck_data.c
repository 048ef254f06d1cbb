/* SPDX-License-Identifier: Apache-2.0
 * Weights, batch, prior and base of the tiny decoder of gradient checks (gradcheck_rig.h). */
#include "models/gradcheck/gradcheck_rig.h"

#include "models/prior/prior.h"
#include "models/text/random.h"

#include <math.h>
#include <string.h>

enum { T = KEDGE_RIG_TOKENS, S = KEDGE_RIG_ROWS };

static double uniform(kedge_random *r) {
  return ((double)(kedge_random_next(r) >> 11) + 0.5) * 0x1p-53;
}

/* Standard normal, by Box and Muller. */
static double normal(kedge_random *r) {
  double radius = sqrt(-2 * log(uniform(r)));
  return radius * cos(2 * 3.14159265358979323846 * uniform(r));
}

static bool is_bias(kedge_role role) {
  return role == KEDGE_ROLE_Q_BIAS || role == KEDGE_ROLE_K_BIAS || role == KEDGE_ROLE_V_BIAS ||
         role == KEDGE_ROLE_ROUTER_CORRECTION;
}

/* Weights of a size at which no activation saturates and the logits of experts spread over a few units. */
static void draw_weights(const kedge_param *p, kedge_random *r, double *weights) {
  const uint64_t count = kedge_param_count(p);
  const double inputs = p->dims[p->rank - 1];
  double mean = 0, sd = 1 / sqrt(inputs);
  if (is_bias(p->role))
    sd = 0.2;
  else if (p->rank == 1)
    mean = 1, sd = 0.2; /* a norm */
  if (p->role == KEDGE_ROLE_EMBED) sd = 1;
  if (kedge_param_is_router(p)) sd *= 1.5;
  for (uint64_t i = 0; i < count; i++) weights[i] = (double)(float)(mean + sd * normal(r));
}

/* Two sequences of 7 and 5 tokens, questions of 3 and 2; then tokens that stand outside any sequence. */
static void draw_batch(kedge_rig_problem *p, kedge_random *r) {
  for (int t = 0; t < T; t++) {
    int start = t < 7 ? 0 : 7, question = t < 7 ? 3 : 2, end = t < 7 ? 7 : 12;
    p->ids[t] = (int32_t)kedge_random_below(r, p->config.vocab_size);
    int32_t label = (int32_t)kedge_random_below(r, p->config.vocab_size);
    double weight = normal(r) / 10;
    bool inside = t < 12, labelled = inside && t + 1 < end;
    p->positions[t] = inside ? t - start : 0;
    p->segments[t] = inside ? start : -1;
    p->spans[t] = inside ? 2 * (start > 0) + (t - start >= question) : -1;
    p->labels[t] = labelled ? label : -1;
    p->loss_weights[t] = labelled ? (double)(float)weight : 0;
  }
}

/* Rows that are peaked enough for both clips to act on some entries. */
static void draw_prior(kedge_rig_problem *p, kedge_random *r) {
  const uint32_t E = p->experts;
  for (uint32_t i = 0; i < p->layers * S; i++) {
    double row[KEDGE_RIG_EXPERTS], sum = 0;
    for (uint32_t e = 0; e < E; e++) sum += row[e] = exp(1.8 * normal(r));
    for (uint32_t e = 0; e < E; e++) p->priors[0].pi_LSE[i * E + e] = (float)(row[e] / sum);
  }
}

/* What the frozen base would give: logits, the choice that they make, and choices of other micro-batches. */
static void draw_base(kedge_rig_problem *p, kedge_random *r) {
  const uint32_t E = p->experts, K = p->topk;
  for (uint32_t l = 0; l < p->layers; l++) {
    for (uint32_t t = 0; t < T; t++) {
      double *logits = p->base_logits_LTE + (l * T + t) * E;
      int32_t *ids = p->base_ids_LTK + (l * T + t) * K;
      float softmax[KEDGE_RIG_EXPERTS];
      for (uint32_t e = 0; e < E; e++) {
        logits[e] = (double)(float)(1.5 * normal(r));
        softmax[e] = (float)exp(logits[e]);
      }
      kedge_prior_top(softmax, E, 1e-9, 1e9, K, ids);
      for (uint32_t k = 0; p->segments[t] < 0 && k < K; k++) ids[k] = -1;
    }
    for (uint32_t e = 0; e < E; e++) p->counts_LE[l * E + e] = (double)(1 + kedge_random_below(r, 20));
  }
}

/* The prior of a whole sample: the mean of both spans, weighted by their tokens. */
static void join_spans(kedge_rig_problem *p) {
  const uint32_t E = p->experts;
  uint32_t tokens[S] = {0};
  for (int t = 0; t < T; t++)
    if (p->spans[t] >= 0) tokens[p->spans[t]]++;
  for (uint32_t l = 0; l < p->layers; l++)
    for (uint32_t s = 0; s < S; s++) {
      const uint32_t q = s & ~1u, a = q + 1, all = tokens[q] + tokens[a];
      const float *pi_SE = p->priors[0].pi_LSE + l * S * E;
      for (uint32_t e = 0; e < E; e++) {
        const double sum = tokens[q] * (double)pi_SE[q * E + e] + tokens[a] * (double)pi_SE[a * E + e];
        p->priors[1].pi_LSE[(l * S + s) * E + e] = all ? (float)(sum / all) : pi_SE[s * E + e];
      }
    }
}

void kedge__rig_problem_bias(kedge_rig_problem *p, double eps, double clip) {
  const uint32_t E = p->experts;
  join_spans(p);
  for (int whole = 0; whole < 2; whole++)
    for (uint32_t i = 0; i < p->layers * S; i++) {
      kedge_rig_prior *prior = &p->priors[whole];
      float bias[KEDGE_RIG_EXPERTS];
      kedge_prior_bias(prior->pi_LSE + i * E, E, eps, clip, bias);
      for (uint32_t e = 0; e < E; e++) prior->bias_LSE[i * E + e] = (double)bias[e];
      kedge_prior_top(prior->pi_LSE + i * E, E, eps, clip, p->topk, prior->ids_LSK + i * p->topk);
    }
}

/* Config, parameters and memory. */
static kedge_status prepare(kedge_rig_problem *p, const kedge_gradcheck_problem *source) {
  p->source = source;
  KEDGE_TRY(kedge_hf_config_parse(source->config, strlen(source->config), source->name, &p->config));
  KEDGE_TRY(kedge_params_init(&p->params, &p->config));
  const uint32_t L = p->layers = p->params.moe_layers, E = p->experts = p->config.num_experts,
                 K = p->topk = p->config.num_experts_per_tok;
  if (L != KEDGE_RIG_LAYERS || E > KEDGE_RIG_EXPERTS || K > KEDGE_RIG_TOPK)
    return kedge_fail(KEDGE_ERR_ARGUMENT,
                      "gradient check, %s: expected %d layers with at most %d experts and %d a token",
                      source->name, KEDGE_RIG_LAYERS, KEDGE_RIG_EXPERTS, KEDGE_RIG_TOPK);
  bool all = true;
  for (int whole = 0; whole < 2; whole++) {
    kedge_rig_prior *prior = &p->priors[whole];
    prior->pi_LSE = kedge_alloc(L * S * E, sizeof *prior->pi_LSE);
    prior->bias_LSE = kedge_alloc(L * S * E, sizeof *prior->bias_LSE);
    prior->ids_LSK = kedge_alloc(L * S * K, sizeof *prior->ids_LSK);
    all = all && prior->pi_LSE && prior->bias_LSE && prior->ids_LSK;
  }
  p->base_logits_LTE = kedge_alloc(L * T * E, sizeof *p->base_logits_LTE);
  p->base_ids_LTK = kedge_alloc(L * T * K, sizeof *p->base_ids_LTK);
  p->counts_LE = kedge_alloc(L * E, sizeof *p->counts_LE);
  p->weights = kedge_alloc(p->params.count, sizeof *p->weights);
  if (!all || !p->base_logits_LTE || !p->base_ids_LTK || !p->counts_LE || !p->weights)
    return KEDGE_ERR_MEMORY;
  for (uint32_t i = 0; i < p->params.count; i++) {
    p->weights[i] = kedge_alloc(kedge_param_count(&p->params.items[i]), sizeof **p->weights);
    if (!p->weights[i]) return KEDGE_ERR_MEMORY;
  }
  return KEDGE_OK;
}

kedge_status kedge__rig_problem_init(kedge_rig_problem *p, const kedge_gradcheck_problem *source,
                                     uint64_t seed) {
  *p = (kedge_rig_problem){0};
  kedge_status status = prepare(p, source);
  if (status != KEDGE_OK) {
    kedge__rig_problem_destroy(p);
    return status;
  }
  for (uint32_t i = 0; i < p->params.count; i++) {
    kedge_random r = kedge_random_start(seed, i);
    draw_weights(&p->params.items[i], &r, p->weights[i]);
  }
  kedge_random r = kedge_random_start(seed, UINT64_MAX);
  draw_batch(p, &r);
  draw_prior(p, &r);
  draw_base(p, &r);
  kedge__rig_problem_bias(p, 0.05, 5.0);
  return KEDGE_OK;
}

void kedge__rig_problem_destroy(kedge_rig_problem *p) {
  for (uint32_t i = 0; p->weights && i < p->params.count; i++) kedge_free(p->weights[i]);
  kedge_free(p->weights);
  for (int whole = 0; whole < 2; whole++) {
    kedge_free(p->priors[whole].pi_LSE);
    kedge_free(p->priors[whole].bias_LSE);
    kedge_free(p->priors[whole].ids_LSK);
  }
  kedge_free(p->base_logits_LTE);
  kedge_free(p->base_ids_LTK);
  kedge_free(p->counts_LE);
  kedge_params_destroy(&p->params);
  kedge_hf_config_destroy(&p->config);
  *p = (kedge_rig_problem){0};
}
