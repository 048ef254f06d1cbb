/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Batched decoding: against generation one by one, whatever runs together; a reference told in one pass
 * against decoding it, ties included; likelihoods against the score file. */
#include "models/decoder/decoding.h"
#include "models/decoder/score.h"
#include "models/text/random.h"
#include "tests/support/files.h"
#include "tests/support/reference.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void check(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

enum { JOBS = 13, LONGEST = 40, NEW = 12 };

/* A model on a device, and jobs for it. */
typedef struct fixture {
  kedge_device *device;
  kedge_model *model;
  int32_t prompts[JOBS][LONGEST], references[JOBS][NEW + 1];
  kedge_decoding_job jobs[JOBS];
} fixture;

static void open_fixture(fixture *f, const char *name, const char *backend, kedge_dtype dtype,
                         uint32_t threads) {
  const kedge_open_options options = {.threads = threads, .rowwise = true};
  kedge_random random = kedge_random_start(7, 0);
  memset(f, 0, sizeof *f);
  check(kedge_device_open(backend, &options, &f->device));
  check(kedge_model_load(f->device, test_golden(name), dtype, &f->model));
  for (uint32_t j = 0; j < JOBS; j++) {
    const uint32_t count = 1 + (uint32_t)kedge_random_below(&random, LONGEST);
    for (uint32_t i = 0; i < count; i++)
      f->prompts[j][i] = (int32_t)kedge_random_below(&random, f->model->config.vocab_size);
    f->jobs[j] = (kedge_decoding_job){.prompt = f->prompts[j], .prompt_count = count, .max_new = 1 + j % NEW};
    if (j % 3 == 2) f->jobs[j].sampling = (kedge_sampling){.temperature = 1, .top_p = 0.9, .seed = j};
  }
}

static void close_fixture(fixture *f) {
  kedge_model_free(f->model);
  kedge_device_close(f->device);
}

static void run_jobs(const fixture *f, kedge_decoding_options options, kedge_decoding_result *results) {
  kedge_decoding *d;
  check(kedge_decoding_new(f->model, &options, &d));
  check(kedge_decoding_run(d, f->jobs, JOBS, results));
  assert_true(kedge_decoding_count(d).most <= (options.sequences ? options.sequences : 32));
  kedge_decoding_free(d);
}

static void destroy(kedge_decoding_result *results) {
  for (uint32_t j = 0; j < JOBS; j++) kedge_decoding_result_destroy(&results[j]);
}

static void same_results(const kedge_decoding_result *a, const kedge_decoding_result *b) {
  for (uint32_t j = 0; j < JOBS; j++) {
    assert_int_equal(a[j].count, b[j].count);
    assert_int_equal(a[j].matched, b[j].matched);
    assert_memory_equal(&a[j].nll, &b[j].nll, sizeof a[j].nll);
    if (a[j].count) assert_memory_equal(a[j].ids, b[j].ids, a[j].count * sizeof *a[j].ids);
  }
}

static bool collect(void *context, int32_t id, const float *logits) {
  (void)logits;
  int32_t **at = context;
  *(*at)++ = id;
  return true;
}

/* References: what greedy decoding says, some of them with one token changed or one too many. */
static void make_references(fixture *f, const kedge_decoding_result *said) {
  for (uint32_t j = 0; j < JOBS; j++) {
    const uint32_t count = said[j].count;
    memcpy(f->references[j], said[j].ids, count * sizeof **f->references);
    if (j % 4 == 1) f->references[j][count / 2] = (f->references[j][count / 2] + 1) % 61;
    f->references[j][count] = 5;
    f->jobs[j].reference = f->references[j];
    f->jobs[j].reference_count = j % 5 == 4 ? count + 1 : count;
  }
}

