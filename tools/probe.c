/* SPDX-License-Identifier: Apache-2.0
 * `kedge probe`: how a model routes, and how much of a base model's routing a post-trained one kept
 * (models/retention/probe.h). What it reads is in probe_inputs.c, its tables in probe_table.c. */
#include "models/retention/probe.h"

#include "models/checkpoint/atomic.h"
#include "tools/inputs.h"
#include "tools/interrupt.h"
#include "tools/probe_inputs.h"
#include "tools/probe_plots.h"
#include "tools/progress.h"
#include "tools/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct outputs {
  const char *json, *csv, *communities, *plots, *runs;
} outputs;

/* How communities are found, as the options say it. */
typedef struct detection {
  const char *rho, *detector, *split;
  int64_t seeds, nulls, seed;
  double resolution;
  bool none, selection;
  kedge_community_options options;
} detection;

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
  if (out->communities) KEDGE_TRY(kedge_probe_save_communities(p, 0, out->communities));
  if (out->csv) KEDGE_TRY(kedge_probe_csv(p, out->csv));
  return out->plots ? probe_plot(p, out->plots) : KEDGE_OK;
}

/* ---- Communities
 * --------------------------------------------------------------------------------------------------- */

static kedge_status settle(detection *d, int64_t threads) {
  d->options = kedge_community_defaults();
  if (d->rho) KEDGE_TRY(probe_take_rho(d->rho, &d->options));
  if (!kedge_detector_parse(d->detector, &d->options.detector))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "--detector: expected louvain or leiden, came \"%.80s\"",
                      d->detector);
  if (strcmp(d->split, "tokens") && strcmp(d->split, "samples"))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "--split: expected tokens or samples, came \"%.80s\"", d->split);
  d->options.split = *d->split == 's' ? KEDGE_SPLIT_SAMPLES : KEDGE_SPLIT_TOKENS;
  d->options.seeds = (uint32_t)d->seeds, d->options.nulls = (uint32_t)d->nulls;
  d->options.seed = (uint64_t)d->seed, d->options.resolution = d->resolution;
  d->options.workers = (uint32_t)threads;
  return KEDGE_OK;
}

static bool advanced(void *context, uint32_t layers, uint32_t total) {
  (void)total;
  progress_update(context, layers, 0, NULL);
  return !interrupt_requested();
}

static kedge_status detect(const detection *how, const probe_inputs *in, uint32_t domain, kedge_probe *p) {
  const probe_domain *d = &in->domains[domain];
  progress bar;
  kedge_community_options options = how->options;
  progress_init(&bar, stderr, "probe communities", "layers", 0, p->layers);
  options.progress = advanced, options.context = &bar;
  kedge_status status =
      kedge_probe_add_communities(p, domain, &d->base, d->has_post ? &d->post : NULL, &options);
  if (status == KEDGE_OK)
    progress_end(&bar, NULL);
  else
    progress_clear(&bar);
  return status;
}

/* ---- Selection
 * --------------------------------------------------------------------------------------------------- */

static bool counted(void *context, uint64_t tokens, uint64_t total) {
  (void)total;
  progress_update(context, tokens, tokens, NULL);
  return !interrupt_requested();
}

static kedge_status select_domains(const probe_settings *s, const probe_inputs *in, const kedge_model *base,
                                   const kedge_model *post, kedge_probe *p) {
  for (uint32_t i = 0; i < in->count; i++) {
    const kedge_dataset *data = in->domains[i].data;
    kedge_selection found;
    progress bar;
    uint64_t total = data->offsets[data->count];
    if (s->tracing.max_tokens && (uint64_t)s->tracing.max_tokens < total)
      total = (uint64_t)s->tracing.max_tokens;
    progress_init(&bar, stderr, "probe selection", "tokens", 0, total);
    const kedge_selection_options options = {.batch_size = (uint32_t)s->tracing.batch_size,
                                             .max_tokens = (uint64_t)s->tracing.max_tokens,
                                             .progress = counted,
                                             .context = &bar};
    kedge_status status = kedge_selection_measure(base, post, data, &options, &found);
    if (status != KEDGE_OK) {
      progress_clear(&bar);
      return status;
    }
    progress_end(&bar, NULL);
    kedge_probe_set_selection(p, i, &found);
  }
  return KEDGE_OK;
}

