/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Steered evaluation: another model's experts against transformers in float64 (golden/forced.json), a model's
 * own experts forced on it, the rule of ranks, and a training condition's bias against the training loss. */
#include "models/evaluation/evaluate.h"
#include "models/retention/selection.h"
#include "models/routing/replace.h"
#include "models/text/random.h"
#include "tests/support/files.h"
#include "tests/support/program.h"
#include "tests/support/reference.h"
#include "tests/support/training.h"

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

/* ---- Against transformers
 * --------------------------------------------------------------------------------------------- */

typedef struct pair {
  kedge_device *device;
  kedge_model *base, *post;
} pair;

/* Rows of a weight, changed in place. */
static void change(const kedge_model *m, kedge_role role, uint32_t layer, bool roll) {
  const uint32_t item = kedge_params_find(&m->params, role, layer);
  if (item == UINT32_MAX) return;
  const kedge_param *p = &m->params.items[item];
  const uint64_t rows = p->dims[0], count = rows * p->dims[1];
  float *w = malloc(count * sizeof *w), *to = malloc(count * sizeof *to);
  check(kedge_buffer_read(m->weights[item], 0, w, count * sizeof *w));
  for (uint64_t i = 0; i < count; i++) to[i] = roll ? w[(i + p->dims[1]) % count] : 1.3F * w[i];
  check(kedge_buffer_write(m->weights[item], 0, to, count * sizeof *to));
  free(w), free(to);
}

/* The golden's base, and the other model that make_forced.py makes of it. */
static void open_pair(pair *p, const char *name, const char *backend, uint32_t threads) {
  const kedge_open_options options = {.threads = threads, .rowwise = true};
  check(kedge_device_open(backend, &options, &p->device));
  check(kedge_model_load(p->device, test_golden(name), KEDGE_F32, &p->base));
  check(kedge_model_load(p->device, test_golden(name), KEDGE_F32, &p->post));
  for (uint32_t l = 0; l < p->post->config.num_hidden_layers; l++) {
    change(p->post, KEDGE_ROLE_ROUTER, l, true);
    change(p->post, KEDGE_ROLE_Q, l, false);
  }
}

static void close_pair(pair *p) {
  kedge_model_free(p->base);
  kedge_model_free(p->post);
  kedge_device_close(p->device);
}

enum { SEQUENCES = 16 };

/* Likelihoods of the sequences' second halves. */
static void run(const kedge_model *model, const kedge_eval_steer *how, const json_t *rows, const int32_t *ids,
                double *nll) {
  kedge_decoding_job jobs[SEQUENCES] = {0};
  kedge_decoding_result results[SEQUENCES];
  kedge__steering *steering = NULL;
  kedge_decoding *d;
  const uint32_t count = (uint32_t)json_array_size(rows);
  assert_true(count > 0 && count <= SEQUENCES);
  for (uint32_t i = 0; i < count; i++) {
    const json_t *row = json_array_get(rows, i);
    const uint32_t prompt = (uint32_t)test_json_int(row, "prompt");
    jobs[i] = (kedge_decoding_job){.prompt = ids + test_json_int(row, "first"), .prompt_count = prompt};
    jobs[i].reference = jobs[i].prompt + prompt;
    jobs[i].reference_count = (uint32_t)test_json_int(row, "count") - prompt;
  }
  if (how) check(kedge__steering_new(how, model, SEQUENCES, &steering));
  const kedge_decoding_options options = {.sequences = SEQUENCES,
                                          .steer = how ? kedge__steering_decoding(steering) : NULL};
  check(kedge_decoding_new(model, &options, &d));
  check(kedge_decoding_run(d, jobs, count, results));
  for (uint32_t i = 0; i < count; i++) {
    nll[i] = results[i].nll;
    kedge_decoding_result_destroy(&results[i]);
  }
  kedge_decoding_free(d);
  kedge__steering_free(steering);
}

