/* SPDX-License-Identifier: Apache-2.0
 *
 * Made-up studies with effects that are known, as `kedge lab` leaves them. A failure inside fails the running
 * cmocka test. */
#ifndef KEDGE_TESTS_SUPPORT_STUDIES_H
#define KEDGE_TESTS_SUPPORT_STUDIES_H

#include <stdbool.h>
#include <stdint.h>

/* Against SFT, times `effect`: lbl_1e-2 -0.05, lbl_1e-1 -0.10, rpb_1 +0.03, kl_token +0.06 on OOD; top-k
 * overlap and NMI of lbl less by 0.10, of rpb more by 0.05; lbl uses experts more evenly, the more the larger
 * its coefficient. Accuracies of a cell differ from the condition's by what (base, seed) share and by `noise`
 * times a number within +-1. */
typedef struct test_study {
  const char *preset;
  uint32_t bases, seeds, splits, sizes, arms; /* sizes and arms: 1 or 2; splits: 1 to 5 */
  bool all;                                   /* 17 conditions; else sft, lbl_1e-2, rpb_1, kl_token */
  double effect, noise;
  const char *label; /* NULL: of rpb_1 */
} test_study;

/* Writes lab.json and cells into a folder that is made. */
void test_study_write(const char *folder, const test_study *study);

#endif
