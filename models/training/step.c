/* SPDX-License-Identifier: Apache-2.0
 * One update, and one evaluation. */
#include "models/training/step.h"

#include "models/decoder/finite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* True if an intervention reads the base's values of the tokens at hand. */
static bool needs_base(const kedge_stepper *s) {
  bool any = false;
  for (uint32_t i = 0; i < s->feeds.count; i++) any |= kedge_feeds_needs_base(&s->feeds, i);
  return any;
}

/* The interventions of a forward that counts choices: those that change them, and the loss that counts. And
 * those of a pass that sees a part of the ranks' tokens: where a loss counts the choices of all tokens within
 * its pass, it takes them from its table. */
static void derive_interventions(kedge_stepper *s) {
  const kedge_interventions *router = &s->setup->router;
  for (uint32_t i = 0; i < router->count; i++) {
    s->counted[i] = s->parted[i] = router->items[i];
    if (kedge_intervention_shares_counts(&router->items[i]))
      s->counted[i].scope = s->parted[i].scope = KEDGE_BALANCE_GLOBAL;
    if (kedge_router_get_kind(router->items[i].id) == KEDGE_ROUTER_LOSS &&
        router->items[i].id != KEDGE_ROUTER_lbl)
      s->counted[i].coef = 0; /* builds nothing */
  }
}

/* The load-balancing loss that counts the tokens of all ranks within a pass; count if there is none. */
static uint32_t shared_balance(const kedge_stepper *s) {
  const kedge_interventions *router = &s->setup->router;
  uint32_t i = 0;
  while (i < router->count && !kedge_intervention_shares_counts(&router->items[i])) i++;
  return i;
}

/* Passes talk to other ranks where experts are shared, and where the load-balancing loss counts the tokens of
 * all. */
static bool in_lockstep(const kedge_stepper *s) {
  const bool any =
      kedge_comm_size(s->setup->comm, KEDGE_RANKS_EXPERTS) > 1 || shared_balance(s) < s->setup->router.count;
  return any && kedge_comm_size(s->setup->comm, KEDGE_RANKS_ALL) > 1;
}

static kedge_status count_parts(void *context);

static void init_passes(kedge_stepper *s) {
  const kedge_config *c = s->setup->config;
  const kedge_interventions *router = &s->setup->router;
  const kedge_decoder_spec train = {.loss = true,
                                    .recompute = c->gradient_checkpointing,
                                    .loads = true,
                                    .counts = true,
                                    .interventions = router->items,
                                    .intervention_count = router->count};
  const kedge_decoder_spec counting = {
      .counts = true, .interventions = s->counted, .intervention_count = router->count};
  const kedge_decoder_spec eval = {.loss = true};
  kedge_passes_init(&s->train, s->setup->model, &train, s->workspace, kedge_optimizer_extend, &s->optimizer);
  kedge_passes_init(&s->counting, s->setup->model, &counting, s->workspace, NULL, NULL);
  kedge_passes_init(&s->eval, s->setup->model, &eval, s->workspace, NULL, NULL);
  if (shared_balance(s) < router->count) {
    s->train.part_interventions = s->parted;
    s->train.split = count_parts;
    s->train.split_context = s;
  }
  s->train.profile = s->counting.profile = c->profile;
}

static kedge_status allocate(kedge_stepper *s) {
  const uint64_t E = s->setup->model->config.num_experts;
  s->loads = kedge_alloc(s->setup->model->params.moe_layers * E, sizeof *s->loads);
  s->offsets = kedge_alloc(E + 1, sizeof *s->offsets);
  s->counts = kedge_alloc(E, sizeof *s->counts);
  s->moves = kedge_alloc(E, sizeof *s->moves);
  s->totals = kedge_alloc(s->setup->model->params.moe_layers * E, sizeof *s->totals);
  return s->loads && s->offsets && s->counts && s->moves && s->totals ? KEDGE_OK : KEDGE_ERR_MEMORY;
}

