/* SPDX-License-Identifier: Apache-2.0
 * A whole training step, and generation, of a built-in small model with random weights (bench.h). */
#include "tools/bench.h"

#include "models/decoder/generate.h"
#include "models/decoder/initialise.h"
#include "models/decoder/pass.h"
#include "models/training/optimizer.h"

#include <string.h>

enum { SAMPLES = 8, LENGTH = 256, TOKENS = SAMPLES * LENGTH, PROMPT = 16, NEW_TOKENS = 64 };

static const char config_text[] =
    "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 256, \"num_hidden_layers\": 4, "
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 64, \"num_experts\": 16, "
    "\"num_experts_per_tok\": 4, \"moe_intermediate_size\": 128, \"intermediate_size\": 512, "
    "\"vocab_size\": 4096, \"tie_word_embeddings\": true, \"norm_topk_prob\": true, "
    "\"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0, "
    "\"initializer_range\": 0.05, \"hidden_act\": \"silu\"}";

static kedge_status fill(const kedge_model *model, uint32_t item) {
  const kedge_param *p = &model->params.items[item];
  const uint64_t count = kedge_param_count(p);
  const bool bf16 = kedge_param_dtype(p, model->dtype) == KEDGE_BF16;
  char name[KEDGE_NAME_SIZE];
  float *values = kedge_alloc(count, sizeof *values);
  if (!values) return KEDGE_ERR_MEMORY;
  kedge_param_name(p, p->parts, name);
  kedge_initialise_normal(1, name, model->config.initializer_range, 0, count, values);
  for (uint64_t i = 0; p->rank == 1 && i < count; i++) values[i] = 1;
  uint16_t *narrow = (uint16_t *)(void *)values;
  for (uint64_t i = 0; bf16 && i < count; i++) narrow[i] = kedge_f32_to_bf16(values[i]);
  kedge_status status =
      kedge_buffer_write(model->weights[item], 0, values, count * (bf16 ? sizeof *narrow : sizeof *values));
  kedge_free(values);
  return status;
}

static kedge_status open_model(kedge_device *device, kedge_dtype dtype, kedge_model **model) {
  kedge_hf_config config;
  KEDGE_TRY(kedge_hf_config_parse(config_text, sizeof config_text - 1, "the built-in model", &config));
  KEDGE_TRY(kedge_model_describe(device, &config, dtype, model));
  kedge_status status = KEDGE_OK;
  for (uint32_t i = 0; status == KEDGE_OK && i < (*model)->params.count; i++) status = fill(*model, i);
  return status;
}

/* ---- Training step
 * --------------------------------------------------------------------------------------------------- */

typedef struct trainer {
  kedge_model *model;
  kedge_workspace *workspace;
  kedge_optimizer optimizer;
  kedge_passes passes;
  kedge_pass *pass;
  int32_t ids[TOKENS], positions[TOKENS], segments[TOKENS], labels[TOKENS];
  float weights[TOKENS];
} trainer;

static kedge_status train_once(void *context) {
  trainer *t = context;
  const kedge_tokens tokens = {.ids = t->ids,
                               .positions = t->positions,
                               .segments = t->segments,
                               .labels = t->labels,
                               .weights = t->weights};
  kedge_optimizer_norms norms;
  KEDGE_TRY(kedge_optimizer_begin(&t->optimizer));
  KEDGE_TRY(kedge_pass_run(t->pass, &tokens));
  return kedge_optimizer_step(&t->optimizer, 1e-4, &norms);
}

static kedge_status prepare(trainer *t, kedge_device *device, kedge_dtype dtype) {
  const kedge_decoder_spec spec = {.loss = true};
  const kedge_optimizer_options options = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .max_norm = 1};
  uint32_t state = 1;
  for (int i = 0; i < TOKENS; i++) {
    state = state * 1664525u + 1013904223u;
    t->ids[i] = (int32_t)(state >> 20);
    t->positions[i] = i % LENGTH;
    t->segments[i] = i / LENGTH * LENGTH;
  }
  for (int i = 0; i < TOKENS; i++) {
    const bool last = i % LENGTH == LENGTH - 1;
    t->labels[i] = last ? -1 : t->ids[i + 1];
    t->weights[i] = last ? 0 : 1.0f / (TOKENS - SAMPLES);
  }
  KEDGE_TRY(open_model(device, dtype, &t->model));
  KEDGE_TRY(kedge_workspace_new(device, &t->workspace));
  KEDGE_TRY(kedge_optimizer_init(&t->optimizer, t->model, &options, t->workspace));
  kedge_passes_init(&t->passes, t->model, &spec, t->workspace, kedge_optimizer_extend, &t->optimizer);
  return kedge_passes_get(&t->passes, TOKENS, 0, &t->pass);
}

