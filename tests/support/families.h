/* SPDX-License-Identifier: Apache-2.0
 *
 * The small tokenizers of tests/golden/tokenizer/families, and the hash of its goldens. */
#ifndef KEDGE_TESTS_FAMILIES_H
#define KEDGE_TESTS_FAMILIES_H

#include "models/text/tokenizer.h"

enum { TEST_DEEPSEEK, TEST_KIMI, TEST_LLAMA, TEST_GRANITE, TEST_OLMOE, TEST_FAMILIES };
extern const char *const test_family_names[TEST_FAMILIES]; /* the order of the goldens' columns */
/* Opens a family's tokenizer; a failure fails the running test. */
kedge_tokenizer *test_family_open(int family);

/* 64-bit FNV-1a over ids as little-endian int32, from a start or from the hash of earlier ids. */
#define TEST_HASH_START 0xCBF29CE484222325u
uint64_t test_hash_ids(uint64_t hash, const int32_t *ids, size_t count);

#endif
