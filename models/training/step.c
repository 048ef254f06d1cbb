/* SPDX-License-Identifier: Apache-2.0
 * One update, and one evaluation. */
#include "models/training/step.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

kedge_status kedge_stepper_init(kedge_stepper *s, const kedge_setup *setup) {
  const kedge_config *c = setup->config;
  *s = (kedge_stepper){.setup = setup};
  const kedge_optimizer_options options = {.beta1 = c->adam_beta1,
                                           .beta2 = c->adam_beta2,
                                           .eps = c->adam_epsilon,
                                           .decay = c->weight_decay,
                                           .max_norm = c->max_grad_norm};
  const kedge_decoder_spec train = {.loss = true,
                                    .recompute = c->gradient_checkpointing,
                                    .interventions = setup->interventions,
                                    .intervention_count = setup->intervention_count};
  const kedge_decoder_spec eval = {.loss = true};
  kedge_status status = kedge_workspace_new(setup->model->device, &s->workspace);
  if (status == KEDGE_OK) status = kedge_optimizer_init(&s->optimizer, setup->model, &options, s->workspace);
  kedge_passes_init(&s->train, setup->model, &train, s->workspace, kedge_optimizer_extend, &s->optimizer);
  s->train.profile = c->profile;
  if (status == KEDGE_OK && c->profile) kedge_exec_profile(s->optimizer.exec, true);
  kedge_passes_init(&s->eval, setup->model, &eval, s->workspace, NULL, NULL);
  if (status != KEDGE_OK) kedge_stepper_destroy(s);
  return status;
}

void kedge_stepper_destroy(kedge_stepper *s) {
  kedge_passes_destroy(&s->train);
  kedge_passes_destroy(&s->eval);
  kedge_optimizer_destroy(&s->optimizer);
  kedge_workspace_free(s->workspace);
  kedge_free(s->bias_LSE);
  kedge_free(s->sample_ids);
  *s = (kedge_stepper){0};
}

/* Rows of the prior table for `samples` samples: the next power of two, so that few graphs serve all. */
static uint32_t prior_rows(uint32_t samples) {
  uint32_t rows = 2;
  while (rows < 2 * samples) rows *= 2;
  return rows;
}

/* The intervention whose bias the graph reads; NULL if none does. */
static const kedge_intervention *prior_user(const kedge_setup *setup) {
  for (uint32_t i = 0; i < setup->intervention_count; i++)
    if (kedge_router_needs_prior(setup->interventions[i].id) && setup->interventions[i].beta != 0)
      return &setup->interventions[i];
  return NULL;
}

/* Fills bias_LSE for a micro-batch; *rows is 0 where no intervention reads it. */
static kedge_status fill_bias(kedge_stepper *s, const kedge_dataset *data, const kedge_micro_batch *mb,
                              uint32_t *rows) {
  const kedge_intervention *user = prior_user(s->setup);
  *rows = 0;
  if (!user) return KEDGE_OK;
  *rows = prior_rows(mb->samples);
  const kedge_params *params = &s->setup->model->params;
  uint64_t need = (uint64_t)params->moe_layers * *rows * params->config.num_experts;
  if (need > s->bias_capacity) {
    float *grown = kedge_realloc(s->bias_LSE, need, sizeof *grown);
    if (!grown) return KEDGE_ERR_MEMORY;
    s->bias_LSE = grown;
    s->bias_capacity = need;
  }
  if (mb->samples > s->sample_capacity) {
    uint64_t *grown = kedge_realloc(s->sample_ids, mb->samples, sizeof *grown);
    if (!grown) return KEDGE_ERR_MEMORY;
    s->sample_ids = grown;
    s->sample_capacity = mb->samples;
  }
  for (uint32_t i = 0; i < mb->samples; i++) s->sample_ids[i] = data->sample_ids[mb->samples_S[i]];
  return kedge_prior_fill(s->setup->prior, user, s->sample_ids, mb->samples, *rows, s->bias_LSE);
}

static kedge_status check_routers(kedge_pass *pass, const kedge_params *params) {
  for (uint32_t l = 0; l < params->moe_layers; l++) {
    int32_t bad = 0;
    if (pass->decoder.bad_1[l])
      KEDGE_TRY(kedge_exec_read(pass->exec, pass->decoder.bad_1[l], &bad, sizeof bad));
    if (bad)
      return kedge_fail(KEDGE_ERR_NUMERIC, "layer %u: the router logits of %d tokens are not finite",
                        kedge_params_moe_layer(params, l), bad);
  }
  return KEDGE_OK;
}

