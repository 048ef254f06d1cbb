/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * The table of ops is complete: every row has its meaning in words, cases that build the op, a rejecting
 * case, a gradient that is tested or the flag NODIFF (and then refuses), its family file, kernels, and
 * arguments that keep their members when they are narrowed for float kernels.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <ctype.h>
#include <unistd.h>

#include "core/exec.h"
#include "tests/support/suite.h"

static uint32_t failures;

#define EXPECT(condition, op, text)                                                                          \
  do {                                                                                                       \
    if (!(condition)) {                                                                                      \
      failures++;                                                                                            \
      print_error("%s: %s\n", kedge_op_get(op)->name, text);                                                 \
    }                                                                                                        \
  } while (0)

#define FOR_EACH_OP(op) for (kedge_op op = 0; op < KEDGE_OP_COUNT; op++)

static void test_words(void **state) {
  (void)state;
  failures = 0;
  FOR_EACH_OP(op) {
    const kedge_op_info *info = kedge_op_get(op);
    EXPECT(strlen(info->doc) >= 6, op, "has no meaning in words");
    EXPECT(strchr(info->doc, '\n') == NULL, op, "its meaning is more than a line");
    for (const char *c = info->name; *c; c++)
      EXPECT(islower((unsigned char)*c) || *c == '_' || isdigit((unsigned char)*c), op, "odd name");
    EXPECT(kedge_op_find(info->name) == op, op, "is not found by its name");
  }
  assert_int_equal(kedge_op_find("no such op"), KEDGE_OP_COUNT);
  assert_int_equal(failures, 0);
}

/* A second reading of a signature: the letters alone, and whether marks are where they may be. */
static uint32_t letters(const char *text, bool *good) {
  uint32_t count = 0;
  for (const char *c = text; *c; c++) {
    bool letter = *c == 'x' || *c == 'f' || *c == 'w' || *c == 'i';
    bool mark = *c == '~' || *c == '#' || *c == '?' || *c == '!';
    *good &= letter || (mark && c > text);
    count += letter;
  }
  return count;
}

static void test_signatures(void **state) {
  (void)state;
  failures = 0;
  FOR_EACH_OP(op) {
    const kedge_op_info *info = kedge_op_get(op);
    bool good = true;
    EXPECT(letters(info->inputs, &good) == info->in_count && good, op, "the inputs do not parse");
    EXPECT(letters(info->outputs, &good) == info->out_count && good, op, "the outputs do not parse");
    EXPECT(strpbrk(info->outputs, "~#?!") == NULL, op, "an output has a mark");
    EXPECT(info->in_count <= KEDGE_MAX_IN && info->out_count <= KEDGE_MAX_OUT, op, "has too many slots");
    bool updates = strchr(info->inputs, '!') != NULL, flag = info->flags & KEDGE_OP_STATE;
    EXPECT(updates == flag, op, "the flag STATE and the marks ! do not agree");
    EXPECT(updates || info->out_count > 0, op, "has no effect");
    bool in_place = info->flags & KEDGE_OP_INPLACE;
    EXPECT(!in_place || info->in[0].letter == info->out[0].letter, op, "in place between unlike slots");
  }
  assert_int_equal(failures, 0);
}

static void test_stems(void **state) {
  (void)state;
  const char *source = getenv("KEDGE_SOURCE");
  if (!source) source = ".";
  failures = 0;
  FOR_EACH_OP(op) {
    char path[1024];
    const kedge_op_info *info = kedge_op_get(op);
    snprintf(path, sizeof path, "%s/core/ops/%s.c", source, info->family);
    EXPECT(access(path, R_OK) == 0, op, path);
    EXPECT(info->shape && info->gradient, op, "lacks a rule");
    for (int v = 0; info->kind == KEDGE_KIND_KERNEL && v < KEDGE_VARIANT_COUNT; v++)
      EXPECT(kedge__reference(op, (kedge_variant)v) != NULL, op, "lacks a reference kernel");
  }
  assert_int_equal(failures, 0);
}

static bool uses_op(const kedge_graph *g, kedge_op op) {
  for (uint32_t n = 0; n < g->node_count; n++)
    if (g->nodes[n].op == op) return true;
  return false;
}

static void test_cases(void **state) {
  (void)state;
  failures = 0;
  FOR_EACH_OP(op) {
    const kedge_op_info *info = kedge_op_get(op);
    uint32_t good = 0, rejecting = 0, differentiable = 0;
    for (const kedge_case_row *row = kedge_cases_of(op); row->name; row++) {
      rejecting += row->rejects != NULL;
      differentiable += row->differentiable;
      EXPECT(!row->rejects || strlen(row->rejects) >= 3, op, "a rejecting case names no text");
      if (row->rejects) continue;
      kedge_case c;
      good++;
      EXPECT(kedge_case_init(&c, row, NULL, KEDGE_BF16, false) == KEDGE_OK, op, kedge_message());
      EXPECT(uses_op(c.graph, op), op, "a case of it does not build it");
      EXPECT(c.output_count > 0, op, "a case has no output");
      kedge_case_destroy(&c);
    }
    EXPECT(good > 0, op, "has no case");
    EXPECT(rejecting > 0 || info->in_count == 0, op, "has no rejecting case");
    bool nodiff = info->flags & KEDGE_OP_NODIFF;
    EXPECT(!nodiff || !differentiable, op, "has no gradient, but a differentiable case");
    EXPECT(nodiff || differentiable || info->in_count == 0, op, "has a gradient that no case tests");
  }
  assert_int_equal(failures, 0);
}

