/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Ops against tests/golden/ops.safetensors (PyTorch in float64): values, gradients for random cotangents,
 * optimizer steps. In double on the reference backend, in f32 there and on cpu. Every tensor of the file that
 * is an outcome is compared (the last test counts them).
 */
#include "core/args.h"
#include "core/kedge.h"
#include "models/checkpoint/safetensors.h"
#include "tests/support/files.h"
#include "tests/support/suite.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX = 16 };

/* How a group of tests runs: errors are relative to the largest entry. */
typedef struct mode {
  const char *name, *backend;
  bool all_double;
  double limit;
} mode;
static const mode modes[] = {{"double on ref", "ref", true, 1e-11},
                             {"f32 on ref", "ref", false, 5e-6},
                             {"f32 on cpu", "cpu", false, 5e-6}};
static const mode *now;
static double worst;
static uint32_t compared;

/* One golden case: its graph, which tensors are written into it, and which values must come out. */
typedef struct golden {
  kedge_st_file *file;
  kedge_device *device;
  kedge_graph *graph;
  const char *name; /* "rope/half" */
  kedge_value in[MAX], out[MAX];
  const kedge_st_tensor *given[MAX], *want[MAX];
  kedge_buffer *buffers[MAX];
  uint32_t in_count, out_count, buffer_count;
} golden;

static void ok(const golden *g, kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", g->name, kedge_message());
}

static const kedge_st_tensor *tensor(const golden *g, const char *name) {
  char path[96];
  snprintf(path, sizeof path, "%s/%s", g->name, name);
  const kedge_st_tensor *t = kedge_st_find(g->file, path);
  if (!t) fail_msg("the golden file has no %s", path);
  return t;
}

static double number(const golden *g, const char *name) {
  const kedge_st_tensor *t = tensor(g, name);
  double real;
  int32_t integer;
  if (t->dtype == KEDGE_ST_F64) {
    memcpy(&real, t->data, sizeof real);
    return real;
  }
  memcpy(&integer, t->data, sizeof integer);
  return integer;
}

static kedge_dtype shape_of(const kedge_st_tensor *t, uint32_t *dims) {
  for (uint32_t i = 0; i < t->rank; i++) dims[i] = (uint32_t)t->shape[i];
  return t->dtype == KEDGE_ST_I32 ? KEDGE_I32 : KEDGE_F32;
}

/* An input of the golden's shape that will hold it. */
static kedge_value in(golden *g, const char *name) {
  uint32_t dims[KEDGE_MAX_RANK];
  const kedge_st_tensor *t = g->given[g->in_count] = tensor(g, name);
  kedge_dtype dtype = shape_of(t, dims);
  return g->in[g->in_count++] = kedge_input(g->graph, name, dtype, t->rank, dims);
}

/* The golden's numbers in the dtype that a value has; the caller frees them. */
static void *contents(const golden *g, kedge_value v, const kedge_st_tensor *t) {
  size_t count = t->bytes / kedge_st_dtype_size(t->dtype);
  kedge_dtype dtype = kedge_value_dtype(g->graph, v);
  double *numbers = malloc(count * sizeof *numbers);
  void *data = malloc(t->bytes);
  assert_non_null(numbers);
  assert_non_null(data);
  memcpy(t->dtype == KEDGE_ST_I32 ? data : (void *)numbers, t->data, t->bytes);
  if (dtype != KEDGE_I32) kedge_numbers_encode(dtype, numbers, count, data);
  free(numbers);
  return data;
}

/* A parameter of the golden's shape: its contents, or zeros. */
static kedge_value parameter(golden *g, const char *name, const char *like, bool zeros) {
  uint32_t dims[KEDGE_MAX_RANK];
  const kedge_st_tensor *t = tensor(g, like);
  kedge_buffer **buffer = &g->buffers[g->buffer_count++];
  kedge_dtype dtype = shape_of(t, dims);
  ok(g, kedge_buffer_new(g->device, t->bytes, buffer));
  kedge_value v = kedge_parameter(g->graph, name, dtype, t->rank, dims, *buffer, 0);
  void *data = contents(g, v, t);
  if (!zeros) ok(g, kedge_buffer_write(*buffer, 0, data, kedge_value_bytes(g->graph, v)));
  free(data);
  return v;
}

static void want(golden *g, kedge_value value, const char *name) {
  g->want[g->out_count] = tensor(g, name);
  g->out[g->out_count++] = value;
}

