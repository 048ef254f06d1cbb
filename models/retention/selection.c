/* SPDX-License-Identifier: Apache-2.0
 * Likelihoods of answers under each other's experts (selection.h). */
#include "models/retention/selection.h"

#include "models/decoder/generate.h"
#include "models/decoder/head.h"
#include "models/decoder/pass.h"
#include "models/routing/replace.h"
#include "models/training/batches.h"

#include <math.h>
#include <string.h>

enum { BATCH = 32, HEAD_ROWS = 64 };

/* One of the two models. */
typedef struct side {
  const kedge_model *model;
  kedge_passes own, forced; /* with its own choice, told; with a given one */
  kedge_head *head;
  int32_t *ids_LTK; /* its choice in this batch */
} side;

typedef struct measuring {
  side base, post;
  kedge_workspace *workspace;
  kedge_selection *out;
  uint32_t L, K, T; /* T: of the largest batch */
  int32_t *table_LTK, *index_T;
  unsigned char *hidden_TD, *rows_RD; /* of a pass; of the head */
  float *logits_RV, *log_sums_R;
  size_t width; /* bytes of a hidden row */
} measuring;

/* ---- Memory
 * ------------------------------------------------------------------------------------------------------ */

static const kedge_intervention replay = {.id = KEDGE_ROUTER_replay};

static kedge_status open_side(measuring *m, side *s, const kedge_model *model) {
  static const kedge_decoder_spec own = {.taps = true, .hidden = true}, forced = {.hidden = true,
                                                                                  .interventions = &replay,
                                                                                  .intervention_count = 1};
  s->model = model;
  kedge_passes_init(&s->own, model, &own, m->workspace, NULL, NULL);
  kedge_passes_init(&s->forced, model, &forced, m->workspace, NULL, NULL);
  s->ids_LTK = kedge_alloc((size_t)m->L * m->T, m->K * sizeof *s->ids_LTK);
  if (!s->ids_LTK) return KEDGE_ERR_MEMORY;
  return kedge_head_new(model, HEAD_ROWS, m->workspace, &s->head);
}

static void close_side(side *s) {
  kedge_passes_destroy(&s->own);
  kedge_passes_destroy(&s->forced);
  kedge_head_free(s->head);
  kedge_free(s->ids_LTK);
}

static kedge_status check(const kedge_model *base, const kedge_model *post, const kedge_dataset *dataset) {
  const kedge_hf_config *a = &base->config, *b = &post->config;
  if (base->device != post->device || base->dtype != post->dtype)
    return kedge_fail(KEDGE_ERR_MISMATCH, "the two models are on different devices or in different dtypes");
  if (base->params.moe_layers != post->params.moe_layers || a->num_experts != b->num_experts ||
      a->num_experts_per_tok != b->num_experts_per_tok || a->vocab_size != b->vocab_size ||
      a->hidden_size != b->hidden_size)
    return kedge_fail(
        KEDGE_ERR_MISMATCH,
        "the base has %u MoE layers, top %u of %u experts; the post-trained model %u, top %u of %u",
        base->params.moe_layers, a->num_experts_per_tok, a->num_experts, post->params.moe_layers,
        b->num_experts_per_tok, b->num_experts);
  if (!base->params.moe_layers)
    return kedge_fail(KEDGE_ERR_UNSUPPORTED, "the model has no mixture-of-experts layer");
  return kedge_dataset_check_ids(dataset, a->vocab_size);
}

static kedge_status prepare(measuring *m, const kedge_model *base, const kedge_model *post) {
  const kedge_hf_config *c = &base->config;
  m->L = base->params.moe_layers, m->K = c->num_experts_per_tok;
  m->width = (size_t)c->hidden_size * kedge_dtype_size(base->dtype);
  m->table_LTK = kedge_alloc((size_t)m->L * m->T, m->K * sizeof *m->table_LTK);
  m->index_T = kedge_alloc(m->T, sizeof *m->index_T);
  m->hidden_TD = kedge_alloc(m->T, m->width);
  m->rows_RD = kedge_alloc(HEAD_ROWS, m->width);
  m->logits_RV = kedge_alloc(HEAD_ROWS, c->vocab_size * sizeof *m->logits_RV);
  m->log_sums_R = kedge_alloc(HEAD_ROWS, sizeof *m->log_sums_R);
  m->out->topk = m->K;
  m->out->ranks = kedge_alloc(m->K, sizeof *m->out->ranks);
  if (!m->table_LTK || !m->index_T || !m->hidden_TD || !m->rows_RD || !m->logits_RV || !m->log_sums_R ||
      !m->out->ranks)
    return KEDGE_ERR_MEMORY;
  KEDGE_TRY(kedge_workspace_new(base->device, &m->workspace));
  KEDGE_TRY(open_side(m, &m->base, base));
  return open_side(m, &m->post, post);
}

