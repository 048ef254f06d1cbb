/* SPDX-License-Identifier: Apache-2.0
 * Optimizer state and the graph of one update. */
#include "models/training/optimizer.h"

#include <math.h>

kedge_ranks kedge_optimizer_ranks(const kedge_optimizer *o, uint32_t item) {
  const bool shared = o->model->params.members > 1 && kedge_role_is_expert(o->model->params.items[item].role);
  return shared ? KEDGE_RANKS_REPLICAS : KEDGE_RANKS_ALL;
}

static kedge_status buffers_new(kedge_optimizer *o, uint32_t i) {
  const kedge_model *model = o->model;
  const kedge_ranks ranks = kedge_optimizer_ranks(o, i);
  const uint64_t count = kedge_param_count(&model->params.items[i]);
  o->shares[i] = kedge_comm_share(count, kedge_comm_size(o->comm, ranks), kedge_comm_rank(o->comm, ranks));
  KEDGE_TRY(kedge_buffer_new(model->device, count * sizeof(float), &o->grad[i]));
  const uint64_t bytes = o->shares[i].count * sizeof(float);
  if (!bytes) return KEDGE_OK;
  if (kedge_param_dtype(&model->params.items[i], model->dtype) == KEDGE_BF16)
    KEDGE_TRY(kedge_buffer_new(model->device, bytes, &o->master[i]));
  KEDGE_TRY(kedge_buffer_new(model->device, bytes, &o->m[i]));
  return kedge_buffer_new(model->device, bytes, &o->v[i]);
}

/* The share of a parameter in a graph: its whole shape where that is everything. `whole`: the buffer holds
 * all of the parameter, of which the share is a part. */
static kedge_value share_of(const kedge_optimizer *o, kedge_graph *g, const char *name, uint32_t i,
                            kedge_dtype dtype, kedge_buffer *buffer, bool whole) {
  const kedge_param *p = &o->model->params.items[i];
  const kedge_share s = o->shares[i];
  if (s.count == kedge_param_count(p)) return kedge_parameter(g, name, dtype, p->rank, p->dims, buffer, 0);
  return kedge_parameter(g, name, dtype, 1, (uint32_t[]){(uint32_t)s.count}, buffer,
                         whole ? s.start * kedge_dtype_size(dtype) : 0);
}

/* Masters start at the weights: bf16 widened on the device. */
static kedge_status fill_masters(kedge_optimizer *o, kedge_workspace *workspace) {
  const kedge_model *model = o->model;
  if (model->dtype != KEDGE_BF16) return KEDGE_OK;
  kedge_graph *g = kedge_graph_new(false);
  kedge_exec *exec = NULL;
  if (!g) return KEDGE_ERR_MEMORY;
  for (uint32_t i = 0; i < model->params.count; i++) {
    if (!o->master[i]) continue;
    kedge_value weight = share_of(o, g, "weight", i, KEDGE_BF16, model->weights[i], true);
    kedge_accumulate(g, share_of(o, g, "master", i, KEDGE_F32, o->master[i], false), weight);
  }
  kedge_status status = kedge_exec_new(model->device, g, workspace, &exec);
  if (status == KEDGE_OK) status = kedge_exec_run(exec, 0, UINT32_MAX);
  kedge_exec_free(exec);
  kedge_graph_free(g);
  return status;
}

/* All of a parameter, as collective ops have it. */
static kedge_value whole_of(const kedge_optimizer *o, const char *name, uint32_t i, kedge_dtype dtype,
                            kedge_buffer *buffer) {
  const kedge_param *p = &o->model->params.items[i];
  return kedge_parameter(o->graph, name, dtype, p->rank, p->dims, buffer, 0);
}

/* Gradients of several ranks become their sums, each in the share of one rank. */
static void build_sums(kedge_optimizer *o) {
  for (uint32_t i = 0; i < o->model->params.count; i++) {
    const kedge_ranks ranks = kedge_optimizer_ranks(o, i);
    if (o->trained[i] && kedge_comm_size(o->comm, ranks) > 1)
      kedge_reduce_scatter(o->graph, whole_of(o, "grad", i, KEDGE_F32, o->grad[i]), (uint32_t)ranks);
  }
}

/* A sum of squares over all ranks. The shares of all ranks together are every element once. */
static kedge_value over_ranks(kedge_optimizer *o, kedge_value squares, bool exists) {
  if (kedge_comm_size(o->comm, KEDGE_RANKS_ALL) == 1 || !exists) return squares;
  if (!squares) squares = kedge_fill(o->graph, KEDGE_F32, 1, (uint32_t[]){1}, 0);
  return kedge_all_reduce(o->graph, squares, KEDGE_RANKS_ALL);
}