/* Wants y and, for the cotangent dy, the gradients d<name>. */
static void want_gradients(golden *g, kedge_value y, const char *cotangent, const kedge_value *wrt,
                           const char *const *names, uint32_t count) {
  kedge_value gradients[5];
  kedge_value loss = kedge_sum(g->graph, kedge_mul(g->graph, y, in(g, cotangent)));
  kedge_gradient(g->graph, loss, wrt, count, gradients, NULL, NULL);
  for (uint32_t i = 0; i < count; i++) {
    kedge_output(g->graph, gradients[i], names[i]);
    want(g, gradients[i], names[i]);
  }
}

/* Compares as many elements as the golden has, relative to its largest. */
static void compare(const golden *g, kedge_value value, const kedge_st_tensor *t, const void *got) {
  size_t count = t->bytes / kedge_st_dtype_size(t->dtype);
  compared++;
  if (t->dtype == KEDGE_ST_I32) {
    assert_memory_equal(got, t->data, t->bytes);
    return;
  }
  double *numbers = malloc(2 * count * sizeof *numbers), *wanted = numbers + count;
  assert_non_null(numbers);
  kedge_numbers_decode(kedge_value_dtype(g->graph, value), got, count, numbers);
  memcpy(wanted, t->data, t->bytes);
  double error = kedge_relative_error(KEDGE_F64, numbers, wanted, count);
  if (!(error <= now->limit)) fail_msg("%s, %s: off by %.3g", now->name, t->name, error);
  worst = fmax(worst, error);
  free(numbers);
}

static void begin(golden *g, golden *group, const char *name) {
  *g = (golden){
      .file = group->file, .device = group->device, .name = name, .graph = kedge_graph_new(now->all_double)};
}

static void finish(golden *g) {
  kedge_exec *exec;
  ok(g, kedge_graph_status(g->graph));
  ok(g, kedge_exec_new(g->device, g->graph, NULL, &exec));
  for (uint32_t i = 0; i < g->in_count; i++) {
    void *data = contents(g, g->in[i], g->given[i]);
    ok(g, kedge_exec_write(exec, g->in[i], data, kedge_value_bytes(g->graph, g->in[i])));
    free(data);
  }
  ok(g, kedge_exec_run(exec, 0, UINT32_MAX));
  for (uint32_t i = 0; i < g->out_count; i++) {
    uint64_t bytes = kedge_value_bytes(g->graph, g->out[i]);
    uint64_t size = g->want[i]->bytes / kedge_st_dtype_size(g->want[i]->dtype);
    assert_true(kedge_value_count(g->graph, g->out[i]) >= size);
    void *got = malloc(bytes);
    ok(g, kedge_exec_read(exec, g->out[i], got, bytes));
    compare(g, g->out[i], g->want[i], got);
    free(got);
  }
  kedge_exec_free(exec);
  kedge_graph_free(g->graph);
  for (uint32_t i = 0; i < g->buffer_count; i++) kedge_buffer_free(g->buffers[i]);
}

static void test_rope(void **state) {
  static const char *const names[] = {"rope/half", "rope/interleaved", "rope/far"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    golden g;
    begin(&g, *state, names[i]);
    kedge_rope_options options = {(uint32_t)number(&g, "heads"), number(&g, "interleaved") != 0, false,
                                  number(&g, "factor")};
    kedge_value x = in(&g, "x"), frequencies = in(&g, "inv_freq"), positions = in(&g, "positions");
    kedge_value y = kedge_rope(g.graph, x, frequencies, positions, &options);
    kedge_output(g.graph, y, "y");
    want(&g, y, "y");
    want_gradients(&g, y, "dy", &x, (const char *const[]){"dx"}, 1);
    finish(&g);
  }
}

static void test_attention(void **state) {
  static const char *const names[] = {"attention/grouped", "attention/outside", "attention/sharp"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    golden g;
    begin(&g, *state, names[i]);
    kedge_attention_options options = {(uint32_t)number(&g, "heads"), (uint32_t)number(&g, "kv_heads"),
                                       number(&g, "scale")};
    kedge_value qkv[] = {in(&g, "q"), in(&g, "k"), in(&g, "v")}, lse;
    kedge_value y = kedge_attention(g.graph, qkv[0], qkv[1], qkv[2], in(&g, "segments"), &options, &lse);
    kedge_output(g.graph, y, "y");
    kedge_output(g.graph, lse, "lse");
    want(&g, y, "y");
    want(&g, lse, "lse");
    want_gradients(&g, y, "dy", qkv, (const char *const[]){"dq", "dk", "dv"}, 3);
    finish(&g);
  }
}

