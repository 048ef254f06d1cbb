/* SPDX-License-Identifier: Apache-2.0
 * A golden batch of tests/golden as inputs of a pass. */
#ifndef KEDGE_TESTS_SUPPORT_BATCH_H
#define KEDGE_TESTS_SUPPORT_BATCH_H

#include "models/decoder/pass.h"
#include "tests/support/reference.h"

/* `size` tokens, the last ones outside any sequence. */
typedef struct test_batch {
  uint32_t tokens, size;
  int32_t *ids, *positions, *segments, *labels;
  float *weights;
} test_batch;

/* input_ids and cu_seqlens of a golden, and its labels with weights that make the loss a mean. */
test_batch test_batch_read(const kedge_st_file *golden, bool labelled);
kedge_tokens test_batch_inputs(const test_batch *batch);
void test_batch_free(test_batch *batch);

/* A float output of a pass in new memory; an integer one likewise. */
float *test_read_floats(const kedge_pass *pass, kedge_value value);
int32_t *test_read_ints(const kedge_pass *pass, kedge_value value);

#endif
