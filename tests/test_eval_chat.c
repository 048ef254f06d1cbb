/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Evaluation in chats with think blocks: a model that was trained on turns of Qwen 3's template, asked with
 * and without thinking; what opens a prompt, what an answer is, where it cannot follow. */
#include "models/evaluation/verdict.h"
#include "tests/support/files.h"
#include "tests/support/program.h"
#include "tests/support/training.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 12 };

static const char *at(const char *name) {
  return test_path(test_folder(), name);
}

static void run_ok(const char *format, ...) {
  char arguments[2048];
  va_list list;
  va_start(list, format);
  vsnprintf(arguments, sizeof arguments, format, list);
  va_end(list);
  test_kedge_expect(arguments, 0, "");
}

/* trained/ knows the answers of rows.jsonl as turns of a chat; thinks/ with some reasoning before each. */
static int prepare(void **state) {
  (void)state;
  char rows[4096] = "", turns[8192] = "", thoughts[8192] = "";
  size_t a = 0, b = 0, c = 0;
  training_prepare(8);
  for (int i = 0; i < ROWS; i++) {
    char question[16], answer[16];
    snprintf(question, sizeof question, "Say %c%c", 'a' + i, 'c' + i % 5);
    snprintf(answer, sizeof answer, i % 2 ? "%c%cx" : "#### %d%d", i % 2 ? 'c' + i % 5 : i,
             i % 2 ? 'a' + i : 4);
    a += (size_t)sprintf(rows + a, "{\"prompt\": \"%s\", \"completion\": \"%s\"}\n", question, answer);
    b += (size_t)sprintf(
        turns + b,
        "{\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}, {\"role\": \"assistant\", "
        "\"content\": \"%s\"}]}\n",
        question, answer);
    c += (size_t)sprintf(
        thoughts + c,
        "{\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}, {\"role\": \"assistant\", "
        "\"content\": \"<think>hm</think>%s\"}]}\n",
        question, answer);
  }
  test_write(at("rows.jsonl"), rows, a);
  test_write(at("turns.jsonl"), turns, b);
  test_write(at("thoughts.jsonl"), thoughts, c);
  static const char train[] = "train run.yaml chat_template=qwen3 num_train_epochs=80 learning_rate=1e-2 "
                              "weight_decay=0 logging_steps=1000";
  run_ok("%s dataset=[turns.jsonl] output_dir=trained", train);
  run_ok("%s dataset=[thoughts.jsonl] output_dir=thinks", train);
  return 0;
}

/* Share of right answers by the summary; *rows are the samples. */
static double share(const char *folder, json_t **rows) {
  size_t bytes;
  char *text = test_read(test_path(at(folder), "summary.json"), &bytes);
  json_t *root = json_loads(text, 0, NULL);
  const double value =
      json_number_value(json_object_get(json_object_get(json_object_get(root, "all"), "accuracy"), "share"));
  json_decref(root);
  free(text);
  *rows = json_array();
  text = test_read(test_path(at(folder), "items.jsonl"), &bytes);
  char *save, *line = strtok_r(text, "\n", &save);
  while ((line = strtok_r(NULL, "\n", &save))) json_array_append_new(*rows, json_loads(line, 0, NULL));
  free(text);
  assert_int_equal(json_array_size(*rows), ROWS);
  return value;
}

static const char *text_of(const json_t *rows, size_t i, const char *key) {
  return json_string_value(json_object_get(json_array_get(rows, i), key));
}

