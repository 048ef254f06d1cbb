/* SPDX-License-Identifier: Apache-2.0
 * Figures of all cells of an audit, and the answers that follow from them (audit.h). */
#include "models/retention/audit.h"

#include <math.h>

/* ---- Figures
 * ------------------------------------------------------------------------------------------------------ */

/* Adds a value to a mean over `*count` others, where it is defined. */
static void fold(double *mean, uint64_t *count, double value) {
  if (!isfinite(value)) return;
  ++*count;
  *mean = *count == 1 ? value : *mean + (value - *mean) / (double)*count;
}

static double larger(double a, double b) {
  return isfinite(b) && !(a >= b) ? b : a;
}

/* A mean of figures: where it goes, and how many values it has so far. */
#define FOLD(member, value) fold(&f->member, &counts->member, (value))

typedef struct fold_counts {
  uint64_t l1_averaged, l1_averaged_noise, l1, l1_noise, l1_span, l1_span_noise, load, tie_share, top1_mass,
      gap, clipped_low, clipped_high, bias_sd, q, q_margin, seed_nmi, split_nmi, floor, within_nmi,
      communities, isolated;
} fold_counts;

static void add_cell(kedge_audit_figures *f, fold_counts *counts, const kedge_use_layer *use,
                     const kedge_audit_layer *at) {
  if (!f->cells || use->tokens < f->tokens) f->tokens = use->tokens;
  f->cells++;
  FOLD(l1, use->l1), FOLD(l1_noise, at->l1_noise), FOLD(l1_span, at->l1_span);
  FOLD(l1_span_noise, at->l1_span_noise);
  f->uniform_tested += isfinite(at->uniform_p) != 0;
  f->uniform += at->uniform_p > KEDGE_AUDIT_P;
  f->dead += (uint64_t)use->dead, f->dead_cells += use->dead > 0;
  FOLD(load, use->load);
  if (!(f->load_most >= use->load)) f->load_most = use->load, f->load_layer = use->layer;
  f->most_chosen = larger(f->most_chosen, at->most_chosen);
  f->ties += use->ties;
  FOLD(tie_share, at->tie_share), FOLD(top1_mass, at->top1_mass), FOLD(gap, at->gap);
  FOLD(clipped_low, at->clipped_low), FOLD(clipped_high, at->clipped_high), FOLD(bias_sd, at->bias_sd);
}

static void add_communities(kedge_audit_figures *f, fold_counts *counts, const kedge_community_side *s,
                            uint32_t experts) {
  f->tested += isfinite(s->null_q.rank_p) != 0;
  f->beating += s->null_q.rank_p <= KEDGE_AUDIT_P;
  FOLD(q, s->q.median), FOLD(q_margin, s->null_q.margin), FOLD(seed_nmi, s->seed_nmi.median);
  FOLD(split_nmi, s->split_nmi.median), FOLD(floor, s->floor.median), FOLD(within_nmi, s->within.median);
  FOLD(communities, s->communities), FOLD(isolated, (double)s->isolated / experts);
}

uint32_t kedge__audit_rho(const kedge_probe *p) {
  for (uint32_t r = 0; r < p->how.rho_count; r++)
    if (fabs(p->how.rho[r] - 0.10) < 1e-12) return r;
  return 0;
}

static void unset(kedge_audit_figures *f) {
  *f = (kedge_audit_figures){.load_layer = -1, .ties_known = true};
  f->l1_averaged = f->l1_averaged_noise = f->l1 = f->l1_noise = f->l1_span = f->l1_span_noise = f->excess =
      NAN;
  f->rho = f->pairs = f->degree = f->q = f->q_margin = f->seed_nmi = f->split_nmi = f->floor = NAN;
  f->within_nmi = f->communities = f->isolated = f->load = f->load_most = f->most_chosen = NAN;
  f->tie_share = f->top1_mass = f->gap = f->clipped_low = f->clipped_high = f->bias_sd = NAN;
}

static void gather(kedge_audit *a) {
  const kedge_probe *p = &a->probe;
  kedge_audit_figures *f = &a->figures;
  fold_counts all = {0}, *counts = &all;
  unset(f);
  for (uint32_t i = 0; i < p->count; i++) {
    const kedge_probe_domain *d = &p->domains[i];
    const kedge_use *u = &d->base[KEDGE_PROBE_ALL];
    FOLD(l1_averaged, u->l1_layer_mean), FOLD(l1_averaged_noise, a->domains[i].l1_averaged_noise);
    f->ties_known = f->ties_known && u->ties_known;
    for (uint32_t l = 0; l < p->layers; l++) {
      if (!u->at[l].tokens) continue;
      add_cell(f, counts, &u->at[l], &a->domains[i].at[l]);
      if (!d->has_communities) continue;
      const uint32_t r = kedge__audit_rho(p);
      f->rho = p->how.rho[r], f->nulls = p->how.nulls, f->seeds = p->how.seeds;
      add_communities(f, counts, &d->communities.rows[(size_t)l * p->how.rho_count + r].base, p->experts);
    }
  }
  const double E = p->experts, K = p->topk;
  f->excess = larger(f->l1 - f->l1_noise, f->l1_span - f->l1_span_noise);
  if (f->cells && E > 1) f->pairs = (double)f->tokens / 2 * K * (K - 1) / (E * (E - 1));
  f->degree = f->rho * (E - 1);
}

/* ---- Answers
 * ------------------------------------------------------------------------------------------------------ */

