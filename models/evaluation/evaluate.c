/* SPDX-License-Identifier: Apache-2.0
 * Evaluation (evaluate.h), in windows of items: their sequences are decoded together, then judged and written
 * in order. What a window holds is in window.c. Ranks share the items, and rank 0 gets their rows (rows.c).
 */
#include "models/evaluation/window.h"

#include "models/checkpoint/atomic.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_NEW = 256, SEQUENCES = 32 };

/* ---- Settings
 * ---------------------------------------------------------------------------------------------------- */

static kedge_status put(json_t *object, const char *key, json_t *value) {
  return json_object_set_new(object, key, value) ? KEDGE_ERR_MEMORY : KEDGE_OK;
}

static kedge_status describe_steer(const kedge_eval_steer *s, json_t *to) {
  const kedge_intervention *it = &s->intervention;
  char hash[33];
  json_t *steer = json_object();
  KEDGE_TRY(put(to, "steer", steer));
  KEDGE_TRY(kedge_model_hash(s->base, hash));
  KEDGE_TRY(put(steer, "base", json_string(hash)));
  KEDGE_TRY(put(steer, "intervention", json_string(kedge_router_name(it->id))));
  if (it->id == KEDGE_ROUTER_replay) return put(steer, "rank", json_integer(s->rank));
  KEDGE_TRY(put(steer, "beta", json_real(it->beta)));
  KEDGE_TRY(put(steer, "eps", json_real(it->eps)));
  KEDGE_TRY(put(steer, "clip", json_real(it->clip)));
  KEDGE_TRY(put(steer, "gate_source", json_string(it->gate_raw ? "raw" : "biased")));
  return put(steer, "span", json_string(it->whole_sample ? "sample" : "qa"));
}

/* Everything that rows depend on: the first row of their file. */
static kedge_status describe(const evaluation *e, json_t *to) {
  static const char *const templates[] = {"auto", "bare", "math", "choice", "code"};
  static const char *const choices[] = {"likelihood", "letter", "both"};
  const kedge_eval_options *o = e->options;
  char hash[33];
  json_t *files = json_array();
  KEDGE_TRY(put(to, "kedge_eval", json_integer(1)));
  KEDGE_TRY(put(to, "files", files));
  for (uint32_t i = 0; i < e->suite.count; i++) {
    const kedge_suite_file *f = &e->suite.files[i];
    json_t *one =
        json_pack("{s:s, s:s, s:I, s:s}", "name", strrchr(f->path, '/') ? strrchr(f->path, '/') + 1 : f->path,
                  "form", kedge_suite_form_name(f->form), "items", (json_int_t)f->items, "hash", f->hash);
    if (!one || json_array_append_new(files, one)) return KEDGE_ERR_MEMORY;
  }
  KEDGE_TRY(kedge_model_hash(e->model, hash));
  KEDGE_TRY(put(to, "model", json_string(hash)));
  KEDGE_TRY(put(to, "dtype", json_string(kedge_dtype_name(e->model->dtype))));
  KEDGE_TRY(put(to, "tokenizer", json_string(kedge_tokenizer_hash(e->tokenizer))));
  KEDGE_TRY(put(to, "repeats", json_integer((json_int_t)e->repeats)));
  KEDGE_TRY(put(to, "temperature", json_real(o->sampling.temperature)));
  KEDGE_TRY(put(to, "top_p", json_real(o->sampling.temperature > 0 ? o->sampling.top_p : 1)));
  KEDGE_TRY(
      put(to, "top_k", json_integer((json_int_t)(o->sampling.temperature > 0 ? o->sampling.top_k : 0))));
  KEDGE_TRY(put(to, "seed", json_integer((json_int_t)(o->sampling.temperature > 0 ? o->sampling.seed : 0))));
  KEDGE_TRY(put(to, "max_new_tokens", json_integer((json_int_t)e->max_new)));
  KEDGE_TRY(put(to, "template", json_string(templates[o->template_of])));
  KEDGE_TRY(put(to, "chat", o->chat ? json_string(kedge_chat_template_name(e->prompts.chat)) : json_null()));
  KEDGE_TRY(put(to, "choice", json_string(choices[o->choice])));
  KEDGE_TRY(put(to, "option_texts", json_boolean(o->option_texts)));
  KEDGE_TRY(put(to, "choice_order", json_integer((json_int_t)(o->choice_order < 0 ? -1 : o->choice_order))));
  KEDGE_TRY(put(to, "whole", json_boolean(o->whole)));
  if (o->no_thinking) KEDGE_TRY(put(to, "thinking", json_false()));
  if (o->steer) KEDGE_TRY(describe_steer(o->steer, to));
  return put(to, "decode_all", json_boolean(o->decode_all));
}