static void test_thinking(void **state) {
  (void)state;
  static const struct {
    const char *folder, *model, *options;
    bool ends; /* a block ends in what the model says */
    double least;
  } runs[] = {{"plain", "trained", "--chat-template qwen3 --no-thinking", false, 0.8},
              {"open", "trained", "--chat-template qwen3", true, 0.8},
              {"thought", "thinks", "--chat-template qwen3", true, 0.8},
              {"inside", "thinks", "--chat-template qwen3-thinking", true, 0.8}};
  for (size_t r = 0; r < sizeof runs / sizeof *runs; r++) {
    json_t *rows, *all;
    char decoded[32];
    run_ok("eval --model %s --suite rows.jsonl --max-new-tokens 40 --out %s %s", runs[r].model,
           runs[r].folder, runs[r].options);
    const double right = share(runs[r].folder, &rows);
    printf("%s: %.2f right\n", runs[r].options, right);
    if (right < runs[r].least) fail_msg("%s: %g right", runs[r].options, right);
    /* What one pass tells is what decoding says. */
    snprintf(decoded, sizeof decoded, "%s-all", runs[r].folder);
    run_ok("eval --model %s --suite rows.jsonl --max-new-tokens 40 --out %s %s --decode-all", runs[r].model,
           decoded, runs[r].options);
    const double again = share(decoded, &all);
    assert_true(again >= right && again <= right);
    for (size_t i = 0; i < ROWS; i++) {
      const json_t *row = json_array_get(rows, i);
      assert_true(json_is_number(json_object_get(row, "nll")));
      assert_true(
          json_equal(json_object_get(row, "right"), json_object_get(json_array_get(all, i), "right")));
      if (json_is_true(json_object_get(row, "right")))
        assert_true((strstr(text_of(rows, i, "output"), "</think>") != NULL) == runs[r].ends);
    }
    json_decref(rows), json_decref(all);
  }
  json_t *open, *plain;
  share("open", &open), share("plain", &plain);
  for (size_t i = 0; i < ROWS; i++) {
    assert_string_not_equal(text_of(open, i, "prompt_hash"), text_of(plain, i, "prompt_hash"));
    assert_true(json_integer_value(json_object_get(json_array_get(open, i), "prompt_tokens")) <
                json_integer_value(json_object_get(json_array_get(plain, i), "prompt_tokens")));
  }
  json_decref(open), json_decref(plain);
  test_kedge_expect("eval --model trained --suite rows.jsonl --no-thinking", 2, "it needs --chat");
  test_kedge_expect("eval --model trained --suite rows.jsonl --max-new-tokens 40 --chat-template qwen3 --out "
                    "plain",
                    2, "of other settings");
}

/* Published forms through every template that knows think blocks, choices included. */
static void test_forms(void **state) {
  (void)state;
  test_write_text(
      at("mmlu.jsonl"),
      "{\"question\": \"q\", \"choices\": [\"a\", \"b\", \"c\", \"d\"], \"answer\": 2, \"subject\": "
      "\"s\"}\n");
  test_write_text(at("gsm8k.jsonl"), "{\"question\": \"1 + 1?\", \"answer\": \"It is\\n#### 2\"}\n");
  static const char *const ways[] = {"qwen3", "qwen3 --no-thinking", "qwen3-thinking",
                                     "qwen3-thinking --no-thinking"};
  for (size_t w = 0; w < sizeof ways / sizeof *ways; w++)
    run_ok("eval --model trained --suite mmlu.jsonl gsm8k.jsonl --choice both --max-new-tokens 8 "
           "--chat-template %s",
           ways[w]);
}

static void test_thoughts(void **state) {
  (void)state;
  static const char *const texts[][2] = {{"", ""},
                                         {"a", "a"},
                                         {"<think>a", "<think>a"},
                                         {"</think>", ""},
                                         {"<think>\n</think>\n\nb", "\n\nb"},
                                         {"x</think>y</think>z", "z"},
                                         {"</think", "</think"}};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    const size_t length = strlen(texts[i][0]);
    char *copy = malloc(length + !length);
    memcpy(copy, texts[i][0], length);
    const kedge_extract e = kedge_after_thought(copy, length);
    assert_int_equal(e.length, strlen(texts[i][1]));
    assert_memory_equal(e.start, texts[i][1], e.length);
    free(copy);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_thinking), cmocka_unit_test(test_forms),
                                     cmocka_unit_test(test_thoughts)};
  return cmocka_run_group_tests(tests, prepare, NULL);
}
