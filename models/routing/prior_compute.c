/* SPDX-License-Identifier: Apache-2.0
 * Makes a prior file: one forward pass of the frozen base over a dataset. */
#include "models/routing/prior.h"

#include "models/checkpoint/writer.h"
#include "models/decoder/pass.h"
#include "models/training/batches.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct prior_work {
  const kedge_model *model;
  const kedge_dataset *dataset;
  uint32_t L, E;
  float *prior;    /* [N,2,L,E] */
  int32_t *counts; /* [N,2] */
  int64_t *ids;    /* [N] */
  int32_t *layers; /* [L] */
  float *logits;   /* [T,E] of one layer */
  uint32_t logits_tokens;
  double *sums;    /* [samples of a pass * 2, E] */
  double *softmax; /* [E] */
} prior_work;

static void work_destroy(prior_work *w) {
  kedge_free(w->prior);
  kedge_free(w->counts);
  kedge_free(w->ids);
  kedge_free(w->layers);
  kedge_free(w->logits);
  kedge_free(w->sums);
  kedge_free(w->softmax);
}

static kedge_status work_init(prior_work *w, const kedge_model *model, const kedge_dataset *dataset,
                              uint32_t batch, uint32_t max_tokens) {
  const uint32_t N = dataset->count;
  *w = (prior_work){
      .model = model, .dataset = dataset, .L = model->params.moe_layers, .E = model->config.num_experts};
  w->prior = kedge_alloc((size_t)N * 2 * w->L, w->E * sizeof *w->prior);
  w->counts = kedge_alloc((size_t)N * 2, sizeof *w->counts);
  w->ids = kedge_alloc(N, sizeof *w->ids);
  w->layers = kedge_alloc(w->L, sizeof *w->layers);
  w->logits = kedge_alloc((size_t)max_tokens * w->E, sizeof *w->logits);
  w->sums = kedge_alloc((size_t)batch * 2 * w->E, sizeof *w->sums);
  w->softmax = kedge_alloc(w->E, sizeof *w->softmax);
  if (!w->prior || !w->counts || !w->ids || !w->layers || !w->logits || !w->sums || !w->softmax)
    return KEDGE_ERR_MEMORY;
  for (uint32_t l = 0; l < w->L; l++) w->layers[l] = (int32_t)kedge_params_moe_layer(&model->params, l);
  for (uint32_t i = 0; i < N; i++) {
    w->ids[i] = (int64_t)dataset->sample_ids[i];
    for (uint64_t t = dataset->offsets[i]; t < dataset->offsets[i + 1]; t++)
      w->counts[2 * i + (dataset->spans[t] != 0)]++;
  }
  return KEDGE_OK;
}

/* softmax of z [E] in double. False if it is not finite. */
static bool softmax(const float *z, uint32_t experts, double *p) {
  double most = -INFINITY, sum = 0;
  for (uint32_t e = 0; e < experts; e++) most = fmax(most, (double)z[e]);
  for (uint32_t e = 0; e < experts; e++) sum += p[e] = exp((double)z[e] - most);
  for (uint32_t e = 0; e < experts; e++) p[e] /= sum;
  return isfinite(sum) && isfinite(most);
}

/* Adds one layer's router logits of a pass into the rows of its samples. */
static kedge_status add_layer(prior_work *w, const kedge_micro_batch *mb, uint32_t layer) {
  memset(w->sums, 0, (size_t)mb->samples * 2 * w->E * sizeof *w->sums);
  for (uint32_t t = 0; t < mb->tokens; t++) {
    if (!softmax(w->logits + (size_t)t * w->E, w->E, w->softmax))
      return kedge_fail(KEDGE_ERR_NUMERIC, "router logits of MoE layer %u are not finite", layer);
    double *sum = w->sums + (size_t)mb->spans_T[t] * w->E;
    for (uint32_t e = 0; e < w->E; e++) sum[e] += w->softmax[e];
  }
  for (uint32_t row = 0; row < 2 * mb->samples; row++) {
    uint64_t sample = mb->samples_S[row / 2];
    int32_t count = w->counts[2 * sample + row % 2];
    float *out = w->prior + ((sample * 2 + row % 2) * w->L + layer) * w->E;
    for (uint32_t e = 0; count && e < w->E; e++) out[e] = (float)(w->sums[(size_t)row * w->E + e] / count);
  }
  return KEDGE_OK;
}

