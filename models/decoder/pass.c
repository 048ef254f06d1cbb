/* SPDX-License-Identifier: Apache-2.0
 * Executions by bucket. */
#include "models/decoder/pass.h"

#include "core/comm.h"
#include "models/text/packing.h"

void kedge_passes_init(kedge_passes *b, const kedge_model *model, const kedge_decoder_spec *spec,
                       kedge_workspace *workspace, kedge_pass_extend extend, void *context) {
  *b = (kedge_passes){
      .model = model, .spec = *spec, .extend = extend, .context = context, .workspace = workspace};
}

static void pass_free(kedge_pass *pass) {
  kedge_exec_free(pass->exec);
  kedge_decoder_destroy(&pass->decoder);
  kedge_free(pass);
}

void kedge_passes_destroy(kedge_passes *b) {
  for (uint32_t i = 0; i < b->count; i++) pass_free(b->items[i]);
  kedge_free(b->items);
  *b = (kedge_passes){0};
}

static kedge_status pass_build(kedge_passes *b, kedge_pass *pass) {
  kedge_decoder_spec spec = b->spec;
  spec.tokens = pass->tokens;
  spec.prior_rows = pass->prior_rows;
  spec.expert_rows = pass->expert_rows;
  KEDGE_TRY(kedge_decoder_build(b->model, &spec, &pass->decoder));
  if (b->extend) KEDGE_TRY(b->extend(b->context, &pass->decoder));
  KEDGE_TRY(kedge_exec_new(b->model->device, pass->decoder.graph, b->workspace, &pass->exec));
  if (b->profile) kedge_exec_profile(pass->exec, true);
  return KEDGE_OK;
}

kedge_status kedge_passes_get(kedge_passes *b, uint32_t tokens, uint32_t prior_rows, kedge_pass **out) {
  const bool shared = b->model->params.members > 1;
  uint32_t expert_rows = shared ? kedge_decoder_expert_rows(b->model, tokens) : 0;
  if (shared && expert_rows < b->least_rows) expert_rows = b->least_rows;
  for (uint32_t i = 0; i < b->count; i++)
    if (b->items[i]->tokens == tokens && b->items[i]->prior_rows == prior_rows &&
        b->items[i]->expert_rows == expert_rows) {
      *out = b->items[i];
      return KEDGE_OK;
    }
  kedge_pass **grown = kedge_realloc(b->items, b->count + 1, sizeof *grown);
  if (!grown) return KEDGE_ERR_MEMORY;
  b->items = grown;
  kedge_pass *pass = kedge_alloc(1, sizeof *pass);
  if (!pass) return KEDGE_ERR_MEMORY;
  pass->tokens = tokens;
  pass->prior_rows = prior_rows;
  pass->expert_rows = expert_rows;
  pass->interventions = b->spec.intervention_count;
  kedge_status status = pass_build(b, pass);
  if (status != KEDGE_OK) {
    pass_free(pass);
    return status;
  }
  *out = b->items[b->count++] = pass;
  return KEDGE_OK;
}

static kedge_status write(kedge_pass *b, kedge_value value, const void *data) {
  return value ? kedge_exec_write(b->exec, value, data, kedge_value_bytes(b->decoder.graph, value))
               : KEDGE_OK;
}

kedge_status kedge_pass_run(kedge_pass *b, const kedge_tokens *t) {
  const kedge_decoder *d = &b->decoder;
  KEDGE_TRY(write(b, d->ids_T, t->ids));
  KEDGE_TRY(write(b, d->positions_T, t->positions));
  KEDGE_TRY(write(b, d->segments_T, t->segments));
  KEDGE_TRY(write(b, d->labels_T, t->labels));
  KEDGE_TRY(write(b, d->weights_T, t->weights));
  for (uint32_t i = 0; t->feeds && i < b->interventions; i++) {
    if (t->feeds[i].table) KEDGE_TRY(write(b, d->feeds[i].table, t->feeds[i].table));
    if (t->feeds[i].index) KEDGE_TRY(write(b, d->feeds[i].index_T, t->feeds[i].index));
    if (t->feeds[i].weights) KEDGE_TRY(write(b, d->feeds[i].weights, t->feeds[i].weights));
  }
  return kedge_exec_run(b->exec, 0, UINT32_MAX);
}

kedge_status kedge_passes_run(kedge_passes *b, uint32_t tokens, uint32_t prior_rows, const kedge_tokens *data,
                              kedge_pass **pass) {
  kedge_comm *comm = kedge_device_comm(b->model->device);
  for (;;) {
    KEDGE_TRY(kedge_passes_get(b, tokens, prior_rows, pass));
    const kedge_status status = kedge_pass_run(*pass, data);
    if (status == KEDGE_OK || !comm || !comm->overflow) return status;
    const uint32_t rows = kedge_bucket(comm->overflow);
    if (rows > b->least_rows) b->least_rows = rows;
    comm->overflow = 0;
  }
}
