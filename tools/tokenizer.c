/* SPDX-License-Identifier: Apache-2.0
 * `kedge tokenizer train`: a byte-level BPE tokenizer of data files (models/text/tokenizer_train.h). */
#include "models/text/tokenizer_train.h"
#include "tools/cli.h"
#include "tools/interrupt.h"
#include "tools/progress.h"

#include <stdio.h>
#include <string.h>

typedef struct tokenizer_options {
  cli_list data, specials;
  const char *out;
  int64_t size;
  bool skip_bad_lines;
} tokenizer_options;

static void note(void *context, const char *line) {
  progress_clear(context);
  fprintf(stderr, "note: %s\n", line);
}

static bool advanced(void *context, uint64_t bytes, uint64_t total, uint64_t records) {
  progress *bar = context;
  bar->total = total >> 10;
  progress_update(bar, bytes >> 10, records, NULL);
  return !interrupt_requested();
}

static kedge_status read_files(const tokenizer_options *o, kedge_tokenizer_trainer *trainer) {
  for (size_t i = 0; i < o->data.count; i++) {
    progress bar;
    progress_init(&bar, stderr, "read", "KiB", 0, 0);
    const kedge_tokenizer_reading reading = {
        .skip_bad_lines = o->skip_bad_lines, .notice = note, .progress = advanced, .context = &bar};
    kedge_status status = kedge_tokenizer_trainer_read(trainer, o->data.items[i], &reading);
    progress_clear(&bar);
    KEDGE_TRY(status);
  }
  return KEDGE_OK;
}

static kedge_status train(const tokenizer_options *o, kedge_tokenizer_trainer *trainer) {
  static const char *const end[] = {"<|endoftext|>"};
  size_t specials = o->specials.count ? o->specials.count : 1;
  uint32_t made;
  char bytes[24], pieces[32];
  KEDGE_TRY(read_files(o, trainer));
  KEDGE_TRY(kedge_tokenizer_trainer_save(
      trainer, (uint32_t)o->size, o->specials.count ? o->specials.items : end, specials, o->out, &made));
  const kedge_tokenizer_trainer_stats stats = kedge_tokenizer_trainer_counted(trainer);
  if (stats.skipped) fprintf(stderr, "note: %llu bad lines skipped\n", (unsigned long long)stats.skipped);
  if (made < o->size) fprintf(stderr, "note: the text has no further pairs to merge\n");
  printf("%s: %u tokens (%zu special, 256 bytes, %u merged) of %s, %s different pieces\n", o->out, made,
         specials, made - 256 - (uint32_t)specials, cli_bytes(stats.bytes, bytes),
         cli_count(stats.pieces, pieces));
  return KEDGE_OK;
}

static kedge_status run(const tokenizer_options *o, const char *what) {
  kedge_tokenizer_trainer *trainer;
  if (strcmp(what, "train"))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "there is no `tokenizer %.40s`, only `tokenizer train`", what);
  interrupt_listen();
  KEDGE_TRY(kedge_tokenizer_trainer_new(&trainer));
  kedge_status status = train(o, trainer);
  kedge_tokenizer_trainer_free(trainer);
  return status;
}

int command_tokenizer(int argc, char **argv) {
  tokenizer_options o = {.size = 512};
  const cli_option options[] = {
      {"--data", CLI_TEXTS, &o.data, "FILE", "JSON Lines of any format that training reads; repeatable", true,
       0, 0},
      {"--vocab-size", CLI_INT, &o.size, "N", "tokens in all (512)", false, KEDGE_TOKENIZER_MIN_SIZE + 1,
       KEDGE_TOKENIZER_MAX_SIZE},
      {"--out", CLI_TEXT, &o.out, "DIR", "folder for tokenizer.json and tokenizer_config.json", true, 0, 0},
      {"--special", CLI_TEXTS, &o.specials, "TEXT",
       "a special token, the first ends a text; repeatable (<|endoftext|>)", false, 0, 0},
      {"--skip-bad-lines", CLI_FLAG, &o.skip_bad_lines, NULL, "pass over lines that cannot be read", false, 0,
       0}};
  const cli_spec spec = {
      .command = "tokenizer",
      .synopsis = "train",
      .summary =
          "Trains a tokenizer: byte-level byte-pair encoding, every digit a token of its own, written\n"
          "for Kedge and for the Hugging Face libraries. The same text gives the same tokenizer.",
      .options = options,
      .option_count = sizeof options / sizeof *options,
      .least = 1,
      .most = 1,
      .examples = "kedge tokenizer train --data mixture.jsonl --vocab-size 512 --out tokenizer"};
  cli_list arguments;
  int code;
  if (!cli_parse(&spec, argc, argv, &arguments, &code)) return code;
  return cli_finish("tokenizer", run(&o, arguments.items[0]));
}
