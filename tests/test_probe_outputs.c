/* SPDX-License-Identifier: Apache-2.0
 * ctest: quick
 *
 * What `kedge probe` writes: communities in table, JSON and file, matrices, pictures, runs. Traces are drawn
 * with two hidden groups of experts, so that it is known what must be found. */
#include "models/retention/probe.h"
#include "tests/support/files.h"
#include "tests/support/program.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void ok(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

static const char *at(const char *name) {
  return test_path(test_folder(), name);
}

static uint32_t draw(uint32_t *state, uint32_t below) {
  *state = *state * 1664525u + 1013904223u;
  return (uint32_t)((uint64_t)*state * below >> 32);
}

enum { TOKENS = 400, LAYERS = 2, EXPERTS = 12, TOPK = 3, SAMPLES = 20 };

/* Each token takes its three experts from the even ones or from the odd ones; in layer 1, from the lower or
 * upper half. One token in ten takes any. */
static kedge_trace grouped(uint32_t seed) {
  kedge_trace t;
  ok(kedge_trace_init(&t, TOKENS, LAYERS, EXPERTS, TOPK));
  for (uint32_t row = 0; row < TOKENS * LAYERS; row++) {
    uint32_t group = draw(&seed, 2), loose = draw(&seed, 10) == 0;
    int32_t *ids = t.ids + (size_t)row * TOPK;
    for (uint32_t k = 0; k < TOPK;) {
      uint32_t member = draw(&seed, EXPERTS / 2);
      int32_t e = (int32_t)(row % LAYERS ? member + group * (EXPERTS / 2) : 2 * member + group);
      if (loose) e = (int32_t)draw(&seed, EXPERTS);
      bool taken = false;
      for (uint32_t i = 0; i < k; i++) taken = taken || ids[i] == e;
      if (!taken) ids[k++] = e;
    }
  }
  for (uint32_t i = 0; i < TOKENS; i++) t.samples[i] = (int32_t)(i / (TOKENS / SAMPLES)), t.spans[i] = 1;
  t.layer_numbers[0] = 1, t.layer_numbers[1] = 2;
  return t;
}

static int prepare(void **state) {
  (void)state;
  kedge_trace base = grouped(1), post = grouped(2);
  ok(kedge_trace_save(&base, at("base.st")));
  ok(kedge_trace_save(&post, at("post.st")));
  kedge_trace_destroy(&base), kedge_trace_destroy(&post);
  return 0;
}

#define FEW " --rho 0.1,0.4 --seeds 3 --nulls 20 "

static double real(const json_t *object, const char *a, const char *b) {
  const json_t *value = json_object_get(json_object_get(object, a), b);
  if (!json_is_number(value)) fail_msg("%s.%s is not a number", a, b);
  return json_number_value(value);
}

static void test_report(void **state) {
  (void)state;
  json_t *report = test_kedge_json("probe --base base.st --post post.st" FEW "--json -");
  const json_t *domain = json_array_get(json_object_get(report, "domains"), 0);
  const json_t *found = json_object_get(domain, "communities");
  const json_t *row = json_array_get(json_object_get(found, "by_rho"), 1);
  assert_string_equal(json_string_value(json_object_get(found, "detector")), "louvain");
  assert_string_equal(json_string_value(json_object_get(found, "objective")), "modularity");
  assert_int_equal(json_integer_value(json_object_get(found, "nulls")), 20);
  assert_true(json_number_value(json_object_get(row, "rho")) == 0.4);
  /* Both models have the two groups in each layer; by chance there are none. */
  assert_true(real(row, "nmi", "median") == 1 && real(row, "ami", "median") == 1);
  assert_true(real(row, "label_permuted_nmi", "median") < 0.5);
  const json_t *side = json_object_get(row, "base");
  assert_int_equal(json_integer_value(json_object_get(side, "communities")), 4);
  assert_int_equal(json_integer_value(json_object_get(side, "isolated")), 0);
  assert_true(real(side, "modularity", "median") > 0.3 && real(side, "null_modularity", "margin") > 0.1);
  assert_true(fabs(real(side, "null_modularity", "rank_p") - 1.0 / 21) < 1e-12);
  assert_true(real(side, "split_half_nmi", "median") > 0.9);
  assert_int_equal(json_array_size(json_object_get(row, "layers")), LAYERS);
  json_decref(report);
}

static void test_detectors(void **state) {
  (void)state;
  json_t *report = test_kedge_json(
      "probe --trace base.st --trace post.st --detector leiden --split samples" FEW "--json -");
  const json_t *pair = json_array_get(json_object_get(report, "domain_pairs"), 0);
  const json_t *scores = json_array_get(json_object_get(json_object_get(pair, "base"), "communities"), 1);
  assert_true(json_number_value(json_object_get(scores, "nmi")) == 1);
  assert_null(json_object_get(report, "tvd_mean"));
  json_decref(report);
  report = test_kedge_json("probe --base base.st --no-communities --json -");
  assert_null(json_object_get(json_array_get(json_object_get(report, "domains"), 0), "communities"));
  json_decref(report);
  test_run run = test_kedge("probe --base base.st --post post.st" FEW, 0, "");
  static const char *const parts[] = {"louvain (igraph", "communities kept", "ceiling", "floor"};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    if (!strstr(run.out, parts[i])) fail_msg("\"%s\" is not in: %s", parts[i], run.out);
  test_run_free(&run);
}

