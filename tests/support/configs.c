/* SPDX-License-Identifier: Apache-2.0
 * Configurations in tests (configs.h). */
#include "tests/support/configs.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

void test_config_load(kedge_config *config, const char *text) {
  if (kedge_config_parse(config, "run.yaml", text, strlen(text), NULL, 0))
    fail_msg("%s: %s", text, kedge_message());
}

void test_config_load_with(kedge_config *config, const char *text, const char *const *overrides,
                           size_t count) {
  if (kedge_config_parse(config, "run.yaml", text, strlen(text), overrides, count))
    fail_msg("%s", kedge_message());
}

void test_config_message(const char *input, kedge_status status, const char *message) {
  if (status == KEDGE_OK) fail_msg("accepted: %s", input);
  if (!strstr(kedge_message(), message))
    fail_msg("%s: \"%s\" does not say \"%s\"", input, kedge_message(), message);
}

void test_config_refuse(const char *text, const char *message) {
  kedge_config config;
  test_config_message(text, kedge_config_parse(&config, "run.yaml", text, strlen(text), NULL, 0), message);
}

void test_config_refuse_override(const char *text, const char *override, const char *message) {
  kedge_config config;
  test_config_message(override, kedge_config_parse(&config, "run.yaml", text, strlen(text), &override, 1),
                      message);
}

/* The print loads, and its print is the same; so is the JSON, which must be JSON. */
void test_config_round_trip(const kedge_config *config) {
  char *yaml = kedge_config_yaml(config), *json = kedge_config_json(config);
  assert_non_null(yaml);
  kedge_config again;
  if (kedge_config_parse(&again, "print", yaml, strlen(yaml), NULL, 0))
    fail_msg("%s in\n%s", kedge_message(), yaml);
  char *yaml_again = kedge_config_yaml(&again), *json_again = kedge_config_json(&again);
  assert_string_equal(yaml_again, yaml);
  assert_string_equal(json_again, json);
  assert_int_equal(again.notes.count, 0);
  json_t *parsed = json_loads(json, JSON_REJECT_DUPLICATES, NULL);
  if (!parsed) fail_msg("no JSON: %s", json);
  json_decref(parsed);
  kedge_config_destroy(&again);
  kedge_free(yaml);
  kedge_free(yaml_again);
  kedge_free(json);
  kedge_free(json_again);
}
