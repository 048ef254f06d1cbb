/* SPDX-License-Identifier: Apache-2.0
 * Gradients of a whole decoder against central differences, or against those of another backend
 * (gradcheck.h). */
#include "models/routing/gradcheck.h"

#include "models/routing/gradcheck_rig.h"
#include "models/text/random.h"

#include <math.h>
#include <string.h>

enum { T = KEDGE_RIG_TOKENS, L = KEDGE_RIG_LAYERS, E = KEDGE_RIG_EXPERTS, K = KEDGE_RIG_TOPK };

/* Entries tried of a parameter that is no router; the routers are checked whole. */
enum { SAMPLE = 16, SEEDS = 200 };

/* Scores nearer than this might change places at a difference: a weight moves by less than 2e-3, and what it
 * moves by a small multiple. */
#define CLEAR_GAP 0.02

typedef int32_t chosen[L][T][K];

static const char *const kinds[KEDGE_ROLE_COUNT] = {
    [KEDGE_ROLE_EMBED] = "embedding",
    [KEDGE_ROLE_FINAL_NORM] = "final norm",
    [KEDGE_ROLE_HEAD] = "head",
    [KEDGE_ROLE_INPUT_NORM] = "input norm",
    [KEDGE_ROLE_Q] = "query",
    [KEDGE_ROLE_Q_BIAS] = "query bias",
    [KEDGE_ROLE_Q_A] = "query latent",
    [KEDGE_ROLE_Q_A_NORM] = "query latent norm",
    [KEDGE_ROLE_Q_B] = "query from latent",
    [KEDGE_ROLE_K] = "key",
    [KEDGE_ROLE_K_BIAS] = "key bias",
    [KEDGE_ROLE_V] = "value",
    [KEDGE_ROLE_V_BIAS] = "value bias",
    [KEDGE_ROLE_KV_A] = "key/value latent",
    [KEDGE_ROLE_KV_A_NORM] = "key/value latent norm",
    [KEDGE_ROLE_KV_B] = "key/value from latent",
    [KEDGE_ROLE_O] = "attention output",
    [KEDGE_ROLE_Q_NORM] = "query norm",
    [KEDGE_ROLE_K_NORM] = "key norm",
    [KEDGE_ROLE_POST_NORM] = "post norm",
    [KEDGE_ROLE_MLP_GATE] = "mlp gate",
    [KEDGE_ROLE_MLP_UP] = "mlp up",
    [KEDGE_ROLE_MLP_DOWN] = "mlp down",
    [KEDGE_ROLE_ROUTER] = "router",
    [KEDGE_ROLE_ROUTER_CORRECTION] = "router correction",
    [KEDGE_ROLE_EXPERT_GATE] = "expert gate",
    [KEDGE_ROLE_EXPERT_UP] = "expert up",
    [KEDGE_ROLE_EXPERT_DOWN] = "expert down",
    [KEDGE_ROLE_SHARED_GATE] = "shared gate",
    [KEDGE_ROLE_SHARED_UP] = "shared up",
    [KEDGE_ROLE_SHARED_DOWN] = "shared down",
    [KEDGE_ROLE_SHARED_ROUTER] = "shared router",
};

kedge_intervention kedge_gradcheck_intervention(kedge_router_id id) {
  const double coef = id == KEDGE_ROUTER_router_l2 ? 0.05 : id == KEDGE_ROUTER_logit_l2 ? 0.01 : 0.3;
  return (kedge_intervention){.id = id,
                              .beta = 0.75,
                              .coef = coef,
                              .eps = 0.05,
                              .clip = 5.0,
                              .layer_mean = kedge_router_layer_mean(id)};
}

typedef struct checker {
  kedge_rig rig;
  kedge_gradcheck *result;
  chosen ids; /* at the point of the gradient */
} checker;

/* ---- Clear routing
 * ------------------------------------------------------------------------------------------------ */

