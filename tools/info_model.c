/* SPDX-License-Identifier: Apache-2.0
 * Model directories and configs for `kedge info` (info.h). */
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/hash.h"
#include "models/decoder/parameters.h"
#include "models/text/tokenizer.h"
#include "tools/info.h"
#include "tools/inputs.h"

#include <stdio.h>
#include <string.h>

enum { MOST_LINES = 20 }; /* of one kind of problem */

static void add_notes(json_t *list, const kedge_notes *notes) {
  for (uint32_t i = 0; i < notes->count; i++) info_say(list, "%s", notes->items[i]);
}

static json_t *id_list(const kedge_id_list *ids) {
  json_t *list = json_array();
  for (uint32_t i = 0; i < ids->count; i++) json_array_append_new(list, json_integer(ids->ids[i]));
  return list;
}

/* ---- Config
 * -------------------------------------------------------------------------------------------------------- */

static void describe_config(json_t *root, const kedge_hf_config *c) {
  info_text(root, "family", c->model_type);
  info_number(root, "layers", c->num_hidden_layers);
  info_number(root, "layers_with_experts", kedge_hf_sparse_layers(c));
  info_number(root, "hidden_size", c->hidden_size);
  info_number(root, "heads", c->num_attention_heads);
  info_number(root, "kv_heads", c->num_key_value_heads);
  info_number(root, "head_dim", c->head_dim);
  info_number(root, "experts", c->num_experts);
  info_number(root, "experts_per_token", c->num_experts_per_tok);
  info_number(root, "vocabulary", c->vocab_size);
  info_number(root, "max_positions", c->max_position_embeddings);
  info_text(root, "dtype", *c->dtype ? c->dtype : NULL);
  json_object_set_new(root, "tied_head", json_boolean(c->tie_word_embeddings));
  if (c->bos_token_id >= 0) info_number(root, "bos", (uint64_t)c->bos_token_id);
  json_object_set_new(root, "eos", id_list(c->generation_eos.count ? &c->generation_eos : &c->eos));
}

static bool describe_params(info_report *r, const kedge_hf_config *config, kedge_params *params) {
  char options[KEDGE_MODEL_OPTIONS_TEXT];
  if (kedge_params_init(params, config) != KEDGE_OK) {
    info_say(r->problems, "%s", kedge_message());
    return false;
  }
  info_number(r->root, "parameters", params->total);
  info_number(r->root, "active_parameters", params->active);
  if (*kedge_model_options_text(kedge_model_options_open(config), options))
    info_say(r->notes,
             "implementations of %s differ in what this config means: transformers' way holds unless other "
             "commands are given --model-options %s",
             config->model_type, options);
  return true;
}

kedge_status info_config(info_report *r, const char *path) {
  kedge_hf_config config;
  kedge_params params = {0};
  KEDGE_TRY(input_config(path, &config));
  info_text(r->root, "kind", "config");
  describe_config(r->root, &config);
  if (describe_params(r, &config, &params)) info_number(r->root, "tensors", params.tensors);
  add_notes(r->notes, &config.notes);
  kedge_params_destroy(&params);
  kedge_hf_config_destroy(&config);
  return KEDGE_OK;
}

/* ---- Weights
 * ------------------------------------------------------------------------------------------------------- */

static void describe_checkpoint(info_report *r, const kedge_checkpoint *checkpoint) {
  uint64_t bytes[KEDGE_ST_DTYPE_COUNT] = {0}, counts[KEDGE_ST_DTYPE_COUNT] = {0};
  for (uint32_t i = 0; i < kedge_checkpoint_count(checkpoint); i++) {
    const kedge_st_tensor *tensor = kedge_checkpoint_at(checkpoint, i);
    bytes[tensor->dtype] += tensor->bytes;
    counts[tensor->dtype]++;
  }
  json_t *dtypes = json_array();
  for (int d = 0; d < KEDGE_ST_DTYPE_COUNT; d++)
    if (counts[d])
      json_array_append_new(dtypes,
                            json_pack("{s:s, s:I, s:I}", "dtype", kedge_st_dtype_name((kedge_st_dtype)d),
                                      "tensors", (json_int_t)counts[d], "bytes", (json_int_t)bytes[d]));
  info_number(r->root, "tensors", kedge_checkpoint_count(checkpoint));
  info_number(r->root, "shards", kedge_checkpoint_shard_count(checkpoint));
  info_number(r->root, "bytes", kedge_checkpoint_bytes(checkpoint));
  json_object_set_new(r->root, "dtypes", dtypes);
  add_notes(r->notes, kedge_checkpoint_notes(checkpoint));
  char hash[KEDGE_HASH_TEXT];
  if (!r->hash) return;
  if (kedge_hash_checkpoint(checkpoint, hash) == KEDGE_OK)
    info_text(r->root, "hash", hash);
  else
    info_say(r->problems, "%s", kedge_message());
}