static void test_head_loss(void **state) {
  static const char *const names[] = {"head_loss/plain", "head_loss/large"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    golden g;
    begin(&g, *state, names[i]);
    kedge_value hw[] = {in(&g, "h"), in(&g, "weight")};
    kedge_value nll = kedge_head_loss(g.graph, hw[0], hw[1], in(&g, "labels"), NULL);
    kedge_output(g.graph, nll, "nll");
    want(&g, nll, "nll");
    want_gradients(&g, nll, "dnll", hw, (const char *const[]){"dh", "dweight"}, 2);
    finish(&g);
  }
}

static void test_routing(void **state) {
  static const char *const names[] = {"gates/softmax", "gates/softmax_normalised", "gates/sigmoid",
                                      "gates/sigmoid_normalised", "gates/sigmoid_low"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    golden g;
    begin(&g, *state, names[i]);
    kedge_gate_options options = {.kind =
                                      number(&g, "sigmoid") != 0 ? KEDGE_SCORE_SIGMOID : KEDGE_SCORE_SOFTMAX,
                                  .normalise = number(&g, "normalise") != 0,
                                  .alpha = number(&g, "alpha"),
                                  .epsilon = number(&g, "epsilon")};
    kedge_value logits = in(&g, "logits"), scores = kedge_scores(g.graph, logits, options.kind);
    kedge_value segments =
        kedge_input(g.graph, "segments", KEDGE_I32, 1, (uint32_t[]){kedge_value_dim(g.graph, logits, 0)});
    kedge_value ids = kedge_topk(g.graph, scores, in(&g, "bias"), segments,
                                 &(kedge_topk_options){.k = (uint32_t)tensor(&g, "ids")->shape[1]}, NULL);
    kedge_value y = kedge_gates(g.graph, logits, ids, &options);
    kedge_output(g.graph, scores, "scores");
    kedge_output(g.graph, ids, "ids");
    kedge_output(g.graph, y, "y");
    want(&g, scores, "scores");
    want(&g, ids, "ids");
    want(&g, y, "y");
    want_gradients(&g, y, "dy", &logits, (const char *const[]){"dlogits"}, 1);
    finish(&g);
  }
}

static void test_clip(void **state) {
  static const char *const names[] = {"clip/above", "clip/below", "clip/equal", "clip/zero", "clip/tight"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    golden g;
    begin(&g, *state, names[i]);
    kedge_value a = in(&g, "grad_a"), b = in(&g, "grad_b"), norm;
    kedge_value squares = kedge_add(g.graph, kedge_sum_squares(g.graph, a), kedge_sum_squares(g.graph, b));
    kedge_value scale = kedge_clip_scale(g.graph, squares, number(&g, "max_norm"), &norm);
    kedge_output(g.graph, squares, "sum_squares");
    kedge_output(g.graph, scale, "scale");
    kedge_output(g.graph, norm, "norm");
    want(&g, squares, "sum_squares");
    want(&g, scale, "scale");
    want(&g, norm, "norm");
    finish(&g);
  }
}

