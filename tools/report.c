/* SPDX-License-Identifier: Apache-2.0
 * `kedge report`: the page, the Markdown and the tables of a study (report_page.h). */
#include "models/checkpoint/atomic.h"
#include "tools/cli.h"
#include "tools/probe_plots.h"
#include "tools/report_page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kedge_status make_folders(const char *folder) {
  static const char *const parts[] = {"tables", "plots"};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    char *path = kedge_path_join(folder, parts[i]);
    if (!path) return KEDGE_ERR_MEMORY;
    const kedge_status status = kedge_folder_make(path);
    kedge_free(path);
    KEDGE_TRY(status);
  }
  return KEDGE_OK;
}

/* The whole path: who called may stand elsewhere. */
static void print_findings(const kedge_analysis *a, const char *folder) {
  char *whole = realpath(folder, NULL);
  for (size_t i = 0; i < sizeof a->findings / sizeof *a->findings; i++)
    printf("%zu. %s\n", i + 1, a->findings[i]);
  printf("report: %s/index.html\n", whole ? whole : folder);
  free(whole);
}

static kedge_status report(const char *folder, const char *out, bool no_plots) {
  kedge_study study;
  kedge_analysis analysis = {0};
  kedge_status status = kedge_study_read(&study, folder);
  if (status == KEDGE_OK) status = kedge_analysis_make(&analysis, &study);
  if (status == KEDGE_OK) status = make_folders(out);
  if (status == KEDGE_OK) {
    const bool plots = !no_plots && probe_plot_check() == KEDGE_OK;
    status = report_write(&analysis, out, plots);
  }
  if (status == KEDGE_OK) print_findings(&analysis, out);
  kedge_analysis_destroy(&analysis);
  kedge_study_destroy(&study);
  return status;
}

#define SUMMARY                                                                                              \
  "Makes a page of a study: index.html, which needs nothing beside it and no network, report.md, and "       \
  "tables/*.csv. A\nstudy that is not finished is reported as far as it has come. Figures need gnuplot."

int command_report(int argc, char **argv) {
  const char *out = NULL;
  bool no_plots = false;
  cli_list arguments;
  int code;
  const cli_option options[] = {
      {"--out", CLI_TEXT, &out, "DIR2", "where the report goes (DIR/report)", false, 0, 0},
      {"--no-plots", CLI_FLAG, &no_plots, NULL, "leave the figures out", false, 0, 0}};
  const cli_spec spec = {.command = "report",
                         .synopsis = "DIR",
                         .summary = SUMMARY,
                         .options = options,
                         .option_count = sizeof options / sizeof *options,
                         .least = 1,
                         .most = 1,
                         .examples = "kedge report study\n"
                                     "kedge report study --out page"};
  if (!cli_parse(&spec, argc, argv, &arguments, &code)) return code;
  char *own = out ? kedge_strdup(out) : kedge_path_join(arguments.items[0], "report");
  const kedge_status status = own ? report(arguments.items[0], own, no_plots) : KEDGE_ERR_MEMORY;
  kedge_free(own);
  return cli_finish("report", status);
}
