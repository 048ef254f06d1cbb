/* SPDX-License-Identifier: Apache-2.0
 * The head by itself (head.h). */
#include "models/decoder/head.h"

struct kedge_head {
  kedge_graph *graph;
  kedge_exec *exec;
  kedge_value hidden_RD, logits_RV, log_sums_R;
};

static void build(kedge_head *h, const kedge_model *model, uint32_t rows) {
  uint32_t item = kedge_params_find(&model->params, KEDGE_ROLE_HEAD, 0);
  if (item == UINT32_MAX) item = kedge_params_find(&model->params, KEDGE_ROLE_EMBED, 0);
  const kedge_param *param = &model->params.items[item];
  h->hidden_RD =
      kedge_input(h->graph, "hidden", model->dtype, 2, (uint32_t[]){rows, model->config.hidden_size});
  kedge_value weight =
      kedge_parameter(h->graph, "head", model->dtype, param->rank, param->dims, model->weights[item], 0);
  h->logits_RV = kedge_matmul(h->graph, h->hidden_RD, weight, false, true, KEDGE_F32);
  kedge_output(h->graph, h->logits_RV, "logits");
  kedge_output(h->graph, h->log_sums_R = kedge_logsumexp(h->graph, h->logits_RV), "log sums");
}

kedge_status kedge_head_new(const kedge_model *model, uint32_t rows, kedge_workspace *workspace,
                            kedge_head **head) {
  kedge_head *h = *head = kedge_alloc(1, sizeof *h);
  if (!h) return KEDGE_ERR_MEMORY;
  h->graph = kedge_graph_new(false);
  kedge_status status = h->graph ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) {
    build(h, model, rows);
    status = kedge_exec_new(model->device, h->graph, workspace, &h->exec);
  }
  if (status != KEDGE_OK) {
    kedge_head_free(h);
    *head = NULL;
  }
  return status;
}

void kedge_head_free(kedge_head *h) {
  if (!h) return;
  kedge_exec_free(h->exec);
  kedge_graph_free(h->graph);
  kedge_free(h);
}

kedge_status kedge_head_run(kedge_head *h, const void *hidden, float *logits, float *log_sums) {
  KEDGE_TRY(kedge_exec_write(h->exec, h->hidden_RD, hidden, kedge_value_bytes(h->graph, h->hidden_RD)));
  KEDGE_TRY(kedge_exec_run(h->exec, 0, UINT32_MAX));
  KEDGE_TRY(kedge_exec_read(h->exec, h->logits_RV, logits, kedge_value_bytes(h->graph, h->logits_RV)));
  if (!log_sums) return KEDGE_OK;
  return kedge_exec_read(h->exec, h->log_sums_R, log_sums, kedge_value_bytes(h->graph, h->log_sums_R));
}
