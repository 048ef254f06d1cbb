/* SPDX-License-Identifier: Apache-2.0
 *
 * A tokenizer.json; what follows a 0 byte is encoded with it. */
#include "models/text/tokenizer.h"
#include "models/text/unicode.h"
#include "tests/fuzz/fuzz.h"

static void use(const kedge_tokenizer *t, const char *text, size_t length, unsigned flags) {
  int32_t *ids;
  size_t count, decoded_length;
  char *decoded;
  kedge_status status = kedge_tokenizer_encode(t, text, length, flags, &ids, &count);
  if (status != KEDGE_OK) {
    FUZZ_REFUSED(status);
    return;
  }
  for (size_t i = 0; i < count; i++) FUZZ_CHECK(ids[i] >= 0 && (uint32_t)ids[i] < kedge_tokenizer_size(t));
  status = kedge_tokenizer_decode(t, ids, count, flags & KEDGE_ENCODE_SPECIAL, &decoded, &decoded_length);
  if (status == KEDGE_OK) {
    FUZZ_CHECK(!decoded[decoded_length]);
    kedge_free(decoded);
  } else {
    FUZZ_REFUSED(status);
  }
  kedge_free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char sample[] =
      "The ships cafe\xCC\x81<|im_end|> 12 \n\n x  <s> \xF0\x9F\x98\x80\xE6\xBC\xA2 it's";
  const uint8_t *end = size ? memchr(data, 0, size) : NULL;
  size_t length = end ? (size_t)(end - data) : size;
  kedge_tokenizer *t;
  kedge_status status = kedge_tokenizer_open(fuzz_file(data, length), "qwen", &t);
  if (status != KEDGE_OK) {
    FUZZ_REFUSED(status);
    FUZZ_CHECK(!t);
    return 0;
  }
  use(t, sample, sizeof sample - 1, KEDGE_ENCODE_SPECIAL | KEDGE_ENCODE_TEMPLATE);
  use(t, sample, sizeof sample - 1, KEDGE_ENCODE_CONTINUE);
  if (end) use(t, (const char *)end + 1, size - length - 1, KEDGE_ENCODE_SPECIAL);
  kedge_tokenizer_free(t);
  return 0;
}
