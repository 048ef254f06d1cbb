/* SPDX-License-Identifier: Apache-2.0
 * From a configuration to the things of a run. */
#include "models/training/setup.h"

#include "core/device.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

const kedge_dataset *kedge_setup_train(const kedge_setup *s) {
  return s->train ? s->train : s->data;
}

kedge_status kedge_setup_dtype(const kedge_config *config, kedge_dtype *dtype) {
  kedge_hf_config hf;
  if (config->dtype != KEDGE_CONFIG_DTYPE_AUTO) {
    *dtype = config->dtype == KEDGE_CONFIG_DTYPE_BF16 ? KEDGE_BF16 : KEDGE_F32;
    return KEDGE_OK;
  }
  KEDGE_TRY(kedge_hf_config_load(config->model_name_or_path, &hf));
  *dtype = kedge_model_file_dtype(&hf);
  kedge_hf_config_destroy(&hf);
  return KEDGE_OK;
}

/* Reads the files with the options of the config. */
static kedge_status read_files(const kedge_config *config, const kedge_config_files *files,
                               const kedge_tokenizer *tokenizer, kedge_note note, void *context,
                               kedge_dataset **data) {
  const char **paths = kedge_alloc(files->count, sizeof *paths),
             **types = kedge_alloc(files->count, sizeof *types);
  kedge_status status = paths && types ? KEDGE_OK : KEDGE_ERR_MEMORY;
  for (size_t i = 0; status == KEDGE_OK && i < files->count; i++) {
    paths[i] = files->items[i].path;
    types[i] = files->items[i].type;
  }
  const kedge_dataset_options options = {
      .tokenizer = tokenizer,
      .max_length = (uint32_t)config->max_length,
      .loss_on_all = config->completion_only_loss == KEDGE_CONFIG_CHOICE_FALSE,
      .messages_on_all = config->assistant_only_loss == KEDGE_CONFIG_CHOICE_FALSE,
      .skip_bad_lines = config->skip_bad_lines,
      .eos = -1,
      .prompt_template = config->prompt_template,
      .chat_template = config->chat_template,
      .notice = note,
      .context = context,
  };
  if (status == KEDGE_OK) status = kedge_dataset_read(paths, types, files->count, &options, data);
  kedge_free(paths);
  kedge_free(types);
  return status;
}

kedge_status kedge_setup_data(const kedge_config *config, const kedge_config_files *files, kedge_note note,
                              void *context, kedge_tokenizer **tokenizer, kedge_dataset **data) {
  *data = NULL;
  KEDGE_TRY(kedge_tokenizer_open(config->model_name_or_path, NULL, tokenizer));
  kedge_status status = read_files(config, files, *tokenizer, note, context, data);
  if (status != KEDGE_OK) {
    kedge_tokenizer_free(*tokenizer);
    *tokenizer = NULL;
  }
  return status;
}

/* Training and evaluation samples. */
static kedge_status open_data(kedge_setup *s, kedge_note note, void *context) {
  const kedge_config *c = s->config;
  KEDGE_TRY(kedge_setup_data(c, &c->dataset, note, context, &s->tokenizer, &s->data));
  if (c->eval_dataset.count) return read_files(c, &c->eval_dataset, s->tokenizer, note, context, &s->eval);
  if (c->eval_split > 0)
    return kedge_dataset_split(s->data, c->eval_split, c->shuffle_dataset, (uint64_t)c->seed, &s->train,
                               &s->eval);
  return KEDGE_OK;
}

static kedge_status open_model(kedge_setup *s, kedge_dtype dtype) {
  const kedge_config *c = s->config;
  const kedge_model_how how = {.dtype = dtype, .share_experts = true, .options = c->model_options};
  return kedge_model_open(s->device, c->model_name_or_path, &how, &s->model);
}

/* The device's collective ops run over the ranks, in the groups that the configuration wants. */
static kedge_status arrange(kedge_setup *s) {
  const uint32_t experts = (uint32_t)s->config->expert_parallel;
  if (!s->comm)
    return kedge_fail(KEDGE_ERR_ARGUMENT,
                      "key \"expert_parallel\": %u ranks to share the experts, but the run has one", experts);
  KEDGE_TRY(kedge_comm_arrange(s->comm, experts));
  kedge_device_join(s->device, s->comm);
  return kedge_device_connect(s->device);
}

