/* SPDX-License-Identifier: Apache-2.0
 * `kedge audit`: whether communities say anything about a base router, and which interventions have something
 * to act on (models/retention/audit.h). Its tables are in audit_table.c. */
#include "tools/audit.h"

#include "models/checkpoint/atomic.h"
#include "models/decoder/parameters.h"
#include "tools/inputs.h"
#include "tools/interrupt.h"
#include "tools/probe_inputs.h"
#include "tools/progress.h"
#include "tools/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct settings {
  probe_settings inputs; /* base: the model */
  const char *json, *rho, *detector, *format, *layers;
  int64_t seeds, nulls, seed, experts;
  bool no_logits;
} settings;

static bool advanced(void *context, uint32_t layers, uint32_t total) {
  (void)total;
  progress_update(context, layers, 0, NULL);
  return !interrupt_requested();
}

static kedge_status settle(const settings *s, kedge_community_options *o) {
  *o = kedge_community_defaults();
  KEDGE_TRY(probe_take_rho(s->rho, o));
  if (!kedge_detector_parse(s->detector, &o->detector))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "--detector: expected louvain or leiden, came \"%.80s\"",
                      s->detector);
  o->seeds = (uint32_t)s->seeds, o->nulls = (uint32_t)s->nulls, o->seed = (uint64_t)s->seed;
  o->workers = (uint32_t)s->inputs.tracing.threads;
  return KEDGE_OK;
}

/* What is missing or stands side by side in vain, and an output in the place of an input; before any work. */
static kedge_status check(const settings *s) {
  const probe_settings *in = &s->inputs;
  if (!in->base == !in->traces.count)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "expected either --model with --data, or --trace; see `kedge audit "
                                          "--help`");
  if (!in->base == (in->data.count > 0))
    return kedge_fail(KEDGE_ERR_ARGUMENT, in->base ? "--data is needed, to route through --model"
                                                   : "--data is routed through a --model, not a --trace");
  if (!s->json || !strcmp(s->json, "-")) return KEDGE_OK;
  const cli_list *lists[] = {&in->data, &in->traces};
  if (in->base) KEDGE_TRY(input_spare(s->json, in->base, NULL, 0));
  for (size_t l = 0; l < 2; l++)
    for (size_t i = 0; i < lists[l]->count; i++) {
      char name[PROBE_NAME];
      const char *path = probe_split(lists[l]->items[i], name);
      KEDGE_TRY(input_spare(s->json, input_is_folder(path) ? path : NULL, &path, 1));
    }
  return KEDGE_OK;
}

/* Whether the model's router has a selection bias. */
static kedge_status find_bias(const char *model, kedge_audit_bias *bias) {
  kedge_hf_config config;
  kedge_params params;
  *bias = KEDGE_AUDIT_BIAS_UNKNOWN;
  if (!model) return KEDGE_OK;
  KEDGE_TRY(kedge_hf_config_load(model, &config));
  kedge_status status = kedge_params_init(&params, &config);
  if (status == KEDGE_OK) {
    *bias = params.options.correction ? KEDGE_AUDIT_BIAS_PRESENT : KEDGE_AUDIT_BIAS_ABSENT;
    kedge_params_destroy(&params);
  }
  kedge_hf_config_destroy(&config);
  return status;
}

static kedge_status detect(const probe_domain *d, uint32_t domain, const kedge_community_options *how,
                           kedge_audit *a) {
  kedge_community_options options = *how;
  progress bar;
  progress_init(&bar, stderr, "audit communities", "layers", 0, d->base.layers);
  options.progress = advanced, options.context = &bar;
  const kedge_status status = kedge_audit_add_communities(a, domain, &d->base, &options);
  if (status == KEDGE_OK)
    progress_end(&bar, NULL);
  else
    progress_clear(&bar);
  return status;
}

/* What takes long comes last, when everything is known to fit. */
static kedge_status measure(const probe_inputs *in, const kedge_community_options *how, kedge_audit *a) {
  for (uint32_t i = 0; i < in->count; i++)
    KEDGE_TRY(kedge_audit_add(a, in->domains[i].name, &in->domains[i].base));
  for (uint32_t i = 0; i < in->count; i++) KEDGE_TRY(detect(&in->domains[i], i, how, a));
  return KEDGE_OK;
}

