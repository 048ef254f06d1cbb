/* SPDX-License-Identifier: Apache-2.0
 * `kedge trace`: writes a routing trace (models/trace/trace.h) of a model over data; `kedge trace import`
 * is in trace_import.c. */
#include "tools/inputs.h"
#include "tools/interrupt.h"
#include "tools/ranks.h"
#include "tools/trace_import.h"
#include "tools/trace_model.h"

#include <stdio.h>
#include <string.h>

typedef struct settings {
  const char *model, *out;
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
  KEDGE_TRY(tracing_dtype(&s->tracing, &s->model, 1, &o->dtype));
  KEDGE_TRY(kedge_tokenizer_open(s->model, NULL, &o->tokenizer));
  KEDGE_TRY(
      tracing_data(&s->tracing, o->tokenizer, s->files.items, s->files.count, ranks_leads(comm), &o->data));
  return ranks_device(comm, s->tracing.backend, &open, &o->device);
}

static kedge_status run(kedge_comm *comm, const settings *s) {
  opened o = {0};
  kedge_trace trace = {0};
  kedge_status status;
  KEDGE_GOTO(kedge_comm_agree(comm, open_all(s, comm, &o)), status, done);
  KEDGE_GOTO(tracing_run(&s->tracing, "model", s->model, o.device, o.dtype, o.tokenizer, &o.data, 1, &trace),
             status, done);
  KEDGE_GOTO(kedge_comm_agree(comm, ranks_leads(comm) ? kedge_trace_save(&trace, s->out) : KEDGE_OK), status,
             done);
  trace_tell(s->out, &trace);
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
  settings s = {.tracing = TRACING_DEFAULTS};
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
  interrupt_listen();
  kedge_comm *comm = NULL;
  kedge_status status = ranks_open("trace", true, &comm);
  if (status == KEDGE_OK) status = ranks_same_arguments(comm, argc, argv);
  if (status == KEDGE_OK) status = run(comm, &s);
  return ranks_finish("trace", comm, status);
}
