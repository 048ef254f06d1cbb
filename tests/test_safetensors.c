/* SPDX-License-Identifier: Apache-2.0
 * Reading and writing one safetensors file: odd but valid files, hostile ones, random mutations, the Python
 * library's files, conversions. Model directories are in test_checkpoint.c. ctest: quick */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "models/checkpoint/convert.h"
#include "models/checkpoint/hash.h"
#include "models/checkpoint/safetensors.h"
#include "models/checkpoint/writer.h"
#include "tests/support/files.h"

static const char *path(void) {
  return test_path(test_folder(), "one.safetensors");
}

/* Writes a file of this header and `data_bytes` bytes 0, 1, 2, ...; `length` -1: the header's own. */
static void write_raw(const char *header, int64_t length, size_t data_bytes) {
  size_t header_bytes = strlen(header);
  uint8_t *file = malloc(8 + header_bytes + data_bytes);
  uint64_t word = length < 0 ? header_bytes : (uint64_t)length;
  for (unsigned i = 0; i < 8; i++) file[i] = (uint8_t)(word >> (8 * i));
  memcpy(file + 8, header, header_bytes);
  for (size_t i = 0; i < data_bytes; i++) file[8 + header_bytes + i] = (uint8_t)i;
  test_write(path(), file, 8 + header_bytes + data_bytes);
  free(file);
}

static kedge_st_file *open_raw(const char *header, size_t data_bytes) {
  write_raw(header, -1, data_bytes);
  kedge_st_file *file;
  kedge_status status = kedge_st_open(path(), &file);
  if (status != KEDGE_OK) fail_msg("%s: %s", header, kedge_message());
  return file;
}

#define ONE(fields) "{\"t\":{" fields "}}"
#define T4(offsets) ONE("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":" offsets)

/* ---- Valid but odd
 * ---------------------------------------------------------------------------------------------------- */

static void valid_odd_files(void **state) {
  (void)state;
  /* No tensors; metadata absent, empty, null. */
  static const char *const empty[] = {"{}", "{\"__metadata__\":{}}", "{\"__metadata__\":null}", "{ }     "};
  for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
    kedge_st_file *file = open_raw(empty[i], 0);
    assert_int_equal(kedge_st_count(file), 0);
    assert_int_equal(kedge_st_metadata_count(file), 0);
    assert_null(kedge_st_metadata(file, "format"));
    assert_null(kedge_st_find(file, "t"));
    kedge_st_close(file);
  }
  /* Rank 0; zero-size tensors before, between and after; header order other than data order; extra keys. */
  kedge_st_file *file =
      open_raw("{\"z\":{\"dtype\":\"I16\",\"shape\":[0,9223372036854775807],\"data_offsets\":[8,8]},"
               "\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[4,8],\"note\":[1,{}]},"
               "\"a\":{\"dtype\":\"U8\",\"shape\":[2,1,2,1,1,1,1,1],\"data_offsets\":[0,4]},"
               "\"y\":{\"dtype\":\"F64\",\"shape\":[0],\"data_offsets\":[0,0]},"
               "\"__metadata__\":{\"format\":\"pt\",\"k\":\"v\"}}",
               8);
  assert_int_equal(kedge_st_count(file), 4);
  static const char *const order[] = {"y", "a", "b", "z"}, *const names[] = {"a", "b", "y", "z"};
  for (uint32_t i = 0; i < 4; i++) {
    assert_string_equal(kedge_st_at(file, i)->name, order[i]);
    assert_string_equal(kedge_st_by_name(file, i)->name, names[i]);
    assert_ptr_equal(kedge_st_find(file, names[i]), kedge_st_by_name(file, i));
  }
  const kedge_st_tensor *b = kedge_st_find(file, "b"), *a = kedge_st_find(file, "a"),
                        *z = kedge_st_find(file, "z");
  assert_int_equal(b->rank, 0);
  assert_int_equal(b->bytes, 4);
  assert_int_equal(b->data[0], 4);
  assert_int_equal(a->rank, 8);
  assert_int_equal(a->data[3], 3);
  assert_int_equal(z->bytes, 0);
  assert_non_null(z->data);
  assert_null(kedge_st_find(file, "c"));
  assert_string_equal(kedge_st_metadata(file, "k"), "v");
  const char *key, *value;
  kedge_st_metadata_at(file, 0, &key, &value);
  assert_string_equal(key, "format");
  assert_string_equal(value, "pt");
  kedge_st_prefetch(a);
  kedge_st_drop(a);
  kedge_st_close(file);
}

