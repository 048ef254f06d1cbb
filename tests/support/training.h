/* SPDX-License-Identifier: Apache-2.0
 * For tests of whole runs: a small base model, data, and the program run on them. All paths are below
 * test_folder(). */
#ifndef KEDGE_TESTS_SUPPORT_TRAINING_H
#define KEDGE_TESTS_SUPPORT_TRAINING_H

#include "tests/support/run.h"

#include <stdbool.h>

/* Makes base/ (2 layers, 8 experts, top 2, the tiny tokenizer), train.jsonl (`samples` generated word
 * problems) and run.yaml (12 samples an update in micro-batches of 4, 2 threads). */
void training_prepare(unsigned samples);
/* The program in that folder: `OMP... kedge <arguments>`, arguments as in printf. */
test_run training_kedge(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same; the exit status must be `code`, and what it said on standard error must contain `err` ("" for
 * anything). */
void training_expect(int code, const char *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Whether two files below the folder have equal bytes. */
bool training_same(const char *a, const char *b);
/* Fails unless weights, optimizer and logs of two finished runs of `steps` updates are equal. */
void training_same_run(const char *a, const char *b, unsigned steps);
/* The number of a key in the line of metrics.jsonl of that step; NaN if there is none. */
double training_metric(const char *run, unsigned step, const char *key);

#endif
