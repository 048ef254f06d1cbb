/* SPDX-License-Identifier: Apache-2.0
 * The stages of a study, with their command lines (lab.h). All paths in them are below the study's folder. */
#include "tools/lab.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUITE_SEED = 9001, PROBE_SEED = 9002, TRAIN_SEED = 100, MIXTURE_SEED = 2000, LONGEST = 192 };

/* ---- Building blocks
 * --------------------------------------------------------------------------------------------- */

static kedge_status add_text(char **list, size_t *count, size_t most, const char *format, va_list values) {
  char *text = NULL;
  if (*count == most) return kedge_fail(KEDGE_ERR_ARGUMENT, "a stage of a study has too many parts");
  if (vasprintf(&text, format, values) < 0) return KEDGE_ERR_MEMORY;
  list[*count] = kedge_strdup(text);
  free(text);
  return list[(*count)++] ? KEDGE_OK : KEDGE_ERR_MEMORY;
}

#define ADDS(name, list, count, most)                                                                        \
  __attribute__((format(printf, 2, 3))) static kedge_status name(lab_stage *s, const char *format, ...) {    \
    va_list values;                                                                                          \
    va_start(values, format);                                                                                \
    const kedge_status status = add_text(s->list, &s->count, most, format, values);                          \
    va_end(values);                                                                                          \
    return status;                                                                                           \
  }
ADDS(add_step, steps, step_count, LAB_MAX_STEPS)
ADDS(add_input, inputs, input_count, LAB_MAX_FILES)
ADDS(add_output, outputs, output_count, LAB_MAX_FILES)

static void need(lab_stage *s, size_t other) {
  s->needs[s->need_count++] = other;
}

/* A new stage at the end; its index is l->count - 1. */
static lab_stage *new_stage(lab *l, lab_kind kind, char *id) {
  if (!id) return NULL;
  if (l->count == l->capacity) {
    const size_t capacity = l->capacity ? 2 * l->capacity : 64;
    lab_stage *grown = kedge_realloc(l->stages, capacity, sizeof *grown);
    if (!grown) {
      kedge_free(id);
      return NULL;
    }
    l->stages = grown;
    l->capacity = capacity;
  }
  lab_stage *s = &l->stages[l->count++];
  *s = (lab_stage){.kind = kind, .id = id, .weight = 3};
  return s;
}

/* " OPTION [NAME=]data/KIND-NAME.jsonl" for the first `count` suites; `all` gives them one name. NULL without
 * memory. */
static char *suites_text(const char *option, const char *kind, uint32_t count, const char *all) {
  char *text = kedge_strdup("");
  for (uint32_t i = 0; text && i < count; i++) {
    const char *name = lab_suite_name(i);
    const bool named = !strcmp(kind, "probe");
    char *longer = kedge_format("%s %s %s%sdata/%s-%s.jsonl", text, option,
                                !named ? ""
                                : all  ? all
                                       : name,
                                named ? "=" : "", kind, name);
    kedge_free(text);
    text = longer;
  }
  return text;
}

/* ---- Data
 * -------------------------------------------------------------------------------------------------------- */

static kedge_status add_file(lab_stage *s, uint32_t domain, kedge_corpus_split split, uint32_t count,
                             uint32_t seed, const char *kind, const char *name, const char *end) {
  KEDGE_TRY(add_step(s, "corpus --domain %s --split %s --count %u --seed %u --out data/%s-%s%s.jsonl",
                     kedge_corpus_domain_at(domain)->name, kedge_corpus_split_name(split), count, seed, kind,
                     name, end));
  return add_output(s, "data/%s-%s%s.jsonl", kind, name, end);
}

/* What all bases and cells read: suites, texts to probe, the samples of each shift and seed. Of shifts that
 * nothing is trained on a quarter of the items will do. */
static kedge_status plan_data(lab *l) {
  const lab_preset *p = l->preset;
  lab_stage *s = new_stage(l, LAB_DATA, kedge_strdup("data"));
  if (!s) return KEDGE_ERR_MEMORY;
  for (uint32_t i = 0; i < LAB_SUITES; i++) {
    const uint32_t d = i % KEDGE_CORPUS_DOMAINS;
    const kedge_corpus_split split = lab_suite_split(i);
    const bool whole = i < KEDGE_CORPUS_DOMAINS || strstr(p->shifts, lab_suite_name(d));
    KEDGE_TRY(
        add_file(s, d, split, whole ? p->items : p->items / 4, SUITE_SEED, "suite", lab_suite_name(i), ""));
    KEDGE_TRY(add_file(s, d, split, p->probe_rows, PROBE_SEED, "probe", lab_suite_name(i), ""));
  }
  for (uint32_t d = 0; d < KEDGE_CORPUS_DOMAINS; d++) {
    if (!strstr(p->shifts, lab_suite_name(d))) continue;
    for (uint32_t seed = 0; seed < p->seeds; seed++) {
      char end[16];
      snprintf(end, sizeof end, "-s%u", seed);
      KEDGE_TRY(add_file(s, d, KEDGE_CORPUS_SHIFT_TRAIN, p->samples, TRAIN_SEED + seed, "train",
                         lab_suite_name(d + KEDGE_CORPUS_DOMAINS), end));
    }
  }
  return KEDGE_OK;
}

