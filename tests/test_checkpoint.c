/* SPDX-License-Identifier: Apache-2.0
 * Model directories: index and shards, notes, save in the layout of the input, hash. Files themselves are in
 * test_safetensors.c, kills and full disks in test_checkpoint_atomic.c, lack of memory in
 * test_checkpoint_memory.c. ctest: quick */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "models/checkpoint/atomic.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/convert.h"
#include "models/checkpoint/hash.h"
#include "models/checkpoint/save.h"
#include "models/checkpoint/writer.h"
#include "tests/support/files.h"

static char folder[600]; /* a fresh model directory for each test */

static int fresh(void **state) {
  (void)state;
  snprintf(folder, sizeof folder, "%s/model", test_folder());
  test_remove(folder);
  test_make_folder(folder);
  return 0;
}

/* Value i of every tensor is (first letter + i). */
static kedge_status fill(void *context, uint32_t index, uint64_t offset, void *buffer, uint64_t bytes) {
  const kedge_st_spec *specs = context;
  for (uint64_t i = 0; i < bytes; i++)
    ((uint8_t *)buffer)[i] = (uint8_t)((uint64_t)specs[index].name[0] + offset + i);
  return KEDGE_OK;
}

/* A shard with one U8 tensor [3] for each letter of `letters`. */
static void shard(const char *name, const char *letters) {
  kedge_st_spec specs[16];
  char names[16][2];
  uint32_t count = (uint32_t)strlen(letters);
  for (uint32_t i = 0; i < count; i++) {
    names[i][0] = letters[i];
    names[i][1] = 0;
    specs[i] = (kedge_st_spec){names[i], KEDGE_ST_U8, 1, {3}};
  }
  assert_int_equal(kedge_st_write(test_path(folder, name), specs, count, NULL, 0, fill, specs), KEDGE_OK);
}

static void index_file(const char *text) {
  test_write_text(test_path(folder, KEDGE_CHECKPOINT_INDEX), text);
}

static kedge_checkpoint *open_ok(const char *path) {
  kedge_checkpoint *checkpoint;
  if (kedge_checkpoint_open(path, &checkpoint) != KEDGE_OK) fail_msg("%s", kedge_message());
  return checkpoint;
}

static void open_fails(kedge_status expected, const char *a, const char *b) {
  kedge_checkpoint *checkpoint;
  kedge_status status = kedge_checkpoint_open(folder, &checkpoint);
  assert_null(checkpoint);
  if (status != expected || !strstr(kedge_message(), a) || !strstr(kedge_message(), b))
    fail_msg("expected %s with \"%s\" and \"%s\", got %s: %s", kedge_status_name(expected), a, b,
             kedge_status_name(status), kedge_message());
}

static bool noted(const kedge_checkpoint *checkpoint, const char *a, const char *b) {
  const kedge_notes *notes = kedge_checkpoint_notes(checkpoint);
  for (uint32_t i = 0; i < notes->count; i++)
    if (strstr(notes->items[i], a) && strstr(notes->items[i], b)) return true;
  return false;
}

#define MAP(entries) "{\"metadata\":{\"total_size\":12},\"weight_map\":{" entries "}}"

/* ---- Opening
 * ------------------------------------------------------------------------------------------------------- */

