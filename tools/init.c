/* SPDX-License-Identifier: Apache-2.0
 * `kedge init`: a random model directory from a config, with a tokenizer. */
#include "models/checkpoint/atomic.h"
#include "models/decoder/initialise.h"
#include "models/text/tokenizer.h"
#include "tools/cli.h"
#include "tools/inputs.h"
#include "tools/progress.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_CAP = 16 << 20 };

typedef struct init_options {
  const char *config, *tokenizer, *kind, *out, *dtype;
  int64_t seed;
  bool force;
} init_options;

/* What is read before anything is written. */
typedef struct init_state {
  char *config_text, *generation_text;
  size_t config_bytes, generation_bytes;
  kedge_hf_config config;
  kedge_params params;
  kedge_tokenizer *tokenizer;
  kedge_directory *directory;
} init_state;

static kedge_status read_configs(const init_options *o, init_state *s) {
  const bool folder = input_is_folder(o->config);
  char *config = folder ? kedge_path_join(o->config, "config.json") : kedge_strdup(o->config);
  char *generation = folder ? kedge_path_join(o->config, "generation_config.json") : NULL;
  kedge_status status = config && (generation || !folder) ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) status = input_config(o->config, &s->config);
  if (status == KEDGE_OK) status = kedge_file_read(config, CONFIG_CAP, &s->config_text, &s->config_bytes);
  FILE *exists = status == KEDGE_OK && generation ? fopen(generation, "rb") : NULL;
  if (exists) {
    fclose(exists);
    status = kedge_file_read(generation, CONFIG_CAP, &s->generation_text, &s->generation_bytes);
  }
  kedge_free(config);
  kedge_free(generation);
  if (status == KEDGE_OK) status = kedge_params_init(&s->params, &s->config);
  return status;
}

static kedge_status read_tokenizer(const init_options *o, init_state *s) {
  if (!o->tokenizer) return KEDGE_OK;
  KEDGE_TRY(kedge_tokenizer_open(o->tokenizer, o->kind, &s->tokenizer));
  uint32_t size = kedge_tokenizer_size(s->tokenizer);
  if (size > s->config.vocab_size)
    return kedge_fail(KEDGE_ERR_MISMATCH, "%s has %u tokens, more than the vocab_size %u of %s", o->tokenizer,
                      size, s->config.vocab_size, o->config);
  return KEDGE_OK;
}

/* The model stops at the config's eos, data end with the tokenizer's: worth a word where they differ. */
static void note_eos(const init_state *s) {
  int32_t eos = s->tokenizer ? kedge_tokenizer_eos(s->tokenizer) : -1;
  bool same = eos < 0;
  for (uint32_t i = 0; i < s->config.eos.count; i++) same |= s->config.eos.ids[i] == eos;
  if (s->tokenizer && eos < 0 && !s->config.eos.count)
    fprintf(stderr, "note: neither the tokenizer nor config.json names an end-of-sequence token: a model "
                    "trained on this could "
                    "not learn to stop; set eos_token_id in config.json\n");
  if (!same)
    fprintf(stderr, "note: the tokenizer's end-of-sequence token is %d, which config.json does not list\n",
            eos);
}

static kedge_status choose_dtype(const init_options *o, const kedge_hf_config *config,
                                 kedge_st_dtype *dtype) {
  const char *name = o->dtype ? o->dtype : config->dtype;
  *dtype = KEDGE_ST_F32;
  if (!strcmp(name, "bf16") || !strcmp(name, "bfloat16"))
    *dtype = KEDGE_ST_BF16;
  else if (!o->dtype && !strcmp(name, "float16"))
    *dtype = KEDGE_ST_F16;
  else if (o->dtype ? strcmp(name, "f32") != 0 : *name && strcmp(name, "float32"))
    return o->dtype
               ? kedge_fail(KEDGE_ERR_ARGUMENT, "--dtype: expected f32 or bf16, came \"%.40s\"", name)
               : kedge_fail(KEDGE_ERR_UNSUPPORTED, "%s: dtype %s; choose one with --dtype", o->config, name);
  return KEDGE_OK;
}

static bool show(void *context, uint64_t done, uint64_t total) {
  (void)total;
  progress_update(context, done >> 20, 0, NULL);
  return true;
}

/* A tokenizer file that names no end takes the config's, so that other libraries find it in
 * tokenizer_config.json too. */