/* ---- Scores
 * ------------------------------------------------------------------------------------------------------ */

/* Whether the token after t is one of an answer. */
static bool is_asked(const kedge_micro_batch *mb, uint32_t t) {
  return mb->labels_T[t] >= 0 && t + 1 < mb->tokens && mb->spans_T[t + 1] % 2 == 1;
}

/* Adds the answers of a pass whose hidden rows are read. */
static kedge_status score(const measuring *m, const side *s, const kedge_micro_batch *mb,
                          kedge_selection_numbers *to) {
  static const kedge_sampling greedy;
  const uint32_t V = s->model->config.vocab_size;
  uint32_t rows[HEAD_ROWS], sample = UINT32_MAX;
  bool right = false;
  for (uint32_t t = 0; t < mb->tokens;) {
    uint32_t count = 0;
    for (; t < mb->tokens && count < HEAD_ROWS; t++)
      if (is_asked(mb, t)) rows[count++] = t;
    for (uint32_t i = 0; i < count; i++)
      memcpy(m->rows_RD + i * m->width, m->hidden_TD + rows[i] * m->width, m->width);
    memset(m->rows_RD + count * m->width, 0, (HEAD_ROWS - count) * m->width);
    if (count) KEDGE_TRY(kedge_head_run(s->head, m->rows_RD, m->logits_RV, m->log_sums_R));
    for (uint32_t i = 0; i < count; i++) {
      const uint32_t of = (uint32_t)mb->spans_T[rows[i]] / 2;
      const float *logits = m->logits_RV + (size_t)i * V;
      const int32_t label = mb->labels_T[rows[i]];
      int32_t most;
      KEDGE_TRY(kedge_sample(logits, V, &greedy, 0, &most));
      const double nll = (double)m->log_sums_R[i] - (double)logits[label];
      if (!isfinite(nll)) return kedge_fail(KEDGE_ERR_NUMERIC, "a token has no likelihood");
      if (of != sample) to->right += right;
      right = (of != sample || right) && most == label;
      sample = of;
      to->nll += nll;
    }
  }
  to->right += right;
  return KEDGE_OK;
}

/* ---- Passes
 * ------------------------------------------------------------------------------------------------------ */

/* Runs a pass, reads its choices into ids_LTK (NULL: they were given) and its hidden rows, and then scores:
 * the head uses the same workspace. */
static kedge_status run(measuring *m, const side *s, kedge_passes *passes, const kedge_micro_batch *mb,
                        const kedge_feed_data *feed, int32_t *ids_LTK, kedge_selection_numbers *to) {
  const kedge_tokens tokens = {
      .ids = mb->ids_T, .positions = mb->positions_T, .segments = mb->segments_T, .feeds = feed};
  const uint64_t layer = (uint64_t)mb->size * m->K;
  kedge_pass *pass;
  KEDGE_TRY(kedge_passes_get(passes, mb->size, 0, &pass));
  KEDGE_TRY(kedge_pass_run(pass, &tokens));
  for (uint32_t l = 0; l < m->L; l++) {
    int32_t bad = 0;
    if (pass->decoder.bad_1[l])
      KEDGE_TRY(kedge_exec_read(pass->exec, pass->decoder.bad_1[l], &bad, sizeof bad));
    if (bad)
      return kedge_fail(KEDGE_ERR_NUMERIC, "layer %u: the router logits of %d tokens are not finite",
                        kedge_params_moe_layer(&s->model->params, l), bad);
    if (ids_LTK)
      KEDGE_TRY(
          kedge_exec_read(pass->exec, pass->decoder.ids_TK[l], ids_LTK + l * layer, layer * sizeof *ids_LTK));
  }
  KEDGE_TRY(kedge_exec_read(pass->exec, pass->decoder.hidden_TD, m->hidden_TD, mb->size * m->width));
  return score(m, s, mb, to);
}

