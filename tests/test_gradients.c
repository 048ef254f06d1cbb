/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Every differentiable case's gradient, in all-double, against central differences of a loss with random
 * cotangents, for every element of every input. The comparison must refuse the gradient scaled by 1.01. The
 * same case inside a recompute region must give the same bits, and the same gradient in f32 and bf16 on every
 * backend must be near the all-double one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "tests/support/suite.h"

static kedge_test_devices devices;
static uint32_t failures, checked;
static uint64_t elements;
static double worst, worst_f32, worst_bf16;

/* A case with its loss and gradients, ready to run. */
typedef struct prepared {
  kedge_case c;
  kedge_exec *exec;
  uint32_t forward_nodes, count;
  kedge_value loss, gradients[KEDGE_CASE_MAX];
  const kedge_case_tensor *wrt[KEDGE_CASE_MAX];
} prepared;

static void complain(kedge_op op, const kedge_case_row *row, const char *where, const char *text) {
  failures++;
  print_error("%s, \"%s\", %s: %s\n", kedge_op_get(op)->name, row->name, where, text);
}

static void unprepare(prepared *p) {
  kedge_exec_free(p->exec);
  kedge_case_destroy(&p->c);
}

static const kedge_case_row *inner_row; /* the case that in_region wraps */
static void in_region(kedge_case *c) {
  kedge_region_begin(c->graph, "case");
  inner_row->build(c);
  kedge_region_end(c->graph);
}

static kedge_status prepare(prepared *p, const kedge_case_row *row, kedge_device *device, kedge_dtype dtype,
                            bool all_double, bool region) {
  *p = (prepared){0};
  kedge_case_row wrapped = *row;
  inner_row = row;
  if (region) wrapped.build = in_region;
  KEDGE_TRY(kedge_case_init(&p->c, &wrapped, device, dtype, all_double));
  kedge_graph *g = p->c.graph;
  p->loss = kedge_case_loss(&p->c);
  p->forward_nodes = kedge_graph_nodes(g);
  kedge_value wrt[KEDGE_CASE_MAX];
  for (uint32_t i = 0; i < p->c.tensor_count; i++)
    if (p->c.tensors[i].wanted) {
      p->wrt[p->count] = &p->c.tensors[i];
      wrt[p->count++] = p->c.tensors[i].value;
    }
  kedge_gradient(g, p->loss, wrt, p->count, p->gradients, NULL, NULL);
  if (p->loss) kedge_output(g, p->loss, "loss");
  for (uint32_t i = 0; i < p->count; i++)
    if (p->gradients[i]) kedge_output(g, p->gradients[i], "gradient");
  KEDGE_TRY(kedge_exec_new(device, g, NULL, &p->exec));
  KEDGE_TRY(kedge_exec_fill_arena(p->exec, 0xff));
  return kedge_exec_run(p->exec, 0, UINT32_MAX);
}

/* The i-th gradient as numbers; NULL after a failure. */
static double *read_gradient(prepared *p, uint32_t i) {
  kedge_graph *g = p->c.graph;
  kedge_value v = p->gradients[i];
  uint64_t count = p->wrt[i]->count;
  double *numbers = kedge_alloc(count, sizeof *numbers);
  void *bytes = kedge_alloc(kedge_value_bytes(g, v), 1);
  if (numbers && bytes && kedge_value_count(g, v) == count &&
      kedge_exec_read(p->exec, v, bytes, kedge_value_bytes(g, v)) == KEDGE_OK) {
    kedge_numbers_decode(kedge_value_dtype(g, v), bytes, count, numbers);
  } else {
    kedge_free(numbers);
    numbers = NULL;
  }
  kedge_free(bytes);
  return numbers;
}

static double loss_at(prepared *p, const kedge_case_tensor *t, uint64_t element, double value) {
  double kept = t->numbers[element], loss = NAN;
  t->numbers[element] = value;
  if (kedge_case_write(t) != KEDGE_OK || kedge_exec_run(p->exec, 0, p->forward_nodes) != KEDGE_OK ||
      kedge_exec_read(p->exec, p->loss, &loss, sizeof loss) != KEDGE_OK)
    loss = NAN;
  t->numbers[element] = kept;
  return loss;
}

/* Central differences of fourth order. The step is small against the input's own size. */
static double *differences(prepared *p, const kedge_case_tensor *t) {
  double *numbers = kedge_alloc(t->count, sizeof *numbers), squares = 0;
  if (!numbers) return NULL;
  for (uint64_t i = 0; i < t->count; i++) squares += t->numbers[i] * t->numbers[i];
  double h = 5e-4 * fmin(1, sqrt(squares / (double)t->count) + 1e-6);
  for (uint64_t i = 0; i < t->count; i++) {
    double x = t->numbers[i];
    double near = loss_at(p, t, i, x + h) - loss_at(p, t, i, x - h);
    double far = loss_at(p, t, i, x + 2 * h) - loss_at(p, t, i, x - 2 * h);
    numbers[i] = (8 * near - far) / (12 * h);
  }
  if (kedge_case_write(t) != KEDGE_OK) numbers[0] = NAN;
  return numbers;
}

static bool accepts(const double *gradient, const double *want, uint64_t count, double *error) {
  *error = kedge_relative_error(KEDGE_F64, gradient, want, count);
  return *error <= 1e-7;
}

