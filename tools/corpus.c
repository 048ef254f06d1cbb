/* SPDX-License-Identifier: Apache-2.0
 * `kedge corpus`: generated training data (models/text/corpus.h) as JSON Lines. */
#include "models/text/corpus.h"
#include "models/checkpoint/atomic.h"
#include "tools/cli.h"

#include <stdio.h>
#include <string.h>

/* stdio onto a file that appears whole or not at all. */
static ssize_t write_out(void *cookie, const char *data, size_t bytes) {
  return kedge_outfile_write(cookie, data, bytes) == KEDGE_OK ? (ssize_t)bytes : 0;
}

static kedge_status check_domain(const char *domain) {
  for (uint32_t i = 0; kedge_corpus_domain(i, NULL); i++)
    if (!strcmp(kedge_corpus_domain(i, NULL), domain)) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_ARGUMENT, "--domain: there is no \"%.40s\"; see `kedge corpus --list`", domain);
}

static kedge_status generate_file(const char *domain, uint64_t seed, uint64_t count, const char *path) {
  kedge_outfile *out;
  KEDGE_TRY(kedge_outfile_open(path, &out));
  FILE *file = fopencookie(out, "w", (cookie_io_functions_t){.write = write_out});
  kedge_status status = file ? kedge_corpus_generate(domain, seed, count, file)
                             : kedge_fail(KEDGE_ERR_MEMORY, "out of memory while opening %s", path);
  if (file && fclose(file) && status == KEDGE_OK)
    status = kedge_fail(KEDGE_ERR_IO, "%s: writing failed: %s", path, kedge_message());
  if (status == KEDGE_OK) return kedge_outfile_commit(out);
  kedge_outfile_discard(out);
  return status;
}

static kedge_status run(const char *domain, uint64_t seed, uint64_t count, const char *path) {
  if (!domain || !path) return kedge_fail(KEDGE_ERR_ARGUMENT, "%s is needed", domain ? "--out" : "--domain");
  KEDGE_TRY(check_domain(domain));
  if (!strcmp(path, "-")) return kedge_corpus_generate(domain, seed, count, stdout);
  KEDGE_TRY(generate_file(domain, seed, count, path));
  printf("%s: %llu samples of %s\n", path, (unsigned long long)count, domain);
  return KEDGE_OK;
}

int command_corpus(int argc, char **argv) {
  const char *domain = NULL, *out = NULL, *about;
  int64_t count = 1000, seed = 0;
  bool list = false;
  const cli_option options[] = {
      {"--domain", CLI_TEXT, &domain, "NAME", "what the samples are about", false, 0, 0},
      {"--out", CLI_TEXT, &out, "FILE", "JSON Lines file to write, - for standard output", false, 0, 0},
      {"--count", CLI_INT, &count, "N", "samples (1000)", false, 1, 1e12},
      {"--seed", CLI_INT, &seed, "N", "seed (0)", false, 0, 0x1p53},
      {"--list", CLI_FLAG, &list, NULL, "list the domains", false, 0, 0}};
  const cli_spec spec = {
      .command = "corpus",
      .synopsis = "",
      .summary =
          "Writes generated prompt/completion samples, for demonstrations and tests without a download.\n"
          "A sample depends on domain, seed and its number alone.",
      .options = options,
      .option_count = sizeof options / sizeof *options,
      .examples =
          "kedge corpus --list\nkedge corpus --domain arithmetic --count 2000 --seed 1 --out train.jsonl"};
  cli_list arguments;
  int code;
  if (!cli_parse(&spec, argc, argv, &arguments, &code)) return code;
  for (uint32_t i = 0; list && kedge_corpus_domain(i, &about); i++)
    printf("%-12s %s\n", kedge_corpus_domain(i, &about), about);
  if (list) return cli_finish("corpus", KEDGE_OK);
  return cli_finish("corpus", run(domain, (uint64_t)seed, (uint64_t)count, out));
}