static kedge_status plan_mixture(lab *l, uint32_t base) {
  const lab_preset *p = l->preset;
  lab_stage *s = new_stage(l, LAB_DATA, kedge_format("mixture-b%u", base));
  if (!s) return KEDGE_ERR_MEMORY;
  KEDGE_TRY(add_step(s, "corpus --mixture --count %u --seed %u --out data/mixture-b%u.jsonl",
                     p->pretrain_steps * p->pretrain_batch, MIXTURE_SEED + base, base));
  KEDGE_TRY(add_output(s, "data/mixture-b%u.jsonl", base));
  if (base) return KEDGE_OK;
  KEDGE_TRY(
      add_step(s, "tokenizer train --data data/mixture-b0.jsonl --vocab-size 512 --out data/tokenizer"));
  KEDGE_TRY(add_output(s, "data/tokenizer/tokenizer.json"));
  return add_output(s, "data/tokenizer/tokenizer_config.json");
}

/* ---- Bases
 * ------------------------------------------------------------------------------------------------------- */

static kedge_status plan_base(lab *l, const lab_size *size, uint32_t base, size_t mixture) {
  const lab_preset *p = l->preset;
  lab_stage *s = new_stage(l, LAB_BASE, kedge_format("base-%s-b%u", size->name, base));
  if (!s) return KEDGE_ERR_MEMORY;
  s->size = size;
  s->base = base;
  s->weight = 0.1 * p->pretrain_steps * p->pretrain_batch / 64;
  need(s, 1); /* the first mixture has the tokenizer */
  if (mixture != 1) need(s, mixture);
  KEDGE_TRY(add_input(s, "config-%s.json", size->name));
  KEDGE_TRY(
      add_step(s, "init --config config-%s.json --tokenizer data/tokenizer --seed %u --out bases/%s/random",
               size->name, base + 1, s->id));
  KEDGE_TRY(add_step(
      s,
      "train model=bases/%s/random dataset=data/mixture-b%u.jsonl output_dir=bases/%s/model max_length=%d "
      "completion_only_loss=false per_device_train_batch_size=%u max_steps=%u learning_rate=%g "
      "lr_scheduler_type=cosine_with_min_lr min_lr_ratio=0.1 warmup_steps=50 adam_beta2=0.95 "
      "router_aux_loss_coef=0.001 logging_steps=25 router_probe_steps=0 save_steps=%u save_total_limit=1 "
      "seed=%u data_seed=%u threads=1",
      s->id, base, s->id, LONGEST, p->pretrain_batch, p->pretrain_steps, p->pretrain_rate,
      p->pretrain_steps < 200 ? p->pretrain_steps / 4 : 200, base + 1, base + 1));
  KEDGE_TRY(add_output(s, "bases/%s/model/model.safetensors", s->id));
  KEDGE_TRY(add_output(s, "bases/%s/model/config.json", s->id));
  return add_output(s, "bases/%s/model/tokenizer.json", s->id);
}

/* Probes of a stage against a base: by suite, and communities over all of them. */
static kedge_status add_probes(lab_stage *s, const char *model, const char *more) {
  char *suites = suites_text("--data", "probe", LAB_SUITES, NULL),
       *all = suites_text("--data", "probe", LAB_SUITES, "all");
  kedge_status status = suites && all ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK)
    status =
        add_step(s,
                 "probe %s%s%s --max-length 256 --batch-size 32 --threads 1 --csv "
                 "work/%s/use --json work/%s/probe.json",
                 model, suites, s->kind == LAB_CELL ? " --no-communities --selection" : " --no-communities",
                 s->id, s->id);
  if (status == KEDGE_OK)
    status = add_step(s,
                      "probe %s%s --rho 0.1,0.2 --nulls 50 --max-length 256 --batch-size 32 --threads 1%s "
                      "--json work/%s/communities.json",
                      model, all, more, s->id);
  kedge_free(suites);
  kedge_free(all);
  return status;
}

