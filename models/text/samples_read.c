/* SPDX-License-Identifier: Apache-2.0
 *
 * From data files to a dataset: records are rendered (samples_format.c, template.c), their parts encoded one
 * by one and joined (here), and the ids collected (samples.c). Question and answer are known from the part
 * that a token was encoded from, never by searching text.
 */
#include <inttypes.h>
#include <string.h>

#include "models/text/samples_internal.h"

enum { WARNINGS = 10, PROGRESS_SAMPLES = 1024 };

/* Ids of the sample at hand; the memory is used again for the next one. */
typedef struct tokens {
  int32_t *ids;
  int8_t *spans;
  uint8_t *trained;
  size_t count, capacity;
} tokens;

static void tokens_destroy(tokens *t) {
  kedge_free(t->ids);
  kedge_free(t->spans);
  kedge_free(t->trained);
}

static kedge_status tokens_reserve(tokens *t, size_t more) {
  if (more <= t->capacity - t->count) return KEDGE_OK;
  size_t capacity = (t->count + more) * 2 + 256;
  int32_t *ids = kedge_realloc(t->ids, capacity, sizeof *ids);
  if (ids) t->ids = ids;
  int8_t *spans = ids ? kedge_realloc(t->spans, capacity, sizeof *spans) : NULL;
  if (spans) t->spans = spans;
  uint8_t *trained = spans ? kedge_realloc(t->trained, capacity, sizeof *trained) : NULL;
  if (!trained) return KEDGE_ERR_MEMORY;
  t->trained = trained;
  t->capacity = capacity;
  return KEDGE_OK;
}

static kedge_status tokens_add(tokens *t, const int32_t *ids, size_t count, int8_t span, bool trained) {
  KEDGE_TRY(tokens_reserve(t, count));
  for (size_t i = 0; i < count; i++) {
    t->ids[t->count] = ids[i];
    t->spans[t->count] = span;
    t->trained[t->count++] = trained;
  }
  return KEDGE_OK;
}

/* The BOS id that documents open with, -1 if the tokenizer adds none. */
static int32_t opening_bos(const kedge_tokenizer *tokenizer) {
  return kedge_tokenizer_adds_bos(tokenizer) ? kedge_tokenizer_bos(tokenizer) : -1;
}

/* Encodes the parts of a rendering. BOS stands once, at the very start, and belongs to the first part: one
 * that a template or a text wrote itself is not repeated, one that opens a later part is dropped. */
static kedge_status encode(const kedge_dataset_options *o, const kedge_rendering *rendering, tokens *t) {
  t->count = 0;
  int32_t bos = opening_bos(o->tokenizer), eos = o->eos >= 0 ? o->eos : kedge_tokenizer_eos(o->tokenizer);
  if (bos >= 0 && rendering->part_count) KEDGE_TRY(tokens_add(t, &bos, 1, rendering->parts[0].span, false));
  for (size_t p = 0; p < rendering->part_count; p++) {
    const kedge_text_part *part = &rendering->parts[p];
    bool trained = part->trained || o->loss_on_all, last = p + 1 == rendering->part_count;
    int32_t *ids = NULL;
    size_t count = 0, from = 0;
    /* Ids are to be those of the whole text: some tokenizers put a space before every text. */
    unsigned flags = KEDGE_ENCODE_SPECIAL;
    if (part->start) flags |= KEDGE_ENCODE_LATER;
    if (part->start && t->count && !kedge_tokenizer_is_special(o->tokenizer, t->ids[t->count - 1]))
      flags |= KEDGE_ENCODE_CONTINUE;
    if (part->length)
      KEDGE_TRY(kedge_tokenizer_encode(o->tokenizer, rendering->text + part->start, part->length, flags, &ids,
                                       &count));
    while (bos >= 0 && bos != eos && from < count && ids[from] == bos) from++;
    if (bos >= 0 && bos == eos && !p && from < count && ids[from] == bos) from++;
    kedge_status status =
        count > from ? tokens_add(t, ids + from, count - from, part->span, trained) : KEDGE_OK;
    bool closed = count > from && ids[count - 1] == eos;
    kedge_free(ids);
    if (status == KEDGE_OK && last && rendering->eos && eos >= 0 && !closed)
      status = tokens_add(t, &eos, 1, part->span, trained);
    KEDGE_TRY(status);
  }
  return KEDGE_OK;
}

