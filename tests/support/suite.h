/* SPDX-License-Identifier: Apache-2.0
 *
 * What the suites share: the table of all cases (cases.h), the devices under test, a case built and run on a
 * device, and how results are compared.
 */
#ifndef KEDGE_TESTS_SUITE_H
#define KEDGE_TESTS_SUITE_H

#include "core/op.h"
#include "tests/support/cases.h"

/* ---- Random numbers (cases.c): the same on every machine */
typedef struct kedge_random {
  uint64_t state;
} kedge_random;
double kedge_random_unit(kedge_random *random);                  /* in (0, 1) */
double kedge_random_normal(kedge_random *random);                /* mean 0, sd 1 */
uint32_t kedge_random_below(kedge_random *random, uint32_t end); /* in [0, end) */

/* A number as a dtype keeps it; arrays of numbers to and from a dtype's bytes. */
double kedge_round_to(kedge_dtype dtype, double value);
void kedge_numbers_encode(kedge_dtype dtype, const double *numbers, uint64_t count, void *bytes);
void kedge_numbers_decode(kedge_dtype dtype, const void *bytes, uint64_t count, double *numbers);

/* ---- Cases */

/* The cases of an op; the last has no name. */
const kedge_case_row *kedge_cases_of(kedge_op op);

/* Builds a case; returns the graph's status. `device` may be NULL (no buffers). Destroy it also after a
 * failure. */
kedge_status kedge_case_init(kedge_case *c, const kedge_case_row *row, kedge_device *device,
                             kedge_dtype dtype, bool all_double);
void kedge_case_destroy(kedge_case *c);

/* A parameter's numbers to its buffer again; its buffer's bytes, parts in the order of their indices. */
kedge_status kedge_case_write(const kedge_case_tensor *tensor);
kedge_status kedge_case_read(const kedge_case_tensor *tensor, void *bytes);
/* KEDGE_ERR_MISMATCH if a byte around a parameter changed. */
kedge_status kedge_case_check_guards(const kedge_case *c);
/* Whether a live or dead node of the graph updates this value in place. */
bool kedge_case_updates(const kedge_case *c, kedge_value value);
/* Scalar loss: the sum over the float values of sum(value * cotangent), with fixed random cotangents that
 * every dtype can hold. KEDGE_NONE if none of the values is a float that a node made. Numbers the
 * cotangents' parameters on. */
kedge_value kedge_case_loss(kedge_case *c);

/* Every outcome of a run: the outputs, then the parameters that a node updates. */
typedef struct kedge_result_tensor {
  char name[40];
  kedge_dtype dtype;
  uint64_t count;
  void *bytes;
  double *numbers;
} kedge_result_tensor;
typedef struct kedge_result {
  uint32_t count;
  kedge_result_tensor tensors[2 * KEDGE_CASE_MAX];
} kedge_result;
void kedge_result_destroy(kedge_result *result);

/* Runs a case once on a device whose arena was filled with `fill` before, and reads every outcome. Fails
 * with KEDGE_ERR_MISMATCH if a byte outside a value was written: around parameters, in gaps and behind the
 * end of the arena, or in a parameter that no node updates. */
kedge_status kedge_case_run(const kedge_case_row *row, kedge_device *device, kedge_dtype dtype,
                            bool all_double, uint8_t fill, kedge_result *result);

/* The largest |got - want| relative to the largest |want|; infinite where one of them is not a number.
 * Integers: 0 if all are equal, else infinite. */
double kedge_relative_error(kedge_dtype dtype, const double *got, const double *want, uint64_t count);
/* Largest error over all tensors; `worst` (may be NULL) receives the name of that tensor. */
double kedge_result_error(const kedge_result *got, const kedge_result *want, const char **worst);
bool kedge_result_same_bits(const kedge_result *a, const kedge_result *b);

/* ---- Devices under test: ref first, then cpu for each instruction set of this machine with 1 and 2 threads,
 * then further built-in backends that compute. */
enum { KEDGE_TEST_DEVICES = 16 };
typedef struct kedge_test_devices {
  uint32_t count;
  kedge_device *at[KEDGE_TEST_DEVICES];
  bool same_bits_as_previous[KEDGE_TEST_DEVICES]; /* the same code with another number of threads */
} kedge_test_devices;
kedge_status kedge_test_devices_open(kedge_test_devices *devices);
void kedge_test_devices_close(kedge_test_devices *devices);

/* Fills the arena that an execution will use, after reserving it. */
kedge_status kedge_exec_fill_arena(kedge_exec *exec, uint8_t byte);

#endif
