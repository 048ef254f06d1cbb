/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * The planner, checked from outside on random graphs: a walk over the nodes with a shadow of the arena, in
 * which every byte knows its value, proves that what a node reads is still there. Then runs: any placement,
 * any split into node ranges and a shared workspace give the same bits; comparing with the reference finds a
 * wrong kernel.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/exec.h"
#include "tests/support/random_graph.h"

enum { GRAPHS = 400, RUN_GRAPHS = 80 };
static kedge_device *ref, *cpu;

/* ---- The checker */

/* Which nodes must run, found by asking from every output and state change backwards. */
static void reach(const kedge_graph *g, uint32_t n, uint8_t *must) {
  if (n == UINT32_MAX || must[n]) return;
  must[n] = 1;
  for (uint32_t i = 0; i < kedge_op_get(g->nodes[n].op)->in_count; i++)
    if (g->nodes[n].in[i]) reach(g, g->values[g->nodes[n].in[i]].node, must);
}

static void find_needed(const kedge_graph *g, uint8_t *must) {
  memset(must, 0, g->node_count);
  for (kedge_value v = 1; v < g->value_count; v++)
    if (g->values[v].output) reach(g, g->values[v].node, must);
  for (uint32_t n = 0; n < g->node_count; n++)
    if (kedge_op_get(g->nodes[n].op)->flags & KEDGE_OP_STATE) reach(g, n, must);
}

typedef struct shadow {
  const kedge_graph *g;
  const kedge_plan *p;
  kedge_value *byte; /* of the arena: the value that owns it, 0 none */
} shadow;

static bool in_arena(const shadow *s, kedge_value v) {
  return v && s->g->values[v].storage == KEDGE_STORE_VALUE;
}

static bool owns(const shadow *s, kedge_value v) {
  uint64_t from = s->p->offset[v], bytes = kedge_value_bytes(s->g, v);
  if (from == UINT64_MAX || from + bytes > s->p->bytes) return false;
  for (uint64_t i = from; i < from + bytes; i++)
    if (s->byte[i] != v) return false;
  return true;
}

static bool overlap(const shadow *s, kedge_value a, kedge_value b) {
  uint64_t x = s->p->offset[a], y = s->p->offset[b];
  return x < y + kedge_value_bytes(s->g, b) && y < x + kedge_value_bytes(s->g, a);
}

/* Output i of a node may lie on an input's memory only if the op works in place, at exactly that input. */
static bool may_write(const shadow *s, const kedge_node *node, uint32_t i) {
  const kedge_op_info *info = kedge_op_get(node->op);
  kedge_value out = node->out[i];
  uint32_t on = 0;
  for (uint32_t k = 0; k < info->in_count; k++) {
    kedge_value base = s->g->values[node->in[k]].base;
    if (!in_arena(s, base) || !node->in[k] || !overlap(s, out, base)) continue;
    bool allowed =
        i == 0 && k == 0 && (info->flags & KEDGE_OP_INPLACE) && s->p->offset[out] == s->p->offset[base];
    allowed &=
        kedge_value_bytes(s->g, out) == kedge_value_bytes(s->g, base) && kedge__is_dense(s->g, node->in[k]);
    if (!allowed || on++) return false;
  }
  for (uint32_t k = 0; k < i; k++)
    if (overlap(s, out, node->out[k])) return false;
  return true;
}

