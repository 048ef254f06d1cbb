/* SPDX-License-Identifier: Apache-2.0
 *
 * The device contract: what a backend implements. Every function pointer is mandatory, a carrier is not. core
 * resolves addresses; a backend gets a program of steps (op, variant, narrowed arguments, tensors) and runs a
 * range of it.
 */
#ifndef KEDGE_DEVICE_H
#define KEDGE_DEVICE_H

#include "core/op.h"

/* Which build of the kernels a node needs: by the storage dtype of its x tensors. */
typedef enum kedge_variant {
  KEDGE_VARIANT_F32,
  KEDGE_VARIANT_BF16,
  KEDGE_VARIANT_F64,
  KEDGE_VARIANT_COUNT
} kedge_variant;

/* A tensor as a kernel sees it. Element (i.., j) of the last dimension lies at row * pitch + j, rows counted
 * over all leading dimensions; pitch is in elements and differs from the last dimension only for slots marked
 * ~. */
typedef struct kedge_tensor {
  void *data;
  void *const *parts; /* slots marked #: address of each index of dimension 0; data is NULL then. Else NULL */
  uint64_t parts_address; /* the same table in the device's memory: an array of 64-bit addresses */
  kedge_dtype dtype;
  uint32_t rank, dims[KEDGE_MAX_RANK], pitch;
} kedge_tensor;

/* One call of a kernel. An absent optional input has rank 0 and data NULL. */
typedef struct kedge_call {
  const void *args; /* kedge_args_<op> with the variant's kedge_real */
  kedge_tensor in[KEDGE_MAX_IN], out[KEDGE_MAX_OUT];
  void *scratch; /* as many bytes as the backend's scratch() asked for this call, 64-byte aligned */
  uint32_t threads;
  bool rowwise; /* of a product's row the bits must not depend on the number of rows */
} kedge_call;

typedef void (*kedge_kernel)(const kedge_call *call);

typedef struct kedge_step {
  kedge_op op;
  kedge_variant variant;
  uint32_t node; /* index in the graph, for messages */
  kedge_call call;
} kedge_step;

typedef struct kedge_limits {
  uint64_t max_buffer; /* bytes */
  uint32_t alignment;  /* of values in the arena, bytes */
  uint32_t threads;
  bool host_memory; /* buffer addresses are host pointers */
  bool computes;    /* false for `null`: buffers have sizes but no memory */
  bool f64;         /* has the all-double kernels */
  bool slow_bf16;   /* bf16 storage takes longer than f32: `dtype: auto` then trains in f32 */
  bool rowwise;     /* as kedge_open_options has it */
} kedge_limits;

struct kedge_parcel;
struct kedge_buffer {
  kedge_device *device;
  uint64_t address, bytes; /* address as kernels see it */
  void *handle;            /* the backend's own */
  bool borrowed;
};

/* out = the sum of `size` parts of `count` numbers each, `apart` elements from one to the next, in their
 * order, in double, rounded once. */
typedef struct kedge_addition {
  kedge_dtype dtype; /* f32, or f64 on the host */
  uint32_t size;
  const void *parts;
  uint64_t count, apart;
  void *out;
} kedge_addition;

/* Rows in the place of a member's experts (by expert, then by the member that sent them) and in the order of
 * the members that sent them: copied from one to the other. */
typedef struct kedge_repacking {
  uint32_t members, experts, rank;
  uint64_t rows, row_bytes;
  const int32_t *counts; /* [members, experts] */
  void *placed, *packed;
  bool pack;       /* from placed to packed, else back */
  int32_t *places; /* [rows] scratch, on a device */
} kedge_repacking;

/* How a device takes part in collective ops with its own memory (backends/comm/site.h): bytes go from one
 * rank's device to another's without a way through the host. All of it is queued behind the steps that ran
 * before, and the addresses are the device's. */
typedef struct kedge_carrier {
  /* Makes ready for the groups of the device's comm, all ranks together, and names the way in device->link.
   * *ready false: there is none here, and ops go through the host; device->link says why. */
  kedge_status (*connect)(struct kedge_device *device, bool *ready);
  kedge_status (*exchange)(struct kedge_device *device, uint32_t group, const struct kedge_parcel *to,
                           const struct kedge_parcel *from);
  kedge_status (*copy)(struct kedge_device *device, void *to, const void *from, uint64_t bytes);
  kedge_status (*clear)(struct kedge_device *device, void *at, uint64_t bytes);
  kedge_status (*add)(struct kedge_device *device, const kedge_addition *addition);
  kedge_status (*repack)(struct kedge_device *device, const kedge_repacking *repacking);
} kedge_carrier;

