/* SPDX-License-Identifier: Apache-2.0
 *
 * Generated corpora: what a study, a demonstration or a test can train and be tested on without any download.
 * Domains differ in words and in what must be learnt, so that their routing can be told apart. Every row has
 * a prompt, a completion with a short worked answer, and the answer by itself; docs/corpora.md shows them.
 * Siblings: corpus.c (splits, mixture, JSON), corpus_<domain>.c (what is asked), program.h (the language of
 * "programs").
 */
#ifndef KEDGE_MODELS_TEXT_CORPUS_H
#define KEDGE_MODELS_TEXT_CORPUS_H

#include <stdio.h>

#include "core/kedge.h"

/* In a fixed order: "arithmetic", "programs", "facts", "logic", "strings". */
enum { KEDGE_CORPUS_DOMAINS = 5 };

typedef struct kedge_corpus_domain {
  const char *name;    /* "arithmetic" */
  const char *shifted; /* name of its shifted form: "arithS" */
  const char *about;   /* a line */
  /* The share of the most common answer among the rows of the test split and of shift-test, in multiple
   * choice one over the number of choices: what a model scores that knows the answers and not the questions.
   */
  double chance, shifted_chance;
} kedge_corpus_domain;

/* NULL past the end. */
const kedge_corpus_domain *kedge_corpus_domain_at(uint32_t index);
/* By its name; ERR_ARGUMENT lists the names. */
kedge_status kedge_corpus_domain_find(const char *name, uint32_t *index);

/* The test splits have the format of their training split and no question of it; the shifted ones are harder
 * and worded otherwise. */
typedef enum kedge_corpus_split {
  KEDGE_CORPUS_TRAIN,       /* "train" */
  KEDGE_CORPUS_TEST,        /* "test" */
  KEDGE_CORPUS_SHIFT_TRAIN, /* "shift-train" */
  KEDGE_CORPUS_SHIFT_TEST,  /* "shift-test" */
  KEDGE_CORPUS_SPLITS
} kedge_corpus_split;

const char *kedge_corpus_split_name(kedge_corpus_split split);
/* ERR_ARGUMENT lists the names. */
kedge_status kedge_corpus_split_find(const char *name, kedge_corpus_split *split);

/* Writes `count` lines to `file`, borrowed: {"prompt", "completion", "answer", "domain", "split"}, and
 * "choices" (a list of texts, lettered from A) where the answer is a letter. Texts are printable ASCII and
 * line breaks. Row i depends on domain, split, seed and i alone, so that a longer corpus begins with a
 * shorter one. No prompt of a test split is in the training split of its form, whatever the seeds: a
 * question's own hash says on which side it is. The world of "facts" is the same for every seed. Errors:
 * ERR_ARGUMENT for `domain` out of range, ERR_IO. */
kedge_status kedge_corpus_generate(uint32_t domain, kedge_corpus_split split, uint64_t seed, uint64_t count,
                                   FILE *file);

/* The stream for pretraining: every 500 rows have 99 of each domain's training split and one of its shifted
 * training split, in random order. Row i depends on seed and i alone. counts[domain][split] (may be NULL)
 * gets the numbers of rows written. Errors: ERR_IO. */
kedge_status kedge_corpus_mixture(uint64_t seed, uint64_t count, FILE *file,
                                  uint64_t counts[KEDGE_CORPUS_DOMAINS][KEDGE_CORPUS_SPLITS]);

#endif