/* NULL, or what is wrong with a plan. */
static const char *check_plan(const kedge_graph *g, const kedge_plan *p, uint32_t alignment) {
  const char *wrong = NULL;
  shadow s = {g, p, kedge_alloc(p->bytes, sizeof *s.byte)};
  uint8_t *must = kedge_alloc(g->node_count, 1);
  assert_non_null(s.byte);
  assert_non_null(must);
  find_needed(g, must);
  if (p->bytes > p->naive) wrong = "larger than without sharing";
  for (uint32_t n = 0; n < g->node_count && !wrong; n++) {
    const kedge_node *node = &g->nodes[n];
    const kedge_op_info *info = kedge_op_get(node->op);
    if (p->live[n] != must[n]) wrong = "a needed node is dead, or an unneeded one alive";
    if (!must[n]) continue;
    for (uint32_t i = 0; i < info->in_count && !wrong; i++) {
      kedge_value base = g->values[node->in[i]].base;
      if (node->in[i] && in_arena(&s, base) && !owns(&s, base)) wrong = "an input is gone when it is read";
    }
    for (uint32_t i = 0; i < info->out_count && !wrong; i++) {
      kedge_value out = node->out[i];
      uint64_t from = p->offset[out];
      if (from == UINT64_MAX || from + kedge_value_bytes(g, out) > p->bytes)
        wrong = "a value lies outside the arena";
      else if (from % alignment)
        wrong = "a value is not aligned";
      else if (!may_write(&s, node, i))
        wrong = "an output lies on an input or another output";
      for (uint64_t b = 0; b < kedge_value_bytes(g, out) && !wrong; b++) s.byte[from + b] = out;
    }
  }
  for (kedge_value v = 1; v < g->value_count && !wrong; v++)
    if (g->values[v].output && in_arena(&s, v) && !owns(&s, v)) wrong = "an output is gone at the end";
  kedge_free(s.byte);
  kedge_free(must);
  return wrong;
}

/* Moves one value onto another that its node reads at the same time, or to a place that is not aligned. */
static bool plant_fault(const kedge_graph *g, kedge_plan *p, kedge_random *random, kedge_value *moved,
                        uint64_t *kept) {
  uint32_t from = kedge_random_below(random, g->node_count);
  for (uint32_t k = 0; k < g->node_count; k++) {
    const kedge_node *node = &g->nodes[(from + k) % g->node_count];
    if (!p->live[(from + k) % g->node_count]) continue;
    kedge_value a = KEDGE_NONE;
    for (uint32_t i = 0; i < kedge_op_get(node->op)->in_count; i++) {
      kedge_value b = g->values[node->in[i]].base;
      if (!node->in[i] || g->values[b].storage != KEDGE_STORE_VALUE || a == b) continue;
      if (!a) {
        a = b;
        continue;
      }
      *moved = b;
      *kept = p->offset[b];
      p->offset[b] = kedge_random_below(random, 4) ? p->offset[a] : p->offset[b] + 4;
      return true;
    }
  }
  return false;
}

static void test_overlaps(void **state) {
  (void)state;
  uint32_t faults = 0, shared = 0, dead = 0;
  uint64_t bytes = 0, naive = 0;
  kedge_random random = {5};
  for (uint32_t seed = 0; seed < GRAPHS; seed++) {
    kedge_random_graph r;
    kedge_plan p, again;
    if (kedge_random_graph_init(&r, ref, seed, false) != KEDGE_OK)
      fail_msg("graph %u: %s", seed, kedge_message());
    uint32_t alignment = seed % 3 ? 64 : 256;
    assert_int_equal(kedge__plan_make(r.graph, alignment, &p), KEDGE_OK);
    assert_int_equal(kedge__plan_make(r.graph, alignment, &again), KEDGE_OK);
    assert_memory_equal(p.offset, again.offset, r.graph->value_count * sizeof *p.offset);
    assert_int_equal(p.bytes, again.bytes);
    const char *wrong = check_plan(r.graph, &p, alignment);
    if (wrong) fail_msg("graph %u: %s", seed, wrong);
    kedge_value moved;
    uint64_t kept;
    for (uint32_t i = 0; i < 5 && plant_fault(r.graph, &p, &random, &moved, &kept); i++) {
      faults++;
      if (!check_plan(r.graph, &p, alignment)) fail_msg("graph %u: a planted overlap was not found", seed);
      p.offset[moved] = kept;
    }
    for (kedge_value v = 1; v < r.graph->value_count; v++) shared += p.owner[v] != v;
    dead += p.dead;
    bytes += p.bytes;
    naive += p.naive;
    kedge__plan_destroy(&p);
    kedge__plan_destroy(&again);
    kedge_random_graph_destroy(&r);
  }
  printf("%d graphs: arenas %.0f%% of the sum of the values, %u values in place, %u dead nodes, %u planted "
         "faults\n",
         GRAPHS, 100 * (double)bytes / (double)naive, shared, dead, faults);
  assert_true(faults > GRAPHS);
  assert_true(shared > GRAPHS / 2);
  assert_true(dead > 0);
  assert_true(bytes * 10 < naive * 9);
}