/* `name`.json of the accuracy on all suites. */
static kedge_status add_eval(lab_stage *s, const char *model, const char *more, const char *name) {
  char *suites = suites_text("--suite", "suite", LAB_SUITES, NULL);
  const kedge_status status =
      suites ? add_step(s, "eval --model %s%s --whole --batch-size 64 --threads 1%s --json work/%s/%s.json",
                        model, suites, more, s->id, name)
             : KEDGE_ERR_MEMORY;
  kedge_free(suites);
  return status;
}

static kedge_status plan_base_cell(lab *l, size_t base_at) {
  const lab_size *size = l->stages[base_at].size;
  const uint32_t base = l->stages[base_at].base;
  lab_stage *s = new_stage(l, LAB_BASE_CELL, kedge_format("%s-b%u", size->name, base));
  if (!s) return KEDGE_ERR_MEMORY;
  s->size = size;
  s->base = base;
  s->weight = 4 + 0.004 * l->preset->items;
  need(s, 0);
  need(s, base_at);
  char *model = kedge_format("bases/base-%s/model", s->id),
       *one = kedge_format("--base bases/base-%s/model", s->id),
       *kept = kedge_format(" --communities communities/%s.json", s->id),
       *suites = suites_text("--data", "probe", KEDGE_CORPUS_DOMAINS, NULL);
  kedge_status status = model && one && kept && suites ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) status = add_eval(s, model, "", "eval");
  if (status == KEDGE_OK) status = add_probes(s, one, kept);
  if (status == KEDGE_OK)
    status = add_step(s, "audit --model %s%s --max-length 256 --threads 1 --json audits/%s.json", model,
                      suites, s->id);
  if (status == KEDGE_OK) status = add_output(s, "cells/%s.json", s->id);
  if (status == KEDGE_OK) status = add_output(s, "communities/%s.json", s->id);
  if (status == KEDGE_OK) status = add_output(s, "audits/%s.json", s->id);
  kedge_free(model);
  kedge_free(one);
  kedge_free(kept);
  kedge_free(suites);
  return status;
}

static kedge_status plan_prior(lab *l, size_t base_at, uint32_t shift, uint32_t seed) {
  const char *base = l->stages[base_at].id, *name = lab_suite_name(shift + KEDGE_CORPUS_DOMAINS);
  lab_stage *s = new_stage(l, LAB_PRIOR, kedge_format("prior-%s-%s-s%u", base + 5, name, seed));
  if (!s) return KEDGE_ERR_MEMORY;
  s->weight = 0.001 * l->preset->samples + 0.5;
  need(s, 0);
  need(s, base_at);
  KEDGE_TRY(
      add_step(s,
               "prior --model bases/%s/model --data data/train-%s-s%u.jsonl --max-length %d --batch-size 64 "
               "--restart --threads 1 --out priors/%s.safetensors",
               l->stages[base_at].id, name, seed, LONGEST, s->id));
  return add_output(s, "priors/%s.safetensors", s->id);
}

/* ---- Cells
 * ------------------------------------------------------------------------------------------------------- */

/* The settings of a condition, with a blank before each. */
static char *settings_text(const lab_stage *s, const char *prior, const char *base) {
  const lab_condition *c = s->condition;
  char *text = kedge_format(" router.intervention=%s", c->intervention);
  const char *const parts[] = {c->setting ? c->setting : NULL, c->prior ? "prior" : NULL, c->more,
                               c->more ? "shuffle_seed" : NULL, c->communities ? "communities" : NULL};
  for (size_t i = 0; text && i < 5; i++) {
    if (!parts[i]) continue;
    char *longer = i == 0   ? kedge_format("%s router.%s=%g", text, c->setting, c->strength)
                   : i == 1 ? kedge_format("%s router.prior=priors/%s.safetensors", text, prior)
                   : i == 2 ? kedge_format("%s %s", text, c->more)
                   : i == 3 ? kedge_format("%s router.shuffle_seed=%u", text, s->seed)
                            : kedge_format("%s router.communities=communities/%s.json", text, base + 5);
    kedge_free(text);
    text = longer;
  }
  return text;
}

static kedge_status add_measures(lab_stage *s, const char *base) {
  char *model = kedge_format("work/%s/model", s->id),
       *both = kedge_format("--base bases/%s/model --post work/%s/model", base, s->id),
       *biased =
           kedge_format(" --router-bias bases/%s/model --router-strength %g", base, s->condition->strength);
  kedge_status status = model && both && biased ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) status = add_eval(s, model, "", "eval");
  if (status == KEDGE_OK && s->condition->with_bias) status = add_eval(s, model, biased, "biased");
  if (status == KEDGE_OK) status = add_probes(s, both, "");
  kedge_free(model);
  kedge_free(both);
  kedge_free(biased);
  return status;
}

