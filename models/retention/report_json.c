/* SPDX-License-Identifier: Apache-2.0
 * Values of reports as JSON (report_json.h). */
#include "models/retention/report_json.h"

#include <math.h>

void kedge__json_put(json_t *object, const char *key, json_t *value, bool *failed) {
  if (json_object_set_new(object, key, value)) *failed = true;
}

void kedge__json_append(json_t *list, json_t *value, bool *failed) {
  if (json_array_append_new(list, value)) *failed = true;
}

json_t *kedge__json_real(double value) {
  return isfinite(value) ? json_real(value) : json_null();
}

json_t *kedge__json_whole(double value) {
  return isfinite(value) ? json_integer((json_int_t)value) : json_null();
}

json_t *kedge__json_count(uint64_t value) {
  return json_integer((json_int_t)value);
}

json_t *kedge__json_name(const char *text) {
  return *text ? json_string(text) : json_null();
}
