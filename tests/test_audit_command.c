/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * `kedge audit` as a program: a base model's shape, traces in place of models,
 * domains, a router with a selection bias, and what is refused.
 */
#include "models/trace/trace.h"
#include "tests/support/files.h"
#include "tests/support/program.h"
#include "tests/support/tokenizers.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void ok(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

static const char *at(const char *name) {
  return test_path(test_folder(), name);
}

static const json_t *find(const json_t *root, const char *a, const char *b) {
  const json_t *value = json_object_get(json_object_get(root, a), b);
  if (!value) fail_msg("no %s.%s", a, b);
  return value;
}

static double figure(const json_t *root, const char *key) {
  const json_t *value = find(root, "figures", key);
  if (!json_is_number(value)) fail_msg("figures.%s is not a number", key);
  return json_number_value(value);
}

static const char *answer(const json_t *root, const char *question) {
  return json_string_value(json_object_get(find(root, "verdicts", question), "answer"));
}

/* The geometry of a sigmoid router with a selection bias, and the small tokenizer's vocabulary. */
static void write_moon(void) {
  json_error_t error;
  json_t *config = json_load_file(test_golden("deepseek_v3_moonlight/config.json"), 0, &error);
  if (!config) fail_msg("config.json: %s", error.text);
  json_object_set_new(config, "vocab_size", json_integer(TEST_TOKENIZER_SIZE));
  assert_int_equal(json_dump_file(config, at("moon.json"), 0), 0);
  json_decref(config);
}

/* Four layers of sixteen experts, top 4. */
static void write_base(void) {
  json_t *config = json_pack(
      "{s:[s], s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:b, s:i, s:f}", "architectures",
      "Qwen3MoeForCausalLM", "model_type", "qwen3_moe", "vocab_size", TEST_TOKENIZER_SIZE, "hidden_size", 96,
      "num_hidden_layers", 4, "num_attention_heads", 4, "num_key_value_heads", 2, "head_dim", 24,
      "intermediate_size", 256, "moe_intermediate_size", 64, "num_experts", 16, "num_experts_per_tok", 4,
      "norm_topk_prob", 1, "max_position_embeddings", 512, "initializer_range", 0.05);
  assert_non_null(config);
  assert_int_equal(json_dump_file(config, at("base.json"), 0), 0);
  json_decref(config);
}

/* Models "base", "tiny" and "moon", and data for them. */
static int prepare(void **state) {
  (void)state;
  test_make_folder(at("tok"));
  test_tokenizer_write(at("tok"));
  test_write_text(at("tiny.json"), test_tokenizer_model_config);
  test_kedge_expect("init --config tiny.json --tokenizer tok --seed 1 --out tiny", 0, "");
  write_base();
  test_kedge_expect("init --config base.json --tokenizer tok --seed 1 --out base", 0, "");
  write_moon();
  test_kedge_expect("init --config moon.json --tokenizer tok --seed 1 --out moon", 0, "");
  FILE *file = fopen(at("a.jsonl"), "w");
  assert_non_null(file);
  for (int i = 0; i < 24; i++)
    fprintf(file, "{\"prompt\": \"Dan has %d apples and buys %d more.\", \"completion\": \"He has %d.\"}\n",
            3 * i + 1, 7 * i % 13, 3 * i + 1 + 7 * i % 13);
  fclose(file);
  test_write_text(at("b.jsonl"), "{\"text\": \"All of this is an answer.\"}\n");
  return 0;
}

static void test_base(void **state) {
  (void)state;
  json_t *report = test_kedge_json("audit --model base --data a.jsonl --nulls 19 --seeds 3 --json -");
  assert_true(test_json_int(report, "moe_layers") == 4 && test_json_int(report, "num_experts") == 16);
  assert_true(test_json_int(report, "top_k") == 4 && test_json_int(report, "figures.cells") == 4);
  assert_string_equal(answer(report, "selection_bias"), "no");
  assert_true(figure(report, "softmax_top1_mass") > 1.0 / 16 && figure(report, "softmax_top1_mass") < 1);
  assert_true(figure(report, "logit_gap") > 0 && figure(report, "bias_sd") > 0);
  assert_true(figure(report, "prior_clipped_low") >= 0 && figure(report, "prior_clipped_high") >= 0);
  assert_true(figure(report, "cells_tested_null") == 4 && figure(report, "rho") == 0.1);
  const json_t *domain = json_array_get(json_object_get(report, "domains"), 0);
  assert_int_equal(json_array_size(json_object_get(domain, "layers")), 4);
  const json_int_t tokens = test_json_int(domain, "tokens");
  assert_true(tokens > 200 && test_json_int(domain, "samples") == 24);
  assert_true(test_json_int(domain, "spans.question.tokens") + test_json_int(domain, "spans.answer.tokens") ==
              tokens);
  assert_true(json_is_number(json_object_get(find(domain, "spans", "question_answer"), "l1_divergence")));
  json_decref(report);
}

