/* SPDX-License-Identifier: Apache-2.0
 * For tests: prior files of made-up numbers (priors.h). */
#include "tests/support/priors.h"

#include "models/checkpoint/convert.h"
#include "models/checkpoint/writer.h"
#include "models/text/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

float *test_prior_row(const test_prior *p, uint32_t sample, uint32_t span, uint32_t layer) {
  return p->pi + ((((size_t)sample * 2 + span) * p->layers) + layer) * p->experts;
}

static void fill_row(kedge_random *random, float *row, uint32_t experts) {
  double sum = 0;
  for (uint32_t e = 0; e < experts; e++) {
    const double unit = (double)(kedge_random_next(random) >> 11) * 0x1p-53;
    row[e] = kedge_random_below(random, 10) ? (float)exp(8 * unit - 6) : 0;
    sum += (double)row[e];
  }
  if (!(sum > 0)) sum = (double)(row[0] = 1);
  for (uint32_t e = 0; e < experts; e++) row[e] = (float)((double)row[e] / sum);
}

void test_prior_init(test_prior *p, uint32_t samples, uint32_t layers, uint32_t experts, uint64_t seed) {
  kedge_random random = kedge_random_start(seed, 0);
  *p = (test_prior){.samples = samples, .layers = layers, .experts = experts};
  p->pi = calloc((size_t)samples * 2 * layers * experts, sizeof *p->pi);
  p->counts = calloc((size_t)samples * 2, sizeof *p->counts);
  assert_true(p->pi && p->counts);
  for (uint32_t i = 0; i < samples; i++)
    for (uint32_t s = 0; s < 2; s++) {
      const bool empty = i % 5 == 3 && s == 0;
      p->counts[2 * i + s] = empty ? 0 : 1 + (int32_t)kedge_random_below(&random, 9);
      for (uint32_t l = 0; !empty && l < layers; l++) fill_row(&random, test_prior_row(p, i, s, l), experts);
    }
}

void test_prior_destroy(test_prior *p) {
  free(p->pi);
  free(p->counts);
}

typedef struct source {
  const test_prior *prior;
  kedge_st_dtype dtype;
} source;

static kedge_status fill(void *context, uint32_t index, uint64_t offset, void *buffer, uint64_t bytes) {
  const source *s = context;
  if (index == 0) {
    const uint32_t size = kedge_st_dtype_size(s->dtype);
    return kedge_convert_floats(buffer, s->dtype, s->prior->pi + offset / size, KEDGE_ST_F32, bytes / size);
  }
  if (index == 1) {
    memcpy(buffer, (const char *)s->prior->counts + offset, bytes);
    return KEDGE_OK;
  }
  for (uint64_t at = 0; at < bytes;) {
    const int64_t id = 2 * (int64_t)((offset + at) / 8) + 1;
    const int32_t layer = (int32_t)((offset + at) / 4);
    const size_t size = index == 2 ? 8 : 4;
    memcpy((char *)buffer + at, index == 2 ? (const void *)&id : (const void *)&layer, size);
    at += size;
  }
  return KEDGE_OK;
}

void test_prior_write(const test_prior *p, const char *path, kedge_st_dtype dtype) {
  const kedge_st_spec specs[] = {
      {"prior_qa", dtype, 4, {p->samples, 2, p->layers, p->experts}},
      {"counts", KEDGE_ST_I32, 2, {p->samples, 2}},
      {"sample_ids", KEDGE_ST_I64, 1, {p->samples}},
      {"layers", KEDGE_ST_I32, 1, {p->layers}},
  };
  static const char hash[] = "0123456789abcdef0123456789abcdef";
  const kedge_st_pair extra[] = {
      {"kedge_prior", "1"}, {"base_hash", hash},    {"tokenizer_hash", hash},
      {"data_hash", hash},  {"max_length", "1024"},
  };
  source s = {p, dtype};
  if (kedge_st_write(path, specs, 4, extra, sizeof extra / sizeof *extra, fill, &s) != KEDGE_OK)
    fail_msg("%s", kedge_message());
}
