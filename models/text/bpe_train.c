/* SPDX-License-Identifier: Apache-2.0
 *
 * Learning merges. All pieces lie in one array of symbols, chained to their neighbours; every pair of
 * neighbours has its count and the chain of places where it arose, and a heap tells which pair comes next. A
 * merge visits its places alone and takes a symbol away at each, so that all merges together visit no more
 * places than a few times the symbols. Siblings: bpe_train.h, tokenizer_train.c.
 */
#include "models/text/bpe_train.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

/* Two neighbours. */
typedef struct pair {
  uint32_t left, right;
  uint64_t count; /* how often they stand side by side now */
  uint32_t first; /* the newest of their places, NONE */
  bool raised;    /* the present merge has raised the count */
} pair;

/* A symbol where a pair arose; it may have gone since. */
typedef struct place {
  uint32_t symbol, next;
} place;

typedef struct candidate {
  uint64_t count; /* when it was put into the heap; never below that of the pair for all entries of it */
  uint32_t left, right, pair;
} candidate;

typedef struct learner {
  uint32_t symbol_count;
  uint32_t *ids;             /* [symbol_count] NONE: merged into the one before */
  uint32_t *before, *behind; /* [symbol_count] neighbours in the same piece, NONE at its ends */
  uint32_t *piece;           /* [symbol_count] number of the piece */
  const uint64_t *weights;   /* of pieces, borrowed */
  pair *pairs;
  size_t pair_count, pair_capacity;
  uint32_t *slots; /* [slot_count] index into pairs + 1, 0 is free */
  size_t slot_count;
  place *places;
  size_t place_count, place_capacity;
  candidate *heap;
  size_t heap_count, heap_capacity;
  uint32_t *raised; /* pairs whose count the present merge raised */
  size_t raised_count, raised_capacity;
  uint32_t *visit; /* the places of a merge, in order */
  size_t visit_capacity;
} learner;

/* Room for one more entry. */
static kedge_status reserve(void *array, size_t *capacity, size_t count, size_t size) {
  void **memory = array;
  if (count < *capacity) return KEDGE_OK;
  size_t wanted = *capacity * 2 + 256;
  void *grown = kedge_realloc(*memory, wanted, size);
  if (!grown) return KEDGE_ERR_MEMORY;
  *memory = grown;
  *capacity = wanted;
  return KEDGE_OK;
}
#define RESERVE(array, capacity, count) reserve(&(array), &(capacity), (count), sizeof *(array))

/* ---- Heap
 * -------------------------------------------------------------------------------------------------------- */

static bool goes_before(const candidate *a, const candidate *b) {
  if (a->count != b->count) return a->count > b->count;
  return a->left != b->left ? a->left < b->left : a->right < b->right;
}

static kedge_status heap_push(learner *l, uint32_t index) {
  const pair *p = &l->pairs[index];
  KEDGE_TRY(RESERVE(l->heap, l->heap_capacity, l->heap_count));
  const candidate added = {p->count, p->left, p->right, index};
  size_t at = l->heap_count++;
  while (at && goes_before(&added, &l->heap[(at - 1) / 2])) {
    l->heap[at] = l->heap[(at - 1) / 2];
    at = (at - 1) / 2;
  }
  l->heap[at] = added;
  return KEDGE_OK;
}

static candidate heap_pop(learner *l) {
  const candidate top = l->heap[0], moved = l->heap[--l->heap_count];
  size_t at = 0;
  for (;;) {
    size_t child = at * 2 + 1;
    if (child >= l->heap_count) break;
    if (child + 1 < l->heap_count && goes_before(&l->heap[child + 1], &l->heap[child])) child++;
    if (!goes_before(&l->heap[child], &moved)) break;
    l->heap[at] = l->heap[child];
    at = child;
  }
  l->heap[at] = moved;
  return top;
}

/* ---- Pairs
 * ------------------------------------------------------------------------------------------------------- */

static size_t hash_pair(uint32_t left, uint32_t right) {
  uint64_t mixed = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15u;
  return (size_t)(mixed ^ mixed >> 29);
}

static size_t find_slot(const learner *l, uint32_t left, uint32_t right) {
  size_t slot = hash_pair(left, right) & (l->slot_count - 1);
  while (l->slots[slot]) {
    const pair *p = &l->pairs[l->slots[slot] - 1];
    if (p->left == left && p->right == right) break;
    slot = (slot + 1) & (l->slot_count - 1);
  }
  return slot;
}

