/* SPDX-License-Identifier: Apache-2.0
 *
 * The small tokenizers of the model families. Sibling: families.h. */
#include "tests/support/families.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/support/files.h"

const char *const test_family_names[TEST_FAMILIES] = {"deepseek", "kimi", "llama", "granite", "olmoe"};

kedge_tokenizer *test_family_open(int family) {
  char relative[64];
  kedge_tokenizer *t;
  snprintf(relative, sizeof relative, "tokenizer/families/%s", test_family_names[family]);
  if (kedge_tokenizer_open(test_golden(relative), family == TEST_KIMI ? "kimi" : NULL, &t) != KEDGE_OK)
    fail_msg("%s: %s", relative, kedge_message());
  return t;
}

uint64_t test_hash_ids(uint64_t hash, const int32_t *ids, size_t count) {
  for (size_t i = 0; i < count; i++)
    for (int shift = 0; shift < 32; shift += 8)
      hash = (hash ^ ((uint32_t)ids[i] >> shift & 0xFF)) * 0x100000001B3u;
  return hash;
}
