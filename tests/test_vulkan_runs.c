/* SPDX-License-Identifier: Apache-2.0
 * ctest: ci
 *
 * The program on the Vulkan backend under the validation layers: prior, training with a router prior, probe
 * and generation, whose numbers follow those of `cpu`.
 */
#include "tests/support/files.h"
#include "tests/support/training.h"
#include "tests/support/vulkan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 3 };

static void run_all(const char *name, const char *backend) {
  training_expect(
      0, "", "prior --model base --data train.jsonl --max-length 96 --dtype f32 --backend %s --out %s.prior",
      backend, name);
  training_expect(
      0, "",
      "train run.yaml output_dir=%s-out router.intervention=rpb router.prior=%s.prior max_steps=%d dtype=f32 "
      "backend=%s",
      name, name, STEPS, backend);
}

static void test_runs(void **state) {
  (void)state;
  const char *backend = kedge_test_vulkan_name();
  training_prepare(24);
  run_all("cpu", "cpu");
  run_all("vulkan", backend);
  for (unsigned step = 1; step <= STEPS; step++) {
    double want = training_metric("cpu-out", step, "train/loss"),
           got = training_metric("vulkan-out", step, "train/loss");
    if (!(fabs(got - want) <= 1e-4 * fabs(want))) fail_msg("step %u: loss %g, cpu %g", step, got, want);
  }
  run_all("again", backend);
  assert_true(training_same("vulkan-out/model.safetensors", "again-out/model.safetensors"));
  training_expect(0, "",
                  "probe --base base --post vulkan-out --data train.jsonl --backend vulkan --device %s",
                  strchr(backend, ':') ? strchr(backend, ':') + 1 : "0");
  training_expect(0, "", "generate --model vulkan-out --tokens 3,4,5 --max-new-tokens 6 --backend %s",
                  backend);
}

/* What cannot be opened is one line, and ends with an error. */
static void test_errors(void **state) {
  (void)state;
  training_expect(1, "no device \"nothing\"",
                  "generate --model base --tokens 3 --backend vulkan --device nothing");
}

int main(void) {
  kedge_device *device;
  if (!kedge_test_vulkan(&device)) return 77;
  kedge_device_close(device);
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_runs), cmocka_unit_test(test_errors)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
