/* SPDX-License-Identifier: Apache-2.0
 *
 * The samples of an evaluation: a file that only grows, and their sums by domain and split. Rows come in the
 * order of items and repeats, so that a run that was ended goes on where the file ends, and sums are the same
 * to the last bit.
 */
#ifndef KEDGE_MODELS_EVALUATION_RECORD_H
#define KEDGE_MODELS_EVALUATION_RECORD_H

#include <jansson.h>
#include <stdio.h>

#include "models/checkpoint/hash.h"
#include "models/evaluation/extract.h"

/* Sums over the samples of a domain and split. */
typedef struct kedge_eval_group {
  char *domain, *split;
  uint64_t items, samples;       /* samples: items times repeats */
  double right;                  /* samples that are right */
  uint64_t choices;              /* samples of choices that have a likelihood ... */
  double likelihood, normalised; /* ... and are right by it, and by it over the bytes of an option */
  uint64_t letters;              /* samples of choices that were generated ... */
  double lettered;               /* ... and are right */
  double nll;                    /* nats over the tokens of reference answers */
  uint64_t nll_tokens;
} kedge_eval_group;

/* How a sample's tokens were found. */
typedef enum kedge_eval_path {
  KEDGE_PATH_TOLD,       /* all by the reference's pass, or enough of them for a verdict */
  KEDGE_PATH_CONTINUED,  /* the first ones by it, the others by decoding */
  KEDGE_PATH_DECODED,    /* by decoding from the prompt on */
  KEDGE_PATH_LIKELIHOOD, /* none: options were scored */
  KEDGE_PATHS
} kedge_eval_path;
const char *kedge_eval_path_name(kedge_eval_path path);

typedef struct kedge_eval_summary {
  kedge_eval_group *groups;
  uint32_t group_count;
  uint64_t samples, resumed; /* in all; of them, read from the file of an earlier run */
  uint64_t repeats;
  uint64_t paths[KEDGE_PATHS];
  uint64_t tokens;      /* new ones */
  uint64_t cut_prompts; /* samples whose prompts were cut at their beginning */
  uint64_t unstopped;   /* samples that reached the largest number of new tokens */
  char settings[KEDGE_HASH_TEXT];
} kedge_eval_summary;
void kedge_eval_summary_destroy(kedge_eval_summary *summary);

/* Share of right ones and its interval, over items (an item's samples are not independent). */
void kedge_eval_share(const kedge_eval_group *group, double right, uint64_t samples, double *share,
                      double *low, double *high);

/* The summary as JSON: settings, groups, sums over all of them. NULL without memory. Owned by the caller. */
json_t *kedge_eval_summary_json(const kedge_eval_summary *summary);

/* Adds a row to the sums. Errors: ERR_FORMAT for one that lacks a field; ERR_MEMORY. */
kedge_status kedge_eval_count(kedge_eval_summary *summary, const json_t *row);

/* The file. */
typedef struct kedge_eval_record {
  FILE *file; /* NULL: none is kept */
  char *path;
  uint64_t rows; /* whole rows in it */
} kedge_eval_record;

/* Opens <folder>/items.jsonl, or begins it with a row of `settings`; `folder` NULL keeps no file. Rows that
 * are there are counted into the summary; a last line without an end is taken off. Errors: ERR_ARGUMENT where
 * it has other settings or another process writes it; ERR_FORMAT; ERR_IO. Close it also after a failure. */
kedge_status kedge_eval_record_open(kedge_eval_record *record, const char *folder, const json_t *settings,
                                    kedge_eval_summary *summary);
kedge_status kedge_eval_record_add(kedge_eval_record *record, const json_t *row);
kedge_status kedge_eval_record_flush(kedge_eval_record *record);
void kedge_eval_record_close(kedge_eval_record *record);

#endif
