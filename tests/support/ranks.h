/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of runs on several ranks: the program, or the test program itself as a worker, started by mpirun.
 * Where there is no mpirun or the module for MPI was not built, suites skip. */
#ifndef KEDGE_TESTS_SUPPORT_RANKS_H
#define KEDGE_TESTS_SUPPORT_RANKS_H

#include "tests/support/run.h"

#include <stdbool.h>

/* Whether runs of several ranks are possible here; prints why not. */
bool ranks_possible(void);
/* `kedge <arguments>` on so many ranks (1: without mpirun), in test_folder(). */
test_run ranks_kedge(int ranks, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same; the exit status must be `code`, and what it said on standard error must contain `err`. */
void ranks_expect(int ranks, int code, const char *err, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* This test program itself, `<self> worker <arguments>`, in test_folder(); must end well. */
void ranks_worker(int ranks, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
