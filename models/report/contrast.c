/* SPDX-License-Identifier: Apache-2.0
 * Views of a study, their means and their contrasts (contrast.h). */
#include "models/report/contrast.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Which cells
 * ------------------------------------------------------------------------------------------------- */

static bool in_view(const kedge_view *view, const kedge_study_cell *cell) {
  return cell->condition != KEDGE_STUDY_NONE && cell->size == view->size && cell->arm == view->arm &&
         (view->shift == KEDGE_STUDY_NONE || cell->shift == view->shift);
}

/* A value of a cell, on the way to a mean. */
typedef struct item {
  uint32_t base, seed;
  double value;
} item;

static int by_unit(const void *a, const void *b) {
  const item *x = a, *y = b;
  if (x->base != y->base) return x->base < y->base ? -1 : 1;
  return (x->seed > y->seed) - (x->seed < y->seed);
}

/* The values of the view's cells: of `condition`, less those of the same place under `less` unless that is
 * KEDGE_STUDY_NONE. Returns their number; items holds study->cell_count. */
static uint32_t gather(const kedge_study *study, const kedge_view *view, uint32_t condition, uint32_t less,
                       kedge_measure measure, item *items) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < study->cell_count; i++) {
    const kedge_study_cell *cell = &study->cells[i];
    if (!in_view(view, cell) || cell->condition != condition) continue;
    double value = kedge_study_measure(study, cell, cell->shift, measure);
    if (less != KEDGE_STUDY_NONE) {
      kedge_study_cell like = *cell;
      like.condition = less;
      const kedge_study_cell *other = kedge_study_find(study, &like);
      value = other ? value - kedge_study_measure(study, other, cell->shift, measure) : NAN;
    }
    if (isfinite(value)) items[count++] = (item){cell->base, cell->seed, value};
  }
  return count;
}

/* A base has one value a split; which splits, the view's cells tell. */
static uint32_t gather_bases(const kedge_study *study, const kedge_view *view, kedge_measure measure,
                             item *items) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < study->cell_count; i++) {
    const kedge_study_cell *cell = &study->cells[i];
    if (cell->condition != KEDGE_STUDY_NONE || cell->size != view->size) continue;
    double sum = 0;
    uint32_t shifts = 0;
    for (uint32_t s = 0; s < study->shifts.count; s++) {
      if (view->shift != KEDGE_STUDY_NONE && view->shift != s) continue;
      sum += kedge_study_measure(study, cell, s, measure), shifts++;
    }
    if (shifts && isfinite(sum)) items[count++] = (item){cell->base, 0, sum / shifts};
  }
  return count;
}

/* Makes one value of each (base, seed), and counts[] of each base; returns the number of bases. */
static uint32_t fold(item *items, uint32_t count, double *values, uint32_t *counts) {
  uint32_t bases = 0, used = 0;
  if (count) qsort(items, count, sizeof *items, by_unit);
  for (uint32_t i = 0; i < count;) {
    double sum = 0;
    uint32_t same = 0;
    const bool first = !i || items[i].base != items[i - 1].base;
    while (i + same < count && !by_unit(&items[i], &items[i + same])) sum += items[i + same++].value;
    if (first) counts[bases++] = 0;
    counts[bases - 1]++;
    values[used++] = sum / same;
    i += same;
  }
  return bases;
}

kedge_status kedge_view_estimate(const kedge_study *study, const kedge_view *view, uint32_t condition,
                                 uint32_t less, kedge_measure measure, kedge_estimate *estimate) {
  const size_t room = (size_t)study->cell_count + 1;
  item *items = kedge_alloc(room, sizeof *items);
  double *values = kedge_alloc(room, sizeof *values);
  uint32_t *counts = kedge_alloc(room, sizeof *counts);
  kedge_status status = items && values && counts ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) {
    const uint32_t count = condition == KEDGE_STUDY_NONE
                               ? gather_bases(study, view, measure, items)
                               : gather(study, view, condition, less, measure, items);
    status = kedge_estimate_mean(values, counts, fold(items, count, values, counts), estimate);
  }
  kedge_free(items);
  kedge_free(values);
  kedge_free(counts);
  return status;
}

/* ---- A view
 * ----------------------------------------------------------------------------------------------------- */

const kedge_estimate *kedge_view_mean(const kedge_view *view, uint32_t condition, kedge_measure measure) {
  return &view->means[(size_t)condition * KEDGE_MEASURES + measure];
}

const kedge_contrast *kedge_view_contrast(const kedge_view *view, uint32_t condition, kedge_measure measure) {
  return &view->contrasts[(size_t)condition * KEDGE_MEASURES + measure];
}

/* Cells, splits, bases and seeds of a view. */
static kedge_status count_view(const kedge_study *study, kedge_view *view) {
  bool *seen = kedge_alloc(study->shifts.count + 1, sizeof *seen);
  uint32_t *seeds = kedge_alloc((size_t)study->cell_count + 1, sizeof *seeds), last = KEDGE_STUDY_NONE;
  if (!seen || !seeds) {
    kedge_free(seen);
    kedge_free(seeds);
    return KEDGE_ERR_MEMORY;
  }
  for (uint32_t i = 0; i < study->cell_count; i++) {
    const kedge_study_cell *cell = &study->cells[i];
    uint32_t s = 0;
    if (!in_view(view, cell)) continue;
    view->cells++;
    view->bases += cell->base != last; /* cells are in the order of bases */
    last = cell->base;
    if (!seen[cell->shift]) view->shifts++;
    seen[cell->shift] = true;
    while (s < view->seeds && seeds[s] != cell->seed) s++;
    if (s == view->seeds) seeds[view->seeds++] = cell->seed;
  }
  kedge_free(seen);
  kedge_free(seeds);
  return KEDGE_OK;
}