static kedge_status hash_settings(const json_t *settings, char text[KEDGE_HASH_TEXT]) {
  char *dump = json_dumps(settings, JSON_COMPACT | JSON_REAL_PRECISION(17));
  kedge_hash *hash = kedge_hash_new();
  const kedge_status status = dump && hash ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) {
    kedge_hash_add_text(hash, dump);
    kedge_hash_text(hash, text);
  }
  kedge_hash_free(hash);
  free(dump);
  return status;
}

static kedge_status check_options(const kedge_eval_options *o) {
  if (o->repeats > 1 && !(o->sampling.temperature > 0))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "%u repeats at temperature 0 would all be the same", o->repeats);
  if (!(o->sampling.temperature >= 0))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "temperature %g is below 0", o->sampling.temperature);
  if (o->sampling.temperature > 0 && !(o->sampling.top_p >= 0 && o->sampling.top_p <= 1))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "top_p %g is not from 0 to 1", o->sampling.top_p);
  return KEDGE_OK;
}

/* ---- Windows
 * ----------------------------------------------------------------------------------------------------- */

/* Where answers have think blocks, that of a reference is no part of what is compared. */
static void drop_thought(const evaluation *e, kedge_item *item) {
  if (!kedge__thinks(e) || item->kind != KEDGE_ANSWER_EXACT) return;
  kedge_extract answer = kedge_after_thought(item->answer, strlen(item->answer));
  while (answer.length && strchr(" \t\n\r", *answer.start)) answer.start++, answer.length--;
  memmove(item->answer, answer.start, answer.length + 1);
}

static kedge_status next_item(evaluation *e, kedge_item *item, uint32_t *file) {
  bool some;
  KEDGE_TRY(kedge_suite_next(&e->suite, item, file, &some));
  if (!some) return kedge_fail(KEDGE_ERR_FORMAT, "the suites have fewer items than they had");
  e->read++;
  return KEDGE_OK;
}

/* Items [first, end) of the suite, at most WINDOW; those before them are passed over. */
static kedge_status read_window(evaluation *e, window *w, uint64_t first, uint64_t end) {
  while (e->read < first) {
    kedge_item passed;
    uint32_t file;
    KEDGE_TRY(next_item(e, &passed, &file));
    kedge_item_destroy(&passed);
  }
  w->first_row = first * e->repeats;
  while (e->read < end) {
    kedge_item *item = &w->items[w->count];
    KEDGE_TRY(next_item(e, item, &w->files[w->count]));
    w->count++;
    if (e->options->whole && (item->kind != KEDGE_ANSWER_LETTER || e->options->choice == KEDGE_CHOICE_LETTER))
      KEDGE_TRY(kedge_item_take_whole(item));
    drop_thought(e, item);
  }
  return KEDGE_OK;
}

/* Rounds of a window a rank, neighbours in the suite. Since no item depends on what runs beside it, windows
 * are as small as it takes to give every rank some. */
static kedge_status run_windows(evaluation *e, window *w) {
  const uint32_t ranks = kedge_comm_size(e->comm, KEDGE_RANKS_ALL),
                 own = kedge_comm_rank(e->comm, KEDGE_RANKS_ALL);
  const uint64_t items = e->suite.items, done = e->record.rows / e->repeats,
                 fair = done < items ? (items - done + ranks - 1) / ranks : 0,
                 each = fair < WINDOW ? fair : WINDOW;
  for (uint64_t round = done; round < items; round += each * ranks) {
    const uint64_t left = items - round, first = own * each < left ? own * each : left,
                   end = first + each < left ? first + each : left;
    e->round_row = round * e->repeats;
    e->round_rows = (left < each * ranks ? left : each * ranks) * e->repeats;
    kedge_status status = first < end ? read_window(e, w, round + first, round + end) : KEDGE_OK;
    if (status == KEDGE_OK && w->count) status = kedge__window_run(e, w);
    kedge__window_clear(w);
    KEDGE_TRY(kedge_comm_agree(e->comm, status));
    if (ranks > 1) KEDGE_TRY(kedge__rows_collect(&e->rows, e->comm, &e->record, e->summary));
    KEDGE_TRY(kedge_comm_agree(e->comm, kedge_eval_record_flush(&e->record)));
  }
  return KEDGE_OK;
}

/* ---- Whole
 * ------------------------------------------------------------------------------------------------------- */

static bool go_on(void *context, uint32_t job, const int32_t *ids, uint32_t count) {
  return kedge__window_go_on(context, job, ids, count);
}

static bool advanced(void *context, uint32_t done, uint64_t tokens) {
  evaluation *e = context;
  const kedge_eval_options *o = e->options;
  (void)tokens;
  if (!o->progress) return true;
  /* Sequences of a window as samples, roughly, and the other ranks' like the own ones. */
  const uint64_t jobs = e->window->job_count ? e->window->job_count : 1;
  uint64_t rows = e->round_row + e->round_rows * done / jobs;
  if (rows < e->record_start) rows = e->record_start;
  return o->progress(o->context, rows, e->suite.items * e->repeats, kedge_decoding_count(e->decoding).tokens);
}

