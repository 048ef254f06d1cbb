/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * What a prior belongs to (models/prior/prior_header.c, prior_check.c): each part that differs is named
 * with both values; what does not matter makes no difference; files of version 1.
 */
#include "models/prior/prior_internal.h"
#include "tests/support/files.h"
#include "tests/support/priors.h"
#include "tests/support/run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SAMPLES = 6, LENGTH = 5 };

static kedge_device *device;
static kedge_tokenizer *tokenizer;

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

/* `prompt` tokens of each sample are the question's. */
static kedge_dataset *make_data(int32_t first, size_t prompt, size_t length) {
  kedge_dataset_builder *b;
  kedge_dataset *d;
  ok(kedge_dataset_builder_new(0, &b));
  ok(kedge_dataset_builder_file(b, "made"));
  for (uint32_t i = 0; i < SAMPLES; i++) {
    int32_t ids[LENGTH];
    int8_t spans[LENGTH];
    uint8_t trained[LENGTH];
    bool kept;
    for (size_t t = 0; t < length; t++) {
      ids[t] = first + (int32_t)(i + t);
      spans[t] = t >= prompt;
      trained[t] = t && t >= prompt;
    }
    ok(kedge_dataset_builder_add(b, ids, spans, trained, length, i + 1, &kept));
  }
  ok(kedge_dataset_builder_finish(b, &d));
  kedge_dataset_builder_free(b);
  return d;
}

static kedge_model *load(const char *folder) {
  kedge_model *model;
  ok(kedge_model_load(device, folder, KEDGE_F32, &model));
  return model;
}

static kedge_prior_identity identify(const char *folder, const kedge_dataset *data, const char *prompt) {
  kedge_prior_identity id;
  kedge_model *model = load(folder);
  ok(kedge_prior_identify(model, tokenizer, data, 1024, prompt, NULL, &id));
  kedge_model_free(model);
  return id;
}

static void shell(const char *format, ...) {
  char line[1024], command[2048];
  va_list list;
  va_start(list, format);
  vsnprintf(line, sizeof line, format, list);
  va_end(list);
  snprintf(command, sizeof command, "cd '%s' && %s", test_folder(), line);
  test_run run = test_run_shell(command);
  if (run.exit_code) fail_msg("%s: %s", line, run.err);
  test_run_free(&run);
}

/* A copy of the base in which one number of one tensor is another. */
static void copy_with(const char *folder, const char *tensor) {
  char path[600];
  kedge_st_file *file;
  size_t size;
  shell("rm -rf %s && cp -r base %s", folder, folder);
  snprintf(path, sizeof path, "%s/%s/model.safetensors", test_folder(), folder);
  char *bytes = test_read(path, &size);
  ok(kedge_st_open(path, &file));
  uint64_t header;
  const uint8_t *start = kedge_st_header(file, &header);
  const kedge_st_tensor *t = kedge_st_find(file, tensor);
  assert_non_null(t);
  bytes[t->data - start] ^= 1;
  kedge_st_close(file);
  test_write(path, bytes, size);
  free(bytes);
}

static int prepare(void **state) {
  (void)state;
  ok(kedge_device_open("ref", NULL, &device));
  ok(kedge_tokenizer_open(test_golden("tokenizer/tiny"), NULL, &tokenizer));
  shell("cp -r '%s' base", test_golden("qwen3_moe_mixed"));
  return 0;
}

static int finish(void **state) {
  (void)state;
  kedge_tokenizer_free(tokenizer);
  kedge_device_close(device);
  return 0;
}

static void same(const kedge_prior_identity *a, const kedge_prior_identity *b, bool base, bool config,
                 bool tensors, bool router, bool data) {
  assert_int_equal(!strcmp(a->base, b->base), base);
  assert_int_equal(!strcmp(a->config, b->config), config);
  assert_int_equal(!strcmp(a->tensors, b->tensors), tensors);
  assert_int_equal(!strcmp(a->router, b->router), router);
  assert_int_equal(!strcmp(a->data, b->data), data);
  assert_string_equal(a->tokenizer, b->tokenizer);
}

