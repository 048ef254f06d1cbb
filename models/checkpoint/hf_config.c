/* SPDX-License-Identifier: Apache-2.0
 * config.json -> kedge_hf_config (hf_config.h). `fields` is the list of plain keys; what needs more than a
 * range check (rope, token ids, layers, values that Kedge does not have) is read by a function of its own. */
#include "models/checkpoint/hf_config.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "models/checkpoint/atomic.h"
#include "models/checkpoint/json.h"

enum { CONFIG_CAP = 16 << 20, LIMIT_LAYERS = 4096, LIMIT_EXPERTS = 1 << 16, LIMIT_WIDTH = 1 << 24 };

typedef enum kind { WHOLE, REAL, FLAG, TEXT } kind;

/* Flags of a field. */
enum {
  REQUIRED = 1,   /* by every family */
  NULL_IS_NO = 2, /* null leaves the struct's "none" */
};

typedef struct field {
  const char *key, *alias, *alias2;
  kind kind;
  size_t offset, present; /* into the struct; `present` 0: not tracked */
  double min, max;        /* WHOLE and REAL */
  unsigned flags;
} field;

#define AT(member)      offsetof(kedge_hf_config, member)
#define W(name, lo, hi) .key = #name, .kind = WHOLE, .offset = AT(name), .min = (lo), .max = (hi)
#define R(name, lo, hi) .key = #name, .kind = REAL, .offset = AT(name), .min = (lo), .max = (hi)
#define F(name)         .key = #name, .kind = FLAG, .offset = AT(name)
#define T(name)         .key = #name, .kind = TEXT, .offset = AT(name)

static const field fields[] = {
    {W(hidden_size, 1, 1 << 20), .flags = REQUIRED},
    {W(num_hidden_layers, 1, LIMIT_LAYERS), .flags = REQUIRED},
    {W(num_attention_heads, 1, 1 << 16), .flags = REQUIRED},
    {W(vocab_size, 1, 1 << 26), .flags = REQUIRED},
    {W(intermediate_size, 1, LIMIT_WIDTH)},
    {W(max_position_embeddings, 1, INT32_MAX)},
    {R(rms_norm_eps, 1e-30, 1)},
    {R(initializer_range, 0, 1e3)},
    {F(tie_word_embeddings)},
    {T(hidden_act)},
    {T(dtype), .alias = "torch_dtype", .flags = NULL_IS_NO},
    {W(num_key_value_heads, 1, 1 << 16), .flags = NULL_IS_NO},
    {W(head_dim, 2, 1 << 16), .present = AT(has_head_dim), .flags = NULL_IS_NO},
    {F(qkv_bias)},
    {F(rope_interleave)},
    {R(clip_qkv, 1e-30, 1e30), .present = AT(has_clip_qkv), .flags = NULL_IS_NO},
    {W(q_lora_rank, 1, 1 << 20), .flags = NULL_IS_NO},
    {W(kv_lora_rank, 1, 1 << 20), .flags = NULL_IS_NO},
    {W(qk_nope_head_dim, 1, 1 << 16), .flags = NULL_IS_NO},
    {W(qk_rope_head_dim, 2, 1 << 16), .flags = NULL_IS_NO},
    {W(v_head_dim, 1, 1 << 16), .flags = NULL_IS_NO},
    {W(num_experts, 1, LIMIT_EXPERTS), .alias = "num_local_experts", .alias2 = "n_routed_experts",
     .flags = NULL_IS_NO},
    {W(num_experts_per_tok, 1, LIMIT_EXPERTS), .flags = NULL_IS_NO},
    {W(moe_intermediate_size, 1, LIMIT_WIDTH), .flags = NULL_IS_NO},
    {W(n_shared_experts, 0, LIMIT_EXPERTS), .flags = NULL_IS_NO},
    {W(shared_expert_intermediate_size, 0, LIMIT_WIDTH), .flags = NULL_IS_NO},
    {W(n_group, 1, LIMIT_EXPERTS), .flags = NULL_IS_NO},
    {W(topk_group, 1, LIMIT_EXPERTS), .flags = NULL_IS_NO},
    {T(topk_method)},
    {T(scoring_func)},
    {F(norm_topk_prob)},
    {F(output_router_logits)},
    {F(seq_aux)},
    {R(routed_scaling_factor, 1e-30, 1e6)},
    {R(router_aux_loss_coef, 0, 1e6), .present = AT(has_router_aux_loss_coef), .flags = NULL_IS_NO},
    {R(aux_loss_alpha, 0, 1e6), .present = AT(has_aux_loss_alpha), .flags = NULL_IS_NO},
    {W(decoder_sparse_step, 1, LIMIT_LAYERS)},
    {W(first_k_dense_replace, 0, LIMIT_LAYERS)},
    {W(moe_layer_freq, 1, LIMIT_LAYERS)},
    {W(num_nextn_predict_layers, 0, LIMIT_LAYERS), .flags = NULL_IS_NO},
    {R(embedding_multiplier, 1e-30, 1e6)},
    {R(residual_multiplier, 1e-30, 1e6)},
    {R(attention_multiplier, 1e-30, 1e6)},
    {R(logits_scaling, 1e-30, 1e6)},
};

