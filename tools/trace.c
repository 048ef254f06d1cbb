/* SPDX-License-Identifier: Apache-2.0
 * `kedge trace`: writes a routing trace (models/trace/trace.h) of a model over data; `kedge trace import`
 * is in trace_import.c. */
#include "models/trace/near_ties.h"
#include "tools/inputs.h"
#include "tools/interrupt.h"
#include "tools/ranks.h"
#include "tools/trace_import.h"
#include "tools/trace_model.h"

#include <stdio.h>
#include <string.h>

typedef struct settings {
  const char *model, *out, *near_ties;
  double tolerance;
  cli_list files;
  tracing tracing;
} settings;

void trace_tell(const char *path, const kedge_trace *t) {
  uint32_t samples = 0;
  for (uint32_t i = 0; i < t->tokens; i++) samples += i == 0 || t->samples[i] != t->samples[i - 1];
  printf("%s: %u tokens of %u samples, %u MoE layers (%d to %d), top %u of %u experts%s%s\n", path, t->tokens,
         samples, t->layers, t->layer_numbers[0], t->layer_numbers[t->layers - 1], t->topk, t->experts,
         t->weights ? ", weights" : "", t->logits ? ", logits" : "");
}

/* What is opened and read. */
typedef struct opened {
  kedge_tokenizer *tokenizer;
  kedge_dataset *data;
  kedge_device *device;
  kedge_dtype dtype;
} opened;

static kedge_status open_all(const settings *s, kedge_comm *comm, opened *o) {
  const kedge_open_options open = {.threads = (uint32_t)s->tracing.threads};
  KEDGE_TRY(input_spare(s->out, s->model, s->files.items, s->files.count));
  if (s->near_ties) KEDGE_TRY(input_spare(s->near_ties, s->model, s->files.items, s->files.count));
  if (s->near_ties && !strcmp(s->near_ties, s->out))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "--near-ties %s would replace --out", s->near_ties);
  KEDGE_TRY(tracing_dtype(&s->tracing, &s->model, 1, &o->dtype));
  KEDGE_TRY(kedge_tokenizer_open(s->model, NULL, &o->tokenizer));
  KEDGE_TRY(
      tracing_data(&s->tracing, o->tokenizer, s->files.items, s->files.count, ranks_leads(comm), &o->data));
  return ranks_device(comm, s->tracing.backend, &open, &o->device);
}

/* "near ties within 1e-05: 3 of 4096 choices; by layer 1:2 3:1", and the list. */
static kedge_status tell_near_ties(const settings *s, const kedge_trace *t) {
  uint64_t *counts = kedge_alloc(t->layers, sizeof *counts);
  if (!counts) return KEDGE_ERR_MEMORY;
  const uint64_t all = kedge_near_ties_count(t, s->tolerance, counts);
  printf("near ties within %g: %llu of %llu choices", s->tolerance, (unsigned long long)all,
         (unsigned long long)t->tokens * t->layers);
  bool first = true;
  for (uint32_t l = 0; l < t->layers; l++) {
    if (!counts[l]) continue;
    printf("%s %d:%llu", first ? "; by layer" : "", t->layer_numbers[l], (unsigned long long)counts[l]);
    first = false;
  }
  printf("\n");
  kedge_free(counts);
  return kedge_near_ties_save(t, s->tolerance, s->near_ties);
}

/* What the rank that has the files does with the trace. */
static kedge_status keep(const settings *s, const kedge_trace *t) {
  KEDGE_TRY(kedge_trace_save(t, s->out));
  trace_tell(s->out, t);
  return s->near_ties ? tell_near_ties(s, t) : KEDGE_OK;
}

static kedge_status run(kedge_comm *comm, const settings *s) {
  opened o = {0};
  kedge_trace trace = {0};
  kedge_status status;
  KEDGE_GOTO(kedge_comm_agree(comm, open_all(s, comm, &o)), status, done);
  KEDGE_GOTO(tracing_run(&s->tracing, "model", s->model, o.device, o.dtype, o.tokenizer, &o.data, 1, &trace),
             status, done);
  status = kedge_comm_agree(comm, ranks_leads(comm) ? keep(s, &trace) : KEDGE_OK);
done:
  kedge_trace_destroy(&trace);
  kedge_device_close(o.device);
  kedge_dataset_free(o.data);
  kedge_tokenizer_free(o.tokenizer);
  return status;
}

static char *more(void) {
  return kedge_strdup("\nTraces of other tools: kedge trace import --help\n");
}

int command_trace(int argc, char **argv) {
  settings s = {.tracing = TRACING_DEFAULTS, .tolerance = 1e-5};
  cli_list arguments;
  int code;
  if (argc > 1 && !strcmp(argv[1], "import")) {
    if (kedge_comm_launched() <= 1) return trace_import(argc - 1, argv + 1);
    return cli_finish("trace",
                      kedge_fail(KEDGE_ERR_ARGUMENT, "%u processes were launched, but importing is for one",
                                 kedge_comm_launched()));
  }
  s.tracing.command = "trace";
  const cli_option options[] = {
      {"--model", CLI_TEXT, &s.model, "DIR", "folder of the model", true, 0, 0},
      {"--data", CLI_TEXTS, &s.files, "FILE", "JSONL file to route; may be given again", true, 0, 0},
      {"--out", CLI_TEXT, &s.out, "FILE", "routing trace to write (safetensors)", true, 0, 0},
      {"--weights", CLI_FLAG, &s.tracing.weights, NULL, "with the gate weights", false, 0, 0},
      {"--logits", CLI_FLAG, &s.tracing.logits, NULL, "with the router's logits of all experts", false, 0, 0},
      {"--near-ties", CLI_TEXT, &s.near_ties, "FILE",
       "count choices that rounding decides, list them here (CSV), keep all gaps in the trace", false, 0, 0},
      {"--near-tolerance", CLI_REAL, &s.tolerance, "X",
       "how near the last chosen and the best left out have scored (1e-5)", false, 0, 1e6},
      TRACING_OPTIONS(s.tracing),
  };
  const cli_spec spec = {
      .command = "trace",
      .synopsis = "",
      .summary =
          "Routes data through a model, without any intervention, and writes which experts each token\n"
          "was sent to in each layer, with its sample and its part of it (question or answer).\n"
          "Ranks that mpirun or srun starts share the samples; the file has the same bits.",
      .options = options,
      .option_count = sizeof options / sizeof *options,
      .examples = "kedge trace --model base --data heldout.jsonl --out base.safetensors --weights\n"
                  "kedge trace import --format jsonl other.jsonl --experts 64 --out other.safetensors",
      .more = more};
  if (!cli_parse(&spec, argc, argv, &arguments, &code)) return code;
  s.tracing.gaps = s.near_ties != NULL;
  interrupt_listen();
  kedge_comm *comm = NULL;
  kedge_status status = ranks_open("trace", true, &comm);
  if (status == KEDGE_OK) status = ranks_same_arguments(comm, argc, argv);
  if (status == KEDGE_OK) status = run(comm, &s);
  return ranks_finish("trace", comm, status);
}
