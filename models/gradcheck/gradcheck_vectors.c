/* SPDX-License-Identifier: Apache-2.0
 * Router vectors from a file against the builders of routers.def (gradcheck_vectors.h). */
#include "models/gradcheck/gradcheck_vectors.h"

#include "core/args.h"
#include "models/prior/prior.h"

#include <math.h>
#include <stdio.h>

/* A case as a graph: one router with its intervention, and the gradients of its loss, or of the product of
 * its gates with the file's cotangent. */
typedef struct setup {
  const kedge_vectors *v;
  const kedge_vector_case *c;
  kedge_intervention it;
  kedge_device *device;
  bool all_double;
  kedge_graph *graph;
  kedge_exec *exec;
  kedge_value x_TD, w_ED, correction_E, segments_T, cotangent_TK, loss_1, dz_TE, dw_ED;
  kedge_router_feed feed;
  kedge_router_values values;
} setup;

static bool is_choice(const setup *s) {
  return kedge_router_get_kind(s->c->id) == KEDGE_ROUTER_SELECTION;
}

static kedge_value input(setup *s, const char *name, kedge_dtype dtype, uint32_t rows, uint32_t cols) {
  return kedge_input(s->graph, name, dtype, cols ? 2 : 1, (uint32_t[]){rows, cols});
}

/* The inputs that the intervention's builder reads. */
static void make_feed(setup *s) {
  const kedge_vectors *v = s->v;
  const bool whole = s->c->id == KEDGE_ROUTER_router_l2;
  kedge_graph *g = s->graph;
  switch (kedge_intervention_table(&s->it)) {
  case KEDGE_TABLE_BIAS:
  case KEDGE_TABLE_PRIOR:
    s->feed.table = kedge_input(g, "table", KEDGE_F32, 3, (uint32_t[]){1, v->S, v->E});
    break;
  case KEDGE_TABLE_PRIOR_IDS:
    s->feed.table = kedge_input(g, "table", KEDGE_I32, 3, (uint32_t[]){1, v->S, v->K});
    break;
  case KEDGE_TABLE_COUNTS:
    s->feed.table = kedge_input(g, "table", KEDGE_F32, 3, (uint32_t[]){1, 1, v->E});
    break;
  case KEDGE_TABLE_BASE_WEIGHTS:
    s->feed.table = kedge_input(g, "table", KEDGE_F32, 3, (uint32_t[]){1, v->E, v->D});
    break;
  case KEDGE_TABLE_BASE_LOGITS:
  case KEDGE_TABLE_BASE_IDS:
  case KEDGE_TABLE_NONE:
    break;
  }
  if (!whole) s->feed.index_T = input(s, "index", KEDGE_I32, v->T, 0);
  s->feed.weights = input(s, "token weights", KEDGE_F32, whole ? 1 : v->T, 0);
}

static void differentiate(setup *s) {
  kedge_graph *g = s->graph;
  const kedge_value logits_TE = s->values.logits_TE;
  kedge_value gradients[2] = {0};
  if (is_choice(s))
    s->loss_1 = kedge_sum(g, kedge_mul(g, s->values.weights_TK, s->cotangent_TK));
  else
    s->loss_1 = kedge_scale(g, s->values.terms[0], s->c->factor);
  kedge_gradient(g, s->loss_1, (kedge_value[]){s->w_ED, logits_TE}, 2, gradients, NULL, NULL);
  s->dw_ED = gradients[0];
  s->dz_TE = gradients[1];
  const struct {
    kedge_value value;
    const char *name;
  } outputs[] = {{s->values.choice_TE, "choice"},
                 {s->values.ids_TK, "ids"},
                 {s->values.weights_TK, "gates"},
                 {s->values.counts_GE, "counts"},
                 {s->loss_1, "loss"},
                 {s->dz_TE, "dz"},
                 {s->dw_ED, "dw"}};
  for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++)
    if (outputs[i].value) kedge_output(g, outputs[i].value, outputs[i].name);
}

