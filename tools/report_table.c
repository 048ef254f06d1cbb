/* SPDX-License-Identifier: Apache-2.0
 * Tables of a report: on the page, in Markdown, as CSV (report_doc.h). */
#include "tools/report_doc.h"

#include "models/checkpoint/atomic.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void report_table_begin(report_table *table, const char *name) {
  *table = (report_table){.name = name};
}

void report_table_column(report_table *table, const char *title, const char *key, report_kind kind,
                         bool interval) {
  if (table->column_count == REPORT_COLUMNS) {
    table->failed = true;
    return;
  }
  table->columns[table->column_count++] = (report_column){title, key, kind, interval};
}

static report_cell *next_cell(report_table *t) {
  if (t->cell_count == t->capacity) {
    const size_t capacity = 2 * t->capacity + 64;
    report_cell *grown = kedge_realloc(t->cells, capacity, sizeof *grown);
    if (!grown) {
      t->failed = true;
      return NULL;
    }
    t->cells = grown, t->capacity = capacity;
  }
  report_cell *cell = &t->cells[t->cell_count++];
  *cell = (report_cell){.value = NAN, .low = NAN, .high = NAN};
  return cell;
}

void report_table_text(report_table *table, const char *format, ...) {
  report_cell *cell = next_cell(table);
  report_text text = {0};
  va_list arguments;
  char small[1024];
  if (!cell) return;
  va_start(arguments, format);
  const int length = vsnprintf(small, sizeof small, format, arguments);
  va_end(arguments);
  if (length < 0) small[0] = 0;
  report_text_add(&text, "%s", small);
  cell->text = text.at;
  if (text.failed) table->failed = true;
}

void report_table_number(report_table *table, double value) {
  report_table_interval(table, value, NAN, NAN, false);
}

void report_table_interval(report_table *table, double value, double low, double high, bool marked) {
  report_cell *cell = next_cell(table);
  if (cell) cell->value = value, cell->low = low, cell->high = high, cell->marked = marked;
}

/* ---- Numbers in words
 * ------------------------------------------------------------------------------------------- */

typedef char number_text[64];

static const char *number(report_kind kind, double value, number_text text) {
  switch (kind) {
  case REPORT_COUNT:
    snprintf(text, sizeof(number_text), "%.0f", value);
    break;
  case REPORT_PERCENT:
    snprintf(text, sizeof(number_text), "%.1f", 100 * value);
    break;
  case REPORT_POINTS:
    snprintf(text, sizeof(number_text), "%+.1f", 100 * value);
    break;
  case REPORT_SIGNED:
    snprintf(text, sizeof(number_text), "%+.3f", value);
    break;
  default:
    snprintf(text, sizeof(number_text), kind == REPORT_P && value < 0.001 ? "< 0.001" : "%.3f", value);
  }
  return text;
}

/* "51.2 [49.0, 53.4]"; the value alone where it has no interval. Ends of intervals need no plus sign. */
static void show(const report_column *column, const report_cell *cell, char *value, size_t value_room,
                 char *range, size_t range_room) {
  number_text a, b;
  *range = 0;
  if (column->kind == REPORT_TEXT) {
    snprintf(value, value_room, "%s", cell->text ? cell->text : "");
  } else if (!isfinite(cell->value)) {
    snprintf(value, value_room, "\u2013");
  } else {
    const report_kind plain = column->kind == REPORT_POINTS   ? REPORT_PERCENT
                              : column->kind == REPORT_SIGNED ? REPORT_REAL
                                                              : column->kind;
    snprintf(value, value_room, "%s", number(column->kind, cell->value, a));
    if (column->interval && isfinite(cell->low) && isfinite(cell->high))
      snprintf(range, range_room, "[%s, %s]", number(plain, cell->low, a), number(plain, cell->high, b));
  }
}

/* ---- Three forms
 * ------------------------------------------------------------------------------------------------ */

/* Verdicts carry a sign beside their colour. */
static const char *sign_of(const char *text) {
  return !strcmp(text, "reproduced")       ? "<span class=\"good\">\u2713 "
         : !strcmp(text, "not reproduced") ? "<span class=\"bad\">\u2717 "
         : !strcmp(text, "undecided")      ? "<span>? "
                                           : NULL;
}

