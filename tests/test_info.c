/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * The command `info`: what it says of whole models, of broken ones, and of files of every kind. */
#include "models/checkpoint/writer.h"
#include "tests/support/files.h"
#include "tests/support/program.h"
#include "tests/support/tokenizers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static const char *at(const char *name) {
  return test_path(test_folder(), name);
}

static void make_model(void) {
  test_make_folder(at("tok"));
  test_tokenizer_write(at("tok"));
  test_write_text(at("tiny.json"), test_tokenizer_model_config);
  test_kedge_expect("init --config tiny.json --tokenizer tok --out model --force", 0, "");
}

static json_t *info(const char *path, const char *options) {
  char arguments[1024];
  snprintf(arguments, sizeof arguments, "info --json %s '%s'", options, path);
  return test_kedge_json(arguments);
}

static const char *text(const json_t *root, const char *key) {
  const char *value = json_string_value(json_object_get(root, key));
  return value ? value : "";
}

/* How many entries of a list hold `part`. */
static size_t says(const json_t *root, const char *list, const char *part) {
  size_t i, count = 0;
  json_t *line;
  json_array_foreach(json_object_get(root, list), i, line) count +=
      strstr(json_string_value(line), part) != NULL;
  return count;
}

static size_t length(const json_t *root, const char *list) {
  return json_array_size(json_object_get(root, list));
}

static void test_model(void **state) {
  (void)state;
  make_model();
  json_t *r = info("model", "--hash");
  assert_string_equal(text(r, "family"), "qwen3_moe");
  assert_int_equal(test_json_int(r, "layers"), 2);
  assert_int_equal(test_json_int(r, "layers_with_experts"), 1);
  assert_int_equal(test_json_int(r, "experts"), 4);
  assert_int_equal(test_json_int(r, "experts_per_token"), 2);
  /* Two tables; per layer attention (q, k, v, o), its norms and the layer's; a dense MLP, a router, experts.
   */
  const int layer = 16 * 16 + 2 * 8 * 16 + 16 * 16 + 2 * 8 + 2 * 16, expert = 3 * 12 * 16;
  const int rest = 2 * layer + 16 + 3 * 24 * 16 + 4 * 16;
  assert_int_equal(test_json_int(r, "parameters"), 2 * 264 * 16 + rest + 4 * expert);
  assert_int_equal(test_json_int(r, "active_parameters"), 264 * 16 + rest + 2 * expert);
  assert_int_equal(test_json_int(r, "bytes"), 4 * test_json_int(r, "parameters"));
  assert_int_equal(test_json_int(r, "tensors"), 3 + 2 * 8 + 3 + 1 + 4 * 3);
  assert_int_equal(test_json_int(r, "tokenizer.size"), TEST_TOKENIZER_SIZE);
  assert_int_equal(test_json_int(r, "tokenizer.eos"), TEST_TOKENIZER_EOS);
  assert_int_equal(strlen(text(r, "hash")), 32);
  assert_int_equal(length(r, "problems"), 0);
  assert_int_equal(length(r, "dtypes"), 1);
  json_decref(r);
  test_run run = test_kedge("info model", 0, "");
  assert_non_null(strstr(run.out, "family: qwen3_moe\nlayers: 2\n"));
  assert_non_null(strstr(run.out, "dtypes:\n  F32, tensors 35, "));
  assert_null(strstr(run.out, "problems"));
  test_run_free(&run);
}

