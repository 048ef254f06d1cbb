/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * The command `plan`: exact counts of a full-size model, bytes by kind, and the arena that a run really
 * plans. */
#include "models/decoder/decoder.h"
#include "models/training/optimizer.h"
#include "tests/support/files.h"
#include "tests/support/program.h"
#include "tests/support/tokenizers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static void check(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

static json_t *plan(const char *model, const char *options) {
  char arguments[1024];
  snprintf(arguments, sizeof arguments, "plan --model '%s' --json %s", model, options);
  return test_kedge_json(arguments);
}

static void test_full_size(void **state) {
  (void)state;
  const char *model = test_golden("configs/qwen3_30b_a3b.json");
  struct timespec from, to;
  clock_gettime(CLOCK_MONOTONIC, &from);
  json_t *p = plan(model, "");
  clock_gettime(CLOCK_MONOTONIC, &to);
  const json_int_t n = 30532122624;
  assert_true(test_json_int(p, "parameters") == n);
  assert_true(test_json_int(p, "tensors") == 18867);
  /* Per layer: attention, its norms, router, 8 of 128 experts; then the last norm and the head. */
  const json_int_t layer =
      2048 * (4096 + 512 + 512) + 4096 * 2048 + 2 * 128 + 2 * 2048 + 128 * 2048 + 8 * 3 * 768 * 2048;
  assert_true(test_json_int(p, "active_parameters") == 48 * layer + 2048 + (json_int_t)151936 * 2048);
  const json_int_t routers = (json_int_t)48 * 128 * 2048; /* f32, without a second copy */
  assert_true(test_json_int(p, "bytes.weights") == 2 * n + 2 * routers);
  assert_true(test_json_int(p, "bytes.gradients") == 4 * n);
  assert_true(test_json_int(p, "bytes.optimizer") == 8 * n);
  assert_true(test_json_int(p, "bytes.master") == 4 * (n - routers));
  static const char *const kinds[] = {"weights",     "gradients", "optimizer", "master",
                                      "activations", "scratch",   "inputs",    "sums"};
  json_int_t sum = 0;
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    char path[64];
    snprintf(path, sizeof path, "bytes.%s", kinds[i]);
    sum += test_json_int(p, path);
  }
  assert_true(test_json_int(p, "bytes.total") == sum);
  assert_int_equal(json_object_size(json_object_get(p, "bytes")), 9);
  /* A second and no more; generous for sanitizers and slow machines. */
  double seconds = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
  print_message("planned in %.2f s\n", seconds);
  assert_true(seconds < 10);
  json_t *f32 = plan(model, "--dtype f32"), *again = plan(model, "--recompute"),
         *longer = plan(model, "--tokens 5000");
  assert_true(test_json_int(f32, "bytes.weights") == 4 * n);
  assert_true(test_json_int(f32, "bytes.master") == 0);
  assert_true(test_json_int(again, "bytes.activations") * 3 < test_json_int(p, "bytes.activations"));
  assert_true(test_json_int(again, "nodes") > test_json_int(p, "nodes"));
  assert_true(test_json_int(longer, "bucket") == 5120);
  assert_true(test_json_int(longer, "bytes.activations") > 2 * test_json_int(p, "bytes.activations"));
  json_decref(p), json_decref(f32), json_decref(again), json_decref(longer);
}

/* What the command says is what training plans. */
static void test_same_plan(void **state) {
  (void)state;
  const kedge_optimizer_options options = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .max_norm = 1};
  kedge_device *device;
  kedge_model *model;
  kedge_workspace *workspace;
  kedge_optimizer optimizer;
  kedge_decoder decoder;
  kedge_exec *exec;
  check(kedge_device_open("cpu", NULL, &device));
  check(kedge_workspace_new(device, &workspace));
  check(kedge_model_load(device, test_golden("qwen3_moe_mixed"), KEDGE_F32, &model));
  check(kedge_optimizer_init(&optimizer, model, &options, workspace));
  check(kedge_decoder_build(model, &(kedge_decoder_spec){.tokens = 64, .loss = true}, &decoder));
  check(kedge_optimizer_extend(&optimizer, &decoder));
  check(kedge_exec_new(device, decoder.graph, workspace, &exec));
  kedge_plan_summary want = kedge_exec_plan(exec);
  json_t *p = plan(test_golden("qwen3_moe_mixed"), "--tokens 61");
  assert_true(test_json_int(p, "bucket") == 64);
  assert_true(test_json_int(p, "parameters") == (json_int_t)model->params.total);
  assert_true(test_json_int(p, "bytes.activations") == (json_int_t)want.arena);
  assert_true(test_json_int(p, "bytes.scratch") == (json_int_t)want.scratch);
  assert_true(test_json_int(p, "bytes.inputs") == (json_int_t)want.inputs);
  assert_true(test_json_int(p, "bytes.gradients") + test_json_int(p, "bytes.optimizer") +
                  test_json_int(p, "bytes.master") ==
              (json_int_t)kedge_optimizer_bytes(&optimizer));
  json_decref(p);
  kedge_exec_free(exec);
  kedge_decoder_destroy(&decoder);
  kedge_optimizer_destroy(&optimizer);
  kedge_model_free(model);
  kedge_workspace_free(workspace);
  kedge_device_close(device);
}

static void test_text(void **state) {
  (void)state;
  char arguments[1024];
  snprintf(arguments, sizeof arguments, "plan --model '%s'", test_golden("configs/qwen3_30b_a3b.json"));
  test_run run = test_kedge(arguments, 0, "");
  assert_non_null(strstr(run.out, "parameters: 30,532,122,624 (3,041,867,776 active) in 18,867 tensors"));
  assert_non_null(strstr(run.out, "56.9 GiB       61,089,411,072 B"));
  assert_string_equal(run.err, "");
  test_run_free(&run);
}