/* The same bytes with one worker and with three, and with the samples in another order. */
static void test_workers(void **state) {
  (void)state;
  kedge_trace t, turned = grouped(1);
  test_kedge_expect("probe --base base.st" FEW "--json one.json --threads 1", 0, "");
  test_kedge_expect("probe --base base.st" FEW "--json three.json --threads 3", 0, "");
  assert_true(test_same_file(at("one.json"), at("three.json")));
  ok(kedge_trace_load(at("base.st"), &t));
  const size_t row = (size_t)LAYERS * TOPK, per = TOKENS / SAMPLES;
  for (size_t s = 0; s < SAMPLES; s++)
    memcpy(turned.ids + s * per * row, t.ids + (SAMPLES - 1 - s) * per * row, per * row * sizeof *t.ids);
  ok(kedge_trace_save(&turned, at("turned.st")));
  test_kedge_expect("probe --base turned.st" FEW "--json turned.json", 0, "");
  assert_true(test_same_file(at("one.json"), at("turned.json")));
  kedge_trace_destroy(&t), kedge_trace_destroy(&turned);
}

static void test_file(void **state) {
  (void)state;
  kedge_communities c;
  test_kedge_expect("probe --base base.st --rho 0.2,0.4 --communities c.json", 2, "0.1 must be one");
  test_kedge_expect("probe --base base.st --rho 0.4 --seeds 2 --nulls 0 --communities c.json", 0, "");
  ok(kedge_communities_load(at("c.json"), &c));
  assert_true(c.layers == LAYERS && c.experts == EXPERTS && c.layer_numbers[1] == 2);
  for (uint32_t e = 0; e < EXPERTS; e++)
    assert_true(c.labels[e] == e % 2 && c.labels[EXPERTS + e] == e / (EXPERTS / 2));
  kedge_communities_destroy(&c);
  test_kedge_expect("probe --trace base.st --trace post.st --communities d.json", 2, "takes one domain");
  test_kedge_expect("probe --base base.st --no-communities --communities d.json", 2, "leaves out");
  test_kedge_expect("probe --base base.st --communities base.st", 2, "would replace");
  assert_false(test_exists(at("d.json")));
}

static const char *cell(char *csv, unsigned line, unsigned column) {
  static char text[64];
  for (; line; line--) csv = strchr(csv, '\n') + 1;
  for (; column; column--) csv = strchr(csv, ',') + 1;
  snprintf(text, sizeof text, "%.*s", (int)strcspn(csv, ",\n"), csv);
  return text;
}

static void test_csv(void **state) {
  (void)state;
  kedge_trace t;
  size_t bytes;
  test_kedge_expect("probe --trace x=base.st --post-trace x=post.st" FEW "--csv tables", 0, "");
  ok(kedge_trace_load(at("base.st"), &t));
  uint64_t counts[EXPERTS], both = 0;
  kedge_trace_counts(&t, 1, KEDGE_RETENTION_ALL, counts);
  char *csv = test_read(at("tables/utilisation-x-base.csv"), &bytes);
  assert_string_equal(cell(csv, 0, 0), "layer");
  assert_string_equal(cell(csv, 0, 12), "11");
  assert_string_equal(cell(csv, 2, 0), "2");
  assert_true(strtod(cell(csv, 2, 4), NULL) == (double)counts[3] / (TOKENS * TOPK));
  free(csv);
  for (uint32_t i = 0; i < TOKENS; i++) {
    const int32_t *ids = t.ids + ((size_t)i * LAYERS + 1) * TOPK;
    bool two = false, five = false;
    for (int k = 0; k < TOPK; k++) two = two || ids[k] == 2, five = five || ids[k] == 5;
    both += two && five;
  }
  csv = test_read(at("tables/coactivation-x-base-L02.csv"), &bytes);
  assert_true(strtoull(cell(csv, 3, 6), NULL, 10) == both && both > 0);
  assert_true(strtoull(cell(csv, 6, 3), NULL, 10) == both);
  assert_string_equal(cell(csv, 6, 6), "0");
  free(csv);
  csv = test_read(at("tables/communities-x-post.csv"), &bytes);
  assert_string_equal(cell(csv, 4, 1), "0.4");
  assert_string_equal(cell(csv, 4, 13), "1");
  free(csv);
  csv = test_read(at("tables/retention.csv"), &bytes);
  assert_string_equal(cell(csv, 0, 6), "gate_weighted_overlap");
  assert_string_equal(cell(csv, 1, 0), "x");
  assert_string_equal(cell(csv, 1, 1), "all");
  assert_string_equal(cell(csv, 3, 2), "mean");
  assert_string_equal(cell(csv, 1, 6), ""); /* these traces have no gate weights */
  kedge_retention kept;
  kedge_trace post = grouped(2);
  ok(kedge_retention_compare(&t, &post, KEDGE_RETENTION_ALL, &kept));
  assert_true(fabs(strtod(cell(csv, 2, 7), NULL) - kept.layers[1].top1) < 1e-15);
  assert_true(fabs(strtod(cell(csv, 3, 4), NULL) - kept.mean.overlap) < 1e-15);
  kedge_retention_destroy(&kept);
  kedge_trace_destroy(&post);
  free(csv);
  assert_int_equal(test_entries(at("tables")), 9);
  kedge_trace_destroy(&t);
}