kedge_status kedge_stepper_init(kedge_stepper *s, const kedge_setup *setup) {
  const kedge_config *c = setup->config;
  *s = (kedge_stepper){.setup = setup};
  const kedge_optimizer_options options = {.beta1 = c->adam_beta1,
                                           .beta2 = c->adam_beta2,
                                           .eps = c->adam_epsilon,
                                           .decay = c->weight_decay,
                                           .max_norm = c->max_grad_norm,
                                           .overlap = c->overlap_grad_reduce,
                                           .trained = setup->router.trained};
  kedge_status status = kedge_workspace_new(setup->model->device, &s->workspace);
  if (status == KEDGE_OK) status = kedge_optimizer_init(&s->optimizer, setup->model, &options, s->workspace);
  if (status == KEDGE_OK) status = allocate(s);
  if (status == KEDGE_OK && c->profile) kedge_exec_profile(s->optimizer.exec, true);
  kedge_feeds_init(&s->feeds, &setup->model->params, setup->router.items, setup->router.sources,
                   setup->router.count);
  derive_interventions(s);
  s->lockstep = in_lockstep(s);
  init_passes(s);
  if (status == KEDGE_OK && needs_base(s))
    status = kedge_router_reader_open(setup->model, c->model_name_or_path, s->workspace, &s->base);
  if (status == KEDGE_OK && s->base) kedge_router_reader_passes(s->base)->profile = c->profile;
  if (status != KEDGE_OK) kedge_stepper_destroy(s);
  return status;
}

void kedge_stepper_destroy(kedge_stepper *s) {
  kedge_passes_destroy(&s->train);
  kedge_passes_destroy(&s->counting);
  kedge_passes_destroy(&s->eval);
  kedge_router_reader_free(s->base);
  kedge_optimizer_destroy(&s->optimizer);
  kedge_workspace_free(s->workspace);
  kedge_feeds_destroy(&s->feeds);
  kedge_free(s->loads);
  kedge_free(s->offsets);
  kedge_free(s->counts);
  kedge_free(s->moves);
  kedge_free(s->totals);
  *s = (kedge_stepper){0};
}

/* ---- What the frozen base and the counting forward give
 * ------------------------------------------------------------ */

static kedge_status fill_base(kedge_stepper *s, const kedge_micro_batch *mb) {
  float *logits = NULL;
  int32_t *ids = NULL;
  for (uint32_t i = 0; i < s->feeds.count; i++) {
    if (!kedge_feeds_needs_base(&s->feeds, i)) continue;
    if (kedge_intervention_table(&s->feeds.interventions[i]) == KEDGE_TABLE_BASE_LOGITS)
      logits = kedge_feeds_table(&s->feeds, i);
    else
      ids = kedge_feeds_table(&s->feeds, i);
  }
  return logits || ids ? kedge_router_reader_run(s->base, mb, logits, ids) : KEDGE_OK;
}

/* The load-balancing loss whose frequencies reach beyond a micro-batch; count if there is none. */
static uint32_t global_balance(const kedge_stepper *s) {
  uint32_t i = 0;
  while (i < s->feeds.count && kedge_intervention_table(&s->feeds.interventions[i]) != KEDGE_TABLE_COUNTS)
    i++;
  return i;
}

/* Adds what a pass counted to a table [L, E]. */
static kedge_status add_counts(kedge_stepper *s, const kedge_pass *pass, float *counts) {
  const kedge_params *p = &s->setup->model->params;
  const uint32_t E = p->config.num_experts;
  for (uint32_t l = 0; l < p->moe_layers; l++) {
    if (!pass->decoder.counts_GE[l]) continue; /* a layer that the loss leaves out */
    KEDGE_TRY(kedge_exec_read(pass->exec, pass->decoder.counts_GE[l], s->counts, E * sizeof *s->counts));
    for (uint32_t e = 0; e < E; e++) counts[l * E + e] += s->counts[e];
  }
  return KEDGE_OK;
}

