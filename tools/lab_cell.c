/* SPDX-License-Identifier: Apache-2.0
 * The results of a base or of a cell as one JSON object (lab.h), from the files that its steps have left in
 * work/<id>/. What a file does not have is no key; a file that a step should have left is an error. */
#include "models/checkpoint/atomic.h"
#include "tools/lab.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kedge_status read_work(const lab *l, const lab_stage *s, const char *name, json_t **root) {
  char *path = kedge_format("work/%s/%s", s->id, name);
  *root = NULL;
  const kedge_status status = path ? lab_read_json(l, path, root) : KEDGE_ERR_MEMORY;
  kedge_free(path);
  return status;
}

static bool has_step(const lab_stage *s, const char *end) {
  for (size_t i = 0; i < s->step_count; i++) {
    const size_t n = strlen(s->steps[i]), m = strlen(end);
    if (n >= m && !strcmp(s->steps[i] + n - m, end)) return true;
  }
  return false;
}

/* The suite of a group of `kedge eval`; LAB_SUITES for another. */
static uint32_t suite_of(const json_t *group) {
  const char *domain = json_string_value(json_object_get(group, "domain")),
             *split = json_string_value(json_object_get(group, "split"));
  for (uint32_t i = 0; domain && split && i < LAB_SUITES; i++)
    if (!strcmp(domain, lab_suite_name(i % KEDGE_CORPUS_DOMAINS)) &&
        !strcmp(split, kedge_corpus_split_name(lab_suite_split(i))))
      return i;
  return LAB_SUITES;
}

static double chance_of(uint32_t suite) {
  const kedge_corpus_domain *d = kedge_corpus_domain_at(suite % KEDGE_CORPUS_DOMAINS);
  return suite < KEDGE_CORPUS_DOMAINS ? d->chance : d->shifted_chance;
}

/* ---- Accuracy
 * ---------------------------------------------------------------------------------------------------- */

/* "accuracy" and "nll" of `into` from a summary of `kedge eval`. */
static kedge_status put_accuracy(const lab *l, const lab_stage *s, const char *name, json_t *into) {
  json_t *root, *group, *accuracy = json_object(), *nll = json_object();
  size_t i;
  kedge_status status = read_work(l, s, name, &root);
  json_array_foreach(json_object_get(root, "groups"), i, group) {
    const uint32_t suite = suite_of(group);
    if (suite == LAB_SUITES) continue;
    const json_t *share = json_object_get(group, "accuracy"), *loss = json_object_get(group, "nll_per_token");
    const json_int_t right = (json_int_t)(json_number_value(json_object_get(share, "right")) + 0.5);
    json_object_set_new(accuracy, lab_suite_name(suite),
                        json_pack("{s:I, s:I, s:f}", "right", right, "items",
                                  json_integer_value(json_object_get(group, "items")), "chance",
                                  chance_of(suite)));
    if (json_is_number(loss))
      json_object_set_new(nll, lab_suite_name(suite), json_real(json_number_value(loss)));
  }
  if (status == KEDGE_OK && !json_object_size(accuracy))
    status = kedge_fail(KEDGE_ERR_FORMAT, "work/%s/%s: no group of a suite in it", s->id, name);
  json_object_set_new(into, "accuracy", accuracy);
  json_object_set_new(into, "nll", nll);
  json_decref(root);
  return status;
}

/* ---- Routing
 * ----------------------------------------------------------------------------------------------------- */

static const struct {
  const char *from, *to;
} measures[] = {{"topk_overlap_mean", "topk_overlap"},
                {"top1_agreement_mean", "top1_overlap"},
                {"gate_weighted_overlap_mean", "gate_overlap"},
                {"tvd_mean", "tvd"},
                {"jsd_nats_mean", "jsd"}};

static json_t *routing_of(const json_t *retention) {
  json_t *o = json_object();
  for (size_t i = 0; i < sizeof measures / sizeof *measures; i++) {
    const json_t *value = json_object_get(retention, measures[i].from);
    if (json_is_number(value)) json_object_set_new(o, measures[i].to, json_real(json_number_value(value)));
  }
  return o;
}

/* Means over the suites, each counting once. */
static json_t *mean_routing(json_t *routing) {
  json_t *mean = json_object(), *entry;
  const char *key;
  for (size_t i = 0; i < sizeof measures / sizeof *measures; i++) {
    double sum = 0;
    size_t n = 0;
    json_object_foreach(routing, key, entry) {
      const json_t *value = json_object_get(entry, measures[i].to);
      if (!value) continue;
      sum += json_number_value(value);
      n++;
    }
    if (n) json_object_set_new(mean, measures[i].to, json_real(sum / (double)n));
  }
  return mean;
}