/* Then norms of all gradients and of the router's, and the clip scale. */
static kedge_value build_norms(kedge_optimizer *o, kedge_value *grads) {
  kedge_graph *g = o->graph;
  kedge_value all = KEDGE_NONE, router = KEDGE_NONE;
  bool has_router = false;
  build_sums(o);
  o->sums_end = kedge_graph_nodes(g);
  for (uint32_t i = 0; i < o->model->params.count; i++) {
    const bool of_router = kedge_param_is_router(&o->model->params.items[i]);
    if (!o->trained[i]) continue;
    has_router |= of_router;
    if (!o->shares[i].count) continue;
    grads[i] = share_of(o, g, "grad", i, KEDGE_F32, o->grad[i], true);
    kedge_value squares = kedge_sum_squares(g, grads[i]);
    all = all ? kedge_add(g, all, squares) : squares;
    if (of_router) router = router ? kedge_add(g, router, squares) : squares;
  }
  all = over_ranks(o, all, true);
  router = over_ranks(o, router, has_router);
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

/* Second part: AdamW of every parameter, in their order, and the weights of all shares. */
static void build_adamw(kedge_optimizer *o, const kedge_value *grads, kedge_value scale) {
  kedge_graph *g = o->graph;
  for (uint32_t i = 0; i < o->model->params.count; i++) {
    if (!o->trained[i] || !o->shares[i].count) continue;
    const kedge_param *p = &o->model->params.items[i];
    const kedge_adamw_options adamw = {o->options.beta1, o->options.beta2, o->options.eps,
                                       p->decay ? o->options.decay : 0};
    const kedge_dtype dtype = kedge_param_dtype(p, o->model->dtype);
    kedge_value weight = share_of(o, g, "weight", i, dtype, o->model->weights[i], true);
    kedge_value master = o->master[i] ? share_of(o, g, "master", i, KEDGE_F32, o->master[i], false) : weight;
    kedge_adamw(g, master, share_of(o, g, "m", i, KEDGE_F32, o->m[i], false),
                share_of(o, g, "v", i, KEDGE_F32, o->v[i], false), o->master[i] ? weight : KEDGE_NONE,
                grads[i], scale, o->hyper_4, &adamw);
  }
  for (uint32_t i = 0; i < o->model->params.count; i++) {
    const kedge_ranks ranks = kedge_optimizer_ranks(o, i);
    const kedge_dtype dtype = kedge_param_dtype(&o->model->params.items[i], o->model->dtype);
    if (o->trained[i] && kedge_comm_size(o->comm, ranks) > 1)
      kedge_all_gather(g, whole_of(o, "weight", i, dtype, o->model->weights[i]), (uint32_t)ranks);
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

/* The gradients that are summed over ranks, in the order of the parameters; NULL without memory. */
static kedge_overlap_item *list_sums(const kedge_optimizer *o, uint32_t *count) {
  const uint32_t params = o->model->params.count;
  kedge_overlap_item *items = kedge_alloc(params, sizeof *items);
  *count = 0;
  for (uint32_t i = 0; items && i < params; i++)
    if (o->trained[i] && kedge_comm_size(o->comm, kedge_optimizer_ranks(o, i)) > 1)
      items[(*count)++] = (kedge_overlap_item){i, o->grad[i], kedge_optimizer_ranks(o, i)};
  return items;
}

kedge_status kedge_optimizer_open_overlap(kedge_optimizer *o) {
  uint32_t count = 0;
  if (!o->options.overlap || kedge_comm_size(o->comm, KEDGE_RANKS_ALL) == 1) return KEDGE_OK;
  o->options.overlap = false; /* asked for once */
  kedge_overlap_item *items = list_sums(o, &count);
  const kedge_status status = kedge_overlap_new(o->model->device, items, count, &o->overlap);
  kedge_free(items);
  return status;
}

uint64_t kedge_optimizer_overlap_bytes(const kedge_optimizer *o) {
  uint32_t count = 0;
  kedge_overlap_item *items = list_sums(o, &count);
  const uint64_t bytes = items ? kedge_overlap_bytes(o->comm, items, count) : 0;
  kedge_free(items);
  return bytes;
}

kedge_status kedge_optimizer_init(kedge_optimizer *o, const kedge_model *model,
                                  const kedge_optimizer_options *options, kedge_workspace *workspace) {
  const uint32_t count = model->params.count;
  *o = (kedge_optimizer){.model = model, .comm = kedge_device_comm(model->device), .options = *options};
  o->shares = kedge_alloc(count, sizeof *o->shares);
  o->trained = kedge_alloc(count, sizeof *o->trained);
  o->master = kedge_alloc(count, sizeof *o->master);
  o->m = kedge_alloc(count, sizeof *o->m);
  o->v = kedge_alloc(count, sizeof *o->v);
  o->grad = kedge_alloc(count, sizeof *o->grad);
  kedge_status status =
      o->shares && o->trained && o->master && o->m && o->v && o->grad ? KEDGE_OK : KEDGE_ERR_MEMORY;
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
  kedge_overlap_free(o->overlap);
  kedge_exec_free(o->exec);
  kedge_graph_free(o->graph);
  buffers_free(o->master, count);
  buffers_free(o->m, count);
  buffers_free(o->v, count);
  buffers_free(o->grad, count);
  kedge_free(o->trained);
  kedge_free(o->shares);
  *o = (kedge_optimizer){0};
}

typedef struct sink_context {
  kedge_optimizer *optimizer;
  kedge_decoder *decoder;
} sink_context;

static void completed(kedge_decoder *d, uint32_t param) {
  d->complete[d->complete_count++] =
      (struct kedge_complete){.node = kedge_graph_nodes(d->graph), .param = param};
}

/* Adds a complete gradient to its accumulator. */
static void sink(void *context, kedge_graph *g, kedge_value wrt, kedge_value gradient) {
  sink_context *c = context;
  kedge_optimizer *o = c->optimizer;
  for (uint32_t i = 0; i < o->model->params.count; i++) {
    if (c->decoder->params[i] != wrt) continue;
    const kedge_param *p = &o->model->params.items[i];
    kedge_accumulate(g, kedge_parameter(g, "grad", KEDGE_F32, p->rank, p->dims, o->grad[i], 0), gradient);
    completed(c->decoder, i);
  }
}

/* Parameters that the loss does not depend on. */
static void complete_rest(const kedge_optimizer *o, kedge_decoder *d) {
  for (uint32_t i = 0; i < o->model->params.count; i++) {
    bool told = !o->trained[i];
    for (uint32_t k = 0; k < d->complete_count; k++) told |= d->complete[k].param == i;
    if (!told) completed(d, i);
  }
}

kedge_status kedge_optimizer_extend(void *context, kedge_decoder *d) {
  kedge_optimizer *o = context;
  const uint32_t count = o->model->params.count;
  kedge_value *wrt = kedge_alloc(count, sizeof *wrt), *gradients = kedge_alloc(count, sizeof *gradients);
  d->complete = kedge_alloc(count, sizeof *d->complete);
  kedge_status status = wrt && gradients && d->complete ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < count; i++)
      if (o->trained[i]) wrt[n++] = d->params[i];
    sink_context c = {o, d};
    kedge_gradient(d->graph, d->loss_1, wrt, n, gradients, sink, &c);
    complete_rest(o, d);
    status = kedge_graph_status(d->graph);
  }
  kedge_free(wrt);
  kedge_free(gradients);
  return status;
}

bool kedge_optimizer_last(kedge_optimizer *o) {
  if (!o->overlap) return false;
  kedge_overlap_begin(o->overlap);
  return o->handing = true;
}

void kedge_optimizer_complete(void *context, uint32_t param) {
  kedge_optimizer *o = context;
  kedge_overlap_complete(o->overlap, param);
}

void kedge_optimizer_abandon(kedge_optimizer *o) {
  if (!o->overlap || o->comm->broken) return;
  if (!o->handing) kedge_overlap_begin(o->overlap);
  kedge_overlap_give_up(o->overlap);
  (void)kedge_overlap_wait(o->overlap);
  o->handing = false;
}

/* Whether the sums over ranks were made beside the backward pass. A micro-batch that was run in parts leaves
 * them all for now. */
static kedge_status collect(kedge_optimizer *o, bool *summed) {
  *summed = o->handing && kedge_overlap_whole(o->overlap);
  if (o->handing) KEDGE_TRY(kedge_overlap_wait(o->overlap));
  o->handing = false;
  return KEDGE_OK;
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
  bool summed;
  KEDGE_TRY(collect(o, &summed));
  KEDGE_TRY(kedge_exec_write(o->exec, o->hyper_4, hyper, sizeof hyper));
  KEDGE_TRY(kedge_exec_run(o->exec, summed ? o->sums_end : 0, o->norms_end));
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
    if (!o->trained[i]) continue;
    bytes += kedge_param_count(&o->model->params.items[i]) * sizeof(float);
    bytes += o->shares[i].count * sizeof(float) * (o->master[i] ? 3 : 2);
  }
  return bytes;
}
