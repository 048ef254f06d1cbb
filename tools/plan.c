/* SPDX-License-Identifier: Apache-2.0
 * `kedge plan`: what training a model takes, from its config alone. The training graph is built and planned;
 * no weights are read and nothing is computed. */
#include "tools/plan.h"

#include "models/decoder/decoder.h"
#include "models/text/packing.h"
#include "models/training/optimizer.h"
#include "tools/cli.h"
#include "tools/inputs.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

typedef struct plan_options {
  const char *model, *dtype, *model_options;
  int64_t tokens;
  bool recompute, json;
} plan_options;

/* Plans a graph for the CPU: the null device asks for no scratch, and a plan needs no memory for weights. */
static kedge_status plan_graph(const kedge_graph *graph, kedge_plan_summary *summary) {
  kedge_device *cpu = NULL;
  kedge_exec *exec = NULL;
  KEDGE_TRY(kedge_device_open("cpu", NULL, &cpu));
  kedge_status status = kedge_exec_new(cpu, graph, NULL, &exec);
  if (status == KEDGE_OK) *summary = kedge_exec_plan(exec);
  kedge_exec_free(exec);
  kedge_device_close(cpu);
  return status;
}

static kedge_status plan_training(kedge_optimizer *optimizer, const kedge_decoder_spec *spec,
                                  kedge_plan_summary *summary) {
  kedge_decoder decoder;
  KEDGE_TRY(kedge_decoder_build(optimizer->model, spec, &decoder));
  kedge_status status = kedge_optimizer_extend(optimizer, &decoder);
  if (status == KEDGE_OK) status = plan_graph(decoder.graph, summary);
  kedge_decoder_destroy(&decoder);
  return status;
}

kedge_status plan_measure(const kedge_model *model, uint32_t tokens, const kedge_decoder_spec *spec,
                          plan_report *r) {
  const kedge_optimizer_options options = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .max_norm = 1};
  kedge_workspace *workspace = NULL;
  kedge_optimizer optimizer = {0};
  kedge_plan_summary summary = {0};
  r->size = kedge_bucket(tokens);
  kedge_decoder_spec own = *spec;
  own.tokens = r->size;
  own.loss = true;
  KEDGE_TRY(kedge_workspace_new(model->device, &workspace));
  kedge_status status = kedge_optimizer_init(&optimizer, model, &options, workspace);
  if (status == KEDGE_OK) status = plan_training(&optimizer, &own, &summary);
  kedge_optimizer_destroy(&optimizer);
  kedge_workspace_free(workspace);
  const kedge_params *p = &model->params;
  const uint64_t f32 = p->total * sizeof(float);
  r->weights = (p->total - p->wide) * kedge_dtype_size(model->dtype) + (p->wide + p->fixed) * sizeof(float);
  r->gradients = f32;
  r->moments = 2 * f32;
  r->masters = model->dtype == KEDGE_F32 ? 0 : (p->total - p->wide) * sizeof(float);
  r->activations = summary.arena;
  r->naive = summary.naive;
  r->scratch = summary.scratch;
  r->inputs = summary.inputs;
  r->nodes = summary.nodes;
  r->values = summary.values;
  return status;
}

uint64_t plan_rows(const plan_report *r, plan_row rows[PLAN_ROWS]) {
  const plan_row all[PLAN_ROWS] = {{"weights", "weights", r->weights},
                                   {"gradients", "gradients, f32", r->gradients},
                                   {"optimizer", "optimizer (m, v), f32", r->moments},
                                   {"master", "master weights, f32", r->masters},
                                   {"activations", "activations", r->activations},
                                   {"scratch", "scratch of the kernels (cpu)", r->scratch},
                                   {"inputs", "inputs", r->inputs}};
  uint64_t total = 0;
  for (int i = 0; i < PLAN_ROWS; i++) {
    rows[i] = all[i];
    total += all[i].bytes;
  }
  return total;
}

