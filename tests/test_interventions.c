/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Interventions on the router: every row of routers.def through a whole decoder (gradients in double against
 * differences, in f32 on cpu against double), the identities of the method, and golden vectors of the bias.
 */
#include "models/routing/gradcheck.h"
#include "models/routing/gradcheck_rig.h"
#include "models/routing/prior.h"
#include "tests/support/files.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { T = KEDGE_RIG_TOKENS, S = KEDGE_RIG_ROWS, L = KEDGE_RIG_LAYERS, E = KEDGE_RIG_EXPERTS };
enum { K = KEDGE_RIG_TOPK, LOGITS = T * 37, SEED = 3 };

static void ok(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

static void near(const char *what, double got, double want, double limit) {
  if (!(fabs(got - want) <= limit)) fail_msg("%s: got %.17g, want %.17g", what, got, want);
}

/* ---- Gradients
 * ---------------------------------------------------------------------------------------------------- */

static void check_gradients(const kedge_intervention *it, const char *backend) {
  kedge_gradcheck r;
  const char *name = kedge_router_name(it->id);
  ok(kedge_gradcheck_run(it, backend, 1, &r));
  print_message("%s on %s: %llu entries, largest error %.3g, gap %.3g\n", name, backend,
                (unsigned long long)r.checked, r.error, r.gap);
  if (!r.passed) fail_msg("%s on %s: gradients are off by %g", name, backend, r.error);
  if (!r.sensitive) fail_msg("%s on %s: gradients 1 %% too large pass (%g)", name, backend, r.planted);
  const kedge_gradcheck_row *router = &r.rows[KEDGE_ROLE_ROUTER];
  assert_true(router->kind && router->checked == (uint64_t)L * E * 10 &&
              router->nonzero * 2 > router->checked);
  for (int i = 0; i < KEDGE_ROLE_COUNT; i++)
    if (r.rows[i].kind) assert_true(r.rows[i].checked > 0 && r.rows[i].nonzero > 0);
}

static void test_gradients(void **state) {
  static const char *const backends[] = {"ref", "cpu"};
  (void)state;
  for (int b = 0; b < 2; b++) {
    for (int i = 0; i < KEDGE_ROUTER_COUNT; i++) {
      const kedge_intervention it = kedge_gradcheck_intervention((kedge_router_id)i);
      check_gradients(&it, backends[b]);
    }
    kedge_intervention raw = kedge_gradcheck_intervention(KEDGE_ROUTER_rpb);
    raw.gate_raw = true;
    check_gradients(&raw, backends[b]);
    kedge_intervention one = kedge_gradcheck_intervention(KEDGE_ROUTER_rpb);
    one.layers = (const uint32_t[]){1}, one.layer_count = 1;
    check_gradients(&one, backends[b]);
  }
}

/* ---- Two runs
 * ----------------------------------------------------------------------------------------------------- */

/* What one run of the rig gave. */
typedef struct outcome {
  double loss, logits[LOGITS], router[L][T][E], gates[L][T][K];
  double *gradients; /* all parameters, one after another */
  uint64_t gradient_count;
  int32_t ids[L][T][K];
} outcome;

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
    ok(kedge__rig_read(&rig, rig.decoder.router_TE[l], o->router[l][0], T * E));
    ok(kedge__rig_read(&rig, rig.decoder.gates_TK[l], o->gates[l][0], T * K));
  }
  ok(kedge__rig_ids(&rig, o->ids));
  for (uint32_t i = 0; i < p->params.count; i++) {
    uint64_t count = kedge_param_count(&p->params.items[i]);
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

/* Strength 0 is plain training, bit for bit, and so are tokens without a span. */
static void test_no_effect(void **state) {
  (void)state;
  kedge_rig_problem p, spanless;
  ok(kedge__rig_problem_init(&p, SEED));
  ok(kedge__rig_problem_init(&spanless, SEED));
  for (int t = 0; t < T; t++) spanless.spans[t] = -1;
  const kedge_intervention none = kedge_gradcheck_intervention(KEDGE_ROUTER_none);
  for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
    outcome *plain = run(&p, ways[w].backend, ways[w].all_double, NULL);
    outcome *named = run(&p, ways[w].backend, ways[w].all_double, &none);
    expect_same_bits("none", named, plain);
    drop(named);
    for (int i = 0; i < KEDGE_ROUTER_COUNT; i++) {
      kedge_intervention it = kedge_gradcheck_intervention((kedge_router_id)i);
      if (!kedge_intervention_builds(&it)) continue;
      outcome *on = run(&p, ways[w].backend, ways[w].all_double, &it);
      assert_true(on->loss != plain->loss);
      assert_true(!adds(&it) == !!memcmp(on->ids, plain->ids, sizeof on->ids));
      drop(on);
      if (kedge_router_needs_prior(it.id) && !adds(&it)) {
        outcome *off = run(&spanless, ways[w].backend, ways[w].all_double, &it);
        expect_same_bits("no spans", off, plain);
        drop(off);
      }
      it.beta = it.coef = 0;
      if (!adds(&it) && it.id != KEDGE_ROUTER_rpb) continue;
      outcome *zero = run(&p, ways[w].backend, ways[w].all_double, &it);
      expect_same_bits("strength 0", zero, plain);
      drop(zero);
    }
    drop(plain);
  }
  kedge__rig_problem_destroy(&p);
  kedge__rig_problem_destroy(&spanless);
}

