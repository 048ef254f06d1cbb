/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Near ties of the top-k: gaps against the logits that they come of, what is counted and listed, choices that
 * differ with and without one; and that a difference between runs is explained by them, or not.
 */
#include "models/checkpoint/safetensors.h"
#include "models/trace/near_ties.h"
#include "tests/support/explain.h"
#include "tests/support/files.h"
#include "tests/support/training.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 4 };

static const char *at(const char *name) {
  return test_path(test_folder(), name);
}

static void ok(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

static int prepare(void **state) {
  (void)state;
  training_prepare(16);
  return 0;
}

/* Under softmax logits are ranked. */
static void test_gaps(void **state) {
  (void)state;
  kedge_trace t;
  uint64_t counts[2], found = 0;
  size_t bytes, lines = 0;
  char said[128];
  test_run run = training_kedge("trace --model base --data train.jsonl --out t --logits --near-ties near.csv "
                                "--near-tolerance 0.05 --threads 1");
  assert_int_equal(run.exit_code, 0);
  ok(kedge_trace_load(at("t"), &t));
  assert_non_null(t.gaps);
  assert_non_null(t.nexts);
  for (size_t row = 0; row < (size_t)t.tokens * t.layers; row++) {
    const float *z = t.logits + row * t.experts;
    const int32_t *ids = t.ids + row * t.topk;
    float most = -INFINITY;
    int32_t next = -1;
    for (int32_t e = 0; e < (int32_t)t.experts; e++) {
      if (e == ids[0] || e == ids[1] || z[e] <= most) continue;
      most = z[e];
      next = e;
    }
    assert_int_equal(t.nexts[row], next);
    assert_true(t.gaps[row] == z[ids[1]] - most);
    found += (double)t.gaps[row] < 0.05;
  }
  assert_int_equal(kedge_near_ties_count(&t, 0.05, counts), found);
  assert_int_equal(counts[0] + counts[1], found);
  assert_true(found > 10);
  snprintf(said, sizeof said, "near ties within 0.05: %llu of %llu choices; by layer 0:%llu",
           (unsigned long long)found, (unsigned long long)t.tokens * t.layers, (unsigned long long)counts[0]);
  if (!strstr(run.out, said)) fail_msg("said \"%s\", want \"%s\"", run.out, said);
  char *text = test_read(at("near.csv"), &bytes);
  for (char *c = text; *c; c++) lines += *c == '\n';
  assert_int_equal(lines, found + 1);
  unsigned token, sample, layer, chosen, left;
  float gap;
  assert_int_equal(
      sscanf(strchr(text, '\n') + 1, "%u,%u,%u,%u,%u,%f", &token, &sample, &layer, &chosen, &left, &gap), 6);
  const size_t row = (size_t)token * t.layers + layer;
  assert_int_equal(sample, t.samples[token]);
  assert_int_equal(chosen, t.ids[row * t.topk + 1]);
  assert_int_equal(left, t.nexts[row]);
  assert_true(gap == t.gaps[row]);
  free(text);
  test_run_free(&run);
  kedge_trace_destroy(&t);
  training_expect(2, "would replace --out", "trace --model base --data train.jsonl --out t --near-ties t");
}

static kedge_trace hand_made(void) {
  kedge_trace t;
  ok(kedge_trace_init(&t, 4, 2, 4, 2));
  t.gaps = kedge_alloc(8, sizeof *t.gaps);
  for (int i = 0; i < 8; i++) {
    t.ids[2 * i] = 0, t.ids[2 * i + 1] = 1;
    t.gaps[i] = 0.5f;
  }
  t.samples[2] = t.samples[3] = 1;
  return t;
}

static void test_flips(void **state) {
  (void)state;
  kedge_flips flips;
  kedge_trace a = hand_made(), b = hand_made();
  ok(kedge_flips_find(&a, &b, 1e-5, &flips));
  assert_int_equal(flips.rows, 8);
  assert_int_equal(flips.flipped, 0);
  b.ids[2] = 1, b.ids[3] = 0; /* token 0, layer 1: the same experts in another order */
  b.ids[9] = 2;               /* token 2, layer 0 */
  ok(kedge_flips_find(&a, &b, 1e-5, &flips));
  assert_int_equal(flips.flipped, 1);
  assert_int_equal(flips.unexplained, 1);
  assert_int_equal(flips.token, 2);
  assert_int_equal(flips.layer, 0);
  a.gaps[4] = 1e-6f;
  b.ids[15] = 3; /* token 3, layer 1, after it in the sample */
  ok(kedge_flips_find(&a, &b, 1e-5, &flips));
  assert_int_equal(flips.flipped, 2);
  assert_int_equal(flips.unexplained, 0);
  b.ids[1] = 2; /* token 0: of another sample, before it */
  ok(kedge_flips_find(&a, &b, 1e-5, &flips));
  assert_int_equal(flips.unexplained, 1);
  b.samples[1] = 1;
  assert_int_equal(kedge_flips_find(&a, &b, 1e-5, &flips), KEDGE_ERR_MISMATCH);
  kedge_trace_destroy(&a);
  kedge_trace_destroy(&b);
}

/* Expert 3 of layer 0 gets the router row of expert 2, `by` times as large: whenever one of them is the last
 * chosen and the other the best left out, they are as near. */
static void make_twins(const char *name, float by) {
  char command[512], path[64];
  kedge_st_file *file;
  snprintf(command, sizeof command, "rm -rf '%s' && cp -r '%s' '%s'", at(name), at("base"), at(name));
  assert_int_equal(system(command), 0);
  snprintf(path, sizeof path, "%s/model.safetensors", name);
  ok(kedge_st_open(at(path), &file));
  const kedge_st_tensor *t = kedge_st_find(file, "model.layers.0.mlp.gate.weight");
  assert_non_null(t);
  const uint64_t width = t->shape[1];
  size_t bytes;
  char *all = test_read(at(path), &bytes);
  float row[64];
  assert_true(width <= 64);
  memcpy(row, (const float *)t->data + 2 * width, width * sizeof *row);
  /* Where the tensor lies in the file: its bytes are there once. */
  char *place = memmem(all, bytes, t->data, t->bytes);
  assert_non_null(place);
  for (uint64_t i = 0; i < width; i++) row[i] *= by;
  memcpy(place + 3 * width * sizeof *row, row, width * sizeof *row);
  kedge_st_close(file);
  test_write(at(path), all, bytes);
  free(all);
}

static void train(const char *base, const char *out, const char *more) {
  training_expect(
      0, "",
      "train run.yaml model_name_or_path=%s output_dir=%s max_steps=%d gradient_accumulation_steps=2 "
      "threads=1 save_steps=1 %s",
      base, out, STEPS, more);
}

static void test_explained(void **state) {
  (void)state;
  explain_report report;
  train("base", "one", "");
  train("base", "same", "");
  explain_runs("one", "same", STEPS, 1e-5, 1e-5, &report);
  assert_true(explain_holds("the same run", &report, 1e-5));
  assert_true(report.worst == 0 && report.flipped == 0 && report.choices > 1000);
  /* Another learning rate: no choice has to flip for that. */
  train("base", "faster", "learning_rate=3.01e-3");
  explain_runs("one", "faster", STEPS, 1e-5, 1e-9, &report);
  assert_false(explain_holds("a faster run", &report, 1e-5));
  /* Twins of experts that another last bit exchanges. */
  make_twins("below", 0.9999999f);
  make_twins("above", 1.0000001f);
  train("below", "low", "");
  train("above", "high", "");
  test_remove(at("base"));
  assert_int_equal(rename(at("below"), at("base")), 0);
  /* explain_runs routes both through base/ before the first update: from the first update on they differ. */
  explain_runs("low", "high", STEPS, 1e-5, 1e-3, &report);
  assert_true(explain_holds("twins", &report, 1e-5));
  assert_true(report.worst > 1e-5 && report.near_ties > 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_gaps),
      cmocka_unit_test(test_flips),
      cmocka_unit_test(test_explained),
  };
  return cmocka_run_group_tests_name("near ties", tests, prepare, NULL);
}
