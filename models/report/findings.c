/* SPDX-License-Identifier: Apache-2.0
 * What a study found, in five plain sentences (contrast.h): what was run, what the bases can do, what SFT
 * gains and costs, the primary contrasts, and routing with the orderings of the paper. They are of the first
 * view. */
#include "models/report/contrast.h"

#include <math.h>
#include <string.h>

/* Sentences in the making; a failed allocation shows as NULL at the end. */
typedef struct words {
  char *text;
  bool failed;
} words;

static void say(words *w, char *more) {
  char *joined = more && !w->failed ? kedge_format("%s%s", w->text ? w->text : "", more) : NULL;
  w->failed = w->failed || !joined;
  kedge_free(more);
  kedge_free(w->text);
  w->text = joined;
}

static const char *plural(uint32_t count) {
  return count == 1 ? "" : "s";
}

/* "+1.2 points [-0.3, 2.6]" of an estimate of shares. */
static void say_points(words *w, const kedge_estimate *e) {
  say(w, kedge_format("%+.1f points", 100 * e->mean));
  if (e->values > 1) say(w, kedge_format(" [%.1f, %.1f]", 100 * e->low, 100 * e->high));
}

static char *what_was_run(const kedge_analysis *a) {
  const kedge_study *study = a->study;
  const kedge_view *v = a->view_count ? &a->views[0] : NULL;
  words w = {0};
  uint32_t used = 0;
  for (uint32_t c = 0; v && c < study->condition_count; c++)
    used += kedge_view_mean(v, c, KEDGE_MEASURE_ID)->values > 0;
  say(&w, kedge_format("%s%s%u", *study->preset ? study->preset : "a study", ": ", study->cell_count));
  if (!isnan(study->cells_expected)) say(&w, kedge_format(" of %.0f", study->cells_expected));
  say(&w, kedge_format(" cells"));
  if (v)
    say(&w, kedge_format("; %s: %u base%s, %u split%s, %u condition%s, %u seed%s", study->sizes.at[v->size],
                         v->bases, plural(v->bases), v->shifts, plural(v->shifts), used, plural(used),
                         v->seeds, plural(v->seeds)));
  if (!strcmp(study->preset, "quick")) say(&w, kedge_format("; a demonstration, without statistical power"));
  say(&w, kedge_format("."));
  return w.text;
}

/* Mean accuracy over the bases of a size on a test set, and chance; false if none has it. */
static bool base_accuracy(const kedge_study *study, uint32_t size, uint32_t key, double *mean,
                          double *chance) {
  uint32_t count = 0;
  *mean = 0, *chance = 0;
  for (uint32_t i = 0; i < study->cell_count; i++) {
    const kedge_study_cell *cell = &study->cells[i];
    const kedge_study_score *s =
        cell->condition == KEDGE_STUDY_NONE && cell->size == size ? kedge_study_score_of(cell, key) : NULL;
    if (!s || isnan(s->right)) continue;
    *mean += s->right / s->items, count++;
    *chance += isnan(s->chance) ? 0 : s->chance;
  }
  if (count) *mean /= count, *chance /= count;
  return count > 0;
}

static char *what_bases_can(const kedge_analysis *a) {
  const kedge_study *study = a->study;
  const uint32_t size = a->view_count ? a->views[0].size : 0;
  uint32_t known = 0, able = 0, open = 0;
  double mean, chance;
  words w = {0};
  for (uint32_t d = 0; d < study->domains.count; d++) {
    if (!base_accuracy(study, size, kedge_study_domain_key(study, d), &mean, &chance)) continue;
    known++, able += mean > 0 && mean >= 3 * chance, open += mean <= 0.9;
  }
  if (!known) return kedge_format("No base has been evaluated yet.");
  say(&w,
      kedge_format("The bases reach three times chance or more in %u of %u domains and at most 90 %% in %u",
                   able, known, open));
  for (uint32_t s = 0; s < study->shifts.count; s++)
    if (base_accuracy(study, size, kedge_names_find(&study->keys, study->shifts.at[s]), &mean, &chance))
      say(&w, kedge_format("; %.1f %% on %s", 100 * mean, study->shifts.at[s]));
  say(&w, kedge_format(", before any post-training."));
  return w.text;
}

