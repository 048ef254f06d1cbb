/* SPDX-License-Identifier: Apache-2.0
 * `kedge sweep`: the runs of a grid of settings and of seeds, and one table of them (sweep.h). */
#include "tools/sweep.h"

#include "models/checkpoint/atomic.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

typedef struct sweep_options {
  const char *seeds, *out;
  cli_list grids, metrics;
  int64_t jobs;
  bool table, dry;
} sweep_options;

/* Holds the folder against a second sweep until this process lets go; *lock is a descriptor. A file system
 * without locks is no reason to refuse. */
static kedge_status lock_out(const sweep *s, int *lock) {
  KEDGE_TRY(kedge_folder_make(s->out));
  *lock = open(s->out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (*lock < 0) return kedge_fail(KEDGE_ERR_IO, "%s: %s", s->out, strerror(errno));
  if (flock(*lock, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "%s: another sweep is at work there", s->out);
  return KEDGE_OK;
}

static void list_runs(const sweep *s) {
  for (size_t i = 0; i < s->run_count; i++)
    printf("%s: %s\n", s->runs[i].folder,
           s->runs[i].state == SWEEP_FINISHED ? "finished"
           : s->runs[i].found                 ? "begun"
                                              : "to do");
}

static kedge_status prepare(sweep *s, const sweep_options *o) {
  for (size_t i = 0; i < o->grids.count; i++) KEDGE_TRY(sweep_add_grid(s, o->grids.items[i]));
  if (o->seeds) KEDGE_TRY(sweep_set_seeds(s, o->seeds));
  if (o->out && !(s->out = kedge_strdup(o->out))) return KEDGE_ERR_MEMORY;
  KEDGE_TRY(sweep_plan(s));
  return sweep_find(s);
}

static kedge_status run(sweep *s, const sweep_options *o, size_t *failed) {
  int lock = -1;
  kedge_status status = prepare(s, o);
  if (status == KEDGE_OK && o->dry) {
    list_runs(s);
    return KEDGE_OK;
  }
  if (status == KEDGE_OK && o->table && access(s->out, F_OK)) /* a table makes no folder */
    status = kedge_fail(KEDGE_ERR_IO, "%s: %s", s->out, strerror(errno));
  if (status == KEDGE_OK && !o->table) status = lock_out(s, &lock);
  if (status == KEDGE_OK && !o->table) status = sweep_find(s); /* once more: nobody else writes now */
  if (status == KEDGE_OK && !o->table) status = sweep_go(s, failed);
  if (status == KEDGE_OK) status = sweep_table(s);
  if (lock >= 0) close(lock);
  return status;
}

int command_sweep(int argc, char **argv) {
  sweep_options o = {.jobs = 1};
  const cli_option options[] = {
      {"--grid", CLI_TEXTS, &o.grids, "KEY=V,V", "a key and its values; may be given again", false, 0, 0},
      {"--seeds", CLI_TEXT, &o.seeds, "N,N", "seeds of each point (the configuration's one)", false, 0, 0},
      {"--out", CLI_TEXT, &o.out, "DIR", "folder of the runs' folders (output_dir)", false, 0, 0},
      {"--jobs", CLI_INT, &o.jobs, "N", "runs at a time (1)", false, 1, 1024},
      {"--metric", CLI_TEXTS, &o.metrics, "NAME",
       "metric of the table, NAME* for all that begin so; may be given again", false, 0, 0},
      {"--table", CLI_FLAG, &o.table, NULL, "only make the table of what is finished", false, 0, 0},
      {"--dry-run", CLI_FLAG, &o.dry, NULL, "check every run's configuration, list the runs, start none",
       false, 0, 0}};
  const cli_spec spec = {
      .command = "sweep",
      .synopsis = "CONFIG.yaml [KEY=VALUE ...]",
      .summary =
          "Trains once for each combination of the grids' values and the seeds, each in a folder of its own\n"
          "named after them, then prints a row a combination: mean +- sample standard deviation over the\n"
          "seeds of each metric's last value. The same is written as sweep.csv and sweep.json. The same\n"
          "command goes on where an earlier one ended; finished runs are not repeated. SIGINT or SIGTERM\n"
          "lets the runs save a checkpoint and stops. The exit status is 1 if a run failed.",
      .options = options,
      .option_count = sizeof options / sizeof *options,
      .least = 1,
      .most = CLI_MAX_ARGUMENTS,
      .examples =
          "kedge sweep rpb.yaml --grid router.beta=0,0.5,0.75,1.0 --seeds 42,43,44 --out sweeps/beta\n"
          "kedge sweep kl.yaml --grid router.coef=0.01,0.1,1 --seeds 42,43,44 --out sweeps/kl --jobs 2\n"
          "kedge sweep rpb.yaml --grid router.beta=0,1 --out sweeps/beta --table --metric eval/loss"};
  cli_list arguments, overrides = {.count = 0};
  int code;
  if (!cli_parse(&spec, argc, argv, &arguments, &code)) return code;
  const char *yaml = cli_is_setting(arguments.items[0]) ? NULL : arguments.items[0];
  for (size_t i = yaml ? 1 : 0; i < arguments.count; i++)
    overrides.items[overrides.count++] = arguments.items[i];
  sweep s = {.config = yaml, .overrides = &overrides, .metrics = &o.metrics, .jobs = o.jobs};
  size_t failed = 0;
  code = cli_finish("sweep", run(&s, &o, &failed));
  sweep_destroy(&s);
  if (code == 0 && failed) {
    fprintf(stderr, "kedge sweep: %zu runs are not finished; the same command tries them again\n", failed);
    code = 1;
  }
  return code;
}
