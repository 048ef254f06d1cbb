/* SPDX-License-Identifier: Apache-2.0
 *
 * What `kedge trace` and `kedge probe` share: reading data as a model sees it, and routing it through the
 * model. */
#ifndef KEDGE_TOOLS_TRACE_MODEL_H
#define KEDGE_TOOLS_TRACE_MODEL_H

#include "models/trace/trace_import.h"
#include "tools/cli.h"
#include "tools/inputs.h"

typedef struct tracing {
  const char *command; /* "probe": stands before what is told */
  const char *backend, *dtype, *prompt_template, *chat_template, *model_options;
  int64_t max_tokens, batch_size, max_length, threads;
  bool weights, logits, gaps; /* kept in the traces */
} tracing;

#define TRACING_DEFAULTS                                                                                     \
  { .backend = "cpu", .dtype = "auto", .batch_size = 8, .max_length = 1024 }

/* Rows of an option table for these settings, `t` being a tracing. */
#define TRACING_OPTIONS(t)                                                                                   \
  {"--max-tokens", CLI_INT, &(t).max_tokens, "N", "stop after so many tokens of a domain, 0 = all (0)",      \
   false,          0,       INT32_MAX},                                                                      \
      {"--max-length", CLI_INT, &(t).max_length, "N", "longest sample in tokens (1024)", false, 2, 1048576}, \
      {"--batch-size", CLI_INT, &(t).batch_size, "N", "samples in one forward pass (8)", false, 1, 65536},   \
      {"--prompt-template",                                                                                  \
       CLI_TEXT,                                                                                             \
       &(t).prompt_template,                                                                                 \
       "TEXT",                                                                                               \
       "template of prompts with {prompt} in it",                                                            \
       false,                                                                                                \
       0,                                                                                                    \
       0},                                                                                                   \
      {"--chat-template", CLI_TEXT, &(t).chat_template, "NAME", "template of conversations", false, 0, 0},   \
      {"--dtype", CLI_TEXT, &(t).dtype, "TYPE", "f32, bf16, or auto: the files' own (auto)", false, 0, 0},   \
      {"--model-options", CLI_TEXT, &(t).model_options, "LIST", INPUT_MODEL_OPTIONS, false, 0, 0},           \
      {"--backend", CLI_TEXT, &(t).backend, "NAME", "where to compute (cpu)", false, 0, 0},                  \
      INPUT_DEVICE_OPTION, {                                                                                 \
    "--threads", CLI_INT, &(t).threads, "N", "CPU threads, 0 = all (0)", false, 0, 4096                      \
  }

/* A note for the user on standard error. */
void tracing_note(void *context, const char *line);

/* Samples of files with the tokenizer; every token is routed whatever its part in a loss, so samples without
 * a target stay. `notes`: tell what is odd. Freed by kedge_dataset_free. */
kedge_status tracing_data(const tracing *t, const kedge_tokenizer *tokenizer, const char *const *files,
                          size_t count, bool notes, kedge_dataset **data);

/* The asked dtype; for auto the files' own if all `count` models have the same, else f32. */
kedge_status tracing_dtype(const tracing *t, const char *const *models, size_t count, kedge_dtype *dtype);

/* Opens one model, routes data [count] through it to traces [count], and closes it again: two models never
 * share the memory. `which` names it in what is told. On failure no trace is left. Ranks that have joined on
 * the device share the samples and call this together; all get the traces, or one status. */
kedge_status tracing_run(const tracing *t, const char *which, const char *directory, kedge_device *device,
                         kedge_dtype dtype, const kedge_tokenizer *tokenizer, kedge_dataset *const *data,
                         size_t count, kedge_trace *traces);

#endif
