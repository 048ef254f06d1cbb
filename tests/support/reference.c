/* SPDX-License-Identifier: Apache-2.0
 * Reading tests/golden. */
#include "tests/support/reference.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const kedge_st_tensor *find(const kedge_st_file *file, const char *name) {
  const kedge_st_tensor *tensor = kedge_st_find(file, name);
  if (!tensor) fail_msg("%s: no tensor %s", kedge_st_path(file), name);
  return tensor;
}

double *kedge_test_doubles(const kedge_st_file *file, const char *name, uint64_t *count) {
  const kedge_st_tensor *t = find(file, name);
  *count = t->bytes / kedge_st_dtype_size(t->dtype);
  double *out = calloc(*count + 1, sizeof *out);
  assert_non_null(out);
  for (uint64_t i = 0; i < *count; i++) {
    float f;
    int32_t n;
    if (t->dtype == KEDGE_ST_F32) {
      memcpy(&f, t->data + 4 * i, 4);
      out[i] = (double)f;
    } else if (t->dtype == KEDGE_ST_BF16) {
      uint16_t half;
      memcpy(&half, t->data + 2 * i, 2);
      const uint32_t bits = (uint32_t)half << 16;
      memcpy(&f, &bits, 4);
      out[i] = (double)f;
    } else if (t->dtype == KEDGE_ST_F64) {
      memcpy(&out[i], t->data + 8 * i, 8);
    } else {
      assert_int_equal(t->dtype, KEDGE_ST_I32);
      memcpy(&n, t->data + 4 * i, 4);
      out[i] = n;
    }
  }
  return out;
}

int32_t *kedge_test_ints(const kedge_st_file *file, const char *name, uint64_t *count) {
  const kedge_st_tensor *t = find(file, name);
  assert_int_equal(t->dtype, KEDGE_ST_I32);
  *count = t->bytes / 4;
  int32_t *out = calloc(*count + 1, sizeof *out);
  assert_non_null(out);
  memcpy(out, t->data, t->bytes);
  return out;
}

double kedge_test_error(const float *got, const double *want, uint64_t count) {
  double most = 0, largest = 0;
  for (uint64_t i = 0; i < count; i++) {
    double d = fabs((double)got[i] - want[i]);
    if (!(d <= most)) most = isnan(d) ? INFINITY : d;
    largest = fmax(largest, fabs(want[i]));
  }
  return largest > 0 ? most / largest : most;
}
