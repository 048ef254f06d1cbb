/* SPDX-License-Identifier: Apache-2.0
 *
 * Compare-with-reference: every node runs on the device and, on copies of the same inputs, through the
 * reference kernel. For devices whose buffers are host memory.
 */
#include "core/collect.h"

#include <math.h>
#include <string.h>

static size_t tensor_bytes(const kedge_tensor *t) {
  size_t count = 1;
  for (uint32_t i = 0; i < t->rank; i++) count *= t->dims[i];
  return count * kedge_dtype_size(t->dtype);
}

static double element(const kedge_tensor *t, const void *data, size_t i) {
  switch (t->dtype) {
  case KEDGE_F64:
    return ((const double *)data)[i];
  case KEDGE_BF16:
    return kedge_bf16_to_f32(((const uint16_t *)data)[i]);
  case KEDGE_I32:
    return ((const int32_t *)data)[i];
  default:
    return ((const float *)data)[i];
  }
}

/* Largest difference relative to the largest entry of `want`; 1 or 0 for ids. NaN against a number is
 * infinite. */
static double difference(const kedge_tensor *t, const void *got, const void *want) {
  size_t count = tensor_bytes(t) / kedge_dtype_size(t->dtype);
  double most = 0, largest = 0;
  for (size_t i = 0; i < count; i++) {
    double g = element(t, got, i), w = element(t, want, i);
    double d = g == w || (isnan(g) && isnan(w)) ? 0 : fabs(g - w);
    if (!(d <= most)) most = isnan(d) ? INFINITY : d;
    if (fabs(w) > largest) largest = fabs(w);
  }
  if (t->dtype == KEDGE_I32) return most > 0;
  return largest > 0 ? most / largest : most;
}

/* The step again, through the reference kernel, on copies of everything that it writes; copies[i] is output
 * i, then input i. */
static kedge_status run_reference(const kedge_step *step, void **copies) {
  const kedge_op_info *info = kedge_op_get(step->op);
  kedge_call call = step->call;
  call.scratch = NULL;
  for (uint32_t i = 0; i < info->out_count; i++) {
    if (!(copies[i] = kedge_alloc(tensor_bytes(&call.out[i]), 1))) return KEDGE_ERR_MEMORY;
    call.out[i].data = copies[i];
  }
  for (uint32_t i = 0; i < info->in_count; i++) {
    if (!info->in[i].updated || !call.in[i].rank) continue;
    void *copy = copies[KEDGE_MAX_OUT + i] = kedge_alloc(tensor_bytes(&call.in[i]), 1);
    if (!copy) return KEDGE_ERR_MEMORY;
    memcpy(copy, call.in[i].data, tensor_bytes(&call.in[i]));
    call.in[i].data = copy;
  }
  kedge__reference(step->op, step->variant)(&call);
  return KEDGE_OK;
}

static kedge_status compare_step(kedge_exec *e, const kedge_step *step, double *error) {
  const kedge_op_info *info = kedge_op_get(step->op);
  void *copies[KEDGE_MAX_OUT + KEDGE_MAX_IN] = {0};
  *error = 0;
  kedge_status status = run_reference(step, copies);
  if (status == KEDGE_OK) status = e->device->backend->run(e->device, step, 1);
  if (status == KEDGE_OK) status = e->device->backend->sync(e->device);
  for (uint32_t i = 0; status == KEDGE_OK && i < info->out_count; i++)
    *error = fmax(*error, difference(&step->call.out[i], step->call.out[i].data, copies[i]));
  for (uint32_t i = 0; status == KEDGE_OK && i < info->in_count; i++)
    if (copies[KEDGE_MAX_OUT + i])
      *error = fmax(*error, difference(&step->call.in[i], step->call.in[i].data, copies[KEDGE_MAX_OUT + i]));
  for (size_t i = 0; i < sizeof copies / sizeof *copies; i++) kedge_free(copies[i]);
  return status;
}

kedge_status kedge_exec_compare(kedge_exec *e, kedge_compare_report report, void *context) {
  if (!e->device->limits.host_memory || !e->device->limits.computes)
    return kedge_fail(KEDGE_ERR_UNSUPPORTED, "%s: comparing needs a device that computes in host memory",
                      e->device->description);
  KEDGE_TRY(kedge__exec_prepare(e));
  for (uint32_t s = 0; s < e->step_count; s++) {
    double error;
    if (kedge_op_get(e->steps[s].op)->kind == KEDGE_KIND_COLLECTIVE) {
      KEDGE_TRY(kedge__collective_run(e, &e->steps[s])); /* it has no kernel to be compared with */
      continue;
    }
    KEDGE_TRY(compare_step(e, &e->steps[s], &error));
    const kedge_node *node = &e->graph->nodes[e->steps[s].node];
    report(context, e->steps[s].node, kedge_op_get(node->op)->name, kedge_value_name(e->graph, node->out[0]),
           error);
  }
  return KEDGE_OK;
}
