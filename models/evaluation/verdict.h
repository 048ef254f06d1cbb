/* SPDX-License-Identifier: Apache-2.0
 *
 * Verdicts: whether what a model wrote answers an item. Siblings: extract.h finds answers, sandbox.h runs
 * Python, models/text/program.h runs the programs of Kedge's own language.
 */
#ifndef KEDGE_MODELS_EVALUATION_VERDICT_H
#define KEDGE_MODELS_EVALUATION_VERDICT_H

#include "models/evaluation/sandbox.h"
#include "models/evaluation/suite.h"

typedef struct kedge_verdict {
  bool right;
  char *extracted; /* the answer that was found, NULL: none; of code, how it ended */
} kedge_verdict;

/* Judges an output. `sandbox` is needed for Python alone. Errors: ERR_MEMORY; those of the sandbox. The
 * verdict is destroyed by the caller. */
kedge_status kedge_judge(const kedge_item *item, const char *output, size_t length,
                         const kedge_sandbox *sandbox, kedge_verdict *verdict);
void kedge_verdict_destroy(kedge_verdict *verdict);

/* What follows the last think block of an output; all of it where no block ends. */
kedge_extract kedge_after_thought(const char *output, size_t length);

/* For an item whose answer is a whole text: whether an output that begins like this can still be right. */
bool kedge_may_be_right(const kedge_item *item, const char *output, size_t length);

/* The Python program that tests an output; new memory, NULL without any. */
char *kedge_python_program(const kedge_item *item, const char *output, size_t length);

#endif
