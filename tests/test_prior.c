/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * The prior's file (models/prior/prior_compute.c, partial.c): its numbers against logits of a trace; runs
 * that are killed at every step and go on with the same bits; leftovers of other runs; both dtypes. What a
 * prior belongs to is in test_prior_identity.c.
 */
#include "models/checkpoint/atomic.h"
#include "models/checkpoint/convert.h"
#include "models/prior/prior_internal.h"
#include "models/text/random.h"
#include "models/trace/trace.h"
#include "tests/support/files.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { SAMPLES = 150, BATCH = 4, VOCABULARY = 53 };

static kedge_device *device;
static kedge_model *model;
static kedge_dataset *dataset, *other;
static kedge_prior_identity identity;
static char path[512], partial[520]; /* of the file that is killed */

static void ok(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

static void fails(kedge_status got, kedge_status want, const char *text) {
  if (got != want) fail_msg("expected %s, got %s", kedge_status_name(want), kedge_status_name(got));
  if (!strstr(kedge_message(), text)) fail_msg("expected \"%s\" in: %s", text, kedge_message());
}

static const char *in(const char *name) {
  return test_path(test_folder(), name);
}

/* Samples of 2 to 9 tokens; every seventh is all answer. */
static kedge_dataset *make_data(uint64_t seed) {
  kedge_dataset_builder *b;
  kedge_dataset *d;
  kedge_random random = kedge_random_start(seed, 0);
  ok(kedge_dataset_builder_new(0, &b));
  ok(kedge_dataset_builder_file(b, "made"));
  for (uint32_t i = 0; i < SAMPLES; i++) {
    int32_t ids[9];
    int8_t spans[9];
    uint8_t trained[9];
    bool kept;
    const size_t count = 2 + kedge_random_below(&random, 8);
    const size_t prompt = i % 7 == 3 ? 0 : 1 + kedge_random_below(&random, count - 1);
    for (size_t t = 0; t < count; t++) {
      ids[t] = (int32_t)kedge_random_below(&random, VOCABULARY);
      spans[t] = t >= prompt;
      trained[t] = t && t >= prompt;
    }
    ok(kedge_dataset_builder_add(b, ids, spans, trained, count, i + 1, &kept));
    assert_true(kept);
  }
  ok(kedge_dataset_builder_finish(b, &d));
  kedge_dataset_builder_free(b);
  return d;
}

/* One thread without OpenMP, so that the tests may fork. */
static int open_all(void **state) {
  (void)state;
  kedge_tokenizer *tokenizer;
  ok(kedge_device_open("ref", NULL, &device));
  ok(kedge_model_load(device, test_golden("qwen3_moe_mixed"), KEDGE_F32, &model));
  ok(kedge_tokenizer_open(test_golden("tokenizer/tiny"), NULL, &tokenizer));
  snprintf(path, sizeof path, "%s", in("k.st"));
  snprintf(partial, sizeof partial, "%s.partial", path);
  dataset = make_data(1);
  other = make_data(2);
  ok(kedge_prior_identify(model, tokenizer, dataset, 1024, NULL, NULL, &identity));
  kedge_tokenizer_free(tokenizer);
  const kedge_prior_options options = {.batch_size = BATCH};
  ok(kedge_prior_compute(model, dataset, &identity, &options, in("whole.st")));
  assert_false(test_exists(in("whole.st.partial")));
  return 0;
}

static int close_all(void **state) {
  (void)state;
  kedge_dataset_free(dataset);
  kedge_dataset_free(other);
  kedge_model_free(model);
  kedge_device_close(device);
  return 0;
}

/* ---- Numbers
 * -------------------------------------------------------------------------------------------------- */

static void check_rows(const char *name, const kedge_trace *t, double tolerance) {
  kedge_prior *prior;
  ok(kedge_prior_open(name, &prior));
  assert_int_equal(kedge_prior_samples(prior), SAMPLES);
  assert_int_equal(kedge_prior_layers(prior), t->layers);
  assert_int_equal(kedge_prior_version(prior), 2);
  assert_int_equal(kedge_prior_top_k(prior), 3);
  const uint32_t E = t->experts;
  for (uint32_t i = 0; i < SAMPLES; i++)
    for (uint32_t span = 0; span < 2; span++)
      for (uint32_t l = 0; l < t->layers; l++) {
        double want[8] = {0};
        float pi[8];
        int32_t tokens = 0, counts[2];
        assert_int_equal(kedge_prior_layer(prior, l), t->layer_numbers[l]);
        for (uint64_t at = dataset->offsets[i]; at < dataset->offsets[i + 1]; at++) {
          const float *z = t->logits + (at * t->layers + l) * E;
          double sum = 0;
          if (dataset->spans[at] != (int8_t)span) continue;
          tokens++;
          for (uint32_t e = 0; e < E; e++) sum += exp((double)z[e]);
          for (uint32_t e = 0; e < E; e++) want[e] += exp((double)z[e]) / sum;
        }
        kedge__prior_counts(prior, i, counts);
        assert_int_equal(counts[span], tokens);
        if (!tokens) continue;
        double total = 0;
        ok(kedge__prior_read_row(prior, i, span, l, pi));
        for (uint32_t e = 0; e < E; e++) {
          total += (double)pi[e];
          if (!(fabs((double)pi[e] - want[e] / tokens) <= tolerance))
            fail_msg("sample %u span %u layer %u expert %u: got %g, want %g", i, span, l, e, (double)pi[e],
                     want[e] / tokens);
        }
        assert_true(fabs(total - 1) <= (tolerance > 1e-5 ? 1e-3 : 1e-6));
      }
  kedge_prior_free(prior);
}

static void test_numbers(void **state) {
  (void)state;
  kedge_trace t;
  const kedge_prior_options half = {.batch_size = BATCH, .half = true}, wide = {.batch_size = 32};
  ok(kedge_trace_collect(model, dataset, &(kedge_trace_options){.with_logits = true}, &t));
  assert_int_equal(t.experts, 8);
  check_rows(in("whole.st"), &t, 1e-6);
  ok(kedge_prior_compute(model, dataset, &identity, &wide, in("wide.st")));
  check_rows(in("wide.st"), &t, 1e-6);
  ok(kedge_prior_compute(model, dataset, &identity, &half, in("half.st")));
  check_rows(in("half.st"), &t, 3e-4);
  kedge_trace_destroy(&t);
  struct stat f32, f16;
  assert_true(!stat(in("whole.st"), &f32) && !stat(in("half.st"), &f16));
  assert_int_equal(f32.st_size - f16.st_size, SAMPLES * 2 * 2 * 8 * 2);
}

/* ---- Kills
 * ---------------------------------------------------------------------------------------------------- */

static unsigned steps_left, samples_left;

static void kill_at_step(const char *step) {
  (void)step;
  if (steps_left && !--steps_left) raise(SIGKILL);
}

static bool kill_at_sample(void *context, uint64_t samples, uint64_t total, uint64_t tokens) {
  (void)context, (void)total, (void)tokens;
  if (samples_left && samples >= samples_left) raise(SIGKILL);
  return true;
}

/* True if the child was killed, false if it finished. */
static bool run_child(unsigned step, unsigned sample) {
  const pid_t child = fork();
  assert_true(child >= 0);
  if (!child) {
    const kedge_prior_options options = {.batch_size = BATCH, .keep_every = 64, .progress = kill_at_sample};
    steps_left = step, samples_left = sample;
    kedge__atomic_step = kill_at_step;
    _exit(kedge_prior_compute(model, dataset, &identity, &options, path) == KEDGE_OK ? 0 : 1);
  }
  int how;
  assert_int_equal(waitpid(child, &how, 0), child);
  if (WIFEXITED(how)) assert_int_equal(WEXITSTATUS(how), 0);
  return WIFSIGNALED(how);
}

static char noted[200];

static void keep_note(void *context, const char *line) {
  (void)context;
  snprintf(noted, sizeof noted, "%s", line);
}

static kedge_status go_on(const char *out, bool restart) {
  const kedge_prior_options options = {.batch_size = BATCH, .restart = restart, .note = keep_note};
  *noted = 0;
  return kedge_prior_compute(model, dataset, &identity, &options, out);
}

static void check_same(void) {
  if (!test_same_file(path, in("whole.st"))) fail_msg("%s differs", path);
  assert_false(test_exists(partial));
}

static void test_kills(void **state) {
  (void)state;
  unsigned step = 1, resumed = 0;
  for (;; step++) {
    test_remove(path);
    if (!run_child(step, 0)) break;
    /* Either nothing at its place, or all of it. */
    if (test_exists(path)) assert_true(test_same_file(path, in("whole.st")));
    ok(go_on(path, false));
    resumed += *noted != 0;
    check_same();
  }
  assert_true(step > 10 && resumed > 6);
  for (unsigned sample = BATCH; sample <= SAMPLES; sample += 7 * BATCH) {
    char want[64];
    test_remove(path);
    assert_true(run_child(0, sample));
    ok(go_on(path, false));
    snprintf(want, sizeof want, "resuming at sample %u of %u", (sample - 1) / 64 * 64, SAMPLES);
    assert_string_equal(noted, want);
    check_same();
  }
  /* Killed, resumed and killed again. */
  test_remove(path);
  assert_true(run_child(0, 70));
  assert_true(run_child(0, 130));
  ok(go_on(path, false));
  assert_string_equal(noted, "resuming at sample 128 of 150");
  check_same();
}

static bool stop_at(void *context, uint64_t samples, uint64_t total, uint64_t tokens) {
  (void)total, (void)tokens;
  return samples < *(const unsigned *)context;
}

/* A run that was stopped keeps every sample. */
static void begin(unsigned samples) {
  const kedge_prior_options options = {
      .batch_size = BATCH, .keep_every = 64, .progress = stop_at, .context = &samples};
  fails(kedge_prior_compute(model, dataset, &identity, &options, path), KEDGE_ERR_INTERRUPTED,
        "the same command goes on from there");
}

static void test_stop(void **state) {
  (void)state;
  test_remove(path);
  begin(20);
  ok(go_on(path, false));
  assert_string_equal(noted, "resuming at sample 20 of 150");
  check_same();
  begin(12);
  assert_true(test_same_file(path, in("whole.st"))); /* it stays until the new one is whole */
  test_remove(partial);
}

/* ---- Leftovers
 * ------------------------------------------------------------------------------------------------ */

static void flip(off_t from_end) {
  const int fd = open(partial, O_RDWR);
  struct stat info;
  char byte;
  assert_true(fd >= 0 && !fstat(fd, &info));
  assert_int_equal(pread(fd, &byte, 1, info.st_size - from_end), 1);
  byte ^= 1;
  assert_int_equal(pwrite(fd, &byte, 1, info.st_size - from_end), 1);
  close(fd);
}

static void test_leftovers(void **state) {
  (void)state;
  const off_t place = 272; /* bytes of a record of the journal */
  kedge_prior_identity foreign = identity;
  const kedge_prior_options options = {.batch_size = BATCH};
  foreign.data[0] = foreign.data[0] == '0' ? '1' : '0';
  test_remove(path), test_remove(partial);
  begin(80);
  fails(kedge_prior_compute(model, other, &foreign, &options, path), KEDGE_ERR_MISMATCH,
        "k.st.partial: begun with data_hash ");
  assert_non_null(strstr(kedge_message(), identity.data));
  assert_non_null(strstr(kedge_message(), foreign.data));
  fails(kedge_prior_compute(model, dataset, &identity, &(kedge_prior_options){.batch_size = 8}, path),
        KEDGE_ERR_MISMATCH, "begun with batch size 4, f32 on ref, this run has batch size 8, f32 on ref");
  fails(kedge_prior_compute(model, dataset, &identity, &(kedge_prior_options){.batch_size = 4, .half = true},
                            path),
        KEDGE_ERR_MISMATCH, "begun with dtype f32, this run has f16");
  ok(go_on(path, true)); /* restart */
  assert_string_equal(noted, "");
  check_same();
  /* The newest record is damaged: the one before it counts. Then both: from the start. */
  for (int damaged = 1; damaged <= 3; damaged++) {
    test_remove(path);
    begin(80); /* records at 0, 64 and 80: places 1, 0, 1 */
    if (damaged & 1) flip(place - 16);
    if (damaged & 2) flip(2 * place - 16);
    ok(go_on(path, false));
    assert_string_equal(noted, damaged == 1   ? "resuming at sample 64 of 150"
                               : damaged == 2 ? "resuming at sample 80 of 150"
                                              : "");
    check_same();
  }
  /* What is none of ours is never touched. */
  for (int restart = 0; restart < 2; restart++) {
    test_write_text(partial, "a letter that someone keeps here");
    fails(go_on(path, restart), KEDGE_ERR_FORMAT, "was not begun by `kedge prior`");
    char *text = test_read(partial, &(size_t){0});
    assert_string_equal(text, "a letter that someone keeps here");
    free(text);
  }
  test_write(partial, "", 0);
  ok(go_on(path, false));
  check_same();
  test_make_folder(in("folder"));
  fails(go_on(in("folder"), false), KEDGE_ERR_IO, "is not a regular file");
  test_make_folder(partial);
  fails(go_on(path, false), KEDGE_ERR_IO, "k.st.partial");
  test_remove(partial);
}

static void test_two_writers(void **state) {
  (void)state;
  begin(40);
  const int fd = open(partial, O_RDWR);
  assert_true(fd >= 0 && !flock(fd, LOCK_EX | LOCK_NB));
  fails(go_on(path, false), KEDGE_ERR_ARGUMENT, "another writer is at work");
  close(fd);
  ok(go_on(path, false));
  assert_string_equal(noted, "resuming at sample 40 of 150");
  check_same();
}

/* Every allocation that fails leaves something that can be continued. */
static void test_memory(void **state) {
  (void)state;
  unsigned failures = 0;
  for (uint64_t n = 1; n < 4000; n += 1 + n / 8) {
    test_remove(path);
    kedge_alloc_fail_nth(n);
    const kedge_status status = go_on(path, false);
    kedge_alloc_fail_nth(0);
    if (status == KEDGE_OK) continue;
    assert_int_equal(status, KEDGE_ERR_MEMORY);
    failures++;
    ok(go_on(path, false));
    check_same();
  }
  assert_true(failures > 10);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_numbers),   cmocka_unit_test(test_kills),       cmocka_unit_test(test_stop),
      cmocka_unit_test(test_leftovers), cmocka_unit_test(test_two_writers), cmocka_unit_test(test_memory),
  };
  return cmocka_run_group_tests_name("prior", tests, open_all, close_all);
}
