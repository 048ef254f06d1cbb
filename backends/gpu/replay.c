/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs of steps as graphs of the runtime: a run that was seen before is captured, and then launched with one
 * call. A run is known by a hash of its steps and their arguments, addresses included, so that a workspace
 * that moved makes another one. A handful are kept, the longest unused goes first.
 */
#include "backends/gpu/state.h"

#if GPU_HAS_GRAPHS

enum { KEPT = 16, SHORTEST = 8 };

typedef struct captured {
  uint64_t hash, used; /* used: when, in runs */
  uint32_t count;
  bool graph; /* else it was only seen */
  GPU(GraphExec_t) exec;
} captured;
struct gpu_replay {
  captured kept[KEPT];
  uint64_t runs;
};

static uint64_t mix(uint64_t hash, const void *data, size_t bytes) {
  const unsigned char *at = data;
  for (size_t i = 0; i < bytes; i++) hash = (hash ^ at[i]) * 0x100000001b3u;
  return hash;
}

static uint64_t mix_tensor(uint64_t hash, const kedge_tensor *t) {
  const uint64_t words[] = {(uint64_t)(uintptr_t)t->data, t->parts_address, (uint64_t)t->dtype, t->rank,
                            t->pitch};
  hash = mix(hash, words, sizeof words);
  return mix(hash, t->dims, sizeof t->dims);
}

static uint64_t hash_of(const kedge_step *steps, uint32_t count) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (uint32_t i = 0; i < count; i++) {
    const kedge_op_info *info = kedge_op_get(steps[i].op);
    const uint64_t words[] = {(uint64_t)steps[i].op, (uint64_t)steps[i].variant,
                              (uint64_t)(uintptr_t)steps[i].call.scratch};
    hash = mix(hash, words, sizeof words);
    hash = mix(hash, steps[i].call.args, info->args_size_f32);
    for (uint32_t k = 0; k < info->in_count; k++) hash = mix_tensor(hash, &steps[i].call.in[k]);
    for (uint32_t k = 0; k < info->out_count; k++) hash = mix_tensor(hash, &steps[i].call.out[k]);
  }
  return hash;
}

/* The entry of a run, or the one that it replaces. */
static captured *find(gpu_replay *r, uint64_t hash, uint32_t count) {
  captured *oldest = &r->kept[0];
  for (int i = 0; i < KEPT; i++) {
    if (r->kept[i].hash == hash && r->kept[i].count == count) return &r->kept[i];
    if (r->kept[i].used < oldest->used) oldest = &r->kept[i];
  }
  if (oldest->graph) GPU(GraphExecDestroy)(oldest->exec);
  *oldest = (captured){.hash = hash, .count = count};
  return oldest;
}

static kedge_status capture(kedge_device *device, captured *c, const kedge_step *steps, uint32_t count) {
  gpu_state *g = device->state;
  GPU(Graph_t) graph = NULL;
  KEDGE_TRY(
      gpu__check(device, GPU(StreamBeginCapture)(g->stream, GPU(StreamCaptureModeThreadLocal)), "capturing"));
  kedge_status status = gpu__launch(device, steps, count);
  gpu_error ended = GPU(StreamEndCapture)(g->stream, &graph);
  if (status == KEDGE_OK) status = gpu__check(device, ended, "capturing");
#if defined(KEDGE_GPU_CUDA)
  if (status == KEDGE_OK) status = gpu__check(device, cudaGraphInstantiate(&c->exec, graph, 0), "a graph");
#else
  if (status == KEDGE_OK)
    status = gpu__check(device, hipGraphInstantiate(&c->exec, graph, NULL, NULL, 0), "a graph");
#endif
  c->graph = status == KEDGE_OK;
  if (graph) GPU(GraphDestroy)(graph);
  return status;
}

kedge_status gpu__replay(kedge_device *device, const kedge_step *steps, uint32_t count) {
  gpu_state *g = device->state;
  if (!g->settings.graphs || count < SHORTEST) return gpu__launch(device, steps, count);
  if (!g->replay && !(g->replay = kedge_alloc(1, sizeof *g->replay))) return KEDGE_ERR_MEMORY;
  captured *c = find(g->replay, hash_of(steps, count), count);
  const bool seen = c->used != 0;
  c->used = ++g->replay->runs;
  if (!seen) return gpu__launch(device, steps, count);
  if (!c->graph) KEDGE_TRY(capture(device, c, steps, count));
  return gpu__check(device, GPU(GraphLaunch)(c->exec, g->stream), "launching a graph");
}

void gpu__replay_drop(gpu_state *g) {
  if (!g->replay) return;
  for (int i = 0; i < KEPT; i++)
    if (g->replay->kept[i].graph) GPU(GraphExecDestroy)(g->replay->kept[i].exec);
  kedge_free(g->replay);
  g->replay = NULL;
}

#else

kedge_status gpu__replay(kedge_device *device, const kedge_step *steps, uint32_t count) {
  return gpu__launch(device, steps, count);
}

void gpu__replay_drop(gpu_state *g) {
  (void)g;
}

#endif