/* Multiply-adds of a pass forward: products of the layers, attention over what each token sees, the head. */
static double forward_flops(const kedge_hf_config *c) {
  const double D = c->hidden_size, heads = c->num_attention_heads, kv = c->num_key_value_heads;
  const double attention = D * c->head_dim * (2 * heads + 2 * kv) + heads * c->head_dim * (LENGTH + 1.0);
  const double experts = 3.0 * c->num_experts_per_tok * D * c->moe_intermediate_size + D * c->num_experts;
  return TOKENS * (c->num_hidden_layers * (attention + experts) + D * c->vocab_size);
}

static void add_times(bench_line *line, const kedge_exec *exec) {
  kedge_op_time more[BENCH_OPS];
  const uint32_t count = kedge_exec_times(exec, more, BENCH_OPS);
  for (uint32_t i = 0; i < count && i < BENCH_OPS; i++) {
    uint32_t at = 0;
    while (at < line->op_count && strcmp(line->ops[at].op, more[i].op)) at++;
    if (at == BENCH_OPS) continue;
    if (at == line->op_count) line->ops[line->op_count++] = (kedge_op_time){more[i].op, 0, 0};
    line->ops[at].calls += more[i].calls;
    line->ops[at].seconds += more[i].seconds;
  }
}

/* Where the time goes, of one more step, which is not among the timed ones. */
static kedge_status profile(trainer *t, bench_line *line) {
  kedge_exec_profile(t->pass->exec, true);
  kedge_exec_profile(t->optimizer.exec, true);
  KEDGE_TRY(train_once(t));
  add_times(line, t->pass->exec);
  add_times(line, t->optimizer.exec);
  return KEDGE_OK;
}

kedge_status bench_step(bench_report *report, kedge_dtype dtype) {
  trainer *t = kedge_alloc(1, sizeof *t);
  if (!t) return KEDGE_ERR_MEMORY;
  bench_line *line = bench_add(report);
  kedge_status status = prepare(t, report->device, dtype);
  if (status == KEDGE_OK) status = bench_repeat(report->options, train_once, NULL, t, line);
  if (status == KEDGE_OK) status = profile(t, line);
  if (status == KEDGE_OK) line->flops = 3 * 2 * forward_flops(&t->model->config);
  line->bench = "step";
  line->shape = "laptop";
  line->name = "training step";
  line->dtype = dtype;
  line->unit = "tokens/s";
  line->rate = TOKENS / line->seconds;
  kedge_passes_destroy(&t->passes);
  kedge_optimizer_destroy(&t->optimizer);
  kedge_workspace_free(t->workspace);
  kedge_model_free(t->model);
  kedge_free(t);
  return status;
}

/* ---- Generation
 * ------------------------------------------------------------------------------------------------------ */

typedef struct generator {
  kedge_model *model;
  double seconds; /* of the new tokens' passes */
} generator;

static kedge_status generate_once(void *context) {
  generator *g = context;
  int32_t prompt[PROMPT];
  for (int i = 0; i < PROMPT; i++) prompt[i] = 17 * i + 3;
  const kedge_generate_options options = {.max_new_tokens = NEW_TOKENS + 1};
  kedge_generate_result result;
  KEDGE_TRY(kedge_generate(g->model, prompt, PROMPT, &options, &result));
  g->seconds = result.decode_seconds;
  return KEDGE_OK;
}

static double generate_measure(void *context) {
  return ((generator *)context)->seconds;
}

kedge_status bench_generate(bench_report *report, kedge_dtype dtype) {
  generator g = {NULL, 0};
  bench_line *line = bench_add(report);
  kedge_status status = open_model(report->device, dtype, &g.model);
  if (status == KEDGE_OK) status = bench_repeat(report->options, generate_once, generate_measure, &g, line);
  if (status == KEDGE_OK) {
    /* The weights that a token reads. */
    line->bytes = (double)NEW_TOKENS * (double)g.model->params.active * (double)kedge_dtype_size(dtype);
  }
  line->bench = "generate";
  line->shape = "laptop";
  line->name = "64 tokens after 16";
  line->dtype = dtype;
  line->unit = "tokens/s";
  line->rate = NEW_TOKENS / line->seconds;
  kedge_model_free(g.model);
  return status;
}