static kedge_status grow_slots(learner *l) {
  size_t wanted = l->slot_count ? l->slot_count * 2 : 4096;
  uint32_t *slots = kedge_alloc(wanted, sizeof *slots);
  if (!slots) return KEDGE_ERR_MEMORY;
  kedge_free(l->slots);
  l->slots = slots;
  l->slot_count = wanted;
  for (size_t i = 0; i < l->pair_count; i++)
    slots[find_slot(l, l->pairs[i].left, l->pairs[i].right)] = (uint32_t)i + 1;
  return KEDGE_OK;
}

/* One more occurrence of a pair, its left symbol at `symbol`. */
static kedge_status add_pair(learner *l, uint32_t symbol) {
  uint32_t left = l->ids[symbol], right = l->ids[l->behind[symbol]];
  if (l->pair_count * 2 >= l->slot_count) KEDGE_TRY(grow_slots(l));
  size_t slot = find_slot(l, left, right);
  if (!l->slots[slot]) {
    KEDGE_TRY(RESERVE(l->pairs, l->pair_capacity, l->pair_count));
    l->pairs[l->pair_count++] = (pair){left, right, 0, NONE, false};
    l->slots[slot] = (uint32_t)l->pair_count;
  }
  uint32_t index = l->slots[slot] - 1;
  pair *p = &l->pairs[index];
  if (!p->raised) {
    KEDGE_TRY(RESERVE(l->raised, l->raised_capacity, l->raised_count));
    l->raised[l->raised_count++] = index;
    p->raised = true;
  }
  KEDGE_TRY(RESERVE(l->places, l->place_capacity, l->place_count));
  l->places[l->place_count] = (place){symbol, p->first};
  p->first = (uint32_t)l->place_count++;
  p->count += l->weights[l->piece[symbol]];
  return KEDGE_OK;
}

/* One occurrence less of the pair at `symbol`, which is there. */
static void take_pair(learner *l, uint32_t symbol) {
  pair *p = &l->pairs[l->slots[find_slot(l, l->ids[symbol], l->ids[l->behind[symbol]])] - 1];
  p->count -= l->weights[l->piece[symbol]];
}

/* Puts what was raised into the heap. */
static kedge_status settle(learner *l) {
  for (size_t i = 0; i < l->raised_count; i++) {
    l->pairs[l->raised[i]].raised = false;
    if (l->pairs[l->raised[i]].count) KEDGE_TRY(heap_push(l, l->raised[i]));
  }
  l->raised_count = 0;
  return KEDGE_OK;
}

/* ---- Symbols
 * ----------------------------------------------------------------------------------------------------- */

/* The number of every byte in `vocab`. */
static kedge_status number_bytes(const kedge__vocab *vocab, uint32_t numbers[256]) {
  for (int byte = 0; byte < 256; byte++) {
    char spelling[4];
    size_t length = kedge__utf8_encode(kedge__byte_char((uint8_t)byte), spelling);
    int32_t id = kedge__vocab_find(vocab, spelling, length);
    if (id < 0) return kedge_fail(KEDGE_ERR_ARGUMENT, "byte %d is not in the vocabulary", byte);
    numbers[byte] = (uint32_t)id;
  }
  return KEDGE_OK;
}

static kedge_status make_symbols(learner *l, const kedge__piece_counts *text, const kedge__vocab *vocab) {
  uint32_t numbers[256], at = 0;
  KEDGE_TRY(number_bytes(vocab, numbers));
  l->symbol_count = (uint32_t)text->bytes;
  l->weights = text->counts;
  l->ids = kedge_alloc(l->symbol_count, sizeof *l->ids);
  l->before = kedge_alloc(l->symbol_count, sizeof *l->before);
  l->behind = kedge_alloc(l->symbol_count, sizeof *l->behind);
  l->piece = kedge_alloc(l->symbol_count, sizeof *l->piece);
  if (l->symbol_count && (!l->ids || !l->before || !l->behind || !l->piece)) return KEDGE_ERR_MEMORY;
  for (uint32_t w = 0; w < text->pieces.size; w++) {
    size_t length;
    const char *bytes = kedge__vocab_text(&text->pieces, w, &length);
    for (size_t i = 0; i < length; i++, at++) {
      l->ids[at] = numbers[(unsigned char)bytes[i]];
      l->before[at] = i ? at - 1 : NONE;
      l->behind[at] = i + 1 < length ? at + 1 : NONE;
      l->piece[at] = w;
    }
  }
  for (uint32_t i = 0; i < l->symbol_count; i++)
    if (l->behind[i] != NONE) KEDGE_TRY(add_pair(l, i));
  return settle(l);
}

static int compare_symbols(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return x < y ? -1 : x > y;
}