static kedge_status build(setup *s) {
  const kedge_vectors *v = s->v;
  const bool sigmoid = s->c->score_kind == KEDGE_SCORE_SIGMOID;
  if (!(s->graph = kedge_graph_new(s->all_double))) return KEDGE_ERR_MEMORY;
  s->x_TD = input(s, "x", KEDGE_F32, v->T, v->D);
  s->w_ED = input(s, "w", KEDGE_F32, v->E, v->D);
  s->segments_T = input(s, "segments", KEDGE_I32, v->T, 0);
  if (sigmoid) s->correction_E = input(s, "correction", KEDGE_F32, v->E, 0);
  if (is_choice(s)) s->cotangent_TK = input(s, "cotangent", KEDGE_F32, v->T, v->K);
  if (kedge_intervention_builds(&s->it)) make_feed(s);
  const kedge_router_site site = {
      .graph = s->graph,
      .experts = v->E,
      .groups = 1,
      .score_kind = s->c->score_kind,
      .choice = {.k = v->K},
      .gate = {s->c->score_kind, s->c->normalise, sigmoid ? v->alpha : 1, sigmoid ? 1e-20 : 0},
      .x_TD = s->x_TD,
      .weight_ED = s->w_ED,
      .segments_T = s->segments_T,
      .correction_E = s->correction_E,
      .interventions = &s->it,
      .feeds = &s->feed,
      .intervention_count = 1,
  };
  s->values = kedge_router_build(&site);
  differentiate(s);
  KEDGE_TRY(kedge_graph_status(s->graph));
  return kedge_exec_new(s->device, s->graph, NULL, &s->exec);
}

/* ---- In and out
 * --------------------------------------------------------------------------------------------------- */

static kedge_status write_reals(setup *s, kedge_value value, const double *numbers) {
  if (!value) return KEDGE_OK;
  const kedge_dtype dtype = kedge_value_dtype(s->graph, value);
  const uint64_t count = kedge_value_count(s->graph, value);
  if (dtype == KEDGE_F64) return kedge_exec_write(s->exec, value, numbers, count * sizeof *numbers);
  float *narrow = kedge_alloc(count, sizeof *narrow);
  if (!narrow) return KEDGE_ERR_MEMORY;
  for (uint64_t i = 0; i < count; i++) narrow[i] = (float)numbers[i];
  kedge_status status = kedge_exec_write(s->exec, value, narrow, count * sizeof *narrow);
  kedge_free(narrow);
  return status;
}

static kedge_status read_reals(setup *s, kedge_value value, double *numbers) {
  const uint64_t count = kedge_value_count(s->graph, value);
  if (kedge_value_dtype(s->graph, value) == KEDGE_F64)
    return kedge_exec_read(s->exec, value, numbers, count * sizeof *numbers);
  float *narrow = kedge_alloc(count, sizeof *narrow);
  if (!narrow) return KEDGE_ERR_MEMORY;
  kedge_status status = kedge_exec_read(s->exec, value, narrow, count * sizeof *narrow);
  for (uint64_t i = 0; status == KEDGE_OK && i < count; i++) numbers[i] = (double)narrow[i];
  kedge_free(narrow);
  return status;
}

/* The prior's table: b, pi (not below the file's floor where Logit-L2 reads it), or its best experts. */
static kedge_status write_prior(setup *s) {
  const kedge_vectors *v = s->v;
  const uint32_t E = v->E, K = v->K;
  if (s->c->id == KEDGE_ROUTER_rpb) return write_reals(s, s->feed.table, v->bias_SE);
  double *pi = kedge_alloc((uint64_t)v->S * E, sizeof *pi);
  float *row = kedge_alloc(E, sizeof *row);
  int32_t *ids = kedge_alloc((uint64_t)v->S * K, sizeof *ids);
  kedge_status status = pi && row && ids ? KEDGE_OK : KEDGE_ERR_MEMORY;
  for (uint32_t i = 0; status == KEDGE_OK && i < v->S; i++) {
    for (uint32_t e = 0; e < E; e++) {
      pi[i * E + e] = v->pi_SE[i * E + e];
      if (s->c->id == KEDGE_ROUTER_logit_l2) pi[i * E + e] = fmax(pi[i * E + e], v->log_floor);
      row[e] = (float)v->pi_SE[i * E + e];
    }
    kedge_prior_top(row, E, v->eps, v->clip, K, ids + (uint64_t)i * K);
  }
  if (status == KEDGE_OK)
    status = s->c->id == KEDGE_ROUTER_rpb_hard
                 ? kedge_exec_write(s->exec, s->feed.table, ids, (uint64_t)v->S * K * sizeof *ids)
                 : write_reals(s, s->feed.table, pi);
  kedge_free(pi);
  kedge_free(row);
  kedge_free(ids);
  return status;
}

