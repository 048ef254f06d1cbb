/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * `kedge probe` and `kedge gradcheck` as programs: a model against itself and against another, spans, layers,
 * traces that are kept, models that do not belong together.
 */
#include "models/retention/probe.h"
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

static double number(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  if (!json_is_number(value)) fail_msg("%s is not a number", key);
  return json_number_value(value);
}

/* Models "base" and "post" of one geometry, and others that do not fit. */
static int prepare(void **state) {
  (void)state;
  test_make_folder(at("tok"));
  test_tokenizer_write(at("tok"));
  test_write_text(at("tiny.json"), test_tokenizer_model_config);
  test_kedge_expect("init --config tiny.json --tokenizer tok --seed 1 --out base", 0, "");
  test_kedge_expect("init --config tiny.json --tokenizer tok --seed 2 --out post", 0, "");
  test_write_text(at("a.jsonl"), "{\"prompt\": \"What is two and two?\", \"completion\": \"It is four.\"}\n"
                                 "{\"prompt\": \"Name a sea.\", \"completion\": \"The Baltic.\"}\n");
  test_write_text(at("b.jsonl"), "{\"text\": \"All of this is an answer.\"}\n");
  return 0;
}

/* ---- The command
 * -------------------------------------------------------------------------------------------------- */

static void expect_kept(const json_t *report) {
  assert_true(number(report, "topk_overlap_mean") == 1 && number(report, "top1_agreement_mean") == 1);
  assert_true(number(report, "tvd_mean") == 0 && number(report, "jsd_nats_mean") == 0);
  assert_true(number(report, "jsd_bits_mean") == 0);
}

static void test_itself(void **state) {
  (void)state;
  json_t *report = test_kedge_json("probe --base base --post base --data a.jsonl --json -");
  const json_t *spans = json_object_get(report, "spans");
  expect_kept(report);
  expect_kept(json_object_get(spans, "question"));
  expect_kept(json_object_get(spans, "answer"));
  /* Bytes of the texts and an end of sequence each. */
  assert_true(number(report, "tokens") == 55 && number(report, "samples") == 2);
  assert_true(number(json_object_get(spans, "question"), "tokens") == 31);
  assert_true(number(json_object_get(spans, "answer"), "tokens") == 24);
  assert_true(number(report, "moe_layers") == 1 && number(report, "num_experts") == 4);
  assert_true(number(report, "boundary_ties") == 0 && number(report, "layers_skipped") == 0);
  assert_int_equal(json_array_size(json_object_get(report, "layers")), 1);
  assert_string_equal(json_string_value(json_object_get(report, "base_hash")),
                      json_string_value(json_object_get(report, "post_hash")));
  json_decref(report);
}

/* The report of another model, against the traces that it kept. */
static void test_another(void **state) {
  (void)state;
  json_t *report = test_kedge_json("probe --base base --post post --data a.jsonl --data b.jsonl --json - "
                                   "--trace-out traces/of --batch-size 2");
  const json_t *layer = json_array_get(json_object_get(report, "layers"), 0);
  kedge_trace base, post;
  kedge_retention r;
  ok(kedge_trace_load(at("traces/of/base.safetensors"), &base));
  ok(kedge_trace_load(at("traces/of/post.safetensors"), &post));
  ok(kedge_retention_compare(&base, &post, KEDGE_RETENTION_ALL, &r));
  assert_true(r.mean.overlap > 0 && r.mean.overlap < 1 && r.mean.tvd > 0 && r.mean.jsd_nats > 0);
  assert_true(number(report, "topk_overlap_mean") == r.mean.overlap);
  assert_true(number(report, "tvd_mean") == r.mean.tvd && number(report, "jsd_nats_mean") == r.mean.jsd_nats);
  assert_true(number(report, "load_max_mean_post") == r.mean.load_post);
  assert_true(number(report, "tokens") == base.tokens && base.tokens == 81);
  assert_true(number(layer, "layer") == 1 && number(layer, "tvd") == r.mean.tvd);
  assert_true(number(layer, "topk_overlap") == r.mean.overlap);
  assert_int_equal(json_array_size(json_object_get(report, "layers")), 1);
  assert_string_equal(json_string_value(json_object_get(report, "tokenizer_hash")), base.tokenizer);
  assert_string_equal(json_string_value(json_object_get(report, "post_hash")), post.model);
  assert_true(base.weights && !base.logits && base.ties && base.samples[80] == 2);
  kedge_retention_destroy(&r);
  kedge_trace_destroy(&base), kedge_trace_destroy(&post);
  json_decref(report);
}