/* Distance of the least chosen to the best score left out. */
static double gap_of(const double *scores, const int32_t *ids) {
  double least = INFINITY, rest = -INFINITY;
  for (int e = 0; e < E; e++) {
    bool in = false;
    for (int k = 0; k < K; k++) in |= ids[k] == e;
    if (in)
      least = fmin(least, scores[e]);
    else
      rest = fmax(rest, scores[e]);
  }
  return fabs(least - rest);
}

/* Smallest gap over tokens and layers. A bias that the choice reads is part of the score. */
static kedge_status measure_gap(kedge_rig *rig, const kedge_intervention *it, double *gap) {
  const kedge_rig_problem *p = rig->problem;
  chosen ids;
  *gap = INFINITY;
  KEDGE_TRY(kedge__rig_ids(rig, ids));
  for (uint32_t l = 0; l < L; l++) {
    const bool biased = it->id == KEDGE_ROUTER_rpb && kedge_intervention_covers(it, l);
    double scores[T][E];
    KEDGE_TRY(kedge__rig_read(rig, rig->decoder.router_TE[l], scores[0], T * E));
    for (int t = 0; t < T; t++) {
      if (p->segments[t] < 0) continue;
      for (int e = 0; biased && p->spans[t] >= 0 && e < E; e++)
        scores[t][e] += it->beta * p->bias[l][p->spans[t]][e];
      *gap = fmin(*gap, gap_of(scores[t], ids[l][t]));
    }
  }
  return KEDGE_OK;
}

/* The first seed from `seed` on whose routing is clear: its problem, and an open rig in all-double. */
static kedge_status find_clear(checker *c, kedge_rig_problem *problem, kedge_device *ref,
                               const kedge_intervention *it, uint64_t seed) {
  for (uint64_t s = seed; s < seed + SEEDS; s++) {
    KEDGE_TRY(kedge__rig_problem_init(problem, s));
    kedge__rig_problem_bias(problem, it->eps, it->clip);
    KEDGE_TRY(kedge__rig_open(&c->rig, problem, ref, true, it, 1));
    KEDGE_TRY(measure_gap(&c->rig, it, &c->result->gap));
    c->result->seed = s;
    if (c->result->gap >= CLEAR_GAP) return kedge__rig_ids(&c->rig, c->ids);
    kedge__rig_close(&c->rig);
    kedge__rig_problem_destroy(problem);
  }
  return kedge_fail(KEDGE_ERR_NUMERIC, "gradient check: no seed of %d has expert choices clear by %g", SEEDS,
                    CLEAR_GAP);
}

/* ---- Comparing
 * ---------------------------------------------------------------------------------------------------- */

static double largest(const double *numbers, uint64_t count) {
  double most = 0;
  for (uint64_t i = 0; i < count; i++) {
    if (!isfinite(numbers[i])) return NAN;
    most = fmax(most, fabs(numbers[i]));
  }
  return most;
}

/* Largest |factor * got - want| over entries[0..count), relative to `scale`; infinite for NaN and for scale
 * 0. */
static double error_of(const double *got, double factor, const double *want, uint64_t count, double scale) {
  double error = 0;
  for (uint64_t i = 0; i < count; i++) {
    double e = fabs(factor * got[i] - want[i]) / scale;
    if (!isfinite(e)) return INFINITY;
    error = fmax(error, e);
  }
  return scale > 0 ? error : INFINITY;
}

/* Adds one parameter's comparison to the table. */
static void add_row(kedge_gradcheck *r, kedge_role role, const double *got, const double *want,
                    uint64_t count, double scale) {
  kedge_gradcheck_row *row = &r->rows[role];
  const double error = error_of(got, 1, want, count, scale);
  const double planted = error_of(got, 1.01, want, count, scale);
  if (!row->kind) *row = (kedge_gradcheck_row){.kind = kinds[role], .planted = INFINITY};
  row->checked += count;
  for (uint64_t i = 0; i < count; i++) row->nonzero += got[i] != 0;
  row->error = fmax(row->error, error);
  row->planted = fmin(row->planted, planted);
  r->checked += count;
  r->error = fmax(r->error, error);
  r->planted = fmin(r->planted, planted);
}

