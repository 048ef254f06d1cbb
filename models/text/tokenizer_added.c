/* SPDX-License-Identifier: Apache-2.0
 *
 * Added tokens: ids beside the model's, and finding them in text. Matching is leftmost-longest over a sorted
 * list whose range is narrowed byte by byte. Sibling header: tokenizer_internal.h.
 */
#include "models/text/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_ADDED = 1 << 20 };

/* The id the reference library gives: the vocabulary's, else the next one after everything so far. */
static int32_t next_id(const kedge_tokenizer *tokenizer, const char *content) {
  int32_t id = kedge__vocab_find(&tokenizer->bpe.vocab, content, strlen(content));
  if (id >= 0) return id;
  int32_t vocabulary = (int32_t)tokenizer->bpe.vocab.count, largest = tokenizer->added.largest;
  return largest >= vocabulary ? largest + 1 : vocabulary;
}

kedge_status kedge__added_push(kedge_tokenizer *tokenizer, const char *content, int32_t wanted,
                               kedge__added_token flags) {
  kedge__added *added = &tokenizer->added;
  int32_t known = kedge__vocab_find(&added->contents, content, strlen(content));
  int32_t id = known >= 0 ? added->tokens[known].id : next_id(tokenizer, content);
  if (!*content) return kedge_fail(KEDGE_ERR_FORMAT, "an added token without content");
  if (wanted >= 0 && wanted != id)
    return kedge_fail(KEDGE_ERR_FORMAT, "added token '%.60s' says it has id %d; by its place it has %d",
                      content, wanted, id);
  size_t length;
  const char *taken = known < 0 ? kedge__vocab_text(&tokenizer->bpe.vocab, (uint32_t)id, &length) : NULL;
  if (taken && strcmp(taken, content))
    return kedge_fail(KEDGE_ERR_FORMAT, "added token '%.60s' would get id %d, which is '%.60s'", content, id,
                      taken);
  flags.id = id;
  if (known >= 0) {
    flags.match = added->tokens[known].match;
    added->tokens[known] = flags;
    return KEDGE_OK;
  }
  if (added->count >= MAX_ADDED) return kedge_fail(KEDGE_ERR_FORMAT, "more than %d added tokens", MAX_ADDED);
  if (added->count == added->capacity) {
    size_t capacity = added->capacity ? added->capacity * 2 : 64;
    kedge__added_token *grown = kedge_realloc(added->tokens, capacity, sizeof *grown);
    if (!grown) return KEDGE_ERR_MEMORY;
    added->tokens = grown;
    added->capacity = capacity;
  }
  KEDGE_TRY(kedge__vocab_add(&added->contents, content, strlen(content), (uint32_t)added->count));
  flags.match = NULL;
  added->tokens[added->count++] = flags;
  if (id > added->largest) added->largest = id;
  return KEDGE_OK;
}

static int compare_match(const void *a, const void *b, void *context) {
  uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
  const kedge__added_token *x = (const kedge__added_token *)context + i,
                           *y = (const kedge__added_token *)context + j;
  size_t shorter = x->match_length < y->match_length ? x->match_length : y->match_length;
  int order = memcmp(x->match, y->match, shorter);
  if (order) return order;
  if (x->match_length != y->match_length) return x->match_length < y->match_length ? -1 : 1;
  if (x->special != y->special) return x->special ? -1 : 1;
  return i < j ? -1 : i > j;
}

static int compare_id(const void *a, const void *b, void *context) {
  const kedge__added_token *tokens = context;
  int32_t x = tokens[*(const uint32_t *)a].id, y = tokens[*(const uint32_t *)b].id;
  return x < y ? -1 : x > y;
}

/* What is looked for: the content, as the normaliser leaves it where the second pass looks for it. */
static kedge_status set_match(const kedge_tokenizer *tokenizer, kedge__work *work,
                              kedge__added_token *token) {
  size_t length = strlen(token->content);
  work->now.text.length = work->now.count = 0;
  KEDGE_TRY(kedge__bytes_append(&work->now.text, token->content, length));
  KEDGE_TRY(kedge__pieces_push(&work->now, 0, length));
  if (token->normalized) KEDGE_TRY(kedge__stages_run(&tokenizer->normalizer, work));
  kedge_free(token->match);
  token->match = kedge_alloc(work->now.text.length + 1, 1);
  if (!token->match) return KEDGE_ERR_MEMORY;
  token->match_length = work->now.text.length;
  memcpy(token->match, work->now.text.data, token->match_length);
  return KEDGE_OK;
}

static kedge_status index_pass(kedge__added *added, int pass) {
  kedge_free(added->by_match[pass]);
  uint32_t *order = added->by_match[pass] = kedge_alloc(added->count, sizeof *order);
  if (!order) return KEDGE_ERR_MEMORY;
  uint32_t count = 0;
  for (size_t i = 0; i < added->count; i++)
    if (added->tokens[i].normalized == (pass == 1) && added->tokens[i].match_length)
      order[count++] = (uint32_t)i;
  qsort_r(order, count, sizeof *order, compare_match, added->tokens);
  added->match_count[pass] = count;
  uint32_t at = 0;
  for (unsigned byte = 0; byte <= 256; byte++) {
    while (at < count && (uint8_t)added->tokens[order[at]].match[0] < byte) at++;
    added->first[pass][byte] = at;
  }
  return KEDGE_OK;
}