/* A config while it is read. `defaults` and `implied` may be NULL. */
typedef struct reader {
  const char *name;
  json_t *root, *defaults, *implied;
  kedge_hf_config *config;
} reader;

/* ---- Errors
 * ----------------------------------------------------------------------------------------------------------
 */

/* A value as it stands in the file, shortened, for a message. */
static void show(const json_t *value, char *text, size_t size) {
  text[0] = 0;
  if (!value || json_is_object(value) || json_is_array(value) ||
      !json_dumpb(value, NULL, 0, JSON_ENCODE_ANY)) {
    snprintf(text, size, "%s", kedge__json_type(value));
    return;
  }
  size_t length = json_dumpb(value, text, size - 1, JSON_ENCODE_ANY);
  text[length < size ? length : size - 1] = 0;
}

static kedge_status wrong(const reader *in, kedge_status status, const char *key, const char *expected,
                          const json_t *value) {
  char got[64];
  show(value, got, sizeof got);
  return kedge_fail(status, "%s: key \"%s\": expected %s, got %s", in->name, key, expected, got);
}

static kedge_status unsupported(const reader *in, const char *key, const char *expected,
                                const json_t *value) {
  return wrong(in, KEDGE_ERR_UNSUPPORTED, key, expected, value);
}

/* ---- Plain fields
 * ------------------------------------------------------------------------------------------------------- */

static kedge_status number(const reader *in, const char *key, const json_t *value, kind kind_, double min,
                           double max, double *result) {
  *result = 0;
  char expected[96];
  snprintf(expected, sizeof expected, "%s from %.10g to %.10g", kind_ == WHOLE ? "an integer" : "a number",
           min, max);
  if (!(kind_ == WHOLE ? json_is_integer(value) : json_is_number(value)))
    return wrong(in, KEDGE_ERR_FORMAT, key, expected, value);
  *result = json_number_value(value);
  return *result >= min && *result <= max ? KEDGE_OK : wrong(in, KEDGE_ERR_FORMAT, key, expected, value);
}

static kedge_status text(const reader *in, const char *key, const json_t *value, char *to) {
  if (!json_is_string(value) || json_string_length(value) >= KEDGE_HF_TEXT)
    return wrong(in, KEDGE_ERR_FORMAT, key, "a short string", value);
  memcpy(to, json_string_value(value), json_string_length(value) + 1);
  return KEDGE_OK;
}

static kedge_status flag(const reader *in, const char *key, const json_t *value, bool *to) {
  *to = false;
  if (!json_is_boolean(value)) return wrong(in, KEDGE_ERR_FORMAT, key, "true or false", value);
  *to = json_is_true(value);
  return KEDGE_OK;
}

static kedge_status store(const reader *in, const field *row, const char *key, const json_t *value) {
  void *to = (char *)in->config + row->offset;
  double real;
  switch (row->kind) {
  case WHOLE:
    KEDGE_TRY(number(in, key, value, WHOLE, row->min, row->max, &real));
    *(uint32_t *)to = (uint32_t)real;
    return KEDGE_OK;
  case REAL:
    return number(in, key, value, REAL, row->min, row->max, to);
  case FLAG:
    return flag(in, key, value, to);
  default:
    return text(in, key, value, to);
  }
}

/* The value of a field in one object, by any of its spellings; spellings that contradict each other are an
 * error. */
