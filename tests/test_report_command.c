/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * `kedge report` as a program: what it writes of whole, unfinished and empty studies, that nothing in names
 * gets into the page or into gnuplot, that the page needs nothing beside it, and what is refused. */
#include "tests/support/files.h"
#include "tests/support/program.h"
#include "tests/support/studies.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *at(const char *name) {
  return test_path(test_folder(), name);
}

static char *text_of(const char *name) {
  size_t bytes;
  return test_read(at(name), &bytes);
}

static void holds(const char *text, const char *part, const char *what) {
  if (!strstr(text, part)) fail_msg("%s does not hold: %s", what, part);
}

static void lacks(const char *text, const char *part, const char *what) {
  const char *found = strstr(text, part);
  if (found) fail_msg("%s holds \"%s\": %.80s", what, part, found);
}

static char *page_of(const char *folder) {
  char path[200];
  snprintf(path, sizeof path, "%s/report/index.html", folder);
  return text_of(path);
}

static bool gnuplot(void) {
  test_run run = test_run_shell("command -v gnuplot");
  const bool found = run.exit_code == 0;
  test_run_free(&run);
  if (!found) print_message("gnuplot is not here: figures are not looked at\n");
  return found;
}

static const char *const sections[] = {"findings",    "run",       "bases",    "accuracy",     "contrasts",
                                       "orderings",   "strengths", "mismatch", "retention",    "selection",
                                       "communities", "use",       "losses",   "configuration"};
static const char *const tables[] = {"means", "contrasts", "orderings", "scores", "cells", "losses"};

/* Every section has its anchor, and nothing is fetched from anywhere. */
static void check_page(const char *page) {
  char anchor[64];
  for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
    snprintf(anchor, sizeof anchor, "<h2 id=\"%s\">", sections[i]);
    holds(page, anchor, "the page");
  }
  static const char *const remote[] = {
      "<script", "<link", "@import", "src=", "href=\"http", "href='http", "url(http"};
  for (size_t i = 0; i < sizeof remote / sizeof *remote; i++) lacks(page, remote[i], "the page");
  holds(page, "prefers-color-scheme:dark", "the page");
  holds(page, "@media print", "the page");
}

/* No name in the page stands for two things. */
static void check_ids(const char *page) {
  char name[80], again[100];
  for (const char *c = page; (c = strstr(c, " id=")); c++) {
    const size_t length = strcspn(c + 5, "'\"");
    if (length >= sizeof name) continue;
    snprintf(name, sizeof name, "%.*s", (int)length, c + 5);
    snprintf(again, sizeof again, " id=%c%s%c", c[4], name, c[4]);
    if (strstr(c + 5, again)) fail_msg("\"%s\" stands twice", name);
  }
}

static void test_whole(void **state) {
  (void)state;
  static const test_study study = {"quick", 2, 3, 1, 1, 1, false, 1, 0.02, NULL};
  const bool drawn = gnuplot();
  test_study_write(at("quick"), &study);
  test_run run = test_kedge("report quick", 0, "");
  holds(run.out, "1. quick: 26 of 26 cells; E16K2: 2 bases, 1 split, 4 conditions, 3 seeds", "the output");
  holds(run.out, "\n5. Of the paper's orderings", "the output");
  holds(run.out, "\nreport: /", "the output");
  holds(run.out, "/quick/report/index.html\n", "the output");
  test_run_free(&run);
  char *page = page_of("quick");
  check_page(page);
  holds(page, "a demonstration without power", "the page");
  static const char *const parts[] = {
      "RPB 1",
      "E16K2-b1",
      "Holm",
      "KL a token",
      "Audit of the router",
      "0123456789abcdef",
      "adds a load-balancing loss with this coefficient", /* what LBL 0.01 and RPB 1 do */
      "Router Prior Bias: in training alone",
      "<td>RPB 1 \u2212 SFT</td>"};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) holds(page, parts[i], "the page");
  if (drawn) {
    check_ids(page);
    static const char *const axes[] = {"accuracy, %",
                                       "points of percent",
                                       "top-k overlap with the base (share)",
                                       "training loss, nats a token",
                                       "MoE layer",
                                       "expert (number)"};
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++) holds(page, axes[i], "the page");
    lacks(page, "color='white'/>", "a figure");
  }
  free(page);
  for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
    char path[100];
    snprintf(path, sizeof path, "quick/report/tables/%s.csv", tables[i]);
    assert_true(test_exists(at(path)));
  }
  char *markdown = text_of("quick/report/report.md");
  holds(markdown, "## The paper's orderings", "report.md");
  holds(markdown, "| RPB 1 |", "report.md");
  free(markdown);
}

/* The same bytes again, and elsewhere. */
static void test_again(void **state) {
  (void)state;
  test_kedge_expect("report quick --out again/deep", 0, "");
  assert_true(test_same_file(at("again/deep/index.html"), at("quick/report/index.html")));
  assert_true(test_same_file(at("again/deep/report.md"), at("quick/report/report.md")));
  assert_true(test_same_file(at("again/deep/tables/contrasts.csv"), at("quick/report/tables/contrasts.csv")));
}

