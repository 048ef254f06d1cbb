/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether products by groups of waves (group.h) are used: where the card has them and the settings want them,
 * and only once they agreed with the other kernels, to the bit, on whole numbers, when the device was opened.
 */
#include "backends/gpu/groups.h"
#include "backends/gpu/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whole numbers in [-4, 4] as bf16, whose sums are the same in every order. */
static void fill(uint16_t *x, uint32_t count, uint32_t seed) {
  for (uint32_t i = 0; i < count; i++) {
    seed = seed * 1664525 + 1013904223;
    const float value = (float)(seed >> 24) / 28 - 4.5f;
    const float whole = (float)(int)value;
    uint32_t bits;
    memcpy(&bits, &whole, 4);
    x[i] = (uint16_t)(bits >> 16);
  }
}

typedef struct trial {
  uint16_t a[GPU_TRY_ROWS * GPU_TRY_PITCH], b[GPU_TRY_ROWS * GPU_TRY_PITCH];
  float by_groups[GPU_TRY_M * GPU_TRY_N], otherwise[GPU_TRY_M * GPU_TRY_N];
} trial;

static gpu_error run(gpu_step *s, trial *t, trial *card, uint32_t layout) {
  gpu_error error = GPU(MemcpyAsync)(card, t, sizeof t->a + sizeof t->b, GPU(MemcpyHostToDevice), s->stream);
  if (error == GPU(Success))
    error = GPU(MemsetAsync)(card->by_groups, 0xff, sizeof t->by_groups + sizeof t->otherwise, s->stream);
  if (error != GPU(Success)) return error;
  s->groups = true;
  kedge_gpu_groups_try(s, card->a, card->b, card->by_groups, layout);
  s->groups = false;
  kedge_gpu_groups_try(s, card->a, card->b, card->otherwise, layout);
  error = GPU(GetLastError)();
  if (error == GPU(Success))
    error = GPU(MemcpyAsync)(t->by_groups, card->by_groups, sizeof t->by_groups + sizeof t->otherwise,
                             GPU(MemcpyDeviceToHost), s->stream);
  if (error == GPU(Success)) error = GPU(StreamSynchronize)(s->stream);
  return error;
}

kedge_status gpu__groups_open(kedge_device *device, gpu_state *g) {
  const char *wish = getenv("KEDGE_GPU_WGMMA");
  g->groups = false;
  if (!g->settings.groups || !g->has_groups || (wish && !strcmp(wish, "0"))) return KEDGE_OK;
  gpu_step s = {.stream = g->stream, .processors = g->processors};
  bool agree = true;
  void *card = NULL;
  trial *t = kedge_alloc(1, sizeof *t);
  if (!t) return KEDGE_ERR_MEMORY;
  fill(t->a, GPU_TRY_ROWS * GPU_TRY_PITCH, 1);
  fill(t->b, GPU_TRY_ROWS * GPU_TRY_PITCH, 2);
  gpu_error error = GPU(Malloc)(&card, sizeof *t);
  for (uint32_t layout = 0; layout < 4 && error == GPU(Success) && agree; layout++) {
    error = run(&s, t, card, layout);
    agree = !memcmp(t->by_groups, t->otherwise, sizeof t->otherwise);
  }
  if (card) GPU(Free)(card);
  kedge_free(t);
  KEDGE_TRY(gpu__check(device, error, "trying wgmma"));
  const size_t length = strlen(device->description);
  snprintf(device->description + length, sizeof device->description - length, "%s",
           agree ? ", wgmma" : ", wgmma disagrees and is not used");
  g->groups = agree;
  return KEDGE_OK;
}
