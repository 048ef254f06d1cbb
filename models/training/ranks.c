/* SPDX-License-Identifier: Apache-2.0
 * Comparing the ranks of a run (ranks.h). */
#include "models/training/ranks.h"

#include "models/checkpoint/atomic.h"
#include "models/checkpoint/hash.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE = 360 };

/* Finds the first key whose value differs. All ranks have the same keys in the same order. */
static kedge_status name_key(kedge_comm *comm, const char *text) {
  json_t *object = json_loads(text, 0, NULL), *value;
  const char *key;
  kedge_status status = object ? KEDGE_OK : KEDGE_ERR_MEMORY;
  json_object_foreach(object, key, value) {
    char what[96];
    char *dump = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(12));
    snprintf(what, sizeof what, "key \"%s\"", key);
    if (status == KEDGE_OK) status = kedge_comm_same(comm, what, dump ? dump : "");
    free(dump);
  }
  json_decref(object);
  return status;
}

kedge_status kedge_ranks_check(kedge_comm *comm, const kedge_config *config) {
  char hash[KEDGE_HASH_TEXT] = "";
  if (kedge_comm_size(comm, KEDGE_RANKS_ALL) == 1) return KEDGE_OK;
  char *text = kedge_config_json(config);
  kedge_hash *sum = text ? kedge_hash_new() : NULL;
  kedge_status status = kedge_comm_agree(comm, sum ? KEDGE_OK : KEDGE_ERR_MEMORY);
  if (sum) {
    kedge_hash_add_text(sum, text);
    kedge_hash_text(sum, hash);
  }
  if (status == KEDGE_OK) status = kedge_comm_same(comm, "the version of Kedge", kedge_version());
  if (status == KEDGE_OK) {
    status = kedge_comm_same(comm, "the hash of the configuration", hash);
    if (status == KEDGE_ERR_MISMATCH) {
      const kedge_status named = name_key(comm, text);
      status = named == KEDGE_OK ? kedge_comm_same(comm, "the hash of the configuration", hash) : named;
    }
  }
  kedge_hash_free(sum);
  kedge_free(text);
  return status;
}

kedge_status kedge_ranks_check_contents(kedge_comm *comm, const kedge_run_record *record) {
  KEDGE_TRY(kedge_comm_same(comm, "the hash of the base model", record->base));
  KEDGE_TRY(kedge_comm_same(comm, "the hash of the samples", record->data));
  KEDGE_TRY(kedge_comm_same(comm, "the hash of the evaluation samples", record->eval));
  return kedge_comm_same(comm, "the hash of priors and trace", record->routing);
}

/* Which of the machine's cards the rank has, and what its collective ops go over. Returns the length. */
static int place(char *text, size_t size, const kedge_comm *comm, const kedge_device *device) {
  const char *link = kedge_device_link(device);
  int n = 0;
  if (kedge_device_index(device) >= 0)
    n = snprintf(text, size, ", local rank %u on device %d", comm->local_rank, kedge_device_index(device));
  if (*link && n < (int)size) n += snprintf(text + n, size - (size_t)n, ", over %s", link);
  return n < (int)size ? n : (int)size - 1;
}

/* A file of an unlikely name, which no rank can have seen before, so that no cache of a network's files
 * answers for it. */
static kedge_status leave_mark(const char *folder, char *name, size_t size) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  snprintf(name, size, ".ranks-%ld-%lld-%09ld", (long)getpid(), (long long)now.tv_sec, now.tv_nsec);
  char *path = kedge_path_join(folder, name);
  const kedge_status status = path ? kedge_file_write(path, "", 0) : KEDGE_ERR_MEMORY;
  kedge_free(path);
  return status;
}

static kedge_status find_mark(const char *folder, const char *path) {
  if (!access(path, F_OK)) return KEDGE_OK;
  return kedge_fail(
      KEDGE_ERR_IO,
      "output_dir %s: is not the folder that rank 0 has under this name; all ranks write into one", folder);
}

kedge_status kedge_ranks_see(kedge_comm *comm, const char *folder) {
  char name[96] = "";
  const bool leads = kedge_comm_rank(comm, KEDGE_RANKS_ALL) == 0;
  if (kedge_comm_size(comm, KEDGE_RANKS_ALL) == 1) return KEDGE_OK;
  KEDGE_TRY(kedge_comm_agree(comm, leads ? leave_mark(folder, name, sizeof name) : KEDGE_OK));
  kedge_status status = kedge_comm_broadcast(comm, 0, name, sizeof name);
  char *path = kedge_path_join(folder, name);
  if (status == KEDGE_OK) status = kedge_comm_agree(comm, path ? find_mark(folder, path) : KEDGE_ERR_MEMORY);
  if (leads && path) unlink(path);
  kedge_free(path);
  return status;
}

kedge_status kedge_ranks_tell(kedge_comm *comm, const kedge_device *device,
                              void (*tell)(void *context, const char *line), void *context) {
  const uint32_t ranks = kedge_comm_size(comm, KEDGE_RANKS_ALL),
                 parts = kedge_comm_size(comm, KEDGE_RANKS_EXPERTS);
  char own[LINE] = "", host[64] = "";
  if (ranks == 1) return KEDGE_OK;
  gethostname(host, sizeof host - 1);
  int n = snprintf(own, sizeof own, "rank %u of %u: host %s, %s", kedge_comm_rank(comm, KEDGE_RANKS_ALL),
                   ranks, host, kedge_device_description(device));
  n += place(own + n, sizeof own - (size_t)n, comm, device);
  if (parts > 1 && n < (int)sizeof own)
    snprintf(own + n, sizeof own - (size_t)n, ", part %u of %u of the experts",
             kedge_comm_rank(comm, KEDGE_RANKS_EXPERTS) + 1, parts);
  char(*all)[LINE] = kedge_alloc(ranks, sizeof own);
  kedge_status status = all ? kedge_comm_gather(comm, own, sizeof own, all) : KEDGE_ERR_MEMORY;
  for (uint32_t rank = 0; status == KEDGE_OK && rank < ranks; rank++) tell(context, all[rank]);
  kedge_free(all);
  return status;
}
