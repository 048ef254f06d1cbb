/* SPDX-License-Identifier: Apache-2.0
 * A window of items (window.h): from items to sequences, and from what was decoded to rows. */
#include "models/evaluation/window.h"

#include "models/text/random.h"
#include "models/text/unicode.h"

#include <string.h>

void kedge__window_clear(window *w) {
  for (uint32_t i = 0; i < w->job_count; i++) {
    kedge_free(w->sequences[i].prompt.ids);
    kedge_decoding_result_destroy(&w->results[i]);
  }
  for (uint32_t i = 0; i < w->count; i++) {
    kedge_item_destroy(&w->items[i]);
    kedge_free(w->questions[i].ids);
  }
  kedge_free(w->job_items);
  kedge_free(w->job_prompts);
  kedge_free(w->sequences);
  kedge_free(w->jobs);
  kedge_free(w->results);
  *w = (window){0};
}

/* ---- Sequences
 * --------------------------------------------------------------------------------------------------- */

static kedge_status add_sequence(window *w, const sequence *s) {
  if (w->job_count == w->capacity) {
    const uint32_t capacity = w->capacity * 2 + WINDOW;
    sequence *sequences = kedge_realloc(w->sequences, capacity, sizeof *sequences);
    if (sequences) w->sequences = sequences;
    kedge_decoding_job *jobs = kedge_realloc(w->jobs, capacity, sizeof *jobs);
    if (jobs) w->jobs = jobs;
    kedge_decoding_result *results = kedge_realloc(w->results, capacity, sizeof *results);
    if (results) w->results = results;
    if (!sequences || !jobs || !results) return KEDGE_ERR_MEMORY;
    w->capacity = capacity;
  }
  w->results[w->job_count] = (kedge_decoding_result){0};
  w->sequences[w->job_count++] = *s;
  return KEDGE_OK;
}

/* The text of option `o` as an answer. */
static char *option_text(const evaluation *e, const kedge_item *item, uint32_t o) {
  const char *lead = item->lead ? item->lead : "";
  if (e->options->option_texts) return kedge_format("%s%s", lead, item->choices[o]);
  if (item->middle) return kedge_format("%s%s%s%c", lead, item->choices[o], item->middle, 'A' + (int)o);
  return kedge_format("%s%c", lead, 'A' + (int)o);
}

/* Options that differ in their last token alone are endings of one sequence. */
static bool joins(const sequence *s, const kedge_prompt *p) {
  return s->prompt.count == p->count && s->prompt.prompt_count == p->prompt_count &&
         p->count > p->prompt_count && !memcmp(s->prompt.ids, p->ids, (p->count - 1) * sizeof *p->ids);
}

static kedge_status add_options(evaluation *e, window *w, uint32_t i) {
  const kedge_item *item = &w->items[i];
  const uint32_t first_job = w->job_count;
  for (uint32_t o = 0; o < item->choice_count; o++) {
    sequence s = {.item = i, .first_option = o, .option_count = 1};
    char *text = option_text(e, item, o);
    if (!text) return KEDGE_ERR_MEMORY;
    kedge_status status = kedge_prompts_encode(&e->prompts, item, text, false, &s.prompt);
    kedge_free(text);
    KEDGE_TRY(status);
    if (o == item->correct) w->option_tokens[i] = s.prompt.count - s.prompt.prompt_count;
    sequence *last = w->job_count > first_job ? &w->sequences[w->job_count - 1] : NULL;
    if (last && joins(last, &s.prompt)) {
      last->endings[last->option_count++] = s.prompt.ids[s.prompt.count - 1];
      kedge_free(s.prompt.ids);
      continue;
    }
    if (s.prompt.count > s.prompt.prompt_count) s.endings[0] = s.prompt.ids[s.prompt.count - 1];
    status = add_sequence(w, &s);
    if (status != KEDGE_OK) {
      kedge_free(s.prompt.ids);
      return status;
    }
  }
  return KEDGE_OK;
}

static bool scores_options(const evaluation *e, const kedge_item *item) {
  return item->kind == KEDGE_ANSWER_LETTER && e->options->choice != KEDGE_CHOICE_LETTER;
}

static bool generates(const evaluation *e, const kedge_item *item) {
  return item->kind != KEDGE_ANSWER_LETTER || e->options->choice != KEDGE_CHOICE_LIKELIHOOD;
}