static void sharded_model(void **state) {
  (void)state;
  shard("x-2.safetensors", "cb");
  shard("x-10.safetensors", "ad");
  index_file(MAP("\"a\":\"x-10.safetensors\",\"b\":\"x-2.safetensors\",\"c\":\"x-2.safetensors\",\"d\":\"x-"
                 "10.safetensors\""));
  kedge_checkpoint *checkpoint = open_ok(folder);
  assert_int_equal(kedge_checkpoint_notes(checkpoint)->count, 0);
  assert_int_equal(kedge_checkpoint_count(checkpoint), 4);
  assert_int_equal(kedge_checkpoint_bytes(checkpoint), 12);
  assert_true(kedge_checkpoint_has_index(checkpoint));
  assert_string_equal(kedge_checkpoint_directory(checkpoint), folder);
  char stored[5] = "", sorted[5] = "";
  for (uint32_t i = 0; i < 4; i++) {
    stored[i] = kedge_checkpoint_at(checkpoint, i)->name[0];
    sorted[i] = kedge_checkpoint_by_name(checkpoint, i)->name[0];
  }
  assert_string_equal(stored, "adcb");
  assert_string_equal(sorted, "abcd");
  const kedge_st_tensor *c = kedge_checkpoint_find(checkpoint, "c"), *none;
  assert_int_equal(c->data[2], 'c' + 2);
  assert_string_equal(kedge_checkpoint_shard_of(checkpoint, c), "x-2.safetensors");
  assert_null(kedge_checkpoint_find(checkpoint, "e"));
  assert_int_equal(kedge_checkpoint_require(checkpoint, "e", &none), KEDGE_ERR_MISMATCH);
  assert_non_null(strstr(kedge_message(), "\"e\""));
  assert_int_equal(kedge_checkpoint_require(checkpoint, "c", &none), KEDGE_OK);
  assert_ptr_equal(c, none);
  kedge_checkpoint_close(checkpoint);
}

static void single_files(void **state) {
  (void)state;
  open_fails(KEDGE_ERR_IO, "model.safetensors", "found neither");
  shard("model.safetensors", "ab");
  shard("adapter.safetensors", "a");
  kedge_checkpoint *checkpoint = open_ok(folder);
  assert_int_equal(kedge_checkpoint_count(checkpoint), 2);
  assert_false(kedge_checkpoint_has_index(checkpoint));
  assert_true(noted(checkpoint, "adapter.safetensors", "ignored"));
  kedge_checkpoint_close(checkpoint);
  checkpoint = open_ok(test_path(folder, "adapter.safetensors"));
  assert_int_equal(kedge_checkpoint_count(checkpoint), 1);
  assert_null(kedge_checkpoint_directory(checkpoint));
  assert_string_equal(kedge_checkpoint_shard_name(checkpoint, 0), "adapter.safetensors");
  assert_int_equal(kedge_checkpoint_notes(checkpoint)->count, 0);
  kedge_checkpoint_close(checkpoint);
  assert_int_equal(kedge_checkpoint_open(test_path(folder, "absent"), &checkpoint), KEDGE_ERR_IO);
}

static void index_faults(void **state) {
  (void)state;
  shard("x.safetensors", "ab");
  shard("y.safetensors", "cd");
#define REST "\"b\":\"x.safetensors\",\"c\":\"y.safetensors\",\"d\":\"y.safetensors\""
  index_file(MAP("\"a\":\"x.safetensors\"," REST));
  kedge_checkpoint_close(open_ok(folder));
  index_file(MAP("\"a\":\"z.safetensors\"," REST));
  open_fails(KEDGE_ERR_IO, "z.safetensors", "tensor \"a\"");
  index_file(MAP("\"a\":\"y.safetensors\"," REST));
  open_fails(KEDGE_ERR_FORMAT, "tensor \"a\" is not in y.safetensors", "x.safetensors");
  index_file(MAP("\"a\":\"x.safetensors\",\"e\":\"y.safetensors\"," REST));
  open_fails(KEDGE_ERR_FORMAT, "tensor \"e\" is not in y.safetensors", "index.json");
  static const char *const names[] = {
      "../x.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "..safetensors", "",
      "config.json",      ".safetensors"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char text[300];
    snprintf(text, sizeof text, MAP("\"a\":\"%s\"," REST), names[i]);
    index_file(text);
    open_fails(KEDGE_ERR_FORMAT, "tensor \"a\"", "beside the index");
  }
  static const char *const broken[] = {"",
                                       "[]",
                                       "{}",
                                       "{\"weight_map\":[]}",
                                       "{\"weight_map\":{}}",
                                       "{\"weight_map\":{\"a\":1}}",
                                       "{\"weight_map\":{\"a\":\"x.safetensors\",\"a\":\"x.safetensors\"}}"};
  for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
    index_file(broken[i]);
    open_fails(KEDGE_ERR_FORMAT, "index.json", "");
  }
  index_file(MAP("\"a\":\"x.safetensors\"," REST));
  test_write_text(test_path(folder, "y.safetensors"), "short");
  open_fails(KEDGE_ERR_FORMAT, "y.safetensors", "tensor \"c\"");
}