static void add_html(report_text *html, const report_table *t) {
  char value[1100], range[160];
  report_text_add(html, "<div class=\"scroll\" tabindex=\"0\"><table>\n<thead><tr>");
  for (uint32_t c = 0; c < t->column_count; c++) {
    report_text_add(html, t->columns[c].kind == REPORT_TEXT ? "<th scope=\"col\">"
                                                            : "<th scope=\"col\" class=\"n\">");
    report_text_html(html, t->columns[c].title);
    report_text_add(html, "</th>");
  }
  report_text_add(html, "</tr></thead>\n<tbody>\n");
  for (size_t i = 0; i < t->cell_count; i++) {
    const uint32_t c = (uint32_t)(i % t->column_count);
    const report_column *column = &t->columns[c];
    show(column, &t->cells[i], value, sizeof value, range, sizeof range);
    const char *sign = column->kind == REPORT_TEXT ? sign_of(value) : NULL;
    if (!c) report_text_add(html, "<tr>");
    const bool text = column->kind == REPORT_TEXT, longer = text && strlen(value) > 24;
    report_text_add(html, "<%s%s>", c ? "td" : "th scope=\"row\"",
                    longer               ? " class=\"wrap\""
                    : text               ? ""
                    : t->cells[i].marked ? " class=\"n m\""
                                         : " class=\"n\"");
    if (sign) report_text_add(html, "%s", sign);
    report_text_html(html, value);
    if (sign) report_text_add(html, "</span>");
    if (*range) {
      report_text_add(html, " <span class=\"i\">");
      report_text_html(html, range);
      report_text_add(html, "</span>");
    }
    report_text_add(html, c ? "</td>" : "</th>");
    if (c + 1 == t->column_count) report_text_add(html, "</tr>\n");
  }
  report_text_add(html, "</tbody></table></div>\n");
}

static void add_markdown(report_text *markdown, const report_table *t) {
  char value[1100], range[160];
  report_text_add(markdown, "|");
  for (uint32_t c = 0; c < t->column_count; c++) {
    report_text_add(markdown, " ");
    report_text_markdown(markdown, t->columns[c].title);
    report_text_add(markdown, " |");
  }
  report_text_add(markdown, "\n|");
  for (uint32_t c = 0; c < t->column_count; c++)
    report_text_add(markdown, t->columns[c].kind == REPORT_TEXT ? "---|" : "---:|");
  for (size_t i = 0; i < t->cell_count; i++) {
    const uint32_t c = (uint32_t)(i % t->column_count);
    show(&t->columns[c], &t->cells[i], value, sizeof value, range, sizeof range);
    report_text_add(markdown, c ? " " : "\n| ");
    if (t->cells[i].marked) report_text_add(markdown, "**");
    report_text_markdown(markdown, value);
    if (*range) report_text_add(markdown, " ");
    report_text_markdown(markdown, range);
    report_text_add(markdown, t->cells[i].marked ? "** |" : " |");
  }
  report_text_add(markdown, "\n\n");
}

static void add_csv_text(report_text *csv, const char *text) {
  report_text_add(csv, "\"");
  for (const char *c = text; *c; c++) {
    if (*c == '"') report_text_add(csv, "\"");
    report_text_add(csv, "%c", *c);
  }
  report_text_add(csv, "\"");
}

static void add_csv_number(report_text *csv, double value) {
  if (isfinite(value)) report_text_add(csv, "%.10g", value);
}

static void add_csv(report_text *csv, const report_table *t) {
  for (uint32_t c = 0; c < t->column_count; c++) {
    const char *key = t->columns[c].key;
    report_text_add(csv, "%s%s", c ? "," : "", key);
    if (t->columns[c].interval) report_text_add(csv, ",%s_low,%s_high", key, key);
  }
  for (size_t i = 0; i < t->cell_count; i++) {
    const uint32_t c = (uint32_t)(i % t->column_count);
    const report_cell *cell = &t->cells[i];
    report_text_add(csv, c ? "," : "\n");
    if (t->columns[c].kind == REPORT_TEXT)
      add_csv_text(csv, cell->text ? cell->text : "");
    else
      add_csv_number(csv, cell->value);
    if (!t->columns[c].interval) continue;
    report_text_add(csv, ",");
    add_csv_number(csv, cell->low);
    report_text_add(csv, ",");
    add_csv_number(csv, cell->high);
  }
  report_text_add(csv, "\n");
}

void report_table_end(report_doc *doc, report_table *table) {
  report_text csv = {0};
  if (table->failed && doc->status == KEDGE_OK) doc->status = KEDGE_ERR_MEMORY;
  if (doc->status == KEDGE_OK && table->name) {
    add_csv(&csv, table);
    char *path = kedge_format("%s/tables/%s.csv", doc->folder, table->name);
    doc->status = path && !csv.failed ? kedge_file_write(path, csv.at, csv.length) : KEDGE_ERR_MEMORY;
    kedge_free(path);
  } else if (doc->status == KEDGE_OK && table->cell_count) {
    add_html(&doc->html, table);
    add_markdown(&doc->markdown, table);
  } else if (doc->status == KEDGE_OK) {
    report_note(doc, "No cell has this yet.");
  }
  for (size_t i = 0; i < table->cell_count; i++) kedge_free(table->cells[i].text);
  kedge_free(table->cells);
  kedge_free(csv.at);
  *table = (report_table){0};
}