static bool chooses(const kedge_audit *a) {
  return a->figures.cells && a->probe.topk < a->probe.experts;
}

/* Chance alone would be taken for an uneven router, and this one is not clearly more. */
static bool drowned(double noise, double excess) {
  return !(noise <= KEDGE_AUDIT_NEAR_UNIFORM) && !(excess >= KEDGE_AUDIT_TWO_THIRDS);
}

static kedge_audit_answer sharpness(const kedge_audit *a) {
  const kedge_audit_figures *f = &a->figures;
  const double excess = f->l1_averaged - f->l1_averaged_noise;
  if (!chooses(a) || drowned(f->l1_averaged_noise, excess)) return KEDGE_AUDIT_CANNOT_TELL;
  if (excess >= KEDGE_AUDIT_TWO_THIRDS) return KEDGE_AUDIT_YES;
  return excess <= KEDGE_AUDIT_THIRD ? KEDGE_AUDIT_NO : KEDGE_AUDIT_UNDECIDED;
}

static bool few_tokens(const kedge_audit_figures *f) {
  return !(f->pairs >= KEDGE_AUDIT_COUNT);
}

static kedge_audit_answer diagnostic(const kedge_audit *a) {
  const kedge_audit_figures *f = &a->figures;
  const double resolved = f->split_nmi - f->floor;
  if (!chooses(a) || a->probe.topk < 2 || !(f->degree >= 1) || !f->tested || !isfinite(resolved) ||
      1.0 / (f->nulls + 1.0) > KEDGE_AUDIT_P)
    return KEDGE_AUDIT_CANNOT_TELL;
  if (3 * f->beating <= f->tested || resolved <= KEDGE_AUDIT_UNRESOLVED)
    return few_tokens(f) ? KEDGE_AUDIT_CANNOT_TELL : KEDGE_AUDIT_NO;
  if (3 * f->beating >= 2 * f->tested && resolved >= KEDGE_AUDIT_RESOLVED &&
      f->q_margin >= KEDGE_AUDIT_MARGIN)
    return KEDGE_AUDIT_YES;
  return KEDGE_AUDIT_UNDECIDED;
}

static kedge_audit_answer anchoring(const kedge_audit *a) {
  const kedge_audit_figures *f = &a->figures;
  if (!chooses(a) || drowned(f->l1_noise, f->excess)) return KEDGE_AUDIT_CANNOT_TELL;
  if (f->excess <= KEDGE_AUDIT_NEAR_UNIFORM) return KEDGE_AUDIT_NO;
  return f->excess >= KEDGE_AUDIT_THIRD ? KEDGE_AUDIT_YES : KEDGE_AUDIT_UNDECIDED;
}

/* Communities that are no more than each expert's use gives are no communities to shuffle within. */
static kedge_audit_answer shuffles(const kedge_audit *a) {
  const kedge_audit_figures *f = &a->figures;
  const double resolved = f->split_nmi - f->floor;
  if (!chooses(a) || a->probe.topk < 2 || !(f->degree >= 1) || !isfinite(resolved) ||
      !isfinite(f->within_nmi))
    return KEDGE_AUDIT_CANNOT_TELL;
  if (a->verdicts[KEDGE_AUDIT_Q_DIAGNOSTIC].answer == KEDGE_AUDIT_NO) return KEDGE_AUDIT_NO;
  if (f->within_nmi < KEDGE_AUDIT_UNSTABLE || resolved <= KEDGE_AUDIT_UNRESOLVED)
    return few_tokens(f) ? KEDGE_AUDIT_CANNOT_TELL : KEDGE_AUDIT_NO;
  return f->within_nmi >= KEDGE_AUDIT_STABLE && resolved >= KEDGE_AUDIT_RESOLVED ? KEDGE_AUDIT_YES
                                                                                 : KEDGE_AUDIT_UNDECIDED;
}

static kedge_audit_answer balancing(const kedge_audit *a) {
  const kedge_audit_figures *f = &a->figures;
  if (!chooses(a)) return KEDGE_AUDIT_CANNOT_TELL;
  const double expected = (double)f->tokens * a->probe.topk / a->probe.experts;
  if (expected < KEDGE_AUDIT_COUNT) return KEDGE_AUDIT_CANNOT_TELL;
  if (f->dead) return KEDGE_AUDIT_YES;
  /* Half of the tokens go to one expert that would have less than a quarter of them. */
  return f->most_chosen >= 0.5 && f->load_most >= 2 ? KEDGE_AUDIT_UNDECIDED : KEDGE_AUDIT_NO;
}

void kedge_audit_judge(kedge_audit *a, kedge_audit_bias bias) {
  static const kedge_audit_answer by_bias[] = {KEDGE_AUDIT_CANNOT_TELL, KEDGE_AUDIT_NO, KEDGE_AUDIT_YES};
  gather(a);
  a->verdicts[KEDGE_AUDIT_Q_SHARPNESS].answer = sharpness(a);
  a->verdicts[KEDGE_AUDIT_Q_DIAGNOSTIC].answer = diagnostic(a);
  a->verdicts[KEDGE_AUDIT_Q_ANCHORING].answer = anchoring(a);
  a->verdicts[KEDGE_AUDIT_Q_SHUFFLES].answer = shuffles(a);
  a->verdicts[KEDGE_AUDIT_Q_BALANCING].answer = balancing(a);
  a->verdicts[KEDGE_AUDIT_Q_LOSS_FREE].answer = by_bias[bias];
  kedge__audit_word(a);
}