/* `auto` is the model's own dtype, or f32 where bf16 would be slower; says which. */
static void settle_dtype(const kedge_setup *s, kedge_dtype *dtype, kedge_note note, void *context) {
  if (s->config->dtype != KEDGE_CONFIG_DTYPE_AUTO) return;
  const bool widen = *dtype == KEDGE_BF16 && s->device->limits.slow_bf16;
  char line[200];
  if (widen) *dtype = KEDGE_F32;
  snprintf(line, sizeof line, "dtype is %s: %s", kedge_dtype_name(*dtype),
           widen ? "the model's files are bf16, which is slower than f32 on this device"
                 : "as the model's files say");
  if (note) note(context, line);
}

/* CPU threads of a rank: by default its part of the machine. */
static uint32_t threads_of(const kedge_config *config, const kedge_comm *comm) {
  const long cores = sysconf(_SC_NPROCESSORS_ONLN);
  if (config->threads || !comm || comm->local_size <= 1 || cores <= 0) return (uint32_t)config->threads;
  const uint32_t each = (uint32_t)cores / comm->local_size;
  return each ? each : 1;
}

kedge_status kedge_setup_init(kedge_setup *s, const kedge_config *config, kedge_note note, void *context) {
  return kedge_setup_init_on(s, config, NULL, note, context);
}

kedge_status kedge_setup_init_on(kedge_setup *s, const kedge_config *config, kedge_comm *comm,
                                 kedge_note note, void *context) {
  *s = (kedge_setup){.config = config, .comm = comm};
  kedge_dtype dtype;
  kedge_status status;
  const kedge_open_options open = {.threads = threads_of(config, comm),
                                   .ordinal = comm ? comm->local_rank : 0};
  KEDGE_GOTO(kedge_config_require(config, "model_name_or_path,dataset,output_dir"), status, fail);
  KEDGE_GOTO(kedge_setup_dtype(config, &dtype), status, fail);
  KEDGE_GOTO(kedge_device_open(config->backend, &open, &s->device), status, fail);
  if (!s->device->limits.computes) {
    status = kedge_fail(KEDGE_ERR_ARGUMENT, "key \"backend\": %s computes nothing", config->backend);
    goto fail;
  }
  if (comm || config->expert_parallel != 1) KEDGE_GOTO(arrange(s), status, fail);
  if (note && kedge_device_note(s->device)) note(context, kedge_device_note(s->device));
  settle_dtype(s, &dtype, note, context);
  KEDGE_GOTO(open_data(s, note, context), status, fail);
  KEDGE_GOTO(open_model(s, dtype), status, fail);
  for (uint32_t i = 0; note && i < s->model->config.notes.count; i++)
    note(context, s->model->config.notes.items[i]);
  for (uint32_t i = 0; note && i < s->model->notes.count; i++) note(context, s->model->notes.items[i]);
  if (note && s->model->config.router_aux_loss_coef != config->router_aux_loss_coef) {
    char line[160];
    snprintf(line, sizeof line,
             "router_aux_loss_coef is %g in this run; the model config's %g is not taken over",
             config->router_aux_loss_coef, s->model->config.router_aux_loss_coef);
    note(context, line);
  }
  if (kedge_tokenizer_size(s->tokenizer) > s->model->config.vocab_size && note) {
    char line[160];
    snprintf(line, sizeof line,
             "the tokenizer has %u ids, the model %u embedding rows: higher ids in the data are an error",
             kedge_tokenizer_size(s->tokenizer), s->model->config.vocab_size);
    note(context, line);
  }
  KEDGE_GOTO(kedge_dataset_check_ids(s->data, s->model->config.vocab_size), status, fail);
  if (s->eval) KEDGE_GOTO(kedge_dataset_check_ids(s->eval, s->model->config.vocab_size), status, fail);
  KEDGE_GOTO(kedge_interventions_open(&s->router, s), status, fail);
  return KEDGE_OK;
fail:
  kedge_setup_destroy(s);
  return status;
}

void kedge_setup_destroy(kedge_setup *s) {
  kedge_interventions_close(&s->router);
  kedge_model_free(s->model);
  kedge_dataset_free(s->train);
  kedge_dataset_free(s->eval);
  kedge_dataset_free(s->data);
  kedge_tokenizer_free(s->tokenizer);
  kedge_device_close(s->device);
  *s = (kedge_setup){0};
}