/* The column of a row whose first columns begin as given. */
static double csv_number(const char *csv, const char *row, unsigned column) {
  const char *c = strstr(csv, row);
  if (!c) fail_msg("no row %s", row);
  for (; column; column--) c = strchr(c, ',') + 1;
  return strtod(c, NULL);
}

static void test_table(void **state) {
  (void)state;
  char *csv = text_of("quick/report/tables/contrasts.csv");
  holds(csv, "size,arm,split,condition,less,measure,primary,mean,mean_low,mean_high,p_bootstrap",
        "the table");
  const char *row = "\"E16K2\",\"short\",\"all\",\"lbl_1e-2\",\"sft\",\"ood\"";
  assert_true(fabs(csv_number(csv, row, 7) + 0.05) < 0.01);
  assert_true(csv_number(csv, row, 8) < csv_number(csv, row, 7));
  assert_true(csv_number(csv, row, 6) == 1 && csv_number(csv, row, 15) == 2 && csv_number(csv, row, 16) == 6);
  free(csv);
}

/* Names are data wherever they go. */
static void test_names(void **state) {
  (void)state;
  static const test_study study = {"quick", 2,     1, 1,    1,
                                   1,       false, 1, 0.02, "<script>\"`touch owned`'&|*$(x)</script>\n\\"};
  test_study_write(at("names"), &study);
  test_kedge_expect("report names", 0, "");
  char *page = page_of("names"), *markdown = text_of("names/report/report.md");
  check_page(page);
  holds(page, "&lt;script&gt;&quot;`touch owned`&#39;&amp;|*$(x)&lt;/script&gt;", "the page");
  lacks(markdown, "<script", "report.md");
  assert_false(test_exists(at("owned")));
  free(page), free(markdown);
}

static void test_unfinished(void **state) {
  (void)state;
  static const test_study study = {"standard", 2, 2, 2, 2, 2, false, 1, 0.02, NULL};
  test_study_write(at("half"), &study);
  test_remove(at("half/cells/E16K2-b0.json"));
  test_remove(at("half/cells/E16K2-b0-arithS-short-sft-s0.json"));
  test_remove(at("half/cells/E32K4-b1-stringS-long-rpb_1-s1.json"));
  test_write_text(
      at("half/cells/E16K2-b1-arithS-short-sft-s0.json"),
      "{\"kedge_lab_cell\": 1, \"size\": \"E16K2\", \"base\": 1, \"shift\": \"arithS\", \"arm\": \"short\", "
      "\"condition\": \"sft\", \"seed\": 0}");
  test_write_text(at("half/cells/E16K2-b1-arithS-short-sft-s1.json.tmp-1"), "half a f");
  test_kedge_expect("report half", 0, "");
  char *page = page_of("half");
  check_page(page);
  holds(page, "129 of 132 cells are finished", "the page");
  holds(page, "not counting the pretraining of the bases", "the page");
  holds(page, "E32K4, long, stringS", "the page");
  free(page);
}

static void test_empty(void **state) {
  (void)state;
  static const test_study study = {"quick", 0, 0, 1, 1, 1, false, 1, 0.02, NULL};
  test_study_write(at("empty"), &study);
  test_run run = test_kedge("report empty", 0, "");
  holds(run.out, "quick: 0 of 0 cells", "the output");
  test_run_free(&run);
  test_remove(at("empty/cells"));
  test_kedge_expect("report empty", 0, "");
  char *page = page_of("empty");
  check_page(page);
  free(page);
}

static void test_no_figures(void **state) {
  (void)state;
  test_kedge_expect("report quick --out plain --no-plots", 0, "");
  char *page = text_of("plain/index.html");
  holds(page, "gnuplot-nox", "the page");
  lacks(page, "<svg", "the page");
  free(page);
  char *path = strdup(getenv("PATH") ? getenv("PATH") : "");
  setenv("PATH", "/nonexistent", 1);
  test_kedge_expect("report quick --out bare", 0, "");
  setenv("PATH", path, 1);
  free(path);
  assert_true(test_same_file(at("bare/index.html"), at("plain/index.html")));
}

/* ---- What is refused
 * --------------------------------------------------------------------------------------------- */

#define NAMES "\"domains\":[\"arithmetic\",\"facts\"],\"splits\":[\"arithS\"]"
#define SFT   "\"conditions\":[{\"name\":\"sft\"}]"