/* ---- Runs */

/* Bytes of all outputs, end to end. */
static unsigned char *read_outputs(const kedge_random_graph *r, kedge_exec *exec, size_t *size) {
  *size = 0;
  for (uint32_t i = 0; i < r->output_count; i++) *size += kedge_value_bytes(r->graph, r->outputs[i]);
  for (uint32_t i = 0; i < r->parameter_count; i++) *size += kedge_value_bytes(r->graph, r->parameters[i]);
  unsigned char *all = kedge_alloc(*size, 1), *at = all;
  assert_non_null(all);
  for (uint32_t i = 0; i < r->output_count + r->parameter_count; i++) {
    kedge_value v = i < r->output_count ? r->outputs[i] : r->parameters[i - r->output_count];
    size_t bytes = kedge_value_bytes(r->graph, v);
    assert_int_equal(kedge_exec_read(exec, v, at, bytes), KEDGE_OK);
    at += bytes;
  }
  return all;
}

typedef enum how { AT_ONCE, STEP_BY_STEP, IN_THIRDS } how;

static unsigned char *run_graph(kedge_random_graph *r, kedge_workspace *workspace, how mode, size_t *size) {
  kedge_exec *exec = NULL;
  assert_int_equal(kedge_exec_new(r->device, r->graph, workspace, &exec), KEDGE_OK);
  assert_int_equal(kedge_exec_fill_arena(exec, 0xff), KEDGE_OK);
  assert_int_equal(kedge_random_graph_fill(r, exec), KEDGE_OK);
  uint32_t nodes = kedge_graph_nodes(r->graph);
  uint32_t stride = mode == AT_ONCE ? UINT32_MAX : mode == STEP_BY_STEP ? 1 : nodes / 3 + 1;
  if (mode == AT_ONCE) assert_int_equal(kedge_exec_run(exec, 0, UINT32_MAX), KEDGE_OK);
  for (uint32_t n = 0; mode != AT_ONCE && n < nodes; n += stride)
    assert_int_equal(kedge_exec_run(exec, n, n + stride), KEDGE_OK);
  unsigned char *all = read_outputs(r, exec, size);
  kedge_exec_free(exec);
  return all;
}

static void expect_same(uint32_t seed, const char *what, const unsigned char *a, size_t na, unsigned char *b,
                        size_t nb) {
  if (na != nb || memcmp(a, b, na) != 0) fail_msg("graph %u: %s gives other bits", seed, what);
  kedge_free(b);
}