static kedge_status loss_at(checker *c, uint32_t param, uint64_t entry, double value, double *loss) {
  chosen ids;
  KEDGE_TRY(kedge__rig_write(&c->rig, param, entry, &value, 1));
  KEDGE_TRY(kedge__rig_forward(&c->rig, loss));
  KEDGE_TRY(kedge__rig_ids(&c->rig, ids));
  if (!memcmp(ids, c->ids, sizeof ids)) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_NUMERIC,
                    "gradient check: entry %llu of the %s changed a token's experts at a difference",
                    (unsigned long long)entry, kinds[c->rig.problem->params.items[param].role]);
}

/* Central difference of fourth order with a step that is small against the parameter. */
static kedge_status difference(checker *c, uint32_t param, uint64_t entry, double step, double *slope) {
  const double x = c->rig.problem->weights[param][entry];
  double f[4];
  static const int at[4] = {-2, -1, 1, 2};
  for (int i = 0; i < 4; i++) KEDGE_TRY(loss_at(c, param, entry, x + at[i] * step, &f[i]));
  KEDGE_TRY(kedge__rig_write(&c->rig, param, entry, &x, 1));
  *slope = (8 * (f[2] - f[1]) - (f[3] - f[0])) / (12 * step);
  return KEDGE_OK;
}

/* The entries to try: all of a router, else the largest gradient's and a random sample, three quarters of it
 * with a gradient that is not 0 (most rows of an embedding belong to words that do not occur). */
static uint64_t choose_entries(const kedge_param *p, const double *gradient, uint64_t seed,
                               uint64_t *entries) {
  const uint64_t count = kedge_param_count(p);
  if (kedge_param_is_router(p) || count <= SAMPLE) {
    for (uint64_t i = 0; i < count; i++) entries[i] = i;
    return count;
  }
  kedge_random r = kedge_random_start(seed, 1000 + (uint64_t)p->role * 64 + p->layer);
  entries[0] = 0;
  for (uint64_t i = 1; i < count; i++)
    if (fabs(gradient[i]) > fabs(gradient[entries[0]])) entries[0] = i;
  for (uint64_t i = 1; i < SAMPLE; i++)
    for (int draw = 0; draw < 100; draw++) {
      entries[i] = kedge_random_below(&r, count);
      if (i % 4 == 0 || gradient[entries[i]] != 0) break;
    }
  return SAMPLE;
}

static double step_of(const double *weights, uint64_t count) {
  double squares = 0;
  for (uint64_t i = 0; i < count; i++) squares += weights[i] * weights[i];
  return 5e-4 * fmin(1, sqrt(squares / (double)count) + 1e-6);
}

/* One parameter's gradient (already read) against differences. */
static kedge_status check_param(checker *c, uint32_t param, const double *gradient) {
  const kedge_rig_problem *problem = c->rig.problem;
  const kedge_param *p = &problem->params.items[param];
  const uint64_t count = kedge_param_count(p);
  const double step = step_of(problem->weights[param], count);
  uint64_t *entries = kedge_alloc(count > SAMPLE ? count : SAMPLE, sizeof *entries), tried = 0;
  double *got = kedge_alloc(count > SAMPLE ? count : SAMPLE, sizeof *got);
  double *want = kedge_alloc(count > SAMPLE ? count : SAMPLE, sizeof *want);
  kedge_status status = entries && got && want ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) tried = choose_entries(p, gradient, c->result->seed, entries);
  for (uint64_t i = 0; i < tried && status == KEDGE_OK; i++) {
    got[i] = gradient[entries[i]];
    status = difference(c, param, entries[i], step, &want[i]);
  }
  if (status == KEDGE_OK) add_row(c->result, p->role, got, want, tried, largest(gradient, count));
  kedge_free(entries);
  kedge_free(got);
  kedge_free(want);
  return status;
}

