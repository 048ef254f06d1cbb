/* SPDX-License-Identifier: Apache-2.0
 * Gradients of a whole decoder against central differences, or against those of another backend
 * (gradcheck.h). */
#include "models/gradcheck/gradcheck.h"

#include "models/gradcheck/gradcheck_rig.h"
#include "models/text/random.h"

#include <math.h>
#include <string.h>

enum { T = KEDGE_RIG_TOKENS, L = KEDGE_RIG_LAYERS };

/* Entries tried of a parameter that is no router, at most; seeds tried. */
enum { SAMPLE = 16, SEEDS = 400 };

/* Scores nearer than this might change places at a difference: a weight moves by less than 2e-3, and what it
 * moves by a small multiple. */
#define CLEAR_GAP 0.02

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

/* A variant with its layers and all that follows from the rows of routers.def. */
typedef struct plan {
  kedge_intervention list[KEDGE_MAX_INTERVENTIONS];
  uint32_t count;
  uint32_t layer; /* where it is restricted to one */
} plan;

typedef struct checker {
  const kedge_gradcheck_options *options;
  kedge_rig_problem problem;
  kedge_device *ref;
  plan plan, fault;
  /* What the gradient is of. What differences are taken of, by the layer of experts whose router moves; the
   * last one is for all other parameters. Most often all are the first; else they are opened. */
  kedge_rig rig, extra[L + 1], *slopes[L + 1];
  plan plans[L + 1];
  double **gradients, **plain; /* of the checked, and without any intervention; by parameter */
  int32_t ids[KEDGE_RIG_IDS];  /* experts of each token at the point of the gradient */
  kedge_gradcheck *result;
} checker;

static void make_plan(plan *p, const kedge_gradcheck_variant *v, const kedge_params *params) {
  *p = (plan){.count = v->count, .layer = kedge_params_moe_layer(params, L - 1)};
  for (uint32_t i = 0; i < v->count; i++) {
    p->list[i] = v->list[i];
    p->list[i].layer_mean |= kedge_router_layer_mean(v->list[i].id);
    if (v->last_layer) p->list[i].layers = &p->layer, p->list[i].layer_count = 1;
  }
}

/* MoE layers that an intervention acts on. */
static uint32_t covered(const kedge_intervention *it, const kedge_params *params) {
  uint32_t count = 0;
  for (uint32_t l = 0; l < L; l++) count += kedge_intervention_covers(it, kedge_params_moe_layer(params, l));
  return count;
}

/* The plan whose differences are the gradient of `from` for the router of MoE layer `only`, or with only = L
 * for parameters that are no router: a loss that is detached reaches the former in its own layer alone, the
 * latter not at all. True if it differs from `from`. */
static bool detached_plan(const plan *from, uint32_t only, const kedge_params *params, plan *to) {
  bool differs = false;
  *to = (plan){.layer = only < L ? kedge_params_moe_layer(params, only) : 0};
  for (uint32_t i = 0; i < from->count; i++) {
    kedge_intervention it = from->list[i];
    if (it.detach_hidden) {
      differs = true;
      if (only == L || !kedge_intervention_covers(&it, to->layer)) continue;
      if (it.layer_mean) it.coef /= covered(&it, params);
      it.detach_hidden = false;
      it.layers = &to->layer, it.layer_count = 1;
    }
    to->list[to->count++] = it;
  }
  return differs;
}

/* ---- The rigs
 * ---------------------------------------------------------------------------------------------------- */

/* The experts of each token in order of their numbers: which of two chosen ones is better changes nothing. */
static kedge_status read_sets(kedge_rig *rig, int32_t ids[KEDGE_RIG_IDS]) {
  const uint32_t K = rig->problem->topk;
  KEDGE_TRY(kedge__rig_ids(rig, ids));
  for (int32_t *row = ids; row < ids + L * T * K; row += K)
    for (uint32_t i = 1; i < K; i++)
      for (uint32_t j = i; j > 0 && row[j] < row[j - 1]; j--) {
        const int32_t other = row[j];
        row[j] = row[j - 1], row[j - 1] = other;
      }
  return KEDGE_OK;
}