static double compare(const char *key, const json_t *rows, const double *got) {
  double worst = 0;
  for (size_t i = 0; i < json_array_size(rows); i++) {
    const json_t *all = json_object_get(json_array_get(rows, i), "nll"), *want = json_object_get(all, key);
    assert_true(json_is_real(want));
    const double error = fabs(got[i] - json_real_value(want)) / json_real_value(want);
    if (!(error <= 2e-6))
      fail_msg("%s, sequence %zu: %.9g, want %.9g", key, i, got[i], json_real_value(want));
    worst = fmax(worst, error);
  }
  return worst;
}

static kedge_eval_steer experts_of(const kedge_model *base, uint32_t rank) {
  return (kedge_eval_steer){.base = base, .intervention = {.id = KEDGE_ROUTER_replay}, .rank = rank};
}

static void check_golden(const char *name, const json_t *rows, const char *backend, uint32_t threads) {
  pair p;
  kedge_st_file *file;
  uint64_t count;
  double nll[SEQUENCES], own[SEQUENCES], worst = 0;
  open_pair(&p, name, backend, threads);
  check(kedge_st_open(test_path(test_golden(name), "golden.safetensors"), &file));
  int32_t *ids = kedge_test_ints(file, "input_ids", &count);
  run(p.base, NULL, rows, ids, nll);
  worst = fmax(worst, compare("base", rows, nll));
  /* Its own experts forced on a model change no bit, whichever rank. */
  for (uint32_t rank = 0; rank <= p.base->config.num_experts_per_tok; rank++) {
    kedge_eval_steer same = experts_of(p.base, rank);
    run(p.base, &same, rows, ids, own);
    assert_memory_equal(own, nll, json_array_size(rows) * sizeof *nll);
  }
  run(p.post, NULL, rows, ids, nll);
  worst = fmax(worst, compare("post", rows, nll));
  kedge_eval_steer forced = experts_of(p.base, 0), converse = experts_of(p.post, 0);
  run(p.post, &forced, rows, ids, nll);
  worst = fmax(worst, compare("forced", rows, nll));
  run(p.base, &converse, rows, ids, nll);
  worst = fmax(worst, compare("converse", rows, nll));
  for (uint32_t rank = 1; rank <= p.base->config.num_experts_per_tok; rank++) {
    char key[16];
    snprintf(key, sizeof key, "rank%u", rank);
    kedge_eval_steer one = experts_of(p.base, rank);
    run(p.post, &one, rows, ids, nll);
    worst = fmax(worst, compare(key, rows, nll));
  }
  printf("%s on %s: nll within %.1e of transformers\n", name, backend, worst);
  free(ids);
  kedge_st_close(file);
  close_pair(&p);
}

static void test_golden_nll(void **state) {
  (void)state;
  size_t bytes;
  char *text = test_read(test_golden("forced.json"), &bytes);
  json_t *all = json_loads(text, 0, NULL), *rows;
  const char *name;
  assert_non_null(all);
  assert_int_equal(json_object_size(all), 3);
  json_object_foreach(all, name, rows) {
    check_golden(name, rows, "cpu", 2);
    check_golden(name, rows, "ref", 1);
  }
  json_decref(all);
  free(text);
}

/* ---- Ranks
 * ------------------------------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b) {
  return *(const int32_t *)a - *(const int32_t *)b;
}

/* K distinct experts of E. */
static void draw(kedge_random *random, uint32_t experts, uint32_t k, int32_t *ids) {
  for (uint32_t i = 0; i < k; i++) {
    bool known = true;
    while (known) {
      ids[i] = (int32_t)kedge_random_below(random, experts);
      known = false;
      for (uint32_t j = 0; j < i; j++) known |= ids[j] == ids[i];
    }
  }
}