static kedge_status add_items(evaluation *e, window *w) {
  for (uint32_t i = 0; i < w->count; i++) {
    if (scores_options(e, &w->items[i])) KEDGE_TRY(add_options(e, w, i));
    for (uint32_t r = 0; r < e->repeats && generates(e, &w->items[i]); r++) {
      sequence s = {.item = i, .repeat = r, .generates = true};
      KEDGE_TRY(
          kedge_prompts_encode(&e->prompts, &w->items[i], r ? NULL : w->items[i].reference, true, &s.prompt));
      const kedge_status status = add_sequence(w, &s);
      if (status != KEDGE_OK) {
        kedge_free(s.prompt.ids);
        return status;
      }
    }
  }
  return KEDGE_OK;
}

/* A stream of draws for each sample: by its seed, its file's place among the suites and its number. */
static uint64_t sample_seed(const evaluation *e, const window *w, const sequence *s) {
  const uint64_t item = w->first_row / e->repeats + s->item;
  return kedge_random_start(e->options->sampling.seed + s->repeat, item).key;
}

/* Options of an item are judged one after another on its prompt, which runs once; samples of an item run side
 * by side. */
static bool goes_on(const window *w, uint32_t j) {
  const sequence *s = &w->sequences[j], *before = j ? s - 1 : NULL;
  const uint32_t count = s->prompt.prompt_count;
  return before && before->item == s->item && !before->generates && before->prompt.prompt_count == count &&
         !memcmp(before->prompt.ids, s->prompt.ids, count * sizeof *s->prompt.ids);
}

static void make_jobs(const evaluation *e, window *w) {
  for (uint32_t j = 0; j < w->job_count; j++) {
    const sequence *s = &w->sequences[j];
    const kedge_prompt *p = &s->prompt;
    w->jobs[j] = (kedge_decoding_job){.prompt = p->ids,
                                      .prompt_count = p->prompt_count,
                                      .same_prompt = goes_on(w, j),
                                      .reference = p->ids + p->prompt_count,
                                      .reference_count = p->count - p->prompt_count};
    if (s->generates) {
      w->jobs[j].max_new = e->max_new;
      w->jobs[j].from_prompt = e->options->decode_all;
      w->jobs[j].sampling = e->options->sampling;
      w->jobs[j].sampling.seed = sample_seed(e, w, s);
    } else {
      w->jobs[j].endings = s->endings;
      w->jobs[j].ending_count = p->count > p->prompt_count ? s->option_count : 0;
    }
  }
}

bool kedge__thinks(const evaluation *e) {
  return e->prompts.chat && kedge_chat_template_thinks(e->prompts.chat);
}

bool kedge__window_go_on(evaluation *e, uint32_t job, const int32_t *ids, uint32_t count) {
  const sequence *s = &e->window->sequences[job];
  const kedge_item *item = &e->window->items[s->item];
  char *text;
  size_t length;
  if (item->kind != KEDGE_ANSWER_EXACT || e->options->decode_all) return true;
  e->asked = kedge_tokenizer_decode(e->tokenizer, ids, count, true, &text, &length);
  if (e->asked != KEDGE_OK) return false;
  const kedge_extract said =
      kedge__thinks(e) ? kedge_after_thought(text, length) : (kedge_extract){text, length};
  const bool thinking = kedge__thinks(e) && said.start == text && !e->prompts.no_thinking;
  const bool may = thinking || kedge_may_be_right(item, said.start, said.length);
  kedge_free(text);
  return may;
}

/* ---- Rows
 * -------------------------------------------------------------------------------------------------------- */

static kedge_status put(json_t *row, const char *key, json_t *value) {
  return json_object_set_new(row, key, value) ? KEDGE_ERR_MEMORY : KEDGE_OK;
}

/* Any bytes as a string: NUL and what is no UTF-8 become U+FFFD. */
static json_t *any_string(const char *text, size_t length) {
  kedge__bytes clean = {0};
  kedge_status status = kedge__bytes_append(&clean, "", 0);
  for (size_t at = 0; status == KEDGE_OK && at < length;) {
    const size_t good = kedge__utf8_valid(text + at, length - at), valid = strnlen(text + at, good);
    status = kedge__bytes_append(&clean, text + at, valid);
    at += valid;
    if (status == KEDGE_OK && at < length) status = kedge__bytes_text(&clean, "\xef\xbf\xbd");
    at += at < length;
  }
  json_t *string = status == KEDGE_OK ? json_stringn(clean.data ? clean.data : "", clean.length) : NULL;
  kedge__bytes_free(&clean);
  return string;
}

static json_t *any_text(const char *text) {
  return text ? any_string(text, strlen(text)) : json_null();
}

