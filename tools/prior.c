/* SPDX-License-Identifier: Apache-2.0
 * `kedge prior`: the frozen base router's mean probabilities over a data set's spans
 * (models/prior/prior.h). */
#include "models/training/setup.h"
#include "tools/cli.h"
#include "tools/inputs.h"
#include "tools/interrupt.h"
#include "tools/progress.h"
#include "tools/ranks.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void note(void *context, const char *line) {
  (void)context;
  fprintf(stderr, "note: %s\n", line);
}

static bool advanced(void *context, uint64_t samples, uint64_t total, uint64_t tokens) {
  (void)total;
  progress_update(context, samples, tokens, NULL);
  return !interrupt_requested();
}

static kedge_status spare_inputs(const kedge_config *config, const char *out) {
  for (size_t i = 0; i < config->dataset.count; i++) {
    const char *path = config->dataset.items[i].path;
    KEDGE_TRY(input_spare(out, config->model_name_or_path, &path, 1));
  }
  return KEDGE_OK;
}

/* What is not in the configuration. */
typedef struct settings {
  const char *out, *store;
  int64_t batch;
  bool restart;
} settings;

/* What is opened and read. */
typedef struct opened {
  kedge_tokenizer *tokenizer;
  kedge_dataset *data;
  kedge_device *device;
  kedge_model *model;
  kedge_prior_identity identity;
} opened;

static kedge_status open_all(const kedge_config *config, const settings *s, kedge_comm *comm, opened *o) {
  const kedge_open_options open = {.threads = (uint32_t)config->threads};
  kedge_dtype dtype;
  KEDGE_TRY(kedge_config_require(config, "model_name_or_path,dataset"));
  KEDGE_TRY(kedge_setup_dtype(config, &dtype));
  KEDGE_TRY(kedge_setup_data(config, &config->dataset, note, NULL, &o->tokenizer, &o->data));
  KEDGE_TRY(spare_inputs(config, s->out));
  KEDGE_TRY(ranks_device(comm, config->backend, &open, &o->device));
  const kedge_model_how how = {.dtype = dtype, .map = true, .options = config->model_options};
  KEDGE_TRY(kedge_model_open(o->device, config->model_name_or_path, &how, &o->model));
  return kedge_prior_identify(o->model, o->tokenizer, o->data, (uint32_t)config->max_length,
                              config->prompt_template, config->chat_template, &o->identity);
}

static kedge_status compute(kedge_comm *comm, const kedge_config *config, const settings *s) {
  opened o = {0};
  kedge_status status;
  KEDGE_GOTO(kedge_comm_agree(comm, open_all(config, s, comm, &o)), status, done);
  KEDGE_GOTO(kedge_comm_same(comm, "the hash of the base model", o.identity.base), status, done);
  KEDGE_GOTO(kedge_comm_same(comm, "the hash of the samples", o.identity.data), status, done);
  fprintf(stderr, "prior: %u samples, %llu tokens, %u MoE layers, %u experts, on %s\n", o.data->count,
          (unsigned long long)o.data->offsets[o.data->count], o.model->params.moe_layers,
          o.model->config.num_experts, kedge_device_description(o.device));
  progress bar;
  progress_init(&bar, stderr, "prior", "samples", 0, o.data->count);
  const kedge_prior_options options = {.batch_size = (uint32_t)s->batch,
                                       .half = !strcmp(s->store, "f16"),
                                       .restart = s->restart,
                                       .progress = advanced,
                                       .note = note,
                                       .context = &bar};
  status = kedge_prior_compute(o.model, o.data, &o.identity, &options, s->out);
  if (status == KEDGE_OK) {
    progress_end(&bar, NULL);
    printf("%s: base %s, tokenizer %s, data %s\n", s->out, o.identity.base, o.identity.tokenizer,
           o.identity.data);
  } else {
    progress_clear(&bar);
  }
done:
  kedge_model_free(o.model);
  kedge_device_close(o.device);
  kedge_dataset_free(o.data);
  kedge_tokenizer_free(o.tokenizer);
  return status;
}

/* Options become overrides of a configuration, so that a prior sees the same samples as `kedge train` with
 * that file. */
static kedge_status run(kedge_comm *comm, const char *yaml, const cli_list *overrides, const settings *s) {
  kedge_config config;
  KEDGE_TRY(kedge_config_load(&config, yaml, overrides->items, overrides->count));
  kedge_status status = compute(comm, &config, s);
  kedge_config_destroy(&config);
  return status;
}

/* "key=value" in new memory, kept until the process ends. */
static void add(cli_list *list, const char *key, const char *value) {
  char *text = kedge_format("%s=%s", key, value);
  if (text) list->items[list->count++] = text;
}

/* The same with a value that must not be read as YAML, quoted. False: not UTF-8, which no quoting makes a
 * text. */
static bool add_quoted(cli_list *list, const char *key, const char *value) {
  json_t *text = json_string(value);
  char *quoted = text ? json_dumps(text, JSON_ENCODE_ANY) : NULL;
  if (quoted) add(list, key, quoted);
  free(quoted);
  json_decref(text);
  if (text) return true;
  kedge_fail(KEDGE_ERR_ARGUMENT, "\"%.120s\" is not valid UTF-8", value);
  return false;
}

