/* SPDX-License-Identifier: Apache-2.0
 *
 * Records of a data file, one at a time: JSON Lines, or one JSON array of objects. What a record means is in
 * samples_format.c; how records become a dataset in samples_read.c.
 */
#ifndef KEDGE_MODELS_TEXT_JSONL_H
#define KEDGE_MODELS_TEXT_JSONL_H

#include <jansson.h>

#include "core/kedge.h"

typedef struct kedge_jsonl kedge_jsonl;

/* Longest record in bytes. Deeper nesting than jansson's own limit (2048) is refused by jansson. */
enum { KEDGE_JSONL_MAX_RECORD = 64 << 20 };

/* A line for the user (a note or a warning), without a line end. */
typedef void (*kedge_notice)(void *context, const char *line);

/* Opens a file. A byte order mark is skipped; a file whose first character is `[` is read as one array. With
 * `skip_bad`, bad records are counted and passed over, each told to `notice` (may be NULL; after ten, no
 * more) instead of ending the reading. Errors: ERR_IO; ERR_UNSUPPORTED for a compressed file. Owned by the
 * caller. */
kedge_status kedge_jsonl_open(const char *path, bool skip_bad, kedge_notice notice, void *context,
                              kedge_jsonl **reader);

/* The same over bytes[0..length), borrowed; `name` stands for the file in messages. */
kedge_status kedge_jsonl_open_memory(const char *name, const void *bytes, size_t length, bool skip_bad,
                                     kedge_notice notice, void *context, kedge_jsonl **reader);
void kedge_jsonl_close(kedge_jsonl *reader);

/* The next record, a JSON object owned by the caller (json_decref); *record is NULL at the end. *line is the
 * line on which the record starts, from 1. Blank lines are passed over. Errors: ERR_FORMAT "file:line: ..."
 * for what is not one JSON object in valid UTF-8, repeats a key or is over KEDGE_JSONL_MAX_RECORD; ERR_IO;
 * ERR_MEMORY. */
kedge_status kedge_jsonl_next(kedge_jsonl *reader, json_t **record, uint64_t *line);

/* For a caller that finds the present record unusable and has recorded the reason by kedge_fail(status, ...):
 * puts "file:line: " before it and returns `status`, or, when bad records are skipped and the status is
 * ERR_FORMAT, counts the record and returns KEDGE_OK. */
kedge_status kedge_jsonl_reject(kedge_jsonl *reader, kedge_status status);

uint64_t kedge_jsonl_skipped(const kedge_jsonl *reader); /* bad records passed over so far */
uint64_t kedge_jsonl_bytes(const kedge_jsonl *reader);   /* bytes read so far */
uint64_t kedge_jsonl_size(const kedge_jsonl *reader);    /* bytes of the file, 0 where unknown (a pipe) */

#endif
