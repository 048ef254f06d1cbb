/* SPDX-License-Identifier: Apache-2.0
 * Where implementations of a family differ (family.h): the options by name. Their meaning is in the files of
 * the families that have them. */
#include "models/decoder/family.h"

#include <stdio.h>
#include <string.h>

/* Every option has two values: transformers' way, which holds, and the other one. */
static const struct {
  const char *name, *other;
  unsigned bit;
} rows[] = {
    {"latent_norm_eps", "config", KEDGE_OPTION_LATENT_NORM_EPS},
    {"norm_topk_prob", "remote", KEDGE_OPTION_NORM_TOPK_PROB},
};
enum { ROWS = sizeof rows / sizeof *rows };
static const char usual[] = "transformers";

static bool is(const char *text, size_t length, const char *name) {
  return strlen(name) == length && !memcmp(text, name, length);
}

/* One NAME=VALUE of text[0..length). */
static kedge_status set_one(kedge_hf_config *config, const kedge_family *family, const char *text,
                            size_t length) {
  const int shown = (int)(length > 80 ? 80 : length);
  const char *equals = memchr(text, '=', length);
  const size_t name = equals ? (size_t)(equals - text) : length, value = equals ? length - name - 1 : 0;
  for (int i = 0; i < ROWS; i++) {
    if (!is(text, name, rows[i].name)) continue;
    const bool other = equals && is(equals + 1, value, rows[i].other);
    if (!other && !(equals && is(equals + 1, value, usual)))
      return kedge_fail(KEDGE_ERR_ARGUMENT, "model option %s: expected %s or %s, got \"%.*s\"", rows[i].name,
                        usual, rows[i].other, shown, text);
    if (other && !(family->known_options & rows[i].bit))
      return kedge_fail(KEDGE_ERR_UNSUPPORTED, "model option %s: implementations of %s do not differ in it",
                        rows[i].name, config->model_type);
    config->options = other ? config->options | rows[i].bit : config->options & ~rows[i].bit;
    return KEDGE_OK;
  }
  char known[128] = "";
  for (int i = 0; i < ROWS; i++) {
    const size_t used = strlen(known);
    snprintf(known + used, sizeof known - used, "%s%s=%s", i ? ", " : "", rows[i].name, rows[i].other);
  }
  return kedge_fail(KEDGE_ERR_ARGUMENT, "model options: expected some of %s, got \"%.*s\"", known, shown,
                    text);
}

kedge_status kedge_model_options_set(kedge_hf_config *config, const char *text) {
  const kedge_family *family;
  if (!text || !*text) return KEDGE_OK;
  KEDGE_TRY(kedge_family_find(config, &family));
  for (;; text++) {
    text += strspn(text, " ");
    size_t length = strcspn(text, ","), used = length;
    while (used && text[used - 1] == ' ') used--;
    KEDGE_TRY(set_one(config, family, text, used));
    text += length;
    if (!*text) return KEDGE_OK;
  }
}

const char *kedge_model_options_text(unsigned options, char text[KEDGE_MODEL_OPTIONS_TEXT]) {
  text[0] = 0;
  for (int i = 0; i < ROWS; i++) {
    const size_t used = strlen(text);
    if (options & rows[i].bit)
      snprintf(text + used, KEDGE_MODEL_OPTIONS_TEXT - used, "%s%s=%s", used ? "," : "", rows[i].name,
               rows[i].other);
  }
  return text;
}

unsigned kedge_model_options_open(const kedge_hf_config *config) {
  const kedge_family *family;
  unsigned open = 0;
  if (kedge_family_find(config, &family) != KEDGE_OK) return 0;
  for (int i = 0; i < ROWS; i++) {
    kedge_hf_config with = *config, without = *config;
    kedge_family_options a, b;
    with.options |= rows[i].bit, without.options &= ~rows[i].bit;
    if (!(family->known_options & rows[i].bit) || family->options(&with, &a) != KEDGE_OK ||
        family->options(&without, &b) != KEDGE_OK)
      continue;
    if (a.latent_norm_eps < b.latent_norm_eps || a.latent_norm_eps > b.latent_norm_eps ||
        a.gate_normalise != b.gate_normalise)
      open |= rows[i].bit;
  }
  return open;
}
