/* SPDX-License-Identifier: Apache-2.0
 *
 * What the stages of a tokenizer do to pieces of text. Normalisers, pre-tokenizers and decoders are all of
 * this form; which of them a file names is read in tokenizer_pipeline.c. Sibling header:
 * tokenizer_internal.h.
 */
#include "models/text/tokenizer_internal.h"

#include <string.h>

/* Spans are 32-bit; a stage may lengthen text, so that the limit is checked where spans are made. */
kedge_status kedge__pieces_push(kedge__pieces *pieces, size_t start, size_t length) {
  if (start + length > UINT32_MAX / 4)
    return kedge_fail(KEDGE_ERR_ARGUMENT, "a text of more than %u bytes is too long for the tokenizer",
                      UINT32_MAX / 4);
  if (pieces->count == pieces->capacity) {
    size_t capacity = pieces->capacity ? pieces->capacity * 2 : 256;
    kedge__span *grown = kedge_realloc(pieces->spans, capacity, sizeof *grown);
    if (!grown) return KEDGE_ERR_MEMORY;
    pieces->spans = grown;
    pieces->capacity = capacity;
  }
  pieces->spans[pieces->count++] = (kedge__span){(uint32_t)start, (uint32_t)length};
  return KEDGE_OK;
}

static void pieces_free(kedge__pieces *pieces) {
  kedge__bytes_free(&pieces->text);
  kedge_free(pieces->spans);
}

void kedge__work_free(kedge__work *work) {
  pieces_free(&work->now);
  pieces_free(&work->next);
  kedge_free(work->raw.data);
  kedge_free(work->normalized.data);
  kedge__bytes_free(&work->text);
  kedge__ids_free(&work->ids);
  kedge__regex_scratch_free(&work->regex);
  kedge__bpe_scratch_free(&work->bpe);
}

kedge_status kedge__stages_push(kedge__stages *stages, kedge__stage stage) {
  if (stages->count == stages->capacity) {
    size_t capacity = stages->capacity ? stages->capacity * 2 : 4;
    kedge__stage *grown = kedge_realloc(stages->items, capacity, sizeof *grown);
    if (!grown) {
      kedge__regex_free(stage.regex);
      kedge_free(stage.content);
      return KEDGE_ERR_MEMORY;
    }
    stages->items = grown;
    stages->capacity = capacity;
  }
  stages->items[stages->count++] = stage;
  return KEDGE_OK;
}

kedge_status kedge__stages_run(const kedge__stages *stages, kedge__work *work) {
  for (size_t i = 0; i < stages->count; i++) KEDGE_TRY(stages->items[i].run(&stages->items[i], work));
  return KEDGE_OK;
}

void kedge__stages_free(kedge__stages *stages) {
  for (size_t i = 0; i < stages->count; i++) {
    kedge__regex_free(stages->items[i].regex);
    kedge_free(stages->items[i].content);
  }
  kedge_free(stages->items);
  *stages = (kedge__stages){0};
}

/* ---- Splitting
 * -------------------------------------------------------------------------------------------------------- */

/* Collects the parts of one piece: a stretch joins the part before it or starts one, by the behaviour. */
typedef struct splitter {
  const kedge__stage *stage;
  kedge__pieces *out;
  size_t base;   /* of the piece in the text */
  size_t first;  /* number of parts before this piece */
  bool previous; /* the stretch before was a match */
} splitter;

/* One stretch of the piece: a match of the pattern or the gap between two. */
static kedge_status add_stretch(splitter *s, size_t start, size_t end, bool match) {
  match ^= s->stage->invert;
  bool previous = s->previous, has_part = s->out->count > s->first, joins = false;
  s->previous = match;
  switch (s->stage->behavior) {
  case KEDGE__REMOVED:
    if (match) return KEDGE_OK;
    break;
  case KEDGE__ISOLATED:
    break;
  case KEDGE__CONTIGUOUS:
    joins = match == previous;
    break;
  case KEDGE__MERGED_WITH_PREVIOUS:
    joins = match && !previous;
    break;
  case KEDGE__MERGED_WITH_NEXT:
    joins = !match && previous;
    break; /* Of a run of matches, only the last joins. */
  }
  if (!joins || !has_part) return kedge__pieces_push(s->out, s->base + start, end - start);
  s->out->spans[s->out->count - 1].length += (uint32_t)(end - start);
  return KEDGE_OK;
}

/* Empty parts take part in joining, as in the reference library, and are dropped only here. */
static void drop_empty(splitter *s) {
  size_t kept = s->first;
  for (size_t i = s->first; i < s->out->count; i++)
    if (s->out->spans[i].length) s->out->spans[kept++] = s->out->spans[i];
  s->out->count = kept;
}

