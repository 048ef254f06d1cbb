/* SPDX-License-Identifier: Apache-2.0
 * Runs the frozen base's routers beside a run (base_router.h). */
#include "models/routing/base_router.h"

struct kedge_base_router {
  kedge_model *model;
  kedge_passes passes;
};

kedge_status kedge_base_router_open(kedge_device *device, const char *directory, kedge_dtype dtype,
                                    kedge_workspace *workspace, kedge_base_router **out) {
  static const kedge_decoder_spec spec = {.taps = true};
  kedge_base_router *b = *out = kedge_alloc(1, sizeof *b);
  if (!b) return KEDGE_ERR_MEMORY;
  kedge_status status = kedge_model_map(device, directory, dtype, &b->model);
  if (status == KEDGE_OK) kedge_passes_init(&b->passes, b->model, &spec, workspace, NULL, NULL);
  if (status == KEDGE_OK) return KEDGE_OK;
  kedge_free(b);
  *out = NULL;
  return status;
}

void kedge_base_router_free(kedge_base_router *b) {
  if (!b) return;
  kedge_passes_destroy(&b->passes);
  kedge_model_free(b->model);
  kedge_free(b);
}

kedge_status kedge_base_router_run(kedge_base_router *b, const kedge_micro_batch *mb, float *logits_LTE,
                                   int32_t *ids_LTK) {
  const kedge_hf_config *c = &b->model->config;
  const uint64_t logits = (uint64_t)mb->size * c->num_experts,
                 ids = (uint64_t)mb->size * c->num_experts_per_tok;
  const kedge_tokens tokens = {.ids = mb->ids_T, .positions = mb->positions_T, .segments = mb->segments_T};
  kedge_pass *pass;
  KEDGE_TRY(kedge_passes_get(&b->passes, mb->size, 0, &pass));
  KEDGE_TRY(kedge_pass_run(pass, &tokens));
  for (uint32_t l = 0; l < b->model->params.moe_layers; l++) {
    const kedge_decoder *d = &pass->decoder;
    int32_t bad = 0;
    if (d->bad_1[l]) KEDGE_TRY(kedge_exec_read(pass->exec, d->bad_1[l], &bad, sizeof bad));
    if (bad)
      return kedge_fail(KEDGE_ERR_NUMERIC,
                        "base model, layer %u: the router logits of %d tokens are not finite",
                        kedge_params_moe_layer(&b->model->params, l), bad);
    if (logits_LTE)
      KEDGE_TRY(
          kedge_exec_read(pass->exec, d->router_TE[l], logits_LTE + l * logits, logits * sizeof(float)));
    if (ids_LTK)
      KEDGE_TRY(kedge_exec_read(pass->exec, d->ids_TK[l], ids_LTK + l * ids, ids * sizeof(int32_t)));
  }
  return KEDGE_OK;
}
