/* SPDX-License-Identifier: Apache-2.0
 * `kedge plan`: what training a model takes, from its config alone. The training graph is built and planned;
 * no weights are read and nothing is computed. What several ranks need is in plan_ranks.c. */
#include "tools/plan.h"

#include "core/exec.h"
#include "models/text/packing.h"
#include "models/training/optimizer.h"
#include "tools/cli.h"
#include "tools/inputs.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

/* Plans a graph for the CPU: the null device asks for no scratch, and a plan needs no memory for weights. */
static kedge_status plan_graph(const kedge_graph *graph, kedge_comm *comm, kedge_exec **exec,
                               kedge_device **cpu) {
  KEDGE_TRY(kedge_device_open("cpu", NULL, cpu));
  kedge_device_join(*cpu, comm);
  return kedge_exec_new(*cpu, graph, NULL, exec);
}

/* Rows that the planned steps send away, as many as tokens are sent on the mean. */
static void count_rows(const kedge_model *model, const kedge_exec *exec, plan_report *r) {
  const uint64_t rows = (uint64_t)r->size * model->config.num_experts_per_tok, P = model->params.members;
  for (uint32_t s = 0; s < exec->step_count; s++) {
    const kedge_step *step = &exec->steps[s];
    const kedge_args_all_to_all_rows *a = step->call.args;
    if (kedge_op_get(step->op)->kind != KEDGE_KIND_COLLECTIVE) continue;
    r->micro_calls++;
    if (step->op == KEDGE_OP_all_to_all_rows)
      r->rows_sent += rows * a->cols * kedge_dtype_size(step->call.in[0].dtype) * (P - 1) / P;
  }
}

/* An update shares the workspace of the training passes, and may be the larger one. */
static kedge_status plan_update(const kedge_optimizer *optimizer, plan_report *r) {
  kedge_exec *exec = NULL;
  kedge_device *cpu = NULL;
  kedge_status status = plan_graph(optimizer->graph, optimizer->comm, &exec, &cpu);
  if (status == KEDGE_OK) {
    const kedge_plan_summary summary = kedge_exec_plan(exec);
    const uint64_t bytes = summary.arena + summary.scratch;
    if (bytes > r->activations + r->scratch) r->scratch = bytes - r->activations;
  }
  kedge_exec_free(exec);
  kedge_device_close(cpu);
  return status;
}

static kedge_status plan_training(kedge_optimizer *optimizer, const kedge_decoder_spec *spec,
                                  plan_report *r) {
  kedge_decoder decoder;
  kedge_exec *exec = NULL;
  kedge_device *cpu = NULL;
  KEDGE_TRY(kedge_decoder_build(optimizer->model, spec, &decoder));
  kedge_status status = kedge_optimizer_extend(optimizer, &decoder);
  if (status == KEDGE_OK) status = plan_graph(decoder.graph, optimizer->comm, &exec, &cpu);
  if (status == KEDGE_OK) {
    const kedge_plan_summary summary = kedge_exec_plan(exec);
    r->activations = summary.arena;
    r->naive = summary.naive;
    r->scratch = summary.scratch;
    r->inputs = summary.inputs;
    r->nodes = summary.nodes;
    r->values = summary.values;
    count_rows(optimizer->model, exec, r);
  }
  kedge_exec_free(exec);
  kedge_device_close(cpu);
  kedge_decoder_destroy(&decoder);
  return status;
}

/* Bytes of what lives from update to update, and what an update sends. */
static void count_states(const kedge_optimizer *o, plan_report *r) {
  const kedge_model *model = o->model;
  for (uint32_t i = 0; i < model->params.count; i++) {
    const kedge_param *p = &model->params.items[i];
    const kedge_dtype dtype = kedge_param_dtype(p, model->dtype);
    const uint64_t count = kedge_param_count(p), size = kedge_dtype_size(dtype), share = o->shares[i].count,
                   ranks = kedge_comm_size(o->comm, kedge_optimizer_ranks(o, i));
    r->weights += count * size;
    if (!o->trained[i]) continue;
    r->gradients += count * sizeof(float);
    r->moments += 2 * share * sizeof(float);
    if (dtype == KEDGE_BF16) r->masters += share * sizeof(float);
    if (ranks == 1) continue;
    r->sums_sent += (count - share) * sizeof(float);
    r->weights_sent += share * size * (ranks - 1);
    r->update_calls += 2;
  }
}