/* ---- Hostile
 * -------------------------------------------------------------------------------------------------------------
 */

typedef struct hostile {
  const char *what, *header, *says;
  int64_t length; /* 0: the header's own */
  size_t data;
} hostile;

static const hostile hostiles[] = {
    {"length over the file", "{}", "cut short", .length = 3},
    {"length over 100 MB", "{}", "over the limit", .length = 100000001},
    {"length near 2^63", "{}", "over the limit", .length = INT64_MAX},
    {"empty header", "", "does not start with '{'", .data = 0},
    {"space before the object", " {}", "does not start with '{'", .data = 0},
    {"an array", "[]", "does not start with '{'", .data = 0},
    {"not JSON", "{x}", "not valid JSON", .data = 0},
    {"rubbish after", "{}x", "not valid JSON", .data = 0},
    {"not UTF-8", "{\"\xff\":1}", "not valid JSON", .data = 0},
    {"overlong UTF-8", "{\"\xc0\xaf\":1}", "not valid JSON", .data = 0},
    {"NUL in a name", "{\"a\\u0000b\":1}", "not valid JSON", .data = 0},
    {"cut in the middle", "{\"t\":{\"dtype\":\"F32\"", "not valid JSON", .data = 0},
    {"duplicate tensor",
     "{\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"t\":{\"dtype\":\"U8\",\"shape\":[1],"
     "\"data_offsets\":[0,1]}}",
     "uplicate", .data = 1},
    {"duplicate key", ONE("\"dtype\":\"U8\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]"),
     "uplicate", .data = 4},
    {"a number for a tensor", "{\"t\":1}", "tensor \"t\": expected an object", .data = 0},
    {"no dtype", ONE("\"shape\":[1],\"data_offsets\":[0,4]"), "\"dtype\": expected a string, got nothing",
     .data = 4},
    {"unknown dtype", ONE("\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]"), "unknown dtype \"F31\"",
     .data = 4},
    {"no shape", ONE("\"dtype\":\"F32\",\"data_offsets\":[0,4]"), "\"shape\": expected an array", .data = 4},
    {"negative dim", ONE("\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]"), "a negative one",
     .data = 4},
    {"real dim", ONE("\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]"), "a real number", .data = 4},
    {"dim over 64 bits", ONE("\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,4]"),
     "expected an integer", .data = 4},
    {"rank 9", ONE("\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]"), "rank 9",
     .data = 1},
    {"product overflows", ONE("\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]"),
     "overflows", .data = 0},
    {"bytes overflow", ONE("\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,0]"),
     "overflows", .data = 0},
    {"shape and offsets differ", ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]"),
     "is 8 bytes, data_offsets give 4", .data = 4},
    {"no offsets", ONE("\"dtype\":\"F32\",\"shape\":[1]"), "\"data_offsets\": expected", .data = 4},
    {"one offset", T4("[0]"), "\"data_offsets\": expected", .data = 4},
    {"three offsets", T4("[0,4,4]"), "\"data_offsets\": expected", .data = 4},
    {"negative offset", T4("[-4,0]"), "a negative one", .data = 4},
    {"text offset", T4("[\"0\",4]"), "a string", .data = 4},
    {"reversed", T4("[4,0]"), "reversed", .data = 4},
    {"out of range", T4("[4,8]"), "end after the data of 4 bytes", .data = 4},
    {"far out of range", T4("[9223372036854775800,9223372036854775804]"), "end after", .data = 4},
    {"gap before", T4("[4,8]"), "leaving a gap", .data = 8},
    {"bytes after", T4("[0,4]"), "cover 4 of 8", .data = 8},
    {"no tensor but data", "{}", "cover 0 of 4", .data = 4},
    {"overlap",
     "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[3],"
     "\"data_offsets\":[3,6]}}",
     "tensor \"b\": data_offsets [3,6] overlap those of \"a\"", .data = 6},
    {"same bytes twice",
     "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],"
     "\"data_offsets\":[0,4]}}",
     "overlap", .data = 4},
    {"empty inside another",
     "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[0],"
     "\"data_offsets\":[2,2]}}",
     "overlap", .data = 4},
    {"gap between",
     "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[1],"
     "\"data_offsets\":[5,6]}}",
     "tensor \"b\"", .data = 6},
    {"metadata is a list", "{\"__metadata__\":[]}", "\"__metadata__\": expected an object of strings",
     .data = 0},
    {"metadata of numbers", "{\"__metadata__\":{\"step\":3}}", "\"step\": expected a string, got an integer",
     .data = 0},
};

