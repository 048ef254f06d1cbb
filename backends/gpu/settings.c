/* SPDX-License-Identifier: Apache-2.0
 * Reads what follows the colon in a device's name (state.h): "key=value", with commas between; a card's
 * number may stand without its key. */
#include "backends/gpu/blas_vendors.h"
#include "backends/gpu/state.h"

#include <stdlib.h>
#include <string.h>

static bool is(const char *text, size_t length, const char *word) {
  return strlen(word) == length && !strncmp(text, word, length);
}

static kedge_status bad(const char *text, size_t length) {
  return kedge_fail(KEDGE_ERR_ARGUMENT, GPU_NAME ": setting \"%.*s\": expected " GPU_SETTINGS, (int)length,
                    text);
}

static bool number(const char *text, size_t length, uint32_t most, uint32_t *out) {
  uint64_t value = 0;
  if (!length || length > 9) return false;
  for (size_t i = 0; i < length; i++) {
    if (text[i] < '0' || text[i] > '9') return false;
    value = value * 10 + (uint64_t)(text[i] - '0');
  }
  *out = (uint32_t)value;
  return value <= most;
}

#if defined(KEDGE_GPU_SIM)
static const gpu_settings defaults = {.device = GPU_DEVICE_ANY,
                                      .sim = {.wave = 32, .seed = 1, .processors = 3}};

static bool read_one(gpu_settings *s, const char *key, size_t key_length, const char *value, size_t length) {
  static const char *const orders[] = {"forward", "reverse", "random"};
  if (is(key, key_length, "wave"))
    return number(value, length, 64, &s->sim.wave) && (s->sim.wave == 32 || s->sim.wave == 64);
  if (is(key, key_length, "seed")) return number(value, length, 999999999, &s->sim.seed);
  if (is(key, key_length, "processors"))
    return number(value, length, 1024, &s->sim.processors) && s->sim.processors > 0;
  if (is(key, key_length, "device")) return number(value, length, 255, &s->device);
  if (is(key, key_length, "cards")) return number(value, length, 256, &s->cards) && s->cards > 0;
  if (is(key, key_length, "products")) {
    s->sim.plain = is(value, length, "plain");
    s->groups = s->sim.groups = is(value, length, "groups");
    return s->sim.plain || s->groups || is(value, length, "tiles");
  }
  if (is(key, key_length, "blas")) {
    s->blas_vendor = is(value, length, "hipblaslt") ? BLAS_HIPBLASLT : BLAS_CUBLASLT;
    s->blas = is(value, length, "cublaslt") || is(value, length, "hipblaslt");
    return s->blas || is(value, length, "0");
  }
  for (int i = 0; i < 3; i++)
    if (is(key, key_length, "order") && is(value, length, orders[i])) {
      s->sim.order = (sim_order)i;
      return true;
    }
  return false;
}
#else
static const gpu_settings defaults = {.blas = true,
                                      .graphs = true,
                                      .groups = true,
#if defined(KEDGE_GPU_HIP)
                                      .blas_vendor = BLAS_HIPBLASLT,
#endif
                                      .device = GPU_DEVICE_ANY};

static bool read_flag(const char *value, size_t length, bool *out) {
  uint32_t n = 0;
  bool good = number(value, length, 1, &n);
  *out = n;
  return good;
}

static bool read_one(gpu_settings *s, const char *key, size_t key_length, const char *value, size_t length) {
  if (is(key, key_length, "device")) return number(value, length, 255, &s->device);
  if (is(key, key_length, "blas")) return read_flag(value, length, &s->blas);
  if (is(key, key_length, "graphs")) return read_flag(value, length, &s->graphs);
  if (is(key, key_length, "wgmma")) return read_flag(value, length, &s->groups);
  return false;
}
#endif

kedge_status gpu__settings_read(const char *text, gpu_settings *settings) {
  *settings = defaults;
  while (text && *text) {
    const size_t length = strcspn(text, ","), key = strcspn(text, "=");
    const bool good = key < length ? read_one(settings, text, key, text + key + 1, length - key - 1)
                                   : read_one(settings, "device", 6, text, length);
    if (!good) return bad(text, length);
    text += length + (text[length] == ',');
  }
  return KEDGE_OK;
}