static void put_number(json_t *into, const char *name, const json_t *from, const char *key) {
  const json_t *value = json_object_get(from, key);
  if (json_is_number(value)) json_object_set_new(into, name, json_real(json_number_value(value)));
}

/* Likelihoods of the same answers with the model's own experts, the base's, and one rank of the base's. */
static json_t *selection_of(const json_t *from) {
  json_t *o = json_object(), *ranks = json_array(), *rank;
  size_t i;
  put_number(o, "nll_own", json_object_get(from, "post"), "nll_per_token");
  put_number(o, "nll_forced", json_object_get(from, "forced"), "nll_per_token");
  put_number(o, "nll_base", json_object_get(from, "base"), "nll_per_token");
  put_number(o, "nll_converse", json_object_get(from, "converse"), "nll_per_token");
  put_number(o, "accuracy_own", json_object_get(from, "post"), "accuracy");
  put_number(o, "accuracy_forced", json_object_get(from, "forced"), "accuracy");
  json_array_foreach(json_object_get(from, "ranks"), i, rank)
      json_array_append_new(ranks, json_real(json_number_value(json_object_get(rank, "nll_per_token"))));
  json_object_set_new(o, "nll_rank", ranks);
  return o;
}

static kedge_status put_routing(const lab *l, const lab_stage *s, json_t *cell) {
  json_t *root, *routing = json_object(), *selection = json_object(), *domain;
  size_t i;
  const kedge_status status = read_work(l, s, "probe.json", &root);
  json_array_foreach(json_object_get(root, "domains"), i, domain) {
    const char *name = json_string_value(json_object_get(domain, "name"));
    const json_t *retention = json_object_get(domain, "retention"),
                 *chosen = json_object_get(domain, "selection");
    if (name && retention) json_object_set_new(routing, name, routing_of(retention));
    if (name && chosen) json_object_set_new(selection, name, selection_of(chosen));
  }
  if (json_object_size(routing)) {
    json_object_set_new(routing, "mean", mean_routing(routing));
    json_object_set(cell, "routing", routing);
  }
  if (json_object_size(selection)) json_object_set(cell, "selection", selection);
  json_decref(routing);
  json_decref(selection);
  json_decref(root);
  return status;
}

static json_t *median_of(const json_t *from, const char *a, const char *b, const char *what) {
  const json_t *o = a ? json_object_get(from, a) : from;
  return json_object_get(json_object_get(o, b), what);
}

/* At each share of edges: how alike the communities are, how alike those of two halves of the base's own
 * tokens, and those of random graphs with the same degrees. */
static kedge_status put_communities(const lab *l, const lab_stage *s, json_t *cell) {
  json_t *root, *communities = json_object(), *at, *domain;
  size_t i, k;
  const kedge_status status = read_work(l, s, "communities.json", &root);
  json_array_foreach(json_object_get(root, "domains"), k, domain)
      json_array_foreach(json_object_get(json_object_get(domain, "communities"), "by_rho"), i, at) {
    char name[16];
    json_t *o = json_object();
    const json_t *nmi = median_of(at, NULL, "nmi", "median"),
                 *ceiling = median_of(at, "base", "split_half_nmi", "median"),
                 *floor = median_of(at, NULL, "null_nmi", "mean"),
                 *modularity = median_of(at, s->kind == LAB_CELL ? "post" : "base", "modularity", "median"),
                 *null = json_object_get(
                     json_object_get(json_object_get(at, s->kind == LAB_CELL ? "post" : "base"),
                                     "null_modularity"),
                     "mean");
    snprintf(name, sizeof name, "%.2f", json_number_value(json_object_get(at, "rho")));
    if (nmi) json_object_set(o, "nmi", (json_t *)(uintptr_t)nmi);
    if (ceiling) json_object_set(o, "ceiling", (json_t *)(uintptr_t)ceiling);
    if (floor) json_object_set(o, "floor", (json_t *)(uintptr_t)floor);
    if (modularity) json_object_set(o, "modularity", (json_t *)(uintptr_t)modularity);
    if (null) json_object_set(o, "null_modularity", (json_t *)(uintptr_t)null);
    json_object_set_new(communities, name, o);
  }
  if (json_object_size(communities)) json_object_set(cell, "communities", communities);
  json_decref(communities);
  json_decref(root);
  return status;
}