static void hostile_headers(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof hostiles / sizeof *hostiles; i++) {
    const hostile *h = &hostiles[i];
    write_raw(h->header, h->length ? h->length : -1, h->data);
    kedge_st_file *file;
    kedge_alloc_fail_nth(0);
    kedge_status status = kedge_st_open(path(), &file);
    if (status != KEDGE_ERR_FORMAT && status != KEDGE_ERR_UNSUPPORTED)
      fail_msg("%s: status %s", h->what, kedge_status_name(status));
    assert_null(file);
    assert_true(kedge_alloc_fail_nth(0) < 16); /* no work in proportion to what a header claims */
    if (!strstr(kedge_message(), h->says) || !strstr(kedge_message(), "one.safetensors"))
      fail_msg("%s: expected \"%s\" in \"%s\"", h->what, h->says, kedge_message());
  }
  /* Deep nesting ends in an error, not in the end of the stack. */
  char *deep = malloc(1000001);
  memset(deep, '[', 1000000);
  memcpy(deep, "{\"t\":", 5);
  deep[1000000] = 0;
  write_raw(deep, -1, 0);
  free(deep);
  kedge_st_file *file;
  assert_int_equal(kedge_st_open(path(), &file), KEDGE_ERR_FORMAT);
  for (size_t bytes = 0; bytes < 10; bytes++) {
    test_write(path(), "\2\0\0\0\0\0\0\0{}", bytes);
    assert_int_equal(kedge_st_open(path(), &file), KEDGE_ERR_FORMAT);
  }
  assert_int_equal(kedge_st_open(test_folder(), &file), KEDGE_ERR_IO);
  assert_int_equal(kedge_st_open("/dev/null", &file), KEDGE_ERR_IO);
  assert_int_equal(mkfifo(test_path(test_folder(), "pipe"), 0600), 0);
  assert_int_equal(kedge_st_open(test_path(test_folder(), "pipe"), &file), KEDGE_ERR_IO);
  assert_int_equal(kedge_st_open(test_path(test_folder(), "absent"), &file), KEDGE_ERR_IO);
}

