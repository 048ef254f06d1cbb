/* SPDX-License-Identifier: Apache-2.0
 * `kedge lab`: the study that compares all ways of post-training on models small enough to be made here, from
 * nothing to a report (lab.h, docs/study.md). */
#include "tools/lab.h"
#include "models/checkpoint/atomic.h"
#include "tools/child.h"
#include "tools/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

typedef struct lab_options {
  const char *preset, *out;
  int64_t jobs;
  bool keep, dry;
} lab_options;

/* Holds the folder against a second study until this process lets go; *lock is a descriptor. A file system
 * without locks is no reason to refuse. */
static kedge_status lock_out(const lab *l, int *lock) {
  KEDGE_TRY(kedge_folder_make(l->out));
  *lock = open(l->out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (*lock < 0) return kedge_fail(KEDGE_ERR_IO, "%s: %s", l->out, strerror(errno));
  if (flock(*lock, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "%s: another `kedge lab` is at work there", l->out);
  return KEDGE_OK;
}

/* Lists the stages and their commands. Whether one is finished is known only where all that it needs is. */
static kedge_status list_stages(lab *l) {
  double weight = 0;
  const bool there = access(l->out, F_OK) == 0;
  for (size_t i = 0; i < l->count; i++) {
    lab_stage *s = &l->stages[i];
    if (there) KEDGE_TRY(lab_look(l, i));
    if (s->state != LAB_FINISHED) weight += s->weight;
    printf("%s: %s\n", s->id, s->state == LAB_FINISHED ? "finished" : "to do");
    for (size_t k = 0; k < s->step_count; k++) printf("  kedge %s\n", s->steps[k]);
  }
  char text[24];
  printf("%zu stages, about %s on %lld cores; the commands run in %s\n", l->count,
         cli_duration(weight / (double)l->jobs, text), (long long)l->jobs, l->out);
  return KEDGE_OK;
}

static kedge_status report(const lab *l) {
  int code = 0;
  char *folder = kedge_strdup(l->out), *argv[] = {NULL, (char[]){"report"}, folder, NULL};
  kedge_status status = folder ? lab_call(argv, &code) : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK && code)
    status = kedge_fail(KEDGE_ERR_ARGUMENT, "the study is in %s, but its report failed", l->out);
  kedge_free(folder);
  return status;
}

static kedge_status run(lab *l, const lab_options *o, size_t *failed) {
  int lock = -1;
  KEDGE_TRY(lab_plan(l));
  if (o->dry) return list_stages(l);
  kedge_status status = lock_out(l, &lock);
  if (status == KEDGE_OK) status = lab_folder(l);
  if (status == KEDGE_OK) status = lab_go(l, failed);
  if (status == KEDGE_OK) status = report(l);
  if (lock >= 0) close(lock);
  return status;
}

int command_lab(int argc, char **argv) {
  lab_options o = {.preset = "quick", .jobs = child_cores()};
  const cli_option options[] = {
      {"--preset", CLI_TEXT, &o.preset, "NAME", "quick, standard or full (quick)", false, 0, 0},
      {"--out", CLI_TEXT, &o.out, "DIR", "folder of the study (out/lab-<preset>)", false, 0, 0},
      {"--jobs", CLI_INT, &o.jobs, "N", "processes at a time, each of one thread (one a core)", false, 1,
       256},
      {"--keep-models", CLI_FLAG, &o.keep, NULL, "keep the weights of every post-trained model", false, 0, 0},
      {"--dry-run", CLI_FLAG, &o.dry, NULL, "list the stages and their commands, run none", false, 0, 0}};
  const cli_spec spec = {
      .command = "lab",
      .synopsis = "",
      .summary =
          "Makes small mixture-of-experts models from nothing, post-trains each on one shifted domain under\n"
          "many conditions, evaluates and probes all of them, and writes one report. Needs no download.\n"
          "quick takes minutes and shows the way; standard takes about an hour, full a day or more. The "
          "protocol is\n"
          "fixed (docs/study.md). The same command goes on where an earlier one ended, whatever ended it, "
          "and\n"
          "comes to the same numbers; what is finished is not repeated. The exit status is 1 if a stage "
          "failed.",
      .options = options,
      .option_count = sizeof options / sizeof *options,
      .examples = "kedge lab\n"
                  "kedge lab --preset standard --out studies/standard\n"
                  "kedge lab --preset full --dry-run"};
  cli_list arguments;
  int code;
  if (!cli_parse(&spec, argc, argv, &arguments, &code)) return code;
  lab l = {.preset = lab_preset_find(o.preset), .jobs = o.jobs, .keep = o.keep};
  if (!l.preset)
    return cli_finish("lab",
                      kedge_fail(KEDGE_ERR_ARGUMENT,
                                 "--preset: expected quick, standard or full, came \"%.40s\"", o.preset));
  char *folder = o.out ? kedge_strdup(o.out) : kedge_format("out/lab-%s", l.preset->name);
  size_t failed = 0;
  l.out = folder;
  code = cli_finish("lab", folder ? run(&l, &o, &failed) : KEDGE_ERR_MEMORY);
  lab_destroy(&l);
  kedge_free(folder);
  if (code == 0 && failed) {
    fprintf(stderr, "kedge lab: %zu stages are not finished; the same command tries them again\n", failed);
    code = 1;
  }
  return code;
}