static void test_odd_models(void **state) {
  (void)state;
  make_model();
  /* A config of other experts and vocabulary: every tensor that does not fit is named. */
  char *other = strdup(test_tokenizer_model_config);
  memcpy(strstr(other, "\"num_experts\": 4"), "\"num_experts\": 5", 16);
  memcpy(strstr(other, "264"), "255", 3);
  test_write_text(at("model/config.json"), other);
  test_write_text(at("model/stray.safetensors"), "x");
  json_t *r = info("model", "");
  assert_int_equal(says(r, "problems", "is missing"), 3);
  assert_int_equal(says(r, "problems", "model.layers.1.mlp.experts.4.gate_proj.weight is missing"), 1);
  assert_int_equal(says(r, "problems", "lm_head.weight has the shape [264,16], the config says [255,16]"), 1);
  assert_int_equal(says(r, "problems", "model.layers.1.mlp.gate.weight has the shape [4,16]"), 1);
  assert_int_equal(
      says(r, "problems", "the tokenizer has 260 tokens, more than the model's vocabulary of 255"), 1);
  assert_int_equal(says(r, "notes", "stray.safetensors"), 1);
  json_decref(r);
  memcpy(strstr(other, "\"num_experts\": 5"), "\"num_experts\": 3", 16);
  test_write_text(at("model/config.json"), other);
  r = info("model", "");
  assert_int_equal(says(r, "problems", "is no part of the model"), 3);
  json_decref(r);
  /* Many problems are counted, not listed. */
  memcpy(strstr(other, "\"num_hidden_layers\": 2"), "\"num_hidden_layers\": 9", 22);
  test_write_text(at("model/config.json"), other);
  r = info("model", "");
  assert_int_equal(says(r, "problems", "further tensors are missing"), 1);
  json_decref(r);
  /* Each part by itself. */
  memcpy(strstr(other, "qwen3"), "qwen9", 5);
  test_write_text(at("model/config.json"), other);
  r = info("model", "");
  assert_int_equal(says(r, "problems", "qwen9_moe"), 1);
  assert_int_equal(test_json_int(r, "tensors"), 35);
  json_decref(r);
  free(other);
  test_write_text(at("model/config.json"), "{");
  r = info("model", "");
  assert_int_equal(says(r, "problems", "config.json: line 1"), 1);
  assert_int_equal(test_json_int(r, "tensors"), 35);
  json_decref(r);
  test_write_text(at("model/model.safetensors"), "no");
  test_write_text(at("model/tokenizer.json"), "[]");
  test_kedge_expect("info model", 2, "holds no readable config.json, weights or tokenizer");
  test_write_text(at("model/config.json"), test_tokenizer_model_config);
  r = info("model", "--hash");
  assert_int_equal(says(r, "problems", "model.safetensors"), 1);
  assert_int_equal(says(r, "problems", "tokenizer.json"), 1);
  json_decref(r);
}

/* Tokenizer, config.json and generation_config.json may name different ends of a sequence. */
static void test_ends(void **state) {
  (void)state;
  static const struct {
    const char *config, *generation, *says; /* NULL: agrees */
  } cases[] = {
      {"257", "257", NULL},
      {"257", "[9, 257]", NULL},
      {"257", NULL, NULL},
      {"null", NULL, NULL},
      {"256", NULL, "the tokenizer 257, config.json 256; training samples end with the tokenizer's"},
      {"257", "[3, 4]", "the tokenizer 257, config.json 257, generation_config.json 3 4;"},
      {"[256, 3]", "[3]", "the tokenizer 257, config.json 256 3, generation_config.json 3;"},
  };
  make_model();
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char *config = strdup(test_tokenizer_model_config), written[4096];
    char *end = strstr(config, "\"eos_token_id\": 257");
    assert_non_null(end);
    snprintf(written, sizeof written, "%.*s\"eos_token_id\": %s}", (int)(end - config), config,
             cases[i].config);
    test_write_text(at("model/config.json"), written);
    test_remove(at("model/generation_config.json"));
    snprintf(written, sizeof written, "{\"eos_token_id\": %s}", cases[i].generation);
    if (cases[i].generation) test_write_text(at("model/generation_config.json"), written);
    json_t *r = info("model", "");
    assert_int_equal(says(r, "notes", "the end of a sequence"), cases[i].says != NULL);
    if (cases[i].says) assert_int_equal(says(r, "notes", cases[i].says), 1);
    assert_int_equal(length(r, "problems"), 0);
    json_decref(r);
    free(config);
  }
}

