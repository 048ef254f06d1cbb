/* SPDX-License-Identifier: Apache-2.0
 * Made-up studies (studies.h). */
#include "tests/support/studies.h"

#include "tests/support/files.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { DOMAINS = 5, LAYERS = 3, EXPERTS = 16, ITEMS = 1000, STEPS = 20, CONDITIONS = 17 };

static const char *const domains[DOMAINS] = {"arithmetic", "programs", "facts", "logic", "strings"};
static const char *const shifted[DOMAINS] = {"arithS", "programS", "factsS", "logicS", "stringS"};
static const double chances[DOMAINS] = {0.01, 0.05, 0.1, 0.25, 0.01};

/* What a condition does: to OOD and ID, to overlap and NMI, and how even it makes the use of experts. */
typedef struct condition {
  const char *name, *label, *intervention;
  double strength, ood, id, kept, even;
  bool few; /* of the small set */
} condition;

static const condition conditions[CONDITIONS] = {
    {"sft", "SFT", "none", 0, 0, 0, 0, 0, true},
    {"lbl_1e-3", "LBL 1e-3", "lbl", 1e-3, -0.01, 0, -0.02, 0.05, false},
    {"lbl_1e-2", "LBL 1e-2", "lbl", 1e-2, -0.05, 0.01, -0.10, 0.3, true},
    {"lbl_1e-1", "LBL 1e-1", "lbl", 1e-1, -0.10, 0.01, -0.20, 0.7, false},
    {"rpb_0.5", "RPB 0.5", "rpb", 0.5, 0.015, 0, 0.03, 0, false},
    {"rpb_1", "RPB 1", "rpb", 1, 0.03, -0.02, 0.05, 0, true},
    {"rpb_hard", "RPB-hard", "rpb_hard", 1, 0.01, -0.05, 0.06, 0, false},
    {"within_soft", "within-soft", "rpb", 1, 0.01, 0, 0.04, 0, false},
    {"within_hard", "within-hard", "rpb_hard", 1, -0.02, -0.1, 0.04, 0, false},
    {"global_soft", "global-soft", "rpb", 1, -0.01, -0.1, -0.02, 0, false},
    {"global_hard", "global-hard", "rpb_hard", 1, -0.1, -0.2, 0.05, 0, false},
    {"router_l2", "Router-L2", "router_l2", 1e4, 0.025, 0, 0.05, 0, false},
    {"kl", "KL", "kl", 1, 0.02, 0, 0.03, 0, false},
    {"logit_l2", "Logit-L2", "logit_l2", 1, 0.02, 0, 0.03, 0, false},
    {"kl_token", "KL a token", "kl_token", 1, 0.06, 0, 0.08, 0, true},
    {"z_loss", "z-loss", "z_loss", 1e-3, 0, 0, 0, 0, false},
    {"freeze", "freeze", "freeze", 0, 0.02, -0.02, 0.07, 0, false}};

static double noise(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  uint32_t state = (a * 73856093u) ^ (b * 19349663u) ^ (c * 83492791u) ^ (d * 2654435761u);
  for (int i = 0; i < 4; i++) state = (state ^ (state >> 15)) * 0x2c1b3c6du + 0x9e3779b9u;
  return (double)(state >> 8) / (1 << 23) - 1;
}

static double within(double x) {
  return fmin(1, fmax(0, x));
}

static json_t *accuracy(double share, double chance) {
  return json_pack("{s:I, s:i, s:f}", "right", (json_int_t)lround(ITEMS * within(share)), "items", ITEMS,
                   "chance", chance);
}

/* Shares of experts: uneven ones, drawn towards even ones. */
static json_t *use(uint32_t base, uint32_t domain, double even) {
  json_t *layers = json_array();
  for (uint32_t l = 0; l < LAYERS; l++) {
    double shares[EXPERTS], sum = 0;
    json_t *row = json_array();
    for (uint32_t e = 0; e < EXPERTS; e++) sum += shares[e] = exp(2 * noise(base, domain, l, e));
    for (uint32_t e = 0; e < EXPERTS; e++)
      json_array_append_new(row, json_real((1 - even) * shares[e] / sum + even / EXPERTS));
    json_array_append_new(layers, row);
  }
  return layers;
}

/* A place in the study; split: DOMAINS for a base. */
typedef struct place {
  uint32_t size, base, split, arm, condition, seed;
} place;

