/* SPDX-License-Identifier: Apache-2.0
 * Performance against what was kept, across runs (probe_plots.h). */
#include "tools/probe_plots.h"

#include "models/checkpoint/atomic.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_CAP = 1 << 20, COLUMNS = 18, RUNS = 1000 };

/* Cells point into the text of the file. */
typedef struct table {
  const char *path;
  char *text;
  uint32_t columns, rows; /* columns with name and performance; rows without the head */
  char *cells[RUNS + 1][COLUMNS];
} table;

static kedge_status wrong(const table *t, unsigned line, const char *what) {
  return kedge_fail(KEDGE_ERR_FORMAT, "%s:%u: %s", t->path, line, what);
}

static char *trimmed(char *cell) {
  while (*cell == ' ' || *cell == '\t') cell++;
  size_t length = strlen(cell);
  while (length && strchr(" \t\r", cell[length - 1])) cell[--length] = 0;
  if (length >= 2 && *cell == '"' && cell[length - 1] == '"') cell[length - 1] = 0, cell++;
  return cell;
}

/* Numbers, or nothing for a value that is not known. */
static bool is_number(const char *cell) {
  char *end;
  double value = strtod(cell, &end);
  return !*cell || (end != cell && !*end && isfinite(value));
}

static kedge_status take_line(table *t, char *line, unsigned number, bool head) {
  uint32_t row = head ? 0 : t->rows + 1, column = 0;
  if (!head && t->rows == RUNS) return wrong(t, number, "expected at most 1000 runs");
  for (char *cell = line, *next; cell; cell = next) {
    next = strchr(cell, ',');
    if (next) *next++ = 0;
    if (column == COLUMNS) return wrong(t, number, "expected at most 18 columns");
    t->cells[row][column++] = trimmed(cell);
  }
  if (head && (column < 3 || strcmp(t->cells[0][0], "name") || strcmp(t->cells[0][1], "performance")))
    return wrong(t, number, "expected the columns name, performance and at least one measure");
  if (head) t->columns = column;
  if (column != t->columns) return wrong(t, number, "expected as many columns as the first line has");
  for (uint32_t c = 1; c < column && !head; c++)
    if (!is_number(t->cells[row][c])) return wrong(t, number, "expected numbers behind the name");
  t->rows += !head;
  return KEDGE_OK;
}

static kedge_status read_table(table *t) {
  size_t bytes;
  unsigned number = 0;
  bool head = true;
  KEDGE_TRY(kedge_file_read(t->path, FILE_CAP, &t->text, &bytes));
  if (memchr(t->text, 0, bytes)) return wrong(t, 1, "expected text");
  for (char *line = t->text, *next; line; line = next) {
    next = strchr(line, '\n');
    if (next) *next++ = 0;
    number++;
    if (!line[strspn(line, " \t\r")]) continue;
    KEDGE_TRY(take_line(t, line, number, head));
    head = false;
  }
  return t->rows ? KEDGE_OK : wrong(t, number, "expected a run");
}

static void add_data(plot *p, const table *t) {
  plot_add(p, "set datafile missing \"nan\"\n$runs << EOD\n");
  for (uint32_t r = 1; r <= t->rows; r++) {
    plot_cell(p, t->cells[r][0]);
    for (uint32_t c = 1; c < t->columns; c++) plot_add(p, " %s", *t->cells[r][c] ? t->cells[r][c] : "nan");
    plot_add(p, "\n");
  }
  plot_add(p, "EOD\n");
}

/* Whether a column has a number at all. */
static bool has_values(const table *t, uint32_t column) {
  for (uint32_t r = 1; r <= t->rows; r++)
    if (*t->cells[r][column] && *t->cells[r][1]) return true;
  return false;
}

static kedge_status draw(const table *t, const char *folder) {
  const uint32_t panels = t->columns - 2, across = panels < 3 ? panels : 3,
                 down = (panels + across - 1) / across;
  plot p;
  KEDGE_TRY(kedge_folder_make(folder));
  plot_begin(&p, folder, "retention-performance", 60 + 420 * across, 40 + 300 * down);
  add_data(&p, t);
  plot_add(&p,
           "set multiplot layout %u,%u\nset grid lc rgb \"#dddddd\"\nunset key\nset offsets graph 0.15, "
           "graph 0.25, graph 0.1, graph 0.1\nset ylabel \"performance\"\n",
           down, across);
  for (uint32_t c = 2; c < t->columns; c++) {
    plot_add(&p, "set xlabel ");
    plot_quoted(&p, t->cells[0][c]);
    if (has_values(t, c))
      plot_add(&p,
               "\nplot $runs using %u:2 with points pt 7 ps 0.9 lc rgb \"#0072b2\", $runs using %u:2:1 with "
               "labels left offset 0.7,0.3 font \",9\"\n",
               c + 1, c + 1);
    else
      plot_add(&p, "\nplot [0:1] [0:1] NaN\n");
  }
  plot_add(&p, "unset multiplot\n");
  return plot_end(&p);
}

kedge_status probe_plot_runs(const char *path, const char *folder) {
  table *t = kedge_alloc(1, sizeof *t);
  if (!t) return KEDGE_ERR_MEMORY;
  t->path = path;
  kedge_status status = read_table(t);
  if (status == KEDGE_OK) status = draw(t, folder);
  kedge_free(t->text);
  kedge_free(t);
  return status;
}
