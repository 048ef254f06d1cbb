/* SPDX-License-Identifier: Apache-2.0
 * `kedge gradcheck --vectors FILE`: router vectors of another program, in double and in f32, as a table. */
#include "tools/vectors.h"

#include "models/gradcheck/gradcheck_vectors.h"

#include <stdio.h>

static const struct {
  const char *backend;
  bool all_double;
  const char *title;
} ways[] = {{"ref", true, "ref f64"}, {"ref", false, "ref f32"}, {"cpu", false, "cpu f32"}};
enum { WAYS = sizeof ways / sizeof *ways };

static void print_row(const char *where, const char *name, const kedge_vector_result *const results[WAYS]) {
  if (!results[0]->compared) return;
  printf("%-40s %-14s", where, name);
  bool wrong = false;
  for (int w = 0; w < WAYS; w++) {
    printf(" %9.1e", results[w]->error);
    wrong |= !(results[w]->error <= results[w]->limit);
  }
  printf("%s\n", wrong ? "  FAIL" : "");
}

static void print_table(const kedge_vectors *v, const kedge_vectors_report reports[WAYS]) {
  printf("%s: T = %u, E = %u, K = %u, d = %u, %u rows of the prior\n", v->path, v->T, v->E, v->K, v->D, v->S);
  printf("%-40s %-14s", "case", "largest error");
  for (int w = 0; w < WAYS; w++) printf(" %9s", ways[w].title);
  printf("\n");
  const kedge_vector_result *row[WAYS];
  for (int w = 0; w < WAYS; w++) row[w] = &reports[w].bias;
  print_row("inputs", "bias (f32)", row);
  for (int w = 0; w < WAYS; w++) row[w] = &reports[w].base_logits;
  print_row("inputs", "base_logits", row);
  for (int c = 0; c < KEDGE_VECTOR_CASES; c++) {
    const kedge_vector_case *known = &kedge_vector_cases[c];
    if (!v->present[c]) printf("%-40s not in the file\n", known->name);
    for (int q = 0; q < KEDGE_VECTOR_QUANTITIES; q++) {
      for (int w = 0; w < WAYS; w++) row[w] = &reports[w].results[c][q];
      if (known->names[q]) print_row(known->name, known->names[q], row);
    }
  }
}

static kedge_status check(const kedge_vectors *v, int way, kedge_vectors_report *report) {
  kedge_device *device;
  KEDGE_TRY(kedge_device_open(ways[way].backend, NULL, &device));
  kedge_status status = kedge_vectors_check(v, device, ways[way].all_double, report);
  kedge_device_close(device);
  return status;
}

/* Names the first number that differs. */
static kedge_status verdict(const kedge_vectors *v, const kedge_vectors_report reports[WAYS]) {
  uint32_t failed = 0, compared = 0;
  int first = -1;
  for (int w = 0; w < WAYS; w++) {
    compared += reports[w].compared;
    failed += reports[w].failed;
    if (reports[w].failed && first < 0) first = w;
  }
  printf("\n%u comparisons, limits %.0e in f64 and %.0e in f32: %s\n", compared, KEDGE_VECTORS_F64,
         KEDGE_VECTORS_F32, failed ? "FAIL" : "pass");
  if (!failed) return KEDGE_OK;
  char *text = kedge_vectors_describe(v, &reports[first]);
  if (!text) return KEDGE_ERR_MEMORY;
  kedge_status status = kedge_fail(KEDGE_ERR_NUMERIC, "%s: %u of %u comparisons failed; %s: %s", v->path,
                                   failed, compared, ways[first].title, text);
  kedge_free(text);
  return status;
}

kedge_status vectors_run(const char *path) {
  kedge_vectors *v;
  kedge_vectors_report *reports = kedge_alloc(WAYS, sizeof *reports);
  if (!reports) return KEDGE_ERR_MEMORY;
  kedge_status status = kedge_vectors_load(path, &v);
  for (int w = 0; w < WAYS && status == KEDGE_OK; w++) status = check(v, w, &reports[w]);
  if (status == KEDGE_OK) {
    print_table(v, reports);
    status = verdict(v, reports);
  }
  kedge_vectors_free(v);
  kedge_free(reports);
  return status;
}