static kedge_status put_head(const evaluation *e, const window *w, uint32_t i, uint32_t repeat,
                             const kedge_prompt *prompt, json_t *row) {
  const kedge_item *item = &w->items[i];
  char text[KEDGE_HASH_TEXT];
  kedge_hash *hash = kedge_hash_new();
  if (!hash) return KEDGE_ERR_MEMORY;
  kedge_hash_add(hash, prompt->ids, prompt->prompt_count * sizeof *prompt->ids);
  kedge_hash_text(hash, text);
  kedge_hash_free(hash);
  const uint64_t place = w->first_row + (uint64_t)i * e->repeats + repeat;
  KEDGE_TRY(put(row, "row", json_integer((json_int_t)place)));
  KEDGE_TRY(put(row, "id", any_text(item->id)));
  KEDGE_TRY(put(row, "domain", any_text(item->domain)));
  KEDGE_TRY(put(row, "split", any_text(item->split)));
  KEDGE_TRY(put(row, "repeat", json_integer(repeat)));
  KEDGE_TRY(put(row, "prompt_hash", json_string(text)));
  KEDGE_TRY(put(row, "prompt_tokens", json_integer(prompt->prompt_count)));
  if (prompt->cut) KEDGE_TRY(put(row, "prompt_cut", json_true()));
  return put(row, "reference", any_text(item->answer));
}

/* The most likely option, the first of equal ones; per byte of its text if `bytes`. */
static uint32_t best_option(const evaluation *e, const kedge_item *item, const double *logp, bool bytes) {
  uint32_t best = 0;
  double most = 0;
  for (uint32_t o = 0; o < item->choice_count; o++) {
    const size_t length = e->options->option_texts || item->middle ? strlen(item->choices[o]) : 1;
    const double value = bytes ? logp[o] / (double)(length ? length : 1) : logp[o];
    if (o && !(value > most)) continue;
    best = o;
    most = value;
  }
  return best;
}

static kedge_status put_options(const evaluation *e, const window *w, uint32_t i, json_t *row) {
  const kedge_item *item = &w->items[i];
  const uint32_t best = best_option(e, item, w->options[i], false),
                 fair = best_option(e, item, w->options[i], true);
  json_t *list = json_array();
  KEDGE_TRY(put(row, "options", list));
  for (uint32_t o = 0; o < item->choice_count; o++)
    if (json_array_append_new(list, json_real(w->options[i][o]))) return KEDGE_ERR_MEMORY;
  const char likelihood[2] = {(char)('A' + (int)best), 0}, normalised[2] = {(char)('A' + (int)fair), 0};
  KEDGE_TRY(put(row, "likelihood", json_string(likelihood)));
  KEDGE_TRY(put(row, "normalised", json_string(normalised)));
  KEDGE_TRY(put(row, "likelihood_right", json_boolean(best == item->correct)));
  KEDGE_TRY(put(row, "normalised_right", json_boolean(fair == item->correct)));
  KEDGE_TRY(put(row, "nll", json_real(-w->options[i][item->correct])));
  return put(row, "nll_tokens", json_integer(w->option_tokens[i]));
}

static kedge_eval_path path_of(const evaluation *e, const kedge_decoding_result *r) {
  if (e->options->decode_all || e->options->sampling.temperature > 0) return KEDGE_PATH_DECODED;
  /* The token that is not the reference's is told by its pass, too. */
  if (r->count <= r->told + 1) return KEDGE_PATH_TOLD;
  return r->told ? KEDGE_PATH_CONTINUED : KEDGE_PATH_DECODED;
}

static kedge_status put_output(const evaluation *e, const window *w, const sequence *s,
                               const kedge_decoding_result *r, json_t *row) {
  const kedge_item *item = &w->items[s->item];
  const bool scored = scores_options(e, item);
  kedge_verdict verdict = {0};
  char *text = NULL;
  size_t length = 0;
  KEDGE_TRY(kedge_tokenizer_decode(e->tokenizer, r->ids, r->count, true, &text, &length));
  const kedge_extract said =
      kedge__thinks(e) ? kedge_after_thought(text, length) : (kedge_extract){text, length};
  kedge_status status = kedge_judge(item, said.start, said.length, e->options->sandbox, &verdict);
  if (status == KEDGE_OK) status = put(row, "output", any_string(text, length));
  if (status == KEDGE_OK) status = put(row, "extracted", any_text(verdict.extracted));
  if (status == KEDGE_OK && item->kind == KEDGE_ANSWER_LETTER)
    status = put(row, "letter_right", json_boolean(verdict.right));
  if (status == KEDGE_OK && !scored) status = put(row, "right", json_boolean(verdict.right));
  if (status == KEDGE_OK) status = put(row, "path", json_string(kedge_eval_path_name(path_of(e, r))));
  if (status == KEDGE_OK) status = put(row, "tokens", json_integer(r->count));
  if (status == KEDGE_OK && r->cut) status = put(row, "output_cut", json_true());
  if (status == KEDGE_OK && !r->stopped && !r->cut) status = put(row, "unstopped", json_true());
  kedge_verdict_destroy(&verdict);
  kedge_free(text);
  KEDGE_TRY(status);
  const uint32_t reference = s->prompt.count - s->prompt.prompt_count;
  if (scored || !reference) return KEDGE_OK;
  KEDGE_TRY(put(row, "nll", json_real(r->nll)));
  return put(row, "nll_tokens", json_integer(reference));
}

