/* SPDX-License-Identifier: Apache-2.0
 * `kedge gradcheck`: gradients of whole decoders with each intervention on (models/gradcheck/gradcheck.h),
 * and vectors of one router from a file (models/gradcheck/gradcheck_vectors.h). */
#include "models/gradcheck/gradcheck.h"
#include "tools/cli.h"
#include "tools/vectors.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static bool is_exact(const char *backend) {
  return !strcmp(backend, "ref");
}

static const char *method(const char *backend) {
  return is_exact(backend) ? "all-double gradients against central differences"
                           : "f32 gradients against the all-double ones";
}

/* ---- One check
 * ------------------------------------------------------------------------------------------------------- */

static void print_result(const kedge_gradcheck *r, const char *name, const char *problem,
                         const char *backend) {
  const bool exact = is_exact(backend);
  printf("%s on %s, %s: %s\n", name, backend, problem, method(backend));
  printf("  seed %llu; every choice of experts is clear by %.3g and the same %s\n",
         (unsigned long long)r->seed, r->gap, exact ? "at every difference" : "on both backends");
  printf("  %-21s %8s %8s %14s\n", "parameter", "entries", "not 0", "largest error");
  for (int i = 0; i < KEDGE_ROLE_COUNT; i++) {
    const kedge_gradcheck_row *row = &r->rows[i];
    if (!row->kind) continue;
    printf("  %-21s %8llu %8llu %14.3g%s\n", row->kind, (unsigned long long)row->checked,
           (unsigned long long)row->nonzero, row->error, row->error <= r->limit ? "" : "  over the limit");
  }
  printf("  %-21s %8llu %8s %14.3g  limit %.0e: %s\n", "all", (unsigned long long)r->checked, "", r->error,
         r->limit, r->passed ? "pass" : "FAIL");
  printf("  self-test: gradients 1 %% too large are off by %.3g at least", r->planted);
  if (isfinite(r->own_dropped))
    printf(", the intervention's own part 1 %% too large by %.3g, without it by %.3g", r->own_scaled,
           r->own_dropped);
  printf(": %s\n", r->sensitive ? "rejected" : "NOT REJECTED");
}

static kedge_status run_single(const char *name, const char *problem_name, const kedge_gradcheck_options *o) {
  const kedge_gradcheck_problem *problem = kedge_gradcheck_find_problem(problem_name);
  bool failed = false, found = false;
  if (!problem)
    return kedge_fail(KEDGE_ERR_ARGUMENT,
                      "--problem: expected one of `kedge gradcheck --help`, came \"%.80s\"", problem_name);
  for (uint32_t i = 0; i < kedge_gradcheck_variant_count; i++) {
    const kedge_gradcheck_variant *v = &kedge_gradcheck_variants[i];
    if (name ? strcmp(name, v->name) != 0 : kedge_router_find(v->name) == KEDGE_ROUTER_COUNT) continue;
    kedge_gradcheck result;
    KEDGE_TRY(kedge_gradcheck_run(problem, v, o, &result));
    print_result(&result, v->name, problem->name, o->backend);
    failed |= !result.passed || !result.sensitive;
    found = true;
  }
  if (!found)
    return kedge_fail(KEDGE_ERR_ARGUMENT,
                      "--intervention: expected one of `kedge gradcheck --help`, came \"%.80s\"", name);
  if (!failed) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_NUMERIC,
                    "a gradient is over its limit, or the self-test did not reject its fault");
}

/* ---- The table
 * ------------------------------------------------------------------------------------------------------- */

/* The extremes over the whole table. */
typedef struct summary {
  uint64_t entries;
  uint32_t failed;
  double error, planted, own_scaled, own_dropped;
} summary;

static void add(summary *s, const kedge_gradcheck *r) {
  s->entries += r->checked;
  s->failed += !r->passed || !r->sensitive;
  s->error = fmax(s->error, r->error);
  s->planted = fmin(s->planted, r->planted);
  s->own_scaled = fmin(s->own_scaled, r->own_scaled);
  s->own_dropped = fmin(s->own_dropped, r->own_dropped);
}

static void print_table(const kedge_gradcheck *results, summary *s) {
  const uint32_t problems = kedge_gradcheck_problem_count;
  for (uint32_t p = 0; p < problems; p++)
    printf("  %-9s  %s\n", kedge_gradcheck_problems[p].name, kedge_gradcheck_problems[p].doc);
  printf("\n%-41s", "largest error");
  for (uint32_t p = 0; p < problems; p++) printf(" %9s", kedge_gradcheck_problems[p].name);
  printf("\n");
  for (uint32_t v = 0; v < kedge_gradcheck_variant_count; v++) {
    printf("%-41s", kedge_gradcheck_variants[v].name);
    for (uint32_t p = 0; p < problems; p++) {
      printf(" %9.1e", results[v * problems + p].error);
      add(s, &results[v * problems + p]);
    }
    printf("\n");
  }
}