static kedge_status report(const settings *s, const kedge_audit *a) {
  char *text;
  const bool printed = s->json && !strcmp(s->json, "-");
  if (!printed) audit_print(a, s->inputs.base);
  if (!s->json) return KEDGE_OK;
  KEDGE_TRY(kedge_audit_json(a, &text));
  kedge_status status = KEDGE_OK;
  if (printed)
    puts(text);
  else
    status = kedge_file_write(s->json, text, strlen(text));
  kedge_free(text);
  return status;
}

/* The user is told of data that was left out. */
static void tell_cut(const settings *s, const probe_inputs *in) {
  const int64_t most = s->inputs.tracing.max_tokens;
  for (uint32_t i = 0; i < in->count; i++) {
    const kedge_dataset *data = in->domains[i].data;
    char line[200];
    if (!data || !most || data->offsets[data->count] <= (uint64_t)most) continue;
    snprintf(line, sizeof line, "%s: the first %lld of %llu tokens are looked at (--max-tokens)",
             in->domains[i].name, (long long)most, (unsigned long long)data->offsets[data->count]);
    tracing_note(NULL, line);
  }
}

static kedge_status begin(const settings *s, kedge_community_options *how, kedge_audit_bias *bias) {
  KEDGE_TRY(check(s));
  KEDGE_TRY(settle(s, how));
  return find_bias(s->inputs.base, bias);
}

/* What the first rank does alone while the others wait. */
static kedge_status judge(const settings *s, const probe_inputs *in, const kedge_community_options *how,
                          kedge_audit_bias bias) {
  kedge_audit a = {0};
  tell_cut(s, in);
  kedge_status status = measure(in, how, &a);
  if (status == KEDGE_OK) {
    kedge_audit_judge(&a, bias);
    status = report(s, &a);
  }
  kedge_audit_destroy(&a);
  return status;
}

static kedge_status audit(const settings *s) {
  kedge_comm *comm = s->inputs.comm;
  kedge_community_options how;
  kedge_audit_bias bias = KEDGE_AUDIT_BIAS_UNKNOWN;
  probe_inputs in;
  KEDGE_TRY(kedge_comm_agree(comm, begin(s, &how, &bias)));
  kedge_status status = probe_inputs_read(&s->inputs, &in);
  if (status == KEDGE_OK)
    status = kedge_comm_agree(comm, ranks_leads(comm) ? judge(s, &in, &how, bias) : KEDGE_OK);
  probe_inputs_destroy(&in);
  return status;
}

#define SUMMARY                                                                                              \
  "Routes data through a base model and tells whether communities of experts say anything about it, which "  \
  "interventions\nhave something to act on, and what to beware of: sharpness against what chance alone "     \
  "gives, modularity against null\ngraphs, two halves of the tokens against permuted labels, dead experts, " \
  "ties, and what a prior's clip would touch.\nA routing trace does in place of the model. The exit status " \
  "is 0 whatever the verdicts are.\nRanks that mpirun or srun starts share the data; the report has the "    \
  "same bits."