/* The row of an item's sample. `s` is its sequence that generates, NULL where options alone are scored. */
static kedge_status add_row(evaluation *e, window *w, uint32_t i, uint32_t repeat, const sequence *s,
                            const kedge_prompt *prompt) {
  const kedge_item *item = &w->items[i];
  const uint64_t place = w->first_row + (uint64_t)i * e->repeats + repeat;
  if (place < e->record.rows) return KEDGE_OK; /* the file has it */
  json_t *row = json_object();
  kedge_status status = row ? put_head(e, w, i, repeat, prompt, row) : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK && s) status = put_output(e, w, s, &w->results[s - w->sequences], row);
  if (status == KEDGE_OK && scores_options(e, item)) {
    status = put_options(e, w, i, row);
    if (status == KEDGE_OK)
      status = put(row, "right", json_boolean(json_is_true(json_object_get(row, "likelihood_right"))));
    if (status == KEDGE_OK && !s)
      status = put(row, "path", json_string(kedge_eval_path_name(KEDGE_PATH_LIKELIHOOD)));
  }
  if (status == KEDGE_OK && kedge_comm_size(e->comm, KEDGE_RANKS_ALL) > 1) {
    status = kedge__rows_add(&e->rows, row);
  } else {
    if (status == KEDGE_OK) status = kedge_eval_count(e->summary, row);
    if (status == KEDGE_OK) status = kedge_eval_record_add(&e->record, row);
  }
  json_decref(row);
  return status;
}

/* Rows in the order of items and repeats; an item's sequences follow each other. */
static kedge_status add_rows(evaluation *e, window *w) {
  for (uint32_t j = 0; j < w->job_count; j++) {
    const sequence *s = &w->sequences[j];
    if (s->generates) {
      KEDGE_TRY(add_row(e, w, s->item, s->repeat, s, &s->prompt));
      continue;
    }
    for (uint32_t o = 0; o < s->option_count; o++)
      w->options[s->item][s->first_option + o] = w->jobs[j].ending_count ? w->results[j].endings[o] : 0;
    const bool last = j + 1 == w->job_count || w->sequences[j + 1].item != s->item;
    for (uint32_t r = 0; r < e->repeats && last; r++) KEDGE_TRY(add_row(e, w, s->item, r, NULL, &s->prompt));
  }
  return KEDGE_OK;
}

/* The priors of the items, and which sequence is of which. */
static kedge_status steer(evaluation *e, window *w) {
  if (!e->steering || !kedge__steering_reads_priors(e->steering)) return KEDGE_OK;
  for (uint32_t i = 0; i < w->count; i++)
    KEDGE_TRY(kedge_prompts_encode(&e->prompts, &w->items[i], w->items[i].reference, true, &w->questions[i]));
  w->job_items = kedge_alloc(w->job_count, sizeof *w->job_items);
  w->job_prompts = kedge_alloc(w->job_count, sizeof *w->job_prompts);
  if (!w->job_items || !w->job_prompts) return KEDGE_ERR_MEMORY;
  for (uint32_t j = 0; j < w->job_count; j++) {
    w->job_items[j] = w->sequences[j].item;
    w->job_prompts[j] = w->sequences[j].prompt.prompt_count;
  }
  kedge__steering_jobs(e->steering, w->job_items, w->job_prompts);
  return kedge__steering_prepare(e->steering, w->questions, w->count);
}

kedge_status kedge__window_run(evaluation *e, window *w) {
  KEDGE_TRY(add_items(e, w));
  KEDGE_TRY(steer(e, w));
  make_jobs(e, w);
  const kedge_status status = kedge_decoding_run(e->decoding, w->jobs, w->job_count, w->results);
  KEDGE_TRY(e->asked);
  KEDGE_TRY(status);
  return add_rows(e, w);
}
