/* SPDX-License-Identifier: Apache-2.0
 * The real routing log (routing_log.h). */
#include "tests/support/routing_log.h"

#include "tests/support/files.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static void must(kedge_status status) {
  if (status != KEDGE_OK) fail_msg("%s: %s", kedge_status_name(status), kedge_message());
}

static void fill_samples(const char *domain, kedge_trace *t) {
  json_error_t error;
  json_t *index = json_load_file(test_shared("data/router/esft/index.json"), 0, &error);
  if (!index) fail_msg("index.json: %s", error.text);
  const json_t *lengths =
      json_object_get(json_object_get(json_object_get(index, "domains"), domain), "lengths");
  uint32_t token = 0;
  for (size_t s = 0; s < json_array_size(lengths); s++)
    for (json_int_t i = 0; i < json_integer_value(json_array_get(lengths, s)); i++) {
      assert_true(token < t->tokens);
      t->samples[token++] = (int32_t)s;
    }
  assert_int_equal(token, t->tokens);
  json_decref(index);
}

bool test_routing_log(const char *domain, kedge_trace *t) {
  for (uint32_t l = 0; l < TEST_LOG_LAYERS; l++) {
    char name[80];
    size_t bytes;
    snprintf(name, sizeof name, "data/router/esft/%s_L%02u_ids.u8", domain, l + 1);
    const char *path = test_shared(name);
    if (!path) return false;
    char *ids = test_read(path, &bytes);
    if (l == 0)
      must(kedge_trace_init(t, (uint32_t)bytes / TEST_LOG_TOPK, TEST_LOG_LAYERS, TEST_LOG_EXPERTS,
                            TEST_LOG_TOPK));
    assert_int_equal(bytes, (size_t)t->tokens * TEST_LOG_TOPK);
    t->layer_numbers[l] = (int32_t)l + 1;
    for (size_t i = 0; i < bytes; i++)
      t->ids[(i / TEST_LOG_TOPK * TEST_LOG_LAYERS + l) * TEST_LOG_TOPK + i % TEST_LOG_TOPK] = (uint8_t)ids[i];
    free(ids);
  }
  fill_samples(domain, t);
  must(kedge_trace_check(t, domain));
  return true;
}
