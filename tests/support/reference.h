/* SPDX-License-Identifier: Apache-2.0
 * Reading tests/golden: tensors as doubles or ints, and comparing against them. */
#ifndef KEDGE_TESTS_REFERENCE_H
#define KEDGE_TESTS_REFERENCE_H

#include "models/checkpoint/safetensors.h"

/* A tensor of a file as new doubles (F32, BF16, F64, I32); the number through *count. Fails the test if it is
 * missing. */
double *kedge_test_doubles(const kedge_st_file *file, const char *name, uint64_t *count);
int32_t *kedge_test_ints(const kedge_st_file *file, const char *name, uint64_t *count);

/* Largest |got - want| over the largest |want|; infinite where either is NaN. */
double kedge_test_error(const float *got, const double *want, uint64_t count);

#endif