kedge_status kedge_dataset_encode(const kedge_dataset_options *options, const kedge_rendering *rendering,
                                  int32_t **ids, size_t *count) {
  *ids = NULL;
  *count = 0;
  tokens t = {0};
  kedge_status status = tokens_reserve(&t, 1);
  if (status == KEDGE_OK) status = encode(options, rendering, &t);
  if (status == KEDGE_OK) {
    *ids = t.ids;
    *count = t.count;
    t.ids = NULL;
  }
  tokens_destroy(&t);
  return status;
}

kedge_status kedge_dataset_encode_prompt(const kedge_dataset_options *options, const char *prompt,
                                         size_t length, int32_t **ids, size_t *count) {
  *ids = NULL;
  *count = 0;
  kedge_rendering rendering = {0};
  kedge_status status = kedge_prompt_template_check(options->prompt_template);
  if (status == KEDGE_OK) status = kedge_prompt_render(&rendering, options->prompt_template, prompt, length);
  if (status == KEDGE_OK) status = kedge_dataset_encode(options, &rendering, ids, count);
  kedge_rendering_destroy(&rendering);
  return status;
}

/* ---- Reading
 * ------------------------------------------------------------------------------------------------------ */

/* One reading of several files. */
typedef struct reading {
  const kedge_dataset_options *options;
  kedge_dataset_builder *builder;
  kedge__render_context render;
  kedge_rendering rendering;
  tokens tokens;
  bool told_open; /* that answers have no end */
} reading;

static kedge_status note(const kedge_dataset_options *o, char *line) {
  if (!line) return KEDGE_ERR_MEMORY;
  if (o->notice) o->notice(o->context, line);
  kedge_free(line);
  return KEDGE_OK;
}

static kedge_status reading_init(reading *r, const kedge_dataset_options *options) {
  *r = (reading){.options = options, .render = {.options = options}};
  KEDGE_TRY(kedge_prompt_template_check(options->prompt_template));
  KEDGE_TRY(kedge_chat_template_check(options->chat_template));
  return kedge_dataset_builder_new(options->max_length, &r->builder);
}

static void reading_destroy(reading *r) {
  tokens_destroy(&r->tokens);
  kedge_rendering_destroy(&r->rendering);
  kedge_free(r->render.turns);
  kedge_dataset_builder_free(r->builder);
}

/* Warns of a sample that was left out; after ten warnings they are only counted. */
static kedge_status warn_excluded(reading *r, const char *name, uint64_t line) {
  const kedge_dataset_stats *stats = &kedge__dataset_builder_view(r->builder)->stats;
  if (stats->excluded > WARNINGS) return KEDGE_OK;
  const char *more = stats->excluded == WARNINGS ? " (further ones are only counted)" : "";
  bool cut = r->options->max_length && r->tokens.count > r->options->max_length;
  char *text =
      cut ? kedge_format("%s:%" PRIu64 ": sample %" PRIu64
                         " is left out: no supervised token in its first %u of %zu tokens%s",
                         name, line, stats->records - 1, r->options->max_length, r->tokens.count, more)
          : kedge_format("%s:%" PRIu64 ": sample %" PRIu64 " is left out: no supervised token%s", name, line,
                         stats->records - 1, more);
  return note(r->options, text);
}

/* Whether all turns of a conversation are targets, not the assistant's alone. */
static bool train_on_turns(const kedge_dataset_options *o, const kedge__format *format) {
  const char *name = kedge__format_name(format);
  return o->messages_on_all && (!strcmp(name, "messages") || !strcmp(name, "sharegpt"));
}