static uint64_t next_random(uint64_t *seed) {
  uint64_t z = *seed += 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

/* Every mutation is refused or opens with all tensors inside the file: reading each byte proves it (under
 * ASan). */
static void mutations(void **state) {
  (void)state;
  size_t bytes;
  char *good = test_read(test_golden("safetensors/mixed.safetensors"), &bytes);
  char *bad = malloc(bytes + 8);
  uint64_t seed = 20260101, opened = 0, sum = 0;
  static const char dictionary[] = "{}[]\",:0123456789-.eE\\u \x00\xff_FBI";
  for (int round = 0; round < 4000; round++) {
    memcpy(bad, good, bytes);
    size_t size = bytes;
    uint64_t edits = 1 + next_random(&seed) % 4;
    for (uint64_t e = 0; e < edits; e++) {
      size_t at = next_random(&seed) % (next_random(&seed) % 4 ? 1600 : size);
      if (at >= size) at = size - 1;
      switch (next_random(&seed) % 4) {
      case 0:
        bad[at] = (char)next_random(&seed);
        break;
      case 1:
        bad[at] = (char)(bad[at] ^ (1 << next_random(&seed) % 8));
        break;
      case 2:
        bad[at] = dictionary[next_random(&seed) % (sizeof dictionary - 1)];
        break;
      default:
        size = at + 1;
        break;
      }
    }
    test_write(path(), bad, size);
    kedge_st_file *file;
    kedge_status status = kedge_st_open(path(), &file);
    assert_true(status == KEDGE_OK || status == KEDGE_ERR_FORMAT || status == KEDGE_ERR_UNSUPPORTED);
    if (status != KEDGE_OK) {
      assert_true(kedge_message()[0]);
      continue;
    }
    opened++;
    for (uint32_t i = 0; i < kedge_st_count(file); i++) {
      const kedge_st_tensor *tensor = kedge_st_at(file, i);
      for (uint64_t b = 0; b < tensor->bytes; b++) sum += tensor->data[b];
      assert_ptr_equal(kedge_st_find(file, tensor->name), tensor);
    }
    kedge_st_close(file);
  }
  assert_true(opened > 50 && opened < 3900 && sum); /* both ends of the reader were reached */
  free(bad);
  free(good);
}

/* ---- Other people's files
 * ------------------------------------------------------------------------------------------------- */

static void python_file(void **state) {
  (void)state;
  kedge_st_file *file;
  assert_int_equal(kedge_st_open(test_golden("safetensors/mixed.safetensors"), &file), KEDGE_OK);
  assert_int_equal(kedge_st_count(file), 19);
  assert_string_equal(kedge_st_metadata(file, "made"), "by the Python library");
  static const struct {
    const char *name, *dtype;
  } expected[] = {{"u8", "U8"},   {"i8", "I8"},   {"e5m2", "F8_E5M2"}, {"e4m3", "F8_E4M3"}, {"u16", "U16"},
                  {"i16", "I16"}, {"f16", "F16"}, {"bf16", "BF16"},    {"u32", "U32"},      {"i32", "I32"},
                  {"f32", "F32"}, {"u64", "U64"}, {"i64", "I64"},      {"f64", "F64"},      {"bool", "BOOL"}};
  for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
    const kedge_st_tensor *tensor = kedge_st_find(file, expected[i].name);
    assert_non_null(tensor);
    assert_string_equal(kedge_st_dtype_name(tensor->dtype), expected[i].dtype);
    char shape[64];
    kedge_st_shape_text(tensor, shape, sizeof shape);
    assert_string_equal(shape, "[2,3]");
  }
  int64_t five;
  memcpy(&five, kedge_st_find(file, "i64")->data + 40, 8);
  assert_int_equal(five, 5);
  float values[6], scalar;
  static const char *const floats[] = {"f16", "bf16", "f32"};
  for (int i = 0; i < 3; i++) {
    const kedge_st_tensor *tensor = kedge_st_find(file, floats[i]);
    assert_int_equal(kedge_convert_floats(values, KEDGE_ST_F32, tensor->data, tensor->dtype, 6), KEDGE_OK);
    for (int j = 0; j < 6; j++) assert_true(values[j] == (float)j);
  }
  memcpy(&scalar, kedge_st_find(file, "scalar")->data, 4);
  assert_true(scalar == 2.5f);
  assert_int_equal(kedge_st_find(file, "empty.2d")->bytes, 0);
  assert_non_null(kedge_st_find(file, "name with \"quotes\", \\ and é"));
  kedge_st_close(file);
}

static void real_file(void **state) {
  (void)state;
  const char *real = test_shared("data/safetensors/silero_vad_16k.safetensors");
  if (!real) skip();
  kedge_st_file *file;
  assert_int_equal(kedge_st_open(real, &file), KEDGE_OK);
  assert_int_equal(kedge_st_count(file), 15);
  for (uint32_t i = 0; i < 15; i++) assert_int_equal(kedge_st_at(file, i)->dtype, KEDGE_ST_F32);
  kedge_st_close(file);
}

/* ---- Writing
 * -----------------------------------------------------------------------------------------------------------------
 */

/* Copies the tensors of an open file, and notes the largest piece and any piece out of order. */
typedef struct source {
  const kedge_st_file *file;
  uint64_t largest, next;
  uint32_t index;
} source;

static kedge_status fill_from(void *context, uint32_t index, uint64_t offset, void *buffer, uint64_t bytes) {
  source *from = context;
  if (index != from->index) from->next = 0;
  assert_true(index >= from->index && offset == from->next);
  from->index = index;
  from->next = offset + bytes;
  if (bytes > from->largest) from->largest = bytes;
  memcpy(buffer, kedge_st_at(from->file, index)->data + offset, (size_t)bytes);
  return KEDGE_OK;
}