static kedge_status read_gradients(kedge_rig *rig, double **gradients) {
  for (uint32_t i = 0; i < rig->problem->params.count; i++) {
    const uint64_t count = kedge_param_count(&rig->problem->params.items[i]);
    gradients[i] = kedge_alloc(count, sizeof **gradients);
    if (!gradients[i]) return KEDGE_ERR_MEMORY;
    if (rig->gradients[i]) KEDGE_TRY(kedge__rig_read(rig, rig->gradients[i], gradients[i], count));
  }
  return KEDGE_OK;
}

static kedge_status check_differences(checker *c, double *const *gradients) {
  for (uint32_t i = 0; i < c->rig.problem->params.count; i++) KEDGE_TRY(check_param(c, i, gradients[i]));
  return KEDGE_OK;
}

/* All entries of every f32 gradient of another backend against the double ones. */
static kedge_status check_backend(checker *c, const char *backend, const kedge_intervention *it,
                                  double *const *want) {
  const kedge_rig_problem *problem = c->rig.problem;
  const uint32_t params = problem->params.count;
  kedge_device *device = NULL;
  kedge_rig rig = {0};
  chosen ids;
  double **got = kedge_alloc(params, sizeof *got);
  kedge_status status = got ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) status = kedge_device_open(backend, NULL, &device);
  if (status == KEDGE_OK) status = kedge__rig_open(&rig, problem, device, false, it, 1);
  if (status == KEDGE_OK) status = read_gradients(&rig, got);
  if (status == KEDGE_OK) status = kedge__rig_ids(&rig, ids);
  if (status == KEDGE_OK && memcmp(ids, c->ids, sizeof ids))
    status = kedge_fail(KEDGE_ERR_NUMERIC, "gradient check: %s chose other experts than ref", backend);
  for (uint32_t i = 0; i < params && status == KEDGE_OK; i++) {
    const uint64_t count = kedge_param_count(&problem->params.items[i]);
    add_row(c->result, problem->params.items[i].role, got[i], want[i], count, largest(want[i], count));
  }
  for (uint32_t i = 0; got && i < params; i++) kedge_free(got[i]);
  kedge_free(got);
  kedge__rig_close(&rig);
  kedge_device_close(device);
  return status;
}

kedge_status kedge_gradcheck_run(const kedge_intervention *it, const char *backend, uint64_t seed,
                                 kedge_gradcheck *result) {
  const bool exact = !backend || !strcmp(backend, "ref");
  kedge_rig_problem problem = {0};
  checker c = {.result = result};
  kedge_device *ref = NULL;
  double **gradients = NULL;
  kedge_status status;
  *result =
      (kedge_gradcheck){.limit = exact ? KEDGE_GRADCHECK_F64 : KEDGE_GRADCHECK_F32, .planted = INFINITY};
  if (!exact && !strcmp(backend, "null"))
    return kedge_fail(KEDGE_ERR_UNSUPPORTED, "gradient check: backend null computes nothing");
  KEDGE_GOTO(kedge_device_open("ref", NULL, &ref), status, done);
  KEDGE_GOTO(find_clear(&c, &problem, ref, it, seed), status, done);
  KEDGE_GOTO(kedge__rig_read(&c.rig, c.rig.decoder.loss_1, &result->loss, 1), status, done);
  gradients = kedge_alloc(problem.params.count, sizeof *gradients);
  KEDGE_GOTO(gradients ? KEDGE_OK : KEDGE_ERR_MEMORY, status, done);
  KEDGE_GOTO(read_gradients(&c.rig, gradients), status, done);
  status = exact ? check_differences(&c, gradients) : check_backend(&c, backend, it, gradients);
  result->passed = result->error <= result->limit;
  result->sensitive = result->planted > result->limit;
done:
  for (uint32_t i = 0; gradients && i < problem.params.count; i++) kedge_free(gradients[i]);
  kedge_free(gradients);
  kedge__rig_close(&c.rig);
  kedge__rig_problem_destroy(&problem);
  kedge_device_close(ref);
  return status;
}