static void test_ranks(void **state) {
  (void)state;
  enum { MOST = 6 };
  kedge_random random = kedge_random_start(3, 0);
  unsigned exchanged = 0;
  for (int i = 0; i < 5000; i++) {
    const uint32_t k = 1 + (uint32_t)kedge_random_below(&random, MOST), E = k + (uint32_t)(i % 4);
    int32_t own[MOST], base[MOST], now[MOST], sorted[MOST], before[MOST];
    draw(&random, E, k, own);
    draw(&random, E, k, base);
    for (uint32_t rank = 1; rank <= k; rank++) {
      bool there = false;
      memcpy(now, own, sizeof own);
      for (uint32_t j = 0; j < k; j++) there |= own[j] == base[rank - 1];
      kedge_rank_replace(now, base, k, rank);
      assert_int_equal(now[rank - 1], base[rank - 1]);
      for (uint32_t j = 0; j < k; j++)
        if (j + 1 != rank && !there) assert_int_equal(now[j], own[j]);
      memcpy(sorted, now, sizeof now);
      memcpy(before, own, sizeof own);
      qsort(sorted, k, sizeof *sorted, ascending);
      qsort(before, k, sizeof *before, ascending);
      for (uint32_t j = 1; j < k; j++) assert_true(sorted[j] > sorted[j - 1]);
      if (there) assert_memory_equal(sorted, before, k * sizeof *sorted);
      exchanged += there && now[rank - 1] != own[rank - 1];
    }
    memcpy(now, own, sizeof own);
    for (uint32_t rank = 1; rank <= k; rank++) kedge_rank_replace(now, base, k, rank);
    assert_memory_equal(now, base, k * sizeof *now);
  }
  assert_true(exchanged > 1000);
  int32_t padding[2] = {-1, -1};
  const int32_t some[2] = {3, 4};
  kedge_rank_replace(padding, some, 2, 1);
  assert_int_equal(padding[0], -1);
}

/* ---- The command
 * ------------------------------------------------------------------------------------------------- */

enum { ROWS = 20 };

static void run_ok(const char *format, ...) {
  char arguments[2048];
  va_list list;
  va_start(list, format);
  vsnprintf(arguments, sizeof arguments, format, list);
  va_end(list);
  test_kedge_expect(arguments, 0, "");
}

/* Rows of <folder>/items.jsonl behind the settings, as one text; freed by free(). */
static char *rows_of(const char *folder) {
  size_t bytes;
  char *text = test_read(test_path(at(folder), "items.jsonl"), &bytes), *end = strchr(text, '\n');
  assert_non_null(end);
  memmove(text, end + 1, strlen(end + 1) + 1);
  return text;
}

static bool same(const char *a, const char *b) {
  char *left = rows_of(a), *right = rows_of(b);
  const bool equal = !strcmp(left, right);
  free(left), free(right);
  return equal;
}

static double number_of(const char *folder, const char *key) {
  size_t bytes;
  char *text = test_read(test_path(at(folder), "summary.json"), &bytes);
  json_t *root = json_loads(text, 0, NULL);
  const double value = json_number_value(json_object_get(json_object_get(root, "all"), key));
  json_decref(root);
  free(text);
  return value;
}

static int prepare(void **state) {
  (void)state;
  char text[8192] = "";
  size_t used = 0;
  training_prepare(8);
  for (int i = 0; i < ROWS; i++)
    used += (size_t)sprintf(text + used,
                            i % 4 ? "{\"prompt\": \"Say %c%c\", \"completion\": \" %c%cx\"}\n"
                                  : "{\"prompt\": \"Sum %c%c?\", \"completion\": \" %c%c\\n#### 3\"}\n",
                            'a' + i, 'b' + i % 7, 'b' + i % 7, 'a' + i);
  test_write(at("rows.jsonl"), text, used);
  run_ok("train run.yaml dataset=[rows.jsonl] output_dir=trained num_train_epochs=20 learning_rate=2e-2 "
         "weight_decay=0 logging_steps=1000");
  return 0;
}