static kedge_status run_own(measuring *m, side *s, const kedge_micro_batch *mb, kedge_selection_numbers *to) {
  return run(m, s, &s->own, mb, NULL, s->ids_LTK, to);
}

static kedge_status run_forced(measuring *m, side *s, const kedge_micro_batch *mb, const int32_t *ids_LTK,
                               kedge_selection_numbers *to) {
  const kedge_feed_data feed = {.table = ids_LTK, .index = m->index_T};
  return run(m, s, &s->forced, mb, &feed, NULL, to);
}

static kedge_status run_batch(measuring *m, const kedge_micro_batch *mb) {
  const size_t rows = (size_t)m->L * mb->size;
  kedge_selection *o = m->out;
  uint32_t sample = UINT32_MAX;
  for (uint32_t t = 0; t < mb->size; t++) m->index_T[t] = t < mb->tokens ? (int32_t)t : -1;
  for (uint32_t t = 0; t < mb->tokens; t++) {
    if (!is_asked(mb, t)) continue;
    o->tokens++;
    o->samples += (uint32_t)mb->spans_T[t] / 2 != sample;
    sample = (uint32_t)mb->spans_T[t] / 2;
  }
  KEDGE_TRY(run_own(m, &m->base, mb, &o->base));
  KEDGE_TRY(run_own(m, &m->post, mb, &o->post));
  KEDGE_TRY(run_forced(m, &m->post, mb, m->base.ids_LTK, &o->forced));
  KEDGE_TRY(run_forced(m, &m->base, mb, m->post.ids_LTK, &o->converse));
  for (uint32_t rank = 1; rank <= m->K; rank++) {
    memcpy(m->table_LTK, m->post.ids_LTK, rows * m->K * sizeof *m->table_LTK);
    for (size_t row = 0; row < rows; row++)
      kedge_rank_replace(m->table_LTK + row * m->K, m->base.ids_LTK + row * m->K, m->K, rank);
    KEDGE_TRY(run_forced(m, &m->post, mb, m->table_LTK, &o->ranks[rank - 1]));
  }
  return KEDGE_OK;
}

static kedge_status run_all(measuring *m, kedge_batches *batches, const kedge_dataset *dataset,
                            const kedge_selection_options *o) {
  uint64_t total = dataset->offsets[dataset->count], done = 0;
  if (o->max_tokens && o->max_tokens < total) total = o->max_tokens;
  while (done < total) {
    kedge_update update;
    kedge_micro_batch mb;
    KEDGE_TRY(kedge_batches_next(batches, &update));
    if (!update.micro_batches) break;
    KEDGE_TRY(kedge_batches_micro(batches, 0, &mb));
    KEDGE_TRY(run_batch(m, &mb));
    done += mb.tokens;
    if (o->progress && !o->progress(o->context, done < total ? done : total, total))
      return kedge_fail(KEDGE_ERR_INTERRUPTED, "stopped after %llu of %llu tokens", (unsigned long long)done,
                        (unsigned long long)total);
  }
  return KEDGE_OK;
}

kedge_status kedge_selection_measure(const kedge_model *base, const kedge_model *post,
                                     const kedge_dataset *dataset, const kedge_selection_options *options,
                                     kedge_selection *selection) {
  static const kedge_selection_options defaults;
  const kedge_selection_options *o = options ? options : &defaults;
  measuring m = {.out = selection};
  kedge_batches *batches = NULL;
  *selection = (kedge_selection){0};
  KEDGE_TRY(check(base, post, dataset));
  kedge_status status = kedge_batches_new_eval(dataset, o->batch_size ? o->batch_size : BATCH, &batches);
  if (status == KEDGE_OK) m.T = kedge_batches_max_size(batches);
  if (status == KEDGE_OK) status = prepare(&m, base, post);
  if (status == KEDGE_OK) status = run_all(&m, batches, dataset, o);
  close_side(&m.base);
  close_side(&m.post);
  kedge_workspace_free(m.workspace);
  kedge_batches_free(batches);
  kedge_free(m.table_LTK);
  kedge_free(m.index_T);
  kedge_free(m.hidden_TD);
  kedge_free(m.rows_RD);
  kedge_free(m.logits_RV);
  kedge_free(m.log_sums_R);
  if (status != KEDGE_OK) kedge_selection_destroy(selection);
  return status;
}

void kedge_selection_destroy(kedge_selection *s) {
  kedge_free(s->ranks);
  *s = (kedge_selection){0};
}
