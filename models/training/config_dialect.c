/* SPDX-License-Identifier: Apache-2.0
 * Keys of other dialects that are more than another name: each sets the key that Kedge has
 * (config_internal.h). */
#include "models/training/config_internal.h"

#include <string.h>

/* A truth value, or one of the other words; *value is untouched for a word. */
static kedge_status truth(kedge_config_loader *loader, uint32_t node, const char *word, bool *given,
                          bool *value, bool *is_word) {
  const char *text;
  KEDGE_TRY(kedge__config_scalar(loader, node, "true or false", &text));
  *given = text != NULL;
  *value = *is_word = false;
  if (!text || kedge__config_bool(text, value)) return KEDGE_OK;
  *is_word = word && !strcmp(text, word);
  if (*is_word) return KEDGE_OK;
  return kedge__config_fail(loader, KEDGE_ERR_ARGUMENT, "expected true%s%s or false, came \"%.80s\"",
                            word ? ", " : "", word ? word : "", text);
}

kedge_status kedge__config_from_train_on_inputs(kedge_config_loader *loader, uint32_t node) {
  bool given, value, word;
  KEDGE_TRY(truth(loader, node, NULL, &given, &value, &word));
  return given ? kedge__config_set_text(loader, "completion_only_loss", value ? "false" : "true") : KEDGE_OK;
}

kedge_status kedge__config_from_bf16(kedge_config_loader *loader, uint32_t node) {
  bool given, value, word;
  KEDGE_TRY(truth(loader, node, "auto", &given, &value, &word));
  return word || value ? kedge__config_set_text(loader, "dtype", word ? "auto" : "bf16") : KEDGE_OK;
}

kedge_status kedge__config_from_fp32(kedge_config_loader *loader, uint32_t node) {
  bool given, value, word;
  KEDGE_TRY(truth(loader, node, NULL, &given, &value, &word));
  return value ? kedge__config_set_text(loader, "dtype", "f32") : KEDGE_OK;
}

kedge_status kedge__config_from_fp16(kedge_config_loader *loader, uint32_t node) {
  bool given, value, word;
  KEDGE_TRY(truth(loader, node, NULL, &given, &value, &word));
  if (!value) return KEDGE_OK;
  return kedge__config_fail(loader, KEDGE_ERR_UNSUPPORTED,
                            "not supported: Kedge trains in f32 or bf16, see dtype");
}

kedge_status kedge__config_from_tensorboard(kedge_config_loader *loader, uint32_t node) {
  bool given, value, word;
  KEDGE_TRY(truth(loader, node, NULL, &given, &value, &word));
  if (!value) return KEDGE_OK;
  return kedge__config_fail(loader, KEDGE_ERR_UNSUPPORTED,
                            "not supported: metrics are written to output_dir/metrics.jsonl, see report_to");
}

kedge_status kedge__config_from_auto_resume(kedge_config_loader *loader, uint32_t node) {
  bool given, value, word;
  KEDGE_TRY(truth(loader, node, NULL, &given, &value, &word));
  return value ? kedge__config_set_text(loader, "resume_from_checkpoint", "true") : KEDGE_OK;
}

kedge_status kedge__config_from_strict(kedge_config_loader *loader, uint32_t node) {
  bool given, value, word;
  KEDGE_TRY(truth(loader, node, NULL, &given, &value, &word));
  if (!given || value) return KEDGE_OK;
  return kedge__config_note(loader->config, "strict: false changes nothing; an unknown key is an error");
}

/* Whether the loss is added follows from the coefficient; that there is one is checked when all is read. */
kedge_status kedge__config_from_router_logits(kedge_config_loader *loader, uint32_t node) {
  bool given, value, word;
  KEDGE_TRY(truth(loader, node, NULL, &given, &value, &word));
  loader->router_logits = value;
  return KEDGE_OK;
}

/* What it means depends on two other keys; config_check.c joins them when all is read. */
kedge_status kedge__config_from_global_batch(kedge_config_loader *loader, uint32_t node) {
  static const kedge_config_key key = {.kind = KEDGE_KIND_INT,
                                       .range = "[1, 68719476736]",
                                       .offset = offsetof(kedge_config_loader, global_batch)};
  return kedge__config_store(loader, &key, loader, node);
}
