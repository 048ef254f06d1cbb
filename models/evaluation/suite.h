/* SPDX-License-Identifier: Apache-2.0
 *
 * Suites: questions with reference answers, from files of Kedge's own rows and of published benchmarks. Forms
 * are told by the fields of a file's first record (forms.c). Items come one at a time, so that a suite may be
 * larger than memory. Siblings: prompt.h makes the text that a model sees, verdict.h judges what it says.
 */
#ifndef KEDGE_MODELS_EVALUATION_SUITE_H
#define KEDGE_MODELS_EVALUATION_SUITE_H

#include <jansson.h>

#include "models/checkpoint/hash.h"
#include "models/evaluation/extract.h"
#include "models/text/jsonl.h"

enum { KEDGE_MAX_CHOICES = 26 };

/* A question. Texts are the item's; those that a form has not are NULL. */
typedef struct kedge_item {
  kedge_answer_kind kind;
  bool own;  /* a row of Kedge's: its prompt is whole */
  bool fold; /* a and A are the same in its answer */
  char *id;  /* the record's own, or its number in the file from 0 */
  char *domain, *split;
  char *prompt;    /* the question; of own rows the whole prompt as trained */
  char *reference; /* a text that answers it: what the model would say */
  char *answer;    /* what is compared: a number, a text, a letter */
  char *choices[KEDGE_MAX_CHOICES];
  uint32_t choice_count, correct;
  bool listed;         /* the prompt lists the choices, with letters */
  char *lead;          /* of a listed choice: what the reference says before its letter ... */
  char *middle;        /* ... or, after the text of the option, between that and the letter; NULL: no text */
  char *setup, *tests; /* code that runs before and after the model's */
} kedge_item;
void kedge_item_destroy(kedge_item *item);

/* Makes the whole reference of an own row that is answered by text, number or letter its answer. ERR_MEMORY.
 */
kedge_status kedge_item_take_whole(kedge_item *item);

typedef struct kedge_suite_form kedge_suite_form;
/* "gsm8k", ... and what it is, for messages. */
const char *kedge_suite_form_name(const kedge_suite_form *form);

/* A file of a suite. */
typedef struct kedge_suite_file {
  char *path;
  const kedge_suite_form *form;
  uint64_t items; /* records, or the limit */
  char hash[KEDGE_HASH_TEXT];
} kedge_suite_file;

typedef struct kedge_suite {
  kedge_suite_file *files;
  uint32_t count;
  uint64_t items; /* of all files */
  uint64_t code;  /* of these, items whose answers are Python programs */
  uint64_t limit; /* items of a file at most; 0: all */
  int64_t
      order; /* seed that orders the choices of items whose prompts do not list them; below 0: as published */
  /* where reading is */
  uint32_t file;
  uint64_t place, number; /* in the file; in all */
  kedge_jsonl *reader;
  json_t *whole; /* a file that is one object with a list of examples */
  char *memory;  /* what the reader reads, of a file that is not read in pieces */
} kedge_suite;

/* Opens files and folders (every .json and .jsonl in them, also with .gz; sorted by path) and reads all of
 * them once, so that what cannot be read is told before anything runs. Files of folders that are in no known
 * form are told to `notice` (may be NULL) and left out; a file that was named is an error. Errors: ERR_IO;
 * ERR_FORMAT naming file, line and field; ERR_ARGUMENT where nothing is left. Destroy it also after a
 * failure.
 */
kedge_status kedge_suite_open(kedge_suite *suite, const char *const *paths, size_t count, uint64_t limit,
                              int64_t order, kedge_notice notice, void *context);
void kedge_suite_close(kedge_suite *suite);

/* The next item, from {0}; *file is the file that it is of. False at the end. */
kedge_status kedge_suite_next(kedge_suite *suite, kedge_item *item, uint32_t *file, bool *some);
/* Back to the first item. */
void kedge_suite_rewind(kedge_suite *suite);

/* ---- Between suite.c and forms.c */

/* The form of a record; NULL where there is none. */
const kedge_suite_form *kedge__form_detect(json_t *record);
/* Fills an item from a record; `stem` is the file's name without folder and endings. Errors: ERR_FORMAT
 * naming the field. */
kedge_status kedge__form_read(const kedge_suite_form *form, json_t *record, const char *stem, uint64_t number,
                              int64_t order, kedge_item *item);

#endif
