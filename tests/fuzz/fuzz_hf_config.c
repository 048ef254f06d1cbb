/* SPDX-License-Identifier: Apache-2.0
 *
 * A model's config.json. */
#include "models/checkpoint/hf_config.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  kedge_hf_config config;
  char *text = malloc(size + 1); /* Its end is the sanitizer's to guard. */
  memcpy(text, data, size);
  kedge_status status = kedge_hf_config_parse(text, size, "config.json", &config);
  free(text);
  if (status != KEDGE_OK) {
    FUZZ_REFUSED(status);
    return 0;
  }
  FUZZ_CHECK(kedge_hf_sparse_layers(&config) <= config.num_hidden_layers);
  kedge_hf_config_destroy(&config);
  return 0;
}