static void check_model(const char *name, const char *backend, kedge_dtype dtype) {
  fixture f, one;
  kedge_decoding_result all[JOBS], few[JOBS], single[JOBS];
  open_fixture(&f, name, backend, dtype, 2);
  open_fixture(&one, name, backend, dtype, 1);
  run_jobs(&f, (kedge_decoding_options){0}, all);
  run_jobs(&f, (kedge_decoding_options){.sequences = 3}, few);
  run_jobs(&one, (kedge_decoding_options){.sequences = 1}, single);
  same_results(all, few);
  same_results(all, single);
  for (uint32_t j = 0; j < JOBS; j++) {
    int32_t ids[NEW], *end = ids;
    const kedge_generate_options options = {.max_new_tokens = f.jobs[j].max_new,
                                            .sampling = f.jobs[j].sampling,
                                            .token = collect,
                                            .context = &end};
    kedge_generate_result result;
    check(kedge_generate(f.model, f.jobs[j].prompt, f.jobs[j].prompt_count, &options, &result));
    assert_int_equal(end - ids, all[j].count);
    assert_memory_equal(ids, all[j].ids, all[j].count * sizeof *ids);
  }
  destroy(few), destroy(single);
  /* The same with references, told and decoded. */
  make_references(&f, all);
  make_references(&one, all);
  run_jobs(&f, (kedge_decoding_options){.sequences = 5}, few);
  run_jobs(&one, (kedge_decoding_options){.sequences = 2}, single);
  same_results(few, single);
  uint32_t told = 0, whole = 0;
  for (uint32_t j = 0; j < JOBS; j++) {
    assert_int_equal(few[j].count, all[j].count);
    assert_memory_equal(few[j].ids, all[j].ids, all[j].count * sizeof *few[j].ids);
    told += few[j].told;
    whole += few[j].told == few[j].count;
    if (f.jobs[j].sampling.temperature > 0) assert_int_equal(few[j].told, 0);
    f.jobs[j].from_prompt = true;
  }
  assert_true(told > 20 && whole > 4);
  destroy(single);
  run_jobs(&f, (kedge_decoding_options){0}, single);
  same_results(few, single);
  for (uint32_t j = 0; j < JOBS; j++) assert_int_equal(single[j].told, 0);
  destroy(all), destroy(few), destroy(single);
  close_fixture(&f), close_fixture(&one);
}

static void test_together(void **state) {
  (void)state;
  check_model("qwen3_moe_top2of8", "ref", KEDGE_F32);
  check_model("qwen3_moe_top8of16", "cpu", KEDGE_F32);
  check_model("qwen3_moe_mixed", "cpu", KEDGE_BF16);
  check_model("deepseek_v2_greedy", "cpu", KEDGE_F32);
  check_model("deepseek_v3_group", "cpu", KEDGE_BF16);
  check_model("granitemoe_tied", "cpu", KEDGE_F32);
  check_model("olmoe_clip", "cpu", KEDGE_F32);
}

/* Rows of the head that are equal give equal logits: the lower id is said, told or decoded. */
static void test_ties(void **state) {
  (void)state;
  fixture f;
  kedge_decoding_result said[JOBS], told[JOBS];
  open_fixture(&f, "qwen3_moe_top2of8", "cpu", KEDGE_F32, 2);
  const uint32_t head = kedge_params_find(&f.model->params, KEDGE_ROLE_HEAD, 0);
  const uint32_t V = f.model->config.vocab_size, D = f.model->config.hidden_size;
  float *rows = malloc((size_t)V * D * sizeof *rows);
  check(kedge_buffer_read(f.model->weights[head], 0, rows, (uint64_t)V * D * sizeof *rows));
  for (uint32_t v = 0; v + 1 < V; v += 2) memcpy(rows + (v + 1) * D, rows + v * D, D * sizeof *rows);
  check(kedge_buffer_write(f.model->weights[head], 0, rows, (uint64_t)V * D * sizeof *rows));
  for (uint32_t j = 0; j < JOBS; j++) f.jobs[j].sampling.temperature = 0, f.jobs[j].max_new = NEW;
  run_jobs(&f, (kedge_decoding_options){0}, said);
  for (uint32_t j = 0; j < JOBS; j++) {
    for (uint32_t i = 0; i < NEW; i++) assert_true(said[j].ids[i] % 2 == 0);
    memcpy(f.references[j], said[j].ids, NEW * sizeof **f.references);
    if (j % 2) f.references[j][3] += f.references[j][3] + 1 < (int32_t)V; /* the other one of equals */
    f.jobs[j].reference = f.references[j], f.jobs[j].reference_count = NEW;
  }
  run_jobs(&f, (kedge_decoding_options){0}, told);
  for (uint32_t j = 0; j < JOBS; j++) {
    const bool other = j % 2 && f.references[j][3] != said[j].ids[3];
    assert_memory_equal(told[j].ids, said[j].ids, NEW * sizeof *said[j].ids);
    assert_int_equal(told[j].matched, other ? 3 : NEW);
    assert_int_equal(told[j].told, other ? 3 : NEW);
  }
  destroy(said), destroy(told);
  free(rows);
  close_fixture(&f);
}

