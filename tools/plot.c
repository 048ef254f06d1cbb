/* SPDX-License-Identifier: Apache-2.0
 * Scripts for gnuplot, and running it (probe_plots.h). */
#include "tools/probe_plots.h"

#include "models/checkpoint/atomic.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

kedge_status probe_plot_check(void) {
  const char *path = getenv("PATH");
  for (const char *at = path ? path : ""; *at;) {
    size_t length = strcspn(at, ":");
    char *file = kedge_format("%.*s/gnuplot", (int)length, at);
    bool found = file && !access(file, X_OK);
    kedge_free(file);
    if (found) return KEDGE_OK;
    at += length + (at[length] == ':');
  }
  return kedge_fail(KEDGE_ERR_UNSUPPORTED,
                    "--plots needs gnuplot, which is not in PATH (Debian: gnuplot-nox)");
}

/* ---- Scripts
 * ------------------------------------------------------------------------------------------------------ */

static bool reserve(plot *p, size_t more) {
  if (p->length + more + 1 <= p->capacity) return true;
  size_t capacity = 2 * (p->length + more + 1);
  char *grown = kedge_realloc(p->text, capacity, 1);
  if (!grown) {
    p->status = KEDGE_ERR_MEMORY;
    return false;
  }
  p->text = grown, p->capacity = capacity;
  return true;
}

void plot_add(plot *p, const char *format, ...) {
  va_list arguments, again;
  if (p->status != KEDGE_OK) return;
  va_start(arguments, format);
  va_copy(again, arguments);
  int length = vsnprintf(NULL, 0, format, arguments);
  va_end(arguments);
  if (length >= 0 && reserve(p, (size_t)length)) {
    vsnprintf(p->text + p->length, (size_t)length + 1, format, again);
    p->length += (size_t)length;
  }
  va_end(again);
}

/* In single quotes gnuplot runs no commands between backquotes, and only the quote itself is doubled. */
void plot_quoted(plot *p, const char *text) {
  plot_add(p, "'");
  for (const char *c = text; *c; c++) {
    plot_add(p, "%c", (unsigned char)*c < 0x20 ? ' ' : *c);
    if (*c == '\'') plot_add(p, "'");
  }
  plot_add(p, "'");
}

void plot_cell(plot *p, const char *text) {
  plot_add(p, "\"");
  for (const char *c = text; *c; c++)
    plot_add(p, "%c", strchr("\"\\`", *c) ? '\'' : (unsigned char)*c < 0x20 ? ' ' : *c);
  plot_add(p, "\"");
}

void plot_open(plot *p, const char *folder, const char *name) {
  *p = (plot){0};
  char *plain = kedge_strdup(name);
  for (char *c = plain; c && *c; c++)
    if (*c == '/' || (unsigned char)*c < 0x20) *c = '_';
  char *base = plain ? kedge_path_join(folder, plain) : NULL;
  p->svg = base ? kedge_format("%s.svg", base) : NULL;
  p->script_path = base ? kedge_format("%s.gp", base) : NULL;
  kedge_free(base);
  kedge_free(plain);
  if (!p->svg || !p->script_path) p->status = KEDGE_ERR_MEMORY;
}

void plot_begin(plot *p, const char *folder, const char *name, unsigned width, unsigned height) {
  plot_open(p, folder, name);
  if (p->status != KEDGE_OK) return;
  plot_add(p,
           "set encoding utf8\nset terminal svg size %u,%u noenhanced font \"sans-serif,12\" background "
           "\"white\"\nset output ",
           width, height);
  plot_quoted(p, p->svg);
  plot_add(p, "\nset border 3 lc rgb \"#555555\"\nset tics nomirror\n");
}

/* ---- Running
 * ------------------------------------------------------------------------------------------------------ */

static kedge_status run_heeded(const char *script) {
  posix_spawn_file_actions_t actions;
  char *arguments[] = {(char[]){"gnuplot"}, (char *)(uintptr_t)script, NULL};
  pid_t child;
  int result;
  if (posix_spawn_file_actions_init(&actions)) return KEDGE_ERR_MEMORY;
  int error = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  if (!error) error = posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  if (!error) error = posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  if (!error) error = posix_spawnp(&child, "gnuplot", &actions, NULL, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error) return kedge_fail(KEDGE_ERR_IO, "gnuplot: %s", strerror(error));
  while (waitpid(child, &result, 0) < 0)
    if (errno != EINTR) return kedge_fail(KEDGE_ERR_IO, "gnuplot: %s", strerror(errno));
  if (WIFEXITED(result) && WEXITSTATUS(result) == 0) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_IO, "gnuplot failed; `gnuplot %s` says why", script);
}

/* Where children are ignored, as some starters of programs leave it, how one ended could not be learnt. */
static kedge_status run_gnuplot(const char *script) {
  struct sigaction heeded = {.sa_handler = SIG_DFL}, before;
  sigaction(SIGCHLD, &heeded, &before);
  kedge_status status = run_heeded(script);
  sigaction(SIGCHLD, &before, NULL);
  return status;
}

kedge_status plot_end(plot *p) {
  kedge_status status = p->status;
  plot_add(p, "\n");
  if (status == KEDGE_OK) status = kedge_file_write(p->script_path, p->text, p->length);
  if (status == KEDGE_OK) status = run_gnuplot(p->script_path);
  kedge_free(p->svg);
  kedge_free(p->script_path);
  kedge_free(p->text);
  *p = (plot){0};
  return status;
}
