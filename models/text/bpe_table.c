/* SPDX-License-Identifier: Apache-2.0
 *
 * The tables of byte-pair encoding: strings by number, merges by pair. Siblings: bpe.h, bpe.c.
 */
#include "models/text/bpe.h"

#include <string.h>
#include <xxhash.h>

static uint32_t hash_text(const char *text, size_t length) {
  return (uint32_t)XXH3_64bits(text, length);
}

/* Doubles the slots and puts every string again. */
static kedge_status grow_slots(kedge__vocab *vocab) {
  uint32_t wanted = vocab->slot_count ? vocab->slot_count * 2 : 1024;
  uint32_t *slots = kedge_alloc(wanted, sizeof *slots);
  if (!slots) return KEDGE_ERR_MEMORY;
  for (uint32_t i = 0; i < vocab->size; i++) {
    if (vocab->offsets[i] == UINT32_MAX) continue;
    uint32_t slot = hash_text(vocab->blob.data + vocab->offsets[i], vocab->lengths[i]) & (wanted - 1);
    while (slots[slot]) slot = (slot + 1) & (wanted - 1);
    slots[slot] = i + 1;
  }
  kedge_free(vocab->slots);
  vocab->slots = slots;
  vocab->slot_count = wanted;
  return KEDGE_OK;
}

static kedge_status grow_numbers(kedge__vocab *vocab, uint32_t number) {
  uint32_t capacity = number < UINT32_MAX / 4 ? number + number / 2 + 64 : UINT32_MAX / 2;
  uint32_t *offsets = kedge_realloc(vocab->offsets, capacity, sizeof *offsets);
  if (!offsets) return KEDGE_ERR_MEMORY;
  vocab->offsets = offsets;
  uint32_t *lengths = kedge_realloc(vocab->lengths, capacity, sizeof *lengths);
  if (!lengths) return KEDGE_ERR_MEMORY;
  vocab->lengths = lengths;
  vocab->capacity = capacity;
  return KEDGE_OK;
}

kedge_status kedge__vocab_add(kedge__vocab *vocab, const char *text, size_t length, uint32_t number) {
  if (number >= UINT32_MAX / 4 || length > UINT32_MAX / 2 || vocab->blob.length > UINT32_MAX / 2)
    return kedge_fail(KEDGE_ERR_FORMAT, "the vocabulary is too large");
  int32_t taken = kedge__vocab_find(vocab, text, length);
  if (taken >= 0)
    return kedge_fail(KEDGE_ERR_FORMAT, "token '%.60s' has two ids, %d and %u",
                      vocab->blob.data + vocab->offsets[taken], taken, number);
  if (number < vocab->size && vocab->offsets[number] != UINT32_MAX)
    return kedge_fail(KEDGE_ERR_FORMAT, "id %u has two tokens, '%.60s' and '%.*s'", number,
                      vocab->blob.data + vocab->offsets[number], (int)(length < 60 ? length : 60), text);
  if (number >= vocab->capacity) KEDGE_TRY(grow_numbers(vocab, number));
  if ((uint64_t)vocab->count * 2 >= vocab->slot_count) KEDGE_TRY(grow_slots(vocab));
  uint32_t offset = (uint32_t)vocab->blob.length;
  KEDGE_TRY(kedge__bytes_append(&vocab->blob, text, length));
  kedge_status closed = kedge__bytes_append(&vocab->blob, "", 1);
  if (closed != KEDGE_OK) {
    vocab->blob.length = offset;
    return closed;
  }
  for (; vocab->size <= number; vocab->size++) vocab->offsets[vocab->size] = UINT32_MAX;
  vocab->offsets[number] = offset;
  vocab->lengths[number] = (uint32_t)length;
  uint32_t slot = hash_text(text, length) & (vocab->slot_count - 1);
  while (vocab->slots[slot]) slot = (slot + 1) & (vocab->slot_count - 1);
  vocab->slots[slot] = number + 1;
  vocab->count++;
  return KEDGE_OK;
}

int32_t kedge__vocab_find(const kedge__vocab *vocab, const char *text, size_t length) {
  if (!vocab->slot_count) return -1;
  for (uint32_t slot = hash_text(text, length) & (vocab->slot_count - 1); vocab->slots[slot];
       slot = (slot + 1) & (vocab->slot_count - 1)) {
    uint32_t number = vocab->slots[slot] - 1;
    if (vocab->lengths[number] == length && !memcmp(vocab->blob.data + vocab->offsets[number], text, length))
      return (int32_t)number;
  }
  return -1;
}

const char *kedge__vocab_text(const kedge__vocab *vocab, uint32_t number, size_t *length) {
  if (number >= vocab->size || vocab->offsets[number] == UINT32_MAX) return NULL;
  if (length) *length = vocab->lengths[number];
  return vocab->blob.data + vocab->offsets[number];
}

void kedge__vocab_free(kedge__vocab *vocab) {
  kedge__bytes_free(&vocab->blob);
  kedge_free(vocab->offsets);
  kedge_free(vocab->lengths);
  kedge_free(vocab->slots);
  *vocab = (kedge__vocab){0};
}

static size_t hash_pair(uint32_t left, uint32_t right) {
  uint64_t mixed = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15u;
  return (size_t)(mixed ^ mixed >> 29);
}

/* The slot of a pair, or the free slot where it would go. */
static kedge__merge *find_slot(kedge__merge *slots, size_t slot_count, uint32_t left, uint32_t right) {
  size_t slot = hash_pair(left, right) & (slot_count - 1);
  while (slots[slot].id != UINT32_MAX && (slots[slot].left != left || slots[slot].right != right))
    slot = (slot + 1) & (slot_count - 1);
  return &slots[slot];
}

kedge_status kedge__merges_add(kedge__merges *merges, kedge__merge merge) {
  if (merges->count * 2 >= merges->slot_count) {
    size_t wanted = merges->slot_count ? merges->slot_count * 2 : 1024;
    kedge__merge *slots = kedge_alloc(wanted, sizeof *slots);
    if (!slots) return KEDGE_ERR_MEMORY;
    for (size_t i = 0; i < wanted; i++) slots[i].id = UINT32_MAX;
    for (size_t i = 0; i < merges->slot_count; i++)
      if (merges->slots[i].id != UINT32_MAX)
        *find_slot(slots, wanted, merges->slots[i].left, merges->slots[i].right) = merges->slots[i];
    kedge_free(merges->slots);
    merges->slots = slots;
    merges->slot_count = wanted;
  }
  kedge__merge *slot = find_slot(merges->slots, merges->slot_count, merge.left, merge.right);
  merges->count += slot->id == UINT32_MAX;
  *slot = merge;
  return KEDGE_OK;
}

const kedge__merge *kedge__merges_find(const kedge__merges *merges, uint32_t left, uint32_t right) {
  if (!merges->slot_count) return NULL;
  const kedge__merge *slot = find_slot(merges->slots, merges->slot_count, left, right);
  return slot->id == UINT32_MAX ? NULL : slot;
}

void kedge__merges_free(kedge__merges *merges) {
  kedge_free(merges->slots);
  *merges = (kedge__merges){0};
}