/* The data files as one override, a list in flow form. */
static bool add_files(cli_list *list, const cli_list *files) {
  json_t *array = json_array();
  bool valid = true;
  for (size_t i = 0; i < files->count && valid; i++) {
    json_t *path = json_string(files->items[i]);
    valid = path != NULL;
    if (!valid) kedge_fail(KEDGE_ERR_ARGUMENT, "--data: \"%.120s\" is not valid UTF-8", files->items[i]);
    json_array_append_new(array, path);
  }
  char *flow = json_dumps(array, JSON_COMPACT);
  if (flow && files->count && valid) add(list, "dataset", flow);
  free(flow);
  json_decref(array);
  return valid;
}

int command_prior(int argc, char **argv) {
  settings s = {.store = "f32", .batch = 8};
  const char *model = NULL, *config = NULL, *dtype = NULL, *template = NULL, *chat = NULL, *backend = NULL,
             *model_options = NULL;
  cli_list files = {.count = 0}, arguments;
  int64_t max_length = 0, threads = 0;
  const cli_option options[] = {
      {"--model", CLI_TEXT, &model, "DIR", "folder of the frozen base model", false, 0, 0},
      {"--data", CLI_TEXTS, &files, "FILE",
       "JSONL file with the samples to be trained on; may be given again", false, 0, 0},
      {"--out", CLI_TEXT, &s.out, "FILE", "prior file to write (safetensors)", true, 0, 0},
      {"--config", CLI_TEXT, &config, "FILE",
       "configuration of the run the prior is for: its model, data, length, template", false, 0, 0},
      {"--max-length", CLI_INT, &max_length, "N", "longest sample in tokens, as in the run (1024)", false, 2,
       1048576},
      {"--prompt-template", CLI_TEXT, &template, "TEXT",
       "template of prompts with {prompt} in it, as in the run", false, 0, 0},
      {"--chat-template", CLI_TEXT, &chat, "NAME", "template of conversations, as in the run", false, 0, 0},
      {"--dtype", CLI_TEXT, &dtype, "TYPE", "f32, bf16 or auto: storage of weights and activations (auto)",
       false, 0, 0},
      {"--store", CLI_TEXT, &s.store, "TYPE", "f32, or f16: half the file, for rpb and rpb_hard alone (f32)",
       false, 0, 0},
      {"--restart", CLI_FLAG, &s.restart, NULL, "throw away what a stopped run has left in FILE.partial",
       false, 0, 0},
      {"--batch-size", CLI_INT, &s.batch, "N", "samples in one forward pass (8)", false, 1, 65536},
      {"--model-options", CLI_TEXT, &model_options, "LIST", INPUT_MODEL_OPTIONS, false, 0, 0},
      {"--backend", CLI_TEXT, &backend, "NAME", "compute backend, one of `kedge devices` (cpu)", false, 0, 0},
      INPUT_DEVICE_OPTION,
      {"--threads", CLI_INT, &threads, "N", "CPU threads, 0 = all (0)", false, 0, 4096},
  };
  const cli_spec spec = {
      .command = "prior",
      .synopsis = "",
      .summary =
          "Runs the frozen base model once over the training samples and stores, for each sample's prompt\n"
          "and completion and each MoE layer, the mean of the router's probabilities. The file carries\n"
          "hashes of base, tokenizer and data; `kedge train` refuses one that belongs to something else.\n"
          "Rows are kept in FILE.partial as they are made: the same command goes on after a stop.\n"
          "Ranks that mpirun or srun starts share the samples; the file has the same bits.",
      .options = options,
      .option_count = sizeof options / sizeof *options,
      .examples = "kedge prior --model base --data train.jsonl --out prior.safetensors\n"
                  "kedge prior --config run.yaml --out prior.safetensors\n"
                  "kedge prior --config run.yaml --store f16 --out half.safetensors"};
  int code;
  if (!cli_parse(&spec, argc, argv, &arguments, &code)) return code;
  cli_list overrides = {.count = 0};
  char number[24];
  bool valid = (!model || add_quoted(&overrides, "model_name_or_path", model)) &&
               add_files(&overrides, &files) &&
               (!template || add_quoted(&overrides, "prompt_template", template)) &&
               (!chat || add_quoted(&overrides, "chat_template", chat)) &&
               (!model_options || add_quoted(&overrides, "model_options", model_options));
  if (backend) add(&overrides, "backend", backend);
  if (dtype) add(&overrides, "dtype", dtype);
  if (max_length)
    snprintf(number, sizeof number, "%lld", (long long)max_length), add(&overrides, "max_length", number);
  if (threads)
    snprintf(number, sizeof number, "%lld", (long long)threads), add(&overrides, "threads", number);
  if (strcmp(s.store, "f32") && strcmp(s.store, "f16")) {
    kedge_fail(KEDGE_ERR_ARGUMENT, "--store: expected f32 or f16, got \"%.40s\"", s.store);
    valid = false;
  } else if (dtype && !strcmp(dtype, "f16")) {
    kedge_fail(KEDGE_ERR_ARGUMENT,
               "--dtype is for the model: f32, bf16 or auto; --store f16 makes a smaller file");
    valid = false;
  }
  interrupt_listen();
  kedge_comm *comm = NULL;
  kedge_status status = valid ? ranks_open("prior", true, &comm) : KEDGE_ERR_ARGUMENT;
  if (status == KEDGE_OK) status = ranks_same_arguments(comm, argc, argv);
  if (status == KEDGE_OK) status = run(comm, config, &overrides, &s);
  for (size_t i = 0; i < overrides.count; i++) kedge_free((void *)(uintptr_t)overrides.items[i]);
  return ranks_finish("prior", comm, status);
}