/* Adds the tokens that each expert got. */
static kedge_status add_loads(kedge_stepper *s, const kedge_pass *pass) {
  const kedge_params *p = &s->setup->model->params;
  const uint32_t E = p->config.num_experts;
  for (uint32_t l = 0; l < p->moe_layers; l++) {
    KEDGE_TRY(
        kedge_exec_read(pass->exec, pass->decoder.offsets_E1[l], s->offsets, (E + 1) * sizeof *s->offsets));
    for (uint32_t e = 0; e < E; e++) s->loads[l * E + e] += (uint64_t)(s->offsets[e + 1] - s->offsets[e]);
  }
  return KEDGE_OK;
}

/* ---- One micro-batch, one update
 * ------------------------------------------------------------------------------------ */

static kedge_tokens tokens_of(const kedge_micro_batch *mb, const kedge_feed_data *feeds) {
  return (kedge_tokens){.ids = mb->ids_T,
                        .positions = mb->positions_T,
                        .segments = mb->segments_T,
                        .labels = mb->labels_T,
                        .weights = mb->weights_T,
                        .feeds = feeds};
}

static kedge_status read_loss(const kedge_model *model, const kedge_pass *pass, kedge_value value,
                              double *sum) {
  float loss = 0;
  if (!value) return KEDGE_OK;
  KEDGE_TRY(kedge_exec_read(pass->exec, value, &loss, sizeof loss));
  if (!isfinite(loss))
    return kedge_not_finite(model, "the %s is not finite", kedge_value_name(pass->decoder.graph, value));
  *sum += (double)loss;
  return KEDGE_OK;
}

/* What is read of a pass that has run. */
typedef struct reading {
  kedge_stepper *stepper;
  kedge_step_result *result; /* of training */
  float *counts;             /* of counting */
  double *loss;              /* of evaluation */
  kedge_status status;
} reading;

/* Runs a pass on a micro-batch whose feeds are filled. */
static kedge_status run_pass(kedge_passes *passes, const kedge_micro_batch *mb, bool fed,
                             kedge_pass_read read, reading *r) {
  const kedge_feeds *feeds = &r->stepper->feeds;
  const kedge_tokens tokens = tokens_of(mb, fed ? feeds->data : NULL);
  return kedge_passes_run(passes, mb->size, fed ? kedge_feeds_rows(feeds, mb->samples) : 0, &tokens, read, r);
}

static kedge_status fill_feeds(kedge_stepper *s, kedge_batches *batches, const kedge_update *update,
                               uint32_t index, kedge_micro_batch *mb) {
  KEDGE_TRY(kedge_batches_micro(batches, index, mb));
  KEDGE_TRY(kedge_feeds_fill(&s->feeds, kedge_setup_train(s->setup), update, mb));
  return fill_base(s, mb);
}

/* A failure before a pass has ended leaves the others waiting in it; one that it showed is told to all. */
static kedge_status end_micro(kedge_stepper *s, kedge_status status, bool passed) {
  kedge_comm *comm = s->setup->comm;
  if (!s->lockstep) return status;
  if (!passed && status != KEDGE_OK) comm->broken = true;
  return kedge_comm_agree(comm, status);
}

static void read_counts(void *context, const kedge_pass *pass) {
  reading *r = context;
  r->status = add_counts(r->stepper, pass, r->counts);
}

/* Frequencies of the whole update before its first backward: a forward of every micro-batch, with the
 * interventions that change the choice. */
static kedge_status count_update(kedge_stepper *s, kedge_batches *batches, const kedge_update *update,
                                 uint32_t balance) {
  for (uint32_t i = 0; i < update->micro_batches; i++) {
    kedge_micro_batch mb;
    kedge_status status = fill_feeds(s, batches, update, i, &mb);
    if (!i && status == KEDGE_OK)
      memset(kedge_feeds_table(&s->feeds, balance), 0, s->feeds.table_bytes[balance]);
    reading r = {.stepper = s, .counts = kedge_feeds_table(&s->feeds, balance)};
    if (status == KEDGE_OK) status = run_pass(&s->counting, &mb, true, read_counts, &r);
    if (status == KEDGE_OK) status = r.status;
    KEDGE_TRY(end_micro(s, status, status == KEDGE_OK));
  }
  return KEDGE_OK;
}

