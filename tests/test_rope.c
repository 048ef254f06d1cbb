/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Rotary frequencies, plain and stretched, against transformers 5.23 (Qwen3MoeRotaryEmbedding, float32), and
 * that a config's stretching reaches the model: its scores differ from those without.
 */
#include "models/decoder/rope.h"
#include "tests/support/training.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct rope_case {
  uint32_t width;
  kedge_rope_config rope;
  double frequencies[8], magnitude;
} rope_case;

static const rope_case cases[] = {
    {16,
     {.type = KEDGE_ROPE_DEFAULT, .theta = 1e4},
     {1, 0.316227764, 0.100000001, 0.0316227786, 0.00999999978, 0.00316227786, 0.00100000005, 0.000316227786},
     1},
    {16,
     {KEDGE_ROPE_YARN, 1e4, 4, 32, 1, 0, 0, 0, 512, true},
     {1, 0.25693506, 0.0625, 0.0138349654, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05},
     1.138629436111989},
    {16,
     {KEDGE_ROPE_YARN, 1e6, 4, 32, 1, 0, 0, 0, 8192, true},
     {1, 0.177827939, 0.0316227786, 0.00421755994, 0.000500000024, 4.44569851e-05, 7.90569356e-06,
      1.40585337e-06},
     1.138629436111989},
    {8,
     {KEDGE_ROPE_YARN, 1e4, 40, 32, 1, 0.707, 1, 0, 4096, true},
     {1, 0.100000001, 0.00512499968, 2.49999994e-05},
     0.9210423553163399},
    {16,
     {KEDGE_ROPE_YARN, 1e4, 2.5, 16, 2, 0, 0, 1.25, 2048, false},
     {1, 0.316227764, 0.100000001, 0.0276105534, 0.00540929567, 0.00126491114, 0.00039999999, 0.000126491112},
     1.25},
    {4, {KEDGE_ROPE_YARN, 1e4, 3, 32, 1, 0.707, 0, 0, 8, true}, {1, 0.00333333341}, 1.109861228866811},
};

static void test_frequencies(void **state) {
  (void)state;
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    double got[8];
    kedge_rope_frequencies(&cases[c].rope, cases[c].width, got);
    for (uint32_t i = 0; i < cases[c].width / 2; i++)
      if (!(fabs(got[i] - cases[c].frequencies[i]) <= 1e-6 * cases[c].frequencies[i]))
        fail_msg("case %zu, frequency %u: %.9g, want %.9g", c, i, got[i], cases[c].frequencies[i]);
    if (!(fabs(kedge_rope_magnitude(&cases[c].rope) - cases[c].magnitude) <= 1e-14))
      fail_msg("case %zu: magnitude %.16g", c, kedge_rope_magnitude(&cases[c].rope));
  }
}

static double nll(const char *model) {
  test_run run = training_kedge("score --model %s --tokens 5,17,3,99,240,11,7 --out s.st", model);
  double value = (double)NAN;
  const char *at = strstr(run.out, "mean nll ");
  if (run.exit_code || !at || sscanf(at, "mean nll %lf", &value) != 1)
    fail_msg("score of %s: %s", model, run.err);
  test_run_free(&run);
  return value;
}

static void test_model(void **state) {
  (void)state;
  training_prepare(1);
  training_expect(0, "",
                  "--version; cp -r base long; sed -i 's/\"rope_theta\": 10000.0/\"rope_theta\": 10000.0, "
                  "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0}/' long/config.json");
  assert_true(fabs(nll("base") - nll("long")) > 1e-3);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_frequencies), cmocka_unit_test(test_model)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