static void doubled_stray_omitted(void **state) {
  (void)state;
  shard("x.safetensors", "ab");
  shard("y.safetensors", "bc");
  index_file(MAP("\"a\":\"x.safetensors\",\"b\":\"x.safetensors\",\"c\":\"y.safetensors\""));
  open_fails(KEDGE_ERR_FORMAT, "tensor \"b\" is in two shards", "y.safetensors");
  index_file(MAP("\"a\":\"x.safetensors\""));
  kedge_checkpoint *checkpoint = open_ok(folder);
  assert_true(noted(checkpoint, "y.safetensors", "ignored"));
  assert_true(noted(checkpoint, "x.safetensors", "omits: b"));
  assert_true(noted(checkpoint, "total_size is 12", "6 bytes"));
  assert_int_equal(kedge_checkpoint_notes(checkpoint)->count, 3);
  assert_non_null(kedge_checkpoint_find(checkpoint, "b"));
  kedge_checkpoint_close(checkpoint);
}

/* ---- Saving
 * ------------------------------------------------------------------------------------------------------------
 */

static void same_in(const char *a, const char *b, const char *name) {
  if (!test_same_file(test_path(a, name), test_path(b, name))) fail_msg("%s differs", name);
}

static kedge_status keep_all(void *context, const kedge_st_tensor *tensor, uint64_t offset, void *buffer,
                             uint64_t bytes, bool *own) {
  (void)context, (void)tensor, (void)offset, (void)buffer, (void)bytes;
  *own = true;
  return KEDGE_OK;
}

/* Through f32 and back, as an export of untouched bf16 weights does. */
static kedge_status widen_and_narrow(void *context, const kedge_st_tensor *tensor, uint64_t offset,
                                     void *buffer, uint64_t bytes, bool *own) {
  (void)own;
  uint64_t count = bytes / kedge_st_dtype_size(tensor->dtype);
  ++*(unsigned *)context;
  float *wide = malloc((size_t)count * sizeof *wide + 1);
  kedge_status status = kedge_convert_floats(wide, KEDGE_ST_F32, tensor->data + offset, tensor->dtype, count);
  if (status == KEDGE_OK) status = kedge_convert_floats(buffer, tensor->dtype, wide, KEDGE_ST_F32, count);
  free(wide);
  return status;
}

static kedge_status change_one(void *context, const kedge_st_tensor *tensor, uint64_t offset, void *buffer,
                               uint64_t bytes, bool *own) {
  *own = strcmp(tensor->name, context);
  memcpy(buffer, tensor->data + offset, (size_t)bytes);
  if (!*own && !offset) ((uint8_t *)buffer)[0] ^= 1;
  return KEDGE_OK;
}

static void save_into(const kedge_checkpoint *like, const char *to, kedge_save_fetch fetch, void *context) {
  kedge_directory *directory;
  assert_int_equal(kedge_directory_begin(to, true, &directory), KEDGE_OK);
  if (kedge_checkpoint_save(like, kedge_directory_path(directory), fetch, NULL, context, NULL) != KEDGE_OK)
    fail_msg("%s", kedge_message());
  assert_int_equal(kedge_directory_commit(directory), KEDGE_OK);
}