static char *what_sft_does(const kedge_analysis *a) {
  const kedge_study *study = a->study;
  const kedge_view *v = a->view_count ? &a->views[0] : NULL;
  words w = {0};
  if (!v || a->sft == KEDGE_STUDY_NONE || !kedge_view_mean(v, a->sft, KEDGE_MEASURE_ID)->values)
    return kedge_format("No cell of plain post-training (SFT) is finished yet.");
  const kedge_estimate *id = kedge_view_mean(v, a->sft, KEDGE_MEASURE_ID);
  const kedge_estimate *ood = kedge_view_mean(v, a->sft, KEDGE_MEASURE_OOD);
  const kedge_estimate *base_id = kedge_view_mean(v, study->condition_count, KEDGE_MEASURE_ID);
  const kedge_estimate *base_ood = kedge_view_mean(v, study->condition_count, KEDGE_MEASURE_OOD);
  say(&w, kedge_format("SFT takes the trained split"));
  if (base_id->values) say(&w, kedge_format(" from %.1f %%", 100 * base_id->mean));
  say(&w, kedge_format(" to %.1f %%", 100 * id->mean));
  if (ood->values) {
    say(&w, kedge_format(" and the other domains"));
    if (base_ood->values) say(&w, kedge_format(" from %.1f %%", 100 * base_ood->mean));
    say(&w, kedge_format(" to %.1f %%", 100 * ood->mean));
  }
  say(&w, kedge_format("."));
  return w.text;
}

/* Whether both intervals are clear of 0; the bootstrap's stands before it, Student's only where it says else.
 */
static void say_separated(words *w, const kedge_estimate *e) {
  if (e->wide_low > 0 || e->wide_high < 0)
    say(w, kedge_format(", separated"));
  else if ((e->low > 0 || e->high < 0) && !isnan(e->t_low))
    say(w, kedge_format(", but no separation by Student's over %u bases [%.1f, %.1f]", e->bases,
                        100 * e->t_low, 100 * e->t_high));
  else
    say(w, kedge_format(", no separation"));
}

static char *what_was_asked(const kedge_analysis *a) {
  const kedge_study *study = a->study;
  const kedge_view *v = a->view_count ? &a->views[0] : NULL;
  words w = {0};
  uint32_t said = 0;
  say(&w, kedge_format("On the other domains (OOD, 95 %% intervals): "));
  for (uint32_t i = 0; v && i < study->primary_count; i++) {
    const kedge_estimate *e = &v->primary[i];
    if (!e->values) continue;
    say(&w, kedge_format("%s%s less %s ", said++ ? "; " : "", study->conditions[study->primary[i][0]].label,
                         study->conditions[study->primary[i][1]].label));
    say_points(&w, e);
    say_separated(&w, e);
  }
  say(&w, kedge_format(said ? "." : "no primary contrast has its cells yet."));
  return w.text;
}

static char *what_was_claimed(const kedge_analysis *a) {
  uint32_t counts[KEDGE_VERDICT_REPRODUCED + 1] = {0}, judged = 0;
  const kedge_view *v = a->view_count ? &a->views[0] : NULL;
  const uint32_t rpb = kedge_study_condition_find(a->study, "rpb_1");
  words w = {0};
  for (uint32_t i = 0; v && i < kedge_ordering_count(); i++)
    if (!kedge_ordering_get(i)->pilot) counts[v->judged[i].verdict]++;
  for (int i = KEDGE_VERDICT_UNDECIDED; i <= KEDGE_VERDICT_REPRODUCED; i++) judged += counts[i];
  if (!judged) return kedge_format("None of the paper's orderings can be judged yet.");
  say(&w, kedge_format("Of the paper's orderings that these cells can judge, %u: %u reproduced, %u not "
                       "reproduced, %u undecided",
                       judged, counts[KEDGE_VERDICT_REPRODUCED], counts[KEDGE_VERDICT_NOT_REPRODUCED],
                       counts[KEDGE_VERDICT_UNDECIDED]));
  if (rpb != KEDGE_STUDY_NONE) {
    const kedge_estimate *e = &kedge_view_contrast(v, rpb, KEDGE_MEASURE_TOPK)->e;
    if (e->values) {
      say(&w, kedge_format("; RPB's top-k overlap with the base differs from SFT's by "));
      say_points(&w, e);
    }
  }
  say(&w, kedge_format("."));
  return w.text;
}

kedge_status kedge__findings_make(kedge_analysis *analysis) {
  char *(*const make[])(const kedge_analysis *) = {what_was_run, what_bases_can, what_sft_does,
                                                   what_was_asked, what_was_claimed};
  for (size_t i = 0; i < sizeof make / sizeof *make; i++)
    if (!(analysis->findings[i] = make[i](analysis))) return KEDGE_ERR_MEMORY;
  return KEDGE_OK;
}