typedef struct kedge_backend {
  const char *name;
  const char *settings; /* what may follow a colon in a device's name, for messages; NULL: nothing may */
  kedge_status (*open)(const kedge_open_options *options,
                       kedge_device *device); /* fills device->state, description */
  void (*close)(kedge_device *device);
  void (*limits)(const kedge_device *device, kedge_limits *limits);
  kedge_status (*buffer_new)(kedge_device *device, uint64_t bytes, kedge_buffer *buffer); /* zeroed */
  kedge_status (*buffer_wrap)(kedge_device *device, const void *memory, uint64_t bytes, kedge_buffer *buffer);
  void (*buffer_free)(kedge_buffer *buffer);
  kedge_status (*write)(kedge_buffer *buffer, uint64_t offset, const void *data, uint64_t bytes);
  kedge_status (*read)(const kedge_buffer *buffer, uint64_t offset, void *data, uint64_t bytes);
  kedge_status (*fill)(kedge_buffer *buffer, uint64_t offset, uint64_t bytes, uint8_t byte);
  uint64_t (*scratch)(const kedge_device *device, const kedge_step *step); /* bytes that a step needs */
  kedge_status (*run)(kedge_device *device, const kedge_step *steps, uint32_t count);
  kedge_status (*sync)(kedge_device *device);
  double (*time)(kedge_device *device); /* seconds, monotonic, after a sync */
  const kedge_carrier *carrier;         /* NULL: collective ops go through the host */
} kedge_backend;

struct kedge_device {
  const kedge_backend *backend;
  struct kedge_comm *comm; /* what collective ops run over (comm.h); NULL: alone */
  bool carries;            /* the backend's carrier is ready: collective ops stay on the device */
  int32_t index;           /* which of the machine's devices of its kind; -1: there is only one */
  kedge_limits limits;
  void *state;
  uint64_t bytes, peak_bytes; /* of its buffers now, and at most so far; borrowed memory aside */
  char description[128];
  char link[128]; /* what collective ops go over, once connected, for people; "" before */
  char note[256]; /* what a user should know of how it opened; "" mostly */
};

extern const kedge_backend kedge__backend_ref, kedge__backend_cpu, kedge__backend_null;

/* What a backend's module libkedge-<name>.so exports as `kedge_backend_module` (core/module.c). The
 * numbers tell a module of another version of this contract. */
enum { KEDGE_MODULE_VERSION = 2 };
typedef struct kedge_module {
  uint32_t version, ops; /* KEDGE_MODULE_CONTRACT of module.h, KEDGE_OP_COUNT */
  uint64_t step_bytes;   /* sizeof(kedge_step) */
  const kedge_backend *backend;
} kedge_module;
/* Names of the backends that are modules; NULL past the end. */
const char *kedge__module_name(uint32_t index);
/* The backend of a module, loaded on first use; NULL, without an error, if `name` is no module's. */
kedge_status kedge__module_load(const char *name, const kedge_backend **backend);

/* Memory of host backends (ref, cpu): shared by their tables. core/host.c */
kedge_status kedge__host_buffer_new(kedge_device *device, uint64_t bytes, kedge_buffer *buffer);
kedge_status kedge__host_buffer_wrap(kedge_device *device, const void *memory, uint64_t bytes,
                                     kedge_buffer *buffer);
void kedge__host_buffer_free(kedge_buffer *buffer);
kedge_status kedge__host_write(kedge_buffer *buffer, uint64_t offset, const void *data, uint64_t bytes);
kedge_status kedge__host_read(const kedge_buffer *buffer, uint64_t offset, void *data, uint64_t bytes);
kedge_status kedge__host_fill(kedge_buffer *buffer, uint64_t offset, uint64_t bytes, uint8_t byte);
kedge_status kedge__host_sync(kedge_device *device);
double kedge__host_time(kedge_device *device);

/* The reference kernel of an op. Never NULL. */
kedge_kernel kedge__reference(kedge_op op, kedge_variant variant);

#endif