static void test_table(void **state) {
  (void)state;
  test_run run = test_kedge("audit --model base --data x=a.jsonl --data y=b.jsonl --nulls 19 --seeds 2 "
                            "--rho 0.1,0.2 --max-tokens 100 --json t.json --trace-out kept",
                            0, "x: the first 100 of ");
  static const char *const parts[] = {"model base\n",
                                      "4 MoE layers, top 4 of 16 experts",
                                      "\nx\n",
                                      "\ny\n",
                                      "top-1",
                                      "\nmean ",
                                      "Layers averaged first",
                                      "x questions",
                                      "2 seeds, 19 null graphs",
                                      "\nsharpness as in the paper: ",
                                      "\ncommunity diagnostic: ",
                                      "\nanchoring by prior (rpb, kl): ",
                                      "\nwithin-community shuffle controls: ",
                                      "\nload balancing: ",
                                      "\nselection bias: absent",
                                      "\nwarning: few tokens"};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    if (!strstr(run.out, parts[i])) fail_msg("\"%s\" is not in: %s", parts[i], run.out);
  if (strstr(run.out, "nan")) fail_msg("nan in: %s", run.out);
  test_run_free(&run);
  assert_true(test_exists(at("kept/x-base.safetensors")));
  /* The kept traces give the same report, but for what a trace does not tell. */
  json_t *traces =
      test_kedge_json("audit --trace x=kept/x-base.safetensors --trace y=kept/y-base.safetensors "
                      "--nulls 19 --seeds 2 --rho 0.1,0.2 --json -");
  json_error_t error;
  json_t *models = json_load_file(at("t.json"), 0, &error);
  assert_non_null(models);
  assert_true(json_equal(json_object_get(models, "domains"), json_object_get(traces, "domains")));
  assert_true(json_equal(json_object_get(models, "figures"), json_object_get(traces, "figures")));
  assert_true(json_array_size(json_object_get(traces, "domain_pairs")) == 1);
  assert_string_equal(answer(traces, "selection_bias"), "cannot_tell");
  json_decref(models), json_decref(traces);
}

/* Without logits their figures are null; a sigmoid router with a bias can have it moved; four experts have no
 * communities. */
static void test_other_models(void **state) {
  (void)state;
  json_t *report = test_kedge_json("audit --model moon --data b.jsonl --nulls 19 --no-logits --json -");
  assert_string_equal(answer(report, "selection_bias"), "yes");
  assert_true(json_is_null(find(report, "figures", "bias_sd")));
  assert_true(json_is_integer(find(report, "figures", "boundary_ties"))); /* of what it ranks */
  json_decref(report);
  report = test_kedge_json("audit --model tiny --data a.jsonl --nulls 19 --json -");
  assert_string_equal(answer(report, "community_diagnostic"), "cannot_tell");
  assert_true(json_is_number(find(report, "figures", "boundary_ties")));
  json_decref(report);
}

/* ---- Refusals
 * ----------------------------------------------------------------------------------------------------- */

static void write_trace(const char *name, uint32_t experts, uint32_t topk, bool broken) {
  kedge_trace t;
  ok(kedge_trace_init(&t, 20, 2, experts, topk));
  for (uint32_t i = 0; i < 40 * topk; i++) t.ids[i] = (int32_t)((i / topk + i % topk) % experts);
  t.weights = kedge_alloc(40 * topk, sizeof *t.weights);
  if (broken) t.weights[7] = NAN;
  ok(kedge_trace_save(&t, at(name)));
  kedge_trace_destroy(&t);
}

static void test_refused(void **state) {
  (void)state;
  size_t bytes;
  write_trace("good.st", 16, 4, false), write_trace("other.st", 16, 2, false);
  write_trace("nan.st", 16, 4, true);
  char *whole = test_read(at("good.st"), &bytes);
  test_write(at("cut.st"), whole, bytes - 9);
  free(whole);
  static const char *const cases[][2] = {
      {"", "either --model with --data, or --trace"},
      {"--model tiny", "--data is needed"},
      {"--data a.jsonl", "either --model with --data, or --trace"},
      {"--model tiny --trace good.st", "either --model with --data, or --trace"},
      {"--trace good.st --data a.jsonl", "--data is routed through a --model"},
      {"--model absent --data a.jsonl", "absent"},
      {"--model good.st --data a.jsonl", "good.st"},
      {"--model tiny --data absent.jsonl", "absent.jsonl"},
      {"--trace absent.st", "absent.st"},
      {"--trace cut.st", "cut.st"},
      {"--trace nan.st", "weights"},
      {"--trace a=good.st --trace b=other.st", "b"},
      {"--trace a=good.st --trace a=good.st", "second"},
      {"--trace good.st --rho 0", "--rho"},
      {"--trace good.st --rho 0.1,", "--rho"},
      {"--trace good.st --rho nan", "--rho"},
      {"--trace good.st --rho 0.2,0.1", "--rho"},
      {"--trace good.st --rho 2", "--rho"},
      {"--trace good.st --detector girvan", "--detector"},
      {"--trace good.st --seeds 0", "--seeds"},
      {"--trace good.st --nulls -1", "--nulls"},
      {"--trace good.st --json good.st", "good.st"},
      {"--model tiny --data a.jsonl --json a.jsonl", "a.jsonl"},
      {"--model tiny --data a.jsonl --json tiny/config.json", "config.json"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char arguments[200];
    snprintf(arguments, sizeof arguments, "audit %s", cases[i][0]);
    test_kedge_expect(arguments, 2, cases[i][1]);
  }
  test_kedge_expect("audit --trace good.st --nulls 0 --rho 1 --json -", 0, "");
  test_kedge_expect("audit --trace good.st --nulls 0", 0, "");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_base), cmocka_unit_test(test_table),
                                     cmocka_unit_test(test_other_models), cmocka_unit_test(test_refused)};
  return cmocka_run_group_tests(tests, prepare, NULL);
}
