/* SPDX-License-Identifier: Apache-2.0
 * ctest: ci
 *
 * Collective ops on the cards' own memory. The table of NCCL's functions is compared with an installed
 * library and header; everything else runs on the simulated card over libkedge-test-nccl.so, which has NCCL's
 * names and works on host memory: a run over it has the bits of one over MPI, and its failures are told.
 */
#include "tests/nccl/signatures.h"
#include "tests/support/files.h"
#include "tests/support/program.h"
#include "tests/support/ranks.h"
#include "tests/support/training.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- The table */

static const char *const names[] = {
#define NCCL_FUNCTION(result, name, parameters) "nccl" #name,
#include "backends/gpu/nccl.def"
};
enum { NAMES = sizeof names / sizeof *names };

static uint32_t missing(void *library) {
  uint32_t count = 0;
  for (int i = 0; i < NAMES; i++) {
    if (dlsym(library, names[i])) continue;
    print_error("no symbol %s\n", names[i]);
    count++;
  }
  return count;
}

static void test_symbols(void **state) {
  static const char *const libraries[][2] = {{"libnccl.so.2", KEDGE_NCCL_LIBRARY},
                                             {"librccl.so.1", KEDGE_RCCL_LIBRARY}};
  uint32_t skipped = 0;
  (void)state;
  for (int i = 0; i < 2; i++) {
    void *library = dlopen(libraries[i][0], RTLD_LAZY | RTLD_LOCAL);
    if (!library && *libraries[i][1]) library = dlopen(libraries[i][1], RTLD_LAZY | RTLD_LOCAL);
    if (library) {
      print_message("%s: %d functions looked up\n", libraries[i][0], NAMES);
      assert_int_equal(missing(library), 0);
      continue;
    }
    print_message("skipped: %s is not installed\n", libraries[i][0]);
    skipped++;
  }
  print_message("%u of 2 libraries skipped\n", skipped);
}

static void test_signatures(void **state) {
  (void)state;
  if (nccl_compared())
    print_message("signatures compared with nccl.h %u\n", nccl_compared());
  else
    print_message("skipped: signatures, 1 header; nccl.h was not there when the tests were built\n");
}

/* ---- Runs */

static const char *fake(void) {
  static char path[4096];
  const char *program = getenv("KEDGE_BIN"), *slash = program ? strrchr(program, '/') : NULL;
  snprintf(path, sizeof path, "%.*s/libkedge-test-nccl.so", slash ? (int)(slash - program) : 1,
           slash ? program : ".");
  return path;
}

static void use(bool library) {
  if (library)
    setenv("KEDGE_NCCL", fake(), 1);
  else
    unsetenv("KEDGE_NCCL");
}

static void train(bool library, int ranks, int experts, const char *dtype, const char *out) {
  use(library);
  ranks_expect(ranks, 0,
               library ? "over NCCL's interface 9.99.0 (libkedge-test-nccl.so)" : "over host memory",
               "train run.yaml backend=sim output_dir=%s max_steps=2 gradient_accumulation_steps=1 threads=1 "
               "dtype=%s save_steps=2 per_device_train_batch_size=1 expert_parallel=%d max_length=44",
               out, dtype, experts);
  use(false);
}

static void same_shards(const char *a, const char *b, int ranks) {
  for (int rank = 0; rank < ranks; rank++) {
    char x[128], y[128];
    snprintf(x, sizeof x, "%s/checkpoint-2/optimizer-%05d-of-%05d.safetensors", a, rank, ranks);
    snprintf(y, sizeof y, "%s/checkpoint-2/optimizer-%05d-of-%05d.safetensors", b, rank, ranks);
    assert_true(training_same(x, y));
  }
}