static kedge_status split_piece(const kedge__stage *stage, kedge__work *work, kedge__span span) {
  splitter s = {.stage = stage, .out = &work->next, .base = span.start, .first = work->next.count};
  const char *text = work->now.text.data + span.start;
  size_t from = 0, done = 0, last_match = SIZE_MAX;
  while (from <= span.length) {
    bool found;
    size_t start, end;
    KEDGE_TRY(kedge__regex_find(stage->regex, &work->regex, text, span.length, from, &found, &start, &end));
    if (!found) break;
    if (start == end && end == last_match) {
      /* An empty match right after a match is not one; look on from the next character. */
      if (from >= span.length) break;
      uint32_t code;
      from += kedge__utf8_decode(text + from, &code);
      continue;
    }
    from = last_match = end;
    if (done != start) KEDGE_TRY(add_stretch(&s, done, start, false));
    KEDGE_TRY(add_stretch(&s, start, end, true));
    done = end;
  }
  if (done != span.length) KEDGE_TRY(add_stretch(&s, done, span.length, false));
  drop_empty(&s);
  return KEDGE_OK;
}

static void swap_spans(kedge__work *work) {
  kedge__span *spans = work->now.spans;
  size_t capacity = work->now.capacity;
  work->now.spans = work->next.spans;
  work->now.count = work->next.count;
  work->now.capacity = work->next.capacity;
  work->next.spans = spans;
  work->next.capacity = capacity;
}

static void swap_all(kedge__work *work) {
  kedge__bytes text = work->now.text;
  swap_spans(work);
  work->now.text = work->next.text;
  work->next.text = text;
}

kedge_status kedge__stage_split(const kedge__stage *stage, kedge__work *work) {
  work->next.count = 0;
  for (size_t i = 0; i < work->now.count; i++) KEDGE_TRY(split_piece(stage, work, work->now.spans[i]));
  /* Where the text's beginning was removed, no piece begins it any more. */
  if (work->now.count && work->next.count && work->next.spans[0].start != work->now.spans[0].start)
    work->at_start = false;
  swap_spans(work);
  return KEDGE_OK;
}

/* ---- Rewriting
 * -------------------------------------------------------------------------------------------------------- */

/* Appends what becomes of one piece, the index-th. */
typedef kedge_status rewrite(const kedge__stage *stage, kedge__work *work, const char *text, size_t length,
                             size_t index, kedge__bytes *out);

static kedge_status rewrite_all(const kedge__stage *stage, kedge__work *work, rewrite *piece) {
  kedge__pieces *now = &work->now, *next = &work->next;
  next->count = 0;
  next->text.length = 0;
  for (size_t i = 0; i < now->count; i++) {
    size_t start = next->text.length;
    KEDGE_TRY(piece(stage, work, now->text.data + now->spans[i].start, now->spans[i].length, i, &next->text));
    KEDGE_TRY(kedge__pieces_push(next, start, next->text.length - start));
  }
  swap_all(work);
  return KEDGE_OK;
}

static kedge_status spell(const kedge__stage *stage, kedge__work *work, const char *text, size_t length,
                          size_t index, kedge__bytes *out) {
  (void)stage, (void)work, (void)index;
  return kedge__spell_bytes(out, text, length);
}
kedge_status kedge__stage_spell(const kedge__stage *stage, kedge__work *work) {
  return rewrite_all(stage, work, spell);
}

static kedge_status prefix(const kedge__stage *stage, kedge__work *work, const char *text, size_t length,
                           size_t index, kedge__bytes *out) {
  bool wanted = stage->prepend == KEDGE__ALWAYS ? index || !work->continues : !index && work->at_start;
  bool there = length >= stage->content_length && !memcmp(text, stage->content, stage->content_length);
  if (length && wanted && !there) KEDGE_TRY(kedge__bytes_append(out, stage->content, stage->content_length));
  return kedge__bytes_append(out, text, length);
}
kedge_status kedge__stage_prefix(const kedge__stage *stage, kedge__work *work) {
  return rewrite_all(stage, work, prefix);
}

static kedge_status normalize(const kedge__stage *stage, kedge__work *work, const char *text, size_t length,
                              size_t index, kedge__bytes *out) {
  (void)work, (void)index;
  return kedge__normalize(stage->form, text, length, out);
}
kedge_status kedge__stage_normalize(const kedge__stage *stage, kedge__work *work) {
  return rewrite_all(stage, work, normalize);
}

static kedge_status lowercase(const kedge__stage *stage, kedge__work *work, const char *text, size_t length,
                              size_t index, kedge__bytes *out) {
  (void)stage, (void)work, (void)index;
  return kedge__lowercase(text, length, out);
}
kedge_status kedge__stage_lowercase(const kedge__stage *stage, kedge__work *work) {
  return rewrite_all(stage, work, lowercase);
}

static kedge_status put_before(const kedge__stage *stage, kedge__work *work, const char *text, size_t length,
                               size_t index, kedge__bytes *out) {
  if (length && (index || !work->continues))
    KEDGE_TRY(kedge__bytes_append(out, stage->content, stage->content_length));
  return kedge__bytes_append(out, text, length);
}
kedge_status kedge__stage_put_before(const kedge__stage *stage, kedge__work *work) {
  return rewrite_all(stage, work, put_before);
}

