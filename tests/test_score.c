/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Scores: logits and log-probabilities against transformers on the golden models, whatever the batches; the
 * command `score` on data and on ids. */
#include "models/checkpoint/safetensors.h"
#include "models/decoder/score.h"
#include "tests/support/files.h"
#include "tests/support/program.h"
#include "tests/support/reference.h"
#include "tests/support/tokenizers.h"

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

static const char *at(const char *name) {
  return test_path(test_folder(), name);
}

/* ---- Against the goldens
 * ------------------------------------------------------------------------------------------- */

enum { REPEATS = 3 }; /* the golden's sequences several times: more rows than the head takes at once */

/* A golden model's sequences and its logits. */
typedef struct golden {
  kedge_device *device;
  kedge_model *model;
  kedge_st_file *file;
  int32_t *ids;
  uint64_t *offsets, tokens;
  uint32_t count, vocabulary;
  double *logits; /* [tokens / REPEATS, V] */
} golden;

static void open_golden(golden *g, const char *variant, const char *backend) {
  char path[256];
  uint64_t once, bounds, n;
  snprintf(path, sizeof path, "%s/golden.safetensors", variant);
  check(kedge_st_open(test_golden(path), &g->file));
  check(kedge_device_open(backend, NULL, &g->device));
  check(kedge_model_load(g->device, test_golden(variant), KEDGE_F32, &g->model));
  int32_t *ids = kedge_test_ints(g->file, "input_ids", &once),
          *cu = kedge_test_ints(g->file, "cu_seqlens", &bounds);
  g->logits = kedge_test_doubles(g->file, "logits", &n);
  g->vocabulary = g->model->config.vocab_size;
  assert_int_equal(n, once * g->vocabulary);
  g->tokens = once * REPEATS;
  g->count = (uint32_t)(bounds - 1) * REPEATS;
  g->ids = calloc(g->tokens, 4);
  g->offsets = calloc(g->count + 1, 8);
  for (uint32_t r = 0, i = 0; r < REPEATS; r++) {
    memcpy(g->ids + r * once, ids, once * 4);
    for (uint64_t s = 0; s + 1 < bounds; s++) g->offsets[++i] = r * once + (uint64_t)cu[s + 1];
  }
  free(ids), free(cu);
}

static void close_golden(golden *g) {
  kedge_model_free(g->model);
  kedge_device_close(g->device);
  kedge_st_close(g->file);
  free(g->ids), free(g->offsets), free(g->logits);
}

/* log p of `id` by a row of logits. */
static double log_p(const double *logits, uint32_t count, int32_t id) {
  double most = -INFINITY, sum = 0;
  for (uint32_t v = 0; v < count; v++) most = fmax(most, logits[v]);
  for (uint32_t v = 0; v < count; v++) sum += exp(logits[v] - most);
  return logits[id] - most - log(sum);
}

static void check_file(const golden *g, const char *path, bool logits, const kedge_score_result *result) {
  const uint64_t once = g->tokens / REPEATS;
  kedge_st_file *file;
  uint64_t n;
  check(kedge_st_open(path, &file));
  assert_int_equal(kedge_st_count(file), logits ? 5 : 4);
  int32_t *ids = kedge_test_ints(file, "tokens", &n), *cu = kedge_test_ints(file, "cu_seqlens", &n);
  assert_int_equal(n, g->count + 1);
  assert_memory_equal(ids, g->ids, g->tokens * 4);
  const kedge_st_tensor *mask = kedge_st_find(file, "mask"), *scores = kedge_st_find(file, "logprobs");
  assert_int_equal(mask->dtype, KEDGE_ST_U8);
  assert_int_equal(scores->dtype, KEDGE_ST_F32);
  assert_int_equal(scores->bytes, g->tokens * 4);
  double nll = 0;
  uint64_t scored = 0;
  for (uint32_t i = 0; i < g->count; i++)
    for (uint64_t t = g->offsets[i]; t < g->offsets[i + 1]; t++) {
      float got;
      memcpy(&got, scores->data + 4 * t, 4);
      bool first = t == g->offsets[i];
      double want = first ? 0 : log_p(g->logits + (t - 1) % once * g->vocabulary, g->vocabulary, g->ids[t]);
      assert_int_equal(cu[i], g->offsets[i]);
      assert_int_equal(mask->data[t], !first);
      if (!(fabs((double)got - want) <= 1e-5))
        fail_msg("token %d: log p %g, want %g", (int)t, (double)got, want);
      nll -= want;
      scored += !first;
    }
  assert_int_equal(result->tokens, g->tokens);
  assert_int_equal(result->scored, scored);
  assert_true(fabs(result->nll - nll) <= 1e-4);
  for (int r = 0; logits && r < REPEATS; r++) {
    const kedge_st_tensor *tensor = kedge_st_find(file, "logits");
    assert_int_equal(tensor->shape[0], g->tokens);
    assert_int_equal(tensor->shape[1], g->vocabulary);
    float *part = malloc(tensor->bytes / REPEATS);
    memcpy(part, tensor->data + (size_t)r * (tensor->bytes / REPEATS), tensor->bytes / REPEATS);
    assert_true(kedge_test_error(part, g->logits, once * g->vocabulary) <= 1e-5);
    free(part);
  }
  free(ids), free(cu);
  kedge_st_close(file);
}

