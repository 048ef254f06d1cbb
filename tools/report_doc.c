/* SPDX-License-Identifier: Apache-2.0
 * Page and Markdown (report_doc.h). The page is one file: style, figures and all, without scripts and without
 * anything that is fetched. */
#include "tools/report_doc.h"

#include "models/checkpoint/atomic.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- Text
 * ------------------------------------------------------------------------------------------------------- */

static bool reserve(report_text *t, size_t more) {
  if (t->failed) return false;
  if (t->length + more + 1 <= t->capacity) return true;
  const size_t capacity = 2 * (t->length + more + 1);
  char *grown = kedge_realloc(t->at, capacity, 1);
  if (grown)
    t->at = grown, t->capacity = capacity;
  else
    t->failed = true;
  return grown != NULL;
}

static void add_bytes(report_text *t, const char *bytes, size_t count) {
  if (!reserve(t, count)) return;
  memcpy(t->at + t->length, bytes, count);
  t->length += count;
  t->at[t->length] = 0;
}

static void add_arguments(report_text *t, const char *format, va_list arguments) {
  va_list again;
  va_copy(again, arguments);
  const int length = vsnprintf(NULL, 0, format, again);
  va_end(again);
  if (length < 0 || !reserve(t, (size_t)length)) return;
  vsnprintf(t->at + t->length, (size_t)length + 1, format, arguments);
  t->length += (size_t)length;
}

void report_text_add(report_text *text, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  add_arguments(text, format, arguments);
  va_end(arguments);
}

void report_text_html(report_text *text, const char *plain) {
  for (const char *c = plain; *c; c++) switch (*c) {
    case '&':
      add_bytes(text, "&amp;", 5);
      break;
    case '<':
      add_bytes(text, "&lt;", 4);
      break;
    case '>':
      add_bytes(text, "&gt;", 4);
      break;
    case '"':
      add_bytes(text, "&quot;", 6);
      break;
    case '\'':
      add_bytes(text, "&#39;", 5);
      break;
    default:
      /* Control characters have no place in HTML. */
      if ((unsigned char)*c < 0x20 && *c != '\n')
        add_bytes(text, " ", 1);
      else
        add_bytes(text, c, 1);
    }
}

void report_text_markdown(report_text *text, const char *plain) {
  for (const char *c = plain; *c; c++) {
    if (*c == '&' || *c == '<')
      report_text_add(text, *c == '&' ? "&amp;" : "&lt;");
    else if ((unsigned char)*c < 0x20)
      add_bytes(text, " ", 1);
    else {
      if (strchr("\\`*_[]|#", *c)) add_bytes(text, "\\", 1);
      add_bytes(text, c, 1);
    }
  }
}

/* ---- Parts
 * ------------------------------------------------------------------------------------------------------ */

void report_begin(report_doc *doc, const char *folder, bool plots) {
  *doc = (report_doc){.folder = folder, .plots = plots};
}

void report_section(report_doc *doc, const char *anchor, const char *title) {
  report_text_add(&doc->nav, "<a href=\"#%s\">", anchor);
  report_text_html(&doc->nav, title);
  report_text_add(&doc->nav, "</a>\n");
  report_text_add(&doc->html, "<h2 id=\"%s\">", anchor);
  report_text_html(&doc->html, title);
  report_text_add(&doc->html, "</h2>\n");
  report_text_add(&doc->markdown, "## ");
  report_text_markdown(&doc->markdown, title);
  report_text_add(&doc->markdown, "\n\n");
}

static void both(report_doc *doc, const char *before, const char *after, const char *mark, const char *text) {
  report_text_add(&doc->html, "%s", before);
  report_text_html(&doc->html, text);
  report_text_add(&doc->html, "%s\n", after);
  report_text_add(&doc->markdown, "%s", mark);
  report_text_markdown(&doc->markdown, text);
  report_text_add(&doc->markdown, "\n\n");
}

void report_heading(report_doc *doc, const char *title) {
  both(doc, "<h3>", "</h3>", "### ", title);
}

static void say(report_doc *doc, const char *before, const char *format, va_list arguments) {
  report_text plain = {0};
  add_arguments(&plain, format, arguments);
  if (plain.at)
    both(doc, before, "</p>", "", plain.at);
  else
    doc->html.failed = true;
  kedge_free(plain.at);
}

void report_say(report_doc *doc, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  say(doc, "<p>", format, arguments);
  va_end(arguments);
}

void report_note(report_doc *doc, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  say(doc, "<p class=\"note\">", format, arguments);
  va_end(arguments);
}

void report_list(report_doc *doc, char *const *items, uint32_t count) {
  report_text_add(&doc->html, "<ol class=\"findings\">\n");
  for (uint32_t i = 0; i < count; i++) {
    report_text_add(&doc->html, "<li>");
    report_text_html(&doc->html, items[i]);
    report_text_add(&doc->html, "</li>\n");
    report_text_add(&doc->markdown, "%u. ", i + 1);
    report_text_markdown(&doc->markdown, items[i]);
    report_text_add(&doc->markdown, "\n");
  }
  report_text_add(&doc->html, "</ol>\n");
  report_text_add(&doc->markdown, "\n");
}

