/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading JSON with our errors, for the files of this folder (internal). */
#ifndef KEDGE_MODELS_CHECKPOINT_JSON_H
#define KEDGE_MODELS_CHECKPOINT_JSON_H

#include <jansson.h>

#include "core/kedge.h"

/* Parses `bytes` of strict UTF-8 JSON; a duplicate key is an error. `name` stands before every message. On
 * success
 * `*root` is owned by the caller. ERR_FORMAT names line and column; ERR_MEMORY (a string for which jansson
 * itself finds no memory may also come as ERR_FORMAT, or shortened). */
kedge_status kedge__json_parse(const char *text, size_t bytes, const char *name, json_t **root);
/* Reads and parses a file of at most `cap` bytes. */
kedge_status kedge__json_load(const char *path, size_t cap, json_t **root);
/* "a string", "nothing" (NULL), ... for messages. */
const char *kedge__json_type(const json_t *value);

#endif