static void print_text(const kedge_model *model, const plan_options *o, const plan_report *r) {
  const kedge_params *p = &model->params;
  plan_row rows[PLAN_ROWS];
  char text[24];
  uint64_t total = plan_rows(r, rows);
  printf("%s: %s, %u layers (%u with experts), %u experts, top %u\n", o->model, model->config.model_type,
         model->config.num_hidden_layers, p->moe_layers, model->config.num_experts,
         model->config.num_experts_per_tok);
  char total_text[32], active[32], tensors[32];
  printf("parameters: %s (%s active) in %s tensors\n", cli_count(p->total, total_text),
         cli_count(p->active, active), cli_count(p->tensors, tensors));
  printf("training %" PRId64 " tokens at once (a bucket of %u), %s, %s recompute: %u nodes\n\n", o->tokens,
         r->size, kedge_dtype_name(model->dtype), o->recompute ? "with" : "without", r->nodes);
  char count[32];
  for (int i = 0; i < PLAN_ROWS; i++)
    printf("%-30s %12s %20s B\n", rows[i].label, cli_bytes(rows[i].bytes, text),
           cli_count(rows[i].bytes, count));
  printf("%-30s %12s %20s B\n", "total", cli_bytes(total, text), cli_count(total, count));
  printf("\nWithout reuse of memory the activations would take %s. Scratch depends on the device; on others "
         "than\n"
         "this CPU it differs.\n",
         cli_bytes(r->naive, text));
}

static void print_json(const kedge_model *model, const plan_options *o, const plan_report *r) {
  const kedge_params *p = &model->params;
  plan_row rows[PLAN_ROWS];
  json_int_t total = (json_int_t)plan_rows(r, rows);
  json_t *bytes = json_object();
  for (int i = 0; i < PLAN_ROWS; i++)
    json_object_set_new(bytes, rows[i].key, json_integer((json_int_t)rows[i].bytes));
  json_object_set_new(bytes, "total", json_integer(total));
  json_t *root =
      json_pack("{s:s, s:I, s:I, s:I, s:i, s:i, s:s, s:b, s:i, s:I, s:o}", "model_type",
                model->config.model_type, "parameters", (json_int_t)p->total, "active_parameters",
                (json_int_t)p->active, "tensors", (json_int_t)p->tensors, "tokens", (int)o->tokens, "bucket",
                (int)r->size, "dtype", kedge_dtype_name(model->dtype), "recompute", o->recompute, "nodes",
                (int)r->nodes, "activations_without_reuse", (json_int_t)r->naive, "bytes", bytes);
  json_dumpf(root, stdout, JSON_INDENT(2));
  putchar('\n');
  json_decref(root);
}

static kedge_status run(const plan_options *o) {
  kedge_hf_config config;
  kedge_device *device = NULL;
  kedge_model *model = NULL;
  kedge_dtype dtype;
  plan_report report = {0};
  const kedge_decoder_spec spec = {.recompute = o->recompute};
  KEDGE_TRY(input_config(o->model, &config));
  kedge_status status = kedge_model_options_set(&config, o->model_options);
  if (status == KEDGE_OK) status = input_dtype(o->dtype, &config, &dtype);
  if (status == KEDGE_OK) status = kedge_device_open("null", NULL, &device);
  if (status == KEDGE_OK)
    status = kedge_model_describe(device, &config, dtype, &model);
  else
    kedge_hf_config_destroy(&config);
  if (status == KEDGE_OK) status = plan_measure(model, (uint32_t)o->tokens, &spec, &report);
  if (status == KEDGE_OK) (o->json ? print_json : print_text)(model, o, &report);
  kedge_model_free(model);
  kedge_device_close(device);
  return status;
}

int command_plan(int argc, char **argv) {
  plan_options o = {.tokens = 2048};
  const cli_option options[] = {
      {"--model", CLI_TEXT, &o.model, "PATH", "config.json or a model directory; weights are not read", true,
       0, 0},
      {"--tokens", CLI_INT, &o.tokens, "T", "tokens of a micro-batch (2048)", false, 1, 1 << 24},
      {"--dtype", CLI_TEXT, &o.dtype, "DTYPE", "f32 or bf16 storage (as the config says)", false, 0, 0},
      {"--model-options", CLI_TEXT, &o.model_options, "LIST", INPUT_MODEL_OPTIONS, false, 0, 0},
      {"--recompute", CLI_FLAG, &o.recompute, NULL, "recompute each layer in the backward pass", false, 0, 0},
      {"--json", CLI_FLAG, &o.json, NULL, "print JSON", false, 0, 0}};
  const cli_spec spec = {.command = "plan",
                         .synopsis = "",
                         .summary =
                             "Prints how many parameters a model has and how much memory training it takes,\n"
                             "by kind. Builds and plans the training graph; needs no weights.",
                         .options = options,
                         .option_count = sizeof options / sizeof *options,
                         .examples = "kedge plan --model config.json\n"
                                     "kedge plan --model model --tokens 8192 --recompute --json"};
  cli_list arguments;
  int code;
  if (!cli_parse(&spec, argc, argv, &arguments, &code)) return code;
  return cli_finish("plan", run(&o));
}