/* Each hash sees its part and nothing else. */
static void test_parts(void **state) {
  (void)state;
  kedge_dataset *data = make_data(1, 2, LENGTH), *other = make_data(2, 2, LENGTH);
  const kedge_prior_identity base = identify(in("base"), data, NULL);
  const char *texts[] = {base.base, base.config, base.tensors, base.router, base.tokenizer, base.data};
  for (int i = 0; i < 6; i++) assert_int_equal(strspn(texts[i], "0123456789abcdef"), 32);
  assert_string_equal(base.templates, "prompt none, chat chatml");
  copy_with("router", "model.layers.2.mlp.gate.weight");
  kedge_prior_identity id = identify(in("router"), data, NULL);
  same(&id, &base, false, true, true, false, true);
  copy_with("norm", "model.norm.weight");
  id = identify(in("norm"), data, NULL);
  same(&id, &base, false, true, true, true, true);
  /* Another order of keys, another writer: the same config. Another number: not. */
  shell("rm -rf order && cp -r base order && sed -i 's/\"transformers_version\": \"[^\"]*\"/"
        "\"transformers_version\": \"9\"/; s/^  \"vocab_size\": 53$/  \"x\": 0/; "
        "s/^{$/{\"vocab_size\": 53,/; s/,$/ ,/' order/config.json");
  shell("sed -i '/\"use_sliding_window\"/s/,//; s/ ,$/,/; /\"x\": 0/d; "
        "/\"use_sliding_window\"/s/ *$//' order/config.json");
  shell("grep -q '^{\"vocab_size\": 53,' order/config.json && ! grep -q '\"x\"' order/config.json && "
        "grep -q '\"9\"' order/config.json");
  id = identify(in("order"), data, NULL);
  same(&id, &base, true, true, true, true, true);
  shell("rm -rf theta && cp -r base theta && sed -i 's/10000.0/10001.0/' theta/config.json");
  id = identify(in("theta"), data, NULL);
  same(&id, &base, true, false, true, true, true);
  id = identify(in("base"), other, "Q: {prompt}");
  same(&id, &base, true, true, true, true, false);
  assert_memory_equal(id.templates, "prompt ", 7);
  assert_int_equal(strspn(id.templates + 7, "0123456789abcdef"), 32);
  kedge_dataset_free(data);
  kedge_dataset_free(other);
}

/* ---- Refusals
 * ------------------------------------------------------------------------------------------------- */

static void refuses(const kedge_prior *prior, const kedge_prior_identity *id, const kedge_model *model,
                    const kedge_dataset *data, const char *text, const char *had, const char *has) {
  fails(kedge_prior_check(prior, id, &model->params, data), KEDGE_ERR_MISMATCH, text);
  assert_non_null(strstr(kedge_message(), "p.st: "));
  assert_non_null(strstr(kedge_message(), had));
  assert_non_null(strstr(kedge_message(), has));
  assert_null(strchr(kedge_message(), '\n'));
}