/* Parameters of the routed experts; what a rank keeps of them and of the rest follows. */
typedef struct full_size {
  const char *file;
  json_int_t layers, experts, width, hidden;
} full_size;

static void check_ranks(const full_size *m, int world, int share, json_int_t *before) {
  char options[96];
  snprintf(options, sizeof options, "--world %d --ep %d --tokens 4096 --recompute --memory 80GiB", world,
           share);
  json_t *p = plan(test_golden(m->file), options);
  const json_int_t all = test_json_int(p, "parameters"),
                   routed = m->layers * m->experts * 3 * m->width * m->hidden,
                   here = all - routed + routed / share, total = test_json_int(p, "bytes.total");
  assert_true(routed < all);
  assert_true(test_json_int(p, "bytes.gradients") == 4 * here);
  /* Moments are shared by all: a rank has its part, rounded up to blocks of 16 elements of every tensor. */
  const double part = 8.0 * (double)all / world, has = (double)test_json_int(p, "bytes.optimizer");
  assert_true(has >= part && has <= part * 1.01 + 8 * 16 * 600);
  /* What is sent away of the gradients: all that others keep. */
  assert_true(test_json_int(p, "sent.gradients") == 4 * here - test_json_int(p, "bytes.optimizer") / 2);
  assert_true(test_json_int(p, "sent.rows") > 0);
  assert_true(json_is_boolean(json_object_get(p, "fits")));
  assert_true(json_is_true(json_object_get(p, "fits")) == (total <= ((json_int_t)80 << 30)));
  assert_true(total < *before); /* memory falls as ranks come to it */
  *before = total;
  json_decref(p);
}

static void test_ranks(void **state) {
  (void)state;
  static const full_size models[] = {{"configs/moonlight_16b_a3b.json", 26, 64, 1408, 2048},
                                     {"configs/deepseek_v2_lite.json", 26, 64, 1408, 2048},
                                     {"configs/qwen3_30b_a3b.json", 48, 128, 768, 2048}};
  struct timespec from, to;
  clock_gettime(CLOCK_MONOTONIC, &from);
  for (int i = 0; i < 3; i++) {
    json_int_t before = INT64_MAX;
    for (int world = 8; world <= 1024; world *= 8)
      if (world != 512) check_ranks(&models[i], world, 8, &before);
    check_ranks(&models[i], 1024, 32, &before);
  }
  clock_gettime(CLOCK_MONOTONIC, &to);
  print_message("12 plans in %.1f s\n",
                (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec));
}

static void test_fit_and_advice(void **state) {
  (void)state;
  char arguments[1024];
  const char *model = test_golden("configs/moonlight_16b_a3b.json");
  snprintf(arguments, sizeof arguments, "plan --model '%s' --world 8 --ep 8 --tokens 4096 --memory 80G",
           model);
  test_run run = test_kedge(arguments, 0, "");
  assert_non_null(strstr(run.out, "fits into 80G (74.5 GiB) with"));
  assert_non_null(strstr(run.out, "8 ranks, 8 share the experts"));
  assert_non_null(strstr(run.out, "gradients sent to be summed"));
  assert_non_null(strstr(run.out, "an update of 1 micro-batch, 32768 tokens on all ranks"));
  test_run_free(&run);
  snprintf(arguments, sizeof arguments, "plan --model '%s' --world 8 --tokens 4096 --memory 80G", model);
  run = test_kedge(arguments, 0, "");
  assert_non_null(strstr(run.out, "does not fit into 80G (74.5 GiB): "));
  assert_non_null(strstr(run.out, "--recompute"));
  const char *fits = strstr(run.out, ", fits\n");
  assert_non_null(fits);
  assert_string_equal(fits, ", fits\n"); /* the last line: nothing more is advised */
  test_run_free(&run);
}

static void test_refusals(void **state) {
  (void)state;
  char *other = strdup(test_tokenizer_model_config);
  memcpy(strstr(other, "qwen3"), "qwen9", 5);
  test_write_text(test_path(test_folder(), "other.json"), other);
  free(other);
  test_kedge_expect("plan --model nowhere", 2, "nowhere");
  test_kedge_expect("plan --model other.json", 2, "qwen9_moe");
  test_kedge_expect("plan --model .", 2, "config.json");
  char arguments[1024];
  snprintf(arguments, sizeof arguments, "plan --model '%s' --tokens 0", test_golden("qwen3_moe_mixed"));
  test_kedge_expect(arguments, 2, "--tokens: expected a number from 1");
  snprintf(arguments, sizeof arguments, "plan --model '%s' --world 8 --ep 3", test_golden("qwen3_moe_mixed"));
  test_kedge_expect(arguments, 2, "does not divide the 8 ranks");
  snprintf(arguments, sizeof arguments, "plan --model '%s' --memory much", test_golden("qwen3_moe_mixed"));
  test_kedge_expect(arguments, 2, "--memory: expected bytes as 80G or 80GiB, came \"much\"");
  snprintf(arguments, sizeof arguments, "plan --model '%s' --dtype f16", test_golden("qwen3_moe_mixed"));
  test_kedge_expect(arguments, 2, "--dtype: expected f32 or bf16, came \"f16\"");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_full_size),      cmocka_unit_test(test_same_plan),
                                     cmocka_unit_test(test_text),           cmocka_unit_test(test_ranks),
                                     cmocka_unit_test(test_fit_and_advice), cmocka_unit_test(test_refusals)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
