/* SPDX-License-Identifier: Apache-2.0
 * Every allocation of opening, configuring, hashing and saving a model fails once, jansson's included: a
 * clean error each time, no leak (the sanitizers see), and the old copy of what was to be replaced stays
 * whole. ctest: quick */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "models/checkpoint/atomic.h"
#include "models/checkpoint/hash.h"
#include "models/checkpoint/hf_config.h"
#include "models/checkpoint/save.h"
#include "models/checkpoint/writer.h"
#include "tests/support/files.h"

static char model[600], saved[600];

/* jansson 2.14 drops a character of a token when its buffer cannot grow, or reports a syntax error: after a
 * failure inside it any status is right, as long as nothing leaks or crashes. */
static bool json_failed;
static void *json_alloc(size_t bytes) {
  void *memory = kedge_alloc(1, bytes);
  if (!memory) json_failed = true;
  return memory;
}

static kedge_status all(void) {
  kedge_checkpoint *checkpoint = NULL, *single = NULL;
  kedge_directory *directory = NULL;
  kedge_notes notes = {0};
  kedge_hf_config config = {0};
  kedge_status status;
  char text[KEDGE_HASH_TEXT];
  KEDGE_GOTO(kedge_hf_config_load(model, &config), status, done);
  KEDGE_GOTO(kedge_checkpoint_open(model, &checkpoint), status, done);
  const kedge_notes *said = kedge_checkpoint_notes(checkpoint);
  for (uint32_t i = 0; i < said->count; i++) assert_true(strlen(said->items[i]));
  KEDGE_GOTO(kedge_checkpoint_open(test_path(model, "x.safetensors"), &single), status, done);
  KEDGE_GOTO(kedge_hash_checkpoint(checkpoint, text), status, done);
  KEDGE_GOTO(kedge_hash_file(test_path(model, "config.json"), text), status, done);
  KEDGE_GOTO(kedge_directory_begin(saved, true, &directory), status, done);
  KEDGE_GOTO(kedge_checkpoint_save(checkpoint, kedge_directory_path(directory), NULL, NULL, NULL, &notes),
             status, done);
  status = kedge_directory_commit(directory);
  directory = NULL;
done:
  kedge_directory_discard(directory);
  kedge_checkpoint_close(single);
  kedge_checkpoint_close(checkpoint);
  kedge_hf_config_destroy(&config);
  kedge_notes_destroy(&notes);
  return status;
}

static kedge_status fill(void *context, uint32_t index, uint64_t offset, void *buffer, uint64_t bytes) {
  (void)context, (void)index, (void)offset;
  memset(buffer, 7, (size_t)bytes);
  return KEDGE_OK;
}

static kedge_status write_one(void) {
  kedge_st_spec specs[] = {{"a", KEDGE_ST_F32, 2, {2, 3}}, {"b", KEDGE_ST_BF16, 0, {0}}};
  kedge_st_pair extra = {"key", "value"};
  return kedge_st_write(test_path(test_folder(), "w.safetensors"), specs, 2, &extra, 1, fill, NULL);
}

/* Fails allocation 1, 2, ... until the work succeeds. */
static void fail_each(kedge_status (*work)(void), unsigned at_least) {
  unsigned failures = 0;
  for (uint64_t nth = 1;; nth++) {
    json_failed = false;
    kedge_alloc_fail_nth(nth);
    kedge_status status = work();
    uint64_t made = kedge_alloc_fail_nth(0);
    if (status == KEDGE_OK && made < nth) break;
    if (status != KEDGE_OK) {
      failures++;
      if (status != KEDGE_ERR_MEMORY && !json_failed)
        fail_msg("allocation %llu: %s: %s", (unsigned long long)nth, kedge_status_name(status),
                 kedge_message());
      assert_true(kedge_message()[0]);
    }
    assert_true(nth < 100000);
  }
  assert_true(failures >= at_least);
}

static void every_allocation_fails(void **state) {
  (void)state;
  snprintf(model, sizeof model, "%s/model", test_folder());
  snprintf(saved, sizeof saved, "%s/saved", test_folder());
  test_make_folder(model);
  kedge_st_spec specs[] = {{"a", KEDGE_ST_U8, 1, {3}}, {"b", KEDGE_ST_U8, 1, {3}}};
  kedge_st_spec other = {"c", KEDGE_ST_U8, 1, {3}};
  assert_int_equal(kedge_st_write(test_path(model, "x.safetensors"), specs, 2, NULL, 0, fill, NULL),
                   KEDGE_OK);
  assert_int_equal(kedge_st_write(test_path(model, "y.safetensors"), &other, 1, NULL, 0, fill, NULL),
                   KEDGE_OK);
  test_write_text(
      test_path(model, KEDGE_CHECKPOINT_INDEX),
      "{\"metadata\":{\"total_size\":8},\"weight_map\":{\"a\":\"x.safetensors\",\"c\":\"y.safetensors\"}}");
  test_write_text(
      test_path(model, "config.json"),
      "{\"model_type\":\"qwen3_moe\",\"hidden_size\":8,\"num_hidden_layers\":2,\"num_attention_heads\":2,"
      "\"num_key_value_heads\":1,\"vocab_size\":16,\"mlp_only_layers\":[0],\"rope_parameters\":"
      "{\"rope_theta\":1e6,\"rope_type\":\"default\"}}");
  test_write_text(test_path(model, "generation_config.json"), "{\"eos_token_id\":[1,2]}");
  test_make_folder(test_path(model, "sub"));
  test_write_text(test_path(model, "sub/a.txt"), "a");
  test_make_folder(saved);
  test_write_text(test_path(saved, "old"), "old");
  json_set_alloc_funcs(json_alloc, kedge_free);
  fail_each(all, 100);
  fail_each(write_one, 5);
  json_set_alloc_funcs(NULL, NULL);
  assert_false(test_exists(test_path(saved, "old")));
  assert_true(test_same_file(test_path(model, "x.safetensors"), test_path(saved, "x.safetensors")));
  assert_int_equal(test_entries(saved), 6);
  assert_int_equal(test_entries(test_folder()), 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation_fails)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