static kedge_status lookup(const reader *in, const json_t *object, const field *row, const char **key,
                           json_t **value) {
  const char *spellings[] = {row->key, row->alias, row->alias2};
  *value = NULL;
  for (int i = 0; i < 3; i++) {
    json_t *other = spellings[i] ? json_object_get(object, spellings[i]) : NULL;
    if (!other || (*value && json_is_null(other))) continue;
    if (*value && !json_is_null(*value) && !json_equal(*value, other))
      return kedge_fail(KEDGE_ERR_FORMAT, "%s: keys \"%s\" and \"%s\" contradict each other", in->name, *key,
                        spellings[i]);
    if (!*value || json_is_null(*value)) {
      *value = other;
      *key = spellings[i];
    }
  }
  return KEDGE_OK;
}

static kedge_status note_default(const reader *in, const char *key, const json_t *value) {
  char shown[64];
  show(value, shown, sizeof shown);
  return kedge_notes_add(&in->config->notes, "%s: no key \"%s\": %s, the default of %s", in->name, key, shown,
                         in->config->model_type);
}

static kedge_status read_field(const reader *in, const field *row) {
  const char *key = row->key;
  json_t *value;
  KEDGE_TRY(lookup(in, in->root, row, &key, &value));
  const json_t *implied = json_object_get(in->implied, row->key);
  if (implied) {
    if (value && !json_is_null(value) && !json_equal(value, implied)) {
      char expected[64];
      show(implied, expected, sizeof expected);
      return unsupported(in, key, expected, value);
    }
    return store(in, row, key, implied);
  }
  if (!value) {
    KEDGE_TRY(lookup(in, in->defaults, row, &key, &value));
    if (value) {
      KEDGE_TRY(note_default(in, key, value));
      return store(in, row, key, value);
    }
    return row->flags & REQUIRED ? wrong(in, KEDGE_ERR_FORMAT, key, "a value", NULL) : KEDGE_OK;
  }
  if (json_is_null(value) && (row->flags & NULL_IS_NO)) return KEDGE_OK;
  KEDGE_TRY(store(in, row, key, value));
  if (row->present) *(bool *)(void *)((char *)in->config + row->present) = true;
  return KEDGE_OK;
}

/* ---- Rope
 * ------------------------------------------------------------------------------------------------------------------
 */

/* A number of the rope object; absent or null leaves `*to`. */
static kedge_status rope_number(const reader *in, const json_t *rope, const char *key, double min,
                                double *to) {
  const json_t *value = json_object_get(rope, key);
  return !value || json_is_null(value) ? KEDGE_OK : number(in, key, value, REAL, min, 1e12, to);
}

static kedge_status read_yarn(const reader *in, const json_t *rope) {
  kedge_rope_config *out = &in->config->rope;
  out->type = KEDGE_ROPE_YARN;
  out->beta_fast = 32;
  out->beta_slow = 1;
  out->truncate = true;
  KEDGE_TRY(number(in, "factor", json_object_get(rope, "factor"), REAL, 1, 1e6, &out->factor));
  KEDGE_TRY(rope_number(in, rope, "beta_fast", 1e-6, &out->beta_fast));
  KEDGE_TRY(rope_number(in, rope, "beta_slow", 1e-6, &out->beta_slow));
  KEDGE_TRY(rope_number(in, rope, "mscale", 0, &out->mscale));
  KEDGE_TRY(rope_number(in, rope, "mscale_all_dim", 0, &out->mscale_all_dim));
  KEDGE_TRY(rope_number(in, rope, "attention_factor", 1e-6, &out->attention_factor));
  const json_t *truncate = json_object_get(rope, "truncate");
  if (truncate) KEDGE_TRY(flag(in, "truncate", truncate, &out->truncate));
  const json_t *original = json_object_get(rope, "original_max_position_embeddings");
  double positions = in->config->max_position_embeddings;
  if (original && !json_is_null(original))
    KEDGE_TRY(number(in, "original_max_position_embeddings", original, WHOLE, 1, INT32_MAX, &positions));
  out->original_max_position_embeddings = (uint32_t)positions;
  return KEDGE_OK;
}