static void written_file_reads_back(void **state) {
  (void)state;
  kedge_st_file *file;
  assert_int_equal(kedge_st_open(test_golden("safetensors/mixed.safetensors"), &file), KEDGE_OK);
  kedge_st_spec specs[19];
  for (uint32_t i = 0; i < 19; i++) {
    const kedge_st_tensor *tensor = kedge_st_at(file, i);
    specs[i] = (kedge_st_spec){tensor->name, tensor->dtype, tensor->rank, {0}};
    memcpy(specs[i].shape, tensor->shape, sizeof tensor->shape);
  }
  source from = {.file = file};
  kedge_st_pair extra[] = {{"a \"key\"", "line\nbreak \\ é"}};
  assert_int_equal(kedge_st_write(path(), specs, 19, extra, 1, fill_from, &from), KEDGE_OK);
  kedge_st_file *copy;
  assert_int_equal(kedge_st_open(path(), &copy), KEDGE_OK);
  uint64_t header;
  kedge_st_header(copy, &header);
  assert_int_equal(header % 8, 0);
  assert_string_equal(kedge_st_metadata(copy, "format"), "pt");
  assert_string_equal(kedge_st_metadata(copy, "a \"key\""), "line\nbreak \\ é");
  assert_int_equal(kedge_st_count(copy), 19);
  for (uint32_t i = 0; i < 19; i++) {
    const kedge_st_tensor *a = kedge_st_at(file, i), *b = kedge_st_find(copy, a->name);
    assert_ptr_equal(b, kedge_st_at(copy, i));
    assert_int_equal(a->dtype, b->dtype);
    assert_int_equal(a->rank, b->rank);
    assert_memory_equal(a->shape, b->shape, sizeof a->shape);
    assert_int_equal(a->bytes, b->bytes);
    if (a->bytes) assert_memory_equal(a->data, b->data, (size_t)a->bytes);
  }
  kedge_st_close(copy);
  kedge_st_close(file);
}

static kedge_status fill_count(void *context, uint32_t index, uint64_t offset, void *buffer, uint64_t bytes) {
  (void)index;
  uint64_t *largest = context;
  if (bytes > *largest) *largest = bytes;
  for (uint64_t i = 0; i < bytes; i++) ((uint8_t *)buffer)[i] = (uint8_t)((offset + i) * 7 >> 3);
  return KEDGE_OK;
}

static kedge_status fill_fails(void *context, uint32_t index, uint64_t offset, void *buffer, uint64_t bytes) {
  (void)context, (void)offset, (void)buffer, (void)bytes;
  return index ? kedge_fail(KEDGE_ERR_DEVICE, "lost") : KEDGE_OK;
}

static void writing_streams_and_refuses(void **state) {
  (void)state;
  const uint64_t size = 2 * KEDGE_ST_PIECE + 12344;
  kedge_st_spec big = {"big", KEDGE_ST_F32, 1, {size / 4}};
  uint64_t largest = 0;
  assert_int_equal(kedge_st_write(path(), &big, 1, NULL, 0, fill_count, &largest), KEDGE_OK);
  assert_int_equal(largest, KEDGE_ST_PIECE);
  kedge_st_file *file;
  assert_int_equal(kedge_st_open(path(), &file), KEDGE_OK);
  for (uint64_t i = 0; i < size; i++)
    if (kedge_st_at(file, 0)->data[i] != (uint8_t)(i * 7 >> 3)) fail_msg("byte %llu", (unsigned long long)i);
  kedge_st_close(file);
  /* A failure leaves the older file and no other. */
  kedge_st_spec two[] = {{"a", KEDGE_ST_U8, 1, {1}}, {"b", KEDGE_ST_U8, 1, {1}}};
  unsigned entries = test_entries(test_folder());
  assert_int_equal(kedge_st_write(path(), two, 2, NULL, 0, fill_fails, NULL), KEDGE_ERR_DEVICE);
  assert_int_equal(kedge_st_open(path(), &file), KEDGE_OK);
  assert_string_equal(kedge_st_at(file, 0)->name, "big");
  kedge_st_close(file);
  assert_int_equal(test_entries(test_folder()), entries);
  kedge_st_spec same[] = {{"a", KEDGE_ST_U8, 1, {1}}, {"a", KEDGE_ST_U8, 1, {1}}};
  kedge_st_spec reserved = {"__metadata__", KEDGE_ST_U8, 1, {1}}, latin = {"\xe9", KEDGE_ST_U8, 1, {1}};
  kedge_st_spec huge = {"a", KEDGE_ST_F64, 2, {UINT64_MAX, 2}}, dtype = {"a", (kedge_st_dtype)99, 1, {1}};
  kedge_st_spec rank = {"a", KEDGE_ST_U8, 9, {1}};
  assert_int_equal(kedge_st_write(path(), same, 2, NULL, 0, fill_count, &largest), KEDGE_ERR_ARGUMENT);
  const kedge_st_spec *bad[] = {&reserved, &latin, &huge, &dtype, &rank};
  for (int i = 0; i < 5; i++)
    assert_int_equal(kedge_st_write(path(), bad[i], 1, NULL, 0, fill_count, &largest), KEDGE_ERR_ARGUMENT);
  /* No tensors at all is a file too. */
  assert_int_equal(kedge_st_write(path(), NULL, 0, NULL, 0, fill_count, &largest), KEDGE_OK);
  assert_int_equal(kedge_st_open(path(), &file), KEDGE_OK);
  assert_string_equal(kedge_st_metadata(file, "format"), "pt");
  kedge_st_close(file);
}