/* nll of references and endings against the score file, which makes full passes without a cache. */
static void test_likelihood(void **state) {
  (void)state;
  fixture f;
  kedge_decoding_result r[JOBS];
  open_fixture(&f, "qwen3_moe_top2of8", "cpu", KEDGE_F32, 2);
  enum { ENDINGS = 3, REFERENCE = 4 };
  const int32_t endings[ENDINGS] = {0, 9, 60};
  int32_t ids[JOBS * (1 + ENDINGS) * (LONGEST + REFERENCE)];
  uint64_t offsets[JOBS * (1 + ENDINGS) + 1] = {0}, at = 0, samples = 0;
  for (uint32_t j = 0; j < JOBS; j++) {
    for (uint32_t i = 0; i < REFERENCE; i++) f.references[j][i] = (int32_t)((j * 7 + i * 11) % 61);
    f.jobs[j].reference = f.references[j], f.jobs[j].reference_count = REFERENCE;
    f.jobs[j].endings = endings, f.jobs[j].ending_count = ENDINGS;
    f.jobs[j].max_new = j % 2 ? 0 : 3;
    for (int e = -1; e < ENDINGS; e++) {
      memcpy(ids + at, f.prompts[j], f.jobs[j].prompt_count * sizeof *ids), at += f.jobs[j].prompt_count;
      memcpy(ids + at, f.references[j], REFERENCE * sizeof *ids), at += REFERENCE;
      if (e >= 0) ids[at - 1] = endings[e];
      offsets[++samples] = at;
    }
  }
  run_jobs(&f, (kedge_decoding_options){0}, r);
  const kedge_score_samples all = {(uint32_t)samples, offsets, ids, NULL};
  kedge_score_result result;
  kedge_st_file *file;
  uint64_t count;
  const char *path = test_path(test_folder(), "scores");
  check(kedge_score(f.model, &all, NULL, path, &result));
  check(kedge_st_open(path, &file));
  double *logprobs = kedge_test_doubles(file, "logprobs", &count);
  for (uint32_t j = 0, s = 0; j < JOBS; j++) {
    assert_int_equal(r[j].count, f.jobs[j].max_new);
    for (int e = -1; e < ENDINGS; e++, s++) {
      double sum = 0;
      for (uint64_t t = offsets[s + 1] - REFERENCE; t < offsets[s + 1]; t++) sum += logprobs[t];
      const double got = e < 0 ? -r[j].nll : r[j].endings[e];
      if (!(fabs(got - sum) <= 1e-4 * fabs(sum))) fail_msg("job %u, ending %d: %g, want %g", j, e, got, sum);
    }
  }
  free(logprobs);
  kedge_st_close(file);
  destroy(r);
  close_fixture(&f);
}

/* Continuations of one prompt, one after another on what is in the cache, against each by itself: no bit
 * differs, whatever else runs. */
static void check_same_prompt(const char *name, kedge_dtype dtype) {
  fixture f;
  kedge_decoding_result alone[JOBS], after[JOBS];
  open_fixture(&f, name, "cpu", dtype, 2);
  for (uint32_t j = 0; j < JOBS; j++) {
    const bool goes_on = j % 5 == 1 || j % 5 == 2 || j % 5 == 4;
    if (goes_on) f.jobs[j].prompt = f.jobs[j - 1].prompt, f.jobs[j].prompt_count = f.jobs[j - 1].prompt_count;
    for (uint32_t i = 0; i < 5; i++) f.references[j][i] = (int32_t)((j * 7 + i * 11) % 41);
    f.jobs[j].reference = f.references[j], f.jobs[j].reference_count = j % 6;
    if (j % 3 == 0) f.jobs[j].max_new = 0;
  }
  run_jobs(&f, (kedge_decoding_options){0}, alone);
  for (uint32_t j = 0; j < JOBS; j++) f.jobs[j].same_prompt = j % 5 == 1 || j % 5 == 2 || j % 5 == 4;
  for (uint32_t sequences = 1; sequences <= 6; sequences += 5) {
    kedge_decoding *d;
    check(kedge_decoding_new(f.model, &(kedge_decoding_options){.sequences = sequences}, &d));
    check(kedge_decoding_run(d, f.jobs, JOBS, after));
    same_results(alone, after);
    uint64_t tokens = 0, all = 0;
    for (uint32_t j = 0; j < JOBS; j++) {
      all += f.jobs[j].prompt_count;
      if (!f.jobs[j].same_prompt) tokens += f.jobs[j].prompt_count;
    }
    assert_true(kedge_decoding_count(d).tokens < tokens + JOBS * (NEW + 8) && tokens < all);
    destroy(after);
    kedge_decoding_free(d);
  }
  destroy(alone);
  kedge_decoding *d;
  check(kedge_decoding_new(f.model, &(kedge_decoding_options){0}, &d));
  f.jobs[3].same_prompt = true;
  assert_int_equal(kedge_decoding_run(d, f.jobs, JOBS, after), KEDGE_ERR_ARGUMENT);
  assert_non_null(strstr(kedge_message(), "sequence 3"));
  destroy(after);
  kedge_decoding_free(d);
  close_fixture(&f);
}