/* The counts of all ranks, exact as the whole numbers that they are. */
static kedge_status sum_counts(kedge_stepper *s, float *counts) {
  const uint64_t cells = (uint64_t)s->setup->model->params.moe_layers * s->setup->model->config.num_experts;
  double *sums = kedge_alloc(cells, sizeof *sums);
  if (!sums) return KEDGE_ERR_MEMORY;
  for (uint64_t i = 0; i < cells; i++) sums[i] = (double)counts[i];
  kedge_status status = kedge_comm_sum(s->setup->comm, sums, cells);
  for (uint64_t i = 0; i < cells; i++) counts[i] = (float)sums[i];
  kedge_free(sums);
  return status;
}

/* Before a micro-batch is trained on in parts: the choices of all its tokens, by a forward of each part, as
 * the table of the loss that would have counted them within its pass. */
static kedge_status count_parts(void *context) {
  kedge_stepper *s = context;
  const uint32_t balance = shared_balance(s);
  const uint64_t cells = (uint64_t)s->setup->model->params.moe_layers * s->setup->model->config.num_experts;
  reading r = {.stepper = s, .counts = s->totals};
  memset(s->totals, 0, cells * sizeof *s->totals);
  KEDGE_TRY(run_pass(&s->counting, s->micro, true, read_counts, &r));
  KEDGE_TRY(r.status);
  KEDGE_TRY(sum_counts(s, s->totals));
  if (s->setup->router.items[balance].scope == KEDGE_BALANCE_GLOBAL_RUNNING) {
    float *running = kedge_feeds_table(&s->feeds, balance);
    for (uint64_t i = 0; i < cells; i++) s->totals[i] = running[i] += s->totals[i];
  }
  s->feeds.data[balance].table = s->totals;
  return KEDGE_OK;
}

static kedge_status read_pass(kedge_stepper *s, const kedge_pass *pass, kedge_step_result *result) {
  KEDGE_TRY(kedge_pass_check_routers(pass, s->setup->model));
  KEDGE_TRY(read_loss(s->setup->model, pass, pass->decoder.loss_1, &result->loss));
  KEDGE_TRY(read_loss(s->setup->model, pass, pass->decoder.aux_1, &result->aux));
  for (uint32_t i = 0; i < s->feeds.count; i++)
    KEDGE_TRY(read_loss(s->setup->model, pass, pass->decoder.terms_1[i], &result->terms[i]));
  const uint32_t balance = global_balance(s);
  if (!pass->part && balance < s->feeds.count &&
      s->feeds.interventions[balance].scope == KEDGE_BALANCE_GLOBAL_RUNNING)
    KEDGE_TRY(add_counts(s, pass, kedge_feeds_table(&s->feeds, balance)));
  return add_loads(s, pass);
}

static void read_training(void *context, const kedge_pass *pass) {
  reading *r = context;
  r->status = read_pass(r->stepper, pass, r->result);
}

/* Whether the pass of a micro-batch hands its gradients over. */
static void set_last(kedge_stepper *s, bool last) {
  const bool hands = last && kedge_optimizer_last(&s->optimizer);
  s->train.complete = hands ? kedge_optimizer_complete : NULL;
  s->train.complete_context = &s->optimizer;
}

/* Micro-batch `index`. `fresh`: a table that counts micro-batches begins with this one. */
static kedge_status train_micro(kedge_stepper *s, kedge_batches *batches, const kedge_update *update,
                                uint32_t index, bool fresh, kedge_step_result *result) {
  kedge_micro_batch mb;
  reading r = {.stepper = s, .result = result};
  const uint32_t balance = global_balance(s);
  kedge_status status = fill_feeds(s, batches, update, index, &mb);
  if (status == KEDGE_OK && fresh)
    memset(kedge_feeds_table(&s->feeds, balance), 0, s->feeds.table_bytes[balance]);
  s->micro = &mb;
  set_last(s, status == KEDGE_OK && index + 1 == update->micro_batches);
  if (status == KEDGE_OK) status = run_pass(&s->train, &mb, true, read_training, &r);
  s->micro = NULL;
  const bool passed = status == KEDGE_OK;
  if (passed) status = r.status;
  return end_micro(s, status, passed);
}