/* The goldens of transformers, one file and sharded, f32 and bf16, come back bit for bit. */
static void round_trips(void **state) {
  (void)state;
  static const char *const models[] = {"qwen3_moe_top2of8", "qwen3_moe_top2of8/sharded",
                                       "qwen3_moe_top2of8_bf16", "qwen3_moe_top8of16"};
  for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
    char from[1024], to[1024];
    snprintf(from, sizeof from, "%s", test_golden(models[m]));
    snprintf(to, sizeof to, "%s/saved", folder);
    kedge_checkpoint *checkpoint = open_ok(from);
    unsigned pieces = 0;
    for (int way = 0; way < 3; way++) {
      save_into(checkpoint, to, way == 0 ? NULL : way == 1 ? keep_all : widen_and_narrow, &pieces);
      for (uint32_t i = 0; i < kedge_checkpoint_shard_count(checkpoint); i++)
        same_in(from, to, kedge_checkpoint_shard_name(checkpoint, i));
      same_in(from, to, "config.json");
      same_in(from, to, "generation_config.json");
      if (kedge_checkpoint_has_index(checkpoint)) same_in(from, to, KEDGE_CHECKPOINT_INDEX);
      assert_false(test_exists(test_path(to, "golden.safetensors")));
    }
    assert_true(pieces >= kedge_checkpoint_count(checkpoint));
    kedge_checkpoint *saved = open_ok(to);
    char a[KEDGE_HASH_TEXT], b[KEDGE_HASH_TEXT];
    assert_int_equal(kedge_hash_checkpoint(checkpoint, a), KEDGE_OK);
    assert_int_equal(kedge_hash_checkpoint(saved, b), KEDGE_OK);
    assert_string_equal(a, b);
    kedge_checkpoint_close(saved);
    kedge_checkpoint_close(checkpoint);
  }
}

