/* SPDX-License-Identifier: Apache-2.0
 *
 * Byte-pair merging of one piece. The adjacent pair of the lowest rank is merged, the leftmost on a tie,
 * until no pair has a merge. Short pieces are scanned again after each merge; long ones keep the candidates
 * in a heap, so that a run of 100,000 equal letters takes n log n steps. Siblings: bpe.h, bpe_table.c.
 */
#include "models/text/bpe.h"

#include <stdio.h>
#include <string.h>

enum { SHORT_PIECE = 24, NO_SYMBOL = -1 };

/* A symbol of the piece: a doubly linked list in an array; a merged-away symbol has id NO_SYMBOL. `merge` is
 * used for short pieces only: the merge with the right neighbour. */
typedef struct kedge__symbol {
  int32_t id;
  uint32_t previous, next; /* indices, UINT32_MAX at the ends */
  const kedge__merge *merge;
} symbol;

/* A merge that may be stale by the time it is popped: position and rank in one key, lowest first. */
typedef struct kedge__candidate {
  uint64_t key; /* rank << 32 | index of the left symbol */
  uint32_t id;
} candidate;

void kedge__bpe_index(kedge__bpe *bpe) {
  char text[8];
  for (uint32_t code = 0; code < KEDGE__ALPHABET_END; code++)
    bpe->first[code] = kedge__vocab_find(&bpe->vocab, text, kedge__utf8_encode(code, text));
  for (unsigned byte = 0; byte < 256; byte++) {
    int length = snprintf(text, sizeof text, "<0x%02X>", byte);
    bpe->byte_ids[byte] = kedge__vocab_find(&bpe->vocab, text, (size_t)length);
  }
}

void kedge__bpe_free(kedge__bpe *bpe) {
  kedge__vocab_free(&bpe->vocab);
  kedge__merges_free(&bpe->merges);
}

kedge_status kedge__ids_push(kedge__ids *ids, int32_t id) {
  if (ids->length == ids->capacity) {
    size_t capacity = ids->capacity ? ids->capacity * 2 : 64;
    int32_t *grown = kedge_realloc(ids->data, capacity, sizeof *grown);
    if (!grown) return KEDGE_ERR_MEMORY;
    ids->data = grown;
    ids->capacity = capacity;
  }
  ids->data[ids->length++] = id;
  return KEDGE_OK;
}

void kedge__ids_free(kedge__ids *ids) {
  kedge_free(ids->data);
  *ids = (kedge__ids){0};
}

void kedge__bpe_scratch_free(kedge__bpe_scratch *scratch) {
  kedge_free(scratch->symbols);
  kedge_free(scratch->heap);
  *scratch = (kedge__bpe_scratch){0};
}

static void *reserve(void *memory, size_t *capacity, size_t wanted, size_t size) {
  if (wanted <= *capacity) return memory;
  size_t grown = wanted + wanted / 2 + 64;
  void *moved = kedge_realloc(memory, grown, size);
  if (moved) *capacity = grown;
  return moved;
}

static void put(kedge__bpe_scratch *scratch, size_t *count, int32_t id) {
  scratch->symbols[(*count)++] = (symbol){.id = id};
}

/* Splits the piece into the tokens of its characters. An unknown character becomes the tokens of its bytes,
 * or the unknown token (a run of them one token, where they are fused), or nothing. */
static kedge_status start_symbols(const kedge__bpe *bpe, kedge__bpe_scratch *scratch, const char *text,
                                  size_t length, size_t *symbols) {
  size_t count = 0;
  bool unknown = false;
  for (size_t at = 0; at < length;) {
    uint32_t code;
    size_t size = kedge__utf8_decode(text + at, &code);
    int32_t id =
        code < KEDGE__ALPHABET_END ? bpe->first[code] : kedge__vocab_find(&bpe->vocab, text + at, size);
    if (id >= 0) {
      if (unknown) put(scratch, &count, bpe->unk);
      unknown = false;
      put(scratch, &count, id);
    } else {
      bool bytes = bpe->byte_fallback;
      for (size_t i = 0; bytes && i < size; i++) bytes = bpe->byte_ids[(uint8_t)text[at + i]] >= 0;
      if (bytes) {
        for (size_t i = 0; i < size; i++) put(scratch, &count, bpe->byte_ids[(uint8_t)text[at + i]]);
      } else if (bpe->unk >= 0) {
        if (unknown && !bpe->fuse_unk) put(scratch, &count, bpe->unk);
        unknown = true;
      } else if (bpe->unk == KEDGE__UNK_LOST) {
        return kedge_fail(
            KEDGE_ERR_FORMAT,
            "the tokenizer has no token for the character U+%04X: its unk_token is not in its vocabulary",
            code);
      }
    }
    at += size;
  }
  if (unknown) put(scratch, &count, bpe->unk);
  *symbols = count;
  return KEDGE_OK;
}

static const kedge__merge *find(const kedge__bpe *bpe, int32_t left, int32_t right, uint32_t rank_end) {
  const kedge__merge *merge = kedge__merges_find(&bpe->merges, (uint32_t)left, (uint32_t)right);
  return merge && merge->rank < rank_end ? merge : NULL;
}