/* `got` is the gradient of input i, taken. */
static void check_input(kedge_op op, const kedge_case_row *row, prepared *p, uint32_t i, double *got) {
  const kedge_case_tensor *t = p->wrt[i];
  const char *name = kedge_value_name(p->c.graph, t->value);
  char text[200];
  double error, share = 0, *want = NULL;
  if (!got) {
    complain(op, row, name, "has no gradient");
    return;
  }
  want = differences(p, t);
  if (!want || !accepts(got, want, t->count, &error)) {
    snprintf(text, sizeof text, "the gradient is off by %.3g of its largest entry", want ? error : NAN);
    complain(op, row, name, text);
    goto done;
  }
  worst = fmax(worst, error);
  elements += t->count;
  for (uint64_t k = 0; k < t->count; k++) {
    share += got[k] != 0;
    got[k] *= 1.01;
  }
  share /= (double)t->count;
  if (!(share > 0 && share >= (row->nonzero > 0 ? row->nonzero : 0.1))) {
    snprintf(text, sizeof text, "only a share of %.3g of the gradient is not 0", share);
    complain(op, row, name, text);
  }
  if (accepts(got, want, t->count, &error)) complain(op, row, name, "a gradient scaled by 1.01 is accepted");
done:
  kedge_free(got);
  kedge_free(want);
}

/* The all-double gradients of the case built in another way must be `want`'s: bit for bit (limit 0) or
 * nearly. */
static void check_other(kedge_op op, const kedge_case_row *row, prepared *want, kedge_device *device,
                        kedge_dtype dtype, bool region, double limit, double *largest) {
  prepared p;
  char where[200], text[200];
  snprintf(where, sizeof where, "%s on %s", region ? "recomputed" : kedge_dtype_name(dtype),
           kedge_device_description(device));
  kedge_status status = prepare(&p, row, device, dtype, region, region);
  if (status != KEDGE_OK) complain(op, row, where, kedge_message());
  for (uint32_t i = 0; status == KEDGE_OK && i < want->count; i++) {
    if (!want->gradients[i]) continue;
    double *a = p.gradients[i] ? read_gradient(&p, i) : NULL, *b = read_gradient(want, i), error = NAN;
    if (a && b) error = kedge_relative_error(KEDGE_F64, a, b, want->wrt[i]->count);
    *largest = fmax(*largest, error);
    if (!(error <= limit)) {
      snprintf(text, sizeof text, "the gradient of %s is off by %.3g",
               kedge_value_name(want->c.graph, want->wrt[i]->value), error);
      complain(op, row, where, text);
    }
    kedge_free(a);
    kedge_free(b);
  }
  unprepare(&p);
}

static void check_case(kedge_op op, const kedge_case_row *row) {
  prepared exact, rounded;
  double same = 0;
  kedge_status status = prepare(&exact, row, devices.at[0], KEDGE_F32, true, false);
  if (status == KEDGE_OK && !exact.count) complain(op, row, "inputs", "there is nothing to differentiate");
  if (status != KEDGE_OK) {
    complain(op, row, "all-double", kedge_message());
    unprepare(&exact);
    return;
  }
  checked++;
  check_other(op, row, &exact, devices.at[0], KEDGE_F32, true, 0, &same);
  double f32 = row->f32 > 5e-6 ? 10 * row->f32 : 5e-5, bf16 = row->bf16 > 0x1p-7 ? 4 * row->bf16 : 0x1p-5;
  for (uint32_t i = 0; i < devices.count; i++) {
    if (i + 1 < devices.count && devices.same_bits_as_previous[i + 1]) continue;
    check_other(op, row, &exact, devices.at[i], KEDGE_F32, false, f32, &worst_f32);
  }
  status = prepare(&rounded, row, devices.at[0], KEDGE_BF16, true, false);
  for (uint32_t i = 0; status == KEDGE_OK && i < devices.count; i++) {
    if (i + 1 < devices.count && devices.same_bits_as_previous[i + 1]) continue;
    check_other(op, row, &rounded, devices.at[i], KEDGE_BF16, false, bf16, &worst_bf16);
  }
  unprepare(&rounded);
  /* Running the forward nodes again reuses the memory of the gradients: read them all before. */
  double *gradients[KEDGE_CASE_MAX] = {0};
  for (uint32_t i = 0; i < exact.count; i++)
    if (exact.gradients[i]) gradients[i] = read_gradient(&exact, i);
  for (uint32_t i = 0; i < exact.count; i++) check_input(op, row, &exact, i, gradients[i]);
  unprepare(&exact);
}

static void test_op(void **state) {
  kedge_op op = *(const kedge_op *)*state;
  failures = 0;
  for (const kedge_case_row *row = kedge_cases_of(op); row->name; row++)
    if (row->differentiable) check_case(op, row);
  assert_int_equal(failures, 0);
}

static int open_devices(void **state) {
  (void)state;
  return kedge_test_devices_open(&devices) == KEDGE_OK ? 0 : -1;
}

static int close_devices(void **state) {
  (void)state;
  printf("%u cases, %llu elements: worst %.2g against central differences; f32 %.2g and bf16 %.2g against "
         "all-double\n",
         checked, (unsigned long long)elements, worst, worst_f32, worst_bf16);
  kedge_test_devices_close(&devices);
  return 0;
}

int main(void) {
  static kedge_op ops[KEDGE_OP_COUNT];
  static struct CMUnitTest tests[KEDGE_OP_COUNT];
  size_t count = 0;
  for (uint32_t i = 0; i < KEDGE_OP_COUNT; i++) {
    bool any = false;
    for (const kedge_case_row *row = kedge_cases_of((kedge_op)i); row->name; row++)
      any |= row->differentiable;
    if (!any) continue; /* which ops may be without a gradient is test_table's matter */
    ops[count] = (kedge_op)i;
    tests[count] = (struct CMUnitTest){kedge_op_get(ops[count])->name, test_op, NULL, NULL, &ops[count]};
    count++;
  }
  return _cmocka_run_group_tests("gradients", tests, count, open_devices, close_devices);
}