static void test_same_prompt(void **state) {
  (void)state;
  check_same_prompt("qwen3_moe_top2of8", KEDGE_F32);
  check_same_prompt("deepseek_v2_greedy", KEDGE_BF16);
}

/* ---- Ends
 * ------------------------------------------------------------------------------------------------------------
 */

static bool up_to_three(void *context, uint32_t job, const int32_t *ids, uint32_t count) {
  (void)context, (void)ids;
  return job % 2 || count < 3;
}

static bool never(void *context, uint32_t done, uint64_t tokens) {
  (void)context, (void)done, (void)tokens;
  return false;
}

static void test_ends(void **state) {
  (void)state;
  fixture f;
  kedge_decoding_result all[JOBS], r[JOBS];
  open_fixture(&f, "qwen3_moe_mixed", "cpu", KEDGE_F32, 2);
  for (uint32_t j = 0; j < JOBS; j++) f.jobs[j].max_new = NEW;
  run_jobs(&f, (kedge_decoding_options){0}, all);
  run_jobs(&f, (kedge_decoding_options){.go_on = up_to_three, .sequences = 4}, r);
  for (uint32_t j = 0; j < JOBS; j++) {
    assert_int_equal(r[j].count, j % 2 ? NEW : 3);
    assert_true(r[j].cut == !(j % 2));
    assert_memory_equal(r[j].ids, all[j].ids, r[j].count * sizeof *r[j].ids);
  }
  destroy(r);
  /* A stop ends it, is reported, and may be the reference's last token. */
  const int32_t stop = all[0].ids[4];
  make_references(&f, all);
  run_jobs(&f, (kedge_decoding_options){.stops = &stop, .stop_count = 1}, r);
  for (uint32_t j = 0; j < JOBS; j++) {
    uint32_t want = 0;
    while (want < NEW && all[j].ids[want] != stop) want++;
    assert_true(r[j].stopped == (want < NEW));
    assert_int_equal(r[j].count, want < NEW ? want + 1 : NEW);
    assert_memory_equal(r[j].ids, all[j].ids, r[j].count * sizeof *r[j].ids);
  }
  destroy(r), destroy(all);
  kedge_decoding *d;
  check(kedge_decoding_new(f.model, &(kedge_decoding_options){.progress = never}, &d));
  assert_int_equal(kedge_decoding_run(d, f.jobs, JOBS, r), KEDGE_ERR_INTERRUPTED);
  destroy(r);
  kedge_decoding_free(d);
  /* A cache of few bytes: one sequence at a time, the same text. */
  check(kedge_decoding_new(f.model, &(kedge_decoding_options){.cache_bytes = 1}, &d));
  check(kedge_decoding_run(d, f.jobs, JOBS, r));
  assert_int_equal(kedge_decoding_count(d).most, 1);
  destroy(r);
  f.jobs[4].prompt_count = 0;
  assert_int_equal(kedge_decoding_run(d, f.jobs, JOBS, r), KEDGE_ERR_ARGUMENT);
  destroy(r);
  f.jobs[4].prompt_count = 1;
  f.prompts[4][0] = 1 << 20;
  assert_int_equal(kedge_decoding_run(d, f.jobs, JOBS, r), KEDGE_ERR_ARGUMENT);
  assert_non_null(strstr(kedge_message(), "sequence 4"));
  destroy(r);
  kedge_decoding_free(d);
  close_fixture(&f);
}

static void test_memory(void **state) {
  (void)state;
  fixture f;
  kedge_decoding_result r[JOBS];
  open_fixture(&f, "qwen3_moe_mixed", "cpu", KEDGE_F32, 1);
  kedge_status status = KEDGE_ERR_MEMORY;
  uint64_t failed = 0;
  for (uint64_t nth = 1; status != KEDGE_OK; nth += 1 + nth / 8) {
    kedge_decoding *d;
    memset(r, 0, sizeof r);
    kedge_alloc_fail_nth(nth);
    status = kedge_decoding_new(f.model, &(kedge_decoding_options){.sequences = 4}, &d);
    if (status == KEDGE_OK) status = kedge_decoding_run(d, f.jobs, JOBS, r);
    kedge_alloc_fail_nth(0);
    kedge_decoding_free(d);
    destroy(r);
    failed += status != KEDGE_OK;
    if (status != KEDGE_OK) assert_int_equal(status, KEDGE_ERR_MEMORY);
  }
  assert_true(failed > 20);
  close_fixture(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_together),    cmocka_unit_test(test_ties),
                                     cmocka_unit_test(test_likelihood),  cmocka_unit_test(test_ends),
                                     cmocka_unit_test(test_same_prompt), cmocka_unit_test(test_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