/* Old spelling: rope_theta and rope_scaling {type}. New: rope_parameters {rope_theta, rope_type}. */
static kedge_status read_rope(const reader *in) {
  const json_t *parameters = json_object_get(in->root, "rope_parameters");
  const json_t *scaling = json_object_get(in->root, "rope_scaling");
  bool has_parameters = parameters && !json_is_null(parameters),
       has_scaling = scaling && !json_is_null(scaling);
  if (has_parameters && has_scaling && !json_equal(parameters, scaling))
    return kedge_fail(KEDGE_ERR_FORMAT,
                      "%s: keys \"rope_parameters\" and \"rope_scaling\" contradict each other", in->name);
  const json_t *rope = has_parameters ? parameters : has_scaling ? scaling : NULL;
  if (rope && !json_is_object(rope))
    return wrong(in, KEDGE_ERR_FORMAT, has_parameters ? "rope_parameters" : "rope_scaling", "an object",
                 rope);
  const json_t *theta = json_object_get(rope, "rope_theta");
  if (!theta) theta = json_object_get(in->root, "rope_theta");
  if (!theta && (theta = json_object_get(in->defaults, "rope_theta")))
    KEDGE_TRY(note_default(in, "rope_theta", theta));
  KEDGE_TRY(number(in, "rope_theta", theta, REAL, 1, 1e12, &in->config->rope.theta));
  const json_t *partial = json_object_get(rope, "partial_rotary_factor");
  if (!partial) partial = json_object_get(in->root, "partial_rotary_factor");
  if (partial && !json_is_null(partial) &&
      !(json_number_value(partial) >= 1 && json_number_value(partial) <= 1))
    return unsupported(in, "partial_rotary_factor", "1", partial);
  const json_t *type = json_object_get(rope, "rope_type");
  if (!type) type = json_object_get(rope, "type");
  if (!type && json_object_get(rope, "factor"))
    return wrong(in, KEDGE_ERR_FORMAT, "rope_type", "a string", NULL);
  if (!type) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)rope, key, value) {
      /* One set of parameters for each kind of layer. */
      if (json_is_object(value))
        return unsupported(in, key, "one set of rope parameters for all layers", value);
    }
    return KEDGE_OK;
  }
  const char *token = json_string_value(type);
  if (token && !strcmp(token, "default")) return KEDGE_OK;
  if (token && !strcmp(token, "yarn")) return read_yarn(in, rope);
  return unsupported(in, "rope_type", "\"default\" or \"yarn\"", type);
}

/* ---- Token ids, layers
 * ------------------------------------------------------------------------------------------------------ */

static kedge_status read_id(const reader *in, const char *key, int32_t *to) {
  const json_t *value = json_object_get(in->root, key);
  if (!value && (value = json_object_get(in->defaults, key))) KEDGE_TRY(note_default(in, key, value));
  if (!value || json_is_null(value)) return KEDGE_OK;
  double id;
  KEDGE_TRY(number(in, key, value, WHOLE, -1, INT32_MAX, &id));
  *to = (int32_t)id;
  return KEDGE_OK;
}

static kedge_status read_ids(const reader *in, const json_t *value, const char *key, kedge_id_list *to) {
  if (!value || json_is_null(value)) return KEDGE_OK;
  size_t count = json_is_array(value) ? json_array_size(value) : 1;
  if (count > KEDGE_HF_MAX_IDS)
    return wrong(in, KEDGE_ERR_FORMAT, key, "an id or a list of at most 16", value);
  for (size_t i = 0; i < count; i++) {
    double id;
    const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
    KEDGE_TRY(number(in, key, item, WHOLE, 0, INT32_MAX, &id));
    to->ids[to->count++] = (int32_t)id;
  }
  return KEDGE_OK;
}

static kedge_status read_eos(const reader *in) {
  const json_t *value = json_object_get(in->root, "eos_token_id");
  if (!value && (value = json_object_get(in->defaults, "eos_token_id")))
    KEDGE_TRY(note_default(in, "eos_token_id", value));
  return read_ids(in, value, "eos_token_id", &in->config->eos);
}

