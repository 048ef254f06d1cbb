/* SPDX-License-Identifier: Apache-2.0
 *
 * A report in the making: the same headings, sentences, tables and figures as a page (HTML) and as Markdown,
 * and tables as CSV. report_doc.c writes, report_table.c has the tables; report_page.h says what is in it.
 * All texts are given plain and escaped here.
 */
#ifndef KEDGE_TOOLS_REPORT_DOC_H
#define KEDGE_TOOLS_REPORT_DOC_H

#include "core/kedge.h"

/* Text that grows; after a failed allocation `failed` is set and it no longer grows. */
typedef struct report_text {
  char *at;
  size_t length, capacity;
  bool failed;
} report_text;
void report_text_add(report_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Escaped for HTML (also within quotes), and for Markdown (also within tables). */
void report_text_html(report_text *text, const char *plain);
void report_text_markdown(report_text *text, const char *plain);

typedef struct report_doc {
  const char *folder;  /* where it goes; borrowed */
  bool plots;          /* figures are drawn */
  kedge_status status; /* the first failure; later calls do nothing */
  report_text html, nav, markdown;
  uint32_t figures;
} report_doc;

void report_begin(report_doc *doc, const char *folder, bool plots);
/* A section with an anchor for the contents; a heading within it. */
void report_section(report_doc *doc, const char *anchor, const char *title);
void report_heading(report_doc *doc, const char *title);
/* A paragraph; a remark in small print; items of one list, from the first to the last. */
void report_say(report_doc *doc, const char *format, ...) __attribute__((format(printf, 2, 3)));
void report_note(report_doc *doc, const char *format, ...) __attribute__((format(printf, 2, 3)));
void report_list(report_doc *doc, char *const *items, uint32_t count);
/* Text as it stands, folded away under a summary. */
void report_fold(report_doc *doc, const char *summary, const char *text);
/* Figures that stand side by side where there is room: between these, plots/<name>.svg with its caption. */
void report_figures_begin(report_doc *doc);
void report_figure(report_doc *doc, const char *name, const char *caption);
void report_figures_end(report_doc *doc);
/* Writes index.html and report.md, unless something failed; frees. */
kedge_status report_end(report_doc *doc, const char *title, const char *badge);

/* ---- Tables
 * ----------------------------------------------------------------------------------------------------- */

typedef enum report_kind {
  REPORT_TEXT,
  REPORT_COUNT,   /* whole */
  REPORT_PERCENT, /* a share, shown as percent; CSV has the share */
  REPORT_POINTS,  /* a difference of shares, shown with its sign in points of percent */
  REPORT_REAL,    /* three decimals */
  REPORT_SIGNED,  /* the same with its sign */
  REPORT_P        /* a p-value; small ones are shown as below 0.001 */
} report_kind;

typedef struct report_column {
  const char *title, *key; /* on the page; in the CSV file */
  report_kind kind;
  bool interval; /* value with low and high: three columns of CSV */
} report_column;

typedef struct report_cell {
  char *text;
  double value, low, high;
  bool marked; /* shown in bold */
} report_cell;

enum { REPORT_COLUMNS = 40 };
typedef struct report_table {
  const char *name; /* of tables/<name>.csv; NULL: shown on the page */
  bool failed;
  report_column columns[REPORT_COLUMNS];
  uint32_t column_count;
  report_cell *cells; /* row by row */
  size_t cell_count, capacity;
} report_table;

void report_table_begin(report_table *table, const char *name);
void report_table_column(report_table *table, const char *title, const char *key, report_kind kind,
                         bool interval);
/* The next cell, row by row. NaN is shown as a dash and is nothing in CSV. */
void report_table_text(report_table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
void report_table_number(report_table *table, double value);
void report_table_interval(report_table *table, double value, double low, double high, bool marked);
/* Writes the CSV file, or shows the table on the page; one without rows says so. Frees. */
void report_table_end(report_doc *doc, report_table *table);

#endif