static void side_files(void **state) {
  (void)state;
  shard("x.safetensors", "ab");
  shard("stray.safetensors", "q");
  index_file("{\n \"weight_map\": {\"a\": \"x.safetensors\",\n\"b\":\"x.safetensors\"} }  ");
  static const char *const kept[] = {"config.json",    "tokenizer.json", "chat_template.jinja",
                                     "merges.txt",     "tiktoken.model", "README.md",
                                     ".gitattributes", "modeling_x.py"};
  static const char *const left[] = {
      "pytorch_model.bin",  "training_args.bin", "pytorch_model.bin.index.json", "x.gguf", "metrics.jsonl",
      "trainer_state.json", "kedge_run.json"};
  for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
    test_write_text(test_path(folder, kept[i]), kept[i]);
  for (size_t i = 0; i < sizeof left / sizeof *left; i++)
    test_write_text(test_path(folder, left[i]), left[i]);
  test_make_folder(test_path(folder, "empty"));
  static const char *const inner[] = {"sub/a.jinja", "sub/deep/b.txt", "sub/deep/config.json"};
  static const char *const folders_left[] = {"checkpoint-8", ".cache", "other", "run", "parent"};
  static const char *const files_left[] = {
      "checkpoint-8/config.json", ".cache/x",  "other/model-1-of-1.safetensors", "other/config.json",
      "run/metrics.jsonl",        "run/a.txt", "parent/checkpoint-2/x"};
  static const char *const more[] = {"sub", "sub/deep", "parent/checkpoint-2"};
  for (size_t i = 0; i < sizeof folders_left / sizeof *folders_left; i++)
    test_make_folder(test_path(folder, folders_left[i]));
  for (size_t i = 0; i < sizeof more / sizeof *more; i++) test_make_folder(test_path(folder, more[i]));
  for (size_t i = 0; i < sizeof inner / sizeof *inner; i++)
    test_write_text(test_path(folder, inner[i]), inner[i]);
  for (size_t i = 0; i < sizeof files_left / sizeof *files_left; i++)
    test_write_text(test_path(folder, files_left[i]), files_left[i]);
  assert_int_equal(symlink("..", test_path(folder, "sub/up")), 0);
  assert_int_equal(symlink("config.json", test_path(folder, "linked.json")), 0);
  test_write_text(test_path(folder, "large.txt"), "");
  assert_int_equal(truncate(test_path(folder, "large.txt"), KEDGE_SAVE_COPY_CAP + 1), 0);
  kedge_checkpoint *checkpoint = open_ok(folder);
  char to[700];
  snprintf(to, sizeof to, "%s/out", test_folder());
  test_remove(to);
  test_make_folder(to);
  kedge_notes notes = {0};
  assert_int_equal(kedge_checkpoint_save(checkpoint, to, NULL, NULL, NULL, &notes), KEDGE_OK);
  char said[4096] = "";
  for (uint32_t i = 0; i < notes.count; i++) {
    const size_t used = strlen(said);
    snprintf(said + used, sizeof said - used, "%s\n", notes.items[i]);
  }
  assert_int_equal(notes.count, 7);
  assert_non_null(strstr(said, "large.txt: 67108865 bytes"));
  assert_non_null(strstr(said, "folder sub/up of the model: not copied\n"));
  for (size_t i = 0; i < sizeof folders_left / sizeof *folders_left; i++) {
    char line[128];
    snprintf(line, sizeof line, "folder %s of the model: not copied\n", folders_left[i]);
    if (!strstr(said, line)) fail_msg("no word of %s in: %s", folders_left[i], said);
  }
  kedge_notes_destroy(&notes);
  for (size_t i = 0; i < sizeof inner / sizeof *inner; i++) same_in(folder, to, inner[i]);
  assert_int_equal(test_entries(test_path(to, "sub")), 2);
  assert_int_equal(test_entries(test_path(to, "sub/deep")), 2);
  for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) same_in(folder, to, kept[i]);
  same_in(folder, to, "x.safetensors");
  same_in(folder, to, KEDGE_CHECKPOINT_INDEX);
  same_in(folder, to, "linked.json");
  assert_int_equal(test_entries(to), sizeof kept / sizeof *kept + 4);
  /* Into a folder inside the model: that folder is not copied into itself. */
  const char *inside = test_path(folder, "within/out");
  test_make_folder(test_path(folder, "within"));
  test_make_folder(inside);
  test_write_text(test_path(folder, "within/a.txt"), "a");
  assert_int_equal(kedge_checkpoint_save(checkpoint, inside, NULL, NULL, NULL, NULL), KEDGE_OK);
  same_in(folder, inside, "sub/deep/b.txt");
  assert_false(test_exists(test_path(inside, "within")));
  kedge_checkpoint_close(checkpoint);
  /* One file opened by its own path takes nothing along. */
  checkpoint = open_ok(test_path(folder, "stray.safetensors"));
  test_remove(to);
  test_make_folder(to);
  assert_int_equal(kedge_checkpoint_save(checkpoint, to, NULL, NULL, NULL, NULL), KEDGE_OK);
  same_in(folder, to, "stray.safetensors");
  assert_int_equal(test_entries(to), 1);
  kedge_checkpoint_close(checkpoint);
}

static kedge_status fetch_fails(void *context, const kedge_st_tensor *tensor, uint64_t offset, void *buffer,
                                uint64_t bytes, bool *own) {
  (void)context, (void)offset, (void)buffer, (void)bytes;
  *own = true;
  return strcmp(tensor->name, "b") ? KEDGE_OK : kedge_fail(KEDGE_ERR_DEVICE, "lost");
}