static kedge_status read_mlp_only(const reader *in) {
  const json_t *value = json_object_get(in->root, "mlp_only_layers");
  if (!value || json_is_null(value)) return KEDGE_OK;
  kedge_hf_config *config = in->config;
  if (!json_is_array(value) || json_array_size(value) > config->num_hidden_layers)
    return wrong(in, KEDGE_ERR_FORMAT, "mlp_only_layers", "a list of layers", value);
  config->mlp_only_layers = kedge_alloc(json_array_size(value), sizeof *config->mlp_only_layers);
  if (!config->mlp_only_layers) return KEDGE_ERR_MEMORY;
  for (size_t i = 0; i < json_array_size(value); i++) {
    double layer;
    KEDGE_TRY(number(in, "mlp_only_layers", json_array_get(value, i), WHOLE, 0, config->num_hidden_layers - 1,
                     &layer));
    config->mlp_only_layers[config->mlp_only_count++] = (uint32_t)layer;
  }
  return KEDGE_OK;
}

static kedge_status read_architecture(const reader *in) {
  const json_t *value = json_object_get(in->root, "architectures");
  if (!value || json_is_null(value)) return KEDGE_OK;
  if (!json_is_array(value)) return wrong(in, KEDGE_ERR_FORMAT, "architectures", "a list of names", value);
  return json_array_size(value)
             ? text(in, "architectures", json_array_get(value, 0), in->config->architecture)
             : KEDGE_OK;
}

/* ---- What Kedge does not have
 * -------------------------------------------------------------------------------------------------- */

static kedge_status refuse_flag(const reader *in, const char *key) {
  const json_t *value = json_object_get(in->root, key);
  return !value || json_is_null(value) || json_is_false(value) ? KEDGE_OK
                                                               : unsupported(in, key, "false", value);
}

static kedge_status refuse_nonzero(const reader *in, const char *key) {
  const json_t *value = json_object_get(in->root, key);
  if (!value || json_is_null(value)) return KEDGE_OK;
  bool zero = json_is_number(value) && !(json_number_value(value) < 0) && !(json_number_value(value) > 0);
  return zero ? KEDGE_OK : unsupported(in, key, "0", value);
}

static kedge_status refuse_present(const reader *in, const char *key) {
  const json_t *value = json_object_get(in->root, key);
  return !value || json_is_null(value) ? KEDGE_OK : unsupported(in, key, "none", value);
}

/* A window counts where the family has no switch for it or the switch is on. */
static kedge_status refuse_window(const reader *in) {
  const json_t *use = json_object_get(in->root, "use_sliding_window");
  if (!use) use = json_object_get(in->defaults, "use_sliding_window");
  const json_t *window = json_object_get(in->root, "sliding_window");
  if (use && !json_is_null(use)) {
    bool on;
    KEDGE_TRY(flag(in, "use_sliding_window", use, &on));
    return on && !json_is_null(window) ? unsupported(in, "use_sliding_window", "false", use) : KEDGE_OK;
  }
  return refuse_present(in, "sliding_window");
}

static kedge_status refuse(const reader *in) {
  static const char *const off[] = {"attention_bias", "mlp_bias"};
  static const char *const zero[] = {"attention_dropout", "router_jitter_noise"};
  static const char *const none[] = {"quantization_config", "mlp_layer_types"};
  for (size_t i = 0; i < sizeof off / sizeof *off; i++) KEDGE_TRY(refuse_flag(in, off[i]));
  for (size_t i = 0; i < sizeof zero / sizeof *zero; i++) KEDGE_TRY(refuse_nonzero(in, zero[i]));
  for (size_t i = 0; i < sizeof none / sizeof *none; i++) KEDGE_TRY(refuse_present(in, none[i]));
  KEDGE_TRY(refuse_window(in));
  const json_t *types = json_object_get(in->root, "layer_types");
  for (size_t i = 0; i < json_array_size(types); i++) {
    const json_t *type = json_array_get(types, i);
    if (!json_is_string(type) || strcmp(json_string_value(type), "full_attention"))
      return unsupported(in, "layer_types", "\"full_attention\" for every layer", type);
  }
  if (strcmp(in->config->hidden_act, "silu"))
    return kedge_fail(KEDGE_ERR_UNSUPPORTED, "%s: key \"hidden_act\": expected \"silu\", got \"%s\"",
                      in->name, in->config->hidden_act);
  return KEDGE_OK;
}

/* ---- Fields together
 * ------------------------------------------------------------------------------------------------------------
 */