/* Rows and weights of the tokens: those without a span are not counted by a loss. */
static kedge_status write_tokens(setup *s) {
  const kedge_vectors *v = s->v;
  uint32_t counted = 0;
  int32_t *index = kedge_alloc(v->T, sizeof *index);
  double *weights = kedge_alloc(v->T, sizeof *weights);
  kedge_status status = index && weights ? KEDGE_OK : KEDGE_ERR_MEMORY;
  for (uint32_t t = 0; t < v->T; t++) counted += v->span_T[t] >= 0;
  for (uint32_t t = 0; status == KEDGE_OK && t < v->T; t++) {
    index[t] = s->c->id == KEDGE_ROUTER_lbl && v->span_T[t] >= 0 ? 0 : v->span_T[t];
    weights[t] = v->span_T[t] >= 0 ? 1.0 / counted : 0;
  }
  if (s->c->id == KEDGE_ROUTER_router_l2 && status == KEDGE_OK) weights[0] = 1;
  if (status == KEDGE_OK && s->feed.index_T)
    status = kedge_exec_write(s->exec, s->feed.index_T, index, v->T * sizeof *index);
  if (status == KEDGE_OK) status = write_reals(s, s->feed.weights, weights);
  kedge_free(index);
  kedge_free(weights);
  return status;
}

/* The cotangent of the experts that the file says are chosen. */
static kedge_status write_cotangent(setup *s, const double *topk) {
  const kedge_vectors *v = s->v;
  if (!s->cotangent_TK) return KEDGE_OK;
  double *chosen = kedge_alloc((uint64_t)v->T * v->K, sizeof *chosen);
  if (!chosen) return KEDGE_ERR_MEMORY;
  for (uint64_t i = 0; i < (uint64_t)v->T * v->K; i++)
    chosen[i] = v->cotangent_TE[i / v->K * v->E + (uint64_t)topk[i]];
  kedge_status status = write_reals(s, s->cotangent_TK, chosen);
  kedge_free(chosen);
  return status;
}

static kedge_status write_inputs(setup *s, const double *topk) {
  const kedge_vectors *v = s->v;
  int32_t *segments = kedge_alloc(v->T, sizeof *segments); /* all are routed */
  if (!segments) return KEDGE_ERR_MEMORY;
  kedge_status status = kedge_exec_write(s->exec, s->segments_T, segments, v->T * sizeof *segments);
  kedge_free(segments);
  KEDGE_TRY(status);
  KEDGE_TRY(write_reals(s, s->x_TD, v->x_TD));
  KEDGE_TRY(write_reals(s, s->w_ED, v->w_ED));
  KEDGE_TRY(write_reals(s, s->correction_E, v->correction_E));
  KEDGE_TRY(write_cotangent(s, topk));
  if (!kedge_intervention_builds(&s->it)) return KEDGE_OK;
  KEDGE_TRY(write_tokens(s));
  if (kedge_router_needs_prior(s->c->id)) return write_prior(s);
  return s->c->id == KEDGE_ROUTER_router_l2 ? write_reals(s, s->feed.table, v->base_w_ED) : KEDGE_OK;
}

static void destroy(setup *s) {
  kedge_exec_free(s->exec);
  kedge_graph_free(s->graph);
}

/* ---- Comparing
 * ---------------------------------------------------------------------------------------------------- */

static void compare(kedge_vectors_report *r, kedge_vector_result *to, const double *got, const double *want,
                    uint64_t count, double scale, double limit) {
  *to = (kedge_vector_result){.compared = true, .limit = limit, .expected = want[0], .got = got[0]};
  for (uint64_t i = 0; i < count; i++) scale = fmax(scale, fabs(want[i]));
  for (uint64_t i = 0; i < count; i++) {
    double error = fabs(got[i] - want[i]) / (scale > 0 ? scale : 1);
    if (!isfinite(error)) error = INFINITY;
    if (error <= to->error) continue;
    to->error = error, to->at = i, to->expected = want[i], to->got = got[i];
  }
  r->compared++;
  r->failed += !(to->error <= limit);
}

/* What errors are relative to at least: a loss is of the order of 1, its gradients of 1/T; they may be 0 but
 * for rounding. */
static double least_scale(const kedge_vectors *v, kedge_vector_quantity q) {
  if (q == KEDGE_VECTOR_LOSS) return 1;
  return q == KEDGE_VECTOR_DZ || q == KEDGE_VECTOR_DW ? 1.0 / v->T : 0;
}

static kedge_status read_ids(setup *s, double *numbers) {
  const uint64_t count = (uint64_t)s->v->T * s->v->K;
  int32_t *ids = kedge_alloc(count, sizeof *ids);
  if (!ids) return KEDGE_ERR_MEMORY;
  kedge_status status = kedge_exec_read(s->exec, s->values.ids_TK, ids, count * sizeof *ids);
  for (uint64_t i = 0; status == KEDGE_OK && i < count; i++) numbers[i] = ids[i];
  kedge_free(ids);
  return status;
}

