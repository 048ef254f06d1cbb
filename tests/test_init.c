/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * Random models: numbers that depend on seed, name and place alone; files that load; the command `init`. */
#include "models/checkpoint/convert.h"
#include "models/checkpoint/hash.h"
#include "models/decoder/initialise.h"
#include "models/decoder/model.h"
#include "models/text/tokenizer.h"
#include "tests/support/files.h"
#include "tests/support/program.h"
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

/* ---- Numbers
 * ------------------------------------------------------------------------------------------------------ */

enum { COUNT = 40001 };

static void test_numbers(void **state) {
  (void)state;
  static float whole[COUNT], piece[COUNT], other[COUNT];
  kedge_initialise_normal(7, "a.weight", 0.5, 0, COUNT, whole);
  double sum = 0, squares = 0, fourth = 0, beside = 0;
  for (int i = 0; i < COUNT; i++) {
    double x = (double)whole[i] / 0.5;
    sum += x, squares += x * x, fourth += x * x * x * x;
    if (i) beside += x * (double)whole[i - 1] / 0.5;
  }
  /* Five standard errors of each moment. */
  double error = 5 / sqrt(COUNT);
  assert_true(fabs(sum / COUNT) < error);
  assert_true(fabs(squares / COUNT - 1) < error * sqrt(2));
  assert_true(fabs(fourth / COUNT - 3) < error * sqrt(96));
  assert_true(fabs(beside / COUNT) < error);
  /* Pieces of any size and place are the same numbers. */
  static const uint64_t cuts[] = {0, 1, 2, 5, 8, 1000, 1001, 39999, COUNT};
  for (size_t i = 0; i + 1 < sizeof cuts / sizeof *cuts; i++)
    kedge_initialise_normal(7, "a.weight", 0.5, cuts[i], cuts[i + 1] - cuts[i], piece + cuts[i]);
  assert_memory_equal(piece, whole, sizeof whole);
  /* Another seed or name: independent numbers. */
  for (int k = 0; k < 2; k++) {
    kedge_initialise_normal(k ? 7 : 8, k ? "b.weight" : "a.weight", 0.5, 0, COUNT, other);
    double product = 0;
    for (int i = 0; i < COUNT; i++) product += (double)whole[i] * (double)other[i] / 0.25;
    assert_true(fabs(product / COUNT) < error);
  }
}

/* ---- Weights
 * ------------------------------------------------------------------------------------------------------ */

typedef struct source {
  kedge_hf_config config;
  kedge_params params;
} source;

static void open_source(source *s, const char *folder) {
  check(kedge_hf_config_load(folder, &s->config));
  check(kedge_params_init(&s->params, &s->config));
}

static void close_source(source *s) {
  kedge_params_destroy(&s->params);
  kedge_hf_config_destroy(&s->config);
}

static const char *fresh(const char *name) {
  const char *path = test_path(test_folder(), name);
  test_remove(path);
  test_make_folder(path);
  return path;
}

static void check_weights(const char *folder, const source *s, uint64_t seed, kedge_st_dtype dtype) {
  kedge_checkpoint *checkpoint;
  check(kedge_checkpoint_open(folder, &checkpoint));
  assert_int_equal(kedge_checkpoint_count(checkpoint), s->params.tensors);
  assert_int_equal(kedge_checkpoint_notes(checkpoint)->count, 0);
  for (uint32_t i = 0; i < kedge_checkpoint_count(checkpoint); i++) {
    const kedge_st_tensor *t = kedge_checkpoint_at(checkpoint, i);
    uint64_t count = t->bytes / kedge_st_dtype_size(t->dtype);
    float *got = malloc(count * sizeof *got), *want = malloc(count * sizeof *want);
    uint16_t *narrow = malloc(count * sizeof *narrow);
    assert_int_equal(t->dtype, dtype);
    check(kedge_convert_floats(got, KEDGE_ST_F32, t->data, t->dtype, count));
    for (uint64_t e = 0; e < count; e++) want[e] = 1;
    if (t->rank == 2)
      kedge_initialise_normal(seed, t->name, s->config.initializer_range, 0, count, want);
    else
      assert_non_null(strstr(t->name, "norm"));
    if (dtype != KEDGE_ST_F32) {
      check(kedge_convert_floats(narrow, dtype, want, KEDGE_ST_F32, count));
      check(kedge_convert_floats(want, KEDGE_ST_F32, narrow, dtype, count));
    }
    assert_memory_equal(got, want, count * sizeof *got);
    free(got), free(want), free(narrow);
  }
  kedge_checkpoint_close(checkpoint);
}

