/* SPDX-License-Identifier: Apache-2.0
 * Routing data through models (trace_model.h). */
#include "tools/trace_model.h"

#include "core/comm.h"
#include "tools/interrupt.h"
#include "tools/progress.h"

#include <stdio.h>
#include <string.h>

void tracing_note(void *context, const char *line) {
  (void)context;
  fprintf(stderr, "note: %s\n", line);
}

static bool advanced(void *context, uint64_t tokens, uint64_t total) {
  (void)total;
  progress_update(context, tokens, tokens, NULL);
  return !interrupt_requested();
}

kedge_status tracing_data(const tracing *t, const kedge_tokenizer *tokenizer, const char *const *files,
                          size_t count, bool notes, kedge_dataset **data) {
  const kedge_dataset_options options = {.tokenizer = tokenizer,
                                         .max_length = (uint32_t)t->max_length,
                                         .loss_on_all = true,
                                         .messages_on_all = true,
                                         .eos = -1,
                                         .prompt_template = t->prompt_template,
                                         .chat_template = t->chat_template,
                                         .notice = notes ? tracing_note : NULL};
  return kedge_dataset_read(files, NULL, count, &options, data);
}

kedge_status tracing_dtype(const tracing *t, const char *const *models, size_t count, kedge_dtype *dtype) {
  *dtype = KEDGE_F32;
  if (!strcmp(t->dtype, "f32")) return KEDGE_OK;
  if (!strcmp(t->dtype, "bf16")) {
    *dtype = KEDGE_BF16;
    return KEDGE_OK;
  }
  if (strcmp(t->dtype, "auto"))
    return kedge_fail(KEDGE_ERR_ARGUMENT, "--dtype: expected f32, bf16 or auto, came \"%.80s\"", t->dtype);
  for (size_t i = 0; i < count; i++) {
    kedge_hf_config config;
    KEDGE_TRY(kedge_hf_config_load(models[i], &config));
    kedge_dtype own = kedge_model_file_dtype(&config);
    kedge_hf_config_destroy(&config);
    if (i == 0) *dtype = own;
    if (own != *dtype) {
      *dtype = KEDGE_F32;
      break;
    }
  }
  return KEDGE_OK;
}

static kedge_status collect(const tracing *t, const kedge_model *model, const kedge_tokenizer *tokenizer,
                            const kedge_dataset *data, progress *bar, kedge_trace *trace) {
  const kedge_trace_options options = {.batch_size = (uint32_t)t->batch_size,
                                       .max_tokens = (uint64_t)t->max_tokens,
                                       .with_weights = t->weights,
                                       .with_logits = t->logits,
                                       .with_gaps = t->gaps,
                                       .progress = advanced,
                                       .context = bar};
  KEDGE_TRY(kedge_trace_collect(model, data, &options, trace));
  KEDGE_TRY(kedge_comm_same(kedge_device_comm(model->device), "the hash of the model", trace->model));
  memcpy(trace->tokenizer, kedge_tokenizer_hash(tokenizer), sizeof trace->tokenizer);
  return KEDGE_OK;
}

/* All ranks have one status: a model that one of them cannot open, or other samples, end all. */
static kedge_status open_model(kedge_device *device, const char *directory, const kedge_model_how *how,
                               kedge_dataset *const *data, size_t count, kedge_model **model) {
  kedge_comm *comm = kedge_device_comm(device);
  *model = NULL;
  kedge_status status = kedge_comm_agree(comm, kedge_model_open(device, directory, how, model));
  for (size_t i = 0; status == KEDGE_OK && i < count; i++)
    status = kedge_comm_same(comm, "the hash of the samples", data[i]->hash);
  if (status != KEDGE_OK) kedge_model_free(*model);
  return status;
}

kedge_status tracing_run(const tracing *t, const char *which, const char *directory, kedge_device *device,
                         kedge_dtype dtype, const kedge_tokenizer *tokenizer, kedge_dataset *const *data,
                         size_t count, kedge_trace *traces) {
  kedge_model *model;
  kedge_status status = KEDGE_OK;
  fprintf(stderr, "%s: %s %s, %s on %s\n", t->command, which, directory, kedge_dtype_name(dtype),
          kedge_device_description(device));
  const kedge_model_how how = {.dtype = dtype, .map = true, .options = t->model_options};
  KEDGE_TRY(open_model(device, directory, &how, data, count, &model));
  size_t done = 0;
  for (; done < count && status == KEDGE_OK; done++) {
    progress bar;
    char label[48];
    uint64_t tokens = data[done]->offsets[data[done]->count];
    if (t->max_tokens && (uint64_t)t->max_tokens < tokens) tokens = (uint64_t)t->max_tokens;
    snprintf(label, sizeof label, "%s %s", t->command, which);
    progress_init(&bar, stderr, label, "tokens", 0, tokens);
    status = collect(t, model, tokenizer, data[done], &bar, &traces[done]);
    if (status == KEDGE_OK)
      progress_end(&bar, NULL);
    else
      progress_clear(&bar);
  }
  kedge_model_free(model);
  if (status == KEDGE_OK) return KEDGE_OK;
  for (size_t i = 0; i < done; i++) kedge_trace_destroy(&traces[i]);
  return kedge_fail_in(status, "%s", directory);
}
