/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of `kedge lab` (lab.c): what a study is (lab_presets.c), the stages that it takes (lab_plan.c),
 * what is known of each in the study's folder (lab_record.c), running them in child processes (lab_jobs.c),
 * and the file of results of a cell (lab_cell.c). docs/study.md has the protocol.
 *
 * A stage is a few sub-commands, one after the other, each in a process of one thread whose working folder is
 * the study's. Its key is a hash of their command lines, of the files it names as inputs and of the outputs
 * of the stages it needs; it is finished where a record of that key stands, with the same outputs. */
#ifndef KEDGE_TOOLS_LAB_H
#define KEDGE_TOOLS_LAB_H

#include "models/checkpoint/hash.h"
#include "models/text/corpus.h"

#include <jansson.h>
#include <sys/types.h>

enum { LAB_MAX_STEPS = 96, LAB_MAX_NEEDS = 6, LAB_MAX_FILES = 64, LAB_SUITES = 2 * KEDGE_CORPUS_DOMAINS };

/* ---- lab_presets.c: the protocol ---- */

/* A way of post-training. */
typedef struct lab_condition {
  const char *name, *label; /* "lbl_1e-2", "LBL 0.01" */
  const char *intervention; /* of routers.def */
  const char *setting;      /* the key that its strength is of; NULL: none */
  double strength;
  const char *more;                   /* further settings, by blanks; NULL: none */
  bool prior, communities, with_bias; /* what it reads; whether it is also evaluated with its bias */
} lab_condition;

typedef struct lab_size {
  const char *name;
  uint32_t hidden, layers, heads, head, experts, top, width; /* head, width: of a head, of an expert */
} lab_size;

typedef struct lab_arm {
  const char *name;
  uint32_t steps;
  double rate;
} lab_arm;

typedef struct lab_preset {
  const char *name, *remark;
  const char *sizes, *shifts, *arms, *conditions; /* names, by blanks; NULL conditions: all */
  uint32_t bases, seeds;
  uint32_t pretrain_steps, pretrain_batch, samples; /* samples: of a shifted split */
  uint32_t items, probe_rows;                       /* of each suite: to evaluate, to probe */
  double pretrain_rate;
} lab_preset;

const lab_preset *lab_preset_find(const char *name); /* NULL: none */
const lab_condition *lab_condition_at(uint32_t index);
const lab_size *lab_size_find(const char *name, size_t length);
const lab_arm *lab_arm_find(const char *name, size_t length);
/* The next of names by blanks: its length, 0 at the end; *at moves to it. */
size_t lab_next_name(const char **at);
/* Whether a preset has the condition. */
bool lab_preset_has(const lab_preset *preset, const lab_condition *condition);
/* A suite's name, "arithmetic" to "stringS", and its domain and split. */
const char *lab_suite_name(uint32_t suite);
kedge_corpus_split lab_suite_split(uint32_t suite);
/* What lab.json says of the study: everything that is fixed. NULL without memory. */
json_t *lab_describe(const lab_preset *preset);
/* config.json of a base of this size, new memory; NULL without. */
char *lab_config_text(const lab_size *size);

/* ---- Stages ---- */

typedef enum lab_kind { LAB_DATA, LAB_BASE, LAB_BASE_CELL, LAB_PRIOR, LAB_CELL, LAB_KINDS } lab_kind;

typedef enum lab_state {
  LAB_WAITING, /* for what it needs */
  LAB_READY,
  LAB_RUNNING,
  LAB_FINISHED,
  LAB_FAILED, /* or needs one that has failed */
  LAB_STOPPED
} lab_state;

typedef struct lab_stage {
  lab_kind kind;
  char *id;
  char *steps[LAB_MAX_STEPS]; /* command lines without the program, words by single blanks */
  size_t step_count;
  size_t needs[LAB_MAX_NEEDS], need_count; /* stages, all before this one */
  char *inputs[LAB_MAX_FILES];             /* files that no stage makes */
  size_t input_count;
  char *outputs[LAB_MAX_FILES]; /* of a cell: the one file of results */
  size_t output_count;
  double weight; /* core-seconds that it may take */
  /* of bases and cells */
  const lab_size *size;
  const lab_arm *arm;
  const lab_condition *condition;
  uint32_t base, shift, seed; /* shift: a domain */
  /* what is known */
  lab_state state;
  char key[KEDGE_HASH_TEXT], content[KEDGE_HASH_TEXT]; /* content: of the outputs */
  bool reused;                                         /* it was finished before */
  /* while it runs */
  size_t step;
  pid_t process;
  double began, before;  /* when; the part that an earlier call had done */
  double cpu, train_cpu; /* processor seconds, all and of training */
} lab_stage;

typedef struct lab {
  const lab_preset *preset;
  const char *out;
  int64_t jobs;
  bool keep;
  lab_stage *stages;
  size_t count, capacity;
  char program[KEDGE_HASH_TEXT]; /* of the program and its library; set by lab_folder */
} lab;

/* ---- lab_plan.c ---- */

/* All stages of the preset, in the order in which they are begun. */
kedge_status lab_plan(lab *l);
void lab_destroy(lab *l);

/* ---- lab_record.c ---- */

/* Makes or checks the folder: lab.json and the configurations. ERR_ARGUMENT for a folder of other things,
 * ERR_MISMATCH for one of another study, or of this one by another build or on other instructions. */
kedge_status lab_folder(lab *l);
/* Looks whether a waiting stage can begin, or is finished: sets state, key and content. */
kedge_status lab_look(lab *l, size_t index);
/* Notes the end of a stage: its record, or a cell's file of results; the working folder is removed. */
kedge_status lab_finish(lab *l, size_t index);
/* Readies the working folder: emptied, but for a base that goes on from a checkpoint (*goes_on). Earlier
 * results of the stage are removed. ERR_MISMATCH where the program was replaced meanwhile. */
kedge_status lab_begin(lab *l, size_t index, bool *goes_on);
/* "<out>/<a>", or with b "<out>/<a>/<b>"; NULL without memory. */
char *lab_path(const lab *l, const char *a, const char *b);
/* A JSON file of the study of at most 64 MiB. */
kedge_status lab_read_json(const lab *l, const char *name, json_t **root);

/* ---- lab_cell.c ---- */

/* The results of a base or cell, from what its steps have left in its working folder. */
kedge_status lab_cell_json(const lab *l, const lab_stage *stage, json_t **cell);

/* ---- lab_jobs.c ---- */

/* Runs what is not finished. A stage that fails is told, and what needs it is left out: *failed counts both.
 * ERR_INTERRUPTED after a signal, when all children have ended. */
kedge_status lab_go(lab *l, size_t *failed);
/* One sub-command that prints where this one does; *code is its exit status. argv[0] is set here. */
kedge_status lab_call(char **argv, int *code);

#endif