/* A token without a span routes as ever among others that have one; layers that are not named are left alone.
 */
static void test_reach(void **state) {
  (void)state;
  kedge_rig_problem p;
  ok(kedge__rig_problem_init(&p, SEED));
  for (int t = 0; t < T; t += 2) p.spans[t] = -1;
  kedge_intervention it = kedge_gradcheck_intervention(KEDGE_ROUTER_rpb);
  outcome *plain = run(&p, "ref", true, NULL), *on = run(&p, "ref", true, &it);
  bool differs = false;
  for (int t = 0; t < T; t++) {
    bool same = !memcmp(on->ids[0][t], plain->ids[0][t], sizeof on->ids[0][t]) &&
                !memcmp(on->gates[0][t], plain->gates[0][t], sizeof on->gates[0][t]);
    if (p.spans[t] < 0) assert_true(same);
    differs |= !same;
    for (int k = 0; p.segments[t] < 0 && k < K; k++) assert_int_equal(on->ids[0][t][k], -1);
  }
  assert_true(differs);
  drop(on);
  it.layers = (const uint32_t[]){1}, it.layer_count = 1;
  on = run(&p, "ref", true, &it);
  assert_memory_equal(on->ids[0], plain->ids[0], sizeof on->ids[0]);
  assert_memory_equal(on->gates[0], plain->gates[0], sizeof on->gates[0]);
  assert_true(memcmp(on->ids[1], plain->ids[1], sizeof on->ids[1]));
  drop(on), drop(plain);
  kedge__rig_problem_destroy(&p);
}