static kedge_status open_both(const probe_settings *s, kedge_device **device, kedge_model **base,
                              kedge_model **post) {
  const kedge_open_options open = {.threads = (uint32_t)s->tracing.threads};
  const char *folders[2] = {s->base, s->post};
  kedge_model_how how = {.map = true, .options = s->tracing.model_options};
  KEDGE_TRY(tracing_dtype(&s->tracing, folders, 2, &how.dtype));
  KEDGE_TRY(ranks_device(s->comm, s->tracing.backend, &open, device));
  KEDGE_TRY(kedge_model_open(*device, s->base, &how, base));
  return kedge_model_open(*device, s->post, &how, post);
}

/* Both models at once, mapped. */
static kedge_status measure_selection(const probe_settings *s, const probe_inputs *in, kedge_probe *p) {
  kedge_device *device = NULL;
  kedge_model *base = NULL, *post = NULL;
  kedge_status status = kedge_comm_agree(s->comm, open_both(s, &device, &base, &post));
  if (status == KEDGE_OK) status = select_domains(s, in, base, post, p);
  kedge_model_free(base);
  kedge_model_free(post);
  kedge_device_close(device);
  return status;
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

enum { MAX_PAIRED = 4096 }; /* experts of a layer whose communities are found */

static kedge_status compare(const probe_inputs *in, kedge_probe *p) {
  for (uint32_t i = 0; i < in->count; i++) {
    const probe_domain *d = &in->domains[i];
    KEDGE_TRY(kedge_probe_add(p, d->name, &d->base, d->has_post ? &d->post : NULL));
  }
  return KEDGE_OK;
}

/* What the first rank does alone while the others wait. */
static kedge_status detect_all(const detection *how, const probe_inputs *in, kedge_probe *p) {
  if (how->none) return KEDGE_OK;
  if (p->experts > MAX_PAIRED) {
    tracing_note(NULL, "communities are not looked for among more than 4096 experts");
    return KEDGE_OK;
  }
  for (uint32_t i = 0; i < in->count; i++) KEDGE_TRY(detect(how, in, i, p));
  return KEDGE_OK;
}

/* What takes long comes last, when everything is known to fit. */
static kedge_status measure(const probe_settings *s, const outputs *out, const detection *how,
                            const probe_inputs *in, kedge_probe *p) {
  KEDGE_TRY(kedge_comm_agree(s->comm, compare(in, p)));
  if (how->selection) KEDGE_TRY(measure_selection(s, in, p));
  kedge_status status = KEDGE_OK;
  if (ranks_leads(s->comm)) status = detect_all(how, in, p);
  if (ranks_leads(s->comm) && status == KEDGE_OK) status = report(s, out, p);
  return kedge_comm_agree(s->comm, status);
}

/* What is wrong with the outputs, before any work. */
static kedge_status check_outputs(const probe_settings *s, const outputs *out, const detection *how) {
  kedge_probe claimed = {.how = how->options};
  uint32_t r;
  if (out->json && strcmp(out->json, "-")) KEDGE_TRY(spare(s, out->json));
  if (out->communities) KEDGE_TRY(spare(s, out->communities));
  if (out->communities && how->none)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "--communities writes what --no-communities leaves out");
  if (out->communities || (out->plots && !how->none)) KEDGE_TRY(kedge_probe_main_rho(&claimed, &r));
  if (how->selection && (!s->base || !s->post || !s->data.count))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "--selection runs two models: it needs --base, --post and --data");
  if (out->runs && !out->plots)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "--runs is drawn into the folder of --plots, which is not given");
  return out->plots ? probe_plot_check() : KEDGE_OK;
}