static void test_command(void **state) {
  (void)state;
  static const char eval[] = "eval --suite rows.jsonl --max-new-tokens 8";
  for (int m = 0; m < 2; m++) {
    const char *model = m ? "base" : "trained", *other = m ? "trained" : "base";
    char plain[32], name[32];
    snprintf(plain, sizeof plain, "plain-%s", model);
    run_ok("%s --model %s --out %s", eval, model, plain);
    for (int rank = 0; rank <= 2; rank++) {
      snprintf(name, sizeof name, "own-%s-%d", model, rank);
      run_ok("%s --model %s --out %s --experts-of %s --experts-rank %d", eval, model, name, model, rank);
      assert_true(same(plain, name));
      snprintf(name, sizeof name, "other-%s-%d", model, rank);
      run_ok("%s --model %s --out %s --experts-of %s --experts-rank %d", eval, model, name, other, rank);
      assert_false(same(plain, name));
    }
    /* Neither batches, nor threads, nor decoding what a pass tells change anything. */
    snprintf(name, sizeof name, "other-%s-1", model);
    run_ok("%s --model %s --out again-%s --experts-of %s --experts-rank 1 --batch-size 3 --threads 1", eval,
           model, model, other);
    char again[32];
    snprintf(again, sizeof again, "again-%s", model);
    assert_true(same(name, again));
    snprintf(name, sizeof name, "other-%s-0", model);
    run_ok("%s --model %s --out all-%s --experts-of %s --decode-all", eval, model, model, other);
    snprintf(again, sizeof again, "all-%s", model);
    assert_true(fabs(number_of(name, "nll_per_token") - number_of(again, "nll_per_token")) < 1e-12);
    snprintf(name, sizeof name, "zero-%s", model);
    run_ok("%s --model %s --out %s --router-bias %s --router-strength 0", eval, model, name, other);
    assert_true(same(plain, name));
  }
  test_kedge_expect("eval --model base --suite rows.jsonl --experts-of base --out plain-base", 2,
                    "of other settings");
}

/* With its bias on, the likelihood of a question's reference is what training minimised. */
static void test_bias(void **state) {
  (void)state;
  static const struct {
    const char *name, *train, *eval;
  } ways[] = {
      {"none", "", ""},
      {"rpb", "router.intervention=rpb router.beta=0.7 router.prior=rows.prior",
       "--router-bias base --router-strength 0.7"},
      {"raw", "router.intervention=rpb router.beta=1 router.prior=rows.prior router.gate_source=raw",
       "--router-bias base --router-gates raw"},
      {"sample",
       "router.intervention=rpb router.beta=2 router.prior=rows.prior router.span=sample router.eps=0.2 "
       "router.clip=3",
       "--router-bias base --router-strength 2 --router-span sample --router-eps 0.2 --router-clip 3"},
      {"hard", "router.intervention=rpb_hard router.prior=rows.prior", "--router-bias base --router-hard"}};
  double got[5];
  run_ok("prior --model base --data rows.jsonl --out rows.prior --max-length 160");
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
    char folder[32];
    run_ok(
        "train run.yaml dataset=[rows.jsonl] output_dir=step-%s max_steps=1 learning_rate=0 warmup_steps=0 "
        "per_device_train_batch_size=%d gradient_accumulation_steps=1 %s",
        ways[i].name, ROWS, ways[i].train);
    snprintf(folder, sizeof folder, "step-%s", ways[i].name);
    const double want = training_metric(folder, 1, "train/loss");
    run_ok("eval --model base --suite rows.jsonl --max-new-tokens 8 --out bias-%s %s", ways[i].name,
           ways[i].eval);
    snprintf(folder, sizeof folder, "bias-%s", ways[i].name);
    got[i] = number_of(folder, "nll_per_token");
    if (!(fabs(got[i] - want) <= 1e-5 * want))
      fail_msg("%s: %.8g, the training loss is %.8g", ways[i].name, got[i], want);
    for (size_t j = 0; j < i; j++) assert_true(fabs(got[i] - got[j]) > 1e-3);
  }
}

/* ---- Both sides at once
 * --------------------------------------------------------------------------------------------- */

