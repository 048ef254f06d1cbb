/* SPDX-License-Identifier: Apache-2.0
 * Claims about the order of conditions, judged (contrast.h, orderings.def). */
#include "models/report/contrast.h"

#include <math.h>

static const kedge_ordering orderings[] = {
#define PAPER false
#define PILOT true
#define KEDGE_ORDERING(key, source, measure, upper, lower, margin, text)                                     \
  {key, source, KEDGE_MEASURE_##measure, upper, lower, margin, text},
#include "models/report/orderings.def"
#undef KEDGE_ORDERING
#undef PAPER
#undef PILOT
};

uint32_t kedge_ordering_count(void) {
  return sizeof orderings / sizeof *orderings;
}

const kedge_ordering *kedge_ordering_get(uint32_t ordering) {
  return &orderings[ordering];
}

const char *kedge_verdict_text(kedge_verdict verdict) {
  static const char *const texts[] = {"no data", "undecided", "not reproduced", "reproduced"};
  return texts[verdict];
}

static kedge_verdict judge(const kedge_estimate *e, double margin) {
  if (!e->values) return KEDGE_VERDICT_NO_DATA;
  if (e->wide_low > -margin) return KEDGE_VERDICT_REPRODUCED;
  if (e->wide_high < -margin) return KEDGE_VERDICT_NOT_REPRODUCED;
  return KEDGE_VERDICT_UNDECIDED; /* also with one base, whose wide ends are NaN */
}

kedge_status kedge__orderings_judge(const kedge_study *study, kedge_view *view) {
  for (uint32_t i = 0; i < kedge_ordering_count(); i++) {
    const kedge_ordering *o = kedge_ordering_get(i);
    const uint32_t upper = kedge_study_condition_find(study, o->upper);
    const uint32_t lower = kedge_study_condition_find(study, o->lower);
    kedge_judged *j = &view->judged[i];
    if (upper != KEDGE_STUDY_NONE && lower != KEDGE_STUDY_NONE)
      KEDGE_TRY(kedge_view_estimate(study, view, upper, lower, o->measure, &j->e));
    else
      KEDGE_TRY(kedge_estimate_mean(NULL, NULL, 0, &j->e));
    j->verdict = judge(&j->e, o->margin);
  }
  return KEDGE_OK;
}
