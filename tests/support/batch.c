/* SPDX-License-Identifier: Apache-2.0
 * Golden batches (batch.h). */
#include "tests/support/batch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

test_batch test_batch_read(const kedge_st_file *golden, bool labelled) {
  uint64_t tokens, bounds, n;
  int32_t *ids = kedge_test_ints(golden, "input_ids", &tokens),
          *cu = kedge_test_ints(golden, "cu_seqlens", &bounds);
  int32_t *labels = labelled ? kedge_test_ints(golden, "labels", &n) : NULL;
  test_batch b = {.tokens = (uint32_t)tokens, .size = (uint32_t)tokens + 5};
  b.ids = calloc(b.size, 4), b.positions = calloc(b.size, 4), b.segments = calloc(b.size, 4);
  b.labels = calloc(b.size, 4), b.weights = calloc(b.size, 4);
  uint32_t kept = 0;
  for (uint32_t t = 0; labels && t < tokens; t++) kept += labels[t] >= 0;
  for (uint32_t t = 0; t < b.size; t++) b.segments[t] = b.labels[t] = -1;
  for (uint64_t s = 0; s + 1 < bounds; s++)
    for (int32_t t = cu[s]; t < cu[s + 1]; t++) {
      b.ids[t] = ids[t], b.segments[t] = cu[s], b.positions[t] = t - cu[s];
      if (!labels) continue;
      b.labels[t] = labels[t];
      b.weights[t] = labels[t] >= 0 ? 1.0f / (float)kept : 0;
    }
  free(ids), free(cu), free(labels);
  return b;
}

kedge_tokens test_batch_inputs(const test_batch *b) {
  return (kedge_tokens){.ids = b->ids,
                        .positions = b->positions,
                        .segments = b->segments,
                        .labels = b->labels,
                        .weights = b->weights};
}

void test_batch_free(test_batch *b) {
  free(b->ids), free(b->positions), free(b->segments), free(b->labels), free(b->weights);
}

static void *read_output(const kedge_pass *pass, kedge_value value) {
  uint64_t bytes = kedge_value_bytes(pass->decoder.graph, value);
  void *got = malloc(bytes);
  assert_non_null(got);
  if (kedge_exec_read(pass->exec, value, got, bytes) != KEDGE_OK) fail_msg("%s", kedge_message());
  return got;
}

float *test_read_floats(const kedge_pass *pass, kedge_value value) {
  return read_output(pass, value);
}

int32_t *test_read_ints(const kedge_pass *pass, kedge_value value) {
  return read_output(pass, value);
}