static void test_placements(void **state) {
  (void)state;
  uint64_t lean = 0, wide = 0;
  for (uint32_t seed = 0; seed < RUN_GRAPHS; seed++) {
    kedge_device *device = seed % 2 ? ref : cpu;
    kedge_random_graph r, apart;
    size_t na, nb;
    assert_int_equal(kedge_random_graph_init(&r, device, seed, false), KEDGE_OK);
    assert_int_equal(kedge_random_graph_init(&apart, device, seed, true), KEDGE_OK);
    unsigned char *a = run_graph(&r, NULL, AT_ONCE, &na), *b = run_graph(&apart, NULL, AT_ONCE, &nb);
    expect_same(seed, "every value in memory of its own", a, na, b, nb);
    b = run_graph(&r, NULL, STEP_BY_STEP, &nb);
    expect_same(seed, "running step by step", a, na, b, nb);
    b = run_graph(&r, NULL, IN_THIRDS, &nb);
    expect_same(seed, "running in thirds", a, na, b, nb);
    kedge_free(a);
    kedge_exec *x = NULL, *y = NULL;
    assert_int_equal(kedge_exec_new(device, r.graph, NULL, &x), KEDGE_OK);
    assert_int_equal(kedge_exec_new(device, apart.graph, NULL, &y), KEDGE_OK);
    kedge_plan_summary s = kedge_exec_plan(x);
    assert_int_equal(s.nodes + s.dead_nodes, kedge_graph_nodes(r.graph));
    lean += s.arena;
    wide += kedge_exec_plan(y).arena;
    kedge_exec_free(x);
    kedge_exec_free(y);
    kedge_random_graph_destroy(&r);
    kedge_random_graph_destroy(&apart);
  }
  assert_true(lean < wide);
}

static void test_workspace(void **state) {
  (void)state;
  for (uint32_t seed = 0; seed < 20; seed++) {
    kedge_random_graph r[2];
    kedge_workspace *shared = NULL;
    kedge_exec *exec[2];
    unsigned char *alone[2];
    size_t sizes[2], size;
    uint64_t most = 0;
    assert_int_equal(kedge_workspace_new(cpu, &shared), KEDGE_OK);
    for (uint32_t i = 0; i < 2; i++) {
      assert_int_equal(kedge_random_graph_init(&r[i], cpu, 1000 + 2 * seed + i, false), KEDGE_OK);
      alone[i] = run_graph(&r[i], NULL, AT_ONCE, &sizes[i]);
      assert_int_equal(kedge_exec_new(cpu, r[i].graph, shared, &exec[i]), KEDGE_OK);
      kedge_plan_summary s = kedge_exec_plan(exec[i]);
      if (s.arena + s.scratch > most) most = s.arena + s.scratch;
    }
    for (uint32_t k = 0; k < 5; k++) {
      uint32_t i = k % 2;
      assert_int_equal(kedge_random_graph_fill(&r[i], exec[i]), KEDGE_OK);
      assert_int_equal(kedge_exec_run(exec[i], 0, UINT32_MAX), KEDGE_OK);
      unsigned char *together = read_outputs(&r[i], exec[i], &size);
      expect_same(seed, "a shared workspace", alone[i], sizes[i], together, size);
    }
    assert_true(kedge_workspace_bytes(shared) >= most && kedge_workspace_bytes(shared) < most + 1024);
    for (uint32_t i = 0; i < 2; i++) {
      kedge_exec_free(exec[i]);
      kedge_free(alone[i]);
      kedge_random_graph_destroy(&r[i]);
    }
    kedge_workspace_free(shared);
  }
}

/* ---- Comparing with the reference */

/* Results that cancel (a norm's gradient in a narrow row) have large relative errors; a wrong kernel larger.
 */
static const double compare_limit = 1e-3;

typedef struct report {
  double worst, worst_mul;
  uint32_t nodes, muls;
} report;

static void collect(void *context, uint32_t node, const char *op, const char *name, double error) {
  (void)node;
  (void)name;
  report *r = context;
  bool mul = !strcmp(op, "mul");
  double *worst = mul ? &r->worst_mul : &r->worst;
  if (!(error <= *worst)) *worst = error;
  r->nodes++;
  r->muls += mul;
}

/* The cpu backend with one wrong kernel: mul's last entry is a little too large. */
static kedge_status run_wrong(kedge_device *device, const kedge_step *steps, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    KEDGE_TRY(cpu->backend->run(device, &steps[i], 1));
    if (steps[i].op != KEDGE_OP_mul) continue;
    const kedge_tensor *out = &steps[i].call.out[0];
    float *data = out->data, largest = 0;
    size_t n = 1;
    for (uint32_t d = 0; d < out->rank; d++) n *= out->dims[d];
    for (size_t k = 0; k < n; k++)
      largest = data[k] > largest ? data[k] : largest < -data[k] ? -data[k] : largest;
    data[n - 1] += 0.01f * largest;
  }
  return KEDGE_OK;
}

