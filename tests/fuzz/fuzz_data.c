/* SPDX-License-Identifier: Apache-2.0
 *
 * Training data, JSON Lines or one array. The first byte chooses options: bit 0 bad lines are skipped, bits 1
 * to 3 the chat template. */
#include "models/text/samples.h"
#include "tests/fuzz/fuzz.h"

static const char tokenizer_json[] =
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\" \":2,\"ab\":3},\"merges\":[\"a b\"]},"
    "\"added_tokens\":["
    "{\"id\":4,\"content\":\"<|im_start|>\",\"special\":true},{\"id\":5,\"content\":\"<|im_end|>\","
    "\"special\":true},"
    "{\"id\":6,\"content\":\"<s>\",\"special\":true},{\"id\":7,\"content\":\"</s>\",\"special\":true},"
    "{\"id\":8,\"content\":\"<|endoftext|>\",\"special\":true}]}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static kedge_tokenizer *tokenizer;
  static const char *const templates[] = {NULL,   "auto",     "chatml", "mistral",
                                          "tulu", "deepseek", "qwen3",  "x"};
  if (!tokenizer)
    FUZZ_CHECK(kedge_tokenizer_open(fuzz_file(tokenizer_json, sizeof tokenizer_json - 1), NULL, &tokenizer) ==
               KEDGE_OK);
  if (!size) return 0;
  kedge_dataset_options options = {.tokenizer = tokenizer,
                                   .eos = 7,
                                   .skip_bad_lines = data[0] & 1,
                                   .chat_template = templates[data[0] >> 1 & 7],
                                   .max_length = data[0] & 16 ? 8 : 0};
  kedge_dataset *dataset;
  kedge_status status = kedge_dataset_read_memory("data", data + 1, size - 1, NULL, &options, &dataset);
  if (status != KEDGE_OK) {
    FUZZ_REFUSED(status);
    FUZZ_CHECK(!dataset);
    return 0;
  }
  FUZZ_CHECK(kedge_dataset_check_ids(dataset, 9) == KEDGE_OK);
  kedge_dataset_free(dataset);
  return 0;
}
