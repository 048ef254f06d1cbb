/* SPDX-License-Identifier: Apache-2.0
 *
 * What a study left in its folder: lab.json and one file a cell, a cell being one post-trained model or a
 * base itself. study.c reads the folder, cell.c a cell's file, measures.c makes the measures of measures.def
 * of it; contrast.h compares conditions.
 */
#ifndef KEDGE_MODELS_REPORT_STUDY_H
#define KEDGE_MODELS_REPORT_STUDY_H

#include "models/retention/audit.h"

#include <jansson.h>

#define KEDGE_STUDY_NONE UINT32_MAX

/* Texts, each once, in the order of their first appearance. */
typedef struct kedge_names {
  char **at;
  uint32_t count;
} kedge_names;

typedef struct kedge_study_condition {
  char *name, *label;
  double strength; /* NaN: none */
  char *settings;  /* of its first cell, as JSON; NULL: not known */
} kedge_study_condition;

enum { KEDGE_STUDY_RANKS = 16, KEDGE_STUDY_HASHES = 5 };
typedef enum kedge_study_routing {
  KEDGE_ROUTING_TOPK,
  KEDGE_ROUTING_TOP1,
  KEDGE_ROUTING_GATE,
  KEDGE_ROUTING_TVD,
  KEDGE_ROUTING_JSD,
  KEDGE_ROUTINGS
} kedge_study_routing;

/* A cell's results on one test set. NaN: absent. */
typedef struct kedge_study_score {
  uint32_t key; /* of study->keys */
  double right, items, chance, nll;
  double bias_right, bias_items, bias_nll; /* with the training bias on */
  double routing[KEDGE_ROUTINGS];
  /* Where selection was looked at, maybe on fewer items than above: as it is, the base as it is, the model on
   * the base's experts, the base on the model's. */
  double own_nll, own_accuracy, base_nll, forced_nll, forced_accuracy, converse_nll;
  double rank_nll[KEDGE_STUDY_RANKS]; /* with one rank's experts from the base */
  uint32_t ranks;
  uint32_t layers, experts;
  float *use; /* [layers][experts], shares of the selections; NULL: absent */
} kedge_study_score;

typedef struct kedge_study_cell {
  char *id;
  uint32_t size, base, condition; /* condition: KEDGE_STUDY_NONE for a base */
  uint32_t shift, arm, seed;      /* KEDGE_STUDY_NONE for a base */
  kedge_study_score *scores;
  uint32_t score_count;
  double routing[KEDGE_ROUTINGS];      /* the file's own means, NaN: absent */
  double nmi[2], ceiling[2], floor[2]; /* at rho .10 and .20 */
  double steps, final_loss, train_seconds, seconds;
  double *curve_step, *curve_loss;
  uint32_t curve_count;
  bool audited; /* of a base: the audit's answers are known */
  kedge_audit_answer audit[KEDGE_AUDIT_QUESTIONS];
  char *hashes[KEDGE_STUDY_HASHES]; /* base, prior, data, model, config; NULL: absent */
} kedge_study_cell;

typedef struct kedge_study {
  char *folder;
  char *preset, *version, *isa, *created; /* "" where absent */
  char *protocol;                         /* as indented JSON; NULL: absent */
  double cells_expected;                  /* NaN: not told */
  kedge_study_condition *conditions;
  uint32_t condition_count;
  uint32_t (*primary)[2]; /* conditions: first less second */
  uint32_t primary_count;
  kedge_names domains, shifts, sizes, arms, keys; /* keys: of domains and of their shifted splits */
  kedge_study_cell *cells;       /* by size, base, bases first, arm, shift, condition, seed */
  uint32_t cell_count, left_out; /* left_out: of conditions that lab.json does not name */
} kedge_study;

/* Reads `folder`. Missing cells, and missing parts of cells, are no error. ERR_FORMAT names file and place;
 * ERR_IO; ERR_MEMORY. Destroy it whatever was returned. */
kedge_status kedge_study_read(kedge_study *study, const char *folder);
void kedge_study_destroy(kedge_study *study);

/* KEDGE_STUDY_NONE where there is none. */
uint32_t kedge_names_find(const kedge_names *names, const char *text);
uint32_t kedge_study_condition_find(const kedge_study *study, const char *name);
const kedge_study_cell *kedge_study_base(const kedge_study *study, uint32_t size, uint32_t base);
const kedge_study_cell *kedge_study_find(const kedge_study *study, const kedge_study_cell *like);
const kedge_study_score *kedge_study_score_of(const kedge_study_cell *cell, uint32_t key);
/* The key of a domain's original test. */
uint32_t kedge_study_domain_key(const kedge_study *study, uint32_t domain);
/* The domain of a shifted split, whose name is the beginning of the domain's with an S: "arithS". */
uint32_t kedge_study_domain_of(const kedge_study *study, const char *shifted);

/* ---- Measures
 * --------------------------------------------------------------------------------------------------- */

typedef enum kedge_measure {
#define KEDGE_MEASURE(name, key, title, kind, tested, text) KEDGE_MEASURE_##name,
#include "models/report/measures.def"
#undef KEDGE_MEASURE
  KEDGE_MEASURES
} kedge_measure;
typedef enum kedge_measure_kind { KEDGE_KIND_SHARE, KEDGE_KIND_NATS, KEDGE_KIND_REAL } kedge_measure_kind;

typedef struct kedge_measure_row {
  const char *key, *title;
  kedge_measure_kind kind;
  bool tested;
  const char *text;
} kedge_measure_row;
const kedge_measure_row *kedge_measure_get(kedge_measure measure);

/* A measure of a cell whose trained split is `shift` (the cell's own; for a base, any). NaN: not known. */
double kedge_study_measure(const kedge_study *study, const kedge_study_cell *cell, uint32_t shift,
                           kedge_measure measure);

/* ---- Between the files
 * ------------------------------------------------------------------------------------------------ */

/* Adds a text unless it is there; its number in *at. ERR_MEMORY. */
kedge_status kedge__names_add(kedge_names *names, const char *text, uint32_t *at);
/* Members of JSON objects; `where` names the object in messages. An absent or null number is NaN, an absent
 * text NULL. ERR_FORMAT for another type, a number beyond 1e12, a text over 400 bytes. */
kedge_status kedge__study_number(const json_t *object, const char *key, const char *where, double *value);
kedge_status kedge__study_text(const json_t *object, const char *key, const char *where, char **text);
/* An absent object is NULL. */
kedge_status kedge__study_object(const json_t *object, const char *key, const char *where,
                                 const json_t **found);
/* Reads a cell. *known: its condition is one of the study's; else the cell is empty. */
kedge_status kedge__study_cell_read(kedge_study *study, const char *path, kedge_study_cell *cell,
                                    bool *known);
void kedge__study_cell_destroy(kedge_study_cell *cell);

#endif