/* In Markdown a code block is indented by four blanks, so that nothing in it can end it. */
void report_fold(report_doc *doc, const char *summary, const char *text) {
  report_text_add(&doc->html, "<details><summary>");
  report_text_html(&doc->html, summary);
  report_text_add(&doc->html, "</summary><pre>");
  report_text_html(&doc->html, text);
  report_text_add(&doc->html, "</pre></details>\n");
  report_text_markdown(&doc->markdown, summary);
  report_text_add(&doc->markdown, ":\n\n    ");
  for (const char *c = text; *c; c++) {
    add_bytes(&doc->markdown, c, 1);
    if (*c == '\n') add_bytes(&doc->markdown, "    ", 4);
  }
  report_text_add(&doc->markdown, "\n\n");
}

/* ---- Figures
 * ---------------------------------------------------------------------------------------------------- */

void report_figures_begin(report_doc *doc) {
  report_text_add(&doc->html, "<div class=\"figures\">\n");
}

void report_figures_end(report_doc *doc) {
  report_text_add(&doc->html, "</div>\n");
}

static bool starts(const char *text, const char *with) {
  return !strncmp(text, with, strlen(with));
}

/* gnuplot's file becomes part of the page: names of its parts are made unique, grey text takes the page's
 * colour, the size follows the page. */
static void embed(report_text *html, const char *svg, uint32_t number) {
  static const char grey[] = "fill=\"rgb(119,119,119)\"", size[] = "<svg";
  const char *at = strstr(svg, size);
  if (!at) return;
  while (*at) {
    if (starts(at, "id='") || starts(at, "id=\"")) {
      report_text_add(html, "%.4sf%u-", at, number);
      at += 4;
    } else if (starts(at, "href='#") || starts(at, "href=\"#")) {
      report_text_add(html, "%.7sf%u-", at, number);
      at += 7;
    } else if (starts(at, "url(#")) {
      report_text_add(html, "url(#f%u-", number);
      at += 5;
    } else if (starts(at, grey)) {
      report_text_add(html, "class=\"ink\"");
      at += sizeof grey - 1;
    } else if (starts(at, "<title>") || starts(at, "<desc>")) {
      const char *end = strstr(at, starts(at, "<title>") ? "</title>" : "</desc>");
      at = end ? strchr(end, '>') + 1 : at + strlen(at);
    } else {
      add_bytes(html, at++, 1);
    }
  }
}

void report_figure(report_doc *doc, const char *name, const char *caption) {
  enum { MOST_BYTES = 32 << 20 };
  char *svg = NULL, *path = kedge_format("%s/plots/%s.svg", doc->folder, name);
  size_t bytes;
  if (doc->status == KEDGE_OK)
    doc->status = path ? kedge_file_read(path, MOST_BYTES, &svg, &bytes) : KEDGE_ERR_MEMORY;
  kedge_free(path);
  if (doc->status != KEDGE_OK) return;
  report_text_add(&doc->html, "<figure role=\"img\" aria-label=\"");
  report_text_html(&doc->html, caption);
  report_text_add(&doc->html, "\">\n");
  embed(&doc->html, svg, ++doc->figures);
  report_text_add(&doc->html, "<figcaption>");
  report_text_html(&doc->html, caption);
  report_text_add(&doc->html, "</figcaption></figure>\n");
  report_text_add(&doc->markdown, "![");
  report_text_markdown(&doc->markdown, caption);
  report_text_add(&doc->markdown, "](plots/%s.svg)\n\n", name);
  kedge_free(svg);
}

/* ---- The end
 * ---------------------------------------------------------------------------------------------------- */

