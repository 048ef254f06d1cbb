/* SPDX-License-Identifier: Apache-2.0
 *
 * Pipelines on disk: one file a driver in $XDG_CACHE_HOME/kedge (else ~/.cache/kedge). Drivers trust what
 * they are given, so that a file is taken only if this device and this driver wrote it and its content hash
 * is right.
 */
#include "backends/vulkan/vulkan.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { LARGEST = 256 << 20 }; /* bytes of a file */

typedef struct header {
  char magic[8];
  uint32_t vendor, device;
  uint8_t driver[VK_UUID_SIZE], cache[VK_UUID_SIZE];
  uint64_t bytes;
  uint8_t hash[16]; /* XXH3 of the content, canonical */
} header;

static void fill_header(const vk_state *s, const void *data, size_t bytes, header *h) {
  XXH128_canonical_t hash;
  XXH128_canonicalFromHash(&hash, XXH3_128bits(data, bytes));
  memset(h, 0, sizeof *h);
  memcpy(h->magic, "kedgevk1", 8);
  h->vendor = s->facts.vendor;
  h->device = s->facts.id;
  memcpy(h->driver, s->facts.driver, VK_UUID_SIZE);
  memcpy(h->cache, s->facts.cache, VK_UUID_SIZE);
  h->bytes = bytes;
  memcpy(h->hash, hash.digest, sizeof h->hash);
}

/* The file's folder exists after it; false where there is no place for one. */
static bool find_path(vk_state *s) {
  const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  char folder[400], hex[9] = "";
  /* Relative folders count as absent: a run would leave one wherever it is started. */
  int length = base && *base == '/'   ? snprintf(folder, sizeof folder, "%s", base)
               : home && *home == '/' ? snprintf(folder, sizeof folder, "%s/.cache", home)
                                      : -1;
  if (length < 0 || (size_t)length + 8 > sizeof folder) return false;
  mkdir(folder, 0700);
  strcat(folder, "/kedge");
  mkdir(folder, 0700);
  uint32_t mark = s->facts.vendor * 31 + s->facts.id;
  snprintf(hex, sizeof hex, "%08x", mark);
  snprintf(s->cache_path, sizeof s->cache_path, "%s/vulkan-%s.pipelines", folder, hex);
  return access(folder, W_OK) == 0;
}

static const char *check(const header *have, const header *want, uint64_t file_bytes) {
  if (memcmp(have->magic, want->magic, 8) != 0) return "it is no such file";
  if (have->vendor != want->vendor || have->device != want->device) return "it is of another device";
  if (memcmp(have->driver, want->driver, VK_UUID_SIZE) != 0 ||
      memcmp(have->cache, want->cache, VK_UUID_SIZE) != 0)
    return "it is of another driver";
  if (have->bytes != file_bytes) return "it is cut short";
  return NULL;
}

static void *read_file(FILE *file, const vk_state *s, size_t *bytes, const char **why) {
  header have, want;
  struct stat info;
  *why = "it is no such file";
  if (fstat(fileno(file), &info) != 0 || !S_ISREG(info.st_mode)) return NULL;
  *why = "it is cut short";
  if (info.st_size < (off_t)sizeof have || info.st_size > LARGEST || fread(&have, sizeof have, 1, file) != 1)
    return NULL;
  fill_header(s, NULL, 0, &want);
  *bytes = (size_t)info.st_size - sizeof have;
  if ((*why = check(&have, &want, *bytes))) return NULL;
  void *data = kedge_alloc(*bytes + 1, 1);
  if (!data || fread(data, 1, *bytes, file) != *bytes) {
    kedge_free(data);
    *why = "it cannot be read";
    return NULL;
  }
  fill_header(s, data, *bytes, &want);
  if (!memcmp(have.hash, want.hash, sizeof want.hash)) return data;
  kedge_free(data);
  *why = "its content is damaged";
  return NULL;
}

kedge_status kedge__vk_cache_read(vk_state *s, void **data, size_t *bytes) {
  const char *why = NULL;
  *data = NULL;
  *bytes = 0;
  if (!find_path(s)) {
    s->cache_path[0] = '\0';
    return KEDGE_OK;
  }
  /* Not to wait for whoever would write into a pipe of that name. */
  const int handle = open(s->cache_path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  FILE *file = handle < 0 ? NULL : fdopen(handle, "rb");
  if (!file) {
    if (handle >= 0) close(handle);
    return KEDGE_OK;
  }
  *data = read_file(file, s, bytes, &why);
  fclose(file);
  if (!*data) {
    *bytes = 0;
    snprintf(s->note, sizeof s->note, "vulkan: pipelines in %.120s are not used: %s", s->cache_path, why);
  }
  return KEDGE_OK;
}

void kedge__vk_cache_write(const vk_state *s, const void *data, size_t bytes) {
  char path[600];
  header h;
  if (!s->cache_path[0] || bytes > LARGEST - sizeof h) return;
  snprintf(path, sizeof path, "%s.%ld", s->cache_path, (long)getpid());
  FILE *file = fopen(path, "wb");
  if (!file) return;
  fill_header(s, data, bytes, &h);
  bool good = fwrite(&h, sizeof h, 1, file) == 1 && fwrite(data, 1, bytes, file) == bytes;
  good &= fclose(file) == 0;
  if (!good || rename(path, s->cache_path) != 0) unlink(path);
}