/* Rows of a table of use: a head, then the layer and a share for each expert. */
static kedge_status read_use(const lab *l, const lab_stage *s, const char *suite, json_t **rows) {
  char *name = kedge_format("work/%s/use/utilisation-%s-%s.csv", s->id, suite,
                            s->kind == LAB_CELL ? "post" : "base"),
       *path = name ? lab_path(l, name, NULL) : NULL, *text = NULL, *rest, *line;
  size_t bytes;
  kedge_status status = path ? kedge_file_read(path, 1 << 20, &text, &bytes) : KEDGE_ERR_MEMORY;
  *rows = json_array();
  rest = text;
  for (bool head = true; rest && (line = strsep(&rest, "\n")); head = false) {
    if (head || !*line) continue;
    json_t *row = json_array();
    strsep(&line, ",");
    for (char *cell; (cell = strsep(&line, ","));) json_array_append_new(row, json_real(strtod(cell, NULL)));
    json_array_append_new(*rows, row);
  }
  kedge_free(name);
  kedge_free(path);
  kedge_free(text);
  return status;
}

static kedge_status put_use(const lab *l, const lab_stage *s, json_t *cell) {
  json_t *use = json_object();
  kedge_status status = KEDGE_OK;
  for (uint32_t i = 0; status == KEDGE_OK && i < LAB_SUITES; i++) {
    json_t *rows;
    status = read_use(l, s, lab_suite_name(i), &rows);
    json_object_set_new(use, lab_suite_name(i), rows);
  }
  json_object_set_new(cell, "utilisation", use);
  return status;
}

/* ---- Training
 * ---------------------------------------------------------------------------------------------------- */

static kedge_status read_curve(const lab *l, const char *folder, json_t *steps, json_t *losses) {
  char *name = kedge_format("%s/metrics.jsonl", folder), *path = name ? lab_path(l, name, NULL) : NULL,
       *text = NULL, *rest, *line;
  size_t bytes;
  const kedge_status status = path ? kedge_file_read(path, 16 << 20, &text, &bytes) : KEDGE_ERR_MEMORY;
  rest = text;
  while (rest && (line = strsep(&rest, "\n"))) {
    json_t *o = json_loads(line, 0, NULL), *step = json_object_get(o, "step"),
           *loss = json_object_get(o, "train/loss");
    if (json_is_integer(step) && json_is_number(loss)) {
      json_array_append(steps, step);
      json_array_append(losses, loss);
    }
    json_decref(o);
  }
  kedge_free(name);
  kedge_free(path);
  kedge_free(text);
  return status;
}

/* The word after KEY= in a command line, as new memory; NULL: none. */
static char *value_of(const char *line, const char *key) {
  const size_t n = strlen(key);
  for (const char *at = line; (at = strstr(at, key)); at += n)
    if ((at == line || at[-1] == ' ') && at[n] == '=') {
      char *text = kedge_strdup(at + n + 1);
      if (text) text[strcspn(text, " ")] = 0;
      return text;
    }
  return NULL;
}

static const char *train_line(const lab_stage *s) {
  for (size_t i = 0; i < s->step_count; i++)
    if (!strncmp(s->steps[i], "train ", 6)) return s->steps[i];
  return NULL;
}

/* All KEY=VALUE of the command line, as texts. */
static json_t *settings_of(const char *line) {
  json_t *o = json_object();
  for (const char *at = line; *at; at += strcspn(at, " ") + (at[strcspn(at, " ")] == ' ')) {
    const size_t n = strcspn(at, " "), key = strcspn(at, "=");
    if (key < n) {
      char *name = kedge_format("%.*s", (int)key, at);
      if (name) json_object_set_new(o, name, json_stringn(at + key + 1, n - key - 1));
      kedge_free(name);
    }
  }
  return o;
}

static void put_hash(const lab *l, json_t *hashes, const char *name, const char *file) {
  char text[KEDGE_HASH_TEXT], *path = file ? lab_path(l, file, NULL) : NULL;
  if (path && kedge_hash_file(path, text) == KEDGE_OK) json_object_set_new(hashes, name, json_string(text));
  kedge_free(path);
}

