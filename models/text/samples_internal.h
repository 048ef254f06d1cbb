/* SPDX-License-Identifier: Apache-2.0
 *
 * What samples.c, samples_read.c and samples_format.c share: formats of records, and the builder's inside.
 */
#ifndef KEDGE_MODELS_TEXT_SAMPLES_INTERNAL_H
#define KEDGE_MODELS_TEXT_SAMPLES_INTERNAL_H

#include "models/text/samples.h"

typedef struct kedge__format kedge__format;

/* The format called `name`, its aliases included; ERR_ARGUMENT lists the names. */
kedge_status kedge__format_find(const char *name, const kedge__format **format);
/* The format of a record, by its fields; ERR_FORMAT lists the fields found. */
kedge_status kedge__format_detect(json_t *record, const kedge__format **format);
const char *kedge__format_name(const kedge__format *format);
const char *kedge__format_fields(const kedge__format *format); /* "instruction, input, output" */
/* True for formats that are read as prompt/completion or messages under other names; worth a note. */
bool kedge__format_foreign(const kedge__format *format);

/* What rendering a record needs besides it. */
typedef struct kedge__render_context {
  const kedge_dataset_options *options;
  const kedge_chat_template *chat; /* chosen when first needed */
  kedge_chat_turn *turns;          /* of the record at hand; the owner of the context frees the memory */
  size_t turn_count, turn_capacity;
} kedge__render_context;

/* Renders a record. ERR_FORMAT for missing fields and wrong types, without the place. */
kedge_status kedge__format_render(const kedge__format *format, const json_t *record,
                                  kedge__render_context *context, kedge_rendering *rendering);

void kedge__dataset_builder_skipped(kedge_dataset_builder *builder, uint64_t skipped);
const kedge_dataset *kedge__dataset_builder_view(const kedge_dataset_builder *builder);

#endif