static kedge_status write_eos(const init_state *s, const char *folder) {
  if (kedge_tokenizer_eos(s->tokenizer) >= 0 || !s->config.eos.count) return KEDGE_OK;
  const char *content = kedge_tokenizer_content(s->tokenizer, s->config.eos.ids[0]);
  char *path = content ? kedge_path_join(folder, "tokenizer_config.json") : NULL;
  json_t *root = path ? json_load_file(path, 0, NULL) : NULL;
  char *text = NULL;
  if (root && json_object_set_new(root, "eos_token", json_string(content)) == 0)
    text = json_dumps(root, JSON_INDENT(2));
  kedge_status status = text ? kedge_file_write(path, text, strlen(text)) : KEDGE_OK;
  free(text);
  json_decref(root);
  kedge_free(path);
  return status;
}

static kedge_status write_model(const init_options *o, init_state *s, kedge_st_dtype dtype) {
  const uint64_t bytes = kedge_initialise_bytes(&s->params, dtype);
  progress line;
  KEDGE_TRY(kedge_disk_require(o->out, bytes));
  KEDGE_TRY(kedge_directory_begin(o->out, o->force, &s->directory));
  const char *folder = kedge_directory_path(s->directory);
  progress_init(&line, stderr, "init", "MiB", 0, bytes >> 20);
  const kedge_initialise_options options = {
      .seed = (uint64_t)o->seed, .dtype = dtype, .progress = show, .context = &line};
  KEDGE_TRY(kedge_initialise_configs(&s->params, dtype, s->config_text, s->config_bytes, s->generation_text,
                                     s->generation_bytes, folder));
  if (s->tokenizer) KEDGE_TRY(kedge_tokenizer_save(s->tokenizer, folder));
  if (s->tokenizer) KEDGE_TRY(write_eos(s, folder));
  kedge_status status = kedge_initialise_weights(&s->params, &options, folder);
  progress_clear(&line);
  KEDGE_TRY(status);
  kedge_directory *whole = s->directory;
  s->directory = NULL;
  return kedge_directory_commit(whole);
}

static kedge_status run(const init_options *o) {
  init_state s = {0};
  kedge_st_dtype dtype = KEDGE_ST_F32;
  char text[24];
  kedge_status status = read_configs(o, &s);
  if (status == KEDGE_OK) status = choose_dtype(o, &s.config, &dtype);
  if (status == KEDGE_OK) status = read_tokenizer(o, &s);
  if (status == KEDGE_OK) status = write_model(o, &s, dtype);
  if (status == KEDGE_OK) {
    note_eos(&s);
    printf("%s: %llu parameters (%llu active), %llu tensors of %s, %s\n", o->out,
           (unsigned long long)s.params.total, (unsigned long long)s.params.active,
           (unsigned long long)s.params.tensors, kedge_st_dtype_name(dtype),
           cli_bytes(kedge_initialise_bytes(&s.params, dtype), text));
  }
  kedge_directory_discard(s.directory);
  kedge_tokenizer_free(s.tokenizer);
  kedge_params_destroy(&s.params);
  kedge_hf_config_destroy(&s.config);
  kedge_free(s.config_text);
  kedge_free(s.generation_text);
  return status;
}

int command_init(int argc, char **argv) {
  init_options o = {0};
  const cli_option options[] = {
      {"--config", CLI_TEXT, &o.config, "FILE", "config.json, or a folder that has one", true, 0, 0},
      {"--out", CLI_TEXT, &o.out, "DIR", "model directory to write", true, 0, 0},
      {"--tokenizer", CLI_TEXT, &o.tokenizer, "PATH", "tokenizer file or folder (none: weights only)", false,
       0, 0},
      {"--tokenizer-kind", CLI_TEXT, &o.kind, "KIND", "qwen, gpt2 or kimi, for a ranks file", false, 0, 0},
      {"--seed", CLI_INT, &o.seed, "N", "seed of the weights (0)", false, 0, 0x1p53},
      {"--dtype", CLI_TEXT, &o.dtype, "DTYPE", "f32 or bf16 (as the config says)", false, 0, 0},
      {"--force", CLI_FLAG, &o.force, NULL, "replace what is at DIR", false, 0, 0}};
  const cli_spec spec = {
      .command = "init",
      .synopsis = "",
      .summary =
          "Writes a Hugging Face model directory with random weights: matrices normal with the config's\n"
          "initializer_range, norms 1. The same seed gives the same bytes. The directory appears whole or\n"
          "not at all.",
      .options = options,
      .option_count = sizeof options / sizeof *options,
      .examples =
          "kedge init --config config.json --tokenizer qwen.tiktoken --tokenizer-kind qwen --out model\n"
          "kedge init --config model --tokenizer model --seed 1 --dtype f32 --out model-f32"};
  cli_list arguments;
  int code;
  if (!cli_parse(&spec, argc, argv, &arguments, &code)) return code;
  return cli_finish("init", run(&o));
}