/* "settings", "hashes" and "train", from the stage that trained: the base's own for a base. */
static kedge_status put_training(const lab *l, const lab_stage *s, const lab_stage *trained, json_t *cell) {
  const char *line = train_line(trained);
  char *folder = value_of(line, "output_dir"), *base = value_of(line, "model"),
       *data = value_of(line, "dataset"), *prior = value_of(line, "router.prior"),
       *steps = value_of(line, "max_steps"), *weights = kedge_format("%s/model.safetensors", folder),
       *base_weights = kedge_format("%s/model.safetensors", base);
  json_t *hashes = json_object(), *curve_steps = json_array(), *losses = json_array();
  kedge_status status = folder && steps ? read_curve(l, folder, curve_steps, losses) : KEDGE_ERR_MEMORY;
  if (s->kind == LAB_CELL) put_hash(l, hashes, "base", base_weights);
  put_hash(l, hashes, "model", weights);
  put_hash(l, hashes, "data", data);
  put_hash(l, hashes, "prior", prior);
  json_object_set_new(hashes, "config", json_string(s->key));
  json_object_set_new(cell, "settings", settings_of(line));
  json_object_set_new(cell, "hashes", hashes);
  const size_t count = json_array_size(losses);
  json_t *train = json_pack("{s:I, s:{s:o, s:o}}", "steps", (json_int_t)(steps ? atoll(steps) : 0), "curve",
                            "step", curve_steps, "loss", losses);
  if (train && count) json_object_set(train, "final_loss", json_array_get(losses, count - 1));
  if (train && s->kind == LAB_CELL) json_object_set_new(train, "seconds_cpu", json_real(s->train_cpu));
  json_object_set_new(cell, "train", train);
  char *const texts[] = {folder, base, data, prior, steps, weights, base_weights};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) kedge_free(texts[i]);
  return status;
}

/* ---- The whole
 * --------------------------------------------------------------------------------------------------- */

static json_t *head(const lab_stage *s) {
  if (s->kind == LAB_BASE_CELL)
    return json_pack("{s:i, s:s, s:s, s:I, s:n, s:n, s:s, s:n}", "kedge_lab_cell", 1, "id", s->id, "size",
                     s->size->name, "base", (json_int_t)s->base, "shift", "arm", "condition", "base", "seed");
  return json_pack("{s:i, s:s, s:s, s:I, s:s, s:s, s:s, s:I}", "kedge_lab_cell", 1, "id", s->id, "size",
                   s->size->name, "base", (json_int_t)s->base, "shift",
                   lab_suite_name(s->shift + KEDGE_CORPUS_DOMAINS), "arm", s->arm->name, "condition",
                   s->condition->name, "seed", (json_int_t)s->seed);
}

/* The verdicts of the audit, for a base. */
static kedge_status put_audit(const lab *l, const lab_stage *s, json_t *cell) {
  json_t *audit;
  char *name = kedge_format("audits/%s.json", s->id);
  const kedge_status status = name ? lab_read_json(l, name, &audit) : KEDGE_ERR_MEMORY;
  kedge_free(name);
  if (status != KEDGE_OK) return status;
  const json_t *verdicts = json_object_get(audit, "verdicts");
  if (verdicts) json_object_set(cell, "audit", (json_t *)(uintptr_t)verdicts);
  json_decref(audit);
  return KEDGE_OK;
}

kedge_status lab_cell_json(const lab *l, const lab_stage *s, json_t **cell) {
  const lab_stage *trained = s->kind == LAB_CELL ? s : &l->stages[s->needs[1]];
  json_t *o = head(s), *biased = json_object();
  kedge_status status = o && biased ? put_training(l, s, trained, o) : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) status = put_accuracy(l, s, "eval.json", o);
  if (status == KEDGE_OK && has_step(s, "biased.json")) {
    status = put_accuracy(l, s, "biased.json", biased);
    json_object_set(o, "with_bias", biased);
  }
  if (status == KEDGE_OK && s->kind == LAB_CELL) status = put_routing(l, s, o);
  if (status == KEDGE_OK) status = put_communities(l, s, o);
  if (status == KEDGE_OK) status = put_use(l, s, o);
  if (status == KEDGE_OK && s->kind == LAB_BASE_CELL) status = put_audit(l, s, o);
  if (status == KEDGE_OK) json_object_set_new(o, "seconds_cpu", json_real(s->cpu));
  json_decref(biased);
  if (status != KEDGE_OK) {
    json_decref(o);
    o = NULL;
  }
  *cell = o;
  return status;
}