static double selected(const json_t *probe, const char *side, int rank, const char *key) {
  const json_t *domain = json_array_get(json_object_get(probe, "domains"), 0),
               *s = json_object_get(domain, "selection");
  const json_t *at =
      rank ? json_array_get(json_object_get(s, "ranks"), (size_t)rank - 1) : json_object_get(s, side);
  assert_true(json_is_number(json_object_get(at, key)));
  return json_number_value(json_object_get(at, key));
}

static void same_as_eval(const json_t *probe, const char *side, int rank, const char *eval) {
  static unsigned number;
  char folder[32];
  snprintf(folder, sizeof folder, "alone-%u", number++);
  run_ok("eval --suite rows.jsonl --whole --max-new-tokens 40 --out %s %s", folder, eval);
  size_t bytes;
  char *text = test_read(test_path(at(folder), "summary.json"), &bytes);
  json_t *root = json_loads(text, 0, NULL), *all = json_object_get(root, "all");
  const double nll = json_number_value(json_object_get(all, "nll_per_token")),
               right = json_number_value(json_object_get(json_object_get(all, "accuracy"), "right"));
  const double got = selected(probe, side, rank, "nll_per_token");
  if (!(fabs(got - nll) <= 2e-6 * nll)) fail_msg("%s %d: nll %.9g, eval has %.9g", side, rank, got, nll);
  assert_true(fabs(selected(probe, side, rank, "right") - right) < 0.5);
  json_decref(root);
  free(text);
}

/* What a probe measures of both models at once is what the evaluations of one model after another say. */
static void test_selection(void **state) {
  (void)state;
  char text[512];
  snprintf(
      text, sizeof text,
      "probe --base base --post trained --data rows.jsonl --no-communities --selection --csv csv --json -");
  json_t *probe = test_kedge_json(text);
  same_as_eval(probe, "base", 0, "--model base");
  same_as_eval(probe, "post", 0, "--model trained");
  same_as_eval(probe, "forced", 0, "--model trained --experts-of base");
  same_as_eval(probe, "converse", 0, "--model base --experts-of trained");
  same_as_eval(probe, "rank", 1, "--model trained --experts-of base --experts-rank 1");
  same_as_eval(probe, "rank", 2, "--model trained --experts-of base --experts-rank 2");
  assert_true(selected(probe, "post", 0, "accuracy") > selected(probe, "base", 0, "accuracy"));
  json_decref(probe);
  size_t bytes;
  char *csv = test_read(at("csv/selection.csv"), &bytes);
  assert_non_null(strstr(csv, "\ndata,post,base's,"));
  assert_non_null(strstr(csv, "\ndata,post,base's rank 2,"));
  free(csv);
  csv = test_read(at("csv/retention.csv"), &bytes);
  assert_non_null(strstr(csv, "gate_weighted_overlap,top1_agreement"));
  assert_non_null(strstr(csv, "\ndata,answer,mean,"));
  free(csv);
  /* A model with itself: every variant has the same bits, whatever the batch. */
  for (int batch = 1; batch <= 8; batch += 7) {
    snprintf(text, sizeof text,
             "probe --base trained --post trained --data rows.jsonl --no-communities --selection --json - "
             "--batch-size %d",
             batch);
    probe = test_kedge_json(text);
    static const char *const sides[] = {"post", "forced", "converse", "", ""};
    for (int i = 0; i < 5; i++)
      for (int k = 0; k < 2; k++) {
        const char *key = k ? "accuracy" : "nll_per_token";
        const double a = selected(probe, "base", 0, key),
                     b = selected(probe, sides[i], i > 2 ? i - 2 : 0, key);
        assert_memory_equal(&a, &b, sizeof a);
      }
    json_decref(probe);
  }
  test_kedge_expect("probe --base base --data rows.jsonl --selection", 2, "--selection runs two models");
}