static void test_bad_labs(void **state) {
  (void)state;
  static const struct {
    const char *text, *message;
  } cases[] = {
      {"", "lab.json: line 1"},
      {"[1]", "\"kedge_lab\": 1"},
      {"{\"kedge_lab\":2}", "\"kedge_lab\": 1"},
      {"{\"kedge_lab\":1," NAMES "}", "\"conditions\": expected a list"},
      {"{\"kedge_lab\":1,\"conditions\":[]," NAMES "}", "\"conditions\""},
      {"{\"kedge_lab\":1,\"conditions\":[3]," NAMES "}", "entry 0: expected an object, came an integer"},
      {"{\"kedge_lab\":1,\"conditions\":[{\"name\":\"\"}]," NAMES "}", "entry 0 has no name"},
      {"{\"kedge_lab\":1,\"conditions\":[{\"name\":\"a\"},{\"name\":\"a\"}]," NAMES "}",
       "stands there twice"},
      {"{\"kedge_lab\":1," SFT "}", "\"domains\": expected a list of names, came nothing"},
      {"{\"kedge_lab\":1," SFT ",\"domains\":[]}", "came an empty one"},
      {"{\"kedge_lab\":1," SFT ",\"domains\":[{}]}", "\"domains\": entry 0"},
      {"{\"kedge_lab\":1," SFT ",\"domains\":[\"facts\"],\"splits\":[\"arithS\"]}", "none of the domains"},
      {"{\"kedge_lab\":1," SFT "," NAMES ",\"primary\":[[\"sft\",3]]}", "\"primary\": entry 0"},
      {"{\"kedge_lab\":1," SFT "," NAMES ",\"cells_expected\":\"many\"}",
       "expected a number, came a string"}};
  test_kedge_expect("report absent", 2, "absent/lab.json");
  test_kedge_expect("report", 2, "");
  test_make_folder(at("bad"));
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    test_write_text(at("bad/lab.json"), cases[i].text);
    test_kedge_expect("report bad", 2, cases[i].message);
  }
  assert_false(test_exists(at("bad/report")));
}

#define CELL                                                                                                 \
  "{\"kedge_lab_cell\":1,\"size\":\"E\",\"base\":0,\"shift\":\"arithS\",\"arm\":\"short\",\"condition\":"    \
  "\"sft\","                                                                                                 \
  "\"seed\":0"

static void test_bad_cells(void **state) {
  (void)state;
  static const struct {
    const char *text, *message;
  } cases[] = {
      {"{", "c.json: line 1"},
      {"[]", "\"kedge_lab_cell\": 1"},
      {"{\"kedge_lab_cell\":1}", "no \"condition\""},
      {"{\"kedge_lab_cell\":1,\"condition\":\"sft\"}", "no \"size\""},
      {"{\"kedge_lab_cell\":1,\"condition\":\"sft\",\"size\":\"E\",\"base\":-1}",
       "\"base\": expected a whole"},
      {"{\"kedge_lab_cell\":1,\"condition\":\"sft\",\"size\":\"E\",\"base\":0.5}",
       "\"base\": expected a whole"},
      {"{\"kedge_lab_cell\":1,\"condition\":\"sft\",\"size\":\"E\",\"base\":0}",
       "\"seed\": expected a whole"},
      {CELL ",\"accuracy\":3}", "\"accuracy\": expected an object, came an integer"},
      {CELL ",\"accuracy\":{\"facts\":3}}", "accuracy.facts: expected an object"},
      {CELL ",\"accuracy\":{\"facts\":{\"right\":5,\"items\":0}}}", "0 <= right <= items"},
      {CELL ",\"accuracy\":{\"facts\":{\"right\":5,\"items\":4}}}", "0 <= right <= items"},
      {CELL ",\"accuracy\":{\"facts\":{\"right\":5}}}", "0 <= right <= items"},
      {CELL ",\"nll\":{\"facts\":\"low\"}}", "nll.facts: expected a number"},
      {CELL ",\"nll\":{\"facts\":1e300}}", "nll.facts: expected a number up to 1e12"},
      {CELL ",\"routing\":[]}", "\"routing\": expected an object, came an array"},
      {CELL ",\"selection\":{\"facts\":{\"nll_rank\":1}}}", "nll_rank: expected a list"},
      {CELL ",\"utilisation\":{\"facts\":[[0.5],[0.5,0.5]]}}", "layer 1: expected 1 experts, came 2"},
      {CELL ",\"utilisation\":{\"facts\":[[2]]}}", "expected a share, came 2"},
      {CELL ",\"utilisation\":{\"facts\":7}}", "a list of layers"},
      {CELL ",\"train\":{\"curve\":{\"step\":[1],\"loss\":[]}}}", "as many steps as losses"},
      {CELL ",\"hashes\":{\"model\":1}}", "\"model\": expected a string"},
      {CELL ",\"seed\":1}", "duplicate"}};
  test_make_folder(at("bad/cells"));
  test_write_text(at("bad/lab.json"), "{\"kedge_lab\":1," SFT "," NAMES "}");
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    test_write_text(at("bad/cells/c.json"), cases[i].text);
    test_kedge_expect("report bad", 2, cases[i].message);
  }
  test_write_text(at("bad/cells/c.json"), CELL "}");
  test_write_text(at("bad/cells/d.json"), CELL "}");
  test_kedge_expect("report bad", 2, "are the same cell");
  test_remove(at("bad/cells/d.json"));
  test_kedge_expect("report bad", 0, "");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_whole),      cmocka_unit_test(test_again),      cmocka_unit_test(test_table),
      cmocka_unit_test(test_names),      cmocka_unit_test(test_unfinished), cmocka_unit_test(test_empty),
      cmocka_unit_test(test_no_figures), cmocka_unit_test(test_bad_labs),   cmocka_unit_test(test_bad_cells)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
