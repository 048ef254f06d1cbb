/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Interventions on the router through whole decoders: gradients of a few problems with every setting (all of
 * them are test_gradcheck.c's), what must change nothing, what the weights are, and the bias. Identities of
 * one router are in test_router_facts.c. */
#include "models/gradcheck/gradcheck.h"
#include "models/gradcheck/gradcheck_rig.h"
#include "models/prior/prior.h"
#include "tests/support/files.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { T = KEDGE_RIG_TOKENS, S = KEDGE_RIG_ROWS, L = KEDGE_RIG_LAYERS };
enum { E = 8, K = 3 }; /* of the problem qwen3 */
enum { LOGITS = T * 37, SEED = 3 };

static void ok(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

static void near(const char *what, double got, double want, double limit) {
  if (!(fabs(got - want) <= limit)) fail_msg("%s: got %.17g, want %.17g", what, got, want);
}

/* ---- Gradients
 * ---------------------------------------------------------------------------------------------------- */

static void check_gradients(const char *problem, const kedge_gradcheck_variant *v, const char *backend) {
  kedge_gradcheck r;
  const kedge_gradcheck_options options = {.backend = backend, .seed = 1, .entries = 3};
  ok(kedge_gradcheck_run(kedge_gradcheck_find_problem(problem), v, &options, &r));
  if (!r.passed) fail_msg("%s, %s on %s: gradients are off by %g", problem, v->name, backend, r.error);
  if (!r.sensitive)
    fail_msg("%s, %s on %s: planted faults pass (%g, %g, %g)", problem, v->name, backend, r.planted,
             r.own_scaled, r.own_dropped);
  const kedge_gradcheck_row *router = &r.rows[KEDGE_ROLE_ROUTER];
  assert_true(router->kind && router->nonzero * 2 > router->checked);
  for (int i = 0; i < KEDGE_ROLE_COUNT; i++)
    if (r.rows[i].kind) assert_true(r.rows[i].checked > 0 && r.rows[i].nonzero > 0);
}

static void test_gradients(void **state) {
  static const char *const problems[] = {"qwen3", "ds_v3"};
  (void)state;
  for (int p = 0; p < 2; p++)
    for (uint32_t v = 0; v < kedge_gradcheck_variant_count; v++) {
      check_gradients(problems[p], &kedge_gradcheck_variants[v], "ref");
      check_gradients(problems[p], &kedge_gradcheck_variants[v], "cpu");
    }
}

/* A row of routers.def with the settings of its gradient check. */
static kedge_intervention usual(kedge_router_id id) {
  const kedge_gradcheck_variant *v = kedge_gradcheck_find_variant(kedge_router_name(id));
  if (!v) fail_msg("%s has no gradient check", kedge_router_name(id));
  kedge_intervention it = v->list[0];
  it.layer_mean |= kedge_router_layer_mean(id);
  return it;
}

static void make(kedge_rig_problem *p, uint64_t seed) {
  ok(kedge__rig_problem_init(p, &kedge_gradcheck_problems[0], seed));
}

/* ---- Two runs
 * ----------------------------------------------------------------------------------------------------- */

/* What one run of the rig gave. */
typedef struct outcome {
  double loss, logits[LOGITS], router[L * T * KEDGE_RIG_EXPERTS], gates[KEDGE_RIG_IDS];
  double *gradients; /* all parameters, one after another */
  uint64_t gradient_count;
  int32_t ids[KEDGE_RIG_IDS];
} outcome;

/* Of layer l and token t. */
static double *router_of(outcome *o, const kedge_rig_problem *p, int l, int t) {
  return o->router + (uint32_t)(l * T + t) * p->experts;
}
static double *gates_of(outcome *o, const kedge_rig_problem *p, int l, int t) {
  return o->gates + (uint32_t)(l * T + t) * p->topk;
}
static int32_t *ids_of(outcome *o, const kedge_rig_problem *p, int l, int t) {
  return o->ids + (uint32_t)(l * T + t) * p->topk;
}
static double *bias_of(const kedge_rig_problem *p, int l, int s) {
  return p->priors[0].bias_LSE + (uint32_t)(l * S + s) * p->experts;
}
static float *pi_of(const kedge_rig_problem *p, int l, int s) {
  return p->priors[0].pi_LSE + (uint32_t)(l * S + s) * p->experts;
}

static outcome *run(const kedge_rig_problem *p, const char *backend, bool all_double,
                    const kedge_intervention *it) {
  kedge_device *device;
  kedge_rig rig;
  outcome *o = calloc(1, sizeof *o);
  o->gradients = calloc(p->params.total, sizeof *o->gradients);
  ok(kedge_device_open(backend, NULL, &device));
  ok(kedge__rig_open(&rig, p, device, all_double, it, it ? 1 : 0));
  ok(kedge__rig_read(&rig, rig.decoder.loss_1, &o->loss, 1));
  ok(kedge__rig_read(&rig, rig.decoder.logits_TV, o->logits, LOGITS));
  for (int l = 0; l < L; l++) {
    ok(kedge__rig_read(&rig, rig.decoder.router_TE[l], router_of(o, p, l, 0), T * p->experts));
    ok(kedge__rig_read(&rig, rig.decoder.gates_TK[l], gates_of(o, p, l, 0), T * p->topk));
  }
  ok(kedge__rig_ids(&rig, o->ids));
  for (uint32_t i = 0; i < p->params.count; i++) {
    uint64_t count = kedge_param_count(&p->params.items[i]);
    if (p->params.items[i].fixed) continue;
    ok(kedge__rig_read(&rig, rig.gradients[i], o->gradients + o->gradient_count, count));
    o->gradient_count += count;
  }
  assert_int_equal(o->gradient_count, p->params.total);
  kedge__rig_close(&rig);
  kedge_device_close(device);
  return o;
}

static void drop(outcome *o) {
  free(o->gradients);
  free(o);
}

static void expect_same_bits(const char *what, const outcome *a, const outcome *b) {
  if (memcmp(&a->loss, &b->loss, sizeof a->loss))
    fail_msg("%s: loss %.17g and %.17g", what, a->loss, b->loss);
  if (memcmp(a->logits, b->logits, sizeof a->logits)) fail_msg("%s: logits differ", what);
  if (memcmp(a->ids, b->ids, sizeof a->ids)) fail_msg("%s: experts differ", what);
  if (memcmp(a->gradients, b->gradients, a->gradient_count * sizeof *a->gradients))
    fail_msg("%s: gradients differ", what);
}

static double distance(const double *a, const double *b, uint64_t count) {
  double most = 0, scale = 0;
  for (uint64_t i = 0; i < count; i++) {
    most = fmax(most, fabs(a[i] - b[i]));
    scale = fmax(scale, fabs(b[i]));
  }
  return most / scale;
}

static const struct {
  const char *backend;
  bool all_double;
} ways[] = {{"ref", true}, {"ref", false}, {"cpu", false}};

/* True for losses: they do not change what the model computes, only its gradient. */
static bool adds(const kedge_intervention *it) {
  return kedge_router_get_kind(it->id) == KEDGE_ROUTER_LOSS;
}

/* What one backend computes of one problem with nothing on, or with nothing of effect. */
static void check_no_effect(const kedge_rig_problem *p, const kedge_rig_problem *spanless,
                            const char *backend, bool all_double) {
  outcome *plain = run(p, backend, all_double, NULL);
  for (int i = 0; i < KEDGE_ROUTER_COUNT; i++) {
    kedge_intervention it = usual((kedge_router_id)i);
    if (!kedge_intervention_builds(&it)) { /* none, freeze, loss_free */
      outcome *named = run(p, backend, all_double, &it);
      expect_same_bits(kedge_router_name(it.id), named, plain);
      drop(named);
      continue;
    }
    outcome *on = run(p, backend, all_double, &it);
    assert_true(on->loss != plain->loss);
    assert_true(!adds(&it) == !!memcmp(on->ids, plain->ids, sizeof on->ids));
    drop(on);
    if (kedge_router_needs_prior(it.id) && !adds(&it)) {
      outcome *off = run(spanless, backend, all_double, &it);
      expect_same_bits("no spans", off, plain);
      drop(off);
    }
    it.beta = it.coef = 0;
    if (!adds(&it) && it.id != KEDGE_ROUTER_rpb) continue;
    outcome *zero = run(p, backend, all_double, &it);
    expect_same_bits("strength 0", zero, plain);
    drop(zero);
  }
  drop(plain);
}

/* Strength 0 is plain training, bit for bit, and so are tokens without a span, for every family. */
static void test_no_effect(void **state) {
  (void)state;
  for (uint32_t i = 0; i < kedge_gradcheck_problem_count; i++) {
    kedge_rig_problem p, spanless;
    ok(kedge__rig_problem_init(&p, &kedge_gradcheck_problems[i], SEED));
    ok(kedge__rig_problem_init(&spanless, &kedge_gradcheck_problems[i], SEED));
    for (int t = 0; t < T; t++) spanless.spans[t] = -1;
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++)
      check_no_effect(&p, &spanless, ways[w].backend, ways[w].all_double);
    kedge__rig_problem_destroy(&p);
    kedge__rig_problem_destroy(&spanless);
  }
}

/* A token without a span routes as ever among others that have one; layers that are not named are left alone.
 */
static void test_reach(void **state) {
  (void)state;
  kedge_rig_problem p;
  make(&p, SEED);
  for (int t = 0; t < T; t += 2) p.spans[t] = -1;
  kedge_intervention it = usual(KEDGE_ROUTER_rpb);
  outcome *plain = run(&p, "ref", true, NULL), *on = run(&p, "ref", true, &it);
  const size_t ids = T * K * sizeof *on->ids, gates = T * K * sizeof *on->gates;
  bool differs = false;
  for (int t = 0; t < T; t++) {
    bool same = !memcmp(ids_of(on, &p, 0, t), ids_of(plain, &p, 0, t), K * sizeof *on->ids) &&
                !memcmp(gates_of(on, &p, 0, t), gates_of(plain, &p, 0, t), K * sizeof *on->gates);
    if (p.spans[t] < 0) assert_true(same);
    differs |= !same;
    for (int k = 0; p.segments[t] < 0 && k < K; k++) assert_int_equal(ids_of(on, &p, 0, t)[k], -1);
  }
  assert_true(differs);
  drop(on);
  it.layers = (const uint32_t[]){1}, it.layer_count = 1;
  on = run(&p, "ref", true, &it);
  assert_memory_equal(on->ids, plain->ids, ids);
  assert_memory_equal(on->gates, plain->gates, gates);
  assert_true(memcmp(ids_of(on, &p, 1, 0), ids_of(plain, &p, 1, 0), ids));
  drop(on), drop(plain);
  kedge__rig_problem_destroy(&p);
}

/* With softmax scores a constant on all logits of a row is invisible. */
static void test_centring(void **state) {
  (void)state;
  kedge_rig_problem p;
  make(&p, SEED);
  const kedge_intervention it = usual(KEDGE_ROUTER_rpb);
  outcome *before = run(&p, "ref", true, &it);
  for (int l = 0; l < L; l++)
    for (int s = 0; s < S; s++)
      for (int e = 0; e < E; e++) bias_of(&p, l, s)[e] += 0.7 * (s + 1) - l;
  outcome *after = run(&p, "ref", true, &it);
  assert_memory_equal(after->ids, before->ids, sizeof after->ids);
  near("loss", after->loss, before->loss, 1e-13);
  near("logits", distance(after->logits, before->logits, LOGITS), 0, 1e-12);
  near("gradients", distance(after->gradients, before->gradients, before->gradient_count), 0, 1e-12);
  drop(before), drop(after);
  kedge__rig_problem_destroy(&p);
}

/* ---- What the weights are
 * ----------------------------------------------------------------------------------------- */

/* Softmax of z [E] over the chosen ids. */
static void softmax_over(const double *z, const int32_t *ids, double *weights) {
  double most = -INFINITY, sum = 0;
  for (int k = 0; k < K; k++) most = fmax(most, z[ids[k]]);
  for (int k = 0; k < K; k++) sum += weights[k] = exp(z[ids[k]] - most);
  for (int k = 0; k < K; k++) weights[k] /= sum;
}

static void check_gates(outcome *o, const kedge_rig_problem *p, double beta, bool gate_biased) {
  for (int t = 0; t < T; t++) {
    if (p->segments[t] < 0) continue;
    double z[E], biased[E], weights[K];
    for (int e = 0; e < E; e++) {
      z[e] = router_of(o, p, 0, t)[e];
      biased[e] = z[e] + (p->spans[t] < 0 ? 0 : beta * bias_of(p, 0, p->spans[t])[e]);
    }
    for (int k = 0; k < K; k++) { /* best first, by the biased logits */
      int better = 0;
      for (int e = 0; e < E; e++) better += biased[e] > biased[ids_of(o, p, 0, t)[k]];
      assert_int_equal(better, k);
    }
    softmax_over(gate_biased ? biased : z, ids_of(o, p, 0, t), weights);
    for (int k = 0; k < K; k++) near("gate weight", gates_of(o, p, 0, t)[k], weights[k], 1e-13);
  }
}

/* Choice from z' = z + beta b; weights from z', or from z with gate_raw. */
static void test_gate_source(void **state) {
  (void)state;
  kedge_rig_problem p;
  make(&p, SEED);
  kedge_intervention it = usual(KEDGE_ROUTER_rpb);
  outcome *biased = run(&p, "ref", true, &it);
  check_gates(biased, &p, it.beta, true);
  it.gate_raw = true;
  outcome *raw = run(&p, "ref", true, &it);
  check_gates(raw, &p, it.beta, false);
  assert_memory_equal(raw->ids, biased->ids, T * K * sizeof *raw->ids);
  assert_true(memcmp(raw->gates, biased->gates, T * K * sizeof *raw->gates));
  drop(biased), drop(raw);
  kedge__rig_problem_destroy(&p);
}

/* A span of one token whose prior is its own distribution, no clip at work: p' is proportional to p^(1+beta).
 */
static void test_one_token_span(void **state) {
  (void)state;
  enum { TOKEN = 4 };
  kedge_rig_problem p;
  make(&p, SEED);
  outcome *plain = run(&p, "ref", true, NULL);
  double probability[E], sum = 0;
  for (int e = 0; e < E; e++) sum += probability[e] = exp(router_of(plain, &p, 0, TOKEN)[e]);
  for (int e = 0; e < E; e++) pi_of(&p, 0, 0)[e] = (float)(probability[e] / sum);
  kedge__rig_problem_bias(&p, 1e-6, 1e6);
  for (int t = 0; t < T; t++) p.spans[t] = t == TOKEN ? 0 : -1;
  kedge_intervention it = usual(KEDGE_ROUTER_rpb);
  outcome *on = run(&p, "ref", true, &it);
  assert_memory_equal(on->ids, plain->ids, T * K * sizeof *on->ids); /* the order of p is kept */
  double want[K], total = 0;
  for (int k = 0; k < K; k++)
    total += want[k] = pow(probability[ids_of(on, &p, 0, TOKEN)[k]] / sum, 1 + it.beta);
  for (int k = 0; k < K; k++) near("p^(1+beta)", gates_of(on, &p, 0, TOKEN)[k], want[k] / total, 1e-6);
  near("sharper", gates_of(on, &p, 0, TOKEN)[0] > gates_of(plain, &p, 0, TOKEN)[0], 1, 0);
  drop(plain), drop(on);
  kedge__rig_problem_destroy(&p);
}

/* q becomes p with expert e called to[e]. */
static void rename_experts(const kedge_rig_problem *p, kedge_rig_problem *q, const uint32_t *to) {
  const uint32_t experts = p->experts, rows = L * S, tokens = L * T;
  for (uint32_t i = 0; i < p->params.count; i++) {
    const kedge_param *param = &p->params.items[i];
    const bool stack = param->role >= KEDGE_ROLE_EXPERT_GATE && param->role <= KEDGE_ROLE_EXPERT_DOWN;
    if (!kedge_param_is_router(param) && !stack && param->role != KEDGE_ROLE_ROUTER_CORRECTION) continue;
    const uint64_t each = kedge_param_count(param) / experts;
    for (uint32_t e = 0; e < experts; e++)
      memcpy(q->weights[i] + to[e] * each, p->weights[i] + e * each, each * sizeof **p->weights);
  }
  for (uint32_t e = 0; e < experts; e++) {
    for (uint32_t r = 0; r < rows; r++)
      q->priors[0].pi_LSE[r * experts + to[e]] = p->priors[0].pi_LSE[r * experts + e];
    for (uint32_t t = 0; t < tokens; t++)
      q->base_logits_LTE[t * experts + to[e]] = p->base_logits_LTE[t * experts + e];
    for (uint32_t l = 0; l < L; l++) q->counts_LE[l * experts + to[e]] = p->counts_LE[l * experts + e];
  }
  for (uint32_t i = 0; i < tokens * p->topk; i++)
    q->base_ids_LTK[i] = p->base_ids_LTK[i] < 0 ? -1 : (int32_t)to[p->base_ids_LTK[i]];
  kedge__rig_problem_bias(q, 0.05, 5.0);
}

/* Renaming the experts of router, correction, stacks and prior together changes no output. */
static void check_permutation(const kedge_gradcheck_problem *source) {
  uint32_t to[KEDGE_RIG_EXPERTS];
  kedge_rig_problem p, q;
  ok(kedge__rig_problem_init(&p, source, SEED));
  ok(kedge__rig_problem_init(&q, source, SEED));
  const uint32_t groups = p.params.options.groups > 1 ? p.params.options.groups : 1,
                 each = p.experts / groups;
  /* Groups change places whole, and experts inside each. */
  for (uint32_t e = 0; e < p.experts; e++)
    to[e] = (e / each + 1) % groups * each + (each - 1 - e % each + e / each) % each;
  rename_experts(&p, &q, to);
  for (int i = 0; i < KEDGE_ROUTER_COUNT; i++) {
    const kedge_intervention it = usual((kedge_router_id)i);
    outcome *a = run(&p, "ref", true, &it), *b = run(&q, "ref", true, &it);
    for (uint32_t t = 0; t < L * T * p.topk; t++)
      assert_int_equal(b->ids[t], a->ids[t] < 0 ? -1 : (int32_t)to[a->ids[t]]);
    near("logits", distance(b->logits, a->logits, LOGITS), 0, 1e-6);
    near("loss", b->loss, a->loss, 1e-7);
    drop(a), drop(b);
  }
  kedge__rig_problem_destroy(&p);
  kedge__rig_problem_destroy(&q);
}

static void test_permutation(void **state) {
  (void)state;
  for (uint32_t i = 0; i < kedge_gradcheck_problem_count; i++)
    check_permutation(&kedge_gradcheck_problems[i]);
}

/* ---- The bias
 * ----------------------------------------------------------------------------------------------------- */

/* The worked example of the paper's figure 2: natural logarithm, no clip at work, one decimal. */
static void test_figure(void **state) {
  static const float pi[4][8] = {{.12f, .03f, .08f, .25f, .04f, .10f, .20f, .18f},
                                 {.05f, .11f, .02f, .07f, .32f, .16f, .09f, .18f},
                                 {.09f, .02f, .14f, .10f, .05f, .28f, .12f, .20f},
                                 {.07f, .08f, .03f, .15f, .09f, .11f, .18f, .29f}};
  static const double want[4][8] = {{.2, -1.2, -.2, .9, -.9, 0, .7, .6},
                                    {-.6, .2, -1.6, -.3, 1.2, .5, 0, .6},
                                    {-.1, -1.6, .4, 0, -.7, 1.1, .2, .7},
                                    {-.4, -.3, -1.2, .4, -.1, .1, .6, 1.0}};
  (void)state;
  for (int row = 0; row < 4; row++) {
    float bias[8];
    kedge_prior_bias(pi[row], 8, 0.05, 5.0, bias);
    for (int e = 0; e < 8; e++)
      if (!(fabs(round(10 * (double)bias[e]) / 10 - want[row][e]) < 1e-9))
        fail_msg("figure 2, row %d, expert %d: got %g, want %g", row, e, (double)bias[e], want[row][e]);
  }
}

/* Centred; bounded by the clips; 0 where nothing is known. */
static void test_bias_facts(void **state) {
  (void)state;
  kedge_rig_problem p;
  bool low = false, high = false;
  for (uint64_t seed = 1; seed <= 5; seed++) {
    make(&p, seed);
    for (int i = 0; i < L * S; i++) {
      const double *bias = bias_of(&p, i / S, i % S);
      const float *pi = pi_of(&p, i / S, i % S);
      double sum = 0, least = INFINITY, most = -INFINITY;
      for (int e = 0; e < E; e++) {
        sum += bias[e], least = fmin(least, bias[e]), most = fmax(most, bias[e]);
        low |= pi[e]<0.05f / E, high |= pi[e]> 5.0f / E;
      }
      near("sum of b", sum, 0, 2e-6);
      assert_true(most - least <= log(100) + 1e-6);
    }
    kedge__rig_problem_destroy(&p);
  }
  assert_true(low && high); /* both clips were at work */
  float one = 1, bias[4] = {1, 1, 1, 1};
  kedge_prior_bias(&one, 1, 0.05, 5.0, bias);
  assert_true(bias[0] == 0);
  kedge_prior_bias((const float[]){.25f, .25f, .25f, .25f}, 4, 0.05, 5.0, bias);
  for (int e = 0; e < 4; e++) assert_true(bias[e] == 0);
}

static void test_golden_bias(void **state) {
  (void)state;
  const char *path = test_shared("golden/router_gradients.json");
  json_error_t error;
  if (!path) skip();
  json_t *golden = json_load_file(path, 0, &error);
  if (!golden) fail_msg("%s: %s", path, error.text);
  const json_t *pi = json_object_get(golden, "pi"), *want = json_object_get(golden, "bias");
  double eps = json_number_value(json_object_get(golden, "eps"));
  double clip = json_number_value(json_object_get(golden, "C"));
  assert_true(json_array_size(pi) == 2 && json_array_size(want) == 2);
  for (size_t s = 0; s < 2; s++) {
    float row[8], bias[8];
    assert_int_equal(json_array_size(json_array_get(pi, s)), 8);
    for (size_t e = 0; e < 8; e++)
      row[e] = (float)json_number_value(json_array_get(json_array_get(pi, s), e));
    kedge_prior_bias(row, 8, eps, clip, bias);
    for (size_t e = 0; e < 8; e++)
      near("bias", (double)bias[e], json_number_value(json_array_get(json_array_get(want, s), e)), 1e-6);
  }
  json_decref(golden);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_gradients),   cmocka_unit_test(test_no_effect),
      cmocka_unit_test(test_reach),       cmocka_unit_test(test_centring),
      cmocka_unit_test(test_gate_source), cmocka_unit_test(test_one_token_span),
      cmocka_unit_test(test_permutation), cmocka_unit_test(test_figure),
      cmocka_unit_test(test_bias_facts),  cmocka_unit_test(test_golden_bias),
  };
  return cmocka_run_group_tests_name("interventions", tests, NULL, NULL);
}