static kedge_status replace(const kedge__stage *stage, kedge__work *work, const char *text, size_t length,
                            size_t index, kedge__bytes *out) {
  (void)index;
  size_t from = 0, done = 0, last_match = SIZE_MAX;
  while (from <= length && length) {
    bool found;
    size_t start, end;
    KEDGE_TRY(kedge__regex_find(stage->regex, &work->regex, text, length, from, &found, &start, &end));
    if (!found) break;
    if (start == end && end == last_match) {
      if (from >= length) break;
      uint32_t code;
      from += kedge__utf8_decode(text + from, &code);
      continue;
    }
    from = last_match = end;
    KEDGE_TRY(kedge__bytes_append(out, text + done, start - done));
    KEDGE_TRY(kedge__bytes_append(out, stage->content, stage->content_length));
    done = end;
  }
  return kedge__bytes_append(out, text + done, length - done);
}
kedge_status kedge__stage_replace(const kedge__stage *stage, kedge__work *work) {
  return rewrite_all(stage, work, replace);
}

/* ---- Decoding: the pieces are the spellings of tokens, and become bytes
 * --------------------------------------------------- */

static kedge_status unspell(const kedge__stage *stage, kedge__work *work, const char *text, size_t length,
                            size_t index, kedge__bytes *out) {
  (void)stage, (void)index;
  size_t before = out->length;
  if (work->regex.check && kedge__utf8_valid(text, length) != length)
    return kedge__bytes_append(out, text, length);
  for (size_t at = 0; at < length;) {
    uint32_t code;
    at += kedge__utf8_decode(text + at, &code);
    int byte = kedge__char_byte(code);
    if (byte < 0) {
      /* A token with a character outside the alphabet (an added one) stands for itself. */
      out->length = before;
      return kedge__bytes_append(out, text, length);
    }
    char value = (char)byte;
    KEDGE_TRY(kedge__bytes_append(out, &value, 1));
  }
  return KEDGE_OK;
}
kedge_status kedge__stage_unspell(const kedge__stage *stage, kedge__work *work) {
  KEDGE_TRY(rewrite_all(stage, work, unspell));
  work->regex.check = true;
  return kedge__stage_fuse(stage, work);
}

static int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static kedge_status byte_fallback(const kedge__stage *stage, kedge__work *work, const char *text,
                                  size_t length, size_t index, kedge__bytes *out) {
  (void)stage, (void)work, (void)index;
  if (length == 6 && !memcmp(text, "<0x", 3) && text[5] == '>' && hex_digit(text[3]) >= 0 &&
      hex_digit(text[4]) >= 0) {
    char byte = (char)(hex_digit(text[3]) * 16 + hex_digit(text[4]));
    return kedge__bytes_append(out, &byte, 1);
  }
  return kedge__bytes_append(out, text, length);
}
kedge_status kedge__stage_bytes(const kedge__stage *stage, kedge__work *work) {
  work->regex.check = true; /* A lone byte is no valid UTF-8. */
  return rewrite_all(stage, work, byte_fallback);
}

kedge_status kedge__stage_fuse(const kedge__stage *stage, kedge__work *work) {
  (void)stage;
  /* Pieces of a decoder lie side by side in the text. */
  work->now.count = 0;
  return kedge__pieces_push(&work->now, 0, work->now.text.length);
}

static kedge_status strip(const kedge__stage *stage, kedge__work *work, const char *text, size_t length,
                          size_t index, kedge__bytes *out) {
  (void)work, (void)index;
  size_t size = stage->content_length, start = 0;
  for (size_t i = 0;
       i < stage->start && length - start >= size && !memcmp(text + start, stage->content, size); i++)
    start += size;
  for (size_t i = 0;
       i < stage->stop && length - start >= size && !memcmp(text + length - size, stage->content, size); i++)
    length -= size;
  return kedge__bytes_append(out, text + start, length - start);
}
kedge_status kedge__stage_strip(const kedge__stage *stage, kedge__work *work) {
  return rewrite_all(stage, work, strip);
}

/* The replacement character becomes a space; in the first token it goes, where encoding may have put it
 * there. */
static kedge_status unmetaspace(const kedge__stage *stage, kedge__work *work, const char *text, size_t length,
                                size_t index, kedge__bytes *out) {
  (void)work;
  size_t size = stage->content_length;
  for (size_t at = 0; at < length;) {
    if (length - at >= size && !memcmp(text + at, stage->content, size)) {
      if (index || stage->prepend == KEDGE__NEVER) KEDGE_TRY(kedge__bytes_append(out, " ", 1));
      at += size;
    } else {
      KEDGE_TRY(kedge__bytes_append(out, text + at++, 1));
    }
  }
  return KEDGE_OK;
}
kedge_status kedge__stage_unmetaspace(const kedge__stage *stage, kedge__work *work) {
  return rewrite_all(stage, work, unmetaspace);
}
