/* SPDX-License-Identifier: Apache-2.0
 *
 * What `kedge info` finds out, as JSON objects that info.c prints: info_model.c describes model directories
 * and configs, info_file.c single files. */
#ifndef KEDGE_TOOLS_INFO_H
#define KEDGE_TOOLS_INFO_H

#include <jansson.h>
#include <stdbool.h>

#include "core/kedge.h"

/* A report in the making. What is odd goes to `notes` (usable all the same) or `problems` (not usable). */
typedef struct info_report {
  json_t *root, *notes, *problems;
  bool hash; /* content hashes, too: reads every byte */
} info_report;

/* Appends a formatted line to `notes` or `problems`. */
void info_say(json_t *list, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Sets a string; NULL sets nothing. */
void info_text(json_t *object, const char *key, const char *value);
void info_number(json_t *object, const char *key, uint64_t value);

/* A model directory. Goes on past everything that is wrong; ERR_FORMAT where there is no part of a model. */
kedge_status info_directory(info_report *report, const char *path);
/* A config.json by itself. */
kedge_status info_config(info_report *report, const char *path);
/* Any other file: safetensors, tokenizer, data. */
kedge_status info_file(info_report *report, const char *path);

/* The tokenizer of a directory or file; a failure is a problem. True if there is one. */
bool info_tokenizer(info_report *report, json_t *object, const char *path, uint32_t vocabulary);

#endif