static void hash_of(const char *folder, char hash[33]) {
  kedge_checkpoint *checkpoint;
  check(kedge_checkpoint_open(folder, &checkpoint));
  check(kedge_hash_checkpoint(checkpoint, hash));
  kedge_checkpoint_close(checkpoint);
}

static void test_weights(void **state) {
  (void)state;
  static const char *const variants[] = {"qwen3_moe_top2of8", "qwen3_moe_top8of16", "qwen3_moe_step2"};
  static const kedge_st_dtype dtypes[] = {KEDGE_ST_F32, KEDGE_ST_BF16, KEDGE_ST_F16};
  for (int v = 0; v < 3; v++) {
    source s;
    char single[33], sharded[33];
    open_source(&s, test_golden(variants[v]));
    kedge_initialise_options options = {.seed = 5, .dtype = dtypes[v]};
    const char *folder = fresh("single");
    check(kedge_initialise_weights(&s.params, &options, folder));
    assert_int_equal(test_entries(folder), 1);
    check_weights(folder, &s, 5, dtypes[v]);
    hash_of(folder, single);
    /* Shards: a file for each few tensors, the same contents. */
    folder = fresh("sharded");
    options.shard_bytes = 4000;
    check(kedge_initialise_weights(&s.params, &options, folder));
    assert_true(test_entries(folder) > 2);
    char name[64];
    snprintf(name, sizeof name, "model-00001-of-%05u.safetensors", test_entries(folder) - 1);
    assert_true(test_exists(test_path(folder, name)));
    check_weights(folder, &s, 5, dtypes[v]);
    hash_of(folder, sharded);
    assert_string_equal(single, sharded);
    close_source(&s);
  }
}

/* A tensor of several pieces. */
static void test_pieces(void **state) {
  (void)state;
  source s;
  const char *text = test_tokenizer_model_config;
  char *big = kedge_format("%.*s80000%s", (int)(strstr(text, "264") - text), text, strstr(text, "264") + 3);
  assert_non_null(big);
  check(kedge_hf_config_parse(big, strlen(big), "config", &s.config));
  check(kedge_params_init(&s.params, &s.config));
  const kedge_initialise_options options = {.seed = 1, .dtype = KEDGE_ST_F32};
  const char *folder = fresh("pieces");
  check(kedge_initialise_weights(&s.params, &options, folder));
  check_weights(folder, &s, 1, KEDGE_ST_F32);
  test_remove(folder);
  close_source(&s);
  kedge_free(big);
}

static bool stop_at_once(void *context, uint64_t done, uint64_t total) {
  (void)context;
  return done > total;
}

static void test_refusals(void **state) {
  (void)state;
  source s;
  open_source(&s, test_golden("qwen3_moe_step2"));
  kedge_initialise_options options = {.dtype = KEDGE_ST_I32};
  assert_int_equal(kedge_initialise_weights(&s.params, &options, fresh("none")), KEDGE_ERR_ARGUMENT);
  options = (kedge_initialise_options){.dtype = KEDGE_ST_F32, .progress = stop_at_once};
  assert_int_equal(kedge_initialise_weights(&s.params, &options, fresh("none")), KEDGE_ERR_INTERRUPTED);
  assert_int_equal(test_entries(fresh("none")), 0);
  close_source(&s);
}

/* ---- The command
 * -------------------------------------------------------------------------------------------------- */

static const char *at(const char *name) {
  return test_path(test_folder(), name);
}

static void test_command(void **state) {
  (void)state;
  fresh("tok");
  test_tokenizer_write(at("tok"));
  test_write_text(at("tiny.json"), test_tokenizer_model_config);
  test_kedge_expect("init --config tiny.json --tokenizer tok --seed 3 --out a/b", 0, "");
  test_kedge_expect("init --config tiny.json --tokenizer tok/tokenizer.json --seed 3 --out c", 0, "");
  test_kedge_expect("init --config c --tokenizer c --seed 4 --dtype bf16 --out d", 0, "");
  assert_true(test_same_file(at("a/b/model.safetensors"), at("c/model.safetensors")));
  assert_true(test_same_file(at("tok/tokenizer.json"), at("c/tokenizer.json")));
  assert_true(test_same_file(at("d/generation_config.json"), at("c/generation_config.json")));
  assert_int_equal(test_entries(at("a")), 1);
  /* What was missing in the config is there, and what is written loads. */
  kedge_device *device;
  check(kedge_device_open("null", NULL, &device));
  static const char *const folders[] = {"c", "d"}, *const dtypes[] = {"float32", "bfloat16"};
  for (int i = 0; i < 2; i++) {
    kedge_model *model;
    kedge_tokenizer *tokenizer;
    check(kedge_model_load(device, at(folders[i]), KEDGE_F32, &model));
    assert_string_equal(model->config.architecture, "Qwen3MoeForCausalLM");
    assert_string_equal(model->config.dtype, dtypes[i]);
    assert_int_equal(model->config.generation_eos.ids[0], TEST_TOKENIZER_EOS);
    check(kedge_tokenizer_open(at(folders[i]), NULL, &tokenizer));
    assert_int_equal(kedge_tokenizer_size(tokenizer), TEST_TOKENIZER_SIZE);
    kedge_tokenizer_free(tokenizer);
    kedge_model_free(model);
  }
  kedge_device_close(device);
}