static kedge_status run_micro(prior_work *w, kedge_passes *passes, const kedge_micro_batch *mb) {
  kedge_pass *pass;
  KEDGE_TRY(kedge_passes_get(passes, mb->size, 0, &pass));
  const kedge_tokens tokens = {.ids = mb->ids_T, .positions = mb->positions_T, .segments = mb->segments_T};
  KEDGE_TRY(kedge_pass_run(pass, &tokens));
  for (uint32_t l = 0; l < w->L; l++) {
    KEDGE_TRY(kedge_exec_read(pass->exec, pass->decoder.router_TE[l], w->logits, 4ull * mb->size * w->E));
    KEDGE_TRY(add_layer(w, mb, l));
  }
  return KEDGE_OK;
}

static kedge_status run_all(prior_work *w, kedge_batches *batches, kedge_workspace *workspace,
                            const kedge_prior_options *o) {
  kedge_passes passes;
  kedge_decoder_spec spec = {.taps = true};
  kedge_passes_init(&passes, w->model, &spec, workspace, NULL, NULL);
  uint64_t samples = 0, tokens = 0;
  kedge_status status = KEDGE_OK;
  for (;;) {
    kedge_update update;
    kedge_micro_batch mb;
    KEDGE_GOTO(kedge_batches_next(batches, &update), status, done);
    if (!update.micro_batches) break;
    KEDGE_GOTO(kedge_batches_micro(batches, 0, &mb), status, done);
    KEDGE_GOTO(run_micro(w, &passes, &mb), status, done);
    samples += mb.samples;
    tokens += mb.tokens;
    if (o->progress && !o->progress(o->context, samples, w->dataset->count, tokens)) {
      status = kedge_fail(KEDGE_ERR_INTERRUPTED, "prior: stopped after %llu of %u samples",
                          (unsigned long long)samples, w->dataset->count);
      goto done;
    }
  }
done:
  kedge_passes_destroy(&passes);
  return status;
}

static kedge_status fill(void *context, uint32_t index, uint64_t offset, void *buffer, uint64_t bytes) {
  const prior_work *w = context;
  const void *const data[] = {w->prior, w->counts, w->ids, w->layers};
  memcpy(buffer, (const char *)data[index] + offset, bytes);
  return KEDGE_OK;
}

static kedge_status save(const prior_work *w, const kedge_prior_identity *id, const char *path) {
  const uint64_t N = w->dataset->count;
  const kedge_st_spec specs[] = {
      {"prior_qa", KEDGE_ST_F32, 4, {N, 2, w->L, w->E}},
      {"counts", KEDGE_ST_I32, 2, {N, 2}},
      {"sample_ids", KEDGE_ST_I64, 1, {N}},
      {"layers", KEDGE_ST_I32, 1, {w->L}},
  };
  char length[16], topk[16];
  snprintf(length, sizeof length, "%u", id->max_length);
  snprintf(topk, sizeof topk, "%u", w->model->config.num_experts_per_tok);
  const kedge_st_pair extra[] = {
      {"kedge_prior", "1"},
      {"base_hash", id->base},
      {"tokenizer_hash", id->tokenizer},
      {"data_hash", id->data},
      {"max_length", length},
      {"top_k", topk},
      {"kedge_version", kedge_version()},
  };
  return kedge_st_write(path, specs, sizeof specs / sizeof *specs, extra, sizeof extra / sizeof *extra, fill,
                        (void *)(uintptr_t)w);
}

kedge_status kedge_prior_compute(const kedge_model *model, const kedge_dataset *dataset,
                                 const kedge_prior_identity *identity, const kedge_prior_options *options,
                                 const char *path) {
  static const kedge_prior_options defaults;
  const kedge_prior_options *o = options ? options : &defaults;
  const uint32_t batch = o->batch_size ? o->batch_size : 8;
  kedge_batches *batches = NULL;
  kedge_workspace *workspace = NULL;
  prior_work w = {0};
  kedge_status status;
  KEDGE_GOTO(kedge_dataset_check_ids(dataset, model->config.vocab_size), status, done);
  KEDGE_GOTO(kedge_batches_new_eval(dataset, batch, &batches), status, done);
  KEDGE_GOTO(kedge_workspace_new(model->device, &workspace), status, done);
  KEDGE_GOTO(work_init(&w, model, dataset, batch, kedge_batches_max_size(batches)), status, done);
  KEDGE_GOTO(run_all(&w, batches, workspace, o), status, done);
  status = save(&w, identity, path);
done:
  work_destroy(&w);
  kedge_workspace_free(workspace);
  kedge_batches_free(batches);
  return status;
}
