/* SPDX-License-Identifier: Apache-2.0
 *
 * A tiktoken ranks file of each kind; the first byte chooses the kind. */
#include "models/text/tokenizer.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char *const kinds[] = {"qwen", "gpt2", "kimi", NULL};
  static const char sample[] = "The ship's cafe\xCC\x81<|im_end|> 12 \n x \xE6\xBC\xA2";
  if (!size) return 0;
  kedge_tokenizer *t;
  kedge_status status = kedge_tokenizer_open(fuzz_file(data + 1, size - 1), kinds[data[0] & 3], &t);
  if (status != KEDGE_OK) {
    FUZZ_REFUSED(status);
    return 0;
  }
  int32_t *ids;
  size_t count, length;
  char *text;
  status = kedge_tokenizer_encode(t, sample, sizeof sample - 1, KEDGE_ENCODE_SPECIAL, &ids, &count);
  FUZZ_CHECK(status == KEDGE_OK);
  FUZZ_CHECK(kedge_tokenizer_decode(t, ids, count, false, &text, &length) == KEDGE_OK);
  kedge_free(ids);
  kedge_free(text);
  kedge_tokenizer_free(t);
  return 0;
}