/* Runs one micro-batch; *loss and *aux get its share of the update's loss. */
static kedge_status run_micro(kedge_stepper *s, kedge_passes *passes, const kedge_dataset *data,
                              const kedge_micro_batch *mb, double *loss, double *aux) {
  kedge_pass *pass;
  uint32_t rows = 0;
  float value = 0;
  if (passes == &s->train) KEDGE_TRY(fill_bias(s, data, mb, &rows));
  KEDGE_TRY(kedge_passes_get(passes, mb->size, rows, &pass));
  const kedge_tokens tokens = {.ids = mb->ids_T,
                               .positions = mb->positions_T,
                               .segments = mb->segments_T,
                               .labels = mb->labels_T,
                               .weights = mb->weights_T,
                               .spans = mb->spans_T,
                               .bias = s->bias_LSE};
  KEDGE_TRY(kedge_pass_run(pass, &tokens));
  KEDGE_TRY(check_routers(pass, &s->setup->model->params));
  KEDGE_TRY(kedge_exec_read(pass->exec, pass->decoder.loss_1, &value, sizeof value));
  if (!isfinite(value)) return kedge_fail(KEDGE_ERR_NUMERIC, "the loss is not finite");
  *loss += (double)value;
  if (!pass->decoder.aux_1) return KEDGE_OK;
  KEDGE_TRY(kedge_exec_read(pass->exec, pass->decoder.aux_1, &value, sizeof value));
  *aux += (double)value;
  return KEDGE_OK;
}

kedge_status kedge_stepper_update(kedge_stepper *s, kedge_batches *batches, const kedge_update *update,
                                  double learning_rate, kedge_step_result *result) {
  *result = (kedge_step_result){0};
  KEDGE_TRY(kedge_optimizer_begin(&s->optimizer));
  for (uint32_t i = 0; i < update->micro_batches; i++) {
    kedge_micro_batch mb;
    KEDGE_TRY(kedge_batches_micro(batches, i, &mb));
    KEDGE_TRY(run_micro(s, &s->train, kedge_setup_train(s->setup), &mb, &result->loss, &result->aux));
  }
  return kedge_optimizer_step(&s->optimizer, learning_rate, &result->norms);
}

kedge_status kedge_stepper_evaluate(kedge_stepper *s, double *loss) {
  const kedge_dataset *data = s->setup->eval;
  kedge_batches *batches;
  double sum = 0, unused = 0;
  uint64_t tokens = 0;
  KEDGE_TRY(kedge_batches_new_eval(data, (uint32_t)s->setup->config->per_device_eval_batch_size, &batches));
  kedge_status status = KEDGE_OK;
  for (;;) {
    kedge_update update;
    kedge_micro_batch mb;
    double part = 0;
    KEDGE_GOTO(kedge_batches_next(batches, &update), status, done);
    if (!update.micro_batches) break;
    KEDGE_GOTO(kedge_batches_micro(batches, 0, &mb), status, done);
    KEDGE_GOTO(run_micro(s, &s->eval, data, &mb, &part, &unused), status, done);
    sum += part * (double)mb.supervised; /* a batch's loss is the mean over its own tokens */
    tokens += mb.supervised;
  }
  *loss = tokens ? sum / (double)tokens : (double)NAN;
done:
  kedge_batches_free(batches);
  return status;
}

/* Adds the times of one execution into a list by op. */
static uint32_t add_times(const kedge_exec *exec, kedge_op_time *times, uint32_t count, uint32_t capacity) {
  kedge_op_time more[KEDGE_STEP_OPS];
  uint32_t ops = kedge_exec_times(exec, more, KEDGE_STEP_OPS);
  for (uint32_t i = 0; i < ops && i < KEDGE_STEP_OPS; i++) {
    uint32_t at = 0;
    while (at < count && strcmp(times[at].op, more[i].op)) at++;
    if (at == count && count == capacity) continue;
    if (at == count) times[count++] = (kedge_op_time){more[i].op, 0, 0};
    times[at].calls += more[i].calls;
    times[at].seconds += more[i].seconds;
  }
  return count;
}

static int by_seconds(const void *a, const void *b) {
  const kedge_op_time *x = a, *y = b;
  return x->seconds < y->seconds ? 1 : -(x->seconds > y->seconds);
}

uint32_t kedge_stepper_times(const kedge_stepper *s, kedge_op_time *times, uint32_t capacity) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < s->train.count; i++)
    count = add_times(s->train.items[i]->exec, times, count, capacity);
  if (s->optimizer.exec) count = add_times(s->optimizer.exec, times, count, capacity);
  qsort(times, count, sizeof *times, by_seconds);
  return count;
}