kedge_status kedge__added_index(kedge_tokenizer *tokenizer) {
  kedge__added *added = &tokenizer->added;
  kedge__work work = {0};
  kedge_status status = KEDGE_OK;
  for (size_t i = 0; i < added->count; i++) {
    added->tokens[i].content = kedge__vocab_text(&added->contents, (uint32_t)i, NULL);
    KEDGE_GOTO(set_match(tokenizer, &work, &added->tokens[i]), status, end);
  }
  kedge_free(added->by_id);
  added->by_id = kedge_alloc(added->count, sizeof *added->by_id);
  if (!added->by_id) {
    status = KEDGE_ERR_MEMORY;
    goto end;
  }
  for (size_t i = 0; i < added->count; i++) added->by_id[i] = (uint32_t)i;
  qsort_r(added->by_id, added->count, sizeof *added->by_id, compare_id, added->tokens);
  KEDGE_GOTO(index_pass(added, 0), status, end);
  status = index_pass(added, 1);
end:
  kedge__work_free(&work);
  return status;
}

void kedge__added_free(kedge__added *added) {
  for (size_t i = 0; i < added->count; i++) kedge_free(added->tokens[i].match);
  kedge_free(added->tokens);
  kedge_free(added->by_id);
  kedge_free(added->by_match[0]);
  kedge_free(added->by_match[1]);
  kedge__vocab_free(&added->contents);
}

const kedge__added_token *kedge__added_by_id(const kedge__added *added, int32_t id) {
  size_t low = 0, high = added->count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    const kedge__added_token *token = &added->tokens[added->by_id[middle]];
    if (token->id == id) return token;
    if (token->id < id)
      low = middle + 1;
    else
      high = middle;
  }
  return NULL;
}

/* The first of order[low..high) whose byte at `depth` is at least `byte`; all of them are longer than
 * `depth`. */
static uint32_t lower_bound(const kedge__added *added, const uint32_t *order, uint32_t low, uint32_t high,
                            size_t depth, unsigned byte) {
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if ((uint8_t)added->tokens[order[middle]].match[depth] < byte)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* The longest token that `text` begins with, NULL if none. */
static const kedge__added_token *longest(const kedge__added *added, int pass, const char *text,
                                         size_t length) {
  const uint32_t *order = added->by_match[pass];
  uint32_t low = added->first[pass][(uint8_t)text[0]], high = added->first[pass][(uint8_t)text[0] + 1];
  const kedge__added_token *best = NULL;
  for (size_t depth = 1; low < high; depth++) {
    if (added->tokens[order[low]].match_length == depth) best = &added->tokens[order[low]];
    while (low < high && added->tokens[order[low]].match_length == depth) low++;
    if (low == high || depth == length) break;
    unsigned byte = (uint8_t)text[depth];
    low = lower_bound(added, order, low, high, depth, byte);
    high = lower_bound(added, order, low, high, depth, byte + 1);
  }
  return best;
}

static size_t previous_start(const char *text, size_t at) {
  do at--;
  while (at && ((uint8_t)text[at] & 0xC0) == 0x80);
  return at;
}

static bool is_single_word(const char *text, size_t length, size_t start, size_t stop) {
  uint32_t code;
  if (start) {
    kedge__utf8_decode(text + previous_start(text, start), &code);
    if (kedge__is_word(code)) return false;
  }
  if (stop < length) {
    kedge__utf8_decode(text + stop, &code);
    if (kedge__is_word(code)) return false;
  }
  return true;
}

static size_t skip_space_left(const char *text, size_t from, size_t floor) {
  uint32_t code;
  while (from > floor) {
    size_t before = previous_start(text, from);
    kedge__utf8_decode(text + before, &code);
    if (!kedge__is_space(code)) break;
    from = before;
  }
  return from;
}

static size_t skip_space_right(const char *text, size_t length, size_t from) {
  uint32_t code;
  while (from < length) {
    size_t size = kedge__utf8_decode(text + from, &code);
    if (!kedge__is_space(code)) break;
    from += size;
  }
  return from;
}

static kedge_status push_segment(kedge__segments *segments, size_t start, size_t end, int32_t id) {
  if (segments->count == segments->capacity) {
    size_t capacity = segments->capacity ? segments->capacity * 2 : 16;
    kedge__segment *grown = kedge_realloc(segments->data, capacity, sizeof *grown);
    if (!grown) return KEDGE_ERR_MEMORY;
    segments->data = grown;
    segments->capacity = capacity;
  }
  segments->data[segments->count++] = (kedge__segment){start, end - start, id};
  return KEDGE_OK;
}

kedge_status kedge__added_scan(const kedge_tokenizer *tokenizer, int pass, unsigned flags, const char *text,
                               size_t length, kedge__segments *segments) {
  const kedge__added *added = &tokenizer->added;
  bool special = flags & KEDGE_ENCODE_SPECIAL;
  size_t done = 0, at = 0;
  segments->count = 0;
  if (!added->match_count[pass] || (tokenizer->bare && !special)) at = length;
  while (at < length) {
    const kedge__added_token *token = longest(added, pass, text + at, length - at);
    if (!token) {
      at++;
      continue;
    }
    size_t start = at, stop = at + token->match_length;
    at = stop; /* A token that is passed over still uses up its text, as in the reference library. */
    if (token->special && !special) continue;
    if (token->single_word && !is_single_word(text, length, start, stop)) continue;
    if (token->rstrip) stop = skip_space_right(text, length, stop);
    if (token->lstrip) {
      start = start < done ? done : skip_space_left(text, start, done);
      /* The token before took all of this one's text with its white space: nothing is left to stand. */
      if (stop <= start) continue;
    }
    if (done < start) KEDGE_TRY(push_segment(segments, done, start, -1));
    KEDGE_TRY(push_segment(segments, start, stop, token->id));
    done = stop;
  }
  return done < length ? push_segment(segments, done, length, -1) : KEDGE_OK;
}
