/* SPDX-License-Identifier: Apache-2.0
 * Likelihoods of answers under each other's experts (selection.h). */
#include "models/retention/selection.h"

#include "core/comm.h"
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

/* What a batch adds, in numbers that ranks tell each other: tokens, samples, then the two numbers of base,
 * post, forced, converse and every rank of experts. Counts are below 2^53. */
enum { FIXED = 2 + 2 * 4 };

typedef struct measuring {
  side base, post;
  kedge_workspace *workspace;
  kedge_selection batch; /* of one batch; its ranks are its own */
  double *told;          /* [FIXED + 2 K] it as numbers */
  double *all;           /* [ranks, FIXED + 2 K] of all ranks */
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
  m->out->topk = m->batch.topk = m->K;
  m->out->ranks = kedge_alloc(m->K, sizeof *m->out->ranks);
  m->batch.ranks = kedge_alloc(m->K, sizeof *m->batch.ranks);
  m->told = kedge_alloc(FIXED + 2 * (size_t)m->K, sizeof *m->told);
  m->all = kedge_alloc(kedge_comm_size(kedge_device_comm(base->device), KEDGE_RANKS_ALL),
                       (FIXED + 2 * (size_t)m->K) * sizeof *m->all);
  if (!m->table_LTK || !m->index_T || !m->hidden_TD || !m->rows_RD || !m->logits_RV || !m->log_sums_R ||
      !m->out->ranks || !m->batch.ranks || !m->told || !m->all)
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
  kedge_selection *o = &m->batch;
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

static void number_in(double **at, const kedge_selection_numbers *n) {
  *(*at)++ = n->nll;
  *(*at)++ = (double)n->right;
}

static void number_out(const double **at, kedge_selection_numbers *n) {
  n->nll += *(*at)++;
  n->right += (uint64_t) * (*at)++;
}

static void tell(const kedge_selection *s, double *to) {
  *to++ = (double)s->tokens;
  *to++ = (double)s->samples;
  number_in(&to, &s->base);
  number_in(&to, &s->post);
  number_in(&to, &s->forced);
  number_in(&to, &s->converse);
  for (uint32_t r = 0; r < s->topk; r++) number_in(&to, &s->ranks[r]);
}

static void add(const double *from, kedge_selection *s) {
  s->tokens += (uint64_t)*from++;
  s->samples += (uint64_t)*from++;
  number_out(&from, &s->base);
  number_out(&from, &s->post);
  number_out(&from, &s->forced);
  number_out(&from, &s->converse);
  for (uint32_t r = 0; r < s->topk; r++) number_out(&from, &s->ranks[r]);
}

/* Batch `index` of the dataset; its numbers are then told. */
static kedge_status run_one(measuring *m, kedge_batches *batches, uint64_t index) {
  kedge_update update;
  kedge_micro_batch mb;
  kedge_selection_numbers *ranks = m->batch.ranks;
  memset(ranks, 0, m->K * sizeof *ranks);
  m->batch = (kedge_selection){.topk = m->K, .ranks = ranks};
  KEDGE_TRY(kedge_batches_seek(batches, index));
  KEDGE_TRY(kedge_batches_next(batches, &update));
  KEDGE_TRY(kedge_batches_micro(batches, 0, &mb));
  KEDGE_TRY(run_batch(m, &mb));
  tell(&m->batch, m->told);
  return KEDGE_OK;
}

/* Tokens of the first `batches` batches. */
static uint64_t tokens_before(const kedge_dataset *d, uint64_t batches, uint32_t batch) {
  const uint64_t samples = batches * batch;
  return d->offsets[samples < d->count ? samples : d->count];
}

/* Rounds of a batch a rank; sums are taken batch by batch, in their order. */
static kedge_status run_all(measuring *m, kedge_batches *batches, const kedge_dataset *dataset,
                            const kedge_selection_options *o) {
  kedge_comm *comm = kedge_device_comm(m->base.model->device);
  const uint32_t ranks = kedge_comm_size(comm, KEDGE_RANKS_ALL), own = kedge_comm_rank(comm, KEDGE_RANKS_ALL),
                 batch = o->batch_size ? o->batch_size : BATCH, width = FIXED + 2 * m->K;
  uint64_t total = dataset->offsets[dataset->count];
  if (o->max_tokens && o->max_tokens < total) total = o->max_tokens;
  for (uint64_t first = 0; tokens_before(dataset, first, batch) < total; first += ranks) {
    const uint64_t done = tokens_before(dataset, first + ranks, batch);
    memset(m->told, 0, width * sizeof *m->told);
    kedge_status status = KEDGE_OK;
    if (tokens_before(dataset, first + own, batch) < total) status = run_one(m, batches, first + own);
    KEDGE_TRY(kedge_comm_agree(comm, status));
    KEDGE_TRY(kedge_comm_gather(comm, m->told, width * sizeof *m->told, m->all));
    for (uint32_t r = 0; r < ranks; r++) add(m->all + (size_t)r * width, m->out);
    bool stop = o->progress && !o->progress(o->context, done < total ? done : total, total);
    KEDGE_TRY(kedge_comm_any(comm, &stop));
    if (stop)
      return kedge_comm_agree(comm, kedge_fail(KEDGE_ERR_INTERRUPTED, "stopped after %llu of %llu tokens",
                                               (unsigned long long)(done < total ? done : total),
                                               (unsigned long long)total));
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
  KEDGE_TRY(kedge_comm_agree(kedge_device_comm(base->device), check(base, post, dataset)));
  kedge_status status = kedge_batches_new_eval(dataset, o->batch_size ? o->batch_size : BATCH, &batches);
  if (status == KEDGE_OK) m.T = kedge_batches_max_size(batches);
  if (status == KEDGE_OK) status = prepare(&m, base, post);
  status = kedge_comm_agree(kedge_device_comm(base->device), status);
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
  kedge_free(m.batch.ranks);
  kedge_free(m.told);
  kedge_free(m.all);
  if (status != KEDGE_OK) kedge_selection_destroy(selection);
  return status;
}

void kedge_selection_destroy(kedge_selection *s) {
  kedge_free(s->ranks);
  *s = (kedge_selection){0};
}
