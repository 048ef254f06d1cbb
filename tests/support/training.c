/* SPDX-License-Identifier: Apache-2.0
 * For tests of whole runs. */
#include "tests/support/training.h"

#include "tests/support/files.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char config_json[] =
    "{\"model_type\": \"qwen3_moe\", \"architectures\": [\"Qwen3MoeForCausalLM\"], \"vocab_size\": 512, "
    "\"hidden_size\": 32,"
    " \"intermediate_size\": 48, \"moe_intermediate_size\": 24, \"num_hidden_layers\": 2, "
    "\"num_attention_heads\": 4,"
    " \"num_key_value_heads\": 2, \"head_dim\": 8, \"num_experts\": 8, \"num_experts_per_tok\": 2, "
    "\"norm_topk_prob\": true,"
    " \"tie_word_embeddings\": false, \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0, "
    "\"max_position_embeddings\": 512,"
    " \"hidden_act\": \"silu\", \"initializer_range\": 0.2, \"torch_dtype\": \"float32\", "
    "\"decoder_sparse_step\": 1,"
    " \"mlp_only_layers\": [], \"bos_token_id\": 0, \"eos_token_id\": 0, \"attention_bias\": false}";

static const char run_yaml[] = "model_name_or_path: base\n"
                               "dataset: [train.jsonl]\n"
                               "output_dir: out\n"
                               "max_length: 160\n"
                               "per_device_train_batch_size: 4\n"
                               "gradient_accumulation_steps: 3\n"
                               "num_train_epochs: 2\n"
                               "learning_rate: 3e-3\n"
                               "lr_scheduler_type: cosine\n"
                               "warmup_steps: 2\n"
                               "weight_decay: 0.1\n"
                               "logging_steps: 1\n"
                               "save_steps: 0\n"
                               "threads: 2\n";

/* Rows whose lengths differ, so that several buckets are used. */
static void write_rows(unsigned samples) {
  char *text = calloc(samples + 1, 256);
  size_t at = 0;
  assert_non_null(text);
  for (unsigned i = 0; i < samples; i++) {
    unsigned a = 3 + i * 7 % 50, b = 2 + i * 13 % 40;
    at += (size_t)sprintf(text + at,
                          "{\"prompt\": \"%s has %u apples and gets %u more.%s How many?\", \"completion\": "
                          "\" %u + %u = %u\"}\n",
                          i % 3 ? "Ann" : "Bernard", a, b,
                          i % 4 ? "" : " It is raining in the orchard today.", a, b, a + b);
  }
  test_write(test_path(test_folder(), "train.jsonl"), text, at);
  free(text);
}

void training_prepare(unsigned samples) {
  test_write_text(test_path(test_folder(), "config.json"), config_json);
  test_write_text(test_path(test_folder(), "run.yaml"), run_yaml);
  write_rows(samples);
  if (test_exists(test_path(test_folder(), "base"))) return;
  training_expect(0, "", "init --config config.json --tokenizer '%s' --out base --seed 5",
                  test_golden("tokenizer/tiny"));
}

static test_run run_format(const char *format, va_list list) {
  char arguments[4096], command[8192];
  vsnprintf(arguments, sizeof arguments, format, list);
  const char *program = getenv("KEDGE_BIN");
  snprintf(command, sizeof command, "cd '%s' && '%s' %s", test_folder(), program ? program : "kedge",
           arguments);
  return test_run_shell(command);
}

test_run training_kedge(const char *format, ...) {
  va_list list;
  va_start(list, format);
  test_run run = run_format(format, list);
  va_end(list);
  return run;
}

void training_expect(int code, const char *err, const char *format, ...) {
  va_list list;
  va_start(list, format);
  test_run run = run_format(format, list);
  va_end(list);
  if (run.exit_code != code) fail_msg("kedge %s: exit %d, want %d: %s", format, run.exit_code, code, run.err);
  if (*err && !strstr(run.err, err)) fail_msg("kedge %s: want \"%s\" in \"%s\"", format, err, run.err);
  test_run_free(&run);
}

bool training_same(const char *a, const char *b) {
  return test_same_file(test_path(test_folder(), a), test_path(test_folder(), b));
}

/* The log of a run, from its trainer_state.json; the keys around it say how often it was saved. */
static json_t *log_history(const char *run) {
  char name[256];
  size_t bytes;
  snprintf(name, sizeof name, "%s/trainer_state.json", run);
  char *text = test_read(test_path(test_folder(), name), &bytes);
  json_t *state = json_loadb(text, bytes, 0, NULL), *log = json_incref(json_object_get(state, "log_history"));
  json_decref(state);
  free(text);
  assert_true(json_array_size(log) > 0);
  return log;
}

void training_same_run(const char *a, const char *b, unsigned steps) {
  char x[512], y[512], files[3][64] = {"model.safetensors", "metrics.jsonl"};
  json_t *one = log_history(a), *two = log_history(b);
  if (!json_equal(one, two)) fail_msg("the logs of %s and %s differ", a, b);
  json_decref(one);
  json_decref(two);
  snprintf(files[2], sizeof files[2], "checkpoint-%u/optimizer.safetensors", steps);
  for (int i = 0; i < 3; i++) {
    snprintf(x, sizeof x, "%s/%s", a, files[i]);
    snprintf(y, sizeof y, "%s/%s", b, files[i]);
    if (!training_same(x, y)) fail_msg("%s and %s differ", x, y);
  }
}

double training_metric(const char *run, unsigned step, const char *key) {
  char name[256];
  size_t bytes;
  double value = (double)NAN;
  snprintf(name, sizeof name, "%s/metrics.jsonl", run);
  char *text = test_read(test_path(test_folder(), name), &bytes);
  for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
    json_t *o = json_loads(line, 0, NULL), *number = json_object_get(o, key);
    if (json_integer_value(json_object_get(o, "step")) == (json_int_t)step && json_is_number(number))
      value = json_number_value(number);
    json_decref(o);
  }
  free(text);
  return value;
}
