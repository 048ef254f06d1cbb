/* SPDX-License-Identifier: Apache-2.0
 * `kedge trace import`: other tools' routing traces (models/trace/trace_import.h) as a file of ours. */
#include "tools/trace_import.h"

#include "models/checkpoint/hash.h"
#include "models/trace/trace_import.h"
#include "tools/cli.h"
#include "tools/inputs.h"

#include <stdio.h>
#include <string.h>

typedef struct settings {
  const char *in, *out, *format, *model, *layers;
  int64_t experts, topk, file_layers;
  kedge_trace_import_options options;
} settings;

/* Takes what the model's config tells and the user did not: experts, top-k, layers of a file of all layers.
 * The MoE layers are picked later, when it is known whether the file has others. */
static kedge_status take_config(settings *s, kedge_hf_config *config) {
  KEDGE_TRY(input_config(s->model, config));
  if (!config->num_experts)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "%s: the model has no mixture-of-experts layer", s->model);
  if (!s->experts) s->options.experts = config->num_experts;
  if (!s->topk) s->options.topk = config->num_experts_per_tok;
  if (!s->file_layers) s->options.file_layers = config->num_hidden_layers;
  return KEDGE_OK;
}

/* The numbers of the model's MoE layers: of a file that has as many layers, their numbers; of one that has
 * all layers, the ones to keep. */
static kedge_status moe_layers(const kedge_hf_config *config, int32_t **numbers, uint32_t *count) {
  *numbers = kedge_alloc(config->num_hidden_layers, sizeof **numbers);
  if (!*numbers) return KEDGE_ERR_MEMORY;
  for (uint32_t l = 0; l < config->num_hidden_layers; l++)
    if (kedge_hf_layer_is_sparse(config, l)) (*numbers)[(*count)++] = (int32_t)l;
  return KEDGE_OK;
}

static kedge_status model_hash(const char *model, char hash[33]) {
  kedge_checkpoint *checkpoint;
  if (!model || !input_is_folder(model)) return KEDGE_OK;
  KEDGE_TRY(kedge_checkpoint_open(model, &checkpoint));
  kedge_status status = kedge_hash_checkpoint(checkpoint, hash);
  kedge_checkpoint_close(checkpoint);
  return status;
}

/* ERR_ARGUMENT if the output would replace something that is read. */
static kedge_status spare(const settings *s) {
  const char *inputs[] = {s->in, s->options.weights, s->options.samples, s->options.spans};
  for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
    if (inputs[i]) KEDGE_TRY(input_spare(s->out, s->model, &inputs[i], 1));
  if (!input_is_folder(s->in) || input_spare(s->out, s->in, NULL, 0) == KEDGE_OK) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_ARGUMENT, "--out %s would replace a file of the trace that is read", s->out);
}

static kedge_status run(settings *s) {
  kedge_hf_config config = {0};
  kedge_trace trace = {0};
  int32_t *numbers = NULL;
  kedge_status status = KEDGE_OK;
  s->options.experts = (uint32_t)s->experts, s->options.topk = (uint32_t)s->topk;
  s->options.file_layers = (uint32_t)s->file_layers;
  KEDGE_GOTO(spare(s), status, done);
  KEDGE_GOTO(kedge_trace_form_parse(s->format, &s->options.form), status, done);
  if (s->model) KEDGE_GOTO(take_config(s, &config), status, done);
  if (s->layers)
    status = kedge_trace_layers_parse(s->layers, &numbers, &s->options.layer_count);
  else if (s->model)
    status = moe_layers(&config, &numbers, &s->options.layer_count);
  if (status != KEDGE_OK) goto done;
  s->options.layers = numbers;
  KEDGE_GOTO(kedge_trace_read(s->in, &s->options, &trace), status, done);
  KEDGE_GOTO(model_hash(s->model, trace.model), status, done);
  KEDGE_GOTO(kedge_trace_save(&trace, s->out), status, done);
  trace_tell(s->out, &trace);
done:
  kedge_trace_destroy(&trace);
  kedge_hf_config_destroy(&config);
  kedge_free(numbers);
  return status;
}

int trace_import(int argc, char **argv) {
  settings s = {.format = "auto"};
  cli_list arguments;
  int code;
  const cli_option options[] = {
      {"--out", CLI_TEXT, &s.out, "FILE", "routing trace to write (safetensors)", true, 0, 0},
      {"--format", CLI_TEXT, &s.format, "NAME", "jsonl, raw, npy, safetensors, or auto: look at it (auto)",
       false, 0, 0},
      {"--experts", CLI_INT, &s.experts, "N", "experts of a layer, where the file does not tell", false, 1,
       65536},
      {"--layers", CLI_TEXT, &s.layers, "LIST",
       "numbers of the file's layers, or the layers to keep: 1-26 or 0,3,5-8", false, 0, 0},
      {"--model", CLI_TEXT, &s.model, "PATH",
       "model folder or config.json: experts, layers, top-k, and the folder's hash", false, 0, 0},
      {"--domain", CLI_TEXT, &s.options.domain, "NAME", "which domain of a raw folder", false, 0, 0},
      {"--top-k", CLI_INT, &s.topk, "N", "experts a token, for base64 without a shape", false, 1, 65536},
      {"--file-layers", CLI_INT, &s.file_layers, "N", "layers in the file, for base64 without a shape", false,
       1, 65536},
      {"--weights", CLI_TEXT, &s.options.weights, "FILE", "NumPy gate weights (tokens, layers, k)", false, 0,
       0},
      {"--samples", CLI_TEXT, &s.options.samples, "FILE", "NumPy sample of each token, ascending", false, 0,
       0},
      {"--spans", CLI_TEXT, &s.options.spans, "FILE",
       "NumPy span of each token: 0 question, 1 answer, -1 none", false, 0, 0},
  };
  const cli_spec spec = {
      .command = "trace import",
      .synopsis = "PATH",
      .summary =
          "Reads a routing trace of another tool and writes it in the form that `kedge probe` reads:\n"
          "JSON Lines with a token or a sample a line (SGLang's routed_experts in base64 too), a folder of\n"
          "u8 or u16 files with an index.json, a NumPy array (tokens, layers, k). docs/file-formats.md "
          "tells\n"
          "the forms. A file of all layers, dense ones too, needs --layers or --model.",
      .options = options,
      .option_count = sizeof options / sizeof *options,
      .least = 1,
      .most = 1,
      .examples = "kedge trace import routed.jsonl --model base --out routed.safetensors\n"
                  "kedge trace import ids.npy --experts 64 --layers 1-26 --out routed.safetensors\n"
                  "kedge trace import folder --domain intent --out intent.safetensors"};
  if (!cli_parse(&spec, argc, argv, &arguments, &code)) return code;
  s.in = arguments.items[0];
  return cli_finish("trace import", run(&s));
}
