/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of the reports of probes and audits as JSON (internal; for probe_json*.c and audit_json.c). What is
 * undefined, NaN in memory, is null. New values are the caller's.
 */
#ifndef KEDGE_MODELS_RETENTION_REPORT_JSON_H
#define KEDGE_MODELS_RETENTION_REPORT_JSON_H

#include "core/kedge.h"

#include <jansson.h>

/* Sets a key, or appends; a value, object or list that there was no memory for is remembered in *failed. */
void kedge__json_put(json_t *object, const char *key, json_t *value, bool *failed);
void kedge__json_append(json_t *list, json_t *value, bool *failed);

json_t *kedge__json_real(double value);
json_t *kedge__json_whole(double value); /* a count that is NaN where undefined */
json_t *kedge__json_count(uint64_t value);
json_t *kedge__json_name(const char *text); /* "" is null */

#endif