/* All micro-batches of this rank, forward and backward. */
static kedge_status run_micros(kedge_stepper *s, kedge_batches *batches, const kedge_update *update,
                               kedge_step_result *result) {
  const uint32_t balance = global_balance(s);
  const bool tabled = balance < s->feeds.count,
             counted = tabled && s->feeds.interventions[balance].scope == KEDGE_BALANCE_GLOBAL;
  KEDGE_TRY(kedge_optimizer_begin(&s->optimizer));
  if (counted) {
    KEDGE_TRY(kedge_comm_agree(s->setup->comm, count_update(s, batches, update, balance)));
    KEDGE_TRY(sum_counts(s, kedge_feeds_table(&s->feeds, balance)));
  }
  for (uint32_t i = 0; i < update->micro_batches; i++)
    KEDGE_TRY(train_micro(s, batches, update, i, !i && tabled && !counted, result));
  return KEDGE_OK;
}

/* Adds up what the ranks have seen of an update: losses and terms, the prior's cells, the experts' tokens. */
static kedge_status sum_result(kedge_stepper *s, kedge_step_result *r) {
  enum { FIRST = 5 + KEDGE_MAX_INTERVENTIONS };
  const uint64_t cells = (uint64_t)s->setup->model->params.moe_layers * s->setup->model->config.num_experts;
  if (kedge_comm_size(s->setup->comm, KEDGE_RANKS_ALL) == 1) return KEDGE_OK;
  double *sums = kedge_alloc(FIRST + cells, sizeof *sums);
  if (!sums) return KEDGE_ERR_MEMORY;
  const double own[5] = {r->loss, r->aux, (double)r->clipped.low, (double)r->clipped.high,
                         (double)r->clipped.cells};
  memcpy(sums, own, sizeof own);
  memcpy(sums + 5, r->terms, sizeof r->terms);
  for (uint64_t i = 0; i < cells; i++) sums[FIRST + i] = (double)s->loads[i];
  kedge_status status = kedge_comm_sum(s->setup->comm, sums, FIRST + cells);
  r->loss = sums[0];
  r->aux = sums[1];
  r->clipped =
      (kedge_prior_clipped){.low = (uint64_t)sums[2], .high = (uint64_t)sums[3], .cells = (uint64_t)sums[4]};
  memcpy(r->terms, sums + 5, sizeof r->terms);
  for (uint64_t i = 0; i < cells; i++) s->loads[i] = (uint64_t)sums[FIRST + i];
  kedge_free(sums);
  return status;
}

/* Loss-free balancing (arXiv 2408.15664): a_e += u sign(mean n - n_e), n the tokens of the whole update. With
 * mean removal the change's mean is taken off. */
static kedge_status move_bias(kedge_stepper *s, const kedge_intervention *it, uint32_t layer) {
  const kedge_params *p = &s->setup->model->params;
  const uint32_t E = p->config.num_experts, index = kedge_params_moe_index(p, layer);
  const uint64_t *n = s->loads + (uint64_t)index * E;
  kedge_buffer *bias = s->setup->model->weights[kedge_params_find(p, KEDGE_ROLE_ROUTER_CORRECTION, layer)];
  double total = 0, mean = 0;
  for (uint32_t e = 0; e < E; e++) total += (double)n[e];
  for (uint32_t e = 0; e < E; e++) {
    const double short_of = total / E - (double)n[e];
    s->moves[e] = it->coef * (double)((short_of > 0) - (short_of < 0));
    mean += s->moves[e] / E;
  }
  KEDGE_TRY(kedge_buffer_read(bias, 0, s->counts, E * sizeof *s->counts));
  for (uint32_t e = 0; e < E; e++)
    s->counts[e] = (float)((double)s->counts[e] + s->moves[e] - (it->mean_removal ? mean : 0));
  return kedge_buffer_write(bias, 0, s->counts, E * sizeof *s->counts);
}