/* Accuracy, NLL and, for a post-trained cell, what they are on the base's experts. */
static void add_scores(const test_study *s, const place *p, json_t *cell) {
  const condition *c = &conditions[p->condition];
  const bool base = p->split == DOMAINS;
  json_t *right = json_object(), *nll = json_object(), *selection = json_object();
  const double shared = base ? 0 : 0.02 * noise(p->base, p->seed, p->split, 1);
  for (uint32_t d = 0; d < DOMAINS; d++) {
    const double own = s->noise * noise(p->base * 64 + p->size, p->seed, p->condition * 8 + p->split, d + 2);
    const double level = 0.78 + 0.04 * noise(p->base, d, 3, 4), fall = base || d == p->split ? 0 : 0.15;
    const double ood = within(level - fall + (base ? 0 : shared + s->effect * c->ood + own));
    const double trained = base || d != p->split ? 0.05 : within(0.5 + shared + s->effect * c->id + own);
    json_object_set_new(right, domains[d], accuracy(ood, chances[d]));
    json_object_set_new(right, shifted[d], accuracy(trained, chances[d]));
    json_object_set_new(nll, domains[d], json_real(1.5 * (1 - ood)));
    json_object_set_new(nll, shifted[d], json_real(1.5 * (1 - trained)));
    if (base) continue;
    json_object_set_new(selection, domains[d],
                        json_pack("{s:f, s:f, s:[f,f]}", "nll_forced", 1.5 * (1 - ood) - 0.02,
                                  "accuracy_forced", within(ood + 0.01), "nll_rank", 1.5 * (1 - ood) - 0.015,
                                  1.5 * (1 - ood) - 0.004));
  }
  json_object_set_new(cell, "accuracy", right);
  json_object_set_new(cell, "nll", nll);
  if (!base && !strcmp(c->intervention, "rpb"))
    json_object_set_new(cell, "with_bias", json_pack("{s:O, s:O}", "accuracy", right, "nll", nll));
  if (!base) json_object_set(cell, "selection", selection);
  json_decref(selection);
}

static void add_routing(const test_study *s, const place *p, json_t *cell) {
  const condition *c = &conditions[p->condition];
  const bool base = p->split == DOMAINS;
  const double own = 0.2 * s->noise * noise(p->base, p->seed, p->condition * 8 + p->split, 99);
  const double kept = 0.7 + s->effect * c->kept + own;
  json_t *shares = json_object();
  for (uint32_t d = 0; d < DOMAINS; d++)
    json_object_set_new(shares, domains[d],
                        use(p->base, d, base ? 0 : within(0.1 + s->effect * c->even + fabs(own))));
  json_object_set_new(cell, "utilisation", shares);
  if (base) return;
  json_object_set_new(cell, "routing",
                      json_pack("{s:{s:f,s:f,s:f,s:f,s:f}}", "mean", "topk_overlap", within(kept),
                                "top1_overlap", within(kept + 0.05), "gate_overlap", within(kept + 0.02),
                                "tvd", within(1 - kept), "jsd", within(1 - kept) / 4));
  json_object_set_new(cell, "communities",
                      json_pack("{s:{s:f,s:f,s:f}, s:{s:f,s:f,s:f}}", "0.10", "nmi", within(kept - 0.1),
                                "ceiling", 0.85, "floor", 0.3, "0.20", "nmi", within(kept - 0.2), "ceiling",
                                0.75, "floor", 0.2));
}

static void add_training(const place *p, json_t *cell) {
  json_t *steps = json_array(), *losses = json_array();
  for (int i = 0; i < STEPS; i++) {
    json_array_append_new(steps, json_integer(15 * i));
    json_array_append_new(
        losses, json_real(0.6 + 2 * exp(-0.25 * i) + 0.02 * noise(p->base, p->seed, 7, (uint32_t)i)));
  }
  json_object_set_new(cell, "train",
                      json_pack("{s:i, s:i, s:f, s:f, s:{s:o, s:o}}", "steps", 300, "tokens", 210000,
                                "final_loss", 0.61, "seconds_cpu", 9.0, "curve", "step", steps, "loss",
                                losses));
  json_object_set_new(cell, "settings", json_pack("{s:f, s:i}", "learning_rate", 1e-3, "batch_size", 16));
}

static void write_json(const char *path, json_t *value) {
  if (!value || json_dump_file(value, path, JSON_INDENT(1))) fail_msg("%s could not be written", path);
  json_decref(value);
}

