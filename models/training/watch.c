/* SPDX-License-Identifier: Apache-2.0
 * The routing kept on a fixed batch (watch.h). */
#include "models/training/watch.h"

/* Samples from the first on that hold at most KEDGE_WATCH_TOKENS tokens; at least one. */
static uint32_t samples_of(const kedge_dataset *d) {
  uint32_t count = 1;
  while (count < d->count && d->offsets[count + 1] <= KEDGE_WATCH_TOKENS) count++;
  return count;
}

/* Reads the choices of all MoE layers into a trace. */
static kedge_status read_into(kedge_watch *w, kedge_router_reader *reader, kedge_trace *trace) {
  const uint64_t layer = (uint64_t)w->batch.size * trace->topk;
  KEDGE_TRY(kedge_router_reader_run(reader, &w->batch, NULL, w->ids_LTK));
  for (uint32_t t = 0; t < trace->tokens; t++)
    for (uint32_t l = 0; l < trace->layers; l++)
      for (uint32_t k = 0; k < trace->topk; k++)
        trace->ids[((uint64_t)t * trace->layers + l) * trace->topk + k] =
            w->ids_LTK[l * layer + (uint64_t)t * trace->topk + k];
  return KEDGE_OK;
}

static kedge_status make_trace(const kedge_watch *w, const kedge_model *m, kedge_trace *trace) {
  KEDGE_TRY(kedge_trace_init(trace, w->batch.tokens, m->params.moe_layers, m->config.num_experts,
                             m->config.num_experts_per_tok));
  for (uint32_t l = 0; l < trace->layers; l++)
    trace->layer_numbers[l] = (int32_t)kedge_params_moe_layer(&m->params, l);
  for (uint32_t t = 0; t < trace->tokens; t++) {
    trace->samples[t] = w->batch.spans_T[t] / 2;
    trace->spans[t] = w->batch.spans_T[t] % 2;
  }
  return KEDGE_OK;
}

static kedge_status run_base(kedge_watch *w, const kedge_setup *s, kedge_workspace *workspace,
                             kedge_router_reader *base) {
  if (base) return read_into(w, base, &w->base);
  KEDGE_TRY(kedge_router_reader_open(s->model, s->config->model_name_or_path, workspace, &base));
  kedge_status status = read_into(w, base, &w->base);
  kedge_router_reader_free(base);
  return status;
}

kedge_status kedge_watch_init(kedge_watch *w, const kedge_setup *s, kedge_workspace *workspace,
                              kedge_router_reader *base) {
  const kedge_dataset *data = s->eval ? s->eval : kedge_setup_train(s);
  const kedge_model *m = s->model;
  kedge_update update;
  *w = (kedge_watch){0};
  kedge_status status;
  KEDGE_GOTO(kedge_batches_new_eval(data, samples_of(data), &w->batches), status, fail);
  KEDGE_GOTO(kedge_batches_next(w->batches, &update), status, fail);
  KEDGE_GOTO(kedge_batches_micro(w->batches, 0, &w->batch), status, fail);
  w->ids_LTK = kedge_alloc((uint64_t)m->params.moe_layers * w->batch.size,
                           m->config.num_experts_per_tok * sizeof *w->ids_LTK);
  KEDGE_GOTO(w->ids_LTK ? KEDGE_OK : KEDGE_ERR_MEMORY, status, fail);
  KEDGE_GOTO(make_trace(w, m, &w->base), status, fail);
  KEDGE_GOTO(make_trace(w, m, &w->now), status, fail);
  KEDGE_GOTO(kedge_router_reader_new(m, workspace, &w->reader), status, fail);
  KEDGE_GOTO(run_base(w, s, workspace, base), status, fail);
  return KEDGE_OK;
fail:
  kedge_watch_destroy(w);
  return status;
}

void kedge_watch_destroy(kedge_watch *w) {
  kedge_router_reader_free(w->reader);
  kedge_trace_destroy(&w->base);
  kedge_trace_destroy(&w->now);
  kedge_batches_free(w->batches);
  kedge_free(w->ids_LTK);
  *w = (kedge_watch){0};
}

kedge_status kedge_watch_measure(kedge_watch *w, kedge_retention *retention) {
  KEDGE_TRY(read_into(w, w->reader, &w->now));
  return kedge_retention_compare(&w->base, &w->now, KEDGE_RETENTION_ALL, retention);
}
