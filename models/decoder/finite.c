/* SPDX-License-Identifier: Apache-2.0
 *
 * Names the weight behind numbers that are not finite (finite.h). Reads weights only after a failure: a model
 * mapped from its files is not paged in for a check.
 */
#include "models/decoder/finite.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

enum { CHUNK = 1 << 16 }; /* bytes read at once */

/* An element of a weight as a number. */
static double element_at(const void *data, kedge_dtype dtype, uint64_t i) {
  switch (dtype) {
  case KEDGE_BF16:
    return (double)kedge_bf16_to_f32(((const uint16_t *)data)[i]);
  case KEDGE_F64:
    return ((const double *)data)[i];
  default:
    return (double)((const float *)data)[i];
  }
}

/* What a search through weights has found: the first element that is not finite, else the largest. */
typedef struct found {
  uint32_t item, part;
  uint64_t at; /* element of the file tensor */
  double value;
} found;

/* Searches `count` elements of a buffer that hold parts of `each` elements, the first of them number `part`.
 * True once something not finite is found. A buffer that cannot be read tells nothing. */
static bool search(const kedge_buffer *buffer, kedge_dtype dtype, uint64_t count, uint64_t each, found at,
                   found *f) {
  _Alignas(8) unsigned char chunk[CHUNK];
  const uint64_t size = kedge_dtype_size(dtype), step = CHUNK / size;
  for (uint64_t first = 0; first < count; first += step) {
    const uint64_t n = count - first < step ? count - first : step;
    if (kedge_buffer_read(buffer, first * size, chunk, n * size)) return false;
    for (uint64_t i = 0; i < n; i++) {
      const double value = element_at(chunk, dtype, i);
      if (fabs(value) <= fabs(f->value)) continue;
      *f = (found){at.item, at.part + (uint32_t)((first + i) / each), (first + i) % each, value};
      if (!isfinite(value)) return true;
    }
  }
  return false;
}

static void search_model(const kedge_model *model, found *f) {
  for (uint32_t i = 0; i < model->params.count; i++) {
    const kedge_param *p = &model->params.items[i];
    const kedge_dtype dtype = kedge_param_dtype(p, model->dtype);
    const uint64_t all = kedge_param_count(p), each = all / p->parts;
    kedge_buffer *const *parts = model->parts ? model->parts[i] : NULL;
    if (!parts && search(model->weights[i], dtype, all, each, (found){.item = i}, f)) return;
    for (uint32_t part = 0; parts && part < p->parts; part++)
      if (search(parts[part], dtype, each, each, (found){.item = i, .part = part}, f)) return;
  }
}

kedge_status kedge_not_finite(const kedge_model *model, const char *format, ...) {
  char what[256], name[KEDGE_NAME_SIZE];
  found f = {0};
  va_list list;
  va_start(list, format);
  vsnprintf(what, sizeof what, format, list);
  va_end(list);
  search_model(model, &f);
  kedge_param_name(&model->params.items[f.item], f.part, name);
  if (isfinite(f.value))
    return kedge_fail(KEDGE_ERR_NUMERIC, "%s; the weights are, the largest is %g in %s", what, f.value, name);
  const char *kind = isnan(f.value) ? "a NaN" : "an infinity";
  if (model->params.items[f.item].paired) /* its elements lie elsewhere in the file */
    return kedge_fail(KEDGE_ERR_NUMERIC, "%s: %s holds %s", what, name, kind);
  return kedge_fail(KEDGE_ERR_NUMERIC, "%s: %s holds %s at element %llu", what, name, kind,
                    (unsigned long long)f.at);
}

kedge_status kedge_pass_check_router(const kedge_pass *pass, const kedge_model *model, uint32_t moe_layer) {
  const kedge_value counted = pass->decoder.bad_1[moe_layer];
  int32_t bad = 0;
  if (counted) KEDGE_TRY(kedge_exec_read(pass->exec, counted, &bad, sizeof bad));
  if (!bad) return KEDGE_OK;
  return kedge_not_finite(model, "layer %u: the router logits of %d tokens are not finite",
                          kedge_params_moe_layer(&model->params, moe_layer), bad);
}

kedge_status kedge_pass_check_routers(const kedge_pass *pass, const kedge_model *model) {
  for (uint32_t l = 0; l < model->params.moe_layers; l++) KEDGE_TRY(kedge_pass_check_router(pass, model, l));
  return KEDGE_OK;
}