/* Everything but the shift's samples and the condition is the same for all cells of an arm. */
static kedge_status plan_cell(lab *l, const lab_stage *like, size_t base_at, size_t base_cell, size_t prior) {
  const char *base = l->stages[base_at].id, *name = lab_suite_name(like->shift + KEDGE_CORPUS_DOMAINS);
  lab_stage *s = new_stage(
      l, LAB_CELL,
      kedge_format("%s-%s-%s-%s-s%u", base + 5, name, like->arm->name, like->condition->name, like->seed));
  if (!s) return KEDGE_ERR_MEMORY;
  s->size = l->stages[base_at].size;
  s->base = l->stages[base_at].base;
  s->arm = like->arm;
  s->condition = like->condition;
  s->shift = like->shift;
  s->seed = like->seed;
  s->weight = 0.03 * s->arm->steps + 0.006 * l->preset->items + 4;
  need(s, 0);
  need(s, base_at);
  if (s->condition->prior) need(s, prior);
  if (s->condition->communities) need(s, base_cell);
  char *settings = settings_text(s, l->stages[prior].id, base);
  kedge_status status = settings ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK)
    status = add_step(
        s,
        "train model=bases/%s/model dataset=data/train-%s-s%u.jsonl output_dir=work/%s/model max_length=%d "
        "per_device_train_batch_size=16 max_steps=%u learning_rate=%g lr_scheduler_type=cosine_with_min_lr "
        "min_lr_ratio=0.1 warmup_steps=10 adam_beta2=0.95 logging_steps=10 router_probe_steps=0 "
        "save_strategy=no seed=%u data_seed=%u threads=1%s",
        base, name, s->seed, s->id, LONGEST, s->arm->steps, s->arm->rate, s->seed, s->seed, settings);
  kedge_free(settings);
  if (status == KEDGE_OK) status = add_measures(s, base);
  return status == KEDGE_OK ? add_output(s, "cells/%s.json", s->id) : status;
}

/* All conditions of a base, shift and seed, in each arm. */
static kedge_status plan_block(lab *l, size_t base_at, size_t base_cell, uint32_t shift, uint32_t seed) {
  lab_stage like = {.shift = shift, .seed = seed};
  KEDGE_TRY(plan_prior(l, base_at, shift, seed));
  const size_t prior = l->count - 1;
  const char *at = l->preset->arms;
  for (size_t n; (n = lab_next_name(&at)); at += n) {
    like.arm = lab_arm_find(at, n);
    for (uint32_t c = 0; (like.condition = lab_condition_at(c)); c++)
      if (lab_preset_has(l->preset, like.condition))
        KEDGE_TRY(plan_cell(l, &like, base_at, base_cell, prior));
  }
  return KEDGE_OK;
}

enum { MOST_BASES = 16 };

/* Seed by seed, so that what is there at any time is a smaller study. */
static kedge_status plan_cells(lab *l, const size_t *bases, const size_t *cells, uint32_t count) {
  for (uint32_t seed = 0; seed < l->preset->seeds; seed++)
    for (uint32_t b = 0; b < count; b++)
      for (uint32_t d = 0; d < KEDGE_CORPUS_DOMAINS; d++)
        if (strstr(l->preset->shifts, lab_suite_name(d)))
          KEDGE_TRY(plan_block(l, bases[b], cells[b], d, seed));
  return KEDGE_OK;
}

kedge_status lab_plan(lab *l) {
  size_t bases[MOST_BASES], cells[MOST_BASES];
  uint32_t count = 0;
  KEDGE_TRY(plan_data(l));
  for (uint32_t b = 0; b < l->preset->bases; b++) KEDGE_TRY(plan_mixture(l, b));
  const char *at = l->preset->sizes;
  for (size_t n; (n = lab_next_name(&at)); at += n)
    for (uint32_t b = 0; b < l->preset->bases; b++) {
      KEDGE_TRY(plan_base(l, lab_size_find(at, n), b, 1 + b));
      bases[count++] = l->count - 1;
    }
  for (uint32_t b = 0; b < count; b++) {
    KEDGE_TRY(plan_base_cell(l, bases[b]));
    cells[b] = l->count - 1;
  }
  return plan_cells(l, bases, cells, count);
}

void lab_destroy(lab *l) {
  for (size_t i = 0; i < l->count; i++) {
    lab_stage *s = &l->stages[i];
    for (size_t k = 0; k < s->step_count; k++) kedge_free(s->steps[k]);
    for (size_t k = 0; k < s->input_count; k++) kedge_free(s->inputs[k]);
    for (size_t k = 0; k < s->output_count; k++) kedge_free(s->outputs[k]);
    kedge_free(s->id);
  }
  kedge_free(l->stages);
  l->stages = NULL;
  l->count = l->capacity = 0;
}
