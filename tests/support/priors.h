/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests: prior files of made-up numbers. A failure inside fails the running cmocka test. */
#ifndef KEDGE_TESTS_SUPPORT_PRIORS_H
#define KEDGE_TESTS_SUPPORT_PRIORS_H

#include "models/checkpoint/safetensors.h"
#include "models/prior/prior.h"

#include <stdint.h>

typedef struct test_prior {
  uint32_t samples, layers, experts;
  float *pi;       /* [N,2,L,E] */
  int32_t *counts; /* [N,2] */
} test_prior;

/* Random rows with cells below and above the clips and some of exactly 0; sample i has ids 2i+1; spans of
 * 1..9 tokens, and an empty one now and then. */
void test_prior_init(test_prior *prior, uint32_t samples, uint32_t layers, uint32_t experts, uint64_t seed);
void test_prior_destroy(test_prior *prior);
/* Row pi [E]. */
float *test_prior_row(const test_prior *prior, uint32_t sample, uint32_t span, uint32_t layer);
/* Writes it as a file of that dtype, F32 or F16. */
void test_prior_write(const test_prior *prior, const char *path, kedge_st_dtype dtype);

#endif
