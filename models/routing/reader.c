/* SPDX-License-Identifier: Apache-2.0
 * Runs a model for its routers' sake (reader.h). */
#include "models/routing/reader.h"

#include "models/decoder/finite.h"

struct kedge_router_reader {
  const kedge_model *model;
  kedge_model *own; /* NULL: the model is borrowed */
  kedge_passes passes;
};

kedge_status kedge_router_reader_new(const kedge_model *model, kedge_workspace *workspace,
                                     kedge_router_reader **out) {
  static const kedge_decoder_spec spec = {.taps = true};
  kedge_router_reader *r = *out = kedge_alloc(1, sizeof *r);
  if (!r) return KEDGE_ERR_MEMORY;
  r->model = model;
  kedge_passes_init(&r->passes, model, &spec, workspace, NULL, NULL);
  return KEDGE_OK;
}

kedge_status kedge_router_reader_open(const kedge_model *like, const char *directory,
                                      kedge_workspace *workspace, kedge_router_reader **out) {
  kedge_model *model;
  char options[KEDGE_MODEL_OPTIONS_TEXT];
  const kedge_model_how how = {
      .dtype = like->dtype, .map = true, .options = kedge_model_options_text(like->config.options, options)};
  *out = NULL;
  KEDGE_TRY(kedge_model_open(like->device, directory, &how, &model));
  kedge_status status = kedge_router_reader_new(model, workspace, out);
  if (status == KEDGE_OK)
    (*out)->own = model;
  else
    kedge_model_free(model);
  return status;
}

void kedge_router_reader_free(kedge_router_reader *r) {
  if (!r) return;
  kedge_passes_destroy(&r->passes);
  kedge_model_free(r->own);
  kedge_free(r);
}

kedge_passes *kedge_router_reader_passes(kedge_router_reader *r) {
  return &r->passes;
}

/* One layer of a pass that has run. */
static kedge_status read_layer(const kedge_router_reader *r, const kedge_pass *pass, uint32_t layer,
                               float *logits_TE, int32_t *ids_TK) {
  const kedge_hf_config *c = &r->model->config;
  const kedge_decoder *d = &pass->decoder;
  KEDGE_TRY(kedge_pass_check_router(pass, r->model, layer));
  if (logits_TE)
    KEDGE_TRY(
        kedge_exec_read(pass->exec, d->router_TE[layer], logits_TE, 4ull * pass->tokens * c->num_experts));
  if (!ids_TK) return KEDGE_OK;
  return kedge_exec_read(pass->exec, d->ids_TK[layer], ids_TK, 4ull * pass->tokens * c->num_experts_per_tok);
}

typedef struct reading {
  const kedge_router_reader *reader;
  const kedge_micro_batch *mb;
  float *logits_LTE;
  int32_t *ids_LTK;
  kedge_status status;
} reading;

static void read_layers(void *context, const kedge_pass *pass) {
  reading *r = context;
  const kedge_hf_config *c = &r->reader->model->config;
  const uint64_t logits = (uint64_t)r->mb->size * c->num_experts,
                 ids = (uint64_t)r->mb->size * c->num_experts_per_tok;
  for (uint32_t l = 0; r->status == KEDGE_OK && l < r->reader->model->params.moe_layers; l++)
    r->status = read_layer(r->reader, pass, l, r->logits_LTE ? r->logits_LTE + l * logits : NULL,
                           r->ids_LTK ? r->ids_LTK + l * ids : NULL);
}

kedge_status kedge_router_reader_run(kedge_router_reader *r, const kedge_micro_batch *mb, float *logits_LTE,
                                     int32_t *ids_LTK) {
  const kedge_tokens tokens = {.ids = mb->ids_T, .positions = mb->positions_T, .segments = mb->segments_T};
  reading own = {r, mb, logits_LTE, ids_LTK, KEDGE_OK};
  KEDGE_TRY(kedge_passes_run(&r->passes, mb->size, 0, &tokens, read_layers, &own));
  return own.status;
}
