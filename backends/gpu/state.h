/* SPDX-License-Identifier: Apache-2.0
 * An open device of backend.c, and what its sibling files add: settings.c, stream.c, replay.c, blas.c,
 * carrier.c. */
#ifndef KEDGE_GPU_STATE_H
#define KEDGE_GPU_STATE_H

#include "backends/gpu/gpu.h"

/* What may follow a device's name: "cuda:device=1,blas=0", "sim:wave=64,order=random". */
typedef struct gpu_settings {
  bool blas, graphs, groups;
  int blas_vendor; /* whose names the library has (blas_vendors.h) */
  uint32_t device; /* GPU_DEVICE_ANY: not said */
  uint32_t cards;  /* of the simulated machine; 0: one, which has no number */
#if defined(KEDGE_GPU_SIM)
  sim_settings sim;
#endif
} gpu_settings;

#if defined(KEDGE_GPU_SIM)
#define GPU_HOST_MEMORY true
#define GPU_HAS_GRAPHS  0
#define GPU_SETTINGS                                                                                         \
  "wave=32|64, order=forward|reverse|random, seed, processors, products=tiles|plain|groups, device, cards, " \
  "blas=0|cublaslt|hipblaslt"
#else
#define GPU_HOST_MEMORY false
#define GPU_HAS_GRAPHS  1
#define GPU_SETTINGS    "a card's number, blas=0|1, graphs=0|1, wgmma=0|1"
#endif

#define GPU_DEVICE_ANY UINT32_MAX

typedef struct gpu_replay gpu_replay;
typedef struct gpu_blas gpu_blas;
typedef struct gpu_links gpu_links;

typedef struct gpu_state {
  gpu_settings settings;
  uint32_t ordinal; /* of this process among those of the machine */
  gpu_stream stream;
  gpu_event start, end; /* around the runs since the last sync */
  bool timing;
  double seconds;
  uint32_t processors;
  bool has_groups, groups; /* the card, and this module, has products by groups of waves; they are used */
  uint64_t memory;         /* bytes that the card has */
  char *staging;           /* pinned */
  gpu_replay *replay;
  gpu_blas *blas;
  gpu_links *links; /* to the cards of other ranks; NULL: none */
} gpu_state;

/* KEDGE_ERR_DEVICE with the device, what was done and the runtime's words, unless `error` is success. */
kedge_status gpu__check(const kedge_device *device, gpu_error error, const char *what);
/* NULL: all defaults. */
kedge_status gpu__settings_read(const char *text, gpu_settings *settings);
/* Which of `count` cards: the one that was asked for, else the process's own by turns. */
kedge_status gpu__choose(kedge_device *device, gpu_state *g, uint32_t count);
/* Finds the card, makes it current, opens the stream; fills description, processors and memory. */
kedge_status gpu__stream_open(kedge_device *device, gpu_state *g);
void gpu__stream_close(gpu_state *g);
/* Launches steps one by one. */
kedge_status gpu__launch(kedge_device *device, const kedge_step *steps, uint32_t count);
/* The same, through a captured graph where the steps have run before. */
kedge_status gpu__replay(kedge_device *device, const kedge_step *steps, uint32_t count);
void gpu__replay_drop(gpu_state *g);
/* The vendor's library for dense products; *blas stays NULL where it is not installed. One that the
 * environment names must be there. */
kedge_status gpu__blas_open(kedge_device *device, const gpu_settings *settings, gpu_blas **blas);
void gpu__blas_close(gpu_blas *blas);
/* Tries products by groups of waves where they are there and wanted, and adds to the description. */
kedge_status gpu__groups_open(kedge_device *device, gpu_state *g);
/* Collective ops between cards (carrier.c). Closing waits for nobody where the ranks are broken. */
extern const kedge_carrier gpu__carrier;
void gpu__links_close(kedge_device *device);
/* parts.cu; they take stream and processors of the step alone. */
void kedge_gpu_add_parts(const gpu_step *step, const kedge_addition *addition);
void kedge_gpu_repack(const gpu_step *step, const kedge_repacking *repacking);

#endif