/* Everything that can be refused or drawn without a model. */
static kedge_status begin(const probe_settings *s, const outputs *out, detection *how) {
  KEDGE_TRY(settle(how, s->tracing.threads));
  KEDGE_TRY(check_outputs(s, out, how));
  return out->runs && ranks_leads(s->comm) ? probe_plot_runs(out->runs, out->plots) : KEDGE_OK;
}

static kedge_status probe(const probe_settings *s, const outputs *out, detection *how) {
  probe_inputs in;
  kedge_probe result = {0};
  KEDGE_TRY(kedge_comm_agree(s->comm, begin(s, out, how)));
  if (out->runs && !s->base && !s->traces.count) return KEDGE_OK;
  kedge_status status = probe_inputs_read(s, &in);
  if (status == KEDGE_OK) status = measure(s, out, how, &in, &result);
  kedge_probe_destroy(&result);
  probe_inputs_destroy(&in);
  return status;
}

int command_probe(int argc, char **argv) {
  probe_settings s = {.tracing = TRACING_DEFAULTS};
  outputs out = {0};
  detection how = {.detector = "louvain", .split = "tokens", .seeds = 8, .nulls = 100, .resolution = 1};
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
      {"--communities", CLI_TEXT, &out.communities, "FILE",
       "write the base's communities (rho 0.1) as JSON, for `kedge prior-shuffle`; of one domain", false, 0,
       0},
      {"--plots", CLI_TEXT, &out.plots, "DIR", "draw pictures (SVG) here; needs gnuplot", false, 0, 0},
      {"--runs", CLI_TEXT, &out.runs, "FILE",
       "CSV of runs, columns name, performance and measures, to be drawn", false, 0, 0},
      {"--rho", CLI_TEXT, &how.rho, "LIST", "shares of expert pairs kept as edges (0.05,0.1,0.15,0.2)", false,
       0, 0},
      {"--detector", CLI_TEXT, &how.detector, "NAME", "louvain or leiden (louvain)", false, 0, 0},
      {"--resolution", CLI_REAL, &how.resolution, "X", "of the modularity (1)", false, 1e-6, 1e6},
      {"--seeds", CLI_INT, &how.seeds, "N", "detector seeds (8)", false, 1, 1024},
      {"--seed", CLI_INT, &how.seed, "N", "the first of them (0)", false, 0, 9e15},
      {"--nulls", CLI_INT, &how.nulls, "N", "null graphs of a layer and rho (100)", false, 0, 1000000},
      {"--split", CLI_TEXT, &how.split, "UNIT", "halves of tokens or of samples for the ceiling (tokens)",
       false, 0, 0},
      {"--no-communities", CLI_FLAG, &how.none, NULL, "leave the communities out", false, 0, 0},
      {"--selection", CLI_FLAG, &how.selection, NULL,
       "likelihood of the answers when each model uses the other's experts, all or one rank", false, 0, 0},
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
                 "used, how far domains lie apart, and communities of experts with their noise floors.\n"
                 "Routing traces do in place of models; one model alone is described.\n"
                 "Ranks that mpirun or srun starts share the data; the report has the same bits.",
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
  kedge_status status = ranks_open("probe", true, &s.comm);
  if (status == KEDGE_OK) status = ranks_same_arguments(s.comm, argc, argv);
  if (status == KEDGE_OK) status = kedge_comm_agree(s.comm, kedge_trace_form_parse(format, &s.import.form));
  s.import.experts = (uint32_t)experts;
  if (status == KEDGE_OK && layers)
    status = kedge_comm_agree(s.comm, kedge_trace_layers_parse(layers, &numbers, &s.import.layer_count));
  s.import.layers = numbers;
  s.one_domain = out.communities != NULL;
  if (status == KEDGE_OK) status = probe(&s, &out, &how);
  kedge_free(numbers);
  return ranks_finish("probe", s.comm, status);
}
