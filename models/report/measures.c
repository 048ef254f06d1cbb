/* SPDX-License-Identifier: Apache-2.0
 * The measures of a cell (study.h, measures.def). A mean over domains is known only where all of them are: a
 * mean over fewer would be another quantity. */
#include "models/report/study.h"

#include <math.h>

const kedge_measure_row *kedge_measure_get(kedge_measure measure) {
  static const kedge_measure_row rows[KEDGE_MEASURES] = {
#define KEDGE_MEASURE(name, key, title, kind, tested, text) {key, title, KEDGE_KIND_##kind, tested, text},
#include "models/report/measures.def"
#undef KEDGE_MEASURE
  };
  return &rows[measure];
}

/* A quantity of one score. */
typedef double (*quantity)(const kedge_study_score *score);

static double accuracy(const kedge_study_score *s) {
  return s->right / s->items;
}
static double nll(const kedge_study_score *s) {
  return s->nll;
}
static double bias_accuracy(const kedge_study_score *s) {
  return s->bias_right / s->bias_items;
}
static double bias_nll(const kedge_study_score *s) {
  return s->bias_nll;
}
/* What the model does by itself, on the items where its selection was looked at. */
static double own_nll(const kedge_study_score *s) {
  return isnan(s->own_nll) ? s->nll : s->own_nll;
}
static double own_accuracy(const kedge_study_score *s) {
  return isnan(s->own_accuracy) ? accuracy(s) : s->own_accuracy;
}
static double base_nll(const kedge_study_score *s) {
  return s->base_nll;
}
static double regained(const kedge_study_score *s) {
  return own_nll(s) - s->forced_nll;
}
static double converse(const kedge_study_score *s) {
  return s->converse_nll - s->base_nll;
}
static double forced_accuracy(const kedge_study_score *s) {
  return s->forced_accuracy;
}

static double at_key(const kedge_study_cell *cell, uint32_t key, quantity q) {
  const kedge_study_score *score = key == KEDGE_STUDY_NONE ? NULL : kedge_study_score_of(cell, key);
  return score ? q(score) : NAN;
}

static double at_shift(const kedge_study *study, const kedge_study_cell *cell, uint32_t shift, quantity q) {
  return at_key(cell, kedge_names_find(&study->keys, study->shifts.at[shift]), q);
}

/* Mean over the original tests of the domains other than `domain`. */
static double elsewhere(const kedge_study *study, const kedge_study_cell *cell, uint32_t domain, quantity q) {
  double sum = 0;
  uint32_t count = 0;
  for (uint32_t d = 0; d < study->domains.count; d++) {
    if (d == domain) continue;
    sum += at_key(cell, kedge_study_domain_key(study, d), q);
    count++;
  }
  return count ? sum / count : NAN;
}

/* The file's own mean, or the mean over the test sets that it has. */
static double routing(const kedge_study_cell *cell, kedge_study_routing which) {
  double sum = 0;
  uint32_t count = 0;
  if (!isnan(cell->routing[which])) return cell->routing[which];
  for (uint32_t i = 0; i < cell->score_count; i++)
    if (!isnan(cell->scores[i].routing[which])) sum += cell->scores[i].routing[which], count++;
  return count ? sum / count : NAN;
}

/* exp(entropy)/E of a layer's use of its experts. */
static double effective(const float *use, uint32_t experts) {
  double sum = 0, entropy = 0;
  for (uint32_t e = 0; e < experts; e++) sum += (double)use[e];
  if (!(sum > 0)) return NAN;
  for (uint32_t e = 0; e < experts; e++)
    if (use[e] > 0) entropy -= (double)use[e] / sum * log((double)use[e] / sum);
  return exp(entropy) / experts;
}

/* Mean over layers and the original tests. */
static double effective_share(const kedge_study *study, const kedge_study_cell *cell) {
  double sum = 0;
  uint32_t count = 0;
  for (uint32_t d = 0; d < study->domains.count; d++) {
    const kedge_study_score *s = kedge_study_score_of(cell, kedge_study_domain_key(study, d));
    for (uint32_t l = 0; s && s->use && l < s->layers; l++)
      sum += effective(s->use + (size_t)l * s->experts, s->experts), count++;
  }
  return count ? sum / count : NAN;
}