/* Makes one symbol `id` of the two at `symbol`, and one pair each of it and its neighbours. */
static kedge_status join(learner *l, uint32_t symbol, uint32_t id) {
  uint32_t gone = l->behind[symbol], before = l->before[symbol], behind = l->behind[gone];
  take_pair(l, symbol);
  if (before != NONE) take_pair(l, before);
  if (behind != NONE) take_pair(l, gone);
  l->ids[symbol] = id;
  l->ids[gone] = NONE;
  l->behind[symbol] = behind;
  if (behind != NONE) l->before[behind] = symbol;
  if (before != NONE) KEDGE_TRY(add_pair(l, before));
  return behind == NONE ? KEDGE_OK : add_pair(l, symbol);
}

/* Merges a pair wherever it stands, from the left. */
static kedge_status merge_pair(learner *l, uint32_t index, uint32_t id) {
  uint32_t left = l->pairs[index].left, right = l->pairs[index].right;
  size_t count = 0;
  for (uint32_t at = l->pairs[index].first; at != NONE; at = l->places[at].next) {
    KEDGE_TRY(RESERVE(l->visit, l->visit_capacity, count));
    l->visit[count++] = l->places[at].symbol;
  }
  l->pairs[index].first = NONE;
  qsort(l->visit, count, sizeof *l->visit, compare_symbols);
  for (size_t i = 0; i < count; i++) {
    uint32_t symbol = l->visit[i], behind = l->behind[symbol];
    if (l->ids[symbol] == left && behind != NONE && l->ids[behind] == right) KEDGE_TRY(join(l, symbol, id));
  }
  return settle(l);
}

/* ---- Learning
 * ---------------------------------------------------------------------------------------------------- */

/* The pair that comes next; false if there is none. */
static kedge_status next_pair(learner *l, bool *found, uint32_t *index) {
  for (*found = false; !*found && l->heap_count;) {
    const candidate top = heap_pop(l);
    uint64_t count = l->pairs[top.pair].count;
    *found = count == top.count;
    *index = top.pair;
    /* What fell since it was put here goes back at its place; what rose is there another time. */
    if (count && count < top.count) KEDGE_TRY(heap_push(l, top.pair));
  }
  return KEDGE_OK;
}

/* The number of the token that a pair becomes, new or known. */
static kedge_status name_token(kedge__vocab *vocab, const pair *p, kedge__bytes *spelling, uint32_t *id) {
  spelling->length = 0;
  for (int side = 0; side < 2; side++) {
    size_t length;
    const char *text = kedge__vocab_text(vocab, side ? p->right : p->left, &length);
    KEDGE_TRY(kedge__bytes_append(spelling, text, length));
  }
  int32_t known = kedge__vocab_find(vocab, spelling->data, spelling->length);
  *id = known < 0 ? vocab->size : (uint32_t)known;
  return known < 0 ? kedge__vocab_add(vocab, spelling->data, spelling->length, *id) : KEDGE_OK;
}

static kedge_status learn(learner *l, uint32_t size, kedge__vocab *vocab, kedge__merge **merges,
                          size_t *count) {
  kedge__bytes spelling = {0};
  size_t capacity = 0;
  kedge_status status = KEDGE_OK;
  while (vocab->size < size) {
    bool found;
    uint32_t index, id;
    KEDGE_GOTO(next_pair(l, &found, &index), status, end);
    if (!found) break;
    const pair chosen = l->pairs[index];
    KEDGE_GOTO(name_token(vocab, &chosen, &spelling, &id), status, end);
    KEDGE_GOTO(RESERVE(*merges, capacity, *count), status, end);
    (*merges)[*count] = (kedge__merge){chosen.left, chosen.right, (uint32_t)*count, id};
    ++*count;
    KEDGE_GOTO(merge_pair(l, index, id), status, end);
  }
end:
  kedge__bytes_free(&spelling);
  return status;
}

kedge_status kedge__bpe_learn(const kedge__piece_counts *text, uint32_t size, kedge__vocab *vocab,
                              kedge__merge **merges, size_t *count) {
  learner l = {0};
  *merges = NULL;
  *count = 0;
  kedge_status status = make_symbols(&l, text, vocab);
  if (status == KEDGE_OK) status = learn(&l, size, vocab, merges, count);
  void *const arrays[] = {l.ids,   l.before, l.behind, l.piece,  l.pairs,
                          l.slots, l.places, l.heap,   l.raised, l.visit};
  for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) kedge_free(arrays[i]);
  if (status == KEDGE_OK) return status;
  kedge_free(*merges);
  *merges = NULL;
  *count = 0;
  return status;
}