static void test_refusals(void **state) {
  (void)state;
  static const char eval[] = "eval --model base --suite rows.jsonl";
  char line[512];
  static const struct {
    const char *options, *message;
  } wrong[] = {{"--experts-of base --experts-rank 3", "rank 3: a token has 2 experts"},
               {"--experts-rank 1", "--experts-of"},
               {"--experts-of base --router-bias base", "exclude each other"},
               {"--experts-of nowhere", "nowhere"},
               {"--router-bias base --router-gates some", "biased or raw"}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    snprintf(line, sizeof line, "%s %s", eval, wrong[i].options);
    test_kedge_expect(line, 2, wrong[i].message);
  }
  snprintf(line, sizeof line, "%s --experts-of '%s'", eval, test_golden("qwen3_moe_top2of8"));
  test_kedge_expect(line, 2, "hidden_size");
}

/* Allocations fail one after another, later ones sparsely: an error each time, and nothing leaks. */
static void test_memory(void **state) {
  (void)state;
  kedge_device *device;
  kedge_model *base, *model;
  kedge_tokenizer *tokenizer;
  char suite[512];
  snprintf(suite, sizeof suite, "%s", at("rows.jsonl"));
  check(kedge_device_open("cpu", &(kedge_open_options){.threads = 1, .rowwise = true}, &device));
  check(kedge_model_load(device, at("trained"), KEDGE_F32, &model));
  check(kedge_model_load(device, at("base"), KEDGE_F32, &base));
  check(kedge_tokenizer_open(at("trained"), NULL, &tokenizer));
  const char *const suites[] = {suite};
  for (int bias = 0; bias < 2; bias++) {
    kedge_eval_steer steer = {.base = base,
                              .intervention = {.id = bias ? KEDGE_ROUTER_rpb : KEDGE_ROUTER_replay,
                                               .beta = 1,
                                               .eps = 0.05,
                                               .clip = 5},
                              .rank = !bias};
    const kedge_eval_options options = {
        .suites = suites, .suite_count = 1, .limit = 6, .max_new_tokens = 4, .steer = &steer};
    kedge_eval_summary summary;
    kedge_status status = KEDGE_ERR_MEMORY;
    uint64_t failed = 0;
    for (uint64_t nth = 1; status != KEDGE_OK; nth += 1 + nth / 6) {
      kedge_alloc_fail_nth(nth);
      status = kedge_evaluate(model, tokenizer, &options, &summary);
      kedge_alloc_fail_nth(0);
      failed += status != KEDGE_OK;
      if (status != KEDGE_OK) assert_int_equal(status, KEDGE_ERR_MEMORY);
      if (status == KEDGE_OK) assert_int_equal(summary.samples, 6);
      kedge_eval_summary_destroy(&summary);
    }
    assert_true(failed > 25);
  }
  const kedge_dataset_options reading = {.tokenizer = tokenizer, .eos = -1};
  kedge_dataset *data;
  kedge_selection found;
  kedge_status status = KEDGE_ERR_MEMORY;
  check(kedge_dataset_read(suites, NULL, 1, &reading, &data));
  for (uint64_t nth = 1; status != KEDGE_OK; nth += 1 + nth / 6) {
    kedge_alloc_fail_nth(nth);
    status = kedge_selection_measure(base, model, data, NULL, &found);
    kedge_alloc_fail_nth(0);
    if (status != KEDGE_OK) assert_int_equal(status, KEDGE_ERR_MEMORY);
  }
  assert_int_equal(found.samples, ROWS);
  kedge_selection_destroy(&found);
  kedge_dataset_free(data);
  kedge_tokenizer_free(tokenizer);
  kedge_model_free(model);
  kedge_model_free(base);
  kedge_device_close(device);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden_nll), cmocka_unit_test(test_ranks),
                                     cmocka_unit_test(test_command),    cmocka_unit_test(test_bias),
                                     cmocka_unit_test(test_selection),  cmocka_unit_test(test_refusals),
                                     cmocka_unit_test(test_memory)};
  return cmocka_run_group_tests(tests, prepare, NULL);
}