static void test_parity(void **state) {
  (void)state;
  static const char *const variants[] = {"qwen3_moe_top2of8", "qwen3_moe_top8of16", "qwen3_moe_mixed",
                                         "granitemoe_untied", "deepseek_v2_group"};
  static const uint32_t batches[] = {0, 1, 2, 100};
  for (int v = 0; v < 3; v++) {
    golden g = {0};
    open_golden(&g, variants[v], v == 1 ? "ref" : "cpu");
    const kedge_score_samples samples = {g.count, g.offsets, g.ids, NULL};
    for (int b = 0; b < 4; b++)
      for (int logits = 0; logits < 2; logits++) {
        const kedge_score_options options = {.logits = logits, .batch_size = batches[b]};
        kedge_score_result result;
        check(kedge_score(g.model, &samples, &options, at("scores"), &result));
        check_file(&g, at("scores"), logits, &result);
      }
    close_golden(&g);
  }
}

static bool stop_at_once(void *context, uint32_t samples, uint32_t total, uint64_t tokens) {
  (void)context, (void)samples, (void)total, (void)tokens;
  return false;
}

static void test_refusals(void **state) {
  (void)state;
  golden g = {0};
  kedge_score_result result;
  open_golden(&g, "qwen3_moe_mixed", "cpu");
  kedge_score_samples samples = {g.count, g.offsets, g.ids, NULL};
  kedge_score_options options = {.progress = stop_at_once, .logits = true};
  test_remove(at("scores"));
  assert_int_equal(kedge_score(g.model, &samples, &options, at("scores"), &result), KEDGE_ERR_INTERRUPTED);
  g.ids[7] = (int32_t)g.vocabulary;
  assert_int_equal(kedge_score(g.model, &samples, NULL, at("scores"), &result), KEDGE_ERR_ARGUMENT);
  assert_non_null(strstr(kedge_message(), "token 7: id 53 is outside the model's vocabulary of 53"));
  g.ids[7] = 1;
  /* A weight that is not a number shows, in the router or in the scores. */
  for (int r = 0; r < 2; r++) {
    const float bad = NAN;
    uint32_t item = kedge_params_find(&g.model->params, r ? KEDGE_ROLE_HEAD : KEDGE_ROLE_INPUT_NORM, 0);
    check(kedge_buffer_write(g.model->weights[item], 0, &bad, sizeof bad));
    options = (kedge_score_options){.logits = r};
    assert_int_equal(kedge_score(g.model, &samples, &options, at("scores"), &result), KEDGE_ERR_NUMERIC);
    check(kedge_buffer_zero(g.model->weights[item]));
  }
  samples.count = 0;
  assert_int_equal(kedge_score(g.model, &samples, NULL, at("scores"), &result), KEDGE_ERR_ARGUMENT);
  assert_false(test_exists(at("scores")));
  close_golden(&g);
}

/* Allocations fail one after another, later ones sparsely: an error each time, and no file. */
static void test_memory(void **state) {
  (void)state;
  golden g = {0};
  open_golden(&g, "qwen3_moe_mixed", "cpu");
  const kedge_score_samples samples = {g.count, g.offsets, g.ids, NULL};
  const kedge_score_options options = {.logits = true, .batch_size = 5};
  kedge_score_result result;
  kedge_status status = KEDGE_ERR_MEMORY;
  uint64_t failed = 0;
  test_remove(at("scores"));
  for (uint64_t nth = 1; status != KEDGE_OK; nth += 1 + nth / 8) {
    kedge_alloc_fail_nth(nth);
    status = kedge_score(g.model, &samples, &options, at("scores"), &result);
    kedge_alloc_fail_nth(0);
    failed += status != KEDGE_OK;
    if (status != KEDGE_OK) assert_int_equal(status, KEDGE_ERR_MEMORY);
    if (status != KEDGE_OK) assert_false(test_exists(at("scores")));
  }
  assert_true(failed > 20);
  check_file(&g, at("scores"), true, &result);
  close_golden(&g);
}