static bool is_primary(const kedge_analysis *a, uint32_t condition, kedge_measure measure) {
  for (uint32_t i = 0; i < a->study->primary_count; i++)
    if (measure == KEDGE_MEASURE_OOD && a->study->primary[i][0] == condition &&
        a->study->primary[i][1] == a->sft)
      return true;
  return false;
}

static kedge_status compare(const kedge_analysis *a, kedge_view *view) {
  const kedge_study *study = a->study;
  for (uint32_t c = 0; c < study->condition_count; c++)
    for (uint32_t m = 0; m < KEDGE_MEASURES; m++) {
      const size_t at = (size_t)c * KEDGE_MEASURES + m;
      kedge_contrast *contrast = &view->contrasts[at];
      KEDGE_TRY(kedge_view_estimate(study, view, c, KEDGE_STUDY_NONE, (kedge_measure)m, &view->means[at]));
      contrast->adjusted = NAN;
      /* A condition that has no cells yet, or a study without SFT: nothing to compare. */
      const bool possible = a->sft != KEDGE_STUDY_NONE && c != a->sft;
      if (possible)
        KEDGE_TRY(kedge_view_estimate(study, view, c, a->sft, (kedge_measure)m, &contrast->e));
      else
        KEDGE_TRY(kedge_estimate_mean(NULL, NULL, 0, &contrast->e));
      contrast->primary = possible && is_primary(a, c, (kedge_measure)m);
    }
  for (uint32_t m = 0; m < KEDGE_MEASURES; m++)
    KEDGE_TRY(kedge_view_estimate(study, view, KEDGE_STUDY_NONE, KEDGE_STUDY_NONE, (kedge_measure)m,
                                  &view->means[(size_t)study->condition_count * KEDGE_MEASURES + m]));
  for (uint32_t i = 0; i < study->primary_count; i++)
    KEDGE_TRY(kedge_view_estimate(study, view, study->primary[i][0], study->primary[i][1], KEDGE_MEASURE_OOD,
                                  &view->primary[i]));
  return KEDGE_OK;
}

/* Holm's adjustment over the secondary contrasts of a view, all measures that are tested together. */
static kedge_status adjust(const kedge_study *study, kedge_view *view) {
  const uint32_t count = study->condition_count * KEDGE_MEASURES;
  double *p = kedge_alloc(2 * (size_t)count, sizeof *p);
  if (!p) return KEDGE_ERR_MEMORY;
  for (uint32_t i = 0; i < count; i++) {
    const kedge_contrast *c = &view->contrasts[i];
    const bool tested = kedge_measure_get((kedge_measure)(i % KEDGE_MEASURES))->tested && !c->primary;
    p[i] = tested ? c->e.p_both : NAN;
  }
  const kedge_status status = kedge_holm(p, count, p + count);
  for (uint32_t i = 0; status == KEDGE_OK && i < count; i++) view->contrasts[i].adjusted = p[count + i];
  kedge_free(p);
  return status;
}

static kedge_status add_view(kedge_analysis *a, uint32_t size, uint32_t arm, uint32_t shift) {
  const kedge_study *study = a->study;
  kedge_view view = {.size = size, .arm = arm, .shift = shift};
  KEDGE_TRY(count_view(study, &view));
  if (!view.cells) return KEDGE_OK;
  kedge_view *grown = kedge_realloc(a->views, (size_t)a->view_count + 1, sizeof *grown);
  if (!grown) return KEDGE_ERR_MEMORY;
  a->views = grown;
  kedge_view *v = &grown[a->view_count++];
  *v = view;
  v->means = kedge_alloc((size_t)(study->condition_count + 1) * KEDGE_MEASURES, sizeof *v->means);
  v->contrasts = kedge_alloc((size_t)study->condition_count * KEDGE_MEASURES, sizeof *v->contrasts);
  v->judged = kedge_alloc(kedge_ordering_count(), sizeof *v->judged);
  v->primary = kedge_alloc((size_t)study->primary_count + 1, sizeof *v->primary);
  if (!v->means || !v->contrasts || !v->judged || !v->primary) return KEDGE_ERR_MEMORY;
  KEDGE_TRY(compare(a, v));
  KEDGE_TRY(adjust(study, v));
  return kedge__orderings_judge(study, v);
}

kedge_status kedge_analysis_make(kedge_analysis *analysis, const kedge_study *study) {
  *analysis = (kedge_analysis){.study = study, .sft = kedge_study_condition_find(study, "sft")};
  for (uint32_t size = 0; size < study->sizes.count; size++)
    for (uint32_t arm = 0; arm < study->arms.count; arm++)
      KEDGE_TRY(add_view(analysis, size, arm, KEDGE_STUDY_NONE));
  const uint32_t whole = analysis->view_count;
  for (uint32_t v = 0; v < whole; v++) {
    const kedge_view view = analysis->views[v];
    for (uint32_t shift = 0; view.shifts > 1 && shift < study->shifts.count; shift++)
      KEDGE_TRY(add_view(analysis, view.size, view.arm, shift));
  }
  return kedge__findings_make(analysis);
}

void kedge_analysis_destroy(kedge_analysis *analysis) {
  for (uint32_t v = 0; v < analysis->view_count; v++) {
    kedge_free(analysis->views[v].means);
    kedge_free(analysis->views[v].contrasts);
    kedge_free(analysis->views[v].judged);
    kedge_free(analysis->views[v].primary);
  }
  for (size_t i = 0; i < sizeof analysis->findings / sizeof *analysis->findings; i++)
    kedge_free(analysis->findings[i]);
  kedge_free(analysis->views);
  *analysis = (kedge_analysis){0};
}