/* The first seed from the given one on whose routing is clear: its problem, and an open rig in all-double. */
static kedge_status find_clear(checker *c, const kedge_gradcheck_problem *source,
                               const kedge_gradcheck_variant *variant) {
  for (uint64_t s = c->options->seed; s < c->options->seed + SEEDS; s++) {
    KEDGE_TRY(kedge__rig_problem_init(&c->problem, source, s));
    make_plan(&c->plan, variant, &c->problem.params);
    KEDGE_TRY(kedge__rig_open(&c->rig, &c->problem, c->ref, true, c->plan.list, c->plan.count));
    KEDGE_TRY(kedge__rig_gap(&c->rig, &c->result->gap));
    c->result->seed = s;
    if (c->result->gap >= CLEAR_GAP) return read_sets(&c->rig, c->ids);
    kedge__rig_close(&c->rig);
    kedge__rig_problem_destroy(&c->problem);
  }
  return kedge_fail(KEDGE_ERR_NUMERIC, "gradient check, %s, %s: no seed of %d has expert choices clear by %g",
                    source->name, variant->name, SEEDS, CLEAR_GAP);
}

/* What differences are taken of. */
static kedge_status open_slopes(checker *c) {
  for (uint32_t i = 0; i <= L; i++) {
    c->slopes[i] = &c->rig;
    if (!detached_plan(&c->plan, i, &c->problem.params, &c->plans[i])) continue;
    c->slopes[i] = &c->extra[i];
    KEDGE_TRY(kedge__rig_open(c->slopes[i], &c->problem, c->ref, true, c->plans[i].list, c->plans[i].count));
  }
  return KEDGE_OK;
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

static double **new_gradients(const checker *c) {
  return kedge_alloc(c->problem.params.count, sizeof(double *));
}

static void free_gradients(const checker *c, double **gradients) {
  for (uint32_t i = 0; gradients && i < c->problem.params.count; i++) kedge_free(gradients[i]);
  kedge_free(gradients);
}

/* Gradients of a list of interventions on a device; NULL and 0: of none. */
static kedge_status gradients_of(const checker *c, kedge_device *device, bool all_double, const plan *p,
                                 int32_t *ids, double **gradients) {
  kedge_rig rig = {0};
  kedge_status status;
  KEDGE_GOTO(kedge__rig_open(&rig, &c->problem, device, all_double, p ? p->list : NULL, p ? p->count : 0),
             status, done);
  KEDGE_GOTO(read_gradients(&rig, gradients), status, done);
  if (ids) status = read_sets(&rig, ids);
done:
  kedge__rig_close(&rig);
  return status;
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

static kedge_status loss_at(checker *c, kedge_rig *rig, uint32_t param, uint64_t entry, double value,
                            double *loss) {
  int32_t ids[KEDGE_RIG_IDS];
  KEDGE_TRY(kedge__rig_write(rig, param, entry, &value, 1));
  KEDGE_TRY(kedge__rig_forward(rig, loss));
  KEDGE_TRY(read_sets(rig, ids));
  if (!memcmp(ids, c->ids, L * T * c->problem.topk * sizeof *ids)) return KEDGE_OK;
  return kedge_fail(
      KEDGE_ERR_NUMERIC, "gradient check, %s: entry %llu of the %s changed a token's experts at a difference",
      c->problem.source->name, (unsigned long long)entry, kinds[c->problem.params.items[param].role]);
}

/* Central difference of fourth order with a step that is small against the parameter. */
static kedge_status difference(checker *c, kedge_rig *rig, uint32_t param, uint64_t entry, double step,
                               double *slope) {
  const double x = c->problem.weights[param][entry];
  double f[4];
  static const int at[4] = {-2, -1, 1, 2};
  for (int i = 0; i < 4; i++) KEDGE_TRY(loss_at(c, rig, param, entry, x + at[i] * step, &f[i]));
  KEDGE_TRY(kedge__rig_write(rig, param, entry, &x, 1));
  *slope = (8 * (f[2] - f[1]) - (f[3] - f[0])) / (12 * step);
  return KEDGE_OK;
}

/* The entries to try: all of a router, else the largest gradient's and a random sample, three quarters of it
 * with a gradient that is not 0 (most rows of an embedding belong to words that do not occur). */
static uint64_t choose_entries(const checker *c, const kedge_param *p, const double *gradient,
                               uint64_t *entries) {
  const uint64_t count = kedge_param_count(p), want = c->options->entries ? c->options->entries : SAMPLE,
                 most = want < SAMPLE ? want : SAMPLE;
  if (kedge_param_is_router(p) || count <= most) {
    for (uint64_t i = 0; i < count; i++) entries[i] = i;
    return count;
  }
  kedge_random r = kedge_random_start(c->result->seed, 1000 + (uint64_t)p->role * 64 + p->layer);
  entries[0] = 0;
  for (uint64_t i = 1; i < count; i++)
    if (fabs(gradient[i]) > fabs(gradient[entries[0]])) entries[0] = i;
  for (uint64_t i = 1; i < most; i++)
    for (int draw = 0; draw < 100; draw++) {
      entries[i] = kedge_random_below(&r, count);
      if (i % 4 == 0 || gradient[entries[i]] != 0) break;
    }
  return most;
}

static double step_of(const double *weights, uint64_t count) {
  double squares = 0;
  for (uint64_t i = 0; i < count; i++) squares += weights[i] * weights[i];
  return 5e-4 * fmin(1, sqrt(squares / (double)count) + 1e-6);
}

/* Errors of planted faults in what the interventions add to the gradient of a router that they act on. */
static void add_own(checker *c, uint32_t param, const double *want) {
  const kedge_param *p = &c->problem.params.items[param];
  const uint64_t count = kedge_param_count(p);
  const double *gradient = c->gradients[param], *plain = c->plain[param], scale = largest(gradient, count);
  bool acts = false;
  for (uint32_t i = 0; i < c->plan.count; i++)
    acts |=
        kedge_intervention_builds(&c->plan.list[i]) && kedge_intervention_covers(&c->plan.list[i], p->layer);
  if (!kedge_param_is_router(p) || !acts) return;
  double scaled = 0, dropped = 0;
  for (uint64_t i = 0; i < count; i++) {
    const double own = gradient[i] - plain[i];
    scaled = fmax(scaled, fabs(gradient[i] + 0.01 * own - want[i]) / scale);
    dropped = fmax(dropped, fabs(plain[i] - want[i]) / scale);
  }
  c->result->own_scaled = fmin(c->result->own_scaled, scaled);
  c->result->own_dropped = fmin(c->result->own_dropped, dropped);
}

/* One parameter's gradient against differences. */
static kedge_status check_param(checker *c, uint32_t param) {
  const kedge_param *p = &c->problem.params.items[param];
  const uint64_t count = kedge_param_count(p), room = count > SAMPLE ? count : SAMPLE;
  const double *gradient = c->gradients[param], step = step_of(c->problem.weights[param], count);
  kedge_rig *rig =
      c->slopes[kedge_param_is_router(p) ? kedge_params_moe_index(&c->problem.params, p->layer) : L];
  uint64_t *entries = kedge_alloc(room, sizeof *entries), tried = 0;
  double *got = kedge_alloc(room, sizeof *got), *want = kedge_alloc(room, sizeof *want);
  kedge_status status = entries && got && want ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) tried = choose_entries(c, p, gradient, entries);
  for (uint64_t i = 0; i < tried && status == KEDGE_OK; i++) {
    got[i] = gradient[entries[i]];
    status = difference(c, rig, param, entries[i], step, &want[i]);
  }
  if (status == KEDGE_OK) {
    add_row(c->result, p->role, got, want, tried, largest(gradient, count));
    add_own(c, param, want);
  }
  kedge_free(entries);
  kedge_free(got);
  kedge_free(want);
  return status;
}

/* All-double gradients, or those of the planted fault, against differences. */
static kedge_status check_differences(checker *c) {
  KEDGE_TRY(open_slopes(c));
  for (uint32_t i = 0; i < c->problem.params.count; i++)
    if (!c->problem.params.items[i].fixed) KEDGE_TRY(check_param(c, i));
  return KEDGE_OK;
}

/* All entries of every f32 gradient of another backend against the double ones. */
static kedge_status check_backend(checker *c) {
  const kedge_open_options options = {.threads = 1};
  const uint32_t params = c->problem.params.count;
  kedge_device *device = NULL;
  int32_t ids[KEDGE_RIG_IDS];
  double **want = c->gradients, **got = new_gradients(c);
  kedge_status status;
  KEDGE_GOTO(got ? KEDGE_OK : KEDGE_ERR_MEMORY, status, done);
  KEDGE_GOTO(kedge_device_open(c->options->backend, &options, &device), status, done);
  KEDGE_GOTO(gradients_of(c, device, false, &c->plan, ids, got), status, done);
  if (memcmp(ids, c->ids, L * T * c->problem.topk * sizeof *ids))
    KEDGE_GOTO(kedge_fail(KEDGE_ERR_NUMERIC, "gradient check, %s: %s chose other experts than ref",
                          c->problem.source->name, c->options->backend),
               status, done);
  for (uint32_t i = 0; i < params; i++) {
    const kedge_param *p = &c->problem.params.items[i];
    const uint64_t count = kedge_param_count(p);
    if (p->fixed) continue;
    add_row(c->result, p->role, got[i], want[i], count, largest(want[i], count));
    add_own(c, i, want[i]);
  }
done:
  free_gradients(c, got);
  kedge_device_close(device);
  return status;
}

/* The gradients that are checked and those without any intervention. */
static kedge_status take_gradients(checker *c) {
  c->gradients = new_gradients(c);
  c->plain = new_gradients(c);
  if (!c->gradients || !c->plain) return KEDGE_ERR_MEMORY;
  KEDGE_TRY(gradients_of(c, c->ref, true, NULL, NULL, c->plain));
  if (!c->options->fault) return read_gradients(&c->rig, c->gradients);
  make_plan(&c->fault, c->options->fault, &c->problem.params);
  return gradients_of(c, c->ref, true, &c->fault, NULL, c->gradients);
}

static void destroy(checker *c) {
  free_gradients(c, c->gradients);
  free_gradients(c, c->plain);
  for (uint32_t i = 0; i <= L; i++) kedge__rig_close(&c->extra[i]);
  kedge__rig_close(&c->rig);
  kedge__rig_problem_destroy(&c->problem);
  kedge_device_close(c->ref);
}

kedge_status kedge_gradcheck_run(const kedge_gradcheck_problem *problem,
                                 const kedge_gradcheck_variant *variant,
                                 const kedge_gradcheck_options *options, kedge_gradcheck *r) {
  const bool exact = !options->backend || !strcmp(options->backend, "ref");
  if (!exact && !strcmp(options->backend, "null"))
    return kedge_fail(KEDGE_ERR_UNSUPPORTED, "gradient check: backend null computes nothing");
  checker *c = kedge_alloc(1, sizeof *c);
  if (!c) return KEDGE_ERR_MEMORY;
  c->options = options;
  c->result = r;
  *r = (kedge_gradcheck){.limit = exact ? KEDGE_GRADCHECK_F64 : KEDGE_GRADCHECK_F32,
                         .planted = INFINITY,
                         .own_scaled = INFINITY,
                         .own_dropped = INFINITY};
  kedge_status status;
  KEDGE_GOTO(kedge_device_open("ref", NULL, &c->ref), status, done);
  KEDGE_GOTO(find_clear(c, problem, variant), status, done);
  KEDGE_GOTO(kedge__rig_read(&c->rig, c->rig.decoder.loss_1, &r->loss, 1), status, done);
  KEDGE_GOTO(take_gradients(c), status, done);
  status = exact ? check_differences(c) : check_backend(c);
  r->passed = r->error <= r->limit;
  r->sensitive = r->planted > r->limit && r->own_dropped > r->limit && (!exact || r->own_scaled > r->limit);
done:
  destroy(c);
  kedge_free(c);
  return status;
}

kedge_status kedge_gradcheck_all(const kedge_gradcheck_options *options, kedge_gradcheck *results) {
  const uint32_t problems = kedge_gradcheck_problem_count, checks = problems * kedge_gradcheck_variant_count;
  kedge_status worst = KEDGE_OK;
  char *message = NULL; /* messages belong to threads */
#pragma omp parallel for schedule(dynamic)
  for (uint32_t i = 0; i < checks; i++) {
    kedge_status status = kedge_gradcheck_run(&kedge_gradcheck_problems[i % problems],
                                              &kedge_gradcheck_variants[i / problems], options, &results[i]);
#pragma omp critical(kedge_gradcheck)
    if (status != KEDGE_OK && worst == KEDGE_OK) {
      worst = status;
      message = kedge_strdup(kedge_message());
    }
  }
  if (worst != KEDGE_OK && message) kedge_fail(worst, "%s", message);
  kedge_free(message);
  return worst;
}