static void test_files(void **state) {
  (void)state;
  make_model();
  json_t *r = info("tiny.json", "");
  assert_string_equal(text(r, "kind"), "config");
  assert_int_equal(test_json_int(r, "tensors"), 35);
  json_decref(r);
  r = info("model/model.safetensors", "--hash");
  assert_string_equal(text(r, "kind"), "safetensors");
  assert_int_equal(test_json_int(r, "tensors"), 35);
  assert_int_equal(length(r, "tensor_list"), 35);
  assert_string_equal(text(json_object_get(r, "metadata"), "format"), "pt");
  json_t *whole = info("model", "--hash");
  assert_string_equal(text(r, "hash"), text(whole, "hash"));
  json_decref(whole);
  json_decref(r);
  r = info("tok/tokenizer.json", "");
  assert_string_equal(text(r, "kind"), "tokenizer");
  assert_int_equal(test_json_int(r, "tokenizer.size"), TEST_TOKENIZER_SIZE);
  json_decref(r);
  test_write_text(at("data.jsonl"),
                  "{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"text\": \"c\"}\n{\"odd\": 1}\n{]\n"
                  "{\"prompt\": \"d\", \"completion\": \"e\"}\n");
  r = info("data.jsonl", "");
  assert_string_equal(text(r, "kind"), "data");
  assert_int_equal(test_json_int(r, "records"), 4);
  assert_int_equal(test_json_int(r, "bad_lines"), 1);
  assert_int_equal(says(r, "problems", "data.jsonl:4"), 1);
  assert_int_equal(length(r, "fields"), 2);
  json_t *formats = json_object_get(r, "formats");
  assert_int_equal(json_array_size(formats), 3);
  assert_string_equal(text(json_array_get(formats, 0), "format"), "prompt_completion");
  assert_int_equal(test_json_int(json_array_get(formats, 0), "records"), 2);
  assert_string_equal(text(json_array_get(formats, 2), "format"), "unknown");
  json_decref(r);
}

static void test_priors(void **state) {
  (void)state;
  make_model();
  test_write_text(at("train.jsonl"),
                  "{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"prompt\": \"c\", \"completion\": \"d\"}\n");
  test_kedge_expect("prior --model model --data train.jsonl --out p.safetensors", 0, "");
  json_t *r = info("p.safetensors", ""), *model = info("model", "--hash");
  assert_string_equal(text(r, "kind"), "router prior");
  assert_int_equal(test_json_int(r, "samples"), 2);
  assert_int_equal(test_json_int(r, "layers_with_experts"), 1);
  assert_int_equal(test_json_int(r, "experts"), 4);
  assert_string_equal(text(r, "base"), text(model, "hash"));
  assert_string_equal(text(r, "tokenizer_hash"), text(json_object_get(model, "tokenizer"), "hash"));
  json_decref(r), json_decref(model);
  test_kedge_expect("score --model model --tokens 1,2 --out s.st", 0, "");
  r = info("s.st", "");
  assert_string_equal(text(r, "kind"), "scores");
  json_decref(r);
  test_kedge_expect("trace --model model --data train.jsonl --out t.st", 0, "");
  r = info("t.st", "");
  assert_string_equal(text(r, "kind"), "routing trace");
  json_decref(r);
}

static kedge_status zeros(void *context, uint32_t index, uint64_t offset, void *buffer, uint64_t bytes) {
  (void)context, (void)index, (void)offset;
  memset(buffer, 0, bytes);
  return KEDGE_OK;
}

static void test_hostile(void **state) {
  (void)state;
  test_kedge_expect("info", 2, "missing argument: PATH");
  test_kedge_expect("info nowhere", 2, "nowhere");
  test_write(at("empty"), "", 0);
  test_kedge_expect("info empty", 2, "empty: is no safetensors file, no tokenizer and holds no JSON records");
  test_write(at("noise"),
             "\x7f"
             "ELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff",
             17);
  test_kedge_expect("info noise", 2, "noise: is no safetensors file");
  test_write(at("bad.safetensors"), "\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10);
  test_kedge_expect("info bad.safetensors", 2, "bad.safetensors");
  test_write_text(at("deep.json"), "[[[[[[");
  test_kedge_expect("info deep.json", 2, "deep.json");
  assert_int_equal(mkfifo(at("pipe"), 0600), 0);
  test_kedge_expect("info pipe", 2, "neither a folder nor a regular file");
  /* A name that would move the cursor is shown escaped. */
  const kedge_st_spec spec = {"a\033[2Jb", KEDGE_ST_U8, 1, {3}};
  assert_int_equal(kedge_st_write(at("escape.safetensors"), &spec, 1, NULL, 0, zeros, NULL), KEDGE_OK);
  test_run run = test_kedge("info escape.safetensors", 0, "");
  assert_null(strchr(run.out, '\033'));
  assert_non_null(strstr(run.out, "a\\x1b[2Jb, U8, [3], 3 B"));
  test_run_free(&run);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_model),  cmocka_unit_test(test_odd_models),
                                     cmocka_unit_test(test_ends),   cmocka_unit_test(test_files),
                                     cmocka_unit_test(test_priors), cmocka_unit_test(test_hostile)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