/* ---- The command
 * --------------------------------------------------------------------------------------------------- */

static void make_model(void) {
  test_make_folder(at("tok"));
  test_tokenizer_write(at("tok"));
  test_write_text(at("tiny.json"), test_tokenizer_model_config);
  test_kedge_expect("init --config tiny.json --tokenizer tok --out model --force", 0, "");
}

static void test_data(void **state) {
  (void)state;
  make_model();
  test_write_text(at("data.jsonl"), "{\"prompt\": \"ab\", \"completion\": \"cde\"}\n{\"text\": \"xyz\"}\n");
  test_kedge_expect("score --model model --data data.jsonl --out s", 2, "data.jsonl:2");
  test_write_text(at("data.jsonl"), "{\"prompt\": \"ab\", \"completion\": \"cde\"}\n{\"prompt\": \"\", "
                                    "\"completion\": \"xyz\"}\n");
  test_run run = test_kedge("score --model model --data data.jsonl --out s --logits", 0, "");
  /* abcde</s> and xyz</s>. */
  assert_non_null(strstr(run.out, "s: 10 tokens, 8 scored, mean nll "));
  assert_non_null(strstr(run.out, "answers: 7 tokens, mean nll "));
  test_run_free(&run);
  kedge_st_file *file;
  uint64_t n;
  check(kedge_st_open(at("s"), &file));
  static const int32_t want[] = {
      'a', 'b', 'c', 'd', 'e', TEST_TOKENIZER_EOS, 'x', 'y', 'z', TEST_TOKENIZER_EOS};
  static const int32_t spans_want[] = {0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
  int32_t *ids = kedge_test_ints(file, "tokens", &n), *spans = kedge_test_ints(file, "spans", &n);
  assert_int_equal(n, 10);
  assert_memory_equal(ids, want, sizeof want);
  assert_memory_equal(spans, spans_want, sizeof spans_want);
  free(ids), free(spans);
  kedge_st_close(file);
}

static void test_ids(void **state) {
  (void)state;
  make_model();
  test_remove(at("model/tokenizer.json"));
  test_run run = test_kedge("score --model model --tokens 1,2,263 --out a.st", 0, "");
  assert_non_null(strstr(run.out, "a.st: 3 tokens, 2 scored"));
  test_run_free(&run);
  test_kedge_expect("score --model model --tokens 1,2,263,5 --max-length 3 --out b.st --threads 1", 0, "");
  assert_true(test_same_file(at("a.st"), at("b.st")));
  run = test_kedge("score --model model --tokens 7 --logits --backend ref --dtype bf16 --out c.st", 0, "");
  assert_non_null(strstr(run.out, "1 tokens, none with a prefix"));
  test_run_free(&run);
  test_kedge_expect("score --model model --tokens 1,2,264 --out x", 2,
                    "entry 3: id 264 is not below vocab_size 264");
  static const char *const wrong[] = {"''", ",", "1,,2", "1,2,", "-1", "1,x", "1.5", "99999999999999999999",
                                      "0x1"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    char arguments[128];
    snprintf(arguments, sizeof arguments, "score --model model --tokens=%s --out x", wrong[i]);
    test_kedge_expect(arguments, 2, "expected a token id");
  }
  test_kedge_expect("score --model model --out x", 2, "expected either --data or --tokens");
  test_kedge_expect("score --model model --tokens 1 --data tiny.json --out x", 2,
                    "either --data or --tokens");
  test_kedge_expect("score --model model --data tiny.json --out x", 2, "model");
  test_kedge_expect("score --model nowhere --tokens 1 --out x", 2, "nowhere");
  test_kedge_expect("score --model model --tokens 1,2 --backend null --out x", 2, "null computes nothing");
  test_kedge_expect("score --model model --tokens 1,2 --backend gpu --out x", 2, "gpu");
  test_kedge_expect("score --model model --tokens 1,2 --out nowhere/x", 2, "nowhere");
  test_write(at("model/model.safetensors"), "12345678{}", 10);
  test_kedge_expect("score --model model --tokens 1,2 --out x", 2, "model.safetensors");
  assert_false(test_exists(at("x")));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_parity), cmocka_unit_test(test_refusals),
                                     cmocka_unit_test(test_memory), cmocka_unit_test(test_data),
                                     cmocka_unit_test(test_ids)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
