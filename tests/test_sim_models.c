/* SPDX-License-Identifier: Apache-2.0
 * ctest: ci
 *
 * Whole models on the simulated card: gradients of every intervention through decoders, ten training steps
 * beside the CPU's, the same bits in every order of threads. KEDGE_SIM names another device for all of it, as
 * in test_sim.c ("cuda"). Ops alone are in test_sim.c. */
#include "core/device.h"
#include "models/gradcheck/gradcheck.h"
#include "tests/support/files.h"
#include "tests/support/runs.h"
#include "tests/support/training.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 10 };

static const char *device_of(const char *usual) {
  const char *other = getenv("KEDGE_SIM");
  return other && *other ? other : usual;
}

static void check_gradients(const char *problem, const char *usual) {
  const char *backend = device_of(usual);
  for (uint32_t v = 0; v < kedge_gradcheck_variant_count; v++) {
    kedge_gradcheck r;
    const kedge_gradcheck_options options = {.backend = backend, .seed = 1, .entries = 3};
    if (kedge_gradcheck_run(kedge_gradcheck_find_problem(problem), &kedge_gradcheck_variants[v], &options,
                            &r) != KEDGE_OK)
      fail_msg("%s, %s on %s: %s", problem, kedge_gradcheck_variants[v].name, backend, kedge_message());
    if (!r.passed || !r.sensitive)
      fail_msg("%s, %s on %s: gradients are off by %g, planted faults by %g", problem,
               kedge_gradcheck_variants[v].name, backend, r.error, r.planted);
  }
}

/* Every row of routers.def has a variant there (test_gradcheck.c). */
static void test_interventions(void **state) {
  (void)state;
  check_gradients("qwen3", "sim:wave=32");
  check_gradients("ds_v3", "sim:wave=64,order=random");
  check_gradients("qwen3", "sim:wave=64,order=reverse,products=plain");
}

static int prepare(void **state) {
  (void)state;
  runs_prepare(40);
  return 0;
}

static void train(const char *base, const char *out, const char *backend, const char *more) {
  training_expect(0, "",
                  "train run.yaml model_name_or_path=%s output_dir=%s backend=%s max_steps=%d "
                  "router.intervention=rpb router.prior=%s.prior max_length=64 per_device_train_batch_size=2 "
                  "gradient_accumulation_steps=1 %s",
                  base, out, backend, STEPS, base, more);
}

static void same_losses(const char *a, const char *b, double limit) {
  double most = 0;
  for (unsigned step = 1; step <= STEPS; step++) {
    const double x = training_metric(a, step, "train/loss"), y = training_metric(b, step, "train/loss");
    if (!(fabs(x - y) <= limit * fabs(y))) fail_msg("step %u: loss %.9g of %s, %.9g of %s", step, x, a, y, b);
    most = fmax(most, fabs(x - y) / fabs(y));
  }
  printf("%s beside %s: losses of %d steps within %.2g\n", a, b, STEPS, most);
}

/* Softmax scores, f32: also the same bits whatever the order of threads and blocks. */
static void test_training(void **state) {
  (void)state;
  train("base", "base-cpu", "cpu", "dtype=float32");
  train("base", "base-sim", device_of("sim:wave=32"), "dtype=float32");
  same_losses("base-sim", "base-cpu", 1e-4);
  train("base", "base-random", device_of("sim:wave=32,order=random,processors=5"), "dtype=float32");
  assert_true(training_same("base-sim/model.safetensors", "base-random/model.safetensors"));
  train("base", "base-wide", device_of("sim:wave=64,order=reverse"), "dtype=float32");
  same_losses("base-wide", "base-cpu", 1e-4);
}

static void test_training_bf16(void **state) {
  (void)state;
  train("base", "bf16-cpu", "cpu", "dtype=bfloat16");
  train("base", "bf16-sim", device_of("sim:wave=64"), "dtype=bfloat16");
  same_losses("bf16-sim", "bf16-cpu", 2e-2);
}

/* Sigmoid scores, groups, latent attention, a shared expert and a dense layer. Where two experts' scores are
 * equal but for rounding, devices choose differently, and what follows parts in the third digit, at the usual
 * rate also between ref and cpu; so the weights move little here. */
static void test_training_sigmoid(void **state) {
  (void)state;
  train("sigmoid", "sigmoid-cpu", "cpu", "dtype=float32 learning_rate=1e-5");
  train("sigmoid", "sigmoid-sim", device_of("sim:wave=32"), "dtype=float32 learning_rate=1e-5");
  same_losses("sigmoid-sim", "sigmoid-cpu", 1e-4);
}

