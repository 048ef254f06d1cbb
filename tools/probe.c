/* SPDX-License-Identifier: Apache-2.0
 * `kedge probe`: how a model routes, and how much of a base model's routing a post-trained one kept
 * (models/routing/probe.h). What it reads is in probe_inputs.c, its tables in probe_table.c. */
#include "models/routing/probe.h"

#include "models/checkpoint/atomic.h"
#include "tools/inputs.h"
#include "tools/interrupt.h"
#include "tools/probe_inputs.h"

#include <stdio.h>
#include <string.h>

typedef struct outputs {
  const char *json, *csv;
} outputs;

static kedge_status write_json(const kedge_probe *p, const char *path) {
  char *text;
  KEDGE_TRY(kedge_probe_json(p, true, &text));
  kedge_status status = KEDGE_OK;
  if (strcmp(path, "-"))
    status = kedge_file_write(path, text, strlen(text));
  else
    puts(text);
  kedge_free(text);
  return status;
}

static kedge_status report(const probe_settings *s, const outputs *out, const kedge_probe *p) {
  if (!out->json || strcmp(out->json, "-")) probe_print(s, p);
  if (out->json) KEDGE_TRY(write_json(p, out->json));
  return out->csv ? kedge_probe_csv(p, out->csv) : KEDGE_OK;
}

/* ERR_ARGUMENT if writing `path` would replace something that is read. */
static kedge_status spare(const probe_settings *s, const char *path) {
  const cli_list *lists[] = {&s->data, &s->traces, &s->post_traces};
  const char *sides[] = {s->base, s->post};
  for (size_t i = 0; i < 2; i++)
    if (sides[i]) KEDGE_TRY(input_spare(path, sides[i], &sides[i], 1));
  for (size_t l = 0; l < 3; l++)
    for (size_t i = 0; i < lists[l]->count; i++) {
      char name[PROBE_NAME];
      const char *input = probe_split(lists[l]->items[i], name);
      KEDGE_TRY(input_spare(path, input_is_folder(input) ? input : NULL, &input, 1));
    }
  return KEDGE_OK;
}

static kedge_status probe(const probe_settings *s, const outputs *out) {
  probe_inputs in;
  kedge_probe result = {0};
  if (out->json && strcmp(out->json, "-")) KEDGE_TRY(spare(s, out->json));
  kedge_status status = probe_inputs_read(s, &in);
  for (uint32_t i = 0; i < in.count && status == KEDGE_OK; i++) {
    const probe_domain *d = &in.domains[i];
    status = kedge_probe_add(&result, d->name, &d->base, d->has_post ? &d->post : NULL);
    if (status != KEDGE_OK && in.count > 1) status = kedge_fail_in(status, "domain %s", d->name);
  }
  if (status == KEDGE_OK) status = report(s, out, &result);
  kedge_probe_destroy(&result);
  probe_inputs_destroy(&in);
  return status;
}

int command_probe(int argc, char **argv) {
  probe_settings s = {.tracing = TRACING_DEFAULTS};
  outputs out = {0};
  const char *format = "auto", *layers = NULL;
  int64_t experts = 0;
  cli_list arguments;
  int code;
  s.tracing.command = "probe";
  s.tracing.weights = true;
  const cli_option options[] = {
      {"--base", CLI_TEXT, &s.base, "PATH", "folder of the base model, or its routing trace", false, 0, 0},
      {"--post", CLI_TEXT, &s.post, "PATH", "folder of the post-trained model, or its trace", false, 0, 0},
      {"--data", CLI_TEXTS, &s.data, "[NAME=]FILE",
       "JSONL file to route; may be given again. Files of one name are a domain", false, 0, 0},
      {"--trace", CLI_TEXTS, &s.traces, "[NAME=]FILE",
       "routing trace of the base in a domain, in place of --base and --data", false, 0, 0},
      {"--post-trace", CLI_TEXTS, &s.post_traces, "[NAME=]FILE", "that of the post-trained model", false, 0,
       0},
      {"--json", CLI_TEXT, &out.json, "FILE", "write the report as JSON; - prints it, without tables", false,
       0, 0},
      {"--csv", CLI_TEXT, &out.csv, "DIR", "write matrices of expert use as CSV files here", false, 0, 0},
      {"--trace-out", CLI_TEXT, &s.trace_out, "DIR", "keep the routing traces (safetensors) here", false, 0,
       0},
      {"--format", CLI_TEXT, &format, "NAME", "of traces: jsonl, raw, npy, safetensors, or auto (auto)",
       false, 0, 0},
      {"--experts", CLI_INT, &experts, "N", "experts of a layer, for traces that do not tell", false, 1,
       65536},
      {"--layers", CLI_TEXT, &layers, "LIST", "numbers, or choice, of a trace's layers: 1-26", false, 0, 0},
      TRACING_OPTIONS(s.tracing),
  };
  const cli_spec spec = {
      .command = "probe",
      .synopsis = "",
      .summary = "Routes the same tokens through a base model and a post-trained one, without any "
                 "intervention, and\n"
                 "tells how much of the routing was kept: top-k overlap, top-1 agreement, total variation "
                 "(TVD) and\n"
                 "Jensen-Shannon divergence (JSD) of expert utilisation, dead experts, and load; how evenly "
                 "experts are\n"
                 "used, and how far domains lie apart. Routing traces do in place of models; one model alone "
                 "is described.",
      .options = options,
      .option_count = sizeof options / sizeof *options,
      .examples =
          "kedge probe --base base --post run/final --data heldout.jsonl\n"
          "kedge probe --base base --post run/final --data math=m.jsonl --data code=c.jsonl "
          "--max-tokens 5000 --json report.json\n"
          "kedge probe --trace math=base.safetensors --post-trace math=post.safetensors --csv tables"};
  if (!cli_parse(&spec, argc, argv, &arguments, &code)) return code;
  interrupt_listen();
  int32_t *numbers = NULL;
  kedge_status status = kedge_trace_form_parse(format, &s.import.form);
  s.import.experts = (uint32_t)experts;
  if (status == KEDGE_OK && layers)
    status = kedge_trace_layers_parse(layers, &numbers, &s.import.layer_count);
  s.import.layers = numbers;
  if (status == KEDGE_OK) status = probe(&s, &out);
  kedge_free(numbers);
  return cli_finish("probe", status);
}
