/* SPDX-License-Identifier: Apache-2.0
 * `kedge corpus`: generated training data (models/text/corpus.h) as JSON Lines. */
#include "models/text/corpus.h"
#include "models/checkpoint/atomic.h"
#include "tools/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* stdio onto a file that appears whole or not at all. */
static ssize_t write_out(void *cookie, const char *data, size_t bytes) {
  return kedge_outfile_write(cookie, data, bytes) == KEDGE_OK ? (ssize_t)bytes : 0;
}

typedef struct corpus_options {
  const char *domain, *split, *out;
  int64_t count, seed;
  bool mixture, list;
} corpus_options;

/* What is asked for, read. */
typedef struct corpus_wish {
  uint32_t domain;
  kedge_corpus_split split;
  uint64_t seed, count;
  bool mixture;
  uint64_t counts[KEDGE_CORPUS_DOMAINS][KEDGE_CORPUS_SPLITS];
} corpus_wish;

static kedge_status generate(corpus_wish *w, FILE *file) {
  return w->mixture ? kedge_corpus_mixture(w->seed, w->count, file, w->counts)
                    : kedge_corpus_generate(w->domain, w->split, w->seed, w->count, file);
}

static kedge_status generate_file(corpus_wish *w, const char *path) {
  kedge_outfile *out;
  KEDGE_TRY(kedge_outfile_open(path, &out));
  FILE *file = fopencookie(out, "w", (cookie_io_functions_t){.write = write_out});
  kedge_status status =
      file ? generate(w, file) : kedge_fail(KEDGE_ERR_MEMORY, "out of memory while opening %s", path);
  if (file && fclose(file) && status == KEDGE_OK)
    status = kedge_fail(KEDGE_ERR_IO, "%s: writing failed: %s", path, kedge_message());
  if (status == KEDGE_OK) return kedge_outfile_commit(out);
  kedge_outfile_discard(out);
  return status;
}

static void print_counts(const corpus_wish *w) {
  for (uint32_t d = 0; d < KEDGE_CORPUS_DOMAINS; d++)
    for (int s = 0; s < KEDGE_CORPUS_SPLITS; s++)
      if (w->counts[d][s])
        printf("  %-11s %-11s %llu\n", kedge_corpus_domain_at(d)->name,
               kedge_corpus_split_name((kedge_corpus_split)s), (unsigned long long)w->counts[d][s]);
}

static kedge_status run(const corpus_options *o) {
  corpus_wish w = {.seed = (uint64_t)o->seed, .count = (uint64_t)o->count, .mixture = o->mixture};
  if (o->mixture && (o->domain || o->split))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "--mixture is of all domains: no --domain or --split with it");
  if (!o->mixture && !o->domain) return kedge_fail(KEDGE_ERR_ARGUMENT, "--domain or --mixture is needed");
  if (!o->out) return kedge_fail(KEDGE_ERR_ARGUMENT, "--out is needed");
  if (o->domain) KEDGE_TRY(kedge_corpus_domain_find(o->domain, &w.domain));
  if (o->split) KEDGE_TRY(kedge_corpus_split_find(o->split, &w.split));
  if (!strcmp(o->out, "-")) return generate(&w, stdout);
  KEDGE_TRY(generate_file(&w, o->out));
  printf("%s: %llu samples of %s, %s\n", o->out, (unsigned long long)o->count,
         o->mixture ? "all domains" : o->domain, o->mixture ? "mixed" : kedge_corpus_split_name(w.split));
  print_counts(&w);
  return KEDGE_OK;
}

/* The end of the help: every split with its first row. */
static char *examples(void) {
  char *text = NULL;
  size_t size;
  FILE *file = open_memstream(&text, &size);
  if (!file) return NULL;
  fprintf(file, "The first row of each domain and split (seed 0):\n");
  for (uint32_t d = 0; d < KEDGE_CORPUS_DOMAINS; d++)
    for (int s = 0; s < KEDGE_CORPUS_SPLITS; s++)
      if (kedge_corpus_generate(d, (kedge_corpus_split)s, 0, 1, file) != KEDGE_OK) break;
  char *copy = fclose(file) ? NULL : kedge_strdup(text);
  free(text);
  return copy;
}

int command_corpus(int argc, char **argv) {
  corpus_options o = {.count = 1000};
  const cli_option options[] = {
      {"--domain", CLI_TEXT, &o.domain, "NAME", "arithmetic, programs, facts, logic or strings", false, 0, 0},
      {"--split", CLI_TEXT, &o.split, "NAME", "train, test, shift-train or shift-test (train)", false, 0, 0},
      {"--mixture", CLI_FLAG, &o.mixture, NULL,
       "all domains' train in equal parts, with 1 % of their shift-train", false, 0, 0},
      {"--out", CLI_TEXT, &o.out, "FILE", "JSON Lines file to write, - for standard output", false, 0, 0},
      {"--count", CLI_INT, &o.count, "N", "samples (1000)", false, 1, 1e12},
      {"--seed", CLI_INT, &o.seed, "N", "seed (0)", false, 0, 0x1p53},
      {"--list", CLI_FLAG, &o.list, NULL, "list the domains", false, 0, 0}};
  const cli_spec spec = {
      .command = "corpus",
      .synopsis = "",
      .summary = "Writes generated samples with prompts, short worked completions and answers, for studies "
                 "and tests\n"
                 "without a download. A sample depends on domain, split, seed and its number alone; no "
                 "question of a\n"
                 "test split is in its training split. The shifted splits are harder and worded otherwise.",
      .options = options,
      .option_count = sizeof options / sizeof *options,
      .examples = "kedge corpus --list\n"
                  "kedge corpus --domain arithmetic --count 2000 --seed 1 --out train.jsonl\n"
                  "kedge corpus --domain arithmetic --split shift-test --out test.jsonl\n"
                  "kedge corpus --mixture --count 96000 --out mixture.jsonl",
      .more = examples};
  cli_list arguments;
  int code;
  if (!cli_parse(&spec, argc, argv, &arguments, &code)) return code;
  if (!o.list) return cli_finish("corpus", run(&o));
  for (uint32_t i = 0; i < KEDGE_CORPUS_DOMAINS; i++) {
    const kedge_corpus_domain *d = kedge_corpus_domain_at(i);
    printf("%-11s %-9s %s\n", d->name, d->shifted, d->about);
  }
  return cli_finish("corpus", KEDGE_OK);
}
