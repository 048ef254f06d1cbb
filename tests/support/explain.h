/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests that compare two runs of the same rows: whether their losses differ by no more than rounding, and
 * if by more, whether near ties of the top-k explain it (models/trace/near_ties.h). Both have a checkpoint of
 * every update, below test_folder(), with train.jsonl and base/ of training.h. */
#ifndef KEDGE_TESTS_SUPPORT_EXPLAIN_H
#define KEDGE_TESTS_SUPPORT_EXPLAIN_H

#include <stdbool.h>
#include <stdint.h>

typedef struct explain_report {
  double worst;       /* relative difference of losses and norms, over all updates */
  uint64_t choices;   /* tokens times layers times updates */
  uint64_t near_ties; /* of the first run, of them */
  uint64_t layers[8]; /* the same by layer */
  uint64_t flipped;   /* choices that the other run made otherwise */
  uint64_t strange;   /* of these, such as no near tie, at this update or an earlier one, explains */
  unsigned
      late; /* the first update that differs by more than the limit without a near tie before it; 0: none */
} explain_report;

/* Compares updates 1 to `steps`, each with the choices at the weights before it. */
void explain_runs(const char *a, const char *b, unsigned steps, double limit, double tolerance,
                  explain_report *report);
/* Whether nothing is left unexplained; prints the counts. */
bool explain_holds(const char *what, const explain_report *report, double limit);

#endif