kedge_status plan_measure(const kedge_model *model, uint32_t tokens, const kedge_decoder_spec *spec,
                          plan_report *r) {
  const kedge_optimizer_options options = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .max_norm = 1};
  kedge_workspace *workspace = NULL;
  kedge_optimizer optimizer = {0};
  *r = (plan_report){.size = kedge_bucket(tokens)};
  kedge_decoder_spec own = *spec;
  own.tokens = r->size;
  own.loss = true;
  KEDGE_TRY(kedge_workspace_new(model->device, &workspace));
  kedge_status status = kedge_optimizer_init(&optimizer, model, &options, workspace);
  if (status == KEDGE_OK) count_states(&optimizer, r);
  if (status == KEDGE_OK) status = plan_training(&optimizer, &own, r);
  if (status == KEDGE_OK) status = plan_update(&optimizer, r);
  if (status == KEDGE_OK) r->sums = kedge_optimizer_overlap_bytes(&optimizer);
  kedge_optimizer_destroy(&optimizer);
  kedge_workspace_free(workspace);
  return status;
}

uint64_t plan_rows(const plan_report *r, plan_row rows[PLAN_ROWS]) {
  const plan_row all[PLAN_ROWS] = {{"weights", "weights", r->weights},
                                   {"gradients", "gradients, f32", r->gradients},
                                   {"optimizer", "optimizer (m, v), f32", r->moments},
                                   {"master", "master weights, f32", r->masters},
                                   {"activations", "activations", r->activations},
                                   {"scratch", "scratch of the kernels (cpu)", r->scratch},
                                   {"inputs", "inputs", r->inputs},
                                   {"sums", "sums beside the backward pass", r->sums}};
  uint64_t total = 0;
  for (int i = 0; i < PLAN_ROWS; i++) {
    rows[i] = all[i];
    total += all[i].bytes;
  }
  return total;
}