/* ---- Conversions
 * -----------------------------------------------------------------------------------------------------------------
 */

static void conversions_equal_torch(void **state) {
  (void)state;
  kedge_st_file *file;
  assert_int_equal(kedge_st_open(test_golden("safetensors/convert.safetensors"), &file), KEDGE_OK);
  const kedge_st_tensor *f32 = kedge_st_find(file, "f32");
  uint64_t count = f32->bytes / 4;
  assert_true(count > 2000);
  uint8_t *room = malloc((size_t)f32->bytes + 1), *got = room + 1; /* unaligned on purpose */
  static const char *const names[] = {"bf16", "f16"};
  for (int i = 0; i < 2; i++) {
    const kedge_st_tensor *narrow = kedge_st_find(file, names[i]);
    assert_int_equal(kedge_convert_floats(got, narrow->dtype, f32->data, KEDGE_ST_F32, count), KEDGE_OK);
    assert_memory_equal(got, narrow->data, (size_t)narrow->bytes);
  }
  const kedge_st_tensor *back = kedge_st_find(file, "f16.back");
  assert_int_equal(
      kedge_convert_floats(got, KEDGE_ST_F32, kedge_st_find(file, "f16")->data, KEDGE_ST_F16, count),
      KEDGE_OK);
  assert_memory_equal(got, back->data, (size_t)back->bytes);
  free(room);
  kedge_st_close(file);
  /* Every f16 survives the way there and back; NaN stays NaN. */
  for (uint32_t bits = 0; bits < 65536; bits++) {
    uint16_t again = kedge_f32_to_f16(kedge_f16_to_f32((uint16_t)bits));
    bool nan = (bits & 0x7C00) == 0x7C00 && (bits & 0x3FF);
    assert_true(nan ? (again & 0x7C00) == 0x7C00 && (again & 0x3FF) : again == bits);
  }
  uint32_t word = 0;
  assert_int_equal(kedge_convert_floats(&word, KEDGE_ST_F32, &word, KEDGE_ST_I32, 1), KEDGE_ERR_UNSUPPORTED);
}

/* ---- Hash
 * ----------------------------------------------------------------------------------------------------------------------------
 */

static void hash_of_known_bytes(void **state) {
  (void)state;
  char text[KEDGE_HASH_TEXT];
  test_write_text(path(), "");
  assert_int_equal(kedge_hash_file(path(), text), KEDGE_OK);
  assert_string_equal(text, "99aa06d3014798d86001c324468d497f"); /* the published hash of nothing */
  kedge_hash *parts = kedge_hash_new(), *whole = kedge_hash_new();
  char other[KEDGE_HASH_TEXT];
  for (int i = 0; i < 1000; i++) kedge_hash_add(parts, "abc", 3);
  for (int i = 0; i < 10; i++) {
    char piece[300];
    for (int j = 0; j < 300; j++) piece[j] = "abc"[j % 3];
    kedge_hash_add(whole, piece, 300);
  }
  kedge_hash_text(parts, text);
  kedge_hash_text(whole, other);
  assert_string_equal(text, other);
  kedge_hash_add_text(parts, "");
  kedge_hash_text(parts, other);
  assert_string_not_equal(text, other);
  kedge_hash_free(parts);
  kedge_hash_free(whole);
  assert_int_equal(kedge_hash_file(test_path(test_folder(), "absent"), text), KEDGE_ERR_IO);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(valid_odd_files),
      cmocka_unit_test(hostile_headers),
      cmocka_unit_test(mutations),
      cmocka_unit_test(python_file),
      cmocka_unit_test(real_file),
      cmocka_unit_test(written_file_reads_back),
      cmocka_unit_test(writing_streams_and_refuses),
      cmocka_unit_test(conversions_equal_torch),
      cmocka_unit_test(hash_of_known_bytes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