static void test_command_refusals(void **state) {
  (void)state;
  fresh("tok");
  test_tokenizer_write(at("tok"));
  test_write_text(at("tiny.json"), test_tokenizer_model_config);
  test_remove(at("out"));
  test_kedge_expect("init --config tiny.json --tokenizer tok --out out", 0, "");
  size_t bytes;
  char *before = test_read(at("out/model.safetensors"), &bytes);
  test_kedge_expect("init --config tiny.json --tokenizer tok --seed 9 --out out", 2, "out");
  char *after = test_read(at("out/model.safetensors"), &bytes);
  assert_memory_equal(before, after, bytes);
  free(after);
  test_kedge_expect("init --config tiny.json --seed 9 --out out --force", 0, "");
  after = test_read(at("out/model.safetensors"), &bytes);
  assert_memory_not_equal(before, after, bytes);
  assert_false(test_exists(at("out/tokenizer.json")));
  free(before), free(after);
  test_kedge_expect("init --tokenizer tok --out x", 2, "--config is needed");
  test_kedge_expect("init --config nowhere.json --out x", 2, "nowhere.json");
  test_kedge_expect("init --config tok --out x", 2, "config.json");
  test_kedge_expect("init --config tiny.json --tokenizer nowhere --out x", 2, "nowhere");
  test_kedge_expect("init --config tiny.json --dtype f64 --out x", 2,
                    "--dtype: expected f32 or bf16, came \"f64\"");
  test_kedge_expect("init --config tiny.json --seed -1 --out x", 2, "--seed");
  test_write_text(at("broken.json"), "{\"model_type\": ");
  test_kedge_expect("init --config broken.json --out x", 2, "broken.json: line 1");
  test_write_text(at("list.json"), "[]");
  test_kedge_expect("init --config list.json --out x", 2, "list.json");
  char *small = strdup(test_tokenizer_model_config);
  memcpy(strstr(small, "264"), "259", 3);
  test_write_text(at("small.json"), small);
  test_kedge_expect("init --config small.json --tokenizer tok --out x", 2,
                    "tok has 260 tokens, more than the vocab_size 259 of small.json");
  memcpy(strstr(small, "\"hidden_size\": 16"), "\"hidden_size\": 0 ", 17);
  test_write_text(at("zero.json"), small);
  test_kedge_expect("init --config zero.json --out x", 2, "hidden_size");
  free(small);
  assert_false(test_exists(at("x")));
  test_kedge_expect("init --help", 0, "");
}

/* A tokenizer file that names no end of sequence gets the config's, for other libraries to find. */
static void test_end_of_sequence(void **state) {
  (void)state;
  static const char config[] =
      "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 512, \"hidden_size\": 8, \"num_hidden_layers\": 1,"
      " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 4, \"num_experts\": 2,"
      " \"num_experts_per_tok\": 1, \"moe_intermediate_size\": 4, \"hidden_act\": \"silu\", "
      "\"eos_token_id\": 507}";
  size_t bytes;
  test_write_text(at("eos.json"), config);
  /* alone: without the tokenizer_config.json that lies beside it */
  char *alone = test_read(test_golden("tokenizer/tiny/tokenizer.json"), &bytes);
  test_write(at("alone.json"), alone, bytes);
  free(alone);
  test_kedge_expect("init --config eos.json --tokenizer alone.json --out with_eos", 0, "");
  char *text = test_read(at("with_eos/tokenizer_config.json"), &bytes);
  assert_non_null(strstr(text, "\"eos_token\": \"<|endoftext|>\""));
  free(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_numbers),        cmocka_unit_test(test_weights),
      cmocka_unit_test(test_pieces),         cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_command),        cmocka_unit_test(test_command_refusals),
      cmocka_unit_test(test_end_of_sequence)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
