/* SPDX-License-Identifier: Apache-2.0
 *
 * Ops against tests/golden/ops.safetensors (PyTorch in float64), in double on the reference backend: values
 * and gradients of rotary positions, attention, head loss, routing; optimizer steps. ctest: quick */
#include "core/args.h"
#include "core/kedge.h"
#include "models/checkpoint/safetensors.h"
#include "tests/support/files.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX = 16 };

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

/* A parameter of the golden's shape: its contents, or zeros. */
static kedge_value parameter(golden *g, const char *name, const char *like, bool zeros) {
  uint32_t dims[KEDGE_MAX_RANK];
  const kedge_st_tensor *t = tensor(g, like);
  kedge_buffer **buffer = &g->buffers[g->buffer_count++];
  ok(g, kedge_buffer_new(g->device, t->bytes, buffer));
  if (!zeros) ok(g, kedge_buffer_write(*buffer, 0, t->data, t->bytes));
  kedge_dtype dtype = shape_of(t, dims);
  return kedge_parameter(g->graph, name, dtype, t->rank, dims, *buffer, 0);
}

static void want(golden *g, kedge_value value, const char *name) {
  g->want[g->out_count] = tensor(g, name);
  g->out[g->out_count++] = value;
}

/* Wants y and, for the cotangent dy, the gradients d<name>. */
static void want_gradients(golden *g, kedge_value y, const char *cotangent, const kedge_value *wrt,
                           const char *const *names, uint32_t count) {
  kedge_value gradients[4];
  kedge_value loss = kedge_sum(g->graph, kedge_mul(g->graph, y, in(g, cotangent)));
  kedge_gradient(g->graph, loss, wrt, count, gradients, NULL, NULL);
  for (uint32_t i = 0; i < count; i++) {
    kedge_output(g->graph, gradients[i], names[i]);
    want(g, gradients[i], names[i]);
  }
}

/* Compares as many elements as the golden has, relative to its largest. */
static void compare(const kedge_st_tensor *t, const void *got) {
  double largest = 0;
  size_t count = t->bytes / kedge_st_dtype_size(t->dtype);
  for (size_t i = 0; i < count && t->dtype == KEDGE_ST_F64; i++) {
    double w;
    memcpy(&w, t->data + i * sizeof w, sizeof w);
    largest = fmax(largest, fabs(w));
  }
  for (size_t i = 0; i < count; i++) {
    if (t->dtype == KEDGE_ST_I32) {
      int32_t w;
      memcpy(&w, t->data + i * sizeof w, sizeof w);
      assert_int_equal(((const int32_t *)got)[i], w);
      continue;
    }
    double w, v = ((const double *)got)[i];
    memcpy(&w, t->data + i * sizeof w, sizeof w);
    if (!(fabs(v - w) <= 1e-11 * largest)) fail_msg("%s[%zu]: got %.17g, want %.17g", t->name, i, v, w);
  }
}

static void begin(golden *g, golden *group, const char *name) {
  *g = (golden){.file = group->file, .device = group->device, .name = name, .graph = kedge_graph_new(true)};
}

static void finish(golden *g) {
  kedge_exec *exec;
  ok(g, kedge_graph_status(g->graph));
  ok(g, kedge_exec_new(g->device, g->graph, NULL, &exec));
  for (uint32_t i = 0; i < g->in_count; i++) {
    void *copy = malloc(g->given[i]->bytes);
    memcpy(copy, g->given[i]->data, g->given[i]->bytes);
    ok(g, kedge_exec_write(exec, g->in[i], copy, g->given[i]->bytes));
    free(copy);
  }
  ok(g, kedge_exec_run(exec, 0, UINT32_MAX));
  for (uint32_t i = 0; i < g->out_count; i++) {
    uint64_t bytes = kedge_value_bytes(g->graph, g->out[i]);
    assert_true(bytes >= g->want[i]->bytes);
    void *got = malloc(bytes);
    ok(g, kedge_exec_read(exec, g->out[i], got, bytes));
    compare(g->want[i], got);
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
    kedge_value ids =
        kedge_topk(g.graph, scores, in(&g, "bias"), segments, (uint32_t)tensor(&g, "ids")->shape[1], NULL);
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
    kedge_value norm, scale = kedge_clip_scale(g.graph, in(&g, "sum_squares"), number(&g, "max_norm"), &norm);
    kedge_output(g.graph, scale, "scale");
    kedge_output(g.graph, norm, "norm");
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

static golden group;

static int setup(void **state) {
  group.name = "ops.safetensors";
  if (kedge_st_open(test_golden("ops.safetensors"), &group.file) != KEDGE_OK ||
      kedge_device_open("ref", NULL, &group.device) != KEDGE_OK) {
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
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_rope),      cmocka_unit_test(test_attention),
                                     cmocka_unit_test(test_head_loss), cmocka_unit_test(test_routing),
                                     cmocka_unit_test(test_clip),      cmocka_unit_test(test_adamw)};
  return cmocka_run_group_tests_name("ops golden", tests, setup, teardown);
}
