/* SPDX-License-Identifier: Apache-2.0
 * Every code point, alone and between two letters, through the pipelines of the model families against the
 * Python libraries. The vocabularies have merges across both borders, so that the ids show where a pattern
 * cuts. Planes without characters are sampled; code points that are newer than Unicode 14 are left out by
 * tests/golden/tokenizer/families/excluded.tsv, which says why. ctest: ci */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "models/text/unicode.h"
#include "tests/support/families.h"
#include "tests/support/files.h"

enum { CODES = 0x110000, BLOCK = 4096 };
static uint8_t left_out[CODES];

static int read_excluded(void **state) {
  (void)state;
  size_t bytes;
  char *file = test_read(test_golden("tokenizer/families/excluded.tsv"), &bytes), *line = file;
  while ((line = strchr(line, '\n')) && *++line) {
    unsigned long first = strtoul(line, &line, 16), last = strtoul(line, &line, 16);
    assert_true(first <= last && last < CODES);
    memset(left_out + first, 1, last + 1 - first);
  }
  free(file);
  memset(left_out + 0xD800, 1, 0x800);
  for (uint32_t code = 0x40000; code < CODES; code++)
    left_out[code] = (code < 0xE0000 || code >= 0xE1000) && code % 97;
  return 0;
}

static uint64_t hash_text(const kedge_tokenizer *t, uint64_t hash, const char *text, size_t length) {
  int32_t *ids;
  size_t count;
  if (kedge_tokenizer_encode(t, text, length, KEDGE_ENCODE_SPECIAL | KEDGE_ENCODE_TEMPLATE, &ids, &count) !=
      KEDGE_OK)
    fail_msg("%s", kedge_message());
  hash = test_hash_ids(hash, ids, count);
  kedge_free(ids);
  return hash;
}

/* The golden's row for a block, a column a family. */
static void check_block(const kedge_tokenizer *const *list, uint32_t block, char *row) {
  assert_int_equal(strtoul(row, &row, 16), block);
  for (int i = 0; i < TEST_FAMILIES; i++) {
    uint64_t hash = TEST_HASH_START;
    for (uint32_t code = block; code < block + BLOCK; code++) {
      if (left_out[code]) continue;
      char text[8] = "a";
      size_t size = kedge__utf8_encode(code, text + 1);
      text[size + 1] = 'b';
      hash = hash_text(list[i], hash, text + 1, size);
      hash = hash_text(list[i], hash, text, size + 2);
    }
    if (strtoull(row, &row, 16) != hash)
      fail_msg("%s: other ids than the reference from U+%04X to U+%04X", test_family_names[i], block,
               block + BLOCK - 1);
  }
}

static void code_points(void **state) {
  (void)state;
  kedge_tokenizer *list[TEST_FAMILIES];
  for (int i = 0; i < TEST_FAMILIES; i++) list[i] = test_family_open(i);
  size_t bytes;
  char *file = test_read(test_golden("tokenizer/families/codes.tsv"), &bytes), *line = file;
  for (uint32_t block = 0; block < CODES; block += BLOCK) {
    line = strchr(line, '\n');
    assert_non_null(line);
    check_block((const kedge_tokenizer *const *)list, block, ++line);
  }
  free(file);
  for (int i = 0; i < TEST_FAMILIES; i++) kedge_tokenizer_free(list[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(code_points)};
  return cmocka_run_group_tests(tests, read_excluded, NULL);
}