/* Gate weights by expert [T,E]. */
static kedge_status read_gates(setup *s, double *gates_TE) {
  const kedge_vectors *v = s->v;
  const uint64_t count = (uint64_t)v->T * v->K;
  double *ids = kedge_alloc(count, sizeof *ids), *gates = kedge_alloc(count, sizeof *gates);
  kedge_status status = ids && gates ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) status = read_ids(s, ids);
  if (status == KEDGE_OK) status = read_reals(s, s->values.weights_TK, gates);
  for (uint64_t i = 0; status == KEDGE_OK && i < count; i++)
    if (ids[i] >= 0) gates_TE[i / v->K * v->E + (uint64_t)ids[i]] = gates[i];
  kedge_free(ids);
  kedge_free(gates);
  return status;
}

/* Counts as shares of their sum. */
static kedge_status read_shares(setup *s, double *f) {
  double sum = 0;
  KEDGE_TRY(read_reals(s, s->values.counts_GE, f));
  for (uint32_t e = 0; e < s->v->E; e++) sum += f[e];
  for (uint32_t e = 0; e < s->v->E; e++) f[e] /= sum > 0 ? sum : 1;
  return KEDGE_OK;
}

/* P_e is the loss at f = e's unit vector, divided by E; counts from outside are the way to give it that. */
static kedge_status read_means(setup *s, double *p) {
  const uint32_t E = s->v->E;
  setup global = {.v = s->v, .c = s->c, .it = s->it, .device = s->device, .all_double = s->all_double};
  global.it.scope = KEDGE_BALANCE_GLOBAL;
  kedge_status status = build(&global);
  if (status == KEDGE_OK) status = write_inputs(&global, NULL);
  double *unit = kedge_alloc(E, sizeof *unit);
  if (!unit) status = KEDGE_ERR_MEMORY;
  for (uint32_t e = 0; e < E && status == KEDGE_OK; e++) {
    unit[e] = 1;
    status = write_reals(&global, global.feed.table, unit);
    if (status == KEDGE_OK) status = kedge_exec_run(global.exec, 0, UINT32_MAX);
    if (status == KEDGE_OK) status = read_reals(&global, global.loss_1, &p[e]);
    p[e] /= E;
    unit[e] = 0;
  }
  kedge_free(unit);
  destroy(&global);
  return status;
}

static kedge_status read_quantity(setup *s, kedge_vector_quantity q, double *numbers) {
  switch (q) {
  case KEDGE_VECTOR_CHOICE:
    return read_reals(s, s->values.choice_TE, numbers);
  case KEDGE_VECTOR_TOPK:
    return read_ids(s, numbers);
  case KEDGE_VECTOR_GATES:
    return read_gates(s, numbers);
  case KEDGE_VECTOR_LOSS:
    return read_reals(s, s->loss_1, numbers);
  case KEDGE_VECTOR_F:
    return read_shares(s, numbers);
  case KEDGE_VECTOR_P:
    return read_means(s, numbers);
  case KEDGE_VECTOR_DZ:
    return read_reals(s, s->dz_TE, numbers);
  case KEDGE_VECTOR_DW:
    return read_reals(s, s->dw_ED, numbers);
  case KEDGE_VECTOR_QUANTITIES:
    break;
  }
  return KEDGE_OK;
}

static kedge_status check_case(const kedge_vectors *v, uint32_t at, kedge_device *device, bool all_double,
                               kedge_vectors_report *report) {
  const kedge_vector_case *c = &kedge_vector_cases[at];
  const double limit = all_double ? KEDGE_VECTORS_F64 : KEDGE_VECTORS_F32;
  setup s = {.v = v,
             .c = c,
             .it = {.id = c->id, .beta = v->beta, .coef = 1, .eps = v->eps, .clip = v->clip},
             .device = device,
             .all_double = all_double};
  kedge_status status;
  double *got = NULL;
  KEDGE_GOTO(build(&s), status, done);
  KEDGE_GOTO(write_inputs(&s, v->expected[at][KEDGE_VECTOR_TOPK]), status, done);
  KEDGE_GOTO(kedge_exec_run(s.exec, 0, UINT32_MAX), status, done);
  for (uint32_t q = 0; q < KEDGE_VECTOR_QUANTITIES; q++) {
    const double *want = v->expected[at][q];
    const uint64_t count = kedge_vectors_count(v, (kedge_vector_quantity)q);
    if (!want) continue;
    kedge_free(got);
    KEDGE_GOTO((got = kedge_alloc(count, sizeof *got)) ? KEDGE_OK : KEDGE_ERR_MEMORY, status, done);
    KEDGE_GOTO(read_quantity(&s, (kedge_vector_quantity)q, got), status, done);
    compare(report, &report->results[at][q], got, want, count, least_scale(v, (kedge_vector_quantity)q),
            q == KEDGE_VECTOR_TOPK ? 0 : limit);
  }
done:
  kedge_free(got);
  destroy(&s);
  return status;
}