static void test_refusals(void **state) {
  (void)state;
  kedge_dataset *data = make_data(1, 2, LENGTH), *spans = make_data(1, 3, LENGTH);
  kedge_model *model = load(in("base"));
  const kedge_prior_identity own = identify(in("base"), data, NULL);
  kedge_prior *prior;
  static const char foreign[] = "00000000000000000000000000000000";
  ok(kedge_prior_compute(model, data, &own, NULL, in("p.st")));
  ok(kedge_prior_open(in("p.st"), &prior));
  ok(kedge_prior_check(prior, &own, &model->params, data));
  kedge_prior_identity back = kedge_prior_get_identity(prior), id;
  assert_memory_equal(&back, &own, sizeof own);
  const struct {
    char *here;
    const char *had, *text;
  } parts[] = {
      {id.tensors, own.tensors, "prior of another base model: other tensors in its files (hash "},
      {id.router, own.router, "prior of another base model: other router weights (hash "},
      {id.base, own.base, "prior of another base model: other weights"},
      {id.config, own.config, "prior of another base model: another config.json (hash "},
      {id.tokenizer, own.tokenizer, "prior of another tokenizer (hash "},
      {id.data, own.data, "prior of other data (hash "},
  };
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    id = own;
    memcpy(parts[i].here, foreign, sizeof foreign);
    refuses(prior, &id, model, data, parts[i].text, parts[i].had, foreign);
  }
  /* Templates and length explain other data; alone they change no sample. */
  id = own;
  snprintf(id.templates, sizeof id.templates, "prompt none, chat granite");
  id.max_length = 512;
  ok(kedge_prior_check(prior, &id, &model->params, data));
  memcpy(id.data, foreign, sizeof foreign);
  refuses(prior, &id, model, data, "made with the template", "\"prompt none, chat chatml\"",
          "\"prompt none, chat granite\"");
  memcpy(id.templates, own.templates, sizeof id.templates);
  refuses(prior, &id, model, data, "some samples are cut otherwise", "max_length 1024", "has 512");
  refuses(prior, &own, model, spans, "row 0 is sample 0 with 2 prompt and 3 answer tokens", "sample 0 with 3",
          "and 2");
  kedge_prior_free(prior);
  kedge_model_free(model);
  kedge_dataset_free(data);
  kedge_dataset_free(spans);
}

/* Headers that lie. */
static void test_headers(void **state) {
  (void)state;
  static const struct {
    const char *edit, *text;
  } bad[] = {
      {"s/\"router_hash\":\"./\"router_hash\":\"g/", "metadata router_hash: expected 32 hex digits, got g"},
      {"s/\"router_hash\"/\"ruoter_hash\"/", "metadata router_hash: expected 32 hex digits, got nothing"},
      {"s/\"template\"/\"tmeplate\"/", "metadata template: expected a text"},
      {"s/\"top_k\":\"3\"/\"top_k\":\"x\"/", "metadata top_k: expected a number of experts, got x"},
      {"s/\"max_length\":\"1024\"/\"max_length\":\"-024\"/", "metadata max_length"},
      {"s/\"kedge_prior\":\"2\"/\"kedge_prior\":\"0\"/", "expected version 1 or 2, got 0"},
      {"s/\"prior_qa\":{\"dtype\":\"F32\"/\"prior_qa\":{\"dtype\":\"I32\"/", "tensor prior_qa: expected F32"},
      {"s/\"counts\"/\"conuts\"/", "no tensor counts"},
  };
  kedge_prior *prior;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    shell("sed '%s' p.st > bad.st && ! cmp -s p.st bad.st", bad[i].edit);
    fails(kedge_prior_open(in("bad.st"), &prior), KEDGE_ERR_FORMAT, bad[i].text);
    assert_null(prior);
  }
}

/* A file of version 1 tells less, and what it tells still counts. */
static void test_version_1(void **state) {
  (void)state;
  kedge_prior *prior;
  test_prior made;
  kedge_dataset *data = make_data(1, 2, LENGTH);
  kedge_model *model = load(in("base"));
  kedge_prior_identity own = identify(in("base"), data, NULL);
  test_prior_init(&made, SAMPLES, 2, 8, 1);
  test_prior_write(&made, in("p.st"), KEDGE_ST_F32);
  ok(kedge_prior_open(in("p.st"), &prior));
  assert_int_equal(kedge_prior_version(prior), 1);
  assert_int_equal(kedge_prior_top_k(prior), 0);
  refuses(prior, &own, model, data, "prior of another base model: other weights", own.base,
          "0123456789abcdef0123456789abcdef");
  memcpy(own.base, "0123456789abcdef0123456789abcdef", sizeof own.base);
  refuses(prior, &own, model, data, "prior of another tokenizer", own.tokenizer, "0123456789abcdef");
  kedge_prior_free(prior);
  kedge_model_free(model);
  kedge_dataset_free(data);
  test_prior_destroy(&made);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_parts),
      cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_headers),
      cmocka_unit_test(test_version_1),
  };
  return cmocka_run_group_tests_name("prior_identity", tests, prepare, finish);
}
