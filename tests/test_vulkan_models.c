/* SPDX-License-Identifier: Apache-2.0
 * ctest: ci
 *
 * Whole models on the Vulkan backend under the validation layers: every intervention's gradients element-wise
 * against all-double ones, on two families, and the plain ones of all families; ten updates of every family
 * against `cpu`; the same bits in a second run; device memory as planned.
 */
#include "core/exec.h"
#include "models/checkpoint/safetensors.h"
#include "models/decoder/pass.h"
#include "models/gradcheck/gradcheck.h"
#include "models/training/optimizer.h"
#include "tests/support/batch.h"
#include "tests/support/files.h"
#include "tests/support/vulkan.h"

#include <glob.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 10 };

static kedge_device *vulkan;

static void check(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

static void check_gradients(uint32_t problem, uint32_t variant) {
  const kedge_gradcheck_options options = {.backend = kedge_test_vulkan_name(), .seed = 1, .entries = 3};
  const kedge_gradcheck_variant *v = &kedge_gradcheck_variants[variant];
  kedge_gradcheck r;
  check(kedge_gradcheck_run(&kedge_gradcheck_problems[problem], v, &options, &r));
  if (!r.passed)
    fail_msg("problem %u, %s: gradients are off by %g, over %g", problem, v->name, r.error, r.limit);
  if (!r.sensitive) fail_msg("problem %u, %s: planted faults pass", problem, v->name);
}

static void test_interventions(void **state) {
  (void)state;
  uint32_t checks = 0;
  for (uint32_t v = 0; v < kedge_gradcheck_variant_count; v++)
    for (uint32_t p = 0; p < kedge_gradcheck_problem_count; p++)
      if (v == 0 || p == v % kedge_gradcheck_problem_count) {
        check_gradients(p, v);
        checks++;
      }
  printf("%u gradient checks\n", checks);
}

/* What ten updates leave. */
typedef struct outcome {
  float losses[STEPS];
  double norms[STEPS];
  float *logits;
  uint64_t count;
} outcome;

static outcome train(kedge_device *device, const char *variant, kedge_dtype dtype) {
  char path[512];
  kedge_model *model;
  kedge_workspace *workspace;
  kedge_st_file *golden;
  outcome o = {.count = 0};
  snprintf(path, sizeof path, "%s/golden.safetensors", variant);
  check(kedge_st_open(test_golden(path), &golden));
  check(kedge_model_load(device, test_golden(variant), dtype, &model));
  check(kedge_workspace_new(device, &workspace));
  test_batch b = test_batch_read(golden, true);
  const kedge_tokens tokens = test_batch_inputs(&b);
  const kedge_decoder_spec spec = {.loss = true, .logits = true, .recompute = true};
  const kedge_optimizer_options options = {
      .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .decay = 0.1, .max_norm = 1.0};
  kedge_optimizer optimizer = {0};
  kedge_passes passes;
  kedge_pass *pass;
  check(kedge_optimizer_init(&optimizer, model, &options, workspace));
  kedge_passes_init(&passes, model, &spec, workspace, kedge_optimizer_extend, &optimizer);
  check(kedge_passes_get(&passes, b.size, 0, &pass));
  for (int step = 0; step < STEPS; step++) {
    kedge_optimizer_norms norms;
    check(kedge_optimizer_begin(&optimizer));
    check(kedge_pass_run(pass, &tokens));
    check(kedge_exec_read(pass->exec, pass->decoder.loss_1, &o.losses[step], 4));
    check(kedge_optimizer_step(&optimizer, 1e-3, &norms));
    o.norms[step] = norms.all;
  }
  check(kedge_optimizer_begin(&optimizer));
  check(kedge_pass_run(pass, &tokens));
  o.count = kedge_value_count(pass->decoder.graph, pass->decoder.logits_TV);
  o.logits = test_read_floats(pass, pass->decoder.logits_TV);
  kedge_optimizer_destroy(&optimizer);
  kedge_passes_destroy(&passes);
  kedge_workspace_free(workspace);
  kedge_model_free(model);
  kedge_st_close(golden);
  test_batch_free(&b);
  return o;
}

static void compare(const char *name, const outcome *got, const outcome *want) {
  for (int i = 0; i < STEPS; i++) {
    double off = fabs((double)got->losses[i] - (double)want->losses[i]) / fabs((double)want->losses[i]);
    if (!(off <= 1e-4))
      fail_msg("%s, step %d: loss %g, cpu %g", name, i, (double)got->losses[i], (double)want->losses[i]);
    if (!(fabs(got->norms[i] - want->norms[i]) <= 1e-3 * want->norms[i]))
      fail_msg("%s, step %d: gradient norm %g, cpu %g", name, i, got->norms[i], want->norms[i]);
  }
}

static void test_ten_updates(void **state) {
  (void)state;
  glob_t found;
  kedge_device *cpu;
  uint32_t trained = 0;
  check(kedge_device_open("cpu", NULL, &cpu));
  assert_int_equal(glob(test_golden("*/golden.safetensors"), 0, NULL, &found), 0);
  for (size_t i = 0; i < found.gl_pathc; i++) {
    char *slash = strrchr(found.gl_pathv[i], '/');
    *slash = 0;
    const char *name = strrchr(found.gl_pathv[i], '/') + 1;
    if (strstr(name, "_bf16") || strstr(name, "_fused")) continue;
    outcome want = train(cpu, name, KEDGE_F32), got = train(vulkan, name, KEDGE_F32),
            again = train(vulkan, name, KEDGE_F32);
    compare(name, &got, &want);
    assert_memory_equal(got.losses, again.losses, sizeof got.losses);
    assert_memory_equal(got.logits, again.logits, got.count * 4);
    free(want.logits), free(got.logits), free(again.logits);
    trained++;
  }
  globfree(&found);
  kedge_device_close(cpu);
  assert_true(trained >= 10);
  printf("%u models\n", trained);
}

/* bf16 storage, too, repeats its bits and follows the losses of f32. */
static void test_bf16(void **state) {
  (void)state;
  outcome f32 = train(vulkan, "qwen3_moe_top2of8", KEDGE_F32),
          got = train(vulkan, "qwen3_moe_top2of8", KEDGE_BF16),
          again = train(vulkan, "qwen3_moe_top2of8", KEDGE_BF16);
  assert_memory_equal(got.losses, again.losses, sizeof got.losses);
  for (int i = 0; i < STEPS; i++) assert_true(fabsf(got.losses[i] - f32.losses[i]) <= 0.02f * f32.losses[i]);
  free(f32.logits), free(got.logits), free(again.logits);
}

static int open_device(void **state) {
  (void)state;
  return vulkan ? 0 : -1;
}

static int close_device(void **state) {
  (void)state;
  kedge_device_close(vulkan);
  return 0;
}

int main(void) {
  if (!kedge_test_vulkan(&vulkan)) return 77;
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_ten_updates), cmocka_unit_test(test_bf16),
                                     cmocka_unit_test(test_interventions)};
  return cmocka_run_group_tests(tests, open_device, close_device);
}