/* One kind of problem: the first lines are listed, the others counted. */
typedef struct tally {
  json_t *list;
  const char *what, *many; /* of one, of several */
  uint64_t count;
} tally;

static void tally_add(tally *t, const char *name, const char *more) {
  if (t->count++ < MOST_LINES) info_say(t->list, "tensor %s %s%s", name, t->what, more);
}

static void tally_end(const tally *t) {
  if (t->count > MOST_LINES)
    info_say(t->list, "%llu further tensors %s", (unsigned long long)(t->count - MOST_LINES), t->many);
}

static void compare_shape(tally *wrong, const kedge_param *param, const kedge_st_tensor *tensor) {
  kedge_st_tensor want = {.dtype = tensor->dtype};
  want.rank = kedge_param_part_shape(param, want.shape);
  bool same = want.rank == tensor->rank;
  for (uint32_t i = 0; same && i < want.rank; i++) same = want.shape[i] == tensor->shape[i];
  if (same) return;
  char got_text[128], want_text[128], more[300];
  kedge_st_shape_text(tensor, got_text, sizeof got_text);
  kedge_st_shape_text(&want, want_text, sizeof want_text);
  snprintf(more, sizeof more, "%s, the config says %s", got_text, want_text);
  tally_add(wrong, tensor->name, more);
}

/* Every tensor of the config against the files, and the other way round. */
static void compare_tensors(info_report *r, const kedge_params *params, const kedge_checkpoint *checkpoint) {
  tally missing = {r->problems, "is missing", "are missing", 0};
  tally wrong = {r->problems, "has the shape ", "have another shape than the config says", 0};
  tally unknown = {r->problems, "is no part of the model", "are no part of the model", 0};
  tally stale = {r->notes, "is stale or empty and ignored", "are stale or empty and ignored", 0};
  for (uint32_t i = 0; i < params->count; i++)
    for (uint32_t part = 0; part < params->items[i].parts && !params->items[i].second; part++) {
      char name[KEDGE_NAME_SIZE];
      kedge_param_name(&params->items[i], part, name);
      const kedge_st_tensor *tensor = kedge_checkpoint_find(checkpoint, name);
      if (tensor)
        compare_shape(&wrong, &params->items[i], tensor);
      else
        tally_add(&missing, name, "");
    }
  for (uint32_t i = 0; i < kedge_checkpoint_count(checkpoint); i++) {
    const kedge_st_tensor *tensor = kedge_checkpoint_at(checkpoint, i);
    const char *name = tensor->name;
    uint32_t item, part;
    bool tied;
    if (kedge_params_lookup(params, name, &item, &part, &tied)) continue;
    const bool ignored = !tensor->bytes || kedge_params_ignores(params, name);
    tally_add(ignored ? &stale : &unknown, name, "");
  }
  tally_end(&missing);
  tally_end(&wrong);
  tally_end(&unknown);
  tally_end(&stale);
}

/* ---- Tokenizer and the whole
 * ---------------------------------------------------------------------------------------- */

