/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests: a byte-level tokenizer as small as can be, and models with it. A failure inside fails the
 * running cmocka test. */
#ifndef KEDGE_TESTS_SUPPORT_TOKENIZERS_H
#define KEDGE_TESTS_SUPPORT_TOKENIZERS_H

/* Ids 0..255 are the bytes; then <s>, </s>, <|im_start|>, <|im_end|>, all special. */
enum {
  TEST_TOKENIZER_BOS = 256,
  TEST_TOKENIZER_EOS,
  TEST_TOKENIZER_START,
  TEST_TOKENIZER_END,
  TEST_TOKENIZER_SIZE
};

/* Writes tokenizer.json and tokenizer_config.json into an existing folder. */
void test_tokenizer_write(const char *folder);

/* A config.json for it: two layers, one of experts only, hidden size 16, initializer_range 0.3. */
extern const char *const test_tokenizer_model_config;

#endif
