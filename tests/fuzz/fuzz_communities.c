/* SPDX-License-Identifier: Apache-2.0
 *
 * A file of communities. What is read has canonical labels. */
#include "models/retention/communities.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  kedge_communities c;
  kedge_status status = kedge_communities_load(fuzz_file(data, size), &c);
  if (status != KEDGE_OK) {
    FUZZ_REFUSED(status);
    FUZZ_CHECK(!c.labels && !c.layer_numbers);
    return 0;
  }
  for (uint32_t l = 0; l < c.layers; l++) {
    const uint32_t *labels = c.labels + (size_t)l * c.experts;
    uint32_t next = 0;
    for (uint32_t e = 0; e < c.experts; e++) {
      FUZZ_CHECK(labels[e] <= next);
      next += labels[e] == next;
    }
  }
  kedge_communities_destroy(&c);
  return 0;
}
