/* SPDX-License-Identifier: Apache-2.0
 *
 * A study's conditions compared. contrast.c takes values of cells together, orderings.c judges what was
 * claimed of them (orderings.def), findings.c says it in five sentences; statistics.h has the intervals.
 *
 * A view is what is compared at once: one size of base and one arm, over all trained splits or on one. A
 * value is of (base, seed): the mean over the view's splits; a contrast's is the mean over the splits of the
 * difference of two cells of the same base, split and seed, which trained on the same data in the same order.
 */
#ifndef KEDGE_MODELS_REPORT_CONTRAST_H
#define KEDGE_MODELS_REPORT_CONTRAST_H

#include "models/report/statistics.h"
#include "models/report/study.h"

typedef enum kedge_verdict {
  KEDGE_VERDICT_NO_DATA,        /* a condition or the measure is absent */
  KEDGE_VERDICT_UNDECIDED,      /* the intervals hold both */
  KEDGE_VERDICT_NOT_REPRODUCED, /* both intervals lie on the other side */
  KEDGE_VERDICT_REPRODUCED      /* both intervals lie on the claim's side */
} kedge_verdict;
const char *kedge_verdict_text(kedge_verdict verdict);

typedef struct kedge_ordering {
  const char *key;
  bool pilot; /* claimed by the pilot; else by the paper */
  kedge_measure measure;
  const char *upper, *lower; /* names of conditions */
  double margin;
  const char *text;
} kedge_ordering;
uint32_t kedge_ordering_count(void);
const kedge_ordering *kedge_ordering_get(uint32_t ordering);

typedef struct kedge_contrast {
  kedge_estimate e;
  double adjusted; /* of a secondary contrast: Holm's p over all of the view's; NaN otherwise */
  bool primary;
} kedge_contrast;

typedef struct kedge_judged {
  kedge_estimate e; /* of upper less lower */
  kedge_verdict verdict;
} kedge_judged;

typedef struct kedge_view {
  uint32_t size, arm;
  uint32_t shift;            /* KEDGE_STUDY_NONE: over all splits */
  uint32_t shifts, cells;    /* in it, without bases */
  uint32_t bases, seeds;     /* different ones */
  kedge_estimate *means;     /* [conditions + 1][KEDGE_MEASURES]; the last row is the base's */
  kedge_contrast *contrasts; /* [conditions][KEDGE_MEASURES], condition less SFT */
  kedge_judged *judged;      /* [orderings] */
  kedge_estimate *primary;   /* [study->primary_count], on OOD */
} kedge_view;

typedef struct kedge_analysis {
  const kedge_study *study; /* borrowed */
  uint32_t sft;             /* the condition "sft", or KEDGE_STUDY_NONE */
  kedge_view *views;        /* views over all splits come before those on one of them */
  uint32_t view_count;
  char *findings[5];
} kedge_analysis;

/* Compares everything. ERR_MEMORY. Destroy it whatever was returned. */
kedge_status kedge_analysis_make(kedge_analysis *analysis, const kedge_study *study);
void kedge_analysis_destroy(kedge_analysis *analysis);

/* Rows of a view; the condition may be study->condition_count, the base, for means. */
const kedge_estimate *kedge_view_mean(const kedge_view *view, uint32_t condition, kedge_measure measure);
const kedge_contrast *kedge_view_contrast(const kedge_view *view, uint32_t condition, kedge_measure measure);

/* Of a view, of one condition (KEDGE_STUDY_NONE: the base), of a condition less another. ERR_MEMORY. */
kedge_status kedge_view_estimate(const kedge_study *study, const kedge_view *view, uint32_t condition,
                                 uint32_t less, kedge_measure measure, kedge_estimate *estimate);

/* ---- Between the files
 * ------------------------------------------------------------------------------------------------ */

kedge_status kedge__orderings_judge(const kedge_study *study, kedge_view *view);
kedge_status kedge__findings_make(kedge_analysis *analysis);

#endif