int command_audit(int argc, char **argv) {
  settings s = {.inputs = {.tracing = TRACING_DEFAULTS},
                .rho = "0.1",
                .detector = "louvain",
                .format = "auto",
                .seeds = 8,
                .nulls = 100};
  tracing *t = &s.inputs.tracing;
  cli_list arguments;
  int code;
  t->command = "audit", t->max_tokens = 20000;
  const cli_option options[] = {
      {"--model", CLI_TEXT, &s.inputs.base, "DIR", "folder of the base model", false, 0, 0},
      {"--data", CLI_TEXTS, &s.inputs.data, "[NAME=]FILE",
       "JSONL file to route; may be given again. Files of one name are a domain", false, 0, 0},
      {"--trace", CLI_TEXTS, &s.inputs.traces, "[NAME=]FILE",
       "routing trace of a domain, in place of --model and --data", false, 0, 0},
      {"--json", CLI_TEXT, &s.json, "FILE", "write the report as JSON; - prints it, without tables", false, 0,
       0},
      {"--rho", CLI_TEXT, &s.rho, "LIST", "shares of expert pairs kept as edges; 0.1 is judged (0.1)", false,
       0, 0},
      {"--detector", CLI_TEXT, &s.detector, "NAME", "louvain or leiden (louvain)", false, 0, 0},
      {"--seeds", CLI_INT, &s.seeds, "N", "detector seeds (8)", false, 1, 1024},
      {"--seed", CLI_INT, &s.seed, "N", "the first of them (0)", false, 0, 9e15},
      {"--nulls", CLI_INT, &s.nulls, "N", "null graphs of a layer and rho (100)", false, 0, 1000000},
      {"--no-logits", CLI_FLAG, &s.no_logits, NULL,
       "leave out what needs router logits: 4 bytes a token, layer and expert", false, 0, 0},
      {"--trace-out", CLI_TEXT, &s.inputs.trace_out, "DIR", "keep the routing traces (safetensors) here",
       false, 0, 0},
      {"--format", CLI_TEXT, &s.format, "NAME", "of traces: jsonl, raw, npy, safetensors, or auto (auto)",
       false, 0, 0},
      {"--experts", CLI_INT, &s.experts, "N", "experts of a layer, for traces that do not tell", false, 1,
       65536},
      {"--layers", CLI_TEXT, &s.layers, "LIST", "numbers, or choice, of a trace's layers: 1-26", false, 0, 0},
      {"--max-tokens", CLI_INT, &t->max_tokens, "N", "of a domain's data, 0 = all (20000)", false, 0,
       INT32_MAX},
      {"--max-length", CLI_INT, &t->max_length, "N", "longest sample in tokens (1024)", false, 2, 1048576},
      {"--batch-size", CLI_INT, &t->batch_size, "N", "samples in one forward pass (8)", false, 1, 65536},
      {"--prompt-template", CLI_TEXT, &t->prompt_template, "TEXT", "template of prompts with {prompt} in it",
       false, 0, 0},
      {"--chat-template", CLI_TEXT, &t->chat_template, "NAME", "template of conversations", false, 0, 0},
      {"--dtype", CLI_TEXT, &t->dtype, "TYPE", "f32, bf16, or auto: the files' own (auto)", false, 0, 0},
      {"--model-options", CLI_TEXT, &t->model_options, "LIST", INPUT_MODEL_OPTIONS, false, 0, 0},
      {"--backend", CLI_TEXT, &t->backend, "NAME", "where to compute (cpu)", false, 0, 0},
      INPUT_DEVICE_OPTION,
      {"--threads", CLI_INT, &t->threads, "N", "CPU threads, 0 = all (0)", false, 0, 4096}};
  const cli_spec spec = {.command = "audit",
                         .synopsis = "",
                         .summary = SUMMARY,
                         .options = options,
                         .option_count = sizeof options / sizeof *options,
                         .examples =
                             "kedge audit --model base --data train.jsonl\n"
                             "kedge audit --model base --data math=m.jsonl --data code=c.jsonl --json "
                             "audit.json\n"
                             "kedge audit --trace base.safetensors --rho 0.05,0.1,0.2"};
  if (!cli_parse(&spec, argc, argv, &arguments, &code)) return code;
  interrupt_listen();
  int32_t *numbers = NULL;
  t->logits = !s.no_logits;
  s.inputs.import.experts = (uint32_t)s.experts;
  kedge_comm **comm = &s.inputs.comm;
  kedge_status status = ranks_open("audit", true, comm);
  if (status == KEDGE_OK) status = ranks_same_arguments(*comm, argc, argv);
  if (status == KEDGE_OK)
    status = kedge_comm_agree(*comm, kedge_trace_form_parse(s.format, &s.inputs.import.form));
  if (status == KEDGE_OK && s.layers)
    status =
        kedge_comm_agree(*comm, kedge_trace_layers_parse(s.layers, &numbers, &s.inputs.import.layer_count));
  s.inputs.import.layers = numbers;
  if (status == KEDGE_OK) status = audit(&s);
  kedge_free(numbers);
  return ranks_finish("audit", *comm, status);
}
