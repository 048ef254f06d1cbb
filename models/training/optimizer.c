/* SPDX-License-Identifier: Apache-2.0
 * Optimizer state and the graph of one update. */
#include "models/training/optimizer.h"

#include <math.h>

static kedge_status buffers_new(kedge_optimizer *o, uint32_t i) {
  const kedge_model *model = o->model;
  uint64_t bytes = kedge_param_count(&model->params.items[i]) * sizeof(float);
  if (kedge_param_dtype(&model->params.items[i], model->dtype) == KEDGE_BF16)
    KEDGE_TRY(kedge_buffer_new(model->device, bytes, &o->master[i]));
  KEDGE_TRY(kedge_buffer_new(model->device, bytes, &o->m[i]));
  KEDGE_TRY(kedge_buffer_new(model->device, bytes, &o->v[i]));
  return kedge_buffer_new(model->device, bytes, &o->grad[i]);
}

/* Masters start at the weights: bf16 widened on the device. */
static kedge_status fill_masters(kedge_optimizer *o, kedge_workspace *workspace) {
  const kedge_model *model = o->model;
  if (model->dtype != KEDGE_BF16) return KEDGE_OK;
  kedge_graph *g = kedge_graph_new(false);
  kedge_exec *exec = NULL;
  if (!g) return KEDGE_ERR_MEMORY;
  for (uint32_t i = 0; i < model->params.count; i++) {
    const kedge_param *p = &model->params.items[i];
    if (!o->master[i]) continue;
    kedge_value weight = kedge_parameter(g, "weight", KEDGE_BF16, p->rank, p->dims, model->weights[i], 0);
    kedge_accumulate(g, kedge_parameter(g, "master", KEDGE_F32, p->rank, p->dims, o->master[i], 0), weight);
  }
  kedge_status status = kedge_exec_new(model->device, g, workspace, &exec);
  if (status == KEDGE_OK) status = kedge_exec_run(exec, 0, UINT32_MAX);
  kedge_exec_free(exec);
  kedge_graph_free(g);
  return status;
}

static kedge_value f32_parameter(kedge_optimizer *o, const char *name, uint32_t i, kedge_buffer *buffer) {
  const kedge_param *p = &o->model->params.items[i];
  return kedge_parameter(o->graph, name, KEDGE_F32, p->rank, p->dims, buffer, 0);
}

/* First part of the update: norms of all gradients and of the router's, and the clip scale. */
static kedge_value build_norms(kedge_optimizer *o, kedge_value *grads) {
  kedge_graph *g = o->graph;
  kedge_value all = KEDGE_NONE, router = KEDGE_NONE;
  for (uint32_t i = 0; i < o->model->params.count; i++) {
    if (!o->trained[i]) continue;
    grads[i] = f32_parameter(o, "grad", i, o->grad[i]);
    kedge_value squares = kedge_sum_squares(g, grads[i]);
    all = all ? kedge_add(g, all, squares) : squares;
    if (kedge_param_is_router(&o->model->params.items[i]))
      router = router ? kedge_add(g, router, squares) : squares;
  }
  kedge_value scale = kedge_clip_scale(g, all, o->options.max_norm, &o->norm_1);
  kedge_output(g, o->norm_1, "norm");
  kedge_output(g, scale, "scale"); /* read by the second part */
  if (router) {
    kedge_clip_scale(g, router, 0, &o->router_norm_1);
    kedge_output(g, o->router_norm_1, "router_norm");
  }
  o->norms_end = kedge_graph_nodes(g);
  return scale;
}

/* Second part: AdamW of every parameter, in their order. */
static void build_adamw(kedge_optimizer *o, const kedge_value *grads, kedge_value scale) {
  kedge_graph *g = o->graph;
  for (uint32_t i = 0; i < o->model->params.count; i++) {
    if (!o->trained[i]) continue;
    const kedge_param *p = &o->model->params.items[i];
    const kedge_adamw_options adamw = {o->options.beta1, o->options.beta2, o->options.eps,
                                       p->decay ? o->options.decay : 0};
    kedge_value weight = kedge_parameter(g, "weight", kedge_param_dtype(p, o->model->dtype), p->rank, p->dims,
                                         o->model->weights[i], 0);
    kedge_value master = o->master[i] ? f32_parameter(o, "master", i, o->master[i]) : weight;
    kedge_adamw(g, master, f32_parameter(o, "m", i, o->m[i]), f32_parameter(o, "v", i, o->v[i]),
                o->master[i] ? weight : KEDGE_NONE, grads[i], scale, o->hyper_4, &adamw);
  }
}

static kedge_status build_update(kedge_optimizer *o, kedge_workspace *workspace) {
  kedge_value *grads = kedge_alloc(o->model->params.count, sizeof *grads);
  o->graph = kedge_graph_new(false);
  if (o->graph && grads) {
    o->hyper_4 = kedge_input(o->graph, "hyper", KEDGE_F32, 1, (uint32_t[]){4});
    build_adamw(o, grads, build_norms(o, grads));
  }
  kedge_status status =
      o->graph && grads ? kedge_exec_new(o->model->device, o->graph, workspace, &o->exec) : KEDGE_ERR_MEMORY;
  kedge_free(grads);
  return status;
}