static void saving_over_itself_and_failing(void **state) {
  (void)state;
  shard("model.safetensors", "ab");
  kedge_checkpoint *checkpoint = open_ok(folder);
  save_into(checkpoint, folder, change_one, "b");
  kedge_checkpoint *saved = open_ok(folder);
  assert_int_equal(kedge_checkpoint_find(saved, "a")->data[0], 'a');
  assert_int_equal(kedge_checkpoint_find(saved, "b")->data[0], 'b' ^ 1);
  assert_int_equal(kedge_checkpoint_find(checkpoint, "b")->data[0], 'b'); /* the old mapping still holds */
  kedge_checkpoint_close(checkpoint);
  kedge_directory *directory;
  assert_int_equal(kedge_directory_begin(folder, false, &directory), KEDGE_ERR_ARGUMENT);
  assert_int_equal(kedge_directory_begin(folder, true, &directory), KEDGE_OK);
  assert_int_equal(
      kedge_checkpoint_save(saved, kedge_directory_path(directory), fetch_fails, NULL, NULL, NULL),
      KEDGE_ERR_DEVICE);
  kedge_directory_discard(directory);
  assert_int_equal(test_entries(folder), 1);
  kedge_checkpoint_close(saved);
}

/* ---- Hash
 * ----------------------------------------------------------------------------------------------------------------
 */

static void hash_is_of_contents(void **state) {
  (void)state;
  char one[KEDGE_HASH_TEXT], other[KEDGE_HASH_TEXT];
  shard("model.safetensors", "abcd");
  kedge_checkpoint *checkpoint = open_ok(folder);
  assert_int_equal(kedge_hash_checkpoint(checkpoint, one), KEDGE_OK);
  kedge_checkpoint_close(checkpoint);
  fresh(NULL);
  shard("x.safetensors", "da");
  shard("y.safetensors", "cb");
  index_file(
      MAP("\"a\":\"x.safetensors\",\"b\":\"y.safetensors\",\"c\":\"y.safetensors\",\"d\":\"x.safetensors\""));
  checkpoint = open_ok(folder);
  assert_int_equal(kedge_hash_checkpoint(checkpoint, other), KEDGE_OK);
  assert_string_equal(one, other);
  save_into(checkpoint, test_path(folder, "changed"), change_one, "c");
  kedge_checkpoint_close(checkpoint);
  checkpoint = open_ok(test_path(folder, "changed"));
  assert_int_equal(kedge_hash_checkpoint(checkpoint, other), KEDGE_OK);
  assert_string_not_equal(one, other);
  kedge_checkpoint_close(checkpoint);
  /* Dtype and shape count, not only bytes. */
  fresh(NULL);
  static const kedge_st_spec kinds[] = {{"a", KEDGE_ST_U8, 1, {4}},
                                        {"a", KEDGE_ST_I8, 1, {4}},
                                        {"a", KEDGE_ST_U8, 2, {2, 2}},
                                        {"a", KEDGE_ST_U8, 2, {4, 1}},
                                        {"b", KEDGE_ST_U8, 1, {4}}};
  char hashes[5][KEDGE_HASH_TEXT];
  for (int i = 0; i < 5; i++) {
    kedge_st_spec spec = kinds[i], named_a = spec;
    named_a.name = "a";
    assert_int_equal(
        kedge_st_write(test_path(folder, "model.safetensors"), &spec, 1, NULL, 0, fill, &named_a), KEDGE_OK);
    checkpoint = open_ok(folder);
    assert_int_equal(kedge_hash_checkpoint(checkpoint, hashes[i]), KEDGE_OK);
    kedge_checkpoint_close(checkpoint);
    for (int j = 0; j < i; j++) assert_string_not_equal(hashes[i], hashes[j]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(sharded_model, fresh),
      cmocka_unit_test_setup(single_files, fresh),
      cmocka_unit_test_setup(index_faults, fresh),
      cmocka_unit_test_setup(doubled_stray_omitted, fresh),
      cmocka_unit_test_setup(round_trips, fresh),
      cmocka_unit_test_setup(side_files, fresh),
      cmocka_unit_test_setup(saving_over_itself_and_failing, fresh),
      cmocka_unit_test_setup(hash_is_of_contents, fresh),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