/* Undefined numbers are null: a span without tokens. */
static void test_no_question(void **state) {
  (void)state;
  json_t *report = test_kedge_json("probe --base base --post post --data b.jsonl --json - --max-tokens 7");
  const json_t *question = json_object_get(json_object_get(report, "spans"), "question");
  assert_true(number(report, "tokens") == 7 && number(question, "tokens") == 0);
  assert_true(json_is_null(json_object_get(question, "tvd_mean")));
  assert_true(json_is_null(json_object_get(question, "dead_experts_base")));
  assert_true(number(question, "layers_skipped") == 1);
  json_decref(report);
}

static void test_table(void **state) {
  (void)state;
  test_run run = test_kedge("probe --base base --post post --data a.jsonl", 0, "probe base: 55/55 tokens");
  static const char *const parts[] = {"55 tokens of 2 samples, 1 MoE layers, top 2 of 4 experts",
                                      "overlap",
                                      "JSD",
                                      "\n1 ",
                                      "\nmean ",
                                      "\nquestion ",
                                      "\nanswer "};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    if (!strstr(run.out, parts[i])) fail_msg("\"%s\" is not in: %s", parts[i], run.out);
  test_run_free(&run);
}

/* Traces of `kedge trace` give the report that the models give, and domains are told apart by name. */
static void test_traces(void **state) {
  (void)state;
  kedge_trace t;
  test_kedge_expect("trace --model base --data a.jsonl --out a-base.st --weights --logits", 0, "");
  test_kedge_expect("trace --model post --data a.jsonl --out a-post.st --weights", 0, "");
  test_kedge_expect("trace --model base --data b.jsonl --out b-base.st --weights --max-tokens 9", 0, "");
  test_kedge_expect("trace --model post --data b.jsonl --out b-post.st --weights --max-tokens 9", 0, "");
  ok(kedge_trace_load(at("a-base.st"), &t));
  assert_true(t.weights && t.logits && *t.model && *t.tokenizer && *t.data && t.tokens == 55);
  kedge_trace_destroy(&t);
  json_t *models = test_kedge_json("probe --base base --post post --data x=a.jsonl --data y=b.jsonl "
                                   "--max-tokens 55 --json -");
  json_t *traces = test_kedge_json("probe --trace x=a-base.st --post-trace x=a-post.st --trace y=b-base.st "
                                   "--post-trace y=b-post.st --json -");
  json_t *cut = json_array_get(json_object_get(models, "domains"), 0);
  assert_true(
      json_equal(json_object_get(cut, "retention"),
                 json_object_get(json_array_get(json_object_get(traces, "domains"), 0), "retention")));
  assert_int_equal(json_array_size(json_object_get(traces, "domain_pairs")), 1);
  assert_true(number(traces, "gate_weighted_overlap_mean") > 0);
  assert_true(number(traces, "topk_overlap_tie_tolerant_mean") == number(traces, "topk_overlap_mean"));
  json_decref(models), json_decref(traces);
  /* One model alone; a table of its layers, and no comparison. */
  test_run run = test_kedge("probe --base base --data x=a.jsonl --json alone.json --csv tables", 0, "");
  assert_non_null(strstr(run.out, "entropy"));
  assert_null(strstr(run.out, "TVD"));
  test_run_free(&run);
  json_t *alone = json_load_file(at("alone.json"), 0, NULL);
  assert_non_null(alone);
  assert_null(json_object_get(alone, "topk_overlap_mean"));
  json_decref(alone);
  assert_true(test_exists(at("tables/utilisation-x-base.csv")) &&
              !test_exists(at("tables/utilisation-x-post.csv")));
  /* Outputs never replace what is read. */
  test_kedge_expect("probe --base base --data x=a.jsonl --json a.jsonl", 2, "would replace");
  /* Told before anything is routed. */
  test_run two = test_kedge("probe --base base --data long_name_of_x=a.jsonl --data y=b.jsonl "
                            "--communities c.json",
                            2, "takes one domain, there are 2");
  assert_null(strstr(two.err, "tokens"));
  test_run_free(&two);
  /* A domain's name is not cut. */
  two = test_kedge("probe --base base --post post --data long_name_of_x=a.jsonl --data y=b.jsonl "
                   "--no-communities",
                   0, "");
  assert_non_null(strstr(two.out, "\n[long_name_of_x] "));
  test_run_free(&two);
  test_kedge_expect("probe --base base --data x=a.jsonl --json base/config.json", 2, "would replace");
  test_kedge_expect("probe --trace x=a-base.st --json a-base.st", 2, "would replace");
  test_kedge_expect("trace --model base --data a.jsonl --out base/model.safetensors", 2, "would replace");
  test_kedge_expect("probe --base base --trace x=a-base.st --data a.jsonl", 2, "is a model");
}

