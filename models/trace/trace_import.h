/* SPDX-License-Identifier: Apache-2.0
 *
 * Routing traces of other tools. trace_import.c tells the forms apart and picks layers; trace_jsonl.c reads
 * JSON Lines, trace_raw.c folders of plain bytes, trace_npy.c NumPy arrays. docs/file-formats.md has them.
 */
#ifndef KEDGE_MODELS_ROUTING_TRACE_IMPORT_H
#define KEDGE_MODELS_ROUTING_TRACE_IMPORT_H

#include "models/trace/trace.h"

typedef enum kedge_trace_form {
  KEDGE_TRACE_AUTO,
  KEDGE_TRACE_SAFETENSORS, /* trace.h */
  KEDGE_TRACE_JSONL,       /* a token or a sample a line */
  KEDGE_TRACE_RAW,         /* a folder: index.json and a file of u8 or u16 ids for each domain and layer */
  KEDGE_TRACE_NPY          /* integers [tokens, layers, k] */
} kedge_trace_form;

/* "jsonl" ...; ERR_ARGUMENT names the choices. */
kedge_status kedge_trace_form_parse(const char *name, kedge_trace_form *form);
/* From a file's first bytes: NumPy's magic, a safetensors header, `{` or `[`; from a folder's index.json.
 * ERR_IO; ERR_FORMAT if it is none of these. */
kedge_status kedge_trace_form_of(const char *path, kedge_trace_form *form);

/* What a file may leave open. 0 or NULL: as the file says. Where both say it they must agree. */
typedef struct kedge_trace_import_options {
  kedge_trace_form form;
  uint32_t experts;      /* needed for NumPy, and for JSON without num_experts */
  uint32_t topk;         /* for ids in base64 without a shape */
  uint32_t file_layers;  /* the same: layers of a token in the file */
  const int32_t *layers; /* [layer_count] ascending numbers: as many as the file has layers (that it does not
                            number itself) they are the numbers; else these layers are picked by number */
  uint32_t layer_count;
  const char *domain;                    /* raw: which one; NULL: the only one */
  const char *weights, *samples, *spans; /* NumPy files beside an .npy of ids: floats [tokens, layers, k],
                                            integers [tokens], integers [tokens] */
} kedge_trace_import_options;

/* Reads a trace of any form and checks it (kedge_trace_check). `options` may be NULL. Memory is taken only
 * after the file's own size covers it. Errors, naming file and line, token or layer: ERR_IO, ERR_FORMAT;
 * ERR_ARGUMENT for options that the form has no use for or that are needed. The trace is the caller's. */
kedge_status kedge_trace_read(const char *path, const kedge_trace_import_options *options,
                              kedge_trace *trace);

/* Names of the domains of a raw folder in the order of its index; none for other forms. Freed by
 * kedge_trace_domains_destroy. */
typedef struct kedge_trace_domains {
  uint32_t count;
  char **names;
} kedge_trace_domains;
kedge_status kedge_trace_domains_read(const char *path, kedge_trace_domains *domains);
void kedge_trace_domains_destroy(kedge_trace_domains *domains);

/* "1-26" or "0,3,5-8" as ascending numbers below 65536; new memory, freed by kedge_free. ERR_ARGUMENT. */
kedge_status kedge_trace_layers_parse(const char *text, int32_t **numbers, uint32_t *count);

/* ---- Between the files
 * ------------------------------------------------------------------------------------------------ */

/* Each reads and leaves the check to the caller. *numbered: the file numbers its layers. */
kedge_status kedge__trace_read_jsonl(const char *path, const kedge_trace_import_options *options,
                                     kedge_trace *trace, bool *numbered);
kedge_status kedge__trace_read_raw(const char *path, const kedge_trace_import_options *options,
                                   kedge_trace *trace);
kedge_status kedge__trace_read_npy(const char *path, const kedge_trace_import_options *options,
                                   kedge_trace *trace);

#endif
