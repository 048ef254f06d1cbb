/* SPDX-License-Identifier: Apache-2.0
 *
 * Running Python that a model wrote. A child process under a filter of system calls (seccomp) can compute,
 * read files and write to its pipe: it can make no process or thread, open no socket, open no file for
 * writing, remove or rename nothing, signal nobody and trace nobody. Limits on its time, processor time,
 * memory and output end it. The filter cannot be taken off again, by it or by what it executes.
 */
#ifndef KEDGE_MODELS_EVALUATION_SANDBOX_H
#define KEDGE_MODELS_EVALUATION_SANDBOX_H

#include "core/kedge.h"

typedef struct kedge_sandbox {
  char *python;    /* the interpreter's own file */
  double seconds;  /* of time and of processor time; 0: 10 */
  uint64_t memory; /* bytes of addresses; 0: 1 GiB */
} kedge_sandbox;

typedef enum kedge_sandbox_end {
  KEDGE_SANDBOX_PASSED, /* ran to its very last line */
  KEDGE_SANDBOX_FAILED, /* ended before: an exception, an exit, a signal */
  KEDGE_SANDBOX_TIME    /* was ended for its time */
} kedge_sandbox_end;

/* Finds the interpreter: the file that `python` (NULL: python3) of the PATH is in the end. Tries the filter
 * out in a child. Errors: ERR_UNSUPPORTED in one line where this system has no filter or no interpreter;
 * ERR_MEMORY. Destroyed by the caller. */
kedge_status kedge_sandbox_open(kedge_sandbox *sandbox, const char *python);
void kedge_sandbox_close(kedge_sandbox *sandbox);

/* Runs a program; its output is dropped. Errors: ERR_IO where no child can be made; ERR_MEMORY. */
kedge_status kedge_sandbox_run(const kedge_sandbox *sandbox, const char *program, kedge_sandbox_end *end);

#endif