static void write_cell(const test_study *s, const char *folder, const place *p) {
  static const char *const sizes[] = {"E16K2", "E32K4"}, *const arms[] = {"short", "long"};
  const bool base = p->split == DOMAINS;
  char id[128], path[1024];
  if (base)
    snprintf(id, sizeof id, "%s-b%u", sizes[p->size], p->base);
  else
    snprintf(id, sizeof id, "%s-b%u-%s-%s-%s-s%u", sizes[p->size], p->base, shifted[p->split], arms[p->arm],
             conditions[p->condition].name, p->seed);
  json_t *cell = json_pack("{s:i, s:s, s:s, s:i, s:s, s:f, s:{s:s, s:s}}", "kedge_lab_cell", 1, "id", id,
                           "size", sizes[p->size], "base", (int)p->base, "condition",
                           base ? "base" : conditions[p->condition].name, "seconds_cpu", base ? 150.0 : 20.0,
                           "hashes", "model", "0123456789abcdef", "config", "fedcba9876543210");
  if (base) {
    json_object_set_new(cell, "audit",
                        json_pack("{s:{s:s,s:s}}", "sharpness", "answer", "undecided", "text", "so so"));
    json_object_set_new(cell, "seed", json_null()), json_object_set_new(cell, "shift", json_null());
  } else {
    json_object_set_new(cell, "shift", json_string(shifted[p->split]));
    json_object_set_new(cell, "arm", json_string(arms[p->arm]));
    json_object_set_new(cell, "seed", json_integer(p->seed));
    add_training(p, cell);
  }
  add_scores(s, p, cell);
  add_routing(s, p, cell);
  snprintf(path, sizeof path, "%s/cells/%s.json", folder, id);
  write_json(path, cell);
}

/* All cells of one size; returns their number. */
static uint32_t write_cells(const test_study *s, const char *folder, uint32_t size) {
  uint32_t count = 0;
  for (uint32_t base = 0; base < s->bases; base++) {
    const place own = {size, base, DOMAINS, 0, 0, 0};
    write_cell(s, folder, &own), count++;
    for (uint32_t arm = 0; arm < s->arms; arm++)
      for (uint32_t split = 0; split < s->splits; split++)
        for (uint32_t c = 0; c < CONDITIONS; c++)
          for (uint32_t seed = 0; (s->all || conditions[c].few) && seed < s->seeds; seed++) {
            /* arithS and stringS come first, as in the study. */
            const place p = {size, base, (uint32_t[]){0, 4, 1, 2, 3}[split], arm, c, seed};
            write_cell(s, folder, &p), count++;
          }
  }
  return count;
}

void test_study_write(const char *folder, const test_study *study) {
  json_t *listed = json_array(), *splits = json_array(), *names = json_array();
  char path[1024];
  uint32_t count = 0;
  test_make_folder(folder);
  snprintf(path, sizeof path, "%s/cells", folder);
  test_make_folder(path);
  for (uint32_t size = 0; size < study->sizes; size++) count += write_cells(study, folder, size);
  for (uint32_t c = 0; c < CONDITIONS; c++) {
    const condition *k = &conditions[c];
    if (!study->all && !k->few) continue;
    const char *label = study->label && !strcmp(k->name, "rpb_1") ? study->label : k->label;
    json_array_append_new(listed,
                          json_pack("{s:s, s:s, s:s, s:s, s:f}", "name", k->name, "label", label,
                                    "intervention", k->intervention, "setting", "", "strength", k->strength));
  }
  for (uint32_t i = 0; i < study->splits; i++)
    json_array_append_new(splits, json_string(shifted[(uint32_t[]){0, 4, 1, 2, 3}[i]]));
  for (uint32_t d = 0; d < DOMAINS; d++) json_array_append_new(names, json_string(domains[d]));
  snprintf(path, sizeof path, "%s/lab.json", folder);
  write_json(path, json_pack("{s:i, s:s, s:{s:i, s:f}, s:i, s:o, s:o, s:o, s:[[s,s],[s,s]], s:s, s:s, s:s}",
                             "kedge_lab", 1, "preset", study->preset, "protocol", "steps", 300,
                             "learning_rate", 1e-3, "cells_expected", (int)count, "conditions", listed,
                             "domains", names, "splits", splits, "primary", "lbl_1e-2", "sft", "rpb_1", "sft",
                             "kedge_version", "0.1.0", "isa", "avx512", "created", "2026-01-01"));
}