static kedge_status move_biases(kedge_stepper *s) {
  const kedge_intervention *it = kedge_interventions_find(&s->setup->router, KEDGE_ROUTER_loss_free);
  const kedge_params *p = &s->setup->model->params;
  for (uint32_t l = 0; it && l < p->moe_layers; l++)
    if (kedge_intervention_covers(it, kedge_params_moe_layer(p, l)))
      KEDGE_TRY(move_bias(s, it, kedge_params_moe_layer(p, l)));
  return KEDGE_OK;
}

/* Highest load over the mean, averaged over layers, and experts without a token. */
static void measure_loads(const kedge_stepper *s, kedge_step_result *result) {
  const kedge_params *p = &s->setup->model->params;
  const uint32_t E = p->config.num_experts;
  for (uint32_t l = 0; l < p->moe_layers; l++) {
    uint64_t most = 0, total = 0;
    for (uint32_t e = 0; e < E; e++) {
      const uint64_t n = s->loads[(uint64_t)l * E + e];
      most = n > most ? n : most;
      total += n;
      result->dead_experts += n == 0;
    }
    if (total) result->load_max += (double)most * E / (double)total / p->moe_layers;
  }
}

kedge_status kedge_stepper_update(kedge_stepper *s, kedge_batches *batches, const kedge_update *update,
                                  double learning_rate, kedge_step_result *result) {
  const kedge_params *p = &s->setup->model->params;
  kedge_comm *comm = s->setup->comm;
  if (comm) comm->agreed = false;
  *result = (kedge_step_result){0};
  s->feeds.clipped = (kedge_prior_clipped){0};
  memset(s->loads, 0, (uint64_t)p->moe_layers * p->config.num_experts * sizeof *s->loads);
  KEDGE_TRY(kedge_optimizer_open_overlap(&s->optimizer));
  kedge_status status = run_micros(s, batches, update, result);
  if (status != KEDGE_OK) kedge_optimizer_abandon(&s->optimizer);
  result->clipped = s->feeds.clipped;
  if (!comm || !comm->agreed) status = kedge_comm_agree(comm, status);
  KEDGE_TRY(status);
  KEDGE_TRY(sum_result(s, result));
  measure_loads(s, result);
  status = kedge_optimizer_step(&s->optimizer, learning_rate, &result->norms);
  if (status == KEDGE_ERR_NUMERIC) return kedge_comm_agree(comm, status); /* the norm is one for all ranks */
  KEDGE_TRY(status);
  return move_biases(s);
}

static void read_evaluation(void *context, const kedge_pass *pass) {
  reading *r = context;
  r->status = kedge_pass_check_routers(pass, r->stepper->setup->model);
  if (r->status == KEDGE_OK)
    r->status = read_loss(r->stepper->setup->model, pass, pass->decoder.loss_1, r->loss);
}

/* Runs evaluation batch `index`; a rank that has none runs the first one again, where the others need it. */
static kedge_status evaluate_batch(kedge_stepper *s, kedge_batches *batches, uint64_t index, double *part,
                                   uint32_t *supervised) {
  kedge_update update;
  kedge_micro_batch mb;
  reading r = {.stepper = s, .loss = part};
  kedge_status status = kedge_batches_seek(batches, index);
  if (status == KEDGE_OK) status = kedge_batches_next(batches, &update);
  if (status == KEDGE_OK) status = kedge_batches_micro(batches, 0, &mb);
  if (status == KEDGE_OK) status = run_pass(&s->eval, &mb, false, read_evaluation, &r);
  const bool passed = status == KEDGE_OK;
  *supervised = passed ? mb.supervised : 0;
  if (passed) status = r.status;
  return end_micro(s, status, passed);
}

/* Each rank runs every so-manieth batch; sums are made over the batches in their order, as one rank makes
 * them. */