static void print_failures(const kedge_gradcheck *results) {
  const uint32_t problems = kedge_gradcheck_problem_count;
  for (uint32_t i = 0; i < problems * kedge_gradcheck_variant_count; i++) {
    const kedge_gradcheck *r = &results[i];
    if (r->passed && r->sensitive) continue;
    printf("FAIL: %s on %s: error %.3g (limit %.0e); planted faults: %.3g of all, %.3g and %.3g of its own\n",
           kedge_gradcheck_variants[i / problems].name, kedge_gradcheck_problems[i % problems].name, r->error,
           r->limit, r->planted, r->own_scaled, r->own_dropped);
  }
}

static kedge_status run_all(const kedge_gradcheck_options *o) {
  const uint32_t checks = kedge_gradcheck_problem_count * kedge_gradcheck_variant_count;
  summary s = {.planted = INFINITY, .own_scaled = INFINITY, .own_dropped = INFINITY};
  kedge_gradcheck *results = kedge_alloc(checks, sizeof *results);
  if (!results) return KEDGE_ERR_MEMORY;
  kedge_status status = kedge_gradcheck_all(o, results);
  if (status == KEDGE_OK) {
    printf("%s: %s\n", o->backend, method(o->backend));
    print_table(results, &s);
    printf("\n%u checks of %llu entries, routers whole: largest error %.3g, limit %.0e\n", checks,
           (unsigned long long)s.entries, s.error, results[0].limit);
    printf("Planted faults are off by at least %.3g (gradient 1 %% too large), %.3g (the interventions' part "
           "1 %% too large), %.3g (without that part)\n",
           s.planted, s.own_scaled, s.own_dropped);
    print_failures(results);
    printf("%s\n", s.failed ? "FAIL" : "pass");
  }
  kedge_free(results);
  if (status != KEDGE_OK || !s.failed) return status;
  return kedge_fail(KEDGE_ERR_NUMERIC, "%u of %u checks failed", s.failed, checks);
}

/* ---- The command
 * ----------------------------------------------------------------------------------------------------- */

static char *append(char *text, const char *name, const char *doc) {
  char *longer = text ? kedge_format("%s  %-24s %s\n", text, name, doc) : NULL;
  kedge_free(text);
  return longer;
}

static char *list_rows(void) {
  char *text = kedge_strdup("Interventions:\n");
  for (uint32_t i = 0; i < kedge_gradcheck_variant_count; i++) {
    const char *name = kedge_gradcheck_variants[i].name;
    const kedge_router_id id = kedge_router_find(name);
    text = append(text, name, id == KEDGE_ROUTER_COUNT ? "" : kedge_router_doc(id));
  }
  char *longer = text ? kedge_format("%sProblems:\n", text) : NULL;
  kedge_free(text);
  for (uint32_t i = 0; i < kedge_gradcheck_problem_count; i++)
    longer = append(longer, kedge_gradcheck_problems[i].name, kedge_gradcheck_problems[i].doc);
  return longer;
}

int command_gradcheck(int argc, char **argv) {
  const char *name = NULL, *backend = "ref", *problem = "qwen3", *vectors = NULL;
  bool all = false;
  int64_t seed = 1;
  const cli_option options[] = {
      {"--all", CLI_FLAG, &all, NULL, "every intervention on every problem, as a table", false, 0, 0},
      {"--vectors", CLI_TEXT, &vectors, "FILE",
       "instead: compare a router's gates, losses and gradients with those of a JSON file", false, 0, 0},
      {"--intervention", CLI_TEXT, &name, "NAME",
       "one intervention (default: each row of routers.def with its defaults)", false, 0, 0},
      {"--problem", CLI_TEXT, &problem, "NAME", "model to check on (default: qwen3)", false, 0, 0},
      {"--backend", CLI_TEXT, &backend, "NAME",
       "ref: double against differences; another: its f32 against that (default: ref)", false, 0, 0},
      {"--seed", CLI_INT, &seed, "N", "first seed tried for weights and data (default: 1)", false, 0, 1e15}};
  const cli_spec spec = {
      .command = "gradcheck",
      .synopsis = "",
      .summary =
          "Checks the gradients of small mixture-of-experts decoders, with each intervention on. Ends\n"
          "with 1 if a gradient is wrong.",
      .options = options,
      .option_count = sizeof options / sizeof *options,
      .examples =
          "kedge gradcheck --all\nkedge gradcheck --intervention rpb --problem moonlight --backend cpu\n"
          "kedge gradcheck --vectors router_gradients.json",
      .more = list_rows};
  cli_list arguments;
  int code;
  if (!cli_parse(&spec, argc, argv, &arguments, &code)) return code;
  kedge_gradcheck_options o = {.backend = backend, .seed = (uint64_t)seed, .entries = all ? 6 : 0};
  if (vectors && (all || name))
    return cli_finish("gradcheck", kedge_fail(KEDGE_ERR_ARGUMENT, "--vectors stands alone"));
  if (all && name)
    return cli_finish("gradcheck", kedge_fail(KEDGE_ERR_ARGUMENT, "--all takes no --intervention"));
  return cli_finish("gradcheck", vectors ? vectors_run(vectors)
                                 : all   ? run_all(&o)
                                         : run_single(name, problem, &o));
}