/* With softmax scores a constant on all logits of a row is invisible. */
static void test_centring(void **state) {
  (void)state;
  kedge_rig_problem p;
  ok(kedge__rig_problem_init(&p, SEED));
  const kedge_intervention it = kedge_gradcheck_intervention(KEDGE_ROUTER_rpb);
  outcome *before = run(&p, "ref", true, &it);
  for (int l = 0; l < L; l++)
    for (int s = 0; s < S; s++)
      for (int e = 0; e < E; e++) p.bias[l][s][e] += 0.7 * (s + 1) - l;
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

static void check_gates(const outcome *o, const kedge_rig_problem *p, double beta, bool gate_biased) {
  for (int t = 0; t < T; t++) {
    if (p->segments[t] < 0) continue;
    double z[E], biased[E], weights[K];
    for (int e = 0; e < E; e++) {
      z[e] = o->router[0][t][e];
      biased[e] = z[e] + (p->spans[t] < 0 ? 0 : beta * p->bias[0][p->spans[t]][e]);
    }
    for (int k = 0; k < K; k++) { /* best first, by the biased logits */
      int better = 0;
      for (int e = 0; e < E; e++) better += biased[e] > biased[o->ids[0][t][k]];
      assert_int_equal(better, k);
    }
    softmax_over(gate_biased ? biased : z, o->ids[0][t], weights);
    for (int k = 0; k < K; k++) near("gate weight", o->gates[0][t][k], weights[k], 1e-13);
  }
}

/* Choice from z' = z + beta b; weights from z', or from z with gate_raw. */
static void test_gate_source(void **state) {
  (void)state;
  kedge_rig_problem p;
  ok(kedge__rig_problem_init(&p, SEED));
  kedge_intervention it = kedge_gradcheck_intervention(KEDGE_ROUTER_rpb);
  outcome *biased = run(&p, "ref", true, &it);
  check_gates(biased, &p, it.beta, true);
  it.gate_raw = true;
  outcome *raw = run(&p, "ref", true, &it);
  check_gates(raw, &p, it.beta, false);
  assert_memory_equal(raw->ids[0], biased->ids[0], sizeof raw->ids[0]);
  assert_true(memcmp(raw->gates[0], biased->gates[0], sizeof raw->gates[0]));
  drop(biased), drop(raw);
  kedge__rig_problem_destroy(&p);
}

/* A span of one token whose prior is its own distribution, no clip at work: p' is proportional to p^(1+beta).
 */
static void test_one_token_span(void **state) {
  (void)state;
  enum { TOKEN = 4 };
  kedge_rig_problem p;
  ok(kedge__rig_problem_init(&p, SEED));
  outcome *plain = run(&p, "ref", true, NULL);
  double probability[E], sum = 0;
  for (int e = 0; e < E; e++) sum += probability[e] = exp(plain->router[0][TOKEN][e]);
  for (int e = 0; e < E; e++) p.prior[0][0][e] = (float)(probability[e] / sum);
  kedge__rig_problem_bias(&p, 1e-6, 1e6);
  for (int t = 0; t < T; t++) p.spans[t] = t == TOKEN ? 0 : -1;
  kedge_intervention it = kedge_gradcheck_intervention(KEDGE_ROUTER_rpb);
  outcome *on = run(&p, "ref", true, &it);
  assert_memory_equal(on->ids[0], plain->ids[0], sizeof on->ids[0]); /* the order of p is kept */
  double want[K], total = 0;
  for (int k = 0; k < K; k++) total += want[k] = pow(probability[on->ids[0][TOKEN][k]] / sum, 1 + it.beta);
  for (int k = 0; k < K; k++) near("p^(1+beta)", on->gates[0][TOKEN][k], want[k] / total, 1e-6);
  near("sharper", on->gates[0][TOKEN][0] > plain->gates[0][TOKEN][0], 1, 0);
  drop(plain), drop(on);
  kedge__rig_problem_destroy(&p);
}

/* Renaming the experts of router, stacks and prior together changes no output. */
static void test_permutation(void **state) {
  static const uint32_t to[E] = {5, 2, 7, 0, 4, 1, 6, 3};
  (void)state;
  kedge_rig_problem p, q;
  ok(kedge__rig_problem_init(&p, SEED));
  ok(kedge__rig_problem_init(&q, SEED));
  for (uint32_t i = 0; i < p.params.count; i++) {
    const kedge_param *param = &p.params.items[i];
    if (!kedge_param_is_router(param) && param->parts != E) continue;
    uint64_t each = kedge_param_count(param) / E;
    for (uint32_t e = 0; e < E; e++)
      memcpy(q.weights[i] + to[e] * each, p.weights[i] + e * each, each * sizeof **p.weights);
  }
  for (int l = 0; l < L; l++)
    for (int s = 0; s < S; s++)
      for (int e = 0; e < E; e++) q.prior[l][s][to[e]] = p.prior[l][s][e];
  kedge__rig_problem_bias(&q, 0.05, 5.0);
  for (int l = 0; l < L; l++)
    for (int e = 0; e < E; e++) {
      q.counts[l][to[e]] = p.counts[l][e];
      for (int t = 0; t < T; t++) q.base_logits[l][t][to[e]] = p.base_logits[l][t][e];
    }
  for (int l = 0; l < L; l++)
    for (int t = 0; t < T; t++)
      for (int k = 0; k < K; k++)
        q.base_ids[l][t][k] = p.base_ids[l][t][k] < 0 ? -1 : (int32_t)to[p.base_ids[l][t][k]];
  for (int i = 0; i < KEDGE_ROUTER_COUNT; i++) {
    const kedge_intervention it = kedge_gradcheck_intervention((kedge_router_id)i);
    outcome *a = run(&p, "ref", true, &it), *b = run(&q, "ref", true, &it);
    const int32_t *before = (const int32_t *)a->ids, *after = (const int32_t *)b->ids;
    for (int t = 0; t < L * T * K; t++)
      assert_int_equal(after[t], before[t] < 0 ? -1 : (int32_t)to[before[t]]);
    near("logits", distance(b->logits, a->logits, LOGITS), 0, 1e-6);
    near("loss", b->loss, a->loss, 1e-7);
    drop(a), drop(b);
  }
  kedge__rig_problem_destroy(&p);
  kedge__rig_problem_destroy(&q);
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
    ok(kedge__rig_problem_init(&p, seed));
    for (int i = 0; i < L * S; i++) {
      const double *bias = p.bias[i / S][i % S];
      const float *pi = p.prior[i / S][i % S];
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