static report compare_on(kedge_device *device, uint32_t seed) {
  kedge_random_graph r;
  kedge_exec *exec = NULL;
  report found = {0};
  assert_int_equal(kedge_random_graph_init(&r, device, seed, false), KEDGE_OK);
  assert_int_equal(kedge_exec_new(device, r.graph, NULL, &exec), KEDGE_OK);
  assert_int_equal(kedge_random_graph_fill(&r, exec), KEDGE_OK);
  assert_int_equal(kedge_exec_compare(exec, collect, &found), KEDGE_OK);
  assert_int_equal(found.nodes, kedge_exec_plan(exec).nodes);
  kedge_exec_free(exec);
  kedge_random_graph_destroy(&r);
  return found;
}

static void test_compare(void **state) {
  (void)state;
  kedge_backend backend = *cpu->backend;
  kedge_device wrong = *cpu;
  backend.run = run_wrong;
  wrong.backend = &backend;
  uint32_t caught = 0;
  double worst = 0;
  for (uint32_t seed = 0; seed < 40; seed++) {
    report right = compare_on(cpu, seed);
    if (right.worst_mul > right.worst) right.worst = right.worst_mul;
    if (!(right.worst <= compare_limit)) fail_msg("graph %u: cpu is off by %g", seed, right.worst);
    if (right.worst > worst) worst = right.worst;
    report bad = compare_on(&wrong, seed);
    if (!(bad.worst <= compare_limit)) fail_msg("graph %u: a good kernel is off by %g", seed, bad.worst);
    if (!bad.muls) continue;
    if (bad.worst_mul < 5e-3)
      fail_msg("graph %u: the wrong kernel was not noticed (%g)", seed, bad.worst_mul);
    caught++;
  }
  printf("cpu against the reference, step by step: %.2g; a wrong kernel was caught in %u graphs\n", worst,
         caught);
  assert_true(caught > 5);
}

static void test_times(void **state) {
  (void)state;
  kedge_random_graph r;
  kedge_exec *exec = NULL;
  kedge_op_time times[KEDGE_OP_COUNT];
  uint64_t calls = 0;
  assert_int_equal(kedge_random_graph_init(&r, cpu, 3, false), KEDGE_OK);
  assert_int_equal(kedge_exec_new(cpu, r.graph, NULL, &exec), KEDGE_OK);
  kedge_exec_profile(exec, true);
  assert_int_equal(kedge_random_graph_fill(&r, exec), KEDGE_OK);
  for (int i = 0; i < 2; i++) assert_int_equal(kedge_exec_run(exec, 0, UINT32_MAX), KEDGE_OK);
  uint32_t count = kedge_exec_times(exec, times, KEDGE_OP_COUNT);
  assert_true(count > 0);
  for (uint32_t i = 0; i < count; i++) {
    calls += times[i].calls;
    assert_true(times[i].seconds >= 0);
  }
  assert_int_equal(calls, 2 * kedge_exec_plan(exec).nodes);
  kedge_exec_free(exec);
  kedge_random_graph_destroy(&r);
}

static int open_devices(void **state) {
  (void)state;
  return kedge_device_open("ref", NULL, &ref) || kedge_device_open("cpu", NULL, &cpu) ? -1 : 0;
}

static int close_devices(void **state) {
  (void)state;
  kedge_device_close(ref);
  kedge_device_close(cpu);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_overlaps), cmocka_unit_test(test_placements),
                                     cmocka_unit_test(test_workspace), cmocka_unit_test(test_compare),
                                     cmocka_unit_test(test_times)};
  return cmocka_run_group_tests(tests, open_devices, close_devices);
}
