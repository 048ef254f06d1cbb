/* SPDX-License-Identifier: Apache-2.0
 *
 * Kedge's tensor core, the public header: statuses, memory, dtypes, the graph and its gradient, devices and
 * execution. One builder function an op is declared in core/ops.h, which this header includes at its end.
 *
 * A model is written once as a graph; kedge_gradient() appends its derivative; kedge_exec_new() plans memory
 * on a device; kedge_exec_run() runs it. Nothing here knows a model, a file format or a vendor.
 */
#ifndef KEDGE_H
#define KEDGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status
 * ------------------------------------------------------------------------------------------------- */

typedef enum kedge_status {
#define KEDGE_STATUS(name, text) KEDGE_##name,
#include "core/status.def"
#undef KEDGE_STATUS
  KEDGE_STATUS_COUNT
} kedge_status;

/* Name ("ERR_FORMAT") and meaning of a status. Static strings, never NULL. */
const char *kedge_status_name(kedge_status status);
const char *kedge_status_text(kedge_status status);

/* Records a one-line message for this thread and returns `status`, so that a failure reads `return
 * kedge_fail(...)`. The line names the file, line or tensor, what was expected and what came. Control
 * characters are shown escaped. */
kedge_status kedge_fail(kedge_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts "<context>: " before the message already recorded by this thread, unless that begins with the same
 * place or one inside it ("<context>: ", "<context>/"); returns `status`. */
kedge_status kedge_fail_in(kedge_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The message of this thread's last failure; "" before any. Valid until the thread's next failure. */
const char *kedge_message(void);

/* Evaluates an expression of type kedge_status and returns it from the caller unless it is KEDGE_OK. */
#define KEDGE_TRY(expr)                                                                                      \
  do {                                                                                                       \
    kedge_status kedge_try_ = (expr);                                                                        \
    if (kedge_try_ != KEDGE_OK) return kedge_try_;                                                           \
  } while (0)

/* The same, jumping to the label `exit_label` with the status in the variable `status`. */
#define KEDGE_GOTO(expr, status, exit_label)                                                                 \
  do {                                                                                                       \
    (status) = (expr);                                                                                       \
    if ((status) != KEDGE_OK) goto exit_label;                                                               \
  } while (0)

const char *kedge_version(void);

/* ---- Memory
 * --------------------------------------------------------------------------------------------------- */

/* All host memory of the library comes from here. kedge_alloc gives zeroed memory; sizes are count * size
 * with an overflow check; NULL on failure (a message is recorded). kedge_free(NULL) does nothing. */
void *kedge_alloc(size_t count, size_t size);
void *kedge_realloc(void *memory, size_t count, size_t size);
void kedge_free(void *memory);
char *kedge_strdup(const char *text);
/* printf into new memory, owned by the caller; NULL on failure. */
char *kedge_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Test hook: the nth allocation from now (1 = the next) fails, once; 0 turns it off. Returns how many
 * allocations were made since the last call. Counted over the whole process; for single-threaded use. */
uint64_t kedge_alloc_fail_nth(uint64_t nth);

/* ---- Types
 * ------------------------------------------------------------------------------------------------------ */

typedef enum kedge_dtype { KEDGE_F32, KEDGE_BF16, KEDGE_I32, KEDGE_F64, KEDGE_DTYPE_COUNT } kedge_dtype;
size_t kedge_dtype_size(kedge_dtype dtype);      /* bytes an element */
const char *kedge_dtype_name(kedge_dtype dtype); /* "f32", "bf16", "i32", "f64" */

/* bf16 <-> f32: widening is exact, narrowing rounds to nearest even and keeps NaN a NaN. */
float kedge_bf16_to_f32(uint16_t bits);
uint16_t kedge_f32_to_bf16(float value);

enum { KEDGE_MAX_RANK = 4, KEDGE_MAX_IN = 10, KEDGE_MAX_OUT = 4 };

/* ---- Graph
 * ------------------------------------------------------------------------------------------------------ */

/* A value is an index into its graph's arrays. After the first failure every builder returns KEDGE_NONE and
 * does nothing; kedge_graph_status() reports that failure once, with op, names and shapes. */
typedef uint32_t kedge_value;
#define KEDGE_NONE 0u

typedef struct kedge_graph kedge_graph;
typedef struct kedge_buffer kedge_buffer;
typedef struct kedge_device kedge_device;
typedef struct kedge_exec kedge_exec;

/* `all_double` makes every float value of the graph f64, for gradient checks on the reference backend. NULL:
 * no memory. */
kedge_graph *kedge_graph_new(bool all_double);
void kedge_graph_free(kedge_graph *graph);
kedge_status kedge_graph_status(const kedge_graph *graph);
bool kedge_graph_is_double(const kedge_graph *graph);

/* A value that the host writes before a run (ids, labels, weights). Its buffer is owned by the execution. */
kedge_value kedge_input(kedge_graph *graph, const char *name, kedge_dtype dtype, uint32_t rank,
                        const uint32_t *dims);

/* A value whose buffer lives across runs and graphs (weights, gradients, optimizer state). `buffer` is
 * borrowed and may be NULL in a graph that is only planned; `offset` is in bytes. */
kedge_value kedge_parameter(kedge_graph *graph, const char *name, kedge_dtype dtype, uint32_t rank,
                            const uint32_t *dims, kedge_buffer *buffer, uint64_t offset);

/* The same with one buffer for each index of the first dimension (per-expert tensors that lie in different
 * files). Only the weights of the grouped matmul may be such. The array is copied, the buffers are borrowed.
 * `offsets` in bytes, NULL: all 0. */
kedge_value kedge_parameter_parts(kedge_graph *graph, const char *name, kedge_dtype dtype, uint32_t rank,
                                  const uint32_t *dims, kedge_buffer *const *buffers,
                                  const uint64_t *offsets);

/* Views, without a copy: another shape of the same elements; a window of the last dimension; one index of the
 * first. A consumer that cannot read a window gets a visible `slice` node. Gradients flow through views. */
kedge_value kedge_reshape(kedge_graph *graph, kedge_value value, uint32_t rank, const uint32_t *dims);
kedge_value kedge_window(kedge_graph *graph, kedge_value value, uint32_t offset, uint32_t cols);
kedge_value kedge_part(kedge_graph *graph, kedge_value value, uint32_t index);

/* Marks a value as an output (a tap): it stays readable after a run, under this name. */
void kedge_output(kedge_graph *graph, kedge_value value, const char *name);
/* The output, input or parameter of that name; KEDGE_NONE if there is none. */
kedge_value kedge_find(const kedge_graph *graph, const char *name);

/* Shape of a value. */
kedge_dtype kedge_value_dtype(const kedge_graph *graph, kedge_value value);
uint32_t kedge_value_rank(const kedge_graph *graph, kedge_value value);
uint32_t kedge_value_dim(const kedge_graph *graph, kedge_value value, uint32_t axis);
uint64_t kedge_value_count(const kedge_graph *graph, kedge_value value); /* elements */
uint64_t kedge_value_bytes(const kedge_graph *graph, kedge_value value);
const char *kedge_value_name(const kedge_graph *graph, kedge_value value);
uint32_t
kedge_graph_nodes(const kedge_graph *graph); /* nodes so far: the end of the range for kedge_exec_run */

/* Recompute region: nodes built between begin and end are built again before their backward, from the
 * region's inputs, and their first values are dropped. Ids and offsets (top-k, dispatch plan) are kept, never
 * chosen twice. */
void kedge_region_begin(kedge_graph *graph, const char *name);
void kedge_region_end(kedge_graph *graph);

/* Called as soon as the gradient of `wrt` is complete, so that it can be consumed (accumulated) while it is
 * hot. */
typedef void (*kedge_gradient_sink)(void *context, kedge_graph *graph, kedge_value wrt, kedge_value gradient);

/* Appends the derivative of the scalar `loss` [1] with respect to wrt[0..count). gradients[i] is f32 or the
 * storage dtype, of wrt[i]'s shape, or KEDGE_NONE where the loss does not depend on it. `sink` may be NULL.
 * Errors are sticky; an op on the path without a gradient rule is one. */
void kedge_gradient(kedge_graph *graph, kedge_value loss, const kedge_value *wrt, uint32_t count,
                    kedge_value *gradients, kedge_gradient_sink sink, void *context);

/* ---- Devices
 * ---------------------------------------------------------------------------------------------------- */

typedef struct kedge_open_options {
  uint32_t threads; /* 0: the backend's default */
  const char
      *isa;     /* cpu: "base", "avx2", "avx512", "avx512bf16", "amx"; NULL: KEDGE_ISA or the best there is */
  bool rowwise; /* a row of a product has the same bits whatever rows stand beside it; slower where few do */
  const char *settings; /* what follows a colon in the name, as in "sim:wave=64"; set by kedge_device_open */
  uint32_t ordinal;     /* of several cards of this machine which, where the settings do not say, modulo their
                           number */
} kedge_open_options;

/* Backends in a fixed order: those built into the library ("ref", "cpu", "null"), then those that are modules
 * of their own, loaded when opened ("vulkan", "cuda", "hip", "sim"). NULL past the end. */
const char *kedge_backend_name(uint32_t index);

/* Opens a device by backend name, which may be followed by ":settings" of that backend. `options` may be
 * NULL. The device is owned by the caller. */
kedge_status kedge_device_open(const char *backend, const kedge_open_options *options, kedge_device **device);
void kedge_device_close(kedge_device *device);
const char *kedge_device_backend(const kedge_device *device);     /* "cpu" */
const char *kedge_device_description(const kedge_device *device); /* "cpu (avx512, 2 threads)" */
const char *kedge_device_note(const kedge_device *device); /* what to tell a user of how it opened, or NULL */

/* Device memory, zeroed. `wrap` borrows host memory (a mapped file) where the device can read it. */
kedge_status kedge_buffer_new(kedge_device *device, uint64_t bytes, kedge_buffer **buffer);
kedge_status kedge_buffer_wrap(kedge_device *device, const void *memory, uint64_t bytes,
                               kedge_buffer **buffer);
void kedge_buffer_free(kedge_buffer *buffer);
uint64_t kedge_buffer_size(const kedge_buffer *buffer);
kedge_status kedge_buffer_write(kedge_buffer *buffer, uint64_t offset, const void *data, uint64_t bytes);
kedge_status kedge_buffer_read(const kedge_buffer *buffer, uint64_t offset, void *data, uint64_t bytes);
kedge_status kedge_buffer_zero(kedge_buffer *buffer);

/* ---- Execution
 * ---------------------------------------------------------------------------------------------------- */

/* Arena shared by executions that never run at the same time (one a bucket): grows to the largest. Owned by
 * the caller. */
typedef struct kedge_workspace kedge_workspace;
kedge_status kedge_workspace_new(kedge_device *device, kedge_workspace **workspace);
void kedge_workspace_free(kedge_workspace *workspace);
uint64_t kedge_workspace_bytes(const kedge_workspace *workspace);

/* Plans the graph (which must be free of errors and outlive the execution) and prepares it on a device.
 * `workspace` may be NULL: a private one. */
kedge_status kedge_exec_new(kedge_device *device, const kedge_graph *graph, kedge_workspace *workspace,
                            kedge_exec **exec);
void kedge_exec_free(kedge_exec *exec);

/* Host <-> values: dense row-major data of the value's dtype; `bytes` must equal its size. Readable: inputs,
 * parameters and outputs; after a later run of another execution on the same workspace an output's contents
 * are gone. */
kedge_status kedge_exec_write(kedge_exec *exec, kedge_value value, const void *data, uint64_t bytes);
kedge_status kedge_exec_read(kedge_exec *exec, kedge_value value, void *data, uint64_t bytes);

/* Runs nodes [first, last); last is clamped to the number of nodes, so (0, UINT32_MAX) runs all. Waits for
 * the end. */
kedge_status kedge_exec_run(kedge_exec *exec, uint32_t first, uint32_t last);

/* Runs node by node, and each node also through the reference kernels on the same inputs; reports the largest
 * error relative to the output's largest entry, a call a node that ran. Float outputs only; ids must be equal
 * (error 0 or 1). */
typedef void (*kedge_compare_report)(void *context, uint32_t node, const char *op, const char *name,
                                     double error);
kedge_status kedge_exec_compare(kedge_exec *exec, kedge_compare_report report, void *context);

/* Per-op seconds, summed over the runs since profiling was switched on. */
typedef struct kedge_op_time {
  const char *op;
  uint64_t calls;
  double seconds;
} kedge_op_time;
void kedge_exec_profile(kedge_exec *exec, bool on);
uint32_t kedge_exec_times(const kedge_exec *exec, kedge_op_time *times,
                          uint32_t capacity); /* returns the number of ops */

/* What the planner found. Bytes: arena for values, scratch of the backend, inputs. `naive` is the arena
 * without reuse. */
typedef struct kedge_plan_summary {
  uint64_t arena, scratch, inputs, naive;
  uint32_t nodes, values, dead_nodes;
} kedge_plan_summary;
kedge_plan_summary kedge_exec_plan(const kedge_exec *exec);

#ifdef __cplusplus
}
#endif

#include "core/ops.h"

#endif