/* Weights, states and logs of a run over NCCL's functions are those of one over MPI, bit for bit. */
static void test_same_bits(void **state) {
  static const struct {
    int ranks, experts;
    const char *dtype;
  } ways[] = {{2, 1, "f32"}, {2, 2, "bf16"}, {4, 2, "f32"}};
  (void)state;
  training_prepare(8);
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
    train(false, ways[i].ranks, ways[i].experts, ways[i].dtype, "host");
    train(true, ways[i].ranks, ways[i].experts, ways[i].dtype, "cards");
    assert_true(training_same("host/model.safetensors", "cards/model.safetensors"));
    assert_true(training_same("host/metrics.jsonl", "cards/metrics.jsonl"));
    same_shards("host", "cards", ways[i].ranks);
    test_remove(test_path(test_folder(), "host"));
    test_remove(test_path(test_folder(), "cards"));
  }
}

/* Bytes that change on the way are seen: the comparison above can fail. */
static void test_changed_bytes_are_seen(void **state) {
  (void)state;
  training_prepare(8);
  train(false, 2, 1, "f32", "host");
  setenv("KEDGE_TEST_NCCL_FAULT", "flip", 1);
  train(true, 2, 1, "f32", "cards");
  unsetenv("KEDGE_TEST_NCCL_FAULT");
  assert_false(training_same("host/model.safetensors", "cards/model.safetensors"));
}

#define SHORT_RUN                                                                                            \
  "train run.yaml output_dir=out max_steps=1 gradient_accumulation_steps=1 threads=1 save_steps=0 "          \
  "per_device_train_batch_size=1 max_length=44 overwrite_output_dir=true backend=sim"

/* A failure names rank, function and the library's words. */
static void test_failures(void **state) {
  (void)state;
  training_prepare(8);
  use(true);
  setenv("KEDGE_TEST_NCCL_FAULT", "Send:1", 1);
  ranks_expect(2, 1, "rank 1 of 2: ncclSend: unhandled system error: a fault that was asked for", SHORT_RUN);
  setenv("KEDGE_TEST_NCCL_FAULT", "CommInitRank:1", 1);
  ranks_expect(2, 1, "rank 1 of 2: ncclCommInitRank: unhandled system error: a fault", SHORT_RUN);
  unsetenv("KEDGE_TEST_NCCL_FAULT");
  setenv("KEDGE_NCCL", "libkedge-no-such-library.so", 1);
  ranks_expect(2, 1, "libkedge-no-such-library.so cannot be loaded", SHORT_RUN);
  setenv("KEDGE_NCCL", "libm.so.6", 1);
  ranks_expect(2, 1, "libm.so.6 has no function ncclGetVersion", SHORT_RUN);
  setenv("KEDGE_NCCL", "off", 1);
  ranks_expect(2, 0, "over host memory", SHORT_RUN);
  use(false);
}

/* A rank takes the card of its number on the machine, by turns, and says so; one that is asked for is taken.
 */
static void test_devices(void **state) {
  (void)state;
  training_prepare(8);
  use(true);
  test_run run = ranks_kedge(3, SHORT_RUN ":cards=2");
  assert_int_equal(run.exit_code, 0);
  for (int rank = 0; rank < 3; rank++) {
    char line[64];
    snprintf(line, sizeof line, "local rank %d on device %d", rank, rank % 2);
    if (!strstr(run.err, line)) fail_msg("no \"%s\" in \"%s\"", line, run.err);
  }
  test_run_free(&run);
  ranks_expect(2, 0, "local rank 1 on device 2", SHORT_RUN ":cards=3,device=2");
  ranks_expect(2, 1, "device 3: there are 3, counted from 0", SHORT_RUN ":cards=3,device=3");
  use(false);
}

int main(void) {
  const struct CMUnitTest table[] = {cmocka_unit_test(test_symbols), cmocka_unit_test(test_signatures)};
  const struct CMUnitTest runs[] = {cmocka_unit_test(test_same_bits),
                                    cmocka_unit_test(test_changed_bytes_are_seen),
                                    cmocka_unit_test(test_failures), cmocka_unit_test(test_devices)};
  const int failed = cmocka_run_group_tests(table, NULL, NULL);
  return ranks_possible() ? failed + cmocka_run_group_tests(runs, NULL, NULL) : failed;
}