bool info_tokenizer(info_report *r, json_t *object, const char *path, uint32_t vocabulary) {
  kedge_tokenizer *tokenizer;
  kedge_status status = kedge_tokenizer_open(path, NULL, &tokenizer);
  if (status != KEDGE_OK) {
    /* Weights without a tokenizer can be scored and continued by ids. */
    info_say(status == KEDGE_ERR_IO ? r->notes : r->problems, "%s", kedge_message());
    return false;
  }
  const int32_t bos = kedge_tokenizer_bos(tokenizer), eos = kedge_tokenizer_eos(tokenizer);
  const uint32_t size = kedge_tokenizer_size(tokenizer);
  info_text(object, "kind", kedge_tokenizer_description(tokenizer));
  info_number(object, "size", size);
  if (bos >= 0) info_number(object, "bos", (uint64_t)bos);
  if (eos >= 0) info_number(object, "eos", (uint64_t)eos);
  json_object_set_new(object, "adds_bos", json_boolean(kedge_tokenizer_adds_bos(tokenizer)));
  json_object_set_new(object, "chat_template",
                      json_boolean(kedge_tokenizer_chat_template(tokenizer) != NULL));
  info_text(object, "hash", kedge_tokenizer_hash(tokenizer));
  if (vocabulary && size > vocabulary)
    info_say(r->problems, "the tokenizer has %u tokens, more than the model's vocabulary of %u", size,
             vocabulary);
  kedge_tokenizer_free(tokenizer);
  return true;
}

/* A place that names none agrees with all. */
static bool allows(const kedge_id_list *list, int32_t id) {
  for (uint32_t i = 0; i < list->count; i++)
    if (list->ids[i] == id) return true;
  return !list->count;
}

static void add_ids(char *line, size_t size, const char *file, const kedge_id_list *list) {
  for (uint32_t i = 0; i < list->count; i++) {
    const size_t used = strlen(line);
    snprintf(line + used, size - used, "%s%d", i ? " " : file, list->ids[i]);
  }
}

/* The end of a sequence is named in up to three places (`tokenizer`: -1 or its id). A line unless they have
 * an id in common. */
static void compare_eos(info_report *r, const kedge_hf_config *c, int32_t tokenizer) {
  const kedge_id_list own = {{tokenizer}, tokenizer >= 0};
  const kedge_id_list *all[] = {&own, &c->eos, &c->generation_eos};
  for (int i = 0; i < 3; i++)
    for (uint32_t k = 0; k < all[i]->count; k++) {
      const int32_t id = all[i]->ids[k];
      if (allows(&own, id) && allows(&c->eos, id) && allows(&c->generation_eos, id)) return;
    }
  char line[640] = "";
  add_ids(line, sizeof line, "the tokenizer ", &own);
  add_ids(line, sizeof line, *line ? ", config.json " : "config.json ", &c->eos);
  add_ids(line, sizeof line, ", generation_config.json ", &c->generation_eos);
  if (*line)
    info_say(r->notes, "the end of a sequence is not the same everywhere: %s%s", line,
             tokenizer >= 0 ? "; training samples end with the tokenizer's" : "");
}

kedge_status info_directory(info_report *r, const char *path) {
  kedge_hf_config config = {0};
  kedge_params params = {0};
  kedge_checkpoint *checkpoint = NULL;
  json_t *tokenizer = json_object();
  info_text(r->root, "kind", "model directory");
  const bool has_config = kedge_hf_config_load(path, &config) == KEDGE_OK;
  if (!has_config) info_say(r->problems, "%s", kedge_message());
  if (has_config) describe_config(r->root, &config);
  const bool known = has_config && describe_params(r, &config, &params);
  const bool has_weights = kedge_checkpoint_open(path, &checkpoint) == KEDGE_OK;
  if (!has_weights) info_say(r->problems, "%s", kedge_message());
  if (has_weights) describe_checkpoint(r, checkpoint);
  if (has_weights && known && kedge_params_fit(&params, checkpoint) != KEDGE_OK)
    info_say(r->problems, "%s", kedge_message());
  else if (has_weights && known)
    compare_tensors(r, &params, checkpoint);
  const bool has_tokenizer = info_tokenizer(r, tokenizer, path, has_config ? config.vocab_size : 0);
  if (has_tokenizer) json_object_set(r->root, "tokenizer", tokenizer);
  const json_t *eos = json_object_get(tokenizer, "eos");
  if (has_config) compare_eos(r, &config, eos ? (int32_t)json_integer_value(eos) : -1);
  if (has_config) add_notes(r->notes, &config.notes);
  json_decref(tokenizer);
  kedge_checkpoint_close(checkpoint);
  kedge_params_destroy(&params);
  if (has_config) kedge_hf_config_destroy(&config);
  if (has_config || has_weights || has_tokenizer) return KEDGE_OK;
  return kedge_fail(KEDGE_ERR_FORMAT, "%s: holds no readable config.json, weights or tokenizer", path);
}