/* b of pi, which is made in f32 whatever the run, and the base's logits X W0^T. */
static kedge_status check_inputs(const kedge_vectors *v, bool all_double, kedge_vectors_report *r) {
  const uint32_t E = v->E, D = v->D;
  const uint64_t rows = v->S > v->T ? v->S : v->T;
  double *got = kedge_alloc(rows * E, sizeof *got);
  float *pi = kedge_alloc(E, sizeof *pi), *bias = kedge_alloc(E, sizeof *bias);
  kedge_status status = got && pi && bias ? KEDGE_OK : KEDGE_ERR_MEMORY;
  for (uint64_t s = 0; status == KEDGE_OK && s < v->S; s++) {
    for (uint32_t e = 0; e < E; e++) pi[e] = (float)v->pi_SE[s * E + e];
    kedge_prior_bias(pi, E, v->eps, v->clip, bias);
    for (uint32_t e = 0; e < E; e++) got[s * E + e] = (double)bias[e];
  }
  if (status == KEDGE_OK) compare(r, &r->bias, got, v->bias_SE, (uint64_t)v->S * E, 0, KEDGE_VECTORS_F32);
  for (uint64_t i = 0; status == KEDGE_OK && v->base_logits_TE && i < (uint64_t)v->T * E; i++) {
    got[i] = 0;
    for (uint64_t d = 0; d < D; d++) got[i] += v->x_TD[i / E * D + d] * v->base_w_ED[i % E * D + d];
  }
  if (status == KEDGE_OK && v->base_logits_TE)
    compare(r, &r->base_logits, got, v->base_logits_TE, (uint64_t)v->T * E, 0,
            all_double ? KEDGE_VECTORS_F64 : KEDGE_VECTORS_F32);
  kedge_free(got);
  kedge_free(pi);
  kedge_free(bias);
  return status;
}

kedge_status kedge_vectors_check(const kedge_vectors *v, kedge_device *device, bool all_double,
                                 kedge_vectors_report *report) {
  *report = (kedge_vectors_report){0};
  KEDGE_TRY(check_inputs(v, all_double, report));
  for (uint32_t c = 0; c < KEDGE_VECTOR_CASES; c++)
    if (v->present[c]) KEDGE_TRY(check_case(v, c, device, all_double, report));
  return KEDGE_OK;
}

/* ---- Telling
 * ------------------------------------------------------------------------------------------------------ */

static char *describe(const char *where, const char *name, const kedge_vector_result *r, uint64_t cols) {
  char entry[48] = "";
  if (cols > 1)
    snprintf(entry, sizeof entry, "[%llu][%llu]", (unsigned long long)(r->at / cols),
             (unsigned long long)(r->at % cols));
  else if (cols == 1)
    snprintf(entry, sizeof entry, "[%llu]", (unsigned long long)r->at);
  return kedge_format("%s, %s%s: expected %.12g, got %.12g", where, name, entry, r->expected, r->got);
}

static bool wrong(const kedge_vector_result *r) {
  return r->compared && !(r->error <= r->limit);
}

char *kedge_vectors_describe(const kedge_vectors *v, const kedge_vectors_report *report) {
  if (wrong(&report->bias)) return describe("inputs", "bias", &report->bias, v->E);
  if (wrong(&report->base_logits)) return describe("inputs", "base_logits", &report->base_logits, v->E);
  for (uint32_t c = 0; c < KEDGE_VECTOR_CASES; c++)
    for (uint32_t q = 0; q < KEDGE_VECTOR_QUANTITIES; q++) {
      const kedge_vector_result *r = &report->results[c][q];
      if (!wrong(r)) continue;
      const uint64_t cols = q == KEDGE_VECTOR_LOSS                       ? 0
                            : q == KEDGE_VECTOR_F || q == KEDGE_VECTOR_P ? 1
                            : q == KEDGE_VECTOR_TOPK                     ? v->K
                            : q == KEDGE_VECTOR_DW                       ? v->D
                                                                         : v->E;
      char *where = kedge_format("case %s", kedge_vector_cases[c].name);
      char *text = where ? describe(where, kedge_vector_cases[c].names[q], r, cols) : NULL;
      kedge_free(where);
      return text;
    }
  return NULL;
}