/* An op without a gradient refuses when a loss depends on it; an op with one appends nodes. */
static void test_differentiating(void **state) {
  (void)state;
  failures = 0;
  uint32_t refused = 0;
  FOR_EACH_OP(op) {
    const kedge_op_info *info = kedge_op_get(op);
    for (const kedge_case_row *row = kedge_cases_of(op); row->name; row++) {
      bool nodiff = info->flags & KEDGE_OP_NODIFF;
      if (row->rejects || (!nodiff && !row->differentiable)) continue;
      kedge_case c;
      kedge_value wrt[KEDGE_CASE_MAX], gradients[KEDGE_CASE_MAX];
      uint32_t count = 0;
      kedge_case_init(&c, row, NULL, KEDGE_F32, false);
      kedge_value loss = kedge_case_loss(&c);
      for (uint32_t i = 0; i < c.tensor_count; i++)
        if (c.tensors[i].wanted) wrt[count++] = c.tensors[i].value;
      if (loss && count) {
        kedge_gradient(c.graph, loss, wrt, count, gradients, NULL, NULL);
        kedge_status status = kedge_graph_status(c.graph);
        if (nodiff) {
          refused++;
          EXPECT(status == KEDGE_ERR_UNSUPPORTED && strstr(kedge_message(), info->name), op,
                 "differentiating it is not refused by name");
        } else {
          EXPECT(status == KEDGE_OK, op, kedge_message());
        }
      }
      kedge_case_destroy(&c);
    }
  }
  assert_int_equal(failures, 0);
  assert_true(refused > 5);
}

/* Dimensions u32 first, an even number of them, then reals: the sizes of both versions follow. */
static bool layout(const kedge_op_info *info, size_t *words, size_t *reals) {
  if (info->args_size < info->args_size_f32 || (info->args_size - info->args_size_f32) % 4) return false;
  *reals = (info->args_size - info->args_size_f32) / 4;
  if (info->args_size < 8 * *reals) return false;
  *words = (info->args_size - 8 * *reals) / 4;
  return *words % 2 == 0 && info->args_size_f32 == 4 * (*words + *reals) && info->args_size <= 256;
}

static bool narrowed_alike(const unsigned char *wide, const unsigned char *small, size_t words,
                           size_t reals) {
  if (memcmp(wide, small, 4 * words) != 0) return false;
  for (size_t i = 0; i < reals; i++) {
    double value;
    float narrow;
    memcpy(&value, wide + 4 * words + 8 * i, 8);
    memcpy(&narrow, small + 4 * words + 4 * i, 4);
    if ((float)value != narrow) return false;
  }
  return true;
}

static void test_arguments(void **state) {
  (void)state;
  kedge_device *device = NULL;
  assert_int_equal(kedge_device_open("null", NULL, &device), KEDGE_OK);
  failures = 0;
  uint32_t with_reals = 0;
  FOR_EACH_OP(op) {
    size_t words = 0, reals = 0;
    EXPECT(layout(kedge_op_get(op), &words, &reals), op, "its arguments have no layout to narrow");
    for (const kedge_case_row *row = kedge_cases_of(op); row->name; row++) {
      if (row->rejects) continue;
      kedge_case c;
      kedge_exec *exec = NULL;
      kedge_case_init(&c, row, NULL, KEDGE_F32, false);
      EXPECT(kedge_exec_new(device, c.graph, NULL, &exec) == KEDGE_OK, op, kedge_message());
      for (uint32_t s = 0; exec && s < exec->step_count; s++) {
        const kedge_node *node = &c.graph->nodes[exec->steps[s].node];
        if (node->op != op) continue;
        EXPECT(narrowed_alike(c.graph->args + node->args, exec->steps[s].call.args, words, reals), op,
               "its arguments change when they are narrowed");
        with_reals += reals > 0;
      }
      kedge_exec_free(exec);
      kedge_case_destroy(&c);
    }
  }
  kedge_device_close(device);
  assert_int_equal(failures, 0);
  assert_true(with_reals > 5);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_words), cmocka_unit_test(test_signatures),      cmocka_unit_test(test_stems),
      cmocka_unit_test(test_cases), cmocka_unit_test(test_differentiating), cmocka_unit_test(test_arguments)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
