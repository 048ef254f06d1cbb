/* SPDX-License-Identifier: Apache-2.0
 * Problems of a file, collected: who brings a file of another tool learns all that is to change at once
 * (config_internal.h). */
#include "models/training/config_internal.h"

#include <string.h>

enum { LIST_BYTES = 2000, ITEM_BYTES = 340 }; /* of what a message shows of one kind, and of one key */

void kedge__config_problems_clear(kedge_config_problems *problems) {
  for (size_t i = 0; i < KEDGE_FAULT_COUNT; i++) kedge_free(problems->lists[i]);
  kedge_free(problems->first);
  memset(problems, 0, sizeof *problems);
}

/* "a (line 3; nearest b)", "fp16 (line 4: why)". */
static void describe(const kedge_config_problem *problem, char text[ITEM_BYTES]) {
  static const char prefix[] = "not supported: ";
  const char *what = problem->text;
  if (!strncmp(what, prefix, sizeof prefix - 1)) what += sizeof prefix - 1;
  const char *join = problem->fault != KEDGE_FAULT_UNKNOWN ? ": " : *what ? "; nearest " : "";
  snprintf(text, ITEM_BYTES, "%s (line %u%s%.190s)", problem->key, problem->line, join, what);
}

kedge_status kedge__config_put_aside(kedge_config_loader *loader, kedge_status status) {
  kedge_config_problems *problems = &loader->problems;
  bool of_a_key = status == KEDGE_ERR_ARGUMENT || status == KEDGE_ERR_UNSUPPORTED;
  if (!of_a_key || loader->override) return status;
  if (!problems->first && !(problems->first = kedge_strdup(kedge_message()))) return KEDGE_ERR_MEMORY;
  kedge_config_fault fault = loader->problem.fault;
  char **list = &problems->lists[fault];
  problems->counts[fault]++;
  if (*list && strlen(*list) > LIST_BYTES) return KEDGE_OK;
  char item[ITEM_BYTES];
  describe(&loader->problem, item);
  char *longer = kedge_format("%s%s%s", *list ? *list : "", *list ? ", " : "", item);
  if (!longer) return KEDGE_ERR_MEMORY;
  kedge_free(*list);
  *list = longer;
  problems->shown[fault]++;
  return KEDGE_OK;
}

kedge_status kedge__config_problems_end(kedge_config_loader *loader) {
  static const char *const one[] = {"key is not known", "key is not supported", "key has a wrong value"};
  static const char *const many[] = {"keys are not known", "keys are not supported",
                                     "keys have wrong values"};
  const kedge_config_problems *problems = &loader->problems;
  const size_t *counts = problems->counts;
  size_t refused = counts[KEDGE_FAULT_REFUSED];
  size_t total = counts[KEDGE_FAULT_UNKNOWN] + refused + counts[KEDGE_FAULT_VALUE];
  kedge_status status = refused == total ? KEDGE_ERR_UNSUPPORTED : KEDGE_ERR_ARGUMENT;
  if (!total) return KEDGE_OK;
  if (total == 1) return kedge_fail(status, "%s", problems->first);
  const char *before = ":";
  char *text = kedge_strdup(loader->source);
  for (size_t i = 0; text && i < KEDGE_FAULT_COUNT; i++) {
    char more[32] = "";
    if (!counts[i]) continue;
    if (counts[i] > problems->shown[i])
      snprintf(more, sizeof more, ", and %zu more", counts[i] - problems->shown[i]);
    char *longer = kedge_format("%s%s %zu %s: %s%s", text, before, counts[i],
                                counts[i] == 1 ? one[i] : many[i], problems->lists[i], more);
    kedge_free(text);
    text = longer;
    before = ";";
  }
  if (!text) return KEDGE_ERR_MEMORY;
  kedge_fail(status, "%s", text);
  kedge_free(text);
  return status;
}