static void test_adamw(void **state) {
  static const char *const names[] = {"adamw/decay", "adamw/no_decay"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    for (int steps = 1; steps <= 2; steps++) {
      golden g;
      begin(&g, *state, names[i]);
      kedge_adamw_options options = {number(&g, "beta1"), number(&g, "beta2"), number(&g, "eps"),
                                     number(&g, "decay")};
      kedge_value w = parameter(&g, "w", "parameter_0", false);
      kedge_value m = parameter(&g, "m", "m_1", true), v = parameter(&g, "v", "v_1", true);
      kedge_value scale = kedge_fill(g.graph, KEDGE_F32, 1, (uint32_t[]){1}, 1);
      kedge_adamw(g.graph, w, m, v, KEDGE_NONE, in(&g, "grad_1"), scale, in(&g, "hyper_1"), &options);
      if (steps == 2)
        kedge_adamw(g.graph, w, m, v, KEDGE_NONE, in(&g, "grad_2"), scale, in(&g, "hyper_2"), &options);
      want(&g, w, steps == 1 ? "parameter_1" : "parameter_2");
      want(&g, m, steps == 1 ? "m_1" : "m_2");
      want(&g, v, steps == 1 ? "v_1" : "v_2");
      finish(&g);
    }
}

static void test_rms_norm(void **state) {
  static const char *const names[] = {"rms_norm/row", "rms_norm/heads", "rms_norm/tiny"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    golden g;
    begin(&g, *state, names[i]);
    kedge_value wrt[] = {in(&g, "x"), in(&g, "weight")};
    kedge_value y = kedge_rms_norm(g.graph, wrt[0], wrt[1], number(&g, "eps"));
    kedge_output(g.graph, y, "y");
    want(&g, y, "y");
    want_gradients(&g, y, "dy", wrt, (const char *const[]){"dx", "dweight"}, 2);
    finish(&g);
  }
}

static void test_swiglu(void **state) {
  golden g;
  begin(&g, *state, "swiglu/plain");
  kedge_value wrt[] = {in(&g, "gate"), in(&g, "up")}, y = kedge_swiglu(g.graph, wrt[0], wrt[1]);
  kedge_output(g.graph, y, "y");
  want(&g, y, "y");
  want_gradients(&g, y, "dy", wrt, (const char *const[]){"dgate", "dup"}, 2);
  finish(&g);
}

static void test_embed(void **state) {
  golden g;
  begin(&g, *state, "embed/plain");
  kedge_value weight = in(&g, "weight"), y = kedge_embed(g.graph, weight, in(&g, "ids"));
  kedge_output(g.graph, y, "y");
  want(&g, y, "y");
  want_gradients(&g, y, "dy", &weight, (const char *const[]){"dweight"}, 1);
  finish(&g);
}

static void test_experts(void **state) {
  golden g;
  begin(&g, *state, "experts/plain");
  kedge_value x = in(&g, "x"), weights = in(&g, "weights"), gate = in(&g, "w_gate"), up = in(&g, "w_up");
  kedge_value down = in(&g, "w_down"), wrt[] = {x, weights, gate, up, down};
  kedge_routes routes = kedge_dispatch(g.graph, in(&g, "ids"), kedge_value_dim(g.graph, gate, 0));
  kedge_value rows = kedge_gather_rows(g.graph, x, &routes);
  kedge_value a =
      kedge_swiglu_gated(g.graph, kedge_grouped_matmul(g.graph, rows, gate, &routes, true),
                         kedge_grouped_matmul(g.graph, rows, up, &routes, true), weights, &routes);
  kedge_value y = kedge_combine_rows(g.graph, kedge_grouped_matmul(g.graph, a, down, &routes, true), &routes);
  kedge_output(g.graph, y, "y");
  want(&g, y, "y");
  want_gradients(&g, y, "dy", wrt, (const char *const[]){"dx", "dweights", "dw_gate", "dw_up", "dw_down"}, 5);
  finish(&g);
}

/* A row loss (or any function of z alone) and its gradient. */
static void want_row_loss(golden *g, kedge_value z, kedge_value y) {
  kedge_output(g->graph, y, "y");
  want(g, y, "y");
  want_gradients(g, y, "dy", &z, (const char *const[]){"dz"}, 1);
  finish(g);
}

static void test_anchors(void **state) {
  static const char *const kl[] = {"anchor_kl/rows", "anchor_kl/unnormalised", "anchor_kl/direction",
                                   "anchor_kl/never"};
  static const char *const l2[] = {"anchor_l2/rows", "anchor_l2/floored", "anchor_l2/far"};
  golden g;
  for (size_t i = 0; i < sizeof kl / sizeof *kl; i++) {
    begin(&g, *state, kl[i]);
    kedge_value z = in(&g, "z");
    want_row_loss(&g, z, kedge_anchor_kl(g.graph, z, in(&g, "table"), in(&g, "index")));
  }
  for (size_t i = 0; i < sizeof l2 / sizeof *l2; i++) {
    begin(&g, *state, l2[i]);
    kedge_value z = in(&g, "z"), table = in(&g, "table");
    want_row_loss(&g, z, kedge_anchor_l2(g.graph, z, table, in(&g, "index"), number(&g, "floor")));
  }
  begin(&g, *state, "logsumexp/rows");
  kedge_value z = in(&g, "z");
  want_row_loss(&g, z, kedge_logsumexp(g.graph, z));
}

static void test_balance(void **state) {
  static const char *const names[] = {"balance/softmax", "balance/sigmoid", "balance/low", "balance/lowest"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    golden g;
    begin(&g, *state, names[i]);
    uint32_t kind = number(&g, "sigmoid") != 0 ? KEDGE_SCORE_SIGMOID : KEDGE_SCORE_SOFTMAX;
    kedge_value z = in(&g, "z"), counts = in(&g, "counts");
    want_row_loss(&g, z, kedge_balance(g.graph, z, counts, in(&g, "index"), kind));
  }
}

static void test_choice(void **state) {
  golden g;
  begin(&g, *state, "choice/plain");
  kedge_value ids = in(&g, "ids"), index = in(&g, "index");
  kedge_value counts = kedge_expert_counts(g.graph, ids, index, (uint32_t)number(&g, "groups"),
                                           (uint32_t)number(&g, "experts"));
  kedge_value replaced = kedge_choose_rows(g.graph, ids, in(&g, "table"), index);
  kedge_output(g.graph, counts, "counts");
  kedge_output(g.graph, replaced, "replaced");
  want(&g, counts, "counts");
  want(&g, replaced, "replaced");
  finish(&g);
}

static void test_detach(void **state) {
  golden g;
  begin(&g, *state, "detach/plain");
  kedge_value x = in(&g, "x"), square = kedge_mul(g.graph, x, x);
  kedge_value y = kedge_mul(g.graph, x, kedge_detach(g.graph, square));
  y = kedge_add(g.graph, y, kedge_detach(g.graph, x));
  kedge_output(g.graph, y, "y");
  want(&g, y, "y");
  want_gradients(&g, y, "dy", &x, (const char *const[]){"dx"}, 1);
  finish(&g);
}

static golden group;

/* Outcomes of the file: whatever is neither an input, a cotangent nor a number. The clipped gradients are the
 * optimizer's business (adamw multiplies by the scale); cos and sin are never made. */
static void test_complete(void **state) {
  (void)state;
  static const char *const outcomes[] = {
      "y",       "lse",   "nll",         "scores", "ids",    "dh",         "dweight",
      "norm",    "scale", "sum_squares", "m_",     "v_",     "parameter_", "dx",
      "dq",      "dk",    "dv",          "dgate",  "dup",    "dlogits",    "dweights",
      "dw_gate", "dw_up", "dw_down",     "dz",     "counts", "replaced"};
  uint32_t expected = 0;
  for (uint32_t i = 0; i < kedge_st_count(group.file); i++) {
    const kedge_st_tensor *t = kedge_st_at(group.file, i);
    const char *name = strrchr(t->name, '/') + 1;
    bool given =
        !strcmp(name, "parameter_0") || (!strcmp(name, "scale") && !strncmp(t->name, "attention", 9));
    given |= !strncmp(t->name, "head_loss", 9) &&
             !strcmp(name, "lse"); /* the op leaves rows without a label out */
    given |= !strcmp(name, "counts") && !strncmp(t->name, "balance", 7);
    given |= !strcmp(name, "ids") && strncmp(t->name, "gates", 5) != 0;
    bool outcome = false;
    for (size_t k = 0; k < sizeof outcomes / sizeof *outcomes; k++) {
      size_t length = strlen(outcomes[k]);
      bool stem = outcomes[k][length - 1] == '_';
      outcome |= stem ? !strncmp(name, outcomes[k], length) : !strcmp(name, outcomes[k]);
    }
    expected += outcome && !given;
  }
  printf("%s: %u of %u tensors are outcomes, worst error %.2g\n", now->name, expected,
         kedge_st_count(group.file), worst);
  assert_int_equal(compared, expected);
}

static int setup(void **state) {
  group.name = "ops.safetensors";
  worst = 0;
  compared = 0;
  if (kedge_st_open(test_golden("ops.safetensors"), &group.file) != KEDGE_OK ||
      kedge_device_open(now->backend, NULL, &group.device) != KEDGE_OK) {
    fprintf(stderr, "%s\n", kedge_message());
    return -1;
  }
  *state = &group;
  return 0;
}

static int teardown(void **state) {
  (void)state;
  kedge_device_close(group.device);
  kedge_st_close(group.file);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_rope),     cmocka_unit_test(test_attention), cmocka_unit_test(test_head_loss),
      cmocka_unit_test(test_routing),  cmocka_unit_test(test_clip),      cmocka_unit_test(test_adamw),
      cmocka_unit_test(test_rms_norm), cmocka_unit_test(test_swiglu),    cmocka_unit_test(test_embed),
      cmocka_unit_test(test_experts),  cmocka_unit_test(test_anchors),   cmocka_unit_test(test_balance),
      cmocka_unit_test(test_choice),   cmocka_unit_test(test_detach),    cmocka_unit_test(test_complete)};
  int failed = 0;
  for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
    now = &modes[i];
    failed += cmocka_run_group_tests_name(now->name, tests, setup, teardown);
  }
  return failed;
}