/* What a device's name may not hold is told in one line. */
static void test_settings(void **state) {
  (void)state;
  if (getenv("KEDGE_SIM")) return; /* the simulated card need not be here */
  kedge_device *device = NULL;
  static const char *const bad[] = {"sim:wave=16",
                                    "sim:order=sideways",
                                    "sim:wave",
                                    "sim:speed=9",
                                    "sim:seed=-1",
                                    "sim:wave=32,,",
                                    "sim:processors=0",
                                    "sim:processors=1025",
                                    "sim:wave=0",
                                    "sim:products=groups2",
                                    "sim:=",
                                    "sim:,",
                                    "sim:wave=32,order",
                                    "sim:blas=1",
                                    "sim:seed=1e3",
                                    "sim:wave= 32",
                                    "sim:WAVE=32",
                                    "sim:seed=9999999999"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    assert_int_equal(kedge_device_open(bad[i], NULL, &device), KEDGE_ERR_ARGUMENT);
    assert_null(device);
    assert_non_null(strstr(kedge_message(), "expected wave=32|64"));
  }
  assert_int_equal(kedge_device_open("sim:products=groups,wave=64", NULL, &device), KEDGE_ERR_ARGUMENT);
  assert_non_null(strstr(kedge_message(), "products=groups: expected wave=32"));
  assert_int_equal(kedge_device_open("sim:products=groups", NULL, &device), KEDGE_OK);
  assert_non_null(strstr(kedge_device_description(device), ", wgmma"));
  assert_null(strstr(kedge_device_description(device), "disagrees"));
  kedge_device_close(device);
  assert_int_equal(kedge_device_open("cpu:wave=32", NULL, &device), KEDGE_ERR_ARGUMENT);
  assert_non_null(strstr(kedge_message(), "has no settings"));
  assert_int_equal(kedge_device_open("sim:", NULL, &device), KEDGE_OK);
  assert_string_equal(kedge_device_backend(device), "sim");
  kedge_device_close(device);
  training_expect(2, "expected wave=32|64", "train run.yaml output_dir=bad backend=sim:wave=33");
  training_expect(0, "device: sim (waves of 64",
                  "score --model base --tokens 1,2 --backend sim --device wave=64 --out s.safetensors");
  training_expect(2, "names one already",
                  "score --model base --tokens 1 --backend sim:wave=32 --device wave=64 --out s.safetensors");
  /* A card may be asked for by its number alone, whether it is here or not. */
  static const char *const cards[] = {"cuda:0", "hip:0", "cuda:blas=0,0"};
  for (size_t i = 0; i < sizeof cards / sizeof *cards; i++) {
    if (kedge_device_open(cards[i], NULL, &device) == KEDGE_ERR_ARGUMENT) fail_msg("%s", kedge_message());
    kedge_device_close(device);
  }
}

/* Writes into a copy of a module the number that modules had while nothing but its ops and steps told one
 * version from another. */
static void make_old(char *module, size_t bytes) {
  const uint32_t ops = KEDGE_OP_COUNT, old = 1;
  const uint64_t step = sizeof(kedge_step);
  unsigned found = 0;
  for (size_t at = 4; at + 12 <= bytes; at += 4)
    if (!memcmp(module + at, &ops, 4) && !memcmp(module + at + 4, &step, 8)) {
      memcpy(module + at - 4, &old, 4);
      found++;
    }
  assert_int_equal(found, 1);
}

/* A module that is cut short, of another version, or none, is a line. */
static void test_modules(void **state) {
  (void)state;
  const char *program = getenv("KEDGE_BIN");
  if (!program || !strrchr(program, '/')) skip();
  char path[4096];
  snprintf(path, sizeof path, "%.*s/libkedge-sim.so", (int)(strrchr(program, '/') - program), program);
  if (!test_exists(path)) skip();
  size_t bytes;
  char *module = test_read(path, &bytes);
  static const char *const said[] = {"libkedge-sim.so is cut short", "libkedge-sim.so is cut short",
                                     "libkedge-sim.so is cut short", "file too short", "invalid ELF header"};
  const size_t parts[] = {bytes / 2, bytes / 4, 100, 3, 5000};
  const char *other = test_path(test_folder(), "libkedge-sim.so");
  setenv("KEDGE_MODULES", test_folder(), 1);
  make_old(module, bytes);
  test_write(other, module, bytes);
  training_expect(1, "another version", "score --model base --tokens 1 --backend sim --out s.safetensors");
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    if (i == 4) memset(module, 'x', parts[i]);
    test_remove(other);
    test_write(other, module, parts[i]);
    training_expect(1, said[i], "score --model base --tokens 1 --backend sim --out s.safetensors");
  }
  unsetenv("KEDGE_MODULES");
  test_remove(other);
  free(module);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_settings),      cmocka_unit_test(test_modules),
      cmocka_unit_test(test_interventions), cmocka_unit_test(test_training),
      cmocka_unit_test(test_training_bf16), cmocka_unit_test(test_training_sigmoid)};
  if (getenv("KEDGE_TEST")) cmocka_set_test_filter(getenv("KEDGE_TEST"));
  return cmocka_run_group_tests(tests, prepare, NULL);
}