kedge_status kedge_optimizer_init(kedge_optimizer *o, const kedge_model *model,
                                  const kedge_optimizer_options *options, kedge_workspace *workspace) {
  const uint32_t count = model->params.count;
  *o = (kedge_optimizer){.model = model, .options = *options};
  o->trained = kedge_alloc(count, sizeof *o->trained);
  o->master = kedge_alloc(count, sizeof *o->master);
  o->m = kedge_alloc(count, sizeof *o->m);
  o->v = kedge_alloc(count, sizeof *o->v);
  o->grad = kedge_alloc(count, sizeof *o->grad);
  kedge_status status = o->trained && o->master && o->m && o->v && o->grad ? KEDGE_OK : KEDGE_ERR_MEMORY;
  bool any = false;
  for (uint32_t i = 0; status == KEDGE_OK && i < count; i++) {
    o->trained[i] = !model->params.items[i].fixed && (!options->trained || options->trained[i]);
    any |= o->trained[i];
    if (o->trained[i]) status = buffers_new(o, i);
  }
  o->options.trained = NULL;
  if (status == KEDGE_OK && !any)
    status = kedge_fail(KEDGE_ERR_ARGUMENT, "every parameter is frozen: nothing to train");
  if (status == KEDGE_OK) status = fill_masters(o, workspace);
  if (status == KEDGE_OK) status = build_update(o, workspace);
  if (status != KEDGE_OK) kedge_optimizer_destroy(o);
  return status;
}

static void buffers_free(kedge_buffer **buffers, uint32_t count) {
  for (uint32_t i = 0; buffers && i < count; i++) kedge_buffer_free(buffers[i]);
  kedge_free(buffers);
}

void kedge_optimizer_destroy(kedge_optimizer *o) {
  if (!o->model) return;
  const uint32_t count = o->model->params.count;
  kedge_exec_free(o->exec);
  kedge_graph_free(o->graph);
  buffers_free(o->master, count);
  buffers_free(o->m, count);
  buffers_free(o->v, count);
  buffers_free(o->grad, count);
  kedge_free(o->trained);
  *o = (kedge_optimizer){0};
}

typedef struct sink_context {
  kedge_optimizer *optimizer;
  const kedge_decoder *decoder;
} sink_context;

/* Adds a complete gradient to its accumulator. */
static void sink(void *context, kedge_graph *g, kedge_value wrt, kedge_value gradient) {
  sink_context *c = context;
  kedge_optimizer *o = c->optimizer;
  for (uint32_t i = 0; i < o->model->params.count; i++) {
    if (c->decoder->params[i] != wrt) continue;
    const kedge_param *p = &o->model->params.items[i];
    kedge_accumulate(g, kedge_parameter(g, "grad", KEDGE_F32, p->rank, p->dims, o->grad[i], 0), gradient);
  }
}

kedge_status kedge_optimizer_extend(void *context, kedge_decoder *d) {
  kedge_optimizer *o = context;
  const uint32_t count = o->model->params.count;
  kedge_value *wrt = kedge_alloc(count, sizeof *wrt), *gradients = kedge_alloc(count, sizeof *gradients);
  kedge_status status = wrt && gradients ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < count; i++)
      if (o->trained[i]) wrt[n++] = d->params[i];
    sink_context c = {o, d};
    kedge_gradient(d->graph, d->loss_1, wrt, n, gradients, sink, &c);
    status = kedge_graph_status(d->graph);
  }
  kedge_free(wrt);
  kedge_free(gradients);
  return status;
}

kedge_status kedge_optimizer_begin(kedge_optimizer *o) {
  for (uint32_t i = 0; i < o->model->params.count; i++)
    if (o->grad[i]) KEDGE_TRY(kedge_buffer_zero(o->grad[i]));
  return KEDGE_OK;
}

kedge_status kedge_optimizer_step(kedge_optimizer *o, double learning_rate, kedge_optimizer_norms *norms) {
  float norm = 0, router = 0;
  const double t = (double)(o->steps + 1);
  const float hyper[4] = {(float)learning_rate, (float)(1 - pow(o->options.beta1, t)),
                          (float)(1 - pow(o->options.beta2, t)), 0};
  KEDGE_TRY(kedge_exec_write(o->exec, o->hyper_4, hyper, sizeof hyper));
  KEDGE_TRY(kedge_exec_run(o->exec, 0, o->norms_end));
  KEDGE_TRY(kedge_exec_read(o->exec, o->norm_1, &norm, sizeof norm));
  if (o->router_norm_1) KEDGE_TRY(kedge_exec_read(o->exec, o->router_norm_1, &router, sizeof router));
  *norms = (kedge_optimizer_norms){(double)norm, (double)router};
  if (!isfinite(norm))
    return kedge_fail(KEDGE_ERR_NUMERIC, "the gradient norm is not finite; the update was not made");
  KEDGE_TRY(kedge_exec_run(o->exec, o->norms_end, UINT32_MAX));
  o->steps++;
  return KEDGE_OK;
}

uint64_t kedge_optimizer_bytes(const kedge_optimizer *o) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < o->model->params.count; i++) {
    uint64_t one = kedge_param_count(&o->model->params.items[i]) * sizeof(float);
    if (o->trained[i]) bytes += one * (o->master[i] ? 4 : 3);
  }
  return bytes;
}
