/* SPDX-License-Identifier: Apache-2.0
 *
 * What `kedge probe` looks at (probe_inputs.c): domains by name, each with a base trace and perhaps a post
 * one, from trace files or from models over data; and what it prints of them (probe_table.c). */
#ifndef KEDGE_TOOLS_PROBE_INPUTS_H
#define KEDGE_TOOLS_PROBE_INPUTS_H

#include "core/comm.h"
#include "models/retention/probe.h"
#include "tools/trace_model.h"

enum { PROBE_DOMAINS = 64, PROBE_NAME = 64 };

typedef struct probe_settings {
  const char *base, *post;            /* a model folder or a trace each; NULL */
  cli_list data, traces, post_traces; /* "[NAME=]PATH" */
  const char *trace_out;
  bool one_domain; /* more are an error, told before anything is routed */
  kedge_trace_import_options import;
  tracing tracing;
  kedge_comm *comm; /* ranks that share the data */
} probe_settings;

typedef struct probe_domain {
  char name[PROBE_NAME];
  bool named; /* by the user or the file; else the name is a file's own, or "data" */
  const char *files[CLI_MAX_ARGUMENTS];
  size_t file_count;
  kedge_dataset *data;
  kedge_trace base, post;
  bool has_base, has_post;
} probe_domain;

typedef struct probe_inputs {
  uint32_t count;
  probe_domain *domains; /* [PROBE_DOMAINS] */
  bool compares;
} probe_inputs;

/* Reads or makes every trace. Ranks share what is routed, call this together and all get the traces, or one
 * status; traces that are read leave nothing to share, and several ranks are refused. Destroyed by
 * probe_inputs_destroy, also after a failure. */
kedge_status probe_inputs_read(const probe_settings *settings, probe_inputs *inputs);
void probe_inputs_destroy(probe_inputs *inputs);

/* Splits "NAME=PATH"; NAME is letters, digits, "_", "-" and ".". Returns the path, which is all of the text
 * where there is no such name. */
const char *probe_split(const char *text, char name[PROBE_NAME]);

/* Ascending shares of edges, "0.05,0.1", into the options; ERR_ARGUMENT naming --rho. */
kedge_status probe_take_rho(const char *text, kedge_community_options *options);

/* The tables on standard output. */
void probe_print(const probe_settings *settings, const kedge_probe *probe);

#endif