/* ---- Pictures
 * ----------------------------------------------------------------------------------------------------- */

static bool has_gnuplot(void) {
  test_run run = test_run_shell("gnuplot --version");
  bool found = run.exit_code == 0;
  test_run_free(&run);
  if (!found) print_message("1 skipped: no gnuplot here\n");
  return found;
}

static void is_picture(const char *name, const char *text) {
  size_t bytes;
  char *svg = test_read(at(name), &bytes);
  if (!strstr(svg, "</svg>") || !strstr(svg, text)) fail_msg("%s: no whole picture with \"%s\"", name, text);
  free(svg);
}

static void test_plots(void **state) {
  (void)state;
  if (!has_gnuplot()) skip();
  test_kedge_expect(
      "probe --trace x=base.st --post-trace x=post.st --rho 0.1,0.2 --seeds 2 --nulls 2 --plots p", 0, "");
  is_picture("p/utilisation-x-base.svg", "MoE layer");
  is_picture("p/utilisation-x-post.svg", "relative to even use");
  is_picture("p/coactivation-x-base.svg", "layer 2");
  is_picture("p/coactivation-x-post.svg", "expert");
  is_picture("p/communities-x.svg", "permuted labels (floor)");
  is_picture("p/communities-x.svg", "two halves of the base");
}

static void runs(const char *csv, const char *message) {
  test_write_text(at("runs.csv"), csv);
  test_kedge_expect("probe --runs runs.csv --plots q", *message ? 2 : 0, message);
}

static void test_runs(void **state) {
  (void)state;
  if (!has_gnuplot()) skip();
  runs("name,performance,tvd,nmi\nSFT,30,0.32,0.5\nRPB,33.5,0.21,\n\"it's `touch pwned`\",1e1,0.1,0.2\r\n",
       "");
  is_picture("q/retention-performance.svg", "performance");
  is_picture("q/retention-performance.svg", "SFT");
  assert_false(test_exists(at("pwned")));
  runs("name,performance\na,1\n", "runs.csv:1: expected the columns");
  runs("run,performance,tvd\na,1,2\n", "runs.csv:1: expected the columns");
  runs("name,performance,tvd\na,1\n", "runs.csv:2: expected as many columns");
  runs("name,performance,tvd\n\na,1,x\n", "runs.csv:3: expected numbers");
  runs("name,performance,tvd\na,1,inf\n", "runs.csv:2: expected numbers");
  runs("name,performance,tvd\n", "expected a run");
  runs("", "expected a run");
  test_kedge_expect("probe --runs nowhere.csv --plots q", 2, "nowhere.csv");
  test_kedge_expect("probe --base base.st --runs runs.csv", 2, "--plots, which is not given");
}

/* Without gnuplot nothing is computed first. */
static void test_no_gnuplot(void **state) {
  (void)state;
  char command[2048];
  const char *program = getenv("KEDGE_BIN");
  snprintf(command, sizeof command, "cd '%s' && PATH=%s '%s' probe --base base.st --plots r", test_folder(),
           test_folder(), program ? program : "kedge");
  test_run run = test_run_shell(command);
  assert_int_equal(run.exit_code, 2);
  assert_non_null(strstr(run.err, "--plots needs gnuplot"));
  assert_true(strchr(run.err, '\n') == run.err + strlen(run.err) - 1 && !*run.out);
  test_run_free(&run);
  assert_false(test_exists(at("r")));
}

static void test_refusals(void **state) {
  (void)state;
  test_kedge_expect("probe --base base.st --rho 0", 2, "--rho: expected");
  test_kedge_expect("probe --base base.st --rho 0.1,0.1", 2, "--rho: expected");
  test_kedge_expect("probe --base base.st --rho 0.1,", 2, "--rho: expected");
  test_kedge_expect("probe --base base.st --rho nan", 2, "--rho: expected");
  test_kedge_expect("probe --base base.st --detector walktrap", 2, "--detector: expected louvain or leiden");
  test_kedge_expect("probe --base base.st --split halves", 2, "--split: expected");
  test_kedge_expect("probe --base base.st --seeds 0", 2, "--seeds");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_report), cmocka_unit_test(test_detectors),  cmocka_unit_test(test_workers),
      cmocka_unit_test(test_file),   cmocka_unit_test(test_csv),        cmocka_unit_test(test_plots),
      cmocka_unit_test(test_runs),   cmocka_unit_test(test_no_gnuplot), cmocka_unit_test(test_refusals),
  };
  return cmocka_run_group_tests_name("probe outputs", tests, prepare, NULL);
}
