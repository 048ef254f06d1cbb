/* SPDX-License-Identifier: Apache-2.0
 * The devices under test (suite.h). */
#include "core/device.h"
#include "tests/support/suite.h"

#include <string.h>

static kedge_status add(kedge_test_devices *d, const char *backend, const kedge_open_options *options,
                        bool same_bits) {
  kedge_device *device = NULL;
  KEDGE_TRY(kedge_device_open(backend, options, &device));
  if (!device->limits.computes || d->count == KEDGE_TEST_DEVICES) {
    kedge_device_close(device);
    return KEDGE_OK;
  }
  d->same_bits_as_previous[d->count] = same_bits;
  d->at[d->count++] = device;
  return KEDGE_OK;
}

/* An instruction set that this machine lacks is left out; the plainest is always there. */
static kedge_status add_cpu(kedge_test_devices *d) {
  static const char *const isas[] = {"base", "avx2", "avx512", "avx512bf16", "amx"};
  for (uint32_t i = 0; i < sizeof isas / sizeof *isas; i++)
    for (uint32_t threads = 1; threads <= 2; threads++) {
      kedge_status status =
          add(d, "cpu", &(kedge_open_options){.threads = threads, .isa = isas[i]}, threads == 2);
      if (status != KEDGE_OK && i == 0) return status;
    }
  return KEDGE_OK;
}

kedge_status kedge_test_devices_open(kedge_test_devices *d) {
  *d = (kedge_test_devices){0};
  KEDGE_TRY(add(d, "ref", NULL, false));
  for (uint32_t i = 0; kedge_backend_name(i); i++) {
    const char *name = kedge_backend_name(i);
    if (!strcmp(name, kedge__module_name(0))) break; /* those of modules have suites of their own */
    if (!strcmp(name, "ref")) continue;
    KEDGE_TRY(!strcmp(name, "cpu") ? add_cpu(d) : add(d, name, NULL, false));
  }
  return KEDGE_OK;
}

void kedge_test_devices_close(kedge_test_devices *d) {
  for (uint32_t i = 0; i < d->count; i++) kedge_device_close(d->at[i]);
  *d = (kedge_test_devices){0};
}