static double overall(const kedge_study *study, const kedge_study_cell *cell, uint32_t shift,
                      uint32_t domain) {
  const uint32_t others = study->domains.count - 1;
  return (at_shift(study, cell, shift, accuracy) + others * elsewhere(study, cell, domain, accuracy)) /
         (others + 1);
}

/* Against the base on the same items where these are told, else against the base's own cell. */
static double forgotten(const kedge_study *study, const kedge_study_cell *cell, uint32_t domain) {
  const double same = elsewhere(study, cell, domain, own_nll) - elsewhere(study, cell, domain, base_nll);
  const kedge_study_cell *base = kedge_study_base(study, cell->size, cell->base);
  if (!isnan(same) || !base) return same;
  return elsewhere(study, cell, domain, nll) - elsewhere(study, base, domain, nll);
}

double kedge_study_measure(const kedge_study *study, const kedge_study_cell *cell, uint32_t shift,
                           kedge_measure measure) {
  const uint32_t domain = kedge_study_domain_of(study, study->shifts.at[shift]);
  const uint32_t near = kedge_study_domain_key(study, domain);
  switch (measure) {
  case KEDGE_MEASURE_ID:
    return at_shift(study, cell, shift, accuracy);
  case KEDGE_MEASURE_NEAR:
    return at_key(cell, near, accuracy);
  case KEDGE_MEASURE_OOD:
    return elsewhere(study, cell, domain, accuracy);
  case KEDGE_MEASURE_OVERALL:
    return overall(study, cell, shift, domain);
  case KEDGE_MEASURE_NLL_ID:
    return at_shift(study, cell, shift, nll);
  case KEDGE_MEASURE_NLL_NEAR:
    return at_key(cell, near, nll);
  case KEDGE_MEASURE_NLL_OOD:
    return elsewhere(study, cell, domain, nll);
  case KEDGE_MEASURE_TOPK:
    return routing(cell, KEDGE_ROUTING_TOPK);
  case KEDGE_MEASURE_TOP1:
    return routing(cell, KEDGE_ROUTING_TOP1);
  case KEDGE_MEASURE_GATE:
    return routing(cell, KEDGE_ROUTING_GATE);
  case KEDGE_MEASURE_TVD:
    return routing(cell, KEDGE_ROUTING_TVD);
  case KEDGE_MEASURE_JSD:
    return routing(cell, KEDGE_ROUTING_JSD);
  case KEDGE_MEASURE_NMI10:
    return cell->nmi[0];
  case KEDGE_MEASURE_CEILING10:
    return cell->ceiling[0];
  case KEDGE_MEASURE_FLOOR10:
    return cell->floor[0];
  case KEDGE_MEASURE_NMI20:
    return cell->nmi[1];
  case KEDGE_MEASURE_CEILING20:
    return cell->ceiling[1];
  case KEDGE_MEASURE_FLOOR20:
    return cell->floor[1];
  case KEDGE_MEASURE_EFFECTIVE:
    return effective_share(study, cell);
  case KEDGE_MEASURE_BIAS_ID:
    return at_shift(study, cell, shift, bias_accuracy);
  case KEDGE_MEASURE_BIAS_OOD:
    return elsewhere(study, cell, domain, bias_accuracy);
  case KEDGE_MEASURE_BIAS_GAIN_ID:
    return at_shift(study, cell, shift, bias_accuracy) - at_shift(study, cell, shift, accuracy);
  case KEDGE_MEASURE_BIAS_GAIN_OOD:
    return elsewhere(study, cell, domain, bias_accuracy) - elsewhere(study, cell, domain, accuracy);
  case KEDGE_MEASURE_BIAS_NLL:
    return at_shift(study, cell, shift, bias_nll);
  case KEDGE_MEASURE_FORGOTTEN:
    return forgotten(study, cell, domain);
  case KEDGE_MEASURE_REGAINED:
    return elsewhere(study, cell, domain, regained);
  case KEDGE_MEASURE_CONVERSE:
    return elsewhere(study, cell, domain, converse);
  case KEDGE_MEASURE_REGAINED_ID:
    return at_shift(study, cell, shift, regained);
  case KEDGE_MEASURE_OWN_ACC:
    return elsewhere(study, cell, domain, own_accuracy);
  case KEDGE_MEASURE_FORCED_ACC:
    return elsewhere(study, cell, domain, forced_accuracy);
  case KEDGE_MEASURE_LOSS:
    return cell->final_loss;
  case KEDGE_MEASURES:
    break;
  }
  return NAN;
}
