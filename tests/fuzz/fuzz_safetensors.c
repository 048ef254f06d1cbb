/* SPDX-License-Identifier: Apache-2.0
 *
 * A safetensors file: every byte that a tensor claims must be there. */
#include "models/checkpoint/safetensors.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  kedge_st_file *file;
  kedge_status status = kedge_st_open(fuzz_file(data, size), &file);
  if (status != KEDGE_OK) {
    FUZZ_REFUSED(status);
    return 0;
  }
  volatile uint8_t sink = 0;
  for (uint32_t i = 0; i < kedge_st_count(file); i++) {
    const kedge_st_tensor *tensor = kedge_st_at(file, i);
    char shape[64];
    for (uint64_t b = 0; b < tensor->bytes; b++) sink = tensor->data[b];
    kedge_st_shape_text(tensor, shape, sizeof shape);
    FUZZ_CHECK(kedge_st_find(file, tensor->name) == tensor);
    FUZZ_CHECK(tensor->rank <= KEDGE_ST_MAX_RANK);
  }
  for (uint32_t i = 1; i < kedge_st_count(file); i++)
    FUZZ_CHECK(strcmp(kedge_st_by_name(file, i - 1)->name, kedge_st_by_name(file, i)->name) < 0);
  for (uint32_t i = 0; i < kedge_st_metadata_count(file); i++) {
    const char *key, *value;
    kedge_st_metadata_at(file, i, &key, &value);
    FUZZ_CHECK(kedge_st_metadata(file, key));
  }
  (void)sink;
  kedge_st_close(file);
  return 0;
}