kedge_status kedge_stepper_evaluate(kedge_stepper *s, double *loss) {
  const kedge_dataset *data = s->setup->eval;
  kedge_comm *comm = s->setup->comm;
  const uint32_t ranks = kedge_comm_size(comm, KEDGE_RANKS_ALL),
                 rank = kedge_comm_rank(comm, KEDGE_RANKS_ALL);
  kedge_batches *batches;
  double sum = 0, tokens = 0;
  KEDGE_TRY(kedge_batches_new_eval(data, (uint32_t)s->setup->config->per_device_eval_batch_size, &batches));
  const uint64_t count = kedge_batches_updates(batches);
  double(*parts)[2] =
      kedge_alloc(count, sizeof *parts); /* loss over the batch's tokens, and how many they are */
  kedge_status status = parts ? KEDGE_OK : KEDGE_ERR_MEMORY;
  for (uint64_t first = 0; status == KEDGE_OK && first < count; first += ranks) {
    const bool own = first + rank < count;
    double part = 0;
    uint32_t supervised = 0;
    if (!own && !s->lockstep) break;
    status = evaluate_batch(s, batches, own ? first + rank : 0, &part, &supervised);
    if (!own || status != KEDGE_OK) continue;
    parts[first + rank][0] = part * (double)supervised; /* a batch's loss is the mean over its own tokens */
    parts[first + rank][1] = supervised;
  }
  if (!comm || !comm->agreed) status = kedge_comm_agree(comm, status);
  if (status == KEDGE_OK) status = kedge_comm_sum(comm, parts[0], 2 * count);
  for (uint64_t i = 0; status == KEDGE_OK && i < count; i++) {
    sum += parts[i][0];
    tokens += parts[i][1];
  }
  *loss = tokens > 0 ? sum / tokens : (double)NAN;
  kedge_free(parts);
  kedge_batches_free(batches);
  return status;
}

/* Adds the times of one execution into a list by op. */
static uint32_t add_times(const kedge_exec *exec, kedge_op_time *times, uint32_t count, uint32_t capacity) {
  kedge_op_time more[KEDGE_STEP_OPS];
  uint32_t ops = kedge_exec_times(exec, more, KEDGE_STEP_OPS);
  for (uint32_t i = 0; i < ops && i < KEDGE_STEP_OPS; i++) {
    uint32_t at = 0;
    while (at < count && strcmp(times[at].op, more[i].op)) at++;
    if (at == count && count == capacity) continue;
    if (at == count) times[count++] = (kedge_op_time){more[i].op, 0, 0};
    times[at].calls += more[i].calls;
    times[at].seconds += more[i].seconds;
  }
  return count;
}

static uint32_t add_passes(const kedge_passes *passes, kedge_op_time *times, uint32_t count,
                           uint32_t capacity) {
  for (uint32_t i = 0; i < passes->count; i++)
    count = add_times(passes->items[i]->exec, times, count, capacity);
  return count;
}

static int by_seconds(const void *a, const void *b) {
  const kedge_op_time *x = a, *y = b;
  return x->seconds < y->seconds ? 1 : -(x->seconds > y->seconds);
}

uint32_t kedge_stepper_times(const kedge_stepper *s, kedge_op_time *times, uint32_t capacity) {
  uint32_t count = add_passes(&s->train, times, 0, capacity);
  count = add_passes(&s->counting, times, count, capacity);
  if (s->base) count = add_passes(kedge_router_reader_passes(s->base), times, count, capacity);
  if (s->optimizer.exec) count = add_times(s->optimizer.exec, times, count, capacity);
  if (s->optimizer.overlap && count + 2 <= capacity && s->setup->config->profile) {
    const kedge_overlap_times t = kedge_overlap_measure(s->optimizer.overlap);
    times[count++] = (kedge_op_time){"sums beside backward", t.buckets, t.summing};
    times[count++] = (kedge_op_time){"waiting for them", t.updates, t.waiting};
  }
  qsort(times, count, sizeof *times, by_seconds);
  return count;
}
