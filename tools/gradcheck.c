/* SPDX-License-Identifier: Apache-2.0
 * `kedge gradcheck`: gradients of a whole decoder with each intervention on (models/routing/gradcheck.h). */
#include "models/routing/gradcheck.h"
#include "tools/cli.h"

#include <stdio.h>
#include <string.h>

static void print_result(const kedge_gradcheck *r, const char *name, const char *backend) {
  const bool exact = !strcmp(backend, "ref");
  printf("%s on %s: %s\n", name, backend,
         exact ? "all-double gradients against central differences"
               : "f32 gradients against the all-double ones");
  printf("  seed %llu; every choice of experts is clear by %.3g and the same %s\n",
         (unsigned long long)r->seed, r->gap, exact ? "at every difference" : "on both backends");
  printf("  %-18s %8s %8s %14s\n", "parameter", "entries", "not 0", "largest error");
  for (int i = 0; i < KEDGE_ROLE_COUNT; i++) {
    const kedge_gradcheck_row *row = &r->rows[i];
    if (!row->kind) continue;
    printf("  %-18s %8llu %8llu %14.3g%s\n", row->kind, (unsigned long long)row->checked,
           (unsigned long long)row->nonzero, row->error, row->error <= r->limit ? "" : "  over the limit");
  }
  printf("  %-18s %8llu %8s %14.3g  limit %.0e: %s\n", "all", (unsigned long long)r->checked, "", r->error,
         r->limit, r->passed ? "pass" : "FAIL");
  printf("  self-test: gradients 1 %% too large are off by %.3g at least: %s\n", r->planted,
         r->sensitive ? "rejected" : "NOT REJECTED");
}

static kedge_status check(kedge_router_id id, const char *backend, uint64_t seed, bool *failed) {
  const kedge_intervention intervention = kedge_gradcheck_intervention(id);
  kedge_gradcheck result;
  KEDGE_TRY(kedge_gradcheck_run(&intervention, backend, seed, &result));
  print_result(&result, kedge_router_name(id), backend);
  if (!result.passed || !result.sensitive) *failed = true;
  return KEDGE_OK;
}

static char *list_rows(void) {
  char *text = kedge_strdup("Interventions:\n");
  for (int i = 0; text && i < KEDGE_ROUTER_COUNT; i++) {
    char *longer = kedge_format("%s  %-24s %s\n", text, kedge_router_name((kedge_router_id)i),
                                kedge_router_doc((kedge_router_id)i));
    kedge_free(text);
    text = longer;
  }
  return text;
}

int command_gradcheck(int argc, char **argv) {
  const char *name = NULL, *backend = "ref";
  int64_t seed = 1;
  const cli_option options[] = {
      {"--intervention", CLI_TEXT, &name, "NAME", "one intervention (default: each of them)", false, 0, 0},
      {"--backend", CLI_TEXT, &backend, "NAME",
       "ref: double against differences; another: its f32 against that (default: ref)", false, 0, 0},
      {"--seed", CLI_INT, &seed, "N", "first seed tried for weights and data (default: 1)", false, 0, 1e15}};
  const cli_spec spec = {
      .command = "gradcheck",
      .synopsis = "",
      .summary =
          "Checks the gradient of a small mixture-of-experts decoder, with each intervention on. Ends\n"
          "with 1 if a gradient is wrong.",
      .options = options,
      .option_count = sizeof options / sizeof *options,
      .examples = "kedge gradcheck\nkedge gradcheck --intervention rpb --backend cpu",
      .more = list_rows};
  cli_list arguments;
  int code;
  if (!cli_parse(&spec, argc, argv, &arguments, &code)) return code;
  kedge_router_id only = name ? kedge_router_find(name) : KEDGE_ROUTER_COUNT;
  if (name && only == KEDGE_ROUTER_COUNT)
    return cli_finish("gradcheck", kedge_fail(KEDGE_ERR_ARGUMENT,
                                              "--intervention: expected one of `kedge gradcheck --help`, "
                                              "came \"%.80s\"",
                                              name));
  kedge_status status = KEDGE_OK;
  bool failed = false;
  for (int i = 0; i < KEDGE_ROUTER_COUNT && status == KEDGE_OK; i++)
    if (!name || i == (int)only) status = check((kedge_router_id)i, backend, (uint64_t)seed, &failed);
  if (status == KEDGE_OK && failed)
    status = kedge_fail(KEDGE_ERR_NUMERIC,
                        "a gradient is over its limit, or the self-test did not reject its fault");
  return cli_finish("gradcheck", status);
}