/* Okabe and Ito's colours keep apart for every kind of colour vision. */
static const char style[] =
    ":root{color-scheme:light dark;--ink:#1b1f24;--soft:#59636e;--back:#fff;--card:#f6f7f9;--line:#d4d9df;"
    "--link:#0072b2;--good:#00724f;--bad:#b04a00;--bold:#eaf3f9}\n"
    "@media(prefers-color-scheme:dark){:root{--ink:#e4e8ec;--soft:#a0a9b3;--back:#14171b;--card:#1d2126;"
    "--line:#3a4149;--link:#56b4e9;--good:#35c79b;--bad:#f0a35e;--bold:#1b3242}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0;background:var(--back);color:var(--ink);font:16px/1.5 system-ui,-apple-system,\"Segoe "
    "UI\",Roboto,\"DejaVu Sans\",sans-serif;overflow-wrap:anywhere}\n"
    "main,header,nav{max-width:1200px;margin:0 auto;padding:0 16px}\n"
    "header{padding-top:28px}h1{font-size:1.7rem;line-height:1.25;margin:0 0 8px}\n"
    "h2{font-size:1.25rem;margin:40px 0 8px;padding-top:12px;border-top:1px solid var(--line)}\n"
    "h3{font-size:1rem;margin:24px 0 6px}p{margin:8px 0;max-width:75ch}\n"
    ".badge{display:inline-block;border:1px solid "
    "var(--line);background:var(--card);border-radius:4px;padding:"
    "2px 10px;font-size:.9rem}\n"
    "nav{display:flex;flex-wrap:wrap;gap:2px 16px;margin-top:16px;font-size:.9rem}a{color:var(--link)}\n"
    ".note,figcaption{color:var(--soft);font-size:.88rem}\n"
    ".findings{background:var(--card);border-left:4px solid var(--link);border-radius:4px;padding:14px 18px "
    "14px 40px;margin:12px 0}.findings li{margin:6px 0;max-width:80ch}\n"
    ".scroll{overflow-x:auto;width:fit-content;max-width:100%;margin:10px 0;border:1px solid "
    "var(--line);border-radius:4px}\n"
    "table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums;overflow-wrap:normal;"
    "}\n"
    "th,td{padding:5px 10px;text-align:left;border-bottom:1px solid var(--line);white-space:nowrap}\n"
    "th.wrap,td.wrap{white-space:normal;min-width:min(42vw,15em)}\n"
    "thead th{background:var(--card);vertical-align:bottom;white-space:normal;min-width:4.5em;"
    "max-width:14em}tbody tr:last-child>*{border-bottom:0}\n"
    ".n{text-align:right}tbody "
    "th{font-weight:400;position:sticky;left:0;background:var(--back);min-width:min(40vw,7em);max-width:min("
    "46vw,24em);"
    "white-space:normal}\n"
    "td.m{background:var(--bold);font-weight:600}.i{display:block;color:var(--soft);font-size:.92em;font-"
    "weight:"
    "400}\n"
    ".good{color:var(--good);font-weight:600}.bad{color:var(--bad);font-weight:600}\n"
    ".figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,480px),1fr));gap:20px;"
    "margin:"
    "14px 0}\n"
    "figure{margin:0;min-width:0}figure svg{width:100%;height:auto;max-width:500px;display:block}\n"
    "svg .ink{fill:var(--ink)}\n"
    "details{margin:8px 0}summary{cursor:pointer}pre{background:var(--card);padding:10px;overflow-x:auto;"
    "font-size:.82rem;overflow-wrap:normal;border-radius:4px}\n"
    "footer{max-width:1200px;margin:40px auto 0;padding:12px 16px 32px;color:var(--soft);font-size:.88rem}\n"
    "@media "
    "print{@page{size:A4;margin:12mm}:root{--ink:#000;--soft:#444;--back:#fff;--card:#f4f4f4;--line:#bbb;"
    "--link:#000;--good:#00543a;--bad:#8a3a00;--bold:#e8eef2}body{font-size:10pt}nav{display:none}\n"
    ".scroll{overflow:visible;border:0}table{font-size:6.6pt}th,td{padding:2px "
    "4px}th.wrap,td.wrap{min-width:9em}"
    ".note,figcaption{font-size:8pt}"
    "tbody th{position:static}\n"
    "tr,figure{break-inside:avoid}h2,h3{break-after:avoid}.figures{grid-template-columns:1fr 1fr}}\n";

static kedge_status write_text(const char *folder, const char *name, const report_text *text) {
  char *path = kedge_path_join(folder, name);
  kedge_status status =
      path && !text->failed && text->at ? kedge_file_write(path, text->at, text->length) : KEDGE_ERR_MEMORY;
  kedge_free(path);
  return status;
}

kedge_status report_end(report_doc *doc, const char *title, const char *badge) {
  report_text page = {0}, markdown = {0};
  kedge_status status = doc->status;
  if (doc->html.failed || doc->nav.failed || doc->markdown.failed) status = KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) {
    report_text_add(&page, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
                           "name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>");
    report_text_html(&page, title);
    report_text_add(&page, "</title>\n<style>\n%s</style>\n</head>\n<body>\n<header>\n<h1>", style);
    report_text_html(&page, title);
    report_text_add(&page, "</h1>\n<span class=\"badge\">");
    report_text_html(&page, badge);
    report_text_add(&page, "</span>\n</header>\n<nav>\n%s</nav>\n<main>\n", doc->nav.at ? doc->nav.at : "");
    if (doc->html.at) add_bytes(&page, doc->html.at, doc->html.length);
    report_text_add(&page,
                    "</main>\n<footer>Every table stands beside this page as CSV (tables/) and all of it "
                    "as Markdown (report.md).</footer>\n</body>\n</html>\n");
    report_text_add(&markdown, "# ");
    report_text_markdown(&markdown, title);
    report_text_add(&markdown, "\n\n");
    report_text_markdown(&markdown, badge);
    report_text_add(&markdown, "\n\n");
    if (doc->markdown.at) add_bytes(&markdown, doc->markdown.at, doc->markdown.length);
    status = write_text(doc->folder, "report.md", &markdown);
    if (status == KEDGE_OK) status = write_text(doc->folder, "index.html", &page);
  }
  kedge_free(page.at);
  kedge_free(markdown.at);
  kedge_free(doc->html.at);
  kedge_free(doc->nav.at);
  kedge_free(doc->markdown.at);
  *doc = (report_doc){0};
  return status;
}