/* Says of every file what it was taken for. */
static kedge_status tell_forms(const evaluation *e) {
  const kedge_eval_options *o = e->options;
  for (uint32_t i = 0; o->notice && i < e->suite.count; i++) {
    const kedge_suite_file *f = &e->suite.files[i];
    char *line = kedge_format("%s: %s, %llu items", f->path, kedge_suite_form_name(f->form),
                              (unsigned long long)f->items);
    if (!line) return KEDGE_ERR_MEMORY;
    o->notice(o->context, line);
    kedge_free(line);
  }
  return KEDGE_OK;
}

static kedge_status open_all(evaluation *e) {
  const kedge_eval_options *o = e->options;
  const uint32_t positions = e->model->config.max_position_embeddings;
  KEDGE_TRY(check_options(o));
  KEDGE_TRY(kedge_suite_open(&e->suite, o->suites, o->suite_count, o->limit, o->choice_order, o->notice,
                             o->context));
  if (e->suite.code && !o->sandbox)
    return kedge_fail(KEDGE_ERR_ARGUMENT,
                      "%llu items are answered by Python code, and running it is not allowed",
                      (unsigned long long)e->suite.code);
  KEDGE_TRY(kedge_prompts_init(&e->prompts, e->tokenizer, &e->model->config, o->template_of, o->chat,
                               positions > e->max_new + 16 ? positions - e->max_new : 0));
  e->prompts.no_thinking = o->no_thinking;
  const uint32_t sequences = o->sequences ? o->sequences : SEQUENCES;
  if (o->steer) KEDGE_TRY(kedge__steering_new(o->steer, e->model, sequences, &e->steering));
  const kedge_decoding_options decoding = {.sequences = sequences,
                                           .steer =
                                               e->steering ? kedge__steering_decoding(e->steering) : NULL,
                                           .stops = e->prompts.stops,
                                           .stop_count = e->prompts.stop_count,
                                           .go_on = go_on,
                                           .progress = advanced,
                                           .context = e};
  return kedge_decoding_new(e->model, &decoding, &e->decoding);
}

/* Rank 0 has the file, all know how much is in it. */
static kedge_status open_record(evaluation *e, const json_t *settings) {
  const bool leads = kedge_comm_rank(e->comm, KEDGE_RANKS_ALL) == 0;
  kedge_status status = KEDGE_OK;
  KEDGE_TRY(kedge_comm_same(e->comm, "the hash of settings, model and suites", e->summary->settings));
  if (leads) status = kedge_eval_record_open(&e->record, e->options->out, settings, e->summary);
  KEDGE_TRY(kedge_comm_agree(e->comm, status));
  KEDGE_TRY(kedge_comm_broadcast(e->comm, 0, &e->record.rows, sizeof e->record.rows));
  e->record_start = e->record.rows;
  return KEDGE_OK;
}

static kedge_status write_summary(const evaluation *e) {
  if (!e->options->out || kedge_comm_rank(e->comm, KEDGE_RANKS_ALL)) return KEDGE_OK;
  json_t *root = kedge_eval_summary_json(e->summary);
  char *text = root ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(17)) : NULL;
  char *path = kedge_path_join(e->options->out, "summary.json");
  kedge_status status = text && path ? kedge_file_write(path, text, strlen(text)) : KEDGE_ERR_MEMORY;
  json_decref(root);
  free(text);
  kedge_free(path);
  return status;
}

kedge_status kedge_evaluate(const kedge_model *model, const kedge_tokenizer *tokenizer,
                            const kedge_eval_options *options, kedge_eval_summary *summary) {
  evaluation e = {.model = model,
                  .tokenizer = tokenizer,
                  .options = options,
                  .summary = summary,
                  .repeats = options->repeats ? options->repeats : 1,
                  .max_new = options->max_new_tokens ? options->max_new_tokens : MAX_NEW};
  *summary = (kedge_eval_summary){.repeats = e.repeats};
  e.comm = kedge_device_comm(model->device);
  json_t *settings = json_object();
  window *w = e.window = kedge_alloc(1, sizeof *w);
  kedge_status status = settings && w ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) status = open_all(&e);
  if (status == KEDGE_OK) status = describe(&e, settings);
  if (status == KEDGE_OK) status = hash_settings(settings, summary->settings);
  status = kedge_comm_agree(e.comm, status);
  if (status == KEDGE_OK) status = open_record(&e, settings);
  if (status == KEDGE_OK) status = kedge_comm_agree(e.comm, tell_forms(&e));
  if (status == KEDGE_OK) status = run_windows(&e, w);
  if (status == KEDGE_OK) status = kedge_comm_agree(e.comm, write_summary(&e));
  kedge__rows_free(&e.rows);
  kedge_eval_record_close(&e.record);
  kedge_decoding_free(e.decoding);
  kedge__steering_free(e.steering);
  kedge_suite_close(&e.suite);
  if (w) kedge__window_clear(w);
  kedge_free(w);
  json_decref(settings);
  return status;
}