/* Merges a short piece in place; returns the number of symbols left. */
static size_t merge_short(const kedge__bpe *bpe, symbol *s, size_t count, uint32_t rank_end) {
  for (size_t i = 0; i + 1 < count; i++) s[i].merge = find(bpe, s[i].id, s[i + 1].id, rank_end);
  while (count > 1) {
    size_t best = SIZE_MAX;
    uint32_t rank = UINT32_MAX;
    for (size_t i = 0; i + 1 < count; i++)
      if (s[i].merge && (best == SIZE_MAX || s[i].merge->rank < rank)) {
        rank = s[i].merge->rank;
        best = i;
      }
    if (best == SIZE_MAX) break;
    s[best].id = (int32_t)s[best].merge->id;
    memmove(s + best + 1, s + best + 2, (count - best - 2) * sizeof *s);
    count--;
    s[best].merge = best + 1 < count ? find(bpe, s[best].id, s[best + 1].id, rank_end) : NULL;
    if (best) s[best - 1].merge = find(bpe, s[best - 1].id, s[best].id, rank_end);
  }
  return count;
}

static kedge_status push_candidate(kedge__bpe_scratch *scratch, size_t *count, const kedge__merge *merge,
                                   uint32_t left) {
  if (!merge) return KEDGE_OK;
  candidate *heap = reserve(scratch->heap, &scratch->heap_capacity, *count + 1, sizeof *heap);
  if (!heap) return KEDGE_ERR_MEMORY;
  scratch->heap = heap;
  candidate item = {.key = (uint64_t)merge->rank << 32 | left, .id = merge->id};
  size_t at = (*count)++;
  for (; at && heap[(at - 1) / 2].key > item.key; at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
  heap[at] = item;
  return KEDGE_OK;
}

static candidate pop_candidate(candidate *heap, size_t *count) {
  candidate top = heap[0], last = heap[--*count];
  size_t at = 0;
  for (size_t child; (child = 2 * at + 1) < *count; at = child) {
    if (child + 1 < *count && heap[child + 1].key < heap[child].key) child++;
    if (heap[child].key >= last.key) break;
    heap[at] = heap[child];
  }
  heap[at] = last;
  return top;
}

/* Merges a long piece; merged-away symbols stay in the array as NO_SYMBOL. */
static kedge_status merge_long(const kedge__bpe *bpe, kedge__bpe_scratch *scratch, size_t count,
                               uint32_t rank_end) {
  symbol *s = scratch->symbols;
  size_t waiting = 0;
  for (size_t i = 0; i < count; i++) {
    s[i].previous = i ? (uint32_t)i - 1 : UINT32_MAX;
    s[i].next = i + 1 < count ? (uint32_t)i + 1 : UINT32_MAX;
    if (i + 1 < count)
      KEDGE_TRY(push_candidate(scratch, &waiting, find(bpe, s[i].id, s[i + 1].id, rank_end), (uint32_t)i));
  }
  while (waiting) {
    candidate top = pop_candidate(scratch->heap, &waiting);
    uint32_t left = (uint32_t)top.key, right = s[left].next;
    if (s[left].id == NO_SYMBOL || right == UINT32_MAX) continue;
    const kedge__merge *merge = find(bpe, s[left].id, s[right].id, rank_end);
    if (!merge || merge->id != top.id) continue; /* The neighbours have changed since it was pushed. */
    s[left].id = (int32_t)merge->id;
    s[left].next = s[right].next;
    s[right].id = NO_SYMBOL;
    if (s[left].next != UINT32_MAX) {
      s[s[left].next].previous = left;
      KEDGE_TRY(push_candidate(scratch, &waiting, find(bpe, s[left].id, s[s[left].next].id, rank_end), left));
    }
    uint32_t before = s[left].previous;
    if (before != UINT32_MAX)
      KEDGE_TRY(push_candidate(scratch, &waiting, find(bpe, s[before].id, s[left].id, rank_end), before));
  }
  return KEDGE_OK;
}

kedge_status kedge__bpe_encode(const kedge__bpe *bpe, kedge__bpe_scratch *scratch, const char *text,
                               size_t length, uint32_t rank_end, kedge__ids *ids) {
  if (bpe->whole_first && rank_end == UINT32_MAX) {
    int32_t id = kedge__vocab_find(&bpe->vocab, text, length);
    if (id >= 0) return kedge__ids_push(ids, id);
  }
  symbol *symbols = reserve(scratch->symbols, &scratch->symbol_capacity, length, sizeof *symbols);
  if (!symbols) return KEDGE_ERR_MEMORY;
  scratch->symbols = symbols;
  size_t count = 0;
  KEDGE_TRY(start_symbols(bpe, scratch, text, length, &count));
  if (count <= SHORT_PIECE)
    count = merge_short(bpe, symbols, count, rank_end);
  else
    KEDGE_TRY(merge_long(bpe, scratch, count, rank_end));
  for (size_t i = 0; i < count; i++)
    if (symbols[i].id != NO_SYMBOL) KEDGE_TRY(kedge__ids_push(ids, symbols[i].id));
  return KEDGE_OK;
}