static void print_text(const plan_options *o, const plan_rank *rank) {
  const kedge_model *model = rank->model;
  const plan_report *r = &rank->report;
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
  if (o->world > 1)
    printf("%" PRId64 " ranks, %" PRId64 " share the experts of a copy of the model; of each rank:\n",
           o->world, o->experts);
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

static void print_json(const plan_options *o, const plan_rank *rank) {
  const kedge_model *model = rank->model;
  const plan_report *r = &rank->report;
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
  plan_add_ranks(o, rank, root);
  json_dumpf(root, stdout, JSON_INDENT(2));
  putchar('\n');
  json_decref(root);
}

kedge_status plan_rank_open(const plan_options *o, plan_rank *rank) {
  kedge_hf_config config;
  kedge_dtype dtype;
  const kedge_decoder_spec spec = {.recompute = o->recompute};
  *rank = (plan_rank){0};
  KEDGE_TRY(input_config(o->model, &config));
  kedge_status status = kedge_model_options_set(&config, o->model_options);
  if (status == KEDGE_OK) status = input_dtype(o->dtype, &config, &dtype);
  if (status == KEDGE_OK) status = kedge_comm_plan((uint32_t)o->world, &rank->comm);
  if (status == KEDGE_OK) status = kedge_comm_arrange(rank->comm, (uint32_t)o->experts);
  if (status == KEDGE_OK) status = kedge_device_open("null", NULL, &rank->device);
  if (status == KEDGE_OK) {
    kedge_device_join(rank->device, rank->comm);
    status = kedge_model_describe(rank->device, &config, dtype, &rank->model);
  } else {
    kedge_hf_config_destroy(&config);
  }
  if (status == KEDGE_OK) status = plan_measure(rank->model, (uint32_t)o->tokens, &spec, &rank->report);
  if (status != KEDGE_OK) plan_rank_close(rank);
  return status;
}

void plan_rank_close(plan_rank *rank) {
  kedge_model_free(rank->model);
  kedge_device_close(rank->device);
  kedge_comm_close(rank->comm);
  *rank = (plan_rank){0};
}

static kedge_status run(const plan_options *o) {
  plan_rank rank;
  uint64_t memory = 0;
  if (o->memory) KEDGE_TRY(plan_bytes(o->memory, &memory));
  KEDGE_TRY(plan_rank_open(o, &rank));
  (o->json ? print_json : print_text)(o, &rank);
  if (!o->json && o->world > 1) plan_print_ranks(o, &rank);
  kedge_status status = !o->json && o->memory ? plan_print_fit(o, &rank, memory) : KEDGE_OK;
  plan_rank_close(&rank);
  return status;
}

int command_plan(int argc, char **argv) {
  plan_options o = {
      .tokens = 2048, .world = 1, .experts = 1, .accumulation = 1, .flops = 200, .link = 25, .latency = 20};
  const cli_option options[] = {
      {"--model", CLI_TEXT, &o.model, "PATH", "config.json or a model directory; weights are not read", true,
       0, 0},
      {"--tokens", CLI_INT, &o.tokens, "T", "tokens of a micro-batch, of each rank (2048)", false, 1,
       1 << 24},
      {"--dtype", CLI_TEXT, &o.dtype, "DTYPE", "f32 or bf16 storage (as the config says)", false, 0, 0},
      {"--model-options", CLI_TEXT, &o.model_options, "LIST", INPUT_MODEL_OPTIONS, false, 0, 0},
      {"--recompute", CLI_FLAG, &o.recompute, NULL, "recompute each layer in the backward pass", false, 0, 0},
      {"--world", CLI_INT, &o.world, "N", "ranks, one a device (1)", false, 1, 1 << 16},
      {"--ep", CLI_INT, &o.experts, "M", "ranks that share the experts, as expert_parallel (1)", false, 1,
       1 << 16},
      {"--memory", CLI_TEXT, &o.memory, "BYTES",
       "of a device, as 80G or 80GiB: whether a rank fits, or what to change", false, 0, 0},
      {"--accumulation", CLI_INT, &o.accumulation, "A", "micro-batches an update (1)", false, 1, 1 << 20},
      {"--sequence", CLI_INT, &o.sequence, "S",
       "tokens of a sequence, for attention's part of the time (all)", false, 1, 1 << 24},
      {"--tflops", CLI_REAL, &o.flops, "X", "1e12 operations a second that a device reaches (200)", false,
       1e-6, 1e9},
      {"--link", CLI_REAL, &o.link, "X", "1e9 bytes a second that a rank sends (25)", false, 1e-6, 1e9},
      {"--latency", CLI_REAL, &o.latency, "X", "1e-6 seconds that a collective op waits (20)", false, 1e-3,
       1e9},
      {"--json", CLI_FLAG, &o.json, NULL, "print JSON", false, 0, 0}};
  const cli_spec spec = {.command = "plan",
                         .synopsis = "",
                         .summary =
                             "Prints how many parameters a model has and how much memory training it takes,\n"
                             "by kind, on one device or on each of several ranks, with what they send each\n"
                             "other. Builds and plans the training graph; needs no weights and no devices.",
                         .options = options,
                         .option_count = sizeof options / sizeof *options,
                         .examples = "kedge plan --model config.json\n"
                                     "kedge plan --model model --tokens 8192 --recompute --json\n"
                                     "kedge plan --model model --world 8 --ep 8 --memory 80G"};
  cli_list arguments;
  int code;
  if (!cli_parse(&spec, argc, argv, &arguments, &code)) return code;
  return cli_finish("plan", run(&o));
}