static void test_refusals(void **state) {
  (void)state;
  char other[1024];
  const char *config = test_tokenizer_model_config, *experts = strstr(config, "\"num_experts\": 4");
  assert_non_null(experts);
  snprintf(other, sizeof other, "%.*s\"num_experts\": 5%s", (int)(experts - config), config, experts + 16);
  test_write_text(at("five.json"), other);
  test_kedge_expect("init --config five.json --tokenizer tok --out five", 0, "");
  test_kedge_expect("probe --base base --post five --data a.jsonl", 2, "num_experts: 4 in base, 5 in five");
  test_kedge_expect("init --config tiny.json --tokenizer tok --out renamed", 0, "");
  size_t bytes;
  char *text = test_read(at("renamed/tokenizer.json"), &bytes), *token = strstr(text, "<|im_end|>");
  assert_non_null(token);
  memcpy(token, "<|im_sto|>", 10);
  test_write(at("renamed/tokenizer.json"), text, bytes);
  free(text);
  /* another file, the same ids for this data; then ids that differ */
  test_kedge_expect("probe --base base --post renamed --data a.jsonl", 0, "the same ids for this data");
  test_write_text(at("marked.jsonl"), "{\"text\": \"a<|im_end|>b\"}\n");
  test_kedge_expect("probe --base base --post renamed --data marked.jsonl", 2,
                    "would not see the same tokens");
  test_kedge_expect("probe --base base --post base --data a.jsonl --backend null", 2, "null");
  test_kedge_expect("probe --base base --post base", 2, "--data is needed");
  test_kedge_expect("probe --base base --post nowhere --data a.jsonl", 2, "nowhere");
  test_kedge_expect("probe --base base --post base --data nowhere.jsonl", 2, "nowhere.jsonl");
  test_kedge_expect("probe --base base --post base --data a.jsonl --dtype f64", 2, "--dtype: expected");
}

/* ---- gradcheck
 * ---------------------------------------------------------------------------------------------------- */

static void test_gradcheck(void **state) {
  (void)state;
  test_run run = test_kedge("gradcheck", 0, "");
  static const char *const parts[] = {"none on ref", "rpb on ref", "router ", "limit 1e-07: pass",
                                      "rejected"};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    if (!strstr(run.out, parts[i])) fail_msg("\"%s\" is not in: %s", parts[i], run.out);
  assert_null(strstr(run.out, "FAIL"));
  test_run_free(&run);
  run = test_kedge("gradcheck --intervention rpb --backend cpu", 0, "");
  assert_true(strstr(run.out, "limit 1e-04: pass") && !strstr(run.out, "none on"));
  test_run_free(&run);
  test_kedge_expect("gradcheck --intervention rbp", 2, "came \"rbp\"");
  test_kedge_expect("gradcheck --backend null", 2, "computes nothing");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_itself),    cmocka_unit_test(test_another), cmocka_unit_test(test_no_question),
      cmocka_unit_test(test_table),     cmocka_unit_test(test_traces),  cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_gradcheck),
  };
  return cmocka_run_group_tests_name("probe", tests, prepare, NULL);
}
