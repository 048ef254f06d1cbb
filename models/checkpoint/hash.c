/* SPDX-License-Identifier: Apache-2.0
 * XXH3-128 of memory, files and checkpoints (hash.h). */
#include "models/checkpoint/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

/* The state wants 64-byte alignment, which the allocator does not promise: it lies inside a larger block. */
struct kedge_hash {
  XXH3_state_t *state;
  uint8_t room[sizeof(XXH3_state_t) + 64];
};

kedge_hash *kedge_hash_new(void) {
  kedge_hash *hash = kedge_alloc(1, sizeof *hash);
  if (!hash) return NULL;
  size_t past = (uintptr_t)hash->room % 64;
  hash->state = (XXH3_state_t *)(void *)(hash->room + (past ? 64 - past : 0));
  XXH3_128bits_reset(hash->state);
  return hash;
}

void kedge_hash_free(kedge_hash *hash) {
  kedge_free(hash);
}

void kedge_hash_add(kedge_hash *hash, const void *data, uint64_t bytes) {
  if (bytes) XXH3_128bits_update(hash->state, data, (size_t)bytes);
}

void kedge_hash_add_u64(kedge_hash *hash, uint64_t value) {
  uint8_t bytes[8];
  for (unsigned i = 0; i < 8; i++) bytes[i] = (uint8_t)(value >> (8 * i));
  kedge_hash_add(hash, bytes, sizeof bytes);
}

void kedge_hash_add_text(kedge_hash *hash, const char *text) {
  size_t length = strlen(text);
  kedge_hash_add_u64(hash, length);
  kedge_hash_add(hash, text, length);
}

void kedge_hash_text(const kedge_hash *hash, char text[KEDGE_HASH_TEXT]) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(hash->state));
  for (unsigned i = 0; i < 16; i++) snprintf(text + 2 * i, 3, "%02x", canonical.digest[i]);
}

void kedge_hash_add_tensor(kedge_hash *hash, const kedge_st_tensor *tensor) {
  kedge_hash_add_text(hash, tensor->name);
  kedge_hash_add_text(hash, kedge_st_dtype_name(tensor->dtype));
  kedge_hash_add_u64(hash, tensor->rank);
  for (uint32_t i = 0; i < tensor->rank; i++) kedge_hash_add_u64(hash, tensor->shape[i]);
  kedge_hash_add(hash, tensor->data, tensor->bytes);
}

kedge_status kedge_hash_checkpoint(const kedge_checkpoint *checkpoint, char text[KEDGE_HASH_TEXT]) {
  kedge_hash *hash = kedge_hash_new();
  if (!hash) return KEDGE_ERR_MEMORY;
  for (uint32_t i = 0; i < kedge_checkpoint_count(checkpoint); i++)
    kedge_hash_add_tensor(hash, kedge_checkpoint_by_name(checkpoint, i));
  kedge_hash_text(hash, text);
  kedge_hash_free(hash);
  return KEDGE_OK;
}

kedge_status kedge_hash_file(const char *path, char text[KEDGE_HASH_TEXT]) {
  enum { PIECE = 1 << 18 };
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return kedge_fail(KEDGE_ERR_IO, "%s: %s", path, strerror(errno));
  kedge_status status = KEDGE_OK;
  kedge_hash *hash = kedge_hash_new();
  uint8_t *piece = hash ? kedge_alloc(PIECE, 1) : NULL;
  if (!piece) status = KEDGE_ERR_MEMORY;
  while (status == KEDGE_OK) {
    ssize_t got = read(fd, piece, PIECE);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) status = kedge_fail(KEDGE_ERR_IO, "%s: %s", path, strerror(errno));
    if (got <= 0) break;
    kedge_hash_add(hash, piece, (uint64_t)got);
  }
  if (status == KEDGE_OK) kedge_hash_text(hash, text);
  kedge_free(piece);
  kedge_hash_free(hash);
  close(fd);
  return status;
}