static kedge_status derive_heads(const reader *in) {
  kedge_hf_config *c = in->config;
  if (!c->num_key_value_heads) c->num_key_value_heads = c->num_attention_heads;
  if (c->num_attention_heads % c->num_key_value_heads)
    return kedge_fail(KEDGE_ERR_FORMAT,
                      "%s: key \"num_key_value_heads\": expected a divisor of num_attention_heads %u, got %u",
                      in->name, c->num_attention_heads, c->num_key_value_heads);
  if (c->kv_lora_rank) {
    if (!c->qk_nope_head_dim || !c->qk_rope_head_dim || !c->v_head_dim)
      return kedge_fail(KEDGE_ERR_FORMAT, "%s: key \"%s\": expected a value beside kv_lora_rank, got nothing",
                        in->name,
                        !c->qk_nope_head_dim   ? "qk_nope_head_dim"
                        : !c->qk_rope_head_dim ? "qk_rope_head_dim"
                                               : "v_head_dim");
    if (c->qk_rope_head_dim % 2)
      return kedge_fail(KEDGE_ERR_FORMAT, "%s: key \"qk_rope_head_dim\": expected an even number, got %u",
                        in->name, c->qk_rope_head_dim);
    c->head_dim = c->qk_nope_head_dim + c->qk_rope_head_dim;
    return KEDGE_OK;
  }
  if (!c->has_head_dim) {
    if (c->hidden_size % c->num_attention_heads)
      return kedge_fail(KEDGE_ERR_FORMAT,
                        "%s: key \"head_dim\": expected a value, as hidden_size %u is no multiple of the %u "
                        "heads, got nothing",
                        in->name, c->hidden_size, c->num_attention_heads);
    c->head_dim = c->hidden_size / c->num_attention_heads;
  }
  if (!c->v_head_dim) c->v_head_dim = c->head_dim;
  return c->head_dim % 2
             ? kedge_fail(KEDGE_ERR_FORMAT, "%s: key \"head_dim\": expected an even number, got %u", in->name,
                          c->head_dim)
             : KEDGE_OK;
}

static kedge_status derive_experts(const reader *in) {
  kedge_hf_config *c = in->config;
  if (!c->n_group) c->n_group = 1;
  if (!c->topk_group) c->topk_group = c->n_group;
  if (!c->num_experts) return KEDGE_OK;
  if (!c->moe_intermediate_size) c->moe_intermediate_size = c->intermediate_size;
  if (!c->moe_intermediate_size)
    return wrong(in, KEDGE_ERR_FORMAT, "moe_intermediate_size", "a value beside the experts", NULL);
  if (!c->num_experts_per_tok || c->num_experts_per_tok > c->num_experts)
    return kedge_fail(KEDGE_ERR_FORMAT,
                      "%s: key \"num_experts_per_tok\": expected 1 to the %u experts, got %u", in->name,
                      c->num_experts, c->num_experts_per_tok);
  if (c->num_experts % c->n_group)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: key \"n_group\": expected a divisor of the %u experts, got %u",
                      in->name, c->num_experts, c->n_group);
  if (c->topk_group > c->n_group)
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: key \"topk_group\": expected at most n_group %u, got %u",
                      in->name, c->n_group, c->topk_group);
  if (c->num_experts_per_tok > c->num_experts / c->n_group * c->topk_group)
    return kedge_fail(
        KEDGE_ERR_FORMAT,
        "%s: key \"num_experts_per_tok\": expected at most the %u experts of topk_group groups, got %u",
        in->name, c->num_experts / c->n_group * c->topk_group, c->num_experts_per_tok);
  return KEDGE_OK;
}

static void set_initial(kedge_hf_config *config) {
  memset(config, 0, sizeof *config);
  config->bos_token_id = config->pad_token_id = -1;
  config->decoder_sparse_step = config->moe_layer_freq = 1;
  config->routed_scaling_factor = 1;
  config->embedding_multiplier = config->residual_multiplier = config->logits_scaling = 1;
  memcpy(config->scoring_func, "softmax", sizeof "softmax");
  memcpy(config->topk_method, "greedy", sizeof "greedy");
}