/* Takes one record in. ERR_FORMAT of the record itself is told to the reader, which counts it or fails. */
static kedge_status take_record(reading *r, kedge_jsonl *file, const char *name, json_t *record,
                                uint64_t line, const kedge__format **format) {
  kedge_status status = KEDGE_OK;
  if (!*format) {
    status = kedge__format_detect(record, format);
    if (status == KEDGE_OK && kedge__format_foreign(*format))
      KEDGE_TRY(note(r->options, kedge_format("%s: read as %s (fields %s)", name, kedge__format_name(*format),
                                              kedge__format_fields(*format))));
  }
  if (status == KEDGE_OK) status = kedge__format_render(*format, record, &r->render, &r->rendering);
  for (size_t p = 0; status == KEDGE_OK && train_on_turns(r->options, *format) && p < r->rendering.part_count;
       p++)
    r->rendering.parts[p].trained = true;
  if (status == KEDGE_OK) status = encode(r->options, &r->rendering, &r->tokens);
  if (status != KEDGE_OK) return kedge_jsonl_reject(file, status);
  if (!r->told_open && r->rendering.eos && r->options->eos < 0 &&
      kedge_tokenizer_eos(r->options->tokenizer) < 0) {
    r->told_open = true;
    KEDGE_TRY(note(
        r->options,
        kedge_strdup("the tokenizer names no end-of-text token, so samples have no end that could be "
                     "learned; name eos_token in tokenizer_config.json or eos_token_id in config.json")));
  }
  const tokens *t = &r->tokens;
  bool kept;
  KEDGE_TRY(kedge_dataset_builder_add(r->builder, t->ids, t->spans, t->trained, t->count, line, &kept));
  return kept ? KEDGE_OK : warn_excluded(r, name, line);
}

static kedge_status read_records(reading *r, kedge_jsonl *file, const char *name, const char *format_name) {
  const kedge_dataset_options *o = r->options;
  const kedge__format *format = NULL;
  if (format_name && strcmp(format_name, "auto")) KEDGE_TRY(kedge__format_find(format_name, &format));
  KEDGE_TRY(kedge_dataset_builder_file(r->builder, name));
  uint64_t read = 0;
  for (;;) {
    json_t *record;
    uint64_t line;
    KEDGE_TRY(kedge_jsonl_next(file, &record, &line));
    if (o->progress && (!record || ++read % PROGRESS_SAMPLES == 0) &&
        !o->progress(o->context, name, kedge_jsonl_bytes(file), kedge_jsonl_size(file),
                     kedge__dataset_builder_view(r->builder)->stats.records)) {
      json_decref(record);
      return kedge_fail(KEDGE_ERR_INTERRUPTED, "%s: reading was stopped", name);
    }
    if (!record) break;
    kedge_status status = take_record(r, file, name, record, line, &format);
    json_decref(record);
    KEDGE_TRY(status);
  }
  kedge__dataset_builder_skipped(r->builder, kedge_jsonl_skipped(file));
  return KEDGE_OK;
}

kedge_status kedge_dataset_read(const char *const *paths, const char *const *format_names, size_t count,
                                const kedge_dataset_options *options, kedge_dataset **dataset) {
  *dataset = NULL;
  reading r;
  kedge_status status = reading_init(&r, options);
  for (size_t i = 0; i < count && status == KEDGE_OK; i++) {
    kedge_jsonl *file;
    status = kedge_jsonl_open(paths[i], options->skip_bad_lines, options->notice, options->context, &file);
    if (status != KEDGE_OK) break;
    status = read_records(&r, file, paths[i], format_names ? format_names[i] : NULL);
    kedge_jsonl_close(file);
  }
  if (status == KEDGE_OK) status = kedge_dataset_builder_finish(r.builder, dataset);
  reading_destroy(&r);
  return status;
}

kedge_status kedge_dataset_read_memory(const char *name, const void *bytes, size_t length, const char *format,
                                       const kedge_dataset_options *options, kedge_dataset **dataset) {
  *dataset = NULL;
  reading r;
  kedge_jsonl *file = NULL;
  kedge_status status = reading_init(&r, options);
  if (status == KEDGE_OK)
    status = kedge_jsonl_open_memory(name, bytes, length, options->skip_bad_lines, options->notice,
                                     options->context, &file);
  if (status == KEDGE_OK) status = read_records(&r, file, name, format);
  if (status == KEDGE_OK) status = kedge_dataset_builder_finish(r.builder, dataset);
  kedge_jsonl_close(file);
  reading_destroy(&r);
  return status;
}