static kedge_status read_root(reader *in) {
  if (!json_is_object(in->root))
    return kedge_fail(KEDGE_ERR_FORMAT, "%s: expected an object, got %s", in->name,
                      kedge__json_type(in->root));
  KEDGE_TRY(text(in, "model_type", json_object_get(in->root, "model_type"), in->config->model_type));
  const char *defaults = kedge__hf_defaults(in->config->model_type),
             *implied = kedge__hf_implied(in->config->model_type);
  if (!defaults && !implied)
    return kedge_fail(KEDGE_ERR_UNSUPPORTED,
                      "%s: key \"model_type\": \"%s\" is not a family that Kedge knows", in->name,
                      in->config->model_type);
  if (defaults) KEDGE_TRY(kedge__json_parse(defaults, strlen(defaults), "defaults", &in->defaults));
  if (implied) KEDGE_TRY(kedge__json_parse(implied, strlen(implied), "defaults", &in->implied));
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) KEDGE_TRY(read_field(in, &fields[i]));
  KEDGE_TRY(read_architecture(in));
  KEDGE_TRY(refuse(in));
  KEDGE_TRY(read_rope(in));
  KEDGE_TRY(read_id(in, "bos_token_id", &in->config->bos_token_id));
  KEDGE_TRY(read_id(in, "pad_token_id", &in->config->pad_token_id));
  KEDGE_TRY(read_eos(in));
  KEDGE_TRY(read_mlp_only(in));
  KEDGE_TRY(derive_heads(in));
  return derive_experts(in);
}

kedge_status kedge_hf_config_parse(const char *bytes_text, size_t bytes, const char *name,
                                   kedge_hf_config *config) {
  set_initial(config);
  reader in = {.name = name, .config = config};
  kedge_status status = kedge__json_parse(bytes_text, bytes, name, &in.root);
  if (status == KEDGE_OK) status = read_root(&in);
  json_decref(in.root);
  json_decref(in.defaults);
  json_decref(in.implied);
  if (status != KEDGE_OK) kedge_hf_config_destroy(config);
  return status;
}

static kedge_status read_generation(const char *path, kedge_hf_config *config) {
  struct stat info;
  if (stat(path, &info) && errno == ENOENT) return KEDGE_OK;
  reader in = {.name = path, .config = config};
  KEDGE_TRY(kedge__json_load(path, CONFIG_CAP, &in.root));
  kedge_status status =
      json_is_object(in.root)
          ? read_ids(&in, json_object_get(in.root, "eos_token_id"), "eos_token_id", &config->generation_eos)
          : kedge_fail(KEDGE_ERR_FORMAT, "%s: expected an object, got %s", path, kedge__json_type(in.root));
  json_decref(in.root);
  return status;
}

kedge_status kedge_hf_config_load(const char *directory, kedge_hf_config *config) {
  set_initial(config);
  char *path = kedge_path_join(directory, "config.json");
  char *generation = kedge_path_join(directory, "generation_config.json"), *bytes_text = NULL;
  size_t bytes;
  kedge_status status = path && generation ? KEDGE_OK : KEDGE_ERR_MEMORY;
  if (status == KEDGE_OK) status = kedge_file_read(path, CONFIG_CAP, &bytes_text, &bytes);
  if (status == KEDGE_OK) status = kedge_hf_config_parse(bytes_text, bytes, path, config);
  if (status == KEDGE_OK && (status = read_generation(generation, config)) != KEDGE_OK)
    kedge_hf_config_destroy(config);
  kedge_free(bytes_text);
  kedge_free(generation);
  kedge_free(path);
  return status;
}

void kedge_hf_config_destroy(kedge_hf_config *config) {
  kedge_notes_destroy(&config->notes);
  kedge_free(config->mlp_only_layers);
  memset(config, 0, sizeof *config);
}

/* ---- Layers
 * -----------------------------------------------------------------------------------------------------------------------
 */

bool kedge_hf_layer_is_sparse(const kedge_hf_config *config, uint32_t layer) {
  if (!config->num_experts || layer < config->first_k_dense_replace || layer % config->moe_layer_freq ||
      (layer + 1) % config->decoder_sparse_step)
    return false;
  for (uint32_t i = 0; i < config->mlp_only_count; i++)
    if (config->mlp_only_layers[i] == layer) return false;
  return true;
}

uint32_t kedge_hf_sparse_layers(const kedge_hf_config *config) {
  uint32_t count = 0;
  for (uint32_t layer = 0; layer < config->num_hidden_layers; layer++)
    count += kedge_hf_layer_is_sparse(config, layer);
  return count;
}
